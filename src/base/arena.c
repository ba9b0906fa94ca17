/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"

#include <tierce/status.h>

#include <errno.h>

#define ARENA_MAGIC     0x9c0de3a1u
#define ALIGN           16u
#define BLOCK_BYTES_MIN 512u
#define BLOCK_BYTES_MAX (1u << 20) /* of a block that one piece does not need larger */

struct block {
    struct block *next;
    size_t unused; /* keeps what follows aligned */
};

/* It lies at the beginning of its first block, which is the last of the list. */
struct tierce__arena {
    _Alignas(ALIGN) uint32_t magic;
    int status;
    size_t left; /* of the limit */
    char *at, *end;
    size_t first_bytes;  /* of the first block, the arena itself included */
    size_t newest_bytes; /* of the newest one */
    struct block *blocks;
};

_Static_assert(sizeof(struct block) % ALIGN == 0, "what follows a block's head is aligned");
_Static_assert(sizeof(struct tierce__arena) % ALIGN == 0, "so is the first piece");

static struct block *new_block(size_t bytes)
{
    return bytes > SIZE_MAX - sizeof(struct block) ? NULL
                                                   : tierce__alloc(sizeof(struct block) + bytes);
}

struct tierce__arena *tierce__arena_create(size_t bytes, size_t limit)
{
    size_t wanted = bytes < BLOCK_BYTES_MAX ? bytes : BLOCK_BYTES_MAX;
    size_t size =
        sizeof(struct tierce__arena) + (size_t)tierce__round_up(wanted + BLOCK_BYTES_MIN, ALIGN);
    struct block *block = new_block(size);
    if (block == NULL)
        return NULL;
    block->next = NULL;
    struct tierce__arena *arena = (struct tierce__arena *)(block + 1);
    *arena = (struct tierce__arena){.magic = ARENA_MAGIC, .first_bytes = size, .blocks = block};
    tierce__arena_reset(arena, limit);
    return arena;
}

void tierce__arena_destroy(struct tierce__arena *arena)
{
    if (arena == NULL)
        return;
    TIERCE_CHECK_MAGIC(arena, ARENA_MAGIC);
    arena->magic = 0;
    struct block *block = arena->blocks;
    while (block != NULL) {
        struct block *next = block->next;
        tierce__free(block);
        block = next;
    }
}

void tierce__arena_reset(struct tierce__arena *arena, size_t limit)
{
    TIERCE_CHECK_MAGIC(arena, ARENA_MAGIC);
    while (arena->blocks->next != NULL) {
        struct block *newest = arena->blocks;
        arena->blocks = newest->next;
        tierce__free(newest);
    }
    arena->status = 0;
    arena->left = limit;
    arena->newest_bytes = arena->first_bytes;
    arena->at = (char *)(arena + 1);
    arena->end = (char *)arena + arena->first_bytes;
}

/* Blocks double up to a bound, so that there are few of them and little is unused. */
static int add_block(struct tierce__arena *arena, size_t bytes)
{
    size_t size = 2 * arena->newest_bytes;
    if (size > BLOCK_BYTES_MAX)
        size = BLOCK_BYTES_MAX;
    if (size < bytes)
        size = bytes;
    struct block *block = new_block(size);
    if (block == NULL)
        return -ENOMEM;
    block->next = arena->blocks;
    arena->blocks = block;
    arena->newest_bytes = size;
    arena->at = (char *)(block + 1);
    arena->end = arena->at + size;
    return 0;
}

void *tierce__arena_take(struct tierce__arena *arena, size_t bytes)
{
    TIERCE_CHECK_MAGIC(arena, ARENA_MAGIC);
    size_t size = (size_t)tierce__round_up(bytes, ALIGN);
    if (arena->status == 0 && (size < bytes || size > arena->left))
        arena->status = TIERCE_E_LIMIT;
    if (arena->status == 0 && size > (size_t)(arena->end - arena->at))
        arena->status = add_block(arena, size);
    if (arena->status != 0)
        return NULL;
    void *out = arena->at;
    arena->at += size;
    arena->left -= size;
    return out;
}

int tierce__arena_status(const struct tierce__arena *arena)
{
    return arena->status;
}

struct tierce__arena *tierce__arena_of(void *first)
{
    struct tierce__arena *arena = (struct tierce__arena *)first - 1;
    TIERCE_CHECK_MAGIC(arena, ARENA_MAGIC);
    return arena;
}
