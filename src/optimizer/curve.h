/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_CURVE_H
#define TIERCE_OPTIMIZER_CURVE_H

#include "optimizer/match.h"

/*
 * The hits of LRU at every capacity, exact, from one scan.
 *
 * LRU keeps, at capacity C, the C blocks used last; so a block is there iff its position in the
 * order of last use (1 for the latest) is at most C (Mattson, Gecsei, Slutz, Traiger 1970). For
 * each match, tierce__match_costs turns positions into the capacities from which on a hit counts,
 * and these are counted in a histogram.
 *
 *     rc = tierce__curve_create(&curve, TIERCE__TOUCH_REV, matches, match_count);
 *     rc = tierce__curve_request(curve, blocks, count, read_count);      // for each request
 *     hits = tierce__curve_hits(curve, 0, capacity);
 *
 * Exact for blocks of one size, and for requests that store what they look up or only store. A
 * request that only looks up moves what is there and not the rest, which differs from capacity to
 * capacity: such a trace has no single order of last use, and is replayed instead.
 *
 * Positions are counted in a line of slots, one a touch, of which a block holds the last: bits in
 * groups, and a Fenwick tree over the groups' counts that stays in a near cache. When the line is
 * full it is closed up. Costs O(log(blocks / 512)) a touch, and for each block of room, which is at
 * most twice the blocks there are, 4 bytes for its slot, 8 for each match, and less than one for
 * the line.
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

/* One request: its blocks as dense numbers, of which the first read_count are looked up; then all
 * are touched. Errors: -ENOMEM; the curve is then good for nothing but destroy. */
TIERCE_MUSTUSE int tierce__curve_request(struct tierce__curve *curve, const uint32_t *blocks,
                                         uint32_t count, uint32_t read_count);

/* The same, of a request of `input_tokens` tokens, which its last block may not fill; 0: all blocks
 * are whole. */
TIERCE_MUSTUSE int tierce__curve_request_tokens(struct tierce__curve *curve, const uint32_t *blocks,
                                                uint32_t count, uint32_t read_count,
                                                uint64_t input_tokens);

/* Before the first request: tokens are summed too, of blocks of so many, at 16 bytes a block of
 * room and match. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__curve_sum_tokens(struct tierce__curve *curve, uint32_t block_tokens);

/* What is told of each lookup under each match but MATCH_STREAM: from which capacities on its
 * blocks hit (tierce__match_costs) [borrow for the call]. */
typedef void tierce__curve_costs_fn(void *arg, size_t match, const uint32_t *costs, uint32_t count);
void tierce__curve_watch(struct tierce__curve *curve, tierce__curve_costs_fn *fn, void *arg);

/* Hits of the match of that index, in a cache of so many blocks; O(capacity). */
uint64_t tierce__curve_hits(const struct tierce__curve *curve, size_t match, uint64_t capacity);

/* How many hits need exactly so many blocks, by index; [borrow until the next call]. *length is
 * one more than the number of different blocks. */
const uint64_t *tierce__curve_histogram(const struct tierce__curve *curve, size_t match,
                                        uint32_t *length);

/* Tokens, where they are summed: by how much they grow at each capacity, as the histogram. p tokens
 * of a lookup are p in `tokens` and p * p in `squares`. Of MATCH_PREFIX and MATCH_WINDOW; 0 of
 * others. [borrow until the next call] */
struct tierce__curve_sum {
    double tokens, squares;
};
const struct tierce__curve_sum *tierce__curve_sums(const struct tierce__curve *curve, size_t match);

/* Different blocks so far. */
uint32_t tierce__curve_blocks(const struct tierce__curve *curve);

#endif
