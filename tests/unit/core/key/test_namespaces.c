/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "check_main.h"
#include "core/key/namespaces.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void number_digest(uint8_t digest[32], uint32_t n)
{
    char text[32];
    snprintf(text, sizeof(text), "%u", n);
    tierce_namespace_digest(digest, text);
}

START_TEST(ids_count_up_and_stay)
{
    struct tierce__namespaces *table = NULL;
    uint8_t digest[32];
    ck_assert_int_eq(tierce__namespaces_create(&table), 0);
    ck_assert_uint_eq(tierce__namespaces_count(table), 0);
    number_digest(digest, 0);
    ck_assert_int_eq(tierce__namespaces_intern(table, digest, NULL), 0);
    const uint8_t *first = tierce__namespaces_digest(table, 0);
    for (uint32_t i = 1; i < 1000; i++) {
        number_digest(digest, i);
        ck_assert_int_eq(tierce__namespaces_intern(table, digest, NULL), i);
    }
    number_digest(digest, 1000);
    ck_assert_int_eq(tierce__namespaces_find(table, digest), TIERCE_E_MISS);
    ck_assert_uint_eq(tierce__namespaces_count(table), 1000);
    for (uint32_t i = 0; i < 1000; i++) {
        number_digest(digest, i);
        ck_assert_int_eq(tierce__namespaces_find(table, digest), i);
        ck_assert_int_eq(tierce__namespaces_intern(table, digest, NULL), i);
        ck_assert_mem_eq(tierce__namespaces_digest(table, i), digest, 32);
    }
    ck_assert_ptr_eq(tierce__namespaces_digest(table, 0), first);
    ck_assert_uint_eq(tierce__namespaces_count(table), 1000);
    tierce__namespaces_destroy(table);
    tierce__namespaces_destroy(NULL);
}
END_TEST

START_TEST(a_text_comes_when_it_is_known)
{
    struct tierce__namespaces *table = NULL;
    uint8_t digest[32];
    ck_assert_int_eq(tierce__namespaces_create(&table), 0);
    number_digest(digest, 7);
    ck_assert_int_eq(tierce__namespaces_intern(table, digest, "8"), TIERCE_E_IDENTITY);
    ck_assert_uint_eq(tierce__namespaces_count(table), 0);
    ck_assert_int_eq(tierce__namespaces_intern(table, digest, NULL), 0);
    ck_assert_ptr_null(tierce__namespaces_text(table, 0));
    ck_assert_int_eq(tierce__namespaces_intern(table, digest, "7"), 0);
    const char *text = tierce__namespaces_text(table, 0);
    ck_assert_str_eq(text, "7");
    ck_assert_int_eq(tierce__namespaces_intern(table, digest, "7"), 0);
    ck_assert_int_eq(tierce__namespaces_intern(table, digest, NULL), 0);
    ck_assert_ptr_eq(tierce__namespaces_text(table, 0), text);
    tierce__namespaces_destroy(table);
}
END_TEST

START_TEST(their_number_is_limited)
{
    struct tierce__namespaces *table = NULL;
    uint8_t digest[32] = {0};
    ck_assert_int_eq(tierce__namespaces_create(&table), 0);
    for (uint32_t i = 0; i < 65536; i++) {
        tierce__store_le32(digest, i * 2654435761u);
        ck_assert_int_eq(tierce__namespaces_intern(table, digest, NULL), i);
    }
    digest[31] = 1;
    ck_assert_int_eq(tierce__namespaces_intern(table, digest, NULL), TIERCE_E_LIMIT);
    digest[31] = 0;
    ck_assert_int_eq(tierce__namespaces_intern(table, digest, NULL), 65535);
    tierce__namespaces_destroy(table);
}
END_TEST

START_TEST(every_failed_allocation_is_reported)
{
    uint64_t live = tierce__alloc_live();
    uint8_t digest[32];
    for (uint64_t nth = 1;; nth++) {
        struct tierce__namespaces *table = NULL;
        tierce__alloc_fail_nth(nth);
        int rc = tierce__namespaces_create(&table);
        if (rc < 0) {
            ck_assert_int_eq(rc, -ENOMEM);
            continue;
        }
        int failed = 0;
        for (uint32_t i = 0; i < 100;) {
            char text[16];
            snprintf(text, sizeof(text), "%u", i);
            number_digest(digest, i);
            int64_t id = tierce__namespaces_intern(table, digest, text);
            if (id < 0) {
                ck_assert_int_eq(id, -ENOMEM);
                failed++;
                continue;
            }
            ck_assert_int_eq(id, i++);
        }
        tierce__alloc_fail_nth(0);
        tierce__namespaces_destroy(table);
        ck_assert_uint_eq(tierce__alloc_live(), live);
        if (failed == 0)
            break;
    }
}
END_TEST

static void *intern_many(void *arg)
{
    struct tierce__namespaces *table = arg;
    for (uint32_t i = 0; i < 2000; i++) {
        uint8_t digest[32];
        number_digest(digest, i % 200);
        int64_t id = tierce__namespaces_intern(table, digest, NULL);
        if (id < 0 || memcmp(tierce__namespaces_digest(table, (uint32_t)id), digest, 32) != 0)
            return arg;
        if (tierce__namespaces_count(table) <= (uint32_t)id)
            return arg;
    }
    return NULL;
}

START_TEST(threads_agree_on_ids)
{
    struct tierce__namespaces *table = NULL;
    pthread_t threads[4];
    ck_assert_int_eq(tierce__namespaces_create(&table), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, intern_many, table), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
    }
    ck_assert_uint_eq(tierce__namespaces_count(table), 200);
    tierce__namespaces_destroy(table);
}
END_TEST

CHECK_MAIN("namespaces", .seconds = 30,
           .tests = {ids_count_up_and_stay, a_text_comes_when_it_is_known, their_number_is_limited,
                     every_failed_allocation_is_reported, threads_agree_on_ids})
