/* SPDX-License-Identifier: Apache-2.0 */
/* The ghost of a manager: its ring, its taps, and what a locator tells it. */
#include "check_main.h"
#include "manager_harness.h"

#include "base/alloc.h"
#include "manager/pilot/gain.h"
#include "manager/reclaim/reclaimer.h"
#include "manager/pilot/ghost_feed.h"
#include "manager/pilot/ghost_ring.h"

#include <math.h>
#include <pthread.h>

/* ---- the ring -------------------------------------------------------------------------------- */

enum { RING_CELLS = 64, CELL_KEYS = 6 };

static struct tierce__ghost_ring *open_ring(uint32_t cells)
{
    struct tierce__ghost_ring *ring;
    ck_assert_int_eq(tierce__ghost_ring_create(&ring, cells), 0);
    return ring;
}

static bool push(struct tierce__ghost_ring *ring, uint32_t source, uint32_t count)
{
    uint64_t keys[1024];
    for (uint32_t i = 0; i < count; i++)
        keys[i] = (uint64_t)source << 32 | i;
    return tierce__ghost_ring_push(
        ring, &(struct tierce__ghost_record){.source = source, .kind = source % 4, .count = count},
        keys);
}

/* Returns the number of the record's keys after comparing all of it; 0: there is none. */
static uint32_t pop(struct tierce__ghost_ring *ring, uint32_t *source)
{
    struct tierce__ghost_record record;
    const uint64_t *keys;
    int rc = tierce__ghost_ring_pop(ring, &record, &keys);
    ck_assert_int_ge(rc, 0);
    if (rc == 0)
        return 0;
    *source = record.source;
    ck_assert_uint_eq(record.kind, record.source % 4);
    for (uint32_t i = 0; i < record.count; i++)
        ck_assert_uint_eq(keys[i], (uint64_t)record.source << 32 | i);
    return record.count;
}

START_TEST(records_come_out_in_order_and_whole)
{
    struct tierce__ghost_ring *ring = open_ring(RING_CELLS);
    uint32_t source = 0, next_in = 1, next_out = 1;
    ck_assert_uint_eq(pop(ring, &source), 0);
    for (int round = 0; round < 1000; round++) {
        while (push(ring, next_in, 1 + next_in * 7 % 60))
            next_in++;
        ck_assert_uint_gt(next_in, next_out); /* something fits into an empty ring */
        for (int i = 0; i < 1 + round % 3 && next_out < next_in; i++) {
            ck_assert_uint_eq(pop(ring, &source), 1 + next_out * 7 % 60);
            ck_assert_uint_eq(source, next_out++);
        }
    }
    tierce__ghost_ring_destroy(ring);
}
END_TEST

START_TEST(a_full_ring_takes_nothing)
{
    struct tierce__ghost_ring *ring = open_ring(RING_CELLS);
    uint32_t source;
    ck_assert(!push(ring, 1, RING_CELLS / 2 * CELL_KEYS + 1)); /* more than half of it */
    for (uint32_t i = 0; i < RING_CELLS; i++)
        ck_assert(push(ring, i, CELL_KEYS));
    ck_assert(!push(ring, 99, 1));
    uint64_t position = tierce__ghost_ring_position(ring);
    ck_assert_uint_eq(pop(ring, &source), CELL_KEYS);
    ck_assert(!push(ring, 99, CELL_KEYS + 1)); /* two cells, and one is free */
    ck_assert(push(ring, 99, CELL_KEYS));
    for (uint32_t i = 1; i < RING_CELLS; i++) {
        ck_assert(!tierce__ghost_ring_passed(ring, position));
        ck_assert_uint_eq(pop(ring, &source), CELL_KEYS);
        ck_assert_uint_eq(source, i);
    }
    ck_assert(tierce__ghost_ring_passed(ring, position));
    ck_assert_uint_eq(pop(ring, &source), CELL_KEYS);
    ck_assert_uint_eq(source, 99);
    tierce__ghost_ring_destroy(ring);
}
END_TEST

enum { FILLERS = 4, FILLED = 20000 };

struct filler {
    struct tierce__ghost_ring *ring;
    uint32_t number;
    uint64_t pushed, dropped;
};

