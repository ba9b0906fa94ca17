/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "manager_reclaim.h"

#include <errno.h>

START_TEST(what_was_not_read_leaves_first)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES, .watermark = 0.5});
    store_each(&h, 0, 8);
    read_key(&h, 0);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3); /* exactly to the watermark */
    for (int64_t key = 0; key < 8; key++)
        ck_assert_int_eq(is_there(&h, key), key == 0 || key > 3);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0); /* what is being deleted is deducted */
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, 3 * BLOCK_BYTES);
    close_all(&h);
}
END_TEST

static struct tierce__usage usage_of_instance(struct harness *h)
{
    struct tierce__usage usage;
    ck_assert_int_eq(tierce__locator_instance_usage(h->locator, "i", &usage), 0);
    return usage;
}

/* Blocks of seconds 1 to 8, 0 read at second 9; 1, 2 and 3 leave at second 60. */
START_TEST(the_age_of_what_leaves_is_known)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES, .watermark = 0.5});
    ck_assert_uint_eq(usage_of_instance(&h).reclaimed_keys, 0);
    int64_t began_us = h.now_us;
    store_each(&h, 0, 8);
    read_key(&h, 0);
    h.now_us = began_us + 60 * 1000000LL;
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    struct tierce__usage usage = usage_of_instance(&h);
    ck_assert_uint_eq(usage.reclaimed_keys, 3);
    ck_assert_uint_eq(usage.reclaimed_idle_us, (58 + 57 + 56) * 1000000ULL);
    ck_assert_int_eq(usage.reclaim_age_us, 56 * 1000000LL);
    close_all(&h);
}
END_TEST

START_TEST(what_was_read_often_stays)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES,
                                        .watermark = 0.5,
                                        .policy = TIERCE__RECLAIM_LFU});
    store_each(&h, 0, 6);
    for (int i = 0; i < 4; i++)
        read_key(&h, 0);
    store_each(&h, 6, 2);
    for (int64_t key = 2; key < 8; key++)
        read_key(&h, key);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    ck_assert(is_there(&h, 0));
    ck_assert(!is_there(&h, 1));
    close_all(&h);
}
END_TEST

START_TEST(what_is_too_old_leaves_below_the_watermark_too)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.policy = TIERCE__RECLAIM_TTL}); /* an hour */
    store_each(&h, 0, 3);
    h.now_us += 3000 * 1000000LL;
    store_each(&h, 3, 2);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    h.now_us += 700 * 1000000LL;
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    ck_assert(is_there(&h, 3));
    ck_assert_uint_eq(harness_usage(&h).reclaimed_keys, 0); /* not for lack of room */
    close_all(&h);
}
END_TEST

START_TEST(leaves_leave_before_what_they_follow)
{
    static const int64_t chain[] = {1, 2, 3, 4, 5, 6};
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES,
                                        .watermark = 0.3,
                                        .policy = TIERCE__RECLAIM_LEAF_LRU});
    harness_store(&h, chain, 6);
    int64_t left = 6;
    size_t removed;
    while ((removed = tierce__reclaimer_step(reclaimer)) > 0) {
        left -= (int64_t)removed;
        for (int64_t key = 1; key <= 6; key++)
            ck_assert_int_eq(is_there(&h, key), key <= left);
    }
    ck_assert_int_eq(left, 3);
    close_all(&h);
}
END_TEST

START_TEST(an_index_that_is_nearly_full_gives_keys_up)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.keys_max = 10, .watermark = 0.5});
    store_each(&h, 0, 8);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    ck_assert_uint_eq(harness_usage(&h).keys, 5);
    close_all(&h);
}
END_TEST

START_TEST(each_kind_of_storage_has_its_own_limit)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.type_capacity = 10 * BLOCK_BYTES, .watermark = 0.5});
    store_each(&h, 0, 8);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    close_all(&h);
}
END_TEST

