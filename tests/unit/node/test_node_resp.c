/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "node_harness.h"
#include "test_random.h"
#include "wait_for.h"

#include <stdlib.h>
#include <sys/stat.h>

static struct node_harness h;
static int fd;

static void set_up(void)
{
    /* However slow the machine is that fills memory meanwhile. */
    char *arguments[] = {(char *)"--timeout.grace=10min"};
    harness_start(&h, 1, arguments);
    fd = harness_connect(h.ports.resp);
}

static void tear_down(void)
{
    close(fd);
    harness_stop(&h);
}

static char *make_value(size_t bytes, unsigned seed)
{
    char *value = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        value[i] = (char)((seed = seed * 1103515245u + 12345u) >> 16);
    return value;
}

static void set_large(const char *name, const char *value, size_t bytes, const char *options)
{
    char head[256];
    snprintf(head, sizeof(head), "*%d\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n",
             options[0] != '\0' ? 5 : 3, strlen(name), name, bytes);
    say(fd, head);
    say_bytes(fd, value, bytes);
    say(fd, "\r\n");
    say(fd, options);
}

static void get_large(const char *name, const char *value, size_t bytes)
{
    char text[256], *got = malloc(bytes);
    snprintf(text, sizeof(text), "GET %s\r\n", name);
    say(fd, text);
    snprintf(text, sizeof(text), "$%zu\r\n", bytes);
    hear(fd, text);
    hear_bytes(fd, got, bytes);
    ck_assert_int_eq(memcmp(got, value, bytes), 0);
    hear(fd, "\r\n");
    free(got);
}

START_TEST(test_values)
{
    talk(fd, "GET k\r\n", "$-1\r\n");
    talk(fd, "SET k hello\r\n", "+OK\r\n");
    talk(fd, "GET k\r\n", "$5\r\nhello\r\n");
    talk(fd, "SET k \"\"\r\nGET k\r\nSTRLEN k\r\n", "+OK\r\n$0\r\n\r\n:0\r\n");
    talk(fd, "SET k other\r\nGET k\r\n", "+OK\r\n$5\r\nother\r\n");
    talk(fd, "EXISTS k k nothing\r\nMGET k nothing k\r\n",
         ":2\r\n*3\r\n$5\r\nother\r\n$-1\r\n$5\r\nother\r\n");
    talk(fd, "GETRANGE k 1 2\r\nGETRANGE k -2 -1\r\nGETRANGE k 3 1\r\nGETRANGE no 0 -1\r\n",
         "$2\r\nth\r\n$2\r\ner\r\n$0\r\n\r\n$0\r\n\r\n");
    talk(fd, "DBSIZE\r\nDEL k nothing\r\nGET k\r\nDBSIZE\r\nTYPE k\r\n",
         ":1\r\n:1\r\n$-1\r\n:0\r\n+none\r\n");
}
END_TEST

START_TEST(test_large_values)
{
    static const size_t sizes[] = {16383, 16384, 16385, 262144, 262145, 3 << 20, 20 << 20};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char *value = make_value(sizes[i], (unsigned)i + 1);
        set_large("big", value, sizes[i], "");
        hear(fd, "+OK\r\n");
        get_large("big", value, sizes[i]);
        free(value);
    }
    talk(fd, "STRLEN big\r\n", ":20971520\r\n");
}
END_TEST

/* Bytes after a value, and a value that arrives in pieces. */
START_TEST(test_large_values_in_pieces)
{
    char *value = make_value(100000, 7);
    for (size_t step = 1; step < 100000; step = step * 7 + 1) {
        say(fd, "*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$100000\r\n");
        for (size_t at = 0; at < 100000; at += step < 5000 ? 5000 : step) {
            size_t n = step < 5000 ? 5000 : step;
            say_bytes(fd, value + at, 100000 - at < n ? 100000 - at : n);
        }
        talk(fd, "\r\nPING\r\n", "+OK\r\n+PONG\r\n");
        get_large("big", value, 100000);
    }
    free(value);
}
END_TEST

START_TEST(test_set_options)
{
    talk(fd, "SET k 1 NX\r\nSET k 2 NX\r\nGET k\r\n", "+OK\r\n$-1\r\n$1\r\n1\r\n");
    talk(fd, "SET k 3 XX\r\nSET other 3 XX\r\nGET other\r\n", "+OK\r\n$-1\r\n$-1\r\n");
    talk(fd, "SET k 4 GET\r\nSET new 5 GET\r\nGET new\r\n", "$1\r\n3\r\n$-1\r\n$1\r\n5\r\n");
    talk(fd, "SET k 1 EX 100\r\nTTL k\r\nTTL new\r\nTTL no\r\n", "+OK\r\n:100\r\n:-1\r\n:-2\r\n");
    talk(fd, "SET k 2 KEEPTTL\r\nTTL k\r\nSET k 3\r\nTTL k\r\n", "+OK\r\n:100\r\n+OK\r\n:-1\r\n");
    talk(fd, "SET k 1 PXAT 1\r\nGET k\r\n", "+OK\r\n$-1\r\n");
    talk(fd, "SET k 1 EX 0\r\n", "-ERR invalid expire time in 'set' command\r\n");
    talk(fd, "SET k 1 EX 9223372036854775807\r\n", "-ERR invalid expire time in 'set' command\r\n");
    talk(fd, "SET k 1 NX XX\r\nSET k 1 EX\r\nSET k 1 IFEQ 3\r\n",
         "-ERR syntax error\r\n-ERR syntax error\r\n-ERR syntax error\r\n");
}
END_TEST

