/* SPDX-License-Identifier: Apache-2.0 */
/* More small values than fit: each SET is answered OK, and older ones make room. */
#include "base/alloc.h"
#include "check_main.h"
#include "node_harness.h"
#include "test_random.h"

#include <stdlib.h>
#include <sys/wait.h>

static struct node_harness h;

enum { PIPELINE = 500, VALUE_BYTES = 64 };

/* Stores values [first, first + PIPELINE) in one go; each is answered OK. */
static void store_some(int fd, unsigned first)
{
    static char text[PIPELINE * 128], answer[PIPELINE * 5 + 1];
    size_t bytes = 0;
    for (unsigned n = first; n < first + PIPELINE; n++)
        bytes += (size_t)snprintf(text + bytes, sizeof(text) - bytes,
                                  "*3\r\n$3\r\nSET\r\n$10\r\n%010u\r\n$%d\r\n%064u\r\n", n,
                                  VALUE_BYTES, n);
    say_bytes(fd, text, bytes);
    hear_bytes(fd, answer, PIPELINE * 5);
    for (size_t i = 0; i < PIPELINE; i++)
        ck_assert_msg(memcmp(answer + i * 5, "+OK\r\n", 5) == 0, "%.80s", answer + i * 5);
}

/* Whether a value is there, and right then. */
static bool has(int fd, unsigned n)
{
    char text[64], wanted[80], got[80] = "";
    snprintf(text, sizeof(text), "GET %010u\r\n", n);
    say(fd, text);
    hear_bytes(fd, got, 5);
    if (memcmp(got, "$-1\r\n", 5) == 0)
        return false;
    ck_assert_mem_eq(got, "$64\r\n", 5);
    snprintf(wanted, sizeof(wanted), "%064u\r\n", n);
    hear(fd, wanted);
    return true;
}

/* Twenty times the number of entries when each value took 8 KiB. */
START_TEST(test_more_than_fit_in_memory)
{
    enum { COUNT = TEST_ROUNDS(1000) * PIPELINE };
    harness_start(&h, 0, NULL);
    int fd = harness_connect(h.ports.resp);
    for (unsigned n = 0; n < COUNT; n += PIPELINE)
        store_some(fd, n);
    unsigned found = 0;
    for (unsigned n = COUNT - 50000; n < COUNT; n += 10)
        found += has(fd, n);
    ck_assert_uint_ge(found, 4500);
    ck_assert_uint_eq(harness_counter(&h, TIERCE__NODE_sets_dropped), 0);
    close(fd);
    harness_stop(&h);
}
END_TEST

/* The same with a disk behind, which is slower than the client. */
START_TEST(test_more_than_a_disk_takes)
{
    enum { COUNT = 60 * PIPELINE };
    char folder[] = "/tmp/tierce-test-XXXXXX", path[64];
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "--disk.path=%s/store", folder);
    char *args[] = {path, (char *)"--disk.size=1GiB"};
    harness_start(&h, 2, args);
    int fd = harness_connect(h.ports.resp);
    for (unsigned n = 0; n < COUNT; n += PIPELINE)
        store_some(fd, n);
    unsigned found = 0;
    for (unsigned n = 0; n < COUNT; n += 10)
        found += has(fd, n);
    ck_assert_uint_eq(found, COUNT / 10);
    close(fd);
    harness_stop(&h);
    temp_folder_remove(folder);
}
END_TEST

/* A node whose memory is full of small values writes each of them to its disk all the same. */
START_TEST(test_full_memory_keeps_nothing_from_the_disk)
{
    enum { BYTES = 7000, AT_ONCE = 100, COUNT = 60 * AT_ONCE };
    char folder[] = "/tmp/tierce-test-XXXXXX", path[64], value[BYTES + 1];
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "--disk.path=%s/store", folder);
    char *args[] = {path, (char *)"--disk.size=2GiB", (char *)"--memory.size=40MiB"};
    harness_start(&h, 3, args);
    int fd = harness_connect(h.ports.resp);
    memset(value, 'v', BYTES);
    value[BYTES] = '\0';
    for (unsigned n = 0; n < COUNT; n += AT_ONCE) {
        for (unsigned i = n; i < n + AT_ONCE; i++) {
            char head[64];
            snprintf(head, sizeof(head), "*3\r\n$3\r\nSET\r\n$8\r\n%08u\r\n$%d\r\n", i, BYTES);
            say(fd, head);
            say(fd, value);
            say(fd, "\r\n");
        }
        for (unsigned i = n; i < n + AT_ONCE; i++)
            hear(fd, "+OK\r\n");
        ck_assert_int_eq(tierce_engine_flush(h.node->engine, 60000), 0);
    }
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(h.node->engine, &stats);
    ck_assert_int_eq(stats.disk_chunks_now, COUNT);
    close(fd);
    harness_stop(&h);
    temp_folder_remove(folder);
}
END_TEST

