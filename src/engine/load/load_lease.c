/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leases of a load: leases the chunks in memory, joins a fetch for each other chunk, requests
 * its segments ahead of the wanted layer, and promotes chunks that came from slower tiers.
 *
 * The first missing chunk may be replaced by a sibling (sibling.h), whose common leading blocks are
 * leased.
 */
#include "engine/load/load_lease_private.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/own_tiers.h"
#include "engine/observe/operate.h"
#include "engine/load/sibling.h"

/* Bytes that are requested ahead, even if they are more than two layers. */
#define AHEAD_BYTES  (32u << 20)
#define AHEAD_LAYERS 2u

static const struct tierce__load_lease_ops ops;

static struct tierce__own_lease *own(struct tierce__load_lease *lease)
{
    TIERCE_DASSERT(lease->ops == &ops);
    return TIERCE__CONTAINER_OF(lease, struct tierce__own_lease, base);
}

static void describe(const struct tierce__own_lease *lease, size_t i,
                     struct tierce__storage_chunk *record)
{
    tierce__view_describe(record, lease->base.view, &lease->keys, tierce__lease_shape(lease, i),
                          lease->base.leased[i].index, lease->base.hashes);
    record->key = *tierce__lease_key(lease, i); /* a sibling's is another */
    TIERCE_DASSERT(record->object_bytes == lease->base.leased[i].bytes);
}

/* Updates the caller's view of a chunk after its memory was taken or released. */
static inline void show(struct tierce__own_lease *lease, size_t i)
{
    const struct tierce__buf *buf = lease->bufs[i];
    size_t level = lease->chunks[i].level;
    TIERCE_DASSERT(i < lease->base.count);
    TIERCE_DASSERT(buf == NULL || level < lease->engine->level_count);
    TIERCE_DASSERT(buf == NULL || buf->bytes >= lease->base.leased[i].bytes);
    lease->base.leased[i].object = buf != NULL ? buf->data : NULL;
    lease->base.leased[i].here = buf != NULL && tierce__lease_waiter(lease, i) == NULL;
    lease->base.leased[i].on_device = buf != NULL && buf->on_device;
    lease->base.leased[i].origin = level < lease->engine->level_count
                                       ? lease->engine->levels[level].origin
                                       : TIERCE_ORIGIN_FAILED;
}

void tierce__lease_let_go(struct tierce__own_lease *lease, size_t i)
{
    TIERCE_DASSERT(i < lease->base.count);
    tierce__buf_release(lease->bufs[i]);
    lease->bufs[i] = NULL;
    if (lease->waiters != NULL)
        tierce__fetch_leave(&lease->waiters[i]);
    lease->base.leased[i].object = NULL;
    lease->base.leased[i].here = lease->base.leased[i].on_device = false;
}

/* `passes`: the lease passes, or may pass, through memory, so that others may wait for it. */
static void pass(struct tierce__own_lease *lease, bool passes)
{
    struct tierce_engine *engine = lease->engine;
    if (lease->passes == passes)
        return;
    lease->passes = passes;
    if (passes) {
        atomic_fetch_add(&engine->passing, 1);
        return;
    }
    TIERCE_DASSERT(atomic_load(&engine->passing) > 0);
    atomic_fetch_sub(&engine->passing, 1);
    tierce__pool_tell_room(engine->pool); /* waiters for this lease check again */
}

static void free_lease(struct tierce__own_lease *lease)
{
    for (size_t i = 0; lease->direct != NULL && lease->bufs != NULL && i < lease->base.count; i++) {
        if (lease->bufs[i] != NULL && lease->bufs[i]->on_device)
            tierce__lease_let_go(lease, i);
    }
    if (lease->bufs != NULL)
        tierce__bufs_release(lease->bufs, lease->base.count);
    for (size_t i = 0; lease->waiters != NULL && i < lease->base.count; i++)
        tierce__fetch_leave(&lease->waiters[i]);
    pass(lease, false);
    tierce__free(lease->base.leased);
    tierce__free(lease->waiters);
    tierce__free(lease->own_hashes);
    tierce__shape_fini(&lease->shapes[TIERCE__LEASED_TAIL]);
    tierce__shape_fini(&lease->shapes[TIERCE__LEASED_SIBLING]);
    tierce__keys_fini(&lease->keys);
    tierce__free(lease);
}

/* Whether the chunk's bytes come from a slower tier and may still be needed. */
static bool is_fetched(const struct tierce__own_lease *lease, size_t i)
{
    return tierce__lease_waiter(lease, i) != NULL && !lease->base.leased[i].failed;
}

