/* SPDX-License-Identifier: Apache-2.0 */
/* The storages of a fleet: what a manager may say about them, and their connectors. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "connector_harness.h"
#include "redis_cluster.h"
#include "redis_server.h"
#include "script_server.h"
#include "store/remote/fleet/fleet_allowed.h"
#include "store/remote/fleet/fleet_stores_private.h"
#include "wait_for.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];
static struct tierce__pool *pool;
static struct tierce__fleet_stores *stores;
static char why[TIERCE__FLEET_WHY_BYTES];
static const char *mooncake_python = "python3", *allowed;

static const char *at(const char *name)
{
    static char path[4][160];
    static unsigned next;
    snprintf(path[next % 4], sizeof(path[0]), "%s/%s", root, name);
    return path[next++ % 4];
}

static void open_stores(void)
{
    ck_assert_int_eq(tierce__fleet_stores_open(&stores,
                                               &(struct tierce__fleet_stores_opts){
                                                   .size = sizeof(struct tierce__fleet_stores_opts),
                                                   .pool = pool,
                                                   .mooncake_python = mooncake_python,
                                                   .allowed = allowed}),
                     0);
}

static void start(void)
{
    snprintf(root, sizeof(root), "/tmp/tierce-fleet-XXXXXX");
    temp_folder_make(root);
    ck_assert_int_eq(mkdir(at("a"), 0700), 0);
    ck_assert_int_eq(mkdir(at("b"), 0700), 0);
    pool = connector_pool();
    open_stores();
}

static void end(void)
{
    ck_assert(tierce__fleet_stores_close(stores, tierce__deadline_in_ms(30000)));
    tierce__pool_destroy(pool);
    temp_folder_remove(root);
}

static void update(const char *json)
{
    int rc = tierce__fleet_stores_update(stores, json, why);
    ck_assert_msg(rc == 0, "%s: %s", json, why);
}

/* One storage of files. */
static const char *file_json(const char *name, const char *folder)
{
    static char text[512];
    snprintf(text, sizeof(text),
             "[{\"type\":\"file\",\"is_available\":true,\"global_unique_name\":\"%s\","
             "\"storage_spec\":{\"root_path\":\"%s/\",\"key_count_per_file\":8}}]",
             name, at(folder));
    return text;
}

static int read_place(struct tierce__fleet_place *out, const char *uri)
{
    static char rooms[4][8300];
    static unsigned next;
    ck_assert_uint_lt(strlen(uri), sizeof(rooms[0]));
    return tierce__fleet_place_read(out, rooms[next++ % 4], uri, stores, why);
}

static struct tierce__fleet_place place_of(const char *uri)
{
    struct tierce__fleet_place place = {.store = NULL};
    int rc = read_place(&place, uri);
    ck_assert_msg(rc == 0, "%s: %s", uri, why);
    return place;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void call_init(struct connector_call *call, const struct tierce__fleet_place *place,
                      enum tierce__store_op op)
{
    connector_call_init(call, op, place->name.text, place->name.bytes);
}

static int put(const struct tierce__fleet_place *place, uint32_t version, uint64_t bytes)
{
    struct connector_call call;
    call_init(&call, place, TIERCE__STORE_PUT);
    call.req.buf = connector_object(pool, version, bytes);
    call.req.length = bytes;
    tierce__fleet_store_submit(place->store, &call.req);
    int rc = connector_call_wait(&call);
    ck_assert_ptr_eq(call.req.arg, &call);
    ck_assert_uint_eq(atomic_load(&call.req.buf->refs), 1);
    tierce__buf_release(call.req.buf);
    return rc;
}

static int get(const struct tierce__fleet_place *place, uint32_t version, uint64_t bytes)
{
    struct connector_call call;
    call_init(&call, place, TIERCE__STORE_GET);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, bytes), 0);
    call.req.length = bytes;
    tierce__fleet_store_submit(place->store, &call.req);
    int rc = connector_call_wait(&call);
    if (rc == 0)
        ck_assert(connector_is_object(call.req.buf->data, version, 0, bytes));
    tierce__buf_release(call.req.buf);
    return rc;
}

static const char *store_why(const struct tierce__fleet_place *place)
{
    static char text[TIERCE__FLEET_WHY_BYTES];
    tierce__fleet_store_why(place->store, text);
    return text;
}

static int64_t bytes_of(const char *name)
{
    struct stat st;
    return lstat(at(name), &st) == 0 ? (int64_t)st.st_size : -1;
}

static const char *file_uri(const char *name, const char *folder, const char *rest)
{
    static char text[4][256];
    static unsigned next;
    snprintf(text[next % 4], sizeof(text[0]), "file://%s%s/%s", name, at(folder), rest);
    return text[next++ % 4];
}

