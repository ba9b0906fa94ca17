/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/reclaim/stale.h"

#include "base/assert.h"
#include "base/log/log.h"
#include "manager/locate/locator_private.h"

enum { PAGE_KEYS = 1024, PAGES_AT_ONCE = 8, AGAIN_US = 1000000, WAITING_MAX = 1024 };

static bool is_stale(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    const struct tierce__live *live = arg;
    (void)i, (void)key;
    return record->generation != tierce__live_generation(live);
}

static int sweep_page(struct tierce__live *live, int64_t delay_us, struct tierce__removed *removed)
{
    int64_t keys[PAGE_KEYS];
    size_t count;
    uint64_t cursor = live->stale.cursor;
    struct tierce__meta_space *space = tierce__meta_index_space(live->index);
    int rc = space->ops->scan(space, &cursor, PAGE_KEYS, keys, &count);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(count <= PAGE_KEYS);
    const struct tierce__removal how = {.due_us = tierce__locator_now_us(live->locator) + delay_us,
                                        .wanted = is_stale,
                                        .wanted_arg = live};
    rc = count > 0 ? tierce__live_remove(live, keys, count, &how, removed) : 0;
    if (rc == 0)
        live->stale.cursor = cursor;
    return rc;
}

/* Queued deletions lie in memory. */
static bool is_deleter_busy(const struct tierce__live *live)
{
    struct tierce__deleter_stats stats;
    tierce__deleter_stats(live->locator->deleter, &stats);
    return stats.waiting > WAITING_MAX;
}

static void begin(struct tierce__live *live)
{
    struct tierce__stale_sweep *stale = &live->stale;
    stale->target = tierce__live_generation(live);
    stale->cursor = 0;
    stale->is_scanning = stale->target != stale->swept;
}

void tierce__live_sweep_stale(struct tierce__live *live, int64_t delay_us,
                              struct tierce__removed *removed, int64_t *next_us)
{
    struct tierce__stale_sweep *stale = &live->stale;
    int64_t now_us = tierce__locator_now_us(live->locator);
    int rc = 0;
    TIERCE_DASSERT(!tierce__lock_holds_any() && delay_us >= 0);
    if (!stale->is_scanning)
        begin(live);
    if (stale->not_before_us > now_us)
        rc = -EAGAIN;
    for (unsigned i = 0; stale->is_scanning && rc == 0 && i < PAGES_AT_ONCE; i++) {
        rc = is_deleter_busy(live) ? -EAGAIN : sweep_page(live, delay_us, removed);
        stale->is_scanning = rc < 0 || stale->cursor != 0;
    }
    if (rc < 0 && rc != -EAGAIN) {
        tierce__log(TIERCE_LOG_WARN, "manager.invalidated_left", "instance=%s error=%s",
                    live->instance.id, tierce_error_name(rc));
        stale->not_before_us = now_us + AGAIN_US;
    }
    if (!stale->is_scanning)
        stale->swept = stale->target;
    int64_t next = rc < 0 ? now_us + AGAIN_US : now_us;
    if (stale->swept != tierce__live_generation(live) && next < *next_us)
        *next_us = next;
}
