/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locate/locator_private.h"
#include "base/assert.h"
#include "manager/api/spans.h"

#include <errno.h>
#include <string.h>

/* The state of one get. */
struct getting {
    struct tierce__live *live;
    const struct tierce__catalog *catalog;
    struct tierce__chooser chooser;
    const struct tierce__get_request *request;
    struct tierce__arena *arena;
    /* The keys to look up, and their positions in the request. */
    const int64_t *keys;
    const char *const *texts;
    size_t count;
    struct tierce__hint_tally hints;
    struct tierce__part *parts;     /* of the current block, one for each spec */
    struct tierce__place_uris uris; /* of the last storage */
    struct tierce__placement placement;
    struct tierce__placement_pick picks[TIERCE__PLACEMENT_PICKS];
};

/* ---- what a client sees ---------------------------------------------------------------------- */

/* Blocks that follow each other lie in one storage, mostly. */
static int turn_to(struct getting *g, const struct tierce__storage *storage)
{
    if (g->uris.storage == storage)
        return 0;
    TIERCE_DASSERT(storage->number > 0);
    return tierce__place_uris_begin(&g->uris, storage, &g->live->instance, g->arena);
}

static bool is_asked_for(const struct getting *g, size_t spec)
{
    TIERCE_DASSERT(spec < g->chooser.spec_count);
    return g->chooser.specs == NULL || g->chooser.specs[spec];
}

/* Adds the part's name and URI. */
static int show_part(struct getting *g, const struct tierce__part *part, struct tierce__found *out,
                     struct tierce__found_spec *specs)
{
    TIERCE_DASSERT(out->spec_count_all <= g->live->instance.spec_count);
    const struct tierce__storage *storage = tierce__location_storage(g->catalog, part->location);
    int rc = storage != NULL ? turn_to(g, storage) : TIERCE_E_DOWN;
    if (rc < 0)
        return rc;
    const char *uri = tierce__place_uris_make(&g->uris, part->place);
    if (uri == NULL)
        return -ENOMEM;
    TIERCE_DASSERT(part->place->spec < g->live->instance.spec_count);
    TIERCE_DASSERT(out->spec_count < out->spec_count_all);
    _Atomic uint64_t *located =
        tierce__storage_table_make(&g->live->locator->located, storage->number);
    if (located == NULL)
        return -ENOMEM;
    atomic_fetch_add_explicit(located, 1, memory_order_relaxed);
    specs[out->spec_count++] = (struct tierce__found_spec){
        .name = g->live->instance.specs[part->place->spec].name, .uri = uri};
    return 0;
}

/* The entry of a key without a location: every spec, without a place. */
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

/* Returns 1 if a location was found; 0 if no location serves. */
static int show(struct getting *g, size_t i, const struct tierce__record *record,
                struct tierce__found *out)
{
    size_t count, spec_count = g->live->instance.spec_count;
    const struct tierce__location *first =
        tierce__choose_parts(&g->chooser, record, g->parts, &count);
    struct tierce__found_spec *specs = tierce__arena_alloc(g->arena, (count + 1) * sizeof(*specs));
    if (first == NULL || specs == NULL)
        return first == NULL ? 0 : -ENOMEM;
    *out = (struct tierce__found){
        .type = first->type, .spec_count_all = (uint32_t)count, .specs = specs};
    int rc = 0;
    for (size_t spec = 0; spec < spec_count && rc == 0; spec++) {
        if (g->parts[spec].place != NULL && is_asked_for(g, spec))
            rc = show_part(g, &g->parts[spec], out, specs);
    }
    if (rc == 0) {
        tierce__placement_read(&g->placement, g->keys[i], record, first);
        tierce__hint_tally_add(&g->hints, record, g->chooser.now_us);
    }
    TIERCE_DASSERT(out->spec_count <= count && count <= spec_count);
    return rc == TIERCE_E_DOWN ? 0 : rc < 0 ? rc : 1;
}

/* ---- matching -------------------------------------------------------------------------------- */

