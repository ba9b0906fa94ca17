/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "base/alloc.h"
#include "check_main.h"
#include "directory/directory.h"
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
    ck_assert_int_eq(tierce__directory_join(
                         directory, &(struct tierce__directory_worker){"g", name, name, ""}, 0, id),
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

CHECK_MAIN("directory threads", .tests = {workers_lookups_and_cleaning})
