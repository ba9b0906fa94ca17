/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PAGED_PRIVATE_H
#define TIERCE_PAGED_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "core/paged/paged.h"

/*
 * The long path of XXH3-64 (inputs above 240 bytes), as its kernels see it. The input is a row of
 * stripes of 64 bytes; eight 64-bit lanes take a stripe each step, keyed by 64 bytes of the secret
 * that move on by 8 each stripe. After 16 stripes (a block) the secret is used up: the lanes are
 * scrambled and the key starts again. The last 64 bytes are one more stripe with a key of its own,
 * which overlaps the one before; then the lanes are folded to 64 bits.
 */
enum {
    TIERCE__STRIPE_BYTES = TIERCE__SUM_STRIPE,
    TIERCE__BLOCK_STRIPES = 16,
    TIERCE__BLOCK_BYTES = TIERCE__STRIPE_BYTES * TIERCE__BLOCK_STRIPES,
    TIERCE__LANES = 8,
    TIERCE__KEY_STEP = 8,
    TIERCE__SECRET_BYTES = 192,
    TIERCE__SCRAMBLE_KEY = TIERCE__SECRET_BYTES - TIERCE__STRIPE_BYTES,
};

#define TIERCE__PRIME32_1 0x9E3779B1U

/* The default secret of XXH3; aligned so that the key of every 8th stripe is one cache line. */
extern const uint8_t tierce__secret[TIERCE__SECRET_BYTES];

/* Where the loop over stripes pauses next after stripe i: at the end of i's block, or at `end`. */
static inline size_t tierce__block_end(size_t i, size_t end)
{
    size_t stop = (i | (TIERCE__BLOCK_STRIPES - 1)) + 1;
    return stop < end ? stop : end;
}

/* The step at the end of an XXH3 block. */
static inline void tierce__scramble(uint64_t acc[TIERCE__LANES])
{
    const uint8_t *key = tierce__secret + TIERCE__SCRAMBLE_KEY;
    for (unsigned i = 0; i < TIERCE__LANES; i++) {
        acc[i] ^= acc[i] >> 47;
        acc[i] ^= tierce__load_le64(key + 8 * i);
        acc[i] *= TIERCE__PRIME32_1;
    }
}

/*
 * Prefetches the line 2 KiB ahead; it may be past the end of the input, because a prefetch never
 * faults. Only for sums without a copy: 1.1x on scattered cold cells of 128 KiB (27 to 30 GB/s),
 * nothing lost on hot ones. Streamed copies of contiguous sources became slower (0.95), and
 * prefetching the destination of plain stores gained nothing at any distance (Zen 5, 2026-11).
 */
static inline void tierce__prefetch_ahead(const uint8_t *p)
{
    __builtin_prefetch((const void *)((uintptr_t)p + 2048), 0, 3);
}

/* A copy that bypasses the caches (non-temporal stores). */
struct tierce__stream {
    uint8_t *dst;
    const uint8_t *src;
    size_t bytes;
    size_t end;          /* stripes [0, end) are summed */
    size_t copy_end;     /* and [0, copy_end) are copied, from src + shift to dst + shift */
    size_t shift;        /* < 64; makes dst + shift a multiple of 64 */
    const uint8_t *next; /* the address where the row of copies continues to read; NULL: nothing is
                            fetched ahead */
    size_t fetch_from;   /* bytes of src before this offset are not fetched ahead */
};

#define TIERCE__FETCH_AHEAD 4096u

/*
 * Prefetches into the second-level cache the 16 lines that are 4 KiB after stripe i, in the source
 * or where the row of copies continues. The prefetcher of the machine stops at the end of a page
 * and only starts after some misses. The first level has few buffers for outstanding lines, and
 * the streamed stores need them too. Relative to a plain streamed copy, scattering cold cells of
 * 16, 64 and 256 KiB reaches 1.11, 1.15 and 1.15 (with fetches into the first level 0.91 to 1.0,
 * without fetches 1.0), and gathering cells of 16 KiB reaches 1.10. Distances of 2 and 8 KiB, and
 * other orders of fetches and copies, are no better (Intel Xeon with 260 MiB of last-level cache,
 * 2026-11). For Zen 5 see plan_fetches.
 */
static inline void tierce__fetch_block(const struct tierce__stream *s, size_t i)
{
    size_t ahead = i * TIERCE__STRIPE_BYTES + TIERCE__FETCH_AHEAD;
    if (ahead < s->fetch_from)
        return;
    uintptr_t p =
        ahead < s->bytes ? (uintptr_t)s->src + ahead : (uintptr_t)s->next + (ahead - s->bytes);
    for (size_t k = 0; k < TIERCE__BLOCK_BYTES; k += TIERCE__STRIPE_BYTES)
        __builtin_prefetch((const void *)(p + k), 0, 2);
}

/*
 * One implementation of the copy and the sum. The functions take the lanes from `acc` and leave
 * them there. src and dst are the start of the whole copy and stripes are counted from there, so
 * that another call can continue in the middle of a block.
 */
struct tierce__copy_kernel {
    struct tierce__kernel_head head;

    /* Takes the stripes [begin, end) of src, and copies them to dst unless it is NULL. */
    void (*run)(uint64_t acc[TIERCE__LANES], uint8_t *dst, const uint8_t *src, size_t begin,
                size_t end);

    /*
     * Takes and copies stripes as `stream` says; the caller guarantees that the shift bytes after
     * stripe copy_end are accessible in source and destination. The stores are ordered by fence()
     * only. NULL: the machine has no such stores.
     */
    void (*stream)(uint64_t acc[TIERCE__LANES], const struct tierce__stream *stream);

    /* Orders the stores of stream() before later stores of the caller. */
    void (*fence)(void);
};

extern const struct tierce__copy_kernel tierce__copy_portable;
#if defined(__x86_64__)
extern const struct tierce__copy_kernel tierce__copy_avx512;
extern const struct tierce__copy_kernel tierce__copy_avx2;
#endif
#if defined(__aarch64__)
extern const struct tierce__copy_kernel tierce__copy_neon;
#endif

static inline const struct tierce__copy_kernel *tierce__copy_kernel(void)
{
    return (const struct tierce__copy_kernel *)tierce__kernel_in_use(&tierce__copy_kernels);
}

/* tierce__copy_sum without the fence at its end: for a row of copies with one fence. `next` is the
 * source of the next copy if it does not follow this source, else NULL. */
uint64_t tierce__copy_sum_unfenced(const struct tierce__copy_kernel *kernel, void *dst,
                                   const void *src, size_t n, enum tierce__store_hint hint,
                                   const void *next);

/* The fence at the end of a row of unfenced copies with this hint. */
void tierce__copy_fence(const struct tierce__copy_kernel *kernel, enum tierce__store_hint hint);

#endif
