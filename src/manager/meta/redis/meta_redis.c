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
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/config/config_parse.h"
#include "base/log_repeat.h"
#include "net/redis/resp_uri.h"

enum {
    GET_KEYS = 512, /* of one pipeline */
    DRAWS = 256,    /* and random seeks */
    TOUCHES = 500,  /* of one script */
    DROPPED = 1000, /* records of one script */
};

#define FENCE_KEY "kvcache:tierce:fence"

static struct tierce__redis *redis_of(struct tierce__meta_store *store)
{
    return (struct tierce__redis *)store;
}

static struct tierce__redis_space *space_of(struct tierce__meta_space *space)
{
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
        tierce__free(keys->data);
        tierce__free(keys->metadata);
        tierce__free(keys->keys);
        tierce__free(keys->notes);
        tierce__free(keys->journal);
        tierce__free(keys->guard);
        tierce__free(keys);
    }
    tierce__lock_fini(&redis->lock);
    tierce__free(redis);
}

/* Every server knows the scripts. */
static int load_scripts(struct tierce__redis *redis, struct tierce__resp_link *link)
{
    struct tierce__resp *server;
    int rc = 0;
    for (size_t i = 0; rc == 0; i++) {
        rc = tierce__resp_link_node(link, i, &server);
        if (rc == 0)
            rc = tierce__redis_load_scripts(redis, server);
    }
    return rc == -ENOENT ? 0 : rc;
}

/* Makes the first connection; its failure is reported in words. */
static int greet(struct tierce__redis *redis, char why[256])
{
    struct tierce__resp_link *link;
    int rc = tierce__resp_pool_take(redis->pool, &link, 0);
    if (rc < 0)
        return rc;
    redis->is_cluster = tierce__resp_link_is_cluster(link);
    rc = tierce__resp_link_begin(link);
    if (rc == 0)
        rc = load_scripts(redis, link);
    if (rc < 0)
        snprintf(why, 256, "%.200s", tierce__resp_link_why(link));
    if (rc == -EPROTO)
        snprintf(why, 256, "the server does not support scripts");
    tierce__redis_end(redis, link);
    return rc == -EACCES ? TIERCE_E_REFUSED : rc;
}

static int read_touch_ms(uint32_t *out, const struct tierce__resp_uri *uri, char why[256])
{
    enum { TOUCH_MS_DEFAULT = 10000, TOUCH_MS_MAX = 3600000 };
    const char *text = tierce__url_param(&uri->url, "touch_ms");
    uint64_t number = TOUCH_MS_DEFAULT;
    if (text != NULL &&
        (!tierce__parse_count(&number, text) || number == 0 || number > TOUCH_MS_MAX)) {
        snprintf(why, 256, "URL: touch_ms must be a number from 1 to 3600000");
        return TIERCE_E_CONFIG;
    }
    *out = (uint32_t)number;
    return 0;
}

