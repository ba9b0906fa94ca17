/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records in Redis or Valkey, in KVCM's layout with our own keys and fields beside it
 * (docs/inside/format/meta.md): this manager reads KVCM's records, and KVCM reads ours.
 *
 * URI: as resp_uri.h says, and
 *   touch_ms=N   how long touches are kept back (default 10000)
 * With one server, or a primary with replicas behind one address, a batch is one script, which
 * looks at the fencing token first. A batch without an answer may have been applied; it is not sent
 * again. Reads are sent again once. For a cluster see meta_redis_cluster.c.
 */
#include "manager/meta/redis/meta_redis_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log_repeat.h"
#include "net/redis/resp_uri.h"

enum {
    GET_KEYS = 512, /* of one pipeline */
    DRAWS = 256,    /* and keys that are drawn */
    TOUCHES = 500,  /* of one script */
    DROPPED = 1000, /* records of one script */
};

#define FENCE_KEY "kvcache:tierce:fence"

static struct tierce__redis *redis_of(struct tierce__meta_store *store)
{
    TIERCE_DASSERT(store->ops == &tierce__meta_redis);
    return (struct tierce__redis *)store;
}

static struct tierce__redis_space *space_of(struct tierce__meta_space *space)
{
    TIERCE_DASSERT(space->ops == &tierce__meta_redis);
    return (struct tierce__redis_space *)space;
}

/* ---- stores --------------------------------------------------------------------------------- */

static void flush_touches(void *arg, const struct tierce__touch *touches, size_t count);

static void redis_close(struct tierce__meta_store *base)
{
    if (base == NULL)
        return;
    struct tierce__redis *redis = redis_of(base);
    tierce__touches_stop(redis->touches);
    tierce__resp_pool_destroy(redis->pool);
    for (struct tierce__redis_keys *keys = redis->keys, *next; keys != NULL; keys = next) {
        next = keys->next;
        tierce__arena_destroy(tierce__arena_of(keys));
    }
    tierce__lock_fini(&redis->lock);
    tierce__free(redis);
}

static int open_parts(struct tierce__redis *redis, const struct tierce__resp_uri *uri,
                      char why[256])
{
    const struct tierce__url_number number = {"touch_ms", TIERCE__URL_COUNT, 1,
                                              TIERCE__TOUCHES_MS_MAX};
    uint64_t touch_ms = TIERCE__TOUCHES_MS_DEFAULT;
    redis->is_cluster = uri->is_cluster;
    int rc = tierce__url_param_number(&uri->url, &touch_ms, &number, why);
    if (rc == 0)
        rc = tierce__resp_pool_create(&redis->pool, uri, why);
    if (rc == 0)
        rc = tierce__redis_load_scripts(redis, why);
    if (rc == 0)
        rc = tierce__touches_start(&redis->touches, (uint32_t)touch_ms, flush_touches, redis);
    return rc;
}

static int redis_open(struct tierce__meta_store **out, const char *text, char why[256])
{
    struct tierce__resp_uri uri = {0};
    int rc = tierce__resp_uri_parse(&uri, text, why);
    if (rc < 0)
        return rc;
    struct tierce__redis *redis = tierce__calloc(1, sizeof(*redis));
    if (redis == NULL) {
        tierce__resp_uri_clear(&uri);
        return -ENOMEM;
    }
    redis->base.ops = &tierce__meta_redis;
    tierce__lock_init(&redis->lock, TIERCE__LOCK_META_SPACES);
    rc = open_parts(redis, &uri, why);
    tierce__resp_uri_clear(&uri);
    if (rc < 0)
        redis_close(&redis->base);
    else
        *out = &redis->base;
    return rc;
}

int tierce__redis_raise_fence(struct tierce__redis *redis)
{
    static const char *const keys[] = {FENCE_KEY};
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, redis->pool);
    tierce__redis_script(redis, &batch, TIERCE__REDIS_FENCE, keys, 1);
    return tierce__redis_do(&batch);
}

