/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leases of a load: leases the chunks in memory, joins a fetch for each other chunk, requests
 * its segments ahead of the wanted layer, and promotes chunks that came from slower tiers.
 *
 * The first missing chunk may be replaced by a sibling (sibling.h), whose common leading blocks are
 * lent.
 */
#include "engine/load/loan.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/view.h"
#include "engine/own_tiers.h"
#include "engine/observe/operate.h"
#include "engine/load/sibling.h"

/* Bytes that are asked for ahead even if that is more than two layers. */
#define AHEAD_BYTES  (32u << 20)
#define AHEAD_LAYERS 2u

struct loan_chunk {
    uint32_t level; /* 0: leased in memory; else where it is read from */
    bool waits;     /* there was no memory for it at begin */
    bool spoiled;   /* a cell did not verify */
};

static const struct tierce__loan_ops ops;

struct own_loan {
    struct tierce__loan base;
    struct tierce_engine *engine;
    struct tierce_part part;
    uint64_t deadline_ns;
    uint64_t soon_ns; /* until then begin may wait */
    uint64_t session;
    enum tierce_mode mode; /* in which it began */
    uint32_t levels;       /* a bit for each that it may read from; none in bypass */
    uint32_t next_turn;    /* read-ahead: the first turn not yet requested, for all chunks */
    bool passes;           /* counted in engine->passing */
    size_t from_block, block_count;
    struct tierce__buf **bufs; /* [count] NULL: the chunk has failed, waits or is through */
    struct loan_chunk *chunks; /* [count]; base.lent, bufs and chunks are one allocation */
    struct tierce__fetch_waiter
        *waiters;        /* [count] of what is read, or NULL as long as nothing is */
    uint8_t *own_hashes; /* base.hashes, or NULL: they are the chain's */
    struct tierce__shape tail_shape;
    struct tierce__shape sibling_shape;
    struct tierce__key sibling_key;
    struct tierce__keys keys;
};

static struct own_loan *own(struct tierce__loan *loan)
{
    TIERCE_DASSERT(loan->ops == &ops);
    return TIERCE__CONTAINER_OF(loan, struct own_loan, base);
}

static const struct tierce__shape *shape_of(const struct own_loan *loan, size_t i)
{
    TIERCE_DASSERT(i < loan->base.count);
    switch (loan->base.lent[i].kind) {
    case TIERCE__LENT_FULL:
        return &loan->base.view->full;
    case TIERCE__LENT_TAIL:
        return &loan->tail_shape;
    case TIERCE__LENT_SIBLING:
        return &loan->sibling_shape;
    }
    return NULL;
}

static const struct tierce__key *key_of(const struct own_loan *loan, size_t i)
{
    const struct tierce__lent *lent = &loan->base.lent[i];
    TIERCE_DASSERT(i < loan->base.count && lent->index < loan->keys.count);
    return lent->kind == TIERCE__LENT_SIBLING ? &loan->sibling_key : &loan->keys.keys[lent->index];
}

/* NULL: the chunk is not read from a slower tier. */
static struct tierce__fetch_waiter *waiter_of(const struct own_loan *loan, size_t i)
{
    TIERCE_DASSERT(i < loan->base.count);
    bool is_taken = loan->waiters != NULL && loan->waiters[i].fetch != NULL;
    return is_taken ? &loan->waiters[i] : NULL;
}

static void describe(const struct own_loan *loan, size_t i, struct tierce__storage_chunk *record)
{
    tierce__view_describe(record, loan->base.view, &loan->keys, shape_of(loan, i),
                          loan->base.lent[i].index, loan->base.hashes);
    record->key = *key_of(loan, i); /* a sibling's is another */
}

/* Updates the caller's view of a chunk after its memory was taken or released. */
static inline void show(struct own_loan *loan, size_t i)
{
    const struct tierce__buf *buf = loan->bufs[i];
    size_t level = loan->chunks[i].level;
    TIERCE_DASSERT(buf == NULL || level < loan->engine->level_count);
    loan->base.lent[i].object = buf != NULL ? buf->data : NULL;
    loan->base.lent[i].here = buf != NULL && waiter_of(loan, i) == NULL;
    loan->base.lent[i].origin = level < loan->engine->level_count
                                    ? loan->engine->levels[level].origin
                                    : TIERCE_ORIGIN_FAILED;
}

