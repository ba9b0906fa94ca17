/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin:///path/to/lib.so?connections=8&...: a client in a shared object, which sees the public
 * <tierce/plugin.h> and nothing else. Its results are checked like input from a network.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "store/remote/connector_private.h"
#include "store/remote/links.h"
#include <tierce/plugin.h>

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS         8u
#define WAITING_MAX   4096u
#define NAMES_AT_ONCE 128u
#define SYMBOL        "tierce_plugin"

_Static_assert(TIERCE_PLUGIN_RANGES == TIERCE__CONNECTOR_RANGES &&
                   TIERCE_PLUGIN_LISTS == TIERCE__CONNECTOR_LISTS &&
                   TIERCE_PLUGIN_NO_DELETE == TIERCE__CONNECTOR_NO_DELETE,
               "one word for both");
_Static_assert(TIERCE_PLUGIN_NAME_MAX == TIERCE__CONNECTOR_NAME_MAX, "as the header says");

#define CAPS_ALL (TIERCE_PLUGIN_RANGES | TIERCE_PLUGIN_LISTS | TIERCE_PLUGIN_NO_DELETE)

/* Shared by the links. */
struct plugin {
    void *object; /* of dlopen */
    const struct tierce_plugin *table;
    bool is_open;
    void *store;
    struct tierce__link_ops ops; /* with the capabilities of this plug-in */
};

