/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/key/key_text.h"

#include <stdio.h>
#include <string.h>

#define NS   "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define HASH "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static int parse_own(const char *text, size_t size)
{
    uint8_t ns[32], hash[32];
    struct tierce_shard shard;
    memset(ns, 0xaa, sizeof(ns));
    memset(hash, 0xaa, sizeof(hash));
    memset(&shard, 0xaa, sizeof(shard));
    int rc = tierce__key_text_parse(ns, &shard, hash, text, size);
    if (rc < 0) {
        /* A failure does not change its output. */
        ck_assert_uint_eq(ns[0], 0xaa);
        ck_assert_uint_eq(hash[0], 0xaa);
        ck_assert_uint_eq(shard.tp_rank, 0xaaaa);
    }
    return rc;
}

START_TEST(own_keys_round_trip)
{
    uint8_t ns[32], hash[32], ns_read[32], hash_read[32];
    for (size_t i = 0; i < 32; i++)
        ns[i] = hash[i] = (uint8_t)i;
    hash[0] = 0xff;
    static const struct tierce_shard shards[] = {
        {0, 1, 0, 1}, {7, 8, 3, 4}, {65534, 65535, 65534, 65535}};
    static const char *const middle[] = {"0.1.0.1", "7.8.3.4", "65534.65535.65534.65535"};
    for (int i = 0; i < 3; i++) {
        char text[TIERCE__KEY_TEXT_BYTES], expected[256];
        struct tierce_shard shard;
        int length = tierce__key_text_format(text, ns, &shards[i], hash);
        snprintf(expected, sizeof(expected), "tierce1:" NS ":%s:" HASH, middle[i]);
        ck_assert_str_eq(text, expected);
        ck_assert_uint_eq(strlen(text), (size_t)length);
        ck_assert_int_eq(tierce__key_text_parse(ns_read, &shard, hash_read, text, (size_t)length),
                         0);
        ck_assert_mem_eq(ns_read, ns, 32);
        ck_assert_mem_eq(hash_read, hash, 32);
        ck_assert_mem_eq(&shard, &shards[i], sizeof(shard));
        /* Neither any beginning of it nor more than it. */
        for (int cut = 0; cut < length; cut++)
            ck_assert_int_eq(parse_own(text, (size_t)cut), TIERCE_E_FORMAT);
        ck_assert_int_eq(parse_own(text, (size_t)length + 1), TIERCE_E_FORMAT);
    }
    char text[TIERCE__KEY_TEXT_BYTES];
    struct tierce_shard bad = {1, 1, 0, 1};
    ck_assert_int_eq(tierce__key_text_format(text, ns, &bad, hash), TIERCE_E_ARGUMENT);
    bad = (struct tierce_shard){0, 1, 0, 0};
    ck_assert_int_eq(tierce__key_text_format(text, ns, &bad, hash), TIERCE_E_ARGUMENT);
}
END_TEST

/* It reads the hash of each text that the parser reads and that has the same namespace and shard,
 * and no other. */
START_TEST(own_keys_like_another)
{
    static const char like[] = "tierce1:" NS ":3.4.0.1:" HASH;
    uint8_t ns[32], hash[32], hash_read[32];
    struct tierce_shard shard;
    char text[sizeof(like) + 1];
    for (size_t at = 0; at < sizeof(like) - 1; at++) {
        for (const char *c = "0123456789abcdefABF:.gt"; *c != '\0'; c++) {
            memcpy(text, like, sizeof(like));
            text[at] = *c;
            bool fits = tierce__key_text_parse(ns, &shard, hash, text, sizeof(like) - 1) == 0 &&
                        memcmp(text, like, sizeof(like) - 1 - 64) == 0;
            memset(hash_read, 0xaa, sizeof(hash_read));
            int rc = tierce__key_text_parse_like(hash_read, like, sizeof(like) - 1, text,
                                                 sizeof(like) - 1);
            ck_assert_int_eq(rc, fits ? 0 : TIERCE_E_FORMAT);
            ck_assert(fits ? memcmp(hash, hash_read, 32) == 0 : hash_read[0] == 0xaa);
        }
    }
    memcpy(text, like, sizeof(like));
    for (size_t size = 0; size <= sizeof(like); size++)
        ck_assert_int_eq(tierce__key_text_parse_like(hash, like, sizeof(like) - 1, text, size),
                         size == sizeof(like) - 1 ? 0 : TIERCE_E_FORMAT);
}
END_TEST

START_TEST(own_keys_have_one_form)
{
    static const char *const bad[] = {
        "tierce2:" NS ":0.1.0.1:" HASH,
        "Tierce1:" NS ":0.1.0.1:" HASH,
        " tierce1:" NS ":0.1.0.1:" HASH,
        "tierce1:" NS ":0.1.0.1:" HASH "\n",
        "tierce1:" NS ":00.1.0.1:" HASH,
        "tierce1:" NS ":0.01.0.1:" HASH,
        "tierce1:" NS ":+0.1.0.1:" HASH,
        "tierce1:" NS ":-0.1.0.1:" HASH,
        "tierce1:" NS ":.1.0.1:" HASH,
        "tierce1:" NS ":0.1.0:" HASH,
        "tierce1:" NS ":0.1.0.1.0:" HASH,
        "tierce1:" NS ":1.1.0.1:" HASH,
        "tierce1:" NS ":0.1.1.1:" HASH,
        "tierce1:" NS ":0.0.0.1:" HASH,
        "tierce1:" NS ":0.65536.0.1:" HASH,
        "tierce1:" NS ":0.4294967297.0.1:" HASH,
        "tierce1:" NS ":0.99999999999999999999999.0.1:" HASH,
        "tierce1:" NS "0:0.1.0.1:" HASH,
        "tierce1:" NS ":0.1.0.1:0" HASH,
        "tierce1:FF0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f:0.1.0.1:" HASH,
        "tierce1:" NS ":0.1.0.1:FF0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "tierce1:" NS ":0.1.0.1:gg0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "tierce1:../../etc/passwd",
        "",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(parse_own(bad[i], strlen(bad[i])), TIERCE_E_FORMAT);
    char text[] = "tierce1:" NS ":0.1.0.1:" HASH;
    ck_assert_int_eq(parse_own(text, strlen(text)), 0);
    text[40] = '\0';
    ck_assert_int_eq(parse_own(text, sizeof(text) - 1), TIERCE_E_FORMAT);
    static char large[65536];
    memset(large, '0', sizeof(large));
    memcpy(large, "tierce1:", 8);
    ck_assert_int_eq(parse_own(large, sizeof(large)), TIERCE_E_FORMAT);
}
END_TEST

CHECK_MAIN("key_text",
           .tests = {own_keys_round_trip, own_keys_like_another, own_keys_have_one_form})
