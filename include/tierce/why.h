/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WHY_H
#define TIERCE_WHY_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>
#include <tierce/key.h>

/*
 * Why the hit of a lookup was not longer: the reason of its first missing chunk.
 *
 *     struct tierce_miss miss = {.size = sizeof(miss)};
 *     rc = tierce_why(view, chain, 0, blocks, &miss);
 *     if (rc == 0 && miss.reason != TIERCE_MISS_NONE)
 *         puts(tierce_miss_text(miss.reason));
 *
 * Caveats: an engine remembers, in its process, the last misses.remembered chunks that were removed
 * or rejected. Chunks that were removed earlier count as never stored. The same tokens under
 * another salt, LoRA adapter or hash algorithm have other hashes, so they do not appear as a twin.
 * docs/using/why.md describes every reason and the limits.
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
    uint64_t when_s; /* wall clock: when the chunk was removed or rejected; else 0 */
    int status;      /* NOT_WRITTEN, TIER_DOWN, DEADLINE: error of the tier; EVICTED: TIERCE_E_SLOTS
                        if only a slot was lacking; else 0 */
    /* NAMESPACE: canonical text of the other namespace, for tierce_namespace_diff with
     * tierce_view_namespace; NULL if the text is not known. */
    const char *twin;
    uint8_t twin_digest[TIERCE_HASH_BYTES]; /* NAMESPACE */
};

/*
 * Looks up chain[from_block, to_block) in all tiers as tierce_lookup does, pins nothing, counts
 * nothing, and reports why the first missing chunk is missing. A stored chunk that is not worth
 * loading counts as missing (cost.check); a partial tail that was never stored does not.
 *
 * Errors, *out zeroed but for size: TIERCE_E_ARGUMENT (as tierce_lookup's), TIERCE_E_CLOSED,
 * -ENOMEM. Thread: any. Blocks for at most twice timeout.lookup. With only memory and disk tiers,
 * it blocks like tierce_lookup.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_why(struct tierce_view *view, const struct tierce_chain *chain,
                                         uint64_t from_block, uint64_t to_block,
                                         struct tierce_miss *out);

/* ---- served requests ------------------------------------------------------------------------ */

/*
 * An engine remembers the last requests.remembered requests that an inference engine has served, so
 * that `tierce why --request NAME` can explain the hit of a request afterwards. Lookups and stores
 * with a session are recorded by the engine; the inference engine reports the rest when the request
 * has ended. Tokens and texts are not kept, only numbers and the hash of the missing chunk.
 *
 *     struct tierce_request request = {.size = sizeof(request), .name = "cmpl-17", .session = 17,
 *                                      .tokens = 5000, .unit_tokens = 16, .looked_tokens = 4992,
 *                                      .found_tokens = 1024, .loaded_tokens = 1024};
 *     rc = tierce_request_note(engine, &request);
 */

/* Why the inference engine did not look up the request, or loaded less than was found. Values are
 * stable. */
enum tierce_request_limit {
    TIERCE_REQUEST_LIMIT_NONE = 0,
    TIERCE_REQUEST_LIMIT_SHORT = 1,       /* the prompt has no whole unit before its last token */
    TIERCE_REQUEST_LIMIT_LOCAL = 2,       /* the inference engine's own cache held all of it */
    TIERCE_REQUEST_LIMIT_OPTION = 3,      /* an option of the request or of the engine */
    TIERCE_REQUEST_LIMIT_UNSUPPORTED = 4, /* the request cannot be cached */
    TIERCE_REQUEST_LIMIT_MINIMUM = 5,     /* fewer tokens were found than it loads at least */
    TIERCE_REQUEST_LIMIT_ROOM = 6,        /* it used fewer tokens than were found */
    TIERCE_REQUEST_LIMIT_FAILED = 7,      /* a lookup or a load failed */
    TIERCE_REQUEST_LIMIT_ENDED = 8,       /* the request ended before a lookup */
    TIERCE_REQUEST_LIMIT_NOT_READY = 9,   /* no transfer was possible (tierce_view_prepare) */
    TIERCE_REQUEST_LIMIT_BLENDED = 10,    /* the rest was blended (docs/using/blending.md) */
    TIERCE_REQUEST_LIMIT_UNBLENDED = 11,  /* blend.enabled is set, but nothing can be blended */
    TIERCE_REQUEST_LIMIT_COUNT
};

#define TIERCE_REQUEST_NAME_MAX 128u /* bytes, without the NUL */

struct tierce_request {
    size_t size;      /* sizeof(struct tierce_request) */
    const char *name; /* the request's id in the inference engine, 1 to TIERCE_REQUEST_NAME_MAX
                         bytes; [borrow for the call] */
    uint64_t session; /* of its lookups and stores; 0: it had none. No other request of the engine,
                         or of all clients of a node, has this number. */
    uint64_t tokens;  /* of the prompt */
    uint64_t unit_tokens;   /* loads end at multiples of this number */
    uint64_t local_tokens;  /* leading tokens that the inference engine held itself */
    uint64_t looked_tokens; /* leading tokens that were looked up; 0: no lookup */
    uint64_t found_tokens;  /* leading tokens that the inference engine held or that were found */
    uint64_t loaded_tokens; /* tokens that were loaded */
    uint64_t failed_tokens; /* tokens of loads that failed */
    enum tierce_request_limit limit;
};

/*
 * Records a request that has ended. With node.socket, the node records it; without a node, or if
 * the node is too old, nothing is recorded. Errors: TIERCE_E_ARGUMENT (size, name, limit),
 * TIERCE_E_CLOSED. Thread: any. With a node, blocks for at most timeout.lookup; else does not
 * block.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_request_note(struct tierce_engine *engine,
                                                  const struct tierce_request *request);

#ifdef __cplusplus
}
#endif

#endif
