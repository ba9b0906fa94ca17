/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "manager/holdings/holdings.h"

#include <tierce/log.h>

#define MS     1000000ULL
#define SECOND (1000 * MS)

static struct tierce__holdings *holdings;
static uint64_t now_ns;
static uint64_t sendings[300]; /* by slot */

static void open_holdings(uint32_t senders)
{
    now_ns = SECOND;
    memset(sendings, 0, sizeof(sendings));
    ck_assert_int_eq(
        tierce__holdings_create(
            &holdings, &(struct tierce__holdings_opts){.size = sizeof(struct tierce__holdings_opts),
                                                       .workers_max = 300,
                                                       .silence_ms = 10000,
                                                       .senders_max = senders}),
        0);
}

static void close_holdings(void)
{
    tierce__holdings_destroy(holdings);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static struct tierce__directory_id join_as(const char *group, unsigned number)
{
    char name[16];
    struct tierce__directory_id id;
    snprintf(name, sizeof(name), "%u", number);
    ck_assert_int_eq(tierce__directory_join(tierce__holdings_directory(holdings),
                                            &(struct tierce__directory_worker){
                                                group, name, "", "", false, NULL, false, NULL},
                                            now_ns, &id),
                     0);
    return id;
}

static struct tierce__directory_id join(unsigned number)
{
    return join_as("g", number);
}

static enum tierce__directory_answer begin(struct tierce__directory_id id)
{
    uint32_t wait_ms;
    enum tierce__directory_answer answer =
        tierce__holdings_begin(holdings, id, ++sendings[id.slot], now_ns, &wait_ms);
    ck_assert((answer == TIERCE__DIRECTORY_LATER) == (wait_ms > 0));
    ck_assert_uint_le(wait_ms, 5000);
    return answer;
}

static enum tierce__directory_answer add(struct tierce__directory_id id, uint64_t key)
{
    struct tierce__directory_change change = {.key = {key, ~key}, .admitted = true};
    return tierce__holdings_add(holdings, id, sendings[id.slot], &change, 1, now_ns);
}

static enum tierce__directory_answer end(struct tierce__directory_id id)
{
    return tierce__holdings_end(holdings, id, sendings[id.slot], 0, now_ns);
}

static uint64_t holders(void)
{
    struct tierce__directory_stats stats;
    tierce__directory_stats(tierce__holdings_directory(holdings), &stats);
    return stats.holders;
}

START_TEST(some_send_at_once_and_others_wait)
{
    open_holdings(2);
    struct tierce__directory_id a = join(1), b = join(2), c = join(3);
    ck_assert_int_eq(begin(a), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(begin(b), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(begin(c), TIERCE__DIRECTORY_LATER);
    ck_assert_int_eq(begin(a), TIERCE__DIRECTORY_DONE); /* its place is its own */
    ck_assert_int_eq(add(c, 1), TIERCE__DIRECTORY_RESYNC);
    ck_assert_int_eq(add(a, 1), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(end(a), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(begin(c), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(begin(a), TIERCE__DIRECTORY_LATER);
    /* A worker that is not there takes no place. */
    ck_assert_int_eq(end(c), TIERCE__DIRECTORY_DONE);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(begin((struct tierce__directory_id){i + 1, i}), TIERCE__DIRECTORY_UNKNOWN);
    ck_assert_int_eq(begin(a), TIERCE__DIRECTORY_DONE);
    close_holdings();
}
END_TEST

START_TEST(a_silent_sender_loses_its_place)
{
    open_holdings(1);
    struct tierce__directory_id a = join(1), b = join(2);
    ck_assert_int_eq(begin(a), TIERCE__DIRECTORY_DONE);
    now_ns += 4 * SECOND;
    ck_assert_int_eq(add(a, 1), TIERCE__DIRECTORY_DONE); /* a sign of life */
    now_ns += 4 * SECOND;
    ck_assert_int_eq(begin(b), TIERCE__DIRECTORY_LATER);
    now_ns += 2 * SECOND;
    ck_assert_int_eq(begin(b), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(add(a, 2), TIERCE__DIRECTORY_RESYNC);
    ck_assert_int_eq(end(b), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(add(a, 2), TIERCE__DIRECTORY_DONE); /* nobody was in its way */
    close_holdings();
}
END_TEST

/* Workers that never end their sendings, but are never silent. */
static void keep_on(const struct tierce__directory_id *ids, unsigned count, uint64_t ns)
{
    for (uint64_t past = 0; past < ns; past += 2 * SECOND) {
        now_ns += 2 * SECOND;
        for (unsigned i = 0; i < count; i++)
            (void)add(ids[i], i);
    }
}

START_TEST(a_group_does_not_keep_others_out)
{
    enum { DONE = TIERCE__DIRECTORY_DONE, LATER = TIERCE__DIRECTORY_LATER };
    struct tierce__directory_id g[5], h[3];
    struct tierce__holdings_stats stats;
    open_holdings(4);
    for (unsigned i = 0; i < 5; i++) {
        g[i] = join_as("g", i);
        ck_assert_int_eq(begin(g[i]), i < 4 ? DONE : LATER);
        now_ns++;
    }
    keep_on(g, 4, 10 * SECOND);
    for (unsigned i = 0; i < 3; i++) {
        h[i] = join_as("h", i);
        ck_assert_int_eq(begin(h[i]), i < 2 ? DONE : LATER);
    }
    ck_assert_int_eq(add(g[0], 1), TIERCE__DIRECTORY_RESYNC); /* the oldest gave way */
    ck_assert_int_eq(add(g[3], 1), DONE);
    ck_assert_int_eq(begin(g[0]), LATER);
    /* In the same group others wait for a bounded time, too. */
    const struct tierce__directory_id all[] = {g[2], g[3], h[0], h[1]};
    keep_on(all, 4, 52 * SECOND);
    ck_assert_int_eq(begin(join_as("g", 9)), DONE);
    tierce__holdings_stats(holdings, &stats);
    ck_assert_uint_eq(stats.displaced, 3);
    close_holdings();
}
END_TEST

START_TEST(a_sender_that_leaves_has_no_place)
{
    open_holdings(1);
    struct tierce__directory_id a = join(1), b = join(2);
    ck_assert_int_eq(begin(a), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(begin(b), TIERCE__DIRECTORY_LATER);
    (void)tierce__directory_leave(tierce__holdings_directory(holdings), a);
    ck_assert_int_eq(begin(b), TIERCE__DIRECTORY_DONE);
    /* It joins again under its name: the place that it had is nobody's. */
    b = join(2);
    ck_assert_int_eq(begin(join(1)), TIERCE__DIRECTORY_DONE);
    close_holdings();
}
END_TEST

/* Those that are refused together do not come back together. */
START_TEST(many_wait_longer)
{
    open_holdings(2);
    uint32_t wait_ms, times[200];
    ck_assert_int_eq(begin(join(298)), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(begin(join(299)), TIERCE__DIRECTORY_DONE);
    for (unsigned i = 0; i < 200; i++) {
        ck_assert_int_eq(tierce__holdings_begin(holdings, join(i), 1, now_ns, &wait_ms),
                         TIERCE__DIRECTORY_LATER);
        times[i] = wait_ms;
        ck_assert(i == 0 || times[i] >= times[i - 1]);
    }
    ck_assert_uint_eq(times[0], 250);
    ck_assert_uint_eq(times[2], 500);
    ck_assert_uint_eq(times[199], 5000);
    now_ns += 2 * SECOND;
    ck_assert_int_eq(tierce__holdings_begin(holdings, join(1), 1, now_ns, &wait_ms),
                     TIERCE__DIRECTORY_LATER);
    ck_assert_uint_eq(wait_ms, 250);
    close_holdings();
}
END_TEST

START_TEST(all_leave_and_are_cleaned)
{
    open_holdings(0);
    struct tierce__directory_id ids[20];
    for (unsigned i = 0; i < 20; i++) {
        ids[i] = join(i);
        if (i >= 8)
            continue;
        ck_assert_int_eq(begin(ids[i]), TIERCE__DIRECTORY_DONE);
        ck_assert_int_eq(add(ids[i], i), TIERCE__DIRECTORY_DONE);
    }
    ck_assert_uint_eq(holders(), 8);
    tierce__holdings_clear(holdings);
    for (unsigned i = 0; i < 20; i++)
        ck_assert_int_eq(begin(ids[i]), TIERCE__DIRECTORY_UNKNOWN);
    for (unsigned i = 0; i < 100 && holders() > 0; i++)
        tierce__holdings_tick(holdings, now_ns);
    ck_assert_uint_eq(holders(), 0);
    /* Their places are free. */
    for (unsigned i = 0; i < 8; i++)
        ck_assert_int_eq(begin(join(i)), TIERCE__DIRECTORY_DONE);
    now_ns += 10 * SECOND;
    tierce__holdings_tick(holdings, now_ns);
    struct tierce__directory_stats stats;
    tierce__directory_stats(tierce__holdings_directory(holdings), &stats);
    ck_assert_uint_eq(stats.workers, 0);
    close_holdings();
}
END_TEST

/* One for each group and term. */
START_TEST(secrets)
{
    char a[2][TIERCE__HOLDINGS_SECRET_BYTES], b[TIERCE__HOLDINGS_SECRET_BYTES];
    open_holdings(0);
    tierce__holdings_secret(holdings, "a", a[0]);
    tierce__holdings_secret(holdings, "a", a[1]);
    tierce__holdings_secret(holdings, "b", b);
    ck_assert_str_eq(a[0], a[1]);
    ck_assert_str_ne(a[0], b);
    ck_assert_uint_eq(strspn(a[0], "0123456789abcdef"), 64);
    tierce__holdings_clear(holdings);
    tierce__holdings_secret(holdings, "a", a[1]);
    ck_assert_str_ne(a[0], a[1]);
    close_holdings();
}
END_TEST

/* A group has at most its percent of the workers. */
START_TEST(a_group_has_a_part_of_the_workers)
{
    static const struct tierce__holdings_opts each[] = {
        {.size = sizeof(*each), .workers_max = 3, .group_percent = 50},
        {.size = sizeof(*each), .workers_max = 200, .group_percent = 1}};
    struct tierce__directory_id id;
    ck_assert_int_eq(tierce__holdings_create(&holdings, &each[_i]), 0);
    (void)join(1);
    (void)join(2);
    ck_assert_int_eq(tierce__directory_join(tierce__holdings_directory(holdings),
                                            &(struct tierce__directory_worker){
                                                "g", "3", "", "", false, NULL, false, NULL},
                                            now_ns, &id),
                     TIERCE_E_FULL);
    (void)join_as("h", 3);
    close_holdings();
}
END_TEST

static unsigned warnings;
static char warning[256];

static void on_log(void *arg, enum tierce_log_level level, const char *event, const char *fields)
{
    (void)arg, (void)level;
    warnings += strcmp(event, "directory_incomplete") == 0;
    snprintf(warning, sizeof(warning), "%s", fields);
}

/* An operator hears of it, and not too often. */
START_TEST(chunks_that_are_left_out_are_logged)
{
    ck_assert_int_eq(
        tierce__holdings_create(
            &holdings, &(struct tierce__holdings_opts){.size = sizeof(struct tierce__holdings_opts),
                                                       .bytes_max = 4200,
                                                       .group_percent = 50}),
        0);
    now_ns = SECOND;
    tierce_set_log_fn(on_log, NULL, TIERCE_LOG_WARN);
    struct tierce__directory_id id = join(1);
    memset(sendings, 0, sizeof(sendings));
    ck_assert_int_eq(begin(id), TIERCE__DIRECTORY_DONE);
    tierce__holdings_tick(holdings, now_ns);
    ck_assert_uint_eq(warnings, 0);
    for (uint64_t key = 0; key < 60; key++)
        ck_assert_int_eq(add(id, key), TIERCE__DIRECTORY_DONE);
    for (unsigned i = 0; i < 10; i++)
        tierce__holdings_tick(holdings, now_ns);
    ck_assert_uint_eq(warnings, 1);
    ck_assert_ptr_nonnull(strstr(warning, "directory.memory"));
    ck_assert_int_eq(add(id, 1000), TIERCE__DIRECTORY_DONE);
    now_ns += 5 * SECOND;
    tierce__holdings_tick(holdings, now_ns);
    ck_assert_uint_eq(warnings, 1);
    now_ns += 56 * SECOND;
    tierce__holdings_tick(holdings, now_ns);
    ck_assert_uint_eq(warnings, 2);
    ck_assert_ptr_nonnull(strstr(warning, "left_out=1 "));
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    close_holdings();
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    for (uint64_t nth = 1;; nth++) {
        struct tierce__holdings_opts opts = {.size = sizeof(opts), .workers_max = 10};
        tierce__alloc_fail_nth(nth);
        int rc = tierce__holdings_create(&holdings, &opts);
        (void)tierce__alloc_fail_nth(0);
        if (rc == 0)
            break;
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_uint_eq(tierce__alloc_live(), 0);
    }
    close_holdings();
}
END_TEST

CHECK_MAIN("holdings",
           .tests = {some_send_at_once_and_others_wait, a_silent_sender_loses_its_place,
                     a_group_does_not_keep_others_out, a_sender_that_leaves_has_no_place,
                     many_wait_longer, all_leave_and_are_cleaned, secrets,
                     chunks_that_are_left_out_are_logged, each_allocation_fails_once},
           .loops = {{a_group_has_a_part_of_the_workers, 0, 2}})
