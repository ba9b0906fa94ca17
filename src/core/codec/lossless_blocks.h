/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_LOSSLESS_BLOCKS_H
#define TIERCE_LOSSLESS_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

#include "core/codec/element.h"
#include "core/codec/split.h"

/*
 * The blocks of a run of the lossless codec (docs/inside/format/codec.md), for a device that
 * decodes them itself:
 *
 *     rc = tierce__lossless_block(&block, src, coded, room);
 *     ... the body is src[TIERCE__BLOCK_HEADER_BYTES .. + block.body_bytes) ...
 *
 * Thread: any. Nothing here blocks or allocates.
 */

#define TIERCE__BLOCK_HEADER_BYTES 12u
#define TIERCE__BLOCK_BYTES_MAX    65536u

struct tierce__lossless_block {
    enum tierce__element element;
    bool is_coded;       /* else the body is the decoded bytes */
    uint32_t raw_bytes;  /* 1 .. TIERCE__BLOCK_BYTES_MAX; of a coded block whole elements */
    uint32_t body_bytes; /* of a coded block fewer than raw_bytes, else as many */
    uint32_t period;     /* groups after which the symbols change; 0: never */
};

/*
 * Reads the header of the block at src[0 .. coded), which must hold all of the block, and whose
 * decoded bytes must not exceed `room`. The body is not read. Errors: TIERCE_E_FORMAT.
 */
TIERCE_MUSTUSE int tierce__lossless_block(struct tierce__lossless_block *out, const uint8_t *src,
                                          uint64_t coded, uint64_t room);

/* How each element of a run is split. */
static const struct tierce__split tierce__splits[TIERCE__SYMBOLS5 + 1] = {
    [TIERCE__ELEMENT_RAW] = {.bytes = 1},
    [TIERCE__ELEMENT_BF16] = {.bytes = 2, .shift = 0, .mask = 0xff},
    [TIERCE__ELEMENT_FP16] =
        {.bytes = 2, .shift = 2, .mask = 31, .bit_count = 3, .bits = {7, 1, 0}},
    [TIERCE__ELEMENT_E4M3] =
        {.bytes = 1, .shift = 3, .mask = 15, .bit_count = 4, .bits = {7, 2, 1, 0}},
    [TIERCE__ELEMENT_E5M2] =
        {.bytes = 1, .shift = 2, .mask = 31, .bit_count = 3, .bits = {7, 1, 0}},
    [TIERCE__SYMBOLS4] = {.bytes = 1, .shift = 0, .mask = 15},
    [TIERCE__SYMBOLS5] = {.bytes = 1, .shift = 1, .mask = 15, .bit_count = 1, .bits = {0}},
};

#endif
