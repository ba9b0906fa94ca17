/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/store/storing.h"

#include "base/assert.h"

void tierce__storing_init(struct tierce__storing *storing)
{
    tierce__lock_init(&storing->lock, TIERCE__LOCK_STORING);
    for (size_t i = 0; i < TIERCE__STORING_BINS; i++)
        tierce__list_init(&storing->bins[i]);
}

void tierce__storing_fini(struct tierce__storing *storing)
{
    for (size_t i = 0; i < TIERCE__STORING_BINS; i++)
        TIERCE_ASSERT(tierce__list_empty(&storing->bins[i]));
    tierce__lock_fini(&storing->lock);
}

static struct tierce__list *bin_of(struct tierce__storing *storing, const struct tierce__key *key)
{
    return &storing->bins[tierce__key_spread(key) % TIERCE__STORING_BINS];
}

/* Under the lock. */
static struct tierce__claim *find_claim(struct tierce__storing *storing,
                                        const struct tierce__key *key)
{
    tierce__lock_assert_held(&storing->lock);
    TIERCE__LIST_FOR_EACH (it, bin_of(storing, key)) {
        struct tierce__claim *claim = TIERCE__CONTAINER_OF(it, struct tierce__claim, node);
        if (tierce__key_equal(&claim->key, key))
            return claim;
    }
    return NULL;
}

static void move_all(struct tierce__list *to, struct tierce__list *from)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, from) {
        tierce__list_remove(it);
        tierce__list_push_back(to, it);
    }
}

bool tierce__claim_take(struct tierce__storing *storing, struct tierce__claim *claim,
                        const struct tierce__key *key)
{
    claim->key = *key;
    tierce__list_init(&claim->node);
    tierce__list_init(&claim->parked);
    tierce__lock_take(&storing->lock);
    bool mine = find_claim(storing, key) == NULL;
    if (mine)
        tierce__list_push_back(bin_of(storing, key), &claim->node);
    tierce__lock_drop(&storing->lock);
    return mine;
}

void tierce__claim_end(struct tierce__storing *storing, struct tierce__claim *claim,
                       struct tierce__list *ready)
{
    tierce__lock_take(&storing->lock);
    TIERCE_DASSERT(!tierce__list_empty(&claim->node) || tierce__list_empty(&claim->parked));
    tierce__list_remove(&claim->node);
    move_all(ready, &claim->parked);
    TIERCE_DASSERT(tierce__list_empty(&claim->parked));
    tierce__lock_drop(&storing->lock);
}

bool tierce__claim_park(struct tierce__storing *storing, const struct tierce__key *key,
                        struct tierce__parked *parked)
{
    TIERCE_DASSERT(parked->deadline_ns > 0);
    TIERCE_DASSERT(parked->node.next == NULL || tierce__list_empty(&parked->node));
    tierce__lock_take(&storing->lock);
    struct tierce__claim *claim = find_claim(storing, key);
    if (claim != NULL)
        tierce__list_push_back(&claim->parked, &parked->node);
    tierce__lock_drop(&storing->lock);
    return claim != NULL;
}

void tierce__storing_expire(struct tierce__storing *storing, uint64_t now_ns,
                            struct tierce__list *late)
{
    tierce__lock_take(&storing->lock);
    for (size_t i = 0; i < TIERCE__STORING_BINS; i++) {
        TIERCE__LIST_FOR_EACH (it, &storing->bins[i]) {
            struct tierce__claim *claim = TIERCE__CONTAINER_OF(it, struct tierce__claim, node);
            TIERCE__LIST_FOR_EACH_SAFE (p, after, &claim->parked) {
                if (TIERCE__CONTAINER_OF(p, struct tierce__parked, node)->deadline_ns > now_ns)
                    continue;
                tierce__list_remove(p);
                tierce__list_push_back(late, p);
            }
        }
    }
    tierce__lock_drop(&storing->lock);
}
