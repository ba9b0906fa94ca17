/* SPDX-License-Identifier: Apache-2.0 */
/* A connector out of links of the test's own. */
#include "check_main.h"
#include "links_world.h"

#include <poll.h>

/* ---- many names ------------------------------------------------------------------------------ */

/* One name per letter; '-' is absent. A link gets as many names at a time as it accepts. */
START_TEST(names_are_asked_for_in_parts)
{
    static const struct {
        const char *names, *asked; /* the first of each part */
        size_t found;
    } rows[] = {{"a", "a", 1},         {"abc", "a", 3},        {"abcd", "ad", 4},
                {"abcdefg", "adg", 7}, {"-bcd", "-", 0},       {"ab-defg", "a", 2},
                {"abc-efg", "a-", 3},  {"abcdef-hi", "ad-", 6}};
    start(2, 16);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct tierce_plugin_name names[16];
        struct connector_call call;
        size_t count = strlen(rows[i].names);
        for (size_t n = 0; n < count; n++)
            names[n] = (struct tierce_plugin_name){.text = rows[i].names + n, .bytes = 1};
        connector_call_init(&call, TIERCE__STORE_LOOKUP, NULL, 0);
        call.req.names = names;
        call.req.name_count = count;
        memset(world.order, 0, sizeof(world.order));
        world.served = 0;
        ck_assert_int_eq(connector_call_run(connector, &call), 0);
        ck_assert_uint_eq(call.req.found, rows[i].found);
        ck_assert_str_eq(world.order, rows[i].asked);
    }
    end();
}
END_TEST

/* At the deadline the known results are reported: for the answered parts, and for the unanswered
 * one. */
START_TEST(names_found_so_far_are_told)
{
    static const char text[] = "abcdefghi";
    struct tierce_plugin_name names[9];
    struct connector_call call;
    start(2, 16);
    for (size_t n = 0; n < 9; n++)
        names[n] = (struct tierce_plugin_name){.text = text + n, .bytes = 1};
    for (size_t held = 0; held < 9; held++) {
        uint32_t timeout_ms = 15;
        do { /* on a busy machine the deadline may come before the answers */
            timeout_ms *= 2;
            ck_assert_uint_lt(timeout_ms, TIMEOUT_MS_MAX);
            connector_call_init(&call, TIERCE__STORE_LOOKUP, NULL, 0);
            call.req.names = names;
            call.req.name_count = 9;
            call.req.deadline_ns = tierce__deadline_in_ms(timeout_ms);
            hold(text[held]);
            ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_DEADLINE);
            ck_assert_uint_le(call.req.found, held);
            hold('\0');
            while (connector_stats(connector).calls_hanging > 0)
                sched_yield();
        } while (call.req.found < held);
    }
    end();
}
END_TEST

/* ---- order ----------------------------------------------------------------------------------- */

START_TEST(the_urgent_first)
{
    static const struct {
        enum tierce__store_op op;
        enum tierce__connector_urgency urgency;
        const char *name;
    } queue[] = {
        {TIERCE__STORE_DELETE, TIERCE__CONNECTOR_STORE, "x"},
        {TIERCE__STORE_DELETE, TIERCE__CONNECTOR_STORE, "y"},
        {TIERCE__STORE_LOOKUP, TIERCE__CONNECTOR_FETCH, "e"},
        {TIERCE__STORE_LOOKUP, TIERCE__CONNECTOR_PREFETCH, "c"},
        {TIERCE__STORE_LOOKUP, TIERCE__CONNECTOR_FETCH, "f"},
        {TIERCE__STORE_LOOKUP, TIERCE__CONNECTOR_PEEK, "a"},
        {TIERCE__STORE_LOOKUP, TIERCE__CONNECTOR_PREFETCH, "d"},
        {TIERCE__STORE_LOOKUP, TIERCE__CONNECTOR_PEEK, "b"},
    };
    struct connector_call busy[2], calls[8];
    start(2, 100);
    set_shut(true);
    occupy(&busy[0], "1");
    await_inside(1); /* the second link; the first one takes no stores */
    occupy(&busy[1], NULL);
    await_inside(2);
    for (size_t i = 0; i < 8; i++) {
        connector_call_init(&calls[i], queue[i].op, queue[i].name, 0);
        calls[i].req.urgency = queue[i].urgency;
        submit(&calls[i]);
    }
    ck_assert_uint_eq(connector_stats(connector).waiting, 8);
    set_shut(false);
    for (size_t i = 0; i < 8; i++)
        ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
    connector_call_wait(&busy[0]);
    connector_call_wait(&busy[1]);
    /* Two links take them in order; how late one of them writes its letter is chance. */
    ck_assert_uint_eq(world.served, 9);
    ck_assert_int_eq(world.order[0], '1');
    for (size_t i = 1; i < 9; i++) {
        const char *in_order = "abcdefxy";
        size_t place = (size_t)(strchr(in_order, world.order[i]) - in_order);
        ck_assert_uint_le(place, i);
    }
    end();
}
END_TEST

