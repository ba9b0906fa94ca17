/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "check_main.h"
#include "child_exit.h"
#include "core/key/fingerprint.h"
#include "core/key/sha256.h"
#include "log_record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64], model[128], cache[128];

static void make_root(void)
{
    strcpy(root, "/tmp/tierce-fingerprint-XXXXXX");
    temp_folder_make(root);
    snprintf(model, sizeof(model), "%s/model", root);
    snprintf(cache, sizeof(cache), "%s/cache", root);
    ck_assert_int_eq(mkdir(model, 0755), 0);
}

static void remove_root(void)
{
    temp_folder_remove(root);
}

static void write_file(const char *folder, const char *name, const char *content)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(content, 1, strlen(content), f), strlen(content));
    ck_assert_int_eq(fclose(f), 0);
}

static void make_model(void)
{
    write_file(model, "config.json", "{}");
    write_file(model, "model-00001-of-00002.safetensors", "weights one");
    write_file(model, "model-00002-of-00002.safetensors", "weights two");
    write_file(model, "tokenizer.json", "not of the weights");
    write_file(model, "old.bin", "not read beside safetensors");
}

struct progress {
    int calls;
    uint64_t done;
    uint64_t total;
};

static void note_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    struct progress *progress = arg;
    ck_assert_uint_ge(done_bytes, progress->done);
    ck_assert_uint_le(done_bytes, total_bytes);
    *progress = (struct progress){progress->calls + 1, done_bytes, total_bytes};
}

/* The fingerprint, and how many bytes it took to read. Files count as settled at once. */
static int fingerprint_at(char text[65], const char *dir, const char *cache_dir, uint64_t *read)
{
    struct progress progress = {0};
    struct tierce_fingerprint_opts opts = {.size = sizeof(opts),
                                           .cache_dir = cache_dir,
                                           .progress = note_progress,
                                           .progress_arg = &progress};
    int rc = tierce__weights_fingerprint(text, dir, &opts, 0);
    if (rc == 0)
        ck_assert_uint_eq(progress.done, progress.total);
    *read = progress.done;
    return rc;
}

static uint64_t fingerprint(char text[65], const char *cache_dir)
{
    uint64_t read;
    ck_assert_int_eq(fingerprint_at(text, model, cache_dir, &read), 0);
    ck_assert_uint_eq(strlen(text), 64);
    return read;
}

static void feed_file(struct tierce__sha256 *sha, const char *name, const char *content)
{
    uint8_t number[8], digest[32];
    tierce__store_le64(number, strlen(name));
    tierce__sha256_update(sha, number, 8);
    tierce__sha256_update(sha, name, strlen(name));
    tierce__store_le64(number, strlen(content));
    tierce__sha256_update(sha, number, 8);
    tierce__sha256(digest, content, strlen(content));
    tierce__sha256_update(sha, digest, 32);
}

START_TEST(the_format_is_as_written_down)
{
    char text[65], expected[65];
    uint8_t digest[32];
    struct tierce__sha256 sha;
    make_model();
    tierce__sha256_init(&sha);
    tierce__sha256_update(&sha, "tierce-weights-1", 17);
    feed_file(&sha, "config.json", "{}");
    feed_file(&sha, "model-00001-of-00002.safetensors", "weights one");
    feed_file(&sha, "model-00002-of-00002.safetensors", "weights two");
    tierce__sha256_final(&sha, digest);
    tierce__hex_encode(expected, digest, 32);
    ck_assert_uint_eq(fingerprint(text, NULL), 24);
    ck_assert_str_eq(text, expected);
    ck_assert_int_eq(tierce_weights_fingerprint(text, model, NULL), 0);
    ck_assert_str_eq(text, expected);
}
END_TEST

