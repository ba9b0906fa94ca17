/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of names with a simulated manager: how often it is asked, and who is answered when. */
#include "fleet_register_case.h"

/* ---- how often ------------------------------------------------------------------------------- */

START_TEST(test_an_instance_that_was_forgotten)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    struct waited first, second;
    ck_assert_int_eq(register_part(parts, part), 0);
    tierce__fleet_part_outdated(part);
    ck_assert_int_eq(register_part(parts, part), 0);
    ck_assert_uint_eq(fake.started, 1); /* not twice in a second */
    make_older(part, SECOND_MS);
    begin(parts, part, &first, UINT64_MAX);
    begin(parts, part, &second, UINT64_MAX);
    ck_assert(fake.started == 2 && first.done == 0 && second.done == 0);
    tierce__fleet_manager_poll(&fake, 0);
    ck_assert(first.done == 1 && second.done == 1 && first.status == 0);
    make_older(part, SECOND_MS);
    ck_assert_int_eq(register_part(parts, part), 0);
    ck_assert_uint_eq(fake.started, 2); /* it is known again */
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_a_rejected_part_asks_after_a_minute)
{
    static const int statuses[] = {-EEXIST, TIERCE_E_ARGUMENT, TIERCE_E_FULL};
    for (size_t i = 0; i < 3; i++) {
        struct tierce__fleet_parts *parts = open_parts(NULL);
        struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
        unsigned before = fake.started;
        char why[TIERCE__FLEET_WHY_BYTES];
        snprintf(why, sizeof(why), "simulated: %d", statuses[i]);
        fake.status = statuses[i];
        ck_assert_int_eq(register_part(parts, part), TIERCE_E_REFUSED);
        ck_assert_int_eq(part->state, TIERCE__FLEET_REJECTED);
        ck_assert_str_eq(part->why, why);
        make_older(part, MINUTE_MS / 2);
        tierce__fleet_part_outdated(part); /* does not matter */
        ck_assert_int_eq(register_part(parts, part), TIERCE_E_REFUSED);
        ck_assert_uint_eq(fake.started, before + 1);
        make_older(part, MINUTE_MS / 2);
        fake.status = 0;
        ck_assert_int_eq(register_part(parts, part), 0);
        ck_assert_uint_eq(fake.started, before + 2);
        ck_assert_str_eq(part->why, "");
        tierce__fleet_parts_close(parts);
    }
}
END_TEST

static void check_failure(int status, int update, bool is_remembered)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    unsigned before = fake.started;
    int expected = status != 0 ? status : update;
    fake.status = status;
    fake.update = update;
    ck_assert_int_eq(register_part(parts, part), expected);
    ck_assert_int_eq(part->state, TIERCE__FLEET_NEW);
    ck_assert_ptr_nonnull(strstr(part->why, "simulated"));
    ck_assert_int_eq(register_part(parts, part), expected);
    ck_assert_uint_eq(fake.started, before + (is_remembered ? 1 : 2));
    fake.status = fake.update = 0;
    make_older(part, SECOND_MS);
    ck_assert_int_eq(register_part(parts, part), 0);
    tierce__fleet_parts_close(parts);
}

START_TEST(test_a_manager_that_fails_is_not_asked_at_once_again)
{
    check_failure(-EPROTO, 0, true);
    check_failure(TIERCE_E_LIMIT, 0, true);
    check_failure(TIERCE_E_REFUSED, 0, true);
    check_failure(TIERCE_E_UNSUPPORTED, 0, true);
    check_failure(0, TIERCE_E_FORMAT, true);
    check_failure(0, -ENOMEM, false);
    check_failure(TIERCE_E_DOWN, 0, false);
    check_failure(TIERCE_E_DEADLINE, 0, false);
    check_failure(-ENOMEM, 0, false);
}
END_TEST

/* ---- parts that no request registers ---------------------------------------------------------
 */

enum { HEAR_MS = 5000 };

/* Time passes, and the manager is asked if it is time; returns the calls of the turn. */
static unsigned after(struct tierce__fleet_parts *parts, struct tierce__fleet_part *part,
                      uint64_t ms)
{
    unsigned before = fake.started;
    uint64_t until_ns = UINT64_MAX;
    make_older(part, ms);
    part->heard_ns -= part->heard_ns > 0 ? ms * TIERCE__MS_NS : 0;
    tierce__fleet_parts_ask(parts, &until_ns);
    ck_assert(fake.started > before || until_ns < UINT64_MAX); /* the thread wakes for it */
    tierce__fleet_manager_poll(&fake, 0);
    return fake.started - before;
}

/* All prompts are on disk, so nothing asks for the pool; a weight update may have been missed. */
START_TEST(test_no_manager_answered_when_the_engine_started)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    fake.status = TIERCE_E_DOWN;
    fake.generation = 3;
    ck_assert_int_eq(register_part(parts, part), TIERCE_E_DOWN);
    ck_assert_uint_eq(after(parts, part, HEAR_MS / 2), 0);
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
    ck_assert(part->state == TIERCE__FLEET_NEW && tierce__fleet_part_is_current(part));
    fake.status = 0;
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
    ck_assert(part->state == TIERCE__FLEET_REGISTERED && part->heard == 3);
    ck_assert(!tierce__fleet_part_is_current(part));
    ck_assert_uint_eq(fake.asked, 0);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_a_manager_that_learns_of_generations)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    ck_assert_int_eq(register_part(parts, part), 0);
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1); /* of a version without them */
    ck_assert(fake.asked == 1 && part->heard == 0);
    ck_assert_uint_eq(after(parts, part, HEAR_MS / 2), 0);
    fake.generation = 1; /* it was upgraded */
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
    ck_assert(part->heard == 1 && tierce__fleet_part_is_current(part));
    fake.status = TIERCE_E_MISS; /* an operator removed the instance */
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
    fake.status = 0;
    fake.generation = 2;
    ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
    ck_assert(fake.asked == 3 && part->heard == 2);
    tierce__fleet_parts_close(parts);
}
END_TEST

