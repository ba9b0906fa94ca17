/* SPDX-License-Identifier: Apache-2.0 */
/* The table of answers about single blocks: what is asked, told, forgotten, and when. */
#include "check_main.h"

#include "base/alloc.h"
#include "engine/jobs/block_answers.h"

#define MISS  TIERCE__BLOCK_MISS
#define HIT   TIERCE__BLOCK_HIT
#define RETRY TIERCE__BLOCK_RETRY

enum { ROOM = 4 };

static struct tierce__block_answers answers;
static const struct tierce__answers_limits limits = {
    .count_max = ROOM, .ask_ns = 100, .keep_ns = 1000, .failed_ns = 5000};

static struct tierce__block_key key(uint32_t number)
{
    struct tierce__block_key out = {.view = number % 2};
    memcpy(out.hash, &number, sizeof(number));
    return out;
}

static enum tierce__block_found find(uint32_t number, uint64_t now)
{
    struct tierce__block_key wanted = key(number);
    return tierce__answers_find(&answers, &wanted, now);
}

/* The number whose question is next; 0: none. */
static uint32_t next(uint64_t now)
{
    struct tierce__block_key taken;
    uint32_t number = 0;
    if (!tierce__answers_next(&answers, &taken, now))
        return 0;
    memcpy(&number, taken.hash, sizeof(number));
    ck_assert_uint_eq(taken.view, number % 2);
    return number;
}

static void tell(uint32_t number, bool held, uint64_t now)
{
    struct tierce__block_key asked = key(number);
    tierce__answers_tell(&answers, &asked, held, now);
}

static void note(uint32_t number, bool held, uint64_t now)
{
    struct tierce__block_key moved = key(number);
    tierce__answers_note(&answers, &moved, held, now);
}

static void setup(void)
{
    ck_assert_int_eq(tierce__answers_init(&answers, &limits), 0);
}

