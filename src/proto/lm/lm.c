/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/lm/lm.h"
#include "base/assert.h"
#include "base/bytes.h"

#include <string.h>

/* Where a message has what. The location is last of the numbers in a reply, and before the shape in
 * a request. */
enum { WORD = 4, LENGTH = 4, FORMAT = 8, DTYPE = 12 };
enum { REQUEST_LOCATION = 16, REQUEST_DIMS = 20, REQUEST_KEY = 36 };
enum { REPLY_DIMS = 16, REPLY_LOCATION = 32 };

const struct tierce__lm_shape tierce__lm_no_shape = {.format = 1, .dtype = 2};

static int32_t load(const uint8_t *bytes)
{
    return (int32_t)tierce__load_le32(bytes);
}

static void store(uint8_t *bytes, int32_t value)
{
    tierce__store_le32(bytes, (uint32_t)value);
}

static void load_shape(struct tierce__lm_shape *shape, const uint8_t *bytes, size_t dims)
{
    shape->format = load(bytes + FORMAT);
    shape->dtype = load(bytes + DTYPE);
    for (size_t i = 0; i < 4; i++)
        shape->dims[i] = load(bytes + dims + i * WORD);
}

static void store_shape(uint8_t *bytes, const struct tierce__lm_shape *shape, size_t dims)
{
    store(bytes + FORMAT, shape->format);
    store(bytes + DTYPE, shape->dtype);
    for (size_t i = 0; i < 4; i++)
        store(bytes + dims + i * WORD, shape->dims[i]);
}

static size_t trimmed(const char *key, size_t bytes)
{
    while (bytes > 0 && key[bytes - 1] == ' ')
        bytes--;
    return bytes;
}

int tierce__lm_request_decode(struct tierce__lm_request *out,
                              const uint8_t bytes[TIERCE__LM_REQUEST_BYTES])
{
    int32_t command = load(bytes), length = load(bytes + LENGTH);
    struct tierce__lm_request request = {.location = load(bytes + REQUEST_LOCATION),
                                         .key = (const char *)bytes + REQUEST_KEY};
    if (command < TIERCE__LM_PUT || command > TIERCE__LM_HEALTH || length < 0)
        return TIERCE_E_FORMAT;
    request.command = (enum tierce__lm_command)command;
    request.value_bytes = command == TIERCE__LM_PUT ? (uint32_t)length : 0;
    request.key_bytes = trimmed(request.key, TIERCE__LM_KEY_BYTES);
    if (request.key_bytes == 0 && command <= TIERCE__LM_EXIST)
        return TIERCE_E_FORMAT;
    TIERCE_DASSERT(request.key_bytes <= TIERCE__LM_KEY_BYTES);
    load_shape(&request.shape, bytes, REQUEST_DIMS);
    *out = request;
    return 0;
}

int tierce__lm_reply_decode(struct tierce__lm_reply *out,
                            const uint8_t bytes[TIERCE__LM_REPLY_BYTES])
{
    int32_t code = load(bytes), length = load(bytes + LENGTH);
    struct tierce__lm_reply reply = {.location = load(bytes + REPLY_LOCATION)};
    if ((code != TIERCE__LM_SUCCESS && code != TIERCE__LM_FAIL) || length < 0)
        return TIERCE_E_FORMAT;
    reply.code = (enum tierce__lm_code)code;
    reply.value_bytes = (uint32_t)length;
    load_shape(&reply.shape, bytes, REPLY_DIMS);
    *out = reply;
    return 0;
}

int tierce__lm_request_encode(uint8_t bytes[TIERCE__LM_REQUEST_BYTES],
                              const struct tierce__lm_request *request)
{
    if (request->key_bytes > TIERCE__LM_KEY_BYTES || request->value_bytes > INT32_MAX ||
        trimmed(request->key, request->key_bytes) != request->key_bytes)
        return TIERCE_E_LIMIT;
    TIERCE_DASSERT(request->command >= TIERCE__LM_PUT && request->command <= TIERCE__LM_HEALTH);
    store(bytes, (int32_t)request->command);
    store(bytes + LENGTH, (int32_t)request->value_bytes);
    store_shape(bytes, &request->shape, REQUEST_DIMS);
    store(bytes + REQUEST_LOCATION, request->location);
    memset(bytes + REQUEST_KEY, ' ', TIERCE__LM_KEY_BYTES);
    if (request->key_bytes > 0)
        memcpy(bytes + REQUEST_KEY, request->key, request->key_bytes);
    return 0;
}

int tierce__lm_reply_encode(uint8_t bytes[TIERCE__LM_REPLY_BYTES],
                            const struct tierce__lm_reply *reply)
{
    if (reply->value_bytes > INT32_MAX)
        return TIERCE_E_LIMIT;
    TIERCE_DASSERT(reply->code == TIERCE__LM_SUCCESS || reply->code == TIERCE__LM_FAIL);
    store(bytes, (int32_t)reply->code);
    store(bytes + LENGTH, (int32_t)reply->value_bytes);
    store_shape(bytes, &reply->shape, REPLY_DIMS);
    store(bytes + REPLY_LOCATION, reply->location);
    return 0;
}
