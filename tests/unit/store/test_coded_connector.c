/* SPDX-License-Identifier: Apache-2.0 */
/* A remote store with coded objects: callers see raw objects, and no damage gives other bytes. */
#include "coded_connector_case.h"
#include "wait_for.h"

#include <tierce/log.h>

static void open_with(const struct tierce__coded_connector_opts *with)
{
    open_store(true, with);
}

/* Raw and coded objects lie beside each other, and a reader needs no configuration. */
START_TEST(objects_come_back)
{
    uint64_t bytes = coded_bytes(&s);
    open_with(&(struct tierce__coded_connector_opts){.codec = _i == 0 ? lossless : NULL});
    for (uint64_t n = 0; n < 6; n++)
        ck_assert_int_eq(put(connector, n, (enum coded_kind)(n % CODED_KINDS)), 0);
    struct tierce__coded_stats stats = stats_now();
    ck_assert_uint_eq(stats.encoded_chunks, _i == 0 ? 4 : 0);
    ck_assert_uint_eq(stats.encoded_raw_bytes, stats.encoded_chunks * bytes);
    ck_assert_uint_eq(stats.raw_chunks[TIERCE__CODED_RAW_LONGER], _i == 0 ? 2 : 0);
    ck_assert_int_eq(put_to(connector, 7, (const uint8_t *)"abc", 3), 0); /* no chunk */
    for (uint64_t n = 0; n < 6; n++) {
        ck_assert(n % CODED_KINDS == CODED_NOISE || _i > 0 ? stored_bytes(n) == bytes
                                                           : stored_bytes(n) < bytes);
        ck_assert_int_eq(get_all(n, (enum coded_kind)(n % CODED_KINDS)), 0);
    }
    ck_assert_uint_eq(stats_now().decoded_raw_bytes,
                      stats.encoded_chunks * coded_info(&s, 0).extent.payload_bytes);
    ck_assert_int_eq(get_all(9, CODED_VALUES), TIERCE_E_MISS);
    ck_assert_int_eq(get_all(7, CODED_VALUES), TIERCE_E_FORMAT); /* shorter */
}
END_TEST

/* Every range of pages, also those that cut layers, of an object that is known and of one that is
 * not. */
START_TEST(ranges_come_back)
{
    uint64_t bytes = coded_bytes(&s);
    enum coded_kind kind = _i % 2 == 0 ? CODED_VALUES : CODED_NOISE,
                    before = (enum coded_kind)(1 - kind);
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 2, before), 0);
    for (uint64_t from = 0; from < bytes; from += 4096) {
        for (uint64_t length = 4096; from + length <= bytes; length += 4096) {
            if (_i < 2 || from == 0) /* nothing is known of the object */
                ck_assert_int_eq(put(connector, 1, kind), 0);
            if (length % 8192 == 0)
                ck_assert_int_eq(get_all(2, before), 0); /* it shows the other kind */
            ck_assert_int_eq(get(1, kind, from, length), 0);
        }
    }
}
END_TEST

/* Many requests for parts of some objects at once, with memory for one object, from a store that
 * answers late and in another order. */
START_TEST(requests_at_once)
{
    enum { COUNT = 64 };
    static struct connector_call calls[COUNT];
    uint64_t bytes = coded_bytes(&s);
    make_store(true);
    store_connector_set_late(store, 1);
    wrap(&(struct tierce__coded_connector_opts){.codec = lossless, .staging_bytes_max = 1});
    for (uint64_t n = 0; n < OBJECTS; n++)
        ck_assert_int_eq(put(connector, n, (enum coded_kind)(n % CODED_KINDS)), 0);
    for (uint64_t i = 0; i < COUNT; i++)
        begin_get(&calls[i], i % OBJECTS, i / OBJECTS * 16384,
                  i / OBJECTS < 3 ? 16384 : bytes - 3 * 16384);
    for (uint64_t i = 0; i < COUNT; i++)
        ck_assert_int_eq(
            end_get(&calls[i], i % OBJECTS, (enum coded_kind)(i % OBJECTS % CODED_KINDS)), 0);
}
END_TEST

/* Gets that end without memory pass it on: those with time are all served. Others read headers
 * alone while the memory of their object comes and goes. */
