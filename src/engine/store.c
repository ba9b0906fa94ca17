/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store: the engine's paged KV becomes sealed chunks. Read tierce_store_begin, _layer and _end:
 * find what is missing, reserve a buffer for each, gather layer by layer with the sums riding on
 * the copy, seal, publish in memory, hand the same buffer to every slower tier.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/engine_private.h"
#include "engine/operate.h"
#include "engine/why.h"
#include "paged/paged.h"

/* One chunk on its way. */
struct store_chunk {
    struct tierce__storage_chunk record;
    struct tierce__buf *buf;
    size_t first_block; /* in the sequence */
    bool tail;
};

struct tierce_store {
    uint32_t magic;
    struct tierce_view *view;
    const struct tierce_paged *paged; /* the caller's until end */
    uint64_t session;
    uint64_t era; /* operate.h */
    uint32_t next_layer;
    size_t count;
    struct store_chunk *chunks;
    int32_t *block_ids;              /* [to_block] */
    struct tierce__shape tail_shape; /* empty unless the last chunk is a tail */
    struct tierce__keys keys;        /* of the whole prefix, touched at the end */
    struct tierce__access_line line; /* for the access log */
};

static const struct tierce__shape *shape_of(const struct tierce_store *store,
                                            const struct store_chunk *chunk)
{
    return chunk->tail ? &store->tail_shape : &store->view->full;
}

/*
 * With memory alone, a chunk must not push out its own prefix, for then neither could be found; nor
 * what is held behind a hole that is being filled. The leases end when room has been made. With a
 * slower tier below, the prefix stays reachable there.
 */
static void lease_held(const struct tierce_store *store, struct tierce__buf **leases)
{
    if (store->view->engine->rung_count > 1)
        return;
    for (size_t i = 0; i < store->keys.count; i++)
        leases[i] = tierce__storage_lease(store->view->engine, &store->keys.keys[i]);
}

/* Gives chunk `index` a buffer with its header; false when no memory can be had. */
static bool reserve(struct tierce_store *store, const struct tierce_chain *chain, size_t index)
{
    struct store_chunk *chunk = &store->chunks[store->count];
    chunk->tail = index >= store->keys.full_count;
    chunk->first_block = index * store->view->chunk_blocks;
    const struct tierce__shape *shape = shape_of(store, chunk);
    const uint8_t *hashes = tierce_chain_hash(chain, 0);
    tierce__view_describe(&chunk->record, store->view, &store->keys, shape, index, hashes);
    const struct store_chunk *last = store->count > 0 ? chunk - 1 : NULL;
    bool follows =
        last != NULL && last->first_block + store->view->chunk_blocks == chunk->first_block;
    chunk->buf =
        tierce__storage_reserve(store->view->engine, &chunk->record, follows ? last->buf : NULL);
    if (chunk->buf == NULL)
        return false;
    struct tierce__chunk_info info;
    tierce__view_chunk_info(&info, store->view, shape, index, hashes,
                            tierce_chain_root_hash(chain));
    info.created_s = tierce__wall_s();
    tierce__chunk_begin(chunk->buf->data, &info, hashes + chunk->first_block * TIERCE_HASH_BYTES);
    store->count++;
    return true;
}

/* Counts and notes the chunks from `index` on as not stored. */
static void skip(struct tierce_store *store, size_t index, int status)
{
    struct tierce_engine *engine = store->view->engine;
    tierce__count(engine, TIERCE__STAT_stores_skipped, (int64_t)(store->keys.count - index));
    for (size_t i = index; i < store->keys.count; i++)
        tierce__why_refused(engine, 0, &store->keys.keys[i], status);
}

/* Reserves every chunk from `held` on that no tier has. */
static void reserve_missing(struct tierce_store *store, const struct tierce_chain *chain,
                            size_t held)
{
    struct tierce_engine *engine = store->view->engine;
    for (size_t i = held; i < store->keys.count; i++) {
        if (i > held && tierce__storage_has(engine, &store->keys.keys[i]))
            continue; /* an island: its prefix was evicted and is stored anew */
        if (!reserve(store, chain, i)) {
            /* What follows would be a suffix without its prefix. */
            skip(store, i, TIERCE_E_FULL);
            return;
        }
    }
}

