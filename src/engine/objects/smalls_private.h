/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_SMALLS_PRIVATE_H
#define TIERCE_ENGINE_SMALLS_PRIVATE_H

#include <stdatomic.h>

#include "base/assert.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/map.h"
#include "engine/objects/smalls.h"

/*
 * Shared by the files of small values: smalls.c has the calls, smalls_pages.c pages, classes and
 * eviction, smalls_index.c the index. A partition's lock protects all of the partition.
 */

#define TIERCE__SMALLS_CLASSES    64u
#define TIERCE__SMALLS_PARTITIONS 16u
#define TIERCE__SMALLS_SLOT_BITS  10u /* of a place: slots of a page */
#define TIERCE__SMALLS_SLOTS_MAX  (1u << TIERCE__SMALLS_SLOT_BITS)
#define TIERCE__SMALLS_NOWHERE    UINT32_MAX

/* A value in its slot: this, name, note, value. Clients of a node can write to pages, so all data
 * in a slot may be damaged, and may change between two reads: only lengths that tierce__small_read
 * has copied and checked lead to bytes. */
struct tierce__small_record {
    uint64_t sum; /* of all fields and bytes that follow */
    uint64_t hash;
    uint64_t expires_ms;
    uint32_t ns;
    uint32_t value_bytes;
    uint16_t name_bytes;
    uint16_t note_bytes;
    struct tierce__small_coming coming;
};

enum { TIERCE__SMALL_FREE = 0, TIERCE__SMALL_LIVE = 1, TIERCE__SMALL_USED = 2 };

struct tierce__small_page {
    struct tierce__list node;      /* in its class, in the order of the hand */
    struct tierce__list free_node; /* in its class, while it has free slots */
    struct tierce__buf *buf;
    uint32_t number, generation, size_class;
    uint32_t slots, free_count, free_first; /* next[i]: the free slot after free slot i */
    uint64_t touched;                       /* tierce__smalls.adds at the last touch */
    bool is_leaving;                        /* empty and about to be freed: no slot may be taken */
    uint8_t *marks;
    uint16_t *next;
};

struct tierce__small_class {
    uint32_t slot_bytes, slots;
    uint32_t page_bytes;
    struct tierce__list pages, free_pages;
    struct tierce__small_page *hand_page; /* NULL: at the first one */
    uint32_t hand;
    uint64_t debt; /* values to evict from the class before it requests another page */
};

struct tierce__small_partition {
    struct tierce__lock lock; /* SMALLS */
    struct tierce__small_class classes[TIERCE__SMALLS_CLASSES];
    struct tierce__small_page **pages; /* by number; NULL: none */
    uint32_t page_room, page_count;    /* all used numbers are below page_count */
    uint32_t *free_numbers; /* [page_room] a stack: those below page_count without a page */
    uint32_t free_number_count;
    uint32_t generation;
    struct tierce__numbers table; /* places (page << SLOT_BITS | slot) by half of the hash */
    uint64_t value_bytes, evicted_values, page_bytes, live_pages;
};

struct tierce__smalls {
    struct tierce__tier *memory;
    struct tierce__pool *pool;
    const _Atomic uint64_t *walks; /* sequentially consistent, as the buffers' `since` */
    uint64_t seed;
    uint32_t partition_count, class_count;
    uint32_t record_max;
    _Atomic uint64_t adds; /* relaxed: pages added so far */
    struct tierce__small_partition partitions[TIERCE__SMALLS_PARTITIONS];
};

static inline struct tierce__small_record *tierce__small_at(const struct tierce__small_partition *p,
                                                            uint32_t place)
{
    const struct tierce__small_page *page = p->pages[place >> TIERCE__SMALLS_SLOT_BITS];
    TIERCE_DASSERT(place >> TIERCE__SMALLS_SLOT_BITS < p->page_count);
    uint32_t slot = place & (TIERCE__SMALLS_SLOTS_MAX - 1);
    TIERCE_DASSERT(slot < page->slots);
    return (struct tierce__small_record *)(void *)(page->buf->data +
                                                   (size_t)slot *
                                                       p->classes[page->size_class].slot_bytes);
}

/* Copies the header of the value at a place. False: its lengths exceed the slot. */
static inline bool tierce__small_read(struct tierce__small_record *out,
                                      const struct tierce__small_partition *p, uint32_t place)
{
    tierce__lock_assert_held(&p->lock);
    const struct tierce__small_page *page = p->pages[place >> TIERCE__SMALLS_SLOT_BITS];
    *out = *tierce__small_at(p, place);
    atomic_signal_fence(memory_order_seq_cst); /* the compiler must not read it there again */
    return out->name_bytes <= TIERCE__OBJECT_NAME_MAX &&
           out->note_bytes <= TIERCE__OBJECT_NOTE_MAX &&
           sizeof(*out) + out->name_bytes + out->note_bytes + out->value_bytes <=
               p->classes[page->size_class].slot_bytes;
}

/* Counts a value that leaves its slot; one with damaged lengths stays in the count. */
static inline void tierce__small_uncount(struct tierce__small_partition *p, uint32_t place)
{
    tierce__lock_assert_held(&p->lock);
    struct tierce__small_record record;
    if (tierce__small_read(&record, p, place) && record.value_bytes <= p->value_bytes)
        p->value_bytes -= record.value_bytes;
}

static inline size_t tierce__small_record_bytes(const struct tierce__object_what *what)
{
    return sizeof(struct tierce__small_record) + what->name_bytes + what->note_bytes +
           (size_t)what->value_bytes;
}

/* ---- smalls_index.c: under the partition's lock ---------------------------------------------- */

/* The place of the value with this hash and namespace, or NOWHERE. */
uint32_t tierce__small_index_find(const struct tierce__small_partition *p, uint64_t hash,
                                  uint32_t ns);
/* Move or remove the place of a value with this hash, which may be damaged. */
void tierce__small_index_move(struct tierce__small_partition *p, uint64_t hash, uint32_t from,
                              uint32_t to);
void tierce__small_index_remove(struct tierce__small_partition *p, uint64_t hash, uint32_t place);

/* ---- smalls_pages.c -------------------------------------------------------------------------- */

void tierce__small_classes_init(struct tierce__smalls *smalls, uint64_t cap_bytes);
uint32_t tierce__small_class_of(const struct tierce__smalls *smalls, size_t record_bytes);

/* Takes a slot of a class. May release and retake the lock, and sets *dropped then. Returns NOWHERE
 * with *rc: TIERCE_E_FULL (no memory and nothing to evict) or -ENOMEM. */
uint32_t tierce__small_slot_take(struct tierce__smalls *smalls, struct tierce__small_partition *p,
                                 uint32_t size_class, bool *dropped, int *rc);
/* Frees the slot of a value that was removed from the index. If its page is empty now, returns the
 * number of the page, which the caller must pass to page_give after it releases the lock; else
 * NOWHERE. */
uint32_t tierce__small_slot_free(struct tierce__small_partition *p, uint32_t place);
/* Removes a value from the index and frees its slot; returns as slot_free. */
uint32_t tierce__small_drop(struct tierce__small_partition *p, uint32_t place);
/* The following are called without the lock. */
void tierce__small_page_give(struct tierce__smalls *smalls, struct tierce__small_partition *p,
                             uint32_t number);
/* `is_new`: the page was refilled, not read. */
void tierce__small_page_touch(struct tierce__smalls *smalls, struct tierce__small_partition *p,
                              uint32_t number, uint32_t generation, bool is_new);
void tierce__small_page_free(struct tierce__small_page *page);

#endif
