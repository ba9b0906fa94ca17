/* SPDX-License-Identifier: Apache-2.0 */
/* Records whose files the storage does not have. */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/scrub/scrub_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE_KEYS = 256,
    /* A file server may answer for a minute that a file is missing that another client has just
     * made. */
    FRESH_US = 600 * 1000000,
};

/* A page of an instance's keys, in the run's arena. */
struct record_page {
    struct scrub_run *run;
    const char *id;
    struct scrub_file *files;
    size_t count, room;
    size_t bad;
};

/* ---- files of records ------------------------------------------------------------------------ */

static bool lies_here(const struct scrub_run *run, const struct tierce__catalog *catalog,
                      const struct tierce__location *location)
{
    if (location->storage != 0)
        return location->storage == run->storage.number;
    const struct tierce__storage *storage = tierce__location_storage(catalog, location);
    return storage != NULL && storage->number == run->storage.number;
}

static int add_file(struct record_page *page, const struct tierce__live *live, int64_t key,
                    const struct tierce__location *location, const struct tierce__spec_place *place)
{
    struct scrub_run *run = page->run;
    const char *path = tierce__place_path(&run->storage, &live->instance, place, &run->arena);
    if (path == NULL)
        return -ENOMEM;
    TIERCE_ASSERT(page->count < page->room);
    struct scrub_file *file = &page->files[page->count++];
    *file = (struct scrub_file){.key = key, .path = path, .spec = ""};
    memcpy(file->location_id, location->id, sizeof(file->location_id));
    /* The text of a place may describe a slot of another size. */
    if (place->file == 0 || place->bytes == 0)
        return 0;
    uint32_t slots = tierce__place_slots(place->file);
    file->least = ((uint64_t)place->slot + 1) * place->bytes;
    file->most = (uint64_t)slots * place->bytes;
    file->offset = (uint64_t)place->slot * place->bytes;
    file->bytes = place->bytes;
    file->is_engines = tierce__engine_extra_is(live->instance.model.extra);
    if (place->spec < live->instance.spec_count)
        file->spec = tierce__arena_copy(&run->arena, live->instance.specs[place->spec].name,
                                        strlen(live->instance.specs[place->spec].name));
    return file->spec != NULL ? 0 : -ENOMEM;
}

static size_t count_places(const struct tierce__record *records, const bool *found, size_t count)
{
    size_t places = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t l = 0; found[i] && l < records[i].location_count; l++)
            places += records[i].locations[l].place_count;
    return places;
}

static int add_record(struct record_page *page, const struct tierce__live *live,
                      const struct tierce__catalog *catalog, int64_t key,
                      const struct tierce__record *record)
{
    int rc = 0;
    bool is_fresh = record->stored_us > tierce__locator_now_us(live->locator) - FRESH_US;
    for (size_t l = 0; l < record->location_count; l++) {
        const struct tierce__location *location = &record->locations[l];
        if (!lies_here(page->run, catalog, location))
            continue;
        if (is_fresh)
            page->run->counts.fresh += location->place_count;
        for (size_t p = 0; rc == 0 && !is_fresh && p < location->place_count; p++)
            rc = add_file(page, live, key, location, &location->places[p]);
    }
    return rc;
}

static int add_records(void *arg, struct tierce__live *live, const struct scrub_page *read)
{
    struct record_page *page = arg;
    struct scrub_run *run = page->run;
    page->room = count_places(read->records, read->found, read->count);
    page->files = tierce__arena_calloc(&run->arena, page->room + 1, sizeof(*page->files));
    if (page->files == NULL)
        return -ENOMEM;
    int rc = 0;
    const struct tierce__catalog *catalog = tierce__registry_acquire(run->opts->registry);
    for (size_t i = 0; rc == 0 && i < read->count; i++)
        if (read->found[i])
            rc = add_record(page, live, catalog, read->keys[i], &read->records[i]);
    tierce__registry_release(run->opts->registry, catalog);
    return rc;
}

/* ---- the storage ----------------------------------------------------------------------------- */

