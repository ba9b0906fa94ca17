/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data set that KVCM wrote has no sorted set of keys and no byte counters, or outdated ones of
 * ours. KVCM's count of keys, which our scripts also write, detects this: if it differs from ours,
 * all keys of the database are scanned once.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "manager/meta/redis/meta_redis_private.h"

#define SCAN_COUNT "1000"

struct import {
    struct tierce__redis_space *space;
    char *pattern; /* of SCAN */
    int64_t counters[TIERCE__META_COUNTERS];
};

/* The prefix, escaped for a pattern, followed by a star. */
static char *make_pattern(const char *prefix)
{
    size_t bytes = strlen(prefix);
    char *pattern = tierce__alloc(2 * bytes + 2);
    if (pattern != NULL)
        pattern[tierce__resp_pattern(pattern, prefix, bytes)] = '\0';
    return pattern;
}

/* A result of SCAN: the next cursor, and keys of records. */
struct import_page {
    const char *prefix;
    char cursor[24];
    int64_t *keys;
    size_t count;
};

static int take_page(struct import_page *page, const struct tierce__resp_value *value)
{
    TIERCE_DASSERT(page->count == 0);
    if (value->type != TIERCE__RESP_ARRAY || value->count != 2 ||
        value->items[0].type != TIERCE__RESP_STRING ||
        value->items[0].bytes >= sizeof(page->cursor) || value->items[1].type != TIERCE__RESP_ARRAY)
        return TIERCE_E_FORMAT;
    memcpy(page->cursor, value->items[0].text, value->items[0].bytes + 1);
    const struct tierce__resp_value *names = &value->items[1];
    page->keys = tierce__calloc(names->count, sizeof(*page->keys));
    if (page->keys == NULL)
        return -ENOMEM;
    size_t prefix_bytes = strlen(page->prefix);
    for (size_t i = 0; i < names->count; i++) {
        char *end, again[24];
        if (names->items[i].type != TIERCE__RESP_STRING || names->items[i].bytes <= prefix_bytes)
            continue;
        const char *digits = names->items[i].text + prefix_bytes;
        errno = 0;
        long long key = strtoll(digits, &end, 10);
        snprintf(again, sizeof(again), "%lld", key);
        /* Accepts only the canonical form of a number: others cannot be looked up. */
        if (errno == 0 && strcmp(again, digits) == 0)
            page->keys[page->count++] = key;
    }
    return 0;
}

