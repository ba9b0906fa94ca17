/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key/sha256.h"
#include "base/assert.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

const uint32_t tierce__sha256_start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static const uint32_t round_constants[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* ---- portable ------------------------------------------------------------------------------- */

static inline uint32_t load_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint32_t rotate_right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void expand_schedule(uint32_t w[64], const uint8_t *data)
{
    for (int t = 0; t < 16; t++)
        w[t] = load_be32(data + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t a = w[t - 15], b = w[t - 2];
        uint32_t s0 = rotate_right(a, 7) ^ rotate_right(a, 18) ^ a >> 3;
        uint32_t s1 = rotate_right(b, 17) ^ rotate_right(b, 19) ^ b >> 10;
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
}

static void compress_one_portable(uint32_t state[8], const uint8_t *data)
{
    uint32_t w[64];
    expand_schedule(w, data);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; t++) {
        uint32_t s1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
        uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + round_constants[t] + w[t];
        uint32_t s0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
        uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

static void compress_portable(uint32_t state[8], const uint8_t *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        compress_one_portable(state, data + i * TIERCE__SHA256_BLOCK);
}

static void compress_two_portable(uint32_t state_a[8], const uint8_t *data_a, uint32_t state_b[8],
                                  const uint8_t *data_b)
{
    compress_one_portable(state_a, data_a);
    compress_one_portable(state_b, data_b);
}

static const struct tierce__sha256_impl impl_portable = {
    .name = "portable", .compress = compress_portable, .compress_two = compress_two_portable};

/* ---- x86 SHA extensions --------------------------------------------------------------------- */

#if defined(__x86_64__)

#define TARGET_SHA __attribute__((target("sha,sse4.1")))

/* The state in the order that the instructions require: words (f, e, b, a) and (h, g, d, c). */
struct ni_state {
    __m128i abef;
    __m128i cdgh;
};

TARGET_SHA static inline struct ni_state ni_load(const uint32_t state[8])
{
    __m128i abcd = _mm_loadu_si128((const __m128i *)(const void *)state);
    __m128i efgh = _mm_loadu_si128((const __m128i *)(const void *)(state + 4));
    __m128i badc = _mm_shuffle_epi32(abcd, 0xb1);
    __m128i hgfe = _mm_shuffle_epi32(efgh, 0x1b);
    return (struct ni_state){.abef = _mm_alignr_epi8(badc, hgfe, 8),
                             .cdgh = _mm_blend_epi16(hgfe, badc, 0xf0)};
}

TARGET_SHA static inline void ni_store(uint32_t state[8], struct ni_state s)
{
    __m128i feba = _mm_shuffle_epi32(s.abef, 0x1b);
    __m128i dchg = _mm_shuffle_epi32(s.cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/* The four schedule words of group `g` (rounds 4g to 4g+3), kept in m[g % 4]. */
TARGET_SHA static inline __m128i ni_words(__m128i m[4], const uint8_t *data, int g)
{
    if (g < 4) {
        const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
        __m128i raw = _mm_loadu_si128((const __m128i *)(const void *)(data + 16 * g));
        m[g] = _mm_shuffle_epi8(raw, swap);
    } else {
        __m128i newest = m[(g + 3) & 3];
        __m128i seven_back = _mm_alignr_epi8(newest, m[(g + 2) & 3], 4);
        __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(m[g & 3], m[(g + 1) & 3]), seven_back);
        m[g & 3] = _mm_sha256msg2_epu32(sum, newest);
    }
    const __m128i k = _mm_load_si128((const __m128i *)(const void *)(round_constants + 4 * g));
    return _mm_add_epi32(m[g & 3], k);
}

TARGET_SHA static inline struct ni_state ni_rounds(struct ni_state s, __m128i words)
{
    s.cdgh = _mm_sha256rnds2_epu32(s.cdgh, s.abef, words);
    s.abef = _mm_sha256rnds2_epu32(s.abef, s.cdgh, _mm_shuffle_epi32(words, 0x0e));
    return s;
}

TARGET_SHA static inline struct ni_state ni_add(struct ni_state a, struct ni_state b)
{
    return (struct ni_state){.abef = _mm_add_epi32(a.abef, b.abef),
                             .cdgh = _mm_add_epi32(a.cdgh, b.cdgh)};
}

TARGET_SHA static void compress_ni(uint32_t state[8], const uint8_t *data, size_t count)
{
    struct ni_state s = ni_load(state);
    for (size_t i = 0; i < count; i++, data += TIERCE__SHA256_BLOCK) {
        struct ni_state before = s;
        __m128i m[4] = {{0}};
#pragma GCC unroll 16
        for (int g = 0; g < 16; g++)
            s = ni_rounds(s, ni_words(m, data, g));
        s = ni_add(s, before);
    }
    ni_store(state, s);
}

/* The rounds of one message wait for each other; those of two fill each other's gaps. */
TARGET_SHA static void compress_two_ni(uint32_t state_a[8], const uint8_t *data_a,
                                       uint32_t state_b[8], const uint8_t *data_b)
{
    struct ni_state a = ni_load(state_a), b = ni_load(state_b);
    __m128i ma[4] = {{0}}, mb[4] = {{0}};
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) {
        __m128i wa = ni_words(ma, data_a, g);
        __m128i wb = ni_words(mb, data_b, g);
        a = ni_rounds(a, wa);
        b = ni_rounds(b, wb);
    }
    ni_store(state_a, ni_add(a, ni_load(state_a)));
    ni_store(state_b, ni_add(b, ni_load(state_b)));
}

static const struct tierce__sha256_impl impl_ni = {
    .name = "x86-sha", .compress = compress_ni, .compress_two = compress_two_ni};

static bool cpu_has_sha(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_SSSE3) == 0 || (c & bit_SSE4_1) == 0)
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 29)) != 0;
}

