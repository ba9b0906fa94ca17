/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/life.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/replay/curve.h"
#include "optimizer/analysis/life_nodes.h"
#include "optimizer/replay/replay.h"

#include <errno.h>
#include <string.h>

#define NOT_YET     INT64_MIN
#define NODES       128u  /* of an instance, by default */
#define NODES_TOTAL 4096u /* of all */

enum { STORED = 1, ALIVE = 2, REUSED = 4 }; /* of a block */

struct life_scan {
    struct tierce__recording_totals totals;
    struct tierce__curve *curve;
    struct tierce__life_blocks blocks;
    int64_t *named_us; /* [distinct] time of the last naming */
    uint8_t *flags;    /* [distinct] */
    uint64_t *bytes;   /* [distinct] last given size; NULL if no request gives sizes */
};

/* ---- the scan -------------------------------------------------------------------------------- */

static void use_blocks(struct tierce__life *out, struct life_scan *s,
                       const struct tierce__recorded *r)
{
    const uint32_t *blocks = tierce__recorded_blocks(r);
    for (uint32_t i = 0; i < r->read_count; i++) {
        uint32_t b = blocks[i];
        s->blocks.uses[b]++;
        if (s->named_us[b] == NOT_YET)
            continue;
        TIERCE_DASSERT(r->time_us >= s->named_us[b]);
        out->reuses++;
        tierce__histogram_add(&out->gap_us, (uint64_t)(r->time_us - s->named_us[b]), 1);
        s->flags[b] |= REUSED | ((s->flags[b] & STORED) != 0 ? ALIVE : 0);
        s->blocks.last_us[b] = r->time_us;
    }
    out->uses += r->read_count;
}

static void name_blocks(struct life_scan *s, const struct tierce__recorded *r)
{
    const uint32_t *blocks = tierce__recorded_blocks(r);
    const uint64_t *bytes = tierce__recorded_bytes(r);
    for (uint32_t i = 0; i < r->count; i++) {
        uint32_t b = blocks[i];
        if (s->named_us[b] == NOT_YET) {
            s->blocks.first_us[b] = s->blocks.last_us[b] = r->time_us;
            s->blocks.parent[b] = i > 0 ? blocks[i - 1] : TIERCE__LIFE_NO_PARENT;
            s->blocks.instance[b] = r->instance;
        }
        s->named_us[b] = r->time_us;
        if (i < r->stored)
            s->flags[b] |= STORED;
        if (bytes != NULL)
            s->bytes[b] = bytes[i];
    }
}

static int scan_all(struct tierce__life *out, struct life_scan *s,
                    const struct tierce__recording *recording)
{
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        int rc =
            tierce__curve_request(s->curve, tierce__recorded_blocks(r), r->count, r->read_count);
        if (rc < 0)
            return rc;
        out->requests++;
        use_blocks(out, s, r);
        name_blocks(s, r);
    }
    return 0;
}

static void sum_up(struct tierce__life *out, const struct life_scan *s)
{
    uint32_t length;
    const uint64_t *distances = tierce__curve_histogram(s->curve, 0, &length);
    for (uint32_t d = 0; d < length; d++) {
        if (distances[d] > 0)
            tierce__histogram_add(&out->distance, d, distances[d]);
    }
    out->distinct = s->totals.distinct;
    for (uint32_t b = 0; b < s->totals.distinct; b++) {
        bool stored = (s->flags[b] & STORED) != 0, dead = stored && (s->flags[b] & ALIVE) == 0;
        uint64_t bytes = s->bytes != NULL ? s->bytes[b] : 0;
        out->stored += stored;
        out->dead += dead;
        out->stored_bytes += stored ? bytes : 0;
        out->dead_bytes += dead ? bytes : 0;
        tierce__histogram_add(&out->uses_of, s->blocks.uses[b], 1);
        if ((s->flags[b] & REUSED) != 0)
            tierce__histogram_add(&out->span_us,
                                  (uint64_t)(s->blocks.last_us[b] - s->blocks.first_us[b]), 1);
    }
    TIERCE_ASSERT(out->dead <= out->stored && out->stored <= out->distinct);
}

static int prepare(struct life_scan *s)
{
    static const struct tierce__match any = {TIERCE__MATCH_ANY, 0};
    size_t room = (size_t)s->totals.distinct + 1;
    s->named_us = tierce__alloc(room * sizeof(*s->named_us));
    s->flags = tierce__calloc(room, sizeof(*s->flags));
    if (s->totals.has_bytes)
        s->bytes = tierce__calloc(room, sizeof(*s->bytes));
    if (s->named_us == NULL || s->flags == NULL || (s->totals.has_bytes && s->bytes == NULL))
        return -ENOMEM;
    for (size_t b = 0; b < room; b++)
        s->named_us[b] = NOT_YET;
    int rc = tierce__life_blocks_init(&s->blocks, s->totals.distinct);
    return rc < 0 ? rc : tierce__curve_create(&s->curve, TIERCE__TOUCH_REV, &any, 1);
}

int tierce__life_scan(struct tierce__life *out, const struct tierce__recording *recording,
                      const struct tierce__life_opts *opts)
{
    struct tierce__life life = {0};
    struct life_scan s = {.totals = tierce__recording_totals(recording)};
    uint32_t instances = s.totals.instances > 0 ? s.totals.instances : 1;
    uint32_t most = NODES_TOTAL / instances > 0 ? NODES_TOTAL / instances : 1;
    uint32_t wanted = opts->nodes_max > 0 ? opts->nodes_max : NODES;
    int rc = prepare(&s);
    if (rc == 0)
        rc = scan_all(&life, &s, recording);
    if (rc < 0)
        goto out;
    sum_up(&life, &s);
    life.block_tokens =
        opts->block_tokens > 0 ? opts->block_tokens : tierce__block_tokens(recording);
    rc = tierce__life_nodes(&life.nodes, &life.node_count, &s.blocks, instances,
                            wanted < most ? wanted : most, life.block_tokens);
out:
    tierce__curve_destroy(s.curve);
    tierce__life_blocks_fini(&s.blocks);
    tierce__free(s.named_us);
    tierce__free(s.flags);
    tierce__free(s.bytes);
    if (rc == 0)
        *out = life;
    else
        tierce__life_clear(&life);
    return rc;
}

