/* SPDX-License-Identifier: Apache-2.0 */
#include "paged/paged.h"

#include <limits.h>

#include "base/bytes.h"
#include "paged/paged_private.h"

/* Block ids come from outside, so the last byte of the last block must be an address. */
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
    return paged != NULL && paged->size >= sizeof(*paged) && paged->layers != NULL &&
           paged->layer_count > 0 && paged->block_count > 0;
}

int tierce__paged_check(const struct tierce_paged *paged)
{
    if (!frame_ok(paged))
        return TIERCE_E_ARGUMENT;
    for (uint32_t l = 0; l < paged->layer_count; l++)
        if (!layer_ok(&paged->layers[l], paged->block_count))
            return TIERCE_E_ARGUMENT;
    return 0;
}

/* All of a call is checked before its first byte moves; the layer is cheap to check again. */
static bool call_ok(const struct tierce_paged *paged, uint32_t layer, const int32_t *ids, size_t n)
{
    if (!frame_ok(paged) || layer >= paged->layer_count || n > INT_MAX)
        return false;
    if (!layer_ok(&paged->layers[layer], paged->block_count))
        return false;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= paged->block_count)
            return false;
    return true;
}

static uint8_t *block_at(const struct tierce_paged_layer *layer, int32_t id)
{
    return (uint8_t *)layer->base + (uint64_t)(uint32_t)id * layer->block_stride;
}

int tierce__paged_gather(const struct tierce_paged *paged, uint32_t layer, const int32_t *ids,
                         size_t n, void *cells, uint64_t *sums)
{
    if (n > 0 && (ids == NULL || cells == NULL || sums == NULL))
        return TIERCE_E_ARGUMENT;
    if (!call_ok(paged, layer, ids, n))
        return TIERCE_E_ARGUMENT;
    const struct tierce__kernel *kernel = tierce__kernel();
    const struct tierce_paged_layer *from = &paged->layers[layer];
    uint8_t *cell = cells;
    for (size_t i = 0; i < n; i++, cell += from->block_bytes)
        sums[i] = tierce__copy_sum_unfenced(kernel, cell, block_at(from, ids[i]), from->block_bytes,
                                            TIERCE__STORE_STREAM);
    tierce__copy_fence(kernel, TIERCE__STORE_STREAM);
    return 0;
}

int tierce__paged_scatter(const struct tierce_paged *paged, uint32_t layer, const int32_t *ids,
                          size_t n, const void *cells, const uint64_t *sums, uint8_t *good)
{
    if (n > 0 && (ids == NULL || cells == NULL || sums == NULL || good == NULL))
        return TIERCE_E_ARGUMENT;
    if (!call_ok(paged, layer, ids, n))
        return TIERCE_E_ARGUMENT;
    const struct tierce__kernel *kernel = tierce__kernel();
    const struct tierce_paged_layer *to = &paged->layers[layer];
    const uint8_t *cell = cells;
    int bad = 0;
    for (size_t i = 0; i < n; i++, cell += to->block_bytes) {
        uint64_t sum = tierce__copy_sum_unfenced(kernel, block_at(to, ids[i]), cell,
                                                 to->block_bytes, TIERCE__STORE_CACHED);
        if (sum != sums[i]) {
            good[i] = 0;
            bad++;
        }
    }
    tierce__copy_fence(kernel, TIERCE__STORE_CACHED);
    return bad;
}
