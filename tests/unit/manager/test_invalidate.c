/* SPDX-License-Identifier: Apache-2.0 */
/* Invalidation: blocks of older generations are misses at once, and are removed. */
#include "base/alloc.h"
#include "check_main.h"
#include "manager_reclaim.h"

static const int64_t chain[] = {11, 22, 33, 44};

static void invalidate(struct harness *h, const char *id, const char *group, const char *family)
{
    size_t count;
    const struct tierce__namespace_choice choice = {
        .instance_id = id, .group = group, .family = family};
    int rc = tierce__registry_invalidate(h->registry, &choice, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    const struct tierce__instance *all = tierce__catalog_instances(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        if (tierce__namespace_has(&choice, &all[i]))
            ck_assert_int_eq(tierce__locator_invalidate(h->locator, &all[i], h->why), 0);
    }
    tierce__registry_release(h->registry, catalog);
}

static int finish(struct harness *h, const struct tierce__started *started)
{
    struct tierce__mask all = {.offset = (int64_t)started->count};
    return tierce__locator_finish_write(h->locator, "i", started->session, &all, h->why);
}

static int start_in(struct harness *h, uint64_t generation, struct tierce__started *started)
{
    return tierce__locator_start_write(h->locator,
                                       &(struct tierce__write_request){.instance_id = "i",
                                                                       .keys = chain,
                                                                       .count = 4,
                                                                       .timeout_s = 30,
                                                                       .generation = generation},
                                       &h->arena, started, h->why);
}

static size_t count_serving(struct harness *h)
{
    struct tierce__looked *looked;
    size_t count, serving = 0;
    ck_assert_int_eq(tierce__locator_look(h->locator,
                                          &(struct tierce__look_request){
                                              .instance_id = "i", .keys = chain, .count = 4},
                                          &h->arena, &looked, &count, h->why),
                     0);
    for (size_t i = 0; i < count; i++)
        serving += looked[i].state == TIERCE__LOOK_SERVING;
    return serving;
}

START_TEST(all_blocks_are_misses_at_once)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    harness_store(&h, chain, 4);
    ck_assert_uint_eq(tierce__locator_generation(h.locator, "i"), 1);
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 4);
    invalidate(&h, "i", "", "");
    ck_assert_uint_eq(tierce__locator_generation(h.locator, "i"), 2);
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 0);
    ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_BATCH, chain, 4, 0).hits, 0);
    ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_WINDOW, chain, 4, 2).hits, 0);
    ck_assert_uint_eq(count_serving(&h), 0);
    ck_assert_uint_eq(tierce__locator_generation(h.locator, "none"), 0);
    harness_close(&h);
}
END_TEST

START_TEST(blocks_of_the_new_generation_serve)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    harness_store(&h, chain, 4);
    invalidate(&h, "i", "g", "");
    struct tierce__started started = harness_start(&h, chain, 2);
    ck_assert_uint_eq(started.count, 2); /* the old ones do not mask them */
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 2);
    ck_assert_uint_eq(count_serving(&h), 2);
    ck_assert_uint_eq(harness_usage(&h).keys, 4); /* two are stale */
    harness_close(&h);
}
END_TEST

START_TEST(a_write_that_began_before_stores_nothing)
{
    struct harness h;
    struct tierce__started late;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 4);
    invalidate(&h, "i", "", "");
    ck_assert_int_eq(finish(&h, &started), -ESTALE);
    ck_assert_msg(strstr(h.why, "instance i were invalidated") != NULL, "%s", h.why);
    ck_assert_int_eq(finish(&h, &started), -ESRCH); /* it has ended */
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 0);
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 0);
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, 4 * BLOCK_BYTES);
    ck_assert_int_eq(start_in(&h, 1, &late), -ESTALE);
    ck_assert_msg(strstr(h.why, "generation is 1, and the instance's is 2") != NULL, "%s", h.why);
    ck_assert_int_eq(start_in(&h, 3, &late), -ESTALE);
    ck_assert_int_eq(start_in(&h, 2, &late), 0);
    ck_assert_int_eq(finish(&h, &late), 0);
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 4);
    harness_close(&h);
}
END_TEST

