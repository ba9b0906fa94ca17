/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store: the engine's paged KV becomes sealed chunks. Read tierce_store_begin, _layer and _end:
 * find what is missing, reserve a buffer for each, gather layer by layer with the sums riding on
 * the copy, seal, publish in memory, hand the same buffer to every slower tier.
 *
 * What another request is storing is left to it (storing.h): what comes behind is published when
 * that was.
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
    struct tierce__claim claim;
    struct tierce__buf *buf;
    size_t first_block; /* in the sequence */
    uint64_t payload_bytes;
    bool tail;
    bool has_other;           /* before it, and behind the chunk before it in this list, is one */
    struct tierce__key other; /* that another request is storing: the last of these */
};

struct tierce_store {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce_view *view;         /* until end */
    const struct tierce_paged *paged; /* the caller's until end */
    uint64_t session;
    uint32_t rungs; /* that keep the chunks: a bit for each */
    uint64_t era;   /* operate.h */
    uint32_t next_layer;
    size_t count;
    struct store_chunk *chunks;
    size_t shared;                   /* chunks that others are storing */
    struct tierce__buf **leases;     /* [keys.count] while memory is reserved */
    int32_t *block_ids;              /* [to_block] */
    struct tierce__shape tail_shape; /* empty unless the last chunk is a tail */
    struct tierce__keys keys;        /* of the whole prefix, touched at the end */
    struct tierce__access_line line; /* for the access log */

    /* From end on. */
    struct tierce__parked parked;
    struct tierce__writes writes;
    size_t published; /* chunks */
    int64_t blocks;   /* of these */
};

static const struct tierce__shape *shape_of(const struct tierce_store *store,
                                            const struct store_chunk *chunk)
{
    return chunk->tail ? &store->tail_shape : &store->view->full;
}

/* How many of the leading keys its tiers have. */
static size_t search(const struct tierce_store *store, const struct tierce__key *keys, size_t count)
{
    struct tierce__unasked unasked;
    return tierce__storage_search(store->engine, store->rungs, keys, count, NULL, &unasked);
}

/*
 * With memory alone, a chunk must not push out its own prefix, for then neither could be found; nor
 * what is held behind a hole that is being filled. The leases end when room has been made. With a
 * slower tier below, the prefix stays reachable there.
 */
static void lease_held(const struct tierce_store *store)
{
    if (store->rungs != 1)
        return;
    for (size_t i = 0; i < store->keys.count; i++)
        store->leases[i] = tierce__storage_lease(store->engine, &store->keys.keys[i]);
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
    chunk->payload_bytes = shape->extent.payload_bytes;
    const struct store_chunk *last = store->count > 0 ? chunk - 1 : NULL;
    bool follows =
        last != NULL && last->first_block + store->view->chunk_blocks == chunk->first_block;
    chunk->buf = tierce__storage_reserve(store->engine, &chunk->record, follows ? last->buf : NULL);
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
    tierce__count(store->engine, TIERCE__STAT_stores_skipped, (int64_t)(store->keys.count - index));
    for (size_t i = index; i < store->keys.count; i++)
        tierce__why_refused(store->engine, 0, &store->keys.keys[i], status);
}

static void end_claims(struct tierce_store *store, struct tierce__list *ready)
{
    for (size_t i = 0; i < store->count; i++)
        tierce__claim_end(&store->engine->storing, &store->chunks[i].claim, ready);
}

static void run_ready(struct tierce__list *ready);

/*
 * Claims and reserves every chunk from `held` on that no tier has and nobody else is storing, up to
 * the first for which there is no memory, because what follows would be a suffix without its
 * prefix. Returns the index of that one, or of none.
 */
static size_t reserve_missing(struct tierce_store *store, const struct tierce_chain *chain,
                              size_t held)
{
    const struct tierce__key *other = NULL;
    size_t i = held, shared = 0;
    for (; i < store->keys.count; i++) {
        struct store_chunk *chunk = &store->chunks[store->count];
        const struct tierce__key *key = &store->keys.keys[i];
        struct tierce__list ready;
        tierce__list_init(&ready);
        if (!tierce__claim_take(&store->engine->storing, &chunk->claim, key)) {
            other = key;
            shared++;
            continue;
        }
        /* An island, whose prefix was evicted and is stored anew; or it has just been stored. */
        bool island = search(store, key, 1) == 1;
        chunk->has_other = other != NULL;
        if (other != NULL)
            chunk->other = *other;
        if (!island && reserve(store, chain, i)) {
            other = NULL;
            continue;
        }
        tierce__claim_end(&store->engine->storing, &chunk->claim, &ready);
        run_ready(&ready);
        if (!island)
            break;
    }
    store->shared = shared;
    return i;
}

/* Gives back what was reserved. True: others went on for it, and may have let go of memory. */
static bool release_reserved(struct tierce_store *store)
{
    struct tierce__list ready;
    tierce__list_init(&ready);
    for (size_t i = 0; i < store->count; i++)
        tierce__buf_release(store->chunks[i].buf);
    end_claims(store, &ready);
    store->count = 0;
    bool any = !tierce__list_empty(&ready);
    run_ready(&ready);
    return any;
}