static void store_in(struct harness *h, const char *id, int64_t count)
{
    for (int64_t key = 0; key < count; key++) {
        struct tierce__started started;
        struct tierce__write_request request = {
            .instance_id = id, .keys = &key, .count = 1, .timeout_s = 30};
        struct tierce__mask all = {.offset = 1};
        h->now_us += 1000000;
        ck_assert_int_eq(
            tierce__locator_start_write(h->locator, &request, &h->arena, &started, h->why), 0);
        ck_assert_int_eq(
            tierce__locator_finish_write(h->locator, id, started.session, &all, h->why), 0);
    }
}

static uint64_t keys_in(struct harness *h, const char *id)
{
    struct tierce__usage usage;
    ck_assert_int_eq(tierce__locator_instance_usage(h->locator, id, &usage), 0);
    return usage.keys;
}

static void read_in(struct harness *h, const char *id, int64_t first, size_t count)
{
    int64_t keys[100];
    struct tierce__got got;
    for (size_t i = 0; i < count; i++)
        keys[i] = first + (int64_t)i;
    ck_assert_int_eq(tierce__locator_get(h->locator,
                                         &(struct tierce__get_request){.instance_id = id,
                                                                       .query = TIERCE__QUERY_BATCH,
                                                                       .keys = keys,
                                                                       .count = count},
                                         &h->arena, &got, h->why),
                     0);
    ck_assert_uint_eq(got.hits, count);
}

/* 50 of 80 blocks are read continuously; exactly the other 30, of the old model version, are
 * evicted. */
START_TEST(idle_instances_give_before_busy_ones)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 100 * BLOCK_BYTES, .watermark = 0.5});
    harness_add_instance(&h, "j");
    store_in(&h, "j", 30);
    for (int i = 0; i < 5; i++) {
        store_each(&h, 10 * i, 10);
        read_in(&h, "i", 0, 10 * (size_t)(i + 1));
    }
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 30);
    ck_assert_uint_eq(keys_in(&h, "i"), 50);
    ck_assert_uint_eq(keys_in(&h, "j"), 0);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    close_all(&h);
}
END_TEST

static int get_fails(struct tierce__meta_space *space, const int64_t *keys, size_t count,
                     struct tierce__arena *arena, struct tierce__record *records, bool *found)
{
    (void)space, (void)keys, (void)count, (void)arena, (void)records, (void)found;
    return -EIO;
}

/* The group's other instances are reclaimed from. */
START_TEST(an_instance_that_cannot_be_read_is_skipped)
{
    struct harness h;
    struct tierce__live *live;
    open_all(&h, &(struct harness_opts){.capacity = 100 * BLOCK_BYTES, .watermark = 0.5});
    harness_add_instance(&h, "j");
    store_each(&h, 0, 40);
    store_in(&h, "j", 40);
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    const struct tierce__meta_store_ops *real = live->space->ops;
    struct tierce__meta_store_ops failing = *real;
    failing.get = get_fails;
    live->space->ops = &failing;
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 30);
    live->space->ops = real;
    tierce__live_release(live);
    ck_assert_uint_eq(keys_in(&h, "i"), 40);
    ck_assert_uint_eq(keys_in(&h, "j"), 10);
    close_all(&h);
}
END_TEST

/* With a partial sample too, hardly any block that is read is evicted. */
START_TEST(a_sample_is_drawn_from_all_instances)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){.capacity = 600 * BLOCK_BYTES, .watermark = 0.5});
    start_reclaimer(&h, 100);
    harness_add_instance(&h, "j");
    store_in(&h, "j", 300);
    store_each(&h, 0, 250);
    size_t removed = tierce__reclaimer_step(reclaimer);
    ck_assert_uint_ge(removed, 250);
    ck_assert_uint_le(removed, 252);
    ck_assert_uint_le(keys_in(&h, "j"), 60);
    ck_assert_uint_ge(keys_in(&h, "i"), 240);
    close_all(&h);
}
END_TEST

