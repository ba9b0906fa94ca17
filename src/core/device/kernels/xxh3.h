/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KERNEL_XXH3_H
#define TIERCE_KERNEL_XXH3_H

#include "core/device/kernels/kernel_source.h"

/*
 * XXH3-64 with seed 0, with the macros of kernel_source.h: the same sum as core/paged/sum.c on the
 * host. Up to 240 bytes there are five forms. Above, the input is a row of stripes of 64 bytes, in
 * blocks of 16 stripes, and eight 64-bit lanes. A stripe adds to each lane a product and a word; at
 * the end of a full block the lanes are scrambled.
 */

enum {
    XXH3_SHORT_BYTES_MAX = 240,
    XXH3_LANES = 8,
    XXH3_STRIPE_BYTES = 64,
    XXH3_BLOCK_STRIPES = 16,
    XXH3_BLOCK_BYTES = XXH3_STRIPE_BYTES * XXH3_BLOCK_STRIPES,
    XXH3_SCRAMBLE_KEY = 128,
    XXH3_LAST_KEY = 121,
    XXH3_FOLD_KEY = 11,
};

#define XXH3_PRIME32_1     0x9E3779B1u
#define XXH3_PRIME32_2     0x85EBCA77u
#define XXH3_PRIME32_3     0xC2B2AE3Du
#define XXH3_PRIME64_1     0x9E3779B185EBCA87u
#define XXH3_PRIME64_2     0xC2B2AE3D27D4EB4Fu
#define XXH3_PRIME64_3     0x165667B19E3779F9u
#define XXH3_PRIME64_4     0x85EBCA77C2B2AE63u
#define XXH3_PRIME64_5     0x27D4EB2F165667C5u
#define XXH3_PRIME_FINAL   0x165667919E3779F9u
#define XXH3_PRIME_9_BYTES 0x9FB21C651E98DF25u

/* The default secret, in words. */
TIERCE__CONSTANT uint64_t xxh3_secret[24] = {
    0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u,
    0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u,
    0xcb00c391bb52283cu, 0xa32e531b8b65d088u, 0x4ef90da297486471u, 0xd8acdea946ef1938u,
    0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au, 0x647378d9c97e9fc8u,
    0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
    0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu,
};

TIERCE__CONSTANT uint64_t xxh3_start[XXH3_LANES] = {
    XXH3_PRIME32_3, XXH3_PRIME64_1, XXH3_PRIME64_2, XXH3_PRIME64_3,
    XXH3_PRIME64_4, XXH3_PRIME32_2, XXH3_PRIME64_5, XXH3_PRIME32_1,
};

/* The 8 bytes of the secret at any offset up to 184. */
TIERCE__DEVICE uint64_t xxh3_key(uint32_t at)
{
    uint32_t word = at / 8, bits = at % 8 * 8;
    uint64_t low = xxh3_secret[word];
    return bits == 0 ? low : low >> bits | xxh3_secret[word + 1] << (64 - bits);
}

TIERCE__DEVICE uint64_t xxh3_read64(const uint8_t *at)
{
    uint64_t word = 0;
    for (uint32_t i = 0; i < 8; i++)
        word |= (uint64_t)at[i] << (8 * i);
    return word;
}

TIERCE__DEVICE uint32_t xxh3_read32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

TIERCE__DEVICE uint64_t xxh3_fold(uint64_t a, uint64_t b)
{
    return (a * b) ^ tierce__high_product(a, b);
}

TIERCE__DEVICE uint64_t xxh3_rotate(uint64_t word, uint32_t bits)
{
    return word << bits | word >> (64 - bits);
}

TIERCE__DEVICE uint64_t xxh3_reverse(uint64_t word)
{
    word = (word & 0x00FF00FF00FF00FFu) << 8 | (word >> 8 & 0x00FF00FF00FF00FFu);
    word = (word & 0x0000FFFF0000FFFFu) << 16 | (word >> 16 & 0x0000FFFF0000FFFFu);
    return word << 32 | word >> 32;
}

/* ---- the ends of a sum ------------------------------------------------------------------------
 */

TIERCE__DEVICE uint64_t xxh3_avalanche(uint64_t sum)
{
    sum ^= sum >> 37;
    sum *= XXH3_PRIME_FINAL;
    return sum ^ sum >> 32;
}

/* That of XXH64, for up to 3 bytes. */
TIERCE__DEVICE uint64_t xxh3_old_avalanche(uint64_t sum)
{
    sum ^= sum >> 33;
    sum *= XXH3_PRIME64_2;
    sum ^= sum >> 29;
    sum *= XXH3_PRIME64_3;
    return sum ^ sum >> 32;
}

/* ---- up to 240 bytes --------------------------------------------------------------------------
 */

