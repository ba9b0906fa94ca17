/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between real storages: which bytes arrive, and which are never written. */
#include "mover/copier.h"
#include "chunk_object.h"
#include "connector_harness.h"
#include "raw_transfer.h"
#include "redis_server.h"
#include "s3_server.h"
#include "script_server.h"
#include "silent_log.h"
#include "temp_folder.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "core/chunk/coded.h"
#include "store/remote/fleet/storage_at.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CELL = 1024, KEY = 0x1122, TIMEOUT_MS = 20000, COPIES = 64 };

static char root[64], why[TIERCE__FLEET_WHY_BYTES];
static struct tierce__copier *copier;
static sem_t woken;
static uint64_t bytes; /* of a chunk */

/* ---- the world ------------------------------------------------------------------------------- */

static const char *at(const char *name)
{
    static char path[4][160];
    static unsigned next;
    snprintf(path[next % 4], sizeof(path[0]), "%s/%s", root, name);
    return path[next++ % 4];
}

static void wake(void *arg)
{
    (void)arg;
    sem_post(&woken);
}

static int open_copier(uint64_t memory, uint64_t rate, uint32_t timeout_ms)
{
    return tierce__copier_open(
        &copier, &(struct tierce__copier_opts){.size = sizeof(struct tierce__copier_opts),
                                               .memory_bytes = memory,
                                               .rate_bytes_per_s = rate,
                                               .parallel_max = 8,
                                               .timeout_ms = timeout_ms,
                                               .wake = wake});
}

static void start_with(uint64_t memory, uint64_t rate, uint32_t timeout_ms)
{
    silence_log();
    snprintf(root, sizeof(root), "/tmp/tierce-mover-XXXXXX");
    temp_folder_make(root);
    ck_assert_int_eq(mkdir(at("a"), 0700), 0);
    ck_assert_int_eq(mkdir(at("b"), 0700), 0);
    ck_assert_int_eq(sem_init(&woken, 0, 0), 0);
    bytes = chunk_object_bytes(CELL);
    ck_assert_int_eq(open_copier(memory, rate, timeout_ms), 0);
}

static void start(void)
{
    start_with(16 << 20, 0, TIMEOUT_MS);
}

static void end(void)
{
    ck_assert(tierce__copier_close(copier, tierce__deadline_in_ms(30000)));
    temp_folder_remove(root);
}

static void storages(const char *json)
{
    int rc = tierce__copier_set_storages(copier, json, why);
    ck_assert_msg(rc == 0, "%s: %s", json, why);
}

/* The folders "a" and "b", and what `more` has. */
static void folders(const char *more)
{
    char json[2048];
    snprintf(json, sizeof(json),
             "[{\"type\":\"file\",\"global_unique_name\":\"a\",\"storage_spec\":{\"root_path\":"
             "\"%s\"}},{\"type\":\"file\",\"global_unique_name\":\"b\",\"storage_spec\":{"
             "\"root_path\":\"%s\"}}%s]",
             at("a"), at("b"), more);
    storages(json);
}

static const char *file_uri(const char *folder, const char *rest)
{
    static char text[8][256];
    static unsigned next;
    snprintf(text[next % 8], sizeof(text[0]), "file://%s%s/%s", folder, at(folder), rest);
    return text[next++ % 8];
}

/* ---- files ----------------------------------------------------------------------------------- */

static void write_file(const char *name, const uint8_t *data, uint64_t count)
{
    int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, count), (ssize_t)count);
    close(fd);
}

static int64_t read_file(const char *name, uint8_t *data, uint64_t room)
{
    int fd = open(at(name), O_RDONLY);
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, data, room);
    close(fd);
    return got;
}

static bool is_there(const char *name)
{
    return access(at(name), F_OK) == 0;
}

/* The chunk of a key, and of rank 0. */
static uint8_t *chunk(int64_t key)
{
    static uint8_t object[1 << 16];
    ck_assert_uint_le(bytes, sizeof(object));
    chunk_object_fill(object, key, 0, CELL, 3);
    return object;
}

