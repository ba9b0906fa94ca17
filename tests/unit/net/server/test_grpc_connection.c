/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"

#include "base/clock.h"
#include "net/grpc/grpc_frame.h"

#include "grpc_harness.h"

static struct harness h;
static struct tierce__call *held[8];
static int held_count, served;

static void echo(void *arg, struct tierce__call *call)
{
    (void)arg;
    const struct tierce__call_info *info = tierce__call_info(call);
    served++;
    tierce__call_reply(call,
                       &(struct tierce__reply){.body = info->body, .bytes = info->body_bytes});
}

static void hold(void *arg, struct tierce__call *call)
{
    (void)arg;
    held[held_count++] = call;
}

static void answer(struct tierce__call *call, const char *text)
{
    tierce__call_reply(call, &(struct tierce__reply){.body = text, .bytes = strlen(text)});
}

static const struct tierce__route routes[] = {{"/s/echo", NULL, echo, NULL},
                                              {"/s/hold", NULL, hold, NULL}};

static void setup(void)
{
    held_count = served = 0;
    ck_assert(harness_open(&h, routes, 2));
    ck_assert(!tierce__grpc_connection_is_open(h.connection));
}

static void teardown(void)
{
    harness_close(&h);
    ck_assert_uint_eq(h.shared.handlers, 0);
    ck_assert_uint_eq(h.shared.held.bytes, 0);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void assert_body(int32_t stream, const char *text)
{
    const struct harness_answer *a = harness_answer(&h, stream);
    ck_assert_int_eq(a->http, 200);
    ck_assert_int_eq(a->status, 0);
    ck_assert_uint_eq(a->bytes, strlen(text) + 5);
    ck_assert(memcmp(a->body + 5, text, strlen(text)) == 0);
    ck_assert(a->is_closed && a->error == 0);
}

START_TEST(test_bytes_one_by_one)
{
    static struct harness_body bodies[3];
    int32_t streams[3];
    for (int i = 0; i < 3; i++)
        streams[i] = harness_call(&h, "/s/echo", &bodies[i], i == 0 ? "" : "hello", NULL, NULL);
    harness_pump(&h, 1);
    for (int i = 0; i < 3; i++)
        assert_body(streams[i], i == 0 ? "" : "hello");
    ck_assert(tierce__grpc_connection_is_open(h.connection));
    ck_assert(!tierce__grpc_connection_is_done(h.connection));
}
END_TEST

START_TEST(test_answers_in_another_order)
{
    static struct harness_body bodies[3];
    int32_t streams[3];
    for (int i = 0; i < 3; i++)
        streams[i] = harness_call(&h, "/s/hold", &bodies[i], "x", NULL, NULL);
    harness_pump(&h, 100);
    ck_assert_int_eq(held_count, 3);
    ck_assert(!harness_answer(&h, streams[2])->is_closed);
    h.was_changed = false;
    answer(held[2], "third");
    ck_assert(h.was_changed);
    answer(held[0], "first");
    answer(held[1], "second");
    harness_pump(&h, 100);
    assert_body(streams[0], "first");
    assert_body(streams[1], "second");
    assert_body(streams[2], "third");
}
END_TEST

static void *answer_elsewhere(void *arg)
{
    answer(arg, "from elsewhere");
    return NULL;
}

START_TEST(test_an_answer_of_another_thread_waits_for_the_loop)
{
    static struct harness_body body;
    pthread_t thread;
    int32_t stream = harness_call(&h, "/s/hold", &body, "x", NULL, NULL);
    harness_pump(&h, 100);
    h.was_changed = false;
    pthread_create(&thread, NULL, answer_elsewhere, held[0]);
    pthread_join(thread, NULL);
    ck_assert(!h.was_changed);
    harness_pump(&h, 100);
    assert_body(stream, "from elsewhere");
}
END_TEST

START_TEST(test_a_deadline)
{
    static struct harness_body body;
    int32_t stream = harness_call(&h, "/s/hold", &body, "x", "grpc-timeout", "10S");
    harness_pump(&h, 100);
    uint64_t at = tierce__call_info(held[0])->deadline_ns;
    ck_assert_uint_gt(at, tierce__now_ns());
    ck_assert(tierce__deadlines_next(&h.loop.deadlines) == at);
    tierce__deadlines_expire(&h.loop.deadlines, at - 1);
    harness_pump(&h, 100);
    ck_assert_int_eq(harness_answer(&h, stream)->status, -1);
    ck_assert(!tierce__call_is_over(held[0]));
    tierce__deadlines_expire(&h.loop.deadlines, at);
    harness_pump(&h, 100);
    ck_assert_int_eq(harness_answer(&h, stream)->status, TIERCE__GRPC_DEADLINE_EXCEEDED);
    ck_assert(tierce__call_is_over(held[0]));
    answer(held[0], "too late");
    harness_pump(&h, 100);
    ck_assert_uint_eq(harness_answer(&h, stream)->bytes, 0);
}
END_TEST

START_TEST(test_a_deadline_of_a_call_that_ended)
{
    static struct harness_body body;
    int32_t stream = harness_call(&h, "/s/echo", &body, "x", "grpc-timeout", "10S");
    harness_pump(&h, 100);
    assert_body(stream, "x");
    ck_assert(tierce__deadlines_next(&h.loop.deadlines) == TIERCE__DEADLINE_NEVER);
}
END_TEST

START_TEST(test_a_cancelled_call)
{
    static struct harness_body body;
    int32_t stream = harness_call(&h, "/s/hold", &body, "x", NULL, NULL);
    harness_pump(&h, 100);
    nghttp2_submit_rst_stream(h.client, 0, stream, NGHTTP2_CANCEL);
    harness_pump(&h, 100);
    ck_assert(tierce__call_is_over(held[0]));
    answer(held[0], "nobody hears it");
    harness_pump(&h, 100);
    ck_assert_int_eq(harness_answer(&h, stream)->status, -1);
}
END_TEST

static int releases;

static void release(void *body)
{
    releases++;
    free(body);
}

START_TEST(test_bodies_are_released_once)
{
    static struct harness_body bodies[2];
    releases = 0;
    int32_t first = harness_call(&h, "/s/hold", &bodies[0], "x", NULL, NULL);
    int32_t second = harness_call(&h, "/s/hold", &bodies[1], "x", NULL, NULL);
    harness_pump(&h, 100);
    nghttp2_submit_rst_stream(h.client, 0, second, NGHTTP2_CANCEL);
    harness_pump(&h, 100);
    for (int i = 0; i < 2; i++)
        tierce__call_reply(held[i], &(struct tierce__reply){
                                        .body = strdup("lent"), .bytes = 4, .release = release});
    harness_pump(&h, 100);
    assert_body(first, "lent");
    ck_assert_int_eq(releases, 2);
}
END_TEST

/* The client vanishes: its handlers answer to nobody, later. */
START_TEST(test_a_connection_that_is_lost)
{
    static struct harness_body body;
    harness_call(&h, "/s/hold", &body, "x", "grpc-timeout", "10S");
    harness_pump(&h, 100);
    tierce__grpc_connection_destroy(h.connection);
    h.connection = NULL;
    ck_assert(tierce__call_is_over(held[0]));
    ck_assert_str_eq(tierce__call_info(held[0])->path, "/s/hold");
    ck_assert_str_eq(tierce__call_info(held[0])->peer, "peer");
    answer(held[0], "nobody hears it");
}
END_TEST

START_TEST(test_drain)
{
    static struct harness_body bodies[2];
    int32_t stream = harness_call(&h, "/s/hold", &bodies[0], "x", NULL, NULL);
    harness_pump(&h, 100);
    tierce__grpc_connection_drain(h.connection);
    harness_pump(&h, 100);
    ck_assert(h.goaway && !tierce__grpc_connection_is_done(h.connection));
    harness_call(&h, "/s/echo", &bodies[1], "x", NULL, NULL);
    harness_pump(&h, 100);
    ck_assert_int_eq(served, 0);
    answer(held[0], "still");
    harness_pump(&h, 100);
    assert_body(stream, "still");
    ck_assert(tierce__grpc_connection_is_done(h.connection));
}
END_TEST

START_TEST(test_drain_without_calls)
{
    harness_pump(&h, 100);
    tierce__grpc_connection_drain(h.connection);
    harness_pump(&h, 100);
    ck_assert(tierce__grpc_connection_is_done(h.connection));
}
END_TEST

START_TEST(test_give_up)
{
    static struct harness_body bodies[2];
    int32_t stream = harness_call(&h, "/s/hold", &bodies[0], "x", NULL, NULL);
    bodies[1].is_endless = true;
    int32_t half = harness_call(&h, "/s/echo", &bodies[1], "x", NULL, NULL);
    harness_pump(&h, 100);
    tierce__grpc_connection_give_up(h.connection);
    harness_pump(&h, 100);
    ck_assert_int_eq(harness_answer(&h, stream)->status, TIERCE__GRPC_UNAVAILABLE);
    ck_assert_int_eq(harness_answer(&h, half)->status, TIERCE__GRPC_UNAVAILABLE);
    answer(held[0], "too late");
}
END_TEST

/* A client that is rejected before it has sent everything is told to stop sending. */
START_TEST(test_an_early_answer_stops_the_request)
{
    static struct harness_body body;
    body.is_endless = true;
    int32_t stream = harness_call(&h, "/s/unknown", &body, "x", NULL, NULL);
    harness_pump(&h, 100);
    const struct harness_answer *a = harness_answer(&h, stream);
    ck_assert_int_eq(a->status, TIERCE__GRPC_UNIMPLEMENTED);
    ck_assert_str_eq(a->message, "no method /s/unknown");
    ck_assert(a->is_closed && a->error == NGHTTP2_NO_ERROR);
}
END_TEST

START_TEST(test_what_is_no_http2)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    ck_assert_int_eq(tierce__grpc_connection_feed(h.connection, text, sizeof(text) - 1),
                     TIERCE_E_FORMAT);
}
END_TEST

CHECK_MAIN("grpc_connection", .setup = setup, .teardown = teardown,
           .tests = {test_bytes_one_by_one, test_answers_in_another_order,
                     test_an_answer_of_another_thread_waits_for_the_loop, test_a_deadline,
                     test_a_deadline_of_a_call_that_ended, test_a_cancelled_call,
                     test_bodies_are_released_once, test_a_connection_that_is_lost, test_drain,
                     test_drain_without_calls, test_give_up, test_an_early_answer_stops_the_request,
                     test_what_is_no_http2})
