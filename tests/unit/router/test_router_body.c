/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests in JSON and in MessagePack, and answers in both. */
#include "base/alloc.h"
#include "check_main.h"
#include "msgpack_write.h"
#include "proto/msgpack/msgpack.h"
#include "router/router_answer.h"
#include "router/router_body.h"

static struct tierce__line out;
static struct tierce__router_body body;
static const char *why;

static void teardown(void)
{
    tierce__line_clear(&out);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void begin(uint32_t members)
{
    out.bytes = 0;
    pack_map(&out, members);
}

static void pair(const char *name, const char *text)
{
    pack_text(&out, name);
    pack_text(&out, text);
}

static int read_out(void)
{
    return tierce__router_body_read(&body, out.text, out.bytes, true, &why);
}

/* Expects `count` numbers of an array from `first` on. */
static void expect_numbers(enum tierce__router_array which, uint64_t first, int64_t count)
{
    uint64_t *numbers = NULL;
    ck_assert_int_eq(tierce__router_body_numbers(&numbers, &body, which, 100), count);
    for (int64_t i = 0; i < count; i++)
        ck_assert_uint_eq(numbers[i], first + (uint64_t)i);
    tierce__free(numbers);
}

START_TEST(types)
{
    static const char *const msgpack[] = {"application/msgpack", "Application/MsgPack",
                                          "application/msgpack; charset=x", "application/msgpack "},
                             *const others[] = {NULL,
                                                "",
                                                "application/json",
                                                "application/msgpac",
                                                "application/msgpack2",
                                                "text/application/msgpack"};
    for (size_t i = 0; i < sizeof(msgpack) / sizeof(*msgpack); i++)
        ck_assert(tierce__router_body_is_msgpack(msgpack[i]));
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        ck_assert(!tierce__router_body_is_msgpack(others[i]));
}
END_TEST

START_TEST(the_same_fields)
{
    static const char json[] = "{\"model\": \"m \\\"1\\\"\", \"block_size\": 16, \"token_ids\": "
                               "[7, 8, 9], \"cache_salt\": null, "
                               "\"hash_profile\": {\"strategy\": \"s\"}, \"seq_hashes\": "
                               "[18446744073709551615], \"is\": true}";
    for (int i = 0; i < 2; i++) {
        char text[16];
        if (i == 0) {
            ck_assert_int_eq(tierce__router_body_read(&body, json, strlen(json), false, &why), 0);
        } else {
            begin(7);
            pair("model", "m \"1\"");
            pack_text(&out, "block_size");
            pack_uint(&out, 16);
            pack_text(&out, "token_ids");
            pack_array(&out, 3);
            for (uint64_t token = 7; token < 10; token++)
                pack_uint(&out, token);
            pack_text(&out, "cache_salt");
            pack_nil(&out);
            pack_text(&out, "hash_profile");
            pack_map(&out, 1);
            pair("strategy", "s");
            pack_text(&out, "seq_hashes");
            pack_array(&out, 1);
            pack_uint(&out, UINT64_MAX);
            pack_text(&out, "is");
            pack_be(&out, 0xc3, 0, 0);
            ck_assert_msg(read_out() == 0, "%s", why);
        }
        ck_assert(tierce__json_get_text(text, sizeof(text), body.rest.value, "model"));
        ck_assert_str_eq(text, "m \"1\"");
        ck_assert_int_eq(tierce__json_get_int(body.rest.value, "block_size", -1), 16);
        ck_assert_int_eq(tierce__json_value_kind(tierce__json_get(body.rest.value, "cache_salt")),
                         'n');
        ck_assert_int_eq(tierce__json_value_kind(tierce__json_get(body.rest.value, "hash_profile")),
                         '{');
        ck_assert(tierce__json_get_bool(body.rest.value, "is"));
        ck_assert_uint_eq(tierce__json_get(body.rest.value, "token_ids").length, 0);
        expect_numbers(TIERCE__ROUTER_TOKENS, 7, 3);
        expect_numbers(TIERCE__ROUTER_SEQ_HASHES, UINT64_MAX, 1);
        expect_numbers(TIERCE__ROUTER_BLOCK_HASHES, 0, -EINVAL);
        tierce__router_body_close(&body);
    }
}
END_TEST

/* Tokens as Mooncake's proxy sends them: 32 bits each, little-endian. */
START_TEST(tokens_as_bytes)
{
    static const uint8_t tokens[8] = {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    static const struct {
        const char *name;
        enum tierce__router_array which;
        uint8_t bytes;
        int64_t count;
    } rows[] = {{"token_ids", TIERCE__ROUTER_TOKENS, 8, 2},
                {"token_ids", TIERCE__ROUTER_TOKENS, 4, 1},
                {"token_ids", TIERCE__ROUTER_TOKENS, 7, -EINVAL},
                {"token_ids", TIERCE__ROUTER_TOKENS, 0, -EINVAL},
                {"seq_hashes", TIERCE__ROUTER_SEQ_HASHES, 8, -EINVAL}};
    uint64_t *numbers = NULL;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        begin(1);
        pack_text(&out, rows[i].name);
        pack_bytes(&out, tokens, rows[i].bytes);
        ck_assert_int_eq(read_out(), 0);
        expect_numbers(rows[i].which, 0xfffffffe, rows[i].count);
        if (rows[i].count == 2)
            ck_assert_int_eq(tierce__router_body_numbers(&numbers, &body, TIERCE__ROUTER_TOKENS, 1),
                             TIERCE_E_LIMIT);
        tierce__router_body_close(&body);
    }
    begin(1);
    pack_text(&out, "token_ids");
    tierce__line_put_bytes(&out, "\xc7\x03\x05\xaa\xbb\xcc", 6); /* an extension of type 5 */
    ck_assert_int_eq(read_out(), 0);
    expect_numbers(TIERCE__ROUTER_TOKENS, 0, -EINVAL);
    tierce__router_body_close(&body);
}
END_TEST

/* The fields that are not arrays have a limit, because they are copied. A long value is not. */
START_TEST(fields_that_are_too_long)
{
    char text[512];
    memset(text, 1, sizeof(text) - 1); /* six bytes each in JSON */
    text[sizeof(text) - 1] = '\0';
    for (uint32_t count = 300; count <= 400; count += 100) {
        begin(count);
        for (uint32_t i = 0; i < count; i++) {
            pack_text(&out, "x");
            pack_be(&out, 0xda, sizeof(text) - 1, 2);
            tierce__line_put_bytes(&out, text, sizeof(text) - 1);
        }
        ck_assert_int_eq(read_out(), count == 300 ? 0 : TIERCE_E_LIMIT);
        if (count == 300)
            tierce__router_body_close(&body);
    }
    out.bytes = 0;
    tierce__line_put(&out, "{\"prompt\": \"");
    for (uint32_t i = 0; i < 4000; i++)
        tierce__line_put(&out, "a prompt that has 400 kB; ");
    for (uint32_t i = 0; i < 40; i++)
        tierce__line_put_format(&out, "\", \"x%u\": \"y", i);
    tierce__line_put(&out, "\"}");
    ck_assert_int_eq(tierce__router_body_read(&body, out.text, out.bytes, false, &why), 0);
    ck_assert_int_eq(tierce__json_value_kind(tierce__json_get(body.rest.value, "prompt")), '[');
    ck_assert_uint_eq(tierce__json_get(body.rest.value, "x39").length, 3);
    tierce__router_body_close(&body);
}
END_TEST

START_TEST(numbers_that_are_refused)
{
    static const uint64_t tokens[] = {1ULL << 32, 1};
    begin(1);
    pack_text(&out, "token_ids");
    pack_array(&out, 2);
    pack_uint(&out, tokens[0]);
    pack_uint(&out, tokens[1]);
    ck_assert_int_eq(read_out(), 0);
    expect_numbers(TIERCE__ROUTER_TOKENS, 0, -EINVAL);
    tierce__router_body_close(&body);

    begin(1);
    pack_text(&out, "token_ids");
    pack_array(&out, 1);
    pack_be(&out, 0xff, 0, 0); /* -1 */
    ck_assert_int_eq(read_out(), 0);
    expect_numbers(TIERCE__ROUTER_TOKENS, 0, -EINVAL);
    tierce__router_body_close(&body);

    begin(1);
    pair("token_ids", "text");
    ck_assert_int_eq(read_out(), 0);
    expect_numbers(TIERCE__ROUTER_TOKENS, 0, -EINVAL);
    tierce__router_body_close(&body);
}
END_TEST

/* A value that no field accepts is there, as an empty array. */
START_TEST(values_of_other_kinds)
{
    char long_text[600];
    memset(long_text, 'a', sizeof(long_text));
    for (int i = 0; i < 5; i++) {
        begin(1);
        pack_text(&out, "x");
        if (i == 0)
            pack_real(&out, 16);
        else if (i == 1)
            pack_bytes(&out, "ab", 2);
        else if (i == 2)
            pack_array(&out, 0);
        else if (i == 3) /* a text with a NUL */
            tierce__line_put_bytes(&out,
                                   "\xa3"
                                   "a\0b",
                                   4);
        else { /* too long */
            pack_be(&out, 0xda, sizeof(long_text), 2);
            tierce__line_put_bytes(&out, long_text, sizeof(long_text));
        }
        ck_assert_msg(read_out() == 0, "%d: %s", i, why);
        ck_assert_int_eq(tierce__json_value_kind(tierce__json_get(body.rest.value, "x")), '[');
        tierce__router_body_close(&body);
    }
}
END_TEST

START_TEST(damaged_bodies)
{
    begin(2);
    pair("model", "m");
    pack_text(&out, "token_ids");
    pack_array(&out, 2);
    pack_uint(&out, 1);
    pack_uint(&out, 2);
    for (size_t bytes = 0; bytes < out.bytes; bytes++) {
        why = NULL;
        ck_assert_int_eq(tierce__router_body_read(&body, out.text, bytes, true, &why),
                         TIERCE_E_FORMAT);
        ck_assert_ptr_nonnull(why);
    }
    pack_nil(&out); /* after the end */
    ck_assert_int_eq(read_out(), TIERCE_E_FORMAT);
    out.bytes = 0;
    pack_array(&out, 0);
    ck_assert_int_eq(read_out(), TIERCE_E_FORMAT);
    ck_assert_str_eq(why, "a map is expected");
    ck_assert_int_eq(tierce__router_body_read(&body, "[1]", 3, false, &why), TIERCE_E_FORMAT);
    ck_assert_str_eq(why, "an object is expected");
}
END_TEST

static struct tierce__line *write_answer(struct tierce__router_answer *answer, bool is_msgpack)
{
    tierce__router_answer_begin(answer, is_msgpack);
    tierce__router_answer_text(answer, "status", "ok");
    tierce__router_answer_open(answer, "a\"b");
    tierce__router_answer_count(answer, "n", 300);
    tierce__router_answer_bool(answer, "exact", true);
    tierce__router_answer_close(answer);
    tierce__router_answer_open(answer, "none");
    tierce__router_answer_close(answer);
    return tierce__router_answer_end(answer);
}

START_TEST(answers)
{
    static const char json[] =
        "{\"status\":\"ok\",\"a\\\"b\":{\"n\":300,\"exact\":true},\"none\":{}}",
                      packed[] = "\xdf\0\0\0\x03\xa6status\xa2ok\xa3"
                                 "a\"b\xdf\0\0\0\x02\xa1n\xcd\x01\x2c\xa5"
                                 "exact\xc3\xa4none\xdf\0\0\0\0";
    struct tierce__router_answer answer;
    struct tierce__line *line = write_answer(&answer, false);
    ck_assert_uint_eq(line->bytes, sizeof(json) - 1);
    ck_assert_mem_eq(line->text, json, sizeof(json) - 1);
    tierce__line_clear(line);
    line = write_answer(&answer, true);
    ck_assert_uint_eq(line->bytes, sizeof(packed) - 1);
    ck_assert_mem_eq(line->text, packed, sizeof(packed) - 1);
    tierce__line_clear(line);
}
END_TEST

CHECK_MAIN("router_body", .teardown = teardown,
           .tests = {types, the_same_fields, tokens_as_bytes, numbers_that_are_refused,
                     values_of_other_kinds, fields_that_are_too_long, damaged_bodies, answers})
