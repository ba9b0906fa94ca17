/* SPDX-License-Identifier: Apache-2.0 */
#include "device_harness.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>

/*
 * The contract of every device (core/device/device.h). Each test runs for each kind, and for each
 * copy method of "cuda", which runs on a GPU, or on the driver of tests/support/cuda, which reports
 * every access that no event orders.
 */

static const char *const kinds[] = {"host", "cuda", "cuda direct", "cuda staged"};
enum { DEVICES = 2, KINDS = 4 };

static void start(int kind)
{
    dh_start_engine(kinds[kind], 0);
    dh_open();
    dh_check_way();
}

START_TEST(all_kinds_are_tested)
{
    for (size_t i = 0; i < DEVICES; i++)
        ck_assert_str_eq(tierce__device_at(i)->name, kinds[i]);
    ck_assert_ptr_null(tierce__device_at(DEVICES));
    ck_assert_ptr_null(tierce__device_find("none"));
}
END_TEST

START_TEST(cells_make_the_way_there_and_back)
{
    struct dh_transfer t;
    start(_i);
    dh_begin(&t);
    uint8_t *at = dh_add(&t, dh.pool + 17, 0, 20, -1, 12);
    at = dh_add(&t, at, 1, 0, 2, 12); /* 768 KiB */
    at = dh_add(&t, at, 2, 3, 1, 8);  /* contiguous, and across the border of the slices */
    at = dh_add(&t, at, 3, 7, 0, 1);
    (void)dh_add(&t, at, 2, 1, 1, 0);
    ck_assert_int_eq(dh_gather(&t), 0);
    dh_check_gathered(&t);
    for (size_t r = 0; r < 4; r++)
        for (size_t c = 0; c < t.rows[r].cells.count; c++)
            t.ids[r][c] = DH_BLOCKS - 1 - t.ids[r][c];
    ck_assert_int_eq(dh_scatter(&t), 0);
    dh_expect_scattered(&t);
    dh_check_memory();
    for (size_t r = 0; r < DH_ROWS_MAX; r++)
        for (size_t c = 0; c < DH_CELLS_MAX; c++)
            ck_assert_uint_eq(t.good[r][c], 1);
    dh_close();
}
END_TEST

START_TEST(each_bad_cell_gets_its_verdict)
{
    struct dh_transfer t;
    start(_i);
    dh_begin(&t);
    uint8_t *at = dh_add(&t, dh.pool, 0, 0, 1, 4);
    (void)dh_add(&t, at, 1, 4, 1, 4);
    ck_assert_int_eq(dh_gather(&t), 0);
    t.sums[0][1] ^= 1;
    at[2 * dh_block_bytes[1] + 5] ^= 0x80;
    t.good[1][3] = 0; /* another layer of the block was bad */
    ck_assert_int_eq(dh.ops->scatter(dh.device, &t.event, &t.copy), 0);
    ck_assert_int_eq(dh.ops->wait(dh.device, t.event, DH_DEADLINE), 0);
    ck_assert_int_eq(dh.ops->settle(dh.device, t.event, 1, 2), 1);
    ck_assert_int_eq(dh.ops->settle(dh.device, t.event, 0, 1), 1);
    ck_assert_int_eq(dh.ops->settle(dh.device, t.event, 1, 1), 0);
    dh.ops->forget(dh.device, t.event);
    for (size_t c = 0; c < 4; c++) {
        ck_assert_uint_eq(t.good[0][c], c != 1);
        ck_assert_uint_eq(t.good[1][c], c < 2);
    }
    dh_expect_scattered(&t);
    dh_check_memory();
    dh_close();
}
END_TEST

/* Neither direction returns an event; after all of them, expect_nothing_moved. */
static void expect_refused(struct dh_transfer *t, int status)
{
    struct tierce__device_event *event = (void *)t;
    ck_assert_int_eq(dh.ops->gather(dh.device, &event, &t->copy), status);
    ck_assert_int_eq(dh.ops->scatter(dh.device, &event, &t->copy), status);
    ck_assert_ptr_eq(event, t);
}

static uint8_t pool_before[DH_POOL];