void tierce__life_clear(struct tierce__life *life)
{
    tierce__free(life->nodes);
    *life = (struct tierce__life){0};
}

/* ---- tokens of a block ----------------------------------------------------------------------- */

/* The number from `least` to `most` that the largest power of two divides; 0 if there is none. */
static uint64_t roundest(uint64_t least, uint64_t most)
{
    for (uint32_t bit = 63; least > 0 && bit > 0; bit--) {
        uint64_t step = UINT64_C(1) << bit, up = (least - 1) / step;
        if (up < UINT64_MAX / step && (up + 1) * step <= most)
            return (up + 1) * step;
    }
    return least <= most ? least : 0;
}

uint64_t tierce__block_tokens(const struct tierce__recording *recording)
{
    uint64_t cut_least = 1, cut_most = UINT64_MAX;   /* the last block may not be full */
    uint64_t full_least = 1, full_most = UINT64_MAX; /* every block is */
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        uint64_t tokens = r->input_tokens, n = r->read_count;
        if (tokens == 0 || n == 0)
            continue;
        uint64_t up = (tokens - 1) / n + 1, below = n > 1 ? (tokens - 1) / (n - 1) : UINT64_MAX;
        cut_least = up > cut_least ? up : cut_least;
        cut_most = below < cut_most ? below : cut_most;
        up = tokens / (n + 1) + 1;
        full_least = up > full_least ? up : full_least;
        full_most = tokens / n < full_most ? tokens / n : full_most;
    }
    uint64_t cut = cut_most < UINT64_MAX ? roundest(cut_least, cut_most) : 0;
    if (cut > 0)
        return cut;
    return full_most < UINT64_MAX ? roundest(full_least, full_most) : 0;
}

/* ---- in one cache ---------------------------------------------------------------------------- */

struct watcher {
    struct tierce__life_cached *life;
    int64_t now_us;
    int64_t *stored_us; /* [distinct] */
    uint32_t *uses;     /* [distinct] since it was stored */
    uint64_t unused;    /* of those that are there */
};

static void on_looked_up(void *arg, const struct tierce__recorded *request, const bool *there)
{
    struct watcher *w = arg;
    const uint32_t *blocks = tierce__recorded_blocks(request);
    for (uint32_t i = 0; i < request->read_count; i++) {
        if (there[i])
            w->unused -= w->uses[blocks[i]]++ == 0;
    }
}

static void on_stored(void *arg, uint32_t block)
{
    struct watcher *w = arg;
    w->stored_us[block] = w->now_us;
    w->uses[block] = 0;
    w->unused++;
    w->life->stored++;
}

static void on_left(void *arg, uint32_t block)
{
    struct watcher *w = arg;
    w->life->left++;
    TIERCE_DASSERT(w->life->left <= w->life->stored);
    w->life->unused += w->uses[block] == 0;
    TIERCE_DASSERT(w->uses[block] > 0 || w->unused > 0);
    w->unused -= w->uses[block] == 0;
    tierce__histogram_add(&w->life->stay_us, (uint64_t)(w->now_us - w->stored_us[block]), 1);
    tierce__histogram_add(&w->life->uses_of, w->uses[block], 1);
}

static int replay_point(struct watcher *w, const struct tierce__recording *recording,
                        const struct tierce__sim_point *point)
{
    static const struct tierce__match prefix = {TIERCE__MATCH_PREFIX, 0};
    struct tierce__replay_watch watch = {
        .looked_up = on_looked_up, .stored = on_stored, .left = on_left, .arg = w};
    struct tierce__replay_opts opts = {.size = sizeof(opts),
                                       .distinct = tierce__recording_totals(recording).distinct,
                                       .matches = &prefix,
                                       .match_count = 1,
                                       .watch = &watch};
    struct tierce__replay *replay = NULL;
    int rc = tierce__sim_replay(&replay, point, &opts);
    for (const struct tierce__recorded *r = tierce__recording_first(recording);
         rc == 0 && r != NULL; r = tierce__recording_next(recording, r)) {
        w->now_us = r->time_us;
        rc = tierce__replay_request(replay, r);
    }
    tierce__replay_destroy(replay);
    return rc;
}

int tierce__life_replay(struct tierce__life_cached *out, const struct tierce__recording *recording,
                        const struct tierce__sim_point *point)
{
    size_t room = (size_t)tierce__recording_totals(recording).distinct + 1;
    struct tierce__life_cached life = {0};
    struct watcher w = {.life = &life};
    w.stored_us = tierce__alloc(room * sizeof(*w.stored_us));
    w.uses = tierce__alloc(room * sizeof(*w.uses));
    int rc = w.stored_us == NULL || w.uses == NULL ? -ENOMEM : replay_point(&w, recording, point);
    tierce__free(w.stored_us);
    tierce__free(w.uses);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(life.left <= life.stored);
    TIERCE_ASSERT(w.unused <= life.stored - life.left);
    life.at_end = life.stored - life.left;
    life.at_end_unused = w.unused;
    *out = life;
    return 0;
}
