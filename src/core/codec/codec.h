/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CODEC_H
#define TIERCE_CODEC_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

#include "base/kernel_choice.h"
#include "core/codec/cell_order.h"
#include "core/codec/element.h"

/*
 * Codecs: fewer bytes for the same KV. A codec turns a run of bytes (for example the cells of a
 * layer) into coded bytes and back.
 *
 *     const struct tierce__codec *codec = tierce__codec_find("lossless");
 *     uint64_t room = tierce__codec_bound(bytes);
 *     int64_t coded = codec->encode(dst, room, src, bytes,
 *                                   &(struct tierce__codec_shape){.element =
 * TIERCE__ELEMENT_BF16}); int rc = codec->decode(src, bytes, dst, (uint64_t)coded);
 *
 * Coded bytes have no sum of their own: the caller verifies them before it decodes. A decoder is
 * nevertheless safe on any bytes: it rejects invalid ones, and accesses nothing outside of the two
 * buffers. Formats, byte by byte: docs/inside/format/codec.md.
 *
 * Thread: any. Nothing here blocks or allocates; cachegen needs up to 80 KiB of stack.
 */

#define TIERCE__CODEC_LAYERS_MAX 4096u /* as TIERCE_LAYERS_MAX; core/chunk asserts it */

struct tierce__codec_shape {
    enum tierce__element element;
    /* A run that alternates between two kinds of values, such as keys and values, changes after
     * each part_bytes bytes. 0: unknown. For exact codecs only a hint: the ratio depends on it,
     * nothing else. */
    uint64_t part_bytes;
    /* The codec cachegen requires the bytes of a token within a part, or, for another order of
     * values, the cells, which then take the place of both lengths; and it chooses its levels by
     * the layer and the number of layers (0: the finer ones). Other codecs ignore them. */
    uint64_t row_bytes;
    const struct tierce__cell_order *order; /* [borrow until the return] NULL: no cells */
    uint64_t cell_bytes;
    uint32_t cell_tokens;
    uint32_t layer, layers;
};

struct tierce__codec {
    const char *name;
    uint32_t number; /* in headers */
    /* Whether it requires the order of the values of a cell: struct tierce__codec_choice. */
    bool needs_order;
    /* Whether decoding restores every bit. Other codecs are lossy, and may be used only where an
     * operator has chosen them by name. */
    bool is_exact;

    /*
     * Encodes src[0 .. bytes) to dst. `room` is at least tierce__codec_bound(bytes); the buffers do
     * not overlap. Equal inputs have equal outputs on every machine. Returns the coded length, 0
     * for an empty run. Errors: TIERCE_E_LIMIT (room is too small), TIERCE_E_ARGUMENT (an
     * element that is unknown, or that this codec does not code).
     */
    int64_t (*encode)(uint8_t *dst, uint64_t room, const uint8_t *src, uint64_t bytes,
                      const struct tierce__codec_shape *shape);

    /*
     * Decodes src[0 .. coded) to exactly dst[0 .. bytes). Errors: TIERCE_E_FORMAT: the bytes are
     * invalid, or decode to another length; the contents of dst are then undefined.
     */
    int (*decode)(uint8_t *dst, uint64_t bytes, const uint8_t *src, uint64_t coded);
};

/* The codec of a name or of a number; NULL if this build has none. */
const struct tierce__codec *tierce__codec_find(const char *name);
const struct tierce__codec *tierce__codec_numbered(uint32_t number);

/* Layers and order, which a namespace states for codecs with needs_order. */
struct tierce__codec_choice {
    uint32_t layers; /* of the model: layer i of a chunk is layer i modulo this */
    struct tierce__cell_order order;
};

/*
 * The lossy codec that the field `quantization` of a namespace chooses: "tierce-int8",
 * "tierce-int4", "tierce-fp8" or "tierce-cachegen-LAYERS-ORDER", where LAYERS is decimal and ORDER
 * a text of cell_order.h. NULL: none, so KV is exact. *choice (or NULL) is filled in for the last
 * one.
 */
const struct tierce__codec *tierce__codec_of_quantization(const char *quantization,
                                                          struct tierce__codec_choice *choice);
/* Whether the codec accepts runs of such elements. */
bool tierce__codec_codes(const struct tierce__codec *codec, enum tierce__element element);

/* How many bytes a run of this length has at most when it is encoded, by any codec. */
uint64_t tierce__codec_bound(uint64_t bytes);

/* The element of a name: "raw", "bf16", "fp16", "e4m3", "e5m2"; TIERCE__ELEMENTS for others. */
enum tierce__element tierce__element_find(const char *name);
/* The element of a namespace's kv_dtype, as inference engines name it ("bfloat16", "fp8_e4m3");
 * RAW if it is none of them. A wrong element costs bytes and never a value. */
enum tierce__element tierce__element_of_dtype(const char *dtype);
const char *tierce__element_name(enum tierce__element element);
/* Bytes of one element. */
unsigned tierce__element_bytes(enum tierce__element element);

/* For tests and benchmarks. */
extern struct tierce__kernel_choice tierce__codec_kernels;

#endif
