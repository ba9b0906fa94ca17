/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_CODED_PRIVATE_H
#define TIERCE_STORE_CODED_PRIVATE_H

#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "store/coded/coded_parts.h"

#include <pthread.h>
#include <stdatomic.h>

/*
 * The coded tier from inside.
 *
 *   coded_tier.c   the tier's operations, statistics, close
 *   coded_put.c    chunks that are encoded
 *   coded_get.c    ranges that are decoded
 *   coded_head.c   heads of coded objects
 *   coded_parts.h  the parts that a connector with coded objects has too
 *
 * The lock guards every field that is not constant after open. It is not held over a call of the
 * inner tier, of alloc, of done, or of a buffer's release.
 */

#define TIERCE__CODED_MAGIC 0x43444354u

/* ---- puts ---- */

enum tierce__coded_put_state {
    TIERCE__CODED_QUEUED,
    TIERCE__CODED_ENCODING,
    TIERCE__CODED_PASSING, /* the inner tier is being given the put */
};

/* A put that is not with the inner tier yet, or that has a coded buffer there. */
struct tierce__coded_put {
    struct tierce__list node; /* among `puts`; empty once the inner tier has it */
    struct tierce__coded_tier *tier;
    struct tierce__store_req *req;  /* the caller's */
    struct tierce__store_req inner; /* of the coded object */
    struct tierce__key key;
    struct tierce__buf *raw;   /* a reference of the tier, until the inner tier has it */
    struct tierce__buf *coded; /* NULL: it stays raw */
    enum tierce__coded_put_state state;
    uint64_t coded_bytes;
    uint32_t reference_count;          /* references held by the tier's thread and the inner tier */
    const struct tierce__codec *codec; /* NULL: it is not coded */
    enum tierce__element element;
    bool cancelled;
};

/* ---- gets ---- */

/* The head of a stored object. */
struct tierce__coded_head {
    struct tierce__list node; /* among `heads`, the one taken last at the end */
    struct tierce__key key;
    uint64_t stored;
    uint32_t reference_count;
    bool reading; /* a get is reading it; others wait in `parked` */
    bool ready;
    struct tierce__coded_parsed parsed;
};

#define TIERCE__CODED_HEADS_MAX 64u /* kept although no get uses them */

/* A range of a coded object. */
struct tierce__coded_get {
    struct tierce__list node; /* in one of the lists of the tier, or nowhere */
    struct tierce__coded_tier *tier;
    struct tierce__store_req *req;  /* the caller's */
    struct tierce__store_req inner; /* the read in progress */
    struct tierce__coded_head *head;
    struct tierce__buf *buf; /* coded bytes [from, from + inner.length) of the object */
    uint64_t raw_bytes, coded_bytes, stored; /* of the object */
    uint64_t from;
    uint64_t staged; /* bytes that count against staging_bytes_max */
    struct tierce__coded_range range;
    bool reads_head;
    bool was_read;        /* the device has answered a read of its own */
    bool device_was_late; /* to such a read, measured by the deadline */
};

/* A read of a raw object, which is counted for the speed of the device. */
struct tierce__coded_raw_get {
    struct tierce__coded_tier *tier;
    struct tierce__store_req *req;
    struct tierce__store_req inner;
    uint64_t stored; /* the object's number */
};

struct tierce__coded_tier {
    struct tierce__tier base;
    uint32_t magic;

    /* ---- constant after open ---- */
    struct tierce__tier *inner;
    struct tierce__tier_ops ops; /* the inner tier's name and abilities */
    const struct tierce__codec *codec;
    struct tierce__coded_keys *keys;
    bool encrypts;
    struct tierce__buf *(*alloc)(void *arg, uint64_t bytes);
    void *alloc_arg;
    uint64_t queue_bytes_max, staging_bytes_max;
    bool no_pool;
    struct tierce__affinity affinity; /* of the threads, which the first put and get start */
    _Atomic bool has_recoded;         /* chunks may have been compressed or uncompressed */
    _Atomic bool has_lacking; /* chunks may be hidden for their key; stored under the lock */
    struct tierce__coded_elements elements;

    struct tierce__coded_device own_device; /* constant once `device` has pointed to it */
    /* NULL: none that decodes. Stored (release) and loaded (acquire), which publishes own_device.
     */
    const struct tierce__coded_device *_Atomic device;

