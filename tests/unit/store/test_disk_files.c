/* SPDX-License-Identifier: Apache-2.0 */
/* A store folder with files, links, folders and pipes of somebody else in it: each is named, and
 * none is changed, followed or lost. */
#include "base/bytes.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "check_main.h"
#include "disk_harness.h"
#include "log_record.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/time.h>

#define MIB (1ULL << 20)

static struct store s;
static char outside[176]; /* a folder beside the store */
static void setup(void)
{
    s = (struct store){.chunk_bytes = 64 * 1024};
    store_folder(&s);
    snprintf(outside, sizeof(outside), "%s.outside", s.folder);
    ck_assert_int_eq(mkdir(outside, 0700), 0);
    ck_assert_int_eq(store_parts(&s, 32 * MIB), 0);
    record_log(TIERCE_LOG_WARN);
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    store_remove(&s);
    temp_folder_remove(outside);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void in_folder(char path[256], const char *name)
{
    snprintf(path, 256, "%.155s/%.99s", s.folder, name);
}

static void in_outside(char path[256], const char *name)
{
    snprintf(path, 256, "%.155s/%.99s", outside, name);
}

static int open_here(void)
{
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    return store_open(&s, &opts);
}

/* ---- what may be in the way ------------------------------------------------------------------ */

enum kind { TEXT, IMAGE, LINK_TO_FILE, LINK_TO_NOTHING, LINK_TO_FOLDER, FOLDER, PIPE, KINDS };

static const char *const kinds[] = {"text",           "image",  "link to file", "link to nothing",
                                    "link to folder", "folder", "pipe"};

static void write_file(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

static void check_file(const char *path, const void *bytes, size_t length)
{
    char *found;
    size_t n;
    ck_assert_int_eq(tierce__read_file(&found, &n, path, 1 << 20), 0);
    ck_assert_uint_eq(n, length);
    ck_assert_mem_eq(found, bytes, length);
    tierce__free(found);
}

static char text[5000], image[20000];

/* Makes it; what a link leads to is "target" or "folder" outside. */
static void make(const char *path, enum kind kind)
{
    char target[256], here[512], absolute[800];
    memset(text, 'x', sizeof(text));
    memset(image + 4096, 'y', sizeof(image) - 4096); /* begins with zeroes, as images of disks do */
    in_outside(target, kind == LINK_TO_FOLDER ? "folder" : "target");
    ck_assert_ptr_nonnull(getcwd(here, sizeof(here)));
    snprintf(absolute, sizeof(absolute), "%s/%s", here, target);
    switch (kind) {
    case TEXT:
        write_file(path, text, sizeof(text));
        break;
    case IMAGE:
        write_file(path, image, sizeof(image));
        break;
    case LINK_TO_FILE:
        write_file(target, text, sizeof(text));
        ck_assert_int_eq(symlink(absolute, path), 0);
        break;
    case LINK_TO_NOTHING:
        ck_assert_int_eq(symlink(absolute, path), 0);
        break;
    case LINK_TO_FOLDER:
    case FOLDER:
        ck_assert_int_eq(mkdir(kind == FOLDER ? path : target, 0700), 0);
        if (kind == LINK_TO_FOLDER)
            ck_assert_int_eq(symlink(absolute, path), 0);
        snprintf(target, sizeof(target), "%.200s/note", path);
        write_file(target, text, sizeof(text));
        break;
    case PIPE:
        ck_assert_int_eq(mkfifo(path, 0600), 0);
        break;
    case KINDS:
        break;
    }
}

/* That it is what it was, and so is all that a link leads to. */
static void check(const char *path, enum kind kind)
{
    static const mode_t modes[] = {S_IFREG, S_IFREG, S_IFLNK, S_IFLNK, S_IFLNK, S_IFDIR, S_IFIFO};
    char target[256];
    struct stat st;
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & S_IFMT, modes[kind]);
    in_outside(target, "target");
    if (kind == TEXT || kind == LINK_TO_FILE)
        check_file(path, text, sizeof(text));
    if (kind == IMAGE)
        check_file(path, image, sizeof(image));
    if (kind == LINK_TO_NOTHING)
        ck_assert_int_ne(access(target, F_OK), 0);
    if (kind == FOLDER || kind == LINK_TO_FOLDER) {
        snprintf(target, sizeof(target), "%.200s/note", path);
        check_file(target, text, sizeof(text));
    }
}

static void make_outside_anew(void)
{
    temp_folder_remove(outside);
    ck_assert_int_eq(mkdir(outside, 0700), 0);
}

/* ---- the files of a store -------------------------------------------------------------------- */

static const char *const names[] = {"lock",           "journal", "journal.new",
                                    "journal.synced", "data",    "ns"};
#define NAMES 6

static void check_refusal(const char *name, enum kind kind)
{
    char path[256], line[400];
    in_folder(path, name);
    make(path, kind);
    forget_recorded();
    int rc = open_here();
    bool is_wanted = strcmp(name, "ns") == 0 && kind == FOLDER;
    ck_assert_msg((rc == 0) == is_wanted, "%s, %s: %d", name, kinds[kind], rc);
    snprintf(line, sizeof(line), "disk_open_failed path=\"%s\"", path);
    ck_assert_msg(is_wanted || strstr(recorded_text(), line) != NULL, "%s, %s: %s", name,
                  kinds[kind], recorded_text());
    ck_assert_msg(is_wanted || strstr(recorded_text(), "move") != NULL, "%s", recorded_text());
    store_close(&s);
    check(path, kind);
}

/* Nothing else is in the folder. */
static void check_alone(const char *name, enum kind kind)
{
    DIR *folder = opendir(s.folder);
    ck_assert_ptr_nonnull(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        ck_assert_msg(entry->d_name[0] == '.' || strcmp(entry->d_name, name) == 0,
                      "%s, %s: %s was left", name, kinds[kind], entry->d_name);
    closedir(folder);
}

START_TEST(an_empty_folder_with_something_of_somebody_else)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        store_remove(&s);
        ck_assert_int_eq(mkdir(s.folder, 0700), 0);
        make_outside_anew();
        check_refusal(names[_i], kind);
        if (strcmp(names[_i], "ns") != 0 || kind != FOLDER)
            check_alone(names[_i], kind);
    }
}
END_TEST