static void fail(struct tierce__own_lease *lease, size_t i)
{
    TIERCE_DASSERT(i < lease->base.count);
    lease->base.leased[i].failed = true;
}

/* ---- reading ahead ---- */

static uint64_t bytes_asked(const struct tierce__own_lease *lease)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < lease->base.count; i++) {
        if (is_fetched(lease, i))
            bytes += tierce__fetch_bytes_asked(&lease->waiters[i]);
    }
    return bytes;
}

/* The segment in which the part begins, at least 1, because the header's segment is turn 0. */
static uint32_t first_segment(const struct tierce__shape *shape, const struct tierce_part *part)
{
    uint32_t first = part->first_layer > 0 ? shape->layer_segment[part->first_layer - 1] : 0;
    TIERCE_DASSERT(part->first_layer + part->layer_count <= shape->geometry.layer_count);
    TIERCE_DASSERT(first < shape->segment_count);
    return first > 0 ? first : 1;
}

/* Segments in the order of their requests: the header's segment, the segments of the part, and then
 * the segments that only a promotion requires. */
static uint32_t segment_at(const struct tierce__shape *shape, const struct tierce_part *part,
                           uint32_t turn)
{
    TIERCE_DASSERT(turn < shape->segment_count);
    TIERCE_DASSERT(part->layer_count > 0);
    uint32_t segment = turn == 0 ? 0 : first_segment(shape, part) + turn - 1;
    return segment < shape->segment_count ? segment : segment - shape->segment_count + 1;
}

/* The turn after which a layer of the part has arrived. */
static uint32_t turn_of(const struct tierce__shape *shape, const struct tierce_part *part,
                        uint32_t layer)
{
    TIERCE_DASSERT(layer < shape->geometry.layer_count);
    uint32_t segment = shape->layer_segment[layer], first = first_segment(shape, part);
    return segment < first ? 0 : segment - first + 1;
}

static void ahead(struct tierce__load_lease *base, uint32_t layer)
{
    struct tierce__own_lease *lease = own(base);
    const struct tierce__shape *full = &lease->base.view->full;
    uint32_t last = lease->part.first_layer + lease->part.layer_count - 1;
    TIERCE_DASSERT(layer >= lease->part.first_layer && layer <= last);
    uint32_t must =
        layer < last
            ? turn_of(full, &lease->part, layer + AHEAD_LAYERS < last ? layer + AHEAD_LAYERS : last)
            : full->segment_count - 1;
    if (lease->waiters == NULL)
        return;
    while (lease->next_turn < full->segment_count &&
           (lease->next_turn <= must || bytes_asked(lease) < AHEAD_BYTES)) {
        uint32_t turn = lease->next_turn++;
        for (size_t i = 0; i < lease->base.count; i++) {
            const struct tierce__shape *shape = tierce__lease_shape(lease, i);
            /* The layers of a smaller chunk are smaller, so its segments hold more layers. */
            if (is_fetched(lease, i) && turn < shape->segment_count)
                tierce__fetch_ask(&lease->waiters[i], segment_at(shape, &lease->part, turn));
        }
    }
}

/* ---- begin: where is each chunk, and a buffer for it ---- */

/* Takes a chunk's buffer from the session's pins, unless it was cleared since; pins from *next on
 * are in the order of the chain. */
static struct tierce__buf *take_pinned(struct tierce__session *session, size_t *next,
                                       const struct tierce__key *key)
{
    TIERCE_DASSERT(session == NULL || *next <= session->count);
    for (size_t i = *next; session != NULL && i < session->count; i++) {
        if (!tierce__key_equal(&session->keys[i], key))
            continue;
        struct tierce__buf *buf = session->bufs[i];
        *next = i + 1;
        if (buf != NULL && atomic_load_explicit(&buf->cleared, memory_order_relaxed))
            return NULL;
        session->bufs[i] = NULL;
        return buf;
    }
    return NULL;
}

/* Skips the pin of a chunk that is leased already. */
static void pass_pinned(const struct tierce__session *session, size_t *next,
                        const struct tierce__key *key)
{
    TIERCE_DASSERT(session == NULL || *next <= session->count);
    if (session != NULL && *next < session->count && tierce__key_equal(&session->keys[*next], key))
        ++*next;
}

