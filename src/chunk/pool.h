/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CHUNK_POOL_H
#define TIERCE_CHUNK_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include <tierce/status.h>

/*
 * The memory that chunks live in, and counted references to it.
 *
 * One mapping of the cap's size, anonymous or a memfd, with transparent huge pages, touched in the
 * background so that no store pays for a page fault; ranges come from chunk/space.h. A buffer is a
 * range with a reference count. It is created with one reference; whoever wants to read or write it
 * later holds one of his own, and the range is free when the last is released. The bytes of all
 * live buffers, rounding included, never exceed the cap.
 *
 *     struct tierce__buf *buf;
 *     rc = tierce__pool_alloc(pool, &buf, object_bytes);     // TIERCE_E_FULL: evict, or skip
 *     ... write buf->data[0 .. object_bytes) ...
 *     tierce__buf_release(buf);
 */

struct tierce__pool;

/* The object stays where it is for the life of the pool; only its use ends with the last
 * reference. A cache line of its own, because `refs` is written by many threads. */
struct tierce__buf {
    _Alignas(64) uint32_t magic;
    uint32_t next_free; /* the pool's, while nobody uses the buffer */
    uint8_t *data;      /* 4096-byte aligned */
    uint64_t bytes;     /* as asked for */
    struct tierce__pool *pool;
    /*
     * References. Acquire is relaxed (the caller holds one already); release is acq_rel, so that
     * the thread that frees or evicts sees all that others did with the bytes.
     */
    _Atomic uint32_t refs;
    /*
     * The keeper's note: 0, or its slot + 1. Set under the keeper's lock before it acquires a
     * reference of its own, cleared under that lock before it releases it; so whoever leaves the
     * keeper's reference as the last one sees it set.
     */
    _Atomic uint32_t kept;
    /*
     * Whether the keeper waits for the others to let go: its hook runs only then. Sequentially
     * consistent together with `refs`: the keeper sets it and looks at `refs`, a release takes off
     * `refs` and looks at it, so that at least one of the two sees the other. The keeper clears it.
     */
    _Atomic bool awaited;
    /* Its maker's note, 0 at first: the slower tier its bytes were read from (a rung), so that what
     * proves wrong here can be taken out there too. Does not change once others see the buffer. */
    uint32_t source;
};

struct tierce__pool_opts {
    size_t size;            /* sizeof(struct tierce__pool_opts) */
    uint64_t cap_bytes;     /* hard cap, >= 1 MiB; rounded down to 4096 */
    uint32_t buf_count_max; /* 0: cap_bytes / 64 KiB, at least 1024 */
    bool no_touch;          /* do not touch pages in the background (tests) */
    bool no_huge_pages;
    bool shared; /* a memfd, which other processes can map: tierce__pool_fd */
};

/*
 * Creates a pool. Reserves address space and bookkeeping at once; memory is touched by a
 * background thread. Errors: -ENOMEM, TIERCE_E_ARGUMENT; a shared one also -errno (no descriptor
 * left, no memfd).
 */
TIERCE_MUSTUSE int tierce__pool_create(struct tierce__pool **out,
                                       const struct tierce__pool_opts *opts);

/*
 * Ends the pool. Buffers still referenced are reported (event "pool_leak") and the mapping is
 * kept, because somebody may still write to it. NULL is accepted.
 */
void tierce__pool_destroy(struct tierce__pool *pool);

/*
 * A new buffer of `bytes` with one reference; its content is undefined.
 * Errors: TIERCE_E_FULL (no range or no buffer object free now), TIERCE_E_LIMIT (larger than the
 * pool), TIERCE_E_ARGUMENT (0 bytes). Where sizes differ, evicting `bytes` may free them in
 * several holes: evict and try again until it fits or nothing can be evicted.
 * Thread: any. Does not block, makes no system call, allocates nothing per call.
 */
TIERCE_MUSTUSE int tierce__pool_alloc(struct tierce__pool *pool, struct tierce__buf **out,
                                      uint64_t bytes);

