/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/load/fetch.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "engine/view.h"
#include "engine/observe/operate.h"
#include "engine/own_tiers.h"

enum segment_state { SEGMENT_IDLE = 0, SEGMENT_READING, SEGMENT_HERE, SEGMENT_LATE };

struct fetch_segment {
    struct tierce__store_req req;
    struct tierce__fetch *fetch;
    /* Changed under the lock. HERE is also read without it, by those who then read the bytes:
     * stored with release, loaded with acquire. */
    _Atomic(enum segment_state) state;
};

/* How far a fetch has come on its way into memory. */
enum promotion { PROMOTION_NONE = 0, PROMOTION_RUNS, PROMOTION_DONE };

/* All that changes is under the lock of the engine's fetches. */
struct tierce__fetch {
    struct tierce__list node; /* in its bin while it may be joined */
    struct tierce_engine *engine;
    struct tierce__key key;
    size_t level;
    struct tierce__buf *buf;
    struct tierce__list waiters;
    struct tierce__cond changed;
    size_t reading;               /* requests that are not answered */
    _Atomic uint64_t bytes_asked; /* of these; relaxed, a measure */
    _Atomic int status;           /* why nothing of it may be used, or 0; relaxed */
    int verdict;                  /* the status, or that which it gets after an expulsion */
    uint32_t here;                /* segments */
    enum promotion promotion;
    uint64_t era;    /* operate.h */
    bool spoiled;    /* a cell is wrong, or may be: it is not promoted */
    bool expelling;  /* its chunk is being taken out of the tier */
    bool is_private; /* of one waiter, and not promoted */
    uint32_t segment_count;
    struct fetch_segment segments[];
};

/* ---- life ---- */

void tierce__fetches_init(struct tierce__fetches *fetches)
{
    tierce__lock_init(&fetches->lock, TIERCE__LOCK_FETCH);
    for (size_t i = 0; i < TIERCE__FETCH_BINS; i++) {
        tierce__list_init(&fetches->bins[i]);
        tierce__list_init(&fetches->bans[i]);
    }
}

void tierce__fetches_fini(struct tierce__fetches *fetches)
{
    for (size_t i = 0; i < TIERCE__FETCH_BINS; i++) {
        TIERCE_ASSERT(tierce__list_empty(&fetches->bins[i]));
        TIERCE_ASSERT(tierce__list_empty(&fetches->bans[i]));
    }
    tierce__lock_fini(&fetches->lock);
}

static struct tierce__lock *lock_of(const struct tierce__fetch *fetch)
{
    return &fetch->engine->fetches.lock;
}

static size_t bin_of(const struct tierce__key *key)
{
    return tierce__key_spread(key) % TIERCE__FETCH_BINS;
}

static void segment_done(struct tierce__store_req *req);

/* NULL: no memory. */
static struct tierce__buf *take_buffer(struct tierce_engine *engine,
                                       const struct tierce__fetch_waiter *waiter,
                                       const struct tierce__storage_chunk *chunk)
{
    struct tierce__buf *buf = NULL;
    if (waiter->pool == NULL)
        return tierce__storage_reserve(engine, chunk, waiter->before);
    return tierce__pool_alloc(waiter->pool, &buf, chunk->object_bytes) == 0 ? buf : NULL;
}

