/* SPDX-License-Identifier: Apache-2.0 */
/* A store whose objects change between raw and coded at any time, as those of other engines do:
 * readers never mix the two forms, and find the other one. */
#include "coded_connector_case.h"
#include "wait_for.h"

enum { RANGES = 4 };

static uint8_t *coded[OBJECTS];
static uint64_t coded_length[OBJECTS];

/* Both forms of some objects are made; the store has the first one. */
static void open_forms(uint64_t objects, bool is_coded)
{
    open_store(true, &(struct tierce__coded_connector_opts){.codec = lossless});
    for (uint64_t n = 0; n < objects; n++) {
        ck_assert_int_eq(put(connector, n, CODED_VALUES), 0);
        coded[n] = read_stored(n, &coded_length[n]);
        ck_assert_uint_lt(coded_length[n], coded_bytes(&s));
    }
    close_all();
    make_store(true);
    store_connector_set_forms(store);
    wrap(&(struct tierce__coded_connector_opts){0});
    for (uint64_t n = 0; n < objects; n++)
        ck_assert_int_eq(is_coded ? put_to(below, n, coded[n], coded_length[n])
                                  : put(below, n, CODED_VALUES),
                         0);
}

static void close_forms(void)
{
    for (uint64_t n = 0; n < OBJECTS; n++) {
        free(coded[n]);
        coded[n] = NULL;
    }
}

/* Another process has stored the object in its other form. */
static void change(uint64_t n, bool to_coded)
{
    ck_assert_int_eq(
        to_coded ? put_to(below, n, coded[n], coded_length[n]) : put(below, n, CODED_VALUES), 0);
}

static uint64_t length_of_range(void)
{
    return coded_bytes(&s) / TIERCE__CHUNK_ALIGN / RANGES * TIERCE__CHUNK_ALIGN;
}

/* The first range shows one form; the next ones are of the other one. */
START_TEST(the_form_changes_between_two_ranges)
{
    bool is_coded = _i % 2 == 1;
    uint64_t length = length_of_range();
    open_forms(1, is_coded);
    ck_assert_int_eq(get(0, CODED_VALUES, 0, length), 0);
    for (uint64_t i = 1; i < RANGES; i++) {
        is_coded = !is_coded;
        change(0, is_coded);
        ck_assert_int_eq(get(0, CODED_VALUES, i * length, length), 0);
        if (_i < 2)
            ck_assert_int_eq(get(0, CODED_VALUES, 0, TIERCE__CHUNK_ALIGN), 0); /* a header alone */
    }
    close_forms();
}
END_TEST

/* The requests of one load: after the beginning was read, and before the rest is. */
START_TEST(the_form_changes_while_ranges_are_read)
{
    struct connector_call calls[RANGES];
    bool is_coded = _i % 2 == 1;
    uint64_t length = length_of_range();
    open_forms(2, is_coded);
    if (_i >= 2) /* what the last object was */
        ck_assert_int_eq(get(1, CODED_VALUES, 0, length), 0);
    store_connector_hold(store, TIERCE__STORE_GET);
    for (uint64_t i = 0; i < RANGES; i++)
        begin_get(&calls[i], 0, i * length, length);
    ck_assert(store_connector_let_one_go(store, NULL));
    change(0, !is_coded);
    WAIT_FOR(store_connector_held(store) > 0); /* the layers, or the ranges */
    (void)store_connector_let_go(store);
    for (uint64_t i = 0; i < RANGES; i++)
        ck_assert_int_eq(end_get(&calls[i], 0, CODED_VALUES), 0);
    close_forms();
}
END_TEST

/* A caller whose buffer is not as long as the object. */
START_TEST(ranges_of_another_length_are_read)
{
    struct connector_call calls[RANGES];
    uint64_t length = length_of_range();
    open_forms(1, _i == 1);
    store_connector_hold(store, TIERCE__STORE_GET);
    for (uint64_t i = 0; i < RANGES; i++) {
        struct tierce__store_req *req = &calls[i].req;
        connector_call_init(&calls[i], TIERCE__STORE_GET, name_of(0), 0);
        req->buf = new_buf(coded_bytes(&s) + TIERCE__CHUNK_ALIGN);
        memcpy(req->buf->data, untouched, coded_bytes(&s));
        req->offset = i * length;
        req->length = length;
        req->deadline_ns = tierce__deadline_in_ms(100000);
        connector->ops->submit(connector, req);
    }
    (void)store_connector_let_go(store);
    for (uint64_t i = 0; i < RANGES; i++)
        ck_assert_int_eq(end_get(&calls[i], 0, CODED_VALUES), 0);
    close_forms();
}
END_TEST

/* The header of an object, which another engine has sent, may state any length: no memory is taken
 * for one that is longer than the caller's buffer. The range of a probe has no layers. */
