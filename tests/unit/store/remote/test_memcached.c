/* SPDX-License-Identifier: Apache-2.0 */
/* memcached://: its keys, heads and lines; servers that are full, killed, or lie; evicted parts. */
#include "check_main.h"
#include "store/remote/memcached/memcached_head.h"
#include "connector_harness.h"
#include "memcached_server.h"
#include "script_server.h"

#include <stdlib.h>

static struct tierce__pool *pool;
static struct tierce__connector *connector;
static struct memcached_server server;
static struct script_server script;

static int try_open(const char *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    return tierce__connector_open(&connector, url,
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

static void open_port(uint16_t port, const char *params)
{
    char url[128], why[TIERCE__CONNECTOR_WHY_BYTES];
    snprintf(url, sizeof(url), "memcached://127.0.0.1:%u%s", (unsigned)port, params);
    ck_assert_msg(try_open(url, why) == 0, "%s", why);
}

static void close_connector(void)
{
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(10000)));
}

static void start(const char *const *more, const char *params)
{
    pool = connector_pool();
    ck_assert(memcached_start(&server, more));
    open_port(server.port, params);
}

static void end(void)
{
    close_connector();
    memcached_kill(&server);
    tierce__pool_destroy(pool);
}

/* One command of another client, and what is answered at once. */
static const char *tell(const char *command)
{
    static char answer[65536];
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(server.port)};
    size_t used = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_gt(send(fd, command, strlen(command), MSG_NOSIGNAL), 0);
    ck_assert_int_eq(send(fd, "quit\r\n", 6, MSG_NOSIGNAL), 6);
    for (ssize_t n; (n = recv(fd, answer + used, sizeof(answer) - 1 - used, 0)) > 0;)
        used += (size_t)n;
    answer[used] = '\0';
    close(fd);
    return answer;
}

static unsigned long items(void)
{
    const char *found = strstr(tell("stats\r\n"), "STAT curr_items ");
    ck_assert_ptr_nonnull(found);
    return strtoul(found + 16, NULL, 10);
}

/* ---- lines ----------------------------------------------------------------------------------- */

#define BAD -1

static const struct {
    const char *line;
    int kind; /* or BAD */
    const char *name;
    uint64_t bytes, unique;
} lines[] = {
    {"END", TIERCE__MEMCACHED_END, "", 0, 0},
    {"END ", BAD, "", 0, 0},
    {"ENDS", BAD, "", 0, 0},
    {"", BAD, "", 0, 0},
    {" END", BAD, "", 0, 0},
    {"STORED", TIERCE__MEMCACHED_STORED, "", 0, 0},
    {"NOT_STORED", TIERCE__MEMCACHED_NOT_STORED, "", 0, 0},
    {"EXISTS", TIERCE__MEMCACHED_EXISTS, "", 0, 0},
    {"NOT_FOUND", TIERCE__MEMCACHED_NOT_FOUND, "", 0, 0},
    {"DELETED", TIERCE__MEMCACHED_DELETED, "", 0, 0},
    {"TOUCHED", TIERCE__MEMCACHED_TOUCHED, "", 0, 0},
    {"VERSION 1.6.18", TIERCE__MEMCACHED_VERSION, "VERSION 1.6.18", 0, 0},
    {"VALUE key 0 10", TIERCE__MEMCACHED_VALUE, "key", 10, 0},
    {"VALUE key 12 10 77", TIERCE__MEMCACHED_VALUE, "key", 10, 77},
    {"VALUE key 0", BAD, "", 0, 0},
    {"VALUE key 0 ", BAD, "", 0, 0},
    {"VALUE key 0 -1", BAD, "", 0, 0},
    {"VALUE key 0 1x", BAD, "", 0, 0},
    {"VALUE key 0 10 ", TIERCE__MEMCACHED_VALUE, "key", 10, 0},
    {"VALUE key 0 10 7 7", BAD, "", 0, 0},
    {"VALUE  0 10", BAD, "", 0, 0},
    {"VALUE key 0 18446744073709551615", TIERCE__MEMCACHED_VALUE, "key", UINT64_MAX, 0},
    {"VALUE key 0 18446744073709551616", BAD, "", 0, 0},
    {"STAT item_size_max 1048576", TIERCE__MEMCACHED_STAT, "item_size_max", 0, 0},
    {"STAT", BAD, "", 0, 0},
    {"SERVER_ERROR out of memory storing object", TIERCE__MEMCACHED_FULL, NULL, 0, 0},
    {"SERVER_ERROR Out of memory during read", TIERCE__MEMCACHED_FULL, NULL, 0, 0},
    {"SERVER_ERROR object too large for cache", TIERCE__MEMCACHED_TOO_LARGE, NULL, 0, 0},
    {"SERVER_ERROR no", TIERCE__MEMCACHED_ERROR, "SERVER_ERROR no", 0, 0},
    {"CLIENT_ERROR line too long", TIERCE__MEMCACHED_ERROR, NULL, 0, 0},
    {"ERROR", TIERCE__MEMCACHED_ERROR, "ERROR", 0, 0},
};

