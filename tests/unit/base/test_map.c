/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/list.h"
#include "base/map.h"
#include "check_main.h"
#include "test_random.h"

#include <errno.h>

enum { ITEMS = 300, STEPS = 20000 };

struct item {
    struct tierce__map_node node;
    uint64_t hash;
    bool is_in, is_seen;
};

/* Few different hashes, so that many are equal or share a bin, and the last cells' runs wrap. */
static uint64_t draw_hash(struct test_random *random)
{
    uint64_t wide = test_random_u64(random);
    switch (test_random_below(random, 4)) {
    case 0:
        return wide;
    case 1:
        return (uint64_t)test_random_below(random, 20) << 32;
    case 2:
        return UINT64_MAX - ((uint64_t)test_random_below(random, 20) << 32);
    default:
        return wide & 0xf0000000f0000000u;
    }
}

static struct item *item_of(struct tierce__map_node *node)
{
    return node != NULL ? TIERCE__CONTAINER_OF(node, struct item, node) : NULL;
}

/* ---- entries with addresses ------------------------------------------------------------------ */

/* Each search and the iteration find each item of the model once, and no other. */
static void compare_map(const struct tierce__map *map, struct item *items, uint64_t hash)
{
    size_t wanted = 0, of_hash = 0, found = 0;
    bool as_expected = true;
    for (int i = 0; i < ITEMS; i++) {
        wanted += items[i].is_in;
        of_hash += items[i].is_in && items[i].hash == hash;
        items[i].is_seen = false;
    }
    ck_assert_uint_eq(map->count, wanted);
    TIERCE__MAP_FOR_EACH (node, map) {
        as_expected = as_expected && item_of(node)->is_in && !item_of(node)->is_seen;
        item_of(node)->is_seen = true;
        found++;
    }
    ck_assert_uint_eq(found, wanted);
    found = 0;
    for (struct tierce__map_node *node = tierce__map_find(map, hash); node != NULL;
         node = tierce__map_find_next(node)) {
        as_expected = as_expected && item_of(node)->hash == hash && item_of(node)->is_seen;
        item_of(node)->is_seen = false;
        found++;
    }
    ck_assert_uint_eq(found, of_hash);
    ck_assert(as_expected);
}

/* One allocation in `failing` fails; 0: none. */
static void step_map(uint32_t failing)
{
    struct test_random random = test_random_start("map");
    struct tierce__map map = {0};
    static struct item items[ITEMS];
    for (int i = 0; i < ITEMS; i++)
        items[i] = (struct item){.hash = draw_hash(&random)};
    for (int step = 0; step < STEPS; step++) {
        struct item *item = &items[test_random_below(&random, ITEMS)];
        if (failing > 0)
            tierce__alloc_fail_nth(test_random_below(&random, failing) + 1);
        if (item->is_in)
            tierce__map_remove(&map, &item->node);
        else
            tierce__map_put(&map, &item->node, item->hash);
        tierce__alloc_fail_nth(0);
        item->is_in = !item->is_in;
        compare_map(&map, items, item->hash);
    }
    TIERCE__MAP_FOR_EACH (node, &map)
        tierce__map_remove(&map, node);
    ck_assert_uint_eq(map.count, 0);
    ck_assert_ptr_null(tierce__map_after(&map, NULL));
    tierce__map_fini(&map);
}

START_TEST(a_map_agrees_with_a_list)
{
    uint64_t live = tierce__alloc_live();
    step_map(0);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

START_TEST(a_map_without_memory_has_longer_chains)
{
    struct tierce__map map = {0};
    static struct item items[ITEMS];
    for (int i = 0; i < ITEMS; i++) {
        tierce__alloc_fail_nth(1);
        tierce__map_put(&map, &items[i].node, (uint64_t)i << 56);
        items[i] = (struct item){.node = items[i].node, .hash = (uint64_t)i << 56, .is_in = true};
    }
    tierce__alloc_fail_nth(0);
    ck_assert_ptr_null(map.bins);
    compare_map(&map, items, items[7].hash);
    ck_assert_int_eq(tierce__map_reserve(&map, ITEMS), 0);
    compare_map(&map, items, items[7].hash);
    tierce__map_fini(&map);
    step_map(2);
}
END_TEST

START_TEST(a_reserved_map_does_not_allocate)
{
    struct tierce__map map = {0};
    static struct item items[ITEMS];
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__map_reserve(&map, ITEMS), -ENOMEM);
    ck_assert_int_eq(tierce__map_reserve(&map, ITEMS), 0);
    tierce__alloc_fail_nth(0);
    for (int i = 0; i < ITEMS; i++)
        tierce__map_put(&map, &items[i].node, (uint64_t)i << 48);
    ck_assert_uint_eq(tierce__alloc_fail_nth(0), 0);
    ck_assert_uint_ge((size_t)1 << map.bits, ITEMS);
    tierce__map_fini(&map);
}
END_TEST