/* Stores occupy all links they may; a lookup is served. */
START_TEST(one_link_takes_no_stores)
{
    struct connector_call stores[6], peek;
    start(3, 100);
    set_shut(true);
    for (size_t i = 0; i < 6; i++)
        occupy(&stores[i], "s");
    await_inside(2);
    connector_call_init(&peek, TIERCE__STORE_LOOKUP, "p", 0);
    submit(&peek);
    await_inside(3);
    set_shut(false);
    ck_assert_int_eq(connector_call_wait(&peek), 0);
    ck_assert_uint_eq(peek.req.found, 1);
    for (size_t i = 0; i < 6; i++)
        ck_assert_int_eq(connector_call_wait(&stores[i]), 0);
    end();
}
END_TEST

/* No waiter is forgotten, whichever link is woken: rounds of a store and reads on idle links. */
START_TEST(nobody_waits_beside_an_idle_link)
{
    static struct connector_call calls[3];
    start(4, 100);
    for (int round = 0; round < 3000; round++) {
        connector_call_init(&calls[0], TIERCE__STORE_DELETE, "s", 0);
        connector_call_init(&calls[1], TIERCE__STORE_LOOKUP, "e", 0);
        connector_call_init(&calls[2], TIERCE__STORE_LOOKUP, "f", 0);
        for (size_t i = 0; i < 3; i++)
            submit(&calls[(i + (size_t)round) % 3]);
        for (size_t i = 0; i < 3; i++)
            ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
    }
    end();
}
END_TEST

/* ---- deadlines ------------------------------------------------------------------------------- */

