/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "proto/lm/lm.h"

#include <string.h>

/* Messages of lm://: decoded fields are within their bounds, and their encoding has the same
 * meaning. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_request(const uint8_t bytes[TIERCE__LM_REQUEST_BYTES])
{
    struct tierce__lm_request request, again;
    uint8_t encoded[TIERCE__LM_REQUEST_BYTES];
    if (tierce__lm_request_decode(&request, bytes) != 0)
        return;
    TIERCE_ASSERT(request.key_bytes <= TIERCE__LM_KEY_BYTES);
    TIERCE_ASSERT(request.value_bytes <= INT32_MAX);
    TIERCE_ASSERT(request.command == TIERCE__LM_PUT || request.value_bytes == 0);
    TIERCE_ASSERT(tierce__lm_request_encode(encoded, &request) == 0);
    TIERCE_ASSERT(tierce__lm_request_decode(&again, encoded) == 0);
    TIERCE_ASSERT(again.key_bytes == request.key_bytes &&
                  memcmp(again.key, request.key, request.key_bytes) == 0 &&
                  memcmp(&again.shape, &request.shape, sizeof(again.shape)) == 0);
}

static void check_reply(const uint8_t bytes[TIERCE__LM_REPLY_BYTES])
{
    struct tierce__lm_reply reply;
    uint8_t encoded[TIERCE__LM_REPLY_BYTES];
    if (tierce__lm_reply_decode(&reply, bytes) != 0)
        return;
    TIERCE_ASSERT(tierce__lm_reply_encode(encoded, &reply) == 0);
    TIERCE_ASSERT(memcmp(encoded, bytes, sizeof(encoded)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[TIERCE__LM_REQUEST_BYTES] = {0};
    memcpy(bytes, data, size < sizeof(bytes) ? size : sizeof(bytes));
    check_request(bytes);
    check_reply(bytes);
    return 0;
}
