/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy/hazard_ghosts.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>

#define RINGS TIERCE__HAZARD_RINGS
#define AHEAD 8u /* ghosts whose chains are fetched before they are dropped */

static uint32_t places_of(uint32_t ghosts)
{
    return ghosts + ghosts / 2 + ghosts % 2;
}

int tierce__hazard_ghosts_init(struct tierce__hazard_ghosts *g, uint32_t ring_max)
{
    TIERCE_ASSERT(ring_max >= 1 && ring_max <= 1u << 30);
    *g = (struct tierce__hazard_ghosts){
        .ring_max = ring_max, .ring_places = places_of(ring_max), .bits = 1};
    size_t count = (size_t)RINGS * g->ring_places;
    while ((1ULL << g->bits) < (uint64_t)RINGS * ring_max)
        g->bits++;
    g->ghosts = tierce__calloc(count, sizeof(*g->ghosts));
    g->chains = tierce__calloc(1ULL << g->bits, sizeof(*g->chains));
    if (g->ghosts == NULL || g->chains == NULL)
        return -ENOMEM;
    tierce__advise_huge(g->ghosts, count * sizeof(*g->ghosts));
    tierce__advise_huge(g->chains, (1ULL << g->bits) * sizeof(*g->chains));
    return 0;
}

void tierce__hazard_ghosts_fini(struct tierce__hazard_ghosts *g)
{
    tierce__free(g->chains);
    tierce__free(g->ghosts);
    *g = (struct tierce__hazard_ghosts){0};
}

uint32_t tierce__hazard_ghosts_find(const struct tierce__hazard_ghosts *g, uint64_t key,
                                    uint32_t hash)
{
    for (uint32_t at = g->chains[tierce__hazard_ghosts_chain(g, hash)]; at != 0;
         at = g->ghosts[at - 1].next) {
        if (g->ghosts[at - 1].key == key)
            return g->ghosts[at - 1].data;
    }
    return 0;
}

/* Takes the ghost after `link` out of its chain. */
static void unlink_ghost(struct tierce__hazard_ghosts *g, uint32_t *link)
{
    uint32_t at = *link - 1, ring = at / g->ring_places;
    TIERCE_DASSERT(g->ghosts[at].data != 0 && g->counts[ring] > 0);
    *link = g->ghosts[at].next;
    g->ghosts[at].data = 0;
    g->counts[ring]--;
}

uint32_t tierce__hazard_ghosts_take(struct tierce__hazard_ghosts *g, uint64_t key, uint32_t hash)
{
    for (uint32_t *link = &g->chains[tierce__hazard_ghosts_chain(g, hash)]; *link != 0;
         link = &g->ghosts[*link - 1].next) {
        uint32_t data = g->ghosts[*link - 1].data;
        if (g->ghosts[*link - 1].key != key)
            continue;
        unlink_ghost(g, link);
        return data;
    }
    return 0;
}

/* Empties the oldest place of a ring. */
static void pass_oldest(struct tierce__hazard_ghosts *g, uint32_t ring)
{
    uint32_t base = ring * g->ring_places, at = base + g->oldest[ring];
    TIERCE_DASSERT(g->in_use[ring] > 0);
    g->oldest[ring] = g->oldest[ring] + 1 < g->ring_places ? g->oldest[ring] + 1 : 0;
    g->in_use[ring]--;
    const struct tierce__hazard_ghost *soon =
        &g->ghosts[base + (g->oldest[ring] + AHEAD) % g->ring_places];
    tierce__hazard_ghosts_prefetch(g, tierce__hazard_hash(soon->key), false);
    if (g->ghosts[at].data == 0)
        return;
    uint32_t *link =
        &g->chains[tierce__hazard_ghosts_chain(g, tierce__hazard_hash(g->ghosts[at].key))];
    while (*link != at + 1) {
        TIERCE_DASSERT(*link != 0);
        link = &g->ghosts[*link - 1].next;
    }
    unlink_ghost(g, link);
}

void tierce__hazard_ghosts_push(struct tierce__hazard_ghosts *g, uint32_t ring, uint64_t key,
                                uint32_t hash, uint32_t data, uint32_t ring_max)
{
    uint32_t max = ring_max < g->ring_max ? ring_max : g->ring_max, places = places_of(max);
    TIERCE_DASSERT(ring < RINGS && data != 0 && max > 0);
    while (g->counts[ring] >= max || g->in_use[ring] >= places)
        pass_oldest(g, ring);
    uint32_t at = ring * g->ring_places + g->newest[ring];
    uint32_t *chain = &g->chains[tierce__hazard_ghosts_chain(g, hash)];
    g->ghosts[at] = (struct tierce__hazard_ghost){.key = key, .data = data, .next = *chain};
    *chain = at + 1;
    g->newest[ring] = g->newest[ring] + 1 < g->ring_places ? g->newest[ring] + 1 : 0;
    g->in_use[ring]++;
    g->counts[ring]++;
}
