/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_WATERFALL_H
#define TIERCE_ENGINE_WATERFALL_H

#include <stdatomic.h>

#include <tierce/engine.h>

#include "engine/health/health.h"
#include "engine/store/unsent.h"
#include "store/tier.h"

/*
 * The tiers of an engine in their waterfall (storage.c): find, lease, allocate, publish, write to
 * all, quarantine, flush. A *level* is a tier's place in it.
 *
 * No tier is called with a lock of the engine held. Thread: any. Blocks where it says so.
 */

#define TIERCE__TIERS_MAX 8

/* A tier in its place in the waterfall: 0 is the fastest and always memory. */
struct tierce__level {
    struct tierce_engine *engine;
    const char *policy; /* its name, constant storage; "" where the tier has none */
    struct tierce__tier *tier;
    struct tierce__health health;
    _Atomic uint64_t measure_tried_ns;   /* cost.c */
    struct tierce__connector *connector; /* of a remote store [borrow while the tier is open] */
    enum tierce_origin origin;           /* the origin of blocks loaded from it */
    uint64_t window_bytes;               /* that a prefetch may request ahead */
    struct tierce__tier *coded;          /* of a disk: the tier that encodes and decodes, for its
                                            statistics; else NULL */
    bool decodes;                        /* of a remote store: `connector` encodes and decodes */
    uint64_t store;                      /* of a remote store: its number in tombstones */
    bool is_read_only;                   /* of a remote store: no chunk is sent to it */
    struct tierce__unsent unsent;        /* of a remote store or disk: chunks that it did not get */
    uint64_t queue_bytes;                /* of the chunks that may wait to be written */
    uint64_t queue_chunks;               /* their maximum number: each occupies a slot of memory */
    uint64_t unwritten_bytes;            /* of PUTs without an answer, and promised ones */
    uint64_t unwritten_chunks;           /* the number of these */
    uint64_t dropped_puts;               /* that the tier was not given: queue_chunks */
    uint64_t written_ns; /* when it last wrote a chunk, or the first of these came */
    _Atomic uint64_t
        deletes_after_ns; /* of a remote store that could not delete; objects_remove.c */
};

/* A chunk's entry in the indexes. */
struct tierce__storage_chunk {
    struct tierce__key key;
    struct tierce__key parent;
    bool has_parent;
    uint8_t first_block[TIERCE_HASH_BYTES];
    uint64_t object_bytes;
    uint64_t token_start;
    uint32_t block_count;
    struct tierce__policy_origin origin;
};

/*
 * The longest prefix of keys that some tier holds, found as a waterfall: each tier is queried only
 * for keys that the faster ones lack, but all remote stores in parallel (asks.h). places[i] (or
 * NULL) = level of key i. Waits for remote stores, timeout.lookup at most over all of them.
 */
size_t tierce__storage_find(struct tierce_engine *engine, const struct tierce__key *keys,
                            size_t count, size_t level_limit, uint8_t *places);

/* The tier that could not be queried for the first missing key; status 0: all were queried. */
struct tierce__unasked {
    size_t level;
    int status;
    bool pending;       /* a query is in progress: the next search may find more */
    uint64_t since_ns;  /* pending: when it began */
    uint64_t answer_ns; /* pending: how long a query of few keys took recently; 0: not known */
};

/* The same over `levels`, a bit for each; also returns those that could not be queried. */
size_t tierce__storage_search(struct tierce_engine *engine, uint32_t levels,
                              const struct tierce__key *keys, size_t count, uint8_t *places,
                              struct tierce__unasked *unasked);

/* The same, with options. */
struct tierce__search {
    uint32_t levels; /* a bit for each that is searched */
    /* Limit of the wait for remote stores. If it has passed, the search does not wait, but still
     * queries them for the next search. */
    uint64_t deadline_ns;
    /* Without a wait: the stores are to send their answers in part after this time. 0: after
     * timeout.lookup, as they do at the latest. */
    uint64_t part_ns;
    bool asks_anew;    /* ignore remembered answers: for named values, which others may replace */
    bool believes_old; /* use remembered hits that have expired: for loads */
    uint8_t *places;   /* [count], or NULL */
    struct tierce__unasked unasked; /* [out] */
};
size_t tierce__storage_search_until(struct tierce_engine *engine, struct tierce__search *search,
                                    const struct tierce__key *keys, size_t count);

