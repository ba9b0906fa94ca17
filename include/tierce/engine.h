/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_H
#define TIERCE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/config.h>
#include <tierce/key.h>
#include <tierce/paged.h>
#include <tierce/status.h>

/*
 * The engine: token chains in, KV out. It owns the memory pool and the tiers and moves chunks
 * between them and an inference engine's paged memory.
 *
 *     struct tierce_engine *engine;
 *     struct tierce_view *view;
 *     rc = tierce_engine_open(&engine, config, why);
 *     rc = tierce_view_open(&view, engine, &ns, &(struct tierce_shard){0, 1, 0, 1});
 *
 *     struct tierce_transfer_opts what = {
 *         .size = sizeof(what), .chain = chain, .to_block = tierce_chain_blocks(chain),
 *         .paged = &paged, .block_ids = ids};
 *     int64_t stored = tierce_store(view, &what);           // blocks stored
 *     ...
 *     struct tierce_found found;
 *     rc = tierce_lookup(view, chain, blocks, &(struct tierce_lookup_opts){...}, &found);
 *     int64_t loaded = tierce_load(view, &what, origins);   // blocks loaded
 *
 * A cache failure is a miss: a dead disk, a full pool or a damaged chunk shows as fewer blocks
 * found or loaded, never as an error of these calls. Errors are kept for broken contracts and for
 * memory.
 *
 * Caveats: load reports per block what is really there, verified; a block whose origin is FAILED
 * may have been overwritten with bytes that did not verify, and must be computed again. Everything
 * is counted in blocks of the engine (namespace.block_tokens tokens each).
 *
 * With node.socket the engine has no memory and tiers of its own, but those of a `tierce node` of
 * this host, which need not be there when it is opened: without one nothing is found or stored.
 * What a call waits for the node comes on top of what it says here, timeout.lookup at most, and
 * then is a miss. tierce_engine_flush and _clear return TIERCE_E_DOWN without a node. A load gives
 * what the node's memory holds at a time. tierce_why, tierce_copy, tierce_events_subscribe, a
 * prefetch with callbacks and the control socket are the node's: here TIERCE_E_UNSUPPORTED, and no
 * socket. tierce_engine_stats counts what this client did; levels are the node's and 0 here. The
 * mode is this client's.
 *
 * Threads: an engine and a view may be used from any thread at once. A chain, a load and a store
 * belong to one thread at a time.
 *
 * Fork: engines are not inherited. In a child, calls on the parent's engine, views, loads and
 * stores return TIERCE_E_CLOSED, find nothing, and free nothing; loads and stores must only be
 * aborted. The child may open an engine of its own (not on the folder that the parent holds).
 */

