/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_BLOCK_JOBS_H
#define TIERCE_ENGINE_BLOCK_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

#include "engine/jobs/block_answers.h"

/*
 * Jobs over blocks of one region of host memory, on their own threads, for an inference engine that
 * must not block. A job stores or loads a list of (key, offset in the region). Lookups of single
 * blocks are answered from a table, and the tiers are queried in the background (block_answers.h).
 *
 *     rc = tierce__block_jobs_open(&jobs, &opts);
 *     rc = tierce__block_jobs_submit(jobs, 7, TIERCE__BLOCK_LOAD, blocks, count);
 *     while ((done = tierce__block_jobs_poll(jobs)) != NULL) {
 *         ... done->id, done->moved[i] ...
 *         tierce__block_job_free(done);
 *     }
 *     tierce__block_jobs_close(jobs);
 *
 * Each block is a chunk of one block and one layer in a view. Blocks are independent: the chain of
 * a block has no other block. A block's bytes are verified before it counts as loaded; the memory
 * of a block whose load failed has undefined content.
 *
 * A block of a store waits for room: for memory that the slower tiers have not yet written, and for
 * their queues. It waits on a thread of its own, until the deadline of its job, so that neither the
 * caller nor a load waits. Blocks that come later wait behind it, in the order of the jobs and of
 * the blocks in a job. If a block gets no room in time, the blocks after it are not stored instead:
 * the order in a job is that of a prompt, and a later block cannot be used without the earlier
 * ones. Only blocks that other threads began at the same time may be. Later jobs go on: they may
 * belong to other prompts. With
 * node.socket, the node decides (its timeout.store), and nothing waits here.
 *
 * While a job is in progress, the caller must not change its blocks in the region, and must not
 * read the blocks of a load. Several stores may read a block at the same time. lookup, submit and
 * poll do not wait for a tier.
 *
 * Thread: any; a job that was polled belongs to the caller. In a child of fork, lookups are misses,
 * poll returns NULL, submit returns TIERCE_E_CLOSED, and close frees nothing.
 */

enum tierce__block_op { TIERCE__BLOCK_STORE, TIERCE__BLOCK_LOAD };

enum { TIERCE__BLOCK_THREADS_MAX = 64 };

struct tierce__block {
    struct tierce__block_key key;
    uint64_t offset; /* in the region */
};

struct tierce__block_jobs_opts {
    struct tierce_view *const *views; /* [view_count] [borrow until close]: one cell of block_bytes
                                         and chunks of one block; NULL: no block has this index */
    uint32_t view_count;
    uint8_t *region; /* [borrow until close] */
    uint64_t region_bytes;
    uint32_t block_bytes;
    uint32_t threads;    /* that move blocks, 1 to TIERCE__BLOCK_THREADS_MAX; one more thread
                            queries the tiers, and one waits for room */
    uint32_t blocks_max; /* limit of the blocks in all unfinished jobs */
    uint32_t timeout_ms; /* blocks of a job that no thread has begun after this time fail. A store
                            has one more second for each 64 MiB of all unfinished jobs, itself
                            included; its blocks without room after this time fail too */
    struct tierce__answers_limits answers;
};

struct tierce__block_job {
    struct tierce__list node;
    uint64_t id;
    enum tierce__block_op op;
    uint64_t began_ns, ended_ns; /* when it was submitted, and when its last block ended */
    uint64_t deadline_ns;
    size_t count;
    size_t begun, ended; /* numbers of blocks */
    size_t moved_count;
    bool *moved; /* [count] held by a tier after a store, or loaded */
    struct tierce__block blocks[];
};

struct tierce__block_jobs;

/* Errors, *out untouched: TIERCE_E_ARGUMENT (a view of another shape, or without any), -ENOMEM,
 * negative errno (a thread cannot be started). */
TIERCE_MUSTUSE int tierce__block_jobs_open(struct tierce__block_jobs **out,
                                           const struct tierce__block_jobs_opts *opts);

/* Fails the blocks that no thread has begun or that wait for room, waits for the others, and frees
 * the jobs that were not polled. NULL is accepted. */
void tierce__block_jobs_close(struct tierce__block_jobs *jobs);

/*
 * Queues a job. Loads are begun before stores, except on one thread of several, which prefers
 * stores. [borrow] blocks for the call.
 * Errors: TIERCE_E_FULL (more blocks than blocks_max; a job alone may have more), TIERCE_E_ARGUMENT
 * (no blocks, a key without view, an offset beyond the region), TIERCE_E_CLOSED (after fork),
 * -ENOMEM. After an error of a load, its blocks are misses for some time.
 */
TIERCE_MUSTUSE int tierce__block_jobs_submit(struct tierce__block_jobs *jobs, uint64_t id,
                                             enum tierce__block_op op,
                                             const struct tierce__block *blocks, size_t count);

/* Returns a finished job [transfer], or NULL if there is none. */
struct tierce__block_job *tierce__block_jobs_poll(struct tierce__block_jobs *jobs);
void tierce__block_job_free(struct tierce__block_job *job);

/* Whether a tier holds a block. RETRY: repeat the call later. A key without view is a miss. */
enum tierce__block_found tierce__block_jobs_lookup(struct tierce__block_jobs *jobs,
                                                   const struct tierce__block_key *key);

/* Waits until all submitted jobs are finished. Returns 0 or TIERCE_E_DEADLINE. */
TIERCE_MUSTUSE int tierce__block_jobs_drain(struct tierce__block_jobs *jobs, uint32_t timeout_ms);

struct tierce__block_jobs_state {
    size_t blocks;            /* of jobs that are not finished */
    uint64_t jobs_refused;    /* TIERCE_E_FULL */
    uint64_t lookups_crowded; /* misses because the table of answers was full */
};

void tierce__block_jobs_state(struct tierce__block_jobs *jobs,
                              struct tierce__block_jobs_state *out);

#endif
