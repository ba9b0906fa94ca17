/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_HISTOGRAM_H
#define TIERCE_OPTIMIZER_HISTOGRAM_H

#include <stdint.h>

/*
 * How often values of which size came, in bins that double: bin 0 counts the value 0, bin k >= 1
 * the values from 2^(k-1) up to 2^k - 1. Zeroed is empty.
 *
 * Threads: one at a time.
 */

#define TIERCE__HISTOGRAM_BINS 65u

struct tierce__histogram {
    uint64_t bins[TIERCE__HISTOGRAM_BINS];
    uint64_t count; /* all that came: the sum of the bins */
    uint64_t largest;
    double sum; /* of the values, for their mean sum / count */
};

void tierce__histogram_add(struct tierce__histogram *histogram, uint64_t value, uint64_t times);

/* The first and the last value of a bin. */
uint64_t tierce__histogram_from(uint32_t bin);
uint64_t tierce__histogram_to(uint32_t bin);

/* One more than the last bin that is not empty; 0 if nothing came. */
uint32_t tierce__histogram_length(const struct tierce__histogram *histogram);

/* The value that the given share (0 .. 1) of all does not exceed, to the bin: the last value of the
 * bin that holds it, or the largest value that came if that is less. 0 if nothing came. */
uint64_t tierce__histogram_quantile(const struct tierce__histogram *histogram, double share);

#endif
