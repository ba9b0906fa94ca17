/* SPDX-License-Identifier: Apache-2.0 */
#include "base/plugin_load.h"
#include "base/assert.h"
#include "base/shared_object.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The beginning of each kind's table. */
struct plugin_head {
    uint32_t version, size;
};

int tierce__plugin_refuse(char why[TIERCE__URL_WHY_BYTES], const char *path, const char *what)
{
    snprintf(why, TIERCE__URL_WHY_BYTES, "plug-in %.120s: %s", path, what);
    return TIERCE_E_CONFIG;
}

static int find_table(const void **table, void *object, const char *path,
                      const struct tierce__plugin_kind *kind, char why[TIERCE__URL_WHY_BYTES])
{
    const struct plugin_head *(*get_table)(void) = NULL;
    char what[128] = "";
    void *symbol = dlsym(object, kind->symbol);
    if (symbol == NULL) {
        snprintf(what, sizeof(what), "exports no function %s", kind->symbol);
        return tierce__plugin_refuse(why, path, what);
    }
    memcpy(&get_table, &symbol, sizeof(symbol)); /* POSIX allows what C does not */
    const struct plugin_head *head = get_table();
    if (head == NULL)
        snprintf(what, sizeof(what), "%s() returns NULL", kind->symbol);
    else if (head->version != kind->version)
        snprintf(what, sizeof(what), "was built for version %u of %s; this is version %u",
                 (unsigned)head->version, kind->header, (unsigned)kind->version);
    else if (head->size < kind->size)
        snprintf(what, sizeof(what), "its table has %u bytes; %u are required",
                 (unsigned)head->size, (unsigned)kind->size);
    *table = head;
    return what[0] != '\0' ? tierce__plugin_refuse(why, path, what) : 0;
}

int tierce__plugin_load(void **object, const void **table, const struct tierce__url *url,
                        const struct tierce__plugin_kind *kind, char why[TIERCE__URL_WHY_BYTES])
{
    void *opened = NULL;
    TIERCE_DASSERT(kind->size >= sizeof(struct plugin_head));
    if (url->host_count != 0 || url->user != NULL || url->path[0] != '/') {
        snprintf(why, TIERCE__URL_WHY_BYTES,
                 "URL: a plug-in must be an absolute path: plugin:///path/of/file.so");
        return TIERCE_E_CONFIG;
    }
    int rc = tierce__shared_object_open(&opened, "plug-in", url->path, why);
    if (rc < 0)
        return rc;
    rc = find_table(table, opened, url->path, kind, why);
    if (rc < 0)
        dlclose(opened);
    else
        *object = opened;
    return rc;
}

int tierce__plugin_params(struct tierce_plugin_param params[TIERCE__URL_PARAMS_MAX], size_t *count,
                          const struct tierce__url *url, const char *own,
                          char why[TIERCE__URL_WHY_BYTES])
{
    TIERCE_ASSERT(url->param_count <= TIERCE__URL_PARAMS_MAX);
    *count = 0;
    for (size_t i = 0; i < url->param_count; i++) {
        TIERCE_DASSERT(*count <= i);
        const char *name = url->params[i].name, *value = url->params[i].value;
        if (tierce__url_param(url, name) != value)
            return tierce__plugin_refuse(why, url->path, "a parameter is given twice");
        if (own == NULL || strcmp(name, own) != 0)
            params[(*count)++] = (struct tierce_plugin_param){name, value};
    }
    return 0;
}