/* The store has the batch of a session already when the generation rises. */
START_TEST(a_finish_in_the_middle_serves_nothing)
{
    struct harness h;
    struct tierce__live *live;
    struct tierce__write_session *session;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, chain, 4);
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    ck_assert_int_eq(tierce__live_begin_finish(live, started.session, NULL, &session, h.why), 0);
    ck_assert_int_eq(tierce__live_refuse_stale(live, session, h.why), 0);
    invalidate(&h, "i", "", "");
    ck_assert_int_eq(tierce__live_finish(live, session), 0);
    tierce__live_release(live);
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 0);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, 0);
    harness_close(&h);
}
END_TEST

START_TEST(the_reclaimer_removes_them)
{
    struct harness h;
    struct tierce__reclaimer_stats stats;
    open_all(&h, &(struct harness_opts){0});
    int64_t keys[3000];
    for (int64_t i = 0; i < 3000; i++)
        keys[i] = 1000 + i;
    harness_store(&h, keys, 3000);
    harness_store(&h, chain, 4);
    invalidate(&h, "i", "", "");
    harness_store(&h, chain, 2);
    for (unsigned i = 0; i < 100 && harness_usage(&h).keys > 2; i++) {
        (void)tierce__reclaimer_step(reclaimer);
        h.now_us += 2000000;
    }
    ck_assert_uint_eq(harness_usage(&h).keys, 2);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, 2 * BLOCK_BYTES);
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 2);
    tierce__reclaimer_stats(reclaimer, &stats);
    ck_assert_uint_eq(stats.invalidated_blocks, 3000 + 2); /* a write removed the other two */
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    close_all(&h);
}
END_TEST

START_TEST(another_leader_goes_on)
{
    struct harness h;
    char index[] = "/tmp/tierce_invalidateXXXXXX";
    temp_folder_make(index);
    harness_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = index});
    harness_store(&h, chain, 2);
    struct tierce__started started = harness_start(&h, chain + 2, 2);
    invalidate(&h, "i", "", "");
    struct tierce__started fresh = harness_start(&h, chain, 1);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    ck_assert_uint_eq(tierce__locator_generation(h.locator, "i"), 2);
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 0);
    ck_assert_int_eq(finish(&h, &started), -ESTALE);
    ck_assert_int_eq(finish(&h, &fresh), 0); /* it began after the invalidation */
    ck_assert_uint_eq(harness_prefix(&h, chain, 4), 1);
    harness_close(&h);
    temp_folder_remove(index);
}
END_TEST

/* The registry has the generation, and the process ends before its locator follows. */
START_TEST(a_leader_that_dies_in_between_has_invalidated)
{
    struct harness h;
    char index[] = "/tmp/tierce_invalidateXXXXXX";
    temp_folder_make(index);
    harness_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = index});
    harness_store(&h, chain, 2);
    const struct tierce__namespace_choice choice = {.instance_id = "i", .group = "", .family = ""};
    ck_assert_int_eq(tierce__registry_invalidate(h.registry, &choice, h.why), 0);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    ck_assert_uint_eq(harness_prefix(&h, chain, 2), 0);
    harness_close(&h);
    temp_folder_remove(index);
}
END_TEST

START_TEST(a_family_and_a_group_are_chosen)
{
    struct harness h;
    char family[] = "tierce-m", full[] = "full", none[] = "";
    const struct tierce__namespace_choice nobody = {.instance_id = "i", .group = "x", .family = ""};
    harness_open(&h, &(struct harness_opts){0});
    harness_add_instance_with(
        &h, "j", "g", &(struct tierce__attention){.kind = full, .family = family, .layers = none});
    invalidate(&h, "", "g", "tierce-m");
    ck_assert_uint_eq(tierce__locator_generation(h.locator, "i"), 1);
    ck_assert_uint_eq(tierce__locator_generation(h.locator, "j"), 2);
    invalidate(&h, "", "g", "");
    ck_assert_uint_eq(tierce__locator_generation(h.locator, "i"), 2);
    ck_assert_uint_eq(tierce__locator_generation(h.locator, "j"), 3);
    ck_assert_int_eq(tierce__registry_invalidate(h.registry, &nobody, h.why), -ENOENT);
    ck_assert_str_eq(h.why, "there is no instance i in group x");
    harness_close(&h);
}
END_TEST

