/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/reclaim/expiry.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "base/mix.h"
#include "manager/locate/locator_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_US 1000000

enum {
    TTL_USUAL_S = 3600, /* of POLICY_TTL */
    KEPT_BACK_S = 20,   /* twice the usual delay with which stores write uses */
    AT_ONCE = 1024,     /* entries, and keys of a scan */
    SCANS_AT_ONCE = 8,
    AGAIN_US = SECOND_US, /* after a store failed */
};

/* ---- the calendar ---------------------------------------------------------------------------- */

struct tierce__calendar_second {
    struct tierce__deadline deadline;
    struct tierce__map_node node;
    int64_t second;
    struct tierce__calendar_entry *entries;
    size_t count, room;
};

static uint64_t hash_of(int64_t second)
{
    return tierce__spread((uint64_t)second); /* the hash determines the second */
}

static struct tierce__calendar_second *find_second(const struct tierce__calendar *calendar,
                                                   int64_t number)
{
    struct tierce__map_node *node = tierce__map_find(&calendar->seconds, hash_of(number));
    TIERCE_DASSERT(node == NULL ||
                   TIERCE__CONTAINER_OF(node, struct tierce__calendar_second, node)->second ==
                       number);
    return node != NULL ? TIERCE__CONTAINER_OF(node, struct tierce__calendar_second, node) : NULL;
}

static struct tierce__calendar_second *make_second(struct tierce__calendar *calendar,
                                                   int64_t number)
{
    TIERCE_DASSERT(find_second(calendar, number) == NULL);
    if (tierce__map_reserve(&calendar->seconds, calendar->seconds.count + 1) < 0)
        return NULL;
    struct tierce__calendar_second *second = tierce__calloc(1, sizeof(*second));
    if (second == NULL)
        return NULL;
    second->second = number;
    if (tierce__deadline_set(&calendar->heap, &second->deadline, tierce__due(number * SECOND_US)) <
        0) {
        tierce__free(second);
        return NULL;
    }
    tierce__map_put(&calendar->seconds, &second->node, hash_of(number));
    TIERCE_DASSERT(calendar->seconds.count == calendar->heap.count);
    return second;
}

static void drop_second(struct tierce__calendar *calendar, struct tierce__calendar_second *second)
{
    TIERCE_DASSERT(calendar->seconds.count == calendar->heap.count);
    TIERCE_ASSERT(second->deadline.place != 0 && find_second(calendar, second->second) == second);
    tierce__map_remove(&calendar->seconds, &second->node);
    tierce__deadline_unset(&calendar->heap, &second->deadline);
    tierce__free(second->entries);
    tierce__free(second);
}

int tierce__calendar_add(struct tierce__calendar *calendar, int64_t key, int64_t stored_us,
                         int64_t due_us)
{
    int64_t number = due_us > 0 ? (due_us - 1) / SECOND_US + 1 : 0; /* not before it is due */
    struct tierce__calendar_second *second = find_second(calendar, number);
    if (second == NULL)
        second = make_second(calendar, number);
    if (second == NULL)
        return -ENOMEM;
    if (TIERCE__GROW(second->entries, second->room, second->count + 1, 4) < 0) {
        if (second->count == 0)
            drop_second(calendar, second);
        return -ENOMEM;
    }
    TIERCE_ASSERT(second->count < second->room);
    second->entries[second->count++] = (struct tierce__calendar_entry){key, stored_us};
    calendar->entries++;
    TIERCE_DASSERT(calendar->entries >= second->count);
    return 0;
}

size_t tierce__calendar_take(struct tierce__calendar *calendar, int64_t now_us,
                             struct tierce__calendar_entry *out, size_t most)
{
    struct tierce__deadline *first = tierce__deadlines_first(&calendar->heap);
    if (first == NULL || first->at > tierce__due(now_us))
        return 0;
    struct tierce__calendar_second *second =
        TIERCE__CONTAINER_OF(first, struct tierce__calendar_second, deadline);
    TIERCE_ASSERT(second->count > 0 && most > 0);
    size_t count = second->count < most ? second->count : most;
    memcpy(out, second->entries + (second->count - count), count * sizeof(*out));
    TIERCE_ASSERT(calendar->entries >= count);
    second->count -= count;
    calendar->entries -= count;
    if (second->count == 0)
        drop_second(calendar, second);
    TIERCE_DASSERT(calendar->entries > 0 || calendar->heap.count == 0);
    return count;
}

