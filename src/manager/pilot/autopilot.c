/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/autopilot_private.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "manager/locate/locator_private.h"
#include "manager/pilot/gain.h"
#include "manager/registry/registry.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { LOOKS = 20, LOOK_MS_MAX = 10000, ADVICE_SETTLES = 6 };

/* ---- names ----------------------------------------------------------------------------------- */

const char *tierce__autopilot_mode_name(enum tierce__autopilot_mode mode)
{
    static const char *const names[] = {"off", "advise", "act"};
    TIERCE_ASSERT((size_t)mode < sizeof(names) / sizeof(names[0]));
    return names[mode];
}

const char *tierce__step_state_name(int32_t state)
{
    static const char *const names[] = {"?",          "open",    "kept",      "undone",
                                        "not judged", "advised", "not undone"};
    bool is_known = state > 0 && (size_t)state < sizeof(names) / sizeof(names[0]);
    return names[is_known ? state : 0];
}

enum tierce__autopilot_mode tierce__autopilot_mode(const struct tierce__autopilot *autopilot,
                                                   const struct tierce__group *group)
{
    for (int mode = TIERCE__AUTOPILOT_OFF; mode <= TIERCE__AUTOPILOT_ACT; mode++) {
        if (strcmp(group->autopilot, tierce__autopilot_mode_name(mode)) == 0)
            return (enum tierce__autopilot_mode)mode;
    }
    return autopilot->opts.mode;
}

/* ---- what the pilot sees --------------------------------------------------------------------- */

const struct tierce__group *tierce__autopilot_group(const struct tierce__autopilot *a,
                                                    uint32_t number)
{
    for (size_t i = 0; i < a->count; i++) {
        if (a->views[i].number == number)
            return a->groups[i];
    }
    return NULL;
}

/* The bytes that the group may hold with other quotas. */
static double held_of(void *arg, const struct tierce__pilot_group *view,
                      const double quota[TIERCE__PILOT_QUOTAS])
{
    struct tierce__autopilot *a = arg;
    struct tierce__type_quota types[TIERCE__PILOT_QUOTAS];
    struct tierce__group group = *a->groups[view - a->views];
    group.capacity_bytes = (int64_t)quota[0];
    group.type_quotas = types;
    group.type_quota_count = 0;
    for (size_t i = 1; i < TIERCE__PILOT_QUOTAS; i++) {
        if (quota[i] > 0)
            types[group.type_quota_count++] = (struct tierce__type_quota){
                .type = tierce__storage_quota_kind(i - 1), .capacity_bytes = (int64_t)quota[i]};
    }
    return tierce__gain_bytes(&group, a->catalog);
}

static enum tierce__storage_type type_of(uint32_t quota)
{
    return quota == 0 ? TIERCE__STORAGE_NONE : tierce__storage_quota_kind(quota - 1);
}

static bool share(void *arg, const struct tierce__pilot_group *one,
                  const struct tierce__pilot_group *other, uint32_t quota)
{
    const struct tierce__autopilot *a = arg;
    return tierce__catalog_share_storage(a->catalog, a->groups[one - a->views],
                                         a->groups[other - a->views], type_of(quota));
}

static void show_quotas(struct tierce__pilot_group *view, const struct tierce__group *group)
{
    view->quota[0] = (double)group->capacity_bytes;
    view->least[0] = (double)group->min_bytes;
    view->most[0] = (double)group->max_bytes;
    for (size_t i = 1; i < TIERCE__PILOT_QUOTAS; i++) {
        enum tierce__storage_type kind = tierce__storage_quota_kind(i - 1);
        const struct tierce__type_quota *quota =
            kind != TIERCE__STORAGE_NONE ? tierce__group_type_quota(group, kind) : NULL;
        if (quota == NULL)
            continue;
        view->quota[i] = (double)quota->capacity_bytes;
        view->least[i] = (double)quota->min_bytes;
        view->most[i] = (double)quota->max_bytes;
    }
}