START_TEST(lines_are_parsed)
{
    struct tierce__memcached_line line;
    int rc = tierce__memcached_parse(&line, lines[_i].line, strlen(lines[_i].line));
    ck_assert_int_eq(rc, lines[_i].kind == BAD ? TIERCE_E_FORMAT : 0);
    if (rc != 0)
        return;
    ck_assert_int_eq((int)line.kind, lines[_i].kind);
    ck_assert_uint_eq(line.bytes, lines[_i].bytes);
    ck_assert_uint_eq(line.unique, lines[_i].unique);
    if (lines[_i].name != NULL) {
        ck_assert_uint_eq(line.name_bytes, strlen(lines[_i].name));
        ck_assert_int_eq(memcmp(line.name, lines[_i].name, line.name_bytes), 0);
    }
}
END_TEST

/* ---- keys and heads -------------------------------------------------------------------------- */

START_TEST(keys_are_those_that_memcached_takes)
{
    struct tierce__memcached_key key;
    char name[TIERCE__CONNECTOR_NAME_MAX], prefix[TIERCE__MEMCACHED_PREFIX_BYTES + 2] = "";
    tierce__memcached_head_key(&key, "t:", &(struct tierce_plugin_name){"a b/\n%\xff", 7});
    ck_assert_str_eq(key.text, "t:n:a%20b/%0a%25%ff");
    memset(prefix, 'p', TIERCE__MEMCACHED_PREFIX_BYTES);
    ck_assert(tierce__memcached_prefix_is_sane(prefix));
    for (size_t bytes = 1; bytes <= sizeof(name); bytes++) {
        memset(name, bytes % 2 ? ' ' : 'x', sizeof(name));
        tierce__memcached_head_key(&key, prefix, &(struct tierce_plugin_name){name, bytes});
        ck_assert_uint_le(key.bytes, TIERCE__MEMCACHED_KEY_BYTES);
        ck_assert_uint_eq(key.bytes, strlen(key.text));
        ck_assert_uint_eq(strcspn(key.text, " \r\n\t"), key.bytes);
    }
    prefix[TIERCE__MEMCACHED_PREFIX_BYTES] = 'p';
    ck_assert(!tierce__memcached_prefix_is_sane(prefix));
    ck_assert(!tierce__memcached_prefix_is_sane("a b"));
    ck_assert(!tierce__memcached_prefix_is_sane("a\n"));
    ck_assert(!tierce__memcached_prefix_is_sane("\xff"));
}
END_TEST

