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
#include "base/clock.h"
#include "base/log.h"
#include "manager/meta/redis/meta_redis_private.h"

enum { SCAN_COUNT = 1000 };

struct import {
    struct tierce__redis_space *space;
    char *pattern; /* of SCAN */
    int64_t counters[TIERCE__META_COUNTERS];
};

/* 1: KVCM's count and ours differ. */
static int compare_counts(void *arg, const struct tierce__resp_value *value)
{
    (void)arg;
    if (value->type != TIERCE__RESP_ARRAY || value->count != 2)
        return TIERCE_E_FORMAT;
    const struct tierce__resp_value *theirs = &value->items[0], *ours = &value->items[1];
    if (theirs->type != TIERCE__RESP_STRING)
        return 0;
    return ours->type != TIERCE__RESP_STRING || strcmp(theirs->text, ours->text) != 0;
}

/* The prefix, escaped for a pattern, followed by a star. */
static char *make_pattern(const char *prefix)
{
    char *pattern = tierce__alloc(2 * strlen(prefix) + 2), *to = pattern;
    if (pattern == NULL)
        return NULL;
    for (; *prefix != '\0'; prefix++) {
        if (strchr("*?[]\\^-", *prefix) != NULL)
            *to++ = '\\';
        *to++ = *prefix;
    }
    *to++ = '*';
    *to = '\0';
    return pattern;
}

/* A result of SCAN: the next cursor, and keys of records. */
struct page {
    const char *prefix;
    char cursor[24];
    int64_t *keys;
    size_t count;
};

static int take_page(void *arg, const struct tierce__resp_value *value)
{
    struct page *page = (struct page *)arg;
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

static void count_record(struct import *import, const struct tierce__record *record)
{
    import->counters[TIERCE__META_KEYS]++;
    tierce__meta_count_bytes(import->counters, record, true);
}

/* Adds keys to the sorted set; a key that SCAN returns twice counts once. */
static int add_keys(struct import *import, const int64_t *keys, size_t count,
                    const struct tierce__record *records, const bool *found)
{
    struct tierce__redis_space *space = import->space;
    struct tierce__resp_link *link;
    int rc = tierce__redis_begin(space->redis, &link);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        char member[24];
        if (!found[i])
            continue;
        snprintf(member, sizeof(member), "%016" PRIx64, tierce__meta_mix(keys[i]));
        const char *texts[] = {"ZADD", space->keys->keys, "0", member};
        size_t bytes[] = {4, strlen(space->keys->keys), 1, strlen(member)};
        rc = tierce__resp_link_append(link, 1, texts, bytes, 4);
    }
    if (rc == 0)
        rc = tierce__resp_link_flush(link, 0);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct tierce__resp_value value;
        if (!found[i])
            continue;
        rc = tierce__redis_read(link, &value);
        if (rc == 0 && value.type == TIERCE__RESP_INTEGER && value.integer == 1)
            count_record(import, &records[i]);
    }
    tierce__redis_end(space->redis, link);
    return rc;
}

static int import_page(struct import *import, const int64_t *keys, size_t count)
{
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
static int scan_page(struct import *import, size_t i, struct page *page)
{
    struct tierce__redis *redis = import->space->redis;
    struct tierce__resp_link *link;
    struct tierce__resp *server;
    struct tierce__resp_value value;
    char count[12];
    snprintf(count, sizeof(count), "%d", SCAN_COUNT);
    const char *texts[] = {"SCAN", page->cursor, "MATCH", import->pattern, "COUNT", count};
    size_t bytes[6];
    for (unsigned t = 0; t < 6; t++)
        bytes[t] = strlen(texts[t]);
    int rc = tierce__redis_begin(redis, &link);
    if (rc < 0)
        return rc;
    rc = tierce__resp_link_node(link, i, &server);
    if (rc == 0)
        rc = tierce__resp_call(server, texts, bytes, 6, &value, 0);
    if (rc == 0)
        rc = value.type == TIERCE__RESP_ERROR ? tierce__redis_refused(&value)
                                              : take_page(page, &value);
    tierce__redis_end(redis, link);
    return rc;
}

static int import_pages(struct import *import, size_t i)
{
    struct page page = {.prefix = import->space->keys->data, .cursor = "0"};
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
    struct tierce__redis_space *space = import->space;
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    tierce__redis_add_text(&command, "HSET");
    tierce__redis_add_text(&command, space->keys->metadata);
    tierce__redis_add_text(&command, "__key_count__");
    tierce__redis_addf(&command, "%" PRId64, import->counters[TIERCE__META_KEYS]);
    for (unsigned i = 0; i < TIERCE__META_COUNTERS; i++) {
        tierce__redis_addf(&command, "tierce:%u", i);
        tierce__redis_addf(&command, "%" PRId64, import->counters[i]);
    }
    int rc = tierce__redis_ask(space->redis, &command, NULL, NULL);
    tierce__arena_clear(&arena);
    return rc;
}

/* 1: KVCM wrote last. */
static int was_theirs(struct tierce__redis_space *space)
{
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    tierce__redis_add_text(&command, "HMGET");
    tierce__redis_add_text(&command, space->keys->metadata);
    tierce__redis_add_text(&command, "__key_count__");
    tierce__redis_add_text(&command, "tierce:0");
    int rc = tierce__redis_ask(space->redis, &command, compare_counts, NULL);
    tierce__arena_clear(&arena);
    return rc;
}

static int forget_keys(struct tierce__redis_space *space)
{
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    tierce__redis_add_text(&command, "DEL");
    tierce__redis_add_text(&command, space->keys->keys);
    int rc = tierce__redis_ask(space->redis, &command, NULL, NULL);
    tierce__arena_clear(&arena);
    return rc;
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