/* Adds keys to the sorted set; a key that SCAN returns twice counts once. */
static int add_keys(struct import *import, const int64_t *keys, size_t count,
                    const struct tierce__record *records, const bool *found)
{
    TIERCE_DASSERT(import->counters[TIERCE__META_KEYS] >= 0);
    struct tierce__resp_pipeline batch;
    size_t added = 0;
    tierce__resp_pipeline_begin(&batch, import->space->redis->pool);
    for (size_t i = 0; i < count; i++) {
        if (!found[i])
            continue;
        TIERCE__RESP_COMMAND(&batch, "ZADD", import->space->keys->keys, "0");
        tierce__resp_pipeline_addf(&batch, "%016" PRIx64, tierce__meta_mix(keys[i]));
        added++;
    }
    TIERCE_DASSERT(added <= count);
    int rc = added > 0 ? tierce__redis_run(&batch) : 0;
    for (size_t i = 0, n = 0; rc == 0 && added > 0 && i < count; i++) {
        const struct tierce__resp_value *value = &batch.values[n];
        n += found[i];
        if (!found[i] || value->type != TIERCE__RESP_INTEGER || value->integer != 1)
            continue;
        import->counters[TIERCE__META_KEYS]++;
        tierce__meta_count_bytes(import->counters, &records[i], true);
    }
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static int import_page(struct import *import, const int64_t *keys, size_t count)
{
    TIERCE_DASSERT(count > 0);
    struct tierce__arena arena = {0};
    struct tierce__record *records = tierce__arena_calloc(&arena, count, sizeof(*records));
    bool *found = tierce__arena_calloc(&arena, count, sizeof(*found));
    int rc = records == NULL || found == NULL ? -ENOMEM : 0;
    if (rc == 0)
        rc = tierce__redis_get(&import->space->base, keys, count, &arena, records, found);
    if (rc == 0)
        rc = add_keys(import, keys, count, records, found);
    tierce__arena_clear(&arena);
    return rc;
}

/* Reads one page of the i-th server. -ENOENT: there are fewer servers. */
static int scan_page(struct import *import, size_t i, struct import_page *page)
{
    TIERCE_DASSERT(page->count == 0 && page->cursor[0] != '\0');
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, import->space->redis->pool);
    TIERCE__RESP_COMMAND(&batch, "SCAN", page->cursor, "MATCH", import->pattern, "COUNT",
                         SCAN_COUNT);
    int rc = tierce__redis_run_at(&batch, i);
    if (rc == 0)
        rc = take_page(page, &batch.values[0]);
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static int import_pages(struct import *import, size_t i)
{
    struct import_page page = {.prefix = import->space->keys->data, .cursor = "0"};
    int rc;
    do {
        page.count = 0;
        rc = scan_page(import, i, &page);
        if (rc == 0 && page.count > 0)
            rc = import_page(import, page.keys, page.count);
        tierce__free(page.keys);
        page.keys = NULL;
    } while (rc == 0 && strcmp(page.cursor, "0") != 0);
    return rc;
}

static int import_servers(struct import *import)
{
    int rc = 0;
    for (size_t i = 0; rc == 0; i++)
        rc = import_pages(import, i);
    return rc == -ENOENT ? 0 : rc;
}

/* Writes all counters at once, including KVCM's. */
static int set_counters(struct import *import)
{
    TIERCE_DASSERT(import->counters[TIERCE__META_KEYS] >= 0);
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, import->space->redis->pool);
    TIERCE__RESP_COMMAND(&batch, "HSET", import->space->keys->metadata, "__key_count__");
    tierce__resp_pipeline_addf(&batch, "%" PRId64, import->counters[TIERCE__META_KEYS]);
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++) {
        tierce__resp_pipeline_addf(&batch, "tierce:%u", i);
        tierce__resp_pipeline_addf(&batch, "%" PRId64, import->counters[i]);
    }
    return tierce__redis_do(&batch);
}

/* 1: KVCM wrote last, so that its count of keys and ours differ. */
static int was_theirs(struct tierce__redis_space *space)
{
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, space->redis->pool);
    TIERCE__RESP_COMMAND(&batch, "HMGET", space->keys->metadata, "__key_count__", "tierce:0");
    int rc = tierce__redis_run(&batch);
    if (rc == 0 && (batch.values[0].type != TIERCE__RESP_ARRAY || batch.values[0].count != 2))
        rc = TIERCE_E_FORMAT;
    if (rc == 0) {
        const struct tierce__resp_value *theirs = &batch.values[0].items[0], *ours = theirs + 1;
        rc = theirs->type == TIERCE__RESP_STRING &&
             (ours->type != TIERCE__RESP_STRING || strcmp(theirs->text, ours->text) != 0);
    }
    tierce__resp_pipeline_end(&batch);
    return rc;
}

static int forget_keys(struct tierce__redis_space *space)
{
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, space->redis->pool);
    TIERCE__RESP_COMMAND(&batch, "DEL", space->keys->keys);
    return tierce__redis_do(&batch);
}

int tierce__redis_import(struct tierce__redis_space *space, bool always)
{
    struct import import = {.space = space};
    int rc = always ? 1 : was_theirs(space);
    if (rc <= 0)
        return rc;
    uint64_t start_ns = tierce__now_ns();
    import.pattern = make_pattern(space->keys->data);
    rc = import.pattern == NULL ? -ENOMEM : forget_keys(space);
    if (rc == 0)
        rc = import_servers(&import);
    if (rc == 0)
        rc = set_counters(&import);
    tierce__free(import.pattern);
    if (rc == 0)
        tierce__log(TIERCE_LOG_INFO, "meta_redis_taken_over",
                    "data=%s keys=%" PRId64 " ms=%" PRIu64, space->keys->data,
                    import.counters[TIERCE__META_KEYS],
                    (uint64_t)((tierce__now_ns() - start_ns) / TIERCE__MS_NS));
    return rc;
}
