/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/blend/segments.h"
#include "test_random.h"

#include <string.h>

/* Segments between separators, marks of clients, and plans, compared with a token by token model.
 */

enum { TOKENS_MAX = 60, SEGMENTS_MAX = TOKENS_MAX };

static int64_t split(struct tierce__segment *out, const char *tokens, const char *separator)
{
    int32_t numbers[TOKENS_MAX], of_separator[TOKENS_MAX];
    for (size_t i = 0; i < strlen(tokens); i++)
        numbers[i] = tokens[i];
    for (size_t i = 0; i < strlen(separator); i++)
        of_separator[i] = separator[i];
    return tierce__segments_split(out, SEGMENTS_MAX, numbers, strlen(tokens), of_separator,
                                  strlen(separator));
}

START_TEST(test_split)
{
    static const struct {
        const char *tokens, *separator, *segments; /* "START-END,..." */
    } cases[] = {
        {"sys##one##two##ask", "##", "5-8,10-13,"},
        {"no separators", "##", ""},
        {"only#one", "#", ""},
        {"##first##", "##", "2-7,"},
        {"a##b#c##d", "##", "3-6,"},
        {"a####b##c", "##", "5-6,"}, /* nothing between adjacent separators */
        {"a###b##c", "##", "3-5,"},  /* found from the left: the third # belongs to the segment */
        {"", "##", ""},
        {"#", "##", ""},
        {"##", "##", ""},
        {"ababab", "abab", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce__segment segments[SEGMENTS_MAX];
        char text[256] = "";
        int64_t count = split(segments, cases[i].tokens, cases[i].separator);
        for (int64_t s = 0; s < count; s++)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%u-%u,", segments[s].start,
                     segments[s].end);
        ck_assert_str_eq(text, cases[i].segments);
    }
}
END_TEST

START_TEST(test_split_limits)
{
    struct tierce__segment segments[2];
    const int32_t tokens[] = {1, 9, 2, 9, 3, 9, 4, 9}, separator = 9;
    ck_assert_int_eq(tierce__segments_split(segments, 2, tokens, 8, &separator, 0),
                     TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__segments_split(segments, 2, tokens, 8, &separator, 1), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__segments_split(segments, 2, tokens, 7, &separator, 1), 2);
}
END_TEST

/* Segments, separators between them, and the rest make up the prompt. */
START_TEST(test_split_random)
{
    struct test_random random = test_random_start("test_split_random");
    for (unsigned round = 0; round < 20000 * test_scale(); round++) {
        int32_t tokens[TOKENS_MAX], separator[3] = {0, 0, 0};
        size_t count = test_random_below(&random, TOKENS_MAX + 1);
        size_t length = 1 + test_random_below(&random, 3);
        for (size_t i = 0; i < count; i++)
            tokens[i] = (int32_t)test_random_below(&random, 3);
        for (size_t i = 0; i < length; i++)
            separator[i] = (int32_t)test_random_below(&random, 3);
        struct tierce__segment segments[SEGMENTS_MAX];
        int64_t found =
            tierce__segments_split(segments, SEGMENTS_MAX, tokens, count, separator, length);
        ck_assert_int_ge(found, 0);
        ck_assert_uint_eq(tierce__segments_check(segments, (size_t)found, count), (size_t)found);
        for (int64_t s = 0; s < found; s++) {
            size_t start = segments[s].start, end = segments[s].end;
            ck_assert(start >= length && end + length <= count);
            ck_assert_mem_eq(tokens + start - length, separator, length * sizeof(*tokens));
            ck_assert_mem_eq(tokens + end, separator, length * sizeof(*tokens));
            for (size_t i = start; i + length <= end; i++)
                ck_assert(memcmp(tokens + i, separator, length * sizeof(*tokens)) != 0);
        }
    }
}
END_TEST

START_TEST(test_marks)
{
    const struct tierce__segment valid[] = {{0, 2}, {2, 5}, {7, 9}};
    ck_assert_uint_eq(tierce__segments_check(valid, 3, 9), 3);
    ck_assert_uint_eq(tierce__segments_check(valid, 3, 8), 2);
    ck_assert_uint_eq(tierce__segments_check(NULL, 0, 0), 0);
    const struct tierce__segment invalid[][2] = {
        {{1, 3}, {2, 5}}, {{1, 3}, {3, 3}}, {{1, 3}, {5, 4}}, {{4, 6}, {1, 3}}};
    for (size_t i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++)
        ck_assert_uint_eq(tierce__segments_check(invalid[i], 2, 9), 1);
}
END_TEST

/* ---- plans ------------------------------------------------------------------------------------
 */

