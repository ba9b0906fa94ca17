/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "optimizer/trace/trace_order.h"
#include "test_random.h"

#include <errno.h>
#include <string.h>

static struct tierce__trace_request request_of(int64_t time_us, uint64_t line)
{
    return (struct tierce__trace_request){.time_us = time_us, .line = line};
}

static void push(struct tierce__trace_order *order, int64_t time_us, uint64_t line)
{
    struct tierce__trace_request request = request_of(time_us, line);
    ck_assert_int_eq(tierce__order_push(order, &request, NULL), 0);
}

static uint64_t pop(struct tierce__trace_order *order)
{
    struct tierce__trace_request request;
    return tierce__order_pop(order, &request) ? request.line : 0;
}

START_TEST(equal_times_stay_in_their_order)
{
    struct tierce__trace_order *order;
    ck_assert_int_eq(tierce__order_create(&order, 8), 0);
    const int64_t times[] = {5, 5, 3, 3, 5, 3, 9};
    const uint64_t wanted[] = {3, 4, 6, 1, 2, 5, 7};
    for (uint64_t i = 0; i < 7; i++) {
        ck_assert(!tierce__order_full(order));
        push(order, times[i], i + 1);
    }
    push(order, 9, 8);
    ck_assert(tierce__order_full(order));
    for (unsigned i = 0; i < 7; i++)
        ck_assert_uint_eq(pop(order), wanted[i]);
    ck_assert_uint_eq(pop(order), 8);
    ck_assert_uint_eq(pop(order), 0);
    ck_assert_uint_eq(tierce__order_reordered(order), 3);
    tierce__order_destroy(order);
}
END_TEST

START_TEST(what_comes_too_late_is_refused)
{
    struct tierce__trace_order *order;
    struct tierce__trace_request late = request_of(4, 3);
    ck_assert_int_eq(tierce__order_create(&order, 1), 0);
    push(order, 5, 1);
    ck_assert_uint_eq(pop(order), 1);
    ck_assert_int_eq(tierce__order_last(order), 5);
    ck_assert_int_eq(tierce__order_push(order, &late, NULL), TIERCE_E_LIMIT);
    push(order, 5, 2);
    ck_assert_uint_eq(pop(order), 2);
    tierce__order_destroy(order);
}
END_TEST

START_TEST(a_time_may_change_while_it_waits)
{
    struct tierce__trace_order *order;
    struct tierce__order_ticket first, second;
    struct tierce__trace_request a = request_of(10, 1), b = request_of(20, 2);
    ck_assert_int_eq(tierce__order_create(&order, 8), 0);
    ck_assert_int_eq(tierce__order_push(order, &a, &first), 0);
    ck_assert_int_eq(tierce__order_push(order, &b, &second), 0);
    push(order, 15, 3);
    ck_assert_int_eq(tierce__order_retime(order, first, 30), 0);
    ck_assert_int_eq(tierce__order_retime(order, first, 1), TIERCE_E_MISS);
    push(order, 30, 4);
    ck_assert_uint_eq(pop(order), 3);
    ck_assert_int_eq(tierce__order_retime(order, second, 14), TIERCE_E_LIMIT);
    ck_assert(tierce__order_waits(order, second));
    ck_assert_uint_eq(pop(order), 2);
    ck_assert(!tierce__order_waits(order, second));
    ck_assert_int_eq(tierce__order_retime(order, second, 40), TIERCE_E_MISS);
    ck_assert_int_eq(tierce__order_retime(order, (struct tierce__order_ticket){0}, 40),
                     TIERCE_E_MISS);
    ck_assert_uint_eq(pop(order), 1);
    ck_assert_uint_eq(pop(order), 4);
    ck_assert_uint_eq(pop(order), 0);
    tierce__order_destroy(order);
}
END_TEST

START_TEST(a_content_may_change_while_it_waits)
{
    enum { LONG = 100000, ROUNDS = 50 };
    static uint64_t blocks[LONG];
    struct tierce__trace_order *order;
    struct tierce__trace_request request, other = {.time_us = 99, .line = 99, .blocks = blocks};
    ck_assert_int_eq(tierce__order_create(&order, 8), 0);
    push(order, 10, 1);
    struct tierce__order_ticket ticket = tierce__order_pushed(order);
    push(order, 10, 2);
    push(order, 5, 3);
    ck_assert_uint_eq(tierce__order_look(order, ticket)->line, 1);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        other.count = i % 3 * LONG / 2;
        blocks[0] = i;
        ck_assert_int_eq(tierce__order_replace(order, ticket, &other), 0);
        ck_assert_uint_eq(tierce__order_look(order, ticket)->count, other.count);
        ck_assert(!tierce__order_full(order)); /* what was there before is given back */
    }
    blocks[0] = 0;
    ck_assert_uint_eq(pop(order), 3);
    ck_assert(tierce__order_pop(order, &request));
    ck_assert_uint_eq(request.line, 1);
    ck_assert_int_eq(request.time_us, 10);
    ck_assert_uint_eq(request.count, LONG / 2);
    ck_assert_uint_eq(request.blocks[0], ROUNDS - 1);
    ck_assert_ptr_null(tierce__order_look(order, ticket));
    ck_assert_int_eq(tierce__order_replace(order, ticket, &other), TIERCE_E_MISS);
    ck_assert_uint_eq(pop(order), 2);
    tierce__order_destroy(order);
}
END_TEST

