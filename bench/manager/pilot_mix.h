/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BENCH_PILOT_MIX_H
#define TIERCE_BENCH_PILOT_MIX_H

#include "bench/manager/ghost_load.h"
#include "optimizer/trace/recording.h"

#include <math.h>

/* Made-up tenants whose load shifts, as one recording with an instance for each tenant. */

struct pilot_tenant {
    unsigned sessions, prompts, turns; /* as of ghost_load.h; turns 1: nothing is used again */
    double rate;                       /* requests a second, on average */
    double depth;                      /* 0: the same all the time; 1: it stops now and then */
    double period_s, phase;            /* of the change; a phase is 0 to 1 */
    bool is_square;                    /* the rate changes at once, or like a sine */
};

struct pilot_mix {
    uint64_t seed;
    double hours;
    struct pilot_tenant tenants[4];
    size_t count;
};

static inline double pilot_rate(const struct pilot_tenant *tenant, double at_s)
{
    double wave = sin(2 * M_PI * (at_s / tenant->period_s + tenant->phase));
    if (tenant->is_square)
        wave = wave >= 0 ? 1 : -1;
    return tenant->rate * (1 + tenant->depth * wave);
}

static inline int pilot_add(struct tierce__recording *recording, uint32_t instance, double at_s,
                            const uint64_t *keys, size_t count)
{
    struct tierce__trace_request request = {.time_us = (int64_t)(at_s * 1e6),
                                            .instance = instance,
                                            .kind = TIERCE__TRACE_TURN,
                                            .count = (uint32_t)count,
                                            .read_count = (uint32_t)count,
                                            .blocks = keys};
    return tierce__recording_add(recording, &request);
}

/* The caller destroys it. Errors, *out untouched: those of recording.h. */
TIERCE_MUSTUSE static inline int pilot_record(struct tierce__recording **out,
                                              const struct pilot_mix *mix)
{
    struct ghost_load loads[4] = {0};
    struct tierce__recording *recording;
    double due[4] = {0};
    size_t next[4] = {0};
    int rc = tierce__recording_create(&recording, NULL);
    if (rc < 0)
        return rc;
    for (size_t t = 0; t < mix->count; t++) {
        const struct pilot_tenant *tenant = &mix->tenants[t];
        size_t requests = (size_t)(tenant->rate * (1 + tenant->depth) * mix->hours * 3600) + 1;
        ghost_load_make(&loads[t], &(struct ghost_load_opts){.seed = mix->seed * 31 + t,
                                                             .requests = requests,
                                                             .sessions = tenant->sessions,
                                                             .prompts = tenant->prompts,
                                                             .turns = tenant->turns});
    }
    for (double at = 0; rc == 0 && at < mix->hours * 3600; at++) {
        for (uint32_t t = 0; t < mix->count; t++) {
            for (due[t] += pilot_rate(&mix->tenants[t], at); rc == 0 && due[t] >= 1; due[t]--) {
                size_t count;
                const uint64_t *keys = ghost_load_at(&loads[t], next[t]++, &count);
                rc = pilot_add(recording, t, at, keys, count);
            }
        }
    }
    for (size_t t = 0; t < mix->count; t++)
        ghost_load_free(&loads[t]);
    return tierce__recording_end(recording, rc, out);
}

/* Between two values. */
static inline double pilot_draw(uint64_t *random, double least, double most)
{
    return least + (most - least) * (double)(tierce__random_next(random) >> 11) * 0x1p-53;
}

/* Three tenants of random sizes, rates and times. */
static inline struct pilot_mix pilot_mix_of(uint64_t seed, double hours)
{
    struct pilot_mix mix = {.seed = seed, .hours = hours, .count = 3};
    uint64_t random = seed * TIERCE__MIX_GOLDEN;
    for (size_t t = 0; t < mix.count; t++) {
        mix.tenants[t] = (struct pilot_tenant){
            .sessions = (unsigned)pow(10, pilot_draw(&random, 0.7, 2.3)),
            .prompts = (unsigned)pow(10, pilot_draw(&random, 0.3, 2)),
            .turns = 2 + (unsigned)pilot_draw(&random, 0, 14),
            .rate = pow(10, pilot_draw(&random, -1.3, -0.5)),
            .depth = pilot_draw(&random, 0, 1),
            .period_s = 3600 * pilot_draw(&random, 4, 16),
            .phase = pilot_draw(&random, 0, 1),
            .is_square = tierce__random_next(&random) >> 63,
        };
    }
    return mix;
}

#endif