START_TEST(short_deadlines_beside_long_ones)
{
    enum { COUNT = 96 };
    static struct connector_call calls[COUNT];
    make_store(true);
    store_connector_set_late(store, 1);
    wrap(&(struct tierce__coded_connector_opts){.codec = lossless, .staging_bytes_max = 1});
    for (uint64_t n = 0; n < OBJECTS / 4; n++)
        ck_assert_int_eq(put(connector, n, CODED_VALUES), 0);
    for (uint64_t i = 0; i < COUNT; i++)
        begin_get_by(&calls[i], i % (OBJECTS / 4), 0, i % 5 == 0 ? 4096 : 32768,
                     tierce__deadline_in_ms(i % 3 == 0 ? 2 : 100000));
    for (uint64_t i = 0; i < COUNT; i++) {
        int rc = end_get(&calls[i], i % (OBJECTS / 4), CODED_VALUES);
        ck_assert(rc == 0 || (rc == TIERCE_E_DEADLINE && i % 3 == 0));
    }
}
END_TEST

/* Objects that stay raw need no memory of the connector while the store has them. */
START_TEST(raw_puts_do_not_wait_for_one_another)
{
    enum { PUTS = 3 };
    struct connector_call calls[PUTS];
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless, .staging_bytes_max = 1});
    store_connector_hold(store, TIERCE__STORE_PUT);
    for (uint64_t n = 0; n < PUTS; n++) {
        connector_call_init(&calls[n], TIERCE__STORE_PUT, name_of(n), 0);
        calls[n].req.buf = new_buf(coded_bytes(&s));
        calls[n].req.length = coded_bytes(&s);
        memcpy(calls[n].req.buf->data, made(n, CODED_NOISE), coded_bytes(&s));
        connector->ops->submit(connector, &calls[n].req);
    }
    WAIT_FOR(store_connector_held(store) == PUTS);
    store_connector_let_go(store);
    for (uint64_t n = 0; n < PUTS; n++) {
        ck_assert_int_eq(connector_call_wait(&calls[n]), 0);
        tierce__buf_release(calls[n].req.buf);
        ck_assert_int_eq(get_all(n, CODED_NOISE), 0);
    }
}
END_TEST

/* A random mix of operations, compared with a model. */
START_TEST(a_random_mix_equals_a_model)
{
    enum { NAMES = 12, STEPS = 400 };
    struct test_random random = {(uint64_t)_i + 1};
    int model[NAMES] = {0}; /* 0: none; kind + 1 */
    uint64_t pages = coded_bytes(&s) / 4096;
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    for (unsigned step = 0; step < STEPS; step++) {
        uint64_t n = test_random_below(&random, NAMES);
        enum coded_kind kind = (enum coded_kind)test_random_below(&random, CODED_KINDS);
        uint64_t from = test_random_below(&random, (uint32_t)pages);
        uint64_t count = 1 + test_random_below(&random, (uint32_t)(pages - from));
        switch (test_random_below(&random, 8)) {
        case 0: /* of this process, or of one without a codec; it may replace one that is known */
            ck_assert_int_eq(put(connector, n, kind), 0);
            model[n] = (int)kind + 1;
            break;
        case 1:
            ck_assert_int_eq(connector_delete(connector, name_of(n)), 0);
            model[n] = 0;
            break;
        case 2:
            if (model[n] == 0) {
                ck_assert_int_eq(put(below, n, kind), 0);
                model[n] = (int)kind + 1;
            }
            break;
        default:
            ck_assert_int_eq(get(n, (enum coded_kind)(model[n] - 1), from * 4096, count * 4096),
                             model[n] == 0 ? TIERCE_E_MISS : 0);
        }
    }
    ck_assert_uint_gt(stats_now().decoded_bytes, 0);
}
END_TEST

/* A bit of the stored object is flipped: an error, or the right bytes if a gap has it. A flipped
 * bit in the magic or the version makes it an object that is not coded, whose bytes the reader of
 * chunks rejects. */
