/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load: chunks become the engine's paged KV. The tiers lend the chunks (loan.h). Each header is
 * checked once; each layer is written and verified in one pass (scatter.h); the end reports each
 * block.
 *
 * An error before the cells fails the whole chunk. A cell that does not verify fails only its
 * block. Wrong chunks are removed from their tier.
 *
 * A load that is larger than the memory that can be had for it goes through it chunk by chunk
 * (load_through): all layers of one, then its memory is the next one's.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "engine/node_client/client_transfer.h"
#include "engine/engine_private.h"
#include "engine/load/loan.h"
#include "engine/load/scatter.h"
#include "core/paged/paged.h"

struct tierce_load {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce_view *view;
    uint32_t next_layer; /* of the view's part */
    struct tierce__loan *loan;
    struct tierce__client_load *remote; /* instead of a loan: of a client of a node */
    struct tierce__scatter scatter;
    uint32_t *loaded; /* [scatter.count] blocks, at the end */
};

static void free_load(struct tierce_load *load)
{
    tierce__scatter_fini(&load->scatter);
    tierce__free(load->loaded);
    load->magic = 0;
    tierce__free(load);
}

/* Prepares to scatter the lent chunks. Errors: as of scatter_init. */
static int begin_scatter(struct tierce_load *load, const struct tierce_transfer_opts *opts)
{
    size_t count, hash_count;
    const uint8_t *root, *hashes;
    const struct tierce__lent *lent;
    if (load->remote != NULL) {
        hashes = tierce__client_load_hashes(load->remote, &hash_count, &root);
        lent = tierce__client_load_lent(load->remote, &count);
    } else {
        hashes = tierce__loan_hashes(load->loan, &hash_count, &root);
        lent = tierce__loan_lent(load->loan, &count);
    }
    int rc = tierce__scatter_init(&load->scatter, load->view, opts, lent, count, hashes, hash_count,
                                  root);
    if (rc < 0)
        return rc;
    load->loaded = tierce__calloc(count, sizeof(*load->loaded));
    return load->loaded != NULL ? 0 : -ENOMEM;
}

static int begin_load(struct tierce_load *load, const struct tierce_transfer_opts *opts)
{
    struct tierce_view *view = load->view;
    struct tierce__loan_what what = {.chain = opts->chain,
                                     .from_block = opts->from_block,
                                     .to_block = opts->to_block,
                                     .session = opts->session,
                                     .part = &view->part,
                                     .timeout_ms = opts->timeout_ms,
                                     .tiers = opts->tiers,
                                     .keeps_pins = view->part.count > 1};
    int rc = tierce__loan_begin(&load->loan, view, &what);
    if (rc < 0)
        return rc;
    rc = begin_scatter(load, opts);
    if (rc < 0)
        tierce__loan_end(load->loan, NULL);
    return rc;
}

static int begin_remote(struct tierce_load *load, const struct tierce_transfer_opts *opts)
{
    int rc = tierce__client_load_begin(&load->remote, load->view, opts);
    if (rc < 0)
        return rc;
    rc = begin_scatter(load, opts);
    if (rc == TIERCE_E_ARGUMENT) { /* the node lent a chunk of another chain: load nothing */
        tierce__client_load_give_back(load->remote);
        rc = begin_scatter(load, opts);
    }
    load->scatter.keeps_headers = true;
    if (rc < 0)
        tierce__client_load_end(load->remote, NULL);
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
    rc = view->engine->client != NULL ? begin_remote(load, opts) : begin_load(load, opts);
    if (rc < 0) {
        free_load(load);
        return rc;
    }
    *out = load;
    return 0;
}

/* ---- the two who lend ---- */

static bool wait_for(struct tierce_load *load, size_t i, uint32_t layer)
{
    if (load->remote != NULL)
        return tierce__client_load_is_here(load->remote, i);
    return tierce__loan_wait(load->loan, i, load->view->part.first_layer + layer);
}

static void refuse(struct tierce_load *load, size_t i, int why)
{
    if (load->remote != NULL)
        tierce__client_load_refuse(load->remote, i);
    else
        tierce__loan_refuse(load->loan, i, why);
}

static void spoil(struct tierce_load *load, size_t i)
{
    if (load->remote != NULL)
        tierce__client_load_spoil(load->remote, i);
    else
        tierce__loan_spoil(load->loan, i);
}