static void show_group(struct tierce__autopilot *a, size_t at, const struct tierce__group *group)
{
    struct tierce__ghost_shape *shapes = a->shapes + 2 * at;
    struct tierce__usage usage;
    enum tierce__autopilot_mode mode = tierce__autopilot_mode(a, group);
    bool is_known = tierce__ghosts_group(a->opts.ghost, group->name, &shapes[0]) &&
                    tierce__ghosts_group_recent(a->opts.ghost, group->name,
                                                tierce__pilot_epochs(a->pilot), &shapes[1]);
    tierce__locator_group_usage(a->opts.locator, group->name, &usage);
    a->groups[at] = group;
    a->views[at] = (struct tierce__pilot_group){
        .name = group->name,
        .number = group->number,
        /* While a group's policy is in a step, its quota stays. */
        .advises =
            mode >= TIERCE__AUTOPILOT_ADVISE && tierce__tuner_open(a->tuner) != group->number,
        .acts = mode == TIERCE__AUTOPILOT_ACT,
        .used = (double)(usage.serving_bytes + usage.writing_bytes),
        .window = is_known ? &shapes[0] : NULL,
        .recent = is_known ? &shapes[1] : NULL,
    };
    show_quotas(&a->views[at], group);
}

/* Groups that take no part are not shown. */
static void show_groups(struct tierce__autopilot *a)
{
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(a->catalog, &count);
    a->count = 0;
    for (size_t i = 0; i < count && a->count < TIERCE__PILOT_GROUPS_MAX; i++) {
        if (tierce__autopilot_mode(a, &groups[i]) == TIERCE__AUTOPILOT_OFF)
            continue;
        show_group(a, a->count, &groups[i]);
        tierce__autopilot_show_tuned(a, a->count, &groups[i]);
        a->count++;
    }
}

/* ---- carrying out ---------------------------------------------------------------------------- */

static void tell(const struct tierce__group_step *step, const char *to)
{
    tierce__log(TIERCE_LOG_INFO, "manager.autopilot",
                "step=%lld state=\"%s\" from=\"%s\" to=\"%s\" bytes=%lld "
                "expected_tokens_per_second=%.1f measured_tokens_per_second=%.1f",
                (long long)step->id, tierce__step_state_name(step->state), step->from, to,
                (long long)step->bytes, step->expected, step->measured);
}

void tierce__autopilot_fail(struct tierce__autopilot *a, const struct tierce__group_step *step,
                            int rc, const char *why)
{
    tierce__autopilot_count(&a->failed);
    tierce__log(TIERCE_LOG_WARN, "manager.autopilot_failed",
                "step=%lld state=\"%s\" error=\"%s\" consequence=\"nothing is changed\"",
                (long long)step->id, tierce__step_state_name(step->state),
                why[0] != '\0' ? why : tierce_strerror(rc));
}

/* Writes a step, and moves `bytes`. */
static int write_step(struct tierce__autopilot *a, const struct tierce__group *to,
                      const struct tierce__group_step *step, int64_t bytes)
{
    char why[256] = "";
    const struct tierce__group *from = tierce__catalog_group(a->catalog, step->from);
    struct tierce__quota_shift shift = {.from = step->from,
                                        .to = to->name,
                                        .from_version = from != NULL ? from->version : 0,
                                        .to_version = to->version,
                                        .type = (enum tierce__storage_type)step->quota,
                                        .bytes = bytes,
                                        .step = step};
    int rc = tierce__registry_shift(a->opts.registry, &shift, why);
    if (rc == 0) {
        tell(step, to->name);
        return 0;
    }
    tierce__autopilot_fail(a, step, rc, why);
    return rc;
}

static struct tierce__group_step new_step(const struct tierce__autopilot *a, int64_t now_us,
                                          const struct tierce__pilot_decision *decision,
                                          enum tierce__step_state state)
{
    const struct tierce__group *from = tierce__autopilot_group(a, decision->from),
                               *to = tierce__autopilot_group(a, decision->to);
    return (struct tierce__group_step){.id = a->last_id + 1,
                                       .at_us = now_us,
                                       .changed_us = now_us,
                                       .state = state,
                                       .from = from->name,
                                       .quota = (int32_t)type_of(decision->quota),
                                       .bytes = (int64_t)decision->bytes,
                                       .expected = decision->expected,
                                       .from_version = from->version,
                                       .to_version = to->version};
}

static int make_step(struct tierce__autopilot *a, int64_t now_us,
                     const struct tierce__pilot_decision *decision)
{
    struct tierce__group_step step = new_step(a, now_us, decision, TIERCE__STEP_OPEN);
    int rc = write_step(a, tierce__autopilot_group(a, decision->to), &step, step.bytes);
    if (rc == 0) {
        a->open_id = step.id;
        tierce__autopilot_count(&a->steps);
    }
    return rc;
}