static bool is_chunk(const char *name, int64_t key)
{
    static uint8_t found[1 << 16];
    return read_file(name, found, sizeof(found)) == (int64_t)bytes &&
           memcmp(found, chunk(key), bytes) == 0;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static struct tierce__copy copies[COPIES];
static unsigned done_count;

static void done(struct tierce__copy *copy)
{
    ck_assert_ptr_eq(copy->arg, copy);
    copy->arg = NULL; /* once */
    done_count++;
}

static void add(struct tierce__copy *copy, int64_t key, const char *from, const char *to)
{
    *copy = (struct tierce__copy){.block_key = key,
                                  .spec = "tp0",
                                  .from = from,
                                  .to = to,
                                  .put_until_ns = TIERCE__DEADLINE_NEVER,
                                  .done = done,
                                  .arg = copy};
    tierce__copier_add(copier, copy);
}

static void wait_until(uint64_t until_ns)
{
    uint64_t now_ns = tierce__now_ns();
    if (until_ns <= now_ns)
        return;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t wait_ns = until_ns - now_ns < 100000000 ? until_ns - now_ns : 100000000;
    uint64_t sum = (uint64_t)until.tv_nsec + wait_ns;
    until.tv_sec += (time_t)(sum / 1000000000);
    until.tv_nsec = (long)(sum % 1000000000);
    (void)sem_timedwait(&woken, &until);
}

static void run_until(unsigned count)
{
    uint64_t until_ns = tierce__deadline_in_ms(100000);
    for (;;) {
        uint64_t next_ns = tierce__copier_step(copier);
        if (done_count >= count)
            break;
        ck_assert_uint_lt(tierce__now_ns(), until_ns);
        wait_until(next_ns);
    }
    done_count = 0;
}

/* Until this copy is done. */
static void run(const struct tierce__copy *wanted)
{
    for (;;) {
        uint64_t next_ns = tierce__copier_step(copier);
        if (wanted->arg == NULL)
            break;
        wait_until(next_ns);
    }
}

static enum tierce__copy_result copy(int64_t key, const char *from, const char *to)
{
    add(&copies[0], key, from, to);
    run_until(1);
    ck_assert((copies[0].why[0] == '\0') == (copies[0].result == TIERCE__COPY_COPIED));
    return copies[0].result;
}

#define expect_copy(key, from, to, wanted)                                                         \
    do {                                                                                           \
        enum tierce__copy_result result_ = copy(key, from, to);                                    \
        ck_assert_msg(result_ == (wanted), "%s: %s", tierce__copy_result_name(result_),            \
                      copies[0].why);                                                              \
    } while (0)

#define expect_why(word) ck_assert_msg(strstr(copies[0].why, word) != NULL, "%s", copies[0].why)

/* ---- in place of tierce__fleet_store_caps ---------------------------------------------------- */

unsigned __real_tierce__fleet_store_caps(struct tierce__fleet_store *store);
unsigned __wrap_tierce__fleet_store_caps(struct tierce__fleet_store *store);

/* Another writer replaces the object between the PUT and the comparison. */
static bool keeps_first, is_overtaken;

unsigned __wrap_tierce__fleet_store_caps(struct tierce__fleet_store *store)
{
    unsigned caps = __real_tierce__fleet_store_caps(store);
    ck_assert_uint_eq(caps & TIERCE__CONNECTOR_NO_REPLACE, 0);
    if (is_overtaken)
        write_file("b/f", chunk(KEY + 1), bytes);
    return keeps_first ? caps | TIERCE__CONNECTOR_NO_REPLACE : caps;
}

/* ---- all kinds of storages ------------------------------------------------------------------- */

/* Through a folder, Redis, S3, a node's memory and a slot of a file: the same bytes come out. */
START_TEST(through_all_storages)
{
    static struct raw_world node;
    struct redis_server redis;
    struct s3_server s3;
    char more[1200], size[64], uris[5][160];
    start();
    ck_assert(redis_start(&redis, (const char *const[]){NULL}));
    ck_assert(s3_start(&s3));
    raw_start(&node, 1 << 20);
    snprintf(more, sizeof(more),
             ",{\"type\":\"redis\",\"global_unique_name\":\"r\",\"storage_spec\":{\"uri\":"
             "\"redis://127.0.0.1:%u?key_prefix=kv:\"}},"
             "{\"type\":\"s3\",\"global_unique_name\":\"s\",\"storage_spec\":{\"uri\":"
             "\"s3://%s:%s@kv-cache/p?endpoint=http://127.0.0.1:%u\"}},"
             "{\"type\":\"tierce\",\"global_unique_name\":\"t\",\"storage_spec\":{\"uri\":"
             "\"transfer://127.0.0.1:%u/memory\"}}",
             (unsigned)redis.port, S3_ACCESS, S3_SECRET_IN_URL, (unsigned)s3.port,
             (unsigned)tierce__transfer_server_port(node.server));
    folders(more);
    snprintf(size, sizeof(size), "size=%llu", (unsigned long long)bytes);
    snprintf(uris[0], sizeof(uris[0]), "%s?%s", file_uri("a", "f"), size);
    snprintf(uris[1], sizeof(uris[0]), "redis://r/i/tp0/1?%s", size);
    snprintf(uris[2], sizeof(uris[0]), "s3://s/i/tp0/1?%s", size);
    snprintf(uris[3], sizeof(uris[0]), "tierce://t/i/tp0/1?%s", size);
    snprintf(uris[4], sizeof(uris[0]), "%s?blkid=3&%s", file_uri("b", "i/tp0/1f"), size);
    write_file("a/f", chunk(KEY), bytes);
    for (unsigned i = 0; i < 4; i++)
        expect_copy(KEY, uris[i], uris[i + 1], TIERCE__COPY_COPIED);
    uint8_t *found = malloc(4 * bytes);
    ck_assert_int_eq(read_file("b/i/tp0/1f", found, 4 * bytes), (int64_t)(4 * bytes));
    ck_assert_mem_eq(found + 3 * bytes, chunk(KEY), bytes);
    free(found);
    /* Out of the slot; and a slot that was never written. */
    expect_copy(KEY, uris[4], file_uri("a", "g"), TIERCE__COPY_TARGET_FAILED);
    expect_why("bytes");
    snprintf(more, sizeof(more), "%s?%s", file_uri("a", "g"), size);
    expect_copy(KEY, uris[4], more, TIERCE__COPY_COPIED);
    ck_assert(is_chunk("a/g", KEY));
    snprintf(uris[4], sizeof(uris[0]), "%s?blkid=1&%s", file_uri("b", "i/tp0/1f"), size);
    expect_copy(KEY, uris[4], more, TIERCE__COPY_SOURCE_DAMAGED);
    struct tierce__copier_stats stats;
    tierce__copier_stats(copier, &stats);
    ck_assert_uint_eq(stats.objects[TIERCE__COPY_COPIED], 5);
    ck_assert_uint_eq(stats.copied_bytes, 5 * bytes);
    ck_assert_uint_eq(stats.running, 0);
    end();
    raw_stop(&node);
    s3_stop(&s3);
    redis_stop(&redis);
}
END_TEST

/* ---- sources --------------------------------------------------------------------------------- */

static char from[200], to[200];

static void set_places(const char *target)
{
    snprintf(from, sizeof(from), "%s?size=%llu", file_uri("a", "f"), (unsigned long long)bytes);
    snprintf(to, sizeof(to), "%s?size=%llu", file_uri("b", target), (unsigned long long)bytes);
}

START_TEST(damaged_sources_are_never_copied)
{
    start();
    folders("");
    set_places("f");
    uint64_t header = bytes - 8 * CELL; /* two layers of four blocks, and no padding */
    const uint64_t flips[] = {16, 40, 70, 130, 200, 255, 260, header, header + CELL, bytes - 1};
    for (size_t i = 0; i < sizeof(flips) / sizeof(*flips); i++) {
        uint8_t *object = chunk(KEY);
        object[flips[i]] ^= 0x10;
        write_file("a/f", object, bytes);
        enum tierce__copy_result result = copy(KEY, from, to);
        ck_assert_msg(result == TIERCE__COPY_SOURCE_DAMAGED, "byte %llu",
                      (unsigned long long)flips[i]);
    }
    write_file("a/f", chunk(KEY + 1), bytes);
    expect_copy(KEY, from, to, TIERCE__COPY_SOURCE_DAMAGED);
    expect_why("another block");
    uint8_t *object = chunk(KEY);
    chunk_object_fill(object, KEY, 1, CELL, 3);
    write_file("a/f", object, bytes);
    expect_copy(KEY, from, to, TIERCE__COPY_SOURCE_DAMAGED);
    expect_why("another rank");
    write_file("a/f", chunk(KEY), bytes - 1); /* a folder has no object that is too short */
    expect_copy(KEY, from, to, TIERCE__COPY_SOURCE_MISSING);
    /* Engines store chunks only, so other bytes are no engine's. */
    object = chunk(KEY);
    memset(object, 0, bytes);
    write_file("a/f", object, bytes);
    expect_copy(KEY, from, to, TIERCE__COPY_SOURCE_DAMAGED);
    expect_why("no chunk");
    /* Bytes that nothing proves here: a version of tomorrow. */
    object = chunk(KEY);
    object[8] = 99;
    write_file("a/f", object, bytes);
    expect_copy(KEY, from, to, TIERCE__COPY_UNVERIFIABLE);
    expect_copy(KEY, file_uri("a", "f"), to, TIERCE__COPY_UNVERIFIABLE);
    ck_assert(!is_there("b/f"));
    write_file("a/f", chunk(KEY), bytes);
    expect_copy(KEY, from, to, TIERCE__COPY_COPIED);
    ck_assert(is_chunk("b/f", KEY));
    end();
}
END_TEST

#define MARK "0123456789abcdef0123456789abcdef"

/* A folder that has lost its mark is perhaps not mounted: nothing is missing there. */
START_TEST(missing_sources)
{
    char json[800];
    start();
    folders("");
    set_places("f");
    expect_copy(KEY, from, to, TIERCE__COPY_SOURCE_MISSING);
    ck_assert(!copies[0].storage_failed);
    snprintf(json, sizeof(json),
             "[{\"type\":\"file\",\"global_unique_name\":\"a\",\"mark\":\"" MARK "\","
             "\"storage_spec\":{\"root_path\":\"%s\"}},{\"type\":\"file\",\"global_unique_name\":"
             "\"b\",\"storage_spec\":{\"root_path\":\"%s\"}}]",
             at("a"), at("b"));
    storages(json);
    expect_copy(KEY, from, to, TIERCE__COPY_SOURCE_UNREACHABLE);
    ck_assert(copies[0].storage_failed);
    expect_why("mounted?");
    write_file("a/~tierce-pool", (const uint8_t *)"tierce-pool 1 " MARK "\n", 47);
    WAIT_FOR(copy(KEY, from, to) == TIERCE__COPY_SOURCE_MISSING);
    expect_copy(KEY, "file://nobody/x?size=9", to, TIERCE__COPY_SOURCE_UNREACHABLE);
    expect_copy(KEY, "nonsense", to, TIERCE__COPY_SOURCE_UNREACHABLE);
    expect_copy(KEY, from, "redis://b/x?size=9", TIERCE__COPY_TARGET_FAILED);
    ck_assert(!is_there("b/f"));
    end();
}
END_TEST

/* ---- targets --------------------------------------------------------------------------------- */

static char other[200];

/* A storage "r" of Redis, and its place for the chunk. */
static void add_redis(uint16_t port)
{
    char more[300];
    snprintf(more, sizeof(more),
             ",{\"type\":\"redis\",\"global_unique_name\":\"r\",\"storage_spec\":{\"uri\":"
             "\"redis://127.0.0.1:%u\"}}",
             (unsigned)port);
    folders(more);
    set_places("f");
    snprintf(other, sizeof(other), "redis://r/i/tp0/1?size=%llu", (unsigned long long)bytes);
    write_file("a/f", chunk(KEY), bytes);
}

START_TEST(a_target_that_dies)
{
    struct redis_server redis;
    start();
    ck_assert(redis_start(&redis, (const char *const[]){NULL}));
    add_redis(redis.port);
    expect_copy(KEY, from, other, TIERCE__COPY_COPIED);
    redis_kill(&redis);
    expect_copy(KEY, from, other, TIERCE__COPY_TARGET_FAILED);
    ck_assert(copies[0].storage_failed);
    expect_why("storage r");
    expect_copy(KEY, other, to, TIERCE__COPY_SOURCE_UNREACHABLE);
    ck_assert(copies[0].storage_failed);
    ck_assert(!is_there("b/f"));
    end();
    redis_stop(&redis);
}
END_TEST

/* Requests to it end in time, and other copies go on meanwhile. */
START_TEST(a_target_that_hangs)
{
    struct script_server server;
    start_with(16 << 20, 0, 500);
    script_server_start(&server, NULL, 0);
    add_redis(server.port);
    add(&copies[0], KEY, from, other);
    add(&copies[1], KEY, other, to);
    do { /* its own requests may be late on a busy machine */
        add(&copies[2], KEY, from, to);
        run(&copies[2]);
    } while (copies[2].result != TIERCE__COPY_COPIED);
    run(&copies[0]);
    run(&copies[1]);
    done_count = 0;
    ck_assert_int_ne(copies[0].result, TIERCE__COPY_COPIED);
    ck_assert_int_eq(copies[1].result, TIERCE__COPY_SOURCE_UNREACHABLE);
    ck_assert(copies[0].storage_failed && copies[1].storage_failed);
    /* Closed while a request is with it. */
    add(&copies[0], KEY, other, to);
    (void)tierce__copier_step(copier);
    end();
    ck_assert_uint_eq(done_count, 1);
    ck_assert_int_eq(copies[0].result, TIERCE__COPY_UNDONE);
    script_server_stop(&server);
}
END_TEST

static struct raw_world node;

/* Adds the storage t, a part of a node, which has room for so many. */
static void start_node(double objects)
{
    char more[300];
    start();
    raw_start(&node, (uint64_t)((double)bytes * objects));
    snprintf(more, sizeof(more),
             ",{\"type\":\"tierce\",\"global_unique_name\":\"t\",\"storage_spec\":{\"uri\":"
             "\"transfer://127.0.0.1:%u/memory\"}}",
             (unsigned)tierce__transfer_server_port(node.server));
    folders(more);
    set_places("f");
    write_file("a/f", chunk(KEY), bytes);
}

static void in_node(int number)
{
    snprintf(other, sizeof(other), "tierce://t/i/tp0/%d?size=%llu", number,
             (unsigned long long)bytes);
}

START_TEST(a_target_that_is_full)
{
    start_node(1.5);
    in_node(1);
    expect_copy(KEY, from, other, TIERCE__COPY_COPIED);
    in_node(2);
    expect_copy(KEY, from, other, TIERCE__COPY_TARGET_FAILED);
    ck_assert_uint_eq(map_keeper_objects(node.keeper), 1);
    end();
    raw_stop(&node);
}
END_TEST

/* A node that is short of memory rejects the other objects of a batch, too. */
START_TEST(a_node_that_is_busy)
{
    start_node(4);
    in_node(1);
    map_keeper_fail(node.keeper, TIERCE_E_LIMIT, 1);
    expect_copy(KEY, from, other, TIERCE__COPY_TARGET_FAILED);
    ck_assert(copies[0].storage_failed);
    expect_copy(KEY, from, other, TIERCE__COPY_COPIED);
    map_keeper_fail(node.keeper, TIERCE_E_LIMIT, 1);
    expect_copy(KEY, other, to, TIERCE__COPY_SOURCE_UNREACHABLE);
    ck_assert(copies[0].storage_failed);
    expect_copy(KEY, other, to, TIERCE__COPY_COPIED);
    end();
    raw_stop(&node);
}
END_TEST

/* A storage that keeps the first object of a name says yes to every PUT. */
START_TEST(a_target_that_keeps_the_first)
{
    start();
    folders("");
    set_places("f");
    write_file("a/f", chunk(KEY), bytes);
    keeps_first = true;
    expect_copy(KEY, from, to, TIERCE__COPY_COPIED);
    is_overtaken = true;
    expect_copy(KEY, from, to, TIERCE__COPY_TARGET_FAILED);
    expect_why("another object");
    keeps_first = is_overtaken = false;
    end();
}
END_TEST

/* ---- bounds ---------------------------------------------------------------------------------- */

static char places[COPIES][2][200];

static void add_many(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof(name), "a/%u", i);
        write_file(name, chunk(KEY + i), bytes);
        for (unsigned j = 0; j < 2; j++)
            snprintf(places[i][j], sizeof(places[0][0]), "%s?size=%llu",
                     file_uri(j == 0 ? "a" : "b", name + 2), (unsigned long long)bytes);
        add(&copies[i], KEY + i, places[i][0], places[i][1]);
    }
}