static int redis_fence(struct tierce__meta_store *base, uint64_t token)
{
    struct tierce__redis *redis = redis_of(base);
    tierce__lock_take(&redis->lock);
    if (token > 0)
        snprintf(redis->token, sizeof(redis->token), "%020" PRIu64, token);
    else
        redis->token[0] = '\0';
    TIERCE_DASSERT(token == 0 || strlen(redis->token) == TIERCE__REDIS_TOKEN_BYTES);
    tierce__lock_drop(&redis->lock);
    atomic_fetch_add_explicit(&redis->fences, 1, memory_order_release); /* as settle reads it */
    return tierce__redis_raise_fence(redis);
}

/* ---- spaces --------------------------------------------------------------------------------- */

/* Makes the names of a space; NULL: no memory. In a cluster our own keys have a tag that puts them
 * into the slot of the metadata. */
static struct tierce__redis_keys *make_keys(uint32_t number, const char *id, bool is_cluster)
{
    enum { NAME_BYTES = 1024 };
    struct tierce__arena *arena = tierce__arena_create(NAME_BYTES, 0);
    if (arena == NULL)
        return NULL;
    struct tierce__resp_pipeline texts = {.arena = arena};
    struct tierce__redis_keys *keys = tierce__arena_calloc(arena, 1, sizeof(*keys));
    if (keys == NULL) {
        tierce__arena_destroy(arena);
        return NULL;
    }
    keys->number = number;
    keys->data = tierce__resp_pipeline_textf(&texts, "kvcache:instance_%s:cache_", id);
    keys->metadata = tierce__resp_pipeline_textf(&texts, "kvcache:instance_%s:metadata", id);
    const char *own = tierce__resp_pipeline_textf(&texts, "kvcache:instance_%s:tierce", id);
    if (is_cluster)
        own = tierce__resp_pipeline_textf(
            &texts, "kvcache:tierce:{%" PRIu32 "}:instance_%s",
            tierce__resp_slot_tag(tierce__resp_slot(keys->metadata, strlen(keys->metadata))), id);
    keys->keys = tierce__resp_pipeline_textf(&texts, "%s:keys", own);
    keys->notes = tierce__resp_pipeline_textf(&texts, "%s:notes:", own);
    keys->journal = tierce__resp_pipeline_textf(&texts, "%s:journal", own);
    keys->guard = tierce__resp_pipeline_textf(&texts, ":instance_%s:guard", id);
    if (texts.rc == 0)
        return keys;
    tierce__arena_destroy(arena);
    return NULL;
}

/* NULL: none yet. The lock is held. */
static struct tierce__redis_keys *keys_numbered(struct tierce__redis *redis, uint32_t number)
{
    tierce__lock_assert_held(&redis->lock);
    struct tierce__redis_keys *keys = redis->keys;
    while (keys != NULL && keys->number != number)
        keys = keys->next;
    return keys;
}

/* Finds the names, or makes and keeps them. */
static int find_keys(const struct tierce__redis_keys **out, struct tierce__redis *redis,
                     uint32_t number, const char *instance_id)
{
    TIERCE_DASSERT(number > 0);
    tierce__lock_take(&redis->lock);
    struct tierce__redis_keys *keys = keys_numbered(redis, number);
    if (keys == NULL && (keys = make_keys(number, instance_id, redis->is_cluster)) != NULL) {
        keys->next = redis->keys;
        redis->keys = keys;
    }
    tierce__lock_drop(&redis->lock);
    *out = keys;
    return keys != NULL ? 0 : -ENOMEM;
}

