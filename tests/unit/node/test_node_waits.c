/* SPDX-License-Identifier: Apache-2.0 */
/* A command that waits for another command, or for a worker, ends at its deadline, and its error
 * says for which of them it waited. */
#include "base/clock.h"
#include "check_main.h"
#include "engine/objects/object_names.h"
#include "node_harness.h"
#include "proto/lm/lm.h"

#include <semaphore.h>
#include <stdlib.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct node_harness h;
static char folder[64];

/* With a disk: on a node without one no command waits. */
static void start(char *timeout, char *workers)
{
    char path[96];
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "--disk.path=%s/store", folder);
    char *arguments[] = {path, (char *)"--disk.size=64MiB", timeout, workers};
    harness_start(&h, COUNT(arguments), arguments);
}

static void stop(void)
{
    harness_stop(&h);
    temp_folder_remove(folder);
}

static void put_by_lm(int fd, const char *key)
{
    uint8_t message[TIERCE__LM_REQUEST_BYTES];
    struct tierce__lm_request request = {.command = TIERCE__LM_PUT,
                                         .value_bytes = 1,
                                         .shape = {.format = 1, .dtype = 3, .dims = {1, 1, 1, 1}},
                                         .key = key,
                                         .key_bytes = strlen(key)};
    ck_assert_int_eq(tierce__lm_request_encode(message, &request), 0);
    say_bytes(fd, message, sizeof(message));
    say_bytes(fd, "v", 1);
}

#define IN_USE                                                                                     \
    "-ERR deadline exceeded while waiting for another command that changes the same key "          \
    "(timeout.load: 20000 ms)\r\n"

/* The commands wait at the same time, each for half of timeout.load. */
START_TEST(test_a_name_in_use)
{
    static const struct {
        const char *command, *answer;
    } cases[] = {
        {"SET k 1 NX\r\n", IN_USE},
        {"SETNX k 1\r\n", IN_USE},
        {"GETSET k 1\r\n", IN_USE},
        {"MSET k 1\r\n", IN_USE},
        {"MSET a 1 k 1\r\n", IN_USE},
        {"DEL k\r\n", IN_USE},
        {"UNLINK b k\r\n", IN_USE},
        {"INCR k\r\n", IN_USE},
        {"INCRBYFLOAT k 1\r\n", IN_USE},
        {"EXPIRE k 5\r\n", IN_USE},
        {"PERSIST k\r\n", IN_USE},
        {"GETDEL k\r\n", IN_USE},
        {"GETEX k PERSIST\r\n", IN_USE},
        {"SETEX k 5 1\r\n", IN_USE},
        {"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\n1\r\n", IN_USE},
        {"GET k\r\n", "$1\r\n0\r\n"},
        {"SET other 1 NX\r\n", "+OK\r\n"},
    };
    struct tierce__object_name *held;
    int fds[COUNT(cases)];
    start((char *)"--timeout.load=20s", (char *)"--serve.workers=32");
    int fd = harness_connect(h.ports.resp), lm = harness_connect(h.ports.lm);
    talk(fd, "SET k 0\r\n", "+OK\r\n");
    ck_assert_int_eq(tierce__node_name_begin(h.node, &held, "k", 1, TIERCE__DEADLINE_NEVER), 0);
    uint64_t dropped = harness_counter(&h, TIERCE__NODE_sets_dropped);
    for (size_t i = 0; i < COUNT(cases); i++) {
        fds[i] = harness_connect(h.ports.resp);
        say(fds[i], cases[i].command);
    }
    put_by_lm(lm, "k");
    for (size_t i = 0; i < COUNT(cases); i++) {
        hear(fds[i], cases[i].answer);
        close(fds[i]);
    }
    /* SET, SETNX, GETSET, two MSETs, INCR, INCRBYFLOAT, SETEX, the pipelined SET, and lm's PUT */
    while (harness_counter(&h, TIERCE__NODE_sets_dropped) < dropped + 10)
        usleep(1000);
    talk(fd, "GET k\r\n", "$1\r\n0\r\n");
    tierce__object_name_end(held);
    talk(fd, "SET k 1 XX\r\nINCR k\r\n", "+OK\r\n:2\r\n");
    close(lm);
    close(fd);
    stop();
}
END_TEST

struct blocker {
    struct tierce__task task;
    sem_t begun, go_on;
};

static void block(struct tierce__task *task)
{
    struct blocker *blocker = TIERCE__CONTAINER_OF(task, struct blocker, task);
    sem_post(&blocker->begun);
    sem_wait(&blocker->go_on);
}

#define NO_WORKER                                                                                  \
    "-ERR deadline exceeded while waiting for a free worker, or too many commands wait for one "   \
    "(timeout.load: 100 ms, serve.workers: 1)\r\n"

/* A command that has become too late in the queue has no effect. */
START_TEST(test_no_worker_is_free)
{
    struct blocker blocker = {.task = {.run = block}};
    sem_init(&blocker.begun, 0, 0);
    sem_init(&blocker.go_on, 0, 0);
    start((char *)"--timeout.load=100ms", (char *)"--serve.workers=1");
    ck_assert(tierce__workers_submit(h.node->workers, &blocker.task));
    sem_wait(&blocker.begun);
    int fd = harness_connect(h.ports.resp), other = harness_connect(h.ports.resp);
    say(fd, "SET k 1 NX\r\n");
    say(other, "DBSIZE\r\n");
    while (tierce__workers_waiting(h.node->workers) < 2)
        usleep(1000);
    uint64_t late_ns = tierce__deadline_in_ms(h.node->find_ms);
    while (tierce__now_ns() <= late_ns)
        usleep(1000);
    sem_post(&blocker.go_on);
    hear(fd, NO_WORKER);
    hear(other, NO_WORKER);
    talk(fd, "GET k\r\n", "$-1\r\n");
    close(fd);
    close(other);
    stop();
    sem_destroy(&blocker.begun);
    sem_destroy(&blocker.go_on);
}
END_TEST

CHECK_MAIN("waits of a node's commands", .seconds = 240,
           .tests = {test_a_name_in_use, test_no_worker_is_free})