#ifdef __cplusplus
extern "C" {
#endif

struct tierce_engine;
struct tierce_view;

/*
 * Opens the engine of a configuration; within a process, equal configurations share one engine,
 * counted by reference. If the store folder cannot be used (held by another process, not
 * writable, of a newer format), the engine runs on memory only: one error event is logged,
 * tierce_engine_stats tells it (disk_open_status), and that is no failure of this call.
 *
 * [borrow] config for the call. `why` gets a sentence on failure.
 * Errors, *out untouched: -ENOMEM; negative errno (a thread cannot be started); TIERCE_E_CONFIG (a
 * second engine on the same folder with another configuration).
 * Thread: any. Blocks while the store's index is read and for up to disk.lock_wait before that;
 * while another thread opens the engine that is to be shared; and while one of equal settings or on
 * the same folder is being closed, up to the end of that one's timeout.close.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_engine_open(struct tierce_engine **out,
                                                 const struct tierce_config *config,
                                                 char why[TIERCE_CONFIG_ERROR_BYTES]);

/*
 * Gives one reference back; an open view holds one as well. The last one waits up to timeout.close
 * for queued chunks to become durable and frees the engine. NULL is accepted.
 */
TIERCE_API void tierce_engine_close(struct tierce_engine *engine);

/*
 * Makes durable all chunks whose store has ended before this call, on every tier that can.
 * Returns 0, TIERCE_E_DEADLINE after `timeout_ms`, or the first error of a tier since the last
 * flush that told one (chunks that were dropped by a full queue or refused by an admission rule are
 * not durable and not an error). Does not wait for stores that end meanwhile.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_engine_flush(struct tierce_engine *engine,
                                                  uint32_t timeout_ms);

/* Counters since the engine was opened, and levels now. Rows: stats.def. */
struct tierce_engine_stats {
    size_t size; /* [in] sizeof(struct tierce_engine_stats) */
#define TIERCE_STAT(name, text) int64_t name;
#include <tierce/stats.def>
#undef TIERCE_STAT
};

/* Thread: any. Does not block. */
TIERCE_API void tierce_engine_stats(struct tierce_engine *engine, struct tierce_engine_stats *out);

/*
 * Opens a namespace and shard of an engine, which stays open until the view is closed. [borrow] ns
 * and shard for the call. Errors, *out untouched: TIERCE_E_ARGUMENT (bounds; shard ranks not below
 * sizes), TIERCE_E_LIMIT (a chunk would be larger than memory.size allows; over 65536 namespaces),
 * -ENOMEM. Thread: any. Does not block.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_view_open(struct tierce_view **out,
                                               struct tierce_engine *engine,
                                               const struct tierce_namespace *ns,
                                               const struct tierce_shard *shard);

/*
 * Some layers of a chunk: what one rank has where the chunk is that of several ranks together.
 * Whatever the namespace says of layers is then of the whole chunk: those of all ranks, one rank's
 * after the other's. Of KV that several ranks have alike each stores a part, and loads all of it.
 */
struct tierce_part {
    uint32_t first_layer;
    uint32_t layer_count; /* >= 1; those that are stored are all of the chunk's, each in one part */
    uint32_t index;       /* of the part, below count */
    uint32_t count;       /* of parts, at most the layers of the chunk */
};

/*
 * The same for a part, or with NULL for the whole chunk. Loads and stores of the view move the
 * layers of the part, which are counted from 0 in them, and whose number paged->layer_count is.
 * What a lookup finds is there with all its parts. Errors also: TIERCE_E_ARGUMENT (a part outside
 * its bounds).
 */
TIERCE_API TIERCE_MUSTUSE int tierce_view_open_part(struct tierce_view **out,
                                                    struct tierce_engine *engine,
                                                    const struct tierce_namespace *ns,
                                                    const struct tierce_shard *shard,
                                                    const struct tierce_part *part);

/* Closes a view; may close the engine. NULL is accepted. No load or store of the view may be
 * alive. */
TIERCE_API void tierce_view_close(struct tierce_view *view);

/* The canonical text of the view's namespace; [borrow until the view is closed]. */
TIERCE_API const char *tierce_view_namespace(const struct tierce_view *view);

/* A chain of the view's algorithm and block size. Errors as tierce_chain_create's. */
TIERCE_API TIERCE_MUSTUSE int tierce_view_chain(struct tierce_chain **out,
                                                const struct tierce_view *view,
                                                const struct tierce_chain_root *root);

/*
 * Tells how fast the inference engine computes: the KV of `tokens` prompt tokens took `ns`. From it
 * and from what the tiers' reading takes follows what is worth loading (cost.check). Never told,
 * everything is. Thread: any. Does not block.
 */
TIERCE_API void tierce_view_computed(struct tierce_view *view, uint64_t tokens, uint64_t ns);

/* ---- lookup --------------------------------------------------------------------------------- */

/* Keep what was found in memory from being evicted, in the name of `session`. */
#define TIERCE_LOOKUP_PIN 1u
/* Ask the memory tier only; the same as `tiers` with its bit alone. */
#define TIERCE_LOOKUP_MEMORY_ONLY 2u

#define TIERCE_PIN_MS_MAX    86400000u
#define TIERCE_TAG_BYTES_MAX 64u

struct tierce_lookup_opts {
    size_t size; /* sizeof(struct tierce_lookup_opts) */
    unsigned flags;
    uint64_t session;    /* the caller's name for the request; for PIN, and not 0 then, because a
                            load with session 0 uses no pins */
    uint64_t from_block; /* blocks before it the engine holds itself: chunks that end there or
                            earlier are not asked for, and count as found */
    uint32_t tiers;      /* 1u << enum tierce_origin of each tier to be searched; 0: all. A bit
                            whose tier this engine lacks finds nothing. */
    uint32_t pin_ms; /* PIN: how long the pins last, at most TIERCE_PIN_MS_MAX; 0: timeout.pin */
    const char *tag; /* for the access log, or NULL: printable ASCII, cut after
                        TIERCE_TAG_BYTES_MAX, without quotes and backslashes, which become _ */
};

struct tierce_found {
    uint64_t blocks;        /* leading blocks that some tier holds and that are worth loading */
    uint64_t memory_blocks; /* leading blocks that memory holds (with PIN: and that are pinned) */
};

/*
 * How many leading blocks of chain[0, to_block) could be loaded: from whole chunks, and from the
 * unfull tail that ends exactly where the chain ends, if it was stored. Where the next chunk is
 * missing, the leading blocks that another chunk shares with it count too (chunk.siblings). The
 * last chunk may reach beyond to_block; give the chain all its blocks. Never promises what it does
 * not see; what it sees on disk may still fail to load. With PIN, earlier pins of the session are
 * replaced; they end with tierce_unpin, when a load that names the session begins, or after pin_ms.
 *
 * Errors: TIERCE_E_ARGUMENT (to_block beyond the chain, a chain of another algorithm or block size
 * than the view's, pin_ms above its bound), -ENOMEM; *out is zeroed then.
 * Thread: any. Blocks at most timeout.lookup; with memory and disk tiers only where a chunk on disk
 * begins as the missing one does, of which the header is read.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_lookup(struct tierce_view *view,
                                            const struct tierce_chain *chain, uint64_t to_block,
                                            const struct tierce_lookup_opts *opts,
                                            struct tierce_found *out);

/*
 * How many leading blocks of chain[0, to_block) are durable: they are there when the store is
 * opened again, whatever ends the process or the power, unless they are evicted. Counts whole
 * chunks and the tail as tierce_lookup does. Without a durable tier in service: 0. It is the answer
 * for one chain; tierce_engine_flush makes all that was stored durable.
 *
 * [out] *blocks. Errors, *blocks 0: as tierce_lookup's. Thread: any. Blocks as tierce_lookup.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_durable(struct tierce_view *view,
                                             const struct tierce_chain *chain, uint64_t to_block,
                                             uint64_t *blocks);

/* Ends the pins of a session; none is fine. Thread: any. */
TIERCE_API void tierce_unpin(struct tierce_view *view, uint64_t session);

/* ---- store and load ------------------------------------------------------------------------- */

struct tierce_transfer_opts {
    size_t size;                      /* sizeof(struct tierce_transfer_opts) */
    const struct tierce_chain *chain; /* of the view; [borrow until begin returns] */
    uint64_t from_block;              /* load: first block to write; store: must be 0 */
    uint64_t to_block;                /* end, at most the blocks of the chain */
    const struct tierce_paged *paged; /* [borrow until end or abort] */
    const int32_t *block_ids; /* [to_block] the engine's block of each chain block, no id twice
                                 from from_block on; [borrow until begin returns] */
    uint64_t session;         /* the request, as in lookup; a load takes its pins over. The loads
                                 and stores of a session are one use of a chunk to the eviction
                                 policy, so no other request has its number; 0: each is another */
    uint32_t timeout_ms;      /* load: 0 for timeout.load */
    bool tail;                /* store: keep the unfull chunk at the end too */
    uint32_t tiers;           /* 1u << enum tierce_origin, 0: all. Load: which are searched; what is
                                 found is read from the fastest that has it. Store: which keep the
                                 chunks; what one of them has is not stored again */
    const char *tag;          /* store: as in lookup; [borrow until begin returns] */
    uint64_t write;           /* store of one part of several: see tierce_store_begin; else 0 */
};

struct tierce_store;

/*
 * Begins to store what the tiers lack of chain[0, to_block): whole chunks, in order, and the tail
 * if asked for. Chunks after a hole that cannot be filled are not stored. Memory for them is
 * reserved now, evicting by policy; what does not fit is not stored, or, with timeout.store, waited
 * for. A chunk that another request is storing at the time is left to that one.
 *
 * *out is NULL when there is nothing to store. The caller then calls layer for every layer in
 * ascending order, when the engine has computed it for all blocks, and ends or aborts. The
 * chunks become visible at end, all or none of each.
 * Errors, *out NULL: TIERCE_E_ARGUMENT (ids out of range or named twice, geometry unlike the
 * namespace's), -ENOMEM. Waits timeout.store at most, and for no device.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_store_begin(struct tierce_store **out,
                                                 struct tierce_view *view,
                                                 const struct tierce_transfer_opts *opts);

/*
 * Of a view of one part of several, the stores of all parts are one, named by `write`: a number
 * that all give, and that no other store of the namespace has had. Each begins, writes its layers
 * and ends, in whatever order and on whatever thread. The chunks are published by the one that ends
 * last; if one aborts, has layers missing, or is not through timeout.pin after the first has begun,
 * nothing is. All name the same blocks, to_block and tail. Errors then also: TIERCE_E_ARGUMENT
 * (write is 0; another chain, to_block or tail than the first one's; a part that has begun already,
 * or that has a layer of another).
 */

/* Copies one layer out of the engine's memory. The layers come in ascending order, each once.
 * Errors: TIERCE_E_ARGUMENT (order). */
TIERCE_API TIERCE_MUSTUSE int tierce_store_layer(struct tierce_store *store, uint32_t layer);

/*
 * Seals and publishes; frees `store`. Returns the blocks stored; 0 if a layer is missing, or if
 * parts are not through that end after this one, the last of which returns them. What lies behind a
 * chunk that another request is still storing is published when that one is, or dropped if it is
 * not (after timeout.pin at the latest); it is not counted here.
 */
TIERCE_API int64_t tierce_store_end(struct tierce_store *store);

/* Frees `store` without publishing. NULL is accepted. */
TIERCE_API void tierce_store_abort(struct tierce_store *store);

/* begin, every layer, end. Returns the blocks stored or begin's error. */
TIERCE_API TIERCE_MUSTUSE int64_t tierce_store(struct tierce_view *view,
                                               const struct tierce_transfer_opts *opts);

/* Where a loaded block came from. Values are stable. */
enum tierce_origin {
    TIERCE_ORIGIN_FAILED = 0, /* not loaded: must be computed */
    TIERCE_ORIGIN_MEMORY = 1,
    TIERCE_ORIGIN_DISK = 2,
    TIERCE_ORIGIN_REMOTE = 3, /* one of remote.urls */
};

struct tierce_load;

/*
 * Begins to load chain[from_block, to_block) into the engine's memory. Finds the chunks, takes over
 * the session's pins, and starts reading what is not in memory, two layers or more ahead of
 * the one that is asked for. from_block may lie inside a chunk: blocks before it are not written.
 *
 * The caller then calls layer for every layer in ascending order, before the engine uses it, and
 * ends or aborts. Errors, *out untouched: TIERCE_E_ARGUMENT (as tierce_store_begin's),
 * -ENOMEM. Waits for no device, but for the header of a chunk on a slower tier that begins as a
 * missing one does, timeout.lookup at most.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_load_begin(struct tierce_load **out, struct tierce_view *view,
                                                const struct tierce_transfer_opts *opts);

/* Waits until the layer's bytes are there (at most until the deadline), verifies them and writes
 * them to the engine's memory. Where memory.size cannot hold all chunks of the load at a time, the
 * first call writes the others too. Blocks that fail are remembered. Errors: TIERCE_E_ARGUMENT. */
TIERCE_API TIERCE_MUSTUSE int tierce_load_layer(struct tierce_load *load, uint32_t layer);

/*
 * Ends the load and frees `load`. origins[i] (NULL, or to_block - from_block entries) gets the
 * enum tierce_origin of each block; a block counts as loaded if every layer of it was verified and
 * written. Chunks from slower tiers are promoted to memory. Returns the number of blocks loaded.
 */
TIERCE_API int64_t tierce_load_end(struct tierce_load *load, uint8_t *origins);

/* Frees `load`; the engine's memory may hold any part of it. NULL is accepted. */
TIERCE_API void tierce_load_abort(struct tierce_load *load);

/* begin, every layer, end. Returns the blocks loaded or begin's error. */
TIERCE_API TIERCE_MUSTUSE int64_t tierce_load(struct tierce_view *view,
                                              const struct tierce_transfer_opts *opts,
                                              uint8_t *origins);

#ifdef __cplusplus
}
#endif

#endif
