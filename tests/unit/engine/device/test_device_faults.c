/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores from and loads into the memory of a GPU whose driver fails: on that of tests/support/cuda.
 */
#include "child_exit.h"
#include "device_fixture.h"
#include "log_record.h"
#include "numa_check.h"

#include "core/device/numa.h"
#include "engine/load/load_keys.h"

static uint8_t origins[FX_BLOCKS];

/* Whether all memory of late copies was returned. A client of a node has no thread for it: calls
 * find out. */
static bool is_returned(void)
{
    ck_assert_int_le(tierce_view_prepare(fx.view, &fx.paged), 0);
    return fx_stats(&fx).leases_now == 0;
}

/* ---- pinning --------------------------------------------------------------------------------- */

#ifndef TIERCE_TEST_UNPINNED
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
    ck_assert_uint_eq(cuda_fake_calls().host_functions, 0);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

#endif

/* Stores and loads prompts until all of memory has been used. */
static void use_all_memory(void)
{
    enum { BLOCKS = 40 };
    for (uint32_t seed = 100; fx_stats(&fx).memory_evictions < 20; seed++) {
        struct tierce_chain *chain = fx_chain(&fx, seed, BLOCKS, 0);
        ck_assert_int_eq(dk_store(chain, BLOCKS, fx_ids, false), BLOCKS);
        ck_assert_int_eq(dk_load(chain, 0, BLOCKS, fx_ids + 3, origins), BLOCKS);
        tierce_chain_destroy(chain);
    }
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
}

/* The limit of locked memory allows no slice, or half of them: one log line, and all transfers. */
START_TEST(memory_that_cannot_be_pinned_is_used)
{
    dk_start_device("device");
    cuda_fake_limit_registration(0);
    cuda_fake_limit_locked(_i == 0 ? 1 : 3 << 20); /* of 4 MiB */
    record_log(TIERCE_LOG_INFO);
    dk_open_early(false, NULL);
    WAIT_FOR(recorded("memory_not_pinned") == 1);
    ck_assert_uint_eq(recorded_with("memory_not_pinned", _i == 0 ? "pinned=0" : "pinned=2097152"),
                      1);
    ck_assert_uint_eq(recorded_with("memory_not_pinned", "copied through a buffer"), 1);
    ck_assert_uint_eq(recorded_with("memory_not_pinned", "ulimit -l"), 1);
    ck_assert_uint_eq(recorded("cuda_no_memory") + recorded("cuda_not_pinned"), 0);
    ck_assert_uint_eq(recorded("memory_pinned"), 0);
    use_all_memory();
    ck_assert_uint_gt(cuda_fake_calls().host_functions, 0);
    ck_assert_int_eq(tierce_view_prepare(fx.view, &fx.paged), 0);
    ck_assert_uint_eq(recorded("memory_not_pinned"), 1);
    ck_assert_uint_eq(recorded("cuda_failed"), 0);
    dk_stop();
}
END_TEST

#if !defined(TIERCE_TEST_UNPINNED) && !defined(TIERCE_TEST_DEVICE_KERNEL)
/* A store and a load that begin before the memory is pinned, and end after that. */
START_TEST(memory_is_pinned_during_a_transfer)
{
    struct tierce_store *store;
    struct tierce_load *load;
    dk_start_device("device");
    cuda_fake_hold_registrations(true);
    dk_open_early(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0), *first = fx_chain(&fx, 2, 8, 0);
    ck_assert_int_eq(dk_store(first, 8, fx_ids + 30, false), 8);
    dk_fill(chain, 0, 8, fx_ids);
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    struct tierce_transfer_opts other = dk_what(first, 0, 8, fx_ids + 20);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &other), 0);
    uint64_t before = cuda_fake_calls().host_functions;
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        if (l == FX_LAYERS / 2) {
            cuda_fake_hold_registrations(false);
            WAIT_FOR(atomic_load(&dk_pinned) == 1);
            cuda_fake_hold(true); /* the other copies are enqueued, but do not run */
        }
        ck_assert_int_eq(tierce_store_layer(store, l), 0);
        ck_assert_int_eq(tierce_load_layer(load, l), 0);
    }
    ck_assert_uint_eq(cuda_fake_calls().host_functions - before, FX_LAYERS);
    cuda_fake_hold(false);
    ck_assert_int_eq(tierce_store_end(store), 8);
    ck_assert_int_eq(tierce_load_end(load, NULL), 8);
    dk_read();
    for (size_t b = 0; b < 8; b++)
        ck_assert(fx_right(&image, first, b, fx_ids[20 + b]));
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids + 5, origins), 8);
    tierce_chain_destroy(first);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

#endif