static void let_go(struct own_loan *loan, size_t i)
{
    TIERCE_DASSERT(i < loan->base.count);
    tierce__buf_release(loan->bufs[i]);
    loan->bufs[i] = NULL;
    if (loan->waiters != NULL)
        tierce__fetch_leave(&loan->waiters[i]);
    loan->base.lent[i].object = NULL;
    loan->base.lent[i].here = false;
}

/* Whether it goes through its chunks, or perhaps will, so that others may wait for what it gives
 * back. */
static void pass(struct own_loan *loan, bool passes)
{
    struct tierce_engine *engine = loan->engine;
    if (loan->passes == passes)
        return;
    loan->passes = passes;
    if (passes) {
        atomic_fetch_add(&engine->passing, 1);
        return;
    }
    TIERCE_DASSERT(atomic_load(&engine->passing) > 0);
    atomic_fetch_sub(&engine->passing, 1);
    tierce__pool_tell_room(engine->pool); /* who waits for the last one that passes looks again */
}

static void free_loan(struct own_loan *loan)
{
    if (loan->bufs != NULL)
        tierce__bufs_release(loan->bufs, loan->base.count);
    for (size_t i = 0; loan->waiters != NULL && i < loan->base.count; i++)
        tierce__fetch_leave(&loan->waiters[i]);
    pass(loan, false);
    tierce__free(loan->base.lent);
    tierce__free(loan->waiters);
    tierce__free(loan->own_hashes);
    tierce__shape_fini(&loan->tail_shape);
    tierce__shape_fini(&loan->sibling_shape);
    tierce__keys_fini(&loan->keys);
    tierce__free(loan);
}

/* Whether the chunk's bytes come from a slower tier and may be needed still. */
static bool is_fetched(const struct own_loan *loan, size_t i)
{
    return waiter_of(loan, i) != NULL && !loan->base.lent[i].failed;
}

static void fail(struct own_loan *loan, size_t i)
{
    TIERCE_DASSERT(i < loan->base.count);
    loan->base.lent[i].failed = true;
}

/* ---- reading ahead ---- */

static uint64_t bytes_asked(const struct own_loan *loan)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < loan->base.count; i++) {
        if (is_fetched(loan, i))
            bytes += tierce__fetch_bytes_asked(&loan->waiters[i]);
    }
    return bytes;
}

/* The segment in which the part begins, and 1 at least: that of the header is turn 0. */
static uint32_t first_segment(const struct tierce__shape *shape, const struct tierce_part *part)
{
    uint32_t first = part->first_layer > 0 ? shape->layer_segment[part->first_layer - 1] : 0;
    TIERCE_DASSERT(first < shape->segment_count);
    return first > 0 ? first : 1;
}

/* Segments in the order in which they are asked for: the header's, those of the part, and then
 * those that only a promotion needs. */
static uint32_t segment_at(const struct tierce__shape *shape, const struct tierce_part *part,
                           uint32_t turn)
{
    TIERCE_DASSERT(turn < shape->segment_count);
    uint32_t segment = turn == 0 ? 0 : first_segment(shape, part) + turn - 1;
    return segment < shape->segment_count ? segment : segment - shape->segment_count + 1;
}

/* The turn by which a layer of the part is there. */
static uint32_t turn_of(const struct tierce__shape *shape, const struct tierce_part *part,
                        uint32_t layer)
{
    TIERCE_DASSERT(layer < shape->geometry.layer_count);
    uint32_t segment = shape->layer_segment[layer], first = first_segment(shape, part);
    return segment < first ? 0 : segment - first + 1;
}

static void ahead(struct tierce__loan *base, uint32_t layer)
{
    struct own_loan *loan = own(base);
    const struct tierce__shape *full = &loan->base.view->full;
    uint32_t last = loan->part.first_layer + loan->part.layer_count - 1;
    uint32_t must =
        layer < last
            ? turn_of(full, &loan->part, layer + AHEAD_LAYERS < last ? layer + AHEAD_LAYERS : last)
            : full->segment_count - 1;
    if (loan->waiters == NULL)
        return;
    while (loan->next_turn < full->segment_count &&
           (loan->next_turn <= must || bytes_asked(loan) < AHEAD_BYTES)) {
        uint32_t turn = loan->next_turn++;
        for (size_t i = 0; i < loan->base.count; i++) {
            const struct tierce__shape *shape = shape_of(loan, i);
            /* The layers of a smaller chunk are, so that its segments hold more of them. */
            if (is_fetched(loan, i) && turn < shape->segment_count)
                tierce__fetch_ask(&loan->waiters[i], segment_at(shape, &loan->part, turn));
        }
    }
}

