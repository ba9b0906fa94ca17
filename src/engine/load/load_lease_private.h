/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_LOAD_LEASE_PRIVATE_H
#define TIERCE_ENGINE_LOAD_LEASE_PRIVATE_H

#include "base/assert.h"
#include "engine/load/load_lease.h"
#include "engine/observe/operate.h"
#include "engine/view.h"

/*
 * The lease of an engine's own tiers, shared by load_lease.c, load_elsewhere.c and load_direct.c.
 * load_direct.c reads chunks into a buffer in the memory of a device (engine/device/direct.h).
 */

struct tierce__lease_chunk {
    uint32_t level;     /* 0: leased in memory; else the level that it is read from */
    bool waits;         /* no memory was available for it at begin */
    bool spoiled;       /* a cell did not verify */
    bool was_direct;    /* it has arrived in the memory of a device */
    bool avoids_device; /* it cannot be read into the memory of a device */
};

struct tierce__own_lease {
    struct tierce__load_lease base;
    struct tierce_engine *engine;
    struct tierce_part part;
    uint64_t deadline_ns;
    uint64_t soon_ns; /* until then begin may wait */
    uint64_t session;
    enum tierce_mode mode; /* in which it began */
    uint32_t levels;       /* a bit for each level that it may read from; 0 in bypass */
    uint32_t next_turn;    /* read-ahead: the first turn not yet requested, for all chunks */
    bool passes;           /* counted in engine->passing */
    bool ends;             /* the last key is the chain's last */
    bool follows;
    size_t from_block, block_count;
    struct tierce__pool *direct; /* in the memory of the load's device, or NULL */
    struct tierce__buf **bufs;   /* [count] NULL: the chunk has failed, waits or is complete */
    struct tierce__lease_chunk
        *chunks; /* [count]; base.leased, bufs and chunks are one allocation */
    struct tierce__fetch_waiter
        *waiters;        /* [count] of the chunks that are read, or NULL as long as none is */
    uint8_t *own_hashes; /* base.hashes, or NULL: they are the chain's */
    struct tierce__shape shapes[TIERCE__LEASED_SIBLING + 1]; /* [FULL]: the view's */
    struct tierce__key sibling_key;
    struct tierce__keys keys;
};

static inline const struct tierce__shape *tierce__lease_shape(const struct tierce__own_lease *lease,
                                                              size_t i)
{
    TIERCE_DASSERT(i < lease->base.count);
    return &lease->shapes[lease->base.leased[i].kind];
}

static inline const struct tierce__key *tierce__lease_key(const struct tierce__own_lease *lease,
                                                          size_t i)
{
    const struct tierce__leased *leased = &lease->base.leased[i];
    TIERCE_DASSERT(i < lease->base.count && leased->index < lease->keys.count);
    return leased->kind == TIERCE__LEASED_SIBLING ? &lease->sibling_key
                                                  : &lease->keys.keys[leased->index];
}

/* NULL: the chunk is not read from a slower tier. */
static inline struct tierce__fetch_waiter *
tierce__lease_waiter(const struct tierce__own_lease *lease, size_t i)
{
    TIERCE_DASSERT(i < lease->base.count);
    bool is_taken = lease->waiters != NULL && lease->waiters[i].fetch != NULL;
    return is_taken ? &lease->waiters[i] : NULL;
}

/* ---- load_lease.c ---- */

/* Joins or begins a fetch of a chunk without memory, into memory or the given pool; or leases it,
 * if it is in memory by now. bufs[i] stays NULL if there is no room. */
void tierce__lease_join(struct tierce__own_lease *lease, size_t i, struct tierce__pool *pool);

/* Releases the memory of a chunk, and leaves its fetch. */
void tierce__lease_let_go(struct tierce__own_lease *lease, size_t i);

/* Waits for a layer of a chunk that is fetched into memory, and for its header. */
TIERCE_MUSTUSE bool tierce__lease_wait(struct tierce__own_lease *lease, size_t i, uint32_t layer);

/* ---- load_elsewhere.c ---- */

/*
 * Reads a chunk from another level, if its fetch into memory has failed before its first layer was
 * used: a peer may be gone, and a remote store have the same chunk. Waits for the layer, and its
 * header. False: the chunk has failed.
 */
TIERCE_MUSTUSE bool tierce__lease_read_elsewhere(struct tierce__own_lease *lease, size_t i,
                                                 uint32_t layer);

/* ---- load_direct.c ---- */

/* The same as join, for a chunk that may be read into the buffer on the device, of which all bytes
 * are then requested. False: it cannot be read there, and has no memory. */
TIERCE_MUSTUSE bool tierce__lease_join_direct(struct tierce__own_lease *lease, size_t i);

/* Waits for all of a chunk in the buffer. If the fetch has failed before the first layer was used,
 * the chunk is fetched into memory instead, and the first layer is waited for there. */
TIERCE_MUSTUSE bool tierce__lease_wait_direct(struct tierce__own_lease *lease, size_t i,
                                              uint32_t layer);

#endif
