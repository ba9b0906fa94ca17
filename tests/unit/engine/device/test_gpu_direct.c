/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads whose chunks are read from disk into the memory of the GPU, without memory of the host, on
 * the driver and the cuFile of tests/support/cuda.
 */
#define FX_CHUNK_BLOCKS        2u
#define TIERCE_TEST_DEVICE_WAY TIERCE__CUDA_DIRECT /* it has the kernel */
#include "cufile_fake.h"
#include "device_fixture.h"
#include "log_record.h"

#include <errno.h>
#include <pthread.h>

enum { BLOCKS = 11, CHUNKS = 6, MANY = 360, IO_NOT_SUPPORTED = 5008 };

static uint8_t origins[FX_BLOCKS];
static int32_t ids[MANY]; /* in no order */
static const char *const direct[] = {"disk.gpu_direct", "2MiB", NULL};

static int64_t direct_chunks(void)
{
    return (int64_t)atomic_load(&fx.engine->direct.chunks);
}

/* The engine again, with nothing in memory. */
static void reopen(const char *const *sets)
{
    fx_close(&fx);
    gpu_check_left(FX_LAYERS);
    record_log(TIERCE_LOG_INFO);
    dk_open_early(true, sets);
    WAIT_FOR(recorded("memory_pinned") == 1);
}

/* A prompt on disk, and an engine that has read nothing of it. */
static struct tierce_chain *start(size_t blocks, const char *const *stored_with,
                                  const char *const *sets)
{
    for (int32_t b = 0; b < MANY; b++)
        ids[b] = (b * 7) % (int32_t)FX_BLOCKS;
    dk_start(true, stored_with);
    struct tierce_chain *chain = fx_chain(&fx, 1, (uint32_t)blocks, 0);
    for (size_t to = blocks < 40 ? blocks : 40; to <= blocks; to += 40) {
        ck_assert_int_ge(dk_store(chain, to, ids, to == blocks), 0);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    }
    reopen(sets);
    return chain;
}

static void stop(struct tierce_chain *chain)
{
    tierce_chain_destroy(chain);
    dk_stop();
    ck_assert_uint_eq(cufile_fake_counts().buffers + cufile_fake_counts().files, 0);
}

static void load_all(const struct tierce_chain *chain, size_t blocks, uint8_t origin)
{
    ck_assert_int_eq(dk_load(chain, 0, blocks, ids, origins), (int64_t)blocks);
    for (size_t b = 0; b < blocks; b++)
        ck_assert_uint_eq(origins[b], origin);
}

/* The load is right whether or not chunks can be read into the device's memory. */
static void expect_memory(const struct tierce_chain *chain)
{
    load_all(chain, BLOCKS, TIERCE_ORIGIN_DISK);
    load_all(chain, BLOCKS, TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(direct_chunks(), 0);
    ck_assert_int_eq(fx_stats(&fx).device_failures, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 1);
}

START_TEST(chunks_are_read_without_memory)
{
    struct tierce_chain *chain = start(BLOCKS, NULL, direct);
    ck_assert_uint_eq(recorded_with("gpu_direct", "bytes=2097152"), 1);
    for (int i = 1; i <= 2; i++) {
        load_all(chain, BLOCKS, TIERCE_ORIGIN_DISK);
        ck_assert_int_eq(direct_chunks(), i * CHUNKS);
        ck_assert_int_eq(fx_stats(&fx).chunks_loaded_disk, i * CHUNKS);
    }
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 0);
    ck_assert_uint_eq(cufile_fake_counts().reads, 2 * CHUNKS);
    ck_assert_int_eq(dk_load(chain, 6, 9, ids, origins), 3);
    stop(chain);
}
END_TEST