int64_t tierce__calendar_next(const struct tierce__calendar *calendar)
{
    const struct tierce__deadline *first = tierce__deadlines_first(&calendar->heap);
    TIERCE_DASSERT((first == NULL) == (calendar->entries == 0));
    return first != NULL ? (int64_t)first->at : INT64_MAX;
}

void tierce__calendar_clear(struct tierce__calendar *calendar)
{
    struct tierce__deadline *first;
    while ((first = tierce__deadlines_first(&calendar->heap)) != NULL)
        drop_second(calendar,
                    TIERCE__CONTAINER_OF(first, struct tierce__calendar_second, deadline));
    TIERCE_DASSERT(calendar->seconds.count == 0);
    TIERCE_DASSERT(calendar->heap.count == 0);
    tierce__deadlines_fini(&calendar->heap);
    tierce__map_fini(&calendar->seconds);
    *calendar = (struct tierce__calendar){0};
}

/* ---- expiry ---------------------------------------------------------------------------------- */

int64_t tierce__group_ttl_us(const struct tierce__group *group)
{
    int64_t usual_s = group->reclaim_policy == TIERCE__RECLAIM_TTL ? TTL_USUAL_S : 0;
    int64_t ttl_s = group->ttl_s > 0 ? group->ttl_s : usual_s;
    TIERCE_ASSERT(ttl_s >= 0);
    return (ttl_s < TIERCE__TTL_S_MAX ? ttl_s : TIERCE__TTL_S_MAX) * SECOND_US;
}

int64_t tierce__live_ttl_us(const struct tierce__live *live, const struct tierce__catalog *catalog)
{
    const struct tierce__group *group = tierce__catalog_group(catalog, live->instance.group_name);
    int64_t ttl_us = group != NULL ? tierce__group_ttl_us(group) : 0;
    TIERCE_DASSERT(ttl_us >= 0);
    return ttl_us > 0 && live->blocks ? ttl_us + (int64_t)KEPT_BACK_S * SECOND_US : ttl_us;
}

int64_t tierce__record_due_us(const struct tierce__record *record, int64_t ttl_us)
{
    int64_t own_us = record->expires_us > 0 ? record->expires_us : INT64_MAX;
    int64_t idle_us;
    if (ttl_us <= 0 || __builtin_add_overflow(record->used_us, ttl_us, &idle_us))
        idle_us = INT64_MAX;
    return own_us < idle_us ? own_us : idle_us;
}

void tierce__live_enter_expiry(struct tierce__live *live, int64_t key,
                               const struct tierce__record *record)
{
    tierce__lock_assert_held(&live->lock);
    int64_t due_us = tierce__record_due_us(record, live->calendar_ttl_us);
    if (due_us == INT64_MAX)
        return;
    if (tierce__calendar_add(&live->calendar, key, record->stored_us, due_us) < 0)
        live->is_calendar_stale = true;
}

int tierce__live_note_expiry(struct tierce__live *live)
{
    TIERCE_DASSERT(!tierce__list_empty(&live->node));
    tierce__lock_take(&live->lock);
    bool is_known = live->has_expiring;
    tierce__lock_drop(&live->lock);
    if (is_known)
        return 0;
    static const uint8_t version = 1;
    struct tierce__meta_note note = {
        .kind = TIERCE__NOTE_EXPIRY, .number = 1, .value = &version, .bytes = sizeof(version)};
    int rc = tierce__meta_index_write_notes(live->index, &note, 1);
    if (rc < 0)
        return rc;
    tierce__lock_take(&live->lock);
    live->has_expiring = true;
    tierce__lock_drop(&live->lock);
    return 0;
}

int tierce__live_find_expiry(struct tierce__live *live)
{
    struct tierce__arena arena = {0};
    const void *value;
    size_t bytes;
    TIERCE_DASSERT(tierce__list_empty(&live->node));
    TIERCE_DASSERT(!live->has_expiring);
    int rc = live->space->ops->note(live->space, TIERCE__NOTE_EXPIRY, 1, &arena, &value, &bytes);
    tierce__arena_clear(&arena);
    live->has_expiring = rc == 0; /* no other thread knows the instance yet */
    return rc == -ENOENT ? 0 : rc;
}

/* ---- removal --------------------------------------------------------------------------------- */

/* Keys that may have expired. */
struct looking {
    struct tierce__live *live;
    const struct tierce__expiring *how;
    struct tierce__expired *expired;
    int64_t now_us;
    struct tierce__arena arena;
    int64_t *keys; /* that had expired when they were read */
    size_t count;
    struct tierce__reclaimed *gone;
    size_t gone_count, gone_max;
    struct tierce__calendar_entry
        *again; /* keys that were used meanwhile, and their new due times */
    size_t again_count;
};

