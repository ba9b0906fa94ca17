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

START_TEST(instances_give_in_proportion_to_what_they_hold)
{
    struct harness h;
    struct tierce__usage usage;
    open_all(&h, &(struct harness_opts){.capacity = 80 * BLOCK_BYTES, .watermark = 0.5});
    harness_add_instance(&h, "j");
    store_each(&h, 0, 60);
    store_in(&h, "j", 20);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 40);
    ck_assert_int_eq(tierce__locator_instance_usage(h.locator, "i", &usage), 0);
    ck_assert_uint_eq(usage.keys, 30);
    ck_assert_int_eq(tierce__locator_instance_usage(h.locator, "j", &usage), 0);
    ck_assert_uint_eq(usage.keys, 10);
    close_all(&h);
}
END_TEST

/* Shares of 2.4, 1.2 and 0.4 blocks. */
START_TEST(shares_that_are_no_whole_blocks_come_to_what_is_needed)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 32 * BLOCK_BYTES, .watermark = 0.5});
    harness_add_instance(&h, "j");
    harness_add_instance(&h, "k");
    store_in(&h, "i", 12);
    store_in(&h, "j", 6);
    store_in(&h, "k", 2);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 4);
    ck_assert_uint_eq(keys_in(&h, "j"), 5);
    ck_assert_uint_eq(keys_in(&h, "i") + keys_in(&h, "k"), 11); /* 0.4 and 0.4: one of the two */
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    close_all(&h);
}
END_TEST

/* A store in which key 1 is used between the drawing of the sample and the removal. */
static const struct tierce__meta_store_ops *real_ops;
static struct tierce__meta_store_ops touching_ops;
static int64_t touched_us;
static int gets;

static int get_and_touch(struct tierce__meta_space *space, const int64_t *keys, size_t count,
                         struct tierce__arena *arena, struct tierce__record *records, bool *found)
{
    static const int64_t used = 1;
    if (++gets == 2)
        real_ops->touch(space, &used, 1, touched_us);
    return real_ops->get(space, keys, count, arena, records, found);
}

static int64_t submitted_keys[16];
static size_t submitted_count;

static void note_submitted(void *arg, const char *instance_id, const struct tierce__reclaimed *gone,
                           size_t count, int64_t delay_us)
{
    (void)arg, (void)instance_id, (void)delay_us;
    for (size_t i = 0; i < count; i++)
        submitted_keys[submitted_count++] = gone[i].key;
}

START_TEST(what_is_told_is_what_left)
{
    struct harness h;
    struct tierce__live *live;
    harness_open(&h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES, .watermark = 0.5});
    ck_assert_int_eq(tierce__reclaimer_start(&reclaimer,
                                             &(struct tierce__reclaimer_opts){
                                                 .size = sizeof(struct tierce__reclaimer_opts),
                                                 .locator = h.locator,
                                                 .registry = h.registry,
                                                 .seed = 1,
                                                 .submitted = note_submitted}),
                     0);
    store_each(&h, 0, 8);
    touched_us = h.now_us + 1000000;
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    real_ops = live->space->ops;
    touching_ops = *real_ops;
    touching_ops.get = get_and_touch;
    live->space->ops = &touching_ops;
    /* By the quota of the kind 0 and 2, by that of the group then 3. */
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    live->space->ops = real_ops;
    tierce__live_release(live);
    ck_assert_uint_eq(submitted_count, 3);
    for (size_t i = 0; i < submitted_count; i++)
        ck_assert(!is_there(&h, submitted_keys[i]));
    ck_assert(is_there(&h, 1));
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
    tcase_add_test(t, shares_that_are_no_whole_blocks_come_to_what_is_needed);
    tcase_add_test(t, what_is_told_is_what_left);
    suite_add_tcase(suite, t);
    return check_main(suite);
}
