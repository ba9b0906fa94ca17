/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that outlive their submitter: queued PUTs, and errands (a DELETE, a HIDE, or a GET or
 * PING that probes a tier). The engine lists them, so that a flush can wait for those that were
 * under way when it began.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/engine.h"
#include "engine/store/tails.h"
#include "engine/why/why.h"

struct background {
    struct tierce__list node; /* in the engine's list */
    uint64_t number;
    struct tierce_engine *engine;
    size_t level;
    uint64_t bytes; /* of a PUT of a store; else 0 */
    struct tierce__store_req req;
};

/* ---- how much the slower tiers have to write ------------------------------------------------- */

static void add_unwritten(struct tierce__level *level, uint64_t bytes)
{
    tierce__lock_assert_held(&level->engine->lock);
    if (level->unwritten_bytes == 0)
        level->written_ns = tierce__now_ns();
    level->unwritten_bytes += bytes;
    level->unwritten_chunks += bytes > 0;
}

static void end_unwritten(struct tierce__level *level, uint64_t bytes)
{
    tierce__lock_assert_held(&level->engine->lock);
    TIERCE_ASSERT(level->unwritten_bytes >= bytes && level->unwritten_chunks >= (bytes > 0));
    level->unwritten_bytes -= bytes;
    level->unwritten_chunks -= bytes > 0;
}

/* One chunk alone always fits. */
static bool fits(const struct tierce__level *level, uint64_t bytes)
{
    tierce__lock_assert_held(&level->engine->lock);
    uint64_t hang_ns = level->engine->settings.load_ms * TIERCE__MS_NS;
    return level->unwritten_bytes == 0 ||
           (level->unwritten_bytes + bytes <= level->queue_bytes &&
            level->unwritten_chunks < level->queue_chunks) ||
           !tierce__health_serves(&level->health) || tierce__now_ns() - level->written_ns > hang_ns;
}

bool tierce__storage_promise(struct tierce_engine *engine, uint32_t levels, uint64_t bytes)
{
    TIERCE_DASSERT(bytes > 0);
    bool fit = true;
    tierce__lock_take(&engine->lock);
    for (size_t level = 1; level < engine->level_count && fit; level++)
        fit = (levels & 1u << level) == 0 || fits(&engine->levels[level], bytes);
    for (size_t level = 1; level < engine->level_count && fit; level++) {
        if ((levels & 1u << level) != 0)
            add_unwritten(&engine->levels[level], bytes);
    }
    tierce__lock_drop(&engine->lock);
    return fit;
}