/* What is held is used by whom it is offered; before room is made, so that it stays. */
static void use_held(const struct tierce_store *store)
{
    struct tierce_engine *engine = store->view->engine;
    const struct tierce__keys *keys = &store->keys;
    size_t used = tierce__session_use(store->view, store->session, keys, keys->count);
    tierce__storage_touch(engine, engine->rung_count, keys->keys, keys->count, used);
}

static int prepare(struct tierce_store *store, const struct tierce_transfer_opts *opts)
{
    int rc = tierce__keys_init(&store->keys, store->view, opts->chain, opts->to_block,
                               opts->to_block, opts->tail);
    if (rc < 0)
        return rc;
    size_t held = tierce__storage_find(store->view->engine, store->keys.keys, store->keys.count,
                                       store->view->engine->rung_count, NULL);
    tierce__view_access(store->view, &store->line, "store", opts->chain, store->keys.block_count,
                        0);
    size_t missing = store->keys.count - held;
    bool refused = tierce__engine_mode(store->view->engine) != TIERCE_MODE_NORMAL;
    if (refused)
        tierce__count(store->view->engine, TIERCE__STAT_stores_refused, (int64_t)missing);
    if (missing == 0 || refused) {
        use_held(store);
        return 0;
    }
    if (store->keys.tail_blocks > 0) {
        rc = tierce__shape_init(&store->tail_shape, store->view, store->keys.tail_blocks);
        if (rc < 0)
            return rc;
    }
    struct tierce__buf **leases = tierce__calloc(store->keys.count, sizeof(struct tierce__buf *));
    store->chunks = tierce__calloc(missing, sizeof(*store->chunks));
    store->block_ids = tierce__calloc((size_t)opts->to_block, sizeof(*store->block_ids));
    if (leases != NULL && store->chunks != NULL && store->block_ids != NULL) {
        memcpy(store->block_ids, opts->block_ids,
               (size_t)opts->to_block * sizeof(*store->block_ids));
        use_held(store);
        lease_held(store, leases);
        reserve_missing(store, opts->chain, held);
        for (size_t i = 0; i < store->keys.count; i++)
            tierce__buf_release(leases[i]);
    } else {
        rc = -ENOMEM;
    }
    tierce__free(leases);
    return rc;
}

static void free_store(struct tierce_store *store)
{
    for (size_t i = 0; i < store->count; i++)
        tierce__buf_release(store->chunks[i].buf);
    tierce__free(store->chunks);
    tierce__free(store->block_ids);
    tierce__shape_fini(&store->tail_shape);
    tierce__access_drop(&store->line);
    tierce__keys_fini(&store->keys);
    store->magic = 0;
    tierce__free(store);
}

static void end_line(struct tierce_store *store, int64_t blocks)
{
    struct tierce_engine *engine = store->view->engine;
    struct tierce__access_tier tier = {.name = engine->rungs[0].tier->ops->name,
                                       .blocks = (uint64_t)blocks};
    tierce__access_end(engine->access_log, &store->line, &tier, 1);
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
    store->view = view;
    store->paged = opts->paged;
    store->session = opts->session;
    store->era = tierce__era_now(view->engine);
    rc = prepare(store, opts);
    if (rc < 0 || store->count == 0) {
        if (rc == 0)
            end_line(store,
                     0); /* held already, or no memory: another cache is asked all the same */
        free_store(store);
        return rc;
    }
    *out = store;
    return 0;
}

static const void *block_at(const struct tierce_store *store, uint32_t layer, size_t block)
{
    const struct tierce_paged_layer *l = &store->paged->layers[layer];
    return (const uint8_t *)l->base + (uint64_t)store->block_ids[block] * l->block_stride;
}

