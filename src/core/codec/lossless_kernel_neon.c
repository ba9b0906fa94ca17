/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/lossless_private.h"

#if defined(__aarch64__)
#include <arm_neon.h>

/* Four vectors are a byte of all 64 coders. NEON cannot compress or expand a vector by a mask. So
 * the mask of eight coders selects a row of a table, and the row shuffles their bytes. */
#define INLINE __attribute__((always_inline)) static inline

enum { QUARTER = 16, QUARTERS = 4, OCTET = 8, OCTETS = 8, LEVELS = 4 };

struct group {
    uint8x16_t quarter[QUARTERS];
};

/* Every aarch64 machine has NEON. */
static bool neon_usable(void)
{
    return true;
}

/* ---- masks ------------------------------------------------------------------------------------
 */

/* How many bits of mask m are set below bit i: the place of coder i among the bytes of a stream. */
#define RANK(m, i) __builtin_popcount((m) & ((1 << (i)) - 1))

/* The set bit of mask m that has 7 - j set bits above it; 0 if there is none. Its byte goes to
 * place j, so that the wanted bytes of an octet are its last ones. */
#define IF_CHOSEN(m, j, i)                                                                         \
    (((m)&1 << (i)) != 0 && __builtin_popcount((m) >> (i)) == 8 - (j) ? (i) : 0)
#define CHOSEN(m, j)                                                                               \
    (IF_CHOSEN(m, j, 1) + IF_CHOSEN(m, j, 2) + IF_CHOSEN(m, j, 3) + IF_CHOSEN(m, j, 4) +           \
     IF_CHOSEN(m, j, 5) + IF_CHOSEN(m, j, 6) + IF_CHOSEN(m, j, 7))

#define ROW(of, m)                                                                                 \
    {                                                                                              \
        of(m, 0), of(m, 1), of(m, 2), of(m, 3), of(m, 4), of(m, 5), of(m, 6), of(m, 7)             \
    }
#define ROWS4(of, m)  ROW(of, m), ROW(of, (m) + 1), ROW(of, (m) + 2), ROW(of, (m) + 3)
#define ROWS16(of, m) ROWS4(of, m), ROWS4(of, (m) + 4), ROWS4(of, (m) + 8), ROWS4(of, (m) + 12)
#define ROWS64(of, m)                                                                              \
    ROWS16(of, m), ROWS16(of, (m) + 16), ROWS16(of, (m) + 32), ROWS16(of, (m) + 48)
#define ROWS(of) ROWS64(of, 0), ROWS64(of, 64), ROWS64(of, 128), ROWS64(of, 192)

static const uint8_t ranks[256][OCTET] = {ROWS(RANK)};
static const uint8_t chosen[256][OCTET] = {ROWS(CHOSEN)};

INLINE uint8x16_t bit_of_lane(void)
{
    return vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
}

/* One bit for each byte of a mask, whose bytes are 0 or 255. */
INLINE uint8x8_t bits_of_mask(const struct group *mask)
{
    uint8x16_t bits[QUARTERS];
    for (unsigned q = 0; q < QUARTERS; q++)
        bits[q] = vandq_u8(mask->quarter[q], bit_of_lane());
    uint8x16_t halves = vpaddq_u8(vpaddq_u8(bits[0], bits[1]), vpaddq_u8(bits[2], bits[3]));
    return vget_low_u8(vpaddq_u8(halves, halves));
}

INLINE bool is_any(const struct group *mask)
{
    uint8x16_t either = vorrq_u8(vorrq_u8(mask->quarter[0], mask->quarter[1]),
                                 vorrq_u8(mask->quarter[2], mask->quarter[3]));
    return vmaxvq_u32(vreinterpretq_u32_u8(either)) != 0;
}

/* Byte k is of the coders 8 k to 8 k + 7: their bits of a mask; how many of all bits up to theirs
 * are set. */
struct octets {
    uint64_t bits, ends;
};

INLINE struct octets octets_of(const struct group *mask)
{
    uint8x8_t bits = bits_of_mask(mask);
    uint64_t counts = vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(bits)), 0);
    return (struct octets){.bits = vget_lane_u64(vreinterpret_u64_u8(bits), 0),
                           .ends = counts * 0x0101010101010101u};
}