/* The pool of an engine comes from the node of its GPU, and that of a node from any. */
START_TEST(memory_is_near_the_device)
{
    static const struct {
        const char *online, *node;
        unsigned near, not_near, unknown;
    } machines[] = {{"0\n", "0\n", 0, 0, 0},
                    {"0-1\n", "-1\n", 0, 0, 0},
                    {"0-1\n", "0\n", 1, 0, 0},
                    {"0-1\n", "1000\n", 0, 1, 0},
                    {"0-1\n", "", 0, 0, 1}};
    char root[64] = "/tmp/tierce-test-XXXXXX";
    bool allowed = numa_check_is_allowed(), is_own = true;
#ifdef TIERCE_TEST_NODE
    is_own = false;
#endif
    temp_folder_make(root);
    numa_check_sys(root, machines[_i].online, "0000:0a:00.0", machines[_i].node);
    tierce__numa_root(root);
    dk_start_device("device");
    record_log(TIERCE_LOG_INFO);
    dk_open_early(false, NULL);
    WAIT_FOR(recorded("memory_pinned") + recorded("memory_not_pinned") == 1);
    ck_assert_uint_eq(recorded("memory_near_device"), is_own && allowed ? machines[_i].near : 0);
    ck_assert_uint_eq(recorded("memory_not_near_device"),
                      is_own ? machines[_i].not_near + (allowed ? 0 : machines[_i].near) : 0);
    ck_assert_uint_eq(recorded("cuda_no_numa_node"), is_own ? machines[_i].unknown : 0);
    uint8_t *base;
    uint64_t bytes;
    tierce__pool_mapping(fx.engine->pool, &base, &bytes);
    if (allowed)
        ck_assert_int_eq(numa_check_preferred(base + bytes / 2),
                         is_own && machines[_i].near ? 0 : -1);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids, origins), 8);
    tierce_chain_destroy(chain);
    dk_stop();
    temp_folder_remove(root);
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

/* The first call that copies: after those about the first address, twice. */
enum { TO_COPY = 2 * 3 + 9 };

/* A load in which a copy fails. */
static void fail_device(const struct tierce_transfer_opts *what)
{
    cuda_fake_fail_nth(TO_COPY, TIERCE__CU_UNKNOWN);
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

/* A load that cannot copy leases no memory, and its blocks are counted as failed. */
START_TEST(a_failed_device_leases_no_chunk)
{
    struct tierce_load *load;
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    fail_device(&what);
    WAIT_FOR(is_returned());
    struct tierce_engine_stats before = {.size = sizeof(before)}, after = before;
    tierce_engine_stats(dk_client(), &before);
    memset(origins, 77, sizeof(origins));
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    ck_assert_int_eq(fx_stats(&fx).leases_now, 0);
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_load_layer(load, l), 0);
    ck_assert_int_eq(tierce_load_end(load, origins), 0);
    for (size_t b = 0; b < 8; b++)
        ck_assert_uint_eq(origins[b], TIERCE_ORIGIN_FAILED);
    tierce_engine_stats(dk_client(), &after);
    ck_assert_int_eq(after.blocks_failed - before.blocks_failed, 8);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    tierce_load_abort(load);
    tierce_chain_destroy(chain);
    dk_stop();
}
END_TEST

/* If the driver refuses a call, this transfer is a miss, and the next one works. */
START_TEST(a_refused_copy_is_one_miss)
{
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    dk_fill(chain, 0, 8, fx_ids);
    cuda_fake_fail_nth(TO_COPY, TIERCE__CU_OUT_OF_MEMORY);
    ck_assert_int_eq(tierce_store(fx.view, &what), 0);
    cuda_fake_fail_nth(0, 0);
    ck_assert_int_eq(tierce_store(fx.view, &what), 8);
    cuda_fake_fail_nth(TO_COPY, TIERCE__CU_OUT_OF_MEMORY);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 0);
    cuda_fake_fail_nth(0, 0);
    ck_assert_uint_eq(fx_found(&fx, chain, 8, 0, 0, NULL), 8);
    ck_assert_int_eq(dk_load(chain, 0, 8, fx_ids + 20, origins), 8);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    ck_assert_int_eq(fx_stats(&fx).leases_now, 0);
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
 * Hundreds of processes take minutes: a run of `make test` fails every STEP-th call, starting with
 * a different call, and a long run fails all. The variants repeat what test_device_faults runs, and
 * the kernel makes more calls, so its variants use only one error code.
 */
#ifdef __SANITIZE_THREAD__
enum {
    CODES = TIERCE_TEST_DEVICE_WAY == TIERCE__CUDA_COPIES ? 2 : 0,
    STEP = 32,
    KERNEL_FAULTS = 0
};
#elif defined(TIERCE_TEST_COPY_THREADS) || defined(TIERCE_TEST_NODE) ||                            \
    defined(TIERCE_TEST_UNPINNED)
enum { CODES = 2, STEP = 32, KERNEL_FAULTS = 0 };
#elif defined(TIERCE_TEST_DEVICE_KERNEL)
enum { CODES = 1, STEP = 32, KERNEL_FAULTS = 0 };
#else
enum { CODES = 2, STEP = 16, KERNEL_FAULTS = 4 };
#endif

/* The number of calls that wait for a copy varies, so the loop runs some calls past the end. */
START_TEST(failed_calls_of_the_driver_are_survived)
{
    static const TIERCE__CU_RESULT codes[] = {TIERCE__CU_UNKNOWN, TIERCE__CU_OUT_OF_MEMORY};
    struct test_random random = test_random_start("calls");
    unsigned step = test_scale() > 1 ? 1 : STEP;
    uint64_t nth = 1 + test_random_below(&random, step);
    for (int behind = 0; behind < (step == 1 ? 3 : 1); nth += step)
        behind += fail_call(nth, codes[_i]) == BEHIND_THE_END;
    ck_assert_uint_gt(nth, 120);
}
END_TEST

