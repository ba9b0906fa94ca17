/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "check_main.h"
#include "disk_harness.h"
#include "test_random.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

/*
 * Stores that end badly: a process killed at random moments, and the power cut at every operation
 * that changes the disk. A model outside the store records the acknowledged flushes. After each
 * reopening every such chunk is there, whatever is there is right in every byte, and the bytes that
 * are accounted for are those of the chunks that are there. Chunks are recoded meanwhile: their
 * other form has the same bytes, except for the last page.
 */

#define MIB    (1ULL << 20)
#define CHUNKS 96u

struct model {
    bool put[CHUNKS];     /* the put returned, no removal has begun since */
    bool durable[CHUNKS]; /* a flush that began after the put returned 0, no removal since */
    bool removed[CHUNKS]; /* the removal returned, no put has begun since */
    bool gone[CHUNKS];    /* a flush, perhaps of removals alone, that began after it returned 0 */
    uint64_t flushes;
    uint64_t recodes; /* that were acknowledged */
};

static struct store s;
static struct model *model;
static struct test_random rng;
static bool evicting; /* the cap is too small for all: durable chunks may leave */

static bool told_of_loss; /* of pages of the journal that were synced; none ever is */

static void listen(void *arg, enum tierce_log_level level, const char *event, const char *detail)
{
    (void)arg;
    (void)level;
    if (strcmp(event, "disk_journal_damaged") == 0 && strstr(detail, "lost_at_end=0 ") == NULL)
        told_of_loss = true;
}

static void begin(bool small_cap, const char *where)
{
    s = (struct store){.chunk_bytes = 16 * 1024, .timeout_ms = 60000};
    evicting = small_cap;
    snprintf(s.folder, sizeof(s.folder), "%s/test_crash.XXXXXX", where);
    temp_folder_make(s.folder);
    model = mmap(NULL, sizeof(*model), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(model, MAP_FAILED);
    tierce_set_log_fn(listen, NULL, TIERCE_LOG_WARN);
}

static void end(void)
{
    store_remove(&s);
    munmap(model, sizeof(*model));
}

static struct tierce__disk_opts opts_here(void)
{
    struct tierce__disk_opts opts = store_opts(&s, evicting ? 1 * MIB : 8 * MIB);
    opts.flush_interval_ms = 3;
    opts.io_bytes = 8192;
    return opts;
}

/* Of all, or of removals alone. */
static bool flush(bool all)
{
    if ((all ? store_flush(&s) : store_settle(&s)) != 0)
        return false;
    for (uint32_t n = 0; n < CHUNKS; n++) {
        model->durable[n] |= all && model->put[n];
        model->gone[n] |= model->removed[n];
    }
    model->flushes += all;
    return true;
}

/* Brings a durable chunk into the other form: the first one from n on. False as of step. */
static bool recode(uint32_t n, bool codes)
{
    for (uint32_t i = 0; i < CHUNKS && !model->durable[n]; i++)
        n = (n + 1) % CHUNKS;
    struct tierce__key key = store_key(&s, n);
    uint64_t bytes = store_bytes(&s, n), stored = codes ? bytes - HARNESS_PAGE : bytes;
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .keys = &key,
                                    .key_count = 1,
                                    .object_bytes = bytes,
                                    .coded_bytes = codes ? stored : 0,
                                    .recodes = true};
    if (tierce__pool_alloc(s.pool, &req.buf, stored) < 0)
        return false;
    store_fill(req.buf->data, n, stored);
    int rc = store_run(&s, &req);
    tierce__buf_release(req.buf);
    model->recodes += rc == 0 && req.found == 0;
    return rc == 0 || rc == TIERCE_E_REFUSED || rc == TIERCE_E_MISS || rc == TIERCE_E_FULL;
}

/* Reads a chunk in the form in which it is stored; the status as of store_get. */
static int get_stored(uint32_t n, uint64_t *bytes)
{
    struct tierce__key key = store_key(&s, n);
    struct tierce__store_req found = {.op = TIERCE__STORE_LOOKUP, .keys = &key, .key_count = 1};
    int rc = store_run(&s, &found);
    *bytes = store_bytes(&s, n);
    if (rc < 0 || found.found == 0 || found.coded_bytes == 0)
        return store_get(&s, n, 0, 0);
    *bytes = found.coded_bytes;
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .keys = &key,
                                    .key_count = 1,
                                    .coded_bytes = found.coded_bytes,
                                    .stored = found.stored,
                                    .length = found.coded_bytes};
    ck_assert_uint_eq(found.coded_bytes, store_bytes(&s, n) - HARNESS_PAGE);
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &req.buf, req.length), 0);
    rc = store_run(&s, &req);
    if (rc == 0 && !store_is_right(req.buf->data, n, 0, req.length))
        rc = TIERCE_E_CHECKSUM;
    tierce__buf_release(req.buf);
    return rc;
}

