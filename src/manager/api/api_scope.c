/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "manager/api/api_private.h"

#include <string.h>

/* Whether a call stays within the scope of its caller. */

/* A text of the request, by the name of its field; "": there is none. */
static const char *text_of(const struct tierce__api_call *api, const char *name)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(api->request->descriptor, name);
    TIERCE_ASSERT(field == NULL || field->type == PROTOBUF_C_TYPE_STRING);
    return tierce__api_text_field(api->request, field);
}

/* The fields that name a target. */
struct target {
    const char *group, *instance; /* "": not named */
};

static struct target target_of(const struct tierce__api_call *api)
{
    struct target out = {.instance = text_of(api, "instance_id"), .group = ""};
    switch (tierce__need_of_call(api->id)->target) {
    case TIERCE__TARGET_REGISTERED:
    case TIERCE__TARGET_NAMESPACE:
    case TIERCE__TARGET_OWN_GROUP:
        out.group = text_of(api, "instance_group");
        break;
    case TIERCE__TARGET_GROUP:
        out.group = text_of(api, "name");
        break;
    case TIERCE__TARGET_GROUP_PART:
        out.group = text_of(api, "instance_group_name");
        break;
    case TIERCE__TARGET_NOTHING:
    case TIERCE__TARGET_SHOWN:
    case TIERCE__TARGET_ALL:
    case TIERCE__TARGET_INSTANCE:
        break;
    }
    return out;
}

bool tierce__api_is_in_scope(const struct tierce__api_call *api,
                             const struct tierce__catalog *catalog)
{
    const struct tierce__grant *grant = api->caller->grant;
    if (tierce__grant_has_all(grant))
        return true;
    struct target target = target_of(api);
    const struct tierce__instance *instance = tierce__catalog_instance(catalog, target.instance);
    bool has_instance =
        instance != NULL && tierce__grant_has_instance(grant, instance->group_name, instance->id);
    switch (tierce__need_of_call(api->id)->target) {
    case TIERCE__TARGET_NOTHING:
    case TIERCE__TARGET_SHOWN:
        return true;
    case TIERCE__TARGET_ALL:
        break;
    case TIERCE__TARGET_INSTANCE:
        return has_instance;
    case TIERCE__TARGET_REGISTERED:
        return tierce__grant_has_instance(grant, target.group, target.instance) &&
               (instance == NULL || has_instance);
    case TIERCE__TARGET_NAMESPACE:
        return target.instance[0] != '\0' ? has_instance
                                          : tierce__grant_has_group(grant, target.group);
    case TIERCE__TARGET_GROUP:
        return tierce__grant_has_group(grant, target.group);
    case TIERCE__TARGET_OWN_GROUP:
        return target.group[0] != '\0' ? tierce__grant_has_group(grant, target.group)
                                       : grant != NULL && grant->reach == TIERCE__REACH_GROUP;
    case TIERCE__TARGET_GROUP_PART:
        return tierce__grant_meets_group(grant, target.group);
    }
    return false;
}

void tierce__api_refuse(struct tierce__api_call *api)
{
    struct target target = target_of(api);
    bool has_group = target.group[0] != '\0', has_instance = target.instance[0] != '\0';
    TIERCE_ASSERT(!tierce__grant_has_all(api->caller->grant));
    api->is_outside = true;
    if (!has_group && !has_instance)
        tierce__api_say(
            api, META__ERROR_CODE__INSTANCE_NOT_EXIST,
            "the call requires a scope of a group or more; it is outside the scope of account %s",
            api->caller->name);
    else
        tierce__api_say(api, META__ERROR_CODE__INSTANCE_NOT_EXIST,
                        "%s%.100s%s%s%.100s does not exist, or is outside the scope of account %s",
                        has_instance ? "instance " : "", target.instance,
                        has_instance && has_group ? " in " : "", has_group ? "instance group " : "",
                        target.group, api->caller->name);
    if (tierce__rpcs[api->id].port != TIERCE__RPC_PORT_META)
        tierce__api_as_admin(api);
}
