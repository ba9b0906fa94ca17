/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load: chunks become the engine's paged KV. Read tierce_load_begin, _layer and _end: lease what
 * memory has, join the fetch of each chunk that it has not, asking segment by segment ahead of the
 * layer that is wanted, check each header once, scatter with the sums riding on the copy, promote
 * what came from a slower tier, report block by block.
 *
 * What fails before the cells sets `failed`, and no block of the chunk is loaded. A cell that does
 * not verify fails its block alone (any_bad). What proves wrong is taken out of its tier.
 *
 * The first chunk that is missing may give way to a sibling, which begins as it does (sibling.h):
 * what the two have in common is loaded from that.
 *
 * A load that is larger than the memory that can be had for it goes through it chunk by chunk
 * (load_through): all layers of one, then its memory is the next one's.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/engine_private.h"
#include "engine/operate.h"
#include "engine/sibling.h"
#include "paged/paged.h"

/* Bytes that are asked for ahead even if that is more than two layers. */
#define AHEAD_BYTES  (32u << 20)
#define AHEAD_LAYERS 2u

enum chunk_kind { CHUNK_FULL, CHUNK_TAIL, CHUNK_SIBLING };

struct load_chunk {
    struct tierce__key key;
    size_t first_block; /* in the sequence */
    size_t from, to;    /* blocks of the chunk that are wanted and may be there */
    size_t index;       /* of the chunk in the chain */
    size_t rung;        /* 0: leased in memory; else where it is read from */
    enum chunk_kind kind;
    bool waits; /* there was no memory for it at begin */
    bool header_good;
    bool failed;
    bool any_bad;                   /* a cell did not verify */
    struct tierce__buf *buf;        /* NULL if the chunk has failed, waits or is through */
    struct tierce__fetch_seat seat; /* taken unless the buffer is lent */
};

struct tierce_load {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce_view *view;
    const struct tierce_paged *paged; /* the caller's until end */
    uint64_t deadline_ns;
    uint32_t next_layer;
    uint64_t session;
    enum tierce_mode mode; /* in which it began */
    uint32_t rungs;        /* a bit for each that it may read from; none in bypass */
    uint32_t next_segment; /* the first that is not asked for, for all chunks */
    bool waits;            /* some chunk does */
    size_t from_block, block_count;
    size_t count;
    struct load_chunk *chunks;
    uint8_t *hashes; /* [to_block * 32] block hashes of the sequence */
    uint8_t root[TIERCE_HASH_BYTES];
    int32_t *block_ids; /* [to_block] */
    uint8_t *good;      /* [keys.block_count] 1 until a block fails */
    struct tierce__shape tail_shape;
    struct tierce__shape sibling_shape;
    struct tierce__keys keys;
};

static const struct tierce__shape *shape_of(const struct tierce_load *load,
                                            const struct load_chunk *chunk)
{
    switch (chunk->kind) {
    case CHUNK_FULL:
        return &load->view->full;
    case CHUNK_TAIL:
        return &load->tail_shape;
    case CHUNK_SIBLING:
        return &load->sibling_shape;
    }
    return NULL;
}

static void describe(const struct tierce_load *load, const struct load_chunk *chunk,
                     struct tierce__storage_chunk *record)
{
    tierce__view_describe(record, load->view, &load->keys, shape_of(load, chunk), chunk->index,
                          load->hashes);
    record->key = chunk->key; /* a sibling's is another */
}

static void let_go(struct load_chunk *chunk)
{
    tierce__buf_release(chunk->buf);
    chunk->buf = NULL;
    tierce__fetch_leave(&chunk->seat);
}

static void free_load(struct tierce_load *load)
{
    for (size_t i = 0; load->chunks != NULL && i < load->count; i++)
        let_go(&load->chunks[i]);
    tierce__free(load->chunks);
    tierce__free(load->hashes);
    tierce__free(load->block_ids);
    tierce__free(load->good);
    tierce__shape_fini(&load->tail_shape);
    tierce__shape_fini(&load->sibling_shape);
    tierce__keys_fini(&load->keys);
    load->magic = 0;
    tierce__free(load);
}

/* Whether the chunk's bytes come from a slower tier and may be needed still. */
static bool is_fetched(const struct load_chunk *chunk)
{
    return chunk->seat.fetch != NULL && !chunk->failed;
}

/* ---- reading ahead ---- */

