/* SPDX-License-Identifier: Apache-2.0 */
#include "core/blend/select.h"

#include "base/assert.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

size_t tierce__blend_keep(size_t count, double share)
{
    TIERCE_ASSERT(share >= 0 && share <= 1);
    double keep = ceil((double)count * share);
    return keep < (double)count ? (size_t)keep : count;
}

#define RANK_NAN 0x7f800001u

/* The bits of numbers that are not negative are ordered as the numbers; every NaN is above them. */
static uint32_t rank_of(float distance)
{
    uint32_t bits;
    memcpy(&bits, &distance, sizeof(bits));
    bits &= 0x7fffffffu;
    return bits < RANK_NAN ? bits : RANK_NAN;
}

/* The rank of the keep-th greatest distance, byte by byte, and how many of that rank are kept. */
static uint32_t find_threshold(size_t *equal, const float *distances, size_t count, size_t keep)
{
    uint32_t threshold = 0;
    for (unsigned shift = 32; shift > 0;) {
        shift -= 8;
        size_t counts[256] = {0};
        uint32_t above = shift < 24 ? ~0u << (shift + 8) : 0; /* bits that are decided */
        for (size_t i = 0; i < count; i++) {
            uint32_t rank = rank_of(distances[i]);
            if ((rank & above) == threshold)
                counts[rank >> shift & 0xff]++;
        }
        unsigned digit = 255;
        while (counts[digit] < keep) {
            TIERCE_DASSERT(digit > 0);
            keep -= counts[digit--];
        }
        threshold |= digit << shift;
    }
    *equal = keep;
    return threshold;
}

size_t tierce__blend_select(uint32_t *tokens, const float *distances, size_t count, size_t keep)
{
    if (keep >= count)
        return count;
    if (keep == 0)
        return 0;
    size_t equal, kept = 0;
    uint32_t threshold = find_threshold(&equal, distances, count, keep);
    for (size_t i = 0; i < count; i++) {
        uint32_t rank = rank_of(distances[i]);
        bool is_kept = rank > threshold || (rank == threshold && equal > 0);
        equal -= rank == threshold && equal > 0;
        if (is_kept)
            tokens[kept++] = tokens[i];
    }
    TIERCE_DASSERT(kept == keep);
    return kept;
}
