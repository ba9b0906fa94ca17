/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_PRIVATE_H
#define TIERCE_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include <tierce/engine.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/semaphore.h"
#include "core/chunk/header.h"
#include "core/chunk/pool.h"
#include "engine/objects/smalls.h"
#include "engine/observe/access_log.h"
#include "engine/asks.h"
#include "engine/health/cost.h"
#include "engine/health/health.h"
#include "engine/load/fetch.h"
#include "engine/objects/object_names.h"
#include "engine/objects/tombstones.h"
#include "engine/store/storing.h"
#include "core/key/namespaces.h"
#include "store/disk/disk.h"
#include "store/tier.h"

/*
 * Shared by the files of the engine. The story of a store is in store.c, of a load in load.c, of a
 * lookup in lookup.c; storage.c drives the tiers below them; fetch.c reads chunks from them;
 * sessions.c keeps the pins.
 *
 * Lock order: base/locks.def. No tier is called with a lock of the engine held.
 */

#define TIERCE__ENGINE_MAGIC       0x7e1e0001u
#define TIERCE__VIEW_MAGIC         0x7e1e0002u
#define TIERCE__STORE_MAGIC        0x7e1e0003u
#define TIERCE__LOAD_MAGIC         0x7e1e0004u
#define TIERCE__PREFETCH_MAGIC     0x7e1e0005u
#define TIERCE__OBJECTS_MAGIC      0x7e1e0006u
#define TIERCE__OBJECT_MAGIC       0x7e1e0007u
#define TIERCE__SUBSCRIPTION_MAGIC 0x7e1e0008u

#define TIERCE__TIERS_MAX    8
#define TIERCE__SESSION_BINS 256
#define TIERCE__USE_SETS     512
#define TIERCE__USE_WAYS     8

enum tierce__stat {
#define TIERCE_STAT(name, text) TIERCE__STAT_##name,
#include <tierce/stats.def>
#undef TIERCE_STAT
    TIERCE__STAT_COUNT
};

/* See backfill.h. Under ENGINE, except the counters, which are relaxed atomics. */
struct tierce__backfill {
    pthread_t thread;
    bool has_thread; /* not yet joined */
    bool is_running, has_failed;
    bool stops, stops_for_good;
    const char *reason; /* constant storage; NULL before the first */
    uint64_t bytes_per_s, began_ns, ended_ns, chunks;
    _Atomic uint64_t seen, sent, sent_bytes, there, refused, unreadable;
};

/* The engine's parameters as plain values. */
struct tierce__settings {
    uint64_t memory_bytes;
    uint64_t pin_bytes_max;
    uint64_t prefetch_bytes_max;
    uint32_t lookup_ms;
    uint32_t load_ms;
    uint32_t prefetch_ms;
    uint32_t pin_ms;
    uint32_t store_ms;
    uint32_t close_ms;
    struct tierce__health_limits health;
    bool cost_check;
    uint64_t cost_read_bytes_per_s; /* of slow tiers; 0: as measured */
    uint64_t cost_prefill;          /* tokens a second; 0: as measured */
    bool siblings;
    bool has_disk;      /* disk.path is set */
    bool recompute_all; /* while a tier is out of service, the others are not queried either */
};

/* A tier in its place in the waterfall: 0 is the fastest and always memory. */
struct tierce__rung {
    struct tierce_engine *engine;
    const char *policy; /* its name, constant storage; "" where the tier has none */
    struct tierce__tier *tier;
    struct tierce__health health;
    _Atomic uint64_t measure_tried_ns; /* cost.c */
    enum tierce_origin origin;         /* the origin of blocks loaded from it */
    uint64_t window_bytes;             /* that a prefetch asks of it ahead */
    uint64_t store;                    /* of a remote store: its number in tombstones */
    _Atomic uint64_t
        deletes_after_ns; /* of a remote store that could not delete; objects_remove.c */
};

/* The prefetches of an engine whose handles have not been released. */
struct tierce__prefetches {
    struct tierce__lock lock; /* PREFETCH: the list, and the mutable state of prefetches */
    struct tierce__list list;
    struct tierce__semaphore memory; /* bytes that are being read and not published yet */
};