static void *open_waiting(void *arg)
{
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    opts.lock_wait_ms = 60000;
    (void)arg;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    return NULL;
}

/* A store that is refused removes its lock, for which another one may wait: that one holds the
 * folder afterwards, and not a file that is gone. */
START_TEST(a_lock_that_is_removed_is_made_again)
{
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    struct tierce__tier *other = NULL;
    pthread_t thread;
    char path[256];
    in_folder(path, "lock");
    store_remove(&s);
    ck_assert_int_eq(mkdir(s.folder, 0700), 0);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    ck_assert_int_eq(tierce__file_lock_fd(fd, TIERCE__FILE_LOCK_RECORD, 0), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, open_waiting, NULL), 0);
    usleep(100000); /* it waits now, or else opens the store at once */
    ck_assert_int_eq(unlink(path), 0);
    close(fd);
    pthread_join(thread, NULL);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(tierce__disk_open(&other, &opts), TIERCE_E_LOCKED);
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

/* In the place of a file of a store; which is whole again when that is moved away. */
START_TEST(a_store_with_something_of_somebody_else)
{
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    store_close(&s);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        char path[256], saved[300];
        if (strcmp(names[_i], "ns") == 0 && kind == FOLDER)
            continue;
        in_folder(path, names[_i]);
        snprintf(saved, sizeof(saved), "%s.saved", s.folder);
        bool was_there = rename(path, saved) == 0;
        make_outside_anew();
        check_refusal(names[_i], kind);
        temp_folder_remove(path);
        ck_assert(!was_there || rename(saved, path) == 0);
        ck_assert_int_eq(open_here(), 0);
        ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
        store_close(&s);
    }
}
END_TEST

/* ---- ns/ ------------------------------------------------------------------------------------- */

static void name_of_text(char name[100], const char *suffix)
{
    char digest[65];
    tierce__hex_encode(digest, tierce__namespaces_digest(s.namespaces, s.ns), 32);
    snprintf(name, 100, "ns/%s%s", digest, suffix);
}

