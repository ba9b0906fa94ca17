/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of a remote tier: the order of sending, and the fate of successors. */
#include "remote_world.h"
#include "log_record.h"

#include <errno.h>
#include <tierce/log.h>

/* A clock that tests set forward. */
static _Atomic uint64_t ahead_ns;
uint64_t __real_tierce__now_ns(void);
uint64_t __wrap_tierce__now_ns(void);

uint64_t __wrap_tierce__now_ns(void)
{
    return __real_tierce__now_ns() + atomic_load(&ahead_ns);
}

START_TEST(what_the_store_has_is_not_sent_again)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    check(put(1), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_PUT), 1);
    ck_assert_uint_eq(stats().put_chunks, 1); /* stored means stored */
    ck_assert_uint_eq(stats().put_bytes, BYTES);
    ck_assert_uint_eq(stats().had_chunks, 1);
    close_tier();
}
END_TEST

START_TEST(a_put_takes_no_memory)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    tierce__alloc_fail_nth(0);
    check(put(1), 0);
    check(put_after(2, 1), 0);
    check(put_after(4, 3), TIERCE_E_REFUSED);
    ck_assert_uint_eq(tierce__alloc_fail_nth(0), 0);
    close_tier();
}
END_TEST

/* The calls of a put change fields of its request; when it is answered, these are as before. */
START_TEST(an_answered_put_is_as_it_was)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    struct call *call = make_put(1);
    call->req.deadline_ns = tierce__deadline_in_ms(60000);
    struct tierce__store_req before = call->req;
    check(submit(call), 0); /* its last call was a lookup, which found the chunk */
    ck_assert(call->req.op == before.op && call->req.done == before.done);
    ck_assert_uint_eq(call->req.deadline_ns, before.deadline_ns);
    ck_assert_uint_eq(call->req.found, 0);
    close_tier();
}
END_TEST

/* ---- what the store has said ---- */

enum { RUN = 4 }; /* keys 1 .. RUN, one after the other */

static struct tierce__store_req look_up(enum tierce__tier_recall recall)
{
    static struct tierce__key keys[RUN];
    for (unsigned i = 0; i < RUN; i++)
        keys[i] = key_of(i + 1);
    struct call *call = make(TIERCE__STORE_LOOKUP, 1);
    call->req.keys = keys;
    call->req.key_count = RUN;
    call->req.recall = recall;
    ck_assert_uint_eq(submit(call)->done, 1);
    return call->req;
}

static void check_recalled(int status, size_t found)
{
    unsigned asked = store_connector_count(store, TIERCE__STORE_LOOKUP);
    struct tierce__store_req req = look_up(TIERCE__RECALL_ONLY);
    ck_assert_int_eq(req.status, status);
    ck_assert_uint_eq(req.found, found);
    ck_assert(req.recalled);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_LOOKUP), asked);
}

START_TEST(an_answer_in_part_counts_and_is_remembered)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    for (unsigned n = 1; n < RUN; n++)
        check(put(n), 0);
    check(submit(make(TIERCE__STORE_DELETE, RUN)), 0);
    struct call *clear = make(TIERCE__STORE_CLEAR, 0);
    clear->key.ns = ns[1]; /* nothing, but all is forgotten */
    check(submit(clear), 0);
    check_recalled(TIERCE_E_DEADLINE, 0);
    /* The store answers after the deadline: its result is still valid. */
    store_connector_fail(store, TIERCE__STORE_LOOKUP, TIERCE_E_DEADLINE, 1, true);
    struct tierce__store_req req = look_up(TIERCE__RECALL_FIRST);
    ck_assert_int_eq(req.status, TIERCE_E_DEADLINE);
    ck_assert_uint_eq(req.found, RUN - 1);
    ck_assert(!req.recalled);
    check_recalled(TIERCE_E_DEADLINE, RUN - 1);
    /* Only the rest is asked for. */
    req = look_up(TIERCE__RECALL_FIRST);
    ck_assert_int_eq(req.status, 0);
    ck_assert_uint_eq(req.found, RUN - 1);
    check_recalled(0, RUN - 1);
    /* Or all of it. */
    unsigned asked = store_connector_count(store, TIERCE__STORE_LOOKUP);
    req = look_up(TIERCE__RECALL_NOTHING);
    ck_assert(req.status == 0 && req.found == RUN - 1 && !req.recalled);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_LOOKUP), asked + 1);
    close_tier();
}
END_TEST

