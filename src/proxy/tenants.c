/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/tenants.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct tierce__tenant *tierce__tenants_find(const struct tierce__tenants *tenants, const char *name)
{
    if (strcmp(name, "default") == 0)
        name = "";
    for (uint32_t i = 0; i < tenants->count; i++) {
        if (strcmp(tenants->items[i].name, name) == 0)
            return &tenants->items[i];
    }
    return NULL;
}

static struct tierce__tenant *find_or_add(struct tierce__tenants *tenants, const char *name)
{
    struct tierce__tenant *tenant = tierce__tenants_find(tenants, name);
    if (tenant == NULL) {
        TIERCE_ASSERT(tenants->count < 2 * TIERCE__ENGINES_MAX);
        tenant = &tenants->items[tenants->count++];
        tenant->name = name;
    }
    return tenant;
}

int tierce__tenants_init(struct tierce__tenants *tenants, const struct tierce__engines *decode,
                         const struct tierce__engines *prefill, char why[256])
{
    tenants->items = tierce__calloc(2 * (size_t)TIERCE__ENGINES_MAX, sizeof(*tenants->items));
    if (tenants->items == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < decode->count; i++)
        find_or_add(tenants, decode->items[i].tenant)->decode |= 1ULL << i;
    for (uint32_t i = 0; i < prefill->count; i++)
        find_or_add(tenants, prefill->items[i].tenant)->prefill |= 1ULL << i;
    for (uint32_t i = 0; i < tenants->count; i++) {
        const char *name = tenants->items[i].name;
        if (tenants->items[i].decode != 0)
            continue;
        snprintf(why, 256,
                 "prefill.urls has an engine %s%.64s%s, and decode.urls has none; add one to "
                 "decode.urls, or remove it",
                 name[0] != '\0' ? "of the tenant '" : "without a tenant", name,
                 name[0] != '\0' ? "'" : "");
        return TIERCE_E_CONFIG;
    }
    return 0;
}

void tierce__tenants_fini(struct tierce__tenants *tenants)
{
    tierce__free(tenants->items);
    *tenants = (struct tierce__tenants){0};
}
