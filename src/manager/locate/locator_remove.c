/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locate/locator_private.h"
#include "base/assert.h"
#include "base/clock.h"
#include "manager/api/spans.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <time.h>

/* ---- removing -------------------------------------------------------------------------------- */

/* Removal of keys from the index; each step of the index is a deletion of its own. */
struct chain_removal {
    struct tierce__live *live;
    const struct tierce__removal *how;
    struct tierce__deletion *step; /* of the current step */
    struct tierce__removed *removed;
    struct tierce__gone *gone; /* the step's records that are removed completely */
    size_t gone_count;
    bool is_tried; /* the store may have received the step */
    int error;
};

static void move_bytes(struct chain_removal *r, const struct tierce__deletion *deletion)
{
    TIERCE_DASSERT(deletion->live == r->live);
    TIERCE_ASSERT(r->is_tried && r->error == 0);
    struct tierce__live *live = r->live;
    for (size_t i = 0; i < deletion->count; i++) {
        const struct tierce__location *location = &deletion->items[i].location;
        struct tierce__quota_at at = tierce__live_quota_at(live, location->type, location->storage);
        uint64_t bytes = 0;
        for (size_t p = 0; p < location->place_count; p++)
            bytes += location->places[p].bytes;
        tierce__quota_move(live->locator->quota, &at, TIERCE__QUOTA_SERVING,
                           r->how->keep_bytes ? TIERCE__QUOTA_STATES : TIERCE__QUOTA_DELETING,
                           bytes);
        r->removed->locations++;
        r->removed->bytes += bytes;
    }
}

/* Keeps those locations of the record that are not removed. */
static enum tierce__meta_action remove_locations(struct chain_removal *r, int64_t key,
                                                 struct tierce__record *record,
                                                 struct tierce__arena *arena)
{
    TIERCE_ASSERT(!r->is_tried && r->step->live == r->live);
    const struct tierce__removal *how = r->how;
    size_t kept = 0, count = record->location_count;
    struct tierce__location *locations = NULL;
    if (how->wanted_location != NULL) {
        locations = tierce__arena_alloc(arena, (count + 1) * sizeof(*locations));
        r->error = locations == NULL ? -ENOMEM : 0;
    }
    for (size_t l = 0; l < count && r->error == 0; l++) {
        const struct tierce__location *location = &record->locations[l];
        if (locations != NULL && !how->wanted_location(how->wanted_arg, record, location))
            locations[kept++] = *location;
        else
            r->error = tierce__deletion_add(r->step, key, location);
    }
    TIERCE_DASSERT(kept <= count);
    if (r->error < 0)
        return TIERCE__META_FAIL;
    if (kept == count && count > 0)
        return TIERCE__META_SKIP;
    r->removed->keys++;
    if (kept == 0) {
        TIERCE_DASSERT(r->gone_count < r->removed->keys);
        r->gone[r->gone_count++] = (struct tierce__gone){.key = key,
                                                         .parent = record->parent,
                                                         .has_parent = record->has_parent,
                                                         .children = record->children};
        return TIERCE__META_DELETE;
    }
    TIERCE_DASSERT(kept < count);
    record->locations = locations;
    record->location_count = (uint16_t)kept;
    return TIERCE__META_PUT;
}

static enum tierce__meta_action remove_record(void *arg, size_t i, int64_t key, bool found,
                                              struct tierce__record *record,
                                              struct tierce__arena *arena)
{
    struct chain_removal *r = arg;
    if (!found || r->error < 0 ||
        (r->how->wanted != NULL && !r->how->wanted(r->how->wanted_arg, i, key, record)))
        return r->error < 0 ? TIERCE__META_FAIL : TIERCE__META_SKIP;
    return remove_locations(r, key, record, arena);
}

/* Blocks of a sparse kind of attention are found without the blocks before them. */
static bool leaves_holes(const struct chain_removal *r)
{
    return !r->how->is_all && !r->live->needs.is_sparse;
}

