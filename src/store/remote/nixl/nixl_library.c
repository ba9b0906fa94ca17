/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/nixl/nixl_library.h"
#include "base/assert.h"
#include "base/shared_object.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int refuse(char why[TIERCE__CONNECTOR_WHY_BYTES], const char *what, const char *detail)
{
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "NIXL: %s%.160s", what, detail);
    return TIERCE_E_CONFIG;
}

/* The process may have another version of NIXL from elsewhere. */
static int check_version(const struct tierce__nixl_api *api, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char version[TIERCE__NIXL_VERSION_BYTES] = "";
    void *symbol = NULL;
    Dl_info info = {0};
    memcpy(&symbol, &api->create_params, sizeof(symbol));
    if (dladdr(symbol, &info) != 0 && info.dli_fname != NULL) {
        const char *name = strrchr(info.dli_fname, '/');
        size_t folder_bytes = name != NULL ? (size_t)(name + 1 - info.dli_fname) : 0;
        tierce__nixl_loaded_version(version, info.dli_fname, folder_bytes);
    }
    if (version[0] == '\0')
        return refuse(why, "the version of " TIERCE__NIXL_LIBRARY " is unknown; it must be ",
                      TIERCE__NIXL_VERSION);
    if (strcmp(version, TIERCE__NIXL_VERSION) != 0)
        return refuse(why, "the version must be " TIERCE__NIXL_VERSION "; the library has ",
                      version);
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
    } types[] = {
        {TIERCE__NIXL_DRAM, "DRAM"}, {TIERCE__NIXL_OBJECT, "OBJ"}, {TIERCE__NIXL_FILE, "FILE"}};
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
    if (path != NULL && path[0] != '/')
        return refuse(why, "library must be the absolute path of " TIERCE__NIXL_LIBRARY "; it is ",
                      path);
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