static void *fill(void *arg)
{
    struct filler *f = arg;
    for (uint32_t i = 0; i < FILLED; i++) {
        if (push(f->ring, f->number + FILLERS * i, 1 + i % 40))
            f->pushed++;
        else
            f->dropped++;
    }
    return NULL;
}

/* Of each thread the records keep their order; none is torn, and each is popped or was dropped. */
START_TEST(threads_fill_it_at_once)
{
    struct tierce__ghost_ring *ring = open_ring(256);
    struct filler fillers[FILLERS];
    pthread_t threads[FILLERS];
    int64_t latest[FILLERS] = {-1, -1, -1, -1};
    uint64_t popped = 0, pushed = 0;
    uint32_t source;
    for (uint32_t i = 0; i < FILLERS; i++) {
        fillers[i] = (struct filler){.ring = ring, .number = i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, fill, &fillers[i]), 0);
    }
    for (int joined = 0; joined <= FILLERS;) {
        if (joined < FILLERS && pthread_tryjoin_np(threads[joined], NULL) == 0) {
            joined++;
            continue;
        }
        bool is_last = joined == FILLERS;
        while (pop(ring, &source) > 0) {
            popped++;
            ck_assert_int_gt(source / FILLERS, latest[source % FILLERS]);
            latest[source % FILLERS] = source / FILLERS;
        }
        joined += is_last;
    }
    for (int i = 0; i < FILLERS; i++) {
        ck_assert_uint_eq(fillers[i].pushed + fillers[i].dropped, FILLED);
        pushed += fillers[i].pushed;
    }
    ck_assert_uint_eq(popped, pushed);
    tierce__ghost_ring_destroy(ring);
}
END_TEST

/* ---- the ghost ------------------------------------------------------------------------------- */

static int64_t clock_us;

static int64_t now_us(void *arg)
{
    (void)arg;
    return clock_us;
}

static struct tierce__ghosts *open_ghost(const struct tierce__ghosts_opts *opts)
{
    struct tierce__ghosts *ghost;
    struct tierce__ghosts_opts all = *opts;
    all.size = sizeof(all);
    all.now_us = now_us;
    all.seed = 5;
    ck_assert_int_eq(tierce__ghosts_create(&ghost, &all), 0);
    return ghost;
}

static struct tierce__ghosts_stats stats_of(struct tierce__ghosts *ghost)
{
    struct tierce__ghosts_stats stats;
    tierce__ghosts_stats(ghost, &stats);
    return stats;
}

static struct tierce__ghost_shape group_shape(struct tierce__ghosts *ghost)
{
    struct tierce__ghost_shape shape;
    ck_assert(tierce__ghosts_group(ghost, "g", &shape));
    return shape;
}

static struct tierce__ghost_tap *open_tap(struct tierce__ghosts *ghost, char *id, char *group,
                                          int64_t bytes)
{
    char spec_name[] = "tp0";
    struct tierce__spec_info spec = {spec_name, bytes};
    return tierce__ghosts_open(
        ghost,
        &(struct tierce__instance){
            .id = id, .group_name = group, .block_size = 16, .specs = &spec, .spec_count = 1});
}

/* Chains of ten keys, used in turn: LRU has all of them or none. */
static void loop_over(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap, int chains,
                      int rounds, int64_t first)
{
    for (int r = 0; r < rounds; r++) {
        for (int c = 0; c < chains; c++) {
            int64_t keys[10];
            for (int i = 0; i < 10; i++)
                keys[i] = first + c * 10 + i;
            tierce__ghosts_get(ghost, tap, keys, 10, true, r > 0 ? 10 : 0);
            tierce__ghosts_write(ghost, tap, keys, 10);
        }
        tierce__ghosts_step(ghost);
    }
}

