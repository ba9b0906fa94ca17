/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores from and loads into the memory of a GPU whose driver fails: on that of tests/support/cuda.
 */
#include "child_exit.h"
#include "device_fixture.h"

static uint8_t origins[FX_BLOCKS];

/* Whether all memory of late copies was returned. A client of a node has no thread for it: calls
 * find out. */
static bool is_returned(void)
{
    ck_assert_int_le(tierce_view_prepare(fx.view, &fx.paged), 0);
    return fx_stats(&fx).leases_now == 0;
}

/* A driver has no room for all of the memory at once, but for each half of it. */
START_TEST(memory_is_pinned_in_smaller_slices)
{
    dk_start_device("device");
    cuda_fake_limit_registration(3 << 20); /* of 4 MiB */
    dk_open(false, NULL);
    ck_assert_uint_ge(cuda_fake_live().slices, 2);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids, origins), 8);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

/* A load in which a copy fails. */
static void fail_device(const struct tierce_transfer_opts *what)
{
    cuda_fake_fail_nth(3 + 9, TIERCE__CU_UNKNOWN); /* after those about the first address */
    ck_assert_int_eq(tierce_load(fx.view, what, origins), 0);
    cuda_fake_fail_nth(0, 0);
}

/* After an error of the device, the bytes are unknown: nothing is loaded, and no chunk is removed.
 */
START_TEST(a_failed_device_removes_no_chunk)
{
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_chain *other = fx_chain(&fx, 2, 8, 0);
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    fail_device(&what);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 0);
    what = dk_what(other, 0, 8, fx_ids);
    ck_assert_int_eq(tierce_store(fx.view, &what), 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 8);
    ck_assert_uint_eq(fx_found(&fx, other, 8, 0, 0, NULL), 0);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    WAIT_FOR(is_returned());
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

/* A store that cannot copy makes no room: other engines may use the chunks of the same memory. */
START_TEST(a_failed_device_evicts_no_chunk)
{
    enum { BLOCKS = 40 };
    const char *const small[] = {"memory.size", "1MiB", NULL};
    struct tierce_chain *chain = NULL;
    dk_start(false, small);
    for (uint32_t seed = 1; fx_stats(&fx).memory_evictions == 0; seed++) {
        tierce_chain_destroy(chain);
        chain = fx_chain(&fx, seed, BLOCKS, 0);
        ck_assert_int_eq(dk_store(chain, BLOCKS, fx_ids, false), BLOCKS);
    }
    struct tierce_transfer_opts what = dk_what(chain, 0, BLOCKS, fx_ids);
    fail_device(&what);
    int64_t evicted = fx_stats(&fx).memory_evictions;
    struct tierce_chain *other = fx_chain(&fx, 4711, BLOCKS, 0);
    ck_assert_int_eq(dk_store(other, BLOCKS, fx_ids, false), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_evictions, evicted);
    tierce_chain_destroy(other);
    tierce_chain_destroy(chain);
    WAIT_FOR(is_returned());
    dk_stop();
}
END_TEST

/* The driver is asked about the layers of a description only once. */
START_TEST(a_known_description_is_not_checked_again)
{
    dk_start(false, NULL);
    cuda_fake_fail_nth(3 + 1, TIERCE__CU_UNKNOWN); /* after those about the first address */
    ck_assert_int_eq(tierce_view_prepare(fx.view, &fx.paged), 0);
    cuda_fake_fail_nth(0, 0);
    dk_stop();
}
END_TEST

/* If a release is the call that fails, its object may remain. */
static void check_remains(bool failed_at_close)
{
    TIERCE__CU_CONTEXT context;
    struct cuda_fake_live now = cuda_fake_live();
    ck_assert_str_eq(cuda_fake_report(), "");
    if (failed_at_close) /* memory that is still pinned stays mapped, and its engine is not freed */
        return;
    ck_assert_uint_eq(now.slices, 0);
    ck_assert_uint_le(now.streams - 1 + now.events + now.contexts - 1 + now.stack - 1 +
                          now.memories - FX_LAYERS + now.host_memories - GPU_HOST_MEMORIES +
                          now.modules - GPU_MODULES,
                      2);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
    for (; now.stack > 1; now.stack--)
        gpu_ok(cuCtxPopCurrent_v2(&context));
    gpu_sync();
}

