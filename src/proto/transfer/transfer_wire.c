/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/transfer/transfer_wire.h"
#include "base/assert.h"
#include "base/bytes.h"

#include <stdbool.h>
#include <string.h>

#define MAGIC 0x46525254u /* "TRRF" */

/* Where a frame has what. */
enum { AT_MAGIC = 0, AT_VERSION = 4 };
enum { HELLO_SPACE = 8, HELLO_TOKEN = 10, HELLO_ZERO = 12 };
enum { WELCOME_STATUS = 8, WELCOME_RIGHTS = 12, WELCOME_PIPELINE = 16, WELCOME_NAMES = 20 };
enum { WELCOME_INCARNATION = 24, WELCOME_ZERO = 40 };
enum { HEAD_OP = 0, HEAD_ZERO = 1, HEAD_NAME = 2, HEAD_WAIT = 4, HEAD_OFFSET = 8 };
enum { HEAD_LENGTH = 16, HEAD_TOTAL = 24 };
enum { REPLY_SEQUENCE = 2, REPLY_STATUS = 4, REPLY_BYTES = 8, REPLY_TOTAL = 16, REPLY_CURSOR = 24 };

static bool are_zero(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != 0)
            return false;
    }
    return true;
}

/* ---- the greeting ---------------------------------------------------------------------------- */

void tierce__transfer_hello_encode(uint8_t out[TIERCE__TRANSFER_HELLO_BYTES],
                                   const struct tierce__transfer_hello *hello)
{
    TIERCE_DASSERT(hello->space_bytes > 0 && hello->space_bytes <= TIERCE__TRANSFER_SPACE_MAX);
    TIERCE_DASSERT(hello->token_bytes <= TIERCE__TRANSFER_TOKEN_MAX);
    tierce__store_le32(out + AT_MAGIC, MAGIC);
    tierce__store_le32(out + AT_VERSION, hello->version);
    tierce__store_le16(out + HELLO_SPACE, hello->space_bytes);
    tierce__store_le16(out + HELLO_TOKEN, hello->token_bytes);
    tierce__store_le32(out + HELLO_ZERO, 0);
}

int tierce__transfer_hello_decode(struct tierce__transfer_hello *out,
                                  const uint8_t in[TIERCE__TRANSFER_HELLO_BYTES])
{
    struct tierce__transfer_hello hello = {.version = tierce__load_le32(in + AT_VERSION)};
    if (tierce__load_le32(in + AT_MAGIC) != MAGIC)
        return TIERCE_E_FORMAT;
    if (hello.version == TIERCE__TRANSFER_VERSION) {
        hello.space_bytes = tierce__load_le16(in + HELLO_SPACE);
        hello.token_bytes = tierce__load_le16(in + HELLO_TOKEN);
        if (hello.space_bytes == 0 || hello.space_bytes > TIERCE__TRANSFER_SPACE_MAX ||
            hello.token_bytes > TIERCE__TRANSFER_TOKEN_MAX ||
            tierce__load_le32(in + HELLO_ZERO) != 0)
            return TIERCE_E_FORMAT;
    }
    *out = hello;
    return 0;
}

void tierce__transfer_welcome_encode(uint8_t out[TIERCE__TRANSFER_WELCOME_BYTES],
                                     const struct tierce__transfer_welcome *welcome)
{
    TIERCE_DASSERT(welcome->status <= 0);
    TIERCE_DASSERT(welcome->pipeline > 0 && welcome->names_max > 0);
    memset(out, 0, TIERCE__TRANSFER_WELCOME_BYTES);
    tierce__store_le32(out + AT_MAGIC, MAGIC);
    tierce__store_le32(out + AT_VERSION, welcome->version);
    tierce__store_le32(out + WELCOME_STATUS, (uint32_t)welcome->status);
    tierce__store_le32(out + WELCOME_RIGHTS, welcome->rights);
    tierce__store_le32(out + WELCOME_PIPELINE, welcome->pipeline);
    tierce__store_le32(out + WELCOME_NAMES, welcome->names_max);
    memcpy(out + WELCOME_INCARNATION, welcome->incarnation, sizeof(welcome->incarnation));
}

