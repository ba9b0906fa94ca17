/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "disk_harness.h"
#include "log_record.h"
#include "store/disk/disk_private.h"

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

static void break_at(enum tierce__fault_kind kind, uint64_t nth, bool forever, int error)
{
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = kind,
                                                                .action = TIERCE__FAULT_FAIL,
                                                                .nth = nth,
                                                                .forever = forever,
                                                                .error = error});
}

static void hang(enum tierce__fault_kind kind)
{
    tierce__vfs_fault_add(
        vfs, &(struct tierce__vfs_fault_rule){
                 .kind = kind, .action = TIERCE__FAULT_HANG, .nth = 1, .forever = true});
}

/* Ends what hangs, and what would. */
static void unhang(void)
{
    tierce__vfs_fault_clear(vfs);
    tierce__vfs_fault_release(vfs);
}

/* Until the device has been asked for so many of a kind: a busy machine may take its time. */
static void wait_for_count(enum tierce__fault_kind kind, uint64_t count)
{
    while (tierce__vfs_fault_count(vfs, kind) < count)
        usleep(1000);
}

struct many {
    struct tierce__store_req reqs[32];
    struct tierce__key keys[32];
    struct store_wait wait;
};

/* Each follows on the one before it. */
static void submit_puts(struct many *m, unsigned count, uint32_t timeout_ms)
{
    *m = (struct many){.wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}};
    for (unsigned n = 0; n < count; n++) {
        struct tierce__buf *buf;
        uint64_t bytes = store_bytes(&s, n);
        ck_assert_int_eq(tierce__pool_alloc(s.pool, &buf, bytes), 0);
        store_fill(buf->data, n, bytes);
        m->keys[n] = store_key(&s, n);
        m->reqs[n] = (struct tierce__store_req){.op = TIERCE__STORE_PUT,
                                                .deadline_ns = tierce__deadline_in_ms(timeout_ms),
                                                .done = store_done,
                                                .arg = &m->wait,
                                                .keys = &m->keys[n],
                                                .key_count = 1,
                                                .buf = buf,
                                                .parent = n > 0 ? &m->keys[n - 1] : NULL,
                                                .needs_parent = true,
                                                .object_bytes = bytes};
        s.tier->ops->submit(s.tier, &m->reqs[n]);
        tierce__buf_release(buf);
    }
}

static void wait_for_dones(struct many *m, int count)
{
    pthread_mutex_lock(&m->wait.mutex);
    while (m->wait.dones < count)
        pthread_cond_wait(&m->wait.cond, &m->wait.mutex);
    pthread_mutex_unlock(&m->wait.mutex);
}

static int dones_of(struct many *m)
{
    pthread_mutex_lock(&m->wait.mutex);
    int dones = m->wait.dones;
    pthread_mutex_unlock(&m->wait.mutex);
    return dones;
}

START_TEST(read_and_write_errors_are_the_callers)
{
    open_faulty();
    ck_assert_int_eq(store_put(&s, 1), 0);
    break_at(TIERCE__FAULT_SUBMIT_READ, 1, false, -EIO);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), -EIO);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
    break_at(TIERCE__FAULT_SUBMIT_WRITE, 1, false, -ENOSPC);
    ck_assert_int_eq(store_put(&s, 2), -ENOSPC);
    ck_assert(!store_has(&s, 2));
    ck_assert_int_eq(store_put(&s, 2), 0);
    ck_assert_uint_eq(store_stats(&s).errors, 2);
}
END_TEST

