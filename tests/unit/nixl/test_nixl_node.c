/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the plug-in for NIXL to a node of this process. */
#include "check_main.h"
#include "nixl/nixl_node.h"
#include "node_harness.h"

#include <pthread.h>
#include <string.h>
#include <tierce/status.h>

enum { PARTS = 40, BYTES = 100000, THREADS = 4, ROUNDS = 20 };

static struct node_harness harness;
static struct tierce__nixl_node *node;
static char why[TIERCE__NIXL_WHY_BYTES];

static void setup(void)
{
    char url[64], memory[] = "--memory.size=64MiB";
    char *argv[] = {memory};
    harness_start(&harness, 1, argv);
    snprintf(url, sizeof(url), "tierce://127.0.0.1:%u?connections=3", (unsigned)harness.ports.resp);
    ck_assert_msg(tierce__nixl_node_open(&node, url, why) == 0, "%s", why);
}

static void teardown(void)
{
    tierce__nixl_node_close(node);
    harness_stop(&harness);
}

static struct tierce__nixl_request *create(const struct tierce__nixl_part *parts, size_t count)
{
    struct tierce__nixl_request *request = NULL;
    ck_assert_int_eq(tierce__nixl_request_create(&request, node, parts, count), 0);
    return request;
}

static int run(const struct tierce__nixl_part *parts, size_t count)
{
    struct tierce__nixl_request *request = create(parts, count);
    ck_assert_int_eq(tierce__nixl_request_status(request), 0); /* before the start */
    tierce__nixl_request_start(request);
    int rc = tierce__nixl_request_wait(request);
    ck_assert_int_eq(tierce__nixl_request_status(request), rc);
    tierce__nixl_request_release(request);
    return rc;
}

static struct tierce__nixl_part part(enum tierce__nixl_op op, const char *name, void *memory,
                                     uint64_t bytes, uint64_t offset)
{
    return (struct tierce__nixl_part){.op = op,
                                      .name = name,
                                      .name_bytes = strlen(name),
                                      .memory = memory,
                                      .bytes = bytes,
                                      .offset = offset};
}

START_TEST(a_request_ends_when_all_its_parts_have)
{
    static uint8_t written[PARTS][BYTES], read[PARTS][BYTES];
    static char names[PARTS][8];
    struct tierce__nixl_part parts[PARTS];
    for (size_t i = 0; i < PARTS; i++) {
        snprintf(names[i], sizeof(names[i]), "n%zu", i);
        memset(written[i], (int)i + 1, BYTES);
        parts[i] = part(TIERCE__NIXL_PART_WRITE, names[i], written[i], BYTES, 0);
    }
    ck_assert_int_eq(run(parts, PARTS), 0);
    for (size_t i = 0; i < PARTS; i++)
        parts[i] = part(TIERCE__NIXL_PART_READ, names[i], read[i], BYTES - 7, 7);
    struct tierce__nixl_request *request = create(parts, PARTS);
    for (int again = 0; again < 2; again++) { /* it can be repeated */
        memset(read, 0, sizeof(read));
        tierce__nixl_request_start(request);
        int status;
        while ((status = tierce__nixl_request_status(request)) == TIERCE__NIXL_UNDER_WAY)
            sched_yield();
        ck_assert_int_eq(status, 0);
        for (size_t i = 0; i < PARTS; i++)
            ck_assert_int_eq(memcmp(read[i], written[i], BYTES - 7), 0);
    }
    tierce__nixl_request_release(request);
    parts[PARTS / 2] = part(TIERCE__NIXL_PART_READ, "missing", read[0], BYTES, 0);
    ck_assert_int_eq(run(parts, PARTS), TIERCE_E_MISS);
}
END_TEST

START_TEST(names_are_found_or_not)
{
    uint8_t byte = 1;
    bool found[3] = {false, true, false};
    struct tierce__nixl_part parts[3] = {part(TIERCE__NIXL_PART_WRITE, "a", &byte, 1, 0)};
    ck_assert_int_eq(run(parts, 1), 0);
    const char *const names[] = {"a", "b", "a"};
    for (size_t i = 0; i < 3; i++) {
        parts[i] = part(TIERCE__NIXL_PART_FIND, names[i], NULL, 0, 0);
        parts[i].found = &found[i];
    }
    ck_assert_int_eq(run(parts, 3), 0);
    ck_assert(found[0] && !found[1] && found[2]);
    parts[1].found = NULL;
    ck_assert_int_eq(run(parts, 3), TIERCE_E_MISS);
}
END_TEST

