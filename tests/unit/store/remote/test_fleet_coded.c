/* SPDX-License-Identifier: Apache-2.0 */
/* A connector through a manager, with chunks that are shorter or longer than a raw one: of a
 * manager that knows the length of a block, and of one that does not. */
#include "fleet_case.h"

enum { SHORT = 4096, LONG = BYTES + 4096 };

/* The version of the bytes of a raw object, beside that of the coded one. */
static uint32_t raw_of(uint32_t i)
{
    return i + 100;
}

static void make_put(struct connector_call *call, uint32_t i, uint64_t bytes, bool has_raw)
{
    connector_call_init(call, TIERCE__STORE_PUT, name(i), 0);
    call->req.buf = connector_object(pool, i, bytes);
    call->req.length = call->req.coded_bytes = bytes;
    call->req.object_bytes = BYTES;
    call->req.raw = has_raw ? connector_object(pool, raw_of(i), BYTES) : NULL;
}

static int end_put(struct connector_call *call)
{
    int rc = connector_call_wait(call);
    ck_assert_uint_eq(atomic_load(&call->req.buf->refs), 1);
    tierce__buf_release(call->req.buf);
    if (call->req.raw != NULL)
        ck_assert_uint_eq(atomic_load(&call->req.raw->refs), 1);
    tierce__buf_release(call->req.raw);
    return rc;
}

static int put_coded(uint32_t i, uint64_t bytes, bool has_raw)
{
    struct connector_call call;
    make_put(&call, i, bytes, has_raw);
    connector->ops->submit(connector, &call.req);
    return end_put(&call);
}

/* Reads an object of up to `room` bytes: of `bytes` bytes, with those of a version. */
static int get_coded(uint32_t i, uint64_t room, uint64_t bytes, uint32_t version)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_GET, name(i), 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, room), 0);
    call.req.length = room;
    call.req.takes_shorter = true;
    int rc = connector_call_run(connector, &call);
    if (rc == 0) {
        ck_assert_uint_eq(call.req.object_bytes, bytes);
        ck_assert(connector_is_object(call.req.buf->data, version, 0, bytes));
    }
    tierce__buf_release(call.req.buf);
    return rc;
}

START_TEST(the_manager_knows_the_length_of_a_block)
{
    fleet_fake_set_sized();
    ck_assert_int_eq(put_coded(1, SHORT, true), 0);
    ck_assert_int_eq(put_coded(2, LONG, false), 0);
    ck_assert_int_eq(put(3), 0);
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(get_coded(1, BYTES, SHORT, 1), 0);
        ck_assert_int_eq(get_coded(2, BYTES, 0, 0), TIERCE_E_FORMAT);
        ck_assert_int_eq(get_coded(2, LONG, LONG, 2), 0);
        ck_assert_int_eq(get_coded(3, BYTES, BYTES, 3), 0);
        ck_assert_int_eq(get(1), TIERCE_E_FORMAT); /* it does not take a shorter one */
        for (uint32_t i = 1; i <= 3; i++)
            forget(i); /* then the manager is asked for the place */
    }
    ck_assert_int_eq(connector_delete(connector, name(1)), 0);
    ck_assert_int_eq(get_coded(1, BYTES, 0, 0), TIERCE_E_MISS);
}
END_TEST

/* Sizes lie beside the keys of a session, behind the parent of the first. */
START_TEST(sizes_of_a_chain)
{
    enum { COUNT = 6 };
    struct connector_call calls[COUNT];
    struct tierce__key parent[COUNT];
    fleet_fake_set_sized();
    for (uint32_t i = 0; i < COUNT; i++) {
        int64_t key = i; /* that of the block before */
        make_put(&calls[i], i + 1, SHORT * (i + 1), true);
        if (i == 2) { /* a raw one among them */
            tierce__buf_release(calls[i].req.buf);
            calls[i].req.buf = calls[i].req.raw;
            calls[i].req.length = BYTES;
            calls[i].req.coded_bytes = 0;
            calls[i].req.raw = NULL;
        }
        parent[i] = (struct tierce__key){.shard = {0, 1, 0, 1}};
        memcpy(parent[i].hash, &key, sizeof(key));
        calls[i].req.parent = &parent[i];
    }
    for (uint32_t i = 0; i < COUNT; i++)
        connector->ops->submit(connector, &calls[i].req);
    for (uint32_t i = 0; i < COUNT; i++)
        ck_assert_int_eq(end_put(&calls[i]), 0);
    for (uint32_t i = 0; i < COUNT; i++)
        ck_assert_int_eq(i == 2 ? get_coded(3, BYTES, BYTES, raw_of(3))
                                : get_coded(i + 1, SHORT * COUNT, SHORT * (i + 1), i + 1),
                         0);
}
END_TEST

/* Its places have the length of a raw chunk. */
START_TEST(an_older_manager_gets_raw_chunks)
{
    ck_assert_int_eq(put_coded(1, SHORT, true), 0);
    ck_assert_int_eq(get_coded(1, BYTES, BYTES, raw_of(1)), 0);
    ck_assert_str_eq(connector_why(connector), "");
    ck_assert_int_eq(put_coded(2, SHORT, false), TIERCE_E_UNSUPPORTED);
    expect_why("upgrade the manager");
    ck_assert_int_eq(connector_exists(connector, name(2)), 0);
    ck_assert_int_eq(put(2), 0);
    ck_assert_int_eq(get(2), 0);
}
END_TEST

/* A place that suits neither form. */
START_TEST(a_place_of_another_length)
{
    fleet_fake_set_uri("fake://s/%lld?size=4096");
    ck_assert_int_eq(put_coded(1, LONG, true), TIERCE_E_DOWN);
    expect_why("a place of 4096 bytes for a chunk of 12288 bytes");
    ck_assert_int_eq(connector_exists(connector, name(1)), 0);
    ck_assert_uint_eq(store_connector_objects(fleet_fake_store()), 0);
}
END_TEST

/* A tail is not stored, whatever its form. */
START_TEST(tails_are_not_stored)
{
    struct connector_call call;
    fleet_fake_set_sized();
    make_put(&call, 1, SHORT, false);
    call.req.object_bytes = BYTES - 4096;
    connector->ops->submit(connector, &call.req);
    ck_assert_int_eq(end_put(&call), TIERCE_E_UNSUPPORTED);
}
END_TEST

/* Bytes that are answered later than they were read: not after an invalidation. */
START_TEST(invalidated_bytes_are_not_answered_later)
{
    struct connector_call call;
    const struct tierce__connector_ops *ops = connector->ops;
    fleet_fake_set_generation(1);
    ck_assert_int_eq(put(1), 0);
    connector_call_init(&call, TIERCE__STORE_GET, name(1), 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, BYTES), 0);
    call.req.length = BYTES;
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    ck_assert(ops->answer_begin(connector, &call.req.guard));
    ops->answer_end(connector, &call.req.guard);
    fleet_fake_set_generation(2);
    ck_assert_int_eq(connector_exists(connector, name(2)), 0);
    ck_assert(!ops->answer_begin(connector, &call.req.guard));
    tierce__buf_release(call.req.buf);
}
END_TEST

CHECK_MAIN("fleet_coded", .seconds = 60, .setup = setup, .teardown = teardown,
           .tests = {the_manager_knows_the_length_of_a_block, sizes_of_a_chain,
                     an_older_manager_gets_raw_chunks, a_place_of_another_length,
                     tails_are_not_stored, invalidated_bytes_are_not_answered_later})
