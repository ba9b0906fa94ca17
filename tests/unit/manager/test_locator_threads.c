/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All operations of a locator in parallel, for two seconds; at the end no state is left.
 */
#include "check_main.h"
#include "manager/reclaim/reclaimer.h"
#include "manager_harness.h"
#include "test_random.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { KEYS = 64 };

static struct harness h;
static atomic_bool is_over;
static atomic_uint_fast64_t finished, found;

static int64_t wall_us(void *arg)
{
    struct timespec now;
    (void)arg;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static size_t draw_keys(struct test_random *random, int64_t *keys)
{
    size_t count = 1 + test_random_below(random, 8), first = test_random_below(random, KEYS);
    for (size_t i = 0; i < count; i++)
        keys[i] = (int64_t)((first + i) % KEYS);
    return count;
}

static void *write_blocks(void *arg)
{
    struct test_random random = {*(const uint64_t *)arg};
    while (!atomic_load(&is_over)) {
        struct tierce__arena arena = {0};
        struct tierce__started started;
        char why[TIERCE__WHY_BYTES];
        int64_t keys[KEYS];
        static const char *const names[] = {"A", "B", "AB"};
        const char *groups[KEYS];
        size_t count = draw_keys(&random, keys);
        for (size_t i = 0; i < count; i++)
            groups[i] = names[test_random_below(&random, 3)];
        struct tierce__write_request request = {.instance_id = "i",
                                                .keys = keys,
                                                .count = count,
                                                .spec_groups = groups,
                                                .timeout_s = test_random_below(&random, 8) > 0};
        bool is_started =
            tierce__locator_start_write(h.locator, &request, &arena, &started, why) == 0;
        struct tierce__renewed renewed;
        if (is_started && test_random_below(&random, 4) == 0) {
            int rc = tierce__locator_renew_write(h.locator, "i", started.session, &renewed, why);
            ck_assert(rc == 0 || (rc == -ESRCH && renewed.end != TIERCE__SESSION_FINISHED));
        }
        if (is_started && test_random_below(&random, 16) > 0) {
            struct tierce__mask all = {.offset = (int64_t)started.count};
            int rc = tierce__locator_finish_write(h.locator, "i", started.session, &all, why);
            atomic_fetch_add(&finished, rc == 0 ? started.count : 0);
        }
        tierce__arena_clear(&arena);
    }
    return NULL;
}

static void *remove_blocks(void *arg)
{
    struct test_random random = {*(const uint64_t *)arg};
    while (!atomic_load(&is_over)) {
        char why[TIERCE__WHY_BYTES];
        int64_t keys[KEYS];
        struct tierce__mask none = {0};
        size_t count = draw_keys(&random, keys);
        int rc = tierce__locator_remove(h.locator, "i", keys, count, &none, why);
        ck_assert_int_eq(rc, 0);
        if (test_random_below(&random, 64) == 0)
            ck_assert_int_eq(tierce__locator_trim(h.locator, "i", TIERCE__TRIM_ALL, 0, 0, why), 0);
    }
    return NULL;
}

static void *read_blocks(void *arg)
{
    struct test_random random = {*(const uint64_t *)arg};
    while (!atomic_load(&is_over)) {
        struct tierce__arena arena = {0};
        struct tierce__got got;
        struct tierce__looked *looked;
        char why[TIERCE__WHY_BYTES];
        int64_t keys[KEYS];
        size_t count = draw_keys(&random, keys), looked_count;
        int rc = tierce__locator_get(
            h.locator,
            &(struct tierce__get_request){
                .instance_id = "i", .query = TIERCE__QUERY_BATCH, .keys = keys, .count = count},
            &arena, &got, why);
        ck_assert_int_eq(rc, 0);
        atomic_fetch_add(&found, got.hits);
        rc = tierce__locator_look(
            h.locator,
            &(struct tierce__look_request){.instance_id = "i", .keys = keys, .count = count},
            &arena, &looked, &looked_count, why);
        ck_assert_int_eq(rc, 0);
        tierce__arena_clear(&arena);
    }
    return NULL;
}

static void *expire(void *arg)
{
    (void)arg;
    while (!atomic_load(&is_over)) {
        (void)tierce__locator_expire(h.locator);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return NULL;
}

static void open_all(struct tierce__reclaimer **reclaimer)
{
    harness_open(&h, &(struct harness_opts){
                         .capacity = 40 * BLOCK_BYTES, .watermark = 0.6, .keys_per_file = 4});
    tierce__locator_close(h.locator);
    ck_assert_int_eq(tierce__locator_open(&h.locator,
                                          &(struct tierce__locator_opts){
                                              .size = sizeof(struct tierce__locator_opts),
                                              .registry = h.registry,
                                              .storages = h.storages,
                                              .now_us = wall_us,
                                              .delete_threads = 2,
                                              .reuse_delay_ms = 10,
                                              .late_write_ms = 20,
                                          }),
                     0);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 1, h.why), 0);
    ck_assert_int_eq(tierce__reclaimer_start(reclaimer,
                                             &(struct tierce__reclaimer_opts){
                                                 .size = sizeof(struct tierce__reclaimer_opts),
                                                 .locator = h.locator,
                                                 .registry = h.registry,
                                                 .interval_ms = 1,
                                                 .has_thread = true,
                                             }),
                     0);
    tierce__reclaimer_resume(*reclaimer);
}

