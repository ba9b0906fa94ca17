/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storage manager: a waterfall of tiers under lookups, loads and stores. It knows the order of
 * the tiers and their breakers, and nothing of tokens or paged memory.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "engine/engine.h"
#include "engine/own_tiers.h"
#include "engine/observe/operate.h"
#include "engine/store/tails.h"
#include "store/await.h"

/* ---- requests through the breaker ---- */

static void apply_change(struct tierce_engine *engine, size_t index,
                         enum tierce__health_change change, int status)
{
    struct tierce__level *level = &engine->levels[index];
    TIERCE_DASSERT(index > 0 && index < TIERCE__TIERS_MAX);
    if (change == TIERCE__HEALTH_LOST) {
        tierce__fetches_abandon(engine, index);
        tierce__pool_tell_room(engine->pool); /* no store waits for its queue any more */
        tierce__count(engine, TIERCE__STAT_breaker_trips, 1);
        char why[TIERCE__TIER_WHY_BYTES] = "";
        if (level->tier->ops->why != NULL)
            level->tier->ops->why(level->tier, why);
        tierce__log(TIERCE_LOG_ERROR, "tier_out_of_service",
                    "tier=%s last_error=\"%s\" retry_ms=%u%s%s%s", level->tier->ops->name,
                    tierce_strerror(status), level->health.limits.retry_ms,
                    why[0] != '\0' ? " why=\"" : "", why, why[0] != '\0' ? "\"" : "");
    } else if (change == TIERCE__HEALTH_BACK) {
        tierce__count(engine, TIERCE__STAT_breaker_recoveries, 1);
        struct tierce__unsent_report unsent;
        char chunks[48] = "";
        tierce__unsent_report(level, &unsent);
        if (level->unsent.chunks != NULL)
            snprintf(chunks, sizeof(chunks), " unsent_chunks=%" PRIu64, unsent.waiting);
        tierce__log(TIERCE_LOG_WARN, "tier_in_service", "tier=%s%s", level->tier->ops->name,
                    chunks);
    }
}

static bool is_forgetting(const struct tierce__store_req *req)
{
    return req->op == TIERCE__STORE_CLEAR || req->op == TIERCE__STORE_DELETE;
}

void tierce__storage_note(struct tierce_engine *engine, size_t level,
                          const struct tierce__store_req *req)
{
    struct tierce__level *r = &engine->levels[level];
    TIERCE_DASSERT(level < TIERCE__TIERS_MAX);
    TIERCE_DASSERT(req->status <= 0);
    if (level == 0 || is_forgetting(req) || req->recalled)
        return;
    if (tierce__health_is_unanswered(&r->health, req))
        tierce__count(engine, TIERCE__STAT_lookups_unanswered, 1);
    else if (req->status == TIERCE_E_DEADLINE)
        tierce__count(engine, TIERCE__STAT_deadline_failures, 1);
    else if (tierce__health_is_fault(req->status) && req->status != TIERCE_E_DOWN)
        tierce__count(engine, TIERCE__STAT_device_failures, 1);
    apply_change(engine, level, tierce__health_note(&r->health, req), req->status);
}

bool tierce__storage_submit(struct tierce_engine *engine, size_t level,
                            struct tierce__store_req *req)
{
    struct tierce__level *r = &engine->levels[level];
    TIERCE_DASSERT(level < TIERCE__TIERS_MAX);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    /* Memory has no device that could fail, and a deletion does not use one. */
    bool pass = level == 0 || is_forgetting(req) || tierce__health_pass(&r->health, req);
    if (pass)
        r->tier->ops->submit(r->tier, req);
    return pass;
}

/* ---- one answer, waited for ---- */

struct storage_waiter {
    struct tierce__store_req req;
    struct tierce__await await;
};

static void note_answer(struct tierce__store_req *req)
{
    struct storage_waiter *w = req->arg;
    TIERCE_DASSERT(req == &w->req);
    (void)tierce__await_answer(&w->await);
}

static bool submit(struct tierce_engine *engine, size_t level, struct storage_waiter *w)
{
    TIERCE_DASSERT(level < engine->level_count);
    w->req.done = note_answer;
    w->req.arg = w;
    tierce__await_begin(&w->await);
    tierce__await_expect(&w->await);
    return tierce__storage_submit(engine, level, &w->req);
}

