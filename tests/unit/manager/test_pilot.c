/* SPDX-License-Identifier: Apache-2.0 */
/* The autopilot's decisions, on curves that are made up. */
#include "check_main.h"

#include "manager/pilot/pilot.h"

#include <math.h>

#define MIB      1048576.0
#define SECOND   1000000ll
#define SETTLE   (600 * SECOND)
#define WINDOW_S 2400.0

static double held(void *arg, const struct tierce__pilot_group *group,
                   const double quota[TIERCE__PILOT_QUOTAS])
{
    (void)arg;
    (void)group;
    return quota[0];
}

/* The storages of each group, a bit for each. */
static uint32_t storages[2];

static bool share(void *arg, const struct tierce__pilot_group *one,
                  const struct tierce__pilot_group *other, uint32_t quota)
{
    (void)arg;
    ck_assert_uint_eq(quota, 0);
    return (storages[one->number - 1] & storages[other->number - 1]) != 0;
}

static struct tierce__pilot *open_pilot(void)
{
    struct tierce__pilot *pilot;
    struct tierce__pilot_opts opts = {.size = sizeof(opts), .held = held, .share = share};
    storages[0] = storages[1] = 3;
    ck_assert_int_eq(tierce__pilot_create(&pilot, &opts), 0);
    return pilot;
}

/* 1,000 tokens a second, of which `rate` hit at `knee` bytes and above; below, in proportion. */
static struct tierce__ghost_shape shape(double knee, double rate)
{
    struct tierce__ghost_shape out = {.seconds = WINDOW_S,
                                      .asked = 1000 * WINDOW_S,
                                      .unit_bytes = MIB,
                                      .key_bytes = MIB,
                                      .sampled = 100000,
                                      .blocks = 8000,
                                      .is_warm = true};
    for (uint32_t i = 0; i <= TIERCE__GHOST_BUCKETS; i++)
        out.hits[i] = out.asked * rate * fmin(1, tierce__ghost_bucket_bytes(i) / knee);
    return out;
}

struct pair {
    struct tierce__ghost_shape shapes[2];
    struct tierce__pilot_group groups[2];
};

/* Two groups with 100 MiB: the first is full with 20, the second uses up to 400. */
static void open_pair(struct pair *p)
{
    p->shapes[0] = shape(20 * MIB, 0.5);
    p->shapes[1] = shape(400 * MIB, 0.8);
    for (uint32_t i = 0; i < 2; i++) {
        p->groups[i] = (struct tierce__pilot_group){.name = i == 0 ? "small" : "large",
                                                    .number = i + 1,
                                                    .advises = true,
                                                    .acts = true,
                                                    .quota = {100 * MIB},
                                                    .used = 100 * MIB,
                                                    .window = &p->shapes[i],
                                                    .recent = &p->shapes[i]};
    }
}

/* Found: what the curves say, and `more` tokens a second. */
static void measure(struct pair *p, double more)
{
    for (size_t i = 0; i < 2; i++) {
        p->shapes[i].found = tierce__ghost_hits(&p->shapes[i], p->groups[i].quota[0]);
        p->shapes[i].found += more / 2 * WINDOW_S;
        p->groups[i].used = p->groups[i].quota[0];
    }
}

static struct tierce__pilot_decision look(struct tierce__pilot *pilot, int64_t at,
                                          const struct pair *p)
{
    struct tierce__pilot_decision decision;
    tierce__pilot_look(pilot, at, p->groups, 2, &decision);
    return decision;
}

static void apply(struct tierce__pilot *pilot, int64_t at, struct pair *p,
                  const struct tierce__pilot_decision *decision)
{
    double bytes = decision->verdict == TIERCE__PILOT_STEP   ? decision->bytes
                   : decision->verdict == TIERCE__PILOT_UNDO ? -decision->bytes
                                                             : 0;
    p->groups[decision->from - 1].quota[0] -= bytes;
    p->groups[decision->to - 1].quota[0] += bytes;
    tierce__pilot_done(pilot, at, decision, true);
}