/* The chunk's level; for a leased chunk it is memory. */
void tierce__lease_join(struct tierce__own_lease *lease, size_t i, struct tierce__pool *pool)
{
    struct tierce__lease_chunk *chunk = &lease->chunks[i];
    TIERCE_DASSERT(chunk->level > 0 && chunk->level < lease->engine->level_count);
    struct tierce__storage_chunk record;
    if (lease->waiters == NULL)
        lease->waiters = tierce__calloc(lease->base.count, sizeof(*lease->waiters));
    if (lease->waiters == NULL)
        return;
    TIERCE_DASSERT(lease->bufs[i] == NULL && tierce__lease_waiter(lease, i) == NULL);
    struct tierce__fetch_waiter *waiter = &lease->waiters[i];
    describe(lease, i, &record);
    waiter->deadline_ns = lease->deadline_ns;
    waiter->before = i > 0 ? lease->bufs[i - 1] : NULL;
    if (waiter->before != NULL && waiter->before->on_device)
        waiter->before = NULL;
    waiter->pool = pool;
    if (tierce__fetch_join(lease->engine, waiter, chunk->level, &record,
                           tierce__lease_shape(lease, i), &lease->bufs[i])) {
        lease->bufs[i] = waiter->buf;
        chunk->level = (uint32_t)waiter->level;
        tierce__buf_acquire(waiter->buf);
    } else {
        chunk->level = lease->bufs[i] != NULL ? 0 : chunk->level;
    }
    show(lease, i);
    TIERCE_DASSERT(chunk->level > 0 || lease->bufs[i] != NULL);
}

/* The same, into the buffer on the device if possible, else into memory. */
static void join_fetch(struct tierce__own_lease *lease, size_t i)
{
    if (!tierce__lease_join_direct(lease, i))
        tierce__lease_join(lease, i, NULL);
}

/* Without memory, a chunk that can be read waits for memory that earlier chunks release. */
static void put_off(struct tierce__own_lease *lease, size_t i)
{
    struct tierce__lease_chunk *chunk = &lease->chunks[i];
    TIERCE_DASSERT(lease->bufs[i] == NULL && tierce__lease_waiter(lease, i) == NULL);
    TIERCE_DASSERT(chunk->level > 0);
    chunk->waits = chunk->level < lease->engine->level_count;
    lease->base.is_too_large |= chunk->waits;
    if (!chunk->waits)
        fail(lease, i);
}

/* Replaces a chunk by a sibling in these tiers, or a pinned one, that has `blocks_min` blocks. */
static bool use_sibling(struct tierce__own_lease *lease, size_t i, struct tierce__session *session,
                        uint32_t levels, size_t blocks_min)
{
    struct tierce__leased *leased = &lease->base.leased[i];
    struct tierce__sibling_hit hit;
    struct tierce__sibling_want want = {.index = leased->index,
                                        .from = leased->from,
                                        .to = leased->to,
                                        .hashes = lease->base.hashes,
                                        .root = lease->base.root,
                                        .levels = levels,
                                        .pinned = session,
                                        .deadline_ns = lease->soon_ns};
    tierce__sibling_find(lease->base.view, &hit, &want);
    TIERCE_DASSERT(hit.blocks <= leased->to && hit.level < lease->engine->level_count);
    struct tierce__shape *shape = &lease->shapes[TIERCE__LEASED_SIBLING];
    TIERCE_DASSERT(blocks_min > 0);
    if (hit.blocks > 0)
        *shape = tierce__shape_of(lease->base.view, hit.block_count);
    if (hit.blocks < blocks_min || tierce__shape_cut(shape) < 0) {
        tierce__buf_release(hit.buf);
        return false;
    }
    TIERCE_DASSERT(lease->bufs[i] == NULL && leased->kind != TIERCE__LEASED_SIBLING);
    TIERCE_DASSERT(hit.block_count >= hit.blocks);
    leased->kind = TIERCE__LEASED_SIBLING;
    leased->block_count = hit.block_count;
    leased->bytes = shape->extent.object_bytes;
    leased->to = hit.blocks;
    memcpy(leased->hash, hit.key.hash, TIERCE_HASH_BYTES);
    lease->sibling_key = hit.key;
    lease->chunks[i].level = (uint32_t)hit.level;
    lease->bufs[i] = hit.buf;
    return true;
}

/* In bypass: the leading chunks that were pinned before. */
static size_t take_all_pinned(struct tierce__own_lease *lease, struct tierce__session *session)
{
    TIERCE_DASSERT(lease->mode == TIERCE_MODE_BYPASS);
    size_t n = 0, next = 0;
    while (n < lease->base.count &&
           (lease->bufs[n] = take_pinned(session, &next, tierce__lease_key(lease, n))) != NULL)
        n++;
    return n;
}