void tierce__storage_end_promise(struct tierce_engine *engine, uint32_t levels, uint64_t bytes)
{
    tierce__lock_take(&engine->lock);
    for (size_t level = 1; level < engine->level_count; level++) {
        if ((levels & 1u << level) != 0)
            end_unwritten(&engine->levels[level], bytes);
    }
    tierce__lock_drop(&engine->lock);
    tierce__pool_tell_room(engine->pool);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Returns 0, or why `done` will not be called: TIERCE_E_DOWN (the tier is out of service), or
 * TIERCE_E_FULL for the PUT of a store. */
static int submit(struct background *b, tierce__store_done_fn *done)
{
    struct tierce_engine *engine = b->engine;
    TIERCE_DASSERT(b->level < TIERCE__TIERS_MAX && b->number == 0);
    b->req.done = done;
    tierce__lock_take(&engine->lock);
    b->number = ++engine->unattended_made;
    tierce__list_push_back(&engine->unattended, &b->node);
    struct tierce__level *level = &engine->levels[b->level];
    add_unwritten(level, b->bytes);
    bool is_dropped = b->bytes > 0 && level->unwritten_chunks > level->queue_chunks;
    level->dropped_puts += is_dropped;
    tierce__lock_drop(&engine->lock);
    if (is_dropped)
        return TIERCE_E_FULL;
    return tierce__storage_submit(engine, b->level, &b->req) ? 0 : TIERCE_E_DOWN;
}

/* Records a PUT's error for the next flush. A dropped or rejected PUT is by design and no error. */
static void note_put(struct tierce_engine *engine, int status)
{
    tierce__lock_assert_held(&engine->lock);
    TIERCE_DASSERT(status <= 0);
    if (tierce__health_is_fault(status) && engine->put_error == 0)
        engine->put_error = status;
}

/* The lock is held until the end: once it is dropped, another thread may close the engine. */
static void note_written(const struct background *b, int status)
{
    struct tierce__level *level = &b->engine->levels[b->level];
    tierce__lock_assert_held(&b->engine->lock);
    if (b->bytes == 0)
        return;
    if (status == 0)
        level->written_ns = tierce__now_ns();
    end_unwritten(level, b->bytes);
    tierce__pool_tell_room(b->engine->pool);
}

/* When a waiter sees an errand off the list, its memory and buffer have been released. The memory
 * of a PUT is that of its store's writes, and a search for tails may still hold its buffer.
 * put_status: 0 for an errand, whose failure no flush reports. */
static void unlist(struct background *b, int put_status, void (*release)(struct background *b))
{
    struct tierce_engine *engine = b->engine;
    tierce__lock_take(&engine->lock);
    TIERCE_DASSERT(!tierce__list_empty(&b->node) && b->number <= engine->unattended_made);
    TIERCE_DASSERT(b->number > 0);
    tierce__list_remove(&b->node);
    note_put(engine, put_status);
    note_written(b, put_status);
    release(b);
    tierce__cond_broadcast(&engine->changed);
    tierce__lock_drop(&engine->lock);
}

/* Whether requests up to a number are under way. Under the lock. */
static bool any_up_to(const struct tierce_engine *engine, uint64_t number)
{
    tierce__lock_assert_held(&engine->lock);
    if (tierce__list_empty(&engine->unattended))
        return false;
    const struct background *oldest =
        TIERCE__CONTAINER_OF(engine->unattended.next, struct background, node);
    TIERCE_DASSERT(oldest->number <= engine->unattended_made);
    return oldest->number <= number;
}

bool tierce__storage_writes_before(const struct tierce__level *level, uint64_t number)
{
    const struct tierce_engine *engine = level->engine;
    size_t index = (size_t)(level - engine->levels);
    tierce__lock_assert_held(&engine->lock);
    TIERCE__LIST_FOR_EACH (it, &engine->unattended) {
        const struct background *b = TIERCE__CONTAINER_OF(it, const struct background, node);
        if (b->number >= number)
            break;
        if (b->level == index && b->bytes > 0)
            return true;
    }
    return false;
}

int tierce__storage_wait_for_puts(struct tierce_engine *engine, uint64_t deadline_ns)
{
    tierce__lock_take(&engine->lock);
    uint64_t last = engine->unattended_made;
    bool in_time = true;
    while (any_up_to(engine, last) && in_time)
        in_time = tierce__cond_wait(&engine->changed, &engine->lock, deadline_ns);
    int rc = TIERCE_E_DEADLINE;
    if (!any_up_to(engine, last)) {
        rc = engine->put_error;
        engine->put_error = 0;
    }
    tierce__lock_drop(&engine->lock);
    TIERCE_DASSERT(rc <= 0);
    return rc;
}

/* ---- writes ---------------------------------------------------------------------------------- */

struct put {
    struct background base;
    struct tierce__storage_chunk chunk;
    struct tierce__writes *writes;
    struct tierce__tail_search search; /* once the chunk is written; held: NULL if there is none */
};

struct tierce__writes {
    struct tierce_engine *engine;
    uint32_t levels;
    bool forgets;         /* chunks that a tier does not get are not sent later (unsent.h) */
    uint64_t late;        /* the serial of a chunk that is sent later (unsent.h), or 0 */
    _Atomic size_t users; /* PUTs and their searches for tails, and the store until its end */
    _Atomic size_t unanswered[TIERCE__TIERS_MAX]; /* PUTs to each level, and the store */
    size_t put_count, put_max;
    size_t key_count, key_max;
    struct tierce__key *keys; /* behind the PUTs */
    struct put puts[];
};

int tierce__storage_begin_writes(struct tierce__writes **out, struct tierce_engine *engine,
                                 uint32_t levels, size_t chunk_max, size_t key_max)
{
    TIERCE_DASSERT(engine->level_count > 0 && chunk_max > 0);
    *out = NULL;
    if (engine->level_count == 1)
        return 0;
    levels &= (1u << engine->level_count) - 2;
    if (levels == 0 && key_max == 0)
        return 0;
    size_t put_max = chunk_max * (size_t)__builtin_popcount(levels);
    struct tierce__writes *writes = tierce__alloc(
        sizeof(*writes) + put_max * sizeof(writes->puts[0]) + key_max * sizeof(writes->keys[0]));
    if (writes == NULL)
        return -ENOMEM;
    *writes = (struct tierce__writes){
        .engine = engine, .levels = levels, .put_max = put_max, .key_max = key_max};
    writes->keys = (struct tierce__key *)(void *)&writes->puts[put_max];
    TIERCE_DASSERT((uintptr_t)writes->keys % _Alignof(struct tierce__key) == 0);
    atomic_init(&writes->users, 1);
    for (size_t level = 1; level < engine->level_count; level++)
        atomic_init(&writes->unanswered[level], 1);
    *out = writes;
    return 0;
}

static void leave_writes(struct tierce__writes *writes)
{
    /* acq_rel: nobody uses the memory any more. */
    size_t before = atomic_fetch_sub_explicit(&writes->users, 1, memory_order_acq_rel);
    TIERCE_ASSERT(before > 0);
    TIERCE_DASSERT(before > 1 || writes->put_count <= writes->put_max);
    if (before == 1)
        tierce__free(writes);
}

/* The last answer touches the chunks: earlier, new chunks could not be found there, and would keep
 * the order of writing, in which a prefix is older than its suffix. */
static void note_answer(struct tierce__writes *writes, size_t level)
{
    TIERCE_DASSERT(level > 0 && level < TIERCE__TIERS_MAX);
    struct tierce__tier *tier = writes->engine->levels[level].tier;
    /* acq_rel: the last sees the keys. */
    size_t before = atomic_fetch_sub_explicit(&writes->unanswered[level], 1, memory_order_acq_rel);
    TIERCE_DASSERT(before > 0 && atomic_load(&writes->users) > 0);
    if (before == 1 && writes->key_count > 0)
        tier->ops->touch(tier, &(struct tierce__tier_uses){.keys = writes->keys,
                                                           .count = writes->key_count,
                                                           .used = writes->key_count});
}

void tierce__storage_end_writes(struct tierce__writes *writes, const struct tierce__key *keys,
                                size_t count)
{
    if (writes == NULL)
        return;
    TIERCE_ASSERT(count <= writes->key_max && writes->key_count == 0);
    if (count > 0)
        memcpy(writes->keys, keys, count * sizeof(*keys));
    writes->key_count = count;
    for (size_t level = 1; level < writes->engine->level_count; level++)
        note_answer(writes, level);
    leave_writes(writes);
}

static void end_search(struct tierce__tail_search *search)
{
    TIERCE_DASSERT(search->level > 0 && search->level < TIERCE__TIERS_MAX);
    leave_writes(TIERCE__CONTAINER_OF(search, struct put, search)->writes);
}

static void leave_put(struct background *b)
{
    leave_writes(TIERCE__CONTAINER_OF(b, struct put, base)->writes);
}

static void end_put(struct put *put, int status)
{
    struct tierce_engine *engine = put->base.engine;
    size_t level = put->base.level;
    TIERCE_DASSERT(status <= 0 && put->writes->engine == engine);
    if (status < 0)
        tierce__why_refused(engine, level, &put->chunk.key, status);
    uint64_t late = put->writes->late;
    if (status < 0 || late != 0)
        tierce__unsent_note(
            &engine->levels[level],
            &(struct tierce__unsent_answer){.chunk = &put->chunk,
                                            .serial = late != 0 ? late : put->base.number,
                                            .is_late = late != 0,
                                            .forgets = put->writes->forgets,
                                            .status = status});
    if (status == 0 && put->search.held != NULL) {
        atomic_fetch_add_explicit(&put->writes->users, 1, memory_order_relaxed);
        tierce__tails_search(&put->search, &put->chunk);
    } else {
        tierce__buf_release(put->search.held);
    }
    note_answer(put->writes, level);
    unlist(&put->base, status, leave_put);
}

static void put_done(struct tierce__store_req *req)
{
    struct put *put = TIERCE__CONTAINER_OF(req, struct put, base.req);
    TIERCE_DASSERT(req->op == TIERCE__STORE_PUT);
    TIERCE_DASSERT(put->base.number > 0);
    tierce__storage_note(put->base.engine, put->base.level, req);
    end_put(put, req->status);
}

void tierce__storage_write(struct tierce__writes *writes, const struct tierce__storage_chunk *chunk,
                           struct tierce__buf *buf)
{
    for (uint32_t left = writes != NULL ? writes->levels : 0; left != 0; left &= left - 1) {
        size_t level = (size_t)__builtin_ctz(left);
        TIERCE_ASSERT(writes->put_count < writes->put_max);
        TIERCE_DASSERT(level > 0 && level < writes->engine->level_count);
        struct put *put = &writes->puts[writes->put_count++];
        *put = (struct put){
            .base = {.engine = writes->engine, .level = level, .bytes = chunk->object_bytes},
            .chunk = *chunk,
            .writes = writes,
            .search = {.engine = writes->engine,
                       .level = level,
                       .req = &put->base.req,
                       .over = end_search}};
        tierce__storage_fill_put(&put->base.req, &put->chunk, buf);
        put->base.req.needs_parent = true;
        if (tierce__tails_may_end(writes->engine, level, chunk)) {
            tierce__buf_acquire(buf);
            put->search.held = buf;
        }
        TIERCE_DASSERT(atomic_load(&writes->unanswered[level]) > 0);
        atomic_fetch_add_explicit(&writes->users, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&writes->unanswered[level], 1, memory_order_relaxed);
        int status = submit(&put->base, put_done);
        if (status < 0)
            end_put(put, status);
    }
}

void tierce__storage_write_one(struct tierce_engine *engine, uint32_t levels,
                               const struct tierce__storage_chunk *chunk, struct tierce__buf *buf,
                               bool is_used)
{
    struct tierce__writes *writes;
    int rc = tierce__storage_begin_writes(&writes, engine, levels, 1, 1);
    if (writes != NULL)
        writes->forgets = true;
    tierce__storage_write(writes, chunk, buf);
    tierce__storage_end_writes(writes, &chunk->key, is_used ? 1 : 0);
    if (rc == 0)
        return;
    for (size_t level = 1; level < engine->level_count; level++) {
        if ((levels & 1u << level) != 0)
            tierce__why_refused(engine, level, &chunk->key, rc);
    }
    tierce__lock_take(&engine->lock);
    note_put(engine, rc);
    tierce__lock_drop(&engine->lock);
}

void tierce__storage_write_late(struct tierce_engine *engine, size_t level,
                                const struct tierce__storage_chunk *chunk, uint64_t serial,
                                struct tierce__buf *buf)
{
    struct tierce__writes *writes;
    TIERCE_DASSERT(engine->levels[level].unsent.chunks != NULL && serial != 0);
    int rc = tierce__storage_begin_writes(&writes, engine, 1u << level, 1, 0);
    if (rc < 0) {
        tierce__unsent_note(&engine->levels[level],
                            &(struct tierce__unsent_answer){
                                .chunk = chunk, .serial = serial, .is_late = true, .status = rc});
        return;
    }
    writes->late = serial;
    tierce__storage_write(writes, chunk, buf);
    tierce__storage_end_writes(writes, NULL, 0);
}

/* ---- errands --------------------------------------------------------------------------------- */

struct errand {
    struct background base;
    struct tierce__key key;
    struct tierce__fetch_ban ban; /* of a chunk that proved wrong */
    bool banned;
};

/* With what all have in common; key: NULL for a ping. Returns NULL without memory. */
static struct errand *make_errand(struct tierce_engine *engine, size_t level,
                                  enum tierce__store_op op, const struct tierce__key *key)
{
    struct errand *errand = tierce__calloc(1, sizeof(*errand));
    TIERCE_DASSERT(level < TIERCE__TIERS_MAX && (key != NULL) == (op != TIERCE__STORE_PING));
    if (errand == NULL)
        return NULL;
    errand->base.engine = engine;
    errand->base.level = level;
    errand->base.req.op = op;
    errand->base.req.deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms);
    if (key != NULL) {
        errand->key = *key;
        errand->base.req.keys = &errand->key;
        errand->base.req.key_count = 1;
    }
    return errand;
}

