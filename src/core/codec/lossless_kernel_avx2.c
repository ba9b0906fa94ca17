/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/lossless_private.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "base/bytes.h"

/* Two vectors are a byte of all 64 coders. pdep and pext move the bytes of a stream to coders and
 * back, eight at a time; Zen 1 and Zen 2 have them in slow microcode. */
#define AVX2   __attribute__((target("avx2,bmi,bmi2,popcnt")))
#define INLINE __attribute__((target("avx2,bmi,bmi2,popcnt"), always_inline)) static inline

enum { HALF = TIERCE__GROUP / 2, HALVES = 2, WORD = 8 };

struct group {
    __m256i half[HALVES];
};

static bool avx2_usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt");
}

INLINE __m256i load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

INLINE void store(uint8_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

INLINE __m256i table_of(const uint8_t entries[TIERCE__SYMBOLS_MAX])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)entries));
}

INLINE __m256i bits_of(__m256i v, int mask)
{
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}

/* Shifts of bytes; the caller masks what comes in from a neighbour. */
INLINE __m256i shift_right(__m256i v, int bits)
{
    return bits == 0 ? v : _mm256_srli_epi16(v, bits);
}

INLINE __m256i shift_left(__m256i v, int bits)
{
    return bits == 0 ? v : _mm256_slli_epi16(v, bits);
}

/* Pairs of bytes: even(v) has the bytes 0, 2, 4 ... of v as words, odd(v) the others. */
INLINE __m256i even(__m256i v)
{
    return _mm256_and_si256(v, _mm256_set1_epi16(0xff));
}

INLINE __m256i odd(__m256i v)
{
    return _mm256_srli_epi16(v, 8);
}

/* The low bytes of two vectors of words, as even and odd bytes; and the high bytes. */
INLINE __m256i low_bytes(__m256i of_even, __m256i of_odd)
{
    return _mm256_or_si256(even(of_even), _mm256_slli_epi16(of_odd, 8));
}

INLINE __m256i high_bytes(__m256i of_even, __m256i of_odd)
{
    return _mm256_or_si256(_mm256_srli_epi16(of_even, 8),
                           _mm256_andnot_si256(_mm256_set1_epi16(0xff), of_odd));
}

/* a >= b of unsigned bytes, as a mask. */
INLINE __m256i at_least(__m256i a, __m256i b)
{
    return _mm256_cmpeq_epi8(_mm256_max_epu8(a, b), a);
}

/* ---- elements ---------------------------------------------------------------------------------
 */

INLINE __m256i narrow(__m256i first, __m256i second)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(first, second), 0xd8);
}

INLINE __m256i split_half(enum tierce__element element, const uint8_t *src, uint8_t *low_plane)
{
    if (tierce__splits[element].bytes == 1)
        return load(src);
    __m256i first = load(src), second = load(src + HALF);
    __m256i low = narrow(even(first), even(second)), high = narrow(odd(first), odd(second));
    if (element == TIERCE__ELEMENT_BF16) {
        __m256i exponent =
            _mm256_or_si256(bits_of(shift_left(high, 1), 0xfe), bits_of(shift_right(low, 7), 1));
        low = _mm256_or_si256(bits_of(high, 0x80), bits_of(low, 0x7f));
        high = exponent;
    }
    store(low_plane, low);
    return high;
}

INLINE void join_half(enum tierce__element element, uint8_t *dst, __m256i top,
                      const uint8_t *low_plane)
{
    if (tierce__splits[element].bytes == 1) {
        store(dst, top);
        return;
    }
    __m256i low = load(low_plane), high = top;
    if (element == TIERCE__ELEMENT_BF16) {
        high = _mm256_or_si256(bits_of(low, 0x80), bits_of(shift_right(top, 1), 0x7f));
        low = _mm256_or_si256(bits_of(shift_left(top, 7), 0x80), bits_of(low, 0x7f));
    }
    low = _mm256_permute4x64_epi64(low, 0xd8);
    high = _mm256_permute4x64_epi64(high, 0xd8);
    store(dst, _mm256_unpacklo_epi8(low, high));
    store(dst + HALF, _mm256_unpackhi_epi8(low, high));
}

/* The four bytes of bit k of half h. */
INLINE size_t bits_at(unsigned k, unsigned h)
{
    return 8 * (size_t)k + 4 * (size_t)h;
}

