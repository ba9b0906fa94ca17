/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key/namespaces.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/threads/lock.h"
#include "base/map.h"

#include <errno.h>
#include <string.h>

#define TABLE_MAGIC    0x544e5354u
#define NAMESPACES_MAX 65536u
#define ENTRIES_FIRST  32u

/* Lives at its address until the table ends, so that its bytes can be lent without a lock. */
struct namespace_entry {
    uint8_t digest[TIERCE_HASH_BYTES];
    char *text; /* set once */
};

struct tierce__namespaces {
    uint32_t magic;
    struct tierce__lock lock;         /* guards all below */
    struct namespace_entry **entries; /* by id; entry_count of entry_room are in use */
    uint32_t entry_count;
    uint32_t entry_room;
    struct tierce__numbers ids; /* by digest */
};

int tierce__namespaces_create(struct tierce__namespaces **out)
{
    struct tierce__namespaces *table = tierce__calloc(1, sizeof(*table));
    if (table == NULL)
        return -ENOMEM;
    table->magic = TABLE_MAGIC;
    tierce__lock_init(&table->lock, TIERCE__LOCK_NAMESPACES);
    *out = table;
    return 0;
}

void tierce__namespaces_destroy(struct tierce__namespaces *table)
{
    if (table == NULL)
        return;
    TIERCE_CHECK_MAGIC(table, TABLE_MAGIC);
    TIERCE_DASSERT(table->entry_count <= table->entry_room &&
                   table->ids.count == table->entry_count);
    for (uint32_t i = 0; i < table->entry_count; i++) {
        tierce__free(table->entries[i]->text);
        tierce__free(table->entries[i]);
    }
    tierce__free(table->entries);
    tierce__numbers_fini(&table->ids);
    tierce__lock_fini(&table->lock);
    table->magic = 0;
    tierce__free(table);
}

/* The id of a digest, or TIERCE__NUMBER_NONE. */
static uint32_t find_id(const struct tierce__namespaces *table, const uint8_t *digest)
{
    tierce__lock_assert_held(&table->lock);
    TIERCE__NUMBERS_FOR_EACH (it, &table->ids, tierce__load_le32(digest)) {
        TIERCE_DASSERT(it.number < table->entry_count);
        if (memcmp(table->entries[it.number]->digest, digest, TIERCE_HASH_BYTES) == 0)
            return it.number;
    }
    return TIERCE__NUMBER_NONE;
}

static int grow_entries(struct tierce__namespaces *table)
{
    tierce__lock_assert_held(&table->lock);
    return TIERCE__GROW(table->entries, table->entry_room, (size_t)table->entry_count + 1,
                        ENTRIES_FIRST);
}

static int64_t add_entry(struct tierce__namespaces *table, const uint8_t *digest)
{
    tierce__lock_assert_held(&table->lock);
    TIERCE_DASSERT(find_id(table, digest) == TIERCE__NUMBER_NONE);
    if (table->entry_count == NAMESPACES_MAX)
        return TIERCE_E_LIMIT;
    if (tierce__numbers_reserve(&table->ids, table->entry_count + 1) < 0 || grow_entries(table) < 0)
        return -ENOMEM;
    struct namespace_entry *entry = tierce__calloc(1, sizeof(*entry));
    if (entry == NULL)
        return -ENOMEM;
    memcpy(entry->digest, digest, TIERCE_HASH_BYTES);
    uint32_t id = table->entry_count++;
    TIERCE_DASSERT(id < table->entry_room);
    table->entries[id] = entry;
    tierce__numbers_put(&table->ids, tierce__load_le32(digest), id);
    return id;
}

static int64_t intern_locked(struct tierce__namespaces *table, const uint8_t *digest, char **copy)
{
    TIERCE_DASSERT(table->ids.count == table->entry_count);
    tierce__lock_assert_held(&table->lock);
    uint32_t found = find_id(table, digest);
    int64_t id = found != TIERCE__NUMBER_NONE ? found : add_entry(table, digest);
    if (id >= 0 && table->entries[id]->text == NULL) {
        table->entries[id]->text = *copy;
        *copy = NULL;
    }
    TIERCE_DASSERT(id < 0 || memcmp(table->entries[id]->digest, digest, TIERCE_HASH_BYTES) == 0);
    return id;
}

int64_t tierce__namespaces_intern(struct tierce__namespaces *table,
                                  const uint8_t digest[TIERCE_HASH_BYTES], const char *text)
{
    TIERCE_CHECK_MAGIC(table, TABLE_MAGIC);
    char *copy = NULL;
    if (text != NULL) {
        uint8_t own[TIERCE_HASH_BYTES];
        tierce_namespace_digest(own, text);
        if (memcmp(own, digest, sizeof(own)) != 0)
            return TIERCE_E_IDENTITY;
        copy = tierce__strdup(text);
        if (copy == NULL)
            return -ENOMEM;
    }
    tierce__lock_take(&table->lock);
    int64_t id = intern_locked(table, digest, &copy);
    tierce__lock_drop(&table->lock);
    tierce__free(copy);
    return id;
}

int64_t tierce__namespaces_find(struct tierce__namespaces *table,
                                const uint8_t digest[TIERCE_HASH_BYTES])
{
    TIERCE_CHECK_MAGIC(table, TABLE_MAGIC);
    tierce__lock_take(&table->lock);
    uint32_t id = find_id(table, digest);
    tierce__lock_drop(&table->lock);
    return id != TIERCE__NUMBER_NONE ? (int64_t)id : TIERCE_E_MISS;
}

uint32_t tierce__namespaces_count(struct tierce__namespaces *table)
{
    TIERCE_CHECK_MAGIC(table, TABLE_MAGIC);
    tierce__lock_take(&table->lock);
    uint32_t count = table->entry_count;
    tierce__lock_drop(&table->lock);
    return count;
}

static const struct namespace_entry *entry_at_locked(const struct tierce__namespaces *table,
                                                     uint32_t id)
{
    tierce__lock_assert_held(&table->lock);
    TIERCE_ASSERT(id < table->entry_count);
    return table->entries[id];
}

const uint8_t *tierce__namespaces_digest(struct tierce__namespaces *table, uint32_t id)
{
    TIERCE_CHECK_MAGIC(table, TABLE_MAGIC);
    tierce__lock_take(&table->lock);
    const uint8_t *digest = entry_at_locked(table, id)->digest;
    tierce__lock_drop(&table->lock);
    return digest;
}

const char *tierce__namespaces_text(struct tierce__namespaces *table, uint32_t id)
{
    TIERCE_CHECK_MAGIC(table, TABLE_MAGIC);
    tierce__lock_take(&table->lock);
    const char *text = entry_at_locked(table, id)->text;
    tierce__lock_drop(&table->lock);
    return text;
}
