/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/key/key_text.h"

#include <stdio.h>
#include <string.h>

#define NS   "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define HASH "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

/* ---- ours ----------------------------------------------------------------------------------- */

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

/* ---- LMCache -------------------------------------------------------------------------------- */

static int parse_foreign(struct tierce__lmcache_key *key, const char *text, size_t size)
{
    memset(key, 0xaa, sizeof(*key));
    struct tierce__lmcache_key before = *key;
    int rc = tierce__lmcache_key_parse(key, text, size);
    if (rc < 0)
        ck_assert_mem_eq(key, &before, sizeof(before));
    return rc;
}

START_TEST(lmcache_keys_are_read_in_full)
{
    static const char plain[] = "org/m@2@1@abc123@bfloat16@user%u1";
    static const char layer[] = "org/m@2@1@abc123@bfloat16@7@user%u1";
    struct tierce__lmcache_key key;
    ck_assert_int_eq(parse_foreign(&key, plain, strlen(plain)), 0);
    ck_assert_uint_eq(key.model_bytes, 5);
    ck_assert_mem_eq(key.model, "org/m", 5);
    ck_assert_uint_eq(key.world_size, 2);
    ck_assert_uint_eq(key.worker_id, 1);
    struct tierce__lmcache_hash hash =
        tierce__lmcache_hash_of_int((struct tierce__lmcache_int){11256099, false});
    ck_assert_uint_eq(key.hash.digits, 6);
    ck_assert_mem_eq(key.hash.value, hash.value, 32);
    ck_assert_str_eq(key.dtype, "bfloat16");
    ck_assert_int_eq(key.layer, -1);
    ck_assert_uint_eq(key.tags_bytes, 7);
    ck_assert_mem_eq(key.tags, "user%u1", 7);
    ck_assert_int_eq(parse_foreign(&key, layer, strlen(layer)), 0);
    ck_assert_int_eq(key.layer, 7);
    ck_assert_mem_eq(key.tags, "user%u1", 7);
}
END_TEST

START_TEST(lmcache_keys_round_trip)
{
    static const char *const good[] = {
        "org/m@2@1@abc123@bfloat16@user%u1",
        "org/m@2@1@abc123@bfloat16@7@user%u1",
        "m@1@0@0@half",
        "m@1@0@-1@float@0",
        "m@1@0@-8000000000000000@double",
        "m@1@0@ffffffffffffffff@int8",
        "m@1@0@00ab@uint8",
        "m@1@0@" HASH "@fp8_e4m3fn",
        "m@1@0@" NS "@fp8_e5m2fnuz@2147483647@a%@b%c%d",
        "../../x/..@2147483647@2147483647@5c7c4165af101b9a@bool",
        "\xe6\xa8\xa1 m@1@0@1@int64@12%x",
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct tierce__lmcache_key key;
        char text[256];
        ck_assert_int_eq(parse_foreign(&key, good[i], strlen(good[i])), 0);
        int length = tierce__lmcache_key_format(text, sizeof(text), &key);
        ck_assert_int_eq(length, (int)strlen(good[i]));
        ck_assert_str_eq(text, good[i]);
        size_t exact = (size_t)length;
        ck_assert_int_eq(tierce__lmcache_key_format(text, exact, &key), TIERCE_E_LIMIT);
        ck_assert_int_eq(tierce__lmcache_key_format(text, exact + 1, &key), length);
    }
}
END_TEST

