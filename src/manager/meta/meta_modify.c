/* SPDX-License-Identifier: Apache-2.0 */
/* Read, decide, write: tierce__meta_index_modify. meta_index_private.h describes the locks. */
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "manager/meta/meta_cache.h"
#include "manager/meta/meta_index_private.h"
#include "manager/api/spans.h"

#define PAUSE_AFTER_DOUBT_MS 10000u /* longer than a write can be delayed in a connection */

/* An index into the caller's keys; sorted by shard, key, index. */
struct modify_place {
    uint32_t shard;
    uint64_t mixed;
    size_t index;
};

/* One key of a step. */
struct modify_work {
    const struct modify_place *place; /* its first */
    struct tierce__record before, now;
    bool was_there, is_there, is_changed;
    bool is_claimed;  /* counts for keys_max; not indexed when the step began */
    uint32_t version; /* the shard's version when the record was read */
    int64_t children; /* the change of its count */
    int64_t child;    /* the last one that was put, if the count rises */
    int64_t *pending; /* children that earlier steps put before this key */
};

/* The caller's i-th key. */
struct question {
    size_t index;
    struct modify_work *work;
};

/* The change of a parent's count. */
struct delta {
    int64_t key;
    uint64_t mixed;
    uint32_t shard;
    int64_t change;
    int64_t child; /* the last one that was put, if the sum is above 0 */
};

struct modify_call {
    struct tierce__meta_index *index;
    const int64_t *keys;
    size_t count;
    const struct tierce__meta_change *change;
    struct tierce__arena *arena;
    int *status;
    struct modify_place *places;
    int64_t *pending;             /* for each of places */
    struct tierce__arena scratch; /* of one step */
    int rc;
};

struct step {
    struct modify_call *call;
    size_t from, to; /* of call->places */
    struct modify_work *works;
    size_t work_count;
    struct question *questions; /* to - from of them */
    struct tierce__lock **keys_locks, **children_locks;
    size_t keys_lock_count, children_lock_count;
    struct delta *deltas; /* of parents that are not keys of this step */
    size_t delta_count;
    struct tierce__record *parents; /* the records of the deltas, and whether they exist */
    bool *parents_found;
    struct tierce__meta_put *puts;
    int64_t *deletes;
    struct tierce__meta_batch batch;
};

/* Shards are ranges, so that a step's keys are in the order of `mixed`: RocksDB puts a sorted batch
 * into its skip list with fewer steps. */
static uint32_t shard_of(const struct tierce__meta_index *index, uint64_t mixed)
{
    return (uint32_t)((mixed >> 32) * index->shard_count >> 32);
}

static void *scratch(struct step *step, size_t count, size_t bytes)
{
    return tierce__arena_calloc(&step->call->scratch, count, bytes);
}

/* ---- the plan ------------------------------------------------------------------------------- */