START_TEST(a_step_goes_to_the_larger_gain)
{
    struct pair p;
    struct tierce__pilot *pilot = open_pilot();
    open_pair(&p);
    struct tierce__pilot_decision decision = look(pilot, SECOND, &p);
    ck_assert_int_eq(decision.verdict, TIERCE__PILOT_STEP);
    ck_assert_uint_eq(decision.from, 1);
    ck_assert_uint_eq(decision.to, 2);
    ck_assert_double_eq(decision.bytes, floor(0.05 * 200 * MIB));
    ck_assert_double_eq_tol(decision.expected, 1000 * 0.8 * 10 / 400, 2.5);
    tierce__pilot_destroy(pilot);
}
END_TEST

START_TEST(one_step_at_a_time_until_it_has_settled)
{
    struct pair p;
    struct tierce__pilot *pilot = open_pilot();
    open_pair(&p);
    measure(&p, 0);
    struct tierce__pilot_decision step = look(pilot, SECOND, &p);
    apply(pilot, SECOND, &p, &step);
    measure(&p, 0);
    ck_assert_int_eq(look(pilot, SECOND + SETTLE - 1, &p).verdict, TIERCE__PILOT_NOTHING);
    p.groups[1].used = 100 * MIB; /* its new bytes are not filled yet */
    ck_assert_int_eq(look(pilot, SECOND + SETTLE, &p).verdict, TIERCE__PILOT_KEEP);
    p.groups[1].used = 50 * MIB;
    ck_assert_int_eq(look(pilot, SECOND + SETTLE, &p).verdict, TIERCE__PILOT_NOTHING);
    struct tierce__pilot_decision kept = look(pilot, SECOND + 3 * SETTLE, &p);
    ck_assert_int_eq(kept.verdict, TIERCE__PILOT_KEEP);
    ck_assert_double_eq_tol(kept.measured, kept.expected, 3);
    apply(pilot, SECOND + 3 * SETTLE, &p, &kept);
    ck_assert_int_eq(look(pilot, SECOND + 3 * SETTLE, &p).verdict, TIERCE__PILOT_STEP);
    tierce__pilot_destroy(pilot);
}
END_TEST

START_TEST(a_wrong_step_is_undone_and_the_pair_left_alone)
{
    struct pair p;
    struct tierce__pilot *pilot = open_pilot();
    int64_t at = SECOND, waits[2];
    open_pair(&p);
    for (int i = 0; i < 2; i++) {
        measure(&p, 0);
        struct tierce__pilot_decision step = look(pilot, at, &p);
        ck_assert_int_eq(step.verdict, TIERCE__PILOT_STEP);
        apply(pilot, at, &p, &step);
        measure(&p, -300); /* hits are lost that the curves promise */
        at += SETTLE;
        struct tierce__pilot_decision undo = look(pilot, at, &p);
        ck_assert_int_eq(undo.verdict, TIERCE__PILOT_UNDO);
        ck_assert_double_lt(undo.measured, -200);
        ck_assert_uint_eq(undo.from, step.from);
        apply(pilot, at, &p, &undo);
        ck_assert_double_eq(p.groups[0].quota[0], 100 * MIB);
        ck_assert_double_eq(p.groups[1].quota[0], 100 * MIB);
        int64_t undone = at;
        while (look(pilot, at, &p).verdict == TIERCE__PILOT_NOTHING)
            at += SETTLE;
        waits[i] = at - undone;
        tierce__pilot_done(pilot, at,
                           &(struct tierce__pilot_decision){.verdict = TIERCE__PILOT_STEP}, false);
    }
    ck_assert_int_eq(waits[0], 6 * SETTLE);
    ck_assert_int_eq(waits[1], 12 * SETTLE);
    tierce__pilot_destroy(pilot);
}
END_TEST

/* An operator bounds a quota while a step settles: the bound holds, although the step is wrong. */
START_TEST(an_undo_crosses_no_bound)
{
    for (int i = 0; i < 4; i++) {
        struct pair p;
        struct tierce__pilot *pilot = open_pilot();
        open_pair(&p);
        measure(&p, 0);
        struct tierce__pilot_decision step = look(pilot, SECOND, &p);
        apply(pilot, SECOND, &p, &step);
        measure(&p, -300);
        if (i < 2)
            p.groups[0].most[0] = 100 * MIB - i; /* the giver's, exactly its old bytes, or less */
        else
            p.groups[1].least[0] = 100 * MIB + i - 2;
        struct tierce__pilot_decision end = look(pilot, SECOND + SETTLE, &p);
        ck_assert_int_eq(end.verdict, i % 2 == 0 ? TIERCE__PILOT_UNDO : TIERCE__PILOT_STAY);
        ck_assert_double_lt(end.measured, -200);
        apply(pilot, SECOND + SETTLE, &p, &end);
        /* The pair is left alone in both cases. */
        ck_assert_int_eq(look(pilot, SECOND + 2 * SETTLE, &p).verdict, TIERCE__PILOT_NOTHING);
        tierce__pilot_destroy(pilot);
    }
}
END_TEST