/* An engine is in the registry from before it opens its folder until after it has closed it. */
enum tierce__engine_state { TIERCE__ENGINE_OPENING, TIERCE__ENGINE_OPEN, TIERCE__ENGINE_CLOSING };

/* A session's use of its chain; id 0: none. */
struct tierce__use {
    const struct tierce_view *view;
    uint64_t id;
    uint64_t blocks; /* the leading ones that it has used */
    size_t promised; /* chunks, where its lookup left the next to computing; SIZE_MAX: it did not */
};

struct tierce_engine {
    uint32_t magic;
    uint32_t generation; /* of the process that opened it; see tierce__engine_inherited */

    /* Under REGISTRY. */
    uint32_t refs;
    enum tierce__engine_state state;
    uint64_t close_deadline_ns; /* once it is closing */
    struct tierce__list registry_node;
    char *disk_path; /* canonical path of the store folder; "" without one */

    char disk_error[TIERCE__DISK_WHY_BYTES]; /* why it could not be opened, or "" */

    char *identity; /* canonical configuration: equal ones share an engine */
    uint64_t opened_ns;
    struct tierce__control *control; /* or NULL */
    struct tierce__settings settings;
    _Atomic int mode; /* enum tierce_mode; relaxed: applies to operations that begin later */

    struct tierce__line_log *access_log;   /* or NULL */
    struct tierce__departures *departures; /* or NULL */
    struct tierce__events *events;
    struct tierce__namespaces *namespaces;
    struct tierce__lmcache_names *lmcache_names; /* for a store in LMCache's layout, or NULL */
    const struct tierce__lender *lender;
    struct tierce__pool *pool;
    struct tierce__smalls *smalls; /* small named values in memory; NULL without tiers */
    struct tierce__client
        *client; /* instead of tiers and a pool: asks a node (client.h); or NULL */
    struct tierce__rung rungs[TIERCE__TIERS_MAX];
    size_t rung_count;

    struct tierce__fetches fetches;
    struct tierce__asks asks;
    struct tierce__storing storing;
    struct tierce__joints {
        struct tierce__lock lock; /* JOINT */
        struct tierce__cond changed;
        struct tierce__list list;
    } joints; /* joint.h */
    struct tierce__object_names object_names;
    struct tierce__tombstones *_Atomic tombstones; /* NULL until the first space is opened */
    _Atomic uint32_t purges;       /* values with a tombstone that are being deleted */
    _Atomic uint64_t object_walks; /* walks over names begun so far (objects_scan.c) */
    struct tierce__backfill backfill;
    struct tierce__prefetches prefetches;
    /* Threads of tiers that call a tier from an answer: closing waits for them, because the waiter
     * for that call's own answer may already be closing the engine. */
    _Atomic uint32_t calling;
    /* The number of loans that do not fit into memory and pass through it: they do not wait for
     * memory themselves, and release it chunk by chunk until the last one. Loans that begin are
     * counted too, because they take memory before it is known whether they fit. */
    _Atomic uint32_t passing;

    struct tierce__lock lock; /* ENGINE: everything below */
    char role[32];            /* role of the process (tierce_engine_set_role) */
    struct tierce__cond changed;
    struct tierce__list views;
    struct tierce__list sessions[TIERCE__SESSION_BINS];
    uint64_t pinned_bytes;
    uint64_t session_count;
    struct tierce__use uses[TIERCE__USE_SETS][TIERCE__USE_WAYS]; /* the last first */
    struct tierce__list unattended; /* background requests in progress: queued PUTs and DELETEs, the
                                       oldest first */
    uint64_t unattended_made;       /* numbers them */
    int put_error;                  /* the first failure of a PUT that no flush has reported yet */
    bool closing;
    uint64_t era; /* operate.h */
    size_t publishing[2];
    size_t clears;    /* in progress */
    pthread_t keeper; /* ends pins at their deadline */
    bool keeper_runs;

    _Atomic int64_t counters[TIERCE__STAT_COUNT]; /* relaxed: summed by readers */
};

