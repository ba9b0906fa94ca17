/* SPDX-License-Identifier: Apache-2.0 */
#include "store/siblings.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"

#include <errno.h>

/* Slots of a list that a search looks at: a bound where very many chunks share a first block. */
#define LOOKED_AT_MAX 64u

#define HEAD (UINT32_C(1) << 31) /* in `prev`: the predecessor is a head, with its number */

struct sibling_place {
    uint32_t tag;
    uint32_t next; /* slot + 1; 0: the last */
    uint32_t prev; /* slot + 1, or HEAD and the number of the head; 0: not in a list */
};

struct tierce__siblings {
    uint32_t slot_count;
    uint32_t head_mask;
    uint32_t *heads; /* [head_mask + 1] slot + 1; 0: empty */
    struct sibling_place places[];
};

int tierce__siblings_create(struct tierce__siblings **out, uint32_t slot_count)
{
    if (slot_count == 0 || slot_count >= HEAD)
        return TIERCE_E_ARGUMENT;
    uint32_t heads = 1;
    while (heads < slot_count)
        heads *= 2;
    TIERCE_DASSERT(heads >= slot_count && (heads & (heads - 1)) == 0);
    struct tierce__siblings *siblings =
        tierce__calloc(1, sizeof(*siblings) + (size_t)slot_count * sizeof(struct sibling_place));
    if (siblings == NULL)
        return -ENOMEM;
    siblings->heads = tierce__calloc(heads, sizeof(*siblings->heads));
    if (siblings->heads == NULL) {
        tierce__free(siblings);
        return -ENOMEM;
    }
    tierce__advise_huge(siblings->places, (size_t)slot_count * sizeof(struct sibling_place));
    tierce__advise_huge(siblings->heads, (size_t)heads * sizeof(*siblings->heads));
    siblings->slot_count = slot_count;
    siblings->head_mask = heads - 1;
    *out = siblings;
    return 0;
}

void tierce__siblings_destroy(struct tierce__siblings *siblings)
{
    if (siblings == NULL)
        return;
    tierce__free(siblings->heads);
    tierce__free(siblings);
}

static uint64_t spread_of(const struct tierce__key *first)
{
    return tierce__spread(tierce__key_spread(first));
}

static uint32_t tag_of(uint64_t spread)
{
    return (uint32_t)spread;
}

static uint32_t head_of(const struct tierce__siblings *siblings, uint64_t spread)
{
    TIERCE_DASSERT((siblings->head_mask & (siblings->head_mask + 1)) == 0);
    return (uint32_t)(spread >> 32) & siblings->head_mask;
}

void tierce__siblings_add(struct tierce__siblings *siblings, uint32_t slot,
                          const struct tierce__key *key,
                          const uint8_t first_block[TIERCE_HASH_BYTES])
{
    struct tierce__key first = *key;
    memcpy(first.hash, first_block, sizeof(first.hash));
    uint64_t spread = spread_of(&first);
    uint32_t head = head_of(siblings, spread), next = siblings->heads[head];
    TIERCE_ASSERT(slot < siblings->slot_count);
    TIERCE_ASSERT(siblings->places[slot].prev == 0);
    TIERCE_DASSERT(next <= siblings->slot_count);
    TIERCE_DASSERT(next == 0 || siblings->places[next - 1].prev == (HEAD | head));
    siblings->places[slot] =
        (struct sibling_place){.tag = tag_of(spread), .next = next, .prev = HEAD | head};
    if (next != 0)
        siblings->places[next - 1].prev = slot + 1;
    siblings->heads[head] = slot + 1;
}

void tierce__siblings_remove(struct tierce__siblings *siblings, uint32_t slot)
{
    TIERCE_ASSERT(slot < siblings->slot_count);
    struct sibling_place *place = &siblings->places[slot];
    if (place->prev == 0)
        return;
    TIERCE_DASSERT(place->next == 0 || siblings->places[place->next - 1].prev == slot + 1);
    TIERCE_DASSERT(place->next <= siblings->slot_count && place->next != slot + 1);
    TIERCE_DASSERT((place->prev & HEAD) == 0 || siblings->heads[place->prev & ~HEAD] == slot + 1);
    TIERCE_DASSERT((place->prev & HEAD) != 0 || siblings->places[place->prev - 1].next == slot + 1);
    if (place->next != 0)
        siblings->places[place->next - 1].prev = place->prev;
    if ((place->prev & HEAD) != 0)
        siblings->heads[place->prev & ~HEAD] = place->next;
    else
        siblings->places[place->prev - 1].next = place->next;
    *place = (struct sibling_place){0};
}

size_t tierce__siblings_find(const struct tierce__siblings *siblings, uint32_t *slots, size_t room,
                             const struct tierce__key *first)
{
    uint64_t spread = spread_of(first);
    uint32_t tag = tag_of(spread), at = siblings->heads[head_of(siblings, spread)];
    size_t found = 0;
    for (uint32_t i = 0; at != 0 && found < room && i < LOOKED_AT_MAX; i++) {
        TIERCE_DASSERT(at <= siblings->slot_count);
        const struct sibling_place *place = &siblings->places[at - 1];
        TIERCE_DASSERT(place->prev != 0);
        TIERCE_DASSERT(place->next <= siblings->slot_count && place->next != at);
        if (place->tag == tag)
            slots[found++] = at - 1;
        at = place->next;
    }
    TIERCE_DASSERT(found <= room);
    return found;
}
