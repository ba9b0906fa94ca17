/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/load/sibling.h"
#include "base/assert.h"
#include "engine/own_tiers.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "store/await.h"

void tierce__sibling_aim(struct tierce__sibling_want *want, const struct tierce_view *view,
                         const struct tierce_chain *chain, size_t index, uint64_t from_block,
                         uint64_t to_block)
{
    uint64_t first = (uint64_t)index * view->chunk_blocks;
    uint64_t left = to_block > first ? to_block - first : 0;
    uint64_t held = from_block > first ? from_block - first : 0;
    *want = (struct tierce__sibling_want){
        .index = index,
        .to = (uint32_t)(left < view->chunk_blocks ? left : view->chunk_blocks),
        .hashes = tierce_chain_hash(chain, 0),
        .root = tierce_chain_root_hash(chain),
        .levels = tierce__levels_of(view->engine, 0),
        .deadline_ns = tierce__deadline_in_ms(view->engine->settings.lookup_ms)};
    want->from = held < want->to ? (uint32_t)held : want->to;
    TIERCE_DASSERT(want->from <= want->to && want->to <= view->chunk_blocks);
}

int tierce__sibling_check(const struct tierce_view *view, const struct tierce__shape *shape,
                          const struct tierce__sibling_want *want, const uint8_t *hash,
                          const uint8_t *object)
{
    TIERCE_DASSERT(want->to > 0 && want->to <= view->chunk_blocks);
    struct tierce__chunk_info got, info;
    const uint8_t *hashes = want->hashes + want->index * view->chunk_blocks * TIERCE_HASH_BYTES;
    tierce__view_place_info(&info, view, shape, want->index, want->hashes, want->root);
    memcpy(info.hash, hash, sizeof(info.hash));
    int rc = tierce__chunk_parse(&got, object, shape->extent.header_bytes);
    if (rc < 0)
        return rc;
    uint32_t same = tierce__chunk_common(object, &got, hashes, want->to);
    TIERCE_DASSERT(same <= want->to);
    rc = tierce__chunk_match_first(object, &got, &info, hashes, same);
    if (rc == 0 && same == 0)
        rc = TIERCE_E_IDENTITY; /* a tier reports chunks that begin with the same block */
    return rc < 0 ? rc : (int)same;
}

/* ---- the first pages of a chunk, with a bounded wait ---- */

/* A read that may outlive its waiter: abandoning it is not a fault of the tier, which has the time
 * of a load for it. */
struct head_read {
    struct tierce__store_req req;
    struct tierce__key key;
    struct tierce_engine *engine;
    size_t level;
    struct tierce__await await;
};

static void free_read(struct head_read *r)
{
    tierce__buf_release(r->req.buf);
    tierce__free(r);
}

static void head_done(struct tierce__store_req *req)
{
    struct head_read *r = req->arg;
    TIERCE_DASSERT(req == &r->req);
    tierce__storage_note(r->engine, r->level, req);
    if (tierce__await_answer(&r->await))
        free_read(r);
}

static struct head_read *make_read(struct tierce_engine *engine, size_t level,
                                   const struct tierce__key *key, uint64_t bytes)
{
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    TIERCE_DASSERT(bytes > 0 && bytes % TIERCE__CHUNK_ALIGN == 0);
    struct head_read *r = tierce__calloc(1, sizeof(*r));
    if (r == NULL)
        return NULL;
    r->engine = engine;
    r->level = level;
    r->key = *key;
    r->req =
        (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                   .deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms),
                                   .done = head_done,
                                   .arg = r,
                                   .keys = &r->key,
                                   .key_count = 1,
                                   .buf = tierce__storage_alloc(engine, bytes),
                                   .length = bytes};
    tierce__await_begin(&r->await);
    tierce__await_expect(&r->await);
    return r;
}

/* The first `bytes` of a chunk in a buffer whose reference is the caller's, or NULL. */
static struct tierce__buf *read_head(struct tierce_engine *engine, size_t level,
                                     const struct tierce__key *key, uint64_t bytes,
                                     uint64_t deadline_ns)
{
    struct head_read *r = make_read(engine, level, key, bytes);
    if (r == NULL)
        return NULL;
    if (r->req.buf == NULL || !tierce__storage_submit(engine, level, &r->req)) {
        free_read(r);
        return NULL;
    }
    if (!tierce__await_end(&r->await, deadline_ns))
        return NULL;
    struct tierce__buf *buf = NULL;
    if (r->req.status == 0) {
        buf = r->req.buf;
        r->req.buf = NULL;
    }
    free_read(r);
    TIERCE_DASSERT(buf == NULL || buf->bytes >= bytes);
    return buf;
}

/* ---- the best of the candidates ---- */

/* The header region of a candidate, or NULL: it is not there any more, or not in time. */
static struct tierce__buf *head_of(struct tierce_view *view, size_t level,
                                   const struct tierce__sibling *candidate,
                                   const struct tierce__shape *shape, uint64_t deadline_ns)
{
    TIERCE_DASSERT(level < view->engine->level_count);
    if (level > 0)
        return read_head(view->engine, level, &candidate->key, shape->extent.header_bytes,
                         deadline_ns);
    struct tierce__buf *buf = tierce__storage_lease(view->engine, &candidate->key);
    if (buf != NULL && buf->bytes < shape->extent.object_bytes) {
        tierce__buf_release(buf);
        buf = NULL;
    }
    return buf;
}

