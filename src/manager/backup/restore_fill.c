/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/backup/restore_private.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "store/remote/fleet/storage_at.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Two passes over the records of an instance: the first stores them without children, the second
 * counts the children of those that were stored. Each may be repeated after a crash: records are
 * replaced, and the counters are set at the end.
 */

enum { RECORDS_AT_ONCE = 256, MARK_NUMBER = 1, ID_BYTES = 16 };

struct filling {
    struct tierce__restore *restore;
    struct tierce__meta_space *space;
    const struct tierce__instance *instance;
    const struct tierce__catalog *catalog;
    bool keeps_slots, has_expiring;
    struct tierce__slot_claims claims;
    int64_t counters[TIERCE__META_COUNTERS];
};

/* Does something to some records of a page; memory comes from the arena. */
typedef int (*page_fn)(struct filling *f, const struct tierce__backup_page *page, size_t from,
                       size_t to, struct tierce__arena *arena);

/* Calls `each` for up to RECORDS_AT_ONCE records at a time. */
static int each_records(struct filling *f, page_fn each, char why[TIERCE__WHY_BYTES])
{
    struct tierce__backup *backup = f->restore->backup;
    const struct tierce__backup_part *part = tierce__backup_part(backup, f->instance->number);
    struct tierce__backup_at at = {0};
    struct tierce__backup_page page;
    struct tierce__arena arena = {0};
    int rc = part != NULL ? 1 : 0;
    why[0] = '\0';
    while (rc > 0 && (rc = tierce__backup_next(backup, part, &at, &arena, &page, why)) > 0) {
        for (size_t i = 0; rc > 0 && i < page.count; i += RECORDS_AT_ONCE) {
            size_t to = page.count - i < RECORDS_AT_ONCE ? page.count : i + RECORDS_AT_ONCE;
            int done = each(f, &page, i, to, &arena);
            rc = done < 0 ? done : rc;
        }
        tierce__arena_clear(&arena);
    }
    tierce__arena_clear(&arena);
    return rc;
}

/* ---- the first pass: records ------------------------------------------------------------------
 */

/* Whether a location's places are parts of the instance, in a storage that the registry has. */
static bool is_known(const struct filling *f, const struct tierce__location *location)
{
    for (size_t p = 0; p < location->place_count; p++) {
        if (location->places[p].spec >= f->instance->spec_count)
            return false;
    }
    return location->storage == 0 ||
           tierce__catalog_storage_numbered(f->catalog, location->storage) != NULL;
}

/* Whether a location is taken over. Errors: -ENOMEM. */
static int keeps(struct filling *f, const struct tierce__location *location)
{
    struct tierce__restored *counts = &f->restore->counts;
    int rc = is_known(f, location);
    if (rc > 0 && !f->keeps_slots && tierce__location_shares_files(location)) {
        counts->slots_left++;
        return 0;
    }
    if (rc > 0)
        rc = tierce__slot_claims_add(&f->claims, location);
    counts->others_left += rc == 0;
    return rc;
}

/* Removes the locations that are not taken over. 0: none is left. Errors: -ENOMEM. */
static int prune(struct filling *f, struct tierce__record *record, struct tierce__arena *arena)
{
    const struct tierce__location *all = record->locations;
    size_t kept = 0, count = record->location_count;
    record->children = 0; /* counted by the second pass */
    if (record->generation != f->instance->generation)
        return 0;   /* older, or written after an invalidation during the backup */
    if (count == 0) /* a block without parts */
        return 1;
    struct tierce__location *left = tierce__arena_alloc(arena, count * sizeof(*left));
    if (left == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        int rc = keeps(f, &all[i]);
        if (rc < 0)
            return rc;
        if (rc > 0)
            left[kept++] = all[i];
    }
    record->locations = left;
    record->location_count = (uint16_t)kept;
    return kept > 0;
}