/* One random step; false when the store does not answer with 0 any more. */
static bool step(void)
{
    uint32_t what = test_random_below(&rng, 100), n = test_random_below(&rng, CHUNKS);
    if (what < 12)
        return flush(true);
    if (what < 18)
        return flush(false);
    if (what >= 80)
        return recode(n, what < 90);
    /* The order matters: from the request on, the chunk may or may not be there. */
    if (what < 36) {
        model->put[n] = false;
        model->durable[n] = false;
        int rc = store_delete(&s, n);
        model->removed[n] = rc == 0 || rc == TIERCE_E_MISS;
        return model->removed[n];
    }
    model->removed[n] = false;
    model->gone[n] = false;
    int rc = store_put(&s, n);
    if (rc == 0)
        model->put[n] = true;
    return rc == 0;
}

/* Reopens the store without faults and compares it with the model. */
static void verify(const char *what)
{
    ck_assert_int_eq(store_parts(&s, 4 * MIB), 0);
    struct tierce__disk_opts opts = opts_here();
    opts.flush_interval_ms = 60000;
    int rc = store_open(&s, &opts);
    ck_assert_msg(rc == 0, "open: %d (%s)", rc, what);
    ck_assert_msg(!told_of_loss, "a loss is told that was none (%s)", what);
    uint64_t found = 0, bytes = 0;
    for (uint32_t n = 0; n < CHUNKS; n++) {
        uint64_t stored;
        rc = get_stored(n, &stored);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_MISS, "chunk %u: %d (%s)", n, rc, what);
        ck_assert_msg(rc == 0 || !model->durable[n] || evicting, "chunk %u is lost (%s)", n, what);
        ck_assert_msg(rc != 0 || !model->gone[n], "chunk %u is there again (%s)", n, what);
        model->put[n] = model->durable[n] = rc == 0;
        model->removed[n] = model->gone[n] = rc != 0;
        found += rc == 0;
        bytes += rc == 0 ? stored : 0;
    }
    struct tierce__tier_stats stats = store_stats(&s);
    ck_assert_uint_eq(stats.chunks, found);
    ck_assert_uint_eq(stats.durable_chunks, found);
    ck_assert_uint_le(stats.used_bytes, stats.cap_bytes);
    uint64_t text = store_data_bytes(&s) - bytes;
    ck_assert_msg(text == 0 || text == HARNESS_PAGE, "accounting is off by %d (%s)", (int)text,
                  what);
    store_close(&s);
    store_parts_end(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* ---- kill -9 --------------------------------------------------------------------------------- */

/* Lives until it is killed: from outside, or before its `change`-th change of the disk (0: none),
 * unless it is through with `steps` steps before. */
static void be_killed(uint64_t change, unsigned steps)
{
    alarm(60);
    struct tierce__vfs *inner, *vfs;
    if (store_parts(&s, 4 * MIB) != 0 || tierce__vfs_create(&inner, 16) != 0 ||
        tierce__vfs_fault_create(&vfs, inner, false) != 0)
        _exit(2);
    if (change > 0)
        tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_CHANGE,
                                                                    .action = TIERCE__FAULT_KILL,
                                                                    .nth = change});
    struct tierce__disk_opts opts = opts_here();
    opts.lock_wait_ms = 5000;
    opts.vfs = vfs;
    if (store_open(&s, &opts) != 0)
        _exit(3);
    for (unsigned i = 0; i < steps; i++)
        if (!step())
            _exit(4);
    _exit(0);
}

