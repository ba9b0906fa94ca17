/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NIXL_NODE_H
#define TIERCE_NIXL_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Named values in a node, for the plug-in: requests of several parts, whose progress is polled.
 *
 *     rc = tierce__nixl_node_open(&node, "tierce://127.0.0.1:6494", why);
 *     rc = tierce__nixl_request_create(&request, node, parts, count);
 *     tierce__nixl_request_start(request);
 *     while (tierce__nixl_request_status(request) == TIERCE__NIXL_UNDER_WAY) ...
 *     tierce__nixl_request_release(request);
 *
 * Threads of the node call the clients of store/remote (links.h), which block until their deadline
 * of 30 seconds. The memory of parts is read and written without a copy. A failed call is logged
 * ("nixl_call_failed"), because NIXL passes on no reason.
 *
 * Thread: any; a request is used by one thread at a time.
 */

#define TIERCE__NIXL_UNDER_WAY 1
#define TIERCE__NIXL_WHY_BYTES 256u /* as TIERCE__CONNECTOR_WHY_BYTES */

struct tierce__nixl_node;
struct tierce__nixl_request;

/* The URL is that of a node (docs/using/remote.md); without `prefix`, names begin with "nixl:".
 * Does not connect. Errors, with `why` set: TIERCE_E_CONFIG, -ENOMEM, negative errno. */
int tierce__nixl_node_open(struct tierce__nixl_node **out, const char *url,
                           char why[TIERCE__NIXL_WHY_BYTES]);

/* All requests must have been released. NULL is accepted. */
void tierce__nixl_node_close(struct tierce__nixl_node *node);

enum tierce__nixl_op {
    TIERCE__NIXL_PART_READ,
    TIERCE__NIXL_PART_WRITE, /* of a whole value: the offset must be 0 */
    TIERCE__NIXL_PART_FIND,  /* fails with TIERCE_E_MISS */
};

struct tierce__nixl_part {
    enum tierce__nixl_op op;
    bool is_range;    /* of a file, whose id (nixl_ranges.h) is the name; it begins at `offset` */
    const char *name; /* [borrow for the call] */
    size_t name_bytes;
    void *memory; /* [borrow until release] */
    uint64_t bytes, offset;
    bool *found; /* PART_FIND: set once the request has ended; NULL: a miss is an error */
};

/* Errors: -ENOMEM, TIERCE_E_LIMIT (a name without a byte, with more than 512 with the prefix, or
 * with a NUL), TIERCE_E_UNSUPPORTED (a write of an object with an offset, an object with the name
 * of a range, or a range that overlaps another one of its file), TIERCE_E_ARGUMENT (no byte). */
int tierce__nixl_request_create(struct tierce__nixl_request **out, struct tierce__nixl_node *node,
                                const struct tierce__nixl_part *parts, size_t count);

/* Begins it, for the first time or after it has ended. */
void tierce__nixl_request_start(struct tierce__nixl_request *request);

/* TIERCE__NIXL_UNDER_WAY, 0, or the first error of a part; 0 before the start. */
int tierce__nixl_request_status(struct tierce__nixl_request *request);

/* Blocks until it has ended. */
int tierce__nixl_request_wait(struct tierce__nixl_request *request);

/* Parts that have not begun are not done. Blocks until the calls in progress have returned: until
 * their deadline at most. NULL is accepted. */
void tierce__nixl_request_release(struct tierce__nixl_request *request);

#ifdef __cplusplus
}
#endif

#endif
