/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/pilot.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "manager/pilot/back_off.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
    PILOT_MAGIC = 0x746c6970,
    AHEAD_STEPS = 20, /* all of a quota, at the default share */
    GIVE_PARTS = 2,   /* a step takes at most this part of the giver's quota */
    SAMPLE_LEAST = 256,
    FILL_SETTLES = 3,
    FADE_SETTLES = 24, /* a half-life of the long time */
    PAIRS_MAX = 256,
};

#define STEP_SHARE 0.05
#define SETTLE_US  (10ll * 60 * 1000000)
#define EPOCH_US   (5ll * 60 * 1000000)
#define EVER_SHARE 0.7 /* of the long time in what a move is worth */
#define FILLED     0.9 /* of the bytes that the receiver may hold */

/* Rates of a group before a step. */
struct pilot_before {
    uint32_t number;
    double quota[TIERCE__PILOT_QUOTAS]; /* after the step */
    double held, held_after;            /* bytes */
    double above;                       /* measured rate less the curve's */
};

struct pilot_open {
    bool is_open;
    int64_t at_us;
    struct tierce__pilot_decision step;
    struct pilot_before from, to;
};

/* Groups whose last step was undone. */
struct pilot_pair {
    uint32_t one, other; /* one < other; 0: free */
    struct tierce__back_off back_off;
};

/* The hits of a group over a long time: its window, averaged with weights that fade. */
struct pilot_memory {
    uint32_t number; /* 0: free */
    int64_t began_us, seen_us;
    struct tierce__ghost_shape shape; /* asked, found and hits for one second */
};

struct tierce__pilot {
    uint32_t magic;
    struct pilot_memory memories[TIERCE__PILOT_GROUPS_MAX];
    struct tierce__pilot_opts opts;
    struct pilot_open open;
    struct pilot_pair pairs[PAIRS_MAX];
};

/* ---- pairs that are left alone --------------------------------------------------------------- */

static struct pilot_pair *find_pair(struct tierce__pilot *pilot, uint32_t from, uint32_t to)
{
    uint32_t one = from < to ? from : to, other = from < to ? to : from;
    struct pilot_pair *free_one = NULL, *oldest = &pilot->pairs[0];
    for (size_t i = 0; i < PAIRS_MAX; i++) {
        struct pilot_pair *pair = &pilot->pairs[i];
        if (pair->one == one && pair->other == other)
            return pair;
        if (pair->one == 0 && free_one == NULL)
            free_one = pair;
        if (pair->back_off.until_us < oldest->back_off.until_us)
            oldest = pair;
    }
    struct pilot_pair *pair = free_one != NULL ? free_one : oldest;
    *pair = (struct pilot_pair){.one = one, .other = other};
    return pair;
}

static bool is_left_alone(const struct tierce__pilot *pilot, uint32_t from, uint32_t to,
                          int64_t now_us)
{
    uint32_t one = from < to ? from : to, other = from < to ? to : from;
    for (size_t i = 0; i < PAIRS_MAX; i++) {
        const struct pilot_pair *pair = &pilot->pairs[i];
        if (pair->one == one && pair->other == other)
            return now_us < pair->back_off.until_us;
    }
    return false;
}

void tierce__pilot_recall(struct tierce__pilot *pilot, uint32_t from, uint32_t to,
                          int64_t undone_us)
{
    TIERCE_CHECK_MAGIC(pilot, PILOT_MAGIC);
    TIERCE_ASSERT(from != to && from != 0 && to != 0);
    tierce__back_off_more(&find_pair(pilot, from, to)->back_off, undone_us, pilot->opts.settle_us);
}

static void trust_pair(struct tierce__pilot *pilot, uint32_t from, uint32_t to)
{
    *find_pair(pilot, from, to) = (struct pilot_pair){0};
}

/* ---- a long time ----------------------------------------------------------------------------- */

static const struct pilot_memory *memory_of(const struct tierce__pilot *pilot, uint32_t number)
{
    for (size_t i = 0; i < TIERCE__PILOT_GROUPS_MAX; i++) {
        if (pilot->memories[i].number == number)
            return &pilot->memories[i];
    }
    return NULL;
}

/* A group's memory; a new one takes the place of the one that was not seen for the longest time. */
static struct pilot_memory *find_memory(struct tierce__pilot *pilot, uint32_t number,
                                        int64_t now_us)
{
    struct pilot_memory *oldest = &pilot->memories[0];
    for (size_t i = 0; i < TIERCE__PILOT_GROUPS_MAX; i++) {
        struct pilot_memory *memory = &pilot->memories[i];
        if (memory->number == number)
            return memory;
        if (memory->number == 0 || (oldest->number != 0 && memory->seen_us < oldest->seen_us))
            oldest = memory;
    }
    *oldest = (struct pilot_memory){.number = number, .began_us = now_us, .seen_us = now_us};
    return oldest;
}