static int await_status(struct tierce_engine *engine, size_t level, struct storage_waiter *w,
                        bool is_asked)
{
    if (is_asked) {
        (void)tierce__await_end(&w->await, TIERCE__DEADLINE_NEVER);
        tierce__storage_note(engine, level, &w->req);
    } else {
        w->req.status = TIERCE_E_DOWN;
        w->req.found = 0;
    }
    TIERCE_DASSERT(w->req.status <= 0);
    return w->req.status;
}

/* Submits and waits. The tier answers by the request's deadline, so the wait is bounded by it. */
static int ask(struct tierce_engine *engine, size_t level, struct storage_waiter *w)
{
    return await_status(engine, level, w, submit(engine, level, w));
}

/* ---- interface for lookups, loads and stores ---- */

struct tierce__buf *tierce__storage_alloc(struct tierce_engine *engine, uint64_t bytes)
{
    struct tierce__tier *memory = engine->levels[0].tier;
    struct tierce__buf *buf = NULL;
    TIERCE_DASSERT(bytes > 0);
    /* Each round frees something or ends the loop, so it is bounded by the chunks in memory. */
    for (;;) {
        int rc = tierce__pool_alloc(engine->pool, &buf, bytes);
        if (rc == 0)
            return buf;
        if (rc != TIERCE_E_FULL || memory->ops->evict(memory, bytes) == 0)
            return NULL;
    }
}

/* The number of leading keys that a level holds, and in *status why the count ends there. */
static size_t ask_prefix(struct tierce_engine *engine, size_t level, const struct tierce__key *keys,
                         size_t count, struct tierce__store_req *with, int *status)
{
    TIERCE_DASSERT(level < engine->level_count);
    TIERCE_DASSERT(count > 0);
    if (!tierce__health_serves(&engine->levels[level].health)) {
        tierce__storage_try(engine, level, keys);
        *status = TIERCE_E_DOWN;
        return 0;
    }
    struct storage_waiter w = {.req = *with};
    w.req.op = TIERCE__STORE_LOOKUP;
    w.req.keys = keys;
    w.req.key_count = count;
    *status = ask(engine, level, &w);
    TIERCE_ASSERT(w.req.found <= count);
    return w.req.found;
}

size_t tierce__storage_recall(struct tierce_engine *engine, size_t level,
                              const struct tierce__key *keys, size_t count,
                              enum tierce__tier_recall recall, int *status)
{
    TIERCE_DASSERT(level > 0 && engine->levels[level].health.shared);
    struct tierce__store_req with = {.recall = recall};
    return ask_prefix(engine, level, keys, count, &with, status);
}

/* The first tier that is out of service, or level_count. */
static size_t find_left(const struct tierce_engine *engine)
{
    size_t level = 0;
    while (level < engine->level_count && tierce__health_serves(&engine->levels[level].health))
        level++;
    return level;
}

static bool finds_nothing(const struct tierce_engine *engine)
{
    return engine->settings.recompute_all && find_left(engine) < engine->level_count;
}

/* The part of a search that asks one level. */
static size_t search_level(struct tierce_engine *engine, struct tierce__search *part, size_t level,
                           const struct tierce__key *keys, size_t count)
{
    TIERCE_DASSERT((part->levels >> level & 1) != 0);
    struct tierce__store_req with = {.deadline_ns = part->deadline_ns};
    part->unasked = (struct tierce__unasked){.level = level};
    size_t found = ask_prefix(engine, level, keys, count, &with, &part->unasked.status);
    TIERCE_DASSERT(found <= count);
    if (part->places != NULL)
        memset(part->places, (int)level, found);
    return found;
}

/* The part of a search that asks a level, or all remote stores: these come last, and are asked
 * together. *level: where the next part begins. */
static size_t search_part(struct tierce_engine *engine, struct tierce__search *part, size_t *level,
                          const struct tierce__key *keys, size_t count)
{
    size_t first = *level;
    TIERCE_DASSERT(first < engine->level_count);
    TIERCE_DASSERT((part->levels >> first & 1) != 0 && count > 0);
    if (!engine->levels[first].health.shared || part->asks_anew) {
        *level = first + 1;
        return search_level(engine, part, first, keys, count);
    }
    *level = engine->level_count;
    part->levels &= ~((1u << first) - 1);
    return tierce__ask_stores(engine, part, keys, count);
}

/* The waterfall. search->unasked: of the level that could not be asked last for the first key that
 * is missing. */
