/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "proto/transfer/transfer_wire.h"

#include <string.h>

/* Frames of transfer://: what is decoded is encoded to the same bytes, and names lie within their
 * list. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_greeting(const uint8_t bytes[TIERCE__TRANSFER_WELCOME_BYTES])
{
    struct tierce__transfer_hello hello;
    struct tierce__transfer_welcome welcome;
    uint8_t again[TIERCE__TRANSFER_WELCOME_BYTES];
    if (tierce__transfer_hello_decode(&hello, bytes) == 0 &&
        hello.version == TIERCE__TRANSFER_VERSION) {
        tierce__transfer_hello_encode(again, &hello);
        TIERCE_ASSERT(memcmp(again, bytes, TIERCE__TRANSFER_HELLO_BYTES) == 0);
    }
    if (tierce__transfer_welcome_decode(&welcome, bytes) == 0 &&
        welcome.version == TIERCE__TRANSFER_VERSION) {
        tierce__transfer_welcome_encode(again, &welcome);
        TIERCE_ASSERT(memcmp(again, bytes, TIERCE__TRANSFER_WELCOME_BYTES) == 0);
    }
}

static void check_head(const uint8_t bytes[TIERCE__TRANSFER_HEAD_BYTES])
{
    struct tierce__transfer_request request;
    struct tierce__transfer_reply reply;
    uint8_t again[TIERCE__TRANSFER_HEAD_BYTES];
    if (tierce__transfer_request_decode(&request, bytes) == 0) {
        TIERCE_ASSERT(request.name_bytes <= TIERCE__TRANSFER_NAME_MAX);
        TIERCE_ASSERT(request.op != TIERCE__TRANSFER_OP_WRITE || request.length <= request.total);
        tierce__transfer_request_encode(again, &request);
        TIERCE_ASSERT(memcmp(again, bytes, sizeof(again)) == 0);
    }
    if (tierce__transfer_reply_decode(&reply, bytes) == 0) {
        TIERCE_ASSERT(reply.status == 0 || reply.bytes == 0);
        tierce__transfer_reply_encode(again, &reply);
        TIERCE_ASSERT(memcmp(again, bytes, sizeof(again)) == 0);
    }
}

static void check_list(const uint8_t *bytes, size_t count)
{
    const char *text = NULL;
    size_t name_bytes, at = 0, before = 0;
    while (tierce__transfer_name_decode(&text, &name_bytes, bytes, count, &at) == 0) {
        TIERCE_ASSERT(at == before + 2 + name_bytes && at <= count);
        TIERCE_ASSERT(text == (const char *)bytes + before + 2);
        before = at;
    }
    TIERCE_ASSERT(at == before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[TIERCE__TRANSFER_WELCOME_BYTES] = {0};
    memcpy(bytes, data, size < sizeof(bytes) ? size : sizeof(bytes));
    check_greeting(bytes);
    check_head(bytes);
    check_list(data, size);
    return 0;
}
