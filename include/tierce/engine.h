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
 * found or loaded, never as an error of these calls. Errors report broken contracts and failed
 * allocations only.
 *
 * Caveats: load reports only verified blocks as loaded. A block whose origin is FAILED may have
 * been overwritten with bytes that did not verify, and must be computed again. All counts are in
 * blocks of the engine (namespace.block_tokens tokens each).
 *
 * With node.socket, the engine is a client: it uses the memory and tiers of a `tierce node` on this
 * host. The node may start later than the client; without a node nothing is found or stored. Each
 * call may block for up to timeout.lookup longer than stated here, while it waits for the node, and
 * is a miss if the node does not answer. While the node does not answer, the end of a store or a
 * prefetch and a flush may block for a second longer, and a load for two seconds.
 * tierce_engine_flush and _clear return TIERCE_E_DOWN without a node. A load larger than the node's
 * memory goes through it chunk by chunk. A client does not support tierce_why, tierce_copy,
 * tierce_events_subscribe and a prefetch with callbacks (TIERCE_E_UNSUPPORTED), and has no control
 * socket; use the node's. tierce_engine_stats counts the client's own calls; gauges of memory and
 * tiers are 0. The mode is the client's own.
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
 * counted by reference. If the store folder cannot be used (held by another process, not writable,
 * of a newer format), the engine runs on memory only: it logs one error event, tierce_engine_stats
 * reports the error (disk_open_status), and the call succeeds, unless the parameter `strict` is
 * set.
 *
 * [borrow] config for the call. `why` gets a sentence on failure.
 * Errors, *out untouched: -ENOMEM; negative errno (a thread cannot be started); TIERCE_E_CONFIG (a
 * second engine on the same folder with another configuration; an invalid URL in remote.urls;
 * node.socket together with a parameter that belongs to the node). With `strict` also: the error of
 * the store folder, or TIERCE_E_DOWN if no node answers.
 * Thread: any. Blocks for up to disk.lock_wait and then while it reads the store's index; while
 * another thread opens the same engine; and while an engine with equal settings or on the same
 * folder is being closed, until that engine's timeout.close ends.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_engine_open(struct tierce_engine **out,
                                                 const struct tierce_config *config,
                                                 char why[TIERCE_CONFIG_ERROR_BYTES]);

/*
 * Releases one reference; each open view holds one too. The last release waits up to timeout.close
 * for queued chunks to become durable, and frees the engine. NULL is accepted.
 */
TIERCE_API void tierce_engine_close(struct tierce_engine *engine);

/*
 * Makes durable all chunks whose store has ended before this call, on every tier that can.
 * Returns 0, TIERCE_E_DEADLINE after `timeout_ms`, or the first tier error since the last flush
 * that reported one. Also waits until the chunks of an outage of a remote store, and all that the
 * disk did not get, have been sent, and returns TIERCE_E_DOWN while that tier is out of service or
 * fails. Returns TIERCE_E_FULL once if memory has evicted chunks that the disk's queue could not
 * take. Some chunks are not durable, but are not an error: a full queue of a remote store dropped
 * them, an admission rule rejected them, or there was no key to encrypt them; nor are chunks of an
 * outage that can no longer be sent to a remote store (remote_lost_chunks), and named values. Does
 * not wait for stores that end during the call.
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
 * The layers of a chunk that one rank moves, when several ranks share a chunk. The namespace's
 * layer fields then describe the whole chunk: the layers of all ranks, rank after rank. When
 * several ranks hold identical KV, each rank stores a share of the layers and loads all of them.
 */
struct tierce_part {
    uint32_t first_layer;
    uint32_t layer_count; /* >= 1. The parts together store every layer of the chunk exactly once */
    uint32_t index;       /* number of this part, below count */
    uint32_t count;       /* number of parts, at most the layers of the chunk */
};

/*
 * Like tierce_view_open, for one part; a NULL part is the whole chunk. Loads and stores of the view
 * move the layers of the part. Layers are counted from 0 within the part, and paged->layer_count is
 * their number. A lookup finds a chunk only if all its parts are stored. Additional error:
 * TIERCE_E_ARGUMENT (a part outside its bounds).
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

/*
 * The first block that must be loaded so that the inference engine can continue after `blocks`
 * blocks. 0, except in a window, chunked or state group. Equal to `blocks` if nothing must be
 * loaded. Thread: any.
 */