INLINE unsigned byte_at(uint64_t word, unsigned k)
{
    return (unsigned)(word >> 8 * k) & 0xff;
}

INLINE unsigned total(struct octets octets)
{
    return byte_at(octets.ends, OCTETS - 1);
}

/* Writes the bytes of `mask` so that they end at `at`; returns where they begin. Writes up to 8
 * bytes below that: every octet overwrites the unwanted bytes of the one above. */
INLINE uint8_t *push_bytes(uint8_t *at, const struct group *mask, const struct group *bytes)
{
    struct octets octets = octets_of(mask);
    at -= total(octets);
    for (unsigned k = OCTETS; k-- > 0;) {
        uint8x16_t from = bytes->quarter[k / 2];
        if (k % 2 == 1)
            from = vextq_u8(from, from, OCTET);
        uint8x8_t row = vld1_u8(chosen[byte_at(octets.bits, k)]);
        vst1_u8(at + byte_at(octets.ends, k) - OCTET, vqtbl1_u8(from, row));
    }
    return at;
}

INLINE uint8x8_t pull_octet(const uint8_t *at, struct octets octets, unsigned k)
{
    unsigned begin = byte_at(octets.ends << 8, k); /* the end of the octet before */
    return vqtbl1_u8(vld1q_u8(at + begin), vld1_u8(ranks[byte_at(octets.bits, k)]));
}

/* Replaces the bytes of `mask` by the next ones of the stream. */
INLINE const uint8_t *pull_bytes(struct group *bytes, const uint8_t *at, const struct group *mask)
{
    struct octets octets = octets_of(mask);
    for (unsigned q = 0; q < QUARTERS; q++) {
        uint8x16_t next =
            vcombine_u8(pull_octet(at, octets, 2 * q), pull_octet(at, octets, 2 * q + 1));
        bytes->quarter[q] = vbslq_u8(mask->quarter[q], next, bytes->quarter[q]);
    }
    return at + total(octets);
}

/* ---- elements ---------------------------------------------------------------------------------
 */

INLINE uint8x16_t shift_right(uint8x16_t v, unsigned bits)
{
    return bits == 0 ? v : vshlq_u8(v, vdupq_n_s8((int8_t)-bits));
}

INLINE uint8x16_t shift_left(uint8x16_t v, unsigned bits)
{
    return bits == 0 ? v : vshlq_u8(v, vdupq_n_s8((int8_t)bits));
}

INLINE uint8x16_t split_quarter(enum tierce__element element, const uint8_t *src,
                                uint8_t *low_plane)
{
    if (tierce__splits[element].bytes == 1)
        return vld1q_u8(src);
    uint8x16x2_t pairs = vld2q_u8(src);
    uint8x16_t low = pairs.val[0], high = pairs.val[1];
    if (element != TIERCE__ELEMENT_BF16) {
        vst1q_u8(low_plane, low);
        return high;
    }
    vst1q_u8(low_plane, vbslq_u8(vdupq_n_u8(0x80), high, low));
    return vsliq_n_u8(vshrq_n_u8(low, 7), high, 1);
}

INLINE void join_quarter(enum tierce__element element, uint8_t *dst, uint8x16_t top,
                         const uint8_t *low_plane)
{
    if (tierce__splits[element].bytes == 1) {
        vst1q_u8(dst, top);
        return;
    }
    uint8x16_t low = vld1q_u8(low_plane);
    uint8x16x2_t pairs = {{low, top}};
    if (element == TIERCE__ELEMENT_BF16) {
        pairs.val[0] = vsliq_n_u8(low, top, 7);
        pairs.val[1] = vsriq_n_u8(low, top, 1);
    }
    vst2q_u8(dst, pairs);
}

INLINE void store_bits(const struct tierce__split *split, uint8_t *bits, const struct group *top)
{
    for (unsigned k = 0; k < split->bit_count; k++) {
        struct group mask;
        for (unsigned q = 0; q < QUARTERS; q++)
            mask.quarter[q] = vtstq_u8(top->quarter[q], vdupq_n_u8((uint8_t)(1 << split->bits[k])));
        vst1_u8(bits + OCTETS * (size_t)k, bits_of_mask(&mask));
    }
}

