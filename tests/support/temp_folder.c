/* SPDX-License-Identifier: Apache-2.0 */
#include "temp_folder.h"

#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct folder {
    atomic_bool taken;
    char path[128];
};

static struct folder *table;

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static bool remove_tree(const char *path)
{
    return nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 || access(path, F_OK) != 0;
}

void temp_folders_open(void)
{
    void *shared = mmap(NULL, TEMP_FOLDERS_MAX * sizeof(*table), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    table = shared != MAP_FAILED ? (struct folder *)shared : NULL;
}

bool temp_folders_close(void)
{
    bool all = table != NULL;
    for (size_t i = 0; table != NULL && i < TEMP_FOLDERS_MAX; i++) {
        if (table[i].path[0] != '\0' && !remove_tree(table[i].path)) {
            fprintf(stderr, "%s cannot be removed\n", table[i].path);
            all = false;
        }
    }
    if (table != NULL)
        munmap(table, TEMP_FOLDERS_MAX * sizeof(*table));
    table = NULL;
    return all;
}

bool temp_folder_try_make(char *path)
{
    size_t i = 0, bytes = strlen(path) + 1;
    errno = bytes > sizeof(table->path) ? ENAMETOOLONG : ENOSPC;
    if (table == NULL || bytes > sizeof(table->path))
        return false;
    while (i < TEMP_FOLDERS_MAX && atomic_exchange(&table[i].taken, true))
        i++;
    if (i == TEMP_FOLDERS_MAX)
        return false;
    if (mkdtemp(path) == NULL) {
        atomic_store(&table[i].taken, false);
        return false;
    }
    memcpy(table[i].path, path, bytes);
    return true;
}

bool temp_folder_try_remove(const char *path)
{
    if (path[0] == '\0')
        return true;
    if (!remove_tree(path))
        return false;
    for (size_t i = 0; table != NULL && i < TEMP_FOLDERS_MAX; i++) {
        if (strcmp(table[i].path, path) == 0) {
            table[i].path[0] = '\0';
            atomic_store(&table[i].taken, false);
        }
    }
    return true;
}
