/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_NIXL_HERE_H
#define TIERCE_TESTS_NIXL_HERE_H

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

/* The path of NIXL's C library in the Python of the tests (tools/requirements-test.txt), or NULL.
 */
static inline const char *nixl_library(void)
{
    static char path[512];
    char pattern[600];
    glob_t found;
    const char *venv = getenv("TIERCE_VENV");
    snprintf(pattern, sizeof(pattern),
             "%s/lib/python3*/site-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so",
             venv != NULL ? venv : TIERCE_TEST_VENV);
    if (glob(pattern, 0, NULL, &found) != 0)
        return NULL;
    snprintf(path, sizeof(path), "%s", found.gl_pathv[0]);
    globfree(&found);
    return path;
}

#endif
