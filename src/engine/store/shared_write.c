/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/store/shared_write.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/view.h"

#define WORDS (TIERCE_LAYERS_MAX / 64u)

struct tierce__shared_write {
    struct tierce__list node;
    struct tierce_engine *engine;
    const struct tierce_view *view; /* of the first part; only compared */
    struct tierce__key place;       /* namespace and shard; the hash of the last block */
    uint64_t write, from_block, to_block;
    bool tail;
    uint32_t part_count, layer_count;
    uint64_t deadline_ns;

    /* Under SHARED_WRITE. */
    struct tierce__reservation *reservation; /* NULL: nothing to store, or ended */
    uint64_t parts[WORDS], layers[WORDS];    /* a bit for each that has joined */
    uint32_t joined, ended, layers_joined;
    uint32_t busy; /* threads that do something with the reservation outside the lock */
    bool making;   /* the first has not reserved yet */
    bool given_up, expired;
};

void tierce__shared_writes_init(struct tierce__shared_writes *shared_writes)
{
    tierce__lock_init(&shared_writes->lock, TIERCE__LOCK_SHARED_WRITE);
    tierce__cond_init(&shared_writes->changed);
    tierce__list_init(&shared_writes->list);
}

void tierce__shared_writes_fini(struct tierce__shared_writes *shared_writes)
{
    while (!tierce__list_empty(&shared_writes->list)) {
        struct tierce__shared_write *shared_write =
            TIERCE__CONTAINER_OF(shared_writes->list.next, struct tierce__shared_write, node);
        TIERCE_ASSERT(shared_write->ended == shared_write->joined && shared_write->busy == 0);
        tierce__list_remove(&shared_write->node);
        if (shared_write->reservation != NULL)
            (void)tierce__reserve_end(shared_write->reservation, false);
        tierce__free(shared_write);
    }
    tierce__cond_fini(&shared_writes->changed);
    tierce__lock_fini(&shared_writes->lock);
}

/* ---- effects of a change of state ---- */

/* Drops the lock. The last user also ends the reservation and frees the shared write. Returns the
 * number of published blocks. */
static int64_t drop_lock(struct tierce__shared_writes *shared_writes,
                         struct tierce__shared_write *shared_write)
{
    tierce__lock_assert_held(&shared_writes->lock);
    TIERCE_DASSERT(!shared_write->making || shared_write->busy > 0);
    TIERCE_DASSERT(shared_write->ended <= shared_write->joined);
    TIERCE_DASSERT(shared_write->joined <= shared_write->part_count &&
                   shared_write->layers_joined <= shared_write->layer_count);
    bool idle = shared_write->ended == shared_write->joined && shared_write->busy == 0;
    bool all = shared_write->joined == shared_write->part_count;
    bool complete =
        all && !shared_write->given_up && shared_write->layers_joined == shared_write->layer_count;
    bool dead = idle && (all || shared_write->expired);
    struct tierce__reservation *over =
        idle && (all || shared_write->given_up) ? shared_write->reservation : NULL;
    if (over != NULL)
        shared_write->reservation = NULL;
    if (dead)
        tierce__list_remove(&shared_write->node);
    tierce__lock_drop(&shared_writes->lock);
    int64_t blocks = over != NULL ? tierce__reserve_end(over, complete) : 0;
    if (dead)
        tierce__free(shared_write);
    return blocks;
}

/* Under the lock, which is dropped for a while: the shared write is busy meanwhile. */
static void give_up(struct tierce__shared_writes *shared_writes,
                    struct tierce__shared_write *shared_write)
{
    tierce__lock_assert_held(&shared_writes->lock);
    if (shared_write->given_up)
        return;
    shared_write->given_up = true;
    if (shared_write->reservation == NULL)
        return;
    shared_write->busy++;
    tierce__lock_drop(&shared_writes->lock);
    tierce__reserve_give_up(shared_write->reservation);
    tierce__lock_take(&shared_writes->lock);
    TIERCE_DASSERT(shared_write->busy > 0);
    shared_write->busy--;
}

