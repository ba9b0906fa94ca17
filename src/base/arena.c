/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include "base/alloc.h"

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

static size_t next_block_bytes(const struct tierce__arena *arena, size_t wanted)
{
    size_t bytes = arena->capacity * 2;
    if (bytes < BLOCK_BYTES_MIN)
        bytes = BLOCK_BYTES_MIN;
    if (bytes > BLOCK_BYTES_GROWTH_MAX)
        bytes = BLOCK_BYTES_GROWTH_MAX;
    return bytes > wanted ? bytes : wanted;
}

void *tierce__arena_alloc(struct tierce__arena *arena, size_t bytes)
{
    const size_t align = _Alignof(max_align_t);
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = bytes == 0 ? align : (bytes + align - 1) & ~(align - 1);
    if (arena->blocks == NULL || arena->capacity - arena->used < bytes) {
        size_t block_bytes = next_block_bytes(arena, bytes);
        struct tierce__arena_block *block = tierce__alloc(sizeof(*block) + block_bytes);
        if (block == NULL)
            return NULL;
        block->older = arena->blocks;
        block->bytes = block_bytes;
        arena->blocks = block;
        arena->used = 0;
        arena->capacity = block_bytes;
        arena->total += block_bytes;
    }
    void *memory = arena->blocks->memory + arena->used;
    arena->used += bytes;
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
    *arena = (struct tierce__arena){0};
}

void tierce__arena_reset(struct tierce__arena *arena)
{
    struct tierce__arena_block *kept = arena->blocks;
    if (kept == NULL)
        return;
    free_blocks(kept->older);
    kept->older = NULL;
    *arena = (struct tierce__arena){.blocks = kept, .capacity = kept->bytes, .total = kept->bytes};
}
