/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/live/live.h"
#include "optimizer/replay/scale.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define SAMPLE_BLOCKS (1u << 17)

/* ---- ageing ---------------------------------------------------------------------------------- */

/* Sums of a sweep's rows, in which each lookup counts by its age. */
struct weigher {
    const struct tierce__live_picture *picture;
    double *blocks, *hits; /* [row_count] */
};

static double weight_of(const struct tierce__live_picture *picture,
                        const struct tierce__recorded *request)
{
    int64_t now_us = picture->now_us[request->instance];
    double age_us = now_us > request->time_us ? (double)now_us - (double)request->time_us : 0;
    return picture->fade_us > 0 ? exp2(-age_us / (double)picture->fade_us) : 1;
}

static int begin_weighing(void *arg, const struct tierce__sweep *sweep)
{
    struct weigher *weigher = arg;
    weigher->blocks = tierce__calloc(sweep->row_count + 1, sizeof(*weigher->blocks));
    weigher->hits = tierce__calloc(sweep->row_count + 1, sizeof(*weigher->hits));
    return weigher->blocks != NULL && weigher->hits != NULL ? 0 : -ENOMEM;
}

static void weigh(void *arg, size_t row, const struct tierce__recorded *request, uint32_t hits)
{
    struct weigher *weigher = arg;
    double weight = weight_of(weigher->picture, request);
    weigher->blocks[row] += weight * request->read_count;
    weigher->hits[row] += weight * hits;
}

/* Lookups of MATCH_STREAM are not observed and have equal weight. A weight is a share of one; sums
 * are in thousandths, so that a few old requests still yield a rate. */
static void put_weights(const struct weigher *weigher, struct tierce__sweep *sweep)
{
    for (size_t i = 0; i < sweep->row_count; i++) {
        struct tierce__sweep_row *row = &sweep->rows[i];
        if (row->match.kind == TIERCE__MATCH_STREAM)
            continue;
        row->blocks = (uint64_t)llround(1000 * weigher->blocks[i]);
        row->hits = (uint64_t)llround(1000 * weigher->hits[i]);
        TIERCE_DASSERT(row->cache->kind == TIERCE__CACHE_KVCM || row->hits <= row->blocks);
    }
}

/* A sweep with each lookup weighted by its age. */
static int run(struct tierce__sweep *out, const struct tierce__live_picture *picture,
               const struct tierce__recording *recording, const struct tierce__sweep_opts *opts)
{
    struct weigher weigher = {.picture = picture};
    struct tierce__watch watch = {.arg = &weigher, .begin = begin_weighing, .lookup = weigh};
    struct tierce__sweep_opts watched = *opts;
    if (picture->fade_us == 0)
        return tierce__sweep_run(out, recording, opts);
    watched.watches = &watch;
    watched.watch_count = 1;
    int rc = tierce__sweep_run(out, recording, &watched);
    if (rc == 0)
        put_weights(&weigher, out);
    tierce__free(weigher.blocks);
    tierce__free(weigher.hits);
    return rc;
}

/* ---- a part of the window -------------------------------------------------------------------- */

static bool is_lru(const struct tierce__cache *cache)
{
    return strcmp(cache->name, "lru") == 0;
}

/* Capacities of the part, as many as of the whole. */
static uint64_t *scale_capacities(const struct tierce__sweep_opts *opts, double share)
{
    uint64_t *capacities = tierce__calloc(opts->capacity_count + 1, sizeof(*capacities));
    for (size_t i = 0; capacities != NULL && i < opts->capacity_count; i++)
        capacities[i] = tierce__scale_capacity(opts->capacities[i], share);
    return capacities;
}

static const struct tierce__sweep_row *find_row(const struct tierce__sweep *sweep,
                                                const struct tierce__sweep_row *like)
{
    for (size_t i = 0; i < sweep->row_count; i++) {
        const struct tierce__sweep_row *row = &sweep->rows[i];
        if (tierce__sweep_same_line(row, like) && row->capacity_index == like->capacity_index)
            return row;
    }
    return NULL;
}

/* Replaces the rows of LRU over the part by those over the whole window, and computes their
 * difference. */
