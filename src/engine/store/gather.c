/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/store/gather.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/threads.h"
#include "core/paged/paged.h"

static const struct tierce__shape *shape_of(const struct tierce__gather *gather,
                                            const struct tierce__room *room)
{
    uint32_t full = gather->view->chunk_blocks;
    TIERCE_DASSERT(room->block_count <= full);
    TIERCE_DASSERT(room->block_count == full ||
                   room->block_count == gather->last.geometry.block_count);
    return room->block_count == full ? &gather->view->full : &gather->last;
}

/* There is a room. Each follows the room before it. It is a whole chunk, or the partial chunk at
 * the end. */
bool tierce__gather_fits(const struct tierce_view *view, const struct tierce__room *rooms,
                         size_t count, const struct tierce_transfer_opts *opts)
{
    uint64_t full = view->chunk_blocks;
    for (size_t i = 0; i < count; i++) {
        const struct tierce__room *room = &rooms[i];
        if (room->index > opts->to_block / full || room->index * full < opts->from_block ||
            (i > 0 && room->index <= room[-1].index))
            return false;
        uint64_t left = opts->to_block - room->index * full;
        if (room->block_count != (left < full ? left : full) || room->block_count == 0)
            return false;
    }
    return count > 0;
}

int tierce__gather_init(struct tierce__gather *gather, const struct tierce_view *view,
                        const struct tierce_transfer_opts *opts, const struct tierce__room *rooms,
                        size_t count)
{
    *gather =
        (struct tierce__gather){.view = view, .paged = opts->paged, .rooms = rooms, .count = count};
    TIERCE_DASSERT(tierce__gather_fits(view, rooms, count, opts));
    TIERCE_DASSERT(count > 0);
    gather->last = tierce__shape_of(view, rooms[count - 1].block_count);
    size_t bytes = (size_t)opts->to_block * sizeof(*gather->block_ids);
    gather->block_ids = tierce__alloc(bytes);
    if (gather->block_ids == NULL) {
        tierce__gather_fini(gather);
        return -ENOMEM;
    }
    memcpy(gather->block_ids, opts->block_ids, bytes);
    return 0;
}

void tierce__gather_fini(struct tierce__gather *gather)
{
    tierce__free(gather->block_ids);
    *gather = (struct tierce__gather){0};
}

static size_t first_block(const struct tierce__gather *gather, const struct tierce__room *room)
{
    TIERCE_DASSERT(room >= gather->rooms && room < gather->rooms + gather->count);
    return room->index * gather->view->chunk_blocks;
}

static const void *block_at(const struct tierce__gather *gather, uint32_t layer, size_t block)
{
    const struct tierce_paged_layer *l = &gather->paged->layers[layer];
    TIERCE_DASSERT(gather->block_ids[block] >= 0);
    TIERCE_DASSERT(layer < gather->paged->layer_count &&
                   (uint32_t)gather->block_ids[block] < gather->paged->block_count);
    return (const uint8_t *)l->base + (uint64_t)gather->block_ids[block] * l->block_stride;
}

/* The cells of a layer in a room. */
static struct tierce__cells cells_of(const struct tierce__gather *gather, size_t i, uint32_t layer)
{
    const struct tierce__room *room = &gather->rooms[i];
    const struct tierce__shape *shape = shape_of(gather, room);
    uint32_t of_chunk = gather->view->part.first_layer + layer;
    TIERCE_DASSERT(i < gather->count && of_chunk < shape->geometry.layer_count);
    TIERCE_DASSERT(tierce__shape_offset(shape, of_chunk) +
                       (uint64_t)shape->geometry.cell_bytes[of_chunk] * room->block_count <=
                   room->bytes);
    return (struct tierce__cells){.bytes = room->object + tierce__shape_offset(shape, of_chunk),
                                  .sums =
                                      tierce__chunk_sums(room->object, &shape->geometry, of_chunk),
                                  .count = room->block_count};
}

static void gather_room(struct tierce__gather *gather, size_t i, uint32_t layer)
{
    const struct tierce__room *room = &gather->rooms[i];
    struct tierce__row row = {0};
    if (i + 1 < gather->count)
        row.next = block_at(gather, layer, first_block(gather, room + 1));
    struct tierce__cells cells = cells_of(gather, i, layer);
    int rc = tierce__paged_gather(gather->paged, layer,
                                  gather->block_ids + first_block(gather, room), &cells, &row);
    TIERCE_ASSERT(rc == 0); /* ids and layer were checked at begin */
}

struct gathering {
    struct tierce__gather *gather;
    uint32_t layer;
};

static void gather_rooms(void *arg, size_t from, size_t to)
{
    const struct gathering *gathering = arg;
    TIERCE_DASSERT(from <= to && to <= gathering->gather->count);
    TIERCE_DASSERT(gathering->layer < gathering->gather->view->part.layer_count);
    for (size_t i = from; i < to; i++)
        gather_room(gathering->gather, i, gathering->layer);
    tierce__paged_row_end();
}

static int begin_layer(struct tierce__gather *gather, uint32_t layer)
{
    if (layer != gather->next_layer || layer >= gather->view->part.layer_count)
        return TIERCE_E_ARGUMENT;
    gather->next_layer++;
    TIERCE_DASSERT(gather->next_layer <= gather->view->part.layer_count);
    return 0;
}

int tierce__gather_rows(struct tierce__gather *gather, struct tierce__device_row *rows,
                        uint32_t layer)
{
    int rc = begin_layer(gather, layer);
    for (size_t i = 0; i < gather->count && rc == 0; i++)
        rows[i] = (struct tierce__device_row){.layer = layer,
                                              .ids = gather->block_ids +
                                                     first_block(gather, &gather->rooms[i]),
                                              .cells = cells_of(gather, i, layer)};
    return rc;
}

int tierce__gather_layer(struct tierce__gather *gather, uint32_t layer)
{
    int rc = begin_layer(gather, layer);
    if (rc < 0)
        return rc;
    struct gathering gathering = {.gather = gather, .layer = layer};
    tierce__workers_share(gather->view->engine->copiers, gather->count, gather_rooms, &gathering);
    return 0;
}
