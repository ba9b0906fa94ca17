/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums by the number of a storage. The counters of an index have a place of their own for storages
 * 1 to 63 only; the quotas are exact for all numbers, under the next leader, too.
 */
#include "base/alloc.h"
#include "check_main.h"
#include "log_record.h"
#include "manager/reclaim/quota.h"
#include "manager_harness.h"
#include "silent_log.h"

#include <errno.h>

START_TEST(a_table_keeps_items_by_number)
{
    static const uint16_t numbers[] = {0, 1, 63, 64, 200, UINT16_MAX};
    struct tierce__storage_table table = {.item_bytes = sizeof(uint32_t)};
    uint32_t at = 0;
    ck_assert_ptr_null(tierce__storage_table_next(&table, &at));
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        uint32_t *item = tierce__storage_table_make(&table, numbers[i]);
        ck_assert_uint_eq(*item, 0);
        *item = numbers[i] + 1u;
    }
    ck_assert_ptr_null(tierce__storage_table_find(&table, 1000));
    size_t found = 0, items = 0;
    for (const uint32_t *item; (item = tierce__storage_table_next(&table, &at)) != NULL; at++) {
        ck_assert(*item == 0 || *item == at + 1);
        found += *item != 0;
        items++;
    }
    ck_assert_uint_eq(found, sizeof(numbers) / sizeof(numbers[0]));
    ck_assert_uint_eq(items, 4 * TIERCE__STORAGE_TABLE_PAGE); /* pages 0, 1, 3 and the last */
    tierce__storage_table_clear(&table);
    ck_assert_ptr_null(tierce__storage_table_find(&table, 64));
}
END_TEST

/* A storage t beside s, with capacities in blocks, both candidates of the group. */
static void add_storage(struct harness *h, uint64_t number, uint64_t s_blocks, uint64_t t_blocks)
{
    char t[] = "t", root[128], s[] = "s", *candidates[] = {s, t};
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__storage storage = *tierce__catalog_storage(catalog, "s");
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    storage.capacity_bytes = s_blocks * BLOCK_BYTES;
    ck_assert_int_eq(tierce__registry_update_storage(h->registry, &storage, h->why), 0);
    harness_next_storage(h, number);
    snprintf(root, sizeof(root), "%s/t/", h->folder);
    ck_assert_int_eq(mkdir(root, 0700), 0);
    storage.name = t;
    storage.root_path = root;
    storage.capacity_bytes = t_blocks * BLOCK_BYTES;
    ck_assert_int_eq(tierce__registry_add_storage(h->registry, &storage, h->why), 0);
    ck_assert_int_eq(tierce__registry_enable_storage(h->registry, "t", true, h->why), 0);
    group.storage_candidates = candidates;
    group.storage_candidate_count = 2;
    group.version++;
    ck_assert_int_eq(tierce__registry_update_group(h->registry, &group, group.version - 1, h->why),
                     0);
    tierce__registry_release(h->registry, catalog);
}

static void check_storage(struct harness *h, uint16_t number, uint64_t serving, uint64_t writing,
                          uint64_t deleting)
{
    struct tierce__usage usage;
    tierce__locator_storage_usage(h->locator, number, &usage);
    ck_assert_uint_eq(usage.serving_bytes, serving * BLOCK_BYTES);
    ck_assert_uint_eq(usage.writing_bytes, writing * BLOCK_BYTES);
    ck_assert_uint_eq(usage.deleting_bytes, deleting * BLOCK_BYTES);
}

/* Which keys fit; the rest is rejected. */
static int try_store(struct harness *h, int64_t key)
{
    struct tierce__started started;
    int rc = tierce__locator_start_write(
        h->locator,
        &(struct tierce__write_request){
            .instance_id = "i", .keys = &key, .count = 1, .timeout_s = 30},
        &h->arena, &started, h->why);
    if (rc == 0)
        harness_finish(h, &started);
    return rc;
}

/* Two nodes of a large pool: each has its own capacity, of which every block can be used, and
 * neither takes the other's room. */
