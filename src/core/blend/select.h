/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BLEND_SELECT_H
#define TIERCE_BLEND_SELECT_H

#include "core/blend/rope.h"

/*
 * Selects the tokens of a blended prompt that are recomputed: those whose keys differ most from the
 * reused ones in a check layer.
 *
 *     tierce__key_distances(distances, TIERCE__BLEND_BF16, &computed, &reused, tokens, heads, 128);
 *     count = tierce__blend_select(candidates, distances, count, tierce__blend_keep(count, 0.15));
 *
 * Thread: any. Nothing here blocks or allocates.
 */

/*
 * distances[t] = the squared L2 distance of the keys of token t, all heads together, summed in
 * binary32 over 16 lanes in a fixed order, so that all kernels have the same results. Relative
 * error: at most (elements of a token / 16 + 8) * 2^-24. A sum with a NaN is a NaN.
 */
void tierce__key_distances(float *distances, enum tierce__blend_dtype dtype,
                           const struct tierce__key_rows *a, const struct tierce__key_rows *b,
                           size_t tokens, uint32_t heads, uint32_t row_elements);

/* How many of `count` tokens a share is, rounded up. `share` is 0 .. 1. */
size_t tierce__blend_keep(size_t count, double share);

/*
 * Keeps those `keep` of tokens[0 .. count) that have the greatest distances; distances[i] belongs
 * to tokens[i]. A NaN is greater than all numbers: such a token is never reused before another. Of
 * equal distances the earlier ones are kept. The kept tokens remain in their order, at the start.
 * Returns how many there are: the smaller of keep and count. Time: linear.
 */
size_t tierce__blend_select(uint32_t *tokens, const float *distances, size_t count, size_t keep);

#endif
