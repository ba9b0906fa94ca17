/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec cachegen: each token of keys or values is quantized to the levels of its layer, less
 * the usual level of each channel, and entropy-coded by the coders of the lossless codec. Decoded
 * values are those of LMCache's CacheGen; the container is our own.
 */
#include "core/codec/lossless_private.h"

#include <string.h>

#include "base/assert.h"
#include "base/bytes.h"

/* The header of a run. docs/inside/format/codec.md */
enum {
    AT_KIND = 0,
    AT_ELEMENT = 1,
    AT_LEVELS = 2, /* of the keys, and of the values */
    AT_ROW_ELEMENTS = 4,
    AT_PART_ROWS = 8,
    HEADER_BYTES = 12,
    STORED_HEADER_BYTES = 4,
};
/* ORDERED: the length of the order's text and the text follow the header; a part is the keys, or
 * the values, of a cell. */
enum { KIND_STORED = 0, KIND_CODED = 1, KIND_ORDERED = 2 };

/* 32 and 16 bins of CacheGen: keys of layers 0 to 9 and values of layers 0 and 1 have the finer
 * levels, and so has every layer of a model with fewer than 10. */
enum { FINE_LEVELS = 15, COARSE_LEVELS = 7, FINE_KEY_LAYERS = 10, FINE_VALUE_LAYERS = 2 };

#define BLOCK_SYMBOLS_MAX 32768u
#define ROW_ELEMENTS_MAX  ((unsigned)TIERCE__CELL_ROW_MAX)
#define SAMPLED_ROWS      64u

/* Rows are tokens. Keys and values alternate after part_rows rows; 0: there are only keys, and no
 * cells. */
struct run {
    enum tierce__element element;
    unsigned levels[2];
    uint64_t rows[2];
    size_t row_elements;
    uint64_t part_rows;
    const struct tierce__cell_order *order; /* NULL: rows follow each other */
    struct tierce__cell_places places;      /* in this order */
};

static unsigned kinds_of(const struct run *run)
{
    if (run->order != NULL)
        return run->places.kinds;
    return run->part_rows > 0 ? 2 : 1;
}

/* Whether `bytes` consist of such rows and parts; then completes rows. */
static bool count_rows(struct run *run, uint64_t bytes)
{
    uint64_t row = 2 * (uint64_t)run->row_elements;
    if (run->row_elements == 0 || run->row_elements > ROW_ELEMENTS_MAX || bytes % row != 0)
        return false;
    uint64_t rows = bytes / row;
    run->rows[0] = rows;
    run->rows[1] = 0;
    if (run->part_rows == 0)
        return true;
    /* Cells are whole, and a run without cells may end with keys. */
    if (rows % ((run->order != NULL ? kinds_of(run) : 1) * run->part_rows) != 0)
        return false;
    if (kinds_of(run) > 1)
        run->rows[1] = rows / run->part_rows / 2 * run->part_rows;
    run->rows[0] = rows - run->rows[1];
    return true;
}

/* Bytes from the beginning of the run to the centres. */
static uint64_t header_bytes(const struct run *run)
{
    return HEADER_BYTES + (run->order != NULL ? 1 + (uint64_t)run->order->length : 0);
}

static size_t block_rows(const struct run *run)
{
    return BLOCK_SYMBOLS_MAX / run->row_elements;
}

/* Where row `row` of a kind lies in the run, in bytes; *more: rows that follow each other there.
 * Not for a run with an order. */
static uint64_t place_of(const struct run *run, unsigned kind, uint64_t row, uint64_t *more)
{
    uint64_t bytes = 2 * (uint64_t)run->row_elements;
    TIERCE_DASSERT(run->order == NULL);
    *more = run->rows[kind] - row;
    if (run->part_rows == 0)
        return row * bytes;
    uint64_t part = 2 * (row / run->part_rows) + kind, in_part = row % run->part_rows;
    *more = run->part_rows - in_part;
    return (part * run->part_rows + in_part) * bytes;
}

static size_t fewer(uint64_t a, size_t b)
{
    return a < b ? (size_t)a : b;
}