START_TEST(test_set_with_an_end)
{
    char *value = make_value(100000, 5);
    talk(fd, "SETEX k 100 v\r\nTTL k\r\nGET k\r\n", "+OK\r\n:100\r\n$1\r\nv\r\n");
    talk(fd, "PSETEX k 200000 w\r\nTTL k\r\nGET k\r\n", "+OK\r\n:200\r\n$1\r\nw\r\n");
    talk(fd, "SETEX k 0 v\r\nPSETEX k x v\r\nSETEX \"\" 1 v\r\nSETEX k 1\r\nGET k\r\n",
         "-ERR invalid expire time in 'setex' command\r\n"
         "-ERR value is not an integer or out of range\r\n"
         "-ERR a key is 1 to 1024 bytes long\r\n"
         "-ERR wrong number of arguments for 'setex' command\r\n$1\r\nw\r\n");
    say(fd, "*4\r\n$6\r\nPSETEX\r\n$3\r\nbig\r\n$6\r\n300000\r\n$100000\r\n");
    say_bytes(fd, value, 100000);
    talk(fd, "\r\nTTL big\r\n", "+OK\r\n:300\r\n");
    get_large("big", value, 100000);
    say(fd, "*4\r\n$5\r\nSETEX\r\n$3\r\nbig\r\n$1\r\n0\r\n$100000\r\n");
    say_bytes(fd, value, 100000);
    talk(fd, "\r\nTTL big\r\n", "-ERR invalid expire time in 'setex' command\r\n:300\r\n");
    ck_assert_uint_eq(tierce__uploads_bytes(&h.node->uploads), 0);
    free(value);
}
END_TEST

START_TEST(test_several_at_once)
{
    char *value = make_value(100000, 3);
    talk(fd, "MSET a 1 b 2 a 3\r\nMGET a b\r\nDBSIZE\r\n",
         "+OK\r\n*2\r\n$1\r\n3\r\n$1\r\n2\r\n:2\r\n");
    talk(fd, "SET a x EX 100\r\nMSET a y\r\nTTL a\r\n", "+OK\r\n+OK\r\n:-1\r\n");
    talk(fd, "MSET a\r\nMSET a 1 b\r\nMSET a 1 \"\" 2\r\nGET a\r\n",
         "-ERR wrong number of arguments for 'mset' command\r\n"
         "-ERR wrong number of arguments for 'mset' command\r\n"
         "-ERR a key is 1 to 1024 bytes long\r\n$1\r\ny\r\n");
    say(fd, "*7\r\n$4\r\nMSET\r\n$1\r\nc\r\n$1\r\n1\r\n$3\r\nbig\r\n$100000\r\n");
    say_bytes(fd, value, 100000);
    talk(fd, "\r\n$1\r\nd\r\n$1\r\n4\r\nMGET c d\r\n", "+OK\r\n*2\r\n$1\r\n1\r\n$1\r\n4\r\n");
    get_large("big", value, 100000);
    say(fd, "*6\r\n$4\r\nMSET\r\n$1\r\nc\r\n$1\r\n1\r\n$3\r\nbig\r\n$100000\r\n"); /* one too few */
    say_bytes(fd, value, 100000);
    talk(fd, "\r\n$1\r\nd\r\n", "-ERR wrong number of arguments for 'mset' command\r\n");
    ck_assert_uint_eq(tierce__uploads_bytes(&h.node->uploads), 0);
    say(fd, "*5\r\n$4\r\nMSET\r\n$1\r\ne\r\n$100000\r\n"); /* two large ones */
    say_bytes(fd, value, 100000);
    say(fd, "\r\n$1\r\nf\r\n$50000\r\n");
    say_bytes(fd, value, 50000);
    talk(fd, "\r\n", "+OK\r\n");
    get_large("e", value, 100000);
    get_large("f", value, 50000);
    ck_assert_uint_eq(tierce__uploads_bytes(&h.node->uploads), 0);
    ck_assert_uint_eq(harness_counter(&h, TIERCE__NODE_sets), 3 + 1 + 1 + 3 + 2);
    free(value);
}
END_TEST

