/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/load/scatter.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/load/sibling.h"
#include "core/paged/paged.h"

static const struct tierce__shape *shape_of(const struct tierce__scatter *scatter,
                                            const struct tierce__leased *leased)
{
    return &scatter->shapes[leased->kind];
}

static size_t first_block(const struct tierce__scatter *scatter,
                          const struct tierce__leased *leased)
{
    TIERCE_DASSERT(leased->index * (uint64_t)scatter->view->chunk_blocks <=
                   scatter->lease->hash_count);
    return leased->index * scatter->view->chunk_blocks;
}

/* The blocks that a chunk of this kind has, or 0 if there is none. */
static size_t blocks_of(const struct tierce__load_lease *lease, const struct tierce__leased *leased)
{
    size_t full = lease->view->chunk_blocks;
    TIERCE_DASSERT(leased->index * full <= lease->hash_count);
    size_t left = lease->hash_count - leased->index * full;
    switch (leased->kind) {
    case TIERCE__LEASED_FULL:
        return left >= full ? full : 0;
    case TIERCE__LEASED_TAIL:
        return left < full ? left : 0;
    case TIERCE__LEASED_SIBLING:
        return leased->to <= left && leased->block_count <= full ? leased->block_count : 0;
    }
    return 0;
}

/* Whether an object has the length of a chunk of its blocks. */
static bool is_as_long(const struct tierce_view *view, const struct tierce__leased *leased)
{
    TIERCE_DASSERT(leased->block_count > 0 && leased->block_count <= view->chunk_blocks);
    return leased->bytes == tierce__shape_of(view, leased->block_count).extent.object_bytes;
}

bool tierce__scatter_fits(const struct tierce__load_lease *lease, uint64_t from_block,
                          uint64_t to_block)
{
    size_t full = lease->view->chunk_blocks, others[TIERCE__LEASED_SIBLING + 1] = {0};
    for (size_t i = 0; i < lease->count; i++) {
        const struct tierce__leased *leased = &lease->leased[i];
        if (leased->index > lease->hash_count / full ||
            (i > 0 && leased->index <= leased[-1].index))
            return false;
        uint64_t first = (uint64_t)leased->index * full;
        if (leased->block_count == 0 || leased->block_count != blocks_of(lease, leased) ||
            leased->from > leased->to || leased->to > leased->block_count ||
            first + leased->from < from_block || first + leased->to > to_block)
            return false;
        bool is_second = leased->kind != TIERCE__LEASED_FULL && others[leased->kind]++ > 0;
        if (is_second || (!leased->failed && !is_as_long(lease->view, leased)))
            return false;
    }
    return true;
}

int tierce__scatter_init(struct tierce__scatter *scatter, const struct tierce_transfer_opts *opts,
                         const struct tierce__load_lease *lease)
{
    TIERCE_DASSERT(tierce__scatter_fits(lease, opts->from_block, opts->to_block));
    *scatter = (struct tierce__scatter){.view = lease->view,
                                        .paged = opts->paged,
                                        .lease = lease,
                                        .count = lease->count,
                                        .from_block = (size_t)opts->from_block,
                                        .to_block = (size_t)opts->to_block,
                                        .keeps_headers = lease->over_ns != TIERCE__DEADLINE_NEVER};
    TIERCE_DASSERT(scatter->from_block <= scatter->to_block);
    size_t blocks = scatter->to_block;
    scatter->shapes[TIERCE__LEASED_FULL] = lease->view->full;
    for (size_t i = 0; i < lease->count; i++) {
        const struct tierce__leased *leased = &lease->leased[i];
        if (leased->kind != TIERCE__LEASED_FULL) /* one of a kind at most */
            scatter->shapes[leased->kind] = tierce__shape_of(lease->view, leased->block_count);
    }
    scatter->block_ids = tierce__calloc(blocks, sizeof(*scatter->block_ids));
    scatter->good = tierce__alloc(blocks);
    scatter->moved = tierce__calloc(lease->count, sizeof(*scatter->moved));
    if (scatter->block_ids == NULL || scatter->good == NULL || scatter->moved == NULL) {
        tierce__scatter_fini(scatter);
        return -ENOMEM;
    }
    if (blocks > 0) {
        memcpy(scatter->block_ids, opts->block_ids, blocks * sizeof(*scatter->block_ids));
        memset(scatter->good, 1, blocks);
    }
    for (size_t i = 0; i < lease->count; i++) {
        if (lease->leased[i].failed)
            tierce__scatter_fail(scatter, i);
    }
    return 0;
}

