/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/rehearsal.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "core/policy/policy.h"
#include "manager/pilot/gain.h"
#include "manager/pilot/ghosts.h"
#include "optimizer/replay/curve.h"
#include "optimizer/replay/replay.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    PARTS = 256,         /* of the budget, of which splits consist */
    LOOKS = 20,          /* of the pilot in a settle */
    STEP_REQUESTS = 32,  /* the ghost's ring is emptied after so many */
    INTERVALS_MAX = 4096 /* longer recordings are cut into longer intervals for `moving` */
};

#define BLOCK_BYTES 1048576.0
#define SETTLE_US   (10ll * 60 * 1000000)

static const struct tierce__match prefix = {.kind = TIERCE__MATCH_PREFIX};

static int64_t settle_of(const struct tierce__rehearsal_opts *opts)
{
    return opts->settle_us > 0 ? opts->settle_us : SETTLE_US;
}

static uint32_t group_of(const struct tierce__rehearsal_opts *opts,
                         const struct tierce__recorded *request)
{
    uint32_t group = opts->group_of[request->instance];
    TIERCE_ASSERT(group == TIERCE__GROUP_NONE || group < opts->group_count);
    return group;
}

/* ---- the best splits ------------------------------------------------------------------------- */

/* Exact hits of LRU: [interval][group][parts that they need, 0 .. PARTS]. */
struct needs {
    const struct tierce__rehearsal_opts *opts;
    struct tierce__curve **curves; /* [group_count] */
    uint64_t *hits;
    size_t intervals, interval, group; /* of the request */
};

static uint64_t *hits_at(const struct needs *n, size_t interval, size_t group)
{
    TIERCE_DASSERT(interval < n->intervals && group < n->opts->group_count);
    return n->hits + (interval * n->opts->group_count + group) * (PARTS + 1);
}

static void count_needs(void *arg, size_t match, const uint32_t *costs, uint32_t count)
{
    struct needs *n = arg;
    uint64_t *hits = hits_at(n, n->interval, n->group);
    (void)match;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t parts = ((uint64_t)costs[i] * PARTS + n->opts->budget - 1) / n->opts->budget;
        if (parts <= PARTS)
            hits[parts]++;
    }
}

static int open_needs(struct needs *n, const struct tierce__rehearsal_opts *opts, size_t intervals)
{
    size_t cells = intervals * opts->group_count * (PARTS + 1);
    *n = (struct needs){.opts = opts, .intervals = intervals};
    n->curves = tierce__calloc(opts->group_count, sizeof(struct tierce__curve *));
    n->hits = tierce__calloc(cells, sizeof(*n->hits));
    int rc = n->curves != NULL && n->hits != NULL ? 0 : -ENOMEM;
    for (size_t g = 0; rc == 0 && g < opts->group_count; g++) {
        rc = tierce__curve_create(&n->curves[g], TIERCE__TOUCH_REV, &prefix, 1);
        if (rc == 0)
            tierce__curve_watch(n->curves[g], count_needs, n);
    }
    return rc;
}

static void close_needs(struct needs *n)
{
    for (size_t g = 0; n->curves != NULL && g < n->opts->group_count; g++)
        tierce__curve_destroy(n->curves[g]);
    tierce__free(n->curves);
    tierce__free(n->hits);
}

static int fill_needs(struct needs *n, const struct tierce__recording *recording)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    int64_t span = totals.last_us - totals.first_us + 1;
    int rc = 0;
    for (const struct tierce__recorded *r = tierce__recording_first(recording);
         rc == 0 && r != NULL; r = tierce__recording_next(recording, r)) {
        uint32_t group = group_of(n->opts, r);
        if (group == TIERCE__GROUP_NONE)
            continue;
        n->group = group;
        n->interval =
            (size_t)((double)(r->time_us - totals.first_us) / (double)span * (double)n->intervals);
        rc = tierce__curve_request(n->curves[group], tierce__recorded_blocks(r), r->count,
                                   r->read_count);
    }
    return rc;
}