TIERCE__DEVICE uint64_t xxh3_1_to_3(const uint8_t *in, uint32_t n)
{
    uint32_t bytes = (uint32_t)in[0] << 16 | (uint32_t)in[n >> 1] << 24 | in[n - 1] | n << 8;
    uint64_t key = xxh3_key(0);
    return xxh3_old_avalanche(bytes ^ (uint32_t)(key ^ key >> 32));
}

TIERCE__DEVICE uint64_t xxh3_4_to_8(const uint8_t *in, uint32_t n)
{
    uint64_t words = xxh3_read32(in + n - 4) + ((uint64_t)xxh3_read32(in) << 32);
    uint64_t sum = words ^ xxh3_key(8) ^ xxh3_key(16);
    sum ^= xxh3_rotate(sum, 49) ^ xxh3_rotate(sum, 24);
    sum *= XXH3_PRIME_9_BYTES;
    sum ^= (sum >> 35) + n;
    sum *= XXH3_PRIME_9_BYTES;
    return sum ^ sum >> 28;
}

TIERCE__DEVICE uint64_t xxh3_9_to_16(const uint8_t *in, uint32_t n)
{
    uint64_t low = xxh3_read64(in) ^ xxh3_key(24) ^ xxh3_key(32);
    uint64_t high = xxh3_read64(in + n - 8) ^ xxh3_key(40) ^ xxh3_key(48);
    return xxh3_avalanche(n + xxh3_reverse(low) + high + xxh3_fold(low, high));
}

TIERCE__DEVICE uint64_t xxh3_mix16(const uint8_t *in, uint32_t key)
{
    return xxh3_fold(xxh3_read64(in) ^ xxh3_key(key), xxh3_read64(in + 8) ^ xxh3_key(key + 8));
}

/* Pairs of 16 bytes, from both ends inwards. */
TIERCE__DEVICE uint64_t xxh3_17_to_128(const uint8_t *in, uint32_t n)
{
    uint64_t sum = n * XXH3_PRIME64_1;
    TIERCE__ROLLED
    for (uint32_t i = 0; i <= (n - 1) / 32; i++) {
        sum += xxh3_mix16(in + 16 * i, 32 * i);
        sum += xxh3_mix16(in + n - 16 * (i + 1), 32 * i + 16);
    }
    return xxh3_avalanche(sum);
}

TIERCE__DEVICE uint64_t xxh3_129_to_240(const uint8_t *in, uint32_t n)
{
    uint64_t sum = n * XXH3_PRIME64_1;
    TIERCE__ROLLED
    for (uint32_t i = 0; i < 8; i++)
        sum += xxh3_mix16(in + 16 * i, 16 * i);
    sum = xxh3_avalanche(sum);
    TIERCE__ROLLED
    for (uint32_t i = 8; i < n / 16; i++)
        sum += xxh3_mix16(in + 16 * i, 16 * (i - 8) + 3);
    return xxh3_avalanche(sum + xxh3_mix16(in + n - 16, 119));
}

TIERCE__DEVICE uint64_t xxh3_short(const uint8_t *in, uint32_t n)
{
    if (n == 0)
        return xxh3_old_avalanche(xxh3_key(56) ^ xxh3_key(64));
    if (n <= 3)
        return xxh3_1_to_3(in, n);
    if (n <= 8)
        return xxh3_4_to_8(in, n);
    if (n <= 16)
        return xxh3_9_to_16(in, n);
    return n <= 128 ? xxh3_17_to_128(in, n) : xxh3_129_to_240(in, n);
}

/* ---- above ------------------------------------------------------------------------------------
 */

TIERCE__DEVICE uint64_t xxh3_product(uint64_t word, uint64_t key)
{
    uint64_t keyed = word ^ key;
    return (keyed & 0xFFFFFFFFu) * (keyed >> 32);
}

TIERCE__DEVICE uint64_t xxh3_scramble(uint64_t lane, uint32_t index)
{
    lane ^= lane >> 47;
    lane ^= xxh3_key(XXH3_SCRAMBLE_KEY + 8 * index);
    return lane * XXH3_PRIME32_1;
}

/* The sum of n bytes from their lanes, which have taken all stripes. */
TIERCE__DEVICE uint64_t xxh3_finish(const uint64_t lanes[XXH3_LANES], uint64_t n)
{
    uint64_t sum = n * XXH3_PRIME64_1;
    TIERCE__ROLLED
    for (uint32_t i = 0; i < XXH3_LANES; i += 2)
        sum += xxh3_fold(lanes[i] ^ xxh3_key(XXH3_FOLD_KEY + 8 * i),
                         lanes[i + 1] ^ xxh3_key(XXH3_FOLD_KEY + 8 * i + 8));
    return xxh3_avalanche(sum);
}

#endif
