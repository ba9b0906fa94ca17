/* SPDX-License-Identifier: Apache-2.0 */
/* A connector through a manager, with faults: its end, many threads, its URL, and no memory. */
#include "fleet_case.h"
#include "log_record.h"

#include <pthread.h>

/* ---- close ----------------------------------------------------------------------------------- */

/* Closes the connector while calls or storages hold requests of all kinds. */
START_TEST(test_close)
{
    size_t count = 0;
    submit_many(TIERCE__STORE_PUT, 0, 5, LATE_MS);
    expect_many(5, 0);
    if (_i < FLEET_FAKE_CALLS)
        fleet_fake_hold((enum fleet_fake_call)_i);
    else if (_i < FLEET_FAKE_CALLS + 2)
        store_connector_hold(fleet_fake_store(),
                             _i == FLEET_FAKE_CALLS ? TIERCE__STORE_PUT : TIERCE__STORE_GET);
    fleet_fake_set(150, FLEET_FAKE_WRITING);
    static const enum tierce__store_op ops[] = {TIERCE__STORE_LOOKUP, TIERCE__STORE_GET,
                                                TIERCE__STORE_PUT, TIERCE__STORE_DELETE};
    for (uint32_t i = 0; i < MANY; i++) {
        enum tierce__store_op op = ops[i % 4];
        connector_call_init(&many[i], op, name(i / 4 < 5 ? i / 4 : i), 0);
        if (op == TIERCE__STORE_PUT || op == TIERCE__STORE_GET) {
            many[i].req.buf = connector_object(pool, i, BYTES);
            many[i].req.length = BYTES;
        }
        connector->ops->submit(connector, &many[i].req);
        count++;
    }
    const struct tierce_plugin_name hinted = {.text = name(0), .bytes = strlen(name(0))};
    connector->ops->hint(connector, &hinted, 1, TIERCE__HINT_CLOSED);
    uint64_t begun_ns = tierce__now_ns();
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(400)));
    connector = NULL;
    ck_assert_uint_le(tierce__now_ns() - begun_ns, 10000 * TIERCE__MS_NS);
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(atomic_load(&many[i].done_count), 1);
        if (many[i].req.buf != NULL) {
            ck_assert_uint_eq(atomic_load(&many[i].req.buf->refs), 1);
            tierce__buf_release(many[i].req.buf);
        }
    }
}
END_TEST

/* A session whose bytes were moved is finished by close. */
START_TEST(test_close_finishes)
{
    store_connector_hold(fleet_fake_store(), TIERCE__STORE_PUT);
    submit_many(TIERCE__STORE_PUT, 0, 10, LATE_MS);
    WAIT_FOR(store_connector_held(fleet_fake_store()) == 10);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert(store_connector_let_one_go(fleet_fake_store(), NULL));
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(3000)));
    connector = NULL;
    unsigned stored = 0, serving = 0;
    for (uint32_t i = 0; i < 10; i++) {
        int rc = wait_call(&many[i]);
        ck_assert(rc == 0 || rc == TIERCE_E_CANCELLED);
        stored += rc == 0;
        serving += fleet_fake_state(i) == FLEET_FAKE_SERVING;
        if (rc == 0)
            ck_assert_int_eq(fleet_fake_state(i), FLEET_FAKE_SERVING);
    }
    ck_assert_uint_ge(serving, 1); /* those of the sessions that all of the 4 were in */
    ck_assert_uint_le(stored, serving);
}
END_TEST

static _Atomic bool submitting;

struct racer {
    struct tierce__store_req reqs[2000];
    struct tierce_plugin_name names[2000];
    char texts[2000][TIERCE__KEY_TEXT_BYTES];
    struct tierce__buf *buf;
    _Atomic unsigned answered;
    unsigned submitted, first;
};

static void ignore(struct tierce__store_req *req)
{
    atomic_fetch_add(&((struct racer *)req->arg)->answered, 1);
}

static void *race(void *arg)
{
    struct racer *racer = arg;
    for (uint32_t i = 0; i < 2000 && atomic_load(&submitting); i++) {
        uint32_t block = racer->first + i % 40;
        struct tierce__store_req *req = &racer->reqs[i];
        snprintf(racer->texts[i], sizeof(racer->texts[i]), "%s", name(block));
        racer->names[i] =
            (struct tierce_plugin_name){.text = racer->texts[i], .bytes = strlen(racer->texts[i])};
        *req = (struct tierce__store_req){.op = (enum tierce__store_op)(i % 4),
                                          .urgency = TIERCE__CONNECTOR_STORE,
                                          .deadline_ns = tierce__deadline_in_ms(LATE_MS),
                                          .done = ignore,
                                          .arg = racer,
                                          .names = &racer->names[i],
                                          .name_count = 1,
                                          .buf = racer->buf,
                                          .length = BYTES};
        racer->submitted++;
        connector->ops->submit(connector, req);
        if (i % 64 == 63)
            sched_yield();
    }
    return NULL;
}

