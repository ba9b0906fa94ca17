/* SPDX-License-Identifier: Apache-2.0 */
/* What a process makes of the generations in a manager's answers. */
#include "check_main.h"
#include "store/remote/fleet/fleet_private.h"

static unsigned told, first; /* first: of them, those that nothing was heard before */
static bool has_none;        /* the process has nothing of another generation */

static bool invalidated(void *arg, const struct tierce__fleet_part *part, bool is_first)
{
    ck_assert_ptr_eq(arg, &told);
    ck_assert(!tierce__fleet_part_is_current(part));
    told++;
    first += is_first;
    return has_none && is_first && part->heard == 1;
}

static struct tierce__fleet_part new_part(void)
{
    told = first = 0;
    has_none = true;
    return (struct tierce__fleet_part){
        .instance = "i", .invalidated = invalidated, .invalidated_arg = &told};
}

static bool hear_of(struct tierce__fleet_part *part, uint64_t generation, uint64_t registry,
                    uint64_t begun_ns)
{
    return tierce__fleet_part_hear(part, &(struct tierce__fleet_call){.generation = generation,
                                                                      .registry = registry,
                                                                      .begun_ns = begun_ns});
}

/* An answer to a call that began at a time; UINT64_MAX: after all others. */
static bool hear(struct tierce__fleet_part *part, uint64_t generation, uint64_t begun_ns)
{
    return hear_of(part, generation, 0, begun_ns);
}

START_TEST(a_namespace_that_was_never_invalidated)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(tierce__fleet_part_is_current(&part));
    ck_assert(hear(&part, 1, 0));
    ck_assert(hear(&part, 1, 0));
    ck_assert_uint_eq(part.generation, 1);
    ck_assert(told == 1 && first == 1);
}
END_TEST

START_TEST(an_invalidation_is_told_once)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(hear(&part, 1, 0));
    ck_assert(!hear(&part, 2, 0));
    ck_assert(!hear(&part, 2, 0));
    ck_assert_uint_eq(told, 2);
    tierce__fleet_part_adopt(&part, 2, 0);
    ck_assert(tierce__fleet_part_is_current(&part));
    ck_assert(hear(&part, 2, 0));
    ck_assert_uint_eq(told, 2);
}
END_TEST

/* There may be chunks on disk from before. */
START_TEST(a_process_that_starts_later_is_told)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(!hear(&part, 7, 0));
    ck_assert_uint_eq(told, 1);
    tierce__fleet_part_adopt(&part, 7, 0);
    ck_assert(hear(&part, 7, 0));
}
END_TEST

START_TEST(an_older_answer_comes_late)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(hear(&part, 1, 0));
    ck_assert(!hear(&part, 2, 0));
    tierce__fleet_part_adopt(&part, 2, 0);
    ck_assert(!hear(&part, 1, part.heard_ns - 1)); /* it may name blocks of before */
    ck_assert(tierce__fleet_part_is_current(&part));
    ck_assert_uint_eq(told, 2);
}
END_TEST

/* The instance was removed and registered again, or the manager was restored. */
START_TEST(a_generation_may_fall)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(!hear(&part, 5, 0));
    tierce__fleet_part_adopt(&part, 5, 0);
    ck_assert(!hear(&part, 1, UINT64_MAX));
    ck_assert_uint_eq(told, 2);
    tierce__fleet_part_adopt(&part, 1, 0);
    ck_assert(hear(&part, 1, UINT64_MAX));
}
END_TEST

START_TEST(an_invalidation_in_the_middle_of_another)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(hear(&part, 1, 0));
    ck_assert(!hear(&part, 2, 0));
    ck_assert(!hear(&part, 3, 0));
    ck_assert_uint_eq(told, 3);
    tierce__fleet_part_adopt(&part, 2, 0); /* the engine began to clear before the second */
    ck_assert(!tierce__fleet_part_is_current(&part));
    tierce__fleet_part_adopt(&part, 3, 0);
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
    ck_assert_uint_eq(told, 2);
}
END_TEST

/* Its disk has another generation: of a registry that was lost. */
START_TEST(a_process_that_has_another_one)
{
    struct tierce__fleet_part part = new_part();
    has_none = false;
    ck_assert(!hear(&part, 1, 0));
    ck_assert(!tierce__fleet_part_is_current(&part));
    tierce__fleet_part_adopt(&part, 1, 0);
    ck_assert(hear(&part, 1, 0));
    ck_assert_uint_eq(told, 1);
}
END_TEST

/* It counts from 1 again, and what the first one invalidated last may not have been heard. */
START_TEST(another_registry_counts_the_same)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(hear_of(&part, 1, 5, 0));
    ck_assert(hear_of(&part, 1, 5, UINT64_MAX));
    uint64_t serves = part.serves;
    ck_assert(!hear_of(&part, 1, 6, UINT64_MAX));
    ck_assert_uint_eq(part.serves, 0);
    ck_assert(told == 2 && first == 1);
    tierce__fleet_part_adopt(&part, 1, 5); /* begun before */
    ck_assert(!tierce__fleet_part_is_current(&part));
    tierce__fleet_part_adopt(&part, 1, 6);
    ck_assert(hear_of(&part, 1, 6, UINT64_MAX));
    ck_assert(part.registries == 1 &&
              part.serves != serves);                    /* reads from before are not answered */
    ck_assert(!hear_of(&part, 1, 5, part.heard_ns - 1)); /* late, of the first */
    ck_assert(!hear_of(&part, 9, 5, part.heard_ns - 1));
    ck_assert(tierce__fleet_part_is_current(&part));
    ck_assert(hear(&part, 1, UINT64_MAX)); /* of an older manager */
    ck_assert(!hear_of(&part, 9, 5, UINT64_MAX));
    ck_assert_uint_eq(told, 3);
}
END_TEST

/* The registry becomes known while the engine drops its blocks. */
START_TEST(a_registry_that_is_learnt_later)
{
    struct tierce__fleet_part part = new_part();
    ck_assert(!hear(&part, 2, 0));
    ck_assert(!hear_of(&part, 2, 5, 0));
    ck_assert_uint_eq(part.registry, 5);
    tierce__fleet_part_adopt(&part, 2, 0);
    ck_assert(hear_of(&part, 2, 5, 0));
    ck_assert(!hear_of(&part, 2, 6, UINT64_MAX));
    ck_assert_uint_eq(told, 2);
}
END_TEST

CHECK_MAIN("fleet_generation", .seconds = 20,
           .tests = {a_namespace_that_was_never_invalidated, an_invalidation_is_told_once,
                     a_process_that_starts_later_is_told, an_older_answer_comes_late,
                     a_generation_may_fall, an_invalidation_in_the_middle_of_another,
                     a_manager_without_generations, a_process_that_has_another_one,
                     another_registry_counts_the_same, a_registry_that_is_learnt_later})