static int store_records(struct filling *f, const struct tierce__backup_page *page, size_t from,
                         size_t to, struct tierce__arena *arena)
{
    struct tierce__meta_put puts[RECORDS_AT_ONCE];
    size_t count = 0;
    TIERCE_ASSERT(to - from <= RECORDS_AT_ONCE);
    for (size_t i = from; i < to; i++) {
        struct tierce__record record = page->records[i];
        int rc = prune(f, &record, arena);
        if (rc < 0)
            return rc;
        f->restore->counts.blocks_left += rc == 0;
        if (rc == 0)
            continue;
        puts[count++] = (struct tierce__meta_put){.key = page->keys[i], .record = record};
        f->counters[TIERCE__META_KEYS]++;
        tierce__meta_count_bytes(f->counters, &record, true);
        f->has_expiring |= record.expires_us != 0;
    }
    f->restore->counts.blocks += count;
    if (count == 0)
        return 0;
    return f->space->ops->write(f->space,
                                &(struct tierce__meta_batch){.puts = puts, .put_count = count});
}

/* ---- the second pass: children -----------------------------------------------------------------
 */

static int compare_parents(const void *a, const void *b)
{
    int64_t left = ((const struct tierce__gone *)a)->key;
    int64_t right = ((const struct tierce__gone *)b)->key;
    return (left > right) - (left < right);
}

/* The parents of the records that were stored, each once, with the number of these records. */
static int find_parents(const struct filling *f, const struct tierce__backup_page *page,
                        size_t from, size_t to, struct tierce__arena *arena,
                        struct tierce__gone parents[RECORDS_AT_ONCE], size_t *count)
{
    bool found[RECORDS_AT_ONCE];
    struct tierce__record records[RECORDS_AT_ONCE];
    size_t n = 0;
    int rc = f->space->ops->get(f->space, page->keys + from, to - from, arena, records, found);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < to - from; i++) {
        if (found[i] && records[i].has_parent)
            parents[n++] = (struct tierce__gone){.key = records[i].parent, .children = 1};
    }
    qsort(parents, n, sizeof(*parents), compare_parents);
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        if (*count > 0 && parents[*count - 1].key == parents[i].key)
            parents[*count - 1].children++;
        else
            parents[(*count)++] = parents[i];
    }
    TIERCE_DASSERT(*count <= n);
    return 0;
}

/* Blocks behind a missing one cannot be found; a sweep removes them. */
static int count_children(struct filling *f, const struct tierce__backup_page *page, size_t from,
                          size_t to, struct tierce__arena *arena)
{
    struct tierce__gone parents[RECORDS_AT_ONCE], holes[RECORDS_AT_ONCE];
    struct tierce__record records[RECORDS_AT_ONCE];
    struct tierce__meta_put puts[RECORDS_AT_ONCE];
    struct tierce__meta_note note;
    int64_t keys[RECORDS_AT_ONCE];
    bool found[RECORDS_AT_ONCE];
    size_t count, hole_count = 0;
    struct tierce__meta_batch batch = {.puts = puts, .notes = &note};
    int rc = find_parents(f, page, from, to, arena, parents, &count);
    if (rc < 0 || count == 0)
        return rc;
    for (size_t i = 0; i < count; i++)
        keys[i] = parents[i].key;
    rc = f->space->ops->get(f->space, keys, count, arena, records, found);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (!found[i]) {
            holes[hole_count++] = parents[i];
            continue;
        }
        TIERCE_DASSERT(records[i].children <= UINT32_MAX - parents[i].children);
        records[i].children += parents[i].children;
        puts[batch.put_count++] = (struct tierce__meta_put){.key = keys[i], .record = records[i]};
    }
    /* The number is one that no other batch of this pass has. */
    if (rc == 0 && hole_count > 0)
        rc =
            tierce__gone_write(holes, hole_count, tierce__meta_mix(page->keys[from]), arena, &note);
    batch.note_count = hole_count > 0;
    return rc == 0 ? f->space->ops->write(f->space, &batch) : rc;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Whether the space is empty, or was begun by a restore of this backup. */