/* Leases the chunks that are in memory among the first `count` chunks. This is done before memory
 * is reserved for the others, because a reservation evicts and must not evict wanted chunks. */
static void lease_chunks(struct tierce__own_lease *lease, size_t count,
                         struct tierce__session *session)
{
    TIERCE_DASSERT(count <= lease->base.count);
    size_t next = 0;
    for (size_t i = 0; i < count; i++) {
        if (lease->bufs[i] != NULL && session == NULL)
            continue;
        const struct tierce__key *key = tierce__lease_key(lease, i);
        if (lease->bufs[i] != NULL) {
            pass_pinned(session, &next, key);
            continue;
        }
        lease->bufs[i] = take_pinned(session, &next, key);
        if (lease->bufs[i] == NULL)
            lease->bufs[i] = tierce__storage_lease(lease->engine, key);
    }
}

/* The tier that has a chunk that memory has evicted: the first slower one of the request. */
static uint32_t slower_level(const struct tierce__own_lease *lease)
{
    uint32_t level = 1;
    while (level < lease->engine->level_count && (lease->levels & 1u << level) == 0)
        level++;
    return level;
}

/* Gives each of the first `count` chunks its buffer, and the next chunk that of a sibling. */
static void place_chunks(struct tierce__own_lease *lease, size_t count,
                         struct tierce__session *session, const uint8_t *places)
{
    struct tierce_engine *engine = lease->engine;
    if (lease->mode == TIERCE_MODE_BYPASS)
        count = take_all_pinned(lease, session);
    TIERCE_DASSERT(count <= lease->base.count);
    lease_chunks(lease, count, session);
    size_t last = count - 1;
    if (count < lease->base.count && use_sibling(lease, count, session, lease->levels, 1))
        count++;
    else if (count > 0 && lease->bufs[last] == NULL)
        /* The sibling was pinned before a slower tier had the chunk: only the pin is certain. */
        (void)use_sibling(lease, last, session, 0, lease->base.leased[last].to);
    for (size_t i = 0; i < count; i++) {
        struct tierce__lease_chunk *chunk = &lease->chunks[i];
        show(lease, i);
        if (lease->bufs[i] != NULL)
            continue;
        if (lease->base.leased[i].kind != TIERCE__LEASED_SIBLING)
            chunk->level = places[i] > 0 ? places[i] : slower_level(lease);
        if (chunk->level < engine->level_count)
            join_fetch(lease, i);
        if (lease->bufs[i] == NULL)
            put_off(lease, i);
    }
    for (size_t i = count; i < lease->base.count; i++)
        fail(lease, i);
}

/* The chunks that overlap [from_block, to_block). */
static void list_chunks(struct tierce__own_lease *lease, uint64_t to_block)
{
    size_t step = lease->base.view->chunk_blocks;
    TIERCE_DASSERT(lease->base.count == 0);
    for (size_t i = lease->from_block / step; i < lease->keys.count; i++) {
        bool is_full = i < lease->keys.full_count;
        struct tierce__leased *leased = &lease->base.leased[lease->base.count++];
        leased->kind = is_full ? TIERCE__LEASED_FULL : TIERCE__LEASED_TAIL;
        const struct tierce__shape *shape = tierce__lease_shape(lease, lease->base.count - 1);
        size_t first = i * step, end = first + shape->geometry.block_count;
        leased->index = i;
        leased->block_count = shape->geometry.block_count;
        leased->bytes = shape->extent.object_bytes;
        leased->from = lease->from_block > first ? (uint32_t)(lease->from_block - first) : 0;
        leased->to = (uint32_t)((end < to_block ? end : (size_t)to_block) - first);
        TIERCE_DASSERT(leased->from <= leased->to && leased->to <= leased->block_count);
        memcpy(leased->hash, lease->keys.keys[i].hash, TIERCE_HASH_BYTES);
    }
    TIERCE_DASSERT(lease->base.count <= lease->keys.count);
}

