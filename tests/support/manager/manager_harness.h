/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_MANAGER_HARNESS_H
#define TIERCE_TESTS_MANAGER_HARNESS_H

#include "check_main.h"
#include "manager/locate/locator_private.h"
#include "manager/registry/catalog.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * A locator on a clock of its own, with a registry in memory, one storage of files in a temporary
 * folder, and one instance "i" of group "g" (parts "a" and "b"; spec groups "A", "B" and "AB").
 */

struct harness {
    char folder[64];
    int64_t now_us;
    struct tierce__registry *registry;
    struct tierce__storages *storages;
    struct tierce__locator *locator;
    struct tierce__arena arena;
    char why[TIERCE__WHY_BYTES];
    char extra[TIERCE__ENGINE_EXTRA_BYTES]; /* of the instances that are added */
};

enum { PART_A_BYTES = 100, PART_B_BYTES = 50, BLOCK_BYTES = PART_A_BYTES + PART_B_BYTES };

static inline int64_t harness_now(void *arg)
{
    return ((struct harness *)arg)->now_us;
}

/* The next storage gets this number, as if storages had come and gone. */
static inline void harness_next_storage(struct harness *h, uint64_t number)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    ((struct tierce__catalog *)(uintptr_t)catalog)->next.storage = number;
    tierce__registry_release(h->registry, catalog);
}

struct harness_opts {
    int64_t capacity, type_capacity; /* bytes; 0: 1 GB */
    int keys_per_file;               /* 0: 1 */
    int64_t keys_max;                /* 0: 1000000 */
    double watermark;                /* 0: 1 */
    uint32_t delete_timeout_ms;      /* 0: 60000 */
    int policy, delay_ms;
    const char *meta_type, *meta_uri;
    int search_cache_mib;
    const struct tierce__storage_ops *(*find_driver)(enum tierce__storage_type); /* NULL: files */
    uint32_t delete_threads;
    struct tierce__ghosts *ghost;
    bool has_engines; /* the clients of "i" are engines of Tierce */
    uint64_t move_rate;
    uint64_t storage_number;                 /* of "s"; 0: 1 */
    const char *storage_type, *storage_spec; /* of the storage "s", as JSON; NULL: files */
};