/* Whatever order the folder lists them in, which is often that of their making. */
START_TEST(files_are_taken_by_name)
{
    char text[65], expected[65], name[32], content[8];
    uint8_t digest[32];
    struct tierce__sha256 sha;
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof(name), "%02d.safetensors", i * 7 % 12);
        snprintf(content, sizeof(content), "%d", i * 7 % 12);
        write_file(model, name, content);
    }
    tierce__sha256_init(&sha);
    tierce__sha256_update(&sha, "tierce-weights-1", 17);
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof(name), "%02d.safetensors", i);
        snprintf(content, sizeof(content), "%d", i);
        feed_file(&sha, name, content);
    }
    tierce__sha256_final(&sha, digest);
    tierce__hex_encode(expected, digest, 32);
    fingerprint(text, NULL);
    ck_assert_str_eq(text, expected);
}
END_TEST

START_TEST(every_byte_and_name_counts)
{
    char first[65], text[65];
    make_model();
    fingerprint(first, NULL);
    write_file(model, "model-00002-of-00002.safetensors", "weights twO");
    fingerprint(text, NULL);
    ck_assert_str_ne(text, first);
    write_file(model, "model-00002-of-00002.safetensors", "weights two");
    fingerprint(text, NULL);
    ck_assert_str_eq(text, first);
    write_file(model, "config.json", "[]");
    fingerprint(text, NULL);
    ck_assert_str_ne(text, first);
    write_file(model, "config.json", "{}");
    write_file(model, "tokenizer.json", "something else");
    fingerprint(text, NULL);
    ck_assert_str_eq(text, first);
    write_file(model, "extra.safetensors", "");
    fingerprint(text, NULL);
    ck_assert_str_ne(text, first);
}
END_TEST

START_TEST(other_formats_count_where_there_is_no_safetensors)
{
    char first[65], text[65] = "untouched";
    uint64_t read;
    ck_assert_int_eq(fingerprint_at(text, model, NULL, &read), -ENOENT);
    write_file(model, "config.json", "{}");
    ck_assert_int_eq(fingerprint_at(text, model, NULL, &read), -ENOENT);
    ck_assert_int_eq(fingerprint_at(text, "/nonexistent/model", NULL, &read), -ENOENT);
    ck_assert_str_eq(text, "untouched");
    write_file(model, "a.bin", "1");
    write_file(model, "b.pt", "22");
    write_file(model, "c.gguf", "333");
    write_file(model, ".bin", "not a name before the suffix");
    ck_assert_uint_eq(fingerprint(first, NULL), 8);
    write_file(model, "c.gguf", "334");
    fingerprint(text, NULL);
    ck_assert_str_ne(text, first);
}
END_TEST

