/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin:///path/to/lib.so?connections=8&...: a client in a shared object, which sees the public
 * <tierce/plugin.h> and nothing else. Its results are checked like input from a network.
 */
#include "store/remote/plugin/shared_object.h"
#include "base/assert.h"
#include "store/remote/links.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define LINKS         8u
#define NAMES_AT_ONCE 128u
#define SYMBOL        "tierce_plugin"

_Static_assert(TIERCE_PLUGIN_RANGES == TIERCE__CONNECTOR_RANGES &&
                   TIERCE_PLUGIN_LISTS == TIERCE__CONNECTOR_LISTS &&
                   TIERCE_PLUGIN_NO_DELETE == TIERCE__CONNECTOR_NO_DELETE,
               "both have the same values");

#define CAPS_ALL (TIERCE_PLUGIN_RANGES | TIERCE_PLUGIN_LISTS | TIERCE_PLUGIN_NO_DELETE)

static int refuse(char why[TIERCE__CONNECTOR_WHY_BYTES], const char *path, const char *what)
{
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "plug-in %.120s: %s", path, what);
    return TIERCE_E_CONFIG;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* The first function that is not there, or NULL. */
static const char *find_missing(const struct tierce_plugin *table)
{
    const struct {
        const char *name;
        bool is_there;
    } functions[] = {
        {"open", table->open != NULL},
        {"close", table->close != NULL},
        {"link_open", table->link_open != NULL},
        {"link_close", table->link_close != NULL},
        {"exists", table->exists != NULL},
        {"get", table->get != NULL},
        {"put", table->put != NULL},
        {"remove", table->remove != NULL || (table->caps & TIERCE_PLUGIN_NO_DELETE) != 0},
        {"list", table->list != NULL || (table->caps & TIERCE_PLUGIN_LISTS) == 0},
        {"ping", table->ping != NULL},
    };
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
        if (!functions[i].is_there)
            return functions[i].name;
    }
    return NULL;
}

static int check_table(const struct tierce_plugin *table, const char *path,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char what[96] = "";
    const char *missing = NULL;
    if (table == NULL)
        snprintf(what, sizeof(what), SYMBOL "() returns NULL");
    else if (table->version != TIERCE_PLUGIN_VERSION)
        snprintf(what, sizeof(what), "was built for version %u of plugin.h; this is version %u",
                 (unsigned)table->version, TIERCE_PLUGIN_VERSION);
    else if (table->size < sizeof(*table))
        snprintf(what, sizeof(what), "its table has %u bytes; %zu are required",
                 (unsigned)table->size, sizeof(*table));
    else if ((table->caps & ~CAPS_ALL) != 0)
        snprintf(what, sizeof(what), "has unknown caps: %#x", table->caps & ~CAPS_ALL);
    else if ((missing = find_missing(table)) != NULL)
        snprintf(what, sizeof(what), "has no function %s", missing);
    return what[0] != '\0' ? refuse(why, path, what) : 0;
}

static int find_table(struct tierce__client *client, const char *path,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct tierce_plugin *(*get_table)(void) = NULL;
    void *symbol = dlsym(client->object, SYMBOL);
    if (symbol == NULL)
        return refuse(why, path, "exports no function " SYMBOL);
    memcpy(&get_table, &symbol, sizeof(symbol)); /* POSIX allows what C does not */
    const struct tierce_plugin *table = get_table();
    int rc = check_table(table, path, why);
    if (rc == 0)
        client->table = *table;
    return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int open_store(void **store, const struct tierce__client *client,
                      const struct tierce__url *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    TIERCE_ASSERT(url->param_count <= TIERCE__URL_PARAMS_MAX);
    struct tierce_plugin_param params[TIERCE__URL_PARAMS_MAX];
    struct tierce_plugin_opts opts = {
        .size = sizeof(opts), .params = params, .links = client->links};
    char words[128] = "";
    for (size_t i = 0; i < url->param_count; i++) {
        TIERCE_DASSERT(opts.param_count <= i);
        const char *name = url->params[i].name, *value = url->params[i].value;
        if (tierce__url_param(url, name) != value)
            return refuse(why, url->path, "a parameter is given twice");
        if (strcmp(name, "connections") != 0)
            params[opts.param_count++] = (struct tierce_plugin_param){name, value};
    }
    int rc = client->table.open(store, &opts, words, sizeof(words));
    words[sizeof(words) - 1] = '\0';
    if (rc != 0)
        return refuse(why, url->path, words[0] != '\0' ? words : tierce_strerror(rc));
    return 0;
}

static int open_plugin(void **store, struct tierce__client *own,
                       const struct tierce__connector_source *source,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct tierce__url *url = source->url;
    if (url->host_count != 0 || url->user != NULL || url->path[0] != '/') {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "URL: a plug-in must be an absolute path: plugin:///path/of/file.so");
        return TIERCE_E_CONFIG;
    }
    int rc = tierce__shared_object_open(&own->object, "plug-in", url->path, why);
    if (rc != 0)
        return rc;
    rc = find_table(own, url->path, why);
    if (rc == 0)
        rc = open_store(store, own, url, why);
    if (rc != 0)
        dlclose(own->object);
    return rc;
}

const struct tierce__client tierce__plugin_client = {
    .scheme = "plugin", .links = LINKS, .names_max = NAMES_AT_ONCE, .open = open_plugin};
