/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "base/alloc.h"
#include "check_main.h"
#include "directory/directory_private.h"
#include "test_random.h"

/* Workers that report, send their contents anew, leave and join; others look up and clean. Keys are
 * of one worker each, so that a run of the wrong worker is seen. */

enum { WORKERS = 4, KEYS = 500, ROUNDS = 400 };

static struct tierce__directory *directory;
static atomic_bool is_over;

static struct tierce__directory_key key_of(unsigned worker, unsigned n)
{
    return (struct tierce__directory_key){worker, n};
}

static void join(unsigned worker, struct tierce__directory_id *id)
{
    char name[8];
    snprintf(name, sizeof(name), "%u", worker);
    ck_assert_int_eq(tierce__directory_join(directory,
                                            &(struct tierce__directory_worker){
                                                "g", name, name, "", false, NULL, false, NULL},
                                            0, id),
                     0);
    ck_assert_int_eq(tierce__directory_sync_begin(directory, *id, 0), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(tierce__directory_sync_end(directory, *id, 0, 0), TIERCE__DIRECTORY_DONE);
}

static void *work(void *arg)
{
    unsigned worker = *(unsigned *)arg;
    struct test_random random = {worker};
    struct tierce__directory_change changes[KEYS];
    struct tierce__directory_id id;
    uint64_t next = 1;
    join(worker, &id);
    for (unsigned round = 0; round < TEST_ROUNDS(ROUNDS); round++) {
        for (unsigned i = 0; i < KEYS; i++)
            changes[i] = (struct tierce__directory_change){
                .key = key_of(worker, i), .admitted = round % 3 != 2, .tier = round % 2};
        ck_assert_int_eq(tierce__directory_report(directory, id, next, changes, KEYS, 0),
                         TIERCE__DIRECTORY_DONE);
        next += KEYS;
        if (test_random_below(&random, 20) == 0) {
            join(worker, &id);
            next = 1;
        } else if (test_random_below(&random, 20) == 0 &&
                   tierce__directory_sync_begin(directory, id, 0) == TIERCE__DIRECTORY_DONE) {
            ck_assert_int_eq(tierce__directory_sync_add(directory, id, changes, KEYS, 0),
                             TIERCE__DIRECTORY_DONE);
            ck_assert_int_eq(tierce__directory_sync_end(directory, id, next - 1, 0),
                             TIERCE__DIRECTORY_DONE);
        }
    }
    return NULL;
}

static void *look(void *arg)
{
    struct tierce__directory_asker asker = {.group = "g", .host = ""};
    struct tierce__directory_found found;
    (void)arg;
    while (!atomic_load(&is_over)) {
        for (unsigned worker = 0; worker < WORKERS; worker++) {
            struct tierce__directory_key keys[KEYS];
            struct tierce__directory_about about;
            for (unsigned i = 0; i < KEYS; i++)
                keys[i] = key_of(worker, i);
            ck_assert_int_eq(tierce__directory_find(directory, keys, KEYS, &asker, &found), 0);
            for (uint32_t i = 0; i < found.run_count; i++) {
                if (tierce__directory_about(directory, found.runs[i].worker, &about))
                    ck_assert_uint_eq(strtoul(about.name, NULL, 10), worker);
            }
        }
        for (unsigned i = 0; i < 50; i++)
            (void)tierce__directory_clean(directory, 100);
    }
    return NULL;
}

START_TEST(workers_lookups_and_cleaning)
{
    pthread_t workers[WORKERS], looker;
    unsigned numbers[WORKERS];
    struct tierce__directory_opts opts = {.size = sizeof(opts), .workers_max = 16};
    ck_assert_int_eq(tierce__directory_create(&directory, &opts), 0);
    ck_assert_int_eq(pthread_create(&looker, NULL, look, NULL), 0);
    for (unsigned i = 0; i < WORKERS; i++) {
        numbers[i] = i;
        ck_assert_int_eq(pthread_create(&workers[i], NULL, work, &numbers[i]), 0);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    atomic_store(&is_over, true);
    pthread_join(looker, NULL);
    while (tierce__directory_clean(directory, 1000))
        ;
    uint64_t keys = 0;
    uint32_t from = 0;
    struct tierce__directory_about about;
    struct tierce__directory_stats stats;
    while (tierce__directory_next(directory, &from, &about))
        keys += about.keys;
    tierce__directory_stats(directory, &stats);
    ck_assert_uint_eq(stats.holders, keys);
    tierce__directory_destroy(directory);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

/* ---- one worker is busy ---------------------------------------------------------------------- */

static struct tierce__directory_id busy_id;
static atomic_bool is_busy, may_end;
static atomic_int waiter_tid;

/* Holds a worker's lock, as a call with many changes does. */
static void *be_busy(void *arg)
{
    struct tierce__directory_slot *slot = &directory->slots[busy_id.slot];
    (void)arg;
    tierce__lock_take(&slot->lock);
    atomic_store(&is_busy, true);
    while (!atomic_load(&may_end))
        sched_yield();
    tierce__lock_drop(&slot->lock);
    return NULL;
}

static void wait_leave(void)
{
    (void)tierce__directory_leave(directory, busy_id);
}

static void wait_join(void)
{
    struct tierce__directory_id id;
    join(0, &id);
}

static void wait_begin(void)
{
    (void)tierce__directory_sync_begin(directory, busy_id, 0);
}

static void wait_end(void)
{
    (void)tierce__directory_sync_end(directory, busy_id, 0, 0);
}

static void wait_about(void)
{
    struct tierce__directory_about about;
    (void)tierce__directory_about(directory, busy_id, &about);
}

static void wait_next(void)
{
    struct tierce__directory_about about;
    uint32_t from = 0;
    while (tierce__directory_next(directory, &from, &about))
        ;
}

static void (*const waits[])(void) = {wait_leave, wait_join,  wait_begin,
                                      wait_end,   wait_about, wait_next};
enum { WAITS = sizeof(waits) / sizeof(waits[0]) };

static void *wait_for_it(void *arg)
{
    atomic_store(&waiter_tid, (int)gettid());
    (*(void (*const *)(void))arg)();
    return NULL;
}

/* Until the thread sleeps, which it does for the worker's lock only. */
static void until_it_sleeps(void)
{
    char path[64], state = 0;
    while (atomic_load(&waiter_tid) == 0)
        sched_yield();
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(&waiter_tid));
    while (state != 'S') {
        FILE *file = fopen(path, "r");
        ck_assert_ptr_nonnull(file);
        ck_assert_int_eq(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
        fclose(file);
    }
}

/* A call that waits for a busy worker delays nobody else. */
START_TEST(a_busy_worker_delays_its_own_calls_only)
{
    pthread_t holder, waiter;
    struct tierce__directory_opts opts = {.size = sizeof(opts), .workers_max = 16};
    struct tierce__directory_id other;
    struct tierce__directory_stats stats;
    struct tierce__directory_found found;
    struct tierce__directory_asker asker = {.group = "g", .host = ""};
    struct tierce__directory_key key = key_of(1, 0);
    struct tierce__directory_change change = {.key = key, .admitted = true};
    ck_assert_int_eq(tierce__directory_create(&directory, &opts), 0);
    join(0, &busy_id);
    atomic_store(&is_busy, false);
    atomic_store(&may_end, false);
    atomic_store(&waiter_tid, 0);
    ck_assert_int_eq(pthread_create(&holder, NULL, be_busy, NULL), 0);
    while (!atomic_load(&is_busy))
        sched_yield();
    ck_assert_int_eq(pthread_create(&waiter, NULL, wait_for_it, (void *)(uintptr_t)&waits[_i]), 0);
    until_it_sleeps();
    join(1, &other);
    ck_assert_int_eq(tierce__directory_report(directory, other, 1, &change, 1, 0),
                     TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(tierce__directory_find(directory, &key, 1, &asker, &found), 0);
    ck_assert_uint_eq(found.run_count, 1);
    ck_assert_int_eq(tierce__directory_leave(directory, other), TIERCE__DIRECTORY_DONE);
    while (tierce__directory_clean(directory, 1000))
        ;
    tierce__directory_stats(directory, &stats);
    ck_assert_uint_eq(stats.holders, 0);
    ck_assert_uint_eq(tierce__directory_expire(directory, UINT64_MAX), 0); /* it is not silent */
    atomic_store(&may_end, true);
    pthread_join(waiter, NULL);
    pthread_join(holder, NULL);
    tierce__directory_destroy(directory);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("directory threads", .loops = {{a_busy_worker_delays_its_own_calls_only, 0, WAITS}},
           .tests = {workers_lookups_and_cleaning})
