/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"
#include "store/disk/disk.h"
#include "store/disk/disk_table.h"

#include <errno.h>

static void fill_entry(struct tierce__disk_entry *out, const struct tierce__disk_table *table,
                       uint32_t slot)
{
    const struct tierce__disk_chunk *c = &table->chunks[slot];
    TIERCE_DASSERT(slot < table->slot_count && c->object_bytes > 0);
    TIERCE_DASSERT(tierce__index_has(table->index, slot) && c->state == TIERCE__DISK_DURABLE);
    static const uint8_t none[TIERCE_HASH_BYTES];
    *out = (struct tierce__disk_entry){.key = *tierce__index_key(table->index, slot),
                                       .offset = c->offset,
                                       .object_bytes = c->object_bytes,
                                       .raw_bytes = c->raw_bytes,
                                       .token_start = c->token_start,
                                       .block_count = c->block_count,
                                       .stored_s = c->stored_s};
    memcpy(out->first_block, c->first_block, sizeof(out->first_block));
    if (memcmp(c->parent, none, sizeof(none)) != 0) {
        out->parent = out->key;
        memcpy(out->parent.hash, c->parent, sizeof(c->parent));
    }
}

static int visit_all(const struct tierce__disk_table *table, tierce__disk_visit_fn *visit,
                     void *arg)
{
    struct tierce__disk_entry entry;
    uint32_t count = tierce__index_count(table->index);
    TIERCE_DASSERT(count <= table->slot_count);
    uint32_t *slots = tierce__disk_table_sorted(table, TIERCE__DISK_BY_SEQ);
    if (slots == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        fill_entry(&entry, table, slots[i]);
        if (!visit(arg, &entry))
            break;
    }
    tierce__free(slots);
    return 0;
}

static int load_texts(struct tierce__vfs *vfs, const char *path,
                      const struct tierce__disk_table *table)
{
    int64_t rc = 0;
    for (uint32_t i = 0; i < TIERCE__DISK_NS_MAX && rc >= 0; i++)
        if (table->ns_of[i] != 0)
            rc = tierce__disk_load_text(vfs, path, table->namespaces, table->ns_of[i] - 1);
    return rc < 0 ? (int)rc : 0;
}

int tierce__disk_scan(const char *path, struct tierce__namespaces *namespaces,
                      tierce__disk_visit_fn *visit, void *arg)
{
    struct tierce__vfs *vfs = NULL;
    struct tierce__vfs_file *file = NULL;
    struct tierce__disk_table table = {0};
    struct tierce__journal_reader reader = {0};
    char *journal = tierce__join_path(path, "journal");
    int rc = journal != NULL ? tierce__vfs_threads_create(&vfs, 1) : -ENOMEM;
    if (rc == 0)
        rc = vfs->ops->open(vfs, &file, journal, TIERCE__VFS_READONLY);
    int64_t length = rc == 0 ? vfs->ops->length(vfs, file) : 0;
    if (length < 0)
        rc = (int)length;
    uint64_t capacity = 0;
    if (rc == 0)
        rc = tierce__journal_probe(vfs, file, (uint64_t)length, TIERCE__JOURNAL_SCAN_SLOTS,
                                   &capacity);
    /* At every moment the journal holds no more chunks than it has records. */
    uint64_t most = (uint64_t)length / TIERCE__JOURNAL_PUT_BYTES + 1;
    if (rc == 0 && most > (1u << 30))
        rc = TIERCE_E_LIMIT;
    if (rc == 0)
        rc = tierce__disk_table_init(&table, (uint32_t)most, namespaces);
    if (rc == 0)
        rc = tierce__journal_read_file(&reader, vfs, file, tierce__disk_table_apply, &table);
    if (rc == 0)
        rc = table.status;
    if (rc == 0)
        rc = load_texts(vfs, path, &table);
    if (rc == 0)
        rc = visit_all(&table, visit, arg);
    tierce__disk_table_fini(&table);
    if (file != NULL)
        vfs->ops->close(vfs, file);
    if (vfs != NULL)
        vfs->ops->destroy(vfs);
    tierce__free(journal);
    return rc;
}
