/* SPDX-License-Identifier: Apache-2.0 */
/* A connector through a manager: its requests, over a manager, parts and storages with faults. */
#include "fleet_case.h"

#include <pthread.h>

/* ---- without faults -------------------------------------------------------------------------- */

START_TEST(test_objects)
{
    ck_assert_uint_eq(connector->caps, TIERCE__CONNECTOR_NO_REPLACE | TIERCE__CONNECTOR_ASKS |
                                           TIERCE__CONNECTOR_TELLS_LENGTH);
    ck_assert_int_eq(connector_ping(connector), 0);
    ck_assert_int_eq(get(1), TIERCE_E_MISS);
    ck_assert_int_eq(connector_exists(connector, name(1)), 0);
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(connector_exists(connector, name(1)), 1);
    ck_assert_int_eq(get(1), 0);
    ck_assert_int_eq(connector_delete(connector, name(1)), 0);
    ck_assert_int_eq(connector_delete(connector, name(1)), 0);
    ck_assert_int_eq(connector_exists(connector, name(1)), 0);
    ck_assert_int_eq(get(1), TIERCE_E_MISS);
    ck_assert_str_eq(connector_why(connector), "");
    ck_assert_uint_eq(connector_stats(connector).waiting, 0);
}
END_TEST

static sem_t goes_on;

/* Stops the connector's thread, which calls it. */
static void stop_thread(struct tierce__store_req *req)
{
    (void)req;
    sem_wait(&goes_on);
}

/* Submits requests while the connector's thread is stopped. */
static void send_to_stopped(uint32_t count)
{
    static struct connector_call ping;
    ck_assert_int_eq(sem_init(&goes_on, 0, 0), 0);
    connector_call_init(&ping, TIERCE__STORE_PING, NULL, 0);
    ping.req.done = stop_thread;
    unsigned before = fleet_fake_count(FLEET_FAKE_INFO);
    uint64_t waiting = connector_stats(connector).waiting;
    connector->ops->submit(connector, &ping.req);
    WAIT_FOR(fleet_fake_count(FLEET_FAKE_INFO) > before &&
             connector_stats(connector).waiting == waiting);
    send_many(count);
}

/* Submits requests that the connector's thread sees all at once. */
static void send_together(uint32_t count)
{
    send_to_stopped(count);
    sem_post(&goes_on);
}

/* A get of block 1 that the storage has, and whose answer waits. */
static void begin_held_get(void)
{
    struct store_connector *store = fleet_fake_store();
    store_connector_hold(store, TIERCE__STORE_GET);
    submit_many(TIERCE__STORE_GET, 1, 1, LATE_MS);
    WAIT_FOR(store_connector_held(store) == 1);
}

/* A get with its bytes needs no turn of the connector's thread: the storage's thread answers. */
START_TEST(test_a_get_is_answered_where_its_bytes_arrive)
{
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(get(1), 0);
    begin_held_get();
    send_to_stopped(0);
    store_connector_let_go(fleet_fake_store());
    expect_many(1, 0);
    sem_post(&goes_on);
    ck_assert_int_eq(get(1), 0);
    ck_assert_uint_eq(connector_stats(connector).waiting, 0);
}
END_TEST

/* Bytes that arrive after an invalidation are a miss, on whichever thread. */
START_TEST(test_a_get_during_an_invalidation)
{
    fleet_fake_set_generation(1);
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(get(1), 0);
    begin_held_get();
    fleet_fake_set_generation(2);
    ck_assert_int_eq(connector_exists(connector, name(2)), 0);
    store_connector_let_go(fleet_fake_store());
    expect_many(1, TIERCE_E_MISS);
    ck_assert_int_eq(get(1), 0); /* the connector has adopted the generation */
}
END_TEST

static _Atomic bool in_done, done_is_over, was_over;

/* An engine's answer that takes its time. */
static void take_time(struct tierce__store_req *req)
{
    (void)req;
    atomic_store(&in_done, true);
    sem_wait(&goes_on);
    atomic_store(&done_is_over, true);
}

