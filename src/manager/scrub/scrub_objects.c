/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that no record names. Candidates are listed first: block files that are older than the
 * longest write. Then all records, sessions and deletions are read, and the objects that they name
 * are no orphans.
 *
 * Nothing can come to use an orphan later. A file is named for a session, and no name is given
 * twice; a session ends within a day. Only a file with several slots is written again: such a file
 * is known to its instance's places while it has free slots. If its slots were given out and
 * written while the records were read, it has changed since it was listed, and stays.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "base/mix.h"
#include "manager/scrub/scrub_private.h"

#include <string.h>

enum {
    CANDIDATES_MAX = 16384, /* between two readings of all records */
    PAGE_KEYS = 1024,
    PAGE_TRIES = 3,
    FILE_DIGITS = 16,
};

/* A day for the write, and an hour for clocks that differ. */
#define AGE_US ((TIERCE__WRITE_TIMEOUT_S_MAX + 3600) * INT64_C(1000000))

struct candidate {
    struct tierce__map_node node; /* by name */
    struct tierce__storage_object object;
    bool is_used;
};

struct listing {
    struct scrub_run *run;
    struct candidate *candidates;
    size_t count;
    struct tierce__map by_name;
    bool has_begun, is_end;
    const struct tierce__instance *instance; /* whose locations are read */
    bool no_memory;
};

/* ---- candidates ------------------------------------------------------------------------------ */

/* The number of a block's file from its name, "INSTANCE/SPEC/FILE"; 0: no block has this name. */
static uint64_t file_number(const char *name)
{
    uint64_t number = 0;
    const char *slash = strchr(name, '/');
    slash = slash != NULL ? strchr(slash + 1, '/') : NULL;
    if (slash == NULL || strlen(slash + 1) != FILE_DIGITS)
        return 0;
    for (const char *p = slash + 1; *p != '\0'; p++) {
        bool is_digit = *p >= '0' && *p <= '9', is_letter = *p >= 'a' && *p <= 'f';
        if (!is_digit && !is_letter)
            return 0;
        number = number << 4 | (uint64_t)(is_digit ? *p - '0' : *p - 'a' + 10);
    }
    return number;
}

static uint64_t hash_of(const char *name)
{
    return tierce__spread(tierce__hash_text(TIERCE__HASH_TEXT, name));
}

/* Takes the object's name. */
static void add_candidate(struct listing *l, struct tierce__storage_object *object)
{
    TIERCE_ASSERT(l->count < CANDIDATES_MAX);
    struct candidate *candidate = &l->candidates[l->count++];
    *candidate = (struct candidate){.object = *object};
    object->name = NULL;
    tierce__map_put(&l->by_name, &candidate->node, hash_of(candidate->object.name));
}

static void add_page(struct listing *l, struct tierce__storage_page *page)
{
    struct tierce__scrub_counts *counts = &l->run->counts;
    int64_t before_us = tierce__locator_now_us(l->run->opts->locator) - AGE_US;
    counts->others += page->others;
    for (size_t i = 0; i < page->count; i++) {
        struct tierce__storage_object *object = &page->objects[i];
        bool is_block = file_number(object->name) != 0;
        counts->others += !is_block;
        if (!is_block)
            continue;
        counts->listed++;
        counts->listed_bytes += object->bytes;
        counts->young += object->changed_us >= before_us;
        if (object->changed_us < before_us)
            add_candidate(l, object);
    }
}

static int list_candidates(struct listing *l)
{
    struct scrub_run *run = l->run;
    int rc = 0;
    while (rc == 0 && !l->is_end && l->count + TIERCE__STORAGE_BATCH_MAX <= CANDIDATES_MAX) {
        struct tierce__storage_page *page = NULL;
        rc = tierce__storages_list(run->opts->storages, &run->storage, !l->has_begun, &page);
        if (rc < 0)
            return rc;
        l->has_begun = true;
        l->is_end = page->is_end;
        uint64_t files = page->count + page->others;
        add_page(l, page);
        tierce__storage_page_clear(page);
        tierce__free(page);
        rc = tierce__scrub_pace(run, files);
    }
    return rc;
}

static void clear_candidates(struct listing *l)
{
    for (size_t i = 0; i < l->count; i++) {
        tierce__map_remove(&l->by_name, &l->candidates[i].node);
        tierce__free(l->candidates[i].object.name);
    }
    TIERCE_ASSERT(l->by_name.count == 0);
    l->count = 0;
}

/* ---- references ------------------------------------------------------------------------------ */