static void note_pool(void)
{
    memcpy(pool_before, dh.pool, DH_POOL);
}

static void expect_nothing_moved(void)
{
    ck_assert_mem_eq(pool_before, dh.pool, DH_POOL);
    dh_check_memory();
}

START_TEST(an_invalid_row_moves_nothing)
{
    struct dh_transfer t;
    start(_i);
    note_pool();
    for (unsigned what = 0; what < 10; what++) {
        struct tierce_paged paged = dh.paged;
        dh_begin(&t);
        (void)dh_add(&t, dh_add(&t, dh.pool, 0, 0, 1, 4), 1, 4, 1, 4);
        t.copy.paged = &paged;
        struct tierce__device_row *row = &t.rows[1];
        switch (what) {
        case 0:
            t.ids[1][3] = -1;
            break;
        case 1:
            t.ids[1][3] = DH_BLOCKS;
            break;
        case 2:
            t.ids[1][0] = INT32_MIN;
            break;
        case 3:
            row->layer = DH_LAYERS;
            break;
        case 4:
            row->ids = NULL;
            break;
        case 5:
            row->cells.bytes = NULL;
            break;
        case 6:
            row->cells.sums = NULL;
            break;
        case 7:
            row->cells.count = (size_t)INT_MAX + 1;
            break;
        case 8:
            t.copy.count = 0;
            break;
        default:
            paged.block_count = 7;
            break;
        }
        expect_refused(&t, TIERCE_E_ARGUMENT);
    }
    expect_nothing_moved();
    dh_begin(&t);
    (void)dh_add(&t, dh.pool, 0, 0, 1, 4);
    t.rows[0].good = NULL;
    ck_assert_int_eq(dh.ops->scatter(dh.device, &t.event, &t.copy), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(dh_gather(&t), 0);
    dh_check_gathered(&t);
    dh_close();
}
END_TEST

START_TEST(slices_are_pinned_and_unpinned)
{
    struct dh_transfer t;
    start(_i);
    ck_assert_int_eq(dh.ops->pin(dh.device, NULL, DH_SLICE), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool, 0), TIERCE_E_ARGUMENT);
    ck_assert(dh.ops->is_pinned(dh.device, dh.pool, DH_POOL));
    ck_assert(dh.ops->is_pinned(dh.device, dh.pool + 5, 1));
    ck_assert_int_eq(dh.ops->unpin(dh.device, dh.pool + DH_SLICE, DH_SLICE), 0);
    ck_assert(dh.ops->is_pinned(dh.device, dh.pool, DH_SLICE));
    ck_assert(dh.ops->is_pinned(dh.device, dh.pool, DH_SLICE + 1) != dh.ops->pins);
    dh_begin(&t);
    (void)dh_add(&t, dh.pool + DH_SLICE - 999, 0, 0, 1, 1);
    note_pool();
    if (dh.ops->pins)
        expect_refused(&t, TIERCE_E_ARGUMENT);
    expect_nothing_moved();
    ck_assert_int_eq(dh.ops->pin(dh.device, dh.pool + DH_SLICE, DH_SLICE), 0);
    ck_assert_int_eq(dh_gather(&t), 0);
    dh_check_gathered(&t);
    dh_close();
}
END_TEST

START_TEST(cells_may_lie_in_any_memory_if_allowed)
{
    struct dh_transfer t;
    start(_i);
    ck_assert_int_eq(dh.ops->unpin(dh.device, dh.pool, DH_SLICE), 0);
    dh_begin(&t);
    uint8_t *at = dh_add(&t, dh.pool + DH_SLICE - 64, 1, 1, 2, 5);
    (void)dh_add(&t, dh_add(&t, at, 0, 4, 1, 6), 2, 3, 1, 3);
    (void)dh_add(&t, dh.pool + 64, 3, 4, 1, 6);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_int_eq(dh.ops->allow_unpinned(dh.device), 0);
        ck_assert(dh.ops->is_pinned(dh.device, dh.pool, 1) != dh.ops->pins);
        ck_assert_int_eq(dh_gather(&t), 0);
        dh_check_gathered(&t);
        t.sums[2][1] ^= 1;
        ck_assert_int_eq(dh_scatter(&t), 1);
        ck_assert_uint_eq(t.good[2][1], 0);
        dh_check_memory();
    }
    dh_close();
}
END_TEST

