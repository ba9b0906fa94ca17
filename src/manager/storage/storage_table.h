/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STORAGE_TABLE_H
#define TIERCE_MANAGER_STORAGE_TABLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Items of one size, by the number of a storage. A number has 16 bits, and a fleet uses a few of
 * them. So items lie in pages of 64, which are allocated when one of their items is first used, and
 * are zero then.
 *
 *     struct tierce__storage_table table = {.item_bytes = sizeof(uint64_t)};
 *     uint64_t *sum = tierce__storage_table_make(&table, storage->number);
 *
 * Threads: any for find and make, which take no lock; the caller protects the items. No other call
 * may run during clear.
 */

enum {
    TIERCE__STORAGE_TABLE_PAGE = 64,
    TIERCE__STORAGE_TABLE_PAGES = (UINT16_MAX + 1) / TIERCE__STORAGE_TABLE_PAGE,
};

/* Zero, with item_bytes set, is an empty table. */
struct tierce__storage_table {
    size_t item_bytes;
    /* Set once; the release pairs with the acquire of a reader, which sees the page's zeros. */
    _Atomic(void *) pages[TIERCE__STORAGE_TABLE_PAGES];
};

/* The item of a number; NULL: its page was never made, so the item is zero. */
void *tierce__storage_table_find(const struct tierce__storage_table *table, uint16_t number);

/* The item of a number. NULL: no memory. */
void *tierce__storage_table_make(struct tierce__storage_table *table, uint16_t number);

/* The item of the first number from *number on that has a page, and sets *number to its number.
 * NULL: there is none. */
void *tierce__storage_table_next(const struct tierce__storage_table *table, uint32_t *number);

/* Frees all pages; the table is empty again. */
void tierce__storage_table_clear(struct tierce__storage_table *table);

#endif