/* A sample of long chains has few ends, and the oldest of a few is not old. */
START_TEST(long_chains_that_are_young_stay_whole)
{
    enum { CHAINS = 400, CHAIN = 64, YOUNG = CHAINS / 2 };
    struct harness h;
    harness_open(&h, &(struct harness_opts){.capacity = (int64_t)CHAINS * CHAIN * BLOCK_BYTES,
                                            .watermark = 0.8});
    start_reclaimer(&h, 200);
    for (int64_t chain = 0; chain < CHAINS; chain++) {
        int64_t keys[CHAIN];
        for (int64_t i = 0; i < CHAIN; i++)
            keys[i] = chain * CHAIN + i;
        h.now_us += 1000000;
        harness_store(&h, keys, CHAIN);
    }
    size_t left = 0, removed;
    while ((removed = tierce__reclaimer_step(reclaimer)) > 0)
        left += removed;
    ck_assert_uint_ge(left, (size_t)CHAINS * CHAIN / 5);
    for (int64_t key = (int64_t)YOUNG * CHAIN; key < (int64_t)CHAINS * CHAIN; key++)
        ck_assert_msg(is_there(&h, key), "block %lld of chain %lld left", (long long)key % CHAIN,
                      (long long)key / CHAIN);
    close_all(&h);
}
END_TEST

/* The keys of one instance are limited whatever the others hold. */
START_TEST(an_instance_that_is_full_gives_its_own_keys_up)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.keys_max = 10, .watermark = 0.95});
    harness_add_instance(&h, "j");
    store_in(&h, "j", 1);
    for (int64_t first = 0; first < 40; first += 4) {
        int64_t keys[] = {first, first + 1, first + 2, first + 3};
        struct tierce__started started = harness_start(&h, keys, 4);
        ck_assert_uint_ge(started.count, 1);
        harness_finish(&h, &started);
        (void)tierce__reclaimer_step(reclaimer);
        ck_assert_uint_le(keys_in(&h, "i"), 9);
    }
    ck_assert_uint_eq(keys_in(&h, "i"), 9);
    ck_assert_uint_eq(keys_in(&h, "j"), 1);
    close_all(&h);
}
END_TEST

static void change_group(struct harness *h, double watermark, int64_t capacity, int policy)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    group.trigger_used_share = watermark;
    group.capacity_bytes = capacity > 0 ? capacity : group.capacity_bytes;
    group.reclaim_policy = policy > 0 ? policy : group.reclaim_policy;
    group.version++;
    int rc = tierce__registry_update_group(h->registry, &group, group.version - 1, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    tierce__registry_release(h->registry, catalog);
}

/* Whether one block can be written. */
static bool try_store(struct harness *h, int64_t key)
{
    struct tierce__started started = {0};
    struct tierce__write_request request = {
        .instance_id = "i", .keys = &key, .count = 1, .timeout_s = 30};
    h->now_us += 1000000;
    int rc = tierce__locator_start_write(h->locator, &request, &h->arena, &started, h->why);
    ck_assert(rc == 0 || rc == TIERCE_E_FULL);
    if (rc < 0)
        return false;
    harness_finish(h, &started);
    return true;
}

static void make_room(struct harness *h)
{
    (void)tierce__reclaimer_step(reclaimer);
    (void)tierce__deleter_step(h->locator->deleter, SIZE_MAX);
}

START_TEST(a_group_without_a_watermark_stays_writable)
{
    static const double watermarks[] = {0, 1};
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES});
    change_group(&h, watermarks[_i], 0, 0);
    for (int64_t key = 0; key < 40; key++) {
        ck_assert_msg(try_store(&h, key), "%s", h.why);
        make_room(&h);
    }
    ck_assert_uint_eq(harness_usage(&h).keys, _i == 0 ? 8 : 9);
    close_all(&h);
}
END_TEST

