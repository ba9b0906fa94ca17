/* SPDX-License-Identifier: Apache-2.0 */
/* The frames of transfer://: their bytes, and every field that a decoder must reject. */
#include "base/bytes.h"
#include "check_main.h"
#include "proto/transfer/transfer_wire.h"

enum { HEAD = TIERCE__TRANSFER_HEAD_BYTES };

static void expect_bytes(const uint8_t *bytes, size_t count, const char *hex)
{
    char text[2 * TIERCE__TRANSFER_WELCOME_BYTES + 1];
    ck_assert_uint_le(count, TIERCE__TRANSFER_WELCOME_BYTES);
    tierce__hex_encode(text, bytes, count);
    ck_assert_str_eq(text, hex);
}

/* As docs/inside/format/transfer.md has them. */
START_TEST(frames_are_as_specified)
{
    uint8_t bytes[TIERCE__TRANSFER_WELCOME_BYTES];
    tierce__transfer_hello_encode(bytes, &(struct tierce__transfer_hello){
                                             .version = 1, .space_bytes = 6, .token_bytes = 258});
    expect_bytes(bytes, TIERCE__TRANSFER_HELLO_BYTES, "54525246010000000600020100000000");
    tierce__transfer_welcome_encode(bytes, &(struct tierce__transfer_welcome){.version = 1,
                                                                              .status = -2,
                                                                              .rights = 3,
                                                                              .pipeline = 8,
                                                                              .names_max = 128,
                                                                              .incarnation = {9}});
    expect_bytes(
        bytes, TIERCE__TRANSFER_WELCOME_BYTES,
        "5452524601000000feffffff030000000800000080000000"
        "09000000000000000000000000000000000000000000000000000000000000000000000000000000");
    tierce__transfer_request_encode(
        bytes, &(struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_WRITE,
                                                  .name_bytes = 513 - 1,
                                                  .wait_ms = 0x01020304,
                                                  .offset = 5,
                                                  .length = 0x0102030405060708,
                                                  .total = 6});
    expect_bytes(bytes, HEAD, "0200000204030201050000000000000008070605040302010600000000000000");
    tierce__transfer_reply_encode(bytes,
                                  &(struct tierce__transfer_reply){.op = TIERCE__TRANSFER_OP_LIST,
                                                                   .sequence = 0xfffe,
                                                                   .bytes = 7,
                                                                   .cursor = 0x0102030405060708});
    expect_bytes(bytes, HEAD, "0500feff00000000070000000000000000000000000000000807060504030201");
}
END_TEST

/* ---- requests -------------------------------------------------------------------------------- */

#define READ  TIERCE__TRANSFER_OP_READ
#define WRITE TIERCE__TRANSFER_OP_WRITE
#define ASK   TIERCE__TRANSFER_OP_ASK
#define DROP  TIERCE__TRANSFER_OP_DROP
#define LIST  TIERCE__TRANSFER_OP_LIST
#define BAD   TIERCE_E_FORMAT

static const struct {
    struct tierce__transfer_request request;
    int status;
} requests[] = {
    {{.op = READ, .name_bytes = 1, .length = 1}, 0},
    {{.op = READ, .name_bytes = 512, .offset = 9, .length = 1, .total = 10}, 0},
    {{.op = READ, .name_bytes = 1, .offset = UINT64_MAX - 1, .length = 1}, 0},
    {{.op = READ, .name_bytes = 0, .length = 1}, BAD},
    {{.op = READ, .name_bytes = 513, .length = 1}, BAD},
    {{.op = READ, .name_bytes = 1, .length = 0}, BAD},
    {{.op = READ, .name_bytes = 1, .offset = UINT64_MAX, .length = 1}, BAD},
    {{.op = READ, .name_bytes = 1, .offset = 1, .length = UINT64_MAX}, BAD},
    {{.op = READ, .name_bytes = 1, .offset = 10, .length = 1, .total = 10}, BAD},
    {{.op = WRITE, .name_bytes = 1, .length = 1, .total = 1}, 0},
    {{.op = WRITE, .name_bytes = 1, .offset = 3, .length = 2, .total = 5}, 0},
    {{.op = WRITE, .name_bytes = 0, .length = 1, .total = 1}, BAD},
    {{.op = WRITE, .name_bytes = 1, .length = 0, .total = 1}, BAD},
    {{.op = WRITE, .name_bytes = 1, .length = 1, .total = 0}, BAD},
    {{.op = WRITE, .name_bytes = 1, .length = 2, .total = 1}, BAD},
    {{.op = WRITE, .name_bytes = 1, .offset = 4, .length = 2, .total = 5}, BAD},
    {{.op = ASK}, 0},
    {{.op = ASK, .offset = 128, .length = 128 * 514}, 0},
    {{.op = ASK, .offset = 129, .length = 1}, BAD},
    {{.op = ASK, .offset = 128, .length = 128 * 514 + 1}, BAD},
    {{.op = ASK, .offset = 1, .length = UINT64_MAX}, BAD},
    {{.op = ASK, .name_bytes = 1}, BAD},
    {{.op = ASK, .total = 1}, BAD},
    {{.op = DROP, .name_bytes = 1}, 0},
    {{.op = DROP, .name_bytes = 0}, BAD},
    {{.op = DROP, .name_bytes = 1, .offset = 1}, BAD},
    {{.op = DROP, .name_bytes = 1, .length = 1}, BAD},
    {{.op = DROP, .name_bytes = 1, .total = 1}, BAD},
    {{.op = LIST}, 0},
    {{.op = LIST, .name_bytes = 512, .offset = UINT64_MAX}, 0},
    {{.op = LIST, .name_bytes = 1, .length = 1}, BAD},
    {{.op = LIST, .name_bytes = 1, .total = 1}, BAD},
    {{.op = (enum tierce__transfer_op)0, .name_bytes = 1}, BAD},
    {{.op = (enum tierce__transfer_op)6, .name_bytes = 1}, BAD},
};

