/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_REQ_H
#define TIERCE_STORE_REQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "core/chunk/pool.h"
#include "core/key/key.h"
#include "core/policy/policy.h"
#include <tierce/plugin.h>

/*
 * A request to a store: a tier (tier.h), which knows chunks by their keys, or a connector
 * (remote/connector.h), which knows objects by their names.
 *
 * A store's submit() returns nothing: the answer is always done(req), exactly once, perhaps before
 * submit returns, perhaps from a thread of the store, never under a lock of the store. `done` must
 * not block. The request, its keys and its names are the caller's and stay valid until done.
 */

struct tierce__store_req;

typedef void tierce__store_done_fn(struct tierce__store_req *req);

enum tierce__store_op {
    TIERCE__STORE_LOOKUP, /* how many leading keys are stored? */
    TIERCE__STORE_GET,    /* a range of a chunk into a buffer, or a reference on a buffer */
    TIERCE__STORE_PUT,    /* keep a sealed chunk */
    TIERCE__STORE_DELETE, /* forget a chunk, also one that is being put */
    TIERCE__STORE_HIDE,   /* do not serve a chunk any more and keep its bytes: for a build that can
                            read them, until the tier is opened again, or, with `left` NO_KEY, for
                            its key, until a SHOW */
    TIERCE__STORE_FLUSH,  /* make durable every put, delete and clear that was done before, or
                            deletes and clears alone */
    TIERCE__STORE_CLEAR,  /* forget all chunks, or those of one namespace */
    TIERCE__STORE_SIBLINGS, /* which chunks begin with this block? */
    TIERCE__STORE_LIST,     /* names, page by page: connectors with TIERCE__CONNECTOR_LISTS */
    TIERCE__STORE_PING,     /* asks whether the store behind it is available, and accepts our
                              credentials. A disk writes and syncs a page of its journal. No
                              key. Memory answers TIERCE_E_UNSUPPORTED */
    TIERCE__STORE_SHOW, /* serve the chunks again that are hidden for their key. A disk tier only;
                           others answer TIERCE_E_UNSUPPORTED */
};

/* Priority in a connector when not all requests can be served at once. Equal ones are served in
 * order of arrival. */
enum tierce__connector_urgency {
    TIERCE__CONNECTOR_PEEK, /* LOOKUP, PING */
    TIERCE__CONNECTOR_PREFETCH,
    TIERCE__CONNECTOR_FETCH,
    TIERCE__CONNECTOR_STORE, /* PUT, DELETE, LIST */
    TIERCE__CONNECTOR_URGENCIES
};

#define TIERCE__CONNECTOR_NAME_MAX TIERCE_PLUGIN_NAME_MAX

/* A chunk that begins with the requested block. */
struct tierce__sibling {
    struct tierce__key key;
    uint64_t object_bytes;
    uint32_t block_count;
};
#define TIERCE__SIBLINGS_MAX 8u

/* The reason why a chunk left. */
enum tierce__tier_left {
    TIERCE__LEFT_DELETED, /* a request deleted it without a reason */
    TIERCE__LEFT_EVICTED,
    TIERCE__LEFT_EXPIRED,
    TIERCE__LEFT_CLEARED,
    TIERCE__LEFT_LOST,       /* a sync failed, so the device may have lost it */
    TIERCE__LEFT_CHECKSUM,   /* deleted, because a checksum did not match */
    TIERCE__LEFT_IDENTITY,   /* deleted, because its bytes were another chunk's */
    TIERCE__LEFT_VERSION,    /* hidden, because it is of another version of the format */
    TIERCE__LEFT_SUPERSEDED, /* deleted: replaced by a longer chunk that begins with it */
    TIERCE__LEFT_NO_SLOT,    /* evicted, because the tier held its maximum number of chunks */
    TIERCE__LEFT_NO_KEY,     /* hidden, because no key that is there decrypts it */
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

struct tierce__store_req {
    enum tierce__store_op op;
    uint64_t deadline_ns; /* clock.h; TIERCE__DEADLINE_NEVER for none */
    tierce__store_done_fn *done;
    void *arg;         /* the caller's */
    uint64_t begun_ns; /* the caller's: when it submitted the request */

