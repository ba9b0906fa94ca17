/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "log_record.h"
#include "manager/meta/meta_store.h"
#include "meta_folder.h"
#include "meta_records.h"
#include "small_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <rocksdb/c.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tierce/log.h>
#include <unistd.h>

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
    static const char *const wrong[] = {"?sync=2", "?sync",        "?cache_mib=x",  "?touch_ms=0",
                                        "?sink=1", "?touch_ms=-1", "?sync=1&sync=0"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
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
    ck_assert_ptr_nonnull(strstr(why, "do not belong to the manager"));
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
    ck_assert_ptr_nonnull(strstr(why, "do not belong to the manager"));
    char path[128];
    snprintf(path, sizeof(path), "%s/notes.txt", meta_folder);
    ck_assert_int_eq(remove(path), 0);
    /* Files that a killed first opening may leave. */
    make_file("tierce-meta.new", "tier");
    open_here("");
    put(1, 1);
    close_here();
    open_here("");
    ck_assert(get(1, 1));
    close_here();
}
END_TEST

/* A link in the folder, where the mark is written first: its target is not truncated. */
START_TEST(links_are_not_written_through)
{
    char path[128], target[128], link[136], text[8] = "";
    snprintf(target, sizeof(target), "%s.target", meta_folder);
    snprintf(link, sizeof(link), "../%s", target); /* the folder's name begins with "./" */
    snprintf(path, sizeof(path), "%s/tierce-meta.new", meta_folder);
    FILE *file = fopen(target, "w");
    ck_assert_ptr_nonnull(file);
    fputs("theirs", file);
    fclose(file);
    ck_assert_int_eq(symlink(link, path), 0);
    int rc = open_at(meta_folder);
    file = fopen(target, "r");
    ck_assert_ptr_nonnull(file);
    char *read = fgets(text, sizeof(text), file);
    fclose(file);
    ck_assert_int_eq(remove(target), 0);
    ck_assert_ptr_nonnull(read);
    ck_assert_str_eq(text, "theirs");
    ck_assert_int_eq(rc, -ELOOP);
    ck_assert_int_eq(remove(path), 0);
}
END_TEST

/* Without CURRENT, the library would create a new database and delete the old records. */
START_TEST(records_without_current_are_kept)
{
    char path[128], away[136];
    snprintf(path, sizeof(path), "%s/CURRENT", meta_folder);
    snprintf(away, sizeof(away), "%s/CURRENT.away", meta_folder);
    open_here("");
    put(1, 1);
    close_here();
    ck_assert_int_eq(rename(path, away), 0);
    ck_assert_int_eq(open_at(meta_folder), TIERCE_E_FORMAT);
    ck_assert_int_eq(rename(away, path), 0);
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
            space->ops->touch(space, &key, 1, &(struct tierce__record_use){1800000000000000, 1, 0});
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
        space->ops->touch(space, &key, 1, &(struct tierce__record_use){1800000000000000, 1, 0});
    close_here();
    open_here("");
    ck_assert(!get(6, 1));
    close_here();
}
END_TEST

static int try_put(int64_t key, uint32_t version)
{
    struct test_record record;
    struct tierce__meta_put put = {key, *test_record(&record, key, version)};
    struct tierce__meta_batch batch = {.puts = &put, .put_count = 1};
    return space->ops->write(space, &batch);
}

static int try_large(uint64_t number)
{
    static char value[256 * 1024];
    struct tierce__meta_note note = {
        .kind = 1, .number = number, .value = value, .bytes = sizeof(value)};
    struct tierce__meta_batch batch = {.notes = &note, .note_count = 1};
    memset(value, (int)number, sizeof(value));
    return space->ops->write(space, &batch);
}

/* Until the first one is rejected. */
static void write_until_full(void)
{
    uint64_t number = 0;
    int rc = 0;
    while (rc == 0 && number < 2000)
        rc = try_large(number++);
    ck_assert_int_eq(rc, -ENOSPC);
}

/* Until a write is accepted, with room again. */
static void write_again(int64_t key)
{
    uint64_t deadline = tierce__deadline_in_ms(60000);
    while (try_put(key, 1) != 0 && tierce__now_ns() < deadline)
        usleep(20000);
    ck_assert_int_eq(space->ops->write_error(space), 0);
    ck_assert(get(key, 1));
}

static bool has_options_left(void)
{
    char command[200];
    snprintf(command, sizeof(command), "ls %s | grep -q dbtmp", meta_folder);
    return system(command) == 0;
}

