/* SPDX-License-Identifier: Apache-2.0 */
/* Deletions and clears of a remote tier, beside puts that are on their way. */
#include "remote_world.h"

#include <errno.h>
#include <sched.h>

START_TEST(what_is_deleted_on_its_way_does_not_come)
{
    open_tier(&(struct tierce__remote_opts){.writes = 2}, true);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *sent = put(1), *sent_after = put_after(2, 1), *queued = put_after(3, 2);
    struct call *gone = submit(make(TIERCE__STORE_DELETE, 1));
    ck_assert_uint_eq(gone->done, 0);
    (void)store_connector_let_go(store);
    check(sent, TIERCE_E_CANCELLED);
    check(sent_after, TIERCE_E_REFUSED);
    check(queued, TIERCE_E_REFUSED);
    check(gone, 0);
    ck_assert_uint_eq(store_connector_objects(store), 0);
    close_tier();
}
END_TEST

START_TEST(a_deletion_says_why)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    struct call *call = make(TIERCE__STORE_DELETE, 1);
    call->req.left = TIERCE__LEFT_CHECKSUM;
    check(submit(call), 0);
    ck_assert_int_eq(store_connector_left(store), TIERCE__LEFT_CHECKSUM);
    close_tier();
}
END_TEST

static struct call *submit_late(enum tierce__store_op op, unsigned n)
{
    struct call *call = make(op, n);
    call->req.deadline_ns = tierce__deadline_in_ms(20);
    return submit(call);
}

static void await_answer(const struct call *call)
{
    uint64_t give_up_ns = tierce__deadline_in_ms(20000);
    while (call->done == 0 && tierce__now_ns() < give_up_ns)
        sched_yield();
}

/* A put that does not end delays a deletion, but not its answer. `_i`: 1: the put ends, and the
 * deletion does not. */
START_TEST(a_deletion_is_answered_by_its_deadline)
{
    open_tier(&(struct tierce__remote_opts){.writes = 2}, true);
    check(put(2), 0);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *sent = put(1);
    struct call *gone = submit_late(TIERCE__STORE_DELETE, 1);
    if (_i == 1) {
        store_connector_hold(store, TIERCE__STORE_DELETE);
        ck_assert(store_connector_let_one_go(store, ending(1)));
        ck_assert(store_connector_let_one_go(store, ending(1))); /* it is undone */
    }
    await_answer(gone);
    check(gone, TIERCE_E_DEADLINE);
    memset(&gone->key, 0, sizeof(gone->key)); /* the caller's again */
    ck_assert_uint_eq(sent->done, (unsigned)_i);
    struct call *again = put(1);
    ck_assert_uint_eq(store_connector_held(store), 1); /* the first put, or the deletion */
    (void)store_connector_let_go(store);
    check(sent, TIERCE_E_CANCELLED);
    check(again, 0); /* behind the deletion */
    ck_assert_uint_eq(gone->done, 1);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_DELETE), 2);
    ck_assert(is_there(1) && is_there(2));
    close_tier();
}
END_TEST

/* The deletion of a key that the store had before. */
START_TEST(a_deletion_happens_after_its_deadline)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    store_connector_hold(store, TIERCE__STORE_LOOKUP);
    struct call *known = put(1);
    struct call *gone = submit_late(TIERCE__STORE_DELETE, 1);
    await_answer(gone);
    check(gone, TIERCE_E_DEADLINE);
    ck_assert_uint_eq(known->done, 0);
    ck_assert_uint_eq(store_connector_objects(store), 1);
    (void)store_connector_let_go(store);
    check(known, TIERCE_E_CANCELLED);
    ck_assert_uint_eq(store_connector_objects(store), 0);
    close_tier();
}
END_TEST

START_TEST(a_clear_is_answered_by_its_deadline)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *sent = put(1);
    struct call *clear = submit_late(TIERCE__STORE_CLEAR, 0);
    await_answer(clear);
    check(clear, TIERCE_E_DEADLINE);
    ck_assert_uint_eq(sent->done, 0);
    (void)store_connector_let_go(store);
    check(sent, TIERCE_E_CANCELLED);
    ck_assert_uint_eq(store_connector_objects(store), 0);
    close_tier();
}
END_TEST

