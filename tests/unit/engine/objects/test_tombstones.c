/* SPDX-License-Identifier: Apache-2.0 */
/* The file of tombstones: what is in it after restarts, failed writes, power cuts and damage. */
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/objects/tombstones.h"
#include "test_random.h"
#include "tombstone_file.h"
#include "vfs_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <tierce/log.h>

enum { PAGE = 4096, KEYS = 64, STORE = 7, OTHER = 8 };

static const uint8_t digest[TIERCE_HASH_BYTES] = {1, 2, 3};
static char folder[64], path[96];
static struct tierce__namespaces *namespaces;
static struct tierce__vfs *faults; /* of the open tombstones, with power cuts */
static uint32_t ns;

static void setup(void)
{
    strcpy(folder, "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/tombstones", folder);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_ERROR);
    ck_assert_int_eq(tierce__namespaces_create(&namespaces), 0);
    ns = (uint32_t)tierce__namespaces_intern(namespaces, digest, NULL);
}

static void teardown(void)
{
    temp_folder_remove(folder);
    tierce__namespaces_destroy(namespaces);
}

static int try_open(struct tierce__tombstones **out)
{
    struct tierce__vfs *vfs;
    ck_assert_int_eq(tierce__vfs_threads_create(&vfs, 1), 0);
    ck_assert_int_eq(tierce__vfs_fault_create(&faults, vfs, true), 0);
    ck_assert_int_eq(faults->ops->enter(faults, folder), 0);
    return tierce__tombstones_open(out, faults, namespaces);
}

static struct tierce__tombstones *reopen(struct tierce__tombstones *tombs)
{
    tierce__tombstones_close(tombs);
    ck_assert_int_eq(try_open(&tombs), 0);
    return tombs;
}

static struct tierce__key key_of(uint32_t number)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}, .ns = ns};
    memcpy(key.hash, &number, sizeof(number));
    key.hash[20] = 0x5a;
    return key;
}

static bool has(struct tierce__tombstones *tombs, uint64_t store, uint32_t number)
{
    struct tierce__key key = key_of(number);
    return tierce__tombstones_has(tombs, store, &key);
}

static int add(struct tierce__tombstones *tombs, uint64_t store, uint32_t number)
{
    struct tierce__key key = key_of(number);
    return tierce__tombstones_add(tombs, store, &key);
}

static void lift(struct tierce__tombstones *tombs, uint64_t store, uint32_t number)
{
    struct tierce__key key = key_of(number);
    tierce__tombstones_lift(tombs, store, &key);
}

static int64_t file_bytes(void)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

START_TEST(none)
{
    struct tierce__key key = key_of(1);
    ck_assert_int_eq(tierce__tombstones_add(NULL, STORE, &key), TIERCE_E_UNSUPPORTED);
    ck_assert(!tierce__tombstones_has(NULL, STORE, &key));
    tierce__tombstones_lift(NULL, STORE, &key);
    tierce__tombstones_flush(NULL);
    ck_assert_uint_eq(tierce__tombstones_count(NULL), 0);
    struct tierce__tombstones *tombs;
    ck_assert_int_eq(try_open(&tombs), 0);
    tierce__tombstones_flush(tombs);
    tierce__tombstones_close(tombs);
    ck_assert_int_eq(file_bytes(), -1); /* an engine without one leaves no file */
}
END_TEST

START_TEST(they_are_there_until_they_are_lifted)
{
    struct tierce__tombstones *tombs;
    struct tierce__key keys[4];
    ck_assert_int_eq(try_open(&tombs), 0);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_int_eq(add(tombs, STORE, i), 0);
    ck_assert_int_eq(add(tombs, STORE, 1), 0);
    ck_assert_int_eq(add(tombs, OTHER, 1), 0);
    ck_assert_uint_eq(tierce__tombstones_count(tombs), 4);
    ck_assert(has(tombs, STORE, 1) && has(tombs, OTHER, 1) && !has(tombs, OTHER, 0));
    keys[0] = key_of(0);
    tierce__tombstones_defer(tombs, STORE, &keys[0]);
    ck_assert_uint_eq(tierce__tombstones_list(tombs, STORE, keys, 4), 3);
    ck_assert(keys[0].hash[0] == 1 && keys[1].hash[0] == 2 && keys[2].hash[0] == 0);
    lift(tombs, STORE, 1);
    lift(tombs, STORE, 9);
    tombs = reopen(tombs);
    ck_assert(has(tombs, STORE, 0) && !has(tombs, STORE, 1) && has(tombs, STORE, 2));
    ck_assert(has(tombs, OTHER, 1));
    lift(tombs, STORE, 0);
    lift(tombs, STORE, 2);
    lift(tombs, OTHER, 1);
    tierce__tombstones_flush(tombs);
    ck_assert_int_eq(file_bytes(), 0);
    ck_assert_int_eq(add(tombs, STORE, 5), 0);
    tombs = reopen(tombs);
    ck_assert_uint_eq(tierce__tombstones_count(tombs), 1);
    tierce__tombstones_close(tombs);
}
END_TEST

