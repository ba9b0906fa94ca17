/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/blend/select.h"
#include "test_random.h"

#include <math.h>
#include <string.h>

/* The selection equals that of a sorted list. */

enum { COUNT_MAX = 300 };

struct scored {
    uint32_t token;
    size_t place;
    float distance;
};

/* Greatest first; a NaN before all numbers; earlier ones first. */
static int by_distance(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (isnan(x->distance) != isnan(y->distance))
        return isnan(x->distance) ? -1 : 1;
    if (!isnan(x->distance) && x->distance != y->distance)
        return x->distance > y->distance ? -1 : 1;
    return x->place < y->place ? -1 : 1;
}

static int by_place(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    return x->place < y->place ? -1 : 1;
}

static void check_selection(const float *distances, size_t count, size_t keep)
{
    struct scored sorted[COUNT_MAX];
    uint32_t tokens[COUNT_MAX];
    for (size_t i = 0; i < count; i++) {
        tokens[i] = (uint32_t)(7 * i + 3);
        sorted[i] = (struct scored){tokens[i], i, distances[i]};
    }
    size_t expected = keep < count ? keep : count;
    qsort(sorted, count, sizeof(*sorted), by_distance);
    qsort(sorted, expected, sizeof(*sorted), by_place);
    ck_assert_uint_eq(tierce__blend_select(tokens, distances, count, keep), expected);
    for (size_t i = 0; i < expected; i++)
        ck_assert_uint_eq(tokens[i], sorted[i].token);
}

static float random_distance(struct test_random *random, unsigned kind)
{
    static const float special[] = {0, INFINITY, NAN, 0x1p-149f, 0x1.fffffep127f};
    if (kind == 0 || test_random_below(random, 10) == 0)
        return special[test_random_below(random, 5)];
    if (kind == 1) /* many that are equal */
        return (float)test_random_below(random, 4);
    uint32_t bits = (uint32_t)test_random_u64(random) & 0x7fffffffu;
    float distance;
    memcpy(&distance, &bits, sizeof(distance));
    return kind == 2 ? distance : fabsf(distance) * 0x1p-120f;
}

START_TEST(test_random_selections)
{
    struct test_random random = test_random_start("test_random_selections");
    for (unsigned round = 0; round < 4000 * test_scale(); round++) {
        float distances[COUNT_MAX];
        size_t count = test_random_below(&random, COUNT_MAX + 1);
        for (size_t i = 0; i < count; i++)
            distances[i] = random_distance(&random, round % 4);
        check_selection(distances, count, test_random_below(&random, (uint32_t)count + 5));
    }
}
END_TEST

START_TEST(test_small_selections)
{
    const float distances[] = {1, 5, 5, -0.0f, NAN, 5, INFINITY};
    for (size_t keep = 0; keep <= 8; keep++)
        check_selection(distances, 7, keep);
    ck_assert_uint_eq(tierce__blend_select(NULL, NULL, 0, 0), 0);
    ck_assert_uint_eq(tierce__blend_select(NULL, NULL, 0, 3), 0);
}
END_TEST

START_TEST(test_share)
{
    ck_assert_uint_eq(tierce__blend_keep(1000, 0.15), 150);
    ck_assert_uint_eq(tierce__blend_keep(1000, 0), 0);
    ck_assert_uint_eq(tierce__blend_keep(1000, 1), 1000);
    ck_assert_uint_eq(tierce__blend_keep(3, 0.5), 2);
    ck_assert_uint_eq(tierce__blend_keep(0, 0.5), 0);
    ck_assert_uint_eq(tierce__blend_keep(7, 1e-9), 1);
}
END_TEST

static Suite *select_suite(void)
{
    Suite *suite = suite_create("blend_select");
    TCase *tcase = tcase_create("blend_select");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, test_random_selections);
    tcase_add_test(tcase, test_small_selections);
    tcase_add_test(tcase, test_share);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(select_suite());
}
