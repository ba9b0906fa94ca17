/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/policy/hazard_ghosts.h"
#include "core/policy/policy.h"

#include <string.h>

static struct tierce__policy *hazard;

static void create(uint32_t slots, uint64_t capacity)
{
    struct tierce__policy_opts opts = {
        .size = sizeof(opts), .slot_count = slots, .capacity = capacity};
    const struct tierce__policy_ops *ops = tierce__policy_find("hazard");
    ck_assert_ptr_nonnull(ops);
    ck_assert_int_eq(ops->create(&hazard, &opts), 0);
}

static void insert(uint32_t slot)
{
    hazard->ops->insert(
        hazard, slot,
        &(struct tierce__policy_entry){.key = slot, .bytes = 1, .parent = TIERCE__NO_SLOT});
}

/* Slots are far more than entries, so a tick is a share of the entries' uses, not of the slots':
 * the entry that was used last is not the victim, although it was stored first. */
START_TEST(few_entries_of_many_slots_have_ages)
{
    enum { ENTRIES = 40, ROUNDS = 5 };
    create(1 << 16, 1 << 30);
    for (uint32_t i = 0; i < ENTRIES; i++)
        insert(i);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < ENTRIES; i++)
            hazard->ops->touch(hazard, i, 0);
    }
    for (uint32_t i = ENTRIES; i-- > 0;)
        hazard->ops->touch(hazard, i, 0);
    for (uint32_t i = ENTRIES; i-- > 0;) {
        uint32_t victim = TIERCE__NO_SLOT;
        ck_assert(hazard->ops->victim(hazard, 0, &victim));
        ck_assert_uint_eq(victim, i);
        hazard->ops->remove(hazard, victim, true);
    }
    hazard->ops->destroy(hazard);
}
END_TEST

/* Time passes at the start of a request, and all its blocks were used in the one before: their
 * risks since then are taken back, not more. The policy asserts it. */
START_TEST(a_request_takes_back_the_risks_that_it_added)
{
    enum { BLOCKS = 2000, REQUESTS = 20 };
    create(BLOCKS, BLOCKS);
    for (uint32_t request = 0; request < REQUESTS; request++) {
        tierce__policy_begin(hazard, &(struct tierce__policy_request){.count = BLOCKS});
        for (uint32_t i = 0; i < BLOCKS; i++) {
            if (request == 0)
                insert(i);
            else
                hazard->ops->touch(hazard, i, 0);
        }
    }
    hazard->ops->destroy(hazard);
}
END_TEST

static uint32_t find(const struct tierce__hazard_ghosts *g, uint64_t key)
{
    return tierce__hazard_ghosts_find(g, key, tierce__hazard_hash(key));
}

static void push(struct tierce__hazard_ghosts *g, uint64_t key, uint32_t max)
{
    tierce__hazard_ghosts_push(g, 0, key, tierce__hazard_hash(key), 1, max);
}

START_TEST(ghosts_are_limited_below_the_size_of_their_ring)
{
    enum { RING = 1000, FEW = 10 };
    struct tierce__hazard_ghosts g;
    ck_assert_int_eq(tierce__hazard_ghosts_init(&g, RING), 0);
    for (uint64_t key = 0; key < RING; key++)
        push(&g, key, 2 * RING);
    for (uint64_t key = 0; key < RING; key++)
        ck_assert_uint_eq(find(&g, key), 1);
    push(&g, RING, FEW);
    for (uint64_t key = 0; key <= RING; key++)
        ck_assert_uint_eq(find(&g, key), key > RING - FEW);
    /* Places whose ghosts were taken count, too. */
    for (uint64_t key = RING + 1; key < RING + FEW + FEW / 2; key++) {
        push(&g, key, FEW);
        ck_assert_uint_eq(tierce__hazard_ghosts_take(&g, key, tierce__hazard_hash(key)), 1);
        ck_assert_uint_eq(find(&g, RING), 1);
    }
    push(&g, 0, FEW);
    ck_assert_uint_eq(find(&g, RING), 0);
    tierce__hazard_ghosts_fini(&g);
}
END_TEST

