/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of a storage whose driver deletes many files at once. */
#include "check_main.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "manager/storage/storage_worker.h"
#include "wait_for.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { FILES = TIERCE__STORAGE_BATCH_MAX + 6, HANG_MS = 2000, SLOW_MS = 500, LATE_MS = 900 };

static size_t batches[4];
static _Atomic unsigned batch_count;
static _Atomic bool hangs, is_slow;
static sem_t gate;

static void remove_many(struct tierce__storage_driver *driver, const char *const *paths,
                        size_t count, int *status)
{
    (void)driver;
    ck_assert_uint_lt(atomic_load(&batch_count), 4);
    batches[atomic_load(&batch_count)] = count;
    atomic_fetch_add(&batch_count, 1);
    if (atomic_load(&hangs))
        sem_wait(&gate);
    uint64_t until_ns = tierce__deadline_in_ms(SLOW_MS);
    if (atomic_load(&is_slow)) /* nobody posts */
        sem_clockwait(&gate, CLOCK_MONOTONIC,
                      &(struct timespec){.tv_sec = (time_t)(until_ns / 1000000000),
                                         .tv_nsec = (long)(until_ns % 1000000000)});
    for (size_t i = 0; i < count; i++)
        status[i] = strcmp(paths[i], "/no") == 0 ? -EACCES : 0;
}

static void close_driver(struct tierce__storage_driver *driver)
{
    tierce__free(driver);
}

static const struct tierce__storage_ops ops;

static int open_driver(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                       char why[128])
{
    (void)storage;
    (void)why;
    *out = tierce__calloc(1, sizeof(**out));
    (*out)->ops = &ops;
    return 0;
}

static const struct tierce__storage_ops ops = {
    .name = "fake", .open = open_driver, .close = close_driver, .remove_many = remove_many};

static struct tierce__storage_worker *start_with(const char **paths, uint32_t timeout_ms)
{
    struct tierce__storage_worker *worker = NULL;
    const struct tierce__storage storage = {.number = 1, .name = "s"};
    char why[128];
    ck_assert_int_eq(sem_init(&gate, 0, 0), 0);
    for (size_t i = 0; i < FILES; i++)
        paths[i] = i % 7 == 3 ? "/no" : "/x";
    ck_assert_int_eq(tierce__storage_worker_start(&worker, &storage, &ops, timeout_ms, why), 0);
    return worker;
}

static struct tierce__storage_worker *start(const char **paths)
{
    return start_with(paths, HANG_MS);
}

static void end(struct tierce__storage_worker *worker)
{
    tierce__storage_worker_end(worker);
    ck_assert(tierce__storage_worker_has_ended(worker, true));
    tierce__storage_worker_forget(worker);
}

START_TEST(each_file_has_its_status)
{
    const char *paths[FILES];
    int status[FILES];
    struct tierce__storage_worker *worker = start(paths);
    ck_assert_int_eq(tierce__storage_worker_remove(worker, NULL, paths, FILES, status), 0);
    for (size_t i = 0; i < FILES; i++)
        ck_assert_int_eq(status[i], i % 7 == 3 ? -EACCES : 0);
    ck_assert_uint_eq(batch_count, 2);
    ck_assert_uint_eq(batches[0], TIERCE__STORAGE_BATCH_MAX);
    ck_assert_uint_eq(batches[1], 6);
    end(worker);
}
END_TEST

/* The files of a call that hangs may still be deleted; the next call is not made. */
START_TEST(a_batch_that_hangs)
{
    const char *paths[FILES];
    int status[FILES];
    struct tierce__storage_worker *worker = start(paths);
    atomic_store(&hangs, true);
    ck_assert_int_eq(tierce__storage_worker_remove(worker, NULL, paths, FILES, status), 0);
    for (size_t i = 0; i < FILES; i++)
        ck_assert_int_eq(status[i],
                         i < TIERCE__STORAGE_BATCH_MAX ? TIERCE_E_DEADLINE : TIERCE_E_DOWN);
    atomic_store(&hangs, false);
    sem_post(&gate);
    WAIT_FOR(tierce__storage_worker_remove(worker, NULL, paths, 1, status) == 0 && status[0] == 0);
    ck_assert_uint_eq(batch_count, 2);
    ck_assert_uint_eq(batches[1], 1);
    end(worker);
}
END_TEST

/* The limit is for each call of the driver: both together take longer. */
START_TEST(a_job_that_is_slow)
{
    const char *paths[FILES];
    int status[FILES];
    struct tierce__storage_worker *worker = start_with(paths, LATE_MS);
    atomic_store(&is_slow, true);
    ck_assert_int_eq(tierce__storage_worker_remove(worker, NULL, paths, FILES, status), 0);
    ck_assert_int_eq(status[0], 0);
    ck_assert_int_eq(status[FILES - 1], 0);
    ck_assert_uint_eq(batch_count, 2);
    end(worker);
}
END_TEST

static void *remove_all(void *arg)
{
    const char *paths[FILES];
    int status[FILES];
    for (size_t i = 0; i < FILES; i++)
        paths[i] = "/x";
    ck_assert_int_eq(tierce__storage_worker_remove(arg, NULL, paths, FILES, status), 0);
    ck_assert_int_eq(status[FILES - 1], 0);
    return NULL;
}

/* Each caller is woken by the end of its own job. */
START_TEST(several_callers)
{
    const char *paths[FILES];
    pthread_t threads[2];
    struct tierce__storage_worker *worker = start_with(paths, 60 * HANG_MS);
    atomic_store(&hangs, true);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, remove_all, worker), 0);
    WAIT_FOR(atomic_load(&batch_count) == 1);
    for (int i = 0; i < 4; i++)
        sem_post(&gate);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(batch_count, 4);
    end(worker);
}
END_TEST

CHECK_MAIN("storage worker", .seconds = 120,
           .tests = {each_file_has_its_status, a_batch_that_hangs, a_job_that_is_slow,
                     several_callers})
