/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_FLEET_MANAGER_H
#define TIERCE_FLEET_MANAGER_H

#include "base/list.h"
#include "base/text/url.h"
#include "store/tier.h"

#include <protobuf-c/protobuf-c.h>

/*
 * Calls to the managers of a fleet, of which one leads: for the connector fleet:// and for nodes
 * that join a pool. A manager has no thread: it sends and receives in tierce__fleet_manager_poll.
 *
 * Thread: one at a time, unless a function says otherwise.
 */

#define TIERCE__FLEET_WHY_BYTES 256u

struct tierce__fleet_manager;

struct tierce__fleet_manager_opts {
    size_t size;
    const struct tierce__url *url; /* hosts, scheme, and token_file, ca_file, server_name; [borrow
                                      for the call] */
};

/* Checks that each host of a URL has a name and a port (fleet_addresses.c). Errors:
 * TIERCE_E_CONFIG, `why` set. Thread: any. */
TIERCE_MUSTUSE int tierce__fleet_manager_check(const struct tierce__url *url,
                                               char why[TIERCE__FLEET_WHY_BYTES]);

/* Reads "fleet://HOST:PORT[,HOST:PORT]PATH[?token_file=F&ca_file=F]" or fleet+tls://..., of a part
 * that is no connector. `expected` says in words what it must be. *out [transfer] to
 * tierce__url_clear. Errors, *out empty: TIERCE_E_CONFIG, -ENOMEM, `why` set. Thread: any. */
TIERCE_MUSTUSE int tierce__fleet_manager_read_url(struct tierce__url *out, const char *text,
                                                  bool (*is_path)(const char *path),
                                                  const char *expected,
                                                  char why[TIERCE__FLEET_WHY_BYTES]);

/* Does not connect. Errors: TIERCE_E_CONFIG (a file that cannot be read, ...), -ENOMEM; `why` set.
 */
TIERCE_MUSTUSE int tierce__fleet_manager_open(struct tierce__fleet_manager **out,
                                              const struct tierce__fleet_manager_opts *opts,
                                              char why[TIERCE__FLEET_WHY_BYTES]);
/* Calls in progress are dropped without their `done`. NULL is accepted. */
void tierce__fleet_manager_close(struct tierce__fleet_manager *manager);

/*
 * One call. It is sent to the address that answered last. NOT_LEADER, and a connection that fails
 * before the call was sent, move it to the next address, or to the one that the answer names; after
 * a round of all addresses there is a pause, if one of them is alive; otherwise the call ends. A
 * call that was sent and not answered is sent again only if it `repeats` harmlessly. All of that
 * ends at the deadline.
 */
struct tierce__fleet_call {
    const char *method;                        /* "GetCacheLocation", of the service meta */
    const ProtobufCMessage *request;           /* [borrow for start] */
    const ProtobufCMessageDescriptor *answers; /* the type of `reply` */
    uint64_t deadline_ns;
    bool repeats;
    void (*done)(struct tierce__fleet_call *call); /* exactly once, by poll, never by start */
    void *arg;

    /*
     * [out] 0: reply is set, with the code OK. Otherwise reply is NULL and `why` says in words,
     * with the address, what happened: TIERCE_E_MISS (INSTANCE_NOT_EXIST), TIERCE_E_ARGUMENT
     * (INVALID_ARGUMENT), -EEXIST (DUPLICATE_ENTITY), TIERCE_E_FULL (no storage has room, or a
     * quota is reached), TIERCE_E_REFUSED (token or rights), TIERCE_E_UNSUPPORTED (the manager does
     * not have the call), TIERCE_E_CANCELLED (NAMESPACE_INVALIDATED), TIERCE_E_LIMIT (a rate
     * limit), TIERCE_E_DOWN (no address can be reached), TIERCE_E_DEADLINE, -EPROTO (anything else:
     * the manager's code and message are in `why`), -ENOMEM.
     */
    int status;
    uint64_t generation;     /* of the instance that the request names; 0: not known */
    uint64_t registry;       /* which registry counts it; 0: not known */
    ProtobufCMessage *reply; /* [transfer] tierce__proto_free */
    char why[TIERCE__FLEET_WHY_BYTES];

    struct tierce__list node; /* the manager's until done, as is all below */
    struct tierce__fleet_manager *manager;
    uint64_t begun_ns;
    bool is_sent;
    void *body;
    size_t body_bytes;
    uint32_t address, tried;
    bool any_alive; /* an address answered that it does not lead, or does not yet */
    uint64_t again_ns;
};
void tierce__fleet_manager_start(struct tierce__fleet_manager *manager,
                                 struct tierce__fleet_call *call);

/* Sends and receives, calls `done`, and returns when something happened, when it was woken, or at
 * until_ns. */
void tierce__fleet_manager_poll(struct tierce__fleet_manager *manager, uint64_t until_ns);
/* Ends a poll, or the next one. Thread: any. */
void tierce__fleet_manager_wake(struct tierce__fleet_manager *manager);
/* Sets `connections` and `connects` of a connector's stats. Thread: any. */
void tierce__fleet_manager_stats(struct tierce__fleet_manager *manager,
                                 struct tierce__tier_stats *out);

#endif
