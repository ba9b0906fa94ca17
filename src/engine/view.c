/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/lender.h"
#include "engine/view.h"
#include "engine/node_client/shared.h"
#include "core/key/namespace.h"
#include "core/paged/paged.h"

/* The constants of a namespace and a shard: shapes and keys of chunks, and contents of their
 * headers. */

/* For smaller requests, the round trip takes longer than the transfer. */
#define SEGMENT_BYTES_MIN (512u << 10)

struct tierce__shape tierce__shape_of(const struct tierce_view *view, uint32_t blocks)
{
    struct tierce__shape shape = {.geometry = view->full.geometry,
                                  .cells_before = view->cells_before};
    TIERCE_DASSERT(blocks <= view->chunk_blocks);
    shape.geometry.block_count = blocks;
    int rc = tierce__chunk_extent(&shape.extent, &shape.geometry);
    TIERCE_ASSERT(rc == 0); /* even a whole chunk is within the limits */
    return shape;
}

int tierce__shape_cut(struct tierce__shape *shape)
{
    uint32_t layers = shape->geometry.layer_count, count = 0;
    uint64_t start = 0;
    TIERCE_DASSERT(shape->segment_count == 0);
    shape->segment_end = tierce__calloc(layers, sizeof(*shape->segment_end));
    shape->layer_segment = tierce__calloc(layers, sizeof(*shape->layer_segment));
    if (shape->segment_end == NULL || shape->layer_segment == NULL) {
        tierce__shape_fini(shape);
        return -ENOMEM;
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        uint64_t end =
            tierce__round_up(tierce__shape_offset(shape, layer + 1), TIERCE__CHUNK_ALIGN);
        bool last = layer + 1 == layers;
        TIERCE_DASSERT(end > start || count > 0);
        /* A small layer may end in the last page of the segment before it. */
        shape->layer_segment[layer] = end > start ? count : count - 1;
        if (end == start || (!last && end - start < SEGMENT_BYTES_MIN))
            continue;
        shape->segment_end[count++] = end;
        start = end;
    }
    TIERCE_DASSERT(count > 0 && count <= layers);
    TIERCE_DASSERT(shape->segment_end[count - 1] == shape->extent.object_bytes);
    TIERCE_DASSERT(shape->layer_segment[layers - 1] == count - 1);
    shape->segment_count = count;
    return 0;
}

void tierce__shape_fini(struct tierce__shape *shape)
{
    tierce__free(shape->segment_end);
    tierce__free(shape->layer_segment);
    *shape = (struct tierce__shape){0};
}

static int check_shard(const struct tierce_shard *shard)
{
    bool ok = shard->tp_rank < shard->tp_size && shard->pp_rank < shard->pp_size;
    return ok ? 0 : TIERCE_E_ARGUMENT;
}

/* NULL is the whole chunk. */
static int set_part(struct tierce_view *view, const struct tierce_part *part)
{
    uint32_t layers = view->full.geometry.layer_count;
    view->part = (struct tierce_part){.layer_count = layers, .count = 1};
    if (part == NULL)
        return 0;
    view->part = *part;
    bool ok = part->index < part->count && part->count <= layers && part->layer_count >= 1 &&
              part->layer_count <= layers && part->first_layer <= layers - part->layer_count;
    return ok ? 0 : TIERCE_E_ARGUMENT;
}

static int set_group(struct tierce_view *view, const struct tierce_namespace *ns)
{
    view->group = tierce__namespace_group(ns);
    if (view->group == TIERCE_GROUP_ALL)
        return 0;
    view->window = ns->window;
    view->layers = tierce__calloc(ns->layer_count, sizeof(*view->layers));
    if (view->layers == NULL)
        return -ENOMEM;
    memcpy(view->layers, ns->layers, ns->layer_count * sizeof(*view->layers));
    return 0;
}