START_TEST(the_cache_saves_reading)
{
    char first[65], text[65], path[512];
    make_model();
    ck_assert_uint_eq(fingerprint(first, cache), 24);
    ck_assert_uint_eq(fingerprint(text, cache), 0);
    ck_assert_str_eq(text, first);
    struct stat st;
    ck_assert_int_eq(stat(cache, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);

    /* A touched file is read again, and only that one. */
    snprintf(path, sizeof(path), "%s/model-00001-of-00002.safetensors", model);
    struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
    ck_assert_uint_eq(fingerprint(text, cache), 11);
    ck_assert_str_eq(text, first);
    ck_assert_uint_eq(fingerprint(text, cache), 0);

    /* The same size with other content, and the old time put back. */
    write_file(model, "model-00001-of-00002.safetensors", "weights OnE");
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
    ck_assert_uint_eq(fingerprint(text, cache), 11);
    ck_assert_str_ne(text, first);
}
END_TEST

START_TEST(what_has_just_changed_is_not_remembered)
{
    char text[65];
    struct progress progress = {0};
    struct tierce_fingerprint_opts opts = {.size = sizeof(opts),
                                           .cache_dir = cache,
                                           .progress = note_progress,
                                           .progress_arg = &progress};
    make_model();
    for (int i = 0; i < 2; i++) {
        progress = (struct progress){0};
        ck_assert_int_eq(tierce__weights_fingerprint(text, model, &opts, UINT64_MAX), 0);
        ck_assert_uint_eq(progress.done, 24);
    }
}
END_TEST

/* Calls `change` on every cache entry; the next fingerprint must read all and be right. */
static void with_bad_entries(void (*change)(const char *path))
{
    char first[65], text[65];
    fingerprint(first, cache);
    ck_assert_uint_eq(fingerprint(text, cache), 0);
    DIR *dir = opendir(cache);
    ck_assert_ptr_nonnull(dir);
    const struct dirent *entry;
    int entries = 0;
    while ((entry = readdir(dir)) != NULL) {
        char path[512];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", cache, entry->d_name);
        struct stat st;
        ck_assert_int_eq(lstat(path, &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0600);
        change(path);
        entries++;
    }
    closedir(dir);
    ck_assert_int_eq(entries, 3);
    ck_assert_uint_eq(fingerprint(text, cache), 24);
    ck_assert_str_eq(text, first);
    ck_assert_uint_eq(fingerprint(text, cache), 0);
    ck_assert_str_eq(text, first);
    temp_folder_remove(cache);
}

/* Stands before the C library's: that of a file fails when it is told to. */
static bool file_sync_fails;
static _Atomic int folder_syncs;

int fsync(int fd)
{
    struct stat st;
    bool folder = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    folder_syncs += folder;
    if (file_sync_fails && !folder) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

static void unlink_locks(void)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/.lock", cache);
    ck_assert_int_eq(unlink(path), 0);
}

/* Or a power cut would cost the reading of all weights. */
START_TEST(an_entry_is_synced_before_it_has_its_name_and_after)
{
    char text[65];
    make_model();
    file_sync_fails = true;
    ck_assert_uint_eq(fingerprint(text, cache), 24);
    ck_assert_int_eq(folder_syncs, 0);
    unlink_locks();
    ck_assert_int_eq(rmdir(cache), 0); /* nothing else was left in it */
    file_sync_fails = false;
    ck_assert_uint_eq(fingerprint(text, cache), 24);
    ck_assert_int_eq(folder_syncs, 3);
    ck_assert_uint_eq(fingerprint(text, cache), 0);
}
END_TEST

static size_t flip_at;

static void flip_byte(const char *path)
{
    int fd = open(path, O_RDWR);
    char byte;
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)flip_at), 1);
    byte = byte == '0' ? '1' : '0';
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)flip_at), 1);
    close(fd);
}

static void cut_half(const char *path)
{
    ck_assert_int_eq(truncate(path, 100), 0);
}

static void cut_all(const char *path)
{
    ck_assert_int_eq(truncate(path, 0), 0);
}

static void grow(const char *path)
{
    ck_assert_int_eq(truncate(path, 1 << 20), 0);
}

static void append_byte(const char *path)
{
    FILE *f = fopen(path, "a");
    fputc('\n', f);
    fclose(f);
}

static void make_link(const char *path)
{
    char target[600];
    snprintf(target, sizeof(target), "%s/moved-%s", root, strrchr(path, '/') + 1);
    ck_assert_int_eq(rename(path, target), 0);
    ck_assert_int_eq(symlink(target, path), 0);
}

static void make_pipe(const char *path)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
}

static void open_to_others(const char *path)
{
    ck_assert_int_eq(chmod(path, 0666), 0);
}

/* Each entry replaced by the one of another file. */
static char previous[512];

static void mix_up(const char *path)
{
    if (previous[0] != '\0') {
        char between[600];
        snprintf(between, sizeof(between), "%s/between", root);
        ck_assert_int_eq(rename(path, between), 0);
        ck_assert_int_eq(rename(previous, path), 0);
        ck_assert_int_eq(rename(between, previous), 0);
    }
    strcpy(previous, path);
}

