/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "core/policy/policy.h"
#include "plugin_file.h"
#include "test_random.h"

#include <errno.h>
#include <string.h>

/* The contract of every policy in policies.def, and of one in a shared object: the example, or that
 * of the variable TIERCE_PLUGIN. The loop index of a test is the row; the plug-in's is the last. */

enum { SLOTS = 97, STEPS = 20000 };

static const struct tierce__policy_ops *policy_of_row(int row)
{
    static char url[512], why[TIERCE__POLICY_WHY_BYTES];
    static const struct tierce__policy_ops *loaded;
    static struct plugin_file file;
    const struct tierce__policy_ops *ops = tierce__policy_at((size_t)row);
    const char *given = getenv("TIERCE_PLUGIN");
    if (ops != NULL || loaded != NULL)
        return ops != NULL ? ops : loaded;
    if (given == NULL)
        plugin_file_make(&file, TIERCE_PLUGIN_POLICY);
    snprintf(url, sizeof(url), "plugin://%s", given != NULL ? given : file.path);
    ck_assert_msg(tierce__policy_open(&loaded, url, why) == 0, "%s", why);
    if (given == NULL)
        plugin_file_remove(&file);
    return loaded;
}

struct driven {
    struct tierce__policy *policy;
    const struct tierce__policy_ops *ops;
    struct test_random random;
    uint64_t now;
    bool in[SLOTS];
    bool pinned[SLOTS];
    uint32_t count;
    uint32_t pinned_count;
    bool parents; /* entries name parents: a policy may then keep a parent for its children, until
                     its owner asks for an inner entry */
};

static const struct tierce__policy_opts *opts_of(const struct tierce__policy_ops *ops,
                                                 uint64_t seed)
{
    static struct tierce__policy_opts opts;
    opts = (struct tierce__policy_opts){.size = sizeof(opts),
                                        .slot_count = SLOTS,
                                        .capacity = SLOTS * 10,
                                        .seed = seed,
                                        .ops = ops};
    return &opts;
}

static void start(struct driven *d, int row, uint64_t seed, bool parents)
{
    *d = (struct driven){.ops = policy_of_row(row), .random = {seed}, .now = 1, .parents = parents};
    ck_assert_int_eq(d->ops->create(&d->policy, opts_of(d->ops, seed)), 0);
    ck_assert_ptr_eq(d->policy->ops, d->ops);
}

/* A random slot that is in, or not in. There must be one. */
static uint32_t pick(struct driven *d, bool in)
{
    uint32_t slot;
    do
        slot = test_random_below(&d->random, SLOTS);
    while (d->in[slot] != in);
    return slot;
}

static void insert_one(struct driven *d)
{
    uint32_t slot = pick(d, false), parent = TIERCE__NO_SLOT;
    if (d->parents && d->count > 0 && test_random_below(&d->random, 2) == 0)
        parent = pick(d, true);
    struct tierce__policy_entry entry = {.key = test_random_below(&d->random, 300),
                                         .bytes = 1 + test_random_below(&d->random, 20),
                                         .now = d->now,
                                         .parent = parent};
    if (test_random_below(&d->random, 2) == 0)
        tierce__policy_expect(d->policy, &entry);
    tierce__policy_prefetch(d->policy, entry.key, TIERCE__NO_SLOT, false);
    tierce__policy_prefetch(d->policy, entry.key, TIERCE__NO_SLOT, true);
    d->ops->insert(d->policy, slot, &entry);
    d->in[slot] = true;
    d->pinned[slot] = false;
    d->count++;
}

static void remove_one(struct driven *d, uint32_t slot, bool evicted)
{
    d->ops->remove(d->policy, slot, evicted);
    d->pinned_count -= d->pinned[slot];
    d->in[slot] = false;
    d->count--;
}

static void pin_one(struct driven *d, uint32_t slot, bool pinned)
{
    d->ops->set_evictable(d->policy, slot, !pinned);
    d->pinned_count = d->pinned_count - d->pinned[slot] + pinned;
    d->pinned[slot] = pinned;
}