INLINE void store_bits(const struct tierce__split *split, uint8_t *bits, unsigned h, __m256i top)
{
    for (unsigned k = 0; k < split->bit_count; k++) {
        __m256i raised = shift_left(top, 7 - split->bits[k]);
        tierce__store_le32(bits + bits_at(k, h), (uint32_t)_mm256_movemask_epi8(raised));
    }
}

INLINE __m256i load_bits(const struct tierce__split *split, const uint8_t *bits, unsigned h,
                         __m256i top)
{
    const __m256i byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2,
                                             2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit_of = _mm256_set1_epi64x((long long)0x8040201008040201u);
    for (unsigned k = 0; k < split->bit_count; k++) {
        __m256i word = _mm256_set1_epi32((int)tierce__load_le32(bits + bits_at(k, h)));
        __m256i bit = _mm256_and_si256(_mm256_shuffle_epi8(word, byte_of), bit_of);
        __m256i is_set = _mm256_cmpeq_epi8(bit, bit_of);
        top = _mm256_or_si256(top, bits_of(is_set, 1 << split->bits[k]));
    }
    return top;
}

/* ---- streams ----------------------------------------------------------------------------------
 */

/* Writes the bytes whose mask is 255 so that they end at `at`; returns where they begin. Writes up
 * to 8 bytes below that. */
INLINE uint8_t *push_bytes(uint8_t *at, const uint8_t mask[HALF], const uint8_t bytes[HALF])
{
    for (unsigned i = HALF / WORD; i-- > 0;) {
        uint64_t wanted = tierce__load_le64(mask + WORD * (size_t)i);
        unsigned count = (unsigned)_mm_popcnt_u64(wanted) / 8;
        uint64_t word = _pext_u64(tierce__load_le64(bytes + WORD * (size_t)i), wanted);
        /* The bytes are the lowest of the word; they become its highest. Shifted twice, because a
         * shift by 64 is undefined. */
        tierce__store_le64(at - WORD, word << (4 * (WORD - count)) << (4 * (WORD - count)));
        at -= count;
    }
    return at;
}

/* Puts the next bytes of the stream where the mask is 255, zeroes elsewhere. */
INLINE const uint8_t *pull_bytes(const uint8_t *at, const uint8_t mask[HALF], uint8_t bytes[HALF])
{
    for (unsigned i = 0; i < HALF / WORD; i++) {
        uint64_t wanted = tierce__load_le64(mask + WORD * (size_t)i);
        tierce__store_le64(bytes + WORD * (size_t)i, _pdep_u64(tierce__load_le64(at), wanted));
        at += (unsigned)_mm_popcnt_u64(wanted) / 8;
    }
    return at;
}

INLINE uint8_t *push_masked(uint8_t *at, __m256i mask, __m256i bytes)
{
    uint8_t mask_bytes[HALF], values[HALF];
    store(mask_bytes, mask);
    store(values, bytes);
    return push_bytes(at, mask_bytes, values);
}

INLINE __m256i pull_masked(const uint8_t **at, __m256i mask, __m256i bytes)
{
    uint8_t mask_bytes[HALF], values[HALF];
    store(mask_bytes, mask);
    *at = pull_bytes(*at, mask_bytes, values);
    return _mm256_blendv_epi8(bytes, load(values), mask);
}

/* ---- encoding ---------------------------------------------------------------------------------
 */

struct coding {
    __m256i frequency, below, reciprocal_low, reciprocal_high, escape;
    __m256i at[TIERCE__SYMBOLS_MAX]; /* exponents, or the slots where symbols begin */
    unsigned count;                  /* of `at` */
};

INLINE void prepare(struct coding *coding, const struct tierce__symbols *symbols)
{
    coding->frequency = table_of(symbols->frequency);
    coding->below = table_of(symbols->below);
    coding->reciprocal_low = table_of(symbols->reciprocal_low);
    coding->reciprocal_high = table_of(symbols->reciprocal_high);
    coding->escape = _mm256_set1_epi8((char)symbols->escape);
}

