/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/storage/storage_table.h"

#include "base/alloc.h"
#include "base/assert.h"

enum { PAGE = TIERCE__STORAGE_TABLE_PAGE, PAGES = TIERCE__STORAGE_TABLE_PAGES };

static void *item_of(const struct tierce__storage_table *table, void *page, uint32_t number)
{
    TIERCE_DASSERT(table->item_bytes > 0 && page != NULL);
    return (char *)page + number % PAGE * table->item_bytes;
}

void *tierce__storage_table_find(const struct tierce__storage_table *table, uint16_t number)
{
    void *page = atomic_load_explicit(&table->pages[number / PAGE], memory_order_acquire);
    return page != NULL ? item_of(table, page, number) : NULL;
}

void *tierce__storage_table_make(struct tierce__storage_table *table, uint16_t number)
{
    void *item = tierce__storage_table_find(table, number);
    if (item != NULL)
        return item;
    void *page = tierce__calloc(PAGE, table->item_bytes), *before = NULL;
    if (page == NULL)
        return NULL;
    /* Another thread may have made it meanwhile. */
    if (!atomic_compare_exchange_strong_explicit(&table->pages[number / PAGE], &before, page,
                                                 memory_order_acq_rel, memory_order_acquire)) {
        tierce__free(page);
        page = before;
    }
    return item_of(table, page, number);
}

void *tierce__storage_table_next(const struct tierce__storage_table *table, uint32_t *number)
{
    for (uint32_t n = *number; n <= UINT16_MAX; n = (n / PAGE + 1) * PAGE) {
        void *item = tierce__storage_table_find(table, (uint16_t)n);
        if (item == NULL)
            continue;
        *number = n;
        return item;
    }
    return NULL;
}

void tierce__storage_table_clear(struct tierce__storage_table *table)
{
    for (uint32_t i = 0; i < PAGES; i++) {
        tierce__free(atomic_load_explicit(&table->pages[i], memory_order_relaxed));
        atomic_store_explicit(&table->pages[i], NULL, memory_order_relaxed);
    }
}
