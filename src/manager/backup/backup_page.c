/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/backup/backup_page.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "manager/locate/locator_private.h"
#include "manager/registry/catalog.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A page has PAGE_BYTES, and up to PAGE_BYTES_MAX because keys are read several at a time; one
 * record may have as many bytes as a frame. */
enum { PAGE_BYTES = 512 * 1024, PAGE_BYTES_MAX = 8 * PAGE_BYTES };
enum { SCAN_KEYS_FIRST = 16, SCAN_KEYS_MAX = 256 };

/* The text is "1-FENCE-STARTED-END-INSTANCE-KEY", in hexadecimal. */
struct cursor {
    uint64_t fence, started_us;
    uint64_t end;           /* instances with smaller numbers belong to the backup */
    uint64_t instance, key; /* the scan of this instance goes on at this key */
};

static void print_cursor(char out[TIERCE__BACKUP_CURSOR_BYTES], const struct cursor *cursor)
{
    snprintf(out, TIERCE__BACKUP_CURSOR_BYTES,
             "1-%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64, cursor->fence,
             cursor->started_us, cursor->end, cursor->instance, cursor->key);
}

static int read_cursor(struct cursor *out, const struct tierce__backup_page_opts *opts,
                       const char *text, char why[TIERCE__WHY_BYTES])
{
    char rest;
    int got = sscanf(text, "1-%" SCNx64 "-%" SCNx64 "-%" SCNx64 "-%" SCNx64 "-%" SCNx64 "%c",
                     &out->fence, &out->started_us, &out->end, &out->instance, &out->key, &rest);
    if (got != 5)
        return tierce__why(why, TIERCE_E_ARGUMENT,
                           "cursor \"%.60s\" is none; it must be \"\" or the cursor of an answer",
                           text);
    if (out->fence != opts->fence || out->started_us != opts->started_us)
        return tierce__why(why, -ESTALE,
                           "the leader has changed since this backup began; begin it again");
    return 0;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static int make_catalog(struct tierce__backup_made *out,
                        const struct tierce__backup_page_opts *opts, struct tierce__arena *arena,
                        char why[TIERCE__WHY_BYTES])
{
    char *text = NULL;
    struct cursor next = {.fence = opts->fence, .started_us = opts->started_us, .instance = 1};
    const struct tierce__catalog *catalog = tierce__registry_acquire(opts->registry);
    int rc = tierce__catalog_print_all(&text, catalog);
    next.end = catalog->next.instance;
    tierce__registry_release(opts->registry, catalog);
    if (rc < 0)
        return tierce__why(why, rc, "no memory");
    out->kind = TIERCE__BACKUP_CATALOG;
    out->bytes = strlen(text);
    out->content = tierce__arena_copy(arena, text, out->bytes);
    tierce__free(text);
    if (out->content == NULL)
        return tierce__why(why, -ENOMEM, "no memory");
    if (out->bytes > TIERCE__BACKUP_FRAME_MAX)
        return tierce__why(why, TIERCE_E_LIMIT,
                           "the registry has %zu bytes; a backup has room for %u", out->bytes,
                           TIERCE__BACKUP_FRAME_MAX);
    print_cursor(out->cursor, &next);
    return 0;
}

/* The id, in the arena, of the instance with the smallest number from *number on and below `end`.
 * *out = NULL: there is none. Errors: -ENOMEM. */
static int find_instance(const char **out, uint64_t *number, const struct tierce__catalog *catalog,
                         uint64_t end, struct tierce__arena *arena)
{
    size_t count;
    const struct tierce__instance *instances = tierce__catalog_instances(catalog, &count);
    const struct tierce__instance *best = NULL;
    for (size_t i = 0; i < count; i++) {
        if (instances[i].number >= *number && instances[i].number < end &&
            (best == NULL || instances[i].number < best->number))
            best = &instances[i];
    }
    *out = NULL;
    if (best == NULL)
        return 0;
    *number = best->number;
    *out = tierce__arena_copy(arena, best->id, strlen(best->id));
    return *out != NULL ? 0 : -ENOMEM;
}

struct pages {
    struct tierce__arena *arena;
    unsigned char *bytes;
    size_t used, room;
    uint32_t count;
    size_t scan_keys; /* of the next scan */
    bool is_full;     /* the next records do not fit */
};

static int add_record(struct pages *page, int64_t key, const struct tierce__record *record)
{
    size_t wanted = page->used + tierce__backup_put_record(NULL, key, record);
    if (wanted > page->room) {
        size_t room = wanted > PAGE_BYTES ? 2 * wanted : 2 * (size_t)PAGE_BYTES;
        unsigned char *grown = tierce__arena_alloc(page->arena, room);
        if (grown == NULL)
            return -ENOMEM;
        if (page->used > 0)
            memcpy(grown, page->bytes, page->used);
        page->bytes = grown;
        page->room = room;
    }
    TIERCE_ASSERT(page->used >= TIERCE__BACKUP_PAGE_HEAD);
    page->used += tierce__backup_put_record(page->bytes + page->used, key, record);
    page->count++;
    return 0;
}

/* 0: the records of a scan fit into the page. 1: they may fit if fewer are read. Else the page is
 * full, or one record does not even fit into a page of its own: TIERCE_E_LIMIT. */
static int check_fit(struct pages *page, size_t bytes, size_t count)
{
    bool is_alone = page->count == 0 && count == 1;
    size_t most = is_alone ? TIERCE__BACKUP_FRAME_MAX : PAGE_BYTES_MAX;
    if (page->used + bytes <= most)
        return 0;
    if (page->count > 0)
        page->is_full = true;
    else if (page->scan_keys > 1)
        page->scan_keys /= 2;
    else
        return TIERCE_E_LIMIT;
    return 1;
}

/* Reads some keys of a scan into the page. 1: none, and *at is as before. */
static int read_some(struct pages *page, struct tierce__meta_space *space, uint64_t *at,
                     uint64_t *missing)
{
    int64_t keys[SCAN_KEYS_MAX];
    bool found[SCAN_KEYS_MAX] = {false};
    struct tierce__record *records;
    struct tierce__arena arena = {0};
    size_t count = 0, bytes = 0, kept = 0;
    uint64_t from = *at;
    int rc = space->ops->scan(space, at, page->scan_keys, keys, &count);
    records = tierce__arena_calloc(&arena, count + 1, sizeof(*records));
    if (rc == 0 && records == NULL)
        rc = -ENOMEM;
    if (rc == 0 && count > 0)
        rc = space->ops->get(space, keys, count, &arena, records, found);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        bytes += found[i] ? tierce__backup_put_record(NULL, keys[i], &records[i]) : 0;
        kept += found[i];
    }
    if (rc == 0)
        rc = check_fit(page, bytes, kept);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        *missing += !found[i];
        if (found[i])
            rc = add_record(page, keys[i], &records[i]);
    }
    if (rc > 0)
        *at = from;
    else if (bytes < PAGE_BYTES / 4 && page->scan_keys < SCAN_KEYS_MAX)
        page->scan_keys *= 2;
    tierce__arena_clear(&arena);
    return rc;
}