static uint64_t bytes_asked(const struct tierce_load *load)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < load->count; i++) {
        if (is_fetched(&load->chunks[i]))
            bytes += tierce__fetch_bytes_asked(&load->chunks[i].seat);
    }
    return bytes;
}

/* Asks, first segments first over all chunks, up to two layers beyond `layer`. */
static void read_ahead(struct tierce_load *load, uint32_t layer)
{
    const struct tierce__shape *full = &load->view->full;
    uint32_t layers = full->geometry.layer_count;
    uint32_t ahead = layer + AHEAD_LAYERS < layers ? layer + AHEAD_LAYERS : layers - 1;
    uint32_t must = full->layer_segment[ahead];
    while (load->next_segment < full->segment_count &&
           (load->next_segment <= must || bytes_asked(load) < AHEAD_BYTES)) {
        uint32_t index = load->next_segment++;
        for (size_t i = 0; i < load->count; i++) {
            struct load_chunk *chunk = &load->chunks[i];
            /* The layers of a smaller chunk are, so that its segments hold more of them. */
            if (is_fetched(chunk) && index < shape_of(load, chunk)->segment_count)
                tierce__fetch_ask(&chunk->seat, index);
        }
    }
}

/* ---- begin: where is each chunk, and a buffer for it ---- */

static void fail_chunk(struct tierce_load *load, struct load_chunk *chunk)
{
    chunk->failed = true;
    memset(load->good + chunk->first_block + chunk->from, 0, chunk->to - chunk->from);
}

/* Takes a chunk's buffer out of the session's pins, if it is among them. */
static struct tierce__buf *take_pinned(struct tierce__session *session,
                                       const struct tierce__key *key)
{
    for (size_t i = 0; session != NULL && i < session->count; i++) {
        struct tierce__buf *buf = session->bufs[i];
        if (buf != NULL && tierce__key_equal(&session->keys[i], key)) {
            session->bufs[i] = NULL;
            return buf;
        }
    }
    return NULL;
}

/* From chunk->rung; with a lease, the rung is memory. */
static void join_fetch(struct tierce_load *load, struct load_chunk *chunk)
{
    struct tierce__storage_chunk record;
    describe(load, chunk, &record);
    chunk->seat.deadline_ns = load->deadline_ns;
    chunk->seat.before = chunk > load->chunks ? chunk[-1].buf : NULL;
    if (!tierce__fetch_join(load->engine, &chunk->seat, chunk->rung, &record, shape_of(load, chunk),
                            &chunk->buf)) {
        chunk->rung = chunk->buf != NULL ? 0 : chunk->rung;
        return;
    }
    chunk->buf = chunk->seat.buf;
    chunk->rung = chunk->seat.rung;
    tierce__buf_acquire(chunk->buf);
}

/* No memory could be had: the chunk waits for what those before it let go of, if it can be read. */
static void put_off(struct tierce_load *load, struct load_chunk *chunk)
{
    chunk->waits = chunk->rung < load->engine->rung_count;
    load->waits |= chunk->waits;
    if (!chunk->waits)
        fail_chunk(load, chunk);
}

static struct tierce__sibling_want want_of(const struct tierce_load *load,
                                           const struct load_chunk *chunk)
{
    return (struct tierce__sibling_want){.index = chunk->index,
                                         .from = (uint32_t)chunk->from,
                                         .to = (uint32_t)chunk->to,
                                         .hashes = load->hashes,
                                         .root = load->root,
                                         .rungs = load->rungs};
}

/* Lets a sibling of these rungs, or a pinned one, stand for a chunk, if it has so many of its
 * blocks. */
static bool use_sibling(struct tierce_load *load, struct load_chunk *chunk,
                        struct tierce__session *session, uint32_t rungs, size_t blocks_min)
{
    struct tierce__sibling_hit hit;
    struct tierce__sibling_want want = want_of(load, chunk);
    want.rungs = rungs;
    uint64_t soon_ns = tierce__deadline_in_ms(load->engine->settings.lookup_ms);
    want.pinned = session;
    want.deadline_ns = soon_ns < load->deadline_ns ? soon_ns : load->deadline_ns;
    tierce__sibling_find(load->view, &hit, &want);
    if (hit.blocks < blocks_min ||
        tierce__shape_init(&load->sibling_shape, load->view, hit.block_count) < 0) {
        tierce__buf_release(hit.buf);
        return false;
    }
    chunk->kind = CHUNK_SIBLING;
    chunk->key = hit.key;
    chunk->to = hit.blocks;
    chunk->rung = hit.rung;
    chunk->buf = hit.buf;
    tierce__buf_release(take_pinned(session, &hit.key));
    return true;
}