/* Copies the required part of the caller's chain, so that the chain may change after begin. */
static int copy_sequence(struct tierce__own_lease *lease,
                         const struct tierce__load_lease_what *what)
{
    TIERCE_DASSERT(lease->base.count == 0);
    size_t blocks = lease->keys.block_count, count = lease->keys.count;
    lease->base.hash_count = blocks;
    lease->base.leased = tierce__calloc(count, sizeof(*lease->base.leased) + sizeof(*lease->bufs) +
                                                   sizeof(*lease->chunks));
    if (lease->base.leased == NULL)
        return -ENOMEM;
    lease->bufs = (struct tierce__buf **)(void *)(lease->base.leased + count);
    lease->chunks = (struct tierce__lease_chunk *)(void *)(lease->bufs + count);
    memcpy(lease->base.root, tierce_chain_root_hash(what->chain), TIERCE_HASH_BYTES);
    if (blocks == 0)
        return 0;
    lease->base.hashes = tierce_chain_hash(what->chain, 0);
    if (what->chain_stays)
        return 0;
    lease->own_hashes = tierce__alloc(blocks * TIERCE_HASH_BYTES);
    if (lease->own_hashes == NULL)
        return -ENOMEM;
    memcpy(lease->own_hashes, lease->base.hashes, blocks * TIERCE_HASH_BYTES);
    lease->base.hashes = lease->own_hashes;
    return 0;
}

/* The session's pins, which the caller takes over or shares. */
static struct tierce__session *pins_of(struct tierce__own_lease *lease,
                                       const struct tierce__load_lease_what *what)
{
    if (what->session == 0)
        return NULL;
    return what->keeps_pins ? tierce__session_share(lease->base.view, what->session)
                            : tierce__session_take(lease->base.view, what->session);
}

/* The number of leading chunks that some tier holds, from the first wanted one on; the inference
 * engine holds the chunks before it. places[i]: the level, unless the chunk is leased. */
static size_t find(struct tierce__own_lease *lease, size_t first, uint8_t *places)
{
    struct tierce__search search = {
        .levels = lease->levels, .deadline_ns = lease->soon_ns, .believes_old = true};
    if (first >= lease->keys.count || lease->mode == TIERCE_MODE_BYPASS)
        return 0;
    size_t count = lease->keys.count - first, leased = 0;
    if ((lease->levels & 1u) != 0) {
        size_t found = tierce__storage_lease_prefix(lease->engine, lease->keys.keys + first, count,
                                                    lease->bufs, UINT64_MAX, &leased);
        TIERCE_ASSERT(found == leased); /* each listed buffer has a reference */
    }
    if (leased == count)
        return count;
    search.places = places + leased;
    TIERCE_DASSERT(leased < count);
    return leased + tierce__storage_search_until(lease->engine, &search,
                                                 lease->keys.keys + first + leased, count - leased);
}

static int plan(struct tierce__own_lease *lease, const struct tierce__load_lease_what *what)
{
    int rc = tierce__keys_init(&lease->keys, lease->base.view, what->chain, what->to_block,
                               tierce_chain_blocks(what->chain), true);
    if (rc < 0)
        return rc;
    lease->ends = tierce__keys_end(lease->base.view, what->chain, what->to_block);
    lease->shapes[TIERCE__LEASED_FULL] = lease->base.view->full;
    if (lease->keys.tail_blocks > 0) {
        struct tierce__shape *tail = &lease->shapes[TIERCE__LEASED_TAIL];
        *tail = tierce__shape_of(lease->base.view, lease->keys.tail_blocks);
        rc = tierce__shape_cut(tail);
        if (rc < 0)
            return rc;
    }
    rc = copy_sequence(lease, what);
    if (rc < 0)
        return rc;
    uint8_t *places = tierce__calloc(lease->keys.count, 1);
    if (places == NULL)
        return -ENOMEM;
    list_chunks(lease, what->to_block);
    size_t found = find(lease, lease->from_block / lease->base.view->chunk_blocks, places);
    TIERCE_DASSERT(found <= lease->base.count);
    struct tierce__session *session = pins_of(lease, what);
    place_chunks(lease, found, session, places);
    tierce__session_free(session);
    tierce__free(places);
    return 0;
}

