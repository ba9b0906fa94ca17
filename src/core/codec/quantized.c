/* SPDX-License-Identifier: Apache-2.0 */
/* The codecs int8, int4 and fp8: groups of elements, each with a scale. */
#include "core/codec/lossless_private.h"

#include <string.h>

#include "base/bytes.h"

/* The header of a run. docs/inside/format/codec.md */
enum { AT_KIND = 0, AT_ELEMENT = 1, AT_LAST = 2, HEADER_BYTES = 4 };
enum { KIND_STORED = 0, KIND_CODED = 1 };

#define GROUP_BYTES_MAX 128u

struct layout {
    uint64_t groups;     /* the last one may be incomplete */
    uint64_t whole;      /* complete groups */
    size_t code_bytes;   /* of a group */
    uint8_t last;        /* elements of the last group */
    uint64_t body_bytes; /* scales, then codes */
};

static struct layout lay_out(const struct tierce__quantizer *q, uint64_t bytes)
{
    uint64_t elements = bytes / 2;
    struct layout l = {.groups = (elements + q->length - 1) / q->length,
                       .whole = elements / q->length,
                       .code_bytes = q->is_packed ? q->length / 2 : q->length};
    l.last = (uint8_t)(elements - (l.groups - 1) * q->length);
    l.body_bytes = l.groups * (2 + l.code_bytes);
    return l;
}

static bool is_supported(unsigned element)
{
    return element == TIERCE__ELEMENT_BF16 || element == TIERCE__ELEMENT_FP16;
}

/* False: a value is not finite. The last group is filled with zeroes. */
static bool encode_groups(const struct tierce__quantizer *q, uint8_t *dst, const uint8_t *src,
                          uint64_t bytes)
{
    const struct tierce__quantize_kernel *kernel = tierce__codec_kernel()->quantize;
    struct layout l = lay_out(q, bytes);
    uint8_t *codes = dst + 2 * l.groups, last[GROUP_BYTES_MAX] = {0};
    uint64_t done = 2 * l.whole * q->length;
    if (!kernel->quantize(q, codes, dst, src, l.whole))
        return false;
    if (done == bytes)
        return true;
    memcpy(last, src + done, bytes - done);
    return kernel->quantize(q, codes + l.whole * l.code_bytes, dst + 2 * l.whole, last, 1);
}

/* A run is stored as it is if it would not become shorter, has half an element, or has a value that
 * is not finite. */
static int64_t encode(struct tierce__quantizer q, uint8_t *dst, uint64_t room, const uint8_t *src,
                      uint64_t bytes, const struct tierce__codec_shape *shape)
{
    if (!is_supported(shape->element))
        return TIERCE_E_ARGUMENT;
    if (bytes > INT64_MAX / 2 || room < tierce__codec_bound(bytes))
        return TIERCE_E_LIMIT;
    if (bytes == 0)
        return 0;
    q.element = shape->element;
    struct layout l = lay_out(&q, bytes);
    uint64_t body = l.body_bytes;
    bool is_coded =
        bytes % 2 == 0 && body < bytes && encode_groups(&q, dst + HEADER_BYTES, src, bytes);
    memset(dst, 0, HEADER_BYTES);
    dst[AT_KIND] = is_coded ? KIND_CODED : KIND_STORED;
    dst[AT_ELEMENT] = (uint8_t)q.element;
    dst[AT_LAST] = is_coded ? l.last : 0;
    if (!is_coded) {
        body = bytes;
        memcpy(dst + HEADER_BYTES, src, bytes);
    }
    return (int64_t)(HEADER_BYTES + body);
}

static int decode_groups(const struct tierce__quantizer *q, uint8_t *dst, uint64_t bytes,
                         const uint8_t *src)
{
    const struct tierce__quantize_kernel *kernel = tierce__codec_kernel()->quantize;
    struct layout l = lay_out(q, bytes);
    const uint8_t *codes = src + 2 * l.groups;
    uint8_t last[GROUP_BYTES_MAX];
    uint64_t done = 2 * l.whole * q->length;
    if (!kernel->dequantize(q, dst, codes, src, l.whole))
        return TIERCE_E_FORMAT;
    if (done == bytes)
        return 0;
    if (!kernel->dequantize(q, last, codes + l.whole * l.code_bytes, src + 2 * l.whole, 1))
        return TIERCE_E_FORMAT;
    memcpy(dst + done, last, bytes - done);
    return 0;
}

static int decode(struct tierce__quantizer q, uint8_t *dst, uint64_t bytes, const uint8_t *src,
                  uint64_t coded)
{
    if (bytes == 0)
        return coded == 0 ? 0 : TIERCE_E_FORMAT;
    if (coded < HEADER_BYTES || !is_supported(src[AT_ELEMENT]) || src[3] != 0)
        return TIERCE_E_FORMAT;
    q.element = (enum tierce__element)src[AT_ELEMENT];
    uint64_t body = coded - HEADER_BYTES;
    if (src[AT_KIND] == KIND_STORED && src[AT_LAST] == 0 && body == bytes) {
        memcpy(dst, src + HEADER_BYTES, bytes);
        return 0;
    }
    if (src[AT_KIND] != KIND_CODED || bytes % 2 != 0 || bytes > INT64_MAX / 2 ||
        body != lay_out(&q, bytes).body_bytes || src[AT_LAST] != lay_out(&q, bytes).last)
        return TIERCE_E_FORMAT;
    return decode_groups(&q, dst, bytes, src + HEADER_BYTES);
}

/* ---- the three codecs -------------------------------------------------------------------------
 */

#define INT8 ((struct tierce__quantizer){.levels = 127, .length = 64})
#define INT4                                                                                       \
    ((struct tierce__quantizer){.levels = TIERCE__QUANTIZE_NIBBLES_MAX,                            \
                                .length = TIERCE__PACKED_GROUP,                                    \
                                .is_packed = true})
#define FP8 ((struct tierce__quantizer){.levels = TIERCE__QUANTIZE_E4M3, .length = 64})

#define CODEC(suffix, quantizer, number_)                                                          \
    static int64_t suffix##_encode(uint8_t *dst, uint64_t room, const uint8_t *src,                \
                                   uint64_t bytes, const struct tierce__codec_shape *shape)        \
    {                                                                                              \
        return encode(quantizer, dst, room, src, bytes, shape);                                    \
    }                                                                                              \
    static int suffix##_decode(uint8_t *dst, uint64_t bytes, const uint8_t *src, uint64_t coded)   \
    {                                                                                              \
        return decode(quantizer, dst, bytes, src, coded);                                          \
    }                                                                                              \
    const struct tierce__codec tierce__codec_##suffix = {                                          \
        .name = #suffix, .number = number_, .encode = suffix##_encode, .decode = suffix##_decode};

CODEC(int8, INT8, 2)
CODEC(int4, INT4, 3)
CODEC(fp8, FP8, 4)
