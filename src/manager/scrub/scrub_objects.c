/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that no record names. Objects with a block's name are listed first, if they are old
 * enough or of unknown age. Then the sessions and records of all instances are read, and after them
 * the deletions: the objects that they name are no orphans. A block moves from a session to a
 * record and on to a deletion, or at once to a deletion, and never back, so that in this order it
 * is seen at least once. Between the batch that removes a record and the entry in the queue of
 * deletions a block is in neither table, for some microseconds: so the deletions of all instances
 * are read last. If one is missed all the same, its object is deleted before its delay has passed,
 * and a reader with its old URI gets a miss.
 *
 * Nothing can come to use an orphan later. A file is named for a session, and no name is given
 * twice; a session ends within a day. Only a file with several slots is written again: such a file
 * is known to its instance's places while it has free slots. If its slots were given out and
 * written while the records were read, it has changed since it was listed, and stays.
 *
 * A storage with more objects than OBJECTS_MAX would need a reading of all records for each so
 * many. So the records are read once into a filter (scrub_set.h) before the listing goes on, and
 * objects that the filter has are not judged. The others are judged as described above, so the
 * filter may be out of date.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/scrub/scrub_private.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum {
    OBJECTS_MAX = 1 << 20, /* that are judged together, by one reading of all records */
    FILTER_BYTES_MAX = 256 << 20,
    PAGE_KEYS = 1024,
    PAGE_TRIES = 3,
};

/* A day for the write, and an hour for clocks that differ. */
#define AGE_US ((TIERCE__WRITE_TIMEOUT_S_MAX + 3600) * INT64_C(1000000))

struct listing {
    struct scrub_run *run;
    struct tierce__scrub_set set;
    struct tierce__scrub_filter filter; /* of names that records use; empty for small storages */
    bool has_begun, is_end;
    const struct tierce__instance *instance; /* whose locations are read */
    bool is_whole;                           /* the last page of records had all of its records */
    bool is_filling;                         /* the records are read into the filter */
    bool no_memory;
};

/* ---- listing --------------------------------------------------------------------------------- */

/* The slots of a file are those of a storage of files alone. */
static bool is_block(const struct scrub_run *run, const char *name)
{
    size_t folder_bytes;
    uint64_t number = tierce__place_number(name, &folder_bytes);
    const struct tierce__storage_at at = tierce__storage_at_of(&run->storage);
    return number != 0 && (tierce__place_slots(number) == 1 || tierce__storage_at_has_files(&at));
}

static int add_page(struct listing *l, const struct tierce__storage_page *page)
{
    struct scrub_run *run = l->run;
    struct tierce__scrub_counts *counts = &run->counts;
    int64_t before_us = tierce__locator_now_us(run->opts->locator) - AGE_US;
    int rc = 0;
    counts->others += page->others;
    counts->unread += page->unread;
    if (page->unread > 0)
        tierce__scrub_note_unread(run, "not read: %.120s", page->unread_why);
    for (size_t i = 0; rc == 0 && i < page->count; i++) {
        const struct tierce__storage_object *object = &page->objects[i];
        if (!is_block(run, object->name)) {
            counts->others++;
            continue;
        }
        counts->listed++;
        counts->listed_bytes += object->bytes != TIERCE__STORAGE_UNKNOWN_BYTES ? object->bytes : 0;
        counts->young += object->changed_us >= before_us;
        if (object->changed_us < before_us && /* or unknown */
            !tierce__scrub_filter_has(&l->filter, object->name))
            rc = tierce__scrub_set_add(&l->set, object->name, object->bytes, object->changed_us);
    }
    return rc;
}

