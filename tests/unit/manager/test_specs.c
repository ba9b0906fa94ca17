/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that have some of their instance's specs, and get others later. */
#include "check_main.h"
#include "manager_harness.h"

static const int64_t chain[] = {11, 22, 33, 44};
static const char *const only_a[] = {"A", "A", "A", "A"};
static const char *const both[] = {"AB", "AB", "AB", "AB"};

static struct tierce__started start_groups(struct harness *h, const int64_t *keys, size_t count,
                                           const char *const *groups)
{
    struct tierce__started started = {0};
    int rc = tierce__locator_start_write(h->locator,
                                         &(struct tierce__write_request){.instance_id = "i",
                                                                         .keys = keys,
                                                                         .count = count,
                                                                         .timeout_s = 30,
                                                                         .spec_groups = groups},
                                         &h->arena, &started, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    return started;
}

static void store_groups(struct harness *h, const int64_t *keys, size_t count,
                         const char *const *groups)
{
    struct tierce__started started = start_groups(h, keys, count, groups);
    harness_finish(h, &started);
}

static int ask(struct harness *h, int query, const char *spec, struct tierce__got *got)
{
    *got = (struct tierce__got){0};
    return tierce__locator_get(h->locator,
                               &(struct tierce__get_request){.instance_id = "i",
                                                             .query = query,
                                                             .keys = chain,
                                                             .count = 4,
                                                             .window = 2,
                                                             .spec_names = &spec,
                                                             .spec_name_count = 1},
                               &h->arena, got, h->why);
}

static struct tierce__got ask_for(struct harness *h, int query, const char *spec)
{
    struct tierce__got got;
    int rc = ask(h, query, spec, &got);
    ck_assert_msg(rc == 0, "%s", h->why);
    return got;
}

START_TEST(blocks_without_a_spec_do_not_count_for_it)
{
    static const char *const mixed[] = {"AB", "AB", "A", "AB"};
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    store_groups(&h, chain, 4, mixed);
    ck_assert_uint_eq(ask_for(&h, TIERCE__QUERY_PREFIX, "a").count, 4);
    ck_assert_uint_eq(ask_for(&h, TIERCE__QUERY_PREFIX, "b").count, 2);
    struct tierce__got got = ask_for(&h, TIERCE__QUERY_BATCH, "b");
    ck_assert_uint_eq(got.hits, 3);
    ck_assert_uint_eq(got.found[2].type, 0);
    ck_assert_str_eq(got.found[2].specs[0].uri, "");
    got = ask_for(&h, TIERCE__QUERY_WINDOW, "b"); /* two in a row: the first two */
    ck_assert_uint_eq(got.hits, 2);
    ck_assert_uint_ne(got.found[1].type, 0);
    ck_assert_uint_eq(got.found[3].type, 0);
    ck_assert_uint_eq(got.found[1].spec_count, 1);
    ck_assert_uint_eq(got.found[1].spec_count_all, 2);
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 4); /* without names any will do */
    harness_close(&h);
}
END_TEST

START_TEST(all_specs_that_are_named_must_be_there)
{
    static const char *const mixed[] = {"AB", "A", "AB", "AB"};
    const char *names[] = {"b", "a"};
    struct harness h;
    struct tierce__got got;
    harness_open(&h, &(struct harness_opts){0});
    store_groups(&h, chain, 4, mixed);
    ck_assert_int_eq(tierce__locator_get(h.locator,
                                         &(struct tierce__get_request){.instance_id = "i",
                                                                       .query = 2,
                                                                       .keys = chain,
                                                                       .count = 4,
                                                                       .spec_names = names,
                                                                       .spec_name_count = 2},
                                         &h.arena, &got, h.why),
                     0);
    ck_assert_uint_eq(got.count, 1);
    ck_assert_uint_eq(got.found[0].spec_count, 2);
    harness_close(&h);
}
END_TEST

START_TEST(a_spec_that_the_instance_has_not_is_named)
{
    struct harness h;
    struct tierce__got got;
    harness_open(&h, &(struct harness_opts){0});
    ck_assert_int_eq(ask(&h, TIERCE__QUERY_PREFIX, "linear", &got), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(h.why, "location_spec_names has linear"));
    harness_close(&h);
}
END_TEST