static int compare_places(const void *a, const void *b)
{
    const struct modify_place *x = (const struct modify_place *)a,
                              *y = (const struct modify_place *)b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    if (x->mixed != y->mixed)
        return x->mixed < y->mixed ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static int sort_places(struct modify_call *call)
{
    call->places = tierce__arena_alloc(call->arena, call->count * sizeof(*call->places));
    call->pending = tierce__arena_calloc(call->arena, call->count, sizeof(*call->pending));
    if (call->places == NULL || call->pending == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < call->count; i++) {
        uint64_t mixed = tierce__meta_mix(call->keys[i]);
        call->places[i] = (struct modify_place){shard_of(call->index, mixed), mixed, i};
    }
    qsort(call->places, call->count, sizeof(*call->places), compare_places);
    return 0;
}

/* The end of the step that begins at `from`: whole shards. */
static size_t step_end(const struct modify_call *call, size_t from)
{
    size_t to = from;
    while (to < call->count && (call->change->whole || to - from < call->index->batch_keys)) {
        uint32_t shard = call->places[to].shard;
        while (to < call->count && call->places[to].shard == shard)
            to++;
    }
    TIERCE_ASSERT(to > from && to <= call->count);
    return to;
}

/* Returns the first occurrence of a key at or after `from`, or NULL. */
static struct modify_place *find_place(const struct modify_call *call, size_t from, uint64_t mixed)
{
    TIERCE_DASSERT(from <= call->count);
    struct modify_place wanted = {shard_of(call->index, mixed), mixed, 0};
    size_t low = from, high = call->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_places(&call->places[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == call->count || call->places[low].mixed != mixed)
        return NULL;
    return &call->places[low];
}

static int compare_questions(const void *a, const void *b)
{
    const struct question *x = (const struct question *)a, *y = (const struct question *)b;
    return (x->index > y->index) - (x->index < y->index);
}

static int plan_step(struct step *step)
{
    TIERCE_ASSERT(step->from < step->to && step->to <= step->call->count);
    struct modify_call *call = step->call;
    size_t count = step->to - step->from;
    step->works = scratch(step, count, sizeof(*step->works));
    step->questions = scratch(step, count, sizeof(*step->questions));
    step->keys_locks = scratch(step, count, sizeof(struct tierce__lock *));
    if (step->works == NULL || step->questions == NULL || step->keys_locks == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        const struct modify_place *place = &call->places[step->from + i];
        if (i == 0 || place->mixed != place[-1].mixed)
            step->works[step->work_count++] =
                (struct modify_work){.place = place, .pending = &call->pending[step->from + i]};
        if (i == 0 || place->shard != place[-1].shard)
            step->keys_locks[step->keys_lock_count++] = &call->index->shards[place->shard].keys;
        step->questions[i] = (struct question){place->index, &step->works[step->work_count - 1]};
    }
    TIERCE_ASSERT(step->work_count > 0 && step->work_count <= count);
    TIERCE_ASSERT(step->keys_lock_count > 0 && step->keys_lock_count <= step->work_count);
    qsort(step->questions, count, sizeof(*step->questions), compare_questions);
    return 0;
}

/* ---- read and decide ------------------------------------------------------------------------ */

static uint32_t version_of(const struct tierce__meta_index *index, uint32_t shard)
{
    TIERCE_DASSERT(shard < index->shard_count);
    return atomic_load_explicit(&index->shards[shard].version, memory_order_acquire);
}

static int read_works(struct step *step)
{
    tierce__lock_assert_held(step->keys_locks[0]);
    struct tierce__meta_index *index = step->call->index;
    int64_t *keys = scratch(step, step->work_count, sizeof(*keys));
    struct tierce__record *records = scratch(step, step->work_count, sizeof(*records));
    bool *found = scratch(step, step->work_count, sizeof(*found));
    if (keys == NULL || records == NULL || found == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < step->work_count; i++) {
        keys[i] = tierce__meta_unmix(step->works[i].place->mixed);
        step->works[i].version = version_of(index, step->works[i].place->shard);
    }
    int rc = index->space->ops->get(index->space, keys, step->work_count, step->call->arena,
                                    records, found);
    for (size_t i = 0; rc == 0 && i < step->work_count; i++) {
        struct modify_work *work = &step->works[i];
        work->was_there = work->is_there = found[i];
        if (found[i])
            work->before = work->now = records[i];
    }
    return rc;
}

static bool claim_key(struct tierce__meta_index *index)
{
    int64_t claimed = atomic_load_explicit(&index->keys_claimed, memory_order_relaxed);
    do {
        if (claimed >= (int64_t)index->keys_max)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&index->keys_claimed, &claimed, claimed + 1,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

static void unclaim_keys(struct tierce__meta_index *index, int64_t count)
{
    TIERCE_ASSERT(count > 0);
    atomic_fetch_sub_explicit(&index->keys_claimed, count, memory_order_relaxed);
}

static int decide_put(struct modify_call *call, struct modify_work *work,
                      const struct tierce__record *record)
{
    TIERCE_ASSERT(!work->is_claimed || !work->was_there);
    if (!work->is_there && !work->was_there) {
        if (!claim_key(call->index))
            return TIERCE_E_LIMIT;
        work->is_claimed = true;
    }
    work->now = *record;
    work->is_there = work->is_changed = true;
    return 0;
}

static void decide_delete(struct modify_call *call, struct modify_work *work)
{
    TIERCE_ASSERT(!work->is_claimed || !work->was_there);
    if (work->is_claimed)
        unclaim_keys(call->index, 1);
    work->is_claimed = false;
    work->is_changed = work->is_changed || work->is_there;
    work->is_there = false;
    work->now = (struct tierce__record){0};
}

static int decide_one(struct modify_call *call, const struct question *question)
{
    TIERCE_DASSERT(question->index < call->count);
    struct modify_work *work = question->work;
    struct tierce__record record = work->now;
    switch (call->change->modify(call->change->arg, question->index, call->keys[question->index],
                                 work->is_there, &record, call->arena)) {
    case TIERCE__META_PUT:
        return decide_put(call, work, &record);
    case TIERCE__META_DELETE:
        decide_delete(call, work);
        return 0;
    case TIERCE__META_FAIL:
        return TIERCE_E_ARGUMENT;
    case TIERCE__META_SKIP:
        break;
    }
    return 0;
}

static int decide(struct step *step)
{
    tierce__lock_assert_held(step->keys_locks[0]);
    struct modify_call *call = step->call;
    size_t count = step->to - step->from;
    for (size_t i = 0; i < count; i++)
        call->status[step->questions[i].index] = decide_one(call, &step->questions[i]);
    for (size_t i = 0; i < step->work_count; i++) {
        const struct modify_work *work = &step->works[i];
        step->batch.added[TIERCE__META_KEYS] += work->is_there - work->was_there;
        if (work->is_changed) {
            tierce__meta_count_bytes(step->batch.added, &work->before, false);
            tierce__meta_count_bytes(step->batch.added, &work->now, true);
        }
    }
    TIERCE_ASSERT(step->batch.put_count == 0 && step->batch.delete_count == 0);
    if (call->change->attach == NULL)
        return 0;
    size_t *indices = scratch(step, count, sizeof(*indices));
    if (indices == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        indices[i] = step->questions[i].index;
    return call->change->attach(call->change->arg, indices, count, &step->batch, call->arena);
}

/* ---- counts of children --------------------------------------------------------------------- */

static struct modify_work *find_work(struct step *step, const struct delta *delta)
{
    TIERCE_DASSERT(step->work_count > 0 && delta->shard < step->call->index->shard_count);
    size_t low = 0, high = step->work_count;
    struct modify_place wanted = {delta->shard, delta->mixed, 0};
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_places(step->works[middle].place, &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == step->work_count || step->works[low].place->mixed != delta->mixed)
        return NULL;
    TIERCE_DASSERT(step->works[low].place->shard == delta->shard);
    return &step->works[low];
}

/* Changes a parent's count: in its own work if this step has one, else in a delta. */
static void add_delta(struct step *step, int64_t parent, int64_t change, int64_t child)
{
    TIERCE_ASSERT(step->delta_count < 2 * step->work_count);
    TIERCE_DASSERT(change == 1 || change == -1);
    uint64_t mixed = tierce__meta_mix(parent);
    struct delta delta = {parent, mixed, shard_of(step->call->index, mixed), change, child};
    struct modify_work *work = find_work(step, &delta);
    if (work == NULL)
        step->deltas[step->delta_count++] = delta;
    else
        work->children += change;
    if (work != NULL && change > 0)
        work->child = child;
}

static int compare_deltas(const void *a, const void *b)
{
    const struct delta *x = (const struct delta *)a, *y = (const struct delta *)b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return (x->mixed > y->mixed) - (x->mixed < y->mixed);
}

/* Merges the deltas by parent and drops those that sum to zero. */
static void merge_deltas(struct step *step)
{
    struct delta *deltas = step->deltas;
    size_t count = 0;
    qsort(deltas, step->delta_count, sizeof(*deltas), compare_deltas);
    for (size_t i = 0, next; i < step->delta_count; i = next) {
        struct delta sum = deltas[i];
        for (next = i + 1; next < step->delta_count && deltas[next].mixed == sum.mixed; next++) {
            sum.change += deltas[next].change;
            if (deltas[next].change > 0)
                sum.child = deltas[next].child;
        }
        if (sum.change != 0)
            deltas[count++] = sum;
    }
    TIERCE_ASSERT(count <= step->delta_count);
    step->delta_count = count;
}

static int count_children(struct step *step)
{
    tierce__lock_assert_held(step->keys_locks[0]);
    step->deltas = scratch(step, 2 * step->work_count, sizeof(*step->deltas));
    if (step->deltas == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < step->work_count; i++) {
        const struct modify_work *work = &step->works[i];
        bool had = work->was_there && work->before.has_parent;
        bool has = work->is_there && work->now.has_parent;
        int64_t key = tierce__meta_unmix(work->place->mixed);
        if (had && has && work->before.parent == work->now.parent)
            continue;
        if (had)
            add_delta(step, work->before.parent, -1, key);
        if (has)
            add_delta(step, work->now.parent, 1, key);
    }
    merge_deltas(step);
    for (size_t i = 0; i < step->work_count; i++) {
        struct modify_work *work = &step->works[i];
        TIERCE_DASSERT(*work->pending >= 0);
        work->children += *work->pending;
        if (work->is_there && work->children != 0)
            work->is_changed = true;
    }
    return 0;
}

static int compare_shards(const void *a, const void *b)
{
    const uint32_t *x = (const uint32_t *)a, *y = (const uint32_t *)b;
    return (*x > *y) - (*x < *y);
}

static int take_children_locks(struct step *step)
{
    tierce__lock_assert_held(step->keys_locks[0]);
    TIERCE_ASSERT(step->children_lock_count == 0);
    size_t limit = step->work_count + step->delta_count, count = 0;
    uint32_t *shards = scratch(step, limit, sizeof(*shards));
    step->children_locks = scratch(step, limit, sizeof(struct tierce__lock *));
    if (shards == NULL || step->children_locks == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < step->work_count; i++)
        if (step->works[i].is_changed)
            shards[count++] = step->works[i].place->shard;
    for (size_t i = 0; i < step->delta_count; i++)
        shards[count++] = step->deltas[i].shard;
    TIERCE_ASSERT(count <= limit);
    qsort(shards, count, sizeof(*shards), compare_shards);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || shards[i] != shards[i - 1])
            step->children_locks[step->children_lock_count++] =
                &step->call->index->shards[shards[i]].children;
    tierce__lock_take_all(step->children_locks, step->children_lock_count);
    return 0;
}

/* Reads the parents, and the counts that other threads may have changed. The children locks are
 * held, so they stay unchanged. */
static int read_counts(struct step *step)
{
    struct tierce__meta_index *index = step->call->index;
    size_t limit = step->work_count + step->delta_count, count = 0;
    int64_t *keys = scratch(step, limit, sizeof(*keys));
    struct modify_work **works = scratch(step, limit, sizeof(struct modify_work *));
    struct tierce__record *records = scratch(step, limit, sizeof(*records));
    bool *found = scratch(step, limit, sizeof(*found));
    if (keys == NULL || works == NULL || records == NULL || found == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < step->delta_count; i++)
        keys[count++] = step->deltas[i].key;
    for (size_t i = 0; i < step->work_count; i++) {
        struct modify_work *work = &step->works[i];
        if (!work->is_changed || !work->was_there || !work->is_there ||
            work->version == version_of(index, work->place->shard))
            continue;
        works[count] = work;
        keys[count++] = tierce__meta_unmix(work->place->mixed);
    }
    TIERCE_ASSERT(count >= step->delta_count && count <= limit);
    TIERCE_DASSERT(count == 0 || step->children_lock_count > 0);
    if (count == 0)
        return 0;
    int rc =
        index->space->ops->get(index->space, keys, count, &step->call->scratch, records, found);
    if (rc < 0)
        return rc;
    step->parents = records;
    step->parents_found = found;
    for (size_t i = step->delta_count; i < count; i++)
        if (found[i]) {
            works[i]->before.children = records[i].children;
            works[i]->before.has_child = records[i].has_child;
            works[i]->before.child = records[i].child;
        }
    return 0;
}

/* At least 0: a parent that was stored after its children does not count them. */
static uint32_t add_children(uint32_t children, int64_t change)
{
    int64_t sum = (int64_t)children + change;
    if (sum < 0)
        return 0;
    return sum > UINT32_MAX ? UINT32_MAX : (uint32_t)sum;
}

/* A removed child is not replaced by another one: nothing names the others. */
static void set_child(const struct step *step, struct tierce__record *record, int64_t change,
                      int64_t child)
{
    if (!step->call->index->keeps_child || change == 0)
        return;
    record->has_child = change > 0;
    record->child = change > 0 ? child : 0;
}

static uint32_t children_before(const struct modify_call *call, const struct modify_work *work)
{
    TIERCE_DASSERT(work->is_there);
    if (work->was_there)
        return work->before.children;
    return call->change->followers != NULL
               ? call->change->followers(call->change->arg, tierce__meta_unmix(work->place->mixed))
               : 0;
}

/* ---- write ---------------------------------------------------------------------------------- */

static int fill_batch(struct step *step)
{
    tierce__lock_assert_held(step->keys_locks[0]);
    TIERCE_ASSERT(step->batch.put_count + step->batch.delete_count == 0);
    struct tierce__meta_batch *batch = &step->batch;
    step->puts = scratch(step, step->work_count + step->delta_count, sizeof(*step->puts));
    step->deletes = scratch(step, step->work_count, sizeof(*step->deletes));
    if (step->puts == NULL || step->deletes == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < step->work_count; i++) {
        struct modify_work *work = &step->works[i];
        int64_t key = tierce__meta_unmix(work->place->mixed);
        if (work->is_there && work->is_changed) {
            work->now.children = add_children(children_before(step->call, work), work->children);
            work->now.has_child = work->was_there && work->before.has_child;
            work->now.child = work->now.has_child ? work->before.child : 0;
            set_child(step, &work->now, work->children - *work->pending, work->child);
            step->puts[batch->put_count++] = (struct tierce__meta_put){key, work->now};
        } else if (work->was_there && !work->is_there) {
            step->deletes[batch->delete_count++] = key;
        }
    }
    for (size_t i = 0; i < step->delta_count; i++) {
        if (!step->parents_found[i])
            continue;
        struct tierce__record parent = step->parents[i];
        parent.children = add_children(parent.children, step->deltas[i].change);
        set_child(step, &parent, step->deltas[i].change, step->deltas[i].child);
        step->puts[batch->put_count++] = (struct tierce__meta_put){step->deltas[i].key, parent};
    }
    TIERCE_ASSERT(batch->put_count <= step->work_count + step->delta_count);
    TIERCE_ASSERT(batch->delete_count <= step->work_count);
    batch->puts = step->puts;
    batch->deletes = step->deletes;
    return 0;
}

static bool batch_is_empty(const struct tierce__meta_batch *batch)
{
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        if (batch->added[i] != 0)
            return false;
    return batch->put_count + batch->delete_count + batch->note_count == 0;
}

static void forget_cached(struct tierce__meta_cache *cache, const struct tierce__meta_batch *batch)
{
    for (size_t i = 0; i < batch->put_count; i++)
        tierce__meta_cache_invalidate(cache, batch->puts[i].key);
    for (size_t i = 0; i < batch->delete_count; i++)
        tierce__meta_cache_invalidate(cache, batch->deletes[i]);
}

/* A write with this error was certainly not applied. */
static bool is_certain(int rc)
{
    TIERCE_DASSERT(rc < 0);
    return rc == TIERCE_E_REFUSED || rc == TIERCE_E_ARGUMENT || rc == -ENOMEM;
}

static int write_batch(struct step *step)
{
    struct tierce__meta_index *index = step->call->index;
    const struct tierce__meta_batch *batch = &step->batch;
    TIERCE_DASSERT(batch->put_count + batch->delete_count == 0 || step->children_lock_count > 0);
    if (batch_is_empty(batch))
        return 0;
    int rc = index->space->ops->write(index->space, batch);
    if (rc < 0 && !is_certain(rc))
        atomic_store_explicit(&index->is_uncertain, true, memory_order_relaxed);
    if (index->cache != NULL) {
        if (rc < 0 && !is_certain(rc))
            tierce__meta_cache_pause(index->cache, tierce__deadline_in_ms(PAUSE_AFTER_DOUBT_MS));
        forget_cached(index->cache, batch);
    }
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        if (batch->added[i] != 0)
            atomic_fetch_add_explicit(&index->counters[i], batch->added[i], memory_order_relaxed);
    for (size_t i = 0; i < step->delta_count; i++)
        if (step->parents_found[i])
            atomic_fetch_add_explicit(&index->shards[step->deltas[i].shard].version, 1,
                                      memory_order_release);
    return 0;
}

/* Children whose parent this call puts in a later step, or whose parent is missing. */
static void leave_pending(struct step *step)
{
    tierce__lock_assert_held(step->keys_locks[0]);
    const struct tierce__meta_change *change = step->call->change;
    for (size_t i = 0; i < step->work_count && change->lost != NULL; i++) {
        const struct modify_work *work =
            &step->works[i]; /* it was meant to be put but was skipped */
        if (!work->is_there && work->children > 0)
            change->lost(change->arg, tierce__meta_unmix(work->place->mixed),
                         (uint32_t)work->children);
    }
    for (size_t i = 0; i < step->delta_count; i++) {
        if (step->parents_found[i] || step->deltas[i].change < 0)
            continue;
        struct modify_place *place = find_place(step->call, step->to, step->deltas[i].mixed);
        TIERCE_DASSERT(step->deltas[i].change > 0);
        if (place != NULL)
            step->call->pending[place - step->call->places] += step->deltas[i].change;
        else if (change->lost != NULL)
            change->lost(change->arg, step->deltas[i].key, (uint32_t)step->deltas[i].change);
    }
}

static int write_step(struct step *step)
{
    tierce__lock_assert_held(step->keys_locks[0]);
    int rc = count_children(step);
    if (rc == 0)
        rc = take_children_locks(step);
    if (rc < 0)
        return rc;
    rc = read_counts(step);
    if (rc == 0)
        rc = fill_batch(step);
    if (rc == 0)
        rc = write_batch(step);
    if (rc == 0)
        leave_pending(step);
    tierce__lock_drop_all(step->children_locks, step->children_lock_count);
    return rc;
}

/* Releases claims of keys that were not stored, and of keys that were removed. */
static void settle_claims(struct step *step, bool is_written)
{
    tierce__lock_assert_held(step->keys_locks[0]);
    int64_t gone = 0;
    for (size_t i = 0; i < step->work_count; i++) {
        const struct modify_work *work = &step->works[i];
        gone += is_written ? work->was_there && !work->is_there : work->is_claimed;
    }
    if (gone > 0)
        unclaim_keys(step->call->index, gone);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static int run_step(struct modify_call *call, size_t from, size_t to)
{
    struct step step = {.call = call, .from = from, .to = to};
    tierce__arena_reset(&call->scratch);
    int rc = plan_step(&step);
    if (rc < 0)
        return rc;
    tierce__lock_take_all(step.keys_locks, step.keys_lock_count);
    rc = read_works(&step);
    if (rc == 0)
        rc = decide(&step);
    if (rc == 0)
        rc = write_step(&step);
    settle_claims(&step, rc == 0);
    tierce__lock_drop_all(step.keys_locks, step.keys_lock_count);
    return rc;
}

/* When no write is running, the store's counters are exact. */
static int recount(struct tierce__meta_index *index)
{
    struct tierce__lock **locks = tierce__calloc(index->shard_count, sizeof(struct tierce__lock *));
    if (locks == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < index->shard_count; i++)
        locks[i] = &index->shards[i].keys;
    int rc = 0;
    tierce__lock_take_all(locks, index->shard_count);
    if (atomic_load_explicit(&index->is_uncertain, memory_order_relaxed))
        rc = tierce__meta_index_recount(index);
    if (rc == 0)
        atomic_store_explicit(&index->is_uncertain, false, memory_order_relaxed);
    tierce__lock_drop_all(locks, index->shard_count);
    tierce__free((void *)locks);
    return rc;
}

int tierce__meta_index_settle(struct tierce__meta_index *index)
{
    return atomic_load_explicit(&index->is_uncertain, memory_order_relaxed) ? recount(index) : 0;
}

static void fail_from(struct modify_call *call, size_t from, int rc)
{
    TIERCE_ASSERT(rc < 0 && from <= call->count);
    for (size_t i = from; i < call->count; i++)
        call->status[call->places[i].index] = rc;
}

int tierce__meta_index_modify(struct tierce__meta_index *index, const int64_t *keys, size_t count,
                              const struct tierce__meta_change *change, struct tierce__arena *arena,
                              int *status)
{
    TIERCE_DASSERT(!index->space->ops->blocks || !tierce__lock_holds_any());
    struct modify_call call = {.index = index,
                               .keys = keys,
                               .count = count,
                               .change = change,
                               .arena = arena,
                               .status = status};
    int span = tierce__span_open("index:change");
    int rc = sort_places(&call);
    if (rc == 0)
        rc = tierce__meta_index_settle(index);
    if (rc < 0) {
        for (size_t i = 0; i < count; i++)
            status[i] = rc;
        tierce__span_close(span);
        return rc;
    }
    for (size_t from = 0, to; from < count; from = to) {
        to = step_end(&call, from);
        rc = run_step(&call, from, to);
        /* After a failed step the remaining steps are skipped. */
        if (rc < 0) {
            fail_from(&call, from, rc);
            break;
        }
    }
    tierce__arena_clear(&call.scratch);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = status[i];
    tierce__span_close(span);
    return rc;
}