static void *let_go(void *arg)
{
    store_connector_let_go(fleet_fake_store());
    return arg;
}

static void note_over(struct tierce__store_req *req)
{
    (void)req;
    atomic_store(&was_over, atomic_load(&done_is_over));
    sem_post(&goes_on);
}

/* A part is invalidated after the answers of its own that are being given, and not after those of
 * other parts. */
START_TEST(test_an_invalidation_during_answers)
{
    static struct connector_call call;
    char other[TIERCE__KEY_TEXT_BYTES];
    pthread_t thread;
    snprintf(other, sizeof(other), "%s", name_of(2, 0, 2));
    fleet_fake_set_generation(1);
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(connector_put(connector, pool, other, 2, BYTES), 0);
    ck_assert_int_eq(sem_init(&goes_on, 0, 0), 0);
    store_connector_hold(fleet_fake_store(), TIERCE__STORE_GET);
    make_many(TIERCE__STORE_GET, 1, 1, LATE_MS);
    many[0].req.done = take_time;
    send_many(1);
    WAIT_FOR(store_connector_held(fleet_fake_store()) == 1);
    ck_assert_int_eq(pthread_create(&thread, NULL, let_go, NULL), 0);
    WAIT_FOR(atomic_load(&in_done));
    fleet_fake_set_generation(2);
    ck_assert_int_eq(connector_exists(connector, other), 0);
    unsigned before = fleet_fake_count(FLEET_FAKE_LOCATE);
    connector_call_init(&call, TIERCE__STORE_LOOKUP, name(1), 0);
    call.req.done = note_over;
    connector->ops->submit(connector, &call.req);
    WAIT_FOR(fleet_fake_count(FLEET_FAKE_LOCATE) > before);
    sem_post(&goes_on);
    pthread_join(thread, NULL);
    sem_wait(&goes_on);
    ck_assert(atomic_load(&was_over));
    tierce__buf_release(many[0].req.buf);
    ck_assert_int_eq(get(1), 0); /* the connector has adopted the generation */
}
END_TEST

START_TEST(test_calls_are_shared)
{
    size_t found;
    make_many(TIERCE__STORE_PUT, 0, 64, LATE_MS);
    send_together(64);
    expect_many(64, 0);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_FINISH), 1);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_START), 1);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_META), 0);
    submit_many(TIERCE__STORE_GET, 0, 64, LATE_MS); /* the places are known */
    expect_many(64, 0);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_LOCATE), 0);
    ck_assert_int_eq(look_up(0, MANY, &found), 0);
    ck_assert_uint_eq(found, 64);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_LOCATE), 1);
}
END_TEST

/* The manager learns the chain of a put: its parent's key comes first, and is not written. */
START_TEST(test_chains)
{
    const int64_t parent = _i == 0 ? 1 : 900; /* stored, or not */
    ck_assert_int_eq(put(1), 0);
    unsigned before = fleet_fake_count(FLEET_FAKE_START);
    make_many(TIERCE__STORE_PUT, 2, 10, LATE_MS);
    memcpy(parents[0].hash, &parent, sizeof(parent));
    many[0].req.parent = &parents[0];
    send_together(10);
    expect_many(10, 0);
    ck_assert_uint_eq(fleet_fake_first_key(), parent);
    ck_assert_int_eq(fleet_fake_state(900), FLEET_FAKE_ABSENT);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_START), before + 1);
    before = fleet_fake_count(FLEET_FAKE_START);
    make_many(TIERCE__STORE_PUT, 20, 4, LATE_MS);
    for (uint32_t i = 0; i < 4; i++)
        many[i].req.parent = NULL; /* beginnings of four prompts */
    send_many(4);
    expect_many(4, 0);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_START), before + 4);
}
END_TEST

/* Gets that arrive while the thread is busy are asked for in one call. */
START_TEST(test_gets_share_a_question)
{
    submit_many(TIERCE__STORE_PUT, 0, 100, LATE_MS);
    expect_many(100, 0);
    for (uint32_t i = 0; i < 100; i++)
        forget(i);
    make_many(TIERCE__STORE_GET, 0, 100, LATE_MS);
    send_together(100);
    expect_many(100, 0);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_LOCATE), 1);
}
END_TEST

