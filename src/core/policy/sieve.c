/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/flat.h"
#include "core/policy/heap.h"
#include "core/policy/policy_private.h"

#include <errno.h>

/*
 * SIEVE. One list in the order of insertion and a hand that walks from the oldest to the newest
 * and restarts. A use sets a bit; the hand clears bits and stops at the first entry that has
 * none. A use is one store into an array of a byte per slot.
 *
 * An entry that the hand selects but that is not evictable is set aside, so that no later walk
 * visits it. When it becomes evictable, it waits under the hand, in the order of setting aside: if
 * it was used since, its bit is cleared and it returns to the list, right behind the hand; if not,
 * it is the victim.
 */

#define SIEVE_MAGIC 0x53495631u

enum { SLOT_IN = 1, SLOT_EVICTABLE = 2, SLOT_USED = 4, SLOT_ASIDE = 8 };

struct sieve_link {
    uint32_t newer, older;
};

struct sieve {
    struct tierce__policy base;
    uint32_t magic;
    uint32_t slot_count;
    struct sieve_link *links; /* [slot_count + 1], the last one closes the circle */
    uint8_t *flags;           /* [slot_count] */
    uint32_t hand;            /* where the next search begins; slot_count: at the oldest */
    struct tierce__heap aside;
    uint64_t *asides; /* [slot_count] number of the putting aside, of those that are */
    uint64_t aside_next;
    uint64_t walks; /* of the hand, that began at the oldest */
};

static struct sieve *sieve_of(struct tierce__policy *policy)
{
    struct sieve *sieve = (struct sieve *)(void *)policy;
    TIERCE_CHECK_MAGIC(sieve, SIEVE_MAGIC);
    return sieve;
}

/* Links a slot right behind another (or behind the circle's end: as the newest). */
static void link_behind(struct sieve *sieve, uint32_t slot, uint32_t newer)
{
    TIERCE_DASSERT(slot < sieve->slot_count && newer <= sieve->slot_count);
    uint32_t older = sieve->links[newer].older;
    TIERCE_DASSERT(sieve->links[older].newer == newer);
    sieve->links[slot] = (struct sieve_link){.newer = newer, .older = older};
    sieve->links[older].newer = slot;
    sieve->links[newer].older = slot;
}

static void unlink_slot(struct sieve *sieve, uint32_t slot)
{
    TIERCE_DASSERT(slot < sieve->slot_count && (sieve->flags[slot] & SLOT_ASIDE) == 0);
    struct sieve_link link = sieve->links[slot];
    TIERCE_DASSERT(sieve->links[link.newer].older == slot &&
                   sieve->links[link.older].newer == slot);
    sieve->links[link.newer].older = link.older;
    sieve->links[link.older].newer = link.newer;
    if (sieve->hand == slot)
        sieve->hand = link.newer;
}

static void sieve_destroy(struct tierce__policy *policy)
{
    if (policy == NULL)
        return;
    struct sieve *sieve = sieve_of(policy);
    sieve->magic = 0;
    tierce__heap_fini(&sieve->aside);
    tierce__free(sieve->asides);
    tierce__free(sieve->flags);
    tierce__free(sieve->links);
    tierce__free(sieve);
}

static int sieve_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    if (!tierce__policy_opts_good(opts))
        return TIERCE_E_ARGUMENT;
    struct sieve *sieve = tierce__calloc(1, sizeof(*sieve));
    if (sieve == NULL)
        return -ENOMEM;
    uint32_t count = opts->slot_count;
    sieve->base.ops = &tierce__policy_sieve_ops;
    sieve->magic = SIEVE_MAGIC;
    sieve->slot_count = count;
    sieve->hand = count;
    sieve->links = tierce__calloc((size_t)count + 1, sizeof(*sieve->links));
    sieve->flags = tierce__calloc(count, sizeof(*sieve->flags));
    sieve->asides = tierce__calloc(count, sizeof(*sieve->asides));
    int rc = tierce__heap_init(&sieve->aside, count);
    if (sieve->links == NULL || sieve->flags == NULL || sieve->asides == NULL)
        rc = -ENOMEM;
    if (rc < 0) {
        sieve_destroy(&sieve->base);
        return rc;
    }
    sieve->links[count] = (struct sieve_link){.newer = count, .older = count};
    tierce__advise_huge(sieve->links, ((size_t)count + 1) * sizeof(*sieve->links));
    *out = &sieve->base;
    return 0;
}

static void sieve_insert(struct tierce__policy *policy, uint32_t slot,
                         const struct tierce__policy_entry *entry)
{
    struct sieve *sieve = sieve_of(policy);
    (void)entry;
    TIERCE_ASSERT(slot < sieve->slot_count && sieve->flags[slot] == 0);
    sieve->flags[slot] = SLOT_IN | SLOT_EVICTABLE;
    link_behind(sieve, slot, sieve->slot_count);
}

