/* SPDX-License-Identifier: Apache-2.0 */
/* Hints of Redis clients: TIERCE.HINT, and the expiry of values. */
#include "check_main.h"
#include "engine/engine.h"
#include "node_harness.h"

#include <stdlib.h>

enum { LARGE = 100000 }; /* smaller values share pages of memory, which have no hints */

static struct node_harness h;
static char folder[64];
static int fd;

static void set_up(void)
{
    char path[96];
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "--disk.path=%s", folder);
    char *arguments[] = {path, (char *)"--disk.size=64MiB", (char *)"--memory.policy=hazard",
                         (char *)"--disk.policy=hazard"};
    harness_start(&h, 4, arguments);
    fd = harness_connect(h.ports.resp);
}

static void tear_down(void)
{
    close(fd);
    harness_stop(&h);
    temp_folder_remove(folder);
}

static struct tierce__policy_hints hints_at(size_t level)
{
    struct tierce__tier_stats stats;
    struct tierce__tier *tier = h.node->engine->levels[level].tier;
    ck_assert_int_eq(tierce_engine_flush(h.node->engine, 60000), 0);
    tier->ops->stats(tier, &stats);
    ck_assert(stats.has_hints);
    return stats.hints;
}

/* Uses with this hint, in memory and on disk. */
#define check_uses(hint, in_memory, on_disk)                                                       \
    do {                                                                                           \
        ck_assert_uint_eq(hints_at(0).used[hint], in_memory);                                      \
        ck_assert_uint_eq(hints_at(1).used[hint], on_disk);                                        \
    } while (0)

static void check_returns(enum tierce_hint hint, uint64_t count)
{
    ck_assert_uint_eq(hints_at(0).returned[hint], count);
    ck_assert_uint_eq(hints_at(1).returned[hint], count);
}

static void set_large(const char *name, const char *options)
{
    static char value[LARGE];
    char head[128];
    snprintf(head, sizeof(head), "*%d\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%d\r\n",
             options[0] != '\0' ? 5 : 3, strlen(name), name, LARGE);
    say(fd, head);
    say_bytes(fd, value, LARGE);
    say(fd, "\r\n");
    say(fd, options);
    hear(fd, "+OK\r\n");
}

static void get_large(int connection, const char *name)
{
    static char value[LARGE];
    char text[64];
    snprintf(text, sizeof(text), "GET %s\r\n", name);
    talk(connection, text, "$100000\r\n");
    hear_bytes(connection, value, LARGE);
    hear(connection, "\r\n");
}

START_TEST(words_are_checked)
{
    talk(fd, "TIERCE.HINT SESSION open\r\ntierce.hint session CLOSED\r\nTIERCE.HINT NONE\r\n",
         "+OK\r\n+OK\r\n+OK\r\n");
    talk(fd, "TIERCE.HINT RETURNS_IN 0\r\nTIERCE.HINT TTL 5\r\n", "+OK\r\n+OK\r\n");
    talk(fd, "TIERCE.HINT SESSION ajar\r\n",
         "-ERR SESSION is 'ajar': it must be OPEN or CLOSED\r\n");
    talk(fd, "TIERCE.HINT TTL -1\r\n",
         "-ERR TTL is '-1': it must be a whole number of seconds, at least 0\r\n");
    talk(fd, "TIERCE.HINT returns_in 1.5\r\n",
         "-ERR RETURNS_IN is '1.5': it must be a whole number of seconds, at least 0\r\n");
    talk(fd, "TIERCE.HINT maybe\r\n", "-ERR unknown subcommand 'maybe'. Try TIERCE.HINT HELP.\r\n");
    talk(fd, "TIERCE.HINT\r\nTIERCE.HINT SESSION\r\nTIERCE.HINT NONE 1\r\n",
         "-ERR wrong number of arguments for 'tierce.hint' command\r\n"
         "-ERR wrong number of arguments for 'tierce.hint|session' command\r\n"
         "-ERR wrong number of arguments for 'tierce.hint|none' command\r\n");
}
END_TEST

START_TEST(a_connection_gives_hints)
{
    int other = harness_connect(h.ports.resp);
    talk(fd, "TIERCE.HINT SESSION open\r\n", "+OK\r\n");
    set_large("large", "");
    check_uses(TIERCE_HINT_OPEN, 1, 1);
    talk(fd, "SET a 1\r\nSET b 1 NX\r\nMSET c 1 d 1\r\nINCR e\r\n", "+OK\r\n+OK\r\n+OK\r\n:1\r\n");
    check_uses(TIERCE_HINT_OPEN, 1, 6);
    talk(fd, "TIERCE.HINT RETURNS_IN 60\r\n", "+OK\r\n");
    get_large(fd, "large");
    check_uses(TIERCE_HINT_SOON, 1, 1);
    check_returns(TIERCE_HINT_OPEN, 1);
    talk(fd, "TIERCE.HINT RETURNS_IN 61\r\n", "+OK\r\n");
    get_large(fd, "large");
    check_uses(TIERCE_HINT_LATER, 1, 1);
    talk(fd, "TIERCE.HINT TTL 0\r\n", "+OK\r\n");
    get_large(fd, "large");
    check_uses(TIERCE_HINT_CLOSED, 1, 1);
    get_large(other, "large");
    check_returns(TIERCE_HINT_CLOSED, 1);
    talk(fd, "RESET\r\n", "+RESET\r\n");
    get_large(fd, "large");
    check_uses(TIERCE_HINT_CLOSED, 1, 1);
    close(other);
}
END_TEST

/* When a large SET reserves memory, its options have not arrived yet. */
START_TEST(a_value_that_expires_has_a_hint)
{
    set_large("large", "$2\r\nEX\r\n$3\r\n100\r\n");
    check_uses(TIERCE_HINT_TTL, 0, 1);
    get_large(fd, "large");
    check_uses(TIERCE_HINT_TTL, 1, 2);
    talk(fd, "SET small 1 EX 100\r\nSETEX other 100 1\r\n", "+OK\r\n+OK\r\n");
    check_uses(TIERCE_HINT_TTL, 1, 4);
    set_large("stays", "");
    get_large(fd, "stays");
    check_uses(TIERCE_HINT_TTL, 1, 4);
    talk(fd, "EXPIRE stays 100\r\n", ":1\r\n"); /* stores it again */
    check_uses(TIERCE_HINT_TTL, 2, 5);
    talk(fd, "TIERCE.HINT SESSION open\r\n", "+OK\r\n");
    get_large(fd, "stays");
    check_uses(TIERCE_HINT_TTL, 2, 5);
    check_uses(TIERCE_HINT_OPEN, 1, 1);
}
END_TEST

CHECK_MAIN("node_hints", .seconds = 60, .setup = set_up, .teardown = tear_down,
           .tests = {words_are_checked, a_connection_gives_hints, a_value_that_expires_has_a_hint})