static void ahead(struct tierce_load *load, uint32_t layer)
{
    if (load->remote != NULL)
        tierce__client_load_ahead(load->remote, layer);
    else
        tierce__loan_ahead(load->loan, load->view->part.first_layer + layer);
}

static bool is_too_large(const struct tierce_load *load)
{
    return load->remote != NULL ? tierce__client_load_is_too_large(load->remote)
                                : tierce__loan_is_too_large(load->loan);
}

static bool take(struct tierce_load *load, size_t i)
{
    return load->remote != NULL ? tierce__client_load_take(load->remote, i)
                                : tierce__loan_take(load->loan, i);
}

/* Whether the lent memory may have been reused meanwhile. */
static bool is_over(const struct tierce_load *load)
{
    return load->remote != NULL && tierce__client_load_is_over(load->remote);
}

/* A node gets the chunk back with the request for the next one. */
static void give_back(struct tierce_load *load, size_t i)
{
    if (load->remote == NULL)
        tierce__loan_return(load->loan, i);
}

/* loaded: blocks of each chunk; NULL: the load is dropped. */
static void end_loan(struct tierce_load *load, const uint32_t *loaded)
{
    if (load->remote != NULL)
        tierce__client_load_end(load->remote, loaded);
    else
        tierce__loan_end(load->loan, loaded);
}

/* ---- layer by layer ---- */

/* Verifies and writes one layer of one chunk. */
static void move_layer(struct tierce_load *load, size_t i, uint32_t layer)
{
    struct tierce__scatter *scatter = &load->scatter;
    if (scatter->moved[i].failed)
        return;
    bool there = wait_for(load, i, layer);
    int rc = there ? tierce__scatter_check(scatter, i) : TIERCE_E_MISS;
    if (there && rc < 0)
        refuse(load, i, rc);
    if (rc < 0)
        tierce__scatter_fail(scatter, i);
    else if (tierce__scatter_layer(scatter, i, layer))
        spoil(load, i);
}

/* If other chunks may have overwritten the memory during the load, all chunks fail, even verified
 * ones: the sum and the copy may have read different bytes. */
static void fail_if_over(struct tierce_load *load)
{
    for (size_t i = 0; is_over(load) && i < load->scatter.count; i++)
        tierce__scatter_fail(&load->scatter, i);
}

/* Writes all layers of one chunk after the other, so that memory needs to hold few at a time. */
static void load_through(struct tierce_load *load)
{
    for (size_t i = 0; i < load->scatter.count; i++) {
        if (!take(load, i)) {
            tierce__scatter_fail(&load->scatter, i);
            continue;
        }
        for (uint32_t layer = 0; layer < load->view->part.layer_count; layer++)
            move_layer(load, i, layer);
        if (is_over(load))
            tierce__scatter_fail(&load->scatter, i);
        give_back(load, i);
    }
}

int tierce_load_layer(struct tierce_load *load, uint32_t layer)
{
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    if (layer != load->next_layer || layer >= load->view->part.layer_count)
        return TIERCE_E_ARGUMENT;
    load->next_layer++;
    if (is_too_large(load)) {
        if (layer == 0)
            load_through(load);
    } else {
        ahead(load, layer);
        for (size_t i = 0; i < load->scatter.count; i++)
            move_layer(load, i, layer);
        fail_if_over(load);
    }
    tierce__paged_row_end();
    return 0;
}

int64_t tierce_load_end(struct tierce_load *load, uint8_t *origins)
{
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    const struct tierce__scatter *scatter = &load->scatter;
    size_t blocks = scatter->to_block - scatter->from_block;
    bool complete = load->next_layer == load->view->part.layer_count;
    int64_t loaded = 0;
    if (origins != NULL)
        memset(origins, TIERCE_ORIGIN_FAILED, blocks);
    for (size_t i = 0; complete && i < scatter->count; i++) {
        load->loaded[i] = tierce__scatter_report(scatter, i, origins);
        loaded += load->loaded[i];
    }
    if (!complete)
        tierce__count(load->engine, TIERCE__STAT_blocks_failed, (int64_t)blocks);
    end_loan(load, complete ? load->loaded : NULL);
    free_load(load);
    return loaded;
}

void tierce_load_abort(struct tierce_load *load)
{
    if (load == NULL)
        return;
    TIERCE_CHECK_MAGIC(load, TIERCE__LOAD_MAGIC);
    if (tierce__engine_inherited(load->engine))
        return;
    end_loan(load, NULL);
    free_load(load);
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
    TIERCE_ASSERT(rc == 0);
    return tierce_load_end(load, origins);
}
