/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_COST_H
#define TIERCE_ENGINE_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/threads/lock.h"

/*
 * Never slower than computing: compares the time to load from slow tiers with the time in which the
 * inference engine computes the same tokens. Both are measured: reads of the tiers by health.h, and
 * computing by the reports to tierce_view_computed.
 *
 *     load(n)    = the slowest of the tiers that hold the first n chunks,
 *                  each its latency + its bytes / its bandwidth
 *     compute(n) = tokens of the first n chunks / prefill speed
 *
 * A lookup promises the n for which compute(n) - load(n) is largest. Chunks in memory cost nothing.
 * While a number is unknown, everything is worth loading. Chunks that are not worth loading are
 * still read once in a while, in the background, because a tier that is never read is never
 * measured.
 */

struct tierce_view;
struct tierce__key;

/* How fast the inference engine computes a prompt; old prompts count less and less. */
struct tierce__prefill {
    struct tierce__lock lock; /* PREFILL: below */
    double tokens, seconds;
};

void tierce__prefill_init(struct tierce__prefill *prefill);
void tierce__prefill_fini(struct tierce__prefill *prefill);
void tierce__prefill_note(struct tierce__prefill *prefill, uint64_t tokens, uint64_t ns);
/* Tokens a second; 0: not known. */
double tierce__prefill_speed(struct tierce__prefill *prefill);

/* One tier's share of a load. */
struct tierce__cost_tier {
    double latency_s, bytes_per_s; /* bytes_per_s 0: not known */
};

/*
 * How many of the first `count` chunks are worth loading. [in] places[i]: the tier of chunk i; tier
 * 0 is memory; bytes and tokens are of a chunk. Thread: any.
 */
size_t tierce__cost_worth(const struct tierce__cost_tier *tiers, const uint8_t *places,
                          size_t count, uint64_t chunk_bytes, uint64_t chunk_tokens,
                          double prefill_speed);

/* The same for a view, with measured speeds, or those that the configuration sets instead. Thread:
 * any. Does not block. */
size_t tierce__cost_limit(struct tierce_view *view, const uint8_t *places, size_t count);

/*
 * How long the first answer of a remote store may be waited for, if nothing of the prompt is known
 * to be stored: a share (cost.wait) of the time to compute `tokens`, but at least 5 ms. So a short
 * prompt that no store holds is not slower for it; the answer is remembered for the next lookup.
 * UINT64_MAX: no limit. Thread: any. Does not block.
 */
uint64_t tierce__cost_wait_ns(struct tierce_view *view, uint64_t tokens);

/* Measures a level by reading chunks that were not worth loading, as a load would, at most
 * TIERCE__COST_SAMPLES at a time, unless its numbers are recent. Thread: any. Does not wait for the
 * level. */
#define TIERCE__COST_SAMPLES 4u
void tierce__cost_measure(struct tierce_view *view, size_t level, const struct tierce__key *keys,
                          size_t count);

/* Whether reading `bytes` from a level is faster than computing their `tokens`. Thread: any. Does
 * not block. */
bool tierce__cost_pays(struct tierce_view *view, size_t level, uint64_t bytes, uint64_t tokens);

#endif