/* "INSTANCE/SPEC/FILE" at the end of a path; NULL: it has fewer parts. */
static const char *name_in(const char *path)
{
    const char *at = path + strlen(path);
    for (int slashes = 0; at > path; at--)
        if (at[-1] == '/' && ++slashes == 3)
            return at;
    return NULL;
}

/* Files are named once in an instance, so the name counts, whatever the location's storage is:
 * two storages may be one folder. */
static void use_place(struct listing *l, const struct tierce__spec_place *place)
{
    struct scrub_run *run = l->run;
    const char *path = tierce__place_path(&run->storage, l->instance, place, &run->arena);
    const char *name = path != NULL ? name_in(path) : NULL;
    l->no_memory = l->no_memory || path == NULL;
    if (name == NULL)
        return;
    struct tierce__map_node *node = tierce__map_find(&l->by_name, hash_of(name));
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct candidate *candidate = TIERCE__CONTAINER_OF(node, struct candidate, node);
        if (strcmp(candidate->object.name, name) == 0)
            candidate->is_used = true;
    }
}

static void use_location(void *arg, const struct tierce__location *location)
{
    for (size_t p = 0; p < location->place_count; p++)
        use_place(arg, &location->places[p]);
}

static int try_page(struct listing *l, struct tierce__live *live, uint64_t *cursor, bool *is_whole)
{
    struct scrub_run *run = l->run;
    int64_t keys[PAGE_KEYS];
    bool found[PAGE_KEYS];
    size_t count = 0;
    tierce__arena_reset(&run->arena);
    struct tierce__record *records = tierce__arena_calloc(&run->arena, PAGE_KEYS, sizeof(*records));
    if (records == NULL)
        return -ENOMEM;
    int rc = live->space->ops->scan(live->space, cursor, PAGE_KEYS, keys, &count);
    TIERCE_ASSERT(count <= PAGE_KEYS);
    if (rc == 0 && count > 0)
        rc = live->space->ops->get(live->space, keys, count, &run->arena, records, found);
    *is_whole = true;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        *is_whole = *is_whole && found[i];
        for (size_t n = 0; found[i] && n < records[i].location_count; n++)
            use_location(l, &records[i].locations[n]);
    }
    return rc == 0 && l->no_memory ? -ENOMEM : rc;
}

/* A key without a record was removed meanwhile, or has a record that cannot be read, which may name
 * any file. */
static int use_page(struct listing *l, const char *id, uint64_t *cursor)
{
    struct scrub_run *run = l->run;
    struct tierce__live *live;
    uint64_t from = *cursor;
    bool is_whole = false;
    int rc = tierce__live_acquire(&live, run->opts->locator, id, run->why);
    if (rc < 0)
        return rc;
    l->instance = &live->instance;
    for (int i = 0; rc == 0 && !is_whole && i < PAGE_TRIES; i++) {
        *cursor = from;
        rc = try_page(l, live, cursor, &is_whole);
    }
    tierce__live_release(live);
    if (rc == 0 && !is_whole)
        return tierce__why(run->why, TIERCE_E_FORMAT,
                           "instance %.100s has records that cannot be read, so its objects cannot "
                           "be judged",
                           id);
    return rc;
}

static void use_sessions(struct listing *l, struct tierce__live *live)
{
    tierce__arena_reset(&l->run->arena);
    tierce__lock_take(&live->lock);
    TIERCE__MAP_FOR_EACH (node, &live->sessions) {
        const struct tierce__write_session *session =
            TIERCE__CONTAINER_OF(node, struct tierce__write_session, node);
        for (size_t k = 0; k < session->count; k++)
            for (size_t p = 0; p < session->keys[k].place_count; p++)
                use_place(l, &session->keys[k].places[p]);
    }
    tierce__deleting_each(&live->deleting, use_location, l);
    tierce__lock_drop(&live->lock);
}

/* Candidates whose free slots may be given out. */
static int use_places(struct listing *l, struct tierce__live *live)
{
    struct scrub_run *run = l->run;
    const struct tierce__spec_place any = {.file = 1};
    const char *path = tierce__place_path(&run->storage, &live->instance, &any, &run->arena);
    const char *folder = path != NULL ? name_in(path) : NULL;
    int rc = path == NULL ? -ENOMEM : 0;
    size_t length = folder != NULL ? strcspn(folder, "/") + 1 : 0;
    for (size_t i = 0; rc == 0 && length > 0 && i < l->count; i++) {
        struct candidate *candidate = &l->candidates[i];
        if (candidate->is_used || strncmp(candidate->object.name, folder, length) != 0)
            continue;
        int has = tierce__places_has_file(live->places, file_number(candidate->object.name));
        candidate->is_used = has == 1;
        rc = has < 0 ? has : 0;
    }
    return rc;
}