/* TIERCE_E_UNSUPPORTED on the first page: the records were compared, and the objects cannot be. */
static int list_page(struct listing *l)
{
    struct scrub_run *run = l->run;
    struct tierce__storage_page *page = NULL;
    char why[128] = "";
    int rc = tierce__storages_list(run->opts->storages, &run->storage, !l->has_begun, &page, why);
    if (rc == TIERCE_E_UNSUPPORTED && !l->has_begun) {
        run->lists = false;
        l->is_end = true;
        tierce__scrub_note_unread(run, "its objects are not listed: %.100s", why);
        return 0;
    }
    if (rc < 0)
        return why[0] != '\0' ? tierce__why(run->why, rc, "list: %s", why) : rc;
    l->has_begun = true;
    l->is_end = page->is_end;
    uint64_t files = page->count + page->others + page->unread;
    files = files > TIERCE__SCRUB_PAGE_WORK ? files : TIERCE__SCRUB_PAGE_WORK;
    rc = add_page(l, page);
    tierce__storage_page_clear(page);
    tierce__free(page);
    if (rc == 0)
        tierce__scrub_save(run, false);
    return rc == 0 ? tierce__scrub_pace(run, files) : rc;
}

static int fill_filter(struct listing *l);

/* Lists objects until the set is full. */
static int list_objects(struct listing *l)
{
    size_t most = l->run->opts->objects_max > 0 ? l->run->opts->objects_max : OBJECTS_MAX;
    int rc = 0;
    while (rc == 0 && !l->is_end && l->set.count < most) {
        rc = list_page(l);
        if (rc == 0 && !l->is_end && l->set.count >= most && l->filter.words == NULL)
            rc = fill_filter(l);
    }
    size_t twice = rc == 0 ? tierce__scrub_set_seal(&l->set) : 0;
    TIERCE_DASSERT(twice <= l->run->counts.listed);
    l->run->counts.listed -= twice;
    return rc;
}

/* ---- references ------------------------------------------------------------------------------ */

/* Files are named once in an instance, so the name counts, whatever the location's storage is:
 * two storages may be one folder. */
static void use_place(struct listing *l, const struct tierce__spec_place *place)
{
    struct scrub_run *run = l->run;
    const char *path = tierce__place_path(&run->storage, l->instance, place, &run->arena);
    l->no_memory = l->no_memory || path == NULL;
    if (path != NULL && l->is_filling)
        tierce__scrub_filter_add(&l->filter, path);
    else if (path != NULL)
        tierce__scrub_set_use(&l->set, path);
}

static void use_location(void *arg, const struct tierce__location *location)
{
    for (size_t p = 0; p < location->place_count; p++)
        use_place(arg, &location->places[p]);
}

static int use_records(void *arg, struct tierce__live *live, const struct scrub_page *page)
{
    struct listing *l = arg;
    l->instance = &live->instance;
    l->is_whole = true;
    for (size_t i = 0; i < page->count; i++) {
        l->is_whole = l->is_whole && page->found[i];
        for (size_t n = 0; page->found[i] && n < page->records[i].location_count; n++)
            use_location(l, &page->records[i].locations[n]);
    }
    return l->no_memory ? -ENOMEM : 0;
}

/* A key without a record was removed meanwhile, or has a record that cannot be read, which may name
 * any file. */
static int use_page(struct listing *l, const char *id, uint64_t *cursor)
{
    struct scrub_run *run = l->run;
    uint64_t from = *cursor;
    int rc = 0;
    l->is_whole = false;
    for (int i = 0; rc == 0 && !l->is_whole && i < PAGE_TRIES; i++) {
        *cursor = from;
        rc = tierce__scrub_visit(run, id, cursor, PAGE_KEYS, use_records, l);
    }
    if (rc == 0 && !l->is_whole)
        return tierce__why(run->why, TIERCE_E_FORMAT,
                           "instance %.100s has records that cannot be read, so its objects cannot "
                           "be judged",
                           id);
    return rc;
}

static void use_sessions(struct listing *l, struct tierce__live *live)
{
    tierce__lock_assert_held(&live->lock);
    TIERCE__MAP_FOR_EACH (node, &live->sessions) {
        const struct tierce__write_session *session =
            TIERCE__CONTAINER_OF(node, struct tierce__write_session, node);
        for (size_t k = 0; k < session->count; k++)
            for (size_t p = 0; p < session->keys[k].place_count; p++)
                use_place(l, &session->keys[k].places[p]);
    }
}