START_TEST(a_spec_is_added_to_a_block)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started first = start_groups(&h, chain, 3, only_a);
    harness_write_files(first.locations, first.count);
    harness_finish(&h, &first);
    struct tierce__started second = start_groups(&h, chain, 4, both);
    ck_assert_int_eq(second.mask.offset, 0);
    ck_assert_uint_eq(second.count, 4);
    ck_assert_uint_eq(second.locations[0].spec_count, 1); /* only what is missing */
    ck_assert_str_eq(second.locations[0].specs[0].name, "b");
    ck_assert_uint_eq(second.locations[3].spec_count, 2);
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 3 * PART_B_BYTES + BLOCK_BYTES);
    harness_write_files(second.locations, second.count);
    harness_finish(&h, &second);
    ck_assert_uint_eq(harness_usage(&h).keys, 4);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, 4 * BLOCK_BYTES);
    struct tierce__got got = harness_get(&h, TIERCE__QUERY_PREFIX, chain, 4, 0);
    ck_assert_uint_eq(got.count, 4);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(got.found[i].spec_count_all, 2);
        ck_assert_uint_eq(got.found[i].spec_count, 2);
        ck_assert_str_eq(got.found[i].specs[0].uri, first.locations[i].specs[0].uri);
        ck_assert_str_eq(got.found[i].specs[1].uri, second.locations[i].specs[0].uri);
    }
    ck_assert_uint_eq(ask_for(&h, TIERCE__QUERY_PREFIX, "b").count, 4);
    struct tierce__started third = start_groups(&h, chain, 4, only_a);
    ck_assert_int_eq(third.mask.offset, 4); /* nothing is missing */
    /* All of it goes when it is removed. */
    ck_assert_uint_eq(harness_count_files(&h), 8);
    struct tierce__mask none = {0};
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", chain, 4, &none, h.why), 0);
    (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
    ck_assert_uint_eq(harness_count_files(&h), 0);
    harness_close(&h);
}
END_TEST

START_TEST(a_look_shows_all_parts)
{
    struct harness h;
    struct tierce__looked *looked;
    size_t count;
    harness_open(&h, &(struct harness_opts){0});
    store_groups(&h, chain, 1, only_a);
    store_groups(&h, chain, 1, both);
    ck_assert_int_eq(tierce__locator_look(h.locator,
                                          &(struct tierce__look_request){
                                              .instance_id = "i", .keys = chain, .count = 1},
                                          &h.arena, &looked, &count, h.why),
                     0);
    ck_assert_uint_eq(looked[0].found.spec_count_all, 2);
    ck_assert_str_eq(looked[0].found.specs[1].name, "b");
    harness_close(&h);
}
END_TEST

/* A part may be added to a block of an index that takes no more blocks. */
START_TEST(an_addition_needs_no_key)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){.keys_max = 2});
    store_groups(&h, chain, 2, only_a);
    struct tierce__started started = start_groups(&h, chain, 3, both);
    ck_assert_uint_eq(started.count, 2); /* the third has no room */
    harness_finish(&h, &started);
    ck_assert_uint_eq(ask_for(&h, TIERCE__QUERY_PREFIX, "b").count, 2);
    harness_close(&h);
}
END_TEST