START_TEST(flipped_bits_give_no_other_bytes)
{
    uint64_t bytes, failures = 0, rounds = 0;
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    uint8_t *stored = read_stored(1, &bytes);
    for (uint64_t at = 12; at < bytes; at += at < 512 ? 13 : 409, rounds++) {
        stored[at] ^= (uint8_t)(1u << at % 8);
        ck_assert_int_eq(put_to(below, 1, stored, bytes), 0);
        int rc = get_all(1, CODED_VALUES);
        ck_assert(rc == 0 || is_fault(rc));
        rc = get(1, CODED_VALUES, 8192, 16384);
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

/* Objects that end early, at each page: never other bytes, never a request without an answer. */
START_TEST(shorter_objects_give_no_other_bytes)
{
    uint64_t bytes;
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    uint8_t *stored = read_stored(1, &bytes);
    for (uint64_t end = 4096; end < bytes; end += 4096) {
        ck_assert_int_eq(put_to(below, 1, stored, end), 0);
        ck_assert(is_fault(get_all(1, CODED_VALUES)));
    }
    free(stored);
}
END_TEST

/* The rule of builds before codecs: chunk_parse of versions 1 and 2. A whole object has another
 * length, and a part of it is of an unknown version: both are misses that delete nothing. */
START_TEST(an_older_reader_leaves_coded_objects_alone)
{
    uint64_t bytes;
    struct tierce__chunk_info info;
    struct connector_call call;
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    uint8_t *stored = read_stored(1, &bytes);
    ck_assert_int_eq(tierce__chunk_parse(&info, stored, bytes), TIERCE_E_VERSION);
    ck_assert_uint_eq(tierce__load_le32(stored + 8), 3);
    connector_call_init(&call, TIERCE__STORE_GET, name_of(1), 0);
    call.req.buf = new_buf(coded_bytes(&s));
    call.req.length = coded_bytes(&s);
    ck_assert_int_eq(connector_call_run(below, &call), TIERCE_E_FORMAT);
    tierce__buf_release(call.req.buf);
    free(stored);
}
END_TEST

/* Another process replaces a known object: by one with other bytes, by a raw one after a deletion.
 */
START_TEST(a_replaced_object_is_read_anew)
{
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    ck_assert_int_eq(put(connector, 2, CODED_VALUES), 0);
    ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
    uint64_t bytes;
    uint8_t *stored = read_stored(2, &bytes);
    ck_assert_int_eq(put_to(below, 1, stored, bytes), 0); /* the sums of its layers are others */
    struct connector_call call;
    begin_get(&call, 1, 8192, 16384);
    ck_assert_int_eq(end_get(&call, 2, CODED_VALUES), 0);
    free(stored);
    ck_assert_int_eq(connector_delete(below, name_of(1)), 0);
    ck_assert_int_eq(put(below, 1, CODED_NOISE), 0);
    ck_assert_int_eq(get(1, CODED_NOISE, 8192, 16384), 0);
}
END_TEST

/* It has become shorter, so that a read of the known one ends behind it: a raw object that is coded
 * now (_i: 0), and a coded one. */
START_TEST(a_shorter_object_is_read_anew)
{
    uint64_t bytes, end = coded_bytes(&s);
    enum coded_kind kind = _i % 2 == 0 ? CODED_VALUES : CODED_ZEROES;
    struct connector_call call;
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(_i % 2 == 0 ? below : connector, 1, CODED_VALUES), 0);
    ck_assert_int_eq(put(connector, 2, kind), 0);
    ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
    uint8_t *stored = read_stored(2, &bytes);
    ck_assert_uint_lt(bytes, stored_bytes(1));
    ck_assert_int_eq(put_to(below, 1, stored, bytes), 0);
    if (_i > 1)
        store_connector_set_misses_behind(store);
    begin_get(&call, 1, end - 4096, 4096);
    ck_assert_int_eq(end_get(&call, 2, kind), 0);
    free(stored);
    /* A truly shorter one is read twice, not for ever. */
    ck_assert_int_eq(put_to(below, 1, untouched, 4096), 0);
    int rc = get(1, kind, end - 4096, 4096);
    ck_assert(_i > 1 ? rc == TIERCE_E_MISS : is_fault(rc));
}
END_TEST

/* With a codec (_i: 1) and without one. The only key is for another namespace. */
START_TEST(an_object_without_a_key_is_not_stored)
{
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct tierce__coded_keys *keys;
    const struct tierce__coded_keys_opts opts = {
        .size = sizeof(opts),
        .command =
            "echo 3 0101010101010101010101010101010101010101010101010101010101010101 00000000"};
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), 0);
    open_with(&(struct tierce__coded_connector_opts){
        .codec = _i > 0 ? lossless : NULL, .keys = keys, .encrypts = true});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), TIERCE_E_NO_KEY);
    ck_assert_uint_eq(store_connector_objects(store), 0);
    struct tierce__coded_stats stats;
    tierce__coded_connector_stats(connector, &stats);
    ck_assert_uint_eq(stats.refused_chunks, 1);
    close_all();
    tierce__coded_keys_close(keys);
}
END_TEST

