/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "manager/locate/locator_private.h"

#include <string.h>

/* Generations of instances: locator.h. */

uint64_t tierce__locator_generation(struct tierce__locator *locator, const char *instance_id)
{
    char why[TIERCE__WHY_BYTES];
    struct tierce__live *live;
    if (tierce__live_acquire(&live, locator, instance_id, why) < 0)
        return 0;
    uint64_t generation = tierce__live_generation(live);
    tierce__live_release(live);
    TIERCE_ASSERT(generation <= TIERCE__GENERATION_MAX);
    return generation + 1;
}

/* Claims that are made later have the new generation. */
static void raise(struct tierce__live *live, uint64_t generation)
{
    tierce__lock_take(&live->lock);
    if (tierce__live_generation(live) < generation)
        atomic_store_explicit(&live->generation, generation, memory_order_release);
    tierce__lock_drop(&live->lock);
    tierce__live_mark_claims(live);
    TIERCE_DASSERT(tierce__live_generation(live) >= generation);
}

/* An instance that is being opened has read the registry before or after it changed: CHANGING waits
 * for it. */
int tierce__locator_invalidate(struct tierce__locator *locator,
                               const struct tierce__instance *instance, char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live;
    TIERCE_DASSERT(!tierce__lock_holds_any());
    tierce__lock_take(&locator->changing);
    int rc = tierce__live_acquire(&live, locator, instance->id, why);
    tierce__lock_drop(&locator->changing);
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc; /* it was removed meanwhile */
    raise(live, instance->generation);
    tierce__live_release(live);
    return 0;
}

int tierce__live_refuse_stale(struct tierce__live *live, struct tierce__write_session *session,
                              char why[TIERCE__WHY_BYTES])
{
    uint64_t began = session->generation;
    TIERCE_ASSERT(session->is_busy && !session->is_doubtful);
    if (began == tierce__live_generation(live))
        return 0;
    memset(session->written, 0, session->count * sizeof(*session->written));
    int rc = tierce__live_finish(live, session);
    if (rc < 0)
        return tierce__why(why, rc, "the write cannot be finished: %s", tierce_strerror(rc));
    return tierce__why(why, -ESTALE,
                       "the blocks of instance %.64s were invalidated since the write began",
                       live->instance.id);
}
