/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random traffic on some instances of a group, then a round: with every policy, no evicted block
 * ranks above a remaining one, over all instances; and no more blocks are evicted than necessary.
 * The model is a list of all blocks.
 */
#include "check_main.h"
#include "manager/reclaim/reclaimer.h"
#include "manager_harness.h"
#include "core/policy/policy.h"
#include "test_random.h"

enum { INSTANCES = 4, KEYS = 60, BLOCKS = INSTANCES * KEYS, HOUR_S = 3600 };

struct block {
    bool is_there, leaves;
    struct tierce__policy_history history;
};

static const char *const ids[INSTANCES] = {"i", "j", "k", "l"};
static struct block blocks[BLOCKS];
static struct harness h;
static struct test_random random_;

static uint32_t below(uint32_t bound)
{
    return test_random_below(&random_, bound);
}

static void store(int instance, int64_t key)
{
    struct tierce__started started;
    struct tierce__mask all = {.offset = 1};
    struct tierce__write_request request = {
        .instance_id = ids[instance], .keys = &key, .count = 1, .timeout_s = 30};
    h.now_us += 1 + (int64_t)below(100000000);
    ck_assert_int_eq(tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why),
                     0);
    if (started.count == 0)
        return;
    ck_assert_int_eq(
        tierce__locator_finish_write(h.locator, ids[instance], started.session, &all, h.why), 0);
    blocks[instance * KEYS + key] = (struct block){
        .is_there = true,
        .history = {.stored = (uint64_t)h.now_us, .used = (uint64_t)h.now_us, .uses = 0}};
}

static void use(int instance, int64_t key)
{
    struct tierce__got got;
    struct block *block = &blocks[instance * KEYS + key];
    struct tierce__get_request request = {
        .instance_id = ids[instance], .query = TIERCE__QUERY_BATCH, .keys = &key, .count = 1};
    h.now_us += 1 + (int64_t)below(100000000);
    ck_assert_int_eq(tierce__locator_get(h.locator, &request, &h.arena, &got, h.why), 0);
    ck_assert_uint_eq(got.hits, block->is_there);
    if (block->is_there) {
        block->history.used = (uint64_t)h.now_us;
        block->history.uses++;
    }
}

static void note_leaving(void *arg, const char *id, const struct tierce__reclaimed *gone,
                         size_t count, int64_t delay_us)
{
    (void)arg, (void)delay_us;
    for (size_t i = 0; i < count; i++)
        blocks[(id[0] - 'i') * KEYS + gone[i].key].leaves = true;
}

static void change_group(int policy, double watermark)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    group.reclaim_policy = policy;
    group.trigger_used_share = watermark;
    group.version++;
    ck_assert_int_eq(tierce__registry_update_group(h.registry, &group, group.version - 1, h.why),
                     0);
    tierce__registry_release(h.registry, catalog);
}

/* The model's order: the evicted blocks rank lowest. */
static void check_order(const struct tierce__policy_ops *policy)
{
    struct tierce__policy_rank highest = {0}, rank;
    bool any = false;
    for (size_t i = 0; i < BLOCKS; i++) {
        if (!blocks[i].is_there || !blocks[i].leaves)
            continue;
        ck_assert(policy->rank(&rank, &blocks[i].history, (uint64_t)h.now_us, HOUR_S * 1000000ull));
        if (!any || tierce__policy_rank_before(&highest, &rank))
            highest = rank;
        any = true;
    }
    for (size_t i = 0; i < BLOCKS && any; i++) {
        if (!blocks[i].is_there || blocks[i].leaves)
            continue;
        ck_assert(policy->rank(&rank, &blocks[i].history, (uint64_t)h.now_us, HOUR_S * 1000000ull));
        ck_assert_msg(!tierce__policy_rank_before(&rank, &highest),
                      "block %zu of %s stayed, and a higher one left", i % KEYS, ids[i / KEYS]);
    }
}

static void round_once(struct tierce__reclaimer *reclaimer)
{
    static const struct {
        int policy;
        const char *name;
    } policies[] = {{TIERCE__RECLAIM_LRU, "lru"}, {TIERCE__RECLAIM_LFU, "lfu"}};
    size_t which = below(2), there = 0, left = 0;
    for (size_t i = 0; i < BLOCKS; i++)
        there += blocks[i].is_there;
    double watermark = 0.3 + below(60) / 100.0;
    change_group(policies[which].policy, watermark);
    size_t removed = tierce__reclaimer_step(reclaimer);
    check_order(tierce__policy_find(policies[which].name));
    for (size_t i = 0; i < BLOCKS; i++) {
        left += blocks[i].is_there && blocks[i].leaves;
        blocks[i].is_there = blocks[i].is_there && !blocks[i].leaves;
        blocks[i].leaves = false;
    }
    ck_assert_uint_eq(left, removed);
    double stays = (double)(there - left), mark = watermark * BLOCKS;
    ck_assert_msg(stays <= mark + 1e-6, "%g blocks of %g", stays, mark);
    ck_assert_msg(left == 0 || stays + 1 > mark, "%g blocks of %g", stays, mark);
    (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
    change_group(TIERCE__RECLAIM_LRU, 1);
}

START_TEST(the_lowest_of_the_group_leave)
{
    struct tierce__reclaimer *reclaimer;
    random_ = test_random_start("reclaim");
    harness_open(&h, &(struct harness_opts){.capacity = (int64_t)BLOCKS * BLOCK_BYTES});
    for (int i = 1; i < INSTANCES; i++)
        harness_add_instance(&h, ids[i]);
    ck_assert_int_eq(tierce__reclaimer_start(&reclaimer,
                                             &(struct tierce__reclaimer_opts){
                                                 .size = sizeof(struct tierce__reclaimer_opts),
                                                 .locator = h.locator,
                                                 .registry = h.registry,
                                                 .submitted = note_leaving}),
                     0);
    for (unsigned round = 0; round < 60 * test_scale(); round++) {
        uint32_t busy = below(INSTANCES);
        for (uint32_t i = 0; i < 150; i++) {
            int instance = (int)(below(3) > 0 ? busy : below(INSTANCES));
            if (below(3) == 0)
                store(instance, (int64_t)below(KEYS));
            else
                use(instance, (int64_t)below(KEYS));
        }
        round_once(reclaimer);
        tierce__arena_clear(&h.arena);
    }
    tierce__reclaimer_stop(reclaimer);
    harness_close(&h);
}
END_TEST

CHECK_MAIN("prop_reclaim", .seconds = 60 * (double)test_scale(),
           .tests = {the_lowest_of_the_group_leave})