START_TEST(an_event_comes_behind_the_work_of_its_stream)
{
    struct tierce__device_event *event;
    start(_i);
    dh_compute(1, 5);
    ck_assert_int_eq(dh.ops->record(dh.device, &event, dh.stream), 0);
    ck_assert_int_eq(dh.ops->stream_wait(dh.device, event, dh.stream), 0);
    int rc = dh.ops->query(dh.device, event);
    ck_assert(rc == 0 || rc == -EAGAIN);
    ck_assert_int_eq(dh.ops->wait(dh.device, event, DH_DEADLINE), 0);
    ck_assert_int_eq(dh.ops->query(dh.device, event), 0);
    ck_assert_int_eq(dh.ops->wait(dh.device, event, 0), 0);
    ck_assert_int_eq(dh.ops->settle(dh.device, event, 0, 0), 0);
    dh.ops->forget(dh.device, event);
    dh.ops->forget(dh.device, NULL);
    ck_assert_int_eq(dh.ops->record(dh.device, &event, dh.stream), 0);
    dh.ops->forget(dh.device, event); /* without waiting */
    dh_close();
}
END_TEST

/* ---- random use -------------------------------------------------------------------------------
 */

/* Layer by layer, as an engine stores: compute, gather, continue; blocks are computed again only
 * after the gather. Then it loads into other blocks, and uses them after the scatter. */
static void store_and_load(struct dh_transfer *stores)
{
    uint8_t *at = dh.pool + test_random_below(&dh.random, 100);
    int32_t first = (int32_t)test_random_below(&dh.random, DH_BLOCKS / 2);
    size_t count = 1 + test_random_below(&dh.random, 5);
    for (uint32_t l = 0; l < DH_LAYERS; l++) {
        for (size_t c = 0; c < count; c++)
            dh_compute(l, first + (int32_t)c);
        dh_begin(&stores[l]);
        at = dh_add(&stores[l], at, l, first, 1, count);
        ck_assert_int_eq(dh.ops->gather(dh.device, &stores[l].event, &stores[l].copy), 0);
    }
    for (uint32_t l = 0; l < DH_LAYERS; l++) {
        ck_assert_int_eq(dh_end(&stores[l]), 0);
        dh_check_gathered(&stores[l]);
    }
    for (uint32_t l = 0; l < DH_LAYERS; l++) {
        for (size_t c = 0; c < count; c++)
            stores[l].ids[0][c] += DH_BLOCKS / 2 - 4;
        ck_assert_int_eq(dh.ops->scatter(dh.device, &stores[l].event, &stores[l].copy), 0);
        ck_assert_int_eq(dh.ops->stream_wait(dh.device, stores[l].event, dh.stream), 0);
        dh_expect_scattered(&stores[l]);
        dh_compute(l, stores[l].ids[0][0]); /* after the scatter */
    }
    dh_check_memory();
    for (uint32_t l = 0; l < DH_LAYERS; l++)
        ck_assert_int_eq(dh_end(&stores[l]), 0);
}

START_TEST(an_engine_stores_and_loads)
{
    struct dh_transfer stores[DH_LAYERS];
    start(_i);
    for (unsigned i = 0; i < TEST_ROUNDS(24) * test_scale(); i++)
        store_and_load(stores);
    dh_close();
}
END_TEST

/* ---- threads ----------------------------------------------------------------------------------
 */

enum { THREADS = 4 };

/* Without assertions of Check, which belong to the main thread. */
static bool has_own_bytes(const struct dh_transfer *t)
{
    bool fine = true;
    for (size_t r = 0; r < t->copy.count; r++) {
        const struct tierce__cells *cells = &t->rows[r].cells;
        size_t bytes = dh_block_bytes[t->rows[r].layer];
        for (size_t c = 0; c < cells->count; c++)
            fine &= XXH3_64bits(cells->bytes + c * bytes, bytes) == cells->sums[c];
    }
    return fine;
}

