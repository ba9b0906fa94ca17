/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "store/disk/disk_table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PAGE TIERCE__JOURNAL_PAGE

/* Reads hostile bytes as a journal into a table of few slots; what is in the table then must be
 * sane. */
static void read_all(const uint8_t *pages, size_t count)
{
    struct tierce__namespaces *namespaces;
    struct tierce__disk_table table = {0};
    struct tierce__journal_reader reader = {0};
    if (tierce__namespaces_create(&namespaces) < 0)
        return;
    if (tierce__disk_table_init(&table, 8, namespaces) == 0) {
        tierce__journal_read(&reader, pages, count, tierce__disk_table_apply, &table);
        uint32_t *slots = tierce__disk_table_sorted(&table, TIERCE__DISK_BY_SEQ);
        for (uint32_t i = 0; slots != NULL && i < tierce__index_count(table.index); i++) {
            const struct tierce__disk_chunk *c = &table.chunks[slots[i]];
            TIERCE_ASSERT(c->state == TIERCE__DISK_DURABLE && c->offset % PAGE == 0);
            TIERCE_ASSERT(c->offset + c->object_bytes > c->offset);
            TIERCE_ASSERT(tierce__index_key(table.index, slots[i])->ns <
                          tierce__namespaces_count(namespaces));
        }
        tierce__free(slots);
    }
    TIERCE_ASSERT(reader.end <= count && reader.good <= reader.end);
    tierce__disk_table_fini(&table);
    tierce__namespaces_destroy(namespaces);
}

/* Once as they are, and once with sums, numbers and epochs that fit, so that the checks behind
 * those are reached. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t count = size / PAGE;
    read_all(data, count);
    if (count == 0)
        return 0;
    uint8_t *copy = malloc(count * PAGE);
    if (copy == NULL)
        return 0;
    memcpy(copy, data, count * PAGE);
    for (size_t i = 0; i < count; i++) {
        uint8_t *page = copy + i * PAGE;
        uint64_t number = i, epoch = 7;
        memcpy(page, "TRCEJRNL", 8);
        memcpy(page + 24, &epoch, 8);
        memcpy(page + 32, &number, 8);
        uint64_t sum = XXH3_64bits(page + 16, PAGE - 16);
        memcpy(page + 8, &sum, 8);
    }
    read_all(copy, count);
    free(copy);
    return 0;
}
