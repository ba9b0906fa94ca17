/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "optimizer/trace/intern.h"
#include "test_random.h"

#include <errno.h>
#include <string.h>

START_TEST(numbers_come_in_order_of_appearance)
{
    struct tierce__intern *intern;
    uint32_t out[6];
    ck_assert_int_eq(tierce__intern_create(&intern), 0);
    const uint64_t ids[] = {7, UINT64_MAX, 7, 0, 1ULL << 63, UINT64_MAX};
    const uint32_t want[] = {0, 1, 0, 2, 3, 1};
    ck_assert_int_eq(tierce__intern_chain(intern, 0, ids, 6, out), 0);
    ck_assert_mem_eq(out, want, sizeof(want));
    ck_assert_uint_eq(tierce__intern_count(intern), 4);
    ck_assert_uint_eq(tierce__intern_find(intern, 0, 0), 2);
    ck_assert_uint_eq(tierce__intern_find(intern, 0, 8), TIERCE__INTERN_NONE);
    ck_assert_int_eq(tierce__intern_chain(intern, 0, ids, 0, out), 0);
    tierce__intern_destroy(intern);
    tierce__intern_destroy(NULL);
}
END_TEST

START_TEST(an_instance_is_part_of_the_key)
{
    struct tierce__intern *intern;
    uint32_t a, b, c, again;
    ck_assert_int_eq(tierce__intern_create(&intern), 0);
    ck_assert_int_eq(tierce__intern_one(intern, 0, 5, &a), 0);
    ck_assert_int_eq(tierce__intern_one(intern, 1, 5, &b), 0);
    ck_assert_int_eq(tierce__intern_one(intern, UINT32_MAX, 5, &c), 0);
    ck_assert_int_eq(tierce__intern_one(intern, 1, 5, &again), 0);
    ck_assert_uint_eq(a, 0);
    ck_assert_uint_eq(b, 1);
    ck_assert_uint_eq(c, 2);
    ck_assert_uint_eq(again, 1);
    ck_assert_uint_eq(tierce__intern_find(intern, 2, 5), TIERCE__INTERN_NONE);
    tierce__intern_destroy(intern);
}
END_TEST

/* Sequences as traces have them: counted, far apart, and random. */
static uint64_t id_at(unsigned kind, uint64_t i)
{
    struct test_random random = {i};
    return kind == 0 ? i : kind == 1 ? i << 40 : test_random_u64(&random);
}

START_TEST(a_number_costs_at_most_32_bytes)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        struct tierce__intern *intern;
        uint32_t out;
        ck_assert_int_eq(tierce__intern_create(&intern), 0);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < 1000000; i++) {
            if (tierce__intern_one(intern, 0, id_at(kind, i), &out) < 0 || out != i)
                wrong++;
            if (i % 1000 == 999 && i > 10000)
                ck_assert_uint_le(tierce__intern_bytes(intern), (i + 1) * 32);
        }
        for (uint64_t i = 0; i < 1000000; i += 7)
            wrong += tierce__intern_find(intern, 0, id_at(kind, i)) != i;
        ck_assert_uint_eq(wrong, 0);
        tierce__intern_destroy(intern);
    }
}
END_TEST

enum { KEYS = 3000, INSTANCES = 5 };

/* Against an array: chains of ids from a small set that crowd the same places. */
START_TEST(it_does_what_an_array_does)
{
    struct test_random random = test_random_start("intern");
    static uint32_t model[INSTANCES][KEYS];
    for (unsigned round = 0; round < 20 * test_scale(); round++) {
        struct tierce__intern *intern;
        uint64_t ids[100];
        uint32_t numbers[100], keys[100], next = 0, keys_max = 1 + test_random_below(&random, KEYS);
        unsigned shift = test_random_below(&random, 52);
        memset(model, 0xff, sizeof(model));
        ck_assert_int_eq(tierce__intern_create(&intern), 0);
        for (unsigned step = 0; step < 500; step++) {
            uint32_t instance = test_random_below(&random, INSTANCES);
            size_t count = test_random_below(&random, 101);
            for (size_t i = 0; i < count; i++) {
                keys[i] = test_random_below(&random, keys_max);
                ids[i] = (uint64_t)keys[i] << shift;
            }
            ck_assert_int_eq(tierce__intern_chain(intern, instance, ids, count, numbers), 0);
            for (size_t i = 0; i < count; i++) {
                uint32_t *want = &model[instance][keys[i]];
                if (*want == TIERCE__INTERN_NONE)
                    *want = next++;
                if (numbers[i] != *want)
                    ck_abort_msg("id %u of instance %u", keys[i], instance);
            }
            ck_assert_uint_eq(tierce__intern_count(intern), next);
        }
        for (uint32_t instance = 0; instance < INSTANCES; instance++) {
            for (uint32_t key = 0; key < keys_max; key++)
                ck_assert_uint_eq(tierce__intern_find(intern, instance, (uint64_t)key << shift),
                                  model[instance][key]);
        }
        tierce__intern_destroy(intern);
    }
}
END_TEST