/* With a codec (_i: 1) and without one. Nothing of the values is in the store, and only their key
 * opens them. */
START_TEST(objects_are_encrypted)
{
    static const char *const commands[] = {
        "echo 3 0101010101010101010101010101010101010101010101010101010101010101",
        "echo 3 0202020202020202020202020202020202020202020202020202020202020202"};
    struct tierce__coded_keys *keys[2];
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    uint64_t bytes, header = coded_info(&s, 1).extent.header_bytes, end = coded_bytes(&s);
    for (size_t i = 0; i < 2; i++) {
        const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .command = commands[i]};
        ck_assert_int_eq(tierce__coded_keys_open(&keys[i], &opts, why), 0);
    }
    open_with(&(struct tierce__coded_connector_opts){
        .codec = _i > 0 ? lossless : NULL, .keys = keys[0], .encrypts = true});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    ck_assert_int_eq(put(connector, 2, CODED_NOISE), 0);
    ck_assert_int_eq(put_to(connector, 3, untouched, 8192), TIERCE_E_FULL); /* it is no chunk */
    ck_assert_uint_eq(store_connector_objects(store), 2);
    uint8_t *stored = read_stored(2, &bytes);
    for (uint64_t at = header; at + 32 <= end - 4096; at += 512)
        ck_assert_ptr_null(memmem(stored, bytes, made(2, CODED_NOISE) + at, 32));
    free(stored);
    ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
    ck_assert_int_eq(get(2, CODED_NOISE, end - 8192, 8192), 0);
    struct tierce__coded_stats stats;
    tierce__coded_connector_stats(connector, &stats);
    ck_assert_uint_eq(stats.encrypted_chunks, 2);
    ck_assert_uint_eq(stats.refused_chunks, 1);
    stored = read_stored(1, &bytes);
    close_all();
    open_with(&(struct tierce__coded_connector_opts){.keys = keys[1]});
    ck_assert_int_eq(put_to(below, 1, stored, bytes), 0);
    ck_assert_int_eq(get_all(1, CODED_VALUES), TIERCE_E_NO_KEY);
    tierce__coded_connector_stats(connector, &stats);
    ck_assert_uint_eq(stats.wrong_key_reads, 1);
    ck_assert_uint_eq(store_connector_objects(store), 1);
    close_all();
    free(stored);
    for (size_t i = 0; i < 2; i++)
        tierce__coded_keys_close(keys[i]);
}
END_TEST

/* The ranges of an unknown object are read as those of a raw one, also behind the end of the coded
 * object. */
START_TEST(a_coded_object_is_found_by_all_ranges)
{
    enum { RANGES = 4 };
    struct connector_call calls[RANGES];
    uint64_t length = coded_bytes(&s) / 4096 / RANGES * 4096;
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    if (_i == 1)
        store_connector_set_misses_behind(store);
    ck_assert_int_eq(put(connector, 1, CODED_ZEROES), 0);
    ck_assert_uint_le(stored_bytes(1), (RANGES - 1) * length);
    store_connector_hold(store, TIERCE__STORE_GET);
    for (uint64_t i = 0; i < RANGES; i++)
        begin_get(&calls[i], 1, i * length, length);
    store_connector_let_go(store);
    for (uint64_t i = 0; i < RANGES; i++)
        ck_assert_int_eq(end_get(&calls[i], 1, CODED_ZEROES), 0);
    /* An object that does not exist is a miss in each range. */
    for (uint64_t i = 0; i < RANGES; i++)
        begin_get(&calls[i], 2, i * length, length);
    for (uint64_t i = 0; i < RANGES; i++)
        ck_assert_int_eq(end_get(&calls[i], 2, CODED_ZEROES), TIERCE_E_MISS);
}
END_TEST