#endif

/* ---- choice --------------------------------------------------------------------------------- */

/* Relaxed: every value it ever holds points at constant data, and all give the same digests. */
static _Atomic(const struct tierce__sha256_impl *) chosen;

const struct tierce__sha256_impl *tierce__sha256_impl_at(size_t index)
{
#if defined(__x86_64__)
    if (cpu_has_sha()) {
        if (index == 0)
            return &impl_ni;
        index--;
    }
#endif
    return index == 0 ? &impl_portable : NULL;
}

const struct tierce__sha256_impl *tierce__sha256_impl(void)
{
    const struct tierce__sha256_impl *impl = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (__builtin_expect(impl == NULL, 0)) {
        impl = tierce__sha256_impl_at(0);
        atomic_store_explicit(&chosen, impl, memory_order_relaxed);
    }
    return impl;
}

void tierce__sha256_impl_set(const struct tierce__sha256_impl *impl)
{
    atomic_store_explicit(&chosen, impl, memory_order_relaxed);
}

/* ---- messages ------------------------------------------------------------------------------- */

void tierce__sha256_put_state(uint8_t digest[TIERCE__SHA256_BYTES], const uint32_t state[8])
{
    for (int i = 0; i < 8; i++) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        uint32_t word = __builtin_bswap32(state[i]);
#else
        uint32_t word = state[i];
#endif
        memcpy(digest + 4 * i, &word, 4);
    }
}

size_t tierce__sha256_pad(uint8_t tail[2 * TIERCE__SHA256_BLOCK], size_t used, uint64_t total)
{
    TIERCE_ASSERT(used <= 2 * TIERCE__SHA256_BLOCK - 9);
    size_t blocks = used + 9 <= TIERCE__SHA256_BLOCK ? 1 : 2;
    size_t end = blocks * TIERCE__SHA256_BLOCK;
    tail[used] = 0x80;
    memset(tail + used + 1, 0, end - 8 - used - 1);
    uint64_t bits = total * 8;
    for (size_t i = 0; i < 8; i++)
        tail[end - 1 - i] = (uint8_t)(bits >> (8 * i));
    return blocks;
}

void tierce__sha256_init(struct tierce__sha256 *sha)
{
    sha->impl = tierce__sha256_impl();
    memcpy(sha->state, tierce__sha256_start, sizeof(sha->state));
    sha->fed_bytes = 0;
}

void tierce__sha256_update(struct tierce__sha256 *sha, const void *data, size_t size)
{
    TIERCE_DASSERT(sha->fed_bytes + size >= sha->fed_bytes);
    if (size == 0)
        return;
    const uint8_t *bytes = data;
    size_t held = sha->fed_bytes % TIERCE__SHA256_BLOCK;
    sha->fed_bytes += size;
    if (held > 0) {
        size_t room = TIERCE__SHA256_BLOCK - held;
        size_t part = size < room ? size : room;
        memcpy(sha->waiting + held, bytes, part);
        bytes += part;
        size -= part;
        if (part < room)
            return;
        sha->impl->compress(sha->state, sha->waiting, 1);
    }
    size_t whole = size / TIERCE__SHA256_BLOCK;
    sha->impl->compress(sha->state, bytes, whole);
    bytes += whole * TIERCE__SHA256_BLOCK;
    memcpy(sha->waiting, bytes, size % TIERCE__SHA256_BLOCK);
}

void tierce__sha256_final(struct tierce__sha256 *sha, uint8_t digest[TIERCE__SHA256_BYTES])
{
    uint8_t tail[2 * TIERCE__SHA256_BLOCK];
    size_t held = sha->fed_bytes % TIERCE__SHA256_BLOCK;
    memcpy(tail, sha->waiting, held);
    size_t blocks = tierce__sha256_pad(tail, held, sha->fed_bytes);
    sha->impl->compress(sha->state, tail, blocks);
    tierce__sha256_put_state(digest, sha->state);
}

void tierce__sha256(uint8_t digest[TIERCE__SHA256_BYTES], const void *data, size_t size)
{
    const struct tierce__sha256_impl *impl = tierce__sha256_impl();
    uint32_t state[8];
    uint8_t tail[2 * TIERCE__SHA256_BLOCK];
    size_t whole = size / TIERCE__SHA256_BLOCK, rest = size % TIERCE__SHA256_BLOCK;
    memcpy(state, tierce__sha256_start, sizeof(state));
    impl->compress(state, data, whole);
    if (rest > 0)
        memcpy(tail, (const uint8_t *)data + whole * TIERCE__SHA256_BLOCK, rest);
    size_t blocks = tierce__sha256_pad(tail, rest, size);
    impl->compress(state, tail, blocks);
    tierce__sha256_put_state(digest, state);
}
