/* SPDX-License-Identifier: Apache-2.0 */
/* Generations of instances. */
#include "base/assert.h"
#include "manager/registry/registry_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool tierce__namespace_has(const struct tierce__namespace_choice *choice,
                           const struct tierce__instance *instance)
{
    TIERCE_DASSERT(choice->instance_id[0] != '\0' || choice->group[0] != '\0');
    return (choice->instance_id[0] == '\0' || strcmp(instance->id, choice->instance_id) == 0) &&
           (choice->group[0] == '\0' || strcmp(instance->group_name, choice->group) == 0) &&
           (choice->family[0] == '\0' || strcmp(instance->attention.family, choice->family) == 0);
}

static int invalidate(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct tierce__namespace_choice *choice = arg;
    size_t chosen = 0;
    for (size_t i = 0; i < catalog->lists[TIERCE__KIND_INSTANCE].count; i++) {
        struct tierce__instance *instance =
            tierce__catalog_entry(catalog, TIERCE__KIND_INSTANCE, i);
        if (!tierce__namespace_has(choice, instance))
            continue;
        if (instance->generation >= TIERCE__GENERATION_MAX) {
            snprintf(why, 256, "instance %.100s has the last generation: remove it", instance->id);
            return TIERCE_E_LIMIT;
        }
        instance->generation++;
        if (instance->generation < catalog->generation_floor)
            instance->generation = catalog->generation_floor;
        chosen++;
    }
    if (chosen > 0)
        return 0;
    snprintf(why, 256, "there is no instance%s%.80s%s%.80s%s%.40s",
             choice->instance_id[0] != '\0' ? " " : "", choice->instance_id,
             choice->group[0] != '\0' ? " in group " : "", choice->group,
             choice->family[0] != '\0' ? " of family " : "", choice->family);
    return -ENOENT;
}

int tierce__registry_invalidate(struct tierce__registry *registry,
                                const struct tierce__namespace_choice *choice, char why[256])
{
    return tierce__registry_change(registry, invalidate, choice, why);
}

void tierce__registry_keep_generation(struct tierce__catalog *catalog,
                                      const struct tierce__instance *gone)
{
    TIERCE_DASSERT(gone->generation <= TIERCE__GENERATION_MAX);
    uint64_t next =
        gone->generation < TIERCE__GENERATION_MAX ? gone->generation + 1 : TIERCE__GENERATION_MAX;
    if (gone->generation > 0 && next > catalog->generation_floor)
        catalog->generation_floor = next;
}