static void free_errand(struct background *b)
{
    TIERCE_DASSERT(tierce__list_empty(&b->node));
    tierce__free(TIERCE__CONTAINER_OF(b, struct errand, base));
}

static void end_errand(struct errand *errand)
{
    TIERCE_DASSERT(errand->base.number > 0);
    TIERCE_DASSERT(!errand->banned || errand->base.level > 0);
    if (errand->banned)
        tierce__fetch_ban_end(errand->base.engine, &errand->ban);
    tierce__buf_release(errand->base.req.buf);
    unlist(&errand->base, 0, free_errand);
}

static void errand_done(struct tierce__store_req *req)
{
    struct errand *errand = TIERCE__CONTAINER_OF(req, struct errand, base.req);
    TIERCE_DASSERT(req->op != TIERCE__STORE_PUT);
    tierce__storage_note(errand->base.engine, errand->base.level, req);
    end_errand(errand);
}

static void submit_errand(struct errand *errand)
{
    if (submit(&errand->base, errand_done) < 0)
        end_errand(errand);
}

void tierce__storage_sample(struct tierce_engine *engine, size_t level,
                            const struct tierce__key *key, uint64_t bytes)
{
    TIERCE_DASSERT(level > 0);
    TIERCE_DASSERT(bytes > 0);
    struct errand *errand = make_errand(engine, level, TIERCE__STORE_GET, key);
    struct tierce__buf *buf = tierce__storage_alloc(engine, bytes);
    if (errand == NULL || buf == NULL) {
        tierce__buf_release(buf);
        tierce__free(errand);
        return;
    }
    errand->base.req.buf = buf;
    errand->base.req.length = bytes;
    submit_errand(errand);
}

