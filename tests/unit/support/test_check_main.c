/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "check_main.h"
#include "log_record.h"
#include "temp_folder.h"
#include "wait_for.h"

#include <fcntl.h>
#include <sys/stat.h>

/* The program runs itself with the name of a suite and a folder, and looks at what it did. */

static const char *place; /* the folder, in the inner program */
static char folder[64];

/* ---- the suites inside ---- */

static void leave_folder(void)
{
    char path[128], file[160];
    snprintf(path, sizeof(path), "%s/XXXXXX", place);
    temp_folder_make(path);
    snprintf(file, sizeof(file), "%s/sub", path);
    ck_assert_int_eq(mkdir(file, 0700), 0);
    snprintf(file, sizeof(file), "%s/sub/file", path);
    ck_assert_int_ge(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600), 0);
}

START_TEST(leaves_a_folder)
{
    leave_folder();
}
END_TEST

START_TEST(crashes_with_a_folder)
{
    leave_folder();
    abort();
}
END_TEST

START_TEST(fails_with_a_folder)
{
    leave_folder();
    ck_abort();
}
END_TEST

START_TEST(removes_its_folders)
{
    for (int i = 0; i <= TEMP_FOLDERS_MAX; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/XXXXXX", place);
        temp_folder_make(path);
        temp_folder_remove(path);
        ck_assert_int_ne(access(path, F_OK), 0);
    }
    temp_folder_remove("");
}
END_TEST

/* Folders that cannot be made take no place in the table. */
START_TEST(fails_to_make_folders)
{
    char path[128], none[160], long_name[300];
    memset(long_name, 'x', sizeof(long_name));
    long_name[sizeof(long_name) - 1] = '\0';
    for (int i = 0; i < TEMP_FOLDERS_MAX; i++) {
        snprintf(none, sizeof(none), "%s/none/XXXXXX", place);
        ck_assert(!temp_folder_try_make(none));
        ck_assert_int_eq(errno, ENOENT);
        ck_assert(!temp_folder_try_make(long_name));
        ck_assert_int_eq(errno, ENAMETOOLONG);
    }
    snprintf(path, sizeof(path), "%s/XXXXXX", place);
    temp_folder_make(path);
    temp_folder_remove(path);
}
END_TEST

START_TEST(waits_in_vain)
{
    WAIT_WITHIN(1, getpid() == 0);
}
END_TEST

START_TEST(waits)
{
    int looks = 0;
    WAIT_FOR(++looks == 3);
    ck_assert_int_eq(looks, 3);
}
END_TEST

/* Adds a letter to the file that the outer program reads. */
static void mark(char letter)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/marks", place);
    int fd = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, &letter, 1), 1);
    close(fd);
}

static void mark_begin(void)
{
    mark('(');
}

static void mark_end(void)
{
    mark(')');
}

START_TEST(marks)
{
    mark('t');
}
END_TEST

START_TEST(marks_its_number)
{
    mark((char)('0' + _i));
}
END_TEST

START_TEST(marks_and_panics)
{
    mark('p');
    abort();
}
END_TEST

static int run_inside(const char *name)
{
    if (strcmp(name, "leaves") == 0)
        return CHECK_RUN("leaves", .tests = {leaves_a_folder});
    if (strcmp(name, "crashes") == 0)
        return CHECK_RUN("crashes", .tests = {crashes_with_a_folder});
    if (strcmp(name, "crashes at once") == 0)
        return CHECK_RUN("crashes", .at_once = true,
                         .tests = {crashes_with_a_folder, fails_with_a_folder});
    if (strcmp(name, "removes") == 0)
        return CHECK_RUN("removes", .seconds = 60, .tests = {removes_its_folders});
    if (strcmp(name, "fails") == 0)
        return CHECK_RUN("fails", .seconds = 60, .tests = {fails_to_make_folders});
    if (strcmp(name, "waits") == 0)
        return CHECK_RUN("waits", .tests = {waits});
    if (strcmp(name, "waits in vain") == 0)
        return CHECK_RUN("waits", .tests = {waits_in_vain});
    if (strcmp(name, "nothing") == 0)
        return CHECK_RUN("nothing", .tests = {NULL});
    if (strcmp(name, "no panic") == 0)
        return CHECK_RUN("no panic", .panics = {marks});
    return CHECK_RUN("marks", .at_once = strcmp(name, "marks at once") == 0, .setup = mark_begin,
                     .teardown = mark_end, .tests = {NULL, marks}, .panics = {marks_and_panics},
                     .loops = {{marks_its_number, 2, 5}});
}

