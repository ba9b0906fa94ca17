/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/flat.h"
#include "core/policy/ghost.h"
#include "core/policy/order.h"
#include "core/policy/policy_private.h"

#include <errno.h>

/*
 * S3-FIFO. New entries enter a small queue with a tenth of the capacity. An entry moves to the main
 * queue only if it was used twice before its turn, or if its key recently left the small queue (the
 * ghost). In main, a used entry goes round again. A use is one store into an array of a byte per
 * slot.
 *
 * The second policy of this file differs until the first eviction: an entry that finds the small
 * queue full goes directly into main, so that a cold cache does not begin with main empty.
 */

enum { SMALL, MAIN, USES_MAX = 3, USES_FOR_MAIN = 2 };

struct s3fifo {
    struct tierce__ordered ordered;      /* lists SMALL and MAIN */
    uint8_t *uses;                       /* [slot_count], at most USES_MAX */
    struct tierce__ghost_entry *entries; /* [slot_count] */
    struct tierce__ghost ghost;
    uint64_t bytes[2];
    uint64_t small_share, main_share, ghost_share;
    bool counts; /* no capacity was given: entries have size 1 */
    bool fills_main;
    bool has_evicted;
    bool expects; /* an insert was announced */
    bool expects_main;
    uint64_t expected_key;
    uint32_t victim; /* chosen, and nothing has changed since; NO_SLOT: none */
};

static struct s3fifo *s3fifo_of(struct tierce__policy *policy)
{
    (void)tierce__order_of(policy);
    return (struct s3fifo *)(void *)policy;
}

static void s3fifo_destroy(struct tierce__policy *policy)
{
    if (policy == NULL)
        return;
    struct s3fifo *s = s3fifo_of(policy);
    tierce__ghost_fini(&s->ghost);
    tierce__free(s->entries);
    tierce__free(s->uses);
    tierce__ordered_destroy(policy);
}

static int create_as(struct tierce__policy **out, const struct tierce__policy_opts *opts,
                     const struct tierce__policy_ops *ops, bool fills_main)
{
    struct tierce__policy *policy;
    int rc = tierce__ordered_create(&policy, sizeof(struct s3fifo), ops, opts, 2, false);
    if (rc < 0)
        return rc;
    struct s3fifo *s = s3fifo_of(policy);
    uint64_t capacity = opts->capacity > 0 ? opts->capacity : opts->slot_count;
    s->counts = opts->capacity == 0;
    s->fills_main = fills_main;
    s->small_share = capacity / 10;
    s->main_share = capacity - s->small_share;
    s->ghost_share = capacity / 10 * 9 + capacity % 10 * 9 / 10;
    TIERCE_DASSERT(s->main_share <= capacity && s->ghost_share <= capacity);
    s->victim = TIERCE__NO_SLOT;
    s->uses = tierce__calloc(opts->slot_count, sizeof(*s->uses));
    s->entries = tierce__calloc(opts->slot_count, sizeof(*s->entries));
    rc = tierce__ghost_init(&s->ghost, opts->slot_count, opts->key_count);
    if (s->uses == NULL || s->entries == NULL)
        rc = -ENOMEM;
    tierce__advise_huge(s->entries, opts->slot_count * sizeof(*s->entries));
    if (rc < 0) {
        s3fifo_destroy(policy);
        return rc;
    }
    *out = policy;
    return 0;
}

static int s3fifo_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    return create_as(out, opts, &tierce__policy_s3fifo_ops, false);
}

static int s3fifo_lcs_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    return create_as(out, opts, &tierce__policy_s3fifo_lcs_ops, true);
}

static void s3fifo_expect(struct tierce__policy *policy, const struct tierce__policy_entry *entry)
{
    struct s3fifo *s = s3fifo_of(policy);
    uint32_t list;
    s->expects = true;
    s->expected_key = entry->key;
    s->expects_main = tierce__ghost_take(&s->ghost, entry->key, &list);
}

static void s3fifo_prefetch(const struct tierce__policy *policy, uint64_t key, uint32_t slot,
                            bool near)
{
    const struct s3fifo *s = (const struct s3fifo *)(const void *)policy;
    if (near)
        return;
    if (slot != TIERCE__NO_SLOT)
        __builtin_prefetch(&s->uses[slot], 1);
    else
        tierce__ghost_prefetch(&s->ghost, key);
}

static void s3fifo_insert(struct tierce__policy *policy, uint32_t slot,
                          const struct tierce__policy_entry *entry)
{
    struct s3fifo *s = s3fifo_of(policy);
    if (!s->expects || s->expected_key != entry->key)
        s3fifo_expect(policy, entry);
    s->expects = false;
    bool to_main =
        s->expects_main || (s->fills_main && !s->has_evicted && s->bytes[SMALL] >= s->small_share);
    uint32_t list = to_main ? MAIN : SMALL;
    tierce__order_push(&s->ordered.order, slot, list);
    s->uses[slot] = 0;
    s->entries[slot] =
        (struct tierce__ghost_entry){.key = entry->key, .bytes = s->counts ? 1 : entry->bytes};
    s->bytes[list] += s->entries[slot].bytes;
}

static void s3fifo_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    struct s3fifo *s = s3fifo_of(policy);
    (void)now;
    TIERCE_ASSERT(slot < s->ordered.order.slot_count);
    TIERCE_DASSERT(tierce__order_has(&s->ordered.order, slot));
    s->uses[slot] = (uint8_t)(s->uses[slot] + (s->uses[slot] < USES_MAX));
    TIERCE_DASSERT(s->uses[slot] <= USES_MAX);
    if (s->victim == slot)
        s->victim = TIERCE__NO_SLOT;
}