void tierce__storage_ask(struct tierce_engine *engine, size_t level, const struct tierce__key *key)
{
    TIERCE_DASSERT(engine->levels[level].health.shared);
    struct errand *errand = make_errand(engine, level, TIERCE__STORE_LOOKUP, key);
    if (errand != NULL)
        submit_errand(errand);
}

static void ping(struct tierce_engine *engine, size_t level)
{
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    struct errand *errand = make_errand(engine, level, TIERCE__STORE_PING, NULL);
    if (errand != NULL)
        submit_errand(errand);
}

void tierce__storage_try(struct tierce_engine *engine, size_t level,
                         const struct tierce__key *asked)
{
    TIERCE_DASSERT(level > 0 && level < TIERCE__TIERS_MAX);
    struct tierce__health *health = &engine->levels[level].health;
    struct tierce__key key = *asked;
    (void)tierce__health_proven(health, &key);
    if (!tierce__health_is_due(health))
        return;
    if (health->pings)
        ping(engine, level);
    else
        tierce__storage_sample(engine, level, &key, TIERCE__CHUNK_ALIGN);
}

/* A read proves that the whole path works. If there is no chunk to read, or reads do not need all
 * of it, the tier is pinged: an empty disk would otherwise return only with the next store. */
void tierce__storage_probe(struct tierce_engine *engine)
{
    for (size_t level = 1; level < engine->level_count; level++) {
        struct tierce__key key;
        struct tierce__health *health = &engine->levels[level].health;
        if (!tierce__health_is_due(health))
            continue;
        if (!health->pings && tierce__health_proven(health, &key))
            tierce__storage_sample(engine, level, &key, TIERCE__CHUNK_ALIGN);
        else
            ping(engine, level);
    }
}

