/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy/policy_private.h"

#include <string.h>

static const struct tierce__policy_ops *const policies[] = {
#define TIERCE_POLICY(name) &tierce__policy_##name##_ops,
#include "core/policy/policies.def"
#undef TIERCE_POLICY
};

const struct tierce__policy_ops *tierce__policy_at(size_t index)
{
    return index < sizeof(policies) / sizeof(policies[0]) ? policies[index] : NULL;
}

const struct tierce__policy_ops *tierce__policy_find(const char *name)
{
    for (size_t i = 0; tierce__policy_at(i) != NULL; i++) {
        if (strcmp(policies[i]->name, name) == 0)
            return policies[i];
    }
    return NULL;
}