/*
 * The split with the most hits. curves[g][p]: the hits of group g with p parts. Returns them, and
 * sets `parts` [groups] unless it is NULL. One group after the other is added: best[p] is the most
 * hits of those so far with p parts, and choice[g][p] the part of the last one.
 */
static uint64_t best_split(const uint64_t *const *curves, size_t groups, uint16_t *choice,
                           uint16_t *parts)
{
    uint64_t best[PARTS + 1] = {0}, next[PARTS + 1];
    for (size_t g = 0; g < groups; g++) {
        for (size_t p = 0; p <= PARTS; p++) {
            next[p] = 0;
            choice[g * (PARTS + 1) + p] = 0;
            for (size_t own = 0; own <= p; own++) {
                uint64_t hits = best[p - own] + curves[g][own];
                if (hits > next[p] || own == 0) {
                    next[p] = hits;
                    choice[g * (PARTS + 1) + p] = (uint16_t)own;
                }
            }
        }
        memcpy(best, next, sizeof(best));
    }
    for (size_t g = groups, left = PARTS; parts != NULL && g-- > 0; left -= parts[g])
        parts[g] = choice[g * (PARTS + 1) + left];
    return best[PARTS];
}

/* Makes the hits of each interval cumulative, and adds them to those of interval 0 last. */
static void sum_needs(struct needs *n, uint64_t *all)
{
    for (size_t g = 0; g < n->opts->group_count; g++) {
        for (size_t i = 0; i < n->intervals; i++) {
            uint64_t *hits = hits_at(n, i, g), sum = 0;
            for (size_t p = 0; p <= PARTS; p++) {
                sum += hits[p];
                hits[p] = sum;
                all[g * (PARTS + 1) + p] += sum;
            }
        }
    }
}

/* The best split that stays, in parts, and the hits of the one that moves. */
static int find_splits(struct needs *n, uint16_t *parts, uint64_t *moving)
{
    size_t groups = n->opts->group_count;
    uint16_t *choice = tierce__calloc(groups * (PARTS + 1), sizeof(*choice));
    uint64_t *all = tierce__calloc(groups * (PARTS + 1), sizeof(*all));
    const uint64_t *curves[TIERCE__PILOT_GROUPS_MAX];
    int rc = choice != NULL && all != NULL ? 0 : -ENOMEM;
    if (rc == 0)
        sum_needs(n, all);
    *moving = 0;
    for (size_t i = 0; rc == 0 && i < n->intervals; i++) {
        for (size_t g = 0; g < groups; g++)
            curves[g] = hits_at(n, i, g);
        *moving += best_split(curves, groups, choice, NULL);
    }
    for (size_t g = 0; g < groups; g++)
        curves[g] = all + g * (PARTS + 1);
    if (rc == 0)
        (void)best_split(curves, groups, choice, parts);
    tierce__free(choice);
    tierce__free(all);
    return rc;
}

static int find_best(struct tierce__rehearsal *out, const struct tierce__recording *recording,
                     const struct tierce__rehearsal_opts *opts)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    int64_t intervals = (totals.last_us - totals.first_us) / settle_of(opts) + 1;
    struct needs needs;
    uint16_t parts[TIERCE__PILOT_GROUPS_MAX];
    int rc = open_needs(&needs, opts, (size_t)fmin((double)intervals, INTERVALS_MAX));
    if (rc == 0)
        rc = fill_needs(&needs, recording);
    if (rc == 0)
        rc = find_splits(&needs, parts, &out->moving_hits);
    for (size_t g = 0; rc == 0 && g < opts->group_count; g++) {
        uint64_t blocks = opts->budget * parts[g] / PARTS;
        out->groups[g].best = blocks > 0 ? blocks : 1;
    }
    close_needs(&needs);
    return rc;
}

/* ---- caches ---------------------------------------------------------------------------------- */

