/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "net/redis/resp_pipeline.h"
#include "redis_server.h"

#include <errno.h>

/* Against a real server. */

static struct redis_server server;
static struct tierce__resp_pool *pool; /* of two links */
static struct tierce__resp_pipeline batch;

static void set_up(void)
{
    struct tierce__resp_uri uri;
    char text[96], why[TIERCE__RESP_WHY_BYTES];
    ck_assert(redis_start(&server, NULL));
    snprintf(text, sizeof(text), "redis://127.0.0.1:%u?timeout_ms=60000&client_max_pool_size=2",
             (unsigned)server.port);
    ck_assert_int_eq(tierce__resp_uri_parse(&uri, text, why), 0);
    ck_assert_int_eq(tierce__resp_pool_create(&pool, &uri, why), 0);
    tierce__resp_uri_clear(&uri);
    tierce__resp_pipeline_begin(&batch, pool);
}

static void tear_down(void)
{
    tierce__resp_pipeline_end(&batch);
    tierce__resp_pool_destroy(pool);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
    redis_stop(&server);
}

static void begin_again(void)
{
    tierce__resp_pipeline_end(&batch);
    tierce__resp_pipeline_begin(&batch, pool);
}

static void run(void)
{
    int rc = tierce__resp_pipeline_run(&batch);
    ck_assert_msg(rc == 0, "%d %s", rc, batch.why);
    ck_assert_ptr_null(batch.error);
}

static int64_t number_of(const char *key)
{
    begin_again();
    TIERCE__RESP_COMMAND(&batch, "GET", key);
    run();
    return batch.values[0].type == TIERCE__RESP_STRING ? atoi(batch.values[0].text) : -1;
}

START_TEST(answers_have_the_order_of_commands)
{
    enum { COMMANDS = 100, WORDS = 70 };
    char long_text[1000];
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    TIERCE__RESP_COMMAND(&batch, "SET", "bytes");
    tierce__resp_pipeline_add(&batch, "a\0b", 3);
    for (int i = 0; i < COMMANDS; i++) {
        TIERCE__RESP_COMMAND(&batch, "RPUSH");
        tierce__resp_pipeline_addf(&batch, "list-%d", i);
        for (int w = 0; w <= i % WORDS; w++)
            tierce__resp_pipeline_addf(&batch, "%s%d", w == 1 ? long_text : "", w);
    }
    TIERCE__RESP_COMMAND(&batch, "GET", "bytes");
    TIERCE__RESP_COMMAND(&batch, "LINDEX", "list-1", "1");
    run();
    for (int i = 0; i < COMMANDS; i++)
        ck_assert_int_eq(batch.values[1 + i].integer, i % WORDS + 1);
    ck_assert_uint_eq(batch.values[COMMANDS + 1].bytes, 3);
    ck_assert_mem_eq(batch.values[COMMANDS + 1].text, "a\0b", 3);
    ck_assert_uint_eq(batch.values[COMMANDS + 2].bytes, sizeof(long_text));
    ck_assert_str_eq(tierce__resp_pipeline_textf(&batch, "%s", long_text), long_text);
}
END_TEST

/* All answers are read: the link is of use afterwards. */
START_TEST(the_first_error_is_reported)
{
    for (int i = 0; i < 5; i++) {
        TIERCE__RESP_COMMAND(&batch, "SET", "text", "t");
        TIERCE__RESP_COMMAND(&batch, "LPUSH", "text", "x");
        TIERCE__RESP_COMMAND(&batch, "NONSENSE", "y");
        ck_assert_int_eq(tierce__resp_pipeline_run(&batch), -EPROTO);
        ck_assert_ptr_eq(batch.error, &batch.values[1]);
        ck_assert(tierce__resp_is_error(batch.error, "WRONGTYPE"));
        ck_assert_ptr_nonnull(strstr(batch.why, "WRONGTYPE"));
        ck_assert_int_eq(batch.values[0].type, TIERCE__RESP_STRING);
        begin_again();
    }
    TIERCE__RESP_COMMAND(&batch, "PING");
    ck_assert_int_eq(tierce__resp_pipeline_run_at(&batch, 0), 0);
    ck_assert_str_eq(batch.values[0].text, "PONG");
    ck_assert_int_eq(tierce__resp_pipeline_run_at(&batch, 1), -ENOENT);
}
END_TEST

static struct tierce__resp_script add = {.text = "return redis.call('INCRBY', KEYS[1], ARGV[1])"};
static struct tierce__resp_script fail = {
    .text = "redis.call('INCR', KEYS[1]) return redis.error_reply('FENCED off')"};

static void load(struct tierce__resp_script *script)
{
    begin_again();
    TIERCE__RESP_COMMAND(&batch, "SCRIPT", "LOAD", script->text);
    run();
    ck_assert_uint_eq(batch.values[0].bytes, sizeof(script->sha) - 1);
    memcpy(script->sha, batch.values[0].text, sizeof(script->sha));
}