/* Up to *count rows of a kind from `row` on: in the run, or copied to `gathered`, which has room
 * for a row of ROW_ELEMENTS_MAX. *count becomes their number. */
static const uint8_t *take_rows(const struct run *run, unsigned kind, uint64_t row, size_t *count,
                                const uint8_t *src, uint8_t *gathered)
{
    uint64_t more, bytes = 2 * (uint64_t)run->row_elements;
    if (run->order == NULL) {
        uint64_t at = place_of(run, kind, row, &more);
        *count = fewer(more, *count);
        return src + at;
    }
    *count = fewer(ROW_ELEMENTS_MAX / run->row_elements, *count);
    for (size_t i = 0; i < *count; i++) {
        uint64_t cell = (row + i) / run->part_rows;
        tierce__cell_gather(gathered + i * bytes, &run->places, kind,
                            (uint32_t)((row + i) % run->part_rows),
                            src + cell * run->part_rows * kinds_of(run) * bytes);
    }
    return gathered;
}

/* The memory of up to *count rows to be written, as above; put_rows completes it. */
static uint8_t *room_of_rows(const struct run *run, unsigned kind, uint64_t row, size_t *count,
                             uint8_t *dst, uint8_t *gathered)
{
    uint64_t more = 0, at = 0;
    if (run->order == NULL)
        at = place_of(run, kind, row, &more);
    *count = fewer(run->order == NULL ? more : ROW_ELEMENTS_MAX / run->row_elements, *count);
    return run->order == NULL ? dst + at : gathered;
}

static void put_rows(const struct run *run, unsigned kind, uint64_t row, size_t count, uint8_t *dst,
                     const uint8_t *gathered)
{
    uint64_t bytes = 2 * (uint64_t)run->row_elements;
    for (size_t i = 0; run->order != NULL && i < count; i++) {
        uint64_t cell = (row + i) / run->part_rows;
        tierce__cell_scatter(dst + cell * run->part_rows * kinds_of(run) * bytes, &run->places,
                             kind, (uint32_t)((row + i) % run->part_rows), gathered + i * bytes);
    }
}

static struct tierce__quantizer quantizer_of(const struct run *run, unsigned kind)
{
    return (struct tierce__quantizer){
        .element = run->element, .levels = run->levels[kind], .length = run->row_elements};
}

/* Symbols are differences modulo 16 or 32. */
static unsigned mask_of(unsigned levels)
{
    return levels <= COARSE_LEVELS ? 15 : 31;
}

static enum tierce__element symbols_of(unsigned levels)
{
    return levels <= COARSE_LEVELS ? TIERCE__SYMBOLS4 : TIERCE__SYMBOLS5;
}

/* ---- encoding ---------------------------------------------------------------------------------
 */

/* More bytes than any encoding of the run has: nothing is saved by its symbols. */
static uint64_t bytes_at_most(const struct run *run)
{
    uint64_t sum = header_bytes(run);
    for (unsigned k = 0; k < kinds_of(run); k++) {
        uint64_t blocks = (run->rows[k] + block_rows(run) - 1) / block_rows(run);
        sum += run->row_elements + blocks * TIERCE__BLOCK_HEADER_BYTES +
               run->rows[k] * (2 + run->row_elements);
    }
    return sum;
}

/* The usual code of each channel: the mean of a sample of the rows, rounded down, because a coder
 * keeps the symbols 0 and 1 together. False: a value is not finite. */
static bool find_centres(uint8_t *centres, const struct run *run, unsigned kind, const uint8_t *src)
{
    uint16_t sums[ROW_ELEMENTS_MAX] = {0};
    uint8_t codes[ROW_ELEMENTS_MAX], gathered[2 * ROW_ELEMENTS_MAX], scale[2];
    struct tierce__quantizer q = quantizer_of(run, kind);
    uint64_t step = (run->rows[kind] + SAMPLED_ROWS - 1) / SAMPLED_ROWS;
    unsigned count = 0;
    for (uint64_t row = 0; row < run->rows[kind]; row += step, count++) {
        size_t one = 1;
        const uint8_t *from = take_rows(run, kind, row, &one, src, gathered);
        if (!tierce__codec_kernel()->quantize->quantize(&q, codes, scale, from, 1))
            return false;
        for (size_t i = 0; i < run->row_elements; i++)
            sums[i] = (uint16_t)(sums[i] + codes[i]);
    }
    for (size_t i = 0; i < run->row_elements; i++)
        centres[i] = (uint8_t)(count > 0 ? sums[i] / count : 0);
    return true;
}

