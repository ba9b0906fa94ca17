/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "node_harness.h"

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

/* What comes behind a value, and a value whose pieces come one by one. */
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

START_TEST(test_a_large_value_with_options_behind_it)
{
    char *value = make_value(50000, 3);
    set_large("big", value, 50000, "$2\r\nEX\r\n$3\r\n100\r\n");
    hear(fd, "+OK\r\n");
    talk(fd, "TTL big\r\n", ":100\r\n");
    get_large("big", value, 50000);
    set_large("big", value, 50000, "$2\r\nPX\r\n$1\r\nx\r\n");
    hear(fd, "-ERR invalid expire time in 'set' command\r\n");
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
    talk(fd, "SCAN 0 TYPE list\r\nSCAN x\r\n", "*2\r\n$1\r\n0\r\n*0\r\n-ERR syntax error\r\n");
    talk(fd, "FLUSHDB\r\nDBSIZE\r\nSCAN 0\r\n", "+OK\r\n:0\r\n*2\r\n$1\r\n0\r\n*0\r\n");
}
END_TEST

START_TEST(test_connections_and_versions)
{
    talk(fd, "PING\r\nPING x\r\nECHO y\r\nSELECT 0\r\n", "+PONG\r\n$1\r\nx\r\n$1\r\ny\r\n+OK\r\n");
    talk(fd, "SELECT 1\r\n", "-ERR DB index is out of range: there is one, 0\r\n");
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
         "-ERR unknown command 'nonsense'\r\n"
         "-ERR wrong number of arguments for 'GET' command\r\n"
         "-ERR wrong number of arguments for 'GET' command\r\n");
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

/* Larger than memory, and a large argument of what takes none: read, dropped, and said. */
START_TEST(test_values_that_have_no_room)
{
    size_t bytes = 100 << 20;
    char *value = calloc(1, bytes);
    set_large("big", value, bytes, "");
    hear(fd, "-OOM command not allowed: there is no room for the value\r\n");
    say(fd, "*2\r\n$4\r\nECHO\r\n$100000\r\n");
    say_bytes(fd, value, 100000);
    talk(fd, "\r\nPING\r\n", "-ERR the value is larger than the node allows\r\n+PONG\r\n");
    ck_assert_uint_eq(atomic_load(&h.node->incoming_bytes), 0);
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
    ck_assert_uint_eq(atomic_load(&h.node->incoming_bytes), 0);
}
END_TEST

/* A thousand commands at once are answered in their order. */
START_TEST(test_a_pipeline)
{
    enum { COUNT = 20000 };
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

/* ---- whom it lets in ------------------------------------------------------------------------- */

static char token_file[] = "/tmp/tierce-tokens-XXXXXX";

static void set_up_tokens(void)
{
    static const char text[] =
        "# the tokens are reader, writer, boss and other\n"
        "read r 3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30\n"
        "read,write w b93006774cbdd4b299389a03ac3d88c3a76b460d538795bc12718011a909fba5\n"
        "read,write,admin boss a5e7c002443743c5836758c7d1cd8ddefd9fcf2061daa0efaac683fb99966057\n"
        "read,write o d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa elsewhere\n";
    char argument[128];
    char *arguments[] = {argument};
    int file = mkstemp(token_file);
    ck_assert_int_eq(fchmod(file, 0600), 0);
    ck_assert_int_eq(write(file, text, sizeof(text) - 1), (ssize_t)sizeof(text) - 1);
    close(file);
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
    talk(fd, "SET k x\r\n", "-NOPERM the token has no right to run the 'SET' command\r\n");
    talk(fd, "AUTH w writer\r\nSET k x\r\n", "+OK\r\n+OK\r\n");
    talk(fd, "FLUSHDB\r\n", "-NOPERM the token has no right to run the 'FLUSHDB' command\r\n");
    talk(fd, "AUTH default other\r\nGET k\r\nDBSIZE\r\nSET k y\r\n", "+OK\r\n$-1\r\n:0\r\n+OK\r\n");
    talk(fd, "AUTH reader\r\nGET k\r\n", "+OK\r\n$1\r\nx\r\n");
    talk(fd, "RESET\r\nGET k\r\n", "+RESET\r\n-NOAUTH Authentication required.\r\n");
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
    char *arguments[] = {(char *)"--limit.connections_per_address=3",
                         (char *)"--timeout.request=200ms", (char *)"--timeout.idle=400ms"};
    harness_start(&h, 3, arguments);
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
    tcase_add_test(t, test_a_large_value_with_options_behind_it);
    tcase_add_test(t, test_scan);
    tcase_add_test(t, test_connections_and_versions);
    tcase_add_test(t, test_names_that_can_be_none);
    tcase_add_test(t, test_what_is_no_request);
    tcase_add_test(t, test_values_that_have_no_room);
    tcase_add_test(t, test_half_a_value_is_none);
    tcase_add_test(t, test_a_pipeline);
    tcase_add_test(t, test_a_slow_reader);
    tcase_add_test(t, test_yes_holds_for_a_moment);
    suite_add_tcase(s, t);
    t = tcase_create("tokens");
    tcase_add_checked_fixture(t, set_up_tokens, tear_down_tokens);
    tcase_add_test(t, test_tokens);
    tcase_add_test(t, test_nobody_takes_much);
    suite_add_tcase(s, t);
    t = tcase_create("limits");
    tcase_add_checked_fixture(t, set_up_limits, tear_down);
    tcase_add_test(t, test_connections_of_an_address);
    tcase_add_test(t, test_who_is_late_is_cut);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return check_main(suite());
}
