/* SPDX-License-Identifier: Apache-2.0 */
/* Generations of instances, as a process hears of them. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "store/remote/fleet/fleet_private.h"

/* An answer to a call that began before another one was answered may be older than that. */
static bool is_newer(const struct tierce__fleet_part *part, const struct tierce__fleet_call *call)
{
    return call->generation != 0 && call->generation != part->heard &&
           (part->heard == 0 || call->generation > part->heard || call->begun_ns > part->heard_ns);
}

static void update_serves(struct tierce__fleet_part *part)
{
    uint64_t serves = tierce__fleet_part_is_current(part) ? part->generation + 1 : 0;
    atomic_store_explicit(&part->serves, serves, memory_order_seq_cst);
}

bool tierce__fleet_part_hear(struct tierce__fleet_part *part, const struct tierce__fleet_call *call)
{
    bool changes = is_newer(part, call);
    if (changes)
        part->heard = call->generation;
    if (changes || call->generation == part->heard)
        part->heard_ns = tierce__now_ns();
    if (part->generation == 0 && part->heard == 1)
        part->generation = 1;
    update_serves(part);
    if (changes && !tierce__fleet_part_is_current(part)) {
        tierce__log(TIERCE_LOG_WARN, "fleet_invalidated",
                    "instance=%s generation=%llu effect=\"blocks of the namespace are dropped\"",
                    part->instance, (unsigned long long)part->heard);
        if (part->invalidated != NULL)
            part->invalidated(part->invalidated_arg, part);
    }
    return tierce__fleet_part_is_current(part) &&
           (call->generation == 0 || call->generation == part->heard);
}

void tierce__fleet_part_adopt(struct tierce__fleet_part *part, uint64_t generation)
{
    if (part->heard == generation)
        part->generation = generation;
    update_serves(part);
    TIERCE_DASSERT(part->generation <= INT64_MAX);
}
