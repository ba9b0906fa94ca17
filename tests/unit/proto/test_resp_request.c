/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/alloc.h"
#include "proto/resp/resp_request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tierce__resp_request_parser *parser;
static char seen[4096]; /* requests as "a|b|c;" */
static char large[256];
static bool takes_large;

static void set_up(void)
{
    parser = tierce__resp_request_create(&(struct tierce__resp_request_limits){
        .args_max = 8, .bytes_max = 100, .large_bytes = 20, .large_bytes_max = 200});
    ck_assert_ptr_nonnull(parser);
    seen[0] = '\0';
    memset(large, 0, sizeof(large));
    takes_large = true;
}

static void tear_down(void)
{
    tierce__resp_request_destroy(parser);
}

static void put(const char *text, size_t bytes)
{
    size_t at = strlen(seen);
    for (size_t i = 0; i < bytes; i++)
        at +=
            (size_t)snprintf(seen + at, sizeof(seen) - at, text[i] == '\0' ? "\\0" : "%c", text[i]);
}

static void note(int rc, const struct tierce__resp_request *request)
{
    for (size_t i = 0; i < request->count; i++) {
        const struct tierce__resp_arg *arg = &request->args[i];
        if (arg->text == NULL)
            put("<large>", 7);
        else
            put(arg->text, arg->bytes);
        if (arg->text != NULL)
            ck_assert_int_eq(arg->text[arg->bytes], '\0');
        put("|", 1);
    }
    if (rc == TIERCE__RESP_REQUEST_LARGE) {
        ck_assert_uint_eq(request->large, request->count);
        char text[32];
        put(text, (size_t)snprintf(text, sizeof(text),
                                   "%llu:", (unsigned long long)request->large_bytes));
        tierce__resp_request_into(parser, takes_large ? large : NULL);
    } else {
        put(";", 1);
    }
}

/* In pieces of `step`; if `direct`, the large argument is written directly to its memory. */
static int feed(const char *text, size_t bytes, size_t step, bool direct)
{
    size_t at = 0;
    while (at < bytes) {
        struct tierce__resp_request request;
        size_t used = 0, count = bytes - at < step ? bytes - at : step, room;
        void *into = direct ? tierce__resp_request_room(parser, &room) : NULL;
        if (into != NULL) {
            used = room < count ? room : count;
            memcpy(into, text + at, used);
            tierce__resp_request_filled(parser, used);
            at += used;
            continue;
        }
        int rc = tierce__resp_request_feed(parser, text + at, count, &used, &request);
        ck_assert(rc != TIERCE__RESP_REQUEST_MORE || used == count);
        at += used;
        if (rc < 0)
            return rc;
        if (rc != TIERCE__RESP_REQUEST_MORE)
            note(rc, &request);
    }
    return 0;
}

static void expect(const char *text, const char *wanted)
{
    for (size_t step = 1; step <= strlen(text); step++) {
        seen[0] = '\0';
        ck_assert_int_eq(feed(text, strlen(text), step, step % 2 == 0), 0);
        ck_assert_str_eq(seen, wanted);
        ck_assert(!tierce__resp_request_is_within(parser));
    }
}

static void expect_error(const char *text, int rc, const char *words)
{
    for (size_t step = 1; step <= strlen(text); step++) {
        tear_down();
        set_up();
        ck_assert_int_eq(feed(text, strlen(text), step, false), rc);
        ck_assert_ptr_nonnull(strstr(tierce__resp_request_error(parser), words));
        size_t used;
        struct tierce__resp_request request;
        ck_assert_int_lt(tierce__resp_request_feed(parser, "x", 1, &used, &request), 0);
    }
}

START_TEST(test_arrays)
{
    expect("*1\r\n$4\r\nPING\r\n", "PING|;");
    expect("*2\r\n$3\r\nGET\r\n$0\r\n\r\n*1\r\n$1\r\nx\r\n", "GET||;x|;");
    expect("*0\r\n*-1\r\n*1\r\n$1\r\nx\r\n", "x|;");
    expect("*1\r\n$3\r\na\nb\r\n", "a\nb|;");
}
END_TEST

START_TEST(test_a_nul_in_an_argument)
{
    static const char text[] = "*2\r\n$3\r\na\0b\r\n$1\r\nc\r\n";
    ck_assert_int_eq(feed(text, sizeof(text) - 1, 5, false), 0);
    ck_assert_str_eq(seen, "a\\0b|c|;");
}
END_TEST

START_TEST(test_inline)
{
    expect("PING\r\n", "PING|;");
    expect("  set  k \"a b\\n\\x41\\\"\" 'it\\'s' \r\nPING\n\r\n\n", "set|k|a b\nA\"|it's|;PING|;");
    expect("set k \"\" ''\r\n", "set|k|||;");
    expect("a b\r\n*1\r\n$1\r\nx\r\nc\r\n", "a|b|;x|;c|;");
    expect_error("set k \"a\r\n", TIERCE_E_FORMAT, "unbalanced quotes");
    expect_error("set k \"a\"b\r\n", TIERCE_E_FORMAT, "unbalanced quotes");
    expect_error("1 2 3 4 5 6 7 8 9\r\n", TIERCE_E_LIMIT, "too many");
}
END_TEST

