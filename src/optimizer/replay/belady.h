/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_BELADY_H
#define TIERCE_OPTIMIZER_BELADY_H

#include "optimizer/replay/match.h"
#include "optimizer/trace/recording.h"

/*
 * An upper bound for all policies: a cache that knows the future (Belady 1966) and need not store
 * every block. After each request it keeps those cached and requested blocks whose next use is
 * nearest; ties go to the shallower block, because a block without its prefix is not a prefix hit.
 * Blocks that are never used again are dropped at once. For blocks of one size this is the maximum
 * number of hits, of prefixes and of single blocks, if ids identify prefixes and no request repeats
 * a block. It is not a bound for window matches, which need only the last blocks of a chain.
 *
 * A first pass from the end of the recording writes the next use of each block into a second
 * temporary file (4 bytes a block); each capacity then reads both from the start.
 *
 *     rc = tierce__future_create(&future, recording, NULL);
 *     rc = tierce__belady_run(future, capacity, matches, match_count, hits);
 *
 * Threads: a future may be used by any number of threads at once.
 */

struct tierce__future;

#define TIERCE__BELADY_MATCHES_MAX 8u

/*
 * [borrow] a sealed recording until destroy. `folder` as for tierce__recording_create.
 * Errors, *out untouched: -ENOMEM, negative errno (the file), TIERCE_E_LIMIT (2^32 requests).
 */
TIERCE_MUSTUSE int tierce__future_create(struct tierce__future **out,
                                         const struct tierce__recording *recording,
                                         const char *folder);

/* NULL is accepted. */
void tierce__future_destroy(struct tierce__future *future);

/* [borrow until destroy] For each block of the recording, in order: the number of the request that
 * uses the same block next, or UINT32_MAX. */
const uint32_t *tierce__future_next(const struct tierce__future *future);

/*
 * Replays the recording in a cache of `capacity` blocks; hits[m] is the count of the match.
 * Errors: -ENOMEM, TIERCE_E_ARGUMENT (MATCH_STREAM, which has no meaning here, or too many).
 */
TIERCE_MUSTUSE int tierce__belady_run(const struct tierce__future *future, uint64_t capacity,
                                      const struct tierce__match *matches, size_t match_count,
                                      uint64_t *hits);

struct tierce__belady_count {
    uint64_t hits, internal_hits; /* of these, hits on blocks that the engine held itself */
};

/* The same; calls fn, unless it is NULL, for each lookup with the number of its hits under each
 * match. */
typedef void tierce__belady_lookup_fn(void *arg, const struct tierce__recorded *request,
                                      const uint32_t *hits);
TIERCE_MUSTUSE int tierce__belady_watch(const struct tierce__future *future, uint64_t capacity,
                                        const struct tierce__match *matches, size_t match_count,
                                        struct tierce__belady_count *counts,
                                        tierce__belady_lookup_fn *fn, void *arg);

#endif
