/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_LINKS_H
#define TIERCE_CONNECTOR_LINKS_H

#include "store/remote/connector_private.h"
#include <tierce/plugin.h>

/*
 * A connector made of links: a link is one connection, whose calls block until their deadline. Each
 * link has a thread of its own; requests wait for one in order of their urgency. One link never
 * takes stores, so that a lookup does not wait behind them.
 *
 * The functions are those of a plug-in (<tierce/plugin.h>), with its rules; a built-in
 * client may have additional functions. The links of a connector share `store`.
 *
 * A request is answered at its deadline whether a link had time for it or not. A call that does not
 * return by its deadline (a hung file system) is abandoned with the link's thread, which takes no
 * requests until the call returns. Texts and memory are the link's until then.
 *
 * A link is used by its own thread alone; link_close and close may be called by another one, after
 * all calls.
 */

/* One of several GETs. */
struct tierce__link_get {
    const struct tierce_plugin_name *name;
    uint8_t *memory;
    uint64_t offset, length;
    uint64_t *object_bytes; /* [in, out] as in store_req.h; NULL without TIERCE__CONNECTOR_FORMS */
};
#define TIERCE__LINKS_GETS 8u /* at most, of a link */

struct tierce__link_state {
    uint64_t connects; /* so far */
    bool is_connected; /* now */
    /* The error of a call that failed is that of an earlier attempt to connect, and nothing was
     * sent. */
    bool repeats;
};

struct tierce__client {
    struct tierce_plugin table; /* its `open` is called by a plug-in's `open` below only */
    const char *scheme;
    void *object; /* the shared object of a plug-in, whose answers are checked; closed after
                     the store. NULL: a built-in client */
    /* Not 0: `open` and `link_open` are given zeroed memory of that size, which `close` and
     * `link_close` free, also if `open` or `link_open` failed. */
    size_t store_bytes, link_bytes;
    uint32_t links;       /* how many, unless the URL has `connections` */
    uint32_t names_max;   /* that exists takes at a time; 0: any number */
    bool explains_misses; /* `why` describes TIERCE_E_MISS too */

    const char *prefix; /* of all names in the store; a request's names lack it. NULL: none. [borrow
                           until close] */

    /* All below may be NULL. Errors and statuses are those of the table. */

    /* In place of all else, for a connector without links. Errors: as tierce__connector_open. */
    int (*make)(struct tierce__connector **out, const struct tierce__connector_source *source,
                char why[TIERCE__CONNECTOR_WHY_BYTES]);
    /* In place of table.open: creates a store. May change *own, the client's copy for this store.
     * Errors, with `why` set: as tierce__connector_open. */
    int (*open)(void **store, struct tierce__client *own,
                const struct tierce__connector_source *source,
                char why[TIERCE__CONNECTOR_WHY_BYTES]);
    /* In place of table.exists: keeps *found at the number of leading names that exist for certain.
     * A request is answered with this number at its deadline. It is 0 at the call. */
    int (*find)(void *link, const struct tierce_plugin_name *names, size_t count,
                _Atomic size_t *found, uint64_t deadline_ns);
    /* A GET of a whole object of up to `room` bytes; *bytes is its length. Requires
     * TIERCE__CONNECTOR_TELLS_LENGTH. */
    int (*get_whole)(void *link, const struct tierce_plugin_name *name, void *memory, uint64_t room,
                     uint64_t *bytes, uint64_t deadline_ns);
    /* In place of table.get, with TIERCE__CONNECTOR_FORMS. */
    int (*get_form)(void *link, const struct tierce__link_get *get, uint64_t deadline_ns);
    /* The length of an object, for a LOOKUP of a single name. Errors: TIERCE_E_MISS; as exists. */
    int (*measure)(void *link, const struct tierce_plugin_name *name, uint64_t *bytes,
                   uint64_t deadline_ns);
    /* Several GETs in flight: sends `count` >= 2 requests, and then reads their answers in order,
     * each as `get` does. An error of send_gets is the answer to the first GET. After such an
     * error, and after an answer that left the link disconnected, no more answers are read, and the
     * other GETs are sent again. Requires `state`. */
    int (*send_gets)(void *link, const struct tierce__link_get *gets, size_t count,
                     uint64_t deadline_ns);
    int (*read_get)(void *link, const struct tierce__link_get *get, uint64_t deadline_ns);
    /* After a call. NULL: a link is connected unless its last call ended with TIERCE_E_DOWN or
     * TIERCE_E_DEADLINE. */
    struct tierce__link_state (*state)(const void *link);
    /* Called if calls are still in progress at the deadline of close: ends them, so that they
     * return with an error. Called while they run. */
    void (*abort)(void *store);
};

#define TIERCE__LINKS_MAX 150u

struct tierce__links_opts {
    const struct tierce__client *client; /* [borrow for the call] */
    void *store;                         /* [transfer, on an error too] */
    uint32_t links;                      /* threads, 2 .. TIERCE__LINKS_MAX */
    uint32_t waiting_max;   /* requests that wait for a link; beyond it TIERCE_E_LIMIT. 0: 4096 */
    const char *store_name; /* for `why`: "redis://127.0.0.1:6379"; [borrow for the call] */
};

/*
 * Errors: -ENOMEM, -EAGAIN (no thread), those of link_open.
 *
 * close cancels waiting requests, and waits until the deadline for calls in progress. It then
 * aborts the remaining calls, if that is possible, and waits two more seconds. Calls that still
 * have not returned are abandoned; the last one to return frees the rest of the connector.
 */
TIERCE_MUSTUSE int tierce__links_create(struct tierce__connector **out,
                                        const struct tierce__links_opts *opts);

/* The connector of a URL: reads `connections`, and opens the client's store. Errors: as
 * tierce__connector_open. */
TIERCE_MUSTUSE int tierce__links_open(struct tierce__connector **out,
                                      const struct tierce__client *client,
                                      const struct tierce__connector_source *source,
                                      char why[TIERCE__CONNECTOR_WHY_BYTES]);

#endif
