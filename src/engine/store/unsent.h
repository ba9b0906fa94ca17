/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_UNSENT_H
#define TIERCE_ENGINE_UNSENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The chunks of stores that a remote store did not get: how many, by reason, and the last
 * TIERCE__UNSENT_MAX of those that may be sent later. Chunks are remembered by their records,
 * without their bytes. Once the store is in service and at most half of its queue is in use, a
 * thread takes each remembered chunk from memory or from a local tier, and gives it to the store's
 * queue.
 *
 *     store answers a PUT with an error -> counted -> remembered -> sent late
 *                                            |            \-> lost: overwritten, in no local tier,
 *                                            |                or rejected again
 *                                            \-> lost: the reason does not end by itself
 *
 * After a failure, the first chunk is sent alone, at the earliest after breaker.retry, so that a
 * store that keeps failing costs one write each time.
 *
 * Named values are counted and never remembered: a value may have been replaced since.
 *
 * Thread: any.
 */

#define TIERCE__UNSENT_MAX 16384u /* chunks for each remote store, 184 bytes each */

struct tierce_engine;
struct tierce__level;
struct tierce__storage_chunk;
struct tierce__unsent_chunk;

enum tierce__unsent_reason {
    TIERCE__UNSENT_DOWN,    /* the store was out of service */
    TIERCE__UNSENT_FAILED,  /* the write failed or was late, or the store permits no writes */
    TIERCE__UNSENT_QUEUE,   /* the queue was full */
    TIERCE__UNSENT_NO_KEY,  /* there was no key to encrypt the chunk */
    TIERCE__UNSENT_REFUSED, /* the chunk before it is not in the store, or the store rejects it */
    TIERCE__UNSENT_REASONS
};
const char *tierce__unsent_reason_name(enum tierce__unsent_reason reason);

/* Of a level; all fields are under ENGINE. */
struct tierce__unsent {
    struct tierce__unsent_chunk *chunks; /* a ring, in the order in which the chunks were stored;
                                            NULL: nothing is remembered */
    uint32_t first, count;
    uint64_t serial;    /* of the last chunk */
    bool pass_fails;    /* a chunk of the present pass could not be sent: its successors wait too */
    uint32_t sending;   /* late chunks in the hands of the thread or the store */
    uint64_t try_ns;    /* the earliest time of the next attempt */
    bool is_outage;     /* since a chunk was not sent because of an outage, until none waits */
    uint64_t from_late; /* values of the counters at the beginning of the outage */
    uint64_t from_lost;
    uint64_t skipped[TIERCE__UNSENT_REASONS];
    uint64_t sent_late, lost;
    uint64_t drops_logged, drop_ns, logged_ns; /* for remote_puts_dropped */
    pthread_t thread;
    bool has_thread, runs, stops;
};

/* For a remote store that is written. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__unsent_init(struct tierce__level *level);
void tierce__unsent_fini(struct tierce__level *level);

/* The answer of a PUT of a store, if it is negative; or any answer of a late one. remembers: the
 * chunk may be sent later. late: the serial of a late chunk, else 0. Takes ENGINE. */
void tierce__unsent_note(struct tierce__level *level, const struct tierce__storage_chunk *chunk,
                         int status, bool remembers, uint64_t late);

/* For the keeper: starts threads for stores that are back, and logs dropped chunks. */
void tierce__unsent_keep(struct tierce_engine *engine);

/* Before the tiers are closed: ends the threads, and logs the chunks that still wait. */
void tierce__unsent_stop(struct tierce_engine *engine);

/* Blocks while chunks of an outage are being sent late. Returns 0 if none waits, TIERCE_E_DOWN if
 * some wait for a store that is out of service or fails, or TIERCE_E_DEADLINE. */
TIERCE_MUSTUSE int tierce__unsent_wait(struct tierce_engine *engine, uint64_t deadline_ns);

struct tierce__unsent_report {
    uint64_t skipped[TIERCE__UNSENT_REASONS];
    uint64_t chunks; /* sum of these; = sent_late + lost + waiting */
    uint64_t sent_late, lost, waiting;
};
void tierce__unsent_report(struct tierce__level *level, struct tierce__unsent_report *out);

#endif
