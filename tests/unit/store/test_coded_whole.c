/* SPDX-License-Identifier: Apache-2.0 */
/* A remote store with coded objects that gives objects only whole, and tells their length. */
#include "coded_connector_case.h"
#include "wait_for.h"

static void open_with(const struct tierce__coded_connector_opts *with)
{
    open_store(false, with);
}

/* Raw and coded objects lie beside each other, and a reader needs no configuration. */
START_TEST(objects_come_back)
{
    uint64_t bytes = coded_bytes(&s);
    open_with(&(struct tierce__coded_connector_opts){.codec = _i == 0 ? lossless : NULL});
    ck_assert_uint_eq(connector->caps & TIERCE__CONNECTOR_TELLS_LENGTH, 0);
    for (uint64_t n = 0; n < 6; n++)
        ck_assert_int_eq(put(connector, n, (enum coded_kind)(n % CODED_KINDS)), 0);
    ck_assert_int_eq(put_to(connector, 7, (const uint8_t *)"abc", 3), 0); /* no chunk */
    unsigned before = store_connector_count(store, TIERCE__STORE_GET);
    for (uint64_t n = 0; n < 6; n++) {
        ck_assert(n % CODED_KINDS == CODED_NOISE || _i > 0 ? stored_bytes(n) == bytes
                                                           : stored_bytes(n) < bytes);
        ck_assert_int_eq(get_all(n, (enum coded_kind)(n % CODED_KINDS)), 0);
    }
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_GET), before + 6);
    ck_assert_uint_eq(stats_now().encoded_chunks, _i == 0 ? 4 : 0);
    ck_assert_uint_eq(stats_now().decoded_raw_bytes,
                      stats_now().encoded_chunks * coded_info(&s, 0).extent.payload_bytes);
    ck_assert_int_eq(get_all(9, CODED_VALUES), TIERCE_E_MISS);
    ck_assert_int_eq(get_all(7, CODED_VALUES), TIERCE_E_FORMAT); /* shorter */
    ck_assert_int_eq(get(0, CODED_VALUES, 4096, 4096), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(get(0, CODED_VALUES, 0, 4096), TIERCE_E_FORMAT); /* not the whole object */
    ck_assert_int_eq(get(1, CODED_NOISE, 0, 4096), TIERCE_E_FORMAT);
}
END_TEST

/* Many requests at once, with memory for one object, from a store that answers late and in another
 * order. Some end before they are given memory. */
START_TEST(requests_at_once)
{
    enum { COUNT = 64 };
    static struct connector_call calls[COUNT];
    make_store(false);
    store_connector_set_late(store, 1);
    wrap(&(struct tierce__coded_connector_opts){.codec = lossless, .staging_bytes_max = 1});
    for (uint64_t n = 0; n < OBJECTS; n++)
        ck_assert_int_eq(put(connector, n, (enum coded_kind)(n % CODED_KINDS)), 0);
    for (uint64_t i = 0; i < COUNT; i++)
        begin_get_by(&calls[i], i % OBJECTS, 0, coded_bytes(&s),
                     tierce__deadline_in_ms(i % 5 == 0 ? 2 : 100000));
    for (uint64_t i = 0; i < COUNT; i++) {
        int rc = end_get(&calls[i], i % OBJECTS, (enum coded_kind)(i % OBJECTS % CODED_KINDS));
        ck_assert(rc == 0 || (rc == TIERCE_E_DEADLINE && i % 5 == 0));
    }
}
END_TEST

START_TEST(flipped_bits_give_no_other_bytes)
{
    uint64_t bytes, failures = 0, rounds = 0;
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    uint8_t *stored = read_stored(1, &bytes);
    for (uint64_t at = 0; at < bytes; at += at < 512 ? 13 : 409, rounds++) {
        stored[at] ^= (uint8_t)(1u << at % 8);
        ck_assert_int_eq(put_to(below, 1, stored, bytes), 0);
        int rc = get_all(1, CODED_VALUES);
        ck_assert(rc == 0 || is_fault(rc));
        failures += rc != 0;
        stored[at] ^= (uint8_t)(1u << at % 8);
    }
    ck_assert_uint_gt(failures, rounds / 4);
    ck_assert_int_eq(put_to(below, 1, stored, bytes), 0);
    ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
    free(stored);
}
END_TEST

/* Objects that end early, or that have bytes behind their end. */
START_TEST(other_lengths_give_no_other_bytes)
{
    uint64_t bytes;
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    uint8_t *stored = read_stored(1, &bytes), *longer = calloc(1, bytes + 4096);
    ck_assert_ptr_nonnull(longer);
    memcpy(longer, stored, bytes);
    for (uint64_t end = 1; end < bytes; end += end < 4096 ? 455 : 4096) {
        ck_assert_int_eq(put_to(below, 1, stored, end), 0);
        ck_assert(is_fault(get_all(1, CODED_VALUES)));
    }
    ck_assert_int_eq(put_to(below, 1, longer, bytes + 4096), 0);
    ck_assert_int_eq(get_all(1, CODED_VALUES), TIERCE_E_CHECKSUM);
    /* A raw object that ends early. */
    ck_assert_int_eq(put_to(below, 1, made(1, CODED_NOISE), coded_bytes(&s) - 4096), 0);
    ck_assert(is_fault(get_all(1, CODED_NOISE)));
    free(longer);
    free(stored);
}
END_TEST

/* With a codec (_i: 1) and without one. Objects that no codec makes shorter are longer than their
 * chunk; the first of them is read twice. */
