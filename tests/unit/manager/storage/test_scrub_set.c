/* SPDX-License-Identifier: Apache-2.0 */
/* The objects that a scrub judges together, and the orphans of earlier scrubs. */
#include "check_main.h"
#include "manager/scrub/scrub_set.h"
#include "manager/storage/places.h"

START_TEST(names_of_blocks)
{
    static const char *const none[] = {"",
                                       "i/a",
                                       "i/a/",
                                       "i/a/0000000000000f1",
                                       "i/a/00000000000000F1",
                                       "i/a/00000000000000f1x",
                                       "i/a/b/00000000000000f1",
                                       "i/a/0000000000000000",
                                       "~tierce-pool"};
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++)
        ck_assert_msg(tierce__place_number(none[i], &bytes) == 0, "%s", none[i]);
    ck_assert_uint_eq(tierce__place_number("i/a/00000000000000f1", &bytes), 0xf1);
    ck_assert_uint_eq(bytes, 4);
}
END_TEST

START_TEST(objects_are_found_by_their_paths)
{
    enum { FOLDERS = 5, FILES = 100 };
    struct tierce__scrub_set set = {0};
    char name[64], path[80];
    for (unsigned i = FILES; i > 0; i--)
        for (unsigned f = 0; f < FOLDERS; f++) {
            snprintf(name, sizeof(name), "i%u/a/%016x", f, i);
            ck_assert_int_eq(tierce__scrub_set_add(&set, name, f, i), 0);
        }
    ck_assert_int_eq(tierce__scrub_set_add(&set, "i3/a/0000000000000007", 3, 7), 0);
    ck_assert_uint_eq(tierce__scrub_set_seal(&set), 1);
    ck_assert_uint_eq(set.count, FOLDERS * FILES);
    tierce__scrub_set_use(&set, "/root/i3/a/0000000000000007");
    tierce__scrub_set_use(&set, "/i4/a/0000000000000001");
    tierce__scrub_set_use(&set, "/i4/a/0000000000000fff"); /* no such file, and no such folder */
    tierce__scrub_set_use(&set, "/i4/b/0000000000000001");
    tierce__scrub_set_use(&set, "short");
    size_t used = 0;
    for (size_t i = 0; i < set.count; i++) {
        tierce__scrub_set_name(name, &set, &set.objects[i]);
        used += set.objects[i].is_used;
        ck_assert(!set.objects[i].is_used || strcmp(name, "i3/a/0000000000000007") == 0 ||
                  strcmp(name, "i4/a/0000000000000001") == 0);
    }
    ck_assert_uint_eq(used, 2);
    for (unsigned f = 0; f < FOLDERS; f++) {
        snprintf(path, sizeof(path), "/x/i%u/a/0000000000000001", f);
        const struct tierce__scrub_folder *folder = tierce__scrub_set_folder_at(&set, path);
        ck_assert_ptr_nonnull(folder);
        ck_assert_uint_eq(folder->count, FILES);
        for (size_t i = 0; i < folder->count; i++) {
            ck_assert_uint_eq(set.objects[folder->first + i].bytes, f);
            ck_assert_uint_eq(set.objects[folder->first + i].number, i + 1);
        }
    }
    ck_assert_ptr_null(tierce__scrub_set_folder_at(&set, "/i/a/0000000000000001"));
    tierce__scrub_set_clear(&set);
    ck_assert_uint_eq(tierce__scrub_set_seal(&set), 0);
    tierce__scrub_set_clear(&set);
}
END_TEST

START_TEST(an_orphan_is_remembered_while_it_is_one)
{
    struct tierce__scrub_seen *seen = tierce__scrub_seen_create();
    ck_assert_ptr_nonnull(seen);
    ck_assert_int_eq(tierce__scrub_seen_note(seen, 2, 10), 10);
    ck_assert_int_eq(tierce__scrub_seen_note(seen, 1, 10), 10);
    tierce__scrub_seen_end(seen, true);
    ck_assert_int_eq(tierce__scrub_seen_note(seen, 1, 20), 10);
    ck_assert_int_eq(tierce__scrub_seen_note(seen, 3, 20), 20);
    tierce__scrub_seen_end(seen, false); /* it was stopped: 2 may still be one, 3 was not noted */
    ck_assert_int_eq(tierce__scrub_seen_note(seen, 2, 30), 10);
    ck_assert_int_eq(tierce__scrub_seen_note(seen, 3, 30), 30);
    tierce__scrub_seen_end(seen, true);
    ck_assert_int_eq(tierce__scrub_seen_note(seen, 1, 40), 40);
    tierce__scrub_seen_destroy(seen);
}
END_TEST

START_TEST(a_filter_finds_what_was_added)
{
    enum { NAMES = 20000, OTHERS = 20000 };
    struct tierce__scrub_filter filter = {0};
    struct tierce__scrub_set set = {0};
    char name[64];
    ck_assert(!tierce__scrub_filter_has(&filter, "i/a/0000000000000001")); /* an empty one */
    ck_assert_int_eq(tierce__scrub_filter_init(&filter, NAMES, 1 << 20, 7), 0);
    for (unsigned i = 1; i <= NAMES; i++) {
        snprintf(name, sizeof(name), "/root/i%u/a/%016x", i % 3, i);
        tierce__scrub_filter_add(&filter, name);
    }
    tierce__scrub_filter_add(&filter, "no name");
    ck_assert(!tierce__scrub_filter_has(&filter, "no name"));
    for (unsigned i = 1; i <= NAMES; i++) {
        snprintf(name, sizeof(name), "i%u/a/%016x", i % 3, i);
        ck_assert(tierce__scrub_filter_has(&filter, name)); /* as it is listed */
        ck_assert_int_eq(tierce__scrub_set_add(&set, name, 1, 1), 0);
    }
    for (unsigned i = 1; i <= OTHERS; i++) {
        snprintf(name, sizeof(name), "i%u/b/%016x", i % 3, i);
        ck_assert_int_eq(tierce__scrub_set_add(&set, name, 1, 1), 0);
    }
    tierce__scrub_set_filter(&set, &filter);
    ck_assert_uint_le(set.count, OTHERS);
    ck_assert_uint_ge(set.count, OTHERS * 98 / 100); /* two of a hundred by chance */
    tierce__scrub_set_clear(&set);
    tierce__scrub_filter_fini(&filter);
    /* A limit of the memory. */
    ck_assert_int_eq(tierce__scrub_filter_init(&filter, UINT64_MAX, 4096, 7), 0);
    ck_assert_uint_le((filter.mask + 1) / 8, 4096);
    ck_assert_uint_eq(filter.tries, 1);
    tierce__scrub_filter_fini(&filter);
}
END_TEST

CHECK_MAIN("scrub set", .seconds = 60,
           .tests = {names_of_blocks, objects_are_found_by_their_paths,
                     an_orphan_is_remembered_while_it_is_one, a_filter_finds_what_was_added})