INLINE uint8x16_t load_bits(const struct tierce__split *split, const uint8_t *bits, unsigned q,
                            uint8x16_t top)
{
    uint8x16_t byte_of = vcombine_u8(vdup_n_u8((uint8_t)(2 * q)), vdup_n_u8((uint8_t)(2 * q + 1)));
    for (unsigned k = 0; k < split->bit_count; k++) {
        uint8x8_t word = vld1_u8(bits + OCTETS * (size_t)k);
        uint8x16_t is_set = vtstq_u8(vqtbl1q_u8(vcombine_u8(word, word), byte_of), bit_of_lane());
        top = vbslq_u8(vdupq_n_u8((uint8_t)(1 << split->bits[k])), is_set, top);
    }
    return top;
}

/* ---- encoding ---------------------------------------------------------------------------------
 */

struct coding {
    uint8x16_t frequency, below, reciprocal_low, reciprocal_high, exponent, escape;
    uint8x16_t level[LEVELS]; /* of the search for the symbol of a slot */
};

struct states {
    struct group low, high;
};

INLINE void prepare(struct coding *coding, const struct tierce__symbols *symbols)
{
    coding->frequency = vld1q_u8(symbols->frequency);
    coding->below = vld1q_u8(symbols->below);
    coding->reciprocal_low = vld1q_u8(symbols->reciprocal_low);
    coding->reciprocal_high = vld1q_u8(symbols->reciprocal_high);
    coding->exponent = vld1q_u8(symbols->exponent);
    coding->escape = vdupq_n_u8(symbols->escape);
}

INLINE struct group load_group(const uint8_t *src)
{
    struct group group;
    for (unsigned q = 0; q < QUARTERS; q++)
        group.quarter[q] = vld1q_u8(src + q * QUARTER);
    return group;
}

INLINE void store_group(uint8_t *dst, const struct group *group)
{
    for (unsigned q = 0; q < QUARTERS; q++)
        vst1q_u8(dst + q * QUARTER, group->quarter[q]);
}

/* A look-up beyond the end of a table yields 0, so the quarters of a long one are looked up in
 * turn. */
INLINE void codes_of_exponents(struct group *codes, const uint8_t table[TIERCE__SLOTS],
                               const struct group *exponents, unsigned mask)
{
    if (mask < 2 * QUARTER) {
        uint8x16x2_t only = vld1q_u8_x2(table);
        for (unsigned q = 0; q < QUARTERS; q++)
            codes->quarter[q] = vqtbl2q_u8(only, exponents->quarter[q]);
        return;
    }
    for (unsigned t = 0; t < TIERCE__SLOTS; t += 4 * QUARTER) {
        uint8x16x4_t part = vld1q_u8_x4(table + t);
        for (unsigned q = 0; q < QUARTERS; q++) {
            uint8x16_t index = veorq_u8(exponents->quarter[q], vdupq_n_u8((uint8_t)t));
            uint8x16_t found = vqtbl4q_u8(part, index);
            codes->quarter[q] = t == 0 ? found : vorrq_u8(codes->quarter[q], found);
        }
    }
}

/* x / f and x mod f of words: the product with the reciprocal is at most 1 too small. */
INLINE uint16x8_t divide(uint16x8_t x, uint16x8_t f, uint16x8_t reciprocal, uint16x8_t *rest)
{
    uint32x4_t lower = vmull_u16(vget_low_u16(x), vget_low_u16(reciprocal));
    uint32x4_t upper = vmull_high_u16(x, reciprocal);
    uint16x8_t quotient = vuzp2q_u16(vreinterpretq_u16_u32(lower), vreinterpretq_u16_u32(upper));
    uint16x8_t r = vmlsq_u16(x, quotient, f);
    uint16x8_t more = vcgeq_u16(r, f);
    *rest = vsubq_u16(r, vandq_u16(more, f));
    return vsubq_u16(quotient, more); /* a mask is -1 */
}

/* The low bytes of words. */
INLINE uint8x16_t narrow(uint16x8_t lower, uint16x8_t upper)
{
    return vuzp1q_u8(vreinterpretq_u8_u16(lower), vreinterpretq_u8_u16(upper));
}

INLINE uint16x8_t words_lower(uint8x16_t low, uint8x16_t high)
{
    return vreinterpretq_u16_u8(vzip1q_u8(low, high));
}

INLINE uint16x8_t words_upper(uint8x16_t low, uint8x16_t high)
{
    return vreinterpretq_u16_u8(vzip2q_u8(low, high));
}

