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
 * The space is a set of free extents, always coalesced. A range is taken from the smallest extent
 * that holds it, the lowest of equals, and costs its bytes rounded up to 4096 and nothing else. So
 * the next object of its size fills the hole that an object left, before any larger extent is
 * split, and releasing an object of some size always frees a range for another object of that size.
 * The set of taken ranges is the whole state: an owner that knows only its objects rebuilds it with
 * claim, in any order, even in a space that has since grown or shrunk.
 *
 * Size classes with spans are not used. Chunks are large (hundreds of KiB to tens of MiB), and a
 * process uses few sizes. A span whose unused remainder is below an eighth would be as long as many
 * chunks, and all of them would have to be freed before another size could use it. After a restart,
 * spans could not be found from their objects alone. tests/prop/test_prop_space.c measures the cost
 * of mixed sizes.
 *
 * Thread: one at a time; the owner locks. Does not block. Every call costs O(log n) in the number
 * of free extents. Bookkeeping: 40 bytes per free extent; there are never more free extents than
 * live objects plus one.
 */

struct tierce__space;

/* An address space of `bytes` (rounded down to 4096). Errors: -ENOMEM, TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__space_create(struct tierce__space **out, uint64_t bytes);
void tierce__space_destroy(struct tierce__space *space);

/*
 * Reserves the bookkeeping for `objects` live objects, so that take and claim allocate nothing
 * and cannot fail for memory up to there. Errors: -ENOMEM; nothing is changed then.
 */
TIERCE_MUSTUSE int tierce__space_reserve(struct tierce__space *space, uint32_t objects);

/*
 * *offset = start of a free range of `bytes` (> 0), a multiple of 4096.
 * Errors: TIERCE_E_FULL (no room now), TIERCE_E_LIMIT (larger than the space), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__space_take(struct tierce__space *space, uint64_t *offset,
                                      uint64_t bytes);

/*
 * Frees a range from take or claim; `bytes` must be the same. Cannot fail. Panics on a range that
 * is already partly free, or not inside the space; a range that lies inside another taken range is
 * not detected.
 */
void tierce__space_give(struct tierce__space *space, uint64_t offset, uint64_t bytes);

/*
 * Marks a range as taken that an earlier process took (when a disk index is read back). Ranges come
 * in any order. Errors: TIERCE_E_FORMAT (overlaps another, or off the end, or no bytes, or not at a
 * multiple of 4096), -ENOMEM; nothing is changed then.
 */
TIERCE_MUSTUSE int tierce__space_claim(struct tierce__space *space, uint64_t offset,
                                       uint64_t bytes);

/* Bytes taken including all rounding; never above the size of the space. */
uint64_t tierce__space_used(const struct tierce__space *space);

/* Requested bytes of the live objects. */
uint64_t tierce__space_asked(const struct tierce__space *space);

/* The end of the highest range in use: a file needs to be no longer than that. */
uint64_t tierce__space_high(const struct tierce__space *space);

/* The longest range that take could give now. */
uint64_t tierce__space_longest(const struct tierce__space *space);

#endif