/* Rotates a block of layer 0 that was loaded. */
static int rotate_block(struct tierce_load *load)
{
    struct tierce__rotation rotation = {
        .layout = {TIERCE__ROPE_NEOX, 8, 0, 8}, .pairs = 4, .delta = 5};
    struct tierce__key_rows rows = {(uint8_t *)fx.layers[0].base + (size_t)fx_ids[0] * 1024, 16,
                                    16};
    for (uint32_t i = 0; i < rotation.pairs; i++)
        rotation.cosine[i] = 0.8f, rotation.sine[i] = 0.6f;
    return tierce__load_rotate(load, &rotation, TIERCE__BLEND_BF16, &rows, fx_cells[0] / 16, 1);
}

static int compare_blocks(struct tierce_load *load)
{
    uint8_t *base = fx.layers[0].base;
    return tierce__load_distances(load,
                                  &(struct tierce__device_distances){
                                      .dtype = TIERCE__BLEND_BF16,
                                      .a = {base + (size_t)fx_ids[0] * 1024, 16, 16},
                                      .b = {base + (size_t)fx_ids[1] * 1024, 16, 16},
                                      .to = (float *)(void *)(base + (size_t)fx_ids[30] * 1024),
                                      .tokens = 20,
                                      .heads = 1,
                                      .row_elements = 8});
}

/* A kernel on keys, and whether a refused call leaves keys of the load unknown. */
static const struct {
    int (*run)(struct tierce_load *load);
    bool writes_keys;
} kernels[] = {{rotate_block, true}, {compare_blocks, false}};

/* All layers are loaded; then the second use of a kernel fails, so that all calls are those of the
 * use. Returns whether the call was not reached. */
static bool fail_kernel(size_t kernel, uint64_t nth, TIERCE__CU_RESULT code)
{
    struct tierce_load *load;
    dk_start(false, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    struct tierce_transfer_opts what = dk_what(chain, 0, 8, fx_ids);
    ck_assert_int_eq(dk_store(chain, 8, fx_ids, false), 8);
    ck_assert_int_eq(tierce_load_begin(&load, fx.view, &what), 0);
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        ck_assert_int_eq(tierce_load_layer(load, l), 0);
    ck_assert_int_eq(kernels[kernel].run(load), 0);
    gpu_sync();
    (void)cuda_fake_fail_nth(nth, code);
    int rc = kernels[kernel].run(load);
    uint64_t made = cuda_fake_fail_nth(0, 0);
    bool is_unknown = rc == -EIO || (rc == -ECANCELED && kernels[kernel].writes_keys);
    ck_assert(is_unknown || rc == -ECANCELED || rc == 0 || rc == -ENOMEM ||
              rc == TIERCE_E_UNSUPPORTED || rc == TIERCE_E_DOWN);
    ck_assert(nth <= made || rc == 0);
    ck_assert_int_eq(tierce_load_end(load, origins), is_unknown ? 0 : 8);
    for (size_t b = 0; b < 8; b++)
        ck_assert_uint_eq(origins[b], is_unknown ? TIERCE_ORIGIN_FAILED : TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    WAIT_FOR(is_returned());
    tierce_chain_destroy(chain);
    return nth > made;
}

/* In a process of its own, because the device has failed. */
START_TEST(no_block_is_loaded_after_a_failed_kernel)
{
    static const TIERCE__CU_RESULT codes[] = {TIERCE__CU_UNKNOWN, TIERCE__CU_OUT_OF_MEMORY};
    int status = 0;
    uint64_t nth = 0;
    do {
        pid_t pid = fork();
        nth++;
        if (pid == 0)
            child_exit(fail_kernel((size_t)_i / 2, nth, codes[_i % 2]) ? BEHIND_THE_END : FINE);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) != WRONG, "call %llu: status %d",
                      (unsigned long long)nth, status);
    } while (WEXITSTATUS(status) != BEHIND_THE_END);
    ck_assert_uint_gt(nth, 10);
}
END_TEST

CHECK_MAIN("device_faults", .seconds = 120,
           .tests =
               {
#ifndef TIERCE_TEST_UNPINNED
                   memory_is_pinned_in_smaller_slices,
#ifndef TIERCE_TEST_DEVICE_KERNEL
                   memory_is_pinned_during_a_transfer,
#endif
#endif
                   a_failed_device_removes_no_chunk, a_failed_device_evicts_no_chunk,
                   a_failed_device_leases_no_chunk, a_refused_copy_is_one_miss,
                   a_known_description_is_not_checked_again},
           .loops = {{memory_is_near_the_device, 0, 5},
                     {memory_that_cannot_be_pinned_is_used, 0, 2},
                     {failed_calls_of_the_driver_are_survived, 0, CODES},
                     {no_block_is_loaded_after_a_failed_kernel, 0, KERNEL_FAULTS}})
