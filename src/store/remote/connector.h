/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_H
#define TIERCE_CONNECTOR_H

#include "store/tier.h"

/*
 * The client of one kind of remote store. It stores named objects of opaque bytes. The caller
 * (store/remote/remote.h) defines the meaning of names and verifies the bytes.
 *
 *     rc = tierce__connector_open(&connector, "redis://127.0.0.1:6379/0?ttl=24h", &opts, why);
 *     connector->ops->submit(connector, &req);      // answered by req.done
 *     left = connector->ops->close(connector, deadline_ns);
 *
 * Everything is a request (store_req.h): LOOKUP, GET, PUT, DELETE, LIST and PING. submit() does not
 * block, and the answer comes at the deadline at the latest. If an external call cannot be ended at
 * the deadline, it is abandoned: the connector keeps its own reference on the buffer until the call
 * returns, and touches nothing else of the request.
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
struct tierce__namespaces;
struct tierce__peers_self;
struct tierce__tls_context;

#define TIERCE__CONNECTOR_RANGES 1u /* GET takes any range */
#define TIERCE__CONNECTOR_LISTS  2u /* LIST */
#define TIERCE__CONNECTOR_NO_DELETE                                                                \
    8u /* DELETE is TIERCE_E_UNSUPPORTED: an object stays until it is replaced */
#define TIERCE__CONNECTOR_NO_REPLACE 16u /* PUT does not replace */
#define TIERCE__CONNECTOR_ASKS                                                                     \
    32u /* a PUT asks by itself whether the store has the object, and transfers nothing then; it   \
           is answered 0 with `found` 1 */

#define TIERCE__CONNECTOR_NO_PUT 64u /* PUT is TIERCE_E_UNSUPPORTED: the store is read-only */
#define TIERCE__CONNECTOR_PINGS                                                                    \
    256u /* objects can be read while the store does not answer: only a PING shows that it does */
#define TIERCE__CONNECTOR_REJECTS                                                                  \
    128u /* DELETE of an object that has proved wrong (`left` CHECKSUM or IDENTITY) deletes        \
            nothing: the object is read from other places from then on */
#define TIERCE__CONNECTOR_EMPTY_MISSES                                                             \
    2048u /* GET of a range that begins behind the object's end is TIERCE_E_MISS, also if the      \
             object is empty */
#define TIERCE__CONNECTOR_TELLS_LENGTH                                                             \
    512u /* without RANGES: GET accepts takes_shorter (store_req.h) */
#define TIERCE__CONNECTOR_FORMS                                                                    \
    1024u /* with RANGES: objects are raw at one time or place and coded at another, and GET names \
             the form by its length (store_req.h) */

#define TIERCE__CONNECTOR_WHY_BYTES 256u

/*
 * A part of a namespace whose blocks were invalidated by the store (fleet://). The connector finds
 * and stores nothing of it until the engine has dropped its own blocks of the namespace, with the
 * puts that wait, and says so by `adopt`.
 */
