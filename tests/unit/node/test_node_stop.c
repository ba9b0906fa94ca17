/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a node with slow clients. */
#include "base/clock.h"
#include "node_harness.h"
#include "node/native/native_server.h"
#include "node/part/node_pool.h"
#include "proto/transfer/transfer_wire.h"
#include "silent_log.h"
#include "wait_for.h"

#include <sys/un.h>

enum { DRAIN_MS = 300, MIB = 1 << 20 };

/* The deadlines that the node gives to its doors. */
static uint64_t native_until_ns, pool_until_ns;

void __real_tierce__native_stop(struct tierce__native *native, uint64_t until_ns);
void __wrap_tierce__native_stop(struct tierce__native *native, uint64_t until_ns);
void __wrap_tierce__native_stop(struct tierce__native *native, uint64_t until_ns)
{
    native_until_ns = until_ns;
    __real_tierce__native_stop(native, until_ns);
}

void __real_tierce__node_pool_stop(struct tierce__node_pool *pool, uint64_t deadline_ns);
void __wrap_tierce__node_pool_stop(struct tierce__node_pool *pool, uint64_t deadline_ns);
void __wrap_tierce__node_pool_stop(struct tierce__node_pool *pool, uint64_t deadline_ns)
{
    pool_until_ns = deadline_ns;
    __real_tierce__node_pool_stop(pool, deadline_ns);
}

/* A client of the pool that sends half of an object. */
static int write_half(uint16_t port)
{
    static const char space[] = "memory", name[] = "a";
    uint8_t hello[TIERCE__TRANSFER_HELLO_BYTES], head[TIERCE__TRANSFER_HEAD_BYTES],
        welcome[TIERCE__TRANSFER_WELCOME_BYTES], half[MIB / 2] = {0};
    int fd = harness_connect(port);
    tierce__transfer_hello_encode(
        hello, &(struct tierce__transfer_hello){.version = TIERCE__TRANSFER_VERSION,
                                                .space_bytes = sizeof(space) - 1});
    say_bytes(fd, hello, sizeof(hello));
    say(fd, space);
    hear_bytes(fd, welcome, sizeof(welcome));
    tierce__transfer_request_encode(
        head, &(struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_WRITE,
                                                 .name_bytes = sizeof(name) - 1,
                                                 .length = MIB,
                                                 .total = MIB});
    say_bytes(fd, head, sizeof(head));
    say(fd, name);
    say_bytes(fd, half, sizeof(half));
    return fd;
}

static uint64_t used_bytes(const struct node_harness *h)
{
    static const char member[] = "\"used_bytes\":";
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    tierce__json_write_open(&json, NULL, '{');
    tierce__node_pool_status(h->node->pool, &json);
    tierce__json_write_close(&json, '}');
    ck_assert(!line.failed);
    uint64_t used = strtoull(strstr(line.text, member) + strlen(member), NULL, 10);
    tierce__line_clear(&line);
    return used;
}

/* Clients of several doors that are slow do not add up: all have the same deadline. */
START_TEST(test_one_deadline_for_all_clients)
{
    char *arguments[] = {(char *)"--serve.drain=300ms",
                         (char *)"--pool.manager=fleet://127.0.0.1:1/p", (char *)"--pool.port=0",
                         (char *)"--pool.memory=8MiB", (char *)"--pool.name=n"};
    struct node_harness h = {0};
    silence_log();
    harness_start(&h, 5, arguments);
    int resp = harness_connect(h.ports.resp);
    talk(resp, "*1\r\n$4\r\nPING\r\n", "+PONG\r\n");
    say(resp, "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1000\r\nhalf");
    int pool = write_half(h.ports.pool);
    WAIT_FOR(used_bytes(&h) > 0);
    uint64_t begun_ns = tierce__now_ns();
    harness_stop(&h);
    ck_assert_uint_ge(native_until_ns, begun_ns + DRAIN_MS * TIERCE__MS_NS);
    ck_assert_uint_ge(tierce__now_ns(), native_until_ns); /* both clients are waited for */
    ck_assert_uint_eq(pool_until_ns, native_until_ns);
    close(resp);
    close(pool);
}
END_TEST

CHECK_MAIN("node stop", .seconds = 120, .tests = {test_one_deadline_for_all_clients})
