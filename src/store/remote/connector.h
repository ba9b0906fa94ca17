/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_H
#define TIERCE_CONNECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "core/chunk/pool.h"
#include <tierce/status.h>

/*
 * The client of one kind of remote store. It stores named objects of opaque bytes. The caller
 * (store/remote/remote.h) defines the meaning of names and verifies the bytes.
 *
 *     rc = tierce__connector_open(&connector, "redis://127.0.0.1:6379/0?ttl=24h", &opts, why);
 *     connector->ops->submit(connector, &req);      // answered by req.done
 *     left = connector->ops->close(connector, deadline_ns);
 *
 * Everything is a request, as in store/tier.h: submit() returns nothing and does not block; the
 * answer is done(req), exactly once, at the deadline at the latest, perhaps before submit returns,
 * perhaps from a thread of the connector, never under a lock of it. `done` must not block. The
 * request and its names are the caller's and stay until done. If an external call cannot be ended
 * at the deadline, it is abandoned: the connector keeps its own reference on the buffer until the
 * call returns, and touches nothing else of the request.
 *
 * An object exists whole or not at all: half of a PUT is never found, even after a crash of either
 * side, and a PUT of an existing name replaces the object atomically. Several writers of one name
 * are allowed; the last one to finish wins. With TIERCE__CONNECTOR_NO_REPLACE the first one wins: a
 * PUT of an existing name changes nothing and is answered 0, and an object must be deleted before
 * it is replaced.
 *
 * Connections are opened on demand and reopened after a loss. A request that was sent and not
 * answered is not sent again. Credentials are never in `why`, in a log or in a metric.
 *
 * Thread: any.
 */

struct tierce__connector;
struct tierce__connector_req;

typedef void tierce__connector_done_fn(struct tierce__connector_req *req);

enum tierce__connector_op {
    TIERCE__CONNECTOR_EXISTS, /* how many leading names are there? */
    TIERCE__CONNECTOR_GET,    /* a range of an object into a buffer */
    TIERCE__CONNECTOR_PUT,    /* keep an object */
    TIERCE__CONNECTOR_DELETE, /* forget an object; one that is not there is fine */
    TIERCE__CONNECTOR_LIST,   /* names, page by page; connectors with TIERCE__CONNECTOR_LISTS */
    TIERCE__CONNECTOR_PING,   /* is the store there, and does it take our credentials? */
};

/* Priority of requests when not all can be served at once. Equal ones are served in order of
 * arrival. */
enum tierce__connector_urgency {
    TIERCE__CONNECTOR_PEEK, /* EXISTS, PING */
    TIERCE__CONNECTOR_PREFETCH,
    TIERCE__CONNECTOR_FETCH,
    TIERCE__CONNECTOR_STORE, /* PUT, DELETE, LIST */
    TIERCE__CONNECTOR_URGENCIES
};

#define TIERCE__CONNECTOR_NAME_MAX 512u

/* The name of an object: bytes without '\0', 1 .. TIERCE__CONNECTOR_NAME_MAX. It is not a path: it
 * may contain slashes and dots, which the connector maps to characters that its store accepts. */
struct tierce__store_name {
    const char *text; /* not terminated */
    size_t bytes;
};

/* One name of a page. [borrow for the call] */
typedef void tierce__connector_each_fn(void *arg, const struct tierce__store_name *name);

struct tierce__connector_req {
    enum tierce__connector_op op;
    enum tierce__connector_urgency urgency;
    uint64_t deadline_ns; /* clock.h; TIERCE__DEADLINE_NEVER for none */
    tierce__connector_done_fn *done;
    void *arg; /* the caller's */

    /* EXISTS: names[0 .. name_count). [out] found: the number of leading names that exist for
     * certain, with any status; 0 if none is known. TIERCE_E_DEADLINE with found > 0 is a partial
     * answer: the names after these may or may not exist. GET, PUT, DELETE: names[0]. LIST:
     * names[0] is a prefix, or there is no name. [borrow until done] */
    const struct tierce__store_name *names;
    size_t name_count;
    size_t found;

    /*
     * GET: bytes [offset, offset + length) of the object to buf->data + offset. Without
     * TIERCE__CONNECTOR_RANGES: offset 0 and the whole object, whose length must be `length`. The
     * status is TIERCE_E_FORMAT if the object ends before the range, or, when read whole, is not
     * `length` bytes long; the contents of buf are then undefined. If it ends before the range
     * begins, the status may also be TIERCE_E_MISS. PUT: buf->data[0 .. length). `length` is never
     * 0. The caller keeps its reference until done.
     */
    struct tierce__buf *buf;
    uint64_t offset;
    uint64_t length;

