/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "test_random.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/device/kernels/copy_sum.cu"

/* The source of the kernel, compiled as C: bytes and sums equal libxxhash's for all lengths,
 * alignments and numbers of cells and thread blocks. */

enum { CELLS_MAX = 40, ROOM = 1 << 20, GUARD = 0x5A };

static uint8_t source[ROOM] __attribute__((aligned(64)));
static uint8_t target[ROOM] __attribute__((aligned(64)));
static uint64_t sums[CELLS_MAX + 1];
static struct test_random random_;

static void setup(void)
{
    random_ = test_random_start("copy_sum_kernel");
    for (size_t i = 0; i < ROOM; i++)
        source[i] = (uint8_t)test_random_u64(&random_);
}

/* Cells of this size, `gap` apart, from these offsets, by this many thread blocks. */
static void check(uint32_t bytes, uint32_t count, uint32_t blocks, size_t from, size_t to)
{
    static struct tierce__launch launch;
    size_t gap = (bytes + 31u) / 16 * 16;
    ck_assert_uint_le(from + gap * count, ROOM);
    ck_assert_uint_le(to + gap * count, ROOM);
    launch = (struct tierce__launch){.sums = (uintptr_t)sums, .bytes = bytes, .count = count};
    memset(target, GUARD, to + gap * count);
    memset(sums, GUARD, sizeof(sums));
    for (uint32_t i = 0; i < count; i++) {
        launch.from[i] = (uintptr_t)(source + from + gap * i);
        launch.to[i] = (uintptr_t)(target + to + gap * (count - 1 - i));
    }
    for (uint32_t i = 0; i < blocks; i++)
        tierce__copy_sum(launch, i, blocks);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *cell = (const uint8_t *)(uintptr_t)launch.to[i];
        ck_assert_msg(memcmp(cell, source + from + gap * i, bytes) == 0 && cell[bytes] == GUARD &&
                          sums[i] == XXH3_64bits(cell, bytes),
                      "cell %u of %u of %u bytes, %u thread blocks, offsets %zu and %zu", i, count,
                      bytes, blocks, from, to);
    }
    ck_assert_uint_eq(sums[count], 0x5A5A5A5A5A5A5A5A);
    for (size_t i = 0; i < to; i++)
        ck_assert_uint_eq(target[i], GUARD);
}

START_TEST(every_length)
{
    for (uint32_t bytes = 1; bytes <= 1200; bytes++) {
        check(bytes, 2, 1, 0, 0);
        check(bytes, 1, 1, 1 + bytes % 15, bytes % 16);
    }
}
END_TEST

/* Around the ends of stripes, blocks and tiles. */
START_TEST(long_cells)
{
    static const uint32_t around[] = {2048, 4096, 16384, 16384 + 1024, 32768, 49152, 100000};
    for (size_t i = 0; i < sizeof(around) / sizeof(around[0]); i++) {
        for (uint32_t less = 0; less < 140; less++) {
            check(around[i] + 70 - less, 1, 1, 0, 0);
            if (less % 16 == 0)
                check(around[i] + 70 - less, 2, 1, less % 32, 7);
        }
    }
}
END_TEST

START_TEST(many_cells)
{
    static const uint32_t lengths[] = {16, 240, 256, 1000, 1024, 2048, 3000, 4096, 9216, 17000};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        for (uint32_t count = 0; count <= CELLS_MAX; count += 1 + count / 4) {
            for (uint32_t blocks = 1; blocks <= 7; blocks += 2)
                check(lengths[i], count, blocks, 16, 32);
        }
    }
}
END_TEST

START_TEST(random_launches)
{
    for (unsigned i = 0; i < TEST_ROUNDS(400) * test_scale(); i++) {
        uint32_t count = 1 + (uint32_t)test_random_below(&random_, 12);
        uint32_t bytes = 1 + (uint32_t)test_random_below(&random_, i % 2 == 0 ? 300 : 40000);
        check(bytes, count, 1 + (uint32_t)test_random_below(&random_, 5),
              test_random_below(&random_, 64), test_random_below(&random_, 64));
    }
}
END_TEST

CHECK_MAIN("copy_sum_kernel", .seconds = 60, .setup = setup,
           .tests = {every_length, long_cells, many_cells, random_launches})