/* Writes the version of our keys and fields into the space, or checks it. */
static int check_version(struct tierce__redis *redis, const struct tierce__redis_keys *keys)
{
    static const char field[] = "tierce:version";
    const char *version = redis->is_cluster ? "2" : "1";
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, redis->pool);
    TIERCE__RESP_COMMAND(&batch, "HSETNX", keys->metadata, field, version);
    TIERCE__RESP_COMMAND(&batch, "HGET", keys->metadata, field);
    int rc = tierce__redis_run(&batch);
    if (rc == 0 &&
        (batch.values[1].type != TIERCE__RESP_STRING || strcmp(batch.values[1].text, version) != 0))
        rc = TIERCE_E_VERSION;
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static void redis_space_close(struct tierce__meta_space *base)
{
    tierce__lock_fini(&space_of(base)->ledger.lock);
    tierce__free(base);
}

static int redis_space_open(struct tierce__meta_space **out, struct tierce__meta_store *base,
                            uint32_t number, const char *instance_id)
{
    if (number == 0)
        return TIERCE_E_ARGUMENT;
    struct tierce__redis *redis = redis_of(base);
    struct tierce__redis_space *space = tierce__calloc(1, sizeof(*space));
    if (space == NULL)
        return -ENOMEM;
    space->base.ops = &tierce__meta_redis;
    space->redis = redis;
    tierce__lock_init(&space->ledger.lock, TIERCE__LOCK_META_LEDGER);
    tierce__redis_forget(space);
    int rc = find_keys(&space->keys, redis, number, instance_id);
    if (rc == 0)
        rc = check_version(redis, space->keys);
    if (rc == 0)
        rc = tierce__redis_settle(space);
    if (rc < 0)
        redis_space_close(&space->base);
    else
        *out = &space->base;
    return rc;
}

static int redis_space_names(struct tierce__meta_space *base, struct tierce__registry *registry,
                             const struct tierce__instance *instance)
{
    struct tierce__redis_space *space = space_of(base);
    TIERCE_ASSERT(space->registry == NULL || space->registry == registry);
    space->registry = registry;
    space->instance = instance;
    return tierce__redis_import(space, false);
}

/* ---- reads ---------------------------------------------------------------------------------- */

static int take_record(struct tierce__redis_space *space, const struct tierce__catalog *catalog,
                       const struct tierce__resp_value *value, int64_t key,
                       struct tierce__arena *arena, struct tierce__record *record, bool *found)
{
    bool is_unreadable = false;
    if (value->type != TIERCE__RESP_ARRAY || value->count != TIERCE__REDIS_FIELDS)
        return TIERCE_E_FORMAT;
    int rc = tierce__redis_read_record(record, found, &is_unreadable, space, catalog, value->items,
                                       arena);
    if (is_unreadable &&
        atomic_fetch_add_explicit(&space->unreadable, 1, memory_order_relaxed) == 0)
        tierce__log(TIERCE_LOG_WARN, "meta_record_unreadable", "store=redis key=%s%" PRId64,
                    space->keys->data, key);
    return rc;
}

static int get_some(struct tierce__redis_space *space, const struct tierce__catalog *catalog,
                    const int64_t *keys, size_t count, struct tierce__arena *arena,
                    struct tierce__record *records, bool *found)
{
    struct tierce__resp_pipeline batch;
    TIERCE_DASSERT(count > 0);
    TIERCE_DASSERT(count <= GET_KEYS);
    tierce__resp_pipeline_begin(&batch, space->redis->pool);
    batch.repeats = true;
    for (size_t i = 0; i < count; i++) {
        TIERCE__RESP_COMMAND(&batch, "HMGET");
        tierce__resp_pipeline_addf(&batch, "%s%" PRId64, space->keys->data, keys[i]);
        for (unsigned f = 0; f < TIERCE__REDIS_FIELDS; f++)
            tierce__resp_pipeline_add_text(&batch, tierce__redis_fields[f]);
    }
    int rc = tierce__redis_run(&batch);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = take_record(space, catalog, &batch.values[i], keys[i], arena, &records[i], &found[i]);
    tierce__resp_pipeline_end(&batch);
    return rc;
}