/* A storage whose configuration has changed is another one: its places are asked for again. */
START_TEST(test_a_storage_that_was_replaced)
{
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(get(1), 0);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_LOCATE), 0);
    fleet_fake_set_replaced(true);
    ck_assert_int_eq(get(1), 0);
    ck_assert_int_eq(get(1), 0);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_LOCATE), 2);
    fleet_fake_set_replaced(false);
    ck_assert_int_eq(get(1), 0);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_LOCATE), 2);
}
END_TEST

START_TEST(test_lengths_and_names)
{
    size_t found;
    ck_assert_int_eq(connector_put(connector, pool, name(1), 1, BYTES / 2), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(connector_put(connector, pool, "no key", 1, BYTES), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(connector_get(connector, pool, "no key", 1, 0, BYTES), TIERCE_E_MISS);
    ck_assert_int_eq(connector_exists(connector, "no key"), 0);
    ck_assert_int_eq(connector_delete(connector, "no key"), 0);
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(connector_get(connector, pool, name(1), 1, 0, BYTES + 4096), TIERCE_E_FORMAT);
    ck_assert_int_eq(connector_get(connector, pool, name(1), 1, 0, 4096), TIERCE_E_FORMAT);
    ck_assert_int_eq(get(1), 0); /* the place is still known */
    ck_assert_int_eq(look_up(1, 0, &found), 0);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_REMOVE), 0);
}
END_TEST

START_TEST(test_a_lookup_of_several_parts)
{
    char texts[4][TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name names[4];
    struct connector_call call;
    for (uint32_t i = 0; i < 4; i++) {
        snprintf(texts[i], sizeof(texts[i]), "%s", name_of(i, (uint16_t)(i / 2), 2));
        names[i] = (struct tierce_plugin_name){.text = texts[i], .bytes = strlen(texts[i])};
        if (i < 3)
            fleet_fake_set(i, FLEET_FAKE_SERVING);
    }
    connector_call_init(&call, TIERCE__STORE_LOOKUP, NULL, 0);
    call.req.names = names;
    call.req.name_count = 4;
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    ck_assert_uint_eq(call.req.found, 3);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_LOCATE), 2);
}
END_TEST

/* ---- blocks that the manager masks ----------------------------------------------------------- */

/* Submits one put of block i; `found`: the store had it. */
static int put_found(uint32_t i, uint32_t ms, size_t *found)
{
    submit_many(TIERCE__STORE_PUT, i, 1, ms);
    int rc = wait_call(&many[0]);
    *found = many[0].req.found;
    return rc;
}

START_TEST(test_a_block_that_is_there)
{
    size_t found;
    ck_assert_int_eq(put_found(1, LATE_MS, &found), 0);
    ck_assert_uint_eq(found, 0);
    ck_assert_int_eq(put_found(1, LATE_MS, &found), 0);
    ck_assert_uint_eq(found, 1);
    ck_assert_uint_eq(store_connector_count(fleet_fake_store(), TIERCE__STORE_PUT), 1);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_META), 1);
}
END_TEST

START_TEST(test_a_block_that_another_writes)
{
    size_t found;
    fleet_fake_set(1, FLEET_FAKE_WRITING);
    submit_many(TIERCE__STORE_PUT, 1, 1, LATE_MS);
    WAIT_FOR(fleet_fake_count(FLEET_FAKE_META) > 0);
    fleet_fake_set(1, FLEET_FAKE_SERVING);
    expect_many(1, 0); /* it waits for the other */
    ck_assert_uint_eq(many[0].req.found, 1);
    fleet_fake_set(2, FLEET_FAKE_WRITING);
    ck_assert_int_eq(put_found(2, LATE_MS, &found), -EBUSY); /* not for ever */
    ck_assert_uint_eq(found, 0);
    expect_why("another session");
    fleet_fake_set(3, FLEET_FAKE_WRITING);
    ck_assert_int_eq(put_found(3, SOON_MS, &found), TIERCE_E_DEADLINE);
    ck_assert_uint_eq(store_connector_count(fleet_fake_store(), TIERCE__STORE_PUT), 0);
}
END_TEST

