/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_TEMP_FOLDER_H
#define TIERCE_TESTS_TEMP_FOLDER_H

#include <check.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * Folders of tests. A test that fails, crashes or takes too long does not remove its folders, so
 * the process that runs the tests removes them after the last test. Both share a table of them.
 */
enum { TEMP_FOLDERS_MAX = 1024, TEMP_FOLDER_PATH_MAX = 128 };

struct temp_folder {
    atomic_bool taken;
    char path[TEMP_FOLDER_PATH_MAX];
};

static inline struct temp_folder **temp_folders(void)
{
    static struct temp_folder *table;
    return &table;
}

static inline int temp_folder_remove_entry(const char *path, const struct stat *st, int type,
                                           struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

/* Removes a folder, if it exists, and all that is in it. False: something stays. */
static inline bool temp_folder_clear(const char *path)
{
    return nftw(path, temp_folder_remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 ||
           access(path, F_OK) != 0;
}

/* Call before a test is forked. */
static inline void temp_folders_open(void)
{
    void *table = mmap(NULL, TEMP_FOLDERS_MAX * sizeof(struct temp_folder), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *temp_folders() = table != MAP_FAILED ? (struct temp_folder *)table : NULL;
}

/* Removes the folders that tests have left. False: a folder stays, or there was no table. */
static inline bool temp_folders_close(void)
{
    struct temp_folder *table = *temp_folders();
    bool all = table != NULL;
    for (size_t i = 0; table != NULL && i < TEMP_FOLDERS_MAX; i++) {
        if (table[i].path[0] != '\0' && !temp_folder_clear(table[i].path)) {
            fprintf(stderr, "%s cannot be removed\n", table[i].path);
            all = false;
        }
    }
    if (table != NULL)
        munmap(table, TEMP_FOLDERS_MAX * sizeof(*table));
    *temp_folders() = NULL;
    return all;
}

/* Makes the folder whose name ends with XXXXXX, which is replaced as mkdtemp does it. */
static inline void temp_folder_make(char *path)
{
    struct temp_folder *table = *temp_folders();
    size_t i = 0;
    ck_assert_ptr_nonnull(table);
    ck_assert_uint_lt(strlen(path), TEMP_FOLDER_PATH_MAX);
    while (i < TEMP_FOLDERS_MAX && atomic_exchange(&table[i].taken, true))
        i++;
    ck_assert_uint_lt(i, TEMP_FOLDERS_MAX);
    ck_assert_ptr_nonnull(mkdtemp(path));
    strcpy(table[i].path, path);
}

/* Removes a folder of temp_folder_make, unless its name is empty. The test fails if it cannot. */
static inline void temp_folder_remove(const char *path)
{
    struct temp_folder *table = *temp_folders();
    if (path[0] == '\0')
        return;
    ck_assert_msg(temp_folder_clear(path), "%s cannot be removed", path);
    for (size_t i = 0; table != NULL && i < TEMP_FOLDERS_MAX; i++) {
        if (strcmp(table[i].path, path) == 0) {
            table[i].path[0] = '\0';
            atomic_store(&table[i].taken, false);
        }
    }
}

#endif
