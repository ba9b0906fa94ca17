/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PAGED_MODULE_H
#define TIERCE_PAGED_MODULE_H

#include <stdbool.h>

#include <tierce/paged.h>

#include "base/kernel_choice.h"

/*
 * Gather and scatter between paged KV and the contiguous cells of a chunk, and the checksums,
 * computed during the copy. The sum of a cell is XXH3-64 with seed 0, bit-equal to libxxhash's
 * XXH3_64bits; the kernels are our own and one is chosen for the machine at first use.
 *
 * Thread: any; the caller orders access to the memory. Does not block, does not allocate.
 */

/* The destination of copied bytes: the caches, or memory directly (non-temporal stores) if they
 * will not be read soon. A hint: small copies always stay in the caches. */
enum tierce__store_hint {
    TIERCE__STORE_CACHED = 0,
    TIERCE__STORE_STREAM = 1,
};

/* Copies n bytes (no overlap, any alignment, n may be 0) and returns the XXH3-64 of them. */
uint64_t tierce__copy_sum(void *dst, const void *src, size_t n, enum tierce__store_hint hint);

/* XXH3-64 of n bytes, by the same kernels without the copy. */
uint64_t tierce__sum(const void *src, size_t n);

#define TIERCE__SUM_STRIPE 64u

/* XXH3-64 of `total` bytes: the 64 of `first`, then bytes 64 to n of src, then zeroes, which are
 * not read. n and total are multiples of 64; 64 <= n <= total; total >= 256. */
uint64_t tierce__sum_padded(const uint8_t first[TIERCE__SUM_STRIPE], const void *src, size_t n,
                            size_t total);

/* For tests and benchmarks. */
extern struct tierce__kernel_choice tierce__copy_kernels;

/* sizeof(struct tierce_paged) of programs that were built when it ended with `block_count`. Such a
 * description describes memory of the host; it has no field `device`. */
#define TIERCE__PAGED_BYTES_V1 24u

static inline enum tierce_device tierce__paged_device(const struct tierce_paged *paged)
{
    return paged->size == TIERCE__PAGED_BYTES_V1 ? TIERCE_DEVICE_HOST : paged->device;
}

/*
 * Checks an untrusted description: sizes, non-NULL bases, strides, counts.
 * Errors: TIERCE_E_ARGUMENT.
 */
TIERCE_MUSTUSE int tierce__paged_check(const struct tierce_paged *paged);

/*
 * A row of gathers or scatters: one call per chunk of a layer. With a row, the copied bytes are not
 * yet ordered before later stores; tierce__paged_row_end orders the bytes of all calls.
 */
struct tierce__row {
    uint64_t bytes;   /* of all calls: rows that are larger than the caches bypass them */
    const void *next; /* where the next call reads first, or NULL; only a hint, need not be valid */
};

/* Ends a row: the copied bytes are visible to a thread that sees a later release store. */
void tierce__paged_row_end(void);

/* Contiguous cells of a chunk in one layer, and the sum of each. */
struct tierce__cells {
    uint8_t *bytes;
    uint64_t *sums;
    size_t count;
};

/* The check that gather and scatter begin with: layer, ids, sizes, buffers. Errors:
 * TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__paged_check_cells(const struct tierce_paged *paged, uint32_t layer,
                                             const int32_t *ids, const struct tierce__cells *cells);

/*
 * Copies blocks ids[0..cells->count) of one layer to cells->bytes and writes the sum of each to
 * cells->sums. `row` NULL: the call stands alone. Errors: TIERCE_E_ARGUMENT (an id or the layer is
 * out of range); then nothing is copied.
 */
TIERCE_MUSTUSE int tierce__paged_gather(const struct tierce_paged *paged, uint32_t layer,
                                        const int32_t *ids, const struct tierce__cells *cells,
                                        const struct tierce__row *row);

/*
 * Copies cells->bytes to blocks ids[0..cells->count) of one layer, verifying each cell against its
 * sum; neither is written. good[i] is set to 0 if the sum differs, and is unchanged otherwise; the
 * bytes of such a block are then in the engine's memory, and the caller must cause it to be
 * computed again. `row` as above. Returns the number of bad cells, or TIERCE_E_ARGUMENT with
 * nothing copied.
 */
TIERCE_MUSTUSE int tierce__paged_scatter(const struct tierce_paged *paged, uint32_t layer,
                                         const int32_t *ids, const struct tierce__cells *cells,
                                         uint8_t *good, const struct tierce__row *row);

#endif
