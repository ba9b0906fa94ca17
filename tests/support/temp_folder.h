/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_TEMP_FOLDER_H
#define TIERCE_TESTS_TEMP_FOLDER_H

#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

/*
 * Folders of tests. A test that fails, crashes or takes too long does not remove its folders, so
 * the process that runs the tests removes them after the last test. Both share a table of them.
 */
enum { TEMP_FOLDERS_MAX = 1024 };

/* Called by the process that runs the tests: before it forks the first, and after the last. close
 * removes the folders that tests have left. False: a folder stays, or there was no table. */
void temp_folders_open(void);
bool temp_folders_close(void);

/* As below, but they return false on failure. */
bool temp_folder_try_make(char *path);
bool temp_folder_try_remove(const char *path);

/* Makes a folder. Its name ends with XXXXXX, which is replaced as mkdtemp does it. */
static inline void temp_folder_make(char *path)
{
    ck_assert_msg(temp_folder_try_make(path), "%s: %s", path, strerror(errno));
}

/* Removes a folder, if it exists, and all that is in it. An empty name is none. */
static inline void temp_folder_remove(const char *path)
{
    ck_assert_msg(temp_folder_try_remove(path), "%s cannot be removed", path);
}

#endif