int tierce__transfer_welcome_decode(struct tierce__transfer_welcome *out,
                                    const uint8_t in[TIERCE__TRANSFER_WELCOME_BYTES])
{
    struct tierce__transfer_welcome welcome = {.version = tierce__load_le32(in + AT_VERSION),
                                               .status =
                                                   (int32_t)tierce__load_le32(in + WELCOME_STATUS)};
    if (tierce__load_le32(in + AT_MAGIC) != MAGIC || welcome.status > 0)
        return TIERCE_E_FORMAT;
    if (welcome.version == TIERCE__TRANSFER_VERSION) {
        welcome.rights = tierce__load_le32(in + WELCOME_RIGHTS);
        welcome.pipeline = tierce__load_le32(in + WELCOME_PIPELINE);
        welcome.names_max = tierce__load_le32(in + WELCOME_NAMES);
        memcpy(welcome.incarnation, in + WELCOME_INCARNATION, sizeof(welcome.incarnation));
        if (welcome.pipeline == 0 || welcome.names_max == 0 ||
            welcome.names_max > TIERCE__TRANSFER_NAMES_MAX ||
            !are_zero(in + WELCOME_ZERO, TIERCE__TRANSFER_WELCOME_BYTES - WELCOME_ZERO))
            return TIERCE_E_FORMAT;
    }
    *out = welcome;
    return 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

void tierce__transfer_request_encode(uint8_t out[TIERCE__TRANSFER_HEAD_BYTES],
                                     const struct tierce__transfer_request *request)
{
    TIERCE_DASSERT(request->name_bytes <= TIERCE__TRANSFER_NAME_MAX);
    out[HEAD_OP] = (uint8_t)request->op;
    out[HEAD_ZERO] = 0;
    tierce__store_le16(out + HEAD_NAME, request->name_bytes);
    tierce__store_le32(out + HEAD_WAIT, request->wait_ms);
    tierce__store_le64(out + HEAD_OFFSET, request->offset);
    tierce__store_le64(out + HEAD_LENGTH, request->length);
    tierce__store_le64(out + HEAD_TOTAL, request->total);
}

/* A range within an object of `total` bytes; 0: of unknown length. */
static bool is_range(const struct tierce__transfer_request *request)
{
    uint64_t end;
    return request->length > 0 && tierce__add_ok(&end, request->offset, request->length) &&
           (request->total == 0 || end <= request->total);
}

static bool is_request(const struct tierce__transfer_request *request)
{
    bool has_name = request->name_bytes > 0;
    bool has_total = request->total != 0;
    if (request->name_bytes > TIERCE__TRANSFER_NAME_MAX)
        return false;
    switch (request->op) {
    case TIERCE__TRANSFER_OP_READ:
        return has_name && is_range(request);
    case TIERCE__TRANSFER_OP_WRITE:
        return has_name && has_total && is_range(request);
    case TIERCE__TRANSFER_OP_ASK:
        return !has_name && !has_total && request->offset <= TIERCE__TRANSFER_NAMES_MAX &&
               request->length <= TIERCE__TRANSFER_NAMES_BYTES_MAX;
    case TIERCE__TRANSFER_OP_DROP:
        return has_name && !has_total && request->offset == 0 && request->length == 0;
    case TIERCE__TRANSFER_OP_LIST:
        return !has_total && request->length == 0;
    default:
        return false;
    }
}

int tierce__transfer_request_decode(struct tierce__transfer_request *out,
                                    const uint8_t in[TIERCE__TRANSFER_HEAD_BYTES])
{
    struct tierce__transfer_request request = {
        .op = (enum tierce__transfer_op)in[HEAD_OP],
        .name_bytes = tierce__load_le16(in + HEAD_NAME),
        .wait_ms = tierce__load_le32(in + HEAD_WAIT),
        .offset = tierce__load_le64(in + HEAD_OFFSET),
        .length = tierce__load_le64(in + HEAD_LENGTH),
        .total = tierce__load_le64(in + HEAD_TOTAL),
    };
    if (in[HEAD_ZERO] != 0 || !is_request(&request))
        return TIERCE_E_FORMAT;
    *out = request;
    return 0;
}

/* ---- replies --------------------------------------------------------------------------------- */

void tierce__transfer_reply_encode(uint8_t out[TIERCE__TRANSFER_HEAD_BYTES],
                                   const struct tierce__transfer_reply *reply)
{
    TIERCE_DASSERT(reply->status <= 0);
    TIERCE_DASSERT(reply->status == 0 || reply->bytes == 0);
    out[HEAD_OP] = (uint8_t)reply->op;
    out[HEAD_ZERO] = 0;
    tierce__store_le16(out + REPLY_SEQUENCE, reply->sequence);
    tierce__store_le32(out + REPLY_STATUS, (uint32_t)reply->status);
    tierce__store_le64(out + REPLY_BYTES, reply->bytes);
    tierce__store_le64(out + REPLY_TOTAL, reply->total);
    tierce__store_le64(out + REPLY_CURSOR, reply->cursor);
}

static bool is_reply(const struct tierce__transfer_reply *reply)
{
    uint64_t bytes = reply->bytes;
    bool is_plain = reply->cursor == 0 && reply->total == 0;
    if (reply->status > 0 || (reply->status < 0 && bytes != 0))
        return false;
    switch (reply->op) {
    case TIERCE__TRANSFER_OP_READ:
        return reply->cursor == 0 && bytes <= reply->total && (bytes > 0) == (reply->status == 0);
    case TIERCE__TRANSFER_OP_WRITE:
    case TIERCE__TRANSFER_OP_DROP:
        return is_plain && bytes == 0;
    case TIERCE__TRANSFER_OP_ASK:
        return is_plain && bytes % 8 == 0 && bytes <= 8 * TIERCE__TRANSFER_NAMES_MAX;
    case TIERCE__TRANSFER_OP_LIST:
        return reply->total == 0 && bytes <= TIERCE__TRANSFER_PAGE_MAX;
    default:
        return false;
    }
}

int tierce__transfer_reply_decode(struct tierce__transfer_reply *out,
                                  const uint8_t in[TIERCE__TRANSFER_HEAD_BYTES])
{
    struct tierce__transfer_reply reply = {
        .op = (enum tierce__transfer_op)in[HEAD_OP],
        .sequence = tierce__load_le16(in + REPLY_SEQUENCE),
        .status = (int32_t)tierce__load_le32(in + REPLY_STATUS),
        .bytes = tierce__load_le64(in + REPLY_BYTES),
        .total = tierce__load_le64(in + REPLY_TOTAL),
        .cursor = tierce__load_le64(in + REPLY_CURSOR),
    };
    if (in[HEAD_ZERO] != 0 || !is_reply(&reply))
        return TIERCE_E_FORMAT;
    *out = reply;
    return 0;
}

/* ---- lists ----------------------------------------------------------------------------------- */

size_t tierce__transfer_name_encode(uint8_t *out, const char *text, size_t bytes)
{
    TIERCE_ASSERT(bytes > 0 && bytes <= TIERCE__TRANSFER_NAME_MAX);
    tierce__store_le16(out, (uint16_t)bytes);
    memcpy(out + 2, text, bytes);
    return 2 + bytes;
}

int tierce__transfer_name_decode(const char **text, size_t *bytes, const uint8_t *in, size_t count,
                                 size_t *at)
{
    TIERCE_DASSERT(*at <= count);
    if (count - *at < 2)
        return TIERCE_E_FORMAT;
    size_t length = tierce__load_le16(in + *at);
    if (length == 0 || length > TIERCE__TRANSFER_NAME_MAX || length > count - *at - 2 ||
        tierce__transfer_check_text(in + *at + 2, length) != 0)
        return TIERCE_E_FORMAT;
    *text = (const char *)in + *at + 2;
    *bytes = length;
    *at += 2 + length;
    return 0;
}

int tierce__transfer_check_text(const void *text, size_t bytes)
{
    return bytes > 0 && memchr(text, '\0', bytes) != NULL ? TIERCE_E_FORMAT : 0;
}
