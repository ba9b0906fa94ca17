/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BLEND_SEGMENTS_H
#define TIERCE_BLEND_SEGMENTS_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The parts of a prompt whose KV may be reused at another position, such as documents, and where
 * the KV of each token of the prompt comes from.
 *
 *     segments = tierce__segments_split(list, room, ids, tokens, separator, separator_count);
 *     ... for each segment: look up the chain of (lead, segment), and set found[i] ...
 *     spans = tierce__blend_plan(plan, tokens, prefix, lead, list, found, segments);
 *
 * Thread: any. Nothing here blocks or allocates.
 */

/* Tokens [start, end) of a prompt. */
struct tierce__segment {
    uint32_t start, end;
};

/*
 * The tokens between two separators are a segment. The tokens before the first separator belong to
 * the prefix, and those after the last one are the question: neither is a segment, and no separator
 * belongs to one. Separators are found from the left and do not overlap; between two that are
 * adjacent there is no segment. Returns the number of segments, or
 *   TIERCE_E_ARGUMENT  the separator is empty, or the prompt has 2^32 tokens or more
 *   TIERCE_E_LIMIT     there are more than `room` segments; the contents of out are then undefined
 */
TIERCE_MUSTUSE int64_t tierce__segments_split(struct tierce__segment *out, size_t room,
                                              const int32_t *tokens, size_t count,
                                              const int32_t *separator, size_t separator_count);

/* Checks segments that a client has marked: none is empty, each begins at or after the end of the
 * one before, and the last one ends within the prompt. Returns the index of the first segment that
 * is invalid, or `count`. */
size_t tierce__segments_check(const struct tierce__segment *segments, size_t count, size_t tokens);

enum tierce__blend_source {
    TIERCE__BLEND_PREFIX, /* the prompt's own KV, stored or in the engine's memory: exact */
    TIERCE__BLEND_REUSED, /* KV of a segment, computed at another position and after other tokens */
    TIERCE__BLEND_FRESH,  /* to be computed */
};

struct tierce__blend_span {
    uint32_t start, end; /* tokens of the prompt */
    enum tierce__blend_source source;
    uint32_t segment; /* REUSED: its index */
    uint32_t at;      /* REUSED: the position at which the KV of `start` was computed */
    int64_t delta;    /* REUSED: by how many positions the keys are rotated: start - at */
};

/* The most spans of a plan with so many segments. */
#define TIERCE__BLEND_SPANS(segments) (2 * (segments) + 2)

/*
 * Divides a prompt of `tokens` tokens into spans that follow one another without a gap.
 *
 * - The first `prefix` tokens are PREFIX: exact KV is used wherever there is any.
 * - found[i] tokens of segment i, from its start on, are REUSED, unless they belong to the prefix.
 *   They were computed after `lead` tokens, at the positions from `lead` on.
 * - The last token of the prompt is FRESH, because its output is required.
 * - All others are FRESH.
 *
 * Segments are valid for these tokens (tierce__segments_check), found[i] is at most the length of
 * segment i, and lead + found[i] < 2^32. Returns the number of spans; 0 for an empty prompt.
 */
size_t tierce__blend_plan(struct tierce__blend_span *out, size_t tokens, size_t prefix,
                          uint32_t lead, const struct tierce__segment *segments,
                          const uint32_t *found, size_t count);

#endif
