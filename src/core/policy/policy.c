/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
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

const char *tierce__policy_hint_name(enum tierce__policy_hint hint)
{
    static const char *const names[TIERCE__HINTS] = {
        [TIERCE__HINT_NONE] = "none",   [TIERCE__HINT_CLOSED] = "closed",
        [TIERCE__HINT_OPEN] = "open",   [TIERCE__HINT_SOON] = "soon",
        [TIERCE__HINT_LATER] = "later", [TIERCE__HINT_TTL] = "ttl"};
    TIERCE_DASSERT(hint < TIERCE__HINTS);
    return names[hint];
}

const struct tierce__policy_ops *tierce__policy_find(const char *name)
{
    for (size_t i = 0; tierce__policy_at(i) != NULL; i++) {
        if (strcmp(policies[i]->name, name) == 0)
            return policies[i];
    }
    return NULL;
}
