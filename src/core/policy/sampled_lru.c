/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "core/policy/policy_private.h"

#include <errno.h>

/*
 * The oldest of a random sample of the evictable entries, drawn with replacement. There is no
 * order, only the number of the last use and a bit, so that it serves where lists over all entries
 * would cost too much memory.
 *
 * Slots are drawn by trying random ones. Where few slots are evictable, tries that fail are cut
 * short by a walk over the bits from a random place on; a second row of bits, one for each word of
 * the first, keeps it short.
 */

#define SAMPLED_MAGIC   0x534c5231u
#define SAMPLES_DEFAULT 16u
#define SAMPLES_MAX     1024u
#define TRIES           8u /* a table that is half full fails them once in 256 draws */

struct sampled {
    struct tierce__policy base;
    uint32_t magic;
    uint32_t slot_count;
    uint32_t samples;
    uint32_t evictable_count;
    uint64_t *used_at; /* [slot_count] number of the last use; 0: not in */
    uint64_t *bits;    /* of slots that are evictable */
    uint64_t *summary; /* of words of `bits` that are not 0 */
    uint64_t uses;
    uint64_t random;
    uint32_t victim; /* drawn, and still to be evicted; NO_SLOT: none */
};

static struct sampled *sampled_of(struct tierce__policy *policy)
{
    struct sampled *s = (struct sampled *)(void *)policy;
    TIERCE_CHECK_MAGIC(s, SAMPLED_MAGIC);
    return s;
}

static uint32_t word_count(uint32_t bits)
{
    return bits / 64 + (bits % 64 != 0);
}

static bool is_evictable(const struct sampled *s, uint32_t slot)
{
    TIERCE_DASSERT(slot < s->slot_count);
    return (s->bits[slot / 64] >> (slot % 64) & 1) != 0;
}

static void set_bit(struct sampled *s, uint32_t slot)
{
    TIERCE_DASSERT(s->used_at[slot] != 0);
    TIERCE_DASSERT(!is_evictable(s, slot) && s->evictable_count < s->slot_count);
    s->bits[slot / 64] |= 1ULL << (slot % 64);
    s->summary[slot / 4096] |= 1ULL << (slot / 64 % 64);
    s->evictable_count++;
    s->victim = TIERCE__NO_SLOT;
}

static void clear_bit(struct sampled *s, uint32_t slot)
{
    TIERCE_DASSERT(s->used_at[slot] != 0);
    TIERCE_DASSERT(is_evictable(s, slot) && s->evictable_count > 0);
    s->bits[slot / 64] &= ~(1ULL << (slot % 64));
    if (s->bits[slot / 64] == 0)
        s->summary[slot / 4096] &= ~(1ULL << (slot / 64 % 64));
    s->evictable_count--;
    if (s->victim == slot)
        s->victim = TIERCE__NO_SLOT;
}

/* ---- operations ------------------------------------------------------------------------------ */

static void sampled_destroy(struct tierce__policy *policy)
{
    if (policy == NULL)
        return;
    struct sampled *s = sampled_of(policy);
    s->magic = 0;
    tierce__free(s->summary);
    tierce__free(s->bits);
    tierce__free(s->used_at);
    tierce__free(s);
}

static int sampled_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    if (!tierce__policy_opts_good(opts) || opts->samples > SAMPLES_MAX)
        return TIERCE_E_ARGUMENT;
    struct sampled *s = tierce__calloc(1, sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    uint32_t words = word_count(opts->slot_count);
    s->base.ops = &tierce__policy_sampled_lru_ops;
    s->magic = SAMPLED_MAGIC;
    s->slot_count = opts->slot_count;
    s->samples = opts->samples > 0 ? opts->samples : SAMPLES_DEFAULT;
    s->random = opts->seed;
    s->victim = TIERCE__NO_SLOT;
    s->used_at = tierce__calloc(opts->slot_count, sizeof(*s->used_at));
    s->bits = tierce__calloc(words, sizeof(*s->bits));
    s->summary = tierce__calloc(word_count(words), sizeof(*s->summary));
    if (s->used_at == NULL || s->bits == NULL || s->summary == NULL) {
        sampled_destroy(&s->base);
        return -ENOMEM;
    }
    tierce__advise_huge(s->used_at, opts->slot_count * sizeof(*s->used_at));
    *out = &s->base;
    return 0;
}