START_TEST(a_full_disk_makes_do_with_less)
{
    struct tierce__disk_opts opts = faulty_opts();
    s.chunk_bytes = 256 * 1024;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    for (uint64_t n = 0; n < 7; n++) /* within what the first growth has made */
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    break_at(TIERCE__FAULT_ALLOCATE, 1, true, -ENOSPC);
    uint64_t length = store_file_bytes(&s, "data");
    for (uint64_t n = 10; n < 60; n++) {
        ck_assert_int_eq(store_put(&s, n), 0);
        ck_assert_int_eq(store_flush(&s), 0);
    }
    ck_assert(store_stats(&s).full);
    ck_assert_uint_gt(store_stats(&s).evicted_chunks, 10);
    ck_assert_uint_le(store_file_bytes(&s, "data"), length + 8 * MIB);
    tierce__vfs_fault_clear(vfs);
    for (uint64_t n = 100; n < 130; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
}
END_TEST

START_TEST(a_journal_that_fails_is_written_anew)
{
    open_faulty();
    for (uint64_t n = 0; n < 4; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_put(&s, 4), 0);
    ck_assert_int_eq(store_delete(&s, 0), 0);
    break_at(TIERCE__FAULT_WRITE, 1, false, -EIO); /* the append; the copy works */
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(store_stats(&s).durable_chunks, 4);
    tierce__vfs_fault_clear(vfs);

    ck_assert_int_eq(store_put(&s, 5), 0);
    break_at(TIERCE__FAULT_WRITE, 1, true, -EIO);
    ck_assert_int_eq(store_flush(&s), -EIO);
    ck_assert_int_eq(store_put(&s, 6), -EIO); /* read-only */
    ck_assert_int_eq(store_get(&s, 5, 0, 0), 0);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
    ck_assert_int_eq(store_delete(&s, 5), 0);
    ck_assert_int_eq(store_delete(&s, 1), 0);
    ck_assert_uint_eq(recorded("disk_journal_recovered"), 0);
    tierce__vfs_fault_clear(vfs);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(recorded("disk_journal_recovered"), 1);
    ck_assert_int_eq(store_put(&s, 6), 0);
    store_close(&s);
    struct tierce__disk_opts opts = store_opts(&s, 32 * MIB);
    ck_assert_int_eq(store_open(&s, &opts), 0);
    for (uint64_t n = 0; n < 7; n++)
        ck_assert_int_eq(store_get(&s, n, 0, 0), n == 0 || n == 1 || n == 5 ? TIERCE_E_MISS : 0);
}
END_TEST

/* Each of these fails again with every flush; the log says so once. */
START_TEST(what_keeps_failing_is_said_once)
{
    static const struct {
        enum tierce__fault_kind kind;
        int error;
        unsigned events;
    } cases[] = {
        {TIERCE__FAULT_OPEN, -EMFILE, 2}, /* the text; and the journal, which is full before long */
        {TIERCE__FAULT_WRITE, -EIO, 3},   /* text, append, journal */
        {TIERCE__FAULT_SYNC, -EIO, 4},    /* and data */
        {TIERCE__FAULT_ALLOCATE, -ENOSPC, 1},
    };
    open_faulty();
    break_at(cases[_i].kind, 1, true, cases[_i].error);
    forget_recorded();
    for (uint64_t n = 0; n < 300; n++) {
        (void)store_put(&s, n);
        (void)store_delete(&s, n / 2);
        (void)store_flush(&s);
    }
    ck_assert_uint_ge(recorded(""), 1);
    ck_assert_uint_le(recorded(""), cases[_i].events);
}
END_TEST

/* A text that cannot be published is not tried for each chunk: it costs files and syncs. */
START_TEST(a_text_that_fails_is_not_tried_again_at_once)
{
    open_faulty();
    break_at(TIERCE__FAULT_RENAME, 1, true, -EIO);
    uint64_t renames = tierce__vfs_fault_count(vfs, TIERCE__FAULT_RENAME);
    for (uint64_t n = 0; n < 20; n++) {
        ck_assert_int_eq(store_put(&s, n), 0);
        ck_assert_int_eq(store_flush(&s), 0);
    }
    ck_assert_uint_eq(tierce__vfs_fault_count(vfs, TIERCE__FAULT_RENAME), renames + 1);
}
END_TEST

/* The file is in its place, but its name may not be durable: the next try makes it so. */
START_TEST(a_text_whose_name_was_not_synced_is_published_by_the_next_try)
{
    open_faulty();
    break_at(TIERCE__FAULT_SYNC_FOLDER, 1, true, -EIO);
    ck_assert_int_eq(store_put(&s, 0), 0);
    (void)store_flush(&s);
    struct tierce__disk *d = TIERCE__CONTAINER_OF(s.tier, struct tierce__disk, base);
    ck_assert_uint_gt(d->text_retry_at, 0);
    ck_assert_uint_eq(d->ns_texts[s.ns], 0);
    tierce__vfs_fault_clear(vfs);
    uint64_t synced = tierce__vfs_fault_count(vfs, TIERCE__FAULT_SYNC_FOLDER);
    for (uint64_t n = 1; n < 4 && d->ns_texts[s.ns] == 0; n++) {
        d->text_retry_at = 0; /* a minute later */
        ck_assert_int_eq(store_put(&s, n), 0);
        ck_assert_int_eq(store_flush(&s), 0);
    }
    ck_assert_str_eq(last_recorded(), "disk_text_failed");
    ck_assert_uint_eq(d->ns_texts[s.ns], 1);
    ck_assert_uint_gt(tierce__vfs_fault_count(vfs, TIERCE__FAULT_SYNC_FOLDER), synced);
}
END_TEST

/* A process that was killed may have renamed a journal without a sync of the folder. */
START_TEST(an_open_syncs_the_folder)
{
    open_faulty();
    ck_assert_int_eq(store_put(&s, 0), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    store_close(&s);
    open_faulty();
    ck_assert_uint_ge(tierce__vfs_fault_count(vfs, TIERCE__FAULT_SYNC_FOLDER), 1);
}
END_TEST

START_TEST(a_vanished_folder_leaves_a_store_that_reads)
{
    struct tierce__disk_opts opts = store_opts(&s, 32 * MIB);
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    char moved[200];
    snprintf(moved, sizeof(moved), "%s.gone", s.folder);
    ck_assert_int_eq(rename(s.folder, moved), 0);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
    for (uint64_t n = 10; n < 20; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    (void)store_flush(&s);
    ck_assert_int_eq(store_get(&s, 12, 0, 0), 0);
    store_close(&s);
    ck_assert_int_eq(rename(moved, s.folder), 0);
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
}
END_TEST

/* The process that wrote the journal may have been killed before its sync, but after reopening its
 * chunks count as durable. */
/* Also of an empty store, and without the chunks that wait for a commit. */
START_TEST(a_ping_writes_and_syncs)
{
    struct tierce__store_req ping = {.op = TIERCE__STORE_PING};
    open_faulty();
    for (int i = 0; i < 2; i++) {
        uint64_t syncs = tierce__vfs_fault_count(vfs, TIERCE__FAULT_SYNC);
        ck_assert_int_eq(store_run(&s, &ping), 0);
        ck_assert_uint_gt(tierce__vfs_fault_count(vfs, TIERCE__FAULT_SYNC), syncs);
        break_at(TIERCE__FAULT_SYNC, 1, true, -EIO);
        ck_assert_int_eq(store_run(&s, &ping), -EIO);
        tierce__vfs_fault_clear(vfs);
        ck_assert_int_eq(store_run(&s, &ping), 0);
        ck_assert_uint_eq(store_stats(&s).durable_chunks, 0);
        if (i == 0)
            ck_assert_int_eq(store_put(&s, 1), 0);
    }
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_uint_eq(store_stats(&s).durable_chunks, 1);
}
END_TEST

START_TEST(a_journal_that_cannot_be_synced_is_not_gone_on_with)
{
    struct tierce__disk_opts opts = store_opts(&s, 32 * MIB);
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    store_close(&s);
    opts = faulty_opts();
    break_at(TIERCE__FAULT_SYNC, 1, true, -EIO);
    ck_assert_int_eq(store_open(&s, &opts), -EIO);
    tierce__vfs_fault_clear(vfs);
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_uint_eq(store_stats(&s).durable_chunks, 1);
}
END_TEST

START_TEST(deadlines_end_requests_that_hang)
{
    struct tierce__disk_opts opts = faulty_opts();
    opts.io_depth = 4;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    for (uint64_t n = 0; n < 4; n++)
        ck_assert_int_eq(store_put(&s, n), 0);
    s.timeout_ms = 30;
    hang(TIERCE__FAULT_SUBMIT_READ);
    uint64_t before = tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_READ);
    uint64_t start = tierce__now_ns();
    ck_assert_int_eq(store_get(&s, 0, 0, 0), TIERCE_E_DEADLINE);
    ck_assert_uint_ge(tierce__now_ns() - start, 30 * TIERCE__MS_NS);
    ck_assert_uint_lt(tierce__now_ns() - start, 5000 * TIERCE__MS_NS);
    /* Until two hang in the device: the deadline of one may come before it has got there. */
    while (tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_READ) < before + 2)
        ck_assert_int_eq(store_get(&s, 1, 0, 0), TIERCE_E_DEADLINE);
    ck_assert_int_eq(store_get(&s, 2, 0, 0), TIERCE_E_DOWN); /* two of four do not come back */
    ck_assert_int_eq(store_put(&s, 9), TIERCE_E_DOWN);
    ck_assert_int_eq(store_delete(&s, 0), 0); /* it is being read: gone from sight only */
    ck_assert(!store_has(&s, 0));
    unhang();
    s.timeout_ms = 10000;
    int rc = TIERCE_E_DOWN;
    for (int i = 0; i < 1000 && rc == TIERCE_E_DOWN; i++) {
        usleep(1000);
        rc = store_get(&s, 2, 0, 0);
    }
    ck_assert_int_eq(rc, 0);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
    ck_assert_int_eq(store_put(&s, 0), 0); /* after the late read has let go of the old one */
    ck_assert_int_eq(store_get(&s, 0, 0, 0), 0);
}
END_TEST

/* A put whose deadline passes while its bytes are on their way is carried on. */
START_TEST(a_late_put_is_not_wasted)
{
    open_faulty();
    hang(TIERCE__FAULT_SUBMIT_WRITE);
    s.timeout_ms = 50;
    while (tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_WRITE) == 0)
        ck_assert_int_eq(store_put(&s, 1), TIERCE_E_DEADLINE);
    ck_assert(!store_has(&s, 1));
    unhang();
    s.timeout_ms = 0;
    for (int i = 0; i < 10000 && !store_has(&s, 1); i++)
        usleep(1000);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
}
END_TEST

