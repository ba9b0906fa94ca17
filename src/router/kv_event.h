/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_KV_EVENT_H
#define TIERCE_ROUTER_KV_EVENT_H

#include "base/json/json.h"
#include "proto/msgpack/msgpack.h"

/*
 * Batches of KV events as vLLM, its relatives and Tierce publish them: MessagePack [ts, [event,
 * ...], dp_rank]. An event is a map with its "type", or an array that begins with it. Unknown
 * fields are skipped. docs/inside/format/kv-events.md has the fields.
 *
 *     if (tierce__kv_batch_open(&batch, payload, bytes))
 *         while (tierce__kv_batch_next(&batch, &event))
 *             ...
 *
 * Nothing is allocated or copied: an event borrows from the payload. Thread: any.
 */

enum tierce__kv_type {
    TIERCE__KV_STORED,
    TIERCE__KV_REMOVED,
    TIERCE__KV_CLEARED,
    TIERCE__KV_UNKNOWN, /* another type */
    TIERCE__KV_INVALID, /* a field that is needed is missing, or has another type */
};

enum tierce__kv_medium {
    TIERCE__KV_GPU,
    TIERCE__KV_CPU,
    TIERCE__KV_DISK,
    TIERCE__KV_MEDIA,
    TIERCE__KV_ELSEWHERE = TIERCE__KV_MEDIA, /* shared, remote or unknown storage */
};

struct tierce__kv_event {
    enum tierce__kv_type type;
    enum tierce__kv_medium medium;
    struct tierce__msgpack hashes; /* hash_count items, each fit for tierce__kv_take_hash */
    struct tierce__msgpack tokens; /* token_count items, each a UINT below 2^32 */
    uint32_t hash_count, token_count;
    uint32_t block_size; /* tokens; 0: unknown */
    uint32_t group;      /* of layers */
    bool has_parent;
    uint64_t parent;
    struct tierce__text lora; /* the adapter's name, or empty */
    bool is_keyed; /* the blocks depend on more than tokens and adapter: images, a salt, an adapter
                      without a name */
    bool is_partial; /* the group's layers do not attend to all tokens before: windows, states */
    uint64_t space;  /* Tierce's namespace; 0 */
    bool is_other_shard; /* a rank of Tierce that is not the first */
};

struct tierce__kv_batch {
    struct tierce__msgpack events;
    uint32_t left;
    double ts;
};

/* Checks the batch as a whole. False: it is no batch. [borrow] payload while the batch is used. */
bool tierce__kv_batch_open(struct tierce__kv_batch *batch, const void *payload, size_t bytes);

/* The next event. False: there are no more. */
bool tierce__kv_batch_next(struct tierce__kv_batch *batch, struct tierce__kv_event *event);

/* Takes a block's hash: a number as it is; of bytes the last eight as a big-endian number, as vLLM
 * makes numbers of its digests. False: it is neither. */
bool tierce__kv_take_hash(struct tierce__msgpack *m, uint64_t *out);

/* Whether a batch has an AllBlocksCleared: what it and its successors tell is complete. */
bool tierce__kv_batch_clears(const void *payload, size_t bytes);

#endif