static void sieve_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    struct sieve *sieve = sieve_of(policy);
    (void)now;
    TIERCE_ASSERT(slot < sieve->slot_count && sieve->flags[slot] != 0);
    sieve->flags[slot] |= SLOT_USED;
}

static void sieve_set_evictable(struct tierce__policy *policy, uint32_t slot, bool evictable)
{
    struct sieve *sieve = sieve_of(policy);
    TIERCE_ASSERT(slot < sieve->slot_count && sieve->flags[slot] != 0);
    unsigned flags = sieve->flags[slot];
    if (((flags & SLOT_EVICTABLE) != 0) == evictable)
        return;
    if ((flags & SLOT_ASIDE) != 0 && evictable)
        tierce__heap_insert(&sieve->aside, slot,
                            (struct tierce__rank){.major = sieve->asides[slot]});
    else if ((flags & SLOT_ASIDE) != 0)
        tierce__heap_remove(&sieve->aside, slot);
    sieve->flags[slot] = (uint8_t)(flags ^ SLOT_EVICTABLE);
}

static void sieve_remove(struct tierce__policy *policy, uint32_t slot, bool evicted)
{
    struct sieve *sieve = sieve_of(policy);
    (void)evicted;
    TIERCE_ASSERT(slot < sieve->slot_count && sieve->flags[slot] != 0);
    if ((sieve->flags[slot] & SLOT_ASIDE) == 0)
        unlink_slot(sieve, slot);
    else if ((sieve->flags[slot] & SLOT_EVICTABLE) != 0)
        tierce__heap_remove(&sieve->aside, slot);
    sieve->flags[slot] = 0;
}

/* The first under the hand that was not used since it was put aside. */
static bool aside_victim(struct sieve *sieve, uint32_t *slot)
{
    while (sieve->aside.count > 0) {
        uint32_t top = sieve->aside.items[0].slot;
        TIERCE_DASSERT((sieve->flags[top] & SLOT_ASIDE) != 0 &&
                       (sieve->flags[top] & SLOT_EVICTABLE) != 0);
        if ((sieve->flags[top] & SLOT_USED) == 0) {
            *slot = top;
            return true;
        }
        tierce__heap_remove(&sieve->aside, top);
        sieve->flags[top] &= (uint8_t) ~(SLOT_USED | SLOT_ASIDE);
        link_behind(sieve, top, sieve->hand);
    }
    return false;
}

static void put_aside(struct sieve *sieve, uint32_t slot)
{
    TIERCE_DASSERT((sieve->flags[slot] & SLOT_EVICTABLE) == 0);
    unlink_slot(sieve, slot);
    TIERCE_DASSERT(sieve->hand != slot);
    sieve->flags[slot] |= SLOT_ASIDE;
    sieve->asides[slot] = sieve->aside_next++;
}

static bool sieve_victim(struct tierce__policy *policy, uint64_t now, uint32_t *slot)
{
    struct sieve *sieve = sieve_of(policy);
    (void)now;
    if (aside_victim(sieve, slot))
        return true;
    /* Terminates: a lap clears all bits, and an entry without a bit is evicted or set aside. */
    for (;;) {
        uint32_t at = sieve->hand;
        if (at == sieve->slot_count) {
            at = sieve->links[at].newer;
            sieve->walks += at != sieve->slot_count;
        }
        if (at == sieve->slot_count)
            return false;
        TIERCE_DASSERT(at < sieve->slot_count && (sieve->flags[at] & SLOT_ASIDE) == 0);
        sieve->hand = at;
        if ((sieve->flags[at] & SLOT_USED) != 0) {
            sieve->flags[at] &= (uint8_t)~SLOT_USED;
            sieve->hand = sieve->links[at].newer;
        } else if ((sieve->flags[at] & SLOT_EVICTABLE) == 0) {
            put_aside(sieve, at);
        } else {
            *slot = at;
            return true;
        }
    }
}

static uint64_t sieve_wraps(const struct tierce__policy *policy)
{
    const struct sieve *sieve = (const struct sieve *)(const void *)policy;
    TIERCE_CHECK_MAGIC(sieve, SIEVE_MAGIC);
    return sieve->walks > 0 ? sieve->walks - 1 : 0;
}

static uint32_t sieve_run(struct tierce__flat *flat, const struct tierce__flat_uses *uses)
{
    return tierce__flat_use(flat, &tierce__policy_sieve_ops, uses);
}

const struct tierce__policy_ops tierce__policy_sieve_ops = {
    .name = "sieve",
    .summary = "SIEVE: a hand moves from old to new and evicts the first entry not used since its "
               "last pass",
    .counts_uses = true,
    .create = sieve_create,
    .destroy = sieve_destroy,
    .insert = sieve_insert,
    .touch = sieve_touch,
    .set_evictable = sieve_set_evictable,
    .remove = sieve_remove,
    .victim = sieve_victim,
    .wraps = sieve_wraps,
    .run = sieve_run,
};