/* 6 blocks of 150 lie below 95 % of 1000; a seventh has no room. */
START_TEST(a_block_that_found_no_room_finds_some_later)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 1000, .watermark = 0.95});
    for (int64_t key = 0; key < 6; key++)
        ck_assert(try_store(&h, key));
    make_room(&h);
    ck_assert_uint_eq(harness_usage(&h).keys, 6);
    for (int64_t key = 6; key < 20; key++) {
        ck_assert(!try_store(&h, key));
        make_room(&h);
        ck_assert(try_store(&h, key));
        ck_assert_uint_eq(harness_usage(&h).keys, 6);
    }
    close_all(&h);
}
END_TEST

START_TEST(what_groups_share_is_reclaimed_from_all_of_them)
{
    struct harness h;
    struct tierce__quota_group limit = {"q", 20 * BLOCK_BYTES};
    open_all(&h, &(struct harness_opts){0});
    harness_add_instance(&h, "j");
    store_in(&h, "j", 10);
    store_each(&h, 0, 30);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    ck_assert_int_eq(tierce__locator_set_quotas(h.locator, &limit, 1), 0);
    ck_assert(!try_store(&h, 100));
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 21); /* to 19 of 20 */
    ck_assert_uint_eq(keys_in(&h, "j"), 0);
    for (int64_t key = 100; key < 150; key++) {
        make_room(&h);
        ck_assert(try_store(&h, key));
    }
    close_all(&h);
}
END_TEST

/* A group like g, with storage s too. */
static void add_group(struct harness *h, const char *name)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    group.name = (char *)(uintptr_t)name;
    group.number = 0;
    ck_assert_msg(tierce__registry_add_group(h->registry, &group, h->why) == 0, "%s", h->why);
    tierce__registry_release(h->registry, catalog);
}

static int limit_storage(struct harness *h, uint64_t capacity, int32_t percent)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__storage storage = *tierce__catalog_storage(catalog, "s");
    storage.capacity_bytes = capacity;
    storage.watermark_percent = percent;
    int rc = tierce__registry_update_storage(h->registry, &storage, h->why);
    tierce__registry_release(h->registry, catalog);
    return rc;
}

/* Both groups are far below their quotas. The oldest blocks in the storage are evicted, whatever
 * group they are of. */
START_TEST(the_watermark_of_a_storage_is_obeyed_across_groups)
{
    static const struct {
        int32_t percent;
        uint64_t stays;
    } marks[] = {{0, 19}, {95, 19}, {50, 10}, {1, 0}};
    struct harness h;
    open_all(&h, &(struct harness_opts){.watermark = 0.95});
    add_group(&h, "other");
    harness_add_instance_of(&h, "j", "other");
    store_in(&h, "j", 8);
    store_each(&h, 0, 12);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    ck_assert_int_eq(limit_storage(&h, 20 * BLOCK_BYTES, marks[_i].percent), 0);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 20 - marks[_i].stays);
    uint64_t of_j = marks[_i].stays > 12 ? marks[_i].stays - 12 : 0;
    ck_assert_uint_eq(keys_in(&h, "j"), of_j);
    ck_assert_uint_eq(keys_in(&h, "i"), marks[_i].stays - of_j);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    close_all(&h);
}
END_TEST

/* Writes find room, and the storage stays at its watermark. */
START_TEST(a_lower_watermark_of_a_storage_acts_on_the_next_writes)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.watermark = 0.95});
    ck_assert_int_eq(limit_storage(&h, 10 * BLOCK_BYTES, 60), 0);
    for (int64_t key = 0; key < 30; key++) {
        ck_assert_msg(try_store(&h, key), "%s", h.why);
        make_room(&h);
        ck_assert_uint_le(harness_usage(&h).keys, 6);
    }
    ck_assert_uint_eq(harness_usage(&h).keys, 6);
    ck_assert_int_eq(limit_storage(&h, 10 * BLOCK_BYTES, 30), 0);
    make_room(&h);
    ck_assert_uint_eq(harness_usage(&h).keys, 3);
    close_all(&h);
}
END_TEST

