/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/flat.h"
#include "core/policy/ghost.h"
#include "core/policy/order.h"
#include "core/policy/policy_private.h"

#include <errno.h>

/*
 * ARC (Megiddo and Modha, 2003). Entries used once are in the order ONCE (T1), entries used again
 * in AGAIN (T2). Each has a ghost list of recently evicted keys (B1, B2). A key that returns from a
 * ghost list shows that its order was too short, and shifts the target share of ONCE for the next
 * evictions. Sizes are in the unit of the capacity, and a step of the share is as big as the entry
 * that causes it; for entries of size 1 this is the published algorithm, with a real-valued share.
 *
 * The share moves when an insert is announced, before the evictions that make room for it. Without
 * an announcement it moves at the insert, which evictions follow one entry late.
 */

enum { ONCE, AGAIN };

struct arc {
    struct tierce__ordered ordered;      /* lists ONCE and AGAIN */
    struct tierce__ghost_entry *entries; /* [slot_count] */
    struct tierce__ghost ghost;          /* lists ONCE and AGAIN */
    uint64_t bytes[2];
    uint64_t capacity;
    double once_share; /* bytes that ONCE is to have; p in the paper */
    bool counts;       /* no capacity was given: entries have size 1 */
    bool expects;      /* an insert was announced */
    bool expects_known;
    bool expects_again; /* its key came from the ghost of AGAIN */
    uint64_t expected_key;
};

static struct arc *arc_of(struct tierce__policy *policy)
{
    (void)tierce__order_of(policy);
    return (struct arc *)(void *)policy;
}

static void arc_destroy(struct tierce__policy *policy)
{
    if (policy == NULL)
        return;
    struct arc *arc = arc_of(policy);
    tierce__ghost_fini(&arc->ghost);
    tierce__free(arc->entries);
    tierce__ordered_destroy(policy);
}

static int arc_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    struct tierce__policy *policy;
    int rc = tierce__ordered_create(&policy, sizeof(struct arc), &tierce__policy_arc_ops, opts, 2,
                                    false);
    if (rc < 0)
        return rc;
    struct arc *arc = arc_of(policy);
    arc->counts = opts->capacity == 0;
    arc->capacity = opts->capacity > 0 ? opts->capacity : opts->slot_count;
    arc->entries = tierce__calloc(opts->slot_count, sizeof(*arc->entries));
    /* A full directory has as many keys as entries, and one more before an insert trims it. */
    rc = tierce__ghost_init(&arc->ghost, opts->slot_count + 1, opts->key_count);
    if (arc->entries == NULL)
        rc = -ENOMEM;
    tierce__advise_huge(arc->entries, opts->slot_count * sizeof(*arc->entries));
    if (rc < 0) {
        arc_destroy(policy);
        return rc;
    }
    *out = policy;
    return 0;
}

static uint64_t bytes_of(const struct arc *arc, const struct tierce__policy_entry *entry)
{
    return arc->counts ? 1 : entry->bytes;
}

/* A key came back from a ghost, which still counts it. */
static void shift_share(struct arc *arc, uint64_t bytes, uint32_t from)
{
    TIERCE_DASSERT(from == ONCE || from == AGAIN);
    double own = (double)arc->ghost.bytes[from], other = (double)arc->ghost.bytes[!from];
    double step = (double)bytes * (other > own && own > 0 ? other / own : 1);
    arc->once_share += from == ONCE ? step : -step;
    if (arc->once_share > (double)arc->capacity)
        arc->once_share = (double)arc->capacity;
    if (arc->once_share < 0)
        arc->once_share = 0;
    TIERCE_DASSERT(arc->once_share >= 0 && arc->once_share <= (double)arc->capacity);
}

static void arc_expect(struct tierce__policy *policy, const struct tierce__policy_entry *entry)
{
    struct arc *arc = arc_of(policy);
    uint32_t list = ONCE;
    arc->expects = true;
    arc->expected_key = entry->key;
    arc->expects_known = tierce__ghost_find(&arc->ghost, entry->key, &list);
    arc->expects_again = arc->expects_known && list == AGAIN;
    if (arc->expects_known) {
        shift_share(arc, bytes_of(arc, entry), list);
        tierce__ghost_take(&arc->ghost, entry->key, &list);
    }
}

