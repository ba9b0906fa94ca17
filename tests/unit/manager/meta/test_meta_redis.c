/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "manager/meta/meta_index.h"
#include "manager/registry/registry.h"
#include "meta_records.h"
#include "redis_server.h"
#include "script_server.h"
#include "net/redis/resp_client.h"
#include "silent_log.h"

#include <errno.h>
#include <inttypes.h>

/* The Redis store at a real server: KVCM's words, fencing, and a server that goes away. */

static struct redis_server server;
static struct tierce__registry *registry;
static const struct tierce__catalog *catalog;
static const struct tierce__instance *instance;
static struct tierce__meta_store *store;
static struct tierce__meta_space *space;
static struct tierce__resp *control; /* another client, which is KVCM */
static struct tierce__arena arena;
static char why[256];

#define INSTANCE "in*[s]t?1"
#define DATA     "kvcache:instance_" INSTANCE ":cache_"
#define META     "kvcache:instance_" INSTANCE ":metadata"

/* ---- the registry --------------------------------------------------------------------------- */

static void make_registry(void)
{
    struct tierce__registry_opts opts = {.size = sizeof(opts), .uri = ""};
    ck_assert_int_eq(tierce__registry_open(&registry, &opts, why), 0);
    ck_assert_int_eq(tierce__registry_load(registry, 0, why), 0);
    struct tierce__storage storage = {.name = (char *)"nfs_01",
                                      .type = TIERCE__STORAGE_NFS,
                                      .is_enabled = true,
                                      .root_path = (char *)"/data/",
                                      .key_count_per_file = 8};
    int rc = tierce__registry_add_storage(registry, &storage, why);
    ck_assert_msg(rc == 0, "%s", why);
    char *candidates[] = {(char *)"nfs_01"};
    struct tierce__group group = {.name = (char *)"default",
                                  .storage_candidates = candidates,
                                  .storage_candidate_count = 1,
                                  .max_instance_count = 10,
                                  .capacity_bytes = 1 << 30,
                                  .trigger_used_share = 0.8};
    rc = tierce__registry_add_group(registry, &group, why);
    ck_assert_msg(rc == 0, "%s", why);
    struct tierce__spec_info specs[] = {{(char *)"tp0", 4096}, {(char *)"tp1", 100}};
    struct tierce__instance added = {.id = (char *)INSTANCE,
                                     .group_name = (char *)"default",
                                     .block_size = 16,
                                     .specs = specs,
                                     .spec_count = 2};
    rc = tierce__registry_add_instance(registry, &added, why);
    ck_assert_msg(rc == 0, "%s", why);
    catalog = tierce__registry_acquire(registry);
    instance = tierce__catalog_instance(catalog, INSTANCE);
    ck_assert_ptr_nonnull(instance);
}

static const char *here(const char *parameters)
{
    static char uri[128];
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/0%s%ctimeout_ms=60000", (unsigned)server.port,
             parameters, parameters[0] == '\0' ? '?' : '&');
    return uri;
}

static void open_store(void)
{
    int rc = tierce__meta_redis.open(&store, here(""), why);
    ck_assert_msg(rc == 0, "%d %s", rc, why);
    ck_assert_int_eq(store->ops->space_open(&space, store, 1, INSTANCE), 0);
    ck_assert_int_eq(store->ops->space_names(space, registry, instance), 0);
}

static void close_store(void)
{
    space->ops->space_close(space);
    store->ops->close(store);
}

static void open_control(void)
{
    struct tierce__resp_opts opts = {.size = sizeof(opts),
                                     .host = "127.0.0.1",
                                     .port = server.port,
                                     .connect_timeout_ms = 60000,
                                     .call_timeout_ms = 60000};
    int rc = tierce__resp_open(&control, &opts, why);
    ck_assert_msg(rc == 0, "%s", why);
}

static void setup(void)
{
    silence_log();
    ck_assert(redis_start(
        &server, (const char *const[]){"--appendonly", "yes", "--appendfsync", "no", NULL}));
    make_registry();
    open_control();
    open_store();
}

static void teardown(void)
{
    close_store();
    tierce__resp_close(control);
    tierce__registry_release(registry, catalog);
    tierce__registry_close(registry);
    tierce__arena_clear(&arena);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
    redis_stop(&server);
}

