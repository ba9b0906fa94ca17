/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/why/why.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "core/key/namespace.h"
#include "engine/why/departures.h"
#include "engine/observe/operate.h"
#include "engine/load/sibling.h"
#include "engine/own_tiers.h"
#include "engine/run.h"

/* A search for a twin queries at most this many other namespaces, the newest first. Each query is a
 * lookup of one key; all of them take up to 3 us. */
#define TWINS_MAX 16u

static const struct {
    const char *name, *words;
    enum tierce__stat counter;
} rows[] = {
    {"none", "nothing is missing", TIERCE__STAT_COUNT},
#define TIERCE_MISS(id, name, words) {#name, words, TIERCE__STAT_misses_##name},
#include <tierce/misses.def>
#undef TIERCE_MISS
};

const char *tierce_miss_name(enum tierce_miss_reason reason)
{
    return rows[reason < TIERCE_MISS_COUNT ? reason : 0].name;
}

const char *tierce_miss_text(enum tierce_miss_reason reason)
{
    return rows[reason < TIERCE_MISS_COUNT ? reason : 0].words;
}

/* ---- recording ---- */

enum tierce_miss_reason tierce__why_left(enum tierce__tier_left left)
{
    switch (left) {
    case TIERCE__LEFT_DELETED:
    case TIERCE__LEFT_SUPERSEDED:
        return TIERCE_MISS_DELETED;
    case TIERCE__LEFT_EVICTED:
    case TIERCE__LEFT_NO_SLOT:
        return TIERCE_MISS_EVICTED;
    case TIERCE__LEFT_EXPIRED:
        return TIERCE_MISS_EXPIRED;
    case TIERCE__LEFT_CLEARED:
        return TIERCE_MISS_CLEARED;
    case TIERCE__LEFT_LOST:
        return TIERCE_MISS_LOST;
    case TIERCE__LEFT_CHECKSUM:
        return TIERCE_MISS_CHECKSUM;
    case TIERCE__LEFT_IDENTITY:
        return TIERCE_MISS_IDENTITY;
    case TIERCE__LEFT_VERSION:
        return TIERCE_MISS_VERSION;
    case TIERCE__LEFT_NO_KEY:
        return TIERCE_MISS_NO_KEY;
    }
    return TIERCE_MISS_DELETED;
}

static void note(struct tierce_engine *engine, size_t level, const struct tierce__key *key,
                 enum tierce_miss_reason reason, int status)
{
    TIERCE_DASSERT(level < TIERCE__TIERS_MAX && reason != TIERCE_MISS_NONE);
    struct tierce__departure departure = {.when_s = (uint32_t)tierce__wall_s(),
                                          .status = (int16_t)status,
                                          .level = (uint8_t)level,
                                          .reason = (uint8_t)reason};
    tierce__departures_note(engine->departures, tierce__key_spread(key), &departure);
}

void tierce__why_note(struct tierce_engine *engine, size_t level,
                      const struct tierce__tier_event *event)
{
    TIERCE_DASSERT(level < TIERCE__TIERS_MAX);
    /* A tail that a longer chunk has replaced is not missing while that chunk exists, and a tail
     * that was never stored is not a miss. */
    if (event->admitted || event->left == TIERCE__LEFT_SUPERSEDED)
        tierce__departures_forget(engine->departures, tierce__key_spread(event->key));
    else
        note(engine, level, event->key, tierce__why_left(event->left),
             event->left == TIERCE__LEFT_NO_SLOT ? TIERCE_E_SLOTS : 0);
}

void tierce__why_refused(struct tierce_engine *engine, size_t level, const struct tierce__key *key,
                         int status)
{
    TIERCE_DASSERT(status < 0);
    if (status == TIERCE_E_CLOSED)
        return;
    bool cleared = status == TIERCE_E_CANCELLED;
    note(engine, level, key, cleared ? TIERCE_MISS_CLEARED : TIERCE_MISS_NOT_WRITTEN,
         cleared ? 0 : status);
}

/* ---- explaining ---- */

void tierce__why_prefetch(const struct tierce_engine *engine, const struct tierce__key *key)
{
    tierce__departures_prefetch(engine->departures, tierce__key_spread(key));
}

