/* SPDX-License-Identifier: Apache-2.0 */
/*
 * EXISTS of many names as it is over a network: in how few round trips it is answered, and what is
 * known of it at its deadline.
 */
#include "check_main.h"
#include "delay_proxy.h"
#include "memcached_server.h"
#include "node_harness.h"
#include "redis_server.h"
#include "s3_case.h"
#include "script_server.h"
#include "proto/lm/lm.h"

#define NAMES         128u
#define ROUND_TRIP_US 30000u
#define CONNECTIONS   16u

static struct tierce_plugin_name names[NAMES];
static char texts[NAMES][16];

static void make_names(void)
{
    for (uint32_t i = 0; i < NAMES; i++) {
        snprintf(texts[i], sizeof(texts[i]), "name-%03u", i);
        names[i] = (struct tierce_plugin_name){.text = texts[i], .bytes = strlen(texts[i])};
    }
}

static void begin_lookup(struct connector_call *call, uint32_t ms)
{
    connector_call_init(call, TIERCE__STORE_LOOKUP, NULL, 0);
    call->req.names = names;
    call->req.name_count = NAMES;
    call->req.deadline_ns = tierce__deadline_in_ms(ms);
    connector->ops->submit(connector, &call->req);
}

/* ---- round trips ----------------------------------------------------------------------------- */

static struct redis_server redis;
static struct memcached_server memcached;
static struct node_harness node;

static uint16_t start_redis(void)
{
    ck_assert(redis_start(&redis, NULL));
    return redis.port;
}

static void stop_redis(void)
{
    redis_stop(&redis);
}

static uint16_t start_memcached(void)
{
    ck_assert(memcached_start(&memcached, NULL));
    return memcached.port;
}

static void stop_memcached(void)
{
    memcached_kill(&memcached);
}

static uint16_t start_node(void)
{
    harness_start(&node, 0, NULL);
    return node.ports.resp;
}

static uint16_t start_node_lm(void)
{
    harness_start(&node, 0, NULL);
    return node.ports.lm;
}

static void stop_node(void)
{
    harness_stop(&node);
}

static bool take_objects(int fd, const struct s3_request *request)
{
    (void)request;
    return s3_fake_reply(fd, "200 OK", "ETag: \"1\"\r\n", "", 0);
}

static uint16_t start_s3(void)
{
    s3_fake_start(take_objects);
    return fake.port;
}

static const struct {
    const char *url; /* with the port */
    uint16_t (*start)(void);
    void (*stop)(void);
    unsigned connections;     /* of a lookup */
    unsigned trips, greeting; /* of a lookup of all names; of a connection before it */
} stores[] = {
    {"redis://127.0.0.1:%u", start_redis, stop_redis, 1, 1, 1},
    {"memcached://127.0.0.1:%u", start_memcached, stop_memcached, 1, 1, 1},
    {"tierce://127.0.0.1:%u", start_node, stop_node, 1, 1, 1},
    {"lm://127.0.0.1:%u", start_node_lm, stop_node, 1, 1, 0},
    {"s3://a:b@bucket?endpoint=http://127.0.0.1:%u", start_s3, s3_fake_stop, CONNECTIONS, 0, 0},
};

static void open_port(int store, uint16_t port)
{
    char url[128];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(url, sizeof(url), stores[store].url, (unsigned)port);
#pragma GCC diagnostic pop
    open_url(url);
}

/* The first lookup, which connects, and others. A round trip too many shows at the first one. S3
 * asks on all its connections. */
START_TEST(lookups_take_few_round_trips)
{
    struct delay_proxy proxy;
    struct connector_call call;
    pool = connector_pool();
    make_names();
    uint16_t port = stores[_i].start();
    open_port(_i, port);
    for (uint32_t i = 0; i < NAMES; i++)
        ck_assert_int_eq(connector_put(connector, pool, texts[i], i, 10), 0);
    close_connector();
    delay_proxy_start(&proxy, stores[_i].url, port, ROUND_TRIP_US);
    open_port(_i, proxy.port);
    for (unsigned n = 1; n <= 3; n++) {
        uint64_t begin = tierce__now_ns();
        begin_lookup(&call, 30000);
        ck_assert_int_eq(connector_call_wait(&call), 0);
        ck_assert_uint_eq(call.req.found, NAMES);
        ck_assert_uint_ge(tierce__now_ns() - begin, ROUND_TRIP_US * 1000ull);
        struct tierce__slow_link_stats stats = delay_proxy_stats(&proxy);
        ck_assert_uint_ge(stats.connections, stores[_i].connections);
        if (stores[_i].connections == 1)
            ck_assert_uint_le(stats.turns, n * stores[_i].trips + stores[_i].greeting);
    }
    close_connector();
    delay_proxy_stop(&proxy);
    stores[_i].stop();
    tierce__pool_destroy(pool);
}
END_TEST