struct tierce__link {
    const struct plugin *plugin;
    void *link;
    bool is_connected;
    uint64_t connects;
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

/* ---- calls ----------------------------------------------------------------------------------- */

static bool is_status(int rc)
{
    switch (rc) {
    case 0:
    case TIERCE_E_MISS:
    case TIERCE_E_FULL:
    case TIERCE_E_LIMIT:
    case TIERCE_E_REFUSED:
    case TIERCE_E_DOWN:
    case TIERCE_E_DEADLINE:
    case TIERCE_E_FORMAT:
        return true;
    default:
        return rc < 0 && rc > -4096; /* an errno */
    }
}

/* After each call: converts its result, and fetches its error text. */
static int ended(struct tierce__link *link, int rc)
{
    const struct tierce_plugin *table = link->plugin->table;
    bool answered = rc != TIERCE_E_DOWN && rc != TIERCE_E_DEADLINE;
    link->connects += answered && !link->is_connected;
    link->is_connected = answered;
    if (!is_status(rc)) {
        snprintf(link->why, sizeof(link->why), "the plug-in returned %d, which is not a status",
                 rc);
        return TIERCE_E_FORMAT;
    }
    const char *why =
        rc != 0 && rc != TIERCE_E_MISS && table->why != NULL ? table->why(link->link) : NULL;
    snprintf(link->why, sizeof(link->why), "%s", why != NULL ? why : "");
    return rc;
}

static struct tierce_plugin_name public_name(const struct tierce__store_name *name)
{
    return (struct tierce_plugin_name){.text = name->text, .bytes = name->bytes};
}

static int plugin_exists(struct tierce__link *link, const struct tierce__store_name *names,
                         size_t count, _Atomic size_t *found, uint64_t deadline_ns)
{
    struct tierce_plugin_name public_names[NAMES_AT_ONCE];
    size_t there = 0;
    for (size_t i = 0; i < count; i++)
        public_names[i] = public_name(&names[i]);
    int rc = ended(
        link, link->plugin->table->exists(link->link, public_names, count, &there, deadline_ns));
    if (rc == 0 && there > count) {
        snprintf(link->why, sizeof(link->why),
                 "the plug-in found more names than were passed to it");
        rc = TIERCE_E_FORMAT;
    }
    *found = rc == 0 ? there : 0;
    return rc;
}

static int plugin_get(struct tierce__link *link, const struct tierce__store_name *name,
                      uint8_t *memory, uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    struct tierce_plugin_name named = public_name(name);
    return ended(link,
                 link->plugin->table->get(link->link, &named, memory, offset, length, deadline_ns));
}

static int plugin_put(struct tierce__link *link, const struct tierce__store_name *name,
                      const uint8_t *memory, uint64_t length, uint64_t deadline_ns)
{
    struct tierce_plugin_name named = public_name(name);
    return ended(link, link->plugin->table->put(link->link, &named, memory, length, deadline_ns));
}

static int plugin_remove(struct tierce__link *link, const struct tierce__store_name *name,
                         uint64_t deadline_ns)
{
    struct tierce_plugin_name named = public_name(name);
    int rc = ended(link, link->plugin->table->remove(link->link, &named, deadline_ns));
    return rc == TIERCE_E_MISS ? 0 : rc;
}

struct listing {
    const struct tierce__store_name *prefix;
    tierce__connector_each_fn *each;
    void *arg;
};

/* Accepts only requested names that are valid. */
static void tell(void *arg, const struct tierce_plugin_name *name)
{
    const struct listing *listing = arg;
    const struct tierce__store_name *prefix = listing->prefix;
    if (name->bytes == 0 || name->bytes > TIERCE__CONNECTOR_NAME_MAX ||
        name->bytes < prefix->bytes || memcmp(name->text, prefix->text, prefix->bytes) != 0 ||
        memchr(name->text, '\0', name->bytes) != NULL)
        return;
    listing->each(listing->arg,
                  &(struct tierce__store_name){.text = name->text, .bytes = name->bytes});
}

static int plugin_list(struct tierce__link *link, const struct tierce__store_name *prefix,
                       uint64_t *cursor, tierce__connector_each_fn *each, void *arg,
                       uint64_t deadline_ns)
{
    struct listing listing = {prefix, each, arg};
    struct tierce_plugin_name named = public_name(prefix);
    return ended(
        link, link->plugin->table->list(link->link, &named, cursor, tell, &listing, deadline_ns));
}

static int plugin_ping(struct tierce__link *link, uint64_t deadline_ns)
{
    return ended(link, link->plugin->table->ping(link->link, deadline_ns));
}

/* ---- links ----------------------------------------------------------------------------------- */

static int create_link(struct tierce__link **out, void *arg)
{
    const struct plugin *plugin = arg;
    struct tierce__link *link = tierce__calloc(1, sizeof(*link));
    if (link == NULL)
        return -ENOMEM;
    link->plugin = plugin;
    int rc = plugin->table->link_open(&link->link, plugin->store);
    if (rc != 0) {
        tierce__free(link);
        return rc < 0 && is_status(rc) ? rc : TIERCE_E_FORMAT;
    }
    *out = link;
    return 0;
}

static void destroy_link(struct tierce__link *link)
{
    link->plugin->table->link_close(link->link);
    tierce__free(link);
}

static bool is_connected(const struct tierce__link *link)
{
    return link->is_connected;
}

static uint64_t count_connects(const struct tierce__link *link)
{
    return link->connects;
}

static const char *why_of(const struct tierce__link *link)
{
    return link->why;
}

static void end_plugin(void *arg)
{
    struct plugin *plugin = arg;
    if (plugin->is_open)
        plugin->table->close(plugin->store);
    if (plugin->object != NULL)
        dlclose(plugin->object);
    tierce__free(plugin);
}

static const struct tierce__link_ops link_ops = {
    .scheme = "plugin",
    .create = create_link,
    .destroy = destroy_link,
    .exists = plugin_exists,
    .exists_max = NAMES_AT_ONCE,
    .get = plugin_get,
    .put = plugin_put,
    .remove = plugin_remove,
    .list = plugin_list,
    .ping = plugin_ping,
    .is_connected = is_connected,
    .connects = count_connects,
    .why = why_of,
    .end = end_plugin,
};

/* ---- the file -------------------------------------------------------------------------------- */

static bool others_may_write(const struct stat *st)
{
    bool is_ours = st->st_uid == 0 || st->st_uid == geteuid();
    bool is_sticky = S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX) != 0;
    return !is_ours || ((st->st_mode & (S_IWGRP | S_IWOTH)) != 0 && !is_sticky);
}

/* Why a resolved path is not trusted: another user could replace the file. NULL if it is
 * trusted. */