size_t tierce__storage_search_until(struct tierce_engine *engine, struct tierce__search *search,
                                    const struct tierce__key *keys, size_t count)
{
    size_t at = 0, before,
           left = engine->settings.recompute_all ? find_left(engine) : engine->level_count;
    uint32_t levels = search->levels;
    search->unasked = (struct tierce__unasked){0};
    if (left < engine->level_count) {
        search->unasked = (struct tierce__unasked){.level = left, .status = TIERCE_E_DOWN};
        return 0;
    }
    do {
        /* A chunk may have left memory while later ones are still there: go down and up again. */
        before = at;
        for (size_t level = 0; level < engine->level_count && at < count;) {
            struct tierce__search part = *search;
            if ((levels & 1u << level) == 0) {
                level++;
                continue;
            }
            if (part.places != NULL)
                part.places += at;
            size_t found = search_part(engine, &part, &level, keys + at, count - at);
            TIERCE_DASSERT(found <= count - at);
            TIERCE_DASSERT(level <= engine->level_count);
            if (part.unasked.status < 0)
                search->unasked = part.unasked;
            else if (found > 0)
                search->unasked = (struct tierce__unasked){0};
            at += found;
        }
    } while ((levels & (levels - 1)) != 0 && at > before && at < count);
    TIERCE_DASSERT(at <= count);
    return at;
}

size_t tierce__storage_find(struct tierce_engine *engine, const struct tierce__key *keys,
                            size_t count, size_t level_limit, uint8_t *places)
{
    struct tierce__unasked unasked;
    TIERCE_DASSERT(level_limit <= engine->level_count);
    return tierce__storage_search(engine, (1u << level_limit) - 1, keys, count, places, &unasked);
}

size_t tierce__storage_search(struct tierce_engine *engine, uint32_t levels,
                              const struct tierce__key *keys, size_t count, uint8_t *places,
                              struct tierce__unasked *unasked)
{
    struct tierce__search search = {.levels = levels,
                                    .deadline_ns =
                                        tierce__deadline_in_ms(engine->settings.lookup_ms),
                                    .places = places};
    size_t found = tierce__storage_search_until(engine, &search, keys, count);
    *unasked = search.unasked;
    TIERCE_DASSERT(found <= count && unasked->status <= 0);
    return found;
}

size_t tierce__storage_find_durable(struct tierce_engine *engine, const struct tierce__key *keys,
                                    size_t count)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(engine->settings.lookup_ms);
    size_t most = 0;
    for (size_t level = 0; level < engine->level_count && count > 0; level++) {
        if ((engine->levels[level].tier->ops->caps & TIERCE__TIER_DURABLE) == 0)
            continue;
        struct tierce__store_req with = {.deadline_ns = deadline_ns, .durable = true};
        int status;
        size_t found = ask_prefix(engine, level, keys, count, &with, &status);
        most = found > most ? found : most;
    }
    TIERCE_DASSERT(most <= count);
    return most;
}

size_t tierce__storage_siblings(struct tierce_engine *engine, size_t level,
                                struct tierce__sibling *siblings, const struct tierce__key *first,
                                uint64_t deadline_ns)
{
    TIERCE_DASSERT(level < engine->level_count);
    if (finds_nothing(engine) || !tierce__health_serves(&engine->levels[level].health))
        return 0;
    struct storage_waiter w = {.req = {.op = TIERCE__STORE_SIBLINGS,
                                       .deadline_ns = deadline_ns,
                                       .keys = first,
                                       .key_count = 1,
                                       .siblings = siblings}};
    if (ask(engine, level, &w) < 0)
        return 0;
    TIERCE_ASSERT(w.req.found <= TIERCE__SIBLINGS_MAX);
    return w.req.found;
}

int tierce__storage_measure(struct tierce_engine *engine, size_t level,
                            const struct tierce__key *key, uint64_t deadline_ns,
                            struct tierce__storage_form *out)
{
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    TIERCE_DASSERT(!engine->levels[level].health.shared);
    struct storage_waiter w = {
        .req = {
            .op = TIERCE__STORE_LOOKUP, .deadline_ns = deadline_ns, .keys = key, .key_count = 1}};
    int rc = ask(engine, level, &w);
    if (rc == 0 && w.req.found == 0)
        rc = TIERCE_E_MISS;
    if (rc == 0)
        *out = (struct tierce__storage_form){w.req.object_bytes, w.req.coded_bytes, w.req.stored};
    TIERCE_DASSERT(rc < 0 || out->bytes > 0);
    return rc;
}

