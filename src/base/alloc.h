/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_ALLOC_H
#define TIERCE_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Every heap allocation of the library passes here: it is counted, and a test can make the n-th
 * one fail. All of these may return NULL, and every caller handles that.
 */

/* `size` uninitialised bytes, aligned for any type; NULL if there is no memory. size 0 is 1. */
void *tierce__alloc(size_t size);

/* `count * size` zeroed bytes; NULL if there is no memory or the product overflows. */
void *tierce__calloc(size_t count, size_t size);

/* Grows or shrinks; on failure it returns NULL and leaves `ptr` unchanged. ptr NULL allocates. */
void *tierce__realloc(void *ptr, size_t size);

/*
 * Gives the array `items` room for `wanted` items. `room`, of any unsigned type, is the number of
 * items that it has room for; it is doubled, from `first` on. Returns 0 or -ENOMEM: there is no
 * memory, or `room` or the bytes would overflow; the array is unchanged. New items are
 * uninitialised. `items` and `room` must be free of side effects.
 *
 *     int rc = TIERCE__GROW(list->items, list->room, list->count + 1, 16);
 */
#define TIERCE__GROW(items, room, wanted, first)                                                   \
    __extension__({                                                                                \
        void *grow_items_ = (items);                                                               \
        size_t grow_room_ = (room);                                                                \
        int grow_rc_ = tierce__grow(&grow_items_, &grow_room_, (wanted), (first),                  \
                                    sizeof(*(items)), (size_t)(__typeof__(room))-1);               \
        (items) = grow_items_;                                                                     \
        (room) = (__typeof__(room))grow_room_;                                                     \
        grow_rc_;                                                                                  \
    })
TIERCE_MUSTUSE int tierce__grow(void **items, size_t *room, size_t wanted, size_t first,
                                size_t item_bytes, size_t room_max);

/* `size` uninitialised bytes at a multiple of `align` (a power of two >= 16). */
void *tierce__alloc_aligned(size_t align, size_t size);

/* A copy of `text` on the heap, or NULL. */
char *tierce__strdup(const char *text);

/* Advises the kernel to use large pages, for tables that are read at random: each read misses the
 * TLB, and large pages halve its time. It has no effect on tables smaller than a large page. NULL
 * is accepted. */
void tierce__advise_huge(void *memory, size_t bytes);

/* Frees memory that a function above has returned. NULL is accepted; errno is preserved. */
void tierce__free(void *ptr);

/* Overwrites a text and frees it: a password or a token. NULL is accepted. */
void tierce__free_secret(char *text);

/* Allocations alive now; a test compares it before and after. */
uint64_t tierce__alloc_live(void);

/*
 * Torture hook: the `nth` allocation from now (1 = the next one) fails, once; 0 switches it off.
 * Returns how many allocations were made since the hook was last set. Thread: any.
 */
uint64_t tierce__alloc_fail_nth(uint64_t nth);

#endif
