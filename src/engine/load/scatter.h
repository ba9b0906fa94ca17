/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_SCATTER_H
#define TIERCE_ENGINE_SCATTER_H

#include "core/device/device.h"
#include "engine/view.h"
#include "engine/load/load_lease.h"

/*
 * The half of a load that accesses the inference engine's memory: it copies the cells of chunk
 * objects there and verifies them during the copy, after it has compared the header in full. It
 * trusts nothing in an object but its length.
 *
 * Thread: one at a time. Layers are those of the view's part.
 */

struct tierce__moved {
    uint8_t *header; /* a copy, or NULL: that in the object; on a device, the caller makes it */
    bool header_good;
    bool failed;    /* no block of it is loaded */
    bool any_bad;   /* a cell did not verify, so its block is not loaded */
    bool first_bad; /* in the layer that is being loaded; load.c */
    bool passed;    /* all its layers have been copied; load_device.c */
};

struct tierce__scatter {
    const struct tierce_view *view; /* [borrow] all three; fini does not use them */
    const struct tierce_paged *paged;
    const struct tierce__load_lease *lease;
    size_t from_block, to_block;
    int32_t *block_ids;          /* [to_block] */
    uint8_t *good;               /* [to_block] 1 until a block fails */
    struct tierce__moved *moved; /* [count] */
    size_t count;
    struct tierce__shape shapes[TIERCE__LEASED_SIBLING + 1]; /* of each kind that is leased */
    /*
     * Other processes may write to the objects meanwhile. So a header is copied before it is
     * checked, and cells are verified against the sums of the copy. If another chunk replaces this
     * one in memory, its header with its own sums is not used.
     */
    bool keeps_headers;
};

/* Whether each leased chunk belongs to the sequence and has the right length: a node may send
 * anything. */
bool tierce__scatter_fits(const struct tierce__load_lease *lease, uint64_t from_block,
                          uint64_t to_block);

/* [in] opts: its block_ids are copied; lease: of chunks that fit. Errors, and *scatter is as after
 * fini: -ENOMEM. */
TIERCE_MUSTUSE int tierce__scatter_init(struct tierce__scatter *scatter,
                                        const struct tierce_transfer_opts *opts,
                                        const struct tierce__load_lease *lease);
void tierce__scatter_fini(struct tierce__scatter *scatter);

/* No block of the chunk is loaded. */
void tierce__scatter_fail(struct tierce__scatter *scatter, size_t i);

/* Whether two layers have the same base, so that a layer overwrites another one: then the layers of
 * a chunk must not be written together. */
bool tierce__scatter_overlaps(const struct tierce__scatter *scatter);

/* Memory for a copy of the header, which the caller fills, of a chunk in the memory of a device.
 * NULL: no memory. */
uint8_t *tierce__scatter_header(struct tierce__scatter *scatter, size_t i, uint64_t *bytes);

/* 0 if the header in the object is that of the wanted chunk; otherwise the error. */
TIERCE_MUSTUSE int tierce__scatter_check(struct tierce__scatter *scatter, size_t i);

/* Writes a layer of a chunk whose header was good. Returns whether a cell did not verify for the
 * first time. */
TIERCE_MUSTUSE bool tierce__scatter_layer(struct tierce__scatter *scatter, size_t i,
                                          uint32_t layer);

/* The same for memory of a device: describes the copy of a layer, which the caller enqueues and
 * settles. A chunk that has failed has no cells. [out] row: borrows from the scatter and from the
 * leased chunk. */
void tierce__scatter_row(const struct tierce__scatter *scatter, struct tierce__device_row *row,
                         size_t i, uint32_t layer);

/* Origins of the chunk's wanted blocks (or NULL, or those of all blocks from from_block on);
 * returns how many were loaded. */
uint32_t tierce__scatter_report(const struct tierce__scatter *scatter, size_t i, uint8_t *origins);

#endif