/* Symbols of exponents: the escape, unless one is equal. */
INLINE __m256i codes_of_exponents(const struct coding *coding, __m256i exponents)
{
    __m256i found = _mm256_setzero_si256();
    for (unsigned i = 0; i < coding->count; i++) {
        __m256i code = _mm256_xor_si256(_mm256_set1_epi8((char)i), coding->escape);
        __m256i equal = _mm256_cmpeq_epi8(exponents, coding->at[i]);
        found = _mm256_or_si256(found, _mm256_and_si256(equal, code));
    }
    return _mm256_xor_si256(found, coding->escape);
}

/* x / f and x mod f of words: the product with the reciprocal is at most 1 too small. */
INLINE __m256i divide(__m256i x, __m256i f, __m256i reciprocal, __m256i *rest)
{
    __m256i quotient = _mm256_mulhi_epu16(x, reciprocal);
    __m256i r = _mm256_sub_epi16(x, _mm256_mullo_epi16(quotient, f));
    /* r < 2 f <= 510, so a signed comparison will do */
    __m256i less = _mm256_cmpgt_epi16(f, r);
    *rest = _mm256_sub_epi16(r, _mm256_andnot_si256(less, f));
    return _mm256_add_epi16(quotient, _mm256_add_epi16(less, _mm256_set1_epi16(1)));
}

INLINE void encode_step(__m256i *x_low, __m256i *x_high, uint8_t **at, const struct coding *coding,
                        __m256i codes)
{
    __m256i f = _mm256_shuffle_epi8(coding->frequency, codes);
    __m256i low = _mm256_shuffle_epi8(coding->reciprocal_low, codes);
    __m256i high = _mm256_shuffle_epi8(coding->reciprocal_high, codes);
    __m256i full = at_least(*x_high, f);
    *at = push_masked(*at, full, *x_low);
    __m256i xl = _mm256_blendv_epi8(*x_low, *x_high, full);
    __m256i xh = _mm256_andnot_si256(full, *x_high);
    __m256i rest_even, rest_odd;
    __m256i quotient_even = divide(low_bytes(xl, xh), even(f), low_bytes(low, high), &rest_even);
    __m256i quotient_odd = divide(high_bytes(xl, xh), odd(f), high_bytes(low, high), &rest_odd);
    *x_low =
        _mm256_add_epi8(low_bytes(rest_even, rest_odd), _mm256_shuffle_epi8(coding->below, codes));
    *x_high = low_bytes(quotient_even, quotient_odd);
}

INLINE bool encode_groups(struct tierce__encoder *encoder, const struct tierce__symbols *symbols,
                          enum tierce__element element, const uint8_t *src, size_t groups,
                          struct tierce__planes planes)
{
    const struct tierce__split *split = &tierce__splits[element];
    struct coding coding = {.count = symbols->count - (symbols->escape < symbols->count ? 1u : 0u)};
    prepare(&coding, symbols);
    for (unsigned i = 0; i < coding.count; i++)
        coding.at[i] = _mm256_set1_epi8((char)symbols->exponent[i]);
    struct group low = {{load(encoder->low), load(encoder->low + HALF)}};
    struct group high = {{load(encoder->high), load(encoder->high + HALF)}};
    uint8_t *at = encoder->at;
    for (size_t g = groups; g-- > 0;) {
        if (at - encoder->floor < TIERCE__GROUP_STREAM_MAX)
            return false;
        struct group codes, exponents;
        for (unsigned h = 0; h < HALVES; h++) {
            size_t first = g * TIERCE__GROUP + h * HALF;
            __m256i top = split_half(element, src + first * split->bytes,
                                     planes.low + first * (split->bytes - 1u));
            store_bits(split, planes.bits + g * 8 * split->bit_count, h, top);
            exponents.half[h] = bits_of(shift_right(top, split->shift), split->mask);
            codes.half[h] = codes_of_exponents(&coding, exponents.half[h]);
        }
        for (unsigned h = HALVES; h-- > 0;) {
            __m256i escaped = _mm256_cmpeq_epi8(codes.half[h], coding.escape);
            if (!_mm256_testz_si256(escaped, escaped))
                at = push_masked(at, escaped, exponents.half[h]);
        }
        for (unsigned h = HALVES; h-- > 0;)
            encode_step(&low.half[h], &high.half[h], &at, &coding, codes.half[h]);
    }
    encoder->at = at;
    for (unsigned h = 0; h < HALVES; h++) {
        store(encoder->low + h * HALF, low.half[h]);
        store(encoder->high + h * HALF, high.half[h]);
    }
    return true;
}

