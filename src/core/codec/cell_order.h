/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CODEC_CELL_ORDER_H
#define TIERCE_CODEC_CELL_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The order of the values of a cell, for codecs that treat the values of a token together. The text
 * lists the axes from the outermost to the innermost: k (keys, then values), t (token), h (head),
 * c (channel of a head). "kthc64": all keys of a cell, token by token. An engine's kernels may cut
 * an axis: "tht16c64" has 16 consecutive tokens of a head, then those of the next head. If keys and
 * values have other orders below k, both follow: "hk.c64t.tc64". The grammar:
 * docs/inside/format/codec.md.
 *
 * Thread: any; nothing here blocks or allocates.
 */

enum {
    TIERCE__CELL_ORDER_TEXT_MAX = 48,
    TIERCE__CELL_AXES_MAX = 16,
    TIERCE__CELL_CHANNELS_MAX = 1024,
    TIERCE__CELL_ROW_MAX = 8192, /* elements of a token: of all heads */
    TIERCE__CELL_KINDS = 2       /* keys and values */
};

struct tierce__cell_order {
    uint8_t length;
    char text[TIERCE__CELL_ORDER_TEXT_MAX]; /* no NUL */
};

/* False: the text, which may come from anywhere, is no order. */
bool tierce__cell_order_read(struct tierce__cell_order *out, const char *text, size_t length);

/* Where the keys, or the values, of each token lie in a cell. Places are in elements. */
struct tierce__cell_kind {
    uint32_t first;       /* of the first channel of the first head of the first token */
    uint32_t head_stride; /* 0: there is one head */
    uint32_t token_count; /* digits of a token's number, the innermost first */
    struct {
        uint32_t size, stride;
    } token[TIERCE__CELL_AXES_MAX];
    uint32_t channel[TIERCE__CELL_CHANNELS_MAX]; /* the place of each channel of a head */
    bool is_dense;                               /* channels follow each other */
};

struct tierce__cell_places {
    unsigned kinds; /* 1: there are only keys */
    uint32_t tokens, heads, channels;
    struct tierce__cell_kind of[TIERCE__CELL_KINDS];
};

/* The places in cells of so many elements and tokens. The number of heads follows from the others.
 * False: such a cell cannot have this order, or has more than TIERCE__CELL_ROW_MAX elements of a
 * token. */
bool tierce__cell_places_init(struct tierce__cell_places *out,
                              const struct tierce__cell_order *order, uint64_t elements,
                              uint32_t tokens);

/* Copies a token's elements of two bytes from a cell: [head][channel]. */
void tierce__cell_gather(uint8_t *row, const struct tierce__cell_places *places, unsigned kind,
                         uint32_t token, const uint8_t *cell);
/* Copies them back. */
void tierce__cell_scatter(uint8_t *cell, const struct tierce__cell_places *places, unsigned kind,
                          uint32_t token, const uint8_t *row);

#endif