START_TEST(what_waits_is_answered_at_its_deadline)
{
    struct connector_call busy[2], calls[3];
    start(2, 100);
    set_shut(true);
    occupy(&busy[0], "s");
    await_inside(1);
    occupy(&busy[1], NULL);
    await_inside(2);
    for (uint32_t i = 0; i < 3; i++) { /* the later one is submitted first */
        connector_call_init(&calls[i], TIERCE__STORE_LOOKUP, "w", 0);
        calls[i].req.deadline_ns = tierce__deadline_in_ms(60 - 20 * i);
        submit(&calls[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(connector_call_wait(&calls[i]), TIERCE_E_DEADLINE);
        ck_assert_uint_ge(tierce__now_ns(), calls[i].req.deadline_ns);
    }
    ck_assert_str_eq(connector_why(connector),
                     "test://x: all connections were busy until the deadline");
    ck_assert_uint_eq(connector_stats(connector).waiting, 0);
    set_shut(false);
    ck_assert_int_eq(connector_call_wait(&busy[0]), 0);
    ck_assert_int_eq(connector_call_wait(&busy[1]), 0);
    end();
}
END_TEST

/* Submits calls that hang until the deadline. Returns whether links had begun all of them, for
 * which a busy machine may need longer. */
static bool hang(struct tierce__buf *const bufs[2], uint32_t timeout_ms)
{
    struct connector_call *calls[3];
    set_shut(true);
    for (size_t i = 0; i < 3; i++) {
        static const enum tierce__store_op kinds[] = {TIERCE__STORE_GET, TIERCE__STORE_PUT,
                                                      TIERCE__STORE_LOOKUP};
        calls[i] = malloc(sizeof(*calls[i]));
        connector_call_init(calls[i], kinds[i], "hang", 0);
        calls[i]->req.buf = i < 2 ? bufs[i] : NULL;
        calls[i]->req.length = 5000;
        calls[i]->req.deadline_ns = tierce__deadline_in_ms(timeout_ms);
        submit(calls[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(connector_call_wait(calls[i]), TIERCE_E_DEADLINE);
        memset(calls[i], 0xee, sizeof(*calls[i]));
        free(calls[i]);
    }
    pthread_mutex_lock(&world.lock);
    bool have_begun = world.inside == 3;
    pthread_mutex_unlock(&world.lock);
    return have_begun;
}

/* A GET and a PUT that hang are left behind with references on their buffers; the requests and
 * their names may go at once. */
START_TEST(what_hangs_is_left_behind)
{
    struct tierce__buf *bufs[2];
    start(8, 100);
    for (size_t i = 0; i < 2; i++)
        bufs[i] = connector_object(pool, 1, 5000);
    for (uint32_t timeout_ms = 20; !hang(bufs, timeout_ms); timeout_ms *= 2) {
        ck_assert_uint_lt(timeout_ms, TIMEOUT_MS_MAX);
        set_shut(false);
        while (connector_stats(connector).calls_hanging > 0)
            sched_yield();
    }
    ck_assert_str_eq(connector_why(connector), "test://x: no answer by the deadline");
    ck_assert_uint_eq(connector_stats(connector).calls_hanging, 3);
    for (size_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(atomic_load(&bufs[i]->refs), 2);
        tierce__buf_release(bufs[i]);
    }
    struct connector_call other; /* the other links go on */
    connector_call_init(&other, TIERCE__STORE_LOOKUP, "o", 0);
    submit(&other);
    await_inside(4);
    set_shut(false);
    ck_assert_int_eq(connector_call_wait(&other), 0);
    while (connector_stats(connector).calls_hanging > 0)
        sched_yield();
    end();
}
END_TEST

/* ---- limits and statuses --------------------------------------------------------------------- */

START_TEST(not_too_many_wait)
{
    struct connector_call busy[2], calls[4];
    start(2, 3);
    set_shut(true);
    occupy(&busy[0], "s");
    await_inside(1);
    occupy(&busy[1], NULL);
    await_inside(2);
    for (size_t i = 0; i < 4; i++) {
        connector_call_init(&calls[i], TIERCE__STORE_LOOKUP, "w", 0);
        submit(&calls[i]);
    }
    ck_assert_int_eq(connector_call_wait(&calls[3]), TIERCE_E_LIMIT);
    ck_assert_str_eq(connector_why(connector), "test://x: the request queue is full");
    set_shut(false);
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
    connector_call_wait(&busy[0]);
    connector_call_wait(&busy[1]);
    end();
}
END_TEST

START_TEST(statuses_and_reasons)
{
    start(2, 3);
    ck_assert_str_eq(connector->ops->scheme, "test");
    ck_assert_int_eq(connector_ping(connector), 0);
    ck_assert_uint_eq(connector_stats(connector).connections, 1);
    ck_assert_uint_eq(connector_stats(connector).connects, 1);
    world.status = TIERCE_E_MISS;
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_MISS);
    ck_assert_str_eq(connector_why(connector), "");
    world.status = TIERCE_E_REFUSED;
    ck_assert_int_eq(connector_ping(connector), TIERCE_E_REFUSED);
    ck_assert_str_eq(connector_why(connector), "test://x: the reason");
    world.status = -EIO; /* one that says nothing */
    ck_assert_int_eq(connector_ping(connector), -EIO);
    ck_assert_str_eq(connector_why(connector), "test://x: Input/output error");
    end();
}
END_TEST

/* A ping of at most `ms`: whether its failure was the answer of another one before. */
static bool ping_repeats(uint32_t ms, int status)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_PING, NULL, 0);
    call.req.deadline_ns = tierce__deadline_in_ms(ms);
    ck_assert_int_eq(connector_call_run(connector, &call), status);
    return call.req.repeats;
}

static void set_failure(int status, bool repeats)
{
    pthread_mutex_lock(&world.lock);
    world.status = status;
    world.repeats = repeats;
    pthread_mutex_unlock(&world.lock);
}

START_TEST(who_needed_a_connection_is_told)
{
    struct connector_call call;
    start(2, 3);
    for (int i = 0; i < 50; i++) { /* any of the two links may serve it */
        uint64_t connects = connector_stats(connector).connects;
        connector_call_init(&call, TIERCE__STORE_PING, NULL, 0);
        ck_assert_int_eq(connector_call_run(connector, &call), 0);
        ck_assert_int_eq(call.req.connected, connector_stats(connector).connects > connects);
        ck_assert(i > 0 || call.req.connected);
    }
    ck_assert_uint_le(connector_stats(connector).connects, 2);
    end();
}
END_TEST

/* All pings use one link, because a lookup occupies the other one. */
START_TEST(one_failure_is_told_once)
{
    struct connector_call lookup;
    start(2, 3);
    hold('h');
    connector_call_init(&lookup, TIERCE__STORE_LOOKUP, "h", 0);
    submit(&lookup);
    await_served(1);
    await_inside(0);
    set_shut(true);
    ck_assert(!ping_repeats(50, TIERCE_E_DEADLINE)); /* answered before its call fails */
    set_failure(TIERCE_E_DOWN, false);
    set_shut(false);
    while (connector_stats(connector).calls_hanging > 0)
        poll(NULL, 0, 1);
    set_failure(TIERCE_E_DOWN, true);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(ping_repeats(60000, TIERCE_E_DOWN), i > 0);
    set_failure(TIERCE_E_DOWN, false); /* another attempt */
    ck_assert(!ping_repeats(60000, TIERCE_E_DOWN));
    set_failure(TIERCE_E_DOWN, true);
    ck_assert(ping_repeats(60000, TIERCE_E_DOWN));
    set_failure(0, true);
    ck_assert(!ping_repeats(60000, 0));
    hold('\0');
    ck_assert_int_eq(connector_call_wait(&lookup), 0);
    end();
}
END_TEST

static size_t pages_names;

static void count_name(void *arg, const struct tierce_plugin_name *name)
{
    struct connector_call *call = arg;
    ck_assert_int_eq(atomic_load(&call->done_count), 0);
    ck_assert_uint_ge(name->bytes, 1);
    ck_assert_uint_le(name->bytes, TIERCE__CONNECTOR_NAME_MAX);
    pages_names++;
}

START_TEST(pages)
{
    struct connector_call call;
    start(2, 3);
    world.page = 3000;
    connector_call_init(&call, TIERCE__STORE_LIST, NULL, 0);
    call.req.each = count_name;
    call.req.cursor = 7;
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    ck_assert_uint_eq(call.req.cursor, 12);
    ck_assert_uint_eq(pages_names, 3000 - 2);
    /* After a failure nothing is told. */
    world.status = TIERCE_E_DOWN;
    connector_call_init(&call, TIERCE__STORE_LIST, NULL, 0);
    call.req.each = count_name;
    ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_DOWN);
    ck_assert_uint_eq(pages_names, 3000 - 2);
    ck_assert_uint_eq(call.req.cursor, 0);
    end();
}
END_TEST

