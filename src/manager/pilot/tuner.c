/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/tuner.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "manager/pilot/back_off.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
    TUNER_MAGIC = 0x656e7574,
    TRY_SETTLES = 6,   /* between two trials of a group */
    FIRST_SETTLES = 4, /* before the first one */
    JUDGE_SETTLES = 3,
    DROP_SETTLES = 12, /* without a trial the step is not judged */
    /* With fewer blocks, trials of LFU were wrong by up to 0.2 (tests/unit/manager/test_trial.c).
     */
    TRIAL_BLOCKS = 512,
    TRIAL_KEYS = 1024,
    TRIAL_SETTLES = 1,
    EPOCHS_MAX = 8,
};

#define SETTLE_US (10ll * 60 * 1000000)
#define EPOCH_US  (5ll * 60 * 1000000)
#define RATE_MIN  0.01

struct tuner_memory {
    uint32_t number;              /* 0: free */
    struct tierce__back_off next; /* when it is tried again */
    int64_t seen_us;
};

struct tuner_open {
    uint32_t number; /* 0: none */
    int64_t at_us;
    struct tierce__tuner_decision step;
    struct tierce__tuner_group group; /* its bounds then */
    double above;                     /* measured rate less the trial's, before the step */
};

struct tierce__tuner {
    uint32_t magic;
    struct tierce__tuner_opts opts;
    struct tuner_memory memories[TIERCE__TUNER_GROUPS_MAX];
    struct tuner_open open;
};

/* ---- groups ---------------------------------------------------------------------------------- */

/* A new group takes the place of the one that was not seen for the longest time. */
static struct tuner_memory *find_memory(struct tierce__tuner *t, uint32_t number, int64_t now_us)
{
    struct tuner_memory *oldest = &t->memories[0];
    for (size_t i = 0; i < TIERCE__TUNER_GROUPS_MAX; i++) {
        struct tuner_memory *memory = &t->memories[i];
        if (memory->number == number) {
            memory->seen_us = now_us;
            return memory;
        }
        if (memory->number == 0 || (oldest->number != 0 && memory->seen_us < oldest->seen_us))
            oldest = memory;
    }
    *oldest = (struct tuner_memory){.number = number,
                                    .seen_us = now_us,
                                    .next.until_us = now_us + FIRST_SETTLES * t->opts.settle_us};
    return oldest;
}

void tierce__tuner_recall(struct tierce__tuner *tuner, uint32_t number, int64_t undone_us)
{
    TIERCE_CHECK_MAGIC(tuner, TUNER_MAGIC);
    tierce__back_off_more(&find_memory(tuner, number, undone_us)->next, undone_us,
                          tuner->opts.settle_us);
}

static bool is_equal(struct tierce__tuner_setting a, struct tierce__tuner_setting b)
{
    return a.policy == b.policy && a.ttl_s == b.ttl_s;
}

static bool may_tune_ttl(const struct tierce__tuner_group *group)
{
    return group->ttl_min_s > 0 && group->ttl_max_s >= group->ttl_min_s;
}

/* ---- a trial --------------------------------------------------------------------------------- */

struct tuner_choices {
    struct tierce__tuner_setting settings[TIERCE__TRIAL_SETTINGS_MAX];
    size_t count;
};

static void add_choice(struct tuner_choices *choices, int32_t policy, int64_t ttl_s)
{
    struct tierce__tuner_setting setting = {policy, ttl_s};
    for (size_t i = 0; i < choices->count; i++) {
        if (is_equal(choices->settings[i], setting))
            return;
    }
    if (choices->count < TIERCE__TRIAL_SETTINGS_MAX)
        choices->settings[choices->count++] = setting;
}

static int64_t clip(const struct tierce__tuner_group *group, double ttl_s)
{
    return (int64_t)fmin(fmax(ttl_s, (double)group->ttl_min_s), (double)group->ttl_max_s);
}

/* The first is the present one. */
static void list_choices(const struct tierce__tuner_group *group, struct tuner_choices *out)
{
    const struct tierce__tuner_setting *now = &group->now;
    add_choice(out, now->policy, now->ttl_s);
    for (size_t i = 0; i < group->policy_count; i++)
        add_choice(out, group->policies[i], now->ttl_s);
    if (!may_tune_ttl(group))
        return;
    double least = (double)group->ttl_min_s, most = (double)group->ttl_max_s;
    double ttl_s = (double)now->ttl_s, middle = sqrt(least * most);
    add_choice(out, now->policy, clip(group, ttl_s > 0 ? ttl_s / 2 : most));
    add_choice(out, now->policy, clip(group, ttl_s > 0 ? ttl_s * 2 : middle));
}