/* One at a time, each of the eight connections would have a greeting and 16 GETs. */
START_TEST(gets_share_round_trips)
{
    static struct connector_call calls[NAMES];
    struct delay_proxy proxy;
    pool = connector_pool();
    make_names();
    uint16_t port = stores[_i].start();
    open_port(_i, port);
    for (uint32_t i = 0; i < NAMES; i++)
        ck_assert_int_eq(connector_put(connector, pool, texts[i], i, 10), 0);
    ck_assert_int_eq(connector_delete(connector, texts[100]), 0);
    close_connector();
    delay_proxy_start(&proxy, "gets", port, ROUND_TRIP_US);
    open_port(_i, proxy.port);
    for (uint32_t i = 0; i < NAMES; i++) {
        connector_call_init(&calls[i], TIERCE__STORE_GET, texts[i], 0);
        ck_assert_int_eq(tierce__pool_alloc(pool, &calls[i].req.buf, 10), 0);
        calls[i].req.length = 10;
        connector->ops->submit(connector, &calls[i].req);
    }
    for (uint32_t i = 0; i < NAMES; i++) {
        ck_assert_int_eq(connector_call_wait(&calls[i]), i == 100 ? TIERCE_E_MISS : 0);
        ck_assert(i == 100 || connector_is_object(calls[i].req.buf->data, i, 0, 10));
        tierce__buf_release(calls[i].req.buf);
    }
    ck_assert_uint_le(delay_proxy_stats(&proxy).turns, 11);
    close_connector();
    delay_proxy_stop(&proxy);
    stores[_i].stop();
    tierce__pool_destroy(pool);
}
END_TEST

/* ---- results at the deadline ----------------------------------------------------------------- */

static uint8_t lm_yes[4 * TIERCE__LM_REPLY_BYTES];

static void make_lm_yes(void)
{
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(
            tierce__lm_reply_encode(lm_yes + i * TIERCE__LM_REPLY_BYTES,
                                    &(struct tierce__lm_reply){.code = TIERCE__LM_SUCCESS}),
            0);
}

/* A greeting, and the answers of three names that are there, and no more. */
static const struct {
    const char *url;
    struct script_reply replies[2];
} halves[] = {
    {"redis://127.0.0.1:%u",
     {{.bytes = "+PONG\r\n", .count = 7}, {.bytes = ":1\r\n:1\r\n:1\r\n:", .count = 13}}},
    {"lm://127.0.0.1:%u", {{.bytes = lm_yes, .count = 3 * TIERCE__LM_REPLY_BYTES + 1}}},
};

START_TEST(a_part_of_the_answer_is_known_at_the_deadline)
{
    struct script_server script;
    struct connector_call call;
    char url[128];
    pool = connector_pool();
    make_names();
    make_lm_yes();
    script_server_start(&script, halves[_i].replies, 2);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(url, sizeof(url), halves[_i].url, (unsigned)script.port);
#pragma GCC diagnostic pop
    open_url(url);
    call.req.found = 0;
    for (uint32_t ms = 200; call.req.found < 3; ms *= 2) { /* on a busy machine it takes longer */
        begin_lookup(&call, ms);
        ck_assert_int_eq(connector_call_wait(&call), TIERCE_E_DEADLINE);
        ck_assert_uint_le(call.req.found, 3);
    }
    close_connector();
    script_server_stop(&script);
    tierce__pool_destroy(pool);
}
END_TEST

/* ---- S3 -------------------------------------------------------------------------------------- */

static _Atomic unsigned slow_from, missing_at;
static _Atomic bool is_held;