START_TEST(a_damaged_or_hostile_cache_is_ignored)
{
    static void (*const changes[])(const char *) = {
        cut_half, cut_all, grow, append_byte, make_link, make_pipe, open_to_others, mix_up};
    make_model();
    for (flip_at = 0; flip_at < 270; flip_at += 23)
        with_bad_entries(flip_byte);
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        with_bad_entries(changes[i]);
}
END_TEST

START_TEST(a_cache_folder_that_others_may_write_is_not_used)
{
    char text[65];
    make_model();
    ck_assert_int_eq(mkdir(cache, 0777), 0);
    ck_assert_int_eq(chmod(cache, 0777), 0);
    record_log(TIERCE_LOG_WARN);
    ck_assert_uint_eq(fingerprint(text, cache), 24);
    ck_assert_uint_eq(fingerprint(text, cache), 24);
    ck_assert_uint_eq(recorded_with("fingerprint_cache_unusable", "chmod 700 it"), 2);
    ck_assert_uint_eq(fingerprint(text, "/nonexistent/cache"), 24);
}
END_TEST

START_TEST(links_lead_to_their_targets)
{
    char first[65], text[65], path[512], blob[512];
    make_model();
    fingerprint(first, cache);
    /* As a hub cache keeps it: the folder holds links to blobs. */
    snprintf(path, sizeof(path), "%s/model-00001-of-00002.safetensors", model);
    snprintf(blob, sizeof(blob), "%s/blob", root);
    ck_assert_int_eq(rename(path, blob), 0);
    ck_assert_int_eq(symlink(blob, path), 0);
    fingerprint(text, NULL);
    ck_assert_str_eq(text, first);
    fingerprint(text, cache);
    ck_assert_uint_eq(fingerprint(text, cache), 0);
    write_file(root, "blob", "weights 1!!");
    ck_assert_uint_eq(fingerprint(text, cache), 11);
    ck_assert_str_ne(text, first);
    ck_assert_int_eq(unlink(blob), 0);
    uint64_t read;
    ck_assert_int_eq(fingerprint_at(text, model, cache, &read), -ENOENT);
}
END_TEST

START_TEST(large_files_report_progress)
{
    char text[65], expected[65], path[512];
    write_file(model, "a.safetensors", "x");
    snprintf(path, sizeof(path), "%s/a.safetensors", model);
    ck_assert_int_eq(truncate(path, (3 << 20) + 5), 0);
    ck_assert_uint_eq(fingerprint(text, cache), (3 << 20) + 5);
    ck_assert_uint_eq(fingerprint(expected, NULL), (3 << 20) + 5);
    ck_assert_str_eq(text, expected);
}
END_TEST

struct meddler {
    char path[512];
    int how;
};

/* Changes the file that is being read, after its first part. */
static void meddle(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    const struct meddler *meddler = arg;
    if (done_bytes == total_bytes)
        return;
    if (meddler->how < 2)
        ck_assert_int_eq(truncate(meddler->path, meddler->how == 0 ? 5 << 20 : 2 << 20), 0);
    if (meddler->how == 2) {
        int fd = open(meddler->path, O_WRONLY);
        ck_assert_int_eq(pwrite(fd, "y", 1, 0), 1);
        close(fd);
    }
}

START_TEST(a_file_that_changes_while_it_is_read_has_none)
{
    for (int how = 0; how < 4; how++) {
        char text[65] = "untouched";
        struct meddler meddler = {.how = how};
        struct tierce_fingerprint_opts opts = {
            .size = sizeof(opts), .progress = meddle, .progress_arg = &meddler};
        struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
        write_file(model, "a.safetensors", "x");
        snprintf(meddler.path, sizeof(meddler.path), "%s/a.safetensors", model);
        ck_assert_int_eq(truncate(meddler.path, 3 << 20), 0);
        ck_assert_int_eq(utimensat(AT_FDCWD, meddler.path, times, 0), 0);
        int rc = tierce_weights_fingerprint(text, model, &opts);
        ck_assert_int_eq(rc, how == 3 ? 0 : -EBUSY);
        ck_assert_int_eq(strcmp(text, "untouched") == 0, how != 3);
    }
}
END_TEST

