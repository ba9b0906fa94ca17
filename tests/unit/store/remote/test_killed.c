/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores that are killed (SIGKILL) and started again while requests of every kind are under way: a
 * server of S3, nanio, and a node by lm://. Every read is right, and service continues afterwards.
 * Redis, memcached and Mooncake have theirs in their own tests.
 */
#include "check_main.h"
#include "connector_harness.h"
#include "s3_server.h"

#include <pthread.h>
#include <stdlib.h>

enum { S3, LM, SERVERS, OPERATORS = 5, NAMES = 4, KILLS = 3 };

#define LARGE ((5u << 20) + 12345) /* two parts in S3 */

static struct s3_server server; /* of both: a process, a port and a folder */
static struct tierce__pool *pool;
static struct tierce__connector *connector;
static _Atomic bool killing;
static _Atomic unsigned succeeded[OPERATORS], failed;

static bool run_node(void)
{
    char port[32];
    snprintf(port, sizeof(port), "--listen.lm_port=%u", (unsigned)server.port);
    server.pid = fork();
    if (server.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1);
        dup2(null, 2);
        execl(TIERCE_TEST_EXECUTABLE, "tierce", "node", port, "--listen.resp=false",
              "--listen.http_port=0", "--memory.size=128MiB", "--control.socket=", (char *)NULL);
        _exit(127);
    }
    return server_wait(&server.pid, server.port, "");
}

static void start(int which)
{
    char url[512], why[TIERCE__CONNECTOR_WHY_BYTES];
    if (which == S3) {
        ck_assert(s3_start(&server));
        snprintf(url, sizeof(url), "s3://%s:%s@kv-cache?endpoint=http://127.0.0.1:%u&part=5MiB",
                 S3_ACCESS, S3_SECRET_IN_URL, (unsigned)server.port);
    } else {
        server = (struct s3_server){.port = server_free_port()};
        ck_assert(run_node());
        snprintf(url, sizeof(url), "lm://127.0.0.1:%u", (unsigned)server.port);
    }
    pool = connector_pool();
    const struct tierce__connector_opts opts = {.size = sizeof(opts), .pool = pool};
    ck_assert_msg(tierce__connector_open(&connector, url, &opts, why) == 0, "%s", why);
}

static void take_name(void *arg, const struct tierce_plugin_name *name)
{
    (void)arg;
    ck_assert_uint_eq(name->bytes, 1);
}

static int list_names(void)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_LIST, "", 0);
    call.req.name_count = 0;
    call.req.each = take_name;
    return connector_call_run(connector, &call);
}

static int operate(unsigned what, const char *name, uint32_t version)
{
    switch (what) {
    case 0:
        return connector_put(connector, pool, name, version, LARGE);
    case 1:
        return connector_get(connector, pool, name, version, 0, LARGE);
    case 2:
        return connector_exists(connector, name) < 0 ? TIERCE_E_DOWN : 0;
    case 3:
        return (connector->caps & TIERCE__CONNECTOR_LISTS) != 0 ? list_names() : 0;
    default:
        return (connector->caps & TIERCE__CONNECTOR_NO_DELETE) == 0
                   ? connector_delete(connector, name)
                   : connector_ping(connector);
    }
}

static void *operate_while_killing(void *arg)
{
    unsigned what = (unsigned)(uintptr_t)arg;
    char name[2] = "0";
    for (unsigned i = 0; atomic_load(&killing); i++) {
        name[0] = (char)('0' + i % NAMES);
        int rc = operate(what, name, i % NAMES);
        if (what == 1 && rc == TIERCE_E_FORMAT) /* it ended in the middle of the value */
            rc = TIERCE_E_DOWN;
        ck_assert_msg(rc == 0 || rc == TIERCE_E_DOWN || rc == TIERCE_E_MISS, "operation %u: %d: %s",
                      what, rc, connector_why(connector));
        atomic_fetch_add(rc == TIERCE_E_DOWN ? &failed : &succeeded[what], 1);
        if (rc == TIERCE_E_DOWN) /* the server starts, for which it requires the processor */
            server_pause_ms(1);
    }
    return NULL;
}

/* A get looks whether it has got the right bytes. */
START_TEST(killed_in_the_middle)
{
    pthread_t threads[OPERATORS];
    if (_i == S3 && !s3_is_there())
        return; /* main says so */
    start(_i);
    atomic_store(&killing, true);
    for (size_t i = 0; i < OPERATORS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, operate_while_killing, (void *)i), 0);
    for (unsigned round = 0; round < KILLS; round++) {
        for (size_t i = 0; i < OPERATORS; i++) {
            unsigned before = atomic_load(&succeeded[i]);
            while (atomic_load(&succeeded[i]) == before)
                server_pause_ms(1);
        }
        server_pause_ms(7 * round);
        s3_kill(&server);
        ck_assert(_i == S3 ? s3_run(&server) : run_node());
    }
    atomic_store(&killing, false);
    for (size_t i = 0; i < OPERATORS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_gt(atomic_load(&failed), 0);
    ck_assert_int_eq(connector_put(connector, pool, "9", 9, LARGE), 0);
    ck_assert_int_eq(connector_get(connector, pool, "9", 9, 0, LARGE), 0);
    ck_assert_uint_eq(connector_stats(connector).calls_hanging, 0);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(10000)));
    tierce__pool_destroy(pool);
    s3_stop(&server);
}
END_TEST

int main(void)
{
    if (!s3_is_there())
        printf("no nanio (tools/requirements-test.txt): S3 is left out\n");
    return CHECK_RUN("killed", .seconds = 230, .loops = {{killed_in_the_middle, 0, SERVERS}});
}
