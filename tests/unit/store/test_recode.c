/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks on disk change their form, raw or coded: each of them can be read at every moment, and a
 * kill or a failed sync leaves one of the two forms. */
#include "coded_store.h"
#include "silent_log.h"
#include "wait_for.h"

#include "faults/vfs_fault.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (1ULL << 20)

enum { CHUNKS = 8 };

static struct store s;
static const struct tierce__codec *lossless;

static void setup(void)
{
    silence_log();
    lossless = tierce__codec_find("lossless");
    s = (struct store){.chunk_bytes = 64 * 1024};
    store_folder(&s);
    ck_assert_int_eq(store_parts(&s, 16 * MIB), 0);
    coded_namespace(&s, "bfloat16");
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    store_remove(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* No codec is configured: puts stay raw, and coded chunks are read. */
static void open_raw(uint64_t cap)
{
    coded_open(&s, cap, &(struct tierce__coded_opts){0});
}

/* Brings a chunk into the other form. 1: it has that form already. */
static int recode(uint64_t n, enum coded_kind kind, bool codes)
{
    struct tierce__key key = store_key(&s, n);
    uint64_t bytes = coded_bytes(&s);
    struct tierce__buf *raw, *coded = NULL;
    enum tierce__coded_raw why;
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &raw, bytes), 0);
    coded_make(&s, raw->data, n, kind);
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = raw,
                                    .object_bytes = bytes,
                                    .recodes = true};
    const struct tierce__coded_source source = {
        .raw = raw, .object_bytes = bytes, .ns = s.ns, .codec = lossless};
    if (codes) {
        req.coded_bytes = tierce__coded_tier_encode(s.tier, &coded, &source, &why);
        ck_assert((coded != NULL) == (kind != CODED_NOISE));
        req.buf = coded;
    }
    int rc = req.buf != NULL ? store_run(&s, &req) : 0;
    tierce__buf_release(raw);
    tierce__buf_release(coded);
    return rc == 0 && req.found > 0 ? 1 : rc;
}

/* The same, when the chunk is durable and idle. */
static void recode_now(uint64_t n, bool codes)
{
    int rc = TIERCE_E_REFUSED;
    while (rc == TIERCE_E_REFUSED) {
        ck_assert_int_eq(store_flush(&s), 0);
        rc = recode(n, CODED_VALUES, codes);
    }
    ck_assert_int_eq(rc, 0);
}

static void put_all(void)
{
    for (uint64_t n = 0; n < CHUNKS; n++)
        ck_assert_int_eq(coded_put(&s, n, CODED_VALUES), 0);
    ck_assert_int_eq(store_flush(&s), 0);
}

static void assert_all(void)
{
    for (uint64_t n = 0; n < CHUNKS; n++)
        ck_assert_int_eq(coded_get_all(&s, n, CODED_VALUES), 0);
}

static bool count_coded(void *arg, const struct tierce__disk_entry *entry)
{
    uint64_t *count = arg;
    *count += entry->raw_bytes > 0;
    return true;
}

static bool count_all(void *arg, const struct tierce__disk_entry *entry)
{
    uint64_t *count = arg;
    *count += entry->object_bytes > 0;
    return true;
}

/* By the journal, as another process reads it. */
static uint64_t count_now(tierce__disk_visit_fn *visit)
{
    uint64_t count = 0;
    struct tierce__namespaces *namespaces;
    ck_assert_int_eq(tierce__namespaces_create(&namespaces), 0);
    ck_assert_int_eq(tierce__disk_scan(s.folder, namespaces, visit, &count), 0);
    tierce__namespaces_destroy(namespaces);
    return count;
}

static uint64_t coded_now(void)
{
    return count_now(count_coded);
}

static uint64_t stored_now(void)
{
    return count_now(count_all);
}

