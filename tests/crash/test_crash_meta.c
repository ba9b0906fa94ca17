/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/log/log.h"
#include "check_main.h"
#include "manager/meta/meta_index.h"
#include "meta_folder.h"
#include "meta_records.h"
#include "redis_server.h"
#include "test_random.h"
#include "wait_for.h"
#include "net/redis/resp_client.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

/*
 * A process that changes an index on RocksDB or Redis is killed at random moments. After each
 * reopening the counters equal a full scan, each child exists, the last call took effect completely
 * or not at all, and all acknowledged calls took effect.
 */
enum { KEYS = 300, PARENTS = 10, CALL_KEYS = 30 };

/* Outside of the process that is killed. Calls are numbered; a key's version is its last call. */
struct model {
    uint32_t begun, done;
    uint32_t is[KEYS];   /* after the last call that returned; 0: not there */
    uint32_t next[KEYS]; /* after the one that was begun */
};

static struct model *model;
static struct test_random rng;
static struct tierce__meta_store *store;
static struct tierce__meta_space *space;
static struct tierce__meta_index *lookup;
static struct test_record made[CALL_KEYS];
static const struct tierce__meta_store_ops *ops;
static char uri[128];
static uint16_t redis_port; /* 0: no Redis */

static void open_all(void)
{
    char why[256] = "";
    int rc = ops->open(&store, uri, why);
    ck_assert_msg(rc == 0, "open: %d %s", rc, why);
    ck_assert_int_eq(store->ops->space_open(&space, store, 3, "i"), 0);
    struct tierce__meta_index_opts opts = {
        .size = sizeof(opts), .shards = 16, .cache_bytes = 65536};
    ck_assert_int_eq(tierce__meta_index_open(&lookup, space, &opts), 0);
}

static void close_all(void)
{
    tierce__meta_index_close(lookup);
    space->ops->space_close(space);
    store->ops->close(store);
}

static enum tierce__meta_action decide(void *arg, size_t i, int64_t key, bool found,
                                       struct tierce__record *record, struct tierce__arena *arena)
{
    (void)arg;
    (void)arena;
    ck_assert_int_eq(found, model->next[key] != 0);
    if (key >= PARENTS && test_random_below(&rng, 3) == 0) {
        model->next[key] = 0;
        return TIERCE__META_DELETE;
    }
    model->next[key] = model->begun;
    *record = *test_record(&made[i], key, model->begun);
    record->has_parent = key >= PARENTS;
    record->parent = key >= PARENTS ? key % PARENTS : 0;
    return TIERCE__META_PUT;
}

static int attach(void *arg, const size_t *indices, size_t count, struct tierce__meta_batch *batch,
                  struct tierce__arena *arena)
{
    (void)indices;
    (void)count;
    (void)arena;
    struct tierce__meta_note *notes = arg;
    notes[0] = (struct tierce__meta_note){TIERCE__NOTE_SESSION, model->begun, "s", 1};
    notes[1] = (struct tierce__meta_note){TIERCE__NOTE_SESSION, model->begun - 1, NULL, 0};
    batch->notes = notes;
    batch->note_count = 2;
    return 0;
}

static void one_call(void)
{
    int64_t keys[CALL_KEYS];
    int status[CALL_KEYS];
    size_t count = 1 + test_random_below(&rng, CALL_KEYS);
    struct tierce__meta_note notes[2];
    struct tierce__arena arena = {0};
    if (model->begun == 0)
        count = PARENTS;
    for (size_t i = 0; i < count; i++)
        keys[i] = model->begun == 0 ? (int64_t)i : test_random_below(&rng, KEYS);
    model->begun++;
    if (tierce__meta_index_modify(
            lookup, keys, count,
            &(struct tierce__meta_change){
                .modify = decide, .attach = attach, .arg = notes, .whole = true},
            &arena, status) != 0)
        _exit(3);
    memcpy(model->is, model->next, sizeof(model->is));
    model->done = model->begun;
    tierce__meta_index_touch(lookup, keys, count,
                             &(struct tierce__record_use){1700000000000000, 1, 0});
    tierce__arena_clear(&arena);
}

static int last_note(void *arg, const struct tierce__meta_note *note)
{
    uint64_t *last = arg;
    ck_assert_uint_eq(*last, 0); /* there is one alone */
    *last = note->number;
    return 0;
}

/* The call that was begun and did not return may have happened. */
static void settle_last_call(void)
{
    uint64_t last = 0;
    ck_assert_int_eq(space->ops->notes(space, TIERCE__NOTE_SESSION, last_note, &last), 0);
    if (last == model->begun)
        memcpy(model->is, model->next, sizeof(model->is));
    else
        ck_assert_uint_eq(last, model->done);
    memcpy(model->next, model->is, sizeof(model->next));
    model->begun = model->done = (uint32_t)last;
}