/* The end of a step could not be written. */
START_TEST(an_end_that_fails_is_tried_again)
{
    struct pair p;
    struct tierce__pilot *pilot = open_pilot();
    open_pair(&p);
    measure(&p, 0);
    struct tierce__pilot_decision step = look(pilot, SECOND, &p);
    apply(pilot, SECOND, &p, &step);
    measure(&p, 0);
    for (int i = 0; i < 2; i++) {
        struct tierce__pilot_decision kept = look(pilot, SECOND + SETTLE + i, &p);
        ck_assert_int_eq(kept.verdict, TIERCE__PILOT_KEEP);
        tierce__pilot_done(pilot, SECOND + SETTLE + i, &kept, i == 1);
    }
    ck_assert_int_eq(look(pilot, 2 * SECOND + SETTLE, &p).verdict, TIERCE__PILOT_STEP);
    tierce__pilot_destroy(pilot);
}
END_TEST

/* The clock goes back, as it does when another computer led meanwhile. Remembered steps must not
 * count for longer. */
START_TEST(a_clock_that_goes_back)
{
    struct pair p;
    struct tierce__pilot *pilot = open_pilot();
    open_pair(&p);
    p.shapes[1] = shape(400 * MIB, 0.1);
    p.groups[0].window = &p.shapes[1];
    p.groups[0].acts = p.groups[1].acts = p.groups[0].advises = p.groups[1].advises = false;
    (void)look(pilot, SECOND, &p);
    (void)look(pilot, 1000 * SETTLE, &p);
    tierce__pilot_forget(pilot);
    open_pair(&p);
    struct tierce__pilot_decision step = look(pilot, 2 * SETTLE, &p);
    ck_assert_int_eq(step.verdict, TIERCE__PILOT_STEP);
    ck_assert_uint_eq(step.from, 1);
    ck_assert_double_le(step.expected, 1000 * 0.8 * 10 / 400);
    ck_assert_double_ge(step.expected, 0);
    tierce__pilot_destroy(pilot);
}
END_TEST

/* The load doubled; that is not the effect of the step. */
START_TEST(a_load_that_changes_is_no_effect)
{
    struct pair p;
    struct tierce__pilot *pilot = open_pilot();
    open_pair(&p);
    measure(&p, 0);
    struct tierce__pilot_decision step = look(pilot, SECOND, &p);
    apply(pilot, SECOND, &p, &step);
    p.shapes[1] = shape(400 * MIB, 0.2); /* a quarter of the hits at every size */
    measure(&p, 0);
    struct tierce__pilot_decision kept = look(pilot, SECOND + SETTLE, &p);
    ck_assert_int_eq(kept.verdict, TIERCE__PILOT_KEEP);
    ck_assert_double_ge(kept.measured, 0);
    tierce__pilot_destroy(pilot);
}
END_TEST

START_TEST(bounds_hold)
{
    struct pair p;
    struct tierce__pilot *pilot = open_pilot();
    open_pair(&p);
    p.groups[0].least[0] = 96 * MIB;
    struct tierce__pilot_decision decision = look(pilot, SECOND, &p);
    ck_assert_double_eq(decision.bytes, 4 * MIB);
    tierce__pilot_done(pilot, SECOND, &decision, false);
    p.groups[1].most[0] = 102 * MIB;
    decision = look(pilot, SECOND, &p);
    ck_assert_double_eq(decision.bytes, 2 * MIB);
    tierce__pilot_done(pilot, SECOND, &decision, false);
    p.groups[0].least[0] = 100 * MIB;
    ck_assert_int_eq(look(pilot, SECOND, &p).verdict, TIERCE__PILOT_NOTHING);
    tierce__pilot_destroy(pilot);
}
END_TEST

