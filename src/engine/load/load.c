/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load: chunks become the engine's paged KV. The engine's lender (lender.h) lends the chunks
 * (load_lease.h). Each header is checked once; each layer is written and verified in one pass
 * (scatter.h); the end reports each block.
 *
 * An error before the cells fails the whole chunk. A cell that does not verify fails only its
 * block. Wrong chunks are removed from their tier.
 *
 * A load that is larger than the available memory proceeds chunk by chunk (load_through): it writes
 * all layers of a chunk, and then reuses the chunk's memory for the next chunk.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/threads.h"
#include "engine/view.h"
#include "engine/lender.h"
#include "engine/load/load_private.h"
#include "engine/load/load_keys.h"
#include "core/blend/select.h"
#include "core/paged/paged.h"

void tierce__load_free(struct tierce_load *load)
{
    tierce__transit_free(load->transit);
    tierce__scatter_fini(&load->scatter);
    tierce__free(load->loaded);
    load->magic = 0;
    tierce__free(load);
}

/*
 * Leases the chunks, if copies to the memory are possible now. Otherwise the load leases none, so
 * that no other load waits for memory and nothing is read for it.
 */
static int lease_chunks(struct tierce_load *load, const struct tierce_transfer_opts *opts)
{
    const struct tierce__lender *lender = load->engine->lender;
    struct tierce_transfer_opts none;
    int rc = 0;
    memcpy(&none, opts, opts->size); /* perhaps without the last fields */
    none.to_block = none.from_block;
    if (tierce__paged_device(opts->paged) != TIERCE_DEVICE_HOST)
        rc = lender->prepare(load->view, opts->paged);
    load->is_off = rc == -EAGAIN || rc == TIERCE_E_DOWN;
    if (rc < 0 && !load->is_off)
        return rc;
    return lender->load_begin(&load->lease, load->view, load->is_off ? &none : opts);
}

static int begin_load(struct tierce_load *load, const struct tierce_transfer_opts *opts)
{
    int rc = lease_chunks(load, opts);
    if (rc < 0)
        return rc;
    load->ops = load->lease->ops;
    rc = tierce__scatter_init(&load->scatter, opts, load->lease);
    if (rc == 0) {
        load->loaded = tierce__calloc(load->lease->count, sizeof(*load->loaded));
        rc = load->loaded != NULL ? 0 : -ENOMEM;
    }
    if (rc == 0 && tierce__paged_device(opts->paged) != TIERCE_DEVICE_HOST)
        rc = tierce__load_device_begin(load, opts);
    if (rc < 0)
        load->ops->end(load->lease, NULL);
    TIERCE_DASSERT(rc < 0 || load->scatter.count == load->lease->count);
    return rc;
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
    rc = begin_load(load, opts);
    if (rc < 0) {
        tierce__load_free(load);
        return rc;
    }
    *out = load;
    return 0;
}

/* ---- layer by layer ---- */

bool tierce__load_is_ready(struct tierce_load *load, size_t i, uint32_t layer)
{
    struct tierce__scatter *scatter = &load->scatter;
    TIERCE_DASSERT(i < load->lease->count && layer < load->view->part.layer_count);
    if (scatter->moved[i].failed)
        return false;
    bool there = load->ops->wait(load->lease, i, load->view->part.first_layer + layer);
    if (there && load->lease->leased[i].on_device)
        there = tierce__load_device_look(load, i);
    int rc = there ? tierce__scatter_check(scatter, i) : TIERCE_E_MISS;
    if (there && rc < 0)
        load->ops->refuse(load->lease, i, rc);
    if (rc < 0)
        tierce__scatter_fail(scatter, i);
    TIERCE_DASSERT(rc <= 0);
    return rc == 0;
}

/* Verifies and writes one layer of one chunk. */
static void move_layer(struct tierce_load *load, size_t i, uint32_t layer)
{
    if (tierce__load_is_ready(load, i, layer) && tierce__scatter_layer(&load->scatter, i, layer))
        load->ops->spoil(load->lease, i);
}

struct moving {
    struct tierce_load *load;
    uint32_t layer;
};

