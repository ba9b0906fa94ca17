/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/text/prometheus.h"
#include "check_main.h"

#include <string.h>

static char *page_of(struct tierce__prometheus *text, size_t *bytes)
{
    tierce__line_put_bytes(&text->line, "", 1); /* ends it as a C string */
    return tierce__prometheus_end(text, bytes);
}

START_TEST(help_comes_once_and_tags_are_escaped)
{
    struct tierce__prometheus text = {0};
    size_t bytes;
    struct tierce__metric_tag tags[] = {{"tier", "a\"b\\c\nd"}, {"policy", "lru"}};
    struct tierce__metric m = {.name = "x.count",
                               .help = "Things.",
                               .is_counter = true,
                               .value = 9007199254740991.0,
                               .tags = tags,
                               .tag_count = 2};
    tierce__prometheus_put(&text, &m);
    m.value = 2;
    m.tag_count = 0;
    tierce__prometheus_put(&text, &m);
    m = (struct tierce__metric){
        .name = "s", .help = "Time.", .is_counter = true, .value = 1234567.0625};
    tierce__prometheus_put(&text, &m);
    m = (struct tierce__metric){.name = "y", .help = "A level.", .value = 0.25};
    tierce__prometheus_put(&text, &m);
    char *page = page_of(&text, &bytes);
    ck_assert_str_eq(page, "# HELP tierce_x_count_total Things.\n"
                           "# TYPE tierce_x_count_total counter\n"
                           "tierce_x_count_total{tier=\"a\\\"b\\\\c d\",policy=\"lru\"} "
                           "9007199254740991\n"
                           "tierce_x_count_total 2\n"
                           "# HELP tierce_s_total Time.\n"
                           "# TYPE tierce_s_total counter\n"
                           "tierce_s_total 1234567.062500000\n"
                           "# HELP tierce_y A level.\n"
                           "# TYPE tierce_y gauge\n"
                           "tierce_y 0.25\n");
    tierce__free(page);
}
END_TEST

START_TEST(durations_add_up)
{
    struct tierce__latency latency = {0};
    for (int i = 0; i < 98; i++)
        tierce__latency_add(&latency, 10000); /* the bound itself is in */
    tierce__latency_add(&latency, 10001);
    tierce__latency_add(&latency, 60000000000u);

    struct tierce__prometheus text = {0};
    size_t bytes;
    struct tierce__metric_tag tag = {"tier", "disk"};
    tierce__prometheus_put_latency(&text,
                                   &(struct tierce__metric){.name = "get_seconds",
                                                            .help = "Reads.",
                                                            .is_counter = true,
                                                            .tags = &tag,
                                                            .tag_count = 1},
                                   &latency);
    char *page = page_of(&text, &bytes);
    ck_assert_ptr_nonnull(strstr(page, "# TYPE tierce_get_seconds histogram\n"));
    ck_assert_ptr_nonnull(
        strstr(page, "tierce_get_seconds_bucket{tier=\"disk\",le=\"0.000010000\"} 98\n"));
    ck_assert_ptr_nonnull(
        strstr(page, "tierce_get_seconds_bucket{tier=\"disk\",le=\"50.000000000\"} 99\n"));
    ck_assert_ptr_nonnull(
        strstr(page, "tierce_get_seconds_bucket{tier=\"disk\",le=\"+Inf\"} 100\n"));
    ck_assert_ptr_nonnull(strstr(page, "tierce_get_seconds_sum{tier=\"disk\"} 60.000990001\n"));
    ck_assert_ptr_nonnull(strstr(page, "tierce_get_seconds_count{tier=\"disk\"} 100\n"));
    tierce__free(page);
}
END_TEST

START_TEST(no_memory_is_no_page)
{
    struct tierce__prometheus text = {0};
    size_t bytes;
    tierce__alloc_fail_nth(1);
    tierce__prometheus_put(&text, &(struct tierce__metric){.name = "y", .help = "A level."});
    tierce__alloc_fail_nth(0);
    ck_assert_ptr_null(tierce__prometheus_end(&text, &bytes));
}
END_TEST

CHECK_MAIN("prometheus",
           .tests = {help_comes_once_and_tags_are_escaped, durations_add_up, no_memory_is_no_page})
