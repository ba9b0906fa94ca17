/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks as keys of Redis or Valkey: a server, a master of sentinels, or a cluster. The key is the
 * prefix and the path without its first '/'. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/list.h"
#include "base/map.h"
#include "manager/storage/places.h"
#include "manager/storage/storage.h"
#include "net/redis/resp_pipeline.h"
#include "store/store_req.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

enum {
    PROBE_BYTES = 4096,
    PREFIX_BYTES_MAX = 128, /* of the connector, too */
    KEY_BYTES_MAX = PREFIX_BYTES_MAX + TIERCE__CONNECTOR_NAME_MAX,
};

/* The first part of names, "INSTANCE", and whether these are of this storage. */
struct known_part {
    struct tierce__map_node node;
    bool is_ours;
    char text[];
};

struct redis_driver {
    struct tierce__storage_driver base;
    struct tierce__resp_pool *pool;
    char prefix[PREFIX_BYTES_MAX + 1];
    /* A listing: a server, and the cursor of its next page; "": no listing. */
    size_t server;
    char cursor[24];
    struct tierce__map parts; /* struct known_part, by text */
};

static struct redis_driver *driver_of(struct tierce__storage_driver *base)
{
    TIERCE_DASSERT(base->ops == &tierce__storage_redis);
    return (struct redis_driver *)base;
}

/* Opens by the URL that clients open. */
static int open_url(struct redis_driver *driver, const char *url, char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp_uri parsed = {0};
    int rc = tierce__resp_uri_parse(&parsed, url, why);
    if (rc != 0)
        return rc;
    const char *prefix = tierce__url_param(&parsed.url, "prefix");
    parsed.pool_max = 1;
    if (prefix != NULL && strlen(prefix) > PREFIX_BYTES_MAX) {
        snprintf(why, TIERCE__RESP_WHY_BYTES, "key_prefix is longer than %d bytes",
                 PREFIX_BYTES_MAX);
        rc = TIERCE_E_CONFIG;
    } else {
        snprintf(driver->prefix, sizeof(driver->prefix), "%s", prefix != NULL ? prefix : "");
        rc = tierce__resp_pool_create(&driver->pool, &parsed, why);
    }
    tierce__resp_uri_clear(&parsed);
    return rc;
}

static int redis_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                      char why[128])
{
    const struct tierce__storage_at at = tierce__storage_at_of(storage);
    char text[TIERCE__STORAGE_WHY_BYTES] = "", *url = NULL;
    struct redis_driver *driver = tierce__calloc(1, sizeof(*driver));
    if (driver == NULL)
        return -ENOMEM;
    driver->base.ops = &tierce__storage_redis;
    int rc = tierce__storage_at_url(&url, &at, text);
    if (rc == 0)
        rc = open_url(driver, url, text);
    tierce__free(url);
    if (rc == 0) {
        *out = &driver->base;
        return 0;
    }
    snprintf(why, 128, "%.127s", text);
    tierce__free(driver);
    return rc;
}

static void redis_end_list(struct tierce__storage_driver *base)
{
    struct redis_driver *driver = driver_of(base);
    TIERCE__MAP_FOR_EACH (node, &driver->parts)
        tierce__free(TIERCE__CONTAINER_OF(node, struct known_part, node));
    tierce__map_fini(&driver->parts);
    driver->parts = (struct tierce__map){0};
    driver->cursor[0] = '\0';
}

static void redis_close(struct tierce__storage_driver *base)
{
    redis_end_list(base);
    tierce__resp_pool_destroy(driver_of(base)->pool);
    tierce__free(base);
}

/* Begins a batch with one command, to which wait_replicas applies. */
static void begin(struct tierce__resp_pipeline *batch, struct tierce__storage_driver *base,
                  const char *name, const char *key)
{
    tierce__resp_pipeline_begin(batch, driver_of(base)->pool);
    batch->writes = true;
    TIERCE__RESP_COMMAND(batch, name, key);
}