/* In bypass: the leading chunks that were pinned before. */
static size_t take_all_pinned(struct tierce_load *load, struct tierce__session *session)
{
    size_t n = 0;
    while (n < load->count &&
           (load->chunks[n].buf = take_pinned(session, &load->chunks[n].key)) != NULL)
        n++;
    return n;
}

/*
 * Gives each of the first `count` chunks its buffer, and the one behind them, if it is wanted, that
 * of a sibling. What memory holds is leased before anything is reserved for the others, because to
 * reserve is to evict, and must not hit what is wanted.
 */
static void place_chunks(struct tierce_load *load, size_t count, struct tierce__session *session,
                         const uint8_t *places)
{
    struct tierce_engine *engine = load->engine;
    if (load->mode == TIERCE_MODE_BYPASS)
        count = take_all_pinned(load, session);
    for (size_t i = 0; i < count; i++) {
        struct load_chunk *chunk = &load->chunks[i];
        if (chunk->buf == NULL)
            chunk->buf = take_pinned(session, &chunk->key);
        if (chunk->buf == NULL)
            chunk->buf = tierce__storage_lease(engine, &chunk->key);
    }
    struct load_chunk *last = count > 0 ? &load->chunks[count - 1] : NULL;
    if (count < load->count && use_sibling(load, &load->chunks[count], session, load->rungs, 1))
        count++;
    else if (last != NULL && last->buf == NULL)
        /* What was pinned before the chunk itself came to a slower tier: it is there for sure. */
        (void)use_sibling(load, last, session, 0, last->to);
    for (size_t i = 0; i < count; i++) {
        struct load_chunk *chunk = &load->chunks[i];
        if (chunk->buf != NULL)
            continue;
        /* Not in memory, or not any more: the next tier that has it. */
        bool sibling = chunk->kind == CHUNK_SIBLING;
        chunk->rung = sibling ? chunk->rung : places[i] > 0 ? places[i] : 1;
        if (chunk->rung < engine->rung_count)
            join_fetch(load, chunk);
        if (chunk->buf == NULL)
            put_off(load, chunk);
    }
    for (size_t i = count; i < load->count; i++)
        fail_chunk(load, &load->chunks[i]);
}

/* The chunks that overlap [from_block, to_block). */
static void list_chunks(struct tierce_load *load, uint64_t to_block)
{
    size_t step = load->view->chunk_blocks;
    for (size_t i = load->from_block / step; i < load->keys.count; i++) {
        struct load_chunk *chunk = &load->chunks[load->count++];
        chunk->index = i;
        chunk->key = load->keys.keys[i];
        chunk->kind = i < load->keys.full_count ? CHUNK_FULL : CHUNK_TAIL;
        chunk->first_block = i * step;
        size_t end = chunk->first_block + shape_of(load, chunk)->geometry.block_count;
        chunk->from =
            load->from_block > chunk->first_block ? load->from_block - chunk->first_block : 0;
        chunk->to = (end < to_block ? end : (size_t)to_block) - chunk->first_block;
    }
}

/* Copies what the load needs of the caller's chain and ids, so that both may change after begin. */
static int copy_sequence(struct tierce_load *load, const struct tierce_transfer_opts *opts)
{
    size_t blocks = load->keys.block_count, ids = (size_t)opts->to_block;
    load->hashes = tierce__alloc(blocks * TIERCE_HASH_BYTES);
    load->block_ids = tierce__calloc(ids, sizeof(*load->block_ids));
    load->good = tierce__alloc(blocks);
    load->chunks = tierce__calloc(load->keys.count, sizeof(*load->chunks));
    if (load->hashes == NULL || load->block_ids == NULL || load->good == NULL ||
        load->chunks == NULL)
        return -ENOMEM;
    if (blocks > 0) {
        memcpy(load->hashes, tierce_chain_hash(opts->chain, 0), blocks * TIERCE_HASH_BYTES);
        memset(load->good, 1, blocks);
    }
    if (ids > 0)
        memcpy(load->block_ids, opts->block_ids, ids * sizeof(*load->block_ids));
    memcpy(load->root, tierce_chain_root_hash(opts->chain), TIERCE_HASH_BYTES);
    return 0;
}