    /* LIST: [in, out] cursor: 0 for the first page, 0 again after the last. `each` is called before
     * done for each name of the page, under no lock. A name that exists throughout is reported at
     * least once; a page may be empty. */
    uint64_t cursor;
    tierce__connector_each_fn *each;

    /*
     * [out] 0, or: TIERCE_E_MISS (not there), TIERCE_E_FULL (the store has no room),
     * TIERCE_E_REFUSED (it rejects our credentials, or they lack permission), TIERCE_E_DOWN (it
     * cannot be reached), TIERCE_E_DEADLINE, TIERCE_E_FORMAT (an invalid answer, or an object of
     * the wrong length), TIERCE_E_LIMIT (larger than the store accepts, or the request queue is
     * full), TIERCE_E_UNSUPPORTED, TIERCE_E_ARGUMENT (a contract above is broken), TIERCE_E_CLOSED,
     * TIERCE_E_CANCELLED (close was quicker), or a negative errno. In words: ops->why.
     */
    int status;
    /* [in] false; [out] true: `status` is a failure that another request was answered with. It is
     * no further sign that the store fails. */
    bool repeats;
    /* [in] false; [out] true: a connection was made for the request, so that the time to the answer
     * contains more round trips than others do. */
    bool connected;

    struct tierce__list node; /* the connector's while the request is with it */
    uint64_t scratch[8];      /* the connector's while the request is with it */
};

#define TIERCE__CONNECTOR_RANGES 1u /* GET takes any range */
#define TIERCE__CONNECTOR_LISTS  2u /* LIST */
#define TIERCE__CONNECTOR_NO_DELETE                                                                \
    8u /* DELETE is TIERCE_E_UNSUPPORTED: an object stays until it is replaced */
#define TIERCE__CONNECTOR_NO_REPLACE 16u /* PUT does not replace */

#define TIERCE__CONNECTOR_WHY_BYTES 256u

struct tierce__connector_stats {
    uint64_t connections; /* open now */
    uint64_t connects;    /* made so far */
    uint64_t requests_waiting;
    uint64_t requests_left_behind; /* present calls that have not returned by their deadline */
};

struct tierce__connector_ops {
    const char *scheme; /* of its URLs, "redis" */
    /* Thread: any. After close has begun: TIERCE_E_CLOSED. */
    void (*submit)(struct tierce__connector *connector, struct tierce__connector_req *req);
    /* The last failure in words, with the store's name and without credentials; "" for none.
     * Thread: any. */
    void (*why)(struct tierce__connector *connector, char why[TIERCE__CONNECTOR_WHY_BYTES]);
    void (*stats)(struct tierce__connector *connector, struct tierce__connector_stats *out);
    /* Answers every request and frees the connector. Blocks until the deadline at most. False: a
     * call has not returned, so the connector is abandoned and the pool of its buffers must never
     * be freed. */
    bool (*close)(struct tierce__connector *connector, uint64_t deadline_ns);
};

/* First member of every implementation. */
struct tierce__connector {
    const struct tierce__connector_ops *ops;
    unsigned caps; /* TIERCE__CONNECTOR_... of this store as it is configured */
    /* Adjacent ranges of one object, requested together into one buffer, are read in one request of
     * up to this many bytes; a shorter request costs as much. 0: each range is one request. */
    uint64_t read_bytes;
};

struct tierce__connector_opts {
    size_t size;               /* sizeof(struct tierce__connector_opts) */
    struct tierce__pool *pool; /* all buffers of requests are of this pool; for registering it */
};

/* Whether the connector of this URL needs a pool that other processes can map (`shared`). */
bool tierce__connector_needs_shared_pool(const char *url);

/*
 * The connector of a URL. Does not connect: a store that is down now may become available later;
 * PING checks it. [borrow] opts for the call, opts->pool until close. Errors, `why` in words
 * without credentials: TIERCE_E_CONFIG (an unknown scheme, with the list of those there are; a
 * wrong or unknown parameter, with the right ones), TIERCE_E_UNSUPPORTED (this build lacks it),
 * -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__connector_open(struct tierce__connector **out, const char *url,
                                          const struct tierce__connector_opts *opts,
                                          char why[TIERCE__CONNECTOR_WHY_BYTES]);

#endif
