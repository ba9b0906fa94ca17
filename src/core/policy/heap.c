/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy/heap.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>

int tierce__heap_init(struct tierce__heap *heap, uint32_t slot_count)
{
    TIERCE_DASSERT(slot_count >= 1);
    *heap = (struct tierce__heap){
        .items = tierce__calloc(slot_count, sizeof(*heap->items)),
        .places = tierce__calloc(slot_count, sizeof(*heap->places)),
    };
    return heap->items == NULL || heap->places == NULL ? -ENOMEM : 0;
}

void tierce__heap_fini(struct tierce__heap *heap)
{
    tierce__free(heap->places);
    tierce__free(heap->items);
    *heap = (struct tierce__heap){0};
}

static void put(struct tierce__heap *heap, uint32_t place, struct tierce__heap_item item)
{
    TIERCE_DASSERT(place < heap->count);
    heap->items[place] = item;
    heap->places[item.slot] = place;
}

static void sift_up(struct tierce__heap *heap, uint32_t place, struct tierce__heap_item item)
{
    TIERCE_DASSERT(place < heap->count);
    while (place > 0) {
        uint32_t above = (place - 1) / 2;
        if (!tierce__rank_is_lower(&item.rank, &heap->items[above].rank))
            break;
        put(heap, place, heap->items[above]);
        place = above;
    }
    put(heap, place, item);
}

static void sift_down(struct tierce__heap *heap, uint32_t place, struct tierce__heap_item item)
{
    TIERCE_DASSERT(place < heap->count);
    for (;;) {
        uint64_t below = (uint64_t)place * 2 + 1;
        if (below >= heap->count)
            break;
        if (below + 1 < heap->count &&
            tierce__rank_is_lower(&heap->items[below + 1].rank, &heap->items[below].rank))
            below++;
        if (!tierce__rank_is_lower(&heap->items[below].rank, &item.rank))
            break;
        put(heap, place, heap->items[below]);
        place = (uint32_t)below;
    }
    put(heap, place, item);
}

void tierce__heap_insert(struct tierce__heap *heap, uint32_t slot, struct tierce__rank rank)
{
    TIERCE_DASSERT(heap->places[slot] >= heap->count ||
                   heap->items[heap->places[slot]].slot != slot);
    sift_up(heap, heap->count++, (struct tierce__heap_item){.rank = rank, .slot = slot});
}

void tierce__heap_remove(struct tierce__heap *heap, uint32_t slot)
{
    uint32_t place = heap->places[slot];
    TIERCE_ASSERT(place < heap->count && heap->items[place].slot == slot);
    struct tierce__heap_item gone = heap->items[place], last = heap->items[--heap->count];
    if (place == heap->count)
        return;
    if (tierce__rank_is_lower(&last.rank, &gone.rank))
        sift_up(heap, place, last);
    else
        sift_down(heap, place, last);
}