/* Codes a symbol of each of 16 coders, whose states are less than 256 f. */
INLINE void encode_quarter(struct states *x, unsigned q, const struct coding *coding,
                           uint8x16_t codes, uint8x16_t f)
{
    uint8x16_t low = x->low.quarter[q], high = x->high.quarter[q];
    uint8x16_t reciprocal_low = vqtbl1q_u8(coding->reciprocal_low, codes);
    uint8x16_t reciprocal_high = vqtbl1q_u8(coding->reciprocal_high, codes);
    uint16x8_t rest_lower, rest_upper;
    uint16x8_t lower = divide(words_lower(low, high), vmovl_u8(vget_low_u8(f)),
                              words_lower(reciprocal_low, reciprocal_high), &rest_lower);
    uint16x8_t upper = divide(words_upper(low, high), vmovl_high_u8(f),
                              words_upper(reciprocal_low, reciprocal_high), &rest_upper);
    x->low.quarter[q] = vaddq_u8(narrow(rest_lower, rest_upper), vqtbl1q_u8(coding->below, codes));
    x->high.quarter[q] = narrow(lower, upper);
}

INLINE uint8_t *encode_step(struct states *x, uint8_t *at, const struct coding *coding,
                            const struct group *codes)
{
    struct group f, full;
    for (unsigned q = 0; q < QUARTERS; q++) {
        f.quarter[q] = vqtbl1q_u8(coding->frequency, codes->quarter[q]);
        full.quarter[q] = vcgeq_u8(x->high.quarter[q], f.quarter[q]);
    }
    at = push_bytes(at, &full, &x->low);
    for (unsigned q = 0; q < QUARTERS; q++) {
        uint8x16_t high = x->high.quarter[q];
        x->low.quarter[q] = vbslq_u8(full.quarter[q], high, x->low.quarter[q]);
        x->high.quarter[q] = vbicq_u8(high, full.quarter[q]);
        encode_quarter(x, q, coding, codes->quarter[q], f.quarter[q]);
    }
    return at;
}

INLINE bool encode_groups(struct tierce__encoder *encoder, const struct tierce__symbols *symbols,
                          enum tierce__element element, const uint8_t *src, size_t groups,
                          struct tierce__planes planes)
{
    const struct tierce__split *split = &tierce__splits[element];
    struct coding coding;
    prepare(&coding, symbols);
    struct states x = {load_group(encoder->low), load_group(encoder->high)};
    uint8_t *at = encoder->at;
    for (size_t g = groups; g-- > 0;) {
        if (at - encoder->floor < TIERCE__GROUP_STREAM_MAX)
            return false;
        struct group top, exponents, codes, escaped;
        for (unsigned q = 0; q < QUARTERS; q++) {
            size_t first = g * TIERCE__GROUP + q * QUARTER;
            top.quarter[q] = split_quarter(element, src + first * split->bytes,
                                           planes.low + first * (split->bytes - 1u));
            exponents.quarter[q] =
                vandq_u8(shift_right(top.quarter[q], split->shift), vdupq_n_u8(split->mask));
        }
        store_bits(split, planes.bits + g * OCTETS * split->bit_count, &top);
        codes_of_exponents(&codes, symbols->of_exponent, &exponents, split->mask);
        for (unsigned q = 0; q < QUARTERS; q++)
            escaped.quarter[q] = vceqq_u8(codes.quarter[q], coding.escape);
        if (is_any(&escaped))
            at = push_bytes(at, &escaped, &exponents);
        at = encode_step(&x, at, &coding, &codes);
    }
    encoder->at = at;
    store_group(encoder->low, &x.low);
    store_group(encoder->high, &x.high);
    return true;
}

/* ---- decoding ---------------------------------------------------------------------------------
 */

/*
 * A binary search for the symbol of a slot, the last one that begins at the slot or before. Level l
 * has found the upper l bits of a symbol, and compares with the symbol in the middle of those that
 * are left; it has the slot before the first one of that symbol, or 255 if there is no such symbol.
 */
