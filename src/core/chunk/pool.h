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
 * The memory that holds chunks, and counted references to it.
 *
 * One mapping of the cap's size, anonymous or a memfd, with transparent huge pages, touched in the
 * background so that no store pays for a page fault; ranges come from core/chunk/space.h. A buffer
 * is a range with a reference count. It is created with one reference. Each later reader or writer
 * holds a reference, and the range becomes free when the last one is released. The bytes of all
 * live buffers, rounding included, never exceed the cap.
 *
 *     struct tierce__buf *buf;
 *     rc = tierce__pool_alloc(pool, &buf, object_bytes);     // TIERCE_E_FULL: evict, or skip
 *     ... write buf->data[0 .. object_bytes) ...
 *     tierce__buf_release(buf);
 */

struct tierce__pool;

/* The buffer object keeps its address for the life of the pool; after the last reference it is
 * unused. A cache line of its own, because `refs` is written by many threads. */
struct tierce__buf {
    _Alignas(64) uint32_t magic;
    uint32_t next_free; /* the pool's, while the buffer is unused */
    uint8_t *data;      /* 4096-byte aligned */
    uint64_t bytes;     /* as requested */
    struct tierce__pool *pool;
    /*
     * References. Acquire is relaxed (the caller holds one already); release is acq_rel, so that
     * the thread that frees or evicts sees all that others did with the bytes.
     */
    _Atomic uint32_t refs;
    /*
     * The keeper's note: 0, or its slot + 1. Set under the keeper's lock before it acquires a
     * reference of its own, cleared under that lock before it releases it; so a release that leaves
     * only the keeper's reference sees it set.
     */
    _Atomic uint32_t kept;
    /*
     * Whether the keeper waits for the release of the other references: its hook runs only then.
     * Sequentially consistent together with `refs`: the keeper sets it and then reads `refs`; a
     * release decrements `refs` and then reads it. So at least one of the two sees the other. The
     * keeper clears it.
     */
    _Atomic bool awaited;
    bool on_device; /* the processor cannot access `data`: an address of a device's memory */
    /* A clear has removed its chunk: references of before may be read to their end, but no request
     * that begins later may use them. Relaxed: the caller of the clear orders the two. */
    _Atomic bool cleared;
    /* Its bytes proved wrong, and the first reader who found that removes its chunk. Relaxed: it
     * only decides who is first. */
    _Atomic bool condemned;
    /* A note of its creator, 0 at first: the waterfall position of the slower tier that its bytes
     * were read from, so that a wrong chunk can be removed there too. Does not change once others
     * see the buffer. */
    uint32_t source;
    /* For named values; initially 0. The number of walks over names that had begun when the value
     * became visible: a later walk reports it in its first pass (objects_scan.c). Sequentially
     * consistent with the walk counter. */
    _Atomic uint64_t since;
};

struct tierce__pool_opts {
    size_t size;            /* sizeof(struct tierce__pool_opts) */
    uint64_t cap_bytes;     /* hard cap, >= 1 MiB; rounded down to 4096 */
    uint32_t buf_count_max; /* 0: cap_bytes / 64 KiB, at least 1024 */
    bool no_touch;          /* do not touch pages in the background (tests) */
    bool no_huge_pages;
    bool shared;            /* a memfd, which other processes can map: tierce__pool_fd */
    uint8_t *device_memory; /* [borrow until destroy] cap_bytes of a device's memory, aligned to
                               4096, in place of a mapping; NULL: memory of the host */
};

/*
 * Creates a pool. Reserves address space and bookkeeping at once; memory is touched by a
 * background thread. Errors: -ENOMEM, TIERCE_E_ARGUMENT; a shared one also -errno (no descriptor
 * left, no memfd).
 */
TIERCE_MUSTUSE int tierce__pool_create(struct tierce__pool **out,
                                       const struct tierce__pool_opts *opts);

/*
 * Ends the pool. Buffers still referenced are reported (event "pool_leak") and the mapping is kept,
 * because a holder may still write to it. NULL is accepted.
 */
void tierce__pool_destroy(struct tierce__pool *pool);

/*
 * A new buffer of `bytes` with one reference; its content is undefined.
 * Errors: TIERCE_E_FULL (no range or no buffer object free now), TIERCE_E_LIMIT (larger than the
 * pool), TIERCE_E_ARGUMENT (0 bytes). If sizes differ, evicting `bytes` may leave several smaller
 * holes: evict and retry until the buffer fits or nothing can be evicted.
 * Thread: any. Does not block, makes no system call, allocates nothing per call.
 */
TIERCE_MUSTUSE int tierce__pool_alloc(struct tierce__pool *pool, struct tierce__buf **out,
                                      uint64_t bytes);

/* Adds a reference to a buffer; the caller must already hold one. Thread: any. */
void tierce__buf_acquire(struct tierce__buf *buf);

/* Adds a reference to each of `count` buffers. Thread: any. */
void tierce__bufs_acquire(struct tierce__buf *const *bufs, size_t count);

