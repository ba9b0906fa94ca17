/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store in the memory of the process, as a plug-in of Tierce. It has only the parts that every
 * plug-in has, and requires only <tierce/plugin.h>.
 *
 *     cc -O2 -shared -fPIC -o plugin_memory.so plugin_memory.c
 *     remote.urls: "plugin:///absolute/path/plugin_memory.so?bytes=1073741824"
 *
 * All engines of a process share one store, which is freed when the last of them closes it.
 */
#define _POSIX_C_SOURCE 200809L
#include <tierce/plugin.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUCKETS       4096u
#define BYTES_DEFAULT (1ull << 30)

struct object {
    struct object *next;
    uint64_t bytes;
    size_t name_bytes;
    char text[]; /* the name, then the bytes */
};

/* The mutex protects everything. A network client would keep an address here, and its connection
 * in a struct link. */
static struct {
    pthread_mutex_t mutex;
    unsigned opens;
    struct object *buckets[BUCKETS];
    uint64_t used_bytes, bytes_max;
} store = {.mutex = PTHREAD_MUTEX_INITIALIZER};

struct link {
    const char *why;
};

/* ---- objects; under the mutex ---------------------------------------------------------------- */

/* The pointer to a name's object, or to the NULL at which the object would be added. */
static struct object **find(const struct tierce_plugin_name *name)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < name->bytes; i++)
        hash = (hash ^ (unsigned char)name->text[i]) * 1099511628211u;
    struct object **at = &store.buckets[hash % BUCKETS];
    while (*at != NULL &&
           ((*at)->name_bytes != name->bytes || memcmp((*at)->text, name->text, name->bytes) != 0))
        at = &(*at)->next;
    return at;
}

static void drop(struct object **at)
{
    struct object *object = *at;
    *at = object->next;
    store.used_bytes -= object->bytes;
    free(object);
}

/* ---- the store ------------------------------------------------------------------------------- */

static int open_store(void **out, const struct tierce_plugin_opts *opts, char *why, size_t why_room)
{
    uint64_t bytes_max = BYTES_DEFAULT;
    for (size_t i = 0; i < opts->param_count; i++) {
        const struct tierce_plugin_param *param = &opts->params[i];
        char *end = NULL;
        if (strcmp(param->name, "bytes") != 0) {
            snprintf(why, why_room, "unknown parameter %s; there is bytes", param->name);
            return -EINVAL;
        }
        bytes_max = strtoull(param->value, &end, 10);
        if (bytes_max == 0 || *end != '\0') {
            snprintf(why, why_room, "bytes is no number above 0");
            return -EINVAL;
        }
    }
    pthread_mutex_lock(&store.mutex);
    store.opens++;
    store.bytes_max = bytes_max;
    pthread_mutex_unlock(&store.mutex);
    *out = &store;
    return 0;
}

static void close_store(void *opened)
{
    (void)opened;
    pthread_mutex_lock(&store.mutex);
    store.opens--;
    for (size_t i = 0; i < BUCKETS && store.opens == 0; i++) {
        while (store.buckets[i] != NULL)
            drop(&store.buckets[i]);
    }
    pthread_mutex_unlock(&store.mutex);
}

static int open_link(void **out, void *opened)
{
    (void)opened;
    struct link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return -ENOMEM;
    link->why = "";
    *out = link;
    return 0;
}

static void close_link(void *link)
{
    free(link);
}

static const char *tell_why(void *arg)
{
    return ((struct link *)arg)->why;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* A network's client waits no longer than this; here only the mutex is waited for. */
static int take(uint64_t deadline_ns)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec >= deadline_ns)
        return TIERCE_E_DEADLINE;
    pthread_mutex_lock(&store.mutex);
    return 0;
}

static int give(int rc)
{
    pthread_mutex_unlock(&store.mutex);
    return rc;
}

