/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_LOAD_LEASE_H
#define TIERCE_ENGINE_LOAD_LEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

/*
 * A load's lease: the chunks that the lender of an engine (lender.h) lends to a load, which copies
 * and verifies their cells (scatter.h).
 */

struct tierce__pinnings;
struct tierce__pool;

enum tierce__leased_kind {
    TIERCE__LEASED_FULL,
    TIERCE__LEASED_TAIL,
    TIERCE__LEASED_SIBLING, /* another chunk that begins with the same blocks as the wanted one */
};

struct tierce__leased {
    size_t index; /* of the chunk in the chain */
    enum tierce__leased_kind kind;
    uint32_t block_count;            /* of the object */
    uint32_t from, to;               /* the requested blocks that may be stored */
    uint8_t hash[TIERCE_HASH_BYTES]; /* its own */
    enum tierce_origin origin;
    uint64_t bytes;  /* of the object */
    uint8_t *object; /* NULL: it has failed, or it waits for memory, or it was returned */
    bool here;       /* all its bytes are in memory already */
    bool on_device;  /* `object` is an address of the load's device */
    bool failed;
};

struct tierce__load_lease {
    const struct tierce__load_lease_ops *ops;
    struct tierce_view *view;
    size_t count;
    /* [count] in the order of the chain; object, here and failed change. */
    struct tierce__leased *leased;
    const uint8_t *hashes; /* [hash_count] of the blocks from 0 on */
    size_t hash_count;
    uint8_t root[TIERCE_HASH_BYTES]; /* of them */
    /*
     * Memory cannot hold all of the lease at a time. Then the caller takes each chunk in turn,
     * reads all its layers, and returns it.
     */
    bool is_too_large;
    /* From this time on other chunks may overwrite the objects; bytes that were read before are
     * those of the leased chunks. TIERCE__DEADLINE_NEVER: the objects do not change before the
     * end. */
    uint64_t over_ns;
    struct tierce__pinnings *memory; /* the mapping that the objects are of; NULL: there is none */
};

/* The calls of a load on its lease. A layer is numbered in the chunk, not in a part of it. */
struct tierce__load_lease_ops {
    /* Requests reads, up to two layers beyond `layer`. */
    void (*ahead)(struct tierce__load_lease *lease, uint32_t layer);
    /* Waits for the header and a layer of a chunk, up to the deadline. False: it has failed. Layers
     * come in ascending order, each after its `ahead`. The wait for the first layer may change
     * leased[i].object (`follows`). */
    bool (*wait)(struct tierce__load_lease *lease, size_t i, uint32_t layer);
    /* refuse: the bytes are not the wanted chunk. spoil: a cell of it does not verify. */
    void (*refuse)(struct tierce__load_lease *lease, size_t i, int why);
    void (*spoil)(struct tierce__load_lease *lease, size_t i);
    /* For a lease that is too large. If there is no memory even for one chunk, take waits until the
     * deadline, without holding any, for other leases that pass through memory. */
    bool (*take)(struct tierce__load_lease *lease, size_t i);
    void (*give_back)(struct tierce__load_lease *lease, size_t i);
    /* Counts blocks[i] blocks of chunk i as loaded. NULL: drops the lease. */
    void (*end)(struct tierce__load_lease *lease, const uint32_t *blocks);
};

/*
 * A lease of the engine's own tiers: locates each chunk, and leases or fetches it. `refuse` and
 * `spoil` delete the chunk from the tier that it came from; `end` promotes chunks to memory and
 * marks them as used.
 *
 *     rc = tierce__load_lease_begin(&lease, view, &what);
 *     lease->ops->ahead(lease, layer);
 *     if (lease->ops->wait(lease, i, layer))
 *         ... read the header and the layer in leased[i].object, in any process that maps it;
 *         ... if it is wrong, lease->ops->refuse(lease, i, why) or lease->ops->spoil(lease, i)
 *     lease->ops->end(lease, blocks);
 *
 * The functions below accept only such leases. Thread: a lease belongs to one thread at a time.
 */

struct tierce__load_lease_what {
    const struct tierce_chain *chain; /* [borrow until begin returns] */
    uint64_t from_block, to_block;
    uint64_t session;
    const struct tierce_part *part; /* whose layers will be requested; [borrow until end] */
    uint32_t timeout_ms;            /* 0: timeout.load */
    uint32_t wait_ms; /* limit of the search for the chunks; 0: timeout.lookup, the maximum */
    uint32_t tiers;
    struct tierce__pool *direct; /* NULL, or a buffer in the memory of the load's device, into which
                                    chunks of the disk may be read [borrow until end] */
    bool chain_stays;            /* unchanged until end, so that it need not be copied */
    bool follows;    /* the caller reads leased[i].object after each wait, so that a chunk
                        whose tier fails may be read from another one, elsewhere */
    bool keeps_pins; /* the session's pins stay with it, for others to load from */
};

/* Errors, *out untouched: TIERCE_E_ARGUMENT, -ENOMEM. Waits for no device, except for the header of
 * a sibling. */
TIERCE_MUSTUSE int tierce__load_lease_begin(struct tierce__load_lease **out,
                                            struct tierce_view *view,
                                            const struct tierce__load_lease_what *what);

/* The last layer that has arrived when `layer` has arrived: a segment may hold several layers. */
uint32_t tierce__load_lease_ready(struct tierce__load_lease *lease, uint32_t layer);

/* Refuses or spoils a chunk on another process's report, after a check of our own: of its header,
 * and, for bad cells, of its cells if all are in memory. */
void tierce__load_lease_look(struct tierce__load_lease *lease, size_t i, bool cells_are_bad);

/* The caller has not read the chunk: it is neither promoted nor counted. */
void tierce__load_lease_skip(struct tierce__load_lease *lease, size_t i);

/* Counts the blocks that were loaded from a leased chunk of either lender (load.c). */
void tierce__load_lease_count(const struct tierce_view *view, const struct tierce__leased *leased,
                              size_t blocks);

#endif