    /*
     * All operations except these use keys[0] only. [borrow until done]
     *
     * LOOKUP: [in] keys of consecutive chunks. [out] found: the number of leading keys that exist
     * for certain, with any status; 0 if none is known. TIERCE_E_DEADLINE with found > 0 is a
     * partial answer: the later keys may or may not exist. A tier with neither TIERCE__TIER_LENDS
     * nor TIERCE__TIER_SHARED sets object_bytes for a single key that is found.
     *
     * LOOKUP in a lending tier (TIERCE__TIER_LENDS) also lends the found buffers if bufs is not
     * NULL: [in] room for key_count, and length: the maximum of bytes to lend. [out]
     * bufs[0 .. lent): for each of the leading keys a reference that the caller now owns;
     * lent < found if the next buffer would exceed length.
     *
     * CLEAR: [in] no key: every namespace; one key: its namespace. [out] found: the number of
     * chunks that left. Earlier puts in progress are answered TIERCE_E_CANCELLED; lent buffers stay
     * with their borrowers. With only_puts, a tier with TIERCE__TIER_SHARED ends these puts,
     * forgets remembered answers, and deletes nothing in its store.
     *
     * SIBLINGS: [in] one key, whose hash is that of the chunk's first block; siblings: room for
     * TIERCE__SIBLINGS_MAX. [out] siblings[0 .. found): chunks that LOOKUP finds, the latest first,
     * perhaps not all; a tier without such an index finds none.
     *
     * PUT to a lending tier, or to a connector with TIERCE__CONNECTOR_ASKS: [out] found is 1 if the
     * tier or store had it already, else 0.
     *
     * DELETE answers earlier puts of the key in progress TIERCE_E_CANCELLED, and does not affect
     * later ones. From a durable tier: [out] found is 1 if the chunk could be found again after a
     * reopen without a FLUSH in between, even if it is not in the tier now. From a tier with
     * TIERCE__TIER_KEEPS: 1 if its store has the chunk, which is only hidden. With only_asks,
     * DELETE changes nothing and sets found; tiers with TIERCE__TIER_DURABLE.
     */
    const struct tierce__key *keys;
    size_t key_count;
    size_t found;
    struct tierce__buf **bufs; /* [borrow until done] */
    size_t lent;
    bool lacks_key; /* [out] LOOKUP in a disk tier: the first key that is not found is that of a
                       chunk that is hidden for its key */
    struct tierce__sibling *siblings; /* [borrow until done] */
    bool durable;   /* LOOKUP: only durable chunks count; tiers with TIERCE__TIER_DURABLE */
    bool only_puts; /* CLEAR; tiers with TIERCE__TIER_SHARED */
    bool removals;  /* FLUSH: of deletes and clears alone. It does not wait for chunks to become
                       durable, and does not report that some were lost */
    enum tierce__tier_recall recall; /* LOOKUP; tiers with TIERCE__TIER_SHARED */
    bool recalled;                   /* [out] LOOKUP: answered without a query */

    /*
     * Connectors have names in place of keys, with the same meaning of `found`. LOOKUP: names
     * [0 .. name_count). If a single name is found, [out] object_bytes is its object's length;
     * stores that do not report lengths leave it unchanged. GET, PUT, DELETE: names[0]. LIST:
     * names[0] is a prefix, or there is no name. [borrow until done]
     */
    const struct tierce_plugin_name *names;
    size_t name_count;
    enum tierce__connector_urgency urgency;

    /* LIST: [in, out] cursor: 0 for the first page, 0 again after the last. `each` is called before
     * done for each name of the page, under no lock. A name that exists throughout is reported at
     * least once; a page may be empty. [out] before each call of `each`, if the store's listing
     * tells them: object_bytes and changed_us of the named object; else both are as [in]. page_max:
     * how many names a page should have at most; 0: as the store likes, and so do stores whose
     * pages have another limit. */
    uint64_t cursor;
    tierce_plugin_each_fn *each;
    int64_t changed_us; /* wall clock of the store */
    uint32_t page_max;

    /*
     * GET from a lending tier (TIERCE__TIER_LENDS): [in] NULL, [out] a buffer with a reference that
     * is the caller's now; offset and length are ignored. GET from any other tier: [in] the
     * destination; bytes [offset, offset + length) of the object land at buf->data + offset. Both
     * are multiples of 4096 and lie inside the object; a range beyond the object's end is
     * TIERCE_E_MISS, or TIERCE_E_FORMAT from a remote tier whose store has confirmed that it has
     * the object. Only a disk tier and coded memory read into memory of a device
     * (buf->on_device); their status is TIERCE_E_UNSUPPORTED if they cannot read the chunk there,
     * for example because it is encrypted. The caller keeps its reference until done. PUT: [in] the
     * sealed object, object_bytes long. The tier takes references of its own.
     *
     * GET from a connector: any range, or, without TIERCE__CONNECTOR_RANGES, offset 0 and the whole
     * object, whose length must be `length`. The status is TIERCE_E_FORMAT if the object ends
     * before the range, or, when read whole, is not `length` bytes long; the contents of buf are
     * then undefined. If it ends before the range begins, the status may also be TIERCE_E_MISS. PUT
     * to a connector: buf->data[0 .. length). `length` is never 0.
     *
     * With takes_shorter, which requires TIERCE__CONNECTOR_TELLS_LENGTH, a GET of a whole object
     * accepts up to `length` bytes: [out] object_bytes is the length of the object.
     *
     * With TIERCE__CONNECTOR_FORMS, the object of a name has one of two forms, raw and coded, which
     * have different lengths and may change at any time. GET: [in] object_bytes: the length of the
     * form that the range is of and lies in, and TIERCE_E_MISS if the store does not have the
     * object in this form now; 0: any form, and offset is 0. [out] the length of the form that was
     * read.
     */
    struct tierce__buf *buf;
    uint64_t offset;
    uint64_t length;
    bool ahead; /* GET: no caller waits for it yet */
    bool takes_shorter;
    struct tierce__store_guard {
        void *of;
        uint64_t number;
    } guard; /* [out] GET: for answer_begin of a connector that has it */