int tierce__redis_get(struct tierce__meta_space *base, const int64_t *keys, size_t count,
                      struct tierce__arena *arena, struct tierce__record *records, bool *found)
{
    struct tierce__redis_space *space = space_of(base);
    const struct tierce__catalog *catalog =
        space->registry != NULL ? tierce__registry_acquire(space->registry) : NULL;
    int rc = tierce__redis_settle(space);
    for (size_t done = 0; rc == 0 && done < count; done += GET_KEYS) {
        size_t n = count - done < GET_KEYS ? count - done : GET_KEYS;
        rc = get_some(space, catalog, keys + done, n, arena, records + done, found + done);
    }
    if (catalog != NULL)
        tierce__registry_release(space->registry, catalog);
    return rc;
}

/* ---- batches -------------------------------------------------------------------------------- */

static void add_key(struct tierce__resp_pipeline *command, int64_t key)
{
    tierce__resp_pipeline_addf(command, "%" PRId64, key);
    tierce__resp_pipeline_addf(command, "%016" PRIx64, tierce__meta_mix(key));
}

static void add_records(struct tierce__resp_pipeline *command, struct tierce__redis_space *space,
                        const struct tierce__meta_batch *batch)
{
    const struct tierce__catalog *catalog =
        space->registry != NULL ? tierce__registry_acquire(space->registry) : NULL;
    tierce__resp_pipeline_addf(command, "%zu", batch->put_count);
    for (size_t i = 0; command->rc == 0 && i < batch->put_count; i++) {
        add_key(command, batch->puts[i].key);
        tierce__redis_add_record(command, space, catalog, &batch->puts[i].record);
    }
    if (catalog != NULL)
        tierce__registry_release(space->registry, catalog);
    tierce__resp_pipeline_addf(command, "%zu", batch->delete_count);
    for (size_t i = 0; i < batch->delete_count; i++)
        add_key(command, batch->deletes[i]);
}

void tierce__redis_add_notes(struct tierce__resp_pipeline *command,
                             const struct tierce__meta_batch *batch)
{
    tierce__resp_pipeline_addf(command, "%zu", batch->note_count);
    for (size_t i = 0; i < batch->note_count; i++) {
        const struct tierce__meta_note *note = &batch->notes[i];
        TIERCE_DASSERT(note->kind > 0 && note->kind < TIERCE__NOTE_KINDS);
        bool stays = note->value != NULL;
        tierce__resp_pipeline_addf(command, "%u", note->kind);
        tierce__resp_pipeline_addf(command, "%016" PRIx64, note->number);
        tierce__resp_pipeline_add_text(command, stays ? "1" : "0");
        tierce__resp_pipeline_add(command, stays ? note->value : "", stays ? note->bytes : 0);
    }
}

void tierce__redis_add_counters(struct tierce__resp_pipeline *command,
                                const struct tierce__meta_batch *batch)
{
    unsigned count = 0;
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        count += batch->added[i] != 0;
    tierce__resp_pipeline_addf(command, "%u", count);
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++) {
        if (batch->added[i] == 0)
            continue;
        tierce__resp_pipeline_addf(command, "%u", i);
        tierce__resp_pipeline_addf(command, "%" PRId64, batch->added[i]);
    }
}

static int redis_write(struct tierce__meta_space *base, const struct tierce__meta_batch *batch)
{
    struct tierce__redis_space *space = space_of(base);
    if (!tierce__meta_batch_is_valid(batch))
        return TIERCE_E_ARGUMENT;
    if (space->redis->is_cluster)
        return tierce__redis_commit(space, batch);
    TIERCE_DASSERT(!space->redis->is_cluster);
    const char *const keys[] = {FENCE_KEY, space->keys->metadata, space->keys->keys};
    struct tierce__resp_pipeline command;
    tierce__resp_pipeline_begin(&command, space->redis->pool);
    tierce__redis_script(space->redis, &command, TIERCE__REDIS_WRITE, keys, 3);
    tierce__resp_pipeline_add_text(&command, space->keys->data);
    tierce__resp_pipeline_add_text(&command, space->keys->notes);
    add_records(&command, space, batch);
    tierce__redis_add_notes(&command, batch);
    tierce__redis_add_counters(&command, batch);
    return tierce__redis_do(&command);
}