static int open_parts(struct tierce__redis *redis, const struct tierce__resp_uri *uri,
                      char why[256])
{
    uint32_t touch_ms;
    int rc = read_touch_ms(&touch_ms, uri, why);
    if (rc == 0)
        rc = tierce__resp_pool_create(&redis->pool, uri, why);
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

int tierce__redis_raise_fence(struct tierce__redis *redis)
{
    static const char *const keys[] = {FENCE_KEY};
    char token[TIERCE__REDIS_TOKEN_BYTES + 1];
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    tierce__redis_token(redis, token);
    tierce__redis_start_script(redis, TIERCE__REDIS_FENCE, &command, keys, 1);
    tierce__redis_add_text(&command, token);
    int rc = tierce__redis_run_scripts(redis, TIERCE__REDIS_FENCE, &command, 1, NULL, NULL);
    tierce__arena_clear(&arena);
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
    atomic_fetch_add_explicit(&redis->fences, 1, memory_order_release); /* as settle reads it */
    return tierce__redis_raise_fence(redis);
}

/* ---- spaces --------------------------------------------------------------------------------- */

/* Sets `*out` if it is NULL, by printf rules. */
static bool has_name(char **name, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool has_name(char **name, const char *format, ...)
{
    if (*name != NULL)
        return true;
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int bytes = vsnprintf(NULL, 0, format, args);
    char *text = bytes < 0 ? NULL : tierce__alloc((size_t)bytes + 1);
    if (text != NULL)
        (void)vsnprintf(text, (size_t)bytes + 1, format, again);
    va_end(again);
    va_end(args);
    *name = text;
    return text != NULL;
}

/* In a cluster our own keys have a tag that puts them into the slot of the metadata. */
static bool has_own_names(struct tierce__redis_keys *keys, const char *id, bool is_cluster)
{
    if (!is_cluster)
        return has_name(&keys->keys, "kvcache:instance_%s:tierce:keys", id) &&
               has_name(&keys->notes, "kvcache:instance_%s:tierce:notes:", id);
    unsigned tag = tierce__resp_slot_tag(tierce__resp_slot(keys->metadata, strlen(keys->metadata)));
    return has_name(&keys->keys, "kvcache:tierce:{%u}:instance_%s:keys", tag, id) &&
           has_name(&keys->notes, "kvcache:tierce:{%u}:instance_%s:notes:", tag, id) &&
           has_name(&keys->journal, "kvcache:tierce:{%u}:instance_%s:journal", tag, id) &&
           has_name(&keys->guard, ":instance_%s:guard", id);
}

/* Finds the names, or makes and keeps them. Names that could not be allocated are made by the next
 * call. */
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
        is_whole = has_name(&keys->data, "kvcache:instance_%s:cache_", instance_id) &&
                   has_name(&keys->metadata, "kvcache:instance_%s:metadata", instance_id) &&
                   has_own_names(keys, instance_id, redis->is_cluster);
    tierce__lock_drop(&redis->lock);
    *out = keys;
    return is_whole ? 0 : -ENOMEM;
}

/* Writes the version of our keys and fields into the space, or checks it. */
static int check_version(struct tierce__redis *redis, const struct tierce__redis_keys *keys)
{
    const char *version = redis->is_cluster ? "2" : "1";
    struct tierce__resp_link *link;
    struct tierce__resp_value value;
    const char *set[] = {"HSETNX", keys->metadata, "tierce:version", version};
    size_t set_bytes[] = {6, strlen(keys->metadata), 14, 1};
    const char *get[] = {"HGET", keys->metadata, "tierce:version"};
    size_t get_bytes[] = {4, strlen(keys->metadata), 14};
    int rc = tierce__redis_begin(redis, &link);
    if (rc < 0)
        return rc;
    rc = tierce__resp_link_append(link, 1, set, set_bytes, 4);
    if (rc == 0)
        rc = tierce__resp_link_append(link, 1, get, get_bytes, 3);
    if (rc == 0)
        rc = tierce__resp_link_flush(link, 0);
    for (int i = 0; rc == 0 && i < 2; i++)
        rc = tierce__redis_read(link, &value);
    if (rc == 0 && (value.type != TIERCE__RESP_STRING || strcmp(value.text, version) != 0))
        rc = TIERCE_E_VERSION;
    tierce__redis_end(redis, link);
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
    space->registry = registry;
    space->instance = instance;
    return tierce__redis_import(space, false);
}

/* ---- reads ---------------------------------------------------------------------------------- */

static int append_get(struct tierce__resp_link *link, const struct tierce__redis_space *space,
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
    return tierce__resp_link_append(link, 1, texts, lengths, 2 + TIERCE__REDIS_FIELDS);
}

static int take_record(struct tierce__redis_space *space, const struct tierce__catalog *catalog,
                       struct tierce__resp_link *link, int64_t key, struct tierce__arena *arena,
                       struct tierce__record *record, bool *found)
{
    struct tierce__resp_value value;
    bool is_unreadable = false;
    int rc = tierce__redis_read(link, &value);
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
    struct tierce__resp_link *link;
    struct tierce__arena names = {0};
    size_t prefix_bytes = strlen(space->keys->data);
    int rc = tierce__redis_begin(space->redis, &link);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = append_get(link, space, keys[i], prefix_bytes, &names);
    if (rc == 0)
        rc = tierce__resp_link_flush(link, 0);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = take_record(space, catalog, link, keys[i], arena, &records[i], &found[i]);
    tierce__redis_end(space->redis, link);
    tierce__arena_clear(&names);
    return rc;
}

/* The connection was lost during the call; a read can be repeated. */
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
    int rc = tierce__redis_settle(space);
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

static void add_key(struct tierce__redis_command *command, int64_t key)
{
    tierce__redis_addf(command, "%" PRId64, key);
    tierce__redis_addf(command, "%016" PRIx64, tierce__meta_mix(key));
}

static void add_records(struct tierce__redis_command *command, struct tierce__redis_space *space,
                        const struct tierce__meta_batch *batch)
{
    const struct tierce__catalog *catalog =
        space->registry != NULL ? tierce__registry_acquire(space->registry) : NULL;
    tierce__redis_addf(command, "%zu", batch->put_count);
    for (size_t i = 0; command->rc == 0 && i < batch->put_count; i++) {
        add_key(command, batch->puts[i].key);
        tierce__redis_add_record(command, space, catalog, &batch->puts[i].record);
    }
    if (catalog != NULL)
        tierce__registry_release(space->registry, catalog);
    tierce__redis_addf(command, "%zu", batch->delete_count);
    for (size_t i = 0; i < batch->delete_count; i++)
        add_key(command, batch->deletes[i]);
}

void tierce__redis_add_notes(struct tierce__redis_command *command,
                             const struct tierce__meta_batch *batch)
{
    tierce__redis_addf(command, "%zu", batch->note_count);
    for (size_t i = 0; i < batch->note_count; i++) {
        const struct tierce__meta_note *note = &batch->notes[i];
        bool stays = note->value != NULL;
        tierce__redis_addf(command, "%u", note->kind);
        tierce__redis_addf(command, "%016" PRIx64, note->number);
        tierce__redis_add_text(command, stays ? "1" : "0");
        tierce__redis_add(command, stays ? note->value : "", stays ? note->bytes : 0);
    }
}

void tierce__redis_add_counters(struct tierce__redis_command *command,
                                const struct tierce__meta_batch *batch)
{
    unsigned count = 0;
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        count += batch->added[i] != 0;
    tierce__redis_addf(command, "%u", count);
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++) {
        if (batch->added[i] == 0)
            continue;
        tierce__redis_addf(command, "%u", i);
        tierce__redis_addf(command, "%" PRId64, batch->added[i]);
    }
}

