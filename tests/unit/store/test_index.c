/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "store/index.h"

#include <string.h>

static struct tierce__key key_of(uint64_t n)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}, .ns = 1};
    memcpy(key.hash, &n, sizeof(n));
    return key;
}

/* A key of the same spread as key_of(n), and another identity. */
static struct tierce__key twin_of(uint64_t n, uint8_t twin)
{
    struct tierce__key key = key_of(n);
    key.hash[31] = twin;
    return key;
}

START_TEST(insert_find_erase)
{
    struct tierce__index *index = NULL;
    ck_assert_int_eq(tierce__index_create(&index, 3), 0);
    struct tierce__key a = key_of(1), b = key_of(2), c = key_of(3), d = key_of(4);
    uint32_t sa = tierce__index_insert(index, &a), sb = tierce__index_insert(index, &b);
    uint32_t sc = tierce__index_insert(index, &c);
    ck_assert(sa < 3 && sb < 3 && sc < 3 && sa != sb && sb != sc && sa != sc);
    ck_assert_uint_eq(tierce__index_insert(index, &d), TIERCE__INDEX_NONE);
    ck_assert_uint_eq(tierce__index_find(index, &b), sb);
    ck_assert_uint_eq(tierce__index_find(index, &d), TIERCE__INDEX_NONE);
    ck_assert_mem_eq(tierce__index_key(index, sc), &c, sizeof(c));
    tierce__index_erase(index, sa);
    tierce__index_erase(index, sb);
    ck_assert(!tierce__index_has(index, sa) && tierce__index_has(index, sc));
    ck_assert(!tierce__index_has(index, 3));
    ck_assert_uint_eq(tierce__index_count(index), 1);
    ck_assert_uint_eq(tierce__index_insert(index, &d), sb); /* given back last */
    ck_assert_uint_eq(tierce__index_find(index, &a), TIERCE__INDEX_NONE);
    tierce__index_destroy(index);
}
END_TEST

START_TEST(every_field_of_a_key_counts)
{
    struct tierce__index *index = NULL;
    ck_assert_int_eq(tierce__index_create(&index, 4), 0);
    struct tierce__key key = key_of(7), other;
    ck_assert_uint_ne(tierce__index_insert(index, &key), TIERCE__INDEX_NONE);
    for (size_t i = 0; i < sizeof(key) - sizeof(key.zero); i++) {
        other = key;
        ((uint8_t *)&other)[i] ^= 1;
        ck_assert_uint_eq(tierce__index_find(index, &other), TIERCE__INDEX_NONE);
    }
    tierce__index_destroy(index);
}
END_TEST

START_TEST(equal_spreads_are_told_apart)
{
    struct tierce__index *index = NULL;
    ck_assert_int_eq(tierce__index_create(&index, 64), 0);
    uint32_t slots[64], found[64];
    struct tierce__key keys[64];
    for (unsigned i = 0; i < 64; i++) {
        keys[i] = twin_of(i % 2, (uint8_t)(i + 1));
        slots[i] = tierce__index_insert(index, &keys[i]);
    }
    ck_assert_uint_eq(tierce__index_find_prefix(index, found, keys, 64), 64);
    ck_assert_mem_eq(found, slots, sizeof(slots));
    for (unsigned i = 0; i < 64; i += 3)
        tierce__index_erase(index, slots[i]);
    for (unsigned i = 0; i < 64; i++)
        ck_assert_uint_eq(tierce__index_find(index, &keys[i]),
                          i % 3 == 0 ? TIERCE__INDEX_NONE : slots[i]);
    tierce__index_destroy(index);
}
END_TEST

START_TEST(a_prefix_ends_at_the_first_key_that_is_missing)
{
    enum { COUNT = 200 };
    struct tierce__index *index = NULL;
    ck_assert_int_eq(tierce__index_create(&index, COUNT), 0);
    static struct tierce__key keys[COUNT];
    uint32_t slots[COUNT], found[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        keys[i] = key_of(i * 77);
        slots[i] = tierce__index_insert(index, &keys[i]);
    }
    static const unsigned missing[] = {199, 130, 128, 64, 63, 1, 0};
    ck_assert_uint_eq(tierce__index_find_prefix(index, found, keys, COUNT), COUNT);
    for (unsigned m = 0; m < sizeof(missing) / sizeof(missing[0]); m++) {
        tierce__index_erase(index, slots[missing[m]]);
        ck_assert_uint_eq(tierce__index_find_prefix(index, found, keys, COUNT), missing[m]);
        ck_assert_mem_eq(found, slots, missing[m] * sizeof(slots[0]));
        slots[missing[m]] = TIERCE__INDEX_NONE;
        tierce__index_find_each(index, found, keys, COUNT);
        ck_assert_mem_eq(found, slots, sizeof(slots));
    }
    ck_assert_uint_eq(tierce__index_find_prefix(index, found, keys, 0), 0);
    tierce__index_destroy(index);
}
END_TEST

START_TEST(sizes_are_bounded)
{
    struct tierce__index *index = NULL;
    ck_assert_int_eq(tierce__index_create(&index, 0), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__index_create(&index, (1u << 31) + 1), TIERCE_E_ARGUMENT);
    ck_assert_ptr_null(index);
}
END_TEST

CHECK_MAIN("index",
           .tests = {insert_find_erase, every_field_of_a_key_counts, equal_spreads_are_told_apart,
                     a_prefix_ends_at_the_first_key_that_is_missing, sizes_are_bounded})