/* ---- what a manager says --------------------------------------------------------------------- */

START_TEST(storages_are_read)
{
    struct tierce__fleet_place place;
    start();
    ck_assert_int_eq(read_place(&place, "file://n/a/b"), TIERCE_E_MISS);
    update("[]");
    update(
        "[{\"type\":\"file\",\"global_unique_name\":\"n\",\"storage_spec\":{\"root_path\":"
        "\"/tmp/nfs\"}},"
        "{\"type\":\"hf3fs\",\"global_unique_name\":\"f\",\"storage_spec\":{\"mountpoint\":"
        "\"/3fs/\",\"root_dir\":\"/kv\",\"cluster_name\":\"c\"}},"
        "{\"type\":\"redis\",\"global_unique_name\":\"r\",\"storage_spec\":{\"uri\":"
        "\"redis://h:1\"}},"
        "{\"type\":\"s3\",\"global_unique_name\":\"s\",\"storage_spec\":{\"uri\":\"s3://bucket\"}},"
        "{\"type\":\"mooncake\",\"global_unique_name\":\"m\",\"storage_spec\":"
        "{\"master_server_entry\":\"h:1\"}},"
        "{\"type\":\"tierce\",\"global_unique_name\":\"t\",\"storage_spec\":{\"uri\":\"x\"}},"
        "{\"type\":\"pace\",\"global_unique_name\":\"p\"},"
        "{\"type\":\"file\",\"global_unique_name\":\"none\"},"
        "{\"type\":\"new\",\"global_unique_name\":\"new\",\"storage_spec\":[],\"x\":{}}]");
    static const struct {
        const char *uri, *name;
        uint64_t bytes;
    } good[] = {
        {"file://n/tmp/nfs/i/tp0/1f", "i/tp0/1f", 0},
        {"file://n/tmp/nfs/i/tp0/1f?blkid=7&size=100", "i/tp0/1f?blkid=7&size=100", 100},
        {"file://n/tmp/nfs/i/tp0/1f?size=0100&blkid=007", "i/tp0/1f?blkid=7&size=100", 100},
        {"file://n/tmp/nfs/i/tp0/1f?size=100&sum=00ff", "i/tp0/1f?size=100", 100},
        {"file://n/tmp/nfs/%2e%2e/x", "%2e%2e/x", 0}, /* a name like others */
        {"hf3fs://f/3fs/kv/i/1f?size=5", "i/1f?size=5", 5},
        {"redis://r/i/tp0/1f?size=7", "i/tp0/1f", 7},
        {"s3://s/i~2f/tp0/1f?size=7", "i~2f/tp0/1f", 7},
        {"mooncake://m/?key=i/tp0/1f&size=7", "i/tp0/1f", 7},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        place = place_of(good[i].uri);
        ck_assert_uint_eq(place.name.bytes, strlen(good[i].name));
        ck_assert_mem_eq(place.name.text, good[i].name, place.name.bytes);
        ck_assert_uint_eq(place.bytes, good[i].bytes);
        ck_assert_int_eq(
            strncmp(strstr(good[i].uri, "://") + 3, tierce__fleet_store_name(place.store), 1), 0);
    }
    static const char *const unreachable[][2] = {
        {"tierce://t/i/1",
         "storage t: uri of a node's part must be transfer://HOST:PORT/memory or /disk"},
        {"pace://p/i/1", "storage p: TairMemPool has no public client"},
        {"file://none/i/1", "storage none: root_path must be an absolute path"},
        {"new://new/i/1", "storage new: there is no connector for storages of type new"}};
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(read_place(&place, unreachable[i][0]), TIERCE_E_UNSUPPORTED);
        ck_assert_str_eq(why, unreachable[i][1]);
    }
    end();
}
END_TEST