START_TEST(each_storage_is_filled_to_its_capacity)
{
    static const struct {
        uint16_t s, t;
    } numbers[] = {{64, 200}, {1, 200}, {64, 65}, {1, 2}, {127, UINT16_MAX}};
    enum { S_BLOCKS = 5, T_BLOCKS = 9 };
    const uint16_t s = numbers[_i].s, t = numbers[_i].t;
    struct harness h;
    harness_open(&h, &(struct harness_opts){.storage_number = s});
    add_storage(&h, t, S_BLOCKS, T_BLOCKS);
    for (int64_t key = 1; key <= S_BLOCKS + T_BLOCKS; key++) {
        ck_assert_msg(try_store(&h, key) == 0, "block %lld: %s", (long long)key, h.why);
        check_storage(&h, s, key < S_BLOCKS ? (uint64_t)key : S_BLOCKS, 0, 0);
        check_storage(&h, t, key < S_BLOCKS ? 0 : (uint64_t)key - S_BLOCKS, 0, 0);
    }
    ck_assert_int_eq(try_store(&h, 100), TIERCE_E_FULL);
    check_storage(&h, 3, 0, 0, 0);
    for (int64_t key = 1; key <= S_BLOCKS; key++)
        ck_assert_uint_eq(harness_get(&h, TIERCE__QUERY_BATCH, &key, 1, 0).hits, 1);
    ck_assert_uint_eq(tierce__locator_storage_located(h.locator, s), 2 * S_BLOCKS); /* two parts */
    ck_assert_uint_eq(tierce__locator_storage_located(h.locator, t), 0);
    harness_close(&h);
}
END_TEST

/* Serving blocks, open writes and waiting deletions count under the next leader as before. Records
 * are read only if a storage has a number from 64 on. */
START_TEST(the_next_leader_counts_the_same)
{
    static const struct {
        uint16_t s, t;
        unsigned scans;
    } numbers[] = {{64, 200, 1}, {1, 200, 1}, {1, 2, 0}};
    static const int64_t writing[] = {101, 102}, written[] = {1, 2, 3, 4, 5, 6, 7};
    enum { S_BLOCKS = 4, T_BLOCKS = 20 };
    const uint16_t s = numbers[_i].s, t = numbers[_i].t;
    char index[] = "/tmp/tierce_indexXXXXXX";
    struct harness h;
    struct tierce__mask none = {0};
    temp_folder_make(index);
    harness_open(
        &h, &(struct harness_opts){.storage_number = s, .meta_type = "rocksdb", .meta_uri = index});
    add_storage(&h, t, S_BLOCKS, T_BLOCKS);
    for (size_t i = 0; i < 7; i++)
        harness_store(&h, &written[i], 1);
    (void)harness_start(&h, writing, 2);
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", &written[0], 1, &none, h.why), 0);
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", &written[6], 1, &none, h.why), 0);
    record_log(TIERCE_LOG_INFO);
    for (uint64_t fence = 2; fence < 4; fence++) {
        check_storage(&h, s, 3, 0, 1);
        check_storage(&h, t, 2, 2, 1);
        check_storage(&h, 0, 0, 0, 0);
        tierce__locator_drop(h.locator);
        ck_assert_int_eq(tierce__locator_recover(h.locator, fence, h.why), 0);
    }
    ck_assert_uint_eq(recorded_with("manager.storages_counted", "instance=i keys=5 "),
                      2 * numbers[_i].scans);
    silence_log();
    h.now_us += 1000000;
    while (tierce__deleter_step(h.locator->deleter, 10) > 0)
        continue;
    check_storage(&h, s, 3, 0, 0);
    ck_assert_int_eq(try_store(&h, 200), 0); /* the room of the deleted block */
    check_storage(&h, s, 4, 0, 0);
    check_storage(&h, t, 2, 2, 0);
    harness_close(&h);
    temp_folder_remove(index);
}
END_TEST

/* Records are not read when the storages with numbers from 64 on are gone, also if a record still
 * names one of them. */
START_TEST(removed_storages_cost_no_scan)
{
    char index[] = "/tmp/tierce_indexXXXXXX", s[] = "s", *candidates[] = {s};
    struct harness h;
    temp_folder_make(index);
    harness_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = index});
    add_storage(&h, 200, 1, 100);
    ck_assert_int_eq(try_store(&h, 1), 0);
    ck_assert_int_eq(try_store(&h, 2), 0); /* in t */
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    group.storage_candidates = candidates;
    group.storage_candidate_count = 1;
    group.version++;
    ck_assert_int_eq(tierce__registry_update_group(h.registry, &group, group.version - 1, h.why),
                     0);
    tierce__registry_release(h.registry, catalog);
    ck_assert_int_eq(tierce__registry_remove_storage(h.registry, "t", h.why), 0);
    record_log(TIERCE_LOG_INFO);
    tierce__locator_drop(h.locator);
    ck_assert_int_eq(tierce__locator_recover(h.locator, 2, h.why), 0);
    ck_assert_uint_eq(recorded_with("manager.storages_counted", ""), 0);
    silence_log();
    check_storage(&h, 1, 1, 0, 0);
    harness_close(&h);
    temp_folder_remove(index);
}
END_TEST

