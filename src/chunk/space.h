/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CHUNK_SPACE_H
#define TIERCE_CHUNK_SPACE_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Allocation of ranges in an address space of fixed size: the offsets of a pool's memory and of a
 * disk tier's data file come from the same code.
 *
 * Objects of one size class share spans (runs of 4096-byte pages that hold several objects of the
 * class); a span whose last object goes is given back and may serve another class. An allocation
 * wastes at most 12.5 % of itself in rounding and span remainders, except in spaces too small
 * to hold a well-filled span. Allocation and release cost O(log n) at most. A hole of the right
 * class is always reused first, so evicting one object makes room for one of its class.
 *
 * Thread: one at a time; the owner locks. Does not block. The memory for the bookkeeping grows
 * with the number of spans, never per object.
 */

struct tierce__space;

/* An address space of `bytes` (rounded down to 4096). Errors: -ENOMEM, TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__space_create(struct tierce__space **out, uint64_t bytes);
void tierce__space_destroy(struct tierce__space *space);

/*
 * *offset = start of a free range of `bytes` (> 0), a multiple of 4096.
 * Errors: TIERCE_E_FULL (no room now), TIERCE_E_LIMIT (larger than the space), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__space_take(struct tierce__space *space, uint64_t *offset,
                                      uint64_t bytes);

/* Gives a range back that take or claim gave; the same `bytes`. Panics on a range that is not. */
void tierce__space_give(struct tierce__space *space, uint64_t offset, uint64_t bytes);

/*
 * Marks a range as taken that was taken in an earlier life (a disk index being read back).
 * Ranges come in any order. Errors: TIERCE_E_FORMAT (overlaps another, or off the end, or not
 * aligned as take would have), -ENOMEM; nothing is changed then.
 */
TIERCE_MUSTUSE int tierce__space_claim(struct tierce__space *space, uint64_t offset,
                                       uint64_t bytes);

/* Bytes taken including all rounding and span remainders; never above the size of the space. */
uint64_t tierce__space_used(const struct tierce__space *space);

/* Bytes of the live objects as asked for. */
uint64_t tierce__space_asked(const struct tierce__space *space);

/* The end of the highest span in use: a file needs to be no longer than that. */
uint64_t tierce__space_high(const struct tierce__space *space);

#endif
