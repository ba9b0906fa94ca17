/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"

#include "net/grpc/grpc_frame.h"
#include "net/server/grpc/reflection/reflection.h"

#include "grpc_harness.h"

/* Each allocation fails once, over the life of a connection with calls of every kind. Nothing may
 * crash or leak, and a client without an answer must have lost the stream or the connection. */

/* A FileDescriptorSet with a file of a message and a service. */
static const uint8_t descriptors[] = {
    0x0a, 33,   0x0a, 7,    'a', '.', 'p',  'r', 'o',  't', 'o', 0x12, 1, 'p', 0x22, 3, 0x0a, 1,
    'M',  0x32, 14,   0x0a, 1,   'S', 0x12, 9,   0x0a, 1,   'f', 0x12, 1, 'M', 0x1a, 1, 'M'};

static void echo(void *arg, struct tierce__call *call)
{
    (void)arg;
    const struct tierce__call_info *info = tierce__call_info(call);
    tierce__call_reply(call,
                       &(struct tierce__reply){.body = info->body, .bytes = info->body_bytes});
}

static void fail_call(void *arg, struct tierce__call *call)
{
    (void)arg;
    tierce__call_reply(call,
                       &(struct tierce__reply){.status = TIERCE__GRPC_ABORTED, .message = "why"});
}

static const struct tierce__route routes[] = {{"/s/echo", NULL, echo, NULL},
                                              {"/s/fail", NULL, fail_call, NULL}};

#define REFLECTION "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"

/* Returns how many allocations it took. */
static uint64_t live_with(uint64_t failing)
{
    static struct harness h;
    static struct harness_body bodies[5];
    struct tierce__reflection *reflection = NULL;
    static const int wanted[5] = {0, TIERCE__GRPC_ABORTED, 0, 0, TIERCE__GRPC_UNIMPLEMENTED};
    int32_t streams[5] = {0};
    char long_value[1000];
    memset(long_value, 'v', sizeof(long_value));
    long_value[sizeof(long_value) - 1] = '\0';
    tierce__alloc_fail_nth(failing);
    int rc = tierce__reflection_create(&reflection, descriptors, sizeof(descriptors));
    ck_assert(rc == 0 || failing > 0);
    bool is_open = harness_open(&h, routes, 2);
    h.shared.reflection = reflection;
    if (is_open) {
        streams[0] = harness_call(&h, "/s/echo", &bodies[0], "hello", "grpc-timeout", "10S");
        streams[1] = harness_call(&h, "/s/fail", &bodies[1], "x", "x-long", long_value);
        streams[2] = harness_call(&h, REFLECTION, &bodies[2], "\x3a\x01x", NULL, NULL);
        streams[3] = harness_call(&h, REFLECTION, &bodies[3], "\x22\x03p.M", NULL, NULL);
        streams[4] = harness_call(&h, "/s/none", &bodies[4], "x", NULL, NULL);
        harness_pump(&h, 64);
        tierce__grpc_connection_drain(h.connection);
        harness_pump(&h, 64);
    }
    uint64_t made = tierce__alloc_fail_nth(0);
    for (int i = 0; i < 5 && is_open; i++) {
        const struct harness_answer *answer = harness_answer(&h, streams[i]);
        ck_assert_msg(answer->is_closed || h.feed_rc != 0, "call %d, allocation %lu", i,
                      (unsigned long)failing);
        if (failing == 0)
            ck_assert_int_eq(answer->status, wanted[i]);
    }
    ck_assert(is_open || failing > 0);
    harness_close(&h);
    tierce__reflection_destroy(reflection);
    ck_assert_uint_eq(h.shared.held.bytes, 0);
    ck_assert_uint_eq(h.shared.handlers, 0);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
    return made;
}

START_TEST(test_every_allocation)
{
    uint64_t count = live_with(0);
    ck_assert_uint_gt(count, 20);
    for (uint64_t nth = 1; nth <= count; nth++)
        live_with(nth);
}
END_TEST

CHECK_MAIN("serve torture", .tests = {test_every_allocation})