START_TEST(chunks_change_their_form)
{
    open_raw(8 * MIB);
    put_all();
    uint64_t used = store_stats(&s).used_bytes;
    for (uint64_t n = 0; n < CHUNKS; n++)
        ck_assert_int_eq(recode(n, CODED_VALUES, true), 0);
    assert_all();
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(coded_now(), CHUNKS);
    ck_assert_int_eq(recode(0, CODED_VALUES, true), 1);
    /* The old objects leave when the new ones are durable. */
    WAIT_FOR(store_flush(&s) == 0 &&
             store_stats(&s).used_bytes < used - CHUNKS * coded_bytes(&s) / 5);
    store_close(&s);
    open_raw(8 * MIB);
    assert_all();
    for (uint64_t n = 0; n < CHUNKS; n += 2)
        recode_now(n, false);
    assert_all();
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(coded_now(), CHUNKS / 2);
    store_close(&s);
    open_raw(8 * MIB);
    assert_all();
    ck_assert_uint_eq(store_stats(&s).evicted_chunks, 0);
}
END_TEST

START_TEST(some_cannot)
{
    open_raw(8 * MIB);
    ck_assert_int_eq(recode(1, CODED_VALUES, true), TIERCE_E_MISS);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(recode(1, CODED_VALUES, false), 1);
    recode_now(1, true);
    ck_assert_int_eq(recode(1, CODED_VALUES, false), TIERCE_E_REFUSED); /* not durable */
    /* Deleted before that: neither form comes back. */
    ck_assert_int_eq(store_delete(&s, 1), 0);
    ck_assert_int_eq(recode(1, CODED_VALUES, true), TIERCE_E_MISS);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    recode_now(2, true);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_delete(&s, 2), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    store_close(&s);
    open_raw(8 * MIB);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), TIERCE_E_MISS);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), TIERCE_E_MISS);
    /* A namespace without a known element. */
    enum tierce__coded_raw why;
    struct tierce__buf *raw, *coded;
    coded_namespace(&s, "float32");
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &raw, coded_bytes(&s)), 0);
    coded_make(&s, raw->data, 3, CODED_VALUES);
    const struct tierce__coded_source source = {
        .raw = raw, .object_bytes = coded_bytes(&s), .ns = s.ns, .codec = lossless};
    ck_assert_uint_eq(tierce__coded_tier_encode(s.tier, &coded, &source, &why), 0);
    ck_assert(coded == NULL && why == TIERCE__CODED_RAW_ELEMENT);
    tierce__buf_release(raw);
}
END_TEST

/* Recodes the chunks from the last to the first, and opens the store again with slots for half of
 * them: the policy evicts those that were stored first, not those that were recoded first. */
START_TEST(a_recode_keeps_a_chunks_age)
{
    open_raw(8 * MIB);
    put_all();
    for (uint64_t n = CHUNKS; n-- > 0;)
        recode_now(n, true);
    ck_assert_int_eq(store_flush(&s), 0);
    store_close(&s);
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    opts.chunk_count_max = CHUNKS / 2;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    coded_wrap(&s, &(struct tierce__coded_opts){0});
    for (uint64_t n = 0; n < CHUNKS; n++)
        ck_assert_int_eq(coded_get_all(&s, n, CODED_VALUES), n < CHUNKS / 2 ? TIERCE_E_MISS : 0);
}
END_TEST

/* No commit begins by itself. */
static struct tierce__vfs *open_with_faults(uint32_t io_depth)
{
    struct tierce__vfs *inner, *vfs;
    ck_assert_int_eq(tierce__vfs_create(&inner, 16), 0);
    ck_assert_int_eq(tierce__vfs_fault_create(&vfs, inner, false), 0);
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    opts.vfs = vfs;
    opts.io_depth = io_depth;
    opts.flush_interval_ms = 60000;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    coded_wrap(&s, &(struct tierce__coded_opts){0});
    put_all();
    return vfs;
}

static void fail_next(struct tierce__vfs *vfs, enum tierce__fault_kind kind, bool forever)
{
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = kind,
                                                                .action = TIERCE__FAULT_FAIL,
                                                                .nth = 1,
                                                                .forever = forever,
                                                                .error = -EIO});
}

