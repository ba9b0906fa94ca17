/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions about policies and times to live, with trials and curves that the tests make up. */
#include "check_main.h"

#include "manager/pilot/tuner.h"

#define SECOND_US 1000000LL
#define SETTLE_US (600 * SECOND_US)

enum { LRU = 1, LFU = 2, GROUP = 7 };

/* Hit tokens of a hundred, for one second: of the trial with each policy, and measured. */
static double trial_hits[3], trial_error, found;
static struct tierce__tuner *tuner;
static struct tierce__tuner_group group;
static int64_t now_us;

static int try_all(void *arg, const struct tierce__tuner_group *of,
                   const struct tierce__tuner_setting *settings, size_t count, double seconds,
                   struct tierce__trial *out)
{
    (void)arg;
    (void)seconds;
    ck_assert_uint_eq(of->number, GROUP);
    *out =
        (struct tierce__trial){.seconds = 3600, .asked = 360000, .sampled = 5000, .capacity = 600};
    for (size_t i = 0; i < count; i++) {
        out->hits[i].tokens = 3600 * trial_hits[settings[i].policy];
        out->hits[i].more = out->hits[i].tokens - out->hits[0].tokens;
        out->hits[i].error = i > 0 ? 3600 * trial_error : 0;
    }
    return 0;
}

static bool recent(void *arg, const struct tierce__tuner_group *of, uint32_t epochs,
                   struct tierce__ghost_shape *out)
{
    (void)arg;
    (void)of;
    (void)epochs;
    *out = (struct tierce__ghost_shape){.seconds = 1800,
                                        .asked = 180000,
                                        .found = 1800 * found,
                                        .sampled = 5000,
                                        .blocks = 1 << 20};
    return true;
}

static void open_tuner(void)
{
    now_us = 1000 * SETTLE_US;
    trial_hits[LRU] = found = 50;
    trial_hits[LFU] = 60;
    trial_error = 1;
    group = (struct tierce__tuner_group){.name = "g",
                                         .number = GROUP,
                                         .advises = true,
                                         .acts = true,
                                         .now = {LRU, 0},
                                         .policies = {LRU, LFU},
                                         .policy_count = 2};
    ck_assert_int_eq(
        tierce__tuner_create(&tuner,
                             &(struct tierce__tuner_opts){.size = sizeof(struct tierce__tuner_opts),
                                                          .settle_us = SETTLE_US,
                                                          .try_all = try_all,
                                                          .recent = recent}),
        0);
}

/* Looks once a settle until there is a decision, and carries it out; the settles that passed. */
static int pass_until(enum tierce__tuner_verdict wanted, int most)
{
    struct tierce__tuner_decision decision;
    for (int settles = 0; settles <= most; settles++, now_us += SETTLE_US) {
        tierce__tuner_look(tuner, now_us, &group, 1, &decision);
        if (decision.verdict == TIERCE__TUNER_NOTHING)
            continue;
        ck_assert_int_eq(decision.verdict, wanted);
        group.now = wanted == TIERCE__TUNER_STEP   ? decision.to
                    : wanted == TIERCE__TUNER_UNDO ? decision.from
                                                   : group.now;
        tierce__tuner_done(tuner, now_us, &decision, true);
        return settles;
    }
    return -1;
}

START_TEST(a_step_that_keeps_its_promise_is_kept)
{
    open_tuner();
    ck_assert_int_eq(pass_until(TIERCE__TUNER_STEP, 20), 4);
    ck_assert_int_eq(group.now.policy, LFU);
    found = 60;
    ck_assert_int_eq(pass_until(TIERCE__TUNER_KEEP, 20), 3);
    ck_assert_int_eq(group.now.policy, LFU);
    tierce__tuner_destroy(tuner);
}
END_TEST

/* A trial must promise more than twice its error, and a hit in a hundred tokens. */
START_TEST(a_doubtful_trial_is_no_step)
{
    open_tuner();
    trial_error = 5.1;
    ck_assert_int_eq(pass_until(TIERCE__TUNER_STEP, 50), -1);
    trial_error = 0.1;
    trial_hits[LFU] = 50.9;
    ck_assert_int_eq(pass_until(TIERCE__TUNER_STEP, 50), -1);
    trial_hits[LFU] = 51.1;
    ck_assert_int_ge(pass_until(TIERCE__TUNER_STEP, 50), 0);
    tierce__tuner_destroy(tuner);
}
END_TEST

/* After each step that was wrong the group is left alone for twice as long, until one is right. */
START_TEST(wrong_steps_become_rarer)
{
    open_tuner();
    ck_assert_int_eq(pass_until(TIERCE__TUNER_STEP, 20), 4);
    int wait = 6;
    for (int i = 0; i < 3; i++, wait *= 2) {
        ck_assert_int_eq(pass_until(TIERCE__TUNER_UNDO, 20), 3); /* 50 were found, as before */
        ck_assert_int_eq(group.now.policy, LRU);
        ck_assert_int_eq(pass_until(TIERCE__TUNER_STEP, 100), wait);
    }
    found = 60;
    ck_assert_int_eq(pass_until(TIERCE__TUNER_KEEP, 20), 3);
    tierce__tuner_destroy(tuner);
}
END_TEST

/* Another process recalls from the registry how often a group's steps were wrong. */
START_TEST(a_new_leader_recalls_wrong_steps)
{
    open_tuner();
    tierce__tuner_recall(tuner, GROUP, now_us - 2 * SETTLE_US);
    tierce__tuner_recall(tuner, GROUP, now_us - SETTLE_US);
    ck_assert_int_eq(pass_until(TIERCE__TUNER_STEP, 100), 11);
    tierce__tuner_destroy(tuner);
}
END_TEST

CHECK_MAIN("tuner", .seconds = 20,
           .tests = {a_step_that_keeps_its_promise_is_kept, a_doubtful_trial_is_no_step,
                     wrong_steps_become_rarer, a_new_leader_recalls_wrong_steps})