START_TEST(test_a_full_pool)
{
    fleet_fake_set_full(true);
    ck_assert_int_eq(put(1), TIERCE_E_FULL);
    expect_why("no room");
    fleet_fake_set_full(false);
    fleet_fake_fail(FLEET_FAKE_START, -EPROTO, "the quota by group leaves no room for a block", 1,
                    false);
    ck_assert_int_eq(put(1), TIERCE_E_FULL);
    expect_why("the quota by group");
    ck_assert_int_eq(put(1), 0);
}
END_TEST

/* ---- storages that fail ---------------------------------------------------------------------- */

START_TEST(test_an_object_that_is_lost)
{
    ck_assert_int_eq(put(1), 0);
    store_connector_fail(fleet_fake_store(), TIERCE__STORE_GET, TIERCE_E_MISS, 1, false);
    ck_assert_int_eq(get(1), TIERCE_E_MISS);
    expect_why("storage s");
    WAIT_FOR(fleet_fake_count(FLEET_FAKE_REPORT) == 1); /* the manager was told */
    ck_assert_int_eq(connector_exists(connector, name(1)), 0);
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(get(1), 0);
}
END_TEST

/* Missing blocks of a folder without its mark say nothing: perhaps it is not mounted. */
START_TEST(test_a_folder_without_its_mark)
{
    struct tierce__connector *store = store_connector_base(fleet_fake_store());
    fleet_fake_set_marked();
    ck_assert_int_eq(put(1), 0);
    store_connector_fail(fleet_fake_store(), TIERCE__STORE_GET, TIERCE_E_MISS, 1, false);
    ck_assert_int_eq(get(1), TIERCE_E_MISS);
    WAIT_FOR(fleet_fake_reopened() == 1);
    expect_why("has lost its mark ~tierce-pool");
    store_connector_fail(fleet_fake_store(), TIERCE__STORE_LOOKUP, TIERCE_E_DOWN, 1, false);
    store_connector_fail(fleet_fake_store(), TIERCE__STORE_GET, TIERCE_E_MISS, 1, false);
    ck_assert_int_eq(get(1), TIERCE_E_MISS); /* the mark could not be looked for */
    ck_assert_int_eq(connector_put(store, pool, "~tierce-pool", 1, BYTES), 0);
    ck_assert_int_eq(get(1), 0); /* the blocks are there again */
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_REPORT), 0);
    store_connector_fail(fleet_fake_store(), TIERCE__STORE_GET, TIERCE_E_MISS, 1, false);
    ck_assert_int_eq(get(1), TIERCE_E_MISS);
    WAIT_FOR(fleet_fake_count(FLEET_FAKE_REPORT) == 1);
    ck_assert_uint_eq(fleet_fake_reopened(), 1);
}
END_TEST

/* The storage rejects a request, perhaps of this process alone: the block may be healthy. */
START_TEST(test_an_object_that_cannot_be_read)
{
    ck_assert_int_eq(put(1), 0);
    store_connector_fail(fleet_fake_store(), TIERCE__STORE_GET, TIERCE_E_FORMAT, 1, false);
    ck_assert_int_eq(get(1), TIERCE_E_MISS);
    ck_assert_int_eq(get(1), 0); /* its place was asked for again */
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_REPORT), 0);
}
END_TEST

