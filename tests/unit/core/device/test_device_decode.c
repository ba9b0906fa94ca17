/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/codec/codec.h"
#include "core/device/device.h"
#include "gpu.h"
#include "kv_values.h"
#include "test_random.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <pthread.h>

/* Runs that are decoded into the memory of a GPU, or of the driver of tests/support/cuda, and of
 * the host: the bytes are those that were encoded, and nothing else is written. */

enum { ROOM = 24 << 20, RUNS_MAX = 12, GUARD = 0x5A };

static const struct tierce__codec *lossless;
static const struct tierce__device_ops *ops;
static struct tierce__device *device;
static uintptr_t memory;
static uint8_t *expected, *now, *coded; /* on the host */
static size_t coded_used;
static struct test_random random_;

#define DEADLINE tierce__deadline_in_ms(120000)

static void start(const char *name)
{
    random_ = test_random_start(name);
    lossless = tierce__codec_find("lossless");
    expected = malloc(ROOM);
    now = malloc(ROOM);
    coded = malloc(tierce__codec_bound(ROOM) + (1 << 20));
    ck_assert(expected != NULL && now != NULL && coded != NULL);
    coded_used = 0;
    gpu_start(test_random_u64(&random_), 0);
    memory = gpu_alloc(ROOM);
    ops = tierce__device_find("cuda");
    ck_assert_int_eq(ops->open(&device, (void *)memory), 0);
}

