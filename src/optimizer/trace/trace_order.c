/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/trace_order.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define ORDER_MAGIC 0x4452524fu

#define HELD_BYTES_MAX ((uint64_t)256 << 20)
#define CHUNK_BYTES    ((size_t)256 << 10)
#define NONE           UINT32_MAX

/*
 * Chunks of memory for the arrays of requests, in order of arrival, so memory is written and read
 * sequentially. A chunk is reused when all its requests have been returned.
 */
struct window_chunk {
    struct window_chunk *next; /* of those that are free */
    size_t size, used;
    uint32_t live;
    max_align_t data[];
};

/* A request that waits. */
struct window_slot {
    struct tierce__trace_request request;
    uint64_t sequence; /* of its present place; 0: the slot is free */
    uint32_t next_free;
    struct window_chunk *chunk; /* the chunk of its arrays; NULL: none */
};

/* An entry of the ring or the heap. It is stale if its slot has another sequence. */
struct window_place {
    int64_t time_us;
    uint64_t sequence;
    uint32_t slot;
};

struct places {
    struct window_place *at;
    size_t capacity, count, first; /* first: of the ring */
};

struct tierce__trace_order {
    uint32_t magic;
    uint32_t requests_max;
    uint32_t held; /* slots in use, without the one lent out */
    uint32_t free_slot;
    uint32_t lent; /* the slot whose request was given out last */
    struct window_slot *slots;
    uint32_t slot_count;
    struct window_chunk *chunk;      /* that is being filled */
    struct window_chunk *free_chunk; /* each of CHUNK_BYTES */
    uint64_t held_bytes;             /* of all chunks but the free ones */
    uint64_t sequence;
    struct tierce__order_ticket pushed; /* the last one with a settled time */
    struct places ring;                 /* times never fall */
    struct places heap;                 /* the earliest on top */
    uint64_t stale;                     /* number of stale entries */
    int64_t latest_us;                  /* of the requests received */
    int64_t last_us;                    /* of the requests returned */
    uint64_t reordered;
};

int tierce__order_create(struct tierce__trace_order **out, uint32_t requests_max)
{
    struct tierce__trace_order *order = tierce__calloc(1, sizeof(*order));
    TIERCE_ASSERT(requests_max > 0);
    if (order == NULL)
        return -ENOMEM;
    order->magic = ORDER_MAGIC;
    order->requests_max = requests_max;
    order->free_slot = order->lent = NONE;
    order->latest_us = order->last_us = INT64_MIN;
    *out = order;
    return 0;
}

/* ---- slots ---------------------------------------------------------------------------------- */

static int add_slots(struct tierce__trace_order *order)
{
    uint64_t count = order->slot_count > 0 ? 2ULL * order->slot_count : 64;
    if (count >= NONE)
        return -ENOMEM;
    struct window_slot *slots = tierce__realloc(order->slots, (size_t)count * sizeof(*slots));
    if (slots == NULL)
        return -ENOMEM;
    order->slots = slots;
    for (uint32_t i = (uint32_t)count; i-- > order->slot_count;) {
        slots[i] = (struct window_slot){.next_free = order->free_slot};
        order->free_slot = i;
    }
    order->slot_count = (uint32_t)count;
    return 0;
}

/* Keeps an empty chunk for reuse, unless it is larger than the others. */
static void release_chunk(struct tierce__trace_order *order, struct window_chunk *chunk)
{
    TIERCE_DASSERT(chunk->live == 0);
    order->held_bytes -= chunk->size;
    if (chunk->size > CHUNK_BYTES) {
        tierce__free(chunk);
        return;
    }
    chunk->next = order->free_chunk;
    order->free_chunk = chunk;
}

static struct window_chunk *take_chunk(struct tierce__trace_order *order, size_t size)
{
    struct window_chunk *chunk = order->free_chunk;
    if (size <= CHUNK_BYTES && chunk != NULL) {
        order->free_chunk = chunk->next;
    } else {
        size = size > CHUNK_BYTES ? size : CHUNK_BYTES;
        chunk = tierce__alloc(sizeof(*chunk) + size);
        if (chunk == NULL)
            return NULL;
        chunk->size = size;
    }
    chunk->used = 0;
    chunk->live = 0;
    order->held_bytes += chunk->size;
    return chunk;
}