void tierce__scatter_fini(struct tierce__scatter *scatter)
{
    for (size_t i = 0; scatter->moved != NULL && i < scatter->count; i++)
        tierce__free(scatter->moved[i].header);
    tierce__free(scatter->block_ids);
    tierce__free(scatter->good);
    tierce__free(scatter->moved);
    *scatter = (struct tierce__scatter){0};
}

void tierce__scatter_fail(struct tierce__scatter *scatter, size_t i)
{
    const struct tierce__leased *leased = &scatter->lease->leased[i];
    TIERCE_DASSERT(i < scatter->count && leased->from <= leased->to);
    TIERCE_ASSERT(first_block(scatter, leased) + leased->to <= scatter->to_block);
    scatter->moved[i].failed = true;
    memset(scatter->good + first_block(scatter, leased) + leased->from, 0,
           leased->to - leased->from);
}

bool tierce__scatter_overlaps(const struct tierce__scatter *scatter)
{
    const struct tierce_paged *paged = scatter->paged;
    bool overlaps = false;
    for (uint32_t i = 1; i < paged->layer_count; i++) {
        for (uint32_t j = 0; j < i; j++)
            overlaps |= paged->layers[i].base == paged->layers[j].base;
    }
    return overlaps;
}

uint8_t *tierce__scatter_header(struct tierce__scatter *scatter, size_t i, uint64_t *bytes)
{
    struct tierce__moved *moved = &scatter->moved[i];
    *bytes = shape_of(scatter, &scatter->lease->leased[i])->extent.header_bytes;
    TIERCE_DASSERT(*bytes <= scatter->lease->leased[i].bytes);
    if (moved->header == NULL)
        moved->header = tierce__alloc(*bytes);
    return moved->header;
}

/* The header that is checked, and whose sums are used for verification; NULL for no memory. */
static uint8_t *take_header(struct tierce__scatter *scatter, size_t i)
{
    const struct tierce__leased *leased = &scatter->lease->leased[i];
    uint64_t bytes;
    TIERCE_DASSERT(leased->block_count == shape_of(scatter, leased)->geometry.block_count);
    if (leased->on_device)
        return scatter->moved[i].header;
    if (!scatter->keeps_headers)
        return leased->object;
    uint8_t *header = tierce__scatter_header(scatter, i, &bytes);
    if (header != NULL)
        memcpy(header, leased->object, bytes);
    return header;
}

int tierce__scatter_check(struct tierce__scatter *scatter, size_t i)
{
    const struct tierce__leased *leased = &scatter->lease->leased[i];
    const struct tierce__shape *shape = shape_of(scatter, leased);
    TIERCE_DASSERT(i < scatter->count && !scatter->moved[i].failed);
    if (scatter->moved[i].header_good)
        return 0;
    const uint8_t *header = take_header(scatter, i);
    if (header == NULL)
        return -ENOMEM;
    int rc;
    if (leased->kind != TIERCE__LEASED_SIBLING) {
        rc = tierce__view_check_header(scatter->view, shape, leased->index, scatter->lease->hashes,
                                       scatter->lease->root, header);
    } else {
        struct tierce__sibling_want want = {.index = leased->index,
                                            .from = leased->from,
                                            .to = leased->to,
                                            .hashes = scatter->lease->hashes,
                                            .root = scatter->lease->root};
        rc = tierce__sibling_check(scatter->view, shape, &want, leased->hash, header);
        /* Fewer than when it was found: the bytes have changed. */
        if (rc >= 0)
            rc = rc == (int)leased->to ? 0 : TIERCE_E_IDENTITY;
    }
    scatter->moved[i].header_good = rc == 0;
    TIERCE_DASSERT(rc <= 0);
    return rc;
}

