/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of samples behind the manager's web page. */
#include "check_main.h"
#include "manager/observe/history.h"

#include <pthread.h>
#include <string.h>

enum { SAMPLES_MAX = 4, GROUPS_MAX = 2, SEEN_MAX = 16 };

static struct tierce__history *history;

static struct {
    struct tierce__history_sample samples[SEEN_MAX];
    struct tierce__history_group groups[SEEN_MAX][GROUPS_MAX];
    size_t count;
} seen;

static void set_up(void)
{
    memset(&seen, 0, sizeof(seen));
    ck_assert_int_eq(tierce__history_create(&history, SAMPLES_MAX, GROUPS_MAX), 0);
}

static void tear_down(void)
{
    tierce__history_destroy(history);
}

static void see(void *arg, const struct tierce__history_sample *sample)
{
    (void)arg;
    ck_assert_uint_lt(seen.count, SEEN_MAX);
    ck_assert_uint_le(sample->group_count, GROUPS_MAX);
    for (size_t i = 0; i < sample->group_count; i++)
        seen.groups[seen.count][i] = sample->groups[i];
    seen.samples[seen.count++] = *sample;
}

static uint64_t look(uint64_t after)
{
    memset(&seen, 0, sizeof(seen));
    return tierce__history_each(history, after, see, NULL);
}

static void add(uint64_t n, size_t group_count)
{
    struct tierce__history_group groups[SEEN_MAX];
    for (size_t i = 0; i < group_count; i++)
        groups[i] = (struct tierce__history_group){.number = (uint16_t)(i + 1),
                                                   .serving_bytes = 100 * n + i,
                                                   .writing_bytes = n,
                                                   .deleting_bytes = i};
    struct tierce__history_sample sample = {.at_us = (int64_t)n * 1000,
                                            .calls = 2 * n,
                                            .found_keys = 3 * n,
                                            .groups = groups,
                                            .group_count = group_count};
    ck_assert_int_eq(tierce__history_add(history, &sample), 0);
    memset(groups, 0xff, sizeof(groups)); /* it has copies */
}

START_TEST(test_nothing_is_there_at_first)
{
    ck_assert_uint_eq(look(0), 0);
    ck_assert_uint_eq(look(7), 0);
    ck_assert_uint_eq(seen.count, 0);
}
END_TEST

START_TEST(test_samples_come_in_order)
{
    add(1, 1);
    add(2, 2);
    add(3, 0);
    ck_assert_uint_eq(look(0), 3);
    ck_assert_uint_eq(seen.count, 3);
    for (uint64_t n = 1; n <= 3; n++) {
        const struct tierce__history_sample *sample = &seen.samples[n - 1];
        ck_assert_uint_eq(sample->sequence, n);
        ck_assert_int_eq(sample->at_us, (int64_t)n * 1000);
        ck_assert_uint_eq(sample->calls, 2 * n);
        ck_assert_uint_eq(sample->found_keys, 3 * n);
    }
    ck_assert_uint_eq(seen.samples[0].group_count, 1);
    ck_assert_uint_eq(seen.samples[1].group_count, 2);
    ck_assert_uint_eq(seen.samples[2].group_count, 0);
    ck_assert_uint_eq(seen.groups[0][0].serving_bytes, 100);
    ck_assert_uint_eq(seen.groups[1][1].serving_bytes, 201);
    ck_assert_uint_eq(seen.groups[1][1].number, 2);
}
END_TEST

START_TEST(test_only_what_is_new_is_told)
{
    for (uint64_t n = 1; n <= 3; n++)
        add(n, 1);
    ck_assert_uint_eq(look(2), 3);
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_uint_eq(seen.samples[0].sequence, 3);
    ck_assert_uint_eq(look(3), 3);
    ck_assert_uint_eq(seen.count, 0);
    ck_assert_uint_eq(look(UINT64_MAX), 3);
    ck_assert_uint_eq(seen.count, 0);
}
END_TEST

START_TEST(test_the_oldest_are_forgotten)
{
    for (uint64_t n = 1; n <= 2 * SAMPLES_MAX + 1; n++) {
        uint64_t oldest = n > SAMPLES_MAX ? n - SAMPLES_MAX + 1 : 1;
        add(n, 1);
        ck_assert_uint_eq(look(0), n);
        ck_assert_uint_eq(seen.count, n - oldest + 1);
        for (size_t i = 0; i < seen.count; i++) {
            ck_assert_uint_eq(seen.samples[i].sequence, oldest + i);
            ck_assert_uint_eq(seen.groups[i][0].serving_bytes, 100 * (oldest + i));
        }
    }
}
END_TEST

START_TEST(test_groups_are_bounded)
{
    add(1, GROUPS_MAX + 3);
    ck_assert_uint_eq(look(0), 1);
    ck_assert_uint_eq(seen.samples[0].group_count, GROUPS_MAX);
    ck_assert_uint_eq(seen.groups[0][1].number, 2);
}
END_TEST

static void check_whole(void *arg, const struct tierce__history_sample *sample)
{
    uint64_t *before = arg;
    ck_assert_uint_gt(sample->sequence, *before);
    *before = sample->sequence;
    ck_assert_uint_eq(sample->group_count, 1);
    ck_assert_uint_eq(sample->groups[0].serving_bytes, 50 * sample->calls);
}

static void *read_often(void *arg)
{
    for (uint64_t last = 0; last < 500;) {
        uint64_t before = 0;
        last = tierce__history_each(history, 0, check_whole, &before);
    }
    return arg;
}

START_TEST(test_readers_see_whole_samples)
{
    pthread_t reader;
    ck_assert_int_eq(pthread_create(&reader, NULL, read_often, NULL), 0);
    for (uint64_t n = 1; n <= 500; n++)
        add(n, 1);
    pthread_join(reader, NULL);
}
END_TEST

CHECK_MAIN("history", .seconds = 60, .setup = set_up, .teardown = tear_down,
           .tests = {test_nothing_is_there_at_first, test_samples_come_in_order,
                     test_only_what_is_new_is_told, test_the_oldest_are_forgotten,
                     test_groups_are_bounded, test_readers_see_whole_samples})
