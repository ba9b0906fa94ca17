/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "cli/admin.h"
#include "proto/kvcm/proto_json.h"
#include "proto/kvcm/rpcs.h"

#include <string.h>

/* The request of an administrators' call. */
static const ProtobufCMessageDescriptor *request_of(const char *rpc)
{
    for (size_t i = 0; i < TIERCE__RPC_COUNT; i++) {
        const char *name = strrchr(tierce__rpcs[i].http_path, '/');
        if (tierce__rpcs[i].port == TIERCE__RPC_PORT_ADMIN && name != NULL &&
            strcmp(name + 1, rpc) == 0)
            return tierce__rpcs[i].request;
    }
    return NULL;
}

int tierce__admin_check(const char *command, const char *rpc, const char *field,
                        struct tierce__text object)
{
    char why[TIERCE__PROTO_WHY_BYTES];
    const ProtobufCMessageDescriptor *descriptor = request_of(rpc);
    TIERCE_ASSERT(descriptor != NULL);
    if (field != NULL) {
        const ProtobufCFieldDescriptor *of =
            protobuf_c_message_descriptor_get_field_by_name(descriptor, field);
        TIERCE_ASSERT(of != NULL && of->type == PROTOBUF_C_TYPE_MESSAGE);
        descriptor = of->descriptor;
    }
    if (tierce__proto_json_check_names(descriptor, object, why) < 0)
        return tierce__cli_fail(command, "%s", why);
    return TIERCE__CLI_OK;
}