/* Opens, stores, loads and closes. Returns whether the call was not reached. No stream is held
 * here, so loads do not wait until the default limit. */
static bool live(uint64_t nth, TIERCE__CU_RESULT code)
{
    int rc;
    fx_open(&fx, false, NULL);
    fx.paged.device = TIERCE_DEVICE_CUDA;
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    dk_fill(chain, 0, 8, fx_ids);
    gpu_sync();
    (void)cuda_fake_fail_nth(nth, code);
    WAIT_FOR((rc = tierce_view_prepare(fx.view, &fx.paged)) != -EAGAIN);
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    int64_t stored = tierce_store(fx.view, &what);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    uint64_t made = cuda_fake_fail_nth(0, 0);
    bool lacks_memory = code == TIERCE__CU_OUT_OF_MEMORY;
    ck_assert(rc == 0 || rc == TIERCE_E_DOWN || rc == TIERCE_E_UNSUPPORTED ||
              (lacks_memory && rc == -ENOMEM));
    ck_assert(stored == 8 || stored == 0 || stored == TIERCE_E_UNSUPPORTED ||
              (lacks_memory && stored == -ENOMEM));
    ck_assert(loaded == 8 || loaded == 0 || loaded == TIERCE_E_UNSUPPORTED ||
              (lacks_memory && loaded == -ENOMEM));
    ck_assert(nth <= made || (stored == 8 && loaded == 8));
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), (uint64_t)(stored > 0 ? stored : 0));
    tierce_chain_destroy(chain);
    (void)cuda_fake_fail_nth(nth > made ? nth - made : 0, code);
    fx_close(&fx);
    uint64_t made_at_close = cuda_fake_fail_nth(0, 0);
    check_remains(nth > made && nth <= made + made_at_close);
    return nth > made + made_at_close;
}

enum { FINE, WRONG = EXIT_FAILURE /* a failed check */, BEHIND_THE_END };

/* In a process of its own, because a failure may leave objects that cannot be freed. */
static int fail_call(uint64_t nth, TIERCE__CU_RESULT code)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        dk_start_device("device");
        cuda_fake_be_patient(true);
        child_exit(live(nth, code) ? BEHIND_THE_END : FINE);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) != WRONG, "call %llu: status %d",
                  (unsigned long long)nth, status);
    return WEXITSTATUS(status);
}

/*
 * Hundreds of processes take minutes with the thread sanitizer, and the variants repeat what
 * test_device_faults runs: there, each run fails every STEP-th call, starting with a different
 * call. The kernel makes more calls, so its variants use only one error code.
 */
#ifdef __SANITIZE_THREAD__
enum { CODES = TIERCE_TEST_DEVICE_WAY == TIERCE__CUDA_COPIES ? 2 : 0, STEP = 16 };
#elif defined(TIERCE_TEST_COPY_THREADS) || defined(TIERCE_TEST_NODE)
enum { CODES = 2, STEP = 4 };
#elif defined(TIERCE_TEST_DEVICE_KERNEL)
enum { CODES = 1, STEP = 4 };
#else
enum { CODES = 2, STEP = 1 };
#endif

/* The number of calls that wait for a copy varies, so the loop runs some calls past the end. */
START_TEST(every_failed_call_of_the_driver_is_survived)
{
    static const TIERCE__CU_RESULT codes[] = {TIERCE__CU_UNKNOWN, TIERCE__CU_OUT_OF_MEMORY};
    struct test_random random = test_random_start("calls");
    uint64_t nth = 1 + test_random_below(&random, STEP);
    for (int behind = 0; behind < (STEP == 1 ? 3 : 1); nth += STEP)
        behind += fail_call(nth, codes[_i]) == BEHIND_THE_END;
    ck_assert_uint_gt(nth, 120);
}
END_TEST

CHECK_MAIN("device_faults", .seconds = 120,
           .tests = {memory_is_pinned_in_smaller_slices, a_failed_device_removes_no_chunk,
                     a_failed_device_evicts_no_chunk, a_known_description_is_not_checked_again},
           .loops = {{every_failed_call_of_the_driver_is_survived, 0, CODES}})