INLINE void prepare_levels(struct coding *coding, const struct tierce__symbols *symbols)
{
    for (unsigned l = 0; l < LEVELS; l++) {
        uint8_t before[QUARTER] = {0};
        for (unsigned i = 0; i < 1u << l; i++) {
            unsigned middle = (2 * i + 1) << (LEVELS - 1 - l);
            before[i] = middle < symbols->count ? (uint8_t)(symbols->below[middle] - 1) : 255;
        }
        coding->level[l] = vld1q_u8(before);
    }
}

INLINE uint8x16_t codes_of_slots(const struct coding *coding, uint8x16_t slots)
{
    uint8x16_t codes = vdupq_n_u8(0);
    for (unsigned l = 0; l < LEVELS; l++) {
        uint8x16_t is_above = vcgtq_u8(slots, vqtbl1q_u8(coding->level[l], codes));
        codes = vsliq_n_u8(is_above, codes, 1); /* appends a bit */
    }
    return codes;
}

INLINE const uint8_t *decode_step(struct states *x, const uint8_t *at, const struct coding *coding,
                                  const struct group *codes)
{
    struct group empty;
    for (unsigned q = 0; q < QUARTERS; q++) {
        uint8x16_t high = x->high.quarter[q];
        uint8x16_t f = vqtbl1q_u8(coding->frequency, codes->quarter[q]);
        uint8x16_t offset =
            vsubq_u8(x->low.quarter[q], vqtbl1q_u8(coding->below, codes->quarter[q]));
        uint8x16_t lower = vreinterpretq_u8_u16(
            vaddw_u8(vmull_u8(vget_low_u8(high), vget_low_u8(f)), vget_low_u8(offset)));
        uint8x16_t upper = vreinterpretq_u8_u16(vaddw_high_u8(vmull_high_u8(high, f), offset));
        uint8x16_t low = vuzp1q_u8(lower, upper);
        high = vuzp2q_u8(lower, upper);
        empty.quarter[q] = vceqzq_u8(high);
        x->high.quarter[q] = vbslq_u8(empty.quarter[q], low, high);
        x->low.quarter[q] = low;
    }
    return pull_bytes(&x->low, at, &empty);
}

INLINE size_t decode_groups(struct tierce__decoder *decoder, const struct tierce__symbols *symbols,
                            enum tierce__element element, uint8_t *dst, size_t groups,
                            struct tierce__planes planes)
{
    const struct tierce__split *split = &tierce__splits[element];
    struct coding coding;
    prepare(&coding, symbols);
    prepare_levels(&coding, symbols);
    struct states x = {load_group(decoder->low), load_group(decoder->high)};
    const uint8_t *at = decoder->at;
    size_t g = 0;
    for (; g < groups && decoder->end - at >= TIERCE__BEYOND_STREAM; g++) {
        struct group codes, exponents, escaped;
        for (unsigned q = 0; q < QUARTERS; q++) {
            codes.quarter[q] = codes_of_slots(&coding, x.low.quarter[q]);
            exponents.quarter[q] = vqtbl1q_u8(coding.exponent, codes.quarter[q]);
            escaped.quarter[q] = vceqq_u8(codes.quarter[q], coding.escape);
        }
        at = decode_step(&x, at, &coding, &codes);
        if (is_any(&escaped))
            at = pull_bytes(&exponents, at, &escaped);
        for (unsigned q = 0; q < QUARTERS; q++) {
            size_t first = g * TIERCE__GROUP + q * QUARTER;
            uint8x16_t exponent = vandq_u8(exponents.quarter[q], vdupq_n_u8(split->mask));
            uint8x16_t top = load_bits(split, planes.bits + g * OCTETS * split->bit_count, q,
                                       shift_left(exponent, split->shift));
            join_quarter(element, dst + first * split->bytes, top,
                         planes.low + first * (split->bytes - 1u));
        }
    }
    decoder->at = at;
    store_group(decoder->low, &x.low);
    store_group(decoder->high, &x.high);
    return g;
}

#define KERNEL_ATTRIBUTE
#define KERNEL_NAME(verb) neon_##verb
#include "core/codec/lossless_elements.h"

/* The loops of quantizers have no instructions of their own to ask for: the portable ones become
 * vectors of NEON. */
const struct tierce__codec_kernel tierce__codec_neon = {.head = {"neon", neon_usable},
                                                        .encode = neon_encode,
                                                        .decode = neon_decode,
                                                        .quantize = &tierce__quantize_portable};
#endif