START_TEST(other_chunks_are_in_memory)
{
    struct tierce_chain *chain = start(8, NULL, direct);
    struct tierce_chain *longer = fx_chain(&fx, 1, 24, 0);
    ck_assert_int_eq(dk_store(longer, 24, ids, false), 16);
    ck_assert_int_eq(dk_load(longer, 0, 24, ids, origins), 24);
    for (size_t b = 0; b < 24; b++)
        ck_assert_uint_eq(origins[b], b < 8 ? TIERCE_ORIGIN_DISK : TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(direct_chunks(), 4);
    tierce_chain_destroy(longer);
    stop(chain);
}
END_TEST

START_TEST(it_is_off_by_default)
{
    struct tierce_chain *chain = start(BLOCKS, NULL, NULL);
    expect_memory(chain);
    ck_assert_uint_eq(cufile_fake_counts().calls, 0);
    stop(chain);
}
END_TEST

/* The start of the library, the registration of the buffer or the file, or a read fails. */
START_TEST(a_library_that_fails_is_not_used_again)
{
    uint64_t nth = (uint64_t)_i + 1;
    dk_start_device("device");
    tierce__cuda_force(TIERCE__CUDA_DIRECT);
    dk_open(true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    for (int32_t b = 0; b < MANY; b++)
        ids[b] = b;
    ck_assert_int_eq(dk_store(chain, BLOCKS, ids, true), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    (void)cufile_fake_fail_nth(nth, IO_NOT_SUPPORTED);
    reopen(direct);
    load_all(chain, BLOCKS, TIERCE_ORIGIN_DISK);
    ck_assert_uint_ge(cufile_fake_fail_nth(0, 0), nth);
    ck_assert_uint_eq(recorded("gpu_direct_refused") + recorded("gpu_direct_failed"), 1);
    ck_assert_uint_eq(recorded("gpu_direct_off"), nth <= 2);
    /* Chunks whose reads had succeeded are read into memory now. */
    ck_assert_int_eq(dk_load(chain, 0, BLOCKS, ids, origins), BLOCKS);
    load_all(chain, BLOCKS, TIERCE_ORIGIN_MEMORY);
    ck_assert_int_eq(fx_stats(&fx).device_failures, 0);
    ck_assert_int_eq(fx_stats(&fx).disk_in_service_now, 1);
    stop(chain);
}
END_TEST

START_TEST(a_failed_read_of_the_file_is_tried_into_memory)
{
    struct tierce_chain *chain = start(BLOCKS, NULL, direct);
    (void)cufile_fake_fail_nth(2, -1); /* the first call registers the file */
    load_all(chain, BLOCKS, TIERCE_ORIGIN_DISK);
    (void)cufile_fake_fail_nth(0, 0);
    ck_assert_int_eq(direct_chunks(), CHUNKS - 1);
    ck_assert_int_eq(fx_stats(&fx).device_failures, 1);
    stop(chain);
}
END_TEST

/* Without the kernel nobody computes the sums of cells on the device. */
START_TEST(without_the_kernel_memory_is_used)
{
    dk_start_device("device");
    tierce__cuda_force(TIERCE__CUDA_COPIES);
    dk_open(true, NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    for (int32_t b = 0; b < MANY; b++)
        ids[b] = b;
    ck_assert_int_eq(dk_store(chain, BLOCKS, ids, true), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    reopen(direct);
    ck_assert_uint_eq(recorded_with("gpu_direct_refused", "checksums"), 1);
    ck_assert_uint_eq(recorded_with("gpu_direct_off", "see gpu_direct_refused"), 1);
    expect_memory(chain);
    stop(chain);
}
END_TEST

/* Bytes that arrive wrong, or not at all: nothing wrong is loaded, the chunks on disk stay, and are
 * read into memory from then on. */
START_TEST(wrong_bytes_are_not_loaded)
{
    struct tierce_chain *chain = start(BLOCKS, NULL, direct);
    cufile_fake_set_fault(_i == 0 ? CUFILE_FAKE_FLIP : CUFILE_FAKE_SKIP);
    ck_assert_int_lt(dk_load(chain, 0, BLOCKS, ids, origins), BLOCKS);
    cufile_fake_set_fault(CUFILE_FAKE_RIGHT);
    ck_assert_uint_eq(recorded_with("gpu_direct_off", "was wrong"), 1);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    uint64_t reads = cufile_fake_counts().reads;
    /* Chunks whose reads had not begun by then were read into memory already. */
    ck_assert_int_eq(dk_load(chain, 0, BLOCKS, ids, origins), BLOCKS);
    load_all(chain, BLOCKS, TIERCE_ORIGIN_MEMORY);
    ck_assert_uint_eq(cufile_fake_counts().reads, reads);
    stop(chain);
}
END_TEST

START_TEST(short_reads_are_continued)
{
    struct tierce_chain *chain = start(BLOCKS, NULL, direct);
    cufile_fake_set_fault(CUFILE_FAKE_SHORT);
    load_all(chain, BLOCKS, TIERCE_ORIGIN_DISK);
    ck_assert_int_eq(direct_chunks(), CHUNKS);
    stop(chain);
}
END_TEST

/* A buffer and memory that are smaller than the load, together or each. */
START_TEST(a_load_larger_than_the_buffer)
{
    static const char *const small[] = {"disk.gpu_direct", "1MiB", "memory.size", "1MiB", NULL};
    static const char *const large[] = {"disk.gpu_direct", "1MiB", NULL};
    size_t blocks = _i == 0 ? MANY : 240;
    struct tierce_chain *chain = start(blocks, NULL, _i == 0 ? small : large);
    load_all(chain, blocks, TIERCE_ORIGIN_DISK);
    ck_assert_int_gt(direct_chunks(), 10);
    ck_assert_int_lt(direct_chunks(), (int64_t)blocks / 2);
    ck_assert_int_eq(fx_stats(&fx).chunks_loaded_disk, (int64_t)blocks / 2);
    ck_assert_int_eq(fx_stats(&fx).leases_now, 0);
    stop(chain);
}
END_TEST

START_TEST(encrypted_chunks_are_read_into_memory)
{
    static const char *const encrypts[] = {
        "disk.encryption", "aes-256-gcm", "encryption.key_command",
        "echo 1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", NULL};
    static const char *const both[] = {
        "disk.encryption",
        "aes-256-gcm",
        "encryption.key_command",
        "echo 1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "disk.gpu_direct",
        "2MiB",
        NULL};
    struct tierce_chain *chain = start(BLOCKS, encrypts, both);
    expect_memory(chain);
    stop(chain);
}
END_TEST

/* The library forgets a buffer that the device has no memory to remember. */
START_TEST(a_buffer_without_memory_is_not_registered)
{
    struct tierce__device *device;
    uint8_t *base = NULL;
    uint64_t nth = 0;
    int rc;
    dk_start_device("device");
    const struct tierce__device_ops *ops = tierce__device_find("cuda");
    ck_assert_int_eq(ops->open(&device, fx.layers[0].base), 0);
    ops->tune(device);
    do {
        (void)tierce__alloc_fail_nth(++nth);
        rc = ops->files->alloc(device, &base, 2 << 20);
        (void)tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
        ck_assert_uint_eq(cufile_fake_counts().buffers, rc == 0);
    } while (rc != 0);
    ck_assert_uint_gt(nth, 1);
    ck_assert(ops->files->free(device, base, 2 << 20));
    ck_assert_uint_eq(cufile_fake_counts().buffers, 0);
    ck_assert(ops->close(device, tierce__deadline_in_ms(60000)));
    dk_stop_device();
}
END_TEST

/* A folder that is a file, and memory that is missing while the disk is opened. */
START_TEST(a_disk_that_cannot_be_opened)
{
#ifdef __SANITIZE_THREAD__ /* the address sanitizer sees the other ones */
    enum { NEAR = 8, FAR = 8 };
#else
    enum { NEAR = 1, FAR = 5 };
#endif
    struct tierce_engine *engine;
    char why[TIERCE_CONFIG_ERROR_BYTES], path[96];
    snprintf(fx.folder, sizeof(fx.folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx.folder);
    snprintf(path, sizeof(path), "%s/file", fx.folder);
    fclose(fopen(path, "w"));
    for (uint64_t nth = 0, made = 1; nth <= made; nth += nth < 40 ? NEAR : FAR) {
        struct tierce_config *config = fx_config(nth == 0 ? path : fx.folder, direct);
        (void)tierce__alloc_fail_nth(nth);
        int rc = tierce_engine_open(&engine, config, why);
        made = nth == 0 ? 1 : tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
        if (rc == 0)
            tierce_engine_close(engine);
        tierce_config_destroy(config);
        ck_assert_uint_eq(tierce__alloc_live(), 0);
    }
    temp_folder_remove(fx.folder);
}
END_TEST

static void *release(void *arg)
{
    (void)arg;
    WAIT_FOR(cufile_fake_counts().reading > 0);
    cufile_fake_hold(false);
    return NULL;
}

/* A load is a miss; whether its reads had begun by then. */
static bool misses_while_it_reads(const struct tierce_transfer_opts *what)
{
    ck_assert_int_eq(tierce_load(fx.view, what, origins), 0);
    return cufile_fake_counts().reading > 0;
}

/* Reads that do not return in time: the load is a miss, and the buffer stays in use until then. */
START_TEST(late_reads_are_a_miss)
{
    pthread_t thread;
    struct tierce_chain *chain = start(BLOCKS, NULL, direct);
    struct tierce_transfer_opts what = dk_what(chain, 0, BLOCKS, ids);
    what.timeout_ms = 50;
    cufile_fake_hold(true);
    dk_wipe();
    WAIT_FOR(misses_while_it_reads(&what));
    if (_i == 0) { /* closing waits for them */
        ck_assert_int_eq(pthread_create(&thread, NULL, release, NULL), 0);
        stop(chain);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        return;
    }
    cufile_fake_hold(false);
    WAIT_FOR(cufile_fake_counts().reading == 0);
    WAIT_FOR(fx_stats(&fx).disk_in_service_now == 1);
    ck_assert_int_eq(dk_load(chain, 0, BLOCKS, ids, origins), BLOCKS);
    stop(chain);
}
END_TEST

/* Two loads share the buffer. */
START_TEST(loads_at_the_same_time)
{
    struct tierce_load *loads[2];
    struct tierce_chain *chain = start(BLOCKS, NULL, direct);
    struct tierce_transfer_opts first = dk_what(chain, 0, BLOCKS, ids),
                                second = dk_what(chain, 0, BLOCKS, ids + 20);
    dk_wipe();
    ck_assert_int_eq(tierce_load_begin(&loads[0], fx.view, &first), 0);
    ck_assert_int_eq(tierce_load_begin(&loads[1], fx.view, &second), 0);
    for (uint32_t layer = 0; layer < FX_LAYERS; layer++) {
        for (size_t i = 0; i < 2; i++)
            ck_assert_int_eq(tierce_load_layer(loads[i], layer), 0);
    }
    ck_assert_int_eq(tierce_load_end(loads[0], origins), BLOCKS);
    ck_assert_int_eq(tierce_load_end(loads[1], origins), BLOCKS);
    dk_read();
    for (size_t b = 0; b < BLOCKS; b++) {
        ck_assert(fx_right(&image, chain, b, ids[b]));
        ck_assert(fx_right(&image, chain, b, ids[20 + b]));
    }
    ck_assert_int_eq(direct_chunks(), 2 * CHUNKS);
    stop(chain);
}
END_TEST

CHECK_MAIN("gpu_direct", .seconds = 120,
           .tests = {chunks_are_read_without_memory, other_chunks_are_in_memory,
                     it_is_off_by_default, a_failed_read_of_the_file_is_tried_into_memory,
                     without_the_kernel_memory_is_used, short_reads_are_continued,
                     encrypted_chunks_are_read_into_memory,
                     a_buffer_without_memory_is_not_registered, a_disk_that_cannot_be_opened,
                     loads_at_the_same_time},
           .loops = {{a_library_that_fails_is_not_used_again, 0, 5},
                     {wrong_bytes_are_not_loaded, 0, 2},
                     {a_load_larger_than_the_buffer, 0, 2},
                     {late_reads_are_a_miss, 0, 2}})
