/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/ghost_feed.h"

#include "base/assert.h"
#include "manager/locate/locator_private.h"
#include "manager/pilot/gain.h"

/* A few keys say little about the others. */
enum { KEYS_LEAST = 16 };

static void feed_instance(void *arg, struct tierce__live *live)
{
    struct tierce__ghosts *ghost = arg;
    struct tierce__meta_index_stats stats;
    tierce__meta_index_stats(live->index, &stats);
    if (stats.keys >= KEYS_LEAST)
        tierce__ghosts_resize(ghost, live->tap, (double)stats.bytes / (double)stats.keys);
}

void tierce__ghosts_feed(struct tierce__locator *locator)
{
    struct tierce__ghosts *ghost = locator->opts.ghost;
    size_t count;
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (ghost == NULL)
        return;
    tierce__locator_each(locator, feed_instance, ghost);
    const struct tierce__catalog *catalog = tierce__registry_acquire(locator->opts.registry);
    const struct tierce__group *groups = tierce__catalog_groups(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        double quota = (double)groups[i].capacity_bytes;
        tierce__ghosts_set_reach(ghost, groups[i].name, tierce__gain_reach(quota));
    }
    tierce__registry_release(locator->opts.registry, catalog);
}
