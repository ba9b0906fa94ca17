/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_FETCH_H
#define TIERCE_ENGINE_FETCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/threads/lock.h"
#include "core/chunk/pool.h"
#include "core/key/key.h"

/*
 * A fetch reads one chunk from one slower tier into one pool buffer, segment by segment. All
 * concurrent requests for the chunk share it: each segment is read once.
 *
 *     struct tierce__fetch_waiter waiter = {.deadline_ns = deadline};
 *     if (tierce__fetch_join(engine, &waiter, level, &record, shape, &leased)) {
 *         tierce__fetch_ask(&waiter, 0);
 *         if (tierce__fetch_wait(&waiter, 0))
 *             ... waiter.buf->data holds the bytes of segment 0, not verified ...
 *         tierce__fetch_promote(&waiter, &record);
 *         tierce__fetch_leave(&waiter);
 *     }
 *
 *     a segment:  IDLE -> READING -> HERE
 *                            |  \-> LATE -> READING, requested with a later deadline
 *                            \----> lost, late in a store whose connector decodes, or its tier has
 *                                   gone out of service: the whole fetch fails, for all its waiters
 *
 * A fetch is found by its key from its beginning until it has been promoted, has failed or has
 * proved wrong. It lives until its last waiter has left and its last request was answered, which
 * can be long after that: the device may write into the buffer until then.
 *
 * Before waiters learn that a chunk is wrong, it is deleted from its tier: they may store it again
 * at once.
 *
 * A segment that is requested again may be written twice, with the same bytes; if a device returns
 * other bytes, the cells fail verification at the load. A connector that decodes also reads coded
 * bytes into the buffer, so nothing is requested again there.
 *
 * Thread: any; a waiter belongs to one thread at a time. Only wait blocks; refuse and spoil block
 * while another thread submits the deletion. No lock is held around a call of a tier.
 */

struct tierce_engine;
struct tierce__shape;
struct tierce__storage_chunk;
struct tierce__fetch;

#define TIERCE__FETCH_BINS 256u

/* The fetches of an engine that may be joined, and chunks that must not be promoted. */
struct tierce__fetches {
    struct tierce__lock lock; /* FETCH: the bins, the bans and all that changes in a fetch */
    struct tierce__list bins[TIERCE__FETCH_BINS];
    struct tierce__list bans[TIERCE__FETCH_BINS];
    _Atomic uint32_t awaited; /* relaxed: a measure */
};

/* A chunk that has proved wrong, until the tier that it came from has answered its deletion. */
struct tierce__fetch_ban {
    struct tierce__list node; /* in its bin */
    struct tierce__key key;
    size_t level;
};

/* The result of the read that read_all began: 0, the error of the fetch, or TIERCE_E_DEADLINE.
 * Called under no lock; must not block. */
typedef void tierce__fetch_settled_fn(void *arg, int status);

/* A waiter for the chunk. */
struct tierce__fetch_waiter {
    uint64_t deadline_ns;             /* [in] of its own */
    const struct tierce__buf *before; /* [in] of the chunk before, or NULL; for join */
    struct tierce__pool *pool;        /* [in] NULL, or the pool of a new fetch, in the memory of a
                                         device: nobody else joins it, and it is not promoted */
    struct tierce__fetch *fetch;      /* NULL: not waiting */
    struct tierce__buf *buf;          /* [borrow while it waits] */
    size_t level;                     /* where the bytes come from */
    struct tierce__list node;         /* among the waiters */

    /* Used by read_all; the owner must not touch it. */
    tierce__fetch_settled_fn *settled;
    void *arg;
    bool called;
    struct tierce__list told; /* among those that are being called */
};

void tierce__fetches_init(struct tierce__fetches *fetches);
/* No fetch may be alive. */
void tierce__fetches_fini(struct tierce__fetches *fetches);

/*
 * Adds a waiter to the fetch of a chunk if one is in progress; otherwise begins a fetch from
 * `level`, and evicts memory for it. Asks for nothing yet. Returns false, without a waiter, in two
 * cases: memory holds the chunk by now, and *leased is a reference that the caller owns; or no
 * memory is available, and *leased is NULL.
 */
TIERCE_MUSTUSE bool tierce__fetch_join(struct tierce_engine *engine,
                                       struct tierce__fetch_waiter *waiter, size_t level,
                                       const struct tierce__storage_chunk *chunk,
                                       const struct tierce__shape *shape,
                                       struct tierce__buf **leased);

/* Requests a segment (of the shape), unless that has been done, with the latest deadline of all
 * waiters. */
void tierce__fetch_ask(struct tierce__fetch_waiter *waiter, uint32_t segment);

/*
 * Asks for all segments. `settled` is called once, perhaps before this returns: when all segments
 * have arrived, when the fetch has failed, or when a segment is too late for all waiters. Once for
 * a waiter.
 */
void tierce__fetch_read_all(struct tierce__fetch_waiter *waiter, tierce__fetch_settled_fn *settled,
                            void *arg);

/* Whether the fetch has not failed. Does not lock. */
bool tierce__fetch_lives(const struct tierce__fetch_waiter *waiter);

/* Returns whether a segment has arrived. Requests it if necessary, and blocks up to the waiter's
 * deadline. Also false if another part of the fetch has failed, or the tier goes out of service. */
bool tierce__fetch_wait(struct tierce__fetch_waiter *waiter, uint32_t segment);

/* How many loads wait for a tier now. Does not lock. */
static inline uint32_t tierce__fetches_awaited(struct tierce__fetches *fetches)
{
    return atomic_load_explicit(&fetches->awaited, memory_order_relaxed);
}

/* Bytes that were requested and have not arrived. Does not lock. */
uint64_t tierce__fetch_bytes_asked(const struct tierce__fetch_waiter *waiter);

/* For a header that is not that of the chunk: takes the chunk out of service and fails the fetch.
 * Only the first of several calls has an effect. */
void tierce__fetch_refuse(struct tierce__fetch_waiter *waiter, int why);

/* Called when a level has gone out of service: fails the fetches that wait for it, so that a load
 * whose read hangs does not wait for its deadline. Fetches that have been read are not affected.
 * Called under no lock. */
void tierce__fetches_abandon(struct tierce_engine *engine, size_t level);

/* For a cell that does not verify: takes the chunk out of service, and out of memory if it was
 * promoted. The other cells are not affected, so the fetch continues. */
void tierce__fetch_spoil(struct tierce__fetch_waiter *waiter);

/* Keeps the chunk in memory if all its segments have been read without a fault. Only the first of
 * several calls has an effect. */
void tierce__fetch_promote(struct tierce__fetch_waiter *waiter,
                           const struct tierce__storage_chunk *record);

/* From now until the end of the ban, bytes of the chunk that were read from this level are not kept
 * in memory, because readers of other cells would not notice the fault. `ban` NULL: affects only
 * reads in progress. */
void tierce__fetch_ban_begin(struct tierce_engine *engine, struct tierce__fetch_ban *ban,
                             size_t level, const struct tierce__key *key);
void tierce__fetch_ban_end(struct tierce_engine *engine, struct tierce__fetch_ban *ban);

/*
 * Leaves the fetch; an unused waiter is accepted. The last one to leave ends the fetch, as soon as
 * the device has released the buffer. False: `settled` of read_all has been or is about to be
 * called, and the waiter's memory must stay valid until then. True: it will not be called.
 */
bool tierce__fetch_leave(struct tierce__fetch_waiter *waiter);

#endif
