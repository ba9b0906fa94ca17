/* SPDX-License-Identifier: Apache-2.0 */
/* What a process makes of the generations in a manager's answers. */
#include "check_main.h"
#include "store/remote/fleet/fleet_private.h"

static unsigned told;

static void invalidated(void *arg, const struct tierce__fleet_part *part)
{
    ck_assert_ptr_eq(arg, &told);
    ck_assert(!tierce__fleet_part_is_current(part));
    told++;
}

static struct tierce__fleet_part new_part(void)
{
    told = 0;
    return (struct tierce__fleet_part){
        .instance = "i", .invalidated = invalidated, .invalidated_arg = &told};
}

/* An answer to a call that began at a time; UINT64_MAX: after all others. */
static bool hear(struct tierce__fleet_part *part, uint64_t generation, uint64_t begun_ns)
{
    return tierce__fleet_part_hear(
        part, &(struct tierce__fleet_call){.generation = generation, .begun_ns = begun_ns});
}

START_TEST(a_namespace_that_was_never_invalidated)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(tierce__fleet_part_is_current(&part));
    ck_assert(hear(&part, 1, 0));
    ck_assert(hear(&part, 1, 0));
    ck_assert_uint_eq(part.generation, 1);
    ck_assert_uint_eq(told, 0);
}
END_TEST

START_TEST(an_invalidation_is_told_once)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(hear(&part, 1, 0));
    ck_assert(!hear(&part, 2, 0));
    ck_assert(!hear(&part, 2, 0));
    ck_assert_uint_eq(told, 1);
    tierce__fleet_part_adopt(&part, 2);
    ck_assert(tierce__fleet_part_is_current(&part));
    ck_assert(hear(&part, 2, 0));
    ck_assert_uint_eq(told, 1);
}
END_TEST

/* There may be chunks on disk from before. */
START_TEST(a_process_that_starts_later_is_told)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(!hear(&part, 7, 0));
    ck_assert_uint_eq(told, 1);
    tierce__fleet_part_adopt(&part, 7);
    ck_assert(hear(&part, 7, 0));
}
END_TEST

START_TEST(an_older_answer_comes_late)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(hear(&part, 1, 0));
    ck_assert(!hear(&part, 2, 0));
    tierce__fleet_part_adopt(&part, 2);
    ck_assert(!hear(&part, 1, part.heard_ns - 1)); /* it may name blocks of before */
    ck_assert(tierce__fleet_part_is_current(&part));
    ck_assert_uint_eq(told, 1);
}
END_TEST

/* The instance was removed and registered again, or the manager was restored. */
START_TEST(a_generation_may_fall)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(!hear(&part, 5, 0));
    tierce__fleet_part_adopt(&part, 5);
    ck_assert(!hear(&part, 1, UINT64_MAX));
    ck_assert_uint_eq(told, 2);
    tierce__fleet_part_adopt(&part, 1);
    ck_assert(hear(&part, 1, UINT64_MAX));
}
END_TEST

START_TEST(an_invalidation_in_the_middle_of_another)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(hear(&part, 1, 0));
    ck_assert(!hear(&part, 2, 0));
    ck_assert(!hear(&part, 3, 0));
    ck_assert_uint_eq(told, 2);
    tierce__fleet_part_adopt(&part, 2); /* the engine began to clear before the second */
    ck_assert(!tierce__fleet_part_is_current(&part));
    tierce__fleet_part_adopt(&part, 3);
    ck_assert(tierce__fleet_part_is_current(&part));
}
END_TEST

START_TEST(a_manager_without_generations)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(hear(&part, 0, 0));
    ck_assert_uint_eq(part.generation, 0);
    ck_assert(hear(&part, 1, 0)); /* it was upgraded */
    ck_assert(hear(&part, 0, 0)); /* an older one leads */
    ck_assert(!hear(&part, 2, 0));
    ck_assert(!hear(&part, 0, 0)); /* nothing is known of its blocks until they are dropped here */
    ck_assert_uint_eq(told, 1);
}
END_TEST

CHECK_MAIN("fleet_generation", .seconds = 20,
           .tests = {a_namespace_that_was_never_invalidated, an_invalidation_is_told_once,
                     a_process_that_starts_later_is_told, an_older_answer_comes_late,
                     a_generation_may_fall, an_invalidation_in_the_middle_of_another,
                     a_manager_without_generations})
