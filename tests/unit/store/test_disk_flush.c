/* SPDX-License-Identifier: Apache-2.0 */
/* The effect and the result of a flush, of everything or only of removals. */
#include "check_main.h"
#include "disk_harness.h"
#include "log_record.h"

#define MIB (1ULL << 20)

static struct store s;
static struct tierce__vfs *vfs;

static void setup(void)
{
    s = (struct store){.chunk_bytes = 64 * 1024};
    store_folder(&s);
    ck_assert_int_eq(store_parts(&s, 32 * MIB), 0);
    record_log(TIERCE_LOG_WARN);
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    store_remove(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static struct tierce__disk_opts faulty_opts(void)
{
    struct tierce__vfs *inner;
    ck_assert_int_eq(tierce__vfs_create(&inner, 16), 0);
    ck_assert_int_eq(tierce__vfs_fault_create(&vfs, inner, false), 0);
    struct tierce__disk_opts opts = store_opts(&s, 32 * MIB);
    opts.vfs = vfs;
    opts.flush_interval_ms = 60000;
    return opts;
}

static void open_faulty(void)
{
    struct tierce__disk_opts opts = faulty_opts();
    ck_assert_int_eq(store_open(&s, &opts), 0);
}

static void fail_next_sync(void)
{
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SYNC,
                                                                .action = TIERCE__FAULT_FAIL,
                                                                .nth = 1,
                                                                .error = -EIO});
}

START_TEST(what_a_failed_sync_should_have_covered_is_dropped)
{
    open_faulty();
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_put(&s, 2), 0);
    fail_next_sync();
    ck_assert_int_eq(store_flush(&s), -EIO);
    ck_assert_str_eq(last_recorded(), "disk_sync_failed");
    ck_assert(!store_has(&s, 2));
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
    ck_assert_int_eq(store_put(&s, 2), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(store_stats(&s).durable_chunks, 2);
}
END_TEST

/* A loss without a waiting flush is reported by the next flush, once. */
START_TEST(a_sync_that_failed_in_between_is_told_by_the_next_flush)
{
    struct tierce__disk_opts opts = faulty_opts();
    opts.flush_interval_ms = 1;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    fail_next_sync();
    ck_assert_int_eq(store_put(&s, 2), 0);
    for (int i = 0; i < 10000 && store_has(&s, 2); i++)
        usleep(1000);
    ck_assert(!store_has(&s, 2));
    if (_i == 1)
        ck_assert_int_eq(store_put(&s, 3), 0); /* a flush with work of its own */
    ck_assert_int_eq(store_flush(&s), -EIO);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_put(&s, 2), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(store_stats(&s).durable_chunks, _i == 1 ? 3 : 2);
}
END_TEST

/* Syncs that wait until the gate opens; they fail then if they are to. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int (*sync)(struct tierce__vfs *, struct tierce__vfs_file *);
    bool closed, fails, reached;
} gate = {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

static int sync_at_gate(struct tierce__vfs *v, struct tierce__vfs_file *file)
{
    pthread_mutex_lock(&gate.mutex);
    bool wait = gate.closed;
    gate.reached = wait;
    pthread_cond_broadcast(&gate.cond);
    while (gate.closed)
        pthread_cond_wait(&gate.cond, &gate.mutex);
    pthread_mutex_unlock(&gate.mutex);
    return wait && gate.fails ? -EIO : gate.sync(v, file);
}

static void set_gate(bool closed)
{
    pthread_mutex_lock(&gate.mutex);
    gate.closed = closed;
    pthread_cond_broadcast(&gate.cond);
    pthread_mutex_unlock(&gate.mutex);
}

static void wait_for_gate(void)
{
    pthread_mutex_lock(&gate.mutex);
    while (!gate.reached)
        pthread_cond_wait(&gate.cond, &gate.mutex);
    pthread_mutex_unlock(&gate.mutex);
}

/* Flushes that nobody waits for one by one. */
struct flushes {
    struct tierce__store_req reqs[2];
    struct store_wait wait;
};

static void submit_flush(struct flushes *f, unsigned n, bool removals)
{
    f->reqs[n] = (struct tierce__store_req){.op = TIERCE__STORE_FLUSH,
                                            .deadline_ns = TIERCE__DEADLINE_NEVER,
                                            .removals = removals,
                                            .done = store_done,
                                            .arg = &f->wait};
    s.tier->ops->submit(s.tier, &f->reqs[n]);
}