static int check_space(const struct filling *f, char why[TIERCE__WHY_BYTES])
{
    struct tierce__arena arena = {0};
    int64_t counters[TIERCE__META_COUNTERS];
    const char *id = f->instance->id;
    const void *mark;
    uint64_t cursor = 0;
    int64_t key;
    size_t bytes, count = 0;
    int rc =
        f->space->ops->note(f->space, TIERCE__NOTE_RESTORE, MARK_NUMBER, &arena, &mark, &bytes);
    bool is_ours = rc == 0 && bytes == ID_BYTES &&
                   memcmp(mark, tierce__backup_id(f->restore->backup), ID_BYTES) == 0;
    if (rc == 0 && !is_ours)
        rc = tierce__why(why, -EEXIST,
                         "the index of instance %.80s holds a part of another backup, whose "
                         "restoring was interrupted; restore that one, or empty the index",
                         id);
    if (rc == -ENOENT)
        rc = f->space->ops->scan(f->space, &cursor, 1, &key, &count);
    if (rc == 0 && !is_ours && count > 0) {
        rc = f->space->ops->counters(f->space, counters);
        rc = rc < 0 ? rc
                    : tierce__why(why, -EEXIST,
                                  "the index of instance %.80s is not empty: it holds %lld blocks; "
                                  "empty it, or remove its folder or keys",
                                  id, (long long)counters[TIERCE__META_KEYS]);
    }
    tierce__arena_clear(&arena);
    return rc;
}

static int write_note(struct tierce__meta_space *space, uint8_t kind, const void *value,
                      size_t bytes)
{
    struct tierce__meta_note note = {
        .kind = kind, .number = MARK_NUMBER, .value = value, .bytes = bytes};
    return space->ops->write(space, &(struct tierce__meta_batch){.notes = &note, .note_count = 1});
}

/* Sets the counters, whatever an interrupted restore left. */
static int set_counters(const struct filling *f)
{
    struct tierce__meta_batch batch = {0};
    int64_t now[TIERCE__META_COUNTERS];
    int rc = f->space->ops->counters(f->space, now);
    for (size_t i = 0; i < TIERCE__META_COUNTERS && rc == 0; i++)
        batch.added[i] = f->counters[i] - now[i];
    return rc == 0 ? f->space->ops->write(f->space, &batch) : rc;
}

static int fill(struct filling *f, char why[TIERCE__WHY_BYTES])
{
    static const uint8_t version = 1;
    uint64_t random = tierce__locator_random(f->restore->locator);
    int rc = check_space(f, why);
    if (rc == 0)
        rc = write_note(f->space, TIERCE__NOTE_RESTORE, tierce__backup_id(f->restore->backup),
                        ID_BYTES);
    if (rc == 0)
        rc = each_records(f, store_records, why);
    if (rc == 0)
        rc = each_records(f, count_children, why);
    if (rc == 0 && f->has_expiring)
        rc = write_note(f->space, TIERCE__NOTE_EXPIRY, &version, sizeof(version));
    if (rc == 0)
        rc = tierce__slot_claims_write(&f->claims, f->space, random);
    return rc == 0 ? set_counters(f) : rc;
}

int tierce__restore_fill(void *arg, struct tierce__meta_space *space,
                         const struct tierce__instance *instance,
                         const struct tierce__catalog *catalog, char why[TIERCE__WHY_BYTES])
{
    struct tierce__restore *restore = arg;
    struct filling f = {.restore = restore,
                        .space = space,
                        .instance = instance,
                        .catalog = catalog,
                        .keeps_slots = restore->opts.keep_slots ||
                                       tierce__engine_extra_is(instance->model.extra)};
    why[0] = '\0';
    if (restore->opts.is_lasting && space->ops == &tierce__meta_memory)
        return tierce__why(why, TIERCE_E_CONFIG,
                           "the index of instance group %.80s is in memory and would be lost: give "
                           "--restore.file to the manager that is to serve",
                           instance->group_name);
    int rc = fill(&f, why);
    tierce__slot_claims_fini(&f.claims);
    if (rc < 0 && why[0] == '\0')
        return tierce__why(why, rc, "the index of instance %.80s cannot be filled: %s",
                           instance->id, tierce_strerror(rc));
    return rc;
}
