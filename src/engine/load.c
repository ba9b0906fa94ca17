/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load: chunks become the engine's paged KV. Read tierce_load_begin, _layer and _end: lease what
 * memory has, read the rest segment by segment ahead of the layer that is asked for, check each
 * header once, scatter with the sums riding on the copy, promote what came from a slower tier,
 * report block by block.
 *
 *     a chunk in memory:  leased
 *     one that is not:    a buffer is reserved, its segments go IDLE -> READING -> HERE or LOST
 *     both, by layers:    the header is checked once (header_good), the cells are scattered
 *
 * What fails before the cells sets `failed`, and no block of the chunk is loaded. A cell that does
 * not verify fails its block alone (any_bad). What proves wrong is taken out of its tier.
 *
 * A load lives until its last request has been answered, which can be after end or abort.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/engine_private.h"
#include "paged/paged.h"

/* Bytes that are asked for ahead even if that is more than two layers. */
#define AHEAD_BYTES  (32u << 20)
#define AHEAD_LAYERS 2u

enum segment_state { SEGMENT_IDLE = 0, SEGMENT_READING, SEGMENT_HERE, SEGMENT_LOST };

struct segment {
    struct tierce__tier_req req;
    struct tierce_load *load;
    size_t rung;
    enum segment_state state; /* under the load's lock once it is submitted */
};

struct load_chunk {
    struct tierce__key key;
    size_t first_block; /* in the sequence */
    size_t from, to;    /* blocks of the chunk that are wanted */
    size_t index;       /* of the chunk in the chain */
    size_t rung;        /* 0: leased in memory; else where it is read from */
    bool tail;
    bool header_good;
    bool failed;
    bool any_bad;             /* a cell did not verify */
    struct tierce__buf *buf;  /* NULL only if the chunk failed at begin */
    struct segment *segments; /* [shape's segment_count], NULL when the buffer is lent */
};

struct tierce_load {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce_view *view;         /* may be gone once the load is detached */
    const struct tierce_paged *paged; /* the caller's until end */
    uint64_t deadline_ns;
    uint32_t next_layer;
    uint32_t next_segment; /* the first that is not submitted, for all chunks */
    uint64_t session;
    size_t from_block, block_count;
    size_t count;
    struct load_chunk *chunks;
    uint8_t *hashes; /* [to_block * 32] block hashes of the sequence */
    uint8_t root[TIERCE_HASH_BYTES];
    int32_t *block_ids; /* [to_block] */
    uint8_t *good;      /* [keys.block_count] 1 until a block fails */
    struct tierce__shape tail_shape;
    struct tierce__keys keys;
    struct segment *segments;

    struct tierce__lock lock; /* TRANSFER: below */
    struct tierce__cond arrived;
    uint64_t bytes_reading;
    size_t reading; /* requests not answered */
    bool detached;  /* the caller is done with it: the last answer frees */
};

static const struct tierce__shape *shape_of(const struct tierce_load *load,
                                            const struct load_chunk *chunk)
{
    return chunk->tail ? &load->tail_shape : &load->view->full;
}

static void describe(const struct tierce_load *load, const struct load_chunk *chunk,
                     struct tierce__storage_chunk *record)
{
    tierce__view_describe(record, load->view, &load->keys, shape_of(load, chunk), chunk->index,
                          load->hashes);
}

/* ---- end of life ---- */

static void free_load(struct tierce_load *load)
{
    for (size_t i = 0; load->chunks != NULL && i < load->count; i++)
        tierce__buf_release(load->chunks[i].buf);
    tierce__free(load->chunks);
    tierce__free(load->segments);
    tierce__free(load->hashes);
    tierce__free(load->block_ids);
    tierce__free(load->good);
    tierce__shape_fini(&load->tail_shape);
    tierce__keys_fini(&load->keys);
    tierce__cond_fini(&load->arrived);
    tierce__lock_fini(&load->lock);
    load->magic = 0;
    tierce__free(load);
}