static struct many many;

/* Of a store that is longer than the queue the beginning is written: the rest is of no use without
 * it. */
START_TEST(a_full_queue_takes_no_more)
{
    struct tierce__disk_opts opts = faulty_opts();
    opts.io_depth = 1;
    opts.queue_bytes = 512 * 1024;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    hang(TIERCE__FAULT_SUBMIT_WRITE);
    submit_puts(&many, 32, UINT32_MAX);
    struct tierce__tier_stats stats = store_stats(&s);
    ck_assert_uint_ge(stats.dropped_puts, 1);
    ck_assert_uint_le(stats.queued_bytes, 512 * 1024 + 2 * 68 * 1024);
    unsigned kept = 32 - (unsigned)dones_of(&many);
    ck_assert_uint_ge(kept, 7);
    ck_assert_uint_le(kept, 10);
    ck_assert_int_eq(many.reqs[kept].status, TIERCE_E_FULL);
    unhang();
    wait_for_dones(&many, 32);
    for (unsigned n = 0; n < 32; n++) {
        int rc = many.reqs[n].status;
        ck_assert(n < kept ? rc == 0 : rc == TIERCE_E_FULL || rc == TIERCE_E_REFUSED);
        ck_assert(store_has(&s, n) == (n < kept));
    }
    ck_assert_uint_eq(store_stats(&s).queued_bytes, 0);
}
END_TEST

