/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_FLEET_STORES_H
#define TIERCE_FLEET_STORES_H

#include "store/remote/connector.h"
#include "store/remote/fleet/fleet_manager.h"

/*
 * The storages that a manager announces, each with a connector that its first use opens, and the
 * manager's URIs as names of objects there. For the connector fleet:// and for the mover.
 *
 * Thread: one at a time, except where a function says otherwise. Requests are answered on any
 * thread.
 */

struct tierce__fleet_stores;

/* A storage of the group, with a connector that is opened by its first use. */
struct tierce__fleet_store;

struct tierce__fleet_stores_opts {
    size_t size;
    struct tierce__pool *pool; /* [borrow until close], as in tierce__connector_opts */
    /* The interpreter that has Mooncake, or NULL: storages of Mooncake cannot be reached. [borrow
     * for the call] */
    const char *mooncake_python;
    /* The storages that managers may name (fleet_allowed.h); NULL: any. [borrow for the call] */
    const char *allowed;
};
TIERCE_MUSTUSE int tierce__fleet_stores_open(struct tierce__fleet_stores **out,
                                             const struct tierce__fleet_stores_opts *opts);
/* Closes all connectors. False: one has a call that did not return (connector.h). */
bool tierce__fleet_stores_close(struct tierce__fleet_stores *stores, uint64_t deadline_ns);

/* Takes over the storages of RegisterInstance's answer (`storage_configs`, JSON). A storage whose
 * configuration changed is another one of that name; requests in progress keep the old connector,
 * and new ones for places of the old one are answered TIERCE_E_DOWN. A storage that this build
 * cannot reach (its type, a missing file of credentials) stays known, with the reason; after a
 * failure to open its connector the next attempt is made a second later. Errors: TIERCE_E_FORMAT,
 * -ENOMEM; the old storages stay. */
TIERCE_MUSTUSE int tierce__fleet_stores_update(struct tierce__fleet_stores *stores,
                                               const char *json, char why[TIERCE__FLEET_WHY_BYTES]);

/* A number of the registry whose mark the storages of the last update have; 0: it is not known.
 * Thread: any. */
uint64_t tierce__fleet_stores_registry(struct tierce__fleet_stores *stores);

/* Where a block's part lies: the storage, and the name of its object there. */
struct tierce__fleet_place {
    struct tierce__fleet_store *store; /* valid until the stores are closed */
    struct tierce_plugin_name name;    /* [borrow as long as the memory that `name.text` is in] */
    uint64_t bytes;                    /* "size" in the URI */
};

/*
 * Reads a URI of the manager; the name is written to `room`, which has as many bytes as the URI
 * with its NUL. A manager can name no object outside of its storage: a path that does not lie below
 * the storage's root, or has "..", is TIERCE_E_FORMAT. TIERCE_E_MISS: a storage that is not known
 * (it is newer than the last update). TIERCE_E_UNSUPPORTED: one that this process cannot reach.
 * `why` in words.
 */
TIERCE_MUSTUSE int tierce__fleet_place_read(struct tierce__fleet_place *out, char *room,
                                            const char *uri, struct tierce__fleet_stores *stores,
                                            char why[TIERCE__FLEET_WHY_BYTES]);

/* GET, PUT, DELETE or LOOKUP of one object: `req` as for a connector, with names[0] = place->name,
 * which stays valid until done. Until then req->done and req->arg are others, and both are the
 * caller's again when `done` is called. It may be answered before this returns. It does not wait
 * for a connector to be opened: the request does, until its deadline. TIERCE_E_DOWN: there is no
 * connector now; tierce__fleet_store_why tells why. */
void tierce__fleet_store_submit(struct tierce__fleet_store *store, struct tierce__store_req *req);
/* Whether the manager's last answer has the storage as it is. Thread: the one of
 * tierce__fleet_stores_update. */
bool tierce__fleet_store_is_current(const struct tierce__fleet_store *store);
/* Whether the storage is a folder with a mark (storage_at.h). It is opened only if it has it: an
 * empty mount point is DOWN. */
bool tierce__fleet_store_is_marked(struct tierce__fleet_store *store);
/* Whether the storage is a part of a node. */
bool tierce__fleet_store_is_part(const struct tierce__fleet_store *store);
/* The next request opens the storage again, and so looks for its mark. */
void tierce__fleet_store_reopen(struct tierce__fleet_store *store);
/* TIERCE__CONNECTOR_...: of the open connector, or those that promise least. Thread: any. */
unsigned tierce__fleet_store_caps(struct tierce__fleet_store *store);
const char *tierce__fleet_store_name(const struct tierce__fleet_store *store);
/* The last failure in words, with the storage's name; "" for none. Thread: any. */
void tierce__fleet_store_why(struct tierce__fleet_store *store, char why[TIERCE__FLEET_WHY_BYTES]);

#endif
