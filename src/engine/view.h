/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_VIEW_H
#define TIERCE_ENGINE_VIEW_H

#include "base/assert.h"
#include "core/chunk/header.h"
#include "core/key/group.h"
#include "core/key/key.h"
#include "engine/engine.h"
#include "engine/health/cost.h"
#include "engine/observe/access_log.h"

/*
 * A view: a namespace and a shard of an engine, with the shapes of its chunks, and the keys of a
 * chain. Thread: any, except that keys belong to one at a time.
 */

struct tierce__storage_chunk;

/* One chunk shape of a view: a value, which borrows from the view. */
struct tierce__shape {
    struct tierce__geometry geometry;
    struct tierce__extent extent;
    const uint64_t *cells_before; /* [layer_count + 1] see tierce__shape_offset */
    /*
     * For readers (tierce__shape_cut): the object divided into segments at layer ends, rounded up
     * to 4096. A segment is read in one request. It is one layer, or several small layers that are
     * large enough together.
     */
    uint32_t segment_count;
    uint64_t *segment_end;   /* [segment_count] in the object; the last is the object's end */
    uint32_t *layer_segment; /* [layer_count] the segment in which the layer ends */
};

struct tierce_view {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce__list node; /* under ENGINE: among the engine's views */
    uint32_t borrowers;       /* under ENGINE: closing waits for them */
    char *text;               /* canonical namespace */
    uint8_t ns_digest[TIERCE_HASH_BYTES];
    enum tierce_chain_algo algo;
    uint32_t chunk_blocks;
    struct tierce__key key; /* template: namespace and shard */
    uint32_t *cell_bytes;
    uint64_t *cells_before;  /* [layer_count + 1] bytes of a block's cells in the layers before */
    enum tierce_group group; /* group, window and layers: as in the namespace */
    uint32_t window;
    uint32_t *layers;
    struct tierce__shape full;          /* of the whole chunk */
    struct tierce_part part;            /* the layers that loads and stores of the view move */
    struct tierce__client_view *remote; /* of a client of a node */
    struct tierce__prefill prefill;
};

/* A view that is open on this namespace and shard, until it is given back, or NULL. For short uses
 * only, because closing the view waits for them. */
struct tierce_view *tierce__view_borrow(struct tierce_engine *engine,
                                        const struct tierce__key *key);
/* The same by a number from 0 on; NULL: there are no more. Views that are opened or closed
 * meanwhile may be left out. */
struct tierce_view *tierce__view_borrow_nth(struct tierce_engine *engine, size_t index);
void tierce__view_give_back(struct tierce_view *view);

/* The shape of a chunk of `blocks` blocks, at most chunk_blocks, without segments. */
struct tierce__shape tierce__shape_of(const struct tierce_view *view, uint32_t blocks);

/* Adds the segments; fini frees them. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__shape_cut(struct tierce__shape *shape);
void tierce__shape_fini(struct tierce__shape *shape);

/* The offset of a layer in the object; for layer_count, the end of the last layer. */
static inline uint64_t tierce__shape_offset(const struct tierce__shape *shape, uint32_t layer)
{
    TIERCE_DASSERT(layer <= shape->geometry.layer_count);
    return shape->extent.header_bytes + shape->cells_before[layer] * shape->geometry.block_count;
}

/*
 * The chunks that hold chain[0, to_block): keys of the whole ones and, last, of the partial tail
 * that ends at end_block, if `tail` is set. A store's chunks end where its blocks end
 * (end_block == to_block); a lookup or load may want only the first blocks of the last chunk, whose
 * key then depends on blocks after to_block, up to the end of the chain.
 */
struct tierce__keys {
    struct tierce__key *keys;
    size_t count; /* with the tail */
    size_t full_count;
    uint32_t tail_blocks; /* 0: no tail among the keys */
    size_t block_count;   /* blocks of all these chunks */
    struct tierce__key small[64];
};

TIERCE_MUSTUSE int tierce__keys_init(struct tierce__keys *keys, const struct tierce_view *view,
                                     const struct tierce_chain *chain, uint64_t to_block,
                                     uint64_t end_block, bool tail);
void tierce__keys_fini(struct tierce__keys *keys);

/* Whether the last of these keys is the chain's last: the rest of the chain is less than a chunk.
 */
