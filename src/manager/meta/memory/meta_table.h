/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_TABLE_H
#define TIERCE_MANAGER_META_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A hash table of byte strings by evenly distributed 64-bit numbers (tierce__meta_mix): one shard
 * of the memory store. Buckets are in the order of the numbers, so a scan can continue after the
 * table was resized. Each change resizes a few buckets, never all at once.
 *
 * Thread: the owner locks.
 */

struct tierce__table_entry {
    struct tierce__table_entry *next;
    uint64_t number;
    uint32_t bytes;
    uint8_t data[];
};

/* 2^bits buckets. */
struct tierce__table_buckets {
    struct tierce__table_entry **heads;
    unsigned bits;
};

struct tierce__table {
    struct tierce__table_buckets now;
    struct tierce__table_buckets old; /* the buckets of a resize in progress; heads NULL: none */
    size_t moved;       /* the number of leading buckets of `old` that are already moved */
    unsigned skip_bits; /* leading bits of the numbers, the same for all of them */
    uint64_t count;
    uint64_t memory; /* bytes of the buckets, as the allocator rounds them */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__table_init(struct tierce__table *table, unsigned skip_bits);

/* Frees the table and its entries; a zeroed table is accepted. */
void tierce__table_fini(struct tierce__table *table);

/* An entry with uninitialised data, not yet in a table; tierce__free. NULL: no memory. */
struct tierce__table_entry *tierce__table_entry(uint64_t number, size_t bytes);

/* Finds an entry; NULL: there is none. */
struct tierce__table_entry *tierce__table_find(const struct tierce__table *table, uint64_t number);

/* Prefetches the bucket's memory, or its first entry's, into the processor's cache. */
void tierce__table_prefetch_bucket(const struct tierce__table *table, uint64_t number);
void tierce__table_prefetch_entry(const struct tierce__table *table, uint64_t number);

/* [transfer] entry in. Returns the entry that it replaced [transfer], or NULL. Cannot fail. */
struct tierce__table_entry *tierce__table_put(struct tierce__table *table,
                                              struct tierce__table_entry *entry);

/* Returns the entry [transfer], or NULL. */
struct tierce__table_entry *tierce__table_take(struct tierce__table *table, uint64_t number);

/* The numbers from `from` on in ascending order, at most `limit`. */
size_t tierce__table_scan(const struct tierce__table *table, uint64_t from, size_t limit,
                          uint64_t *numbers);

/*
 * Draws the numbers of some neighbouring buckets, from a random place on, at most `limit`; returns
 * their count, which may be 0. The numbers are evenly distributed, so neighbours are independent
 * draws; their memory is fetched together, which a draw of one bucket at a time cannot do.
 */
size_t tierce__table_draw(const struct tierce__table *table, uint64_t random, size_t limit,
                          uint64_t *numbers);

#endif
