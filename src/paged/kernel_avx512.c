/* SPDX-License-Identifier: Apache-2.0 */
#include "paged/paged_private.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX512        __attribute__((target("avx512f")))
#define AVX512_INLINE __attribute__((target("avx512f"), always_inline)) static inline

static bool avx512_usable(void)
{
    return __builtin_cpu_supports("avx512f");
}

AVX512_INLINE __m512i load_key(size_t stripe)
{
    return _mm512_loadu_si512(tierce__secret + stripe * TIERCE__KEY_STEP);
}

AVX512_INLINE __m512i take_stripe(__m512i acc, __m512i words, __m512i key)
{
    __m512i keyed = _mm512_xor_si512(words, key);
    __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
    __m512i crossed = _mm512_shuffle_epi32(words, _MM_PERM_BADC);
    return _mm512_add_epi64(acc, _mm512_add_epi64(product, crossed));
}

AVX512_INLINE __m512i scramble(__m512i acc)
{
    __m512i prime = _mm512_set1_epi64(TIERCE__PRIME32_1);
    acc = _mm512_xor_si512(acc, _mm512_srli_epi64(acc, 47));
    acc = _mm512_xor_si512(acc, _mm512_loadu_si512(tierce__secret + TIERCE__SCRAMBLE_KEY));
    __m512i low = _mm512_mul_epu32(acc, prime);
    __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(acc, 32), prime);
    return _mm512_add_epi64(low, _mm512_slli_epi64(high, 32));
}

AVX512 static void avx512_run(uint64_t acc[TIERCE__LANES], uint8_t *dst, const uint8_t *src,
                              size_t stripes)
{
    __m512i lanes = _mm512_loadu_si512(acc);
    for (size_t i = 0; i < stripes; i++) {
        __m512i words = _mm512_loadu_si512(src + i * TIERCE__STRIPE_BYTES);
        if (dst != NULL)
            _mm512_storeu_si512(dst + i * TIERCE__STRIPE_BYTES, words);
        lanes = take_stripe(lanes, words, load_key(i % TIERCE__BLOCK_STRIPES));
        if (i % TIERCE__BLOCK_STRIPES == TIERCE__BLOCK_STRIPES - 1)
            lanes = scramble(lanes);
    }
    _mm512_storeu_si512(acc, lanes);
}

AVX512 static void avx512_stream(uint64_t acc[TIERCE__LANES], uint8_t *dst, const uint8_t *src,
                                 size_t blocks, size_t shift)
{
    __m512i lanes = _mm512_loadu_si512(acc);
    for (size_t i = 0; i < blocks; i++) {
        for (size_t j = 0; j < TIERCE__BLOCK_STRIPES; j++) {
            __m512i words = _mm512_loadu_si512(src);
            __m512i ahead = _mm512_loadu_si512(src + shift);
            _mm512_stream_si512((void *)(dst + shift), ahead);
            lanes = take_stripe(lanes, words, load_key(j));
            src += TIERCE__STRIPE_BYTES;
            dst += TIERCE__STRIPE_BYTES;
        }
        lanes = scramble(lanes);
    }
    _mm512_storeu_si512(acc, lanes);
}

static void avx512_fence(void)
{
    _mm_sfence();
}

const struct tierce__kernel tierce__kernel_avx512 = {.name = "avx512",
                                                     .usable = avx512_usable,
                                                     .run = avx512_run,
                                                     .stream = avx512_stream,
                                                     .fence = avx512_fence};
#endif