/* Which writes to abort, and how. */
struct abort_what {
    bool (*is_meant)(const struct tierce__shared_write *shared_write,
                     const struct abort_what *what); /* under the lock */
    bool forget; /* no part will join any more, so they need not be remembered */
    uint64_t now_ns;
    const struct tierce_view *view;
    const struct tierce__key *place;
    uint64_t write;
    uint32_t part;
};

/* Under the lock. */
static struct tierce__shared_write *find_meant(const struct tierce__shared_writes *shared_writes,
                                               const struct abort_what *what)
{
    tierce__lock_assert_held(&shared_writes->lock);
    TIERCE__LIST_FOR_EACH (it, &shared_writes->list) {
        struct tierce__shared_write *shared_write =
            TIERCE__CONTAINER_OF(it, struct tierce__shared_write, node);
        bool is_aborted = what->forget ? shared_write->expired : shared_write->given_up;
        if (!is_aborted && what->is_meant(shared_write, what))
            return shared_write;
    }
    return NULL;
}

/* Returns the number of those that had not been aborted. */
static size_t abort_all(struct tierce__shared_writes *shared_writes, const struct abort_what *what)
{
    for (size_t count = 0;;) {
        tierce__lock_take(&shared_writes->lock);
        struct tierce__shared_write *found = find_meant(shared_writes, what);
        if (found == NULL) {
            tierce__lock_drop(&shared_writes->lock);
            return count;
        }
        count += !found->given_up;
        found->expired = found->expired || what->forget;
        give_up(shared_writes, found);
        TIERCE_DASSERT(found->given_up);
        (void)drop_lock(shared_writes, found);
    }
}

static bool is_late(const struct tierce__shared_write *shared_write, const struct abort_what *what)
{
    return shared_write->deadline_ns <= what->now_ns;
}

void tierce__shared_writes_expire(struct tierce_engine *engine)
{
    (void)abort_all(
        &engine->shared_writes,
        &(struct abort_what){.is_meant = is_late, .forget = true, .now_ns = tierce__now_ns()});
}

/* ---- joining ---- */

static struct tierce__key place_of(const struct tierce_view *view,
                                   const struct tierce__reserve_what *what)
{
    TIERCE_DASSERT(what->to_block > 0);
    struct tierce__key place = view->key;
    memcpy(place.hash, tierce_chain_hash(what->chain, (size_t)what->to_block - 1),
           TIERCE_HASH_BYTES);
    return place;
}

static bool is_same_space(const struct tierce__key *a, const struct tierce__key *b)
{
    return a->ns == b->ns && memcmp(&a->shard, &b->shard, sizeof(a->shard)) == 0;
}

/* Under the lock. */
static struct tierce__shared_write *find(struct tierce__shared_writes *shared_writes,
                                         const struct tierce__key *place, uint64_t write)
{
    tierce__lock_assert_held(&shared_writes->lock);
    TIERCE_DASSERT(write != 0);
    TIERCE__LIST_FOR_EACH (it, &shared_writes->list) {
        struct tierce__shared_write *shared_write =
            TIERCE__CONTAINER_OF(it, struct tierce__shared_write, node);
        if (shared_write->write == write && is_same_space(&shared_write->place, place))
            return shared_write;
    }
    return NULL;
}

static bool has_bit(const uint64_t *words, uint32_t i)
{
    TIERCE_DASSERT(i < TIERCE_LAYERS_MAX);
    return (words[i / 64] & UINT64_C(1) << (i % 64)) != 0;
}

static bool take_bits(uint64_t *words, uint32_t first, uint32_t count)
{
    TIERCE_DASSERT(first <= TIERCE_LAYERS_MAX && count <= TIERCE_LAYERS_MAX - first);
    for (uint32_t i = first; i < first + count; i++) {
        if (has_bit(words, i))
            return false;
    }
    for (uint32_t i = first; i < first + count; i++)
        words[i / 64] |= UINT64_C(1) << (i % 64);
    return true;
}