static const struct {
    const char *allowed, *url, *why; /* why NULL: it is allowed */
} trusts[] = {
    {"/mnt/kv", "file:///mnt/kv/?names=path", NULL},
    {"h,/mnt/kv//", "file:///mnt/kv/a/?names=path", NULL},
    {"/mnt/kv", "file:///mnt/kvs/?names=path", "folder /mnt/kvs/"},
    {"/mnt/kv", "file:///mnt/?names=path", "folder /mnt/"},
    {"/mnt/kv", "file:///mnt/kv/../x/", "folder"},
    {"/mnt/kv", "file:///mnt/k%76/a/", NULL},
    {"/run/redis", "redis+unix:///run/redis/s", NULL},
    {"/run/redis", "redis+unix:///run/other/s", "folder /run/other/s"},
    {"/mnt/kv", "redis://:6379/mnt/kv", "is not among"},
    {"10.0.0.5", "redis://10.0.0.5:6379", NULL},
    {"10.0.0.5:6379", "redis://u:p@10.0.0.5:6379/1", NULL},
    {"10.0.0.5:6379", "redis://10.0.0.5:6380", "host 10.0.0.5, port 6380,"},
    {"10.0.0.5:6379", "redis://10.0.0.5", "host 10.0.0.5 "},
    {"10.0.0.5", "redis://10.0.0.50:1", "host 10.0.0.50"},
    {"a,b", "redis+cluster://a:1,b:2", NULL},
    {"a,b", "redis+cluster://a:1,c:2", "host c"},
    {"Store.Example", "redis://store.example:1", NULL},
    {"*.example", "redis://store.example:1", NULL},
    {"*.example", "redis://example:1", "host example"},
    {"*.example", "redis://badexample:1", "host badexample"},
    {"*.example", "s3://bucket?endpoint=http://evil%23.example", "invalid character"},
    {"[fd00::5]:6379", "redis://[fd00::5]:6379", NULL},
    {"fd00::5", "redis://[fd00::5]:6379", NULL},
    {"[fd00::5]:6379", "redis://[fd00::5]:6380", "port 6380"},
    {"bucket", "s3://bucket?endpoint=http://store:9000&names=path", "host store, port 9000,"},
    {"store", "s3://bucket?endpoint=http://store:9000&names=path", NULL},
    {"store", "s3://bucket?names=path", "host amazonaws.com"},
    {"amazonaws.com", "s3://bucket?names=path", NULL},
    {"store", "s3://bucket?endpoint=store", "scheme"},
    {"m", "mooncake://m:1?metadata=P2PHANDSHAKE", NULL},
    {"m", "mooncake://m:1?metadata=http://other:1/meta", "host other"},
    {"m", "mooncake://m:1?metadata=other:2379", "host other"},
    {"m", "mooncake://m:1?metadata=p2phandshake", "host p2phandshake"},
    {"m,other:2379", "mooncake://m:1?metadata=other:2379", NULL},
    {"m,other:1", "mooncake://m:1?metadata=http://other:1/meta", NULL},
    {"n1", "transfer+tls://n1:7000/memory?ca_file=/x", NULL},
    {"n1", "transfer://n2:7000/memory", "host n2"},
};
enum { TRUSTS = sizeof(trusts) / sizeof(*trusts) };

START_TEST(managers_may_name_what_is_listed)
{
    bool is = tierce__fleet_allows(trusts[_i].allowed, trusts[_i].url, why);
    ck_assert_msg(is == (trusts[_i].why == NULL), "%s %s: %s", trusts[_i].allowed, trusts[_i].url,
                  why);
    ck_assert_msg(is || strstr(why, trusts[_i].why) != NULL, "%s %s: %s", trusts[_i].allowed,
                  trusts[_i].url, why);
}
END_TEST

START_TEST(lists_of_storages_are_checked)
{
    static const char *const bad[] = {
        "",    ",",      "a,",  ",a", "a,,b",  "/",       "//",     "a b",
        "u@h", "h/x",    "a?b", "h:", "h:0",   "h:65536", "h:1x",   "[::1",
        "[]",  "[::1]x", "*",   "*.", "a.*.b", "**.b",    "s3://b", "redis://h"};
    char config_why[TIERCE__CONNECTOR_WHY_BYTES];
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ck_assert_msg(tierce__fleet_allowed_check(bad[i], config_why) == TIERCE_E_CONFIG, "\"%s\"",
                      bad[i]);
    ck_assert_ptr_nonnull(strstr(config_why, "*.DOMAIN"));
    ck_assert_int_eq(tierce__fleet_allowed_check("/mnt/kv/,h,h:1,[::1]:2,::1,*.d", config_why), 0);
}
END_TEST

/* A storage that is not listed is not opened. */
START_TEST(other_storages_are_not_opened)
{
    struct tierce__fleet_place place;
    allowed = "/tmp/nfs,h:1";
    start();
    update("[{\"type\":\"file\",\"global_unique_name\":\"n\",\"storage_spec\":{\"root_path\":"
           "\"/tmp/nfs\"}},"
           "{\"type\":\"file\",\"global_unique_name\":\"o\",\"storage_spec\":{\"root_path\":"
           "\"/tmp/other\"}},"
           "{\"type\":\"redis\",\"global_unique_name\":\"r\",\"storage_spec\":{\"uri\":"
           "\"redis://h:1\"}},"
           "{\"type\":\"redis\",\"global_unique_name\":\"s\",\"storage_spec\":{\"uri\":"
           "\"redis://u:secret@h:2\"}}]");
    ck_assert_int_eq(read_place(&place, "file://n/tmp/nfs/i/1?size=1"), 0);
    ck_assert_int_eq(read_place(&place, "redis://r/i/1?size=1"), 0);
    ck_assert_int_eq(read_place(&place, "file://o/tmp/other/i/1?size=1"), TIERCE_E_UNSUPPORTED);
    ck_assert_str_eq(why, "storage o: folder /tmp/other/ is not among storages= of the fleet URL: "
                          "add it there if managers may name it");
    ck_assert_int_eq(read_place(&place, "redis://s/i/1?size=1"), TIERCE_E_UNSUPPORTED);
    ck_assert_str_eq(why, "storage s: host h, port 2, is not among storages= of the fleet URL: add "
                          "it there if managers may name it");
    end();
}
END_TEST