static bool is_bad_length(const struct scrub_file *file, uint64_t bytes)
{
    /* Engines read an object as a whole, and accept no other length. */
    bool is_whole = file->is_engines && file->most == file->bytes;
    return bytes < file->least || (is_whole && bytes > file->most);
}

static int judge(struct record_page *page, struct scrub_file *file, int status, uint64_t bytes)
{
    struct scrub_run *run = page->run;
    struct tierce__scrub_counts *counts = &run->counts;
    if (tierce__scrub_ends(status))
        return status;
    counts->checked++;
    counts->missing += status == -ENOENT;
    counts->too_short += status == 0 && bytes < file->least;
    counts->too_long += status == 0 && file->most > 0 && bytes > file->most;
    counts->unreadable += status != 0 && status != -ENOENT;
    if (status != 0 && status != -ENOENT)
        tierce__scrub_note_unread(run, "not measured: %.80s: %s", file->path,
                                  tierce_strerror(status));
    file->is_bad = status == -ENOENT || (status == 0 && is_bad_length(file, bytes));
    page->bad += file->is_bad;
    return 0;
}

static int measure_files(struct record_page *page)
{
    struct scrub_run *run = page->run;
    const char *paths[TIERCE__STORAGE_BATCH_MAX];
    uint64_t bytes[TIERCE__STORAGE_BATCH_MAX];
    int status[TIERCE__STORAGE_BATCH_MAX];
    int rc = 0;
    for (size_t at = 0, n = 0; rc == 0 && at < page->count; at += n) {
        n = page->count - at < TIERCE__STORAGE_BATCH_MAX ? page->count - at
                                                         : TIERCE__STORAGE_BATCH_MAX;
        for (size_t i = 0; i < n; i++)
            paths[i] = page->files[at + i].path;
        rc = tierce__scrub_pace(run, n);
        if (rc == 0)
            rc = tierce__storages_measure(run->opts->storages, &run->storage, paths, n, bytes,
                                          status);
        for (size_t i = 0; rc == 0 && i < n; i++)
            rc = judge(page, &page->files[at + i], status[i], bytes[i]);
        for (size_t i = 0; rc == 0 && run->verify_share > 0 && i < n; i++) {
            struct scrub_file *file = &page->files[at + i];
            rc = status[i] == 0 ? tierce__scrub_verify(run, file) : 0;
            page->bad += file->is_damaged;
        }
    }
    return rc;
}

/* ---- repair ---------------------------------------------------------------------------------- */

/* Measures the bad files again, this time in a storage that is certainly the one of the index. */
static int measure_again(struct record_page *page)
{
    struct scrub_run *run = page->run;
    const char *paths[TIERCE__STORAGE_BATCH_MAX];
    uint64_t bytes[TIERCE__STORAGE_BATCH_MAX];
    int status[TIERCE__STORAGE_BATCH_MAX];
    struct scrub_file *files[TIERCE__STORAGE_BATCH_MAX];
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < page->count;) {
        size_t n = 0;
        for (; at < page->count && n < TIERCE__STORAGE_BATCH_MAX; at++) {
            if (!page->files[at].is_bad)
                continue;
            files[n] = &page->files[at];
            paths[n++] = page->files[at].path;
        }
        rc = n > 0 ? tierce__scrub_pace(run, n) : 0;
        if (rc == 0 && n > 0)
            rc = tierce__storages_measure_again(run->opts->storages, &run->storage, paths, n, bytes,
                                                status, run->why);
        for (size_t i = 0; rc == 0 && i < n; i++) {
            rc = tierce__scrub_ends(status[i]) ? status[i] : 0;
            files[i]->is_bad =
                status[i] == -ENOENT ||
                (status[i] == 0 && (files[i]->is_damaged || is_bad_length(files[i], bytes[i])));
            page->bad -= !files[i]->is_bad;
            if (rc == 0 && status[i] != 0 && status[i] != -ENOENT)
                tierce__scrub_note_unread(run, "not measured again: %.80s: %s", files[i]->path,
                                          tierce_strerror(status[i]));
        }
    }
    return rc;
}

static int compare_ids(const void *a, const void *b)
{
    return memcmp(a, b, TIERCE__LOCATION_ID_BYTES);
}

