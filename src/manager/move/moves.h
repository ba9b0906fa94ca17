/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_MOVES_H
#define TIERCE_MANAGER_MOVES_H

#include "base/arena.h"
#include "manager/meta/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tierce/status.h>

/*
 * The queue of blocks that are to be copied or moved to another storage. Rules fill it; a mover
 * empties it through tierce__locator_take_moves (locate/locator.h), which makes write sessions of
 * its blocks. An entry is a request: whether the block still exists, and where it fits, is checked
 * when it is taken. A block that cannot be moved then is dropped, and the rule may ask again.
 *
 *     struct tierce__moves *moves = tierce__locator_moves(locator);
 *     struct tierce__move_lane lane = {.instance_id = "chat", .instance = 7, .from = 3,
 *                                      .is_copy = false, .to = TIERCE__MOVE_TO_COLDER,
 *                                      .reason = TIERCE__MOVE_COLD};
 *     struct tierce__move_block block = tierce__move_block_of(key, location);
 *     queued = tierce__moves_want(moves, &lane, &block, 1, now_us);
 *
 * Each reason has its own bound, so that no rule fills the queue for the others. The queue lives in
 * the leader's memory; the next leader's rules fill it again. Between two storages at most `rate`
 * bytes a second are moved.
 *
 * Threads: any. No call blocks, except on the object's own lock (MOVES).
 */

struct tierce__moves;

#define TIERCE__MOVE_LEASE_S 30 /* of a batch, unless it is renewed */

enum tierce__move_reason {
    TIERCE__MOVE_DRAIN,   /* the operator empties the source */
    TIERCE__MOVE_COLD,    /* the block is not used, and its storage is nearly full */
    TIERCE__MOVE_HOT,     /* the block is used, and lies in a slower storage than it could */
    TIERCE__MOVE_REPLICA, /* the block has fewer copies than its group asks for */
    TIERCE__MOVE_REASONS,
};
/* "drain", "cold", "hot", "replica" */
const char *tierce__move_reason_name(enum tierce__move_reason reason);

/* Which candidates of the block's group may be the target. The order of a group's candidates goes
 * from hot to cold; a part of a pool has the pool's position. Storages that hold the block already
 * are never targets. */
enum tierce__move_to {
    TIERCE__MOVE_TO_ANY,
    TIERCE__MOVE_TO_HOTTER,    /* before the source */
    TIERCE__MOVE_TO_COLDER,    /* behind it */
    TIERCE__MOVE_TO_SAME_TYPE, /* another storage of the source's type */
    TIERCE__MOVE_TOS,
};

/* Blocks with all of this in common can be in one batch. */
struct tierce__move_lane {
    const char *instance_id; /* [borrow for the call] */
    uint32_t instance;       /* its number */
    uint16_t from;           /* number of the source's storage */
    bool is_copy;            /* the source stays */
    enum tierce__move_to to;
    enum tierce__move_reason reason;
};

struct tierce__move_block {
    int64_t key;
    char location_id[TIERCE__LOCATION_ID_BYTES]; /* of the source */
    uint64_t bytes;                              /* of the source */
};

static inline struct tierce__move_block tierce__move_block_of(int64_t key,
                                                              const struct tierce__location *source)
{
    struct tierce__move_block block = {.key = key, .bytes = tierce__location_bytes(source)};
    memcpy(block.location_id, source->id, sizeof(block.location_id));
    return block;
}

struct tierce__moves_opts {
    size_t size;
    uint64_t rate;       /* bytes a second, for each pair of source and target; 0: no limit */
    uint32_t queued_max; /* blocks of each reason; 0: 16384 */
};

TIERCE_MUSTUSE int tierce__moves_create(struct tierce__moves **out,
                                        const struct tierce__moves_opts *opts);
void tierce__moves_destroy(struct tierce__moves *moves);

/* Forgets all requests: this process does not lead any more. Counters stay. */
void tierce__moves_clear(struct tierce__moves *moves);

/* ---- for rules ------------------------------------------------------------------------------- */

/* Queues blocks. Returns how many were added. A block that is queued already, from the same
 * location, is not added again, nor is one whose last move failed a short time ago. The rest is
 * left out if the reason's bound is reached or memory is short; these are counted as refused. */
size_t tierce__moves_want(struct tierce__moves *moves, const struct tierce__move_lane *lane,
                          const struct tierce__move_block *blocks, size_t count, int64_t now_us);

/* How many blocks may still be queued for a reason. */
size_t tierce__moves_room(struct tierce__moves *moves, enum tierce__move_reason reason);

/* The bytes that wait for a reason in the lanes that suit. `suits` is called under the lock: it
 * takes none. */