static void blend(double *value, double now, double part)
{
    *value += part * (now - *value);
}

static void remember(struct tierce__pilot *pilot, int64_t now_us,
                     const struct tierce__pilot_group *group)
{
    const struct tierce__ghost_shape *window = group->window;
    if (window == NULL || !(window->seconds > 0))
        return;
    struct pilot_memory *memory = find_memory(pilot, group->number, now_us);
    /* The clock of another time of leading may have been ahead. */
    double passed = fmax((double)(now_us - memory->seen_us), 0);
    double age = (double)(now_us - memory->began_us);
    double fade = (double)pilot->opts.settle_us * FADE_SETTLES;
    /* While it is young, all of it has the same weight. */
    double part = age > 0 ? fmax(1 - exp2(-passed / fade), passed / age) : 1;
    memory->seen_us = now_us;
    blend(&memory->shape.asked, window->asked / window->seconds, part);
    blend(&memory->shape.found, window->found / window->seconds, part);
    for (size_t i = 0; i <= TIERCE__GHOST_BUCKETS; i++)
        blend(&memory->shape.hits[i], window->hits[i] / window->seconds, part);
}

/* ---- what a move is worth -------------------------------------------------------------------- */

static void move_quota(const struct tierce__pilot_group *group, uint32_t quota, double bytes,
                       bool has_both, double out[TIERCE__PILOT_QUOTAS])
{
    memcpy(out, group->quota, sizeof(group->quota));
    out[quota] += bytes;
    if (quota != 0 && has_both)
        out[0] += bytes;
    TIERCE_DASSERT(out[quota] >= 0 && out[0] >= 0);
}

/* The error of the hits of a curve, in tokens a second. Lookups that hit at no size of interest
 * have none: the errors are those of the hits, at a rate of a half at the most. */
static double error_at(const struct tierce__ghost_shape *shape, double bytes)
{
    double hits = tierce__ghost_hits(shape, bytes);
    return tierce__ghost_error(shape) * fmin(shape->asked, 2 * hits) / shape->seconds;
}

/* A quota that may move from one group to another. */
struct pilot_way {
    const struct tierce__pilot_group *from, *to;
    uint32_t quota;
    bool has_both; /* the groups' own quotas go with that of a kind of storage */
    double step;   /* bytes */
    double most;   /* bytes that the bounds allow */
};

struct pilot_worth {
    double net, error; /* tokens a second */
};

/* Hits between two capacities, a second: in the window, and over a long time. A window alone would
 * follow a load that comes and goes, always too late. */
static double hits_between(const struct tierce__pilot *pilot,
                           const struct tierce__pilot_group *group, double low, double high)
{
    const struct tierce__ghost_shape *window = group->window;
    const struct pilot_memory *memory = memory_of(pilot, group->number);
    TIERCE_ASSERT(memory != NULL);
    double now = tierce__ghost_hits(window, high) - tierce__ghost_hits(window, low);
    double ever =
        tierce__ghost_hits(&memory->shape, high) - tierce__ghost_hits(&memory->shape, low);
    return (1 - EVER_SHARE) * now / window->seconds + EVER_SHARE * ever;
}

static struct pilot_worth worth_of(const struct tierce__pilot *pilot, const struct pilot_way *way,
                                   double bytes)
{
    const struct tierce__pilot_opts *o = &pilot->opts;
    const struct tierce__pilot_group *from = way->from, *to = way->to;
    double less[TIERCE__PILOT_QUOTAS], more[TIERCE__PILOT_QUOTAS];
    move_quota(from, way->quota, -bytes, way->has_both, less);
    move_quota(to, way->quota, bytes, way->has_both, more);
    double from_now = o->held(o->arg, from, from->quota), from_then = o->held(o->arg, from, less);
    double to_now = o->held(o->arg, to, to->quota), to_then = o->held(o->arg, to, more);
    double loss = hits_between(pilot, from, from_then, from_now);
    double gain = hits_between(pilot, to, to_now, to_then);
    return (struct pilot_worth){gain - loss,
                                error_at(from->window, from_now) + error_at(to->window, to_then)};
}

/* ---- the ways of a quota --------------------------------------------------------------------- */

static bool takes_part(const struct tierce__pilot_group *group, uint32_t quota)
{
    return group->advises && group->quota[quota] > 0 && group->window != NULL &&
           group->window->seconds > 0;
}