int tierce__load_lease_begin(struct tierce__load_lease **out, struct tierce_view *view,
                             const struct tierce__load_lease_what *what)
{
    TIERCE_DASSERT(what->part->layer_count > 0);
    TIERCE_DASSERT(what->from_block <= what->to_block);
    tierce__ahead_load(view, what->chain, what->session);
    struct tierce__own_lease *lease = tierce__calloc(1, sizeof(*lease));
    if (lease == NULL)
        return -ENOMEM;
    lease->base = (struct tierce__load_lease){.ops = &ops,
                                              .view = view,
                                              .over_ns = TIERCE__DEADLINE_NEVER,
                                              .memory = &view->engine->pinnings};
    lease->engine = view->engine;
    lease->part = *what->part;
    lease->session = what->session;
    lease->direct = what->direct;
    lease->follows = what->follows;
    lease->mode = tierce__engine_mode(view->engine);
    if (lease->mode != TIERCE_MODE_BYPASS)
        lease->levels = tierce__levels_of(view->engine, what->tiers);
    lease->from_block = (size_t)what->from_block;
    lease->block_count = (size_t)(what->to_block - what->from_block);
    lease->deadline_ns = tierce__deadline_in_ms(
        what->timeout_ms > 0 ? what->timeout_ms : view->engine->settings.load_ms);
    uint32_t soon_ms = view->engine->settings.lookup_ms;
    lease->soon_ns = tierce__deadline_in_ms(
        what->wait_ms > 0 && what->wait_ms < soon_ms ? what->wait_ms : soon_ms);
    if (lease->soon_ns > lease->deadline_ns)
        lease->soon_ns = lease->deadline_ns;
    TIERCE_DASSERT(lease->soon_ns <= lease->deadline_ns);
    pass(lease, true); /* before it takes memory, so that a waiting lease does not fail */
    int rc = plan(lease, what);
    if (rc < 0) {
        free_lease(lease);
        return rc;
    }
    pass(lease, lease->base.is_too_large);
    ahead(&lease->base, lease->part.first_layer);
    *out = &lease->base;
    return 0;
}

/* ---- presence and faults of chunks ---- */

bool tierce__lease_wait(struct tierce__own_lease *lease, size_t i, uint32_t layer)
{
    const struct tierce__shape *shape = tierce__lease_shape(lease, i);
    struct tierce__fetch_waiter *waiter = &lease->waiters[i];
    uint32_t first = lease->part.first_layer, last = shape->layer_segment[layer];
    TIERCE_DASSERT(layer >= first && layer < first + lease->part.layer_count);
    if (!tierce__fetch_wait(waiter, last))
        return false;
    if (layer > first)
        return true;
    /* The segments of earlier layers contain the header and the beginning of this layer. */
    uint32_t before = first > 0 ? shape->layer_segment[first - 1] : 0;
    return (last == 0 || tierce__fetch_wait(waiter, 0)) &&
           (before == 0 || before == last || tierce__fetch_wait(waiter, before));
}

static bool wait_chunk(struct tierce__load_lease *base, size_t i, uint32_t layer)
{
    struct tierce__own_lease *lease = own(base);
    TIERCE_DASSERT(i < lease->base.count);
    bool there = !lease->base.leased[i].failed && lease->bufs[i] != NULL;
    if (there && lease->bufs[i]->on_device)
        there = tierce__lease_wait_direct(lease, i, layer);
    else if (there && tierce__lease_waiter(lease, i) != NULL)
        there =
            tierce__lease_wait(lease, i, layer) || tierce__lease_read_elsewhere(lease, i, layer);
    if (!there)
        fail(lease, i);
    return there;
}

uint32_t tierce__load_lease_ready(struct tierce__load_lease *base, uint32_t layer)
{
    const struct tierce__own_lease *lease = own(base);
    uint32_t end = lease->part.first_layer + lease->part.layer_count;
    TIERCE_DASSERT(layer >= lease->part.first_layer && layer < end);
    for (size_t i = 0; i < lease->base.count; i++) {
        const struct tierce__shape *shape = tierce__lease_shape(lease, i);
        uint32_t ready = layer;
        if (!is_fetched(lease, i))
            continue;
        while (ready < end && shape->layer_segment[ready] <= shape->layer_segment[layer])
            ready++;
        end = ready < end ? ready : end;
    }
    TIERCE_DASSERT(end > layer);
    return end;
}

/* Whether a chunk's bytes came without memory. If they are wrong, perhaps the chunk is right. */
static bool is_on_device(const struct tierce__own_lease *lease, size_t i)
{
    return lease->bufs[i] != NULL && lease->bufs[i]->on_device;
}

/* Several loads may have leased a wrong chunk in memory. The first that finds it wrong counts and
 * removes it; a second removal could hit the chunk that was stored in its place. */
static bool condemns_first(const struct tierce__own_lease *lease, size_t i)
{
    TIERCE_DASSERT(lease->bufs[i] != NULL && tierce__lease_waiter(lease, i) == NULL);
    return !atomic_exchange_explicit(&lease->bufs[i]->condemned, true, memory_order_relaxed);
}