/* Reserves what is missing behind the first `held`. Returns the index of the first for which there
 * was no memory, or keys.count. */
static size_t try_reserve(struct tierce_store *store, const struct tierce_chain *chain, size_t held)
{
    lease_held(store);
    size_t index = reserve_missing(store, chain, held);
    for (size_t i = 0; i < store->keys.count; i++) {
        tierce__buf_release(store->leases[i]);
        store->leases[i] = NULL;
    }
    return index;
}

/* The leading chunks that some tier has. A clear that comes afterwards makes that untrue. */
static size_t find_held(struct tierce_store *store)
{
    store->era = tierce__era_now(store->engine);
    return search(store, store->keys.keys, store->keys.count);
}

/*
 * Waits for memory, up to timeout.store, holding none: two that waited with a part each would wait
 * for each other. What fits at the end is taken.
 */
static size_t wait_for_room(struct tierce_store *store, const struct tierce_chain *chain)
{
    struct tierce__pool_turn turn;
    uint64_t deadline_ns = tierce__deadline_in_ms(store->engine->settings.store_ms);
    size_t index = 0;
    tierce__count(store->engine, TIERCE__STAT_stores_waited, 1);
    (void)release_reserved(store);
    tierce__pool_turn_begin(store->engine->pool, &turn);
    bool again = false;
    while (index < store->keys.count && (again || tierce__pool_turn_wait(&turn, deadline_ns))) {
        index = try_reserve(store, chain, find_held(store));
        again = index < store->keys.count && release_reserved(store);
    }
    tierce__pool_turn_end(&turn);
    return index < store->keys.count ? try_reserve(store, chain, find_held(store)) : index;
}

static void reserve_all(struct tierce_store *store, const struct tierce_chain *chain, size_t held)
{
    const struct tierce__settings *settings = &store->engine->settings;
    uint64_t most = (store->keys.count - held) * store->view->full.extent.object_bytes;
    size_t index = try_reserve(store, chain, held);
    if (index < store->keys.count && settings->store_ms > 0 && most <= settings->memory_bytes)
        index = wait_for_room(store, chain);
    tierce__count(store->engine, TIERCE__STAT_stores_shared, (int64_t)store->shared);
    if (index < store->keys.count)
        skip(store, index, TIERCE_E_FULL);
}

/* What is held is used by whom it is offered; before room is made, so that it stays. */
static void use_held(const struct tierce_store *store)
{
    struct tierce_engine *engine = store->engine;
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
    size_t held = find_held(store);
    tierce__view_access(
        store->view, &store->line, "store", opts->chain,
        (struct tierce__access_what){.count = store->keys.block_count, .request = store->session});
    tierce__access_tag(&store->line, opts->tag);
    size_t missing = store->keys.count - held;
    bool refused = tierce__engine_mode(store->engine) != TIERCE_MODE_NORMAL || store->rungs == 0;
    if (refused)
        tierce__count(store->engine, TIERCE__STAT_stores_refused, (int64_t)missing);
    if (missing == 0 || refused) {
        use_held(store);
        return 0;
    }
    if (store->keys.tail_blocks > 0) {
        rc = tierce__shape_init(&store->tail_shape, store->view, store->keys.tail_blocks);
        if (rc < 0)
            return rc;
    }
    store->leases = tierce__calloc(store->keys.count, sizeof(struct tierce__buf *));
    store->chunks = tierce__calloc(store->keys.count, sizeof(*store->chunks));
    store->block_ids = tierce__calloc((size_t)opts->to_block, sizeof(*store->block_ids));
    if (store->leases == NULL || store->chunks == NULL || store->block_ids == NULL)
        return -ENOMEM;
    memcpy(store->block_ids, opts->block_ids, (size_t)opts->to_block * sizeof(*store->block_ids));
    use_held(store);
    reserve_all(store, opts->chain, held);
    return 0;
}

static void free_store(struct tierce_store *store)
{
    for (size_t i = 0; i < store->count; i++)
        tierce__buf_release(store->chunks[i].buf);
    tierce__free(store->chunks);
    tierce__free(store->leases);
    tierce__free(store->block_ids);
    tierce__shape_fini(&store->tail_shape);
    tierce__access_drop(&store->line);
    tierce__keys_fini(&store->keys);
    store->magic = 0;
    tierce__free(store);
}