START_TEST(mooncake_requires_an_interpreter)
{
    struct tierce__fleet_place place;
    mooncake_python = NULL;
    start();
    update("[{\"type\":\"mooncake\",\"global_unique_name\":\"m\",\"storage_spec\":"
           "{\"master_server_entry\":\"h:1\"}}]");
    ck_assert_int_eq(read_place(&place, "mooncake://m/?key=i/tp0/1f&size=7"), TIERCE_E_UNSUPPORTED);
    ck_assert_msg(strstr(why, "mooncake_python=") != NULL, "%s", why);
    end();
}
END_TEST

/* A manager may not name anything outside of the storages that it has announced. */
START_TEST(hostile_uris)
{
    static const char *const bad[] = {
        "", "n", "://", "file://", "file://n", "file://n?size=1", "file:///tmp/nfs/i", "/tmp/nfs/i",
        "://n/tmp/nfs/i",
        /* other schemes */
        "redis://n/tmp/nfs/i", "plugin://n/tmp/nfs/i", "FILE://n/tmp/nfs/i", "filex://n/tmp/nfs/i",
        "fil://n/tmp/nfs/i", "file://r/i", "s3://r/i", "redis://s/i", "hf3fs://n/tmp/nfs/i",
        /* other paths */
        "file://n/tmp/nfs", "file://n/tmp/nfs/", "file://n/tmp/nfsx/i", "file://n/tmp/other/i",
        "file://n/etc/passwd", "file://n/tmp/nfs/../i", "file://n/tmp/nfs/i/../../../etc/passwd",
        "file://n/tmp/nfs/i/..", "file://n/tmp/nfs//i", "file://n/tmp/nfs/./i",
        "file://n/tmp/nfs/i/", "file://n//tmp/nfs/i", "file://n/tmp/../tmp/nfs/i",
        "file://n/tmp/nfs/i\n", "file://n/tmp/nfs/\x01", "redis://r/", "redis://r//i",
        "redis://r/../i", "redis://r/i/..", "redis://r/i\r\nFLUSHALL", "s3://s/../other/i",
        "s3://s/i/./j", "s3://s/i%2f..%2fj", "s3://s/i j", "s3://s/%2e%2e/i", "s3://s/<a>",
        /* numbers */
        "file://n/tmp/nfs/i?size=", "file://n/tmp/nfs/i?size=0", "file://n/tmp/nfs/i?size=-1",
        "file://n/tmp/nfs/i?size=1x", "file://n/tmp/nfs/i?size=140737488355328",
        "file://n/tmp/nfs/i?size=18446744073709551617", "file://n/tmp/nfs/i?blkid=1",
        "file://n/tmp/nfs/i?blkid=65536&size=1", "file://n/tmp/nfs/i?blkid=-1&size=1",
        "file://n/tmp/nfs/i?size=1&size=1", "file://n/tmp/nfs/i?blkid=1&blkid=1&size=1",
        "file://n/tmp/nfs/i?size", "file://n/tmp/nfs/i?&size=1", "redis://r/i?blkid=1&size=1",
        /* keys */
        "file://n/tmp/nfs/i?key=j", "redis://r/i?key=j", "mooncake://m/i", "mooncake://m/",
        "mooncake://m/?key=", "mooncake://m/?key=a&key=b", "mooncake://m/i?key=a",
        "mooncake://m/?key=../a", "mooncake://m/?key=/a", "mooncake://m/?key=a//b"};
    struct tierce__fleet_place place = {.bytes = 77};
    char text[9000];
    start();
    update(
        "[{\"type\":\"file\",\"global_unique_name\":\"n\",\"storage_spec\":{\"root_path\":"
        "\"/tmp/nfs\"}},"
        "{\"type\":\"redis\",\"global_unique_name\":\"r\",\"storage_spec\":{\"uri\":"
        "\"redis://h:1\"}},"
        "{\"type\":\"s3\",\"global_unique_name\":\"s\",\"storage_spec\":{\"uri\":\"s3://bucket\"}},"
        "{\"type\":\"mooncake\",\"global_unique_name\":\"m\",\"storage_spec\":"
        "{\"master_server_entry\":\"h:1\"}}]");
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        why[0] = '\0';
        int rc = read_place(&place, bad[i]);
        ck_assert_msg(rc == TIERCE_E_FORMAT, "%s: %d", bad[i], rc);
        ck_assert_msg(why[0] != '\0' && strpbrk(why, "\r\n\x01") == NULL, "%s", why);
        ck_assert_uint_eq(place.bytes, 77);
    }
    static const char *const unknown[] = {"file://x/tmp/nfs/i", "file://nn/tmp/nfs/i",
                                          "file://n:1/tmp/nfs/i", "file://u@n/tmp/nfs/i"};
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(read_place(&place, unknown[i]), TIERCE_E_MISS);
    /* Names of any length. */
    for (size_t bytes = 500; bytes < 8500; bytes += bytes < 520 ? 1 : 700) {
        int used = snprintf(text, sizeof(text), "file://n/tmp/nfs/");
        memset(text + used, 'n', bytes);
        text[(size_t)used + bytes] = '\0';
        if (strlen(text) > 8200)
            break;
        int rc = read_place(&place, text);
        ck_assert_int_eq(rc, bytes <= TIERCE__CONNECTOR_NAME_MAX ? 0 : TIERCE_E_FORMAT);
    }
    end();
}
END_TEST

