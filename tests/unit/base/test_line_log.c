/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log/line_log.h"
#include "base/log/log.h"
#include "check_main.h"
#include "wait_for.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], path[96], why[256];
static struct tierce__line_log *line_log;
static atomic_uint failures;

static void note_failure(void *arg, enum tierce_log_level level, const char *event,
                         const char *detail)
{
    (void)arg;
    (void)level;
    if (strcmp(event, "lost") == 0 && strstr(detail, path) != NULL)
        atomic_fetch_add(&failures, 1);
}

static void set_up(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/x.log", folder);
    tierce_set_log_fn(note_failure, NULL, TIERCE_LOG_WARN);
}

static void tear_down(void)
{
    tierce__line_log_close(line_log);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
    temp_folder_remove(folder);
}

static int open_log(struct tierce__line_log_opts opts)
{
    opts.size = sizeof(opts);
    opts.failure = "lost";
    return tierce__line_log_open(&line_log, &opts, why);
}

static void close_log(void)
{
    tierce__line_log_close(line_log);
    line_log = NULL;
}

static void add(const char *text)
{
    struct tierce__line line = {0};
    tierce__line_put(&line, text);
    tierce__line_end(&line, line_log);
    ck_assert_ptr_null(line.text);
}

/* The content of the file with a suffix; NULL: there is none. */
static const char *content(const char *suffix)
{
    static char text[4096];
    char name[112];
    snprintf(name, sizeof(name), "%s%s", path, suffix);
    FILE *file = fopen(name, "r");
    if (file == NULL)
        return NULL;
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    return text;
}

static uint64_t dropped(void)
{
    uint64_t lines, count;
    tierce__line_log_counts(line_log, &lines, &count);
    return count;
}

/* The file is read once: it may be renamed between two looks. */
static bool file_holds(const char *suffix, const char *wanted)
{
    const char *text = content(suffix);
    return text != NULL && strcmp(text, wanted) == 0;
}

START_TEST(files_are_rotated_before_they_are_too_large)
{
    ck_assert_int_eq(
        open_log((struct tierce__line_log_opts){.path = path, .file_bytes_max = 6, .files = 2}), 0);
    static const char *const wanted[] = {"a\n", "a\nbb\n", "ccc\n", "dddd\n", "e\n"};
    static const char *const added[] = {"a", "bb", "ccc", "dddd", "e"};
    for (int i = 0; i < 5; i++) {
        add(added[i]);
        WAIT_FOR(file_holds("", wanted[i]));
    }
    ck_assert_str_eq(content(".1"), "dddd\n");
    ck_assert_str_eq(content(".2"), "ccc\n");
    ck_assert_ptr_null(content(".3"));
    close_log();
    ck_assert_int_eq(open_log((struct tierce__line_log_opts){.path = path}), 0);
    add("f");
    close_log();
    ck_assert_str_eq(content(""), "e\nf\n");
    ck_assert_uint_eq(failures, 0);
}
END_TEST

/* An operator has moved the file: the next rotation begins a new one. */
START_TEST(a_file_that_was_moved_is_made_again)
{
    char moved[112];
    snprintf(moved, sizeof(moved), "%s.moved", path);
    ck_assert_int_eq(open_log((struct tierce__line_log_opts){.path = path, .file_bytes_max = 16}),
                     0);
    add("first");
    uint64_t give_up = tierce__deadline_in_ms(30000);
    struct stat st;
    while ((stat(path, &st) != 0 || st.st_size == 0) && tierce__now_ns() < give_up)
        usleep(1000);
    ck_assert_int_eq(rename(path, moved), 0);
    add("0123456789abcdef");
    close_log();
    ck_assert_str_eq(content(""), "0123456789abcdef\n");
    ck_assert_str_eq(content(".moved"), "first\n");
}
END_TEST

START_TEST(lines_are_written_together)
{
    ck_assert_int_eq(open_log((struct tierce__line_log_opts){
                         .path = path, .queue_bytes_max = 20, .wait_ms = 600000}),
                     0);
    add("1234");
    usleep(20000);
    ck_assert_str_eq(content(""), "");
    add("5678");
    WAIT_FOR(file_holds("", "1234\n5678\n"));
    add("9");
    close_log();
    ck_assert_str_eq(content(""), "1234\n5678\n9\n");
}
END_TEST

/* A folder has the name of the rotated file, so that the file cannot be rotated. */
START_TEST(what_cannot_be_written_is_counted)
{
    char rotated[112];
    snprintf(rotated, sizeof(rotated), "%s.1", path);
    ck_assert_int_eq(
        open_log((struct tierce__line_log_opts){.path = path, .file_bytes_max = 6, .files = 1}), 0);
    add("12345");
    WAIT_FOR(file_holds("", "12345\n"));
    ck_assert_int_eq(mkdir(rotated, 0700), 0);
    add("6");
    WAIT_FOR(dropped() == 1);
    add("7");
    WAIT_FOR(dropped() == 2);
    ck_assert_uint_eq(failures, 1);
    ck_assert_int_eq(rmdir(rotated), 0);
    add("8");
    WAIT_FOR(file_holds("", "8\n"));
    ck_assert(file_holds(".1", "12345\n"));
    ck_assert_uint_eq(dropped(), 2);
    ck_assert_int_eq(unlink(rotated), 0);
    ck_assert_int_eq(mkdir(rotated, 0700), 0);
    add("12345");
    WAIT_FOR(dropped() == 3);
    ck_assert_uint_eq(failures, 2);
}
END_TEST

