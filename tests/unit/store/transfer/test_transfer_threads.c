/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads and connections of transfer:// on few names, with a keeper that answers later, until
 * the server ends under them. Each object has the bytes of one write. */
#include "connector_harness.h"
#include "raw_transfer.h"
#include "silent_log.h"
#include "test_random.h"

#include <pthread.h>

enum { THREADS = 6, CONNECTORS = 2, NAMES = 5, BYTES = 50000, ROUNDS = 60, SPACE = 4 << 20 };

static struct raw_world world;
static struct tierce__pool *pool;
static struct tierce__connector *connectors[CONNECTORS];

struct user {
    pthread_t thread;
    uint32_t number;
    uint64_t seed;
    _Atomic uint32_t done;
    uint32_t hits;
};

static int run(struct user *user, enum tierce__store_op op, uint32_t name, uint8_t value)
{
    struct connector_call call;
    char text[8];
    snprintf(text, sizeof(text), "%u", name);
    connector_call_init(&call, op, text, 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, BYTES), 0);
    call.req.length = BYTES;
    uint8_t *data = call.req.buf->data;
    if (op == TIERCE__STORE_PUT)
        memset(data, value, BYTES);
    int rc = connector_call_run(connectors[user->number % CONNECTORS], &call);
    if (op == TIERCE__STORE_GET && rc == 0) {
        user->hits++;
        ck_assert_int_eq(memcmp(data, data + 1, BYTES - 1), 0);
    }
    tierce__buf_release(call.req.buf);
    return rc;
}

static void *use(void *arg)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_GET,    TIERCE__STORE_GET,
                                                TIERCE__STORE_PUT,    TIERCE__STORE_PUT,
                                                TIERCE__STORE_LOOKUP, TIERCE__STORE_DELETE};
    struct user *user = arg;
    struct test_random random = {user->seed};
    for (uint32_t i = 0; i < 2 * ROUNDS; i++) {
        enum tierce__store_op op = ops[test_random_below(&random, 6)];
        int rc = run(user, op, test_random_below(&random, NAMES), (uint8_t)i);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_MISS || rc == TIERCE_E_DOWN, "%d", rc);
        ck_assert(rc != TIERCE_E_DOWN || i >= ROUNDS); /* the server is there so long */
        atomic_fetch_add(&user->done, 1);
    }
    return NULL;
}

static void open_connectors(void)
{
    char url[96], why[TIERCE__CONNECTOR_WHY_BYTES];
    pool = connector_pool();
    snprintf(url, sizeof(url), "transfer://127.0.0.1:%u/memory?connections=3",
             (unsigned)tierce__transfer_server_port(world.server));
    for (size_t i = 0; i < CONNECTORS; i++)
        ck_assert_int_eq(
            tierce__connector_open(&connectors[i], url,
                                   &(struct tierce__connector_opts){
                                       .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                   why),
            0);
}

START_TEST(many_threads_until_the_server_ends)
{
    static struct user users[THREADS];
    struct test_random random = test_random_start("transfer threads");
    uint32_t hits = 0;
    silence_log();
    raw_start(&world, SPACE);
    map_keeper_set_late(world.keeper);
    open_connectors();
    for (uint32_t i = 0; i < THREADS; i++) {
        users[i].number = i;
        users[i].seed = test_random_u64(&random);
        ck_assert_int_eq(pthread_create(&users[i].thread, NULL, use, &users[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        WAIT_FOR(atomic_load(&users[i].done) >= ROUNDS);
    raw_stop(&world); /* checks that all was given back */
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(users[i].thread, NULL);
        hits += users[i].hits;
    }
    ck_assert_uint_gt(hits, 0);
    for (size_t i = 0; i < CONNECTORS; i++)
        ck_assert(connectors[i]->ops->close(connectors[i], tierce__deadline_in_ms(60000)));
    tierce__pool_destroy(pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transfer threads");
    TCase *tcase = tcase_create("threads");
    tcase_set_timeout(tcase, 240);
    tcase_add_test(tcase, many_threads_until_the_server_ends);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