/* Submits a DELETE or a HIDE; without memory it does nothing. Until it is answered, a wrong chunk
 * may still be read there. */
static void drop(struct tierce_engine *engine, size_t level, const struct tierce__key *key,
                 enum tierce__store_op op, enum tierce__tier_left left, bool proved_wrong)
{
    TIERCE_DASSERT(op == TIERCE__STORE_DELETE || op == TIERCE__STORE_HIDE);
    TIERCE_DASSERT(proved_wrong || op == TIERCE__STORE_DELETE);
    struct errand *errand = make_errand(engine, level, op, key);
    bool ban = proved_wrong && level > 0;
    if (ban)
        tierce__fetch_ban_begin(engine, errand != NULL ? &errand->ban : NULL, level, key);
    if (errand == NULL)
        return;
    errand->banned = ban;
    errand->base.req.left = left;
    if (!ban)
        errand->base.req.deadline_ns = TIERCE__DEADLINE_NEVER;
    submit_errand(errand);
}

void tierce__storage_drop(struct tierce_engine *engine, size_t level, const struct tierce__key *key,
                          enum tierce__tier_left left)
{
    TIERCE_DASSERT(left != TIERCE__LEFT_VERSION);
    drop(engine, level, key, TIERCE__STORE_DELETE, left, false);
}

void tierce__storage_quarantine(struct tierce_engine *engine, size_t level,
                                const struct tierce__key *key, int why)
{
    TIERCE_DASSERT(why < 0 && level < engine->level_count);
    bool sum = why == TIERCE_E_CHECKSUM;
    tierce__count(engine, sum ? TIERCE__STAT_checksum_failures : TIERCE__STAT_identity_failures, 1);
    tierce__log(TIERCE_LOG_ERROR, "chunk_out_of_service", "tier=%s reason=\"%s\"",
                engine->levels[level].tier->ops->name, tierce_strerror(why));
    /* A chunk of another version is valid for another build, which may still need it. */
    if (why == TIERCE_E_VERSION)
        drop(engine, level, key, TIERCE__STORE_HIDE, TIERCE__LEFT_VERSION, true);
    else
        drop(engine, level, key, TIERCE__STORE_DELETE,
             sum ? TIERCE__LEFT_CHECKSUM : TIERCE__LEFT_IDENTITY, true);
}
