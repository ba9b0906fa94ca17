/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "manager/api/meter.h"

#include <pthread.h>
#include <string.h>

#define SECOND 1000000000ull

static char why[256];

static struct tierce__meter *meter_of(uint64_t requests, uint64_t keys, uint64_t bytes)
{
    struct tierce__meter *meter = NULL;
    ck_assert_int_eq(tierce__meter_create(
                         &meter, "chat", &(struct tierce__limits){{requests, keys, bytes}}, SECOND),
                     0);
    return meter;
}

static uint64_t admitted(struct tierce__meter *meter, uint64_t tries, uint64_t now_ns)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < tries; i++)
        count += tierce__meter_admit(meter, true, now_ns, why);
    return count;
}

START_TEST(requests_of_a_second)
{
    struct tierce__meter *meter = meter_of(10, 0, 0);
    ck_assert_uint_eq(admitted(meter, 100, SECOND), 10);
    ck_assert_str_eq(why,
                     "account chat exceeds its limit of 10 requests a second; retry in 100 ms");
    ck_assert_uint_eq(admitted(meter, 100, SECOND + SECOND / 20), 0); /* half a request */
    ck_assert_uint_eq(admitted(meter, 100, SECOND + SECOND / 10), 1);
    ck_assert_uint_eq(admitted(meter, 100, 100 * SECOND), 10); /* not more for a long silence */
    ck_assert_uint_eq(admitted(meter, 100, 50 * SECOND), 0);   /* a clock that was read earlier */
    ck_assert_uint_eq(meter->used[TIERCE__USE_REQUESTS], 500);
    ck_assert_uint_eq(meter->refused[TIERCE__USE_REQUESTS], 500 - 21);
    tierce__meter_drop(meter);
}
END_TEST

START_TEST(a_call_above_the_limit_is_paid_afterwards)
{
    struct tierce__meter *meter = meter_of(0, 100, 0);
    ck_assert(tierce__meter_admit(meter, true, SECOND, why));
    tierce__meter_charge(meter, 350, 0, SECOND);
    ck_assert(!tierce__meter_admit(meter, true, 2 * SECOND, why)); /* 100 - 350 + 100 */
    ck_assert_str_eq(why, "account chat exceeds its limit of 100 keys a second; retry in 1500 ms");
    ck_assert(tierce__meter_admit(meter, false, 2 * SECOND, why)); /* the end of a write */
    ck_assert(!tierce__meter_admit(meter, true, 2 * SECOND + SECOND / 2 * 3, why));
    ck_assert(tierce__meter_admit(meter, true, 2 * SECOND + SECOND / 2 * 3 + SECOND / 100, why));
    ck_assert_uint_eq(meter->used[TIERCE__USE_KEYS], 350);
    ck_assert_uint_eq(meter->refused[TIERCE__USE_KEYS], 2);
    tierce__meter_drop(meter);
}
END_TEST

START_TEST(bytes_are_a_limit_of_their_own)
{
    struct tierce__meter *meter = meter_of(0, 0, 1000);
    tierce__meter_charge(meter, 1u << 30, 1000, SECOND);
    ck_assert(!tierce__meter_admit(meter, true, SECOND, why));
    ck_assert_ptr_nonnull(strstr(why, "1000 bytes a second"));
    ck_assert(tierce__meter_admit(meter, true, 2 * SECOND, why));
    ck_assert_uint_eq(meter->refused[TIERCE__USE_BYTES], 1);
    tierce__meter_drop(meter);
}
END_TEST

START_TEST(without_limits_all_is_counted)
{
    struct tierce__meter *meter = meter_of(0, 0, 0);
    ck_assert_uint_eq(admitted(meter, 1000, SECOND), 1000);
    tierce__meter_charge(meter, 5, 6, SECOND);
    ck_assert_uint_eq(admitted(meter, 10, SECOND), 10);
    ck_assert_uint_eq(meter->used[TIERCE__USE_KEYS], 5);
    ck_assert_uint_eq(meter->used[TIERCE__USE_BYTES], 6);
    tierce__meter_drop(meter);
    ck_assert(tierce__meter_admit(NULL, true, 0, why));
    tierce__meter_charge(NULL, 1, 1, 0);
}
END_TEST

/* A changed file gives nobody a second balance. */
START_TEST(a_new_meter_takes_over_debts)
{
    struct tierce__meter *before = meter_of(0, 100, 0), *after = meter_of(0, 200, 50);
    tierce__meter_charge(before, 300, 0, SECOND);
    tierce__meter_adopt(after, before);
    ck_assert_uint_eq(after->used[TIERCE__USE_KEYS], 300);
    ck_assert(!tierce__meter_admit(after, true, SECOND, why));
    ck_assert(tierce__meter_admit(after, true, SECOND * 2 + 1000, why)); /* -200 + 200 */
    tierce__meter_drop(before);
    tierce__meter_drop(after);
}
END_TEST

START_TEST(words_of_limits)
{
    static const struct {
        const char *word, *fault;
    } faulty[] = {
        {"requests", "a word after the scope is not"},
        {"=5", "a word after the scope is not"},
        {"request=5", "a word after the scope is not"},
        {"keyss=5", "a word after the scope is not"},
        {"requests=", "not a number above 0"},
        {"requests=0", "not a number above 0"},
        {"keys=-1", "not a number above 0"},
        {"keys=1k", "not a number above 0"},
        {"keys=99999999999999999999", "not a number above 0"},
        {"bytes=0", "not a size above 0"},
        {"bytes=1Gi", "not a size above 0"},
        {"bytes=", "not a size above 0"},
    };
    struct tierce__limits limits = {{0}};
    const char *fault = NULL;
    for (size_t i = 0; i < sizeof(faulty) / sizeof(faulty[0]); i++) {
        struct tierce__limits none = {{0}};
        ck_assert_msg(!tierce__limits_parse(&none, faulty[i].word, &fault), "%s", faulty[i].word);
        ck_assert_msg(strstr(fault, faulty[i].fault) != NULL, "%s: %s", faulty[i].word, fault);
    }
    ck_assert(tierce__limits_parse(&limits, "bytes=1.5KiB", &fault));
    ck_assert(tierce__limits_parse(&limits, "requests=7", &fault));
    ck_assert(!tierce__limits_parse(&limits, "requests=7", &fault));
    ck_assert_str_eq(fault, "a limit is repeated");
    ck_assert_uint_eq(limits.of[TIERCE__USE_REQUESTS], 7);
    ck_assert_uint_eq(limits.of[TIERCE__USE_KEYS], 0);
    ck_assert_uint_eq(limits.of[TIERCE__USE_BYTES], 1536);
}
END_TEST

static struct tierce__meter *shared;
static atomic_uint passed;

static void *admit_many(void *arg)
{
    char own[256];
    for (int i = 0; i < 1000; i++) {
        if (tierce__meter_admit(shared, true, SECOND, own))
            atomic_fetch_add(&passed, 1);
        tierce__meter_charge(shared, 1, 1, SECOND);
    }
    return arg;
}

START_TEST(threads_share_one_balance)
{
    pthread_t threads[4];
    shared = meter_of(1500, 0, 0);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, admit_many, NULL), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(passed, 1500);
    ck_assert_uint_eq(shared->refused[TIERCE__USE_REQUESTS], 2500);
    tierce__meter_drop(shared);
}
END_TEST

CHECK_MAIN("meter",
           .tests = {requests_of_a_second, a_call_above_the_limit_is_paid_afterwards,
                     bytes_are_a_limit_of_their_own, without_limits_all_is_counted,
                     a_new_meter_takes_over_debts, words_of_limits, threads_share_one_balance})