/* ---- begin: where is each chunk, and a buffer for it ---- */

/* Takes a chunk's buffer out of the session's pins, if it is among those from *next on: pins are in
 * the order of the chain, as chunks are. */
static struct tierce__buf *take_pinned(struct tierce__session *session, size_t *next,
                                       const struct tierce__key *key)
{
    TIERCE_DASSERT(session == NULL || *next <= session->count);
    for (size_t i = *next; session != NULL && i < session->count; i++) {
        if (!tierce__key_equal(&session->keys[i], key))
            continue;
        struct tierce__buf *buf = session->bufs[i];
        session->bufs[i] = NULL;
        *next = i + 1;
        return buf;
    }
    return NULL;
}

/* Skips the pin of a chunk that is leased already. */
static void pass_pinned(const struct tierce__session *session, size_t *next,
                        const struct tierce__key *key)
{
    if (session != NULL && *next < session->count && tierce__key_equal(&session->keys[*next], key))
        ++*next;
}

/* From its level; with a lease, that is memory. */
static void join_fetch(struct own_loan *loan, size_t i)
{
    struct loan_chunk *chunk = &loan->chunks[i];
    TIERCE_DASSERT(chunk->level > 0 && chunk->level < loan->engine->level_count);
    struct tierce__storage_chunk record;
    if (loan->waiters == NULL)
        loan->waiters = tierce__calloc(loan->base.count, sizeof(*loan->waiters));
    if (loan->waiters == NULL)
        return;
    struct tierce__fetch_waiter *waiter = &loan->waiters[i];
    describe(loan, i, &record);
    waiter->deadline_ns = loan->deadline_ns;
    waiter->before = i > 0 ? loan->bufs[i - 1] : NULL;
    if (tierce__fetch_join(loan->engine, waiter, chunk->level, &record, shape_of(loan, i),
                           &loan->bufs[i])) {
        loan->bufs[i] = waiter->buf;
        chunk->level = (uint32_t)waiter->level;
        tierce__buf_acquire(waiter->buf);
    } else {
        chunk->level = loan->bufs[i] != NULL ? 0 : chunk->level;
    }
    show(loan, i);
}

/* There is no memory: the chunk, if it can be read, waits for memory that earlier chunks
 * release. */
static void put_off(struct own_loan *loan, size_t i)
{
    struct loan_chunk *chunk = &loan->chunks[i];
    chunk->waits = chunk->level < loan->engine->level_count;
    loan->base.is_too_large |= chunk->waits;
    if (!chunk->waits)
        fail(loan, i);
}

/* Replaces a chunk by a sibling in these tiers, or a pinned one, if it has at least so many of its
 * blocks. */
static bool use_sibling(struct own_loan *loan, size_t i, struct tierce__session *session,
                        uint32_t levels, size_t blocks_min)
{
    struct tierce__lent *lent = &loan->base.lent[i];
    struct tierce__sibling_hit hit;
    struct tierce__sibling_want want = {.index = lent->index,
                                        .from = lent->from,
                                        .to = lent->to,
                                        .hashes = loan->base.hashes,
                                        .root = loan->base.root,
                                        .levels = levels,
                                        .pinned = session,
                                        .deadline_ns = loan->soon_ns};
    tierce__sibling_find(loan->base.view, &hit, &want);
    TIERCE_DASSERT(hit.blocks <= lent->to && hit.level < loan->engine->level_count);
    if (hit.blocks < blocks_min ||
        tierce__shape_init(&loan->sibling_shape, loan->base.view, hit.block_count) < 0) {
        tierce__buf_release(hit.buf);
        return false;
    }
    lent->kind = TIERCE__LENT_SIBLING;
    lent->block_count = hit.block_count;
    lent->bytes = loan->sibling_shape.extent.object_bytes;
    lent->to = hit.blocks;
    memcpy(lent->hash, hit.key.hash, TIERCE_HASH_BYTES);
    loan->sibling_key = hit.key;
    loan->chunks[i].level = (uint32_t)hit.level;
    loan->bufs[i] = hit.buf;
    return true;
}

