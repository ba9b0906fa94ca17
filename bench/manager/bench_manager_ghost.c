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
#include "base/arena.h"
#include "base/clock.h"
#include "bench/manager/bench_startup.h"
#include "manager/locate/locator.h"
#include "manager/registry/registry.h"
#include "manager/storage/storages.h"

enum { GHOST_CHAINS = 4096, GHOST_CHAIN_KEYS = 128, GHOST_GETS = 2000 };

#define GHOST_INSTANCE "bench"
#define GHOST_WARM_NS  (3 * UINT64_C(1000000000))

struct ghost_side {
    struct tierce__ghosts *ghost; /* or NULL */
    struct tierce__registry *registry;
    struct tierce__storages *storages;
    struct tierce__locator *locator;
    struct tierce__arena arena;
    uint64_t draws;
    uint64_t process_ns; /* of the rounds that have run */
    char why[TIERCE__WHY_BYTES];
};

static uint64_t process_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void name_keys(uint64_t chain, int64_t keys[GHOST_CHAIN_KEYS])
{
    for (uint64_t i = 0; i < GHOST_CHAIN_KEYS; i++)
        keys[i] = (int64_t)tierce__bench_random(31, chain * GHOST_CHAIN_KEYS + i);
}

/* ---- a locator ------------------------------------------------------------------------------ */

static int open_registry(struct ghost_side *side, const char *folder)
{
    char spec[4160], *text = NULL;
    size_t bytes = 0;
    snprintf(spec, sizeof(spec), "{\"root_path\": \"%s/\", \"key_count_per_file\": 8}", folder);
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return -ENOMEM;
    int printed = tierce__bench_startup_print(
        out,
        &(struct tierce__bench_startup){
            .type = "file", .spec = spec, .index_kind = "local", .index_uri = "", .shards = 16});
    if (fclose(out) != 0 || printed < 0) {
        free(text);
        return -ENOMEM;
    }
    int rc = tierce__registry_open(
        &side->registry,
        &(struct tierce__registry_opts){.size = sizeof(struct tierce__registry_opts), .uri = ""},
        side->why);
    if (rc == 0)
        rc = tierce__registry_load(side->registry, 1, side->why);
    if (rc == 0)
        rc = tierce__registry_startup(side->registry, text, side->why);
    free(text);
    return rc;
}

static int add_instance(struct ghost_side *side)
{
    char id[] = GHOST_INSTANCE, group[] = TIERCE__BENCH_GROUP, spec_name[] = "tp0", none[] = "",
         model[] = "m", dtype[] = "bf16";
    struct tierce__spec_info spec = {spec_name, 4 << 20};
    struct tierce__instance instance = {
        .id = id,
        .group_name = group,
        .quota_group_name = none,
        .block_size = 16,
        .specs = &spec,
        .spec_count = 1,
        .user_data = none,
        .model = {.model_name = model,
                  .dtype = dtype,
                  .lora_name = none,
                  .extra = none,
                  .user_data = none},
    };
    int rc = tierce__registry_add_instance(side->registry, &instance, side->why);
    return rc < 0 ? rc : tierce__locator_add_instance(side->locator, GHOST_INSTANCE, side->why);
}

static int open_locator(struct ghost_side *side, const char *folder)
{
    int rc = open_registry(side, folder);
    if (rc >= 0)
        rc = tierce__storages_open(
            &side->storages,
            &(struct tierce__storages_opts){.size = sizeof(struct tierce__storages_opts),
                                            .registry = side->registry});
    if (rc == 0)
        rc = tierce__locator_open(&side->locator, &(struct tierce__locator_opts){
                                                      .size = sizeof(struct tierce__locator_opts),
                                                      .registry = side->registry,
                                                      .storages = side->storages,
                                                      .ghost = side->ghost});
    if (rc == 0)
        rc = tierce__locator_recover(side->locator, 1, side->why);
    return rc < 0 ? rc : add_instance(side);
}

static void close_side(struct ghost_side *side)
{
    tierce__arena_clear(&side->arena);
    tierce__locator_close(side->locator);
    tierce__ghosts_destroy(side->ghost);
    tierce__storages_close(side->storages);
    tierce__registry_close(side->registry);
}

/* Stores all chains. */
static int fill(struct ghost_side *side)
{
    int rc = 0;
    for (uint64_t chain = 0; rc == 0 && chain < GHOST_CHAINS; chain++) {
        int64_t keys[GHOST_CHAIN_KEYS];
        struct tierce__started started;
        name_keys(chain, keys);
        struct tierce__write_request request = {.instance_id = GHOST_INSTANCE,
                                                .keys = keys,
                                                .count = GHOST_CHAIN_KEYS,
                                                .timeout_s = 60};
        rc =
            tierce__locator_start_write(side->locator, &request, &side->arena, &started, side->why);
        struct tierce__mask all = {.offset = GHOST_CHAIN_KEYS};
        if (rc == 0)
            rc = tierce__locator_finish_write(side->locator, GHOST_INSTANCE, started.session, &all,
                                              side->why);
        tierce__arena_clear(&side->arena);
    }
    return rc;
}

/* ---- rounds --------------------------------------------------------------------------------- */

/* Lookups of chains, some more often than others. */
static int64_t get(void *arg)
{
    struct ghost_side *side = (struct ghost_side *)arg;
    int64_t keys[GHOST_CHAIN_KEYS];
    struct tierce__got got = {0};
    uint64_t start = tierce__now_ns(), process = process_ns();
    for (int i = 0; i < GHOST_GETS; i++) {
        uint64_t draw = tierce__bench_random(32, side->draws++);
        name_keys((draw >> 40) % GHOST_CHAINS * (draw % GHOST_CHAINS) / GHOST_CHAINS, keys);
        struct tierce__get_request request = {.instance_id = GHOST_INSTANCE,
                                              .query = TIERCE__QUERY_PREFIX,
                                              .keys = keys,
                                              .count = GHOST_CHAIN_KEYS};
        int rc = tierce__locator_get(side->locator, &request, &side->arena, &got, side->why);
        if (rc == 0 && got.count != GHOST_CHAIN_KEYS)
            snprintf(side->why, sizeof(side->why), "the locator found %zu of %d blocks", got.count,
                     GHOST_CHAIN_KEYS);
        if (rc < 0 || got.count != GHOST_CHAIN_KEYS)
            return rc < 0 ? rc : -EIO;
        tierce__arena_clear(&side->arena);
    }
    side->process_ns += process_ns() - process;
    return (int64_t)(tierce__now_ns() - start);
}

static void emit(const struct tierce__bench *bench, const struct tierce__bench_side *sides,
                 double share)
{
    double amount = GHOST_GETS * GHOST_CHAIN_KEYS * 1e3; /* ns to Mkeys/s */
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
    uint64_t warm_ns = tierce__now_ns() + GHOST_WARM_NS;
    while (tierce__now_ns() < warm_ns) { /* the sample adapts to the load */
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
        rc = open_locator(side, folder);
    return rc < 0 ? rc : fill(side);
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
        if (rc < 0 && sides[i].why[0] != '\0')
            rc = tierce__bench_fail(bench, "%s", sides[i].why);
        close_side(&sides[i]);
    }
    tierce__free(sides);
    return rc;
}
