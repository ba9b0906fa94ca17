/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json/json_value.h"
#include "base/alloc.h"
#include "check_main.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct tierce__json_doc doc;

static void parse(const char *text)
{
    tierce__json_doc_clear(&doc);
    ck_assert_int_eq(tierce__json_parse(&doc, text, strlen(text), NULL), 0);
}

static bool is(struct tierce__text value, const char *text)
{
    return value.length == strlen(text) && memcmp(value.at, text, value.length) == 0;
}

START_TEST(paths)
{
    parse(" {\"a\":{\"b\":[1, {\"c\":-2} ,3],\"x\":7}, \"a.b\":4,\"x\":1,\"x\":2,\"\\u0064\":5} ");
    ck_assert(is(tierce__json_get(doc.value, "a.b"), "[1, {\"c\":-2} ,3]"));
    ck_assert(is(tierce__json_get(doc.value, "a.b.1"), "{\"c\":-2}"));
    ck_assert_int_eq(tierce__json_get_int(doc.value, "a.b.1.c", 9), -2);
    ck_assert_int_eq(tierce__json_get_int(doc.value, "a.b.2", 9), 3);
    ck_assert_int_eq(tierce__json_get_int(doc.value, "d", 9), 5);
    /* The last of several; a name with a point; a member of another object is none. */
    ck_assert_int_eq(tierce__json_get_int(doc.value, "x", 9), 2);
    ck_assert(is(tierce__json_find(doc.value, (struct tierce__text){"a.b", 3}), "4"));
    ck_assert_uint_eq(tierce__json_get(doc.value, "b").length, 0);
    /* Values without members. */
    ck_assert_uint_eq(tierce__json_get(doc.value, "a.b.3").length, 0);
    ck_assert_uint_eq(tierce__json_get(doc.value, "a.b.0.c").length, 0);
    ck_assert_uint_eq(tierce__json_get(doc.value, "none.b").length, 0);
    ck_assert(tierce__json_get(doc.value, "").at == doc.value.at);
    ck_assert_uint_eq(tierce__json_find(tierce__json_get(doc.value, "a.b"), doc.value).length, 0);
    tierce__json_doc_clear(&doc);
}
END_TEST

START_TEST(scalars)
{
    char text[4];
    char *copy = NULL;
    parse(
        "{\"i\":-9223372036854775808,\"d\":1.5,\"big\":9223372036854775808,\"t\":true,\"f\":false,"
        "\"n\":null,\"s\":\"a\\n\\u00e9\",\"long\":\"abcd\",\"nul\":\"a\\u0000\",\"e\":\"\"}");
    ck_assert_int_eq(tierce__json_get_int(doc.value, "i", 9), INT64_MIN);
    ck_assert_int_eq(tierce__json_get_int(doc.value, "d", 9), 9);
    ck_assert_int_eq(tierce__json_get_int(doc.value, "big", 9), 9);
    ck_assert_int_eq(tierce__json_get_int(doc.value, "s", 9), 9);
    ck_assert_int_eq(tierce__json_get_int(doc.value, "none", 9), 9);
    ck_assert(tierce__json_get_bool(doc.value, "t"));
    ck_assert(!tierce__json_get_bool(doc.value, "f"));
    ck_assert(!tierce__json_get_bool(doc.value, "none"));
    ck_assert_int_eq(tierce__json_value_kind(tierce__json_get(doc.value, "n")), 'n');
    ck_assert_int_eq(tierce__json_value_kind(tierce__json_get(doc.value, "none")), 0);
    ck_assert(!tierce__json_get_text(text, sizeof(text), doc.value, "s"));
    ck_assert_str_eq(text, "");
    ck_assert_int_eq(tierce__json_copy_text(&copy, doc.value, "s"), 0);
    ck_assert_str_eq(copy, "a\n\xc3\xa9");
    tierce__free(copy);
    ck_assert_int_eq(tierce__json_copy_text(&copy, doc.value, "e"), 0);
    ck_assert_str_eq(copy, "");
    tierce__free(copy);
    ck_assert(!tierce__json_get_text(text, sizeof(text), doc.value, "long"));
    ck_assert(!tierce__json_get_text(text, sizeof(text), doc.value, "nul"));
    ck_assert(!tierce__json_get_text(text, sizeof(text), doc.value, "i"));
    ck_assert_int_eq(tierce__json_copy_text(&copy, doc.value, "nul"), TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__json_copy_text(&copy, doc.value, "none"), TIERCE_E_FORMAT);
    tierce__json_doc_clear(&doc);
}
END_TEST

