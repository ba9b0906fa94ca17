/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/nixl/nixl_version.h"

#include <link.h>
#include <stdbool.h>
#include <string.h>

#define VERSION_TEXT "NIXL version: " /* the beginning of a line that the library logs */
#define FILE_NAME    "libnixl"        /* the beginning of the names of its libraries */

struct version_search {
    const char *folder;
    size_t folder_bytes;
    char *version;
};

/* The text behind VERSION_TEXT in a part of a loaded library. */
static bool find_version(char version[TIERCE__NIXL_VERSION_BYTES], const char *data, size_t bytes)
{
    const size_t before = sizeof(VERSION_TEXT); /* with its NUL, behind which is the next text */
    const char *at = memmem(data, bytes, VERSION_TEXT, before);
    if (at == NULL)
        return false;
    size_t left = bytes - (size_t)(at - data) - before;
    size_t room = left < TIERCE__NIXL_VERSION_BYTES ? left : TIERCE__NIXL_VERSION_BYTES;
    size_t length = strnlen(at + before, room);
    if (length == 0 || length == room)
        return false;
    memcpy(version, at + before, length + 1);
    return true;
}

/* Not 0 ends the search. */
static int look_at_library(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    const struct version_search *search = arg;
    const char *name = strrchr(info->dlpi_name, '/');
    (void)bytes;
    if (name == NULL || strncmp(name + 1, FILE_NAME, strlen(FILE_NAME)) != 0 ||
        strncmp(info->dlpi_name, search->folder, search->folder_bytes) != 0)
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & (PF_R | PF_W)) == PF_R &&
            find_version(search->version, (const char *)(info->dlpi_addr + part->p_vaddr),
                         part->p_filesz))
            return strcmp(search->version, TIERCE__NIXL_VERSION) != 0;
    }
    return 0;
}

void tierce__nixl_loaded_version(char version[TIERCE__NIXL_VERSION_BYTES], const char *folder,
                                 size_t folder_bytes)
{
    struct version_search search = {
        .folder = folder, .folder_bytes = folder_bytes, .version = version};
    version[0] = '\0';
    dl_iterate_phdr(look_at_library, &search);
}
