/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a manager writes into a URI, an engine reads back as the object that the manager's driver
 * deletes: random instances, specs and files, in a real folder, Redis and S3.
 */
#include "base/alloc.h"
#include "base/arena.h"
#include "check_main.h"
#include "connector_harness.h"
#include "manager/storage/places.h"
#include "manager/storage/storage.h"
#include "redis_server.h"
#include "s3_server.h"
#include "store/remote/fleet/fleet_private.h"
#include "test_random.h"

#include <errno.h>
#include <sys/stat.h>

enum { OBJECT = 600, NAME_MAX_BYTES = 60 };

static struct tierce__pool *pool;
static struct tierce__fleet_stores *stores;
static struct tierce__storage_driver *driver;
static struct tierce__arena arena;
static struct test_random numbers;
static char why[TIERCE__FLEET_WHY_BYTES];

/* Opens the driver, and tells the engine's side of it as RegisterInstance does. */
static void start(const struct tierce__storage *storage)
{
    char text[128] = "", *json = NULL, list[2048];
    numbers = test_random_start("fleet names");
    pool = connector_pool();
    const struct tierce__storage_ops *ops = tierce__storage_ops_find(storage->type);
    ck_assert_msg(ops->open(&driver, storage, text) == 0, "%s", text);
    ck_assert_msg(ops->probe(driver, text) == 0, "%s", text);
    ck_assert_int_eq(tierce__fleet_stores_open(
                         &stores,
                         &(struct tierce__fleet_stores_opts){
                             .size = sizeof(struct tierce__fleet_stores_opts), .pool = pool}),
                     0);
    struct tierce__storage whole = {0};
    ck_assert_int_eq(tierce__storage_copy(&whole, storage), 0);
    ck_assert_int_eq(tierce__storage_to_json(&json, &whole, TIERCE__JSON_SHOWN), 0);
    snprintf(list, sizeof(list), "[%s]", json);
    ck_assert_msg(tierce__fleet_stores_update(stores, list, why) == 0, "%s: %s", list, why);
    tierce__free(json);
    tierce__storage_clear(&whole);
}

static void end(void)
{
    driver->ops->close(driver);
    ck_assert(tierce__fleet_stores_close(stores, tierce__deadline_in_ms(30000)));
    tierce__pool_destroy(pool);
    tierce__arena_clear(&arena);
}

static int run(const struct tierce__fleet_place *place, enum tierce__store_op op, uint32_t version)
{
    struct connector_call call;
    connector_call_init(&call, op, place->name.text, place->name.bytes);
    call.req.buf = connector_object(pool, op == TIERCE__STORE_PUT ? version : ~version, OBJECT);
    call.req.length = OBJECT;
    tierce__fleet_store_submit(place->store, &call.req);
    int rc = connector_call_wait(&call);
    if (op == TIERCE__STORE_GET && rc == 0)
        ck_assert(connector_is_object(call.req.buf->data, version, 0, OBJECT));
    tierce__buf_release(call.req.buf);
    tierce__fleet_store_why(place->store, why);
    return rc;
}

/* ---- random places --------------------------------------------------------------------------- */

/* Names that are plain, that try to leave, and of any bytes that a registry accepts. */
static void make_name(char out[NAME_MAX_BYTES + 1])
{
    static const char *const special[] = {".",   "..",    "...",      "~",        "~store",
                                          "a/b", "../..", "%2e%2e",   "a?size=1", "a&b=c",
                                          "#",   " ",     "\xc3\xa4", "a~2fb",    "tp0"};
    uint64_t kind = test_random_below(&numbers, 3);
    if (kind == 0) {
        snprintf(out, NAME_MAX_BYTES + 1, "%s",
                 special[test_random_below(&numbers, sizeof(special) / sizeof(*special))]);
        return;
    }
    size_t bytes = 1 + test_random_below(&numbers, NAME_MAX_BYTES);
    for (size_t i = 0; i < bytes; i++)
        out[i] = (char)(kind == 1 ? 'a' + test_random_below(&numbers, 26)
                                  : 0x21 + test_random_below(&numbers, 0x5e));
    out[bytes] = '\0';
}

/* Files of one slot without a blkid, and of several. */
static struct tierce__spec_place make_place(bool has_files)
{
    uint64_t slots = has_files ? 1 + test_random_below(&numbers, 8) : 1;
    uint64_t file = (1 + test_random_below(&numbers, 1u << 20)) << 16 | (slots - 1);
    return (struct tierce__spec_place){
        .file = file, .slot = (uint32_t)test_random_below(&numbers, slots), .bytes = OBJECT};
}