struct stage {
    const struct tierce__rehearsal_opts *opts;
    struct tierce__rehearsal *out;
    struct tierce__replay *caches[TIERCE__PILOT_GROUPS_MAX];
    double quota[TIERCE__PILOT_GROUPS_MAX]; /* bytes */
    /* The rest only with a pilot. */
    struct tierce__ghosts *ghost;
    struct tierce__ghost_tap *taps[TIERCE__PILOT_GROUPS_MAX];
    struct tierce__pilot *pilot;
    struct tierce__ghost_shape *shapes; /* [2 * group_count]: window and recent */
    int64_t *keys;
    int64_t now_us, look_us; /* of the recording; when the pilot looks next */
};

static uint64_t blocks_of(double quota)
{
    return quota >= BLOCK_BYTES ? (uint64_t)(quota / BLOCK_BYTES) : 1;
}

static int open_caches(struct stage *s, uint32_t distinct)
{
    int rc = 0;
    for (size_t g = 0; rc == 0 && g < s->opts->group_count; g++) {
        rc = tierce__replay_create(
            &s->caches[g], &(struct tierce__replay_opts){.size = sizeof(struct tierce__replay_opts),
                                                         .policy = tierce__policy_find("lru"),
                                                         .capacity = s->opts->budget,
                                                         .order = TIERCE__TOUCH_REV,
                                                         .distinct = distinct,
                                                         .matches = &prefix,
                                                         .match_count = 1});
        if (rc == 0)
            tierce__replay_resize(s->caches[g], blocks_of(s->quota[g]));
    }
    return rc;
}

static void close_stage(struct stage *s)
{
    for (size_t g = 0; g < s->opts->group_count; g++) {
        tierce__replay_destroy(s->caches[g]);
        if (s->ghost != NULL)
            tierce__ghosts_close(s->ghost, s->taps[g]);
    }
    tierce__ghosts_destroy(s->ghost);
    tierce__pilot_destroy(s->pilot);
    tierce__free(s->shapes);
    tierce__free(s->keys);
}

static uint64_t hits_of(const struct stage *s, size_t group)
{
    return tierce__replay_result(s->caches[group])->hits[0];
}

/* ---- the pilot ------------------------------------------------------------------------------- */

static int64_t clock_of(void *arg)
{
    return ((const struct stage *)arg)->now_us;
}

static double held_of(void *arg, const struct tierce__pilot_group *group,
                      const double quota[TIERCE__PILOT_QUOTAS])
{
    (void)arg;
    (void)group;
    return (double)blocks_of(quota[0]) * BLOCK_BYTES;
}

/* An instance for each group. */
static int open_taps(struct stage *s)
{
    char empty[] = "", id[32];
    struct tierce__spec_info spec = {empty, (int64_t)BLOCK_BYTES};
    for (size_t g = 0; g < s->opts->group_count; g++) {
        snprintf(id, sizeof(id), "%zu", g);
        struct tierce__instance instance = {
            .id = id, .group_name = id, .block_size = 1, .specs = &spec, .spec_count = 1};
        s->taps[g] = tierce__ghosts_open(s->ghost, &instance);
        if (s->taps[g] == NULL)
            return -ENOMEM;
        tierce__ghosts_set_reach(s->ghost, id, tierce__gain_reach(s->quota[g]));
    }
    return 0;
}

static int open_pilot(struct stage *s, uint32_t longest)
{
    const struct tierce__rehearsal_opts *o = s->opts;
    s->shapes = tierce__calloc(2 * o->group_count, sizeof(*s->shapes));
    s->keys = tierce__calloc((size_t)longest + 1, sizeof(*s->keys));
    if (s->shapes == NULL || s->keys == NULL)
        return -ENOMEM;
    int rc = tierce__ghosts_create(
        &s->ghost, &(struct tierce__ghosts_opts){.size = sizeof(struct tierce__ghosts_opts),
                                                 .now_us = clock_of,
                                                 .clock_arg = s,
                                                 .seed = o->seed != 0 ? o->seed : 1,
                                                 .epoch_us = o->epoch_us});
    if (rc == 0)
        rc = open_taps(s);
    if (rc == 0)
        rc = tierce__pilot_create(
            &s->pilot, &(struct tierce__pilot_opts){.size = sizeof(struct tierce__pilot_opts),
                                                    .settle_us = settle_of(o),
                                                    .epoch_us = tierce__ghosts_epoch_us(s->ghost),
                                                    .held = held_of});
    return rc;
}

