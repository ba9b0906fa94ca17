/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_H
#define TIERCE_TIER_H

#include <stdbool.h>

#include "base/list.h"
#include "core/chunk/pool.h"
#include "core/key/key.h"

/*
 * A place that holds chunks. Memory, disk and remote stores all implement this table of functions,
 * and so do the wrappers that inject faults.
 *
 * Everything is a request. submit() returns nothing: the answer is always done(req), exactly
 * once, perhaps before submit returns, perhaps from a thread of the tier, never under a lock of
 * the tier. `done` must not block. The request's memory is the caller's and stays valid until
 * done. A tier that cannot answer by the deadline answers TIERCE_E_DEADLINE then; it keeps its own
 * reference on the buffer for as long as the device may still touch it.
 *
 * A tier serves whatever bytes it was given: identity and sums are verified by the reader
 * (core/chunk/header.h). It must only never serve a chunk whose put has not completed.
 */

struct tierce__tier;
struct tierce__tier_req;

typedef void tierce__tier_done_fn(struct tierce__tier_req *req);

enum tierce__tier_op {
    TIERCE__TIER_LOOKUP,   /* how many leading keys are there? */
    TIERCE__TIER_GET,      /* a range of a chunk into a buffer, or a reference on a buffer */
    TIERCE__TIER_PUT,      /* keep a sealed chunk */
    TIERCE__TIER_DELETE,   /* forget a chunk, also one that is being put */
    TIERCE__TIER_HIDE,     /* do not serve a chunk any more and keep its bytes, for a build that can
                              read them; until the tier is opened again */
    TIERCE__TIER_FLUSH,    /* make durable every put, delete and clear that was done before, or
                              deletes and clears alone */
    TIERCE__TIER_CLEAR,    /* forget all chunks, or those of one namespace */
    TIERCE__TIER_SIBLINGS, /* which chunks begin with this block? */
    TIERCE__TIER_PING, /* asks whether the store behind it is available. No key; TIERCE__TIER_SHARED
                          only, others answer TIERCE_E_UNSUPPORTED */
};

/* A chunk that begins with the block that was asked for. */
struct tierce__sibling {
    struct tierce__key key;
    uint64_t object_bytes;
    uint32_t block_count;
};
#define TIERCE__SIBLINGS_MAX 8u

/* Why a chunk left. */
enum tierce__tier_left {
    TIERCE__LEFT_DELETED, /* a request deleted it without a reason */
    TIERCE__LEFT_EVICTED,
    TIERCE__LEFT_EXPIRED,
    TIERCE__LEFT_CLEARED,
    TIERCE__LEFT_LOST,       /* a sync failed, so the device may have lost it */
    TIERCE__LEFT_CHECKSUM,   /* deleted, because a checksum did not match */
    TIERCE__LEFT_IDENTITY,   /* deleted, because it was another chunk */
    TIERCE__LEFT_VERSION,    /* hidden, because it is of another version of the format */
    TIERCE__LEFT_SUPERSEDED, /* deleted: replaced by a longer chunk that begins with it */
};

/* How a LOOKUP uses remembered answers. A tier with TIERCE__TIER_SHARED remembers answers for a
 * bounded time, in which a chunk may be removed or added by others. */
enum tierce__tier_recall {
    TIERCE__RECALL_NOTHING = 0, /* query every key */
    TIERCE__RECALL_FIRST,       /* query only keys without a remembered answer */
    TIERCE__RECALL_ONLY,        /* query nothing; TIERCE_E_DEADLINE at once if the next key is not
                                   remembered */
    TIERCE__RECALL_OLD,         /* the same, but hits never expire: for loads, where a wrong answer
                                   is a miss */
};

struct tierce__tier_req {
    enum tierce__tier_op op;
    uint64_t deadline_ns; /* clock.h; TIERCE__DEADLINE_NEVER for none */
    tierce__tier_done_fn *done;
    void *arg;         /* the caller's */
    uint64_t begun_ns; /* the caller's: when it submitted the request */

