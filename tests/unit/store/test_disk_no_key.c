/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that a disk hides for their key: a SHOW brings them back, a put replaces them, and at no
 * time does the disk give other bytes. */
#include "check_main.h"
#include "disk_harness.h"
#include "silent_log.h"
#include "test_random.h"
#include "wait_for.h"

#include "faults/vfs_fault.h"

#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (1ULL << 20)

enum { CHUNKS = 8 };

static struct store s;

static void setup(void)
{
    silence_log();
    s = (struct store){.chunk_bytes = 64 * 1024};
    store_folder(&s);
    ck_assert_int_eq(store_parts(&s, 16 * MIB), 0);
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    store_remove(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void open_disk(uint64_t cap)
{
    const struct tierce__disk_opts opts = store_opts(&s, cap);
    ck_assert_int_eq(store_open(&s, &opts), 0);
}

static void put_all(void)
{
    for (uint64_t n = 0; n < CHUNKS; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_flush(&s), 0);
}

/* The number of the stored object; 0: a lookup does not find it. */
static uint64_t stored(uint64_t n, bool *lacks_key)
{
    struct tierce__key key = store_key(&s, n);
    struct tierce__store_req req = {.op = TIERCE__STORE_LOOKUP, .keys = &key, .key_count = 1};
    ck_assert_int_eq(store_run(&s, &req), 0);
    if (lacks_key != NULL)
        *lacks_key = req.lacks_key;
    return req.found > 0 ? req.stored : 0;
}

static int hide(uint64_t n, uint64_t number)
{
    struct tierce__key key = store_key(&s, n);
    struct tierce__store_req req = {.op = TIERCE__STORE_HIDE,
                                    .keys = &key,
                                    .key_count = 1,
                                    .left = TIERCE__LEFT_NO_KEY,
                                    .stored = number};
    return store_run(&s, &req);
}

static void hide_now(uint64_t n)
{
    ck_assert_int_eq(hide(n, stored(n, NULL)), 0);
}

static void show(void)
{
    struct tierce__store_req req = {.op = TIERCE__STORE_SHOW};
    ck_assert_int_eq(store_run(&s, &req), 0);
}

static uint64_t left_no_key, admitted;

static void note_event(void *arg, const struct tierce__tier_event *event)
{
    (void)arg;
    admitted += event->admitted;
    left_no_key += !event->admitted && event->left == TIERCE__LEFT_NO_KEY;
}

START_TEST(a_chunk_is_hidden_and_shown)
{
    bool lacks_key;
    left_no_key = admitted = 0;
    open_disk(8 * MIB);
    s.tier->ops->watch(s.tier, note_event, NULL);
    put_all();
    uint64_t number = stored(1, &lacks_key);
    ck_assert(number > 0 && !lacks_key);
    ck_assert_int_eq(hide(1, number + 100), TIERCE_E_MISS); /* of another object */
    ck_assert_uint_eq(stored(1, NULL), number);
    ck_assert_int_eq(hide(1, number), 0);
    ck_assert_int_eq(hide(1, number), 0);
    ck_assert_uint_eq(stored(1, &lacks_key), 0);
    ck_assert(lacks_key);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), TIERCE_E_MISS);
    ck_assert(stored(CHUNKS, &lacks_key) == 0 && !lacks_key);
    ck_assert_uint_eq(store_stats(&s).chunks, CHUNKS - 1);
    ck_assert_int_eq(store_simple(&s, TIERCE__STORE_HIDE, 2), 0); /* for another version */
    ck_assert(stored(2, &lacks_key) == 0 && !lacks_key);
    ck_assert_int_eq(store_put(&s, 2), TIERCE_E_REFUSED);
    show();
    ck_assert_uint_eq(stored(1, NULL), number);
    ck_assert_uint_eq(stored(2, NULL), 0);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
    ck_assert_uint_eq(left_no_key, 1);
    ck_assert_uint_eq(admitted, CHUNKS + 1);
    hide_now(1);
    ck_assert_int_eq(store_delete(&s, 1), 0);
    show();
    ck_assert_uint_eq(stored(1, NULL), 0);
}
END_TEST

/* Also while it is not durable (_i: 0), and a disk that admits only what is put twice. */
START_TEST(a_put_replaces_it)
{
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    opts.admit_second = true;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_int_eq(store_put(&s, 1), TIERCE_E_REFUSED);
    ck_assert_int_eq(store_put(&s, 1), 0);
    if (_i > 0)
        ck_assert_int_eq(store_flush(&s), 0);
    uint64_t number = stored(1, NULL), bytes = store_data_bytes(&s);
    hide_now(1);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_uint_gt(stored(1, NULL), number);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(store_stats(&s).chunks, 1);
    ck_assert_uint_eq(store_stats(&s).durable_chunks, 1);
    ck_assert_uint_le(store_data_bytes(&s), bytes + 4096); /* the text of the namespace */
    store_close(&s);
    open_disk(8 * MIB);
    ck_assert_uint_gt(stored(1, NULL), number);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
}
END_TEST

static void *get_first(void *arg)
{
    *(int *)arg = store_get(&s, 1, 0, 0);
    return NULL;
}

static void *put_first(void *arg)
{
    int rc = store_put(&s, 1);
    atomic_store((_Atomic int *)arg, rc);
    return NULL;
}