static int by_key(const void *a, const void *b)
{
    const struct tierce__calendar_entry *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->stored_us > y->stored_us) - (x->stored_us < y->stored_us);
}

static void enter(struct tierce__live *live, int64_t key, const struct tierce__record *record)
{
    tierce__lock_take(&live->lock);
    tierce__live_enter_expiry(live, key, record);
    tierce__lock_drop(&live->lock);
}

/* An entry for any record of the key, due at that time at the latest. */
static void enter_again(struct tierce__live *live, int64_t key, int64_t at_us)
{
    enter(live, key, &(struct tierce__record){.used_us = at_us, .expires_us = at_us});
}

/* Called under the key's lock. A block that was used meanwhile stays until it is due again. */
static bool has_expired(void *arg, size_t i, int64_t key, const struct tierce__record *record)
{
    struct looking *l = arg;
    TIERCE_ASSERT(l->gone_count <= l->gone_max && l->again_count <= l->count);
    (void)i;
    if (tierce__record_due_us(record, l->how->ttl_us) > l->now_us) {
        if (l->again_count < l->count)
            l->again[l->again_count++] =
                (struct tierce__calendar_entry){key, tierce__record_due_us(record, l->how->ttl_us)};
        return false;
    }
    for (size_t at = 0; at < record->location_count && l->gone_count < l->gone_max; at++) {
        struct tierce__reclaimed *gone = &l->gone[l->gone_count++];
        gone->key = key;
        memcpy(gone->location_id, record->locations[at].id, sizeof(gone->location_id));
    }
    return true;
}

static void remove_expired(struct looking *l)
{
    TIERCE_ASSERT(l->count > 0);
    struct tierce__removed removed = {0};
    struct tierce__removal how = {
        .due_us = l->now_us + l->how->delay_us, .wanted = has_expired, .wanted_arg = l};
    int rc = tierce__live_remove(l->live, l->keys, l->count, &how, &removed);
    TIERCE_ASSERT(l->gone_count <= l->gone_max && l->again_count <= l->count);
    l->expired->blocks += removed.keys;
    l->expired->locations += removed.locations;
    l->expired->bytes += removed.bytes;
    size_t told = removed.locations < l->gone_count ? removed.locations : l->gone_count;
    TIERCE_DASSERT(removed.keys <= l->count);
    if (told > 0 && l->how->submitted != NULL)
        l->how->submitted(l->how->arg, l->live->instance.id, l->gone, told, l->how->delay_us);
    for (size_t i = 0; i < l->again_count; i++)
        enter_again(l->live, l->again[i].key, l->again[i].stored_us);
    if (rc == 0)
        return;
    tierce__log(TIERCE_LOG_WARN, "manager.expiry_failed", "instance=%s error=%s",
                l->live->instance.id, tierce_error_name(rc));
    for (size_t i = 0; i < l->count; i++)
        enter_again(l->live, l->keys[i], l->now_us + AGAIN_US);
}

/* Reads the records of due entries, removes expired blocks, and re-enters the others. An entry
 * whose record was stored again is dropped, because the new record has its own entry. */
static int look_at_entries(struct looking *l, struct tierce__calendar_entry *entries, size_t count)
{
    TIERCE_DASSERT(count > 0);
    struct tierce__meta_space *space = tierce__meta_index_space(l->live->index);
    struct tierce__record *records = tierce__arena_calloc(&l->arena, count, sizeof(*records));
    bool *found = tierce__arena_calloc(&l->arena, count, sizeof(*found));
    int64_t *keys = tierce__arena_alloc(&l->arena, count * sizeof(*keys));
    l->keys = tierce__arena_alloc(&l->arena, count * sizeof(*l->keys));
    l->again = tierce__arena_alloc(&l->arena, count * sizeof(*l->again));
    l->count = l->gone_count = l->gone_max = l->again_count = 0;
    if (records == NULL || found == NULL || keys == NULL || l->keys == NULL || l->again == NULL)
        return -ENOMEM;
    qsort(entries, count, sizeof(*entries), by_key); /* each key is checked once */
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (i + 1 < count && entries[i + 1].key == entries[i].key) {
            if (entries[i + 1].stored_us != entries[i].stored_us)
                entries[i + 1].stored_us = 0; /* for any record of the key */
            continue;
        }
        entries[n] = entries[i];
        keys[n++] = entries[i].key;
    }
    TIERCE_ASSERT(n > 0 && n <= count);
    int rc = space->ops->get(space, keys, n, &l->arena, records, found);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        int64_t stored_us = entries[i].stored_us;
        if (!found[i] || (stored_us != 0 && stored_us != records[i].stored_us))
            continue;
        if (tierce__record_due_us(&records[i], l->how->ttl_us) > l->now_us) {
            enter(l->live, keys[i], &records[i]);
            continue;
        }
        l->keys[l->count++] = keys[i];
        l->gone_max += records[i].location_count;
    }
    TIERCE_DASSERT(l->count <= n);
    if (rc == 0)
        l->gone = tierce__arena_alloc(&l->arena, (l->gone_max + 1) * sizeof(*l->gone));
    if (rc == 0 && l->gone == NULL)
        rc = -ENOMEM;
    if (rc == 0 && l->count > 0)
        remove_expired(l);
    return rc;
}

