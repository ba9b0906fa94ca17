/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "base/bytes.h"
#include "node_harness.h"
#include "proto/lm/lm.h"

#include <stdlib.h>

static struct node_harness h;
static int fd;
static const struct tierce__lm_shape shape = {.format = 1, .dtype = 3, .dims = {2, 4, 16, 16}};

static void set_up(void)
{
    /* However slow the machine is that fills memory meanwhile. */
    char *arguments[] = {(char *)"--limit.value=32MiB", (char *)"--timeout.grace=10min"};
    harness_start(&h, 2, arguments);
    fd = harness_connect(h.ports.lm);
}

static void tear_down(void)
{
    close(fd);
    harness_stop(&h);
}

static void ask(enum tierce__lm_command command, const char *key, uint32_t bytes)
{
    uint8_t message[TIERCE__LM_REQUEST_BYTES];
    ck_assert_int_eq(
        tierce__lm_request_encode(message, &(struct tierce__lm_request){.command = command,
                                                                        .value_bytes = bytes,
                                                                        .shape = shape,
                                                                        .key = key,
                                                                        .key_bytes = strlen(key)}),
        0);
    say_bytes(fd, message, sizeof(message));
}

static struct tierce__lm_reply answer(void)
{
    uint8_t message[TIERCE__LM_REPLY_BYTES];
    struct tierce__lm_reply reply;
    hear_bytes(fd, message, sizeof(message));
    ck_assert_int_eq(tierce__lm_reply_decode(&reply, message), 0);
    return reply;
}

static void expect_value(const char *key, const void *value, uint32_t bytes)
{
    ask(TIERCE__LM_GET, key, 0);
    struct tierce__lm_reply reply = answer();
    ck_assert_int_eq(reply.code, TIERCE__LM_SUCCESS);
    ck_assert_uint_eq(reply.value_bytes, bytes);
    ck_assert_mem_eq(&reply.shape, &shape, sizeof(shape));
    ck_assert_int_eq(reply.location, 0);
    char *got = malloc(bytes + 1);
    hear_bytes(fd, got, bytes);
    ck_assert_int_eq(memcmp(got, value, bytes), 0);
    free(got);
}

static void expect_code(enum tierce__lm_command command, const char *key, enum tierce__lm_code code)
{
    ask(command, key, 0);
    struct tierce__lm_reply reply = answer();
    ck_assert_int_eq(reply.code, code);
    ck_assert_uint_eq(reply.value_bytes, 0);
    ck_assert_mem_eq(&reply.shape, &tierce__lm_no_shape, sizeof(shape));
}

START_TEST(test_values)
{
    static const uint32_t sizes[] = {0, 1, 4096, 16384, 16385, 262144, 5 << 20};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char *value = malloc(sizes[i] + 1);
        for (uint32_t b = 0; b < sizes[i]; b++)
            value[b] = (char)(b * 31 + b / 997 + i);
        ask(TIERCE__LM_PUT, "org/m@1@0@abc@bfloat16", sizes[i]);
        say_bytes(fd, value, sizes[i]);
        expect_value("org/m@1@0@abc@bfloat16", value, sizes[i]); /* no answer to PUT */
        free(value);
    }
    expect_code(TIERCE__LM_EXIST, "org/m@1@0@abc@bfloat16", TIERCE__LM_SUCCESS);
    expect_code(TIERCE__LM_EXIST, "other", TIERCE__LM_FAIL);
    expect_code(TIERCE__LM_GET, "other", TIERCE__LM_FAIL);
}
END_TEST

START_TEST(test_what_is_about_no_key)
{
    ask(TIERCE__LM_LIST, "", 0); /* not answered */
    expect_code(TIERCE__LM_HEALTH, "", TIERCE__LM_SUCCESS);
}
END_TEST

START_TEST(test_half_a_value_is_none)
{
    ask(TIERCE__LM_PUT, "k", 100000);
    say(fd, "half");
    close(fd);
    fd = harness_connect(h.ports.lm);
    expect_code(TIERCE__LM_EXIST, "k", TIERCE__LM_FAIL);
    while (atomic_load(&h.node->connections_now) > 1)
        usleep(1000);
    ck_assert_uint_eq(tierce__uploads_bytes(&h.node->uploads), 0);
}
END_TEST