/* The locator's requests reach the curves: a loop over 100 chains needs 1000 blocks. */
START_TEST(a_locator_feeds_it)
{
    struct harness h;
    struct tierce__ghosts *ghost = open_ghost(&(struct tierce__ghosts_opts){0});
    harness_open(&h, &(struct harness_opts){.capacity = 100000000, .ghost = ghost});
    for (int r = 0; r < 4; r++) {
        for (int c = 0; c < 100; c++) {
            int64_t keys[10];
            for (int i = 0; i < 10; i++)
                keys[i] = 1 + c * 10 + i;
            ck_assert_uint_eq(harness_prefix(&h, keys, 10), r > 0 ? 10 : 0);
            if (r == 0)
                harness_store(&h, keys, 10);
            tierce__arena_clear(&h.arena);
        }
        tierce__ghosts_step(ghost);
    }
    tierce__ghosts_feed(h.locator);
    struct tierce__ghost_shape shape = group_shape(ghost);
    ck_assert_double_eq(shape.asked, 4 * 1000 * 4); /* tokens: four a block */
    ck_assert_double_eq(shape.found, 3 * 1000 * 4);
    ck_assert_double_eq(shape.key_bytes, BLOCK_BYTES);
    /* Four times the quota is less than 2 GiB above it. */
    ck_assert_double_eq(shape.reach_bytes, 100000000.0 + 2 * TIERCE__GAIN_BYTES);
    ck_assert_double_eq_tol(tierce__ghost_rate(&shape, 1100.0 * BLOCK_BYTES), 0.75, 1e-9);
    ck_assert_double_lt(tierce__ghost_rate(&shape, 800.0 * BLOCK_BYTES), 0.01);
    struct tierce__ghost_shape own;
    ck_assert(tierce__ghosts_instance(ghost, "i", &own));
    ck_assert_double_eq(own.hits[TIERCE__GHOST_BUCKETS], shape.hits[TIERCE__GHOST_BUCKETS]);
    ck_assert(!tierce__ghosts_instance(ghost, "j", &own));
    ck_assert_uint_eq(stats_of(ghost).dropped, 0);
    harness_close(&h);
    ck_assert(!tierce__ghosts_instance(ghost, "i", &own));
    tierce__ghosts_destroy(ghost);
}
END_TEST

/* A prefix that the engine has is used too: without that, it would be older than what follows. */
START_TEST(a_masked_prefix_is_used)
{
    struct harness h;
    static const int64_t chain[] = {1, 2, 3, 4};
    struct tierce__got got;
    struct tierce__ghosts *ghost = open_ghost(&(struct tierce__ghosts_opts){0});
    harness_open(&h, &(struct harness_opts){.ghost = ghost});
    harness_store(&h, chain, 4);
    int64_t others[100];
    for (int i = 0; i < 100; i++)
        others[i] = 1000 + i;
    harness_store(&h, others, 100);
    struct tierce__get_request rest = {.instance_id = "i",
                                       .query = TIERCE__QUERY_PREFIX,
                                       .keys = chain,
                                       .count = 4,
                                       .mask = {.offset = 2}};
    ck_assert_int_eq(tierce__locator_get(h.locator, &rest, &h.arena, &got, h.why), 0);
    ck_assert_uint_eq(got.count, 2);
    ck_assert_uint_eq(harness_prefix(&h, chain, 2), 2);
    tierce__ghosts_step(ghost);
    struct tierce__ghost_shape shape = group_shape(ghost);
    /* Two hits behind a hundred blocks; then two hits among the last four. */
    ck_assert_double_eq(shape.asked, 4 * 4);
    ck_assert_double_eq_tol(tierce__ghost_hits(&shape, 10.0 * BLOCK_BYTES), 2 * 4, 1e-9);
    ck_assert_double_eq_tol(tierce__ghost_hits(&shape, 150.0 * BLOCK_BYTES), 4 * 4, 1e-9);
    harness_close(&h);
    tierce__ghosts_destroy(ghost);
}
END_TEST

/* A window query looks up the window's keys only. */
START_TEST(a_window_is_a_part_of_the_chain)
{
    struct harness h;
    static const int64_t chain[] = {1, 2, 3, 4, 5, 6};
    struct tierce__ghosts *ghost = open_ghost(&(struct tierce__ghosts_opts){0});
    harness_open(&h, &(struct harness_opts){.ghost = ghost});
    harness_store(&h, chain, 6);
    ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_WINDOW, chain, 6, 2).hits, 2);
    ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_BATCH, chain, 6, 0).hits, 6);
    tierce__ghosts_step(ghost);
    struct tierce__ghost_shape shape = group_shape(ghost);
    ck_assert_double_eq(shape.asked, 8 * 4);
    ck_assert_double_eq(shape.found, 8 * 4);
    ck_assert_double_eq(shape.hits[TIERCE__GHOST_BUCKETS], 8 * 4);
    harness_close(&h);
    tierce__ghosts_destroy(ghost);
}
END_TEST