START_TEST(each_field_of_a_head_is_checked)
{
    uint8_t bytes[TIERCE__MEMCACHED_HEAD_BYTES], changed[TIERCE__MEMCACHED_HEAD_BYTES];
    struct tierce__memcached_head head = {
        .length = 1000, .part_bytes = 300, .parts = 4, .name = {"name", 4}};
    struct tierce__memcached_head out;
    size_t count = tierce__memcached_head_encode(bytes, &head);
    ck_assert_uint_eq(count, 44);
    ck_assert_int_eq(tierce__memcached_head_decode(&out, bytes, count), 0);
    ck_assert_uint_eq(out.length, 1000);
    ck_assert_uint_eq(tierce__memcached_part_size(&out, 3), 100);
    ck_assert_int_eq(memcmp(out.name.text, "name", 4), 0);
    for (size_t i = 0; i <= TIERCE__MEMCACHED_HEAD_FIXED; i++)
        ck_assert_int_eq(tierce__memcached_head_decode(&out, bytes, i), TIERCE_E_FORMAT);
    for (size_t i = 0; i < 8; i++) { /* magic */
        memcpy(changed, bytes, sizeof(bytes));
        changed[i] ^= 1;
        ck_assert_int_eq(tierce__memcached_head_decode(&out, changed, count), TIERCE_E_FORMAT);
    }
    static const struct {
        uint64_t length;
        uint32_t part_bytes, parts;
    } wrong[] = {{0, 300, 0},      {0, 300, 1},    {1000, 0, 4},   {1000, 300, 3},
                 {1000, 300, 5},   {1200, 300, 5}, {1000, 300, 0}, {UINT64_MAX, UINT32_MAX, 2},
                 {65537, 1, 65537}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        head.length = wrong[i].length;
        head.part_bytes = wrong[i].part_bytes;
        head.parts = wrong[i].parts;
        count = tierce__memcached_head_encode(bytes, &head);
        ck_assert_int_eq(tierce__memcached_head_decode(&out, bytes, count), TIERCE_E_FORMAT);
    }
}
END_TEST

static const struct {
    const char *url, *why;
} wrong_urls[] = {
    {"memcached://", "URL: exactly one host is required"},
    {"memcached://a,b", "URL: exactly one host is required"},
    {"memcached://a/0", "URL: the URL accepts no path after the host"},
    {"memcached://u:p@a", "URL: this protocol accepts no user name"},
    {"memcached://a?prefix=a%20b",
     "URL: the prefix is longer than 64 bytes or has unprintable characters"},
    {"memcached://a?ttl=never", "URL: parameter ttl is \"never\"; accepted are 1s to 87600h"},
    {"memcached+unix://a/b", "URL: a socket must be an absolute path: three slashes"},
    {"memcached+unix:///", "URL: a socket must be an absolute path: three slashes"},
};

START_TEST(wrong_urls_are_told)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    ck_assert_int_eq(try_open(wrong_urls[_i].url, why), TIERCE_E_CONFIG);
    ck_assert_str_eq(why, wrong_urls[_i].why);
}
END_TEST

/* ---- content of the server ------------------------------------------------------------------- */

#define LARGE (3u << 20) /* a head and four parts, of items of 1 MiB less what they need */

START_TEST(objects_leave_nothing_behind)
{
    start(NULL, "");
    ck_assert_int_eq(connector_put(connector, pool, "a", 1, LARGE), 0);
    ck_assert_uint_eq(items(), 5);
    ck_assert_int_eq(connector_delete(connector, "a"), 0);
    ck_assert_int_eq(connector_exists(connector, "a"),
                     0); /* expired items are removed when requested */
    ck_assert_uint_eq(items(), 0);
    ck_assert_int_eq(connector_put(connector, pool, "b", 1, 1), 0);
    ck_assert_uint_eq(items(), 2);
    ck_assert_int_eq(connector_put(connector, pool, "b", 2, 1), 0);
    ck_assert_uint_eq(items(), 3); /* the replaced part stays for a minute */
    ck_assert_ptr_nonnull(strstr(tell("stats\r\n"), "STAT touch_hits 1\r\n"));
    end();
}
END_TEST

/* The key of a part, from the head that is there. */
static void part_key(char out[300], const char *name, unsigned part)
{
    char command[64], hex[33];
    struct tierce__memcached_head head;
    snprintf(command, sizeof(command), "get tierce:n:%s\r\n", name);
    const char *value = strchr(tell(command), '\n') + 1;
    ck_assert_int_eq(tierce__memcached_head_decode(&head, (const uint8_t *)value,
                                                   TIERCE__MEMCACHED_HEAD_FIXED + strlen(name)),
                     0);
    for (size_t i = 0; i < sizeof(head.generation); i++)
        snprintf(hex + 2 * i, 3, "%02x", head.generation[i]);
    snprintf(out, 300, "tierce:p:%s:%u", hex, part);
}

