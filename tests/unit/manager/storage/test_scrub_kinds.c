/* SPDX-License-Identifier: Apache-2.0 */
/* A scrub of storages that are no files, by real servers: orphans of writers that were killed
 * leave, and everything else stays. */
#include "check_main.h"
#include "connector_harness.h"
#include "manager/registry/catalog.h"
#include "manager/scrub/scrub.h"
#include "manager_harness.h"
#include "map_keeper.h"
#include "redis_cluster.h"
#include "redis_server.h"
#include "s3_server.h"
#include "wait_for.h"

#include <time.h>

#define HOUR_US INT64_C(3600000000)

enum { KEYS = 5, LATE_KEYS = 3, PARTS = 2 };
static const int64_t keys[KEYS] = {11, 22, 33, 44, 55};
static const int64_t late_keys[LATE_KEYS] = {66, 77, 88};
static char folder[] = "/tmp/tierce-test-scrub-XXXXXX";
static struct harness h;
static struct tierce__scrub *scrub;
static const char *storage_name = "s";

/* ---- a manager ------------------------------------------------------------------------------- */

static int64_t real_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static bool is_marked(void)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    bool is = tierce__catalog_storage(catalog, "s")->is_marked;
    tierce__registry_release(h.registry, catalog);
    return is;
}

/* Its storage "s" is of this type; NULL: files. It may have no mark yet. */
static void open_unmarked(const char *type, const char *storage_uri)
{
    char uri[160], spec[512];
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-scrub-XXXXXX");
    temp_folder_make(folder);
    h = (struct harness){.now_us = real_now_us()};
    snprintf(h.folder, sizeof(h.folder), "%s/root", folder);
    snprintf(uri, sizeof(uri), "local://%s/registry", folder);
    snprintf(spec, sizeof(spec), "{\"uri\":\"%s\"}", storage_uri != NULL ? storage_uri : "");
    ck_assert_int_eq(mkdir(h.folder, 0700), 0);
    struct tierce__registry_opts registry = {.size = sizeof(registry), .uri = uri};
    ck_assert_int_eq(tierce__registry_open(&h.registry, &registry, h.why), 0);
    ck_assert_int_eq(tierce__registry_load(h.registry, 1, h.why), 0);
    struct harness_opts opts = {.storage_type = type, .storage_spec = type != NULL ? spec : NULL};
    harness_startup(&h, &opts);
    struct tierce__storages_opts storages = {.size = sizeof(storages),
                                             .registry = h.registry,
                                             .probe_interval_ms = 50,
                                             .probe_timeout_ms = 60000};
    ck_assert_int_eq(tierce__storages_open(&h.storages, &storages), 0);
    harness_open_locator(&h, &opts);
    harness_add_instance(&h, "i");
    struct tierce__scrub_opts scrubs = {.size = sizeof(scrubs),
                                        .registry = h.registry,
                                        .storages = h.storages,
                                        .locator = h.locator};
    ck_assert_int_eq(tierce__scrub_create(&scrub, &scrubs), 0);
}

static void open_all(const char *type, const char *storage_uri)
{
    open_unmarked(type, storage_uri);
    WAIT_FOR(is_marked());
}

static void close_all(void)
{
    tierce__scrub_destroy(scrub);
    tierce__arena_clear(&h.arena);
    tierce__locator_close(h.locator);
    tierce__storages_close(h.storages);
    tierce__registry_close(h.registry);
    temp_folder_remove(folder);
}

static struct tierce__scrub_state run(bool repairs)
{
    struct tierce__scrub_state state = {0};
    struct tierce__scrub_request request = {
        .storage = storage_name, .repairs = repairs, .rate = 1000000};
    int rc = tierce__scrub_start(scrub, &request, h.why);
    ck_assert_msg(rc == 0, "%d %s", rc, h.why);
    tierce__scrub_wait(scrub);
    ck_assert(tierce__scrub_state(scrub, storage_name, &state));
    return state;
}