/* The ids of the bad locations, in order. */
struct bad_ids {
    char (*ids)[TIERCE__LOCATION_ID_BYTES];
    size_t count;
};

/* A location that was stored again since has another id. */
static bool is_bad(void *arg, const struct tierce__record *record,
                   const struct tierce__location *location)
{
    (void)record;
    const struct bad_ids *bad = arg;
    return bsearch(location->id, bad->ids, bad->count, TIERCE__LOCATION_ID_BYTES, compare_ids) !=
           NULL;
}

static int drop_bad(struct record_page *page)
{
    struct scrub_run *run = page->run;
    struct tierce__live *live;
    struct tierce__removed removed = {0};
    struct bad_ids bad = {0};
    size_t count = 0;
    int64_t *keys = tierce__arena_alloc(&run->arena, page->bad * sizeof(*keys));
    bad.ids = tierce__arena_alloc(&run->arena, page->bad * sizeof(*bad.ids));
    if (keys == NULL || bad.ids == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < page->count; i++) {
        if (!page->files[i].is_bad)
            continue;
        memcpy(bad.ids[bad.count++], page->files[i].location_id, sizeof(*bad.ids));
        if (count == 0 || keys[count - 1] != page->files[i].key)
            keys[count++] = page->files[i].key;
    }
    TIERCE_ASSERT(count > 0 && bad.count == page->bad);
    qsort(bad.ids, bad.count, sizeof(*bad.ids), compare_ids);
    int rc = tierce__scrub_acquire(&live, run, page->id);
    if (rc < 0)
        return rc;
    struct tierce__removal at_once = {.due_us = tierce__locator_now_us(run->opts->locator),
                                      .wanted_location = is_bad,
                                      .wanted_arg = &bad};
    rc = tierce__live_remove(live, keys, count, &at_once, &removed);
    tierce__live_release(live);
    run->counts.dropped_locations += removed.locations;
    return rc;
}

/* The instance is not held while the storage is asked, so that it may be removed meanwhile. */
static int scrub_page(struct scrub_run *run, const char *id, uint64_t *cursor)
{
    struct record_page page = {.run = run, .id = id};
    int rc = tierce__scrub_visit(run, id, cursor, PAGE_KEYS, add_records, &page);
    if (rc == 0)
        rc = measure_files(&page);
    if (rc == 0 && run->repairs && page.bad > 0)
        rc = measure_again(&page);
    if (rc == 0 && run->repairs && page.bad > 0)
        rc = drop_bad(&page);
    return rc;
}

/* From a cursor on. */
static int scrub_instance(struct scrub_run *run, const char *id, uint64_t cursor)
{
    int rc = 0;
    char *copy = tierce__strdup(id);
    if (copy == NULL)
        return -ENOMEM;
    tierce__free(run->at.instance);
    run->at.instance = copy;
    scrub_reach(run, cursor);
    do {
        uint64_t before = run->counts.checked;
        rc = scrub_page(run, id, &cursor);
        uint64_t files = run->counts.checked - before;
        if (rc == 0 && cursor != 0)
            scrub_reach(run, cursor);
        if (rc == 0 && files < TIERCE__SCRUB_PAGE_WORK)
            rc = tierce__scrub_pace(run, TIERCE__SCRUB_PAGE_WORK - files);
        if (rc == 0 && cursor != 0)
            tierce__scrub_save(run, false);
    } while (rc == 0 && cursor != 0);
    return rc == -ENOENT ? 0 : rc; /* the instance was removed */
}

int tierce__scrub_records(struct scrub_run *run)
{
    char *instance = run->at.instance;
    uint64_t cursor = run->at.cursor;
    run->at.instance = NULL;
    scrub_reach(run, 0);
    int rc = tierce__scrub_list_instances(run);
    for (size_t i = 0; rc == 0 && i < run->id_count; i++) {
        int order = instance != NULL ? strcmp(run->ids[i], instance) : 1;
        if (order >= 0)
            rc = scrub_instance(run, run->ids[i], order == 0 ? cursor : 0);
    }
    tierce__free(instance);
    return rc;
}
