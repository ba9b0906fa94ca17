/* SPDX-License-Identifier: Apache-2.0 */
/* Large named values on disk are read in parts, each of which is verified before the next is read.
 */
#include "check_main.h"
#include "engine/objects/objects_private.h"
#include "object_fixture.h"
#include "tier_fault.h"

enum { MIB = 1 << 20, PART = 8 * MIB };

static struct fixture fx;
static struct tierce__objects *space;
static struct tierce__tier_ops counting;
static const struct tierce__tier_ops *real;
static _Atomic uint64_t gets, longest;

static void submit_and_count(struct tierce__tier *tier, struct tierce__store_req *req)
{
    if (req->op == TIERCE__STORE_GET) {
        atomic_fetch_add(&gets, 1);
        if (req->length > atomic_load(&longest))
            atomic_store(&longest, req->length);
    }
    real->submit(tier, req);
}

/* Stores a value, which only the disk has then. */
static struct tierce__tier *start(uint64_t bytes)
{
    struct tierce__tier *fault;
    fx_open(&fx, true, (const char *const[]){"memory.size", "128MiB", "disk.size", "256MiB", NULL});
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
    ck_assert_int_eq(ox_put(space, "x", 1, bytes), 0);
    ox_empty_memory(&fx);
    fault = fx_wrap(&fx, 1);
    real = fault->ops;
    counting = *real;
    counting.submit = submit_and_count;
    fault->ops = &counting;
    return fault;
}

static void end(void)
{
    fx.engine->levels[1].tier->ops = real;
    tierce__objects_close(space);
    fx_close(&fx);
    fx_remove(&fx);
}

/* The header is read first, and has to be a page at least. */
static const struct {
    uint64_t bytes, gets;
} values[] = {{MIB, 2}, {PART - 16384, 2}, {PART + MIB, 3}, {40 * MIB + 12345, 7}};

START_TEST(a_large_value_is_read_in_parts)
{
    uint64_t bytes;
    start(values[_i].bytes);
    ck_assert_int_eq(ox_get(space, "x", &bytes), 1);
    ck_assert_uint_eq(bytes, values[_i].bytes);
    ck_assert_uint_eq(atomic_load(&gets), values[_i].gets);
    ck_assert_uint_le(atomic_load(&longest), PART);
    end();
}
END_TEST

static const struct {
    uint64_t at, gets;
} damage[] = {{MIB, 2}, {PART + MIB, 3}, {20 * MIB, 4}, {40 * MIB + 16384, 7}};

/* Nothing is read after the part that is damaged. */
START_TEST(damage_ends_the_reading)
{
    struct tierce__tier *fault = start(40 * MIB + 12345);
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_FLIP, .bit = damage[_i].at * 8};
    tierce__fault_set(fault, TIERCE__STORE_GET, &rule);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    ck_assert_uint_eq(atomic_load(&gets), damage[_i].gets);
    tierce__fault_set(fault, TIERCE__STORE_GET, NULL);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0); /* taken out */
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 1);
    end();
}
END_TEST

CHECK_MAIN("object_parts", .seconds = 60,
           .loops = {{a_large_value_is_read_in_parts, 0, sizeof(values) / sizeof(values[0])},
                     {damage_ends_the_reading, 0, sizeof(damage) / sizeof(damage[0])}})