/* Files whose free slots may be given out. */
static int use_places(struct listing *l, struct tierce__live *live, uint16_t spec)
{
    struct scrub_run *run = l->run;
    const struct tierce__spec_place any = {.spec = spec, .file = 1};
    const char *path = tierce__place_path(&run->storage, &live->instance, &any, &run->arena);
    const struct tierce__scrub_folder *folder = NULL;
    int rc = path == NULL ? -ENOMEM : 0;
    if (rc == 0)
        folder = tierce__scrub_set_folder_at(&l->set, path);
    for (size_t i = 0; rc == 0 && folder != NULL && i < folder->count; i++) {
        struct tierce__scrub_object *object = &l->set.objects[folder->first + i];
        int has = object->is_used ? 0 : tierce__places_has_file(live->places, object->number);
        object->is_used = object->is_used || has == 1;
        rc = has < 0 ? has : 0;
    }
    return rc;
}

/* The tables in memory: with `deletions` the deletions and the files with free slots, else the
 * sessions. */
static int use_tables(struct listing *l, const char *id, bool deletions)
{
    struct scrub_run *run = l->run;
    struct tierce__live *live;
    int rc = tierce__scrub_acquire(&live, run, id);
    if (rc < 0)
        return rc;
    tierce__arena_reset(&run->arena);
    l->instance = &live->instance;
    tierce__lock_take(&live->lock);
    if (deletions)
        tierce__deleting_each(&live->deleting, use_location, l);
    else
        use_sessions(l, live);
    tierce__lock_drop(&live->lock);
    rc = l->no_memory ? -ENOMEM : 0;
    for (size_t s = 0; rc == 0 && deletions && s < live->instance.spec_count; s++)
        rc = use_places(l, live, (uint16_t)s);
    tierce__live_release(live);
    return rc;
}

static int use_all_records(struct listing *l, const char *id)
{
    uint64_t cursor = 0;
    int rc = 0;
    do {
        rc = use_page(l, id, &cursor);
        if (rc == 0)
            rc = tierce__scrub_pace(l->run, TIERCE__SCRUB_PAGE_WORK);
    } while (rc == 0 && cursor != 0);
    return rc;
}

/* The first direction has counted the files that records name. */
static int fill_filter(struct listing *l)
{
    struct scrub_run *run = l->run;
    uint64_t most =
        run->opts->filter_bytes_max > 0 ? run->opts->filter_bytes_max : FILTER_BYTES_MAX;
    int rc = tierce__scrub_filter_init(&l->filter, run->counts.checked + run->counts.fresh, most,
                                       run->salt);
    if (rc == 0)
        rc = tierce__scrub_list_instances(run);
    l->is_filling = true;
    for (size_t i = 0; rc == 0 && i < run->id_count; i++) {
        rc = use_all_records(l, run->ids[i]);
        rc = rc == -ENOENT ? 0 : rc;
    }
    l->is_filling = false;
    if (rc == 0)
        tierce__scrub_set_filter(&l->set, &l->filter);
    return rc;
}

/* An instance that is removed meanwhile names nothing any more: its blocks were deleted before. */
static int use_all(struct listing *l)
{
    struct scrub_run *run = l->run;
    int rc = tierce__scrub_list_instances(run);
    for (size_t i = 0; rc == 0 && i < run->id_count; i++) {
        rc = use_tables(l, run->ids[i], false);
        rc = rc == 0 ? use_all_records(l, run->ids[i]) : rc;
        rc = rc == -ENOENT ? 0 : rc;
    }
    for (size_t i = 0; rc == 0 && i < run->id_count; i++) {
        rc = use_tables(l, run->ids[i], true);
        rc = rc == -ENOENT ? 0 : rc;
    }
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

/* Listings of some storages do not tell the lengths of objects. */
static int measure_orphans(struct scrub_run *run, struct orphans *orphans)
{
    const char *paths[TIERCE__STORAGE_BATCH_MAX];
    uint64_t bytes[TIERCE__STORAGE_BATCH_MAX];
    size_t of[TIERCE__STORAGE_BATCH_MAX], count = 0;
    int status[TIERCE__STORAGE_BATCH_MAX];
    for (size_t i = 0; i < orphans->count; i++) {
        if (orphans->bytes[i] != TIERCE__STORAGE_UNKNOWN_BYTES)
            continue;
        paths[count] = orphans->paths[i];
        of[count++] = i;
    }
    int rc = count > 0 ? tierce__scrub_pace(run, count) : 0;
    if (rc == 0 && count > 0)
        rc = tierce__storages_measure(run->opts->storages, &run->storage, paths, count, bytes,
                                      status);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        orphans->bytes[of[i]] = status[i] == 0 ? bytes[i] : 0;
        rc = tierce__scrub_ends(status[i]) ? status[i] : 0;
    }
    return rc;
}