START_TEST(test_ends_that_change)
{
    talk(fd, "EXPIRE no 10\r\nPERSIST no\r\nEXPIRE \"\" 10\r\n", ":0\r\n:0\r\n:0\r\n");
    talk(fd, "SET k v\r\nPERSIST k\r\nEXPIRE k 100\r\nTTL k\r\nGET k\r\n",
         "+OK\r\n:0\r\n:1\r\n:100\r\n$1\r\nv\r\n");
    talk(fd, "PEXPIRE k 200000\r\nTTL k\r\nPERSIST k\r\nTTL k\r\n", ":1\r\n:200\r\n:1\r\n:-1\r\n");
    talk(fd, "EXPIREAT k 9000000000\r\nPEXPIREAT k 9000000000000 GT\r\n", ":1\r\n:0\r\n");
    talk(fd, "PEXPIREAT k 9000000000001 GT\r\nPEXPIREAT k 9000000000000 lt\r\n", ":1\r\n:1\r\n");
    talk(fd, "EXPIRE k 100 NX\r\nEXPIRE k 100 XX\r\nTTL k\r\n", ":0\r\n:1\r\n:100\r\n");
    talk(fd, "PERSIST k\r\nEXPIRE k 5 XX\r\nEXPIRE k 5 GT\r\nEXPIRE k 500 LT\r\nTTL k\r\n",
         ":1\r\n:0\r\n:0\r\n:1\r\n:500\r\n");
    talk(fd, "EXPIRE k 5 NX GT\r\nEXPIRE k 5 GT LT\r\nEXPIRE k 5 IF\r\nEXPIRE k soon\r\n",
         "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"
         "-ERR GT and LT options at the same time are not compatible\r\n"
         "-ERR Unsupported option IF\r\n"
         "-ERR value is not an integer or out of range\r\n");
    talk(fd, "expire k 9223372036854775807\r\nPEXPIRE k 9223372036854775807\r\n",
         "-ERR invalid expire time in 'expire' command\r\n"
         "-ERR invalid expire time in 'pexpire' command\r\n");
    talk(fd, "EXPIRE k 0 GT\r\nTTL k\r\nEXPIRE k -1\r\nGET k\r\nDBSIZE\r\n",
         ":0\r\n:500\r\n:1\r\n$-1\r\n:0\r\n");
}
END_TEST

START_TEST(test_the_end_of_a_large_value)
{
    enum { BYTES = (3 << 20) + 5 };
    char *value = make_value(BYTES, 5);
    set_large("big", value, BYTES, "");
    talk(fd, "EXPIRE big 100\r\nTTL big\r\n", "+OK\r\n:1\r\n:100\r\n");
    get_large("big", value, BYTES);
    talk(fd, "PEXPIRE big 1\r\n", ":1\r\n");
    do {
        char type[2];
        say(fd, "EXISTS big\r\n");
        hear_bytes(fd, type, 2);
        hear(fd, "\r\n");
        if (type[1] == '0')
            break;
    } while (true);
    ck_assert_uint_eq(tierce__uploads_bytes(&h.node->uploads), 0);
    free(value);
}
END_TEST

START_TEST(test_a_large_value_with_options_behind_it)
{
    char *value = make_value(50000, 3);
    set_large("big", value, 50000, "$2\r\nEX\r\n$3\r\n100\r\n");
    hear(fd, "+OK\r\n");
    talk(fd, "TTL big\r\n", ":100\r\n");
    get_large("big", value, 50000);
    set_large("big", value, 50000, "$2\r\nPX\r\n$1\r\nx\r\n");
    hear(fd, "-ERR value is not an integer or out of range\r\n");
    get_large("big", value, 50000);
    free(value);
}
END_TEST

START_TEST(test_scan)
{
    char text[64];
    for (int i = 0; i < 30; i++) {
        snprintf(text, sizeof(text), "SET key:%02d x\r\n", i);
        talk(fd, text, "+OK\r\n");
    }
    talk(fd, "SCAN 0 MATCH key:0[7] COUNT 1000\r\n", "*2\r\n$1\r\n0\r\n*1\r\n$6\r\nkey:07\r\n");
    talk(fd, "SCAN 0 TYPE list\r\nSCAN x\r\n", "*2\r\n$1\r\n0\r\n*0\r\n-ERR invalid cursor\r\n");
    talk(fd, "FLUSHDB\r\nDBSIZE\r\nSCAN 0\r\n", "+OK\r\n:0\r\n*2\r\n$1\r\n0\r\n*0\r\n");
}
END_TEST