START_TEST(numbers)
{
    static const struct {
        const char *text;
        bool is_integer;
        double number; /* 0: NaN */
    } cases[] = {{"12", true, 12},
                 {"-3", true, -3},
                 {"1e3", false, 1000},
                 {"1.5", false, 1.5},
                 {"-Infinity", false, -INFINITY},
                 {"NaN", false, 0},
                 {"99999999999999999999", true, 99999999999999999999.0},
                 {"\"12\"", false, 0},
                 {"[1,2]", false, 0},
                 {"null", false, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        parse(cases[i].text);
        double number = tierce__json_get_number(doc.value, "");
        ck_assert_int_eq(tierce__json_is_integer(doc.value), cases[i].is_integer);
        ck_assert_msg(cases[i].number == 0 ? isnan(number) : number == cases[i].number, "%s",
                      cases[i].text);
        ck_assert_uint_eq(tierce__json_count(doc.value), i == 8 ? 2 : 0);
    }
    ck_assert(!tierce__json_is_integer(tierce__json_get(doc.value, "none")));
    ck_assert(isnan(tierce__json_get_number(doc.value, "none")));
    parse("{\"a\":1,\"b\":{\"c\":1},\"d\":[1,[]]}");
    ck_assert_uint_eq(tierce__json_count(doc.value), 3);
    tierce__json_doc_clear(&doc);
}
END_TEST

START_TEST(members)
{
    struct tierce__text name, value;
    struct tierce__json each;
    parse("{\"a\":[],\"b\": {\"c\":1} }");
    each = tierce__json_each(doc.value);
    ck_assert(tierce__json_next(&each, &name, &value) && is(name, "a") && is(value, "[]"));
    ck_assert(tierce__json_next(&each, &name, &value) && is(name, "b") && is(value, "{\"c\":1}"));
    ck_assert(!tierce__json_next(&each, &name, &value));
    ck_assert(!tierce__json_next(&each, &name, &value));
    /* Empty, scalar and missing values have none. */
    static const char *const without[] = {"a", "b.c", "none"};
    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++) {
        each = tierce__json_each(tierce__json_get(doc.value, without[i]));
        ck_assert(!tierce__json_next(&each, &name, &value));
    }
    tierce__json_doc_clear(&doc);
}
END_TEST

START_TEST(numbers_of_python)
{
    static const char *const texts[] = {"NaN", "Infinity", "-Infinity", "-1.5e3"};
    char text[64];
    struct tierce__json json;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        snprintf(text, sizeof(text), "{\"a\": [%s, 1]}", texts[i]);
        parse(text);
        ck_assert(is(tierce__json_get(doc.value, "a.0"), texts[i]));
        ck_assert_int_eq(tierce__json_value_kind(tierce__json_get(doc.value, "a.0")), '0');
        ck_assert_int_eq(tierce__json_get_int(doc.value, "a.0", 9), 9);
        ck_assert_int_eq(tierce__json_get_int(doc.value, "a.1", 9), 1);
        /* Elsewhere the first three are mistakes. */
        tierce__json_start(&json, doc.copy, strlen(text));
        ck_assert_int_eq(tierce__json_skip(&json), i == 3);
    }
    tierce__json_doc_clear(&doc);
}
END_TEST

START_TEST(mistakes)
{
    static const char *const texts[] = {"",    " ",       "{",        "[1,]",        "{\"a\":1}x",
                                        "01",  "{'a':1}", "\"\x01\"", "\"\\ud800\"", "nul",
                                        "1 2", "Na",      "-Inf"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const char *why = NULL;
        int rc = tierce__json_parse(&doc, texts[i], strlen(texts[i]), &why);
        ck_assert_msg(rc == TIERCE_E_FORMAT, "%s", texts[i]);
        ck_assert_ptr_nonnull(why);
    }
    ck_assert_ptr_null(doc.copy);
}
END_TEST

/* Numbers of an array are taken in runs, whose ends are every place and form. */
START_TEST(runs_of_numbers)
{
    static const struct {
        const char *item;
        bool is_valid;
    } items[] = {{"7", true},
                 {"1234567", true},
                 {"12345678", true},
                 {"0", true},
                 {"-1", true},
                 {"2.5", true},
                 {"3e2", true},
                 {"\"9\"", true},
                 {"[8]", true},
                 {"{}", true},
                 {"null", true},
                 {"07", false},
                 {"", false},
                 {"1x", false},
                 {"1 2", false},
                 {"1.", false},
                 {"99999999999999999999", true}};
    for (size_t i = 0; i < sizeof(items) / sizeof(items[0]); i++) {
        for (size_t before = 0; before < 40; before++) {
            char text[512] = "[";
            for (size_t n = 0; n < before; n++)
                snprintf(text + strlen(text), 16, "%s", n % 3 == 0 ? "65536, " : "7,");
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s , 1,23]", items[i].item);
            int rc = tierce__json_parse(&doc, text, strlen(text), NULL);
            ck_assert_msg((rc == 0) == items[i].is_valid, "%s", text);
            if (rc == 0)
                ck_assert_uint_eq(tierce__json_count(doc.value), before + 3);
            tierce__json_doc_clear(&doc);
            for (size_t bytes = 1; bytes < strlen(text); bytes++) /* a part of it is no value */
                ck_assert_int_lt(tierce__json_parse(&doc, text, bytes, NULL), 0);
        }
    }
}
END_TEST

CHECK_MAIN("json_value", .seconds = 60,
           .tests = {paths, scalars, numbers, runs_of_numbers, members, numbers_of_python,
                     mistakes})
