/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks whose clients state their size, as those that store compressed chunks do. */
#include "check_main.h"
#include "base/alloc.h"
#include "manager_moves.h"
#include "meta_folder.h"

static const int64_t keys[] = {1, 2, 3, 4};
static const char *const only_a[] = {"A", "A", "A", "A"};
enum { KEYS = 4 };

static int try_start(struct harness *h, struct tierce__started *out, const char *const *groups,
                     const int64_t *sizes)
{
    return tierce__locator_start_write(h->locator,
                                       &(struct tierce__write_request){.instance_id = "i",
                                                                       .keys = keys,
                                                                       .count = KEYS,
                                                                       .timeout_s = 30,
                                                                       .spec_groups = groups,
                                                                       .sizes = sizes},
                                       &h->arena, out, h->why);
}

static struct tierce__started start(struct harness *h, const char *const *groups,
                                    const int64_t *sizes)
{
    struct tierce__started started = {0};
    int rc = try_start(h, &started, groups, sizes);
    ck_assert_msg(rc == 0, "%s", h->why);
    return started;
}

static void expect_size(const char *uri, uint64_t bytes)
{
    char size[32];
    snprintf(size, sizeof(size), "size=%llu", (unsigned long long)bytes);
    ck_assert_msg(strstr(uri, size) != NULL, "%s has not %s", uri, size);
}

static void lead_again(struct harness *h)
{
    static uint64_t fence = 1;
    tierce__locator_drop(h->locator);
    int rc = tierce__locator_recover(h->locator, ++fence, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

/* Places and quotas have the sizes of the request, from the start of the write to the deletion. */
START_TEST(sizes_of_the_request_count)
{
    static const int64_t sizes[] = {40, 0, 60, 200};
    static const uint64_t want[] = {40, PART_A_BYTES, 60, 200};
    struct harness h;
    meta_folder_make();
    harness_open(&h, &(struct harness_opts){.meta_type = "rocksdb", .meta_uri = meta_folder});
    struct tierce__started started = start(&h, only_a, sizes);
    for (size_t i = 0; i < KEYS; i++) {
        expect_size(started.locations[i].specs[0].uri, want[i]);
        ck_assert_uint_eq(started.bytes[i], want[i]);
    }
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 400);
    lead_again(&h);
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 400);
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, 400);
    lead_again(&h);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, 400);
    struct tierce__got got = harness_get(&h, TIERCE__QUERY_BATCH, keys, KEYS, 0);
    for (size_t i = 0; i < KEYS; i++)
        expect_size(got.found[i].specs[0].uri, want[i]);
    harness_close(&h);
    meta_folder_remove();
}
END_TEST

/* Each spec of a key has its size. */
START_TEST(a_size_is_of_each_spec)
{
    static const int64_t sizes[] = {40, 40, 40, 0};
    struct harness h;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__started started = start(&h, NULL, sizes);
    expect_size(started.locations[0].specs[0].uri, 40);
    expect_size(started.locations[0].specs[1].uri, 40);
    ck_assert_uint_eq(started.bytes[0], 80);
    ck_assert_uint_eq(started.bytes[3], BLOCK_BYTES);
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 3 * 80 + BLOCK_BYTES);
    harness_finish(&h, &started);
    harness_close(&h);
}
END_TEST

/* More blocks fit into a quota if they are shorter. */
START_TEST(the_quota_has_room_for_more)
{
    static const int64_t sizes[] = {25, 25, 25, 25};
    struct harness h;
    harness_open(&h, &(struct harness_opts){.capacity = PART_A_BYTES});
    struct tierce__started started = start(&h, only_a, NULL);
    ck_assert_uint_eq(started.count, 1);
    struct tierce__mask none = {0};
    ck_assert_int_eq(tierce__locator_finish_write(h.locator, "i", started.session, &none, h.why),
                     0);
    while (tierce__deleter_step(h.locator->deleter, 100) > 0)
        ;
    started = start(&h, only_a, sizes);
    ck_assert_uint_eq(started.count, KEYS);
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, PART_A_BYTES);
    harness_close(&h);
}
END_TEST

