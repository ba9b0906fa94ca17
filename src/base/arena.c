/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

enum {
    BLOCK_BYTES_MIN = 4096,
    BLOCK_BYTES_GROWTH_MAX = 1024 * 1024, /* blocks double up to here */
};

struct tierce__arena_block {
    struct tierce__arena_block *older;
    size_t bytes;
    _Alignas(max_align_t) unsigned char memory[];
};

_Static_assert(sizeof(struct tierce__arena) % _Alignof(max_align_t) == 0,
               "the first piece is behind an arena that lies in its own block");

static struct tierce__arena_block *create_block(size_t bytes)
{
    struct tierce__arena_block *block = tierce__alloc(sizeof(*block) + bytes);
    if (block != NULL)
        *block = (struct tierce__arena_block){.bytes = bytes};
    return block;
}

static size_t next_block_bytes(const struct tierce__arena *arena, size_t wanted)
{
    size_t bytes = arena->capacity * 2;
    if (bytes < BLOCK_BYTES_MIN)
        bytes = BLOCK_BYTES_MIN;
    if (bytes > BLOCK_BYTES_GROWTH_MAX)
        bytes = BLOCK_BYTES_GROWTH_MAX;
    return bytes > wanted ? bytes : wanted;
}

static int add_block(struct tierce__arena *arena, size_t wanted)
{
    struct tierce__arena_block *block = create_block(next_block_bytes(arena, wanted));
    if (block == NULL)
        return -ENOMEM;
    block->older = arena->blocks;
    arena->blocks = block;
    arena->used = 0;
    arena->capacity = block->bytes;
    TIERCE_DASSERT(arena->capacity >= wanted);
    return 0;
}

void *tierce__arena_alloc(struct tierce__arena *arena, size_t bytes)
{
    const size_t align = _Alignof(max_align_t);
    TIERCE_DASSERT(arena->used <= arena->capacity);
    size_t limit = arena->limit > 0 ? arena->limit : SIZE_MAX / 2;
    if (arena->status == 0 && (bytes > limit || arena->taken > limit - bytes))
        arena->status = TIERCE_E_LIMIT;
    if (arena->status < 0)
        return NULL;
    bytes = bytes == 0 ? align : (bytes + align - 1) & ~(align - 1);
    if (arena->capacity - arena->used < bytes)
        arena->status = add_block(arena, bytes);
    if (arena->status < 0)
        return NULL;
    TIERCE_DASSERT(bytes <= arena->capacity - arena->used);
    void *memory = arena->blocks->memory + arena->used;
    TIERCE_DASSERT((uintptr_t)memory % align == 0);
    arena->used += bytes;
    arena->taken += bytes;
    return memory;
}

void *tierce__arena_calloc(struct tierce__arena *arena, size_t count, size_t bytes)
{
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all))
        return NULL;
    void *memory = tierce__arena_alloc(arena, all);
    if (memory != NULL)
        memset(memory, 0, all);
    return memory;
}

char *tierce__arena_copy(struct tierce__arena *arena, const char *text, size_t bytes)
{
    char *copy = bytes < SIZE_MAX ? tierce__arena_alloc(arena, bytes + 1) : NULL;
    if (copy == NULL)
        return NULL;
    if (bytes > 0)
        memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

static void free_blocks(struct tierce__arena_block *block)
{
    while (block != NULL) {
        struct tierce__arena_block *older = block->older;
        tierce__free(block);
        block = older;
    }
}

void tierce__arena_clear(struct tierce__arena *arena)
{
    free_blocks(arena->blocks);
    *arena = (struct tierce__arena){.limit = arena->limit};
}

void tierce__arena_reset(struct tierce__arena *arena)
{
    struct tierce__arena_block *oldest = arena->blocks;
    while (oldest != NULL && oldest->older != NULL) {
        struct tierce__arena_block *newer = oldest;
        oldest = oldest->older;
        tierce__free(newer);
    }
    TIERCE_DASSERT(oldest == NULL || arena->start <= oldest->bytes);
    *arena = (struct tierce__arena){.blocks = oldest,
                                    .used = arena->start,
                                    .capacity = oldest != NULL ? oldest->bytes : 0,
                                    .limit = arena->limit,
                                    .start = arena->start};
}

struct tierce__arena *tierce__arena_create(size_t bytes, size_t limit)
{
    size_t room = sizeof(struct tierce__arena) + bytes;
    struct tierce__arena_block *block =
        room > bytes ? create_block(room > BLOCK_BYTES_MIN ? room : BLOCK_BYTES_MIN) : NULL;
    if (block == NULL)
        return NULL;
    struct tierce__arena *arena = (struct tierce__arena *)(void *)block->memory;
    TIERCE_DASSERT(block->bytes >= sizeof(*arena));
    *arena = (struct tierce__arena){.blocks = block,
                                    .used = sizeof(*arena),
                                    .capacity = block->bytes,
                                    .limit = limit,
                                    .start = sizeof(*arena)};
    return arena;
}

struct tierce__arena *tierce__arena_of(void *first)
{
    return (struct tierce__arena *)first - 1;
}

void tierce__arena_destroy(struct tierce__arena *arena)
{
    if (arena != NULL)
        free_blocks(arena->blocks); /* it lies in the oldest */
}