/* ---- what they leave behind ---- */

static void setup(void)
{
    strcpy(folder, "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
}

static void teardown(void)
{
    temp_folder_remove(folder);
}

static bool passes(const char *name)
{
    int status;
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        unsetenv("CK_RUN_CASE");
        unsetenv("CK_FORK");
        close(STDOUT_FILENO); /* so that its failures are not taken for ours */
        open("/dev/null", O_WRONLY);
        execl("/proc/self/exe", "inside", name, folder, (char *)NULL);
        _exit(127);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) != 127);
    return WEXITSTATUS(status) == EXIT_SUCCESS;
}

static void check_empty(void)
{
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
}

START_TEST(folders_are_removed_however_a_test_ends)
{
    ck_assert(passes("leaves"));
    check_empty();
    ck_assert(!passes("crashes"));
    check_empty();
    ck_assert(!passes("crashes at once"));
    check_empty();
    ck_assert(passes("removes"));
    check_empty();
    ck_assert(passes("fails"));
    check_empty();
}
END_TEST

START_TEST(a_wait_ends_with_its_condition_or_fails)
{
    ck_assert(passes("waits"));
    ck_assert(!passes("waits in vain"));
}
END_TEST

START_TEST(recorded_lines_are_counted_by_event_and_text)
{
    record_log(TIERCE_LOG_WARN);
    ck_assert_uint_eq(recorded(""), 0);
    ck_assert_str_eq(last_recorded(), "");
    tierce__log(TIERCE_LOG_WARN, "lost", "tier=%s", "disk");
    tierce__log(TIERCE_LOG_WARN, "lost_again", "tier=%s", "store");
    tierce__log(TIERCE_LOG_INFO, "lost", "tier=%s", "disk");
    ck_assert_uint_eq(recorded("lost"), 1);
    ck_assert_uint_eq(recorded_with("lost", "disk"), 1);
    ck_assert_uint_eq(recorded_with("lost", "store"), 0);
    ck_assert_uint_eq(recorded_with("", "tier="), 2);
    ck_assert_str_eq(last_recorded(), "lost_again");
    ck_assert_str_eq(recorded_text(), "lost tier=disk\nlost_again tier=store\n");
    forget_recorded();
    ck_assert_uint_eq(recorded(""), 0);
}
END_TEST

/* Returns how often the letter was marked. */
static int marked(char letter)
{
    char path[96], text[64] = "";
    int count = 0;
    snprintf(path, sizeof(path), "%s/marks", folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ge(read(fd, text, sizeof(text) - 1), 0);
    close(fd);
    for (const char *at = text; *at != '\0'; at++)
        count += *at == letter;
    return count;
}

/* `_i`: 0: in turn, 1: at once. */
START_TEST(every_test_of_a_list_runs_once)
{
    ck_assert(passes(_i == 0 ? "marks in turn" : "marks at once"));
    for (const char *once = "t234p"; *once != '\0'; once++)
        ck_assert_int_eq(marked(*once), 1);
    ck_assert_int_eq(marked('5'), 0);
    ck_assert_int_eq(marked('('), 5);
    ck_assert_int_eq(marked(')'), 4); /* not after the panic */
}
END_TEST

START_TEST(a_list_that_is_not_right_fails)
{
    ck_assert(!passes("nothing"));
    ck_assert(!passes("no panic"));
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 3) {
        place = argv[2];
        return run_inside(argv[1]);
    }
    return CHECK_RUN(
        "check_main", .seconds = 60, .setup = setup, .teardown = teardown,
        .tests = {folders_are_removed_however_a_test_ends, a_wait_ends_with_its_condition_or_fails,
                  recorded_lines_are_counted_by_event_and_text, a_list_that_is_not_right_fails},
        .loops = {{every_test_of_a_list_runs_once, 0, 2}});
}