static struct tierce__fetch *make_fetch(struct tierce_engine *engine, size_t level,
                                        const struct tierce__storage_chunk *chunk,
                                        const struct tierce__shape *shape,
                                        const struct tierce__fetch_waiter *waiter)
{
    uint32_t count = shape->segment_count;
    TIERCE_DASSERT(count > 0 && level > 0 && level < engine->level_count);
    TIERCE_DASSERT(chunk->object_bytes == shape->extent.object_bytes);
    struct tierce__fetch *fetch =
        tierce__calloc(1, sizeof(*fetch) + count * sizeof(fetch->segments[0]));
    if (fetch == NULL)
        return NULL;
    fetch->buf = take_buffer(engine, waiter, chunk);
    if (fetch->buf == NULL) {
        tierce__free(fetch);
        return NULL;
    }
    fetch->buf->source = (uint32_t)level;
    fetch->era = tierce__era_of_read(engine);
    fetch->is_private = waiter->pool != NULL;
    fetch->engine = engine;
    fetch->key = chunk->key;
    fetch->level = level;
    fetch->segment_count = count;
    tierce__list_init(&fetch->node);
    tierce__list_init(&fetch->waiters);
    tierce__cond_init(&fetch->changed);
    uint64_t start = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t end = shape->segment_end[i];
        TIERCE_DASSERT(end > start);
        fetch->segments[i].fetch = fetch;
        fetch->segments[i].req = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                                            .done = segment_done,
                                                            .arg = &fetch->segments[i],
                                                            .keys = &fetch->key,
                                                            .key_count = 1,
                                                            .buf = fetch->buf,
                                                            .offset = start,
                                                            .length = end - start};
        start = end;
    }
    TIERCE_DASSERT(start == fetch->buf->bytes);
    return fetch;
}

static void free_fetch(struct tierce__fetch *fetch)
{
    TIERCE_DASSERT(fetch->reading == 0 && tierce__list_empty(&fetch->waiters));
    TIERCE_DASSERT(tierce__list_empty(&fetch->node));
    TIERCE_DASSERT(atomic_load_explicit(&fetch->bytes_asked, memory_order_relaxed) == 0);
    tierce__buf_release(fetch->buf);
    tierce__cond_fini(&fetch->changed);
    tierce__free(fetch);
}

/* Whether the fetch is no longer needed: then it can no longer be found, and the caller frees it
 * after dropping the lock. Under the lock. */
static bool is_over(struct tierce__fetch *fetch)
{
    tierce__lock_assert_held(lock_of(fetch));
    TIERCE_DASSERT(fetch->reading <= fetch->segment_count);
    if (fetch->reading > 0 || !tierce__list_empty(&fetch->waiters))
        return false;
    tierce__list_remove(&fetch->node);
    return true;
}

/* ---- waiters ---- */

static struct tierce__fetch *find_fetch(struct tierce_engine *engine, const struct tierce__key *key)
{
    tierce__lock_assert_held(&engine->fetches.lock);
    TIERCE__LIST_FOR_EACH (it, &engine->fetches.bins[bin_of(key)]) {
        struct tierce__fetch *fetch = TIERCE__CONTAINER_OF(it, struct tierce__fetch, node);
        TIERCE_DASSERT(fetch->status == 0 && fetch->promotion != PROMOTION_DONE);
        if (!fetch->is_private && tierce__key_equal(&fetch->key, key))
            return fetch;
    }
    return NULL;
}

static bool is_banned(struct tierce_engine *engine, size_t level, const struct tierce__key *key)
{
    tierce__lock_assert_held(&engine->fetches.lock);
    TIERCE__LIST_FOR_EACH (it, &engine->fetches.bans[bin_of(key)]) {
        const struct tierce__fetch_ban *ban =
            TIERCE__CONTAINER_OF(it, struct tierce__fetch_ban, node);
        TIERCE_DASSERT(ban->level > 0);
        if (ban->level == level && tierce__key_equal(&ban->key, key))
            return true;
    }
    return false;
}

/* Joins the existing fetch of the key, or else `fresh`, which can then be found; NULL: joins only
 * an existing fetch. */
static bool waiter_with(struct tierce_engine *engine, struct tierce__fetch_waiter *waiter,
                        const struct tierce__key *key, struct tierce__fetch *fresh)
{
    tierce__lock_take(&engine->fetches.lock);
    struct tierce__fetch *fetch = find_fetch(engine, key);
    TIERCE_DASSERT(fresh == NULL || tierce__list_empty(&fresh->node));
    if (fetch != NULL) {
        tierce__count(engine, TIERCE__STAT_fetches_shared, 1);
    } else if (fresh != NULL) {
        fetch = fresh;
        fetch->spoiled = is_banned(engine, fetch->level, key);
        tierce__list_push_back(&engine->fetches.bins[bin_of(key)], &fetch->node);
    }
    if (fetch != NULL) {
        TIERCE_DASSERT(tierce__key_equal(&fetch->key, key) && fetch->status == 0);
        TIERCE_DASSERT(fetch->promotion != PROMOTION_DONE);
        waiter->fetch = fetch;
        waiter->buf = fetch->buf;
        waiter->level = fetch->level;
        tierce__list_push_back(&fetch->waiters, &waiter->node);
    }
    tierce__lock_drop(&engine->fetches.lock);
    return fetch != NULL;
}

