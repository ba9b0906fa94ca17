/* SPDX-License-Identifier: Apache-2.0 */
/* Generations of instances, as a process receives them. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "store/remote/fleet/fleet_private.h"

/* Nothing is known of how its generations compare with those that were heard. */
static bool is_other(const struct tierce__fleet_part *part, const struct tierce__fleet_call *call)
{
    return part->registry != 0 && call->registry != 0 && call->registry != part->registry;
}

static bool is_same(const struct tierce__fleet_part *part, const struct tierce__fleet_call *call)
{
    return call->generation == part->heard && !is_other(part, call);
}

/* An answer to a call that began before another one was answered may be older than that. */
static bool is_newer(const struct tierce__fleet_part *part, const struct tierce__fleet_call *call)
{
    if (call->generation == 0 || is_same(part, call))
        return false;
    return part->heard == 0 || call->begun_ns > part->heard_ns ||
           (call->generation > part->heard && !is_other(part, call));
}

static void log_change(const struct tierce__fleet_part *part, bool is_other_registry)
{
    tierce__log(TIERCE_LOG_WARN, "fleet_invalidated",
                "instance=%s generation=%llu%s effect=\"blocks of the namespace are dropped\"",
                part->instance, (unsigned long long)part->heard,
                is_other_registry ? " reason=\"the manager has another registry\"" : "");
}

static void update_serves(struct tierce__fleet_part *part)
{
    uint64_t serves = 0;
    if (tierce__fleet_part_is_current(part)) /* another number than before, and not 0 */
        serves = (part->registries << 48) + part->generation + 1;
    atomic_store_explicit(&part->serves, serves, memory_order_seq_cst);
}

/* The part has heard another generation. */
static void change(struct tierce__fleet_part *part, bool is_first, bool is_other_registry)
{
    if (is_other_registry) {
        part->generation = 0;
        part->registries++;
    }
    update_serves(part); /* before the engine begins to drop */
    if (tierce__fleet_part_is_current(part))
        return;
    bool has_none = part->invalidated != NULL
                        ? part->invalidated(part->invalidated_arg, part, is_first)
                        : is_first && part->heard == 1;
    if (has_none)
        part->generation = part->heard;
    else
        log_change(part, is_other_registry);
}

bool tierce__fleet_part_hear(struct tierce__fleet_part *part, const struct tierce__fleet_call *call)
{
    bool changes = is_newer(part, call), is_other_registry = is_other(part, call);
    bool is_first = part->heard == 0;
    if (changes)
        part->heard = call->generation;
    if (call->registry != 0 && (changes || (is_same(part, call) && call->generation != 0)))
        part->registry = call->registry;
    if (changes || is_same(part, call))
        part->heard_ns = tierce__now_ns();
    if (changes)
        change(part, is_first, is_other_registry);
    update_serves(part);
    return tierce__fleet_part_is_current(part) && (call->generation == 0 || is_same(part, call));
}

void tierce__fleet_part_adopt(struct tierce__fleet_part *part, uint64_t generation,
                              uint64_t registry)
{
    if (part->heard == generation &&
        (registry == 0 || part->registry == 0 || part->registry == registry))
        part->generation = generation;
    update_serves(part);
    TIERCE_DASSERT(part->generation <= INT64_MAX);
}