START_TEST(a_full_ring_counts_drops_and_samples_less)
{
    char id[] = "i", group[] = "g";
    struct tierce__ghosts *ghost = open_ghost(&(struct tierce__ghosts_opts){.ring_cells = 64});
    struct tierce__ghost_tap *tap = open_tap(ghost, id, group, 1 << 20);
    int64_t keys[10];
    ck_assert_ptr_nonnull(tap);
    ck_assert_uint_eq(atomic_load(&tap->bound), UINT64_MAX);
    uint64_t last = UINT64_MAX;
    int requests = 0;
    for (int step = 0; step < 12; step++) {
        uint64_t dropped = stats_of(ghost).dropped;
        for (int c = 0; c < 300; c++) {
            for (int i = 0; i < 10; i++)
                keys[i] = c * 10 + i;
            tierce__ghosts_get(ghost, tap, keys, 10, true, 0);
            requests++;
        }
        bool has_dropped = stats_of(ghost).dropped > dropped;
        tierce__ghosts_step(ghost);
        uint64_t bound = atomic_load(&tap->bound);
        ck_assert_msg(has_dropped ? bound <= last / 2 + 1 : bound == last, "%d: %llx", step,
                      (unsigned long long)bound);
        last = bound;
    }
    struct tierce__ghosts_stats stats = stats_of(ghost);
    ck_assert_uint_gt(stats.dropped, 0);
    ck_assert_uint_ge(stats.coarsened, 3); /* 600 cells are needed at first, and there are 64 */
    /* What was dropped was not looked up. */
    struct tierce__ghost_shape shape = group_shape(ghost);
    ck_assert_double_eq(shape.asked, (double)(requests - stats.dropped) * 10 * 16);
    tierce__ghosts_close(ghost, tap);
    tierce__ghosts_destroy(ghost);
}
END_TEST

/* The window moves on: an old load is forgotten, and a new one is seen. */
START_TEST(only_the_window_counts)
{
    enum { EPOCH_US = 1000000 };
    char id[] = "i", group[] = "g";
    clock_us = 0;
    struct tierce__ghosts *ghost = open_ghost(&(struct tierce__ghosts_opts){.epoch_us = EPOCH_US});
    struct tierce__ghost_tap *tap = open_tap(ghost, id, group, 1 << 20);
    tierce__ghosts_step(ghost);
    ck_assert(!group_shape(ghost).is_warm);
    loop_over(ghost, tap, 100, 3, 0);
    clock_us += 8 * EPOCH_US;
    tierce__ghosts_step(ghost);
    ck_assert_double_eq(group_shape(ghost).asked, 3000 * 16);
    ck_assert(group_shape(ghost).is_warm);
    ck_assert_double_eq(group_shape(ghost).seconds, 8);
    clock_us += EPOCH_US;
    tierce__ghosts_step(ghost);
    ck_assert_double_eq(group_shape(ghost).asked, 0);
    loop_over(ghost, tap, 50, 2, 0); /* known from before the window: hits at once */
    struct tierce__ghost_shape shape = group_shape(ghost);
    ck_assert_double_eq(shape.asked, 1000 * 16);
    ck_assert_double_eq_tol(tierce__ghost_rate(&shape, 1100.0 * (1 << 20)), 1, 1e-9);
    ck_assert_double_eq_tol(tierce__ghost_rate(&shape, 600.0 * (1 << 20)), 0.5, 1e-9);
    tierce__ghosts_close(ghost, tap);
    tierce__ghosts_destroy(ghost);
}
END_TEST