START_TEST(objects_longer_than_the_buffer_are_rejected)
{
    struct connector_call call;
    const uint64_t page = TIERCE__CHUNK_ALIGN;
    open_forms(1, true);
    for (unsigned i = 0; i < 2; i++) {
        connector_call_init(&call, TIERCE__STORE_GET, name_of(0), 0);
        call.req.buf = new_buf(i == 0 ? coded_bytes(&s) - page : page);
        call.req.length = call.req.buf->bytes;
        call.req.deadline_ns = tierce__deadline_in_ms(100000);
        connector->ops->submit(connector, &call.req);
        ck_assert_int_eq(connector_call_wait(&call), i == 0 ? TIERCE_E_FORMAT : 0);
        tierce__buf_release(call.req.buf);
    }
    ck_assert_uint_eq(stats_now().decoded_raw_bytes, 0);
    close_forms();
}
END_TEST

/* A raw chunk of a usual model: its header and the table of its layers have 12 KiB. *bytes: its
 * length. The caller frees it. */
static uint8_t *make_long(uint64_t *bytes)
{
    enum { LAYERS = 32, BLOCKS = 16 };
    static uint32_t cells[LAYERS];
    uint8_t hashes[BLOCKS * TIERCE_HASH_BYTES] = {0};
    struct tierce_namespace ns = coded_fields("bfloat16", "");
    for (size_t i = 0; i < LAYERS; i++)
        cells[i] = 1024;
    ns.layer_count = LAYERS;
    ns.cell_bytes = cells;
    ns.chunk_blocks = BLOCKS;
    coded_name(&s, &ns);
    struct tierce__chunk_info info = coded_info(&s, 0);
    info.geometry = (struct tierce__geometry){
        .layer_count = LAYERS, .cell_bytes = cells, .block_tokens = 16, .block_count = BLOCKS};
    ck_assert_int_eq(tierce__chunk_extent(&info.extent, &info.geometry), 0);
    memcpy(hashes + (BLOCKS - 1) * TIERCE_HASH_BYTES, info.hash, TIERCE_HASH_BYTES);
    *bytes = info.extent.object_bytes;
    uint8_t *raw = calloc(1, *bytes);
    ck_assert_ptr_nonnull(raw);
    tierce__chunk_begin(raw, &info, hashes);
    kv_fill(raw + info.extent.header_bytes, info.extent.payload_bytes, TIERCE__ELEMENT_BF16, 1, 124,
            128);
    tierce__chunk_sum_cells(raw, &info.geometry);
    tierce__chunk_seal(raw, info.extent.header_bytes);
    return raw;
}

/* Other engines count each read of a beginning, and may reject it. */
START_TEST(the_beginning_of_a_long_chunk_is_read_at_once)
{
    struct connector_call call;
    uint64_t raw_bytes, stored;
    uint8_t *raw = make_long(&raw_bytes);
    open_store(true, &(struct tierce__coded_connector_opts){.codec = lossless});
    ck_assert_int_eq(put_to(connector, 0, raw, raw_bytes), 0);
    coded[0] = read_stored(0, &stored);
    ck_assert_uint_lt(stored, raw_bytes);
    close_all();
    make_store(true);
    store_connector_set_forms(store);
    wrap(&(struct tierce__coded_connector_opts){0});
    ck_assert_int_eq(put_to(below, 0, coded[0], stored), 0);
    connector_call_init(&call, TIERCE__STORE_GET, name_of(0), 0);
    call.req.buf = new_buf(raw_bytes);
    call.req.length = raw_bytes;
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    ck_assert_mem_eq(call.req.buf->data, raw, raw_bytes);
    /* As a raw object, which is longer; the beginning; the other layers. */
    ck_assert_uint_eq(store_connector_count(store, TIERCE__STORE_GET), 3);
    tierce__buf_release(call.req.buf);
    free(raw);
    close_forms();
}
END_TEST

/* Many loads, of a store that answers late and in another order, while the forms change. A load may
 * find neither form twice; no byte is wrong. */
START_TEST(forms_change_all_the_time)
{
    enum { COUNT = 64, ROUNDS = 8, NAMES = 4 };
    static struct connector_call calls[COUNT];
    struct test_random random = {7};
    uint64_t length = length_of_range(), served = 0;
    open_forms(NAMES, false);
    store_connector_set_late(store, 1);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 0; i < COUNT; i++) {
            begin_get(&calls[i], i % NAMES, i / NAMES % RANGES * length, length);
            if (i % 8 == 7)
                change(test_random_below(&random, NAMES), test_random_below(&random, 2) == 1);
        }
        for (uint64_t i = 0; i < COUNT; i++) {
            int rc = end_get(&calls[i], i % NAMES, CODED_VALUES);
            ck_assert_msg(rc == 0 || rc == TIERCE_E_MISS, "%d", rc);
            served += rc == 0;
        }
    }
    ck_assert_uint_gt(served, ROUNDS * COUNT / 2);
    for (uint64_t n = 0; n < NAMES; n++)
        ck_assert_int_eq(get_all(n, CODED_VALUES), 0);
    close_forms();
}
END_TEST

CHECK_MAIN("coded_forms", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {forms_change_all_the_time, objects_longer_than_the_buffer_are_rejected,
                     the_beginning_of_a_long_chunk_is_read_at_once},
           .loops = {{the_form_changes_between_two_ranges, 0, 4},
                     {the_form_changes_while_ranges_are_read, 0, 4},
                     {ranges_of_another_length_are_read, 0, 2}})
