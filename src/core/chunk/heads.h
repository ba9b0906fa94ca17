/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CHUNK_HEADS_H
#define TIERCE_CHUNK_HEADS_H

#include "core/chunk/header.h"

/*
 * Converts a chunk of an engine with P tensor ranks for an engine with D tensor ranks.
 *
 * A chunk holds the cells of all ranks of its engine: pipeline stage by pipeline stage, and in a
 * stage the cells of each tensor rank one after the other. A cell of a rank holds the KV heads of
 * this rank. Rank r of R has the heads [r * H / R, (r + 1) * H / R) of a layer with H heads or, if
 * there are more ranks than heads, the head r * H / R, which other ranks have too.
 *
 *     cell:   piece 0: head 0, head 1, ...    piece 1: head 0, head 1, ...    ...
 *
 * The part of a head in a piece is one run of bytes; all of these runs have the same length. If a
 * block has its heads outside of its tokens, its cell is a single piece. If it has its tokens
 * outside, there is one piece for each token. If all ranks hold the same KV (MLA), the chunk holds
 * it once: one head, one rank.
 *
 *     rc = tierce__heads_parse(&heads, "heads=8 pieces=1 from=2x24 to=1x24");
 *     rc = tierce__heads_check(&heads, &from_geometry, &to_geometry);
 *     tierce__heads_convert(to_object, &to_geometry, from_object, &from_geometry, &heads);
 *
 * Thread: any; nothing here blocks or allocates.
 */

#define TIERCE__HEADS_STAGES_MAX 64u

/* One of the two engines. */
struct tierce__heads_side {
    uint32_t ranks; /* tensor ranks whose cells a chunk holds, in each stage */
    uint32_t stage_count;
    uint32_t stage_cells[TIERCE__HEADS_STAGES_MAX]; /* of one rank */
};

struct tierce__heads {
    uint32_t heads;  /* of a layer, of all ranks together */
    uint32_t pieces; /* of a cell */
    struct tierce__heads_side from, to;
};

/*
 * Reads "heads=H pieces=P from=RANKSxCELLS to=RANKSxCELLS", where CELLS of several stages are
 * joined by '+'. Numbers are decimal, at least 1, without leading zeros. Errors, *out untouched:
 * TIERCE_E_FORMAT.
 */
TIERCE_MUSTUSE int tierce__heads_parse(struct tierce__heads *out, const char *text);

/*
 * Whether chunks of geometry `from` can become chunks of geometry `to`: both have the same blocks
 * and all of their cells, the heads can be divided among the ranks of both, and the cells have the
 * bytes of their heads. All cells of a chunk must have equal bytes. Errors: TIERCE_E_UNSUPPORTED.
 */
TIERCE_MUSTUSE int tierce__heads_check(const struct tierce__heads *heads,
                                       const struct tierce__geometry *from,
                                       const struct tierce__geometry *to);

/*
 * Writes the cells of object `to` and their sums, from the cells of object `from`, which the caller
 * has verified. The header of `to` has been begun (tierce__chunk_begin), and the caller seals it.
 * tierce__heads_check has accepted the geometries.
 */
void tierce__heads_convert(uint8_t *to, const struct tierce__geometry *to_geometry,
                           const uint8_t *from, const struct tierce__geometry *from_geometry,
                           const struct tierce__heads *heads);

#endif
