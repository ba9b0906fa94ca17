/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records in Redis or Valkey, in KVCM's layout with our own keys and fields beside it
 * (docs/format/meta.md): what KVCM wrote can be read here, and what is written here by KVCM.
 *
 * URI: as resp_uri.h says, and
 *   touch_ms=N   how long touches are kept back (default 10000)
 * A batch is one script, which looks at the fencing token first. A batch that was sent and not
 * answered may have happened; it is not sent again. Reads are sent again once.
 *
 * One server, or a primary with replicas behind one address. In a cluster the keys of a batch
 * would have to share a slot; KVCM's names of keys have no tag that could see to it.
 */
#include "manager/meta_redis_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/config_parse.h"
#include "base/log_repeat.h"
#include "wire/resp_uri.h"

enum {
    GET_KEYS = 512, /* of one pipeline */
    DRAWS = 256,    /* and random seeks */
    TOUCHES = 500,  /* of one script */
    DROPPED = 1000, /* records of one script */
    NOTES = 64,     /* of one command */
    HEX_BYTES = 16, /* of a member of the sorted set, and of a note's field */
};

static struct tierce__redis *redis_of(struct tierce__meta_store *store)
{
    return (struct tierce__redis *)store;
}

static struct tierce__redis_space *space_of(struct tierce__meta_space *space)
{
    return (struct tierce__redis_space *)space;
}

