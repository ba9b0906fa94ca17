/* SPDX-License-Identifier: Apache-2.0 */
/* lm:// against servers that answer what they must not, and URLs that are wrong.
 * tests/conformance/test_lm_connector.c tests it with real servers. */
#include "check_main.h"
#include "connector_harness.h"
#include "script_server.h"
#include "proto/lm/lm.h"

#include <stdlib.h>

static struct tierce__pool *pool;
static struct tierce__connector *connector;
static struct script_server server;

static int try_open(const char *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    return tierce__connector_open(&connector, url,
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

static void open_script(const struct script_reply *replies, size_t count)
{
    char url[64], why[TIERCE__CONNECTOR_WHY_BYTES];
    pool = connector_pool();
    script_server_start(&server, replies, count);
    snprintf(url, sizeof(url), "lm://127.0.0.1:%u?connections=2", (unsigned)server.port);
    ck_assert_int_eq(try_open(url, why), 0);
}

static void close_all(void)
{
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(10000)));
    script_server_stop(&server);
    tierce__pool_destroy(pool);
}

/* ---- URLs ------------------------------------------------------------------------------------ */

static const struct {
    const char *url, *why;
} wrong_urls[] = {
    {"lm://", "URL: exactly one host is required"},
    {"lm:///path", "URL: exactly one host is required"},
    {"lm://host", "URL: a port is needed"},
    {"lm://:7380", "URL: exactly one host is required"},
    {"lm://a:1,b:2", "URL: exactly one host is required"},
    {"lm://host:7380/path", "URL: the URL accepts no path after the host"},
    {"lm://user:secret@host:7380", "URL: this protocol accepts no user name"},
    {"lm://host:7380?ttl=1h",
     "URL: unknown parameter \"ttl\" (\"connections\"?); there are connections"},
    {"lm://host:7380?connections=1", "URL: parameter connections is \"1\"; accepted are 2 to 150"},
};

START_TEST(wrong_urls_are_told)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    ck_assert_int_eq(try_open(wrong_urls[_i].url, why), TIERCE_E_CONFIG);
    ck_assert_str_eq(why, wrong_urls[_i].why);
}
END_TEST

/* ---- answers --------------------------------------------------------------------------------- */

#define BYTES      5u
#define ANSWER_YES 2 /* of these */

/* What is said to each request, and what becomes of a GET of five bytes, a PUT, an EXISTS and a
 * PING then. */
static const struct {
    const char *what;
    int32_t code, length;
    size_t body, cut;
    bool closes;
    int get, put, exists, ping;
} answers[] = {
#define F TIERCE_E_FORMAT
#define D TIERCE_E_DOWN
#define T TIERCE_E_DEADLINE
    {"there", 200, BYTES, BYTES, 0, false, 0, F, F, F},
    {"no", 400, 0, 0, 0, false, TIERCE_E_MISS, TIERCE_E_FULL, 0, D},
    {"yes", 200, 0, 0, 0, false, F, 0, 1, 0},
    {"too long", 200, BYTES + 1, BYTES + 1, 0, false, F, F, F, F},
    {"too short", 200, BYTES - 1, BYTES - 1, 0, false, F, F, F, F},
    {"very long", 200, INT32_MAX, 100, 0, false, F, F, F, F},
    {"negative", 200, -1, 0, 0, false, F, F, F, F},
    {"no, with a length", 400, BYTES, BYTES, 0, false, F, F, F, F},
    {"no, with bytes behind it", 400, 0, 3, 0, true, F, TIERCE_E_FULL, 0, D},
    {"unknown code", 404, BYTES, BYTES, 0, false, F, F, F, F},
    {"half a head", 200, BYTES, 0, 20, true, D, D, D, D},
    {"half a head, and silence", 200, BYTES, 0, 20, false, T, T, T, T},
    {"a head alone", 200, BYTES, 0, 0, true, F, F, F, F},
    {"half a value", 200, BYTES, BYTES, 38, true, F, F, F, F},
    {"half a value, and silence", 200, BYTES, BYTES, 38, false, T, F, F, F},
#undef F
#undef D
#undef T
};

static size_t make_answer(uint8_t out[256], int index)
{
    struct tierce__lm_reply reply = {.code = TIERCE__LM_SUCCESS};
    memset(out, 'x', 256);
    ck_assert_int_eq(tierce__lm_reply_encode(out, &reply), 0);
    memcpy(out, &answers[index].code, 4);
    memcpy(out + 4, &answers[index].length, 4);
    size_t bytes = TIERCE__LM_REPLY_BYTES + answers[index].body;
    return answers[index].cut > 0 ? answers[index].cut : bytes;
}