/* Instances of one group share it; other groups do not. Closed ones leave it. */
START_TEST(groups_are_apart)
{
    char a[] = "a", b[] = "b", c[] = "c", g[] = "g", other[] = "other";
    struct tierce__ghost_shape shape;
    struct tierce__ghosts *ghost = open_ghost(&(struct tierce__ghosts_opts){0});
    struct tierce__ghost_tap *first = open_tap(ghost, a, g, 1 << 20);
    struct tierce__ghost_tap *second = open_tap(ghost, b, g, 1 << 20);
    struct tierce__ghost_tap *third = open_tap(ghost, c, other, 1 << 20);
    tierce__ghosts_step(ghost);
    for (int i = 0; i < 3; i++) {
        loop_over(ghost, first, 10, 1, 0);
        loop_over(ghost, second, 10, 1, 0); /* the same keys, other blocks */
        loop_over(ghost, third, 10, 1, 0);
    }
    struct tierce__ghost_shape own;
    shape = group_shape(ghost);
    ck_assert_double_eq(shape.asked, 600 * 16);
    ck_assert(tierce__ghosts_instance(ghost, "b", &own)); /* without the load of a */
    ck_assert_double_eq_tol(tierce__ghost_rate(&own, 120.0 * (1 << 20)), 2.0 / 3, 1e-9);
    ck_assert_double_eq(own.asked, 300 * 16);
    ck_assert_double_lt(tierce__ghost_rate(&shape, 120.0 * (1 << 20)), 0.01);
    ck_assert_double_eq_tol(tierce__ghost_rate(&shape, 250.0 * (1 << 20)), 2.0 / 3, 1e-9);
    ck_assert(tierce__ghosts_group(ghost, "other", &shape));
    ck_assert_double_eq_tol(tierce__ghost_rate(&shape, 120.0 * (1 << 20)), 2.0 / 3, 1e-9);
    tierce__ghosts_close(ghost, second);
    tierce__ghosts_close(ghost, third);
    tierce__ghosts_step(ghost);
    ck_assert(!tierce__ghosts_group(ghost, "other", &shape));
    ck_assert_uint_eq(group_shape(ghost).blocks, 100);
    ck_assert_uint_eq(stats_of(ghost).instances, 1);
    tierce__ghosts_close(ghost, first);
    tierce__ghosts_destroy(ghost);
}
END_TEST

START_TEST(there_are_limits)
{
    struct tierce__ghosts *ghost = open_ghost(&(struct tierce__ghosts_opts){0});
    struct tierce__ghost_tap *taps[TIERCE__GHOST_INSTANCES_MAX];
    char id[16], group[] = "g", name[16];
    int64_t key = 1;
    for (int i = 0; i < TIERCE__GHOST_INSTANCES_MAX; i++) {
        snprintf(id, sizeof(id), "i%d", i);
        snprintf(name, sizeof(name), "g%d", i % TIERCE__GHOST_GROUPS_MAX);
        taps[i] = open_tap(ghost, id, name, 100);
        ck_assert_ptr_nonnull(taps[i]);
    }
    ck_assert_ptr_null(open_tap(ghost, id, group, 100));
    ck_assert_uint_eq(stats_of(ghost).unfollowed, 1);
    tierce__ghosts_get(ghost, NULL, &key, 1, true, 0); /* of an instance that is not followed */
    tierce__ghosts_write(ghost, NULL, &key, 1);
    tierce__ghosts_close(ghost, taps[0]);
    ck_assert_ptr_null(open_tap(ghost, id, name, 100)); /* its records may be in the ring */
    tierce__ghosts_step(ghost);
    ck_assert_ptr_null(open_tap(ghost, id, group, 100)); /* one group too many */
    taps[0] = open_tap(ghost, id, name, 100);
    ck_assert_ptr_nonnull(taps[0]);
    for (int i = 0; i < TIERCE__GHOST_INSTANCES_MAX; i++)
        tierce__ghosts_close(ghost, taps[i]);
    tierce__ghosts_destroy(ghost);
}
END_TEST