static void tell_departure(struct tierce_engine *engine, const struct tierce__departure *departure,
                           struct tierce_miss *out)
{
    TIERCE_DASSERT(departure->level < engine->level_count);
    TIERCE_DASSERT(departure->reason > TIERCE_MISS_NONE && departure->reason < TIERCE_MISS_COUNT);
    const struct tierce__level *level = &engine->levels[departure->level];
    out->reason = departure->reason;
    out->tier = level->tier->ops->name;
    out->when_s = departure->when_s;
    out->status = departure->status;
    if (out->reason == TIERCE_MISS_EVICTED || out->reason == TIERCE_MISS_EXPIRED)
        out->policy = level->policy;
}

bool tierce__why_departed(struct tierce_engine *engine, const uint8_t *hash,
                          struct tierce_miss *out)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}};
    struct tierce__departure last;
    memcpy(key.hash, hash, sizeof(key.hash));
    for (uint32_t id = tierce__namespaces_count(engine->namespaces); id-- > 0;) {
        key.ns = id;
        if (tierce__departures_find(engine->departures, tierce__key_spread(&key), &last)) {
            tell_departure(engine, &last, out);
            return true;
        }
    }
    return false;
}

void tierce__why_twin(struct tierce_miss *out, struct tierce__namespaces *namespaces, uint32_t ns)
{
    TIERCE_DASSERT(ns < tierce__namespaces_count(namespaces));
    out->reason = TIERCE_MISS_NAMESPACE;
    out->twin = tierce__namespaces_text(namespaces, ns);
    memcpy(out->twin_digest, tierce__namespaces_digest(namespaces, ns), TIERCE_HASH_BYTES);
}

/* Whether two namespaces are groups of one model: their chunks have the same hashes. */
static bool is_other_group(struct tierce_engine *engine, uint32_t ns, uint32_t other)
{
    const char *text = tierce__namespaces_text(engine->namespaces, ns);
    const char *twin = tierce__namespaces_text(engine->namespaces, other);
    return tierce__namespace_other_group(text, twin);
}

/* Whether another namespace has the chunk, and which. */
static bool find_twin(struct tierce_engine *engine, const struct tierce__key *key, uint32_t *ns)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(engine->settings.lookup_ms);
    uint32_t tried = 0, id = tierce__namespaces_count(engine->namespaces);
    struct tierce__key twin = *key;
    TIERCE_DASSERT(key->ns < id);
    while (id-- > 0 && tried < TWINS_MAX) {
        if (id == key->ns)
            continue;
        twin.ns = *ns = id;
        if (tierce__storage_has(engine, &twin) && !is_other_group(engine, key->ns, id))
            return true;
        if (tierce__now_ns() > deadline_ns)
            break;
        tried++;
    }
    return false;
}

/*
 * A tier that could not be queried may hold the chunk, unless the chunk was last removed from that
 * tier.
 */
static void tell_reason(struct tierce_engine *engine, const struct tierce__key *key,
                        bool with_twins, const struct tierce__unasked *unasked,
                        struct tierce_miss *out)
{
    struct tierce__departure last;
    uint32_t ns;
    TIERCE_DASSERT(unasked->status >= 0 || unasked->level < engine->level_count);
    bool left = tierce__departures_find(engine->departures, tierce__key_spread(key), &last);
    if (unasked->status < 0 && !(left && last.level == unasked->level)) {
        bool late = unasked->status == TIERCE_E_DEADLINE;
        out->reason = late ? TIERCE_MISS_DEADLINE : TIERCE_MISS_TIER_DOWN;
        out->tier = engine->levels[unasked->level].tier->ops->name;
        out->status = unasked->status;
    } else if (left) {
        tell_departure(engine, &last, out);
    } else if (with_twins && find_twin(engine, key, &ns)) {
        tierce__why_twin(out, engine->namespaces, ns);
    } else {
        out->reason = TIERCE_MISS_NEVER_STORED;
    }
    TIERCE_DASSERT(out->reason > TIERCE_MISS_NONE && out->reason < TIERCE_MISS_COUNT);
}

