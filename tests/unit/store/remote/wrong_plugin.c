/* SPDX-License-Identifier: Apache-2.0 */
/* A plug-in that is wrong in one way, by the macro WRONG; for test_plugin.c. */
#include <tierce/plugin.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NOTHING, SYMBOL, TABLE, VERSION, SIZE, CAPS, FUNCTION, OPEN, OPEN_SILENT, LINK, ANSWERS };

static int store, fails;

static int open_store(void **out, const struct tierce_plugin_opts *opts, char *why, size_t why_room)
{
    *out = &store;
    if (WRONG == OPEN) {
        memset(why, 'x', why_room); /* without an end */
        return -EINVAL;
    }
    for (size_t i = 0; i < opts->param_count; i++) {
        if (strcmp(opts->params[i].name, "a b") != 0 || strcmp(opts->params[i].value, "c&d") != 0) {
            snprintf(why, why_room, "unknown parameter %s", opts->params[i].name);
            return -EINVAL;
        }
    }
    return WRONG == OPEN_SILENT ? 1 : 0;
}

static void close_store(void *opened)
{
    (void)opened;
}

static int open_link(void **out, void *opened)
{
    *out = opened;
    return WRONG == LINK ? 7 : 0;
}

static int exists(void *link, const struct tierce_plugin_name *names, size_t count, size_t *found,
                  uint64_t deadline_ns)
{
    (void)link;
    (void)names;
    (void)deadline_ns;
    *found = count + 1;
    return 0;
}

static int get(void *link, const struct tierce_plugin_name *name, void *memory, uint64_t offset,
               uint64_t length, uint64_t deadline_ns)
{
    (void)link;
    (void)name;
    (void)memory;
    (void)offset;
    (void)length;
    (void)deadline_ns;
    return fails++ % 2 == 0 ? 5 : TIERCE_E_CONFIG;
}

/* Returns long after the deadline. */
static int put(void *link, const struct tierce_plugin_name *name, const void *memory,
               uint64_t length, uint64_t deadline_ns)
{
    (void)link;
    (void)name;
    (void)memory;
    (void)length;
    (void)deadline_ns;
    usleep(500000);
    return 0;
}

static int forget(void *link, const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    (void)link;
    (void)name;
    (void)deadline_ns;
    return TIERCE_E_MISS;
}

static int list(void *link, const struct tierce_plugin_name *prefix, uint64_t *cursor,
                tierce_plugin_each_fn *each, void *arg, uint64_t deadline_ns)
{
    static char large[TIERCE_PLUGIN_NAME_MAX + 1];
    (void)link;
    (void)prefix;
    (void)deadline_ns;
    memset(large, 'p', sizeof(large));
    each(arg, &(struct tierce_plugin_name){"", 0});
    each(arg, &(struct tierce_plugin_name){large, sizeof(large)});
    each(arg, &(struct tierce_plugin_name){"p\0q", 3});
    each(arg, &(struct tierce_plugin_name){"other", 5});
    each(arg, &(struct tierce_plugin_name){"p1", 2});
    *cursor = 0;
    return 0;
}

static int ping(void *link, uint64_t deadline_ns)
{
    (void)link;
    (void)deadline_ns;
    return TIERCE_E_DOWN;
}

static const char *tell_why(void *link)
{
    (void)link;
    return "in its own words";
}

static const struct tierce_plugin plugin = {
    .version = TIERCE_PLUGIN_VERSION + (WRONG == VERSION),
    .size = sizeof(plugin) - (WRONG == SIZE),
    .caps = TIERCE_PLUGIN_LISTS | (WRONG == CAPS ? 64u : 0),
    .open = open_store,
    .close = close_store,
    .link_open = open_link,
    .link_close = close_store,
    .exists = exists,
    .get = get,
    .put = put,
    .remove = WRONG == FUNCTION ? NULL : forget,
    .list = list,
    .ping = ping,
    .why = tell_why,
};

#if WRONG_HAS_SYMBOL
const struct tierce_plugin *tierce_plugin(void)
{
    return WRONG == TABLE ? NULL : &plugin;
}
#else
const struct tierce_plugin *tierce_other(void);
const struct tierce_plugin *tierce_other(void)
{
    return &plugin;
}
#endif