/* A tombstone that comes and goes beside one that stays does not make the file grow for ever. */
START_TEST(a_long_file_is_written_anew)
{
    struct tierce__tombstones *tombs;
    int64_t most = 0;
    ck_assert_int_eq(try_open(&tombs), 0);
    ck_assert_int_eq(add(tombs, STORE, 1), 0);
    for (int i = 0; i < 600; i++) {
        ck_assert_int_eq(add(tombs, STORE, 2), 0);
        lift(tombs, STORE, 2);
        tierce__tombstones_flush(tombs);
        most = file_bytes() > most ? file_bytes() : most;
    }
    ck_assert_int_gt(most, (int64_t)200 * PAGE);
    ck_assert_int_lt(most, (int64_t)300 * PAGE);
    tombs = reopen(tombs);
    ck_assert(has(tombs, STORE, 1) && !has(tombs, STORE, 2));
    tierce__tombstones_close(tombs);
}
END_TEST

static void overwrite(off_t at, const void *bytes, size_t count)
{
    int fd = open(path, O_WRONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, bytes, count, at), (ssize_t)count);
    close(fd);
}

START_TEST(a_damaged_page_is_told_from_a_torn_one)
{
    struct tierce__tombstones *tombs;
    ck_assert_int_eq(try_open(&tombs), 0);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_int_eq(add(tombs, STORE, i), 0);
    tierce__tombstones_close(tombs);
    ck_assert_int_eq(file_bytes(), 3 * PAGE);
    overwrite(2 * PAGE + 100, "?", 1); /* as if its sync had not returned */
    ck_assert_int_eq(try_open(&tombs), 0);
    ck_assert(has(tombs, STORE, 0) && has(tombs, STORE, 1) && !has(tombs, STORE, 2));
    ck_assert_int_eq(add(tombs, STORE, 3), 0); /* in a new file: nothing torn is before it */
    tombs = reopen(tombs);
    ck_assert(has(tombs, STORE, 0) && has(tombs, STORE, 1) && has(tombs, STORE, 3));
    ck_assert_int_eq(add(tombs, STORE, 4), 0);
    tierce__tombstones_close(tombs);
    int64_t bytes = file_bytes();
    overwrite(100, "?", 1);
    for (int i = 0; i < 2; i++) { /* opening has not mended it by forgetting */
        ck_assert_int_eq(try_open(&tombs), TIERCE_E_CHECKSUM);
        ck_assert_int_eq(file_bytes(), bytes);
    }
}
END_TEST

START_TEST(a_file_of_another_version_stays)
{
    struct tierce__tombstones *tombs;
    uint8_t page[PAGE];
    ck_assert_int_eq(try_open(&tombs), 0);
    ck_assert_int_eq(add(tombs, STORE, 1), 0);
    tierce__tombstones_close(tombs);
    int fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, page, PAGE, 0), PAGE);
    page[16] = 2;
    uint64_t sum = XXH3_64bits(page + 16, PAGE - 16);
    memcpy(page + 8, &sum, sizeof(sum));
    ck_assert_int_eq(pwrite(fd, page, PAGE, 0), PAGE);
    close(fd);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(try_open(&tombs), TIERCE_E_VERSION);
        ck_assert_int_eq(file_bytes(), PAGE);
    }
}
END_TEST

/* A batch of several pages is torn at its first page: what comes later is not behind the hole. */
START_TEST(a_torn_batch_is_not_appended_to)
{
    struct tierce__tombstones *tombs;
    ck_assert_int_eq(try_open(&tombs), 0);
    for (uint32_t i = 0; i < 101; i++)
        ck_assert_int_eq(add(tombs, STORE, i), 0);
    for (uint32_t i = 0; i < 100; i++)
        lift(tombs, STORE, i);
    tierce__tombstones_close(tombs);
    ck_assert_int_eq(file_bytes(), (101 + 3) * PAGE);
    overwrite(101 * PAGE + 100, "?", 1);
    ck_assert_int_eq(try_open(&tombs), 0);
    ck_assert_int_eq(add(tombs, STORE, 500), 0);
    tombs = reopen(tombs);
    ck_assert(has(tombs, STORE, 100) && has(tombs, STORE, 500) && !has(tombs, STORE, 99));
    tierce__tombstones_close(tombs);
}
END_TEST