/* A failed sync of the data loses the new form only; a failed write changes nothing. */
START_TEST(the_old_form_survives_a_failing_device)
{
    struct tierce__vfs *vfs = open_with_faults(0);
    const enum tierce__fault_kind kinds[] = {TIERCE__FAULT_SUBMIT_WRITE, TIERCE__FAULT_SYNC};
    for (unsigned i = 0; i < 2; i++) {
        fail_next(vfs, kinds[i], false);
        ck_assert_int_eq(recode(0, CODED_VALUES, true), i == 0 ? -EIO : 0);
        ck_assert_int_eq(store_flush(&s), i == 0 ? 0 : -EIO);
        tierce__vfs_fault_clear(vfs);
        ck_assert_int_eq(store_flush(&s), 0);
        assert_all();
        ck_assert_uint_eq(coded_now(), 0);
    }
    recode_now(0, true);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(coded_now(), 1);
    store_close(&s);
    open_raw(8 * MIB);
    assert_all();
}
END_TEST

/* The journal failed when the chunk was put, and the data when it was recoded later. */
START_TEST(the_old_form_survives_two_faults)
{
    struct tierce__vfs *vfs = open_with_faults(0);
    ck_assert_int_eq(store_delete(&s, 0), 0);
    ck_assert_int_eq(coded_put(&s, 0, CODED_VALUES), 0);
    fail_next(vfs, TIERCE__FAULT_WRITE, true);
    ck_assert_int_eq(store_flush(&s), -EIO);
    tierce__vfs_fault_clear(vfs);
    ck_assert_int_eq(store_flush(&s), 0);
    recode_now(0, true);
    fail_next(vfs, TIERCE__FAULT_SYNC, false);
    ck_assert_int_eq(store_flush(&s), -EIO);
    tierce__vfs_fault_clear(vfs);
    assert_all();
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(coded_now(), 0);
}
END_TEST

/* A commit of removals whose append fails writes a new journal, while the new form is not durable:
 * the journal keeps the old form. */
START_TEST(a_compaction_keeps_the_old_form)
{
    struct tierce__vfs *vfs = open_with_faults(0);
    recode_now(0, true);
    ck_assert_int_eq(store_delete(&s, CHUNKS - 1), 0);
    uint64_t renames = tierce__vfs_fault_count(vfs, TIERCE__FAULT_RENAME);
    fail_next(vfs, TIERCE__FAULT_WRITE, false);
    ck_assert_int_eq(store_settle(&s), 0);
    tierce__vfs_fault_clear(vfs);
    ck_assert_uint_eq(tierce__vfs_fault_count(vfs, TIERCE__FAULT_RENAME), renames + 1);
    ck_assert_uint_eq(stored_now(), CHUNKS - 1);
    ck_assert_uint_eq(coded_now(), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(stored_now(), CHUNKS - 1);
    ck_assert_uint_eq(coded_now(), 1);
    store_close(&s);
    open_raw(8 * MIB);
    ck_assert_int_eq(coded_get_all(&s, CHUNKS - 1, CODED_VALUES), TIERCE_E_MISS);
    ck_assert_int_eq(coded_put(&s, CHUNKS - 1, CODED_VALUES), 0);
    assert_all();
}
END_TEST

/* ---- readers --------------------------------------------------------------------------------- */

static _Atomic bool reading;
static _Atomic uint64_t reads, misses;

static void *read_on(void *arg)
{
    (void)arg;
    uint64_t seed = 7;
    while (atomic_load(&reading)) {
        uint64_t bytes = coded_bytes(&s), n = tierce__random_next(&seed) % CHUNKS;
        uint64_t from = tierce__random_next(&seed) % (bytes / 4096) * 4096;
        int rc = coded_get(&s, n, CODED_VALUES, from, bytes - from);
        if (rc != 0)
            atomic_fetch_add(&misses, 1);
        atomic_fetch_add(&reads, 1);
    }
    return NULL;
}

/* No reader sees a miss or another byte. */
START_TEST(readers_see_one_of_the_two)
{
    pthread_t thread;
    open_raw(8 * MIB);
    put_all();
    recode_now(0, true); /* from here on, reads that miss look again */
    atomic_store(&reading, true);
    ck_assert_int_eq(pthread_create(&thread, NULL, read_on, NULL), 0);
    uint64_t recoded = 0;
    for (unsigned round = 0; round < 6 || atomic_load(&reads) < 200 || recoded < CHUNKS; round++) {
        for (uint64_t n = 0; n < CHUNKS; n++) {
            int rc = recode(n, CODED_VALUES, round % 2 == 1);
            ck_assert(rc >= 0 || rc == TIERCE_E_REFUSED);
            recoded += rc == 0;
        }
        ck_assert_int_eq(store_flush(&s), 0);
    }
    atomic_store(&reading, false);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(atomic_load(&misses), 0);
    assert_all();
}
END_TEST

static void *read_first(void *arg)
{
    *(int *)arg = coded_get_all(&s, 0, CODED_VALUES);
    return NULL;
}

/* It is refused before the new object is written. */
START_TEST(a_chunk_that_is_read_is_not_written)
{
    struct tierce__vfs *vfs = open_with_faults(0);
    pthread_t thread;
    int rc = 1;
    uint64_t begun = tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_READ);
    uint64_t written = tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_WRITE);
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SUBMIT_READ,
                                                                .action = TIERCE__FAULT_HANG,
                                                                .nth = 1});
    ck_assert_int_eq(pthread_create(&thread, NULL, read_first, &rc), 0);
    WAIT_FOR(tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_READ) > begun);
    ck_assert_int_eq(recode(0, CODED_VALUES, true), TIERCE_E_REFUSED);
    ck_assert_uint_eq(tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_WRITE), written);
    tierce__vfs_fault_release(vfs);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(rc, 0);
    ck_assert_int_eq(recode(0, CODED_VALUES, true), 0);
}
END_TEST

