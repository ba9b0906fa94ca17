/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_ARENA_H
#define TIERCE_BASE_ARENA_H

#include <stddef.h>

#include <tierce/status.h>

/*
 * Memory that lives as long as a request: taken in pieces, given back at once.
 *
 *     struct tierce__arena arena = {0};
 *     char *text = tierce__arena_alloc(&arena, 100);
 *     ...
 *     tierce__arena_clear(&arena);
 *
 * Thread: one at a time.
 */

struct tierce__arena_block;

struct tierce__arena {
    struct tierce__arena_block *blocks; /* the newest first */
    size_t used, capacity;              /* of the newest */
    size_t taken;                       /* bytes of all pieces */
    size_t limit;                       /* to them; 0: none */
    unsigned
        start;  /* start of the oldest block's pieces, behind the arena if the block contains it */
    int status; /* -ENOMEM or TIERCE_E_LIMIT after a failure; then every piece is rejected */
};

/* `bytes` uninitialised bytes aligned for any type, or NULL. */
void *tierce__arena_alloc(struct tierce__arena *arena, size_t bytes);

/* `count * bytes` zeroed bytes, or NULL (also if the product overflows). */
void *tierce__arena_calloc(struct tierce__arena *arena, size_t count, size_t bytes);

/* A copy with a terminating NUL, or NULL. */
char *tierce__arena_copy(struct tierce__arena *arena, const char *text, size_t bytes);

/* Gives all memory back; the arena is then as if zeroed. */
void tierce__arena_clear(struct tierce__arena *arena);

/* Gives the pieces back and forgets a failure, but keeps the oldest block for the next request. */
void tierce__arena_reset(struct tierce__arena *arena);

/*
 * An arena on the heap, inside its own first block of at least `bytes`: for data that is passed on
 * as one object. tierce__arena_of finds it by its first piece. NULL for no memory.
 */
struct tierce__arena *tierce__arena_create(size_t bytes, size_t limit);
struct tierce__arena *tierce__arena_of(void *first);
/* NULL is accepted. */
void tierce__arena_destroy(struct tierce__arena *arena);

#endif