static void merge(struct tierce__live_result *out, const struct tierce__sweep *lru,
                  const struct tierce__sweep_opts *opts)
{
    size_t count = 0;
    for (size_t i = 0; i < out->sweep.row_count; i++) {
        struct tierce__sweep_row *row = &out->sweep.rows[i];
        const struct tierce__sweep_row *exact = is_lru(row->cache) ? find_row(lru, row) : NULL;
        TIERCE_ASSERT(row->cache->kind == TIERCE__CACHE_INFINITE ||
                      row->capacity_index < opts->capacity_count);
        if (row->cache->kind != TIERCE__CACHE_INFINITE)
            row->capacity = opts->capacities[row->capacity_index];
        if (exact == NULL)
            continue;
        double error = fabs(tierce__sweep_rate(row) - tierce__sweep_rate(exact));
        TIERCE_DASSERT(error <= 1);
        out->error_mean += error;
        out->error_max = fmax(out->error_max, error);
        count++;
        *row = *exact;
    }
    out->error_mean /= count > 0 ? (double)count : 1;
}

/* LRU over the whole window; all caches over the part, with proportionally smaller capacities. */
static int run_part(struct tierce__live_result *out, const struct tierce__live_picture *picture,
                    const struct tierce__recording *part, const struct tierce__sweep_opts *opts)
{
    struct tierce__sweep_opts scaled = *opts;
    struct tierce__sweep lru = {0};
    size_t lru_at = 0;
    uint64_t *capacities = scale_capacities(opts, out->share);
    int rc = capacities != NULL ? 0 : -ENOMEM;
    while (lru_at < opts->cache_count && !is_lru(&opts->caches[lru_at]))
        lru_at++;
    scaled.capacities = capacities;
    if (rc == 0)
        rc = run(&out->sweep, picture, part, &scaled);
    scaled = *opts;
    scaled.caches = opts->caches + lru_at;
    scaled.cache_count = 1;
    if (rc == 0 && lru_at < opts->cache_count)
        rc = run(&lru, picture, picture->recording, &scaled);
    if (rc == 0)
        merge(out, &lru, opts);
    tierce__sweep_clear(&lru);
    tierce__free(capacities);
    return rc;
}

static bool are_lru(const struct tierce__sweep_opts *opts)
{
    for (size_t i = 0; i < opts->cache_count; i++) {
        if (!is_lru(&opts->caches[i]))
            return false;
    }
    return true;
}

/* Draws about `sample_blocks` blocks of a larger window. *out stays NULL if all of it is replayed,
 * also if nothing was drawn, which may happen with few conversations. */
static int draw_part(struct tierce__recording **out, const struct tierce__live_picture *picture,
                     const struct tierce__sweep_opts *opts, uint64_t sample_blocks)
{
    uint64_t blocks = tierce__recording_totals(picture->recording).blocks;
    if (are_lru(opts) || blocks <= sample_blocks)
        return 0;
    double rate = (double)sample_blocks / (double)blocks;
    int rc = tierce__scale_draw(out, picture->recording, rate, opts->seed, opts->folder);
    if (rc == 0 && tierce__recording_totals(*out).requests == 0) {
        tierce__recording_destroy(*out);
        *out = NULL;
    }
    return rc;
}

int tierce__live_sweep(struct tierce__live_result *out, const struct tierce__live_picture *picture,
                       const struct tierce__sweep_opts *opts, uint64_t sample_blocks)
{
    struct tierce__live_result result = {.share = 1};
    struct tierce__recording *part = NULL;
    int rc = draw_part(&part, picture, opts, sample_blocks > 0 ? sample_blocks : SAMPLE_BLOCKS);
    if (rc == 0 && part == NULL) {
        rc = run(&result.sweep, picture, picture->recording, opts);
    } else if (rc == 0) {
        result.share = (double)tierce__recording_totals(part).distinct /
                       tierce__recording_totals(picture->recording).distinct;
        TIERCE_ASSERT(result.share <= 1);
        rc = run_part(&result, picture, part, opts);
    }
    tierce__recording_destroy(part);
    if (rc == 0)
        *out = result;
    else
        tierce__live_result_clear(&result);
    return rc;
}

void tierce__live_result_clear(struct tierce__live_result *result)
{
    tierce__sweep_clear(&result->sweep);
    *result = (struct tierce__live_result){0};
}
