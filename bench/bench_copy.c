/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench.h"

#include <string.h>

void tierce__plain_memcpy(void *dst, const void *src, size_t n)
{
    memcpy(dst, src, n);
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f"))) static void stream_avx512(void *dst, const void *src, size_t n)
{
    uint8_t *to = (uint8_t *)dst;
    const uint8_t *from = (const uint8_t *)src;
    for (size_t i = 0; i < n; i += 64)
        _mm512_stream_si512((void *)(to + i), _mm512_load_si512((const void *)(from + i)));
}

__attribute__((target("avx2"))) static void stream_avx2(void *dst, const void *src, size_t n)
{
    uint8_t *to = (uint8_t *)dst;
    const uint8_t *from = (const uint8_t *)src;
    for (size_t i = 0; i < n; i += 32)
        _mm256_stream_si256((void *)(to + i), _mm256_load_si256((const void *)(from + i)));
}

tierce__plain_copy_fn *tierce__plain_stream(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return stream_avx512;
    return __builtin_cpu_supports("avx2") ? stream_avx2 : NULL;
}

void tierce__plain_fence(void)
{
    _mm_sfence();
}

#else

tierce__plain_copy_fn *tierce__plain_stream(void)
{
    return NULL;
}

void tierce__plain_fence(void) {}

#endif
