/* SPDX-License-Identifier: Apache-2.0 */
/* Locations that clients report as missing or damaged. */
#include "check_main.h"
#include "manager_harness.h"

#include <errno.h>

static const int64_t chain[] = {11, 22, 33, 44};
static const char *const only_a[] = {"A", "A", "A", "A"}, *const only_b[] = {"B", "B", "B", "B"};

static void store_groups(struct harness *h, const int64_t *keys, size_t count,
                         const char *const *groups)
{
    struct tierce__started started = {0};
    int rc = tierce__locator_start_write(h->locator,
                                         &(struct tierce__write_request){.instance_id = "i",
                                                                         .keys = keys,
                                                                         .count = count,
                                                                         .timeout_s = 30,
                                                                         .spec_groups = groups},
                                         &h->arena, &started, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    harness_finish(h, &started);
}

/* The leading keys that have this spec, and the URIs of their places. */
static struct tierce__got ask_for(struct harness *h, const char *spec)
{
    struct tierce__got got = {0};
    int rc = tierce__locator_get(h->locator,
                                 &(struct tierce__get_request){.instance_id = "i",
                                                               .query = TIERCE__QUERY_PREFIX,
                                                               .keys = chain,
                                                               .count = 4,
                                                               .spec_names = &spec,
                                                               .spec_name_count = 1},
                                 &h->arena, &got, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    return got;
}

static uint64_t report(struct harness *h, int64_t key, const char *spec, const char *uri)
{
    uint64_t dropped = 99;
    struct tierce__location_report one = {
        .key = key, .spec_name = spec, .uri = uri, .reason = TIERCE__REPORT_DAMAGED};
    int rc = tierce__locator_report(h->locator, "i", &one, 1, &dropped, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    return dropped;
}

START_TEST(only_the_reported_place_leaves)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    store_groups(&h, chain, 4, only_a);
    store_groups(&h, chain, 4, only_b);
    struct tierce__got got = ask_for(&h, "a");
    ck_assert_uint_eq(got.count, 4);
    const char *second = got.found[1].specs[0].uri, *third = got.found[2].specs[0].uri;
    ck_assert_uint_eq(report(&h, 22, "a", third), 0);  /* another block's */
    ck_assert_uint_eq(report(&h, 22, "b", second), 0); /* another spec's */
    ck_assert_uint_eq(report(&h, 99, "a", second), 0); /* no such block */
    ck_assert_uint_eq(report(&h, 22, "a", "file://s/elsewhere?size=1"), 0);
    ck_assert_uint_eq(ask_for(&h, "a").count, 4);
    ck_assert_uint_eq(report(&h, 22, "a", second), 1);
    ck_assert_uint_eq(ask_for(&h, "a").count, 1);
    ck_assert_uint_eq(ask_for(&h, "b").count, 4);
    ck_assert_uint_eq(report(&h, 22, "a", second), 0); /* it has left */
    store_groups(&h, chain + 1, 1, only_a);
    ck_assert_uint_eq(ask_for(&h, "a").count, 4);
    ck_assert_str_ne(ask_for(&h, "a").found[1].specs[0].uri, second); /* not reused so soon */
    harness_close(&h);
}
END_TEST

START_TEST(several_at_once)
{
    struct harness h;
    uint64_t dropped = 0, counts[TIERCE__REPORT_REASONS];
    harness_open(&h, &(struct harness_opts){0});
    store_groups(&h, chain, 4, only_a);
    store_groups(&h, chain, 4, only_b);
    struct tierce__got a = ask_for(&h, "a"), b = ask_for(&h, "b");
    const struct tierce__location_report reports[] = {
        {11, "a", a.found[0].specs[0].uri, TIERCE__REPORT_MISSING},
        {11, "b", b.found[0].specs[0].uri, TIERCE__REPORT_SHORT},
        {11, "a", a.found[0].specs[0].uri, TIERCE__REPORT_MISSING}, /* twice */
        {44, "b", b.found[3].specs[0].uri, TIERCE__REPORT_IDENTITY},
        {33, "b", "file://s/none?size=50", TIERCE__REPORT_RETRACTED},
    };
    ck_assert_int_eq(tierce__locator_report(h.locator, "i", reports, 5, &dropped, h.why), 0);
    ck_assert_uint_eq(dropped, 3);
    ck_assert_uint_eq(ask_for(&h, "a").count, 0);
    ck_assert_uint_eq(ask_for(&h, "b").count, 0);
    tierce__locator_reports(h.locator, counts);
    ck_assert_uint_eq(counts[TIERCE__REPORT_MISSING], 2);
    ck_assert_uint_eq(counts[TIERCE__REPORT_SHORT], 1);
    ck_assert_uint_eq(counts[TIERCE__REPORT_DAMAGED], 0);
    ck_assert_uint_eq(counts[TIERCE__REPORT_IDENTITY], 1);
    ck_assert_uint_eq(counts[TIERCE__REPORT_RETRACTED], 1);
    ck_assert_int_eq(tierce__locator_report(h.locator, "none", reports, 5, &dropped, h.why),
                     -ENOENT);
    harness_close(&h);
}
END_TEST

static const char *path_of(const char *uri, char *path, size_t room)
{
    const char *from = strstr(uri, "://s") + 4;
    snprintf(path, room, "%.*s", (int)strcspn(from, "?"), from);
    return path;
}

/* Bytes of what is reported are deleted, and stop to count. */
START_TEST(bytes_are_deleted)
{
    struct harness h;
    struct tierce__usage usage;
    char path[512];
    harness_open(&h, &(struct harness_opts){0});
    store_groups(&h, chain, 4, only_a);
    struct tierce__got a = ask_for(&h, "a");
    harness_write_files(a.found, a.count);
    ck_assert_uint_eq(report(&h, 11, "a", a.found[0].specs[0].uri), 1);
    ck_assert_uint_eq(tierce__deleter_step(h.locator->deleter, 10), 1);
    tierce__locator_group_usage(h.locator, "g", &usage);
    ck_assert_uint_eq(usage.serving_bytes, 3 * PART_A_BYTES);
    ck_assert_uint_eq(usage.deleting_bytes, 0);
    ck_assert_int_ne(access(path_of(a.found[0].specs[0].uri, path, sizeof(path)), F_OK), 0);
    ck_assert_int_eq(access(path_of(a.found[1].specs[0].uri, path, sizeof(path)), F_OK), 0);
    harness_close(&h);
}
END_TEST

CHECK_MAIN("report", .tests = {only_the_reported_place_leaves, several_at_once, bytes_are_deleted})