/* Writes one block; returns its length, or 0 if a value is not finite. */
static size_t encode_block(uint8_t *dst, const struct run *run, unsigned kind, uint64_t first,
                           size_t rows, const uint8_t *centres, const uint8_t *src)
{
    uint8_t codes[BLOCK_SYMBOLS_MAX], gathered[2 * ROW_ELEMENTS_MAX];
    struct tierce__quantizer q = quantizer_of(run, kind);
    uint8_t mask = (uint8_t)mask_of(run->levels[kind]);
    for (size_t row = 0; row < rows;) {
        size_t count = rows - row;
        const uint8_t *from = take_rows(run, kind, first + row, &count, src, gathered);
        if (!tierce__codec_kernel()->quantize->quantize(&q, codes + row * run->row_elements,
                                                        dst + 2 * row, from, count))
            return 0;
        row += count;
    }
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < run->row_elements; i++) {
            uint8_t *code = &codes[row * run->row_elements + i];
            *code = (uint8_t)(*code - centres[i]) & mask;
        }
    }
    return 2 * rows + tierce__block_encode(dst + 2 * rows, codes, rows * run->row_elements,
                                           symbols_of(run->levels[kind]));
}

/* Returns the coded length, or 0 if a value is not finite. */
static uint64_t encode_run(uint8_t *dst, const struct run *run, const uint8_t *src)
{
    uint8_t *centres = dst + header_bytes(run);
    uint64_t at = header_bytes(run) + kinds_of(run) * run->row_elements;
    for (unsigned k = 0; k < kinds_of(run); k++, centres += run->row_elements) {
        if (!find_centres(centres, run, k, src))
            return 0;
        for (uint64_t row = 0; row < run->rows[k];) {
            uint64_t left = run->rows[k] - row;
            size_t rows = left < block_rows(run) ? (size_t)left : block_rows(run);
            size_t length = encode_block(dst + at, run, k, row, rows, centres, src);
            if (length == 0)
                return 0;
            at += length;
            row += rows;
        }
    }
    dst[AT_KIND] = run->order != NULL ? KIND_ORDERED : KIND_CODED;
    dst[AT_ELEMENT] = (uint8_t)run->element;
    dst[AT_LEVELS] = (uint8_t)run->levels[0];
    dst[AT_LEVELS + 1] = (uint8_t)run->levels[1];
    tierce__store_le32(dst + AT_ROW_ELEMENTS, (uint32_t)run->row_elements);
    tierce__store_le32(dst + AT_PART_ROWS, (uint32_t)run->part_rows);
    if (run->order != NULL) {
        dst[HEADER_BYTES] = run->order->length;
        memcpy(dst + HEADER_BYTES + 1, run->order->text, run->order->length);
    }
    return at;
}

static uint64_t store_run(uint8_t *dst, const uint8_t *src, uint64_t bytes,
                          enum tierce__element element)
{
    memset(dst, 0, STORED_HEADER_BYTES);
    dst[AT_KIND] = KIND_STORED;
    dst[AT_ELEMENT] = (uint8_t)element;
    memcpy(dst + STORED_HEADER_BYTES, src, bytes);
    return STORED_HEADER_BYTES + bytes;
}

/* Rows that follow each other. */
static bool describe_rows(struct run *run, const struct tierce__codec_shape *shape)
{
    uint64_t row = shape->row_bytes, part = shape->part_bytes;
    if (row == 0 || row % 2 != 0 || row / 2 > ROW_ELEMENTS_MAX || part % row != 0 ||
        part / row > UINT32_MAX)
        return false;
    run->row_elements = (size_t)row / 2;
    run->part_rows = part / row;
    return true;
}

