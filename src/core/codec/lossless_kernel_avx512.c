/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/lossless_private.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "base/bytes.h"

/* One vector is a byte of all 64 coders. vpermi2b, vpcompressb and vpexpandb are of VBMI and VBMI2,
 * which Ice Lake and Zen 4 have and their predecessors lack. */
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi2,popcnt")))
#define INLINE                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi2,popcnt"),                  \
                   always_inline)) static inline

static bool avx512_usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

INLINE __m512i table_of(const uint8_t entries[TIERCE__SYMBOLS_MAX])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)entries));
}

/* A table of 256 bytes; `bits` of an index may be set. */
struct lookup {
    __m512i quarter[4];
};

INLINE struct lookup lookup_of(const uint8_t table[TIERCE__SLOTS])
{
    return (struct lookup){{_mm512_load_si512(table), _mm512_load_si512(table + 64),
                            _mm512_load_si512(table + 128), _mm512_load_si512(table + 192)}};
}

INLINE __m512i look_up(struct lookup table, __m512i index, unsigned mask)
{
    if (mask < 64)
        return _mm512_permutexvar_epi8(index, table.quarter[0]);
    __m512i lower = _mm512_permutex2var_epi8(table.quarter[0], index, table.quarter[1]);
    __m512i upper = _mm512_permutex2var_epi8(table.quarter[2], index, table.quarter[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), lower, upper);
}

/* Pairs of bytes: even(v) has the bytes 0, 2, 4 ... of v as words, odd(v) the others. */
INLINE __m512i even(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi16(0xff));
}

INLINE __m512i odd(__m512i v)
{
    return _mm512_srli_epi16(v, 8);
}

/* The low bytes of two vectors of words, as even and odd bytes; and the high bytes. */
INLINE __m512i low_bytes(__m512i of_even, __m512i of_odd)
{
    return _mm512_mask_blend_epi8(0xAAAAAAAAAAAAAAAAu, of_even, _mm512_slli_epi16(of_odd, 8));
}

INLINE __m512i high_bytes(__m512i of_even, __m512i of_odd)
{
    return _mm512_mask_blend_epi8(0xAAAAAAAAAAAAAAAAu, _mm512_srli_epi16(of_even, 8), of_odd);
}

/* ---- elements ---------------------------------------------------------------------------------
 */

INLINE __m512i byte_indices(unsigned first, unsigned step)
{
    uint8_t indices[64];
    for (unsigned i = 0; i < 64; i++)
        indices[i] = (uint8_t)(first + step * i);
    return _mm512_loadu_si512(indices);
}

/* The upper and lower half of bytes, interleaved: bytes [first, first + 32) of both. */
INLINE __m512i interleave(__m512i lower, __m512i upper, unsigned first)
{
    uint8_t indices[64];
    for (unsigned i = 0; i < 32; i++) {
        indices[2 * i] = (uint8_t)(first + i);
        indices[2 * i + 1] = (uint8_t)(first + i + 64);
    }
    return _mm512_permutex2var_epi8(lower, _mm512_loadu_si512(indices), upper);
}

INLINE __m512i bits_of(__m512i v, int mask)
{
    return _mm512_and_si512(v, _mm512_set1_epi8((char)mask));
}

/* Shifts of bytes; the caller masks what comes in from a neighbour. */
INLINE __m512i shift_right(__m512i v, unsigned bits)
{
    return bits == 0 ? v : _mm512_srli_epi16(v, (int)bits);
}

INLINE __m512i shift_left(__m512i v, unsigned bits)
{
    return bits == 0 ? v : _mm512_slli_epi16(v, (int)bits);
}

/* The top bytes of a group; its low plane is written. */
INLINE __m512i split_group(enum tierce__element element, const uint8_t *src, uint8_t *low_plane)
{
    if (tierce__splits[element].bytes == 1)
        return _mm512_loadu_si512(src);
    __m512i first = _mm512_loadu_si512(src), second = _mm512_loadu_si512(src + 64);
    __m512i low = _mm512_permutex2var_epi8(first, byte_indices(0, 2), second);
    __m512i high = _mm512_permutex2var_epi8(first, byte_indices(1, 2), second);
    if (element == TIERCE__ELEMENT_BF16) {
        __m512i exponent =
            _mm512_or_si512(bits_of(shift_left(high, 1), 0xfe), bits_of(shift_right(low, 7), 1));
        low = _mm512_or_si512(bits_of(high, 0x80), bits_of(low, 0x7f));
        high = exponent;
    }
    _mm512_storeu_si512(low_plane, low);
    return high;
}