/* A put that the queue drops is still one of two. */
START_TEST(a_full_queue_forgets_no_first_put)
{
    struct tierce__disk_opts opts = faulty_opts();
    opts.io_depth = 1;
    opts.queue_bytes = 256 * 1024;
    opts.admit_second = true;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    for (unsigned n = 0; n < 32; n++)
        ck_assert_int_eq(store_put(&s, n), TIERCE_E_REFUSED);
    hang(TIERCE__FAULT_SUBMIT_WRITE);
    submit_puts(&many, 32, UINT32_MAX);
    unsigned kept = 32 - (unsigned)dones_of(&many);
    ck_assert_int_eq(many.reqs[kept].status, TIERCE_E_FULL);
    unhang();
    wait_for_dones(&many, 32);
    ck_assert_int_eq(store_put(&s, kept), 0);
}
END_TEST

/* A suffix whose prefix found no room gets no room in the queue either: it is answered at once. */
START_TEST(a_queue_takes_no_suffix_without_its_prefix)
{
    struct tierce__disk_opts opts = faulty_opts();
    opts.io_depth = 1;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    hang(TIERCE__FAULT_SUBMIT_WRITE);
    submit_puts(&many, 4, UINT32_MAX);
    struct tierce__key keys[2] = {store_key(&s, 10), store_key(&s, 11)};
    struct tierce__store_req put = {.op = TIERCE__STORE_PUT,
                                    .keys = &keys[1],
                                    .key_count = 1,
                                    .buf = many.reqs[0].buf,
                                    .parent = &keys[0],
                                    .needs_parent = true,
                                    .object_bytes = 4096};
    ck_assert_int_eq(store_run(&s, &put), TIERCE_E_REFUSED);
    ck_assert_uint_eq(store_stats(&s).dropped_puts, 0);
    unhang();
    wait_for_dones(&many, 4);
    for (unsigned n = 0; n < 4; n++)
        ck_assert_int_eq(many.reqs[n].status, 0);
}
END_TEST

