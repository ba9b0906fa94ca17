/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CHECK_MAIN_H
#define TIERCE_TESTS_CHECK_MAIN_H

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "temp_folder.h"

/*
 * Check writes the place of every assertion that passes to a file, under a lock: most of the time
 * of a test with a loop, and an order between threads that hides races from the thread sanitizer.
 * Here a place is written the first time only. A process that crashes or hangs is reported with the
 * last checkpoint that it reached.
 */
#define CHECK_PASSED()                                                                             \
    __extension__({                                                                                \
        static atomic_bool is_told;                                                                \
        if (!atomic_load_explicit(&is_told, memory_order_relaxed)) {                               \
            atomic_store_explicit(&is_told, true, memory_order_relaxed);                           \
            _mark_point(__FILE__, __LINE__);                                                       \
        }                                                                                          \
    })
#undef ck_assert_msg
#define ck_assert_msg(expr, ...)                                                                   \
    ((expr)                                                                                        \
         ? CHECK_PASSED()                                                                          \
         : _ck_assert_failed(__FILE__, __LINE__, "Assertion '" #expr "' failed", ##__VA_ARGS__))

/* Runs a suite and turns its result into the exit status of the program. A run without a test, and
 * a folder that cannot be removed, are failures. */
static inline int check_run_suite(Suite *suite, enum print_output output)
{
    SRunner *runner = srunner_create(suite);
    temp_folders_open();
    srunner_run_all(runner, output);
    int failed = srunner_ntests_failed(runner), run = srunner_ntests_run(runner);
    if (output == CK_SILENT && failed > 0)
        srunner_print(runner, CK_ENV);
    if (run == 0)
        fprintf(stderr, "no test has run\n");
    srunner_free(runner);
    return temp_folders_close() && failed == 0 && run > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Runs a suite in fork mode and turns its result into the exit status of the program. */
static inline int check_main(Suite *suite)
{
    return check_run_suite(suite, CK_ENV);
}

/* ---- several at once ------------------------------------------------------------------------- */

enum { CHECK_AT_ONCE = 4 };

/* A report for each process, where a file was named for one. */
static inline void check_name_report(size_t index)
{
    const char *name = getenv("CK_XML_LOG_FILE_NAME");
    char path[1024];
    if (name == NULL || snprintf(path, sizeof(path), "%s-%zu.xml", name, index) < 0)
        return;
    setenv("CK_XML_LOG_FILE_NAME", path, 1);
}

/*
 * Calls run(0) to run(count - 1), each in a process of its own that begins here, CHECK_AT_ONCE at
 * the same time. A run ends with this process. Returns how many have not ended with 0.
 */
static inline size_t check_at_once(int (*run)(size_t index), size_t count)
{
    size_t next = 0, running = 0, failed = 0;
    int status;
    while (next < count || running > 0) {
        if (next < count && running < CHECK_AT_ONCE) {
            fflush(NULL); /* otherwise both processes would write it */
            pid_t pid = fork();
            if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGTERM);
                check_name_report(next);
                exit(run(next));
            }
            if (pid > 0)
                running++;
            else
                failed++;
            next++;
        } else if (wait(&status) > 0) {
            running--;
            failed += !WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS;
        } else if (errno != EINTR) {
            return failed + running;
        }
    }
    return failed;
}

/* Which of the tests that are added this process runs: all, or one of them. */
struct check_choice {
    bool is_one;
    size_t index, seen;
    Suite *(*make)(void);
};

static inline struct check_choice *check_choice(void)
{
    static struct check_choice choice;
    return &choice;
}

/* Replaces Check's function, which all its macros that add tests call. */
static inline void check_add_test(TCase *tcase, const TTest *test, int signal, int exit_value,
                                  int start, int end)
{
    struct check_choice *choice = check_choice();
    for (int i = start; i < end; i++, choice->seen++) {
        if (!choice->is_one || choice->seen == choice->index)
            _tcase_add_test(tcase, test, signal, exit_value, i, i + 1);
    }
}
#define _tcase_add_test check_add_test

static inline int check_run_one(size_t index)
{
    struct check_choice *choice = check_choice();
    *choice = (struct check_choice){.is_one = true, .index = index, .make = choice->make};
    return check_run_suite(choice->make(), CK_SILENT);
}

/*
 * Runs the tests of a suite in parallel, CHECK_AT_ONCE at a time: for programs whose tests mostly
 * wait. Each test must have its own servers, ports and folders. `make` is called in each process
 * and adds the same tests in the same order every time; those that take longest come first. All run
 * in turn where CK_RUN_CASE names a test case or CK_FORK is set. Returns the exit status of the
 * program.
 */
static inline int check_main_at_once(Suite *(*make)(void))
{
    struct check_choice *choice = check_choice();
    *choice = (struct check_choice){.make = make};
    Suite *suite = make();
    if (getenv("CK_RUN_CASE") != NULL || getenv("CK_FORK") != NULL)
        return check_main(suite);
    size_t count = choice->seen, failed;
    srunner_free(srunner_create(suite));
    failed = check_at_once(check_run_one, count);
    printf("%zu tests, %d at once, %zu failed\n", count, CHECK_AT_ONCE, failed);
    return failed == 0 && count > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- programs that are a list of tests ------------------------------------------------------- */

enum { CHECK_NO_LIMIT = -1 };

#define CHECK_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A suite with one test case of the same name. NULL stands for a test that does not run here. */
struct check_suite {
    const char *name;
    double seconds; /* the time limit of each test; 0: Check's, or CHECK_NO_LIMIT */
    bool at_once;   /* the tests run in parallel: see check_main_at_once */
    void (*setup)(void), (*teardown)(void); /* before and after each test, in its process */
    void (*begin)(void), (*end)(void); /* once, in the process that forks the tests: a server that
                                          they share */
    struct {
        const TTest *test;
        int start, end;
    } loops[32]; /* each runs once for every _i from start to end - 1; they come first */
    const TTest *tests[128];
    const TTest *panics[16]; /* each must end with SIGABRT */
};

static inline const struct check_suite **check_suite(void)
{
    static const struct check_suite *suite;
    return &suite;
}

static inline Suite *check_make_suite(void)
{
    const struct check_suite *list = *check_suite();
    Suite *suite = suite_create(list->name);
    TCase *tcase = tcase_create(list->name);
    if (list->seconds != 0)
        tcase_set_timeout(tcase, list->seconds > 0 ? list->seconds : 0);
    if (list->setup != NULL || list->teardown != NULL)
        tcase_add_checked_fixture(tcase, list->setup, list->teardown);
    if (list->begin != NULL || list->end != NULL)
        tcase_add_unchecked_fixture(tcase, list->begin, list->end);
    for (size_t i = 0; i < CHECK_COUNT(list->loops); i++) {
        if (list->loops[i].test != NULL)
            tcase_add_loop_test(tcase, list->loops[i].test, list->loops[i].start,
                                list->loops[i].end);
    }
    for (size_t i = 0; i < CHECK_COUNT(list->tests); i++) {
        if (list->tests[i] != NULL)
            tcase_add_test(tcase, list->tests[i]);
    }
    for (size_t i = 0; i < CHECK_COUNT(list->panics); i++) {
        if (list->panics[i] != NULL)
            tcase_add_test_raise_signal(tcase, list->panics[i], SIGABRT);
    }
    suite_add_tcase(suite, tcase);
    return suite;
}

static inline int check_run(const struct check_suite *suite)
{
    *check_suite() = suite;
    return suite->at_once ? check_main_at_once(check_make_suite) : check_main(check_make_suite());
}

/* Runs the suite and returns the exit status of the program: for a main that does more. */
#define CHECK_RUN(...) check_run(&(const struct check_suite){__VA_ARGS__})

/*
 * Defines main, which runs the suite:
 *     CHECK_MAIN("threads", .seconds = 60, .tests = {first, second}, .loops = {{third, 0, 5}})
 */
#define CHECK_MAIN(...)                                                                            \
    int main(void)                                                                                 \
    {                                                                                              \
        return CHECK_RUN(__VA_ARGS__);                                                             \
    }

#endif
