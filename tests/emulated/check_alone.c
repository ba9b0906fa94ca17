/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of Check that tests of kernels call, for programs of another machine: the package
 * of Check has its header for every machine, but its library for this one alone. All tests run in
 * one process, and the first failure ends it.
 */
#include <check.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { TESTS_MAX = 128 };

struct TCase {
    const char *name;
    SFun setup, teardown;
    struct {
        const TTest *test;
        int begin, end;
    } tests[TESTS_MAX];
    size_t count;
};

/* A program has one suite with one test case. */
static struct TCase the_case;
static struct Suite {
    const char *name;
} the_suite;
static struct SRunner {
    int run;
} the_runner;
static const TTest *current;

static _Noreturn void give_up(const char *text)
{
    fprintf(stderr, "%s: %s\n", the_suite.name, text);
    exit(EXIT_FAILURE);
}

Suite *suite_create(const char *name)
{
    the_suite.name = name;
    return &the_suite;
}

TCase *tcase_create(const char *name)
{
    if (the_case.name != NULL)
        give_up("a second test case; check_alone.c has room for one");
    the_case.name = name;
    return &the_case;
}

void suite_add_tcase(Suite *suite, TCase *tcase)
{
    (void)suite;
    (void)tcase;
}

void tcase_set_timeout(TCase *tcase, double timeout)
{
    (void)tcase;
    (void)timeout; /* the test runner has one */
}

void tcase_add_checked_fixture(TCase *tcase, SFun setup, SFun teardown)
{
    tcase->setup = setup;
    tcase->teardown = teardown;
}

void tcase_add_unchecked_fixture(TCase *tcase, SFun setup, SFun teardown)
{
    (void)tcase;
    (void)setup;
    (void)teardown;
    give_up("an unchecked fixture; check_alone.c has none");
}

void _tcase_add_test(TCase *tcase, const TTest *test, int signal, int exit_value, int begin,
                     int end)
{
    if (signal != 0 || exit_value != 0)
        give_up("a test that must end its process; check_alone.c has one process for all");
    if (tcase->count == TESTS_MAX)
        give_up("more tests than check_alone.c has room for");
    tcase->tests[tcase->count].test = test;
    tcase->tests[tcase->count].begin = begin;
    tcase->tests[tcase->count].end = end;
    tcase->count++;
}

SRunner *srunner_create(Suite *suite)
{
    (void)suite;
    return &the_runner;
}

void srunner_run_all(SRunner *runner, enum print_output output)
{
    (void)output;
    for (size_t k = 0; k < the_case.count; k++) {
        current = the_case.tests[k].test;
        for (int i = the_case.tests[k].begin; i < the_case.tests[k].end; i++) {
            if (the_case.setup != NULL)
                the_case.setup();
            current->fn(i);
            if (the_case.teardown != NULL)
                the_case.teardown();
            runner->run++;
        }
    }
    printf("%s: %d tests passed\n", the_suite.name, runner->run);
}

int srunner_ntests_failed(SRunner *runner)
{
    (void)runner;
    return 0; /* a failure has ended the process */
}

int srunner_ntests_run(SRunner *runner)
{
    return runner->run;
}

void srunner_print(SRunner *runner, enum print_output output)
{
    (void)runner;
    (void)output;
}

void srunner_free(SRunner *runner)
{
    (void)runner;
}

void _mark_point(const char *file, int line)
{
    (void)file;
    (void)line;
}

void _ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...)
{
    va_list args;
    fprintf(stderr, "%s:%d: %s: %s", file, line, current->name, expr);
    if (msg != NULL) {
        fprintf(stderr, ": ");
        va_start(args, msg);
        vfprintf(stderr, msg, args);
        va_end(args);
    }
    fprintf(stderr, "\n");
    exit(EXIT_FAILURE);
}