/* ---- touches -------------------------------------------------------------------------------- */

static void redis_touch(struct tierce__meta_space *base, const int64_t *keys, size_t count,
                        const struct tierce__record_use *use)
{
    TIERCE_DASSERT(space_of(base)->keys->number > 0);
    struct tierce__redis_space *space = space_of(base);
    tierce__touches_add(space->redis->touches, space->keys->number, keys, count, use);
}

/* The key of the touched record. */
static const char *touched_key(struct tierce__redis *redis, struct tierce__resp_pipeline *batch,
                               const struct tierce__touch *touch)
{
    tierce__lock_take(&redis->lock);
    const struct tierce__redis_keys *keys = keys_numbered(redis, touch->space);
    tierce__lock_drop(&redis->lock);
    TIERCE_DASSERT(keys != NULL); /* the names of spaces that were opened stay in the list */
    return tierce__resp_pipeline_textf(batch, "%s%" PRId64, keys->data, touch->key);
}

/* One script for all of them, or in a cluster one for each, in one pipeline. */
static int write_touches(struct tierce__redis *redis, const struct tierce__touch *touches,
                         size_t count)
{
    static const char *const fence[] = {FENCE_KEY};
    struct tierce__resp_pipeline batch;
    TIERCE_DASSERT(count > 0);
    TIERCE_DASSERT(count <= TOUCHES);
    tierce__resp_pipeline_begin(&batch, redis->pool);
    if (!redis->is_cluster)
        tierce__redis_script(redis, &batch, TIERCE__REDIS_TOUCH, fence, 1);
    for (size_t i = 0; i < count; i++) {
        const char *key = touched_key(redis, &batch, &touches[i]);
        if (redis->is_cluster)
            tierce__redis_script(redis, &batch, TIERCE__REDIS_TOUCH_ONE, &key, 1);
        else
            tierce__resp_pipeline_add_text(&batch, key);
        tierce__resp_pipeline_addf(&batch, "%" PRId64, touches[i].use.used_us);
        tierce__resp_pipeline_addf(&batch, "%" PRIu32, touches[i].use.uses);
        tierce__resp_pipeline_addf(&batch, "%" PRIu16, touches[i].use.hint);
    }
    return tierce__redis_do(&batch);
}

/* Touches that cannot be written are lost, as the header allows; the error was logged. */
static void flush_touches(void *arg, const struct tierce__touch *touches, size_t count)
{
    int rc = 0;
    for (size_t done = 0, n; rc == 0 && done < count; done += n) {
        n = count - done < TOUCHES ? count - done : TOUCHES;
        rc = write_touches(arg, touches + done, n);
    }
}

/* ---- scans and samples ---------------------------------------------------------------------- */

/* Starts a command that returns up to `limit` keys in their order, from a number on. */
static void add_range(struct tierce__resp_pipeline *batch, const struct tierce__redis_space *space,
                      uint64_t from, size_t limit)
{
    const char *first = tierce__resp_pipeline_textf(batch, "[%016" PRIx64, from);
    TIERCE__RESP_COMMAND(batch, "ZRANGEBYLEX", space->keys->keys, first, "+", "LIMIT", "0");
    tierce__resp_pipeline_addf(batch, "%zu", limit);
}

static int redis_scan(struct tierce__meta_space *base, uint64_t *cursor, size_t limit,
                      int64_t *keys, size_t *count)
{
    struct tierce__redis_space *space = space_of(base);
    struct tierce__resp_pipeline batch;
    uint64_t mixed = 0;
    tierce__resp_pipeline_begin(&batch, space->redis->pool);
    add_range(&batch, space, *cursor, limit);
    int rc = tierce__redis_read(space, &batch);
    size_t n = rc < 0 ? 0 : batch.values[0].count < limit ? batch.values[0].count : limit;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (!tierce__redis_read_hex(&mixed, &batch.values[0].items[i]))
            rc = TIERCE_E_FORMAT;
        keys[i] = tierce__meta_unmix(mixed);
    }
    tierce__resp_pipeline_end(&batch);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(n <= limit);
    *cursor = n == limit && limit > 0 ? mixed + 1 : 0;
    *count = n;
    return 0;
}