/* Which would be tried against a thousand names, for seconds, before others are served. */
START_TEST(test_a_scan_with_an_endless_pattern_is_cut_short)
{
    enum { NAMES = 300, PATTERN = 4096 };
    static char text[PATTERN + 64], answer[8192];
    for (int i = 0; i < NAMES; i++) {
        snprintf(text, sizeof(text), "SET key:%d x\r\n", i);
        talk(fd, text, "+OK\r\n");
    }
    int found = 0, calls = 0;
    unsigned long long cursor = 0;
    do {
        int n = snprintf(text, sizeof(text), "SCAN %llu COUNT 1000 MATCH ", cursor);
        memset(text + n, '*', PATTERN);
        snprintf(text + n + PATTERN, sizeof(text) - (size_t)n - PATTERN, "\r\nPING\r\n");
        say(fd, text);
        size_t got = 0;
        while (strstr(answer, "+PONG\r\n") == NULL) {
            ssize_t some = recv(fd, answer + got, sizeof(answer) - 1 - got, 0);
            ck_assert_int_gt(some, 0);
            got += (size_t)some;
            answer[got] = '\0';
        }
        ck_assert_int_eq(sscanf(answer, "*2\r\n$%*d\r\n%llu\r\n*%d\r\n", &cursor, &calls), 2);
        ck_assert_int_lt(calls, NAMES);
        found += calls;
        answer[0] = '\0';
    } while (cursor != 0);
    ck_assert_int_eq(found, NAMES);
    memset(text, '*', PATTERN + 1);
    snprintf(text + PATTERN + 1, 3, "\r\n");
    say(fd, "SCAN 0 MATCH ");
    talk(fd, text, "-ERR the pattern is longer than 4096 bytes\r\n");
}
END_TEST

START_TEST(test_connections_and_versions)
{
    talk(fd, "PING\r\nPING x\r\nECHO y\r\nSELECT 0\r\n", "+PONG\r\n$1\r\nx\r\n$1\r\ny\r\n+OK\r\n");
    talk(fd, "SELECT 1\r\n", "-ERR DB index is out of range\r\n");
    talk(fd, "CLIENT GETNAME\r\nCLIENT SETNAME me\r\nCLIENT GETNAME\r\n",
         "$-1\r\n+OK\r\n$2\r\nme\r\n");
    talk(fd, "CLIENT SETINFO LIB-NAME x\r\nCLIENT NO-EVICT ON\r\nCLIENT ID\r\n",
         "+OK\r\n+OK\r\n:1\r\n");
    talk(fd, "HELLO 3\r\n",
         "%7\r\n$6\r\nserver\r\n$6\r\ntierce\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:"
         "3\r\n"
         "$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
         "$7\r\nmodules\r\n*0\r\n");
    talk(fd, "GET nothing\r\nCONFIG GET save\r\n", "_\r\n%1\r\n$4\r\nsave\r\n$0\r\n\r\n");
    talk(fd, "HELLO 4\r\nRESET\r\nGET nothing\r\n",
         "-NOPROTO unsupported protocol version\r\n+RESET\r\n$-1\r\n");
    talk(fd, "COMMAND DOCS\r\n", "*0\r\n");
    talk(fd, "nonsense\r\nGET\r\nGET a b\r\n",
         "-ERR unknown command 'nonsense', with args beginning with: \r\n"
         "-ERR wrong number of arguments for 'get' command\r\n"
         "-ERR wrong number of arguments for 'get' command\r\n");
    talk(fd, "QUIT\r\n", "+OK\r\n");
    hear_end(fd);
    fd = harness_connect(h.ports.resp);
}
END_TEST

START_TEST(test_names_that_can_be_none)
{
    char text[3000], name[1026];
    memset(name, 'n', sizeof(name) - 1);
    name[1025] = '\0';
    talk(fd, "SET \"\" x\r\nGET \"\"\r\nDEL \"\"\r\n",
         "-ERR a key is 1 to 1024 bytes long\r\n$-1\r\n:0\r\n");
    snprintf(text, sizeof(text), "SET %s x\r\n", name);
    talk(fd, text, "-ERR a key is 1 to 1024 bytes long\r\n");
    snprintf(text, sizeof(text), "SET %s x\r\nGET %s\r\n", name + 1, name + 1);
    talk(fd, text, "+OK\r\n$1\r\nx\r\n");
}
END_TEST