START_TEST(test_a_storage_that_is_down)
{
    ck_assert_int_eq(put(1), 0);
    store_connector_fail(fleet_fake_store(), TIERCE__STORE_GET, TIERCE_E_DOWN, 1, false);
    ck_assert_int_eq(get(1), TIERCE_E_MISS); /* the pool is not down */
    expect_why("the fake's");
    ck_assert_int_eq(get(1), 0); /* the place is still known, and nothing was removed */
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_REMOVE), 0);
    store_connector_fail(fleet_fake_store(), TIERCE__STORE_PUT, TIERCE_E_DOWN, 1, false);
    submit_many(TIERCE__STORE_PUT, 2, 8, LATE_MS);
    unsigned full = 0;
    for (uint32_t i = 0; i < 8; i++) {
        int rc = wait_call(&many[i]);
        ck_assert(rc == 0 || rc == TIERCE_E_FULL);
        full += rc == TIERCE_E_FULL;
        WAIT_FOR(fleet_fake_state(2 + i) == (rc == 0 ? FLEET_FAKE_SERVING : FLEET_FAKE_ABSENT));
    }
    ck_assert_uint_eq(full, 1);
}
END_TEST

/* ---- deletions ------------------------------------------------------------------------------- */

static void lie_two_ranks(ProtobufCMessage *reply)
{
    static Meta__LocationSpec other = META__LOCATION_SPEC__INIT;
    static Meta__LocationSpec *list[2];
    other.name = (char *)(uintptr_t) "tp1";
    other.uri = (char *)(uintptr_t) "fake://s/77?size=8192";
    Meta__CacheLocation *location = ((Meta__GetCacheMetaResponse *)reply)->locations[0];
    list[0] = location->location_specs[0];
    list[1] = &other;
    location->location_specs = list;
    location->n_location_specs = 2;
}

START_TEST(test_wrong_objects)
{
    if (_i == 1)
        fleet_fake_fail(FLEET_FAKE_REPORT, TIERCE_E_UNSUPPORTED, "no such call", 1, false);
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(delete_left(name(1), TIERCE__LEFT_CHECKSUM), 0);
    ck_assert_int_eq(fleet_fake_state(1), FLEET_FAKE_ABSENT);
    ck_assert_int_eq(put(1), 0);
    fleet_fake_set_uri("fake://s/%lld?size=8192&moved"); /* another engine has stored it again */
    ck_assert_int_eq(delete_left(name(1), TIERCE__LEFT_IDENTITY), 0);
    ck_assert_int_eq(fleet_fake_state(1), FLEET_FAKE_SERVING);
    ck_assert_int_eq(delete_left(name(1), TIERCE__LEFT_IDENTITY), 0); /* its place is not known */
    ck_assert_int_eq(fleet_fake_state(1), FLEET_FAKE_ABSENT);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_REPORT), _i == 1 ? 1 : 3); /* asked once */
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_REMOVE), _i == 1 ? 2 : 0);
}
END_TEST

/* A block of several ranks is not removed for one of them. */
START_TEST(test_deletions_of_a_rank)
{
    if (_i == 1)
        fleet_fake_fail(FLEET_FAKE_REPORT, TIERCE_E_UNSUPPORTED, "no such call", 1, false);
    fleet_fake_set(2, FLEET_FAKE_SERVING); /* its only spec is tp0 */
    ck_assert_int_eq(delete_left(name_of(2, 1, 2), TIERCE__LEFT_DELETED), 0);
    ck_assert_int_eq(fleet_fake_state(2), FLEET_FAKE_SERVING);
    fleet_fake_lie(FLEET_FAKE_META, lie_two_ranks);
    int rc = delete_left(name_of(2, 0, 2), TIERCE__LEFT_DELETED);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_REMOVE), 0);
    ck_assert_int_eq(rc, _i == 1 ? TIERCE_E_UNSUPPORTED : 0);
    if (_i == 1)
        expect_why("one rank");
    fleet_fake_lie(FLEET_FAKE_META, NULL);
    ck_assert_int_eq(delete_left(name_of(2, 0, 2), TIERCE__LEFT_DELETED), 0);
    ck_assert_int_eq(fleet_fake_state(2), FLEET_FAKE_ABSENT);
}
END_TEST

/* ---- a manager that fails -------------------------------------------------------------------- */