static int use_instance(struct listing *l, const char *id)
{
    struct scrub_run *run = l->run;
    struct tierce__live *live;
    uint64_t cursor = 0;
    int rc;
    do {
        rc = use_page(l, id, &cursor);
        if (rc == 0)
            rc = tierce__scrub_pace(run, TIERCE__SCRUB_PAGE_WORK);
    } while (rc == 0 && cursor != 0);
    if (rc == 0)
        rc = tierce__live_acquire(&live, run->opts->locator, id, run->why);
    if (rc < 0)
        return rc;
    l->instance = &live->instance;
    use_sessions(l, live);
    rc = l->no_memory ? -ENOMEM : use_places(l, live);
    tierce__live_release(live);
    return rc;
}

/* An instance that is being removed, and may be kept after all, ends the scrub. */
static int use_all(struct listing *l)
{
    int rc = tierce__scrub_list_instances(l->run);
    for (size_t i = 0; rc == 0 && i < l->run->id_count; i++)
        rc = use_instance(l, l->run->ids[i]);
    return rc;
}

/* ---- orphans --------------------------------------------------------------------------------- */

/* Some orphans, that are deleted together. */
struct orphans {
    const char *paths[TIERCE__STORAGE_BATCH_MAX];
    int64_t changed_us[TIERCE__STORAGE_BATCH_MAX];
    uint64_t bytes[TIERCE__STORAGE_BATCH_MAX];
    size_t count;
};

static int delete_some(struct scrub_run *run, struct orphans *orphans)
{
    int status[TIERCE__STORAGE_BATCH_MAX];
    size_t count = orphans->count;
    orphans->count = 0;
    if (count == 0)
        return 0;
    int rc = tierce__scrub_check_mark(run);
    if (rc == 0)
        rc = tierce__scrub_pace(run, count);
    if (rc == 0)
        rc = tierce__storages_delete_listed(run->opts->storages, &run->storage, orphans->paths,
                                            orphans->changed_us, count, status);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        run->counts.deleted_orphans += status[i] == 0;
        run->counts.deleted_bytes += status[i] == 0 ? orphans->bytes[i] : 0;
        rc = tierce__scrub_ends(status[i]) ? status[i] : 0;
    }
    return rc;
}

static int add_orphan(struct scrub_run *run, struct orphans *orphans,
                      const struct tierce__storage_object *object)
{
    size_t root_bytes = strlen(run->root), bytes = strlen(object->name);
    char *path = tierce__arena_alloc(&run->arena, root_bytes + bytes + 1);
    if (path == NULL)
        return -ENOMEM;
    memcpy(path, run->root, root_bytes);
    memcpy(path + root_bytes, object->name, bytes + 1);
    orphans->paths[orphans->count] = path;
    orphans->changed_us[orphans->count] = object->changed_us;
    orphans->bytes[orphans->count++] = object->bytes;
    return orphans->count == TIERCE__STORAGE_BATCH_MAX ? delete_some(run, orphans) : 0;
}

static int end_orphans(struct listing *l)
{
    struct scrub_run *run = l->run;
    struct orphans orphans = {.count = 0};
    int rc = 0;
    tierce__arena_reset(&run->arena);
    for (size_t i = 0; rc == 0 && i < l->count; i++) {
        const struct candidate *candidate = &l->candidates[i];
        if (candidate->is_used)
            continue;
        run->counts.orphans++;
        run->counts.orphan_bytes += candidate->object.bytes;
        if (run->repairs)
            rc = add_orphan(run, &orphans, &candidate->object);
    }
    return rc == 0 ? delete_some(run, &orphans) : rc;
}

int tierce__scrub_objects(struct scrub_run *run)
{
    struct listing l = {.run = run};
    l.candidates = tierce__calloc(CANDIDATES_MAX, sizeof(*l.candidates));
    int rc = l.candidates == NULL ? -ENOMEM : 0;
    while (rc == 0 && !l.is_end) {
        rc = list_candidates(&l);
        if (rc == 0 && l.count > 0)
            rc = use_all(&l);
        if (rc == 0)
            rc = end_orphans(&l);
        if (l.count > 0)
            clear_candidates(&l);
    }
    tierce__map_fini(&l.by_name);
    tierce__free(l.candidates);
    return rc;
}