static void refuse(struct tierce__load_lease *base, size_t i, int why)
{
    struct tierce__own_lease *lease = own(base);
    TIERCE_DASSERT(why < 0 && i < lease->base.count);
    struct tierce__fetch_waiter *waiter = tierce__lease_waiter(lease, i);
    fail(lease, i);
    if (why != TIERCE_E_VERSION && is_on_device(lease, i))
        tierce__direct_distrust(&lease->engine->direct);
    else if (waiter != NULL)
        tierce__fetch_refuse(waiter, why);
    else if (condemns_first(lease, i))
        tierce__storage_quarantine(lease->engine, 0, tierce__lease_key(lease, i), why);
}

/* If a chunk in memory came from a slower tier, the copy there may be bad too. */
static void spoil(struct tierce__load_lease *base, size_t i)
{
    struct tierce__own_lease *lease = own(base);
    TIERCE_DASSERT(i < lease->base.count);
    struct tierce__fetch_waiter *waiter = tierce__lease_waiter(lease, i);
    const struct tierce__key *key = tierce__lease_key(lease, i);
    if (lease->chunks[i].spoiled)
        return;
    lease->chunks[i].spoiled = true;
    if (is_on_device(lease, i)) {
        tierce__direct_distrust(&lease->engine->direct);
    } else if (waiter != NULL) {
        tierce__fetch_spoil(waiter);
    } else if (condemns_first(lease, i)) {
        uint32_t source = lease->bufs[i]->source;
        if (source > 0) /* first, because otherwise it would be read from there again */
            tierce__storage_quarantine(lease->engine, source, key, TIERCE_E_CHECKSUM);
        tierce__storage_quarantine(lease->engine, 0, key, TIERCE_E_CHECKSUM);
    }
}

/* Whether the object is the leased chunk, according to its header. */
static int check(const struct tierce__own_lease *lease, size_t i, struct tierce__chunk_info *got)
{
    const struct tierce__leased *leased = &lease->base.leased[i];
    int rc = tierce__chunk_parse(got, leased->object,
                                 tierce__lease_shape(lease, i)->extent.header_bytes);
    if (rc < 0)
        return rc;
    bool same = memcmp(got->hash, leased->hash, TIERCE_HASH_BYTES) == 0 &&
                memcmp(got->ns_digest, lease->base.view->ns_digest, TIERCE_HASH_BYTES) == 0 &&
                memcmp(&got->shard, &lease->base.view->key.shard, sizeof(got->shard)) == 0 &&
                got->extent.object_bytes == leased->bytes;
    return same ? 0 : TIERCE_E_IDENTITY;
}

void tierce__load_lease_look(struct tierce__load_lease *base, size_t i, bool cells_are_bad)
{
    struct tierce__own_lease *lease = own(base);
    TIERCE_DASSERT(i < lease->base.count);
    const struct tierce__leased *leased = &lease->base.leased[i];
    struct tierce__chunk_info got;
    if (leased->failed || leased->object == NULL)
        return;
    int rc = check(lease, i, &got);
    if (rc < 0)
        refuse(base, i, rc);
    else if (cells_are_bad &&
             (!leased->here || tierce__chunk_verify_cells(leased->object, &got) > 0))
        spoil(base, i);
}

void tierce__load_lease_skip(struct tierce__load_lease *base, size_t i)
{
    struct tierce__own_lease *lease = own(base);
    fail(lease, i);
    TIERCE_DASSERT(i < lease->base.count);
}

/* Promotes chunks that arrived completely from a slower tier to memory. */
static void promote(struct tierce__own_lease *lease, size_t i)
{
    if (!is_fetched(lease, i) || lease->chunks[i].spoiled || lease->mode != TIERCE_MODE_NORMAL)
        return;
    struct tierce__storage_chunk record;
    describe(lease, i, &record);
    tierce__fetch_promote(&lease->waiters[i], &record);
}

/* ---- more than fits into memory ---- */

/* Takes memory for a chunk that waits; if necessary from the last later chunk that holds memory,
 * which then waits instead. */
static bool take_memory(struct tierce__own_lease *lease, size_t i)
{
    size_t last = lease->base.count;
    TIERCE_DASSERT(i < last);
    join_fetch(lease, i);
    while (lease->bufs[i] == NULL && --last > i) {
        struct tierce__lease_chunk *other = &lease->chunks[last];
        if (lease->bufs[last] == NULL)
            continue;
        tierce__lease_let_go(lease, last);
        other->level = other->level > 0 ? other->level : slower_level(lease);
        put_off(lease, last);
        join_fetch(lease, i);
    }
    return lease->bufs[i] != NULL;
}

