/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/lossless_private.h"

#include <string.h>

#include "base/assert.h"
#include "base/bytes.h"

/* The header of a block. docs/inside/format/codec.md */
enum {
    AT_KIND = 0,
    AT_ELEMENT = 1,
    AT_PERIOD = 2,
    AT_RAW_BYTES = 4,
    AT_BODY_BYTES = 8,
    HEADER_BYTES = TIERCE__BLOCK_HEADER_BYTES,
};
enum { KIND_STORED = 0, KIND_CODED = 1 };

#define BLOCK_BYTES_MAX TIERCE__BLOCK_BYTES_MAX
/* Shorter runs are kept as they are: the states of the coders alone have 128 bytes. */
#define CODED_BYTES_MIN 512u
#define STATE_BYTES     (2u * TIERCE__GROUP)

struct block {
    enum tierce__element element;
    size_t raw_bytes;
    size_t elements, groups;
    size_t period; /* groups after which the symbols change; 0: never */
    struct tierce__symbols symbols[2];
};

uint64_t tierce__codec_bound(uint64_t bytes)
{
    /* Every block but the last has at least half of the largest, and an odd byte is a block. */
    return bytes + HEADER_BYTES * (bytes / (BLOCK_BYTES_MAX / 2) + 3);
}

static size_t plane_bytes(const struct block *block)
{
    const struct tierce__split *split = &tierce__splits[block->element];
    return block->groups * (TIERCE__GROUP * (split->bytes - 1u) + 8u * split->bit_count);
}

/* The planes from group `group` on; those of the block begin at `at`. */
static struct tierce__planes planes_at(const struct block *block, uint8_t *at, size_t group)
{
    const struct tierce__split *split = &tierce__splits[block->element];
    size_t low = TIERCE__GROUP * (split->bytes - 1u);
    return (struct tierce__planes){
        .low = at + group * low,
        .bits = at + block->groups * low + group * 8 * split->bit_count,
    };
}

static void describe(struct block *block, enum tierce__element element, size_t raw_bytes)
{
    block->element = element;
    block->raw_bytes = raw_bytes;
    block->elements = raw_bytes / tierce__splits[element].bytes;
    block->groups = (block->elements + TIERCE__GROUP - 1) / TIERCE__GROUP;
}

/* ---- encoding -------------------------------------------------------------------------------- */

/* The run of groups with the same symbols that holds group `group` - 1 at its end: its beginning.
 */
static size_t segment_begin(const struct block *block, size_t group)
{
    return block->period == 0 ? 0 : (group - 1) / block->period * block->period;
}

static const struct tierce__symbols *symbols_at(const struct block *block, size_t group)
{
    return &block->symbols[block->period == 0 ? 0 : group / block->period % 2];
}

static size_t group_bytes(enum tierce__element element)
{
    return (size_t)TIERCE__GROUP * tierce__splits[element].bytes;
}

/* Chooses one or two sets of symbols, whichever costs less. */
static void choose_symbols(struct block *block, const uint8_t *src, size_t period)
{
    uint32_t counts[2][TIERCE__SLOTS] = {0};
    size_t step = period > 0 ? period * TIERCE__GROUP : block->elements;
    unsigned set = 0;
    for (size_t at = 0; at < block->elements; at += step, set ^= 1) {
        size_t left = block->elements - at;
        tierce__symbols_count(counts[set], block->element,
                              src + at * tierce__splits[block->element].bytes,
                              left < step ? left : step);
    }
    block->period = 0;
    if (period > 0 && step < block->elements) {
        uint64_t two = tierce__symbols_choose(&block->symbols[0], counts[0], block->element) +
                       tierce__symbols_choose(&block->symbols[1], counts[1], block->element);
        for (unsigned i = 0; i < TIERCE__SLOTS; i++)
            counts[0][i] += counts[1][i];
        struct tierce__symbols common;
        uint64_t one = tierce__symbols_choose(&common, counts[0], block->element);
        if (two + (8u << 8) * TIERCE__SYMBOLS_BYTES_MAX < one)
            block->period = period;
        else
            block->symbols[0] = common;
        return;
    }
    (void)tierce__symbols_choose(&block->symbols[0], counts[0], block->element);
}

