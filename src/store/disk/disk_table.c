/* SPDX-License-Identifier: Apache-2.0 */
#include "store/disk/disk_table.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"
#include "core/chunk/header.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int tierce__disk_table_init(struct tierce__disk_table *table, uint32_t slot_count,
                            struct tierce__namespaces *namespaces)
{
    *table = (struct tierce__disk_table){.slot_count = slot_count, .namespaces = namespaces};
    int rc = tierce__index_create(&table->index, slot_count);
    if (rc < 0)
        return rc;
    table->chunks = tierce__calloc(slot_count, sizeof(*table->chunks));
    table->ns_of = tierce__calloc(TIERCE__DISK_NS_MAX, sizeof(*table->ns_of));
    if (table->chunks != NULL && table->ns_of != NULL)
        return 0;
    tierce__disk_table_fini(table);
    return -ENOMEM;
}

void tierce__disk_table_fini(struct tierce__disk_table *table)
{
    tierce__index_destroy(table->index);
    tierce__free(table->chunks);
    tierce__free(table->ns_of);
    *table = (struct tierce__disk_table){0};
}

static bool is_sane(const struct tierce__journal_record *r)
{
    uint64_t end;
    return r->object_bytes > 0 && r->object_bytes <= TIERCE__CHUNK_BYTES_MAX &&
           r->object_bytes % TIERCE__CHUNK_ALIGN == 0 && r->offset % TIERCE__CHUNK_ALIGN == 0 &&
           tierce__add_ok(&end, r->offset, r->object_bytes) && end <= INT64_MAX &&
           r->raw_bytes !=
               r->object_bytes && /* an encrypted chunk may be longer than the raw one */
           r->raw_bytes <= TIERCE__CHUNK_BYTES_MAX &&
           r->seq < TIERCE__JOURNAL_SEQ_MAX;
}

/* The key inside this process; false if the file does not define its namespace. */
static bool translate(const struct tierce__disk_table *t, struct tierce__key *key,
                      const struct tierce__journal_record *record)
{
    if (record->key.ns >= TIERCE__DISK_NS_MAX || t->ns_of[record->key.ns] == 0)
        return false;
    *key = record->key;
    key->ns = t->ns_of[record->key.ns] - 1;
    TIERCE_DASSERT(key->ns < TIERCE__DISK_NS_MAX);
    return true;
}

static void apply_put(struct tierce__disk_table *t, const struct tierce__journal_record *record)
{
    struct tierce__key key;
    if (!is_sane(record) || !translate(t, &key, record)) {
        t->dropped++;
        return;
    }
    if (record->seq > t->seq_max)
        t->seq_max = record->seq;
    uint32_t slot = tierce__index_find(t->index, &key);
    TIERCE_DASSERT(record->seq <= t->seq_max);
    TIERCE_DASSERT(slot == TIERCE__INDEX_NONE || t->chunks[slot].state == TIERCE__DISK_DURABLE);
    /* Two puts of a key without a removal between: a recode, or a page was lost. The later one is
     * right. */
    if (slot != TIERCE__INDEX_NONE && t->chunks[slot].seq > record->seq)
        return;
    if (slot == TIERCE__INDEX_NONE)
        slot = tierce__index_insert(t->index, &key);
    if (slot == TIERCE__INDEX_NONE) {
        t->dropped++;
        return;
    }
    struct tierce__disk_chunk *c = &t->chunks[slot];
    TIERCE_DASSERT(slot < t->slot_count);
    TIERCE_DASSERT(slot < t->slot_count && key.ns < TIERCE__DISK_NS_MAX);
    *c = (struct tierce__disk_chunk){.seq = record->seq,
                                     .offset = record->offset,
                                     .object_bytes = record->object_bytes,
                                     .raw_bytes = record->raw_bytes,
                                     .token_start = record->token_start,
                                     .stored_s = record->stored_s,
                                     .head_sum = record->head_sum,
                                     .block_count = record->block_count,
                                     .state = TIERCE__DISK_DURABLE};
    memcpy(c->parent, record->parent, sizeof(c->parent));
    memcpy(c->first_block, record->first_block, sizeof(c->first_block));
}

static void apply_del(struct tierce__disk_table *t, const struct tierce__journal_record *record)
{
    struct tierce__key key;
    if (!translate(t, &key, record))
        return;
    uint32_t slot = tierce__index_find(t->index, &key);
    TIERCE_DASSERT(slot == TIERCE__INDEX_NONE || t->chunks[slot].state == TIERCE__DISK_DURABLE);
    if (slot != TIERCE__INDEX_NONE && t->chunks[slot].seq == record->seq)
        tierce__disk_table_erase(t, slot);
}

static void apply_ns(struct tierce__disk_table *t, const struct tierce__journal_record *record)
{
    if (record->key.ns >= TIERCE__DISK_NS_MAX) {
        t->dropped++;
        return;
    }
    uint32_t known = t->ns_of[record->key.ns];
    if (known != 0 && memcmp(tierce__namespaces_digest(t->namespaces, known - 1), record->digest,
                             TIERCE_HASH_BYTES) == 0)
        return; /* as each page says again */
    int64_t id = tierce__namespaces_intern(t->namespaces, record->digest, NULL);
    TIERCE_DASSERT(id < (int64_t)TIERCE__DISK_NS_MAX);
    if (id >= 0)
        t->ns_of[record->key.ns] = (uint32_t)id + 1;
    else if (id == -ENOMEM)
        t->status = -ENOMEM;
    else
        t->dropped++;
}