/* ---- the calendar of an instance ------------------------------------------------------------- */

/* Restarts the calendar if the group's time to live has changed. Returns true if keys must be
 * scanned. */
static bool begin_calendar(struct tierce__live *live, int64_t ttl_us)
{
    tierce__lock_take(&live->lock);
    if (live->calendar_ttl_us != ttl_us || live->is_calendar_stale) {
        tierce__calendar_clear(&live->calendar);
        live->calendar_ttl_us = ttl_us;
        live->is_calendar_stale = false;
        live->is_scanning = ttl_us > 0 || live->has_expiring;
        live->scan_cursor = 0;
    }
    TIERCE_DASSERT(live->calendar_ttl_us == ttl_us && !live->is_calendar_stale);
    bool is_scanning = live->is_scanning;
    tierce__lock_drop(&live->lock);
    return is_scanning;
}

/* Scans some more keys of the instance. */
static int scan_keys(struct looking *l)
{
    TIERCE_ASSERT(l->live->is_scanning);
    struct tierce__live *live = l->live;
    struct tierce__meta_space *space = tierce__meta_index_space(live->index);
    int64_t keys[AT_ONCE];
    bool found[AT_ONCE];
    size_t count = 0;
    uint64_t cursor = live->scan_cursor;
    struct tierce__record *records = tierce__arena_calloc(&l->arena, AT_ONCE, sizeof(*records));
    if (records == NULL)
        return -ENOMEM;
    int rc = space->ops->scan(space, &cursor, AT_ONCE, keys, &count);
    TIERCE_ASSERT(count <= AT_ONCE);
    if (rc == 0 && count > 0)
        rc = space->ops->get(space, keys, count, &l->arena, records, found);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (found[i])
            enter(live, keys[i], &records[i]);
    }
    if (rc < 0)
        return rc;
    live->scan_cursor = cursor;
    live->is_scanning = cursor != 0;
    return 0;
}

void tierce__live_expire_blocks(struct tierce__live *live, const struct tierce__expiring *how,
                                struct tierce__expired *expired, int64_t *next_us)
{
    struct tierce__calendar_entry entries[AT_ONCE];
    struct looking l = {.live = live,
                        .how = how,
                        .expired = expired,
                        .now_us = tierce__locator_now_us(live->locator)};
    int rc = 0;
    TIERCE_DASSERT(how->ttl_us >= 0 && how->delay_us >= 0);
    begin_calendar(live, how->ttl_us);
    for (int i = 0; rc == 0 && live->is_scanning && i < SCANS_AT_ONCE; i++) {
        tierce__arena_reset(&l.arena);
        rc = scan_keys(&l);
    }
    size_t count = 0;
    for (int i = 0; rc == 0 && i < SCANS_AT_ONCE; i++) {
        tierce__arena_reset(&l.arena);
        tierce__lock_take(&live->lock);
        count = tierce__calendar_take(&live->calendar, l.now_us, entries, AT_ONCE);
        tierce__lock_drop(&live->lock);
        TIERCE_ASSERT(count <= AT_ONCE);
        if (count == 0)
            break;
        rc = look_at_entries(&l, entries, count);
        for (size_t e = 0; rc < 0 && e < count; e++)
            enter_again(live, entries[e].key, l.now_us + AGAIN_US);
    }
    tierce__arena_clear(&l.arena);
    tierce__lock_take(&live->lock);
    int64_t due_us = tierce__calendar_next(&live->calendar);
    if (live->is_scanning || live->is_calendar_stale)
        due_us = rc < 0 ? l.now_us + AGAIN_US : l.now_us;
    tierce__lock_drop(&live->lock);
    *next_us = due_us < *next_us ? due_us : *next_us;
}