bool tierce__storage_has(struct tierce_engine *engine, const struct tierce__key *key)
{
    return tierce__storage_find(engine, key, 1, engine->level_count, NULL) == 1;
}

struct tierce__buf *tierce__storage_lease(struct tierce_engine *engine,
                                          const struct tierce__key *key)
{
    struct storage_waiter w = {.req = {.op = TIERCE__STORE_GET,
                                       .deadline_ns = TIERCE__DEADLINE_NEVER,
                                       .keys = key,
                                       .key_count = 1}};
    return ask(engine, 0, &w) == 0 ? w.req.buf : NULL;
}

struct tierce__buf *tierce__storage_lend(struct tierce_engine *engine,
                                         const struct tierce__key *key)
{
    struct tierce__buf *buf = NULL;
    struct storage_waiter w = {.req = {.op = TIERCE__STORE_LOOKUP,
                                       .deadline_ns = TIERCE__DEADLINE_NEVER,
                                       .keys = key,
                                       .key_count = 1,
                                       .bufs = &buf,
                                       .length = UINT64_MAX}};
    return ask(engine, 0, &w) == 0 && w.req.lent == 1 ? buf : NULL;
}

size_t tierce__storage_lease_prefix(struct tierce_engine *engine, const struct tierce__key *keys,
                                    size_t count, struct tierce__buf **bufs, uint64_t bytes,
                                    size_t *leased)
{
    *leased = 0;
    struct storage_waiter w = {.req = {.op = TIERCE__STORE_LOOKUP,
                                       .deadline_ns = TIERCE__DEADLINE_NEVER,
                                       .keys = keys,
                                       .key_count = count,
                                       .bufs = bufs,
                                       .length = bytes}};
    if (finds_nothing(engine) || ask(engine, 0, &w) < 0)
        return 0;
    TIERCE_ASSERT(w.req.lent <= w.req.found && w.req.found <= count);
    TIERCE_DASSERT(w.req.found == 0 || w.req.status == 0);
    *leased = w.req.lent;
    return w.req.found;
}

void tierce__storage_stats(struct tierce__level *level, struct tierce__tier_stats *out)
{
    level->tier->ops->stats(level->tier, out);
    tierce__lock_take(&level->engine->lock);
    out->dropped_puts += level->dropped_puts;
    tierce__lock_drop(&level->engine->lock);
}

uint64_t tierce__storage_slots(struct tierce_engine *engine)
{
    struct tierce__tier *memory = engine->levels[0].tier;
    struct tierce__tier_stats stats;
    memory->ops->stats(memory, &stats);
    TIERCE_DASSERT(stats.slots > 0);
    return stats.slots;
}

bool tierce__storage_lacks_slot(struct tierce_engine *engine, uint64_t bytes)
{
    struct tierce__tier *memory = engine->levels[0].tier;
    struct tierce__tier_stats stats;
    struct tierce__pool_stats pool;
    memory->ops->stats(memory, &stats);
    tierce__pool_stats(engine->pool, &pool);
    TIERCE_DASSERT(stats.slots > 0 && pool.used_bytes <= pool.cap_bytes);
    return stats.used_slots >= stats.slots && bytes <= pool.cap_bytes - pool.used_bytes;
}

struct tierce__buf *tierce__storage_reserve_worthy(struct tierce_engine *engine,
                                                   const struct tierce__storage_chunk *chunk,
                                                   const struct tierce__buf *before, bool *refused)
{
    struct tierce__tier *memory = engine->levels[0].tier;
    TIERCE_DASSERT(chunk->object_bytes > 0);
    TIERCE_DASSERT(chunk->block_count > 0);
    return memory->ops->reserve(
        memory, &(struct tierce__reserve){.key = &chunk->key,
                                          .parent = chunk->has_parent ? &chunk->parent : NULL,
                                          .before = before,
                                          .bytes = chunk->object_bytes,
                                          .origin = chunk->origin,
                                          .keeps_prefixes = engine->level_count == 1,
                                          .refused = refused,
                                          .follows_refused = refused != NULL && *refused});
}

struct tierce__buf *tierce__storage_reserve(struct tierce_engine *engine,
                                            const struct tierce__storage_chunk *chunk,
                                            const struct tierce__buf *before)
{
    return tierce__storage_reserve_worthy(engine, chunk, before, NULL);
}

