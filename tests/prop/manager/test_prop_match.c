/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The match modes against a small model: chains with some blocks stored, some in several storages,
 * some with only a part of their specs at first, while storages become unavailable and return;
 * masks, windows of every size, names of specs, repeated keys.
 */
#include "check_main.h"
#include "manager_harness.h"
#include "test_random.h"

enum {
    KEYS = 12,
    STORAGES = 2,
    SPECS = 2,
    KEYS_MAX = 16,
    LOCATIONS_MAX = STORAGES * SPECS,
    URI_BYTES = 160
};

struct place {
    int storage;
    bool has[SPECS];
    char uris[SPECS][URI_BYTES];
};

/* ---- the model ------------------------------------------------------------------------------- */

static struct {
    size_t count;
    struct place places[LOCATIONS_MAX];
} blocks[KEYS];
static bool enabled[STORAGES];

/* Whether a storage that is enabled has that part of the block. */
static bool has_part(int64_t key, int spec)
{
    for (size_t l = 0; l < blocks[key].count; l++) {
        if (enabled[blocks[key].places[l].storage] && blocks[key].places[l].has[spec])
            return true;
    }
    return false;
}

static bool is_asked_for(const struct tierce__get_request *request, int spec);

static bool serves(const struct tierce__get_request *request, int64_t key)
{
    bool any = false;
    for (int spec = 0; spec < SPECS && key < KEYS; spec++) {
        any |= has_part(key, spec);
        if (request->spec_name_count > 0 && is_asked_for(request, spec) && !has_part(key, spec))
            return false;
    }
    return any;
}

static size_t model_prefix(const struct tierce__get_request *request, const int64_t *keys,
                           size_t count)
{
    size_t n = 0;
    while (n < count && serves(request, keys[n]))
        n++;
    return n;
}

/* The last run of `window` keys that serve, by trying all; `count`: there is none. */
static size_t model_window(const struct tierce__get_request *request)
{
    size_t window = (size_t)request->window;
    for (size_t base = request->count - window + 1; base-- > 0;) {
        if (model_prefix(request, request->keys + base, window) == window)
            return base;
    }
    return request->count;
}

/* ---- the locator ----------------------------------------------------------------------------- */

static const char *const storage_names[STORAGES] = {"s", "t"}, *const spec_names[SPECS] = {"a",
                                                                                           "b"};
static struct harness h;
static struct test_random random_;
static uint64_t hits, second_locations, later_parts, windows;

static uint32_t below(uint32_t bound)
{
    return test_random_below(&random_, bound);
}

static void add_storage(void)
{
    char t[] = "t", s[] = "s", root[80];
    char *candidates[] = {s, t};
    snprintf(root, sizeof(root), "%s/t/", h.folder);
    ck_assert_int_eq(mkdir(root, 0700), 0);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__storage storage = *tierce__catalog_storage(catalog, "s");
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    storage.name = t;
    storage.root_path = root;
    ck_assert_int_eq(tierce__registry_add_storage(h.registry, &storage, h.why), 0);
    group.storage_candidates = candidates;
    group.storage_candidate_count = 2;
    group.version++;
    ck_assert_int_eq(tierce__registry_update_group(h.registry, &group, group.version - 1, h.why),
                     0);
    tierce__registry_release(h.registry, catalog);
}

static void enable(int storage, bool is_enabled)
{
    ck_assert_int_eq(
        tierce__registry_enable_storage(h.registry, storage_names[storage], is_enabled, h.why), 0);
    enabled[storage] = is_enabled;
}

static size_t draw_keys(int64_t keys[KEYS_MAX])
{
    size_t count = 1 + below(KEYS_MAX), first = below(KEYS);
    bool mixes = below(4) == 0;
    for (size_t i = 0; i < count; i++)
        keys[i] = mixes ? (int64_t)below(KEYS + 2) : (int64_t)((first + i) % KEYS);
    return count;
}

/* As the client was told to write it. */
static void note_place(int64_t key, const struct tierce__found *found)
{
    ck_assert_uint_lt(blocks[key].count, LOCATIONS_MAX);
    struct place *place = &blocks[key].places[blocks[key].count++];
    *place = (struct place){0};
    for (size_t i = 0; i < found->spec_count; i++) {
        int spec = strcmp(found->specs[i].name, "b") == 0;
        place->has[spec] = true;
        snprintf(place->uris[spec], URI_BYTES, "%s", found->specs[i].uri);
        place->storage = strncmp(found->specs[i].uri, "file://t/", 9) == 0;
    }
    ck_assert(enabled[place->storage]);
    second_locations += blocks[key].count > 1;
    later_parts += blocks[key].count > 1 && place->has[0] != place->has[1];
}