/* ---- the other client ----------------------------------------------------------------------- */

/* A command of texts up to a NULL. */
static struct tierce__resp_value say(const char *const *texts)
{
    size_t bytes[32], count = 0;
    for (; texts[count] != NULL; count++)
        bytes[count] = strlen(texts[count]);
    struct tierce__resp_value value;
    int rc = tierce__resp_call(control, texts, bytes, count, &value, 0);
    ck_assert_msg(rc == 0 && value.type != TIERCE__RESP_ERROR, "%s: %d %s", texts[0], rc,
                  rc == 0 ? value.text : tierce__resp_why(control));
    return value;
}

#define SAY(...) say((const char *const[]){__VA_ARGS__, NULL})

static void check_field(const char *key, const char *field, const char *wanted)
{
    struct tierce__resp_value value = SAY("HGET", key, field);
    if (wanted == NULL) {
        ck_assert_int_eq(value.type, TIERCE__RESP_NIL);
        return;
    }
    ck_assert_int_eq(value.type, TIERCE__RESP_STRING);
    ck_assert_str_eq(value.text, wanted);
}

/* As KVCM writes it. */
static void kvcm_puts(const char *key, const char *locations, const char *lru, const char *previous)
{
    char name[128];
    snprintf(name, sizeof(name), DATA "%s", key);
    SAY("DEL", name);
    SAY("HSET", name, "__uri__", locations, "__lru_time__", lru, "_prev_key_", previous);
}

#define LOCATION(id, status, uri)                                                                  \
    "\"" id "\":{\"id\":\"" id "\",\"status\":" status                                             \
    ",\"type\":4,\"spec_size\":1,\"location_specs\":[{\"name\":\"tp0\",\"uri\":\"" uri "\"}]}"

/* ---- steps ---------------------------------------------------------------------------------- */

static int write_record(struct tierce__meta_space *where, int64_t key,
                        const struct tierce__record *record)
{
    struct tierce__meta_put put = {key, *record};
    struct tierce__meta_batch batch = {.puts = &put, .put_count = 1};
    batch.added[TIERCE__META_KEYS] = 1;
    return where->ops->write(where, &batch);
}

static bool get(int64_t key, struct tierce__record *record)
{
    bool found = false;
    tierce__arena_reset(&arena);
    ck_assert_int_eq(space->ops->get(space, &key, 1, &arena, record, &found), 0);
    return found;
}

static struct tierce__record in_a_file(void)
{
    static const struct tierce__spec_place places[] = {
        {.spec = 0, .file = 0x1f, .slot = 3, .bytes = 4096},
        {.spec = 1, .file = 0x20, .slot = 0, .bytes = 100}};
    static struct tierce__location location = {
        .id = "abcd1234", .type = TIERCE__STORAGE_NFS, .place_count = 2, .places = places};
    location.storage = tierce__catalog_storage(catalog, "nfs_01")->number;
    return (struct tierce__record){.used_us = 1700000000000001,
                                   .stored_us = 1700000000000000,
                                   .uses = 2,
                                   .children = 5,
                                   .has_parent = true,
                                   .parent = -77,
                                   .location_count = 1,
                                   .locations = &location};
}

/* ---- KVCM's words --------------------------------------------------------------------------- */

START_TEST(what_is_written_is_there_in_their_words)
{
    struct tierce__record record = in_a_file(), back;
    ck_assert_int_eq(write_record(space, -5, &record), 0);
    const char *nfs = "file://nfs_01/data/in~2a~5bs~5dt~3f1/tp";
    char wanted[512];
    snprintf(wanted, sizeof(wanted),
             "{\"abcd1234\":{\"id\":\"abcd1234\",\"status\":3,\"type\":4,\"spec_size\":2,"
             "\"location_specs\":[{\"name\":\"tp0\",\"uri\":\"%s0/000000000000001f?blkid=3&"
             "size=4096\"},{\"name\":\"tp1\",\"uri\":\"%s1/0000000000000020?blkid=0&size=100\"}]}}",
             nfs, nfs);
    check_field(DATA "-5", "__uri__", wanted);
    check_field(DATA "-5", "__lru_time__", "1700000000000001");
    check_field(DATA "-5", "_prev_key_", "-77");
    check_field(META, "__key_count__", "1");
    ck_assert(get(-5, &back));
    ck_assert(test_records_equal(&back, &record));
    /* A place of a storage that is gone has no words, but stays what it is. */
    struct tierce__location lost = *record.locations;
    lost.storage = 999;
    record.locations = &lost;
    ck_assert_int_eq(write_record(space, -5, &record), 0);
    check_field(DATA "-5", "__uri__", "{}");
    ck_assert(get(-5, &back));
    ck_assert(test_records_equal(&back, &record));
    record.has_parent = false;
    record.parent = 0;
    ck_assert_int_eq(write_record(space, -5, &record), 0);
    check_field(DATA "-5", "_prev_key_", "");
}
END_TEST

