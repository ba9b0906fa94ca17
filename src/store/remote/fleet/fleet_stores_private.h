/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_FLEET_STORES_PRIVATE_H
#define TIERCE_FLEET_STORES_PRIVATE_H

#include "base/threads/lock.h"
#include "store/remote/fleet/fleet_private.h"
#include "store/remote/fleet/storage_at.h"

/*
 * The parts of fleet_stores.c and fleet_opener.c. The connector's thread alone changes which
 * storages there are. To open a connector may take seconds (S3 searches for credentials on the
 * network), and so may closing it; each is done by a thread of its own. The keeper starts these
 * threads, and answers requests at their deadlines while they wait for one.
 *
 * A storage has one configuration for life: one whose configuration changes becomes a new one of
 * the same name. So a place that was read before never means an object below another root.
 */

enum tierce__fleet_store_state {
    TIERCE__FLEET_CLOSED,
    TIERCE__FLEET_WANTED, /* the keeper is to open it */
    TIERCE__FLEET_OPENING,
    TIERCE__FLEET_OPEN,
};

/* An open connector. A request holds it; a storage may replace it meanwhile. */
struct tierce__fleet_use {
    struct tierce__list node; /* of the retired ones */
    struct tierce__connector *connector;
    uint64_t opened_ns;
    uint32_t holders; /* its requests, and threads that call it */
};

struct tierce__fleet_store {
    struct tierce__list node;
    struct tierce__fleet_stores *stores;
    /* Never change. */
    uint64_t registry; /* whose mark it has; 0: none is known */
    char *name, *type, *root;
    char *url;                            /* of its connector; NULL: there is none */
    char reason[TIERCE__FLEET_WHY_BYTES]; /* why there is none */
    /* Under the lock. */
    char mark[TIERCE__STORAGE_MARK_BYTES + 1]; /* of a folder, which is opened only if it has it;
                                                  "": none is known */
    bool is_current;                           /* the manager's last answer has it */
    enum tierce__fleet_store_state state;
    struct tierce__fleet_use *use; /* OPEN */
    struct tierce__list waiting;   /* requests, until it is open */
    uint64_t failed_ns;            /* the last attempt to open it; 0: it did not fail */
    char why[TIERCE__FLEET_WHY_BYTES];
};

/* A thread that opens the connector of a storage, or closes one. */
struct tierce__fleet_job {
    struct tierce__list node;
    struct tierce__fleet_stores *stores;
    struct tierce__fleet_store *store; /* to open; NULL: to close `use` */
    struct tierce__fleet_use *use;
    pthread_t thread;
    /* Under the lock. */
    bool is_handing_over; /* it has requests that no list has */
    bool has_ended;
};

struct tierce__fleet_stores {
    uint32_t magic;
    struct tierce__pool *pool;
    char *mooncake_python, *allowed; /* or NULL */
    pthread_t keeper;
    struct tierce__lock lock;
    /* Under the lock. */
    struct tierce__cond wake; /* of the keeper, and of close */
    struct tierce__list all;  /* the connector's thread reads it without the lock */
    size_t count;
    uint64_t registry;           /* of the last answer */
    struct tierce__list retired; /* uses that no new request gets */
    struct tierce__list jobs;
    bool is_ending;
    bool has_lost; /* a connector did not close */
};

#define TIERCE__FLEET_RETRY_NS 1000000000ull /* between two attempts to open */

/* ---- fleet_stores.c ---- */

/* The storage of a name in the manager's last answer. Errors: as tierce__fleet_place_read. */
TIERCE_MUSTUSE int tierce__fleet_store_find(struct tierce__fleet_store **out,
                                            struct tierce__fleet_stores *stores, const char *name,
                                            char why[TIERCE__FLEET_WHY_BYTES]);

/* ---- fleet_opener.c ---- */

void *tierce__fleet_keep(void *stores);
/* No new request gets the connector of the storage. Under the lock. */
void tierce__fleet_retire(struct tierce__fleet_store *store);
/* Ends the thread, and closes all connectors. False: a job has not ended by the deadline, and still
 * uses `stores`. */
bool tierce__fleet_keeper_stop(struct tierce__fleet_stores *stores, uint64_t deadline_ns);
/* Ends all requests of a list with a status, under no lock. */
void tierce__fleet_answer_all(struct tierce__list *reqs, int status);
/* Moves the waiting requests of a storage to the end of a list. Under the lock. */
void tierce__fleet_take_waiting(struct tierce__list *out, struct tierce__fleet_store *store);
/* Ends one holder of a connector. Under no lock. */
void tierce__fleet_let_go(struct tierce__fleet_stores *stores, struct tierce__fleet_use *use);
/* Gives a request to a connector that it and the caller hold. Under no lock. */
void tierce__fleet_hand_over(struct tierce__fleet_use *use, struct tierce__store_req *req);

#endif