/* Longer than the kept part of an argument: the error is about the key, not the value. */
START_TEST(test_keys_that_are_too_long)
{
    char *name = make_value(20000, 9), *value = make_value(30000, 3);
    for (size_t i = 0; i < 20000; i++)
        name[i] = 'n';
    static const char *const wholes[] = {"*3\r\n$3\r\nSET\r\n$20000\r\n",
                                         "*3\r\n$4\r\nMSET\r\n$20000\r\n",
                                         "*3\r\n$5\r\nSETNX\r\n$20000\r\n"};
    for (size_t i = 0; i < 3; i++) {
        say(fd, wholes[i]);
        say_bytes(fd, name, 20000);
        talk(fd, "\r\n$1\r\nv\r\nPING\r\n", "-ERR a key is 1 to 1024 bytes long\r\n+PONG\r\n");
    }
    say(fd, "*2\r\n$4\r\nINCR\r\n$20000\r\n");
    say_bytes(fd, name, 20000);
    talk(fd, "\r\nPING\r\n", "-ERR a key is 1 to 1024 bytes long\r\n+PONG\r\n");
    say(fd, "*3\r\n$3\r\nSET\r\n$2000\r\n"); /* a value that goes to the pool */
    say_bytes(fd, name, 2000);
    say(fd, "\r\n$30000\r\n");
    say_bytes(fd, value, 30000);
    talk(fd, "\r\nPING\r\n", "-ERR a key is 1 to 1024 bytes long\r\n+PONG\r\n");
    say(fd, "*3\r\n$6\r\nEXISTS\r\n$1\r\na\r\n$20000\r\n");
    say_bytes(fd, name, 20000);
    talk(fd, "\r\nDBSIZE\r\n", ":0\r\n:0\r\n");
    ck_assert_uint_eq(tierce__uploads_bytes(&h.node->uploads), 0);
    free(name);
    free(value);
}
END_TEST

/* A web page can make a browser send a request whose body contains commands. */
START_TEST(test_requests_of_http_are_cut_off)
{
    static const char *const requests[] = {
        "POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET k evil\r\n",
        "post / HTTP/1.1\r\n\r\nSET k evil\r\n",
        "Host: localhost:6379\r\nSET k evil\r\n",
        "*1\r\n$4\r\nPOST\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\nevil\r\n",
    };
    uint64_t errors = harness_counter(&h, TIERCE__NODE_protocol_errors);
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        int other = harness_connect(h.ports.resp);
        say(other, requests[i]);
        hear_end(other);
    }
    int other = harness_connect(h.ports.resp);
    say(other, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nSET k evil\r\n");
    hear(other, "-ERR wrong number of arguments for 'get' command\r\n");
    hear_end(other);
    ck_assert_uint_eq(harness_counter(&h, TIERCE__NODE_protocol_errors), errors + 5);
    talk(fd, "EXISTS k\r\n", ":0\r\n");
}
END_TEST

START_TEST(test_what_is_no_request)
{
    talk(fd, "*1\r\n+PING\r\n", "-ERR Protocol error: expected '$'\r\n");
    hear_end(fd);
    fd = harness_connect(h.ports.resp);
    talk(fd, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n",
         "-ERR Protocol error: invalid bulk length\r\n");
    hear_end(fd);
    fd = harness_connect(h.ports.resp);
    ck_assert_uint_eq(harness_counter(&h, TIERCE__NODE_protocol_errors), 2);
    talk(fd, "PING\r\n", "+PONG\r\n");
}
END_TEST

/* A value larger than memory, and a large argument of a command without values: read, dropped, and
 * reported. */
START_TEST(test_values_that_have_no_room)
{
    size_t bytes = 100 << 20;
    char *value = calloc(1, bytes);
    set_large("big", value, bytes, "");
    hear(fd, "-OOM command not allowed: there is no room for the value\r\n");
    say(fd, "*2\r\n$4\r\nECHO\r\n$100000\r\n");
    say_bytes(fd, value, 100000);
    talk(fd, "\r\nPING\r\n",
         "-ERR an argument that is not a value has at most 16383 bytes\r\n+PONG\r\n");
    ck_assert_uint_eq(tierce__uploads_bytes(&h.node->uploads), 0);
    free(value);
}
END_TEST

START_TEST(test_half_a_value_is_none)
{
    talk(fd, "SET big old\r\n", "+OK\r\n");
    say(fd, "*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$100000\r\nhalf");
    close(fd);
    fd = harness_connect(h.ports.resp);
    talk(fd, "GET big\r\nDBSIZE\r\n", "$3\r\nold\r\n:1\r\n");
    while (atomic_load(&h.node->connections_now) > 1)
        usleep(1000);
    ck_assert_uint_eq(tierce__uploads_bytes(&h.node->uploads), 0);
}
END_TEST

/* A thousand commands at once are answered in their order. */
START_TEST(test_a_pipeline)
{
    enum { COUNT = TEST_ROUNDS(20000) };
    char *asked = malloc(COUNT * 40), *wanted = malloc(COUNT * 20);
    size_t a = 0, w = 0;
    for (int i = 0; i < COUNT; i++) {
        a += (size_t)sprintf(asked + a, "SET k %d\r\nGET k\r\n", i);
        char number[16];
        int n = sprintf(number, "%d", i);
        w += (size_t)sprintf(wanted + w, "+OK\r\n$%d\r\n%s\r\n", n, number);
    }
    char *got = malloc(w);
    size_t heard = 0;
    for (size_t at = 0; at < a; at += 16384) { /* neither side may fill both sockets */
        say_bytes(fd, asked + at, a - at < 16384 ? a - at : 16384);
        ssize_t n = recv(fd, got + heard, w - heard, MSG_DONTWAIT);
        heard += n > 0 ? (size_t)n : 0;
    }
    hear_bytes(fd, got + heard, w - heard);
    ck_assert_int_eq(memcmp(got, wanted, w), 0);
    free(asked);
    free(wanted);
    free(got);
}
END_TEST