static int fill_view(struct tierce_view *view, const struct tierce_namespace *ns)
{
    int rc = tierce_namespace_text(&view->text, ns);
    if (rc < 0)
        return rc;
    tierce_namespace_digest(view->ns_digest, view->text);
    int64_t id = tierce__namespaces_intern(view->engine->namespaces, view->ns_digest, view->text);
    if (id < 0)
        return (int)id;
    view->key.ns = (uint32_t)id;
    view->algo = ns->algo;
    view->chunk_blocks = ns->chunk_blocks;
    view->cell_bytes = tierce__calloc(ns->layer_count, sizeof(*view->cell_bytes));
    view->cells_before = tierce__calloc(ns->layer_count + 1, sizeof(*view->cells_before));
    if (view->cell_bytes == NULL || view->cells_before == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < ns->layer_count; i++) {
        view->cell_bytes[i] = ns->cell_bytes[i];
        view->cells_before[i + 1] = view->cells_before[i] + ns->cell_bytes[i];
    }
    rc = set_group(view, ns);
    if (rc < 0)
        return rc;
    view->full.geometry = (struct tierce__geometry){.layer_count = ns->layer_count,
                                                    .cell_bytes = view->cell_bytes,
                                                    .block_tokens = ns->block_tokens,
                                                    .block_count = ns->chunk_blocks};
    rc = tierce__chunk_extent(&view->full.extent, &view->full.geometry);
    if (rc < 0)
        return rc;
    view->full = tierce__shape_of(view, ns->chunk_blocks);
    rc = tierce__shape_cut(&view->full);
    return rc == 0 ? view->engine->lender->view_open(view, ns) : rc;
}

int tierce_view_open(struct tierce_view **out, struct tierce_engine *engine,
                     const struct tierce_namespace *ns, const struct tierce_shard *shard)
{
    return tierce_view_open_part(out, engine, ns, shard, NULL);
}

int tierce_view_open_part(struct tierce_view **out, struct tierce_engine *engine,
                          const struct tierce_namespace *ns, const struct tierce_shard *shard,
                          const struct tierce_part *part)
{
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    int rc = check_shard(shard);
    if (rc < 0)
        return rc;
    struct tierce_view *view = tierce__calloc(1, sizeof(*view));
    if (view == NULL)
        return -ENOMEM;
    view->magic = TIERCE__VIEW_MAGIC;
    view->engine = engine;
    tierce__engine_ref(engine);
    tierce__prefill_init(&view->prefill);
    view->key.shard = *shard;
    tierce__list_init(&view->node);
    rc = fill_view(view, ns);
    if (rc == 0)
        rc = set_part(view, part);
    if (rc < 0) {
        tierce_view_close(view);
        return rc;
    }
    TIERCE_DASSERT(view->part.first_layer + view->part.layer_count <=
                   view->full.geometry.layer_count);
    TIERCE_DASSERT(view->full.segment_count > 0 && tierce__list_empty(&view->node));
    tierce__lock_take(&engine->lock);
    tierce__list_push_back(&engine->views, &view->node);
    tierce__lock_drop(&engine->lock);
    *out = view;
    return 0;
}

void tierce_view_close(struct tierce_view *view)
{
    if (view == NULL)
        return;
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    if (tierce__engine_inherited(view->engine))
        return;
    struct tierce_engine *engine = view->engine;
    tierce__lock_take(&engine->lock);
    tierce__list_remove(&view->node);
    while (view->borrowers > 0)
        tierce__cond_wait(&engine->changed, &engine->lock, TIERCE__DEADLINE_NEVER);
    tierce__lock_drop(&engine->lock);
    tierce__ahead_leave(view);
    tierce__prefetches_drop(view);
    engine->lender->view_close(view);
    tierce__shape_fini(&view->full);
    tierce__prefill_fini(&view->prefill);
    tierce__free(view->cell_bytes);
    tierce__free(view->cells_before);
    tierce__free(view->layers);
    tierce__free(view->text);
    view->magic = 0;
    tierce__free(view);
    tierce_engine_close(engine);
}

struct tierce_view *tierce__view_borrow(struct tierce_engine *engine, const struct tierce__key *key)
{
    struct tierce_view *found = NULL;
    tierce__lock_take(&engine->lock);
    TIERCE__LIST_FOR_EACH (it, &engine->views) {
        struct tierce_view *view = TIERCE__CONTAINER_OF(it, struct tierce_view, node);
        TIERCE_DASSERT(view->engine == engine);
        if (view->key.ns == key->ns &&
            memcmp(&view->key.shard, &key->shard, sizeof(key->shard)) == 0)
            found = view;
    }
    if (found != NULL)
        found->borrowers++;
    tierce__lock_drop(&engine->lock);
    return found;
}

