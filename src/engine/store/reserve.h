/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_RESERVE_H
#define TIERCE_ENGINE_RESERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

#include "engine/store/room_wait.h"

/*
 * The tier half of a store: finds the missing chunks, reserves room in the pool for them, and
 * publishes them. The other half fills them (gather.h).
 *
 *     rc = tierce__reserve_begin(&reservation, view, &what);
 *     ... write the cells and sums of every room, in this or another process ...
 *     blocks = tierce__reserve_end(reservation, complete);
 *
 * Thread: a reservation belongs to one at a time. Promises: as of tierce_store_begin and _end.
 */

struct tierce__reserve_what {
    const struct tierce_chain *chain; /* [borrow until begin returns] */
    uint64_t from_block;              /* chunks that begin before it are not stored */
    uint64_t to_block;
    uint64_t session;
    bool tail;
    uint32_t tiers;
    const char *tag;
    struct tierce__room_wait *room_wait; /* [borrow until begin returns]; NULL: timeout.store */
};

/* A room: reserved memory for one chunk. Its header is complete except for the checksums. */
struct tierce__room {
    size_t index; /* of the chunk in the chain */
    uint32_t block_count;
    uint64_t bytes; /* of the object */
    uint8_t *object;
    struct tierce__buf *buf; /* that the object is in; NULL: it is a node's. [borrow until end] */
};

struct tierce__reservation;
struct tierce__store_watch; /* store_watch.h */
struct tierce__watched;

/* *out is NULL if there is nothing to store. Errors: TIERCE_E_ARGUMENT, -ENOMEM. Waits
 * timeout.store at most, or as its room_wait says. The view may be closed before the end. */
TIERCE_MUSTUSE int tierce__reserve_begin(struct tierce__reservation **out, struct tierce_view *view,
                                         const struct tierce__reserve_what *what);

/* [borrow until end] *count of them, in the order of the chain, at least 1. */
const struct tierce__room *tierce__reserve_rooms(const struct tierce__reservation *reservation,
                                                 size_t *count);

/* The watch is called as layers are filled (tierce__reserve_filled), also during this call, and
 * when the reservation ends. [borrow until then] watch. Layers that were filled before may be
 * missing: tierce__reserve_tell_watch reports them. Errors: TIERCE_E_ARGUMENT (the reservation is
 * of another view, or is watched). */
TIERCE_MUSTUSE int tierce__reserve_watch(struct tierce__reservation *reservation,
                                         const struct tierce_view *view,
                                         struct tierce__store_watch *watch,
                                         struct tierce__watched *out);

/* A writer has filled layers [from, to) of all rooms. For a node, whose clients write: any number
 * of threads, before the end. */
void tierce__reserve_filled(struct tierce__reservation *reservation, uint32_t from, uint32_t to);

/* Tells the watch all layers that have been filled. */
void tierce__reserve_tell_watch(struct tierce__reservation *reservation);

/* The reservation will not be published; from now on other requests may store its chunks. Its rooms
 * stay until end, because a writer may still use them. */
void tierce__reserve_give_up(struct tierce__reservation *reservation);

/* Seals and publishes, or, if it is not complete, drops. Returns the blocks published now. */
int64_t tierce__reserve_end(struct tierce__reservation *reservation, bool complete);

/* Drops chunks that have waited too long for another store. */
void tierce__stores_expire(struct tierce_engine *engine);

#endif