/* Makes room in the directory for a key that is new to it. */
static void trim_ghosts(struct arc *arc, uint64_t bytes)
{
    const uint64_t *here = arc->bytes, *gone = arc->ghost.bytes;
    while (here[ONCE] + gone[ONCE] + bytes > arc->capacity &&
           tierce__ghost_drop_oldest(&arc->ghost, ONCE))
        continue;
    while (here[ONCE] + gone[ONCE] + here[AGAIN] + gone[AGAIN] + bytes > 2 * arc->capacity &&
           tierce__ghost_drop_oldest(&arc->ghost, AGAIN))
        continue;
}

static void arc_insert(struct tierce__policy *policy, uint32_t slot,
                       const struct tierce__policy_entry *entry)
{
    struct arc *arc = arc_of(policy);
    uint64_t bytes = bytes_of(arc, entry);
    if (!arc->expects || arc->expected_key != entry->key)
        arc_expect(policy, entry);
    arc->expects = false;
    arc->expects_again = false;
    if (!arc->expects_known)
        trim_ghosts(arc, bytes);
    uint32_t list = arc->expects_known ? AGAIN : ONCE;
    tierce__order_push(&arc->ordered.order, slot, list);
    arc->entries[slot] = (struct tierce__ghost_entry){.key = entry->key, .bytes = bytes};
    arc->bytes[list] += bytes;
}

static void arc_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    struct arc *arc = arc_of(policy);
    struct tierce__order *order = &arc->ordered.order;
    (void)now;
    TIERCE_ASSERT(tierce__order_has(order, slot));
    if (tierce__order_list_of(order, slot) == ONCE) {
        TIERCE_DASSERT(arc->bytes[ONCE] >= arc->entries[slot].bytes);
        arc->bytes[ONCE] -= arc->entries[slot].bytes;
        arc->bytes[AGAIN] += arc->entries[slot].bytes;
    }
    tierce__order_move(order, slot, AGAIN);
}

static void arc_remove(struct tierce__policy *policy, uint32_t slot, bool evicted)
{
    struct arc *arc = arc_of(policy);
    TIERCE_ASSERT(tierce__order_has(&arc->ordered.order, slot));
    uint32_t list = tierce__order_list_of(&arc->ordered.order, slot);
    tierce__order_remove(&arc->ordered.order, slot);
    TIERCE_DASSERT(arc->bytes[list] >= arc->entries[slot].bytes);
    arc->bytes[list] -= arc->entries[slot].bytes;
    if (evicted)
        tierce__ghost_push(&arc->ghost, list, arc->entries[slot].key, arc->entries[slot].bytes);
}

static void arc_prefetch(const struct tierce__policy *policy, uint64_t key, uint32_t slot,
                         bool near)
{
    const struct arc *arc = (const struct arc *)(const void *)policy;
    const struct tierce__order *order = &arc->ordered.order;
    if (slot != TIERCE__NO_SLOT) {
        tierce__order_prefetch(order, slot, near);
        if (near && tierce__order_list_of(order, slot) == ONCE)
            __builtin_prefetch(&arc->entries[slot]);
    } else if (!near) {
        tierce__ghost_prefetch(&arc->ghost, key);
    }
}

static bool arc_victim(struct tierce__policy *policy, uint64_t now, uint32_t *slot)
{
    struct arc *arc = arc_of(policy);
    (void)now;
    double once = (double)arc->bytes[ONCE];
    bool from_once = once > arc->once_share || (arc->expects_again && !(once < arc->once_share));
    struct tierce__order *order = &arc->ordered.order;
    if (!tierce__order_first(order, from_once ? ONCE : AGAIN, slot) &&
        !tierce__order_first(order, from_once ? AGAIN : ONCE, slot))
        return false;
    TIERCE_DASSERT(tierce__order_is_evictable(order, *slot));
    tierce__ghost_fetch_next(&arc->ghost, arc->entries, order, *slot);
    return true;
}

static uint32_t arc_run(struct tierce__flat *flat, const struct tierce__flat_uses *uses)
{
    return tierce__flat_use(flat, &tierce__policy_arc_ops, uses);
}

const struct tierce__policy_ops tierce__policy_arc_ops = {
    .name = "arc",
    .summary =
        "ARC: balances blocks used once against blocks used again, adapting to recurring misses",
    .counts_uses = true,
    .create = arc_create,
    .destroy = arc_destroy,
    .expect = arc_expect,
    .insert = arc_insert,
    .touch = arc_touch,
    .set_evictable = tierce__ordered_set_evictable,
    .remove = arc_remove,
    .victim = arc_victim,
    .prefetch = arc_prefetch,
    .run = arc_run,
};
