/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PLUGIN_H
#define TIERCE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A remote store of your own, from a shared object.
 *
 *     remote.urls: "plugin:///usr/lib/tierce/mystore.so?connections=4&server=10.0.0.7"
 *
 * Tierce asks a store for named objects of opaque bytes, by plain calls that block until a
 * deadline. It makes a tier of it itself: names for chunks, a queue for what is written, deadlines,
 * a breaker, and the verification of every byte that comes back. So what is written here is a
 * client: a dozen functions, each of which may be as simple as it reads. examples/plugin_memory is
 * a whole one.
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
 * It needs no library of Tierce. The file's path is absolute; the file and every folder above it
 * belong to root or to the user that runs Tierce, and nobody else may write them (a folder with the
 * sticky bit, as /tmp, may be). It runs inside the process and can do whatever that can: load only
 * what you trust as you trust Tierce.
 *
 * What the functions must keep to:
 *
 * - An object is there whole or not at all: half of a put is never found, whatever happens to
 * either side, and a put of a name that is there replaces it at once. Several writers of one name
 * are allowed; the last one to finish wins.
 * - Connect when a call needs it, and again when a connection was lost. A store that is down is no
 *   error of open or link_open.
 * - Return by the deadline. What comes back later is thrown away, but the link is of no use until
 *   then, and the process cannot close the store.
 * - Do not send again what was sent and not answered.
 * - Put no credentials into `why`.
 *
 * Threads: open, close, link_open and link_close are called by any thread, one at a time for each
 * store. A link is used by one thread at a time, several links of a store at the same time. No
 * function is called by two threads with one link. Nothing may run in threads of the plug-in's own
 * after close has returned: the object is unloaded then.
 *
 * Memory: what is passed to a function is the caller's and good until the function returns; what a
 * function returns by a pointer (a store, a link, a text) is the plug-in's.
 *
 * Functions return 0, or
 *
 *     TIERCE_E_MISS      get: it is not there
 *     TIERCE_E_FULL      put: there is no room
 *     TIERCE_E_LIMIT     put: larger than the store takes
 *     TIERCE_E_REFUSED   the store does not take the credentials, or they may not do this
 *     TIERCE_E_DOWN      it cannot be reached
 *     TIERCE_E_DEADLINE  the deadline has passed
 *     TIERCE_E_FORMAT    it answers what cannot be understood, or an object is not as long as it
 *                        must be
 *     a negative errno   anything else
 *
 * Anything that is not 0 or a miss counts as a failure of the store; after some in a row it is left
 * alone for a while. What is none of these is taken for TIERCE_E_FORMAT.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* Tierce loads what was made for its own version. A new function or another meaning is a new
 * version; this header says then which ones are still taken. */
#define TIERCE_PLUGIN_VERSION 1u

/* What a store can do beyond the least. */
#define TIERCE_PLUGIN_RANGES    1u /* get takes any range; else it is asked for whole objects only */
#define TIERCE_PLUGIN_LISTS     2u /* list is there */
#define TIERCE_PLUGIN_NO_DELETE 8u /* it cannot delete: remove is not there */

#define TIERCE_PLUGIN_NAME_MAX 512u
#define TIERCE_PLUGIN_NEVER    UINT64_MAX

/* The name of an object: 1 .. TIERCE_PLUGIN_NAME_MAX bytes without NUL. No path: it may hold
 * slashes, dots, spaces and anything else, which the plug-in maps to what its store takes. */
struct tierce_plugin_name {
    const char *text; /* not terminated */
    size_t bytes;
};

/* A parameter of the URL, decoded: all but `connections` and `read_only`, which are Tierce's. */
struct tierce_plugin_param {
    const char *name, *value;
};

struct tierce_plugin_opts {
    size_t size; /* sizeof(struct tierce_plugin_opts) */
    const struct tierce_plugin_param *params;
    size_t param_count;
    uint32_t links; /* how many will be opened at most */
};

/* One name of a page, for the call. */
typedef void tierce_plugin_each_fn(void *arg, const struct tierce_plugin_name *name);

/* Deadlines are nanoseconds of CLOCK_MONOTONIC, or TIERCE_PLUGIN_NEVER. All functions are there but
 * those that say when they are not. The table is constant. */
struct tierce_plugin {
    uint32_t version; /* TIERCE_PLUGIN_VERSION */
    uint32_t size;    /* sizeof(struct tierce_plugin) */
    unsigned caps;    /* TIERCE_PLUGIN_RANGES | ... */

    /* A store, which is not connected yet. A parameter that is not known must be refused, so that
     * nobody believes in one that does nothing. On failure: a negative status, and `why` in words
     * without credentials. */
    int (*open)(void **store, const struct tierce_plugin_opts *opts, char *why, size_t why_room);
    /* After all its links are closed. */
    void (*close)(void *store);

    /* One connection, or whatever serves one call at a time. Not connected yet. */
    int (*link_open)(void **link, void *store);
    void (*link_close)(void *link);

    /* *found: how many leading names are there. */
    int (*exists)(void *link, const struct tierce_plugin_name *names, size_t count, size_t *found,
                  uint64_t deadline_ns);
    /* Bytes [offset, offset + length) of an object, length > 0. Without TIERCE_PLUGIN_RANGES:
     * offset 0 and the whole object, whose length must be `length`. An object that ends before the
     * range does, or that is not `length` long where it is read whole, is TIERCE_E_FORMAT; then,
     * and on any failure, the memory may hold anything. */
    int (*get)(void *link, const struct tierce_plugin_name *name, void *memory, uint64_t offset,
               uint64_t length, uint64_t deadline_ns);
    /* length > 0. */
    int (*put)(void *link, const struct tierce_plugin_name *name, const void *memory,
               uint64_t length, uint64_t deadline_ns);
    /* One that is not there is fine. NULL with TIERCE_PLUGIN_NO_DELETE. */
    int (*remove)(void *link, const struct tierce_plugin_name *name, uint64_t deadline_ns);
    /* A page of the names that begin with `prefix` (0 bytes: all). *cursor is 0 for the first page,
     * and 0 again after the last; a page may be empty. A name that is there all the time is told
     * once at least. NULL without TIERCE_PLUGIN_LISTS. */
    int (*list)(void *link, const struct tierce_plugin_name *prefix, uint64_t *cursor,
                tierce_plugin_each_fn *each, void *arg, uint64_t deadline_ns);
    /* Is the store there, and does it take the credentials? */
    int (*ping)(void *link, uint64_t deadline_ns);

    /* The last failure of a link in words, or "". Good until the link's next call. May be NULL. */
    const char *(*why)(void *link);
};

/* What the shared object exports. Called once for each URL. */
TIERCE_API const struct tierce_plugin *tierce_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