INLINE void join_group(enum tierce__element element, uint8_t *dst, __m512i top,
                       const uint8_t *low_plane)
{
    if (tierce__splits[element].bytes == 1) {
        _mm512_storeu_si512(dst, top);
        return;
    }
    __m512i low = _mm512_loadu_si512(low_plane), high = top;
    if (element == TIERCE__ELEMENT_BF16) {
        high = _mm512_or_si512(bits_of(low, 0x80), bits_of(shift_right(top, 1), 0x7f));
        low = _mm512_or_si512(bits_of(shift_left(top, 7), 0x80), bits_of(low, 0x7f));
    }
    _mm512_storeu_si512(dst, interleave(low, high, 0));
    _mm512_storeu_si512(dst + 64, interleave(low, high, 32));
}

INLINE void store_bits(const struct tierce__split *split, uint8_t *bits, __m512i top)
{
    for (unsigned k = 0; k < split->bit_count; k++)
        tierce__store_le64(
            bits + 8 * (size_t)k,
            _mm512_test_epi8_mask(top, _mm512_set1_epi8((char)(1 << split->bits[k]))));
}

INLINE __m512i load_bits(const struct tierce__split *split, const uint8_t *bits, __m512i top)
{
    for (unsigned k = 0; k < split->bit_count; k++) {
        __m512i bit = _mm512_maskz_set1_epi8(tierce__load_le64(bits + 8 * (size_t)k),
                                             (char)(1 << split->bits[k]));
        top = _mm512_or_si512(top, bit);
    }
    return top;
}

/* ---- encoding ---------------------------------------------------------------------------------
 */

/* Writes the bytes of `mask` so that they end at `at`; returns where they begin. */
INLINE uint8_t *push_bytes(uint8_t *at, __mmask64 mask, __m512i bytes)
{
    unsigned count = (unsigned)_mm_popcnt_u64(mask);
    at -= count;
    /* A masked store, because what follows is the stream so far. */
    _mm512_mask_storeu_epi8(at, _bzhi_u64(UINT64_MAX, count),
                            _mm512_maskz_compress_epi8(mask, bytes));
    return at;
}

struct coding {
    __m512i frequency, below, reciprocal_low, reciprocal_high;
};

/* x / f and x mod f of words: the product with the reciprocal is at most 1 too small. */
INLINE __m512i divide(__m512i x, __m512i f, __m512i reciprocal, __m512i *rest)
{
    __m512i quotient = _mm512_mulhi_epu16(x, reciprocal);
    __m512i r = _mm512_sub_epi16(x, _mm512_mullo_epi16(quotient, f));
    __mmask32 more = _mm512_cmpge_epu16_mask(r, f);
    *rest = _mm512_mask_sub_epi16(r, more, r, f);
    return _mm512_mask_add_epi16(quotient, more, quotient, _mm512_set1_epi16(1));
}

struct states {
    __m512i low, high;
};

INLINE struct states encode_step(struct states x, uint8_t **at, const struct coding *coding,
                                 __m512i codes)
{
    __m512i f = _mm512_shuffle_epi8(coding->frequency, codes);
    __m512i low = _mm512_shuffle_epi8(coding->reciprocal_low, codes);
    __m512i high = _mm512_shuffle_epi8(coding->reciprocal_high, codes);
    __mmask64 full = _mm512_cmpge_epu8_mask(x.high, f);
    *at = push_bytes(*at, full, x.low);
    x.low = _mm512_mask_mov_epi8(x.low, full, x.high);
    x.high = _mm512_maskz_mov_epi8(~full, x.high);

    __m512i rest_even, rest_odd;
    __m512i quotient_even =
        divide(low_bytes(x.low, x.high), even(f), low_bytes(low, high), &rest_even);
    __m512i quotient_odd =
        divide(high_bytes(x.low, x.high), odd(f), high_bytes(low, high), &rest_odd);
    return (struct states){.low = _mm512_add_epi8(low_bytes(rest_even, rest_odd),
                                                  _mm512_shuffle_epi8(coding->below, codes)),
                           .high = low_bytes(quotient_even, quotient_odd)};
}

