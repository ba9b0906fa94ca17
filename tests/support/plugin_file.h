/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_PLUGIN_FILE_H
#define TIERCE_TESTS_PLUGIN_FILE_H

#include "check_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* A shared object, or a file of Python, in a folder of a test's own, which nobody else may write.
 */

struct plugin_file {
    char folder[40], path[64];
};

static inline void plugin_file_make(struct plugin_file *file, const char *from)
{
    char command[512];
    snprintf(file->folder, sizeof(file->folder), "/tmp/tierce-plugin-XXXXXX");
    temp_folder_make(file->folder);
    size_t bytes = strlen(from);
    bool is_python = bytes > 3 && strcmp(from + bytes - 3, ".py") == 0;
    snprintf(file->path, sizeof(file->path), "%s/%s", file->folder,
             is_python ? "store.py" : "plugin.so");
    snprintf(command, sizeof(command), "cp '%s' %s", from, file->path);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(chmod(file->path, 0644), 0);
}

static inline void plugin_file_remove(const struct plugin_file *file)
{
    unlink(file->path);
    temp_folder_remove(file->folder);
}

#endif