/* The first byte of an answer; '\0' if the connection was closed. */
static char answer_to(int fd, const char *command)
{
    char text[256] = "";
    size_t bytes = 0;
    say(fd, command);
    while (bytes < sizeof(text) - 1 && strchr(text, '\n') == NULL) {
        ssize_t n = recv(fd, text + bytes, sizeof(text) - 1 - bytes, 0);
        if (n <= 0)
            return '\0';
        bytes += (size_t)n;
        text[bytes] = '\0';
    }
    return text[0];
}

/* A command without memory is answered with an error, or loses its connection; the node continues
 * to serve. */
START_TEST(test_each_allocation_of_a_command_fails_once)
{
    static const char *const commands[] = {"SET a 1\r\n",    "MSET a 1 b 2\r\n",    "SETNX c 1\r\n",
                                           "GETSET a 1\r\n", "SET a 1 KEEPTTL\r\n", "INCR n\r\n",
                                           "GETDEL b\r\n",   "APPEND d 1\r\n"};
    unsigned failures = 0;
    harness_start(&h, 0, NULL);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        uint64_t nth = 0, made;
        do {
            int fd = harness_connect(h.ports.resp);
            (void)answer_to(fd, "DEL c d\r\n");
            talk(fd, "MSET a 1 b 1 n 1\r\n", "+OK\r\n");
            ck_assert_uint_lt(nth, 1000);
            tierce__alloc_fail_nth(++nth);
            char answer = answer_to(fd, commands[i]);
            made = tierce__alloc_fail_nth(0);
            failures += answer == '-' || answer == '\0';
            close(fd);
        } while (made >= nth);
    }
    ck_assert_uint_ge(failures, sizeof(commands) / sizeof(commands[0]));
    int fd = harness_connect(h.ports.resp);
    talk(fd, "SET a 1\r\nGET a\r\n", "+OK\r\n$1\r\n1\r\n");
    close(fd);
    harness_stop(&h);
}
END_TEST

/* GETDEL that finds nothing for want of memory still removes the value. */
START_TEST(test_getdel_leaves_nothing)
{
    uint64_t nth = 0, made;
    unsigned misses = 0;
    harness_start(&h, 0, NULL);
    do {
        int fd = harness_connect(h.ports.resp);
        char text[32] = "";
        talk(fd, "SET a 1\r\n", "+OK\r\n");
        ck_assert_uint_lt(nth, 1000);
        tierce__alloc_fail_nth(++nth);
        say(fd, "GETDEL a\r\n");
        ssize_t n = recv(fd, text, 5, MSG_WAITALL);
        made = tierce__alloc_fail_nth(0);
        close(fd);
        if (n != 5 || strcmp(text, "$-1\r\n") != 0)
            continue;
        misses++;
        fd = harness_connect(h.ports.resp);
        talk(fd, "GET a\r\n", "$-1\r\n");
        close(fd);
    } while (made >= nth);
    ck_assert_uint_ge(misses, 1);
    harness_stop(&h);
}
END_TEST

/* A pipeline of SETs, other commands and wrong ones on a node with a disk: answers in their order,
 * and each GET finds what was stored just before; also when the values are on disk already. */
START_TEST(test_pipeline_keeps_its_order)
{
    char folder[] = "/tmp/tierce-test-XXXXXX", path[64];
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "--disk.path=%s/store", folder);
    char *args[] = {path, (char *)"--disk.size=1GiB"};
    harness_start(&h, 2, args);
    for (int round = 0; round < 3; round++) {
        int fd = harness_connect(h.ports.resp);
        talk(fd,
             "SET a 1\r\nSET b 2\r\nGET a\r\nSET a 3\r\nSET \"\" x\r\nSET b 4 NX\r\nGET a\r\n"
             "SET c 5\r\nDEL c\r\nSET c 6\r\nNONE\r\nMGET a b c\r\nMSET a 7 b 8\r\nSET a 9\r\nGET "
             "a\r\n",
             "+OK\r\n+OK\r\n$1\r\n1\r\n+OK\r\n-ERR a key is 1 to 1024 bytes long\r\n$-1\r\n"
             "$1\r\n3\r\n+OK\r\n:1\r\n+OK\r\n-ERR unknown command 'NONE', with args beginning "
             "with: \r\n"
             "*3\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n6\r\n+OK\r\n+OK\r\n$1\r\n9\r\n");
        talk(fd, "SET a 1\r\n*1\r\n:3\r\n", "+OK\r\n-ERR Protocol error: expected '$'\r\n");
        hear_end(fd);
        ck_assert_int_eq(tierce_engine_flush(h.node->engine, 60000), 0);
    }
    harness_stop(&h);
    temp_folder_remove(folder);
}
END_TEST

