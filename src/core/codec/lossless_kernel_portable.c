/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/lossless_private.h"

#include <string.h>

#include "base/bytes.h"

#define INLINE __attribute__((always_inline)) static inline

static bool portable_usable(void)
{
    return true;
}

/* The two parts of an element: the byte that holds the symbol, and the other byte. */
INLINE unsigned split_element(enum tierce__element element, const uint8_t *src, size_t i,
                              uint8_t *low)
{
    if (tierce__splits[element].bytes == 1)
        return src[i];
    unsigned word = tierce__load_le16(src + 2 * i);
    if (element != TIERCE__ELEMENT_BF16) {
        *low = (uint8_t)word;
        return word >> 8;
    }
    *low = (uint8_t)((word >> 8 & 0x80) | (word & 0x7f));
    return word >> 7 & 0xff;
}

INLINE void join_element(enum tierce__element element, uint8_t *dst, size_t i, unsigned top,
                         const uint8_t *low)
{
    if (tierce__splits[element].bytes == 1)
        dst[i] = (uint8_t)top;
    else if (element != TIERCE__ELEMENT_BF16)
        tierce__store_le16(dst + 2 * i, (uint16_t)(top << 8 | *low));
    else
        tierce__store_le16(dst + 2 * i,
                           (uint16_t)((*low & 0x80u) << 8 | top << 7 | (*low & 0x7fu)));
}

/* Splits a group; returns whether one of its exponents is escaped. */
INLINE bool split_group(uint8_t exponents[TIERCE__GROUP], uint8_t codes[TIERCE__GROUP],
                        const struct tierce__symbols *symbols, enum tierce__element element,
                        const uint8_t *src, struct tierce__planes planes)
{
    const struct tierce__split *split = &tierce__splits[element];
    uint64_t bits[4] = {0};
    bool escapes = false;
    for (unsigned i = 0; i < TIERCE__GROUP; i++) {
        unsigned top = split_element(element, src, i, planes.low + i);
        exponents[i] = (uint8_t)(top >> split->shift & split->mask);
        codes[i] = symbols->of_exponent[exponents[i]];
        escapes |= codes[i] == symbols->escape;
        for (unsigned k = 0; k < split->bit_count; k++)
            bits[k] |= (uint64_t)(top >> split->bits[k] & 1) << i;
    }
    for (unsigned k = 0; k < split->bit_count; k++)
        tierce__store_le64(planes.bits + 8 * (size_t)k, bits[k]);
    return escapes;
}

/* Each coder writes at most one byte before its symbol. Arithmetic stands for branches, which
 * nothing could predict. */
INLINE void encode_symbols(struct tierce__encoder *encoder, const struct tierce__symbols *symbols,
                           const uint8_t codes[TIERCE__GROUP])
{
    uint8_t *at = encoder->at;
    for (unsigned i = TIERCE__GROUP; i-- > 0;) {
        unsigned f = symbols->frequency[codes[i]];
        unsigned x = encoder->low[i] | (unsigned)encoder->high[i] << 8;
        unsigned full = x >= f << 8;
        at[-1] = (uint8_t)x; /* if it is not full, the next one overwrites the byte */
        at -= full;
        x >>= 8 * full;
        unsigned reciprocal =
            symbols->reciprocal_low[codes[i]] | (unsigned)symbols->reciprocal_high[codes[i]] << 8;
        unsigned quotient = x * reciprocal >> 16; /* at most 1 too small */
        unsigned rest = x - quotient * f, more = rest >= f;
        encoder->high[i] = (uint8_t)(quotient + more);
        encoder->low[i] = (uint8_t)(rest - (f & -more) + symbols->below[codes[i]]);
    }
    encoder->at = at;
}

INLINE bool encode_groups(struct tierce__encoder *encoder, const struct tierce__symbols *symbols,
                          enum tierce__element element, const uint8_t *src, size_t groups,
                          struct tierce__planes planes)
{
    const struct tierce__split *split = &tierce__splits[element];
    uint8_t exponents[TIERCE__GROUP], codes[TIERCE__GROUP];
    for (size_t g = groups; g-- > 0;) {
        if (encoder->at - encoder->floor < TIERCE__GROUP_STREAM_MAX)
            return false;
        bool escapes = split_group(
            exponents, codes, symbols, element, src + g * TIERCE__GROUP * split->bytes,
            (struct tierce__planes){planes.low + g * TIERCE__GROUP * (split->bytes - 1u),
                                    planes.bits + g * 8 * split->bit_count});
        for (unsigned i = 0; escapes && i < TIERCE__GROUP; i++) {
            unsigned k = TIERCE__GROUP - 1 - i;
            if (codes[k] == symbols->escape)
                *--encoder->at = exponents[k];
        }
        encode_symbols(encoder, symbols, codes);
    }
    return true;
}

INLINE bool decode_symbols(uint8_t exponents[TIERCE__GROUP], uint8_t codes[TIERCE__GROUP],
                           struct tierce__decoder *decoder, const struct tierce__symbols *symbols)
{
    const uint8_t *at = decoder->at;
    bool escapes = false;
    for (unsigned i = 0; i < TIERCE__GROUP; i++) {
        unsigned slot = decoder->low[i], code = symbols->of_slot[slot];
        unsigned x =
            symbols->frequency[code] * (unsigned)decoder->high[i] + slot - symbols->below[code];
        unsigned empty = x < 256;
        x = x << 8 * empty | (*at & -empty);
        at += empty;
        decoder->low[i] = (uint8_t)x;
        decoder->high[i] = (uint8_t)(x >> 8);
        codes[i] = (uint8_t)code;
        exponents[i] = symbols->exponent[code];
        escapes |= code == symbols->escape;
    }
    decoder->at = at;
    return escapes;
}

INLINE size_t decode_groups(struct tierce__decoder *decoder, const struct tierce__symbols *symbols,
                            enum tierce__element element, uint8_t *dst, size_t groups,
                            struct tierce__planes planes)
{
    const struct tierce__split *split = &tierce__splits[element];
    uint8_t exponents[TIERCE__GROUP], codes[TIERCE__GROUP];
    size_t g = 0;
    for (; g < groups && decoder->end - decoder->at >= TIERCE__BEYOND_STREAM; g++) {
        bool escapes = decode_symbols(exponents, codes, decoder, symbols);
        for (unsigned i = 0; escapes && i < TIERCE__GROUP; i++) {
            if (codes[i] == symbols->escape)
                exponents[i] = *decoder->at++ & split->mask;
        }
        uint64_t bits[4] = {0};
        for (unsigned k = 0; k < split->bit_count; k++)
            bits[k] = tierce__load_le64(planes.bits + 8 * (g * split->bit_count + k));
        const uint8_t *low = planes.low + g * TIERCE__GROUP * (split->bytes - 1u);
        uint8_t *to = dst + g * TIERCE__GROUP * split->bytes;
        for (unsigned i = 0; i < TIERCE__GROUP; i++) {
            unsigned top = (unsigned)exponents[i] << split->shift;
            for (unsigned k = 0; k < split->bit_count; k++)
                top |= (unsigned)(bits[k] >> i & 1) << split->bits[k];
            join_element(element, to, i, top, low + i);
        }
    }
    return g;
}

#define KERNEL_ATTRIBUTE
#define KERNEL_NAME(verb) portable_##verb
#include "core/codec/lossless_elements.h"

const struct tierce__codec_kernel tierce__codec_portable = {.head = {"portable", portable_usable},
                                                            .encode = portable_encode,
                                                            .decode = portable_decode,
                                                            .quantize = &tierce__quantize_portable};