/* Under the lock. */
static int join(struct tierce__shared_write *shared_write, const struct tierce_part *part)
{
    tierce__lock_assert_held(&shared_write->engine->shared_writes.lock);
    TIERCE_DASSERT(part->index < shared_write->part_count);
    if (!take_bits(shared_write->parts, part->index, 1))
        return TIERCE_E_ARGUMENT;
    if (!take_bits(shared_write->layers, part->first_layer, part->layer_count)) {
        shared_write->parts[part->index / 64] &= ~(UINT64_C(1) << (part->index % 64));
        return TIERCE_E_ARGUMENT;
    }
    TIERCE_DASSERT(shared_write->joined < shared_write->part_count);
    shared_write->joined++;
    shared_write->layers_joined += part->layer_count;
    TIERCE_DASSERT(shared_write->layers_joined <= shared_write->layer_count);
    return 0;
}

/* Under the lock, which is dropped while memory is reserved. */
static int make(struct tierce__shared_writes *shared_writes,
                struct tierce__shared_write *shared_write, struct tierce_view *view,
                const struct tierce__reserve_what *what)
{
    struct tierce__reservation *reservation;
    tierce__lock_assert_held(&shared_writes->lock);
    TIERCE_DASSERT(!shared_write->making && shared_write->busy == 0);
    shared_write->making = true;
    shared_write->busy++;
    tierce__lock_drop(&shared_writes->lock);
    int rc = tierce__reserve_begin(&reservation, view, what);
    tierce__lock_take(&shared_writes->lock);
    TIERCE_DASSERT(shared_write->making && shared_write->busy > 0);
    shared_write->busy--;
    shared_write->making = false;
    shared_write->reservation = reservation;
    tierce__cond_broadcast(&shared_writes->changed);
    return rc;
}

/* A writer's stores are numbered in the order in which its parts begin them, and the numbers wrap.
 */
static bool is_earlier(uint64_t write, uint64_t than)
{
    return write >> 32 == than >> 32 && (int32_t)((uint32_t)than - (uint32_t)write) > 0;
}

static bool is_missed(const struct tierce__shared_write *shared_write,
                      const struct abort_what *what)
{
    return is_earlier(shared_write->write, what->write) &&
           is_same_space(&shared_write->place, what->place) &&
           !has_bit(shared_write->parts, what->part);
}

/* A part that begins a store will not begin the writer's earlier ones any more: it had no
 * connection or no memory when they came. They would hold their chunks until timeout.pin. */
static void give_up_missed(struct tierce__shared_writes *shared_writes,
                           const struct tierce__key *place, uint32_t part, uint64_t write)
{
    TIERCE_DASSERT(write != 0);
    (void)abort_all(
        shared_writes,
        &(struct abort_what){.is_meant = is_missed, .place = place, .write = write, .part = part});
}

static bool lacks_part(const struct tierce__shared_write *shared_write,
                       const struct abort_what *what)
{
    return shared_write->view == what->view && what->part < shared_write->part_count &&
           !has_bit(shared_write->parts, what->part);
}

size_t tierce__shared_writes_leave(struct tierce_view *view, uint32_t index)
{
    TIERCE_DASSERT(index < TIERCE_LAYERS_MAX);
    return abort_all(&view->engine->shared_writes,
                     &(struct abort_what){.is_meant = lacks_part, .view = view, .part = index});
}

static bool lacks_any_part(const struct tierce__shared_write *shared_write,
                           const struct abort_what *what)
{
    return shared_write->view == what->view && shared_write->joined < shared_write->part_count;
}

size_t tierce__shared_writes_leave_all(struct tierce_view *view)
{
    return abort_all(
        &view->engine->shared_writes,
        &(struct abort_what){.is_meant = lacks_any_part, .forget = true, .view = view});
}

static struct tierce__shared_write *create(struct tierce_view *view, const struct tierce_part *part,
                                           uint64_t write, const struct tierce__reserve_what *what)
{
    struct tierce__shared_write *shared_write = tierce__calloc(1, sizeof(*shared_write));
    TIERCE_DASSERT(part->index < part->count && part->count > 1);
    TIERCE_DASSERT(view->full.geometry.layer_count <= TIERCE_LAYERS_MAX);
    if (shared_write == NULL)
        return NULL;
    shared_write->engine = view->engine;
    shared_write->view = view;
    shared_write->place = place_of(view, what);
    shared_write->write = write;
    shared_write->from_block = what->from_block;
    shared_write->to_block = what->to_block;
    shared_write->tail = what->tail;
    shared_write->part_count = part->count;
    shared_write->layer_count = view->full.geometry.layer_count;
    shared_write->deadline_ns = tierce__deadline_in_ms(view->engine->settings.pin_ms);
    return shared_write;
}