/* The encoder asserts that a name is short, so that length is written by hand. */
START_TEST(requests_are_bounded)
{
    struct tierce__transfer_request request = requests[_i].request, out = {.wait_ms = 77};
    uint8_t bytes[HEAD];
    uint16_t name_bytes = request.name_bytes;
    request.name_bytes = 0;
    request.wait_ms = 5;
    tierce__transfer_request_encode(bytes, &request);
    tierce__store_le16(bytes + 2, name_bytes);
    ck_assert_int_eq(tierce__transfer_request_decode(&out, bytes), requests[_i].status);
    ck_assert_uint_eq(out.wait_ms, requests[_i].status == 0 ? 5 : 77);
    if (requests[_i].status == 0) {
        ck_assert_uint_eq(out.op, request.op);
        ck_assert_uint_eq(out.name_bytes, name_bytes);
        ck_assert_uint_eq(out.offset, request.offset);
        ck_assert_uint_eq(out.length, request.length);
        ck_assert_uint_eq(out.total, request.total);
    }
    bytes[1] = 1;
    ck_assert_int_eq(tierce__transfer_request_decode(&out, bytes), BAD);
}
END_TEST

/* ---- replies --------------------------------------------------------------------------------- */

static const struct {
    struct tierce__transfer_reply reply;
    int status;
} replies[] = {
    {{.op = READ, .bytes = 5, .total = 5}, 0},
    {{.op = READ, .status = TIERCE_E_MISS}, 0},
    {{.op = READ, .status = TIERCE_E_FORMAT, .total = 9}, 0},
    {{.op = READ, .bytes = 6, .total = 5}, BAD},
    {{.op = READ, .bytes = 0, .total = 5}, BAD},
    {{.op = READ, .bytes = 5, .total = 5, .cursor = 1}, BAD},
    {{.op = READ, .status = TIERCE_E_MISS, .bytes = 1, .total = 5}, BAD},
    {{.op = READ, .status = 1}, BAD},
    {{.op = WRITE}, 0},
    {{.op = WRITE, .status = TIERCE_E_FULL}, 0},
    {{.op = WRITE, .bytes = 1}, BAD},
    {{.op = WRITE, .total = 1}, BAD},
    {{.op = WRITE, .cursor = 1}, BAD},
    {{.op = ASK, .bytes = 8 * 128}, 0},
    {{.op = ASK, .bytes = 8 * 129}, BAD},
    {{.op = ASK, .bytes = 7}, BAD},
    {{.op = ASK, .total = 7}, BAD},
    {{.op = DROP}, 0},
    {{.op = DROP, .bytes = 8}, BAD},
    {{.op = LIST, .bytes = 1 << 20, .cursor = 9}, 0},
    {{.op = LIST, .bytes = (1 << 20) + 1}, BAD},
    {{.op = LIST, .bytes = UINT64_MAX}, BAD},
    {{.op = LIST, .total = 1}, BAD},
    {{.op = (enum tierce__transfer_op)0}, BAD},
    {{.op = (enum tierce__transfer_op)6}, BAD},
};

START_TEST(replies_are_bounded)
{
    const struct tierce__transfer_reply *reply = &replies[_i].reply;
    struct tierce__transfer_reply out = {.sequence = 77};
    uint8_t bytes[HEAD] = {(uint8_t)reply->op, 0, 5};
    tierce__store_le32(bytes + 4, (uint32_t)reply->status);
    tierce__store_le64(bytes + 8, reply->bytes);
    tierce__store_le64(bytes + 16, reply->total);
    tierce__store_le64(bytes + 24, reply->cursor);
    ck_assert_int_eq(tierce__transfer_reply_decode(&out, bytes), replies[_i].status);
    ck_assert_uint_eq(out.sequence, replies[_i].status == 0 ? 5 : 77);
    if (replies[_i].status == 0) {
        uint8_t again[HEAD];
        tierce__transfer_reply_encode(again, &out);
        ck_assert_mem_eq(again, bytes, HEAD);
    }
    bytes[1] = 1;
    ck_assert_int_eq(tierce__transfer_reply_decode(&out, bytes), BAD);
}
END_TEST

/* ---- the greeting ---------------------------------------------------------------------------- */