bool tierce__fetch_join(struct tierce_engine *engine, struct tierce__fetch_waiter *waiter,
                        size_t level, const struct tierce__storage_chunk *chunk,
                        const struct tierce__shape *shape, struct tierce__buf **leased)
{
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    const struct tierce__key *key = &chunk->key;
    TIERCE_ASSERT(waiter->fetch == NULL);
    *leased = NULL;
    if (waiter_with(engine, waiter, key, NULL))
        return true;
    /* One that was promoted before it was forgotten is in memory now. */
    *leased = tierce__storage_lease(engine, key);
    if (*leased != NULL)
        return false;
    struct tierce__fetch *fresh = make_fetch(engine, level, chunk, shape, waiter);
    if (fresh == NULL)
        return false;
    waiter_with(engine, waiter, key, fresh);
    if (waiter->fetch != fresh)
        free_fetch(fresh);
    return true;
}

bool tierce__fetch_leave(struct tierce__fetch_waiter *waiter)
{
    struct tierce__fetch *fetch = waiter->fetch;
    if (fetch == NULL)
        return true;
    struct tierce__lock *lock = lock_of(fetch);
    tierce__lock_take(lock);
    TIERCE_DASSERT(!tierce__list_empty(&waiter->node));
    TIERCE_DASSERT(waiter->level == fetch->level);
    tierce__list_remove(&waiter->node);
    bool called = waiter->called;
    waiter->fetch = NULL;
    waiter->buf = NULL;
    bool over = is_over(fetch);
    tierce__lock_drop(lock);
    if (over)
        free_fetch(fetch);
    return !called;
}

/* ---- segments ---- */

static uint64_t latest_deadline(const struct tierce__fetch *fetch)
{
    uint64_t latest = 0;
    tierce__lock_assert_held(lock_of(fetch));
    TIERCE__LIST_FOR_EACH (it, &fetch->waiters) {
        const struct tierce__fetch_waiter *waiter =
            TIERCE__CONTAINER_OF(it, struct tierce__fetch_waiter, node);
        latest = waiter->deadline_ns > latest ? waiter->deadline_ns : latest;
    }
    TIERCE_DASSERT(latest > 0 || tierce__list_empty(&fetch->waiters));
    return latest;
}

/* Whether the caller must submit the segment: it was not requested yet, or its request was late and
 * a waiter has a later deadline. Under the lock. */
static bool claim(struct tierce__fetch *fetch, struct fetch_segment *segment)
{
    uint64_t deadline_ns = latest_deadline(fetch);
    TIERCE_DASSERT(segment->fetch == fetch);
    bool idle = segment->state == SEGMENT_IDLE;
    bool late = segment->state == SEGMENT_LATE && deadline_ns > segment->req.deadline_ns;
    if (fetch->verdict < 0 || (!idle && !late))
        return false;
    segment->state = SEGMENT_READING;
    segment->req.deadline_ns = deadline_ns;
    fetch->reading++;
    TIERCE_DASSERT(fetch->reading <= fetch->segment_count);
    atomic_fetch_add_explicit(&fetch->bytes_asked, segment->req.length, memory_order_relaxed);
    return true;
}

/* Fails the fetch, at the end of an expulsion if one is in progress: its bytes are not used, and it
 * cannot be joined. Under the lock. */
static void fail(struct tierce__fetch *fetch, int status)
{
    tierce__lock_assert_held(lock_of(fetch));
    TIERCE_DASSERT(status < 0);
    if (fetch->verdict == 0)
        fetch->verdict = status;
    if (fetch->expelling)
        return;
    tierce__list_remove(&fetch->node);
    fetch->status = fetch->verdict;
    tierce__cond_broadcast(&fetch->changed);
}

