/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_POLICY_RING_H
#define TIERCE_POLICY_RING_H

#include "base/assert.h"
#include "core/policy/policy.h"

/*
 * Lists of slots whose links are members of the policy's records, so that they share a cache line
 * with the other data of a use. A slot is in at most one list. A list is a ring, known by its
 * oldest slot; NO_SLOT: empty.
 */
struct tierce__ring_link {
    uint32_t newer, older;
};

struct tierce__ring_links {
    void *first;   /* the link of slot 0 */
    size_t stride; /* bytes of a record */
};

static inline struct tierce__ring_link *tierce__ring_at(struct tierce__ring_links links,
                                                        uint32_t slot)
{
    return (struct tierce__ring_link *)(void *)((char *)links.first + slot * links.stride);
}

/* Adds a slot as the newest, or the oldest. True: the list was empty. */
static inline bool tierce__ring_add(struct tierce__ring_links links, uint32_t *oldest,
                                    uint32_t slot, bool older)
{
    struct tierce__ring_link *link = tierce__ring_at(links, slot);
    if (*oldest == TIERCE__NO_SLOT) {
        link->newer = link->older = slot;
        *oldest = slot;
        return true;
    }
    struct tierce__ring_link *first = tierce__ring_at(links, *oldest);
    link->newer = *oldest;
    link->older = first->older;
    tierce__ring_at(links, first->older)->newer = slot;
    first->older = slot;
    if (older)
        *oldest = slot;
    return false;
}

/* True: the list is empty now. */
static inline bool tierce__ring_remove(struct tierce__ring_links links, uint32_t *oldest,
                                       uint32_t slot)
{
    const struct tierce__ring_link *link = tierce__ring_at(links, slot);
    TIERCE_DASSERT(*oldest != TIERCE__NO_SLOT);
    if (link->newer == slot) {
        TIERCE_DASSERT(*oldest == slot);
        *oldest = TIERCE__NO_SLOT;
        return true;
    }
    tierce__ring_at(links, link->newer)->older = link->older;
    tierce__ring_at(links, link->older)->newer = link->newer;
    if (*oldest == slot)
        *oldest = link->newer;
    return false;
}

/* *slot = the newest. False: the list is empty. */
static inline bool tierce__ring_newest(struct tierce__ring_links links, uint32_t oldest,
                                       uint32_t *slot)
{
    if (oldest == TIERCE__NO_SLOT)
        return false;
    *slot = tierce__ring_at(links, oldest)->older;
    return true;
}

#endif
