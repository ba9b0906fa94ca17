/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PREFETCH_H
#define TIERCE_PREFETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

/*
 * Prefetch: reads the chunks of a prompt from slower tiers into memory before they are loaded,
 * without blocking the caller.
 *
 *     struct tierce_prefetch *prefetch;
 *     rc = tierce_prefetch_begin(&prefetch, view, chain, blocks, &(struct tierce_prefetch_opts){
 *             .size = sizeof(struct tierce_prefetch_opts),
 *             .flags = TIERCE_PREFETCH_PIN, .session = request});
 *     ... later, any number of times ...
 *     struct tierce_prefetch_result result = {.size = sizeof(result)};
 *     if (tierce_prefetch_poll(prefetch, &result))
 *         tierce_prefetch_end(prefetch);             // the pins stay with the session
 *
 * A prefetch queries the tiers in order, each for the longest prefix of the chunks that are still
 * missing. It reads from all tiers at the same time, shares each read with other readers of the
 * same chunk, and publishes the chunks in memory in the order of the prompt. It ends at the first
 * chunk that cannot be read, and discards the chunks after it.
 *
 * Caveats:
 *
 * Without VERIFY a prefetch checks the identity of chunks but not their cells; the load verifies
 * those.
 *
 * Without PIN the chunks may be evicted from memory. prefetch.memory bounds the unpublished bytes
 * of all prefetches; a prefetch that finds no room waits in a queue.
 *
 * Threads: any; a handle may be used by one thread at a time. Fork: as of engines, see engine.h.
 */

#ifdef __cplusplus
extern "C" {
#endif

struct tierce_prefetch;

/* Protect the chunks that are in memory at the end from eviction, on behalf of `session`, like the
 * pins of a lookup. memory.pins bounds both. */
#define TIERCE_PREFETCH_PIN 1u

/* Verify the cells of the chunks that are read, too, for callers that cannot replace a chunk whose
 * load fails. A damaged chunk is treated as by a load: it is removed from the tier that it was read
 * from, and the prefetch ends before it. Chunks that memory holds already are not verified: the
 * load does that. Costs one pass over the bytes, on the thread that reads them, or on the caller's
 * if they are read before begin returns. */
#define TIERCE_PREFETCH_VERIFY 2u

#define TIERCE_PREFETCH_TIERS_MAX 8

struct tierce_prefetch_tier {
    const char *name;  /* [borrow until the engine is closed] */
    uint64_t promised; /* blocks that the tier reported, of those that faster tiers lacked */
    uint64_t loaded;   /* reported blocks that are part of the result */
};

struct tierce_prefetch_result {
    size_t size;     /* [in] sizeof(struct tierce_prefetch_result) */
    uint64_t blocks; /* leading blocks that some tier reported, including those before from_block */
    uint64_t memory_blocks; /* leading blocks that are in memory (with PIN: and pinned), including
                               those before from_block */
    bool final;             /* the result no longer changes */
    bool cancelled;         /* the caller ended it before it was complete */
    bool late;              /* its deadline ended it */
    bool short_of_memory;   /* there was no memory for further blocks */
    size_t tier_count;      /* entries of `tiers`: every tier of the engine */
    struct tierce_prefetch_tier tiers[TIERCE_PREFETCH_TIERS_MAX]; /* the fastest first */
};

/*
 * Called on a thread of Tierce, or on a thread inside a call of this header; perhaps before begin
 * has returned, never after end has. Must not block, and must not call end. on_tier: called once
 * for each searched tier, when the number of its loaded blocks is known. on_done: called once,
 * after all on_tier calls.
 */
typedef void (*tierce_prefetch_tier_fn)(void *arg, const char *tier, uint64_t promised,
                                        uint64_t loaded);
typedef void (*tierce_prefetch_done_fn)(void *arg, const struct tierce_prefetch_result *result);

struct tierce_prefetch_opts {
    size_t size; /* sizeof(struct tierce_prefetch_opts) */
    unsigned flags;
    uint64_t session;    /* for PIN, where it must not be 0; replaces earlier pins of the session */
    uint64_t from_block; /* the inference engine holds the blocks below this index: chunks that end
                            at or before it are not searched, and count as found */
    uint32_t tiers;      /* 1u << enum tierce_origin of each tier to be searched; 0: all */
    uint32_t timeout_ms; /* 0: timeout.prefetch */
    tierce_prefetch_tier_fn on_tier; /* or NULL */
    tierce_prefetch_done_fn on_done; /* or NULL */
    void *arg;                       /* for both callbacks; [borrow until end returns] */
};

/*
 * Begins to read chain[0, to_block) into memory: whole chunks, and the unfull tail that ends where
 * the chain ends, if it was stored. The last chunk may reach beyond to_block; give the chain all
 * its blocks. [borrow] chain for the call.
 *
 * In every case, the prefetch has published or released its memory by its deadline. end frees the
 * handle; so does closing the view.
 * Errors, *out untouched: TIERCE_E_ARGUMENT (to_block beyond the chain, a chain of another
 * algorithm or block size than the view's, PIN without a session, unknown flags), -ENOMEM.
 * Thread: any. Does not wait for any device.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_prefetch_begin(struct tierce_prefetch **out,
                                                    struct tierce_view *view,
                                                    const struct tierce_chain *chain,
                                                    uint64_t to_block,
                                                    const struct tierce_prefetch_opts *opts);

/* Reports the progress so far. Returns result->final. Thread: any. Does not block. */
TIERCE_API bool tierce_prefetch_poll(struct tierce_prefetch *prefetch,
                                     struct tierce_prefetch_result *result);

/* Waits until the result is final. Returns 0, or TIERCE_E_DEADLINE after `timeout_ms`. */
TIERCE_API TIERCE_MUSTUSE int tierce_prefetch_wait(struct tierce_prefetch *prefetch,
                                                   uint32_t timeout_ms);

/* Cancels the prefetch if it still runs, and frees the handle; pins stay with the session. Waits
 * for a running callback. NULL is accepted. */
TIERCE_API void tierce_prefetch_end(struct tierce_prefetch *prefetch);

#ifdef __cplusplus
}
#endif

#endif