/* The bytes that may leave a group. Without a bound, a step's share of the mean quota stays. */
static double may_give(const struct tierce__pilot_group *group, uint32_t quota, double usual)
{
    double least = group->least[quota] > 0 ? group->least[quota] : usual;
    return fmax(group->quota[quota] - least, 0);
}

static double may_take(const struct tierce__pilot_group *group, uint32_t quota)
{
    if (!(group->most[quota] > 0))
        return INFINITY;
    return fmax(group->most[quota] - group->quota[quota], 0);
}

struct pilot_sum {
    double bytes;
    size_t groups;
};

static struct pilot_sum sum_quota(const struct tierce__pilot_group *groups, size_t count,
                                  uint32_t quota)
{
    struct pilot_sum sum = {0};
    for (size_t i = 0; i < count; i++) {
        if (takes_part(&groups[i], quota)) {
            sum.bytes += groups[i].quota[quota];
            sum.groups++;
        }
    }
    return sum;
}

/* False: nothing may move. */
static bool find_way(const struct tierce__pilot *pilot, struct pilot_way *way,
                     const struct pilot_sum *sum)
{
    uint32_t quota = way->quota;
    double share = pilot->opts.step_share;
    double usual = share * sum->bytes / (double)sum->groups;
    way->has_both = quota != 0 && way->from->quota[0] > 0 && way->to->quota[0] > 0;
    way->most = fmin(may_give(way->from, quota, usual), may_take(way->to, quota));
    if (way->has_both)
        way->most = fmin(way->most, fmin(may_give(way->from, 0, usual), may_take(way->to, 0)));
    way->step = fmin(share * sum->bytes, way->from->quota[quota] / GIVE_PARTS);
    way->step = floor(fmin(way->step, way->most));
    return way->step >= 1 && way->step >= share * usual;
}

/* ---- the best way ---------------------------------------------------------------------------- */

struct pilot_best {
    struct pilot_way way;
    double slope; /* net gain above the error, for each byte; 0: none was found */
};

static void try_way(const struct tierce__pilot *pilot, const struct pilot_way *way,
                    struct pilot_best *best)
{
    TIERCE_DASSERT(way->step >= 1 && way->step <= way->most);
    for (int steps = 1; steps <= AHEAD_STEPS; steps++) {
        double bytes = steps * way->step;
        if (bytes > way->most)
            break;
        struct pilot_worth worth = worth_of(pilot, way, bytes);
        double slope = (worth.net - worth.error) / bytes;
        if (slope > best->slope)
            *best = (struct pilot_best){*way, slope};
    }
}

static bool may_move(const struct tierce__pilot *pilot, const struct pilot_way *way, int64_t now_us)
{
    const struct tierce__pilot_opts *o = &pilot->opts;
    const struct tierce__pilot_group *from = way->from, *to = way->to;
    return from != to && takes_part(from, way->quota) && takes_part(to, way->quota) &&
           (o->share == NULL || o->share(o->arg, from, to, way->quota)) &&
           from->window->is_warm && /* a curve that is not has too few hits */
           from->window->sampled + to->window->sampled >= SAMPLE_LEAST &&
           !is_left_alone(pilot, from->number, to->number, now_us);
}

static void find_best(const struct tierce__pilot *pilot, int64_t now_us,
                      const struct tierce__pilot_group *groups, size_t count, bool acts,
                      struct pilot_best *best)
{
    for (uint32_t quota = 0; quota < TIERCE__PILOT_QUOTAS; quota++) {
        struct pilot_sum sum = sum_quota(groups, count, quota);
        for (size_t i = 0; sum.groups > 1 && i < count * count; i++) {
            struct pilot_way way = {
                .from = &groups[i / count], .to = &groups[i % count], .quota = quota};
            bool both_act = way.from->acts && way.to->acts;
            if (both_act == acts && may_move(pilot, &way, now_us) && find_way(pilot, &way, &sum))
                try_way(pilot, &way, best);
        }
    }
}

static void look_for_step(const struct tierce__pilot *pilot, int64_t now_us,
                          const struct tierce__pilot_group *groups, size_t count,
                          struct tierce__pilot_decision *out)
{
    struct pilot_best best = {0};
    find_best(pilot, now_us, groups, count, true, &best);
    bool acts = best.slope > 0;
    if (!acts)
        find_best(pilot, now_us, groups, count, false, &best);
    if (!(best.slope > 0))
        return;
    *out = (struct tierce__pilot_decision){
        .verdict = acts ? TIERCE__PILOT_STEP : TIERCE__PILOT_ADVISE,
        .from = best.way.from->number,
        .to = best.way.to->number,
        .quota = best.way.quota,
        .bytes = best.way.step,
        .expected = worth_of(pilot, &best.way, best.way.step).net,
    };
}