/* The link sees the prefix before each name; requests have names without it. */
START_TEST(a_prefix_is_of_the_store_alone)
{
    struct tierce__client prefixed = client;
    struct connector_call call;
    prefixed.prefix = "nnn";
    world.prefix_bytes = 3;
    world.page = TIERCE__CONNECTOR_NAME_MAX + 2; /* names of 0 to 513 bytes */
    pool = connector_pool();
    ck_assert_int_eq(
        tierce__links_create(&connector, &(struct tierce__links_opts){.client = &prefixed,
                                                                      .store = &world,
                                                                      .links = 2,
                                                                      .store_name = "test://x"}),
        0);
    connector_call_init(&call, TIERCE__STORE_DELETE, "a", 0);
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    ck_assert_str_eq(world.order, "n");
    connector_call_init(&call, TIERCE__STORE_LIST, NULL, 0);
    call.req.each = count_name;
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    ck_assert_uint_eq(pages_names, 513 - 3); /* those that are longer than the prefix */
    connector_call_init(&call, TIERCE__STORE_LOOKUP, NULL, 0);
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    ck_assert_uint_eq(call.req.found, 0);
    end();
}
END_TEST

/* ---- close ----------------------------------------------------------------------------------- */

static void *close_in_time(void *arg)
{
    (void)arg;
    return (void *)(uintptr_t)connector->ops->close(connector, tierce__deadline_in_ms(30000));
}