/* An older text of the registry does not make the blocks valid again. */
START_TEST(an_import_takes_nothing_back)
{
    struct harness h;
    char *text = NULL;
    harness_open(&h, &(struct harness_opts){0});
    harness_store(&h, chain, 4);
    ck_assert_int_eq(tierce__registry_snapshot(h.registry, &text), 0);
    invalidate(&h, "i", "", "");
    ck_assert_int_eq(tierce__registry_restore(h.registry, text, h.why), 0);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    ck_assert_uint_eq(tierce__locator_generation(h.locator, "i"), 2);
    tierce__free(text);
    harness_close(&h);
}
END_TEST

static unsigned format_of(const char *path)
{
    unsigned format = 0;
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "tierce-registry %u ", &format), 1);
    fclose(file);
    return format;
}

static struct tierce__registry *open_stored(struct harness *h, const char *uri)
{
    struct tierce__registry *registry = NULL;
    struct tierce__registry_opts opts = {.size = sizeof(opts), .uri = uri};
    ck_assert_int_eq(tierce__registry_open(&registry, &opts, h->why), 0);
    ck_assert_int_eq(tierce__registry_load(registry, 7, h->why), 0);
    return registry;
}

/* An older manager would lose the generations, and blocks of before would be valid again. */
START_TEST(a_registry_with_generations_has_another_format)
{
    struct harness h;
    char uri[128], *path = uri + strlen("local://"), *text = NULL;
    const struct tierce__namespace_choice all = {.instance_id = "", .group = "g", .family = ""};
    harness_open(&h, &(struct harness_opts){0});
    snprintf(uri, sizeof(uri), "local://%s/registry", h.folder);
    struct tierce__registry *stored = open_stored(&h, uri);
    ck_assert_int_eq(tierce__registry_snapshot(h.registry, &text), 0);
    ck_assert_int_eq(tierce__registry_restore(stored, text, h.why), 0);
    ck_assert_uint_eq(format_of(path), 1);
    ck_assert_int_eq(tierce__registry_invalidate(stored, &all, h.why), 0);
    ck_assert_int_eq(tierce__registry_invalidate(stored, &all, h.why), 0);
    ck_assert_uint_eq(format_of(path), 2);
    tierce__registry_close(stored);
    stored = open_stored(&h, uri);
    const struct tierce__catalog *catalog = tierce__registry_acquire(stored);
    ck_assert_uint_eq(tierce__catalog_instance(catalog, "i")->generation, 2);
    tierce__registry_release(stored, catalog);
    ck_assert_int_eq(tierce__registry_load(stored, 8, h.why), 0); /* writes the new token */
    ck_assert_uint_eq(format_of(path), 2);
    ck_assert_int_eq(tierce__registry_remove_instance(stored, "i", h.why), 0);
    ck_assert_uint_eq(format_of(path), 2); /* if the instance returns, it has a generation */
    tierce__registry_close(stored);
    tierce__free(text);
    harness_close(&h);
}
END_TEST

CHECK_MAIN("invalidate", .seconds = 60,
           .tests = {all_blocks_are_misses_at_once, blocks_of_the_new_generation_serve,
                     a_write_that_began_before_stores_nothing,
                     a_finish_in_the_middle_serves_nothing, the_reclaimer_removes_them,
                     another_leader_goes_on, a_leader_that_dies_in_between_has_invalidated,
                     a_family_and_a_group_are_chosen, an_import_takes_nothing_back,
                     a_registry_with_generations_has_another_format})