static void make_data_set(void)
{
    kvcm_puts("1", "{" LOCATION("aaaaaaaa", "3", "file://nfs_01/data/i/tp0/1?size=4096") "}",
              "1600000000000000", "");
    kvcm_puts(
        "-2",
        "{" LOCATION("bbbbbbbb", "2", "file://nfs_01/w?size=1") "," LOCATION(
            "cccccccc", "3",
            "file:\\/\\/other\\/x?blkid=1&size=10") "," LOCATION("dddddddd", "3",
                                                                 "file://nfs_01/"
                                                                 "y?blkid=2&size="
                                                                 "20") "," LOCATION("eeeeeeee", "4",
                                                                                    "file://nfs_01/"
                                                                                    "z?size=1") "}",
        "1600000000000009", "1");
    kvcm_puts("3", "{" LOCATION("ffffffff", "2", "file://nfs_01/w?size=1") "}", "1", "-2");
    kvcm_puts("4", "{\"x\": [broken", "1", "-2");
    kvcm_puts("05", "{}", "1", "");
    kvcm_puts("six", "{}", "1", "");
    SAY("HSET", META, "__key_count__", "4");
    /* Of another instance, whose id the pattern of this one would match if it were not escaped. */
    SAY("HSET", "kvcache:instance_inXst1:cache_9", "__uri__", "{}");
}

START_TEST(a_data_set_of_theirs_is_taken_over)
{
    close_store();
    make_data_set();
    open_store();
    struct tierce__record record;
    ck_assert(get(1, &record));
    ck_assert_uint_eq(record.location_count, 1);
    ck_assert_mem_eq(record.locations[0].id, "aaaaaaaa", 8);
    ck_assert_uint_eq(record.locations[0].type, 4);
    ck_assert_uint_eq(record.locations[0].storage,
                      tierce__catalog_storage(catalog, "nfs_01")->number);
    ck_assert_str_eq(record.locations[0].places[0].uri, "file://nfs_01/data/i/tp0/1?size=4096");
    ck_assert_uint_eq(record.locations[0].places[0].bytes, 4096);
    ck_assert_uint_eq(record.locations[0].places[0].file, 0);
    ck_assert_int_eq(record.used_us, 1600000000000000);
    ck_assert(!record.has_parent);
    ck_assert(get(-2, &record));
    ck_assert_uint_eq(record.location_count, 2);
    ck_assert_uint_eq(record.locations[0].storage, 0);
    ck_assert_str_eq(record.locations[0].places[0].uri, "file://other/x?blkid=1&size=10");
    ck_assert(record.has_parent);
    ck_assert_int_eq(record.parent, 1);
    ck_assert(!get(3, &record));
    ck_assert(!get(4, &record));
    ck_assert_uint_ge(space->ops->unreadable(space), 1);
    int64_t counters[TIERCE__META_COUNTERS], keys[10];
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    ck_assert_int_eq(counters[TIERCE__META_KEYS], 2);
    ck_assert_int_eq(counters[TIERCE__META_BYTES_FIRST + 4], 4096 + 10 + 20);
    uint64_t cursor = 0, random = 1;
    size_t count;
    ck_assert_int_eq(space->ops->scan(space, &cursor, 10, keys, &count), 0);
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(space->ops->sample(space, &random, 10, keys, &count), 0);
    ck_assert_uint_eq(count, 2);
    check_field(META, "__key_count__", "2");
}
END_TEST