TIERCE_API uint64_t tierce_view_needs(const struct tierce_view *view, uint64_t blocks);

/* A chain of the view's algorithm and block size. Errors as tierce_chain_create's. */
TIERCE_API TIERCE_MUSTUSE int tierce_view_chain(struct tierce_chain **out,
                                                const struct tierce_view *view,
                                                const struct tierce_chain_root *root);

/*
 * Reports the speed of the inference engine: it computed the KV of `tokens` prompt tokens in `ns`.
 * From this and from the speed of the tiers, lookups derive which chunks are worth loading
 * (cost.check). Without a report, all are. Thread: any. Does not block.
 */
TIERCE_API void tierce_view_computed(struct tierce_view *view, uint64_t tokens, uint64_t ns);

/* ---- lookup --------------------------------------------------------------------------------- */

/* Protect the found chunks in memory from eviction, on behalf of `session`. */
#define TIERCE_LOOKUP_PIN 1u
/* Ask the memory tier only; the same as `tiers` with its bit alone. */
#define TIERCE_LOOKUP_MEMORY_ONLY 2u
/* Do not wait for remote stores. The lookup uses their remembered answers. If an answer is missing,
 * it queries the store in the background for the next lookup, and sets found.pending. */
#define TIERCE_LOOKUP_NO_WAIT 4u
/* The caller repeats the lookup if found.pending is set. A pending answer is neither counted nor
 * logged, and does not include blocks of chunks that share a beginning with the missing chunk
 * (chunk.siblings). */
#define TIERCE_LOOKUP_AGAIN 8u

#define TIERCE_PIN_MS_MAX    86400000u
#define TIERCE_TAG_BYTES_MAX 64u

struct tierce_lookup_opts {
    size_t size; /* sizeof(struct tierce_lookup_opts) */
    unsigned flags;
    uint64_t session;    /* the caller's name for the request; for PIN, and not 0 then, because a
                            load with session 0 uses no pins */
    uint64_t from_block; /* the inference engine holds the blocks below this index: chunks that end
                            at or before it are not searched, and count as found */
    uint32_t tiers;      /* 1u << enum tierce_origin of each tier to be searched; 0: all. A bit
                            whose tier this engine lacks finds nothing. */
    uint32_t pin_ms;  /* PIN: how long the pins last, at most TIERCE_PIN_MS_MAX; 0: timeout.pin */
    uint32_t wait_ms; /* limit of the wait for remote stores; 0: timeout.lookup, which is also the
                         maximum */
    const char *tag;  /* for the access log, or NULL: printable ASCII, cut after
                         TIERCE_TAG_BYTES_MAX, without quotes and backslashes, which become _ */
};

struct tierce_found {
    uint64_t blocks;        /* leading blocks that some tier holds and that are worth loading; in a
                               window, chunked or state group: see tierce_lookup */
    uint64_t memory_blocks; /* leading blocks that memory holds (with PIN: and that are pinned) */
    bool pending; /* a query to a remote store for the following blocks is in progress: a later
                     lookup may find more */
};