static const char *distrust(char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return tierce_strerror(-errno);
    if (!S_ISREG(st.st_mode))
        return "is not a regular file";
    if (others_may_write(&st))
        return "belongs to another user, or is writable for others";
    for (char *end = strrchr(path, '/'); end != NULL; end = strrchr(path, '/')) {
        *end = '\0';
        if (stat(end == path ? "/" : path, &st) != 0)
            return tierce_strerror(-errno);
        if (others_may_write(&st))
            return "is in a folder that belongs to another user, or that other users can write";
    }
    return NULL;
}

static int refuse(char why[TIERCE__CONNECTOR_WHY_BYTES], const char *path, const char *what)
{
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "plug-in %.120s: %s", path, what);
    return TIERCE_E_CONFIG;
}

static int load_object(struct plugin *plugin, const char *path,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char real[PATH_MAX], cut[PATH_MAX];
    if (realpath(path, real) == NULL)
        return refuse(why, path, tierce_strerror(-errno));
    memcpy(cut, real, sizeof(cut));
    const char *wrong = distrust(cut);
    if (wrong != NULL)
        return refuse(why, path, wrong);
    plugin->object = dlopen(real, RTLD_NOW | RTLD_LOCAL);
    if (plugin->object == NULL) {
        wrong = dlerror();
        return refuse(why, path, wrong != NULL ? wrong : "cannot be loaded");
    }
    return 0;
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

static int find_table(struct plugin *plugin, const char *path,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct tierce_plugin *(*get_table)(void) = NULL;
    void *symbol = dlsym(plugin->object, SYMBOL);
    if (symbol == NULL)
        return refuse(why, path, "exports no function " SYMBOL);
    memcpy(&get_table, &symbol, sizeof(symbol)); /* POSIX allows what C does not */
    plugin->table = get_table();
    return check_table(plugin->table, path, why);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int open_store(struct plugin *plugin, const struct tierce__url *url, uint64_t links,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce_plugin_param params[TIERCE__URL_PARAMS_MAX];
    struct tierce_plugin_opts opts = {
        .size = sizeof(opts), .params = params, .links = (uint32_t)links};
    char words[128] = "";
    void *store = NULL;
    for (size_t i = 0; i < url->param_count; i++) {
        const char *name = url->params[i].name, *value = url->params[i].value;
        if (tierce__url_param(url, name) != value)
            return refuse(why, url->path, "a parameter comes twice");
        if (strcmp(name, "connections") != 0)
            params[opts.param_count++] = (struct tierce_plugin_param){name, value};
    }
    int rc = plugin->table->open(&store, &opts, words, sizeof(words));
    words[sizeof(words) - 1] = '\0';
    if (rc != 0)
        return refuse(why, url->path, words[0] != '\0' ? words : tierce_strerror(rc));
    plugin->is_open = true;
    plugin->store = store;
    plugin->ops = link_ops;
    plugin->ops.caps = plugin->table->caps;
    return 0;
}

static int open_plugin(struct plugin *plugin, const struct tierce__url *url, uint64_t *links,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const struct tierce__url_number connections = {"connections", TIERCE__URL_COUNT, 2,
                                                          TIERCE__LINKS_MAX};
    if (url->host_count != 0 || url->user != NULL || url->path[0] != '/') {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "URL: a plug-in must be an absolute path: plugin:///path/of/file.so");
        return TIERCE_E_CONFIG;
    }
    int rc = tierce__url_param_number(url, links, &connections, why);
    if (rc == 0)
        rc = load_object(plugin, url->path, why);
    if (rc == 0)
        rc = find_table(plugin, url->path, why);
    return rc == 0 ? open_store(plugin, url, *links, why) : rc;
}

int tierce__plugin_open(struct tierce__connector **out,
                        const struct tierce__connector_source *source,
                        char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    uint64_t links = LINKS;
    struct plugin *plugin = tierce__calloc(1, sizeof(*plugin));
    if (plugin == NULL)
        return -ENOMEM;
    int rc = open_plugin(plugin, source->url, &links, why);
    if (rc != 0) {
        end_plugin(plugin);
        return rc;
    }
    return tierce__links_create(out,
                                &(struct tierce__links_opts){.ops = &plugin->ops,
                                                             .arg = plugin,
                                                             .links = (uint32_t)links,
                                                             .waiting_max = WAITING_MAX,
                                                             .store_name = source->store_name});
}
