/* SPDX-License-Identifier: Apache-2.0 */
#include "base/threads/deadlines.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>

void tierce__deadlines_fini(struct tierce__deadlines *heap)
{
    tierce__free(heap->items);
    *heap = (struct tierce__deadlines){0};
}

static void put(struct tierce__deadlines *heap, size_t index, struct tierce__deadline *deadline)
{
    TIERCE_DASSERT(index < heap->count);
    heap->items[index] = deadline;
    deadline->place = index + 1;
}

static void sift_up(struct tierce__deadlines *heap, size_t index, struct tierce__deadline *deadline)
{
    while (index > 0) {
        size_t parent = (index - 1) / 2;
        if (heap->items[parent]->at <= deadline->at)
            break;
        put(heap, index, heap->items[parent]);
        index = parent;
    }
    put(heap, index, deadline);
}

static void sift_down(struct tierce__deadlines *heap, size_t index,
                      struct tierce__deadline *deadline)
{
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && heap->items[child + 1]->at < heap->items[child]->at)
            child++;
        if (heap->items[child]->at >= deadline->at)
            break;
        put(heap, index, heap->items[child]);
        index = child;
    }
    put(heap, index, deadline);
}

int tierce__deadlines_reserve(struct tierce__deadlines *heap, size_t count)
{
    return TIERCE__GROW(heap->items, heap->capacity, count, 64);
}

int tierce__deadline_set(struct tierce__deadlines *heap, struct tierce__deadline *deadline,
                         uint64_t at)
{
    tierce__deadline_unset(heap, deadline);
    int rc = tierce__deadlines_reserve(heap, heap->count + 1);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(heap->count < heap->capacity);
    deadline->at = at;
    sift_up(heap, heap->count++, deadline);
    TIERCE_DASSERT(deadline->place > 0 && deadline->place <= heap->count);
    TIERCE_DASSERT(heap->items[0]->at <= at);
    return 0;
}

void tierce__deadline_unset(struct tierce__deadlines *heap, struct tierce__deadline *deadline)
{
    if (deadline->place == 0)
        return;
    size_t index = deadline->place - 1;
    TIERCE_ASSERT(index < heap->count && heap->items[index] == deadline);
    deadline->place = 0;
    struct tierce__deadline *last = heap->items[--heap->count];
    if (last == deadline)
        return;
    if (index > 0 && heap->items[(index - 1) / 2]->at > last->at)
        sift_up(heap, index, last);
    else
        sift_down(heap, index, last);
}

struct tierce__deadline *tierce__deadlines_first(const struct tierce__deadlines *heap)
{
    return heap->count > 0 ? heap->items[0] : NULL;
}

/* Searches a member and those below it, which are not earlier. */
static struct tierce__deadline *find_due(const struct tierce__deadlines *heap, size_t index,
                                         uint64_t now,
                                         bool (*accepts)(struct tierce__deadline *deadline))
{
    if (index >= heap->count || heap->items[index]->at > now)
        return NULL;
    struct tierce__deadline *found = heap->items[index];
    TIERCE_DASSERT(found->place == index + 1);
    if (accepts(found))
        return found;
    found = find_due(heap, 2 * index + 1, now, accepts);
    return found != NULL ? found : find_due(heap, 2 * index + 2, now, accepts);
}

struct tierce__deadline *
tierce__deadlines_find_due(const struct tierce__deadlines *heap, uint64_t now,
                           bool (*accepts)(struct tierce__deadline *deadline))
{
    return find_due(heap, 0, now, accepts);
}

uint64_t tierce__deadlines_next(const struct tierce__deadlines *heap)
{
    return heap->count > 0 ? heap->items[0]->at : TIERCE__DEADLINE_NEVER;
}

void tierce__deadlines_expire(struct tierce__deadlines *heap, uint64_t now)
{
    while (heap->count > 0 && heap->items[0]->at <= now) {
        struct tierce__deadline *deadline = heap->items[0];
        tierce__deadline_unset(heap, deadline);
        TIERCE_DASSERT(deadline->place == 0);
        deadline->expired(deadline);
    }
}