/* CLIENT LIST's report of a connection's last command. */
static void last_command_is(int fd, const char *asked, const char *wanted)
{
    char text[8192];
    size_t got = 0;
    say(fd, "CLIENT LIST\r\nPING\r\n");
    while (got < 7 || memcmp(text + got - 7, "+PONG\r\n", 7) != 0) {
        ssize_t some = recv(fd, text + got, sizeof(text) - 1 - got, 0);
        ck_assert_int_gt(some, 0);
        got += (size_t)some;
        text[got] = '\0';
    }
    const char *line = strstr(text, asked);
    ck_assert_ptr_nonnull(line);
    const char *at = strstr(line, " cmd="), *end = strchr(line, '\n');
    ck_assert(at != NULL && end != NULL && at < end);
    ck_assert_msg(strncmp(at + 5, wanted, strlen(wanted)) == 0, "%.*s", (int)(end - line), line);
}

/* SETs that are published together count as commands like others: they are listed, and none is
 * executed after a line of HTTP. */
START_TEST(test_pipeline_is_listed_and_ends_at_http)
{
    char folder[] = "/tmp/tierce-test-XXXXXX", path[64];
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "--disk.path=%s/store", folder);
    char *args[] = {path, (char *)"--disk.size=1GiB"};
    harness_start(&h, 2, args);
    int fd = harness_connect(h.ports.resp), other = harness_connect(h.ports.resp);
    talk(fd, "CLIENT SETNAME first\r\n", "+OK\r\n");
    last_command_is(other, "name=first", "client");
    talk(fd, "SET a 1\r\nSET b 2\r\n", "+OK\r\n+OK\r\n");
    last_command_is(other, "name=first", "set");
    talk(fd, "SET a 3\r\nPOST / HTTP/1.1\r\nSET b 4\r\nHost: x\r\n", "+OK\r\n");
    hear_end(fd);
    talk(other, "MGET a b\r\n", "*2\r\n$1\r\n3\r\n$1\r\n2\r\n");
    close(other);
    harness_stop(&h);
    temp_folder_remove(folder);
}
END_TEST

/* After an OK for a value that replaced another, a client finds the new value or none, even if the
 * node was killed. */
START_TEST(test_replaced_values_stay_gone)
{
    enum { COUNT = 4 * PIPELINE };
    char folder[] = "/tmp/tierce-test-XXXXXX", path[64];
    int port[2];
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "--disk.path=%s/store", folder);
    char *args[] = {path, (char *)"--disk.size=1GiB", (char *)"--disk.flush_interval=1h"};
    ck_assert_int_eq(pipe(port), 0);
    pid_t child = fork();
    if (child == 0) {
        harness_start(&h, 3, args);
        int fd = harness_connect(h.ports.resp);
        for (unsigned n = 0; n < COUNT; n += PIPELINE)
            store_some(fd, n);
        ck_assert_int_eq(tierce_engine_flush(h.node->engine, 60000), 0);
        static char text[PIPELINE * 64], answer[PIPELINE * 5];
        for (unsigned n = 0; n < COUNT; n += PIPELINE) {
            size_t bytes = 0;
            for (unsigned i = n; i < n + PIPELINE; i++)
                bytes +=
                    (size_t)snprintf(text + bytes, sizeof(text) - bytes, "SET %010u new\r\n", i);
            say_bytes(fd, text, bytes);
            hear_bytes(fd, answer, sizeof(answer));
        }
        _exit(write(port[1], "x", 1) == 1 ? 0 : 1); /* nothing is closed */
    }
    char byte;
    int status;
    ck_assert_int_eq(read(port[0], &byte, 1), 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    harness_start(&h, 3, args);
    int fd = harness_connect(h.ports.resp);
    for (unsigned n = 0; n < COUNT; n++) {
        char got[16] = "", command[64];
        snprintf(command, sizeof(command), "GET %010u\r\n", n);
        say(fd, command);
        hear_bytes(fd, got, 5);
        if (memcmp(got, "$-1\r\n", 5) != 0) {
            hear_bytes(fd, got + 5, 4);
            ck_assert_str_eq(got, "$3\r\nnew\r\n");
        }
    }
    close(fd);
    harness_stop(&h);
    temp_folder_remove(folder);
}
END_TEST

CHECK_MAIN("node_small", .seconds = 110,
           .tests = {test_more_than_fit_in_memory, test_more_than_a_disk_takes,
                     test_full_memory_keeps_nothing_from_the_disk,
                     test_each_allocation_of_a_command_fails_once, test_getdel_leaves_nothing,
                     test_pipeline_keeps_its_order, test_pipeline_is_listed_and_ends_at_http,
                     test_replaced_values_stay_gone})
