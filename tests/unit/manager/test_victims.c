/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks a limit may take: those of its groups, whole chains from their ends, no more than
 * needed. */
#include "check_main.h"
#include "manager_moves.h"

#include <errno.h>

/* A group like g, with a quota that it shares with no other group. */
static void add_group(struct harness *h, const char *name, const char *shared)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    group.name = (char *)(uintptr_t)name;
    group.global_quota_group_name = (char *)(uintptr_t)shared;
    group.number = 0;
    ck_assert_msg(tierce__registry_add_group(h->registry, &group, h->why) == 0, "%s", h->why);
    tierce__registry_release(h->registry, catalog);
}

/* Keys 0 to count - 1, each a second after the one before. */
static void store_in(struct harness *h, const char *id, int64_t count)
{
    const struct tierce__mask all = {.offset = 1};
    for (int64_t key = 0; key < count; key++) {
        struct tierce__started started;
        struct tierce__write_request request = {
            .instance_id = id, .keys = &key, .count = 1, .timeout_s = 30};
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

static struct tierce__reclaimer_stats stats(void)
{
    struct tierce__reclaimer_stats out;
    tierce__reclaimer_stats(reclaimer, &out);
    return out;
}

static void remove_key(struct harness *h, int64_t key)
{
    const struct tierce__mask none = {0};
    ck_assert_int_eq(tierce__locator_remove(h->locator, "i", &key, 1, &none, h->why), 0);
}

/* ---- whose blocks ---------------------------------------------------------------------------- */

START_TEST(a_group_above_its_quota_gives_its_own_blocks)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES, .watermark = 0.5});
    add_group(&h, "other", "q");
    harness_add_instance_of(&h, "j", "other");
    store_in(&h, "j", 5); /* older, and at the watermark of its group */
    store_in(&h, "i", 8);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 3);
    ck_assert_uint_eq(keys_in(&h, "j"), 5);
    ck_assert_uint_eq(keys_in(&h, "i"), 5);
    ck_assert_uint_eq(stats().submitted_blocks, 3);
    ck_assert_uint_eq(stats().submitted_locations, 3);
    ck_assert_uint_eq(stats().submitted_bytes, 3 * BLOCK_BYTES);
    close_all(&h);
}
END_TEST

START_TEST(a_shared_quota_takes_from_the_groups_that_share_it)
{
    struct tierce__quota_group limit = {"q", 20 * BLOCK_BYTES};
    struct harness h;
    open_all(&h, &(struct harness_opts){0});
    add_group(&h, "other", "of-its-own");
    harness_add_instance_of(&h, "j", "other");
    store_in(&h, "j", 10);
    store_in(&h, "i", 30);
    ck_assert_int_eq(tierce__locator_set_quotas(h.locator, &limit, 1), 0);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 11); /* to 19 of 20 */
    ck_assert_uint_eq(keys_in(&h, "j"), 10);
    ck_assert_uint_eq(keys_in(&h, "i"), 19);
    close_all(&h);
}
END_TEST

/* ---- how many -------------------------------------------------------------------------------- */

/* Of a partial sample: the rest of the need is counted down from pass to pass. */
START_TEST(a_partial_sample_takes_no_more_than_needed)
{
    enum { BLOCKS = 600, STAY = 500 };
    const bool is_of_keys = _i == 0;
    struct harness h;
    harness_open(&h, &(struct harness_opts){.keys_max = is_of_keys ? 1000 : 0,
                                            .capacity = is_of_keys ? 0 : 1000 * BLOCK_BYTES,
                                            .watermark = 0.5});
    start_reclaimer(&h, 100);
    store_in(&h, "i", BLOCKS);
    (void)tierce__reclaimer_step(reclaimer);
    ck_assert_uint_le(keys_in(&h, "i"), STAY);
    ck_assert_uint_gt(keys_in(&h, "i"), STAY - 10); /* a tenth of a sample of 100 */
    ck_assert_uint_ge(stats().sampled_keys, 10 * 50);
    close_all(&h);
}
END_TEST

/* ---- used meanwhile -------------------------------------------------------------------------- */

static struct harness *busy;
static enum { USES_NOW, GETS_A_SUCCESSOR } meanwhile;

/* After the sample of records was read. */
static int get_and_disturb(struct tierce__meta_space *space, const int64_t *keys, size_t count,
                           struct tierce__arena *arena, struct tierce__record *records, bool *found)
{
    static const int64_t chain[] = {0, 99};
    int rc = real_ops->get(space, keys, count, arena, records, found);
    if (++gets > 1)
        return rc;
    for (size_t i = 0; i < count; i++) {
        if (keys[i] == chain[0] && meanwhile == USES_NOW)
            /* In the same microsecond as the use before. */
            real_ops->touch(space, chain, 1,
                            &(struct tierce__record_use){records[i].used_us, 1, 0});
    }
    if (meanwhile == GETS_A_SUCCESSOR)
        harness_store(busy, chain, 2);
    return rc;
}