static const int statuses[] = {
    TIERCE_E_ARGUMENT, -EEXIST,       TIERCE_E_FULL,     TIERCE_E_REFUSED, TIERCE_E_UNSUPPORTED,
    TIERCE_E_LIMIT,    TIERCE_E_DOWN, TIERCE_E_DEADLINE, -EPROTO,          -ENOMEM,
    TIERCE_E_MISS};
enum { STATUSES = sizeof(statuses) / sizeof(*statuses) };

/* Each call fails with each status: each request ends with an error, or a miss, and a reason. */
START_TEST(test_calls_that_fail)
{
    enum fleet_fake_call call = (enum fleet_fake_call)(_i / STATUSES);
    int status = statuses[_i % STATUSES];
    bool misses = status == TIERCE_E_MISS;
    size_t found = 0;
    ck_assert_int_eq(put(5), 0);
    forget(5);
    fleet_fake_fail(call, status, "because", 1000, false);
    fleet()->session_ms = 300; /* so long does it try to finish a session */
    int rc = connector_ping(connector);
    ck_assert(call == FLEET_FAKE_INFO && !misses ? rc < 0 : rc == 0);
    rc = look_up(5, 1, &found);
    if (call == FLEET_FAKE_LOCATE)
        ck_assert(found == 0 && (misses ? rc == 0 : rc < 0));
    rc = get(5);
    if (call == FLEET_FAKE_LOCATE)
        ck_assert(misses ? rc == TIERCE_E_MISS : rc < 0);
    rc = put(1);
    if (call == FLEET_FAKE_START || call == FLEET_FAKE_FINISH)
        ck_assert_int_lt(rc, 0);
    else
        ck_assert_int_eq(rc, 0);
    rc = put(5); /* masked */
    if (call == FLEET_FAKE_META || call == FLEET_FAKE_START)
        ck_assert_int_lt(rc, 0);
    else
        ck_assert_int_eq(rc, 0);
    rc = connector_delete(connector, name(5));
    ck_assert(call == FLEET_FAKE_REMOVE && !misses ? rc < 0 : rc == 0);
    bool is_fine = misses && (call == FLEET_FAKE_INFO || call == FLEET_FAKE_REMOVE);
    if (call < FLEET_FAKE_RENEW && !is_fine)
        expect_why("fake");
}
END_TEST

START_TEST(test_registration_fails)
{
    size_t found = 1;
    fleet_fake_set_register(TIERCE_E_REFUSED);
    fleet_fake_set(5, FLEET_FAKE_SERVING);
    ck_assert_int_eq(look_up(5, 1, &found), TIERCE_E_REFUSED);
    ck_assert_uint_eq(found, 0);
    ck_assert_int_eq(get(5), TIERCE_E_REFUSED);
    ck_assert_int_eq(put(1), TIERCE_E_REFUSED);
    ck_assert_int_eq(connector_delete(connector, name(5)), TIERCE_E_REFUSED);
    expect_why("not registered");
    ck_assert_int_eq(connector_ping(connector), 0);
    fleet_fake_set_register(0);
    ck_assert_int_eq(get(5), TIERCE_E_MISS); /* its object was never stored */
    ck_assert_int_eq(put(1), 0);
}
END_TEST

/* The answer of FinishWriteCache is lost; it had an effect, or it had none. */
START_TEST(test_a_lost_finish)
{
    fleet_fake_fail(FLEET_FAKE_FINISH, TIERCE_E_DOWN, "connection lost", 1, _i == 0);
    ck_assert_int_eq(put(1), 0);
    ck_assert_int_eq(fleet_fake_state(1), FLEET_FAKE_SERVING);
    ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_FINISH), 2);
    ck_assert_int_eq(get(1), 0);
}
END_TEST