/*
 * Takes a wrong chunk out of its tier, and out of memory if it was promoted; once for a fetch.
 * Under the lock, which is dropped meanwhile.
 *
 * The deletion precedes the news. A caller that learns that the chunk is wrong stores it again, and
 * the tier would answer that it has the chunk, and then delete it. The deletion names the key
 * alone: it can remove another object only if the one that was read was evicted and the chunk
 * stored again before this read was answered. That costs a computation of the chunk, and never
 * correctness.
 *
 * The fetch can be found until its ban has begun, so that the chunk is not read again in between.
 */
static void expel(struct tierce__fetch *fetch, int why)
{
    tierce__lock_assert_held(lock_of(fetch));
    TIERCE_DASSERT(fetch->level > 0 && !fetch->spoiled && !fetch->expelling);
    bool in_memory = fetch->promotion == PROMOTION_DONE;
    fetch->spoiled = true;
    fetch->expelling = true;
    tierce__lock_drop(lock_of(fetch));
    tierce__storage_quarantine(fetch->engine, fetch->level, &fetch->key, why);
    if (in_memory)
        tierce__storage_quarantine(fetch->engine, 0, &fetch->key, why);
    tierce__lock_take(lock_of(fetch));
    fetch->expelling = false;
    tierce__list_remove(&fetch->node);
    if (fetch->verdict < 0)
        fail(fetch, fetch->verdict);
    tierce__cond_broadcast(&fetch->changed);
}

/* Under the lock, which is dropped meanwhile. The expulsion takes as long as submitting a deletion.
 */
static void await_expulsion(struct tierce__fetch *fetch, const struct tierce__fetch_waiter *waiter)
{
    bool in_time = true;
    while (fetch->expelling && in_time)
        in_time = tierce__cond_wait(&fetch->changed, lock_of(fetch), waiter->deadline_ns);
}

/*
 * Moves the waiters that wait for the end of the reading to `told`, if it has ended for them: all
 * segments have been read, the fetch has failed, or a segment is late and no waiter has a later
 * deadline. Returns the status to report to them. Under the lock.
 */
static int settle(struct tierce__fetch *fetch, struct tierce__list *told)
{
    bool late = false;
    tierce__lock_assert_held(lock_of(fetch));
    for (uint32_t i = 0; i < fetch->segment_count; i++)
        late |= fetch->segments[i].state == SEGMENT_LATE;
    TIERCE_DASSERT(fetch->here + fetch->reading <= fetch->segment_count);
    tierce__list_init(told);
    if (fetch->status != fetch->verdict)
        return 0; /* at the end of the expulsion */
    if (fetch->status == 0 && !late && fetch->here < fetch->segment_count)
        return 0;
    TIERCE__LIST_FOR_EACH (it, &fetch->waiters) {
        struct tierce__fetch_waiter *waiter =
            TIERCE__CONTAINER_OF(it, struct tierce__fetch_waiter, node);
        if (waiter->settled == NULL || waiter->called)
            continue;
        waiter->called = true;
        tierce__list_push_back(told, &waiter->told);
    }
    return fetch->status == 0 && late ? TIERCE_E_DEADLINE : fetch->status;
}

/* A waiter's memory is its owner's again when it has been called. */
static void tell(struct tierce__list *told, int status)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    while (!tierce__list_empty(told)) {
        struct tierce__fetch_waiter *waiter =
            TIERCE__CONTAINER_OF(told->next, struct tierce__fetch_waiter, told);
        TIERCE_DASSERT(waiter->called);
        tierce__list_remove(&waiter->told);
        waiter->settled(waiter->arg, status);
    }
}

static void submit(struct fetch_segment *segment);

/* Whether a tier found the stored object itself to be wrong: of another length, or when it decoded
 * the object. */
static bool is_invalid(int status)
{
    return status == TIERCE_E_CHECKSUM || status == TIERCE_E_FORMAT || status == TIERCE_E_VERSION;
}

