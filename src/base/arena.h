/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_ARENA_H
#define TIERCE_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

/*
 * Memory that is taken in pieces and given back at once: for what lives as long as one request.
 * Blocks are filled from their beginning; how much there may be has a limit.
 *
 * Thread: one at a time.
 */

struct tierce__arena;

/* With a first block for about `bytes`; `limit` is what all pieces together may have. NULL for no
 * memory. */
struct tierce__arena *tierce__arena_create(size_t bytes, size_t limit);

/* NULL is accepted. */
void tierce__arena_destroy(struct tierce__arena *arena);

/* Uninitialised bytes, aligned for any type; NULL, and remembered in the status, if there are none
 * or the limit is reached: from then on every take fails. */
void *tierce__arena_take(struct tierce__arena *arena, size_t bytes);

/* -ENOMEM or TIERCE_E_LIMIT if a take has failed, else 0. */
int tierce__arena_status(const struct tierce__arena *arena);

/* Gives all pieces back, and forgets a failure. The first block stays. */
void tierce__arena_reset(struct tierce__arena *arena, size_t limit);

/* The arena of the first piece that was taken since create. */
struct tierce__arena *tierce__arena_of(void *first);

#endif
