/* SPDX-License-Identifier: Apache-2.0 */
/* How long the steps of a call took: tests/system/manager/test_manager_api.py has the calls. */
#include "manager/api/spans.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text/line.h"
#include "check_main.h"

#include <string.h>

static struct tierce__spans spans;
static struct tierce__line line;

static void begin(void)
{
    line = (struct tierce__line){0};
    tierce__spans_begin(&spans, tierce__now_ns());
}

/* Ends the call and replaces each time by 0, so that the texts can be compared. */
static void end_and_expect(const char *trace_id, const char *wanted)
{
    static const char key[] = "\"span_time_us\":";
    char text[16384];
    size_t bytes = 0;
    tierce__spans_end(&spans, trace_id, &line);
    for (size_t i = 0; i < line.bytes;) {
        ck_assert_uint_lt(bytes + 2, sizeof(text));
        text[bytes++] = line.text[i++];
        if (bytes < strlen(key) || memcmp(text + bytes - strlen(key), key, strlen(key)) != 0)
            continue;
        ck_assert(i < line.bytes && line.text[i] >= '0' && line.text[i] <= '9');
        while (i < line.bytes && line.text[i] >= '0' && line.text[i] <= '9')
            i++;
        text[bytes++] = '0';
    }
    text[bytes] = '\0';
    ck_assert_str_eq(text, wanted);
    ck_assert(!line.failed);
    tierce__line_clear(&line);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

START_TEST(nothing_is_noted_for_other_calls)
{
    tierce__span_close(tierce__span_open("index:read"));
    begin();
    end_and_expect("t", "{\"span_time_us\":0,\"t:t\":[]}");
    ck_assert_int_eq(tierce__span_open("index:read"), -1);
}
END_TEST

START_TEST(spans_nest)
{
    begin();
    int a = tierce__span_open("a"), b = tierce__span_open("b");
    tierce__span_close(b);
    int c = tierce__span_open("c"), d = tierce__span_open("d");
    tierce__span_close(d);
    tierce__span_close(c);
    tierce__span_close(a);
    (void)tierce__span_open("e"); /* open at the end */
    end_and_expect("a \"b\"", "{\"span_time_us\":0,\"a \\\"b\\\":a \\\"b\\\"\":["
                              "{\"span_time_us\":0,\"a\":[{\"span_time_us\":0,\"b\":[]},"
                              "{\"span_time_us\":0,\"c\":[{\"span_time_us\":0,\"d\":[]}]}]},"
                              "{\"span_time_us\":0,\"e\":[]}]}");
}
END_TEST

START_TEST(spans_are_bounded)
{
    enum { MORE = 3 };
    char wanted[8192] = "{\"span_time_us\":0,\"t:t\":[";
    begin();
    for (int i = 0; i < TIERCE__SPANS_MAX + MORE; i++) {
        int span = tierce__span_open("s");
        ck_assert_int_eq(span, i < TIERCE__SPANS_MAX ? i : -1);
        tierce__span_close(span);
        if (i < TIERCE__SPANS_MAX)
            strncat(wanted,
                    i == 0 ? "{\"span_time_us\":0,\"s\":[]}" : ",{\"span_time_us\":0,\"s\":[]}",
                    sizeof(wanted) - strlen(wanted) - 1);
    }
    strncat(wanted, "],\"left_out\":3}", sizeof(wanted) - strlen(wanted) - 1);
    end_and_expect("t", wanted);
}
END_TEST

/* Without memory there is no text, and nothing leaks. */
START_TEST(each_allocation_fails_once)
{
    uint64_t nth = 0, made;
    do {
        begin();
        tierce__span_close(tierce__span_open("a"));
        tierce__alloc_fail_nth(++nth);
        tierce__spans_end(&spans, "t", &line);
        made = tierce__alloc_fail_nth(0);
        tierce__line_clear(&line);
        ck_assert_uint_eq(tierce__alloc_live(), 0);
    } while (made >= nth);
    ck_assert_uint_gt(nth, 2);
}
END_TEST

CHECK_MAIN("spans", .tests = {nothing_is_noted_for_other_calls, spans_nest, spans_are_bounded,
                              each_allocation_fails_once})
