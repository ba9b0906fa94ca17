/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/policy/flat.h"
#include "test_random.h"

#include <string.h>

/*
 * tierce__flat_run against an owner that calls a policy's operations one by one and does not tell
 * that its keys are dense: both hold the same keys after each run and count the same hits.
 */

enum { KEYS = 300, USES_MAX = 40, RUNS = 400, CAPACITY_MAX = 120 };

struct plain {
    struct tierce__policy *policy;
    uint32_t slot_of[KEYS], key_in[CAPACITY_MAX];
    uint32_t capacity, used;
    uint64_t now;
};

static uint32_t take_free(const struct plain *p)
{
    for (uint32_t slot = 0; slot < p->capacity; slot++) {
        if (p->key_in[slot] == UINT32_MAX)
            return slot;
    }
    ck_abort_msg("no slot is free");
}

static void plain_store(struct plain *p, uint32_t key)
{
    const struct tierce__policy_ops *ops = p->policy->ops;
    struct tierce__policy_entry entry = {
        .key = key, .bytes = 1, .now = p->now, .parent = TIERCE__NO_SLOT};
    uint32_t slot;
    tierce__policy_expect(p->policy, &entry);
    if (p->used == p->capacity && !tierce__policy_admits(p->policy, &entry)) {
        tierce__policy_skip(p->policy, &entry);
        return;
    }
    if (p->used == p->capacity) {
        ck_assert(ops->victim(p->policy, p->now, &slot));
        ops->remove(p->policy, slot, true);
        p->slot_of[p->key_in[slot]] = TIERCE__NO_SLOT;
        p->key_in[slot] = UINT32_MAX;
        p->used--;
    }
    slot = take_free(p);
    ops->insert(p->policy, slot, &entry);
    p->slot_of[key] = slot;
    p->key_in[slot] = key;
    p->used++;
}

static uint32_t plain_run(struct plain *p, const struct tierce__flat_uses *uses, bool *there)
{
    uint32_t hits = 0;
    for (uint32_t n = 0; n < uses->count; n++) {
        uint32_t at = uses->backwards ? uses->count - 1 - n : n, key = uses->keys[at];
        p->now++;
        there[at] = p->slot_of[key] != TIERCE__NO_SLOT;
        hits += there[at] && at < uses->counted;
        if (there[at])
            p->policy->ops->touch(p->policy, p->slot_of[key], p->now);
        else if (uses->stores)
            plain_store(p, key);
    }
    return hits;
}

static void run_both(struct test_random *random, const struct tierce__policy_ops *ops)
{
    static struct plain plain;
    struct tierce__flat flat;
    memset(&plain, 0xff, sizeof(plain));
    plain.used = 0;
    plain.now = 0;
    plain.capacity = 1 + test_random_below(random, CAPACITY_MAX);
    ck_assert_int_eq(
        tierce__flat_init(&flat, &(struct tierce__flat_opts){.policy = ops,
                                                             .key_count = KEYS,
                                                             .capacity = plain.capacity}),
        0);
    ck_assert_int_eq(
        ops->create(&plain.policy,
                    &(struct tierce__policy_opts){.size = sizeof(struct tierce__policy_opts),
                                                  .slot_count = plain.capacity,
                                                  .capacity = plain.capacity}),
        0);
    uint32_t working_set = 1 + test_random_below(random, KEYS);
    for (uint32_t run = 0; run < RUNS; run++) {
        uint32_t keys[USES_MAX], first = test_random_below(random, KEYS);
        bool want[USES_MAX], there[USES_MAX];
        struct tierce__flat_uses uses = {.keys = keys,
                                         .there = test_random_below(random, 2) ? there : NULL,
                                         .count = test_random_below(random, USES_MAX + 1),
                                         .backwards = test_random_below(random, 2),
                                         .stores = test_random_below(random, 8) > 0,
                                         .ticks = true};
        uses.counted = test_random_below(random, uses.count + 1);
        for (uint32_t i = 0; i < uses.count; i++)
            keys[i] = test_random_below(random, 3) ? (first + i) % KEYS
                                                   : test_random_below(random, working_set);
        uint32_t hits = plain_run(&plain, &uses, want);
        ck_assert_uint_eq(tierce__flat_run(&flat, &uses), hits);
        for (uint32_t i = 0; uses.there != NULL && i < uses.count; i++)
            ck_assert(there[i] == want[i]);
        for (uint32_t key = 0; key < KEYS; key++) {
            if ((flat.slot_of[key] == TIERCE__NO_SLOT) != (plain.slot_of[key] == TIERCE__NO_SLOT))
                ck_abort_msg("%s, capacity %u, run %u: key %u", ops->name, plain.capacity, run,
                             key);
        }
        ck_assert_uint_eq(flat.used, plain.used);
    }
    ck_assert_uint_eq(flat.stored - flat.evicted, flat.used);
    ops->destroy(plain.policy);
    tierce__flat_fini(&flat);
}

START_TEST(a_run_is_its_uses_one_by_one)
{
    struct test_random random = test_random_start("flat");
    for (unsigned round = 0; round < 10 * test_scale(); round++) {
        for (size_t i = 0; tierce__policy_at(i) != NULL; i++) {
            /* Which slot is free matters where slots are drawn. */
            if (strcmp(tierce__policy_at(i)->name, "sampled_lru") != 0)
                run_both(&random, tierce__policy_at(i));
        }
    }
}
END_TEST

START_TEST(without_a_policy_all_is_kept)
{
    struct tierce__flat flat;
    const uint32_t keys[] = {0, 1, 2, 1};
    ck_assert_int_eq(
        tierce__flat_init(&flat, &(struct tierce__flat_opts){.key_count = 3, .capacity = 1}), 0);
    struct tierce__flat_uses uses = {.keys = keys, .count = 4, .counted = 4, .stores = true};
    ck_assert_uint_eq(tierce__flat_run(&flat, &uses), 1);
    ck_assert_uint_eq(tierce__flat_run(&flat, &uses), 4);
    ck_assert_uint_eq(flat.used, 3);
    tierce__flat_fini(&flat);
}
END_TEST

CHECK_MAIN("flat", .seconds = 50 * test_scale(),
           .tests = {a_run_is_its_uses_one_by_one, without_a_policy_all_is_kept})