/* In bypass: the leading chunks that were pinned before. */
static size_t take_all_pinned(struct own_loan *loan, struct tierce__session *session)
{
    size_t n = 0, next = 0;
    while (n < loan->base.count &&
           (loan->bufs[n] = take_pinned(session, &next, key_of(loan, n))) != NULL)
        n++;
    return n;
}

/* Leases those of the first `count` chunks that are in memory. This comes before room is reserved
 * for the others, because a reservation evicts and must not evict wanted chunks. */
static void lease_chunks(struct own_loan *loan, size_t count, struct tierce__session *session)
{
    TIERCE_DASSERT(count <= loan->base.count);
    size_t next = 0;
    for (size_t i = 0; i < count; i++) {
        if (loan->bufs[i] != NULL && session == NULL)
            continue;
        const struct tierce__key *key = key_of(loan, i);
        if (loan->bufs[i] != NULL) {
            pass_pinned(session, &next, key);
            continue;
        }
        loan->bufs[i] = take_pinned(session, &next, key);
        if (loan->bufs[i] == NULL)
            loan->bufs[i] = tierce__storage_lease(loan->engine, key);
    }
}

/* Where a chunk is asked for that memory had a moment ago: in the first slower tier that the
 * request wishes to be searched, or in none. */
static uint32_t slower_level(const struct own_loan *loan)
{
    uint32_t level = 1;
    while (level < loan->engine->level_count && (loan->levels & 1u << level) == 0)
        level++;
    return level;
}

/* Gives each of the first `count` chunks its buffer, and the one behind them, if it is wanted, that
 * of a sibling. */
static void place_chunks(struct own_loan *loan, size_t count, struct tierce__session *session,
                         const uint8_t *places)
{
    struct tierce_engine *engine = loan->engine;
    if (loan->mode == TIERCE_MODE_BYPASS)
        count = take_all_pinned(loan, session);
    lease_chunks(loan, count, session);
    size_t last = count - 1;
    if (count < loan->base.count && use_sibling(loan, count, session, loan->levels, 1))
        count++;
    else if (count > 0 && loan->bufs[last] == NULL)
        /* A sibling was pinned before a slower tier got the chunk itself: only the sibling is
         * certain to be available. */
        (void)use_sibling(loan, last, session, 0, loan->base.lent[last].to);
    for (size_t i = 0; i < count; i++) {
        struct loan_chunk *chunk = &loan->chunks[i];
        show(loan, i);
        if (loan->bufs[i] != NULL)
            continue;
        if (loan->base.lent[i].kind != TIERCE__LENT_SIBLING)
            chunk->level = places[i] > 0 ? places[i] : slower_level(loan);
        if (chunk->level < engine->level_count)
            join_fetch(loan, i);
        if (loan->bufs[i] == NULL)
            put_off(loan, i);
    }
    for (size_t i = count; i < loan->base.count; i++)
        fail(loan, i);
}

/* The chunks that overlap [from_block, to_block). */
static void list_chunks(struct own_loan *loan, uint64_t to_block)
{
    size_t step = loan->base.view->chunk_blocks;
    for (size_t i = loan->from_block / step; i < loan->keys.count; i++) {
        bool is_full = i < loan->keys.full_count;
        const struct tierce__shape *shape = is_full ? &loan->base.view->full : &loan->tail_shape;
        struct tierce__lent *lent = &loan->base.lent[loan->base.count++];
        size_t first = i * step, end = first + shape->geometry.block_count;
        lent->index = i;
        lent->kind = is_full ? TIERCE__LENT_FULL : TIERCE__LENT_TAIL;
        lent->block_count = shape->geometry.block_count;
        lent->bytes = shape->extent.object_bytes;
        lent->from = loan->from_block > first ? (uint32_t)(loan->from_block - first) : 0;
        lent->to = (uint32_t)((end < to_block ? end : (size_t)to_block) - first);
        TIERCE_DASSERT(lent->from <= lent->to && lent->to <= lent->block_count);
        memcpy(lent->hash, loan->keys.keys[i].hash, TIERCE_HASH_BYTES);
    }
    TIERCE_DASSERT(loan->base.count <= loan->keys.count);
}