static int end_some(struct scrub_run *run, struct orphans *orphans)
{
    int status[TIERCE__STORAGE_BATCH_MAX];
    size_t count = orphans->count;
    if (count == 0)
        return 0;
    int rc = measure_orphans(run, orphans);
    for (size_t i = 0; rc == 0 && i < count; i++)
        run->counts.orphan_bytes += orphans->bytes[i];
    orphans->count = 0;
    if (rc < 0 || !run->repairs)
        return rc;
    rc = tierce__scrub_pace(run, count);
    if (rc == 0)
        rc = tierce__storages_delete_listed(run->opts->storages, &run->storage, orphans->paths,
                                            orphans->changed_us, count, status);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        run->counts.deleted_orphans += status[i] == 0;
        run->counts.deleted_bytes += status[i] == 0 ? orphans->bytes[i] : 0;
        rc = tierce__scrub_ends(status[i]) ? status[i] : 0;
        if (rc == 0 && status[i] < 0 && status[i] != -EAGAIN)
            tierce__scrub_note_unread(run, "not deleted: %.80s: %s", orphans->paths[i],
                                      tierce_strerror(status[i]));
    }
    return rc;
}

/* An object of unknown age is old enough when it was an orphan long ago. */
static bool is_old(const struct listing *l, const struct tierce__scrub_object *object)
{
    const struct scrub_run *run = l->run;
    int64_t now_us = tierce__locator_now_us(run->opts->locator);
    if (object->changed_us != 0)
        return true;
    uint64_t name = tierce__scrub_set_hash(&l->set, object);
    return tierce__scrub_seen_note(run->seen, name, now_us) <= now_us - AGE_US;
}

static int add_orphan(struct listing *l, struct orphans *orphans,
                      const struct tierce__scrub_object *object)
{
    struct scrub_run *run = l->run;
    size_t root_bytes = strlen(run->root);
    size_t bytes = root_bytes + strlen(l->set.folders[object->folder]->name) + 17;
    if (!is_old(l, object)) {
        run->counts.young++;
        return 0;
    }
    char *path = tierce__arena_alloc(&run->arena, bytes);
    if (path == NULL)
        return -ENOMEM;
    memcpy(path, run->root, root_bytes);
    tierce__scrub_set_name(path + root_bytes, &l->set, object);
    run->counts.orphans++;
    orphans->paths[orphans->count] = path;
    orphans->changed_us[orphans->count] = object->changed_us;
    orphans->bytes[orphans->count++] = object->bytes;
    int rc = orphans->count == TIERCE__STORAGE_BATCH_MAX ? end_some(run, orphans) : 0;
    if (orphans->count == 0)
        tierce__arena_reset(&run->arena);
    return rc;
}

static int end_orphans(struct listing *l)
{
    struct orphans orphans = {.count = 0};
    int rc = 0;
    tierce__arena_reset(&l->run->arena);
    for (size_t i = 0; rc == 0 && i < l->set.count; i++)
        if (!l->set.objects[i].is_used)
            rc = add_orphan(l, &orphans, &l->set.objects[i]);
    return rc == 0 ? end_some(l->run, &orphans) : rc;
}

int tierce__scrub_objects(struct scrub_run *run)
{
    struct listing l = {.run = run};
    int rc = 0;
    while (rc == 0 && !l.is_end) {
        rc = list_objects(&l);
        if (rc == 0 && l.set.count > 0)
            rc = use_all(&l);
        if (rc == 0)
            rc = end_orphans(&l);
        tierce__scrub_set_clear(&l.set);
    }
    tierce__scrub_filter_fini(&l.filter);
    if (!l.is_end)
        tierce__storages_end_list(run->opts->storages, &run->storage);
    return rc;
}