static size_t store_some(struct harness *h, int64_t first, size_t count)
{
    int64_t keys[32];
    for (size_t i = 0; i < count; i++)
        keys[i] = first + (int64_t)i;
    struct tierce__started started = harness_start(h, keys, count);
    harness_finish(h, &started);
    return started.count;
}

/* A write for which the first candidate has too little room goes to the next one, and no block of
 * it is rejected. A write for which no candidate has room is cut: it takes the most room that there
 * is, and the next write gets the room that is left. */
START_TEST(a_write_goes_where_all_of_it_fits)
{
    enum { S = 64, T = 65, S_BLOCKS = 4, T_BLOCKS = 12 };
    struct harness h;
    struct tierce__mask none = {0};
    const int64_t removed[] = {1, 2};
    harness_open(&h, &(struct harness_opts){.storage_number = S});
    add_storage(&h, T, S_BLOCKS, T_BLOCKS);
    ck_assert_uint_eq(store_some(&h, 1, 2), 2);
    check_storage(&h, S, 2, 0, 0);
    ck_assert_uint_eq(store_some(&h, 11, 5), 5);
    check_storage(&h, S, 2, 0, 0);
    check_storage(&h, T, 5, 0, 0);
    ck_assert_uint_eq(store_some(&h, 21, 2), 2);
    check_storage(&h, S, 4, 0, 0);
    ck_assert_uint_eq(store_some(&h, 31, 4), 4);
    check_storage(&h, T, 9, 0, 0);
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", removed, 2, &none, h.why), 0);
    while (tierce__deleter_step(h.locator->deleter, 10) > 0)
        continue;
    ck_assert_uint_eq(store_some(&h, 41, 8), 3); /* 2 would fit into s */
    check_storage(&h, T, 12, 0, 0);
    ck_assert_uint_eq(store_some(&h, 44, 5), 2);
    check_storage(&h, S, 4, 0, 0);
    struct tierce__usage usage = harness_usage(&h);
    ck_assert_uint_eq(usage.rejected_keys[TIERCE__REJECTED_BY_STORAGE], 5 + 3);
    harness_close(&h);
}
END_TEST

/* Nothing is added if memory lacks for a part of it. */
START_TEST(sums_are_added_whole_or_not)
{
    struct tierce__quota *quota;
    struct tierce__quota_sums sums = {.by_storage.item_bytes = TIERCE__QUOTA_SUMS_ITEM};
    uint64_t by_state[TIERCE__QUOTA_STATES];
    struct tierce__quota_use use;
    uint64_t live = tierce__alloc_live();
    for (uint16_t number = 0; number < 1000; number += 100)
        ck_assert_int_eq(tierce__quota_sums_add(&sums, TIERCE__QUOTA_SERVING, TIERCE__STORAGE_NODE,
                                                number, 10u + number),
                         0);
    ck_assert_int_eq(tierce__quota_create(&quota), 0);
    int rc = -ENOMEM;
    for (uint64_t nth = 1; rc != 0; nth++) {
        (void)tierce__alloc_fail_nth(nth);
        rc = tierce__quota_add(quota, "g", &sums);
        (void)tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
        tierce__quota_group_use(quota, "g", &use);
        ck_assert_uint_eq(use.by_state[TIERCE__QUOTA_SERVING], rc == 0 ? 4600 : 0);
        for (uint16_t number = 0; number < 1000; number += 100) {
            tierce__quota_storage_use(quota, number, by_state, NULL);
            ck_assert_uint_eq(by_state[TIERCE__QUOTA_SERVING], rc == 0 ? 10u + number : 0);
        }
    }
    tierce__quota_sums_clear(&sums);
    tierce__quota_destroy(quota);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

CHECK_MAIN("storage_sums",
           .tests = {a_table_keeps_items_by_number, a_write_goes_where_all_of_it_fits,
                     sums_are_added_whole_or_not, removed_storages_cost_no_scan},
           .loops = {{each_storage_is_filled_to_its_capacity, 0, 5},
                     {the_next_leader_counts_the_same, 0, 3}})
