/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that is a class in Python, in a process of its own (bridge.h), which works on our pool:
 *
 *     python:///srv/kv/folder_store.py:FolderStore?folder=/mnt/kv
 *     python://package.module/FolderStore?folder=/mnt/kv
 *
 * python_client.py calls its methods; docs/using/remote.md has the contract. The process is started
 * when the store is opened, because a class that cannot be loaded is an error of the configuration.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/trusted_path.h"
#include "store/remote/bridge/bridge_link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LINKS      4u
#define TIMEOUT_MS 30000u

/* Results below 0, and the abilities; the same as in python_client.py. */
enum { FAILED = -1, MISSING = -2, FULL = -3, REFUSED = -4, LATE = -5, KEPT = -6 };
enum { RANGES = 1, LENGTHS = 2, ALL = 3 };

/* ---- calls ----------------------------------------------------------------------------------- */

static int status_of(struct tierce__bridge_link *link, enum tierce__bridge_op op, int64_t result)
{
    (void)op;
    switch (result) {
    case FAILED:
        return TIERCE_E_DOWN;
    case MISSING:
        return TIERCE_E_MISS;
    case FULL:
        return TIERCE_E_FULL;
    case REFUSED:
        return TIERCE_E_REFUSED;
    case LATE:
        return TIERCE_E_DEADLINE;
    case KEPT: /* it may still use the memory */
        tierce__bridge_end(link->store->bridge, link->seat);
        return TIERCE_E_DOWN;
    default:
        return tierce__bridge_link_misunderstood(link, result);
    }
}

static int refuse_length(struct tierce__bridge_link *link, uint64_t bytes, uint64_t wanted)
{
    snprintf(link->why, sizeof(link->why), "get: %" PRIu64 " bytes instead of %" PRIu64, bytes,
             wanted);
    return TIERCE_E_FORMAT;
}

static int python_get(void *link, const struct tierce_plugin_name *name, void *memory,
                      uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    uint64_t bytes;
    (void)deadline_ns; /* a call cannot be ended; one that hangs ends the process */
    int rc = tierce__bridge_link_ask_get(
        link, &bytes,
        &(struct tierce__link_get){
            .name = name, .memory = memory, .offset = offset, .length = length});
    return rc == 0 && bytes != length ? refuse_length(link, bytes, length) : rc;
}

static int python_get_whole(void *link, const struct tierce_plugin_name *name, void *memory,
                            uint64_t room, uint64_t *bytes, uint64_t deadline_ns)
{
    (void)deadline_ns;
    int rc = tierce__bridge_link_ask_get(
        link, bytes, &(struct tierce__link_get){.name = name, .memory = memory, .length = room});
    return rc == 0 && *bytes > room ? refuse_length(link, *bytes, room) : rc;
}

static int python_measure(void *opened, const struct tierce_plugin_name *name, uint64_t *bytes,
                          uint64_t deadline_ns)
{
    (void)deadline_ns;
    return tierce__bridge_link_call(
        opened, bytes,
        &(struct tierce__bridge_ask){.op = TIERCE__BRIDGE_LENGTH, .names = name, .name_count = 1});
}

/* ---- life ------------------------------------------------------------------------------------ */

/* The arguments and options of the process, as "name=value". */
struct python_arguments {
    char source[PATH_MAX + 16], class[TIERCE__URL_BYTES_MAX], seats[24];
    const char *list[4];
    char *options[TIERCE__URL_PARAMS_MAX + 1];
    char texts[TIERCE__URL_BYTES_MAX];
};

static int refuse(char why[TIERCE__CONNECTOR_WHY_BYTES], const char *what)
{
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "URL: %s", what);
    return TIERCE_E_CONFIG;
}

/* A file and a class, or a module and a class. */
static int read_source(struct python_arguments *out, const struct tierce__url *url,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char path[TIERCE__URL_BYTES_MAX], real[PATH_MAX];
    bool is_module = url->host_count > 0;
    snprintf(path, sizeof(path), "%s", url->path);
    char *class = strrchr(path, is_module ? '/' : ':');
    if (url->user != NULL || url->host_count > 1 ||
        (is_module && (url->hosts[0].port != 0 || class != path)) || class == NULL ||
        class[1] == '\0' || strchr(class + 1, '/') != NULL)
        return refuse(why, "a store in Python is python:///path/of/file.py:Class or "
                           "python://package.module/Class");
    *class ++ = '\0';
    if (!is_module) {
        int rc = tierce__trusted_path(real, "plug-in", path, why);
        if (rc < 0)
            return rc;
    }
    snprintf(out->source, sizeof(out->source), "%s=%s", is_module ? "module" : "file",
             is_module ? url->hosts[0].name : real);
    snprintf(out->class, sizeof(out->class), "class=%s", class);
    return 0;
}

