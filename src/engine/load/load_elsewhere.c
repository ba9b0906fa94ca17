/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk whose tier fails is read from the next tier that has it. */
#include "base/clock.h"
#include "engine/load/load_lease_private.h"
#include "engine/own_tiers.h"

/* A level that has the chunk and is not in `tried`; 0: there is none, or no time is left. */
static uint32_t next_level(const struct tierce__own_lease *lease, size_t i, uint32_t tried)
{
    uint8_t place = 0;
    uint64_t soon_ns = tierce__deadline_in_ms(lease->engine->settings.lookup_ms);
    struct tierce__search search = {.levels = lease->levels & ~tried,
                                    .deadline_ns =
                                        soon_ns < lease->deadline_ns ? soon_ns : lease->deadline_ns,
                                    .believes_old = true,
                                    .places = &place};
    if (search.levels == 0 || tierce__now_ns() >= lease->deadline_ns)
        return 0;
    size_t found =
        tierce__storage_search_until(lease->engine, &search, tierce__lease_key(lease, i), 1);
    return found == 1 ? place : 0;
}

bool tierce__lease_read_elsewhere(struct tierce__own_lease *lease, size_t i, uint32_t layer)
{
    struct tierce__lease_chunk *chunk = &lease->chunks[i];
    uint32_t tried = 1; /* memory: a join looks there */
    bool may = lease->follows && layer == lease->part.first_layer;
    while (may && !tierce__fetch_lives(&lease->waiters[i])) {
        tried |= 1u << chunk->level;
        uint32_t level = next_level(lease, i, tried);
        if (level == 0)
            break;
        tried |= 1u << level; /* the join may find another load's fetch, from a level before */
        tierce__lease_let_go(lease, i);
        chunk->level = level;
        tierce__lease_join(lease, i, NULL);
        if (tierce__lease_waiter(lease, i) == NULL)
            return lease->bufs[i] != NULL; /* memory has it by now, or has no room */
        for (uint32_t s = 0; s < tierce__lease_shape(lease, i)->segment_count; s++)
            tierce__fetch_ask(&lease->waiters[i], s);
        if (tierce__lease_wait(lease, i, layer))
            return true;
    }
    return false;
}