    /* PUT: fields that tiers index beside the key. */
    const struct tierce__key *parent; /* chunk before this one; NULL for the first. Connectors may
                                         use it too */
    const uint8_t *first_block;       /* hash of the chunk's first block, 32 bytes */
    uint64_t object_bytes;
    uint64_t token_start;
    uint32_t block_count;
    struct tierce__policy_origin origin;

    /*
     * Coded objects (core/chunk/coded.h), between a disk tier and coded/coded_tier.h, which alone
     * sets these fields. PUT: [in] 0, or the length of the coded object in buf; object_bytes stays
     * the length of the raw chunk, as everywhere. LOOKUP of a single key that is found: [out]
     * coded_bytes: 0 for a raw object; stored: the number of this stored object, which no other
     * has. GET: [in] if coded_bytes is not 0, the range is one of the coded object `stored`, and
     * lands at buf->data; if it is 0, the range is one of a raw object. TIERCE_E_MISS if the
     * stored object is another.
     *
     * A GET with `carries` passes the coded tier unchanged: [in] coded_bytes and stored are those
     * of a LOOKUP, and the caller gets coded bytes.
     *
     * HIDE in a disk tier with `left` NO_KEY: [in] stored: only this stored object is hidden. A
     * later PUT of the key replaces it, and is answered TIERCE_E_FULL like that of a new chunk. The
     * hidden object stays until the put has its turn. A crash leaves one of the two, or none.
     *
     * A PUT with `recodes` replaces a durable chunk's bytes: compressed ones for uncompressed ones,
     * or the reverse, or coded ones of another length. The chunk can be read throughout, and the
     * present bytes stay until the new ones are durable, so that a crash leaves one of the two. No
     * other chunk is evicted for it. [out] found: 1 if the chunk has this form already. Errors:
     * TIERCE_E_MISS (it is not there), TIERCE_E_REFUSED (it is being read, written or recoded, or
     * is not durable yet: try again), TIERCE_E_FULL (no space is free), TIERCE_E_CANCELLED (it was
     * deleted meanwhile).
     *
     * PUT to a connector: 0, or the length of the coded object, which is `length`; object_bytes is
     * that of the raw object. A store that cannot have another length may store `raw` in its place;
     * NULL: it must not, because the object is encrypted. [out] from a connector that encodes: the
     * length of the coded object that was stored.
     */
    uint64_t coded_bytes;
    uint64_t stored;
    struct tierce__buf *raw;     /* [borrow until done] */
    enum tierce__tier_left left; /* DELETE, HIDE: why */
    bool only_asks;              /* DELETE */
    bool replaces;               /* PUT to a lending tier: replaces the present chunk atomically */
    bool recodes;                /* PUT to a durable tier: see above */
    bool carries;                /* GET of a coded object: see above */
    bool needs_parent;           /* PUT: reject the chunk if its parent is not stored yet, so that
                                    no suffix is kept without its prefix */

    /*
     * [out] 0, or: TIERCE_E_MISS (not there), TIERCE_E_FULL (PUT: nothing can be evicted),
     * TIERCE_E_REFUSED (PUT: admission rule, needs_parent, or hidden bytes of that key),
     * TIERCE_E_DEADLINE, TIERCE_E_DOWN, TIERCE_E_CLOSED, TIERCE_E_ARGUMENT (a contract above is
     * broken), or a negative errno of the device. A PUT of a chunk that is already stored returns
     * 0, whatever its bytes.
     *
     * Connectors: TIERCE_E_REFUSED: the store rejects our credentials, or they lack permission;
     * TIERCE_E_FORMAT: an invalid answer, or an object of the wrong length; TIERCE_E_LIMIT: larger
     * than the store accepts, or the request queue is full; TIERCE_E_UNSUPPORTED;
     * TIERCE_E_CANCELLED: the connector was closed first; -EBUSY: another process is storing the
     * object (PUT, TIERCE__CONNECTOR_ASKS). In words: ops->why.
     */
    int status;
    /* [in] false; [out] true: `status` is a failure that does not count for the tier's health:
     * another request was answered with it, because they shared a read or a connection; the
     * deadline passed before the device was asked or after it had answered; or another host chose
     * the deadline. */
    bool repeats;
    /* [in] false; [out] GET: true: a connection to the store was made for it. */
    bool connected;

    struct tierce__list node; /* the store's while the request is with it */
    uint64_t scratch[36];     /* a tier's while the request is with it; connectors use none, so a
                                 tier may pass its own request on to one */
};

/* The bytes that a PUT stores. */
static inline uint64_t tierce__store_put_bytes(const struct tierce__store_req *put)
{
    return put->coded_bytes > 0 ? put->coded_bytes : put->object_bytes;
}

#endif