START_TEST(wrong_answers_change_nothing)
{
    static const char *const bad[] = {
        "",
        "{}",
        "[",
        "[1]",
        "[{}]",
        "null",
        "\"\"",
        "[[]]",
        "[{\"type\":\"file\"}]",
        "[{\"global_unique_name\":\"n\"}]",
        "[{\"type\":4,\"global_unique_name\":\"n\"}]",
        "[{\"type\":\"file\",\"global_unique_name\":[\"n\"]}]",
        "[{\"type\":\"file\",\"global_unique_name\":\"n\\u0000\"}]",
        "[{\"type\":\"file\",\"global_unique_name\":\"n\",\"storage_spec\":{\"root_path\":1}}]",
        "[{\"type\":\"file\",\"global_unique_name\":\"n\"},"
        "{\"type\":\"file\",\"global_unique_name\":\"n\"}]",
        "[{\"type\":\"\xff\",\"global_unique_name\":\"n\"}]",
        "[] []"};
    char many[16000] = "[";
    start();
    update(file_json("n", "a"));
    struct tierce__fleet_place place = place_of(file_uri("n", "a", "i/f"));
    ck_assert_int_eq(put(&place, 1, 10), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        why[0] = '\0';
        int rc = tierce__fleet_stores_update(stores, bad[i], why);
        ck_assert_msg(rc == TIERCE_E_FORMAT, "%s: %d", bad[i], rc);
        ck_assert_ptr_nonnull(strstr(why, "storage_configs"));
    }
    for (unsigned i = 0; i < 257; i++)
        snprintf(many + strlen(many), sizeof(many) - strlen(many),
                 "%s{\"type\":\"x\",\"global_unique_name\":\"%u\"}", i > 0 ? "," : "", i);
    strcat(many, "]");
    ck_assert_int_eq(tierce__fleet_stores_update(stores, many, why), TIERCE_E_FORMAT);
    place = place_of(file_uri("n", "a", "i/f"));
    ck_assert_int_eq(get(&place, 1, 10), 0);
    end();
}
END_TEST

/* However often a manager changes its mind, it costs bounded memory. */
START_TEST(changes_have_a_limit)
{
    char json[256];
    int rc = 0;
    unsigned i;
    start();
    for (i = 0; i < 2000 && rc == 0; i++) {
        snprintf(json, sizeof(json),
                 "[{\"type\":\"file\",\"global_unique_name\":\"n\",\"storage_spec\":"
                 "{\"root_path\":\"/tmp/%u\"}}]",
                 i);
        rc = tierce__fleet_stores_update(stores, json, why);
    }
    ck_assert_int_eq(rc, TIERCE_E_FORMAT);
    ck_assert_uint_gt(i, 1000);
    for (i = 0; i < 2000; i++) /* to and fro is free */
        update(i % 2 ? "[]"
                     : "[{\"type\":\"file\",\"global_unique_name\":\"n\",\"storage_spec\":"
                       "{\"root_path\":\"/tmp/7\"}}]");
    end();
}
END_TEST

/* ---- connectors ------------------------------------------------------------------------------ */