static void move_chunks(void *arg, size_t from, size_t to)
{
    const struct moving *moving = arg;
    struct tierce__scatter *scatter = &moving->load->scatter;
    TIERCE_DASSERT(from <= to && to <= moving->load->lease->count);
    TIERCE_DASSERT(moving->layer < moving->load->view->part.layer_count);
    for (size_t i = from; i < to; i++)
        scatter->moved[i].first_bad =
            !scatter->moved[i].failed && tierce__scatter_layer(scatter, i, moving->layer);
    tierce__paged_row_end();
}

/* One layer of all chunks, on several threads: only the copies, because the lender's calls belong
 * to the thread of the load. */
static void move_together(struct tierce_load *load, uint32_t layer)
{
    TIERCE_DASSERT(!load->lease->is_too_large);
    struct moving moving = {.load = load, .layer = layer};
    for (size_t i = 0; i < load->lease->count; i++)
        (void)tierce__load_is_ready(load, i, layer);
    tierce__workers_share(load->engine->copiers, load->lease->count, move_chunks, &moving);
    for (size_t i = 0; i < load->lease->count; i++) {
        if (load->scatter.moved[i].first_bad)
            load->ops->spoil(load->lease, i);
    }
}

void tierce__load_fail(struct tierce_load *load)
{
    for (size_t i = 0; i < load->lease->count; i++)
        tierce__scatter_fail(&load->scatter, i);
}

bool tierce__load_is_late(const struct tierce_load *load)
{
    uint64_t over_ns = load->lease->over_ns;
    return over_ns != TIERCE__DEADLINE_NEVER && tierce__now_ns() >= over_ns;
}

/* If other chunks may have overwritten the memory during the load, all chunks fail, even verified
 * ones: the sum and the copy may have read different bytes. */
static void fail_if_over(struct tierce_load *load)
{
    TIERCE_DASSERT(!load->lease->is_too_large);
    if (tierce__load_is_late(load))
        tierce__load_fail(load);
}

/* Writes all layers of one chunk after the other, so that memory has to hold only a few chunks at a
 * time. */
static void load_through(struct tierce_load *load)
{
    TIERCE_DASSERT(load->lease->is_too_large);
    TIERCE_DASSERT(load->next_layer == 1 && !tierce__scatter_overlaps(&load->scatter));
    for (size_t i = 0; i < load->lease->count; i++) {
        if (!load->ops->take(load->lease, i)) {
            tierce__scatter_fail(&load->scatter, i);
            continue;
        }
        for (uint32_t layer = 0; layer < load->view->part.layer_count; layer++)
            move_layer(load, i, layer);
        if (tierce__load_is_late(load))
            tierce__scatter_fail(&load->scatter, i);
        load->ops->give_back(load->lease, i);
    }
}

/* The layers of such a load would have to be written together, and overwrite one another. The
 * caller learns it before the first layer, and not at the end. */
static bool is_impossible(const struct tierce_load *load)
{
    return load->lease->is_too_large && tierce__scatter_overlaps(&load->scatter);
}

int tierce_load_layer(struct tierce_load *load, uint32_t layer)
{
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    if (layer != load->next_layer || layer >= load->view->part.layer_count)
        return TIERCE_E_ARGUMENT;
    load->next_layer++;
    TIERCE_DASSERT(load->next_layer <= load->view->part.layer_count);
    if (layer == 0 && is_impossible(load)) {
        tierce__load_fail(load);
        return TIERCE_E_UNSUPPORTED;
    }
    if (load->on_device)
        return tierce__load_device_layer(load, layer);
    if (load->lease->is_too_large) {
        if (layer == 0)
            load_through(load);
    } else {
        load->ops->ahead(load->lease, load->view->part.first_layer + layer);
        if (load->engine->copiers != NULL) {
            move_together(load, layer);
        } else {
            for (size_t i = 0; i < load->lease->count; i++)
                move_layer(load, i, layer);
        }
        fail_if_over(load);
    }
    tierce__paged_row_end();
    return 0;
}

