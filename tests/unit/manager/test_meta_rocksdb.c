/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "manager/meta_store.h"
#include "meta_folder.h"
#include "meta_records.h"

#include <errno.h>
#include <rocksdb/c.h>
#include <signal.h>
#include <sys/wait.h>

static struct tierce__meta_store *store;
static struct tierce__meta_space *space;
static char why[256];

static int open_at(const char *uri)
{
    why[0] = '\0';
    return tierce__meta_rocksdb.open(&store, uri, why);
}

static void open_here(const char *parameters)
{
    char uri[160];
    snprintf(uri, sizeof(uri), "rocksdb://%s%s", meta_folder, parameters);
    int rc = open_at(uri);
    ck_assert_msg(rc == 0, "%d %s", rc, why);
    ck_assert_int_eq(store->ops->space_open(&space, store, 1, "i"), 0);
}

static void close_here(void)
{
    space->ops->space_close(space);
    store->ops->close(store);
}

static void teardown(void)
{
    meta_folder_remove();
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void put(int64_t key, uint32_t version)
{
    struct test_record record;
    struct tierce__meta_put put = {key, *test_record(&record, key, version)};
    struct tierce__meta_batch batch = {.puts = &put, .put_count = 1};
    ck_assert_int_eq(space->ops->write(space, &batch), 0);
}

static bool get(int64_t key, uint32_t version)
{
    struct tierce__arena arena = {0};
    struct tierce__record record;
    bool found;
    ck_assert_int_eq(space->ops->get(space, &key, 1, &arena, &record, &found), 0);
    if (found)
        test_record_check(&record, key, version);
    tierce__arena_clear(&arena);
    return found;
}

START_TEST(uris_are_read)
{
    char uri[160];
    static const char *const wrong[] = {"?sync=2",     "?sync",   "?cache_mib=x",
                                        "?touch_ms=0", "?sink=1", "?touch_ms=-1"};
    for (int i = 0; i < 6; i++) {
        snprintf(uri, sizeof(uri), "%s%s", meta_folder, wrong[i]);
        ck_assert_int_eq(open_at(uri), TIERCE_E_CONFIG);
        ck_assert_ptr_nonnull(strstr(why, "parameter"));
    }
    ck_assert_int_eq(open_at(""), TIERCE_E_CONFIG);
    ck_assert_int_eq(open_at("rocksdb://?sync=1"), TIERCE_E_CONFIG);
    snprintf(uri, sizeof(uri), "%s/none/below", meta_folder);
    ck_assert_int_eq(open_at(uri), -ENOENT);
    ck_assert_ptr_nonnull(strstr(why, "none/below"));
    open_here("?sync=1&cache_mib=1&touch_ms=100");
    put(1, 1);
    close_here();
    open_here("");
    ck_assert(get(1, 1));
    close_here();
}
END_TEST

START_TEST(the_type_and_uri_choose_the_store)
{
    ck_assert_ptr_eq(tierce__meta_store_find("local", ""), &tierce__meta_memory);
    ck_assert_ptr_eq(tierce__meta_store_find("local", "/x"), &tierce__meta_rocksdb);
    ck_assert_ptr_eq(tierce__meta_store_find("rocksdb", "/x"), &tierce__meta_rocksdb);
    ck_assert_ptr_null(tierce__meta_store_find("lokal", ""));
}
END_TEST

START_TEST(stores_of_one_path_share)
{
    open_here("");
    struct tierce__meta_store *first = store;
    struct tierce__meta_space *first_space = space;
    char uri[160];
    snprintf(uri, sizeof(uri), "./%s/../%s", meta_folder, meta_folder);
    ck_assert_int_eq(open_at(uri), 0);
    ck_assert_int_eq(store->ops->space_open(&space, store, 1, "i"), 0);
    put(1, 1);
    close_here();
    store = first;
    space = first_space;
    ck_assert(get(1, 1));
    close_here();
}
END_TEST

START_TEST(another_process_is_told)
{
    int ready[2], done[2];
    char byte;
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        open_here("");
        put(1, 1);
        if (write(ready[1], "x", 1) != 1 || read(done[0], &byte, 1) != 1)
            _exit(1);
        close_here();
        _exit(0);
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    char uri[128], pid[32];
    snprintf(uri, sizeof(uri), "%s", meta_folder);
    ck_assert_int_eq(open_at(uri), TIERCE_E_LOCKED);
    snprintf(pid, sizeof(pid), "process %d", (int)child);
    ck_assert_ptr_nonnull(strstr(why, pid));
    ck_assert_int_eq(write(done[1], "x", 1), 1);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    open_here("");
    ck_assert(get(1, 1));
    close_here();
}
END_TEST

/* A database of nobody's, with one key. */
static void make_database(const char *key, size_t key_bytes, const char *value)
{
    char *error = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_t *db = rocksdb_open(options, meta_folder, &error);
    ck_assert_ptr_null(error);
    rocksdb_writeoptions_t *writes = rocksdb_writeoptions_create();
    if (key != NULL)
        rocksdb_put(db, writes, key, key_bytes, value, strlen(value), &error);
    ck_assert_ptr_null(error);
    rocksdb_writeoptions_destroy(writes);
    rocksdb_close(db);
    rocksdb_options_destroy(options);
}

static void make_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", meta_folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

START_TEST(somebody_elses_is_refused)
{
    make_database("a key", 5, "a value");
    ck_assert_int_eq(open_at(meta_folder), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, "somebody else"));
}
END_TEST