static bool is_similar(double a, double b)
{
    return fmax(a, b) <= 2 * fmin(a, b);
}

/* Whether the receiver's log has this advice: for the same settings of both groups, with a similar
 * gain. A gain that goes up and down is logged at most once in a while. */
bool tierce__autopilot_is_said(const struct tierce__autopilot *a, const struct tierce__group *to,
                               const struct tierce__group_step *step)
{
    int64_t wait_us = ADVICE_SETTLES * (int64_t)a->opts.settle_ms * 1000;
    for (size_t i = to->step_count; i-- > 0;) {
        const struct tierce__group_step *old = &to->steps[i];
        if (old->state != TIERCE__STEP_ADVISED || old->quota != step->quota ||
            old->policy_to != step->policy_to || old->ttl_to_s != step->ttl_to_s ||
            strcmp(old->from, step->from) != 0)
            continue;
        int64_t passed_us = step->at_us - old->at_us;
        bool is_same = old->from_version == step->from_version &&
                       old->to_version == step->to_version &&
                       is_similar((double)old->bytes, (double)step->bytes) &&
                       is_similar(old->expected, step->expected);
        return is_same || (passed_us >= 0 && passed_us < wait_us);
    }
    return false;
}

static void advise(struct tierce__autopilot *a, int64_t now_us,
                   const struct tierce__pilot_decision *decision)
{
    const struct tierce__group *to = tierce__autopilot_group(a, decision->to);
    struct tierce__group_step step = new_step(a, now_us, decision, TIERCE__STEP_ADVISED);
    if (!tierce__autopilot_is_said(a, to, &step) && write_step(a, to, &step, 0) == 0)
        tierce__autopilot_count(&a->advised);
}

static enum tierce__step_state state_of(enum tierce__pilot_verdict verdict)
{
    return verdict == TIERCE__PILOT_KEEP   ? TIERCE__STEP_KEPT
           : verdict == TIERCE__PILOT_UNDO ? TIERCE__STEP_UNDONE
           : verdict == TIERCE__PILOT_STAY ? TIERCE__STEP_STAYS
                                           : TIERCE__STEP_NOT_JUDGED;
}

void tierce__autopilot_count_end(struct tierce__autopilot *a, int32_t state)
{
    tierce__autopilot_count(state == TIERCE__STEP_KEPT     ? &a->kept
                            : state == TIERCE__STEP_UNDONE ? &a->undone
                            : state == TIERCE__STEP_STAYS  ? &a->stays
                                                           : &a->not_judged);
}

const struct tierce__group_step *tierce__autopilot_step(const struct tierce__group *to, int64_t id)
{
    for (size_t i = 0; to != NULL && i < to->step_count; i++) {
        if (to->steps[i].id == id)
            return &to->steps[i];
    }
    return NULL;
}

/* Writes the end of the open step. If its group takes no part any more, the next look ends it; if
 * it is gone, the log is gone too. */
static int end_step(struct tierce__autopilot *a, int64_t now_us,
                    const struct tierce__pilot_decision *decision)
{
    const struct tierce__group *to = tierce__autopilot_group(a, decision->to);
    const struct tierce__group_step *open = tierce__autopilot_step(to, a->open_id);
    if (open == NULL) {
        a->open_id = 0;
        return 0;
    }
    struct tierce__group_step step = *open;
    step.changed_us = now_us;
    step.state = state_of(decision->verdict);
    step.measured = decision->measured;
    int rc = write_step(a, to, &step, step.state == TIERCE__STEP_UNDONE ? -step.bytes : 0);
    if (rc == 0) {
        a->open_id = 0;
        tierce__autopilot_count_end(a, step.state);
    }
    return rc;
}

static bool carry_out(struct tierce__autopilot *a, int64_t now_us,
                      const struct tierce__pilot_decision *decision)
{
    switch (decision->verdict) {
    case TIERCE__PILOT_STEP:
        return make_step(a, now_us, decision) == 0;
    case TIERCE__PILOT_ADVISE:
        advise(a, now_us, decision);
        return true;
    case TIERCE__PILOT_KEEP:
    case TIERCE__PILOT_UNDO:
    case TIERCE__PILOT_STAY:
    case TIERCE__PILOT_DROP:
        return end_step(a, now_us, decision) == 0;
    case TIERCE__PILOT_NOTHING:
        break;
    }
    return true;
}

/* ---- leading --------------------------------------------------------------------------------- */