START_TEST(an_evicted_part_is_a_miss_and_is_repaired)
{
    char key[300], command[320];
    start(NULL, "");
    for (unsigned part = 0; part < 4; part++) {
        ck_assert_int_eq(connector_put(connector, pool, "a", part, LARGE), 0);
        part_key(key, "a", part);
        snprintf(command, sizeof(command), "delete %s\r\n", key);
        ck_assert_str_eq(tell(command), "DELETED\r\n");
        ck_assert_int_eq(connector_exists(connector, "a"), 1); /* so far nobody knows */
        unsigned other = (part + 1) % 4;
        ck_assert_int_eq(connector_get(connector, pool, "a", part, other * 1048064, 1000), 0);
        ck_assert_int_eq(connector_get(connector, pool, "a", part, 0, LARGE), TIERCE_E_MISS);
        ck_assert_int_eq(connector_exists(connector, "a"), 0);
        ck_assert_uint_eq(items(), 0);
        ck_assert_int_eq(connector_put(connector, pool, "a", 77, LARGE), 0);
        ck_assert_int_eq(connector_get(connector, pool, "a", 77, 0, LARGE), 0);
        ck_assert_int_eq(connector_delete(connector, "a"), 0);
    }
    end();
}
END_TEST

/* Another program's item, and one that is longer than a head. */
START_TEST(what_is_no_head_is_a_miss_and_is_replaced)
{
    static const char *const commands[] = {"set tierce:n:a 0 0 5\r\nhello\r\n",
                                           "set tierce:n:a 0 0 0\r\n\r\n", NULL};
    static char large[20100];
    start(NULL, "");
    for (size_t i = 0; i < 3; i++) {
        int bytes = snprintf(large, sizeof(large), "set tierce:n:a 0 0 20000\r\n");
        memset(large + bytes, 'x', 20000);
        memcpy(large + bytes + 20000, "\r\n", 3);
        ck_assert_str_eq(tell(commands[i] != NULL ? commands[i] : large), "STORED\r\n");
        ck_assert_int_eq(connector_exists(connector, "a"), 0);
        ck_assert_int_eq(connector_get(connector, pool, "a", 1, 0, 100), TIERCE_E_MISS);
        ck_assert_int_eq(connector_put(connector, pool, "a", 1, 100), 0);
        ck_assert_int_eq(connector_get(connector, pool, "a", 1, 0, 100), 0);
    }
    ck_assert_uint_eq(connector_stats(connector).connections, connector_stats(connector).connects);
    end();
}
END_TEST

START_TEST(times_to_live)
{
    start(NULL, "?ttl=5s");
    ck_assert_int_eq(connector_put(connector, pool, "a", 1, 100), 0);
    ck_assert_int_eq(connector_get(connector, pool, "a", 1, 0, 100), 0);
    while (connector_exists(connector, "a") == 1)
        server_pause_ms(50);
    ck_assert_int_eq(connector_get(connector, pool, "a", 1, 0, 100), TIERCE_E_MISS);
    end();
}
END_TEST

/* Far more objects than it holds: every object found is complete, and the last ones are there. */
START_TEST(a_full_server_evicts)
{
    static const char *const more[] = {"-m", "64", NULL};
    char name[16];
    unsigned there = 0;
    start(more, "");
    for (unsigned i = 0; i < 60; i++) {
        snprintf(name, sizeof(name), "%u", i);
        int rc = connector_put(connector, pool, name, i, LARGE);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_FULL, "%d: %s", rc, connector_why(connector));
    }
    for (unsigned i = 60; i-- > 0;) {
        snprintf(name, sizeof(name), "%u", i);
        int rc = connector_get(connector, pool, name, i, 0, LARGE);
        ck_assert(rc == 0 || rc == TIERCE_E_MISS);
        ck_assert_int_eq(connector_exists(connector, name), rc == 0);
        there += rc == 0;
    }
    ck_assert_uint_gt(there, 2);
    ck_assert_uint_lt(there, 30);
    end();
}
END_TEST

/* It may not evict (-M): a PUT for which there is no room fails, and leaves nothing behind. */
START_TEST(a_server_that_does_not_evict_is_full)
{
    static const char *const more[] = {"-m", "64", "-M", NULL};
    char name[16];
    int rc = 0;
    unsigned n = 0;
    start(more, "");
    for (; rc == 0; n++) {
        snprintf(name, sizeof(name), "%u", n);
        rc = connector_put(connector, pool, name, n, LARGE);
        ck_assert_uint_lt(n, 64);
    }
    ck_assert_msg(rc == TIERCE_E_FULL, "%d: %s", rc, connector_why(connector));
    ck_assert_uint_eq(items(), 5 * (n - 1));
    ck_assert_int_eq(connector_exists(connector, name), 0);
    for (unsigned i = 0; i + 1 < n; i++) {
        snprintf(name, sizeof(name), "%u", i);
        ck_assert_int_eq(connector_get(connector, pool, name, i, 0, LARGE), 0);
    }
    ck_assert_uint_eq(connector_stats(connector).connections, connector_stats(connector).connects);
    end();
}
END_TEST