static int plan(struct tierce_load *load, const struct tierce_transfer_opts *opts)
{
    struct tierce_engine *engine = load->engine;
    int rc = tierce__keys_init(&load->keys, load->view, opts->chain, opts->to_block,
                               tierce_chain_blocks(opts->chain), true);
    if (rc < 0)
        return rc;
    if (load->keys.tail_blocks > 0) {
        rc = tierce__shape_init(&load->tail_shape, load->view, load->keys.tail_blocks);
        if (rc < 0)
            return rc;
    }
    rc = copy_sequence(load, opts);
    if (rc < 0)
        return rc;
    uint8_t *places = tierce__calloc(load->keys.count, 1);
    if (places == NULL)
        return -ENOMEM;
    /* Chunks that end before from_block are the engine's own and need not be held. */
    size_t first = load->from_block / load->view->chunk_blocks;
    size_t found = 0;
    struct tierce__unasked unasked;
    if (first < load->keys.count && load->mode != TIERCE_MODE_BYPASS)
        found = tierce__storage_search(engine, load->rungs, load->keys.keys + first,
                                       load->keys.count - first, places, &unasked);
    list_chunks(load, opts->to_block);
    struct tierce__session *session =
        opts->session != 0 ? tierce__session_take(load->view, opts->session) : NULL;
    place_chunks(load, found, session, places);
    tierce__session_free(session);
    tierce__free(places);
    return 0;
}

int tierce_load_begin(struct tierce_load **out, struct tierce_view *view,
                      const struct tierce_transfer_opts *opts)
{
    int rc = tierce__transfer_check(view, opts);
    if (rc < 0)
        return rc;
    struct tierce_load *load = tierce__calloc(1, sizeof(*load));
    if (load == NULL)
        return -ENOMEM;
    load->magic = TIERCE__LOAD_MAGIC;
    load->engine = view->engine;
    load->view = view;
    load->paged = opts->paged;
    load->session = opts->session;
    load->mode = tierce__engine_mode(view->engine);
    if (load->mode != TIERCE_MODE_BYPASS)
        load->rungs = tierce__rungs_of(view->engine, opts->tiers);
    load->from_block = (size_t)opts->from_block;
    load->block_count = (size_t)(opts->to_block - opts->from_block);
    load->deadline_ns = tierce__deadline_in_ms(
        opts->timeout_ms > 0 ? opts->timeout_ms : view->engine->settings.load_ms);
    rc = plan(load, opts);
    if (rc < 0) {
        free_load(load);
        return rc;
    }
    read_ahead(load, 0);
    *out = load;
    return 0;
}

/* ---- layer: verify and write ---- */

/* Whether the header in the chunk's buffer is that of the chunk that is wanted: 0, or why not. */
static int check_header(const struct tierce_load *load, const struct load_chunk *chunk)
{
    const uint8_t *object = chunk->buf->data;
    if (chunk->kind != CHUNK_SIBLING)
        return tierce__view_check_header(load->view, shape_of(load, chunk), chunk->index,
                                         load->hashes, load->root, object);
    struct tierce__sibling_want want = want_of(load, chunk);
    int same =
        tierce__sibling_check(load->view, shape_of(load, chunk), &want, chunk->key.hash, object);
    /* Fewer than when it was found: the bytes have changed. */
    if (same >= 0)
        return same == (int)want.to ? 0 : TIERCE_E_IDENTITY;
    return same;
}

/* The header is not that of the chunk that is wanted. */
static void refuse(struct tierce_load *load, struct load_chunk *chunk, int why)
{
    if (chunk->seat.fetch != NULL)
        tierce__fetch_refuse(&chunk->seat, why);
    else
        tierce__storage_quarantine(load->engine, 0, &chunk->key, why);
}

/* A cell does not verify. What came into memory from a slower tier may be as bad there. */
static void spoil(struct tierce_load *load, struct load_chunk *chunk)
{
    if (chunk->seat.fetch != NULL) {
        tierce__fetch_spoil(&chunk->seat);
        return;
    }
    tierce__storage_quarantine(load->engine, 0, &chunk->key, TIERCE_E_CHECKSUM);
    if (chunk->buf->source > 0)
        tierce__storage_quarantine(load->engine, chunk->buf->source, &chunk->key,
                                   TIERCE_E_CHECKSUM);
}

