/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_GATHER_H
#define TIERCE_ENGINE_GATHER_H

#include "core/device/device.h"
#include "engine/view.h"
#include "engine/store/reserve.h"

/*
 * The half of a store that accesses the inference engine's memory: it copies the cells to the rooms
 * (reserved chunks, reserve.h) that this process or a node has reserved, and computes their sums
 * during the copy.
 *
 * Thread: one at a time.
 */

struct tierce__gather {
    const struct tierce_view *view; /* [borrow until fini] all four */
    const struct tierce_paged *paged;
    const struct tierce__room *rooms; /* [count] whose objects have the lengths of their shapes */
    size_t count;
    uint32_t next_layer;       /* of the view's part */
    int32_t *block_ids;        /* [to_block] */
    struct tierce__shape last; /* of the last room, whose chunk may be partial */
};

/* Whether each room is a chunk of blocks [from_block, to_block): ids before from_block need not be
 * blocks. The check is required because a node's answer may be wrong. */
bool tierce__gather_fits(const struct tierce_view *view, const struct tierce__room *rooms,
                         size_t count, const struct tierce_transfer_opts *opts);

/* Begins a gather into rooms that fit (tierce__gather_fits); copies block_ids. Errors, and *gather
 * is as after fini: -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__gather_init(struct tierce__gather *gather,
                                       const struct tierce_view *view,
                                       const struct tierce_transfer_opts *opts,
                                       const struct tierce__room *rooms, size_t count);
void tierce__gather_fini(struct tierce__gather *gather);

/* The next layer of the part. Errors: TIERCE_E_ARGUMENT (it is not `layer`). */
TIERCE_MUSTUSE int tierce__gather_layer(struct tierce__gather *gather, uint32_t layer);

/* The same for memory of a device: describes the copy, which the caller enqueues. [out] rows:
 * [count]; they borrow from the gather. */
TIERCE_MUSTUSE int tierce__gather_rows(struct tierce__gather *gather,
                                       struct tierce__device_row *rows, uint32_t layer);

static inline bool tierce__gather_is_complete(const struct tierce__gather *gather)
{
    return gather->next_layer == gather->view->part.layer_count;
}

#endif