static void wait_for_dones(struct flushes *f, int count)
{
    pthread_mutex_lock(&f->wait.mutex);
    while (f->wait.dones < count)
        pthread_cond_wait(&f->wait.cond, &f->wait.mutex);
    pthread_mutex_unlock(&f->wait.mutex);
}

static void open_gated(bool fails)
{
    gate.fails = fails;
    static struct tierce__vfs_ops gated;
    struct tierce__disk_opts opts = faulty_opts();
    gated = *vfs->ops;
    gate.sync = gated.sync;
    gated.sync = sync_at_gate;
    vfs->ops = &gated;
    ck_assert_int_eq(store_open(&s, &opts), 0);
}

/* A flush that comes while the sync of another is failing waits for chunks that go with it. */
START_TEST(a_flush_during_a_sync_that_fails_is_told)
{
    static struct flushes flushes = {
        .wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}};
    open_gated(true);
    ck_assert_int_eq(store_put(&s, 1), 0);
    set_gate(true);
    submit_flush(&flushes, 0, false);
    wait_for_gate();
    ck_assert_int_eq(store_put(&s, 2), 0);
    submit_flush(&flushes, 1, false);
    set_gate(false);
    wait_for_dones(&flushes, 2);
    ck_assert_int_eq(flushes.reqs[0].status, -EIO);
    ck_assert(!store_has(&s, 2));
    ck_assert_int_eq(flushes.reqs[1].status, -EIO);
    ck_assert_int_eq(store_flush(&s), 0);
}
END_TEST

/* ---- of removals alone ----------------------------------------------------------------------- */

struct sought {
    struct tierce__key key;
    bool found;
};

static bool note_found(void *arg, const struct tierce__disk_entry *entry)
{
    struct sought *sought = arg;
    sought->found |= memcmp(entry->key.hash, sought->key.hash, sizeof(entry->key.hash)) == 0;
    return !sought->found;
}

/* Whether the journal, as it lies there, has a chunk. */
static bool journal_has(uint64_t n)
{
    struct sought sought = {.key = store_key(&s, n)};
    ck_assert_int_eq(tierce__disk_scan(s.folder, s.namespaces, note_found, &sought), 0);
    return sought.found;
}

static uint64_t syncs(void)
{
    return tierce__vfs_fault_count(vfs, TIERCE__FAULT_SYNC);
}

/* It takes one sync, of the journal: what replaces a value on disk waits for it. */
START_TEST(a_flush_of_removals_does_not_wait_for_chunks)
{
    open_faulty();
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_put(&s, 2), 0);
    uint64_t before = syncs();
    ck_assert_int_eq(store_settle(&s), 0); /* nothing was removed */
    ck_assert_uint_eq(syncs(), before);
    ck_assert_int_eq(store_delete(&s, 1), 0);
    ck_assert(journal_has(1));
    ck_assert_int_eq(store_settle(&s), 0);
    ck_assert(!journal_has(1) && !journal_has(2));
    ck_assert_uint_eq(syncs(), before + 1);
    ck_assert_uint_eq(store_stats(&s).durable_chunks, 0);
    ck_assert_int_eq(store_settle(&s), 0);
    ck_assert_uint_eq(syncs(), before + 1);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert(journal_has(2));
    ck_assert_uint_eq(store_stats(&s).durable_chunks, 1);
}
END_TEST

/* Whether a chunk could be there again if the process ended now. */
static bool may_return(uint64_t n)
{
    struct tierce__key key = store_key(&s, n);
    struct tierce__store_req req = {.op = TIERCE__STORE_DELETE, .keys = &key, .key_count = 1};
    ck_assert_int_eq(store_run(&s, &req), TIERCE_E_MISS);
    return req.found == 1;
}

