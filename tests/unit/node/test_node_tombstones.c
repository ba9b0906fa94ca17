/* SPDX-License-Identifier: Apache-2.0 */
/* A node whose remote store is away, at the limit of tombstones. */
#include "check_main.h"
#include "engine/objects/tombstones.h"
#include "node_harness.h"
#include "proto/lm/lm.h"
#include "tombstone_file.h"

#include <stdlib.h>

#include <tierce/log.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define LIMIT                                                                                      \
    "the limit of 262144 tombstones is reached: return the remote stores to service, permit "      \
    "deletions in them, or remove them from remote.urls"
#define KEPT                                                                                       \
    "a remote store that never deletes has a value of this name: set disk.path, where the node "   \
    "can record that it is old, or delete it in the store"

static struct node_harness h;
static char folder[64];
static _Atomic unsigned full, dropped;

static void note_events(void *arg, enum tierce_log_level level, const char *event,
                        const char *detail)
{
    (void)arg;
    (void)level;
    full += strcmp(event, "tombstones_full") == 0;
    dropped += strcmp(event, "node_put_dropped") == 0 && strstr(detail, LIMIT) != NULL;
}

static void start(void)
{
    char path[96];
    snprintf(path, sizeof(path), "--disk.path=%s/store", folder);
    char *arguments[] = {path, (char *)"--disk.size=64MiB",
                         (char *)"--remote.urls=redis://127.0.0.1:1", (char *)"--breaker.errors=1",
                         (char *)"--breaker.retry=1h"};
    harness_start(&h, COUNT(arguments), arguments);
}

static void start_with(uint32_t tombstones)
{
    static const uint8_t digest[TIERCE_HASH_BYTES] = {1};
    char path[96];
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    tierce_set_log_fn(note_events, NULL, TIERCE_LOG_INFO);
    start();
    harness_stop(&h);
    snprintf(path, sizeof(path), "%s/store/tombstones", folder);
    write_tombstones(path, tombstones, 7, digest);
    start();
}

static void stop(void)
{
    char command[96];
    harness_stop(&h);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_ERROR);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

static void put_by_lm(const char *key)
{
    uint8_t message[TIERCE__LM_REQUEST_BYTES];
    struct tierce__lm_request request = {.command = TIERCE__LM_PUT,
                                         .value_bytes = 1,
                                         .shape = {.format = 1, .dtype = 3, .dims = {1, 1, 1, 1}},
                                         .key = key,
                                         .key_bytes = strlen(key)};
    uint64_t before = harness_counter(&h, TIERCE__NODE_sets_dropped);
    int fd = harness_connect(h.ports.lm);
    ck_assert_int_eq(tierce__lm_request_encode(message, &request), 0);
    say_bytes(fd, message, sizeof(message));
    say_bytes(fd, "v", 1);
    while (harness_counter(&h, TIERCE__NODE_sets_dropped) <= before)
        usleep(1000);
    close(fd);
}

/* No value is stored, and the reason is neither memory nor a full disk. */
START_TEST(test_the_limit_is_named)
{
    static const char *const commands[] = {
        "SET a 1\r\n",     "SETNX a 1\r\n", "MSET a 1\r\n",
        "SETEX a 5 1\r\n", "DEL a\r\n",     "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n",
    };
    char why[TIERCE__NODE_WHY_BYTES];
    start_with(TIERCE__TOMBSTONES_MAX);
    int fd = harness_connect(h.ports.resp);
    for (size_t i = 0; i < COUNT(commands); i++)
        talk(fd, commands[i], "-ERR " LIMIT "\r\n");
    put_by_lm("org/m@1@0@abc@bfloat16");
    ck_assert_uint_eq(dropped, 1);
    close(fd);
    ck_assert(!tierce__node_is_ready(h.node, why));
    ck_assert_str_eq(why, "a probe of the data path with a small value failed: " LIMIT
                          "; remote stores out of service: 1 of 1 (event tier_out_of_service in "
                          "the log)");
    ck_assert_uint_eq(full, 1);
    stop();
}
END_TEST

/* A probe that needs no new tombstone works at the limit, and commands do not. */
START_TEST(test_the_limit_is_reported_when_probes_have_tombstones)
{
    enum { PROBES = 128, NAMES = 2 * PROBES, LEFT = 10 };
    char why[TIERCE__NODE_WHY_BYTES], command[64];
    start_with(TIERCE__TOMBSTONES_MAX - NAMES - LEFT);
    for (int i = 0; i < PROBES; i++)
        ck_assert_msg(tierce__node_is_ready(h.node, why), "%s", why);
    int fd = harness_connect(h.ports.resp);
    for (int i = 0; i < LEFT; i++) {
        ck_assert_msg(tierce__node_is_ready(h.node, why), "%s", why);
        snprintf(command, sizeof(command), "SET k%d 1\r\n", i);
        talk(fd, command, "+OK\r\n");
    }
    talk(fd, "SET a 1\r\n", "-ERR " LIMIT "\r\n");
    close(fd);
    ck_assert(!tierce__node_is_ready(h.node, why));
    ck_assert_str_eq(why, LIMIT "; remote stores out of service: 1 of 1 (event "
                                "tier_out_of_service in the log)");
    stop();
}
END_TEST

START_TEST(test_a_value_that_a_store_keeps_is_named)
{
    char url[128];
    char *arguments[] = {url};
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(url, sizeof(url), "--remote.urls=file://%s/remote", folder);
    harness_start(&h, COUNT(arguments), arguments);
    int fd = harness_connect(h.ports.resp);
    talk(fd, "SET k old\r\n", "+OK\r\n");
    close(fd);
    ck_assert_int_eq(tierce_engine_flush(h.node->engine, 60000), 0);
    harness_stop(&h);
    snprintf(url, sizeof(url), "--remote.urls=file://%s/remote?read_only=true", folder);
    harness_start(&h, COUNT(arguments), arguments);
    fd = harness_connect(h.ports.resp);
    talk(fd, "SET k new\r\n", "-ERR " KEPT "\r\n");
    talk(fd, "DEL k\r\n", "-ERR " KEPT "\r\n");
    talk(fd, "GET k\r\n", "$3\r\nold\r\n");
    talk(fd, "SET other new\r\n", "+OK\r\n");
    close(fd);
    harness_stop(&h);
    temp_folder_remove(folder);
}
END_TEST

CHECK_MAIN("a node at the limit of tombstones", .seconds = 60,
           .tests = {test_the_limit_is_named, test_a_value_that_a_store_keeps_is_named,
                     test_the_limit_is_reported_when_probes_have_tombstones})