static void answer(struct fetch_segment *segment, int status)
{
    struct tierce__fetch *fetch = segment->fetch;
    struct tierce_engine *engine = fetch->engine;
    const struct tierce__level *level = &engine->levels[fetch->level];
    bool again = false;
    tierce__lock_take(lock_of(fetch));
    TIERCE_DASSERT(segment->state == SEGMENT_READING && fetch->reading > 0);
    bool is_wrong = is_invalid(status) && fetch->verdict == 0 && !fetch->spoiled;
    if (is_wrong) {
        atomic_fetch_add(&engine->calling, 1);
        fetch->verdict = status;
        expel(fetch, status); /* `reading` keeps the fetch */
    }
    TIERCE_DASSERT(atomic_load_explicit(&fetch->bytes_asked, memory_order_relaxed) >=
                   segment->req.length);
    fetch->reading--;
    atomic_fetch_sub_explicit(&fetch->bytes_asked, segment->req.length, memory_order_relaxed);
    if (status == 0) {
        fetch->here++;
        TIERCE_DASSERT(fetch->here <= fetch->segment_count);
        atomic_store_explicit(&segment->state, SEGMENT_HERE, memory_order_release);
    } else {
        segment->state = SEGMENT_LATE;
        /* A store's late call may still write stored bytes into the buffer. Those of a coded object
         * are not the chunk's, so later readers need another buffer. */
        if (status != TIERCE_E_DEADLINE || level->decodes)
            fail(fetch, status);
        again = claim(fetch, segment);
    }
    if (again)
        atomic_fetch_add(&engine->calling, 1);
    tierce__cond_broadcast(&fetch->changed);
    struct tierce__list told;
    int outcome = settle(fetch, &told);
    bool over = is_over(fetch);
    tierce__lock_drop(lock_of(fetch));
    tell(&told, outcome);
    if (again)
        submit(segment);
    if (again || is_wrong)
        atomic_fetch_sub(&engine->calling, 1);
    if (over)
        free_fetch(fetch);
}

static void segment_done(struct tierce__store_req *req)
{
    struct fetch_segment *segment = req->arg;
    TIERCE_DASSERT(req == &segment->req && req->op == TIERCE__STORE_GET);
    tierce__storage_note(segment->fetch->engine, segment->fetch->level, req);
    answer(segment, req->status);
}

static void submit(struct fetch_segment *segment)
{
    TIERCE_DASSERT(segment->req.length > 0);
    struct tierce__fetch *fetch = segment->fetch;
    if (!tierce__storage_submit(fetch->engine, fetch->level, &segment->req))
        answer(segment, TIERCE_E_DOWN);
}

static void ask(struct tierce__fetch *fetch, uint32_t index, bool ahead)
{
    TIERCE_DASSERT(index < fetch->segment_count);
    tierce__lock_take(lock_of(fetch));
    bool mine = claim(fetch, &fetch->segments[index]);
    if (mine)
        fetch->segments[index].req.ahead = ahead;
    tierce__lock_drop(lock_of(fetch));
    if (mine)
        submit(&fetch->segments[index]);
}

static void ask_all(struct tierce__fetch *fetch, bool ahead)
{
    for (uint32_t i = 0; i < fetch->segment_count; i++)
        ask(fetch, i, ahead);
}

/* A segment, and the following ones that the tier reads in the same request. */
static void ask_from(struct tierce__fetch *fetch, uint32_t index, uint64_t read_bytes)
{
    TIERCE_DASSERT(index < fetch->segment_count);
    uint64_t bytes = fetch->segments[index].req.length;
    ask(fetch, index, false);
    while (++index < fetch->segment_count &&
           (bytes += fetch->segments[index].req.length) <= read_bytes)
        ask(fetch, index, false);
}

