/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paged/paged.h"
#include "base/assert.h"

#include <limits.h>

#include "base/bytes.h"
#include "core/paged/paged_private.h"

enum { SCATTER_STREAM_BYTES_MIN = 1 << 20 };

/* Block ids are untrusted, so the last byte of the last block must be an address. */
static bool layer_ok(const struct tierce_paged_layer *layer, uint32_t block_count)
{
    uint64_t span, end;
    if (layer->base == NULL || layer->block_bytes == 0)
        return false;
    if (layer->block_stride < layer->block_bytes)
        return false;
    return tierce__mul_ok(&span, block_count - 1U, layer->block_stride) &&
           tierce__add_ok(&span, span, layer->block_bytes) &&
           tierce__add_ok(&end, span, (uintptr_t)layer->base) && end <= UINTPTR_MAX;
}

static bool frame_ok(const struct tierce_paged *paged)
{
    return paged != NULL &&
           (paged->size == TIERCE__PAGED_BYTES_V1 || paged->size >= sizeof(*paged)) &&
           paged->layers != NULL && paged->layer_count > 0 && paged->block_count > 0;
}

int tierce__paged_check(const struct tierce_paged *paged)
{
    if (!frame_ok(paged) || tierce__paged_device(paged) > TIERCE_DEVICE_CUDA)
        return TIERCE_E_ARGUMENT;
    for (uint32_t l = 0; l < paged->layer_count; l++)
        if (!layer_ok(&paged->layers[l], paged->block_count))
            return TIERCE_E_ARGUMENT;
    return 0;
}

/* A call is checked in full before its first byte moves; checking the layer again is cheap. */
int tierce__paged_check_cells(const struct tierce_paged *paged, uint32_t layer, const int32_t *ids,
                              const struct tierce__cells *cells)
{
    size_t n = cells->count;
    if (n > 0 && (ids == NULL || cells->bytes == NULL || cells->sums == NULL))
        return TIERCE_E_ARGUMENT;
    if (!frame_ok(paged) || layer >= paged->layer_count || n > INT_MAX)
        return TIERCE_E_ARGUMENT;
    if (!layer_ok(&paged->layers[layer], paged->block_count))
        return TIERCE_E_ARGUMENT;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= paged->block_count)
            return TIERCE_E_ARGUMENT;
    return 0;
}

static uint8_t *block_at(const struct tierce_paged_layer *layer, int32_t id)
{
    TIERCE_DASSERT(id >= 0);
    return (uint8_t *)layer->base + (uint64_t)(uint32_t)id * layer->block_stride;
}

/* The address to prefetch after the last source of a call; without a row, the last source itself,
 * which is cached already. */
static const uint8_t *behind(const uint8_t *last, const struct tierce__row *row)
{
    return row != NULL && row->next != NULL ? row->next : last;
}

/* One fence for a row and not one a call: 1.02x on loads of chunks of 1 MiB (Zen 5, 2026-11). */
void tierce__paged_row_end(void)
{
    tierce__copy_fence(tierce__copy_kernel(), TIERCE__STORE_STREAM);
}

int tierce__paged_gather(const struct tierce_paged *paged, uint32_t layer, const int32_t *ids,
                         const struct tierce__cells *cells, const struct tierce__row *row)
{
    if (tierce__paged_check_cells(paged, layer, ids, cells) < 0)
        return TIERCE_E_ARGUMENT;
    size_t n = cells->count;
    const struct tierce__copy_kernel *kernel = tierce__copy_kernel();
    const struct tierce_paged_layer *from = &paged->layers[layer];
    /* Gathered cells go to other tiers by DMA or stay unread for a while, so streaming stores keep
     * them out of the cache. */
    enum tierce__store_hint hint = TIERCE__STORE_STREAM;
    uint8_t *cell = cells->bytes;
    for (size_t i = 0; i < n; i++, cell += from->block_bytes) {
        const uint8_t *block = block_at(from, ids[i]);
        const uint8_t *next = i + 1 < n ? block_at(from, ids[i + 1]) : behind(block, row);
        cells->sums[i] =
            tierce__copy_sum_unfenced(kernel, cell, block, from->block_bytes, hint, next);
    }
    if (row == NULL)
        tierce__copy_fence(kernel, hint);
    return 0;
}

/*
 * The engine reads the blocks soon, but at the end of a large row of calls the caches no longer
 * hold its start. The copy alone is 1.12 (1 MiB) to 1.25 times (16 MiB) as fast streamed. If a core
 * reads all of it immediately, copy and read together are faster with the caches up to 4 MiB: 16.3
 * instead of 13.3 GB/s for 1 MiB, 16.0 instead of 13.5 for 4 MiB, but 12.3 instead of 12.8 for 16
 * MiB. So small rows stay in the caches (cold cells of 128 KiB, Zen 5, 2026-11).
 */
static enum tierce__store_hint scatter_hint(uint64_t call_bytes, uint64_t row_bytes)
{
    uint64_t bytes = row_bytes > call_bytes ? row_bytes : call_bytes;
    return bytes >= SCATTER_STREAM_BYTES_MIN ? TIERCE__STORE_STREAM : TIERCE__STORE_CACHED;
}

int tierce__paged_scatter(const struct tierce_paged *paged, uint32_t layer, const int32_t *ids,
                          const struct tierce__cells *cells, uint8_t *good,
                          const struct tierce__row *row)
{
    if (tierce__paged_check_cells(paged, layer, ids, cells) < 0 ||
        (cells->count > 0 && good == NULL))
        return TIERCE_E_ARGUMENT;
    size_t n = cells->count;
    const struct tierce__copy_kernel *kernel = tierce__copy_kernel();
    const struct tierce_paged_layer *to = &paged->layers[layer];
    enum tierce__store_hint hint =
        scatter_hint((uint64_t)n * to->block_bytes, row != NULL ? row->bytes : 0);
    const uint8_t *cell = cells->bytes;
    int bad = 0;
    for (size_t i = 0; i < n; i++, cell += to->block_bytes) {
        const uint8_t *next = i + 1 < n ? cell + to->block_bytes : behind(cell, row);
        uint64_t sum = tierce__copy_sum_unfenced(kernel, block_at(to, ids[i]), cell,
                                                 to->block_bytes, hint, next);
        if (sum != cells->sums[i]) {
            good[i] = 0;
            bad++;
        }
    }
    TIERCE_DASSERT(bad >= 0 && (size_t)bad <= n);
    if (row == NULL)
        tierce__copy_fence(kernel, hint);
    return bad;
}