/* Makes the notes of the step: the deletion, and the holes. */
static int attach_notes(void *arg, const size_t *indices, size_t count,
                        struct tierce__meta_batch *batch, struct tierce__arena *arena)
{
    enum { DELETION, HOLES, NOTES };
    struct chain_removal *r = arg;
    size_t n = 0;
    int rc = 0;
    (void)indices, (void)count;
    TIERCE_DASSERT(r->gone_count <= count);
    if (r->error < 0)
        return r->error;
    r->is_tried = r->step->count > 0;
    if (r->step->count == 0)
        return 0;
    struct tierce__meta_note *notes = tierce__arena_calloc(arena, NOTES, sizeof(*notes));
    if (notes == NULL)
        return -ENOMEM;
    r->step->due_us = r->how->due_us;
    r->step->is_lost = r->how->are_lost;
    r->step->reusable_us = tierce__live_reusable_us(r->live, r->how->due_us);
    if (!r->how->keep_bytes)
        rc = tierce__deletion_write(r->step, &notes[n++]);
    if (rc == 0 && leaves_holes(r) && tierce__gone_settle(r->gone, r->gone_count))
        rc = tierce__gone_write(r->gone, r->gone_count, r->step->note, arena, &notes[n++]);
    TIERCE_DASSERT(n <= NOTES);
    batch->notes = notes;
    batch->note_count = n;
    return rc;
}

/* Returns whether a step with an unknown outcome was written, by its note or, without a note, by
 * its first record: 1, 0, or the store's error. */
static int was_written(struct chain_removal *r, struct tierce__arena *arena)
{
    TIERCE_ASSERT(r->is_tried && r->error == 0);
    TIERCE_DASSERT(r->step->count > 0);
    const void *value;
    size_t bytes;
    struct tierce__meta_space *space = tierce__meta_index_space(r->live->index);
    const struct tierce__deletion_item *item = &r->step->items[0];
    struct tierce__record record = {0};
    bool found = false;
    if (!r->how->keep_bytes) {
        int rc =
            space->ops->note(space, TIERCE__NOTE_DELETION, r->step->note, arena, &value, &bytes);
        return rc == -ENOENT ? 0 : rc < 0 ? rc : 1;
    }
    int rc = space->ops->get(space, &item->key, 1, arena, &record, &found);
    for (size_t l = 0; rc == 0 && found && l < record.location_count; l++) {
        if (memcmp(record.locations[l].id, item->location.id, sizeof(item->location.id)) == 0)
            return 0;
    }
    return rc < 0 ? rc : 1;
}

/* Each step is a separate call, so that its batch is certainly written before the deletion is
 * submitted. */
static int remove_step(struct chain_removal *r, const int64_t *keys, size_t count)
{
    TIERCE_DASSERT(count > 0);
    struct tierce__arena arena = {0};
    struct tierce__removed before = *r->removed;
    int *status = tierce__arena_calloc(&arena, count, sizeof(*status));
    r->error = 0;
    r->is_tried = false;
    r->step = tierce__deletion_create(r->live, count);
    r->gone = tierce__arena_calloc(&arena, count, sizeof(*r->gone));
    r->gone_count = 0;
    int rc = status != NULL && r->step != NULL && r->gone != NULL
                 ? tierce__meta_index_modify(r->live->index, keys, count,
                                             &(struct tierce__meta_change){.modify = remove_record,
                                                                           .attach = attach_notes,
                                                                           .arg = r,
                                                                           .whole = true},
                                             &arena, status)
                 : -ENOMEM;
    int known = 0;
    if (rc < 0 && r->error == 0 && r->is_tried && tierce__meta_may_be_written(rc))
        known = was_written(r, &arena);
    rc = known > 0 ? 0 : rc;
    TIERCE_DASSERT(r->gone_count <= count);
    if (rc < 0)
        *r->removed = before;
    else if (r->step->count > 0)
        move_bytes(r, r->step);
    if (rc == 0 && leaves_holes(r))
        tierce__holes_take(&r->live->holes, r->gone, r->gone_count, r->step->note);
    if (known < 0 && leaves_holes(r))
        tierce__holes_doubt(&r->live->holes, r->gone, r->gone_count, r->step->note);
    /* The deleter settles an unknown outcome. A removal without deletion has no note; its bytes
     * count until the next leader. */
    if ((rc == 0 || known < 0) && r->step != NULL && r->step->count > 0 && !r->how->keep_bytes) {
        r->step->is_doubtful = rc < 0;
        tierce__deleter_submit(r->live->locator->deleter, r->step);
        r->step = NULL;
    }
    tierce__deletion_destroy(r->step);
    tierce__arena_clear(&arena);
    return r->error < 0 ? r->error : rc;
}