START_TEST(what_this_process_does_is_known_at_once)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    struct tierce__store_req req = look_up(TIERCE__RECALL_FIRST);
    ck_assert(req.status == 0 && req.found == 0);
    check_recalled(0, 0);
    for (unsigned n = 1; n <= RUN; n++)
        check(put(n), 0);
    check_recalled(0, RUN);
    check(submit(make(TIERCE__STORE_DELETE, 3)), 0);
    check_recalled(0, 2);
    check(submit(make(TIERCE__STORE_CLEAR, 0)), 0);
    check_recalled(TIERCE_E_DEADLINE, 0);
    close_tier();
}
END_TEST

START_TEST(a_read_that_misses_is_remembered)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    for (unsigned n = 1; n <= RUN; n++)
        check(put(n), 0);
    store_connector_fail(store, TIERCE__STORE_GET, TIERCE_E_MISS, 1, false);
    struct call *call = make(TIERCE__STORE_GET, 2);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call->req.buf, BYTES), 0);
    call->req.length = BYTES;
    check(submit(call), TIERCE_E_MISS);
    check_recalled(0, 1);
    close_tier();
}
END_TEST

START_TEST(a_no_is_believed_for_a_second_only)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    struct tierce__store_req req = look_up(TIERCE__RECALL_FIRST);
    ck_assert(req.status == 0 && req.found == 1);
    check_recalled(0, 1);
    uint64_t give_up_ns = tierce__deadline_in_ms(30000);
    for (call_count = 1; req.status == 0 && tierce__now_ns() < give_up_ns; call_count = 1)
        req = look_up(TIERCE__RECALL_ONLY);
    ck_assert_int_eq(req.status, TIERCE_E_DEADLINE);
    ck_assert_uint_eq(req.found, 1); /* a yes is believed for longer */
    close_tier();
}
END_TEST

START_TEST(a_suffix_goes_with_its_prefix)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *first = put(1), *second = put_after(2, 1), *third = put_after(3, 2);
    ck_assert_uint_eq(store_connector_held(store), 3); /* side by side */
    ck_assert(store_connector_let_one_go(store, ending(3)));
    ck_assert(store_connector_let_one_go(store, ending(2)));
    ck_assert_uint_eq(second->done + third->done, 0); /* not before the first is there */
    store_connector_fail(store, TIERCE__STORE_PUT, -EIO, 1, false);
    ck_assert(store_connector_let_one_go(store, ending(1)));
    check(first, -EIO);
    check(second, TIERCE_E_REFUSED);
    check(third, TIERCE_E_REFUSED);
    ck_assert_uint_eq(store_connector_objects(store), 0);
    (void)store_connector_let_go(store);
    check(put(1), 0);
    check(put_after(2, 1), 0);
    check(put_after(3, 2), 0);
    check(put_after(9, 8), TIERCE_E_REFUSED); /* nobody has its prefix */
    ck_assert(!is_there(9));
    ck_assert_uint_eq(stats().errors, 1);
    close_tier();
}
END_TEST

/* A missing key and a full store stop the successors too: those that wait (_i < 2), and those that
 * are being sent. */
START_TEST(successors_share_the_status_of_a_common_cause)
{
    int told = _i % 2 == 0 ? TIERCE_E_NO_KEY : TIERCE_E_FULL;
    int status = _i % 2 == 0 ? TIERCE_E_NO_KEY : -ENOSPC;
    unsigned writes = _i < 2 ? 1 : 3;
    open_tier(&(struct tierce__remote_opts){.writes = writes}, true);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *first = put(1), *second = put_after(2, 1), *third = put_after(3, 2);
    ck_assert_uint_eq(store_connector_held(store), writes);
    store_connector_fail(store, TIERCE__STORE_PUT, told, 1, false);
    ck_assert(store_connector_let_one_go(store, ending(1)));
    check(first, status);
    (void)store_connector_let_go(store);
    check(second, status);
    check(third, status);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_PUT), writes);
    ck_assert_uint_eq(store_connector_objects(store), 0);
    ck_assert_uint_eq(stats().errors, _i % 2 == 0 ? 0 : writes);
    close_tier();
}
END_TEST

