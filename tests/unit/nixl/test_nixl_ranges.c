/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of files that overlap are rejected, and a file that was made again is another one. */
#include "base/alloc.h"
#include "check_main.h"
#include "nixl/nixl_ranges.h"
#include "test_random.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <tierce/status.h>
#include <unistd.h>

static struct tierce__nixl_ranges *ranges;

static void setup(void)
{
    ranges = tierce__nixl_ranges_create();
    ck_assert_ptr_nonnull(ranges);
}

static void teardown(void)
{
    tierce__nixl_ranges_destroy(ranges);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static int note(const char *file, uint64_t offset, uint64_t bytes)
{
    return tierce__nixl_ranges_note(ranges, file, offset, bytes);
}

START_TEST(ranges_that_overlap_are_rejected)
{
    ck_assert_int_eq(note("a", 0, 5000), 0);
    ck_assert_int_eq(note("a", 100, 50), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(note("a", 4999, 2), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(note("a", 0, 5000), 0);
    ck_assert_int_eq(note("a", 0, 4000), 0); /* its beginning */
    ck_assert_int_eq(note("b", 100, 50), 0);
    ck_assert_int_eq(note("b", 0, 5000), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(note("b", 100, 60), 0); /* it is longer than was known */
    ck_assert_int_eq(note("b", 155, 10), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(note("b", 0, 100), 0);
    ck_assert_int_eq(note("b", 160, UINT64_MAX - 160), 0);
    ck_assert_int_eq(note("b", UINT64_MAX, 2), TIERCE_E_UNSUPPORTED);
}
END_TEST

/* Slots of one length, whichever comes first; and one slot of another length among them. */
START_TEST(slots_are_kept_as_one_run)
{
    enum { SLOTS = 1000, SLOT = 4096 };
    uint64_t before = tierce__alloc_live();
    for (uint64_t i = 0; i < SLOTS; i++)
        ck_assert_int_eq(note("a", i * 7 % SLOTS * SLOT, SLOT), 0);
    for (uint64_t i = 0; i < SLOTS; i++) {
        ck_assert_int_eq(note("a", i * SLOT, SLOT), 0);
        ck_assert_int_eq(note("a", i * SLOT + 1, 1), TIERCE_E_UNSUPPORTED);
        ck_assert_int_eq(note("a", i * SLOT, SLOT + 1), TIERCE_E_UNSUPPORTED);
    }
    ck_assert_uint_le(tierce__alloc_live(), before + 3);
}
END_TEST

/* Against a list: no two accepted ranges overlap unless they begin at the same place, and one that
 * overlaps none is accepted. */
START_TEST(random_ranges_equal_a_list)
{
    enum { TRIES = 4000, PLACES = 300 };
    static struct {
        uint64_t from, to;
    } known[TRIES];
    size_t count = 0;
    struct test_random random = test_random_start("random_ranges_equal_a_list");
    for (unsigned i = 0; i < TRIES; i++) {
        uint64_t from = test_random_below(&random, PLACES);
        uint64_t to = from + 1 + test_random_below(&random, 5);
        bool overlaps = false, is_wrong = false;
        for (size_t k = 0; k < count; k++) {
            bool touches = known[k].from < to && from < known[k].to;
            overlaps |= touches;
            is_wrong |= touches && known[k].from != from;
        }
        int rc = note("a", from, to - from);
        ck_assert_msg(rc == 0 ? !is_wrong : overlaps && rc == TIERCE_E_UNSUPPORTED,
                      "try %u: [%llu, %llu): %d", i, (unsigned long long)from,
                      (unsigned long long)to, rc);
        if (rc != 0)
            continue;
        known[count].from = from;
        known[count++].to = to;
    }
    ck_assert_uint_gt(count, PLACES / 10);
}
END_TEST

/* Memory is bounded: the file that was used longest ago is forgotten. */
START_TEST(the_oldest_file_is_forgotten)
{
    char name[16];
    ck_assert_int_eq(note("oldest", 0, 100), 0);
    ck_assert_int_eq(note("kept", 0, 100), 0);
    for (unsigned i = 0; i < (1u << 16) - 1; i++) {
        snprintf(name, sizeof(name), "%u", i);
        ck_assert_int_eq(note(name, 0, 100), 0);
    }
    ck_assert_int_eq(note("kept", 50, 10), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(note("oldest", 50, 10), 0);
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    for (uint64_t nth = 1; nth <= 2; nth++) {
        tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(note(nth == 1 ? "a" : "b", 0, 100), -ENOMEM);
        ck_assert_int_eq(note(nth == 1 ? "a" : "b", 0, 100), 0);
    }
    tierce__alloc_fail_nth(0);
}
END_TEST

static void make(const char *path)
{
    const struct timespec past[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(futimens(fd, past), 0);
    close(fd);
}

START_TEST(a_file_that_was_made_again_is_another_one)
{
    char folder[] = "/tmp/tierce-test-XXXXXX", path[300], other[300];
    char id[TIERCE__NIXL_FILE_ID_BYTES], again[TIERCE__NIXL_FILE_ID_BYTES];
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/pool.bin", folder);
    snprintf(other, sizeof(other), "%s/other.bin", folder);
    ck_assert_int_eq(tierce__nixl_file_id(id, path, -1), -ENOENT);
    ck_assert_int_eq(tierce__nixl_file_id(id, folder, -1), TIERCE_E_UNSUPPORTED);
    make(path);
    ck_assert_int_eq(tierce__nixl_file_id(id, path, -1), 0);
    ck_assert_int_eq(rename(path, other), 0);
    ck_assert_int_eq(tierce__nixl_file_id(again, other, -1), 0);
    ck_assert_str_eq(id, again);
    make(path); /* with the times of the other */
    ck_assert_int_eq(tierce__nixl_file_id(again, path, -1), 0);
    ck_assert_str_ne(id, again);
    int fd = open(other, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(tierce__nixl_file_id(again, NULL, fd), 0);
    ck_assert_str_eq(id, again);
    ck_assert_int_eq(ftruncate(fd, 100), 0);
    ck_assert_int_eq(tierce__nixl_file_id(again, NULL, fd), 0);
    ck_assert_str_ne(id, again);
    close(fd);
    ck_assert_int_eq(tierce__nixl_file_id(again, NULL, fd), -EBADF);
    temp_folder_remove(folder);
}
END_TEST

CHECK_MAIN("nixl_ranges", .setup = setup, .teardown = teardown,
           .tests = {ranges_that_overlap_are_rejected, slots_are_kept_as_one_run,
                     random_ranges_equal_a_list, the_oldest_file_is_forgotten,
                     each_allocation_fails_once, a_file_that_was_made_again_is_another_one})