/* Returns whether the record belongs to this key: the index has only 64 bits of a string key. */
static bool is_same_key(const struct getting *g, size_t i, const struct tierce__record *record)
{
    TIERCE_DASSERT(i < g->count);
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

/* Returns the leading keys that serve, and no others. */
static int match_prefix(struct getting *g, struct tierce__got *out)
{
    TIERCE_DASSERT(g->request->query == TIERCE__QUERY_PREFIX && g->count > 0);
    struct tierce__record *records = tierce__arena_calloc(g->arena, g->count, sizeof(*records));
    out->found = tierce__arena_calloc(g->arena, g->count, sizeof(*out->found));
    if (records == NULL || out->found == NULL)
        return -ENOMEM;
    int64_t length =
        tierce__meta_index_prefix(g->live->index, g->keys, g->count, serves, g, g->arena, records);
    TIERCE_DASSERT(length <= (int64_t)g->count);
    for (size_t i = 0; (int64_t)i < length; i++) {
        TIERCE_DASSERT(out->count == i);
        int shown = is_same_key(g, i, &records[i]) ? show(g, i, &records[i], &out->found[i]) : 0;
        if (shown < 0)
            return shown;
        if (shown == 0)
            break;
        out->count++;
    }
    TIERCE_DASSERT(length < 0 || out->count <= (uint64_t)length);
    out->hits = out->count;
    if (out->count > 0)
        tierce__live_count_stop(g->live, &records[out->count - 1], out->count, g->count);
    return length < 0 ? (int)length : 0;
}

/* Reads the records of all keys; found[i] is set only if the record serves. */
static int read_all(struct getting *g, struct tierce__record **records, bool **found)
{
    TIERCE_DASSERT(g->count > 0);
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

/* Makes an entry for each key; found keys of [first, end) get their location. */
static int show_range(struct getting *g, const struct tierce__record *records, const bool *found,
                      size_t first, size_t end, struct tierce__got *out)
{
    TIERCE_DASSERT(first <= end && end <= g->count);
    out->found = tierce__arena_calloc(g->arena, g->count, sizeof(*out->found));
    if (out->found == NULL)
        return -ENOMEM;
    out->count = g->count;
    for (size_t i = 0; i < g->count; i++) {
        bool wanted = i >= first && i < end && found[i];
        int rc = wanted ? show(g, i, &records[i], &out->found[i]) : 0;
        if (rc == 0)
            rc = show_nothing(g, &out->found[i]);
        else if (rc > 0)
            out->hits++;
        if (rc < 0)
            return rc;
    }
    TIERCE_DASSERT(out->hits <= end - first);
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
 * Finds the last run of `window` keys that all serve. As in KVCM, if a window has a gap, the search
 * continues with the window that ends just before its first gap.
 */
static size_t find_window(const bool *found, size_t count, size_t window)
{
    TIERCE_DASSERT(window > 0 && window <= count);
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
    TIERCE_DASSERT(g->request->window > 0 && (size_t)g->request->window <= g->count);
    struct tierce__record *records;
    bool *found;
    size_t window = (size_t)g->request->window;
    int rc = read_all(g, &records, &found);
    if (rc < 0)
        return rc;
    size_t base = find_window(found, g->count, window);
    TIERCE_DASSERT(base == SIZE_MAX || base + window <= g->count);
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
                       "%zu keys of %zu parts each exceed the limit of %d parts in one call", keys,
                       specs, PARTS_MAX);
}

static int check_request(const struct tierce__get_request *request, char why[TIERCE__WHY_BYTES])
{
    if (request->query != TIERCE__QUERY_BATCH && request->query != TIERCE__QUERY_PREFIX &&
        request->query != TIERCE__QUERY_WINDOW)
        return tierce__why(why, TIERCE_E_UNSUPPORTED,
                           "query_type is %d; accepted are 1 (QT_BATCH_GET), 2 (QT_PREFIX_MATCH) "
                           "and 3 (QT_REVERSE_ROLL_SW_MATCH)",
                           request->query);
    if (request->query == TIERCE__QUERY_WINDOW &&
        (request->window <= 0 || (size_t)request->window > request->count))
        return tierce__why(why, TIERCE_E_ARGUMENT,
                           "sw_size is %d; accepted are 1 to the number of keys, %zu",
                           request->window, request->count);
    return 0;
}

static const struct tierce__spec_info *find_spec(const struct tierce__instance *instance,
                                                 const char *name)
{
    for (size_t i = 0; i < instance->spec_count; i++) {
        if (strcmp(instance->specs[i].name, name) == 0)
            return &instance->specs[i];
    }
    return NULL;
}

/* The specs that a block must have. A name that the instance does not have is rejected, because it
 * would always miss. */
static int choose_specs(struct getting *g, char why[TIERCE__WHY_BYTES])
{
    TIERCE_DASSERT(g->chooser.spec_count == g->live->instance.spec_count);
    const struct tierce__get_request *request = g->request;
    const struct tierce__instance *instance = &g->live->instance;
    g->parts = tierce__arena_alloc(g->arena, instance->spec_count * sizeof(*g->parts));
    bool *specs = tierce__arena_calloc(g->arena, instance->spec_count, sizeof(*specs));
    if (g->parts == NULL || specs == NULL)
        return tierce__why(why, -ENOMEM, "no memory");
    for (size_t i = 0; i < request->spec_name_count; i++) {
        const struct tierce__spec_info *spec = find_spec(instance, request->spec_names[i]);
        if (spec == NULL)
            return tierce__why(why, TIERCE_E_ARGUMENT,
                               "location_spec_names has %.64s; instance %.64s was registered with "
                               "%zu specs, of which the first is %.64s",
                               request->spec_names[i], instance->id, instance->spec_count,
                               instance->spec_count > 0 ? instance->specs[0].name : "");
        TIERCE_DASSERT((size_t)(spec - instance->specs) < instance->spec_count);
        specs[spec - instance->specs] = true;
    }
    g->chooser.specs = request->spec_name_count > 0 ? specs : NULL;
    return 0;
}

/* A prefix query begins after the blocks that the engine has already. */
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
    TIERCE_DASSERT(g->count <= request->count);
    g->keys = keys;
    g->texts = request->key_texts != NULL ? texts : NULL;
    return 0;
}

static void count_keys(struct getting *g, const struct tierce__got *got)
{
    TIERCE_DASSERT(got->hits <= got->count && got->count <= g->count);
    size_t asked =
        g->request->query == TIERCE__QUERY_WINDOW ? (size_t)g->request->window : g->count;
    atomic_fetch_add_explicit(&g->live->asked_keys, asked, memory_order_relaxed);
    atomic_fetch_add_explicit(&g->live->found_keys, got->hits, memory_order_relaxed);
    tierce__live_count_hints(g->live, &g->hints, g->request->hint);
    struct tierce__ghosts *ghost = g->live->locator->opts.ghost;
    tierce__ghosts_get(ghost, g->live->tap, g->keys + (g->count - asked), asked,
                       g->request->query == TIERCE__QUERY_PREFIX, got->hits);
    if (g->count < g->request->count)
        tierce__ghosts_use(ghost, g->live->tap, g->request->keys, g->request->count);
}

/* A hit also counts as a use of the masked prefix, so that with a time to live a prefix does not
 * expire before the blocks that follow it. */
static size_t list_prefix(const struct getting *g, const struct tierce__got *got, int64_t *used)
{
    size_t count = 0, hits = 0;
    for (size_t i = 0; i < g->request->count && hits < got->count; i++) {
        used[count++] = g->request->keys[i];
        hits += !tierce__mask_has(&g->request->mask, i);
    }
    TIERCE_DASSERT(hits <= got->count && count <= g->request->count);
    return count;
}

/* Returned blocks count as used; the prefix is the newest, so that it is evicted last. */
static void refresh(struct getting *g, const struct tierce__got *got)
{
    int64_t *used = tierce__arena_alloc(g->arena, (g->request->count + 1) * sizeof(*used));
    size_t count = 0;
    bool is_prefix = g->request->query == TIERCE__QUERY_PREFIX && g->chooser.ttl_us > 0;
    if (used != NULL && is_prefix)
        count = list_prefix(g, got, used);
    for (size_t i = 0; used != NULL && !is_prefix && i < got->count; i++) {
        if (got->found[i].type != 0)
            used[count++] = g->keys[i];
    }
    TIERCE_DASSERT(count <= g->request->count);
    if (count > 0)
        tierce__meta_index_touch(
            g->live->index, used, count,
            &(struct tierce__record_use){tierce__locator_now_us(g->live->locator), 1,
                                         g->request->hint});
}

int tierce__locator_get(struct tierce__locator *locator, const struct tierce__get_request *request,
                        struct tierce__arena *arena, struct tierce__got *out,
                        char why[TIERCE__WHY_BYTES])
{
    struct getting g;
    memset(&g, 0, offsetof(struct getting, placement)); /* which begin initializes */
    g.request = request;
    g.arena = arena;
    struct tierce__got got = {0};
    int rc = tierce__live_acquire(&g.live, locator, request->instance_id, why);
    if (rc < 0)
        return rc;
    int span = tierce__span_open("locator:get");
    g.catalog = tierce__registry_acquire(locator->opts.registry);
    tierce__chooser_begin(&g.chooser, g.live, g.catalog);
    tierce__placement_begin(&g.placement, g.live, g.catalog, g.chooser.now_us, g.picks,
                            TIERCE__PLACEMENT_PICKS);
    rc = check_request(request, why);
    if (rc == 0)
        rc = tierce__live_check_parts(g.live, request->count, why);
    if (rc == 0)
        rc = choose_specs(&g, why);
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
    tierce__placement_end(&g.placement);
    got.block_size = g.live->instance.block_size;
    rc = tierce__attention_note(&got.layers, &g.live->instance, arena);
    if (rc < 0)
        goto out;
    *out = got;
out:
    tierce__span_close(span);
    tierce__registry_release(locator->opts.registry, g.catalog);
    tierce__live_release(g.live);
    return rc;
}