START_TEST(watermarks_of_a_storage_that_are_rejected)
{
    static const struct {
        uint64_t capacity;
        int32_t percent;
        const char *words;
    } wrong[] = {{1000, 96, "is 96; accepted are 0 to 95"},
                 {1000, -1, "is -1; accepted are 0 to 95"},
                 {0, 96, "is 96; accepted are 0 to 95"},
                 {0, 50, "is 50, but capacity_bytes is 0"}};
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ck_assert_int_eq(limit_storage(&h, wrong[i].capacity, wrong[i].percent), TIERCE_E_ARGUMENT);
        ck_assert_msg(strstr(h.why, "watermark_percent of storage s") != NULL &&
                          strstr(h.why, wrong[i].words) != NULL,
                      "%s", h.why);
    }
    close_all(&h);
}
END_TEST

/* If a block is in two kinds of storage, the location in the kind over its quota is removed. */
START_TEST(a_kind_above_its_quota_loses_locations_and_not_blocks)
{
    struct harness h;
    char t[] = "t", mount[64];
    open_all(&h, &(struct harness_opts){.type_capacity = 10 * BLOCK_BYTES, .watermark = 0.5});
    snprintf(mount, sizeof(mount), "%s", h.folder);
    struct tierce__storage other = {.name = t,
                                    .type = TIERCE__STORAGE_3FS,
                                    .is_enabled = true,
                                    .mountpoint = mount,
                                    .key_count_per_file = 1};
    ck_assert_int_eq(tierce__registry_add_storage(h.registry, &other, h.why), 0);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    char s[] = "s";
    char *both[] = {s, t};
    group.storage_candidates = both;
    group.storage_candidate_count = 2;
    group.version++;
    ck_assert_int_eq(tierce__registry_update_group(h.registry, &group, group.version - 1, h.why),
                     0);
    tierce__registry_release(h.registry, catalog);
    store_each(&h, 0, 5);
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "s", false, h.why), 0);
    store_each(&h, 0, 2); /* again, to t */
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "s", true, h.why), 0);
    store_each(&h, 2, 3); /* it is there: nothing */
    store_each(&h, 5, 3);
    read_in(&h, "i", 2, 6); /* 0 and 1 are the oldest; 8 blocks in s */
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    ck_assert_uint_eq(harness_usage(&h).keys, 7);
    read_in(&h, "i", 0, 2);
    struct tierce__usage usage = harness_usage(&h);
    ck_assert_uint_eq(usage.serving_by_type[tierce__meta_type_slot(TIERCE__STORAGE_NFS)],
                      5 * BLOCK_BYTES);
    ck_assert_uint_eq(usage.serving_by_type[tierce__meta_type_slot(TIERCE__STORAGE_3FS)],
                      2 * BLOCK_BYTES);
    close_all(&h);
}
END_TEST

/* Quota, watermark and policy of a group whose instance is open. */
START_TEST(changes_of_a_group_reach_open_instances)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 100 * BLOCK_BYTES});
    store_each(&h, 0, 10);
    for (int i = 0; i < 3; i++)
        read_key(&h, 0);
    for (int64_t key = 1; key < 10; key++)
        read_key(&h, key);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    change_group(&h, 0.5, 18 * BLOCK_BYTES, TIERCE__RECLAIM_LFU);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 1);
    ck_assert(is_there(&h, 0) && !is_there(&h, 1));
    change_group(&h, 0.5, 16 * BLOCK_BYTES, TIERCE__RECLAIM_LRU);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 1);
    ck_assert(!is_there(&h, 0) && is_there(&h, 2));
    close_all(&h);
}
END_TEST

/* Counts go on where a small counter would end. */
START_TEST(frequencies_differ_beyond_any_small_count)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){
                     .capacity = 2 * BLOCK_BYTES, .watermark = 0.5, .policy = TIERCE__RECLAIM_LFU});
    store_each(&h, 0, 2);
    int64_t key = 0;
    for (int i = 0; i < 400; i++) {
        ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_BATCH, &key, 1, 0).hits, 1);
    }
    key = 1;
    for (int i = 0; i < 300; i++)
        ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_BATCH, &key, 1, 0).hits, 1);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 1);
    ck_assert(is_there(&h, 0));
    close_all(&h);
}
END_TEST

