/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A registry in Redis or Valkey, as KVCM lays it out below "kvcache_registry:<cluster_name>:":
 *
 *     storage, instance_group, account    hashes, name -> JSON
 *     instance                            hash, id -> id
 *     <id>                                hash, id -> JSON
 *
 * Data that KVCM does not know is in a separate hash, "kvcache_registry_tierce:<cluster_name>":
 * format, fence, and the next numbers. Every call is one script, and therefore atomic. In a cluster
 * the name has a tag in braces, which puts all keys into one slot.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/registry/registry_store.h"
#include "net/redis/resp_pipeline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FENCED "TIERCEFENCED"

/* Both scripts: KEYS ours, storage, instance_group, instance, account; ARGV token (0: none),
 * prefix. A leader without a token, because Redis took no writes at its election
 * (lease_registry.c), reads a registry that has one, but does not write to it. */
#define CHECK_FENCE(when)                                                                          \
    "local token = tonumber(ARGV[1]) "                                                             \
    "local last = tonumber(redis.call('HGET', KEYS[1], '" TIERCE__REGISTRY_REDIS_FENCE             \
    "') or '0') "                                                                                  \
    "if " when "last > token then "                                                                \
    "return redis.error_reply('" FENCED " ' .. string.format('%.0f', last)) end "                  \
    "if last < token then redis.call('HSET', KEYS[1], '" TIERCE__REGISTRY_REDIS_FENCE              \
    "', ARGV[1]) end "

static const struct tierce__resp_script load_script = {
    .text = CHECK_FENCE("token > 0 and ") "local ids = redis.call('HKEYS', KEYS[4]) "
                                          "local texts = {} "
                                          "for i, id in ipairs(ids) do texts[i] = "
                                          "redis.call('HGET', ARGV[2] .. id, id) or '' end "
                                          "return {redis.call('HVALS', KEYS[2]), "
                                          "redis.call('HVALS', KEYS[3]), texts, "
                                          "redis.call('HVALS', KEYS[5]), redis.call('HMGET', "
                                          "KEYS[1], 'next_storage', "
                                          "'next_instance_group', 'next_instance', 'format', 'id', "
                                          "'generation_floor')}"};

/* ARGV 3 to 5: the next numbers; 6: "1" to begin with nothing; 7: the id; 8: the format; 9: the
 * floor of generations; then key, field, value each, without a value to delete. */
static const struct tierce__resp_script save_script = {
    .text =
        CHECK_FENCE("") "if ARGV[6] == '1' then "
                        "for _, id in ipairs(redis.call('HKEYS', KEYS[4])) do redis.call('DEL', "
                        "ARGV[2] .. id) end "
                        "redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5]) end "
                        "redis.call('HSET', KEYS[1], 'format', ARGV[8], 'next_storage', ARGV[3], "
                        "'next_instance_group', ARGV[4], 'next_instance', ARGV[5], "
                        "'generation_floor', ARGV[9]) "
                        "if ARGV[7] ~= '' then redis.call('HSET', KEYS[1], 'id', ARGV[7]) "
                        "elseif ARGV[6] == '1' then redis.call('HDEL', KEYS[1], 'id') end "
                        "for i = 10, #ARGV, 3 do "
                        "if ARGV[i + 2] == '' then redis.call('HDEL', ARGV[i], ARGV[i + 1]) "
                        "else redis.call('HSET', ARGV[i], ARGV[i + 1], ARGV[i + 2]) end end "
                        "return 1"};

static const char *const key_names[TIERCE__KINDS] = {
    [TIERCE__KIND_STORAGE] = "storage",
    [TIERCE__KIND_GROUP] = "instance_group",
    [TIERCE__KIND_INSTANCE] = "instance",
    [TIERCE__KIND_ACCOUNT] = "account",
};

struct redis_store {
    struct tierce__registry_store base;
    struct tierce__resp_pool *pool;
    struct tierce__arena names;
    const char *prefix, *own_key;
    const char *keys[TIERCE__KINDS];
    bool is_in_doubt; /* whether the stored state equals the last one written */
};