/* A connector whose PUT asks by itself whether the store has the object. One that was there is not
 * undone, also if its prefix is not stored: another process has put it. */
START_TEST(a_connector_may_ask_by_itself)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    store_connector_set_asks(store);
    check(put(1), 0);
    check(put(1), 0);
    check(put_after(2, 1), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_LOOKUP), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_PUT), 3);
    ck_assert_uint_eq(stats().put_chunks, 2);
    ck_assert_uint_eq(stats().had_chunks, 1);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *first = put(5), *second = put_after(2, 5), *third = put_after(6, 5);
    store_connector_fail(store, TIERCE__STORE_PUT, -EBUSY, 1, false);
    (void)store_connector_let_go(store);
    check(first, TIERCE_E_REFUSED);
    check(third, TIERCE_E_REFUSED);
    ck_assert(second->req.status == 0 || second->req.status == TIERCE_E_REFUSED);
    ck_assert_uint_eq(store_connector_objects(store), 2); /* 1 and 2 */
    ck_assert(is_there(2) && !is_there(6));
    close_tier();
}
END_TEST

START_TEST(a_prefix_of_another_process_is_asked_for)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    check(submit(make(TIERCE__STORE_DELETE, 1)), 0);
    check(put_after(2, 1), TIERCE_E_REFUSED); /* it was known, and is not any more */
    ck_assert_uint_eq(store_connector_objects(store), 0);
    close_tier();
}
END_TEST

START_TEST(the_queue_is_bounded)
{
    open_tier(&(struct tierce__remote_opts){.queue_bytes = 4 * BYTES, .writes = 1}, true);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *sent = put(1);
    struct call *a = put(2), *a2 = put_after(3, 2), *b = put(4), *b2 = put_after(5, 4);
    ck_assert_uint_eq(stats().queued_bytes, 5 * BYTES);
    /* The oldest chunk is dropped, with its successors. */
    struct call *c = put(6);
    check(a, TIERCE_E_FULL);
    check(a2, TIERCE_E_FULL);
    ck_assert_uint_eq(b->done + b2->done + c->done, 0);
    /* A prompt does not evict its own prefix, and is truncated where there is no more room. */
    struct call *c2 = put_after(7, 6);
    struct call *c3 = put_after(8, 7);
    check(b, TIERCE_E_FULL);
    check(b2, TIERCE_E_FULL);
    struct call *c4 = put_after(9, 8), *c5 = put_after(10, 9);
    check(c5, TIERCE_E_FULL);
    ck_assert_uint_eq(stats().dropped_puts, 5);
    ck_assert_uint_eq(stats().queued_bytes, 5 * BYTES);
    (void)store_connector_let_go(store);
    check(sent, 0);
    check(c, 0);
    check(c2, 0);
    check(c3, 0);
    check(c4, 0);
    ck_assert_uint_eq(store_connector_objects(store), 5);
    ck_assert_uint_eq(stats().queued_bytes, 0);
    close_tier();
}
END_TEST

START_TEST(a_large_one_alone_always_fits)
{
    open_tier(&(struct tierce__remote_opts){.queue_bytes = 4096, .writes = 1}, true);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *one = put(1), *two = put(2), *three = put(3);
    check(two, TIERCE_E_FULL);
    (void)store_connector_let_go(store);
    check(one, 0);
    check(three, 0);
    close_tier();
}
END_TEST

START_TEST(what_is_only_read_is_not_changed)
{
    open_tier(&(struct tierce__remote_opts){.read_only = true}, true);
    check(put(1), TIERCE_E_REFUSED);
    check(submit(make(TIERCE__STORE_CLEAR, 0)), TIERCE_E_UNSUPPORTED);
    check(submit(make(TIERCE__STORE_DELETE, 1)), TIERCE_E_MISS);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_DELETE), 0);
    close_tier();
}
END_TEST