static void check_stray(const char *name, enum kind kind)
{
    char path[256], line[400];
    record_log(TIERCE_LOG_WARN); /* or so many of one event are dropped */
    ck_assert_int_eq(open_here(), 0);
    in_folder(path, name);
    snprintf(line, sizeof(line), "disk_stray_skipped path=\"%s\"", path);
    ck_assert_msg(strstr(recorded_text(), line) != NULL, "%s, %s: %s", name, kinds[kind],
                  recorded_text());
    ck_assert_int_eq(store_put(&s, (uint64_t)kind), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_get(&s, (uint64_t)kind, 0, 0), 0);
    store_close(&s);
    check(path, kind);
}

/* In the place of the text of a namespace, of its temporary, and beside them. */
START_TEST(strays_among_the_texts_are_left_alone)
{
    char strays[5][100], path[256];
    name_of_text(strays[0], "");
    name_of_text(strays[1], ".tmp");
    name_of_text(strays[2], ".bak");
    snprintf(strays[3], sizeof(strays[3]), "ns/notes.txt");
    snprintf(strays[4], sizeof(strays[4]), "ns/.hidden");
    ck_assert_int_eq(open_here(), 0);
    store_close(&s);
    for (size_t i = 0; i < 5; i++) {
        for (enum kind kind = 0; kind < KINDS; kind++) {
            in_folder(path, strays[0]);
            temp_folder_remove(path); /* the text, so that it is published once more */
            in_folder(path, strays[i]);
            make_outside_anew();
            make(path, kind);
            check_stray(strays[i], kind);
            temp_folder_remove(path);
        }
    }
}
END_TEST

/* Our obsolete files are removed, and files of a killed process too. */
START_TEST(own_leftovers_are_removed)
{
    static const char other[] = "tierce-namespace=1\nobjects=x\ntenant=y\n";
    uint8_t digest[TIERCE_HASH_BYTES];
    char hex[65], name[100], unused[256], tmp[256], path[256];
    ck_assert_int_eq(open_here(), 0);
    store_close(&s);
    tierce_namespace_digest(digest, other);
    tierce__hex_encode(hex, digest, sizeof(digest));
    snprintf(name, sizeof(name), "ns/%s", hex);
    in_folder(unused, name);
    write_file(unused, other, strlen(other));
    snprintf(name, sizeof(name), "ns/%s.tmp", hex);
    in_folder(tmp, name);
    write_file(tmp, other, 20);
    in_folder(path, "journal.new");
    write_file(path, "", 0);
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_ne(access(unused, F_OK), 0);
    ck_assert_int_ne(access(tmp, F_OK), 0);
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_str_eq(recorded_text(), "");
    store_close(&s);
    name_of_text(name, ".tmp"); /* torn: zeroes where the text was not written */
    in_folder(tmp, name);
    write_file(tmp, "name=\0\0\0\0\n", 10);
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_ne(access(tmp, F_OK), 0);
    name_of_text(name, "");
    in_folder(path, name);
    check_file(path, "name=test\n", 10);
}
END_TEST

/* ---- the folder ------------------------------------------------------------------------------ */