static struct redis_store *store_of(struct tierce__registry_store *store)
{
    TIERCE_DASSERT(store->ops == &tierce__registry_redis);
    return (struct redis_store *)store;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void redis_close(struct tierce__registry_store *base)
{
    struct redis_store *store = store_of(base);
    tierce__resp_pool_destroy(store->pool);
    tierce__arena_clear(&store->names);
    tierce__free(store);
}

static int make_keys(struct redis_store *store, const char *cluster)
{
    struct tierce__resp_pipeline texts = {.arena = &store->names};
    store->prefix = tierce__resp_pipeline_textf(&texts, "kvcache_registry:%s:", cluster);
    store->own_key = tierce__resp_pipeline_textf(&texts, TIERCE__REGISTRY_REDIS_OWN "%s", cluster);
    for (size_t i = 0; i < TIERCE__KINDS; i++)
        store->keys[i] = tierce__resp_pipeline_textf(&texts, "%s%s", store->prefix, key_names[i]);
    return texts.rc;
}

static unsigned slot_of(const char *key)
{
    return tierce__resp_slot(key, strlen(key));
}

/* KVCM's names follow from the cluster's, in which there may be a tag. */
static bool has_one_slot(const struct redis_store *store)
{
    unsigned slot = slot_of(store->own_key);
    bool is_one = slot_of(store->prefix) == slot;
    for (size_t i = 0; i < TIERCE__KINDS; i++)
        is_one = is_one && slot_of(store->keys[i]) == slot;
    return is_one;
}

static int set_up(struct redis_store *store, const struct tierce__resp_uri *uri, char why[256])
{
    const char *cluster = tierce__url_param(&uri->url, "cluster_name");
    if (cluster == NULL || *cluster == '\0') {
        snprintf(why, 256, "registry.uri must have ?cluster_name=NAME for a registry in Redis");
        return TIERCE_E_CONFIG;
    }
    int rc = make_keys(store, cluster);
    if (rc == 0 && uri->is_cluster && !has_one_slot(store)) {
        snprintf(why, 256,
                 "cluster_name must begin with a tag in braces, such as {name}: in a Redis "
                 "cluster all keys of a registry must be in one slot");
        return TIERCE_E_CONFIG;
    }
    if (rc == 0)
        rc = tierce__resp_pool_create(&store->pool, uri, why);
    return rc;
}

static int redis_open(struct tierce__registry_store **out, const char *uri, struct tierce__vfs *vfs,
                      char why[256])
{
    struct tierce__resp_uri parsed = {0};
    struct redis_store *store = tierce__calloc(1, sizeof(*store));
    (void)vfs;
    if (store == NULL)
        return -ENOMEM;
    store->base.ops = &tierce__registry_redis;
    int rc = tierce__resp_uri_parse(&parsed, uri, why);
    parsed.pool_max = 1;
    if (rc == 0)
        rc = set_up(store, &parsed, why);
    tierce__resp_uri_clear(&parsed);
    if (rc == 0)
        *out = &store->base;
    else
        redis_close(&store->base);
    return rc;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Begins a batch with a script, its keys, the token and the prefix. */
static void begin_script(struct tierce__resp_pipeline *batch, const struct redis_store *store,
                         const struct tierce__resp_script *script, uint64_t fence)
{
    const char *const keys[] = {store->own_key, store->keys[TIERCE__KIND_STORAGE],
                                store->keys[TIERCE__KIND_GROUP], store->keys[TIERCE__KIND_INSTANCE],
                                store->keys[TIERCE__KIND_ACCOUNT]};
    tierce__resp_pipeline_begin(batch, store->pool);
    tierce__resp_pipeline_script(batch, script, keys, sizeof(keys) / sizeof(keys[0]));
    tierce__resp_pipeline_addf(batch, "%" PRIu64, fence);
    tierce__resp_pipeline_add_text(batch, store->prefix);
}

/* `why` in words on an error. */
static int run(struct tierce__resp_pipeline *batch, uint64_t fence, char why[256])
{
    int rc = tierce__resp_pipeline_run(batch);
    if (batch->error != NULL && tierce__resp_is_error(batch->error, FENCED)) {
        snprintf(why, 256, "%s: %.100s",
                 fence != 0
                     ? "another manager has led since"
                     : "this manager has no token, because the registry in Redis accepted no "
                       "writes when it was elected; it will be elected again: try again later",
                 batch->why);
        return TIERCE_E_REFUSED;
    }
    TIERCE_DASSERT(rc < 0 || batch->error == NULL);
    if (rc < 0)
        snprintf(why, 256, "the registry in Redis: %.200s", batch->why);
    return rc;
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* Adds the triple that sets an entry or, without a value, deletes it; an instance has two. */
static void add_entry(struct tierce__resp_pipeline *batch, const struct redis_store *store,
                      enum tierce__registry_kind kind, const char *name, const char *value)
{
    TIERCE_DASSERT(kind < TIERCE__KINDS);
    TIERCE_DASSERT(name[0] != '\0');
    bool is_instance = kind == TIERCE__KIND_INSTANCE;
    if (is_instance)
        tierce__resp_pipeline_addf(batch, "%s%s", store->prefix, name);
    else
        tierce__resp_pipeline_add_text(batch, store->keys[kind]);
    tierce__resp_pipeline_add_text(batch, name);
    tierce__resp_pipeline_addf(batch, "%s", value);
    if (!is_instance)
        return;
    tierce__resp_pipeline_add_text(batch, store->keys[kind]);
    tierce__resp_pipeline_add_text(batch, name);
    tierce__resp_pipeline_add_text(batch, *value != '\0' ? name : "");
}

static int add_changes(struct tierce__resp_pipeline *batch, const struct redis_store *store,
                       const struct tierce__catalog *before, const struct tierce__catalog *after,
                       enum tierce__registry_kind kind)
{
    TIERCE_DASSERT(before != after);
    int rc = 0;
    for (size_t i = 0; i < before->lists[kind].count; i++) {
        const char *name = tierce__entry_name(tierce__catalog_entry(before, kind, i), kind);
        if (tierce__catalog_find(after, kind, name) == NULL)
            add_entry(batch, store, kind, name, "");
    }
    for (size_t i = 0; i < after->lists[kind].count && rc == 0; i++) {
        const void *entry = tierce__catalog_entry(after, kind, i);
        const char *name = tierce__entry_name(entry, kind);
        const void *old = tierce__catalog_find(before, kind, name);
        const struct tierce__fields *fields = tierce__catalog_fields(kind);
        char *text = NULL;
        if (old != NULL && tierce__model_difference(old, entry, fields, 0) == NULL)
            continue;
        rc = tierce__model_to_json(&text, entry, fields, TIERCE__JSON_STORED);
        if (rc == 0)
            add_entry(batch, store, kind, name, text);
        tierce__free(text);
    }
    return rc;
}

/* KVCM's layout has no place for an instance of one of these names. */
static int check_ids(const struct tierce__catalog *after, char why[256])
{
    for (size_t i = 0; i < TIERCE__KINDS; i++) {
        if (tierce__catalog_find(after, TIERCE__KIND_INSTANCE, key_names[i]) != NULL) {
            snprintf(why, 256, "a registry in Redis cannot hold an instance named %s",
                     key_names[i]);
            return TIERCE_E_ARGUMENT;
        }
    }
    return 0;
}

/* `before`: the stored state; NULL: unknown, so everything is rewritten. */
static int save_as(struct redis_store *store, uint64_t fence, const struct tierce__catalog *before,
                   const struct tierce__catalog *after, char why[256])
{
    static const struct tierce__catalog nothing;
    const struct tierce__catalog *old = before != NULL ? before : &nothing;
    const uint64_t numbers[] = {after->next.storage, after->next.group, after->next.instance};
    struct tierce__resp_pipeline batch;
    int rc = check_ids(after, why);
    if (rc < 0)
        return rc;
    TIERCE_DASSERT(after->next.storage > 0 && after->next.group > 0 && after->next.instance > 0);
    begin_script(&batch, store, &save_script, fence);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        tierce__resp_pipeline_addf(&batch, "%" PRIu64, numbers[i]);
    tierce__resp_pipeline_add_text(&batch, before != NULL ? "0" : "1");
    tierce__resp_pipeline_add_text(&batch, after->id);
    tierce__resp_pipeline_addf(&batch, "%u", tierce__catalog_format(after));
    tierce__resp_pipeline_addf(&batch, "%" PRIu64, after->generation_floor);
    for (unsigned kind = 0; rc == 0 && kind < TIERCE__KINDS; kind++)
        rc = add_changes(&batch, store, old, after, (enum tierce__registry_kind)kind);
    if (rc == 0)
        rc = run(&batch, fence, why);
    tierce__resp_pipeline_end(&batch);
    return rc;
}

/* Returns whether the stored state is unknown after such an error. */
static bool leaves_doubt(int rc)
{
    TIERCE_DASSERT(rc <= 0);
    return rc != 0 && rc != -ENOMEM && rc != TIERCE_E_REFUSED && rc != TIERCE_E_ARGUMENT &&
           rc != -EPROTO;
}

static int redis_save(struct tierce__registry_store *base, uint64_t fence,
                      const struct tierce__catalog *before, const struct tierce__catalog *after,
                      char why[256])
{
    TIERCE_DASSERT(before != after);
    struct redis_store *store = store_of(base);
    char ignored[256];
    int rc = save_as(store, fence, store->is_in_doubt ? NULL : before, after, why);
    if (rc == 0) {
        store->is_in_doubt = false;
    } else if (leaves_doubt(rc)) {
        /* The change may have been applied. It is undone now if possible, else with the next
         * change. */
        TIERCE_DASSERT(rc < 0);
        store->is_in_doubt = save_as(store, fence, NULL, before, ignored) != 0;
    }
    return rc;
}

/* ---- loading --------------------------------------------------------------------------------- */

static int refuse(const char *key, const char *inner, char why[256])
{
    snprintf(why, 256, "%.100s in Redis: %.140s", key, inner);
    return TIERCE_E_FORMAT;
}

/* Returns whether an entry lacks our own fields: then KVCM wrote it, and it must be rewritten. */
static bool is_foreign(struct tierce__text json, enum tierce__registry_kind kind)
{
    const char *key = kind == TIERCE__KIND_ACCOUNT ? "password_hash" : "number";
    return tierce__json_get(json, key).length == 0;
}

static int load_kind(const struct redis_store *store, enum tierce__registry_kind kind,
                     const struct tierce__resp_value *texts, struct tierce__catalog *out,
                     bool *has_foreign, char why[256])
{
    TIERCE_ASSERT(kind < TIERCE__KINDS);
    if (texts->type != TIERCE__RESP_ARRAY)
        return refuse(store->keys[kind], "not a list", why);
    for (size_t i = 0; i < texts->count; i++) {
        const struct tierce__resp_value *text = &texts->items[i];
        struct tierce__json_doc doc = {0};
        char inner[256] = "";
        if (text->type != TIERCE__RESP_STRING)
            return refuse(store->keys[kind], "an entry is not a string", why);
        int rc = tierce__model_parse_json(&doc, text->text, text->bytes, inner);
        *has_foreign = *has_foreign || (rc == 0 && is_foreign(doc.value, kind));
        if (rc == 0)
            rc = tierce__catalog_read(out, kind, doc.value, inner);
        tierce__json_doc_clear(&doc);
        if (rc != 0)
            return rc == -ENOMEM ? rc : refuse(store->keys[kind], inner, why);
    }
    return 0;
}

/* KVCM's registry has none. */
static bool is_known_format(const struct tierce__resp_value *value)
{
    if (value->type != TIERCE__RESP_STRING)
        return true;
    bool is_digit = value->bytes == 1 && value->text[0] >= '0' && value->text[0] <= '9';
    int format = is_digit ? value->text[0] - '0' : 0;
    return format >= TIERCE__REGISTRY_FORMAT && format <= TIERCE__REGISTRY_FORMAT_MAX;
}

/* Managers before it write none. */
static int load_floor(const struct redis_store *store, const struct tierce__resp_value *value,
                      struct tierce__catalog *out, char why[256])
{
    char *end = NULL;
    if (value->type == TIERCE__RESP_NIL)
        return 0;
    errno = 0;
    uint64_t floor = value->type == TIERCE__RESP_STRING ? strtoull(value->text, &end, 10) : 0;
    if (end == NULL || end == value->text || *end != '\0' || errno != 0 ||
        floor > TIERCE__GENERATION_MAX)
        return refuse(store->own_key, "generation_floor is not a number", why);
    out->generation_floor = floor;
    return 0;
}

static int load_own(const struct redis_store *store, const struct tierce__resp_value *values,
                    struct tierce__catalog *out, char why[256])
{
    uint64_t *const numbers[] = {&out->next.storage, &out->next.group, &out->next.instance};
    char inner[256] = "";
    if (values->type != TIERCE__RESP_ARRAY || values->count != 6)
        return refuse(store->own_key, "an unexpected answer", why);
    for (size_t i = 0; i < 3; i++) {
        const struct tierce__resp_value *value = &values->items[i];
        if (value->type == TIERCE__RESP_NIL)
            continue;
        uint64_t number = value->type == TIERCE__RESP_STRING ? strtoull(value->text, NULL, 10) : 0;
        if (number == 0 || number > (uint64_t)UINT32_MAX + 1)
            return refuse(store->own_key, "a counter is not a number", why);
        TIERCE_DASSERT(*numbers[i] > 0);
        *numbers[i] = number;
    }
    if (!is_known_format(&values->items[3])) {
        snprintf(why, 256,
                 "%.60s in Redis: format %.20s; this build reads %d to %d: use the version of "
                 "Tierce that wrote it, or a newer one",
                 store->own_key, values->items[3].text, TIERCE__REGISTRY_FORMAT,
                 TIERCE__REGISTRY_FORMAT_MAX);
        return TIERCE_E_VERSION;
    }
    int rc = load_floor(store, &values->items[5], out, why);
    if (rc < 0 || values->items[4].type != TIERCE__RESP_STRING)
        return rc;
    rc = tierce__catalog_set_id(out, values->items[4].text, inner);
    return rc == TIERCE_E_FORMAT ? refuse(store->own_key, inner, why) : rc;
}

static int redis_load(struct tierce__registry_store *base, uint64_t fence,
                      struct tierce__catalog *out, char why[256])
{
    TIERCE_DASSERT(out->lists[TIERCE__KIND_STORAGE].count == 0 &&
                   out->lists[TIERCE__KIND_INSTANCE].count == 0);
    struct redis_store *store = store_of(base);
    struct tierce__resp_pipeline batch;
    bool has_foreign = false;
    begin_script(&batch, store, &load_script, fence);
    int rc = run(&batch, fence, why);
    const struct tierce__resp_value *value = rc == 0 ? batch.values : NULL;
    if (rc == 0 && (value->type != TIERCE__RESP_ARRAY || value->count != TIERCE__KINDS + 1))
        rc = refuse(store->prefix, "an unexpected answer", why);
    if (rc == 0)
        rc = load_own(store, &value->items[TIERCE__KINDS], out, why);
    for (unsigned kind = 0; rc == 0 && kind < TIERCE__KINDS; kind++)
        rc = load_kind(store, (enum tierce__registry_kind)kind, &value->items[kind], out,
                       &has_foreign, why);
    tierce__resp_pipeline_end(&batch);
    if (rc == 0)
        rc = tierce__catalog_number(out, why);
    /* Numbers are not used before they are durable. */
    if (rc == 0 && has_foreign)
        rc = save_as(store, fence, NULL, out, why);
    if (rc == 0)
        store->is_in_doubt = false;
    return rc;
}

const struct tierce__registry_store_ops tierce__registry_redis = {
    .name = "redis",
    .open = redis_open,
    .close = redis_close,
    .load = redis_load,
    .save = redis_save,
};