/* Whether the bytes of `layer` are in the buffer and belong to the chunk that is wanted. */
static bool layer_ready(struct tierce_load *load, struct load_chunk *chunk, uint32_t layer)
{
    if (chunk->failed)
        return false;
    uint32_t last = shape_of(load, chunk)->layer_segment[layer];
    bool fetched = chunk->seat.fetch != NULL;
    if (fetched && !tierce__fetch_wait(&chunk->seat, last))
        return false;
    if (chunk->header_good)
        return true;
    if (fetched && last > 0 && !tierce__fetch_wait(&chunk->seat, 0))
        return false;
    int rc = check_header(load, chunk);
    if (rc < 0)
        refuse(load, chunk, rc);
    chunk->header_good = rc == 0;
    return rc == 0;
}

/* Where a layer's first wanted cell lies in the object. */
static uint64_t first_cell(const struct tierce_load *load, const struct load_chunk *chunk,
                           uint32_t layer)
{
    const struct tierce__shape *shape = shape_of(load, chunk);
    return shape->layer_offset[layer] + (uint64_t)shape->geometry.cell_bytes[layer] * chunk->from;
}

static void scatter_layer(struct tierce_load *load, size_t index, uint32_t layer)
{
    struct load_chunk *chunk = &load->chunks[index];
    const struct tierce__shape *shape = shape_of(load, chunk);
    uint8_t *object = chunk->buf->data;
    size_t block = chunk->first_block + chunk->from;
    struct tierce__cells cells = {.bytes = object + first_cell(load, chunk, layer),
                                  .sums = tierce__chunk_sums(object, &shape->geometry, layer) +
                                          chunk->from,
                                  .count = chunk->to - chunk->from};
    struct tierce__row row = {.bytes =
                                  (uint64_t)load->block_count * shape->geometry.cell_bytes[layer]};
    if (index + 1 < load->count && chunk[1].buf != NULL)
        row.next = chunk[1].buf->data + first_cell(load, &chunk[1], layer);
    int bad = tierce__paged_scatter(load->paged, layer, load->block_ids + block, &cells,
                                    load->good + block, &row);
    TIERCE_ASSERT(bad >= 0); /* ids and layer were checked at begin */
    if (bad > 0 && !chunk->any_bad) {
        chunk->any_bad = true;
        spoil(load, chunk);
    }
}

/* Keeps in memory what came from a slower tier and arrived whole. */
static void promote(struct tierce_load *load, struct load_chunk *chunk)
{
    if (!is_fetched(chunk) || chunk->any_bad || load->mode != TIERCE_MODE_NORMAL)
        return;
    struct tierce__storage_chunk record;
    describe(load, chunk, &record);
    tierce__fetch_promote(&chunk->seat, &record);
}

static void move_layer(struct tierce_load *load, size_t index, uint32_t layer)
{
    struct load_chunk *chunk = &load->chunks[index];
    if (layer_ready(load, chunk, layer))
        scatter_layer(load, index, layer);
    else if (!chunk->failed)
        fail_chunk(load, chunk);
}

/* Memory for a chunk that waits; if need be that of the last one behind it that holds some, which
 * then waits itself. */
static bool take_memory(struct tierce_load *load, struct load_chunk *chunk)
{
    struct load_chunk *last = load->chunks + load->count;
    join_fetch(load, chunk);
    while (chunk->buf == NULL && --last > chunk) {
        if (last->buf == NULL)
            continue;
        let_go(last);
        last->rung = last->rung > 0 ? last->rung : 1;
        put_off(load, last);
        join_fetch(load, chunk);
    }
    return chunk->buf != NULL;
}

static void ask_all(const struct tierce_load *load, struct load_chunk *chunk)
{
    for (uint32_t s = 0; is_fetched(chunk) && s < shape_of(load, chunk)->segment_count; s++)
        tierce__fetch_ask(&chunk->seat, s);
}

/* Writes all layers of one chunk after the other, so that memory needs to hold few at a time. The
 * next one is read meanwhile, if there is memory for both. */