/*
 * Gives the pages of a range of a buffer back to the system; the bytes of these pages are undefined
 * afterwards. For a pool that is large because of rare requests: otherwise it would keep the memory
 * of the largest one. The pool must not be shared, and the caller holds the only reference.
 * Thread: any. One system call.
 */
void tierce__buf_discard(struct tierce__buf *buf, uint64_t offset, uint64_t bytes);

/* Ends one reference. NULL is accepted. Thread: any; the idle hook may run inside. */
void tierce__buf_release(struct tierce__buf *buf);

/* Ends a reference on each of many buffers of one pool; NULLs are accepted. The idle hook runs once
 * for many of them. Thread: any. */
void tierce__bufs_release(struct tierce__buf *const *bufs, size_t count);

/*
 * The keeper: the one tier that keeps references on buffers of the pool and evicts them. After a
 * release that may have left the keeper's reference as the only one on a buffer that it awaits, its
 * hook runs on the releasing thread, under no lock of the pool. By then a buffer may be in use
 * again, or be a new one, so the keeper checks `kept` and `refs` under its own lock. If `refs` is 1
 * there and the reference is its own, other threads can get one only from the keeper.
 */
typedef void tierce__pool_idle_fn(void *arg, struct tierce__buf *const *bufs, size_t count);

/* Errors: -EBUSY (there is a keeper). Thread: any. */
TIERCE_MUSTUSE int tierce__pool_set_keeper(struct tierce__pool *pool, tierce__pool_idle_fn *idle,
                                           void *arg);

/* Ends the keeper; when this returns its hook has run for the last time. Waits for running hooks:
 * the caller holds no lock that the hook takes. */
void tierce__pool_clear_keeper(struct tierce__pool *pool);

/*
 * A turn waits for room. Turns form a queue, so that two large requests do not take memory from
 * each other. Only the first turn tries to allocate. It tries again only after another thread has
 * freed memory, or has announced memory that can be evicted. Memory that the turn's own thread
 * frees does not count, because the turn had it before.
 *
 *     struct tierce__pool_turn turn;
 *     tierce__pool_turn_begin(pool, &turn);
 *     while (!done && tierce__pool_turn_wait(&turn, deadline_ns))
 *         done = ... try; return the buffers if they do not suffice ...
 *     tierce__pool_turn_end(&turn);
 *
 * A last turn comes behind all others, also behind those that begin later: for work that nobody
 * waits for.
 *
 * Thread: any. A turn belongs to the thread that began it. That thread must hold nothing that other
 * threads wait for.
 */
struct tierce__pool_turn {
    struct tierce__pool *pool;
    struct tierce__list node;
    pthread_t thread;
    uint64_t seen;
    bool is_last;
    const _Atomic bool *stops; /* or NULL */
};

void tierce__pool_turn_begin(struct tierce__pool *pool, struct tierce__pool_turn *turn);

/* Begins a last turn. Its wait ends when *stops is true (NULL: never); after setting it, call
 * tierce__pool_wake. [borrow until end] stops */
void tierce__pool_turn_begin_last(struct tierce__pool *pool, struct tierce__pool_turn *turn,
                                  const _Atomic bool *stops);

/* Blocks until the owner of the turn should try; false: the deadline has passed, or *stops. */
TIERCE_MUSTUSE bool tierce__pool_turn_wait(struct tierce__pool_turn *turn, uint64_t deadline_ns);

void tierce__pool_turn_end(struct tierce__pool_turn *turn);

/* Reports that something can be evicted that could not be evicted before, or that something else
 * that turns wait for has become free. Thread: any. */
void tierce__pool_tell_room(struct tierce__pool *pool);

/* Makes all waiting turns check whether they have been stopped. Thread: any. */
void tierce__pool_wake(struct tierce__pool *pool);

/* The whole mapping, for registering it with io_uring. Not of a device's memory. */
void tierce__pool_mapping(const struct tierce__pool *pool, uint8_t **base, uint64_t *bytes);

/*
 * The memfd of a shared pool, or -1. Its offset 0 is the base of the mapping, so a buffer lies at
 * data - base. Its length is that of the mapping, and a process that receives the memfd cannot
 * change it. A process that maps it can write anywhere in it. A child of fork does not inherit the
 * mapping, because it would write to the parent's memory.
 * [borrow until destroy]
 */
int tierce__pool_fd(const struct tierce__pool *pool);

struct tierce__pool_stats {
    uint64_t cap_bytes;
    uint64_t used_bytes;  /* live buffers, rounding included */
    uint64_t asked_bytes; /* live buffers as requested */
    uint64_t touched_bytes;
    uint32_t bufs; /* live */
    uint32_t buf_count_max;
};

void tierce__pool_stats(struct tierce__pool *pool, struct tierce__pool_stats *out);

/* The number of references other than the keeper's. Reads all buffers ever used, one after the
 * other, so the sum is not a snapshot. Thread: any; blocks no other thread. */
uint64_t tierce__pool_leases(struct tierce__pool *pool);

#endif