START_TEST(their_text_stays_a_text)
{
    close_store();
    make_data_set();
    open_store();
    struct tierce__record record, back;
    ck_assert(get(-2, &record));
    record.uses = 9;
    record.children = 1;
    ck_assert_int_eq(write_record(space, -2, &record), 0);
    struct tierce__arena kept = arena;
    arena = (struct tierce__arena){0};
    ck_assert(get(-2, &back));
    ck_assert(test_records_equal(&back, &record));
    check_field(DATA "-2", "__uri__",
                "{" LOCATION("cccccccc", "3", "file://other/x?blkid=1&size=10") "," LOCATION(
                    "dddddddd", "3", "file://nfs_01/y?blkid=2&size=20") "}");
    tierce__arena_clear(&kept);
}
END_TEST

/* All keys lie before nearly all places of a seek: the first one follows on the last. */
START_TEST(the_first_keys_are_drawn_as_well)
{
    enum { KEYS = 600, DRAWN = 50 };
    struct tierce__record record = in_a_file();
    struct tierce__meta_put puts[KEYS];
    struct tierce__meta_batch batch = {.puts = puts, .put_count = KEYS};
    int64_t keys[DRAWN];
    uint64_t random = 1;
    size_t count = 0;
    for (uint64_t i = 0; i < KEYS; i++)
        puts[i] = (struct tierce__meta_put){tierce__meta_unmix(i), record};
    batch.added[TIERCE__META_KEYS] = KEYS;
    ck_assert_int_eq(space->ops->write(space, &batch), 0);
    ck_assert_int_eq(space->ops->sample(space, &random, DRAWN, keys, &count), 0);
    ck_assert_uint_eq(count, DRAWN);
    for (size_t i = 0; i < count; i++)
        ck_assert_uint_lt(tierce__meta_mix(keys[i]), KEYS);
}
END_TEST

START_TEST(what_they_write_later_counts)
{
    struct tierce__record record = in_a_file();
    ck_assert_int_eq(write_record(space, 1, &record), 0);
    ck_assert_int_eq(write_record(space, 2, &record), 0);
    SAY("HSET", DATA "1", "__uri__", "{" LOCATION("gggggggg", "3", "file://nfs_01/new?size=7") "}");
    ck_assert(get(1, &record));
    ck_assert_mem_eq(record.locations[0].id, "gggggggg", 8);
    ck_assert_uint_eq(tierce__record_bytes(&record), 7);
    SAY("HSET", DATA "1", "__uri__", "{" LOCATION("gggggggg", "4", "file://nfs_01/new?size=7") "}");
    ck_assert(!get(1, &record));
    /* Their count tells that they were here. */
    kvcm_puts("33", "{" LOCATION("hhhhhhhh", "3", "file://nfs_01/h?size=1000") "}", "5", "");
    SAY("HSET", META, "__key_count__", "3");
    close_store();
    open_store();
    int64_t counters[TIERCE__META_COUNTERS];
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    ck_assert_int_eq(counters[TIERCE__META_KEYS], 2);
    ck_assert_int_eq(counters[TIERCE__META_BYTES_FIRST + 4], 4096 + 100 + 1000);
    SAY("HDEL", DATA "2", "__uri__");
    ck_assert(!get(2, &record));
}
END_TEST

START_TEST(a_touch_of_theirs)
{
    close_store();
    make_data_set();
    open_store();
    int64_t keys[] = {1, 77};
    space->ops->touch(space, keys, 2, &(struct tierce__record_use){1700000000000000, 1, 0});
    close_store();
    check_field(DATA "1", "__lru_time__", "1700000000000000");
    check_field(DATA "1", "__hit_count__", "1");
    ck_assert_int_eq(SAY("EXISTS", DATA "77").integer, 0);
    open_store();
    struct tierce__record record;
    ck_assert(get(1, &record));
    ck_assert_int_eq(record.used_us, 1700000000000000);
    ck_assert_uint_eq(record.uses, 1);
}
END_TEST

START_TEST(a_large_data_set)
{
    close_store();
    for (int i = 0; i < 5000; i++) {
        char key[16];
        snprintf(key, sizeof(key), "%d", i);
        kvcm_puts(key, "{" LOCATION("aaaaaaaa", "3", "file://nfs_01/a?size=2") "}", "1", "");
    }
    SAY("HSET", META, "__key_count__", "5000");
    open_store();
    int64_t counters[TIERCE__META_COUNTERS];
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    ck_assert_int_eq(counters[TIERCE__META_KEYS], 5000);
    ck_assert_int_eq(counters[TIERCE__META_BYTES_FIRST + 4], 10000);
}
END_TEST