START_TEST(slots_of_a_folder)
{
    start();
    update(file_json("n", "a"));
    struct tierce__fleet_place one = place_of(file_uri("n", "a", "i/tp0/1f?blkid=1&size=5000")),
                               two = place_of(file_uri("n", "a", "i/tp0/1f?blkid=2&size=5000"));
    ck_assert_int_eq(get(&one, 1, 5000), TIERCE_E_MISS);
    ck_assert_int_eq(put(&one, 1, 5000), 0);
    ck_assert_int_eq(put(&two, 2, 5000), 0);
    ck_assert_int_eq(bytes_of("a/i/tp0/1f"), 15000);
    ck_assert_int_eq(get(&one, 1, 5000), 0);
    ck_assert_int_eq(get(&two, 2, 5000), 0);
    ck_assert_str_eq(store_why(&one), "");
    end();
}
END_TEST

/* A storage that is added again with another root is another one: places below the old root stay
 * there, or nowhere. */
START_TEST(another_root)
{
    start();
    update(file_json("n", "a"));
    struct tierce__fleet_place old = place_of(file_uri("n", "a", "i/f"));
    ck_assert_int_eq(put(&old, 1, 10), 0);
    update(file_json("n", "b"));
    struct tierce__fleet_place place;
    ck_assert_int_eq(read_place(&place, file_uri("n", "a", "i/f")), TIERCE_E_FORMAT);
    ck_assert_int_eq(put(&old, 2, 10), TIERCE_E_DOWN);
    ck_assert_int_eq(get(&old, 1, 10), TIERCE_E_DOWN);
    ck_assert_str_eq(store_why(&old), "storage n: the manager has removed or changed it");
    ck_assert_int_eq(bytes_of("b/i/f"), -1);
    place = place_of(file_uri("n", "b", "i/f"));
    ck_assert_ptr_ne(place.store, old.store);
    ck_assert_int_eq(put(&place, 3, 20), 0);
    ck_assert_int_eq(bytes_of("a/i/f"), 10);
    update("[]");
    ck_assert_int_eq(read_place(&place, file_uri("n", "b", "i/f")), TIERCE_E_MISS);
    update(file_json("n", "a"));
    place = place_of(file_uri("n", "a", "i/f"));
    ck_assert_ptr_eq(place.store, old.store);
    ck_assert_int_eq(get(&old, 1, 10), 0);
    end();
}
END_TEST

#define MARK "0123456789abcdef0123456789abcdef"

static void write_mark(const char *folder, const char *text)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/~tierce-pool", at(folder));
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static const char *marked_json(const char *mark)
{
    static char text[640];
    const char *json = file_json("n", "a");
    snprintf(text, sizeof(text), "%.*s,\"mark\":\"%s\"}]", (int)strlen(json) - 2, json, mark);
    return text;
}

/* An empty mount point takes no block, and serves none. */
START_TEST(a_folder_with_a_mark)
{
    start();
    update(file_json("n", "a"));
    struct tierce__fleet_place place = place_of(file_uri("n", "a", "i/f"));
    ck_assert_int_eq(put(&place, 1, 10), 0);
    ck_assert(!tierce__fleet_store_is_marked(place.store));
    ck_assert_int_eq(tierce__fleet_stores_update(stores, marked_json("xyz"), why), TIERCE_E_FORMAT);
    ck_assert_str_eq(why, "storage_configs: mark must be 32 hex digits in lower case");
    ck_assert_uint_eq(tierce__fleet_stores_registry(stores), 0);
    update(marked_json("00000000000000000000000000000000"));
    uint64_t other = tierce__fleet_stores_registry(stores);
    update(marked_json(MARK)); /* the same storage */
    ck_assert(tierce__fleet_store_is_marked(place.store));
    ck_assert(other != 0 && tierce__fleet_stores_registry(stores) != 0);
    ck_assert_uint_ne(tierce__fleet_stores_registry(stores), other);
    ck_assert_int_eq(get(&place, 1, 10), 0);
    tierce__fleet_store_reopen(place.store);
    ck_assert_int_eq(get(&place, 1, 10), TIERCE_E_DOWN);
    ck_assert_msg(strstr(store_why(&place), "no mark ~tierce-pool; is its file system mounted?") !=
                      NULL,
                  "%s", store_why(&place));
    write_mark("a", "tierce-pool 1 00000000000000000000000000000000\n");
    WAIT_FOR(get(&place, 1, 10) == TIERCE_E_DOWN &&
             strstr(store_why(&place), "another mark ~tierce-pool") != NULL);
    ck_assert_int_eq(put(&place, 2, 10), TIERCE_E_DOWN);
    write_mark("a", "tierce-pool 1 " MARK "\n");
    WAIT_FOR(get(&place, 1, 10) == 0);
    end();
}
END_TEST

