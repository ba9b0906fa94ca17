/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_INTERN_H
#define TIERCE_OPTIMIZER_INTERN_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Assigns dense numbers to 64-bit ids: the n-th distinct pair of (instance, id) gets the number n,
 * from 0. Callers can then keep data per block in plain arrays.
 *
 *     rc = tierce__intern_chain(intern, request.instance, request.blocks, request.count, numbers);
 *
 * Exact: distinct pairs get distinct numbers even if their hashes collide. Costs at most 32 bytes
 * per pair (36 with several instances), including the peak while growing, from some thousand pairs
 * on.
 *
 * Threads: one at a time.
 */

/* No number; also the maximum number of pairs. */
#define TIERCE__INTERN_NONE UINT32_MAX

struct tierce__intern;

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__intern_create(struct tierce__intern **out);

/* NULL is accepted. */
void tierce__intern_destroy(struct tierce__intern *intern);

/*
 * Writes the numbers of ids[0 .. count) to out[0 .. count); new ids get the next numbers in their
 * order. Prefetches, so that memory latency is paid once for many ids. Errors: -ENOMEM,
 * TIERCE_E_LIMIT; existing numbers stay valid.
 */
TIERCE_MUSTUSE int tierce__intern_chain(struct tierce__intern *intern, uint32_t instance,
                                        const uint64_t *ids, size_t count, uint32_t *out);

/* Returns the number of one id, and assigns one if it is new. Errors as above. */
TIERCE_MUSTUSE int tierce__intern_one(struct tierce__intern *intern, uint32_t instance, uint64_t id,
                                      uint32_t *out);

/* The number of an id, or TIERCE__INTERN_NONE if it has none. */
uint32_t tierce__intern_find(const struct tierce__intern *intern, uint32_t instance, uint64_t id);

/*
 * Reserves room for `count` pairs, so that the table does not grow before. Errors: -ENOMEM;
 * existing numbers stay valid.
 */
TIERCE_MUSTUSE int tierce__intern_reserve(struct tierce__intern *intern, uint32_t count);

/* The number of numbered pairs. */
uint32_t tierce__intern_count(const struct tierce__intern *intern);

/* Bytes that the table takes now. */
uint64_t tierce__intern_bytes(const struct tierce__intern *intern);

#endif