START_TEST(hostile_fields_do_no_harm)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{\"a\":1}",
        "{\"aaaaaaaa\":{\"id\":\"AAAAAAAA\",\"status\":3,\"type\":4,"
        "\"location_specs\":[]}}",
        "{\"aaaaaaaa\":{\"id\":\"aaaaaaaa\",\"status\":3,\"type\":400,"
        "\"location_specs\":[]}}",
        "{\"aaaaaaaa\":{\"id\":\"aaaaaaaa\",\"status\":3,\"type\":4,"
        "\"location_specs\":[{\"name\":3}]}}"};
    struct tierce__record record;
    for (size_t i = 0; i < 6; i++) {
        kvcm_puts("1", bad[i], "abc", "xyz");
        uint64_t before = space->ops->unreadable(space);
        ck_assert(!get(1, &record));
        ck_assert_uint_eq(space->ops->unreadable(space), before + 1);
    }
    kvcm_puts("2", "{" LOCATION("aaaaaaaa", "3", "x?size=-1") "}", "99999999999999999999", "1x");
    SAY("HSET", DATA "2", "__tierce__", "12345678\1garbage", "__hit_count__", "-4");
    ck_assert(get(2, &record));
    ck_assert_int_eq(record.used_us, 0);
    ck_assert(!record.has_parent);
    ck_assert_uint_eq(record.uses, 0);
    SAY("SET", DATA "3", "a text");
    int64_t key = 3;
    bool found;
    ck_assert_int_eq(space->ops->get(space, &key, 1, &arena, &record, &found), -EIO);
}
END_TEST

/* ---- leaders -------------------------------------------------------------------------------- */

START_TEST(an_older_leader_is_refused)
{
    struct tierce__meta_store *other;
    struct tierce__meta_space *other_space;
    ck_assert_int_eq(store->ops->fence(store, 9), 0);
    struct tierce__record record = in_a_file();
    ck_assert_int_eq(write_record(space, 1, &record), 0);
    ck_assert_int_eq(tierce__meta_redis.open(&other, here(""), why), 0);
    ck_assert_int_eq(other->ops->space_open(&other_space, other, 1, INSTANCE), 0);
    ck_assert_int_eq(other->ops->fence(other, 10), 0);
    ck_assert_int_eq(write_record(other_space, 2, &record), 0);
    ck_assert_int_eq(write_record(space, 3, &record), TIERCE_E_REFUSED);
    ck_assert_int_eq(space->ops->space_drop(space), TIERCE_E_REFUSED);
    int64_t key = 1;
    space->ops->touch(space, &key, 1, &(struct tierce__record_use){1900000000000000, 1, 0});
    struct tierce__record back;
    ck_assert(!get(3, &back));
    ck_assert(get(1, &back));
    ck_assert(get(2, &back));
    ck_assert_int_eq(store->ops->fence(store, 9), TIERCE_E_REFUSED);
    ck_assert_int_eq(store->ops->fence(store, 11), 0);
    ck_assert_int_eq(write_record(space, 3, &record), 0);
    ck_assert_int_eq(write_record(other_space, 4, &record), TIERCE_E_REFUSED);
    ck_assert_int_eq(store->ops->fence(store, UINT64_MAX), 0);
    ck_assert_int_eq(write_record(space, 5, &record), 0);
    other->ops->space_close(other_space);
    other->ops->close(other);
}
END_TEST

/* ---- the server ----------------------------------------------------------------------------- */

START_TEST(scripts_that_the_server_forgot)
{
    struct tierce__record record = in_a_file(), back;
    SAY("SCRIPT", "FLUSH");
    ck_assert_int_eq(write_record(space, 1, &record), 0);
    ck_assert(get(1, &back));
    ck_assert_int_eq(write_record(space, 2, &record), 0);
    ck_assert(get(2, &back));
}
END_TEST