static int fill(void)
{
    struct tierce__intern *intern = NULL;
    uint64_t ids[1000];
    uint32_t out[1000];
    int rc = tierce__intern_create(&intern);
    for (uint64_t i = 0; i < 1000; i++)
        ids[i] = i * i;
    if (rc == 0)
        rc = tierce__intern_chain(intern, 3, ids, 500, out);
    if (rc == 0)
        rc = tierce__intern_reserve(intern, 10000);
    if (rc == 0)
        rc = tierce__intern_chain(intern, 3, ids, 1000, out);
    if (rc == -ENOMEM && intern != NULL) {
        /* It keeps its content, and remains usable. */
        uint32_t count = tierce__intern_count(intern);
        for (uint32_t i = 0; i < count; i++)
            ck_assert_uint_eq(tierce__intern_find(intern, 3, ids[i]), i);
        ck_assert_int_eq(tierce__intern_chain(intern, 3, ids, 1000, out), 0);
        ck_assert_uint_eq(out[999], 999);
    }
    tierce__intern_destroy(intern);
    return rc;
}

START_TEST(room_that_was_made_changes_no_number)
{
    struct tierce__intern *intern;
    uint32_t out;
    uint64_t wrong = 0;
    ck_assert_int_eq(tierce__intern_create(&intern), 0);
    for (uint64_t i = 0; i < 50000; i++) {
        if (i == 0 || i == 1000 || i == 20000)
            ck_assert_int_eq(tierce__intern_reserve(intern, i == 1000 ? 10 : 40000), 0);
        wrong += tierce__intern_one(intern, 0, id_at(2, i), &out) < 0 || out != i;
    }
    for (uint64_t i = 0; i < 50000; i++)
        wrong += tierce__intern_find(intern, 0, id_at(2, i)) != i;
    ck_assert_uint_eq(wrong, 0);
    tierce__intern_destroy(intern);
}
END_TEST

/* Numbers in a row that belong to several chains, and chains that go on where others did not. */
START_TEST(what_follows_a_number_is_compared)
{
    struct tierce__intern *intern;
    uint32_t out[5];
    ck_assert_int_eq(tierce__intern_create(&intern), 0);
    ck_assert_int_eq(tierce__intern_chain(intern, 0, (const uint64_t[]){1, 2, 3}, 3, out), 0);
    ck_assert_int_eq(tierce__intern_chain(intern, 1, (const uint64_t[]){1, 2, 3}, 3, out), 0);
    ck_assert_mem_eq(out, ((const uint32_t[]){3, 4, 5}), 12);
    ck_assert_int_eq(tierce__intern_chain(intern, 0, (const uint64_t[]){2, 3, 1, 2, 4}, 5, out), 0);
    ck_assert_mem_eq(out, ((const uint32_t[]){1, 2, 0, 1, 6}), 20);
    ck_assert_int_eq(tierce__intern_chain(intern, 1, (const uint64_t[]){3, 4, 1, 1}, 4, out), 0);
    ck_assert_mem_eq(out, ((const uint32_t[]){5, 7, 3, 3}), 16);
    tierce__intern_destroy(intern);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    uint64_t live = tierce__alloc_live();
    tierce__alloc_fail_nth(0);
    ck_assert_int_eq(fill(), 0);
    uint64_t count = tierce__alloc_fail_nth(0);
    for (uint64_t n = 1; n <= count; n++) {
        tierce__alloc_fail_nth(n);
        ck_assert_int_eq(fill(), -ENOMEM);
    }
    tierce__alloc_fail_nth(0);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

CHECK_MAIN("intern", .seconds = 50,
           .tests = {numbers_come_in_order_of_appearance, an_instance_is_part_of_the_key,
                     a_number_costs_at_most_32_bytes, it_does_what_an_array_does,
                     room_that_was_made_changes_no_number, what_follows_a_number_is_compared,
                     every_allocation_may_fail})