/* Copies what the loan needs of the caller's chain, so that it may change after begin. */
static int copy_sequence(struct own_loan *loan, const struct tierce__loan_what *what)
{
    size_t blocks = loan->keys.block_count, count = loan->keys.count;
    loan->base.hash_count = blocks;
    loan->base.lent = tierce__calloc(count, sizeof(*loan->base.lent) + sizeof(*loan->bufs) +
                                                sizeof(*loan->chunks));
    if (loan->base.lent == NULL)
        return -ENOMEM;
    loan->bufs = (struct tierce__buf **)(void *)(loan->base.lent + count);
    loan->chunks = (struct loan_chunk *)(void *)(loan->bufs + count);
    memcpy(loan->base.root, tierce_chain_root_hash(what->chain), TIERCE_HASH_BYTES);
    if (blocks == 0)
        return 0;
    loan->base.hashes = tierce_chain_hash(what->chain, 0);
    if (what->chain_stays)
        return 0;
    loan->own_hashes = tierce__alloc(blocks * TIERCE_HASH_BYTES);
    if (loan->own_hashes == NULL)
        return -ENOMEM;
    memcpy(loan->own_hashes, loan->base.hashes, blocks * TIERCE_HASH_BYTES);
    loan->base.hashes = loan->own_hashes;
    return 0;
}

/* The session's pins, which become the caller's, or which he shares. */
static struct tierce__session *pins_of(struct own_loan *loan, const struct tierce__loan_what *what)
{
    if (what->session == 0)
        return NULL;
    return what->keeps_pins ? tierce__session_share(loan->base.view, what->session)
                            : tierce__session_take(loan->base.view, what->session);
}

/* The number of leading chunks that some tier holds, from the first wanted one on; the inference
 * engine holds the chunks before it. places[i]: the level, unless the chunk is leased. */
static size_t find(struct own_loan *loan, size_t first, uint8_t *places)
{
    struct tierce__search search = {
        .levels = loan->levels, .deadline_ns = loan->soon_ns, .believes_old = true};
    if (first >= loan->keys.count || loan->mode == TIERCE_MODE_BYPASS)
        return 0;
    size_t count = loan->keys.count - first, leased = 0;
    if ((loan->levels & 1u) != 0) {
        size_t found = tierce__storage_lease_prefix(loan->engine, loan->keys.keys + first, count,
                                                    loan->bufs, UINT64_MAX, &leased);
        TIERCE_ASSERT(found == leased); /* of each buffer that is named there is a reference */
    }
    if (leased == count)
        return count;
    search.places = places + leased;
    return leased + tierce__storage_search_until(loan->engine, &search,
                                                 loan->keys.keys + first + leased, count - leased);
}

static int plan(struct own_loan *loan, const struct tierce__loan_what *what)
{
    int rc = tierce__keys_init(&loan->keys, loan->base.view, what->chain, what->to_block,
                               tierce_chain_blocks(what->chain), true);
    if (rc < 0)
        return rc;
    if (loan->keys.tail_blocks > 0) {
        rc = tierce__shape_init(&loan->tail_shape, loan->base.view, loan->keys.tail_blocks);
        if (rc < 0)
            return rc;
    }
    rc = copy_sequence(loan, what);
    if (rc < 0)
        return rc;
    uint8_t *places = tierce__calloc(loan->keys.count, 1);
    if (places == NULL)
        return -ENOMEM;
    list_chunks(loan, what->to_block);
    size_t found = find(loan, loan->from_block / loan->base.view->chunk_blocks, places);
    struct tierce__session *session = pins_of(loan, what);
    place_chunks(loan, found, session, places);
    tierce__session_free(session);
    tierce__free(places);
    return 0;
}