/* Rows in cells of so many elements. */
static bool describe_cells(struct run *run, const struct tierce__cell_order *order,
                           uint64_t elements, uint32_t tokens)
{
    run->order = order;
    run->part_rows = tokens;
    if (!tierce__cell_places_init(&run->places, order, elements, tokens))
        return false;
    run->row_elements = (size_t)run->places.heads * run->places.channels;
    return true;
}

static bool describe(struct run *run, uint64_t bytes, const struct tierce__codec_shape *shape)
{
    bool all_fine = shape->layers < FINE_KEY_LAYERS;
    memset(run, 0, sizeof(*run));
    if (shape->element != TIERCE__ELEMENT_BF16 && shape->element != TIERCE__ELEMENT_FP16)
        return false;
    run->element = shape->element;
    if (shape->order == NULL
            ? !describe_rows(run, shape)
            : shape->cell_bytes % 2 != 0 ||
                  !describe_cells(run, shape->order, shape->cell_bytes / 2, shape->cell_tokens))
        return false;
    run->levels[0] = all_fine || shape->layer < FINE_KEY_LAYERS ? FINE_LEVELS : COARSE_LEVELS;
    if (kinds_of(run) == 2)
        run->levels[1] = all_fine || shape->layer < FINE_VALUE_LAYERS ? FINE_LEVELS : COARSE_LEVELS;
    return count_rows(run, bytes);
}

static int64_t cachegen_encode(uint8_t *dst, uint64_t room, const uint8_t *src, uint64_t bytes,
                               const struct tierce__codec_shape *shape)
{
    struct run run;
    if (bytes > INT64_MAX / 2 || !describe(&run, bytes, shape))
        return TIERCE_E_ARGUMENT;
    if (room < tierce__codec_bound(bytes))
        return TIERCE_E_LIMIT;
    if (bytes == 0)
        return 0;
    uint64_t length = bytes_at_most(&run) < bytes ? encode_run(dst, &run, src) : 0;
    if (length == 0)
        length = store_run(dst, src, bytes, run.element);
    TIERCE_ASSERT(length <= room);
    return (int64_t)length;
}

/* ---- decoding ---------------------------------------------------------------------------------
 */

/* Returns the length of the block, or an error. */
static int64_t decode_block(uint8_t *dst, const struct run *run, unsigned kind, uint64_t first,
                            size_t rows, const uint8_t *centres, const uint8_t *src, uint64_t left)
{
    uint8_t codes[BLOCK_SYMBOLS_MAX], gathered[2 * ROW_ELEMENTS_MAX];
    struct tierce__quantizer q = quantizer_of(run, kind);
    uint8_t mask = (uint8_t)mask_of(run->levels[kind]);
    size_t symbols = rows * run->row_elements;
    if (left < 2 * rows)
        return TIERCE_E_FORMAT;
    int64_t length = tierce__block_decode(codes, symbols, src + 2 * rows, left - 2 * rows,
                                          symbols_of(run->levels[kind]));
    if (length < 0)
        return length;
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < run->row_elements; i++) {
            uint8_t *code = &codes[row * run->row_elements + i];
            *code = (uint8_t)(*code + centres[i]) & mask;
        }
    }
    for (size_t row = 0; row < rows;) {
        size_t count = rows - row;
        uint8_t *to = room_of_rows(run, kind, first + row, &count, dst, gathered);
        if (!tierce__codec_kernel()->quantize->dequantize(&q, to, codes + row * run->row_elements,
                                                          src + 2 * row, count))
            return TIERCE_E_FORMAT;
        put_rows(run, kind, first + row, count, dst, gathered);
        row += count;
    }
    return (int64_t)(2 * rows) + length;
}

static bool are_levels_valid(const struct run *run)
{
    for (unsigned k = 0; k < kinds_of(run); k++) {
        if (run->levels[k] != FINE_LEVELS && run->levels[k] != COARSE_LEVELS)
            return false;
    }
    return kinds_of(run) == 2 || run->levels[1] == 0;
}