/* All parameters that are not our own belong to the class. */
static int read_options(struct python_arguments *out, const struct tierce__url *url,
                        char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const own[] = {"python", "log", "timeout", "connections"};
    size_t used = 0, count = 0;
    for (size_t i = 0; i < url->param_count; i++) {
        const char *name = url->params[i].name, *value = url->params[i].value;
        bool is_own = false;
        for (size_t k = 0; k < sizeof(own) / sizeof(*own); k++)
            is_own = is_own || strcmp(name, own[k]) == 0;
        if (tierce__url_param(url, name) != value)
            return refuse(why, "a parameter is given twice");
        if (is_own)
            continue;
        /* Decoded and together they are no longer than the URL. */
        TIERCE_ASSERT(used + strlen(name) + strlen(value) + 2 <= sizeof(out->texts));
        out->options[count++] = out->texts + used;
        used +=
            (size_t)snprintf(out->texts + used, sizeof(out->texts) - used, "%s=%s", name, value) +
            1;
    }
    const char *log = tierce__url_param(url, "log");
    return log != NULL && log[0] != '/' ? refuse(why, "log must be the absolute path of a file")
                                        : 0;
}

/* Starts the process, and asks what its class can do. */
static int read_abilities(struct tierce__bridge_store *store, struct tierce__client *own,
                          char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    int64_t abilities = 0;
    int rc = tierce__bridge_call(store->bridge, 0,
                                 &(struct tierce__bridge_ask){.op = TIERCE__BRIDGE_ABILITIES},
                                 &abilities, why);
    if (rc != 0)
        return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
    if (abilities < 0 || (abilities & ~ALL) != 0)
        return refuse(why, "the bridge sent invalid abilities");
    own->table.caps =
        (abilities & RANGES) != 0 ? TIERCE__CONNECTOR_RANGES : TIERCE__CONNECTOR_TELLS_LENGTH;
    own->measure = (abilities & LENGTHS) != 0 ? python_measure : NULL;
    return 0;
}

static int open_python(void **opened, struct tierce__client *own,
                       const struct tierce__connector_source *source,
                       char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const struct tierce__bridge_script script = {tierce__bridge_python_py,
                                                        &tierce__bridge_python_py_size};
    static const struct tierce__url_number timeout = {"timeout", TIERCE__URL_MILLISECONDS, 100,
                                                      3600000};
    struct tierce__bridge_store *store = *opened;
    const struct tierce__url *url = source->url;
    const char *python = tierce__url_param(url, "python");
    uint64_t timeout_ms = TIMEOUT_MS;
    struct python_arguments *arguments = tierce__calloc(1, sizeof(*arguments));
    if (arguments == NULL)
        return -ENOMEM;
    store->prefix = "";
    store->status_of = status_of;
    int rc = read_source(arguments, url, why);
    if (rc == 0)
        rc = read_options(arguments, url, why);
    if (rc == 0)
        rc = tierce__url_param_number(url, &timeout_ms, &timeout, why);
    snprintf(arguments->seats, sizeof(arguments->seats), "seats=%u", (unsigned)own->links);
    arguments->list[0] = arguments->source;
    arguments->list[1] = arguments->class;
    arguments->list[2] = arguments->seats;
    if (rc == 0)
        rc = tierce__bridge_store_open(
            store, source,
            &(struct tierce__bridge_opts){.python = python != NULL ? python : "python3",
                                          .script = &script,
                                          .arguments = arguments->list,
                                          .options = (const char *const *)arguments->options,
                                          .log = tierce__url_param(url, "log"),
                                          .seats = own->links,
                                          .call_ms = (uint32_t)timeout_ms},
            why);
    if (rc == 0)
        rc = read_abilities(store, own, why);
    explicit_bzero(arguments->texts, sizeof(arguments->texts));
    tierce__free(arguments);
    return rc;
}

const struct tierce__client tierce__python_client = {
    .table = {.caps = TIERCE__CONNECTOR_RANGES,
              .close = tierce__bridge_store_close,
              .link_open = tierce__bridge_link_open,
              .link_close = tierce__free,
              .exists = tierce__bridge_link_exists,
              .get = python_get,
              .put = tierce__bridge_link_put,
              .remove = tierce__bridge_link_remove,
              .ping = tierce__bridge_link_ping,
              .why = tierce__bridge_link_why},
    .scheme = "python",
    .store_bytes = sizeof(struct tierce__bridge_store),
    .link_bytes = sizeof(struct tierce__bridge_link),
    .links = LINKS,
    .names_max = TIERCE__BRIDGE_NAMES_MAX,
    .get_whole = python_get_whole,
    .open = open_python,
    .state = tierce__bridge_link_state,
    .abort = tierce__bridge_store_abort,
};