static int begin_shared(struct tierce__share *share, struct tierce_view *view,
                        const struct tierce_part *part, uint64_t write,
                        const struct tierce__reserve_what *what)
{
    TIERCE_DASSERT(part->count > 1 && part->index < part->count);
    struct tierce__shared_writes *shared_writes = &view->engine->shared_writes;
    struct tierce__key place = place_of(view, what);
    give_up_missed(shared_writes, &place, part->index, write);
    tierce__lock_take(&shared_writes->lock);
    struct tierce__shared_write *shared_write = find(shared_writes, &place, write);
    bool first = shared_write == NULL;
    if (first)
        shared_write = create(view, part, write, what);
    if (shared_write == NULL) {
        tierce__lock_drop(&shared_writes->lock);
        return -ENOMEM;
    }
    bool same = tierce__key_equal(&shared_write->place, &place) &&
                shared_write->from_block == what->from_block &&
                shared_write->to_block == what->to_block && shared_write->tail == what->tail &&
                shared_write->part_count == part->count;
    int rc = same ? join(shared_write, part) : TIERCE_E_ARGUMENT;
    TIERCE_DASSERT(!first || rc == 0);
    if (rc < 0) {
        tierce__lock_drop(&shared_writes->lock);
        return rc;
    }
    if (first) {
        tierce__list_push_back(&shared_writes->list, &shared_write->node);
        rc = make(shared_writes, shared_write, view, what);
    }
    while (shared_write->making)
        tierce__cond_wait(&shared_writes->changed, &shared_writes->lock, TIERCE__DEADLINE_NEVER);
    if (!shared_write->given_up && shared_write->reservation != NULL) {
        *share = (struct tierce__share){shared_write, shared_write->reservation};
        tierce__lock_drop(&shared_writes->lock);
        return rc;
    }
    TIERCE_DASSERT(shared_write->ended < shared_write->joined);
    shared_write->ended++;
    (void)drop_lock(shared_writes, shared_write);
    return rc;
}

int tierce__share_begin(struct tierce__share *share, struct tierce_view *view,
                        const struct tierce_part *part, uint64_t write,
                        const struct tierce__reserve_what *what)
{
    *share = (struct tierce__share){0};
    TIERCE_DASSERT(part->count > 0);
    if (what->from_block > 0 && !tierce__view_is_sparse(view))
        return TIERCE_E_ARGUMENT;
    if (part->count == 1)
        return tierce__reserve_begin(&share->reservation, view, what);
    if (write == 0)
        return TIERCE_E_ARGUMENT;
    if (what->to_block == 0)
        return 0;
    return begin_shared(share, view, part, write, what);
}

void tierce__share_give_up(const struct tierce__share *share)
{
    struct tierce__shared_write *shared_write = share->shared_write;
    if (shared_write == NULL) {
        tierce__reserve_give_up(share->reservation);
        return;
    }
    struct tierce__shared_writes *shared_writes = &shared_write->engine->shared_writes;
    tierce__lock_take(&shared_writes->lock);
    give_up(shared_writes, shared_write);
    (void)drop_lock(shared_writes, shared_write);
}

int64_t tierce__share_end(struct tierce__share *share, bool complete)
{
    struct tierce__shared_write *shared_write = share->shared_write;
    struct tierce__reservation *reservation = share->reservation;
    *share = (struct tierce__share){0};
    if (shared_write == NULL)
        return tierce__reserve_end(reservation, complete);
    struct tierce__shared_writes *shared_writes = &shared_write->engine->shared_writes;
    tierce__lock_take(&shared_writes->lock);
    TIERCE_DASSERT(shared_write->ended < shared_write->joined);
    if (!complete)
        give_up(shared_writes, shared_write);
    shared_write->ended++;
    return drop_lock(shared_writes, shared_write);
}