/* Names from `slow_from` on are answered after a release; the name at `missing_at` is absent. */
static bool answer_heads(int fd, const struct s3_request *request)
{
    unsigned number = 0;
    const char *name = strstr(request->target, "name-");
    ck_assert_ptr_nonnull(name);
    ck_assert_int_eq(sscanf(name, "name-%u", &number), 1);
    while (number >= atomic_load(&slow_from) && atomic_load(&is_held) && !atomic_load(&fake.ending))
        s3_fake_sleep(5);
    return number == atomic_load(&missing_at)
               ? s3_fake_reply(fd, "404 Not Found", "", "", 0)
               : s3_fake_reply(fd, "200 OK", "ETag: \"1\"\r\n", "", 0);
}

static void start_heads(unsigned slow, unsigned missing)
{
    make_names();
    atomic_store(&slow_from, slow);
    atomic_store(&missing_at, missing);
    atomic_store(&is_held, true);
    start(answer_heads, "");
}

START_TEST(s3_tells_the_part_that_is_certain)
{
    struct connector_call call;
    start_heads(20, NAMES);
    call.req.found = 0;
    for (uint32_t ms = 300; call.req.found < 20; ms *= 2) { /* on a busy machine it takes longer */
        begin_lookup(&call, ms);
        ck_assert_int_eq(connector_call_wait(&call), TIERCE_E_DEADLINE);
        ck_assert_uint_le(call.req.found, 20);
    }
    /* The connections stay, but those that hang for long: the next lookup makes none. */
    uint64_t connects = connector_stats(connector).connects, begin = tierce__now_ns();
    atomic_store(&is_held, false);
    begin_lookup(&call, 30000);
    ck_assert_int_eq(connector_call_wait(&call), 0);
    ck_assert_uint_eq(call.req.found, NAMES);
    if (tierce__now_ns() - begin < 2000 * TIERCE__MS_NS)
        ck_assert_uint_le(connector_stats(connector).connects, connects + CONNECTIONS);
    ck_assert_uint_eq(connector_stats(connector).connections, CONNECTIONS);
    end();
}
END_TEST

/* No lookup waits for names after the first missing one. */
START_TEST(s3_answers_when_it_knows)
{
    struct connector_call call;
    start_heads(6, 5);
    begin_lookup(&call, 30000);
    uint64_t begin = tierce__now_ns();
    ck_assert_int_eq(connector_call_wait(&call), 0);
    ck_assert_uint_eq(call.req.found, 5);
    ck_assert_uint_lt(tierce__now_ns() - begin, 20000 * TIERCE__MS_NS);
    atomic_store(&is_held, false);
    end();
}
END_TEST

/* A request that hangs for good releases its connection. */
START_TEST(s3_drains_for_a_bounded_time)
{
    struct connector_call call;
    start_heads(3, NAMES);
    begin_lookup(&call, 200);
    ck_assert_int_eq(connector_call_wait(&call), TIERCE_E_DEADLINE);
    ck_assert_uint_le(call.req.found, 3);
    begin_lookup(&call, 60000); /* begins when the others have been given up */
    while (atomic_load(&fake.requests) < CONNECTIONS + 4)
        poll(NULL, 0, 10);
    atomic_store(&is_held, false);
    ck_assert_int_eq(connector_call_wait(&call), 0);
    ck_assert_uint_eq(call.req.found, NAMES);
    end();
}
END_TEST

static Suite *lookups_suite(void)
{
    Suite *suite = suite_create("lookups");
    TCase *tcase = tcase_create("lookups");
    tcase_set_timeout(tcase, 100);
    tcase_add_loop_test(tcase, lookups_take_few_round_trips, 0, sizeof(stores) / sizeof(*stores));
    tcase_add_loop_test(tcase, gets_share_round_trips, 0, 1); /* Redis */
    tcase_add_loop_test(tcase, gets_share_round_trips, 2, 3); /* a node */
    tcase_add_loop_test(tcase, a_part_of_the_answer_is_known_at_the_deadline, 0,
                        sizeof(halves) / sizeof(*halves));
    tcase_add_test(tcase, s3_tells_the_part_that_is_certain);
    tcase_add_test(tcase, s3_answers_when_it_knows);
    tcase_add_test(tcase, s3_drains_for_a_bounded_time);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(lookups_suite());
}
