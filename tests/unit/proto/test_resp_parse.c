/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/alloc.h"
#include "net/redis/resp_client.h"
#include "net/redis/resp_uri.h"

#include <errno.h>
#include <string.h>

static struct tierce__resp_parser *parser;
static struct tierce__resp_value value;

static void set_up(void)
{
    parser = tierce__resp_parser_create(1000, 1u << 20);
    ck_assert_ptr_nonnull(parser);
}

static void tear_down(void)
{
    tierce__resp_parser_destroy(parser);
}

/* The whole text in pieces of `step` bytes; unused bytes are passed again. */
static int feed(const char *text, size_t bytes, size_t step, size_t *used)
{
    size_t at = 0, end = 0;
    for (;;) {
        size_t n;
        end = end + step < bytes ? end + step : bytes;
        int rc = tierce__resp_parser_feed(parser, text + at, end - at, &n, &value);
        at += n;
        *used = at;
        if (rc != 0 || end == bytes)
            return rc;
    }
}

static int feed_all(const char *text)
{
    size_t used;
    tierce__resp_parser_reset(parser);
    return feed(text, strlen(text), strlen(text), &used);
}

START_TEST(test_single)
{
    ck_assert_int_eq(feed_all("+OK\r\n"), 1);
    ck_assert_int_eq(value.type, TIERCE__RESP_STRING);
    ck_assert_str_eq(value.text, "OK");
    ck_assert_int_eq(feed_all("+\r\n"), 1);
    ck_assert_uint_eq(value.bytes, 0);
    ck_assert_int_eq(feed_all("-MOVED 3999 127.0.0.1:6381\r\n"), 1);
    ck_assert(tierce__resp_is_error(&value, "MOVED"));
    ck_assert(!tierce__resp_is_error(&value, "MOVE"));
    ck_assert(!tierce__resp_is_error(&value, "MOVED 3999 127.0.0.1:63811"));
    ck_assert_int_eq(feed_all(":-9223372036854775808\r\n"), 1);
    ck_assert_int_eq(value.integer, INT64_MIN);
    ck_assert_int_eq(feed_all(":+7\r\n"), 1);
    ck_assert_int_eq(value.integer, 7);
    ck_assert_int_eq(feed_all("$-1\r\n"), 1);
    ck_assert_int_eq(value.type, TIERCE__RESP_NIL);
    ck_assert_int_eq(feed_all("*-1\r\n"), 1);
    ck_assert_int_eq(value.type, TIERCE__RESP_NIL);
    ck_assert_int_eq(feed_all("*0\r\n"), 1);
    ck_assert_int_eq(value.type, TIERCE__RESP_ARRAY);
    ck_assert_uint_eq(value.count, 0);
    ck_assert_int_eq(feed_all("$0\r\n\r\n"), 1);
    ck_assert_str_eq(value.text, "");
    ck_assert_int_eq(feed_all("$4\r\n\r\n\r\n\r\n"), 1);
    ck_assert_str_eq(value.text, "\r\n\r\n");
}
END_TEST

/* In pieces of every size; the bytes of the next reply are left. */
START_TEST(test_pieces)
{
    static const char text[] = "*3\r\n*2\r\n:1\r\n$3\r\na\0b\r\n-ERR x\r\n*1\r\n*1\r\n$-1\r\n+next";
    size_t bytes = sizeof(text) - 1;
    for (size_t step = 1; step <= bytes; step++) {
        size_t used;
        tierce__resp_parser_reset(parser);
        ck_assert_int_eq(feed(text, bytes, step, &used), 1);
        ck_assert_uint_eq(used, bytes - 5);
        ck_assert_uint_eq(value.count, 3);
        ck_assert_int_eq(value.items[0].items[0].integer, 1);
        ck_assert_uint_eq(value.items[0].items[1].bytes, 3);
        ck_assert_mem_eq(value.items[0].items[1].text, "a\0b", 4);
        ck_assert_str_eq(value.items[1].text, "ERR x");
        ck_assert_int_eq(value.items[2].items[0].items[0].type, TIERCE__RESP_NIL);
    }
}
END_TEST