static struct tierce__scrub_state run_done(bool repairs)
{
    struct tierce__scrub_state state = run(repairs);
    ck_assert_msg(state.phase == TIERCE__SCRUB_DONE && state.lists, "%s: %s",
                  tierce__scrub_phase_name(state.phase), state.why);
    return state;
}

/* ---- objects, as clients write them ---------------------------------------------------------- */

static struct tierce__connector *client;
static struct tierce__pool *pool;

static void open_client(const char *url)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    pool = connector_pool();
    const struct tierce__connector_opts opts = {.size = sizeof(opts), .pool = pool};
    int rc = tierce__connector_open(&client, url, &opts, why);
    ck_assert_msg(rc == 0, "%s", why);
}

static void close_client(void)
{
    ck_assert(client->ops->close(client, tierce__deadline_in_ms(30000)));
    tierce__pool_destroy(pool);
}

static void put(const char *name, size_t bytes)
{
    ck_assert_int_eq(connector_put(client, pool, name, 1, bytes), 0);
}

static bool exists(const char *name)
{
    int rc = connector_exists(client, name);
    ck_assert_int_ge(rc, 0);
    return rc > 0;
}

/* The name of an object, behind "TYPE://s/" or behind the root of files. */
static const char *name_of(const char *uri)
{
    static char name[200];
    const char *end = uri + strcspn(uri, "?"), *from = end;
    for (int slashes = 0; from > uri && (from[-1] != '/' || ++slashes < 3);)
        from--;
    snprintf(name, sizeof(name), "%.*s", (int)(end - from), from);
    return name;
}

static void put_all(const struct tierce__started *started)
{
    for (size_t i = 0; i < started->count; i++)
        for (size_t s = 0; s < started->locations[i].spec_count; s++)
            put(name_of(started->locations[i].specs[s].uri), s == 0 ? PART_A_BYTES : PART_B_BYTES);
}

static void check_all(const struct tierce__started *started, bool exist)
{
    for (size_t i = 0; i < started->count; i++)
        for (size_t s = 0; s < started->locations[i].spec_count; s++)
            ck_assert_int_eq(exists(name_of(started->locations[i].specs[s].uri)), exist);
}

/* A writer is killed, or so it seems: its session ends, its objects are deleted, and then it writes
 * them. */
static struct tierce__started write_late(void)
{
    struct tierce__started started = harness_start(&h, late_keys, LATE_KEYS);
    h.now_us += 31 * 1000000;
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
    h.now_us += 60 * 1000000;
    ck_assert_uint_gt(tierce__deleter_step(h.locator->deleter, SIZE_MAX), 0);
    put_all(&started);
    return started;
}

/* A piece of an object, as a scrub reads it. */
static void check_read(const char *name)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, storage_name);
    char path[200];
    uint8_t bytes[40];
    snprintf(path, sizeof(path), "/%s", name);
    ck_assert_int_eq(tierce__storages_read(h.storages, storage, path, 30, bytes, sizeof(bytes)), 0);
    for (unsigned i = 0; i < sizeof(bytes); i++)
        ck_assert_uint_eq(bytes[i], (uint8_t)(31 + (30 + i) * 7)); /* connector_harness.h */
    ck_assert_int_lt(tierce__storages_read(h.storages, storage, path, 90, bytes, sizeof(bytes)), 0);
    ck_assert_int_lt(tierce__storages_read(h.storages, storage, "/i/a/none", 0, bytes, 1), 0);
    tierce__registry_release(h.registry, catalog);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Objects of unknown age: they must have been orphans for a day. */