/* Lower-case hexadecimal digits; false for what is none. */
static bool read_hex(uint64_t *out, const struct tierce__resp_value *value)
{
    uint64_t number = 0;
    if (value->type != TIERCE__RESP_STRING || value->bytes != HEX_BYTES)
        return false;
    for (unsigned i = 0; i < HEX_BYTES; i++) {
        char c = value->text[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f'))
            return false;
        number = number << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *out = number;
    return true;
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
        tierce__free(keys->data);
        tierce__free(keys->metadata);
        tierce__free(keys->keys);
        tierce__free(keys->notes);
        tierce__free(keys);
    }
    tierce__lock_fini(&redis->lock);
    tierce__free(redis);
}

/* The first connection, whose failure is told in words. */
static int greet(struct tierce__redis *redis, char why[256])
{
    struct tierce__resp *resp;
    int rc = tierce__resp_pool_take(redis->pool, &resp, 0);
    if (rc < 0)
        return rc;
    rc = tierce__resp_begin(resp);
    if (rc == 0)
        rc = tierce__redis_load_scripts(redis, resp);
    if (rc < 0)
        snprintf(why, 256, "%.200s", tierce__resp_why(resp));
    if (rc == -EPROTO)
        snprintf(why, 256, "the server takes no scripts");
    tierce__redis_end(redis, resp);
    return rc == -EACCES ? TIERCE_E_REFUSED : rc;
}

static int read_touch_ms(uint32_t *out, const struct tierce__resp_uri *uri, char why[256])
{
    enum { TOUCH_MS_DEFAULT = 10000, TOUCH_MS_MAX = 3600000 };
    const char *text = tierce__resp_uri_param(uri, "touch_ms");
    uint64_t number = TOUCH_MS_DEFAULT;
    if (text != NULL &&
        (!tierce__parse_count(&number, text) || number == 0 || number > TOUCH_MS_MAX)) {
        snprintf(why, 256, "Redis URI: touch_ms is no number from 1 to 3600000");
        return TIERCE_E_CONFIG;
    }
    *out = (uint32_t)number;
    return 0;
}

static int open_parts(struct tierce__redis *redis, const struct tierce__resp_uri *uri,
                      char why[256])
{
    uint32_t touch_ms;
    if (uri->is_cluster) {
        snprintf(why, 256,
                 "a Redis cluster cannot hold an index: the keys of a batch have no slot "
                 "in common");
        return TIERCE_E_UNSUPPORTED;
    }
    int rc = read_touch_ms(&touch_ms, uri, why);
    if (rc == 0)
        rc = tierce__resp_pool_create(&redis->pool, &uri->opts, uri->pool_max, why);
    if (rc == 0)
        rc = greet(redis, why);
    if (rc == 0)
        rc = tierce__touches_start(&redis->touches, touch_ms, flush_touches, redis);
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

static int redis_fence(struct tierce__meta_store *base, uint64_t token)
{
    struct tierce__redis *redis = redis_of(base);
    tierce__lock_take(&redis->lock);
    if (token > 0)
        snprintf(redis->token, sizeof(redis->token), "%020" PRIu64, token);
    else
        redis->token[0] = '\0';
    tierce__lock_drop(&redis->lock);
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    int rc = tierce__redis_start_script(redis, TIERCE__REDIS_FENCE, &command, NULL);
    if (rc == 0)
        rc = tierce__redis_run_script(redis, TIERCE__REDIS_FENCE, &command);
    tierce__arena_clear(&arena);
    return rc;
}

/* ---- spaces --------------------------------------------------------------------------------- */

static char *name_of(const char *instance_id, const char *rest)
{
    static const char start[] = "kvcache:instance_";
    size_t bytes = strlen(start) + strlen(instance_id) + strlen(rest) + 1;
    char *name = tierce__alloc(bytes);
    if (name != NULL)
        snprintf(name, bytes, "%s%s%s", start, instance_id, rest);
    return name;
}

static bool has_name(char **name, const char *instance_id, const char *rest)
{
    if (*name == NULL)
        *name = name_of(instance_id, rest);
    return *name != NULL;
}

/* Found, or made and kept; names that memory was short for are made the next time. */
static int find_keys(const struct tierce__redis_keys **out, struct tierce__redis *redis,
                     uint32_t number, const char *instance_id)
{
    bool is_whole = false;
    tierce__lock_take(&redis->lock);
    struct tierce__redis_keys *keys = redis->keys;
    while (keys != NULL && keys->number != number)
        keys = keys->next;
    if (keys == NULL && (keys = tierce__calloc(1, sizeof(*keys))) != NULL) {
        keys->number = number;
        keys->next = redis->keys;
        redis->keys = keys;
    }
    if (keys != NULL)
        is_whole = has_name(&keys->data, instance_id, ":cache_") &&
                   has_name(&keys->metadata, instance_id, ":metadata") &&
                   has_name(&keys->keys, instance_id, ":tierce:keys") &&
                   has_name(&keys->notes, instance_id, ":tierce:notes:");
    tierce__lock_drop(&redis->lock);
    *out = keys;
    return is_whole ? 0 : -ENOMEM;
}

/* Says which version of our keys and fields the space has, or reads it. */
static int check_version(struct tierce__redis *redis, const struct tierce__redis_keys *keys)
{
    static const char version[] = "1";
    struct tierce__resp *resp;
    struct tierce__resp_value value;
    const char *set[] = {"HSETNX", keys->metadata, "tierce:version", version};
    size_t set_bytes[] = {6, strlen(keys->metadata), 14, 1};
    const char *get[] = {"HGET", keys->metadata, "tierce:version"};
    size_t get_bytes[] = {4, strlen(keys->metadata), 14};
    int rc = tierce__redis_begin(redis, &resp);
    if (rc < 0)
        return rc;
    rc = tierce__resp_append(resp, set, set_bytes, 4);
    if (rc == 0)
        rc = tierce__resp_append(resp, get, get_bytes, 3);
    if (rc == 0)
        rc = tierce__resp_flush(resp, 0);
    for (int i = 0; rc == 0 && i < 2; i++)
        rc = tierce__redis_read(resp, &value);
    if (rc == 0 && (value.type != TIERCE__RESP_STRING || strcmp(value.text, version) != 0))
        rc = TIERCE_E_VERSION;
    tierce__redis_end(redis, resp);
    return rc;
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
    int rc = find_keys(&space->keys, redis, number, instance_id);
    if (rc == 0)
        rc = check_version(redis, space->keys);
    if (rc < 0)
        tierce__free(space);
    else
        *out = &space->base;
    return rc;
}

static int redis_space_names(struct tierce__meta_space *base, struct tierce__registry *registry,
                             const struct tierce__instance *instance)
{
    struct tierce__redis_space *space = space_of(base);
    space->registry = registry;
    space->instance = instance;
    return tierce__redis_import(space);
}

static void redis_space_close(struct tierce__meta_space *space)
{
    tierce__free(space);
}

/* ---- reads ---------------------------------------------------------------------------------- */

static int append_get(struct tierce__resp *resp, const struct tierce__redis_space *space,
                      int64_t key, size_t prefix_bytes, struct tierce__arena *arena)
{
    char *name = tierce__arena_alloc(arena, prefix_bytes + 24);
    if (name == NULL)
        return -ENOMEM;
    int bytes = snprintf(name, prefix_bytes + 24, "%s%" PRId64, space->keys->data, key);
    const char *texts[2 + TIERCE__REDIS_FIELDS] = {"HMGET", name};
    size_t lengths[2 + TIERCE__REDIS_FIELDS] = {5, (size_t)bytes};
    for (unsigned i = 0; i < TIERCE__REDIS_FIELDS; i++) {
        texts[2 + i] = tierce__redis_fields[i];
        lengths[2 + i] = strlen(tierce__redis_fields[i]);
    }
    return tierce__resp_append(resp, texts, lengths, 2 + TIERCE__REDIS_FIELDS);
}

static int take_record(struct tierce__redis_space *space, const struct tierce__catalog *catalog,
                       struct tierce__resp *resp, int64_t key, struct tierce__arena *arena,
                       struct tierce__record *record, bool *found)
{
    struct tierce__resp_value value;
    bool is_unreadable = false;
    int rc = tierce__redis_read(resp, &value);
    if (rc < 0)
        return rc;
    if (value.type != TIERCE__RESP_ARRAY || value.count != TIERCE__REDIS_FIELDS)
        return TIERCE_E_FORMAT;
    rc = tierce__redis_read_record(record, found, &is_unreadable, space, catalog, value.items,
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
    struct tierce__resp *resp;
    struct tierce__arena names = {0};
    size_t prefix_bytes = strlen(space->keys->data);
    int rc = tierce__redis_begin(space->redis, &resp);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = append_get(resp, space, keys[i], prefix_bytes, &names);
    if (rc == 0)
        rc = tierce__resp_flush(resp, 0);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = take_record(space, catalog, resp, keys[i], arena, &records[i], &found[i]);
    tierce__redis_end(space->redis, resp);
    tierce__arena_clear(&names);
    return rc;
}

/* A connection that was lost in the middle; a reading can be done again. */
static bool is_lost(int rc)
{
    return rc == -ECONNRESET || rc == -EPIPE || rc == -ENOTCONN || rc == -ECONNABORTED;
}

int tierce__redis_get(struct tierce__meta_space *base, const int64_t *keys, size_t count,
                      struct tierce__arena *arena, struct tierce__record *records, bool *found)
{
    struct tierce__redis_space *space = space_of(base);
    const struct tierce__catalog *catalog =
        space->registry != NULL ? tierce__registry_acquire(space->registry) : NULL;
    int rc = 0;
    for (size_t done = 0; rc == 0 && done < count; done += GET_KEYS) {
        size_t n = count - done < GET_KEYS ? count - done : GET_KEYS;
        rc = get_some(space, catalog, keys + done, n, arena, records + done, found + done);
        if (is_lost(rc))
            rc = get_some(space, catalog, keys + done, n, arena, records + done, found + done);
    }
    if (catalog != NULL)
        tierce__registry_release(space->registry, catalog);
    return rc;
}

/* ---- batches -------------------------------------------------------------------------------- */

static int add_key(struct tierce__redis_command *command, int64_t key)
{
    int rc = tierce__redis_add_i64(command, key);
    return rc == 0 ? tierce__redis_add_hex(command, tierce__meta_mix(key)) : rc;
}

static int add_records(struct tierce__redis_command *command, struct tierce__redis_space *space,
                       const struct tierce__meta_batch *batch)
{
    const struct tierce__catalog *catalog =
        space->registry != NULL ? tierce__registry_acquire(space->registry) : NULL;
    int rc = tierce__redis_add_i64(command, (int64_t)batch->put_count);
    for (size_t i = 0; rc == 0 && i < batch->put_count; i++) {
        rc = add_key(command, batch->puts[i].key);
        if (rc == 0)
            rc = tierce__redis_add_record(command, space, catalog, &batch->puts[i].record);
    }
    if (catalog != NULL)
        tierce__registry_release(space->registry, catalog);
    if (rc == 0)
        rc = tierce__redis_add_i64(command, (int64_t)batch->delete_count);
    for (size_t i = 0; rc == 0 && i < batch->delete_count; i++)
        rc = add_key(command, batch->deletes[i]);
    return rc;
}

static int add_notes(struct tierce__redis_command *command, const struct tierce__meta_batch *batch)
{
    int rc = tierce__redis_add_i64(command, (int64_t)batch->note_count);
    for (size_t i = 0; rc == 0 && i < batch->note_count; i++) {
        const struct tierce__meta_note *note = &batch->notes[i];
        bool stays = note->value != NULL;
        rc = tierce__redis_add_i64(command, note->kind);
        if (rc == 0)
            rc = tierce__redis_add_hex(command, note->number);
        if (rc == 0)
            rc = tierce__redis_add_text(command, stays ? "1" : "0");
        if (rc == 0)
            rc = tierce__redis_add(command, stays ? note->value : "", stays ? note->bytes : 0);
    }
    return rc;
}

static int add_counters(struct tierce__redis_command *command,
                        const struct tierce__meta_batch *batch)
{
    int64_t count = 0;
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        count += batch->added[i] != 0;
    int rc = tierce__redis_add_i64(command, count);
    for (unsigned i = 0; rc == 0 && i < TIERCE__META_COUNTERS; i++) {
        if (batch->added[i] == 0)
            continue;
        rc = tierce__redis_add_i64(command, i);
        if (rc == 0)
            rc = tierce__redis_add_i64(command, batch->added[i]);
    }
    return rc;
}

static int redis_write(struct tierce__meta_space *base, const struct tierce__meta_batch *batch)
{
    struct tierce__redis_space *space = space_of(base);
    if (!tierce__meta_batch_is_valid(batch))
        return TIERCE_E_ARGUMENT;
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    int rc = tierce__redis_start_script(space->redis, TIERCE__REDIS_WRITE, &command, space->keys);
    if (rc == 0)
        rc = tierce__redis_add_text(&command, space->keys->data);
    if (rc == 0)
        rc = tierce__redis_add_text(&command, space->keys->notes);
    if (rc == 0)
        rc = add_records(&command, space, batch);
    if (rc == 0)
        rc = add_notes(&command, batch);
    if (rc == 0)
        rc = add_counters(&command, batch);
    if (rc == 0)
        rc = tierce__redis_run_script(space->redis, TIERCE__REDIS_WRITE, &command);
    tierce__arena_clear(&arena);
    return rc;
}

/* ---- touches -------------------------------------------------------------------------------- */

static void redis_touch(struct tierce__meta_space *base, const int64_t *keys, size_t count,
                        int64_t now_us)
{
    struct tierce__redis_space *space = space_of(base);
    tierce__touches_add(space->redis->touches, space->keys->number, keys, count, now_us);
}

/* Spaces that were opened stay in the list. */
static const struct tierce__redis_keys *keys_numbered(struct tierce__redis *redis, uint32_t number)
{
    tierce__lock_take(&redis->lock);
    const struct tierce__redis_keys *keys = redis->keys;
    while (keys != NULL && keys->number != number)
        keys = keys->next;
    tierce__lock_drop(&redis->lock);
    return keys;
}

static int add_touch(struct tierce__redis_command *command, struct tierce__redis *redis,
                     const struct tierce__touch *touch)
{
    const struct tierce__redis_keys *keys = keys_numbered(redis, touch->space);
    if (keys == NULL)
        return 0;
    size_t bytes = strlen(keys->data) + 24;
    char *name = tierce__arena_alloc(command->arena, bytes);
    if (name == NULL)
        return -ENOMEM;
    snprintf(name, bytes, "%s%" PRId64, keys->data, touch->key);
    int rc = tierce__redis_add_text(command, name);
    if (rc == 0)
        rc = tierce__redis_add_i64(command, touch->used_us);
    return rc == 0 ? tierce__redis_add_i64(command, touch->uses) : rc;
}

/* What cannot be written is lost, as the header allows; it was logged. */
static void flush_touches(void *arg, const struct tierce__touch *touches, size_t count)
{
    struct tierce__redis *redis = (struct tierce__redis *)arg;
    int rc = 0;
    for (size_t done = 0; rc == 0 && done < count;) {
        struct tierce__arena arena = {0};
        struct tierce__redis_command command = {.arena = &arena};
        rc = tierce__redis_start_script(redis, TIERCE__REDIS_TOUCH, &command, NULL);
        for (size_t n = 0; rc == 0 && n < TOUCHES && done < count; n++, done++)
            rc = add_touch(&command, redis, &touches[done]);
        if (rc == 0)
            rc = tierce__redis_run_script(redis, TIERCE__REDIS_TOUCH, &command);
        tierce__arena_clear(&arena);
    }
}

/* ---- scans and samples ---------------------------------------------------------------------- */

/* ZRANGEBYLEX from a number on. */
static int append_range(struct tierce__resp *resp, const struct tierce__redis_space *space,
                        uint64_t from, size_t limit)
{
    char first[24], count[24];
    snprintf(first, sizeof(first), "[%016" PRIx64, from);
    snprintf(count, sizeof(count), "%zu", limit);
    const char *texts[] = {"ZRANGEBYLEX", space->keys->keys, first, "+", "LIMIT", "0", count};
    size_t bytes[7];
    for (unsigned i = 0; i < 7; i++)
        bytes[i] = strlen(texts[i]);
    return tierce__resp_append(resp, texts, bytes, 7);
}

static int redis_scan(struct tierce__meta_space *base, uint64_t *cursor, size_t limit,
                      int64_t *keys, size_t *count)
{
    struct tierce__redis_space *space = space_of(base);
    struct tierce__resp *resp;
    struct tierce__resp_value value;
    int rc = tierce__redis_begin(space->redis, &resp);
    if (rc < 0)
        return rc;
    rc = append_range(resp, space, *cursor, limit);
    if (rc == 0)
        rc = tierce__resp_flush(resp, 0);
    if (rc == 0)
        rc = tierce__redis_read(resp, &value);
    uint64_t mixed = 0;
    size_t n = 0;
    for (; rc == 0 && n < value.count && n < limit; n++) {
        if (!read_hex(&mixed, &value.items[n]))
            rc = TIERCE_E_FORMAT;
        else
            keys[n] = tierce__meta_unmix(mixed);
    }
    tierce__redis_end(space->redis, resp);
    if (rc < 0)
        return rc;
    *cursor = n == limit && n > 0 ? mixed + 1 : 0;
    *count = n;
    return 0;
}

/* Random seeks, made many at a time. */
struct draws {
    struct tierce__redis_space *space;
    int64_t keys[DRAWS];
    size_t count, at;
};

static int draw_many(struct draws *draws, uint64_t random)
{
    struct tierce__resp *resp;
    struct tierce__resp_value value;
    int rc = tierce__redis_begin(draws->space->redis, &resp);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; rc == 0 && i < DRAWS; i++)
        rc = append_range(resp, draws->space, tierce__meta_mix((int64_t)(random + i)), 1);
    if (rc == 0)
        rc = tierce__resp_flush(resp, 0);
    draws->count = draws->at = 0;
    for (unsigned i = 0; rc == 0 && i < DRAWS; i++) {
        uint64_t mixed;
        rc = tierce__redis_read(resp, &value);
        if (rc == 0 && value.count == 1 && read_hex(&mixed, &value.items[0]))
            draws->keys[draws->count++] = tierce__meta_unmix(mixed);
    }
    tierce__redis_end(draws->space->redis, resp);
    return rc;
}

static int draw(void *arg, uint64_t random, int64_t *key)
{
    struct draws *draws = (struct draws *)arg;
    if (draws->at == draws->count) {
        int rc = draw_many(draws, random);
        if (rc < 0)
            return rc;
    }
    if (draws->count == 0)
        return 0;
    *key = draws->keys[draws->at++];
    return 1;
}

static int count_keys(struct tierce__redis_space *space, uint64_t *out)
{
    struct tierce__resp *resp;
    struct tierce__resp_value value;
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    int rc = tierce__redis_begin(space->redis, &resp);
    if (rc < 0)
        return rc;
    rc = tierce__redis_add_text(&command, "ZCARD");
    if (rc == 0)
        rc = tierce__redis_add_text(&command, space->keys->keys);
    if (rc == 0)
        rc = tierce__redis_call(resp, &command, &value);
    if (rc == 0)
        *out = value.type == TIERCE__RESP_INTEGER ? (uint64_t)value.integer : 0;
    tierce__redis_end(space->redis, resp);
    tierce__arena_clear(&arena);
    return rc;
}

static int redis_sample(struct tierce__meta_space *base, uint64_t *random, size_t count,
                        int64_t *keys, size_t *found)
{
    struct draws draws = {.space = space_of(base)};
    uint64_t there = 0;
    int rc = count_keys(draws.space, &there);
    if (rc < 0)
        return rc;
    return tierce__meta_sample(base, there, random, count, keys, found, draw, &draws);
}

/* ---- notes ---------------------------------------------------------------------------------- */

/* The name of the hash of a kind, in the arena. */
static char *notes_name(const struct tierce__redis_space *space, uint8_t kind,
                        struct tierce__arena *arena)
{
    size_t bytes = strlen(space->keys->notes) + 4;
    char *name = tierce__arena_alloc(arena, bytes);
    if (name != NULL)
        snprintf(name, bytes, "%s%u", space->keys->notes, kind);
    return name;
}

/* HMGET of some notes; values in the arena, NULL for none. */
static int read_notes(struct tierce__redis_space *space, uint8_t kind, const uint64_t *numbers,
                      size_t count, struct tierce__arena *arena, struct tierce__meta_note *notes)
{
    struct tierce__resp *resp;
    struct tierce__resp_value value;
    struct tierce__redis_command command = {.arena = arena};
    int rc = tierce__redis_begin(space->redis, &resp);
    if (rc < 0)
        return rc;
    char *name = notes_name(space, kind, arena);
    rc = name == NULL ? -ENOMEM : tierce__redis_add_text(&command, "HMGET");
    if (rc == 0)
        rc = tierce__redis_add_text(&command, name);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = tierce__redis_add_hex(&command, numbers[i]);
    if (rc == 0)
        rc = tierce__redis_call(resp, &command, &value);
    if (rc == 0 && (value.type != TIERCE__RESP_ARRAY || value.count != count))
        rc = TIERCE_E_FORMAT;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        notes[i] = (struct tierce__meta_note){.kind = kind, .number = numbers[i]};
        if (value.items[i].type != TIERCE__RESP_STRING)
            continue;
        notes[i].bytes = value.items[i].bytes;
        notes[i].value = tierce__arena_copy(arena, value.items[i].text, notes[i].bytes);
        if (notes[i].value == NULL)
            rc = -ENOMEM;
    }
    tierce__redis_end(space->redis, resp);
    return rc;
}

static int redis_note(struct tierce__meta_space *base, uint8_t kind, uint64_t number,
                      struct tierce__arena *arena, const void **value, size_t *bytes)
{
    struct tierce__meta_note note;
    int rc = read_notes(space_of(base), kind, &number, 1, arena, &note);
    if (rc == 0 && note.value == NULL)
        rc = -ENOENT;
    if (rc < 0)
        return rc;
    *value = note.value;
    *bytes = note.bytes;
    return 0;
}

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t *x = (const uint64_t *)a, *y = (const uint64_t *)b;
    return (*x > *y) - (*x < *y);
}