/* Raw objects are read as fast as without this connector: ranges do not wait for the beginning. */
START_TEST(ranges_of_raw_objects_are_read_at_once)
{
    enum { RANGES = 4 };
    struct connector_call calls[RANGES];
    uint64_t length = coded_bytes(&s) / 4096 / RANGES * 4096;
    open_with(&(struct tierce__coded_connector_opts){0});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    store_connector_hold(store, TIERCE__STORE_GET);
    for (uint64_t i = 0; i < RANGES; i++)
        begin_get(&calls[i], 1, i * length, length);
    ck_assert_uint_eq(store_connector_held(store), RANGES);
    ck_assert_uint_eq(store_connector_let_go(store), RANGES);
    for (uint64_t i = 0; i < RANGES; i++)
        ck_assert_int_eq(end_get(&calls[i], 1, CODED_VALUES), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_GET), RANGES);
}
END_TEST

/* The ranges of a coded object are read once each, and the first with its head. */
START_TEST(coded_layers_are_read_once)
{
    uint64_t bytes = coded_bytes(&s);
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    for (uint64_t n = 1; n <= 3; n++)
        ck_assert_int_eq(put(connector, n, CODED_ZEROES), 0);
    ck_assert_int_eq(get(1, CODED_ZEROES, 0, bytes / 2 / 4096 * 4096), 0);
    unsigned before = store_connector_count(store, TIERCE__STORE_GET);
    ck_assert_int_eq(get(2, CODED_ZEROES, 0, bytes / 2 / 4096 * 4096), 0);
    ck_assert_uint_le(store_connector_count(store, TIERCE__STORE_GET), before + 2);
    struct connector_call a, b;
    before = store_connector_count(store, TIERCE__STORE_GET);
    store_connector_hold(store, TIERCE__STORE_GET);
    begin_get(&a, 2, 8192, bytes - 8192);
    begin_get(&b, 2, 8192, bytes - 8192);
    ck_assert_uint_eq(store_connector_held(store), 1);
    store_connector_let_go(store);
    ck_assert_int_eq(end_get(&a, 2, CODED_ZEROES), 0);
    ck_assert_int_eq(end_get(&b, 2, CODED_ZEROES), 0);
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_GET), before + 1);
}
END_TEST

START_TEST(failures_of_the_store_are_answered)
{
    static const int faults[] = {TIERCE_E_DOWN, TIERCE_E_DEADLINE, -EIO};
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    for (size_t i = 0; i < 3; i++) {
        for (unsigned times = 1; times <= 2; times++) {
            ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0); /* nothing is known of it */
            store_connector_fail(store, TIERCE__STORE_GET, faults[i], times, false);
            int rc = get(1, CODED_VALUES, 4096, 8192);
            ck_assert_int_eq(rc, faults[i]);
            store_connector_fail(store, TIERCE__STORE_GET, 0, 0, false);
            ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
        }
        store_connector_fail(store, TIERCE__STORE_PUT, faults[i], 1, false);
        ck_assert_int_eq(put(connector, 2, CODED_VALUES), faults[i]);
    }
}
END_TEST

/* A get that waits for another's read is answered at its own deadline. */
START_TEST(deadlines_are_observed)
{
    struct connector_call first, second;
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    store_connector_hold(store, TIERCE__STORE_GET);
    begin_get(&first, 1, 0, 16384);
    connector_call_init(&second, TIERCE__STORE_GET, name_of(1), 0);
    second.req.buf = new_buf(coded_bytes(&s));
    second.req.offset = 16384;
    second.req.length = 8192;
    second.req.deadline_ns = tierce__deadline_in_ms(5);
    connector->ops->submit(connector, &second.req);
    ck_assert_int_eq(connector_call_wait(&second), TIERCE_E_DEADLINE);
    ck_assert(second.req.repeats);
    tierce__buf_release(second.req.buf);
    store_connector_let_go(store);
    ck_assert_int_eq(end_get(&first, 1, CODED_VALUES), 0);
}
END_TEST

/* There is memory for a long object and a short one, and not for two long ones. A get of a second
 * long object waits; a get of the short one, for which there is room, does not overtake it. Nor
 * does it wait longer than for the deadline of the get before it (_i: 1). */