/*
 * How many leading blocks of chain[0, to_block) could be loaded: from whole chunks, and from the
 * unfull tail that ends exactly where the chain ends, if it was stored. If the next chunk is
 * missing, the leading blocks that another chunk shares with it count too (chunk.siblings). The
 * last chunk may reach beyond to_block; give the chain all its blocks. The result counts only
 * chunks that a tier reported; a chunk on disk or in a remote store may still fail to load. If a
 * remote store has not answered in full by timeout.lookup, the result uses its answers so far; its
 * later answers are remembered for the next lookups. With PIN, earlier pins of the session are
 * replaced. Pins end with tierce_unpin, when a load that names the session begins, or after pin_ms.
 *
 * In a window, chunked or state group:
 * - `blocks` is the largest number, from from_block to to_block, after which the inference engine
 *   can continue: tiers hold all blocks from tierce_view_needs(view, blocks) to `blocks`. It is
 *   from_block if there is no larger number.
 * - memory_blocks equals `blocks` if memory holds (with PIN: and pins) all of these blocks;
 *   otherwise it is from_block.
 * - The lookup ignores siblings and costs.
 * - The counters and the access log do not include the lookup: they include the request's lookup in
 *   its full group.
 * To find where a request can continue, look up each group with the number of tokens that the other
 * groups have found, until all agree.
 *
 * Errors: TIERCE_E_ARGUMENT (to_block beyond the chain, a chain of another algorithm or block size
 * than the view's, pin_ms above its bound), -ENOMEM; *out is zeroed then.
 * Thread: any. Blocks for at most timeout.lookup, or 20 ms longer while remote stores answer in
 * part. Without remote stores, and with NO_WAIT, it
 * blocks only to read the header of a chunk on disk that begins like the missing chunk.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_lookup(struct tierce_view *view,
                                            const struct tierce_chain *chain, uint64_t to_block,
                                            const struct tierce_lookup_opts *opts,
                                            struct tierce_found *out);

/*
 * How many leading blocks of chain[0, to_block) are durable: they survive a crash of the process
 * and a loss of power, unless they are evicted. Counts whole chunks, and the tail while it is
 * stored as a chunk of its own. When a longer chunk has replaced the tail, lookups find the tail's
 * blocks in that chunk, and this call no longer counts them. Returns 0 blocks without a durable
 * tier in service, and in a window, chunked or state group. This call covers one chain;
 * tierce_engine_flush makes all stored chunks durable.
 *
 * [out] *blocks. Errors, *blocks 0: as tierce_lookup's. Thread: any. Blocks as tierce_lookup.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_durable(struct tierce_view *view,
                                             const struct tierce_chain *chain, uint64_t to_block,
                                             uint64_t *blocks);

/* Ends the pins of a session. A session without pins is accepted. Thread: any. */
TIERCE_API void tierce_unpin(struct tierce_view *view, uint64_t session);

/* A client's statement about the next request of a conversation. */
enum tierce_hint {
    TIERCE_HINT_NONE = 0,
    TIERCE_HINT_CLOSED = 1, /* there is none */
    TIERCE_HINT_OPEN = 2,   /* there is one */
    TIERCE_HINT_SOON = 3,   /* there is one within a minute */
    TIERCE_HINT_LATER = 4,  /* there is one after more than a minute */
    TIERCE_HINT_TTL = 5,    /* if there is one, then within a limited time */
};

/*
 * Gives a hint about the chunks that later loads and stores of this session use. The policy
 * `hazard` learns how often hints of each kind come true, so wrong hints lose their effect; other
 * policies ignore them. The hints of the last few thousand sessions are remembered.
 *
 * Through a node, blocks for a round trip, at most for timeout.lookup. If no node answers, the hint
 * is lost.
 *
 * Errors: TIERCE_E_ARGUMENT (session 0, no such hint), TIERCE_E_UNSUPPORTED (the node is of a
 * version without hints), -ENOMEM, TIERCE_E_CLOSED (in a child process). Thread: any.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_session_hint(struct tierce_view *view, uint64_t session,
                                                  enum tierce_hint hint);

/*
 * The hint TIERCE_HINT_SOON or _LATER with a time: the next request of the conversation comes
 * in_ms after the session's last load or store began, or after this call if it comes later. With
 * prefetch.ahead, the conversation's chunks are read into memory shortly before. A later hint of
 * the session replaces this one. Errors and thread: as above.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_session_returns(struct tierce_view *view, uint64_t session,
                                                     uint32_t in_ms);

/* ---- memory of a GPU ------------------------------------------------------------------------ */

/*
 * Makes transfers to and from the memory of a device possible: opens the device, and begins to
 * measure it and to pin Tierce's memory (or the node's) for it, in the background. Pinning takes
 * about 0.1 s per GB. Meanwhile, and if memory cannot be pinned (logged), transfers are slower,
 * because KV is copied through a buffer. A transfer begins all this too; this call comes first so
 * that it is complete before the first request, and to find a mistake at the start.
 *
 * Returns 0 when transfers are possible, and always for memory of the host. Errors:
 *   -EAGAIN               the device is being measured, or its driver had no memory for the buffer
 *                         and memory is being pinned: call again later, or begin to serve. Stores
 *                         store nothing and loads load nothing until then
 *   TIERCE_E_DOWN         the device has failed, or neither pinning nor the buffer is possible
 *                         (logged); there is no node now
 *   TIERCE_E_ARGUMENT     an invalid description; a layer that is not memory of the device
 *   TIERCE_E_UNSUPPORTED  the driver is missing or too old, or this process is a child of one that
 *                         has used it
 *   -ENOMEM, TIERCE_E_CLOSED
 * Thread: any. Blocks for the start of the driver, and with a node for at most timeout.lookup.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_view_prepare(struct tierce_view *view,
                                                  const struct tierce_paged *paged);

/* ---- store and load ------------------------------------------------------------------------- */