    struct tierce__lock lock;
    struct tierce__cond encode_cond, decode_cond;
    struct tierce__cond idle_cond; /* for close */

    /* ---- the lock ---- */
    bool closing;      /* no new request is accepted */
    bool inner_closes; /* the inner tier is not called any more */
    bool stop;         /* the threads return */
    bool encoder_runs, decoders_run;
    pthread_t encoder;
    struct tierce__threads decoders;
    struct tierce__pool *pool; /* for coded bytes; made when first needed, then constant */
    uint32_t passing;          /* calls of the inner tier's submit that close has to wait for */

    struct tierce__list puts;     /* first: the one being encoded */
    uint64_t queued_bytes;        /* of these */
    uint64_t put_staging;         /* coded bytes that the inner tier has */
    uint64_t put_count;           /* puts in memory */
    uint64_t put_deadline;        /* a lower bound of the deadlines of `puts` */
    uint64_t dropped;             /* because the queue was full */
    struct tierce__list deferred; /* deletions and clears that wait for a put to be passed on */

    struct tierce__list heads;
    uint32_t head_count;         /* of these that no get uses */
    struct tierce__list parked;  /* gets that wait for a head that another reads */
    struct tierce__list waiting; /* gets that wait for memory */
    struct tierce__list resumed; /* gets that have waited for memory and may allocate it */
    struct tierce__list ready;   /* gets that wait to be decoded */
    uint64_t get_staging;
    uint64_t pending_gets;  /* gets that were not answered */
    uint64_t next_deadline; /* a lower bound of the deadlines in these lists */

    uint64_t lacking_generation; /* of the keys that did not decrypt the hidden chunks */
    struct tierce__coded_stats stats;
    struct tierce__coded_speed speed;
};

/* ---- coded_put.c ---- */

/* Takes a put; false: the inner tier is to be given it as it is. */
bool tierce__coded_put_begin(struct tierce__coded_tier *t, struct tierce__store_req *req);
void *tierce__coded_encoder_main(void *arg);
/* Cancels the puts of a key, or of a namespace, or all, and moves them to `finished`. Returns
 * whether the request has to wait, because such a put is being passed on. Under the lock. */
bool tierce__coded_puts_cancel(struct tierce__coded_tier *t, const struct tierce__store_req *req,
                               struct tierce__list *finished);
/* Answers such puts. No lock. */
void tierce__coded_puts_answer(struct tierce__list *finished, int status);

/* ---- coded_get.c ---- */

void tierce__coded_get_begin(struct tierce__coded_tier *t, struct tierce__store_req *req);
void *tierce__coded_decoder_main(void *arg);

/* ---- coded_head.c: under the lock ---- */

/* The head of an object, made if it is new, with one more user. NULL: no memory. */
struct tierce__coded_head *tierce__coded_head_take(struct tierce__coded_tier *t,
                                                   const struct tierce__key *key, uint64_t stored);
void tierce__coded_head_leave(struct tierce__coded_tier *t, struct tierce__coded_head *head);
void tierce__coded_heads_free(struct tierce__coded_tier *t);

/* ---- coded_tier.c ---- */

/* Makes the pool for coded bytes. Under the lock. Errors: those of a pool. */
TIERCE_MUSTUSE int tierce__coded_pool(struct tierce__coded_tier *t);
/* Allocates memory for coded bytes. Returns NULL if there is none. No lock. */
struct tierce__buf *tierce__coded_alloc(struct tierce__coded_tier *t, uint64_t bytes);

/* Calls the inner tier, which close waits for. False: the tier closes. */
bool tierce__coded_pass(struct tierce__coded_tier *t, struct tierce__store_req *inner);
/* Whether the inner tier stores a chunk: a lookup of one key, which a disk answers at once from its
 * index. Returns `found`, or the lookup's error. If the chunk is hidden for its key, the keys are
 * read again. No lock. */
TIERCE_MUSTUSE int tierce__coded_look(struct tierce__coded_tier *t, struct tierce__store_req *look,
                                      const struct tierce__key *key, uint64_t deadline_ns);
/* Hides object `stored` of a chunk, which keys of that generation did not decrypt. No lock. */
void tierce__coded_hide(struct tierce__coded_tier *t, const struct tierce__key *key,
                        uint64_t stored, uint64_t generation);

#endif