void tierce__fetch_ask(struct tierce__fetch_waiter *waiter, uint32_t index)
{
    struct tierce__fetch *fetch = waiter->fetch;
    TIERCE_ASSERT(index < fetch->segment_count);
    const struct tierce__tier *tier = fetch->engine->levels[fetch->level].tier;
    if ((tier->ops->caps & TIERCE__TIER_WHOLE) != 0)
        ask_all(fetch, false);
    else
        ask_from(fetch, index, tier->ops->read_bytes);
}

void tierce__fetch_read_all(struct tierce__fetch_waiter *waiter, tierce__fetch_settled_fn *settled,
                            void *arg)
{
    struct tierce__fetch *fetch = waiter->fetch;
    TIERCE_ASSERT(waiter->settled == NULL);
    ask_all(fetch, true);
    struct tierce__list told;
    tierce__lock_take(lock_of(fetch));
    TIERCE_DASSERT(!waiter->called);
    waiter->settled = settled;
    waiter->arg = arg;
    int outcome = settle(fetch, &told); /* perhaps all was answered already */
    tierce__lock_drop(lock_of(fetch));
    tell(&told, outcome);
}

static bool is_here(const struct tierce__fetch *fetch, const struct fetch_segment *segment)
{
    return atomic_load_explicit(&segment->state, memory_order_acquire) == SEGMENT_HERE &&
           atomic_load_explicit(&fetch->status, memory_order_relaxed) == 0;
}

bool tierce__fetch_wait(struct tierce__fetch_waiter *waiter, uint32_t index)
{
    struct tierce__fetch *fetch = waiter->fetch;
    TIERCE_ASSERT(index < fetch->segment_count);
    struct fetch_segment *segment = &fetch->segments[index];
    if (is_here(fetch, segment))
        return true;
    tierce__fetch_ask(waiter, index);
    tierce__lock_take(lock_of(fetch));
    bool in_time = true;
    atomic_fetch_add_explicit(&fetch->engine->fetches.awaited, 1, memory_order_relaxed);
    while (fetch->status == 0 && (segment->state == SEGMENT_READING || fetch->verdict < 0) &&
           in_time)
        in_time = tierce__cond_wait(&fetch->changed, lock_of(fetch), waiter->deadline_ns);
    atomic_fetch_sub_explicit(&fetch->engine->fetches.awaited, 1, memory_order_relaxed);
    bool here = is_here(fetch, segment);
    tierce__lock_drop(lock_of(fetch));
    return here;
}

bool tierce__fetch_lives(const struct tierce__fetch_waiter *waiter)
{
    return atomic_load_explicit(&waiter->fetch->status, memory_order_relaxed) == 0;
}

uint64_t tierce__fetch_bytes_asked(const struct tierce__fetch_waiter *waiter)
{
    return atomic_load_explicit(&waiter->fetch->bytes_asked, memory_order_relaxed);
}

/* ---- what the readers find ---- */

void tierce__fetch_refuse(struct tierce__fetch_waiter *waiter, int why)
{
    struct tierce__fetch *fetch = waiter->fetch;
    TIERCE_DASSERT(why < 0);
    tierce__lock_take(lock_of(fetch));
    if (fetch->verdict == 0 && !fetch->spoiled) {
        fetch->verdict = why;
        expel(fetch, why);
    }
    await_expulsion(fetch, waiter);
    fail(fetch, why);
    struct tierce__list told;
    int outcome = settle(fetch, &told);
    tierce__lock_drop(lock_of(fetch));
    tell(&told, outcome);
}

/* Fails one fetch of a bin that waits for the level. Returns false if there is none. */
static bool abandon_one(struct tierce_engine *engine, struct tierce__list *bin, size_t level)
{
    struct tierce__fetch *fetch = NULL;
    struct tierce__list told;
    int outcome = 0;
    TIERCE_DASSERT(level > 0 && level < TIERCE__TIERS_MAX);
    tierce__lock_take(&engine->fetches.lock);
    TIERCE__LIST_FOR_EACH (it, bin) {
        fetch = TIERCE__CONTAINER_OF(it, struct tierce__fetch, node);
        if (fetch->level == level && fetch->reading > 0 && fetch->verdict == 0)
            break;
        fetch = NULL;
    }
    if (fetch != NULL) {
        fail(fetch, TIERCE_E_DOWN);
        outcome = settle(fetch, &told);
    }
    tierce__lock_drop(&engine->fetches.lock);
    if (fetch != NULL)
        tell(&told, outcome);
    return fetch != NULL;
}

