/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connector through a manager: a real one, and each kind of storage. Each test has a manager and
 * a storage of its own.
 */
#include "conformance/connector_conformance.h"
#include "fleet_shapes.h"
#include "redis_server.h"
#include "running_manager.h"
#include "s3_server.h"
#include "silent_log.h"

#include <stdlib.h>
#include <xxhash.h>

enum { OBJECT_BYTES = 8192 }; /* of plain_shape */

static struct tierce__namespaces *namespaces;
static uint8_t digest[TIERCE_HASH_BYTES];

/* The key of the chunk whose hash begins with the text's. */
static void key_of(char out[TIERCE__CONNECTOR_NAME_MAX + 1], const char *text)
{
    uint8_t hash[TIERCE_HASH_BYTES] = {0};
    char room[TIERCE__KEY_TEXT_BYTES];
    uint64_t sum = XXH3_64bits(text, strlen(text));
    memcpy(hash, &sum, sizeof(sum));
    ck_assert_int_gt(tierce__key_text_format(room, digest, &whole_shard, hash), 0);
    snprintf(out, TIERCE__CONNECTOR_NAME_MAX + 1, "%s", room);
}

static void make_namespaces(void)
{
    char *text = shape_text(&plain_shape);
    tierce_namespace_digest(digest, text);
    ck_assert_int_eq(tierce__namespaces_create(&namespaces), 0);
    ck_assert_int_ge(tierce__namespaces_intern(namespaces, digest, text), 0);
    tierce_free(text);
}

/* ---- worlds ---------------------------------------------------------------------------------- */

static struct running_manager world;

static void write_startup(const char *path, const char *type, const char *spec)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file,
            "{\"storage_config\":{\"type\":\"%s\",\"is_available\":true,"
            "\"global_unique_name\":\"s\",\"storage_spec\":{%s}},"
            "\"instance_group\":{\"name\":\"default\",\"storage_candidates\":[\"s\"],"
            "\"global_quota_group_name\":\"q\",\"max_instance_count\":100,\"version\":1,"
            "\"quota\":{\"capacity\":10000000000,\"quota_config\":[]},\"user_data\":\"\","
            "\"cache_config\":{\"reclaim_strategy\":{\"storage_unique_name\":\"s\","
            "\"reclaim_policy\":1,\"trigger_strategy\":{\"used_size\":0,\"used_percentage\":0.9},"
            "\"delay_before_delete_ms\":0},\"cache_prefer_strategy\":2,"
            "\"meta_indexer_config\":{\"max_key_count\":1000000,\"mutex_shard_num\":16,"
            "\"batch_key_size\":16,\"meta_storage_backend_config\":{\"storage_type\":\"local\","
            "\"storage_uri\":\"\"},\"meta_cache_policy_config\":{\"type\":\"LRU\","
            "\"capacity\":10000}}}}}",
            type, spec);
    ck_assert_int_eq(fclose(file), 0);
}

static bool start_world(char *url, size_t room, const char *type, const char *spec)
{
    make_namespaces();
    silence_log();
    char startup[64] = "/tmp/tierce_startupXXXXXX", path[96], arg[128];
    temp_folder_make(startup);
    snprintf(path, sizeof(path), "%s/startup.json", startup);
    snprintf(arg, sizeof(arg), "--startup.file=%s", path);
    write_startup(path, type, spec);
    const char *const args[] = {arg, NULL};
    running_manager_start(&world, args);
    temp_folder_remove(startup);
    int used =
        snprintf(url, room, "fleet://127.0.0.1:%u/default/i", (unsigned)world.ports.meta_grpc);
    return used > 0 && (size_t)used < room;
}

static char files[64];

/* `ctx`: how many blocks share a file. */
static bool start_files(char *url, size_t room, void *ctx)
{
    char spec[256];
    snprintf(files, sizeof(files), "/tmp/tierce_filesXXXXXX");
    temp_folder_make(files);
    snprintf(spec, sizeof(spec), "\"root_path\":\"%s/\",\"key_count_per_file\":%s", files,
             (const char *)ctx);
    return start_world(url, room, "file", spec);
}

static void stop_files(void *ctx)
{
    (void)ctx;
    running_manager_stop(&world);
    tierce__namespaces_destroy(namespaces);
    temp_folder_remove(files);
}

static struct redis_server redis;

static bool start_redis(char *url, size_t room, void *ctx)
{
    char spec[256];
    (void)ctx;
    if (!redis_start(&redis, NULL))
        return false;
    snprintf(spec, sizeof(spec), "\"uri\":\"redis://127.0.0.1:%u/0\",\"key_prefix\":\"kv:\"",
             (unsigned)redis.port);
    return start_world(url, room, "redis", spec);
}

static void stop_redis(void *ctx)
{
    (void)ctx;
    running_manager_stop(&world);
    tierce__namespaces_destroy(namespaces);
    redis_stop(&redis);
}

static struct s3_server s3;

static bool start_s3(char *url, size_t room, void *ctx)
{
    char spec[512];
    (void)ctx;
    if (!s3_start(&s3) || !s3_make_bucket(&s3, "blocks") || !s3_write_credentials(&s3, "default"))
        return false;
    snprintf(
        spec, sizeof(spec),
        "\"uri\":\"s3://blocks/kv?endpoint=http://127.0.0.1:%u&credentials_file=%s/credentials\"",
        (unsigned)s3.port, s3.dir);
    return start_world(url, room, "s3", spec);
}

static void stop_s3(void *ctx)
{
    (void)ctx;
    running_manager_stop(&world);
    tierce__namespaces_destroy(namespaces);
    s3_stop(&s3);
}

#define CAPS (TIERCE__CONNECTOR_NO_REPLACE | TIERCE__CONNECTOR_ASKS)
#define FACTORY()                                                                                  \
    .key = key_of, .object_bytes = OBJECT_BYTES, .namespaces = &namespaces, .exists = 120

static const struct connector_factory factories[] = {
    {.name = "files",
     .start = start_files,
     .stop = stop_files,
     .ctx = (char[]){"1"},
     .caps = CAPS | TIERCE__CONNECTOR_TELLS_LENGTH,
     FACTORY(),
     .is_twin = true},
    {.name = "slots",
     .start = start_files,
     .stop = stop_files,
     .ctx = (char[]){"8"},
     .codes = true,
     .caps = CAPS,
     FACTORY()},
    {.name = "redis",
     .start = start_redis,
     .stop = stop_redis,
     .caps = CAPS | TIERCE__CONNECTOR_TELLS_LENGTH,
     FACTORY()},
    {.name = "s3",
     .start = start_s3,
     .stop = stop_s3,
     .caps = CAPS | TIERCE__CONNECTOR_TELLS_LENGTH,
     FACTORY(),
     .is_twin = true},
};

int main(void)
{
    return connector_conformance_main(factories, sizeof(factories) / sizeof(*factories));
}