/* Returns how many leading keys a remote level holds according to remembered answers. *status: 0 if
 * the next key is remembered as absent; TIERCE_E_DEADLINE if it is not remembered; or the reason
 * why the level is not queried. */
size_t tierce__storage_recall(struct tierce_engine *engine, size_t level,
                              const struct tierce__key *keys, size_t count,
                              enum tierce__tier_recall recall, int *status);

/* How many leading keys one durable tier holds durably. */
size_t tierce__storage_find_durable(struct tierce_engine *engine, const struct tierce__key *keys,
                                    size_t count);

/* Probes the tiers that are out of service and due for a probe. */
void tierce__storage_probe(struct tierce_engine *engine);

/* Chunks of a level that begin with a block: siblings[0 .. returned), TIERCE__SIBLINGS_MAX at most.
 * [in] first: with the hash of that block. */
size_t tierce__storage_siblings(struct tierce_engine *engine, size_t level,
                                struct tierce__sibling *siblings, const struct tierce__key *first,
                                uint64_t deadline_ns);

/* A buffer that is in no tier, evicting by policy; or NULL. Does not wait. */
struct tierce__buf *tierce__storage_alloc(struct tierce_engine *engine, uint64_t bytes);

/* A chunk in one of the slower tiers: the length of the raw object, and the form in which it is
 * stored (store_req.h). */
struct tierce__storage_form {
    uint64_t bytes;
    uint64_t coded_bytes, stored; /* coded_bytes 0: it is raw */
};

/* For a tier that is not shared. Errors: TIERCE_E_MISS, TIERCE_E_DOWN (out of service), the tier's.
 * Waits for no device. */
TIERCE_MUSTUSE int tierce__storage_measure(struct tierce_engine *engine, size_t level,
                                           const struct tierce__key *key, uint64_t deadline_ns,
                                           struct tierce__storage_form *out);

/* Whether some tier holds this one chunk. */
bool tierce__storage_has(struct tierce_engine *engine, const struct tierce__key *key);

/* A reference on the memory tier's buffer, or NULL. */
struct tierce__buf *tierce__storage_lease(struct tierce_engine *engine,
                                          const struct tierce__key *key);

/* The same; its release takes no lock. */
struct tierce__buf *tierce__storage_lend(struct tierce_engine *engine,
                                         const struct tierce__key *key);

/* How many leading keys memory holds; bufs[0 .. *leased): a reference on the buffer of each, for
 * the leading buffers with at most `bytes` in total. bufs: room for count. */
size_t tierce__storage_lease_prefix(struct tierce_engine *engine, const struct tierce__key *keys,
                                    size_t count, struct tierce__buf **bufs, uint64_t bytes,
                                    size_t *leased);

/* The tier's statistics; dropped_puts includes those that it was not given. */
void tierce__storage_stats(struct tierce__level *level, struct tierce__tier_stats *out);

/* The maximum number of chunks in memory. */
uint64_t tierce__storage_slots(struct tierce_engine *engine);
/* Whether memory has bytes for a chunk, but holds its maximum number of chunks. */
bool tierce__storage_lacks_slot(struct tierce_engine *engine, uint64_t bytes);

/* A pool buffer for a chunk that will be published, evicting by policy; NULL when nothing can be
 * evicted. [in] before: the buffer of the chunk before it, or NULL. Does not wait. */
struct tierce__buf *tierce__storage_reserve(struct tierce_engine *engine,
                                            const struct tierce__storage_chunk *chunk,
                                            const struct tierce__buf *before);

/* The same for a chunk that memory does not need: if there is no room, its policy may refuse it.
 * [in, out] *refused: whether the chunk before it was refused, then whether this one is. */
struct tierce__buf *tierce__storage_reserve_worthy(struct tierce_engine *engine,
                                                   const struct tierce__storage_chunk *chunk,
                                                   const struct tierce__buf *before, bool *refused);

/* Publishes a sealed chunk in memory. Returns 0, 1 if it was already there, or the memory tier's
 * status. */
TIERCE_MUSTUSE int tierce__storage_publish(struct tierce_engine *engine,
                                           const struct tierce__storage_chunk *chunk,
                                           struct tierce__buf *buf);