/* Examines one candidate, and takes it if it is better than the best so far. */
static void try_candidate(struct tierce_view *view, struct tierce__sibling_hit *best,
                          const struct tierce__sibling_want *want, size_t level,
                          const struct tierce__sibling *candidate)
{
    uint32_t least = best->blocks > want->from ? best->blocks : want->from;
    TIERCE_DASSERT(level < view->engine->level_count);
    TIERCE_DASSERT(best->blocks <= want->to);
    if (candidate->block_count <= least || candidate->block_count > view->chunk_blocks)
        return;
    struct tierce__shape shape = tierce__shape_of(view, candidate->block_count);
    if (shape.extent.object_bytes != candidate->object_bytes)
        return;
    struct tierce__buf *head = head_of(view, level, candidate, &shape, want->deadline_ns);
    if (head == NULL)
        return;
    int same = tierce__sibling_check(view, &shape, want, candidate->key.hash, head->data);
    if (same < 0)
        tierce__storage_quarantine(view->engine, level, &candidate->key, same);
    if (same > (int)least) {
        TIERCE_DASSERT(same <= (int)want->to);
        tierce__buf_release(best->buf);
        *best = (struct tierce__sibling_hit){.key = candidate->key,
                                             .level = level,
                                             .block_count = candidate->block_count,
                                             .blocks = (uint32_t)same,
                                             .buf = level == 0 ? head : NULL};
        if (level == 0)
            return;
    }
    tierce__buf_release(head);
}

/* Looks at a buffer that is held already and may be of any chunk. */
static void try_pinned(const struct tierce_view *view, struct tierce__sibling_hit *best,
                       const struct tierce__sibling_want *want, size_t i)
{
    TIERCE_DASSERT(i < want->pinned->count && best->blocks <= want->to);
    const struct tierce__key *key = &want->pinned->keys[i];
    struct tierce__buf *buf = want->pinned->bufs[i];
    struct tierce__chunk_info got;
    if (buf == NULL || atomic_load_explicit(&buf->cleared, memory_order_relaxed) ||
        tierce__chunk_parse(&got, buf->data, buf->bytes) < 0)
        return;
    struct tierce__shape shape = {.geometry = view->full.geometry, .extent = got.extent};
    shape.geometry.block_count = got.geometry.block_count;
    if (got.extent.object_bytes > buf->bytes || got.geometry.block_count > view->chunk_blocks)
        return;
    int same = tierce__sibling_check(view, &shape, want, key->hash, buf->data);
    if (same <= (int)best->blocks || same <= (int)want->from)
        return;
    TIERCE_DASSERT(same <= (int)want->to);
    tierce__buf_acquire(buf);
    tierce__buf_release(best->buf);
    *best = (struct tierce__sibling_hit){
        .key = *key, .block_count = got.geometry.block_count, .blocks = (uint32_t)same, .buf = buf};
}

bool tierce__sibling_pays(struct tierce_view *view, const struct tierce__sibling_hit *hit,
                          const struct tierce__sibling_want *want)
{
    uint64_t block_bytes = view->full.extent.payload_bytes / view->chunk_blocks;
    uint64_t more = hit->blocks - want->from;
    TIERCE_DASSERT(hit->blocks == 0 || hit->blocks > want->from);
    return hit->blocks > 0 && tierce__cost_pays(view, hit->level, block_bytes * hit->block_count,
                                                more * view->full.geometry.block_tokens);
}

static bool is_among(const struct tierce__sibling *siblings, size_t count,
                     const struct tierce__key *key)
{
    TIERCE_DASSERT(count <= TIERCE__SIBLINGS_MAX);
    size_t i = 0;
    while (i < count && !tierce__key_equal(&siblings[i].key, key))
        i++;
    return i < count;
}

void tierce__sibling_find(struct tierce_view *view, struct tierce__sibling_hit *out,
                          const struct tierce__sibling_want *want)
{
    struct tierce_engine *engine = view->engine;
    *out = (struct tierce__sibling_hit){0};
    if (!engine->settings.siblings || want->from >= want->to)
        return;
    if (view->chunk_blocks == 1) /* it would be the missing chunk */
        return;
    struct tierce__key first = view->key;
    memcpy(first.hash, want->hashes + want->index * view->chunk_blocks * TIERCE_HASH_BYTES,
           TIERCE_HASH_BYTES);
    for (size_t i = 0; want->pinned != NULL && i < want->pinned->count; i++)
        try_pinned(view, out, want, i);
    struct tierce__sibling found[2][TIERCE__SIBLINGS_MAX]; /* of this level and of memory */
    size_t in_memory = 0;
    for (size_t level = 0; level < engine->level_count && out->blocks < want->to; level++) {
        if ((want->levels >> level & 1) == 0)
            continue;
        struct tierce__sibling *list = found[level > 0];
        size_t count = tierce__storage_siblings(engine, level, list, &first, want->deadline_ns);
        TIERCE_DASSERT(count <= TIERCE__SIBLINGS_MAX);
        if (level == 0)
            in_memory = count;
        for (size_t i = 0; i < count && out->blocks < want->to; i++) {
            /* Skips chunks that were already tried in memory. */
            if (level == 0 || !is_among(found[0], in_memory, &list[i].key))
                try_candidate(view, out, want, level, &list[i]);
        }
    }
    TIERCE_DASSERT(out->blocks <= want->to);
    TIERCE_DASSERT(out->level == 0 || out->buf == NULL);
    TIERCE_DASSERT(out->blocks == 0 || out->blocks > want->from);
}
