/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paged/paged_private.h"

#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#include "base/assert.h"
#include "base/bytes.h"

#define PRIME32_2       0x85EBCA77U
#define PRIME32_3       0xC2B2AE3DU
#define PRIME64_1       0x9E3779B185EBCA87ULL
#define PRIME64_2       0xC2B2AE3D27D4EB4FULL
#define PRIME64_3       0x165667B19E3779F9ULL
#define PRIME64_4       0x85EBCA77C2B2AE63ULL
#define PRIME64_5       0x27D4EB2F165667C5ULL
#define PRIME_AVALANCHE 0x165667919E3779F9ULL

enum {
    /* Up to this length XXH3 uses other algorithms, which libxxhash computes, because such short
     * copies do not occur on the data path.
     */
    SHORT_BYTES_MAX = 240,
    /* The keys of the last stripe and of the fold start at these unaligned offsets of the
     * secret. */
    LAST_KEY = TIERCE__SCRAMBLE_KEY - 7,
    FOLD_KEY = 11,
    /* Below this the head, the tail and the fence of a streamed copy cost more than they save. */
    STREAM_BYTES_MIN = 4096,
};

const uint8_t tierce__secret[TIERCE__SECRET_BYTES] __attribute__((aligned(64))) = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static const uint64_t start_lanes[TIERCE__LANES] = {
    PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, TIERCE__PRIME32_1};

__extension__ typedef unsigned __int128 wide;

