/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_H
#define TIERCE_TIER_H

#include <stdbool.h>

#include "base/list.h"
#include "chunk/pool.h"
#include "key/key.h"

/*
 * A place that holds chunks. Memory, disk, peers and remote stores all stand behind this table of
 * functions, and so do the wrappers that inject faults.
 *
 * Everything is a request. submit() returns nothing: the answer is always done(req), exactly
 * once, perhaps before submit returns, perhaps from a thread of the tier, never under a lock of
 * the tier. `done` must not block. The request's memory is the caller's and stays valid until
 * done. A tier that cannot answer by the deadline answers TIERCE_E_DEADLINE then; it keeps its own
 * reference on the buffer for as long as the device may still touch it.
 *
 * A tier serves whatever bytes it was given: identity and sums are verified by the reader
 * (chunk/header.h). It must only never serve a chunk whose put has not completed.
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
    TIERCE__TIER_FLUSH,    /* make durable every put, delete and clear that was done before */
    TIERCE__TIER_CLEAR,    /* forget all chunks, or those of one namespace */
    TIERCE__TIER_SIBLINGS, /* which chunks begin with this block? */
    TIERCE__TIER_PING, /* is what stands behind it there? No key; TIERCE__TIER_SHARED only, others
                          answer TIERCE_E_UNSUPPORTED */
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
    TIERCE__LEFT_DELETED, /* somebody asked for it, without a reason */
    TIERCE__LEFT_EVICTED,
    TIERCE__LEFT_EXPIRED,
    TIERCE__LEFT_CLEARED,
    TIERCE__LEFT_LOST,     /* the device may have lost it: a sync failed */
    TIERCE__LEFT_CHECKSUM, /* deleted, because a sum did not fit */
    TIERCE__LEFT_IDENTITY, /* deleted, because it was another chunk */
    TIERCE__LEFT_VERSION,  /* hidden, because it is of another version of the format */
};

struct tierce__tier_req {
    enum tierce__tier_op op;
    uint64_t deadline_ns; /* clock.h; TIERCE__DEADLINE_NEVER for none */
    tierce__tier_done_fn *done;
    void *arg;         /* the caller's */
    uint64_t begun_ns; /* the caller's: when it submitted the request */

    /* LOOKUP [in] keys of consecutive chunks, [out] found: the leading ones that are there.
     * CLEAR [in] no key: every namespace; one: the namespace that it names. [out] found: chunks
     * that left. Puts that were submitted before and are not done are answered
     * TIERCE_E_CANCELLED; what is lent stays with its borrowers.
     * SIBLINGS [in] one key, with the hash of the chunk's first block in the place of the chunk's
     * own; siblings: room for TIERCE__SIBLINGS_MAX. [out] siblings[0 .. found): chunks that LOOKUP
     * finds, those that came last first, perhaps not all; a tier that does not know finds none.
     * All other operations look at keys[0] only.
     * LOOKUP in a lending tier (TIERCE__TIER_LENDS) also lends what it finds, if bufs is not NULL:
     * [in] room for key_count, and length: the most bytes to lend. [out] bufs[0 .. lent): for each
     * of the leading keys a reference that is the caller's now; lent < found where the next buffer
     * would be more than length allows; and if `touches`, a single key that is lent is touched as
     * by touch(key, 1, 0). PUT to a lending tier: [out] found is 1 if the
     * chunk was there already, else 0. DELETE from a durable tier: [out] found is 1 if the chunk,
     * whether or not it was there just now, could be there again when the tier is opened anew,
     * unless there is a FLUSH first. DELETE answers puts of the key that were submitted before and
     * are not done TIERCE_E_CANCELLED; those that are submitted later are not touched by it.
     * [borrow until done] */
    const struct tierce__key *keys;
    size_t key_count;
    size_t found;
    struct tierce__buf **bufs; /* [borrow until done] */
    size_t lent;
    bool touches;                     /* LOOKUP of one key */
    struct tierce__sibling *siblings; /* [borrow until done] */
    bool durable; /* LOOKUP: only what is durable counts; tiers with TIERCE__TIER_DURABLE */

    /*
     * GET from a lending tier (TIERCE__TIER_LENDS): [in] NULL, [out] a buffer with a reference that
     * is the caller's now; offset and length are ignored. GET from any other tier: [in] the
     * destination; bytes [offset, offset + length) of the object land at buf->data + offset. Both
     * are multiples of 4096 and lie inside the object; a range beyond what is stored is
     * TIERCE_E_MISS. The caller keeps its reference until done. PUT: [in] the sealed object,
     * object_bytes long. The tier takes references of its own.
     */
    struct tierce__buf *buf;
    uint64_t offset;
    uint64_t length;
    bool ahead; /* GET: nobody waits for it yet */

