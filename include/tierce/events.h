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
 * Events about chunks that tiers of an engine admit and evict, for programs that keep a directory
 * of the engine's contents.
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
 * The events of all tiers have consecutive numbers in one sequence. The events of one tier come in
 * the order in which they happened. The engine keeps the last events.ring events. A subscriber that
 * falls behind loses the oldest ones; `gap` is set then, and the numbers skip.
 *
 * A snapshot consists of chunks and a number N. It contains the effect of every event up to N, and
 * perhaps of later ones. To build a directory: empty the set, take the snapshot into it, skip
 * events up to N, and apply the later ones in order. An ADMIT of a chunk in the set and an EVICT of
 * a chunk outside it change nothing. After the last event the set equals the contents of the tiers.
 *
 * Caveat: an event describes the past. An admitted chunk may have been evicted since.
 */

#ifdef __cplusplus
extern "C" {
#endif

enum tierce_event_kind {
    TIERCE_EVENT_ADMIT = 1, /* the chunk can be found in the tier from now on */
    TIERCE_EVENT_EVICT = 2, /* the chunk can no longer be found, for any reason */
};

struct tierce_event {
    uint64_t sequence; /* from 1; 0 in a snapshot */
    enum tierce_event_kind kind;
    enum tierce_miss_reason reason;    /* EVICT: why it was removed; else TIERCE_MISS_NONE */
    const char *tier;                  /* its name; [borrow while subscribed] */
    const char *ns_text;               /* canonical text of the namespace; NULL if it is not known;
                                          [borrow while subscribed] */
    const uint8_t *ns_digest;          /* its digest, 32 bytes; [borrow while subscribed] */
    struct tierce_shard shard;         /* the ranks of the chunk's owner */
    bool has_parent;                   /* false: the first chunk of a sequence */
    uint8_t hash[TIERCE_HASH_BYTES];   /* of the chunk: that of its last block */
    uint8_t parent[TIERCE_HASH_BYTES]; /* of the previous chunk; zeroes without one */
    uint8_t first_block[TIERCE_HASH_BYTES]; /* of its first block */
    uint64_t token_start;                   /* index of its first token in the sequence */
    uint32_t block_count;                   /* of the engine's blocks */
    uint64_t object_bytes;                  /* of the stored chunk, header included */
};

struct tierce_event_batch {
    const struct tierce_event *events; /* [borrow for the call] */
    size_t count;                      /* at least 1 */
    bool gap; /* events since the last batch, or since the subscription, were lost */
};

/*
 * Receives a batch. May block, which makes a gap more likely. May call any function of the engine
 * except tierce_events_unsubscribe. To keep an event, copy it.
 */
typedef void tierce_events_fn(void *arg, const struct tierce_event_batch *batch);

struct tierce_events_opts {
    size_t size;          /* sizeof(struct tierce_events_opts) */
    tierce_events_fn *fn; /* must not be NULL */
    void *arg;            /* [borrow until unsubscribe returns] */
    uint32_t batch_max;   /* events of a batch, at most 4096; 0: 256 */
    uint32_t interval_ms; /* how long an event may wait for others of its batch; a full batch is
                             delivered at once; 0: 100 */
};

struct tierce_subscription;

/*
 * Calls `fn` with batches of events from now on, one at a time, on a thread of the subscription.
 * Use a snapshot for chunks that the tiers already hold. Keeps the engine open. [borrow] opts for
 * the call. [transfer] *out to the caller, who unsubscribes. Errors, *out untouched:
 * TIERCE_E_ARGUMENT, TIERCE_E_CLOSED (the engine of another process), TIERCE_E_UNSUPPORTED (the
 * engine is a client of a node), -ENOMEM, negative errno (a thread cannot be started).
 * Thread: any. Does not block.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_events_subscribe(struct tierce_subscription **out,
                                                      struct tierce_engine *engine,
                                                      const struct tierce_events_opts *opts);

/* Waits for a running call of `fn`; `fn` is not called after that. May close the engine. NULL is
 * accepted. Thread: any but that of the subscription. */
TIERCE_API void tierce_events_unsubscribe(struct tierce_subscription *subscription);

/*
 * Calls `fn` with batches of ADMIT events for all chunks in the tiers, on this thread, before it
 * returns. A chunk in several tiers has an event for each. [out] *sequence: the number that the
 * snapshot covers.
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
