/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_LINKS_H
#define TIERCE_CONNECTOR_LINKS_H

#include "store/remote/connector.h"

/*
 * A connector out of links: a link is one connection, whose calls block until their deadline. Each
 * link has a thread of its own; requests wait for one in order of their urgency. One link never
 * takes stores, so that a lookup does not wait behind them.
 *
 * A request is answered at its deadline whether a link had time for it or not. A call that does not
 * return by its deadline (a hung file system) is abandoned with the link's thread, which takes no
 * requests until the call returns.
 *
 * A connector creates one link per thread; `arg` is their shared state. A link is used by its own
 * thread alone; destroy and end may be called by another one, after all calls.
 */

struct tierce__link; /* of the implementation */

/* One of several GETs. */
struct tierce__link_get {
    const struct tierce__store_name *name;
    uint8_t *memory;
    uint64_t offset, length;
};
#define TIERCE__LINKS_GETS 8u /* at most, of a link */

struct tierce__link_ops {
    const char *scheme;
    unsigned caps;

    /* Not connected yet; the first call connects. Errors: -ENOMEM. */
    int (*create)(struct tierce__link **out, void *arg);
    void (*destroy)(struct tierce__link *link);

    /* As the requests of connector.h, each until deadline_ns. Errors: statuses as there. All texts
     * and memory are the link's until the call returns, even where that is after the deadline. */
    /* EXISTS: the link keeps *found at the number of leading names that exist for certain. At the
     * deadline the request is answered with this number. It is 0 at the call. */
    int (*exists)(struct tierce__link *link, const struct tierce__store_name *names, size_t count,
                  _Atomic size_t *found, uint64_t deadline_ns);
    size_t exists_max; /* names that exists takes at a time; 0: any number */
    int (*get)(struct tierce__link *link, const struct tierce__store_name *name, uint8_t *memory,
               uint64_t offset, uint64_t length, uint64_t deadline_ns);
    /* Several GETs on their way at once, or NULL: sends the questions of all, count >= 2, and then
     * reads their answers, each in its turn, as `get` does. An error of send_gets is the answer of
     * the first; after it, and after an answer behind which is_connected is false, no more are
     * read: the others are asked for again. */
    int (*send_gets)(struct tierce__link *link, const struct tierce__link_get *gets, size_t count,
                     uint64_t deadline_ns);
    int (*read_get)(struct tierce__link *link, const struct tierce__link_get *get,
                    uint64_t deadline_ns);
    int (*put)(struct tierce__link *link, const struct tierce__store_name *name,
               const uint8_t *memory, uint64_t length, uint64_t deadline_ns);
    /* NULL with TIERCE__CONNECTOR_NO_DELETE. */
    int (*remove)(struct tierce__link *link, const struct tierce__store_name *name,
                  uint64_t deadline_ns);
    /* NULL without TIERCE__CONNECTOR_LISTS. `prefix` may be of 0 bytes. */
    int (*list)(struct tierce__link *link, const struct tierce__store_name *prefix,
                uint64_t *cursor, tierce__connector_each_fn *each, void *arg, uint64_t deadline_ns);
    int (*ping)(struct tierce__link *link, uint64_t deadline_ns);

    /* After a call: is there a connection now, and how many has it made so far? */
    bool (*is_connected)(const struct tierce__link *link);
    uint64_t (*connects)(const struct tierce__link *link);
    /* After a call that failed: whether its error is that of an earlier attempt to connect, and
     * nothing was sent. NULL: it never is. */
    bool (*repeats)(const struct tierce__link *link);
    /* The last failure of this link in words, without credentials. [borrow until the next call] */
    const char *(*why)(const struct tierce__link *link);

    /* Called when close has waited until its deadline in vain: ends all calls in progress, which
     * then return with an error. Called while they run. NULL if this is impossible. */
    void (*abort)(void *arg);
    /* Frees the shared state after all links have been destroyed. */
    void (*end)(void *arg);
};

#define TIERCE__LINKS_MAX 150u

struct tierce__links_opts {
    const struct tierce__link_ops *ops;
    void *arg;              /* for create and end */
    uint32_t links;         /* threads, 2 .. TIERCE__LINKS_MAX */
    uint32_t waiting_max;   /* requests that wait for a link; beyond it TIERCE_E_LIMIT */
    const char *store_name; /* for `why`: "redis://127.0.0.1:6379"; [borrow for the call] */
};

/*
 * On success takes over opts->arg, and on an error too. Errors: -ENOMEM, -EAGAIN (no thread).
 *
 * close cancels waiting requests, and waits until the deadline for calls in progress. It then
 * aborts the remaining calls, if that is possible, and waits two more seconds. Calls that still
 * have not returned are abandoned; the last one to return frees the rest of the connector.
 */
TIERCE_MUSTUSE int tierce__links_create(struct tierce__connector **out,
                                        const struct tierce__links_opts *opts);

#endif
