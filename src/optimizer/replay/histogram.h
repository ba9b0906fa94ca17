/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_HISTOGRAM_H
#define TIERCE_OPTIMIZER_HISTOGRAM_H

#include <stdint.h>

/*
 * A histogram with doubling bins: bin 0 counts the value 0, bin k >= 1 the values from 2^(k-1) to
 * 2^k - 1. A zeroed one is empty.
 *
 * Threads: one at a time.
 */

#define TIERCE__HISTOGRAM_BINS 65u

struct tierce__histogram {
    uint64_t bins[TIERCE__HISTOGRAM_BINS];
    uint64_t count; /* number of values: the sum of the bins */
    uint64_t largest;
    double sum; /* of the values, for their mean sum / count */
};

void tierce__histogram_add(struct tierce__histogram *histogram, uint64_t value, uint64_t times);

/* The first and the last value of a bin. */
uint64_t tierce__histogram_from(uint32_t bin);
uint64_t tierce__histogram_to(uint32_t bin);

/* One more than the last non-empty bin; 0 if there are no values. */
uint32_t tierce__histogram_length(const struct tierce__histogram *histogram);

/* The quantile for a share (0 .. 1), with the precision of a bin: the last value of its bin, or the
 * largest value seen if that is less. 0 if there are no values. */
uint64_t tierce__histogram_quantile(const struct tierce__histogram *histogram, double share);

#endif
