/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_MIX_H
#define TIERCE_BASE_MIX_H

#include <stdint.h>

/*
 * Hashes of numbers and names for tables, and a small generator of numbers that look random. None
 * of them is a secret: a table that an attacker can fill needs a secret seed.
 *
 * Results of tierce__mix are stored and sent (the manager's index orders its keys by them), and
 * tests compare draws with expected numbers: these functions never change.
 *
 * Sources: SplitMix64, of G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable Pseudorandom Number
 * Generators" (2014), with the constants of S. Vigna's splitmix64.c; multiplicative hashing, D. E.
 * Knuth, The Art of Computer Programming, volume 3, 6.4; FNV-1a, G. Fowler, L. C. Noll, K.-P. Vo.
 * Thread: any.
 */

#define TIERCE__MIX_GOLDEN 0x9e3779b97f4a7c15ULL /* 2^64 / golden ratio, made odd */
#define TIERCE__MIX_SECOND 0xd6e8feb86659fd93ULL /* for a second word that joins the first */

#define TIERCE__HASH_TEXT 14695981039346656037ULL /* the hash of no text */

/* Multiplicative hashing: one multiplication. Only the upper half of the bits is well mixed. */
static inline uint64_t tierce__spread(uint64_t x)
{
    return x * TIERCE__MIX_GOLDEN;
}

/* Each bit of x changes each bit of the result in about half of all cases. Invertible. 0 yields
 * 0. */
static inline uint64_t tierce__mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

/* The x whose tierce__mix is `mixed`. */
static inline uint64_t tierce__unmix(uint64_t mixed)
{
    uint64_t x = mixed;
    x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3ULL;
    x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089ULL;
    return x ^ (x >> 30) ^ (x >> 60);
}

/* The next 64 bits of SplitMix64. Any *state is a seed. */
static inline uint64_t tierce__random_next(uint64_t *state)
{
    return tierce__mix(*state += TIERCE__MIX_GOLDEN);
}

/* FNV-1a of a text, continued from the hash of the text before it; a first text continues from
 * TIERCE__HASH_TEXT. */
static inline uint64_t tierce__hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (uint8_t)*text) * 1099511628211ULL;
    return hash;
}

#endif
