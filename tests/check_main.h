/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CHECK_MAIN_H
#define TIERCE_TESTS_CHECK_MAIN_H

#include <check.h>
#include <stdlib.h>

/* Runs a suite in fork mode and turns its result into the exit status of the program. */
static inline int check_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
