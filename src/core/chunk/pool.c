/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk/pool.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "base/log/log.h"
#include "core/chunk/space.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define POOL_MAGIC    0x504f4f31u
#define BUF_LIVE      0x42554631u
#define BUF_FREE      0x62756631u
#define NO_BUF        UINT32_MAX
#define PAGE          4096u
#define HUGE_PAGE     (2u << 20)
#define CAP_MIN       (1u << 20)
#define BUF_COUNT_MIN 1024u
#define BYTES_PER_BUF (64u << 10)
#define IDLE_BATCH    64u /* buffers reported in one call of the hook */
#define TOUCH_SLICE                                                                                \
    (4ULL << 20)            /* one call; short, because it holds up changes of the mappings        \
                             */
#define POPULATE_UNKNOWN 23 /* MADV_POPULATE_WRITE, where the C library lacks it */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE POPULATE_UNKNOWN
#endif

struct tierce__pool {
    uint32_t magic;
    uint32_t buf_count;
    int fd; /* -1: the mapping is anonymous */
    bool on_device;
    uint8_t *base;
    uint64_t cap_bytes;
    struct tierce__buf *bufs;

    struct tierce__lock lock;    /* class POOL: space, free list, live */
    struct tierce__space *space; /* [lock] */
    uint32_t free_first;         /* [lock] index of the buffer freed last, or NO_BUF */
    uint32_t fresh;              /* [lock] buffers from here on were never used */
    uint32_t live;               /* [lock] */

    /* Number of turns that wait for room. A turn is counted before it tries, and a releasing thread
     * reads the count after its release. Both take a lock in between (this one, or the keeper's),
     * so no waiter is missed. */
    _Atomic uint32_t waiting;
    struct tierce__list turns; /* [lock] the first tries */
    struct tierce__cond room;  /* [lock] */
    uint64_t changes;          /* [lock] */

    /*
     * Threads inside a release. Incremented before the reference is released and decremented last,
     * so that clear_keeper and destroy can wait until no thread is between the two. Sequentially
     * consistent, together with `idle`: either a release sees that there is no keeper, or
     * clear_keeper sees the release.
     */
    _Atomic uint32_t releasing;
    _Atomic(tierce__pool_idle_fn *) idle;
    void *idle_arg; /* written before `idle` is set, read after it is seen */

    pthread_t toucher;
    bool toucher_runs;
    _Atomic bool toucher_stop;      /* relaxed: a hint to stop early */
    _Atomic uint64_t touched_bytes; /* relaxed: a counter */
};

/* ---- memory ---------------------------------------------------------------------------------- */

/* Address space for `bytes` at a multiple of a huge page, or NULL. */
static uint8_t *reserve_addresses(uint64_t bytes)
{
    TIERCE_DASSERT(bytes % PAGE == 0);
    size_t whole = (size_t)bytes + HUGE_PAGE;
    void *map = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    uint8_t *start = (uint8_t *)map;
    size_t before = (size_t)(-(uintptr_t)start & (HUGE_PAGE - 1));
    if (before > 0)
        (void)munmap(start, before);
    (void)munmap(start + before + bytes, HUGE_PAGE - before);
    TIERCE_DASSERT((uintptr_t)(start + before) % HUGE_PAGE == 0);
    return start + before;
}