static void wait_empty(void)
{
    struct tierce__usage usage;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        (void)tierce__locator_expire(h.locator);
        ck_assert_int_eq(tierce__locator_trim(h.locator, "i", TIERCE__TRIM_ALL, 0, 0, h.why), 0);
        usage = harness_usage(&h);
    } while (usage.sessions + usage.keys + usage.writing_bytes + usage.serving_bytes +
                 usage.deleting_bytes >
             0); /* the test's time limit ends it */
}

START_TEST(everything_at_once)
{
    static void *(*const jobs[])(void *) = {write_blocks,  write_blocks, write_blocks,
                                            remove_blocks, read_blocks,  expire};
    enum { JOBS = sizeof(jobs) / sizeof(jobs[0]) };
    struct tierce__reclaimer *reclaimer;
    pthread_t threads[JOBS];
    uint64_t seeds[JOBS];
    open_all(&reclaimer);
    for (size_t i = 0; i < JOBS; i++) {
        seeds[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, jobs[i], &seeds[i]), 0);
    }
    nanosleep(&(struct timespec){.tv_sec = 2}, NULL); /* the length of the run */
    atomic_store(&is_over, true);
    for (size_t i = 0; i < JOBS; i++)
        pthread_join(threads[i], NULL);
    tierce__reclaimer_pause(reclaimer);
    ck_assert_uint_gt(atomic_load(&finished), 0);
    wait_empty();
    tierce__reclaimer_stop(reclaimer);
    harness_close(&h);
}
END_TEST

static void *drop(void *arg)
{
    (void)arg;
    tierce__locator_drop(h.locator);
    return NULL;
}

/* A call that gives something to the deleter while the locator ends must not keep it from
 * ending. */
START_TEST(what_is_submitted_late_does_not_stop_the_end)
{
    struct tierce__live *live;
    pthread_t thread;
    harness_open(&h, &(struct harness_opts){0});
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    struct tierce__deletion *deletion = tierce__deletion_create(live, 1);
    ck_assert_int_eq(pthread_create(&thread, NULL, drop, NULL), 0);
    bool is_open = true;
    while (is_open) { /* the drop has begun */
        tierce__lock_take(&h.locator->lock);
        is_open = h.locator->is_open;
        tierce__lock_drop(&h.locator->lock);
    }
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* the drop proceeds meanwhile */
    deletion->due_us = INT64_MAX;
    tierce__deleter_submit(h.locator->deleter, deletion);
    tierce__live_release(live);
    pthread_join(thread, NULL);
    harness_close(&h);
}
END_TEST

CHECK_MAIN("locator_threads", .seconds = 60,
           .tests = {everything_at_once, what_is_submitted_late_does_not_stop_the_end})
