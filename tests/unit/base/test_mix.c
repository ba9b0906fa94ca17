/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mix.h"

#include "check_main.h"

/* The first numbers of splitmix64.c for the seed 1234567. */
START_TEST(the_generator_is_splitmix64)
{
    static const uint64_t wanted[] = {6457827717110365317ULL, 3203168211198807973ULL,
                                      9817491932198370423ULL, 4593380528125082431ULL,
                                      16408922859458223821ULL};
    uint64_t state = 1234567;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
        ck_assert_uint_eq(tierce__random_next(&state), wanted[i]);
    state = 0;
    ck_assert_uint_eq(tierce__random_next(&state), 0xe220a8397b1dcdafULL);
}
END_TEST

START_TEST(mixing_is_undone)
{
    ck_assert_uint_eq(tierce__mix(0), 0);
    ck_assert_uint_eq(tierce__mix(1), 0x5692161d100b05e5ULL);
    ck_assert_uint_eq(tierce__unmix(0x5692161d100b05e5ULL), 1);
    uint64_t state = 7;
    for (int i = 0; i < 10000; i++) {
        uint64_t x = tierce__random_next(&state);
        ck_assert_uint_eq(tierce__unmix(tierce__mix(x)), x);
    }
}
END_TEST

START_TEST(spreading_multiplies_by_the_golden_ratio)
{
    ck_assert_uint_eq(tierce__spread(0), 0);
    ck_assert_uint_eq(tierce__spread(1), 0x9e3779b97f4a7c15ULL);
    ck_assert_uint_eq(tierce__spread(3), 0xdaa66d2c7ddf743fULL);
}
END_TEST

/* Of the authors' vectors for FNV-1a with 64 bits. */
START_TEST(texts_are_hashed_by_fnv_1a)
{
    ck_assert_uint_eq(tierce__hash_text(TIERCE__HASH_TEXT, ""), 0xcbf29ce484222325ULL);
    ck_assert_uint_eq(tierce__hash_text(TIERCE__HASH_TEXT, "a"), 0xaf63dc4c8601ec8cULL);
    uint64_t whole = tierce__hash_text(TIERCE__HASH_TEXT, "foobar");
    ck_assert_uint_eq(whole, 0x85944171f73967e8ULL);
    ck_assert_uint_eq(tierce__hash_text(tierce__hash_text(TIERCE__HASH_TEXT, "foo"), "bar"), whole);
}
END_TEST

CHECK_MAIN("mix", .tests = {the_generator_is_splitmix64, mixing_is_undone,
                            spreading_multiplies_by_the_golden_ratio, texts_are_hashed_by_fnv_1a})
