/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of the ghost curves: lookups of 128 keys in a locator with a ghost beside one without,
 * and the share of the ghost's thread in the processor time of the process, which does nothing
 * else. A manager's calls also read and write messages, so the share is an upper bound.
 */
#include "bench/manager/bench_manager.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/manager/bench_locator.h"

enum { GHOST_CHAINS = 4096, GHOST_GETS = 2000 };

struct ghost_side {
    struct tierce__ghosts *ghost; /* or NULL */
    struct tierce__bench_locator base;
    uint64_t draws;
    uint64_t process_ns; /* of the rounds that have run */
};

static uint64_t process_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- rounds --------------------------------------------------------------------------------- */

/* Lookups of chains, some more often than others. */
static int64_t get(void *arg)
{
    struct ghost_side *side = (struct ghost_side *)arg;
    uint64_t start = tierce__now_ns(), process = process_ns();
    for (int i = 0; i < GHOST_GETS; i++) {
        uint64_t draw = tierce__bench_random(32, side->draws++);
        uint64_t chain = (draw >> 40) % GHOST_CHAINS * (draw % GHOST_CHAINS) / GHOST_CHAINS;
        int64_t ns = tierce__bench_locator_get(&side->base, chain, &side->base.arena);
        if (ns < 0)
            return ns;
    }
    side->process_ns += process_ns() - process;
    return (int64_t)(tierce__now_ns() - start);
}

static void emit(const struct tierce__bench *bench, const struct tierce__bench_side *sides,
                 double share)
{
    double amount = GHOST_GETS * TIERCE__BENCH_CHAIN_KEYS * 1e3; /* ns to Mkeys/s */
    struct tierce__bench_row row = {.case_name = "get 128 keys with ghost curves; beside none",
                                    .unit = "Mkeys/s",
                                    .value = amount / sides[0].median_ns,
                                    .value_min = amount / sides[0].max_ns,
                                    .value_max = amount / sides[0].min_ns,
                                    .limit = amount / sides[1].median_ns,
                                    .limit_min = amount / sides[1].max_ns,
                                    .limit_max = amount / sides[1].min_ns,
                                    .goal = 0.97};
    tierce__bench_emit(bench, &row);
    row = (struct tierce__bench_row){.case_name = "share of the ghost's thread",
                                     .unit = "%",
                                     .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                     .value = 100 * share,
                                     .limit = 1,
                                     .goal = 1};
    tierce__bench_emit(bench, &row);
}

static int measure(const struct tierce__bench *bench, struct ghost_side *with,
                   struct ghost_side *without)
{
    struct tierce__ghosts_stats before, after;
    struct tierce__bench_side sides[] = {{.run = get, .arg = with}, {.run = get, .arg = without}};
    uint64_t warm_ns = tierce__now_ns() + tierce__bench_warm_ns(bench);
    while (tierce__now_ns() < warm_ns) {
        int64_t rc = get(with);
        if (rc < 0)
            return (int)rc;
    }
    with->process_ns = 0;
    tierce__ghosts_stats(with->ghost, &before);
    int rc = tierce__bench_alternate(sides, 2, bench->seconds);
    tierce__ghosts_stats(with->ghost, &after);
    if (rc == 0)
        emit(bench, sides, (double)(after.cpu_ns - before.cpu_ns) / (double)with->process_ns);
    return rc;
}

static int open_side(struct ghost_side *side, bool has_ghost, const char *folder)
{
    int rc = has_ghost ? tierce__ghosts_create(
                             &side->ghost,
                             &(struct tierce__ghosts_opts){
                                 .size = sizeof(struct tierce__ghosts_opts), .has_thread = true})
                       : 0;
    if (rc == 0)
        rc = tierce__bench_locator_open(
            &side->base,
            &(struct tierce__bench_locator_opts){
                .folder = folder, .file_blocks = TIERCE__BENCH_FILE_BLOCKS, .ghost = side->ghost});
    return rc < 0 ? rc : tierce__bench_locator_fill(&side->base, 0, GHOST_CHAINS, NULL, NULL);
}

int tierce__bench_manager_ghost(const struct tierce__bench *bench)
{
    struct ghost_side *sides = tierce__calloc(2, sizeof(*sides));
    if (sides == NULL)
        return -ENOMEM;
    char *folder = realpath(bench->dir, NULL);
    int rc = folder != NULL ? open_side(&sides[0], true, folder) : -errno;
    if (rc == 0)
        rc = open_side(&sides[1], false, folder);
    free(folder);
    if (rc == 0)
        rc = measure(bench, &sides[0], &sides[1]);
    for (int i = 0; i < 2; i++) {
        if (rc < 0 && sides[i].base.why[0] != '\0')
            rc = tierce__bench_fail(bench, "%s", sides[i].base.why);
        tierce__bench_locator_close(&sides[i].base, sides[i].ghost);
    }
    tierce__free(sides);
    return rc;
}