/* The pages of a batch are written and their sync fails: they do not count behind later ones. */
START_TEST(what_a_failed_sync_leaves_does_not_count)
{
    struct tierce__tombstones *tombs;
    ck_assert_int_eq(try_open(&tombs), 0);
    for (uint32_t i = 0; i < 101; i++)
        ck_assert_int_eq(add(tombs, STORE, i), 0);
    for (uint32_t i = 0; i < 100; i++)
        lift(tombs, STORE, i);
    tierce__vfs_fault_add(faults, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_SYNC,
                                                                   .action = TIERCE__FAULT_FAIL,
                                                                   .nth = 1,
                                                                   .error = -EIO});
    tierce__tombstones_flush(tombs);
    tierce__vfs_fault_clear(faults);
    ck_assert_int_eq(add(tombs, STORE, 99), 0);
    tierce__vfs_fault_power_cut(faults);
    tombs = reopen(tombs);
    ck_assert(has(tombs, STORE, 99) && has(tombs, STORE, 100));
    tierce__tombstones_close(tombs);
}
END_TEST

START_TEST(a_file_of_somebody_else_stays)
{
    static const char text[] = "my notes";
    struct tierce__tombstones *tombs;
    char new_path[104];
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(try_open(&tombs), TIERCE_E_FORMAT);
    ck_assert_int_eq(file_bytes(), (int64_t)strlen(text));
    snprintf(new_path, sizeof(new_path), "%s.new", path);
    ck_assert_int_eq(rename(path, new_path), 0);
    ck_assert_int_eq(try_open(&tombs), 0);
    ck_assert_int_eq(add(tombs, STORE, 1), 0);
    lift(tombs, STORE, 1);
    tierce__tombstones_flush(tombs); /* would make a new file */
    tierce__tombstones_close(tombs);
    ck_assert_int_eq(rename(new_path, path), 0);
    ck_assert_int_eq(file_bytes(), (int64_t)strlen(text));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(symlink("/dev/null", path), 0);
    ck_assert_int_lt(try_open(&tombs), 0);
}
END_TEST

/* Every operation of the device fails once; an add that failed has left nothing in memory, and one
 * that succeeded is in the file. */
START_TEST(a_failed_write_is_an_error_and_no_more)
{
    struct tierce__tombstones *tombs;
    bool failed = true;
    ck_assert_int_eq(try_open(&tombs), 0);
    ck_assert_int_eq(add(tombs, STORE, 1), 0);
    for (uint64_t nth = 1; failed; nth++) {
        tierce__vfs_fault_add(faults, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_CHANGE,
                                                                       .action = TIERCE__FAULT_FAIL,
                                                                       .nth = nth,
                                                                       .error = -ENOSPC});
        int rc = add(tombs, STORE, 100 + (uint32_t)nth);
        lift(tombs, STORE, 50);
        tierce__tombstones_flush(tombs);
        failed = rc < 0;
        ck_assert(rc == 0 || rc == -ENOSPC);
        ck_assert(has(tombs, STORE, 100 + (uint32_t)nth) == (rc == 0));
        tierce__vfs_fault_clear(faults);
        ck_assert_int_eq(add(tombs, STORE, 200 + (uint32_t)nth), 0);
        tombs = reopen(tombs);
        ck_assert(has(tombs, STORE, 1) && has(tombs, STORE, 200 + (uint32_t)nth));
        ck_assert(!failed || nth < 20);
    }
    tierce__tombstones_close(tombs);
}
END_TEST

/* The device fails for a long time. Nothing of the failed adds is kept, and lifts that could not be
 * written are in the file once it works again. */
