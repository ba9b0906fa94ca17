/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store: the engine's paged KV becomes sealed chunks. Begin gets space for the missing chunks from
 * the engine's lender (lender.h). Each layer is gathered into it (gather.h). The end publishes the
 * chunks.
 *
 * If the KV is in the memory of a device, a layer is only enqueued (device/transit.h). The end
 * waits for the copies, and has the sums computed; nothing is published before.
 */
#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "core/paged/paged.h"
#include "engine/view.h"
#include "engine/device/devices.h"
#include "engine/lender.h"
#include "engine/node_client/client.h"
#include "engine/store/gather.h"
#include "engine/store/store_watch.h"

struct tierce_store {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce__lender_space space;
    struct tierce__gather gather;
    struct tierce__transit *transit;   /* NULL: memory of the host */
    struct tierce__store_watch *watch; /* or NULL */
};

static int64_t end_store(struct tierce_store *store, bool complete)
{
    struct tierce__store_watch *watch = store->watch;
    int64_t blocks = store->engine->lender->store_end(&store->space, complete);
    TIERCE_DASSERT(blocks >= 0 && (complete || blocks == 0));
    tierce__gather_fini(&store->gather);
    store->magic = 0;
    tierce__free(store);
    if (watch != NULL)
        watch->ended(watch, complete);
    return blocks;
}

/* ---- memory of a device ---- */

static int begin_device(struct tierce_store *store, const struct tierce_view *view,
                        const struct tierce_transfer_opts *opts)
{
    struct tierce__open_device *device;
    struct tierce__transit_what what = {.paged = opts->paged,
                                        .stream = tierce__transfer_stream(opts),
                                        .row_count = store->space.count,
                                        .event_max = view->part.layer_count};
    tierce__transits_reap(&store->engine->transits);
    int rc = tierce__pinnings_get(store->space.memory, opts->paged, &device);
    return rc == 0 ? tierce__transit_create(&store->transit, device, &what) : rc;
}

/*
 * Whether copies out of a device are possible now. This comes before space is made, which evicts
 * other chunks. A part of a chunk begins all the same, and ends without its copies: the other parts
 * would wait for a part that is left out.
 */
static int check_device(const struct tierce_store *store, struct tierce_view *view,
                        const struct tierce_transfer_opts *opts)
{
    if (tierce__paged_device(opts->paged) == TIERCE_DEVICE_HOST || view->part.count > 1)
        return 0;
    return store->engine->lender->prepare(view, opts->paged);
}

/* A failure of the device is a miss: the end publishes nothing. */
static int enqueue_layer(struct tierce_store *store, uint32_t layer)
{
    int rc = tierce__gather_rows(&store->gather, store->transit->rows, layer);
    if (rc < 0)
        return rc;
    rc = tierce__transit_gather(store->transit, store->gather.count);
    return rc == TIERCE_E_UNSUPPORTED ? rc : 0;
}

/* The copies of a store that could not be waited for have ended. */
static void drop_kept(void *arg)
{
    (void)end_store(arg, false);
}

/* The device may still compute later layers: all its work was enqueued in advance. */
static void tell_layers(struct tierce_store *store, uint64_t deadline_ns)
{
    uint32_t first = store->gather.view->part.first_layer, end = first;
    while (tierce__transit_settle_next(store->transit, store->engine->copiers, deadline_ns))
        store->watch->filled(store->watch, first, ++end);
}

static int64_t end_device(struct tierce_store *store, bool complete)
{
    struct tierce_engine *engine = store->engine;
    struct tierce__transit *transit = store->transit;
    uint64_t deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms);
    if (store->watch != NULL && complete)
        tell_layers(store, deadline_ns);
    if (tierce__transit_wait(transit, deadline_ns) < 0) {
        engine->lender->store_give_up(&store->space);
        if (store->watch != NULL)
            store->watch->ended(store->watch, false);
        store->watch = NULL;
        tierce__transits_keep(&engine->transits, transit, drop_kept, store);
        return 0;
    }
    complete = complete && transit->failed == 0;
    if (complete)
        tierce__transit_settle(transit, engine->copiers);
    tierce__transit_free(transit);
    return end_store(store, complete);
}

/* ---- begin ---- */

static int begin_copies(struct tierce_store *store, const struct tierce_view *view,
                        const struct tierce_transfer_opts *opts)
{
    const struct tierce__lender_space *space = &store->space;
    int rc = tierce__gather_init(&store->gather, view, opts, space->rooms, space->count);
    if (rc == 0 && tierce__paged_device(opts->paged) != TIERCE_DEVICE_HOST)
        rc = begin_device(store, view, opts);
    if (rc < 0)
        tierce__gather_fini(&store->gather);
    TIERCE_DASSERT(rc < 0 || store->gather.count == space->count);
    return rc;
}

