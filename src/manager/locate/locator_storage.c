/* SPDX-License-Identifier: Apache-2.0 */
/* The locations of one storage, in all instances. */
#include "base/assert.h"
#include "manager/api/spans.h"
#include "manager/locate/locator_private.h"

/* A removal of all locations of a storage. */
struct leaving {
    struct tierce__locator *locator;
    const struct tierce__storage *storage;
    struct tierce__removed removed;
    int rc;
};

static bool lies_there(void *arg, const struct tierce__location *location)
{
    const struct leaving *leaving = arg;
    if (location->storage != 0)
        return location->storage == leaving->storage->number;
    const struct tierce__catalog *catalog =
        tierce__registry_acquire(leaving->locator->opts.registry);
    const struct tierce__storage *storage = tierce__location_storage(catalog, location);
    bool is_it = storage != NULL && storage->number == leaving->storage->number;
    tierce__registry_release(leaving->locator->opts.registry, catalog);
    return is_it;
}

static void leave(void *arg, struct tierce__live *live)
{
    struct leaving *leaving = arg;
    const struct tierce__removal how = {.wanted_location = lies_there, .wanted_arg = leaving};
    if (leaving->rc == 0)
        leaving->rc = tierce__live_trim(live, &how, &leaving->removed);
}

int tierce__locator_drop_storage(struct tierce__locator *locator,
                                 const struct tierce__storage *storage, uint64_t *dropped,
                                 char why[TIERCE__WHY_BYTES])
{
    struct leaving leaving = {.locator = locator, .storage = storage};
    TIERCE_ASSERT(storage->number > 0);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    int span = tierce__span_open("locator:drop_storage");
    tierce__locator_each(locator, leave, &leaving);
    tierce__span_close(span);
    *dropped = leaving.removed.locations;
    if (leaving.rc == 0 && !tierce__locator_is_open(locator))
        leaving.rc = TIERCE_E_CLOSED; /* it ended, or had not begun, and some were not seen */
    if (leaving.rc < 0)
        return tierce__why(why, leaving.rc, "after %llu locations: %s",
                           (unsigned long long)*dropped, tierce_strerror(leaving.rc));
    return 0;
}