START_TEST(a_block_that_is_needed_meanwhile_stays)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = 10 * BLOCK_BYTES,
                                        .type_capacity = 100 * BLOCK_BYTES,
                                        .watermark = 0.5}); /* one limit, so one sample */
    store_in(&h, "i", 8);
    busy = &h;
    meanwhile = _i == 0 ? USES_NOW : GETS_A_SUCCESSOR;
    touch_between(&h, 0);
    touching_ops.get = get_and_disturb;
    (void)tierce__reclaimer_step(reclaimer);
    touch_no_more(&h);
    ck_assert(is_there(&h, 0) && !is_there(&h, 1) && !is_there(&h, 2));
    ck_assert_uint_eq(stats().used_again, 1);
    close_all(&h);
}
END_TEST

/* ---- chains ---------------------------------------------------------------------------------- */

/* The end of a chain leaves one of its storages. The block before it is still followed. */
START_TEST(a_block_that_stays_elsewhere_is_still_followed)
{
    static const int64_t chain[] = {1, 2};
    struct harness h;
    moves_open(&h, &(struct harness_opts){.watermark = 0.9});
    harness_store(&h, chain, 2);
    ck_assert_uint_eq(moves_want(&h, &chain[1], 1, "s", true, TIERCE__MOVE_TO_ANY), 1);
    struct tierce__taken_moves taken = moves_take(&h, 10);
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), 1);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__storage storage = *tierce__catalog_storage(catalog, "s");
    storage.capacity_bytes = BLOCK_BYTES / 2;
    ck_assert_int_eq(tierce__registry_update_storage(h.registry, &storage, h.why), 0);
    tierce__registry_release(h.registry, catalog);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 1);
    ck_assert_uint_eq(moves_record(&h, 2).location_count, 1);
    ck_assert_uint_eq(harness_prefix(&h, chain, 2), 2);
    close_all(&h);
}
END_TEST

static void store_circle(struct harness *h, int64_t count)
{
    int64_t keys[500];
    const int64_t back[] = {count, 1};
    ck_assert_int_le(count, 500);
    for (int64_t i = 0; i < count; i++)
        keys[i] = i + 1;
    harness_store(h, keys, (size_t)count);
    remove_key(h, 1);
    h->now_us += 1000000;
    (void)tierce__deleter_step(h->locator->deleter, 10);
    harness_store(h, back, 2); /* 1 follows the last one */
    ck_assert_uint_eq(keys_in(h, "i"), (uint64_t)count);
}

/* No sample has an end of a chain: from the ninth on, blocks that others follow are evicted. */
START_TEST(a_large_circle_can_be_reclaimed)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){.capacity = 600 * BLOCK_BYTES, .watermark = 0.5});
    start_reclaimer(&h, 100);
    store_circle(&h, 500);
    ck_assert_uint_gt(tierce__reclaimer_step(reclaimer), 0);
    ck_assert_uint_le(keys_in(&h, "i"), 300);
    close_all(&h);
}
END_TEST

/* With LEAF_LRU a block that another one follows is never evicted, not even for a limit that ranks
 * by last use because several groups share it. */
START_TEST(leaf_lru_breaks_no_chain)
{
    struct tierce__quota_group limit = {"q", 2 * BLOCK_BYTES};
    const bool is_shared = _i == 1;
    struct harness h;
    open_all(&h, &(struct harness_opts){.capacity = is_shared ? 0 : 4 * BLOCK_BYTES,
                                        .watermark = 0.5,
                                        .policy = TIERCE__RECLAIM_LEAF_LRU});
    store_circle(&h, 4);
    if (is_shared)
        ck_assert_int_eq(tierce__locator_set_quotas(h.locator, &limit, 1), 0);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    ck_assert_uint_eq(keys_in(&h, "i"), 4);
    close_all(&h);
}
END_TEST

CHECK_MAIN("victims", .seconds = 20,
           .tests = {a_group_above_its_quota_gives_its_own_blocks,
                     a_shared_quota_takes_from_the_groups_that_share_it,
                     a_block_that_stays_elsewhere_is_still_followed,
                     a_large_circle_can_be_reclaimed},
           .loops = {{a_partial_sample_takes_no_more_than_needed, 0, 2},
                     {a_block_that_is_needed_meanwhile_stays, 0, 2},
                     {leaf_lru_breaks_no_chain, 0, 2}})