    /*
     * All operations except these use keys[0] only. [borrow until done]
     *
     * LOOKUP: [in] keys of consecutive chunks. [out] found: the number of leading keys that exist
     * for certain, with any status; 0 if none is known. TIERCE_E_DEADLINE with found > 0 is a
     * partial answer: the later keys may or may not exist.
     *
     * LOOKUP in a lending tier (TIERCE__TIER_LENDS) also lends the found buffers if bufs is not
     * NULL: [in] room for key_count, and length: the maximum of bytes to lend. [out]
     * bufs[0 .. lent): for each of the leading keys a reference that the caller now owns;
     * lent < found if the next buffer would exceed length. If `touches`, a single lent key is
     * touched as by touch(key, 1, 0).
     *
     * CLEAR: [in] no key: every namespace; one key: its namespace. [out] found: the number of
     * chunks that left. Earlier puts in progress are answered TIERCE_E_CANCELLED; lent buffers stay
     * with their borrowers.
     *
     * SIBLINGS: [in] one key, whose hash is that of the chunk's first block; siblings: room for
     * TIERCE__SIBLINGS_MAX. [out] siblings[0 .. found): chunks that LOOKUP finds, the latest first,
     * perhaps not all; a tier without such an index finds none.
     *
     * PUT to a lending tier: [out] found is 1 if the tier had the chunk already, else 0.
     *
     * DELETE answers earlier puts of the key in progress TIERCE_E_CANCELLED, and does not affect
     * later ones. From a durable tier: [out] found is 1 if the chunk could be found again after a
     * reopen without a FLUSH in between, even if it is not in the tier now. With only_asks,
     * DELETE changes nothing and sets found; tiers with TIERCE__TIER_DURABLE.
     */
    const struct tierce__key *keys;
    size_t key_count;
    size_t found;
    struct tierce__buf **bufs; /* [borrow until done] */
    size_t lent;
    bool touches;                     /* LOOKUP of one key */
    struct tierce__sibling *siblings; /* [borrow until done] */
    bool durable;  /* LOOKUP: only durable chunks count; tiers with TIERCE__TIER_DURABLE */
    bool removals; /* FLUSH: of deletes and clears alone. It does not wait for chunks to become
                      durable, and does not report that some were lost */
    enum tierce__tier_recall recall; /* LOOKUP; tiers with TIERCE__TIER_SHARED */
    bool recalled;                   /* [out] LOOKUP: answered without a query */

    /*
     * GET from a lending tier (TIERCE__TIER_LENDS): [in] NULL, [out] a buffer with a reference that
     * is the caller's now; offset and length are ignored. GET from any other tier: [in] the
     * destination; bytes [offset, offset + length) of the object land at buf->data + offset. Both
     * are multiples of 4096 and lie inside the object; a range beyond the object's end is
     * TIERCE_E_MISS. The caller keeps its reference until done. PUT: [in] the sealed object,
     * object_bytes long. The tier takes references of its own.
     */
    struct tierce__buf *buf;
    uint64_t offset;
    uint64_t length;
    bool ahead; /* GET: no caller waits for it yet */

    /* PUT: fields that tiers index beside the key. */
    const struct tierce__key *parent; /* chunk before this one; NULL for the first */
    const uint8_t *first_block;       /* hash of the chunk's first block, 32 bytes */
    uint64_t object_bytes;
    uint64_t token_start;
    uint32_t block_count;
    enum tierce__tier_left left; /* DELETE: why */
    bool only_asks;              /* DELETE */
    bool replaces;               /* PUT to a lending tier: replaces the present chunk atomically */
    bool needs_parent;           /* PUT: reject the chunk if its parent is not stored yet, so that
                                    no suffix is kept without its prefix */