START_TEST(close_cancels_what_waits_and_awaits_what_runs)
{
    struct connector_call busy[2], waits, late;
    pthread_t closer;
    void *whole;
    start(2, 10);
    set_shut(true);
    occupy(&busy[0], "s");
    await_inside(1);
    occupy(&busy[1], NULL);
    await_inside(2);
    connector_call_init(&waits, TIERCE__STORE_LOOKUP, "w", 0);
    submit(&waits);
    ck_assert_int_eq(pthread_create(&closer, NULL, close_in_time, NULL), 0);
    ck_assert_int_eq(connector_call_wait(&waits), TIERCE_E_CANCELLED);
    connector_call_init(&late, TIERCE__STORE_LOOKUP, "l", 0);
    submit(&late);
    ck_assert_int_eq(connector_call_wait(&late), TIERCE_E_CLOSED);
    ck_assert_int_eq(atomic_load(&busy[0].done_count), 0);
    set_shut(false);
    ck_assert_int_eq(connector_call_wait(&busy[0]), 0);
    ck_assert_int_eq(connector_call_wait(&busy[1]), 0);
    pthread_join(closer, &whole);
    ck_assert_ptr_nonnull(whole);
    ck_assert_uint_eq(world.ended, 1);
    tierce__pool_destroy(pool);
}
END_TEST

/* A hanging call is answered at the deadline of close, and frees the rest when it returns. */
START_TEST(close_is_bounded)
{
    struct connector_call call;
    uint64_t live = tierce__alloc_live();
    start(3, 10);
    set_shut(true);
    connector_call_init(&call, TIERCE__STORE_GET, "g", 0);
    call.req.buf = connector_object(pool, 1, 5000);
    call.req.length = 5000;
    submit(&call);
    await_inside(1);
    ck_assert(!connector->ops->close(connector, tierce__deadline_in_ms(20)));
    ck_assert_int_eq(connector_call_wait(&call), TIERCE_E_CANCELLED);
    ck_assert_uint_eq(atomic_load(&call.req.buf->refs), 2);
    ck_assert_uint_eq(count_ended(), 0);
    set_shut(false);
    while (atomic_load(&call.req.buf->refs) > 1)
        sched_yield();
    tierce__buf_release(call.req.buf);
    tierce__pool_destroy(pool);
    while (count_ended() == 0 || tierce__alloc_live() != live)
        sched_yield();
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(a_link_that_cannot_be_made)
{
    world.fail_link = (uint32_t)_i;
    uint64_t live = tierce__alloc_live();
    ck_assert_int_eq(make(4, 10), -ENOMEM);
    ck_assert_uint_eq(world.ended, 1);
    ck_assert_uint_eq(world.links, 0);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

/* Each allocation fails once: the request gets the error, and nothing is lost. */
START_TEST(each_allocation_fails_once)
{
    uint64_t made = 1;
    pool = connector_pool();
    uint64_t live = tierce__alloc_live();
    world.page = 3000;
    for (uint64_t nth = 1; nth <= made; nth++) {
        struct connector_call exists, list;
        tierce__alloc_fail_nth(nth);
        world.ended = 0;
        int rc = make(3, 10);
        if (rc == 0) {
            connector_call_init(&exists, TIERCE__STORE_LOOKUP, "e", 0);
            rc = connector_call_run(connector, &exists);
            ck_assert(rc == 0 || rc == -ENOMEM);
            connector_call_init(&list, TIERCE__STORE_LIST, NULL, 0);
            list.req.each = count_name;
            int list_rc = connector_call_run(connector, &list);
            ck_assert(list_rc == 0 || list_rc == -ENOMEM);
            ck_assert(rc == 0 || list_rc == 0);
            rc = rc != 0 ? rc : list_rc;
            ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
        }
        uint64_t count = tierce__alloc_fail_nth(0);
        ck_assert(rc == -ENOMEM || (rc == 0 && count < nth));
        made = rc == 0 ? nth : nth + 1;
        ck_assert_uint_eq(world.ended, 1);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    ck_assert_uint_gt(made, 8);
    tierce__pool_destroy(pool);
}
END_TEST

CHECK_MAIN("links", .seconds = 60,
           .tests = {names_are_asked_for_in_parts, names_found_so_far_are_told, the_urgent_first,
                     one_link_takes_no_stores, nobody_waits_beside_an_idle_link,
                     what_waits_is_answered_at_its_deadline, what_hangs_is_left_behind,
                     not_too_many_wait, statuses_and_reasons, who_needed_a_connection_is_told,
                     one_failure_is_told_once, a_prefix_is_of_the_store_alone, pages,
                     close_cancels_what_waits_and_awaits_what_runs, close_is_bounded,
                     each_allocation_fails_once},
           .loops = {{a_link_that_cannot_be_made, 1, 5}})