static _Atomic bool killing;

static void *operate_while_killing(void *arg)
{
    unsigned me = (unsigned)(uintptr_t)arg;
    char name[16];
    for (unsigned i = 0; atomic_load(&killing); i++) {
        snprintf(name, sizeof(name), "%u", i % 4);
        int rc = me % 2 == 0 ? connector_put(connector, pool, name, i % 4, LARGE)
                             : connector_get(connector, pool, name, i % 4, 0, LARGE);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_DOWN || rc == TIERCE_E_MISS, "%d: %s", rc,
                      connector_why(connector));
        if (rc == TIERCE_E_DOWN)
            server_pause_ms(1);
    }
    return NULL;
}

/* A get checks the bytes that it has got. */
START_TEST(killed_in_the_middle)
{
    pthread_t threads[4];
    start(NULL, "?connections=4");
    atomic_store(&killing, true);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, operate_while_killing, (void *)i), 0);
    for (unsigned i = 0; i < 10; i++) {
        server_pause_ms(30 + 7 * i);
        memcached_kill(&server);
        ck_assert(memcached_run(&server, NULL));
    }
    atomic_store(&killing, false);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(connector_put(connector, pool, "last", 1, LARGE), 0);
    ck_assert_int_eq(connector_get(connector, pool, "last", 1, 0, LARGE), 0);
    end();
}
END_TEST

/* ---- servers that lie ------------------------------------------------------------------------ */

#define SETTINGS "STAT item_size_max 1048576\r\nEND\r\n"
#define HEAD                                                                                       \
    "TierceH10123456789abcdef\x05\0\0\0\0\0\0\0\xff\0\0\0\x01\0\0\0n" /* of 5 bytes in a part */
#define F TIERCE_E_FORMAT
#define D TIERCE_E_DOWN
#define T TIERCE_E_DEADLINE
#define SAID(text)                                                                                 \
    {                                                                                              \
        .bytes = (text), .count = sizeof(text) - 1                                                 \
    }

/* What is said to each command in turn, and what becomes of a GET of five bytes, an EXISTS, a
 * DELETE and a PUT then. */
static const struct {
    struct script_reply replies[3];
    int get, exists, remove, put;
} answers[] = {
    {{SAID(SETTINGS), SAID("VALUE k 0 41 9\r\n" HEAD "\r\nEND\r\n"),
      SAID("VALUE p 0 5\r\nxxxxx\r\nEND\r\n")},
     0,
     1,
     F,
     F},
    {{SAID("ERROR\r\n"), SAID("END\r\n")}, TIERCE_E_MISS, 0, 0, F},
    {{SAID("nonsense\r\n"), SAID("END\r\n")}, F, F, F, F},
    {{SAID("END\r\n"), SAID("nonsense\r\n")}, F, F, F, F},
    {{SAID("END\r\n"), SAID("STORED\r\n")}, F, F, F, T},
    {{SAID("END\r\n"), SAID("SERVER_ERROR out of memory writing get response\r\n")}, D, D, D, D},
    {{SAID("END\r\n"), SAID("CLIENT_ERROR no\r\n")}, F, F, F, F},
    {{SAID("END\r\n"), SAID("VALUE k 0 18446744073709551615\r\n")}, F, F, F, F},
    {{SAID("END\r\n"), SAID("VALUE k 0 5\r\nxxxxxxEND\r\n")}, F, F, F, F},
    {{SAID("END\r\n"), SAID("VALUE k 0 5\r\nxxxx\r\nEND\r\n")}, F, F, F, F},
    {{SAID("END\r\n"), SAID("VALUE k 0 5\r\nxxxxx\r\nSTORED\r\n")}, F, F, F, F},
    {{SAID("END\r\n"), SAID("VALUE k 0 41\r\n" HEAD "\r\nEND\r\n"),
      SAID("VALUE p 0 6\r\nxxxxxx\r\nEND\r\n")},
     F,
     1,
     F,
     F},
    {{SAID("END\r\n"), SAID("VALUE k 0 41\r\n" HEAD "\r\nEND\r\n"), SAID("VALUE p 0 5\r\nxx")},
     T,
     1,
     F,
     F},
    {{SAID("END\r\n"), {.bytes = "VALUE k 0 41\r\nTier", .count = 18, .closes = true}}, D, D, D, F},
    {{{.bytes = "STAT ", .count = 5, .closes = true}}, D, D, D, D},
    {{{.bytes = "STAT ", .count = 5}}, T, T, T, T},
    {{SAID("END\r\nEND\r\n"), SAID("END\r\n")}, TIERCE_E_MISS, 0, 0, F},
};

