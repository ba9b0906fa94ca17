/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_NODES_H
#define TIERCE_MANAGER_NODES_H

#include "manager/storage/storages.h"

/*
 * Nodes that offer parts of their memory and disk to pools. Each part is a storage of the registry
 * (type NODE), named POOL.NODE or POOL.NODE.disk, which this table creates and updates. The leader
 * keeps the last sign of life and the load of each node in memory.
 *
 * - A part whose node was not heard of for a lease is unavailable.
 * - A part with another incarnation is empty: the registry marks it LOST, and the index forgets its
 *   objects (locator_forget.c).
 * - If the node of a part in memory was not heard of for `forget_ms`, the index forgets its objects
 *   too, and the node must drop them when it returns. A part on a disk stays.
 *
 * A leader that begins to lead counts all nodes as just heard of.
 *
 * Thread: any.
 */

struct tierce__nodes;

struct tierce__nodes_opts {
    size_t size;
    struct tierce__registry *registry; /* [borrow until destroy] */
    struct tierce__storages *storages; /* [borrow until destroy] */
    uint32_t lease_ms, forget_ms;      /* 0: 5000, 60000 */
    /* Files that engines and this manager read, to reach nodes; "" or NULL: none. */
    const char *token_file, *ca_file;
    int64_t (*now_us)(void *arg); /* monotonic; NULL: the system's */
    void *clock_arg;
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__nodes_create(struct tierce__nodes **out,
                                        const struct tierce__nodes_opts *opts);
void tierce__nodes_destroy(struct tierce__nodes *nodes);

uint32_t tierce__nodes_lease_ms(const struct tierce__nodes *nodes);

/* Values of NodePartState. */
enum tierce__node_state {
    TIERCE__NODE_SERVES = 1,
    TIERCE__NODE_EMPTYING = 2,
    TIERCE__NODE_DISABLED = 3,
    TIERCE__NODE_REJECTED = 4,
    TIERCE__NODE_FORGOTTEN = 5,
};

struct tierce__node_part {
    bool is_disk;
    const char *incarnation; /* 32 hex digits in lower case */
    uint64_t capacity_bytes, used_bytes, object_count;
};

/* [borrow for the call] */
struct tierce__node_report {
    const char *node, *pool, *address, *version; /* address: HOST:PORT */
    const char *host_id;                         /* "": the host of the address */
    bool uses_tls, is_leaving;
    uint64_t load_bytes_per_s;
    const struct tierce__node_part *parts;
    size_t part_count;
};

#define TIERCE__NODE_NAME_BYTES 200u /* of a part's storage, at most, with its NUL */

struct tierce__node_answer {
    enum tierce__node_state state;
    char storage[TIERCE__NODE_NAME_BYTES]; /* "" if the names are invalid */
    char reason[256];                      /* of a rejection */
};

/* Takes a node's report; `answers` has one entry for each part. May block on the registry. Errors
 * of the registry are rejections of the part. */
void tierce__nodes_register(struct tierce__nodes *nodes, const struct tierce__node_report *report,
                            struct tierce__node_answer *answers);

/* Begins to lead: all nodes have a lease from now on. */
void tierce__nodes_lead(struct tierce__nodes *nodes);

/* Makes silent nodes unavailable, and forgets those that are gone; does nothing more often than
 * four times a second. Called while this manager leads. May block on the registry. */
void tierce__nodes_tick(struct tierce__nodes *nodes);

/* The last report of a part. */
struct tierce__node_seen {
    bool is_live;     /* its lease lasts */
    int64_t heard_ms; /* since then */
    char version[64];
    uint64_t used_bytes, object_count, load_bytes_per_s;
};
/* False: the part was not heard of since this manager began to lead. */
bool tierce__nodes_seen(struct tierce__nodes *nodes, uint16_t storage,
                        struct tierce__node_seen *out);

/*
 * How well a part suits the next write, the higher the better: its free share of the capacity less
 * its share of the load of the busiest node. A part on the client's own host (`host_id`) is
 * preferred while a tenth of it is free. A part that has rejected a write for lack of room comes
 * last until its node's next report.
 */
struct tierce__node_suit {
    const struct tierce__storage *part;
    uint64_t used_bytes;
    double suit; /* [out] */
};
void tierce__nodes_suit(struct tierce__nodes *nodes, struct tierce__node_suit *parts, size_t count,
                        const char *host_id);

/* Blocks were not written to the part: it is chosen last until its node's next report, and probed
 * sooner. */
void tierce__nodes_not_written(struct tierce__nodes *nodes, uint16_t storage);

#endif
