/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PLUGIN_H
#define TIERCE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A remote store of your own, in a shared object. <tierce/plugin_policy.h> and
 * <tierce/plugin_codec.h> are the contracts of eviction policies and codecs; their files obey the
 * same rules.
 *
 *     remote.urls: "plugin:///usr/lib/tierce/mystore.so?connections=4&server=10.0.0.7"
 *
 * A plug-in is a client of a store of named objects: a dozen functions that block until a deadline.
 * Tierce makes a tier of it and adds the names of chunks, a write queue, deadlines, a breaker, and
 * the verification of every byte read. A complete example is examples/plugin_memory.
 *
 *     static const struct tierce_plugin plugin = {
 *         .version = TIERCE_PLUGIN_VERSION, .size = sizeof(plugin), .open = ..., .get = ...};
 *
 *     const struct tierce_plugin *tierce_plugin(void)
 *     {
 *         return &plugin;
 *     }
 *
 *     cc -shared -fPIC -o mystore.so mystore.c
 *
 * A plug-in links no library of Tierce. The path of the file must be absolute. The file and every
 * folder above it must belong to root or to the user that runs Tierce, and no other user may have
 * write permission (a folder with the sticky bit, such as /tmp, is allowed). The plug-in runs
 * inside the process with all its rights: load only code that you trust as much as Tierce.
 *
 * Rules for the functions:
 *
 * - An object exists whole or not at all: half of a put is never found, even after a crash of
 *   either side. A put of an existing name replaces the object atomically. Several writers of one
 *   name are allowed; the last one to finish wins.
 * - Connect when a call needs a connection, and reconnect after a loss. open and link_open succeed
 *   while the store is down.
 * - Return by the deadline. A later result is discarded; until the function returns, the link
 *   cannot be used and the process cannot close the store.
 * - Do not repeat a request that was sent and not answered.
 * - Put no credentials into `why`.
 *
 * Threads: any thread may call open, close, link_open and link_close; calls for one store never
 * overlap. Calls with one link never overlap either; different links of a store are used at the
 * same time. After close has returned, no thread of the plug-in may run: the object is unloaded
 * then.
 *
 * Memory: arguments belong to the caller and are valid until the function returns. Results that a
 * function returns by pointer (a store, a link, a text) belong to the plug-in.
 *
 * Functions return 0, or
 *
 *     TIERCE_E_MISS      get: the object does not exist
 *     TIERCE_E_FULL      put: the store has no room
 *     TIERCE_E_LIMIT     put: the object is larger than the store accepts
 *     TIERCE_E_REFUSED   the store rejects the credentials, or they do not permit the call
 *     TIERCE_E_DOWN      the store cannot be reached
 *     TIERCE_E_DEADLINE  the deadline has passed
 *     TIERCE_E_FORMAT    the store's answer is invalid, or an object has the wrong length
 *     a negative errno   any other error
 *
 * Every result except 0 and a miss counts as a failure of the store. After several failures in a
 * row the store is not called for a while. Other values are treated as TIERCE_E_FORMAT.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* Tierce loads plug-ins of its own version only. A new function or a changed meaning gets a new
 * version number; this header then lists the versions that are still accepted. */
#define TIERCE_PLUGIN_VERSION 1u

/* Optional abilities of a store. */
#define TIERCE_PLUGIN_RANGES    1u /* get accepts any range, not only the whole object */
#define TIERCE_PLUGIN_LISTS     2u /* list is not NULL */
#define TIERCE_PLUGIN_NO_DELETE 8u /* the store cannot delete: remove is NULL */

#define TIERCE_PLUGIN_NAME_MAX 512u
#define TIERCE_PLUGIN_NEVER    UINT64_MAX

/* The name of an object: 1 .. TIERCE_PLUGIN_NAME_MAX bytes without NUL. It is not a path: it may
 * contain slashes, dots, spaces and any other byte. The plug-in maps it to a name that its store
 * accepts. */
struct tierce_plugin_name {
    const char *text; /* not terminated */
    size_t bytes;
};

/* A decoded parameter of the URL. Tierce uses `connections` and `read_only` itself and does not
 * pass them. */
struct tierce_plugin_param {
    const char *name, *value;
};

struct tierce_plugin_opts {
    size_t size; /* sizeof(struct tierce_plugin_opts) */
    const struct tierce_plugin_param *params;
    size_t param_count;
    uint32_t links; /* maximum number of links */
};

/* One name of a page, for the call. */
typedef void tierce_plugin_each_fn(void *arg, const struct tierce_plugin_name *name);

/* Deadlines are nanoseconds of CLOCK_MONOTONIC, or TIERCE_PLUGIN_NEVER. A function may be NULL only
 * where its comment says so. The table is constant. */
struct tierce_plugin {
    uint32_t version; /* TIERCE_PLUGIN_VERSION */
    uint32_t size;    /* sizeof(struct tierce_plugin) */
    unsigned caps;    /* TIERCE_PLUGIN_RANGES | ... */

    /* Creates a store without connecting. An unknown parameter must be rejected, so that a misspelt
     * one is noticed. On failure: returns a negative status, and sets `why` to a sentence without
     * credentials. */
    int (*open)(void **store, const struct tierce_plugin_opts *opts, char *why, size_t why_room);
    /* Called after all links of the store are closed. */
    void (*close)(void *store);

    /* Creates a link without connecting: a connection, or another object that serves one call at a
     * time. */
    int (*link_open)(void **link, void *store);
    void (*link_close)(void *link);

    /* *found: the number of leading names that exist. */
    int (*exists)(void *link, const struct tierce_plugin_name *names, size_t count, size_t *found,
                  uint64_t deadline_ns);
    /* Bytes [offset, offset + length) of an object, length > 0. Without TIERCE_PLUGIN_RANGES:
     * offset 0 and the whole object, whose length must be `length`. Returns TIERCE_E_FORMAT if the
     * object ends before the range, or, when read whole, is not `length` bytes long. After any
     * failure the contents of `memory` are undefined. */
    int (*get)(void *link, const struct tierce_plugin_name *name, void *memory, uint64_t offset,
               uint64_t length, uint64_t deadline_ns);
    /* length > 0. */
    int (*put)(void *link, const struct tierce_plugin_name *name, const void *memory,
               uint64_t length, uint64_t deadline_ns);
    /* Removing a missing object succeeds. NULL with TIERCE_PLUGIN_NO_DELETE. */
    int (*remove)(void *link, const struct tierce_plugin_name *name, uint64_t deadline_ns);
    /* A page of the names that begin with `prefix` (0 bytes: all). *cursor is 0 for the first page,
     * and 0 again after the last; a page may be empty. A name that exists throughout the listing is
     * reported at least once. NULL without TIERCE_PLUGIN_LISTS. */
    int (*list)(void *link, const struct tierce_plugin_name *prefix, uint64_t *cursor,
                tierce_plugin_each_fn *each, void *arg, uint64_t deadline_ns);
    /* Checks that the store answers and accepts the credentials. */
    int (*ping)(void *link, uint64_t deadline_ns);

    /* The last failure of a link in words, or "". Valid until the link's next call. May be NULL. */
    const char *(*why)(void *link);
};

/* The symbol that the shared object exports. Called once for each URL. */
TIERCE_API const struct tierce_plugin *tierce_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