static bool was_wrong(const struct tierce__group_step *step)
{
    return step->state == TIERCE__STEP_UNDONE || step->state == TIERCE__STEP_STAYS;
}

/* Pairs whose step was wrong are left alone. The clock of the leader that wrote the log may have
 * been ahead. */
static void recall_steps(struct tierce__autopilot *a, int64_t now_us,
                         const struct tierce__group *to)
{
    for (size_t i = 0; i < to->step_count; i++) {
        const struct tierce__group_step *step = &to->steps[i];
        const struct tierce__group *from = tierce__catalog_group(a->catalog, step->from);
        int64_t wrong_us = step->changed_us < now_us ? step->changed_us : now_us;
        if (was_wrong(step) && step->policy_to != 0)
            tierce__tuner_recall(a->tuner, to->number, wrong_us);
        else if (was_wrong(step) && from != NULL && from != to)
            tierce__pilot_recall(a->pilot, from->number, to->number, wrong_us);
    }
}

static void begin_leading(struct tierce__autopilot *a, int64_t now_us)
{
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(a->catalog, &count);
    tierce__pilot_forget(a->pilot);
    tierce__tuner_forget(a->tuner);
    a->open_id = a->tuned_id = 0;
    for (size_t i = 0; i < count; i++)
        recall_steps(a, now_us, &groups[i]);
    a->was_leading = true;
}

/* Reads the log: ends the steps that nobody judges. Those that cannot be written are tried again by
 * the next look. */
static void read_log(struct tierce__autopilot *a, int64_t now_us)
{
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(a->catalog, &count);
    a->last_id = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t n = 0; n < groups[i].step_count; n++) {
            struct tierce__group_step step = groups[i].steps[n];
            a->last_id = step.id > a->last_id ? step.id : a->last_id;
            if (step.state != TIERCE__STEP_OPEN || step.id == a->open_id || step.id == a->tuned_id)
                continue;
            step.state = TIERCE__STEP_NOT_JUDGED;
            step.changed_us = now_us;
            if (write_step(a, &groups[i], &step, 0) == 0)
                tierce__autopilot_count_end(a, step.state);
        }
    }
}

/* Asks the pilot, and carries out its decision. Returns whether something was changed. */
static bool move(struct tierce__autopilot *a, int64_t now_us)
{
    struct tierce__pilot_decision decision;
    tierce__pilot_look(a->pilot, now_us, a->views, a->count, &decision);
    bool is_done = carry_out(a, now_us, &decision);
    tierce__pilot_done(a->pilot, now_us, &decision, is_done);
    return is_done && decision.verdict != TIERCE__PILOT_NOTHING &&
           decision.verdict != TIERCE__PILOT_ADVISE;
}

/* One look: what it changes is seen by the next one. Returns whether something was changed. */
static bool look(struct tierce__autopilot *a, int64_t now_us)
{
    a->catalog = tierce__registry_acquire(a->opts.registry);
    if (!a->was_leading)
        begin_leading(a, now_us);
    read_log(a, now_us);
    show_groups(a);
    /* Policies are tried once an hour: quotas, which may move all the time, would not let them. */
    bool has_changed = tierce__autopilot_tune(a, now_us) || move(a, now_us);
    tierce__registry_release(a->opts.registry, a->catalog);
    a->catalog = NULL;
    return has_changed;
}