/* Publishes a sealed chunk in memory, atomically replacing an existing one. Returns 0 or the memory
 * tier's status. */
TIERCE_MUSTUSE int tierce__storage_replace(struct tierce_engine *engine,
                                           const struct tierce__storage_chunk *chunk,
                                           struct tierce__buf *buf);

/*
 * A store's writes to the slower tiers. Their memory is allocated when they begin, so that no write
 * fails here for lack of it, and lives until the last one was answered. Then the keys of the
 * store's request are touched in that tier, in order.
 *
 *     rc = tierce__storage_begin_writes(&writes, engine, levels, chunk_max, key_max);
 *     tierce__storage_write(writes, &chunk, buf);     // for each chunk
 *     tierce__storage_end_writes(writes, keys, key_count);
 *
 * Thread: one at a time.
 */
struct tierce__writes;

/* levels: a bit for each tier that is to be written; memory is ignored. *out is NULL if there is no
 * slower tier; write and end accept that. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__storage_begin_writes(struct tierce__writes **out,
                                                struct tierce_engine *engine, uint32_t levels,
                                                size_t chunk_max, size_t key_max);

/* Gives a sealed chunk to the queue of every tier that is written and in service. Best effort: a
 * tier counts chunks that it rejects. Those of a remote store or disk are sent later if possible
 * (unsent.h); others are stored again after a miss. */
void tierce__storage_write(struct tierce__writes *writes, const struct tierce__storage_chunk *chunk,
                           struct tierce__buf *buf);

/* The keys are copied; without keys, no chunk is touched. */
void tierce__storage_end_writes(struct tierce__writes *writes, const struct tierce__key *keys,
                                size_t count);

/* Writes one chunk. is_used: the write is a use of it, so that the next use counts as another one.
 * Without memory it is not written; the next flush reports that. */
void tierce__storage_write_one(struct tierce_engine *engine, uint32_t levels,
                               const struct tierce__storage_chunk *chunk, struct tierce__buf *buf,
                               bool is_used);

/* Whether the level still writes chunks that were stored before the one with that serial number.
 * Under ENGINE. */
bool tierce__storage_writes_before(const struct tierce__level *level, uint64_t number);

/* Gives a tier a chunk that it did not get when the chunk was stored (unsent.h). */
void tierce__storage_write_late(struct tierce_engine *engine, size_t level,
                                const struct tierce__storage_chunk *chunk, uint64_t serial,
                                struct tierce__buf *buf);

/*
 * A promise of room in the queues of slower tiers: while it lasts, the tiers do not drop the
 * chunk's writes. False: a queue has no room now; tierce__pool_tell_room is called when that may
 * have changed. Ignored are tiers that are out of service, and tiers that have written nothing for
 * timeout.load. The promise must end after tierce__storage_write, or without it.
 */
TIERCE_MUSTUSE bool tierce__storage_promise(struct tierce_engine *engine, uint32_t levels,
                                            uint64_t bytes);
void tierce__storage_end_promise(struct tierce_engine *engine, uint32_t levels, uint64_t bytes);

/* Waits for all writes, and other requests in the background, that were in progress when it was
 * called; it does not wait for later ones, so that continuous stores cannot delay a flush. Returns
 * the first failure of a write that no flush has reported yet, or TIERCE_E_DEADLINE. */
TIERCE_MUSTUSE int tierce__storage_wait_for_puts(struct tierce_engine *engine,
                                                 uint64_t deadline_ns);

/* Counts and logs a chunk that proved wrong, and deletes it from the tier; one of another version
 * is hidden instead: a miss from here on, and kept for the build that wrote it. */
void tierce__storage_quarantine(struct tierce_engine *engine, size_t level,
                                const struct tierce__key *key, int why);

/* Deletes a chunk from a tier in the background. */
void tierce__storage_drop(struct tierce_engine *engine, size_t level, const struct tierce__key *key,
                          enum tierce__tier_left left);

/* Fills the PUT of a sealed chunk; the caller adds done, arg and other fields. [borrow until done]
 * chunk, buf. */
void tierce__storage_fill_put(struct tierce__store_req *req,
                              const struct tierce__storage_chunk *chunk, struct tierce__buf *buf);

/* Puts a sealed chunk into a level and blocks for the answer, for at most the level's deadline.
 * TIERCE_E_CANCELLED if there was a clear since the era (operate.h) in which it was read. */
