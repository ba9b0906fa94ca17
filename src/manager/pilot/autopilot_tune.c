/* SPDX-License-Identifier: Apache-2.0 */
/* The autopilot's policies and times to live: what the tuner sees, and what it decides. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "manager/pilot/autopilot_private.h"
#include "manager/pilot/gain.h"
#include "manager/reclaim/expiry.h"
#include "manager/reclaim/victims.h"
#include "manager/registry/registry.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* Trials take at most this part of the time of all threads of the process. */
#define SHARE_MAX 0.0025

#define SECOND_US INT64_C(1000000)

/* ---- what the tuner sees --------------------------------------------------------------------- */

/* The groups of layers of a hybrid model are evicted together (families.c), and a trial does not
 * know that. */
static bool has_families(const struct tierce__autopilot *a, const struct tierce__group *group)
{
    size_t count;
    const struct tierce__instance *all = tierce__catalog_instances(a->catalog, &count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(all[i].group_name, group->name) == 0 && all[i].attention.family[0] != '\0')
            return true;
    }
    return false;
}

void tierce__autopilot_show_tuned(struct tierce__autopilot *a, size_t at,
                                  const struct tierce__group *group)
{
    enum tierce__autopilot_mode mode = tierce__autopilot_mode(a, group);
    struct tierce__tuner_group *tuned = &a->tuned[at];
    int32_t policies[TIERCE__POLICY_NAMES_MAX];
    int count = tierce__policies_of(group->autopilot_policies, policies);
    *tuned = (struct tierce__tuner_group){
        .name = group->name,
        .number = group->number,
        .is_busy = tierce__pilot_has_open(a->pilot, group->number),
        .now = {group->reclaim_policy, tierce__group_ttl_us(group) / SECOND_US},
        .ttl_min_s = group->ttl_min_s,
        .ttl_max_s = group->ttl_max_s};
    TIERCE_ASSERT(count <= TIERCE__TUNER_POLICIES_MAX);
    for (int i = 0; i < count; i++)
        tuned->policies[tuned->policy_count++] = policies[i];
    bool has_choice = tuned->policy_count > 0 || (group->ttl_min_s > 0 && group->ttl_max_s > 0);
    bool takes_part = has_choice && !has_families(a, group);
    tuned->advises = takes_part && mode >= TIERCE__AUTOPILOT_ADVISE;
    tuned->acts = takes_part && mode == TIERCE__AUTOPILOT_ACT;
    tierce__ghosts_keep_log(a->opts.ghost, group->name, tuned->advises);
}

static uint64_t cpu_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Whether the process has worked long enough since the last trial that another one is a small part
 * of its work. */
static bool may_spend(const struct tierce__autopilot *a)
{
    double worked = (double)(cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - a->process_ns);
    return !a->opts.has_thread || (double)a->trial_ns <= SHARE_MAX * worked;
}

static int try_all(void *arg, const struct tierce__tuner_group *group,
                   const struct tierce__tuner_setting *settings, size_t count, double seconds,
                   struct tierce__trial *out)
{
    struct tierce__autopilot *a = arg;
    struct tierce__trial_setting tried[TIERCE__TRIAL_SETTINGS_MAX];
    struct tierce__ghost_log *log;
    if (!may_spend(a))
        return -EAGAIN;
    uint64_t began_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < count; i++)
        tried[i] = (struct tierce__trial_setting){tierce__victims_policy(settings[i].policy),
                                                  settings[i].ttl_s * SECOND_US};
    int64_t now_us = tierce__ghosts_now_us(a->opts.ghost);
    int rc = tierce__ghosts_copy_log(a->opts.ghost, group->name, &log);
    if (rc < 0)
        return rc;
    rc = tierce__trial_run(out,
                           &(struct tierce__trial_opts){
                               .size = sizeof(struct tierce__trial_opts),
                               .log = log,
                               .bytes = tierce__gain_bytes(a->groups[group - a->tuned], a->catalog),
                               .from_us = seconds > 0 ? now_us - (int64_t)(seconds * 1e6) : 0,
                               .settings = tried,
                               .count = count});
    tierce__ghost_log_destroy(log);
    a->trial_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - began_ns;
    a->process_ns = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    return rc;
}

static bool recent(void *arg, const struct tierce__tuner_group *group, uint32_t epochs,
                   struct tierce__ghost_shape *out)
{
    const struct tierce__autopilot *a = arg;
    return tierce__ghosts_group_recent(a->opts.ghost, group->name, epochs, out);
}

int tierce__autopilot_open_tuner(struct tierce__autopilot *a)
{
    return tierce__tuner_create(
        &a->tuner, &(struct tierce__tuner_opts){.size = sizeof(struct tierce__tuner_opts),
                                                .settle_us = (int64_t)a->opts.settle_ms * 1000,
                                                .epoch_us = tierce__ghosts_epoch_us(a->opts.ghost),
                                                .try_all = try_all,
                                                .recent = recent,
                                                .arg = a});
}