START_TEST(objects_are_encrypted)
{
    struct tierce__coded_keys *keys;
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    const struct tierce__coded_keys_opts of = {
        .size = sizeof(of),
        .command = "echo 3 0101010101010101010101010101010101010101010101010101010101010101"};
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &of, why), 0);
    open_with(&(struct tierce__coded_connector_opts){
        .codec = _i > 0 ? lossless : NULL, .keys = keys, .encrypts = true});
    for (uint64_t n = 0; n < 6; n++)
        ck_assert_int_eq(put(connector, n, (enum coded_kind)(n % CODED_KINDS)), 0);
    ck_assert_uint_gt(stored_bytes(1), coded_bytes(&s));
    ck_assert_uint_le(stored_bytes(1), coded_bytes(&s) + TIERCE__CODED_GROWTH_MAX);
    for (uint64_t n = 0; n < 6; n++)
        ck_assert_int_eq(get_all(n, (enum coded_kind)(n % CODED_KINDS)), 0);
    ck_assert_int_eq(get_all(1, CODED_NOISE), 0);
    unsigned before = store_connector_count(store, TIERCE__STORE_GET);
    ck_assert_int_eq(get_all(4, CODED_NOISE), 0);
    ck_assert_int_eq(get_all(5, CODED_ZEROES), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_GET), before + 2);
    ck_assert_int_eq(put(below, 7, CODED_NOISE), 0); /* a raw one beside them */
    ck_assert_int_eq(get_all(1, CODED_NOISE), 0);
    ck_assert_int_eq(get_all(7, CODED_NOISE), 0);
    close_all();
    tierce__coded_keys_close(keys);
}
END_TEST

/* An object that is replaced is read anew: nothing is remembered of it. */
START_TEST(a_replaced_object_is_read_anew)
{
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
    ck_assert_int_eq(connector_delete(below, name_of(1)), 0);
    ck_assert_int_eq(put(below, 1, CODED_NOISE), 0);
    ck_assert_int_eq(get_all(1, CODED_NOISE), 0);
}
END_TEST

START_TEST(failures_of_the_store_are_answered)
{
    static const int faults[] = {TIERCE_E_DOWN, TIERCE_E_DEADLINE, -EIO, TIERCE_E_FORMAT};
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    for (size_t i = 0; i < 4; i++) {
        store_connector_fail(store, TIERCE__STORE_GET, faults[i], 2, false);
        ck_assert_int_eq(get_all(1, CODED_VALUES), faults[i]);
        store_connector_fail(store, TIERCE__STORE_GET, 0, 0, false);
        ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
        store_connector_fail(store, TIERCE__STORE_PUT, faults[i], 1, false);
        ck_assert_int_eq(put(connector, 2, CODED_VALUES), faults[i]);
    }
}
END_TEST

START_TEST(close_answers_all)
{
    struct connector_call calls[6];
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless, .staging_bytes_max = 1});
    for (uint64_t n = 0; n < 3; n++)
        ck_assert_int_eq(put(connector, n, CODED_VALUES), 0);
    store_connector_hold(store, TIERCE__STORE_GET);
    for (uint64_t i = 0; i < 6; i++)
        begin_get(&calls[i], i / 2, 0, coded_bytes(&s));
    close_all();
    for (uint64_t i = 0; i < 6; i++) {
        int rc = end_get(&calls[i], i / 2, CODED_VALUES);
        ck_assert(rc == TIERCE_E_CANCELLED || rc == TIERCE_E_CLOSED);
    }
}
END_TEST

/* Bytes that were read before an invalidation, and are decoded after it, are not answered. */
START_TEST(invalidated_bytes_are_not_answered)
{
    enum coded_kind kind = _i == 0 ? CODED_VALUES : CODED_NOISE;
    struct connector_call call;
    make_store(false);
    store_connector_set_guarded(store);
    wrap(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, kind), 0);
    ck_assert_int_eq(get_all(1, kind), 0);
    store_connector_hold(store, TIERCE__STORE_GET);
    begin_get(&call, 1, 0, coded_bytes(&s));
    WAIT_FOR(store_connector_held(store) == 1);
    store_connector_invalidate(store);
    store_connector_let_go(store);
    ck_assert_int_eq(end_get(&call, 1, kind), TIERCE_E_MISS);
}
END_TEST

/* Whatever fails for lack of memory: never a wrong byte, and the next request succeeds. */
START_TEST(each_allocation_fails_once)
{
    uint64_t made_count = 1;
    for (uint64_t nth = 1; nth <= made_count; nth++) {
        open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
        ck_assert_int_eq(put(connector, 0, CODED_VALUES), 0);
        tierce__alloc_fail_nth(nth);
        int rc = put(connector, 1, CODED_VALUES), got = get_all(0, CODED_VALUES);
        uint64_t count = tierce__alloc_fail_nth(0);
        made_count = count > made_count ? count : made_count;
        ck_assert_int_eq(rc, 0); /* it stays raw */
        ck_assert(got == 0 || got == TIERCE_E_FULL);
        ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
        ck_assert_int_eq(get_all(0, CODED_VALUES), 0);
        close_all();
    }
    ck_assert_uint_gt(made_count, 4);
}
END_TEST

CHECK_MAIN("coded_whole", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {requests_at_once, flipped_bits_give_no_other_bytes,
                     other_lengths_give_no_other_bytes, a_replaced_object_is_read_anew,
                     failures_of_the_store_are_answered, close_answers_all,
                     each_allocation_fails_once},
           .loops = {{objects_come_back, 0, 2},
                     {objects_are_encrypted, 0, 2},
                     {invalidated_bytes_are_not_answered, 0, 2}})