START_TEST(test_broken)
{
    static const char *const texts[] = {
        "x\r\n",
        "\r\n",
        "\n",
        "+a\n",
        ":\r\n",
        ":-\r\n",
        ":1 \r\n",
        ":9223372036854775808\r\n",
        ":99999999999999999999999\r\n",
        "$-2\r\n",
        "$x\r\n",
        "*-2\r\n",
        "*1x\r\n",
        "$1\r\nabc",
        "$0\r\nab",
        "*1\r\n%1\r\n",
        "_\r\n",
        ":--1\r\n",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        ck_assert_msg(feed_all(texts[i]) == TIERCE_E_FORMAT, "%s", texts[i]);
}
END_TEST

START_TEST(test_limits)
{
    ck_assert_int_eq(feed_all("$1001\r\n"), TIERCE_E_LIMIT);
    ck_assert_int_eq(feed_all("$1000\r\n"), 0);
    ck_assert_int_eq(feed_all("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"), 1);
    ck_assert_int_eq(feed_all("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"),
                     TIERCE_E_LIMIT);
    /* An announced length costs no memory before the bytes arrive. */
    uint64_t live = tierce__alloc_live();
    ck_assert_int_eq(feed_all("*9223372036854775807\r\n:1\r\n"), 0);
    ck_assert_uint_eq(tierce__alloc_live(), live);
    char *line = malloc(TIERCE__RESP_LINE_BYTES_MAX);
    memset(line, '+', TIERCE__RESP_LINE_BYTES_MAX);
    size_t used;
    tierce__resp_parser_reset(parser);
    ck_assert_int_eq(
        tierce__resp_parser_feed(parser, line, TIERCE__RESP_LINE_BYTES_MAX - 1, &used, &value), 0);
    ck_assert_int_eq(
        tierce__resp_parser_feed(parser, line, TIERCE__RESP_LINE_BYTES_MAX, &used, &value),
        TIERCE_E_LIMIT);
    /* All values together. */
    tierce__resp_parser_reset(parser);
    int rc = 1;
    for (size_t i = 0; i < 1000 && rc == 1; i++) {
        memcpy(line + 4000, "\r\n", 2);
        rc = tierce__resp_parser_feed(parser, line, 4002, &used, &value);
    }
    ck_assert_int_eq(rc, TIERCE_E_LIMIT);
    free(line);
}
END_TEST

/* Into the caller's memory, by feeding and in place, whole and cut. */
START_TEST(test_into)
{
    static const char text[] = "$10\r\n0123456789\r\n";
    for (size_t step = 1; step < sizeof(text); step++) {
        for (size_t capacity = 0; capacity < 12; capacity++) {
            char memory[16] = "################", want[16];
            size_t used, kept = capacity < 10 ? capacity : 10;
            memcpy(want, memory, 16);
            memcpy(want, "0123456789", kept);
            tierce__resp_parser_reset(parser);
            tierce__resp_parser_into(parser, memory, capacity);
            ck_assert_int_eq(feed(text, sizeof(text) - 1, step, &used), 1);
            ck_assert_ptr_null(value.text);
            ck_assert_uint_eq(value.bytes, 10);
            ck_assert_mem_eq(memory, want, 16);
        }
    }
    char memory[10];
    size_t used, room;
    tierce__resp_parser_reset(parser);
    ck_assert_ptr_null(tierce__resp_parser_room(parser, &room));
    tierce__resp_parser_into(parser, memory, 10);
    ck_assert_int_eq(feed("$10\r\n01", 7, 7, &used), 0);
    ck_assert_ptr_eq(tierce__resp_parser_room(parser, &room), memory + 2);
    ck_assert_uint_eq(room, 8);
    memcpy(memory + 2, "23456789", 8);
    tierce__resp_parser_filled(parser, 8);
    ck_assert_ptr_null(tierce__resp_parser_room(parser, &room));
    ck_assert_int_eq(feed("\r\n", 2, 1, &used), 1);
    ck_assert_mem_eq(memory, "0123456789", 10);
    /* Only for one reply, and only for what is a bulk string. */
    ck_assert_int_eq(feed("$1\r\nx\r\n", 7, 7, &used), 1);
    ck_assert_str_eq(value.text, "x");
    tierce__resp_parser_into(parser, memory, 10);
    ck_assert_int_eq(feed("*1\r\n$1\r\ny\r\n", 11, 11, &used), 1);
    ck_assert_str_eq(value.items[0].text, "y");
    tierce__resp_parser_into(parser, memory, 10);
    ck_assert_int_eq(feed("$-1\r\n$1\r\nz\r\n", 5, 5, &used), 1);
    ck_assert_int_eq(feed("$1\r\nz\r\n", 7, 7, &used), 1);
    ck_assert_str_eq(value.text, "z");
}
END_TEST

START_TEST(test_no_memory)
{
    static const char text[] = "*2\r\n$900\r\n";
    size_t used;
    tierce__alloc_fail_nth(1);
    ck_assert_ptr_null(tierce__resp_parser_create(10, 1000));
    tierce__alloc_fail_nth(0);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(feed_all("$900\r\n"), 0);
    tierce__resp_parser_reset(parser);
    tierce__alloc_fail_nth(1);
    int rc = 0;
    for (int i = 0; i < 10 && rc == 0; i++) {
        rc = feed(text, sizeof(text) - 1, sizeof(text) - 1, &used);
        char x[902];
        memset(x, 'x', 900);
        memcpy(x + 900, "\r\n", 2);
        if (rc == 0)
            rc = feed(x, 902, 902, &used);
    }
    tierce__alloc_fail_nth(0);
    ck_assert_int_eq(rc, -ENOMEM);
    ck_assert_int_eq(feed_all("+OK\r\n"), 1);
}
END_TEST

/* ---- URIs ------------------------------------------------------------------------------------ */

static struct tierce__resp_uri uri;
static char why[TIERCE__RESP_WHY_BYTES];

START_TEST(test_uri)
{
    ck_assert_int_eq(tierce__resp_uri_parse(&uri,
                                            "redis://us%65r:p%40ss@h.example:7000/3?timeout_ms="
                                            "250&client_max_pool_size=4&cluster_name=a%20b",
                                            why),
                     0);
    ck_assert_str_eq(uri.opts.user, "user");
    ck_assert_str_eq(uri.opts.password, "p@ss");
    ck_assert_str_eq(uri.opts.host, "h.example");
    ck_assert_uint_eq(uri.opts.port, 7000);
    ck_assert_uint_eq(uri.opts.database, 3);
    ck_assert_uint_eq(uri.opts.call_timeout_ms, 250);
    ck_assert_uint_eq(uri.pool_max, 4);
    ck_assert_str_eq(tierce__url_param(&uri.url, "cluster_name"), "a b");
    ck_assert_ptr_null(tierce__url_param(&uri.url, "other"));
    tierce__resp_uri_clear(&uri);

    ck_assert_int_eq(tierce__resp_uri_parse(&uri, "rediss://secret@[::1]:7?ca_file=/x", why), 0);
    ck_assert(uri.opts.tls);
    ck_assert_ptr_null(uri.opts.user);
    ck_assert_str_eq(uri.opts.password, "secret");
    ck_assert_str_eq(uri.opts.host, "::1");
    ck_assert_str_eq(uri.opts.ca_file, "/x");
    tierce__resp_uri_clear(&uri);

    ck_assert_int_eq(tierce__resp_uri_parse(&uri, "redis+unix://:pw@/run/r.sock?db=2", why), 0);
    ck_assert_str_eq(uri.opts.host, "/run/r.sock");
    ck_assert_str_eq(uri.opts.password, "pw");
    ck_assert_uint_eq(uri.opts.database, 2);
    ck_assert(!uri.is_cluster);
    tierce__resp_uri_clear(&uri);

    ck_assert_int_eq(tierce__resp_uri_parse(&uri, "unix:///s", why), 0);
    ck_assert_str_eq(uri.opts.host, "/s");
    tierce__resp_uri_clear(&uri);
    ck_assert_int_eq(tierce__resp_uri_parse(&uri, "redis://", why), 0);
    ck_assert_str_eq(uri.opts.host, "127.0.0.1");
    ck_assert_uint_eq(uri.pool_max, 16);
    tierce__resp_uri_clear(&uri);
}
END_TEST

START_TEST(test_uri_of_several)
{
    ck_assert_int_eq(
        tierce__resp_uri_parse(&uri, "redis-cluster://u:p@a:1,b,[::1]:3?wait_replicas=2", why), 0);
    ck_assert(uri.is_cluster && !uri.opts.tls);
    ck_assert_uint_eq(uri.node_count, 3);
    ck_assert_str_eq(uri.opts.host, "a");
    ck_assert_uint_eq(uri.opts.port, 1);
    ck_assert_str_eq(uri.nodes[1].host, "b");
    ck_assert_uint_eq(uri.nodes[1].port, 0);
    ck_assert_str_eq(uri.nodes[2].host, "::1");
    ck_assert_uint_eq(uri.nodes[2].port, 3);
    ck_assert_str_eq(uri.opts.password, "p");
    ck_assert_uint_eq(uri.wait_replicas, 2);
    tierce__resp_uri_clear(&uri);
    ck_assert_int_eq(tierce__resp_uri_parse(&uri, "rediss-cluster://h/0?cluster=false", why), 0);
    ck_assert(uri.is_cluster && uri.opts.tls);
    tierce__resp_uri_clear(&uri);
    ck_assert_int_eq(tierce__resp_uri_parse(&uri, "redis://h?cluster=true", why), 0);
    ck_assert(uri.is_cluster);
    ck_assert_uint_eq(uri.node_count, 1);
    tierce__resp_uri_clear(&uri);

    ck_assert_int_eq(tierce__resp_uri_parse(&uri, "redis://a,[::1]:2?cluster=true", why), 0);
    ck_assert(uri.is_cluster);
    ck_assert_uint_eq(uri.node_count, 2);
    tierce__resp_uri_clear(&uri);

    ck_assert_int_eq(tierce__resp_uri_parse(
                         &uri, "valkeys+sentinel://u:p@a:1,b/m/4?sentinel_password=s%40", why),
                     0);
    ck_assert(uri.is_sentinel && uri.opts.tls);
    ck_assert_str_eq(uri.master, "m");
    ck_assert_uint_eq(uri.opts.database, 4);
    ck_assert_str_eq(tierce__url_param(&uri.url, "sentinel_password"), "s@");
    tierce__resp_uri_clear(&uri);
    ck_assert_int_eq(tierce__resp_uri_parse(&uri, "redis+sentinel://a/m", why), 0);
    ck_assert_str_eq(uri.master, "m");
    ck_assert_uint_eq(uri.opts.database, 0);
    tierce__resp_uri_clear(&uri);
}
END_TEST

START_TEST(test_uri_of_a_node)
{
    static const struct {
        const char *text, *user, *token, *host;
        bool tls;
    } nodes[] = {
        {"tierce://h", NULL, NULL, "h", true},
        {"tierce://tok%40en@h:7/", NULL, "tok@en", "h", true},
        {"tierce://name:token@10.0.0.1", "name", "token", "10.0.0.1", true},
        {"tierce://h?tls=false", NULL, NULL, "h", false},
        {"tierce://", NULL, NULL, "127.0.0.1", false},
        {"tierce://127.1.2.3:7", NULL, NULL, "127.1.2.3", false},
        {"tierce://[::1]", NULL, NULL, "::1", false},
        {"tierce://localhost?tls=true", NULL, NULL, "localhost", true},
        {"tierce://localhost?client_certificate=/x", NULL, NULL, "localhost", true},
        {"tierce://localhost.example", NULL, NULL, "localhost.example", true},
    };
    for (size_t i = 0; i < sizeof(nodes) / sizeof(*nodes); i++) {
        ck_assert_msg(tierce__resp_uri_parse(&uri, nodes[i].text, why) == 0, "%s", why);
        ck_assert_pstr_eq(uri.opts.user, nodes[i].user);
        ck_assert_pstr_eq(uri.opts.password, nodes[i].token);
        ck_assert_str_eq(uri.opts.host, nodes[i].host);
        ck_assert_msg(uri.opts.tls == nodes[i].tls, "%s", nodes[i].text);
        ck_assert_uint_eq(uri.opts.port, strstr(nodes[i].text, ":7") != NULL ? 7 : 6494);
        ck_assert(!uri.is_cluster && !uri.is_sentinel);
        tierce__resp_uri_clear(&uri);
    }
}
END_TEST

START_TEST(test_uri_refused)
{
    static const char *const texts[] = {
        "",
        "redis:/x",
        "http://x",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:x",
        "redis://h/x",
        "redis://h/4294967296",
        "redis://[::1",
        "redis://[::1]x",
        "redis://a:s3cret%4@h",
        "redis://a:s3cret%00@h",
        "redis://:s3cret@h?x",
        "redis://h?timeout_ms=0",
        "redis://h?timeout_ms=x",
        "redis://h?client_max_pool_size=0",
        "redis://h?=1",
        "redis+unix://s3cret/x",
        "redis+unix://",
        "redis://h?cluster=maybe",
        "redis://a,b:1",
        "redis://h?wait_replicas=1",
        "redis-cluster://a:1,b:x",
        "redis-cluster://a/1",
        "redis-cluster://a?wait_replicas=17",
        "redis-cluster://a?db=3",
        "redis-cluster://1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
        "redis+unix://:s3cret@/run/s?cluster=true",
        "redis://h?a=%zz",
        "redis://%2fx",
        "redis+sentinel://a,b",
        "redis+sentinel://a,b//1",
        "redis+sentinel://a,b/m/x",
        "redis+sentinel://a/m?cluster=true",
        "valkey-cluster://a/1",
        "valkeyx://a",
        "tierce://s3cret@a/1",
        "tierce://a,b",
        "tierce://a?tls=2",
        "tierce://a?tls=false&client_key=/x",
        "unix+unix:///s",
    };
    uint64_t live = tierce__alloc_live();
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        ck_assert_msg(tierce__resp_uri_parse(&uri, texts[i], why) == TIERCE_E_CONFIG, "%s",
                      texts[i]);
        ck_assert_msg(strstr(why, "s3cret") == NULL, "%s", why);
        ck_assert_uint_gt(strlen(why), 10);
    }
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

/* Bytes after the received ones are not read: here the line end that has not arrived yet. */
START_TEST(test_a_line_end_in_two)
{
    static const char bytes[] = "$1\r\na\r\n";
    struct tierce__resp_parser *own = tierce__resp_parser_create(1000, 1u << 20);
    struct tierce__resp_value got;
    size_t used = 0;
    ck_assert_int_eq(tierce__resp_parser_feed(own, bytes, 6, &used, &got), 0);
    ck_assert_uint_eq(used, 5);
    ck_assert_int_eq(tierce__resp_parser_feed(own, bytes + 5, 2, &used, &got), 1);
    ck_assert_uint_eq(used, 2);
    ck_assert_str_eq(got.text, "a");
    tierce__resp_parser_destroy(own);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resp_parse");
    TCase *tests = tcase_create("parse");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, test_single);
    tcase_add_test(tests, test_a_line_end_in_two);
    tcase_add_test(tests, test_pieces);
    tcase_add_test(tests, test_broken);
    tcase_add_test(tests, test_limits);
    tcase_add_test(tests, test_into);
    tcase_add_test(tests, test_no_memory);
    suite_add_tcase(suite, tests);
    tests = tcase_create("uri");
    tcase_add_test(tests, test_uri);
    tcase_add_test(tests, test_uri_of_several);
    tcase_add_test(tests, test_uri_of_a_node);
    tcase_add_test(tests, test_uri_refused);
    suite_add_tcase(suite, tests);
    return check_main(suite);
}
