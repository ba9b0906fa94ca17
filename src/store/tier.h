/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_H
#define TIERCE_TIER_H

#include "store/store_req.h"

/*
 * A place that holds chunks. Memory, disk and remote stores all implement this table of functions,
 * and so do the wrappers that inject faults.
 *
 * Everything is a request (store_req.h). A tier that cannot answer by the deadline answers
 * TIERCE_E_DEADLINE then; it keeps its own reference on the buffer for as long as the device may
 * still touch it.
 *
 * A tier serves whatever bytes it was given: identity and sums are verified by the reader
 * (core/chunk/header.h). It must only never serve a chunk whose put has not completed.
 */

struct tierce__tier;

#define TIERCE__TIER_LENDS   1u /* GET and LOOKUP give references on the tier's own buffers */
#define TIERCE__TIER_DURABLE 2u /* FLUSH makes chunks survive the process */
#define TIERCE__TIER_SHARED                                                                        \
    4u /* other processes change it too: a LOOKUP queries the store; stats have no chunks and no   \
          cap; no watcher, no scan, no order for touch; DELETE may answer 0 for a missing chunk,   \
          and cancels a put in progress, which is answered TIERCE_E_CANCELLED */
#define TIERCE__TIER_WHOLE                                                                         \
    8u /* chunks are read as a whole: all parts of one should be requested at once, into one       \
          buffer as large as the chunk */
#define TIERCE__TIER_KEEPS                                                                         \
    16u /* nothing can be deleted there: DELETE hides the chunk from this process, for which there \
           is room for a few, and sets found to 1 if the store has it, or answers why that is not  \
           known */

#define TIERCE__TIER_PINGS                                                                         \
    32u /* chunks can be read while the store does not answer: only a PING shows that it does */

#define TIERCE__TIER_WHY_BYTES 256u

struct tierce__tier_stats {
    uint64_t chunks;
    uint64_t used_bytes; /* all that counts against the cap */
    uint64_t cap_bytes;
    uint64_t queued_bytes;   /* puts accepted and not done */
    uint64_t durable_chunks; /* 0 for tiers that are not durable */
    uint64_t put_chunks;
    uint64_t put_bytes;
    uint64_t get_chunks; /* GETs that were served */
    uint64_t get_bytes;
    uint64_t evicted_chunks;
    uint64_t had_chunks;   /* of put chunks that a shared tier's store had already; they are not
                              counted in put_chunks */
    uint64_t dropped_puts; /* queue overflow */
    uint64_t errors;       /* device errors */
    uint64_t slots;        /* maximum number of chunks; 0: unlimited */
    uint64_t used_slots;   /* includes reserved ones */
    uint64_t out_of_slots; /* evictions and rejections for lack of a slot, with bytes to spare */
    uint64_t written_bytes_today; /* device writes since midnight UTC, metadata included */
    bool full; /* the file system has no room up to the cap, so new chunks replace old ones in less
                  space; false again when the tier has grown */
    bool rejects; /* the journal cannot be written (a full or failing file system): puts fail, reads
                     succeed; false again when it can */
    /* Of tiers with TIERCE__TIER_SHARED. */
    uint64_t connections;   /* open now */
    uint64_t connects;      /* made so far */
    uint64_t waiting;       /* requests that wait for a connection */
    uint64_t calls_hanging; /* current number of calls that are past their deadline */
    /* Of a tier whose policy uses hints of clients. */
    bool has_hints;
    struct tierce__policy_hints hints;
};

/*
 * A change in a tier, or a chunk that it holds. A chunk is admitted when it becomes findable, and
 * leaves when it is no longer findable, independent of its bytes.
 */
struct tierce__tier_event {
    bool admitted;               /* false: it left */
    enum tierce__tier_left left; /* why, if it left */
    const struct tierce__key *key;
    const uint8_t *parent;      /* hash of the chunk before, 32 bytes; NULL for a first chunk */
    const uint8_t *first_block; /* hash of its first block, 32 bytes */
    uint64_t object_bytes;
    uint64_t token_start;
    uint32_t block_count;
};

/* [borrow for the call] event. Called under the tier's lock: must not block, and call no tier. */
typedef void tierce__tier_watch_fn(void *arg, const struct tierce__tier_event *event);