static void expect_many(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof(name), "b/%u", i);
        ck_assert_int_eq(copies[i].result, TIERCE__COPY_COPIED);
        ck_assert(is_chunk(name, KEY + i));
    }
}

START_TEST(memory_is_bounded)
{
    bytes = chunk_object_bytes(CELL);
    start_with(1 << 20, 0, TIMEOUT_MS);
    folders("");
    add_many(COPIES);
    run_until(COPIES);
    expect_many(COPIES);
    set_places("f");
    snprintf(from, sizeof(from), "%s?size=2000000", file_uri("a", "f"));
    snprintf(to, sizeof(to), "%s?size=2000000", file_uri("b", "f"));
    expect_copy(KEY, from, to, TIERCE__COPY_UNVERIFIABLE);
    expect_why("mover's memory");
    end();
}
END_TEST

START_TEST(the_rate_is_kept)
{
    enum { COUNT = 11 };
    bytes = chunk_object_bytes(CELL);
    start_with(1 << 20, bytes * 50, TIMEOUT_MS); /* 20 ms for each */
    folders("");
    uint64_t begun_ns = tierce__now_ns();
    add_many(COUNT);
    run_until(COUNT);
    expect_many(COUNT);
    ck_assert_uint_ge(tierce__now_ns() - begun_ns, (COUNT - 1) * 20000000ull);
    end();
}
END_TEST