/* A put of a chunk, or one that recodes it, which the caller waits for later. */
struct later {
    struct tierce__key key;
    struct store_wait wait;
    struct tierce__store_req req;
};

static void submit_later(struct later *l, uint64_t n, bool recodes)
{
    uint64_t bytes = coded_bytes(&s);
    struct tierce__buf *raw;
    enum tierce__coded_raw why;
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &raw, bytes), 0);
    coded_make(&s, raw->data, n, CODED_VALUES);
    *l = (struct later){.key = store_key(&s, n),
                        .wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}};
    l->req = (struct tierce__store_req){.op = TIERCE__STORE_PUT,
                                        .deadline_ns = tierce__deadline_in_ms(20000),
                                        .done = store_done,
                                        .arg = &l->wait,
                                        .keys = &l->key,
                                        .key_count = 1,
                                        .buf = raw,
                                        .object_bytes = bytes,
                                        .token_start = n * 64,
                                        .block_count = CODED_BLOCKS,
                                        .recodes = recodes};
    const struct tierce__coded_source source = {
        .raw = raw, .object_bytes = bytes, .ns = s.ns, .codec = lossless};
    if (recodes) {
        l->req.coded_bytes = tierce__coded_tier_encode(s.tier, &l->req.buf, &source, &why);
        ck_assert_uint_gt(l->req.coded_bytes, 0);
        tierce__buf_release(raw);
    }
    s.tier->ops->submit(s.tier, &l->req);
}

static int wait_later(struct later *l)
{
    pthread_mutex_lock(&l->wait.mutex);
    while (l->wait.dones == 0)
        pthread_cond_wait(&l->wait.cond, &l->wait.mutex);
    pthread_mutex_unlock(&l->wait.mutex);
    tierce__buf_release(l->req.buf);
    return l->req.status;
}

/* The only transfer hangs, and the next put waits for it, so that the recode is queued when its
 * chunk is hidden. It does not wait for space that it does not need, nor do the puts behind it. */
