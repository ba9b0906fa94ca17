/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_REMOTE_H
#define TIERCE_TESTS_SIM_REMOTE_H

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "sim_sched.h"
#include "store/remote/links.h"

/*
 * Remote stores in memory, for the library's own links: each call takes simulated time, and may
 * fail as calls through a network do. Stores live until the end of the run. "sim://a/1" is the
 * client of engine 1 for store a.
 */

enum { SIM_STORES = 2, SIM_ENGINES = 3, SIM_LIST_PAGE = 5 };

struct sim_object {
    struct sim_object *next; /* the newest first */
    uint64_t number;         /* of its first writing, from 1 */
    char name[TIERCE_PLUGIN_NAME_MAX];
    size_t name_bytes;
    uint8_t *bytes;
    uint64_t count;
};

struct sim_remote {
    struct sim_object *objects;
    uint64_t written;
    bool is_out; /* nobody reaches it */
};

static struct {
    struct sim_remote stores[SIM_STORES];
    bool is_gone[SIM_ENGINES]; /* the engine was killed: none of its calls has an effect */
    bool fails, damages;       /* calls fail or hang; answers are damaged */
    uint64_t failures, damaged;
} sim_net;

struct sim_link {
    struct sim_remote *remote;
    size_t engine;
};

/* The network takes a time, mostly short. False: the call ends without an effect, with *status. */
static bool sim_travel(const struct sim_link *link, int *status, uint64_t deadline_ns)
{
    static const uint64_t longest_us[] = {500, 500, 3000, 200000};
    uint64_t left = deadline_ns > sim_now_ns() ? deadline_ns - sim_now_ns() : 0;
    sim_sleep_ns(1000 * (1 + sim_below(longest_us[sim_below(4)])));
    *status = TIERCE_E_DOWN;
    if (sim_net.is_gone[link->engine])
        return false;
    if (link->remote->is_out || (sim_net.fails && sim_below(25) == 0)) {
        sim_net.failures++;
        if (sim_below(2) == 0) /* silence, and perhaps a call that is late to notice */
            sim_sleep_ns((left < 30000000000u ? left : 30000000000u) + sim_below(3) * 700000000u);
        *status = sim_now_ns() >= deadline_ns ? TIERCE_E_DEADLINE : TIERCE_E_DOWN;
        return false;
    }
    *status = 0;
    return true;
}

/* The way back: the request has had its effect. */
static int sim_return(const struct sim_link *link, uint64_t deadline_ns)
{
    int status;
    return sim_travel(link, &status, deadline_ns) ? 0 : status;
}

static struct sim_object **sim_object(const struct sim_link *link,
                                      const struct tierce_plugin_name *name)
{
    struct sim_object **at = &link->remote->objects;
    while (*at != NULL &&
           ((*at)->name_bytes != name->bytes || memcmp((*at)->name, name->text, name->bytes) != 0))
        at = &(*at)->next;
    return at;
}

static void sim_object_drop(struct sim_object **at)
{
    struct sim_object *object = *at;
    *at = object->next;
    free(object->bytes);
    free(object);
}

static int sim_find(void *opened, const struct tierce_plugin_name *names, size_t count,
                    _Atomic size_t *found, uint64_t deadline_ns)
{
    int status;
    if (!sim_travel(opened, &status, deadline_ns))
        return status;
    while (*found < count && *sim_object(opened, &names[*found]) != NULL)
        ++*found;
    return sim_return(opened, deadline_ns);
}

static int sim_get(void *opened, const struct tierce_plugin_name *name, void *memory,
                   uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    int status;
    if (!sim_travel(opened, &status, deadline_ns))
        return status;
    const struct sim_object *object = *sim_object(opened, name);
    if (object == NULL)
        return TIERCE_E_MISS;
    if (offset > object->count || length > object->count - offset)
        return TIERCE_E_FORMAT;
    memcpy(memory, object->bytes + offset, length);
    if (sim_net.damages && sim_below(8) == 0) {
        uint64_t at = sim_below(length);
        sim_net.damaged++;
        if (sim_below(2) == 0)
            ((uint8_t *)memory)[at] ^= (uint8_t)(1u << sim_below(8));
        else
            memset((uint8_t *)memory + at, 0, length - at);
    }
    return sim_return(opened, deadline_ns);
}

