/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of transfer:// killed in the middle of transfers. A client gets errors and never a
 * wrong byte, and uses the next server. A server keeps nothing of a write that was cut, and gets
 * back all that it has lent.
 */
#include "connector_harness.h"
#include "raw_transfer.h"
#include "silent_log.h"
#include "test_random.h"

#include <signal.h>
#include <sys/wait.h>

enum { REQUESTS = 12, OBJECT = 1 << 20, SPACE = 64 << 20 };

static struct test_random rng;
static uint32_t rounds;

static void setup(void)
{
    silence_log();
    rng = test_random_start("crash transfer");
    rounds = 4 * test_scale();
}

static void kill_child(pid_t child)
{
    int status;
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* ---- a server that is killed ----------------------------------------------------------------- */

/* A process with a server. It tells its port and waits for its end. */
static pid_t fork_server(uint16_t *port)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        struct raw_world world = {0};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        raw_start(&world, SPACE);
        *port = tierce__transfer_server_port(world.server);
        if (write(ends[1], port, sizeof(*port)) != (ssize_t)sizeof(*port))
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], port, sizeof(*port)), sizeof(*port));
    close(ends[0]);
    return child;
}

static struct connector_call requests[REQUESTS];

/* Puts of the even objects, gets of the odd ones, which are there. */
static void submit_all(struct tierce__connector *connector, struct tierce__pool *pool)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        char name[8];
        snprintf(name, sizeof(name), "%u", i);
        connector_call_init(&requests[i], i % 2 == 0 ? TIERCE__STORE_PUT : TIERCE__STORE_GET, name,
                            0);
        requests[i].req.buf = connector_object(pool, i % 2 == 0 ? i : 99, OBJECT);
        requests[i].req.length = OBJECT;
    }
    for (uint32_t i = 0; i < REQUESTS; i++)
        connector->ops->submit(connector, &requests[i].req);
}

static uint32_t count_done(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < REQUESTS; i++)
        count += atomic_load(&requests[i].done_count) == 1;
    return count;
}

static void check_all(void)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        int rc = connector_call_wait(&requests[i]);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_DOWN, "%d", rc);
        if (i % 2 == 1 && rc == 0)
            ck_assert(connector_is_object(requests[i].req.buf->data, i, 0, OBJECT));
        tierce__buf_release(requests[i].req.buf);
    }
}

static void use_until_killed(pid_t child, uint16_t port)
{
    struct tierce__connector *connector = NULL;
    struct tierce__pool *pool = connector_pool();
    char url[96], why[TIERCE__CONNECTOR_WHY_BYTES];
    snprintf(url, sizeof(url), "transfer://127.0.0.1:%u/memory?connections=4", (unsigned)port);
    ck_assert_int_eq(
        tierce__connector_open(&connector, url,
                               &(struct tierce__connector_opts){
                                   .size = sizeof(struct tierce__connector_opts), .pool = pool},
                               why),
        0);
    for (uint32_t i = 1; i < REQUESTS; i += 2) {
        char name[8];
        snprintf(name, sizeof(name), "%u", i);
        ck_assert_int_eq(connector_put(connector, pool, name, i, OBJECT), 0);
    }
    uint32_t wanted = test_random_below(&rng, REQUESTS);
    submit_all(connector, pool);
    WAIT_FOR(count_done() >= wanted);
    kill_child(child);
    check_all();
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_DOWN);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(60000)));
    tierce__pool_destroy(pool);
}

START_TEST(a_server_that_is_killed)
{
    for (uint32_t round = 0; round < rounds; round++) {
        uint16_t port;
        pid_t child = fork_server(&port);
        use_until_killed(child, port);
    }
}
END_TEST

/* ---- a client that is killed ----------------------------------------------------------------- */

/* A process that writes objects of one value, and reads them, until it is killed. It begins when it
 * is told the port. */
static pid_t fork_client(int *tell)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child != 0) {
        close(ends[0]);
        *tell = ends[1];
        return child;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[1]);
    uint16_t port, sequence = 0;
    int fd = -1;
    char why[256];
    if (read(ends[0], &port, sizeof(port)) != (ssize_t)sizeof(port) ||
        tierce__stream_connect(&fd, "127.0.0.1", port, UINT64_MAX, why, sizeof(why)) != 0)
        _exit(1);
    uint8_t hello[64];
    raw_send(fd, hello, raw_hello(hello, "memory", ""));
    ck_assert_int_eq(raw_welcome(fd).status, 0);
    for (;;) {
        char name[8];
        snprintf(name, sizeof(name), "%u", sequence % 8);
        raw_write(fd, name, (uint8_t)sequence, OBJECT, sequence);
        sequence++;
        raw_ask_read(fd, name, 0, OBJECT);
        raw_reply(fd, TIERCE__TRANSFER_OP_READ, sequence++);
        raw_is(fd, (uint8_t)(sequence - 2), OBJECT);
    }
}

/* Each object has one value. Some may be missing. */
static void check_objects(const struct raw_world *world)
{
    int fd = raw_open(world, "");
    for (uint16_t i = 0; i < 8; i++) {
        char name[8];
        uint8_t first;
        snprintf(name, sizeof(name), "%u", i);
        raw_ask_read(fd, name, 0, OBJECT);
        struct tierce__transfer_reply reply = raw_reply(fd, TIERCE__TRANSFER_OP_READ, i);
        ck_assert(reply.status == 0 || reply.status == TIERCE_E_MISS);
        if (reply.status != 0)
            continue;
        raw_receive(fd, &first, 1);
        raw_is(fd, first, OBJECT - 1);
    }
    close(fd);
}

START_TEST(a_client_that_is_killed)
{
    for (uint32_t round = 0; round < rounds; round++) {
        struct raw_world world = {0};
        int tell;
        pid_t child = fork_client(&tell);
        raw_start(&world, SPACE);
        uint16_t port = tierce__transfer_server_port(world.server);
        ck_assert_int_eq(write(tell, &port, sizeof(port)), sizeof(port));
        close(tell);
        uint64_t wanted = 1 + test_random_below(&rng, 12);
        WAIT_FOR(raw_stats(&world).writes >= wanted && map_keeper_lent(world.keeper) > 0);
        kill_child(child);
        WAIT_FOR(raw_stats(&world).connections == 0);
        ck_assert_uint_eq(map_keeper_lent(world.keeper), 0);
        check_objects(&world);
        raw_stop(&world);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("crash transfer");
    TCase *tcase = tcase_create("kills");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_set_timeout(tcase, 1200);
    tcase_add_test(tcase, a_server_that_is_killed);
    tcase_add_test(tcase, a_client_that_is_killed);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