/* The store is the folder that was opened, whatever gets its name. */
START_TEST(a_folder_that_is_moved_stays_the_store)
{
    char moved[256], path[256];
    in_outside(moved, "moved");
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    ck_assert_int_eq(rename(s.folder, moved), 0);
    ck_assert_int_eq(mkdir(s.folder, 0700), 0);
    for (enum kind kind = 0; kind < 2; kind++) {
        in_folder(path, kind == 0 ? "journal.new" : "journal.synced");
        make(path, kind);
    }
    for (uint64_t n = 2; n < 200; n++) /* evicts, and the journal is replaced */
        ck_assert_int_eq(store_put(&s, n), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    ck_assert_int_eq(store_get(&s, 199, 0, 0), 0);
    store_close(&s);
    for (enum kind kind = 0; kind < 2; kind++) {
        in_folder(path, kind == 0 ? "journal.new" : "journal.synced");
        check(path, kind);
    }
    store_remove(&s);
    ck_assert_int_eq(rename(moved, s.folder), 0);
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(store_get(&s, 199, 0, 0), 0);
}
END_TEST

/* The folder itself may be a link: that is its owner's decision. */
START_TEST(the_folder_may_be_a_link)
{
    char path[256];
    in_outside(path, "link");
    char target[256];
    snprintf(target, sizeof(target), "../%s", s.folder);
    ck_assert_int_eq(symlink(target, path), 0);
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    opts.path = path;
    ck_assert_int_eq(store_open(&s, &opts), 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    store_close(&s);
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
}
END_TEST

/* ---- lengths --------------------------------------------------------------------------------- */

static void check_too_long(const char *name, const char *what)
{
    char path[256], line[400];
    struct stat before, after;
    in_folder(path, name);
    ck_assert_int_eq(truncate(path, 40LL << 30), 0);
    ck_assert_int_eq(stat(path, &before), 0);
    forget_recorded();
    uint64_t begun = tierce__now_ns();
    size_t least = tierce__alloc_live();
    ck_assert_int_eq(open_here(), TIERCE_E_LIMIT);
    ck_assert_uint_eq(tierce__alloc_live(), least);
    uint64_t ms = (tierce__now_ns() - begun) / 1000000;
    ck_assert_msg(ms < 5000, "%s: %d ms", what, (int)ms); /* the reading of it took minutes */
    snprintf(line, sizeof(line), "disk_open_failed path=\"%s\"", path);
    ck_assert_msg(strstr(recorded_text(), line) != NULL, "%s: %s", what, recorded_text());
    ck_assert_int_eq(stat(path, &after), 0);
    ck_assert_int_eq(after.st_size, before.st_size);
    ck_assert_int_eq(after.st_blocks, before.st_blocks);
}

static bool count_entry(void *arg, const struct tierce__disk_entry *entry)
{
    (void)entry;
    ++*(unsigned *)arg;
    return true;
}

START_TEST(a_journal_that_is_too_long_is_refused_at_once)
{
    char path[256];
    unsigned seen = 0;
    in_folder(path, "journal");
    write_file(path, "", 0);
    check_too_long("journal", "nothing but a hole");
    ck_assert_int_eq(tierce__disk_scan(s.folder, s.namespaces, count_entry, &seen), TIERCE_E_LIMIT);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(store_put(&s, 1), 0);
    store_close(&s);
    uint64_t bytes = store_file_bytes(&s, "journal");
    check_too_long("journal", "a store's with a hole behind it");
    ck_assert_ptr_nonnull(strstr(recorded_text(), "begins empty"));
    ck_assert_int_eq(tierce__disk_scan(s.folder, s.namespaces, count_entry, &seen), TIERCE_E_LIMIT);
    ck_assert_uint_eq(seen, 0);
    ck_assert_int_eq(truncate(path, (off_t)bytes), 0);
    in_folder(path, "journal.new");
    write_file(path, "", 0);
    check_too_long("journal.new", "one that was not finished");
    ck_assert_ptr_null(strstr(recorded_text(), "begins empty")); /* it is not needed */
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(store_get(&s, 1, 0, 0), 0);
}
END_TEST

/* In whole sectors and not: it is ours by how it begins. */
START_TEST(data_that_was_cut_short_is_still_ours)
{
    static const off_t lengths[] = {4096, 4095, 512, 511, 100, 8};
    char path[256];
    in_folder(path, "data");
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        ck_assert_int_eq(open_here(), 0);
        ck_assert_int_eq(store_put(&s, 1), 0);
        ck_assert_int_eq(store_flush(&s), 0);
        store_close(&s);
        ck_assert_int_eq(truncate(path, lengths[i]), 0);
        int rc = open_here();
        ck_assert_msg(rc == 0, "%d bytes: %d %s", (int)lengths[i], rc, recorded_text());
        ck_assert_int_ne(store_get(&s, 1, 0, 0), 0);
        store_close(&s);
        store_remove(&s);
        ck_assert_int_eq(mkdir(s.folder, 0700), 0);
    }
    ck_assert_int_eq(open_here(), 0);
}
END_TEST

CHECK_MAIN("disk_files", .seconds = 60, .setup = setup, .teardown = teardown,
           .tests = {strays_among_the_texts_are_left_alone, own_leftovers_are_removed,
                     a_folder_that_is_moved_stays_the_store, the_folder_may_be_a_link,
                     a_journal_that_is_too_long_is_refused_at_once,
                     data_that_was_cut_short_is_still_ours, a_lock_that_is_removed_is_made_again},
           .loops = {{an_empty_folder_with_something_of_somebody_else, 0, NAMES},
                     {a_store_with_something_of_somebody_else, 0, NAMES}})
