/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy/flat.h"
#include "base/assert.h"
#include "base/alloc.h"

#include <errno.h>
#include <string.h>

int tierce__flat_init(struct tierce__flat *flat, const struct tierce__flat_opts *opts)
{
    TIERCE_DASSERT(opts->key_count >= 1 && opts->capacity >= 1);
    *flat = (struct tierce__flat){.capacity = opts->capacity,
                                  .evicts_inner = opts->evicts_inner,
                                  .free_slot = TIERCE__NO_SLOT,
                                  .slots = opts->key_count};
    if (!opts->in_bytes && opts->policy != NULL && opts->capacity < flat->slots)
        flat->slots = (uint32_t)opts->capacity;
    size_t slot_of_bytes = opts->key_count * sizeof(*flat->slot_of);
    flat->slot_of = tierce__alloc(slot_of_bytes);
    flat->key_in = tierce__alloc((size_t)flat->slots * sizeof(*flat->key_in));
    if (opts->in_bytes)
        flat->bytes_in = tierce__alloc((size_t)flat->slots * sizeof(*flat->bytes_in));
    if (flat->slot_of == NULL || flat->key_in == NULL || (opts->in_bytes && flat->bytes_in == NULL))
        return -ENOMEM;
    tierce__advise_huge(flat->slot_of, slot_of_bytes);
    memset(flat->slot_of, 0xff, slot_of_bytes);
    if (opts->policy == NULL)
        return 0;
    return opts->policy->create(&flat->policy, &(struct tierce__policy_opts){
                                                   .size = sizeof(struct tierce__policy_opts),
                                                   .slot_count = flat->slots,
                                                   .capacity = opts->capacity,
                                                   .seed = opts->seed,
                                                   .ttl = opts->ttl,
                                                   .samples = opts->samples,
                                                   .key_count = opts->key_count,
                                                   .ops = opts->policy,
                                               });
}

void tierce__flat_fini(struct tierce__flat *flat)
{
    if (flat->policy != NULL)
        flat->policy->ops->destroy(flat->policy);
    tierce__free(flat->slot_of);
    tierce__free(flat->key_in);
    tierce__free(flat->bytes_in);
    *flat = (struct tierce__flat){0};
}

uint32_t tierce__flat_run(struct tierce__flat *flat, const struct tierce__flat_uses *uses)
{
    const struct tierce__policy_ops *ops = flat->policy != NULL ? flat->policy->ops : NULL;
    return ops != NULL && ops->run != NULL ? ops->run(flat, uses)
                                           : tierce__flat_use(flat, ops, uses);
}

void tierce__flat_skip(struct tierce__flat *flat, uint32_t key)
{
    TIERCE_DASSERT(flat->slot_of[key] == TIERCE__NO_SLOT);
    struct tierce__policy_entry entry = tierce__flat_entry(flat, key, 1, TIERCE__NO_SLOT);
    tierce__policy_skip(flat->policy, &entry);
}

void tierce__flat_expire(struct tierce__flat *flat)
{
    uint32_t slot;
    while (flat->policy != NULL && tierce__policy_expired(flat->policy, flat->now, &slot)) {
        tierce__flat_let_go(flat, flat->policy->ops, slot);
        flat->expired++;
    }
}