static uint64_t fold_product(uint64_t a, uint64_t b)
{
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The last stripe, the fold of the lanes and the avalanche. n > SHORT_BYTES_MAX. */
static uint64_t finish_sum(uint64_t acc[TIERCE__LANES], const uint8_t *last, size_t n)
{
    TIERCE_DASSERT(n > SHORT_BYTES_MAX);
    for (unsigned i = 0; i < TIERCE__LANES; i++) {
        uint64_t word = tierce__load_le64(last + 8 * i);
        uint64_t keyed = word ^ tierce__load_le64(tierce__secret + LAST_KEY + 8 * i);
        acc[i ^ 1] += word;
        acc[i] += (keyed & UINT32_MAX) * (keyed >> 32);
    }
    uint64_t sum = (uint64_t)n * PRIME64_1;
    for (unsigned i = 0; i < TIERCE__LANES; i += 2) {
        const uint8_t *key = tierce__secret + FOLD_KEY + 8 * i;
        sum +=
            fold_product(acc[i] ^ tierce__load_le64(key), acc[i + 1] ^ tierce__load_le64(key + 8));
    }
    sum ^= sum >> 37;
    sum *= PRIME_AVALANCHE;
    return sum ^ (sum >> 32);
}

/*
 * Zen 5 prefetches a source by itself, and additional prefetches slow it down. They help only for
 * small scattered sources, and at the start of a large source. Speed relative to the best plain
 * copy, for cold chunks with cells of 16, 64 and 256 KiB (2026-11). Everything prefetched:
 * scattered 0.77, 0.78 and 0.77, gathered 1.06, 0.83 and 0.78. Nothing prefetched: scattered 0.90,
 * 0.92 and 0.90, gathered 0.85, 0.88 and 0.92. As implemented: scattered 0.90, 0.97 and 0.94,
 * gathered 1.07, 0.97 and 0.95. Older AMD processors, which were not measured, are treated in the
 * same way.
 */
static void plan_fetches(struct tierce__stream *s)
{
#if defined(__x86_64__)
    enum { SMALL_BYTES_MAX = 32 << 10 };
    if (!__builtin_cpu_is("amd") || s->next == NULL)
        return;
    if (s->next == s->src + s->bytes)
        s->next = NULL; /* the row continues directly after it */
    else if (s->bytes > SMALL_BYTES_MAX)
        s->fetch_from = s->bytes;
#else
    (void)s;
#endif
}

/*
 * Streams as many stripes as possible and returns their number. The first bytes of dst, up to its
 * next multiple of 64, are copied plainly; the stores are ahead of the sum by this number of bytes,
 * so as many bytes must remain after the last stripe.
 */
static size_t stream_stripes(const struct tierce__copy_kernel *kernel, uint64_t acc[TIERCE__LANES],
                             uint8_t *dst, const uint8_t *src, size_t n, const uint8_t *next)
{
    TIERCE_DASSERT(n >= STREAM_BYTES_MIN);
    struct tierce__stream s = {.dst = dst, .src = src, .bytes = n, .next = next};
    s.shift = -(uintptr_t)dst % TIERCE__STRIPE_BYTES;
    s.end = (n - 1 - s.shift) / TIERCE__STRIPE_BYTES;
    s.copy_end = (n - s.shift) / TIERCE__STRIPE_BYTES;
    TIERCE_DASSERT(s.end <= s.copy_end && s.shift < TIERCE__STRIPE_BYTES);
    plan_fetches(&s);
    memcpy(dst, src, s.shift);
    kernel->stream(acc, &s);
    return s.end;
}

/* For copies that are not streamed: prefetches the first lines of the next source during this
 * copy. */
static void fetch_head(const uint8_t *next, size_t n)
{
    size_t head = n < TIERCE__FETCH_AHEAD ? n : TIERCE__FETCH_AHEAD;
    for (size_t i = 0; i < head; i += TIERCE__STRIPE_BYTES)
        __builtin_prefetch(next + i, 0, 3);
}

uint64_t tierce__copy_sum_unfenced(const struct tierce__copy_kernel *kernel, void *dst,
                                   const void *src, size_t n, enum tierce__store_hint hint,
                                   const void *next)
{
    TIERCE_DASSERT(n == 0 || (uintptr_t)dst + n <= (uintptr_t)src ||
                   (uintptr_t)src + n <= (uintptr_t)dst);
    uint8_t *to = dst;
    const uint8_t *from = src;
    bool streams = hint == TIERCE__STORE_STREAM && n >= STREAM_BYTES_MIN && kernel->stream != NULL;
    if (next != NULL && !streams)
        fetch_head(next, n);
    if (n <= SHORT_BYTES_MAX) {
        if (n > 0)
            memcpy(dst, src, n);
        return XXH3_64bits(src, n);
    }
    uint64_t acc[TIERCE__LANES];
    memcpy(acc, start_lanes, sizeof(acc));
    /* The last stripe is never a part of the row, even if n is a multiple of 64. */
    size_t stripes = (n - 1) / TIERCE__STRIPE_BYTES, tail = stripes * TIERCE__STRIPE_BYTES;
    size_t done = streams ? stream_stripes(kernel, acc, to, from, n, next) : 0;
    TIERCE_DASSERT(done <= stripes);
    kernel->run(acc, to, from, done, stripes);
    /* A streamed copy between aligned ends is already complete. */
    if (!streams || n % TIERCE__STRIPE_BYTES != 0 || (uintptr_t)to % TIERCE__STRIPE_BYTES != 0)
        memcpy(to + tail, from + tail, n - tail);
    return finish_sum(acc, from + n - TIERCE__STRIPE_BYTES, n);
}

void tierce__copy_fence(const struct tierce__copy_kernel *kernel, enum tierce__store_hint hint)
{
    if (hint == TIERCE__STORE_STREAM && kernel->fence != NULL)
        kernel->fence();
}

uint64_t tierce__copy_sum(void *dst, const void *src, size_t n, enum tierce__store_hint hint)
{
    const struct tierce__copy_kernel *kernel = tierce__copy_kernel();
    uint64_t sum = tierce__copy_sum_unfenced(kernel, dst, src, n, hint, NULL);
    tierce__copy_fence(kernel, hint);
    return sum;
}

uint64_t tierce__sum(const void *src, size_t n)
{
    const uint8_t *from = src;
    if (n <= SHORT_BYTES_MAX)
        return XXH3_64bits(src, n);
    uint64_t acc[TIERCE__LANES];
    memcpy(acc, start_lanes, sizeof(acc));
    tierce__copy_kernel()->run(acc, NULL, from, 0, (n - 1) / TIERCE__STRIPE_BYTES);
    return finish_sum(acc, from + n - TIERCE__STRIPE_BYTES, n);
}

/* ---- zeroes ---------------------------------------------------------------------------------- */

/*
 * Stripe k of a block has lane i keyed by word k + i of the secret. For zeroes, a lane adds only
 * the product of that word's halves, so a row of stripes adds a range of products. These are the
 * prefix sums of the products.
 */
enum { PRODUCTS = TIERCE__SECRET_BYTES / 8 };

static void add_products(uint64_t sums[PRODUCTS + 1])
{
    sums[0] = 0;
    for (unsigned i = 0; i < PRODUCTS; i++) {
        uint64_t word = tierce__load_le64(tierce__secret + 8 * i);
        sums[i + 1] = sums[i] + (word & UINT32_MAX) * (word >> 32);
    }
}

/* Takes the stripes [begin, end), which are zero. */
static void take_zeroes(uint64_t acc[TIERCE__LANES], size_t begin, size_t end)
{
    uint64_t sums[PRODUCTS + 1];
    size_t i = begin;
    add_products(sums);
    while (i < end) {
        size_t stop = tierce__block_end(i, end), from = i % TIERCE__BLOCK_STRIPES;
        for (unsigned lane = 0; lane < TIERCE__LANES; lane++)
            acc[lane] += sums[from + (stop - i) + lane] - sums[from + lane];
        if (stop % TIERCE__BLOCK_STRIPES == 0)
            tierce__scramble(acc);
        i = stop;
    }
}

uint64_t tierce__sum_padded(const uint8_t first[TIERCE__SUM_STRIPE], const void *src, size_t n,
                            size_t total)
{
    TIERCE_DASSERT(n >= TIERCE__STRIPE_BYTES && n % TIERCE__STRIPE_BYTES == 0 &&
                   total > SHORT_BYTES_MAX);
    static const uint8_t zeroes[TIERCE__STRIPE_BYTES];
    const struct tierce__copy_kernel *kernel = tierce__copy_kernel();
    const uint8_t *from = src;
    TIERCE_DASSERT(n <= total && total % TIERCE__STRIPE_BYTES == 0);
    size_t stripes = total / TIERCE__STRIPE_BYTES - 1, full = n / TIERCE__STRIPE_BYTES;
    uint64_t acc[TIERCE__LANES];
    memcpy(acc, start_lanes, sizeof(acc));
    kernel->run(acc, NULL, first, 0, 1);
    kernel->run(acc, NULL, from, 1, full < stripes ? full : stripes);
    take_zeroes(acc, full, stripes);
    return finish_sum(acc, n == total ? from + n - TIERCE__STRIPE_BYTES : zeroes, total);
}