/* The killed process's last requests may still be in its connections: these are closed when the
 * server has read them to the end. */
static void await_silence(void)
{
    struct tierce__resp *control;
    struct tierce__resp_opts opts = {.size = sizeof(opts), .host = "127.0.0.1", .port = redis_port};
    char why[256];
    ck_assert_int_eq(tierce__resp_open(&control, &opts, why), 0);
    const char *info[] = {"INFO", "clients"};
    size_t bytes[] = {4, 7};
    struct tierce__resp_value value = {.text = ""};
    for (int i = 0; i < 2000 && strstr(value.text, "connected_clients:1\r") == NULL; i++) {
        ck_assert_int_eq(tierce__resp_call(control, info, bytes, 2, &value, 0), 0);
        ck_assert_int_eq(value.type, TIERCE__RESP_STRING);
    }
    tierce__resp_close(control);
}

static void verify(void)
{
    open_all();
    settle_last_call();
    static int64_t keys[KEYS];
    static struct tierce__record records[KEYS];
    bool found[KEYS];
    struct tierce__arena arena = {0};
    uint32_t children[PARENTS] = {0};
    int64_t wanted[TIERCE__META_COUNTERS] = {0}, counters[TIERCE__META_COUNTERS];
    uint64_t cursor = 0;
    size_t count;
    ck_assert_int_eq(space->ops->scan(space, &cursor, KEYS, keys, &count), 0);
    wanted[TIERCE__META_KEYS] = (int64_t)count;
    for (int64_t key = 0; key < KEYS; key++)
        keys[key] = key;
    ck_assert_int_eq(space->ops->get(space, keys, KEYS, &arena, records, found), 0);
    for (int64_t key = 0; key < KEYS; key++) {
        ck_assert_int_eq(found[key], model->is[key] != 0);
        if (!found[key])
            continue;
        ck_assert_uint_eq(records[key].locations[0].places[0].slot, model->is[key]);
        if (records[key].has_parent)
            children[records[key].parent]++;
        for (int i = 0; i < records[key].location_count; i++) {
            const struct tierce__location *location = &records[key].locations[i];
            int64_t bytes = (int64_t)tierce__location_bytes(location);
            wanted[TIERCE__META_BYTES_FIRST + tierce__meta_type_slot(location->type)] += bytes;
            wanted[TIERCE__META_STORAGES_FIRST + tierce__meta_storage_slot(location->storage)] +=
                bytes;
        }
    }
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    ck_assert_mem_eq(counters, wanted, sizeof(wanted));
    for (int64_t key = 0; key < PARENTS; key++)
        ck_assert(!found[key] || records[key].children == children[key]);
    tierce__arena_clear(&arena);
    close_all();
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void kill_at_random(const char *test)
{
    rng = test_random_start(test);
    model = mmap(NULL, sizeof(*model), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(model, MAP_FAILED);
    for (unsigned round = 0; round < 20 * test_scale(); round++) {
        uint32_t wait_us = 10000 + test_random_below(&rng, 90000), done = model->done;
        rng.state += round;
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            alarm(60);
            open_all();
            for (;;)
                one_call();
        }
        /* Half of them are killed behind a call, however slow the disk is; the other half perhaps
         * while they open. */
        if (round % 2 == 0)
            WAIT_FOR(__atomic_load_n(&model->done, __ATOMIC_RELAXED) != done);
        usleep(wait_us);
        kill(pid, SIGKILL);
        int status;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFSIGNALED(status), "the child ended with %d", WEXITSTATUS(status));
        if (redis_port != 0)
            await_silence();
        verify();
    }
    ck_assert_uint_ge(model->done, 10 * test_scale());
    munmap(model, sizeof(*model));
}

START_TEST(on_rocksdb)
{
    meta_folder_make();
    ops = &tierce__meta_rocksdb;
    snprintf(uri, sizeof(uri), "%s%s", meta_folder, _i == 0 ? "?touch_ms=5" : "?sync=1&touch_ms=5");
    kill_at_random("on_rocksdb");
    meta_folder_remove();
}
END_TEST

START_TEST(on_redis)
{
    struct redis_server server;
    ck_assert(redis_start(&server, NULL));
    ops = &tierce__meta_redis;
    redis_port = server.port;
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u?touch_ms=5&timeout_ms=20000",
             (unsigned)server.port);
    kill_at_random("on_redis");
    redis_stop(&server);
}
END_TEST

int main(void)
{
    const char *ci = getenv("CI");
    return CHECK_RUN(
        "crash_meta", .seconds = 300 * test_scale(),
        .tests = {redis_is_there() || (ci != NULL && strcmp(ci, "true") == 0) ? on_redis : NULL},
        .loops = {{on_rocksdb, 0, 2}});
}