enum { CACHE = 1000, KEYS = 20 * CACHE };
static uint32_t slot_of_key[KEYS], key_of_slot[CACHE];

/* Of a new key, into a cache of CACHE entries. Keys are numbered in their order. */
static void store_key(uint32_t key)
{
    uint32_t slot = key;
    if (key >= CACHE) {
        ck_assert(hazard->ops->victim(hazard, 0, &slot));
        hazard->ops->remove(hazard, slot, true);
        slot_of_key[key_of_slot[slot]] = TIERCE__NO_SLOT;
    }
    slot_of_key[key] = slot;
    key_of_slot[slot] = key;
    hazard->ops->insert(
        hazard, slot,
        &(struct tierce__policy_entry){.key = key, .bytes = 1, .parent = TIERCE__NO_SLOT});
}

/* As with lru, the latest of new keys stay: ages that few entries reach are worth no more than the
 * ages before them, at which none was used again. */
START_TEST(the_latest_stay_while_nothing_returns)
{
    create(CACHE, CACHE);
    memset(slot_of_key, 0xff, sizeof(slot_of_key));
    for (uint32_t key = 0; key < KEYS; key++) {
        store_key(key);
        for (uint32_t age = 0; key % 100 == 0 && age < CACHE / 4 && age <= key; age++)
            ck_assert_uint_ne(slot_of_key[key - age], TIERCE__NO_SLOT);
    }
    hazard->ops->destroy(hazard);
}
END_TEST

static void insert_key(uint32_t slot, uint64_t key, uint32_t output_tokens)
{
    hazard->ops->insert(hazard, slot,
                        &(struct tierce__policy_entry){.key = key,
                                                       .bytes = 1,
                                                       .parent = TIERCE__NO_SLOT,
                                                       .origin = {.output_tokens = output_tokens}});
}

/* Ages are counted up to 512 spans of 32 ticks: 128 capacities. A use at this age counts for no
 * age, so entries that are used at no other age are worth less than newer ones that were never used
 * again. Old ages are counted for one of eight keys, by its hash. */
START_TEST(uses_at_ages_that_are_not_counted_teach_nothing)
{
    enum { RARE = 8, SLOTS = 3 * RARE, AGE = 128 * SLOTS, ROUNDS = 6, LATE = AGE / 8 };
    uint64_t keys[RARE], key = 1;
    uint32_t victim;
    create(SLOTS, SLOTS);
    for (uint32_t i = 0; i < RARE; key++) {
        if (tierce__hazard_hash(key) % 8 == 0)
            keys[i++] = key;
    }
    for (uint32_t use = 0; use < ROUNDS * AGE - 1; use++) {
        uint32_t i = use % AGE;
        bool is_late = use >= ROUNDS * AGE - LATE && use < ROUNDS * AGE - LATE + RARE;
        if (is_late)
            insert_key(2 * RARE + use % RARE, ++key, 200);
        else if (i >= RARE && use >= 2 * RARE)
            hazard->ops->touch(hazard, RARE + use % RARE, 0);
        else if (i >= RARE)
            insert_key(i, ++key, 20);
        else if (use >= AGE)
            hazard->ops->touch(hazard, i, 0);
        else
            insert_key(i, keys[i], 20);
    }
    ck_assert(hazard->ops->victim(hazard, 0, &victim));
    ck_assert_uint_lt(victim, RARE);
    hazard->ops->destroy(hazard);
}
END_TEST

CHECK_MAIN("hazard", .tests = {few_entries_of_many_slots_have_ages,
                               a_request_takes_back_the_risks_that_it_added,
                               the_latest_stay_while_nothing_returns,
                               uses_at_ages_that_are_not_counted_teach_nothing,
                               ghosts_are_limited_below_the_size_of_their_ring})
