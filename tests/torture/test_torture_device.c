/* SPDX-License-Identifier: Apache-2.0 */
#define DH_BLOCK_COUNT 10
#include "../unit/core/device/device_harness.h"
#include "child_exit.h"
#include "silent_log.h"

#include <errno.h>

/*
 * Each call of CUDA's driver, and each allocation, fails once in the life of a device: opened,
 * pinned (or allowed not to be), a store, a load, an event, closed. After any failure: there is no
 * crash, a call that succeeds has moved the right bytes, no copy is in progress on freed memory,
 * and no slice stays registered.
 */

static const char *const kinds[] = {"host", "cuda", "cuda", "cuda direct", "cuda staged"};
enum { KINDS = 5, UNPINNED = 2, FIRST_WITH_KERNEL };

static struct dh_transfer t;
static bool unpinned; /* no slice is pinned */
static int failed;    /* the first status that is not 0 */

static bool is_fine(int rc)
{
    if (rc < 0 && failed == 0)
        failed = rc;
    return rc >= 0;
}

/* Waits for an event and settles it. A failed device gives no verdict. */
static void end(bool is_store)
{
    int rc = dh.ops->wait(dh.device, t.event, DH_DEADLINE);
    if (is_fine(rc)) {
        ck_assert_int_eq(dh.ops->settle(dh.device, t.event, 0, t.copy.count), 0);
        if (is_store)
            dh_check_gathered(&t);
    } else {
        ck_assert_int_eq(dh.ops->settle(dh.device, t.event, 0, t.copy.count), -EAGAIN);
    }
    dh.ops->forget(dh.device, t.event);
    t.event = NULL;
}

/* The copies before a call that was refused. */
static void end_refused(void)
{
    if (t.event == NULL)
        return;
    (void)is_fine(dh.ops->wait(dh.device, t.event, DH_DEADLINE));
    dh.ops->forget(dh.device, t.event);
    t.event = NULL;
}

static void store_and_load(void)
{
    struct tierce__device_event *event;
    dh_begin(&t);
    uint8_t *at = dh_add(&t, dh.pool + DH_SLICE - 64, 1, 1, 2, 5);
    (void)dh_add(&t, at, 0, 4, 1, 6);
    if (is_fine(dh.ops->gather(dh.device, &t.event, &t.copy)))
        end(true);
    end_refused();
    if (failed == 0 && is_fine(dh.ops->scatter(dh.device, &t.event, &t.copy))) {
        (void)is_fine(dh.ops->stream_wait(dh.device, t.event, dh.stream));
        end(false);
    }
    end_refused();
    if (is_fine(dh.ops->record(dh.device, &event, dh.stream))) {
        (void)is_fine(dh.ops->wait(dh.device, event, DH_DEADLINE));
        dh.ops->forget(dh.device, event);
    }
}

/* No verdict is bad, because the bytes are correct. */
static void check_verdicts(void)
{
    for (size_t r = 0; r < t.copy.count; r++)
        for (size_t c = 0; c < t.rows[r].cells.count; c++)
            ck_assert_uint_eq(t.good[r][c], 1);
}

static void live(void)
{
    failed = 0;
    t = (struct dh_transfer){0};
    if (!is_fine(dh.ops->open(&dh.device, (void *)dh.memory)))
        return;
    dh.ops->tune(dh.device);
    bool pinned = false, works = unpinned && is_fine(dh.ops->allow_unpinned(dh.device));
    if (!unpinned) {
        pinned = is_fine(dh.ops->pin(dh.device, dh.pool, DH_SLICE));
        works = is_fine(dh.ops->pin(dh.device, dh.pool + DH_SLICE, DH_SLICE)) && pinned;
    }
    if (works)
        store_and_load();
    if (pinned && works && failed != -EIO) /* otherwise copies may be in progress */
        (void)is_fine(dh.ops->unpin(dh.device, dh.pool, DH_SLICE));
    check_verdicts();
    if (!dh.ops->close(dh.device, DH_DEADLINE)) {
        (void)is_fine(-EIO);
        ck_assert(dh.ops->close(dh.device, DH_DEADLINE)); /* a call fails once only */
    }
}