int tierce__loan_begin(struct tierce__loan **out, struct tierce_view *view,
                       const struct tierce__loan_what *what)
{
    struct own_loan *loan = tierce__calloc(1, sizeof(*loan));
    if (loan == NULL)
        return -ENOMEM;
    loan->base =
        (struct tierce__loan){.ops = &ops, .view = view, .over_ns = TIERCE__DEADLINE_NEVER};
    loan->engine = view->engine;
    loan->part = *what->part;
    loan->session = what->session;
    loan->mode = tierce__engine_mode(view->engine);
    if (loan->mode != TIERCE_MODE_BYPASS)
        loan->levels = tierce__levels_of(view->engine, what->tiers);
    loan->from_block = (size_t)what->from_block;
    loan->block_count = (size_t)(what->to_block - what->from_block);
    loan->deadline_ns = tierce__deadline_in_ms(
        what->timeout_ms > 0 ? what->timeout_ms : view->engine->settings.load_ms);
    uint32_t soon_ms = view->engine->settings.lookup_ms;
    loan->soon_ns = tierce__deadline_in_ms(
        what->wait_ms > 0 && what->wait_ms < soon_ms ? what->wait_ms : soon_ms);
    if (loan->soon_ns > loan->deadline_ns)
        loan->soon_ns = loan->deadline_ns;
    pass(loan, true); /* before it takes memory: a loan that waits must not give up meanwhile */
    int rc = plan(loan, what);
    if (rc < 0) {
        free_loan(loan);
        return rc;
    }
    pass(loan, loan->base.is_too_large);
    ahead(&loan->base, loan->part.first_layer);
    *out = &loan->base;
    return 0;
}

/* ---- presence and faults of chunks ---- */

static bool wait_for(struct own_loan *loan, size_t i, uint32_t layer)
{
    const struct tierce__shape *shape = shape_of(loan, i);
    struct tierce__fetch_waiter *waiter = &loan->waiters[i];
    uint32_t first = loan->part.first_layer, last = shape->layer_segment[layer];
    if (!tierce__fetch_wait(waiter, last))
        return false;
    if (layer > first)
        return true;
    /* The segments of earlier layers contain the header and the beginning of this layer. */
    uint32_t before = first > 0 ? shape->layer_segment[first - 1] : 0;
    return (last == 0 || tierce__fetch_wait(waiter, 0)) &&
           (before == 0 || before == last || tierce__fetch_wait(waiter, before));
}

static bool wait_chunk(struct tierce__loan *base, size_t i, uint32_t layer)
{
    struct own_loan *loan = own(base);
    TIERCE_DASSERT(i < loan->base.count);
    bool there = !loan->base.lent[i].failed && loan->bufs[i] != NULL;
    if (there && waiter_of(loan, i) != NULL)
        there = wait_for(loan, i, layer);
    if (!there)
        fail(loan, i);
    return there;
}

uint32_t tierce__loan_ready(struct tierce__loan *base, uint32_t layer)
{
    const struct own_loan *loan = own(base);
    uint32_t end = loan->part.first_layer + loan->part.layer_count;
    for (size_t i = 0; i < loan->base.count; i++) {
        const struct tierce__shape *shape = shape_of(loan, i);
        uint32_t ready = layer;
        if (!is_fetched(loan, i))
            continue;
        while (ready < end && shape->layer_segment[ready] <= shape->layer_segment[layer])
            ready++;
        end = ready < end ? ready : end;
    }
    return end;
}

static void refuse(struct tierce__loan *base, size_t i, int why)
{
    struct own_loan *loan = own(base);
    TIERCE_DASSERT(why < 0 && i < loan->base.count);
    struct tierce__fetch_waiter *waiter = waiter_of(loan, i);
    fail(loan, i);
    if (waiter != NULL)
        tierce__fetch_refuse(waiter, why);
    else
        tierce__storage_quarantine(loan->engine, 0, key_of(loan, i), why);
}

/* If a chunk in memory came from a slower tier, the copy there may be bad too. */
static void spoil(struct tierce__loan *base, size_t i)
{
    struct own_loan *loan = own(base);
    TIERCE_DASSERT(i < loan->base.count);
    struct tierce__fetch_waiter *waiter = waiter_of(loan, i);
    const struct tierce__key *key = key_of(loan, i);
    if (loan->chunks[i].spoiled)
        return;
    loan->chunks[i].spoiled = true;
    if (waiter != NULL) {
        tierce__fetch_spoil(waiter);
        return;
    }
    if (loan->bufs[i]->source > 0) /* first: from there it would come again */
        tierce__storage_quarantine(loan->engine, loan->bufs[i]->source, key, TIERCE_E_CHECKSUM);
    tierce__storage_quarantine(loan->engine, 0, key, TIERCE_E_CHECKSUM);
}