struct tierce_view *tierce__view_borrow_nth(struct tierce_engine *engine, size_t index)
{
    struct tierce_view *found = NULL;
    tierce__lock_take(&engine->lock);
    TIERCE__LIST_FOR_EACH (it, &engine->views) {
        if (found == NULL && index-- == 0)
            found = TIERCE__CONTAINER_OF(it, struct tierce_view, node);
    }
    if (found != NULL)
        found->borrowers++;
    tierce__lock_drop(&engine->lock);
    return found;
}

void tierce__view_give_back(struct tierce_view *view)
{
    struct tierce_engine *engine = view->engine;
    tierce__lock_take(&engine->lock);
    TIERCE_DASSERT(view->borrowers > 0);
    view->borrowers--;
    tierce__cond_broadcast(&engine->changed);
    tierce__lock_drop(&engine->lock);
}

const char *tierce_view_namespace(const struct tierce_view *view)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    return view->text;
}

uint64_t tierce_view_needs(const struct tierce_view *view, uint64_t blocks)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    struct tierce__layer_group group = tierce__view_group(view);
    return tierce__group_needs(&group, blocks);
}

int tierce_view_chain(struct tierce_chain **out, const struct tierce_view *view,
                      const struct tierce_chain_root *root)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    int rc = tierce_chain_create(
        out, &(struct tierce_chain_opts){.size = sizeof(struct tierce_chain_opts),
                                         .algo = view->algo,
                                         .block_tokens = view->full.geometry.block_tokens,
                                         .root = root});
    if (rc == 0 && (view->engine->kv_tokens != NULL ||
                    atomic_load_explicit(&view->engine->asks_tokens, memory_order_relaxed)))
        tierce__chain_keep_tokens(*out);
    return rc;
}

int tierce__keys_init(struct tierce__keys *keys, const struct tierce_view *view,
                      const struct tierce_chain *chain, uint64_t to_block, uint64_t end_block,
                      bool tail)
{
    if (to_block > end_block || end_block > tierce_chain_blocks(chain))
        return TIERCE_E_ARGUMENT;
    /* Another namespace's chain names other tokens. */
    if (!tierce__chain_fits(chain, view->algo, view->full.geometry.block_tokens))
        return TIERCE_E_ARGUMENT;
    size_t step = view->chunk_blocks, to = (size_t)to_block, end = (size_t)end_block;
    size_t wanted = (to + step - 1) / step;
    keys->full_count = end / step < wanted ? end / step : wanted;
    keys->tail_blocks = tail && wanted > keys->full_count ? (uint32_t)(end % step) : 0;
    keys->count = keys->full_count + (keys->tail_blocks > 0);
    keys->block_count = keys->full_count * step + keys->tail_blocks;
    TIERCE_DASSERT(keys->block_count <= end);
    TIERCE_DASSERT(keys->count <= wanted && keys->tail_blocks < step);
    TIERCE_DASSERT(keys->count == 0 || keys->block_count > (keys->count - 1) * step);
    keys->keys = keys->small;
    if (keys->count > sizeof(keys->small) / sizeof(keys->small[0])) {
        keys->keys = tierce__alloc(keys->count * sizeof(*keys->keys));
        if (keys->keys == NULL)
            return -ENOMEM;
    }
    const uint8_t *hashes = keys->count > 0 ? tierce_chain_hash(chain, 0) : NULL;
    for (size_t i = 0; i < keys->count; i++) {
        size_t last = i < keys->full_count ? (i + 1) * step : keys->block_count;
        keys->keys[i] = view->key;
        memcpy(keys->keys[i].hash, hashes + (last - 1) * TIERCE_HASH_BYTES, TIERCE_HASH_BYTES);
    }
    return 0;
}

