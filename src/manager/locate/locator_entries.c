/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locate/locator_private.h"
#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Ends a write of entries by name: which entries were written, and their sizes. */

/* Keeps the sum over a session's keys (at most 65,535) below 2^63. */
#define ENTRY_BYTES_MAX (INT64_MAX / 65536)

/* One write of entries that ends. */
struct locator_ending {
    struct tierce__live *live;
    const struct tierce__catalog *catalog;
    const struct tierce__storage *storage;
    struct tierce__write_session *session; /* busy */
    struct tierce__arena arena;
    uint64_t *bytes; /* of each key; 0: unknown */
    struct tierce__arena *result;
    uint8_t *ended_written; /* [session->count] in `result` */
    uint64_t *ended_bytes;
};

/* ---- which were written ---------------------------------------------------------------------- */

/* The URI of an entry without its size, and the index of its key in the session. */
struct locator_named {
    const char *uri;
    size_t key;
};

static int compare_uris(const void *a, const void *b)
{
    return strcmp(((const struct locator_named *)a)->uri, ((const struct locator_named *)b)->uri);
}

/* Compares a client's URI with an entry's. All entries' URIs have the same length, so none is a
 * prefix of another. */
static int compare_given(const void *given, const void *entry)
{
    const char *uri = ((const struct locator_named *)entry)->uri;
    return strncmp(given, uri, strlen(uri));
}

static struct locator_named *name_keys(struct locator_ending *e)
{
    TIERCE_DASSERT(e->storage != NULL && e->live->instance.spec_count == 1);
    TIERCE_DASSERT(e->storage->number == e->session->storage);
    const struct tierce__write_session *session = e->session;
    struct tierce__place_uris uris;
    struct locator_named *named =
        tierce__arena_alloc(&e->arena, (session->count + 1) * sizeof(*named));
    if (named == NULL ||
        tierce__place_uris_begin(&uris, e->storage, &e->live->instance, &e->arena) < 0)
        return NULL;
    for (size_t i = 0; i < session->count; i++) {
        TIERCE_DASSERT(session->keys[i].place_count == 1);
        struct tierce__spec_place place = session->keys[i].places[0];
        place.bytes = 0;
        named[i] = (struct locator_named){.uri = tierce__place_uris_make(&uris, &place), .key = i};
        if (named[i].uri == NULL)
            return NULL;
        TIERCE_DASSERT(strlen(named[i].uri) == strlen(named[0].uri));
    }
    qsort(named, session->count, sizeof(*named), compare_uris);
    return named;
}

/* The value of "size=" among the parameters after an entry's URI; 0: none. */
static int read_size(const char *parameters, uint64_t *bytes)
{
    *bytes = 0;
    if (*parameters != '\0' && *parameters != '?' && *parameters != '&')
        return TIERCE_E_ARGUMENT;
    while (*parameters != '\0') {
        const char *parameter = parameters + 1;
        size_t length = strcspn(parameter, "&");
        if (strncmp(parameter, "size=", 5) == 0) {
            char *end;
            errno = 0;
            unsigned long long number = strtoull(parameter + 5, &end, 10);
            if (parameter[5] < '0' || parameter[5] > '9' || end != parameter + length ||
                errno != 0 || number > ENTRY_BYTES_MAX)
                return TIERCE_E_ARGUMENT;
            *bytes = number;
        }
        parameters = parameter + length;
    }
    return 0;
}

static int mark_written(struct locator_ending *e, const char *const *uris, size_t count,
                        char why[TIERCE__WHY_BYTES])
{
    TIERCE_ASSERT(e->session->is_busy && e->session->count > 0);
    struct tierce__write_session *session = e->session;
    if (count == 0)
        return 0;
    struct locator_named *named = name_keys(e);
    if (named == NULL)
        return -ENOMEM;
    memset(session->written, 0, session->count * sizeof(*session->written));
    for (size_t i = 0; i < count; i++) {
        const struct locator_named *found =
            bsearch(uris[i], named, session->count, sizeof(*named), compare_given);
        if (found == NULL || read_size(uris[i] + strlen(found->uri), &e->bytes[found->key]) < 0)
            return tierce__why(why, TIERCE_E_ARGUMENT,
                               "%.180s is not a location of the session, or has an invalid size",
                               uris[i]);
        TIERCE_DASSERT(found->key < session->count);
        session->written[found->key] = true;
    }
    return 0;
}

