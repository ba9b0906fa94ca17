/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json/json_write.h"
#include "check_main.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Quotes and controls; DEL; two, three and four bytes; line ends of Unicode; HTML; invalid UTF-8: a
 * lone byte, an overlong form, a surrogate, a cut form. */
static const char text[] = "a\"\\/\x01\n\x1f\x7f\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xe2\x80\xa8"
                           "</b>&\xff\xc0\xaf\xed\xa0\x80\xe2\x82";

static void write_all(struct tierce__json_write *json)
{
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "a<", text);
    tierce__json_write_text(json, "none", NULL);
    tierce__json_write_open(json, "numbers", '[');
    tierce__json_write_count(json, NULL, UINT64_MAX);
    tierce__json_write_signed(json, NULL, INT64_MIN);
    tierce__json_write_number(json, NULL, 1.0 / 3);
    tierce__json_write_number(json, NULL, 2);
    tierce__json_write_number(json, NULL, NAN);
    tierce__json_write_number(json, NULL, -INFINITY);
    tierce__json_write_close(json, ']');
    tierce__json_write_open(json, "empty", '{');
    tierce__json_write_close(json, '}');
    tierce__json_write_bool(json, "yes", true);
    tierce__json_write_bool(json, "no", false);
    tierce__json_write_text(json, "", "");
    tierce__json_write_close(json, '}');
}

#define NUMBERS                                                                                    \
    "\"none\":null,\"numbers\":[18446744073709551615,-9223372036854775808,0.333333333,2,null,"     \
    "null],\"empty\":{},\"yes\":true,\"no\":false,\"\":\"\"}"

START_TEST(a_line)
{
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    write_all(&json);
    tierce__json_write_name(&json, NULL);
    tierce__line_put_bytes(&line, "7", 2);
    ck_assert(!line.failed);
    ck_assert_str_eq(line.text,
                     "{\"a<\":\"a\\\"\\\\/\\u0001\\u000a\\u001f\x7f\xc3\xa9\xe2\x82\xac"
                     "\xf0\x9f\x98\x80\xe2\x80\xa8</b>&\xff\xc0\xaf\xed\xa0\x80\xe2\x82\"," NUMBERS
                     ",7");
    tierce__line_clear(&line);
}
END_TEST

START_TEST(html_in_a_file)
{
    char *out = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&out, &bytes);
    ck_assert_ptr_nonnull(file);
    struct tierce__json_write json = {.file = file, .is_html = true};
    write_all(&json);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_str_eq(
        out, "{\"a\\u003c\":\"a\\u0022\\u005c/\\u0001\\u000a\\u001f\\u007f\xc3\xa9\xe2\x82\xac"
             "\xf0\x9f\x98\x80\\u2028\\u003c/b\\u003e\\u0026\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd"
             "\\ufffd\\ufffd\\ufffd\"," NUMBERS);
    free(out); /* open_memstream's */
}
END_TEST

START_TEST(short_escapes)
{
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line, .is_short = true};
    tierce__json_write_text(&json, "\n", "\b\f\r\t\v\"\\/\x1f");
    tierce__line_put_bytes(&line, "", 1);
    ck_assert_str_eq(line.text, "\"\\n\":\"\\b\\f\\r\\t\\u000b\\\"\\\\/\\u001f\"");
    tierce__line_clear(&line);
}
END_TEST

START_TEST(a_line_with_a_limit)
{
    struct tierce__line line = {.bytes_max = 4};
    tierce__line_put(&line, "abcd");
    ck_assert(!line.failed);
    tierce__line_put(&line, "");
    ck_assert(!line.failed);
    tierce__line_put(&line, "e");
    ck_assert(line.failed && line.is_full);
    ck_assert_uint_eq(line.bytes, 4);
    tierce__line_clear(&line);
}
END_TEST

/* One text in each layout: white space goes, texts and numbers stay as they are. */
START_TEST(values_of_a_text)
{
    static const char value[] =
        " { \"a\" : [ 1.50 , { } , [],\t\"x:\\\",}\" ],\n\"\\u0062,\":null }";
    static const struct {
        enum tierce__json_layout layout;
        const char *text;
    } wanted[] = {
        {TIERCE__JSON_COMPACT,
         "{\"v\":{\"a\":[1.50,{},[],\"x:\\\",}\"],\"\\u0062,\":null},\"w\":-1e3}"},
        {TIERCE__JSON_WIDE, "{\"v\": {\"a\": [1.50, {}, [], \"x:\\\",}\"], \"\\u0062,\": null}, "
                            "\"w\": -1e3}"},
        {TIERCE__JSON_LINES, "{\n  \"v\":{\n    \"a\":[\n      1.50,\n      {\n      },\n      [\n"
                             "      ],\n      \"x:\\\",}\"\n    ],\n    \"\\u0062,\":null\n  },\n"
                             "  \"w\":-1e3\n}"},
        {TIERCE__JSON_SPACED,
         "{\n  \"v\": {\n    \"a\": [\n      1.50,\n      {\n      },\n      [\n"
         "      ],\n      \"x:\\\",}\"\n    ],\n    \"\\u0062,\": null\n  },\n"
         "  \"w\": -1e3\n}"},
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        struct tierce__line line = {0};
        struct tierce__json_write json = {.line = &line, .layout = wanted[i].layout};
        tierce__json_write_open(&json, NULL, '{');
        tierce__json_write_value(&json, "v", (struct tierce__text){value, sizeof(value) - 1});
        tierce__json_write_value(&json, "w", (struct tierce__text){"-1e3", 4});
        tierce__json_write_close(&json, '}');
        tierce__line_put_bytes(&line, "", 1);
        ck_assert(!line.failed);
        ck_assert_str_eq(line.text, wanted[i].text);
        tierce__line_clear(&line);
    }
}
END_TEST

CHECK_MAIN("json_write",
           .tests = {a_line, html_in_a_file, short_escapes, a_line_with_a_limit, values_of_a_text})
