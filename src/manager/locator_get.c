/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locator_private.h"

#include <errno.h>
#include <string.h>

/* One get on its way. */
struct getting {
    struct tierce__live *live;
    const struct tierce__catalog *catalog;
    struct tierce__chooser chooser;
    const struct tierce__get_request *request;
    struct tierce__arena *arena;
    /* The keys that count, and where they stand in the request. */
    const int64_t *keys;
    const char *const *texts;
    size_t count;
    struct tierce__place_uris uris; /* of the storage that was shown last */
};

/* ---- what a client sees ---------------------------------------------------------------------- */

static bool is_asked_for(const struct tierce__get_request *request, const char *name)
{
    for (size_t i = 0; i < request->spec_name_count; i++) {
        if (strcmp(request->spec_names[i], name) == 0)
            return true;
    }
    return request->spec_name_count == 0;
}

/* Blocks that follow each other lie in one storage, mostly. */
static int turn_to(struct getting *g, const struct tierce__storage *storage)
{
    if (g->uris.storage == storage)
        return 0;
    return tierce__place_uris_begin(&g->uris, storage, &g->live->instance, g->arena);
}

static int show_location(struct getting *g, const struct tierce__location *location,
                         struct tierce__found *out)
{
    const struct tierce__instance *instance = &g->live->instance;
    const struct tierce__storage *storage = tierce__location_storage(g->catalog, location);
    struct tierce__found_spec *specs =
        tierce__arena_alloc(g->arena, (location->place_count + 1) * sizeof(*specs));
    if (specs == NULL || storage == NULL)
        return specs == NULL ? -ENOMEM : TIERCE_E_DOWN;
    int rc = turn_to(g, storage);
    if (rc < 0)
        return rc;
    *out = (struct tierce__found){
        .type = location->type, .spec_count_all = location->place_count, .specs = specs};
    for (size_t i = 0; i < location->place_count; i++) {
        const struct tierce__spec_place *place = &location->places[i];
        if (place->spec >= instance->spec_count ||
            !is_asked_for(g->request, instance->specs[place->spec].name))
            continue;
        const char *uri = tierce__place_uris_make(&g->uris, place);
        if (uri == NULL)
            return -ENOMEM;
        specs[out->spec_count++] =
            (struct tierce__found_spec){.name = instance->specs[place->spec].name, .uri = uri};
    }
    return 0;
}

/* What stands for a key that has no location: every spec, without a place. */
static int show_nothing(struct getting *g, struct tierce__found *out)
{
    const struct tierce__instance *instance = &g->live->instance;
    struct tierce__found_spec *specs =
        tierce__arena_alloc(g->arena, (instance->spec_count + 1) * sizeof(*specs));
    if (specs == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < instance->spec_count; i++)
        specs[i] = (struct tierce__found_spec){.name = instance->specs[i].name, .uri = ""};
    *out = (struct tierce__found){.spec_count_all = (uint32_t)instance->spec_count,
                                  .specs = specs,
                                  .spec_count = instance->spec_count};
    return 0;
}

/* 1: shown; 0: nothing there that serves. */
static int show(struct getting *g, const struct tierce__record *record, struct tierce__found *out)
{
    const struct tierce__location *location = tierce__choose_location(&g->chooser, record);
    if (location == NULL)
        return 0;
    int rc = show_location(g, location, out);
    return rc == TIERCE_E_DOWN ? 0 : rc < 0 ? rc : 1;
}

/* ---- matching -------------------------------------------------------------------------------- */

/* Whether the record is of this very key: a string key has only 64 bits of it in the index. */
static bool is_same_key(const struct getting *g, size_t i, const struct tierce__record *record)
{
    if (g->texts == NULL)
        return record->key_text == NULL;
    return record->key_text != NULL && strlen(g->texts[i]) == record->key_text_bytes &&
           memcmp(g->texts[i], record->key_text, record->key_text_bytes) == 0;
}

static bool serves(void *arg, const struct tierce__record *record)
{
    struct getting *g = arg;
    return tierce__record_serves(&g->chooser, record);
}