void tierce__autopilot_look(struct tierce__autopilot *autopilot)
{
    TIERCE_CHECK_MAGIC(autopilot, TIERCE__AUTOPILOT_MAGIC);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    enum { CHANGES_MAX = 4 }; /* the end of a step, and the next one */
    bool has_changed = true;
    for (int i = 0; i < CHANGES_MAX && has_changed; i++) {
        if (!autopilot->opts.leads(autopilot->opts.arg)) {
            autopilot->was_leading = false;
            return;
        }
        has_changed = look(autopilot, tierce__locator_now_us(autopilot->opts.locator));
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void *run(void *arg)
{
    struct tierce__autopilot *a = arg;
    uint32_t interval_ms = a->opts.settle_ms / LOOKS;
    interval_ms = interval_ms < LOOK_MS_MAX ? interval_ms + 1 : LOOK_MS_MAX;
    tierce__lock_take(&a->lock);
    while (!a->is_ending) {
        (void)tierce__cond_wait(&a->wake, &a->lock, tierce__deadline_in_ms(interval_ms));
        bool is_ending = a->is_ending;
        tierce__lock_drop(&a->lock);
        if (!is_ending)
            tierce__autopilot_look(a);
        tierce__lock_take(&a->lock);
    }
    tierce__lock_drop(&a->lock);
    return NULL;
}

void tierce__autopilot_stats(const struct tierce__autopilot *autopilot,
                             struct tierce__autopilot_stats *out)
{
    const struct tierce__autopilot *a = autopilot;
    *out = (struct tierce__autopilot_stats){
        .steps = atomic_load_explicit(&a->steps, memory_order_relaxed),
        .kept = atomic_load_explicit(&a->kept, memory_order_relaxed),
        .undone = atomic_load_explicit(&a->undone, memory_order_relaxed),
        .stays = atomic_load_explicit(&a->stays, memory_order_relaxed),
        .not_judged = atomic_load_explicit(&a->not_judged, memory_order_relaxed),
        .advised = atomic_load_explicit(&a->advised, memory_order_relaxed),
        .failed = atomic_load_explicit(&a->failed, memory_order_relaxed),
    };
}

/* ---- start, stop ----------------------------------------------------------------------------- */

static int open_parts(struct tierce__autopilot *a)
{
    a->views = tierce__calloc(TIERCE__PILOT_GROUPS_MAX, sizeof(*a->views));
    a->groups = tierce__calloc(TIERCE__PILOT_GROUPS_MAX, sizeof(struct tierce__group *));
    a->shapes = tierce__calloc((size_t)2 * TIERCE__PILOT_GROUPS_MAX, sizeof(*a->shapes));
    a->tuned = tierce__calloc(TIERCE__PILOT_GROUPS_MAX, sizeof(*a->tuned));
    if (a->views == NULL || a->groups == NULL || a->shapes == NULL || a->tuned == NULL)
        return -ENOMEM;
    int rc = tierce__pilot_create(
        &a->pilot, &(struct tierce__pilot_opts){.size = sizeof(struct tierce__pilot_opts),
                                                .settle_us = (int64_t)a->opts.settle_ms * 1000,
                                                .epoch_us = tierce__ghosts_epoch_us(a->opts.ghost),
                                                .held = held_of,
                                                .share = share,
                                                .arg = a});
    if (rc == 0)
        rc = tierce__autopilot_open_tuner(a);
    if (rc == 0 && a->opts.has_thread)
        rc = tierce__thread_start(&a->thread, run, a);
    a->has_thread = rc == 0 && a->opts.has_thread;
    return rc;
}

int tierce__autopilot_start(struct tierce__autopilot **out,
                            const struct tierce__autopilot_opts *opts)
{
    enum { SETTLE_MS = 10 * 60 * 1000 };
    TIERCE_ASSERT(opts->size == sizeof(*opts) && opts->leads != NULL);
    struct tierce__autopilot *a = tierce__calloc(1, sizeof(*a));
    if (a == NULL)
        return -ENOMEM;
    a->magic = TIERCE__AUTOPILOT_MAGIC;
    a->opts = *opts;
    a->opts.settle_ms = opts->settle_ms > 0 ? opts->settle_ms : SETTLE_MS;
    tierce__lock_init(&a->lock, TIERCE__LOCK_AUTOPILOT);
    tierce__cond_init(&a->wake);
    int rc = open_parts(a);
    if (rc < 0)
        tierce__autopilot_stop(a);
    else
        *out = a;
    return rc;
}

void tierce__autopilot_stop(struct tierce__autopilot *autopilot)
{
    if (autopilot == NULL)
        return;
    TIERCE_CHECK_MAGIC(autopilot, TIERCE__AUTOPILOT_MAGIC);
    tierce__lock_take(&autopilot->lock);
    autopilot->is_ending = true;
    tierce__cond_broadcast(&autopilot->wake);
    tierce__lock_drop(&autopilot->lock);
    if (autopilot->has_thread)
        pthread_join(autopilot->thread, NULL);
    tierce__pilot_destroy(autopilot->pilot);
    tierce__tuner_destroy(autopilot->tuner);
    tierce__free(autopilot->tuned);
    tierce__free(autopilot->views);
    tierce__free(autopilot->groups);
    tierce__free(autopilot->shapes);
    tierce__cond_fini(&autopilot->wake);
    tierce__lock_fini(&autopilot->lock);
    autopilot->magic = 0;
    tierce__free(autopilot);
}
