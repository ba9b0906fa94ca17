/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONTROLLER_MESSAGE_H
#define TIERCE_MANAGER_CONTROLLER_MESSAGE_H

#include "base/text/line.h"
#include "core/key/lmcache.h"
#include "proto/msgpack/msgpack.h"

#include <tierce/status.h>

/*
 * The messages of LMCache's workers and their controller: maps in MessagePack or JSON
 * (docs/inside/format/lmcache-controller.md).
 *
 *     if (!tierce__controller_read(&message, &scratch, frame, bytes, why))
 *         tierce__controller_put_error(&reply, why);
 *     else if (message.type == TIERCE__CONTROLLER_OPERATIONS)
 *         while (tierce__controller_next_op(&message.operations, &op))
 *             ...
 *
 * A message that was read is valid as a whole: it has all fields of its type, each within its
 * bounds, and its lists cannot fail. Fields of other types and unknown ones are ignored.
 *
 * Thread: any.
 */

enum tierce__controller_type {
    TIERCE__CONTROLLER_IGNORED, /* known, and without an effect: KVAdmitMsg, KVEvictMsg */
    TIERCE__CONTROLLER_REGISTER,
    TIERCE__CONTROLLER_DEREGISTER,
    TIERCE__CONTROLLER_HEARTBEAT,
    TIERCE__CONTROLLER_OPERATIONS,
    TIERCE__CONTROLLER_LOOKUP,
    TIERCE__CONTROLLER_SYNC_START,
    TIERCE__CONTROLLER_SYNC_BATCH,
    TIERCE__CONTROLLER_SYNC_END,
    TIERCE__CONTROLLER_SYNC_STATUS,
    TIERCE__CONTROLLER_DONE,   /* of a worker, to a command: number of tokens, or an error code */
    TIERCE__CONTROLLER_FAILED, /* of a worker, to a command: ErrorMsg */
};

#define TIERCE__CONTROLLER_INSTANCE_BYTES 76u /* of the texts, each with a NUL */
#define TIERCE__CONTROLLER_LOCATION_BYTES 32u
#define TIERCE__CONTROLLER_HOST_BYTES     64u
#define TIERCE__CONTROLLER_PEER_BYTES     128u
#define TIERCE__CONTROLLER_SYNC_BYTES     128u
#define TIERCE__CONTROLLER_ITEMS_MAX      65536u
#define TIERCE__CONTROLLER_BATCHES_MAX    65536u
#define TIERCE__CONTROLLER_WORKER_MAX     65535u
#define TIERCE__CONTROLLER_WHY_BYTES      256u

/* A list within the message [borrow the message's bytes, or the scratch line]. */
struct tierce__controller_items {
    struct tierce__msgpack at;
    uint32_t count; /* that are left */
};

struct tierce__controller_message {
    enum tierce__controller_type type;
    char instance[TIERCE__CONTROLLER_INSTANCE_BYTES];
    char location[TIERCE__CONTROLLER_LOCATION_BYTES];
    char host[TIERCE__CONTROLLER_HOST_BYTES]; /* "ip" */
    char peer[TIERCE__CONTROLLER_PEER_BYTES]; /* "peer_init_url"; "" if there is none */
    char sync[TIERCE__CONTROLLER_SYNC_BYTES];
    char error[TIERCE__CONTROLLER_WHY_BYTES]; /* cut, without control characters */
    uint64_t worker, port;
    uint64_t total_keys, batch_count, batch;
    int64_t result; /* num_tokens, error_code */
    struct tierce__controller_items operations, keys, hashes;
};

struct tierce__controller_op {
    struct tierce__lmcache_int key;
    uint64_t number; /* seq_num */
    bool admitted;
};

/* Reads one frame. `scratch` is the caller's, for JSON. False: it is invalid, and `why` says what
 * is wrong and what is accepted. */
bool tierce__controller_read(struct tierce__controller_message *out, struct tierce__line *scratch,
                             const void *bytes, size_t count,
                             char why[TIERCE__CONTROLLER_WHY_BYTES]);

/* False: there is none. */
bool tierce__controller_next_op(struct tierce__controller_items *operations,
                                struct tierce__controller_op *op);
bool tierce__controller_next_key(struct tierce__controller_items *keys,
                                 struct tierce__lmcache_int *key);

/* ---- answers, appended as one MessagePack map; the texts have a NUL ----------------------------
 */

void tierce__controller_put_error(struct tierce__line *line, const char *why);
/* `url`: where heartbeats go; "": nowhere. */
void tierce__controller_put_registered(struct tierce__line *line, const char *url);
/* `reason`: why the worker must send all of its contents; NULL: it must not. */
void tierce__controller_put_beat(struct tierce__line *line, const char *reason);
/* Zero chunks and empty texts: nobody has them. */
void tierce__controller_put_found(struct tierce__line *line, const char *instance,
                                  const char *location, uint64_t chunks, const char *peer);
/* `why`: the reason of a refusal; NULL: it is accepted. */
void tierce__controller_put_sync_start(struct tierce__line *line, const char *sync,
                                       const char *why);

struct tierce__controller_progress {
    bool is_complete, may_continue; /* may_continue: the worker may store again */
    double global;                  /* the part of all workers whose contents are known, to 1 */
    const uint32_t *missing;        /* numbers of batches. [borrow for the call] */
    uint32_t missing_count;
};
void tierce__controller_put_progress(struct tierce__line *line, const char *sync,
                                     const struct tierce__controller_progress *progress);

#endif