void tierce__why_count(struct tierce_engine *engine, enum tierce_miss_reason reason)
{
    TIERCE_DASSERT(reason > TIERCE_MISS_NONE && reason < TIERCE_MISS_COUNT);
    tierce__count(engine, rows[reason].counter, 1);
}

void tierce__why_missing(struct tierce_engine *engine, const struct tierce__keys *keys,
                         size_t index, const struct tierce__unasked *unasked,
                         struct tierce_miss *out)
{
    TIERCE_DASSERT(index < keys->count && out->reason == TIERCE_MISS_NONE);
    tell_reason(engine, &keys->keys[index], index == 0, unasked, out);
    memcpy(out->hash, keys->keys[index].hash, TIERCE_HASH_BYTES);
    if (index < keys->full_count || out->reason != TIERCE_MISS_NEVER_STORED)
        tierce__why_count(engine, out->reason);
}

void tierce__why_not_in_memory(struct tierce_engine *engine, const struct tierce__keys *keys,
                               size_t index, struct tierce_miss *out)
{
    struct tierce__unasked none = {0};
    TIERCE_DASSERT(index < keys->count && out->reason == TIERCE_MISS_NONE);
    tell_reason(engine, &keys->keys[index], false, &none, out);
    memcpy(out->hash, keys->keys[index].hash, TIERCE_HASH_BYTES);
}

static void tell_missing(const struct tierce_view *view, const struct tierce__keys *keys,
                         size_t missing, enum tierce_miss_reason reason, struct tierce_miss *out)
{
    TIERCE_DASSERT(missing < keys->count);
    TIERCE_DASSERT(reason != TIERCE_MISS_NONE);
    out->reason = reason;
    out->block = (uint64_t)missing * view->chunk_blocks;
    memcpy(out->hash, keys->keys[missing].hash, TIERCE_HASH_BYTES);
}

/* The first chunk that a lookup would not promise; NOT_WORTH_LOADING if it is stored. */
static int find_missing(struct tierce_view *view, const struct tierce__keys *keys, size_t first,
                        bool with_cost, struct tierce_miss *out)
{
    struct tierce__unasked unasked;
    size_t count = keys->count - first;
    TIERCE_DASSERT(first < keys->count);
    uint8_t *places = tierce__alloc(count);
    if (places == NULL)
        return -ENOMEM;
    size_t there = tierce__storage_search(view->engine, tierce__levels_of(view->engine, 0),
                                          keys->keys + first, count, places, &unasked);
    size_t worth = with_cost ? tierce__cost_limit(view, places, there) : there;
    TIERCE_DASSERT(worth <= there && there <= count);
    tierce__free(places);
    size_t missing = first + worth;
    if (worth < there)
        out->reason = TIERCE_MISS_NOT_WORTH_LOADING;
    else if (missing < keys->count)
        tell_reason(view->engine, &keys->keys[missing], true, &unasked, out);
    if (missing >= keys->full_count && out->reason == TIERCE_MISS_NEVER_STORED)
        out->reason = TIERCE_MISS_NONE;
    if (out->reason != TIERCE_MISS_NONE)
        tell_missing(view, keys, missing, out->reason, out);
    return 0;
}

/* The same for a sparse group, which requires only the chunks from tierce_view_needs on. */
static void find_missing_in_run(struct tierce_view *view, const struct tierce__keys *keys,
                                const struct tierce__why_what *what, uint64_t to_block,
                                struct tierce__why_found *out)
{
    struct tierce__run_search search = {
        .keys = keys,
        .from_block = what->from_block,
        .to_block = to_block,
        .levels = tierce__levels_of(view->engine, 0),
        .deadline_ns = tierce__deadline_in_ms(view->engine->settings.lookup_ms)};
    struct tierce__run run = tierce__run_search(view, &search);
    out->held = run.blocks > what->from_block ? run.blocks : what->from_block;
    if (search.missing == keys->count)
        return;
    tell_reason(view->engine, &keys->keys[search.missing], true, &search.unasked, &out->miss);
    uint64_t full_blocks = (uint64_t)keys->full_count * view->chunk_blocks;
    if (to_block > full_blocks && search.missing >= keys->full_count &&
        out->miss.reason == TIERCE_MISS_NEVER_STORED) {
        out->miss.reason = TIERCE_MISS_NONE; /* tails are stored only on request */
        find_missing_in_run(view, keys, what, full_blocks, out);
        return;
    }
    tell_missing(view, keys, search.missing, out->miss.reason, &out->miss);
}