/* Threads submit requests, storages answer on a thread of theirs, and then all is closed. */
START_TEST(test_threads)
{
    enum { RACERS = 4 };
    static struct racer racers[RACERS];
    pthread_t threads[RACERS];
    store_connector_set_late(fleet_fake_store(), 1);
    atomic_store(&submitting, true);
    for (size_t i = 0; i < RACERS; i++) {
        racers[i].buf = connector_object(pool, 1, BYTES);
        racers[i].first = (unsigned)i * 40;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    WAIT_FOR(atomic_load(&racers[0].answered) > 500);
    atomic_store(&submitting, false);
    for (size_t i = 0; i < RACERS; i++)
        pthread_join(threads[i], NULL);
    close_connector();
    for (size_t i = 0; i < RACERS; i++) {
        ck_assert_uint_eq(atomic_load(&racers[i].answered), racers[i].submitted);
        tierce__buf_release(racers[i].buf);
    }
}
END_TEST

/* ---- opening, memory ------------------------------------------------------------------------- */

START_TEST(test_urls)
{
    static const char *const wrong[][2] = {
        {"fleet://127.0.0.1:1", "fleet://HOST:PORT[,HOST:PORT]/GROUP"},
        {"fleet://127.0.0.1:1/", "fleet://HOST:PORT[,HOST:PORT]/GROUP"},
        {"fleet://127.0.0.1:1//i", "GROUP"},
        {"fleet://127.0.0.1:1/g/", "GROUP/INSTANCE"},
        {"fleet://127.0.0.1:1/g/i/j", "GROUP/INSTANCE"},
        {"fleet://user:secret@127.0.0.1:1/g", "token_file="},
        {"fleet://127.0.0.1:1/g?tokenfile=x", "token_file"},
        {"fleet://127.0.0.1:1,127.0.0.2/g",
         "manager \"127.0.0.2\" has no port; each one must be HOST:PORT"},
        {"fleet://127.0.0.1:1/g?storages=a,,b", "storages must be a list"},
        {"fleet://127.0.0.1:1/g/"
         "01234567890123456789012345678901234567890123456789012345678901234567"
         "8901234567890123456789012345678901234567890123456789012345678",
         "at most 127"},
    };
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    close_connector();
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        ck_assert_int_eq(open_url(wrong[i][0], why), TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, wrong[i][1]) != NULL, "%s: %s", wrong[i][0], why);
        ck_assert_ptr_null(strstr(why, "secret"));
    }
    struct tierce__namespaces *kept = namespaces;
    namespaces = NULL;
    ck_assert_int_eq(open_url("fleet://127.0.0.1:1/g", why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "engine") != NULL, "%s", why);
    namespaces = kept;
}
END_TEST

/* A process without KV to store or load asks the manager once, so that a wrong address is logged.
 */
START_TEST(test_nobody_asks)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    close_connector();
    fleet_fake_stop();
    fleet_fake_start();
    fleet_fake_fail(FLEET_FAKE_INFO, TIERCE_E_DOWN, "nobody listens", 1, false);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(open_url("fleet://127.0.0.1:1/default", why), 0);
    WAIT_FOR(recorded_with("fleet_trouble", "nobody listens") == 1);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_INFO), 1);
}
END_TEST

/* Each allocation fails once: a request then ends with an error, and nothing is left. */
static bool run_once(uint64_t nth)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    fleet_fake_start();
    (void)tierce__alloc_fail_nth(nth);
    int rc = open_url("fleet://127.0.0.1:1/default/i", why);
    ck_assert(rc == 0 || rc == -ENOMEM);
    if (rc == 0) {
        size_t found;
        submit_many(TIERCE__STORE_PUT, 0, 3, LATE_MS);
        for (uint32_t i = 0; i < 3; i++)
            (void)wait_call(&many[i]);
        (void)get(0);
        (void)look_up(0, 3, &found);
        (void)put(0);
        (void)connector_ping(connector);
        (void)connector_delete(connector, name(0));
        (void)delete_left(name(1), TIERCE__LEFT_CHECKSUM);
        (void)get(2);
    }
    bool failed = tierce__alloc_fail_nth(0) >= nth;
    if (rc == 0)
        close_connector();
    connector = NULL;
    fleet_fake_stop();
    return failed;
}

START_TEST(test_no_memory)
{
    close_connector();
    fleet_fake_stop();
    (void)run_once(UINT32_MAX); /* what is allocated once for all */
    uint64_t before = tierce__alloc_live(), nth = 1;
    while (run_once(nth)) {
        ck_assert_uint_eq(tierce__alloc_live(), before);
        nth++;
    }
    ck_assert_uint_gt(nth, 20);
    fleet_fake_start();
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("fleet close");
    TCase *tcase = tcase_create("ends");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, test_close, 0, FLEET_FAKE_CALLS + 3);
    tcase_add_test(tcase, test_close_finishes);
    tcase_add_test(tcase, test_threads);
    tcase_add_test(tcase, test_urls);
    tcase_add_test(tcase, test_nobody_asks);
    tcase_add_test(tcase, test_no_memory);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(make_suite());
}