/* `wanted`: only where that is the deadline is it waited for. */
static int operate(enum tierce__store_op op, int wanted)
{
    struct connector_call call;
    connector_call_init(&call, op, op == TIERCE__STORE_PING ? NULL : "n", 0);
    call.req.buf = connector_object(pool, 1, BYTES);
    call.req.length = BYTES;
    call.req.deadline_ns = tierce__deadline_in_ms(wanted == TIERCE_E_DEADLINE ? 300 : 30000);
    int rc = connector_call_run(connector, &call);
    if (op == TIERCE__STORE_GET && rc == 0)
        ck_assert_int_eq(memcmp(call.req.buf->data, "xxxxx", BYTES), 0);
    /* A call that is left behind has a reference until it is back. */
    while (atomic_load(&call.req.buf->refs) > 1)
        sched_yield();
    tierce__buf_release(call.req.buf);
    return op == TIERCE__STORE_LOOKUP && rc == 0 ? (int)call.req.found : rc;
}

START_TEST(wrong_answers)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_GET, TIERCE__STORE_PUT,
                                                TIERCE__STORE_LOOKUP, TIERCE__STORE_PING};
    const int wanted[] = {answers[_i].get, answers[_i].put, answers[_i].exists, answers[_i].ping};
    uint8_t bytes[256];
    struct script_reply reply = {.bytes = bytes, .closes = answers[_i].closes};
    reply.count = make_answer(bytes, _i);
    for (size_t i = 0; i < 4; i++) {
        open_script(&reply, 1);
        int rc = operate(ops[i], wanted[i]);
        ck_assert_msg(rc == wanted[i], "%s: operation %d: %s", answers[_i].what, (int)ops[i],
                      tierce_strerror(rc));
        close_all();
    }
}
END_TEST

/* An answer after the deadline is not mistaken for the answer to the next request. Of two links one
 * takes all stores, so that it is the same one. */
START_TEST(a_late_answer)
{
    uint8_t bytes[256];
    struct script_reply reply = {.bytes = bytes, .waits = true};
    reply.count = make_answer(bytes, ANSWER_YES);
    open_script(&reply, 1);
    ck_assert_int_eq(operate(TIERCE__STORE_PUT, TIERCE_E_DEADLINE), TIERCE_E_DEADLINE);
    script_server_go_on(&server);
    ck_assert_int_eq(operate(TIERCE__STORE_PUT, 0), 0);
    ck_assert_uint_eq(atomic_load(&server.connections), 2);
    ck_assert_uint_eq(connector_stats(connector).calls_hanging, 0);
    close_all();
}
END_TEST

/* Unsolicited answers. */
START_TEST(an_answer_too_many)
{
    uint8_t bytes[512];
    struct script_reply reply = {.bytes = bytes};
    reply.count = make_answer(bytes, ANSWER_YES);
    memcpy(bytes + reply.count, bytes, reply.count);
    reply.count *= 2;
    open_script(&reply, 1);
    for (unsigned i = 1; i < 5; i++) {
        ck_assert_int_eq(operate(TIERCE__STORE_PUT, 0), 0);
        ck_assert_uint_eq(atomic_load(&server.connections), i);
    }
    close_all();
}
END_TEST

START_TEST(nobody_listens)
{
    char url[64], why[TIERCE__CONNECTOR_WHY_BYTES];
    open_script(NULL, 0);
    close_all();
    pool = connector_pool();
    snprintf(url, sizeof(url), "lm://127.0.0.1:%u", (unsigned)server.port);
    ck_assert_int_eq(try_open(url, why), 0);
    ck_assert_int_eq(operate(TIERCE__STORE_GET, TIERCE_E_DOWN), TIERCE_E_DOWN);
    ck_assert_int_eq(operate(TIERCE__STORE_PUT, TIERCE_E_DOWN), TIERCE_E_DOWN);
    ck_assert_ptr_nonnull(strstr(connector_why(connector), "cannot connect to 127.0.0.1"));
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(10000)));
    tierce__pool_destroy(pool);
}
END_TEST

CHECK_MAIN("lm", .seconds = 60, .tests = {a_late_answer, an_answer_too_many, nobody_listens},
           .loops = {{wrong_urls_are_told, 0, sizeof(wrong_urls) / sizeof(*wrong_urls)},
                     {wrong_answers, 0, sizeof(answers) / sizeof(*answers)}})