START_TEST(a_device_that_keeps_failing)
{
    struct tierce__tombstones *tombs;
    ck_assert_int_eq(try_open(&tombs), 0);
    ck_assert_int_eq(add(tombs, STORE, 1), 0);
    ck_assert_int_eq(add(tombs, STORE, 2), 0);
    tierce__vfs_fault_add(faults, &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_CHANGE,
                                                                   .action = TIERCE__FAULT_FAIL,
                                                                   .nth = 1,
                                                                   .forever = true,
                                                                   .error = -ENOSPC});
    ck_assert_int_eq(add(tombs, STORE, 3), -ENOSPC);
    for (uint32_t i = 0; i < 1000; i++)
        ck_assert_int_eq(add(tombs, STORE, 100 + i), -ENOSPC);
    lift(tombs, STORE, 1);
    tierce__tombstones_flush(tombs);
    tierce__vfs_fault_clear(faults);
    tombs = reopen(tombs);
    ck_assert_uint_eq(tierce__tombstones_count(tombs), 1);
    ck_assert(has(tombs, STORE, 2));
    ck_assert_int_eq(file_bytes(), PAGE);
    tierce__tombstones_close(tombs);
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    struct tierce__tombstones *tombs;
    int rc = -ENOMEM;
    for (uint64_t nth = 1; rc == -ENOMEM; nth++) {
        tierce__alloc_fail_nth(nth);
        struct tierce__vfs *vfs;
        rc = tierce__vfs_threads_create(&vfs, 1);
        if (rc == 0)
            rc = vfs->ops->enter(vfs, folder);
        if (rc == 0)
            rc = tierce__tombstones_open(&tombs, vfs, namespaces);
        if (rc == 0) {
            rc = add(tombs, STORE, (uint32_t)nth);
            ck_assert(has(tombs, STORE, (uint32_t)nth) == (rc == 0));
            lift(tombs, STORE, (uint32_t)nth);
            tierce__alloc_fail_nth(0);
            tierce__tombstones_close(tombs);
        }
    }
    tierce__alloc_fail_nth(0);
    ck_assert_int_eq(rc, 0);
}
END_TEST

/* Random adds and lifts, and power cuts: what add has acknowledged is there, and what was never
 * added is not. A lifted one may have come back. */
START_TEST(a_power_cut_loses_no_tombstone)
{
    struct test_random random = test_random_start("tombstones");
    for (int round = 0; round < 40; round++) {
        struct tierce__tombstones *tombs;
        bool must[KEYS] = {false}, may[KEYS] = {false};
        ck_assert_int_eq(try_open(&tombs), 0);
        for (uint32_t i = 0; i < KEYS; i++)
            must[i] = may[i] = has(tombs, STORE, i);
        for (uint32_t left = test_random_below(&random, 60); left > 0; left--) {
            uint32_t i = test_random_below(&random, KEYS);
            if (left == 1) { /* the power fails at one of the next operations */
                uint64_t nth = 1 + test_random_below(&random, 6);
                tierce__vfs_fault_add(faults,
                                      &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_ANY,
                                                                       .action = TIERCE__FAULT_CUT,
                                                                       .nth = nth});
            }
            if (test_random_below(&random, 3) > 0) {
                may[i] = true;
                must[i] |= add(tombs, STORE, i) == 0;
            } else {
                lift(tombs, STORE, i);
                must[i] = false;
            }
            if (test_random_below(&random, 8) == 0)
                tierce__tombstones_flush(tombs);
        }
        tierce__vfs_fault_seed(faults, test_random_u64(&random));
        tierce__vfs_fault_power_cut(faults);
        tierce__tombstones_close(tombs);
        ck_assert_int_eq(try_open(&tombs), 0);
        for (uint32_t i = 0; i < KEYS; i++) {
            ck_assert_msg(!must[i] || has(tombs, STORE, i), "round %d: %u is lost", round, i);
            ck_assert_msg(may[i] || !has(tombs, STORE, i), "round %d: %u never was", round, i);
        }
        tierce__tombstones_close(tombs);
    }
}
END_TEST

/* ---- the limit ---- */

enum { ROOM_AGAIN = TIERCE__TOMBSTONES_MAX / 16 }; /* lifted ones until it is logged */

static unsigned logged_full, logged_room;

static void count_events(void *arg, enum tierce_log_level level, const char *event,
                         const char *detail)
{
    (void)arg;
    (void)level;
    (void)detail;
    logged_full += strcmp(event, "tombstones_full") == 0;
    logged_room += strcmp(event, "tombstones_room_again") == 0;
}

static struct tierce__key written_key(uint32_t number)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}, .ns = ns};
    tierce__store_le32(key.hash, number);
    return key;
}

static void lift_written(struct tierce__tombstones *tombs, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        struct tierce__key key = written_key(i);
        tierce__tombstones_lift(tombs, STORE, &key);
    }
    tierce__tombstones_flush(tombs);
}

/* The limit has an error of its own, and is logged once until a part of the tombstones is lifted,
 * however often the count reaches it meanwhile. */