START_TEST(test_a_session_that_has_expired)
{
    fleet_fake_fail(FLEET_FAKE_FINISH, TIERCE_E_MISS, "the session has expired", 1, false);
    ck_assert_int_eq(put(1), TIERCE_E_DEADLINE);
    expect_why("expired");
    /* Lost, and then not known: the blocks are not there. */
    fleet_fake_set(1, FLEET_FAKE_ABSENT);
    fleet_fake_fail(FLEET_FAKE_FINISH, TIERCE_E_DOWN, "connection lost", 1, false);
    store_connector_hold(fleet_fake_store(), TIERCE__STORE_PUT);
    submit_many(TIERCE__STORE_PUT, 2, 1, LATE_MS);
    WAIT_FOR(store_connector_held(fleet_fake_store()) == 1);
    ck_assert_uint_eq(store_connector_let_go(fleet_fake_store()), 1);
    WAIT_FOR(fleet_fake_count(FLEET_FAKE_FINISH) == 2);
    fleet_fake_fail(FLEET_FAKE_FINISH, TIERCE_E_MISS, "no session", 1, false);
    fleet_fake_set(2, FLEET_FAKE_ABSENT);
    expect_many(1, TIERCE_E_DOWN);
}
END_TEST

START_TEST(test_an_instance_that_was_forgotten)
{
    size_t found;
    fleet_fake_fail(FLEET_FAKE_START, TIERCE_E_MISS, "no instance", 1, false);
    ck_assert_int_eq(put(1), 0); /* it was registered again */
    ck_assert_uint_eq(fleet_fake_outdated(), 1);
    fleet_fake_fail(FLEET_FAKE_LOCATE, TIERCE_E_MISS, "no instance", 1, false);
    ck_assert_int_eq(look_up(1, 1, &found), 0);
    ck_assert_uint_eq(found, 0);
    ck_assert_uint_eq(fleet_fake_outdated(), 2);
}
END_TEST

START_TEST(test_renewals)
{
    fleet()->session_ms = 60;
    if (_i == 1)
        fleet_fake_fail(FLEET_FAKE_RENEW, TIERCE_E_UNSUPPORTED, "no such call", 1, false);
    store_connector_hold(fleet_fake_store(), TIERCE__STORE_PUT);
    submit_many(TIERCE__STORE_PUT, 1, 1, LATE_MS);
    WAIT_FOR(fleet_fake_count(FLEET_FAKE_RENEW) >= (_i == 1 ? 1 : 3));
    if (_i == 1) { /* it is not asked for again: 5 periods pass */
        uint64_t until_ns = tierce__deadline_in_ms(100);
        WAIT_FOR(tierce__now_ns() > until_ns);
        ck_assert_uint_eq(fleet_fake_count(FLEET_FAKE_RENEW), 1);
    }
    ck_assert_uint_eq(store_connector_let_go(fleet_fake_store()), 1);
    expect_many(1, 0);
}
END_TEST

/* ---- a manager that hangs -------------------------------------------------------------------- */

START_TEST(test_deadlines)
{
    size_t found;
    fleet_fake_set(1, FLEET_FAKE_SERVING);
    for (int call = 0; call < FLEET_FAKE_CALLS; call++)
        fleet_fake_hold((enum fleet_fake_call)call);
    uint64_t begun_ns = tierce__now_ns();
    submit_many(TIERCE__STORE_GET, 1, 20, SOON_MS);
    expect_many(20, TIERCE_E_DEADLINE);
    submit_many(TIERCE__STORE_PUT, 1, 20, SOON_MS);
    expect_many(20, TIERCE_E_DEADLINE);
    submit_many(TIERCE__STORE_LOOKUP, 1, 20, SOON_MS);
    expect_many(20, TIERCE_E_DEADLINE);
    submit_many(TIERCE__STORE_DELETE, 1, 20, SOON_MS);
    expect_many(20, TIERCE_E_DEADLINE);
    uint64_t took_ns = tierce__now_ns() - begun_ns;
    ck_assert_uint_ge(took_ns, 4 * SOON_MS * TIERCE__MS_NS);
    ck_assert_uint_le(took_ns, (4 * SOON_MS + 10000) * TIERCE__MS_NS);
    fleet_fake_let_go();
    fleet_fake_set(1, FLEET_FAKE_SERVING); /* the deletions have had their effect */
    ck_assert_int_eq(look_up(1, 1, &found), 0);
    ck_assert_uint_eq(found, 1);
}
END_TEST