/* The caller lets go; the last answer frees, or this call does. */
static void detach(struct tierce_load *load)
{
    tierce__lock_take(&load->lock);
    load->detached = true;
    bool last = load->reading == 0;
    tierce__lock_drop(&load->lock);
    if (last)
        free_load(load);
}

/* ---- reading ahead ---- */

static void answer_segment(struct segment *segment)
{
    struct tierce_load *load = segment->load;
    tierce__lock_take(&load->lock);
    segment->state = segment->req.status == 0 ? SEGMENT_HERE : SEGMENT_LOST;
    load->bytes_reading -= segment->req.length;
    load->reading--;
    bool last = load->detached && load->reading == 0;
    tierce__cond_broadcast(&load->arrived);
    tierce__lock_drop(&load->lock);
    if (last)
        free_load(load);
}

static void segment_done(struct tierce__tier_req *req)
{
    struct segment *segment = req->arg;
    tierce__storage_note(segment->load->engine, segment->rung, req);
    answer_segment(segment);
}

static void submit_segment(struct tierce_load *load, struct load_chunk *chunk, uint32_t index)
{
    const struct tierce__shape *shape = shape_of(load, chunk);
    uint64_t start = index > 0 ? shape->segment_end[index - 1] : 0;
    struct segment *segment = &chunk->segments[index];
    segment->load = load;
    segment->rung = chunk->rung;
    segment->req = (struct tierce__tier_req){.op = TIERCE__TIER_GET,
                                             .deadline_ns = load->deadline_ns,
                                             .done = segment_done,
                                             .arg = segment,
                                             .keys = &chunk->key,
                                             .key_count = 1,
                                             .buf = chunk->buf,
                                             .offset = start,
                                             .length = shape->segment_end[index] - start};
    tierce__lock_take(&load->lock);
    segment->state = SEGMENT_READING;
    load->reading++;
    load->bytes_reading += segment->req.length;
    tierce__lock_drop(&load->lock);
    if (!tierce__storage_submit(load->engine, chunk->rung, &segment->req)) {
        segment->req.status = TIERCE_E_DOWN;
        answer_segment(segment);
    }
}

static uint64_t bytes_reading(struct tierce_load *load)
{
    tierce__lock_take(&load->lock);
    uint64_t bytes = load->bytes_reading;
    tierce__lock_drop(&load->lock);
    return bytes;
}

/* Submits, first segments first over all chunks, up to two layers beyond `layer`. */
static void read_ahead(struct tierce_load *load, uint32_t layer)
{
    const struct tierce__shape *full = &load->view->full;
    uint32_t layers = full->geometry.layer_count;
    uint32_t ahead = layer + AHEAD_LAYERS < layers ? layer + AHEAD_LAYERS : layers - 1;
    uint32_t must = full->layer_segment[ahead];
    while (load->next_segment < full->segment_count &&
           (load->next_segment <= must || bytes_reading(load) < AHEAD_BYTES)) {
        uint32_t index = load->next_segment++;
        for (size_t i = 0; i < load->count; i++) {
            struct load_chunk *chunk = &load->chunks[i];
            if (chunk->failed || chunk->segments == NULL)
                continue;
            /* A tail's layers are smaller, so that its segments hold more of them. */
            if (index < shape_of(load, chunk)->segment_count)
                submit_segment(load, chunk, index);
        }
    }
}

/* Whether a segment has arrived, waiting for it until the deadline. */
static bool wait_segment(struct tierce_load *load, struct segment *segment)
{
    tierce__lock_take(&load->lock);
    bool in_time = true;
    while (segment->state == SEGMENT_READING && in_time)
        in_time = tierce__cond_wait(&load->arrived, &load->lock, load->deadline_ns);
    bool here = segment->state == SEGMENT_HERE;
    tierce__lock_drop(&load->lock);
    return here;
}

/* ---- begin: where is each chunk, and a buffer for it ---- */

