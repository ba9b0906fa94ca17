/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/replay/belady.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/trace/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NEVER  UINT32_MAX
#define ABSENT (UINT32_MAX - 1)

struct tierce__future {
    const struct tierce__recording *recording;
    uint32_t *next; /* [block_count] of the recording's blocks, in order: the request that uses the
                       same block next, or NEVER; mapped */
    uint64_t block_count;
};

/* ---- the future ------------------------------------------------------------------------------ */

static int map_file(struct tierce__future *f, const char *folder)
{
    TIERCE_DASSERT(f->block_count > 0);
    size_t bytes = f->block_count * sizeof(f->next[0]);
    int rc = 0, fd = tierce__open_temporary(folder);
    if (fd < 0)
        return fd;
    /* Allocates the whole file now, so that a full disk is an error here and not a signal later. */
    rc = -posix_fallocate(fd, 0, (off_t)bytes);
    void *map = rc == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : NULL;
    if (map == MAP_FAILED)
        rc = -errno;
    close(fd);
    if (rc == 0)
        f->next = map;
    return rc;
}

/* From the last request to the first: `soonest` is the next use of each block as seen from
 * there. */
static void foresee(struct tierce__future *f, uint64_t requests, uint32_t *soonest)
{
    uint64_t at = f->block_count;
    uint32_t number = (uint32_t)requests;
    for (const struct tierce__recorded *r = tierce__recording_last(f->recording); r != NULL;
         r = tierce__recorded_before(r)) {
        const uint32_t *blocks = tierce__recorded_blocks(r);
        TIERCE_ASSERT(at >= r->count && number > 0);
        number--;
        at -= r->count;
        for (uint32_t i = 0; i < r->count; i++)
            f->next[at + i] = soonest[blocks[i]];
        for (uint32_t i = 0; i < r->count; i++)
            soonest[blocks[i]] = number;
    }
    TIERCE_ASSERT(at == 0 && number == 0);
}

int tierce__future_create(struct tierce__future **out, const struct tierce__recording *recording,
                          const char *folder)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    if (totals.requests >= ABSENT)
        return TIERCE_E_LIMIT;
    struct tierce__future *f = tierce__calloc(1, sizeof(*f));
    size_t bytes = ((size_t)totals.distinct + 1) * sizeof(uint32_t);
    uint32_t *soonest = tierce__alloc(bytes);
    int rc = f == NULL || soonest == NULL ? -ENOMEM : 0;
    if (rc == 0) {
        f->recording = recording;
        f->block_count = totals.blocks;
        memset(soonest, 0xff, bytes);
        rc = totals.blocks > 0 ? map_file(f, folder) : 0;
    }
    if (rc == 0)
        foresee(f, totals.requests, soonest);
    tierce__free(soonest);
    if (rc < 0)
        tierce__free(f);
    else
        *out = f;
    return rc;
}

void tierce__future_destroy(struct tierce__future *future)
{
    if (future == NULL)
        return;
    if (future->next != NULL)
        munmap(future->next, future->block_count * sizeof(future->next[0]));
    tierce__free(future);
}

const uint32_t *tierce__future_next(const struct tierce__future *future)
{
    return future->next;
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* A heap entry is stale, and skipped, if the block's next use has changed. */
struct belady_candidate {
    uint32_t next, depth, block;
};

struct belady_cache {
    uint64_t capacity;
    uint32_t *next; /* [distinct] for cached blocks; ABSENT */
    uint64_t count;
    struct belady_candidate *heap; /* the farthest first, of equal ones the deepest */
    size_t heap_count, heap_room;
    bool *there;
};

static bool leaves_before(const struct belady_candidate *a, const struct belady_candidate *b)
{
    return a->next != b->next ? a->next > b->next : a->depth > b->depth;
}

static void sift_down(struct belady_cache *c, size_t at)
{
    TIERCE_DASSERT(at < c->heap_count);
    struct belady_candidate moved = c->heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= c->heap_count)
            break;
        if (child + 1 < c->heap_count && leaves_before(&c->heap[child + 1], &c->heap[child]))
            child++;
        if (!leaves_before(&c->heap[child], &moved))
            break;
        c->heap[at] = c->heap[child];
        at = child;
    }
    c->heap[at] = moved;
}

