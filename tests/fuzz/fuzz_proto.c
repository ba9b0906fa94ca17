/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "proto/kvcm/proto_json.h"
#include "proto/kvcm/rpcs.h"

#include <string.h>

/*
 * Two bytes say which message and whether wire or JSON follows. An accepted message is written in
 * both forms and read again, and is unchanged.
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char why[TIERCE__PROTO_WHY_BYTES];

static void check_round_trip(const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    ProtobufCMessage *by_wire = NULL, *by_json = NULL;
    char *text[3] = {NULL};
    void *wire = NULL;
    size_t bytes[3] = {0}, wire_bytes = 0;
    int rc = tierce__proto_json_print(&text[0], &bytes[0], message);
    TIERCE_ASSERT(rc == 0);
    rc = tierce__proto_json_parse(&by_json, descriptor, text[0], bytes[0], why);
    TIERCE_ASSERT(rc == 0);
    rc = tierce__proto_json_print(&text[1], &bytes[1], by_json);
    TIERCE_ASSERT(rc == 0);
    TIERCE_ASSERT(strcmp(text[0], text[1]) == 0);
    rc = tierce__proto_pack(&wire, &wire_bytes, message);
    TIERCE_ASSERT(rc == 0);
    rc = tierce__proto_unpack(&by_wire, descriptor, wire, wire_bytes, why);
    TIERCE_ASSERT(rc == 0);
    rc = tierce__proto_json_print(&text[2], &bytes[2], by_wire);
    TIERCE_ASSERT(rc == 0);
    /* -0 is not written to the wire, and reads as 0. */
    TIERCE_ASSERT(strcmp(text[0], text[2]) == 0 || strstr(text[0], ":-0") != NULL);
    for (size_t i = 0; i < 3; i++)
        tierce__free(text[i]);
    tierce__free(wire);
    tierce__proto_free(by_wire);
    tierce__proto_free(by_json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t live = tierce__alloc_live();
    if (size < 2)
        return 0;
    const struct tierce__rpc *rpc = &tierce__rpcs[data[0] % TIERCE__RPC_COUNT];
    const ProtobufCMessageDescriptor *descriptor = (data[1] & 2) != 0 ? rpc->reply : rpc->request;
    ProtobufCMessage *message = NULL;
    why[0] = '\0';
    int rc =
        (data[1] & 1) != 0
            ? tierce__proto_unpack(&message, descriptor, data + 2, size - 2, why)
            : tierce__proto_json_parse(&message, descriptor, (const char *)data + 2, size - 2, why);
    if (rc == 0)
        check_round_trip(message);
    else
        TIERCE_ASSERT(why[0] != '\0');
    tierce__proto_free(message);
    TIERCE_ASSERT(tierce__alloc_live() == live);
    return 0;
}