static void check_two_passes(const char *url)
{
    static const char young[] = "i/a/0000000000f20000", gone[] = "gone/tp0/0000000000f10000";
    open_client(url);
    struct tierce__started kept = harness_start(&h, keys, KEYS);
    put_all(&kept);
    harness_finish(&h, &kept);
    check_read(name_of(kept.locations[0].specs[0].uri));
    put("an/engine's own", 100);
    put("other/a/0000000000f10001", 100); /* no block: its file has two slots */
    put(gone, 100);
    struct tierce__started late = write_late();
    struct tierce__scrub_state state = run_done(true);
    ck_assert_uint_eq(state.counts.listed, (KEYS + LATE_KEYS) * PARTS + 1);
    ck_assert_uint_eq(state.counts.young, LATE_KEYS * PARTS + 1);
    ck_assert_uint_eq(state.counts.others, 2);
    ck_assert_uint_eq(state.counts.orphans, 0);
    h.now_us += 24 * HOUR_US;
    put(young, 100);
    ck_assert_uint_eq(run_done(true).counts.orphans, 0); /* a session may last a day */
    h.now_us += 2 * HOUR_US;
    ck_assert_uint_eq(run_done(false).counts.orphans, LATE_KEYS * PARTS + 1);
    check_all(&late, true);
    state = run_done(true);
    ck_assert_uint_eq(state.counts.deleted_orphans, LATE_KEYS * PARTS + 1);
    ck_assert_uint_eq(state.counts.deleted_bytes, LATE_KEYS * (PART_A_BYTES + PART_B_BYTES) + 100);
    ck_assert_uint_eq(state.counts.dropped_locations, 0);
    check_all(&late, false);
    check_all(&kept, true);
    ck_assert(!exists(gone) && exists(young) && exists("an/engine's own") &&
              exists("other/a/0000000000f10001"));
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    close_client();
}

START_TEST(redis)
{
    struct redis_server server;
    char uri[128], url[128];
    ck_assert(redis_start(&server, NULL));
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/?timeout_ms=60000&key_prefix=kv%%3A",
             (unsigned)server.port);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u/?prefix=kv%%3A", (unsigned)server.port);
    open_all("redis", uri);
    check_two_passes(url);
    close_all();
    redis_stop(&server);
}
END_TEST

START_TEST(redis_cluster)
{
    struct redis_cluster cluster = {0};
    char uri[320], url[320];
    ck_assert(redis_cluster_start(&cluster, 3, 0, 60000));
    snprintf(uri, sizeof(uri), "%s?timeout_ms=60000&key_prefix=kv%%3A", cluster.uri);
    snprintf(url, sizeof(url), "redis+cluster%s?prefix=kv%%3A", strstr(cluster.uri, "://"));
    open_all("redis", uri);
    check_two_passes(url);
    close_all();
    redis_cluster_stop(&cluster);
}
END_TEST

/* A storage whose prefix begins with ours, and a prefix that is none. */
START_TEST(redis_of_others)
{
    struct redis_server server;
    char uri[128], answer[256];
    ck_assert(redis_start(&server, NULL));
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/?timeout_ms=60000&key_prefix=kv%%3A",
             (unsigned)server.port);
    open_all("redis", uri);
    static const char *const sets[] = {"SET kv:b-~tierce-pool mark",
                                       "SET kv:b-x/a/0000000000f10000 x",
                                       "SET kv:x/a/0000000000f10000 x"};
    for (size_t i = 0; i < sizeof(sets) / sizeof(*sets); i++)
        ck_assert(redis_tell(server.port, answer, sizeof(answer), "%s", sets[i]));
    (void)run_done(true);
    h.now_us += 26 * HOUR_US;
    struct tierce__scrub_state state = run_done(true);
    ck_assert_uint_eq(state.counts.deleted_orphans, 1);
    ck_assert_uint_eq(state.counts.others, 2); /* and the mark */
    ck_assert(
        redis_tell(server.port, answer, sizeof(answer), "RENAMENX kv:b-x/a/0000000000f10000 y"));
    close_all();
    /* Ours begins with that of another one, whose blocks look like ours. */
    ck_assert(redis_tell(server.port, answer, sizeof(answer), "SET kv:c-x/a/0000000000f10000 x"));
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/?timeout_ms=60000&key_prefix=kv%%3Ac",
             (unsigned)server.port);
    open_all("redis", uri);
    for (int i = 0; i < 2; i++, h.now_us += 26 * HOUR_US)
        state = run(true);
    ck_assert_int_eq(state.phase, TIERCE__SCRUB_INCOMPLETE);
    ck_assert_uint_eq(state.counts.deleted_orphans, 0);
    ck_assert_msg(strstr(state.why, "has key_prefix \"kv:\"") != NULL, "%s", state.why);
    close_all();
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/?timeout_ms=60000", (unsigned)server.port);
    open_all("redis", uri);
    state = run(true);
    ck_assert_int_eq(state.phase, TIERCE__SCRUB_INCOMPLETE);
    ck_assert(!state.lists);
    ck_assert_msg(strstr(state.why, "without a key_prefix") != NULL, "%s", state.why);
    close_all();
    redis_stop(&server);
}
END_TEST

