/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store: the engine's paged KV becomes sealed chunks. Begin gets space for the missing chunks from
 * the engine's lender (lender.h). Each layer is gathered into it (gather.h). The end publishes the
 * chunks.
 */
#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "engine/view.h"
#include "engine/lender.h"
#include "engine/store/gather.h"

struct tierce_store {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce__lender_space space;
    struct tierce__gather gather;
};

static int64_t end_store(struct tierce_store *store, bool complete)
{
    int64_t blocks = store->engine->lender->store_end(&store->space, complete);
    TIERCE_DASSERT(blocks >= 0 && (complete || blocks == 0));
    tierce__gather_fini(&store->gather);
    store->magic = 0;
    tierce__free(store);
    return blocks;
}

static int begin_store(struct tierce_store *store, struct tierce_view *view,
                       const struct tierce_transfer_opts *opts)
{
    struct tierce__lender_space *space = &store->space;
    int rc = store->engine->lender->store_begin(space, view, opts);
    if (rc < 0 || space->rooms == NULL)
        return rc;
    TIERCE_DASSERT(space->count > 0);
    rc = tierce__gather_init(&store->gather, view, opts, space->rooms, space->count);
    if (rc < 0)
        (void)store->engine->lender->store_end(space, false);
    TIERCE_DASSERT(rc < 0 || store->gather.count == space->count);
    return rc;
}

int tierce_store_begin(struct tierce_store **out, struct tierce_view *view,
                       const struct tierce_transfer_opts *opts)
{
    *out = NULL;
    int rc = tierce__transfer_check(view, opts);
    if (rc < 0)
        return rc;
    if (opts->from_block != 0 && !tierce__view_is_sparse(view))
        return TIERCE_E_ARGUMENT;
    struct tierce_store *store = tierce__calloc(1, sizeof(*store));
    if (store == NULL)
        return -ENOMEM;
    store->magic = TIERCE__STORE_MAGIC;
    store->engine = view->engine;
    rc = begin_store(store, view, opts);
    if (rc < 0 || store->space.rooms == NULL) {
        tierce__free(store);
        return rc;
    }
    TIERCE_DASSERT(store->space.count > 0 && store->gather.next_layer == 0);
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