/* ---- decoding ---------------------------------------------------------------------------------
 */

/* Symbols of slots: how many symbols, without the first, begin at the slot or before. `at` has the
 * slot before each, less 128, because there is only a comparison of signed bytes. */
INLINE __m256i codes_of_slots(const struct coding *coding, __m256i slots)
{
    __m256i codes = _mm256_setzero_si256();
    slots = _mm256_xor_si256(slots, _mm256_set1_epi8((char)0x80));
    for (unsigned i = 0; i < coding->count; i++)
        codes = _mm256_sub_epi8(codes, _mm256_cmpgt_epi8(slots, coding->at[i]));
    return codes;
}

INLINE void decode_step(__m256i *x_low, __m256i *x_high, const uint8_t **at,
                        const struct coding *coding, __m256i codes)
{
    __m256i f = _mm256_shuffle_epi8(coding->frequency, codes);
    __m256i offset = _mm256_sub_epi8(*x_low, _mm256_shuffle_epi8(coding->below, codes));
    __m256i of_even = _mm256_add_epi16(_mm256_mullo_epi16(even(*x_high), even(f)), even(offset));
    __m256i of_odd = _mm256_add_epi16(_mm256_mullo_epi16(odd(*x_high), odd(f)), odd(offset));
    __m256i low = low_bytes(of_even, of_odd), high = high_bytes(of_even, of_odd);
    __m256i empty = _mm256_cmpeq_epi8(high, _mm256_setzero_si256());
    *x_high = _mm256_blendv_epi8(high, low, empty);
    *x_low = pull_masked(at, empty, low);
}

INLINE size_t decode_groups(struct tierce__decoder *decoder, const struct tierce__symbols *symbols,
                            enum tierce__element element, uint8_t *dst, size_t groups,
                            struct tierce__planes planes)
{
    const struct tierce__split *split = &tierce__splits[element];
    struct coding coding = {.count = symbols->count - 1u};
    prepare(&coding, symbols);
    for (unsigned i = 0; i < coding.count; i++)
        coding.at[i] = _mm256_set1_epi8((char)(symbols->below[i + 1] - 1 - 128));
    __m256i exponent_of = table_of(symbols->exponent);
    struct group low = {{load(decoder->low), load(decoder->low + HALF)}};
    struct group high = {{load(decoder->high), load(decoder->high + HALF)}};
    const uint8_t *at = decoder->at;
    size_t g = 0;
    for (; g < groups && decoder->end - at >= TIERCE__BEYOND_STREAM; g++) {
        struct group codes;
        for (unsigned h = 0; h < HALVES; h++) {
            codes.half[h] = codes_of_slots(&coding, low.half[h]);
            decode_step(&low.half[h], &high.half[h], &at, &coding, codes.half[h]);
        }
        for (unsigned h = 0; h < HALVES; h++) {
            __m256i exponents = _mm256_shuffle_epi8(exponent_of, codes.half[h]);
            __m256i escaped = _mm256_cmpeq_epi8(codes.half[h], coding.escape);
            if (!_mm256_testz_si256(escaped, escaped))
                exponents = bits_of(pull_masked(&at, escaped, exponents), split->mask);
            __m256i top = load_bits(split, planes.bits + g * 8 * split->bit_count, h,
                                    shift_left(exponents, split->shift));
            size_t first = g * TIERCE__GROUP + h * HALF;
            join_half(element, dst + first * split->bytes, top,
                      planes.low + first * (split->bytes - 1u));
        }
    }
    decoder->at = at;
    for (unsigned h = 0; h < HALVES; h++) {
        store(decoder->low + h * HALF, low.half[h]);
        store(decoder->high + h * HALF, high.half[h]);
    }
    return g;
}

#define KERNEL_ATTRIBUTE  AVX2
#define KERNEL_NAME(verb) avx2_##verb
#include "core/codec/lossless_elements.h"

const struct tierce__codec_kernel tierce__codec_avx2 = {.head = {"avx2", avx2_usable},
                                                        .encode = avx2_encode,
                                                        .decode = avx2_decode,
                                                        .quantize = &tierce__quantize_avx2};
#endif