struct tierce_transfer_opts {
    size_t size;                      /* sizeof(struct tierce_transfer_opts) */
    const struct tierce_chain *chain; /* of the view; [borrow until begin returns] */
    uint64_t from_block;              /* load: first block to write. Store: 0; in a window, chunked
                                         or state group, the first block whose KV the inference
                                         engine still holds: chunks that begin before it are not
                                         stored */
    uint64_t to_block;                /* end, at most the blocks of the chain */
    const struct tierce_paged *paged; /* [borrow until end or abort] */
    const int32_t *block_ids; /* [to_block] the engine's block of each chain block, no id twice
                                 from from_block on; [borrow until begin returns] */
    uint64_t session;         /* the request, as in lookup; a load takes over its pins. The eviction
                                 policy counts all loads and stores of a session as one use of a
                                 chunk, so two requests must not share a number; 0: each call counts
                                 as a use */
    uint32_t timeout_ms;      /* load: 0 for timeout.load */
    bool tail;                /* store: keep the unfull chunk at the end too */
    uint32_t tiers;           /* 1u << enum tierce_origin, 0: all. Load: the tiers to search; each
                                 chunk is read from the fastest that holds it. Store: the tiers that
                                 keep the chunks. A chunk that memory or disk holds is not stored
                                 there again, and one that a remote store holds is not sent again */
    const char *tag;          /* store: as in lookup; [borrow until begin returns] */
    uint64_t write;           /* store of one part of several: see tierce_store_begin; else 0 */
    void *stream;             /* of the caller, if `paged` is memory of a GPU: a CUstream of the
                                 GPU's primary context, NULL for its default stream. A program that
                                 was built without this field passes the size without it */
};

struct tierce_store;

/*
 * Begins to store the chunks of chain[0, to_block) that memory and disk lack: whole chunks, in
 * order, and the tail if `tail` is set. Memory for them is reserved now, evicting other chunks by
 * policy. A chunk without memory, and all chunks after it, are not stored; with timeout.store, the
 * call first waits for memory. A chunk that another request is storing is left to that request.
 *
 * *out is NULL when there is nothing to store. The caller then calls layer for every layer in
 * ascending order, when the engine has computed it for all blocks, and ends or aborts. The
 * chunks become visible at end, all or none of each.
 * Errors, *out NULL: TIERCE_E_ARGUMENT (ids out of range or named twice, geometry unlike the
 * namespace's), TIERCE_E_UNSUPPORTED (memory of a device that cannot be used: see
 * tierce_view_prepare), -ENOMEM. Waits timeout.store at most, and for no device.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_store_begin(struct tierce_store **out,
                                                 struct tierce_view *view,
                                                 const struct tierce_transfer_opts *opts);

/*
 * Shared writes. If the view has one part of several, the stores of all parts form one shared
 * write, and all parts pass the same `write`. Its upper 32 bits identify the writer: a random
 * number of the engine that serves the request. Its lower 32 bits count the writer's stores. A part
 * begins the stores of a writer in ascending order; when it begins a later number, the numbers that
 * it skipped are aborted.
 *
 * Each part begins, writes its layers and ends at any time and on any thread. The part that ends
 * last publishes the chunks. Nothing is published if a part aborts, misses a layer, or has not
 * ended timeout.pin after the first part began. All parts pass the same blocks, to_block and tail.
 *
 * Additional errors: TIERCE_E_ARGUMENT (write is 0; chain, to_block or tail differs from the first
 * part's; the part has begun already, or has a layer of another part).
 */