static int decode_hello(const char *hex, struct tierce__transfer_hello *out)
{
    uint8_t bytes[TIERCE__TRANSFER_HELLO_BYTES];
    ck_assert(tierce__hex_decode(bytes, sizeof(bytes), hex));
    return tierce__transfer_hello_decode(out, bytes);
}

START_TEST(greetings_are_bounded)
{
    struct tierce__transfer_hello out = {.version = 77};
    ck_assert_int_eq(decode_hello("54525247010000000600000000000000", &out), BAD); /* magic */
    ck_assert_int_eq(decode_hello("54525246010000000000000000000000", &out), BAD); /* no space */
    ck_assert_int_eq(decode_hello("54525246010000004100000000000000", &out), BAD);
    ck_assert_int_eq(decode_hello("54525246010000000600010400000000", &out), BAD);
    ck_assert_int_eq(decode_hello("54525246010000000600000001000000", &out), BAD); /* zero */
    ck_assert_uint_eq(out.version, 77);
    ck_assert_int_eq(decode_hello("54525246010000004000000400000000", &out), 0);
    ck_assert_uint_eq(out.space_bytes, 64);
    ck_assert_uint_eq(out.token_bytes, 1024);
    /* Of another version, nothing else is known. */
    ck_assert_int_eq(decode_hello("5452524602000000ffffffffffffffff", &out), 0);
    ck_assert_uint_eq(out.version, 2);
    ck_assert_uint_eq(out.space_bytes, 0);
}
END_TEST

static int change_welcome(size_t at, uint8_t value, struct tierce__transfer_welcome *out)
{
    uint8_t bytes[TIERCE__TRANSFER_WELCOME_BYTES];
    tierce__transfer_welcome_encode(
        bytes, &(struct tierce__transfer_welcome){
                   .version = 1, .rights = 1, .pipeline = 8, .names_max = 128});
    bytes[at] = value;
    return tierce__transfer_welcome_decode(out, bytes);
}

START_TEST(welcomes_are_bounded)
{
    static const struct {
        size_t at;
        uint8_t value;
        int status;
    } changes[] = {{0, 'X', BAD}, {8, 1, BAD},  {16, 0, BAD}, {20, 0, BAD}, {20, 129, BAD},
                   {21, 1, BAD},  {40, 1, BAD}, {63, 1, BAD}, {24, 7, 0},   {12, 9, 0}};
    struct tierce__transfer_welcome out;
    for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++)
        ck_assert_int_eq(change_welcome(changes[i].at, changes[i].value, &out), changes[i].status);
    ck_assert_int_eq(change_welcome(4, 2, &out), 0);
    ck_assert_uint_eq(out.version, 2);
    ck_assert_uint_eq(out.pipeline, 0);
}
END_TEST

/* ---- lists ----------------------------------------------------------------------------------- */

START_TEST(lists_of_names)
{
    uint8_t list[2 * (2 + TIERCE__TRANSFER_NAME_MAX)];
    char longest[TIERCE__TRANSFER_NAME_MAX];
    const char *text = NULL;
    size_t bytes = 0, at = 0;
    memset(longest, 'n', sizeof(longest));
    size_t used = tierce__transfer_name_encode(list, "a", 1);
    used += tierce__transfer_name_encode(list + used, longest, sizeof(longest));
    ck_assert_uint_eq(used, 3 + 2 + sizeof(longest));
    ck_assert_int_eq(tierce__transfer_name_decode(&text, &bytes, list, used, &at), 0);
    ck_assert(bytes == 1 && text[0] == 'a');
    ck_assert_int_eq(tierce__transfer_name_decode(&text, &bytes, list, used - 1, &at), BAD);
    ck_assert_int_eq(tierce__transfer_name_decode(&text, &bytes, list, used, &at), 0);
    ck_assert_uint_eq(at, used);
    ck_assert_mem_eq(text, longest, bytes);
    ck_assert_int_eq(tierce__transfer_name_decode(&text, &bytes, list, used, &at), BAD);
}
END_TEST

START_TEST(names_in_lists_are_bounded)
{
    static const uint8_t lists[][4] = {
        {0, 0, 'a', 'b'}, {1, 2, 'a', 'b'}, {3, 0, 'a', 'b'}, {2, 0, 'a', 0}};
    const char *text = NULL;
    for (size_t i = 0; i < 4; i++) {
        size_t bytes, at = 0;
        ck_assert_int_eq(tierce__transfer_name_decode(&text, &bytes, lists[i], 4, &at), BAD);
        ck_assert_uint_eq(at, 0);
    }
    ck_assert_int_eq(tierce__transfer_check_text("a\0", 2), BAD);
    ck_assert_int_eq(tierce__transfer_check_text("", 0), 0);
}
END_TEST

CHECK_MAIN("transfer wire",
           .tests = {frames_are_as_specified, greetings_are_bounded, welcomes_are_bounded,
                     lists_of_names, names_in_lists_are_bounded},
           .loops = {{requests_are_bounded, 0, sizeof(requests) / sizeof(*requests)},
                     {replies_are_bounded, 0, sizeof(replies) / sizeof(*replies)}})
