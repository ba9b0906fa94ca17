/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/ttl_curve.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NEVER       UINT32_MAX
#define NO_TIME_YET INT64_MIN

struct ttl_curve_scan {
    enum tierce__touch_order order;
    const struct tierce__match *matches;
    size_t match_count;
    uint64_t *ttls; /* [ttl_count] the shortest first */
    size_t ttl_count;
    int64_t *used_us;       /* [distinct] */
    uint32_t *depth, *cost; /* [longest] indexes into ttls */
    uint64_t *counts;       /* [match_count][ttl_count] hits from this time to live on */
};

/* The shortest time to live that keeps the block until now. */
static uint32_t needed(const struct ttl_curve_scan *s, uint32_t block, int64_t now)
{
    if (s->used_us[block] == NO_TIME_YET)
        return NEVER;
    TIERCE_DASSERT(now >= s->used_us[block]);
    uint64_t age = (uint64_t)(now - s->used_us[block]);
    size_t from = 0, to = s->ttl_count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (age < s->ttls[middle])
            to = middle;
        else
            from = middle + 1;
    }
    return from < s->ttl_count ? (uint32_t)from : NEVER;
}

static void look_up(struct ttl_curve_scan *s, const uint32_t *blocks, uint32_t count, int64_t now)
{
    for (uint32_t i = 0; i < count; i++)
        s->depth[i] = needed(s, blocks[i], now);
    for (size_t m = 0; m < s->match_count; m++) {
        if (s->matches[m].kind == TIERCE__MATCH_STREAM)
            continue;
        tierce__match_costs(&s->matches[m], s->depth, count, s->cost);
        for (uint32_t i = 0; i < count; i++) {
            if (s->cost[i] != NEVER)
                s->counts[m * s->ttl_count + s->cost[i]]++;
        }
    }
}

static void touch(struct ttl_curve_scan *s, uint32_t block, bool is_read, int64_t now)
{
    for (size_t m = 0; is_read && m < s->match_count; m++) {
        if (s->matches[m].kind != TIERCE__MATCH_STREAM)
            continue;
        uint32_t depth = needed(s, block, now);
        if (depth != NEVER)
            s->counts[m * s->ttl_count + depth]++;
    }
    s->used_us[block] = now;
}

static int run(struct ttl_curve_scan *s, const struct tierce__recording *recording)
{
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        const uint32_t *blocks = tierce__recorded_blocks(r);
        int64_t now = r->time_us > 0 ? r->time_us : 0;
        if (r->stored < r->count)
            return TIERCE_E_ARGUMENT;
        look_up(s, blocks, r->read_count, now);
        for (uint32_t i = 0; i < r->count; i++) {
            uint32_t at = s->order == TIERCE__TOUCH_REV ? r->count - 1 - i : i;
            touch(s, blocks[at], at < r->read_count, now);
        }
    }
    return 0;
}

/* Each time to live keeps the blocks of the shorter ones, and its own. */
static void sum_up(const struct ttl_curve_scan *s, const uint64_t *ttls, uint64_t *hits)
{
    for (size_t m = 0; m < s->match_count; m++) {
        uint64_t *counts = s->counts + m * s->ttl_count;
        for (size_t i = 1; i < s->ttl_count; i++)
            counts[i] += counts[i - 1];
        for (size_t t = 0; t < s->ttl_count; t++) {
            size_t last = s->ttl_count;
            while (s->ttls[last - 1] > ttls[t])
                last--;
            TIERCE_DASSERT(last > 0);
            hits[m * s->ttl_count + t] = counts[last - 1];
        }
    }
}

static int compare_times(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

int tierce__ttl_curve(const struct tierce__recording *recording, enum tierce__touch_order order,
                      const struct tierce__match *matches, size_t match_count, const uint64_t *ttls,
                      size_t ttl_count, uint64_t *hits)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    struct ttl_curve_scan s = {
        .order = order, .matches = matches, .match_count = match_count, .ttl_count = ttl_count};
    if (ttl_count == 0)
        return 0;
    for (size_t t = 0; t < ttl_count; t++) {
        if (ttls[t] == 0)
            return TIERCE_E_ARGUMENT;
    }
    int rc = -ENOMEM;
    s.ttls = tierce__alloc(ttl_count * sizeof(*s.ttls));
    s.used_us = tierce__alloc(((size_t)totals.distinct + 1) * sizeof(*s.used_us));
    s.depth = tierce__alloc(((size_t)totals.longest + 1) * sizeof(*s.depth));
    s.cost = tierce__alloc(((size_t)totals.longest + 1) * sizeof(*s.cost));
    s.counts = tierce__calloc(match_count * ttl_count, sizeof(*s.counts));
    if (s.ttls == NULL || s.used_us == NULL || s.depth == NULL || s.cost == NULL ||
        s.counts == NULL)
        goto out;
    memcpy(s.ttls, ttls, ttl_count * sizeof(*ttls));
    qsort(s.ttls, ttl_count, sizeof(*s.ttls), compare_times);
    for (uint32_t i = 0; i < totals.distinct; i++)
        s.used_us[i] = NO_TIME_YET;
    rc = run(&s, recording);
    if (rc == 0)
        sum_up(&s, ttls, hits);
out:
    tierce__free(s.ttls);
    tierce__free(s.used_us);
    tierce__free(s.depth);
    tierce__free(s.cost);
    tierce__free(s.counts);
    return rc;
}