/* Room for the arrays of a request, at a multiple of 8; NULL for no memory. */
static void *take_room(struct tierce__trace_order *order, struct window_slot *slot, size_t bytes)
{
    size_t rounded = (bytes + 7) & ~(size_t)7;
    struct window_chunk *chunk = order->chunk;
    if (chunk == NULL || chunk->size - chunk->used < rounded) {
        chunk = take_chunk(order, rounded);
        if (chunk == NULL)
            return NULL;
        if (order->chunk != NULL && order->chunk->live == 0)
            release_chunk(order, order->chunk);
        order->chunk = chunk;
    }
    void *room = (char *)chunk->data + chunk->used;
    chunk->used += rounded;
    chunk->live++;
    slot->chunk = chunk;
    return room;
}

static void leave_chunk(struct tierce__trace_order *order, struct window_chunk *chunk)
{
    if (chunk != NULL && --chunk->live == 0 && chunk != order->chunk)
        release_chunk(order, chunk);
}

static void release_slot(struct tierce__trace_order *order, uint32_t index)
{
    struct window_slot *slot = &order->slots[index];
    leave_chunk(order, slot->chunk);
    slot->chunk = NULL;
    slot->sequence = 0;
    slot->next_free = order->free_slot;
    order->free_slot = index;
}

static size_t bytes_of(const struct tierce__trace_request *request)
{
    size_t each = sizeof(uint64_t) + (request->bytes != NULL ? sizeof(uint64_t) : 0) +
                  (request->internal != NULL ? 1 : 0);
    return request->count * each;
}

/* Copies the request with its arrays: blocks, then bytes, then internal. */
static int fill_slot(struct tierce__trace_order *order, struct window_slot *slot,
                     const struct tierce__trace_request *request)
{
    size_t count = request->count;
    slot->request = *request;
    if (count == 0) {
        slot->request.blocks = slot->request.bytes = NULL;
        slot->request.internal = NULL;
        return 0;
    }
    uint64_t *blocks = take_room(order, slot, bytes_of(request));
    if (blocks == NULL)
        return -ENOMEM;
    uint64_t *bytes = blocks + count;
    uint8_t *internal = (uint8_t *)(request->bytes != NULL ? bytes + count : bytes);
    memcpy(blocks, request->blocks, count * sizeof(*blocks));
    slot->request.blocks = blocks;
    if (request->bytes != NULL) {
        memcpy(bytes, request->bytes, count * sizeof(*bytes));
        slot->request.bytes = bytes;
    }
    if (request->internal != NULL) {
        memcpy(internal, request->internal, count);
        slot->request.internal = internal;
    }
    return 0;
}

/* ---- ring and heap -------------------------------------------------------------------------- */

static bool is_before(const struct window_place *a, const struct window_place *b)
{
    return a->time_us != b->time_us ? a->time_us < b->time_us : a->sequence < b->sequence;
}

static bool is_stale(const struct tierce__trace_order *order, const struct window_place *place)
{
    return order->slots[place->slot].sequence != place->sequence;
}

/* Room for one more; the ring is laid out from its first place on. */
static int reserve(struct places *places)
{
    if (places->count < places->capacity)
        return 0;
    size_t capacity = places->capacity > 0 ? places->capacity * 2 : 64;
    struct window_place *at = tierce__alloc(capacity * sizeof(*at));
    if (at == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < places->count; i++)
        at[i] = places->at[(places->first + i) % places->capacity];
    tierce__free(places->at);
    *places = (struct places){.at = at, .capacity = capacity, .count = places->count};
    return 0;
}

static struct window_place *ring_at(const struct places *ring, size_t index)
{
    /* A power of two. */
    return &ring->at[(ring->first + index) & (ring->capacity - 1)];
}

