/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "test_random.h"
#include "store/index.h"

#include <string.h>

/* Random operations on an index against a plain array: slot -> key. */

enum { SLOTS_MAX = 300, KEYS = 700, STEPS = 20000 };

static uint32_t slot_of[KEYS]; /* the model: NONE for a key that is not there */
static bool used[SLOTS_MAX];

/* Keys in clusters: within one, tags and home buckets are equal or neighbours, and long runs
 * form, wrap around the end, and break. */
static struct tierce__key key_of(uint32_t n, uint32_t clusters)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}};
    uint64_t cluster = n % clusters;
    memcpy(key.hash, &cluster, 8);
    memcpy(key.hash + 16, &n, 4);
    return key;
}

static void check_find(const struct tierce__index *index, struct test_random *random,
                       uint32_t clusters)
{
    static struct tierce__key keys[150];
    uint32_t numbers[150], slots[150];
    size_t count = test_random_below(random, 151), want = 0;
    /* Runs of keys that are there, so that prefixes grow long. */
    bool present = test_random_below(random, 4) > 0;
    for (size_t i = 0; i < count; i++) {
        numbers[i] = test_random_below(random, KEYS);
        for (unsigned tries = 0; present && slot_of[numbers[i]] == TIERCE__INDEX_NONE && tries < 20;
             tries++)
            numbers[i] = test_random_below(random, KEYS);
        keys[i] = key_of(numbers[i], clusters);
    }
    while (want < count && slot_of[numbers[want]] != TIERCE__INDEX_NONE)
        want++;
    ck_assert_uint_eq(tierce__index_find_prefix(index, slots, keys, count), want);
    for (size_t i = 0; i < want; i++)
        ck_assert_uint_eq(slots[i], slot_of[numbers[i]]);
    tierce__index_find_each(index, slots, keys, count);
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_eq(slots[i], slot_of[numbers[i]]);
        ck_assert_uint_eq(tierce__index_find(index, &keys[i]), slot_of[numbers[i]]);
    }
}

static void play(struct test_random *random)
{
    struct tierce__index *index;
    uint32_t slot_count = 1 + test_random_below(random, SLOTS_MAX), count = 0;
    uint32_t clusters = 1 + test_random_below(random, KEYS);
    uint32_t lean = 30 + test_random_below(random, 40);
    ck_assert_int_eq(tierce__index_create(&index, slot_count), 0);
    memset(slot_of, 0xff, sizeof(slot_of));
    memset(used, 0, sizeof(used));
    for (unsigned i = 0; i < STEPS; i++) {
        uint32_t n = test_random_below(random, KEYS);
        struct tierce__key key = key_of(n, clusters);
        if (slot_of[n] == TIERCE__INDEX_NONE && test_random_below(random, 100) < lean) {
            uint32_t slot = tierce__index_insert(index, &key);
            ck_assert((slot == TIERCE__INDEX_NONE) == (count == slot_count));
            if (slot == TIERCE__INDEX_NONE)
                continue;
            ck_assert_uint_lt(slot, slot_count);
            ck_assert(!used[slot]);
            used[slot] = true;
            slot_of[n] = slot;
            count++;
        } else if (slot_of[n] != TIERCE__INDEX_NONE) {
            ck_assert(tierce__index_has(index, slot_of[n]));
            ck_assert_mem_eq(tierce__index_key(index, slot_of[n]), &key, sizeof(key));
            tierce__index_erase(index, slot_of[n]);
            ck_assert(!tierce__index_has(index, slot_of[n]));
            used[slot_of[n]] = false;
            slot_of[n] = TIERCE__INDEX_NONE;
            count--;
        }
        ck_assert_uint_eq(tierce__index_count(index), count);
        if (i % 50 == 0)
            check_find(index, random, clusters);
    }
    tierce__index_destroy(index);
}

START_TEST(an_index_does_what_an_array_does)
{
    struct test_random random = test_random_start("index");
    for (unsigned i = 0; i < 8 * test_scale(); i++)
        play(&random);
}
END_TEST

CHECK_MAIN("prop_index", .seconds = 50, .tests = {an_index_does_what_an_array_does})