static inline bool tierce__keys_end(const struct tierce_view *view,
                                    const struct tierce_chain *chain, uint64_t to_block)
{
    TIERCE_DASSERT(to_block <= tierce_chain_blocks(chain));
    return tierce_chain_blocks(chain) - to_block < view->chunk_blocks;
}

/* The first chunk that begins at or after from_block; keys->count if there is none. */
size_t tierce__keys_first(const struct tierce__keys *keys, const struct tierce_view *view,
                          uint64_t from_block);
/* Wanted blocks, those before to_block, that the first `chunks` keys hold. */
uint64_t tierce__keys_blocks(const struct tierce__keys *keys, const struct tierce_view *view,
                             size_t chunks, uint64_t to_block);

/*
 * The required contents of the header of chunk `index` of a sequence, except its creation time: a
 * store writes them, a load compares them. [in] hashes: of all blocks of the sequence from 0 on;
 * root: the parent of block 0.
 */
void tierce__view_chunk_info(struct tierce__chunk_info *info, const struct tierce_view *view,
                             const struct tierce__shape *shape, size_t index, const uint8_t *hashes,
                             const uint8_t *root);

/* Whether the header of `object` is that of chunk `index` of a sequence, in full; [in] as above.
 * Returns 0 or why not. */
TIERCE_MUSTUSE int tierce__view_check_header(const struct tierce_view *view,
                                             const struct tierce__shape *shape, size_t index,
                                             const uint8_t *hashes, const uint8_t *root,
                                             const uint8_t *object);

/* The same without a hash, for a chunk that begins with the same blocks and then differs. */
void tierce__view_place_info(struct tierce__chunk_info *info, const struct tierce_view *view,
                             const struct tierce__shape *shape, size_t index, const uint8_t *hashes,
                             const uint8_t *root);

/* The record of chunk `index` of a sequence; [in] hashes as above. */
void tierce__view_describe(struct tierce__storage_chunk *out, const struct tierce_view *view,
                           const struct tierce__keys *keys, const struct tierce__shape *shape,
                           size_t index, const uint8_t *hashes);

/* Whether a chunk of the view can be used without the chunks before it. */
static inline bool tierce__view_is_sparse(const struct tierce_view *view)
{
    return tierce__group_is_sparse(view->group);
}

static inline struct tierce__layer_group tierce__view_group(const struct tierce_view *view)
{
    return (struct tierce__layer_group){view->group, view->window, view->full.geometry.block_tokens,
                                        view->chunk_blocks};
}

/* sizeof(struct tierce_transfer_opts) of programs that were built when it ended with `write`. Their
 * memory is that of the host; they have no field `stream`. */
#define TIERCE__TRANSFER_BYTES_V1 88u

static inline void *tierce__transfer_stream(const struct tierce_transfer_opts *opts)
{
    return opts->size == TIERCE__TRANSFER_BYTES_V1 ? NULL : opts->stream;
}

/* Checks the parts of transfer options that do not depend on store or load. */
TIERCE_MUSTUSE int tierce__transfer_check(const struct tierce_view *view,
                                          const struct tierce_transfer_opts *opts);

/* How long a lookup may wait for remote stores. */
static inline uint32_t tierce__lookup_wait_ms(const struct tierce_view *view,
                                              const struct tierce_lookup_opts *opts)
{
    uint32_t ms = view->engine->settings.lookup_ms;
    return opts->wait_ms > 0 && opts->wait_ms < ms ? opts->wait_ms : ms;
}

/* Begins a line about the first `what.count` blocks of a chain, if there is a log. */
static inline void tierce__view_access(struct tierce_view *view, struct tierce__line *line,
                                       const char *op, const struct tierce_chain *chain,
                                       struct tierce__access_what what)
{
    *line = (struct tierce__line){0};
    /* A request with several groups has one line for its lookup and one for its store: those of its
     * full group. */
    if (view->engine->access_log == NULL || what.count == 0 || tierce__view_is_sparse(view))
        return;
    what.ns_digest = view->ns_digest;
    what.hashes = tierce_chain_hash(chain, 0);
    what.block_tokens = view->full.geometry.block_tokens;
    tierce__access_begin(view->engine->access_log, line, op, &what);
}

#endif
