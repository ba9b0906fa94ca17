/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_INTERN_H
#define TIERCE_OPTIMIZER_INTERN_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Numbers 64-bit ids: the n-th different pair of (instance, id) that comes gets the number n, from
 * 0. Whoever keeps something for each block then keeps it in plain arrays.
 *
 *     rc = tierce__intern_chain(intern, request.instance, request.blocks, request.count, numbers);
 *
 * Exact: different pairs have different numbers, whatever they hash to. Costs at most 32 bytes for
 * each pair (36 if there are instances other than 0), the moment of growing included, once there
 * are some thousand.
 *
 * Threads: one at a time.
 */

/* No number; and so a table holds at most that many. */
#define TIERCE__INTERN_NONE UINT32_MAX

struct tierce__intern;

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__intern_create(struct tierce__intern **out);

/* NULL is accepted. */
void tierce__intern_destroy(struct tierce__intern *intern);

/*
 * Writes the numbers of ids[0 .. count) to out[0 .. count); new ones get the next numbers in the
 * order in which they stand. Waits for memory once for many ids rather than for each.
 * Errors: -ENOMEM, TIERCE_E_LIMIT; what was numbered before stays so.
 */
TIERCE_MUSTUSE int tierce__intern_chain(struct tierce__intern *intern, uint32_t instance,
                                        const uint64_t *ids, size_t count, uint32_t *out);

/* The number of one id; new ones get one. Errors as above. */
TIERCE_MUSTUSE int tierce__intern_one(struct tierce__intern *intern, uint32_t instance, uint64_t id,
                                      uint32_t *out);

/* The number of an id, or TIERCE__INTERN_NONE if it has none. */
uint32_t tierce__intern_find(const struct tierce__intern *intern, uint32_t instance, uint64_t id);

/*
 * Makes the table as large as `count` pairs will need, so that it does not grow on the way there.
 * Errors: -ENOMEM; what was numbered before stays so.
 */
TIERCE_MUSTUSE int tierce__intern_reserve(struct tierce__intern *intern, uint32_t count);

/* How many have a number. */
uint32_t tierce__intern_count(const struct tierce__intern *intern);

/* Bytes that the table takes now. */
uint64_t tierce__intern_bytes(const struct tierce__intern *intern);

#endif