/* A put is answered by its deadline, and its session continues. */
START_TEST(test_a_late_put_is_stored)
{
    fleet_fake_hold(FLEET_FAKE_FINISH);
    submit_many(TIERCE__STORE_PUT, 1, 1, SOON_MS);
    expect_many(1, TIERCE_E_DEADLINE);
    fleet_fake_let_go();
    WAIT_FOR(fleet_fake_state(1) == FLEET_FAKE_SERVING);
    ck_assert_int_eq(get(1), 0);
    store_connector_hold(fleet_fake_store(), TIERCE__STORE_PUT); /* late itself */
    submit_many(TIERCE__STORE_PUT, 2, 1, SOON_MS);
    expect_many(1, TIERCE_E_DEADLINE);
    ck_assert_uint_eq(store_connector_let_go(fleet_fake_store()), 1);
    WAIT_FOR(fleet_fake_state(2) == FLEET_FAKE_SERVING);
    ck_assert_int_eq(get(2), 0);
}
END_TEST

/* More puts than all sessions hold wait for one. */
START_TEST(test_more_puts_than_sessions)
{
    enum { PUTS = 700 };
    static struct connector_call calls[PUTS];
    struct tierce__buf *buf = connector_object(pool, 1, BYTES);
    fleet_fake_hold(FLEET_FAKE_START);
    for (uint32_t i = 0; i < PUTS; i++) {
        connector_call_init(&calls[i], TIERCE__STORE_PUT, name(i), 0);
        calls[i].req.buf = buf;
        calls[i].req.length = BYTES;
        connector->ops->submit(connector, &calls[i].req);
    }
    WAIT_FOR(fleet_fake_held() == 8);
    ck_assert_uint_eq(connector_stats(connector).waiting, PUTS);
    fleet_fake_let_go();
    for (uint32_t i = 0; i < PUTS; i++)
        ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
    tierce__buf_release(buf);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("fleet");
    TCase *tcase = tcase_create("requests");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_objects);
    tcase_add_test(tcase, test_a_get_is_answered_where_its_bytes_arrive);
    tcase_add_test(tcase, test_a_get_during_an_invalidation);
    tcase_add_test(tcase, test_an_invalidation_during_answers);
    tcase_add_test(tcase, test_calls_are_shared);
    tcase_add_loop_test(tcase, test_chains, 0, 2);
    tcase_add_test(tcase, test_gets_share_a_question);
    tcase_add_test(tcase, test_a_storage_that_was_replaced);
    tcase_add_test(tcase, test_lengths_and_names);
    tcase_add_test(tcase, test_a_lookup_of_several_parts);
    tcase_add_test(tcase, test_a_block_that_is_there);
    tcase_add_test(tcase, test_a_block_that_another_writes);
    tcase_add_test(tcase, test_a_full_pool);
    tcase_add_test(tcase, test_an_object_that_is_lost);
    tcase_add_test(tcase, test_a_folder_without_its_mark);
    tcase_add_test(tcase, test_an_object_that_cannot_be_read);
    tcase_add_test(tcase, test_a_storage_that_is_down);
    tcase_add_loop_test(tcase, test_wrong_objects, 0, 2);
    tcase_add_loop_test(tcase, test_deletions_of_a_rank, 0, 2);
    tcase_add_loop_test(tcase, test_calls_that_fail, 0, FLEET_FAKE_CALLS * STATUSES);
    tcase_add_test(tcase, test_registration_fails);
    tcase_add_loop_test(tcase, test_a_lost_finish, 0, 2);
    tcase_add_test(tcase, test_a_session_that_has_expired);
    tcase_add_test(tcase, test_an_instance_that_was_forgotten);
    tcase_add_loop_test(tcase, test_renewals, 0, 2);
    tcase_add_test(tcase, test_deadlines);
    tcase_add_test(tcase, test_a_late_put_is_stored);
    tcase_add_test(tcase, test_more_puts_than_sessions);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(make_suite());
}
