/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin:///path/to/lib.so?connections=8&...: a client in a shared object, which sees the public
 * <tierce/plugin.h> and nothing else. Its results are checked like input from a network.
 */
#include "base/plugin_load.h"
#include "store/remote/links.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define LINKS         8u
#define NAMES_AT_ONCE 128u

_Static_assert(TIERCE__CONNECTOR_WHY_BYTES == TIERCE__URL_WHY_BYTES, "one `why` serves both");
_Static_assert(TIERCE_PLUGIN_RANGES == TIERCE__CONNECTOR_RANGES &&
                   TIERCE_PLUGIN_LISTS == TIERCE__CONNECTOR_LISTS &&
                   TIERCE_PLUGIN_NO_DELETE == TIERCE__CONNECTOR_NO_DELETE,
               "both have the same values");

#define CAPS_ALL (TIERCE_PLUGIN_RANGES | TIERCE_PLUGIN_LISTS | TIERCE_PLUGIN_NO_DELETE)

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
    if ((table->caps & ~CAPS_ALL) != 0)
        snprintf(what, sizeof(what), "has unknown caps: %#x", table->caps & ~CAPS_ALL);
    else if ((missing = find_missing(table)) != NULL)
        snprintf(what, sizeof(what), "has no function %s", missing);
    return what[0] != '\0' ? tierce__plugin_refuse(why, path, what) : 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int open_store(void **store, const struct tierce__client *client,
                      const struct tierce__url *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce_plugin_param params[TIERCE__URL_PARAMS_MAX];
    struct tierce_plugin_opts opts = {
        .size = sizeof(opts), .params = params, .links = client->links};
    char words[128] = "";
    int rc = tierce__plugin_params(params, &opts.param_count, url, "connections", why);
    if (rc < 0)
        return rc;
    rc = client->table.open(store, &opts, words, sizeof(words));
    words[sizeof(words) - 1] = '\0';
    if (rc != 0)
        return tierce__plugin_refuse(why, url->path,
                                     words[0] != '\0' ? words : tierce_strerror(rc));
    return 0;
}

static int open_plugin(void **store, struct tierce__client *own,
                       const struct tierce__connector_source *source,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const struct tierce__plugin_kind kind = {.symbol = "tierce_plugin",
                                                    .header = "plugin.h",
                                                    .version = TIERCE_PLUGIN_VERSION,
                                                    .size = sizeof(struct tierce_plugin)};
    const struct tierce__url *url = source->url;
    const void *table;
    int rc = tierce__plugin_load(&own->object, &table, url, &kind, why);
    if (rc < 0)
        return rc;
    own->table = *(const struct tierce_plugin *)table;
    rc = check_table(&own->table, url->path, why);
    if (rc == 0)
        rc = open_store(store, own, url, why);
    if (rc != 0)
        dlclose(own->object);
    return rc;
}

const struct tierce__client tierce__plugin_client = {
    .scheme = "plugin", .links = LINKS, .names_max = NAMES_AT_ONCE, .open = open_plugin};
