/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PREFETCH_H
#define TIERCE_PREFETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

/*
 * Prefetch: what slower tiers hold of a prompt is brought to memory before it is loaded, and
 * nobody waits for it.
 *
 *     struct tierce_prefetch *prefetch;
 *     rc = tierce_prefetch_begin(&prefetch, view, chain, blocks, &(struct tierce_prefetch_opts){
 *             .size = sizeof(struct tierce_prefetch_opts),
 *             .flags = TIERCE_PREFETCH_PIN, .session = request});
 *     ... later, as often as one likes ...
 *     struct tierce_prefetch_result result = {.size = sizeof(result)};
 *     if (tierce_prefetch_poll(prefetch, &result))
 *         tierce_prefetch_end(prefetch);             // the pins stay with the session
 *
 * The tiers are asked in order, each for the longest prefix of what is still missing. What each of
 * them has is read by all at the same time, shared with whoever else reads the same chunks, and is
 * published in memory in the order of the prompt. At the first chunk that does not come the
 * prefetch ends, and what lies behind it is let go.
 *
 * Caveats: a chunk that was prefetched has had its identity checked, not its cells; the load
 * verifies those. Without PIN nothing keeps the chunks in memory. What is not published yet is
 * bounded by prefetch.memory over all prefetches: one that finds no room waits in a queue.
 *
 * Threads: any, a handle by one at a time. Fork: as of engines, see engine.h.
 */

#ifdef __cplusplus
extern "C" {
#endif

struct tierce_prefetch;

/* Keep what is in memory at the end from being evicted, in the name of `session`, as the pins of a
 * lookup do, and bounded like these by memory.pins. */
#define TIERCE_PREFETCH_PIN 1u

#define TIERCE_PREFETCH_TIERS_MAX 8

struct tierce_prefetch_tier {
    const char *name;  /* [borrow until the engine is closed] */
    uint64_t promised; /* blocks that it said it has, of those that faster ones lacked */
    uint64_t loaded;   /* of these, the ones that are part of the result */
};

struct tierce_prefetch_result {
    size_t size;     /* [in] sizeof(struct tierce_prefetch_result) */
    uint64_t blocks; /* leading blocks that some tier says it has, with those before from_block */
    uint64_t memory_blocks; /* leading blocks that have come to memory (PIN: and are held), too */
    bool final;             /* nothing changes any more */
    bool cancelled;         /* it was ended before it was through */
    bool late;              /* its deadline ended it */
    bool short_of_memory;   /* there was no memory for more */
    size_t tier_count;
    struct tierce_prefetch_tier tiers[TIERCE_PREFETCH_TIERS_MAX]; /* the fastest first */
};

/*
 * Called by a thread of Tierce, or by one that is in a call of this page, perhaps before begin has
 * returned; never after end has. Must not block, and must not call end. on_tier: once for each
 * tier that was searched, when it is known what came of its promise. on_done: once, after these.
 */
typedef void (*tierce_prefetch_tier_fn)(void *arg, const char *tier, uint64_t promised,
                                        uint64_t loaded);
typedef void (*tierce_prefetch_done_fn)(void *arg, const struct tierce_prefetch_result *result);

struct tierce_prefetch_opts {
    size_t size; /* sizeof(struct tierce_prefetch_opts) */
    unsigned flags;
    uint64_t session;    /* for PIN, and not 0 then; earlier pins of it are replaced */
    uint64_t from_block; /* blocks before it the engine holds itself: chunks that end there or
                            earlier are not asked for, and count as there */
    uint32_t tiers;      /* 1u << enum tierce_origin of each tier to be searched; 0: all */
    uint32_t timeout_ms; /* 0: timeout.prefetch */
    tierce_prefetch_tier_fn on_tier; /* or NULL */
    tierce_prefetch_done_fn on_done; /* or NULL */
    void *arg;
};

/*
 * Begins to bring chain[0, to_block) to memory: whole chunks, and the unfull tail that ends where
 * the chain ends, if it was stored. The last chunk may reach beyond to_block; give the chain all
 * its blocks. [borrow] chain for the call.
 *
 * Whatever becomes of it, memory that it took is given back or handed on by its deadline. The
 * handle is freed by end, or when the view is closed.
 * Errors, *out untouched: TIERCE_E_ARGUMENT (to_block beyond the chain, a chain of another
 * algorithm or block size than the view's, PIN without a session), -ENOMEM.
 * Thread: any. Does not wait for any device.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_prefetch_begin(struct tierce_prefetch **out,
                                                    struct tierce_view *view,
                                                    const struct tierce_chain *chain,
                                                    uint64_t to_block,
                                                    const struct tierce_prefetch_opts *opts);

/* What has come so far. Returns result->final. Thread: any. Does not block. */
TIERCE_API bool tierce_prefetch_poll(struct tierce_prefetch *prefetch,
                                     struct tierce_prefetch_result *result);

/* Waits until the result is final. Returns 0, or TIERCE_E_DEADLINE after `timeout_ms`. */
TIERCE_API TIERCE_MUSTUSE int tierce_prefetch_wait(struct tierce_prefetch *prefetch,
                                                   uint32_t timeout_ms);

/* Ends what still runs and frees the handle; pins stay with the session. Waits for a callback that
 * is being called. NULL is accepted. */
TIERCE_API void tierce_prefetch_end(struct tierce_prefetch *prefetch);

#ifdef __cplusplus
}
#endif

#endif