/* ---- how long they are ----------------------------------------------------------------------- */

/* Asks the storage for missing sizes. If it does not know or does not answer, that is not an error.
 */
static int measure(struct locator_ending *e)
{
    TIERCE_ASSERT(e->session->is_busy && e->storage->number == e->session->storage);
    struct tierce__write_session *session = e->session;
    size_t n = 0, count = session->count;
    const char **paths = tierce__arena_alloc(&e->arena, (count + 1) * sizeof(*paths));
    size_t *keys = tierce__arena_alloc(&e->arena, (count + 1) * sizeof(*keys));
    uint64_t *bytes = tierce__arena_alloc(&e->arena, (count + 1) * sizeof(*bytes));
    int *status = tierce__arena_alloc(&e->arena, (count + 1) * sizeof(*status));
    if (paths == NULL || keys == NULL || bytes == NULL || status == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        const struct tierce__spec_place *place = &session->keys[i].places[0];
        if (!session->written[i] || e->bytes[i] > 0 || place->bytes > 0)
            continue;
        paths[n] = tierce__place_path(e->storage, &e->live->instance, place, &e->arena);
        if (paths[n] == NULL)
            return -ENOMEM;
        keys[n++] = i;
    }
    TIERCE_DASSERT(n <= count);
    if (n == 0 || tierce__storages_measure(e->live->locator->opts.storages, e->storage, paths, n,
                                           bytes, status) < 0)
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (status[i] == 0 && bytes[i] <= ENTRY_BYTES_MAX)
            e->bytes[keys[i]] = bytes[i];
    }
    return 0;
}

/* Reserves the bytes as being written. *dropped is set to the number of entries that exceed the
 * quotas. */
static int reserve(struct locator_ending *e, const struct tierce__group *group, size_t *dropped,
                   const char **limit)
{
    TIERCE_ASSERT(e->session->is_busy && *dropped == 0);
    struct tierce__write_session *session = e->session;
    struct tierce__quota_limits limits;
    struct tierce__quota_at at = tierce__live_quota_at(e->live, session->type, session->storage);
    size_t fit = session->count;
    for (size_t i = 0; i < session->count; i++) {
        /* An earlier attempt has counted it. */
        if (!session->written[i] || session->keys[i].places[0].bytes > 0)
            e->bytes[i] = 0;
    }
    tierce__choose_limits(&limits, group, e->storage);
    int rc = tierce__quota_reserve(e->live->locator->quota, &at, &limits, e->bytes, session->count,
                                   &fit, limit);
    TIERCE_DASSERT(rc < 0 || fit <= session->count);
    tierce__lock_take(&e->live->lock);
    for (size_t i = 0; rc == 0 && i < fit; i++) {
        struct tierce__spec_place *place =
            (struct tierce__spec_place *)(uintptr_t)&session->keys[i].places[0];
        TIERCE_DASSERT(e->bytes[i] == 0 || (session->written[i] && place->bytes == 0));
        place->bytes += e->bytes[i];
        session->bytes += e->bytes[i];
        e->live->writing_by_slot[tierce__meta_type_slot(session->type)] += e->bytes[i];
    }
    tierce__lock_drop(&e->live->lock);
    for (size_t i = fit; rc == 0 && i < session->count; i++) {
        *dropped += session->written[i];
        session->written[i] = false;
    }
    return rc;
}

/* ---- the story ------------------------------------------------------------------------------- */

