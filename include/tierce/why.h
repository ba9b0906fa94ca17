/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WHY_H
#define TIERCE_WHY_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>
#include <tierce/key.h>

/*
 * Why a lookup found no more: the reason of its first missing chunk.
 *
 *     struct tierce_miss miss = {.size = sizeof(miss)};
 *     rc = tierce_why(view, chain, 0, blocks, &miss);
 *     if (rc == 0 && miss.reason != TIERCE_MISS_NONE)
 *         puts(tierce_miss_text(miss.reason));
 *
 * Caveats: an engine remembers, in its process, the last misses.remembered chunks that left it.
 * Chunks that left earlier count as never stored. The same tokens under another salt, LoRA adapter
 * or hash algorithm have other hashes, so they do not appear as a twin. docs/using/why.md describes
 * every reason and the limits.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* Values are stable; rows: misses.def. */
enum tierce_miss_reason {
    TIERCE_MISS_NONE = 0, /* nothing is missing */
#define TIERCE_MISS(name, text, words) TIERCE_MISS_##name,
#include <tierce/misses.def>
#undef TIERCE_MISS
    TIERCE_MISS_COUNT
};

/* "never_stored"; "none" for 0. Thread: any. */
TIERCE_API const char *tierce_miss_name(enum tierce_miss_reason reason);

/* A sentence about the chunk ("it was evicted to make room"). Thread: any. */
TIERCE_API const char *tierce_miss_text(enum tierce_miss_reason reason);

struct tierce_miss {
    size_t size; /* [in] sizeof(struct tierce_miss) */
    enum tierce_miss_reason reason;
    uint64_t block;                  /* index in the chain of the first missing block: the first of
                                        a chunk, or the first after the blocks that another chunk
                                        shares */
    uint8_t hash[TIERCE_HASH_BYTES]; /* of the missing chunk */
    const char *tier;                /* the tier that evicted or rejected the chunk, or was not
                                        searched, or NULL; [borrow until the engine is closed], like
                                        all fields below */
    const char *policy;              /* EVICTED, EXPIRED: the tier's policy; else NULL */
    uint64_t when_s;                 /* wall clock: when the chunk left or was rejected; else 0 */
    int status; /* NOT_WRITTEN, TIER_DOWN, DEADLINE: error of the tier; else 0 */
    /* NAMESPACE: canonical text of the other namespace, for tierce_namespace_diff with
     * tierce_view_namespace; NULL if the text is not known. */
    const char *twin;
    uint8_t twin_digest[TIERCE_HASH_BYTES]; /* NAMESPACE */
};

/*
 * Looks up chain[from_block, to_block) in all tiers as tierce_lookup does, pins nothing, counts
 * nothing, and reports why the first missing chunk is missing. A stored chunk that is not worth
 * loading counts as missing (cost.check); an unfull tail that was never stored does not.
 *
 * Errors, *out zeroed but for size: TIERCE_E_ARGUMENT (as tierce_lookup's), TIERCE_E_CLOSED,
 * -ENOMEM. Thread: any. Blocks at most twice timeout.lookup; with memory and disk tiers as
 * tierce_lookup does.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_why(struct tierce_view *view, const struct tierce_chain *chain,
                                         uint64_t from_block, uint64_t to_block,
                                         struct tierce_miss *out);

#ifdef __cplusplus
}
#endif

#endif