/* The leading keys that serve, and nothing else. */
static int match_prefix(struct getting *g, struct tierce__got *out)
{
    struct tierce__record *records = tierce__arena_calloc(g->arena, g->count, sizeof(*records));
    out->found = tierce__arena_calloc(g->arena, g->count, sizeof(*out->found));
    if (records == NULL || out->found == NULL)
        return -ENOMEM;
    int64_t length =
        tierce__meta_index_prefix(g->live->index, g->keys, g->count, serves, g, g->arena, records);
    for (size_t i = 0; (int64_t)i < length; i++) {
        int shown = is_same_key(g, i, &records[i]) ? show(g, &records[i], &out->found[i]) : 0;
        if (shown < 0)
            return shown;
        if (shown == 0)
            break;
        out->count++;
    }
    out->hits = out->count;
    return length < 0 ? (int)length : 0;
}

/* Records of all keys; found[i] only where one serves. */
static int read_all(struct getting *g, struct tierce__record **records, bool **found)
{
    *records = tierce__arena_calloc(g->arena, g->count, sizeof(**records));
    *found = tierce__arena_calloc(g->arena, g->count, sizeof(**found));
    if (*records == NULL || *found == NULL)
        return -ENOMEM;
    int rc = tierce__meta_index_get(g->live->index, g->keys, g->count, g->arena, *records, *found);
    for (size_t i = 0; rc == 0 && i < g->count; i++) {
        (*found)[i] = (*found)[i] && is_same_key(g, i, &(*records)[i]) &&
                      tierce__record_serves(&g->chooser, &(*records)[i]);
    }
    return rc;
}