/* The later part comes from another storage; where that is unwell, only it is missing. */
START_TEST(parts_may_lie_in_several_storages)
{
    struct harness h;
    char s[] = "s", t[] = "t", mount[64];
    char *candidates[] = {s, t};
    harness_open(&h, &(struct harness_opts){0});
    snprintf(mount, sizeof(mount), "%s", h.folder);
    struct tierce__storage other = {.name = t,
                                    .type = TIERCE__STORAGE_3FS,
                                    .is_enabled = true,
                                    .mountpoint = mount,
                                    .key_count_per_file = 1};
    ck_assert_int_eq(tierce__registry_add_storage(h.registry, &other, h.why), 0);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    group.storage_candidates = candidates;
    group.storage_candidate_count = 2;
    group.prefer_strategy = 2; /* 3FS first */
    group.version++;
    ck_assert_int_eq(tierce__registry_update_group(h.registry, &group, group.version - 1, h.why),
                     0);
    tierce__registry_release(h.registry, catalog);
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "t", false, h.why), 0);
    store_groups(&h, chain, 4, only_a);
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "t", true, h.why), 0);
    store_groups(&h, chain, 4, both);
    struct tierce__got got = harness_get(&h, TIERCE__QUERY_PREFIX, chain, 4, 0);
    ck_assert_uint_eq(got.count, 4);
    ck_assert_ptr_nonnull(strstr(got.found[0].specs[0].uri, "file://s"));
    ck_assert_ptr_nonnull(strstr(got.found[0].specs[1].uri, "hf3fs://t"));
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "t", false, h.why), 0);
    ck_assert_uint_eq(ask_for(&h, TIERCE__QUERY_PREFIX, "b").count, 0);
    ck_assert_uint_eq(ask_for(&h, TIERCE__QUERY_PREFIX, "a").count, 4);
    struct tierce__started started = start_groups(&h, chain, 4, both);
    ck_assert_uint_eq(started.count, 4);
    ck_assert_str_eq(started.locations[0].specs[0].name, "b");
    ck_assert_uint_eq(started.locations[0].spec_count, 1);
    harness_close(&h);
}
END_TEST

/* Repeats a record's first location until the record is full. */
static enum tierce__meta_action fill_record(void *arg, size_t i, int64_t key, bool found,
                                            struct tierce__record *record,
                                            struct tierce__arena *arena)
{
    (void)arg, (void)i, (void)key;
    ck_assert(found);
    struct tierce__location *locations =
        tierce__arena_alloc(arena, UINT16_MAX * sizeof(*locations));
    for (unsigned l = 0; l < UINT16_MAX; l++) {
        char id[TIERCE__LOCATION_ID_BYTES + 1];
        snprintf(id, sizeof(id), "x%07u", l);
        locations[l] = record->locations[0];
        memcpy(locations[l].id, id, sizeof(locations[l].id));
    }
    record->locations = locations;
    record->location_count = UINT16_MAX;
    return TIERCE__META_PUT;
}

static void fill(struct harness *h, int64_t key)
{
    struct tierce__live *live;
    struct tierce__arena arena = {0};
    int status = -1;
    struct tierce__meta_change change = {.modify = fill_record};
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    ck_assert_int_eq(tierce__meta_index_modify(live->index, &key, 1, &change, &arena, &status), 0);
    ck_assert_int_eq(status, 0);
    tierce__arena_clear(&arena);
    tierce__live_release(live);
}

/* It becomes full before another part's write begins, or while the part is written. */
START_TEST(a_block_with_the_most_locations_takes_no_more)
{
    for (int during = 0; during < 2; during++) {
        struct harness h;
        struct tierce__started started;
        harness_open(&h, &(struct harness_opts){0});
        store_groups(&h, chain, 2, only_a);
        if (during == 0)
            fill(&h, chain[0]);
        started = start_groups(&h, chain, 2, both);
        ck_assert_uint_eq(started.count, during == 0 ? 1 : 2);
        if (during == 1)
            fill(&h, chain[0]);
        uint64_t serving = harness_usage(&h).serving_bytes;
        harness_finish(&h, &started);
        ck_assert_uint_eq(harness_prefix(&h, chain, 2), 2);
        ck_assert_uint_eq(harness_usage(&h).serving_bytes, serving + PART_B_BYTES);
        ck_assert_uint_eq(harness_usage(&h).writing_bytes, 0);
        ck_assert_uint_eq(harness_usage(&h).deleting_bytes, during == 0 ? 0 : PART_B_BYTES);
        harness_close(&h);
    }
}
END_TEST

CHECK_MAIN("specs", .tests = {blocks_without_a_spec_do_not_count_for_it,
                              all_specs_that_are_named_must_be_there,
                              a_spec_that_the_instance_has_not_is_named, a_spec_is_added_to_a_block,
                              a_look_shows_all_parts, an_addition_needs_no_key,
                              parts_may_lie_in_several_storages,
                              a_block_with_the_most_locations_takes_no_more})
