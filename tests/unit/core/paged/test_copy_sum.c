/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/paged/paged.h"
#include "paged_random.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Every kernel gives the sums of libxxhash, with and without the copy, with both hints. */

enum { GUARD_BYTES = 128, GUARD = 0xA5, LENGTH_MAX = 5 << 20 };

static uint8_t *source, *target;

static void make_buffers(void)
{
    uint64_t seed = 7;
    source = malloc(LENGTH_MAX + GUARD_BYTES);
    target = malloc(LENGTH_MAX + 3 * GUARD_BYTES);
    ck_assert(source != NULL && target != NULL);
    random_fill(&seed, source, LENGTH_MAX + GUARD_BYTES);
}

static void drop_buffers(void)
{
    free(source);
    free(target);
    tierce__kernel_force(&tierce__copy_kernels, UINT_MAX);
}

static void expect_guard(const uint8_t *bytes)
{
    static uint8_t guard[GUARD_BYTES];
    memset(guard, GUARD, sizeof(guard));
    ck_assert_mem_eq(bytes, guard, GUARD_BYTES);
}

static void try_copy(size_t from, size_t to, size_t n, enum tierce__store_hint hint)
{
    uint8_t *dst = target + GUARD_BYTES + to;
    memset(dst - GUARD_BYTES, GUARD, n + 2 * GUARD_BYTES);
    uint64_t sum = tierce__copy_sum(dst, source + from, n, hint);
    uint64_t expected = XXH3_64bits(source + from, n);
    ck_assert_msg(sum == expected, "%s: length %zu, source +%zu, target +%zu, hint %d: sum differs",
                  tierce__kernel_in_use(&tierce__copy_kernels)->name, n, from, to, (int)hint);
    ck_assert_msg(memcmp(dst, source + from, n) == 0,
                  "%s: length %zu, source +%zu, target +%zu, hint %d: bytes differ",
                  tierce__kernel_in_use(&tierce__copy_kernels)->name, n, from, to, (int)hint);
    expect_guard(dst - GUARD_BYTES);
    expect_guard(dst + n);
    ck_assert_msg(tierce__sum(source + from, n) == expected, "%s: length %zu: plain sum differs",
                  tierce__kernel_in_use(&tierce__copy_kernels)->name, n);
}

/* Runs `body` with each kernel that this machine can run. */
static void with_each_kernel(void (*body)(void))
{
    unsigned ran = 0;
    for (unsigned k = 0; tierce__kernel_name(&tierce__copy_kernels, k) != NULL; k++) {
        if (!tierce__kernel_force(&tierce__copy_kernels, k)) {
            printf("skipped on this machine: %s\n", tierce__kernel_name(&tierce__copy_kernels, k));
            continue;
        }
        ck_assert_str_eq(tierce__kernel_in_use(&tierce__copy_kernels)->name,
                         tierce__kernel_name(&tierce__copy_kernels, k));
        body();
        ran++;
    }
    ck_assert_uint_ge(ran, 1);
}

static void every_short_length(void)
{
    for (size_t n = 0; n <= 2100; n++) {
        try_copy(n % 64, (n / 3) % 64, n, TIERCE__STORE_CACHED);
        try_copy(0, 0, n, TIERCE__STORE_STREAM);
    }
}

START_TEST(sums_equal_libxxhash_at_every_short_length)
{
    with_each_kernel(every_short_length);
}
END_TEST

/* The boundaries of the streamed path: each shift of the head with each remainder of the last
 * block. */
static void stream_edges(void)
{
    for (size_t shift = 0; shift < 64; shift++)
        for (size_t n = 4090; n < 4090 + 1100; n += 1 + (shift * 7 + n) % 13)
            try_copy(shift * 5 % 64, shift, n, TIERCE__STORE_STREAM);
}

START_TEST(streamed_copies_keep_to_their_bytes)
{
    with_each_kernel(stream_edges);
}
END_TEST

static uint64_t long_seed;

static void random_long(void)
{
    uint64_t state = long_seed;
    for (int i = 0; i < 60; i++) {
        size_t limit = (size_t)1 << random_below(&state, 23);
        size_t n = random_below(&state, limit < LENGTH_MAX ? limit + 1 : LENGTH_MAX);
        size_t from = random_below(&state, 128), to = random_below(&state, 128);
        try_copy(from, to, n,
                 random_below(&state, 2) != 0 ? TIERCE__STORE_STREAM : TIERCE__STORE_CACHED);
    }
    try_copy(1, 63, LENGTH_MAX - 64, TIERCE__STORE_STREAM);
}

START_TEST(sums_equal_libxxhash_at_random_lengths)
{
    long_seed = random_seed("random lengths");
    with_each_kernel(random_long);
}
END_TEST