/* Whether the object is the lent chunk, according to its header. */
static int check(const struct own_loan *loan, size_t i, struct tierce__chunk_info *got)
{
    const struct tierce__lent *lent = &loan->base.lent[i];
    int rc = tierce__chunk_parse(got, lent->object, shape_of(loan, i)->extent.header_bytes);
    if (rc < 0)
        return rc;
    bool same = memcmp(got->hash, lent->hash, TIERCE_HASH_BYTES) == 0 &&
                memcmp(got->ns_digest, loan->base.view->ns_digest, TIERCE_HASH_BYTES) == 0 &&
                memcmp(&got->shard, &loan->base.view->key.shard, sizeof(got->shard)) == 0 &&
                got->extent.object_bytes == lent->bytes;
    return same ? 0 : TIERCE_E_IDENTITY;
}

void tierce__loan_look(struct tierce__loan *base, size_t i, bool cells_are_bad)
{
    struct own_loan *loan = own(base);
    TIERCE_DASSERT(i < loan->base.count);
    const struct tierce__lent *lent = &loan->base.lent[i];
    struct tierce__chunk_info got;
    if (lent->failed || lent->object == NULL)
        return;
    int rc = check(loan, i, &got);
    if (rc < 0)
        refuse(base, i, rc);
    else if (cells_are_bad && (!lent->here || tierce__chunk_verify_cells(lent->object, &got) > 0))
        spoil(base, i);
}

void tierce__loan_skip(struct tierce__loan *base, size_t i)
{
    struct own_loan *loan = own(base);
    fail(loan, i);
    TIERCE_DASSERT(i < loan->base.count);
}

/* Promotes chunks that arrived completely from a slower tier to memory. */
static void promote(struct own_loan *loan, size_t i)
{
    if (!is_fetched(loan, i) || loan->chunks[i].spoiled || loan->mode != TIERCE_MODE_NORMAL)
        return;
    struct tierce__storage_chunk record;
    describe(loan, i, &record);
    tierce__fetch_promote(&loan->waiters[i], &record);
}

/* ---- more than fits into memory ---- */

/* Memory for a chunk that waits; if need be that of the last one behind it that holds some, which
 * then waits itself. */
static bool take_memory(struct own_loan *loan, size_t i)
{
    size_t last = loan->base.count;
    TIERCE_DASSERT(i < last);
    join_fetch(loan, i);
    while (loan->bufs[i] == NULL && --last > i) {
        struct loan_chunk *other = &loan->chunks[last];
        if (loan->bufs[last] == NULL)
            continue;
        let_go(loan, last);
        other->level = other->level > 0 ? other->level : slower_level(loan);
        put_off(loan, last);
        join_fetch(loan, i);
    }
    return loan->bufs[i] != NULL;
}

/* The same for memory that other loans release, as long as one passes through memory. */
static bool wait_for_memory(struct own_loan *loan, size_t i)
{
    struct tierce_engine *engine = loan->engine;
    struct tierce__pool_turn turn;
    pass(loan, false); /* two that wait do not wait for each other */
    tierce__pool_turn_begin(engine->pool, &turn);
    while (loan->bufs[i] == NULL && atomic_load(&engine->passing) > 0 &&
           tierce__pool_turn_wait(&turn, loan->deadline_ns))
        join_fetch(loan, i);
    if (loan->bufs[i] == NULL) /* memory that the last one has released since */
        join_fetch(loan, i);
    tierce__pool_turn_end(&turn);
    return loan->bufs[i] != NULL;
}

static void ask_all(struct own_loan *loan, size_t i)
{
    for (uint32_t s = 0; is_fetched(loan, i) && s < shape_of(loan, i)->segment_count; s++)
        tierce__fetch_ask(&loan->waiters[i], s);
}