/* ---- ends ------------------------------------------------------------------------------------ */

/* After the write session nothing is written: its place may be another block's. */
START_TEST(nothing_is_written_too_late)
{
    start();
    folders("");
    set_places("f");
    write_file("a/f", chunk(KEY), bytes);
    add(&copies[0], KEY, from, to);
    copies[0].put_until_ns = tierce__now_ns();
    run_until(1);
    ck_assert_int_eq(copies[0].result, TIERCE__COPY_UNDONE);
    ck_assert(!copies[0].storage_failed);
    ck_assert(!is_there("b/f"));
    /* Dropped before it begins, and while it is read. */
    add(&copies[0], KEY, from, to);
    tierce__copier_drop(&copies[0]);
    run_until(1);
    ck_assert_int_eq(copies[0].result, TIERCE__COPY_UNDONE);
    add(&copies[0], KEY, from, to);
    (void)tierce__copier_step(copier);
    if (done_count == 0)
        tierce__copier_drop(&copies[0]);
    run_until(1);
    ck_assert(copies[0].result == TIERCE__COPY_UNDONE || is_chunk("b/f", KEY));
    end();
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    start();
    end();
    start();
    set_places("f");
    write_file("a/f", chunk(KEY), bytes);
    char json[600];
    snprintf(json, sizeof(json),
             "[{\"type\":\"file\",\"global_unique_name\":\"a\",\"storage_spec\":{\"root_path\":"
             "\"%s\"}},{\"type\":\"file\",\"global_unique_name\":\"b\",\"storage_spec\":{"
             "\"root_path\":\"%s\"}}]",
             at("a"), at("b"));
    ck_assert(tierce__copier_close(copier, tierce__deadline_in_ms(30000)));
    uint64_t live = tierce__alloc_live();
    bool is_done = false;
    for (uint64_t nth = 1; !is_done; nth++) {
        copier = NULL;
        (void)unlink(at("b/f"));
        tierce__alloc_fail_nth(nth);
        int rc = open_copier(1 << 20, 0, TIMEOUT_MS);
        if (rc == 0)
            rc = tierce__copier_set_storages(copier, json, why);
        ck_assert(rc == 0 || rc == -ENOMEM);
        if (rc == 0) {
            enum tierce__copy_result result = copy(KEY, from, to);
            ck_assert((result == TIERCE__COPY_COPIED) == is_chunk("b/f", KEY));
            ck_assert(result == TIERCE__COPY_COPIED || result == TIERCE__COPY_UNDONE ||
                      result == TIERCE__COPY_SOURCE_UNREACHABLE ||
                      result == TIERCE__COPY_TARGET_FAILED);
        }
        is_done = tierce__alloc_fail_nth(0) < nth;
        ck_assert(tierce__copier_close(copier, tierce__deadline_in_ms(30000)));
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    temp_folder_remove(root);
}
END_TEST

/* Writes a chunk as a compressed object (`key` NULL), or as an encrypted one. */
static uint64_t write_coded(const struct tierce__seal_key *key, uint8_t *out, uint64_t room)
{
    struct tierce__chunk_info info;
    const struct tierce__coded_form form = {.codec =
                                                key == NULL ? tierce__codec_find("lossless") : NULL,
                                            .element = TIERCE__ELEMENT_BF16,
                                            .key = key};
    static uint8_t object[1 << 16];
    struct tierce__geometry geometry = chunk_object_geometry(4 * CELL);
    bytes = chunk_object_bytes(4 * CELL);
    chunk_object_fill(object, KEY, 0, 4 * CELL, 3);
    memset(object + bytes - 32 * CELL, 0, 32 * CELL); /* layers that become shorter */
    ck_assert_int_eq(tierce__chunk_parse(&info, object, bytes), 0);
    tierce__chunk_sum_cells(object, &geometry);
    tierce__chunk_seal(object, info.extent.header_bytes);
    ck_assert_uint_le(tierce__coded_room(object, &info), room);
    int64_t length = tierce__coded_encode_as(out, room, object, &info, &form);
    ck_assert_int_gt(length, 0);
    return (uint64_t)length;
}

/* Compressed (_i: 0) and encrypted chunks are verified without decoding, and without a key. */
START_TEST(coded_sources_are_copied_unopened)
{
    static uint8_t object[1 << 16], found[1 << 16];
    const struct tierce__seal_key key = {.number = 1};
    start();
    folders("");
    uint64_t length = write_coded(_i == 0 ? NULL : &key, object, sizeof(object));
    ck_assert(_i == 0 ? length < bytes : length > bytes);
    bytes = length;
    set_places("f");
    write_file("a/f", object, length);
    expect_copy(KEY, from, to, TIERCE__COPY_COPIED);
    ck_assert_int_eq(read_file("b/f", found, sizeof(found)), (int64_t)length);
    ck_assert_mem_eq(found, object, length);
    expect_copy(KEY + 1, from, to, TIERCE__COPY_SOURCE_DAMAGED);
    expect_why("another block");
    const uint64_t flips[] = {16, 70, 4096 + 3, 4096 + 70, 8192, 8192 + 100};
    for (size_t i = 0; i < sizeof(flips) / sizeof(*flips); i++) {
        object[flips[i]] ^= 0x10;
        write_file("a/f", object, length);
        object[flips[i]] ^= 0x10;
        expect_copy(KEY, from, to, TIERCE__COPY_SOURCE_DAMAGED);
    }
    /* A codec that this program does not have. */
    struct tierce__chunk_info info;
    uint32_t codec;
    ck_assert_int_eq(tierce__chunk_parse_coded(&info, &codec, object, length), 0);
    tierce__chunk_set_codec(object, &info, 99);
    write_file("a/f", object, length);
    enum tierce__copy_result result = copy(KEY, from, to);
    ck_assert(result == TIERCE__COPY_UNVERIFIABLE || result == TIERCE__COPY_SOURCE_DAMAGED);
    end();
}
END_TEST

CHECK_MAIN("copier", .seconds = 120,
           .tests = {through_all_storages, damaged_sources_are_never_copied, missing_sources,
                     a_target_that_dies, a_target_that_hangs, a_target_that_is_full,
                     a_node_that_is_busy, a_target_that_keeps_the_first, memory_is_bounded,
                     the_rate_is_kept, nothing_is_written_too_late, each_allocation_fails_once},
           .loops = {{coded_sources_are_copied_unopened, 0, 2}})
