/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_SIBLING_H
#define TIERCE_ENGINE_SIBLING_H

#include "engine/view.h"

/*
 * Hits inside a chunk: if a chunk of a sequence is missing, a sibling may be stored: a chunk that
 * follows the same prefix and begins with the same blocks, but then diverges or ends sooner. The
 * tiers name candidates (TIERCE__STORE_SIBLINGS); the block hashes in a candidate's header say how
 * far it is the same.
 *
 * Thread: any.
 */

/* The search for a sibling. */
struct tierce__sibling_want {
    size_t index;          /* of the chunk in the sequence */
    uint32_t from;         /* leading blocks of it that the engine holds itself */
    uint32_t to;           /* end of those that are wanted */
    const uint8_t *hashes; /* of the sequence's blocks from 0 on, up to the last that is wanted */
    const uint8_t *root;   /* parent of block 0 */
    uint32_t levels;       /* a bit for each that is searched */
    uint64_t deadline_ns;
    const struct tierce__session *pinned; /* or NULL: its pinned chunks are tried first */
};

struct tierce__sibling_hit {
    struct tierce__key key;
    size_t level;
    uint32_t block_count;    /* of the chunk */
    uint32_t blocks;         /* number of leading blocks equal to the sequence's; 0: no use */
    struct tierce__buf *buf; /* level 0: a reference, which is the caller's; else NULL */
};

/* Creates a want for the part of chain[from_block, to_block) in chunk `index`, in all tiers, with
 * the time limit of a lookup; [borrow as long as the want] chain. */
void tierce__sibling_aim(struct tierce__sibling_want *want, const struct tierce_view *view,
                         const struct tierce_chain *chain, size_t index, uint64_t from_block,
                         uint64_t to_block);

/* Finds the chunk with the most blocks in common, a fast level's before an equal one. Candidates
 * that prove wrong are taken out of service. Waits for slower tiers up to the deadline, and does
 * not wait if there is no candidate. */
void tierce__sibling_find(struct tierce_view *view, struct tierce__sibling_hit *out,
                          const struct tierce__sibling_want *want);

/* Whether loading the found blocks is faster than computing them; false if none were found. */
bool tierce__sibling_pays(struct tierce_view *view, const struct tierce__sibling_hit *hit,
                          const struct tierce__sibling_want *want);

/* Checks the header of an object against the wanted identity in full, up to want->to. [in] hash:
 * the chunk's own; shape: geometry and extent count. Returns how many leading blocks are the same,
 * from 1 to want->to, or an error if the header is not that of a sibling. */
TIERCE_MUSTUSE int tierce__sibling_check(const struct tierce_view *view,
                                         const struct tierce__shape *shape,
                                         const struct tierce__sibling_want *want,
                                         const uint8_t *hash, const uint8_t *object);

#endif