START_TEST(what_is_hidden_is_not_served)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    check(put(2), 0);
    check(submit(make(TIERCE__STORE_HIDE, 2)), 0);
    check(get(2, BYTES, 0, BYTES), TIERCE_E_MISS);
    ck_assert(!is_there(2));
    ck_assert(is_there(1));
    check(put(2), TIERCE_E_REFUSED);
    ck_assert_uint_eq(store_connector_objects(store), 2);
    close_tier();
}
END_TEST

/* It is hidden for a minute, in which its key may come, and a put replaces it at any time. */
START_TEST(what_no_key_decrypts_is_replaced)
{
    open_tier(&(struct tierce__remote_opts){0}, _i == 0);
    check(put(1), 0);
    for (unsigned puts = 1; puts <= 2; puts++) {
        store_connector_fail(store, TIERCE__STORE_GET, TIERCE_E_NO_KEY, 1, false);
        check(get(1, BYTES, 0, BYTES), TIERCE_E_NO_KEY);
        ck_assert(!is_there(1));
        check(get(1, BYTES, 0, BYTES), TIERCE_E_MISS);
        if (puts == 2) {
            atomic_fetch_add(&ahead_ns, 61000 * TIERCE__MS_NS);
            ck_assert(is_there(1)); /* the load fails again if the key has not come */
        }
        check(put(1), 0);
        ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_PUT), puts + 1);
        ck_assert(is_there(1));
        check(get(1, BYTES, 0, BYTES), 0);
    }
    check(put(1), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_PUT), 3);
    ck_assert_uint_eq(stats().errors, 0);
    close_tier();
}
END_TEST

/* A store that keeps the first object of a name (_i: 0), and one whose PUT asks by itself too. */
START_TEST(what_no_key_decrypts_stays_where_nothing_is_replaced)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    store_connector_base(store)->caps |= TIERCE__CONNECTOR_NO_REPLACE;
    if (_i > 0)
        store_connector_set_asks(store);
    check(put(1), 0);
    store_connector_fail(store, TIERCE__STORE_GET, TIERCE_E_NO_KEY, 1, false);
    check(get(1, BYTES, 0, BYTES), TIERCE_E_NO_KEY);
    check(put(1), TIERCE_E_REFUSED);
    ck_assert(!is_there(1)); /* as before: the put has stored nothing */
    check(submit(make(TIERCE__STORE_DELETE, 1)), 0);
    check(put(1), 0);
    ck_assert(is_there(1));
    check(get(1, BYTES, 0, BYTES), 0);
    close_tier();
}
END_TEST

/* A put that was sent must not be stored, but cannot be undone. */
START_TEST(what_cannot_be_taken_back_is_hidden)
{
    open_tier(&(struct tierce__remote_opts){.writes = 4}, false);
    store_connector_set_keeps(store);
    store_connector_hold(store, TIERCE__STORE_PUT);
    struct call *parent = put(1), *child = put_after(2, 1), *forgotten = put(3);
    struct call *deletion = submit(make(TIERCE__STORE_DELETE, 3));
    struct call *again = put(3);
    store_connector_fail(store, TIERCE__STORE_PUT, TIERCE_E_FULL, 1, false);
    (void)store_connector_let_go(store);
    check(parent, -ENOSPC);
    check(child, -ENOSPC);
    check(forgotten, TIERCE_E_CANCELLED);
    check(deletion, 0);
    check(again, 0);
    ck_assert_uint_eq(store_connector_objects(store), 2);
    ck_assert(!is_there(2));
    ck_assert(is_there(3));
    close_tier();
}
END_TEST

