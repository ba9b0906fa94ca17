/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/grpc/grpc_health.h"
#include "net/server/call_private.h"
#include "net/server/grpc/protobuf.h"

#include <string.h>

/* HealthCheckRequest: string service = 1. HealthCheckResponse: status = 1; 1 is SERVING, 2 is
 * NOT_SERVING. */

#define SERVICE_BYTES_MAX 256u

/* False: it is not a valid message or service name. */
static bool read_service(char service[SERVICE_BYTES_MAX], const void *body, size_t bytes)
{
    struct tierce__protobuf in = {body, bytes};
    struct tierce__protobuf_field field;
    int rc;
    service[0] = '\0';
    while ((rc = tierce__protobuf_next(&in, &field)) > 0) {
        if (field.number != 1)
            continue;
        if (field.bytes >= SERVICE_BYTES_MAX || memchr(field.data, '\0', field.bytes) != NULL)
            return false;
        memcpy(service, field.data, field.bytes);
        service[field.bytes] = '\0';
    }
    return rc == 0;
}

static void check(void *arg, struct tierce__call *call)
{
    (void)arg;
    const struct tierce__shared *shared = call->shared;
    char service[SERVICE_BYTES_MAX];
    if (!read_service(service, call->info.body, call->info.body_bytes)) {
        tierce__call_reply(call, &(struct tierce__reply){.status = TIERCE__GRPC_INVALID_ARGUMENT,
                                                         .message = "not a HealthCheckRequest"});
        return;
    }
    bool serves =
        !atomic_load(&shared->stopping) &&
        (shared->is_serving == NULL || shared->is_serving(shared->is_serving_arg, service));
    const uint8_t body[] = {1 << 3, serves ? 1 : 2};
    tierce__call_reply(call, &(struct tierce__reply){.body = body, .bytes = sizeof(body)});
}

const struct tierce__route tierce__health_route = {.path = "/grpc.health.v1.Health/Check",
                                                   .serve = check};