static void show_groups(struct stage *s, struct tierce__pilot_group *groups)
{
    char id[32];
    for (size_t g = 0; g < s->opts->group_count; g++) {
        struct tierce__ghost_shape *shapes = s->shapes + 2 * g;
        snprintf(id, sizeof(id), "%zu", g);
        bool is_known =
            tierce__ghosts_group(s->ghost, id, &shapes[0]) &&
            tierce__ghosts_group_recent(s->ghost, id, tierce__pilot_epochs(s->pilot), &shapes[1]);
        TIERCE_ASSERT(is_known);
        groups[g] = (struct tierce__pilot_group){
            .name = s->opts->groups[g].name,
            .number = (uint32_t)g + 1,
            .advises = true,
            .acts = true,
            .quota = {s->quota[g]},
            .used = (double)tierce__replay_result(s->caches[g])->used * BLOCK_BYTES,
            .window = &shapes[0],
            .recent = &shapes[1],
        };
    }
}

static void set_quota(struct stage *s, size_t group, double quota)
{
    struct tierce__rehearsal_group *of = &s->out->groups[group];
    char id[32];
    snprintf(id, sizeof(id), "%zu", group);
    s->quota[group] = quota;
    tierce__replay_resize(s->caches[group], blocks_of(quota));
    tierce__ghosts_set_reach(s->ghost, id, tierce__gain_reach(quota));
    of->act = blocks_of(quota);
    of->act_least = of->act < of->act_least ? of->act : of->act_least;
    of->act_most = of->act > of->act_most ? of->act : of->act_most;
}

static void carry_out(struct stage *s, const struct tierce__pilot_decision *decision)
{
    size_t from = decision->from - 1, to = decision->to - 1;
    double bytes = decision->verdict == TIERCE__PILOT_STEP   ? decision->bytes
                   : decision->verdict == TIERCE__PILOT_UNDO ? -decision->bytes
                                                             : 0;
    s->out->steps += decision->verdict == TIERCE__PILOT_STEP;
    s->out->kept += decision->verdict == TIERCE__PILOT_KEEP;
    s->out->undone += decision->verdict == TIERCE__PILOT_UNDO;
    s->out->dropped += decision->verdict == TIERCE__PILOT_DROP;
    if (bytes == 0)
        return;
    TIERCE_ASSERT(from < s->opts->group_count && to < s->opts->group_count);
    set_quota(s, from, s->quota[from] - bytes);
    set_quota(s, to, s->quota[to] + bytes);
}

/* Looks until there is nothing to do: at most one step and its judgement. */
static void look(struct stage *s)
{
    struct tierce__pilot_group groups[TIERCE__PILOT_GROUPS_MAX];
    struct tierce__pilot_decision decision;
    (void)tierce__ghosts_step(s->ghost);
    do {
        show_groups(s, groups);
        tierce__pilot_look(s->pilot, s->now_us, groups, s->opts->group_count, &decision);
        carry_out(s, &decision);
        tierce__pilot_done(s->pilot, s->now_us, &decision, true);
    } while (decision.verdict != TIERCE__PILOT_NOTHING);
}

/* The pilot looks regularly, also while no requests come. */
static void pass_time(struct stage *s, int64_t until_us)
{
    int64_t interval = settle_of(s->opts) / LOOKS;
    while (s->look_us <= until_us) {
        s->now_us = s->look_us;
        look(s);
        s->look_us += interval;
    }
    s->now_us = until_us;
}