static inline void harness_startup(struct harness *h, const struct harness_opts *o)
{
    char text[4096], files[160];
    const char *type = o->storage_type != NULL ? o->storage_type : "file";
    long long capacity = o->capacity > 0 ? o->capacity : 1000000000;
    snprintf(files, sizeof(files), "{\"root_path\":\"%s/\",\"key_count_per_file\":%d}", h->folder,
             o->keys_per_file > 0 ? o->keys_per_file : 1);
    snprintf(
        text, sizeof(text),
        "{\"storage_config\":{\"type\":\"%s\",\"is_available\":true,\"global_unique_name\":\"s\","
        "\"storage_spec\":%s},"
        "\"instance_group\":{\"name\":\"g\",\"storage_candidates\":[\"s\"],"
        "\"global_quota_group_name\":\"q\",\"max_instance_count\":10,\"version\":1,"
        "\"quota\":{\"capacity\":%lld,\"quota_config\":[{\"storage_type\":\"%s\","
        "\"capacity\":%lld}]},\"user_data\":\"\","
        "\"cache_config\":{\"reclaim_strategy\":{\"storage_unique_name\":\"s\","
        "\"reclaim_policy\":%d,\"trigger_strategy\":{\"used_size\":0,\"used_percentage\":%f},"
        "\"delay_before_delete_ms\":%d},\"cache_prefer_strategy\":0,"
        "\"meta_indexer_config\":{\"max_key_count\":%lld,\"mutex_shard_num\":16,"
        "\"batch_key_size\":16,\"meta_storage_backend_config\":{\"storage_type\":\"%s\","
        "\"storage_uri\":\"%s\"},\"meta_cache_policy_config\":{\"type\":\"LRU\","
        "\"capacity\":%d}}}}}",
        type, o->storage_spec != NULL ? o->storage_spec : files, capacity, type,
        o->type_capacity > 0 ? (long long)o->type_capacity : capacity,
        o->policy > 0 ? o->policy : 1, o->watermark > 0 ? o->watermark : 1.0, o->delay_ms,
        o->keys_max > 0 ? (long long)o->keys_max : 1000000LL,
        o->meta_type != NULL ? o->meta_type : "local", o->meta_uri != NULL ? o->meta_uri : "",
        o->search_cache_mib);
    int rc = tierce__registry_startup(h->registry, text, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

static inline void harness_open_locator(struct harness *h, const struct harness_opts *opts)
{
    int rc = tierce__locator_open(&h->locator, &(struct tierce__locator_opts){
                                                   .size = sizeof(struct tierce__locator_opts),
                                                   .registry = h->registry,
                                                   .storages = h->storages,
                                                   .now_us = harness_now,
                                                   .clock_arg = h,
                                                   .seed = 1,
                                                   .delete_threads = opts->delete_threads,
                                                   .ghost = opts->ghost,
                                                   .move_rate = opts->move_rate,
                                               });
    ck_assert_int_eq(rc, 0);
    rc = tierce__locator_recover(h->locator, 1, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

static inline void harness_add_instance_with(struct harness *h, const char *id,
                                             const char *group_name,
                                             const struct tierce__attention *attention)
{
    char group_a[] = "A", group_b[] = "B", group_ab[] = "AB", a[] = "a", b[] = "b", none[] = "",
         model[] = "m", dtype[] = "bf16", group[64], name[64];
    char *only_a[] = {a}, *only_b[] = {b}, *both[] = {a, b};
    snprintf(name, sizeof(name), "%s", id);
    snprintf(group, sizeof(group), "%s", group_name);
    struct tierce__spec_info specs[] = {{a, PART_A_BYTES}, {b, PART_B_BYTES}};
    struct tierce__spec_group groups[] = {
        {group_a, only_a, 1}, {group_b, only_b, 1}, {group_ab, both, 2}};
    struct tierce__instance instance = {
        .id = name,
        .group_name = group,
        .quota_group_name = none,
        .block_size = 4,
        .specs = specs,
        .spec_count = 2,
        .spec_groups = groups,
        .spec_group_count = 3,
        .user_data = none,
        .model = {.model_name = model,
                  .dtype = dtype,
                  .lora_name = none,
                  .extra = h->extra,
                  .user_data = none},
        .attention = *attention,
    };
    int rc = tierce__registry_add_instance(h->registry, &instance, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    rc = tierce__locator_add_instance(h->locator, id, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

static inline void harness_add_instance_of(struct harness *h, const char *id,
                                           const char *group_name)
{
    harness_add_instance_with(h, id, group_name, &(struct tierce__attention){0});
}

static inline void harness_add_instance(struct harness *h, const char *id)
{
    harness_add_instance_of(h, id, "g");
}

static inline void harness_open(struct harness *h, const struct harness_opts *opts)
{
    *h = (struct harness){.now_us = 1000000000000};
    snprintf(h->folder, sizeof(h->folder), "/tmp/tierce_managerXXXXXX");
    temp_folder_make(h->folder);
    ck_assert_int_eq(
        tierce__registry_open(&h->registry,
                              &(struct tierce__registry_opts){
                                  .size = sizeof(struct tierce__registry_opts), .uri = ""},
                              h->why),
        0);
    ck_assert_int_eq(tierce__registry_load(h->registry, 1, h->why), 0);
    if (opts->storage_number != 0)
        harness_next_storage(h, opts->storage_number);
    harness_startup(h, opts);
    const unsigned char digest[32] = {1};
    if (opts->has_engines)
        tierce__engine_extra(h->extra, digest, digest);
    ck_assert_int_eq(
        tierce__storages_open(
            &h->storages,
            &(struct tierce__storages_opts){
                .size = sizeof(struct tierce__storages_opts),
                .registry = h->registry,
                .probe_timeout_ms = opts->delete_timeout_ms != 0 ? opts->delete_timeout_ms : 60000,
                .find_ops = opts->find_driver}),
        0);
    harness_open_locator(h, opts);
    harness_add_instance(h, "i");
}

static inline void harness_close(struct harness *h)
{
    tierce__arena_clear(&h->arena);
    tierce__locator_close(h->locator);
    tierce__storages_close(h->storages);
    tierce__registry_close(h->registry);
    temp_folder_remove(h->folder);
}

/* Begins a write of keys; the result lives until the next harness_reset. */
static inline struct tierce__started harness_start(struct harness *h, const int64_t *keys,
                                                   size_t count)
{
    struct tierce__started started = {0};
    int rc = tierce__locator_start_write(
        h->locator,
        &(struct tierce__write_request){
            .instance_id = "i", .keys = keys, .count = count, .timeout_s = 30},
        &h->arena, &started, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    return started;
}

static inline void harness_finish(struct harness *h, const struct tierce__started *started)
{
    struct tierce__mask all = {.offset = (int64_t)started->count};
    int rc = tierce__locator_finish_write(h->locator, "i", started->session, &all, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

static inline void harness_store(struct harness *h, const int64_t *keys, size_t count)
{
    struct tierce__started started = harness_start(h, keys, count);
    harness_finish(h, &started);
}

static inline struct tierce__got harness_get(struct harness *h, enum tierce__query query,
                                             const int64_t *keys, size_t count, int32_t window)
{
    struct tierce__got got = {0};
    int rc = tierce__locator_get(h->locator,
                                 &(struct tierce__get_request){.instance_id = "i",
                                                               .query = (int)query,
                                                               .keys = keys,
                                                               .count = count,
                                                               .window = window},
                                 &h->arena, &got, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    return got;
}

static inline size_t harness_prefix(struct harness *h, const int64_t *keys, size_t count)
{
    return harness_get(h, TIERCE__QUERY_PREFIX, keys, count, 0).count;
}

/* Writes something to every place, as a client does. */
static inline void harness_write_files(const struct tierce__found *locations, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t s = 0; s < locations[i].spec_count; s++) {
            char path[512], folder[600];
            const char *uri = strstr(locations[i].specs[s].uri, "://s") + 4;
            snprintf(path, sizeof(path), "%.*s", (int)strcspn(uri, "?"), uri);
            snprintf(folder, sizeof(folder), "mkdir -p \"$(dirname '%s')\"", path);
            ck_assert_int_eq(system(folder), 0);
            FILE *file = fopen(path, "a");
            ck_assert_ptr_nonnull(file);
            fputs("x", file);
            fclose(file);
        }
    }
}

static inline size_t harness_count_files(const struct harness *h)
{
    char command[128];
    unsigned long count = 0;
    snprintf(command, sizeof(command), "find '%s' -type f | wc -l", h->folder);
    FILE *pipe = popen(command, "r");
    ck_assert_int_eq(fscanf(pipe, "%lu", &count), 1);
    pclose(pipe);
    return count;
}

static inline struct tierce__usage harness_usage(struct harness *h)
{
    struct tierce__usage usage;
    tierce__locator_group_usage(h->locator, "g", &usage);
    return usage;
}

#endif
