/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/tier_store.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <string.h>

int tierce__tier_store_init(struct tierce__tier_store *store, const struct tierce__policy_ops *ops,
                            const struct tierce__policy_opts *opts, uint32_t distinct,
                            bool has_costs)
{
    struct tierce__policy_opts full = *opts;
    *store = (struct tierce__tier_store){
        .ops = ops,
        .capacity = ops != NULL ? opts->capacity : UINT64_MAX,
        .slots = distinct > 0 ? distinct : 1,
        .free_slot = TIERCE__NO_SLOT,
    };
    if (!has_costs && store->capacity < store->slots)
        store->slots = (uint32_t)store->capacity;
    full.slot_count = store->slots;
    store->slot_of = tierce__alloc(((size_t)distinct + 1) * sizeof(*store->slot_of));
    store->block_in = tierce__alloc((size_t)store->slots * sizeof(*store->block_in));
    if (has_costs)
        store->cost_in = tierce__alloc((size_t)store->slots * sizeof(*store->cost_in));
    if (store->slot_of == NULL || store->block_in == NULL || (has_costs && store->cost_in == NULL))
        return -ENOMEM;
    memset(store->slot_of, 0xff, ((size_t)distinct + 1) * sizeof(*store->slot_of));
    return ops != NULL ? ops->create(&store->policy, &full) : 0;
}

void tierce__tier_store_fini(struct tierce__tier_store *store)
{
    if (store->policy != NULL)
        store->ops->destroy(store->policy);
    tierce__free(store->slot_of);
    tierce__free(store->block_in);
    tierce__free(store->cost_in);
    *store = (struct tierce__tier_store){0};
}

void tierce__tier_store_touch(struct tierce__tier_store *store, uint32_t block)
{
    if (store->policy != NULL)
        store->ops->touch(store->policy, store->slot_of[block], store->now);
}

void tierce__tier_store_hold(struct tierce__tier_store *store, uint32_t block, bool held)
{
    if (store->policy != NULL)
        store->ops->set_evictable(store->policy, store->slot_of[block], !held);
}

static uint32_t take_out(struct tierce__tier_store *store, uint32_t slot)
{
    uint32_t block = store->block_in[slot];
    store->used -= tierce__tier_store_cost(store, block);
    store->ops->remove(store->policy, slot, true);
    store->slot_of[block] = TIERCE__NO_SLOT;
    store->block_in[slot] = store->free_slot;
    store->free_slot = slot;
    return block;
}

bool tierce__tier_store_evict(struct tierce__tier_store *store, uint32_t *block)
{
    uint32_t slot;
    if (store->policy == NULL || !store->ops->victim(store->policy, store->now, &slot))
        return false;
    *block = take_out(store, slot);
    return true;
}

bool tierce__tier_store_expire(struct tierce__tier_store *store, uint32_t *block)
{
    uint32_t slot;
    if (store->policy == NULL || !tierce__policy_expired(store->policy, store->now, &slot))
        return false;
    *block = take_out(store, slot);
    return true;
}

static struct tierce__policy_entry entry_of(const struct tierce__tier_store *store, uint32_t block,
                                            uint64_t cost, uint32_t parent)
{
    return (struct tierce__policy_entry){
        .key = block,
        .bytes = cost,
        .now = store->now,
        .parent = parent == TIERCE__NO_SLOT ? TIERCE__NO_SLOT : store->slot_of[parent],
    };
}

void tierce__tier_store_expect(struct tierce__tier_store *store, uint32_t block, uint64_t cost,
                               uint32_t parent)
{
    struct tierce__policy_entry entry = entry_of(store, block, cost, parent);
    if (store->policy != NULL)
        tierce__policy_expect(store->policy, &entry);
}

void tierce__tier_store_put(struct tierce__tier_store *store, uint32_t block, uint64_t cost,
                            uint32_t parent)
{
    struct tierce__policy_entry entry = entry_of(store, block, cost, parent);
    uint32_t slot = store->free_slot;
    if (slot == TIERCE__NO_SLOT)
        slot = store->fresh++;
    else
        store->free_slot = store->block_in[slot];
    TIERCE_ASSERT(slot < store->slots);
    store->slot_of[block] = slot;
    store->block_in[slot] = block;
    if (store->cost_in != NULL)
        store->cost_in[slot] = cost;
    if (store->policy != NULL)
        store->ops->insert(store->policy, slot, &entry);
    store->used += cost;
}
