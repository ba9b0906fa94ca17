/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/ghost_ring.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

enum { CELL_KEYS = 6 };

struct ring_cell {
    /* The position p of its next filler: free. p + 1: filled. Stored with release, loaded with
     * acquire: the other members belong to the thread whose turn it is. */
    _Atomic uint64_t turn;
    uint32_t source;
    uint32_t count_kind; /* keys of the whole record << 2 | kind: in its first cell */
    uint64_t keys[CELL_KEYS];
};
_Static_assert(sizeof(struct ring_cell) == 64, "a cell is a cache line");

struct tierce__ghost_ring {
    uint64_t mask;
    uint64_t *keys; /* [key_room] of the record popped last */
    size_t key_room;
    uint64_t head; /* the next cell to be read: the reader's alone */
    struct ring_cell *cells;
    _Alignas(64) _Atomic uint64_t tail; /* the next cell to be claimed */
};

int tierce__ghost_ring_create(struct tierce__ghost_ring **out, uint32_t cells)
{
    TIERCE_ASSERT(cells >= 2 && (cells & (cells - 1)) == 0);
    struct tierce__ghost_ring *ring = tierce__alloc_aligned(64, sizeof(*ring));
    if (ring == NULL)
        return -ENOMEM;
    memset(ring, 0, sizeof(*ring));
    ring->cells = tierce__alloc_aligned(64, cells * sizeof(*ring->cells));
    if (ring->cells == NULL) {
        tierce__ghost_ring_destroy(ring);
        return -ENOMEM;
    }
    memset(ring->cells, 0, cells * sizeof(*ring->cells));
    ring->mask = cells - 1;
    for (uint32_t i = 0; i < cells; i++)
        atomic_init(&ring->cells[i].turn, i);
    *out = ring;
    return 0;
}

void tierce__ghost_ring_destroy(struct tierce__ghost_ring *ring)
{
    if (ring == NULL)
        return;
    tierce__free(ring->keys);
    tierce__free(ring->cells);
    tierce__free(ring);
}

static struct ring_cell *cell_at(const struct tierce__ghost_ring *ring, uint64_t position)
{
    return &ring->cells[position & ring->mask];
}

static uint64_t turn_at(const struct tierce__ghost_ring *ring, uint64_t position)
{
    return atomic_load_explicit(&cell_at(ring, position)->turn, memory_order_acquire);
}

static uint64_t cells_of(uint64_t keys)
{
    TIERCE_DASSERT(keys > 0);
    return (keys + CELL_KEYS - 1) / CELL_KEYS;
}

/* Claims cells; false: there are not enough. */
static bool claim(struct tierce__ghost_ring *ring, uint64_t cells, uint64_t *first)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    for (;;) {
        uint64_t turn = turn_at(ring, tail + cells - 1);
        if (turn == tail + cells - 1) {
            if (atomic_compare_exchange_weak_explicit(&ring->tail, &tail, tail + cells,
                                                      memory_order_relaxed, memory_order_relaxed))
                break;
        } else if ((int64_t)(turn - (tail + cells - 1)) < 0) {
            return false;
        } else {
            tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
        }
    }
    *first = tail;
    return true;
}

bool tierce__ghost_ring_push(struct tierce__ghost_ring *ring,
                             const struct tierce__ghost_record *record, const uint64_t *keys)
{
    TIERCE_DASSERT(record->count > 0 && record->count <= UINT32_MAX >> 2);
    uint64_t cells = cells_of(record->count), first;
    if (cells > (ring->mask + 1) / 2 || !claim(ring, cells, &first))
        return false;
    for (uint64_t i = 0; i < cells; i++) {
        struct ring_cell *cell = cell_at(ring, first + i);
        size_t done = i * CELL_KEYS, left = record->count - done;
        TIERCE_DASSERT(atomic_load_explicit(&cell->turn, memory_order_relaxed) == first + i);
        cell->source = record->source;
        cell->count_kind = record->count << 2 | (uint32_t)record->kind;
        memcpy(cell->keys, keys + done, (left < CELL_KEYS ? left : CELL_KEYS) * sizeof(*keys));
        atomic_store_explicit(&cell->turn, first + i + 1, memory_order_release);
    }
    return true;
}

/* Copies the keys out of the record's cells and frees them, in order. */
static void take(struct tierce__ghost_ring *ring, size_t count)
{
    TIERCE_DASSERT(count <= ring->key_room);
    for (size_t done = 0; done < count; done += CELL_KEYS) {
        struct ring_cell *cell = cell_at(ring, ring->head);
        size_t left = count - done;
        memcpy(ring->keys + done, cell->keys,
               (left < CELL_KEYS ? left : CELL_KEYS) * sizeof(*ring->keys));
        atomic_store_explicit(&cell->turn, ring->head + ring->mask + 1, memory_order_release);
        ring->head++;
    }
}

int tierce__ghost_ring_pop(struct tierce__ghost_ring *ring, struct tierce__ghost_record *out,
                           const uint64_t **keys)
{
    if (turn_at(ring, ring->head) != ring->head + 1)
        return 0;
    const struct ring_cell *cell = cell_at(ring, ring->head);
    struct tierce__ghost_record record = {
        .source = cell->source,
        .kind = (enum tierce__ghost_kind)(cell->count_kind & 3),
        .count = cell->count_kind >> 2,
    };
    uint64_t last = ring->head + cells_of(record.count) - 1;
    if (turn_at(ring, last) != last + 1)
        return 0; /* one thread fills them in order, so the others are filled if the last is */
    if (TIERCE__GROW(ring->keys, ring->key_room, record.count, 64) < 0)
        return -ENOMEM;
    take(ring, record.count);
    TIERCE_DASSERT(ring->head == last + 1);
    *out = record;
    *keys = ring->keys;
    return 1;
}

uint64_t tierce__ghost_ring_position(const struct tierce__ghost_ring *ring)
{
    return atomic_load_explicit(&ring->tail, memory_order_relaxed);
}

bool tierce__ghost_ring_passed(const struct tierce__ghost_ring *ring, uint64_t position)
{
    return (int64_t)(ring->head - position) >= 0;
}