static struct tierce__storage_state storage_state(void)
{
    struct tierce__storage_state state;
    tierce__storages_state(h.storages, "s", &state);
    return state;
}

/* A new registry gets the prefix of one that was lost, and the mark was lost, too: its blocks are
 * not the new one's orphans unless an operator says so. */
static void check_lost_registry(const char *uri)
{
    int64_t key = 99;
    char why[128] = "";
    struct tierce__started started = {0};
    open_unmarked("s3", uri);
    const struct tierce__write_request write = {
        .instance_id = "i", .keys = &key, .count = 1, .timeout_s = 30};
    /* Before and after its first probe. */
    for (int i = 0; i < 2; i++) {
        int rc = tierce__locator_start_write(h.locator, &write, &h.arena, &started, h.why);
        ck_assert(rc < 0 || started.count == 0);
        ck_assert(!storage_state().is_well && !is_marked());
        WAIT_FOR(strstr(storage_state().why, "it has blocks but no mark") != NULL);
    }
    struct tierce__scrub_request request = {.storage = "s", .repairs = true};
    ck_assert_int_lt(tierce__scrub_start(scrub, &request, h.why), 0);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, "s");
    ck_assert_int_eq(tierce__storages_adopt_begin(h.storages, storage, why), 0);
    ck_assert_int_eq(tierce__storages_adopt_end(h.storages, storage, true, why), 0);
    tierce__registry_release(h.registry, catalog);
    WAIT_FOR(is_marked() && storage_state().is_well);
    ck_assert_uint_eq(harness_start(&h, &key, 1).count, 1);
    close_all();
}

START_TEST(s3)
{
    enum { MANY = 300 };
    struct s3_server server;
    char uri[256], url[300], name[64];
    ck_assert_msg(s3_is_there(), "nanio is missing: run tools/setup");
    ck_assert(s3_start(&server));
    ck_assert(s3_write_credentials(&server, "kv"));
    snprintf(uri, sizeof(uri),
             "s3://kv-cache/pre/fix?endpoint=http%%3A//127.0.0.1:%u&profile=kv&"
             "credentials_file=%s/credentials",
             (unsigned)server.port, server.dir);
    snprintf(url, sizeof(url), "%s&names=path", uri);
    open_all("s3", uri);
    open_client(url);
    struct tierce__started kept = harness_start(&h, keys, KEYS);
    put_all(&kept);
    harness_finish(&h, &kept);
    check_read(name_of(kept.locations[0].specs[0].uri));
    struct tierce__started late = write_late();
    put("an/engine/has/this", 100);
    for (unsigned i = 0; i < MANY; i++) { /* several pages */
        snprintf(name, sizeof(name), "gone/a/%012x0000", i + 1);
        put(name, 10);
    }
    struct tierce__scrub_state state = run_done(true);
    ck_assert_uint_eq(state.counts.listed, (KEYS + LATE_KEYS) * PARTS + MANY);
    ck_assert_uint_eq(state.counts.young, (KEYS + LATE_KEYS) * PARTS + MANY);
    ck_assert_uint_eq(state.counts.others, 1);
    ck_assert_uint_eq(state.counts.orphans, 0);
    h.now_us += 26 * HOUR_US; /* S3 tells when it was written, so one scrub is enough */
    state = run_done(true);
    ck_assert_uint_eq(state.counts.young, 0);
    ck_assert_uint_eq(state.counts.deleted_orphans, LATE_KEYS * PARTS + MANY);
    ck_assert_uint_eq(state.counts.deleted_bytes,
                      LATE_KEYS * (PART_A_BYTES + PART_B_BYTES) + MANY * 10);
    check_all(&kept, true);
    check_all(&late, false);
    ck_assert(exists("an/engine/has/this"));
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    close_all();
    struct connector_call drop;
    connector_call_init(&drop, TIERCE__STORE_DELETE, TIERCE__STORAGE_MARK, 0);
    ck_assert_int_eq(connector_call_run(client, &drop), 0);
    close_client();
    check_lost_registry(uri);
    s3_stop(&server);
}
END_TEST

