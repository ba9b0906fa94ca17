/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_RANGES_H
#define TIERCE_HANDOVER_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The ranges of one object that have been claimed: none of them overlap, and all lie inside it.
 * Neighbours are merged, so a sender that fills an object from few places needs few entries.
 *
 *     struct tierce__ranges ranges = {.total = bytes};
 *     rc = tierce__ranges_claim(&ranges, offset, length);
 *
 * Thread: one at a time. Nothing here allocates.
 */

#define TIERCE__RANGES_MAX 64u

struct tierce__range {
    uint64_t from, to; /* from < to */
};

struct tierce__ranges {
    uint64_t total; /* bytes of the object */
    size_t count;
    struct tierce__range items[TIERCE__RANGES_MAX]; /* in ascending order, with gaps between */
};

/* Errors, *ranges untouched: TIERCE_E_FORMAT (empty, beyond the object, or a byte is claimed
 * already), TIERCE_E_LIMIT (too many ranges that are not neighbours). */
TIERCE_MUSTUSE int tierce__ranges_claim(struct tierce__ranges *ranges, uint64_t offset,
                                        uint64_t length);

#endif
