/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/live.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/curve.h"

#include <errno.h>
#include <string.h>

#define LIVE_MAGIC 0x4c495632u

struct tierce__live_curve {
    uint32_t magic;
    struct tierce__intern *intern;
    struct tierce__curve *curve;
    struct tierce__cache lru;
    size_t match_count;
    struct tierce__match matches[TIERCE__CURVE_MATCHES_MAX];
    struct tierce__recording_totals totals;
    uint32_t *numbers; /* [number_room] of one request */
    uint32_t number_room;
};

int tierce__live_curve_create(struct tierce__live_curve **out, const struct tierce__match *matches,
                              size_t match_count)
{
    struct tierce__live_curve *live = tierce__calloc(1, sizeof(*live));
    if (live == NULL)
        return -ENOMEM;
    live->magic = LIVE_MAGIC;
    int rc = tierce__cache_find(&live->lru, "lru");
    if (rc == 0)
        rc = tierce__curve_create(&live->curve, TIERCE__TOUCH_REV, matches, match_count);
    if (rc == 0)
        rc = tierce__intern_create(&live->intern);
    if (rc < 0) {
        tierce__live_curve_destroy(live);
        return rc;
    }
    live->match_count = match_count;
    memcpy(live->matches, matches, match_count * sizeof(*matches));
    *out = live;
    return 0;
}

void tierce__live_curve_destroy(struct tierce__live_curve *live)
{
    if (live == NULL)
        return;
    TIERCE_CHECK_MAGIC(live, LIVE_MAGIC);
    tierce__curve_destroy(live->curve);
    tierce__intern_destroy(live->intern);
    tierce__free(live->numbers);
    live->magic = 0;
    tierce__free(live);
}

static int make_numbers(struct tierce__live_curve *live,
                        const struct tierce__trace_request *request)
{
    if (request->count > live->number_room) {
        uint32_t *numbers =
            tierce__realloc(live->numbers, (size_t)request->count * sizeof(*numbers));
        if (numbers == NULL)
            return -ENOMEM;
        live->numbers = numbers;
        live->number_room = request->count;
    }
    return tierce__intern_chain(live->intern, request->instance, request->blocks, request->count,
                                live->numbers);
}

int tierce__live_curve_add(struct tierce__live_curve *live,
                           const struct tierce__trace_request *request)
{
    TIERCE_CHECK_MAGIC(live, LIVE_MAGIC);
    if (request->kind == TIERCE__TRACE_DROP)
        return 0;
    struct tierce__recording_totals *t = &live->totals;
    uint32_t read_count = request->kind == TIERCE__TRACE_WRITE ? 0 : request->read_count;
    int rc = make_numbers(live, request);
    if (rc == 0)
        rc = tierce__curve_request(live->curve, live->numbers, request->count, read_count);
    if (rc < 0)
        return rc;
    if (t->requests++ == 0)
        t->first_us = request->time_us;
    t->last_us = request->time_us;
    t->blocks += request->count;
    t->read_blocks += read_count;
    t->longest = request->count > t->longest ? request->count : t->longest;
    t->instances = request->instance >= t->instances ? request->instance + 1 : t->instances;
    t->has_reads = t->has_reads || request->kind == TIERCE__TRACE_READ;
    return 0;
}

struct tierce__recording_totals tierce__live_curve_totals(const struct tierce__live_curve *live)
{
    TIERCE_CHECK_MAGIC(live, LIVE_MAGIC);
    struct tierce__recording_totals totals = live->totals;
    totals.distinct = tierce__intern_count(live->intern);
    return totals;
}

int tierce__live_curve_sweep(const struct tierce__live_curve *live, struct tierce__sweep *out,
                             const uint64_t *capacities, size_t count)
{
    TIERCE_CHECK_MAGIC(live, LIVE_MAGIC);
    struct tierce__sweep_row *rows = tierce__calloc(count * live->match_count + 1, sizeof(*rows));
    if (rows == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count * live->match_count; i++) {
        size_t m = i % live->match_count;
        uint64_t capacity = capacities[i / live->match_count];
        rows[i] = (struct tierce__sweep_row){
            .cache = &live->lru,
            .has_order = true,
            .order = TIERCE__TOUCH_REV,
            .match = live->matches[m],
            .capacity = capacity,
            .capacity_index = i / live->match_count,
            .requests = live->totals.requests,
            .blocks = live->totals.read_blocks,
            .hits = tierce__curve_hits(live->curve, m, capacity),
        };
    }
    *out = (struct tierce__sweep){.rows = rows, .row_count = count * live->match_count};
    return 0;
}