START_TEST(close_cancels_what_does_not_end)
{
    struct tierce__disk_opts opts = faulty_opts();
    opts.io_depth = 2;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SUBMIT_WRITE,
                                                                .action = TIERCE__FAULT_LATE,
                                                                .nth = 1,
                                                                .forever = true,
                                                                .delay_ns = 1000 * TIERCE__MS_NS});
    submit_puts(&many, 8, UINT32_MAX);
    s.tier->ops->close(s.tier, tierce__deadline_in_ms(50));
    s.tier = NULL;
    ck_assert_int_eq(dones_of(&many), 8);
    unsigned closed = 0;
    for (unsigned n = 0; n < 8; n++)
        closed += many.reqs[n].status == TIERCE_E_CLOSED;
    ck_assert_uint_ge(closed, 6);
    struct tierce__disk_opts plain = store_opts(&s, 32 * MIB);
    ck_assert_int_eq(store_open(&s, &plain), 0);
    for (uint64_t n = 0; n < 8; n++) {
        int rc = store_get(&s, n, 0, 0);
        ck_assert(rc == 0 || rc == TIERCE_E_MISS);
    }
}
END_TEST

/* A device that never answers does not hang the process; memory that it may still write to is not
 * reused. */
START_TEST(close_leaves_a_dead_device_behind)
{
    open_faulty();
    hang(TIERCE__FAULT_SUBMIT_WRITE);
    submit_puts(&many, 2, UINT32_MAX);
    wait_for_count(TIERCE__FAULT_SUBMIT_WRITE, 1);
    uint64_t start = tierce__now_ns();
    s.tier->ops->close(s.tier, tierce__deadline_in_ms(20));
    ck_assert_uint_lt(tierce__now_ns() - start, 20000 * TIERCE__MS_NS);
    ck_assert_str_eq(last_recorded(), "disk_close_leaked");
    ck_assert_int_eq(dones_of(&many), 2);
    ck_assert_int_eq(many.reqs[0].status, TIERCE_E_CLOSED);
    s.tier = NULL;
    store_remove(&s);
    _exit(EXIT_SUCCESS); /* with the leak that this is about */
}
END_TEST

static void submit_get(struct many *m, unsigned n, const struct tierce__key *key)
{
    struct tierce__buf *buf;
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &buf, s.chunk_bytes), 0);
    m->reqs[n] = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                            .deadline_ns = TIERCE__DEADLINE_NEVER,
                                            .done = store_done,
                                            .arg = &m->wait,
                                            .keys = key,
                                            .key_count = 1,
                                            .buf = buf,
                                            .length = s.chunk_bytes};
    s.tier->ops->submit(s.tier, &m->reqs[n]);
}

/* Reads do not wait for a full queue of writes: they run as soon as the started writes end, even if
 * later writes hang. */
START_TEST(reads_pass_queued_writes)
{
    static struct many gets = {.wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}};
    struct tierce__disk_opts opts = faulty_opts();
    opts.io_depth = 4;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_int_eq(store_put(&s, 100), 0);
    struct tierce__key key = store_key(&s, 100);
    uint64_t writes = tierce__vfs_fault_count(vfs, TIERCE__FAULT_SUBMIT_WRITE);
    hang(TIERCE__FAULT_SUBMIT_WRITE);
    submit_puts(&many, 32, UINT32_MAX);
    wait_for_count(TIERCE__FAULT_SUBMIT_WRITE, writes + 4);
    for (unsigned n = 0; n < 4; n++)
        submit_get(&gets, n, &key);
    tierce__vfs_fault_release(vfs);
    wait_for_dones(&gets, 4);
    ck_assert_int_le(dones_of(&many), 4);
    for (unsigned n = 0; n < 4; n++) {
        ck_assert_int_eq(gets.reqs[n].status, 0);
        ck_assert(store_is_right(gets.reqs[n].buf->data, 100, 0, s.chunk_bytes));
        tierce__buf_release(gets.reqs[n].buf);
    }
    unhang();
    wait_for_dones(&many, 32);
}
END_TEST