START_TEST(another_version_is_refused)
{
    make_file("tierce-meta", "tierce meta 2\n");
    make_database("key", 3, "value");
    ck_assert_int_eq(open_at(meta_folder), TIERCE_E_VERSION);
    ck_assert_ptr_nonnull(strstr(why, "\"tierce meta 2\""));
}
END_TEST

START_TEST(a_folder_with_other_files_is_refused)
{
    make_file("notes.txt", "x");
    ck_assert_int_eq(open_at(meta_folder), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, "somebody else"));
    char path[128];
    snprintf(path, sizeof(path), "%s/notes.txt", meta_folder);
    ck_assert_int_eq(remove(path), 0);
    /* What a first opening may leave that was killed. */
    make_file("tierce-meta.new", "tier");
    open_here("");
    put(1, 1);
    close_here();
    open_here("");
    ck_assert(get(1, 1));
    close_here();
}
END_TEST

START_TEST(a_broken_record_is_not_found)
{
    open_here("");
    put(1, 1);
    close_here();
    /* Space 1, a record of key 2 that is none. */
    char key[13] = {0, 0, 0, 1, 'r'};
    uint64_t mixed = __builtin_bswap64(tierce__meta_mix(2));
    memcpy(key + 5, &mixed, 8);
    make_database(key, sizeof(key), "\1broken");
    open_here("");
    ck_assert(!get(2, 1));
    ck_assert(get(1, 1));
    ck_assert_uint_eq(space->ops->unreadable(space), 1);
    close_here();
}
END_TEST

START_TEST(touches_go_out_by_themselves)
{
    open_here("?touch_ms=20");
    put(1, 3);
    int64_t key = 1;
    struct tierce__arena arena = {0};
    struct tierce__record record = {0};
    bool found;
    while (record.uses != 4) {
        if (record.uses == 0)
            space->ops->touch(space, &key, 1, 1800000000000000);
        ck_assert_int_eq(space->ops->get(space, &key, 1, &arena, &record, &found), 0);
        ck_assert(found);
        ck_assert_uint_le(record.uses, 4);
        usleep(1000);
    }
    tierce__arena_clear(&arena);
    close_here();
}
END_TEST

START_TEST(more_touches_than_there_is_room)
{
    open_here("?touch_ms=3600000");
    put(5, 1);
    for (int64_t key = 0; key < 300000; key++)
        space->ops->touch(space, &key, 1, 1800000000000000);
    close_here();
    open_here("");
    ck_assert(!get(6, 1));
    close_here();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("meta_rocksdb");
    TCase *tcase = tcase_create("meta_rocksdb");
    tcase_set_timeout(tcase, 200);
    tcase_add_checked_fixture(tcase, meta_folder_make, teardown);
    tcase_add_test(tcase, uris_are_read);
    tcase_add_test(tcase, the_type_and_uri_choose_the_store);
    tcase_add_test(tcase, stores_of_one_path_share);
    tcase_add_test(tcase, another_process_is_told);
    tcase_add_test(tcase, somebody_elses_is_refused);
    tcase_add_test(tcase, another_version_is_refused);
    tcase_add_test(tcase, a_folder_with_other_files_is_refused);
    tcase_add_test(tcase, a_broken_record_is_not_found);
    tcase_add_test(tcase, touches_go_out_by_themselves);
    tcase_add_test(tcase, more_touches_than_there_is_room);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
