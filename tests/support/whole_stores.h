/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_WHOLE_STORES_H
#define TIERCE_TESTS_WHOLE_STORES_H

#include "node_harness.h"
#include "running_manager.h"

#include <sys/stat.h>

/* Stores that give objects only whole: a node by lm:// (0), and the pool of a manager (1). */

struct whole_store {
    int which;
    struct node_harness node;
    struct running_manager manager;
    char url[128];
};

static inline void whole_store_start(struct whole_store *store, int which)
{
    static char *node_args[] = {(char *)(uintptr_t) "--memory.size=64MiB"};
    char folder[96];
    store->which = which;
    if (which == 0) {
        harness_start(&store->node, 1, node_args);
        snprintf(store->url, sizeof(store->url), "lm://127.0.0.1:%u",
                 (unsigned)store->node.ports.lm);
    } else {
        running_manager_start(&store->manager, NULL);
        snprintf(folder, sizeof(folder), "%s/nfs_01", store->manager.folder);
        ck_assert_int_eq(mkdir(folder, 0700), 0);
        snprintf(store->url, sizeof(store->url), "fleet://127.0.0.1:%u/default",
                 (unsigned)store->manager.ports.meta_grpc);
    }
}

static inline void whole_store_stop(struct whole_store *store)
{
    if (store->which == 0)
        harness_stop(&store->node);
    else
        running_manager_stop(&store->manager);
}

#endif