static void fail_chunk(struct tierce_load *load, struct load_chunk *chunk)
{
    chunk->failed = true;
    memset(load->good + chunk->first_block, 0, shape_of(load, chunk)->geometry.block_count);
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

/*
 * Gives each of the first `count` chunks its buffer: what memory holds is leased before anything
 * is reserved for the others, because to reserve is to evict, and must not hit what is wanted.
 */
static void place_chunks(struct tierce_load *load, size_t count, struct tierce__session *session,
                         const uint8_t *places)
{
    struct tierce_engine *engine = load->engine;
    for (size_t i = 0; i < count; i++) {
        struct load_chunk *chunk = &load->chunks[i];
        chunk->buf = take_pinned(session, &chunk->key);
        if (chunk->buf == NULL)
            chunk->buf = tierce__storage_lease(engine, &chunk->key);
    }
    for (size_t i = 0; i < count; i++) {
        struct load_chunk *chunk = &load->chunks[i];
        if (chunk->buf != NULL)
            continue;
        /* Not in memory, or not any more: the next tier that has it. */
        chunk->rung = places[i] > 0 ? places[i] : 1;
        if (chunk->rung < engine->rung_count) {
            struct tierce__storage_chunk record;
            describe(load, chunk, &record);
            chunk->buf = tierce__storage_reserve(engine, &record, i > 0 ? chunk[-1].buf : NULL);
        }
        if (chunk->buf == NULL)
            fail_chunk(load, chunk);
    }
}

/* The chunks that overlap [from_block, to_block). */
static void list_chunks(struct tierce_load *load, uint64_t to_block)
{
    size_t step = load->view->chunk_blocks;
    for (size_t i = load->from_block / step; i < load->keys.count; i++) {
        struct load_chunk *chunk = &load->chunks[load->count++];
        chunk->index = i;
        chunk->key = load->keys.keys[i];
        chunk->tail = i >= load->keys.full_count;
        chunk->first_block = i * step;
        size_t end = chunk->first_block + shape_of(load, chunk)->geometry.block_count;
        chunk->from =
            load->from_block > chunk->first_block ? load->from_block - chunk->first_block : 0;
        chunk->to = (end < to_block ? end : (size_t)to_block) - chunk->first_block;
    }
}

static int alloc_segments(struct tierce_load *load)
{
    size_t need = 0;
    for (size_t i = 0; i < load->count; i++) {
        if (load->chunks[i].rung > 0 && !load->chunks[i].failed)
            need += shape_of(load, &load->chunks[i])->segment_count;
    }
    if (need == 0)
        return 0;
    load->segments = tierce__calloc(need, sizeof(*load->segments));
    if (load->segments == NULL)
        return -ENOMEM;
    struct segment *next = load->segments;
    for (size_t i = 0; i < load->count; i++) {
        struct load_chunk *chunk = &load->chunks[i];
        if (chunk->rung == 0 || chunk->failed)
            continue;
        chunk->segments = next;
        next += shape_of(load, chunk)->segment_count;
    }
    return 0;
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
    if (first < load->keys.count)
        found = tierce__storage_find(engine, load->keys.keys + first, load->keys.count - first,
                                     engine->rung_count, places);
    list_chunks(load, opts->to_block);
    struct tierce__session *session =
        opts->session != 0 ? tierce__session_take(load->view, opts->session) : NULL;
    place_chunks(load, found, session, places);
    for (size_t i = found; i < load->count; i++)
        fail_chunk(load, &load->chunks[i]);
    tierce__session_free(session);
    tierce__free(places);
    return alloc_segments(load);
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
    load->from_block = (size_t)opts->from_block;
    load->block_count = (size_t)(opts->to_block - opts->from_block);
    load->deadline_ns = tierce__deadline_in_ms(
        opts->timeout_ms > 0 ? opts->timeout_ms : view->engine->settings.load_ms);
    tierce__lock_init(&load->lock, TIERCE__LOCK_TRANSFER);
    tierce__cond_init(&load->arrived);
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

static int check_header(const struct tierce_load *load, const struct load_chunk *chunk)
{
    const struct tierce__shape *shape = shape_of(load, chunk);
    struct tierce__chunk_info got, want;
    tierce__view_chunk_info(&want, load->view, shape, chunk->index, load->hashes, load->root);
    int rc = tierce__chunk_parse(&got, chunk->buf->data, shape->extent.header_bytes);
    if (rc < 0)
        return rc;
    return tierce__chunk_match(chunk->buf->data, &got, &want,
                               load->hashes + chunk->first_block * TIERCE_HASH_BYTES);
}

/* Whether the bytes of `layer` are in the buffer and belong to the chunk that is wanted. */
static bool layer_ready(struct tierce_load *load, struct load_chunk *chunk, uint32_t layer)
{
    if (chunk->failed)
        return false;
    uint32_t last = shape_of(load, chunk)->layer_segment[layer];
    if (chunk->segments != NULL && !wait_segment(load, &chunk->segments[last]))
        return false;
    if (chunk->header_good)
        return true;
    if (chunk->segments != NULL && last > 0 && !wait_segment(load, &chunk->segments[0]))
        return false;
    int rc = check_header(load, chunk);
    if (rc < 0)
        tierce__storage_quarantine(load->engine, chunk->rung, &chunk->key, rc);
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
        tierce__storage_quarantine(load->engine, chunk->rung, &chunk->key, TIERCE_E_CHECKSUM);
    }
}

int tierce_load_layer(struct tierce_load *load, uint32_t layer)
{
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    if (layer != load->next_layer || layer >= load->view->full.geometry.layer_count)
        return TIERCE_E_ARGUMENT;
    load->next_layer++;
    read_ahead(load, layer);
    for (size_t i = 0; i < load->count; i++) {
        struct load_chunk *chunk = &load->chunks[i];
        if (layer_ready(load, chunk, layer))
            scatter_layer(load, i, layer);
        else if (!chunk->failed)
            fail_chunk(load, chunk);
    }
    tierce__paged_row_end();
    return 0;
}

/* ---- end: promote and report ---- */

/* Keeps in memory what came from a slower tier and arrived whole. */
static void promote(struct tierce_load *load, struct load_chunk *chunk)
{
    if (chunk->rung == 0 || chunk->failed || chunk->any_bad)
        return;
    const struct tierce__shape *shape = shape_of(load, chunk);
    for (uint32_t i = 0; i < shape->segment_count; i++) {
        if (!wait_segment(load, &chunk->segments[i]))
            return;
    }
    struct tierce__storage_chunk record;
    describe(load, chunk, &record);
    if (tierce__storage_publish(load->engine, &record, chunk->buf) == 0)
        tierce__count(load->engine, TIERCE__STAT_promotions, 1);
}

static void count_loaded(struct tierce_load *load, const struct load_chunk *chunk, size_t blocks)
{
    struct tierce_engine *engine = load->engine;
    const struct tierce__shape *shape = shape_of(load, chunk);
    uint64_t cell = shape->extent.payload_bytes / shape->geometry.block_count;
    bool memory = chunk->rung == 0;
    tierce__count(engine,
                  memory ? TIERCE__STAT_chunks_loaded_memory : TIERCE__STAT_chunks_loaded_disk,
                  blocks > 0);
    tierce__count(engine,
                  memory ? TIERCE__STAT_blocks_loaded_memory : TIERCE__STAT_blocks_loaded_disk,
                  (int64_t)blocks);
    tierce__count(engine,
                  memory ? TIERCE__STAT_bytes_loaded_memory : TIERCE__STAT_bytes_loaded_disk,
                  (int64_t)(blocks * cell));
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
        loaded += blocks;
    }
    tierce__count(engine, TIERCE__STAT_blocks_failed, (int64_t)(load->block_count - loaded));
    size_t used = tierce__session_use(load->view, load->session, &load->keys, load->keys.count);
    tierce__storage_touch(engine, engine->rung_count, load->keys.keys, load->keys.count, used);
    detach(load);
    return (int64_t)loaded;
}

void tierce_load_abort(struct tierce_load *load)
{
    if (load == NULL)
        return;
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    if (!tierce__engine_inherited(load->engine))
        detach(load);
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
