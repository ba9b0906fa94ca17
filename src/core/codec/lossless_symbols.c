/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/lossless_private.h"

#include <string.h>

#include "base/assert.h"
#include "base/bytes.h"

/* Four tables, because equal exponents that follow each other would wait for one counter. */
enum { TABLES = 4 };

/* The symbol of an element within a word of elements. */
static inline unsigned exponent_at(uint64_t word, unsigned index, enum tierce__element element)
{
    const struct tierce__split *split = &tierce__splits[element];
    unsigned bits = 8u * split->bytes;
    uint64_t value = word >> (bits * index);
    if (element == TIERCE__ELEMENT_BF16)
        return (unsigned)(value >> 7) & 0xff;
    return (unsigned)(value >> (bits - 8 + split->shift)) & split->mask;
}

/* Of a long run every fourth group is counted, in turn the first, second, third and fourth of four:
 * less than 0.001 bits an element, and counting no longer takes most of the time. */
enum { SAMPLED_GROUPS_MIN = 32, SAMPLE = 4 };

#define INLINE __attribute__((always_inline)) static inline

INLINE void count_words(uint32_t tables[TABLES][TIERCE__SLOTS], enum tierce__element element,
                        const uint8_t *src, size_t words)
{
    unsigned each = 8u / tierce__splits[element].bytes;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = tierce__load_le64(src + 8 * i);
#pragma GCC unroll 8
        for (unsigned k = 0; k < each; k++)
            tables[k % TABLES][exponent_at(word, k, element)]++;
    }
}

INLINE void count_elements(uint32_t tables[TABLES][TIERCE__SLOTS], enum tierce__element element,
                           const uint8_t *src, size_t elements)
{
    size_t bytes = tierce__splits[element].bytes, group = TIERCE__GROUP * bytes;
    if (elements / TIERCE__GROUP >= SAMPLED_GROUPS_MIN) {
        for (size_t i = 0; i < elements / TIERCE__GROUP / SAMPLE; i++)
            count_words(tables, element, src + (SAMPLE * i + i % SAMPLE) * group, group / 8);
        return;
    }
    count_words(tables, element, src, elements * bytes / 8);
    uint8_t last[8] = {0};
    size_t rest = elements * bytes % 8;
    memcpy(last, src + elements * bytes - rest, rest);
    for (unsigned k = 0; k < rest / bytes; k++)
        tables[0][exponent_at(tierce__load_le64(last), k, element)]++;
}

void tierce__symbols_count(uint32_t counts[TIERCE__SLOTS], enum tierce__element element,
                           const uint8_t *src, size_t elements)
{
    uint32_t tables[TABLES][TIERCE__SLOTS] = {0};
    switch (element) {
    case TIERCE__ELEMENT_BF16:
        count_elements(tables, TIERCE__ELEMENT_BF16, src, elements);
        break;
    case TIERCE__ELEMENT_FP16:
        count_elements(tables, TIERCE__ELEMENT_FP16, src, elements);
        break;
    case TIERCE__ELEMENT_E4M3:
        count_elements(tables, TIERCE__ELEMENT_E4M3, src, elements);
        break;
    case TIERCE__ELEMENT_E5M2:
        count_elements(tables, TIERCE__ELEMENT_E5M2, src, elements);
        break;
    case TIERCE__SYMBOLS4:
        count_elements(tables, TIERCE__SYMBOLS4, src, elements);
        break;
    case TIERCE__SYMBOLS5:
        count_elements(tables, TIERCE__SYMBOLS5, src, elements);
        break;
    case TIERCE__ELEMENT_RAW:
    case TIERCE__ELEMENTS:
        TIERCE_ASSERT(false);
    }
    for (unsigned i = 0; i < TIERCE__SLOTS; i++)
        counts[i] += tables[0][i] + tables[1][i] + tables[2][i] + tables[3][i];
}

/* Computes everything that follows from count, escape, exponents and frequencies. */
static void complete(struct tierce__symbols *s)
{
    unsigned slot = 0;
    memset(s->of_exponent, s->escape, sizeof(s->of_exponent));
    for (unsigned i = 0; i < s->count; i++) {
        unsigned f = s->frequency[i], reciprocal = f == 1 ? 65535 : 65536 / f;
        s->below[i] = (uint8_t)slot;
        s->reciprocal_low[i] = (uint8_t)reciprocal;
        s->reciprocal_high[i] = (uint8_t)(reciprocal >> 8);
        if (i != s->escape)
            s->of_exponent[s->exponent[i]] = (uint8_t)i;
        memset(s->of_slot + slot, (int)i, f);
        slot += f;
    }
    TIERCE_ASSERT(slot == TIERCE__SLOTS);
}

/* log2(value) in 1/256 bits, for 1 <= value <= 256. */
static uint32_t log2_fixed(uint32_t value)
{
    uint32_t whole = 31u - (uint32_t)__builtin_clz(value), result = whole << 8;
    uint64_t x = (uint64_t)value << (31 - whole); /* 1 <= x / 2^31 < 2 */
    for (uint32_t bit = 128; bit > 0; bit /= 2) {
        x = x * x >> 31;
        if (x >= 1ULL << 32) {
            x /= 2;
            result += bit;
        }
    }
    return result;
}