/* Skips the blocks of the missing chunk that another chunk holds, as a lookup does. */
static void pass_over_sibling(struct tierce_view *view, const struct tierce_chain *chain,
                              const struct tierce__why_what *what, struct tierce_miss *out)
{
    TIERCE_DASSERT(out->reason != TIERCE_MISS_NONE && out->block % view->chunk_blocks == 0);
    struct tierce__sibling_want want;
    struct tierce__sibling_hit hit;
    tierce__sibling_aim(&want, view, chain, (size_t)out->block / view->chunk_blocks,
                        what->from_block, what->to_block);
    tierce__sibling_find(view, &hit, &want);
    tierce__buf_release(hit.buf);
    if (tierce__sibling_pays(view, &hit, &want))
        out->block += hit.blocks;
    if (out->block >= what->to_block)
        *out = (struct tierce_miss){.size = out->size};
}

static int find_missing_in_prefix(struct tierce_view *view, const struct tierce_chain *chain,
                                  const struct tierce__keys *keys,
                                  const struct tierce__why_what *what,
                                  struct tierce__why_found *out)
{
    size_t first = (size_t)what->from_block / view->chunk_blocks;
    int rc = find_missing(view, keys, first, what->whole_view, &out->miss);
    bool is_missing =
        out->miss.reason != TIERCE_MISS_NONE && out->miss.reason != TIERCE_MISS_NOT_WORTH_LOADING;
    /* Only a whole view can search for siblings: it compares their headers with its own identity,
     * and removes wrong ones. */
    if (rc == 0 && is_missing && what->whole_view)
        pass_over_sibling(view, chain, what, &out->miss);
    if (out->miss.reason != TIERCE_MISS_NONE)
        out->held = out->miss.block;
    return rc;
}

int tierce__why_chain(struct tierce_view *view, const struct tierce_chain *chain,
                      const struct tierce__why_what *what, struct tierce__why_found *out)
{
    TIERCE_DASSERT(out->miss.reason == TIERCE_MISS_NONE);
    struct tierce__keys keys;
    int rc =
        tierce__keys_init(&keys, view, chain, what->to_block, tierce_chain_blocks(chain), true);
    if (rc < 0)
        return rc;
    size_t first = (size_t)what->from_block / view->chunk_blocks;
    out->held = what->to_block;
    if (first < keys.count && tierce__engine_mode(view->engine) == TIERCE_MODE_BYPASS) {
        tell_missing(view, &keys, first, TIERCE_MISS_BYPASSED, &out->miss);
        out->held = out->miss.block;
    } else if (first < keys.count && tierce__view_is_sparse(view)) {
        find_missing_in_run(view, &keys, what, what->to_block, out);
    } else if (first < keys.count) {
        rc = find_missing_in_prefix(view, chain, &keys, what, out);
    }
    TIERCE_DASSERT(rc < 0 || out->held <= what->to_block);
    tierce__keys_fini(&keys);
    return rc;
}

int tierce_why(struct tierce_view *view, const struct tierce_chain *chain, uint64_t from_block,
               uint64_t to_block, struct tierce_miss *out)
{
    TIERCE_CHECK_MAGIC(view, TIERCE__VIEW_MAGIC);
    if (out->size != sizeof(*out))
        return TIERCE_E_ARGUMENT;
    *out = (struct tierce_miss){.size = sizeof(*out)};
    if (tierce__engine_inherited(view->engine))
        return TIERCE_E_CLOSED;
    if (view->engine->level_count == 0)
        return TIERCE_E_UNSUPPORTED;
    struct tierce__why_what what = {from_block, to_block, true};
    struct tierce__why_found found = {.miss = *out};
    int rc = tierce__why_chain(view, chain, &what, &found);
    *out = found.miss;
    return rc;
}
