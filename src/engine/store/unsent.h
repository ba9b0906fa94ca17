/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_UNSENT_H
#define TIERCE_ENGINE_UNSENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The chunks of stores that a remote store or the disk did not get: how many, by reason, and the
 * last TIERCE__UNSENT_MAX of those that may be sent later. Chunks are remembered by their records,
 * without their bytes. Once the tier is in service and at most half of its queue is in use, a
 * thread takes each remembered chunk from memory or from a faster local tier, and gives it to the
 * tier's queue: in the order of their stores, and not before the tier has answered all earlier
 * ones, because it takes no chunk without its prefix.
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

#define TIERCE__UNSENT_MAX 16384u /* chunks for each tier, 184 bytes each */

struct tierce_engine;
struct tierce__key;
struct tierce__level;
struct tierce__storage_chunk;
struct tierce__unsent_chunk;

enum tierce__unsent_reason {
    TIERCE__UNSENT_DOWN,    /* the tier was out of service */
    TIERCE__UNSENT_FAILED,  /* the write failed or was late, or the tier permits no writes */
    TIERCE__UNSENT_QUEUE,   /* the queue was full */
    TIERCE__UNSENT_FULL,    /* the tier had no room */
    TIERCE__UNSENT_NO_KEY,  /* there was no key to encrypt the chunk */
    TIERCE__UNSENT_REFUSED, /* the chunk before it is not in the tier, or the tier rejects it */
    TIERCE__UNSENT_REASONS
};
const char *tierce__unsent_reason_name(enum tierce__unsent_reason reason);

/* Of a level; all fields are under ENGINE. */
struct tierce__unsent {
    struct tierce__unsent_chunk *chunks; /* a ring, in the order in which the chunks were stored;
                                            NULL: nothing is counted */
    uint32_t first, count;
    bool pass_fails;    /* a chunk of the present pass could not be sent: its successors wait too */
    uint32_t sending;   /* late chunks in the hands of the thread or the tier */
    uint64_t in_hand;   /* serial of the chunk in the hands of the thread, or 0 */
    int unsaid_loss;    /* of the disk: why a chunk was lost, until a flush has returned it */
    uint64_t try_ns;    /* the earliest time of the next attempt */
    bool is_outage;     /* since a chunk was not sent because of an outage, until none waits */
    bool lacks_room;    /* of an outage: the tier is in service, but has no room */
    uint64_t from_late; /* values of the counters at the beginning of the outage */
    uint64_t from_lost;
    uint64_t skipped[TIERCE__UNSENT_REASONS];
    uint64_t sent_late, lost;
    uint64_t drops_logged, drop_ns, logged_ns; /* for ..._puts_dropped */
    pthread_t thread;
    bool has_thread, runs, stops;
};

/* For a remote store that is written, and for the disk. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__unsent_init(struct tierce__level *level);
void tierce__unsent_fini(struct tierce__level *level);

/* The answer of a PUT of a store, if it is negative; or any answer of a late one. */
struct tierce__unsent_answer {
    const struct tierce__storage_chunk *chunk;
    uint64_t serial; /* not 0; grows in the order in which chunks are stored, which is not that of
                        their answers */
    bool is_late;
    bool forgets; /* the chunk is not sent later */
    int status;
};
/* Nothing is done for a tier without init. Takes ENGINE. */
void tierce__unsent_note(struct tierce__level *level, const struct tierce__unsent_answer *answer);

/* For the keeper: starts threads for tiers that have room, and logs dropped chunks. */
void tierce__unsent_keep(struct tierce_engine *engine);

/* Before the keeper ends: blocks while chunks are being sent late that a flush would wait for. */
void tierce__unsent_drain(struct tierce_engine *engine, uint64_t deadline_ns);

/* Before the tiers are closed: ends the threads, and logs the chunks that still wait. */
void tierce__unsent_stop(struct tierce_engine *engine);

/* A clear of the tier: chunks of that namespace that wait (of: NULL: all) are not sent later. A
 * clear is no loss that a flush returns. */
void tierce__unsent_clear(struct tierce__level *level, const struct tierce__key *of);

/* Blocks while chunks that wait now are being sent late: those for the disk, and those of an outage
 * of a remote store. Returns 0 if none of them waits any more; TIERCE_E_DOWN if some wait for a
 * tier that is out of service or fails; TIERCE_E_FULL if some wait for a tier without room, or
 * chunks that the disk's queue dropped wait while the engine does not store, or were lost since the
 * last call that returned it; TIERCE_E_DEADLINE; or the first failure of a late write. */
TIERCE_MUSTUSE int tierce__unsent_wait(struct tierce_engine *engine, uint64_t deadline_ns);

struct tierce__unsent_report {
    uint64_t skipped[TIERCE__UNSENT_REASONS];
    uint64_t chunks; /* sum of these; = sent_late + lost + waiting */
    uint64_t sent_late, lost, waiting;
};
void tierce__unsent_report(struct tierce__level *level, struct tierce__unsent_report *out);

#endif