START_TEST(impossible_parts_are_rejected)
{
    uint8_t byte = 1;
    char longest[TIERCE__NIXL_WHY_BYTES * 2 - 4];
    struct tierce__nixl_request *request = NULL;
    memset(longest, 'n', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0'; /* 507 bytes, and "nixl:" */
    struct tierce__nixl_part good = part(TIERCE__NIXL_PART_WRITE, longest, &byte, 1, 0);
    ck_assert_int_eq(run(&good, 1), 0);
    const struct {
        struct tierce__nixl_part part;
        int rc;
    } wrong[] = {
        {part(TIERCE__NIXL_PART_WRITE, "", &byte, 1, 0), TIERCE_E_LIMIT},
        {part(TIERCE__NIXL_PART_WRITE, "a", &byte, 1, 1), TIERCE_E_UNSUPPORTED},
        {part(TIERCE__NIXL_PART_READ, "a", &byte, 0, 0), TIERCE_E_ARGUMENT},
        {part(TIERCE__NIXL_PART_READ, "a", NULL, 1, 0), TIERCE_E_ARGUMENT},
        {{.op = TIERCE__NIXL_PART_FIND, .name = "a\0b", .name_bytes = 3}, TIERCE_E_LIMIT},
        {{.op = TIERCE__NIXL_PART_FIND, .name = longest, .name_bytes = sizeof(longest)},
         TIERCE_E_LIMIT},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        ck_assert_int_eq(tierce__nixl_request_create(&request, node, &wrong[i].part, 1),
                         wrong[i].rc);
    ck_assert_int_eq(tierce__nixl_request_create(&request, node, &good, 0), TIERCE_E_ARGUMENT);
    ck_assert_ptr_null(request);
}
END_TEST

static struct tierce__nixl_part range(enum tierce__nixl_op op, void *memory, uint64_t bytes,
                                      uint64_t offset)
{
    struct tierce__nixl_part out = part(op, "x", memory, bytes, offset);
    out.is_range = true;
    return out;
}

/* Range 0 of file "x", and objects whose keys look like it. */
START_TEST(ranges_are_no_objects_and_do_not_overlap)
{
    static const char *const keys[] = {"x", "x@0", "file/x@0", "/file/x@0"};
    static uint8_t first[5000], other[5000], got[5000];
    memset(first, 1, sizeof(first));
    memset(other, 2, sizeof(other));
    struct tierce__nixl_part parts[2] = {range(TIERCE__NIXL_PART_WRITE, first, 5000, 0),
                                         range(TIERCE__NIXL_PART_WRITE, other, 50, 70000)};
    ck_assert_int_eq(run(parts, 2), 0);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        parts[0] = part(TIERCE__NIXL_PART_WRITE, keys[i], other, 5000, 0);
        ck_assert_int_eq(run(parts, 1), 0);
    }
    parts[0] = range(TIERCE__NIXL_PART_READ, got, 5000, 0);
    ck_assert_int_eq(run(parts, 1), 0);
    ck_assert_mem_eq(got, first, 5000);
    struct tierce__nixl_request *request = NULL;
    parts[0] = part(TIERCE__NIXL_PART_WRITE, "//file/x@0", other, 5000, 0);
    ck_assert_int_eq(tierce__nixl_request_create(&request, node, parts, 1), TIERCE_E_UNSUPPORTED);
    parts[0] = range(TIERCE__NIXL_PART_WRITE, other, 50, 100);
    ck_assert_int_eq(tierce__nixl_request_create(&request, node, parts, 1), TIERCE_E_UNSUPPORTED);
    parts[0] = range(TIERCE__NIXL_PART_READ, got, 50, 69999);
    ck_assert_int_eq(tierce__nixl_request_create(&request, node, parts, 1), TIERCE_E_UNSUPPORTED);
    ck_assert_ptr_null(request);
}
END_TEST

/* Requests that are released while they are in progress, from several threads. */
static void *run_thread(void *arg)
{
    static uint8_t memory[THREADS][BYTES];
    uint8_t *mine = memory[*(size_t *)arg];
    struct tierce__nixl_part parts[8];
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < 8; i++)
            parts[i] = part(TIERCE__NIXL_PART_WRITE, "shared", mine, 1 + round * 1000 + i, 0);
        struct tierce__nixl_request *request = create(parts, 8);
        tierce__nixl_request_start(request);
        if (round % 2 == 0)
            ck_assert_int_eq(tierce__nixl_request_wait(request), 0);
        tierce__nixl_request_release(request);
        memset(mine, (int)round, BYTES); /* nobody reads it any more */
    }
    return NULL;
}

START_TEST(released_requests_no_longer_touch_memory)
{
    pthread_t threads[THREADS];
    size_t numbers[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        numbers[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_thread, &numbers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}
END_TEST

START_TEST(only_nodes_are_opened)
{
    struct tierce__nixl_node *none = NULL;
    ck_assert_int_eq(tierce__nixl_node_open(&none, "redis://127.0.0.1", why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "tierce://host:port") != NULL, "%s", why);
    ck_assert_int_eq(tierce__nixl_node_open(&none, "tierce://h?connections=0", why),
                     TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "connections") != NULL, "%s", why);
    ck_assert_int_eq(tierce__nixl_node_open(&none, "nothing", why), TIERCE_E_CONFIG);
    ck_assert_ptr_null(none);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nixl_node");
    TCase *tcase = tcase_create("nixl_node");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_request_ends_when_all_its_parts_have);
    tcase_add_test(tcase, names_are_found_or_not);
    tcase_add_test(tcase, impossible_parts_are_rejected);
    tcase_add_test(tcase, ranges_are_no_objects_and_do_not_overlap);
    tcase_add_test(tcase, released_requests_no_longer_touch_memory);
    tcase_add_test(tcase, only_nodes_are_opened);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
