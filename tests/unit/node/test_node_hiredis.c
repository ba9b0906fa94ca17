/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "node_harness.h"

#include <hiredis/hiredis.h>
#include <stdlib.h>

static struct node_harness h;
static redisContext *redis;

static void start(int argc, char *const *argv)
{
    harness_start(&h, argc, argv);
    redis = redisConnect("127.0.0.1", h.ports.resp);
    ck_assert_ptr_nonnull(redis);
    ck_assert_int_eq(redis->err, 0);
}

static void set_up(void)
{
    start(0, NULL);
}

static void set_up_long_host(void)
{
    char host[300];
    snprintf(host, sizeof(host), "--listen.host=127.0.0.%0230d", 1); /* loopback all the same */
    char *arguments[] = {host, (char *)"--listen.insecure=true"};
    start(2, arguments);
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

/* A line of CLIENT INFO is whole, however long the texts in it are. */
START_TEST(test_long_texts_of_a_client)
{
    char name[64], end[200];
    memset(name, 'n', sizeof(name) - 1);
    name[63] = '\0';
    expect(redisCommand(redis, "CLIENT SETNAME %s", name), REDIS_REPLY_STATUS, "OK", 0);
    expect(redisCommand(redis, "CLIENT SETINFO LIB-NAME %s", name), REDIS_REPLY_STATUS, "OK", 0);
    expect(redisCommand(redis, "CLIENT SETINFO LIB-VER %s", name), REDIS_REPLY_STATUS, "OK", 0);
    redisReply *reply = redisCommand(redis, "CLIENT INFO");
    ck_assert_ptr_nonnull(reply);
    ck_assert_int_eq(reply->type, REDIS_REPLY_STRING);
    size_t bytes = (size_t)snprintf(end, sizeof(end), " lib-name=%s lib-ver=%s\n", name, name);
    ck_assert_uint_eq(strlen(reply->str), reply->len);
    ck_assert_uint_gt(reply->len, bytes);
    ck_assert_str_eq(reply->str + reply->len - bytes, end);
    freeReplyObject(reply);
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
    t = tcase_create("long texts");
    tcase_add_checked_fixture(t, set_up_long_host, tear_down);
    tcase_add_test(t, test_long_texts_of_a_client);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return check_main(suite());
}