START_TEST(killed_at_random)
{
    unsigned long rounds = 20ul * test_scale();
    rng = test_random_start("killed_at_random");
    begin(_i == 1, ".");
    for (unsigned long round = 0; round < rounds; round++) {
        uint32_t wait_us = 1000 + test_random_below(&rng, round % 4 == 0 ? 4000 : 60000);
        rng.state += round;
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            be_killed(0, UINT32_MAX);
        usleep(wait_us);
        kill(pid, SIGKILL);
        int status;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFSIGNALED(status), "the child ended with %d", WEXITSTATUS(status));
        char what[64];
        snprintf(what, sizeof(what), "round %lu", round);
        verify(what);
    }
    ck_assert_uint_gt(model->flushes, 0);
    end();
}
END_TEST

START_TEST(killed_before_each_change)
{
    rng = test_random_start("killed_before_each_change");
    struct test_random same = rng;
    bool killed = true;
    for (uint64_t change = 1; killed; change++) {
        begin(_i == 1, ".");
        rng = same;
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            be_killed(change, 40);
        int status;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        killed = WIFSIGNALED(status);
        ck_assert_msg(killed || WEXITSTATUS(status) == 0, "it ended with %d", WEXITSTATUS(status));
        ck_assert(killed || change > 30);
        char what[64];
        snprintf(what, sizeof(what), "change %d", (int)change);
        verify(what);
        end();
    }
}
END_TEST

/* ---- power cuts ------------------------------------------------------------------------------ */

#define STEPS 70

/* Lives until the power goes before the `cut`-th change (0: not at all); returns the changes. */
static uint64_t live_until(uint64_t cut, uint64_t seed)
{
    struct tierce__vfs *inner, *vfs;
    ck_assert_int_eq(store_parts(&s, 4 * MIB), 0);
    ck_assert_int_eq(tierce__vfs_create(&inner, 16), 0);
    ck_assert_int_eq(tierce__vfs_fault_create(&vfs, inner, true), 0);
    tierce__vfs_fault_seed(vfs, seed);
    if (cut > 0)
        tierce__vfs_fault_add(vfs, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_CHANGE,
                                                                    .action = TIERCE__FAULT_CUT,
                                                                    .nth = cut});
    struct tierce__disk_opts opts = opts_here();
    opts.vfs = vfs;
    uint64_t changes;
    if (store_open(&s, &opts) == 0) {
        for (int i = 0; i < STEPS && step(); i++)
            ;
        if (cut > 0)
            tierce__vfs_fault_power_cut(vfs);
        changes = tierce__vfs_fault_count(vfs, TIERCE__FAULT_CHANGE);
        store_close(&s);
    } else {
        changes = tierce__vfs_fault_count(vfs, TIERCE__FAULT_CHANGE);
        vfs->ops->destroy(vfs);
    }
    store_parts_end(&s);
    return changes;
}

static const char *memory_folder(void)
{
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ".";
}

/* A first life on an empty folder, cut before each of its changes. */
START_TEST(power_cut_at_every_change_of_a_first_life)
{
    rng = test_random_start("power_cut_first");
    struct test_random same = rng;
    uint64_t last = 1;
    for (uint64_t cut = 1; cut <= last + 3; cut++) {
        begin(_i == 1, memory_folder());
        rng = same;
        uint64_t changes = live_until(cut, rng.state + cut);
        last = changes > last ? changes : last;
        char what[64];
        snprintf(what, sizeof(what), "cut %d", (int)cut);
        verify(what);
        end();
    }
    ck_assert_uint_gt(last, 60);
}
END_TEST

/* One store that suffers one cut after the other. */
START_TEST(power_cuts_at_random_over_many_lives)
{
    rng = test_random_start("power_cut_many");
    begin(_i == 1, memory_folder());
    unsigned lives = 60 * test_scale();
    for (unsigned life = 0; life < lives; life++) {
        uint64_t cut = 1 + test_random_below(&rng, life % 3 == 0 ? 20 : 150);
        live_until(cut, test_random_u64(&rng));
        char what[64];
        snprintf(what, sizeof(what), "life %u", life);
        verify(what);
    }
    ck_assert_uint_gt(model->flushes, 0);
    ck_assert_uint_gt(model->recodes, 0);
    end();
}
END_TEST

CHECK_MAIN("crash_disk", .seconds = 3600, .at_once = true,
           .loops = {{killed_before_each_change, 0, 2},
                     {killed_at_random, 0, 2},
                     {power_cut_at_every_change_of_a_first_life, 0, 2},
                     {power_cuts_at_random_over_many_lives, 0, 2}})
