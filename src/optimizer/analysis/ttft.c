/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/ttft.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <math.h>

/* Step i holds from LEAST_S * STEP^i seconds on; the last one all that is longer: 10^6 seconds. */
#define LEAST_S 1e-6
#define STEP    1.01
#define STEPS   2778u

struct tierce__latencies {
    struct tierce__setup setup;
    double steps_per_e;   /* 1 / ln(STEP) */
    uint64_t none[STEPS]; /* requests by their step, without a cache */
    uint64_t *rows;       /* [row_count][STEPS]; NULL before a sweep begins */
    bool *is_watched;     /* [row_count] */
    size_t row_count;
};

static void count(const struct tierce__latencies *l, uint64_t *steps, double seconds)
{
    double step = floor(log(seconds / LEAST_S) * l->steps_per_e);
    steps[step > 0 ? step < STEPS - 1 ? (uint32_t)step : STEPS - 1 : 0]++;
}

/* The request with `hits` blocks in the cache. */
static void count_request(const struct tierce__latencies *l, uint64_t *steps,
                          const struct tierce__recorded *request, uint32_t hits)
{
    uint32_t held = tierce__recorded_held(request), block_tokens = l->setup.block_tokens;
    double n = (double)tierce__recorded_input(request, block_tokens);
    double i = (double)tierce__recorded_tokens(request, held, block_tokens);
    double p = (double)tierce__recorded_tokens(request, hits > held ? hits : held, block_tokens);
    count(l, steps, tierce__ttft_seconds(&l->setup, n, p, i));
}

static int begin(void *arg, const struct tierce__sweep *sweep)
{
    struct tierce__latencies *l = arg;
    TIERCE_ASSERT(l->rows == NULL && sweep->block_tokens == l->setup.block_tokens);
    l->rows = tierce__calloc(sweep->row_count + 1, STEPS * sizeof(*l->rows));
    l->is_watched = tierce__calloc(sweep->row_count + 1, sizeof(*l->is_watched));
    if (l->rows == NULL || l->is_watched == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < sweep->row_count; i++)
        l->is_watched[i] = sweep->rows[i].has_tokens;
    l->row_count = sweep->row_count;
    return 0;
}

static void lookup(void *arg, size_t row, const struct tierce__recorded *request, uint32_t hits)
{
    const struct tierce__latencies *l = arg;
    if (l->is_watched[row])
        count_request(l, l->rows + row * STEPS, request, hits);
}

struct tierce__watch tierce__latencies_watch(struct tierce__latencies *latencies)
{
    return (struct tierce__watch){.arg = latencies, .begin = begin, .lookup = lookup};
}

int tierce__latencies_create(struct tierce__latencies **out, const struct tierce__setup *setup,
                             const struct tierce__recording *recording)
{
    TIERCE_ASSERT(setup->block_tokens > 0);
    struct tierce__latencies *l = tierce__calloc(1, sizeof(*l));
    if (l == NULL)
        return -ENOMEM;
    l->setup = *setup;
    l->steps_per_e = 1 / log(STEP);
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        if (r->read_count > 0)
            count_request(l, l->none, r, 0);
    }
    *out = l;
    return 0;
}

void tierce__latencies_destroy(struct tierce__latencies *latencies)
{
    if (latencies == NULL)
        return;
    tierce__free(latencies->rows);
    tierce__free(latencies->is_watched);
    tierce__free(latencies);
}

double tierce__latencies_at(const struct tierce__latencies *latencies, size_t row, double share)
{
    bool is_none = row == TIERCE__NO_CACHE;
    TIERCE_ASSERT(is_none || row < latencies->row_count);
    const uint64_t *steps = is_none ? latencies->none : latencies->rows + row * STEPS;
    uint64_t all = 0, seen = 0;
    for (uint32_t i = 0; i < STEPS; i++)
        all += steps[i];
    for (uint32_t i = 0; i < STEPS; i++) {
        seen += steps[i];
        if (seen > 0 && (double)seen >= share * (double)all)
            return LEAST_S * pow(STEP, i + 0.5);
    }
    return NAN;
}