/* ---- the open step --------------------------------------------------------------------------- */

static const struct tierce__pilot_group *find_group(const struct tierce__pilot_group *groups,
                                                    size_t count, uint32_t number)
{
    for (size_t i = 0; i < count; i++) {
        if (groups[i].number == number)
            return &groups[i];
    }
    return NULL;
}

/* The rate that was measured, less that of the curve. */
static double measured_above(const struct tierce__ghost_shape *shape, double held)
{
    return shape != NULL && shape->asked > 0
               ? shape->found / shape->asked - tierce__ghost_rate(shape, held)
               : 0;
}

static struct pilot_before before_of(const struct tierce__pilot *pilot,
                                     const struct tierce__pilot_group *group, uint32_t quota,
                                     double bytes, bool has_both)
{
    const struct tierce__pilot_opts *o = &pilot->opts;
    struct pilot_before before = {.number = group->number};
    move_quota(group, quota, bytes, has_both, before.quota);
    before.held = o->held(o->arg, group, group->quota);
    before.held_after = o->held(o->arg, group, before.quota);
    before.above = measured_above(group->recent, before.held);
    return before;
}

/* Remembers the rates before a step that look has decided. */
static void prepare(struct tierce__pilot *pilot, const struct tierce__pilot_group *groups,
                    size_t count, const struct tierce__pilot_decision *step)
{
    const struct tierce__pilot_group *from = find_group(groups, count, step->from);
    const struct tierce__pilot_group *to = find_group(groups, count, step->to);
    TIERCE_ASSERT(from != NULL && to != NULL && !pilot->open.is_open);
    bool has_both = step->quota != 0 && from->quota[0] > 0 && to->quota[0] > 0;
    pilot->open = (struct pilot_open){
        .step = *step,
        .from = before_of(pilot, from, step->quota, -step->bytes, has_both),
        .to = before_of(pilot, to, step->quota, step->bytes, has_both),
    };
}

static bool is_as_left(const struct tierce__pilot_group *group, const struct pilot_before *before)
{
    if (group == NULL || !group->acts || group->recent == NULL)
        return false;
    for (size_t i = 0; i < TIERCE__PILOT_QUOTAS; i++) {
        if (fabs(group->quota[i] - before->quota[i]) >= 1)
            return false;
    }
    return true;
}

/* Hit tokens a second since the step, less those that there would have been without it. */
struct pilot_effect {
    double expected, measured, noise;
};

static void add_effect(const struct tierce__pilot_group *group, const struct pilot_before *before,
                       struct pilot_effect *out)
{
    const struct tierce__ghost_shape *shape = group->recent;
    if (!(shape->asked > 0) || !(shape->seconds > 0))
        return;
    double asked = shape->asked / shape->seconds;
    double without = tierce__ghost_rate(shape, before->held);
    double with = tierce__ghost_rate(shape, before->held_after);
    out->expected += asked * (with - without);
    out->measured += asked * (shape->found / shape->asked - without - before->above);
    out->noise += 2 * error_at(shape, fmax(before->held, before->held_after));
    /* A short time has few lookups, and their hits come in whole conversations. */
    out->noise += 0.02 * shape->found / shape->seconds;
}

/* Whether the bounds of one quota allow to undo the step. */
static bool may_return(const struct tierce__pilot_group *from, const struct tierce__pilot_group *to,
                       uint32_t quota, double bytes)
{
    return bytes <= may_take(from, quota) && to->quota[quota] - bytes >= to->least[quota];
}

static bool may_undo(const struct pilot_open *open, const struct tierce__pilot_group *from,
                     const struct tierce__pilot_group *to)
{
    uint32_t quota = open->step.quota;
    bool has_both = quota != 0 && from->quota[0] > 0 && to->quota[0] > 0;
    return may_return(from, to, quota, open->step.bytes) &&
           (!has_both || may_return(from, to, 0, open->step.bytes));
}

