/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_GHOST_RING_H
#define TIERCE_MANAGER_GHOST_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A ring of records that many threads fill and one thread empties, without a lock: no thread that
 * fills it ever waits. A record takes as many cells of 64 bytes as its keys need.
 *
 * A cell has a turn. A thread claims the cells from `tail` on by moving `tail` past them, if the
 * last one has the turn of its position, which means that it is free. The reader frees cells in
 * order, so the ones before it are free too. A filled cell has the next turn.
 *
 * Threads: tierce__ghost_ring_push any; tierce__ghost_ring_pop one at a time.
 */

struct tierce__ghost_ring;

enum tierce__ghost_kind {
    TIERCE__GHOST_READ_LEADING, /* a lookup of a chain: hits end at the first miss */
    TIERCE__GHOST_READ_ANY,     /* a lookup of single keys */
    TIERCE__GHOST_USE,          /* keys that the caller has already: used, but not looked up */
    TIERCE__GHOST_WRITE,        /* keys that will be stored */
};

struct tierce__ghost_record {
    uint32_t source; /* a number of the filler's choice */
    enum tierce__ghost_kind kind;
    uint32_t count; /* of keys, >= 1 */
};

/* `cells` is a power of two. Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__ghost_ring_create(struct tierce__ghost_ring **out, uint32_t cells);

/* NULL is accepted. No other thread may use the ring. */
void tierce__ghost_ring_destroy(struct tierce__ghost_ring *ring);

/* Appends a record. False: there is no room, or it needs more than half of all cells. */
bool tierce__ghost_ring_push(struct tierce__ghost_ring *ring,
                             const struct tierce__ghost_record *record, const uint64_t *keys);

/* Removes the oldest record. keys [borrow until the next pop]. Returns 1; 0: there is none, or it
 * is still being filled; -ENOMEM: nothing has changed. */
TIERCE_MUSTUSE int tierce__ghost_ring_pop(struct tierce__ghost_ring *ring,
                                          struct tierce__ghost_record *out, const uint64_t **keys);

/* A position: records that were pushed before it was read lie before it. And whether all records
 * before a position have been removed; only for the thread that pops. */
uint64_t tierce__ghost_ring_position(const struct tierce__ghost_ring *ring);
bool tierce__ghost_ring_passed(const struct tierce__ghost_ring *ring, uint64_t position);

#endif