START_TEST(what_lmcache_would_not_write_is_refused)
{
    static const char *const bad[] = {
        "",
        "@",
        "@@@@@@@@",
        "m@1@0@1",
        "m@1@0@1@",
        "@1@0@1@half",
        "m@@0@1@half",
        "m@01@0@1@half",
        "m@+1@0@1@half",
        "m@-1@0@1@half",
        "m@1 @0@1@half",
        "m@2147483648@0@1@half",
        "m@99999999999999999999@0@1@half",
        "m@1@x@1@half",
        "m@1@2147483648@1@half",
        "m@1@0@@half",
        "m@1@0@-@half",
        "m@1@0@-0@half",
        "m@1@0@-01@half",
        "m@1@0@0x1@half",
        "m@1@0@ABC@half",
        "m@1@0@001@half",
        "m@1@0@-10000000000000000@half",
        "m@1@0@" HASH "0@half",
        "m@1@0@1@float16",
        "m@1@0@1@Half",
        "m@1@0@1@half@",
        "m@1@0@1@half@07",
        "m@1@0@1@half@2147483648",
        "m@1@0@1@half@-1",
        "m@1@0@1@half@7@",
        "m@1@0@1@half@7@8",
        "m@1@0@1@half@tag",
        "m@1@0@1@half@%v",
        "m@1@0@1@half@a%b@",
        "m@1@0@1@half@a%b@@c%d",
        "m@1@0@1@half@a%\n",
        "m\n@1@0@1@half",
        "m\xff@1@0@1@half",
        "vllm@m@1@0@1@half",
    };
    struct tierce__lmcache_key key;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(parse_foreign(&key, bad[i], strlen(bad[i])), TIERCE_E_FORMAT);
    ck_assert_int_eq(parse_foreign(&key, "m\0@1@0@1@half", 13), TIERCE_E_FORMAT);
    ck_assert_int_eq(parse_foreign(&key, "m@1@0@1@half\0", 13), TIERCE_E_FORMAT);
    static char large[65536];
    memset(large, 'm', sizeof(large));
    memcpy(large + sizeof(large) - 11, "@1@0@1@half", 11);
    ck_assert_int_eq(parse_foreign(&key, large, sizeof(large)), TIERCE_E_FORMAT);
    ck_assert_int_eq(parse_foreign(&key, large + sizeof(large) - 4096, 4096), 0);
    ck_assert_int_eq(parse_foreign(&key, large + sizeof(large) - 4097, 4097), TIERCE_E_FORMAT);
}
END_TEST

static struct tierce__lmcache_key some_key(void)
{
    return (struct tierce__lmcache_key){
        .model = "m",
        .model_bytes = 1,
        .world_size = 1,
        .hash = tierce__lmcache_hash_of_int((struct tierce__lmcache_int){5, true}),
        .dtype = "half",
        .layer = -1,
    };
}

static void check_not_formatted(const struct tierce__lmcache_key *key)
{
    char text[64] = "as it was";
    ck_assert_int_eq(tierce__lmcache_key_format(text, sizeof(text), key), TIERCE_E_ARGUMENT);
    ck_assert_str_eq(text, "as it was");
}

START_TEST(bad_fields_are_not_formatted)
{
    struct tierce__lmcache_key key = some_key();
    char text[64];
    ck_assert_int_eq(tierce__lmcache_key_format(text, sizeof(text), &key), 13);
    ck_assert_str_eq(text, "m@1@0@-5@half");
    key.model = "a@b";
    key.model_bytes = 3;
    check_not_formatted(&key);
    key = some_key();
    key.model_bytes = 0;
    check_not_formatted(&key);
    key = some_key();
    key.worker_id = 1u << 31;
    check_not_formatted(&key);
    key = some_key();
    key.world_size = 1u << 31;
    check_not_formatted(&key);
    key = some_key();
    key.hash.digits = 0;
    check_not_formatted(&key);
    key.hash.digits = 65;
    check_not_formatted(&key);
    key.hash.digits = 1;
    key.hash.value[0] = 1;
    check_not_formatted(&key);
    key = some_key();
    key.dtype = "float16";
    check_not_formatted(&key);
    key.dtype = NULL;
    check_not_formatted(&key);
    key = some_key();
    key.layer = -2;
    check_not_formatted(&key);
    key = some_key();
    key.tags = "no";
    key.tags_bytes = 2;
    check_not_formatted(&key);
    key.tags = NULL;
    check_not_formatted(&key);
}
END_TEST

START_TEST(digests_print_in_full)
{
    struct tierce__lmcache_key key = some_key();
    char text[64];
    key.hash = (struct tierce__lmcache_hash){.digits = 16};
    key.hash.value[TIERCE_HASH_BYTES - 1] = 1;
    ck_assert_int_gt(tierce__lmcache_key_format(text, sizeof(text), &key), 0);
    ck_assert_str_eq(text, "m@1@0@0000000000000001@half");
    key.hash = tierce__lmcache_hash_of_int((struct tierce__lmcache_int){UINT64_MAX, false});
    ck_assert_int_gt(tierce__lmcache_key_format(text, sizeof(text), &key), 0);
    ck_assert_str_eq(text, "m@1@0@ffffffffffffffff@half");
}
END_TEST

CHECK_MAIN("key_text", .tests = {own_keys_round_trip, own_keys_like_another, own_keys_have_one_form,
                                 lmcache_keys_are_read_in_full, lmcache_keys_round_trip,
                                 what_lmcache_would_not_write_is_refused,
                                 bad_fields_are_not_formatted, digests_print_in_full})