/* The read has the bytes of the old object, whose space is not used before the read ends. */
START_TEST(a_put_waits_for_a_read)
{
    struct tierce__vfs *inner, *vfs;
    pthread_t reader, writer;
    int got = 1;
    _Atomic int put = 1;
    ck_assert_int_eq(tierce__vfs_create(&inner, 16), 0);
    ck_assert_int_eq(tierce__vfs_fault_create(&vfs, inner, false), 0);
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    opts.vfs = vfs;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    put_all();
    uint64_t begun = tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_READ);
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SUBMIT_READ,
                                                                .action = TIERCE__FAULT_HANG,
                                                                .nth = 1});
    ck_assert_int_eq(pthread_create(&reader, NULL, get_first, &got), 0);
    WAIT_FOR(tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_READ) > begun);
    hide_now(1);
    ck_assert_int_eq(pthread_create(&writer, NULL, put_first, &put), 0);
    WAIT_FOR(store_stats(&s).queued_bytes > 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(atomic_load(&put), 1);
    tierce__vfs_fault_release(vfs);
    ck_assert_int_eq(pthread_join(reader, NULL), 0);
    ck_assert_int_eq(pthread_join(writer, NULL), 0);
    ck_assert_int_eq(got, 0);
    ck_assert_int_eq(atomic_load(&put), 0);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
}
END_TEST

/* A put that cannot be stored leaves it there: its key may come. */
START_TEST(a_put_that_is_rejected_removes_nothing)
{
    open_disk(8 * MIB);
    put_all();
    uint64_t number = stored(5, NULL);
    hide_now(5);
    struct tierce__key key = store_key(&s, 5), parent = store_key(&s, 1000);
    struct tierce__buf *buf;
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &buf, store_bytes(&s, 5)), 0);
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .parent = &parent,
                                    .needs_parent = true,
                                    .object_bytes = store_bytes(&s, 5),
                                    .block_count = 8};
    ck_assert_int_eq(store_run(&s, &req), TIERCE_E_REFUSED);
    tierce__buf_release(buf);
    show();
    ck_assert_uint_eq(stored(5, NULL), number);
}
END_TEST

/* ---- crashes --------------------------------------------------------------------------------- */

static void be_killed(_Atomic uint64_t *rounds)
{
    alarm(60);
    open_disk(8 * MIB);
    put_all();
    for (uint64_t round = 1;; round++) {
        for (uint64_t n = 0; n < CHUNKS; n++) {
            if (hide(n, stored(n, NULL)) != 0 || store_put(&s, n) != 0)
                _exit(1);
            if (n % 3 == 2 && store_flush(&s) != 0)
                _exit(1);
        }
        atomic_store(rounds, round);
    }
}

/* The old object, the new one, or none. */
START_TEST(a_kill_gives_no_other_bytes)
{
    _Atomic uint64_t *rounds =
        mmap(NULL, sizeof(*rounds), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(rounds, MAP_FAILED);
    for (unsigned round = 1; round <= 3; round++) {
        atomic_store(rounds, 0);
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            be_killed(rounds);
        WAIT_FOR(atomic_load(rounds) >= 3 * round);
        int status;
        kill(pid, SIGKILL);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        open_disk(8 * MIB);
        for (uint64_t n = 0; n < CHUNKS; n++) {
            int rc = store_get(&s, n, 0, 0);
            ck_assert(rc == 0 || rc == TIERCE_E_MISS);
        }
        ck_assert_int_eq(store_clear(&s), 0);
        store_close(&s);
    }
    munmap(rounds, sizeof(*rounds));
}
END_TEST

/* A random mix in a store that is too small for all of it. */
START_TEST(a_mix_gives_no_other_bytes)
{
    enum { NAMES = 80, STEPS = 2000 };
    bool hidden[NAMES] = {0};
    uint64_t seed = test_random_start("a_mix_gives_no_other_bytes").state, replaced = 0;
    open_disk(3 * MIB);
    for (unsigned step = 0; step < STEPS; step++) {
        uint64_t n = tierce__random_next(&seed) % NAMES, what = tierce__random_next(&seed) % 100;
        int rc = 0;
        if (what < 40) {
            rc = store_put(&s, n);
            ck_assert_msg(rc == 0 || rc == TIERCE_E_FULL, "put: %d", rc);
            replaced += hidden[n] && rc == 0;
            hidden[n] = hidden[n] && rc != 0;
        } else if (what < 65) {
            uint64_t number = stored(n, NULL);
            ck_assert(!hidden[n] || number == 0);
            hidden[n] |= number > 0 && hide(n, number) == 0;
        } else if (what < 70) {
            rc = store_delete(&s, n);
            ck_assert(rc == 0 || rc == TIERCE_E_MISS);
            hidden[n] = true; /* until a put */
        } else if (what < 90) {
            rc = store_get(&s, n, 0, 0);
            ck_assert(hidden[n] ? rc == TIERCE_E_MISS : rc == 0 || rc == TIERCE_E_MISS);
        } else if (what < 97) {
            ck_assert_int_eq(store_flush(&s), 0);
        } else {
            bool reopens = what == 99;
            if (reopens)
                store_close(&s);
            if (reopens)
                open_disk(3 * MIB);
            else
                show();
            memset(hidden, 0, sizeof(hidden));
        }
        ck_assert_uint_le(store_stats(&s).used_bytes, 3 * MIB);
    }
    ck_assert_uint_gt(replaced, 0);
}
END_TEST

CHECK_MAIN("disk_no_key", .seconds = 120, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {a_chunk_is_hidden_and_shown, a_put_waits_for_a_read,
                     a_put_that_is_rejected_removes_nothing, a_kill_gives_no_other_bytes,
                     a_mix_gives_no_other_bytes},
           .loops = {{a_put_replaces_it, 0, 2}})
