/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and moves between memory and disk. */
#include "check_main.h"
#include "engine_fixture.h"
#include "tier_fault.h"

#include <errno.h>

#include <tierce/operate.h>

#define BLOCKS 86u /* 21 whole chunks and a tail: more than are written at once */
#define CHUNKS 22
#define MEMORY TIERCE_ORIGIN_MEMORY
#define DISK   TIERCE_ORIGIN_DISK

static struct fixture fx;
static struct tierce_chain *chain;
static int32_t ids[FX_BLOCKS];

static void open_engine(const char *const *sets)
{
    fx_open(&fx, true, sets);
    chain = fx_chain(&fx, 1, BLOCKS, 0);
    for (int32_t b = 0; b < (int32_t)FX_BLOCKS; b++)
        ids[b] = b;
}

static void end(void)
{
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}

static void store(enum tierce_origin tier)
{
    fx_fill(&fx, chain, 0, BLOCKS, ids);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    what.tiers = 1u << tier;
    what.tail = true;
    ck_assert_int_eq(tierce_store(fx.view, &what), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
}

static int64_t copy(enum tierce_origin from, enum tierce_origin to, bool move)
{
    return tierce_copy(
        fx.view, chain, BLOCKS,
        &(struct tierce_copy_opts){
            .size = sizeof(struct tierce_copy_opts), .from = from, .to = to, .move = move});
}

static void check_chunks(int64_t memory, int64_t disk)
{
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, memory);
    ck_assert_int_eq(fx_stats(&fx).disk_chunks_now, disk);
}

/* All is there and right. */
static void check_whole(void)
{
    uint8_t origins[BLOCKS];
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert(fx_right(&fx, chain, b, ids[b]));
}

START_TEST(down_and_up)
{
    open_engine(NULL);
    store(MEMORY);
    check_chunks(CHUNKS, 0);
    ck_assert_int_eq(copy(MEMORY, DISK, false), BLOCKS);
    check_chunks(CHUNKS, CHUNKS);
    ck_assert_int_eq(copy(MEMORY, DISK, true), BLOCKS);
    check_chunks(0, CHUNKS);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    ck_assert_int_eq(copy(DISK, MEMORY, true), BLOCKS);
    check_chunks(CHUNKS, 0);
    check_whole();
    end();
}
END_TEST

START_TEST(what_was_moved_down_outlives_the_process)
{
    open_engine(NULL);
    store(MEMORY);
    ck_assert_int_eq(copy(MEMORY, DISK, true), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);
    fx_open(&fx, true, NULL);
    check_whole();
    end();
}
END_TEST

START_TEST(a_part_of_a_prompt)
{
    open_engine(NULL);
    store(MEMORY);
    ck_assert_int_eq(tierce_copy(fx.view, chain, 6,
                                 &(struct tierce_copy_opts){.size = sizeof(struct tierce_copy_opts),
                                                            .from = MEMORY,
                                                            .to = DISK}),
                     6);
    check_chunks(CHUNKS, 2);
    end();
}
END_TEST

START_TEST(what_is_pinned_stays_with_its_holder)
{
    open_engine(NULL);
    store(MEMORY);
    ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, TIERCE_LOOKUP_PIN, 5, NULL), BLOCKS);
    ck_assert_int_eq(copy(MEMORY, DISK, true), BLOCKS);
    check_chunks(0, CHUNKS);
    ck_assert_int_gt(fx_stats(&fx).memory_bytes_now, 0);
    fx_wipe(&fx);
    uint8_t origins[BLOCKS];
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    what.session = 5;
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    ck_assert_int_eq(origins[0], MEMORY);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    end();
}
END_TEST

START_TEST(nothing_is_lost_where_the_disk_takes_only_some)
{
    open_engine(
        (const char *const[]){"breaker.errors", "100", NULL}); /* the disk stays in service */
    store(MEMORY);
    struct tierce__tier *wrapped = fx_wrap(&fx, 1);
    tierce__fault_set(
        wrapped, TIERCE__STORE_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO, .skip = 10});
    ck_assert_int_eq(copy(MEMORY, DISK, true), 10 * FX_CHUNK_BLOCKS);
    check_chunks(CHUNKS - 10, 10);
    check_whole();
    end();
}
END_TEST

/* As many as are written at once may not fit the queue; the rest comes after them. */
START_TEST(a_small_queue_drops_nothing)
{
    open_engine((const char *const[]){"disk.queue", "16KiB", NULL});
    store(MEMORY);
    ck_assert_int_eq(copy(MEMORY, DISK, true), BLOCKS);
    check_chunks(0, CHUNKS);
    check_whole();
    end();
}
END_TEST

START_TEST(wrong_wishes)
{
    open_engine(NULL);
    ck_assert_int_eq(copy(MEMORY, MEMORY, false), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(copy(MEMORY, TIERCE_ORIGIN_FAILED, false), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(copy(MEMORY, DISK, false), 0);
    ck_assert_int_eq(copy(DISK, MEMORY, true), 0);
    ck_assert_int_eq(tierce_copy(fx.view, chain, BLOCKS + 1,
                                 &(struct tierce_copy_opts){.size = sizeof(struct tierce_copy_opts),
                                                            .from = MEMORY,
                                                            .to = DISK}),
                     TIERCE_E_ARGUMENT);
    store(MEMORY);
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, TIERCE_MODE_FREEZE), 0);
    ck_assert_int_eq(copy(MEMORY, DISK, true), 0);
    check_chunks(CHUNKS, 0);
    end();
}
END_TEST

CHECK_MAIN("copy", .seconds = 60,
           .tests = {down_and_up, what_was_moved_down_outlives_the_process, a_part_of_a_prompt,
                     what_is_pinned_stays_with_its_holder,
                     nothing_is_lost_where_the_disk_takes_only_some, a_small_queue_drops_nothing,
                     wrong_wishes})
