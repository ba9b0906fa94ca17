/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "check_main.h"
#include "core/key/sha256.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Runs `body` with every implementation that this processor has. */
static void with_each_impl(void (*body)(void))
{
    const struct tierce__sha256_impl *impl;
    for (size_t i = 0; (impl = tierce__sha256_impl_at(i)) != NULL; i++) {
        tierce__sha256_impl_set(impl);
        ck_assert_ptr_eq(tierce__sha256_impl(), impl);
        body();
    }
    tierce__sha256_impl_set(NULL);
    ck_assert_ptr_eq(tierce__sha256_impl(), tierce__sha256_impl_at(0));
}

static void check_known(const char *message, size_t size, const char *expected)
{
    uint8_t digest[32];
    char text[65];
    tierce__sha256(digest, message, size);
    tierce__hex_encode(text, digest, 32);
    ck_assert_str_eq(text, expected);
}

/* The examples of FIPS 180. */
static void fips_examples(void)
{
    check_known("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_known("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_known("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    struct tierce__sha256 sha;
    uint8_t digest[32];
    char chunk[1000], text[65];
    memset(chunk, 'a', sizeof(chunk));
    tierce__sha256_init(&sha);
    for (int i = 0; i < 1000; i++)
        tierce__sha256_update(&sha, chunk, sizeof(chunk));
    tierce__sha256_final(&sha, digest);
    tierce__hex_encode(text, digest, 32);
    ck_assert_str_eq(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

START_TEST(the_examples_of_the_standard)
{
    with_each_impl(fips_examples);
}
END_TEST

static void lengths_as_openssl(void)
{
    uint8_t message[301], own[32], theirs[32];
    for (size_t i = 0; i < sizeof(message); i++)
        message[i] = (uint8_t)(i * 167 + 13);
    for (size_t size = 0; size <= 300; size++) {
        ck_assert_int_eq(EVP_Digest(message, size, theirs, NULL, EVP_sha256(), NULL), 1);
        tierce__sha256(own, message, size);
        ck_assert_mem_eq(own, theirs, 32);
        /* The same in two steps, cut everywhere. */
        for (size_t cut = 0; cut <= size; cut += 7) {
            struct tierce__sha256 sha;
            tierce__sha256_init(&sha);
            tierce__sha256_update(&sha, message, cut);
            tierce__sha256_update(&sha, message + cut, size - cut);
            tierce__sha256_final(&sha, own);
            ck_assert_mem_eq(own, theirs, 32);
        }
    }
}

START_TEST(every_length_as_openssl)
{
    with_each_impl(lengths_as_openssl);
}
END_TEST

static void two_as_one(void)
{
    const struct tierce__sha256_impl *impl = tierce__sha256_impl();
    uint8_t data[2][64];
    uint32_t together[2][8], alone[2][8];
    for (size_t i = 0; i < 64; i++) {
        data[0][i] = (uint8_t)(3 * i + 1);
        data[1][i] = (uint8_t)(5 * i + 2);
    }
    for (int i = 0; i < 2; i++) {
        memcpy(together[i], tierce__sha256_start, 32);
        memcpy(alone[i], tierce__sha256_start, 32);
        together[i][0] += (uint32_t)i;
        alone[i][0] += (uint32_t)i;
        impl->compress(alone[i], data[i], 1);
    }
    impl->compress_two(together[0], data[0], together[1], data[1]);
    ck_assert_mem_eq(together, alone, sizeof(alone));
}

START_TEST(two_side_by_side_are_as_each_alone)
{
    with_each_impl(two_as_one);
}
END_TEST

START_TEST(the_last_part_is_padded)
{
    uint8_t tail[128];
    ck_assert_uint_eq(tierce__sha256_pad(tail, 55, 55), 1);
    ck_assert_uint_eq(tail[55], 0x80);
    ck_assert_uint_eq(tail[62], 440 >> 8);
    ck_assert_uint_eq(tail[63], 440 & 0xff);
    ck_assert_uint_eq(tierce__sha256_pad(tail, 56, 56), 2);
    ck_assert_uint_eq(tierce__sha256_pad(tail, 119, 119), 2);
}
END_TEST

#if defined(__x86_64__)
/* The hash uses the processor features that the kernel reports. */
START_TEST(the_fast_path_is_used_where_it_runs)
{
    char line[8192];
    bool has_sha = false;
    FILE *f = fopen("/proc/cpuinfo", "r");
    ck_assert_ptr_nonnull(f);
    while (!has_sha && fgets(line, sizeof(line), f) != NULL)
        has_sha = strstr(line, " sha_ni") != NULL;
    fclose(f);
    ck_assert_str_eq(tierce__sha256_impl()->name, has_sha ? "x86-sha" : "portable");
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("sha256");
    TCase *t = tcase_create("sha256");
    tcase_add_test(t, the_examples_of_the_standard);
    tcase_add_test(t, every_length_as_openssl);
    tcase_add_test(t, two_side_by_side_are_as_each_alone);
    tcase_add_test(t, the_last_part_is_padded);
#if defined(__x86_64__)
    tcase_add_test(t, the_fast_path_is_used_where_it_runs);
#endif
    suite_add_tcase(suite, t);
    return check_main(suite);
}