START_TEST(test_lengths_that_cannot_be)
{
    ask(TIERCE__LM_PUT, "k", (32 << 20) + 1);
    hear_end(fd);
    fd = harness_connect(h.ports.lm);
    uint8_t message[TIERCE__LM_REQUEST_BYTES];
    memset(message, ' ', sizeof(message));
    tierce__store_le32(message, TIERCE__LM_PUT);
    tierce__store_le32(message + 4, (uint32_t)-5);
    say_bytes(fd, message, sizeof(message));
    hear_end(fd);
    fd = harness_connect(h.ports.lm);
    tierce__store_le32(message, 77);
    tierce__store_le32(message + 4, 0);
    say_bytes(fd, message, sizeof(message));
    hear_end(fd);
    fd = harness_connect(h.ports.lm);
    expect_code(TIERCE__LM_HEALTH, "", TIERCE__LM_SUCCESS);
    ck_assert_uint_eq(harness_counter(&h, TIERCE__NODE_protocol_errors), 3);
}
END_TEST

/* Three at once: half of memory may arrive at a time, and the third is read and dropped. */
START_TEST(test_no_room)
{
    uint32_t bytes = 20 << 20;
    char *value = calloc(1, bytes);
    int others[2];
    int mine = fd;
    for (int i = 0; i < 2; i++) {
        fd = others[i] = harness_connect(h.ports.lm);
        ask(TIERCE__LM_PUT, i == 0 ? "a" : "b", bytes);
        say(fd, "x");
    }
    while (harness_counter(&h, TIERCE__NODE_lm_requests) < 2)
        usleep(1000);
    fd = mine;
    ask(TIERCE__LM_PUT, "c", bytes);
    say_bytes(fd, value, bytes);
    expect_code(TIERCE__LM_EXIST, "c", TIERCE__LM_FAIL);
    for (int i = 0; i < 2; i++)
        close(others[i]);
    free(value);
}
END_TEST

static void put_filled(const char *key, int byte, uint32_t bytes)
{
    char *value = malloc(bytes);
    memset(value, byte, bytes);
    ask(TIERCE__LM_PUT, key, bytes);
    say_bytes(fd, value, bytes);
    free(value);
}

/* LMCache's client goes out of step where a GET finds nothing after a yes. */
START_TEST(test_yes_holds_for_a_moment)
{
    uint32_t bytes = 10 << 20;
    char name[16], *value = malloc(bytes);
    memset(value, 'a', bytes);
    put_filled("asked", 'a', bytes);
    put_filled("not asked", 'b', bytes);
    expect_code(TIERCE__LM_EXIST, "asked", TIERCE__LM_SUCCESS);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "f%d", i);
        put_filled(name, 'f', 8 << 20);
    }
    expect_value("asked", value, bytes);
    expect_code(TIERCE__LM_GET, "not asked", TIERCE__LM_FAIL);
    free(value);
}
END_TEST

/* Bytes of requests in the smallest pieces. */
START_TEST(test_a_trickle)
{
    uint8_t message[TIERCE__LM_REQUEST_BYTES];
    ck_assert_int_eq(
        tierce__lm_request_encode(message, &(struct tierce__lm_request){.command = TIERCE__LM_PUT,
                                                                        .value_bytes = 5,
                                                                        .key = "k",
                                                                        .key_bytes = 1,
                                                                        .shape = shape}),
        0);
    for (size_t i = 0; i < sizeof(message); i++)
        say_bytes(fd, message + i, 1);
    for (size_t i = 0; i < 5; i++)
        say_bytes(fd, &"value"[i], 1);
    expect_value("k", "value", 5);
}
END_TEST

/* It is asked for, and the answer is awaited. */
START_TEST(test_what_a_slower_tier_does_not_have)
{
    struct node_harness front;
    char url[64];
    char *arguments[] = {url};
    int mine = fd;
    snprintf(url, sizeof(url), "--remote.urls=tierce://127.0.0.1:%u", h.ports.resp);
    harness_start(&front, 1, arguments);
    fd = harness_connect(front.ports.lm);
    expect_code(TIERCE__LM_GET, "other", TIERCE__LM_FAIL);
    expect_code(TIERCE__LM_EXIST, "other", TIERCE__LM_FAIL);
    expect_code(TIERCE__LM_HEALTH, "", TIERCE__LM_SUCCESS);
    close(fd);
    fd = mine;
    harness_stop(&front);
}
END_TEST

CHECK_MAIN("node_lm", .seconds = 60, .setup = set_up, .teardown = tear_down,
           .tests = {test_values, test_what_is_about_no_key, test_half_a_value_is_none,
                     test_lengths_that_cannot_be, test_no_room, test_yes_holds_for_a_moment,
                     test_a_trickle, test_what_a_slower_tier_does_not_have})