/* A subscriber that keeps the thread until it may go on. */
struct reader {
    atomic_bool waits, has_begun, has_ended;
    atomic_uint lines;
};

static bool read_lines(void *arg, const char *lines, size_t bytes)
{
    struct reader *reader = arg;
    if (lines == NULL) {
        atomic_store(&reader->has_ended, true);
        return false;
    }
    if (bytes > 0 && lines[bytes - 1] != '\n')
        abort();
    for (size_t i = 0; i < bytes; i++)
        atomic_fetch_add(&reader->lines, lines[i] == '\n');
    atomic_store(&reader->has_begun, bytes > 0 || reader->has_begun);
    while (bytes > 0 && atomic_load(&reader->waits))
        usleep(1000);
    return atomic_load(&reader->lines) < 4;
}

START_TEST(what_does_not_fit_is_counted)
{
    struct reader reader = {.waits = true}, other = {.waits = false};
    uint64_t lines, count;
    ck_assert_int_eq(open_log((struct tierce__line_log_opts){.queue_bytes_max = 8}), 0);
    ck_assert(!tierce__line_log_is_read(line_log));
    add("nobody");
    ck_assert_int_eq(tierce__line_log_subscribe(line_log, read_lines, &reader), 0);
    ck_assert_int_eq(tierce__line_log_subscribe(line_log, read_lines, &other), 0);
    ck_assert(tierce__line_log_is_read(line_log));
    add("1");
    WAIT_FOR(atomic_load(&reader.has_begun));
    add("234");
    add("567");
    add("8"); /* too many */
    ck_assert(!tierce__line_log_add(line_log, "much too long\n", 14));
    struct tierce__line no_memory = {.failed = true};
    tierce__line_end(&no_memory, line_log);
    tierce__line_log_counts(line_log, &lines, &count);
    ck_assert_uint_eq(lines, 6);
    ck_assert_uint_eq(count, 3);
    atomic_store(&reader.waits, false);
    WAIT_FOR(atomic_load(&other.lines) == 3);
    add("9"); /* the fourth one, after which both end */
    WAIT_FOR(!tierce__line_log_is_read(line_log));
    ck_assert(!atomic_load(&reader.has_ended));
    ck_assert_uint_eq(dropped(), 3);
    struct reader last = {.waits = false};
    ck_assert_int_eq(tierce__line_log_subscribe(line_log, read_lines, &last), 0);
    tierce__line_log_end_subscribers(line_log);
    WAIT_FOR(atomic_load(&last.has_ended));
}
END_TEST

START_TEST(a_file_of_one_log_alone)
{
    struct tierce__line_log *other = NULL;
    struct tierce__line_log_opts opts = {
        .size = sizeof(opts), .path = path, .is_alone = true, .failure = "lost"};
    struct stat st;
    int fd = open(path, O_CREAT | O_WRONLY, 0644);
    ck_assert_int_eq(write(fd, "half", 4), 4);
    close(fd);
    ck_assert_int_eq(open_log(opts), 0);
    ck_assert_int_eq(tierce__line_log_open(&other, &opts, why), -EBUSY);
    ck_assert_ptr_nonnull(strstr(why, path));
    add("whole");
    close_log();
    ck_assert_str_eq(content(""), "half\nwhole\n");
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    ck_assert_int_eq(
        open_log((struct tierce__line_log_opts){.path = "/dev/null", .is_alone = true}), -EINVAL);
    ck_assert_int_eq(open_log((struct tierce__line_log_opts){.path = "/dev/null"}), 0);
    close_log();
    ck_assert_int_eq(open_log((struct tierce__line_log_opts){.path = folder}), -EISDIR);
}
END_TEST

START_TEST(torture_allocations)
{
    int rc = -ENOMEM;
    uint64_t nth = 1;
    for (; rc != 0; nth++) {
        tierce__alloc_fail_nth(nth);
        rc = open_log((struct tierce__line_log_opts){.path = path});
        tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
        ck_assert_uint_eq(tierce__alloc_live() > 0, rc == 0);
    }
    ck_assert_uint_gt(nth, 4);
}
END_TEST

CHECK_MAIN("line_log", .seconds = 60, .setup = set_up, .teardown = tear_down,
           .tests = {files_are_rotated_before_they_are_too_large, lines_are_written_together,
                     a_file_that_was_moved_is_made_again, what_cannot_be_written_is_counted,
                     what_does_not_fit_is_counted, a_file_of_one_log_alone, torture_allocations})
