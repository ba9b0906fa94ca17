/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store: the engine's paged KV becomes sealed chunks. Begin finds the missing chunks and reserves
 * room for them (reserve.h; joint.h for chunks of several parts). Each layer is gathered into them
 * (gather.h). The end publishes them.
 */
#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "engine/node_client/client_transfer.h"
#include "engine/engine_private.h"
#include "engine/store/gather.h"
#include "engine/store/joint.h"

struct tierce_store {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce__share share;
    struct tierce__client_store *remote; /* instead of a share: of a client of a node */
    struct tierce__gather gather;
};

static int64_t end_store(struct tierce_store *store, bool complete)
{
    int64_t blocks = store->remote != NULL ? tierce__client_store_end(store->remote, complete)
                                           : tierce__share_end(&store->share, complete);
    tierce__gather_fini(&store->gather);
    store->magic = 0;
    tierce__free(store);
    return blocks;
}

static int begin_store(struct tierce_store *store, struct tierce_view *view,
                       const struct tierce_transfer_opts *opts)
{
    struct tierce__reserve_what what = {.chain = opts->chain,
                                        .to_block = opts->to_block,
                                        .session = opts->session,
                                        .tail = opts->tail,
                                        .tiers = opts->tiers,
                                        .tag = opts->tag};
    int rc = tierce__share_begin(&store->share, view, &view->part, opts->write, &what);
    if (rc < 0 || store->share.reservation == NULL)
        return rc;
    size_t count;
    const struct tierce__room *rooms = tierce__reserve_rooms(store->share.reservation, &count);
    rc = tierce__gather_init(&store->gather, view, opts, rooms, count);
    if (rc < 0)
        (void)tierce__share_end(&store->share, false);
    return rc;
}

static int begin_remote(struct tierce_store *store, struct tierce_view *view,
                        const struct tierce_transfer_opts *opts)
{
    int rc = tierce__client_store_begin(&store->remote, view, opts);
    if (rc < 0 || store->remote == NULL)
        return rc;
    size_t count;
    const struct tierce__room *rooms = tierce__client_store_rooms(store->remote, &count);
    rc = tierce__gather_init(&store->gather, view, opts, rooms, count);
    if (rc < 0) {
        (void)tierce__client_store_end(store->remote, false);
        store->remote = NULL;
    }
    return rc == TIERCE_E_ARGUMENT ? 0 : rc; /* the node's rooms are none: nothing is stored */
}

int tierce_store_begin(struct tierce_store **out, struct tierce_view *view,
                       const struct tierce_transfer_opts *opts)
{
    *out = NULL;
    int rc = tierce__transfer_check(view, opts);
    if (rc < 0)
        return rc;
    if (opts->from_block != 0)
        return TIERCE_E_ARGUMENT;
    struct tierce_store *store = tierce__calloc(1, sizeof(*store));
    if (store == NULL)
        return -ENOMEM;
    store->magic = TIERCE__STORE_MAGIC;
    store->engine = view->engine;
    rc = view->engine->client != NULL ? begin_remote(store, view, opts)
                                      : begin_store(store, view, opts);
    if (rc < 0 || (store->share.reservation == NULL && store->remote == NULL)) {
        tierce__free(store);
        return rc;
    }
    *out = store;
    return 0;
}

int tierce_store_layer(struct tierce_store *store, uint32_t layer)
{
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    return tierce__gather_layer(&store->gather, layer);
}

int64_t tierce_store_end(struct tierce_store *store)
{
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    return end_store(store, tierce__gather_is_complete(&store->gather));
}

void tierce_store_abort(struct tierce_store *store)
{
    if (store == NULL)
        return;
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    if (!tierce__engine_inherited(store->engine))
        (void)end_store(store, false);
}

int64_t tierce_store(struct tierce_view *view, const struct tierce_transfer_opts *opts)
{
    struct tierce_store *store;
    int rc = tierce_store_begin(&store, view, opts);
    if (rc < 0 || store == NULL)
        return rc;
    for (uint32_t layer = 0; layer < view->part.layer_count && rc == 0; layer++)
        rc = tierce_store_layer(store, layer);
    TIERCE_ASSERT(rc == 0);
    return tierce_store_end(store);
}