int tierce__live_remove(struct tierce__live *live, const int64_t *keys, size_t count,
                        const struct tierce__removal *how, struct tierce__removed *removed)
{
    TIERCE_ASSERT(atomic_load_explicit(&live->users, memory_order_relaxed) > 0);
    TIERCE_DASSERT(!tierce__lock_holds_any());
    enum { STEP_KEYS = 128 };
    struct chain_removal r = {.live = live, .how = how, .removed = removed};
    int rc = 0;
    for (size_t first = 0; rc == 0 && first < count; first += STEP_KEYS) {
        size_t step = count - first < STEP_KEYS ? count - first : STEP_KEYS;
        removed->offset = first;
        rc = remove_step(&r, keys + first, step);
    }
    return rc;
}

int64_t tierce__live_reusable_us(const struct tierce__live *live, int64_t due_us)
{
    const struct tierce__locator *locator = live->locator;
    int64_t from_us =
        tierce__locator_now_us(locator) + (int64_t)locator->opts.reuse_delay_ms * 1000;
    return due_us > from_us ? due_us : from_us;
}

/* Selects the entries to remove: two names may have the same key. `texts` NULL: keys have no
 * texts. */
struct entries {
    const char *const *texts;
    const struct tierce__removed *removed;
};

static bool is_entry(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    const struct entries *entries = arg;
    (void)key;
    return record->key_text != NULL &&
           strcmp(record->key_text, entries->texts[entries->removed->offset + i]) == 0;
}

/* Keys that are being written will not serve. */
static void mark_claims(struct tierce__live *live, const int64_t *keys, const char *const *texts,
                        size_t count)
{
    tierce__lock_take(&live->lock);
    for (size_t i = 0; i < count; i++) {
        struct tierce__spec_claim *claim = tierce__live_claim(live, keys[i]);
        for (; claim != NULL; claim = tierce__live_claim_next(live, claim)) {
            const char *text = TIERCE__CONTAINER_OF(claim, struct tierce__session_key, claim)->text;
            if (texts == NULL || (text != NULL && strcmp(text, texts[i]) == 0))
                claim->is_removed = true;
        }
    }
    tierce__lock_drop(&live->lock);
}

int tierce__locator_remove_entries(struct tierce__locator *locator, const char *instance_id,
                                   const int64_t *keys, const char *const *texts, size_t count,
                                   char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live;
    struct tierce__removed removed = {0};
    struct entries entries = {.texts = texts, .removed = &removed};
    int rc = tierce__live_acquire(&live, locator, instance_id, why);
    if (rc < 0)
        return rc;
    mark_claims(live, keys, texts, count);
    struct tierce__removal at_once = {.due_us = tierce__locator_now_us(locator),
                                      .wanted = texts != NULL ? is_entry : NULL,
                                      .wanted_arg = &entries};
    int span = tierce__span_open("locator:remove");
    rc = tierce__live_remove(live, keys, count, &at_once, &removed);
    tierce__span_close(span);
    if (rc < 0)
        rc = tierce__why(why, rc, "the index cannot be written: %s", tierce_strerror(rc));
    tierce__live_release(live);
    return rc;
}