static void write_some(void)
{
    static const char *const groups[] = {"A", "AB"};
    int64_t keys[KEYS_MAX];
    const char *names[KEYS_MAX];
    struct tierce__started started;
    size_t count = draw_keys(keys), n = 0;
    if (!enabled[0] && !enabled[1])
        return;
    for (size_t i = 0; i < count; i++) {
        keys[i] %= KEYS;
        names[i] = groups[below(2)];
    }
    bool has_groups = below(2) == 0;
    ck_assert_int_eq(tierce__locator_start_write(h.locator,
                                                 &(struct tierce__write_request){
                                                     .instance_id = "i",
                                                     .keys = keys,
                                                     .count = count,
                                                     .spec_groups = has_groups ? names : NULL,
                                                     .timeout_s = 30,
                                                 },
                                                 &h.arena, &started, h.why),
                     0);
    for (size_t i = 0; i < count; i++) {
        bool wants_b = !has_groups || names[i] == groups[1];
        bool lacks[SPECS] = {!has_part(keys[i], 0), wants_b && !has_part(keys[i], 1)};
        bool is_taken = !lacks[0] && !lacks[1];
        for (size_t j = 0; j < i; j++)
            is_taken |= keys[j] == keys[i]; /* twice counts once, whatever the group */
        ck_assert_int_eq(tierce__mask_has(&started.mask, i), is_taken);
        if (is_taken)
            continue;
        note_place(keys[i], &started.locations[n++]);
        const struct place *place = &blocks[keys[i]].places[blocks[keys[i]].count - 1];
        ck_assert(place->has[0] == lacks[0] && place->has[1] == lacks[1]);
    }
    harness_finish(&h, &started);
}