void tierce__storage_fill_put(struct tierce__store_req *req,
                              const struct tierce__storage_chunk *chunk, struct tierce__buf *buf)
{
    TIERCE_DASSERT(chunk->object_bytes <= buf->bytes);
    TIERCE_DASSERT(chunk->object_bytes > 0 && chunk->block_count > 0);
    req->op = TIERCE__STORE_PUT;
    req->deadline_ns = TIERCE__DEADLINE_NEVER;
    req->keys = &chunk->key;
    req->key_count = 1;
    req->buf = buf;
    req->parent = chunk->has_parent ? &chunk->parent : NULL;
    req->first_block = chunk->first_block;
    req->object_bytes = chunk->object_bytes;
    req->token_start = chunk->token_start;
    req->block_count = chunk->block_count;
    req->origin = chunk->origin;
}

int tierce__storage_publish(struct tierce_engine *engine, const struct tierce__storage_chunk *chunk,
                            struct tierce__buf *buf)
{
    struct storage_waiter w = {0};
    tierce__storage_fill_put(&w.req, chunk, buf);
    int rc = ask(engine, 0, &w);
    TIERCE_DASSERT(w.req.found <= 1);
    if (rc == 0 && w.req.found > 0)
        return 1;
    if (rc == 0)
        tierce__tails_end(engine, chunk, buf);
    return rc;
}

int tierce__storage_replace(struct tierce_engine *engine, const struct tierce__storage_chunk *chunk,
                            struct tierce__buf *buf)
{
    TIERCE_DASSERT(!chunk->has_parent);
    struct storage_waiter w = {0};
    tierce__storage_fill_put(&w.req, chunk, buf);
    w.req.replaces = true;
    return ask(engine, 0, &w);
}

int tierce__storage_recode(struct tierce_engine *engine, size_t level,
                           const struct tierce__storage_chunk *chunk, struct tierce__buf *buf,
                           uint64_t coded_bytes)
{
    struct storage_waiter w = {0};
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    tierce__storage_fill_put(&w.req, chunk, buf);
    w.req.recodes = true;
    w.req.coded_bytes = coded_bytes;
    return ask(engine, level, &w);
}

int tierce__storage_put(struct tierce_engine *engine, size_t level, uint64_t era,
                        const struct tierce__storage_chunk *chunk, struct tierce__buf *buf)
{
    struct storage_waiter w = {0};
    TIERCE_DASSERT(level < engine->level_count);
    TIERCE_DASSERT(level > 0);
    tierce__storage_fill_put(&w.req, chunk, buf);
    if (!tierce__era_enter(engine, era))
        return TIERCE_E_CANCELLED;
    bool is_asked = submit(engine, level, &w);
    tierce__era_leave(engine, era); /* a clear that comes now cancels the put */
    return await_status(engine, level, &w, is_asked);
}

void tierce__storage_touch(struct tierce_engine *engine, size_t first, size_t levels,
                           const struct tierce__tier_uses *uses)
{
    TIERCE_DASSERT(first <= levels && levels <= engine->level_count);
    TIERCE_DASSERT(uses->used <= uses->count);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    for (size_t level = first; level < levels; level++) {
        struct tierce__tier *tier = engine->levels[level].tier;
        tier->ops->touch(tier, uses);
    }
}

/* ---- clear and flush ---- */

void tierce__storage_delete(struct tierce_engine *engine, size_t level,
                            const struct tierce__key *key)
{
    TIERCE_DASSERT(level < engine->level_count);
    struct storage_waiter w = {
        .req = {.op = TIERCE__STORE_DELETE,
                .deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms),
                .keys = key,
                .key_count = 1,
                .left = TIERCE__LEFT_DELETED}};
    (void)ask(engine, level, &w);
}

static int flush(struct tierce_engine *engine, size_t level, uint64_t deadline_ns, bool removals)
{
    TIERCE_DASSERT(level < engine->level_count);
    if ((engine->levels[level].tier->ops->caps & TIERCE__TIER_DURABLE) == 0)
        return 0;
    struct storage_waiter w = {
        .req = {.op = TIERCE__STORE_FLUSH, .deadline_ns = deadline_ns, .removals = removals}};
    return ask(engine, level, &w);
}

int tierce__storage_settle(struct tierce_engine *engine, size_t level, uint64_t deadline_ns)
{
    return flush(engine, level, deadline_ns, true);
}