static bool are_centres_valid(const struct run *run, const uint8_t *centres)
{
    for (unsigned k = 0; k < kinds_of(run); k++) {
        for (size_t i = 0; i < run->row_elements; i++) {
            if (centres[k * run->row_elements + i] > 2 * run->levels[k])
                return false;
        }
    }
    return true;
}

/* The order of an ORDERED run, and with it the places. */
static bool read_order(struct run *run, struct tierce__cell_order *order, const uint8_t *src,
                       uint64_t coded)
{
    uint64_t cell = 0;
    if (coded < HEADER_BYTES + 1 || coded < HEADER_BYTES + 1 + (uint64_t)src[HEADER_BYTES] ||
        !tierce__cell_order_read(order, (const char *)src + HEADER_BYTES + 1, src[HEADER_BYTES]))
        return false;
    size_t row = run->row_elements;
    bool has_values = memchr(order->text, 'k', order->length) != NULL;
    cell = (has_values ? 2 : 1) * run->part_rows * row;
    return describe_cells(run, order, cell, (uint32_t)run->part_rows) && run->row_elements == row;
}

static int decode_run(uint8_t *dst, uint64_t bytes, const uint8_t *src, uint64_t coded)
{
    struct tierce__cell_order order;
    if (coded < HEADER_BYTES)
        return TIERCE_E_FORMAT;
    struct run run = {.element = (enum tierce__element)src[AT_ELEMENT],
                      .levels = {src[AT_LEVELS], src[AT_LEVELS + 1]},
                      .row_elements = tierce__load_le32(src + AT_ROW_ELEMENTS),
                      .part_rows = tierce__load_le32(src + AT_PART_ROWS)};
    if (src[AT_KIND] == KIND_ORDERED && !read_order(&run, &order, src, coded))
        return TIERCE_E_FORMAT;
    if (!count_rows(&run, bytes) || !are_levels_valid(&run))
        return TIERCE_E_FORMAT;
    const uint8_t *centres = src + header_bytes(&run);
    uint64_t at = header_bytes(&run) + kinds_of(&run) * run.row_elements;
    if (at > coded || !are_centres_valid(&run, centres))
        return TIERCE_E_FORMAT;
    for (unsigned k = 0; k < kinds_of(&run); k++, centres += run.row_elements) {
        for (uint64_t row = 0; row < run.rows[k];) {
            uint64_t left = run.rows[k] - row;
            size_t rows = left < block_rows(&run) ? (size_t)left : block_rows(&run);
            int64_t length = decode_block(dst, &run, k, row, rows, centres, src + at, coded - at);
            if (length < 0)
                return (int)length;
            at += (uint64_t)length;
            row += rows;
        }
    }
    return at == coded ? 0 : TIERCE_E_FORMAT;
}

static int cachegen_decode(uint8_t *dst, uint64_t bytes, const uint8_t *src, uint64_t coded)
{
    if (bytes == 0)
        return coded == 0 ? 0 : TIERCE_E_FORMAT;
    if (coded < STORED_HEADER_BYTES || bytes > INT64_MAX / 2 ||
        (src[AT_ELEMENT] != TIERCE__ELEMENT_BF16 && src[AT_ELEMENT] != TIERCE__ELEMENT_FP16))
        return TIERCE_E_FORMAT;
    if (src[AT_KIND] == KIND_CODED || src[AT_KIND] == KIND_ORDERED)
        return decode_run(dst, bytes, src, coded);
    if (src[AT_KIND] != KIND_STORED || src[2] != 0 || src[3] != 0 ||
        coded - STORED_HEADER_BYTES != bytes)
        return TIERCE_E_FORMAT;
    memcpy(dst, src + STORED_HEADER_BYTES, bytes);
    return 0;
}

const struct tierce__codec tierce__codec_cachegen = {.name = "cachegen",
                                                     .number = 5,
                                                     .needs_order = true,
                                                     .encode = cachegen_encode,
                                                     .decode = cachegen_decode};