static void push(struct belady_cache *c, struct belady_candidate candidate)
{
    TIERCE_DASSERT(c->heap_count < c->heap_room);
    size_t at = c->heap_count++;
    while (at > 0 && leaves_before(&candidate, &c->heap[(at - 1) / 2])) {
        c->heap[at] = c->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    c->heap[at] = candidate;
}

static bool is_old(const struct belady_cache *c, const struct belady_candidate *candidate)
{
    return c->next[candidate->block] != candidate->next;
}

/* Reserves room for `count` more entries. Stale entries are removed first, so the heap has at most
 * twice the size of the cache plus a request. */
static int make_heap_room(struct belady_cache *c, uint32_t count)
{
    if (c->heap_count + count <= c->heap_room)
        return 0;
    size_t kept = 0;
    for (size_t i = 0; i < c->heap_count; i++) {
        if (!is_old(c, &c->heap[i]))
            c->heap[kept++] = c->heap[i];
    }
    c->heap_count = kept;
    for (size_t i = kept / 2; i-- > 0;)
        sift_down(c, i);
    size_t room = 2 * (kept + count) + 1024;
    if (room <= c->heap_room)
        return 0;
    struct belady_candidate *heap = tierce__realloc(c->heap, room * sizeof(*heap));
    if (heap == NULL)
        return -ENOMEM;
    c->heap = heap;
    c->heap_room = room;
    TIERCE_ASSERT(c->heap_count + count <= c->heap_room);
    return 0;
}

static void keep_nearest(struct belady_cache *c)
{
    while (c->count > c->capacity) {
        TIERCE_ASSERT(c->heap_count > 0);
        struct belady_candidate first = c->heap[0];
        c->heap[0] = c->heap[--c->heap_count];
        if (c->heap_count > 0)
            sift_down(c, 0);
        if (is_old(c, &first))
            continue;
        c->next[first.block] = ABSENT;
        c->count--;
    }
}

static int use(struct belady_cache *c, const struct tierce__recorded *request, const uint32_t *next)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    int rc = make_heap_room(c, request->count);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(request->stored <= request->count);
    for (uint32_t i = 0; i < request->count; i++) {
        bool was = c->next[blocks[i]] != ABSENT;
        if (!was && i >= request->stored)
            continue;
        bool is = next[i] != NEVER;
        TIERCE_DASSERT(!was || c->count > 0);
        c->next[blocks[i]] = is ? next[i] : ABSENT;
        c->count = c->count + is - was;
        if (is)
            push(c, (struct belady_candidate){.next = next[i], .depth = i, .block = blocks[i]});
    }
    keep_nearest(c);
    TIERCE_ASSERT(c->count <= c->capacity);
    return 0;
}

static void look_up(struct belady_cache *c, const struct tierce__recorded *request,
                    const struct tierce__match *matches, size_t match_count, uint32_t *hits,
                    struct tierce__belady_count *counts)
{
    const uint8_t *internal = tierce__recorded_internal(request);
    const uint32_t *blocks = tierce__recorded_blocks(request);
    TIERCE_DASSERT(request->read_count <= request->count);
    for (uint32_t i = 0; i < request->read_count; i++)
        c->there[i] = c->next[blocks[i]] != ABSENT;
    for (size_t m = 0; m < match_count; m++) {
        hits[m] = tierce__match_count(&matches[m], c->there, request->read_count);
        TIERCE_DASSERT(hits[m] <= request->read_count);
        counts[m].hits += hits[m];
        counts[m].internal_hits +=
            tierce__match_internal(&matches[m], c->there, internal, request->read_count, hits[m]);
    }
}

static int init_cache(struct belady_cache *c, const struct tierce__recording *recording,
                      uint64_t capacity)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    *c = (struct belady_cache){.capacity = capacity};
    c->next = tierce__alloc(((size_t)totals.distinct + 1) * sizeof(*c->next));
    c->there = tierce__alloc((size_t)totals.longest + 1);
    if (c->next == NULL || c->there == NULL)
        return -ENOMEM;
    for (uint32_t b = 0; b < totals.distinct; b++)
        c->next[b] = ABSENT;
    return 0;
}

int tierce__belady_watch(const struct tierce__future *future, uint64_t capacity,
                         const struct tierce__match *matches, size_t match_count,
                         struct tierce__belady_count *counts, tierce__belady_lookup_fn *fn,
                         void *arg)
{
    uint32_t found[TIERCE__BELADY_MATCHES_MAX];
    if (match_count > TIERCE__BELADY_MATCHES_MAX)
        return TIERCE_E_ARGUMENT;
    for (size_t m = 0; m < match_count; m++) {
        if (matches[m].kind == TIERCE__MATCH_STREAM)
            return TIERCE_E_ARGUMENT;
        counts[m] = (struct tierce__belady_count){0};
    }
    struct belady_cache cache;
    int rc = init_cache(&cache, future->recording, capacity);
    const uint32_t *next = future->next;
    for (const struct tierce__recorded *r = tierce__recording_first(future->recording);
         rc == 0 && r != NULL; r = tierce__recording_next(future->recording, r)) {
        look_up(&cache, r, matches, match_count, found, counts);
        if (fn != NULL)
            fn(arg, r, found);
        rc = use(&cache, r, next);
        next += r->count;
    }
    TIERCE_ASSERT(rc != 0 || next == future->next + future->block_count);
    tierce__free(cache.next);
    tierce__free(cache.there);
    tierce__free(cache.heap);
    return rc;
}

int tierce__belady_run(const struct tierce__future *future, uint64_t capacity,
                       const struct tierce__match *matches, size_t match_count, uint64_t *hits)
{
    struct tierce__belady_count counts[TIERCE__BELADY_MATCHES_MAX];
    int rc = tierce__belady_watch(future, capacity, matches, match_count, counts, NULL, NULL);
    for (size_t m = 0; rc == 0 && m < match_count; m++)
        hits[m] = counts[m].hits;
    return rc;
}