START_TEST(one_reading_serves_all_parts)
{
    open_tier(&(struct tierce__remote_opts){0}, false);
    ck_assert_uint_ne(tier->ops->caps & TIERCE__TIER_WHOLE, 0);
    check(put(1), 0);
    store_connector_hold(store, TIERCE__STORE_GET);
    struct call *first = get(1, BYTES, 0, 4096);
    struct call *second = make(TIERCE__STORE_GET, 1);
    second->req.buf = first->req.buf;
    tierce__buf_acquire(second->req.buf);
    second->req.offset = 4096;
    second->req.length = BYTES - 4096;
    submit(second);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_GET), 1);
    if (_i == 1)
        store_connector_fail(store, TIERCE__STORE_GET, TIERCE_E_DOWN, 1, false);
    store_connector_mark(store, false, _i == 0);
    (void)store_connector_let_go(store);
    check(first, _i == 1 ? TIERCE_E_DOWN : 0);
    ck_assert(first->req.connected == (_i == 0) && second->req.connected == (_i == 0));
    check(second, _i == 1 ? TIERCE_E_DOWN : 0);
    ck_assert(!first->req.repeats);
    ck_assert_int_eq(second->req.repeats, _i == 1);
    for (unsigned i = 0; i < BYTES && _i == 0; i++)
        ck_assert_uint_eq(first->req.buf->data[i], 1);
    close_tier();
}
END_TEST

START_TEST(failures_of_the_store_are_told)
{
    static const struct {
        int store, read, written;
    } cases[] = {{-ECONNRESET, -ECONNRESET, -ECONNRESET},
                 {TIERCE_E_DEADLINE, TIERCE_E_DEADLINE, TIERCE_E_DEADLINE},
                 {TIERCE_E_REFUSED, TIERCE_E_DOWN, -EACCES},
                 {TIERCE_E_LIMIT, TIERCE_E_DEADLINE, TIERCE_E_FULL},
                 {TIERCE_E_FULL, TIERCE_E_FULL, -ENOSPC},
                 {-EBUSY, -EBUSY, TIERCE_E_REFUSED},
                 {TIERCE_E_FORMAT, 0, -EPROTO}}; /* read again */
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        store_connector_fail(store, TIERCE__STORE_GET, cases[i].store, 1, false);
        check(get(1, BYTES, 0, BYTES), cases[i].read);
        store_connector_fail(store, TIERCE__STORE_PUT, cases[i].store, 1, false);
        check(put(2), cases[i].written);
    }
    store_connector_fail(store, TIERCE__STORE_LOOKUP, -EIO, 2, false);
    struct call *lookup = submit(make(TIERCE__STORE_LOOKUP, 1));
    check(lookup, -EIO);
    ck_assert_uint_eq(lookup->req.found, 0);
    check(put(3), -EIO);
    close_tier();
}
END_TEST

/* A store that permits only reads: one line in the log when that begins, one when it ends. */
START_TEST(rejected_writes_are_logged)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    record_log(TIERCE_LOG_WARN);
    check(put(1), 0);
    for (unsigned round = 1; round <= 2; round++) {
        store_connector_fail(store, TIERCE__STORE_PUT, TIERCE_E_REFUSED, 3, false);
        for (unsigned n = 0; n < 3; n++)
            check(put(10 * round + n), -EACCES);
        store_connector_fail(store, TIERCE__STORE_PUT, -EIO, 1, false);
        check(put(10 * round), -EIO); /* shows nothing about permissions */
        check(get(1, BYTES, 0, BYTES), 0);
        ck_assert_uint_eq(recorded_with("remote_rejects_writes", "tier=store why="), round);
        ck_assert_uint_eq(recorded("remote_accepts_writes"), round - 1);
        check(put(10 * round), 0);
        ck_assert_uint_eq(recorded("remote_accepts_writes"), round);
    }
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    close_tier();
}
END_TEST

START_TEST(a_repeated_failure_is_marked)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_LOOKUP, TIERCE__STORE_GET,
                                                TIERCE__STORE_PUT, TIERCE__STORE_PING};
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    for (int repeats = 0; repeats < 2; repeats++) {
        store_connector_mark(store, repeats == 1, false);
        for (unsigned i = 0; i < 4; i++)
            store_connector_fail(store, ops[i], TIERCE_E_DOWN, 1, false);
        const struct call *all[] = {submit(make(TIERCE__STORE_LOOKUP, 1)), get(1, BYTES, 0, BYTES),
                                    put(2), submit(make(TIERCE__STORE_PING, 1))};
        for (unsigned i = 0; i < 4; i++) {
            check(all[i], TIERCE_E_DOWN);
            ck_assert_int_eq(all[i]->req.repeats, repeats);
        }
    }
    close_tier();
}
END_TEST