uint64_t tierce__keys_blocks(const struct tierce__keys *keys, const struct tierce_view *view,
                             size_t chunks, uint64_t to_block)
{
    TIERCE_DASSERT(chunks <= keys->count);
    uint64_t blocks =
        chunks > keys->full_count ? keys->block_count : (uint64_t)chunks * view->chunk_blocks;
    TIERCE_DASSERT(blocks <= keys->block_count);
    return blocks < to_block ? blocks : to_block;
}

void tierce__keys_fini(struct tierce__keys *keys)
{
    if (keys->keys != keys->small)
        tierce__free(keys->keys);
    keys->keys = NULL;
}

size_t tierce__keys_first(const struct tierce__keys *keys, const struct tierce_view *view,
                          uint64_t from_block)
{
    uint64_t first = (from_block + view->chunk_blocks - 1) / view->chunk_blocks;
    return first < keys->count ? (size_t)first : keys->count;
}

void tierce__view_place_info(struct tierce__chunk_info *info, const struct tierce_view *view,
                             const struct tierce__shape *shape, size_t index, const uint8_t *hashes,
                             const uint8_t *root)
{
    size_t first = index * view->chunk_blocks;
    TIERCE_DASSERT(shape->geometry.layer_count == view->full.geometry.layer_count);
    TIERCE_DASSERT(shape->geometry.block_count <= view->chunk_blocks);
    const uint8_t *parent = first > 0 ? hashes + (first - 1) * TIERCE_HASH_BYTES : root;
    *info =
        (struct tierce__chunk_info){.shard = view->key.shard,
                                    .algo = view->algo,
                                    .group = view->group,
                                    .window = view->window,
                                    .token_start = (uint64_t)first * shape->geometry.block_tokens,
                                    .geometry = shape->geometry,
                                    .extent = shape->extent};
    memcpy(info->ns_digest, view->ns_digest, TIERCE_HASH_BYTES);
    memcpy(info->parent, parent, TIERCE_HASH_BYTES);
}

void tierce__view_chunk_info(struct tierce__chunk_info *info, const struct tierce_view *view,
                             const struct tierce__shape *shape, size_t index, const uint8_t *hashes,
                             const uint8_t *root)
{
    TIERCE_DASSERT(shape->geometry.block_count > 0);
    size_t last = index * view->chunk_blocks + shape->geometry.block_count - 1;
    tierce__view_place_info(info, view, shape, index, hashes, root);
    memcpy(info->hash, hashes + last * TIERCE_HASH_BYTES, TIERCE_HASH_BYTES);
}

int tierce__view_check_header(const struct tierce_view *view, const struct tierce__shape *shape,
                              size_t index, const uint8_t *hashes, const uint8_t *root,
                              const uint8_t *object)
{
    struct tierce__chunk_info got, want;
    tierce__view_chunk_info(&want, view, shape, index, hashes, root);
    int rc = tierce__chunk_parse(&got, object, shape->extent.header_bytes);
    if (rc < 0)
        return rc;
    return tierce__chunk_match(object, &got, &want,
                               hashes + index * view->chunk_blocks * TIERCE_HASH_BYTES);
}

void tierce__view_describe(struct tierce__storage_chunk *out, const struct tierce_view *view,
                           const struct tierce__keys *keys, const struct tierce__shape *shape,
                           size_t index, const uint8_t *hashes)
{
    TIERCE_DASSERT(index < keys->count);
    TIERCE_DASSERT(shape->geometry.block_count <= view->chunk_blocks);
    TIERCE_DASSERT(index <= keys->full_count);
    size_t first = index * view->chunk_blocks;
    bool has_parent = index > 0 && !tierce__view_is_sparse(view);
    *out = (struct tierce__storage_chunk){.key = keys->keys[index],
                                          .has_parent = has_parent,
                                          .object_bytes = shape->extent.object_bytes,
                                          .token_start =
                                              (uint64_t)first * shape->geometry.block_tokens,
                                          .block_count = shape->geometry.block_count};
    if (has_parent)
        out->parent = keys->keys[index - 1];
    memcpy(out->first_block, hashes + first * TIERCE_HASH_BYTES, TIERCE_HASH_BYTES);
}