    /*
     * [out] 0, or: TIERCE_E_MISS (not there), TIERCE_E_FULL (PUT: nothing can be evicted),
     * TIERCE_E_REFUSED (PUT: admission rule, needs_parent, or hidden bytes of that key),
     * TIERCE_E_DEADLINE, TIERCE_E_DOWN, TIERCE_E_CLOSED, TIERCE_E_ARGUMENT (a contract above is
     * broken), or a negative errno of the device. A PUT of a chunk that is already stored returns
     * 0, whatever its bytes.
     */
    int status;
    /* [in] false; [out] true: `status` is a failure that another request was answered with, because
     * they shared a read or a connection. It counts once for the tier's health. */
    bool repeats;
    /* [in] false; [out] GET: true: a connection to the store was made for it. */
    bool connected;

    struct tierce__list node; /* the tier's while the request is with it */
    uint64_t scratch[8];      /* the tier's while the request is with it; wrappers allocate none */
};

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
           is room for a few */

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
    uint64_t dropped_puts;        /* queue overflow */
    uint64_t errors;              /* device errors */
    uint64_t written_bytes_today; /* device writes since midnight UTC, metadata included */
    bool full; /* the file system has no room up to the cap, so new chunks replace old ones in less
                  space; false again when the tier has grown */
    bool rejects; /* the journal cannot be written (a full or failing file system): puts fail, reads
                     succeed; false again when it can */
    /* Of tiers with TIERCE__TIER_SHARED. */
    uint64_t connections;   /* open now */
    uint64_t connects;      /* made so far */
    uint64_t waiting;       /* requests that wait for a connection */
    uint64_t calls_hanging; /* that have not come back by their deadline, now */
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

/* A reservation of room. [borrow for the call] */
struct tierce__reserve {
    const struct tierce__key *key;
    const struct tierce__key *parent; /* chunk before this one; NULL for the first */
    const struct tierce__buf *before; /* its buffer, if the caller holds it; or NULL */
    uint64_t bytes;                   /* > 0 */
};

struct tierce__tier_ops {
    const char *name;
    unsigned caps;
    /* Adjacent parts of a chunk, requested together, are read in one request of up to this many
     * bytes; a shorter request costs as much. 0: each part is one request. */
    uint64_t read_bytes;
    /* Thread: any. Does not block on the device. After close has begun: TIERCE_E_CLOSED. */
    void (*submit)(struct tierce__tier *tier, struct tierce__tier_req *req);
    /*
     * A use of chunks: updates the eviction order, last key first, so that the first key ends up
     * newest. The first `used` keys were touched for the same request before: where policies count
     * uses, they are not counted again, nor are those that were put and not touched since. Keys
     * that are not there are skipped. Thread: any. Does not block.
     */
    void (*touch)(struct tierce__tier *tier, const struct tierce__key *keys, size_t count,
                  size_t used);
    /*
     * Frees pool memory for `bytes` more, by policy; only tiers that hold pool buffers have it.
     * Returns the bytes freed, 0 when nothing can be evicted. Thread: any.
     */
    uint64_t (*evict)(struct tierce__tier *tier, uint64_t bytes);
    /*
     * A new pool buffer, evicting by policy, for a chunk that will be put: it is in the eviction
     * order from here on, but cannot be found before the put. The reference is the caller's; if all
     * such go without a PUT, so does the place. Only tiers that have evict. NULL: there is no room
     * and nothing can be evicted, or a chunk larger than the pool. Thread: any. Does not block.
     */
    struct tierce__buf *(*reserve)(struct tierce__tier *tier, const struct tierce__reserve *what);
    void (*stats)(struct tierce__tier *tier, struct tierce__tier_stats *out);
    /* The last failure in words, without credentials; "" for none. NULL for tiers whose statuses
     * say it all. Thread: any. */
    void (*why)(struct tierce__tier *tier, char why[TIERCE__TIER_WHY_BYTES]);
    /* From now on reports every change in order, until close begins. Called once, before the first
     * request; scan reports the chunks that the tier already holds. */
    void (*watch)(struct tierce__tier *tier, tierce__tier_watch_fn *fn, void *arg);
    /*
     * Reports stored chunks as admitted, under the lock that orders change events: the next
     * `places` slots from *cursor on, which starts at 0. False after the last slot. A chunk that
     * stays in the tier from the first call to the last is reported exactly once; others perhaps.
     * Thread: any. Does not block on the device.
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
