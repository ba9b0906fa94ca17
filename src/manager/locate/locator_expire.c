/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "manager/locate/locator_private.h"

#include <stdint.h>

/* A store that rejects writes checks for recovery only when a write is tried. Without this call
 * there may be none: clients' writes are rejected before they reach it. */
static void try_again(struct tierce__live *live)
{
    const struct tierce__meta_store_ops *ops = live->space->ops;
    bool rejects = ops->write_error != NULL && ops->write_error(live->space) != 0;
    int rc = rejects ? tierce__meta_confirm(live->space) : 0;
    (void)rc; /* logged; the next tick retries */
}

static void expire_one(void *arg, struct tierce__live *live)
{
    try_again(live);
    *(size_t *)arg += tierce__live_expire(live, tierce__locator_now_us(live->locator));
}

size_t tierce__locator_expire(struct tierce__locator *locator)
{
    size_t expired = 0;
    tierce__locator_each(locator, expire_one, &expired);
    return expired;
}

static void earliest(void *arg, struct tierce__live *live)
{
    uint64_t *due = arg;
    tierce__lock_take(&live->lock);
    uint64_t next = tierce__deadlines_next(&live->deadlines);
    TIERCE_DASSERT(live->deadlines.count == live->sessions.count);
    *due = next < *due ? next : *due;
    tierce__lock_drop(&live->lock);
}

int64_t tierce__locator_next_expiry(struct tierce__locator *locator)
{
    uint64_t due = INT64_MAX;
    tierce__locator_each(locator, earliest, &due);
    TIERCE_DASSERT(due <= INT64_MAX);
    return (int64_t)due;
}
