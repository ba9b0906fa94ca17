/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "test_random.h"
#include "store/siblings.h"

#include <errno.h>
#include <string.h>

enum { SLOTS = 48, FAMILIES = 5, STEPS = 20000 };

static struct tierce__key family(uint32_t n)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}, .ns = n % 2};
    memset(key.hash, (int)(n / 2 + 1), sizeof(key.hash));
    return key;
}

static void add(struct tierce__siblings *siblings, uint32_t slot, uint32_t n)
{
    struct tierce__key key = family(n), chunk = key;
    memset(chunk.hash, 0xee, sizeof(chunk.hash)); /* the chunk's own name does not matter */
    tierce__siblings_add(siblings, slot, &chunk, key.hash);
}

START_TEST(bounds_and_memory)
{
    struct tierce__siblings *siblings = NULL;
    ck_assert_int_eq(tierce__siblings_create(&siblings, 0), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__siblings_create(&siblings, UINT32_C(1) << 31), TIERCE_E_ARGUMENT);
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1; nth <= 2; nth++) {
        tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(tierce__siblings_create(&siblings, 10), -ENOMEM);
        tierce__alloc_fail_nth(0);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    tierce__siblings_destroy(NULL);
    ck_assert_int_eq(tierce__siblings_create(&siblings, 1), 0);
    uint32_t slots[2];
    struct tierce__key key = family(0), other = family(1);
    tierce__siblings_remove(siblings, 0);
    add(siblings, 0, 0);
    ck_assert_uint_eq(tierce__siblings_find(siblings, slots, 2, &key), 1);
    ck_assert_uint_eq(slots[0], 0);
    ck_assert_uint_eq(tierce__siblings_find(siblings, slots, 2, &other), 0);
    tierce__siblings_remove(siblings, 0);
    ck_assert_uint_eq(tierce__siblings_find(siblings, slots, 2, &key), 0);
    tierce__siblings_destroy(siblings);
}
END_TEST

/* The slots of each family, the newest first. */
struct model {
    uint32_t slots[FAMILIES][SLOTS];
    uint32_t count[FAMILIES];
    int family_of[SLOTS]; /* -1: none */
};

static void model_add(struct model *m, uint32_t slot, uint32_t n)
{
    memmove(m->slots[n] + 1, m->slots[n], m->count[n] * sizeof(uint32_t));
    m->slots[n][0] = slot;
    m->count[n]++;
    m->family_of[slot] = (int)n;
}

static void model_remove(struct model *m, uint32_t slot)
{
    if (m->family_of[slot] < 0)
        return;
    uint32_t n = (uint32_t)m->family_of[slot], at = 0;
    while (m->slots[n][at] != slot)
        at++;
    m->count[n]--;
    memmove(m->slots[n] + at, m->slots[n] + at + 1, (m->count[n] - at) * sizeof(uint32_t));
    m->family_of[slot] = -1;
}

START_TEST(as_a_list_for_each_family)
{
    struct test_random random = test_random_start("siblings");
    struct tierce__siblings *siblings = NULL;
    static struct model model;
    memset(model.family_of, 0xff, sizeof(model.family_of));
    ck_assert_int_eq(tierce__siblings_create(&siblings, SLOTS), 0);
    for (unsigned i = 0; i < STEPS; i++) {
        uint32_t slot = test_random_below(&random, SLOTS);
        uint32_t n = test_random_below(&random, FAMILIES), got[SLOTS];
        if (model.family_of[slot] < 0 && test_random_below(&random, 3) > 0) {
            add(siblings, slot, n);
            model_add(&model, slot, n);
        } else {
            tierce__siblings_remove(siblings, slot);
            model_remove(&model, slot);
        }
        struct tierce__key key = family(n);
        size_t room = test_random_below(&random, SLOTS + 1);
        size_t count = tierce__siblings_find(siblings, got, room, &key);
        ck_assert_uint_eq(count, model.count[n] < room ? model.count[n] : room);
        ck_assert_mem_eq(got, model.slots[n], count * sizeof(uint32_t));
    }
    tierce__siblings_destroy(siblings);
}
END_TEST

CHECK_MAIN("siblings", .tests = {bounds_and_memory, as_a_list_for_each_family})