static void show_ghost(struct stage *s, const struct tierce__recorded *request, size_t group,
                       uint64_t found)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    for (uint32_t i = 0; i < request->count; i++)
        s->keys[i] = (int64_t)tierce__spread(blocks[i]);
    if (request->read_count > 0)
        tierce__ghosts_get(s->ghost, s->taps[group], s->keys, request->read_count, true, found);
    if (request->stored > 0)
        tierce__ghosts_write(s->ghost, s->taps[group], s->keys, request->stored);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static int replay(struct stage *s, const struct tierce__recording *recording)
{
    uint64_t count = 0;
    int rc = 0;
    for (const struct tierce__recorded *r = tierce__recording_first(recording);
         rc == 0 && r != NULL; r = tierce__recording_next(recording, r)) {
        uint32_t group = group_of(s->opts, r);
        if (group == TIERCE__GROUP_NONE)
            continue;
        if (s->pilot != NULL)
            pass_time(s, r->time_us);
        uint64_t before = hits_of(s, group);
        rc = tierce__replay_request(s->caches[group], r);
        if (rc == 0 && s->pilot != NULL) {
            show_ghost(s, r, group, hits_of(s, group) - before);
            if (++count % STEP_REQUESTS == 0)
                (void)tierce__ghosts_step(s->ghost);
        }
    }
    return rc;
}

static int run(struct stage *s, const struct tierce__recording *recording)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    int rc = open_caches(s, totals.distinct);
    s->now_us = s->look_us = totals.first_us;
    return rc < 0 ? rc : replay(s, recording);
}

enum part { EQUAL, BEST, ACT };

static int run_part(struct tierce__rehearsal *out, const struct tierce__recording *recording,
                    const struct tierce__rehearsal_opts *opts, enum part part)
{
    struct stage *s = tierce__calloc(1, sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    *s = (struct stage){.opts = opts, .out = out};
    for (size_t g = 0; g < opts->group_count; g++) {
        uint64_t blocks = part == BEST ? out->groups[g].best : out->groups[g].equal;
        s->quota[g] = (double)blocks * BLOCK_BYTES;
    }
    int rc = part == ACT ? open_pilot(s, tierce__recording_totals(recording).longest) : 0;
    if (rc == 0)
        rc = run(s, recording);
    for (size_t g = 0; rc == 0 && g < opts->group_count; g++) {
        struct tierce__rehearsal_group *of = &out->groups[g];
        *(part == EQUAL  ? &of->equal_hits
          : part == BEST ? &of->best_hits
                         : &of->act_hits) = hits_of(s, g);
        of->blocks = tierce__replay_result(s->caches[g])->blocks;
    }
    close_stage(s);
    tierce__free(s);
    return rc;
}

static void sum_groups(struct tierce__rehearsal *out)
{
    for (size_t g = 0; g < out->group_count; g++) {
        const struct tierce__rehearsal_group *of = &out->groups[g];
        out->blocks += of->blocks;
        out->equal_hits += of->equal_hits;
        out->best_hits += of->best_hits;
        out->act_hits += of->act_hits;
    }
    TIERCE_ASSERT(out->act_hits <= out->blocks && out->best_hits <= out->blocks);
}

int tierce__rehearse(struct tierce__rehearsal *out, const struct tierce__recording *recording,
                     const struct tierce__rehearsal_opts *opts)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    struct tierce__rehearsal made = {.group_count = opts->group_count};
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    if (opts->group_count < 2 || opts->group_count > TIERCE__PILOT_GROUPS_MAX ||
        opts->budget < opts->group_count)
        return TIERCE_E_ARGUMENT;
    made.groups = tierce__calloc(opts->group_count, sizeof(*made.groups));
    if (made.groups == NULL)
        return -ENOMEM;
    made.seconds = (double)(totals.last_us - totals.first_us) / 1e6;
    for (size_t g = 0; g < opts->group_count; g++) {
        uint64_t equal = opts->budget / opts->group_count;
        made.groups[g] = (struct tierce__rehearsal_group){
            .equal = equal, .act = equal, .act_least = equal, .act_most = equal};
    }
    int rc = find_best(&made, recording, opts);
    for (int part = EQUAL; rc == 0 && part <= ACT; part++)
        rc = run_part(&made, recording, opts, (enum part)part);
    if (rc < 0) {
        tierce__rehearsal_clear(&made);
        return rc;
    }
    sum_groups(&made);
    *out = made;
    return 0;
}

void tierce__rehearsal_clear(struct tierce__rehearsal *rehearsal)
{
    tierce__free(rehearsal->groups);
    *rehearsal = (struct tierce__rehearsal){0};
}