/* Updates while requests are in progress: each is answered once, by the connector that it had. */
START_TEST(updates_meanwhile)
{
    enum { COUNT = 60, ROUNDS = 20 };
    static struct connector_call calls[COUNT];
    start();
    for (unsigned round = 0; round < ROUNDS; round++) {
        const char *folder = round % 2 ? "a" : "b";
        update(file_json("n", folder));
        for (unsigned i = 0; i < COUNT; i++) {
            char rest[32];
            snprintf(rest, sizeof(rest), "i/%u", i);
            struct tierce__fleet_place place = place_of(file_uri("n", folder, rest));
            call_init(&calls[i], &place, TIERCE__STORE_PUT);
            calls[i].req.buf = connector_object(pool, i, 100);
            calls[i].req.length = 100;
            tierce__fleet_store_submit(place.store, &calls[i].req);
            if (i == COUNT / 2 && round % 3 == 0)
                update("[]");
            if (i == COUNT / 2)
                update(file_json("n", folder));
        }
        if (round % 4 == 0)
            update("[]");
        for (unsigned i = 0; i < COUNT; i++) {
            int rc = connector_call_wait(&calls[i]);
            ck_assert_msg(rc == 0 || rc == TIERCE_E_DOWN, "%d", rc);
            tierce__buf_release(calls[i].req.buf);
        }
    }
    end();
}
END_TEST

static void write_credentials(const char *password)
{
    FILE *file = fopen(at("credentials"), "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "password=%s\n", password);
    fclose(file);
}

/* Waits until a PUT is answered 0; attempts before it are DOWN or REFUSED. */
static void put_at_last(const struct tierce__fleet_place *place)
{
    uint64_t until_ns = tierce__deadline_in_ms(60000);
    int rc;
    while ((rc = put(place, 1, 100)) != 0) {
        ck_assert_msg(rc == TIERCE_E_DOWN || rc == TIERCE_E_REFUSED, "%d", rc);
        ck_assert_ptr_null(strstr(store_why(place), "hidden"));
        ck_assert_msg(tierce__now_ns() < until_ns, "%s", store_why(place));
        usleep(20000);
    }
}

/* A file of credentials that comes later, and a password that changes. */
START_TEST(credentials_come_and_change)
{
    struct redis_server server;
    char json[512], answer[256];
    ck_assert(redis_start(&server, (const char *const[]){"--requirepass", "hidden1", NULL}));
    start();
    snprintf(json, sizeof(json),
             "[{\"type\":\"redis\",\"global_unique_name\":\"r\",\"storage_spec\":{\"uri\":"
             "\"redis://127.0.0.1:%u?key_prefix=kv:&credentials_file=%s\"}}]",
             (unsigned)server.port, at("credentials"));
    update(json);
    struct tierce__fleet_place place = place_of("redis://r/i/tp0/1f?size=100"), other;
    ck_assert_int_eq(put(&place, 1, 100), TIERCE_E_DOWN);
    ck_assert_ptr_nonnull(strstr(store_why(&place), "storage r: credentials: "));
    ck_assert_ptr_nonnull(strstr(store_why(&place), "No such file"));
    ck_assert_int_eq(read_place(&other, "redis://r/i/tp0/1f?size=100"), TIERCE_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why, "No such file"));
    write_credentials("hidden1");
    put_at_last(&place);
    ck_assert_int_eq(get(&place, 1, 100), 0);
    /* Its connections are cut, and the next ones need the new password. */
    ck_assert(!redis_tell(server.port, answer, sizeof(answer), "GET kv:i/tp0/1f"));
    ck_assert_ptr_nonnull(strstr(answer, "NOAUTH"));
    write_credentials("hidden2");
    ck_assert(redis_tell(server.port, answer, sizeof(answer), "AUTH hidden1") ||
              strstr(answer, "OK") != NULL);
    redis_kill(&server);
    ck_assert(redis_run(&server, false, (const char *const[]){"--requirepass", "hidden2", NULL}));
    put_at_last(&place);
    ck_assert_int_eq(get(&place, 1, 100), 0);
    end();
    redis_stop(&server);
}
END_TEST

/* To open the connector takes long: requests for it end at their deadlines, and others are served.
 */