static int redis_write(struct tierce__meta_space *base, const struct tierce__meta_batch *batch)
{
    struct tierce__redis_space *space = space_of(base);
    if (!tierce__meta_batch_is_valid(batch))
        return TIERCE_E_ARGUMENT;
    if (space->redis->is_cluster)
        return tierce__redis_commit(space, batch);
    const char *const keys[] = {FENCE_KEY, space->keys->metadata, space->keys->keys};
    char token[TIERCE__REDIS_TOKEN_BYTES + 1];
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    tierce__redis_token(space->redis, token);
    tierce__redis_start_script(space->redis, TIERCE__REDIS_WRITE, &command, keys, 3);
    tierce__redis_add_text(&command, token);
    tierce__redis_add_text(&command, space->keys->data);
    tierce__redis_add_text(&command, space->keys->notes);
    add_records(&command, space, batch);
    tierce__redis_add_notes(&command, batch);
    tierce__redis_add_counters(&command, batch);
    int rc = tierce__redis_run_scripts(space->redis, TIERCE__REDIS_WRITE, &command, 1, NULL, NULL);
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

static void add_touch(struct tierce__redis_command *command, const struct tierce__touch *touch)
{
    tierce__redis_addf(command, "%" PRId64, touch->used_us);
    tierce__redis_addf(command, "%" PRIu32, touch->uses);
}

/* One script for all of some touches. */
static int write_touches(struct tierce__redis *redis, const struct tierce__touch *touches,
                         size_t count, struct tierce__arena *arena)
{
    static const char *const fence[] = {FENCE_KEY};
    char token[TIERCE__REDIS_TOKEN_BYTES + 1];
    struct tierce__redis_command command = {.arena = arena};
    tierce__redis_token(redis, token);
    tierce__redis_start_script(redis, TIERCE__REDIS_TOUCH, &command, fence, 1);
    tierce__redis_add_text(&command, token);
    for (size_t i = 0; i < count; i++) {
        const struct tierce__redis_keys *keys = keys_numbered(redis, touches[i].space);
        if (keys == NULL)
            continue;
        tierce__redis_addf(&command, "%s%" PRId64, keys->data, touches[i].key);
        add_touch(&command, &touches[i]);
    }
    return tierce__redis_run_scripts(redis, TIERCE__REDIS_TOUCH, &command, 1, NULL, NULL);
}

/* One each, in one pipeline. */
static int spread_touches(struct tierce__redis *redis, const struct tierce__touch *touches,
                          size_t count, struct tierce__arena *arena)
{
    struct tierce__redis_command *commands = tierce__arena_calloc(arena, count, sizeof(*commands));
    size_t n = 0;
    if (commands == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        const struct tierce__redis_keys *keys = keys_numbered(redis, touches[i].space);
        if (keys == NULL)
            continue;
        const char *own = tierce__redis_textf(arena, "%s%" PRId64, keys->data, touches[i].key);
        if (own == NULL)
            return -ENOMEM;
        commands[n] = (struct tierce__redis_command){.arena = arena};
        tierce__redis_start_script(redis, TIERCE__REDIS_TOUCH_ONE, &commands[n], &own, 1);
        add_touch(&commands[n++], &touches[i]);
    }
    return n == 0
               ? 0
               : tierce__redis_run_scripts(redis, TIERCE__REDIS_TOUCH_ONE, commands, n, NULL, NULL);
}

/* Touches that cannot be written are lost, as the header allows; the error was logged. */
static void flush_touches(void *arg, const struct tierce__touch *touches, size_t count)
{
    struct tierce__redis *redis = (struct tierce__redis *)arg;
    int rc = 0;
    for (size_t done = 0, n; rc == 0 && done < count; done += n) {
        struct tierce__arena arena = {0};
        n = count - done < TOUCHES ? count - done : TOUCHES;
        rc = redis->is_cluster ? spread_touches(redis, touches + done, n, &arena)
                               : write_touches(redis, touches + done, n, &arena);
        tierce__arena_clear(&arena);
    }
}

/* ---- scans and samples ---------------------------------------------------------------------- */

/* A page of a scan. The keys' memory holds mixed numbers until they are converted. */
struct page {
    int64_t *keys;
    size_t limit, count;
};

static int take_page(void *arg, const struct tierce__resp_value *value)
{
    struct page *page = (struct page *)arg;
    for (; page->count < value->count && page->count < page->limit; page->count++)
        if (!tierce__redis_read_hex((uint64_t *)&page->keys[page->count],
                                    &value->items[page->count]))
            return TIERCE_E_FORMAT;
    return 0;
}

static int redis_scan(struct tierce__meta_space *base, uint64_t *cursor, size_t limit,
                      int64_t *keys, size_t *count)
{
    struct tierce__redis_space *space = space_of(base);
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    struct page page = {.keys = keys, .limit = limit};
    tierce__redis_add_text(&command, "ZRANGEBYLEX");
    tierce__redis_add_text(&command, space->keys->keys);
    tierce__redis_addf(&command, "[%016" PRIx64, *cursor);
    tierce__redis_add_text(&command, "+");
    tierce__redis_add_text(&command, "LIMIT");
    tierce__redis_add_text(&command, "0");
    tierce__redis_addf(&command, "%zu", limit);
    int rc = tierce__redis_settle(space);
    if (rc == 0)
        rc = tierce__redis_ask(space->redis, &command, take_page, &page);
    tierce__arena_clear(&arena);
    if (rc < 0)
        return rc;
    *cursor = page.count == limit && limit > 0 ? (uint64_t)keys[limit - 1] + 1 : 0;
    *count = page.count;
    for (size_t i = 0; i < page.count; i++)
        keys[i] = tierce__meta_unmix((uint64_t)keys[i]);
    return 0;
}

/* Random seeks, made many at a time. */
struct draws {
    struct tierce__redis_space *space;
    int64_t keys[DRAWS];
    size_t count, at;
};

/* One key from a number on. */
static int append_seek(struct tierce__resp_link *link, const struct tierce__redis_space *space,
                       uint64_t from)
{
    char first[24];
    snprintf(first, sizeof(first), "[%016" PRIx64, from);
    const char *texts[] = {"ZRANGEBYLEX", space->keys->keys, first, "+", "LIMIT", "0", "1"};
    size_t bytes[7];
    for (unsigned i = 0; i < 7; i++)
        bytes[i] = strlen(texts[i]);
    return tierce__resp_link_append(link, 1, texts, bytes, 7);
}

static int draw_many(struct draws *draws, uint64_t random)
{
    struct tierce__resp_link *link;
    struct tierce__resp_value value;
    int rc = tierce__redis_begin(draws->space->redis, &link);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; rc == 0 && i < DRAWS; i++)
        rc = append_seek(link, draws->space, tierce__meta_mix((int64_t)(random + i)));
    if (rc == 0)
        rc = tierce__resp_link_flush(link, 0);
    draws->count = draws->at = 0;
    for (unsigned i = 0; rc == 0 && i < DRAWS; i++) {
        uint64_t mixed;
        rc = tierce__redis_read(link, &value);
        if (rc == 0 && value.count == 1 && tierce__redis_read_hex(&mixed, &value.items[0]))
            draws->keys[draws->count++] = tierce__meta_unmix(mixed);
    }
    tierce__redis_end(draws->space->redis, link);
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

static int take_count(void *arg, const struct tierce__resp_value *value)
{
    *(uint64_t *)arg = value->type == TIERCE__RESP_INTEGER ? (uint64_t)value->integer : 0;
    return 0;
}

static int count_keys(struct tierce__redis_space *space, uint64_t *out)
{
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    tierce__redis_add_text(&command, "ZCARD");
    tierce__redis_add_text(&command, space->keys->keys);
    int rc = tierce__redis_ask(space->redis, &command, take_count, out);
    tierce__arena_clear(&arena);
    return rc;
}

static int redis_sample(struct tierce__meta_space *base, uint64_t *random, size_t count,
                        int64_t *keys, size_t *found)
{
    struct draws draws = {.space = space_of(base)};
    uint64_t there = 0;
    int rc = tierce__redis_settle(draws.space);
    if (rc == 0)
        rc = count_keys(draws.space, &there);
    if (rc < 0)
        return rc;
    return tierce__meta_sample(base, &(struct tierce__meta_draws){draw, &draws, there}, random,
                               count, keys, found);
}

/* ---- counters and the end of a space -------------------------------------------------------- */

static int take_counters(void *arg, const struct tierce__resp_value *value)
{
    int64_t *out = (int64_t *)arg;
    if (value->type != TIERCE__RESP_ARRAY || value->count != TIERCE__META_COUNTERS)
        return TIERCE_E_FORMAT;
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        out[i] = value->items[i].type == TIERCE__RESP_STRING
                     ? strtoll(value->items[i].text, NULL, 10)
                     : 0;
    return 0;
}

static int redis_counters(struct tierce__meta_space *base, int64_t out[TIERCE__META_COUNTERS])
{
    struct tierce__redis_space *space = space_of(base);
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    tierce__redis_add_text(&command, "HMGET");
    tierce__redis_add_text(&command, space->keys->metadata);
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++)
        tierce__redis_addf(&command, "tierce:%u", i);
    int rc = tierce__redis_settle(space);
    if (rc == 0)
        rc = tierce__redis_ask(space->redis, &command, take_counters, out);
    tierce__arena_clear(&arena);
    return rc;
}

static int drop_rest(struct tierce__redis_space *space)
{
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    tierce__redis_add_text(&command, "DEL");
    tierce__redis_add_text(&command, space->keys->metadata);
    tierce__redis_add_text(&command, space->keys->keys);
    for (unsigned kind = 1; kind < TIERCE__NOTE_KINDS; kind++)
        tierce__redis_addf(&command, "%s%u", space->keys->notes, kind);
    if (space->redis->is_cluster)
        tierce__redis_add_text(&command, space->keys->journal);
    int rc = tierce__redis_ask(space->redis, &command, NULL, NULL);
    tierce__arena_clear(&arena);
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

/* The server's memory is not counted. */
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
    .notes = tierce__redis_notes,
    .note = tierce__redis_note,
    .counters = redis_counters,
    .memory = redis_memory,
    .unreadable = redis_unreadable,
};
