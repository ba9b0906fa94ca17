/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One story of a named value, told again and again, in which each allocation fails once, and then
 * each request of each kind to the disk, with an error or with a flipped bit. Whatever fails: no
 * crash, no leak, no hang, never a wrong byte or an old value, and the next telling is whole.
 */
#include "base/alloc.h"
#include "check_main.h"
#include "object_fixture.h"
#include "silent_log.h"
#include "tier_fault.h"

#define BYTES 600000u

static struct fixture fx;
static struct tierce__objects *space;
static struct tierce__tier *fault;

static void setup(void)
{
    silence_log();
    /* Here so many faults must not take the disk out of service. */
    fx_open(&fx, true,
            (const char *const[]){"breaker.errors", "1000000", "breaker.window", "64", NULL});
    fault = fx_wrap(&fx, 1);
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "torture", ""), 0);
}

static void teardown(void)
{
    tierce__objects_close(space);
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* Only the disk remembers, as far as it has been given anything. */
static void empty_memory(void)
{
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    uint64_t give_up = tierce__deadline_in_ms(60000);
    while (fx_stats(&fx).memory_bytes_now > 0 && tierce__now_ns() < give_up) {
        if (memory->ops->evict(memory, 1) == 0)
            usleep(100);
    }
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
}

static int64_t get(void)
{
    return ox_get(space, "x", NULL); /* ends the test at a wrong byte */
}

static void forget_it(void *arg, const struct tierce__object_what *what)
{
    (void)arg;
    ck_assert_uint_eq(what->name_bytes, 1);
}

/* Tells the story; true: nothing failed. */
static bool tell(void)
{
    static int64_t version;
    int64_t old = ++version, found;
    bool was, whole = true;
    uint64_t cursor = 0;
    int rc = ox_put(space, "x", (uint64_t)old, BYTES);
    whole &= rc == 0;
    found = get();
    ck_assert(rc == 0 ? found <= 0 || found == old : found < old);
    whole &= found == old;
    (void)!tierce_engine_flush(fx.engine, 60000);
    empty_memory();
    found = get();
    ck_assert(found <= 0 || found == old || rc < 0);
    whole &= found == old;
    int64_t kept = found, new = ++version;
    rc = ox_put(space, "x", (uint64_t) new, BYTES);
    whole &= rc == 0;
    found = get();
    ck_assert(found <= 0 || found == new || (rc < 0 && (found == kept || found == old)));
    whole &= found == new;
    ck_assert_uint_le(tierce__objects_count(space), 2);
    whole &= tierce__objects_scan(space, &cursor, 10, forget_it, NULL) == 0;
    rc = tierce__object_remove(space, "x", 1, &was);
    whole &= rc == 0 && was;
    ck_assert(rc < 0 || get() == 0);
    whole &= ox_put(space, "x", (uint64_t)++version, 1000) == 0;
    int64_t cleared = tierce__objects_clear(space);
    whole &= cleared == 1;
    ck_assert(cleared < 0 || get() == 0);
    return whole;
}

static void settle(void)
{
    tierce__fault_set(fault, TIERCE__STORE_CLEAR, NULL);
    ck_assert_int_ge(tierce__objects_clear(space), 0);
    (void)!tierce_engine_flush(fx.engine, 60000);
    empty_memory(); /* of pages of small values too */
}

/* The tier's thread frees the last answered request slightly later. */
static uint64_t live_now(uint64_t wanted)
{
    uint64_t live = tierce__alloc_live(), before, give_up = tierce__deadline_in_ms(60000);
    do {
        before = live;
        usleep(2000);
        live = tierce__alloc_live();
    } while ((live != before || (wanted != 0 && live != wanted)) && tierce__now_ns() < give_up);
    return live;
}

START_TEST(each_allocation_fails_once)
{
    ck_assert(tell());
    settle();
    uint64_t live = live_now(0), count = UINT64_MAX;
    for (uint64_t nth = 1; nth <= count; nth++) {
        tierce__alloc_fail_nth(nth);
        (void)tell();
        count = tierce__alloc_fail_nth(0);
        settle();
        ck_assert_uint_eq(live_now(live), live);
    }
    ck_assert_uint_gt(count, 20);
    ck_assert(tell());
}
END_TEST

static const enum tierce__store_op ops[] = {TIERCE__STORE_LOOKUP, TIERCE__STORE_GET,
                                            TIERCE__STORE_PUT,    TIERCE__STORE_DELETE,
                                            TIERCE__STORE_FLUSH,  TIERCE__STORE_CLEAR};

START_TEST(each_request_to_the_disk_fails_once)
{
    size_t failed = 0;
    ck_assert(tell());
    for (size_t op = 0; op < sizeof(ops) / sizeof(ops[0]); op++) {
        for (uint32_t nth = 0; nth < 12; nth++) {
            static const enum tierce__fault_kind kinds[] = {TIERCE__FAULT_ERROR,
                                                            TIERCE__FAULT_FLIP};
            struct tierce__fault_rule rule = {
                .kind = kinds[_i], .status = -EIO, .skip = nth, .times = 1};
            tierce__fault_set(fault, ops[op], &rule);
            failed += !tell();
            tierce__fault_set(fault, ops[op], NULL);
            settle();
        }
    }
    ck_assert_uint_gt(failed, 1);
    ck_assert(tell());
}
END_TEST

CHECK_MAIN("torture_objects", .seconds = 300, .setup = setup, .teardown = teardown,
           .tests = {each_allocation_fails_once},
           .loops = {{each_request_to_the_disk_fails_once, 0, 2}})