/* Comes back when it has read its file, with a client that waits between two attempts. */
static void restart(void)
{
    static const char *const more[] = {"--appendonly", "yes", "--appendfsync", "no", NULL};
    ck_assert(redis_run(&server, false, more));
    int64_t key = 0;
    struct tierce__record record;
    bool found;
    int rc = -1;
    for (int i = 0; i < 2000 && rc != 0; i++) {
        rc = space->ops->get(space, &key, 1, &arena, &record, &found);
        server_pause_ms(5);
    }
    ck_assert_int_eq(rc, 0);
    tierce__resp_close(control);
    open_control();
}

START_TEST(a_server_that_comes_back)
{
    struct tierce__record record = in_a_file(), back;
    int64_t key = 1;
    bool found;
    ck_assert_int_eq(write_record(space, 1, &record), 0);
    redis_kill(&server);
    ck_assert_int_lt(space->ops->get(space, &key, 1, &arena, &back, &found), 0);
    ck_assert_int_lt(write_record(space, 2, &record), 0);
    restart();
    ck_assert(get(1, &back));
    ck_assert(test_records_equal(&back, &record));
    ck_assert_int_eq(write_record(space, 2, &record), 0);
    ck_assert(get(2, &back));
    /* The connections of the one before are told by themselves. */
    redis_kill(&server);
    restart();
    ck_assert_int_eq(write_record(space, 3, &record), 0);
    ck_assert(get(3, &back));
}
END_TEST

START_TEST(what_cannot_be_opened_is_told)
{
    struct tierce__meta_store *none = NULL;
    ck_assert_int_eq(tierce__meta_redis.open(&none, "http://x", why), TIERCE_E_CONFIG);
    ck_assert_int_eq(tierce__meta_redis.open(&none, here("?touch_ms=0"), why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "touch_ms"));
    ck_assert_int_eq(tierce__meta_redis.open(&none, here("?cluster=true"), why),
                     TIERCE_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why, "cluster"));
    SAY("CONFIG", "SET", "requirepass", "secret");
    ck_assert_int_eq(tierce__meta_redis.open(&none, here(""), why), TIERCE_E_REFUSED);
    char uri[128];
    snprintf(uri, sizeof(uri), "redis://:wrong@127.0.0.1:%u?timeout_ms=60000",
             (unsigned)server.port);
    ck_assert_int_eq(tierce__meta_redis.open(&none, uri, why), TIERCE_E_REFUSED);
    ck_assert_ptr_null(strstr(why, "wrong"));
    snprintf(uri, sizeof(uri), "redis://:secret@127.0.0.1:%u?timeout_ms=60000",
             (unsigned)server.port);
    ck_assert_int_eq(tierce__meta_redis.open(&none, uri, why), 0);
    none->ops->close(none);
    none = NULL;
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u", (unsigned)server_free_port());
    ck_assert_int_eq(tierce__meta_redis.open(&none, uri, why), -ECONNREFUSED);
    ck_assert_int_eq(tierce__meta_redis.open(&none, "redis+unix:///run/tierce-missing.sock", why),
                     -ECONNREFUSED);
    ck_assert_ptr_nonnull(strstr(why, "tierce-missing.sock"));
    ck_assert_ptr_null(none);
    SAY("HSET", "kvcache:instance_x:metadata", "tierce:version", "2");
    struct tierce__meta_space *newer = NULL;
    ck_assert_int_eq(store->ops->space_open(&newer, store, 2, "x"), TIERCE_E_VERSION);
}
END_TEST

static void check_refusal(const char *uri, int status, const char *part)
{
    struct tierce__meta_store *none = NULL;
    ck_assert_int_eq(tierce__meta_redis.open(&none, uri, why), status);
    ck_assert_ptr_null(none);
    ck_assert_msg(strstr(why, part) != NULL, "%s", why);
}

/* A server that speaks no TLS, one without hashes of scripts, one that still reads its data, one
 * without that database, and one whose user must not load scripts. */