/* Writes are rejected and reads go on; writes are accepted again when there is room. */
START_TEST(a_full_disk_rejects_writes_and_nothing_else)
{
    small_disk_mount(meta_folder, 160 << 20);
    open_here("");
    for (int64_t key = 0; key < 1000; key++)
        put(key, 1);
    ck_assert_int_eq(space->ops->write_error(space), 0);
    small_disk_fill(meta_folder, 0);
    write_until_full();
    int64_t key = 1000;
    for (int i = 0; i < 2000; i++) /* each of them is a line of the library's log */
        ck_assert_int_eq(try_put(key + i, 1), -ENOSPC);
    ck_assert_int_eq(space->ops->write_error(space), -ENOSPC);
    for (int64_t k = 0; k < 1000; k++)
        ck_assert(get(k, 1));
    ck_assert(!get(key, 1));
    small_disk_free(meta_folder);
    write_again(key);
    close_here();
    open_here("");
    ck_assert(get(0, 1));
    ck_assert(get(key, 1));
    close_here();
    ck_assert(!has_options_left());
}
END_TEST

/* Opening again needs room for what is in the log, not for what is in tables. */
START_TEST(a_large_database_is_written_again)
{
    small_disk_mount(meta_folder, 160 << 20);
    open_here("");
    for (uint64_t number = 0; number < 230; number++) /* 57 MiB */
        ck_assert_int_eq(try_large(number), 0);
    close_here();
    open_here(""); /* makes tables of the log */
    small_disk_fill(meta_folder, 0);
    write_until_full();
    small_disk_free(meta_folder);
    write_again(1);
    close_here();
}
END_TEST

static int open_below(void)
{
    char path[100];
    snprintf(path, sizeof(path), "%s/blocks", meta_folder); /* with "lock" in it */
    int rc = open_at(path);
    if (rc == 0)
        ck_assert_int_eq(store->ops->space_open(&space, store, 1, "i"), 0);
    return rc;
}