static bool geometry_fits(const struct tierce_view *view, const struct tierce_paged *paged)
{
    const uint32_t *cell_bytes = view->cell_bytes + view->part.first_layer;
    TIERCE_DASSERT(view->part.first_layer + view->part.layer_count <=
                   view->full.geometry.layer_count);
    if (paged->layer_count != view->part.layer_count)
        return false;
    for (uint32_t i = 0; i < paged->layer_count; i++) {
        if (paged->layers[i].block_bytes != cell_bytes[i])
            return false;
    }
    return true;
}

/*
 * Whether all ids of ids[0..n) are different; all are below block_count. With a bit for each block
 * of the engine, of which there are 100000, 16 ids take 0.1 us and 4096 take 6 us (2026-11).
 */
static int check_distinct(const int32_t *ids, size_t n, uint32_t block_count)
{
    uint64_t small[64] = {0}, *seen = small;
    size_t words = block_count / 64u + 1;
    if (words > sizeof(small) / sizeof(small[0]))
        seen = tierce__calloc(words, sizeof(*seen));
    if (seen == NULL)
        return -ENOMEM;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        uint32_t id = (uint32_t)ids[i];
        TIERCE_DASSERT(id < block_count);
        uint64_t bit = UINT64_C(1) << (id % 64), *word = &seen[id / 64];
        rc = (*word & bit) != 0 ? TIERCE_E_ARGUMENT : 0;
        *word |= bit;
    }
    if (seen != small)
        tierce__free(seen);
    return rc;
}

int tierce_view_prepare(struct tierce_view *view, const struct tierce_paged *paged)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    if (tierce__engine_inherited(view->engine))
        return TIERCE_E_CLOSED;
    int rc = tierce__paged_check(paged);
    if (rc < 0)
        return rc;
    if (!geometry_fits(view, paged))
        return TIERCE_E_ARGUMENT;
    if (tierce__paged_device(paged) == TIERCE_DEVICE_HOST)
        return 0;
    tierce__transits_reap(&view->engine->transits);
    return view->engine->lender->prepare(view, paged);
}

static bool opts_fit(const struct tierce_transfer_opts *opts)
{
    bool has_size = opts->size == sizeof(*opts) || opts->size == TIERCE__TRANSFER_BYTES_V1;
    return has_size && opts->chain != NULL && opts->paged != NULL &&
           opts->from_block <= opts->to_block &&
           opts->to_block <= tierce_chain_blocks(opts->chain) &&
           (opts->block_ids != NULL || opts->to_block == 0);
}

int tierce__transfer_check(const struct tierce_view *view, const struct tierce_transfer_opts *opts)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    if (tierce__engine_inherited(view->engine))
        return TIERCE_E_CLOSED;
    if (!opts_fit(opts))
        return TIERCE_E_ARGUMENT;
    int rc = tierce__paged_check(opts->paged);
    if (rc < 0)
        return rc;
    if (!geometry_fits(view, opts->paged))
        return TIERCE_E_ARGUMENT;
    for (uint64_t i = opts->from_block; i < opts->to_block; i++) {
        if (opts->block_ids[i] < 0 || (uint32_t)opts->block_ids[i] >= opts->paged->block_count)
            return TIERCE_E_ARGUMENT;
    }
    const int32_t *ids = opts->block_ids == NULL ? NULL : opts->block_ids + opts->from_block;
    return check_distinct(ids, (size_t)(opts->to_block - opts->from_block),
                          opts->paged->block_count);
}

bool tierce__view_is_same(const struct tierce_view *a, const struct tierce_view *b)
{
    TIERCE_DASSERT(a->engine == b->engine);
    return tierce__key_equal(&a->key, &b->key);
}

bool tierce__view_has(const struct tierce_view *view, const struct tierce__key *key)
{
    return view->key.ns == key->ns &&
           memcmp(&view->key.shard, &key->shard, sizeof(key->shard)) == 0;
}

uint32_t tierce__view_block_tokens(const struct tierce_view *view)
{
    return view->full.geometry.block_tokens;
}

enum tierce_chain_algo tierce__view_algo(const struct tierce_view *view)
{
    return view->algo;
}