static size_t find_best(const struct tierce__trial *trial, size_t count)
{
    size_t best = 0;
    double most = 0;
    for (size_t i = 1; i < count; i++) {
        const struct tierce__trial_hits *hits = &trial->hits[i];
        double sure = hits->more - 2 * hits->error;
        if (hits->more < RATE_MIN * trial->asked || sure <= most)
            continue;
        most = sure;
        best = i;
    }
    return best;
}

static bool is_enough(const struct tierce__tuner *t, const struct tierce__trial *trial)
{
    return trial->capacity >= TRIAL_BLOCKS && trial->sampled >= TRIAL_KEYS &&
           trial->seconds * 1e6 >= (double)(TRIAL_SETTLES * t->opts.settle_us);
}

/* The measured rate over some time up to now, less that of a trial. False: one is not known. */
static bool measure_above(const struct tierce__tuner *t, const struct tierce__tuner_group *group,
                          double *above)
{
    const struct tierce__tuner_opts *o = &t->opts;
    struct tierce__ghost_shape shape;
    struct tierce__trial trial;
    if (!o->recent(o->arg, group, EPOCHS_MAX, &shape) || !(shape.asked > 0) ||
        !(shape.seconds > 0) ||
        o->try_all(o->arg, group, &group->now, 1, shape.seconds, &trial) < 0 || !(trial.asked > 0))
        return false;
    *above = shape.found / shape.asked - trial.hits[0].tokens / trial.asked;
    return true;
}

static void try_group(struct tierce__tuner *t, int64_t now_us,
                      const struct tierce__tuner_group *group, struct tierce__tuner_decision *out)
{
    const struct tierce__tuner_opts *o = &t->opts;
    struct tuner_memory *memory = find_memory(t, group->number, now_us);
    struct tuner_choices choices = {0};
    struct tierce__trial trial;
    double above = 0;
    list_choices(group, &choices);
    int rc = choices.count > 1
                 ? o->try_all(o->arg, group, choices.settings, choices.count, 0, &trial)
                 : -ENOENT;
    if (rc == -EAGAIN)
        return;
    memory->next.until_us = now_us + TRY_SETTLES * o->settle_us;
    size_t best = rc == 0 && is_enough(t, &trial) ? find_best(&trial, choices.count) : 0;
    if (best == 0 || (group->acts && !measure_above(t, group, &above)))
        return;
    *out = (struct tierce__tuner_decision){
        .verdict = group->acts ? TIERCE__TUNER_STEP : TIERCE__TUNER_ADVISE,
        .number = group->number,
        .from = group->now,
        .to = choices.settings[best],
        .expected = trial.hits[best].more / trial.seconds,
    };
    t->open.step = *out;
    t->open.group = *group;
    t->open.above = above;
}

/* ---- the open step --------------------------------------------------------------------------- */

static const struct tierce__tuner_group *find_group(const struct tierce__tuner_group *groups,
                                                    size_t count, uint32_t number)
{
    for (size_t i = 0; i < count; i++) {
        if (groups[i].number == number)
            return &groups[i];
    }
    return NULL;
}

static bool is_as_left(const struct tierce__tuner_group *group, const struct tuner_open *open)
{
    return group != NULL && group->acts && is_equal(group->now, open->step.to) &&
           group->ttl_min_s == open->group.ttl_min_s && group->ttl_max_s == open->group.ttl_max_s &&
           group->policy_count == open->group.policy_count &&
           memcmp(group->policies, open->group.policies,
                  group->policy_count * sizeof(group->policies[0])) == 0;
}

/* Returns 0, -EAGAIN (later), or another error: it cannot be judged. */
static int judge(const struct tierce__tuner *t, int64_t passed_us,
                 const struct tierce__tuner_group *group, struct tierce__tuner_decision *out)
{
    const struct tierce__tuner_opts *o = &t->opts;
    const struct tierce__tuner_setting both[] = {out->from, out->to};
    struct tierce__ghost_shape shape;
    struct tierce__trial trial;
    int64_t epochs = passed_us / o->epoch_us - 1;
    epochs = epochs < 0 ? 0 : epochs < EPOCHS_MAX ? epochs : EPOCHS_MAX;
    if (!o->recent(o->arg, group, (uint32_t)epochs, &shape) || !(shape.asked > 0) ||
        !(shape.seconds > 0))
        return -EAGAIN; /* nobody asked */
    int rc = o->try_all(o->arg, group, both, 2, shape.seconds, &trial);
    if (rc < 0 || !(trial.asked > 0))
        return rc < 0 ? rc : -EAGAIN;
    double asked = shape.asked / shape.seconds, found = shape.found / shape.seconds;
    double without = trial.hits[0].tokens / trial.asked, with = trial.hits[1].tokens / trial.asked;
    double expected = asked * (with - without);
    double noise = 2 * tierce__ghost_error(&shape) * fmin(asked, 2 * found) + 0.02 * found +
                   2 * asked * trial.hits[1].error / trial.asked;
    out->measured = found - asked * (without + t->open.above);
    out->verdict = out->measured < expected - noise ? TIERCE__TUNER_UNDO : TIERCE__TUNER_KEEP;
    return 0;
}