/* ---- processes that share a cache ---- */

/* A process that reads a file of the model: it has the file's lock until it gets a byte. Then it
 * remembers a digest, if it is to, and drops the lock. */
struct other {
    pid_t pid;
    int go;
};

static const char shared_name[] = "model-00001-of-00002.safetensors";

static void run_other(int ready, int go, const uint8_t *digest)
{
    struct stat st;
    char path[512], byte;
    snprintf(path, sizeof(path), "%s/%s", model, shared_name);
    int cache_fd = tierce__fingerprint_cache_open(cache);
    int locks_fd = tierce__fingerprint_cache_open_locks(cache_fd);
    if (stat(path, &st) < 0 || !tierce__fingerprint_cache_lock(locks_fd, &st))
        child_exit(1);
    if (write(ready, "r", 1) != 1 || read(go, &byte, 1) != 1)
        child_exit(1);
    if (digest != NULL)
        tierce__fingerprint_cache_put(cache_fd, &st, digest);
    tierce__fingerprint_cache_unlock(locks_fd, &st);
    child_exit(0);
}

static struct other start_other(const uint8_t *digest)
{
    int ready[2], go[2];
    char byte;
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(go), 0);
    struct other other = {.pid = fork(), .go = go[1]};
    ck_assert_int_ge(other.pid, 0);
    if (other.pid == 0)
        run_other(ready[1], go[0], digest);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    close(go[0]);
    return other;
}

static void end_other(const struct other *other, int expected)
{
    int status;
    ck_assert_int_eq(waitpid(other->pid, &status, 0), other->pid);
    ck_assert_int_eq(status, expected);
    close(other->go);
}

/* When only its file is left. */
static void release_other(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    struct other *other = arg;
    if (total_bytes - done_bytes == 11 && other->go >= 0) {
        ck_assert_int_eq(write(other->go, "g", 1), 1);
        close(other->go);
        other->go = -1;
    }
}

/* The digest is not that of the content, so that it shows where it came from. */
START_TEST(a_file_that_another_process_reads_is_not_read_twice)
{
    char text[65], expected[65];
    uint8_t digest[32];
    make_model();
    memset(digest, 7, sizeof(digest));
    struct other other = start_other(digest);
    struct tierce_fingerprint_opts opts = {.size = sizeof(opts),
                                           .cache_dir = cache,
                                           .progress = release_other,
                                           .progress_arg = &other};
    ck_assert_int_eq(tierce__weights_fingerprint(text, model, &opts, 0), 0);
    ck_assert_int_eq(other.go, -1);
    fingerprint(expected, NULL);
    ck_assert_str_ne(text, expected);
    ck_assert_uint_eq(fingerprint(expected, cache), 0);
    ck_assert_str_eq(text, expected);
    end_other(&other, 0);
}
END_TEST

START_TEST(a_process_that_ended_or_failed_is_not_waited_for)
{
    char text[65], expected[65];
    make_model();
    fingerprint(expected, NULL);
    struct other other = start_other(NULL);
    ck_assert_int_eq(kill(other.pid, SIGKILL), 0);
    end_other(&other, SIGKILL);
    ck_assert_uint_eq(fingerprint(text, cache), 24);
    ck_assert_str_eq(text, expected);
    temp_folder_remove(cache);
    other = start_other(NULL); /* it does not remember what it read */
    struct tierce_fingerprint_opts opts = {.size = sizeof(opts),
                                           .cache_dir = cache,
                                           .progress = release_other,
                                           .progress_arg = &other};
    ck_assert_int_eq(tierce__weights_fingerprint(text, model, &opts, 0), 0);
    ck_assert_str_eq(text, expected);
    end_other(&other, 0);
}
END_TEST