START_TEST(arrays_are_copied)
{
    struct tierce__trace_order *order;
    struct tierce__trace_request out;
    static uint64_t blocks[100000], bytes[100000];
    static uint8_t internal[100000];
    ck_assert_int_eq(tierce__order_create(&order, 64), 0);
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t count = round % 7 == 0 ? 100000 : round * 13 % 50;
        for (uint32_t i = 0; i < count; i++) {
            blocks[i] = round * 1000000ULL + i;
            bytes[i] = blocks[i] + 1;
            internal[i] = (uint8_t)(i & 1);
        }
        struct tierce__trace_request request = {.time_us = round,
                                                .count = count,
                                                .blocks = blocks,
                                                .bytes = round % 3 == 0 ? bytes : NULL,
                                                .internal = round % 2 == 0 ? internal : NULL};
        ck_assert_int_eq(tierce__order_push(order, &request, NULL), 0);
        memset(blocks, 0xff, count * 8);
        if (round < 20)
            continue;
        ck_assert(tierce__order_pop(order, &out));
        uint32_t n = (uint32_t)out.time_us;
        ck_assert_uint_eq(n, round - 20);
        ck_assert_int_eq(out.bytes != NULL, n % 3 == 0 && out.count > 0);
        ck_assert_int_eq(out.internal != NULL, n % 2 == 0 && out.count > 0);
        uint32_t wrong = 0;
        for (uint32_t i = 0; i < out.count; i++) {
            wrong += out.blocks[i] != n * 1000000ULL + i;
            wrong += out.bytes != NULL && out.bytes[i] != out.blocks[i] + 1;
            wrong += out.internal != NULL && out.internal[i] != (i & 1);
        }
        ck_assert_uint_eq(wrong, 0);
    }
    tierce__order_destroy(order);
}
END_TEST

enum { WAITING_MAX = 64 };

/* Against a list that is searched: random times, changes of time and windows. */
START_TEST(it_does_what_a_list_does)
{
    struct test_random random = test_random_start("order");
    for (unsigned round = 0; round < 200 * test_scale(); round++) {
        struct {
            int64_t time_us;
            uint64_t sequence, line;
            struct tierce__order_ticket ticket;
        } list[WAITING_MAX];
        uint32_t count = 0, window = 1 + test_random_below(&random, WAITING_MAX);
        uint32_t spread = 1 + test_random_below(&random, 200), step = test_random_below(&random, 3);
        uint64_t sequence = 0, line = 0;
        int64_t now = 0, last = INT64_MIN;
        struct tierce__trace_order *order;
        ck_assert_int_eq(tierce__order_create(&order, window), 0);
        for (unsigned i = 0; i < 500; i++) {
            uint32_t what = test_random_below(&random, 10);
            int64_t time = now + test_random_below(&random, spread);
            now += step;
            if (what < 5 && count < window) {
                struct tierce__order_ticket ticket = {0};
                struct tierce__trace_request request = request_of(time, ++line);
                int rc = tierce__order_push(order, &request, what < 2 ? &ticket : NULL);
                ck_assert_int_eq(rc, time < last ? TIERCE_E_LIMIT : 0);
                if (rc == 0) {
                    list[count].time_us = time;
                    list[count].sequence = ++sequence;
                    list[count].ticket = ticket;
                    list[count++].line = line;
                }
            } else if (what < 7 && count > 0) {
                uint32_t at = test_random_below(&random, count);
                int rc = tierce__order_retime(order, list[at].ticket, time);
                bool named = list[at].ticket.sequence != 0;
                ck_assert_int_eq(rc, !named ? TIERCE_E_MISS : time < last ? TIERCE_E_LIMIT : 0);
                if (rc == 0) {
                    list[at].time_us = time;
                    list[at].sequence = ++sequence;
                    list[at].ticket.sequence = 0;
                }
            } else if (what >= 7) {
                uint32_t best = 0;
                for (uint32_t k = 1; k < count; k++) {
                    if (list[k].time_us < list[best].time_us ||
                        (list[k].time_us == list[best].time_us &&
                         list[k].sequence < list[best].sequence))
                        best = k;
                }
                ck_assert_uint_eq(pop(order), count > 0 ? list[best].line : 0);
                if (count > 0) {
                    last = list[best].time_us;
                    list[best] = list[--count];
                }
            }
            ck_assert_int_eq(tierce__order_full(order), count >= window);
        }
        tierce__order_destroy(order);
    }
}
END_TEST

/* Requests that wait long while others pass take no memory from those. */
START_TEST(memory_is_used_again)
{
    struct tierce__trace_order *order;
    uint64_t blocks[1000] = {0};
    ck_assert_int_eq(tierce__order_create(&order, 100), 0);
    for (int64_t i = 0; i < 200; i++) {
        struct tierce__trace_request request = {.time_us = i, .count = 1000, .blocks = blocks};
        ck_assert_int_eq(tierce__order_push(order, &request, NULL), 0);
        if (i >= 50)
            (void)pop(order);
    }
    uint64_t live = tierce__alloc_live();
    for (int64_t i = 200; i < 20000; i++) {
        struct tierce__order_ticket ticket;
        struct tierce__trace_request request = {
            .time_us = i + 1000000, .count = 1000, .blocks = blocks};
        ck_assert_int_eq(tierce__order_push(order, &request, &ticket), 0);
        ck_assert_int_eq(tierce__order_retime(order, ticket, i), 0);
        (void)pop(order);
    }
    ck_assert_uint_le(tierce__alloc_live(), live + 4);
    tierce__order_destroy(order);
}
END_TEST

CHECK_MAIN("trace_order", .seconds = 50,
           .tests = {equal_times_stay_in_their_order, what_comes_too_late_is_refused,
                     a_time_may_change_while_it_waits, a_content_may_change_while_it_waits,
                     arrays_are_copied, it_does_what_a_list_does, memory_is_used_again})