START_TEST(who_reads_ahead_says_so)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    store_connector_mark(store, false, true);
    const struct call *first = get(1, BYTES, 0, BYTES);
    check(first, 0);
    ck_assert(first->req.connected);
    ck_assert_int_eq(store_connector_urgency(store), TIERCE__CONNECTOR_FETCH);
    struct call *ahead = make(TIERCE__STORE_GET, 1);
    ck_assert_int_eq(tierce__pool_alloc(pool, &ahead->req.buf, BYTES), 0);
    ahead->req.length = BYTES;
    ahead->req.ahead = true;
    check(submit(ahead), 0);
    ck_assert_int_eq(store_connector_urgency(store), TIERCE__CONNECTOR_PREFETCH);
    close_tier();
}
END_TEST

START_TEST(a_ping_asks_the_store)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(submit(make(TIERCE__STORE_PING, 0)), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_PING), 1);
    ck_assert_int_eq(store_connector_urgency(store), TIERCE__CONNECTOR_PEEK);
    store_connector_fail(store, TIERCE__STORE_PING, TIERCE_E_REFUSED, 1, false);
    check(submit(make(TIERCE__STORE_PING, 0)), TIERCE_E_DOWN);
    close_tier();
}
END_TEST

/* Neither a ping nor a read of a range can fail for lack of memory. */
START_TEST(requests_are_passed_on_without_memory)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    struct call *ping = make(TIERCE__STORE_PING, 0), *get = make(TIERCE__STORE_GET, 1);
    ck_assert_int_eq(tierce__pool_alloc(pool, &get->req.buf, BYTES), 0);
    get->req.length = BYTES;
    (void)tierce__alloc_fail_nth(0);
    check(submit(ping), 0);
    check(submit(get), 0);
    ck_assert_uint_eq(tierce__alloc_fail_nth(0), 0);
    ck_assert_ptr_eq(get->req.done, done); /* as the caller made it */
    ck_assert_uint_eq(get->req.buf->data[BYTES - 1], 1);
    close_tier();
}
END_TEST

START_TEST(the_connections_are_counted)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    ck_assert_uint_eq(stats().connections, 3);
    ck_assert_uint_eq(stats().connects, 5);
    ck_assert_uint_eq(stats().waiting, 7);
    ck_assert_uint_eq(stats().calls_hanging, 1);
    close_tier();
}
END_TEST

/* Queued chunks are sent until the deadline; then the rest is answered anyway. */
START_TEST(closing_sends_what_it_can)
{
    open_tier(&(struct tierce__remote_opts){.writes = 1}, true);
    store_connector_set_late(store, 1);
    struct call *first = put(1);
    put_after(2, 1);
    put_after(3, 2);
    record_log(TIERCE_LOG_WARN);
    ck_assert(tier->ops->close(tier, tierce__deadline_in_ms(10000)));
    ck_assert_uint_eq(recorded("remote_closed_early"), 0);
    for (unsigned i = 0; i < call_count; i++) {
        check(&calls[i], 0);
        tierce__buf_release(calls[i].req.buf);
    }
    ck_assert_ptr_nonnull(first);
    tierce__pool_destroy(pool);
    tierce__namespaces_destroy(namespaces);

    open_tier(&(struct tierce__remote_opts){.writes = 1}, true);
    store_connector_hold(store, TIERCE__STORE_PUT);
    put(1);
    put_after(2, 1);
    ck_assert(tier->ops->close(tier, tierce__deadline_in_ms(20)));
    char bytes[64];
    snprintf(bytes, sizeof(bytes), "tier=store bytes=%u ", 2 * BYTES);
    ck_assert_uint_eq(recorded_with("remote_closed_early", bytes), 1);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    check(&calls[0], TIERCE_E_CANCELLED);
    check(&calls[1], TIERCE_E_CANCELLED);
    tierce__buf_release(calls[0].req.buf);
    tierce__buf_release(calls[1].req.buf);
    tierce__pool_destroy(pool);
    tierce__namespaces_destroy(namespaces);
}
END_TEST