static int count_leading(void *link, const struct tierce_plugin_name *names, size_t count,
                         size_t *found, uint64_t deadline_ns)
{
    (void)link;
    int rc = take(deadline_ns);
    if (rc != 0)
        return rc;
    *found = 0;
    while (*found < count && *find(&names[*found]) != NULL)
        (*found)++;
    return give(0);
}

static int get(void *arg, const struct tierce_plugin_name *name, void *memory, uint64_t offset,
               uint64_t length, uint64_t deadline_ns)
{
    struct link *link = arg;
    int rc = take(deadline_ns);
    if (rc != 0)
        return rc;
    const struct object *object = *find(name);
    if (object == NULL)
        return give(TIERCE_E_MISS);
    if (offset > object->bytes || length > object->bytes - offset) {
        link->why = "the object ends before the range";
        return give(TIERCE_E_FORMAT);
    }
    memcpy(memory, object->text + object->name_bytes + offset, (size_t)length);
    return give(0);
}

/* Allocated and filled before it is hung in: nobody finds half of it. */
static int put(void *arg, const struct tierce_plugin_name *name, const void *memory,
               uint64_t length, uint64_t deadline_ns)
{
    struct link *link = arg;
    struct object *object = malloc(sizeof(*object) + name->bytes + (size_t)length);
    if (object == NULL)
        return -ENOMEM;
    object->bytes = length;
    object->name_bytes = name->bytes;
    memcpy(object->text, name->text, name->bytes);
    memcpy(object->text + name->bytes, memory, (size_t)length);
    int rc = take(deadline_ns);
    if (rc != 0) {
        free(object);
        return rc;
    }
    struct object **at = find(name);
    uint64_t replaced = *at != NULL ? (*at)->bytes : 0;
    if (store.used_bytes - replaced + length > store.bytes_max) {
        free(object);
        link->why = "no room";
        return give(TIERCE_E_FULL);
    }
    if (*at != NULL)
        drop(at);
    object->next = *at;
    *at = object;
    store.used_bytes += length;
    return give(0);
}

static int forget(void *link, const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    (void)link;
    int rc = take(deadline_ns);
    if (rc != 0)
        return rc;
    struct object **at = find(name);
    if (*at != NULL)
        drop(at);
    return give(0);
}

/* A page is 64 buckets: an object stays in its own, so none is omitted when others come and go. */
static int list(void *link, const struct tierce_plugin_name *prefix, uint64_t *cursor,
                tierce_plugin_each_fn *each, void *arg, uint64_t deadline_ns)
{
    (void)link;
    int rc = take(deadline_ns);
    if (rc != 0)
        return rc;
    uint64_t i = *cursor, end = *cursor + 64;
    for (; i < end && i < BUCKETS; i++) {
        for (const struct object *object = store.buckets[i]; object != NULL;
             object = object->next) {
            struct tierce_plugin_name name = {object->text, object->name_bytes};
            if (name.bytes >= prefix->bytes && memcmp(name.text, prefix->text, prefix->bytes) == 0)
                each(arg, &name);
        }
    }
    *cursor = i < BUCKETS ? i : 0;
    return give(0);
}

static int ping(void *link, uint64_t deadline_ns)
{
    (void)link;
    int rc = take(deadline_ns);
    return rc != 0 ? rc : give(0);
}

/* ---- what Tierce sees ------------------------------------------------------------------------ */

static const struct tierce_plugin plugin = {
    .version = TIERCE_PLUGIN_VERSION,
    .size = sizeof(plugin),
    .caps = TIERCE_PLUGIN_RANGES | TIERCE_PLUGIN_LISTS,
    .open = open_store,
    .close = close_store,
    .link_open = open_link,
    .link_close = close_link,
    .exists = count_leading,
    .get = get,
    .put = put,
    .remove = forget,
    .list = list,
    .ping = ping,
    .why = tell_why,
};

const struct tierce_plugin *tierce_plugin(void)
{
    return &plugin;
}