/* Numbers of all notes of a kind, sorted, on the heap. */
static int list_notes(struct tierce__redis_space *space, uint8_t kind, uint64_t **out,
                      size_t *count)
{
    struct tierce__resp *resp;
    struct tierce__resp_value value;
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    int rc = tierce__redis_begin(space->redis, &resp);
    if (rc < 0)
        return rc;
    char *name = notes_name(space, kind, &arena);
    rc = name == NULL ? -ENOMEM : tierce__redis_add_text(&command, "HKEYS");
    if (rc == 0)
        rc = tierce__redis_add_text(&command, name);
    if (rc == 0)
        rc = tierce__redis_call(resp, &command, &value);
    uint64_t *numbers = rc == 0 ? tierce__calloc(value.count, sizeof(*numbers)) : NULL;
    if (rc == 0 && numbers == NULL)
        rc = -ENOMEM;
    *count = 0;
    for (size_t i = 0; rc == 0 && i < value.count; i++)
        if (read_hex(&numbers[*count], &value.items[i]))
            ++*count;
    tierce__redis_end(space->redis, resp);
    tierce__arena_clear(&arena);
    if (rc < 0)
        return rc;
    qsort(numbers, *count, sizeof(*numbers), compare_numbers);
    *out = numbers;
    return 0;
}