/* Leaves a database whose last records are only in its log, on a full disk. */
static void leave_on_full_disk(void)
{
    pid_t child = fork();
    if (child == 0) {
        ck_assert_int_eq(open_below(), 0);
        for (int64_t key = 0; key < 1000; key++)
            put(key, 1);
        write_until_full();
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    small_disk_fill(meta_folder, 0);
}

START_TEST(a_full_disk_at_opening_is_read)
{
    small_disk_mount(meta_folder, 64 << 20);
    small_disk_fill(meta_folder, 8 << 20);
    leave_on_full_disk();
    for (int i = 0; i < 3; i++) { /* as often as a manager is restarted */
        int rc = open_below();
        ck_assert_msg(rc == 0, "%d %s", rc, why);
        ck_assert_int_eq(space->ops->write_error(space), -ENOSPC);
        for (int64_t key = 0; key < 1000; key++)
            ck_assert(get(key, 1));
        ck_assert_int_eq(try_put(2000, 1), -ENOSPC);
        ck_assert(!get(2000, 1));
        if (i < 2)
            close_here();
    }
    small_disk_free(meta_folder);
    write_again(2000);
    close_here();
    ck_assert_int_eq(open_below(), 0);
    ck_assert(get(999, 1));
    ck_assert(get(2000, 1));
    close_here();
}
END_TEST

/* While it is open for reading only, no other process can open and change it. */
START_TEST(a_database_that_is_only_read_is_held)
{
    int ready[2], done[2];
    char byte;
    small_disk_mount(meta_folder, 64 << 20);
    small_disk_fill(meta_folder, 8 << 20);
    leave_on_full_disk();
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        ck_assert_int_eq(open_below(), 0);
        if (write(ready[1], "x", 1) != 1 || read(done[0], &byte, 1) != 1)
            _exit(1);
        write_again(2000);
        close_here();
        _exit(0);
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    small_disk_free(meta_folder);
    ck_assert_int_eq(open_below(), TIERCE_E_LOCKED);
    char pid[32];
    snprintf(pid, sizeof(pid), "process %d", (int)child);
    ck_assert_msg(strstr(why, pid) != NULL, "%s", why);
    ck_assert_int_eq(write(done[1], "x", 1), 1);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(open_below(), 0);
    ck_assert(get(2000, 1));
    close_here();
}
END_TEST

/* There is nothing to read yet; its folder can be made and no file in it (0), or not even that (1).
 */
START_TEST(a_new_database_on_a_full_disk_is_empty)
{
    small_disk_mount(meta_folder, 64 << 20);
    if (_i == 0)
        small_disk_fill(meta_folder, 0);
    else
        ck_assert_int_eq(mount("none", meta_folder, NULL, MS_REMOUNT, "nr_inodes=1"), 0);
    for (int i = 0; i < 2; i++) {
        int rc = open_below();
        ck_assert_msg(rc == 0, "%d %s", rc, why);
        ck_assert_int_eq(space->ops->write_error(space), -ENOSPC);
        ck_assert(!get(1, 1));
        ck_assert_int_eq(try_put(1, 1), -ENOSPC);
        ck_assert(!get(1, 1));
        if (i == 0)
            close_here();
    }
    if (_i == 0)
        small_disk_free(meta_folder);
    else
        ck_assert_int_eq(mount("none", meta_folder, NULL, MS_REMOUNT, "nr_inodes=1000"), 0);
    write_again(1);
    close_here();
    ck_assert_int_eq(open_below(), 0);
    ck_assert(get(1, 1));
    close_here();
}
END_TEST

/* ---- damaged logs --------------------------------------------------------------------------- */

enum { LOG_PATH = 400, LOGGED = 2000 /* records: several blocks of a log */ };

/* Leaves a database whose records are only in its log, as a killed manager does. */
static void leave_logged(void)
{
    pid_t child = fork();
    if (child == 0) {
        open_here("");
        for (int64_t key = 0; key < LOGGED; key++)
            put(key, 1);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Sets `path` to the first log (by name) that is not empty. Returns its size. */
static off_t find_log(char path[LOG_PATH])
{
    struct dirent **entries;
    struct stat file = {0};
    int count = scandir(meta_folder, &entries, NULL, alphasort);
    ck_assert_int_gt(count, 0);
    path[0] = '\0';
    for (int i = 0; i < count; i++) {
        const char *ending = strrchr(entries[i]->d_name, '.');
        char name[LOG_PATH];
        snprintf(name, sizeof(name), "%s/%s", meta_folder, entries[i]->d_name);
        if (path[0] == '\0' && ending != NULL && strcmp(ending, ".log") == 0 &&
            stat(name, &file) == 0 && file.st_size > 0)
            snprintf(path, LOG_PATH, "%s", name);
        free(entries[i]);
    }
    free(entries);
    ck_assert_str_ne(path, "");
    ck_assert_int_eq(stat(path, &file), 0);
    return file.st_size;
}

static void flip_byte(const char *path, off_t at)
{
    char byte;
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x40;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Counts the records up to the first missing one, behind which there must be none. */
static int64_t count_records(void)
{
    int64_t kept = 0;
    while (kept < LOGGED && get(kept, 1))
        kept++;
    for (int64_t key = kept; key < LOGGED; key++)
        ck_assert(!get(key, 1));
    return kept;
}

/* In the middle (0) and in the last record (1). */
START_TEST(damage_in_a_log_is_reported)
{
    char path[LOG_PATH];
    leave_logged();
    off_t bytes = find_log(path);
    flip_byte(path, _i == 0 ? bytes / 2 : bytes - 3);
    record_log(TIERCE_LOG_ERROR);
    open_here("");
    int64_t kept = count_records();
    ck_assert_int_ge(kept, _i == 0 ? LOGGED / 4 : LOGGED - 1);
    ck_assert_int_lt(kept, _i == 0 ? LOGGED * 3 / 4 : LOGGED);
    ck_assert_msg(recorded_with("meta_records_lost", meta_folder + 2) == 1, "%s", recorded_text());
    ck_assert_msg(recorded_with("meta_records_lost", "reason=\"Corruption: ") == 1, "%s",
                  recorded_text());
    const char *count = strstr(recorded_text(), "at least ");
    ck_assert_ptr_nonnull(count);
    long least = strtol(count + strlen("at least "), NULL, 10);
    ck_assert_int_ge(least, _i == 0 ? LOGGED / 4 : 1);
    ck_assert_int_le(least, LOGGED - kept);
    put(LOGGED, 1);
    close_here();
    forget_recorded();
    open_here("");
    ck_assert(get(kept - 1, 1));
    ck_assert(get(LOGGED, 1));
    ck_assert_uint_eq(recorded("meta_records_lost"), 0);
    close_here();
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
}
END_TEST

/* A killed manager may leave a part of its last write, from which that many bytes are missing. The
 * file may also end in zeros (-1). */
START_TEST(a_log_that_a_crash_cut_off_is_not_damage)
{
    static const int cuts[] = {0, 1, 50, 100, -1};
    char path[LOG_PATH];
    leave_logged();
    off_t bytes = find_log(path);
    ck_assert_int_eq(truncate(path, cuts[_i] >= 0 ? bytes - cuts[_i] : bytes + 100), 0);
    record_log(TIERCE_LOG_ERROR);
    open_here("");
    ck_assert_int_ge(count_records(), cuts[_i] > 0 ? LOGGED - 2 : LOGGED);
    close_here();
    ck_assert_uint_eq(recorded("meta_records_lost"), 0);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
}
END_TEST

/* A write to the database that leaves the earlier logs in place. */
static void add_log(void)
{
    pid_t child = fork();
    if (child == 0) {
        char *error = NULL;
        rocksdb_options_t *usual = rocksdb_options_create(), *options = rocksdb_options_create();
        rocksdb_options_set_uint64add_merge_operator(usual);
        rocksdb_get_options_from_string(usual, "avoid_flush_during_recovery=true", options, &error);
        rocksdb_t *db = error == NULL ? rocksdb_open(options, meta_folder, &error) : NULL;
        if (error == NULL)
            rocksdb_put(db, rocksdb_writeoptions_create(), "later", 5, "v", 1, &error);
        _exit(error == NULL ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* After a power cut: what follows in the next log is not applied without it. */
START_TEST(a_cut_in_a_log_before_the_last_is_reported)
{
    char path[LOG_PATH];
    leave_logged();
    off_t bytes = find_log(path);
    add_log();
    ck_assert_int_eq(find_log(path), bytes);
    ck_assert_int_eq(truncate(path, bytes - 1), 0);
    record_log(TIERCE_LOG_ERROR);
    open_here("");
    ck_assert_int_eq(count_records(), LOGGED - 1);
    close_here();
    ck_assert_msg(recorded_with("meta_records_lost", "at least 2") == 1, "%s", recorded_text());
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
}
END_TEST

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CAN_LIMIT = 0 }; /* shadow memory takes all address space */
#else
enum { CAN_LIMIT = 1 };
#endif

static uint64_t address_space_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_int_eq(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The library would end the process. */
START_TEST(too_little_memory_or_threads_is_an_error)
{
    static const struct {
        unsigned mib;
        int rc;
        const char *part;
    } rows[] = {{32, -ENOMEM, "requires 257 MiB of address space"},
                {300, -EAGAIN, "cannot start its threads"}};
    char uri[160];
    snprintf(uri, sizeof(uri), "rocksdb://%s?cache_mib=1", meta_folder);
    rlim_t bytes = address_space_bytes() + ((rlim_t)rows[_i].mib << 20);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &(struct rlimit){bytes, RLIM_INFINITY}), 0);
    ck_assert_int_eq(open_at(uri), rows[_i].rc);
    ck_assert_msg(strstr(why, rows[_i].part) != NULL, "%s", why);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0);
    open_here("?cache_mib=1");
    close_here();
}
END_TEST

int main(void)
{
    bool mounts = small_disk_permitted();
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
    tcase_add_test(tcase, links_are_not_written_through);
    tcase_add_test(tcase, records_without_current_are_kept);
    tcase_add_test(tcase, a_broken_record_is_not_found);
    tcase_add_test(tcase, touches_go_out_by_themselves);
    tcase_add_test(tcase, more_touches_than_there_is_room);
    tcase_add_loop_test(tcase, damage_in_a_log_is_reported, 0, 2);
    tcase_add_loop_test(tcase, a_log_that_a_crash_cut_off_is_not_damage, 0, 5);
    tcase_add_test(tcase, a_cut_in_a_log_before_the_last_is_reported);
    if (CAN_LIMIT)
        tcase_add_loop_test(tcase, too_little_memory_or_threads_is_an_error, 0, 2);
    if (mounts) {
        tcase_add_test(tcase, a_full_disk_rejects_writes_and_nothing_else);
        tcase_add_test(tcase, a_large_database_is_written_again);
        tcase_add_test(tcase, a_full_disk_at_opening_is_read);
        tcase_add_test(tcase, a_database_that_is_only_read_is_held);
        tcase_add_loop_test(tcase, a_new_database_on_a_full_disk_is_empty, 0, 2);
    }
    suite_add_tcase(suite, tcase);
    return small_disk_status(check_main(suite), mounts);
}