/* Reads a page of an instance; *at is 0 at the instance's end. */
static int read_records(struct pages *page, struct tierce__live *live, uint64_t *at,
                        uint64_t *missing)
{
    struct tierce__meta_space *space = live->space;
    int rc = 0;
    page->used = TIERCE__BACKUP_PAGE_HEAD;
    page->bytes = tierce__arena_alloc(page->arena, PAGE_BYTES);
    page->room = PAGE_BYTES;
    page->scan_keys = SCAN_KEYS_FIRST;
    if (page->bytes == NULL)
        return -ENOMEM;
    do
        rc = read_some(page, space, at, missing);
    while (!page->is_full && (rc > 0 || (rc == 0 && *at != 0 && page->used < PAGE_BYTES)));
    /* Another leader may have written since. */
    return rc >= 0 ? tierce__meta_confirm(space) : rc;
}

static int make_records(struct tierce__backup_made *out,
                        const struct tierce__backup_page_opts *opts, struct cursor *cursor,
                        struct tierce__arena *arena, char why[TIERCE__WHY_BYTES])
{
    const char *id;
    struct pages page = {.arena = arena};
    struct tierce__live *live;
    uint64_t number = cursor->instance;
    const struct tierce__catalog *catalog = tierce__registry_acquire(opts->registry);
    int rc = find_instance(&id, &number, catalog, cursor->end, arena);
    tierce__registry_release(opts->registry, catalog);
    if (rc < 0)
        return tierce__why(why, rc, "no memory");
    out->kind = TIERCE__BACKUP_END;
    if (id == NULL)
        return 0;
    if (number != cursor->instance)
        cursor->key = 0;
    cursor->instance = number;
    rc = tierce__live_acquire(&live, opts->locator, id, why);
    if (rc == -ENOENT) { /* it is being removed */
        cursor->key = 0;
        rc = 0;
    } else if (rc == 0) {
        rc = read_records(&page, live, &cursor->key, &out->unreadable);
        tierce__live_release(live);
        if (rc < 0)
            return tierce__why(why, rc, "the index of instance %.100s cannot be read: %s", id,
                               tierce_strerror(rc));
    }
    if (rc < 0)
        return rc;
    if (page.count > 0)
        tierce__backup_put_page(page.bytes, (uint32_t)number, page.count);
    out->kind = TIERCE__BACKUP_RECORDS;
    out->content = page.bytes;
    out->bytes = page.count > 0 ? page.used : 0;
    out->records = page.count;
    if (cursor->key == 0)
        cursor->instance++;
    print_cursor(out->cursor, cursor);
    return 0;
}

int tierce__backup_page_make(struct tierce__backup_made *out,
                             const struct tierce__backup_page_opts *opts, const char *cursor,
                             struct tierce__arena *arena, char why[TIERCE__WHY_BYTES])
{
    struct cursor at;
    *out = (struct tierce__backup_made){0};
    if (cursor[0] == '\0')
        return make_catalog(out, opts, arena, why);
    int rc = read_cursor(&at, opts, cursor, why);
    return rc == 0 ? make_records(out, opts, &at, arena, why) : rc;
}
