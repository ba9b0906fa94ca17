/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "manager/reclaimer.h"
#include "manager_harness.h"

static struct tierce__reclaimer *reclaimer;

static void open_all(struct harness *h, const struct harness_opts *opts)
{
    harness_open(h, opts);
    int rc = tierce__reclaimer_start(&reclaimer, &(struct tierce__reclaimer_opts){
                                                     .size = sizeof(struct tierce__reclaimer_opts),
                                                     .locator = h->locator,
                                                     .registry = h->registry,
                                                     .seed = 1,
                                                 });
    ck_assert_int_eq(rc, 0);
}

static void close_all(struct harness *h)
{
    tierce__reclaimer_stop(reclaimer);
    harness_close(h);
}

/* Each a second after the one before. */
static void store_each(struct harness *h, int64_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t key = first + (int64_t)i;
        h->now_us += 1000000;
        harness_store(h, &key, 1);
    }
}

static bool is_there(struct harness *h, int64_t key)
{
    struct tierce__record record;
    struct tierce__live *live;
    bool found = false;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    ck_assert_int_eq(tierce__meta_index_get(live->index, &key, 1, &h->arena, &record, &found), 0);
    tierce__live_release(live);
    return found;
}

static void read_key(struct harness *h, int64_t key)
{
    h->now_us += 1000000;
    ck_assert_uint_eq(harness_get(h, TIERCE__QUERY_BATCH, &key, 1, 0).hits, 1);
}

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

START_TEST(instances_give_in_proportion_to_what_they_hold)
{
    struct harness h;
    struct tierce__usage usage;
    open_all(&h, &(struct harness_opts){.capacity = 80 * BLOCK_BYTES, .watermark = 0.5});
    harness_add_instance(&h, "j");
    store_each(&h, 0, 60);
    for (int64_t key = 0; key < 20; key++) {
        struct tierce__started started;
        struct tierce__write_request request = {
            .instance_id = "j", .keys = &key, .count = 1, .timeout_s = 30};
        struct tierce__mask all = {.offset = 1};
        ck_assert_int_eq(
            tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why), 0);
        ck_assert_int_eq(tierce__locator_finish_write(h.locator, "j", started.session, &all, h.why),
                         0);
    }
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 40);
    ck_assert_int_eq(tierce__locator_instance_usage(h.locator, "i", &usage), 0);
    ck_assert_uint_eq(usage.keys, 30);
    ck_assert_int_eq(tierce__locator_instance_usage(h.locator, "j", &usage), 0);
    ck_assert_uint_eq(usage.keys, 10);
    close_all(&h);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reclaimer");
    TCase *t = tcase_create("reclaimer");
    tcase_add_test(t, what_was_not_read_leaves_first);
    tcase_add_test(t, what_was_read_often_stays);
    tcase_add_test(t, what_is_too_old_leaves_below_the_watermark_too);
    tcase_add_test(t, leaves_leave_before_what_they_follow);
    tcase_add_test(t, an_index_that_is_nearly_full_gives_keys_up);
    tcase_add_test(t, each_kind_of_storage_has_its_own_limit);
    tcase_add_test(t, instances_give_in_proportion_to_what_they_hold);
    suite_add_tcase(suite, t);
    return check_main(suite);
}