/* Writes, reads and deletes a key in one batch. The key expires even if its deletion fails. */
static int probe_key(struct tierce__storage_driver *base, const char *key, const char *bytes,
                     char why[128])
{
    static const char *const steps[] = {"write", "read", "delete"};
    struct tierce__resp_pipeline batch;
    begin(&batch, base, "SET", key);
    tierce__resp_pipeline_add(&batch, bytes, PROBE_BYTES);
    tierce__resp_pipeline_add_text(&batch, "EX");
    tierce__resp_pipeline_add_text(&batch, "60");
    TIERCE__RESP_COMMAND(&batch, "GET", key);
    TIERCE__RESP_COMMAND(&batch, "DEL", key);
    int rc = tierce__resp_pipeline_run(&batch);
    ptrdiff_t step = batch.error != NULL ? batch.error - batch.values : 0;
    const struct tierce__resp_value *value = rc == 0 ? &batch.values[1] : NULL;
    TIERCE_ASSERT(step < (ptrdiff_t)(sizeof(steps) / sizeof(steps[0])));
    if (rc < 0) {
        snprintf(why, 128, "%s: %.100s", steps[step], batch.why);
    } else if (value->type == TIERCE__RESP_NIL) {
        snprintf(why, 128, "read: the key is missing when it is read back");
        rc = TIERCE_E_DOWN;
    } else if (value->type != TIERCE__RESP_STRING || value->bytes != PROBE_BYTES ||
               memcmp(value->text, bytes, PROBE_BYTES) != 0) {
        snprintf(why, 128, "read: the bytes differ from those written");
        rc = TIERCE_E_CHECKSUM;
    }
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static int redis_probe(struct tierce__storage_driver *base, char why[128])
{
    uint8_t random[8];
    char key[PREFIX_BYTES_MAX + 40], bytes[PROBE_BYTES];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random) ||
        getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return -EIO;
    int used = snprintf(key, sizeof(key), "%stierce-probe:", driver_of(base)->prefix);
    tierce__hex_encode(key + used, random, sizeof(random));
    return probe_key(base, key, bytes, why);
}

/* Returns the answer to a command about the mark's key; the caller ends the batch. */
static int run_mark(struct tierce__resp_pipeline *batch, const char *step, char why[128])
{
    int rc = tierce__resp_pipeline_run(batch);
    if (rc < 0)
        snprintf(why, 128, "%s: %.100s", step, batch->why);
    TIERCE_DASSERT(rc < 0 || batch->error == NULL);
    return rc;
}

static void mark_key(char key[KEY_BYTES_MAX + 1], struct tierce__storage_driver *base)
{
    snprintf(key, KEY_BYTES_MAX + 1, "%s%s", driver_of(base)->prefix, TIERCE__STORAGE_MARK);
}