/*
 * Copies one layer out of the engine's memory. The layers come in ascending order, each once. If
 * the memory is that of a GPU, the copy is enqueued behind the work that the caller's stream has
 * now, and the call does not wait for it.
 * Errors: TIERCE_E_ARGUMENT (order), TIERCE_E_UNSUPPORTED (the stream is being captured into a
 * graph; nothing of the store will be published).
 */
TIERCE_API TIERCE_MUSTUSE int tierce_store_layer(struct tierce_store *store, uint32_t layer);

/*
 * Seals and publishes the chunks; frees `store`. Returns the number of blocks stored. In a shared
 * write, the part that ends last returns it, and the others return 0. Returns 0 if a layer is
 * missing. A chunk whose predecessor another request is still storing is published after the
 * predecessor, or dropped if the predecessor is not published within timeout.pin; it is not counted
 * in the result.
 *
 * If the memory is that of a GPU, the call blocks until the copies have ended, for at most
 * timeout.load, and then computes their sums. It returns 0 if the copies have not ended, or if the
 * device has failed. It may be called on another thread than tierce_store_layer, so that the engine
 * need not wait in its step.
 */
TIERCE_API int64_t tierce_store_end(struct tierce_store *store);

/* Frees `store` without publishing. NULL is accepted. Blocks as tierce_store_end for a GPU. */
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
 * the session's pins, and starts to read the chunks that are not in memory, two layers or more
 * ahead of the requested layer. from_block may lie inside a chunk: blocks before it are not
 * written.
 *
 * The caller then calls layer for every layer in ascending order, before the engine uses it, and
 * ends or aborts. Errors, *out untouched: as tierce_store_begin's.
 * Blocks in two cases only, for at most timeout.lookup: to read the header of a chunk on a slower
 * tier that begins like a missing chunk, and to query a remote store for chunks that no lookup has
 * found before.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_load_begin(struct tierce_load **out, struct tierce_view *view,
                                                const struct tierce_transfer_opts *opts);

/*
 * Blocks until the layer's bytes have been read (at most until the deadline), verifies them and
 * writes them to the engine's memory. If memory.size cannot hold all chunks of the load at a time,
 * the first call writes all layers. Blocks that fail are remembered.
 *
 * Layers may have the same base. Each layer then overwrites the previous one, so the caller must
 * use a layer before it loads the next. Chunks whose layers must be written together fail in such a
 * load: chunks that disk.gpu_direct reads, and all chunks if memory.size cannot hold them at a time
 * beside the chunks of other loads. In the latter case, the first call returns
 * TIERCE_E_UNSUPPORTED.
 *
 * If the memory is that of a GPU, the call enqueues the copies behind the work of the caller's
 * stream. Work that is enqueued on this stream later comes behind the copies, so that the engine
 * may enqueue the layer's kernels at once. The bytes are verified at the end.
 *
 * Errors: TIERCE_E_ARGUMENT, TIERCE_E_UNSUPPORTED (the stream is being captured into a graph, or
 * the layers have the same base and memory.size cannot hold all chunks; all blocks have failed).
 */
TIERCE_API TIERCE_MUSTUSE int tierce_load_layer(struct tierce_load *load, uint32_t layer);

/*
 * Ends the load and frees `load`. origins[i] (NULL, or to_block - from_block entries) gets the
 * enum tierce_origin of each block; a block counts as loaded if every layer of it was verified and
 * written. Chunks from slower tiers are promoted to memory. Returns the number of blocks loaded.
 *
 * If the memory is that of a GPU, the call blocks until the copies have ended, for at most the
 * load's timeout_ms, and then verifies them. If they have not ended, or the device has failed, no
 * block counts as loaded, and no chunk is removed for it.
 */
TIERCE_API int64_t tierce_load_end(struct tierce_load *load, uint8_t *origins);

/* Frees `load`; the engine's memory may hold any part of it. NULL is accepted. Blocks as
 * tierce_load_end for a GPU. */
TIERCE_API void tierce_load_abort(struct tierce_load *load);

/* begin, every layer, end. Returns the blocks loaded, or the error of begin or of a layer. */
TIERCE_API TIERCE_MUSTUSE int64_t tierce_load(struct tierce_view *view,
                                              const struct tierce_transfer_opts *opts,
                                              uint8_t *origins);

#ifdef __cplusplus
}
#endif

#endif
