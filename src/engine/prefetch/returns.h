/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_RETURNS_H
#define TIERCE_ENGINE_RETURNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/key.h>

#include "base/list.h"
#include "base/map.h"
#include "core/key/key.h"

/*
 * When conversations return: a table of conversations, and a queue of the times at which something
 * is due. A conversation is known by its last whole chunk, because each of its requests has a
 * session of its own: a request whose chain contains that chunk continues it.
 *
 *     IDLE -> WAITING   a hint, or regular gaps, predict the next request
 *     WAITING -> READ   due: its chunks are read into memory from now on
 *     any -> IDLE       a request continues it, or the prediction lapses
 *
 * The expected gap is that of the hint, or else the lower quartile of the last gaps if their
 * quartiles are close to each other. The table is bounded: the conversations that were used longest
 * ago are forgotten.
 *
 * Predictions of each source (hints, gaps) have a weight of 1/64 to 1. It is halved when less than
 * half of the chunks that were read for them were used, and doubled otherwise.
 *
 * Thread: one at a time. The clock is the caller's.
 */

#define TIERCE__RETURN_GAPS    8u
#define TIERCE__RETURN_GAP_NS  100000000u /* a shorter gap is no return */
#define TIERCE__RETURN_JUDGED  8u         /* outcomes after which a weight changes */
#define TIERCE__RETURN_WEIGHTS 64u        /* the weight 1 */

enum tierce__return_source {
    TIERCE__RETURN_HINTED,
    TIERCE__RETURN_LEARNED,
    TIERCE__RETURN_SOURCES
};
enum tierce__return_state { TIERCE__RETURN_IDLE, TIERCE__RETURN_WAITING, TIERCE__RETURN_READ };

struct tierce__returning {
    struct tierce__map_node node; /* by the last chunk */
    struct tierce__list recent;   /* the last used first */
    struct tierce__key last;
    struct tierce_chain *chain; /* its whole chunks */
    enum tierce_chain_algo algo;
    uint32_t block_tokens;
    size_t chunks;
    uint64_t session; /* of its last request */
    uint64_t used_ns;
    bool returned; /* a request has continued it, and used nothing yet */
    uint64_t gaps_ns[TIERCE__RETURN_GAPS];
    uint32_t gap_count;
    enum tierce__return_source source;
    enum tierce__return_state state;
    uint64_t expected_ns, lapses_ns;
    uint64_t wake_ns;              /* WAITING: when reading begins; READ: when it lapses */
    size_t place;                  /* in the queue, SIZE_MAX: not there */
    size_t read_from, read_chunks; /* chunks that were read for the prediction */
    uint64_t read_bytes;
};

struct tierce__return_weight {
    uint32_t weight;       /* of TIERCE__RETURN_WEIGHTS */
    uint32_t outcomes;     /* since it changed last */
    uint64_t used, unused; /* their chunks */
};

struct tierce__returns {
    size_t max;
    uint64_t blocks_max, blocks; /* of all chains */
    size_t count;
    struct tierce__map map;
    struct tierce__list recent;
    struct tierce__returning **queue; /* a heap by wake_ns [max] */
    size_t queued;
    uint64_t read_bytes;               /* that predictions have read and no request has used yet */
    struct tierce__returning *reading; /* the conversation that is being read; NULL: none, or it
                                          has returned or been forgotten */
    struct tierce__return_weight weights[TIERCE__RETURN_SOURCES];
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__returns_init(struct tierce__returns *returns, size_t max,
                                        uint64_t blocks_max);
void tierce__returns_fini(struct tierce__returns *returns);

/* The whole chunks of a request. [borrow for the call] */
struct tierce__return_request {
    const struct tierce__key *keys; /* [count] */
    size_t count;
    const struct tierce_chain *chain;
    enum tierce_chain_algo algo;
    uint32_t block_tokens, chunk_blocks;
    uint64_t session;
    bool extends; /* a use: the conversation ends with these chunks from now on */
    uint64_t now_ns;
    uint64_t lead_ns, chunk_lead_ns; /* how long reading takes: alone, and for each chunk */
    bool closed;                     /* no request follows */
    uint64_t returns_ns;             /* the hint of the gap; 0: none */
};

/* A conversation that returned, or whose prediction lapsed. */
struct tierce__return_outcome {
    bool predicted; /* there was a prediction that had not lapsed */
    enum tierce__return_source source;
    size_t chunks, read_from, read_chunks;
};

/* A request begins. Returns whether it continues a conversation; *outcome says what was predicted.
 * Repeated calls for one request have no effect. */
bool tierce__returns_arrive(struct tierce__returns *returns,
                            const struct tierce__return_request *request,
                            struct tierce__return_outcome *outcome);

/* A request uses its chunks: the gap begins now. Unless it `extends`, it adds no conversation.
 * Without memory the conversation is forgotten. */
void tierce__returns_use(struct tierce__returns *returns,
                         const struct tierce__return_request *request);

/* A hint after the last use of the session, as in a request; `space`: a key of the namespace. */
void tierce__returns_hint(struct tierce__returns *returns, const struct tierce__key *space,
                          const struct tierce__return_request *hint);

/* When something is due; UINT64_MAX: never. */
uint64_t tierce__returns_next_ns(const struct tierce__returns *returns);

/* Takes a conversation whose chunks are to be read now, which becomes `reading`, or reports one
 * that did not return in time (*outcome). NULL and no outcome: nothing is due. */
struct tierce__returning *tierce__returns_due(struct tierce__returns *returns, uint64_t now_ns,
                                              struct tierce__return_outcome *outcome);

/* Of `reading`: `chunks` of the chunks from `from` on have been read for it. */
void tierce__returns_note_read(struct tierce__returns *returns, size_t from, size_t chunks,
                               uint64_t bytes);

/* `reading` is complete; if all chunks were in memory already, it is looked at again halfway to the
 * expected return. */
void tierce__returns_end_reading(struct tierce__returns *returns, uint64_t now_ns);

/* The chunks that were read for a prediction were used, or not. Returns whether the weight fell. */
bool tierce__returns_judge(struct tierce__returns *returns, enum tierce__return_source source,
                           size_t used, size_t unused);

#endif