TIERCE_MUSTUSE int tierce__storage_put(struct tierce_engine *engine, size_t level, uint64_t era,
                                       const struct tierce__storage_chunk *chunk,
                                       struct tierce__buf *buf);

/* Replaces the stored bytes of a chunk in a durable tier (store_req.h): compressed, coded_bytes in
 * buf, or, if 0, uncompressed. Blocks as put. Errors: those of such a PUT. */
TIERCE_MUSTUSE int tierce__storage_recode(struct tierce_engine *engine, size_t level,
                                          const struct tierce__storage_chunk *chunk,
                                          struct tierce__buf *buf, uint64_t coded_bytes);

/* Deletes a chunk from a tier; a missing chunk is not an error. */
void tierce__storage_delete(struct tierce_engine *engine, size_t level,
                            const struct tierce__key *key);

/* Makes earlier removals from a tier durable, if the tier is durable; added chunks may stay
 * undurable. Waits. */
TIERCE_MUSTUSE int tierce__storage_settle(struct tierce_engine *engine, size_t level,
                                          uint64_t deadline_ns);

/* Deletes a chunk from a tier durably, so that it cannot reappear after a crash; also if the tier
 * is out of service. Returns 1 if it was stored, 0 if not, or an error if its removal cannot be
 * promised. Blocks. */
TIERCE_MUSTUSE int tierce__storage_remove(struct tierce_engine *engine, size_t level,
                                          const struct tierce__key *key, uint64_t deadline_ns);

/* The same without a sync. *unsettled is set if the chunk could reappear: after a crash before the
 * next sync, or at any time from a store that keeps what it has (TIERCE__TIER_KEEPS). */
TIERCE_MUSTUSE int tierce__storage_remove_unsynced(struct tierce_engine *engine, size_t level,
                                                   const struct tierce__key *key,
                                                   uint64_t deadline_ns, bool *unsettled);

/* Whether a chunk of that key that was removed from a durable level could reappear after a crash,
 * because no sync has covered the removal yet. Waits. */
bool tierce__storage_may_return(struct tierce_engine *engine, size_t level,
                                const struct tierce__key *key, uint64_t deadline_ns);

/* Reads the beginning of a chunk of a slower level, as much as the buffer holds. Waits. */
TIERCE_MUSTUSE int tierce__storage_read_head(struct tierce_engine *engine, size_t level,
                                             const struct tierce__key *key, struct tierce__buf *buf,
                                             uint64_t deadline_ns);

/* Clears a tier, also one that is out of service; of: a key of the only namespace to clear, or
 * NULL. Returns the chunks that left, or why it could not. */
TIERCE_MUSTUSE int64_t tierce__storage_forget(struct tierce_engine *engine, size_t level,
                                              const struct tierce__key *of);
/* Ends the puts of a namespace to a remote store, and forgets its remembered answers. */
TIERCE_MUSTUSE int tierce__storage_end_puts(struct tierce_engine *engine, size_t level,
                                            const struct tierce__key *of);

/* Marks chunks as used in the tiers [first, levels), the first key ending up newest. */
void tierce__storage_touch(struct tierce_engine *engine, size_t first, size_t levels,
                           const struct tierce__tier_uses *uses);

/*
 * Submits through the level's breaker. False: the breaker is open, nothing was submitted and done
 * will not be called. True: done will be called, and must pass the request to storage_note.
 */
TIERCE_MUSTUSE bool tierce__storage_submit(struct tierce_engine *engine, size_t level,
                                           struct tierce__store_req *req);
void tierce__storage_note(struct tierce_engine *engine, size_t level,
                          const struct tierce__store_req *req);

/* Probes a tier that is out of service, if a probe is due, with a background read of a chunk that
 * it has held, or else of the given chunk. */
void tierce__storage_try(struct tierce_engine *engine, size_t level,
                         const struct tierce__key *asked);

/* Asks a remote store for a chunk, in the background, whatever the answer. */
void tierce__storage_ask(struct tierce_engine *engine, size_t level, const struct tierce__key *key);

/* Reads the first `bytes` of a chunk in the background, to measure the tier. */
void tierce__storage_sample(struct tierce_engine *engine, size_t level,
                            const struct tierce__key *key, uint64_t bytes);

#endif
