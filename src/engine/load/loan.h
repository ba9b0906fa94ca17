/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_LOAN_H
#define TIERCE_ENGINE_LOAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

/*
 * The tier half of a load: locates each chunk, leases or fetches it, and handles the caller's
 * verdict. The other half copies and verifies the cells (scatter.h).
 *
 *     rc = tierce__loan_begin(&loan, view, &what);
 *     tierce__loan_ahead(loan, layer);
 *     if (tierce__loan_wait(loan, i, layer))
 *         ... read the header and the layer in lent[i].object, in whatever process;
 *         ... where it is wrong, tierce__loan_refuse(loan, i, why) or tierce__loan_spoil(loan, i)
 *     tierce__loan_end(loan, blocks);
 *
 * Layers are the chunk's, not a part's. Thread: a loan belongs to one at a time. Promises: as of
 * tierce_load_begin and _end.
 */

struct tierce__loan_what {
    const struct tierce_chain *chain; /* [borrow until begin returns] */
    uint64_t from_block, to_block;
    uint64_t session;
    const struct tierce_part *part; /* whose layers will be asked for; [borrow until end] */
    uint32_t timeout_ms;            /* 0: timeout.load */
    uint32_t wait_ms; /* limit of the search for the chunks; 0: timeout.lookup, the maximum */
    uint32_t tiers;
    bool chain_stays; /* as it is until end, so that nothing of it is copied */
    bool keeps_pins;  /* the session's pins stay with it, for others to load from */
};

enum tierce__lent_kind {
    TIERCE__LENT_FULL,
    TIERCE__LENT_TAIL,
    TIERCE__LENT_SIBLING, /* another chunk, which begins as the one that is wanted */
};

struct tierce__lent {
    size_t index; /* of the chunk in the chain */
    enum tierce__lent_kind kind;
    uint32_t block_count;            /* of the object */
    uint32_t from, to;               /* its blocks that are wanted and may be there */
    uint8_t hash[TIERCE_HASH_BYTES]; /* its own */
    enum tierce_origin origin;
    uint64_t bytes;  /* of the object */
    uint8_t *object; /* NULL: it has failed, or it waits for memory, or it was returned */
    bool here;       /* all its bytes are in memory already */
    bool failed;
};

struct tierce__loan;

/* Errors, *out untouched: TIERCE_E_ARGUMENT, -ENOMEM. Waits for no device, but for a sibling's
 * header. */
TIERCE_MUSTUSE int tierce__loan_begin(struct tierce__loan **out, struct tierce_view *view,
                                      const struct tierce__loan_what *what);

/* [borrow until end] *count of them, in the order of the chain; object, here and failed change. */
const struct tierce__lent *tierce__loan_lent(const struct tierce__loan *loan, size_t *count);

/* [borrow until end] The hashes of the blocks from 0 on, *count of them, and their root hash. */
const uint8_t *tierce__loan_hashes(const struct tierce__loan *loan, size_t *count,
                                   const uint8_t **root);

/* Requests reads, up to two layers beyond `layer`. */
void tierce__loan_ahead(struct tierce__loan *loan, uint32_t layer);

/* Waits for the header and a layer of a chunk, up to the deadline. False: it has failed. Layers
 * come in ascending order. */
TIERCE_MUSTUSE bool tierce__loan_wait(struct tierce__loan *loan, size_t i, uint32_t layer);

/* Up to which layer all has been waited for that a wait for `layer` has, where segments hold
 * several layers. */
uint32_t tierce__loan_ready(const struct tierce__loan *loan, uint32_t layer);

/* The bytes are not the wanted chunk; a cell of it does not verify. Takes the chunk out of
 * service. */
void tierce__loan_refuse(struct tierce__loan *loan, size_t i, int why);
void tierce__loan_spoil(struct tierce__loan *loan, size_t i);

/* The same for another process's report about a chunk, after a check of our own: of its header,
 * and, for bad cells, of its cells if all are in memory. */
void tierce__loan_look(struct tierce__loan *loan, size_t i, bool cells_are_bad);

/* The caller has not read the chunk: it is neither promoted nor counted. */
void tierce__loan_skip(struct tierce__loan *loan, size_t i);

/*
 * Whether memory cannot hold all of the loan at a time. Then the caller takes each chunk in turn,
 * reads all its layers, and returns it. If there is no memory even for one chunk, take waits until
 * the deadline, without holding any, for other loans that pass through memory.
 */
bool tierce__loan_is_too_large(const struct tierce__loan *loan);
TIERCE_MUSTUSE bool tierce__loan_take(struct tierce__loan *loan, size_t i);
void tierce__loan_return(struct tierce__loan *loan, size_t i);

/* Counts the blocks that were loaded from lent chunks. */
void tierce__loan_count(const struct tierce_view *view, const struct tierce__lent *lent,
                        size_t blocks);

/* Promotes, counts and marks as used; blocks[i] were loaded of chunk i. NULL: drops the loan. */
void tierce__loan_end(struct tierce__loan *loan, const uint32_t *blocks);

#endif