int tierce__locator_remove(struct tierce__locator *locator, const char *instance_id,
                           const int64_t *keys, size_t count, const struct tierce__mask *mask,
                           char why[TIERCE__WHY_BYTES])
{
    struct tierce__arena arena = {0};
    int64_t *wanted = tierce__arena_alloc(&arena, (count + 1) * sizeof(*wanted));
    size_t n = 0;
    if (wanted == NULL)
        return tierce__why(why, -ENOMEM, "no memory");
    for (size_t i = 0; i < count; i++) {
        if (!tierce__mask_has(mask, i))
            wanted[n++] = keys[i];
    }
    TIERCE_DASSERT(n <= count);
    int rc = tierce__locator_remove_entries(locator, instance_id, wanted, NULL, n, why);
    tierce__arena_clear(&arena);
    return rc;
}

/* ---- trimming -------------------------------------------------------------------------------- */

struct locator_span {
    int64_t begin_us, end_us;
};

static bool is_in_span(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    const struct locator_span *span = arg;
    (void)i, (void)key;
    TIERCE_DASSERT(span->begin_us < span->end_us);
    return record->stored_us >= span->begin_us && record->stored_us < span->end_us;
}

void tierce__live_mark_claims(struct tierce__live *live)
{
    TIERCE_ASSERT(atomic_load_explicit(&live->users, memory_order_relaxed) > 0);
    tierce__lock_take(&live->lock);
    TIERCE__MAP_FOR_EACH (node, &live->claims)
        TIERCE__CONTAINER_OF(node, struct tierce__spec_claim, node)->is_removed = true;
    tierce__lock_drop(&live->lock);
}

int tierce__live_trim(struct tierce__live *live, const struct tierce__removal *how,
                      struct tierce__removed *removed)
{
    enum { PAGE_KEYS = 1024, WAITING_MAX = 1024 };
    int64_t keys[PAGE_KEYS];
    struct tierce__meta_space *space = tierce__meta_index_space(live->index);
    struct tierce__deleter *deleter = live->locator->deleter;
    TIERCE_DASSERT(how->due_us == 0);
    uint64_t cursor = 0;
    int rc;
    do {
        size_t count;
        rc = space->ops->scan(space, &cursor, PAGE_KEYS, keys, &count);
        if (rc < 0)
            break;
        TIERCE_DASSERT(count <= PAGE_KEYS);
        struct tierce__removal at_once = *how;
        at_once.due_us = tierce__locator_now_us(live->locator);
        rc = tierce__live_remove(live, keys, count, &at_once, removed);
        /* Throttled to the speed of deletions, because queued ones lie in memory. */
        struct tierce__deleter_stats stats;
        tierce__deleter_stats(deleter, &stats);
        if (stats.waiting > WAITING_MAX)
            tierce__deleter_step(deleter, WAITING_MAX);
    } while (rc == 0 && cursor != 0);
    return rc;
}

