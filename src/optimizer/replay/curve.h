/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_CURVE_H
#define TIERCE_OPTIMIZER_CURVE_H

#include "optimizer/replay/match.h"

/*
 * The hits of LRU at every capacity, exact, from one scan.
 *
 * LRU with capacity C keeps the C most recently used blocks; so a block is cached iff its position
 * in the order of last use (1 for the latest) is at most C (Mattson, Gecsei, Slutz, Traiger 1970).
 * For each match, tierce__match_costs turns positions into the minimum capacities of the hits,
 * which a histogram counts.
 *
 *     rc = tierce__curve_create(&curve, TIERCE__TOUCH_REV, matches, match_count);
 *     rc = tierce__curve_request(curve, blocks, count, read_count);      // for each request
 *     hits = tierce__curve_hits(curve, 0, capacity);
 *
 * Exact for blocks of one size, and for requests that store the blocks they look up or only store.
 * A request that only looks up touches only cached blocks, which differ between capacities: such a
 * trace has no single order of last use and must be replayed instead.
 *
 * Positions are counted in a line of slots, one per touch; each block holds the slot of its last
 * touch. The line is a bitmap in groups with a Fenwick tree over the groups' counts, which fits in
 * a processor cache. A full line is compacted. A touch costs O(log(blocks / 512)). Memory per block
 * of room (at most twice the number of blocks): 4 bytes for its slot, 8 for each match, and less
 * than one for the line.
 *
 * Threads: one at a time.
 */

struct tierce__curve;

#define TIERCE__CURVE_MATCHES_MAX 8u

/* Errors, *out untouched: -ENOMEM, TIERCE_E_ARGUMENT (no match, or too many). */
TIERCE_MUSTUSE int tierce__curve_create(struct tierce__curve **out, enum tierce__touch_order order,
                                        const struct tierce__match *matches, size_t match_count);

/* NULL is accepted. */
void tierce__curve_destroy(struct tierce__curve *curve);

/* Adds one request, with its blocks as dense numbers: the first read_count are looked up, then all
 * are touched. Errors: -ENOMEM; afterwards the curve can only be destroyed. */
TIERCE_MUSTUSE int tierce__curve_request(struct tierce__curve *curve, const uint32_t *blocks,
                                         uint32_t count, uint32_t read_count);

/* The same for a request of `input_tokens` tokens, whose last block may be partial; 0: all blocks
 * are full. */
TIERCE_MUSTUSE int tierce__curve_request_tokens(struct tierce__curve *curve, const uint32_t *blocks,
                                                uint32_t count, uint32_t read_count,
                                                uint64_t input_tokens);

/* Also sums tokens, a given number per block; costs 16 bytes per block of room and match. Call it
 * before the first request. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__curve_sum_tokens(struct tierce__curve *curve, uint32_t block_tokens);

/* A callback for each lookup and match except MATCH_STREAM, with the minimum capacities of its hits
 * (tierce__match_costs) [borrow for the call]. */
typedef void tierce__curve_costs_fn(void *arg, size_t match, const uint32_t *costs, uint32_t count);
void tierce__curve_watch(struct tierce__curve *curve, tierce__curve_costs_fn *fn, void *arg);

/* Hits under the match of that index in a cache of `capacity` blocks; O(capacity). */
uint64_t tierce__curve_hits(const struct tierce__curve *curve, size_t match, uint64_t capacity);

/* A histogram: element i is the number of hits that need exactly i blocks. [borrow until the next
 * call] *length is one more than the number of distinct blocks. */
const uint64_t *tierce__curve_histogram(const struct tierce__curve *curve, size_t match,
                                        uint32_t *length);

/* The same histogram for tokens, if they are summed. A lookup with p hit tokens adds p to `tokens`
 * and p * p to `squares`. Only for MATCH_PREFIX and MATCH_WINDOW; 0 for others. [borrow until the
 * next call] */
struct tierce__curve_sum {
    double tokens, squares;
};
const struct tierce__curve_sum *tierce__curve_sums(const struct tierce__curve *curve, size_t match);

/* The number of distinct blocks so far. */
uint32_t tierce__curve_blocks(const struct tierce__curve *curve);

#endif
