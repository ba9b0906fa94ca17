/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_NEEDS_H
#define TIERCE_MANAGER_NEEDS_H

#include "manager/api/grant.h"
#include "proto/kvcm/rpcs.h"

/* The rights that calls and HTTP routes require (needs.def). Threads: any; everything is constant.
 */

/* The thing that must lie in the caller's scope. */
enum tierce__target {
    TIERCE__TARGET_NOTHING,    /* the answer has no data of groups */
    TIERCE__TARGET_SHOWN,      /* the answer shows the part that the scope holds */
    TIERCE__TARGET_ALL,        /* all groups */
    TIERCE__TARGET_INSTANCE,   /* the instance of the field instance_id */
    TIERCE__TARGET_REGISTERED, /* that instance in the group of the field instance_group; an
                                  existing instance in its own group too */
    TIERCE__TARGET_NAMESPACE,  /* the instance of instance_id, or the group of instance_group */
    TIERCE__TARGET_GROUP,      /* the group that the request names */
    TIERCE__TARGET_OWN_GROUP,  /* the group of the field instance_group; empty: of the scope */
    TIERCE__TARGET_GROUP_PART, /* that group or an instance of it; the answer shows this part */
};

struct tierce__need {
    const char *name; /* of the call or the path */
    uint32_t right;   /* one of enum tierce__right; 0: none, and no account either */
    enum tierce__target target;
};

const struct tierce__need *tierce__need_of_call(enum tierce__rpc_id id);
/* NULL: the table has no such route. */
const struct tierce__need *tierce__need_of_route(const char *path);

/* Whether a grant has the right, and a scope of all groups if the need is of such. `why`: the
 * account `name` and the right that it lacks. The rest of the scope is checked when the request was
 * read (tierce__api_is_in_scope). */
bool tierce__need_is_met(const struct tierce__need *need, const struct tierce__grant *grant,
                         const char *name, char why[256]);

#endif