int tierce__locator_trim(struct tierce__locator *locator, const char *instance_id, int trim,
                         int64_t begin_s, int64_t end_s, char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live;
    struct tierce__removed removed = {0};
    struct locator_span span = {.begin_us = begin_s * 1000000, .end_us = (end_s + 1) * 1000000};
    int rc = tierce__live_acquire(&live, locator, instance_id, why);
    if (rc < 0)
        return rc;
    bool time = trim == TIERCE__TRIM_TIME;
    if (trim != TIERCE__TRIM_ALL && trim != TIERCE__TRIM_META && !time)
        rc = tierce__why(why, TIERCE_E_ARGUMENT,
                         "strategy is %d; accepted are 1 (TS_REMOVE_ALL_CACHE), 2 "
                         "(TS_REMOVE_ALL_META) and 3 (TS_TIMESTAMP)",
                         trim);
    else if (time && (begin_s < 0 || end_s < begin_s || end_s > INT64_MAX / 1000000 - 1))
        rc = tierce__why(
            why, TIERCE_E_ARGUMENT,
            "begin_timestamp is %lld and end_timestamp %lld; accepted are seconds since "
            "1970, and begin_timestamp must not exceed end_timestamp",
            (long long)begin_s, (long long)end_s);
    if (rc < 0)
        goto out;
    if (!time)
        tierce__live_mark_claims(live);
    struct tierce__removal how = {.keep_bytes = trim == TIERCE__TRIM_META,
                                  .is_all = !time,
                                  .wanted = time ? is_in_span : NULL,
                                  .wanted_arg = &span};
    int timed = tierce__span_open("locator:trim");
    rc = tierce__live_trim(live, &how, &removed);
    tierce__span_close(timed);
    if (rc < 0)
        rc = tierce__why(why, rc, "after %llu blocks: %s", (unsigned long long)removed.keys,
                         tierce_strerror(rc));
out:
    tierce__live_release(live);
    return rc;
}

/* ---- emptying -------------------------------------------------------------------------------- */

enum { LOOK_NS = 5000000 };

static void set_emptying(struct tierce__live *live, bool is_emptying)
{
    tierce__lock_take(&live->lock);
    TIERCE_ASSERT(live->is_emptying != is_emptying);
    live->is_emptying = is_emptying;
    tierce__lock_drop(&live->lock);
}

/* The number of keys in one of the instance's maps. */
static size_t count_keys(struct tierce__live *live, const struct tierce__map *map)
{
    tierce__lock_take(&live->lock);
    TIERCE_DASSERT(map == &live->claims || map == &live->deleting);
    size_t count = map->count;
    tierce__lock_drop(&live->lock);
    return count;
}

/* Ends all sessions, also those that calls in progress begin or end. */
static int end_sessions(struct tierce__live *live, uint64_t deadline_ns,
                        char why[TIERCE__WHY_BYTES])
{
    size_t left;
    tierce__live_expire(live, INT64_MAX);
    while ((left = count_keys(live, &live->claims)) > 0) {
        if (tierce__now_ns() > deadline_ns)
            return tierce__why(why, -EBUSY,
                               "%zu of its keys are still being written; try again later", left);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        tierce__live_expire(live, INT64_MAX);
    }
    return 0;
}