/* The session is freed when it ends, so its result is copied before. */
static void copy_end(struct locator_ending *e, struct tierce__entries_ended *out)
{
    const struct tierce__write_session *session = e->session;
    TIERCE_ASSERT(session->is_busy);
    for (size_t i = 0; i < session->count; i++) {
        TIERCE_DASSERT(session->keys[i].place_count == 1);
        e->ended_written[i] = session->written[i];
        e->ended_bytes[i] = session->written[i] ? session->keys[i].places[0].bytes : 0;
    }
    *out = (struct tierce__entries_ended){e->ended_written, e->ended_bytes, session->count};
}

/* The session is marked busy by this call. */
static int end_entries(struct locator_ending *e, const struct tierce__ending_request *request,
                       struct tierce__entries_ended *out, char why[TIERCE__WHY_BYTES])
{
    struct tierce__write_session *session = e->session;
    TIERCE_ASSERT(session->is_busy && !session->is_doubtful);
    TIERCE_ASSERT(e->live->instance.spec_count == 1);
    const struct tierce__group *group =
        tierce__catalog_group(e->catalog, e->live->instance.group_name);
    const char *limit = NULL;
    size_t dropped = 0, all = session->count;
    e->storage = tierce__catalog_storage_numbered(e->catalog, session->storage);
    e->bytes = tierce__arena_calloc(&e->arena, all + 1, sizeof(*e->bytes));
    e->ended_written = tierce__arena_calloc(e->result, all + 1, sizeof(*e->ended_written));
    e->ended_bytes = tierce__arena_calloc(e->result, all + 1, sizeof(*e->ended_bytes));
    bool has_room = e->bytes != NULL && e->ended_written != NULL && e->ended_bytes != NULL;
    int rc = has_room ? 0 : -ENOMEM;
    bool is_sized = rc == 0 && e->storage != NULL && group != NULL && all > 0;
    if (is_sized)
        rc = mark_written(e, request->uris, request->count, why);
    if (is_sized && rc == 0)
        rc = measure(e);
    if (is_sized && rc == 0)
        rc = reserve(e, group, &dropped, &limit);
    if (rc < 0) {
        tierce__live_unfinish(e->live, session);
        return rc;
    }
    TIERCE_DASSERT(dropped <= all);
    tierce__live_count_limited(e->live, limit, dropped);
    copy_end(e, out);
    rc = tierce__live_finish(e->live, session);
    if (rc < 0)
        *out = (struct tierce__entries_ended){0};
    if (rc == 0 && dropped > 0)
        rc = tierce__why(why, TIERCE_E_FULL,
                         "the quota by %s leaves no room for %zu of the session's %zu entries",
                         limit, dropped, all);
    return rc;
}

int tierce__locator_finish_entries(struct tierce__locator *locator,
                                   const struct tierce__ending_request *request,
                                   struct tierce__arena *arena, struct tierce__entries_ended *out,
                                   char why[TIERCE__WHY_BYTES])
{
    struct locator_ending e = {.result = arena};
    *out = (struct tierce__entries_ended){0};
    why[0] = '\0';
    int rc = tierce__live_acquire(&e.live, locator, request->instance_id, why);
    if (rc < 0)
        return rc;
    if (!e.live->instance.is_kv) { /* its keys have other than one place */
        tierce__live_release(e.live);
        return tierce__why(why, TIERCE_E_ARGUMENT,
                           "instance %.100s holds blocks, no entries by name; its writes end with "
                           "FinishWriteCache",
                           request->instance_id);
    }
    e.catalog = tierce__registry_acquire(locator->opts.registry);
    rc = tierce__live_begin_finish(e.live, request->session, NULL, &e.session, why);
    if (rc == 0)
        rc = tierce__live_refuse_stale(e.live, e.session, why);
    if (rc == 0)
        rc = end_entries(&e, request, out, why);
    if (rc < 0 && why[0] == '\0')
        rc = tierce__why(why, rc, "the write cannot be finished: %s", tierce_strerror(rc));
    tierce__arena_clear(&e.arena);
    tierce__registry_release(locator->opts.registry, e.catalog);
    tierce__live_release(e.live);
    return rc;
}