static void sampled_insert(struct tierce__policy *policy, uint32_t slot,
                           const struct tierce__policy_entry *entry)
{
    struct sampled *s = sampled_of(policy);
    (void)entry;
    TIERCE_ASSERT(slot < s->slot_count && s->used_at[slot] == 0);
    s->used_at[slot] = ++s->uses;
    set_bit(s, slot);
}

static void sampled_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    struct sampled *s = sampled_of(policy);
    (void)now;
    TIERCE_ASSERT(slot < s->slot_count && s->used_at[slot] != 0);
    s->used_at[slot] = ++s->uses;
    if (s->victim == slot)
        s->victim = TIERCE__NO_SLOT;
}

static void sampled_set_evictable(struct tierce__policy *policy, uint32_t slot, bool evictable)
{
    struct sampled *s = sampled_of(policy);
    TIERCE_ASSERT(slot < s->slot_count && s->used_at[slot] != 0);
    if (is_evictable(s, slot) == evictable)
        return;
    if (evictable)
        set_bit(s, slot);
    else
        clear_bit(s, slot);
}

static void sampled_remove(struct tierce__policy *policy, uint32_t slot, bool evicted)
{
    struct sampled *s = sampled_of(policy);
    (void)evicted;
    TIERCE_ASSERT(slot < s->slot_count && s->used_at[slot] != 0);
    if (is_evictable(s, slot))
        clear_bit(s, slot);
    s->used_at[slot] = 0;
}

/* The index of the first bit that is set at `from` or beyond, around the end; one is set. */
static uint32_t next_bit(const uint64_t *words, uint32_t count, uint32_t from)
{
    TIERCE_DASSERT(from / 64 < count);
    uint32_t at = from / 64;
    uint64_t word = words[at] & (UINT64_MAX << (from % 64));
    while (word == 0) {
        at = at + 1 < count ? at + 1 : 0;
        word = words[at];
    }
    return at * 64 + (uint32_t)__builtin_ctzll(word);
}

static uint32_t draw_slot(struct sampled *s)
{
    TIERCE_DASSERT(s->evictable_count > 0);
    uint32_t slot = 0;
    for (uint32_t i = 0; i < TRIES; i++) {
        slot = (uint32_t)((tierce__random_next(&s->random) >> 32) * s->slot_count >> 32);
        if (is_evictable(s, slot))
            return slot;
    }
    uint64_t rest = s->bits[slot / 64] & (UINT64_MAX << (slot % 64));
    if (rest != 0)
        return slot / 64 * 64 + (uint32_t)__builtin_ctzll(rest);
    uint32_t words = word_count(s->slot_count), next = slot / 64 + 1 < words ? slot / 64 + 1 : 0;
    uint32_t word = next_bit(s->summary, word_count(words), next);
    TIERCE_DASSERT(word < words && s->bits[word] != 0);
    return word * 64 + (uint32_t)__builtin_ctzll(s->bits[word]);
}

static uint32_t oldest_of_sample(struct sampled *s)
{
    TIERCE_DASSERT(s->samples <= SAMPLES_MAX);
    uint32_t slots[SAMPLES_MAX], oldest = draw_slot(s);
    for (uint32_t i = 1; i < s->samples; i++) {
        slots[i] = draw_slot(s);
        __builtin_prefetch(&s->used_at[slots[i]]);
    }
    for (uint32_t i = 1; i < s->samples; i++) {
        if (s->used_at[slots[i]] < s->used_at[oldest])
            oldest = slots[i];
    }
    return oldest;
}

static bool sampled_victim(struct tierce__policy *policy, uint64_t now, uint32_t *slot)
{
    struct sampled *s = sampled_of(policy);
    (void)now;
    if (s->evictable_count == 0)
        return false;
    if (s->victim == TIERCE__NO_SLOT)
        s->victim = oldest_of_sample(s);
    *slot = s->victim;
    TIERCE_DASSERT(is_evictable(s, *slot));
    return true;
}

const struct tierce__policy_ops tierce__policy_sampled_lru_ops = {
    .name = "sampled_lru",
    .summary = "the least recently used of a random sample, for many entries at little memory",
    .create = sampled_create,
    .destroy = sampled_destroy,
    .insert = sampled_insert,
    .touch = sampled_touch,
    .set_evictable = sampled_set_evictable,
    .remove = sampled_remove,
    .victim = sampled_victim,
};