/* Waits for the deleter. */
static int end_deletions(struct tierce__live *live, uint64_t deadline_ns,
                         char why[TIERCE__WHY_BYTES])
{
    struct tierce__deleter *deleter = live->locator->deleter;
    for (;;) {
        tierce__deleter_hasten(deleter, live);
        tierce__deleter_step(deleter, SIZE_MAX);
        size_t left = count_keys(live, &live->deleting);
        if (left == 0)
            return 0;
        if (tierce__now_ns() > deadline_ns)
            return tierce__why(
                why, -EBUSY, "%zu of its locations are still being deleted; try again later", left);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
}

/* Waits for calls that began before the instance rejected calls, and for the deletions that they
 * submit: nobody could process them once the space is deleted. */
static int end_calls(struct tierce__live *live, uint64_t deadline_ns, char why[TIERCE__WHY_BYTES])
{
    enum { LIST_AND_THIS = 2 };
    for (;;) {
        bool has_ended = tierce__deleter_has_rest(live->locator->deleter, live, LIST_AND_THIS);
        int rc = end_deletions(live, deadline_ns, why);
        if (rc < 0 || has_ended)
            return rc;
        if (tierce__now_ns() > deadline_ns)
            return tierce__why(why, -EBUSY, "a call for it is in progress; try again later");
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
}

int tierce__live_empty(struct tierce__live *live, uint64_t deadline_ns, char why[TIERCE__WHY_BYTES])
{
    struct tierce__removed removed = {0};
    TIERCE_DASSERT(!tierce__lock_holds_any());
    set_emptying(live, true);
    int rc = end_sessions(live, deadline_ns, why);
    if (rc == 0) {
        rc = tierce__live_trim(live, &(struct tierce__removal){.is_all = true}, &removed);
        if (rc < 0)
            rc = tierce__why(why, rc, "its blocks cannot be removed: %s", tierce_strerror(rc));
    }
    if (rc == 0)
        rc = end_calls(live, deadline_ns, why);
    if (rc < 0)
        set_emptying(live, false);
    return rc;
}

/* ---- looking --------------------------------------------------------------------------------- */

/* Shows a block with its locations; the id and type are those of the first one. */
static int show_looked(struct tierce__live *live, const struct tierce__catalog *catalog,
                       const struct tierce__location *locations, size_t count,
                       enum tierce__look_state state, struct tierce__arena *arena,
                       struct tierce__looked *out)
{
    TIERCE_DASSERT(count > 0);
    const struct tierce__instance *instance = &live->instance;
    struct tierce__found_spec *specs =
        tierce__arena_alloc(arena, (instance->spec_count + 1) * sizeof(*specs));
    bool *is_shown = tierce__arena_calloc(arena, instance->spec_count + 1, sizeof(*is_shown));
    if (specs == NULL || is_shown == NULL)
        return -ENOMEM;
    out->state = state;
    memcpy(out->id, locations[0].id, sizeof(locations[0].id));
    out->found = (struct tierce__found){.type = locations[0].type, .specs = specs};
    for (size_t l = 0; l < count; l++) {
        const struct tierce__storage *storage = tierce__location_storage(catalog, &locations[l]);
        for (size_t p = 0; p < locations[l].place_count; p++) {
            const struct tierce__spec_place *place = &locations[l].places[p];
            if (place->spec >= instance->spec_count || is_shown[place->spec])
                continue;
            TIERCE_DASSERT(out->found.spec_count_all < instance->spec_count);
            is_shown[place->spec] = true;
            out->found.spec_count_all++;
            if (storage == NULL)
                continue;
            TIERCE_DASSERT(out->found.spec_count < instance->spec_count);
            struct tierce__found_spec *spec = &specs[out->found.spec_count++];
            spec->name = instance->specs[place->spec].name;
            spec->uri = tierce__place_uri(storage, instance, place, arena);
            if (spec->uri == NULL)
                return -ENOMEM;
        }
    }
    TIERCE_DASSERT(out->found.spec_count <= out->found.spec_count_all);
    return 0;
}

/* Returns the locations at which sessions write a key. SESSIONS held. Errors: -ENOMEM. */
static int find_writing(struct tierce__live *live, int64_t key, struct tierce__arena *arena,
                        struct tierce__location **out, size_t *count)
{
    size_t all = 0;
    struct tierce__spec_claim *first = tierce__live_claim(live, key), *claim;
    *count = 0;
    *out = NULL;
    for (claim = first; claim != NULL; claim = tierce__live_claim_next(live, claim))
        all += claim->making == NULL; /* others have no places yet */
    if (all == 0)
        return 0;
    struct tierce__location *locations = tierce__arena_alloc(arena, all * sizeof(*locations));
    if (locations == NULL)
        return -ENOMEM;
    for (claim = first; claim != NULL; claim = tierce__live_claim_next(live, claim)) {
        const struct tierce__session_key *writing =
            TIERCE__CONTAINER_OF(claim, struct tierce__session_key, claim);
        if (claim->making != NULL)
            continue;
        TIERCE_DASSERT(*count < all && claim->session->count > 0);
        struct tierce__location *location = &locations[(*count)++];
        *location = (struct tierce__location){.storage = claim->session->storage,
                                              .type = claim->session->type,
                                              .place_count = writing->place_count,
                                              .places = writing->places};
        memcpy(location->id, writing->location_id, sizeof(location->id));
    }
    *out = locations;
    return 0;
}

/* Determines whether a key that does not serve is being written or deleted. */
static int look_aside(struct tierce__live *live, const struct tierce__catalog *catalog, int64_t key,
                      struct tierce__arena *arena, struct tierce__looked *out)
{
    TIERCE_ASSERT(out->state == TIERCE__LOOK_NOT_FOUND);
    struct tierce__location *writing;
    size_t count;
    tierce__lock_take(&live->lock);
    int rc = find_writing(live, key, arena, &writing, &count);
    const struct tierce__location *deleting =
        rc == 0 && count == 0 ? tierce__deleting_find(&live->deleting, key) : NULL;
    if (rc == 0 && count > 0)
        rc = show_looked(live, catalog, writing, count, TIERCE__LOOK_WRITING, arena, out);
    else if (deleting != NULL)
        rc = show_looked(live, catalog, deleting, 1, TIERCE__LOOK_DELETING, arena, out);
    tierce__lock_drop(&live->lock);
    return rc;
}

static int look_at(struct tierce__live *live, const struct tierce__catalog *catalog,
                   const int64_t *keys, size_t count, struct tierce__arena *arena,
                   struct tierce__looked *out)
{
    TIERCE_ASSERT(atomic_load_explicit(&live->users, memory_order_relaxed) > 0);
    bool *found = tierce__arena_calloc(arena, count + 1, sizeof(*found));
    struct tierce__record *records = tierce__arena_calloc(arena, count + 1, sizeof(*records));
    if (found == NULL || records == NULL)
        return -ENOMEM;
    int64_t now_us = tierce__locator_now_us(live->locator);
    int64_t ttl_us = tierce__live_ttl_us(live, catalog);
    uint64_t generation = tierce__live_generation(live);
    int rc =
        count > 0 ? tierce__meta_index_get(live->index, keys, count, arena, records, found) : 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (found[i] && records[i].location_count > 0 && records[i].generation == generation &&
            tierce__record_due_us(&records[i], ttl_us) > now_us)
            rc = show_looked(live, catalog, records[i].locations, records[i].location_count,
                             TIERCE__LOOK_SERVING, arena, &out[i]);
        else
            rc = look_aside(live, catalog, keys[i], arena, &out[i]);
    }
    return rc;
}

int tierce__locator_look(struct tierce__locator *locator,
                         const struct tierce__look_request *request, struct tierce__arena *arena,
                         struct tierce__looked **out, size_t *out_count,
                         char why[TIERCE__WHY_BYTES])
{
    struct tierce__live *live;
    int rc = tierce__live_acquire(&live, locator, request->instance_id, why);
    if (rc < 0)
        return rc;
    const struct tierce__catalog *catalog = tierce__registry_acquire(locator->opts.registry);
    int64_t *wanted = tierce__arena_alloc(arena, (request->count + 1) * sizeof(*wanted));
    struct tierce__looked *looked =
        tierce__arena_calloc(arena, request->count + 1, sizeof(*looked));
    size_t n = 0;
    if (wanted == NULL || looked == NULL)
        rc = tierce__why(why, -ENOMEM, "no memory");
    else
        rc = tierce__live_check_parts(live, request->count, why);
    if (rc < 0)
        goto out;
    for (size_t i = 0; i < request->count; i++) {
        if (!tierce__mask_has(&request->mask, i))
            wanted[n++] = request->keys[i];
    }
    TIERCE_DASSERT(n <= request->count);
    int span = tierce__span_open("locator:look");
    rc = look_at(live, catalog, wanted, n, arena, looked);
    tierce__span_close(span);
    if (rc < 0) {
        rc = tierce__why(why, rc, "the index cannot be read: %s", tierce_strerror(rc));
        goto out;
    }
    *out = looked;
    *out_count = n;
out:
    tierce__registry_release(locator->opts.registry, catalog);
    tierce__live_release(live);
    return rc;
}