/* More than have a bin of their own in the table that knows them. */
START_TEST(each_removal_is_known_until_it_is_durable)
{
    enum { COUNT = 1000 };
    s.chunk_bytes = HARNESS_PAGE;
    open_faulty();
    for (uint64_t n = 0; n < COUNT; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    for (int round = 0; round < 2; round++) {
        for (uint64_t n = (uint64_t)round; n < COUNT; n += 2)
            ck_assert_int_eq(store_delete(&s, n), 0);
        for (uint64_t n = 0; n < COUNT; n++) {
            ck_assert(!may_return(n + COUNT));
            ck_assert(n % 2 > (uint64_t)round || may_return(n) == (n % 2 == (uint64_t)round));
        }
        ck_assert_int_eq(store_settle(&s), 0);
    }
    for (uint64_t n = 0; n < COUNT; n++)
        ck_assert(!may_return(n));
}
END_TEST

/* Chunks become durable in their time, though removals were flushed since. */
START_TEST(a_flush_of_removals_leaves_chunks_their_time)
{
    struct tierce__disk_opts opts = faulty_opts();
    opts.flush_interval_ms = 100;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_put(&s, 2), 0);
    ck_assert_int_eq(store_delete(&s, 1), 0);
    ck_assert_int_eq(store_settle(&s), 0);
    while (store_stats(&s).durable_chunks == 0) /* until the test's limit */
        usleep(1000);
    ck_assert(journal_has(2));
}
END_TEST

/* Removals do not depend on a sync of the data, and do not take its failure from the flush that it
 * is for. */
START_TEST(a_flush_of_removals_does_not_report_lost_chunks)
{
    struct tierce__disk_opts opts = faulty_opts();
    opts.flush_interval_ms = 1;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    fail_next_sync();
    ck_assert_int_eq(store_put(&s, 2), 0);
    while (store_has(&s, 2)) /* until the test's limit */
        usleep(1000);
    ck_assert_int_eq(store_delete(&s, 1), 0);
    ck_assert_int_eq(store_settle(&s), 0);
    ck_assert(!journal_has(1));
    ck_assert_int_eq(store_flush(&s), -EIO);
    ck_assert_int_eq(store_flush(&s), 0);
}
END_TEST

/* It arrives while a sync of the data is failing: that commit does not include its removal.
 */
START_TEST(a_flush_of_removals_waits_for_a_commit_of_its_own)
{
    static struct flushes flushes = {
        .wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}};
    open_gated(true);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_put(&s, 2), 0);
    set_gate(true);
    submit_flush(&flushes, 0, false);
    wait_for_gate();
    ck_assert_int_eq(store_delete(&s, 1), 0);
    submit_flush(&flushes, 1, true);
    set_gate(false);
    wait_for_dones(&flushes, 2);
    ck_assert_int_eq(flushes.reqs[0].status, -EIO);
    ck_assert_int_eq(flushes.reqs[1].status, 0);
    ck_assert(!journal_has(1));
}
END_TEST

/* It comes while the chunk that was removed is becoming durable: its removal is for another commit.
 */
START_TEST(a_removal_during_a_commit_is_for_the_next)
{
    static struct flushes flushes = {
        .wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}};
    open_gated(false);
    ck_assert_int_eq(store_put(&s, 1), 0);
    set_gate(true);
    submit_flush(&flushes, 0, false);
    wait_for_gate();
    ck_assert_int_eq(store_delete(&s, 1), 0);
    submit_flush(&flushes, 1, true);
    set_gate(false);
    wait_for_dones(&flushes, 2);
    ck_assert_int_eq(flushes.reqs[0].status, 0);
    ck_assert_int_eq(flushes.reqs[1].status, 0);
    ck_assert(!journal_has(1));
}
END_TEST

/* A journal that cannot be written is an error of this flush too. */
START_TEST(a_flush_of_removals_fails_with_the_journal)
{
    open_faulty();
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_delete(&s, 1), 0);
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SYNC,
                                                                .action = TIERCE__FAULT_FAIL,
                                                                .nth = 1,
                                                                .forever = true,
                                                                .error = -EIO});
    ck_assert_int_eq(store_settle(&s), -EIO);
    ck_assert_int_eq(store_settle(&s), -EIO);
    tierce__vfs_fault_clear(vfs);
    ck_assert_int_eq(store_settle(&s), 0);
    ck_assert(!journal_has(1));
}
END_TEST

CHECK_MAIN("disk_flush", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {what_a_failed_sync_should_have_covered_is_dropped,
                     a_flush_during_a_sync_that_fails_is_told,
                     a_flush_of_removals_does_not_wait_for_chunks,
                     each_removal_is_known_until_it_is_durable,
                     a_flush_of_removals_leaves_chunks_their_time,
                     a_flush_of_removals_does_not_report_lost_chunks,
                     a_flush_of_removals_waits_for_a_commit_of_its_own,
                     a_removal_during_a_commit_is_for_the_next,
                     a_flush_of_removals_fails_with_the_journal},
           .loops = {{a_sync_that_failed_in_between_is_told_by_the_next_flush, 0, 2}})