static void look_at_open(const struct tierce__tuner *t, int64_t now_us,
                         const struct tierce__tuner_group *groups, size_t count,
                         struct tierce__tuner_decision *out)
{
    const struct tuner_open *open = &t->open;
    const struct tierce__tuner_group *group = find_group(groups, count, open->number);
    struct tierce__tuner_decision end = open->step;
    int64_t passed_us = now_us - open->at_us;
    end.verdict = TIERCE__TUNER_DROP;
    if (is_as_left(group, open)) {
        int rc = passed_us >= JUDGE_SETTLES * t->opts.settle_us ? judge(t, passed_us, group, &end)
                                                                : -EAGAIN;
        if (rc == -EAGAIN && passed_us < DROP_SETTLES * t->opts.settle_us)
            return;
    }
    *out = end;
}

/* ---- entry functions ------------------------------------------------------------------------- */

void tierce__tuner_look(struct tierce__tuner *tuner, int64_t now_us,
                        const struct tierce__tuner_group *groups, size_t count,
                        struct tierce__tuner_decision *out)
{
    TIERCE_CHECK_MAGIC(tuner, TUNER_MAGIC);
    *out = (struct tierce__tuner_decision){.verdict = TIERCE__TUNER_NOTHING};
    if (tuner->open.number != 0) {
        look_at_open(tuner, now_us, groups, count, out);
        return;
    }
    for (size_t i = 0; i < count && out->verdict == TIERCE__TUNER_NOTHING; i++) {
        const struct tierce__tuner_group *group = &groups[i];
        if (group->advises && !group->is_busy &&
            find_memory(tuner, group->number, now_us)->next.until_us <= now_us)
            try_group(tuner, now_us, group, out);
    }
}

void tierce__tuner_done(struct tierce__tuner *tuner, int64_t now_us,
                        const struct tierce__tuner_decision *decision, bool carried_out)
{
    TIERCE_CHECK_MAGIC(tuner, TUNER_MAGIC);
    if (!carried_out)
        return;
    switch (decision->verdict) {
    case TIERCE__TUNER_STEP:
        TIERCE_ASSERT(tuner->open.number == 0);
        tuner->open.number = decision->number;
        tuner->open.at_us = now_us;
        return;
    case TIERCE__TUNER_KEEP:
        find_memory(tuner, decision->number, now_us)->next.times = 0;
        break;
    case TIERCE__TUNER_UNDO:
        tierce__tuner_recall(tuner, decision->number, now_us);
        break;
    case TIERCE__TUNER_DROP:
        break;
    case TIERCE__TUNER_NOTHING:
    case TIERCE__TUNER_ADVISE:
        return;
    }
    tuner->open = (struct tuner_open){0};
}

uint32_t tierce__tuner_open(const struct tierce__tuner *tuner)
{
    return tuner->open.number;
}

void tierce__tuner_forget(struct tierce__tuner *tuner)
{
    TIERCE_CHECK_MAGIC(tuner, TUNER_MAGIC);
    tuner->open = (struct tuner_open){0};
    memset(tuner->memories, 0, sizeof(tuner->memories));
}

int tierce__tuner_create(struct tierce__tuner **out, const struct tierce__tuner_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && opts->try_all != NULL && opts->recent != NULL);
    struct tierce__tuner *tuner = tierce__calloc(1, sizeof(*tuner));
    if (tuner == NULL)
        return -ENOMEM;
    tuner->magic = TUNER_MAGIC;
    tuner->opts = *opts;
    if (tuner->opts.settle_us == 0)
        tuner->opts.settle_us = SETTLE_US;
    if (tuner->opts.epoch_us == 0)
        tuner->opts.epoch_us = EPOCH_US;
    *out = tuner;
    return 0;
}

void tierce__tuner_destroy(struct tierce__tuner *tuner)
{
    if (tuner == NULL)
        return;
    TIERCE_CHECK_MAGIC(tuner, TUNER_MAGIC);
    tuner->magic = 0;
    tierce__free(tuner);
}
