/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/manager/bench_locator.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/clock.h"
#include "bench/manager/bench_startup.h"

static void name_keys(uint64_t chain, int64_t keys[TIERCE__BENCH_CHAIN_KEYS])
{
    for (uint64_t i = 0; i < TIERCE__BENCH_CHAIN_KEYS; i++)
        keys[i] = (int64_t)tierce__bench_random(31, chain * TIERCE__BENCH_CHAIN_KEYS + i);
}

static int open_registry(struct tierce__bench_locator *b,
                         const struct tierce__bench_locator_opts *opts)
{
    char spec[4160], *text = NULL;
    size_t bytes = 0;
    snprintf(spec, sizeof(spec), "{\"root_path\": \"%s/\", \"key_count_per_file\": %u}",
             opts->folder, opts->file_blocks);
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return -ENOMEM;
    int printed = tierce__bench_startup_print(
        out, &(struct tierce__bench_startup){
                 .type = opts->type != NULL ? opts->type : "file",
                 .spec = opts->spec != NULL ? opts->spec : spec,
                 .index_kind = opts->index_kind != NULL ? opts->index_kind : "local",
                 .index_uri = opts->index_uri != NULL ? opts->index_uri : "",
                 .shards = 256});
    if (fclose(out) != 0 || printed < 0) {
        free(text);
        return -ENOMEM;
    }
    int rc = tierce__registry_open(
        &b->registry,
        &(struct tierce__registry_opts){.size = sizeof(struct tierce__registry_opts), .uri = ""},
        b->why);
    if (rc == 0)
        rc = tierce__registry_load(b->registry, 1, b->why);
    if (rc == 0)
        rc = tierce__registry_startup(b->registry, text, b->why);
    free(text);
    return rc;
}

static int add_instance(struct tierce__bench_locator *b)
{
    char id[] = TIERCE__BENCH_INSTANCE, group[] = TIERCE__BENCH_GROUP, spec_name[] = "tp0",
         none[] = "", model[] = "m", dtype[] = "bf16";
    struct tierce__spec_info spec = {spec_name, TIERCE__BENCH_BLOCK_BYTES};
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
    int rc = tierce__registry_add_instance(b->registry, &instance, b->why);
    return rc < 0 ? rc : tierce__locator_add_instance(b->locator, TIERCE__BENCH_INSTANCE, b->why);
}

int tierce__bench_locator_open(struct tierce__bench_locator *out,
                               const struct tierce__bench_locator_opts *opts)
{
    int rc = open_registry(out, opts);
    if (rc >= 0)
        rc = tierce__storages_open(&out->storages, &(struct tierce__storages_opts){
                                                       .size = sizeof(struct tierce__storages_opts),
                                                       .registry = out->registry});
    if (rc == 0)
        rc = tierce__locator_open(&out->locator, &(struct tierce__locator_opts){
                                                     .size = sizeof(struct tierce__locator_opts),
                                                     .registry = out->registry,
                                                     .storages = out->storages,
                                                     .delete_threads = opts->delete_threads,
                                                     .ghost = opts->ghost});
    if (rc == 0)
        rc = tierce__locator_recover(out->locator, 1, out->why);
    return rc < 0 ? rc : add_instance(out);
}

void tierce__bench_locator_close(struct tierce__bench_locator *b, struct tierce__ghosts *ghost)
{
    tierce__arena_clear(&b->arena);
    tierce__locator_close(b->locator);
    tierce__ghosts_destroy(ghost);
    tierce__storages_close(b->storages);
    tierce__registry_close(b->registry);
}

int tierce__bench_locator_fill(struct tierce__bench_locator *b, uint64_t first, uint64_t chains,
                               tierce__bench_write_fn write, void *arg)
{
    int rc = 0;
    for (uint64_t chain = first; rc == 0 && chain < first + chains; chain++) {
        int64_t keys[TIERCE__BENCH_CHAIN_KEYS];
        struct tierce__started started;
        name_keys(chain, keys);
        struct tierce__write_request request = {.instance_id = TIERCE__BENCH_INSTANCE,
                                                .keys = keys,
                                                .count = TIERCE__BENCH_CHAIN_KEYS,
                                                .timeout_s = 60};
        struct tierce__mask all = {.offset = TIERCE__BENCH_CHAIN_KEYS};
        rc = tierce__locator_start_write(b->locator, &request, &b->arena, &started, b->why);
        if (rc == 0 && write != NULL)
            rc = write(arg, started.locations, started.count);
        if (rc == 0)
            rc = tierce__locator_finish_write(b->locator, TIERCE__BENCH_INSTANCE, started.session,
                                              &all, b->why);
        tierce__arena_clear(&b->arena);
    }
    return rc;
}

int64_t tierce__bench_locator_get(struct tierce__bench_locator *b, uint64_t chain,
                                  struct tierce__arena *arena)
{
    char why[TIERCE__WHY_BYTES] = "";
    int64_t keys[TIERCE__BENCH_CHAIN_KEYS];
    struct tierce__got got = {0};
    name_keys(chain, keys);
    struct tierce__get_request request = {.instance_id = TIERCE__BENCH_INSTANCE,
                                          .query = TIERCE__QUERY_PREFIX,
                                          .keys = keys,
                                          .count = TIERCE__BENCH_CHAIN_KEYS};
    uint64_t start = tierce__now_ns();
    int rc = tierce__locator_get(b->locator, &request, arena, &got, why);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    size_t count = got.count;
    tierce__arena_clear(arena);
    if (rc < 0 || count != TIERCE__BENCH_CHAIN_KEYS) {
        snprintf(b->why, sizeof(b->why), "the locator found %zu of %d blocks: %.100s", count,
                 TIERCE__BENCH_CHAIN_KEYS, why);
        return rc < 0 ? rc : -EIO;
    }
    return ns;
}