/* A manager that does not name its registry may have marked a storage with it. */
START_TEST(test_a_manager_that_was_lost)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    fake.generation = 1;
    fake.marked_by = 7;
    ck_assert_int_eq(register_part(parts, part), 0);
    ck_assert(tierce__fleet_part_is_current(part) && part->registry == 7);
    for (unsigned i = 0; i < 2; i++) { /* the second one names its registry */
        fake.status = TIERCE_E_MISS;
        ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
        fake.status = 0;
        fake.marked_by = 8;
        fake.registry = i * 9;
        ck_assert_uint_eq(after(parts, part, HEAR_MS), 1);
        ck_assert(!tierce__fleet_part_is_current(part) && part->heard == 1);
        ck_assert_uint_eq(part->registry, 8 + i);
        tierce__fleet_part_adopt(part, 1, 8 + i);
        ck_assert(tierce__fleet_part_is_current(part));
    }
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_a_rejected_part_is_asked_for_each_minute)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    fake.status = -EEXIST;
    ck_assert_int_eq(register_part(parts, part), TIERCE_E_REFUSED);
    ck_assert_uint_eq(after(parts, part, MINUTE_MS / 2), 0);
    ck_assert_uint_eq(after(parts, part, MINUTE_MS), 1);
    tierce__fleet_parts_close(parts);
}
END_TEST

/* ---- who waits how long ---------------------------------------------------------------------- */

START_TEST(test_each_waiter_has_its_deadline)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct tierce__fleet_part *part = part_of(parts, &plain_shape, whole_shard);
    uint64_t now_ns = tierce__now_ns(), late_ns = now_ns + 3600 * 1000 * TIERCE__MS_NS;
    struct waited w[4];
    begin(parts, part, &w[0], UINT64_MAX);
    begin(parts, part, &w[1], now_ns);
    begin(parts, part, &w[2], late_ns);
    begin(parts, part, &w[3], now_ns - 1);
    uint64_t until_ns = UINT64_MAX;
    tierce__fleet_expire(parts, &until_ns);
    ck_assert_uint_eq(until_ns, late_ns);
    ck_assert(w[0].done == 0 && w[1].done == 1 && w[2].done == 0 && w[3].done == 1);
    ck_assert(w[1].status == TIERCE_E_DEADLINE && w[3].status == TIERCE_E_DEADLINE);
    until_ns = now_ns;
    tierce__fleet_expire(parts, &until_ns);
    ck_assert_uint_eq(until_ns, now_ns); /* an earlier one stays */
    tierce__fleet_manager_poll(&fake, 0);
    ck_assert(w[0].done == 1 && w[2].done == 1 && w[0].status == 0 && w[2].status == 0);
    ck_assert(w[1].done == 1 && w[3].done == 1 && fake.started == 1);
    tierce__fleet_parts_close(parts);
}
END_TEST

struct again {
    struct waited w;
    struct tierce__fleet_parts *parts;
    struct tierce__fleet_part *part;
};

static void wait_again(struct tierce__fleet_wait *wait, int status)
{
    struct again *again = wait->arg;
    ck_assert_int_eq(status, TIERCE_E_DOWN);
    begin(again->parts, again->part, &again->w, UINT64_MAX);
}

/* A waiter may wait again as soon as it is answered. */
START_TEST(test_a_waiter_waits_again)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct again again = {.parts = parts, .part = part_of(parts, &plain_shape, whole_shard)};
    struct tierce__fleet_wait wait = {.deadline_ns = UINT64_MAX, .done = wait_again, .arg = &again};
    fake.status = TIERCE_E_DOWN;
    tierce__fleet_register(parts, again.part, &wait);
    struct tierce__list *node = fake.calls.next;
    tierce__list_remove(node);
    answer(&fake, TIERCE__CONTAINER_OF(node, struct tierce__fleet_call, node));
    ck_assert(again.w.done == 0 && fake.started == 2);
    fake.status = 0;
    tierce__fleet_manager_poll(&fake, 0);
    ck_assert(again.w.done == 1 && again.w.status == 0);
    tierce__fleet_parts_close(parts);
}
END_TEST

START_TEST(test_close_drops_waiters)
{
    struct tierce__fleet_parts *parts = open_parts(NULL);
    struct waited w[2];
    begin(parts, part_of(parts, &plain_shape, whole_shard), &w[0], UINT64_MAX);
    begin(parts, part_of(parts, &plain_shape, whole_shard), &w[1], UINT64_MAX);
    drop_calls(); /* as tierce__fleet_manager_close does it */
    tierce__fleet_parts_close(parts);
    ck_assert(w[0].done == 0 && w[1].done == 0);
    ck_assert(tierce__list_empty(&w[0].wait.node) && tierce__list_empty(&w[1].wait.node));
    tierce__fleet_parts_close(NULL);
}
END_TEST

CHECK_MAIN("fleet register times", .seconds = 120, .setup = start_fake, .teardown = stop_fake,
           .tests = {test_an_instance_that_was_forgotten, test_a_rejected_part_asks_after_a_minute,
                     test_a_manager_that_fails_is_not_asked_at_once_again,
                     test_no_manager_answered_when_the_engine_started,
                     test_a_manager_that_learns_of_generations, test_a_manager_that_was_lost,
                     test_a_rejected_part_is_asked_for_each_minute,
                     test_each_waiter_has_its_deadline, test_a_waiter_waits_again,
                     test_close_drops_waiters})
