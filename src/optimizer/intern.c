/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/intern.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/*
 * Open addressing over entries of 16 bytes, so that a number costs one line of memory. The table is
 * cut into segments by the first bits of the hash, and each grows alone: while one is copied, the
 * others are not there twice. A segment grows by a quarter when 27 of 32 places are taken, so that
 * at least 0.67 of them are: 16 / 0.67 = 23.7 bytes for each.
 */

#define INTERN_MAGIC 0x4e52544eu
#define SEGMENT_BITS 7u
#define SEGMENTS     (1u << SEGMENT_BITS)
#define CAPACITY_MIN 4u
#define GROUP        32u /* ids whose lines are asked for before the first is looked at */
#define FULL_OF_32   27u

struct entry {
    uint64_t id;
    uint32_t instance;
    uint32_t number; /* NONE: nothing is here */
};

struct segment {
    struct entry *entries; /* [capacity] */
    uint32_t capacity;
    uint32_t count;
};

struct tierce__intern {
    uint32_t magic;
    uint32_t count;
    struct segment segments[SEGMENTS];
};

/* For one instance a bijection: its ids never share a whole hash. */
static inline uint64_t hash_of(uint32_t instance, uint64_t id)
{
    uint64_t x = id + (instance + 1ULL) * 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
    return x ^ (x >> 32);
}

static inline uint32_t segment_of(uint64_t hash)
{
    return (uint32_t)(hash >> (64 - SEGMENT_BITS));
}

/* Where a hash is looked for first: the low half, scaled to the capacity. */
static inline uint32_t home_of(uint64_t hash, uint32_t capacity)
{
    return (uint32_t)(((hash & UINT32_MAX) * capacity) >> 32);
}

/* The entry of the id, or the free one where it belongs. The segment has a free one. */
static inline struct entry *seek(const struct segment *segment, uint64_t hash, uint32_t instance,
                                 uint64_t id)
{
    uint32_t at = home_of(hash, segment->capacity);
    for (;;) {
        struct entry *entry = &segment->entries[at];
        if (entry->number == TIERCE__INTERN_NONE ||
            (entry->id == id && entry->instance == instance))
            return entry;
        if (++at == segment->capacity)
            at = 0;
    }
}

static bool is_full(const struct segment *segment)
{
    return segment->count >= (uint64_t)segment->capacity * FULL_OF_32 / 32;
}

static int grow(struct segment *segment)
{
    uint64_t more = segment->capacity / 4 > CAPACITY_MIN ? segment->capacity / 4 : CAPACITY_MIN;
    struct segment grown = {.capacity = (uint32_t)(segment->capacity + more),
                            .count = segment->count};
    TIERCE_ASSERT(grown.capacity > segment->capacity);
    grown.entries = tierce__alloc(grown.capacity * sizeof(*grown.entries));
    if (grown.entries == NULL)
        return -ENOMEM;
    memset(grown.entries, 0xff, grown.capacity * sizeof(*grown.entries));
    for (uint32_t i = 0; i < segment->capacity; i++) {
        const struct entry *entry = &segment->entries[i];
        if (entry->number != TIERCE__INTERN_NONE)
            *seek(&grown, hash_of(entry->instance, entry->id), entry->instance, entry->id) = *entry;
    }
    tierce__free(segment->entries);
    *segment = grown;
    return 0;
}

int tierce__intern_create(struct tierce__intern **out)
{
    struct tierce__intern *intern = tierce__calloc(1, sizeof(*intern));
    if (intern == NULL)
        return -ENOMEM;
    intern->magic = INTERN_MAGIC;
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        if (grow(&intern->segments[i]) < 0) {
            tierce__intern_destroy(intern);
            return -ENOMEM;
        }
    }
    *out = intern;
    return 0;
}

void tierce__intern_destroy(struct tierce__intern *intern)
{
    if (intern == NULL)
        return;
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        tierce__free(intern->segments[i].entries);
    intern->magic = 0;
    tierce__free(intern);
}

static inline int number_one(struct tierce__intern *intern, uint64_t hash, uint32_t instance,
                             uint64_t id, uint32_t *out)
{
    struct segment *segment = &intern->segments[segment_of(hash)];
    struct entry *entry = seek(segment, hash, instance, id);
    if (entry->number == TIERCE__INTERN_NONE) {
        if (intern->count == TIERCE__INTERN_NONE)
            return TIERCE_E_LIMIT;
        if (is_full(segment)) {
            if (grow(segment) < 0)
                return -ENOMEM;
            entry = seek(segment, hash, instance, id);
        }
        *entry = (struct entry){.id = id, .instance = instance, .number = intern->count++};
        segment->count++;
    }
    *out = entry->number;
    return 0;
}

static void prefetch(const struct tierce__intern *intern, uint64_t hash)
{
    const struct segment *segment = &intern->segments[segment_of(hash)];
    __builtin_prefetch(&segment->entries[home_of(hash, segment->capacity)], 1);
}

int tierce__intern_chain(struct tierce__intern *intern, uint32_t instance, const uint64_t *ids,
                         size_t count, uint32_t *out)
{
    uint64_t hashes[GROUP];
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    for (size_t start = 0; start < count; start += GROUP) {
        size_t n = count - start < GROUP ? count - start : GROUP;
        for (size_t i = 0; i < n; i++) {
            hashes[i] = hash_of(instance, ids[start + i]);
            prefetch(intern, hashes[i]);
        }
        for (size_t i = 0; i < n; i++) {
            int rc = number_one(intern, hashes[i], instance, ids[start + i], &out[start + i]);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

int tierce__intern_one(struct tierce__intern *intern, uint32_t instance, uint64_t id, uint32_t *out)
{
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    return number_one(intern, hash_of(instance, id), instance, id, out);
}

uint32_t tierce__intern_find(const struct tierce__intern *intern, uint32_t instance, uint64_t id)
{
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    uint64_t hash = hash_of(instance, id);
    return seek(&intern->segments[segment_of(hash)], hash, instance, id)->number;
}

uint32_t tierce__intern_count(const struct tierce__intern *intern)
{
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    return intern->count;
}

uint64_t tierce__intern_bytes(const struct tierce__intern *intern)
{
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    uint64_t bytes = sizeof(*intern);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        bytes += intern->segments[i].capacity * sizeof(struct entry);
    return bytes;
}