START_TEST(a_connector_that_opens_slowly)
{
    struct script_server agent;
    struct connector_call call;
    char json[900], url[64];
    start();
    script_server_start(&agent, NULL, 0);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/", (unsigned)agent.port);
    static const char *const names[] = {"AWS_ACCESS_KEY_ID",
                                        "AWS_SECRET_ACCESS_KEY",
                                        "AWS_PROFILE",
                                        "AWS_SHARED_CREDENTIALS_FILE",
                                        "AWS_CONFIG_FILE",
                                        "AWS_WEB_IDENTITY_TOKEN_FILE",
                                        "AWS_ROLE_ARN",
                                        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                        "AWS_EC2_METADATA_DISABLED"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        unsetenv(names[i]);
    setenv("HOME", root, 1);
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url, 1);
    int used = snprintf(json, sizeof(json),
                        "[{\"type\":\"s3\",\"global_unique_name\":\"s\",\"storage_spec\":{\"uri\":"
                        "\"s3://bucket?endpoint=http://127.0.0.1:1\"}},");
    snprintf(json + used, sizeof(json) - (size_t)used, "%s", file_json("n", "a") + 1);
    update(json);
    struct tierce__fleet_place slow = place_of("s3://s/i/f?size=10"),
                               fast = place_of(file_uri("n", "a", "i/f"));
    call_init(&call, &slow, TIERCE__STORE_GET);
    call.req.buf = connector_object(pool, 1, 10);
    call.req.length = 10;
    call.req.deadline_ns = tierce__deadline_in_ms(200);
    uint64_t begun_ns = tierce__now_ns();
    tierce__fleet_store_submit(slow.store, &call.req);
    ck_assert_int_eq(put(&fast, 1, 10), 0);
    ck_assert_int_eq(connector_call_wait(&call), TIERCE_E_DEADLINE);
    ck_assert_uint_ge(tierce__now_ns() - begun_ns, 200000000);
    WAIT_FOR(atomic_load(&agent.connections) >= 1);
    /* One that waits when the storage goes, and one when all is closed. */
    call.req.deadline_ns = TIERCE__DEADLINE_NEVER;
    atomic_store(&call.done_count, 0);
    tierce__fleet_store_submit(slow.store, &call.req);
    update(file_json("n", "a"));
    ck_assert_int_eq(connector_call_wait(&call), TIERCE_E_DOWN);
    update(json);
    atomic_store(&call.done_count, 0);
    tierce__fleet_store_submit(slow.store, &call.req);
    ck_assert(!tierce__fleet_stores_close(stores, tierce__deadline_in_ms(300)));
    ck_assert_int_eq(connector_call_wait(&call), TIERCE_E_CANCELLED);
    tierce__buf_release(call.req.buf);
    script_server_stop(&agent); /* the attempt ends, and with it the last thread */
    temp_folder_remove(root);
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    char json[512];
    snprintf(root, sizeof(root), "/tmp/tierce-fleet-XXXXXX");
    temp_folder_make(root);
    ck_assert_int_eq(mkdir(at("a"), 0700), 0);
    pool = connector_pool();
    snprintf(json, sizeof(json), "%s", file_json("n", "a"));
    uint64_t live = tierce__alloc_live();
    int rc = -ENOMEM;
    for (uint64_t nth = 1; rc != 0; nth++) {
        struct tierce__fleet_place place;
        stores = NULL;
        tierce__alloc_fail_nth(nth);
        rc = tierce__fleet_stores_open(
            &stores, &(struct tierce__fleet_stores_opts){
                         .size = sizeof(struct tierce__fleet_stores_opts), .pool = pool});
        if (rc == 0)
            rc = tierce__fleet_stores_update(stores, json, why);
        if (rc == 0)
            rc = read_place(&place, file_uri("n", "a", "i/f"));
        if (rc == 0) {
            int puts = put(&place, 1, 100), gets = get(&place, 1, 100);
            ck_assert(puts == 0 || puts == -ENOMEM || puts == TIERCE_E_DOWN);
            rc = puts != 0 ? -ENOMEM : gets != 0 ? -ENOMEM : 0;
        }
        ck_assert(rc == 0 || rc == -ENOMEM);
        ck_assert(tierce__fleet_stores_close(stores, tierce__deadline_in_ms(30000)));
        ck_assert(tierce__alloc_fail_nth(0) >= nth || rc == 0);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    tierce__pool_destroy(pool);
    temp_folder_remove(root);
}
END_TEST

CHECK_MAIN("fleet stores", .seconds = 120, .loops = {{managers_may_name_what_is_listed, 0, TRUSTS}},
           .tests = {storages_are_read, mooncake_requires_an_interpreter,
                     lists_of_storages_are_checked, other_storages_are_not_opened, hostile_uris,
                     wrong_answers_change_nothing, changes_have_a_limit, slots_of_a_folder,
                     another_root, a_folder_with_a_mark, updates_meanwhile,
                     credentials_come_and_change, a_connector_that_opens_slowly,
                     each_allocation_fails_once})