static int redis_read_mark(struct tierce__storage_driver *base, char id[TIERCE__STORAGE_ID_HEX + 1],
                           char why[128])
{
    struct tierce__resp_pipeline batch;
    char key[KEY_BYTES_MAX + 1];
    mark_key(key, base);
    tierce__resp_pipeline_begin(&batch, driver_of(base)->pool);
    TIERCE__RESP_COMMAND(&batch, "GET", key);
    int rc = run_mark(&batch, "read the mark", why);
    const struct tierce__resp_value *value = rc == 0 ? batch.values : NULL;
    if (rc == 0 && value->type == TIERCE__RESP_NIL)
        rc = -ENOENT;
    else if (rc == 0 && (value->type != TIERCE__RESP_STRING ||
                         !tierce__storage_mark_read(id, value->text, value->bytes)))
        rc = TIERCE_E_FORMAT;
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static int redis_write_mark(struct tierce__storage_driver *base, const char *id, char why[128])
{
    struct tierce__resp_pipeline batch;
    char key[KEY_BYTES_MAX + 1], text[TIERCE__STORAGE_MARK_BYTES + 1];
    mark_key(key, base);
    tierce__storage_mark_write(text, id);
    begin(&batch, base, "SET", key);
    tierce__resp_pipeline_add_text(&batch, text);
    int rc = run_mark(&batch, "write the mark", why);
    tierce__resp_pipeline_end(&batch);
    return rc;
}

/* The key of a path. False: no block can have this path. */
static bool key_of(char key[KEY_BYTES_MAX + 1], struct tierce__storage_driver *base,
                   const char *path)
{
    const char *name = tierce__storage_at_name(path, "/");
    if (name == NULL || strlen(name) > TIERCE__CONNECTOR_NAME_MAX)
        return false;
    int bytes = snprintf(key, KEY_BYTES_MAX + 1, "%s%s", driver_of(base)->prefix, name);
    TIERCE_DASSERT(bytes > 0 && bytes <= KEY_BYTES_MAX);
    return true;
}

static int redis_remove(struct tierce__storage_driver *base, const char *path)
{
    struct tierce__resp_pipeline batch;
    char key[KEY_BYTES_MAX + 1];
    if (!key_of(key, base, path))
        return TIERCE_E_ARGUMENT;
    begin(&batch, base, "DEL", key);
    int rc = tierce__resp_pipeline_run(&batch);
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static int redis_measure(struct tierce__storage_driver *base, const char *path, uint64_t *bytes)
{
    struct tierce__resp_pipeline batch;
    char key[KEY_BYTES_MAX + 1];
    if (!key_of(key, base, path))
        return TIERCE_E_ARGUMENT;
    begin(&batch, base, "STRLEN", key);
    int rc = tierce__resp_pipeline_run(&batch);
    if (rc == 0 && (batch.values[0].type != TIERCE__RESP_INTEGER || batch.values[0].integer < 0))
        rc = -EPROTO;
    if (rc == 0) {
        *bytes = (uint64_t)batch.values[0].integer;
        rc = *bytes > 0 ? 0 : -ENOENT; /* a key that is not there has length 0 */
    }
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static int redis_read(struct tierce__storage_driver *base, const char *path, uint64_t offset,
                      void *out, size_t bytes)
{
    struct tierce__resp_pipeline batch;
    char key[KEY_BYTES_MAX + 1], from[24], to[24];
    if (!key_of(key, base, path))
        return TIERCE_E_ARGUMENT;
    snprintf(from, sizeof(from), "%llu", (unsigned long long)offset);
    snprintf(to, sizeof(to), "%llu", (unsigned long long)(offset + bytes - 1));
    tierce__resp_pipeline_begin(&batch, driver_of(base)->pool);
    TIERCE__RESP_COMMAND(&batch, "GETRANGE", key, from, to);
    int rc = tierce__resp_pipeline_run(&batch);
    const struct tierce__resp_value *value = rc == 0 ? batch.values : NULL;
    if (rc == 0 && value->type != TIERCE__RESP_STRING)
        rc = -EPROTO;
    else if (rc == 0 && value->bytes != bytes)
        rc = value->bytes == 0 && offset == 0 ? -ENOENT : TIERCE_E_FORMAT;
    if (rc == 0)
        memcpy(out, value->text, bytes);
    tierce__resp_pipeline_end(&batch);
    return rc;
}

/* ---- list ------------------------------------------------------------------------------------ */

/* Adds the keys of a page. [cursor, [key, ...]] */
static int take_keys(struct redis_driver *driver, const struct tierce__resp_value *value,
                     struct tierce__storage_page *page)
{
    size_t prefix_bytes = strlen(driver->prefix);
    int rc = 0;
    if (value->type != TIERCE__RESP_ARRAY || value->count != 2 ||
        value->items[0].type != TIERCE__RESP_STRING || value->items[0].bytes == 0 ||
        value->items[0].bytes >= sizeof(driver->cursor) ||
        value->items[1].type != TIERCE__RESP_ARRAY)
        return -EPROTO;
    memcpy(driver->cursor, value->items[0].text, value->items[0].bytes + 1);
    for (size_t i = 0; rc == 0 && i < value->items[1].count; i++) {
        const struct tierce__resp_value *key = &value->items[1].items[i];
        if (key->type != TIERCE__RESP_STRING || key->bytes <= prefix_bytes ||
            memcmp(key->text, driver->prefix, prefix_bytes) != 0 || strlen(key->text) != key->bytes)
            continue;
        const char *name = key->text + prefix_bytes;
        size_t folder_bytes;
        bool is_block = tierce__place_number(name, &folder_bytes) != 0;
        page->others += !is_block && strcmp(name, TIERCE__STORAGE_MARK) != 0;
        if (is_block && key->bytes - prefix_bytes <= TIERCE__CONNECTOR_NAME_MAX)
            rc = tierce__storage_page_add(page, name, TIERCE__STORAGE_UNKNOWN_BYTES, 0);
    }
    return rc;
}

/* One page of a server. -ENOENT: there are fewer servers. */
static int scan(struct redis_driver *driver, struct tierce__storage_page *page, char why[128])
{
    struct tierce__resp_pipeline batch;
    char pattern[2 * PREFIX_BYTES_MAX + 2];
    pattern[tierce__resp_pattern(pattern, driver->prefix, strlen(driver->prefix))] = '\0';
    tierce__resp_pipeline_begin(&batch, driver->pool);
    batch.repeats = true;
    TIERCE__RESP_COMMAND(&batch, "SCAN", driver->cursor, "MATCH", pattern, "COUNT", "512");
    int rc = tierce__resp_pipeline_run_at(&batch, driver->server);
    if (rc < 0 && rc != -ENOENT)
        snprintf(why, 128, "SCAN: %.110s", batch.why);
    if (rc == 0)
        rc = take_keys(driver, &batch.values[0], page);
    tierce__resp_pipeline_end(&batch);
    return rc;
}

/* Another storage whose key_prefix begins with ours has its mark behind a beginning of the part. */
static int ask_marks(struct redis_driver *driver, const char *part, size_t bytes, bool *is_ours,
                     char why[128])
{
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, driver->pool);
    batch.repeats = true;
    for (size_t i = 1; i <= bytes; i++)
        TIERCE__RESP_COMMAND(&batch, "EXISTS",
                             tierce__resp_pipeline_textf(&batch, "%s%.*s" TIERCE__STORAGE_MARK,
                                                         driver->prefix, (int)i, part));
    int rc = tierce__resp_pipeline_run(&batch);
    *is_ours = true;
    for (size_t i = 0; rc == 0 && i < bytes; i++) {
        bool is_known = batch.values[i].type == TIERCE__RESP_INTEGER;
        *is_ours = *is_ours && is_known && batch.values[i].integer == 0;
        rc = is_known ? 0 : -EPROTO;
    }
    if (rc < 0)
        snprintf(why, 128, "EXISTS: %.110s", batch.why);
    tierce__resp_pipeline_end(&batch);
    return rc;
}

/* A storage whose key_prefix our own begins with has its mark behind a beginning of it, and may
 * have blocks behind ours. TIERCE_E_UNSUPPORTED: there is one. */
static int ask_outer_marks(struct redis_driver *driver, char why[128])
{
    struct tierce__resp_pipeline batch;
    size_t bytes = strlen(driver->prefix);
    tierce__resp_pipeline_begin(&batch, driver->pool);
    batch.repeats = true;
    for (size_t i = 0; i < bytes; i++)
        TIERCE__RESP_COMMAND(&batch, "EXISTS",
                             tierce__resp_pipeline_textf(&batch, "%.*s" TIERCE__STORAGE_MARK,
                                                         (int)i, driver->prefix));
    int rc = tierce__resp_pipeline_run(&batch);
    if (rc < 0)
        snprintf(why, 128, "EXISTS: %.110s", batch.why);
    for (size_t i = 0; rc == 0 && i < bytes; i++) {
        if (batch.values[i].type != TIERCE__RESP_INTEGER)
            rc = -EPROTO;
        else if (batch.values[i].integer != 0)
            rc = TIERCE_E_UNSUPPORTED;
        if (rc == TIERCE_E_UNSUPPORTED)
            snprintf(why, 128,
                     "another storage has key_prefix \"%.*s\", with which this one's begins: its "
                     "keys cannot be told apart",
                     (int)(i < 24 ? i : 24), driver->prefix);
    }
    tierce__resp_pipeline_end(&batch);
    return rc;
}

/* Whether the names with this first part are of this storage; the answer is kept for the listing.
 */
static int is_ours(struct redis_driver *driver, const char *name, bool *out, char why[128])
{
    size_t bytes = strcspn(name, "/");
    uint64_t hash = XXH3_64bits(name, bytes);
    struct tierce__map_node *node = tierce__map_find(&driver->parts, hash);
    for (; node != NULL; node = tierce__map_find_next(node)) {
        const struct known_part *known = TIERCE__CONTAINER_OF(node, struct known_part, node);
        if (strncmp(known->text, name, bytes) == 0 && known->text[bytes] == '\0') {
            *out = known->is_ours;
            return 0;
        }
    }
    struct known_part *part = tierce__alloc(sizeof(*part) + bytes + 1);
    int rc = part != NULL ? ask_marks(driver, name, bytes, out, why) : -ENOMEM;
    if (rc < 0) {
        tierce__free(part);
        return rc;
    }
    part->is_ours = *out;
    memcpy(part->text, name, bytes);
    part->text[bytes] = '\0';
    tierce__map_put(&driver->parts, &part->node, hash);
    return 0;
}

/* Leaves only those objects on the page that are of this storage. */
static int drop_foreign(struct redis_driver *driver, struct tierce__storage_page *page,
                        char why[128])
{
    size_t kept = 0;
    int rc = 0;
    for (size_t i = 0; i < page->count; i++) {
        bool stays = false;
        if (rc == 0)
            rc = is_ours(driver, page->objects[i].name, &stays, why);
        if (stays) {
            page->objects[kept++] = page->objects[i];
        } else {
            page->others++;
            tierce__free(page->objects[i].name);
        }
    }
    page->count = kept;
    return rc;
}

/* Redis does not tell when a key was written: OBJECT IDLETIME depends on the eviction policy, on
 * the server's clock, and on readers. */
static int redis_list(struct tierce__storage_driver *base, bool is_first,
                      struct tierce__storage_page *page, char why[128])
{
    struct redis_driver *driver = driver_of(base);
    TIERCE_ASSERT(page->count == 0);
    if (driver->prefix[0] == '\0') {
        snprintf(why, 128,
                 "without a key_prefix, keys of other programs cannot be told from blocks");
        return TIERCE_E_UNSUPPORTED;
    }
    if (is_first) {
        redis_end_list(base);
        int rc = ask_outer_marks(driver, why);
        if (rc < 0)
            return rc;
        driver->server = 0;
        snprintf(driver->cursor, sizeof(driver->cursor), "0");
    } else if (driver->cursor[0] == '\0') {
        return -ESTALE;
    }
    int rc = scan(driver, page, why);
    bool has_server = rc != -ENOENT || driver->server == 0;
    if (rc == 0)
        rc = drop_foreign(driver, page, why);
    if (rc == 0 && strcmp(driver->cursor, "0") == 0)
        driver->server++;
    page->is_end = !has_server;
    if (rc != 0)
        redis_end_list(base);
    return has_server ? rc : 0;
}

/* The number after "name:" in INFO's answer; 0 if missing. */
static double info_of(const char *info, const char *name)
{
    const char *at = strstr(info, name);
    return at != NULL ? strtod(at + strlen(name), NULL) : 0;
}

/* Returns the share of the fullest server, because its keys cannot go to another one; -1: unknown.
 */
static double redis_used_share(struct tierce__storage_driver *base)
{
    struct tierce__resp_pipeline batch;
    double most = -1;
    tierce__resp_pipeline_begin(&batch, driver_of(base)->pool);
    TIERCE__RESP_COMMAND(&batch, "INFO", "memory");
    /* After an error reply of one server the others are still asked. */
    for (size_t i = 0; tierce__resp_pipeline_run_at(&batch, i) == 0 || batch.error != NULL; i++) {
        if (batch.error != NULL || batch.values[0].type != TIERCE__RESP_STRING)
            continue;
        double max = info_of(batch.values[0].text, "\nmaxmemory:");
        double share = max > 0 ? info_of(batch.values[0].text, "\nused_memory:") / max : -1;
        most = share > most ? share : most;
    }
    tierce__resp_pipeline_end(&batch);
    return most;
}

const struct tierce__storage_ops tierce__storage_redis = {
    .name = "redis",
    .open = redis_open,
    .close = redis_close,
    .probe = redis_probe,
    .read_mark = redis_read_mark,
    .write_mark = redis_write_mark,
    .may_forget = true,
    .remove = redis_remove,
    .measure = redis_measure,
    .read_max = TIERCE__STORAGE_PIECE,
    .read = redis_read,
    .list = redis_list,
    .end_list = redis_end_list,
    .used_share = redis_used_share,
};