static void gather_layer(struct tierce_store *store, size_t index, uint32_t layer)
{
    struct store_chunk *chunk = &store->chunks[index];
    const struct tierce__shape *shape = shape_of(store, chunk);
    uint8_t *object = chunk->buf->data;
    struct tierce__row row = {0};
    if (index + 1 < store->count)
        row.next = block_at(store, layer, chunk[1].first_block);
    struct tierce__cells cells = {.bytes = object + shape->layer_offset[layer],
                                  .sums = tierce__chunk_sums(object, &shape->geometry, layer),
                                  .count = shape->geometry.block_count};
    int rc = tierce__paged_gather(store->paged, layer, store->block_ids + chunk->first_block,
                                  &cells, &row);
    TIERCE_ASSERT(rc == 0); /* ids and layer were checked at begin */
}

int tierce_store_layer(struct tierce_store *store, uint32_t layer)
{
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    if (layer != store->next_layer || layer >= store->view->full.geometry.layer_count)
        return TIERCE_E_ARGUMENT;
    store->next_layer++;
    for (size_t i = 0; i < store->count; i++)
        gather_layer(store, i, layer);
    tierce__paged_row_end();
    return 0;
}

/* Seals and publishes in order; stops at the first that memory will not take. Then all of the
 * request is put in order, in a slower tier when it has what is new. */
static int64_t publish(struct tierce_store *store)
{
    struct tierce_engine *engine = store->view->engine;
    const struct tierce__keys *keys = &store->keys;
    struct tierce__writes writes;
    int64_t blocks = 0;
    tierce__storage_begin_writes(engine, &writes, keys->keys, keys->count);
    for (size_t i = 0; i < store->count; i++) {
        struct store_chunk *chunk = &store->chunks[i];
        tierce__chunk_seal(chunk->buf->data);
        int rc = tierce__storage_publish(engine, &chunk->record, chunk->buf);
        if (rc < 0) {
            tierce__count(engine, TIERCE__STAT_stores_skipped, (int64_t)(store->count - i));
            for (size_t rest = i; rest < store->count; rest++)
                tierce__why_refused(engine, 0, &store->chunks[rest].record.key, rc);
            break;
        }
        if (rc > 0) /* another request was faster, and this one uses what that stored */
            tierce__storage_touch(engine, engine->rung_count, &chunk->record.key, 1, 0);
        tierce__storage_write_all(engine, &writes, &chunk->record, chunk->buf);
        blocks += chunk->record.block_count;
        tierce__count(engine, TIERCE__STAT_chunks_stored, 1);
        tierce__count(engine, TIERCE__STAT_bytes_stored,
                      (int64_t)shape_of(store, chunk)->extent.payload_bytes);
    }
    tierce__storage_touch(engine, 1, keys->keys, keys->count, keys->count);
    tierce__storage_end_writes(engine, &writes);
    return blocks;
}

int64_t tierce_store_end(struct tierce_store *store)
{
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    int64_t blocks = 0;
    struct tierce_engine *engine = store->view->engine;
    if (store->next_layer == store->view->full.geometry.layer_count) {
        if (tierce__era_enter(engine, store->era)) {
            blocks = publish(store);
            tierce__era_leave(engine, store->era);
        }
        end_line(store, blocks);
    }
    free_store(store);
    return blocks;
}

void tierce_store_abort(struct tierce_store *store)
{
    if (store == NULL)
        return;
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    if (!tierce__engine_inherited(store->view->engine))
        free_store(store);
}

int64_t tierce_store(struct tierce_view *view, const struct tierce_transfer_opts *opts)
{
    struct tierce_store *store;
    int rc = tierce_store_begin(&store, view, opts);
    if (rc < 0 || store == NULL)
        return rc;
    for (uint32_t layer = 0; layer < view->full.geometry.layer_count && rc == 0; layer++)
        rc = tierce_store_layer(store, layer);
    TIERCE_ASSERT(rc == 0);
    return tierce_store_end(store);
}