static void heap_push(struct places *heap, struct window_place place)
{
    size_t at = heap->count++;
    while (at > 0 && is_before(&place, &heap->at[(at - 1) / 2])) {
        heap->at[at] = heap->at[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->at[at] = place;
}

static void heap_sift(struct places *heap, size_t at, struct window_place place)
{
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && is_before(&heap->at[child + 1], &heap->at[child]))
            child++;
        if (!is_before(&heap->at[child], &place))
            break;
        heap->at[at] = heap->at[child];
        at = child;
    }
    heap->at[at] = place;
}

static void heap_drop(struct places *heap)
{
    struct window_place last = heap->at[--heap->count];
    if (heap->count > 0)
        heap_sift(heap, 0, last);
}

/* Removes stale entries when they are as many as the others. */
static void sweep(struct tierce__trace_order *order)
{
    if (order->stale <= order->held + 64ULL)
        return;
    size_t kept = 0;
    for (size_t i = 0; i < order->ring.count; i++) {
        struct window_place place = *ring_at(&order->ring, i);
        if (!is_stale(order, &place))
            *ring_at(&order->ring, kept++) = place;
    }
    order->ring.count = kept;
    kept = 0;
    for (size_t i = 0; i < order->heap.count; i++) {
        if (!is_stale(order, &order->heap.at[i]))
            order->heap.at[kept++] = order->heap.at[i];
    }
    order->heap.count = kept;
    for (size_t i = kept / 2; i-- > 0;)
        heap_sift(&order->heap, i, order->heap.at[i]);
    order->stale = 0;
}

/* Adds the entry of a slot. Room was reserved in both. */
static void put_place(struct tierce__trace_order *order, uint32_t index, bool may_move)
{
    struct window_slot *slot = &order->slots[index];
    struct places *ring = &order->ring;
    struct window_place place = {slot->request.time_us, ++order->sequence, index};
    slot->sequence = place.sequence;
    /* A request whose time may change would block the following ones in the ring. */
    if (may_move || (ring->count > 0 && place.time_us < ring_at(ring, ring->count - 1)->time_us)) {
        heap_push(&order->heap, place);
    } else {
        ring->count++;
        *ring_at(ring, ring->count - 1) = place;
    }
}

/* ---- entry functions ------------------------------------------------------------------------ */

void tierce__order_destroy(struct tierce__trace_order *order)
{
    if (order == NULL)
        return;
    TIERCE_CHECK_MAGIC(order, ORDER_MAGIC);
    order->free_slot = NONE;
    for (uint32_t i = 0; i < order->slot_count; i++)
        release_slot(order, i);
    if (order->chunk != NULL)
        release_chunk(order, order->chunk);
    while (order->free_chunk != NULL) {
        struct window_chunk *chunk = order->free_chunk;
        order->free_chunk = chunk->next;
        tierce__free(chunk);
    }
    tierce__free(order->slots);
    tierce__free(order->ring.at);
    tierce__free(order->heap.at);
    order->magic = 0;
    tierce__free(order);
}

static int reserve_places(struct tierce__trace_order *order)
{
    sweep(order);
    int rc = reserve(&order->ring);
    return rc < 0 ? rc : reserve(&order->heap);
}

static void note_time(struct tierce__trace_order *order, int64_t time_us)
{
    if (time_us < order->latest_us)
        order->reordered++;
    else
        order->latest_us = time_us;
}

int tierce__order_push(struct tierce__trace_order *order,
                       const struct tierce__trace_request *request,
                       struct tierce__order_ticket *ticket)
{
    TIERCE_CHECK_MAGIC(order, ORDER_MAGIC);
    if (request->time_us < order->last_us)
        return TIERCE_E_LIMIT;
    int rc = reserve_places(order);
    if (rc == 0 && order->free_slot == NONE)
        rc = add_slots(order);
    if (rc < 0)
        return rc;
    uint32_t index = order->free_slot;
    struct window_slot *slot = &order->slots[index];
    rc = fill_slot(order, slot, request);
    if (rc < 0)
        return rc;
    order->free_slot = slot->next_free;
    order->held++;
    put_place(order, index, ticket != NULL);
    if (ticket != NULL) {
        *ticket = (struct tierce__order_ticket){slot->sequence, index};
        return 0;
    }
    order->pushed = (struct tierce__order_ticket){slot->sequence, index};
    note_time(order, request->time_us);
    return 0;
}