/* It holds one value and its text, and others are served meanwhile. */
START_TEST(test_a_slow_reader)
{
    size_t bytes = 20 << 20;
    char *value = make_value(bytes, 9);
    set_large("big", value, bytes, "");
    hear(fd, "+OK\r\n");
    int slow = harness_connect(h.ports.resp);
    for (int i = 0; i < 50; i++)
        say(slow, "GET big\r\n");
    talk(fd, "SET k x\r\nGET k\r\n", "+OK\r\n$1\r\nx\r\n");
    get_large("big", value, bytes);
    /* Its lease holds what it reads, whatever becomes of the name. */
    talk(fd, "DEL big\r\n", ":1\r\n");
    char *got = malloc(bytes);
    hear(slow, "$20971520\r\n");
    hear_bytes(slow, got, bytes);
    ck_assert_int_eq(memcmp(got, value, bytes), 0);
    hear(slow, "\r\n$-1\r\n");
    close(slow);
    free(got);
    free(value);
}
END_TEST

START_TEST(test_yes_holds_for_a_moment)
{
    char *value = make_value(10 << 20, 5), name[16];
    set_large("asked", value, 10 << 20, "");
    hear(fd, "+OK\r\n");
    talk(fd, "EXISTS asked\r\n", ":1\r\n");
    char *filler = make_value(8 << 20, 6);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "f%d", i);
        set_large(name, filler, 8 << 20, "");
        hear(fd, "+OK\r\n");
    }
    get_large("asked", value, 10 << 20);
    talk(fd, "DEL asked\r\nGET asked\r\n", ":1\r\n$-1\r\n");
    free(filler);
    free(value);
}
END_TEST

/* limit.grace is 16 MiB here. Values of whole pages lie in memory with two more. */
START_TEST(test_yes_is_no_promise_for_more_than_may_stay)
{
    char *value = make_value(20 << 20, 5);
    set_large("a", value, 10 << 20, "");
    set_large("b", value, 8 << 20, "");
    set_large("c", value, (8 << 20) - 16384, "");
    set_large("large", value, 20 << 20, "");
    hear(fd, "+OK\r\n+OK\r\n+OK\r\n+OK\r\n");
    talk(fd, "EXISTS a\r\n", ":1\r\n");
    ck_assert_uint_eq(tierce__short_leases_bytes(h.node->leases), (10 << 20) + 8192);
    talk(fd, "EXISTS b\r\n", ":1\r\n"); /* a goes */
    ck_assert_uint_eq(tierce__short_leases_bytes(h.node->leases), (8 << 20) + 8192);
    talk(fd, "EXISTS c\r\n", ":1\r\n"); /* as much as may stay */
    ck_assert_uint_eq(tierce__short_leases_bytes(h.node->leases), 16 << 20);
    talk(fd, "EXISTS large\r\n", ":1\r\n");
    ck_assert_uint_eq(tierce__short_leases_bytes(h.node->leases), 16 << 20);
    free(value);
}
END_TEST

/* They may keep a quarter of memory, which has 1024 places. */
START_TEST(test_yes_to_many_leaves_room)
{
    char text[64];
    for (int i = 0; i < 10000; i++) {
        snprintf(text, sizeof(text), "SET small%d v\r\nEXISTS small%d\r\n", i, i);
        talk(fd, text, "+OK\r\n:1\r\n");
        ck_assert_uint_le(tierce__short_leases_bytes(h.node->leases), 16 << 20);
    }
}
END_TEST

/* ---- whom it lets in ------------------------------------------------------------------------- */

static char token_file[] = "/tmp/tierce-tokens-XXXXXX";

#define READER "r 3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30"
#define WRITER "w b93006774cbdd4b299389a03ac3d88c3a76b460d538795bc12718011a909fba5"
#define BOSS   "boss a5e7c002443743c5836758c7d1cd8ddefd9fcf2061daa0efaac683fb99966057"
#define OTHER  "o d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"
#define FRESH  "f d098ab5e44b9aabb755f76d806598f43573c662b35e4a2eab1e312ec9ad195e2"