/* Encodes the last group, which may be incomplete: it is filled with the cheapest exponent. */
static bool encode_last(struct tierce__encoder *encoder, const struct block *block,
                        const uint8_t *src, uint8_t *planes)
{
    uint8_t padded[2 * TIERCE__GROUP] = {0};
    const struct tierce__split *split = &tierce__splits[block->element];
    const struct tierce__symbols *symbols = symbols_at(block, block->groups - 1);
    size_t whole = block->elements / TIERCE__GROUP, rest = block->elements % TIERCE__GROUP;
    if (rest == 0)
        return true;
    memcpy(padded, src + whole * group_bytes(block->element), rest * split->bytes);
    unsigned top = (unsigned)symbols->exponent[0] << split->shift;
    for (size_t i = rest; i < TIERCE__GROUP; i++) {
        if (split->bytes == 1)
            padded[i] = (uint8_t)top;
        else
            tierce__store_le16(padded + 2 * i,
                               (uint16_t)(top << (block->element == TIERCE__ELEMENT_BF16 ? 7 : 8)));
    }
    return tierce__codec_kernel()->encode(encoder, symbols, block->element, padded, 1,
                                          planes_at(block, planes, whole));
}

static bool encode_stream(struct tierce__encoder *encoder, const struct block *block,
                          const uint8_t *src, uint8_t *planes)
{
    const struct tierce__codec_kernel *kernel = tierce__codec_kernel();
    if (!encode_last(encoder, block, src, planes))
        return false;
    for (size_t end = block->elements / TIERCE__GROUP; end > 0;) {
        size_t begin = segment_begin(block, end);
        if (!kernel->encode(encoder, symbols_at(block, begin), block->element,
                            src + begin * group_bytes(block->element), end - begin,
                            planes_at(block, planes, begin)))
            return false;
        end = begin;
    }
    return true;
}

/* Writes the body to `body` if it gets shorter than the block; returns its length, or 0. */
static size_t encode_body(uint8_t *body, const struct block *block, const uint8_t *src)
{
    uint8_t *at = body + tierce__symbols_store(body, &block->symbols[0]);
    if (block->period > 0)
        at += tierce__symbols_store(at, &block->symbols[1]);
    uint8_t *state = at;
    at += STATE_BYTES;
    size_t fixed = (size_t)(at - body) + plane_bytes(block) + TIERCE__BELOW_STREAM;
    if (fixed >= block->raw_bytes)
        return 0;
    uint8_t *stream = at + plane_bytes(block), *end = body + block->raw_bytes;
    struct tierce__encoder encoder = {.at = end, .floor = stream + TIERCE__BELOW_STREAM};
    memset(encoder.high, 1, sizeof(encoder.high));
    if (!encode_stream(&encoder, block, src, at))
        return 0;
    TIERCE_DASSERT(encoder.at >= stream);
    memcpy(state, encoder.low, TIERCE__GROUP);
    memcpy(state + TIERCE__GROUP, encoder.high, TIERCE__GROUP);
    size_t stream_bytes = (size_t)(end - encoder.at);
    memmove(stream, encoder.at, stream_bytes);
    return (size_t)(stream - body) + stream_bytes;
}

/* Encodes one block; returns its length with the header. */
static size_t encode_block(uint8_t *dst, const uint8_t *src, size_t bytes,
                           enum tierce__element element, size_t period)
{
    size_t body = 0;
    struct block block = {.period = 0};
    describe(&block, element, bytes);
    if (element != TIERCE__ELEMENT_RAW && bytes >= CODED_BYTES_MIN) {
        choose_symbols(&block, src, period);
        body = encode_body(dst + HEADER_BYTES, &block, src);
    }
    dst[AT_KIND] = body > 0 ? KIND_CODED : KIND_STORED;
    dst[AT_ELEMENT] = (uint8_t)element;
    tierce__store_le16(dst + AT_PERIOD, body > 0 ? (uint16_t)block.period : 0);
    if (body == 0) {
        body = bytes;
        memcpy(dst + HEADER_BYTES, src, bytes);
    }
    tierce__store_le32(dst + AT_RAW_BYTES, (uint32_t)bytes);
    tierce__store_le32(dst + AT_BODY_BYTES, (uint32_t)body);
    return HEADER_BYTES + body;
}

/* Where the run is cut: small parts alternate inside a block, and a block ends with a large part.
 */
struct cutter {
    uint64_t part_bytes; /* 0: no parts */
    size_t block_bytes;  /* of whole small parts, two by two */
    size_t period;       /* groups of a small part; 0: large parts or none */
};

static struct cutter make_cutter(const struct tierce__codec_shape *shape)
{
    size_t group = group_bytes(shape->element);
    uint64_t part = shape->part_bytes;
    if (part == 0 || part % group != 0)
        return (struct cutter){.block_bytes = BLOCK_BYTES_MAX};
    if (part > BLOCK_BYTES_MAX / 2)
        return (struct cutter){.part_bytes = part};
    return (struct cutter){.block_bytes = (size_t)(BLOCK_BYTES_MAX / (2 * part) * (2 * part)),
                           .period = (size_t)part / group};
}