/*
 * The exponents that get symbols, the most frequent first. One of probability p costs 16 bits as an
 * escape and 8 as a symbol of frequency 1, which costs all others 1/177 bit together: a symbol pays
 * above p = 1/1400. An escape must have a symbol of its own.
 */
static unsigned choose_exponents(uint8_t chosen[TIERCE__SYMBOLS_MAX],
                                 const uint32_t counts[TIERCE__SLOTS], uint64_t total)
{
    unsigned count = 0;
    for (unsigned e = 0; e < TIERCE__SLOTS; e++) {
        if ((uint64_t)counts[e] * 1400 < total)
            continue;
        unsigned at = count;
        if (count < TIERCE__SYMBOLS_MAX)
            count++;
        else if (counts[e] > counts[chosen[count - 1]])
            at = count - 1;
        else
            continue;
        for (; at > 0 && counts[chosen[at - 1]] < counts[e]; at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = (uint8_t)e;
    }
    TIERCE_ASSERT(count >= 1);
    return count;
}

/* Gives each symbol its share of the slots, at least one. The most frequent symbol takes what
 * rounding has left, or gives what it has exceeded. */
static void share_slots(unsigned frequency[TIERCE__SYMBOLS_MAX],
                        const uint32_t weight[TIERCE__SYMBOLS_MAX], unsigned count, uint64_t total)
{
    unsigned sum = 0;
    for (unsigned i = 0; i < count; i++) {
        uint64_t rounded = (weight[i] * (uint64_t)TIERCE__SLOTS + total / 2) / total;
        frequency[i] = rounded > 0 ? (unsigned)rounded : 1;
        sum += frequency[i];
    }
    while (sum != TIERCE__SLOTS) {
        unsigned most = 0;
        for (unsigned i = 1; i < count; i++)
            most = frequency[i] > frequency[most] ? i : most;
        frequency[most] += sum < TIERCE__SLOTS ? 1u : -1u;
        sum += sum < TIERCE__SLOTS ? 1u : -1u;
    }
}

uint64_t tierce__symbols_choose(struct tierce__symbols *out, const uint32_t counts[TIERCE__SLOTS],
                                enum tierce__element element)
{
    struct tierce__symbols s = {.escape = TIERCE__NO_ESCAPE};
    uint32_t weight[TIERCE__SYMBOLS_MAX] = {0};
    unsigned frequency[TIERCE__SYMBOLS_MAX];
    uint64_t total = 0, covered = 0;
    for (unsigned e = 0; e < TIERCE__SLOTS; e++)
        total += counts[e];
    TIERCE_ASSERT(total > 0);
    unsigned count = choose_exponents(s.exponent, counts, total);
    for (unsigned i = 0; i < count; i++)
        covered += weight[i] = counts[s.exponent[i]];
    if (count <= tierce__splits[element].mask) {
        /* The counts are a sample, so any other exponent may occur. */
        if (count == TIERCE__SYMBOLS_MAX)
            covered -= weight[--count];
        s.escape = (uint8_t)count;
        s.exponent[count] = 0;
        weight[count++] = (uint32_t)(total - covered);
    }
    share_slots(frequency, weight, count, total);
    s.count = (uint8_t)count;
    uint64_t cost = 0;
    for (unsigned i = 0; i < count; i++) {
        s.frequency[i] = (uint8_t)frequency[i];
        uint32_t bits = (8u << 8) - log2_fixed(frequency[i]);
        cost += (uint64_t)weight[i] * (i == s.escape ? bits + (8u << 8) : bits);
    }
    complete(&s);
    *out = s;
    return cost;
}

#define HAS_ESCAPE 0x80u

size_t tierce__symbols_store(uint8_t *dst, const struct tierce__symbols *symbols)
{
    bool escapes = symbols->escape != TIERCE__NO_ESCAPE;
    dst[0] = (uint8_t)(symbols->count | (escapes ? HAS_ESCAPE : 0));
    memcpy(dst + 1, symbols->exponent, symbols->count);
    memcpy(dst + 1 + symbols->count, symbols->frequency, symbols->count);
    return 1u + 2u * symbols->count;
}

int tierce__symbols_load(struct tierce__symbols *out, const uint8_t *src, size_t bytes,
                         enum tierce__element element)
{
    struct tierce__symbols s = {.escape = TIERCE__NO_ESCAPE};
    if (bytes < 1)
        return TIERCE_E_FORMAT;
    s.count = (uint8_t)(src[0] & ~HAS_ESCAPE);
    if (s.count < 2 || s.count > TIERCE__SYMBOLS_MAX || bytes < 1u + 2u * s.count)
        return TIERCE_E_FORMAT;
    if (src[0] & HAS_ESCAPE)
        s.escape = (uint8_t)(s.count - 1);
    memcpy(s.exponent, src + 1, s.count);
    memcpy(s.frequency, src + 1 + s.count, s.count);
    unsigned slots = 0;
    for (unsigned i = 0; i < s.count; i++) {
        slots += s.frequency[i];
        if (s.frequency[i] == 0 || (s.exponent[i] & ~tierce__splits[element].mask) != 0 ||
            (i == s.escape && s.exponent[i] != 0))
            return TIERCE_E_FORMAT;
    }
    if (slots != TIERCE__SLOTS)
        return TIERCE_E_FORMAT;
    complete(&s);
    *out = s;
    return (int)(1u + 2u * s.count);
}