/* ---- entries with numbers -------------------------------------------------------------------- */

static void compare_numbers(const struct tierce__numbers *numbers, struct item *items,
                            uint32_t hash)
{
    size_t wanted = 0, of_hash = 0, found = 0;
    bool as_expected = true;
    for (uint32_t i = 0; i < ITEMS; i++) {
        wanted += items[i].is_in;
        of_hash += items[i].is_in && items[i].hash >> 32 == hash;
        items[i].is_seen = false;
        as_expected = as_expected && tierce__numbers_has(numbers, (uint32_t)(items[i].hash >> 32),
                                                         i) == items[i].is_in;
    }
    ck_assert_uint_eq(numbers->count, wanted);
    TIERCE__NUMBERS_FOR_EACH (it, numbers, hash) {
        uint32_t n = it.number;
        as_expected = as_expected && n < ITEMS && items[n].is_in && items[n].hash >> 32 == hash &&
                      !items[n].is_seen;
        items[n < ITEMS ? n : 0].is_seen = true;
        found++;
    }
    ck_assert_uint_eq(found, of_hash);
    ck_assert(as_expected);
}

static void step_numbers(struct tierce__numbers *numbers, bool is_growing)
{
    struct test_random random = test_random_start("numbers");
    static struct item items[ITEMS];
    for (int i = 0; i < ITEMS; i++)
        items[i] = (struct item){.hash = draw_hash(&random)};
    for (int step = 0; step < STEPS; step++) {
        uint32_t at = test_random_below(&random, ITEMS), hash = (uint32_t)(items[at].hash >> 32);
        uint32_t other = test_random_below(&random, ITEMS);
        if (items[at].is_in && !items[other].is_in && test_random_below(&random, 4) == 0) {
            tierce__numbers_replace(numbers, hash, at, other);
            items[other] = (struct item){.hash = items[at].hash, .is_in = true};
            items[at].is_in = false;
        } else if (items[at].is_in) {
            tierce__numbers_erase(numbers, hash, at);
            items[at].is_in = false;
        } else {
            tierce__alloc_fail_nth(is_growing ? test_random_below(&random, 2) : 1);
            int rc = is_growing ? tierce__numbers_reserve(numbers, numbers->count + 1) : 0;
            tierce__alloc_fail_nth(0);
            ck_assert(rc == 0 || rc == -ENOMEM);
            if (rc == 0)
                tierce__numbers_put(numbers, hash, at);
            items[at].is_in = rc == 0;
        }
        compare_numbers(numbers, items, hash);
    }
    ck_assert_uint_le(numbers->count, (numbers->mask + 1) / 4 * 3);
}

START_TEST(growing_numbers_agree_with_an_array)
{
    uint64_t live = tierce__alloc_live();
    struct tierce__numbers numbers = {0};
    step_numbers(&numbers, true);
    tierce__numbers_fini(&numbers);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

START_TEST(fixed_numbers_agree_with_an_array)
{
    struct tierce__numbers numbers;
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__numbers_init(&numbers, ITEMS), -ENOMEM);
    ck_assert_int_eq(tierce__numbers_init(&numbers, ITEMS), 0);
    ck_assert_uint_ge(numbers.mask + 1, 2 * ITEMS);
    uint64_t *cells = numbers.cells;
    step_numbers(&numbers, false);
    ck_assert_ptr_eq(numbers.cells, cells);
    tierce__numbers_clear(&numbers);
    static struct item none[ITEMS];
    compare_numbers(&numbers, none, 0);
    tierce__numbers_fini(&numbers);
}
END_TEST

START_TEST(too_many_numbers_are_an_error)
{
    struct tierce__numbers numbers;
    ck_assert_int_eq(tierce__numbers_init(&numbers, ((size_t)1 << 31) + 1), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__numbers_reserve(&numbers, ((size_t)1 << 32) / 4 * 3), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__numbers_reserve(&numbers, (size_t)1 << 32), TIERCE_E_LIMIT);
    ck_assert_uint_eq(numbers.count, 0);
}
END_TEST

CHECK_MAIN("map", .seconds = 60,
           .tests = {a_map_agrees_with_a_list, a_map_without_memory_has_longer_chains,
                     a_reserved_map_does_not_allocate, growing_numbers_agree_with_an_array,
                     fixed_numbers_agree_with_an_array, too_many_numbers_are_an_error})