/* The next one is read meanwhile, if there is memory for both. */
static bool take(struct tierce__loan *base, size_t i)
{
    struct own_loan *loan = own(base);
    bool has_next = i + 1 < loan->base.count;
    TIERCE_DASSERT(i < loan->base.count);
    if (loan->base.lent[i].failed)
        return false;
    if (loan->bufs[i] == NULL && !take_memory(loan, i) && !wait_for_memory(loan, i)) {
        fail(loan, i);
        return false;
    }
    pass(loan, true);
    ask_all(loan, i);
    if (has_next && loan->chunks[i + 1].waits && loan->bufs[i + 1] == NULL)
        join_fetch(loan, i + 1);
    if (has_next)
        ask_all(loan, i + 1);
    return true;
}

static void give_back(struct tierce__loan *base, size_t i)
{
    struct own_loan *loan = own(base);
    TIERCE_DASSERT(i < loan->base.count);
    promote(loan, i);
    let_go(loan, i);
    while (++i < loan->base.count && loan->base.lent[i].failed)
        ;
    if (i >= loan->base.count)
        pass(loan, false);
}

/* ---- end: report ---- */

void tierce__loan_count(const struct tierce_view *view, const struct tierce__lent *lent,
                        size_t blocks)
{
    struct tierce_engine *engine = view->engine;
    uint64_t block_bytes = view->full.extent.payload_bytes / view->chunk_blocks;
    static const struct {
        enum tierce__stat chunks, blocks, bytes, tokens;
    } stats[] = {
        [TIERCE_ORIGIN_MEMORY] = {TIERCE__STAT_chunks_loaded_memory,
                                  TIERCE__STAT_blocks_loaded_memory,
                                  TIERCE__STAT_bytes_loaded_memory,
                                  TIERCE__STAT_tokens_loaded_memory},
        [TIERCE_ORIGIN_DISK] = {TIERCE__STAT_chunks_loaded_disk, TIERCE__STAT_blocks_loaded_disk,
                                TIERCE__STAT_bytes_loaded_disk, TIERCE__STAT_tokens_loaded_disk},
        [TIERCE_ORIGIN_REMOTE] = {TIERCE__STAT_chunks_loaded_remote,
                                  TIERCE__STAT_blocks_loaded_remote,
                                  TIERCE__STAT_bytes_loaded_remote,
                                  TIERCE__STAT_tokens_loaded_remote},
    };
    enum tierce_origin origin = lent->origin;
    TIERCE_DASSERT(origin < sizeof(stats) / sizeof(stats[0]));
    tierce__count(engine, stats[origin].chunks, blocks > 0);
    tierce__count(engine, stats[origin].blocks, (int64_t)blocks);
    tierce__count(engine, stats[origin].bytes, (int64_t)(blocks * block_bytes));
    tierce__count(engine, stats[origin].tokens,
                  (int64_t)(blocks * view->full.geometry.block_tokens));
    if (lent->kind == TIERCE__LENT_SIBLING)
        tierce__count(engine, TIERCE__STAT_blocks_loaded_siblings, (int64_t)blocks);
}

static void report(struct own_loan *loan, const uint32_t *blocks)
{
    struct tierce_engine *engine = loan->engine;
    size_t loaded = 0;
    for (size_t i = 0; i < loan->base.count; i++) {
        if (!loan->base.lent[i].failed)
            tierce__loan_count(loan->base.view, &loan->base.lent[i], blocks[i]);
        promote(loan, i);
        if (loan->base.lent[i].kind ==
            TIERCE__LENT_SIBLING) /* before its prefix, which ends up newer */
            tierce__storage_touch(engine, 0, engine->level_count, key_of(loan, i), 1, 0);
        loaded += blocks[i];
    }
    tierce__count(engine, TIERCE__STAT_blocks_failed, (int64_t)(loan->block_count - loaded));
    size_t used =
        tierce__session_use(loan->base.view, loan->session, &loan->keys, loan->keys.count);
    tierce__storage_touch(engine, 0, engine->level_count, loan->keys.keys, loan->keys.count, used);
}

static void end_loan(struct tierce__loan *base, const uint32_t *blocks)
{
    struct own_loan *loan = own(base);
    if (blocks != NULL)
        report(loan, blocks);
    free_loan(loan);
}

static const struct tierce__loan_ops ops = {
    .ahead = ahead,
    .wait = wait_chunk,
    .refuse = refuse,
    .spoil = spoil,
    .take = take,
    .give_back = give_back,
    .end = end_loan,
};
