/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/needs.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

#define TIERCE__RIGHT_NONE 0

static const struct tierce__need calls[] = {
#define TIERCE_NEED_CALL(id, right_, target_)                                                      \
    [TIERCE__RPC_##                                                                                \
        id] = {.name = #id, .right = TIERCE__RIGHT_##right_, .target = TIERCE__TARGET_##target_},
#define TIERCE_NEED_ROUTE(path, right_, target_)
#include "manager/api/needs.def"
#undef TIERCE_NEED_CALL
#undef TIERCE_NEED_ROUTE
};

enum {
#define TIERCE_NEED_CALL(id, right_, target_) COUNTED_##id,
#define TIERCE_NEED_ROUTE(path, right_, target_)
#include "manager/api/needs.def"
#undef TIERCE_NEED_CALL
#undef TIERCE_NEED_ROUTE
    CALLS_WITH_A_ROW
};
/* No row may be repeated (the enumeration), so none is missing. */
_Static_assert((int)CALLS_WITH_A_ROW == (int)TIERCE__RPC_COUNT,
               "each call of rpcs.def needs a row in needs.def");

static const struct tierce__need routes[] = {
#define TIERCE_NEED_CALL(id, right_, target_)
#define TIERCE_NEED_ROUTE(path, right_, target_)                                                   \
    {.name = (path), .right = TIERCE__RIGHT_##right_, .target = TIERCE__TARGET_##target_},
#include "manager/api/needs.def"
#undef TIERCE_NEED_CALL
#undef TIERCE_NEED_ROUTE
};

const struct tierce__need *tierce__need_of_call(enum tierce__rpc_id id)
{
    TIERCE_ASSERT(id < TIERCE__RPC_COUNT);
    TIERCE_ASSERT(calls[id].right != 0);
    return &calls[id];
}

const struct tierce__need *tierce__need_of_route(const char *path)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (strcmp(routes[i].name, path) == 0)
            return &routes[i];
    }
    return NULL;
}

/* "TrimCache", "/metrics" */
static const char *shown_name(const struct tierce__need *need)
{
    bool is_call = need >= calls && need < calls + TIERCE__RPC_COUNT;
    return is_call ? tierce__rpcs[need - calls].method : need->name;
}

bool tierce__need_is_met(const struct tierce__need *need, const struct tierce__grant *grant,
                         const char *name, char why[256])
{
    why[0] = '\0';
    if (need->right == 0)
        return true;
    if (grant == NULL || (grant->rights & need->right) == 0)
        snprintf(why, 256, "account %s has no right \"%s\", which %s needs", name,
                 tierce__right_name((enum tierce__right)need->right), shown_name(need));
    else if (need->target == TIERCE__TARGET_ALL && !tierce__grant_has_all(grant))
        snprintf(why, 256, "%s needs a scope of all groups, which account %s does not have",
                 shown_name(need), name);
    return why[0] == '\0';
}