/* A memfd of fixed length, so that processes that map it can rely on the length. */
static int open_memfd(int *out, uint64_t bytes)
{
    TIERCE_DASSERT(bytes > 0 && bytes % PAGE == 0);
    int fd = memfd_create("tierce-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

static int map_memory(struct tierce__pool *pool, bool huge)
{
    size_t bytes = (size_t)pool->cap_bytes;
    bool shared = pool->fd >= 0;
    pool->base = reserve_addresses(bytes);
    if (pool->base == NULL)
        return -ENOMEM;
    int kind = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    if (mmap(pool->base, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | kind, pool->fd, 0) ==
        MAP_FAILED)
        return -ENOMEM;
    if (shared && madvise(pool->base, bytes, MADV_DONTFORK) != 0)
        return -errno;
    /* Advice: without huge pages everything works, more slowly. */
    (void)madvise(pool->base, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    TIERCE_DASSERT((uintptr_t)pool->base % HUGE_PAGE == 0);
    return 0;
}

/*
 * Uses idle CPU time only: an engine that computes on this CPU must not wait for us. But the kernel
 * holds the lock of the process's mappings while it populates. A thread that gets no CPU time then
 * would block every thread that maps or faults: for 0.7 s each on a machine with eight busy
 * processes.
 */
static void wait_for_idle_time(void)
{
    static const struct sched_param none;
    if (pthread_setschedparam(pthread_self(), SCHED_IDLE, &none) == 0) {
        sched_yield();
        (void)pthread_setschedparam(pthread_self(), SCHED_OTHER, &none);
    }
}

/*
 * Populating writes nothing: pages that are already filled stay unchanged. If the kernel cannot
 * populate, the first user touches the pages.
 */
static void *touch_pages(void *arg)
{
    struct tierce__pool *pool = (struct tierce__pool *)arg;
    for (uint64_t at = 0; at < pool->cap_bytes; at += TOUCH_SLICE) {
        uint64_t left = pool->cap_bytes - at;
        uint64_t slice = left < TOUCH_SLICE ? left : TOUCH_SLICE;
        wait_for_idle_time();
        if (atomic_load_explicit(&pool->toucher_stop, memory_order_relaxed))
            break;
        if (madvise(pool->base + at, (size_t)slice, MADV_POPULATE_WRITE) != 0)
            break;
        atomic_fetch_add_explicit(&pool->touched_bytes, slice, memory_order_relaxed);
    }
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void destroy_parts(struct tierce__pool *pool)
{
    TIERCE_DASSERT(pool->live == 0 && !pool->toucher_runs);
    TIERCE_DASSERT(tierce__list_empty(&pool->turns) && atomic_load(&pool->releasing) == 0);
    pool->magic = 0;
    if (pool->base != NULL && !pool->on_device)
        (void)munmap(pool->base, (size_t)pool->cap_bytes);
    if (pool->fd >= 0)
        close(pool->fd);
    tierce__space_destroy(pool->space);
    tierce__free(pool->bufs);
    tierce__cond_fini(&pool->room);
    tierce__lock_fini(&pool->lock);
    tierce__free(pool);
}

static uint32_t buf_count_for(const struct tierce__pool_opts *opts)
{
    if (opts->buf_count_max > 0)
        return opts->buf_count_max;
    uint64_t count = opts->cap_bytes / BYTES_PER_BUF;
    if (count < BUF_COUNT_MIN)
        return BUF_COUNT_MIN;
    return count < (1u << 30) ? (uint32_t)count : 1u << 30;
}

static int reserve_parts(struct tierce__pool *pool, const struct tierce__pool_opts *opts)
{
    TIERCE_DASSERT(pool->buf_count > 0 && pool->buf_count < NO_BUF);
    pool->bufs = tierce__alloc_aligned(_Alignof(struct tierce__buf),
                                       (size_t)pool->buf_count * sizeof(*pool->bufs));
    if (pool->bufs == NULL)
        return -ENOMEM;
    tierce__advise_huge(pool->bufs, (size_t)pool->buf_count * sizeof(*pool->bufs));
    int rc = tierce__space_create(&pool->space, pool->cap_bytes);
    if (rc == 0)
        rc = tierce__space_reserve(pool->space, pool->buf_count);
    if (rc < 0)
        return rc;
    if (pool->on_device) {
        pool->base = opts->device_memory;
        return 0;
    }
    if (opts->shared)
        rc = open_memfd(&pool->fd, pool->cap_bytes);
    if (rc == 0)
        rc = map_memory(pool, !opts->no_huge_pages);
    if (rc < 0)
        return rc;
    /* Without a thread, pages are touched by their first user. */
    TIERCE_DASSERT(pool->base != NULL && tierce__space_used(pool->space) == 0);
    if (!opts->no_touch)
        pool->toucher_runs = pthread_create(&pool->toucher, NULL, touch_pages, pool) == 0;
    return 0;
}

int tierce__pool_create(struct tierce__pool **out, const struct tierce__pool_opts *opts)
{
    if (opts->size != sizeof(*opts) || opts->cap_bytes < CAP_MIN ||
        opts->cap_bytes > SIZE_MAX / 2 || opts->buf_count_max == NO_BUF ||
        (uintptr_t)opts->device_memory % PAGE != 0)
        return TIERCE_E_ARGUMENT;
    struct tierce__pool *pool = tierce__calloc(1, sizeof(*pool));
    if (pool == NULL)
        return -ENOMEM;
    pool->magic = POOL_MAGIC;
    pool->fd = -1;
    pool->on_device = opts->device_memory != NULL;
    pool->cap_bytes = opts->cap_bytes & ~(uint64_t)(PAGE - 1);
    pool->buf_count = buf_count_for(opts);
    pool->free_first = NO_BUF;
    tierce__lock_init(&pool->lock, TIERCE__LOCK_POOL);
    tierce__cond_init(&pool->room);
    tierce__list_init(&pool->turns);
    int rc = reserve_parts(pool, opts);
    if (rc < 0) {
        destroy_parts(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

static void wait_for_releases(struct tierce__pool *pool)
{
    while (atomic_load(&pool->releasing) != 0)
        sched_yield();
}

/* The thread may be about to wait for idle time, which may never be available. */
static void end_toucher(struct tierce__pool *pool)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    TIERCE_DASSERT(pool->toucher_runs);
    const struct timespec pause = {.tv_nsec = 1000000};
    atomic_store_explicit(&pool->toucher_stop, true, memory_order_relaxed);
    (void)pthread_setschedparam(pool->toucher, SCHED_OTHER, &(struct sched_param){0});
    /* pthread_timedjoin_np would wait by the wall clock, which may be set back. */
    while (pthread_tryjoin_np(pool->toucher, NULL) == EBUSY) {
        (void)pthread_setschedparam(pool->toucher, SCHED_OTHER, &(struct sched_param){0});
        nanosleep(&pause, NULL);
    }
    pool->toucher_runs = false;
}

void tierce__pool_destroy(struct tierce__pool *pool)
{
    if (pool == NULL)
        return;
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    if (pool->toucher_runs)
        end_toucher(pool);
    wait_for_releases(pool);
    TIERCE_DASSERT(atomic_load(&pool->waiting) == 0);
    struct tierce__pool_stats stats;
    tierce__pool_stats(pool, &stats);
    if (stats.bufs > 0) {
        tierce__log(TIERCE_LOG_ERROR, "pool_leak", "bufs=%u bytes=%llu", stats.bufs,
                    (unsigned long long)stats.used_bytes);
        return;
    }
    TIERCE_DASSERT(atomic_load(&pool->idle) == NULL); /* or its hook may still be called */
    destroy_parts(pool);
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* An unused buffer object, or NULL. */
static struct tierce__buf *find_unused(struct tierce__pool *pool)
{
    tierce__lock_assert_held(&pool->lock);
    TIERCE_DASSERT(pool->fresh <= pool->buf_count);
    TIERCE_DASSERT(pool->free_first == NO_BUF || pool->free_first < pool->fresh);
    if (pool->free_first != NO_BUF)
        return &pool->bufs[pool->free_first];
    if (pool->fresh == pool->buf_count)
        return NULL;
    struct tierce__buf *buf = &pool->bufs[pool->fresh++];
    *buf = (struct tierce__buf){.magic = BUF_FREE, .next_free = NO_BUF, .pool = pool};
    pool->free_first = (uint32_t)(buf - pool->bufs);
    return buf;
}

int tierce__pool_alloc(struct tierce__pool *pool, struct tierce__buf **out, uint64_t bytes)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    if (bytes == 0)
        return TIERCE_E_ARGUMENT;
    if (bytes > pool->cap_bytes)
        return TIERCE_E_LIMIT;
    uint64_t offset;
    tierce__lock_take(&pool->lock);
    struct tierce__buf *buf = find_unused(pool);
    int rc = buf == NULL ? TIERCE_E_FULL : tierce__space_take(pool->space, &offset, bytes);
    if (rc == 0) {
        TIERCE_CHECK_MAGIC(buf, BUF_FREE);
        TIERCE_DASSERT(pool->live < pool->buf_count);
        TIERCE_DASSERT(atomic_load_explicit(&buf->refs, memory_order_relaxed) == 0);
        pool->free_first = buf->next_free;
        pool->live++;
    }
    tierce__lock_drop(&pool->lock);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(offset <= pool->cap_bytes - bytes);
    buf->magic = BUF_LIVE;
    buf->data = pool->base + offset;
    buf->bytes = bytes;
    buf->source = 0;
    buf->on_device = pool->on_device;
    atomic_store_explicit(&buf->since, 0, memory_order_relaxed);
    atomic_store_explicit(&buf->cleared, false, memory_order_relaxed);
    atomic_store_explicit(&buf->condemned, false, memory_order_relaxed);
    atomic_store_explicit(&buf->kept, 0, memory_order_relaxed);
    atomic_store_explicit(&buf->awaited, false, memory_order_relaxed);
    atomic_store_explicit(&buf->refs, 1, memory_order_relaxed);
    TIERCE_DASSERT((uintptr_t)buf->data % PAGE == 0);
    *out = buf;
    return 0;
}

/* Under the lock. */
static void note_room(struct tierce__pool *pool)
{
    tierce__lock_assert_held(&pool->lock);
    if (tierce__list_empty(&pool->turns))
        return;
    const struct tierce__pool_turn *first =
        TIERCE__CONTAINER_OF(pool->turns.next, struct tierce__pool_turn, node);
    if (pthread_equal(first->thread, pthread_self()))
        return;
    pool->changes++;
    TIERCE_DASSERT(atomic_load(&pool->waiting) > 0);
    tierce__cond_broadcast(&pool->room);
}

static void free_buf(struct tierce__pool *pool, struct tierce__buf *buf)
{
    TIERCE_ASSERT(atomic_load_explicit(&buf->kept, memory_order_relaxed) == 0);
    uint64_t offset = (uint64_t)(buf->data - pool->base);
    TIERCE_DASSERT(offset < pool->cap_bytes &&
                   atomic_load_explicit(&buf->refs, memory_order_relaxed) == 0);
    buf->magic = BUF_FREE;
    tierce__lock_take(&pool->lock);
    TIERCE_DASSERT(pool->live > 0 && (size_t)(buf - pool->bufs) < pool->fresh);
    tierce__space_give(pool->space, offset, buf->bytes);
    buf->next_free = pool->free_first;
    pool->free_first = (uint32_t)(buf - pool->bufs);
    pool->live--;
    note_room(pool);
    tierce__lock_drop(&pool->lock);
}

void tierce__buf_acquire(struct tierce__buf *buf)
{
    tierce__bufs_acquire(&buf, 1);
}

void tierce__bufs_acquire(struct tierce__buf *const *bufs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        TIERCE_CHECK_MAGIC(bufs[i], BUF_LIVE);
        uint32_t before = atomic_fetch_add_explicit(&bufs[i]->refs, 1, memory_order_relaxed);
        TIERCE_ASSERT(before > 0 && before < UINT32_MAX);
    }
}

/* Releases a reference; returns whether the remaining reference may be the keeper's, which must be
 * notified. */
static bool drop_reference(struct tierce__pool *pool, struct tierce__buf *buf)
{
    TIERCE_CHECK_MAGIC(buf, BUF_LIVE);
    TIERCE_ASSERT(buf->pool == pool);
    uint32_t before = atomic_fetch_sub(&buf->refs, 1);
    TIERCE_ASSERT(before > 0);
    if (before == 1)
        free_buf(pool, buf);
    return before == 2 && atomic_load(&buf->awaited);
}

static void release_batch(struct tierce__pool *pool, struct tierce__buf *const *bufs, size_t count)
{
    TIERCE_DASSERT(count <= IDLE_BATCH);
    struct tierce__buf *awaited[IDLE_BATCH];
    size_t awaited_count = 0;
    for (size_t i = 0; i < count; i++)
        __builtin_prefetch(bufs[i], 1);
    for (size_t i = 0; i < count; i++) {
        if (bufs[i] != NULL && drop_reference(pool, bufs[i]))
            awaited[awaited_count++] = bufs[i];
    }
    tierce__pool_idle_fn *idle = awaited_count > 0 ? atomic_load(&pool->idle) : NULL;
    if (idle != NULL)
        idle(pool->idle_arg, awaited, awaited_count);
}

void tierce__bufs_release(struct tierce__buf *const *bufs, size_t count)
{
    for (; count > 0 && bufs[0] == NULL; count--)
        bufs++;
    if (count == 0)
        return;
    struct tierce__pool *pool = bufs[0]->pool;
    atomic_fetch_add(&pool->releasing, 1);
    for (size_t at = 0; at < count; at += IDLE_BATCH)
        release_batch(pool, bufs + at, count - at < IDLE_BATCH ? count - at : IDLE_BATCH);
    TIERCE_DASSERT(atomic_load(&pool->releasing) > 0);
    atomic_fetch_sub(&pool->releasing, 1);
}

void tierce__buf_discard(struct tierce__buf *buf, uint64_t offset, uint64_t bytes)
{
    uint64_t from = offset / PAGE * PAGE, to = (offset + bytes + PAGE - 1) / PAGE * PAGE;
    TIERCE_ASSERT(bytes <= buf->bytes && offset <= buf->bytes - bytes);
    TIERCE_ASSERT(atomic_load_explicit(&buf->refs, memory_order_relaxed) == 1);
    TIERCE_ASSERT(buf->pool->fd < 0);
    /* If this fails, the process keeps the memory; the result is not needed. */
    (void)madvise(buf->data + from, (size_t)(to - from), MADV_DONTNEED);
}

void tierce__buf_release(struct tierce__buf *buf)
{
    if (buf != NULL)
        tierce__bufs_release(&buf, 1);
}

int tierce__pool_set_keeper(struct tierce__pool *pool, tierce__pool_idle_fn *idle, void *arg)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    tierce__lock_take(&pool->lock);
    int rc = atomic_load(&pool->idle) != NULL ? -EBUSY : 0;
    if (rc == 0) {
        pool->idle_arg = arg;
        atomic_store(&pool->idle, idle);
    }
    tierce__lock_drop(&pool->lock);
    return rc;
}

void tierce__pool_clear_keeper(struct tierce__pool *pool)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    atomic_store(&pool->idle, NULL);
    wait_for_releases(pool);
}

/* ---- waiting for room ------------------------------------------------------------------------ */

/* The first last turn, or the end of the queue. Under the lock. */
static struct tierce__list *behind_others(struct tierce__pool *pool)
{
    tierce__lock_assert_held(&pool->lock);
    struct tierce__list *at = pool->turns.next;
    while (at != &pool->turns && !TIERCE__CONTAINER_OF(at, struct tierce__pool_turn, node)->is_last)
        at = at->next;
    return at;
}

static void queue_turn(struct tierce__pool *pool, struct tierce__pool_turn *turn)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    TIERCE_DASSERT(turn->is_last || turn->stops == NULL);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    atomic_fetch_add(&pool->waiting, 1);
    turn->pool = pool;
    turn->thread = pthread_self();
    tierce__lock_take(&pool->lock);
    turn->seen = pool->changes - 1; /* it has not tried since it was counted */
    /* Before the given node: at the end of a queue that begins there. */
    tierce__list_push_back(turn->is_last ? &pool->turns : behind_others(pool), &turn->node);
    tierce__lock_drop(&pool->lock);
}

void tierce__pool_turn_begin(struct tierce__pool *pool, struct tierce__pool_turn *turn)
{
    turn->is_last = false;
    turn->stops = NULL;
    queue_turn(pool, turn);
}

void tierce__pool_turn_begin_last(struct tierce__pool *pool, struct tierce__pool_turn *turn,
                                  const _Atomic bool *stops)
{
    turn->is_last = true;
    turn->stops = stops;
    queue_turn(pool, turn);
}

static bool may_try(const struct tierce__pool_turn *turn)
{
    tierce__lock_assert_held(&turn->pool->lock);
    return turn->pool->turns.next == &turn->node && turn->seen != turn->pool->changes;
}

static bool is_stopped(const struct tierce__pool_turn *turn)
{
    return turn->stops != NULL && atomic_load(turn->stops);
}

bool tierce__pool_turn_wait(struct tierce__pool_turn *turn, uint64_t deadline_ns)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__pool *pool = turn->pool;
    bool in_time = true;
    TIERCE_DASSERT(pthread_equal(turn->thread, pthread_self()));
    tierce__lock_take(&pool->lock);
    TIERCE_DASSERT(!tierce__list_empty(&turn->node));
    while (!may_try(turn) && !is_stopped(turn) && in_time)
        in_time = tierce__cond_wait(&pool->room, &pool->lock, deadline_ns);
    bool mine = may_try(turn) && !is_stopped(turn) && tierce__now_ns() < deadline_ns;
    TIERCE_DASSERT(in_time || tierce__now_ns() >= deadline_ns);
    turn->seen = pool->changes;
    tierce__lock_drop(&pool->lock);
    return mine;
}

void tierce__pool_turn_end(struct tierce__pool_turn *turn)
{
    struct tierce__pool *pool = turn->pool;
    TIERCE_DASSERT(pthread_equal(turn->thread, pthread_self()));
    tierce__lock_take(&pool->lock);
    TIERCE_DASSERT(!tierce__list_empty(&turn->node) && atomic_load(&pool->waiting) > 0);
    tierce__list_remove(&turn->node);
    tierce__cond_broadcast(&pool->room);
    tierce__lock_drop(&pool->lock);
    atomic_fetch_sub(&pool->waiting, 1);
}

void tierce__pool_tell_room(struct tierce__pool *pool)
{
    if (atomic_load(&pool->waiting) == 0)
        return;
    tierce__lock_take(&pool->lock);
    note_room(pool);
    tierce__lock_drop(&pool->lock);
}

void tierce__pool_wake(struct tierce__pool *pool)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    tierce__lock_take(&pool->lock);
    tierce__cond_broadcast(&pool->room);
    tierce__lock_drop(&pool->lock);
}