void tierce__disk_table_apply(void *arg, const struct tierce__journal_record *record)
{
    struct tierce__disk_table *t = arg;
    switch (record->kind) {
    case TIERCE__JOURNAL_PUT:
        apply_put(t, record);
        break;
    case TIERCE__JOURNAL_DEL:
        apply_del(t, record);
        break;
    case TIERCE__JOURNAL_NS:
        apply_ns(t, record);
        break;
    case TIERCE__JOURNAL_DAY:
        t->day = record->day;
        t->day_bytes = record->bytes;
        break;
    }
}

void tierce__disk_table_erase(struct tierce__disk_table *table, uint32_t slot)
{
    TIERCE_DASSERT(!table->chunks[slot].doomed);
    TIERCE_DASSERT(slot < table->slot_count && tierce__index_has(table->index, slot));
    TIERCE_DASSERT(table->chunks[slot].state != TIERCE__DISK_NONE &&
                   table->chunks[slot].reads == 0);
    tierce__index_erase(table->index, slot);
    table->chunks[slot].state = TIERCE__DISK_NONE;
}

struct place {
    uint64_t stored_s, token_start; /* BY_SEQ: 0 */
    uint64_t seq;
    uint32_t slot;
};

static struct place place_of(const struct tierce__disk_chunk *c, enum tierce__disk_order order)
{
    bool by_age = order == TIERCE__DISK_BY_AGE;
    return (struct place){.stored_s = by_age ? c->stored_s : 0,
                          .token_start = by_age ? c->token_start : 0,
                          .seq = c->seq};
}

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->stored_s != y->stored_s)
        return x->stored_s < y->stored_s ? -1 : 1;
    if (x->token_start != y->token_start)
        return x->token_start < y->token_start ? -1 : 1;
    return x->seq < y->seq ? -1 : x->seq > y->seq;
}

bool tierce__disk_is_older(const struct tierce__disk_chunk *a, const struct tierce__disk_chunk *b)
{
    struct place x = place_of(a, TIERCE__DISK_BY_AGE), y = place_of(b, TIERCE__DISK_BY_AGE);
    return compare_places(&x, &y) < 0;
}

uint32_t *tierce__disk_table_sorted(const struct tierce__disk_table *table,
                                    enum tierce__disk_order order)
{
    uint32_t count = tierce__index_count(table->index), n = 0;
    struct place *places = tierce__calloc(count, sizeof(*places));
    uint32_t *slots = tierce__calloc(count, sizeof(*slots));
    if (places == NULL || slots == NULL) {
        tierce__free(places);
        tierce__free(slots);
        return NULL;
    }
    bool sorted = true; /* as a journal that was never compacted is */
    for (uint32_t slot = 0; slot < table->slot_count && n < count; slot++) {
        if (!tierce__index_has(table->index, slot))
            continue;
        places[n] = place_of(&table->chunks[slot], order);
        places[n].slot = slot;
        sorted = sorted && (n == 0 || compare_places(&places[n - 1], &places[n]) <= 0);
        n++;
    }
    TIERCE_ASSERT(n == count);
    if (!sorted)
        qsort(places, count, sizeof(*places), compare_places);
    TIERCE_DASSERT(count < 2 || compare_places(&places[0], &places[count - 1]) <= 0);
    for (uint32_t i = 0; i < count; i++)
        slots[i] = places[i].slot;
    tierce__free(places);
    return slots;
}

int64_t tierce__disk_load_text(struct tierce__vfs *vfs, const char *folder,
                               struct tierce__namespaces *namespaces, uint32_t id)
{
    TIERCE_DASSERT(id < TIERCE__DISK_NS_MAX);
    char name[3 + 2 * TIERCE_HASH_BYTES + 1] = "ns/";
    const uint8_t *digest = tierce__namespaces_digest(namespaces, id);
    tierce__hex_encode(name + 3, digest, TIERCE_HASH_BYTES);
    struct tierce__vfs_file *file = NULL;
    char *path = tierce__join_path(folder, name), *text = NULL;
    int64_t rc = path != NULL ? 0 : -ENOMEM;
    if (rc == 0 && vfs->ops->open(vfs, &file, path, TIERCE__VFS_READONLY) == 0) {
        int64_t length = vfs->ops->length(vfs, file);
        if (length > 0 && length <= TIERCE__DISK_TEXT_MAX) {
            text = tierce__alloc((size_t)length + 1);
            rc = text != NULL ? length : -ENOMEM;
        }
        if (rc > 0 && vfs->ops->read(vfs, file, text, (size_t)length, 0) < 0)
            rc = 0;
        vfs->ops->close(vfs, file);
    }
    if (rc > 0) {
        TIERCE_DASSERT(rc <= TIERCE__DISK_TEXT_MAX);
        text[rc] = '\0';
        int64_t found = strlen(text) == (size_t)rc
                            ? tierce__namespaces_intern(namespaces, digest, text)
                            : TIERCE_E_IDENTITY;
        if (found < 0)
            rc = found == -ENOMEM ? -ENOMEM : 0;
    }
    tierce__free(text);
    tierce__free(path);
    return rc;
}
