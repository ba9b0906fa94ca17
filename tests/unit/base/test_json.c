/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "json_oracle.h"
#include "test_random.h"

#include <stdio.h>

/* A copy of the text with what must be readable behind it. */
static const char *slack(const char *text)
{
    static char copy[8192];
    size_t length = strlen(text);
    ck_assert_uint_lt(length + TIERCE__JSON_SLACK, sizeof(copy));
    memcpy(copy, text, length);
    memset(copy + length, '\n', TIERCE__JSON_SLACK);
    return copy;
}

static struct tierce__json start(const char *text)
{
    struct tierce__json json;
    tierce__json_start(&json, slack(text), strlen(text));
    return json;
}

START_TEST(integers)
{
    static const struct {
        const char *text;
        bool good;
        uint64_t value;
    } cases[] = {{"0", true, 0},
                 {"7", true, 7},
                 {" 12345678 ", true, 12345678},
                 {"123456789", true, 123456789},
                 {"18446744073709551615", true, UINT64_MAX},
                 {"18446744073709551616", false, 0},
                 {"99999999999999999999", false, 0},
                 {"100000000000000000000000000", false, 0},
                 {"-1", true, UINT64_MAX},
                 {"-9223372036854775808", true, 1ULL << 63},
                 {"-9223372036854775809", false, 0},
                 {"-0", true, 0},
                 {"00", false, 0},
                 {"-01", false, 0},
                 {"+1", false, 0},
                 {"1.0", false, 0},
                 {"1e0", false, 0},
                 {"1x", false, 0},
                 {"", false, 0},
                 {"-", false, 0},
                 {"\"1\"", false, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce__json json = start(cases[i].text);
        uint64_t value = 0;
        bool good = tierce__json_id(&json, &value) && tierce__json_end(&json);
        ck_assert_msg(good == cases[i].good, "%s", cases[i].text);
        if (good)
            ck_assert_msg(value == cases[i].value, "%s", cases[i].text);
    }
}
END_TEST

/* Every length of digits, at every place of a word, against printf. */
START_TEST(digits)
{
    struct test_random random = test_random_start("digits");
    for (unsigned i = 0; i < 100000; i++) {
        uint64_t ids[8], out[8];
        char text[256] = "[";
        size_t used = 1, count = 1 + test_random_below(&random, 8), done = 0;
        for (size_t k = 0; k < count; k++) {
            ids[k] = test_random_u64(&random) >> test_random_below(&random, 64);
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s%llu", k > 0 ? "," : "",
                                     test_random_below(&random, 2) ? " " : "",
                                     (unsigned long long)ids[k]);
        }
        snprintf(text + used, sizeof(text) - used, "]");
        struct tierce__json json = start(text);
        ck_assert(tierce__json_array(&json));
        while (tierce__json_element(&json)) {
            size_t n =
                tierce__json_ids(&json, out + done, 1 + test_random_below(&random, 8 - done));
            ck_assert_msg(n > 0, "%s", text);
            done += n;
        }
        ck_assert_msg(done == count && tierce__json_end(&json), "%s", text);
        ck_assert_msg(memcmp(ids, out, count * 8) == 0, "%s", text);
    }
}
END_TEST