/* Evicts one and returns its slot, or NO_SLOT if nothing is evictable. */
static uint32_t evict_one(struct driven *d)
{
    uint32_t slot = TIERCE__NO_SLOT, again = TIERCE__NO_SLOT;
    bool found = d->ops->victim(d->policy, d->now, &slot);
    ck_assert(d->ops->victim(d->policy, d->now, &again) == found);
    ck_assert_uint_eq(slot, again);
    if (!found) {
        found = tierce__policy_inner(d->policy, &slot);
        ck_assert(!found || (d->parents && d->ops->by_parent));
    }
    if (found) {
        ck_assert_uint_lt(slot, SLOTS);
        ck_assert(d->in[slot]);
        ck_assert(!d->pinned[slot]);
        remove_one(d, slot, true);
        return slot;
    }
    ck_assert_uint_eq(slot, TIERCE__NO_SLOT);
    ck_assert_uint_eq(d->count, d->pinned_count);
    return TIERCE__NO_SLOT;
}

/* One random operation; returns the victim if it was an eviction. */
static uint32_t step(struct driven *d)
{
    uint32_t dice = test_random_below(&d->random, 100);
    d->now += test_random_below(&d->random, 3);
    if (dice < 30 && d->count < SLOTS) {
        insert_one(d);
    } else if (dice < 55 && d->count > 0) {
        uint32_t slot = pick(d, true);
        tierce__policy_prefetch(d->policy, slot, slot, false);
        tierce__policy_prefetch(d->policy, slot, slot, true);
        d->ops->touch(d->policy, slot, d->now);
    } else if (dice < 75 && d->count > 0) {
        pin_one(d, pick(d, true), test_random_below(&d->random, 2) == 0);
    } else if (dice < 80 && d->count > 0) {
        remove_one(d, pick(d, true), false);
    } else if (dice >= 80) {
        return evict_one(d);
    }
    return TIERCE__NO_SLOT;
}

static void unpin_all(struct driven *d)
{
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        if (d->in[slot])
            pin_one(d, slot, false);
    }
}

START_TEST(victims_are_evictable_and_nothing_is_lost)
{
    struct test_random random = test_random_start("policy");
    for (int round = 0; round < 6; round++) {
        struct driven d;
        start(&d, _i, test_random_u64(&random), round % 2 == 1);
        for (unsigned i = 0; i < STEPS * test_scale(); i++)
            step(&d);
        unpin_all(&d);
        uint32_t expected = d.count, drained = 0;
        while (evict_one(&d) != TIERCE__NO_SLOT)
            drained++;
        ck_assert_uint_eq(drained, expected);
        ck_assert_uint_eq(d.count, 0);
        insert_one(&d); /* an empty policy works on */
        ck_assert_uint_ne(evict_one(&d), TIERCE__NO_SLOT);
        d.ops->destroy(d.policy);
    }
}
END_TEST

START_TEST(equal_histories_have_equal_victims)
{
    struct driven a, b;
    struct test_random random = test_random_start("policy twins");
    uint64_t seed = test_random_u64(&random);
    start(&a, _i, seed, true);
    start(&b, _i, seed, true);
    for (unsigned i = 0; i < STEPS; i++)
        ck_assert_uint_eq(step(&a), step(&b));
    a.ops->destroy(a.policy);
    b.ops->destroy(b.policy);
}
END_TEST