static size_t cut(const struct cutter *cutter, uint64_t at, uint64_t bytes, size_t group)
{
    uint64_t left = bytes - at;
    if (cutter->part_bytes == 0)
        return left < cutter->block_bytes ? (size_t)left : cutter->block_bytes;
    uint64_t in_part = cutter->part_bytes - at % cutter->part_bytes;
    left = left < in_part ? left : in_part;
    uint64_t pieces = (left + BLOCK_BYTES_MAX - 1) / BLOCK_BYTES_MAX;
    uint64_t piece = tierce__round_up((left + pieces - 1) / pieces, group);
    return (size_t)(piece < left ? piece : left);
}

static int64_t lossless_encode(uint8_t *dst, uint64_t room, const uint8_t *src, uint64_t bytes,
                               const struct tierce__codec_shape *shape)
{
    if (shape->element >= TIERCE__ELEMENTS)
        return TIERCE_E_ARGUMENT;
    if (bytes > INT64_MAX / 2 || room < tierce__codec_bound(bytes))
        return TIERCE_E_LIMIT;
    struct cutter cutter = make_cutter(shape);
    uint64_t written = 0, odd = bytes % tierce__splits[shape->element].bytes;
    for (uint64_t at = 0; at < bytes - odd;) {
        size_t length = cut(&cutter, at, bytes - odd, group_bytes(shape->element));
        written += encode_block(dst + written, src + at, length, shape->element, cutter.period);
        at += length;
    }
    if (odd > 0)
        written += encode_block(dst + written, src + bytes - odd, odd, TIERCE__ELEMENT_RAW, 0);
    TIERCE_ASSERT(written <= room);
    return (int64_t)written;
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* Decodes groups [begin, end) one by one, near the end of the stream: from a copy of it that zeroes
 * follow, so that a kernel may read beyond. */
static int decode_tail(struct tierce__decoder *decoder, const struct block *block, uint8_t *planes,
                       uint8_t *dst, size_t begin)
{
    uint8_t stream[2 * TIERCE__BEYOND_STREAM] = {0}, last[2 * TIERCE__GROUP] = {0};
    size_t left = (size_t)(decoder->end - decoder->at), whole = block->elements / TIERCE__GROUP;
    TIERCE_ASSERT(left <= TIERCE__BEYOND_STREAM);
    memcpy(stream, decoder->at, left);
    decoder->at = stream;
    decoder->end = stream + sizeof(stream);
    for (size_t g = begin; g < block->groups; g++) {
        uint8_t *to = g < whole ? dst + g * group_bytes(block->element) : last;
        size_t done = tierce__codec_kernel()->decode(decoder, symbols_at(block, g), block->element,
                                                     to, 1, planes_at(block, planes, g));
        if (done != 1 || (size_t)(decoder->at - stream) > left)
            return TIERCE_E_FORMAT;
        if (to == last)
            memcpy(dst + g * group_bytes(block->element), last,
                   block->raw_bytes - g * group_bytes(block->element));
    }
    return (size_t)(decoder->at - stream) == left ? 0 : TIERCE_E_FORMAT;
}

static int decode_stream(struct tierce__decoder *decoder, const struct block *block,
                         uint8_t *planes, uint8_t *dst)
{
    const struct tierce__codec_kernel *kernel = tierce__codec_kernel();
    size_t whole = block->elements / TIERCE__GROUP, g = 0;
    while (g < whole) {
        size_t end = block->period == 0 ? whole : (g / block->period + 1) * block->period;
        end = end < whole ? end : whole;
        size_t done = kernel->decode(decoder, symbols_at(block, g), block->element,
                                     dst + g * group_bytes(block->element), end - g,
                                     planes_at(block, planes, g));
        g += done;
        if (g < end)
            break;
    }
    if (decoder->end - decoder->at > TIERCE__BEYOND_STREAM)
        return TIERCE_E_FORMAT; /* more bytes than the last group can have */
    return decode_tail(decoder, block, planes, dst, g);
}

static int decode_body(uint8_t *dst, struct block *block, const uint8_t *body, size_t bytes)
{
    size_t at = 0;
    for (unsigned i = 0; i < (block->period > 0 ? 2u : 1u); i++) {
        int length =
            tierce__symbols_load(&block->symbols[i], body + at, bytes - at, block->element);
        if (length < 0)
            return length;
        at += (size_t)length;
    }
    struct tierce__decoder decoder;
    if (bytes - at < STATE_BYTES + plane_bytes(block))
        return TIERCE_E_FORMAT;
    memcpy(decoder.low, body + at, TIERCE__GROUP);
    memcpy(decoder.high, body + at + TIERCE__GROUP, TIERCE__GROUP);
    /* A decoder only reads the planes; the type is the encoder's. */
    uint8_t *planes = (uint8_t *)(uintptr_t)(body + at + STATE_BYTES);
    decoder.at = planes + plane_bytes(block);
    decoder.end = body + bytes;
    int rc = decode_stream(&decoder, block, planes, dst);
    /* Every coder must be back where the encoder began. */
    for (unsigned i = 0; rc == 0 && i < TIERCE__GROUP; i++)
        rc = decoder.low[i] == 0 && decoder.high[i] == 1 ? 0 : TIERCE_E_FORMAT;
    return rc;
}

/* Reads the header of a block. `only`: the element of the block, or TIERCE__ELEMENTS for any that a
 * run can have. */
static int read_header(struct tierce__lossless_block *out, const uint8_t *src, uint64_t coded,
                       uint64_t room, enum tierce__element only)
{
    if (coded < HEADER_BYTES)
        return TIERCE_E_FORMAT;
    unsigned kind = src[AT_KIND], element = src[AT_ELEMENT],
             period = tierce__load_le16(src + AT_PERIOD);
    uint32_t raw = tierce__load_le32(src + AT_RAW_BYTES),
             body = tierce__load_le32(src + AT_BODY_BYTES);
    if (raw == 0 || raw > BLOCK_BYTES_MAX || raw > room || body > coded - HEADER_BYTES ||
        (only == TIERCE__ELEMENTS ? element >= TIERCE__ELEMENTS : element != only))
        return TIERCE_E_FORMAT;
    bool is_stored = kind == KIND_STORED && body == raw && period == 0;
    bool is_coded = kind == KIND_CODED && element != TIERCE__ELEMENT_RAW &&
                    raw % tierce__splits[element].bytes == 0 && body < raw;
    if (!is_stored && !is_coded)
        return TIERCE_E_FORMAT;
    *out = (struct tierce__lossless_block){.element = (enum tierce__element)element,
                                           .is_coded = is_coded,
                                           .raw_bytes = raw,
                                           .body_bytes = body,
                                           .period = period};
    return 0;
}

int tierce__lossless_block(struct tierce__lossless_block *out, const uint8_t *src, uint64_t coded,
                           uint64_t room)
{
    return read_header(out, src, coded, room, TIERCE__ELEMENTS);
}

/* Decodes the block at src to dst. Returns its coded length; *raw_bytes: its decoded length.
 * `only`: as of read_header. */
static int64_t decode_block(uint8_t *dst, uint64_t room, size_t *raw_bytes, const uint8_t *src,
                            uint64_t coded, enum tierce__element only)
{
    struct tierce__lossless_block header;
    int rc = read_header(&header, src, coded, room, only);
    if (rc < 0)
        return rc;
    struct block block = {.period = header.period};
    *raw_bytes = header.raw_bytes;
    if (!header.is_coded) {
        memcpy(dst, src + HEADER_BYTES, header.raw_bytes);
    } else {
        describe(&block, header.element, header.raw_bytes);
        rc = decode_body(dst, &block, src + HEADER_BYTES, header.body_bytes);
    }
    return rc < 0 ? rc : (int64_t)HEADER_BYTES + header.body_bytes;
}

static int lossless_decode(uint8_t *dst, uint64_t bytes, const uint8_t *src, uint64_t coded)
{
    uint64_t at = 0, from = 0;
    while (at < bytes) {
        size_t raw = 0;
        int64_t length =
            decode_block(dst + at, bytes - at, &raw, src + from, coded - from, TIERCE__ELEMENTS);
        if (length < 0)
            return (int)length;
        at += raw;
        from += (uint64_t)length;
    }
    return from == coded ? 0 : TIERCE_E_FORMAT;
}

size_t tierce__block_encode(uint8_t *dst, const uint8_t *src, size_t bytes,
                            enum tierce__element element)
{
    TIERCE_DASSERT(bytes >= 1 && bytes <= BLOCK_BYTES_MAX);
    return encode_block(dst, src, bytes, element, 0);
}

int64_t tierce__block_decode(uint8_t *dst, size_t bytes, const uint8_t *src, uint64_t coded,
                             enum tierce__element element)
{
    size_t raw = 0;
    int64_t length = decode_block(dst, bytes, &raw, src, coded, element);
    return length < 0 || raw == bytes ? length : TIERCE_E_FORMAT;
}

const struct tierce__codec tierce__codec_lossless = {.name = "lossless",
                                                     .number = 1,
                                                     .is_exact = true,
                                                     .encode = lossless_encode,
                                                     .decode = lossless_decode};