START_TEST(a_queued_recode_of_a_hidden_chunk_is_answered)
{
    struct tierce__vfs *vfs = open_with_faults(1);
    struct later first, second, recoded, last;
    uint64_t written = tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_WRITE);
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SUBMIT_WRITE,
                                                                .action = TIERCE__FAULT_HANG,
                                                                .nth = 1});
    submit_later(&first, CHUNKS, false);
    WAIT_FOR(tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_WRITE) > written);
    submit_later(&second, CHUNKS + 1, false);
    submit_later(&recoded, 0, true);
    submit_later(&last, CHUNKS + 2, false);
    ck_assert_int_eq(store_simple(&s, TIERCE__STORE_HIDE, 0), 0);
    tierce__vfs_fault_release(vfs);
    ck_assert_int_eq(wait_later(&first), 0);
    ck_assert_int_eq(wait_later(&second), 0);
    ck_assert_int_eq(wait_later(&recoded), TIERCE_E_MISS);
    ck_assert_int_eq(wait_later(&last), 0);
}
END_TEST

/* ---- crashes --------------------------------------------------------------------------------- */

static void be_killed(_Atomic uint64_t *rounds)
{
    alarm(60);
    open_raw(8 * MIB);
    put_all();
    for (uint64_t round = 1;; round++) {
        for (uint64_t n = 0; n < CHUNKS; n++) {
            int rc = recode(n, CODED_VALUES, round % 2 == 1);
            if (rc < 0 && rc != TIERCE_E_REFUSED)
                _exit(1);
            if (n % 3 == 2 && store_flush(&s) != 0)
                _exit(1);
        }
        atomic_store(rounds, round);
    }
}

START_TEST(a_kill_leaves_one_of_the_two)
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
        open_raw(8 * MIB);
        assert_all();
        ck_assert_int_eq(store_clear(&s), 0);
        store_close(&s);
    }
    munmap(rounds, sizeof(*rounds));
}
END_TEST

/* A random mix in a store that is too small for all of it: no other bytes, and nothing that was
 * deleted. */
START_TEST(a_mix_gives_no_other_bytes)
{
    enum { NAMES = 120, STEPS = 800 };
    bool deleted[NAMES] = {0};
    uint64_t seed = test_random_start("a_mix_gives_no_other_bytes").state, recoded = 0;
    open_raw(3 * MIB);
    for (unsigned step = 0; step < STEPS; step++) {
        uint64_t n = tierce__random_next(&seed) % NAMES, what = tierce__random_next(&seed) % 100;
        int rc = 0;
        if (what < 30) {
            rc = coded_put(&s, n, CODED_VALUES);
            ck_assert_msg(rc == 0 || rc == TIERCE_E_FULL, "put: %d", rc);
            deleted[n] = deleted[n] && rc != 0;
        } else if (what < 70) {
            rc = recode(n, CODED_VALUES, what < 55);
            ck_assert_msg(rc >= 0 || rc == TIERCE_E_REFUSED || rc == TIERCE_E_MISS ||
                              rc == TIERCE_E_FULL,
                          "recode: %d", rc);
            recoded += rc == 0;
        } else if (what < 75) {
            rc = store_delete(&s, n);
            ck_assert(rc == 0 || rc == TIERCE_E_MISS);
            deleted[n] = true;
        } else if (what < 90) {
            rc = coded_get_all(&s, n, CODED_VALUES);
            ck_assert(deleted[n] ? rc == TIERCE_E_MISS : rc == 0 || rc == TIERCE_E_MISS);
        } else if (what < 99) {
            ck_assert_int_eq(store_flush(&s), 0);
        } else {
            store_close(&s);
            open_raw(3 * MIB);
        }
    }
    ck_assert_uint_gt(recoded, 0);
}
END_TEST

CHECK_MAIN("recode", .seconds = 120, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {chunks_change_their_form, some_cannot, a_recode_keeps_a_chunks_age,
                     the_old_form_survives_a_failing_device, the_old_form_survives_two_faults,
                     a_compaction_keeps_the_old_form, readers_see_one_of_the_two,
                     a_chunk_that_is_read_is_not_written,
                     a_queued_recode_of_a_hidden_chunk_is_answered, a_kill_leaves_one_of_the_two,
                     a_mix_gives_no_other_bytes})