START_TEST(the_limit_is_reported)
{
    struct tierce__tombstones *tombs;
    struct tierce__key first = written_key(0);
    write_tombstones(path, TIERCE__TOMBSTONES_MAX, STORE, digest);
    tierce_set_log_fn(count_events, NULL, TIERCE_LOG_INFO);
    ck_assert_int_eq(try_open(&tombs), 0);
    ck_assert_uint_eq(tierce__tombstones_count(tombs), TIERCE__TOMBSTONES_MAX);
    ck_assert_uint_eq(logged_full, 0);
    ck_assert_int_eq(tierce__tombstones_add(tombs, STORE, &first), 0);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(add(tombs, OTHER, i), TIERCE__TOMBSTONES_FULL);
        ck_assert(!has(tombs, OTHER, i));
        lift_written(tombs, i, i + 1);
        ck_assert_int_eq(add(tombs, OTHER, i), 0);
    }
    ck_assert_uint_eq(logged_full, 1);
    lift_written(tombs, 3, ROOM_AGAIN - 1);
    ck_assert_int_eq(add(tombs, OTHER, 3), 0);
    tierce__tombstones_flush(tombs);
    ck_assert_uint_eq(logged_room, 0);
    lift_written(tombs, ROOM_AGAIN - 1, ROOM_AGAIN + 4);
    tierce__tombstones_flush(tombs);
    ck_assert_uint_eq(logged_full, 1);
    ck_assert_uint_eq(logged_room, 1);
    tierce__tombstones_close(tombs);
    ck_assert_uint_eq(logged_room, 1);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_ERROR);
}
END_TEST

/* As a power cut can leave it, which has kept what was added of a batch and not what was lifted. */
START_TEST(a_file_beyond_the_limit_is_used)
{
    enum { BEYOND = 100 };
    struct tierce__tombstones *tombs;
    struct tierce__key last = written_key(TIERCE__TOMBSTONES_MAX + BEYOND - 1);
    write_tombstones(path, TIERCE__TOMBSTONES_MAX + BEYOND, STORE, digest);
    ck_assert_int_eq(try_open(&tombs), 0);
    ck_assert_uint_eq(tierce__tombstones_count(tombs), TIERCE__TOMBSTONES_MAX + BEYOND);
    ck_assert(tierce__tombstones_has(tombs, STORE, &last));
    ck_assert_int_eq(tierce__tombstones_add(tombs, STORE, &last), 0);
    ck_assert_int_eq(add(tombs, OTHER, 0), TIERCE__TOMBSTONES_FULL);
    lift_written(tombs, 0, BEYOND);
    ck_assert_int_eq(add(tombs, OTHER, 0), TIERCE__TOMBSTONES_FULL);
    lift_written(tombs, BEYOND, BEYOND + 1);
    ck_assert_int_eq(add(tombs, OTHER, 0), 0);
    tombs = reopen(tombs);
    ck_assert_uint_eq(tierce__tombstones_count(tombs), TIERCE__TOMBSTONES_MAX);
    tierce__tombstones_close(tombs);
}
END_TEST

static void *add_many(void *arg)
{
    struct tierce__tombstones *tombs = ((void **)arg)[0];
    uint32_t first = *(uint32_t *)((void **)arg)[1];
    for (uint32_t i = 0; i < 50; i++) {
        ck_assert_int_eq(add(tombs, STORE, first + i), 0);
        if (i % 2 == 0)
            lift(tombs, STORE, first + i);
    }
    return NULL;
}

START_TEST(threads_share_syncs)
{
    struct tierce__tombstones *tombs;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    uint32_t firsts[THREADS];
    void *args[THREADS][2];
    ck_assert_int_eq(try_open(&tombs), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        firsts[i] = i * 1000;
        args[i][0] = tombs;
        args[i][1] = &firsts[i];
        ck_assert_int_eq(pthread_create(&threads[i], NULL, add_many, args[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(tierce__tombstones_count(tombs), THREADS * 25);
    tombs = reopen(tombs);
    ck_assert_uint_eq(tierce__tombstones_count(tombs), THREADS * 25);
    ck_assert(has(tombs, STORE, 1001) && !has(tombs, STORE, 1002));
    tierce__tombstones_close(tombs);
}
END_TEST

CHECK_MAIN("tombstones", .seconds = 60, .setup = setup, .teardown = teardown,
           .tests = {none, they_are_there_until_they_are_lifted, a_long_file_is_written_anew,
                     a_damaged_page_is_told_from_a_torn_one, a_file_of_another_version_stays,
                     a_torn_batch_is_not_appended_to, what_a_failed_sync_leaves_does_not_count,
                     a_file_of_somebody_else_stays, a_failed_write_is_an_error_and_no_more,
                     a_device_that_keeps_failing, each_allocation_fails_once,
                     a_power_cut_loses_no_tombstone, the_limit_is_reported,
                     a_file_beyond_the_limit_is_used, threads_share_syncs})