bool tierce__storage_may_return(struct tierce_engine *engine, size_t level,
                                const struct tierce__key *key, uint64_t deadline_ns)
{
    TIERCE_DASSERT(level < engine->level_count);
    struct storage_waiter w = {.req = {.op = TIERCE__STORE_DELETE,
                                       .deadline_ns = deadline_ns,
                                       .keys = key,
                                       .key_count = 1,
                                       .only_asks = true}};
    return (engine->levels[level].tier->ops->caps & TIERCE__TIER_DURABLE) != 0 &&
           (ask(engine, level, &w) < 0 || w.req.found > 0);
}

int tierce__storage_remove_unsynced(struct tierce_engine *engine, size_t level,
                                    const struct tierce__key *key, uint64_t deadline_ns,
                                    bool *unsettled)
{
    TIERCE_DASSERT(level < engine->level_count);
    struct storage_waiter w = {.req = {.op = TIERCE__STORE_DELETE,
                                       .deadline_ns = deadline_ns,
                                       .keys = key,
                                       .key_count = 1,
                                       .left = TIERCE__LEFT_DELETED}};
    int rc = ask(engine, level, &w);
    if (rc < 0 && rc != TIERCE_E_MISS)
        return rc;
    *unsettled |= w.req.found > 0;
    return rc == 0;
}

int tierce__storage_remove(struct tierce_engine *engine, size_t level,
                           const struct tierce__key *key, uint64_t deadline_ns)
{
    bool unsettled = false;
    int rc = tierce__storage_remove_unsynced(engine, level, key, deadline_ns, &unsettled);
    bool is_durable = (engine->levels[level].tier->ops->caps & TIERCE__TIER_DURABLE) != 0;
    int settled =
        rc >= 0 && unsettled && is_durable ? tierce__storage_settle(engine, level, deadline_ns) : 0;
    TIERCE_DASSERT(rc <= 1);
    return settled < 0 ? settled : rc;
}

int tierce__storage_read_head(struct tierce_engine *engine, size_t level,
                              const struct tierce__key *key, struct tierce__buf *buf,
                              uint64_t deadline_ns)
{
    TIERCE_DASSERT(level > 0 && level < engine->level_count);
    struct storage_waiter w = {.req = {.op = TIERCE__STORE_GET,
                                       .deadline_ns = deadline_ns,
                                       .keys = key,
                                       .key_count = 1,
                                       .buf = buf,
                                       .length = buf->bytes}};
    return ask(engine, level, &w);
}

int64_t tierce__storage_forget(struct tierce_engine *engine, size_t level,
                               const struct tierce__key *of)
{
    TIERCE_DASSERT(level < engine->level_count);
    struct storage_waiter w = {
        .req = {.op = TIERCE__STORE_CLEAR,
                .deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms),
                .keys = of,
                .key_count = of != NULL}};
    int rc = ask(engine, level, &w);
    return rc < 0 ? rc : (int64_t)w.req.found;
}

int tierce__storage_end_puts(struct tierce_engine *engine, size_t level,
                             const struct tierce__key *of)
{
    TIERCE_DASSERT(engine->levels[level].health.shared && of != NULL);
    struct storage_waiter w = {
        .req = {.op = TIERCE__STORE_CLEAR,
                .deadline_ns = tierce__deadline_in_ms(engine->settings.load_ms),
                .keys = of,
                .key_count = 1,
                .only_puts = true}};
    return ask(engine, level, &w);
}

int tierce_engine_flush(struct tierce_engine *engine, uint32_t timeout_ms)
{
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    return engine->lender->flush(engine, timeout_ms);
}

int tierce__own_flush(struct tierce_engine *engine, uint32_t timeout_ms)
{
    TIERCE_DASSERT(engine->level_count > 0);
    uint64_t deadline_ns = tierce__deadline_in_ms(timeout_ms);
    int first = tierce__storage_wait_for_puts(engine, deadline_ns);
    if (first == TIERCE_E_DEADLINE && tierce__now_ns() >= deadline_ns)
        return first;
    int late = tierce__unsent_wait(engine, deadline_ns);
    first = first == 0 ? late : first;
    for (size_t level = 1; level < engine->level_count; level++) {
        int rc = flush(engine, level, deadline_ns, false);
        first = first == 0 ? rc : first;
    }
    TIERCE_DASSERT(first <= 0);
    return first;
}