static void stop(void)
{
    gpu_sync();
    ck_assert(ops->close(device, DEADLINE));
    gpu_check_left(1);
    gpu_free(memory);
    gpu_stop();
    free(expected);
    free(now);
    free(coded);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* Fills the memory, and what it is expected to have. */
static void clear(size_t bytes)
{
    ck_assert_uint_le(bytes, ROOM);
    memset(expected, GUARD, bytes);
    gpu_write(memory, expected, bytes);
    gpu_sync();
    coded_used = 0;
}

static void check_same(size_t bytes)
{
    gpu_read(now, memory, bytes);
    for (size_t i = 0; memcmp(now, expected, bytes) != 0 && i < bytes; i++)
        ck_assert_msg(now[i] == expected[i], "byte %zu is %u, not %u", i, now[i], expected[i]);
}

/* A run for [at, at + bytes) of the memory. */
static struct tierce__device_run make_run(size_t at, size_t bytes, enum tierce__element element,
                                          uint64_t part_bytes)
{
    struct tierce__codec_shape shape = {.element = element, .part_bytes = part_bytes};
    uint8_t *to = coded + coded_used;
    kv_fill(expected + at, bytes, element, test_random_u64(&random_), 12, 120);
    int64_t length = lossless->encode(to, tierce__codec_bound(bytes), expected + at, bytes, &shape);
    ck_assert_int_ge(length, 0);
    coded_used += (size_t)length;
    return (struct tierce__device_run){
        .to = (uint8_t *)memory + at, .bytes = bytes, .from = to, .coded = (size_t)length};
}

static struct tierce__device_run plain_run(size_t at, size_t bytes)
{
    uint8_t *from = coded + coded_used;
    for (size_t i = 0; i < bytes; i++)
        expected[at + i] = from[i] = (uint8_t)test_random_u64(&random_);
    coded_used += bytes;
    return (struct tierce__device_run){.to = (uint8_t *)memory + at,
                                       .bytes = bytes,
                                       .from = from,
                                       .coded = bytes,
                                       .is_plain = true};
}

START_TEST(random_runs)
{
    start("random_runs");
    for (unsigned round = 0; round < TEST_ROUNDS(60) * test_scale(); round++) {
        struct tierce__device_run runs[RUNS_MAX];
        size_t count = 1 + test_random_below(&random_, RUNS_MAX), at = round % 5, end = 600000;
        clear(end);
        for (size_t i = 0; i < count; i++) {
            size_t bytes = test_random_below(&random_, i % 3 == 0 ? 40000 : 2000);
            enum tierce__element element =
                (enum tierce__element)test_random_below(&random_, TIERCE__ELEMENTS);
            runs[i] = i % 4 == 3 ? plain_run(at, bytes)
                                 : make_run(at, bytes, element, i % 2 == 0 ? 512 : 0);
            at += bytes + test_random_below(&random_, 70);
        }
        ck_assert_uint_lt(at, end);
        ck_assert_int_eq(ops->decode(device, runs, count, DEADLINE), 0);
        check_same(end);
    }
    stop();
}
END_TEST

/* More bytes, and more blocks, than one launch takes. */
START_TEST(long_runs)
{
    start("long_runs");
    size_t bytes = 20 << 20;
    clear(bytes + 100);
    struct tierce__device_run run = make_run(3, bytes, TIERCE__ELEMENT_BF16, 0);
    ck_assert_int_eq(ops->decode(device, &run, 1, DEADLINE), 0);
    check_same(bytes + 100);
    clear(bytes + 100);
    run = plain_run(64, 9 << 20); /* does not become shorter */
    ck_assert_int_eq(ops->decode(device, &run, 1, DEADLINE), 0);
    check_same(bytes + 100);
    clear(bytes + 100);
    for (unsigned i = 0; i < 3; i++) { /* blocks of 320 bytes */
        coded_used = 0;
        run = make_run(5, 320 * 500 + i, TIERCE__ELEMENT_E4M3, 320);
        ck_assert_int_eq(ops->decode(device, &run, 1, DEADLINE), 0);
        check_same(bytes + 100);
    }
    stop();
}
END_TEST

/* Nothing but the run's own bytes is written, whatever the coded bytes are. */
START_TEST(damaged_runs)
{
    unsigned rejected = 0;
    start("damaged_runs");
    for (unsigned round = 0; round < TEST_ROUNDS(200) * test_scale(); round++) {
        size_t at = 100 + round % 3, bytes = 600 + test_random_below(&random_, 4000);
        uint8_t *exact;
        clear(8192);
        struct tierce__device_run run =
            make_run(at, bytes, round % 2 == 0 ? TIERCE__ELEMENT_BF16 : TIERCE__ELEMENT_E5M2, 0);
        if (round % 4 == 0) {
            run.coded -= 1 + test_random_below(&random_, run.coded);
        } else {
            size_t below = round % 4 == 1 ? 14 : run.coded;
            coded[test_random_below(&random_, below)] ^=
                (uint8_t)(1U << test_random_below(&random_, 8));
        }
        exact = malloc(run.coded > 0 ? run.coded : 1);
        ck_assert_ptr_nonnull(exact);
        memcpy(exact, run.from, run.coded);
        run.from = exact;
        int rc = ops->decode(device, &run, 1, DEADLINE);
        ck_assert_int_eq(rc, lossless->decode(now, bytes, exact, run.coded));
        if (rc == 0)
            memcpy(expected + at, now, bytes);
        rejected += rc < 0;
        gpu_read(now, memory, 8192);
        if (rc < 0)
            memcpy(now + at, expected + at, bytes); /* undefined */
        ck_assert_mem_eq(now, expected, 8192);
        free(exact);
    }
    ck_assert_uint_gt(rejected, TEST_ROUNDS(200) / 4);
    stop();
}
END_TEST

static void check_rejected(const struct tierce__device_ops *of, struct tierce__device *on,
                           uint8_t *to)
{
    uint8_t bytes[64] = {0};
    struct tierce__device_run run = {
        .to = to, .bytes = 8, .from = bytes, .coded = 7, .is_plain = true};
    ck_assert_int_eq(of->decode(on, &run, 1, DEADLINE), TIERCE_E_ARGUMENT);
    run = (struct tierce__device_run){.to = NULL, .bytes = 8, .from = bytes, .coded = 8};
    ck_assert_int_eq(of->decode(on, &run, 1, DEADLINE), TIERCE_E_ARGUMENT);
    run = (struct tierce__device_run){.to = to, .bytes = 8, .from = NULL, .coded = 8};
    ck_assert_int_eq(of->decode(on, &run, 1, DEADLINE), TIERCE_E_ARGUMENT);
    run = (struct tierce__device_run){.to = to, .bytes = 8, .from = bytes, .coded = 0};
    ck_assert_int_eq(of->decode(on, &run, 1, DEADLINE), TIERCE_E_FORMAT);
    run = (struct tierce__device_run){.to = to, .bytes = 0, .from = bytes, .coded = 20};
    ck_assert_int_eq(of->decode(on, &run, 1, DEADLINE), TIERCE_E_FORMAT);
    run = (struct tierce__device_run){
        .to = to, .bytes = 8, .from = bytes, .coded = 8, .is_plain = true};
    ck_assert_int_eq(of->decode(on, &run, 1, 0), TIERCE_E_DEADLINE);
    ck_assert_int_eq(of->decode(on, &(struct tierce__device_run){0}, 1, DEADLINE), 0);
    ck_assert_int_eq(of->decode(on, NULL, 0, DEADLINE), 0);
}

START_TEST(invalid_runs_are_rejected)
{
    start("invalid_runs");
    check_rejected(ops, device, (uint8_t *)memory);
    stop();
}
END_TEST

START_TEST(memory_of_the_host)
{
    const struct tierce__device_ops *host = tierce__device_find("host");
    struct tierce__device *on;
    start("host");
    uint8_t *to = calloc(1, 30000);
    ck_assert_ptr_nonnull(to);
    ck_assert_int_eq(host->open(&on, to), 0);
    struct tierce__device_run runs[] = {make_run(0, 20001, TIERCE__ELEMENT_FP16, 0),
                                        plain_run(20001, 3000)};
    runs[0].to = to;
    runs[1].to = to + 20001;
    ck_assert_int_eq(host->decode(on, runs, 2, DEADLINE), 0);
    ck_assert_mem_eq(to, expected, 23001);
    check_rejected(host, on, to);
    ck_assert(host->close(on, 0));
    free(to);
    stop();
}
END_TEST

/* The bytes are in place when the call returns: work that is enqueued then reads them. */
START_TEST(work_after_the_call_reads_the_bytes)
{
    start("after");
    clear(100000);
    struct tierce__device_run run = make_run(0, 100000, TIERCE__ELEMENT_BF16, 0);
    ck_assert_int_eq(ops->decode(device, &run, 1, DEADLINE), 0);
    const uint8_t *read = gpu_read_later(memory, 100000);
    ck_assert_int_eq(ops->idle(device), 0);
    gpu_sync();
    ck_assert_mem_eq(read, expected, 100000);
    stop();
}
END_TEST

struct caller {
    pthread_t thread;
    struct tierce__device_run run;
    int rc;
};

static void *decode_often(void *arg)
{
    struct caller *caller = arg;
    for (unsigned i = 0; i < TEST_ROUNDS(20) && caller->rc == 0; i++)
        caller->rc = ops->decode(device, &caller->run, 1, DEADLINE);
    return NULL;
}

START_TEST(several_threads)
{
    enum { THREADS = 4, BYTES = 70000 };
    static struct caller callers[THREADS];
    start("several_threads");
    clear(THREADS * BYTES);
    for (size_t i = 0; i < THREADS; i++) {
        callers[i] = (struct caller){.run = make_run(i * BYTES, BYTES, TIERCE__ELEMENT_BF16, 0)};
        ck_assert_int_eq(pthread_create(&callers[i].thread, NULL, decode_often, &callers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(callers[i].thread, NULL);
        ck_assert_int_eq(callers[i].rc, 0);
    }
    check_same(THREADS * BYTES);
    stop();
}
END_TEST

GPU_MAIN("device_decode", .seconds = 120,
         .tests = {random_runs, long_runs, damaged_runs, invalid_runs_are_rejected,
                   memory_of_the_host, work_after_the_call_reads_the_bytes, several_threads})