static void call_script(const struct tierce__resp_script *script, const char *key)
{
    tierce__resp_pipeline_script(&batch, script, &key, 1);
    tierce__resp_pipeline_add_text(&batch, "3");
}

START_TEST(a_forgotten_script_runs_once)
{
    add.sha[0] = '\0';
    call_script(&add, "n"); /* as text */
    run();
    ck_assert(batch.writes);
    ck_assert_int_eq(batch.values[0].integer, 3);
    load(&add);
    load(&fail);
    begin_again();
    call_script(&add, "n");
    run();
    ck_assert_int_eq(batch.values[0].integer, 6);
    for (int64_t wanted = 12; wanted <= 24; wanted += 6) {
        begin_again();
        TIERCE__RESP_COMMAND(&batch, "SCRIPT", "FLUSH");
        run();
        begin_again();
        TIERCE__RESP_COMMAND(&batch, "INCR", "others");
        call_script(&add, "n");
        call_script(&add, "n");
        run();
        ck_assert_int_eq(batch.values[0].type, TIERCE__RESP_NIL);
        ck_assert_int_eq(batch.values[2].integer, wanted);
        ck_assert_int_eq(number_of("others"), wanted / 6 - 1);
    }
    /* Behind another error nothing is sent again. */
    begin_again();
    TIERCE__RESP_COMMAND(&batch, "SCRIPT", "FLUSH");
    run();
    load(&fail);
    begin_again();
    call_script(&add, "n");
    call_script(&fail, "failures");
    ck_assert_int_eq(tierce__resp_pipeline_run(&batch), -EPROTO);
    ck_assert(tierce__resp_is_error(batch.error, "FENCED"));
    ck_assert_int_eq(number_of("n"), 24);
    ck_assert_int_eq(number_of("failures"), 1);
}
END_TEST

/* A command that ends its own connection is lost each time. */
START_TEST(only_reads_are_sent_again)
{
    for (int repeats = 0; repeats < 2; repeats++) {
        begin_again();
        batch.repeats = repeats == 1;
        TIERCE__RESP_COMMAND(&batch, "INCR", repeats == 0 ? "once" : "twice");
        TIERCE__RESP_COMMAND(&batch, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no");
        TIERCE__RESP_COMMAND(&batch, "PING");
        ck_assert_int_lt(tierce__resp_pipeline_run(&batch), 0);
        ck_assert_ptr_null(batch.values);
        ck_assert_uint_gt(strlen(batch.why), 5);
    }
    ck_assert_int_eq(number_of("once"), 1);
    ck_assert_int_eq(number_of("twice"), 2);
}
END_TEST

START_TEST(no_link_is_free)
{
    struct tierce__resp_pipeline others[2];
    for (int i = 0; i < 2; i++) {
        tierce__resp_pipeline_begin(&others[i], pool);
        TIERCE__RESP_COMMAND(&others[i], "PING");
        ck_assert_int_eq(tierce__resp_pipeline_run(&others[i]), 0);
    }
    TIERCE__RESP_COMMAND(&batch, "PING");
    batch.deadline_ns = tierce__deadline_in_ms(20);
    ck_assert_int_eq(tierce__resp_pipeline_run(&batch), TIERCE_E_DEADLINE);
    ck_assert_uint_gt(strlen(batch.why), 5);
    for (int i = 0; i < 2; i++)
        tierce__resp_pipeline_end(&others[i]);
    batch.deadline_ns = 0;
    run();
}
END_TEST

START_TEST(torture_allocations)
{
    load(&add);
    int rc = -ENOMEM;
    uint64_t nth = 1;
    for (; rc != 0; nth++) {
        ck_assert_uint_lt(nth, 100);
        begin_again();
        tierce__alloc_fail_nth(nth);
        for (int i = 0; i < 50; i++) {
            call_script(&add, "n");
            tierce__resp_pipeline_addf(&batch, "%0500d", i);
        }
        rc = tierce__resp_pipeline_run(&batch);
        tierce__alloc_fail_nth(0);
        ck_assert_msg(rc == 0 || rc == -ENOMEM, "%d %s", rc, batch.why);
    }
    ck_assert_uint_gt(nth, 5);
}
END_TEST

int main(void)
{
    if (!redis_is_there()) {
        puts("redis-server is missing");
        return 77;
    }
    return CHECK_RUN("resp_pipeline", .seconds = 60, .setup = set_up, .teardown = tear_down,
                     .tests = {answers_have_the_order_of_commands, the_first_error_is_reported,
                               a_forgotten_script_runs_once, only_reads_are_sent_again,
                               no_link_is_free, torture_allocations});
}