int tierce__load_rotate(struct tierce_load *load, const struct tierce__rotation *rotation,
                        enum tierce__blend_dtype dtype, const struct tierce__key_rows *rows,
                        size_t tokens, uint32_t heads)
{
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    struct tierce__device_keys keys = {
        .rotation = rotation, .dtype = dtype, .rows = *rows, .tokens = tokens, .heads = heads};
    int rc = tierce__device_check_keys(&keys);
    if (rc < 0)
        return rc;
    if (load->on_device)
        return tierce__load_device_rotate(load, &keys);
    tierce__rotate(rotation, dtype, rows, rows, tokens, heads);
    return 0;
}

int tierce__load_distances(struct tierce_load *load, const struct tierce__device_distances *keys)
{
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    int rc = tierce__device_check_distances(keys);
    if (rc < 0)
        return rc;
    if (load->on_device)
        return tierce__load_device_distances(load, keys);
    tierce__key_distances(keys->to, keys->dtype, &keys->a, &keys->b, keys->tokens, keys->heads,
                          keys->row_elements);
    return 0;
}

/* ---- the end ---- */

void tierce__load_lease_count(const struct tierce_view *view, const struct tierce__leased *leased,
                              size_t blocks)
{
    TIERCE_DASSERT(!leased->failed);
    TIERCE_DASSERT(blocks <= leased->to - leased->from);
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
    enum tierce_origin origin = leased->origin;
    TIERCE_DASSERT(origin < sizeof(stats) / sizeof(stats[0]));
    tierce__count(engine, stats[origin].chunks, blocks > 0);
    tierce__count(engine, stats[origin].blocks, (int64_t)blocks);
    tierce__count(engine, stats[origin].bytes, (int64_t)(blocks * block_bytes));
    tierce__count(engine, stats[origin].tokens,
                  (int64_t)(blocks * view->full.geometry.block_tokens));
    if (leased->kind == TIERCE__LEASED_SIBLING)
        tierce__count(engine, TIERCE__STAT_blocks_loaded_siblings, (int64_t)blocks);
}

/* Also called for a load whose device has failed. */
static void count_failed(struct tierce_load *load)
{
    const struct tierce__scatter *scatter = &load->scatter;
    TIERCE_DASSERT(scatter->from_block <= scatter->to_block);
    tierce__count(load->engine, TIERCE__STAT_blocks_failed,
                  (int64_t)(scatter->to_block - scatter->from_block));
}

int64_t tierce_load_end(struct tierce_load *load, uint8_t *origins)
{
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    const struct tierce__scatter *scatter = &load->scatter;
    size_t blocks = scatter->to_block - scatter->from_block;
    TIERCE_DASSERT(scatter->from_block <= scatter->to_block);
    bool complete = load->next_layer == load->view->part.layer_count && !load->is_off;
    int64_t loaded = 0;
    if (origins != NULL)
        memset(origins, TIERCE_ORIGIN_FAILED, blocks);
    if (load->transit != NULL && !tierce__load_device_end(load)) {
        count_failed(load);
        tierce__load_device_keep(load);
        return 0;
    }
    for (size_t i = 0; complete && i < load->lease->count; i++) {
        load->loaded[i] = tierce__scatter_report(scatter, i, origins);
        loaded += load->loaded[i];
        TIERCE_DASSERT((uint64_t)loaded <= blocks);
    }
    if (!complete)
        count_failed(load);
    load->ops->end(load->lease, complete ? load->loaded : NULL);
    tierce__load_free(load);
    return loaded;
}

void tierce_load_abort(struct tierce_load *load)
{
    if (load == NULL)
        return;
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    if (tierce__engine_inherited(load->engine))
        return;
    if (load->transit != NULL && !tierce__load_device_end(load)) {
        tierce__load_device_keep(load);
        return;
    }
    load->ops->end(load->lease, NULL);
    tierce__load_free(load);
}

int64_t tierce_load(struct tierce_view *view, const struct tierce_transfer_opts *opts,
                    uint8_t *origins)
{
    struct tierce_load *load;
    int rc = tierce_load_begin(&load, view, opts);
    if (rc < 0)
        return rc;
    for (uint32_t layer = 0; layer < view->part.layer_count && rc == 0; layer++)
        rc = tierce_load_layer(load, layer);
    if (rc == 0)
        return tierce_load_end(load, origins);
    TIERCE_ASSERT(rc == TIERCE_E_UNSUPPORTED); /* the stream is being captured, or is_impossible */
    tierce_load_abort(load);
    return rc;
}