static int sim_put(void *opened, const struct tierce_plugin_name *name, const void *memory,
                   uint64_t length, uint64_t deadline_ns)
{
    struct sim_link *link = opened;
    int status;
    if (!sim_travel(link, &status, deadline_ns))
        return status;
    struct sim_object **at = sim_object(link, name);
    if (*at != NULL)
        sim_object_drop(at);
    struct sim_object *object = calloc(1, sizeof(*object));
    *object = (struct sim_object){.next = link->remote->objects,
                                  .number = ++link->remote->written,
                                  .name_bytes = name->bytes,
                                  .bytes = malloc(length),
                                  .count = length};
    memcpy(object->name, name->text, name->bytes);
    memcpy(object->bytes, memory, length);
    link->remote->objects = object;
    return sim_return(link, deadline_ns);
}

static int sim_remove(void *opened, const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    int status;
    if (!sim_travel(opened, &status, deadline_ns))
        return status;
    struct sim_object **at = sim_object(opened, name);
    if (*at != NULL)
        sim_object_drop(at);
    return sim_return(opened, deadline_ns);
}

static int sim_list(void *opened, const struct tierce_plugin_name *prefix, uint64_t *cursor,
                    tierce_plugin_each_fn *each, void *arg, uint64_t deadline_ns)
{
    uint64_t from = *cursor > 0 ? *cursor : UINT64_MAX, last = 0, count = 0;
    int status;
    if (!sim_travel(opened, &status, deadline_ns))
        return status;
    *cursor = 0;
    for (const struct sim_object *o = ((struct sim_link *)opened)->remote->objects; o != NULL;
         o = o->next) {
        if (o->number >= from || o->name_bytes < prefix->bytes ||
            memcmp(o->name, prefix->text, prefix->bytes) != 0)
            continue;
        if (count++ == SIM_LIST_PAGE) {
            *cursor = last;
            break;
        }
        last = o->number;
        each(arg, &(struct tierce_plugin_name){o->name, o->name_bytes});
    }
    return sim_return(opened, deadline_ns);
}

static int sim_ping(void *opened, uint64_t deadline_ns)
{
    return sim_return(opened, deadline_ns);
}

static int sim_open(void **out, struct tierce__client *own,
                    const struct tierce__connector_source *source,
                    char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const size_t at = sizeof("sim://") - 1;
    struct sim_link *link = *out;
    (void)own;
    (void)why;
    *link = (struct sim_link){.remote = &sim_net.stores[source->text[at] - 'a'],
                              .engine = (size_t)(source->text[at + 2] - '0')};
    return 0;
}

static int sim_link_open(void **out, void *store)
{
    memcpy(*out, store, sizeof(struct sim_link));
    return 0;
}

static const struct tierce__client sim_client = {
    .table = {.version = TIERCE_PLUGIN_VERSION,
              .size = sizeof(struct tierce_plugin),
              .caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS,
              .close = tierce__free,
              .link_open = sim_link_open,
              .link_close = tierce__free,
              .get = sim_get,
              .put = sim_put,
              .remove = sim_remove,
              .list = sim_list,
              .ping = sim_ping},
    .scheme = "sim",
    .store_bytes = sizeof(struct sim_link),
    .link_bytes = sizeof(struct sim_link),
    .links = 3,
    .open = sim_open,
    .find = sim_find};

/* In place of the library's: URLs of these stores. */
SIM_WRAPS(int, tierce__connector_open, struct tierce__connector **out, const char *url,
          const struct tierce__connector_opts *opts, char why[TIERCE__CONNECTOR_WHY_BYTES]);
int __wrap_tierce__connector_open(struct tierce__connector **out, const char *url,
                                  const struct tierce__connector_opts *opts,
                                  char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__url parsed = {0};
    if (strncmp(url, "sim:", 4) != 0)
        return __real_tierce__connector_open(out, url, opts, why);
    int rc = tierce__url_parse(&parsed, url, why);
    if (rc == 0)
        rc = tierce__links_open(out, &sim_client,
                                &(struct tierce__connector_source){
                                    .url = &parsed, .text = url, .store_name = url, .opts = opts},
                                why);
    tierce__url_clear(&parsed);
    return rc;
}

static inline void sim_net_end(void)
{
    for (size_t i = 0; i < SIM_STORES; i++)
        while (sim_net.stores[i].objects != NULL)
            sim_object_drop(&sim_net.stores[i].objects);
}

#endif