static int use_it(struct tierce__ghost_tap **tap, struct tierce__ghosts **ghost)
{
    char id[] = "i", other[] = "j", group[] = "g";
    struct tierce__ghosts_opts opts = {.size = sizeof(opts),
                                       .now_us = now_us,
                                       .seed = 5,
                                       .group_blocks = 256,
                                       .instance_blocks = 256};
    int rc = tierce__ghosts_create(ghost, &opts);
    if (rc < 0)
        return rc;
    *tap = open_tap(*ghost, id, group, 1 << 20);
    struct tierce__ghost_tap *second = open_tap(*ghost, other, group, 1 << 20);
    tierce__ghosts_step(*ghost); /* both get curves of their own */
    loop_over(*ghost, *tap, 60, 2, 0);
    bool opened = second != NULL;
    tierce__ghosts_close(*ghost, second);
    return opened && *tap != NULL && stats_of(*ghost).unfollowed == 0 &&
                   stats_of(*ghost).dropped == 0
               ? 0
               : -ENOMEM;
}

/* Each failure is an error, a counted loss or a drop, and afterwards the ghost works. */
START_TEST(every_allocation_may_fail)
{
    struct tierce__ghost_tap *tap = NULL;
    struct tierce__ghosts *ghost = NULL;
    uint64_t live = tierce__alloc_live(), again = 0;
    tierce__alloc_fail_nth(0);
    ck_assert_int_eq(use_it(&tap, &ghost), 0);
    uint64_t count = tierce__alloc_fail_nth(0);
    tierce__ghosts_step(ghost);
    struct tierce__ghost_shape whole = group_shape(ghost), shape;
    tierce__ghosts_close(ghost, tap);
    tierce__ghosts_destroy(ghost);
    ck_assert_uint_gt(count, 20);
    for (uint64_t n = 1; n <= count; n++) {
        tap = NULL;
        ghost = NULL;
        tierce__alloc_fail_nth(n);
        int rc = use_it(&tap, &ghost);
        tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
        if (rc == 0) { /* what failed was done again later */
            tierce__ghosts_step(ghost);
            shape = group_shape(ghost);
            ck_assert_double_eq(shape.asked, whole.asked);
            ck_assert_mem_eq(shape.hits, whole.hits, sizeof(shape.hits));
            again++;
        }
        if (ghost != NULL && tap != NULL) {
            loop_over(ghost, tap, 10, 2, 5000);
            shape = group_shape(ghost);
            ck_assert_double_gt(shape.hits[TIERCE__GHOST_BUCKETS], 0);
            tierce__ghosts_close(ghost, tap);
        }
        tierce__ghosts_destroy(ghost);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    ck_assert_uint_lt(again, count / 4);
}
END_TEST

/* ---- another GiB ---------------------------------------------------------------------------- */

/* Two storages of one kind share its quota. */
START_TEST(a_kind_of_storage_counts_once)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    char name[] = "s", *both[] = {name, name};
    struct tierce__type_quota quota = {
        .type = tierce__storage_type_quota(tierce__catalog_candidate_type(catalog, name)),
        .capacity_bytes = 1000};
    group.storage_candidates = both;
    group.storage_candidate_count = 2;
    group.type_quotas = &quota;
    group.type_quota_count = 1;
    group.capacity_bytes = 1 << 20;
    ck_assert_double_eq(tierce__gain_bytes(&group, catalog),
                        1000 * tierce__reclaimer_watermark_share(&group));
    tierce__registry_release(h.registry, catalog);
    harness_close(&h);
}
END_TEST

START_TEST(a_gain_is_a_difference_of_the_curve)
{
    struct tierce__ghost_shape shape = {.asked = 100, .seconds = 10};
    struct tierce__gain gain;
    const double gib = TIERCE__GAIN_BYTES;
    tierce__gain_at(&gain, &shape, 0); /* no quota */
    ck_assert_double_eq(gain.hit_ratio, -1);
    ck_assert_double_eq(gain.more_hit_ratio, -1);
    for (uint32_t i = 0; i <= TIERCE__GHOST_BUCKETS; i++)
        shape.hits[i] = fmin(80, 10 * tierce__ghost_bucket_bytes(i) / gib);
    tierce__gain_at(&gain, &shape, 2 * gib);
    ck_assert_double_eq_tol(gain.hit_ratio, 0.2, 1e-9);
    ck_assert_double_eq_tol(gain.more_hit_ratio, 0.1, 1e-9);
    ck_assert_double_eq_tol(gain.more_tokens_per_second, 1, 1e-9);
    tierce__gain_at(&gain, &shape, 8 * gib); /* where the curve is flat */
    ck_assert_double_eq_tol(gain.hit_ratio, 0.8, 1e-9);
    ck_assert_double_eq(gain.more_hit_ratio, 0);
    shape.asked = 0;
    tierce__gain_at(&gain, &shape, 2 * gib);
    ck_assert_double_eq(gain.hit_ratio, -1);
    ck_assert_double_eq(gain.more_tokens_per_second, -1);
}
END_TEST

