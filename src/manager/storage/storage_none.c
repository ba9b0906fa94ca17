/* SPDX-License-Identifier: Apache-2.0 */
/* Unmanaged storages, which only their clients reach. They count as well. */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/storage/storage.h"

#include <errno.h>

static int none_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                     char why[128])
{
    (void)storage;
    why[0] = '\0';
    *out = tierce__alloc(sizeof(**out));
    if (*out == NULL)
        return -ENOMEM;
    (*out)->ops = &tierce__storage_none;
    return 0;
}

static void none_close(struct tierce__storage_driver *driver)
{
    TIERCE_DASSERT(driver->ops == &tierce__storage_none);
    tierce__free(driver);
}

static int none_probe(struct tierce__storage_driver *driver, char why[128])
{
    (void)driver;
    why[0] = '\0';
    return TIERCE_E_UNSUPPORTED;
}

static int none_remove(struct tierce__storage_driver *driver, const char *path)
{
    (void)driver;
    (void)path;
    return TIERCE_E_UNSUPPORTED;
}

static double none_used_share(struct tierce__storage_driver *driver)
{
    (void)driver;
    return -1;
}

const struct tierce__storage_ops tierce__storage_none = {
    .name = "none",
    .is_reached = false,
    .open = none_open,
    .close = none_close,
    .probe = none_probe,
    .remove = none_remove,
    .used_share = none_used_share,
};

const struct tierce__storage_ops *tierce__storage_ops_find(enum tierce__storage_type type)
{
    switch (type) {
    case TIERCE__STORAGE_NFS:
    case TIERCE__STORAGE_3FS:
    case TIERCE__STORAGE_VCNS_3FS:
        return &tierce__storage_file;
    case TIERCE__STORAGE_REDIS:
        return &tierce__storage_redis;
    case TIERCE__STORAGE_NONE:
    case TIERCE__STORAGE_MOONCAKE:
    case TIERCE__STORAGE_TAIRMEMPOOL:
    case TIERCE__STORAGE_NODE:
    case TIERCE__STORAGE_S3:
        break;
    }
    return &tierce__storage_none;
}