static void remove_some(void)
{
    int64_t keys[KEYS_MAX];
    struct tierce__mask mask = {.offset = below(3)};
    size_t count = draw_keys(keys);
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", keys, count, &mask, h.why), 0);
    for (size_t i = 0; i < count; i++) {
        if (!tierce__mask_has(&mask, i) && keys[i] < KEYS)
            blocks[keys[i]].count = 0;
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

static bool is_asked_for(const struct tierce__get_request *request, int spec)
{
    for (size_t i = 0; i < request->spec_name_count; i++) {
        if (strcmp(request->spec_names[i], spec_names[spec]) == 0)
            return true;
    }
    return request->spec_name_count == 0;
}

/* Whether the location that is shown has all parts, which then all are its own. */
static bool is_place(const struct tierce__get_request *request, const struct place *place,
                     const struct tierce__found *found)
{
    size_t n = 0;
    if (!enabled[place->storage])
        return false;
    for (int spec = 0; spec < SPECS; spec++) {
        if (!is_asked_for(request, spec))
            continue;
        if (!place->has[spec] || n == found->spec_count ||
            strcmp(found->specs[n].uri, place->uris[spec]) != 0)
            return false;
        n++;
    }
    return true;
}

static bool has_all(const struct tierce__get_request *request, const struct place *place)
{
    for (int spec = 0; spec < SPECS; spec++) {
        if (is_asked_for(request, spec) && !place->has[spec])
            return false;
    }
    return enabled[place->storage];
}

/* Whether some location that is available has this part there. */
static bool is_part(int64_t key, int spec, const char *uri)
{
    for (size_t l = 0; l < blocks[key].count; l++) {
        const struct place *place = &blocks[key].places[l];
        if (enabled[place->storage] && place->has[spec] && strcmp(uri, place->uris[spec]) == 0)
            return true;
    }
    return false;
}

/* Every part that is asked for and there is shown, from one location where one has all. */
static void check_parts(const struct tierce__get_request *request, int64_t key,
                        const struct tierce__found *found)
{
    size_t n = 0, all = 0;
    bool one_has_all = false, is_one = false;
    for (int spec = 0; spec < SPECS; spec++) {
        all += has_part(key, spec);
        if (!is_asked_for(request, spec) || !has_part(key, spec))
            continue;
        ck_assert_uint_lt(n, found->spec_count);
        ck_assert_str_eq(found->specs[n].name, spec_names[spec]);
        ck_assert_msg(is_part(key, spec, found->specs[n++].uri),
                      "block %lld is not where it was written", (long long)key);
    }
    ck_assert_uint_eq(n, found->spec_count);
    ck_assert_uint_eq(all, found->spec_count_all);
    for (size_t l = 0; l < blocks[key].count; l++) {
        one_has_all |= has_all(request, &blocks[key].places[l]);
        is_one |= is_place(request, &blocks[key].places[l], found);
    }
    ck_assert_int_eq(one_has_all, is_one);
}

static void check_entry(const struct tierce__get_request *request, int64_t key,
                        const struct tierce__found *found, bool is_hit)
{
    ck_assert_int_eq(found->type != 0, is_hit);
    if (!is_hit) {
        ck_assert_uint_eq(found->spec_count, SPECS);
        for (size_t i = 0; i < SPECS; i++)
            ck_assert_str_eq(found->specs[i].uri, "");
        return;
    }
    check_parts(request, key, found);
    hits++;
}

static void check_got(const struct tierce__get_request *request, const struct tierce__got *got)
{
    int64_t asked[KEYS_MAX];
    size_t count = 0, first = 0, end = request->count;
    if (request->query == TIERCE__QUERY_PREFIX) {
        for (size_t i = 0; i < request->count; i++) {
            if (!tierce__mask_has(&request->mask, i))
                asked[count++] = request->keys[i];
        }
        ck_assert_uint_eq(got->count, model_prefix(request, asked, count));
        for (size_t i = 0; i < got->count; i++)
            check_entry(request, asked[i], &got->found[i], true);
        return;
    }
    if (request->query == TIERCE__QUERY_WINDOW) {
        size_t window = (size_t)request->window;
        first = model_window(request);
        end = first < request->count ? first + window : first;
        windows += first < request->count;
    }
    ck_assert_uint_eq(got->count, request->count);
    for (size_t i = 0; i < got->count; i++)
        check_entry(request, request->keys[i], &got->found[i],
                    i >= first && i < end && serves(request, request->keys[i]));
}

static void get(void)
{
    static const char *const names[] = {"b", "a", "none"};
    int64_t keys[KEYS_MAX];
    uint8_t values[KEYS_MAX + 4];
    struct tierce__got got;
    size_t count = draw_keys(keys);
    for (size_t i = 0; i < sizeof(values); i++)
        values[i] = below(3) == 0;
    size_t name_count = below(3) == 0 ? 1 + below(3) : 0;
    struct tierce__get_request request = {
        .instance_id = "i",
        .query = 1 + (int)below(3),
        .keys = keys,
        .count = count,
        .window = (int32_t)below(KEYS_MAX + 4) - 2,
        .spec_names = names + (name_count > 0 ? below(4 - (uint32_t)name_count) : 0),
        .spec_name_count = name_count,
    };
    if (below(2) == 0)
        request.mask = (struct tierce__mask){
            .is_values = true, .values = values, .count = below((uint32_t)count + 4)};
    else
        request.mask = (struct tierce__mask){.offset = (int64_t)below((uint32_t)count + 4) - 2};
    bool is_refused = request.query == TIERCE__QUERY_WINDOW &&
                      (request.window <= 0 || (size_t)request.window > count);
    for (size_t i = 0; i < name_count; i++)
        is_refused |= strcmp(request.spec_names[i], "none") == 0;
    int rc = tierce__locator_get(h.locator, &request, &h.arena, &got, h.why);
    ck_assert_int_eq(rc, is_refused ? TIERCE_E_ARGUMENT : 0);
    if (rc == 0)
        check_got(&request, &got);
}

START_TEST(answers_are_those_of_the_model)
{
    random_ = test_random_start("match");
    harness_open(&h, &(struct harness_opts){.keys_per_file = 1 + (int)below(4)});
    add_storage();
    enable(0, true);
    enable(1, true);
    for (unsigned i = 0; i < 20000 * test_scale(); i++) {
        uint32_t what = below(20);
        if (what == 0)
            remove_some();
        else if (what == 1)
            enable((int)below(STORAGES), below(3) > 0);
        else if (what < 4)
            write_some();
        else
            get();
        if (below(50) == 0)
            (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
        tierce__arena_clear(&h.arena);
    }
    harness_close(&h);
    ck_assert(hits > 0 && second_locations > 0 && later_parts > 0 && windows > 0);
}
END_TEST

CHECK_MAIN("match", .seconds = 60 * (double)test_scale(), .tests = {answers_are_those_of_the_model})