static void teardown(void)
{
    tierce__answers_fini(&answers);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

START_TEST(a_key_is_asked_once)
{
    ck_assert_int_eq(find(1, 0), RETRY);
    ck_assert_int_eq(find(2, 1), RETRY);
    ck_assert_int_eq(find(1, 2), RETRY);
    ck_assert_uint_eq(next(3), 1);
    ck_assert_int_eq(find(1, 4), RETRY);
    ck_assert_uint_eq(next(5), 2);
    ck_assert_uint_eq(next(6), 0);
    tell(1, true, 7);
    tell(2, false, 8);
    ck_assert_int_eq(find(1, 9), HIT);
    ck_assert_int_eq(find(2, 9), MISS);
    ck_assert_uint_eq(next(10), 0);
}
END_TEST

START_TEST(equal_hashes_of_two_views_are_two_keys)
{
    struct tierce__block_key first = key(2), second = key(2);
    second.view = 1;
    (void)tierce__answers_find(&answers, &first, 0);
    (void)tierce__answers_find(&answers, &second, 0);
    ck_assert(tierce__answers_next(&answers, &first, 1));
    ck_assert(tierce__answers_next(&answers, &second, 1));
    ck_assert_uint_eq(first.view, 0);
    ck_assert_uint_eq(second.view, 1);
    tierce__answers_tell(&answers, &second, true, 2);
    ck_assert_int_eq(tierce__answers_find(&answers, &first, 3), RETRY);
    ck_assert_int_eq(tierce__answers_find(&answers, &second, 3), HIT);
}
END_TEST

START_TEST(an_answer_grows_old)
{
    ck_assert_int_eq(find(1, 0), RETRY);
    ck_assert_uint_eq(next(0), 1);
    tell(1, true, 50);
    ck_assert_int_eq(find(1, 1049), HIT);
    ck_assert_int_eq(find(1, 1050), RETRY);
    ck_assert_uint_eq(next(1051), 1);
    tell(1, false, 1060);
    ck_assert_int_eq(find(1, 1061), MISS);
}
END_TEST

START_TEST(a_question_without_an_answer_is_a_miss)
{
    ck_assert_int_eq(find(1, 0), RETRY);
    ck_assert_uint_eq(next(1), 1);
    ck_assert_int_eq(find(1, 99), RETRY);
    ck_assert_int_eq(find(1, 100), MISS);
    ck_assert_uint_eq(next(101), 0); /* it is still being asked */
    ck_assert_int_eq(find(1, 5000), MISS);
    tell(1, true, 5001); /* late, and true */
    ck_assert_int_eq(find(1, 5002), HIT);
}
END_TEST

START_TEST(nobody_asks_what_is_overdue)
{
    ck_assert_int_eq(find(1, 0), RETRY);
    ck_assert_int_eq(find(2, 90), RETRY);
    ck_assert_uint_eq(next(100), 2);
    ck_assert_int_eq(find(1, 101), MISS);
    ck_assert_int_eq(find(1, 1100), RETRY);
    ck_assert_uint_eq(next(1101), 1);
    /* The same, read before anybody came to ask. */
    ck_assert_int_eq(find(3, 2000), RETRY);
    ck_assert_int_eq(find(3, 2100), MISS);
    ck_assert_uint_eq(next(2101), 0);
    ck_assert_int_eq(find(3, 3100), RETRY);
}
END_TEST

START_TEST(a_transfer_knows_more_than_a_question)
{
    ck_assert_int_eq(find(1, 0), RETRY);
    ck_assert_uint_eq(next(1), 1);
    note(1, true, 2); /* stored meanwhile */
    tell(1, false, 3);
    ck_assert_int_eq(find(1, 4), HIT);
    note(1, false, 5);
    ck_assert_int_eq(find(1, 5004), MISS);
    ck_assert_int_eq(find(1, 5005), RETRY);
    note(1, false, 5006); /* before anybody has asked */
    ck_assert_uint_eq(next(5007), 0);
    ck_assert_int_eq(find(1, 5008), MISS);
}
END_TEST

START_TEST(a_load_that_failed_is_remembered_without_a_question)
{
    note(1, false, 0);
    ck_assert_int_eq(find(1, 4999), MISS);
    note(2, true, 0); /* needs no place: the next lookup asks */
    ck_assert_int_eq(find(2, 1), RETRY);
}
END_TEST

START_TEST(a_full_table_gives_up_what_was_told)
{
    for (uint32_t i = 1; i <= ROOM; i++)
        ck_assert_int_eq(find(i, i), RETRY);
    ck_assert_int_eq(find(5, 10), MISS);
    ck_assert_uint_eq(answers.crowded, 1);
    for (uint32_t i = 1; i <= ROOM; i++) {
        ck_assert_uint_eq(next(11), i);
        tell(i, i != 2, 11 + i);
    }
    ck_assert_int_eq(find(5, 20), MISS); /* no answer was told */
    ck_assert_int_eq(find(1, 21), HIT);
    ck_assert_int_eq(find(5, 22), RETRY); /* in place of 1 */
    ck_assert_int_eq(find(6, 23), MISS);
    ck_assert_int_eq(find(2, 24), MISS);
    ck_assert_int_eq(find(3, 25), HIT);
    ck_assert_int_eq(find(1, 26), RETRY); /* in place of 2 */
    ck_assert_uint_eq(next(27), 5);
    ck_assert_uint_eq(next(27), 1);
    ck_assert_uint_eq(answers.crowded, 3);
}
END_TEST

START_TEST(a_full_table_gives_up_what_is_old)
{
    for (uint32_t i = 1; i <= ROOM; i++)
        ck_assert_int_eq(find(i, 0), RETRY);
    ck_assert_int_eq(find(5, 99), MISS);
    ck_assert_int_eq(find(5, 100), RETRY);
    ck_assert_uint_eq(next(101), 5); /* the others are overdue, and 1 is gone */
    tell(1, true, 102);
    ck_assert_int_eq(find(5, 103), RETRY);
}
END_TEST

START_TEST(memory_that_cannot_be_had)
{
    teardown();
    struct tierce__block_answers scarce;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(tierce__answers_init(&scarce, &limits), -ENOMEM);
        tierce__alloc_fail_nth(0);
        ck_assert_uint_eq(tierce__alloc_live(), 0);
    }
    setup();
}
END_TEST

CHECK_MAIN("block answers", .setup = setup, .teardown = teardown,
           .tests = {a_key_is_asked_once, equal_hashes_of_two_views_are_two_keys,
                     an_answer_grows_old, a_question_without_an_answer_is_a_miss,
                     nobody_asks_what_is_overdue, a_transfer_knows_more_than_a_question,
                     a_load_that_failed_is_remembered_without_a_question,
                     a_full_table_gives_up_what_was_told, a_full_table_gives_up_what_is_old,
                     memory_that_cannot_be_had})
