/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_DEPARTURES_H
#define TIERCE_ENGINE_DEPARTURES_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Chunks that were recently removed from the tiers or rejected: the last event of each chunk, 16
 * bytes, in a table of fixed size. A new event overwrites the oldest of a set of four.
 *
 * Chunks are identified by a hash of their key: one query in 2^32 may match another chunk and
 * report a wrong reason.
 *
 * Thread: any; one lock of class DEPARTURES inside, held for a cache line. A table that is NULL
 * remembers nothing.
 */

struct tierce__departures;

struct tierce__departure {
    uint32_t when_s; /* wall clock */
    int16_t status;  /* of a rejection, or TIERCE_E_SLOTS of an eviction; else 0 */
    uint8_t level;
    uint8_t reason; /* enum tierce_miss_reason, not NONE */
};

/* For `count` chunks, rounded up to four; *out is NULL for 0. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__departures_create(struct tierce__departures **out, uint32_t count);
void tierce__departures_destroy(struct tierce__departures *table);

/*
 * Records that a chunk was removed or rejected, and replaces the earlier event of the chunk. A
 * rejection by a slower level stays, though: a later eviction from a faster level is normal.
 */
void tierce__departures_note(struct tierce__departures *table, uint64_t spread,
                             const struct tierce__departure *departure);

/* The chunk was stored again. */
void tierce__departures_forget(struct tierce__departures *table, uint64_t spread);

/* Prefetches the entry for a find that follows. Changes nothing. */
void tierce__departures_prefetch(const struct tierce__departures *table, uint64_t spread);

/* False: nothing is remembered; *out untouched. */
TIERCE_MUSTUSE bool tierce__departures_find(struct tierce__departures *table, uint64_t spread,
                                            struct tierce__departure *out);

#endif