/* Slots have the size of the spec, so a block of another size has a file of its own. */
START_TEST(slots_are_for_blocks_of_the_spec_s_size)
{
    static const int64_t sizes[] = {0, 40, PART_A_BYTES, 40};
    struct harness h;
    harness_open(&h, &(struct harness_opts){.keys_per_file = 8});
    struct tierce__started started = start(&h, only_a, sizes);
    for (size_t i = 0; i < KEYS; i++) {
        const char *uri = started.locations[i].specs[0].uri;
        ck_assert_msg((strstr(uri, "blkid=") != NULL) == (i % 2 == 0), "%s", uri);
        expect_size(uri, i % 2 == 0 ? PART_A_BYTES : 40);
    }
    harness_write_files(started.locations, started.count);
    ck_assert_uint_eq(harness_count_files(&h), 3);
    harness_finish(&h, &started);
    struct tierce__mask none = {0};
    ck_assert_int_eq(tierce__locator_remove(h.locator, "i", keys, KEYS, &none, h.why), 0);
    h.now_us += 1000000000;
    while (tierce__deleter_step(h.locator->deleter, 100) > 0)
        ;
    ck_assert_uint_eq(harness_count_files(&h), 0);
    ck_assert_uint_eq(harness_usage(&h).deleting_bytes, 0);
    harness_close(&h);
}
END_TEST

START_TEST(sizes_have_bounds)
{
    static const int64_t most = PART_A_BYTES + (512 << 10), bad[] = {-1, INT64_MIN, INT64_MAX};
    struct harness h;
    struct tierce__started started = {0};
    harness_open(&h, &(struct harness_opts){0});
    for (size_t i = 0; i < 3; i++) {
        const int64_t sizes[] = {10, 10, bad[i], 10};
        ck_assert_int_eq(try_start(&h, &started, NULL, sizes), TIERCE_E_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(h.why, "a number of block_sizes is "));
    }
    const int64_t over[] = {10, most + 1, 10, 10}, largest[] = {10, most, 10, 10};
    ck_assert_int_eq(try_start(&h, &started, NULL, over), TIERCE_E_ARGUMENT);
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 0);
    started = start(&h, only_a, largest);
    ck_assert_uint_eq(harness_usage(&h).writing_bytes, 30 + (uint64_t)most);
    harness_finish(&h, &started);
    harness_close(&h);
}
END_TEST

/* A copy has the size of its source, also in a storage with slots. */
START_TEST(a_move_keeps_the_sizes)
{
    static const int64_t sizes[] = {40, 0, 60, 40};
    static const uint64_t want[] = {40, PART_A_BYTES, 60, 40};
    struct harness h;
    moves_open(&h, &(struct harness_opts){.keys_per_file = _i == 0 ? 1 : 8});
    struct tierce__started started = start(&h, only_a, sizes);
    harness_finish(&h, &started);
    h.now_us += 5000000;
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "s", false, TIERCE__MOVE_TO_ANY), KEYS);
    struct tierce__taken_moves taken = moves_take(&h, 100);
    ck_assert_uint_eq(taken.count, 1);
    const struct tierce__move_batch *batch = &taken.batches[0];
    ck_assert_uint_eq(batch->count, KEYS);
    for (size_t i = 0; i < KEYS; i++) {
        expect_size(batch->from[i].specs[0].uri, want[i]);
        expect_size(batch->to[i].specs[0].uri, want[i]);
    }
    ck_assert_uint_eq(moves_finish(&h, batch, TIERCE__MOVED), KEYS);
    h.now_us += 1000000000;
    while (tierce__deleter_step(h.locator->deleter, 100) > 0)
        ;
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), 0);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), 240);
    close_all(&h);
}
END_TEST

CHECK_MAIN("block_sizes", .seconds = 60,
           .tests = {sizes_of_the_request_count, a_size_is_of_each_spec,
                     the_quota_has_room_for_more, slots_are_for_blocks_of_the_spec_s_size,
                     sizes_have_bounds},
           .loops = {{a_move_keeps_the_sizes, 0, 2}})