START_TEST(gets_that_wait_for_memory_are_served_in_order)
{
    const uint64_t room = 92 << 10;
    struct connector_call calls[3];
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless, .staging_bytes_max = room});
    for (uint64_t n = 0; n < 3; n++) { /* the beginnings are known */
        ck_assert_int_eq(put(connector, n, n == 2 ? CODED_ZEROES : CODED_VALUES), 0);
        ck_assert_int_eq(get_all(n, n == 2 ? CODED_ZEROES : CODED_VALUES), 0);
    }
    ck_assert_uint_le(stored_bytes(0) + stored_bytes(2), room);
    ck_assert_uint_gt(stored_bytes(0) + stored_bytes(1), room);
    store_connector_hold(store, TIERCE__STORE_GET);
    begin_get(&calls[0], 0, 4096, 16384);
    begin_get_by(&calls[1], 1, 4096, 16384, tierce__deadline_in_ms(_i == 0 ? 100000 : 20));
    begin_get(&calls[2], 2, 4096, 16384);
    if (_i == 0)
        ck_assert_uint_eq(store_connector_held(store), 1);
    else
        WAIT_FOR(store_connector_held(store) == 2);
    store_connector_let_go(store);
    for (uint64_t n = 0; n < 3; n++)
        ck_assert_int_eq(end_get(&calls[n], n, n == 2 ? CODED_ZEROES : CODED_VALUES),
                         n == 1 && _i == 1 ? TIERCE_E_DEADLINE : 0);
}
END_TEST

/* Close answers the requests that the store has not answered, and those that wait for them. */
START_TEST(close_answers_all)
{
    struct connector_call calls[6];
    open_with(&(struct tierce__coded_connector_opts){.codec = lossless, .staging_bytes_max = 1});
    for (uint64_t n = 0; n < 3; n++)
        ck_assert_int_eq(put(connector, n, CODED_VALUES), 0);
    if (_i > 0)
        ck_assert_int_eq(get_all(1, CODED_VALUES), 0); /* it sees a coded one: no guesses */
    store_connector_hold(store, TIERCE__STORE_GET);
    for (uint64_t i = 0; i < 6; i++)
        begin_get(&calls[i], i / 2, i % 2 * 16384, 16384);
    close_all();
    for (uint64_t i = 0; i < 6; i++) {
        int rc = end_get(&calls[i], i / 2, CODED_VALUES);
        ck_assert(rc == TIERCE_E_CANCELLED || rc == TIERCE_E_CLOSED);
    }
}
END_TEST

static struct tierce__buf *no_memory(void *arg, uint64_t bytes)
{
    (void)arg;
    (void)bytes;
    return NULL;
}

START_TEST(without_memory_chunks_stay_raw_and_reads_fail)
{
    make_store(true);
    wrap(&(struct tierce__coded_connector_opts){
        .codec = lossless, .alloc = no_memory, .no_pool = true});
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    ck_assert_uint_eq(stats_now().raw_chunks[TIERCE__CODED_RAW_MEMORY], 1);
    ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
    uint8_t *raw = malloc(coded_bytes(&s)), *coded = malloc(2 * coded_bytes(&s));
    struct tierce__chunk_info info;
    coded_make(&s, raw, 2, CODED_VALUES);
    ck_assert_int_eq(tierce__chunk_parse(&info, raw, coded_bytes(&s)), 0);
    int64_t length = tierce__coded_encode(coded, 2 * coded_bytes(&s), raw, &info, lossless,
                                          TIERCE__ELEMENT_BF16);
    ck_assert_int_gt(length, 0);
    ck_assert_int_eq(put_to(below, 2, coded, (uint64_t)length), 0);
    ck_assert_int_eq(get_all(2, CODED_VALUES), TIERCE_E_FULL);
    free(raw);
    free(coded);
}
END_TEST

/* Whatever fails for lack of memory: never a wrong byte, and the next request succeeds. */
START_TEST(each_allocation_fails_once)
{
    uint64_t made = 1;
    for (uint64_t nth = 1; nth <= made; nth++) {
        open_with(&(struct tierce__coded_connector_opts){.codec = lossless});
        ck_assert_int_eq(put(connector, 0, CODED_VALUES), 0);
        tierce__alloc_fail_nth(nth);
        int rc = put(connector, 1, CODED_VALUES), got = get_all(0, CODED_VALUES);
        int part = get(0, CODED_VALUES, 8192, 16384);
        uint64_t count = tierce__alloc_fail_nth(0);
        made = count > made ? count : made;
        ck_assert_int_eq(rc, 0); /* it stays raw */
        ck_assert(got == 0 || got == TIERCE_E_FULL);
        ck_assert(part == 0 || part == TIERCE_E_FULL);
        ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
        ck_assert_int_eq(get_all(0, CODED_VALUES), 0);
        close_all();
    }
    ck_assert_uint_gt(made, 4);
}
END_TEST