static int begin_store(struct tierce_store *store, struct tierce_view *view,
                       const struct tierce_transfer_opts *opts)
{
    struct tierce__lender_space *space = &store->space;
    int rc = check_device(store, view, opts);
    if (rc == 0)
        rc = store->engine->lender->store_begin(space, view, opts);
    if (rc < 0 || space->rooms == NULL)
        return rc;
    TIERCE_DASSERT(space->count > 0);
    rc = begin_copies(store, view, opts);
    if (rc == 0)
        return 0;
    (void)store->engine->lender->store_end(space, false);
    space->rooms = NULL;
    return rc;
}

static int begin_any(struct tierce_store **out, struct tierce_view *view,
                     const struct tierce_transfer_opts *opts, struct tierce__room_wait *room_wait)
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
    store->space.room_wait = room_wait;
    rc = begin_store(store, view, opts);
    if (rc < 0 || store->space.rooms == NULL) {
        tierce__free(store);
        /* A device that cannot be used now, or any more, is a miss. */
        return rc == -EAGAIN || rc == TIERCE_E_DOWN ? 0 : rc;
    }
    TIERCE_DASSERT(store->space.count > 0 && store->gather.next_layer == 0);
    *out = store;
    return 0;
}

int tierce_store_begin(struct tierce_store **out, struct tierce_view *view,
                       const struct tierce_transfer_opts *opts)
{
    return begin_any(out, view, opts, NULL);
}

int tierce_store_layer(struct tierce_store *store, uint32_t layer)
{
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    if (store->transit != NULL)
        return enqueue_layer(store, layer);
    int rc = tierce__gather_layer(&store->gather, layer);
    uint32_t first = store->gather.view->part.first_layer;
    if (rc == 0 && store->watch != NULL)
        store->watch->filled(store->watch, first, first + layer + 1);
    return rc;
}

void tierce__store_watch(struct tierce_store *store, struct tierce__store_watch *watch,
                         struct tierce__watched *out)
{
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    TIERCE_ASSERT(store->watch == NULL && store->gather.next_layer == 0);
    store->watch = watch;
    *out = (struct tierce__watched){store->gather.view, store->space.rooms, store->space.count};
}

int tierce__store_tell(struct tierce_store *store)
{
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    bool tells = store->engine->level_count == 0 && store->watch == NULL;
    return tells ? tierce__client_store_tell(&store->watch, &store->space) : 0;
}

const struct tierce_view *tierce__store_at_node(const struct tierce_store *store, uint64_t *node,
                                                uint64_t *number)
{
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    TIERCE_ASSERT(store->engine->level_count == 0);
    tierce__client_store_number(&store->space, node, number);
    return store->gather.view;
}

int64_t tierce_store_end(struct tierce_store *store)
{
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    bool complete = tierce__gather_is_complete(&store->gather);
    return store->transit != NULL ? end_device(store, complete) : end_store(store, complete);
}

void tierce_store_abort(struct tierce_store *store)
{
    if (store == NULL)
        return;
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    if (tierce__engine_inherited(store->engine))
        return;
    (void)(store->transit != NULL ? end_device(store, false) : end_store(store, false));
}

static int64_t store_any(struct tierce_view *view, const struct tierce_transfer_opts *opts,
                         struct tierce__room_wait *room_wait)
{
    struct tierce_store *store;
    int rc = begin_any(&store, view, opts, room_wait);
    if (rc < 0 || store == NULL)
        return rc;
    for (uint32_t layer = 0; layer < view->part.layer_count && rc == 0; layer++)
        rc = tierce_store_layer(store, layer);
    if (rc == 0)
        return tierce_store_end(store);
    TIERCE_ASSERT(rc == TIERCE_E_UNSUPPORTED); /* the stream is being captured */
    tierce_store_abort(store);
    return rc;
}

int64_t tierce_store(struct tierce_view *view, const struct tierce_transfer_opts *opts)
{
    return store_any(view, opts, NULL);
}

int64_t tierce__store_waiting(struct tierce_view *view, const struct tierce_transfer_opts *opts,
                              struct tierce__room_wait *room_wait)
{
    room_wait->is_full = false;
    return store_any(view, opts, room_wait);
}

int64_t tierce__store_within(struct tierce_view *view, const struct tierce_transfer_opts *opts,
                             uint32_t wait_ms, bool *is_full)
{
    struct tierce__room_wait room_wait = {.deadline_ns = tierce__deadline_in_ms(wait_ms)};
    int64_t blocks = tierce__store_waiting(view, opts, &room_wait);
    *is_full = room_wait.is_full;
    return blocks;
}
