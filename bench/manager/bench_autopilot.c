/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hits that the autopilot reaches with one budget for three tenants whose load shifts (value),
 * against the best split that stays the same, known in hindsight (limit), and beside equal parts
 * (peer). Each case names the seed of its tenants. No constant of the autopilot was chosen with
 * these seeds.
 */
#include "bench/bench.h"

#include <stdio.h>

#include "bench/manager/pilot_mix.h"
#include "manager/pilot/rehearsal.h"

#define HOURS       24
#define HOURS_QUICK 1

struct autopilot_case {
    const char *name;
    uint64_t seed;
    uint64_t budget; /* blocks; 0: 1,024 to 8,192, from the seed */
    bool stops;      /* the load of each tenant comes and goes at once */
};

static const struct autopilot_case cases[] = {
    {"shifts", 4000, 0, false},
    {"shifts", 4001, 0, false},
    {"shifts", 4002, 0, false},
    {"stops", 4003, 0, true},
    {"stops", 4004, 0, true},
    {"stops", 4005, 0, true},
    {"shifts; 30 blocks", 4006, 30, false},
    {"shifts; 30 blocks", 4007, 30, false},
    {"shifts; 120 blocks", 4008, 120, false},
};

static int rehearse(struct tierce__rehearsal *out, const struct tierce__bench *bench,
                    const struct autopilot_case *c)
{
    static const struct tierce__group_spec specs[] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
    static const uint32_t group_of[] = {0, 1, 2};
    struct pilot_mix mix = pilot_mix_of(c->seed, bench->seconds >= 1 ? HOURS : HOURS_QUICK);
    struct tierce__recording *recording;
    uint64_t random = c->seed + 77;
    for (size_t t = 0; c->stops && t < mix.count; t++) {
        mix.tenants[t].depth = 1;
        mix.tenants[t].is_square = true;
    }
    int rc = pilot_record(&recording, &mix);
    if (rc < 0)
        return rc;
    struct tierce__rehearsal_opts opts = {
        .size = sizeof(opts),
        .groups = specs,
        .group_count = mix.count,
        .group_of = group_of,
        .budget = c->budget != 0 ? c->budget : (uint64_t)pow(2, pilot_draw(&random, 10, 13)),
        .seed = mix.seed};
    rc = tierce__rehearse(out, recording, &opts);
    tierce__recording_destroy(recording);
    return rc;
}

static double share_of(uint64_t hits, const struct tierce__rehearsal *r)
{
    return r->blocks > 0 ? 100.0 * (double)hits / (double)r->blocks : 0;
}

int tierce__bench_autopilot(const struct tierce__bench *bench)
{
    int rc = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && rc == 0; i++) {
        struct tierce__rehearsal r;
        char name[64];
        rc = rehearse(&r, bench, &cases[i]);
        if (rc < 0)
            return rc;
        snprintf(name, sizeof(name), "%s; seed %llu", cases[i].name,
                 (unsigned long long)cases[i].seed);
        tierce__bench_emit(bench,
                           &(struct tierce__bench_row){.case_name = name,
                                                       .unit = "% hits",
                                                       .value = share_of(r.act_hits, &r),
                                                       .limit = share_of(r.best_hits, &r),
                                                       .goal = 0.9,
                                                       .peer = "equal parts",
                                                       .peer_value = share_of(r.equal_hits, &r)});
        tierce__rehearsal_clear(&r);
    }
    return rc;
}