/* The same for memory that other leases release, as long as another lease passes through memory. */
static bool wait_for_memory(struct tierce__own_lease *lease, size_t i)
{
    TIERCE_DASSERT(lease->base.is_too_large);
    struct tierce_engine *engine = lease->engine;
    struct tierce__pool_turn turn;
    pass(lease, false); /* two waiting leases do not wait for each other */
    tierce__pool_turn_begin(engine->pool, &turn);
    while (lease->bufs[i] == NULL && atomic_load(&engine->passing) > 0 &&
           tierce__pool_turn_wait(&turn, lease->deadline_ns))
        join_fetch(lease, i);
    if (lease->bufs[i] == NULL) /* memory that the last lease has released since */
        join_fetch(lease, i);
    tierce__pool_turn_end(&turn);
    return lease->bufs[i] != NULL;
}

static void ask_all(struct tierce__own_lease *lease, size_t i)
{
    for (uint32_t s = 0; is_fetched(lease, i) && s < tierce__lease_shape(lease, i)->segment_count;
         s++)
        tierce__fetch_ask(&lease->waiters[i], s);
}

/* The next chunk is read at the same time, if memory can hold both. */
static bool take(struct tierce__load_lease *base, size_t i)
{
    struct tierce__own_lease *lease = own(base);
    bool has_next = i + 1 < lease->base.count;
    TIERCE_DASSERT(i < lease->base.count);
    TIERCE_DASSERT(lease->base.is_too_large);
    if (lease->base.leased[i].failed)
        return false;
    if (lease->bufs[i] == NULL && !take_memory(lease, i) && !wait_for_memory(lease, i)) {
        fail(lease, i);
        return false;
    }
    pass(lease, true);
    ask_all(lease, i);
    if (has_next && lease->chunks[i + 1].waits && lease->bufs[i + 1] == NULL)
        join_fetch(lease, i + 1);
    if (has_next)
        ask_all(lease, i + 1);
    return true;
}

static void give_back(struct tierce__load_lease *base, size_t i)
{
    struct tierce__own_lease *lease = own(base);
    TIERCE_DASSERT(i < lease->base.count);
    TIERCE_DASSERT(lease->base.is_too_large);
    promote(lease, i);
    tierce__lease_let_go(lease, i);
    while (++i < lease->base.count && lease->base.leased[i].failed)
        ;
    if (i >= lease->base.count)
        pass(lease, false);
}

/* ---- end: report ---- */

static void report(struct tierce__own_lease *lease, const uint32_t *blocks)
{
    struct tierce_engine *engine = lease->engine;
    size_t loaded = 0, count = lease->keys.count;
    for (size_t i = 0; i < lease->base.count; i++) {
        const struct tierce__leased *leased = &lease->base.leased[i];
        TIERCE_DASSERT(blocks[i] <= leased->to - leased->from);
        if (!leased->failed)
            tierce__load_lease_count(lease->base.view, leased, blocks[i]);
        if (lease->chunks[i].was_direct && blocks[i] > 0)
            atomic_fetch_add_explicit(&engine->direct.chunks, 1, memory_order_relaxed);
        promote(lease, i);
        if (leased->kind == TIERCE__LEASED_SIBLING) /* first, so that its prefix is newer */
            tierce__storage_touch(
                engine, 0, engine->level_count,
                &(struct tierce__tier_uses){.keys = tierce__lease_key(lease, i), .count = 1});
        loaded += blocks[i];
    }
    TIERCE_DASSERT(loaded <= lease->block_count);
    tierce__count(engine, TIERCE__STAT_blocks_failed, (int64_t)(lease->block_count - loaded));
    struct tierce__tier_uses uses = {
        .keys = lease->keys.keys, .count = count, .origin = {.ends = lease->ends}};
    uses.used = tierce__session_use(lease->base.view, lease->session, &lease->keys, count,
                                    &uses.origin.hint);
    tierce__storage_touch(engine, 0, engine->level_count, &uses);
}

static void end_lease(struct tierce__load_lease *base, const uint32_t *blocks)
{
    struct tierce__own_lease *lease = own(base);
    if (blocks != NULL)
        report(lease, blocks);
    free_lease(lease);
}

static const struct tierce__load_lease_ops ops = {
    .ahead = ahead,
    .wait = wait_chunk,
    .refuse = refuse,
    .spoil = spoil,
    .take = take,
    .give_back = give_back,
    .end = end_lease,
};
