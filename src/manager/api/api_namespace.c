/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_private.h"

#include "base/assert.h"
#include "base/log/log.h"

#include <errno.h>

/* Invalidation of blocks, for `tierce instance invalidate` and `tierce group invalidate`. */

/* Adds an instance to the reply, and lets the locator follow the registry. */
static int take_over(struct tierce__api_call *api, const struct tierce__instance *instance,
                     Meta__InvalidateNamespaceResponse *reply)
{
    Meta__InvalidatedInstance *shown = tierce__api_alloc(api, 1, sizeof(*shown));
    if (shown == NULL)
        return -ENOMEM;
    meta__invalidated_instance__init(shown);
    shown->instance_id = instance->id;
    shown->generation = (int64_t)instance->generation + 1;
    reply->instances[reply->n_instances++] = shown;
    tierce__log(TIERCE_LOG_INFO, "manager.invalidated", "instance=%s generation=%lld", instance->id,
                (long long)shown->generation);
    return tierce__locator_invalidate(api->manager->locator, instance, api->why);
}

/* The generations are stored before any of them counts: after a change of the leader they count
 * still. A call that fails in between has raised them, and may be repeated. */
static int invalidate(struct tierce__api_call *api, const struct tierce__namespace_choice *choice,
                      Meta__InvalidateNamespaceResponse *reply)
{
    size_t count;
    int rc = tierce__registry_invalidate(api->manager->registry, choice, api->why);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(api->catalog == NULL); /* the one that is acquired now has them */
    const struct tierce__instance *instances =
        tierce__catalog_instances(tierce__api_catalog(api), &count);
    reply->instances = tierce__api_alloc(api, count + 1, sizeof(*reply->instances));
    if (reply->instances == NULL)
        return -ENOMEM;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (tierce__namespace_has(choice, &instances[i]))
            rc = take_over(api, &instances[i], reply);
    }
    TIERCE_DASSERT(reply->n_instances <= count);
    return rc;
}

static void invalidate_namespace(struct tierce__api_call *api)
{
    const Meta__InvalidateNamespaceRequest *request =
        (const Meta__InvalidateNamespaceRequest *)api->request;
    const struct tierce__namespace_choice choice = {
        .instance_id = tierce__api_string(request->instance_id),
        .group = tierce__api_string(request->instance_group),
        .family = tierce__api_string(request->attention_family),
    };
    if (choice.instance_id[0] == '\0' && choice.group[0] == '\0') {
        tierce__api_invalid(api, "instance_id");
        return;
    }
    int rc = invalidate(api, &choice, (Meta__InvalidateNamespaceResponse *)api->reply);
    tierce__api_end(api, rc, "invalidate namespace", "Blocks invalidated successfully");
}

const struct tierce__api_row tierce__api_namespace_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_meta_invalidate_namespace] = {invalidate_namespace, TIERCE__API_WAITS},
};
