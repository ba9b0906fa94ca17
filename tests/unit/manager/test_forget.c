/* SPDX-License-Identifier: Apache-2.0 */
/* Storages that lose their objects: the index forgets them, and nothing else. */
#include "check_main.h"
#include "manager_reclaim.h"

#include <errno.h>

static const int64_t keys[] = {1, 2, 3, 4, 5, 6};
enum { KEYS = sizeof(keys) / sizeof(keys[0]) };

static enum tierce__contents contents_of(struct harness *h, const char *name)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, name);
    ck_assert_ptr_nonnull(storage);
    enum tierce__contents contents = storage->contents;
    tierce__registry_release(h->registry, catalog);
    return contents;
}

static void lose(struct harness *h)
{
    ck_assert_int_eq(tierce__registry_empty_storage(h->registry, "s", h->why), 0);
    ck_assert_int_eq(contents_of(h, "s"), TIERCE__CONTENTS_LOST);
}

static int try_start(struct harness *h)
{
    struct tierce__started started;
    return tierce__locator_start_write(
        h->locator,
        &(struct tierce__write_request){
            .instance_id = "i", .keys = keys, .count = KEYS, .timeout_s = 30},
        &h->arena, &started, h->why);
}

START_TEST(lost_objects_are_forgotten_and_not_deleted)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, keys, KEYS);
    harness_write_files(started.locations, started.count);
    harness_finish(&h, &started);
    size_t files = harness_count_files(&h);
    lose(&h);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), 0);
    ck_assert_int_eq(try_start(&h), TIERCE_E_DOWN);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), KEYS);
    ck_assert_uint_gt(tierce__deleter_step(h.locator->deleter, 10), 0);
    ck_assert_uint_eq(harness_usage(&h).keys, 0);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes + harness_usage(&h).deleting_bytes, 0);
    ck_assert_int_eq(contents_of(&h, "s"), TIERCE__CONTENTS_KEPT);
    ck_assert_uint_eq(harness_count_files(&h), files);
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0); /* the new ones stay */
    close_all(&h);
}
END_TEST

/* Its bytes may have been written before they were lost. */
START_TEST(a_write_ends_with_its_storage)
{
    struct harness h;
    struct tierce__mask all = {.offset = KEYS};
    open_all(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, keys, KEYS);
    lose(&h);
    tierce__reclaimer_step(reclaimer);
    ck_assert_int_eq(tierce__locator_finish_write(h.locator, "i", started.session, &all, h.why),
                     -ESRCH);
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 0);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), 0);
    close_all(&h);
}
END_TEST

START_TEST(a_write_that_finishes_meanwhile_was_not_written)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    struct tierce__started started = harness_start(&h, keys, KEYS);
    lose(&h);
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, 0);
    tierce__reclaimer_step(reclaimer);
    ck_assert_int_eq(contents_of(&h, "s"), TIERCE__CONTENTS_KEPT);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), 0);
    close_all(&h);
}
END_TEST

/* The node of a storage is gone: its objects are forgotten, and it stays out of service. */
START_TEST(a_storage_that_is_gone_stays_out)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    harness_store(&h, keys, KEYS);
    ck_assert_int_eq(tierce__registry_forget_storage(h.registry, "s", h.why), 0);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), KEYS);
    ck_assert_int_eq(contents_of(&h, "s"), TIERCE__CONTENTS_GONE);
    ck_assert_int_eq(try_start(&h), TIERCE_E_DOWN);
    ck_assert_uint_gt(tierce__deleter_step(h.locator->deleter, 10), 0);
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, 0);
    close_all(&h);
}
END_TEST

/* More keys than a round handles. The second leader begins again. */
START_TEST(the_next_leader_goes_on)
{
    enum { MANY = 40000, AT_ONCE = 1000 };
    struct harness h;
    int64_t some[AT_ONCE];
    bool goes_on;
    harness_open(&h, &(struct harness_opts){.meta_type = "local"});
    for (int64_t first = 0; first < MANY; first += AT_ONCE) {
        for (int64_t i = 0; i < AT_ONCE; i++)
            some[i] = first + i;
        harness_store(&h, some, AT_ONCE);
        tierce__arena_clear(&h.arena);
    }
    lose(&h);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    size_t forgotten = tierce__locator_scan(h.locator, TIERCE__SCAN_FORGETS, catalog, &goes_on);
    ck_assert(goes_on && forgotten > 0 && forgotten < MANY);
    tierce__locator_stop_scans(h.locator); /* as the end of leading does */
    while (tierce__locator_scan(h.locator, TIERCE__SCAN_FORGETS, catalog, &goes_on) > 0 || goes_on)
        ck_assert_int_eq(contents_of(&h, "s"),
                         goes_on ? TIERCE__CONTENTS_LOST : TIERCE__CONTENTS_KEPT);
    tierce__registry_release(h.registry, catalog);
    ck_assert_int_eq(contents_of(&h, "s"), TIERCE__CONTENTS_KEPT);
    ck_assert_uint_eq(harness_usage(&h).keys, 0);
    harness_close(&h);
}
END_TEST

/* Slots of files are reused, and bytes return to the quotas. */
START_TEST(slots_are_given_back)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.keys_per_file = 4, .capacity = KEYS * BLOCK_BYTES});
    harness_store(&h, keys, KEYS);
    lose(&h);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), KEYS);
    ck_assert_uint_gt(tierce__deleter_step(h.locator->deleter, 10), 0);
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    close_all(&h);
}
END_TEST

CHECK_MAIN("forget",
           .tests = {lost_objects_are_forgotten_and_not_deleted, a_write_ends_with_its_storage,
                     a_write_that_finishes_meanwhile_was_not_written,
                     a_storage_that_is_gone_stays_out, the_next_leader_goes_on,
                     slots_are_given_back})
