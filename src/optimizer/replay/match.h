/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_MATCH_H
#define TIERCE_OPTIMIZER_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The definitions of a hit. A lookup sees the cache as it is at the request's start:
 *
 *   prefix    the leading cached blocks
 *   any       all cached blocks of the request, at any position
 *   window:N  the longest leading part whose last N blocks are cached (all of its blocks, if it
 *             has fewer than N): sliding-window attention over N blocks needs these
 *
 * stream, instead, counts a hit at each touch, after the effects of earlier touches of the same
 * request, as simulators of plain caches do.
 */

/* The order in which a request's blocks are touched after the lookup. */
enum tierce__touch_order {
    TIERCE__TOUCH_REV, /* from the last to the first, as production does: a prefix is newer than
                          its suffix */
    TIERCE__TOUCH_FWD,
};

enum tierce__match_kind {
    TIERCE__MATCH_PREFIX,
    TIERCE__MATCH_ANY,
    TIERCE__MATCH_STREAM,
    TIERCE__MATCH_WINDOW,
};

struct tierce__match {
    enum tierce__match_kind kind;
    uint32_t window; /* MATCH_WINDOW: >= 1 */
};

#define TIERCE__MATCH_TEXT_BYTES 24u

/* Parses "prefix", "any", "stream" or "window:N". TIERCE_E_ARGUMENT for anything else. */
TIERCE_MUSTUSE int tierce__match_parse(struct tierce__match *out, const char *text);

/* Writes the text form that parse reads. */
void tierce__match_print(const struct tierce__match *match, char out[TIERCE__MATCH_TEXT_BYTES]);

/* Returns whether hits are leading blocks, which need not be computed. */
bool tierce__match_is_leading(const struct tierce__match *match);

/*
 * For each k from 1 to count, cost[k - 1] becomes the smallest capacity at which a lookup hits at
 * least k blocks, given that caches of capacity depth[i] or more hold block i (UINT32_MAX: never).
 * So a lookup hits as many blocks as there are costs that are no larger than the capacity. Not for
 * MATCH_STREAM. cost may be depth itself.
 *
 * prefix: the largest depth so far. any: the depths as they are, in any order. window: with w(k)
 * the largest depth of the last N of k blocks, the smallest w(j) of all j >= k.
 */
void tierce__match_costs(const struct tierce__match *match, const uint32_t *depth, uint32_t count,
                         uint32_t *cost);

/* Hits of a lookup in one cache: there[i] states whether the cache holds block i. Not for
 * MATCH_STREAM. */
uint32_t tierce__match_count(const struct tierce__match *match, const bool *there, uint32_t count);

/* Returns how many of these `hits` are on blocks that the engine held: internal[i] is 1; NULL:
 * none. */
uint32_t tierce__match_internal(const struct tierce__match *match, const bool *there,
                                const uint8_t *internal, uint32_t count, uint32_t hits);

#endif
