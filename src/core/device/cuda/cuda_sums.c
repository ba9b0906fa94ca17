/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_sums.h"

#include <string.h>

#include "base/assert.h"

void tierce__cuda_sums_init(struct tierce__cuda_sums *sums, void *memory)
{
    TIERCE_ASSERT(memory != NULL);
    tierce__lock_init(&sums->lock, TIERCE__LOCK_CUDA_SUMS);
    sums->memory = memory;
    sums->free_count = TIERCE__SUMS_SLOTS;
    for (uint32_t i = 0; i < TIERCE__SUMS_SLOTS; i++)
        sums->free[i] = TIERCE__SUMS_SLOTS - 1 - i;
}

void tierce__cuda_sums_fini(struct tierce__cuda_sums *sums)
{
    TIERCE_ASSERT(sums->free_count == TIERCE__SUMS_SLOTS);
    tierce__lock_fini(&sums->lock);
}

bool tierce__cuda_sums_take(struct tierce__cuda_sums *sums, uint32_t *slots, size_t count)
{
    tierce__lock_take(&sums->lock);
    bool enough = count <= sums->free_count;
    if (enough) {
        sums->free_count -= (uint32_t)count;
        memcpy(slots, sums->free + sums->free_count, count * sizeof(*slots));
    }
    tierce__lock_drop(&sums->lock);
    return enough;
}

void tierce__cuda_sums_return(struct tierce__cuda_sums *sums, const uint32_t *slots, size_t count)
{
    tierce__lock_take(&sums->lock);
    TIERCE_ASSERT(count <= TIERCE__SUMS_SLOTS - sums->free_count);
    memcpy(sums->free + sums->free_count, slots, count * sizeof(*slots));
    sums->free_count += (uint32_t)count;
    tierce__lock_drop(&sums->lock);
}

uint64_t *tierce__cuda_sum_of(const struct tierce__cuda_event *event, size_t cell)
{
    size_t slot = cell / TIERCE__LAUNCH_CELLS;
    TIERCE_DASSERT(event->sums != NULL && slot < event->slot_count);
    return event->sums->memory + (size_t)event->slots[slot] * TIERCE__LAUNCH_CELLS +
           cell % TIERCE__LAUNCH_CELLS;
}
