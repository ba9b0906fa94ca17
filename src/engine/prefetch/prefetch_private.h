/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PREFETCH_PRIVATE_H
#define TIERCE_PREFETCH_PRIVATE_H

#include <tierce/prefetch.h>

#include "engine/view.h"
#include "engine/observe/operate.h"

/* Shared by prefetch.c (the steps of a prefetch) and prefetch_handle.c (its lifetime). */

enum tierce__prefetch_state {
    TIERCE__PREFETCH_UNKNOWN = 0,
    TIERCE__PREFETCH_HELD,    /* buf is a lease */
    TIERCE__PREFETCH_FOUND,   /* in a slower tier */
    TIERCE__PREFETCH_ROOM,    /* and it has memory */
    TIERCE__PREFETCH_READING, /* waiting with its fetch */
    TIERCE__PREFETCH_SETTLED, /* the same, and the outcome is known */
    TIERCE__PREFETCH_GONE,    /* published, or dropped */
};

struct tierce__prefetch_chunk {
    struct tierce_prefetch *prefetch;
    size_t level;
    enum tierce__prefetch_state state; /* READING and SETTLED under the lock */
    int outcome;                       /* of the reading; under the lock */
    uint64_t bytes;                    /* of the object */
    bool room;                         /* it holds its share of prefetch.memory */
    struct tierce__buf *buf;           /* HELD */
    struct tierce__fetch_waiter waiter;
};

/* This prefetch's state for one level. */
struct tierce__prefetch_share {
    bool searched, told;
    size_t end;             /* behind its last chunk */
    size_t next;            /* no chunk of it before this one has ROOM */
    uint64_t bytes_reading; /* under the lock */
};

struct tierce_prefetch {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce_view *view; /* until the result is final */
    struct tierce_prefetch_opts opts;
    enum tierce_mode mode; /* in which it began */
    uint64_t deadline_ns;
    uint64_t to_block;
    struct tierce__keys keys;
    struct tierce__shape tail_shape;
    uint8_t *hashes; /* block hashes of the sequence */
    uint8_t root[TIERCE_HASH_BYTES];
    struct tierce__prefetch_chunk *chunks; /* [keys.count] */
    struct tierce__session *pinned; /* the session's earlier pins, until the search is over */

    /* Owned by the thread that advances the prefetch. */
    uint64_t budget; /* bytes that may still be planned */
    size_t found;    /* chunks up to here are in some tier */
    size_t plan_end; /* chunks from here on are not delivered, even if they are found */
    size_t claimed;  /* chunks up to here have room, or need none */
    size_t gathered; /* chunks up to here are handed on */
    size_t level, round_start;
    size_t asked_level; /* does not change while a lookup is under way */
    bool search_over, asking, waiting;
    uint32_t late_levels; /* levels whose answer was incomplete at the deadline; they are queried
                             once more */
    bool patient;         /* the level is queried once more, because its answer was late */
    size_t piece_end;     /* end of the piece whose memory is waited for */
    struct tierce__prefetch_share shares[TIERCE__TIERS_MAX];
    struct tierce__store_req lookup;
    struct tierce__semaphore_waiter waiter;

    /* Under the lock of the engine's prefetches. */
    struct tierce__list node;
    struct tierce__cond changed;
    size_t refs; /* the handle, and each pending callback */
    bool going_on, event;
    bool answered;  /* the lookup */
    bool granted;   /* the requested memory was granted */
    bool room_over; /* no more memory is taken: a late grant is given back */
    bool cancelled, late;
    struct tierce_prefetch_result result;

    /* For a client of a node: the fields above from `keys` to `waiter` are zero, and the result is
     * used without the lock. */
    struct tierce__node_session *peer; /* NULL: no node does it */
    struct tierce__owed *owed;         /* its end */
    char tier_names[TIERCE_PREFETCH_TIERS_MAX][16];
};

static inline struct tierce__lock *tierce__prefetch_lock(const struct tierce_prefetch *p)
{
    return &p->engine->prefetches.lock;
}

/* Wanted blocks of the first chunks. */
static inline uint64_t tierce__prefetch_blocks(const struct tierce_prefetch *p, size_t chunks)
{
    return tierce__keys_blocks(&p->keys, p->view, chunks, p->to_block);
}

/* Counts a prefetch that has begun, and adds it to those of its engine. */
void tierce__prefetch_enter(struct tierce_prefetch *p);

/* Frees a prefetch that is in no list, and that no callback refers to. */
void tierce__prefetch_free(struct tierce_prefetch *p);

/* An event has occurred: continues the prefetch, unless another thread is doing so, which then sees
 * the event. With a reference of the caller's, which ends here if `last_use`. */
void tierce__prefetch_go_on(struct tierce_prefetch *p, bool last_use);

/* One step: does everything that is possible now. Called by one thread at a time, under no lock. */
void tierce__prefetch_advance(struct tierce_prefetch *p);

/* ---- client_prefetch.c: of the table in client_ask.c ---- */

int tierce__client_prefetch_begin(struct tierce_prefetch *p, const struct tierce_chain *chain);
bool tierce__client_prefetch_wait(struct tierce_prefetch *p, uint32_t wait_ms);
void tierce__client_prefetch_end(struct tierce_prefetch *p);

#endif