/* ---- carrying out ---------------------------------------------------------------------------- */

static void tell(const struct tierce__group_step *step, const char *group)
{
    tierce__log(TIERCE_LOG_INFO, "manager.autopilot",
                "step=%lld state=\"%s\" group=\"%s\" policy_from=%s policy_to=%s "
                "ttl_seconds_from=%lld ttl_seconds_to=%lld expected_tokens_per_second=%.1f "
                "measured_tokens_per_second=%.1f",
                (long long)step->id, tierce__step_state_name(step->state), group,
                tierce__reclaim_policy_name(step->policy_from),
                tierce__reclaim_policy_name(step->policy_to), (long long)step->ttl_from_s,
                (long long)step->ttl_to_s, step->expected, step->measured);
}

/* Logs a step, and sets the group's policy and time to live (NULL: both stay). */
static int write_step(struct tierce__autopilot *a, const struct tierce__group *group,
                      const struct tierce__group_step *step,
                      const struct tierce__tuner_setting *setting)
{
    char why[256] = "";
    struct tierce__group_tuning tuning = {.group = group->name,
                                          .version = group->version,
                                          .policy = setting != NULL ? setting->policy : 0,
                                          .ttl_s = setting != NULL ? setting->ttl_s : 0,
                                          .step = step};
    int rc = tierce__registry_tune(a->opts.registry, &tuning, why);
    if (rc == 0)
        tell(step, group->name);
    else
        tierce__autopilot_fail(a, step, rc, why);
    return rc;
}

/* 0 is KVCM's "unspecified". */
static int32_t policy_of(struct tierce__tuner_setting setting)
{
    return setting.policy != 0 ? setting.policy : TIERCE__RECLAIM_LRU;
}

static int make_step(struct tierce__autopilot *a, int64_t now_us,
                     const struct tierce__tuner_decision *decision)
{
    static char none[] = "";
    const struct tierce__group *group = tierce__autopilot_group(a, decision->number);
    bool is_made = decision->verdict == TIERCE__TUNER_STEP;
    struct tierce__group_step step = {.id = a->last_id + 1,
                                      .at_us = now_us,
                                      .changed_us = now_us,
                                      .state = is_made ? TIERCE__STEP_OPEN : TIERCE__STEP_ADVISED,
                                      .from = none,
                                      .expected = decision->expected,
                                      .to_version = group->version,
                                      .policy_from = policy_of(decision->from),
                                      .policy_to = policy_of(decision->to),
                                      .ttl_from_s = decision->from.ttl_s,
                                      .ttl_to_s = decision->to.ttl_s};
    if (!is_made && tierce__autopilot_is_said(a, group, &step))
        return 0;
    int rc = write_step(a, group, &step, is_made ? &decision->to : NULL);
    if (rc == 0) {
        a->last_id = step.id;
        a->tuned_id = is_made ? step.id : a->tuned_id;
        tierce__autopilot_count(is_made ? &a->steps : &a->advised);
    }
    return rc;
}

/* As end_step of autopilot.c. */
static int end_step(struct tierce__autopilot *a, int64_t now_us,
                    const struct tierce__tuner_decision *decision)
{
    const struct tierce__group *group = tierce__autopilot_group(a, decision->number);
    const struct tierce__group_step *open = tierce__autopilot_step(group, a->tuned_id);
    bool is_undone = decision->verdict == TIERCE__TUNER_UNDO;
    if (open == NULL) {
        a->tuned_id = 0;
        return 0;
    }
    struct tierce__group_step step = *open;
    step.changed_us = now_us;
    step.state = is_undone                                 ? TIERCE__STEP_UNDONE
                 : decision->verdict == TIERCE__TUNER_KEEP ? TIERCE__STEP_KEPT
                                                           : TIERCE__STEP_NOT_JUDGED;
    step.measured = decision->measured;
    struct tierce__tuner_setting before = {policy_of(decision->from), decision->from.ttl_s};
    int rc = write_step(a, group, &step, is_undone ? &before : NULL);
    if (rc == 0) {
        a->tuned_id = 0;
        tierce__autopilot_count_end(a, step.state);
    }
    return rc;
}

bool tierce__autopilot_tune(struct tierce__autopilot *a, int64_t now_us)
{
    struct tierce__tuner_decision decision;
    tierce__tuner_look(a->tuner, now_us, a->tuned, a->count, &decision);
    bool is_step =
        decision.verdict == TIERCE__TUNER_STEP || decision.verdict == TIERCE__TUNER_ADVISE;
    bool is_done =
        decision.verdict != TIERCE__TUNER_NOTHING &&
        (is_step ? make_step(a, now_us, &decision) : end_step(a, now_us, &decision)) == 0;
    tierce__tuner_done(a->tuner, now_us, &decision, is_done);
    return is_done && decision.verdict != TIERCE__TUNER_ADVISE;
}
