/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic uint64_t live;    /* relaxed: a counter that is only read by tests */
static _Atomic uint64_t made;    /* relaxed: allocations since the hook was set */
static _Atomic uint64_t fail_at; /* relaxed: the value of `made` that fails, 0 for none */

static bool fails_now(void)
{
    uint64_t n = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed) + 1;
    return n == atomic_load_explicit(&fail_at, memory_order_relaxed);
}

static void *counted(void *ptr)
{
    if (ptr != NULL)
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return ptr;
}

void *tierce__alloc(size_t size)
{
    if (fails_now())
        return NULL;
    return counted(malloc(size > 0 ? size : 1));
}

void *tierce__calloc(size_t count, size_t size)
{
    if (fails_now())
        return NULL;
    return counted(calloc(count > 0 ? count : 1, size > 0 ? size : 1));
}

void *tierce__realloc(void *ptr, size_t size)
{
    if (ptr == NULL)
        return tierce__alloc(size);
    if (fails_now())
        return NULL;
    TIERCE_DASSERT(atomic_load_explicit(&live, memory_order_relaxed) > 0);
    return realloc(ptr, size > 0 ? size : 1);
}

int tierce__grow(void **items, size_t *room, size_t wanted, size_t first, size_t item_bytes,
                 size_t room_max)
{
    TIERCE_DASSERT(first > 0 && item_bytes > 0);
    TIERCE_DASSERT(*items != NULL || *room == 0);
    if (wanted <= *room)
        return 0;
    if (room_max > SIZE_MAX / item_bytes)
        room_max = SIZE_MAX / item_bytes;
    size_t grown = *room > 0 ? *room : first;
    while (grown < wanted && grown <= room_max / 2)
        grown *= 2;
    if (wanted > room_max)
        return -ENOMEM;
    grown = grown < wanted || grown > room_max ? room_max : grown;
    TIERCE_DASSERT(grown >= wanted && grown <= room_max);
    void *larger = tierce__realloc(*items, grown * item_bytes);
    if (larger == NULL)
        return -ENOMEM;
    *items = larger;
    *room = grown;
    return 0;
}

void *tierce__alloc_aligned(size_t align, size_t size)
{
    TIERCE_DASSERT(align >= sizeof(void *) && (align & (align - 1)) == 0);
    if (fails_now())
        return NULL;
    void *ptr = NULL;
    if (posix_memalign(&ptr, align, size > 0 ? size : 1) != 0)
        return NULL;
    return counted(ptr);
}

char *tierce__strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = tierce__alloc(n);
    if (copy != NULL)
        memcpy(copy, text, n);
    return copy;
}

void tierce__advise_huge(void *memory, size_t bytes)
{
    uintptr_t from = ((uintptr_t)memory + 4095) & ~(uintptr_t)4095;
    uintptr_t to = ((uintptr_t)memory + bytes) & ~(uintptr_t)4095;
    if (memory != NULL && to > from && bytes >= (4u << 20))
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
}

void tierce__free(void *ptr)
{
    if (ptr == NULL)
        return;
    int saved = errno;
    TIERCE_DASSERT(atomic_load_explicit(&live, memory_order_relaxed) > 0);
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    free(ptr);
    errno = saved;
}

void tierce__free_secret(char *text)
{
    if (text != NULL)
        explicit_bzero(text, strlen(text));
    tierce__free(text);
}

uint64_t tierce__alloc_live(void)
{
    return atomic_load_explicit(&live, memory_order_relaxed);
}

uint64_t tierce__alloc_fail_nth(uint64_t nth)
{
    atomic_store_explicit(&fail_at, nth, memory_order_relaxed);
    return atomic_exchange_explicit(&made, 0, memory_order_relaxed);
}