START_TEST(test_a_large_argument_goes_where_it_belongs)
{
    const char *value = "0123456789abcdefghij";
    const char *text = "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$20\r\n0123456789abcdefghij\r\n$2\r\nEX\r\n"
                       "$2\r\n10\r\n*1\r\n$1\r\nx\r\n";
    expect(text, "SET|k|20:SET|k|<large>|EX|10|;x|;");
    ck_assert_mem_eq(large, value, 20);
    takes_large = false;
    memset(large, 0, sizeof(large));
    expect(text, "SET|k|20:SET|k|<large>|EX|10|;x|;");
    ck_assert_int_eq(large[0], '\0');
}
END_TEST

/* There is a place for one; the others are kept like all arguments. */
START_TEST(test_several_large_arguments)
{
    expect("*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$20\r\n0123456789abcdefghij\r\n$1\r\nb\r\n"
           "$24\r\nabcdefghijklmnopqrstuvwx\r\n*1\r\n$1\r\nx\r\n",
           "MSET|a|20:MSET|a|<large>|b|abcdefghijklmnopqrstuvwx|;x|;");
    ck_assert_mem_eq(large, "0123456789abcdefghij", 20);
    ck_assert_uint_eq(tierce__resp_request_large_filled(parser), 20);
}
END_TEST

START_TEST(test_what_is_wrong)
{
    expect_error("*x\r\n", TIERCE_E_FORMAT, "multibulk length");
    expect_error("*\r\n", TIERCE_E_FORMAT, "multibulk length");
    expect_error("*99999999999999999999\r\n", TIERCE_E_FORMAT, "multibulk length");
    expect_error("*1\r\n+OK\r\n", TIERCE_E_FORMAT, "expected '$'");
    expect_error("*1\r\n\r\n", TIERCE_E_FORMAT, "expected '$'");
    expect_error("*1\r\n$-1\r\n", TIERCE_E_FORMAT, "bulk length");
    expect_error("*1\r\n$1x\r\n", TIERCE_E_FORMAT, "bulk length");
    expect_error("*1\r\n$1\r\nab\r\n", TIERCE_E_FORMAT, "line end");
    expect_error("*1\r\n$1\r\na\rb", TIERCE_E_FORMAT, "line end");
    expect_error("*111111111111111111111111111111111111111111", TIERCE_E_FORMAT, "multibulk");
}
END_TEST

START_TEST(test_what_is_too_much)
{
    expect_error("*9\r\n", TIERCE_E_LIMIT, "multibulk length");
    expect_error("*2\r\n$201\r\n", TIERCE_E_LIMIT, "bulk length");
    expect_error("*2\r\n$9223372036854775807\r\n", TIERCE_E_LIMIT, "bulk length");
    expect_error("*3\r\n$20\r\n0123456789abcdefghij\r\n$101\r\n", TIERCE_E_LIMIT, "too big");
    expect_error("*7\r\n$19\r\n0123456789abcdefghi\r\n$19\r\n0123456789abcdefghi\r\n"
                 "$19\r\n0123456789abcdefghi\r\n$19\r\n0123456789abcdefghi\r\n"
                 "$19\r\n0123456789abcdefghi\r\n$19\r\n",
                 TIERCE_E_LIMIT, "too big");
    char line[128];
    memset(line, 'a', sizeof(line) - 1);
    line[sizeof(line) - 1] = '\0';
    expect_error(line, TIERCE_E_LIMIT, "inline");
}
END_TEST

/* A client that sends one large request and no more holds no memory for it. */
START_TEST(test_memory_goes_with_its_request)
{
    enum { ARGS = 10000 };
    tierce__resp_request_limit(parser,
                               &(struct tierce__resp_request_limits){
                                   .args_max = ARGS, .bytes_max = 1 << 20, .large_bytes = 1 << 20});
    uint64_t live = tierce__alloc_live();
    size_t used, at = 0;
    struct tierce__resp_request request;
    char *text = malloc(16 + 10 * ARGS);
    at += (size_t)snprintf(text, 16, "*%d\r\n", ARGS);
    for (int i = 0; i < ARGS; i++, at += 10)
        memcpy(text + at, "$4\r\nabcd\r\n", 10);
    ck_assert_int_eq(tierce__resp_request_feed(parser, text, at, &used, &request),
                     TIERCE__RESP_REQUEST_WHOLE);
    ck_assert_uint_eq(request.count, ARGS);
    tierce__resp_request_done(parser);
    ck_assert_uint_eq(tierce__alloc_live(), live);
    /* No memory of an incomplete request is freed. */
    ck_assert_int_eq(feed("*1\r\n$4\r\nab", 10, 10, false), 0);
    tierce__resp_request_done(parser);
    ck_assert_int_eq(feed("cd\r\n", 4, 4, false), 0);
    ck_assert_str_eq(seen, "abcd|;");
    free(text);
}
END_TEST

START_TEST(test_no_memory)
{
    const char *text = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$19\r\n0123456789abcdefghi\r\nget k\r\n";
    for (uint64_t nth = 1; nth <= 4; nth++) {
        tear_down();
        uint64_t live = tierce__alloc_live();
        set_up();
        tierce__alloc_fail_nth(nth);
        int rc = feed(text, strlen(text), 7, false);
        tierce__alloc_fail_nth(0);
        ck_assert(rc == -ENOMEM || (rc == 0 && nth > 3));
        tear_down();
        ck_assert_uint_eq(tierce__alloc_live(), live);
        set_up();
    }
}
END_TEST

CHECK_MAIN("resp_request", .setup = set_up, .teardown = tear_down,
           .tests = {test_arrays, test_a_nul_in_an_argument, test_inline,
                     test_a_large_argument_goes_where_it_belongs, test_several_large_arguments,
                     test_what_is_wrong, test_what_is_too_much, test_memory_goes_with_its_request,
                     test_no_memory})
