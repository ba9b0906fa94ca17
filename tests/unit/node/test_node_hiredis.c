/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "node_harness.h"

#include <hiredis/hiredis.h>
#include <stdlib.h>

static struct node_harness h;
static redisContext *redis;

static void set_up(void)
{
    harness_start(&h, 0, NULL);
    redis = redisConnect("127.0.0.1", h.ports.resp);
    ck_assert_ptr_nonnull(redis);
    ck_assert_int_eq(redis->err, 0);
}

static void tear_down(void)
{
    redisFree(redis);
    harness_stop(&h);
}

static void expect(redisReply *reply, int type, const char *text, long long integer)
{
    ck_assert_ptr_nonnull(reply);
    ck_assert_int_eq(reply->type, type);
    if (text != NULL)
        ck_assert_str_eq(reply->str, text);
    else if (type == REDIS_REPLY_INTEGER)
        ck_assert_int_eq(reply->integer, integer);
    freeReplyObject(reply);
}

START_TEST(test_commands)
{
    size_t bytes = 4 << 20;
    char *value = malloc(bytes);
    memset(value, 'v', bytes);
    expect(redisCommand(redis, "SET %s %s", "k", "hello"), REDIS_REPLY_STATUS, "OK", 0);
    expect(redisCommand(redis, "GET k"), REDIS_REPLY_STRING, "hello", 0);
    expect(redisCommand(redis, "GET none"), REDIS_REPLY_NIL, NULL, 0);
    expect(redisCommand(redis, "SET big %b", value, bytes), REDIS_REPLY_STATUS, "OK", 0);
    redisReply *reply = redisCommand(redis, "MGET k big");
    ck_assert_int_eq(reply->type, REDIS_REPLY_ARRAY);
    ck_assert_uint_eq(reply->element[1]->len, bytes);
    ck_assert_int_eq(memcmp(reply->element[1]->str, value, bytes), 0);
    freeReplyObject(reply);
    expect(redisCommand(redis, "DEL k big none"), REDIS_REPLY_INTEGER, NULL, 2);
    free(value);
}
END_TEST

START_TEST(test_what_a_client_asks_first)
{
    redisReply *reply = redisCommand(redis, "CONFIG GET *");
    ck_assert_int_eq(reply->type, REDIS_REPLY_ARRAY);
    freeReplyObject(reply);
    reply = redisCommand(redis, "COMMAND");
    ck_assert_int_eq(reply->type, REDIS_REPLY_ARRAY);
    freeReplyObject(reply);
    reply = redisCommand(redis, "INFO");
    ck_assert_int_eq(reply->type, REDIS_REPLY_STRING);
    freeReplyObject(reply);
}
END_TEST

START_TEST(test_a_pipeline)
{
    for (int i = 0; i < 1000; i++) {
        redisAppendCommand(redis, "SET key:%d %d", i, i);
        redisAppendCommand(redis, "GET key:%d", i);
    }
    for (int i = 0; i < 1000; i++) {
        redisReply *reply;
        char wanted[16];
        ck_assert_int_eq(redisGetReply(redis, (void **)&reply), REDIS_OK);
        expect(reply, REDIS_REPLY_STATUS, "OK", 0);
        snprintf(wanted, sizeof(wanted), "%d", i);
        ck_assert_int_eq(redisGetReply(redis, (void **)&reply), REDIS_OK);
        expect(reply, REDIS_REPLY_STRING, wanted, 0);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("node_hiredis");
    TCase *t = tcase_create("hiredis");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, test_commands);
    tcase_add_test(t, test_what_a_client_asks_first);
    tcase_add_test(t, test_a_pipeline);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return check_main(suite());
}