/* Random seeks, several at a time, each for some neighbours: keys are in the order of their mixed
 * numbers, which are evenly distributed, so neighbours are independent draws. */
struct redis_index_draws {
    struct tierce__redis_space *space;
    int64_t keys[DRAWS];
    size_t count, at;
};

enum { SEEKS = DRAWS / TIERCE__META_DRAWN_AT_ONCE };

/* Adds the keys of a range, and returns how many it lacks, because the last key of all is in it. */
static size_t add_drawn(struct redis_index_draws *draws, const struct tierce__resp_value *range,
                        size_t limit)
{
    size_t count = range->count < limit ? range->count : limit;
    uint64_t mixed;
    for (size_t k = 0; k < count && draws->count < DRAWS; k++)
        if (tierce__redis_read_hex(&mixed, &range->items[k]))
            draws->keys[draws->count++] = tierce__meta_unmix(mixed);
    return limit - count;
}

/* The first key follows on the last one. Otherwise the first keys would be drawn seldom, because
 * few places of a seek lie before them. */
static int draw_first(struct redis_index_draws *draws, const size_t lacking[SEEKS])
{
    struct tierce__resp_pipeline batch;
    size_t at = 0;
    tierce__resp_pipeline_begin(&batch, draws->space->redis->pool);
    for (unsigned i = 0; i < SEEKS; i++)
        if (lacking[i] > 0)
            add_range(&batch, draws->space, 0, lacking[i]);
    int rc = tierce__redis_run(&batch);
    for (unsigned i = 0; rc == 0 && i < SEEKS; i++)
        if (lacking[i] > 0)
            (void)add_drawn(draws, &batch.values[at++], lacking[i]);
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static int draw_many(struct redis_index_draws *draws, uint64_t random)
{
    TIERCE_DASSERT(draws->at == draws->count);
    struct tierce__resp_pipeline batch;
    size_t lacking[SEEKS] = {0};
    bool lacks = false;
    tierce__resp_pipeline_begin(&batch, draws->space->redis->pool);
    for (unsigned i = 0; i < SEEKS; i++)
        add_range(&batch, draws->space, tierce__meta_mix((int64_t)(random + i)),
                  TIERCE__META_DRAWN_AT_ONCE);
    int rc = tierce__redis_run(&batch);
    draws->count = draws->at = 0;
    for (unsigned i = 0; rc == 0 && i < SEEKS; i++) {
        lacking[i] = add_drawn(draws, &batch.values[i], TIERCE__META_DRAWN_AT_ONCE);
        lacks = lacks || lacking[i] > 0;
    }
    tierce__resp_pipeline_end(&batch);
    if (rc == 0 && lacks)
        rc = draw_first(draws, lacking);
    TIERCE_DASSERT(draws->count <= DRAWS);
    return rc;
}

static int draw(void *arg, uint64_t random, int64_t *key)
{
    struct redis_index_draws *draws = (struct redis_index_draws *)arg;
    if (draws->at == draws->count) {
        int rc = draw_many(draws, random);
        if (rc < 0)
            return rc;
    }
    if (draws->count == 0)
        return 0;
    TIERCE_DASSERT(draws->at < draws->count && draws->count <= DRAWS);
    *key = draws->keys[draws->at++];
    return 1;
}

static int redis_sample(struct tierce__meta_space *base, uint64_t *random, size_t count,
                        int64_t *keys, size_t *found)
{
    struct redis_index_draws draws = {.space = space_of(base)};
    struct tierce__resp_pipeline batch;
    uint64_t there = 0;
    tierce__resp_pipeline_begin(&batch, draws.space->redis->pool);
    TIERCE__RESP_COMMAND(&batch, "ZCARD", draws.space->keys->keys);
    int rc = tierce__redis_read(draws.space, &batch);
    if (rc == 0 && batch.values[0].type == TIERCE__RESP_INTEGER)
        there = (uint64_t)batch.values[0].integer;
    tierce__resp_pipeline_end(&batch);
    if (rc < 0)
        return rc;
    return tierce__meta_sample(base, &(struct tierce__meta_draws){draw, &draws, there}, random,
                               count, keys, found);
}

/* ---- counters and the end of a space -------------------------------------------------------- */

static int redis_counters(struct tierce__meta_space *base, int64_t out[TIERCE__META_COUNTERS])
{
    struct tierce__redis_space *space = space_of(base);
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, space->redis->pool);
    TIERCE__RESP_COMMAND(&batch, "HMGET", space->keys->metadata);
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        tierce__resp_pipeline_addf(&batch, "tierce:%u", i);
    int rc = tierce__redis_read(space, &batch);
    if (rc == 0 && (batch.values[0].type != TIERCE__RESP_ARRAY ||
                    batch.values[0].count != TIERCE__META_COUNTERS))
        rc = TIERCE_E_FORMAT;
    for (unsigned i = 0; rc == 0 && i < TIERCE__META_COUNTERS; i++) {
        const struct tierce__resp_value *item = &batch.values[0].items[i];
        out[i] = item->type == TIERCE__RESP_STRING ? strtoll(item->text, NULL, 10) : 0;
    }
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static int drop_rest(struct tierce__redis_space *space)
{
    TIERCE_DASSERT(space->keys->number > 0);
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, space->redis->pool);
    TIERCE__RESP_COMMAND(&batch, "DEL", space->keys->metadata, space->keys->keys);
    for (unsigned kind = 1; kind < TIERCE__NOTE_KINDS; kind++)
        tierce__resp_pipeline_addf(&batch, "%s%u", space->keys->notes, kind);
    if (space->redis->is_cluster)
        tierce__resp_pipeline_add_text(&batch, space->keys->journal);
    int rc = tierce__redis_do(&batch);
    tierce__redis_forget(space);
    return rc;
}