/* One more reference for a buffer the caller already has one of. Thread: any. */
void tierce__buf_acquire(struct tierce__buf *buf);

/* The same for each of many. Thread: any. */
void tierce__bufs_acquire(struct tierce__buf *const *bufs, size_t count);

/* Ends one reference. NULL is accepted. Thread: any; the idle hook may run inside. */
void tierce__buf_release(struct tierce__buf *buf);

/* Ends a reference on each of many buffers of one pool; NULLs are accepted. The idle hook runs once
 * for many of them. Thread: any. */
void tierce__bufs_release(struct tierce__buf *const *bufs, size_t count);

/*
 * The keeper: the one tier that keeps references on buffers of the pool and evicts them.
 * Its hook runs after releases that may have left the keeper's references on buffers it awaits as
 * the only ones, in the releasing thread, under no lock of the pool. By then a buffer may be used
 * again, or be a new one: under its own lock the keeper looks at `kept` and at `refs`. If `refs` is
 * 1 there and the reference is its own, nobody else can get one but through the keeper.
 */
typedef void tierce__pool_idle_fn(void *arg, struct tierce__buf *const *bufs, size_t count);

/* Errors: -EBUSY (there is a keeper). Thread: any. */
TIERCE_MUSTUSE int tierce__pool_set_keeper(struct tierce__pool *pool, tierce__pool_idle_fn *idle,
                                           void *arg);

/* Ends the keeper; when this returns its hook has run for the last time. Waits for running hooks:
 * the caller holds no lock that the hook takes. */
void tierce__pool_clear_keeper(struct tierce__pool *pool);

/*
 * Waiting for room. Those who wait stand in a queue, so that two who want much do not take it from
 * each other; only the first tries, when something has been freed since it tried last, or told of.
 * What its own thread frees meanwhile does not count: it is what it had.
 *
 *     struct tierce__pool_turn turn;
 *     tierce__pool_turn_begin(pool, &turn);
 *     while (!done && tierce__pool_turn_wait(&turn, deadline_ns))
 *         done = ... try; give back what was got if it is not enough ...
 *     tierce__pool_turn_end(&turn);
 *
 * Thread: any; a turn belongs to the thread that began it, which holds nothing that others wait
 * for.
 */
struct tierce__pool_turn {
    struct tierce__pool *pool;
    struct tierce__list node;
    pthread_t thread;
    uint64_t seen;
};

void tierce__pool_turn_begin(struct tierce__pool *pool, struct tierce__pool_turn *turn);

/* Until it is time to try; false: the deadline has passed. */
TIERCE_MUSTUSE bool tierce__pool_turn_wait(struct tierce__pool_turn *turn, uint64_t deadline_ns);

void tierce__pool_turn_end(struct tierce__pool_turn *turn);

/* The keeper: something can be evicted that could not be. Thread: any. */
void tierce__pool_tell_room(struct tierce__pool *pool);

/* The whole mapping, for registering it with io_uring. */
void tierce__pool_mapping(const struct tierce__pool *pool, uint8_t **base, uint64_t *bytes);

/*
 * The memfd of a shared pool, or -1. Offset 0 is the base of the mapping, its length that of the
 * mapping, and neither can be changed by whoever gets it: a buffer lies at data - base. Who maps it
 * may write anywhere in it. A child of fork does not have the mapping: it would write to ours.
 * [borrow until destroy]
 */
int tierce__pool_fd(const struct tierce__pool *pool);

struct tierce__pool_stats {
    uint64_t cap_bytes;
    uint64_t used_bytes;  /* live buffers, rounding included */
    uint64_t asked_bytes; /* live buffers as asked for */
    uint64_t touched_bytes;
    uint32_t bufs; /* live */
    uint32_t buf_count_max;
};

void tierce__pool_stats(struct tierce__pool *pool, struct tierce__pool_stats *out);

/* References beside the keeper's, as the buffers are read one after the other: a walk over all that
 * were ever used at once. Thread: any; holds up nobody. */
uint64_t tierce__pool_leases(struct tierce__pool *pool);

#endif