/* `wanted`: only where that is the deadline is it waited for. */
static int operate(enum tierce__store_op op, int wanted)
{
    struct connector_call call;
    connector_call_init(&call, op, "n", 0);
    call.req.buf = connector_object(pool, 1, 5);
    call.req.length = 5;
    call.req.deadline_ns = tierce__deadline_in_ms(wanted == TIERCE_E_DEADLINE ? 300 : 30000);
    int rc = connector_call_run(connector, &call);
    if (op == TIERCE__STORE_GET && rc == 0)
        ck_assert_int_eq(memcmp(call.req.buf->data, "xxxxx", 5), 0);
    while (atomic_load(&call.req.buf->refs) > 1)
        sched_yield();
    tierce__buf_release(call.req.buf);
    return op == TIERCE__STORE_LOOKUP && rc == 0 ? (int)call.req.found : rc;
}

START_TEST(wrong_answers)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_GET, TIERCE__STORE_LOOKUP,
                                                TIERCE__STORE_DELETE, TIERCE__STORE_PUT};
    const int wanted[] = {answers[_i].get, answers[_i].exists, answers[_i].remove, answers[_i].put};
    for (size_t i = 0; i < 4; i++) {
        pool = connector_pool();
        script_server_start(&script, answers[_i].replies, 3);
        open_port(script.port, "?connections=2");
        int rc = operate(ops[i], wanted[i]);
        ck_assert_msg(rc == wanted[i], "operation %d: %s: %s", (int)ops[i], tierce_strerror(rc),
                      connector_why(connector));
        close_connector();
        script_server_stop(&script);
        tierce__pool_destroy(pool);
    }
}
END_TEST

/* A line that never ends. */
START_TEST(an_endless_line)
{
    static char line[100000];
    memset(line, 'x', sizeof(line));
    const struct script_reply reply = {.bytes = line, .count = sizeof(line)};
    pool = connector_pool();
    script_server_start(&script, &reply, 1);
    open_port(script.port, "?connections=2");
    ck_assert_int_eq(operate(TIERCE__STORE_GET, TIERCE_E_FORMAT), TIERCE_E_FORMAT);
    close_connector();
    script_server_stop(&script);
    tierce__pool_destroy(pool);
}
END_TEST

#define COUNT(array) (int)(sizeof(array) / sizeof(*(array)))

static Suite *make_suite(void)
{
    Suite *suite = suite_create("memcached");
    TCase *tcase = tcase_create("memcached");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, lines_are_parsed, 0, COUNT(lines));
    tcase_add_test(tcase, keys_are_those_that_memcached_takes);
    tcase_add_test(tcase, each_field_of_a_head_is_checked);
    tcase_add_loop_test(tcase, wrong_urls_are_told, 0, COUNT(wrong_urls));
    tcase_add_loop_test(tcase, wrong_answers, 0, COUNT(answers));
    tcase_add_test(tcase, an_endless_line);
    if (memcached_is_there()) {
        tcase_add_test(tcase, objects_leave_nothing_behind);
        tcase_add_test(tcase, an_evicted_part_is_a_miss_and_is_repaired);
        tcase_add_test(tcase, what_is_no_head_is_a_miss_and_is_replaced);
        tcase_add_test(tcase, times_to_live);
        tcase_add_test(tcase, a_full_server_evicts);
        tcase_add_test(tcase, a_server_that_does_not_evict_is_full);
        tcase_add_test(tcase, killed_in_the_middle);
    }
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main_at_once(make_suite);
}