static int redis_notes(struct tierce__meta_space *base, uint8_t kind,
                       int (*each)(void *arg, const struct tierce__meta_note *note), void *arg)
{
    uint64_t *numbers = NULL;
    size_t count = 0;
    int rc = list_notes(space_of(base), kind, &numbers, &count);
    struct tierce__arena arena = {0};
    for (size_t done = 0; rc == 0 && done < count; done += NOTES) {
        struct tierce__meta_note notes[NOTES];
        size_t n = count - done < NOTES ? count - done : NOTES;
        tierce__arena_reset(&arena);
        rc = read_notes(space_of(base), kind, numbers + done, n, &arena, notes);
        for (size_t i = 0; rc == 0 && i < n; i++)
            if (notes[i].value != NULL)
                rc = each(arg, &notes[i]);
    }
    tierce__arena_clear(&arena);
    tierce__free(numbers);
    return rc;
}

/* ---- counters and the end of a space -------------------------------------------------------- */

static int redis_counters(struct tierce__meta_space *base, int64_t out[TIERCE__META_COUNTERS])
{
    struct tierce__redis_space *space = space_of(base);
    struct tierce__resp *resp;
    struct tierce__resp_value value;
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    int rc = tierce__redis_begin(space->redis, &resp);
    if (rc < 0)
        return rc;
    rc = tierce__redis_add_text(&command, "HMGET");
    if (rc == 0)
        rc = tierce__redis_add_text(&command, space->keys->metadata);
    for (unsigned i = 0; rc == 0 && i < TIERCE__META_COUNTERS; i++) {
        char *field = tierce__arena_alloc(&arena, 16);
        if (field != NULL)
            snprintf(field, 16, "tierce:%u", i);
        rc = field != NULL ? tierce__redis_add_text(&command, field) : -ENOMEM;
    }
    if (rc == 0)
        rc = tierce__redis_call(resp, &command, &value);
    if (rc == 0 && (value.type != TIERCE__RESP_ARRAY || value.count != TIERCE__META_COUNTERS))
        rc = TIERCE_E_FORMAT;
    for (unsigned i = 0; rc == 0 && i < TIERCE__META_COUNTERS; i++)
        out[i] =
            value.items[i].type == TIERCE__RESP_STRING ? strtoll(value.items[i].text, NULL, 10) : 0;
    tierce__redis_end(space->redis, resp);
    tierce__arena_clear(&arena);
    return rc;
}

