/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_BELADY_H
#define TIERCE_OPTIMIZER_BELADY_H

#include "optimizer/match.h"
#include "optimizer/recording.h"

/*
 * What no policy can beat: a cache that knows the future (Belady 1966), and need not store what it
 * is given. After each request it keeps, of what it has and what came, the blocks whose next use is
 * nearest; of equal ones the shallower, since without its prefix a block is no prefix hit. What is
 * never used again is dropped at once. For blocks of one size this is the most hits there can be,
 * of prefixes and of single blocks, where ids stand for prefixes and no request names one twice. By
 * a window it is not: the last blocks of a chain alone count for all of it.
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

/*
 * Replays the recording in a cache of `capacity` blocks; hits[m] is the count of the match.
 * Errors: -ENOMEM, TIERCE_E_ARGUMENT (MATCH_STREAM, which has no meaning here, or too many).
 */
TIERCE_MUSTUSE int tierce__belady_run(const struct tierce__future *future, uint64_t capacity,
                                      const struct tierce__match *matches, size_t match_count,
                                      uint64_t *hits);

/* The same; fn is told of each lookup and how many of its blocks hit under each match, unless it is
 * NULL. */
typedef void tierce__belady_lookup_fn(void *arg, const struct tierce__recorded *request,
                                      const uint32_t *hits);
TIERCE_MUSTUSE int tierce__belady_watch(const struct tierce__future *future, uint64_t capacity,
                                        const struct tierce__match *matches, size_t match_count,
                                        uint64_t *hits, tierce__belady_lookup_fn *fn, void *arg);

#endif
