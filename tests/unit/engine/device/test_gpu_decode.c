/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads of compressed chunks that the GPU decodes, on the driver and the cuFile of
 * tests/support/cuda: from disk and from coded memory.
 */
#define FX_CHUNK_BLOCKS        16u /* long enough to become shorter */
#define FX_KV_DTYPE            "bfloat16"
#define TIERCE_TEST_DEVICE_WAY TIERCE__CUDA_DIRECT /* it has the kernel that verifies */
#include "cufile_fake.h"
#include "device_fixture.h"
#include "engine/observe/engine_metrics.h"
#include "log_record.h"
#include "store/coded/coded_tier.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>

enum { CHUNKS = 5, BLOCKS = CHUNKS * FX_CHUNK_BLOCKS };

static uint8_t origins[FX_BLOCKS];
static int32_t ids[FX_BLOCKS]; /* in no order */
static const char *const coded[] = {"disk.codec", "lossless", NULL};
static const char *const direct[] = {"disk.gpu_direct", "2MiB", "disk.codec", "lossless", NULL};
static const char *const in_memory[] = {"disk.gpu_direct", "2MiB", "memory.coded_size", "4MiB",
                                        NULL};

/* Of the first call, which prepares the decoder; 0: it does. */
static _Atomic int first_answer;

int __real_tierce__cuda_decode(struct tierce__device *device, const struct tierce__device_run *runs,
                               size_t count, uint64_t deadline_ns);
int __wrap_tierce__cuda_decode(struct tierce__device *device, const struct tierce__device_run *runs,
                               size_t count, uint64_t deadline_ns);
int __wrap_tierce__cuda_decode(struct tierce__device *device, const struct tierce__device_run *runs,
                               size_t count, uint64_t deadline_ns)
{
    int rc = atomic_exchange(&first_answer, 0);
    return rc < 0 ? rc : __real_tierce__cuda_decode(device, runs, count, deadline_ns);
}

static int64_t direct_chunks(void)
{
    return (int64_t)atomic_load(&fx.engine->direct.chunks);
}

static struct tierce__coded_stats codec_stats(size_t level)
{
    struct tierce__coded_stats stats;
    tierce__coded_tier_stats(fx.engine->levels[level].coded, &stats);
    return stats;
}

/* The engine again, with nothing in memory. */
static void reopen(const char *const *sets)
{
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    gpu_check_left(FX_LAYERS);
    record_log(TIERCE_LOG_INFO);
    dk_open_early(true, sets);
    WAIT_FOR(recorded("memory_pinned") == 1);
}