START_TEST(watermarks_that_are_no_share_are_rejected)
{
    static const double wrong[] = {-0.1, 1.01, 80, __builtin_nan("")};
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    group.version++;
    for (size_t i = 0; i < 4; i++) {
        group.trigger_used_share = wrong[i];
        ck_assert_int_eq(
            tierce__registry_update_group(h.registry, &group, group.version - 1, h.why),
            TIERCE_E_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(h.why, "used_percentage"));
    }
    tierce__registry_release(h.registry, catalog);
    close_all(&h);
}
END_TEST

static struct tierce__reclaimed submitted[16];
static size_t submitted_count;

static void note_submitted(void *arg, const char *instance_id, const struct tierce__reclaimed *gone,
                           size_t count, int64_t delay_us)
{
    (void)arg, (void)instance_id, (void)delay_us;
    for (size_t i = 0; i < count; i++)
        submitted[submitted_count++] = gone[i];
}

START_TEST(what_is_told_is_what_left)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES, .watermark = 0.5});
    ck_assert_int_eq(tierce__reclaimer_start(&reclaimer,
                                             &(struct tierce__reclaimer_opts){
                                                 .size = sizeof(struct tierce__reclaimer_opts),
                                                 .locator = h.locator,
                                                 .registry = h.registry,
                                                 .seed = 1,
                                                 .submitted = note_submitted}),
                     0);
    static const int64_t gone[] = {0, 2, 3};
    struct tierce__record records[3];
    struct tierce__live *live;
    bool found[3];
    store_each(&h, 0, 8);
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    ck_assert_int_eq(tierce__meta_index_get(live->index, gone, 3, &h.arena, records, found), 0);
    tierce__live_release(live);
    touch_between(&h, 1);
    /* By the quota of the kind 0 and 2, by that of the group then 3. */
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    touch_no_more(&h);
    ck_assert_uint_eq(submitted_count, 3);
    for (size_t i = 0; i < submitted_count; i++) {
        ck_assert_int_eq(submitted[i].key, gone[i]);
        ck_assert_mem_eq(submitted[i].location_id, records[i].locations[0].id,
                         sizeof(submitted[i].location_id));
        ck_assert(!is_there(&h, gone[i]));
    }
    ck_assert(is_there(&h, 1));
    close_all(&h);
}
END_TEST

CHECK_MAIN("reclaimer",
           .tests = {what_was_not_read_leaves_first,
                     the_age_of_what_leaves_is_known,
                     what_was_read_often_stays,
                     what_is_too_old_leaves_below_the_watermark_too,
                     leaves_leave_before_what_they_follow,
                     an_index_that_is_nearly_full_gives_keys_up,
                     each_kind_of_storage_has_its_own_limit,
                     idle_instances_give_before_busy_ones,
                     an_instance_that_cannot_be_read_is_skipped,
                     a_sample_is_drawn_from_all_instances,
                     long_chains_that_are_young_stay_whole,
                     a_block_that_found_no_room_finds_some_later,
                     what_groups_share_is_reclaimed_from_all_of_them,
                     a_kind_above_its_quota_loses_locations_and_not_blocks,
                     changes_of_a_group_reach_open_instances,
                     an_instance_that_is_full_gives_its_own_keys_up,
                     frequencies_differ_beyond_any_small_count,
                     watermarks_that_are_no_share_are_rejected,
                     what_is_told_is_what_left,
                     a_lower_watermark_of_a_storage_acts_on_the_next_writes,
                     watermarks_of_a_storage_that_are_rejected},
           .loops = {{a_group_without_a_watermark_stays_writable, 0, 2},
                     {the_watermark_of_a_storage_is_obeyed_across_groups, 0, 4}})