struct case_of_plan {
    size_t tokens, prefix, count;
    uint32_t lead;
    struct tierce__segment segments[SEGMENTS_MAX];
    uint32_t found[SEGMENTS_MAX];
};

static enum tierce__blend_source source_of(const struct case_of_plan *c, size_t token,
                                           size_t *segment)
{
    if (token + 1 == c->tokens)
        return TIERCE__BLEND_FRESH;
    if (token < c->prefix)
        return TIERCE__BLEND_PREFIX;
    for (*segment = 0; *segment < c->count; ++*segment) {
        const struct tierce__segment *s = &c->segments[*segment];
        if (token >= s->start && token < s->start + c->found[*segment])
            return TIERCE__BLEND_REUSED;
    }
    return TIERCE__BLEND_FRESH;
}

static void check_plan(const struct case_of_plan *c)
{
    struct tierce__blend_span spans[TIERCE__BLEND_SPANS(SEGMENTS_MAX)];
    size_t count =
        tierce__blend_plan(spans, c->tokens, c->prefix, c->lead, c->segments, c->found, c->count);
    ck_assert_uint_le(count, TIERCE__BLEND_SPANS(c->count));
    size_t token = 0;
    for (size_t i = 0; i < count; i++) {
        const struct tierce__blend_span *span = &spans[i];
        ck_assert(span->start == token && span->end > span->start);
        ck_assert(i == 0 || span->source == TIERCE__BLEND_REUSED ||
                  span->source != spans[i - 1].source);
        for (; token < span->end; token++) {
            size_t segment = 0;
            ck_assert_int_eq(source_of(c, token, &segment), span->source);
            if (span->source != TIERCE__BLEND_REUSED)
                continue;
            ck_assert_uint_eq(span->segment, segment);
            int64_t computed_at = c->lead + (int64_t)token - c->segments[segment].start;
            ck_assert_int_eq(span->at + (int64_t)(token - span->start), computed_at);
            ck_assert_int_eq((int64_t)token - span->delta, computed_at);
        }
    }
    ck_assert_uint_eq(token, c->tokens);
}

START_TEST(test_plan_random)
{
    struct test_random random = test_random_start("test_plan_random");
    for (unsigned round = 0; round < 20000 * test_scale(); round++) {
        struct case_of_plan c = {.tokens = test_random_below(&random, TOKENS_MAX + 1)};
        c.prefix = test_random_below(&random, 2) ? test_random_below(&random, TOKENS_MAX + 10) : 0;
        c.lead = test_random_below(&random, 2) * test_random_below(&random, 100);
        for (size_t at = test_random_below(&random, 8); at < c.tokens; c.count++) {
            size_t length = 1 + test_random_below(&random, 12), rest = c.tokens - at;
            length = length < rest ? length : rest;
            c.segments[c.count] = (struct tierce__segment){(uint32_t)at, (uint32_t)(at + length)};
            c.found[c.count] = test_random_below(&random, (uint32_t)length + 1);
            at += length + test_random_below(&random, 4);
        }
        check_plan(&c);
    }
}
END_TEST

/* A prompt of which the prefix is stored, and the second document: both are used. */
START_TEST(test_plan_with_a_prefix)
{
    struct case_of_plan c = {.tokens = 50,
                             .prefix = 16,
                             .count = 2,
                             .lead = 4,
                             .segments = {{6, 20}, {22, 44}},
                             .found = {14, 16}};
    struct tierce__blend_span spans[TIERCE__BLEND_SPANS(2)];
    check_plan(&c);
    ck_assert_uint_eq(tierce__blend_plan(spans, 50, 16, 4, c.segments, c.found, 2), 5);
    ck_assert(spans[0].source == TIERCE__BLEND_PREFIX && spans[0].end == 16);
    ck_assert(spans[1].source == TIERCE__BLEND_REUSED && spans[1].end == 20 && spans[1].at == 14 &&
              spans[1].delta == 2);
    ck_assert(spans[2].source == TIERCE__BLEND_FRESH && spans[2].end == 22);
    ck_assert(spans[3].source == TIERCE__BLEND_REUSED && spans[3].end == 38 && spans[3].at == 4);
    ck_assert(spans[4].source == TIERCE__BLEND_FRESH && spans[4].end == 50);
}
END_TEST

static Suite *segments_suite(void)
{
    Suite *suite = suite_create("segments");
    TCase *tcase = tcase_create("segments");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, test_split);
    tcase_add_test(tcase, test_split_limits);
    tcase_add_test(tcase, test_split_random);
    tcase_add_test(tcase, test_marks);
    tcase_add_test(tcase, test_plan_random);
    tcase_add_test(tcase, test_plan_with_a_prefix);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(segments_suite());
}