/* One chunk shape of a view, with the tables that spare a walk over the layers. */
struct tierce__shape {
    struct tierce__geometry geometry;
    struct tierce__extent extent;
    uint64_t *layer_offset; /* [layer_count + 1] in the object */
    /*
     * The object divided into segments at layer ends, rounded up to 4096. A segment is read in one
     * request. It is one layer, or several small ones that make a useful transfer.
     */
    uint32_t segment_count;
    uint64_t *segment_end;   /* [segment_count] in the object; the last is the object's end */
    uint32_t *layer_segment; /* [layer_count] the segment in which the layer ends */
};

struct tierce_view {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce__list node; /* under ENGINE: among the engine's views */
    uint32_t borrowers;       /* under ENGINE: closing waits for them */
    char *text;               /* canonical namespace */
    uint8_t ns_digest[TIERCE_HASH_BYTES];
    enum tierce_chain_algo algo;
    uint32_t chunk_blocks;
    struct tierce__key key; /* template: namespace and shard */
    uint32_t *cell_bytes;
    struct tierce__shape full;          /* of the whole chunk */
    struct tierce_part part;            /* the layers that loads and stores of the view move */
    struct tierce__client_view *remote; /* of a client of a node */
    struct tierce__prefill prefill;
    struct tierce__lmcache_form
        *lmcache; /* how LMCache sees it, where the engine has names; or NULL */
};

/* How long a lookup may wait for remote stores. */
static inline uint32_t tierce__lookup_wait_ms(const struct tierce_view *view,
                                              const struct tierce_lookup_opts *opts)
{
    uint32_t ms = view->engine->settings.lookup_ms;
    return opts->wait_ms > 0 && opts->wait_ms < ms ? opts->wait_ms : ms;
}

static inline void tierce__count(struct tierce_engine *engine, enum tierce__stat stat, int64_t n)
{
    atomic_fetch_add_explicit(&engine->counters[stat], n, memory_order_relaxed);
}

/* ---- engine.c ---- */

/* The next slower tier; while the engine is opened. [transfer] tier, on success of open. */
void tierce__engine_add_rung(struct tierce_engine *engine, struct tierce__tier *tier,
                             enum tierce_origin origin, const char *policy, uint64_t window_bytes);

/* One more reference, ended by tierce_engine_close. */
void tierce__engine_ref(struct tierce_engine *engine);

/*
 * Whether this process got the engine by fork. Its threads are not here, its locks may be held for
 * ever by them, and its files are the parent's: nothing of it may be touched, not even to free it.
 */
bool tierce__engine_inherited(const struct tierce_engine *engine);

/* ---- view.c ---- */

/* A view that is open on this namespace and shard, until it is given back, or NULL. For answers
 * about it that end soon: who closes it waits. */
struct tierce_view *tierce__view_borrow(struct tierce_engine *engine,
                                        const struct tierce__key *key);
void tierce__view_give_back(struct tierce_view *view);

/* A shape for chunks of `blocks` blocks. Errors: TIERCE_E_LIMIT, -ENOMEM. */
TIERCE_MUSTUSE int tierce__shape_init(struct tierce__shape *shape, const struct tierce_view *view,
                                      uint32_t blocks);
void tierce__shape_fini(struct tierce__shape *shape);

/*
 * The chunks that hold chain[0, to_block): keys of the whole ones and, last, of the unfull tail
 * that ends at end_block, if asked for one. A store's chunks end where its blocks end
 * (end_block == to_block); a lookup or load may want only the first blocks of the last chunk, whose
 * name then comes from blocks behind to_block, up to the end of the chain.
 */
struct tierce__keys {
    struct tierce__key *keys;
    size_t count; /* with the tail */
    size_t full_count;
    uint32_t tail_blocks; /* 0: no tail among the keys */
    size_t block_count;   /* blocks of all these chunks */
    struct tierce__key small[64];
};

TIERCE_MUSTUSE int tierce__keys_init(struct tierce__keys *keys, const struct tierce_view *view,
                                     const struct tierce_chain *chain, uint64_t to_block,
                                     uint64_t end_block, bool tail);
