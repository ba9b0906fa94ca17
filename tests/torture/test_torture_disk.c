/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "disk_harness.h"
#include "silent_log.h"
#include "test_random.h"

/*
 * Every allocation and every operation on files fails once, one after the other, over two lives of
 * a store. Whatever fails: no crash, no leak, no hang, never a wrong byte, and what a flush
 * acknowledged is there in the end.
 */

#define MIB    (1ULL << 20)
#define CHUNKS 24u

static struct store s;
static bool durable[CHUNKS];
static bool deleted[CHUNKS];
static char what[128]; /* the fault, for messages */

static void setup(void)
{
    s = (struct store){.chunk_bytes = 32 * 1024, .timeout_ms = 20000};
    ck_assert_int_eq(store_parts(&s, 4 * MIB), 0);
    silence_log();
}

static void teardown(void)
{
    store_parts_end(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* Memory where there is some: thousands of syncs are made here. */
static void fresh_folder(void)
{
    snprintf(s.folder, sizeof(s.folder), "%s/test_torture.XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ".");
    temp_folder_make(s.folder);
    memset(durable, 0, sizeof(durable));
    memset(deleted, 0, sizeof(deleted));
}

struct fault_plan {
    const struct tierce__vfs_fault_rule *rule; /* or NULL */
    uint64_t alloc;                            /* or 0 */
    uint64_t ops;                              /* [out] of one life */
    uint64_t allocs;                           /* [out] */
};

static void put_some(uint64_t from, uint64_t to)
{
    bool put[CHUNKS] = {false};
    for (uint64_t n = from; n < to; n++)
        put[n] = store_put(&s, n) == 0;
    if (store_flush(&s) < 0)
        return;
    for (uint64_t n = from; n < to; n++)
        if (put[n])
            durable[n] = !deleted[n];
}

/* Every hit must be right, whatever has failed. */
static void get_all(void)
{
    for (uint64_t n = 0; n < CHUNKS; n++) {
        int rc = store_get(&s, n, 0, 0);
        ck_assert_int_ne(rc, TIERCE_E_CHECKSUM);
        ck_assert_int_ne(rc, TIERCE_E_DEADLINE);
    }
}

/* One life under a plan: opens, puts half of the chunks, deletes some, gets, flushes, closes. */
static void live(uint64_t from, struct fault_plan *plan)
{
    struct tierce__vfs *vfs = NULL, *inner = NULL;
    uint64_t live_before = tierce__alloc_live();
    struct tierce__disk_opts opts = store_opts(&s, 2 * MIB);
    opts.flush_interval_ms = 5;
    tierce__alloc_fail_nth(plan->alloc);
    int rc = tierce__vfs_create(&inner, 8);
    if (rc == 0) {
        rc = tierce__vfs_fault_create(&vfs, inner, false);
        if (rc < 0)
            inner->ops->destroy(inner);
    }
    if (rc == 0) {
        if (plan->rule != NULL)
            tierce__vfs_fault_add(vfs, plan->rule);
        opts.vfs = vfs;
        rc = store_open(&s, &opts);
        if (rc < 0) {
            plan->ops = tierce__vfs_fault_count(vfs, TIERCE__FAULT_ANY);
            vfs->ops->destroy(vfs);
        }
    }
    if (rc == 0) {
        put_some(from, from + CHUNKS / 4);
        get_all();
        for (uint64_t n = from; n < from + 2; n++) {
            deleted[n] = true;
            durable[n] = false;
            (void)store_delete(&s, n);
        }
        put_some(from + CHUNKS / 4, from + CHUNKS / 2);
        get_all();
        plan->ops = tierce__vfs_fault_count(vfs, TIERCE__FAULT_ANY);
        store_close(&s);
    }
    plan->allocs = tierce__alloc_fail_nth(0);
    /* Texts that were read back stay in the table of namespaces; all else is gone. */
    ck_assert_uint_le(tierce__alloc_live(), live_before + 1);
}

static void check_after(void)
{
    struct tierce__disk_opts opts = store_opts(&s, 2 * MIB);
    ck_assert_int_eq(store_open(&s, &opts), 0);
    for (uint64_t n = 0; n < CHUNKS; n++) {
        int rc = store_get(&s, n, 0, 0);
        if (durable[n])
            ck_assert_msg(rc == 0, "chunk %d was durable: %d (%s)", (int)n, rc, what);
        else
            ck_assert(rc == 0 || rc == TIERCE_E_MISS);
    }
    ck_assert_uint_le(store_stats(&s).used_bytes, 2 * MIB);
    ck_assert_int_eq(store_put(&s, 1000), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    store_close(&s);
}

/* The faulty life is the first (0) or the second (1). */
static struct fault_plan two_lives(int which, struct fault_plan plan)
{
    struct fault_plan quiet = {0};
    fresh_folder();
    snprintf(what, sizeof(what), "life=%d alloc=%d op=%d error=%d", which, (int)plan.alloc,
             plan.rule != NULL ? (int)plan.rule->nth : 0, plan.rule != NULL ? plan.rule->error : 0);
    live(0, which == 0 ? &plan : &quiet);
    live(CHUNKS / 2, which == 1 ? &plan : &quiet);
    check_after();
    store_remove(&s);
    return plan;
}

/* A run of `make test` fails every third one, starting with a random one, and a long run all. */
static uint64_t step(void)
{
    return test_scale() > 1 ? 1 : 3;
}

static uint64_t first_of(const char *name)
{
    struct test_random random = test_random_start(name);
    return 1 + test_random_below(&random, (uint32_t)step());
}

START_TEST(each_allocation_fails_once)
{
    struct fault_plan plan = two_lives(_i, (struct fault_plan){0});
    ck_assert_uint_gt(plan.allocs, 10);
    uint64_t count = plan.allocs + 5; /* the threads may allocate a little more or less */
    for (uint64_t nth = first_of("allocations"); nth <= count; nth += step())
        two_lives(_i, (struct fault_plan){.alloc = nth});
}
END_TEST

static const int errors[] = {-EIO, -ENOSPC};

START_TEST(each_operation_fails_once)
{
    for (size_t e = 0; e < 2; e++) {
        struct fault_plan plan = two_lives(_i, (struct fault_plan){0});
        ck_assert_uint_gt(plan.ops, 20);
        uint64_t count = plan.ops + 5;
        for (uint64_t nth = first_of("operations"); nth <= count; nth += step()) {
            struct tierce__vfs_fault_rule rule = {.kind = TIERCE__FAULT_ANY,
                                                  .action = TIERCE__FAULT_FAIL,
                                                  .nth = nth,
                                                  .error = errors[e]};
            two_lives(_i, (struct fault_plan){.rule = &rule});
        }
    }
}
END_TEST

START_TEST(each_operation_fails_for_ever_from_some_point)
{
    struct fault_plan plan = two_lives(_i, (struct fault_plan){0});
    uint64_t count = plan.ops;
    for (uint64_t nth = first_of("for ever"); nth <= count; nth += 3 * step()) {
        struct tierce__vfs_fault_rule rule = {.kind = TIERCE__FAULT_ANY,
                                              .action = TIERCE__FAULT_FAIL,
                                              .nth = nth,
                                              .forever = true,
                                              .error = -EIO};
        two_lives(_i, (struct fault_plan){.rule = &rule});
    }
}
END_TEST

static _Atomic int told; /* chunks added minus chunks removed */

static void count_told(void *arg, const struct tierce__tier_event *event)
{
    (void)arg;
    atomic_fetch_add(&told, event->admitted ? 1 : -1);
}

/* Cleared chunks are not found, whatever fails, and after a flush the clear is durable. The
 * reported chunks are the stored chunks. Returns the operations on files. */
static uint64_t clear_under(const struct tierce__vfs_fault_rule *rule)
{
    struct tierce__vfs *vfs = NULL, *inner = NULL;
    struct tierce__disk_opts opts = store_opts(&s, 2 * MIB);
    opts.flush_interval_ms = 5;
    fresh_folder();
    ck_assert_int_eq(tierce__vfs_create(&inner, 8), 0);
    ck_assert_int_eq(tierce__vfs_fault_create(&vfs, inner, false), 0);
    opts.vfs = vfs;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    atomic_store(&told, 0);
    s.tier->ops->watch(s.tier, count_told, NULL);
    if (rule != NULL)
        tierce__vfs_fault_add(vfs, rule);
    put_some(0, CHUNKS / 2);
    bool gone = store_clear(&s) == 0;
    ck_assert(gone);
    for (uint64_t n = 0; n < CHUNKS; n++)
        ck_assert(!store_has(&s, n));
    ck_assert_int_eq(atomic_load(&told), 0);
    gone = store_flush(&s) == 0;
    put_some(CHUNKS / 2, CHUNKS);
    int held = 0;
    for (uint64_t n = 0; n < CHUNKS; n++)
        held += store_has(&s, n);
    ck_assert_msg(atomic_load(&told) == held, "%s", what);
    uint64_t ops = tierce__vfs_fault_count(vfs, TIERCE__FAULT_ANY);
    store_close(&s);
    opts.vfs = NULL;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    for (uint64_t n = 0; gone && n < CHUNKS / 2; n++)
        ck_assert_msg(!store_has(&s, n), "chunk %d came back (%s)", (int)n, what);
    store_close(&s);
    store_remove(&s);
    return ops;
}

START_TEST(each_operation_fails_once_around_a_clear)
{
    uint64_t count = clear_under(NULL) + 5;
    for (uint64_t nth = first_of("a clear"); nth <= count; nth += step()) {
        struct tierce__vfs_fault_rule rule = {.kind = TIERCE__FAULT_ANY,
                                              .action = TIERCE__FAULT_FAIL,
                                              .nth = nth,
                                              .error = errors[_i]};
        snprintf(what, sizeof(what), "op=%d error=%d", (int)nth, rule.error);
        clear_under(&rule);
    }
}
END_TEST

CHECK_MAIN("torture_disk", .seconds = 300, .setup = setup, .teardown = teardown,
           .loops = {{each_allocation_fails_once, 0, 2},
                     {each_operation_fails_once, 0, 2},
                     {each_operation_fails_for_ever_from_some_point, 0, 2},
                     {each_operation_fails_once_around_a_clear, 0, 2}})