/* A prompt that is stored by an engine with these settings. */
static struct tierce_chain *start(const char *const *sets)
{
    for (int32_t b = 0; b < (int32_t)FX_BLOCKS; b++)
        ids[b] = (b * 45 + 7) % (int32_t)FX_BLOCKS;
    dk_start_device("device");
    record_log(TIERCE_LOG_INFO);
    dk_open_early(true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(dk_store(chain, BLOCKS, ids, false), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    return chain;
}

static void stop(struct tierce_chain *chain)
{
    tierce_chain_destroy(chain);
    dk_stop();
    ck_assert_uint_eq(cufile_fake_counts().buffers + cufile_fake_counts().files, 0);
}

static void load_all(const struct tierce_chain *chain, uint8_t origin)
{
    ck_assert_int_eq(dk_load(chain, 0, BLOCKS, ids, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert_uint_eq(origins[b], origin);
}

/* The host has decoded all of it. */
static void expect_host(const struct tierce_chain *chain)
{
    load_all(chain, TIERCE_ORIGIN_DISK);
    load_all(chain, TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(direct_chunks(), 0);
    ck_assert_uint_eq(codec_stats(1).device_decoded_raw_bytes, 0);
    ck_assert_uint_gt(codec_stats(1).decoded_raw_bytes, 0);
    ck_assert_int_eq(fx_stats(&fx).device_failures, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 1);
}

START_TEST(chunks_of_the_disk_are_decoded_on_the_device)
{
    struct tierce_chain *chain = start(coded);
    ck_assert_uint_eq(codec_stats(1).encoded_chunks, CHUNKS);
    reopen(direct);
    ck_assert_uint_eq(recorded("cuda_decoder"), 1); /* before the first load */
    for (int i = 1; i <= 2; i++) {
        load_all(chain, TIERCE_ORIGIN_DISK);
        ck_assert_int_eq(direct_chunks(), i * CHUNKS);
    }
    struct tierce__coded_stats stats = codec_stats(1);
    ck_assert_uint_eq(stats.device_decoded_raw_bytes, stats.decoded_raw_bytes);
    ck_assert_uint_gt(stats.decoded_raw_bytes, stats.decoded_bytes);
    ck_assert_uint_gt(stats.decode_ns, 0);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 0);
    ck_assert_uint_eq(cufile_fake_counts().reads, 0);
    ck_assert_uint_eq(recorded("cuda_decoder"), 1);
    ck_assert_int_eq(dk_load(chain, 7, 40, ids, origins), 33);
    size_t bytes;
    char *page = tierce__engine_metrics(fx.engine, &bytes);
    ck_assert_ptr_nonnull(
        strstr(page, "tierce_codec_device_decoded_raw_bytes_total{tier=\"disk\"}"));
    tierce__free(page);
    stop(chain);
}
END_TEST

/* Raw and coded chunks of one prompt: the first are read by cuFile, the others are decoded. */
START_TEST(raw_chunks_lie_beside_coded_ones)
{
    static const char *const raw[] = {"disk.codec", "none", NULL};
    struct tierce_chain *chain = start(raw);
    reopen(coded);
    struct tierce_chain *longer = fx_chain(&fx, 1, 2 * BLOCKS, 0);
    ck_assert_int_eq(dk_store(longer, 2 * BLOCKS, ids, false), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(codec_stats(1).encoded_chunks, CHUNKS);
    reopen(direct);
    ck_assert_int_eq(dk_load(longer, 0, 2 * BLOCKS, ids, origins), 2 * BLOCKS);
    ck_assert_int_eq(direct_chunks(), 2 * CHUNKS);
    ck_assert_uint_ge(cufile_fake_counts().reads, CHUNKS);
    ck_assert_uint_gt(codec_stats(1).device_decoded_raw_bytes, 0);
    tierce_chain_destroy(longer);
    stop(chain);
}
END_TEST

static bool memory_is_empty(void)
{
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    struct tierce__tier_stats stats;
    (void)memory->ops->evict(memory, UINT64_MAX);
    memory->ops->stats(memory, &stats);
    return stats.chunks == 0;
}

START_TEST(chunks_of_coded_memory_are_decoded_on_the_device)
{
    struct tierce_chain *chain = start(in_memory);
    WAIT_FOR(recorded("gpu_direct") == 1);
    ck_assert_str_eq(fx.engine->levels[1].tier->ops->name, "coded_memory");
    ck_assert_uint_eq(codec_stats(1).encoded_chunks, CHUNKS);
    WAIT_FOR(memory_is_empty());
    load_all(chain, TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(direct_chunks(), CHUNKS);
    ck_assert_uint_gt(codec_stats(1).device_decoded_raw_bytes, 0);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 0);
    stop(chain);
}
END_TEST

/* Copies in coded memory that did not become shorter are raw: the host copies them. */
START_TEST(raw_copies_in_coded_memory_are_read_into_memory)
{
    for (int32_t b = 0; b < (int32_t)FX_BLOCKS; b++)
        ids[b] = b;
    dk_start_device("device");
    record_log(TIERCE_LOG_INFO);
    dk_open_early(true, in_memory);
    struct tierce_chain *chain = fx_chain(&fx, 1, 3, 0);
    ck_assert_int_eq(dk_store(chain, 3, ids, true), 3); /* a short tail */
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(codec_stats(1).encoded_chunks, 0);
    WAIT_FOR(recorded("gpu_direct") == 1);
    WAIT_FOR(memory_is_empty());
    ck_assert_int_eq(dk_load(chain, 0, 3, ids, origins), 3);
    ck_assert_uint_eq(origins[0], TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(direct_chunks(), 0);
    ck_assert_int_eq(fx_stats(&fx).device_failures, 0);
    stop(chain);
}
END_TEST

START_TEST(it_is_off_without_a_buffer)
{
    struct tierce_chain *chain = start(coded);
    reopen(coded);
    expect_host(chain);
    ck_assert_uint_eq(recorded("cuda_decoder"), 0);
    stop(chain);
}
END_TEST

/* The trial of the decoder fails, or there is no memory for it: the host decodes, and the device is
 * not asked again. */
START_TEST(a_decoder_that_is_not_ready_is_not_used)
{
    struct tierce_chain *chain = start(coded);
    if (_i == 0)
        cuda_fake_flip(CUDA_FAKE_FLIP_DECODED);
    else
        atomic_store(&first_answer, -ENOMEM);
    reopen(direct);
    cuda_fake_flip(CUDA_FAKE_RIGHT);
    ck_assert_uint_eq(recorded("gpu_direct"), 1);
    ck_assert_uint_eq(recorded("cuda_no_decoder"), _i == 0);
    ck_assert_uint_eq(recorded_with("gpu_decode_off", "device=cuda"), 1);
    expect_host(chain);
    ck_assert_uint_eq(recorded("cuda_decoder"), 0);
    ck_assert_uint_eq(recorded("gpu_decode_off"), 1);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, CHUNKS);
    stop(chain);
}
END_TEST

/* A decoder that becomes wrong after its trial: nothing wrong is loaded, the chunks on disk stay,
 * and the host decodes from then on. After a wrong verdict, it does so in the same load. */
START_TEST(wrong_results_are_not_loaded)
{
    struct tierce_chain *chain = start(coded);
    reopen(direct);
    load_all(chain, TIERCE_ORIGIN_DISK);
    ck_assert_int_eq(direct_chunks(), CHUNKS);
    cuda_fake_flip(_i == 0 ? CUDA_FAKE_FLIP_DECODED : CUDA_FAKE_FLIP_VERDICT);
    int64_t loaded = dk_load(chain, 0, BLOCKS, ids, origins);
    cuda_fake_flip(CUDA_FAKE_RIGHT);
    ck_assert(_i == 0 ? loaded < BLOCKS : loaded == BLOCKS);
    ck_assert_uint_eq(recorded("gpu_direct_off"), _i == 0);
    ck_assert_uint_eq(recorded("gpu_decode_off"), _i == 1);
    int64_t decoded_there = direct_chunks();
    ck_assert_int_eq(dk_load(chain, 0, BLOCKS, ids, origins), BLOCKS);
    load_all(chain, TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(direct_chunks(), decoded_there);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, CHUNKS);
    stop(chain);
}
END_TEST

/* Inverts all bytes of the data file but headers. */
static void damage(void)
{
    char path[80];
    uint8_t page[4096];
    snprintf(path, sizeof(path), "%s/data", fx.folder);
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    for (off_t at = 0; pread(fd, page, sizeof(page), at) == (ssize_t)sizeof(page);
         at += (off_t)sizeof(page)) {
        if (memcmp(page, "TIERCECK", 8) == 0)
            continue;
        for (size_t i = 0; i < sizeof(page); i++)
            page[i] = (uint8_t)~page[i];
        ck_assert_int_eq(pwrite(fd, page, sizeof(page), at), sizeof(page));
    }
    close(fd);
}

START_TEST(damaged_chunks_are_a_miss_and_leave)
{
    struct tierce_chain *chain = start(coded);
    reopen(coded);
    damage();
    reopen(direct);
    ck_assert_int_eq(dk_load(chain, 0, BLOCKS, ids, origins), 0);
    WAIT_FOR(fx_stats(&fx).disk_chunks_now < CHUNKS);
    ck_assert_uint_eq(recorded("gpu_decode_off"), 0); /* the coded bytes had a wrong sum */
    stop(chain);
}
END_TEST

/* Each call of the driver in a load lacks memory once: the load is right or a miss, and the next
 * one is right, unless the device is lost. */
START_TEST(calls_without_memory)
{
    struct tierce_chain *chain = start(coded);
    for (uint64_t nth = 1, made = 1; nth <= made; nth += nth < 30 ? 1 : 7) {
        reopen(direct);
        WAIT_FOR(recorded("gpu_direct") == 1);
        cuda_fake_be_patient(true);
        (void)cuda_fake_fail_nth(nth, TIERCE__CU_OUT_OF_MEMORY);
        struct tierce_transfer_opts what = dk_what(chain, 0, BLOCKS, ids);
        int64_t loaded = tierce_load(fx.view, &what, origins);
        made = cuda_fake_fail_nth(0, 0);
        cuda_fake_be_patient(false);
        ck_assert(loaded == -ENOMEM || loaded >= 0);
        dk_read();
        for (size_t b = 0; loaded > 0 && b < BLOCKS; b++)
            ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&image, chain, b, ids[b]));
        ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, CHUNKS);
        /* Without its context, a call that waits for the device takes it for a failed one. */
        if (recorded_with("cuda_failed", "device=0 why=\"cuCtxPushCurrent") > 0)
            continue;
        ck_assert_int_eq(dk_load(chain, 0, BLOCKS, ids, origins), BLOCKS);
        ck_assert_uint_eq(recorded("gpu_decode_off") + recorded("cuda_no_decoder"), 0);
    }
    stop(chain);
}
END_TEST

static void *release(void *arg)
{
    uint64_t before = cuda_fake_calls().all;
    (void)arg;
    WAIT_FOR(cuda_fake_calls().all > before + 20); /* it waits for the device */
    cuda_fake_hold(false);
    return NULL;
}

/* A device that does not run what it was given: the load is a miss, and the next one is right. */
START_TEST(a_late_device_is_a_miss)
{
    pthread_t thread;
    struct tierce_chain *chain = start(coded);
    reopen(direct);
    load_all(chain, TIERCE_ORIGIN_DISK);
    struct tierce_transfer_opts what = dk_what(chain, 0, BLOCKS, ids);
    what.timeout_ms = 50;
    dk_wipe();
    gpu_sync();
    cuda_fake_hold(true);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, release, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(dk_load(chain, 0, BLOCKS, ids, origins), BLOCKS);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, CHUNKS);
    stop(chain);
}
END_TEST

/* The device fails while its kernel may still write to the buffer, which is not freed before the
 * device is idle. */
START_TEST(a_buffer_outlives_what_a_failed_call_has_begun)
{
    enum { BYTES = 2 << 20, RUN = 64 };
    static const uint8_t plain[RUN] = {1};
    struct tierce__device *device;
    uint8_t *base = NULL;
    dk_start_device("device");
    const struct tierce__device_ops *gpu_ops = tierce__device_find("cuda");
    ck_assert_int_eq(gpu_ops->open(&device, fx.layers[0].base), 0);
    gpu_ops->tune(device);
    ck_assert_int_eq(gpu_ops->files->alloc(device, &base, BYTES), 0);
    ck_assert_int_eq(gpu_ops->decode(device, NULL, 0, TIERCE__DEADLINE_NEVER), 0);
    const struct tierce__device_run run = {
        .to = base, .bytes = RUN, .from = plain, .coded = RUN, .is_plain = true};
    cuda_fake_hold(true);
    (void)cuda_fake_fail_nth(5, TIERCE__CU_UNKNOWN); /* after two that enter, a copy and a launch */
    ck_assert_int_eq(gpu_ops->decode(device, &run, 1, TIERCE__DEADLINE_NEVER), -EIO);
    (void)cuda_fake_fail_nth(0, 0);
    ck_assert(!gpu_ops->files->free(device, base, BYTES));
    cuda_fake_hold(false);
    WAIT_FOR(gpu_ops->idle(device) == 0);
    ck_assert(gpu_ops->files->free(device, base, BYTES));
    ck_assert(gpu_ops->close(device, tierce__deadline_in_ms(60000)));
    dk_stop_device();
}
END_TEST

CHECK_MAIN("gpu_decode", .seconds = 120,
           .tests = {chunks_of_the_disk_are_decoded_on_the_device, raw_chunks_lie_beside_coded_ones,
                     chunks_of_coded_memory_are_decoded_on_the_device,
                     raw_copies_in_coded_memory_are_read_into_memory, it_is_off_without_a_buffer,
                     damaged_chunks_are_a_miss_and_leave, calls_without_memory,
                     a_late_device_is_a_miss, a_buffer_outlives_what_a_failed_call_has_begun},
           .loops = {{a_decoder_that_is_not_ready_is_not_used, 0, 2},
                     {wrong_results_are_not_loaded, 0, 2}})