void tierce__keys_fini(struct tierce__keys *keys);
/* Wanted blocks, those before to_block, that the first `chunks` keys hold. */
uint64_t tierce__keys_blocks(const struct tierce__keys *keys, const struct tierce_view *view,
                             size_t chunks, uint64_t to_block);

/*
 * The required contents of the header of chunk `index` of a sequence, except its creation time: a
 * store writes them, a load compares them. [in] hashes: of all blocks of the sequence from 0 on;
 * root: the parent of block 0.
 */
void tierce__view_chunk_info(struct tierce__chunk_info *info, const struct tierce_view *view,
                             const struct tierce__shape *shape, size_t index, const uint8_t *hashes,
                             const uint8_t *root);

/* Whether the header of `object` is that of chunk `index` of a sequence, in full; [in] as above.
 * Returns 0 or why not. */
TIERCE_MUSTUSE int tierce__view_check_header(const struct tierce_view *view,
                                             const struct tierce__shape *shape, size_t index,
                                             const uint8_t *hashes, const uint8_t *root,
                                             const uint8_t *object);

/* The same without a hash: for a chunk that begins there and is another from some block on. */
void tierce__view_place_info(struct tierce__chunk_info *info, const struct tierce_view *view,
                             const struct tierce__shape *shape, size_t index, const uint8_t *hashes,
                             const uint8_t *root);

/* A chunk's entry in the indexes. */
struct tierce__storage_chunk {
    struct tierce__key key;
    struct tierce__key parent;
    bool has_parent;
    uint8_t first_block[TIERCE_HASH_BYTES];
    uint64_t object_bytes;
    uint64_t token_start;
    uint32_t block_count;
};

/* The record of chunk `index` of a sequence; [in] hashes as above. */
void tierce__view_describe(struct tierce__storage_chunk *out, const struct tierce_view *view,
                           const struct tierce__keys *keys, const struct tierce__shape *shape,
                           size_t index, const uint8_t *hashes);

/* Checks the parts of transfer options that do not depend on store or load. */
TIERCE_MUSTUSE int tierce__transfer_check(const struct tierce_view *view,
                                          const struct tierce_transfer_opts *opts);

/* A bit for each rung that a mask of 1u << enum tierce_origin names; all for 0. */
uint32_t tierce__rungs_of(const struct tierce_engine *engine, uint32_t tiers);

/* A bit for each rung that answers a lookup without a network. */
uint32_t tierce__rungs_local(const struct tierce_engine *engine);

/* ---- storage.c ---- */

/*
 * The longest prefix of keys that some tier holds, found as a waterfall: each tier is queried only
 * for keys that the faster ones lack, but all remote stores in parallel (asks.h). places[i] (or
 * NULL) = rung of key i. Waits for remote stores, timeout.lookup at most over all of them.
 */
size_t tierce__storage_find(struct tierce_engine *engine, const struct tierce__key *keys,
                            size_t count, size_t rung_limit, uint8_t *places);

/* The tier that could not be queried for the first missing key; status 0: all were queried. */
struct tierce__unasked {
    size_t rung;
    int status;
    bool pending; /* a query is in progress: the next search may find more */
};

/* The same over `rungs`, a bit for each; also returns those that could not be queried. */
size_t tierce__storage_search(struct tierce_engine *engine, uint32_t rungs,
                              const struct tierce__key *keys, size_t count, uint8_t *places,
                              struct tierce__unasked *unasked);

/* The same, with options. */
struct tierce__search {
    uint32_t rungs; /* a bit for each that is searched */
    /* Limit of the wait for remote stores. If it has passed, the search does not wait, but still
     * queries them for the next search. */
    uint64_t deadline_ns;
    bool asks_anew;    /* ignore remembered answers: for named values, which others may replace */
    bool believes_old; /* use remembered hits that have expired: for loads */
    uint8_t *places;   /* [count], or NULL */
    struct tierce__unasked unasked; /* [out] */
};
size_t tierce__storage_search_until(struct tierce_engine *engine, struct tierce__search *search,
                                    const struct tierce__key *keys, size_t count);