static void remember(struct s3fifo *s, const struct tierce__ghost_entry *entry)
{
    if (entry->bytes > s->ghost_share)
        return;
    tierce__ghost_push(&s->ghost, 0, entry->key, entry->bytes);
    while (s->ghost.bytes[0] > s->ghost_share)
        tierce__ghost_drop_oldest(&s->ghost, 0);
    TIERCE_DASSERT(s->ghost.bytes[0] <= s->ghost_share);
}

static void s3fifo_remove(struct tierce__policy *policy, uint32_t slot, bool evicted)
{
    struct s3fifo *s = s3fifo_of(policy);
    uint32_t list = tierce__order_list_of(&s->ordered.order, slot);
    tierce__order_remove(&s->ordered.order, slot);
    TIERCE_DASSERT(s->bytes[list] >= s->entries[slot].bytes);
    s->bytes[list] -= s->entries[slot].bytes;
    if (evicted && list == SMALL)
        remember(s, &s->entries[slot]);
    if (s->victim == slot)
        s->victim = TIERCE__NO_SLOT;
}

/* Ends: each round takes one out of the small queue. */
static bool victim_of_small(struct s3fifo *s, uint32_t *slot)
{
    while (tierce__order_first(&s->ordered.order, SMALL, slot)) {
        TIERCE_DASSERT(s->uses[*slot] <= USES_MAX);
        tierce__ghost_fetch_next(&s->ghost, s->entries, &s->ordered.order, *slot);
        if (s->uses[*slot] < USES_FOR_MAIN)
            return true;
        s->uses[*slot] = 0;
        TIERCE_DASSERT(s->bytes[SMALL] >= s->entries[*slot].bytes);
        s->bytes[SMALL] -= s->entries[*slot].bytes;
        s->bytes[MAIN] += s->entries[*slot].bytes;
        tierce__order_move(&s->ordered.order, *slot, MAIN);
    }
    return false;
}

/* Ends: each round takes a use away. */
static bool victim_of_main(struct s3fifo *s, uint32_t *slot)
{
    while (tierce__order_first(&s->ordered.order, MAIN, slot)) {
        TIERCE_DASSERT(s->uses[*slot] <= USES_MAX);
        if (s->uses[*slot] == 0)
            return true;
        s->uses[*slot]--;
        tierce__order_move(&s->ordered.order, *slot, MAIN);
    }
    return false;
}

static bool choose_victim(struct s3fifo *s, uint32_t *slot)
{
    bool main_first = s->bytes[MAIN] > s->main_share || s->bytes[SMALL] == 0;
    /* Main once more after small: the entries just moved there may be the only evictable ones. */
    return (main_first && victim_of_main(s, slot)) || victim_of_small(s, slot) ||
           victim_of_main(s, slot);
}

static bool s3fifo_victim(struct tierce__policy *policy, uint64_t now, uint32_t *slot)
{
    struct s3fifo *s = s3fifo_of(policy);
    (void)now;
    s->has_evicted = true;
    bool chosen =
        s->victim != TIERCE__NO_SLOT && tierce__order_is_evictable(&s->ordered.order, s->victim);
    if (!chosen && !choose_victim(s, &s->victim))
        s->victim = TIERCE__NO_SLOT;
    if (s->victim == TIERCE__NO_SLOT)
        return false;
    *slot = s->victim;
    TIERCE_DASSERT(tierce__order_is_evictable(&s->ordered.order, *slot));
    return true;
}

static uint32_t s3fifo_run(struct tierce__flat *flat, const struct tierce__flat_uses *uses)
{
    return tierce__flat_use(flat, &tierce__policy_s3fifo_ops, uses);
}

const struct tierce__policy_ops tierce__policy_s3fifo_ops = {
    .name = "s3fifo",
    .summary = "S3-FIFO: a small queue for new entries, a main queue for those used there or "
               "stored again soon",
    .counts_uses = true,
    .create = s3fifo_create,
    .destroy = s3fifo_destroy,
    .expect = s3fifo_expect,
    .insert = s3fifo_insert,
    .touch = s3fifo_touch,
    .set_evictable = tierce__ordered_set_evictable,
    .remove = s3fifo_remove,
    .victim = s3fifo_victim,
    .prefetch = s3fifo_prefetch,
    .run = s3fifo_run,
};

static uint32_t s3fifo_lcs_run(struct tierce__flat *flat, const struct tierce__flat_uses *uses)
{
    return tierce__flat_use(flat, &tierce__policy_s3fifo_lcs_ops, uses);
}

const struct tierce__policy_ops tierce__policy_s3fifo_lcs_ops = {
    .name = "s3fifo_lcs",
    .summary = "S3-FIFO that fills its main queue too before the first eviction, as libCacheSim's",
    .counts_uses = true,
    .create = s3fifo_lcs_create,
    .destroy = s3fifo_destroy,
    .expect = s3fifo_expect,
    .insert = s3fifo_insert,
    .touch = s3fifo_touch,
    .set_evictable = tierce__ordered_set_evictable,
    .remove = s3fifo_remove,
    .victim = s3fifo_victim,
    .prefetch = s3fifo_prefetch,
    .run = s3fifo_lcs_run,
};