/* Uses of consecutive chunks by one request. [borrow for the call] */
struct tierce__tier_uses {
    const struct tierce__key *keys; /* [count] */
    size_t count;
    size_t used; /* leading keys that were touched for the same request before */
    struct tierce__policy_origin origin; /* `ends`: of the last key */
};

/* A reservation of room. [borrow for the call] */
struct tierce__reserve {
    const struct tierce__key *key;
    const struct tierce__key *parent; /* chunk before this one; NULL for the first */
    const struct tierce__buf *before; /* its buffer, if the caller holds it; or NULL */
    uint64_t bytes;                   /* > 0 */
    struct tierce__policy_origin origin;
    /* No other tier has the prefixes of chunks: there is no room if a chunk would have to be
     * evicted before its suffix (tierce__policy_inner). */
    bool keeps_prefixes;
    /* NULL: the policy is not asked. Otherwise the caller does not need the chunk in this tier:
     * [out] whether there is no room and the policy does not evict for it. */
    bool *refused;
    bool follows_refused; /* it is refused, as the chunk before it, so that the policy knows it */
};

struct tierce__tier_ops {
    const char *name;
    unsigned caps;
    /* Adjacent parts of a chunk, requested together, are read in one request of up to this many
     * bytes; a shorter request costs as much. 0: each part is one request. */
    uint64_t read_bytes;
    /* Thread: any. Does not block on the device. After close has begun: TIERCE_E_CLOSED. */
    void (*submit)(struct tierce__tier *tier, struct tierce__store_req *req);
    /*
     * A use of chunks: updates the eviction order, last key first, so that the first key ends up
     * newest. Where policies count uses, the first `used` keys are not counted again, nor are those
     * that were put and not touched since. Keys that are not there are skipped. Thread: any. Does
     * not block.
     */
    void (*touch)(struct tierce__tier *tier, const struct tierce__tier_uses *uses);
    /*
     * Frees pool memory for `bytes` more, by policy; only tiers that hold pool buffers have it.
     * Returns the bytes freed, 0 when nothing can be evicted. Thread: any.
     */
    uint64_t (*evict)(struct tierce__tier *tier, uint64_t bytes);
    /*
     * A new pool buffer, evicting by policy, for a chunk that will be put: it is in the eviction
     * order from here on, but cannot be found before the put. The reference is the caller's; if all
     * references are released without a PUT, the reservation ends. Only tiers that have evict.
     * NULL: there is no room and nothing can be evicted, or a chunk larger than the pool, or it is
     * refused. Thread: any. Does not block.
     */
    struct tierce__buf *(*reserve)(struct tierce__tier *tier, const struct tierce__reserve *what);
    void (*stats)(struct tierce__tier *tier, struct tierce__tier_stats *out);
    /* The last failure in words, without credentials; "" for none. NULL for tiers that have no
     * details beyond their statuses. Thread: any. */
    void (*why)(struct tierce__tier *tier, char why[TIERCE__TIER_WHY_BYTES]);
    /* From now on reports every change in order, until close begins. Called once, before the first
     * request; scan reports the chunks that the tier already holds. */
    void (*watch)(struct tierce__tier *tier, tierce__tier_watch_fn *fn, void *arg);
    /*
     * Reports stored chunks as admitted, under the lock that orders change events: the next
     * `places` slots from *cursor on, which starts at 0. False after the last slot. A chunk that
     * stays in the tier from the first call to the last is reported exactly once; other chunks may
     * be reported. Thread: any. Does not block on the device.
     */
    bool (*scan)(struct tierce__tier *tier, uint32_t *cursor, uint32_t places,
                 tierce__tier_watch_fn *fn, void *arg);
    /*
     * Completes or cancels every request, makes durable what it can within the deadline, frees the
     * tier. Blocks. False: a thread did not return from the device. The tier is then leaked, some
     * requests stay unanswered, and memory that the tier borrowed must never be freed.
     */
    bool (*close)(struct tierce__tier *tier, uint64_t deadline_ns);
};

/* First member of every implementation. */
struct tierce__tier {
    const struct tierce__tier_ops *ops;
};

#endif