START_TEST(the_reason_is_the_one_that_stopped_it)
{
    static const char numbers[] = ":1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n";
    static const struct script_reply plain = {.bytes = "-ERR\r\n", .count = 6};
    static const struct script_reply odd[] = {{.bytes = "+PONG\r\n", .count = 7},
                                              {.bytes = numbers, .count = sizeof(numbers) - 1}};
    static const char loading[] =
        "-LOADING\r\n-LOADING\r\n-LOADING\r\n-LOADING\r\n-LOADING\r\n-LOADING\r\n-LOADING\r\n";
    static const struct script_reply busy[] = {{.bytes = "+PONG\r\n", .count = 7},
                                               {.bytes = loading, .count = sizeof(loading) - 1}};
    struct script_server fake;
    char uri[128];
    script_server_start(&fake, &plain, 1);
    snprintf(uri, sizeof(uri), "rediss://127.0.0.1:%u?timeout_ms=60000", (unsigned)fake.port);
    check_refusal(uri, -EPROTO, "TLS");
    script_server_stop(&fake);
    script_server_start(&fake, odd, 2);
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u?timeout_ms=60000", (unsigned)fake.port);
    check_refusal(uri, -EPROTO, "cannot load scripts: invalid answer");
    script_server_stop(&fake);
    script_server_start(&fake, busy, 2);
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u?timeout_ms=60000", (unsigned)fake.port);
    check_refusal(uri, TIERCE_E_DOWN, "cannot load scripts: LOADING");
    script_server_stop(&fake);
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u/99?timeout_ms=60000", (unsigned)server.port);
    check_refusal(uri, -EPROTO, "refuses SELECT");
    SAY("ACL", "SETUSER", "reader", "on", ">secret", "+@all", "-script", "~*");
    snprintf(uri, sizeof(uri), "redis://reader:secret@127.0.0.1:%u?timeout_ms=60000",
             (unsigned)server.port);
    check_refusal(uri, -EPROTO, "cannot load scripts: NOPERM");
}
END_TEST

/* ---- the index above ------------------------------------------------------------------------ */

static enum tierce__meta_action put_it(void *arg, size_t i, int64_t key, bool found,
                                       struct tierce__record *record, struct tierce__arena *into)
{
    (void)i;
    (void)key;
    (void)found;
    (void)into;
    *record = *(const struct tierce__record *)arg;
    return TIERCE__META_PUT;
}

START_TEST(an_index_over_a_server_that_fails)
{
    struct tierce__meta_index *index;
    struct tierce__meta_index_opts opts = {.size = sizeof(opts), .shards = 8, .cache_bytes = 65536};
    ck_assert_int_eq(tierce__meta_index_open(&index, space, &opts), 0);
    struct tierce__record record = in_a_file(), back;
    record.has_parent = false;
    int64_t keys[] = {1, 2, 3};
    int status[3];
    bool found;
    ck_assert_int_eq(tierce__meta_index_modify(index, keys, 3,
                                               &(struct tierce__meta_change){
                                                   .modify = put_it, .arg = &record, .whole = true},
                                               &arena, status),
                     0);
    redis_kill(&server);
    int64_t more[] = {4, 5};
    ck_assert_int_lt(tierce__meta_index_modify(index, more, 2,
                                               &(struct tierce__meta_change){
                                                   .modify = put_it, .arg = &record, .whole = true},
                                               &arena, status),
                     0);
    restart();
    ck_assert_int_eq(tierce__meta_index_get(index, keys, 1, &arena, &back, &found), 0);
    ck_assert(found);
    ck_assert_int_eq(tierce__meta_index_modify(index, more, 1,
                                               &(struct tierce__meta_change){
                                                   .modify = put_it, .arg = &record, .whole = true},
                                               &arena, status),
                     0);
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(index, &stats);
    ck_assert_uint_eq(stats.keys, 4);
    ck_assert_uint_eq(stats.bytes, 4 * 4196);
    tierce__meta_index_close(index);
}
END_TEST

int main(void)
{
    const char *ci = getenv("CI");
    if (!redis_is_there() && (ci == NULL || strcmp(ci, "true") != 0))
        return 77;
    return CHECK_RUN("meta_redis", .seconds = 120, .setup = setup, .teardown = teardown,
                     .tests = {what_is_written_is_there_in_their_words,
                               a_data_set_of_theirs_is_taken_over, their_text_stays_a_text,
                               the_first_keys_are_drawn_as_well, what_they_write_later_counts,
                               a_touch_of_theirs, a_large_data_set, hostile_fields_do_no_harm,
                               an_older_leader_is_refused, scripts_that_the_server_forgot,
                               a_server_that_comes_back, what_cannot_be_opened_is_told,
                               the_reason_is_the_one_that_stopped_it,
                               an_index_over_a_server_that_fails});
}
