/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_RANKED_H
#define TIERCE_OPTIMIZER_RANKED_H

#include "core/policy/policy.h"

/*
 * A cache that evicts as the manager's reclaim does: by the rank of each block's history, among the
 * blocks that no other block follows. replay.h simulates the policies of the engine instead.
 *
 *     rc = tierce__ranked_create(&cache, &(struct tierce__ranked_opts){...});
 *     hits = tierce__ranked_read(cache, keys, count, true, now_us, hit);
 *     tierce__ranked_write(cache, keys, count, now_us);
 *
 * Keys come in the order of their chain. The key before a key in a write is its parent. Reads touch
 * the keys that hit; a write does not touch keys that are there. A block that was not used for
 * `ttl_us` is gone, also if blocks follow it.
 *
 * Threads: one at a time.
 */

struct tierce__ranked;

struct tierce__ranked_opts {
    size_t size;
    const struct tierce__policy_ops *policy; /* with a rank */
    uint64_t half_life_us;                   /* of a frequency; 0: none */
    uint64_t ttl_us;                         /* since the last use; 0: none */
    uint64_t end_us;                         /* no use is later */
    uint32_t capacity;                       /* blocks, at least 1 */
    uint32_t drawn; /* a victim is the lowest of so many that are drawn; 0: of all. Reclaim evicts
                       the lowest tenth of a sample, if the index has more keys than the sample */
    uint32_t keys;  /* all keys are below */
};

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__ranked_create(struct tierce__ranked **out,
                                         const struct tierce__ranked_opts *opts);
/* NULL is accepted. */
void tierce__ranked_destroy(struct tierce__ranked *cache);

/* Looks keys up. `is_chain`: hits end at the first miss. Sets hit[i], and returns the hits. */
size_t tierce__ranked_read(struct tierce__ranked *cache, const uint32_t *keys, size_t count,
                           bool is_chain, uint64_t now_us, bool *hit);
/* Uses those keys that are there. */
void tierce__ranked_use(struct tierce__ranked *cache, const uint32_t *keys, size_t count,
                        uint64_t now_us);
/* Stores the keys that are not there, and evicts the blocks for which there is no room then. */
void tierce__ranked_write(struct tierce__ranked *cache, const uint32_t *keys, size_t count,
                          uint64_t now_us);

/* Whether a block was evicted or has expired. */
bool tierce__ranked_has_lost(const struct tierce__ranked *cache);

#endif