static bool note_found(void *arg, const struct tierce__disk_entry *entry)
{
    bool *found = arg;
    struct tierce__key key = store_key(&s, 1);
    *found = *found || memcmp(entry->key.hash, key.hash, sizeof(key.hash)) == 0;
    return !*found;
}

/* Whether the journal, as it lies there, has chunk 1. */
static bool journal_has_it(void)
{
    bool found = false;
    ck_assert_int_eq(tierce__disk_scan(s.folder, s.namespaces, note_found, &found), 0);
    return found;
}

/* A chunk deleted before a flush stays deleted, whatever happens, even while it is still being
 * read; the loop index selects whether it was durable. */
START_TEST(a_flush_covers_the_deletion_of_what_is_read)
{
    static struct many gets = {.wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}};
    open_faulty();
    ck_assert_int_eq(store_put(&s, 2), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    uint64_t used = store_data_bytes(&s);
    ck_assert_int_eq(store_put(&s, 1), 0);
    if (_i == 0)
        ck_assert_int_eq(store_flush(&s), 0);
    ck_assert(journal_has_it() == (_i == 0));
    struct tierce__key key = store_key(&s, 1);
    hang(TIERCE__FAULT_SUBMIT_READ);
    submit_get(&gets, 0, &key);
    wait_for_count(TIERCE__FAULT_SUBMIT_READ, 1);
    ck_assert_int_eq(store_delete(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert(!journal_has_it());
    ck_assert_uint_gt(store_data_bytes(&s),
                      used); /* its bytes are not written over while they are read */
    unhang();
    wait_for_dones(&gets, 1);
    ck_assert_int_eq(gets.reqs[0].status, 0);
    ck_assert(store_is_right(gets.reqs[0].buf->data, 1, 0, s.chunk_bytes));
    tierce__buf_release(gets.reqs[0].buf);
    while (store_data_bytes(&s) > used) /* until the test's limit */
        usleep(1000);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert(journal_has_it());
}
END_TEST

/* Its deletion waits for a commit, which may take long; a new put does not. */
START_TEST(what_was_deleted_while_it_was_read_is_put_anew_at_once)
{
    static struct many gets = {.wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}};
    open_faulty();
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    struct tierce__key key = store_key(&s, 1);
    hang(TIERCE__FAULT_SUBMIT_READ);
    submit_get(&gets, 0, &key);
    wait_for_count(TIERCE__FAULT_SUBMIT_READ, 1);
    ck_assert_int_eq(store_delete(&s, 1), 0);
    unhang();
    wait_for_dones(&gets, 1);
    tierce__buf_release(gets.reqs[0].buf);
    s.timeout_ms = 20000;
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert(journal_has_it());
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
}
END_TEST

/* Gets that are repeated as soon as they are answered, until they are stopped. */
#define READERS   12u
#define READS_MAX 20000u

static struct {
    struct tierce__store_req reqs[READERS];
    struct store_wait wait; /* counts the readers that stopped */
    unsigned reads, failed;
    bool stop;
} steady;

static void read_on(struct tierce__store_req *req)
{
    pthread_mutex_lock(&steady.wait.mutex);
    steady.reads++;
    steady.failed += req->status != 0;
    bool again = !steady.stop && steady.reads < READS_MAX;
    if (!again)
        steady.wait.dones++;
    pthread_cond_signal(&steady.wait.cond);
    pthread_mutex_unlock(&steady.wait.mutex);
    if (again)
        s.tier->ops->submit(s.tier, req);
}

static void start_readers(const struct tierce__key *key)
{
    for (unsigned i = 0; i < READERS; i++) {
        struct tierce__buf *buf;
        ck_assert_int_eq(tierce__pool_alloc(s.pool, &buf, s.chunk_bytes), 0);
        steady.reqs[i] = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                                    .deadline_ns = TIERCE__DEADLINE_NEVER,
                                                    .done = read_on,
                                                    .keys = key,
                                                    .key_count = 1,
                                                    .buf = buf,
                                                    .length = s.chunk_bytes};
        s.tier->ops->submit(s.tier, &steady.reqs[i]);
    }
}