/* A rank that its group does not have: no name can be made of it. */
START_TEST(what_has_no_name_is_answered)
{
    static const enum tierce__store_op ops[] = {TIERCE__STORE_LOOKUP, TIERCE__STORE_DELETE,
                                                TIERCE__STORE_GET, TIERCE__STORE_PUT};
    static const int wanted[] = {0, TIERCE_E_MISS, TIERCE_E_MISS, TIERCE_E_ARGUMENT};
    for (int ranges = 0; ranges < 2; ranges++) {
        open_tier(&(struct tierce__remote_opts){0}, ranges != 0);
        for (unsigned i = 0; i < 4; i++) {
            struct call *call = make_put(1);
            struct tierce__buf *buf = call->req.buf;
            call->req.op = ops[i];
            call->req.length = BYTES;
            call->key.shard.tp_rank = 1;
            check(submit(call), wanted[i]);
            ck_assert_uint_eq(call->req.found, 0);
            if (ops[i] != TIERCE__STORE_GET && ops[i] != TIERCE__STORE_PUT)
                tierce__buf_release(buf);
        }
        close_tier(); /* where nothing is left behind */
    }
}
END_TEST

START_TEST(no_memory_is_an_answer)
{
    for (uint64_t nth = 1; nth < 64; nth++) {
        open_tier(&(struct tierce__remote_opts){0}, nth % 2 == 0);
        struct call *one = make_put(1), *two = make_put(2);
        tierce__alloc_fail_nth(nth);
        submit(one);
        submit(two);
        submit(make(TIERCE__STORE_LOOKUP, 1));
        get(1, BYTES, 0, BYTES);
        submit(make(TIERCE__STORE_DELETE, 2));
        submit(make(TIERCE__STORE_CLEAR, 0));
        bool over = tierce__alloc_fail_nth(0) > 0;
        unsigned failed = 0;
        for (unsigned i = 0; i < call_count; i++) {
            ck_assert_uint_eq(calls[i].done, 1);
            failed += calls[i].req.status == -ENOMEM;
        }
        close_tier();
        if (over)
            return;
        ck_assert_uint_ge(failed, 1);
    }
    ck_abort_msg("there is no end to allocations");
}
END_TEST

CHECK_MAIN("remote", .seconds = 60,
           .tests = {what_the_store_has_is_not_sent_again,
                     a_put_takes_no_memory,
                     an_answered_put_is_as_it_was,
                     an_answer_in_part_counts_and_is_remembered,
                     what_this_process_does_is_known_at_once,
                     a_read_that_misses_is_remembered,
                     a_no_is_believed_for_a_second_only,
                     a_suffix_goes_with_its_prefix,
                     a_prefix_of_another_process_is_asked_for,
                     a_connector_may_ask_by_itself,
                     the_queue_is_bounded,
                     a_large_one_alone_always_fits,
                     what_is_only_read_is_not_changed,
                     what_is_hidden_is_not_served,
                     what_cannot_be_taken_back_is_hidden,
                     rejected_writes_are_logged,
                     a_repeated_failure_is_marked,
                     failures_of_the_store_are_told,
                     who_reads_ahead_says_so,
                     a_ping_asks_the_store,
                     requests_are_passed_on_without_memory,
                     the_connections_are_counted,
                     closing_sends_what_it_can,
                     what_has_no_name_is_answered,
                     no_memory_is_an_answer},
           .loops = {{one_reading_serves_all_parts, 0, 2},
                     {what_no_key_decrypts_is_replaced, 0, 2},
                     {what_no_key_decrypts_stays_where_nothing_is_replaced, 0, 2},
                     {successors_share_the_status_of_a_common_cause, 0, 4}})
