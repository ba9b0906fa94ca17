/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_POLICY_HAZARD_GHOSTS_H
#define TIERCE_POLICY_HAZARD_GHOSTS_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/mix.h"

/*
 * Keys of evicted entries, with a word of data each, in two rings in the order of eviction. The
 * number of ghosts in a ring is limited. Places of ghosts that were taken stay unused until the
 * ring comes round, so a ring has half as many places more: a ghost takes 24 bytes, and 4 to 8 in
 * the table, which is chained. A tierce__ghost takes 48 to 64 bytes and is linked, which costs two
 * more cache misses each time.
 *
 * Thread: one at a time. Only init allocates.
 */

enum { TIERCE__HAZARD_RINGS = 2 };

struct tierce__hazard_ghost {
    uint64_t key;
    uint32_t data; /* 0: no ghost */
    uint32_t next; /* in its chain, + 1; 0: the last one */
};

struct tierce__hazard_ghosts {
    struct tierce__hazard_ghost *ghosts; /* [RINGS * ring_places] */
    uint32_t *chains;                    /* [1 << bits] the first ghost, + 1; 0: empty */
    uint32_t bits;
    uint32_t ring_max;                     /* ghosts in a ring */
    uint32_t ring_places;                  /* ring_max * 3 / 2, rounded up */
    uint32_t counts[TIERCE__HAZARD_RINGS]; /* ghosts */
    uint32_t newest[TIERCE__HAZARD_RINGS]; /* the next place in the ring */
    uint32_t oldest[TIERCE__HAZARD_RINGS]; /* ghosts are from here on */
    uint32_t in_use[TIERCE__HAZARD_RINGS]; /* places from oldest to newest */
};

/* Rings of at most `ring_max` ghosts, from 1 to 2^30. After -ENOMEM, fini may still be called; fini
 * accepts zeroed ghosts. */
TIERCE_MUSTUSE int tierce__hazard_ghosts_init(struct tierce__hazard_ghosts *g, uint32_t ring_max);
void tierce__hazard_ghosts_fini(struct tierce__hazard_ghosts *g);

static inline uint32_t tierce__hazard_hash(uint64_t key)
{
    return (uint32_t)(tierce__mix(key) >> 32);
}

/* The chain of a key with this tierce__hazard_hash. */
static inline uint32_t tierce__hazard_ghosts_chain(const struct tierce__hazard_ghosts *g,
                                                   uint32_t hash)
{
    return (uint32_t)((uint64_t)hash >> (32 - g->bits));
}

/* The data of a key, or 0. */
uint32_t tierce__hazard_ghosts_find(const struct tierce__hazard_ghosts *g, uint64_t key,
                                    uint32_t hash);

/* The same, and the ghost is removed. */
uint32_t tierce__hazard_ghosts_take(struct tierce__hazard_ghosts *g, uint64_t key, uint32_t hash);

/* Adds a ghost as the newest of a ring. Before, the oldest ghosts are dropped, until the ring has
 * less than `ring_max` (at least 1; no more than at init), and less than half as many places more
 * in use. `data` is not 0. If the key has another ghost, the new one is found first. */
void tierce__hazard_ghosts_push(struct tierce__hazard_ghosts *g, uint32_t ring, uint64_t key,
                                uint32_t hash, uint32_t data, uint32_t ring_max);

/* Prefetches the chain, or its first ghost. */
static inline void tierce__hazard_ghosts_prefetch(const struct tierce__hazard_ghosts *g,
                                                  uint32_t hash, bool near)
{
    const uint32_t *chain = &g->chains[tierce__hazard_ghosts_chain(g, hash)];
    if (!near)
        __builtin_prefetch(chain, 1);
    else if (*chain != 0)
        __builtin_prefetch(&g->ghosts[*chain - 1], 1);
}

#endif
