/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_META_FOLDER_H
#define TIERCE_TESTS_META_FOLDER_H

#include "check_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A folder for one test's database. */

static char meta_folder[64];

static inline void meta_folder_make(void)
{
    snprintf(meta_folder, sizeof(meta_folder), "./test_meta.XXXXXX");
    temp_folder_make(meta_folder);
}

static inline const char *meta_folder_path(void)
{
    return meta_folder;
}

static inline void meta_folder_remove(void)
{
    /* If a file system is mounted there, the process that runs the tests removes it. */
    (void)temp_folder_try_remove(meta_folder);
}

#endif