/* The position of a layer's first wanted cell in the object. */
static uint64_t first_cell(const struct tierce__scatter *scatter,
                           const struct tierce__leased *leased, uint32_t of_chunk)
{
    const struct tierce__shape *shape = shape_of(scatter, leased);
    TIERCE_DASSERT(of_chunk < shape->geometry.layer_count);
    return tierce__shape_offset(shape, of_chunk) +
           (uint64_t)shape->geometry.cell_bytes[of_chunk] * leased->from;
}

/* The wanted cells of a layer in a chunk whose header was valid. */
static struct tierce__cells cells_of(const struct tierce__scatter *scatter, size_t i,
                                     uint32_t of_chunk)
{
    const struct tierce__leased *leased = &scatter->lease->leased[i];
    const struct tierce__shape *shape = shape_of(scatter, leased);
    TIERCE_DASSERT(scatter->moved[i].header_good && !scatter->moved[i].failed);
    bool is_copied = scatter->keeps_headers || leased->on_device;
    uint8_t *header = is_copied ? scatter->moved[i].header : leased->object;
    struct tierce__cells cells = {.bytes = leased->object + first_cell(scatter, leased, of_chunk),
                                  .sums = tierce__chunk_sums(header, &shape->geometry, of_chunk) +
                                          leased->from,
                                  .count = leased->to - leased->from};
    TIERCE_DASSERT(first_cell(scatter, leased, of_chunk) +
                       (uint64_t)cells.count * shape->geometry.cell_bytes[of_chunk] <=
                   leased->bytes);
    return cells;
}

void tierce__scatter_row(const struct tierce__scatter *scatter, struct tierce__device_row *row,
                         size_t i, uint32_t layer)
{
    const struct tierce__leased *leased = &scatter->lease->leased[i];
    size_t block = first_block(scatter, leased) + leased->from;
    TIERCE_DASSERT(i < scatter->count && block >= scatter->from_block);
    *row = (struct tierce__device_row){.layer = layer};
    if (scatter->moved[i].failed)
        return;
    row->ids = scatter->block_ids + block;
    row->cells = cells_of(scatter, i, scatter->view->part.first_layer + layer);
    row->good = scatter->good + block;
    TIERCE_DASSERT(block + row->cells.count <= scatter->to_block);
}

bool tierce__scatter_layer(struct tierce__scatter *scatter, size_t i, uint32_t layer)
{
    const struct tierce__leased *leased = &scatter->lease->leased[i];
    const struct tierce__shape *shape = shape_of(scatter, leased);
    uint32_t of_chunk = scatter->view->part.first_layer + layer;
    uint64_t blocks = scatter->to_block - scatter->from_block;
    size_t block = first_block(scatter, leased) + leased->from;
    TIERCE_DASSERT(block >= scatter->from_block);
    struct tierce__cells cells = cells_of(scatter, i, of_chunk);
    TIERCE_DASSERT(block + cells.count <= scatter->to_block);
    struct tierce__row row = {.bytes = blocks * shape->geometry.cell_bytes[of_chunk]};
    if (i + 1 < scatter->count && leased[1].object != NULL)
        row.next = leased[1].object + first_cell(scatter, leased + 1, of_chunk);
    int bad = tierce__paged_scatter(scatter->paged, layer, scatter->block_ids + block, &cells,
                                    scatter->good + block, &row);
    TIERCE_ASSERT(bad >= 0); /* ids and layer were checked at begin */
    bool is_first = bad > 0 && !scatter->moved[i].any_bad;
    scatter->moved[i].any_bad |= bad > 0;
    return is_first;
}

uint32_t tierce__scatter_report(const struct tierce__scatter *scatter, size_t i, uint8_t *origins)
{
    const struct tierce__leased *leased = &scatter->lease->leased[i];
    uint32_t loaded = 0;
    TIERCE_DASSERT(first_block(scatter, leased) + leased->to <= scatter->to_block);
    for (uint32_t b = leased->from; b < leased->to; b++) {
        size_t block = first_block(scatter, leased) + b;
        bool good = !scatter->moved[i].failed && scatter->good[block] != 0;
        loaded += good;
        if (origins != NULL)
            origins[block - scatter->from_block] =
                good ? (uint8_t)leased->origin : (uint8_t)TIERCE_ORIGIN_FAILED;
    }
    TIERCE_DASSERT(loaded <= leased->to - leased->from);
    return loaded;
}
