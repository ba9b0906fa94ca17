/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_REGISTRY_STORE_H
#define TIERCE_MANAGER_REGISTRY_STORE_H

#include "manager/registry/catalog.h"

/*
 * The storage of a registry: the seam below registry.h. Threads: one at a time. All calls may
 * block.
 */

/* The hash of a registry in Redis in which Tierce keeps what KVCM does not know, without the name
 * of the cluster; and its field with the largest token of a manager that led. */
#define TIERCE__REGISTRY_REDIS_OWN   "kvcache_registry_tierce:"
#define TIERCE__REGISTRY_REDIS_FENCE "fence"

struct tierce__vfs;
struct tierce__registry_store;

struct tierce__registry_store_ops {
    const char *name; /* "local", "redis" */
    /* `vfs` [borrow until close]: for files; NULL: its own. Errors: TIERCE_E_CONFIG, negative
     * errno, -ENOMEM; `why` in words. */
    TIERCE_MUSTUSE int (*open)(struct tierce__registry_store **out, const char *uri,
                               struct tierce__vfs *vfs, char why[256]);
    void (*close)(struct tierce__registry_store *store);
    /* Reads the whole registry into an empty catalog; a missing registry is empty. From then on the
     * store rejects writes with an older token than `fence` (0: no token, and no write is
     * rejected). Errors: TIERCE_E_FORMAT, TIERCE_E_VERSION, TIERCE_E_REFUSED, TIERCE_E_LOCKED
     * (another process holds the lock for too long), negative errno, -ENOMEM. */
    TIERCE_MUSTUSE int (*load)(struct tierce__registry_store *store, uint64_t fence,
                               struct tierce__catalog *out, char why[256]);
    /* Replaces the stored `before` by `after`, durably; on an error the stored state is unchanged.
     * Errors as load. */
    TIERCE_MUSTUSE int (*save)(struct tierce__registry_store *store, uint64_t fence,
                               const struct tierce__catalog *before,
                               const struct tierce__catalog *after, char why[256]);
};

/* First member of every implementation. */
struct tierce__registry_store {
    const struct tierce__registry_store_ops *ops;
};

extern const struct tierce__registry_store_ops tierce__registry_local;
extern const struct tierce__registry_store_ops tierce__registry_redis;

#endif