static void judge(struct tierce__pilot *pilot, int64_t now_us,
                  const struct tierce__pilot_group *groups, size_t count,
                  struct tierce__pilot_decision *out)
{
    const struct pilot_open *open = &pilot->open;
    const struct tierce__pilot_group *from = find_group(groups, count, open->from.number);
    const struct tierce__pilot_group *to = find_group(groups, count, open->to.number);
    int64_t passed = now_us - open->at_us;
    struct pilot_effect effect = {0};
    if (!is_as_left(from, &open->from) || !is_as_left(to, &open->to)) {
        *out = open->step;
        out->verdict = TIERCE__PILOT_DROP;
        return;
    }
    bool is_filled = to->used >= FILLED * open->to.held_after;
    if (passed < pilot->opts.settle_us ||
        (!is_filled && passed < FILL_SETTLES * pilot->opts.settle_us))
        return;
    add_effect(from, &open->from, &effect);
    add_effect(to, &open->to, &effect);
    bool is_wrong = effect.measured < effect.expected - effect.noise;
    *out = open->step;
    out->verdict = !is_wrong                  ? TIERCE__PILOT_KEEP
                   : may_undo(open, from, to) ? TIERCE__PILOT_UNDO
                                              : TIERCE__PILOT_STAY;
    out->measured = effect.measured;
}

/* ---- entry functions ------------------------------------------------------------------------- */

void tierce__pilot_look(struct tierce__pilot *pilot, int64_t now_us,
                        const struct tierce__pilot_group *groups, size_t count,
                        struct tierce__pilot_decision *out)
{
    TIERCE_CHECK_MAGIC(pilot, PILOT_MAGIC);
    TIERCE_ASSERT(count <= TIERCE__PILOT_GROUPS_MAX);
    for (size_t i = 0; i < count; i++)
        remember(pilot, now_us, &groups[i]);
    *out = (struct tierce__pilot_decision){.verdict = TIERCE__PILOT_NOTHING};
    if (pilot->open.is_open)
        judge(pilot, now_us, groups, count, out);
    else
        look_for_step(pilot, now_us, groups, count, out);
    if (out->verdict == TIERCE__PILOT_STEP)
        prepare(pilot, groups, count, out);
}

void tierce__pilot_done(struct tierce__pilot *pilot, int64_t now_us,
                        const struct tierce__pilot_decision *decision, bool carried_out)
{
    TIERCE_CHECK_MAGIC(pilot, PILOT_MAGIC);
    if (!carried_out)
        return; /* the end of a step is decided again */
    switch (decision->verdict) {
    case TIERCE__PILOT_STEP:
        TIERCE_ASSERT(!pilot->open.is_open);
        pilot->open.is_open = true;
        pilot->open.at_us = now_us;
        return;
    case TIERCE__PILOT_KEEP:
        trust_pair(pilot, decision->from, decision->to);
        break;
    case TIERCE__PILOT_UNDO:
    case TIERCE__PILOT_STAY:
        tierce__pilot_recall(pilot, decision->from, decision->to, now_us);
        break;
    case TIERCE__PILOT_DROP:
        break;
    case TIERCE__PILOT_NOTHING:
    case TIERCE__PILOT_ADVISE:
        return;
    }
    pilot->open = (struct pilot_open){0};
}

bool tierce__pilot_has_open(const struct tierce__pilot *pilot, uint32_t number)
{
    const struct pilot_open *open = &pilot->open;
    return open->is_open && (open->from.number == number || open->to.number == number);
}

void tierce__pilot_forget(struct tierce__pilot *pilot)
{
    TIERCE_CHECK_MAGIC(pilot, PILOT_MAGIC);
    pilot->open = (struct pilot_open){0};
    memset(pilot->pairs, 0, sizeof(pilot->pairs));
}

uint32_t tierce__pilot_epochs(const struct tierce__pilot *pilot)
{
    int64_t whole = pilot->opts.settle_us / pilot->opts.epoch_us - 1;
    return whole > 0 ? (uint32_t)whole : 0;
}

int tierce__pilot_create(struct tierce__pilot **out, const struct tierce__pilot_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && opts->held != NULL);
    struct tierce__pilot *pilot = tierce__calloc(1, sizeof(*pilot));
    if (pilot == NULL)
        return -ENOMEM;
    pilot->magic = PILOT_MAGIC;
    pilot->opts = *opts;
    if (!(pilot->opts.step_share > 0))
        pilot->opts.step_share = STEP_SHARE;
    if (pilot->opts.settle_us == 0)
        pilot->opts.settle_us = SETTLE_US;
    if (pilot->opts.epoch_us == 0)
        pilot->opts.epoch_us = EPOCH_US;
    TIERCE_ASSERT(pilot->opts.settle_us > 0 && pilot->opts.epoch_us > 0);
    *out = pilot;
    return 0;
}

void tierce__pilot_destroy(struct tierce__pilot *pilot)
{
    if (pilot == NULL)
        return;
    TIERCE_CHECK_MAGIC(pilot, PILOT_MAGIC);
    pilot->magic = 0;
    tierce__free(pilot);
}
