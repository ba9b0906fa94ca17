/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_SHARED_WRITE_H
#define TIERCE_ENGINE_SHARED_WRITE_H

#include "base/list.h"
#include "base/threads/lock.h"
#include "engine/store/reserve.h"

/*
 * A shared write: the stores of several parts, linked by a number, share one reservation. The first
 * store creates it, the others join, and the last one to end publishes.
 *
 *     begun ──all parts have joined and ended──> published
 *       └──one is not complete, begins a later store of the writer instead, or has left, or the
 *          deadline──> aborted; its space stays reserved until all that joined have ended
 *
 * Joining an aborted or empty write yields an empty write. A store of the only part is a
 * reservation of its own.
 *
 * Thread: any; a share belongs to one thread at a time, except for give_up. Locks: SHARED_WRITE,
 * around the list and the states; nothing is reserved or published under it.
 */

struct tierce__shared_write;

/* The shared writes of an engine. */
struct tierce__shared_writes {
    struct tierce__lock lock; /* SHARED_WRITE */
    struct tierce__cond changed;
    struct tierce__list list;
};

/* One part's share of a shared write. */
struct tierce__share {
    struct tierce__shared_write *shared_write; /* NULL: a store of one part */
    struct tierce__reservation *reservation;
};

/* If there is nothing to store, share->reservation is NULL and the share needs no end. Errors:
 * those of tierce_store_begin. Waits for the part that reserves, for at most timeout.store. */
TIERCE_MUSTUSE int tierce__share_begin(struct tierce__share *share, struct tierce_view *view,
                                       const struct tierce_part *part, uint64_t write,
                                       const struct tierce__reserve_what *what);

/* The store will not be published. Its space stays reserved until end. Thread: any, while the share
 * exists. */
void tierce__share_give_up(const struct tierce__share *share);

/* Returns the blocks published now. */
int64_t tierce__share_end(struct tierce__share *share, bool complete);

void tierce__shared_writes_init(struct tierce__shared_writes *shared_writes);
/* Frees the remaining shared writes that lack parts; no share may exist. */
void tierce__shared_writes_fini(struct tierce__shared_writes *shared_writes);

/* Aborts the writes begun through this view that lack part `index`: nobody will store this part any
 * more. Returns their number. */
size_t tierce__shared_writes_leave(struct tierce_view *view, uint32_t index);

/* The same for all parts, before the view is closed. */
size_t tierce__shared_writes_leave_all(struct tierce_view *view);

/* Aborts those whose deadline has passed. */
void tierce__shared_writes_expire(struct tierce_engine *engine);

#endif
