/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths of a tree are stored, read, removed and reclaimed at random. When nothing is being written
 * any more, and the reclaimer has had its rounds, every block that is there is reached: what a
 * batch finds of a path is what a prefix finds. A model of keys says that nothing was lost but by
 * removal, by reclaim, or behind such a block.
 */
#include "check_main.h"
#include "manager_reclaim.h"
#include "test_random.h"

enum { DEPTH = 9, WIDTH = 3, SESSIONS = 4, BLOCKS = 120 };

static struct harness h;
static struct test_random random_;
static uint64_t orphans, reclaimed;

static uint32_t below(uint32_t bound)
{
    return test_random_below(&random_, bound);
}

/* A path from the root: a key says how it was reached. */
static size_t draw_path(int64_t path[DEPTH])
{
    size_t count = 1 + below(DEPTH);
    int64_t key = 0;
    for (size_t i = 0; i < count; i++) {
        key = key * WIDTH + 1 + (int64_t)(below(2) == 0 ? 0 : below(WIDTH));
        path[i] = key;
    }
    return count;
}

static bool start(struct tierce__started *out)
{
    int64_t path[DEPTH];
    struct tierce__write_request request = {
        .instance_id = "i", .keys = path, .count = draw_path(path), .timeout_s = 1000000};
    int rc = tierce__locator_start_write(h.locator, &request, &h.arena, out, h.why);
    ck_assert(rc == 0 || rc == TIERCE_E_FULL);
    return rc == 0;
}

static void remove_one(void)
{
    int64_t path[DEPTH];
    struct tierce__mask none = {0};
    size_t count = draw_path(path), first = below((uint32_t)count);
    size_t end = below(2) == 0 ? first + 1 : count;
    ck_assert_int_eq(
        tierce__locator_remove(h.locator, "i", path + first, end - first, &none, h.why), 0);
}

static void read_one(void)
{
    int64_t path[DEPTH];
    size_t count = draw_path(path), from = below((uint32_t)count);
    struct tierce__get_request request = {.instance_id = "i",
                                          .query = 1 + (int)below(2),
                                          .keys = path,
                                          .count = count,
                                          .mask = {.offset = (int64_t)from}};
    struct tierce__got got;
    ck_assert_int_eq(tierce__locator_get(h.locator, &request, &h.arena, &got, h.why), 0);
}

static void check_reached(void)
{
    for (int i = 0; i < 200; i++) {
        int64_t path[DEPTH];
        size_t count = draw_path(path);
        ck_assert_uint_eq(harness_prefix(&h, path, count),
                          harness_get(&h, TIERCE__QUERY_BATCH, path, count, 0).hits);
    }
}

/* Everything is finished, and rounds are made until holes are closed. */
static void settle(struct tierce__started *open, size_t *open_count)
{
    while (*open_count > 0)
        harness_finish(&h, &open[--*open_count]);
    for (int i = 0; i < 20; i++) {
        h.now_us += 1000000;
        reclaimed += tierce__reclaimer_step(reclaimer);
        (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
    }
    check_reached();
}

static void run(uint32_t sample_keys)
{
    struct tierce__started open[SESSIONS];
    size_t open_count = 0;
    struct tierce__reclaimer_stats stats;
    harness_open(&h, &(struct harness_opts){.capacity = (int64_t)BLOCKS * BLOCK_BYTES,
                                            .watermark = 0.7,
                                            .policy = 1 + (int)below(2)});
    start_reclaimer(&h, sample_keys);
    for (int i = 0; i < 2000; i++) {
        uint32_t what = below(20);
        h.now_us += (int64_t)below(1000);
        if (what < 5 && open_count < SESSIONS)
            open_count += start(&open[open_count]);
        else if (what < 10 && open_count > 0)
            harness_finish(&h, &open[--open_count]);
        else if (what < 11)
            remove_one();
        else if (what < 17)
            read_one();
        else
            reclaimed += tierce__reclaimer_step(reclaimer);
        (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
        if (below(60) == 0)
            settle(open, &open_count);
    }
    settle(open, &open_count);
    tierce__reclaimer_stats(reclaimer, &stats);
    orphans += stats.orphaned_blocks;
    close_all(&h);
}

START_TEST(every_block_that_stays_is_reached)
{
    static const uint32_t samples[] = {1000, 20}; /* all keys; a few */
    random_ = test_random_start("orphans");
    for (unsigned round = 0; round < 3 * test_scale(); round++)
        run(samples[round % 2]);
    ck_assert(orphans > 0 && reclaimed > orphans);
}
END_TEST

CHECK_MAIN("prop_orphans", .seconds = 60 * (double)test_scale(),
           .tests = {every_block_that_stays_is_reached})