uint64_t tierce__moves_waiting(struct tierce__moves *moves, enum tierce__move_reason reason,
                               bool (*suits)(void *arg, const struct tierce__move_lane *lane),
                               void *arg);

/* Whether a block waits at that location, or still rests after a move that failed. */
bool tierce__moves_knows(struct tierce__moves *moves, uint32_t instance,
                         const struct tierce__move_block *block, int64_t now_us);

/* ---- for the locator ------------------------------------------------------------------------- */

struct tierce__moves_pop {
    size_t blocks_max;
    uint64_t bytes_max; /* the first block is returned even if it is larger; 0: no limit */
    int64_t now_us;
    /* Whether blocks of this storage are wanted. Called under the lock: takes none. NULL: all. */
    bool (*suits)(void *arg, uint16_t from);
    void *arg;
};

struct tierce__moves_popped {
    struct tierce__move_lane lane; /* instance_id in the arena */
    struct tierce__move_block *blocks;
    size_t count;
};

/* Removes the oldest blocks of the next lane that does not rest; lanes take turns. Returns 1; 0:
 * there is none; -ENOMEM: nothing has changed. */
TIERCE_MUSTUSE int tierce__moves_take(struct tierce__moves *moves,
                                      const struct tierce__moves_pop *pop,
                                      struct tierce__arena *arena,
                                      struct tierce__moves_popped *out);

/* A mover has asked for blocks, or renewed those that it holds. */
void tierce__moves_asked(struct tierce__moves *moves, int64_t now_us);

/* Puts blocks back that cannot be moved now, because no target has room or because the rate is used
 * up; their lane rests until then. `why` is shown to operators. */
void tierce__moves_put_back(struct tierce__moves *moves, const struct tierce__moves_popped *popped,
                            int64_t until_us, const char *why);

/* Whether the rate of the pair is not used up. */
bool tierce__moves_may_flow(struct tierce__moves *moves, uint16_t from, uint16_t to,
                            int64_t now_us);
/* Charges bytes that are about to move. */
void tierce__moves_charge(struct tierce__moves *moves, uint16_t from, uint16_t to, uint64_t bytes,
                          int64_t now_us);

/* The ways in which the move of a block ends. The first ones have the order of MoveResult. */
enum tierce__move_result {
    TIERCE__MOVED,
    TIERCE__MOVE_SOURCE_MISSING,
    TIERCE__MOVE_SOURCE_DAMAGED,
    TIERCE__MOVE_SOURCE_UNREACHABLE,
    TIERCE__MOVE_TARGET_FAILED,
    TIERCE__MOVE_UNVERIFIABLE,
    TIERCE__MOVE_UNDONE,    /* the mover gave it back untried */
    TIERCE__MOVE_OVERTAKEN, /* the block was removed, invalidated or moved meanwhile */
    TIERCE__MOVE_EXPIRED,   /* the mover did not answer in time */
    TIERCE__MOVE_RESULTS,
};
/* "moved", "source_missing", ... */
const char *tierce__move_result_name(enum tierce__move_result result);

/* Says that the move of a block has ended. A block whose storages failed is not queued again for a
 * minute, or for an hour if its bytes cannot be verified. A block that was given back, or whose
 * mover did not answer in time, may be queued again at once: nothing was wrong with the block. */
void tierce__moves_ended(struct tierce__moves *moves, const struct tierce__move_lane *lane,
                         const struct tierce__move_block *block, enum tierce__move_result result,
                         int64_t now_us);

/* ---- numbers --------------------------------------------------------------------------------- */

struct tierce__moves_stats {
    uint64_t queued[TIERCE__MOVE_REASONS]; /* blocks that wait */
    uint64_t queued_bytes[TIERCE__MOVE_REASONS];
    uint64_t refused[TIERCE__MOVE_REASONS]; /* requests beyond the bound, since the start */
    uint64_t moved[TIERCE__MOVE_REASONS], moved_bytes[TIERCE__MOVE_REASONS]; /* since the start */
    uint64_t ended[TIERCE__MOVE_RESULTS];                                    /* since the start */
    uint64_t resting; /* blocks whose move has failed recently */
};
void tierce__moves_stats(struct tierce__moves *moves, struct tierce__moves_stats *out);

/* The number of blocks of a storage that wait, and why: no mover has asked for longer than a batch
 * is lent (TIERCE__MOVE_LEASE_S), the reason of its first lane that rests, or the failures of
 * blocks that rest. "": nothing keeps them. */
uint64_t tierce__moves_of(struct tierce__moves *moves, uint16_t from, int64_t now_us,
                          char why[256]);

#endif