static int drop_rest(struct tierce__redis_space *space)
{
    struct tierce__resp *resp;
    struct tierce__resp_value value;
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    int rc = tierce__redis_begin(space->redis, &resp);
    if (rc < 0)
        return rc;
    rc = tierce__redis_add_text(&command, "DEL");
    if (rc == 0)
        rc = tierce__redis_add_text(&command, space->keys->metadata);
    if (rc == 0)
        rc = tierce__redis_add_text(&command, space->keys->keys);
    for (uint8_t kind = 1; rc == 0 && kind < TIERCE__NOTE_KINDS; kind++) {
        char *name = notes_name(space, kind, &arena);
        rc = name != NULL ? tierce__redis_add_text(&command, name) : -ENOMEM;
    }
    if (rc == 0)
        rc = tierce__redis_call(resp, &command, &value);
    tierce__redis_end(space->redis, resp);
    tierce__arena_clear(&arena);
    return rc;
}

/* Records first, so that what is left of a drop that failed is still in the sorted set. */
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
        /* Without any too: the token is looked at. */
        if (rc == 0)
            rc = redis_write(base,
                             &(struct tierce__meta_batch){.deletes = keys, .delete_count = count});
    } while (rc == 0 && count == DROPPED);
    tierce__free(keys);
    return rc == 0 ? drop_rest(space_of(base)) : rc;
}

/* The server's memory is not ours. */
static uint64_t redis_memory(struct tierce__meta_space *space)
{
    (void)space;
    return 0;
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
    .notes = redis_notes,
    .note = redis_note,
    .counters = redis_counters,
    .memory = redis_memory,
    .unreadable = redis_unreadable,
};