/* If a release is the call that fails, its object may remain. */
static void check_remains(void)
{
    TIERCE__CU_CONTEXT context;
    struct cuda_fake_live now = cuda_fake_live();
    ck_assert_str_eq(cuda_fake_report(), "");
    ck_assert_uint_eq(now.slices, 0);
    ck_assert_uint_le(now.streams - 1 + now.events + now.contexts - 1 + now.stack - 1 +
                          now.memories - 1 + now.host_memories - GPU_HOST_MEMORIES + now.modules -
                          GPU_MODULES,
                      2);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
    for (; now.stack > 1; now.stack--)
        gpu_ok(cuCtxPopCurrent_v2(&context));
    gpu_sync();
}

enum { FINE, WRONG, BEHIND_THE_END };

/* A run of `make test` fails every eighth call, starting with a random one; a long run, all. */
enum { STEP = 8 };

/* In a process of its own, because a failure may leave objects that cannot be freed. */
static int fail_call(const char *kind, uint64_t nth, TIERCE__CU_RESULT code)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        dh_start_engine(kind, 0);
        cuda_fake_be_patient(true);
        (void)cuda_fake_fail_nth(nth, code);
        live();
        uint64_t made = cuda_fake_fail_nth(0, 0);
        check_remains();
        bool expected =
            failed == 0 || failed == TIERCE_E_UNSUPPORTED || failed == -EIO ||
            ((failed == -ENOMEM || failed == -ECANCELED) && code == TIERCE__CU_OUT_OF_MEMORY);
        child_exit(!expected ? WRONG : made < nth ? BEHIND_THE_END : FINE);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) != WRONG, "call %llu: status %d",
                  (unsigned long long)nth, status);
    return WEXITSTATUS(status);
}

START_TEST(calls_of_the_driver_fail_once)
{
    static const struct {
        const char *kind;
        TIERCE__CU_RESULT code;
        uint64_t calls; /* more than this */
        bool unpinned;
    } lives[] = {{"cuda", TIERCE__CU_UNKNOWN, 60, false},
                 {"cuda", TIERCE__CU_OUT_OF_MEMORY, 60, false},
                 {"cuda direct", TIERCE__CU_UNKNOWN, 100, false},
                 {"cuda staged", TIERCE__CU_OUT_OF_MEMORY, 100, false},
                 {"cuda", TIERCE__CU_UNKNOWN, 60, true},
                 {"cuda", TIERCE__CU_OUT_OF_MEMORY, 60, true}};
    struct test_random random = test_random_start("calls");
    unsigned step = test_scale() > 1 ? 1 : STEP;
    uint64_t nth = 1 + test_random_below(&random, step);
    unpinned = lives[_i].unpinned;
    while (fail_call(lives[_i].kind, nth, lives[_i].code) != BEHIND_THE_END)
        nth += step;
    ck_assert_uint_gt(nth, lives[_i].calls);
}
END_TEST

/* The allocations of the device itself. If an allocation of the kernel fails, the default copy
 * method is used. */
START_TEST(each_allocation_fails_once)
{
    uint64_t count = 0;
    bool has_kernel = _i >= FIRST_WITH_KERNEL;
    unpinned = _i == UNPINNED;
    dh_start_engine(kinds[_i], 0);
    for (uint64_t nth = 1; nth <= count + 1; nth++) {
        (void)tierce__alloc_fail_nth(nth);
        live();
        uint64_t made = tierce__alloc_fail_nth(0);
        count = made > count ? made : count;
        bool came = nth <= count && nth <= made;
        ck_assert(failed == (came ? -ENOMEM : 0) || (has_kernel && failed == 0));
        ck_assert_uint_eq(tierce__alloc_live(), 0);
    }
    ck_assert_uint_ge(count, 4);
    live();
    ck_assert_int_eq(failed, 0);
    dh_stop_engine();
}
END_TEST

CHECK_MAIN("torture_device", .seconds = 400, .setup = silence_log,
           .loops = {{calls_of_the_driver_fail_once, 0, 6}, {each_allocation_fails_once, 0, KINDS}})