/* Exactly sized heap blocks: the address sanitizer detects a read or write beyond them. */
static void exact_blocks(void)
{
    for (size_t n = 1; n < 9000; n += 1 + n / 5) {
        uint8_t *from = malloc(n), *to = malloc(n);
        ck_assert(from != NULL && to != NULL);
        memcpy(from, source, n);
        ck_assert_uint_eq(tierce__copy_sum(to, from, n, TIERCE__STORE_STREAM),
                          XXH3_64bits(from, n));
        ck_assert_mem_eq(to, from, n);
        ck_assert_uint_eq(tierce__copy_sum(to, from, n, TIERCE__STORE_CACHED),
                          XXH3_64bits(from, n));
        ck_assert_uint_eq(tierce__sum(from, n), XXH3_64bits(from, n));
        free(from);
        free(to);
    }
}

START_TEST(nothing_outside_the_buffers_is_touched)
{
    with_each_kernel(exact_blocks);
}
END_TEST

/* Zeros of different lengths have different sums: the length is part of the sum. */
static void lengths_differ(void)
{
    memset(source, 0, 8192);
    uint64_t before = tierce__sum(source, 0);
    for (size_t n = 1; n <= 8192; n++) {
        uint64_t sum = tierce__sum(source, n);
        ck_assert_msg(sum != before, "%s: lengths %zu and %zu",
                      tierce__kernel_in_use(&tierce__copy_kernels)->name, n - 1, n);
        before = sum;
    }
}

START_TEST(one_byte_more_is_another_sum)
{
    with_each_kernel(lengths_differ);
}
END_TEST

/* The bytes that must not be read are outside the blocks. */
static void try_padded(size_t n, size_t total)
{
    uint8_t *from = malloc(n), *whole = calloc(1, total);
    ck_assert(from != NULL && whole != NULL);
    memcpy(from, source, n);
    memcpy(whole, source, n);
    memset(from, GUARD, TIERCE__SUM_STRIPE);
    ck_assert_msg(tierce__sum_padded(source, from, n, total) == XXH3_64bits(whole, total),
                  "%s: %zu of %zu bytes", tierce__kernel_in_use(&tierce__copy_kernels)->name, n,
                  total);
    free(from);
    free(whole);
}

static void padded_lengths(void)
{
    for (size_t total = 256; total <= 3072; total += 64)
        for (size_t n = 64; n <= total; n += 64)
            try_padded(n, total);
    for (size_t n = 64; n <= 16384; n += 64)
        try_padded(n, 16384);
}

START_TEST(zeroes_need_not_be_there_to_be_summed)
{
    with_each_kernel(padded_lengths);
}
END_TEST

START_TEST(an_empty_copy_accepts_null)
{
    ck_assert_uint_eq(tierce__copy_sum(NULL, NULL, 0, TIERCE__STORE_STREAM), XXH3_64bits("", 0));
    ck_assert_uint_eq(tierce__sum(NULL, 0), XXH3_64bits("", 0));
}
END_TEST

START_TEST(kernels_are_listed_and_forced)
{
    unsigned count = 0;
    while (tierce__kernel_name(&tierce__copy_kernels, count) != NULL)
        count++;
    ck_assert_uint_ge(count, 1);
    ck_assert_str_eq(tierce__kernel_name(&tierce__copy_kernels, count - 1), "portable");
    ck_assert(tierce__kernel_usable(&tierce__copy_kernels, count - 1));
    ck_assert(!tierce__kernel_usable(&tierce__copy_kernels, count));
    ck_assert(!tierce__kernel_force(&tierce__copy_kernels, count));
    ck_assert(tierce__kernel_force(&tierce__copy_kernels, count - 1));
    ck_assert_str_eq(tierce__kernel_in_use(&tierce__copy_kernels)->name, "portable");
    ck_assert(tierce__kernel_force(&tierce__copy_kernels, UINT_MAX));
    unsigned best = 0;
    while (!tierce__kernel_usable(&tierce__copy_kernels, best))
        best++;
    ck_assert_str_eq(tierce__kernel_in_use(&tierce__copy_kernels)->name,
                     tierce__kernel_name(&tierce__copy_kernels, best));
}
END_TEST

CHECK_MAIN("copy_sum", .seconds = 30, .setup = make_buffers, .teardown = drop_buffers,
           .tests = {sums_equal_libxxhash_at_every_short_length,
                     streamed_copies_keep_to_their_bytes, sums_equal_libxxhash_at_random_lengths,
                     nothing_outside_the_buffers_is_touched, one_byte_more_is_another_sum,
                     zeroes_need_not_be_there_to_be_summed, an_empty_copy_accepts_null,
                     kernels_are_listed_and_forced})
