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

/* The exit status for a suite that has run and is freed. A run without a test is a failure. */
static inline int check_main_end(SRunner *runner)
{
    int failed = srunner_ntests_failed(runner), run = srunner_ntests_run(runner);
    if (run == 0)
        fprintf(stderr, "no test has run\n");
    srunner_free(runner);
    return failed == 0 && run > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Runs a suite in fork mode and turns its result into the exit status of the program. */
static inline int check_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    return check_main_end(runner);
}

static inline int check_tests(const char *name, double seconds, const TTest *const *tests,
                              size_t count)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    if (seconds > 0)
        tcase_set_timeout(tcase, seconds);
    for (size_t i = 0; i < count; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}

/* The same for the tests that are named, each with a time limit (0: Check's):
 * return CHECK_TESTS("threads", 60, first, second); */
#define CHECK_TESTS(name, seconds, ...)                                                            \
    check_tests(name, seconds, (const TTest *const[]){__VA_ARGS__},                                \
                sizeof((const TTest *const[]){__VA_ARGS__}) / sizeof(TTest *))

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
    SRunner *runner = srunner_create(choice->make());
    srunner_run_all(runner, CK_SILENT);
    if (srunner_ntests_failed(runner) > 0)
        srunner_print(runner, CK_ENV);
    return check_main_end(runner);
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
    SRunner *runner = srunner_create(make());
    if (getenv("CK_RUN_CASE") != NULL || getenv("CK_FORK") != NULL) {
        srunner_run_all(runner, CK_ENV);
        return check_main_end(runner);
    }
    size_t count = choice->seen, failed;
    srunner_free(runner);
    failed = check_at_once(check_run_one, count);
    printf("%zu tests, %d at once, %zu failed\n", count, CHECK_AT_ONCE, failed);
    return failed == 0 && count > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