void tierce__fetches_abandon(struct tierce_engine *engine, size_t level)
{
    TIERCE_DASSERT(level > 0 && level < TIERCE__TIERS_MAX);
    for (size_t i = 0; i < TIERCE__FETCH_BINS; i++) {
        while (abandon_one(engine, &engine->fetches.bins[i], level))
            ;
    }
}

void tierce__fetch_spoil(struct tierce__fetch_waiter *waiter)
{
    struct tierce__fetch *fetch = waiter->fetch;
    tierce__lock_take(lock_of(fetch));
    if (!fetch->spoiled)
        expel(fetch, TIERCE_E_CHECKSUM);
    await_expulsion(fetch, waiter);
    struct tierce__list told; /* those whose fetch failed meanwhile */
    int outcome = settle(fetch, &told);
    tierce__lock_drop(lock_of(fetch));
    tell(&told, outcome);
}

void tierce__fetch_ban_begin(struct tierce_engine *engine, struct tierce__fetch_ban *ban,
                             size_t level, const struct tierce__key *key)
{
    TIERCE_DASSERT(level > 0 && level < TIERCE__TIERS_MAX);
    tierce__lock_take(&engine->fetches.lock);
    struct tierce__fetch *fetch = find_fetch(engine, key);
    if (fetch != NULL && fetch->level == level)
        fetch->spoiled = true;
    if (ban != NULL) {
        ban->key = *key;
        ban->level = level;
        tierce__list_push_back(&engine->fetches.bans[bin_of(key)], &ban->node);
    }
    tierce__lock_drop(&engine->fetches.lock);
}

void tierce__fetch_ban_end(struct tierce_engine *engine, struct tierce__fetch_ban *ban)
{
    tierce__lock_take(&engine->fetches.lock);
    TIERCE_DASSERT(!tierce__list_empty(&ban->node));
    tierce__list_remove(&ban->node);
    tierce__lock_drop(&engine->fetches.lock);
}

void tierce__fetch_promote(struct tierce__fetch_waiter *waiter,
                           const struct tierce__storage_chunk *record)
{
    struct tierce__fetch *fetch = waiter->fetch;
    TIERCE_DASSERT(tierce__key_equal(&record->key, &fetch->key));
    TIERCE_DASSERT(record->object_bytes == fetch->buf->bytes);
    tierce__lock_take(lock_of(fetch));
    bool mine = fetch->promotion == PROMOTION_NONE && fetch->verdict == 0 && !fetch->spoiled &&
                !fetch->is_private && fetch->here == fetch->segment_count;
    if (mine)
        fetch->promotion = PROMOTION_RUNS;
    tierce__lock_drop(lock_of(fetch));
    if (!mine)
        return;
    if (tierce__era_enter(fetch->engine, fetch->era)) {
        if (tierce__storage_publish(fetch->engine, record, fetch->buf) == 0)
            tierce__count(fetch->engine, TIERCE__STAT_promotions, 1);
        uint32_t copies = tierce__levels_coded_memory(fetch->engine);
        if (copies != 0 && fetch->level > 1)
            tierce__storage_write_one(fetch->engine, copies, record, fetch->buf, false);
        tierce__era_leave(fetch->engine, fetch->era);
    }
    /* Forgotten only now: a reader that does not find the fetch must find the chunk in memory. */
    tierce__lock_take(lock_of(fetch));
    TIERCE_DASSERT(fetch->promotion == PROMOTION_RUNS);
    fetch->promotion = PROMOTION_DONE;
    tierce__list_remove(&fetch->node);
    bool spoiled = fetch->spoiled;
    tierce__lock_drop(lock_of(fetch));
    if (spoiled)
        tierce__storage_quarantine(fetch->engine, 0, &fetch->key, TIERCE_E_CHECKSUM);
}