struct tierce__invalidated {
    uint8_t ns_digest[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    uint64_t generation;
    uint64_t registry; /* a number of the registry that counts; 0: unknown */
    bool is_first;     /* no generation was known before: nothing need be invalid */
};
/* True: the engine has nothing of another generation, and `adopt` is not needed. Called on a thread
 * of the connector, which it must not block. [borrow for the call] */
typedef bool tierce__invalidated_fn(void *arg, const struct tierce__invalidated *what);

struct tierce__connector_ops {
    const char *scheme; /* of its URLs, "redis" */
    /* Thread: any. After close has begun: TIERCE_E_CLOSED. */
    void (*submit)(struct tierce__connector *connector, struct tierce__store_req *req);
    /* The last failure in words, with the store's name and without credentials; "" for none.
     * Thread: any. */
    void (*why)(struct tierce__connector *connector, char why[TIERCE__CONNECTOR_WHY_BYTES]);
    /* Sets connections, connects, waiting and calls_hanging, and no other field. */
    void (*stats)(struct tierce__connector *connector, struct tierce__tier_stats *out);
    /* Optional: a hint of a client about objects that were used, or have been stored before
     * (core/policy/policy.h). Nobody waits for it, and it may be lost. [borrow for the call] names,
     * texts of keys. Thread: any, before close. Does not block. */
    void (*hint)(struct tierce__connector *connector, const struct tierce_plugin_name *names,
                 size_t count, enum tierce__policy_hint hint);
    /* The engine has nothing any more of what was invalidated. NULL for stores that invalidate
     * nothing. Errors: -ENOMEM, it is to be repeated. Thread: any. */
    TIERCE_MUSTUSE int (*adopt)(struct tierce__connector *connector,
                                const struct tierce__invalidated *what);
    /*
     * A caller that answers its own caller after `done` of a GET, with the bytes of this GET, does
     * so between these two calls, and only if answer_begin returns true: no bytes that were
     * invalidated are answered after `invalidated` was called. It must not block between them.
     * `guard` is that of the GET. NULL for stores that invalidate nothing. Thread: any, before
     * close.
     */
    bool (*answer_begin)(struct tierce__connector *connector,
                         const struct tierce__store_guard *guard);
    void (*answer_end)(struct tierce__connector *connector,
                       const struct tierce__store_guard *guard);
    /* Answers every request and frees the connector. Blocks until the deadline at most. False: a
     * call has not returned, so the connector is abandoned and the pool of its buffers must never
     * be freed. */
    bool (*close)(struct tierce__connector *connector, uint64_t deadline_ns);
};

/* First member of every implementation. */
struct tierce__connector {
    const struct tierce__connector_ops *ops;
    unsigned caps; /* TIERCE__CONNECTOR_... of this store, as configured */
    /* Adjacent ranges of one object, requested together into one buffer, are read in one request of
     * up to this many bytes; a shorter request costs as much. 0: each range is one request. */
    uint64_t read_bytes;
};

struct tierce__connector_opts {
    size_t size;               /* sizeof(struct tierce__connector_opts) */
    struct tierce__pool *pool; /* all buffers of requests are of this pool; for registering it */
    /* Those of all names, which are texts of keys; [borrow until close]. NULL: names are any texts,
     * and stores that need to know more are refused (fleet://). */
    struct tierce__namespaces *namespaces;
    /* The engine's place in a directory; [borrow until close]. NULL: none, and stores that need it
     * are refused (peers://). */
    struct tierce__peers_self *peers_self;
    /* Of transfer+tls://, in place of ca_file. [borrow until close] NULL: that one. */
    struct tierce__tls_context *tls;
    /* Of transfer://, in place of the one in token_file. [borrow for the call] NULL: none. */
    const char *token;
    /* Of transfer://: a connection that fails is not made again, and one fails also when the
     * network lets nothing pass for so long. 0: it is made again, and waits until the deadlines. */
    uint32_t silence_ms;
    /* Of transfer://: a request fails when no bytes, a MiB of them or the rest, have moved within
     * this time, although its deadline is later. 0: requests have their deadlines alone. */
    uint32_t patience_ms;
    tierce__invalidated_fn *invalidated; /* NULL: the caller keeps nothing between requests, and
                                            what is invalidated is adopted at once */
    void *invalidated_arg;
};

/* Whether the connector of this URL needs a pool that other processes can map (`shared`). */
bool tierce__connector_needs_shared_pool(const char *url);

/*
 * The connector of a URL. Does not connect: a store that is down now may become available later;
 * PING checks it. [borrow] opts for the call, opts->pool and opts->namespaces until close. Errors,
 * `why` in words without credentials: TIERCE_E_CONFIG (an unknown scheme, with the list of those
 * there are; a wrong or unknown parameter, with the right ones), TIERCE_E_UNSUPPORTED (this build
 * lacks it), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__connector_open(struct tierce__connector **out, const char *url,
                                          const struct tierce__connector_opts *opts,
                                          char why[TIERCE__CONNECTOR_WHY_BYTES]);

#endif