static void end_line(struct tierce_store *store)
{
    struct tierce_engine *engine = store->engine;
    size_t first = store->rungs != 0 ? (size_t)__builtin_ctz(store->rungs) : 0;
    struct tierce__access_tier tier = {.name = engine->rungs[first].tier->ops->name,
                                       .blocks = (uint64_t)store->blocks};
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
    store->engine = view->engine;
    store->view = view;
    store->paged = opts->paged;
    store->session = opts->session;
    store->rungs = tierce__rungs_of(view->engine, opts->tiers);
    rc = prepare(store, opts);
    if (rc < 0 || store->count == 0) {
        if (rc == 0)
            end_line(store); /* held already, or no memory: another cache is asked all the same */
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

/* ---- end: publish, and go on with those that waited for it ---- */

/* False: memory will not take it. */
static bool publish(struct tierce_store *store, struct store_chunk *chunk)
{
    struct tierce_engine *engine = store->engine;
    int rc = 0;
    if ((store->rungs & 1u) != 0)
        rc = tierce__storage_publish(engine, &chunk->record, chunk->buf);
    if (rc < 0) {
        for (size_t rest = store->published; rest < store->count; rest++)
            tierce__why_refused(engine, 0, &store->chunks[rest].record.key, rc);
        return false;
    }
    if (rc > 0) /* another request was faster, and this one uses what that stored */
        tierce__storage_touch(engine, engine->rung_count, &chunk->record.key, 1, 0);
    tierce__storage_write(engine, store->rungs, &store->writes, &chunk->record, chunk->buf);
    store->blocks += chunk->record.block_count;
    tierce__count(engine, TIERCE__STAT_chunks_stored, 1);
    tierce__count(engine, TIERCE__STAT_bytes_stored, (int64_t)chunk->payload_bytes);
    return true;
}

/*
 * Publishes in order, up to the first chunk that memory will not take or whose prefix was not
 * stored. False: a prefix is still being stored by somebody else, who goes on with the store, so
 * that it must not be touched any more. *blocks grows by what was published now.
 */
static bool publish_rest(struct tierce_store *store, int64_t *blocks, struct tierce__list *ready)
{
    struct tierce_engine *engine = store->engine;
    for (; store->published < store->count; store->published++) {
        struct store_chunk *chunk = &store->chunks[store->published];
        if (chunk->has_other) {
            if (tierce__claim_park(&engine->storing, &chunk->other, &store->parked))
                return false;
            if (search(store, &chunk->other, 1) == 0)
                break;
        }
        if (!publish(store, chunk))
            break;
        *blocks += chunk->record.block_count;
        tierce__claim_end(&engine->storing, &chunk->claim, ready);
    }
    return true;
}

/* All of the request is put in order, in a slower tier when it has what is new. */
static void settle(struct tierce_store *store, struct tierce__list *ready)
{
    struct tierce_engine *engine = store->engine;
    tierce__count(engine, TIERCE__STAT_stores_skipped, (int64_t)(store->count - store->published));
    tierce__storage_touch(engine, 1, store->keys.keys, store->keys.count, store->keys.count);
    tierce__storage_end_writes(engine, &store->writes);
    end_line(store);
    end_claims(store, ready);
    free_store(store);
}

/* Returns the blocks that were published now. */
static int64_t go_on(struct tierce_store *store, struct tierce__list *ready)
{
    struct tierce_engine *engine = store->engine;
    uint64_t era = store->era;
    int64_t blocks = 0;
    bool over = true;
    if (tierce__era_enter(engine, era)) {
        over = publish_rest(store, &blocks, ready);
        tierce__era_leave(engine, era);
    }
    if (over)
        settle(store, ready);
    return blocks;
}

static struct tierce_store *pop(struct tierce__list *stores)
{
    struct tierce__list *node = stores->next;
    tierce__list_remove(node);
    return TIERCE__CONTAINER_OF(node, struct tierce_store, parked.node);
}

/* One after the other, not one inside the other: there may be many. */
static void run_ready(struct tierce__list *ready)
{
    while (!tierce__list_empty(ready))
        (void)go_on(pop(ready), ready);
}

void tierce__stores_expire(struct tierce_engine *engine)
{
    struct tierce__list late, ready;
    tierce__list_init(&late);
    tierce__list_init(&ready);
    tierce__storing_expire(&engine->storing, tierce__now_ns(), &late);
    while (!tierce__list_empty(&late))
        settle(pop(&late), &ready);
    run_ready(&ready);
}

static void drop_store(struct tierce_store *store)
{
    struct tierce__list ready;
    tierce__list_init(&ready);
    end_claims(store, &ready);
    free_store(store);
    run_ready(&ready);
}

int64_t tierce_store_end(struct tierce_store *store)
{
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    struct tierce_engine *engine = store->engine;
    if (store->next_layer < store->view->full.geometry.layer_count) {
        drop_store(store);
        return 0;
    }
    struct tierce__list ready;
    tierce__list_init(&ready);
    for (size_t i = 0; i < store->count; i++)
        tierce__chunk_seal(store->chunks[i].buf->data);
    tierce__storage_begin_writes(engine, &store->writes, store->keys.keys, store->keys.count);
    store->parked.deadline_ns = tierce__deadline_in_ms(engine->settings.pin_ms);
    store->view = NULL;
    int64_t blocks = go_on(store, &ready);
    run_ready(&ready);
    return blocks;
}

void tierce_store_abort(struct tierce_store *store)
{
    if (store == NULL)
        return;
    TIERCE_CHECK_MAGIC(store, TIERCE__STORE_MAGIC);
    if (!tierce__engine_inherited(store->engine))
        drop_store(store);
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