/* Writes get through beside reads that always fill the queue: at least every fourth transfer. */
START_TEST(reads_do_not_starve_writes)
{
    struct tierce__disk_opts opts = faulty_opts();
    opts.io_depth = _i == 0 ? 4 : 1;
    opts.io_bytes = 16384; /* four or five transfers each */
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_int_eq(store_put(&s, 100), 0);
    struct tierce__key key = store_key(&s, 100);
    pthread_mutex_init(&steady.wait.mutex, NULL);
    pthread_cond_init(&steady.wait.cond, NULL);
    start_readers(&key);
    submit_puts(&many, 8, UINT32_MAX);
    wait_for_dones(&many, 8);
    pthread_mutex_lock(&steady.wait.mutex);
    unsigned reads = steady.reads;
    steady.stop = true;
    while (steady.wait.dones < (int)READERS)
        pthread_cond_wait(&steady.wait.cond, &steady.wait.mutex);
    pthread_mutex_unlock(&steady.wait.mutex);
    for (unsigned i = 0; i < READERS; i++)
        tierce__buf_release(steady.reqs[i].buf);
    for (unsigned n = 0; n < 8; n++)
        ck_assert_int_eq(many.reqs[n].status, 0);
    ck_assert_uint_eq(steady.failed, 0);
    /* 8 puts beside 3 reads for each write; some ran before the puts came and while files grew. */
    ck_assert_uint_lt(reads, READS_MAX / 4);
}
END_TEST

START_TEST(a_flipped_bit_is_for_the_reader_to_find)
{
    open_faulty();
    ck_assert_int_eq(store_put(&s, 1), 0);
    tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SUBMIT_READ,
                                                                .action = TIERCE__FAULT_FLIP,
                                                                .nth = 1,
                                                                .bit = 77777});
    ck_assert_int_eq(store_get(&s, 1, 0, 0), TIERCE_E_CHECKSUM);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("disk_faults");
    TCase *t = tcase_create("disk_faults");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, read_and_write_errors_are_the_callers);
    tcase_add_test(t, a_full_disk_makes_do_with_less);
    tcase_add_test(t, a_journal_that_fails_is_written_anew);
    tcase_add_loop_test(t, what_keeps_failing_is_said_once, 0, 4);
    tcase_add_test(t, a_text_that_fails_is_not_tried_again_at_once);
    tcase_add_test(t, a_text_whose_name_was_not_synced_is_published_by_the_next_try);
    tcase_add_test(t, an_open_syncs_the_folder);
    tcase_add_test(t, a_vanished_folder_leaves_a_store_that_reads);
    tcase_add_test(t, a_journal_that_cannot_be_synced_is_not_gone_on_with);
    tcase_add_test(t, deadlines_end_requests_that_hang);
    tcase_add_test(t, a_late_put_is_not_wasted);
    tcase_add_test(t, a_full_queue_takes_no_more);
    tcase_add_test(t, a_full_queue_forgets_no_first_put);
    tcase_add_test(t, a_queue_takes_no_suffix_without_its_prefix);
    tcase_add_test(t, close_cancels_what_does_not_end);
    tcase_add_exit_test(t, close_leaves_a_dead_device_behind, EXIT_SUCCESS);
    tcase_add_test(t, reads_pass_queued_writes);
    tcase_add_test(t, a_ping_writes_and_syncs);
    tcase_add_loop_test(t, a_flush_covers_the_deletion_of_what_is_read, 0, 2);
    tcase_add_test(t, what_was_deleted_while_it_was_read_is_put_anew_at_once);
    tcase_add_loop_test(t, reads_do_not_starve_writes, 0, 2);
    tcase_add_test(t, a_flipped_bit_is_for_the_reader_to_find);
    suite_add_tcase(suite, t);
    return suite;
}

int main(void)
{
    return check_main_at_once(make_suite);
}