/* Returns how many leading keys a remote rung holds according to remembered answers. *status: 0 if
 * the next key is remembered as absent; TIERCE_E_DEADLINE if it is not remembered; or the reason
 * why the rung is not queried. */
size_t tierce__storage_recall(struct tierce_engine *engine, size_t rung,
                              const struct tierce__key *keys, size_t count,
                              enum tierce__tier_recall recall, int *status);

/* How many leading keys one durable tier holds durably. */
size_t tierce__storage_find_durable(struct tierce_engine *engine, const struct tierce__key *keys,
                                    size_t count);

/* Tries the tiers that are out of service and due. */
void tierce__storage_probe(struct tierce_engine *engine);

/* Chunks of a rung that begin with a block: siblings[0 .. returned), TIERCE__SIBLINGS_MAX at most.
 * [in] first: with the hash of that block. */
size_t tierce__storage_siblings(struct tierce_engine *engine, size_t rung,
                                struct tierce__sibling *siblings, const struct tierce__key *first,
                                uint64_t deadline_ns);

/* A buffer that is in no tier, evicting by policy; or NULL. Does not wait. */
struct tierce__buf *tierce__storage_alloc(struct tierce_engine *engine, uint64_t bytes);

/* Whether some tier holds this one chunk. */
bool tierce__storage_has(struct tierce_engine *engine, const struct tierce__key *key);

/* A reference on the memory tier's buffer, or NULL. */
struct tierce__buf *tierce__storage_lease(struct tierce_engine *engine,
                                          const struct tierce__key *key);

/* The same, and marks the chunk as used: takes one lock, and its release takes none. */
struct tierce__buf *tierce__storage_lend(struct tierce_engine *engine,
                                         const struct tierce__key *key);

/* How many leading keys memory holds; bufs[0 .. *leased): a reference on the buffer of each, for
 * the leading buffers with at most `bytes` in total. bufs: room for count. */
size_t tierce__storage_lease_prefix(struct tierce_engine *engine, const struct tierce__key *keys,
                                    size_t count, struct tierce__buf **bufs, uint64_t bytes,
                                    size_t *leased);

/* A pool buffer for a chunk that will be published, evicting by policy; NULL when nothing can be
 * evicted. [in] before: the buffer of the chunk before it, or NULL. Does not wait. */
struct tierce__buf *tierce__storage_reserve(struct tierce_engine *engine,
                                            const struct tierce__storage_chunk *chunk,
                                            const struct tierce__buf *before);

/* Publishes a sealed chunk in memory. Returns 0, 1 if it was there already, or the memory tier's
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
 * A store's writes to the slower tiers, and the keys of its request, which are touched there in
 * order after the last write was answered. Begin leaves zeroes if there is no slower tier, or no
 * memory.
 */
struct tierce__written;
struct tierce__writes {
    struct tierce__written *rungs[TIERCE__TIERS_MAX];
};
void tierce__storage_begin_writes(struct tierce_engine *engine, struct tierce__writes *writes,
                                  const struct tierce__key *keys, size_t count);
void tierce__storage_end_writes(struct tierce_engine *engine, struct tierce__writes *writes);

/* Gives a sealed chunk to the queue of every slower tier of `rungs` (a bit for each) that is in
 * service. Best effort: a tier counts chunks that it rejects, and they are stored again after a
 * miss. */
void tierce__storage_write(struct tierce_engine *engine, uint32_t rungs,
                           struct tierce__writes *writes, const struct tierce__storage_chunk *chunk,
                           struct tierce__buf *buf);

/* Counts and logs a chunk that proved wrong, and deletes it from the tier; one of another version
 * is hidden instead: a miss from here on, and kept for the build that wrote it. */
void tierce__storage_quarantine(struct tierce_engine *engine, size_t rung,
                                const struct tierce__key *key, int why);

/* Deletes a chunk from a tier in the background. */
void tierce__storage_drop(struct tierce_engine *engine, size_t rung, const struct tierce__key *key,
                          enum tierce__tier_left left);