/* Closing ends a deletion that has outlived its request. */
START_TEST(closing_ends_a_late_deletion)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *sent = put(1);
    struct call *gone = submit_late(TIERCE__STORE_DELETE, 1);
    await_answer(gone);
    check(gone, TIERCE_E_DEADLINE);
    close_tier();
    check(sent, TIERCE_E_CANCELLED);
    ck_assert_uint_eq(gone->done, 1);
}
END_TEST

START_TEST(what_is_put_after_a_deletion_comes_after_it)
{
    open_tier(&(struct tierce__remote_opts){.writes = 4}, true);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *first = put(1), *gone = submit(make(TIERCE__STORE_DELETE, 1));
    struct call *again = put(1), *same = put(1), *other = put(2);
    ck_assert_uint_eq(store_connector_held(store), 2); /* of the first and the other */
    store_connector_hold(store, TIERCE__STORE_DELETE);
    ck_assert(store_connector_let_one_go(store, ending(1)));
    ck_assert_uint_eq(first->done + gone->done + again->done, 0);
    ck_assert(store_connector_let_one_go(store, ending(1))); /* what came is taken back */
    check(first, TIERCE_E_CANCELLED);
    ck_assert_uint_eq(gone->done, 0);
    ck_assert_uint_eq(store_connector_held(store), 2); /* the deletion, and the other */
    ck_assert(store_connector_let_one_go(store, ending(1)));
    check(gone, 0);
    ck_assert_uint_eq(store_connector_held(store), 2); /* sent again, once */
    (void)store_connector_let_go(store);
    check(again, 0);
    check(same, 0);
    check(other, 0);
    ck_assert(is_there(1));
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_PUT), 3);
    close_tier();
}
END_TEST

START_TEST(a_clear_takes_what_is_there_and_what_comes)
{
    open_tier(&(struct tierce__remote_opts){.writes = 1}, true);
    for (unsigned n = 1; n <= 20; n++)
        check(put(n), 0);
    struct call *other = make_put(30);
    other->key.ns = ns[1];
    check(submit(other), 0);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *sent = put(21), *queued = put(22);
    struct call *clear = submit(make(TIERCE__STORE_CLEAR, 0));
    check(queued, TIERCE_E_CANCELLED);
    ck_assert_uint_eq(clear->done, 0);
    (void)store_connector_let_go(store);
    check(sent, TIERCE_E_CANCELLED);
    check(clear, 0);
    ck_assert_uint_eq(clear->req.found, 20);
    ck_assert_uint_eq(store_connector_objects(store), 1);
    clear = make(TIERCE__STORE_CLEAR, 0);
    clear->req.key_count = 0;
    check(submit(clear), 0);
    ck_assert_uint_eq(clear->req.found, 1);
    close_tier();
}
END_TEST

START_TEST(a_clear_tells_its_failure)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    store_connector_fail(store, TIERCE__STORE_LIST, TIERCE_E_REFUSED, 1, false);
    check(submit(make(TIERCE__STORE_CLEAR, 0)), TIERCE_E_DOWN);
    store_connector_fail(store, TIERCE__STORE_DELETE, -EIO, 1, false);
    check(submit(make(TIERCE__STORE_CLEAR, 0)), -EIO);
    check(submit(make(TIERCE__STORE_CLEAR, 0)), 0);
    close_tier();
}
END_TEST

CHECK_MAIN("remote_delete", .seconds = 60,
           .tests = {what_is_deleted_on_its_way_does_not_come, a_deletion_says_why,
                     a_deletion_happens_after_its_deadline, a_clear_is_answered_by_its_deadline,
                     closing_ends_a_late_deletion, what_is_put_after_a_deletion_comes_after_it,
                     a_clear_takes_what_is_there_and_what_comes, a_clear_tells_its_failure},
           .loops = {{a_deletion_is_answered_by_its_deadline, 0, 2}})