void tierce__pool_mapping(const struct tierce__pool *pool, uint8_t **base, uint64_t *bytes)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    TIERCE_DASSERT(pool->cap_bytes % PAGE == 0);
    *base = pool->base;
    *bytes = pool->cap_bytes;
}

int tierce__pool_fd(const struct tierce__pool *pool)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    return pool->fd;
}

void tierce__pool_stats(struct tierce__pool *pool, struct tierce__pool_stats *out)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    tierce__lock_take(&pool->lock);
    TIERCE_DASSERT(pool->live <= pool->buf_count);
    *out = (struct tierce__pool_stats){
        .cap_bytes = pool->cap_bytes,
        .used_bytes = tierce__space_used(pool->space),
        .asked_bytes = tierce__space_asked(pool->space),
        .touched_bytes = atomic_load_explicit(&pool->touched_bytes, memory_order_relaxed),
        .bufs = pool->live,
        .buf_count_max = pool->buf_count,
    };
    TIERCE_DASSERT(out->asked_bytes <= out->used_bytes && out->used_bytes <= out->cap_bytes);
    TIERCE_DASSERT(out->touched_bytes <= out->cap_bytes);
    TIERCE_DASSERT((out->bufs == 0) == (out->used_bytes == 0));
    tierce__lock_drop(&pool->lock);
}

uint64_t tierce__pool_leases(struct tierce__pool *pool)
{
    TIERCE_CHECK_MAGIC(pool, POOL_MAGIC);
    uint64_t leases = 0;
    tierce__lock_take(&pool->lock);
    uint32_t used = pool->fresh;
    TIERCE_DASSERT(used <= pool->buf_count);
    tierce__lock_drop(&pool->lock);
    for (uint32_t i = 0; i < used; i++) {
        uint32_t refs = atomic_load_explicit(&pool->bufs[i].refs, memory_order_relaxed);
        bool kept = atomic_load_explicit(&pool->bufs[i].kept, memory_order_relaxed) != 0;
        leases += refs > kept ? refs - kept : 0;
    }
    return leases;
}