static void load_through(struct tierce_load *load)
{
    for (size_t i = 0; i < load->count; i++) {
        struct load_chunk *chunk = &load->chunks[i];
        struct load_chunk *next = i + 1 < load->count ? chunk + 1 : NULL;
        if (chunk->failed)
            continue;
        if (chunk->buf == NULL && !take_memory(load, chunk)) {
            fail_chunk(load, chunk);
            continue;
        }
        ask_all(load, chunk);
        if (next != NULL && next->waits && next->buf == NULL)
            join_fetch(load, next);
        if (next != NULL)
            ask_all(load, next);
        for (uint32_t layer = 0; layer < load->view->full.geometry.layer_count; layer++)
            move_layer(load, i, layer);
        promote(load, chunk);
        let_go(chunk);
    }
}

int tierce_load_layer(struct tierce_load *load, uint32_t layer)
{
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    if (layer != load->next_layer || layer >= load->view->full.geometry.layer_count)
        return TIERCE_E_ARGUMENT;
    load->next_layer++;
    if (load->waits) {
        if (layer == 0)
            load_through(load);
    } else {
        read_ahead(load, layer);
        for (size_t i = 0; i < load->count; i++)
            move_layer(load, i, layer);
    }
    tierce__paged_row_end();
    return 0;
}

/* ---- end: report ---- */

static void count_loaded(struct tierce_load *load, const struct load_chunk *chunk, size_t blocks)
{
    struct tierce_engine *engine = load->engine;
    const struct tierce__shape *shape = shape_of(load, chunk);
    uint64_t cell = shape->extent.payload_bytes / shape->geometry.block_count;
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
    enum tierce_origin origin = engine->rungs[chunk->rung].origin;
    tierce__count(engine, stats[origin].chunks, blocks > 0);
    tierce__count(engine, stats[origin].blocks, (int64_t)blocks);
    tierce__count(engine, stats[origin].bytes, (int64_t)(blocks * cell));
    tierce__count(engine, stats[origin].tokens, (int64_t)(blocks * shape->geometry.block_tokens));
    if (chunk->kind == CHUNK_SIBLING)
        tierce__count(engine, TIERCE__STAT_blocks_loaded_siblings, (int64_t)blocks);
}

/* Origins of the wanted blocks of one chunk; returns how many were loaded. */
static size_t report(struct tierce_load *load, const struct load_chunk *chunk, uint8_t *origins)
{
    size_t loaded = 0;
    uint8_t origin = (uint8_t)load->engine->rungs[chunk->rung].origin;
    for (size_t i = chunk->from; i < chunk->to; i++) {
        size_t block = chunk->first_block + i;
        bool good = !chunk->failed && load->good[block] != 0;
        loaded += good;
        if (origins != NULL)
            origins[block - load->from_block] = good ? origin : TIERCE_ORIGIN_FAILED;
    }
    return loaded;
}

int64_t tierce_load_end(struct tierce_load *load, uint8_t *origins)
{
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    struct tierce_engine *engine = load->engine;
    bool complete = load->next_layer == load->view->full.geometry.layer_count;
    size_t loaded = 0;
    if (origins != NULL)
        memset(origins, TIERCE_ORIGIN_FAILED, load->block_count);
    for (size_t i = 0; complete && i < load->count; i++) {
        struct load_chunk *chunk = &load->chunks[i];
        size_t blocks = report(load, chunk, origins);
        if (!chunk->failed)
            count_loaded(load, chunk, blocks);
        promote(load, chunk);
        if (chunk->kind == CHUNK_SIBLING) /* before its prefix, which ends up newer */
            tierce__storage_touch(engine, engine->rung_count, &chunk->key, 1, 0);
        loaded += blocks;
    }
    tierce__count(engine, TIERCE__STAT_blocks_failed, (int64_t)(load->block_count - loaded));
    size_t used = tierce__session_use(load->view, load->session, &load->keys, load->keys.count);
    tierce__storage_touch(engine, engine->rung_count, load->keys.keys, load->keys.count, used);
    free_load(load);
    return (int64_t)loaded;
}

void tierce_load_abort(struct tierce_load *load)
{
    if (load == NULL)
        return;
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    if (!tierce__engine_inherited(load->engine))
        free_load(load);
}

int64_t tierce_load(struct tierce_view *view, const struct tierce_transfer_opts *opts,
                    uint8_t *origins)
{
    struct tierce_load *load;
    int rc = tierce_load_begin(&load, view, opts);
    if (rc < 0)
        return rc;
    for (uint32_t layer = 0; layer < view->full.geometry.layer_count && rc == 0; layer++)
        rc = tierce_load_layer(load, layer);
    TIERCE_ASSERT(rc == 0);
    return tierce_load_end(load, origins);
}
