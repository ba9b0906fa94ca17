/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/nixl/nixl_library.h"
#include "base/assert.h"
#include "store/remote/plugin/shared_object.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#define VERSION_TEXT "NIXL version: " /* the beginning of a line that the library logs */
#define VERSION_MAX  32u

static int refuse(char why[TIERCE__CONNECTOR_WHY_BYTES], const char *what, const char *detail)
{
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "NIXL: %s%.160s", what, detail);
    return TIERCE_E_CONFIG;
}

/* The text behind VERSION_TEXT in a part of a loaded library. */
static bool find_version(char version[VERSION_MAX], const char *data, size_t bytes)
{
    const size_t before = sizeof(VERSION_TEXT); /* with its NUL, behind which is the next text */
    const char *at = memmem(data, bytes, VERSION_TEXT, before);
    if (at == NULL)
        return false;
    size_t left = bytes - (size_t)(at - data) - before;
    size_t length = strnlen(at + before, left < VERSION_MAX ? left : VERSION_MAX);
    if (length == 0 || length == left || length == VERSION_MAX)
        return false;
    memcpy(version, at + before, length + 1);
    return true;
}

/* What is searched for the version. */
struct version_search {
    const char *folder; /* with its '/' */
    size_t folder_bytes;
    char version[VERSION_MAX];
};

static int look_at_library(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    struct version_search *search = arg;
    (void)bytes;
    if (strncmp(info->dlpi_name, search->folder, search->folder_bytes) != 0)
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & (PF_R | PF_W)) == PF_R &&
            find_version(search->version, (const char *)(info->dlpi_addr + part->p_vaddr),
                         part->p_filesz))
            return 1;
    }
    return 0;
}

/* No function of NIXL returns its version. One of the libraries beside it contains it as a text;
 * the process may have another version of them as well. */
static int check_version(const struct tierce__nixl_api *api, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct version_search search = {.folder = ""};
    void *symbol = NULL;
    Dl_info info = {0};
    memcpy(&symbol, &api->create_params, sizeof(symbol));
    if (dladdr(symbol, &info) != 0 && info.dli_fname != NULL) {
        const char *name = strrchr(info.dli_fname, '/');
        search.folder = info.dli_fname;
        search.folder_bytes = name != NULL ? (size_t)(name + 1 - info.dli_fname) : 0;
    }
    dl_iterate_phdr(look_at_library, &search);
    if (search.version[0] == '\0')
        return refuse(why, "the version of " TIERCE__NIXL_LIBRARY " is unknown; it must be ",
                      TIERCE__NIXL_VERSION);
    if (strcmp(search.version, TIERCE__NIXL_VERSION) != 0)
        return refuse(why, "the version must be " TIERCE__NIXL_VERSION "; the library has ",
                      search.version);
    return 0;
}

static int find_calls(struct tierce__nixl_api *api, void *library,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    void *symbol;
#define TIERCE_NIXL_CALL(name, arguments)                                                          \
    symbol = dlsym(library, "nixl_capi_" #name);                                                   \
    if (symbol == NULL)                                                                            \
        return refuse(why, TIERCE__NIXL_LIBRARY " lacks the function nixl_capi_", #name);          \
    memcpy(&api->name, &symbol, sizeof(symbol)); /* POSIX allows what C does not */
#include "store/remote/nixl/nixl_calls.def"
#undef TIERCE_NIXL_CALL
    return 0;
}

/* Whether the numbers of the kinds of memory are those of nixl_library.h. */
static int check_numbers(const struct tierce__nixl_api *api, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct {
        enum tierce__nixl_memory type;
        const char *name;
    } types[] = {{TIERCE__NIXL_DRAM, "DRAM"}, {TIERCE__NIXL_FILE, "FILE"}};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        const char *text = NULL;
        if (api->mem_type_to_string((int)types[i].type, &text) != TIERCE__NIXL_DONE ||
            text == NULL || strstr(text, types[i].name) == NULL)
            return refuse(why, "its numbers of memory types are not those of version ",
                          TIERCE__NIXL_VERSION);
    }
    return 0;
}

int tierce__nixl_load(struct tierce__nixl_api *out, const char *path,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__nixl_api api = {0};
    void *library = NULL;
    int rc = path != NULL ? tierce__shared_object_open(&library, "NIXL's library", path, why) : 0;
    if (rc != 0)
        return rc;
    if (path == NULL)
        library = dlopen(TIERCE__NIXL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *wrong = dlerror();
        return refuse(why, wrong != NULL ? wrong : TIERCE__NIXL_LIBRARY " cannot be loaded",
                      "; give its path: library=/…/" TIERCE__NIXL_LIBRARY);
    }
    rc = find_calls(&api, library, why);
    if (rc == 0)
        rc = check_version(&api, why);
    if (rc == 0)
        rc = check_numbers(&api, why);
    if (rc == 0)
        *out = api;
    return rc;
}