    /* PUT: what tiers index beside the key. */
    const struct tierce__key *parent; /* chunk before this one; NULL for the first */
    const uint8_t *first_block;       /* hash of the chunk's first block, 32 bytes */
    uint64_t object_bytes;
    uint64_t token_start;
    uint32_t block_count;
    enum tierce__tier_left left; /* DELETE: why */
    bool replaces;               /* PUT to a lending tier: in the place of what is there, so that
                                    at no time neither is */
    bool needs_parent;           /* PUT: refuse the chunk if its parent is not there by now, so
                                    that no suffix is kept without its prefix */

    /*
     * [out] 0, or: TIERCE_E_MISS (not there), TIERCE_E_FULL (PUT: nothing can be evicted),
     * TIERCE_E_REFUSED (PUT: admission rule, needs_parent, or hidden bytes of that key),
     * TIERCE_E_DEADLINE, TIERCE_E_DOWN, TIERCE_E_CLOSED, TIERCE_E_ARGUMENT (a contract above is
     * broken), or a negative errno of the device. A PUT of what is there already is 0, whatever its
     * bytes.
     */
    int status;

    struct tierce__list node; /* the tier's while the request is with it */
    uint64_t scratch[8];      /* the tier's while the request is with it; wrappers allocate none */
};

#define TIERCE__TIER_LENDS   1u /* GET and LOOKUP give references on the tier's own buffers */
#define TIERCE__TIER_DURABLE 2u /* FLUSH makes chunks survive the process */
#define TIERCE__TIER_SHARED                                                                        \
    4u /* others change it too: a LOOKUP asks outside; no chunks and no cap in its stats, nothing  \
          for a watcher, no scan, no order that touch could change; DELETE may answer 0 for what   \
          was not there, and takes back what is on its way: TIERCE_E_CANCELLED for that PUT */
#define TIERCE__TIER_WHOLE                                                                         \
    8u /* chunks are read as a whole: all parts of one should be asked for at once, into one       \
          buffer as large as the chunk */

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
    /* Of tiers with TIERCE__TIER_SHARED. */
    uint64_t connections;   /* open now */
    uint64_t connects;      /* made so far */
    uint64_t waiting;       /* requests that wait for a connection */
    uint64_t calls_hanging; /* that have not come back by their deadline, now */
};

/*
 * What changed in a tier, or what is there. A chunk is admitted when it can be found from then on,
 * and leaves when it cannot be found any more, whatever becomes of its bytes.
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

/* What room is asked for. [borrow for the call] */
struct tierce__reserve {
    const struct tierce__key *key;
    const struct tierce__key *parent; /* chunk before this one; NULL for the first */
    const struct tierce__buf *before; /* its buffer, if the caller holds it; or NULL */
    uint64_t bytes;                   /* > 0 */
};

struct tierce__tier_ops {
    const char *name;
    unsigned caps;
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
     * A new pool buffer, evicting by policy, for a chunk that will be put: it stands in the
     * eviction order from here on and cannot be found before. The reference is the caller's; if
     * all such go without a PUT, so does the place. Only tiers that have evict. NULL: there is no
     * room and nothing can be evicted, or a chunk larger than the pool. Thread: any. Does not
     * block.
     */
    struct tierce__buf *(*reserve)(struct tierce__tier *tier, const struct tierce__reserve *what);
    void (*stats)(struct tierce__tier *tier, struct tierce__tier_stats *out);
    /* The last failure in words, without credentials; "" for none. NULL for tiers whose statuses
     * say it all. Thread: any. */
    void (*why)(struct tierce__tier *tier, char why[TIERCE__TIER_WHY_BYTES]);
    /* From here on tells every change in order, until close begins. Once, before the first request;
     * what a tier holds by then is told by scan. */
    void (*watch)(struct tierce__tier *tier, tierce__tier_watch_fn *fn, void *arg);
    /*
     * Tells what is there, as admitted, under the lock under which changes are told: the next
     * `places` of the tier from *cursor on, which is 0 at first. False once there are no more. What
     * is there all the time from the first call to the last is told once; what comes or goes
     * meanwhile, perhaps. Thread: any. Does not block on the device.
     */
    bool (*scan)(struct tierce__tier *tier, uint32_t *cursor, uint32_t places,
                 tierce__tier_watch_fn *fn, void *arg);
    /*
     * Completes or cancels every request, makes durable what it can within the deadline, frees
     * the tier. Blocks. False: a thread did not come back from the device, so the tier is left
     * behind, some requests are unanswered, and what the tier borrowed must never be freed.
     */
    bool (*close)(struct tierce__tier *tier, uint64_t deadline_ns);
};

/* First member of every implementation. */
struct tierce__tier {
    const struct tierce__tier_ops *ops;
};

#endif