struct tierce__order_ticket tierce__order_pushed(const struct tierce__trace_order *order)
{
    TIERCE_CHECK_MAGIC(order, ORDER_MAGIC);
    return order->pushed;
}

const struct tierce__trace_request *tierce__order_look(const struct tierce__trace_order *order,
                                                       struct tierce__order_ticket ticket)
{
    return tierce__order_waits(order, ticket) ? &order->slots[ticket.slot].request : NULL;
}

int tierce__order_replace(struct tierce__trace_order *order, struct tierce__order_ticket ticket,
                          const struct tierce__trace_request *request)
{
    if (!tierce__order_waits(order, ticket))
        return TIERCE_E_MISS;
    struct window_slot *slot = &order->slots[ticket.slot], before = *slot;
    slot->chunk = NULL;
    int rc = fill_slot(order, slot, request);
    if (rc < 0) {
        *slot = before;
        return rc;
    }
    slot->request.time_us = before.request.time_us;
    slot->request.line = before.request.line;
    leave_chunk(order, before.chunk);
    return 0;
}

int tierce__order_retime(struct tierce__trace_order *order, struct tierce__order_ticket ticket,
                         int64_t time_us)
{
    TIERCE_CHECK_MAGIC(order, ORDER_MAGIC);
    if (!tierce__order_waits(order, ticket))
        return TIERCE_E_MISS;
    if (time_us < order->last_us)
        return TIERCE_E_LIMIT;
    int rc = reserve_places(order);
    if (rc < 0)
        return rc;
    order->slots[ticket.slot].request.time_us = time_us;
    put_place(order, ticket.slot, false);
    order->stale++;
    note_time(order, time_us);
    return 0;
}

bool tierce__order_waits(const struct tierce__trace_order *order,
                         struct tierce__order_ticket ticket)
{
    TIERCE_CHECK_MAGIC(order, ORDER_MAGIC);
    return ticket.slot < order->slot_count && ticket.slot != order->lent && ticket.sequence != 0 &&
           order->slots[ticket.slot].sequence == ticket.sequence;
}

bool tierce__order_full(const struct tierce__trace_order *order)
{
    TIERCE_CHECK_MAGIC(order, ORDER_MAGIC);
    return order->held >= order->requests_max ||
           (order->held > 0 && order->held_bytes >= HELD_BYTES_MAX);
}

/* Drops stale entries from the front of the ring and the top of the heap. */
static void drop_stale(struct tierce__trace_order *order)
{
    struct places *ring = &order->ring, *heap = &order->heap;
    while (ring->count > 0 && is_stale(order, ring_at(ring, 0))) {
        ring->first = (ring->first + 1) & (ring->capacity - 1);
        ring->count--;
        order->stale--;
    }
    while (heap->count > 0 && is_stale(order, &heap->at[0])) {
        heap_drop(heap);
        order->stale--;
    }
}

bool tierce__order_pop(struct tierce__trace_order *order, struct tierce__trace_request *request)
{
    TIERCE_CHECK_MAGIC(order, ORDER_MAGIC);
    struct places *ring = &order->ring, *heap = &order->heap;
    if (order->lent != NONE)
        release_slot(order, order->lent);
    order->lent = NONE;
    drop_stale(order);
    if (order->held == 0)
        return false;
    struct window_place place;
    if (heap->count > 0 && (ring->count == 0 || is_before(&heap->at[0], ring_at(ring, 0)))) {
        place = heap->at[0];
        heap_drop(heap);
    } else {
        place = *ring_at(ring, 0);
        ring->first = (ring->first + 1) & (ring->capacity - 1);
        ring->count--;
    }
    order->held--;
    order->lent = place.slot;
    order->last_us = place.time_us;
    *request = order->slots[place.slot].request;
    return true;
}

uint64_t tierce__order_reordered(const struct tierce__trace_order *order)
{
    TIERCE_CHECK_MAGIC(order, ORDER_MAGIC);
    return order->reordered;
}

int64_t tierce__order_last(const struct tierce__trace_order *order)
{
    TIERCE_CHECK_MAGIC(order, ORDER_MAGIC);
    return order->last_us;
}
