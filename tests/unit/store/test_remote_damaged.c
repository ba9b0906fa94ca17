/* SPDX-License-Identifier: Apache-2.0 */
/* Objects in a store that are not what they must be, as a remote tier reads them. */
#include "log_record.h"
#include "remote_world.h"

#include <errno.h>
#include <tierce/log.h>

/* Its status tells the reader to delete it. */
START_TEST(an_object_that_is_too_short_is_wrong)
{
    for (int ranges = 0; ranges < 2; ranges++) {
        open_tier(&(struct tierce__remote_opts){0}, ranges != 0);
        check(put(1), 0);
        store_connector_cut(store, _i == 0 ? BYTES / 2 : 0);
        check(get(1, BYTES, 0, BYTES), TIERCE_E_FORMAT);
        check(get(1, BYTES, BYTES / 2, 4096), TIERCE_E_FORMAT);
        check(submit(make(TIERCE__STORE_DELETE, 1)), 0);
        check(get(1, BYTES, 0, BYTES), TIERCE_E_MISS);
        check(put(1), 0);
        check(get(1, BYTES, 0, BYTES), 0);
        ck_assert_uint_eq(stats().errors, 0);
        close_tier();
    }
}
END_TEST

/* Redis answers a read of an empty object like that of a missing one; so does a node that cannot
 * read its disk in time, so the object is not deleted. */
START_TEST(an_object_without_bytes_is_hidden_until_it_is_replaced)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    store_connector_set_misses_behind(store);
    record_log(TIERCE_LOG_WARN);
    check(put(1), 0);
    store_connector_cut(store, 0);
    ck_assert(is_there(1));
    check(get(1, BYTES, 0, BYTES), TIERCE_E_MISS);
    ck_assert(!is_there(1));
    check(get(1, BYTES, 0, BYTES), TIERCE_E_MISS);
    ck_assert_uint_eq(recorded_with("remote_object_unreadable", "tier=store"), 1);
    ck_assert_uint_eq(stats().errors, 1);
    check(put(1), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_PUT), 2);
    check(get(1, BYTES, 0, BYTES), 0);
    /* A missing object is neither hidden nor logged. */
    check(get(2, BYTES, 0, BYTES), TIERCE_E_MISS);
    ck_assert_uint_eq(recorded("remote_object_unreadable"), 1);
    ck_assert_uint_eq(stats().errors, 1);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    close_tier();
}
END_TEST

/* Another process stores the object while it is read, or the store gives one invalid answer. */
START_TEST(a_read_is_repeated_before_an_object_is_wrong)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    store_connector_set_misses_behind(store);
    check(put(1), 0);
    store_connector_fail(store, TIERCE__STORE_GET, _i == 0 ? TIERCE_E_MISS : TIERCE_E_FORMAT, 1,
                         false);
    check(get(1, BYTES, 0, BYTES), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_GET), 2);
    ck_assert(is_there(1));
    /* The store does not confirm that it has the object. */
    store_connector_fail(store, TIERCE__STORE_GET, _i == 0 ? TIERCE_E_MISS : TIERCE_E_FORMAT, 1,
                         false);
    store_connector_fail(store, TIERCE__STORE_LOOKUP, -EIO, 1, false);
    check(get(1, BYTES, 0, BYTES), TIERCE_E_MISS);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_GET), 3);
    check(get(1, BYTES, 0, BYTES), 0);
    ck_assert_uint_eq(stats().errors, 0);
    close_tier();
}
END_TEST

/* A store that reads from several places chooses another place by itself. */
START_TEST(a_store_with_several_places_is_not_asked_again)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    store_connector_base(store)->caps |= TIERCE__CONNECTOR_REJECTS;
    check(put(1), 0);
    store_connector_cut(store, BYTES / 2);
    check(get(1, BYTES, 0, BYTES), TIERCE_E_MISS);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_GET), 1);
    close_tier();
}
END_TEST

/* A store that cannot delete: what is forgotten or bad is hidden from this process, and the next
 * put replaces it. */
START_TEST(what_cannot_be_deleted_is_hidden_until_it_is_replaced)
{
    open_tier(&(struct tierce__remote_opts){0}, false);
    store_connector_set_keeps(store);
    check(put(1), 0);
    check(put(1), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_PUT), 1);
    check(submit(make(TIERCE__STORE_DELETE, 1)), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_DELETE), 0);
    ck_assert(!is_there(1));
    check(get(1, BYTES, 0, BYTES), TIERCE_E_MISS);
    check(put(1), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_PUT), 2);
    ck_assert(is_there(1));
    check(get(1, BYTES, 0, BYTES), 0);
    store_connector_cut(store, BYTES / 2);
    ck_assert(is_there(1));
    check(get(1, BYTES, 0, BYTES), TIERCE_E_FORMAT);
    ck_assert(!is_there(1));
    check(put(1), 0);
    check(get(1, BYTES, 0, BYTES), 0);
    check(submit(make(TIERCE__STORE_HIDE, 1)), 0); /* which is for good */
    check(put(1), TIERCE_E_REFUSED);
    close_tier();
}
END_TEST

/* A lookup of a put tells the length of the stored object, or of the parent's, which may be
 * damaged or compressed: it is neither what the put sends nor what the queue holds. */
START_TEST(a_put_has_its_own_length)
{
    open_tier(&(struct tierce__remote_opts){0}, true);
    check(put(1), 0);
    store_connector_cut(store, BYTES / 2);
    struct call *again = put(1);
    check(again, 0);
    ck_assert_uint_eq(again->req.object_bytes, BYTES);
    ck_assert_uint_eq(stats().queued_bytes, 0);
    struct call *clear = make(TIERCE__STORE_CLEAR, 0);
    clear->key.ns = ns[1]; /* nothing, but the tier forgets that the store has chunk 1 */
    check(submit(clear), 0);
    unsigned asked = store_connector_count(store, TIERCE__STORE_LOOKUP);
    check(put_after(2, 1), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_LOOKUP), asked + 2);
    ck_assert_uint_eq(stats().queued_bytes, 0);
    ck_assert_uint_eq(stats().put_bytes, 2 * BYTES);
    check(get(2, BYTES, 0, BYTES), 0);
    close_tier();
}
END_TEST

CHECK_MAIN("damaged objects", .seconds = 30,
           .tests = {a_put_has_its_own_length,
                     an_object_without_bytes_is_hidden_until_it_is_replaced,
                     a_store_with_several_places_is_not_asked_again,
                     what_cannot_be_deleted_is_hidden_until_it_is_replaced},
           .loops = {{an_object_that_is_too_short_is_wrong, 0, 2},
                     {a_read_is_repeated_before_an_object_is_wrong, 0, 2}})
