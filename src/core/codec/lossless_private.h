/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CODEC_LOSSLESS_PRIVATE_H
#define TIERCE_CODEC_LOSSLESS_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/codec/codec.h"
#include "core/codec/lossless_blocks.h"
#include "core/codec/quantize_private.h"

/*
 * The lossless codec as its kernels see it. 64 elements are a group, and each has a coder of its
 * own: a state x of 16 bits, 256 <= x < 65536 between groups, kept as two vectors of bytes. A
 * symbol with frequency f of 256 and cumulative frequency c is coded by
 *
 *     while encoding:  if x >= 256 f: write x mod 256, x = x / 256
 *                      x = 256 (x / f) + x mod f + c
 *     while decoding:  the slot is x mod 256, which belongs to exactly one symbol
 *                      x = f (x / 256) + slot - c;  if x < 256: x = 256 x + the next byte
 *
 * Every limit is a multiple of 256, so a step compares, moves and looks up whole bytes of all
 * 64 coders at once. An encoder goes from the last group to the first, and writes downwards.
 * In the order of reading, a group has the bytes of its coders and then its escaped exponents.
 */
enum {
    TIERCE__GROUP = 64,
    TIERCE__SYMBOLS_MAX = 16,
    TIERCE__SLOTS = 256,
    TIERCE__NO_ESCAPE = 255,
    TIERCE__GROUP_STREAM_MAX = 2 * TIERCE__GROUP, /* bytes that a group can write or read */
    TIERCE__BELOW_STREAM = 8,    /* writable bytes that a kernel may change below the stream */
    TIERCE__BEYOND_STREAM = 192, /* readable bytes that a decoder needs to decode a group */
};

/* Symbols and their frequencies. Symbol `escape` stands for every exponent without a symbol. */
struct tierce__symbols {
    _Alignas(64) uint8_t of_slot[TIERCE__SLOTS];
    _Alignas(64) uint8_t of_exponent[TIERCE__SLOTS];
    uint8_t exponent[TIERCE__SYMBOLS_MAX];
    uint8_t frequency[TIERCE__SYMBOLS_MAX];
    uint8_t below[TIERCE__SYMBOLS_MAX];          /* cumulative frequency */
    uint8_t reciprocal_low[TIERCE__SYMBOLS_MAX]; /* of min(65536 / f, 65535) */
    uint8_t reciprocal_high[TIERCE__SYMBOLS_MAX];
    uint8_t count;
    uint8_t escape; /* count - 1 or TIERCE__NO_ESCAPE */
};

/* The bits that are not coded: for each group 64 bytes of `low` (two-byte elements) and bit_count
 * words of `bits`, one for each bit, element 0 lowest. */
struct tierce__planes {
    uint8_t *low;
    uint8_t *bits;
};

struct tierce__encoder {
    _Alignas(64) uint8_t low[TIERCE__GROUP];
    uint8_t high[TIERCE__GROUP];
    uint8_t *at;    /* the stream so far begins here */
    uint8_t *floor; /* it must not begin below */
};

struct tierce__decoder {
    _Alignas(64) uint8_t low[TIERCE__GROUP];
    uint8_t high[TIERCE__GROUP];
    const uint8_t *at;
    const uint8_t *end;
};

struct tierce__codec_kernel {
    struct tierce__kernel_head head;

    /* Encodes groups [0, groups) of src, the last one first. False: the stream has less than
     * TIERCE__GROUP_STREAM_MAX bytes left above the floor before a group. */
    bool (*encode)(struct tierce__encoder *encoder, const struct tierce__symbols *symbols,
                   enum tierce__element element, const uint8_t *src, size_t groups,
                   struct tierce__planes planes);

    /* Decodes groups to dst until `groups` are decoded or fewer than TIERCE__BEYOND_STREAM bytes of
     * the stream are left. Returns the number of decoded groups. */
    size_t (*decode)(struct tierce__decoder *decoder, const struct tierce__symbols *symbols,
                     enum tierce__element element, uint8_t *dst, size_t groups,
                     struct tierce__planes planes);

    const struct tierce__quantize_kernel *quantize; /* of the lossy codecs */
};

extern const struct tierce__codec_kernel tierce__codec_portable;
#if defined(__x86_64__)
extern const struct tierce__codec_kernel tierce__codec_avx512;
extern const struct tierce__codec_kernel tierce__codec_avx2;
#endif
#if defined(__aarch64__)
extern const struct tierce__codec_kernel tierce__codec_neon;
#endif

static inline const struct tierce__codec_kernel *tierce__codec_kernel(void)
{
    return (const struct tierce__codec_kernel *)tierce__kernel_in_use(&tierce__codec_kernels);
}

/* ---- lossless_symbols.c: which exponents get symbols ----------------------------------------- */

/* Adds the exponents of src to counts; of long runs those of a sample. elements > 0. */
void tierce__symbols_count(uint32_t counts[TIERCE__SLOTS], enum tierce__element element,
                           const uint8_t *src, size_t elements);

/* Chooses symbols and frequencies; every exponent can be encoded by them. Returns the estimated
 * cost of the counted elements in 1/256 bits. At least one count is not 0. */
uint64_t tierce__symbols_choose(struct tierce__symbols *out, const uint32_t counts[TIERCE__SLOTS],
                                enum tierce__element element);

#define TIERCE__SYMBOLS_BYTES_MAX (1u + 2u * TIERCE__SYMBOLS_MAX)

/* Writes and reads the symbols of a block: returns their length. Errors: TIERCE_E_FORMAT. */
size_t tierce__symbols_store(uint8_t *dst, const struct tierce__symbols *symbols);
TIERCE_MUSTUSE int tierce__symbols_load(struct tierce__symbols *out, const uint8_t *src,
                                        size_t bytes, enum tierce__element element);

/* ---- lossless.c: blocks of symbols, for other codecs ----------------------------------------- */

/* Writes a block of `bytes` symbols, 1 to 65536, of the element SYMBOLS4 or SYMBOLS5; returns its
 * length, at most TIERCE__BLOCK_HEADER_BYTES more. */
size_t tierce__block_encode(uint8_t *dst, const uint8_t *src, size_t bytes,
                            enum tierce__element element);
/* Decodes a block at src to exactly dst[0 .. bytes); returns its length. Errors: TIERCE_E_FORMAT.
 */
int64_t tierce__block_decode(uint8_t *dst, size_t bytes, const uint8_t *src, uint64_t coded,
                             enum tierce__element element);

/* Every codec of codecs.def. */
#define TIERCE_CODEC(suffix, number, name, summary)                                                \
    extern const struct tierce__codec tierce__codec_##suffix;
#include "core/codec/codecs.def"
#undef TIERCE_CODEC

#endif