START_TEST(groups_that_do_not_act)
{
    struct pair p;
    struct tierce__pilot *pilot = open_pilot();
    open_pair(&p);
    p.groups[1].acts = false;
    ck_assert_int_eq(look(pilot, SECOND, &p).verdict, TIERCE__PILOT_ADVISE);
    p.groups[1].advises = false;
    ck_assert_int_eq(look(pilot, SECOND, &p).verdict, TIERCE__PILOT_NOTHING);
    p.groups[1].acts = p.groups[1].advises = true;
    storages[1] = 4; /* none in common */
    ck_assert_int_eq(look(pilot, SECOND, &p).verdict, TIERCE__PILOT_NOTHING);
    storages[1] = 6;
    p.groups[1].window = NULL;
    ck_assert_int_eq(look(pilot, SECOND, &p).verdict, TIERCE__PILOT_NOTHING);
    p.groups[1].window = &p.shapes[1];
    p.shapes[0].is_warm = false; /* its hits are not all known */
    ck_assert_int_eq(look(pilot, SECOND, &p).verdict, TIERCE__PILOT_NOTHING);
    tierce__pilot_destroy(pilot);
}
END_TEST

START_TEST(a_difference_within_the_error_moves_nothing)
{
    struct pair p;
    struct tierce__pilot *pilot = open_pilot();
    open_pair(&p);
    p.shapes[0] = shape(400 * MIB, 0.80);
    p.shapes[1] = shape(400 * MIB, 0.81);
    ck_assert_int_eq(look(pilot, SECOND, &p).verdict, TIERCE__PILOT_NOTHING);
    p.shapes[1] = shape(400 * MIB, 0.9);
    ck_assert_int_eq(look(pilot, SECOND, &p).verdict, TIERCE__PILOT_STEP);
    tierce__pilot_destroy(pilot);
}
END_TEST

/* An operator changes a quota, or the group's mode, while a step settles. */
START_TEST(a_step_that_cannot_be_judged_is_dropped)
{
    for (int i = 0; i < 3; i++) {
        struct pair p;
        struct tierce__pilot *pilot = open_pilot();
        open_pair(&p);
        struct tierce__pilot_decision step = look(pilot, SECOND, &p);
        apply(pilot, SECOND, &p, &step);
        if (i == 0)
            p.groups[0].quota[0] += 5 * MIB;
        else if (i == 1)
            p.groups[1].acts = false;
        else
            p.groups[1].number = 7;
        struct tierce__pilot_decision dropped = look(pilot, 2 * SECOND, &p);
        ck_assert_int_eq(dropped.verdict, TIERCE__PILOT_DROP);
        ck_assert_double_eq(dropped.bytes, step.bytes);
        tierce__pilot_done(pilot, 2 * SECOND, &dropped, true);
        tierce__pilot_destroy(pilot);
    }
}
END_TEST

/* The curve is flat up to 150 MiB: one step gains nothing, seven do. */
START_TEST(several_steps_are_looked_ahead)
{
    struct pair p;
    struct tierce__pilot *pilot = open_pilot();
    open_pair(&p);
    for (uint32_t i = 0; i <= TIERCE__GHOST_BUCKETS; i++)
        p.shapes[1].hits[i] =
            tierce__ghost_bucket_bytes(i) >= 150 * MIB ? 0.8 * p.shapes[1].asked : 0;
    struct tierce__pilot_decision decision = look(pilot, SECOND, &p);
    ck_assert_int_eq(decision.verdict, TIERCE__PILOT_STEP);
    ck_assert_double_eq(decision.expected, 0);
    tierce__pilot_destroy(pilot);
}
END_TEST

CHECK_MAIN("pilot", .seconds = 60,
           .tests = {a_step_goes_to_the_larger_gain, one_step_at_a_time_until_it_has_settled,
                     a_wrong_step_is_undone_and_the_pair_left_alone, an_undo_crosses_no_bound,
                     an_end_that_fails_is_tried_again, a_clock_that_goes_back,
                     a_load_that_changes_is_no_effect, bounds_hold, groups_that_do_not_act,
                     a_difference_within_the_error_moves_nothing,
                     a_step_that_cannot_be_judged_is_dropped, several_steps_are_looked_ahead})