START_TEST(memory_is_taken_in_create_only)
{
    struct driven d;
    (void)policy_of_row(_i); /* loading allocates too */
    uint64_t live = tierce__alloc_live(), made;
    tierce__alloc_fail_nth(0);
    start(&d, _i, 1, true);
    made = tierce__alloc_fail_nth(1);
    ck_assert_uint_gt(made, 0);
    for (unsigned i = 0; i < STEPS; i++)
        step(&d);
    ck_assert_uint_eq(tierce__alloc_fail_nth(0), 0);
    d.ops->destroy(d.policy);
    d.ops->destroy(NULL);
    ck_assert_uint_eq(tierce__alloc_live(), live);
    for (uint64_t n = 1; n <= made; n++) {
        struct tierce__policy *none = NULL;
        tierce__alloc_fail_nth(n);
        ck_assert_int_eq(d.ops->create(&none, opts_of(d.ops, 1)), -ENOMEM);
        tierce__alloc_fail_nth(0);
        ck_assert_ptr_null(none);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
}
END_TEST

START_TEST(names_are_unique_and_options_checked)
{
    const struct tierce__policy_ops *ops = policy_of_row(_i);
    struct tierce__policy *none = NULL;
    if (tierce__policy_at((size_t)_i) != NULL)
        ck_assert_ptr_eq(tierce__policy_find(ops->name), ops);
    ck_assert_uint_gt(strlen(ops->summary), 10);
    struct tierce__policy_opts opts = *opts_of(ops, 1);
    opts.slot_count = 0;
    ck_assert_int_eq(ops->create(&none, &opts), TIERCE_E_ARGUMENT);
    opts.slot_count = TIERCE__NO_SLOT;
    ck_assert_int_eq(ops->create(&none, &opts), TIERCE_E_ARGUMENT);
    opts = *opts_of(ops, 1);
    opts.size--;
    ck_assert_int_eq(ops->create(&none, &opts), TIERCE_E_ARGUMENT);
    ck_assert_ptr_null(none);
}
END_TEST

/* Where nearly all is pinned, a search for a victim does not meet the pinned ones again and again:
 * with them, this would be 5e9 steps. */
START_TEST(pinned_entries_are_passed_over_once)
{
    enum { MANY = 100000 };
    struct tierce__policy *policy;
    const struct tierce__policy_ops *ops = policy_of_row(_i);
    struct tierce__policy_opts opts = *opts_of(ops, 1);
    opts.slot_count = MANY;
    opts.capacity = MANY;
    ck_assert_int_eq(ops->create(&policy, &opts), 0);
    struct tierce__policy_entry entry = {.bytes = 1, .parent = TIERCE__NO_SLOT};
    for (uint32_t i = 0; i < MANY - 1; i++) {
        entry.key = i;
        ops->insert(policy, i, &entry);
        ops->set_evictable(policy, i, false);
    }
    for (uint32_t i = 0; i < MANY / 2; i++) {
        uint32_t slot = 0;
        entry.key = MANY + i;
        ck_assert(!ops->victim(policy, i, &slot));
        ops->insert(policy, MANY - 1, &entry);
        ck_assert(ops->victim(policy, i, &slot));
        ck_assert_uint_eq(slot, MANY - 1);
        ops->remove(policy, slot, true);
    }
    ops->destroy(policy);
}
END_TEST

/* An owner with records ranks as the policy evicts. */
START_TEST(ranks_are_the_order_of_victims)
{
    enum { RANKED = 200, USES = 2000 };
    const struct tierce__policy_ops *ops = policy_of_row(_i);
    struct tierce__policy_history histories[RANKED] = {0};
    uint32_t parents[RANKED];
    struct tierce__policy *policy;
    struct test_random random = test_random_start("policy ranks");
    uint64_t now = 1000;
    uint32_t slot;
    if (ops->rank == NULL)
        return;
    ck_assert_int_eq(
        ops->create(&policy,
                    &(struct tierce__policy_opts){.size = sizeof(struct tierce__policy_opts),
                                                  .slot_count = RANKED,
                                                  .ops = ops}),
        0);
    for (uint32_t i = 0; i < RANKED; i++) {
        parents[i] = ops->by_parent && i % 3 != 0 ? i - 1 : TIERCE__NO_SLOT;
        ops->insert(policy, i,
                    &(struct tierce__policy_entry){
                        .key = i, .bytes = 1, .now = ++now, .parent = parents[i]});
        histories[i] = (struct tierce__policy_history){.stored = now, .used = now};
        if (parents[i] != TIERCE__NO_SLOT)
            histories[parents[i]].has_children = true;
    }
    for (int i = 0; i < USES; i++) {
        uint32_t used = test_random_below(&random, 1 + test_random_below(&random, RANKED));
        ops->touch(policy, used, ++now);
        histories[used].used = now;
        histories[used].uses++;
    }
    for (size_t gone = 0; gone < RANKED; gone++) {
        struct tierce__policy_rank lowest = {0}, rank;
        uint32_t expected = TIERCE__NO_SLOT;
        for (uint32_t i = 0; i < RANKED; i++) {
            if (histories[i].used == 0 || !ops->rank(&rank, &histories[i], now, 0))
                continue;
            if (expected == TIERCE__NO_SLOT || tierce__policy_rank_before(&rank, &lowest)) {
                expected = i;
                lowest = rank;
            }
        }
        ck_assert(ops->victim(policy, now, &slot));
        ck_assert_uint_eq(slot, expected);
        ops->remove(policy, slot, true);
        histories[slot].used = 0;
        if (parents[slot] == TIERCE__NO_SLOT)
            continue;
        histories[parents[slot]].has_children = false;
        for (uint32_t i = 0; i < RANKED; i++)
            histories[parents[slot]].has_children |=
                parents[i] == parents[slot] && histories[i].used != 0;
    }
    ops->destroy(policy);
}
END_TEST

/* A frequency is that of a life, and fades. */
START_TEST(frequencies_fade)
{
    const struct tierce__policy_ops *ops = tierce__policy_find("lfu");
    enum { HOUR = 3600 };
    const struct tierce__policy_history
        was_busy = {.stored = 0, .used = 10 * HOUR, .uses = 1000000},
        is_busy = {.stored = 29 * HOUR, .used = 30 * HOUR, .uses = 100},
        is_idle = {.stored = 29 * HOUR, .used = 29 * HOUR, .uses = 1},
        is_busier = {.stored = 29 * HOUR, .used = 30 * HOUR, .uses = 101},
        is_slow = {.stored = 0, .used = 30 * HOUR, .uses = 101};
    const struct tierce__policy_history *order[] = {&was_busy, &is_idle, &is_slow, &is_busy,
                                                    &is_busier};
    struct tierce__policy_rank ranks[5];
    for (size_t i = 0; i < 5; i++)
        ck_assert(ops->rank(&ranks[i], order[i], 30 * HOUR, HOUR));
    for (size_t i = 1; i < 5; i++)
        ck_assert_msg(tierce__policy_rank_before(&ranks[i - 1], &ranks[i]), "%zu", i);
}
END_TEST

START_TEST(one_slot_is_enough)
{
    struct tierce__policy *policy;
    const struct tierce__policy_ops *ops = policy_of_row(_i);
    struct tierce__policy_opts opts = *opts_of(ops, 1);
    uint32_t slot = 5;
    opts.slot_count = 1;
    opts.capacity = 1;
    ck_assert_int_eq(ops->create(&policy, &opts), 0);
    ck_assert(!ops->victim(policy, 1, &slot));
    for (uint64_t i = 0; i < 10; i++) {
        ops->insert(policy, 0,
                    &(struct tierce__policy_entry){
                        .key = i % 3, .bytes = 1, .now = i, .parent = TIERCE__NO_SLOT});
        ops->set_evictable(policy, 0, false);
        ck_assert(!ops->victim(policy, i, &slot));
        ops->touch(policy, 0, i);
        ops->set_evictable(policy, 0, true);
        ck_assert(ops->victim(policy, i, &slot));
        ck_assert_uint_eq(slot, 0);
        ops->remove(policy, 0, i % 2 == 0);
    }
    ops->destroy(policy);
}
END_TEST

int main(void)
{
    int rows = 0;
    while (tierce__policy_at((size_t)rows) != NULL)
        rows++;
    rows++; /* the plug-in */
    return CHECK_RUN("policy conformance", .seconds = 60, .tests = {frequencies_fade},
                     .loops = {{victims_are_evictable_and_nothing_is_lost, 0, rows},
                               {equal_histories_have_equal_victims, 0, rows},
                               {memory_is_taken_in_create_only, 0, rows},
                               {names_are_unique_and_options_checked, 0, rows},
                               {pinned_entries_are_passed_over_once, 0, rows},
                               {one_slot_is_enough, 0, rows},
                               {ranks_are_the_order_of_victims, 0, rows}});
}
