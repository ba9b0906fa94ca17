/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_HYBRID_REPLAY_H
#define TIERCE_TESTS_HYBRID_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

/* The replay of an event log of hybrid models. The headers of the manager and of the optimizer have
 * equal names of queries, so the test does not include both. */

struct hybrid_replayed {
    uint64_t lookups, hit_tokens, used_bytes, evicted;
};

/* With `capacity` bytes; 0: unlimited. */
struct hybrid_replayed hybrid_replay(const char *path, uint64_t capacity, bool is_paired);

#endif
