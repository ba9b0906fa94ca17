/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_FOLLOWER_H
#define TIERCE_ROUTER_FOLLOWER_H

#include <stdatomic.h>

#include "base/threads/lock.h"
#include "router/contents.h"

/*
 * Follows one publisher of KV events: applies its batches in their order, notices lost ones and
 * restarts, and decides how its contents become exact again. It does no I/O: subscriber.c does, and
 * tests do.
 *
 *              connected            a gap, a smaller number,
 *                  |                or time for a check
 *                  v                       |
 *       has the last batch? --no--> has a snapshot? --yes--> SNAPSHOT, then TAIL: replay from there
 *                  | yes                   | no
 *                  v                       v
 *       VERIFY: replay from        START: replay from 0, into empty contents
 *       the last batch on
 *
 * VERIFY compares the last applied batch with the publisher's batch of the same number. Another
 * batch, or none, means that the publisher was restarted. After a failed VERIFY or TAIL comes
 * SNAPSHOT, or START if there is no snapshot. If nothing helps, the contents are dropped: later
 * batches are applied, so that all that is shown is held, but not all that is held is shown. The
 * publisher is inexact until a snapshot arrives, it sends AllBlocksCleared, or it begins with
 * number 0 again.
 *
 * A batch that is invalid, or has blocks for which there is no room, makes the contents inexact. A
 * snapshot is requested then, after a pause that grows while they do not stay exact. If it fails,
 * the contents stay as they are. A connection that is made during a step may be to another
 * publisher than the one that the step has read from: after the step the recovery restarts.
 *
 * Thread: one at a time, its owner; functions marked "any" take a lock. Times are of clock.h.
 */

struct tierce__follower_opts {
    size_t size;
    struct tierce__directory *directory;
    const char *group, *name; /* of the worker */
    const char *model;        /* [borrow until destroy] */
    const char *endpoint;     /* of the publisher, in the log. [borrow until destroy] */
    bool has_replay, has_snapshot;
    uint64_t seed, blocks_max;
    uint64_t check_ns; /* interval of VERIFY, which finds batches lost at the end; 0: never */
    uint64_t gone_ns;  /* contents are dropped so long after the connection was lost */
    uint64_t
        retry_ns; /* before the first repetition of a failed recovery; it doubles up to 32 times */
};

enum tierce__follower_need {
    TIERCE__FOLLOWER_NOTHING,  /* live batches may come */
    TIERCE__FOLLOWER_REPLAY,   /* from *from on */
    TIERCE__FOLLOWER_SNAPSHOT, /* over HTTP */
    TIERCE__FOLLOWER_BUSY,     /* with one of them, or one waits for the connection */
    TIERCE__FOLLOWER_WORK,     /* tierce__follower_work is due */
};

struct tierce__follower_about {
    bool is_connected, is_exact;
    uint64_t next; /* number of the next batch */
    uint64_t blocks;
    uint32_t block_size;
    uint64_t batches, gaps, restarts, replays, snapshots, failures, refused;
    struct tierce__contents_counts counts;
};

struct tierce__follower;

/* Errors: -ENOMEM, those of tierce__directory_join. */
TIERCE_MUSTUSE int tierce__follower_create(struct tierce__follower **out,
                                           const struct tierce__follower_opts *opts,
                                           uint64_t now_ns);
/* NULL is accepted. The worker leaves. */
void tierce__follower_destroy(struct tierce__follower *follower);

void tierce__follower_connected(struct tierce__follower *follower, bool is_connected,
                                uint64_t now_ns);

/* A live batch. Only while the need is NOTHING. */
void tierce__follower_batch(struct tierce__follower *follower, uint64_t number, const void *payload,
                            size_t bytes, uint64_t now_ns);

/* The step to begin now, which counts as begun. To be called after each other call, and from time
 * to time. */
enum tierce__follower_need tierce__follower_needs(struct tierce__follower *follower, uint64_t *from,
                                                  uint64_t now_ns);

void tierce__follower_replayed(struct tierce__follower *follower, uint64_t number,
                               const void *payload, size_t bytes, uint64_t now_ns);
/* `is_complete`: the publisher has ended its answer. */
void tierce__follower_replay_end(struct tierce__follower *follower, bool is_complete,
                                 uint64_t now_ns);

/* A part of the snapshot's body. False: it is invalid, and needs no more parts. */
bool tierce__follower_snapshot(struct tierce__follower *follower, const void *bytes, size_t count);
/* `is_complete`: the answer had status 200 and has ended. */
void tierce__follower_snapshot_end(struct tierce__follower *follower, bool is_complete,
                                   uint64_t now_ns);

/* One part of the work after a snapshot, whose blocks go to the directory: as long as WORK is
 * needed. Other publishers of the same thread have their turn between two parts. */
void tierce__follower_work(struct tierce__follower *follower, uint64_t now_ns);

/* Of the worker in the directory. Thread: any. */
struct tierce__directory_id tierce__follower_id(const struct tierce__follower *follower);
/* Its state after the owner's last call; waits for no work. Thread: any. */
void tierce__follower_about(struct tierce__follower *follower, struct tierce__follower_about *out);
/* Copies up to `count` blocks from entry *from on, which moves past them. Returns how many; 0:
 * there are no more. May wait until a batch has been applied. Thread: any. */
size_t tierce__follower_blocks(struct tierce__follower *follower, uint32_t *from,
                               struct tierce__contents_block *out, size_t count);

#endif