INLINE bool encode_groups(struct tierce__encoder *encoder, const struct tierce__symbols *symbols,
                          enum tierce__element element, const uint8_t *src, size_t groups,
                          struct tierce__planes planes)
{
    const struct tierce__split *split = &tierce__splits[element];
    struct coding coding = {table_of(symbols->frequency), table_of(symbols->below),
                            table_of(symbols->reciprocal_low), table_of(symbols->reciprocal_high)};
    struct lookup code_of = lookup_of(symbols->of_exponent);
    __m512i escape = _mm512_set1_epi8((char)symbols->escape);
    struct states x = {_mm512_loadu_si512(encoder->low), _mm512_loadu_si512(encoder->high)};
    uint8_t *at = encoder->at;
    for (size_t g = groups; g-- > 0;) {
        if (at - encoder->floor < TIERCE__GROUP_STREAM_MAX)
            return false;
        __m512i top = split_group(element, src + g * TIERCE__GROUP * split->bytes,
                                  planes.low + g * TIERCE__GROUP * (split->bytes - 1u));
        store_bits(split, planes.bits + g * 8 * split->bit_count, top);
        __m512i exponents = bits_of(shift_right(top, split->shift), split->mask);
        __m512i codes = look_up(code_of, exponents, split->mask);
        __mmask64 escaped = _mm512_cmpeq_epi8_mask(codes, escape);
        if (escaped != 0)
            at = push_bytes(at, escaped, exponents);
        x = encode_step(x, &at, &coding, codes);
    }
    encoder->at = at;
    _mm512_storeu_si512(encoder->low, x.low);
    _mm512_storeu_si512(encoder->high, x.high);
    return true;
}

/* ---- decoding ---------------------------------------------------------------------------------
 */

/* Replaces the bytes of `mask` by the next ones of the stream. */
INLINE __m512i pull_bytes(const uint8_t **at, __mmask64 mask, __m512i bytes)
{
    bytes = _mm512_mask_expand_epi8(bytes, mask, _mm512_loadu_si512(*at));
    *at += _mm_popcnt_u64(mask);
    return bytes;
}

INLINE struct states decode_step(struct states x, const uint8_t **at, const struct coding *coding,
                                 __m512i codes)
{
    __m512i f = _mm512_shuffle_epi8(coding->frequency, codes);
    __m512i offset = _mm512_sub_epi8(x.low, _mm512_shuffle_epi8(coding->below, codes));
    __m512i of_even = _mm512_add_epi16(_mm512_mullo_epi16(even(x.high), even(f)), even(offset));
    __m512i of_odd = _mm512_add_epi16(_mm512_mullo_epi16(odd(x.high), odd(f)), odd(offset));
    __m512i low = low_bytes(of_even, of_odd), high = high_bytes(of_even, of_odd);
    __mmask64 empty = _mm512_testn_epi8_mask(high, high);
    return (struct states){.high = _mm512_mask_mov_epi8(high, empty, low),
                           .low = pull_bytes(at, empty, low)};
}

INLINE size_t decode_groups(struct tierce__decoder *decoder, const struct tierce__symbols *symbols,
                            enum tierce__element element, uint8_t *dst, size_t groups,
                            struct tierce__planes planes)
{
    const struct tierce__split *split = &tierce__splits[element];
    struct coding coding = {.frequency = table_of(symbols->frequency),
                            .below = table_of(symbols->below)};
    struct lookup code_of = lookup_of(symbols->of_slot);
    __m512i exponent_of = table_of(symbols->exponent);
    __m512i escape = _mm512_set1_epi8((char)symbols->escape);
    struct states x = {_mm512_loadu_si512(decoder->low), _mm512_loadu_si512(decoder->high)};
    const uint8_t *at = decoder->at;
    size_t g = 0;
    for (; g < groups && decoder->end - at >= TIERCE__BEYOND_STREAM; g++) {
        __m512i codes = look_up(code_of, x.low, 0xff);
        x = decode_step(x, &at, &coding, codes);
        __m512i exponents = _mm512_shuffle_epi8(exponent_of, codes);
        __mmask64 escaped = _mm512_cmpeq_epi8_mask(codes, escape);
        if (escaped != 0)
            exponents = bits_of(pull_bytes(&at, escaped, exponents), split->mask);
        __m512i top = load_bits(split, planes.bits + g * 8 * split->bit_count,
                                shift_left(exponents, split->shift));
        join_group(element, dst + g * TIERCE__GROUP * split->bytes, top,
                   planes.low + g * TIERCE__GROUP * (split->bytes - 1u));
    }
    decoder->at = at;
    _mm512_storeu_si512(decoder->low, x.low);
    _mm512_storeu_si512(decoder->high, x.high);
    return g;
}

#define KERNEL_ATTRIBUTE  AVX512
#define KERNEL_NAME(verb) avx512_##verb
#include "core/codec/lossless_elements.h"

const struct tierce__codec_kernel tierce__codec_avx512 = {.head = {"avx512", avx512_usable},
                                                          .encode = avx512_encode,
                                                          .decode = avx512_decode,
                                                          .quantize = &tierce__quantize_avx512};
#endif