static void *gather_often(void *arg)
{
    struct dh_transfer *t = arg;
    bool fine = true;
    for (unsigned i = 0; i < 20 && fine; i++) {
        fine = dh.ops->gather(dh.device, &t->event, &t->copy) == 0;
        fine = fine && dh.ops->wait(dh.device, t->event, DH_DEADLINE) == 0;
        fine = fine && dh.ops->settle(dh.device, t->event, 0, t->copy.count) == 0;
        dh.ops->forget(dh.device, fine ? t->event : NULL);
        fine = fine && has_own_bytes(t);
    }
    return fine ? NULL : t;
}

START_TEST(several_threads_use_a_device)
{
    struct dh_transfer t[THREADS];
    pthread_t threads[THREADS];
    uint8_t *more =
        mmap(NULL, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(more, MAP_FAILED);
    start(_i);
    if (dh.is_cuda && gpu.pause_launches != NULL)
        gpu.pause_launches(300); /* so that the calls of several transfers take turns */
    for (uint32_t i = 0; i < THREADS; i++) {
        dh_begin(&t[i]);
        uint8_t *at = dh_add(&t[i], dh.pool + i * (DH_POOL / THREADS), 1, (int32_t)i, 1, 5);
        (void)dh_add(&t[i], at, 0, 3, 2, 7);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, gather_often, &t[i]), 0);
    }
    for (size_t i = 0; i < 16; i++)
        ck_assert_int_eq(dh.ops->pin(dh.device, more + i * 4096, 4096), 0); /* meanwhile */
    for (size_t i = 0; i < THREADS; i++) {
        void *failed;
        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
        dh_check_gathered(&t[i]);
    }
    dh_close();
    munmap(more, 16 * 4096);
}
END_TEST

struct settling {
    struct dh_transfer *t;
    size_t row;
    int64_t bad;
};

static void *settle_row(void *arg)
{
    struct settling *s = arg;
    s->bad = dh.ops->settle(dh.device, s->t->event, s->row, s->row + 1);
    return NULL;
}

/* The layers of a chunk are settled at the same time, and share the verdicts of their blocks. */
START_TEST(rows_are_settled_by_several_threads)
{
    struct dh_transfer t;
    struct settling settlings[THREADS];
    pthread_t threads[THREADS];
    start(_i);
    dh_begin(&t);
    uint8_t *at = dh.pool;
    for (uint32_t i = 0; i < THREADS; i++)
        at = dh_add(&t, at, i, 2, 1, 6);
    ck_assert_int_eq(dh_gather(&t), 0);
    for (size_t i = 0; i < THREADS; i++) {
        t.sums[i][2] ^= 1;
        t.rows[i].good = t.good[0];
    }
    ck_assert_int_eq(dh.ops->scatter(dh.device, &t.event, &t.copy), 0);
    ck_assert_int_eq(dh.ops->wait(dh.device, t.event, DH_DEADLINE), 0);
    for (size_t i = 0; i < THREADS; i++) {
        settlings[i] = (struct settling){.t = &t, .row = i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, settle_row, &settlings[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(settlings[i].bad, 1);
    }
    for (size_t c = 0; c < 6; c++)
        ck_assert_uint_eq(t.good[0][c], c != 2);
    dh.ops->forget(dh.device, t.event);
    dh_close();
}
END_TEST

GPU_MAIN("device", .seconds = 120,
         .loops = {{an_engine_stores_and_loads, 0, KINDS},
                   {cells_make_the_way_there_and_back, 0, KINDS},
                   {each_bad_cell_gets_its_verdict, 0, KINDS},
                   {an_invalid_row_moves_nothing, 0, KINDS},
                   {slices_are_pinned_and_unpinned, 0, KINDS},
                   {cells_may_lie_in_any_memory_if_allowed, 0, KINDS},
                   {an_event_comes_behind_the_work_of_its_stream, 0, KINDS},
                   {several_threads_use_a_device, 0, KINDS},
                   {rows_are_settled_by_several_threads, 0, KINDS}},
         .tests = {all_kinds_are_tested})