/* A disk part reads a whole object for each part of it. */
static void check_one_read(const char *url, struct map_keeper *keeper)
{
    enum { BYTES = 1 << 20 };
    static const char name[] = "i/a/0000000000f30000";
    uint8_t *bytes = malloc(BYTES);
    ck_assert_ptr_nonnull(bytes);
    open_client(url);
    put(name, BYTES);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, storage_name);
    size_t before = map_keeper_finds(keeper);
    ck_assert_int_eq(
        tierce__storages_read(h.storages, storage, "/i/a/0000000000f30000", 0, bytes, BYTES), 0);
    ck_assert_uint_le(map_keeper_finds(keeper) - before, 2); /* a probe may read, too */
    for (unsigned i = 0; i < BYTES; i++)
        ck_assert_uint_eq(bytes[i], (uint8_t)(31 + i * 7 + i / 256)); /* connector_harness.h */
    tierce__registry_release(h.registry, catalog);
    close_client();
    free(bytes);
}

/* The blocks are in files; a node has objects of the same names. */
START_TEST(a_part_of_a_node)
{
    char url[128], why[256], name[] = "p.n1", part_pool[] = "p", node[] = "n1", medium[] = "memory",
                             incarnation[] = "1", host[] = "h";
    struct map_keeper *keeper = map_keeper_create("memory", 4 << 20);
    const struct tierce__transfer_server_opts opts = {
        .size = sizeof(opts), .host = "127.0.0.1", .keeper = map_keeper_base(keeper)};
    struct tierce__transfer_server *server = NULL;
    ck_assert_int_eq(tierce__transfer_server_start(&server, &opts, why), 0);
    snprintf(url, sizeof(url), "transfer://127.0.0.1:%u/memory",
             (unsigned)tierce__transfer_server_port(server));
    open_all(NULL, NULL);
    const struct tierce__storage part = {.name = name,
                                         .type = TIERCE__STORAGE_NODE,
                                         .is_enabled = true,
                                         .uri = url,
                                         .pool = part_pool,
                                         .node = node,
                                         .medium = medium,
                                         .incarnation = incarnation,
                                         .host_id = host};
    int rc = tierce__registry_put_part(h.registry, &part, false, why);
    ck_assert_msg(rc == 0, "%s", why);
    storage_name = name;
    check_two_passes(url);
    check_one_read(url, keeper);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    uint16_t number = tierce__catalog_storage(catalog, name)->number;
    tierce__registry_release(h.registry, catalog);
    tierce__storages_set_silent(h.storages, number, true);
    struct tierce__scrub_request request = {.storage = name, .repairs = true};
    ck_assert_int_eq(tierce__scrub_start(scrub, &request, h.why), TIERCE_E_DOWN);
    ck_assert_msg(strstr(h.why, "no sign of life") != NULL, "%s", h.why);
    close_all();
    tierce__transfer_server_stop(server, tierce__deadline_in_ms(30000));
    map_keeper_destroy(keeper);
}
END_TEST

CHECK_MAIN("scrub kinds", .seconds = 240, .at_once = true,
           .tests = {redis, redis_cluster, redis_of_others, s3, a_part_of_a_node})
