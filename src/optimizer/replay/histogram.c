/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/histogram.h"
#include "base/assert.h"

static uint32_t bin_of(uint64_t value)
{
    return value == 0 ? 0 : 64 - (uint32_t)__builtin_clzll(value);
}

void tierce__histogram_add(struct tierce__histogram *histogram, uint64_t value, uint64_t times)
{
    TIERCE_DASSERT(bin_of(value) < TIERCE__HISTOGRAM_BINS);
    histogram->bins[bin_of(value)] += times;
    histogram->count += times;
    histogram->sum += (double)value * (double)times;
    if (times > 0 && value > histogram->largest)
        histogram->largest = value;
}

uint64_t tierce__histogram_from(uint32_t bin)
{
    TIERCE_ASSERT(bin < TIERCE__HISTOGRAM_BINS);
    return bin == 0 ? 0 : UINT64_C(1) << (bin - 1);
}

uint64_t tierce__histogram_to(uint32_t bin)
{
    TIERCE_ASSERT(bin < TIERCE__HISTOGRAM_BINS);
    return bin == 0 ? 0 : UINT64_MAX >> (64 - bin);
}

uint32_t tierce__histogram_length(const struct tierce__histogram *histogram)
{
    return histogram->count == 0 ? 0 : bin_of(histogram->largest) + 1;
}

uint64_t tierce__histogram_quantile(const struct tierce__histogram *histogram, double share)
{
    TIERCE_ASSERT(share >= 0 && share <= 1);
    double wanted = share * (double)histogram->count;
    uint64_t seen = 0;
    for (uint32_t bin = 0; bin < tierce__histogram_length(histogram); bin++) {
        seen += histogram->bins[bin];
        if (seen > 0 && (double)seen >= wanted) {
            uint64_t last = tierce__histogram_to(bin);
            return last < histogram->largest ? last : histogram->largest;
        }
    }
    return histogram->count == 0 ? 0 : histogram->largest;
}
