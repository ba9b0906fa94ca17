/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of each type of storage; pages of listings. */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/storage/storage.h"

#include <errno.h>

int tierce__storage_page_add(struct tierce__storage_page *page, const char *name, uint64_t bytes,
                             int64_t changed_us)
{
    char *copy = tierce__strdup(name);
    if (copy == NULL || TIERCE__GROW(page->objects, page->room, page->count + 1, 64) < 0) {
        tierce__free(copy);
        return -ENOMEM;
    }
    page->objects[page->count++] =
        (struct tierce__storage_object){.name = copy, .bytes = bytes, .changed_us = changed_us};
    return 0;
}

void tierce__storage_page_clear(struct tierce__storage_page *page)
{
    TIERCE_ASSERT(page->count <= page->room);
    for (size_t i = 0; i < page->count; i++)
        tierce__free(page->objects[i].name);
    tierce__free(page->objects);
    *page = (struct tierce__storage_page){0};
}

const struct tierce__storage_ops *tierce__storage_ops_find(enum tierce__storage_type type)
{
    switch (type) {
    case TIERCE__STORAGE_NFS:
    case TIERCE__STORAGE_3FS:
    case TIERCE__STORAGE_VCNS_3FS:
        return &tierce__storage_file;
    case TIERCE__STORAGE_REDIS:
        return &tierce__storage_redis;
    case TIERCE__STORAGE_S3:
        return &tierce__storage_s3;
    case TIERCE__STORAGE_NODE:
        return &tierce__storage_node;
    case TIERCE__STORAGE_MOONCAKE:
        return &tierce__storage_mooncake;
    case TIERCE__STORAGE_NONE:
    case TIERCE__STORAGE_TAIRMEMPOOL:
        break;
    }
    return NULL;
}