START_TEST(a_process_that_is_stopped_delays_no_longer_than_reading)
{
    char text[65], expected[65];
    make_model();
    fingerprint(expected, NULL);
    struct other other = start_other(NULL);
    uint64_t began = tierce__now_ns();
    ck_assert_uint_eq(fingerprint(text, cache), 24);
    ck_assert_uint_lt(tierce__now_ns() - began, 20000 * TIERCE__MS_NS);
    ck_assert_str_eq(text, expected);
    ck_assert_int_eq(kill(other.pid, SIGKILL), 0);
    end_other(&other, SIGKILL);
}
END_TEST

/* Stands before the C library's: it cannot open the files of this name. */
static const char *unreadable;

int openat(int fd, const char *name, int flags, ...)
{
    if (unreadable != NULL && strcmp(name, unreadable) == 0) {
        errno = EACCES;
        return -1;
    }
    va_list args;
    va_start(args, flags);
    int mode = (flags & O_CREAT) != 0 ? va_arg(args, int) : 0;
    va_end(args);
    return (int)syscall(SYS_openat, fd, name, flags, mode);
}

/* Enough files for all readers. */
START_TEST(an_error_of_one_reader_is_that_of_all)
{
    char text[65] = "untouched", name[32];
    uint64_t read;
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "%02d.safetensors", i);
        write_file(model, name, "weights");
    }
    unreadable = "20.safetensors";
    ck_assert_int_eq(fingerprint_at(text, model, cache, &read), -EACCES);
    ck_assert_str_eq(text, "untouched");
    unreadable = NULL;
    ck_assert_int_eq(fingerprint_at(text, model, cache, &read), 0);
    ck_assert_uint_lt(read, 40 * strlen("weights")); /* the others are remembered */
    ck_assert_uint_eq(fingerprint(text, cache), 0);
}
END_TEST

START_TEST(arguments_are_checked)
{
    char text[65];
    struct tierce_fingerprint_opts opts = {.size = 1};
    ck_assert_int_eq(tierce_weights_fingerprint(text, model, &opts), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce_weights_fingerprint(text, NULL, NULL), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce_weights_fingerprint(NULL, model, NULL), TIERCE_E_ARGUMENT);
}
END_TEST

START_TEST(every_failed_allocation_is_reported)
{
    uint64_t live = tierce__alloc_live(), read;
    make_model();
    for (uint64_t nth = 1;; nth++) {
        char text[65] = "untouched";
        ck_assert_uint_lt(nth, 20);
        tierce__alloc_fail_nth(nth);
        int rc = fingerprint_at(text, model, cache, &read);
        tierce__alloc_fail_nth(0);
        ck_assert_uint_eq(tierce__alloc_live(), live);
        if (rc == 0)
            break;
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_str_eq(text, "untouched");
    }
}
END_TEST

CHECK_MAIN("fingerprint", .seconds = 30, .setup = make_root, .teardown = remove_root,
           .tests = {the_format_is_as_written_down, files_are_taken_by_name,
                     every_byte_and_name_counts, other_formats_count_where_there_is_no_safetensors,
                     the_cache_saves_reading, what_has_just_changed_is_not_remembered,
                     an_entry_is_synced_before_it_has_its_name_and_after,
                     a_damaged_or_hostile_cache_is_ignored,
                     a_cache_folder_that_others_may_write_is_not_used, links_lead_to_their_targets,
                     large_files_report_progress, a_file_that_changes_while_it_is_read_has_none,
                     a_file_that_another_process_reads_is_not_read_twice,
                     a_process_that_ended_or_failed_is_not_waited_for,
                     a_process_that_is_stopped_delays_no_longer_than_reading,
                     an_error_of_one_reader_is_that_of_all, arguments_are_checked,
                     every_failed_allocation_is_reported})
