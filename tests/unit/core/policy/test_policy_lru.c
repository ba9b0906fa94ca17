/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/policy/policy.h"

#include <string.h>

static struct tierce__policy *lru;

static void start(uint32_t slots)
{
    const struct tierce__policy_ops *ops = tierce__policy_find("lru");
    ck_assert_ptr_nonnull(ops);
    ck_assert_int_eq(
        ops->create(&lru, &(struct tierce__policy_opts){.size = sizeof(struct tierce__policy_opts),
                                                        .slot_count = slots}),
        0);
    for (uint32_t i = 0; i < slots; i++)
        lru->ops->insert(lru, i, &(struct tierce__policy_entry){.key = i, .bytes = 1});
}

/* Evicts everything and compares the order. */
static void expect_drain(const uint32_t *order, size_t count)
{
    uint32_t slot;
    for (size_t i = 0; i < count; i++) {
        ck_assert(lru->ops->victim(lru, 0, &slot));
        ck_assert_uint_eq(slot, order[i]);
        lru->ops->remove(lru, slot, true);
    }
    ck_assert(!lru->ops->victim(lru, 0, &slot));
    lru->ops->destroy(lru);
}

#define EXPECT_DRAIN(...)                                                                          \
    expect_drain((uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

START_TEST(the_longest_unused_leaves_first)
{
    start(4);
    lru->ops->touch(lru, 0, 0);
    lru->ops->touch(lru, 2, 0);
    lru->ops->touch(lru, 2, 0);
    EXPECT_DRAIN(1, 3, 0, 2);
}
END_TEST

START_TEST(a_victim_stays_until_it_is_removed)
{
    uint32_t slot;
    start(3);
    for (int i = 0; i < 3; i++) {
        ck_assert(lru->ops->victim(lru, 0, &slot));
        ck_assert_uint_eq(slot, 0);
    }
    lru->ops->touch(lru, 0, 0);
    EXPECT_DRAIN(1, 2, 0);
}
END_TEST

START_TEST(pinned_slots_keep_their_place)
{
    uint32_t slot;
    start(6);
    for (uint32_t i = 0; i < 4; i++)
        lru->ops->set_evictable(lru, i, false);
    ck_assert(lru->ops->victim(lru, 0, &slot)); /* parks 0 to 3 */
    ck_assert_uint_eq(slot, 4);
    lru->ops->set_evictable(lru, 2, true);
    lru->ops->set_evictable(lru, 3, true);
    lru->ops->set_evictable(lru, 0, true);
    lru->ops->set_evictable(lru, 3, false);
    lru->ops->set_evictable(lru, 3, true);
    lru->ops->set_evictable(lru, 1, true);
    lru->ops->set_evictable(lru, 1, true);
    lru->ops->touch(lru, 2, 0);
    EXPECT_DRAIN(0, 1, 3, 4, 5, 2);
}
END_TEST

START_TEST(nothing_is_evictable_when_all_is_pinned)
{
    uint32_t slot;
    start(3);
    for (uint32_t i = 0; i < 3; i++)
        lru->ops->set_evictable(lru, i, false);
    ck_assert(!lru->ops->victim(lru, 0, &slot));
    lru->ops->touch(lru, 0, 0); /* parked and not evictable: back to the list, still pinned */
    ck_assert(!lru->ops->victim(lru, 0, &slot));
    lru->ops->remove(lru, 2, false);
    lru->ops->set_evictable(lru, 0, true);
    lru->ops->set_evictable(lru, 1, true);
    EXPECT_DRAIN(1, 0);
}
END_TEST

START_TEST(the_registry_knows_names)
{
    ck_assert_ptr_null(tierce__policy_find("no such policy"));
    ck_assert_ptr_eq(tierce__policy_at(0), tierce__policy_find("lru"));
    struct tierce__policy *policy;
    ck_assert_int_eq(tierce__policy_at(0)->create(&policy, &(struct tierce__policy_opts){0}),
                     TIERCE_E_ARGUMENT);
}
END_TEST

CHECK_MAIN("policy_lru",
           .tests = {the_longest_unused_leaves_first, a_victim_stays_until_it_is_removed,
                     pinned_slots_keep_their_place, nothing_is_evictable_when_all_is_pinned,
                     the_registry_knows_names})
