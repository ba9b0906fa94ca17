/* SPDX-License-Identifier: Apache-2.0 */
/* Several GETs on a link at a time. */
#include "check_main.h"
#include "links_world.h"

#define GETS 8u

/* Two links, of which one waits for an answer and the other has gone through a store when the GETs
 * of "a" to "h" wait for it. */
static struct {
    struct connector_call first, store, gets[GETS];
} many;

static void start_gets(uint32_t timeout_ms)
{
    static const char *const names[GETS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    start(2, 100);
    hold('z');
    set_shut(true);
    occupy(&many.store, "1");
    await_inside(1); /* the second link; the first one takes no stores */
    connector_call_init(&many.first, TIERCE__STORE_LOOKUP, "z", 0);
    submit(&many.first);
    await_inside(2);
    for (size_t i = 0; i < GETS; i++) {
        connector_call_init(&many.gets[i], TIERCE__STORE_GET, names[i], 0);
        many.gets[i].req.buf = connector_object(pool, 0, 10);
        many.gets[i].req.length = 10;
        if (timeout_ms > 0)
            many.gets[i].req.deadline_ns = tierce__deadline_in_ms(timeout_ms);
        submit(&many.gets[i]);
    }
}

/* The link takes GETs, and one of them is not answered. */
static void open_but(char name)
{
    pthread_mutex_lock(&world.lock);
    world.held_get = name;
    world.shut = false;
    pthread_cond_broadcast(&world.changed);
    pthread_mutex_unlock(&world.lock);
}

static void end_gets(void)
{
    open_but('\0');
    hold('\0');
    connector_call_wait(&many.first);
    connector_call_wait(&many.store);
    for (size_t i = 0; i < GETS; i++)
        tierce__buf_release(many.gets[i].req.buf);
    end();
}

static bool has_come(size_t i)
{
    const uint8_t *data = many.gets[i].req.buf->data;
    return data[0] == 'a' + i && data[9] == 'a' + i;
}

/* Its share of the waiting requests, in order of arrival. */
START_TEST(a_link_takes_several_gets)
{
    start_gets(0);
    set_shut(false);
    for (size_t i = 0; i < GETS; i++)
        ck_assert(connector_call_wait(&many.gets[i]) == 0 && has_come(i));
    ck_assert_uint_eq(world.most, GETS / 2);
    ck_assert_str_eq(world.order, "1zabcdefgh");
    end_gets();
}
END_TEST

/* Those behind it are asked for again. */
START_TEST(a_connection_that_ends_costs_one_get)
{
    start_gets(0);
    world.broken = (char)('a' + _i);
    set_shut(false);
    for (int i = 0; i < (int)GETS; i++) {
        int rc = connector_call_wait(&many.gets[i]);
        ck_assert(i == _i ? rc == TIERCE_E_DOWN : rc == 0 && has_come((size_t)i));
    }
    ck_assert_uint_eq(world.most, GETS / 2);
    end_gets();
}
END_TEST

/* A GET whose answer is late is answered at its deadline, those behind it at theirs. */
START_TEST(gets_are_answered_at_their_deadline)
{
    bool were_sent = false;
    for (uint32_t timeout_ms = 100; !were_sent; timeout_ms *= 2) { /* for a busy machine */
        ck_assert_uint_lt(timeout_ms, TIMEOUT_MS_MAX);
        world.ended = 0;
        start_gets(timeout_ms);
        open_but('b');
        int first = connector_call_wait(&many.gets[0]);
        ck_assert(first == 0 || first == TIERCE_E_DEADLINE);
        for (size_t i = 1; i < GETS; i++)
            ck_assert_int_eq(connector_call_wait(&many.gets[i]), TIERCE_E_DEADLINE);
        uint64_t left_behind = connector_stats(connector).calls_hanging;
        ck_assert_uint_le(left_behind, 1);
        were_sent = left_behind == 1;
        end_gets();
    }
}
END_TEST

static void *close_connector(void *arg)
{
    (void)arg;
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    return NULL;
}

/* Requests taken but not sent again are cancelled, and so are waiting ones. */
START_TEST(gets_are_cancelled_at_close)
{
    pthread_t thread;
    start_gets(0);
    world.broken = 'b';
    open_but('b');
    ck_assert_int_eq(connector_call_wait(&many.gets[0]), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, close_connector, NULL), 0);
    ck_assert_int_eq(connector_call_wait(&many.gets[GETS - 1]), TIERCE_E_CANCELLED);
    hold('\0');
    open_but('\0');
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(connector_call_wait(&many.gets[1]), TIERCE_E_DOWN);
    for (size_t i = 2; i < GETS - 1; i++)
        ck_assert_int_eq(connector_call_wait(&many.gets[i]), TIERCE_E_CANCELLED);
    connector_call_wait(&many.first);
    connector_call_wait(&many.store);
    for (size_t i = 0; i < GETS; i++)
        tierce__buf_release(many.gets[i].req.buf);
    tierce__pool_destroy(pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("links gets");
    TCase *tcase = tcase_create("links gets");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_link_takes_several_gets);
    tcase_add_loop_test(tcase, a_connection_that_ends_costs_one_get, 0,
                        GETS - 2); /* the last two come alone */
    tcase_add_test(tcase, gets_are_answered_at_their_deadline);
    tcase_add_test(tcase, gets_are_cancelled_at_close);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
