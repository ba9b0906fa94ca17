/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_META_FOLDER_H
#define TIERCE_TESTS_META_FOLDER_H

#include "check_main.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A folder for one test's database. */

static char meta_folder[64];

static inline void meta_folder_make(void)
{
    snprintf(meta_folder, sizeof(meta_folder), "./test_meta.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(meta_folder));
}

static inline const char *meta_folder_path(void)
{
    return meta_folder;
}

static inline int meta_folder_unlink(const char *path, const struct stat *stat, int type,
                                     struct FTW *ftw)
{
    (void)stat;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void meta_folder_remove(void)
{
    nftw(meta_folder, meta_folder_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
