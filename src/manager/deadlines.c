/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/deadlines.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>

static void place(struct tierce__deadlines *heap, size_t position, struct tierce__deadline *member)
{
    heap->members[position - 1] = member;
    member->position = position;
}

static void rise(struct tierce__deadlines *heap, size_t position)
{
    struct tierce__deadline *member = heap->members[position - 1];
    while (position > 1 && heap->members[position / 2 - 1]->due_us > member->due_us) {
        place(heap, position, heap->members[position / 2 - 1]);
        position /= 2;
    }
    place(heap, position, member);
}

static void sink(struct tierce__deadlines *heap, size_t position)
{
    struct tierce__deadline *member = heap->members[position - 1];
    for (;;) {
        size_t child = position * 2;
        if (child > heap->count)
            break;
        if (child < heap->count && heap->members[child]->due_us < heap->members[child - 1]->due_us)
            child++;
        if (heap->members[child - 1]->due_us >= member->due_us)
            break;
        place(heap, position, heap->members[child - 1]);
        position = child;
    }
    place(heap, position, member);
}

int tierce__deadlines_add(struct tierce__deadlines *heap, struct tierce__deadline *member,
                          int64_t due_us)
{
    TIERCE_ASSERT(member->position == 0);
    if (heap->count == heap->room) {
        size_t room = heap->room == 0 ? 16 : heap->room * 2;
        struct tierce__deadline **grown =
            tierce__realloc(heap->members, room * sizeof(*heap->members));
        if (grown == NULL)
            return -ENOMEM;
        heap->members = grown;
        heap->room = room;
    }
    member->due_us = due_us;
    heap->members[heap->count++] = member;
    rise(heap, heap->count);
    return 0;
}

void tierce__deadlines_hasten(struct tierce__deadlines *heap, struct tierce__deadline *member,
                              int64_t due_us)
{
    TIERCE_ASSERT(member->position > 0 && due_us <= member->due_us);
    member->due_us = due_us;
    rise(heap, member->position);
}

void tierce__deadlines_remove(struct tierce__deadlines *heap, struct tierce__deadline *member)
{
    size_t position = member->position;
    if (position == 0)
        return;
    TIERCE_ASSERT(position <= heap->count && heap->members[position - 1] == member);
    struct tierce__deadline *last = heap->members[--heap->count];
    member->position = 0;
    if (last == member)
        return;
    place(heap, position, last);
    rise(heap, position);
    sink(heap, last->position);
}

struct tierce__deadline *tierce__deadlines_first(const struct tierce__deadlines *heap)
{
    return heap->count > 0 ? heap->members[0] : NULL;
}

void tierce__deadlines_clear(struct tierce__deadlines *heap)
{
    tierce__free(heap->members);
    *heap = (struct tierce__deadlines){0};
}