/* An entry for each key: those of [first, end) that are found are shown. */
static int show_range(struct getting *g, const struct tierce__record *records, const bool *found,
                      size_t first, size_t end, struct tierce__got *out)
{
    out->found = tierce__arena_calloc(g->arena, g->count, sizeof(*out->found));
    if (out->found == NULL)
        return -ENOMEM;
    out->count = g->count;
    for (size_t i = 0; i < g->count; i++) {
        bool wanted = i >= first && i < end && found[i];
        int rc = wanted ? show(g, &records[i], &out->found[i]) : 0;
        if (rc == 0)
            rc = show_nothing(g, &out->found[i]);
        else if (rc > 0)
            out->hits++;
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int match_batch(struct getting *g, struct tierce__got *out)
{
    struct tierce__record *records;
    bool *found;
    int rc = read_all(g, &records, &found);
    return rc < 0 ? rc : show_range(g, records, found, 0, g->count, out);
}

/*
 * The last run of `window` keys that all serve. A window that has a gap is given up for the one
 * that ends right before its first gap, as the original walks.
 */
static size_t find_window(const bool *found, size_t count, size_t window)
{
    size_t base = count - window;
    for (;;) {
        size_t served = 0;
        while (served < window && found[base + served])
            served++;
        if (served == window)
            return base;
        if (base < window - served)
            return SIZE_MAX;
        base -= window - served;
    }
}

static int match_window(struct getting *g, struct tierce__got *out)
{
    struct tierce__record *records;
    bool *found;
    size_t window = (size_t)g->request->window;
    int rc = read_all(g, &records, &found);
    if (rc < 0)
        return rc;
    size_t base = find_window(found, g->count, window);
    return base == SIZE_MAX ? show_range(g, records, found, 0, 0, out)
                            : show_range(g, records, found, base, base + window, out);
}

/* ---- the story ------------------------------------------------------------------------------- */

int tierce__live_check_parts(const struct tierce__live *live, size_t keys,
                             char why[TIERCE__WHY_BYTES])
{
    enum { PARTS_MAX = 1 << 22 };
    size_t specs = live->instance.spec_count;
    if (specs == 0 || keys <= PARTS_MAX / specs)
        return 0;
    return tierce__why(why, TIERCE_E_ARGUMENT,
                       "%zu keys of %zu parts each in one call; all together may be %d parts", keys,
                       specs, PARTS_MAX);
}

static int check_request(const struct tierce__get_request *request, char why[TIERCE__WHY_BYTES])
{
    if (request->query != TIERCE__QUERY_BATCH && request->query != TIERCE__QUERY_PREFIX &&
        request->query != TIERCE__QUERY_WINDOW)
        return tierce__why(why, TIERCE_E_UNSUPPORTED, "%d is no query type", request->query);
    if (request->query == TIERCE__QUERY_WINDOW &&
        (request->window <= 0 || (size_t)request->window > request->count))
        return tierce__why(why, TIERCE_E_ARGUMENT,
                           "sw_size is %d; it is to be from 1 to the number of keys, %zu",
                           request->window, request->count);
    return 0;
}

/* A prefix is asked for beyond what the engine holds itself. */
static int choose_keys(struct getting *g)
{
    const struct tierce__get_request *request = g->request;
    g->keys = request->keys;
    g->texts = request->key_texts;
    g->count = request->count;
    if (request->query != TIERCE__QUERY_PREFIX)
        return 0;
    int64_t *keys = tierce__arena_alloc(g->arena, request->count * sizeof(*keys));
    const char **texts = tierce__arena_alloc(g->arena, request->count * sizeof(*texts));
    if (keys == NULL || texts == NULL)
        return -ENOMEM;
    g->count = 0;
    for (size_t i = 0; i < request->count; i++) {
        if (tierce__mask_has(&request->mask, i))
            continue;
        keys[g->count] = request->keys[i];
        texts[g->count++] = request->key_texts != NULL ? request->key_texts[i] : NULL;
    }
    g->keys = keys;
    g->texts = request->key_texts != NULL ? texts : NULL;
    return 0;
}

static void count_keys(struct getting *g, const struct tierce__got *got)
{
    size_t asked =
        g->request->query == TIERCE__QUERY_WINDOW ? (size_t)g->request->window : g->count;
    atomic_fetch_add_explicit(&g->live->asked_keys, asked, memory_order_relaxed);
    atomic_fetch_add_explicit(&g->live->found_keys, got->hits, memory_order_relaxed);
}

/* What was given out is used: the prefix newest, so that it leaves last. */
static void refresh(struct getting *g, const struct tierce__got *got)
{
    int64_t *used = tierce__arena_alloc(g->arena, (got->count + 1) * sizeof(*used));
    size_t count = 0;
    for (size_t i = 0; used != NULL && i < got->count; i++) {
        if (got->found[i].type != 0)
            used[count++] = g->keys[i];
    }
    if (count > 0)
        tierce__meta_index_touch(g->live->index, used, count,
                                 tierce__locator_now_us(g->live->locator));
}

int tierce__locator_get(struct tierce__locator *locator, const struct tierce__get_request *request,
                        struct tierce__arena *arena, struct tierce__got *out,
                        char why[TIERCE__WHY_BYTES])
{
    struct getting g = {.request = request, .arena = arena};
    struct tierce__got got = {0};
    int rc = tierce__live_acquire(&g.live, locator, request->instance_id, why);
    if (rc < 0)
        return rc;
    g.catalog = tierce__registry_acquire(locator->opts.registry);
    g.chooser = (struct tierce__chooser){.locator = locator, .catalog = g.catalog};
    rc = check_request(request, why);
    if (rc == 0)
        rc = tierce__live_check_parts(g.live, request->count, why);
    if (rc < 0)
        goto out;
    rc = choose_keys(&g);
    if (rc == 0 && g.count > 0) {
        rc = request->query == TIERCE__QUERY_PREFIX  ? match_prefix(&g, &got)
             : request->query == TIERCE__QUERY_BATCH ? match_batch(&g, &got)
                                                     : match_window(&g, &got);
    }
    if (rc < 0) {
        rc = tierce__why(why, rc, "the index cannot be read: %s", tierce_strerror(rc));
        goto out;
    }
    count_keys(&g, &got);
    refresh(&g, &got);
    *out = got;
out:
    tierce__registry_release(locator->opts.registry, g.catalog);
    tierce__live_release(g.live);
    return rc;
}