/* Records are deleted first, so that after a failed drop the remaining ones are still in the sorted
 * set. */
static int redis_space_drop(struct tierce__meta_space *base)
{
    int64_t *keys = tierce__calloc(DROPPED, sizeof(*keys));
    if (keys == NULL)
        return -ENOMEM;
    size_t count;
    int rc;
    do {
        uint64_t cursor = 0;
        rc = redis_scan(base, &cursor, DROPPED, keys, &count);
        /* Sent even if empty: the script checks the token. */
        if (rc == 0)
            rc = redis_write(base,
                             &(struct tierce__meta_batch){.deletes = keys, .delete_count = count});
    } while (rc == 0 && count == DROPPED);
    tierce__free(keys);
    return rc == 0 ? drop_rest(space_of(base)) : rc;
}

static uint64_t redis_unreadable(struct tierce__meta_space *space)
{
    return atomic_load_explicit(&space_of(space)->unreadable, memory_order_relaxed);
}

const struct tierce__meta_store_ops tierce__meta_redis = {
    .name = "redis",
    .blocks = true,
    .shared = true,
    .open = redis_open,
    .close = redis_close,
    .fence = redis_fence,
    .space_open = redis_space_open,
    .space_names = redis_space_names,
    .space_close = redis_space_close,
    .space_drop = redis_space_drop,
    .get = tierce__redis_get,
    .write = redis_write,
    .touch = redis_touch,
    .scan = redis_scan,
    .sample = redis_sample,
    .notes = tierce__redis_notes,
    .note = tierce__redis_note,
    .counters = redis_counters,
    .unreadable = redis_unreadable,
};
