/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONTROLLER_H
#define TIERCE_MANAGER_CONTROLLER_H

#include "core/key/lmcache.h"
#include "base/text/line.h"
#include "manager/holdings/holdings.h"
#include "manager/lmcache/controller_message.h"

/*
 * The workers of LMCache that a manager knows, and their chunks: the meaning of their messages
 * (docs/inside/format/lmcache-controller.md), without sockets.
 *
 *     rc = tierce__controller_create(&controller, &opts);
 *     answered = tierce__controller_take(controller, frame, bytes, now_ns, &reply);
 *     tierce__controller_tick(controller, leads, now_ns);                  // once a second or so
 *     rc = tierce__controller_find(controller, keys, count, each, arg);
 *
 * Each location of a worker is a worker of the manager's directory, "lmcache/INSTANCE/WORKER/
 * LOCATION" in one group: numbers of changes and contents are those of a location. The directory
 * counts the changes itself. A gap in LMCache's numbers does not hold up later changes; the worker
 * must then send all of its contents, if it sends heartbeats.
 *
 * Thread: any; take one at a time. Times are of clock.h. No call blocks on I/O.
 */

struct tierce__controller;

struct tierce__controller_opts {
    size_t size;
    struct tierce__holdings *holdings; /* [borrow until destroy] */
    const char *group;                 /* [borrow until destroy] */
    const char *heartbeat_url; /* HOST:PORT for workers, or "": none. [borrow until destroy] */
    uint32_t workers_max;      /* 0: 1024 */
    uint64_t silence_ns; /* a worker that has sent heartbeats leaves after so much; 0: 300 s */
};

/* Errors: -ENOMEM, -EIO (no random numbers). */
TIERCE_MUSTUSE int tierce__controller_create(struct tierce__controller **out,
                                             const struct tierce__controller_opts *opts);
/* All workers leave the directory. NULL is accepted. */
void tierce__controller_destroy(struct tierce__controller *controller);

/* Takes the message of one frame, and appends the answer to a request to *reply. Returns whether
 * there is one: for a frame that is invalid or no request there is an error. `leads`: a manager
 * that does not lead refuses all requests, and ignores the rest. `reply` may be NULL: of a socket
 * without answers. */
bool tierce__controller_take(struct tierce__controller *controller, const void *frame, size_t bytes,
                             bool leads, uint64_t now_ns, struct tierce__line *reply);

/* Keeps the workers in the directory, and removes silent ones; all of them if the manager does not
 * lead. */
void tierce__controller_tick(struct tierce__controller *controller, bool leads, uint64_t now_ns);

/* ---- for others --------------------------------------------------------------------------------
 */

struct tierce__controller_about {
    char instance[TIERCE__CONTROLLER_INSTANCE_BYTES];
    char host[TIERCE__CONTROLLER_HOST_BYTES];
    char peer[TIERCE__CONTROLLER_PEER_BYTES]; /* "": none */
    uint32_t worker;
    uint16_t port;
    uint64_t registered_ns, heard_ns;
    uint64_t keys; /* in all locations */
};

/* The workers, in the order of their registration, on the heap; the caller frees *out. `instance`:
 * only its workers; NULL: all. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__controller_list(struct tierce__controller *controller,
                                           const char *instance,
                                           struct tierce__controller_about **out, size_t *count);

/* How many of the leading keys one location of a worker holds. */
struct tierce__controller_found {
    const char *instance, *location; /* [borrow for the call] */
    uint32_t worker, keys;
};

/* Calls `each` for the holders of the longest prefixes, the longest first, at most
 * TIERCE__DIRECTORY_PREFIXES_MAX. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__controller_find(
    struct tierce__controller *controller, const struct tierce__lmcache_int *keys, size_t count,
    void (*each)(void *arg, const struct tierce__controller_found *), void *arg);

struct tierce__controller_stats {
    uint64_t messages, operations, lookups, lookup_hits;
    uint64_t invalid; /* frames that were refused, and requests with an invalid place */
    uint64_t unknown; /* messages of workers that have not registered */
    uint64_t gaps;    /* missing numbers of changes */
    uint64_t syncs;   /* complete contents that were sent */
    uint64_t full;    /* workers and locations for which there was no room */
    uint32_t workers;
};
void tierce__controller_stats(struct tierce__controller *controller,
                              struct tierce__controller_stats *out);

#endif