static void write_tokens(const char *text)
{
    FILE *file = fopen(token_file, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void set_up_tokens(void)
{
    char argument[128];
    char *arguments[] = {argument};
    int file = mkstemp(token_file);
    ck_assert_int_eq(fchmod(file, 0600), 0);
    close(file);
    write_tokens("# the tokens are reader, writer, boss and other\n"
                 "read " READER "\nread,write " WRITER "\nread,write,admin " BOSS
                 "\nread,write " OTHER " elsewhere\n");
    snprintf(argument, sizeof(argument), "--auth.token_file=%s", token_file);
    harness_start(&h, 1, arguments);
    fd = harness_connect(h.ports.resp);
}

static void tear_down_tokens(void)
{
    tear_down();
    unlink(token_file);
}

START_TEST(test_tokens)
{
    talk(fd, "GET k\r\nPING\r\nnonsense\r\n",
         "-NOAUTH Authentication required.\r\n-NOAUTH Authentication required.\r\n"
         "-NOAUTH Authentication required.\r\n");
    talk(fd, "AUTH wrong\r\n",
         "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    talk(fd, "AUTH w reader\r\n",
         "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    talk(fd, "AUTH reader\r\nGET k\r\n", "+OK\r\n$-1\r\n");
    talk(fd, "SET k x\r\n", "-NOPERM the token has no permission to run the 'SET' command\r\n");
    talk(fd, "AUTH w writer\r\nSET k x\r\n", "+OK\r\n+OK\r\n");
    talk(fd, "FLUSHDB\r\n", "-NOPERM the token has no permission to run the 'FLUSHDB' command\r\n");
    talk(fd, "AUTH default other\r\nGET k\r\nDBSIZE\r\nSET k y\r\n", "+OK\r\n$-1\r\n:0\r\n+OK\r\n");
    talk(fd, "AUTH reader\r\nGET k\r\n", "+OK\r\n$1\r\nx\r\n");
    talk(fd, "RESET\r\nGET k\r\n", "+RESET\r\n-NOAUTH Authentication required.\r\n");
}
END_TEST

#define NOAUTH "-NOAUTH Authentication required.\r\n"

static int log_in(const char *words)
{
    int session = harness_connect(h.ports.resp);
    talk(session, words, "+OK\r\n");
    return session;
}

/* Commands in progress when their token is removed are rejected too; clients with valid tokens are
 * not disturbed. */
START_TEST(test_tokens_are_read_again)
{
    char why[256];
    int reader = log_in("AUTH reader\r\n"), writer = log_in("AUTH writer\r\n"),
        other = log_in("AUTH other\r\n"), late = log_in("AUTH writer\r\n");
    talk(writer, "SET k x\r\n", "+OK\r\n");
    talk(other, "SET k mine\r\n", "+OK\r\n");
    say(late, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$20000\r\nhalf");
    while (tierce__uploads_bytes(&h.node->uploads) == 0)
        usleep(1000);
    write_tokens("read " WRITER "\nread,write " OTHER " elsewhere\nread,write " FRESH " fresh\n");
    ck_assert_msg(tierce__node_reload(h.node, why) == 0, "%s", why);
    talk(reader, "GET k\r\n", NOAUTH);
    talk(reader, "AUTH reader\r\n",
         "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    talk(writer, "GET k\r\nSET k y\r\n",
         "$1\r\nx\r\n-NOPERM the token has no permission to run the 'SET' command\r\n");
    talk(other, "GET k\r\nSET k y\r\n", "$4\r\nmine\r\n+OK\r\n");
    talk(reader, "AUTH fresh\r\nDBSIZE\r\nSET k z\r\nDBSIZE\r\n", "+OK\r\n:0\r\n+OK\r\n:1\r\n");
    char *rest = make_value(19996, 1);
    say_bytes(late, rest, 19996);
    talk(late, "\r\nGET k\r\n",
         "-NOPERM the token has no permission to run the 'SET' command\r\n$1\r\nx\r\n");
    write_tokens("read " WRITER "\nread,write " OTHER " fresh\n");
    ck_assert_msg(tierce__node_reload(h.node, why) == 0, "%s", why);
    talk(other, "GET k\r\nAUTH other\r\nGET k\r\n", NOAUTH "+OK\r\n$1\r\nz\r\n");
    talk(reader, "GET k\r\n", NOAUTH);
    free(rest);
    close(reader);
    close(writer);
    close(other);
    close(late);
}
END_TEST

START_TEST(test_tokens_that_cannot_be_read)
{
    char why[256];
    int reader = log_in("AUTH reader\r\n");
    write_tokens("root " READER "\n");
    ck_assert_int_eq(tierce__node_reload(h.node, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "line 1"));
    write_tokens("read " WRITER "\n");
    ck_assert_int_eq(chmod(token_file, 0644), 0);
    ck_assert_int_eq(tierce__node_reload(h.node, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "chmod 600"));
    ck_assert_int_eq(unlink(token_file), 0);
    ck_assert_int_eq(tierce__node_reload(h.node, why), -ENOENT);
    ck_assert_ptr_nonnull(strstr(why, token_file));
    talk(reader, "GET k\r\n", "$-1\r\n");
    talk(reader, "AUTH writer\r\nSET k x\r\n", "+OK\r\n+OK\r\n");
    close(reader);
}
END_TEST

START_TEST(test_nobody_takes_much)
{
    talk(fd, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$20000\r\n",
         "-ERR Protocol error: invalid bulk length\r\n");
    hear_end(fd);
    fd = harness_connect(h.ports.resp);
    talk(fd, "*17\r\n", "-ERR Protocol error: invalid multibulk length\r\n");
    hear_end(fd);
    fd = harness_connect(h.ports.resp);
}
END_TEST

/* ---- limits ---------------------------------------------------------------------------------- */

static void set_up_limits(void)
{
    char *arguments[] = {(char *)"--limit.connections_per_address=3"};
    harness_start(&h, 1, arguments);
    fd = harness_connect(h.ports.resp);
}

static void set_up_timeouts(void)
{
    char *arguments[] = {(char *)"--timeout.request=200ms", (char *)"--timeout.idle=400ms"};
    harness_start(&h, 2, arguments);
    fd = harness_connect(h.ports.resp);
}

START_TEST(test_connections_of_an_address)
{
    int more[3];
    for (unsigned i = 0; i < 3; i++) {
        more[i] = harness_connect(i < 1 ? h.ports.lm : h.ports.resp);
        while (harness_counter(&h, TIERCE__NODE_connections) < 2 + i && i < 2)
            usleep(1000); /* the two ports take turns of their own */
    }
    talk(more[1], "PING\r\n", "+PONG\r\n");
    hear_end(more[2]);
    close(more[0]);
    close(more[1]);
    ck_assert_uint_eq(harness_counter(&h, TIERCE__NODE_connections_refused), 1);
    talk(fd, "PING\r\n", "+PONG\r\n");
}
END_TEST

START_TEST(test_who_is_late_is_cut)
{
    say(fd, "*2\r\n$3\r\nG"); /* and no more */
    hear_end(fd);
    fd = harness_connect(h.ports.resp);
    hear_end(fd); /* idle */
    ck_assert_uint_eq(harness_counter(&h, TIERCE__NODE_connections_late), 2);
    fd = harness_connect(h.ports.resp);
}
END_TEST

START_TEST(test_a_large_request_leaves_no_memory)
{
    enum { NAMES = 20000 };
    talk(fd, "MGET k k k k k k k k k\r\n",
         "*9\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n"
         "$-1\r\n$-1\r\n$-1\r\n");
    uint64_t live = tierce__alloc_live();
    say(fd, "*20001\r\n$4\r\nMGET\r\n");
    for (int i = 0; i < NAMES; i++)
        say(fd, "$1\r\nk\r\n");
    hear(fd, "*20000\r\n");
    for (int i = 0; i < NAMES; i++)
        hear(fd, "$-1\r\n");
    /* Its arrays are gone, which had grown from those of the small one. */
    WAIT_WITHIN(10000, tierce__alloc_live() <= live - 2);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("node_resp");
    TCase *t = tcase_create("commands");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, test_values);
    tcase_add_test(t, test_large_values);
    tcase_add_test(t, test_large_values_in_pieces);
    tcase_add_test(t, test_set_options);
    tcase_add_test(t, test_set_with_an_end);
    tcase_add_test(t, test_several_at_once);
    tcase_add_test(t, test_ends_that_change);
    tcase_add_test(t, test_the_end_of_a_large_value);
    tcase_add_test(t, test_a_large_value_with_options_behind_it);
    tcase_add_test(t, test_scan);
    tcase_add_test(t, test_a_scan_with_an_endless_pattern_is_cut_short);
    tcase_add_test(t, test_connections_and_versions);
    tcase_add_test(t, test_names_that_can_be_none);
    tcase_add_test(t, test_keys_that_are_too_long);
    tcase_add_test(t, test_requests_of_http_are_cut_off);
    tcase_add_test(t, test_what_is_no_request);
    tcase_add_test(t, test_values_that_have_no_room);
    tcase_add_test(t, test_half_a_value_is_none);
    tcase_add_test(t, test_a_pipeline);
    tcase_add_test(t, test_a_slow_reader);
    tcase_add_test(t, test_a_large_request_leaves_no_memory);
    tcase_add_test(t, test_yes_holds_for_a_moment);
    tcase_add_test(t, test_yes_is_no_promise_for_more_than_may_stay);
    tcase_add_test(t, test_yes_to_many_leaves_room);
    suite_add_tcase(s, t);
    t = tcase_create("tokens");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up_tokens, tear_down_tokens);
    tcase_add_test(t, test_tokens);
    tcase_add_test(t, test_tokens_are_read_again);
    tcase_add_test(t, test_tokens_that_cannot_be_read);
    tcase_add_test(t, test_nobody_takes_much);
    suite_add_tcase(s, t);
    t = tcase_create("limits");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up_limits, tear_down);
    tcase_add_test(t, test_connections_of_an_address);
    suite_add_tcase(s, t);
    t = tcase_create("timeouts");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up_timeouts, tear_down);
    tcase_add_test(t, test_who_is_late_is_cut);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return check_main(suite());
}
