/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/scale.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "optimizer/trace/filter.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define SHARED_BY 100u /* a block in more than one of so many requests is not a root */

/* ---- drawing --------------------------------------------------------------------------------- */

struct scale_sample {
    uint32_t *through; /* [distinct] requests that name the block */
    uint64_t most;     /* that go through a root */
    double rate;
    uint64_t seed;
};

/* Not tierce__mix: a seed must draw the same requests as in earlier releases. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * TIERCE__MIX_SECOND;
    x = (x ^ (x >> 32)) * TIERCE__MIX_SECOND;
    return x ^ (x >> 32);
}

static bool is_drawn(void *arg, const struct tierce__recorded *request)
{
    const struct scale_sample *s = arg;
    const uint32_t *blocks = tierce__recorded_blocks(request);
    uint64_t root = request->session;
    if (root == 0 && request->count > 0) {
        uint32_t at = 0;
        while (at + 1 < request->count && s->through[blocks[at]] > s->most)
            at++;
        root = blocks[at];
    }
    uint64_t hash = mix(mix(root + 1) + request->instance + tierce__spread(s->seed));
    return (double)(hash >> 11) < s->rate * 0x1p53;
}

int tierce__scale_draw(struct tierce__recording **out, const struct tierce__recording *recording,
                       double rate, uint64_t seed, const char *folder)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    struct scale_sample s = {.most = totals.requests / SHARED_BY, .rate = rate, .seed = seed};
    s.through = tierce__calloc((size_t)totals.distinct + 1, sizeof(*s.through));
    if (s.through == NULL)
        return -ENOMEM;
    s.most = s.most > 0 ? s.most : 1;
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        for (uint32_t i = 0; i < r->count; i++)
            s.through[tierce__recorded_blocks(r)[i]]++;
    }
    int rc = tierce__recording_filter(out, recording, is_drawn, &s, folder);
    tierce__free(s.through);
    return rc;
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

uint64_t tierce__scale_capacity(uint64_t capacity, double share)
{
    TIERCE_DASSERT(share >= 0 && share <= 1);
    double scaled = (double)capacity * share;
    return capacity == TIERCE__CAPACITY_UNLIMITED ? capacity
           : scaled < 1                           ? 1
                                                  : (uint64_t)llround(scaled);
}

/* LRU, order rev; rates: [capacity_count][match_count], which is the order of its rows. */
static int run_lru(double *rates, const struct tierce__recording *recording,
                   const struct tierce__sweep_opts *opts)
{
    static const enum tierce__touch_order rev = TIERCE__TOUCH_REV;
    struct tierce__sweep_opts lru_opts = *opts;
    struct tierce__sweep sweep = {0};
    struct tierce__cache lru;
    int rc = tierce__cache_find(&lru, "lru");
    if (rc < 0)
        return rc;
    lru_opts.caches = &lru;
    lru_opts.cache_count = 1;
    lru_opts.orders = &rev;
    lru_opts.order_count = 1;
    lru_opts.progress = NULL;
    rc = tierce__sweep_run(&sweep, recording, &lru_opts);
    TIERCE_ASSERT(rc != 0 || sweep.row_count == opts->capacity_count * opts->match_count);
    for (size_t i = 0; rc == 0 && i < sweep.row_count; i++)
        rates[i] = tierce__sweep_rate(&sweep.rows[i]);
    tierce__sweep_clear(&sweep);
    return rc;
}

static void measure_error(struct tierce__scaled *out)
{
    size_t points = out->capacity_count * out->match_count;
    for (size_t i = 0; i < points; i++) {
        double error = fabs(out->lru_part[i] - out->lru_exact[i]);
        TIERCE_DASSERT(error <= 1);
        out->error_mean += error / (double)points;
        out->error_max = fmax(out->error_max, error);
    }
}

static int run_part(struct tierce__scaled *out, const struct tierce__recording *recording,
                    const struct tierce__recording *part, const struct tierce__sweep_opts *opts)
{
    struct tierce__sweep_opts part_opts = *opts;
    uint64_t *capacities = tierce__alloc((opts->capacity_count + 1) * sizeof(*capacities));
    if (capacities == NULL)
        return -ENOMEM;
    for (size_t c = 0; c < opts->capacity_count; c++)
        capacities[c] = tierce__scale_capacity(opts->capacities[c], out->share);
    part_opts.capacities = capacities;
    int rc = tierce__sweep_run(&out->sweep, part, &part_opts);
    if (rc == 0)
        rc = run_lru(out->lru_part, part, &part_opts);
    if (rc == 0)
        rc = run_lru(out->lru_exact, recording, opts);
    for (size_t i = 0; rc == 0 && i < out->sweep.row_count; i++) {
        struct tierce__sweep_row *row = &out->sweep.rows[i];
        if (row->cache->kind != TIERCE__CACHE_INFINITE)
            row->capacity = opts->capacities[row->capacity_index];
    }
    tierce__free(capacities);
    return rc;
}

int tierce__scale_run(struct tierce__scaled *out, const struct tierce__recording *recording,
                      double rate, const struct tierce__sweep_opts *opts)
{
    struct tierce__recording_totals all = tierce__recording_totals(recording), drawn;
    struct tierce__recording *part = NULL;
    size_t points = opts->capacity_count * opts->match_count;
    if (!(rate > 0 && rate <= 1))
        return TIERCE_E_ARGUMENT;
    int rc = tierce__scale_draw(&part, recording, rate, opts->seed, opts->folder);
    if (rc < 0)
        return rc;
    drawn = tierce__recording_totals(part);
    TIERCE_ASSERT(drawn.requests <= all.requests && drawn.distinct <= all.distinct);
    struct tierce__scaled scaled = {
        .requests = drawn.requests,
        .requests_all = all.requests,
        .distinct = drawn.distinct,
        .distinct_all = all.distinct,
        .rate = rate,
        .share = all.distinct > 0 ? (double)drawn.distinct / all.distinct : 0,
        .capacity_count = opts->capacity_count,
        .match_count = opts->match_count,
    };
    scaled.capacities = tierce__calloc(opts->capacity_count + 1, sizeof(*scaled.capacities));
    scaled.lru_part = tierce__calloc(points + 1, sizeof(*scaled.lru_part));
    scaled.lru_exact = tierce__calloc(points + 1, sizeof(*scaled.lru_exact));
    if (scaled.capacities == NULL || scaled.lru_part == NULL || scaled.lru_exact == NULL) {
        rc = -ENOMEM;
    } else if (drawn.requests > 0) {
        memcpy(scaled.capacities, opts->capacities,
               opts->capacity_count * sizeof(*scaled.capacities));
        rc = run_part(&scaled, recording, part, opts);
        measure_error(&scaled);
    }
    tierce__recording_destroy(part);
    if (rc == 0)
        *out = scaled;
    else
        tierce__scaled_clear(&scaled);
    return rc;
}

void tierce__scaled_clear(struct tierce__scaled *scaled)
{
    tierce__sweep_clear(&scaled->sweep);
    tierce__free(scaled->capacities);
    tierce__free(scaled->lru_part);
    tierce__free(scaled->lru_exact);
    *scaled = (struct tierce__scaled){0};
}
