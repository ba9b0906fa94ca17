/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_HANDOVER_FILLING_H
#define TIERCE_HANDOVER_FILLING_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/handover/handover_ranges.h"

/*
 * The payload of an object that is sent while it is filled. Several writers fill it, each from a
 * place of its own to the place where the next one began:
 *
 *     |=====>--------|==>-----------|-----...    filled up to >, and sent in order up to there
 *     run 0          run 1          run 2
 *
 *     tierce__filling_init(&filling, header_bytes, object_bytes);
 *     tierce__filling_note(&filling, from, to); // in any order; overlaps are allowed
 *     while ((length = tierce__filling_take(&filling, &offset, max)) > 0)
 *         ... send bytes [offset, offset + length) ...
 *
 * Each byte is taken once. Thread: one at a time. Nothing here allocates.
 */

#define TIERCE__FILLING_MAX 16u /* runs; a node has the ranks of one host */

/* The receiver keeps a range for each run, and one for the bytes before the payload. */
_Static_assert(TIERCE__FILLING_MAX + 2 <= TIERCE__RANGES_MAX, "a receiver would reject the object");

struct tierce__filling_run {
    uint64_t from, ready, sent; /* from <= sent <= ready <= the next run's from */
};

struct tierce__filling {
    uint64_t end;
    uint32_t count;                                       /* at least 1 */
    struct tierce__filling_run runs[TIERCE__FILLING_MAX]; /* in ascending order */
};

/* For bytes [from, end) of an object, of which none is filled. */
void tierce__filling_init(struct tierce__filling *filling, uint64_t from, uint64_t end);

/* Bytes [from, to) are filled; from < to, and both are inside. With TIERCE__FILLING_MAX runs, a
 * call that begins in no run adds none: its bytes outside the runs are ignored, and a later call
 * that begins in a run must report them. */
void tierce__filling_note(struct tierce__filling *filling, uint64_t from, uint64_t to);

/* Whether there are filled bytes that have not been taken. */
bool tierce__filling_has(const struct tierce__filling *filling);

/* Takes the first filled bytes, at most `max`. Returns their number; 0: there are none. */
uint64_t tierce__filling_take(struct tierce__filling *filling, uint64_t *offset, uint64_t max);

#endif
