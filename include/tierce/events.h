/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_EVENTS_H
#define TIERCE_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>
#include <tierce/key.h>
#include <tierce/why.h>

/*
 * What comes to the tiers of an engine and what leaves them, for whoever keeps a directory of it.
 *
 *     static void on_events(void *arg, const struct tierce_event_batch *batch)
 *     {
 *         if (batch->gap)
 *             resync(arg);                    // empties the set, then tierce_events_snapshot
 *         for (size_t i = 0; i < batch->count; i++)
 *             if (batch->events[i].sequence > covered(arg))
 *                 apply(arg, &batch->events[i]);
 *     }
 *     rc = tierce_events_subscribe(&subscription, engine, &(struct tierce_events_opts){
 *             .size = sizeof(struct tierce_events_opts), .fn = on_events, .arg = directory});
 *
 * The events of all tiers are numbered in one sequence, without holes; those of one tier come in
 * the order in which they happened. The engine keeps the last events.ring of them. Who is slower
 * loses the oldest and is told so: `gap`, and the numbers jump.
 *
 * How a snapshot and the stream fit together: a snapshot tells chunks and a number. Everything up
 * to this number is in it; perhaps also what came later. So: empty the set, take the snapshot into
 * it, skip the events up to the number and apply those after it in order. An ADMIT of what is there
 * and an EVICT of what is not change nothing. After the last event the set is what the tiers hold.
 *
 * Caveat: an event tells what was. A chunk that is said to be there may have left.
 */

#ifdef __cplusplus
extern "C" {
#endif

enum tierce_event_kind {
    TIERCE_EVENT_ADMIT = 1, /* it can be found in the tier from here on */
    TIERCE_EVENT_EVICT = 2, /* it cannot any more, for whatever reason */
};

struct tierce_event {
    uint64_t sequence; /* from 1; 0 in a snapshot */
    enum tierce_event_kind kind;
    enum tierce_miss_reason reason; /* EVICT: why it left */
    const char *tier;               /* [borrow while subscribed], as the namespace */
    const char *ns_text;            /* canonical text of the namespace; NULL if it is not known */
    const uint8_t *ns_digest;       /* its digest, 32 bytes */
    struct tierce_shard shard;
    bool has_parent;                        /* false: the first chunk of a sequence */
    uint8_t hash[TIERCE_HASH_BYTES];        /* of the chunk: that of its last block */
    uint8_t parent[TIERCE_HASH_BYTES];      /* of the chunk before */
    uint8_t first_block[TIERCE_HASH_BYTES]; /* of its first block */
    uint64_t token_start;
    uint32_t block_count;
    uint64_t object_bytes;
};

struct tierce_event_batch {
    const struct tierce_event *events; /* [borrow for the call] */
    size_t count;                      /* at least 1 */
    bool gap; /* events before the first one were lost; the first batch is no gap */
};

/* May block, which makes a gap likelier. May call everything of the engine but unsubscribe. */
typedef void tierce_events_fn(void *arg, const struct tierce_event_batch *batch);

struct tierce_events_opts {
    size_t size; /* sizeof(struct tierce_events_opts) */
    tierce_events_fn *fn;
    void *arg;
    uint32_t batch_max;   /* events of a batch, at most 4096; 0: 256 */
    uint32_t interval_ms; /* how long the first of a batch waits for more; 0: 100 */
};

struct tierce_subscription;

/*
 * From here on `fn` is called with batches, on a thread of the subscription, one at a time. What is
 * in the tiers already is told by a snapshot. Holds the engine open. [borrow] opts for the call.
 * Errors, *out untouched: TIERCE_E_ARGUMENT, TIERCE_E_CLOSED (the engine of another process),
 * -ENOMEM, negative errno (a thread cannot be started). Thread: any. Does not block.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_events_subscribe(struct tierce_subscription **out,
                                                      struct tierce_engine *engine,
                                                      const struct tierce_events_opts *opts);

/* Waits for a call of `fn` that runs; there is none after it. May close the engine. NULL is
 * accepted. Thread: any but that of the subscription. */
TIERCE_API void tierce_events_unsubscribe(struct tierce_subscription *subscription);

/*
 * Calls `fn` with batches of ADMITs that together are what the tiers hold, from this thread, before
 * it returns. [out] *sequence: the number that the snapshot covers.
 * Errors, *sequence untouched: TIERCE_E_CLOSED, -ENOMEM. Thread: any, that of the subscription too.
 * Does not block on a device.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_events_snapshot(struct tierce_subscription *subscription,
                                                     uint64_t *sequence, tierce_events_fn *fn,
                                                     void *arg);

#ifdef __cplusplus
}
#endif

#endif