static void check_one(const struct tierce__storage *storage, uint32_t version)
{
    char id[NAME_MAX_BYTES + 1], spec[NAME_MAX_BYTES + 1], room[1024];
    make_name(id);
    make_name(spec);
    struct tierce__spec_info specs[] = {{.name = spec, .size = OBJECT}};
    const struct tierce__instance instance = {.id = id, .specs = specs, .spec_count = 1};
    bool has_files = tierce__storage_type_quota(storage->type) == TIERCE__STORAGE_NFS ||
                     tierce__storage_type_quota(storage->type) == TIERCE__STORAGE_3FS;
    struct tierce__spec_place place = make_place(has_files);
    char *uri = tierce__place_uri(storage, &instance, &place, &arena);
    char *path = tierce__place_path(storage, &instance, &place, &arena);
    struct tierce__fleet_place read = {.store = NULL};
    uint64_t bytes = 0;
    ck_assert(uri != NULL && path != NULL && strlen(uri) < sizeof(room));
    int rc = tierce__fleet_place_read(&read, room, uri, stores, why);
    ck_assert_msg(rc == 0, "%s: %s", uri, why);
    ck_assert_uint_eq(read.bytes, OBJECT);
    ck_assert_msg(driver->ops->measure(driver, path, &bytes) == -ENOENT, "%s", path);
    rc = run(&read, TIERCE__STORE_PUT, version);
    ck_assert_msg(rc == 0, "%s: %s", uri, why);
    ck_assert_msg(driver->ops->measure(driver, path, &bytes) == 0, "%s", path);
    ck_assert_uint_eq(bytes, (place.slot + 1) * OBJECT);
    ck_assert_int_eq(run(&read, TIERCE__STORE_GET, version), 0);
    ck_assert_int_eq(driver->ops->remove(driver, path), 0);
    ck_assert_int_eq(run(&read, TIERCE__STORE_GET, version), TIERCE_E_MISS);
    tierce__arena_reset(&arena);
}

static void check_many(const struct tierce__storage *storage, uint32_t count)
{
    start(storage);
    for (uint32_t i = 0; i < count; i++)
        check_one(storage, i);
    end();
}

/* ---- storages -------------------------------------------------------------------------------- */

/* 0: NFS, 1: 3FS. */
START_TEST(a_folder)
{
    char folder[64], root[96];
    snprintf(folder, sizeof(folder), "/tmp/tierce-names-XXXXXX");
    temp_folder_make(folder);
    snprintf(root, sizeof(root), "%s//a b%%2e", folder);
    check_many(
        &(struct tierce__storage){.number = 1,
                                  .name = "n",
                                  .type = _i == 0 ? TIERCE__STORAGE_NFS : TIERCE__STORAGE_3FS,
                                  .is_enabled = true,
                                  .root_path = _i == 0 ? root : "",
                                  .mountpoint = _i == 0 ? "" : folder,
                                  .root_dir = _i == 0 ? "" : "/a b%2e/",
                                  .key_count_per_file = 8},
        300);
    temp_folder_remove(folder);
}
END_TEST

START_TEST(redis_with_a_prefix)
{
    struct redis_server server;
    char uri[128];
    ck_assert(redis_start(&server, NULL));
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/1?key_prefix=kv%%3A%%26&timeout_ms=60000",
             (unsigned)server.port);
    check_many(&(struct tierce__storage){.number = 1,
                                         .name = "n",
                                         .type = TIERCE__STORAGE_REDIS,
                                         .is_enabled = true,
                                         .uri = uri},
               300);
    redis_stop(&server);
}
END_TEST

START_TEST(s3_with_a_prefix)
{
    struct s3_server server;
    char uri[256];
    ck_assert_msg(s3_is_there(), "nanio is missing: run tools/setup");
    ck_assert(s3_start(&server));
    ck_assert(s3_write_credentials(&server, "kv"));
    snprintf(uri, sizeof(uri),
             "s3://kv-cache/pre/fix?endpoint=http%%3A//127.0.0.1:%u&profile=kv&"
             "credentials_file=%s/credentials",
             (unsigned)server.port, server.dir);
    check_many(
        &(struct tierce__storage){
            .number = 1, .name = "n", .type = TIERCE__STORAGE_S3, .is_enabled = true, .uri = uri},
        60);
    s3_stop(&server);
}
END_TEST

CHECK_MAIN("fleet names", .seconds = 120, .tests = {redis_with_a_prefix, s3_with_a_prefix},
           .loops = {{a_folder, 0, 2}})