static _Atomic unsigned slow_is_logged;

static void count_slow(void *arg, enum tierce_log_level level, const char *event,
                       const char *fields)
{
    (void)arg, (void)level;
    if (strcmp(event, "codec_not_used") == 0 && strstr(fields, "tier=store") != NULL)
        atomic_fetch_add(&slow_is_logged, 1);
}

/* The store is memory of this process: a load waits longer for the decoder than a read of the bytes
 * takes that the codec saves, as soon as enough reads have shown this. _i: the operator wants it
 * nevertheless. */
START_TEST(a_codec_that_makes_loads_slower_is_not_used)
{
    open_with(&(struct tierce__coded_connector_opts){
        .codec = lossless, .measured_bytes = 1, .load_time_max = _i == 1 ? 1e9 : 0});
    tierce_set_log_fn(count_slow, NULL, TIERCE_LOG_WARN);
    ck_assert_int_eq(put(connector, 1, CODED_VALUES), 0);
    ck_assert_int_eq(put(below, 2, CODED_NOISE), 0);
    ck_assert_int_eq(get_all(1, CODED_VALUES), 0);
    WAIT_FOR(get_all(2, CODED_NOISE) == 0 && stats_now().load_time > 1);
    ck_assert_uint_eq(stats_now().raw_chunks[TIERCE__CODED_RAW_SLOW], 0);
    ck_assert_int_eq(put(connector, 3, CODED_VALUES), 0);
    ck_assert_int_eq(put(connector, 4, CODED_VALUES), 0);
    bool is_used = _i == 1;
    ck_assert_uint_eq(stats_now().raw_chunks[TIERCE__CODED_RAW_SLOW], is_used ? 0 : 2);
    ck_assert_uint_eq(atomic_load(&slow_is_logged), is_used ? 0 : 1);
    ck_assert_int_eq(stored_bytes(3) == coded_bytes(&s), !is_used);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
}
END_TEST

/* After loads of coded chunks only, a chunk stays raw to measure loads of it; then no more do. More
 * is required than the head of the first object, which is taken for raw. */
START_TEST(a_sample_stays_raw)
{
    open_with(&(struct tierce__coded_connector_opts){
        .codec = lossless, .measured_bytes = 16384, .load_time_max = 1e9});
    for (unsigned n = 1; n < 4; n++) {
        ck_assert_int_eq(put(connector, n, CODED_VALUES), 0);
        ck_assert_int_eq(stored_bytes(n) == coded_bytes(&s), n == 2);
        ck_assert_int_eq(get_all(n, CODED_VALUES), 0);
        ck_assert_uint_eq(stats_now().raw_chunks[TIERCE__CODED_RAW_SAMPLE], n >= 2);
    }
}
END_TEST

CHECK_MAIN("coded_connector", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {ranges_of_raw_objects_are_read_at_once, coded_layers_are_read_once,
                     requests_at_once, short_deadlines_beside_long_ones,
                     raw_puts_do_not_wait_for_one_another, flipped_bits_give_no_other_bytes,
                     shorter_objects_give_no_other_bytes,
                     an_older_reader_leaves_coded_objects_alone, a_replaced_object_is_read_anew,
                     failures_of_the_store_are_answered, deadlines_are_observed,
                     without_memory_chunks_stay_raw_and_reads_fail, each_allocation_fails_once,
                     a_sample_stays_raw},
           .loops = {{objects_come_back, 0, 2},
                     {ranges_come_back, 0, 4},
                     {a_random_mix_equals_a_model, 0, 2},
                     {a_shorter_object_is_read_anew, 0, 4},
                     {a_coded_object_is_found_by_all_ranges, 0, 2},
                     {an_object_without_a_key_is_not_stored, 0, 2},
                     {objects_are_encrypted, 0, 2},
                     {gets_that_wait_for_memory_are_served_in_order, 0, 2},
                     {a_codec_that_makes_loads_slower_is_not_used, 0, 2},
                     {close_answers_all, 0, 2}})