/* Fills the PUT of a sealed chunk; the caller adds done, arg and other fields. [borrow until done]
 * chunk, buf. */
void tierce__storage_fill_put(struct tierce__tier_req *req,
                              const struct tierce__storage_chunk *chunk, struct tierce__buf *buf);

/* Puts a sealed chunk into a rung and blocks for the answer, for at most the rung's deadline.
 * TIERCE_E_CANCELLED if there was a clear since the era (operate.h) in which it was read. */
TIERCE_MUSTUSE int tierce__storage_put(struct tierce_engine *engine, size_t rung, uint64_t era,
                                       const struct tierce__storage_chunk *chunk,
                                       struct tierce__buf *buf);

/* Deletes a chunk from a tier; a missing chunk is not an error. */
void tierce__storage_delete(struct tierce_engine *engine, size_t rung,
                            const struct tierce__key *key);

/* Makes earlier removals from a tier durable, if the tier is durable; added chunks may stay
 * undurable. Waits. */
TIERCE_MUSTUSE int tierce__storage_settle(struct tierce_engine *engine, size_t rung,
                                          uint64_t deadline_ns);

/* Deletes a chunk from a tier durably, so that it cannot reappear after a crash; also if the tier
 * is out of service. Returns 1 if it was there, 0 if not, or why it cannot be promised. Waits. */
TIERCE_MUSTUSE int tierce__storage_remove(struct tierce_engine *engine, size_t rung,
                                          const struct tierce__key *key, uint64_t deadline_ns);

/* The same without a sync. *unsettled is set if the chunk could reappear after a crash before the
 * next sync. */
TIERCE_MUSTUSE int tierce__storage_take_out(struct tierce_engine *engine, size_t rung,
                                            const struct tierce__key *key, uint64_t deadline_ns,
                                            bool *unsettled);

/* Whether a chunk of that key that was removed from a durable rung could reappear after a crash,
 * because no sync has covered the removal yet. Waits. */
bool tierce__storage_may_return(struct tierce_engine *engine, size_t rung,
                                const struct tierce__key *key, uint64_t deadline_ns);

/* Reads the beginning of a chunk of a slower rung, as much as the buffer holds. Waits. */
TIERCE_MUSTUSE int tierce__storage_read_head(struct tierce_engine *engine, size_t rung,
                                             const struct tierce__key *key, struct tierce__buf *buf,
                                             uint64_t deadline_ns);

/* Clears a tier, also one that is out of service; of: a key of the only namespace to clear, or
 * NULL. Returns the chunks that left, or why it could not. */
TIERCE_MUSTUSE int64_t tierce__storage_forget(struct tierce_engine *engine, size_t rung,
                                              const struct tierce__key *of);

/* Marks chunks as used in the tiers [first, rungs), the first key ending up newest; the request has
 * used `used` of them before. */
void tierce__storage_touch(struct tierce_engine *engine, size_t first, size_t rungs,
                           const struct tierce__key *keys, size_t count, size_t used);

/*
 * Submits through the rung's breaker. False: the breaker is open, nothing was submitted and done
 * will not be called. True: done will be called, and must pass the request to storage_note.
 */
TIERCE_MUSTUSE bool tierce__storage_submit(struct tierce_engine *engine, size_t rung,
                                           struct tierce__tier_req *req);
void tierce__storage_note(struct tierce_engine *engine, size_t rung,
                          const struct tierce__tier_req *req);

/* Probes a tier that is out of service, if it is time, with a background read: of a chunk that it
 * has held, or else of the given one. */
void tierce__storage_try(struct tierce_engine *engine, size_t rung,
                         const struct tierce__key *asked);

/* Reads the first `bytes` of a chunk in the background, to measure the tier. */
void tierce__storage_sample(struct tierce_engine *engine, size_t rung,
                            const struct tierce__key *key, uint64_t bytes);

/* ---- prefetch.c ---- */

void tierce__prefetches_init(struct tierce__prefetches *prefetches, uint64_t bytes_max);
void tierce__prefetches_fini(struct tierce__prefetches *prefetches);

/* Ends those whose deadline has passed: they keep nothing but their handles. */
void tierce__prefetches_expire(struct tierce_engine *engine);