START_TEST(a_group_may_hold_what_its_types_may)
{
    struct harness h;
    static const struct {
        int64_t capacity, of_files;
        double expected;
    } cases[] = {{1000, 4000, 1000}, {4000, 1000, 1000}, {4000, 4000, 4000}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        harness_open(&h, &(struct harness_opts){.capacity = cases[i].capacity,
                                                .type_capacity = cases[i].of_files});
        const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
        size_t count;
        struct tierce__group group = tierce__catalog_groups(catalog, &count)[0];
        double share = tierce__reclaimer_watermark_share(&group);
        ck_assert_double_eq_tol(tierce__gain_bytes(&group, catalog), share * cases[i].expected,
                                1e-6);
        group.type_quota_count = 0; /* a type without a quota may fill the group's */
        ck_assert_double_eq_tol(tierce__gain_bytes(&group, catalog),
                                share * (double)cases[i].capacity, 1e-6);
        group.capacity_bytes = 0;
        ck_assert_double_eq(tierce__gain_bytes(&group, catalog), 0);
        tierce__registry_release(h.registry, catalog);
        harness_close(&h);
    }
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

struct asker {
    struct tierce__ghosts *ghost;
    struct tierce__ghost_tap *tap;
    _Atomic uint64_t asked;
};

enum { ASKERS = 3, ASKED = 3000 };

static void *ask(void *arg)
{
    struct asker *a = arg;
    for (int r = 0; r < ASKED; r++) {
        int64_t keys[20];
        for (int i = 0; i < 20; i++)
            keys[i] = r % 50 * 20 + i;
        tierce__ghosts_get(a->ghost, a->tap, keys, 20, true, 20);
        tierce__ghosts_write(a->ghost, a->tap, keys, 20);
    }
    return NULL;
}

/* Requests on several threads while the ghost's own thread works, and others look. */
START_TEST(its_thread_works_beside_requests)
{
    char id[] = "i", group[] = "g";
    struct tierce__ghosts *ghost;
    struct tierce__ghost_shape shape;
    struct tierce__ghosts_stats stats;
    pthread_t threads[ASKERS];
    ck_assert_int_eq(
        tierce__ghosts_create(
            &ghost, &(struct tierce__ghosts_opts){.size = sizeof(struct tierce__ghosts_opts),
                                                  .has_thread = true}),
        0);
    struct asker asker = {.ghost = ghost, .tap = open_tap(ghost, id, group, 1 << 20)};
    for (int i = 0; i < ASKERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, ask, &asker), 0);
    do {
        ck_assert(tierce__ghosts_group(ghost, "g", &shape));
        tierce__ghosts_resize(ghost, asker.tap, 1 << 20);
        stats = stats_of(ghost);
        sched_yield();
    } while (stats.requests < 1000 || stats.cpu_ns == 0);
    for (int i = 0; i < ASKERS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_gt(stats.cpu_ns, 0);
    tierce__ghosts_close(ghost, asker.tap);
    tierce__ghosts_destroy(ghost);
}
END_TEST

CHECK_MAIN("ghost", .seconds = 60,
           .tests = {records_come_out_in_order_and_whole, a_full_ring_takes_nothing,
                     threads_fill_it_at_once, a_locator_feeds_it, a_masked_prefix_is_used,
                     a_window_is_a_part_of_the_chain, a_full_ring_counts_drops_and_samples_less,
                     only_the_window_counts, groups_are_apart, there_are_limits,
                     a_kind_of_storage_counts_once, a_gain_is_a_difference_of_the_curve,
                     a_group_may_hold_what_its_types_may, every_allocation_may_fail,
                     its_thread_works_beside_requests})