START_TEST(numbers_that_are_scaled)
{
    static const struct {
        const char *text;
        int scale;
        bool good;
        int64_t value;
    } cases[] = {{"61.114", 6, true, 61114000},
                 {"61.1140005", 6, true, 61114001},
                 {"61.1140004999999999999999999", 6, true, 61114000},
                 {"27482", 3, true, 27482000},
                 {"1.5e2", 0, true, 150},
                 {"1.25e-1", 3, true, 125},
                 {"0.5", 0, true, 1},
                 {"0.49999", 0, true, 0},
                 {"-2.5", 0, true, -3},
                 {"1e-99999999999999999999", 6, true, 0},
                 {"0e99999999999999999999", 6, true, 0},
                 {"1e12", 6, true, 1000000000000000000},
                 {"1e13", 6, false, 0},
                 {"9223372036854775807", 0, true, INT64_MAX},
                 {"9223372036854775808", 0, false, 0},
                 {"9223372036854775807", 3, false, 0},
                 {"1763975741.548745", 6, true, 1763975741548745},
                 {"00000.5", 6, false, 0},
                 {"1.", 6, false, 0},
                 {"1e", 6, false, 0},
                 {"1e+", 6, false, 0},
                 {".5", 6, false, 0},
                 {"Infinity", 6, false, 0},
                 {"NaN", 6, false, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce__json json = start(cases[i].text);
        int64_t value = 0;
        bool good = tierce__json_scaled(&json, &value, cases[i].scale) && tierce__json_end(&json);
        ck_assert_msg(good == cases[i].good, "%s", cases[i].text);
        ck_assert_msg(!good || value == cases[i].value, "%s: %lld", cases[i].text,
                      (long long)value);
    }
}
END_TEST

START_TEST(texts)
{
    static const struct {
        const char *text, *value;
    } cases[] = {{"\"\"", ""},
                 {"\"a\\\"b\\\\c\\/\\n\"", "a\"b\\c/\n"},
                 {"\"\\u00e4\\u20ac\\ud83d\\ude00\"", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
                 {"\"\\ud83d\"", NULL},
                 {"\"\\ude00\"", NULL},
                 {"\"\\ud83d\\u0041\"", NULL},
                 {"\"\\u12\"", NULL},
                 {"\"\\u0000\"", NULL},
                 {"\"\\x\"", NULL},
                 {"\"a", NULL},
                 {"\"a\\", NULL},
                 {"\"a\\\"", NULL},
                 {"\"a\tb\"", NULL},
                 {"\"12345678\"", "12345678"},
                 {"\"0123456789012345678\"", NULL}}; /* longer than there is room for */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce__json json = start(cases[i].text);
        char value[17];
        size_t length;
        bool good = tierce__json_text(&json, value, sizeof(value), &length);
        ck_assert_msg(good == (cases[i].value != NULL), "%s", cases[i].text);
        if (good) {
            ck_assert_str_eq(value, cases[i].value);
            ck_assert_uint_eq(length, strlen(value));
        }
    }
}
END_TEST

/* Writes a random value. Returns what is used. */
static size_t make_value(char *out, size_t size, struct test_random *random, unsigned depth)
{
    static const char *const scalars[] = {"0",
                                          "-1",
                                          "12.5",
                                          "1e3",
                                          "-0.25E-2",
                                          "18446744073709551615",
                                          "true",
                                          "false",
                                          "null",
                                          "\"\"",
                                          "\"a\\u0041\"",
                                          "\"\\ud83d\\ude00\"",
                                          "\"\\n\"",
                                          "4294967296",
                                          "99999999",
                                          "123456789012345"};
    uint32_t what = test_random_below(random, 10);
    if (size < 64 || depth == 0 || what < 4)
        return (size_t)snprintf(out, size, "%s", scalars[test_random_below(random, 16)]);
    size_t used = 0, count = test_random_below(random, 5);
    bool object = what < 7;
    out[used++] = object ? '{' : '[';
    for (size_t i = 0; i < count && size - used > 200; i++) {
        used += (size_t)snprintf(out + used, size - used, "%s%s", i > 0 ? "," : "",
                                 test_random_below(random, 2) ? " " : "");
        if (object)
            used += (size_t)snprintf(out + used, size - used, "\"k%zu\"%s:", i,
                                     test_random_below(random, 2) ? " " : "");
        used += make_value(out + used, size - used - 100, random, depth - 1);
    }
    out[used++] = object ? '}' : ']';
    return used;
}

/* Text that json-c accepts is read identically; with one byte changed it is rejected or read
 * identically. */
START_TEST(it_reads_what_json_c_reads)
{
    struct test_random random = test_random_start("json");
    unsigned accepted = 0;
    for (unsigned i = 0; i < 20000 * test_scale(); i++) {
        char text[4096 + TIERCE__JSON_SLACK];
        size_t size = make_value(text, 2000, &random, 5);
        memset(text + size, '\n', TIERCE__JSON_SLACK);
        ck_assert_msg(oracle_accepts(text, size), "%.*s", (int)size, text);
        ck_assert_msg(oracle_agrees(text, size), "%.*s", (int)size, text);
        static const char bytes[] = "{}[]\",:0159.eE+-tfn\\ u\x01\xff";
        text[test_random_below(&random, (uint32_t)size)] =
            bytes[test_random_below(&random, sizeof(bytes) - 1)];
        if (oracle_accepts(text, size)) {
            accepted++;
            ck_assert_msg(oracle_agrees(text, size), "%.*s", (int)size, text);
        }
    }
    ck_assert_uint_gt(accepted, 100);
}
END_TEST

CHECK_MAIN("json", .seconds = 50,
           .tests = {integers, digits, numbers_that_are_scaled, texts, it_reads_what_json_c_reads})