/* Ends those of a view and frees their handles. */
void tierce__prefetches_drop(struct tierce_view *view);

/* ---- lines of the access log ---- */

/* Begins a line about the first `what.count` blocks of a chain, if there is a log. */
static inline void tierce__view_access(struct tierce_view *view, struct tierce__line *line,
                                       const char *op, const struct tierce_chain *chain,
                                       struct tierce__access_what what)
{
    *line = (struct tierce__line){0};
    if (view->engine->access_log == NULL || what.count == 0)
        return;
    what.ns_digest = view->ns_digest;
    what.hashes = tierce_chain_hash(chain, 0);
    what.block_tokens = view->full.geometry.block_tokens;
    tierce__access_begin(view->engine->access_log, line, op, &what);
}

/* ---- reserve.c ---- */

/* Drops chunks that have waited too long for another store. */
void tierce__stores_expire(struct tierce_engine *engine);

/* ---- sessions.c ---- */

/* A session that no other thread can access, with room for `count` buffers, ended by session_free;
 * NULL: no memory. */
struct tierce__session *tierce__session_alloc(struct tierce_view *view, uint64_t id, size_t count);

/* The leased buffers of a new session, bufs[0 .. count), take the place of the pins of its id, for
 * `pin_ms` (0: timeout.pin), as far as the bound on pins has room. Returns how many did; the others
 * are released. [transfer] session; [borrow for the call] keys of the buffers. */
size_t tierce__session_hold(struct tierce__session *session, const struct tierce__key *keys,
                            uint32_t pin_ms);

/* Adds a leased buffer to the pins of (view, id), which are made if there are none, and which last
 * for `pin_ms` (0: timeout.pin) at least. The reference moves; false, and it is released: the bound
 * on pins has no room, or there is no memory. */
TIERCE_MUSTUSE bool tierce__session_add(struct tierce_view *view, uint64_t id,
                                        const struct tierce__key *key, struct tierce__buf *buf,
                                        uint32_t pin_ms);

/* Bytes that this session may pin, those that it pins already included. */
uint64_t tierce__session_room(struct tierce_view *view, uint64_t id);

/* The buffers a session held, in the order of its keys. */
struct tierce__session {
    struct tierce__list node;
    struct tierce_view *view;
    uint64_t id;
    uint64_t deadline_ns;
    uint64_t bytes;
    size_t count, count_max;
    struct tierce__key *keys; /* [count_max] */
    struct tierce__buf **bufs;
};

/*
 * How far a request has used its chain, so that its loads and stores are one use of each chunk:
 * returns the leading keys that the session used before, and notes that it has used the first
 * `count`. A session of 0 is a request of its own each time. The sessions that were asked for
 * longest ago are forgotten, which costs a chunk that is counted twice.
 */
size_t tierce__session_use(struct tierce_view *view, uint64_t id, const struct tierce__keys *keys,
                           size_t count);

/*
 * Notes that a lookup found more than `chunks`, but left the rest to the inference engine, which
 * computes it faster. Chunks that a store offers from there on are new to memory, even if slower
 * tiers hold them: tierce__session_promised returns the number, SIZE_MAX if no lookup left
 * anything.
 */
void tierce__session_leave(struct tierce_view *view, uint64_t id, size_t chunks);
size_t tierce__session_promised(struct tierce_view *view, uint64_t id);

/* Takes a session out; the caller ends it with session_free. NULL if there is none. */
struct tierce__session *tierce__session_take(struct tierce_view *view, uint64_t id);

/* A copy of a session, with references of its own; the caller ends it with session_free. NULL if
 * there is none, or no memory. */
struct tierce__session *tierce__session_share(struct tierce_view *view, uint64_t id);

/* Releases the references that are still in bufs (NULL entries are skipped). NULL is accepted. */
void tierce__session_free(struct tierce__session *session);

/* Ends sessions whose deadline has passed, or (all) every one; view NULL: of every view. */
void tierce__sessions_expire(struct tierce_engine *engine, const struct tierce_view *view,
                             bool all);

#endif
