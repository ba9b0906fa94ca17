/* SPDX-License-Identifier: Apache-2.0 */
/* The URL of a storage's connector, and the names there. */
#include "base/alloc.h"
#include "base/text/url.h"
#include "check_main.h"
#include "store/remote/fleet/storage_at.h"

static char why[TIERCE__STORAGE_WHY_BYTES];

static void expect_url(const struct tierce__storage_at *at, const char *expected)
{
    char *url = NULL;
    int rc = tierce__storage_at_url(&url, at, why);
    ck_assert_msg(rc == 0, "%s: %s", expected, why);
    ck_assert_str_eq(url, expected);
    tierce__free(url);
}

static void expect_refused(const struct tierce__storage_at *at, int status, const char *words)
{
    char *url = NULL;
    why[0] = '\0';
    ck_assert_int_eq(tierce__storage_at_url(&url, at, why), status);
    ck_assert_ptr_null(url);
    ck_assert_msg(strstr(why, words) != NULL, "%s", why);
}

START_TEST(urls_of_files)
{
    char *root;
    const struct tierce__storage_at nfs = {.type = "file", .root_path = "/mnt//kv"},
                                    fs = {.type = "hf3fs",
                                          .mountpoint = "/3fs/",
                                          .root_dir = "/a/"},
                                    vcns = {.type = "vcns_hf3fs", .mountpoint = "/3fs"},
                                    odd = {.type = "file",
                                           .root_path = "/a b%2e?names=x&#@\xff,[:"};
    expect_url(&nfs, "file:///mnt/kv/?names=path");
    expect_url(&fs, "file:///3fs/a/?names=path");
    expect_url(&vcns, "file:///3fs/?names=path");
    expect_url(&odd, "file:///a%20b%252e%3Fnames%3Dx%26%23%40%FF%2C%5B:/?names=path");
    root = tierce__storage_at_root(&fs);
    ck_assert_str_eq(root, "/3fs/a/");
    tierce__free(root);
    root =
        tierce__storage_at_root(&(struct tierce__storage_at){.type = "redis", .root_path = "/a"});
    ck_assert_str_eq(root, "/");
    tierce__free(root);
}
END_TEST

START_TEST(roots_that_are_none)
{
    static const char *const bad[] = {NULL, "", "kv", "/", "//", "/a/../b", "/..", "/./a", "/a/."};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        expect_refused(&(struct tierce__storage_at){.type = "file", .root_path = bad[i]},
                       TIERCE_E_CONFIG, "root");
        expect_refused(&(struct tierce__storage_at){.type = "hf3fs", .mountpoint = bad[i]},
                       TIERCE_E_CONFIG, "");
    }
    expect_refused(
        &(struct tierce__storage_at){.type = "hf3fs", .mountpoint = "/3fs", .root_dir = "../etc"},
        TIERCE_E_CONFIG, "root folder");
    expect_refused(&(struct tierce__storage_at){.type = "hf3fs", .root_dir = "/a"}, TIERCE_E_CONFIG,
                   "mountpoint");
}
END_TEST

START_TEST(urls_of_redis)
{
    static const char *const uris[][2] = {
        {"redis://h:6379/1", "redis://h:6379/1"},
        {"redis://h", "redis://h"},
        {"redis://h?key_prefix=a%26b%3D&credentials_file=/etc/x",
         "redis://h?prefix=a%26b%3D&credentials_file=/etc/x"},
        {"redis://h,i:2?cluster=1&key_prefix=kv:", "redis+cluster://h,i:2?prefix=kv:"},
        {"rediss://h?timeout_ms=5&cluster=true", "rediss+cluster://h?timeout_ms=5"},
        {"valkeys://h?cluster=0", "valkeys://h"},
        {"redis-cluster://u:p@h?client_max_pool_size=4&wait_replicas=1",
         "redis+cluster://u:p@h?wait_replicas=1"},
        {"redis+sentinel://h,i/m/0?wait_replicas=1", "redis+sentinel://h,i/m/0?wait_replicas=1"},
        {"unix:///run/redis.sock?db=1", "redis+unix:///run/redis.sock?db=1"},
        {"redis://h?&&db=1&", "redis://h?db=1"},
    };
    static const char *const bad[] = {
        "",       "redis", "h:6379",     "file:///etc", "plugin:///tmp/x.so", "s3://bucket",
        "redis:", "://h",  "redisx://h", "lm://h:1"};
    for (size_t i = 0; i < sizeof(uris) / sizeof(*uris); i++)
        expect_url(&(struct tierce__storage_at){.type = "redis", .uri = uris[i][0]}, uris[i][1]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        expect_refused(&(struct tierce__storage_at){.type = "redis", .uri = bad[i]},
                       TIERCE_E_CONFIG, "uri must begin");
    expect_refused(&(struct tierce__storage_at){.type = "redis"}, TIERCE_E_CONFIG, "uri");
    expect_refused(&(struct tierce__storage_at){.type = "redis", .uri = "unix:///s?cluster=1"},
                   TIERCE_E_CONFIG, "cluster");
}
END_TEST

START_TEST(urls_of_other_types)
{
    expect_url(&(struct tierce__storage_at){.type = "s3", .uri = "s3://b/p?region=r"},
               "s3://b/p?region=r&names=path");
    expect_url(&(struct tierce__storage_at){.type = "s3", .uri = "s3://b"}, "s3://b?names=path");
    expect_refused(&(struct tierce__storage_at){.type = "s3", .uri = "redis://h"}, TIERCE_E_CONFIG,
                   "s3://");
    expect_url(&(struct tierce__storage_at){.type = "mooncake",
                                            .master = "[::1]:50051",
                                            .metadata = "http://h:1/m?a=b&c",
                                            .protocol = "rdma",
                                            .device = "mlx5_0,mlx5_1"},
               "mooncake://[::1]:50051?metadata=http://h:1/m%3Fa%3Db%26c&protocol=rdma&"
               "device=mlx5_0%2Cmlx5_1");
    expect_url(&(struct tierce__storage_at){.type = "mooncake", .master = "m"}, "mooncake://m");
    expect_url(
        &(struct tierce__storage_at){.type = "mooncake", .master = "m", .python = "/a b&c/python"},
        "mooncake://m?python=/a%20b%26c/python");
    static const char *const masters[] = {"", "m?python=/tmp/x", "m/x", "m&a", "u@m", "m m", "m,n"};
    for (size_t i = 0; i < sizeof(masters) / sizeof(*masters); i++)
        expect_refused(&(struct tierce__storage_at){.type = "mooncake", .master = masters[i]},
                       TIERCE_E_CONFIG, "master_server_entry");
    expect_url(&(struct tierce__storage_at){.type = "tierce",
                                            .uri = "transfer://[::1]:1/memory?token_file=/a"},
               "transfer://[::1]:1/memory?token_file=/a");
    expect_refused(&(struct tierce__storage_at){.type = "tierce", .uri = "tierce://p"},
                   TIERCE_E_CONFIG, "transfer://");
    expect_refused(&(struct tierce__storage_at){.type = "pace"}, TIERCE_E_UNSUPPORTED,
                   "TairMemPool");
    expect_refused(&(struct tierce__storage_at){.type = "dummy"}, TIERCE_E_UNSUPPORTED, "dummy");
    expect_refused(&(struct tierce__storage_at){.type = NULL}, TIERCE_E_UNSUPPORTED, "type");
}
END_TEST

/* Whatever the texts are, the URL is one of the type's scheme without further parameters. */
START_TEST(nothing_is_smuggled_in)
{
    static const char *const texts[] = {
        "/a?size=1GiB", "/a#b", "/a@b",   "/a&fanout=1", "/a%3Fx",
        "/a%00b",       "/\n",  "/a//?b", "/%",          "/a?names=escaped"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        struct tierce__url parsed = {0};
        char *url = NULL, text[TIERCE__URL_WHY_BYTES];
        const struct tierce__storage_at at = {.type = "file", .root_path = texts[i]};
        ck_assert_int_eq(tierce__storage_at_url(&url, &at, why), 0);
        if (tierce__url_parse(&parsed, url, text) == 0) {
            char *root = tierce__storage_at_root(&at);
            ck_assert_str_eq(parsed.scheme, "file");
            ck_assert_str_eq(parsed.path, root);
            ck_assert_uint_eq(parsed.param_count, 1);
            ck_assert_uint_eq(parsed.host_count, 0);
            tierce__free(root);
        }
        tierce__url_clear(&parsed);
        tierce__free(url);
    }
}
END_TEST

START_TEST(names)
{
    ck_assert_str_eq(tierce__storage_at_name("/i/tp0/1f", "/"), "i/tp0/1f");
    ck_assert_str_eq(tierce__storage_at_name("/mnt/kv/i/1f", "/mnt/kv/"), "i/1f");
    static const char *const bad[] = {"",
                                      "/mnt/kv",
                                      "/mnt/kv/",
                                      "/mnt/kvx/a",
                                      "/mnt/kv/..",
                                      "/mnt/kv/a/..",
                                      "/mnt/kv//a",
                                      "/mnt/kv/./a",
                                      "mnt/kv/a",
                                      "/mnt/a",
                                      "/mnt/kv/a/../../../etc"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ck_assert_msg(tierce__storage_at_name(bad[i], "/mnt/kv/") == NULL, "%s", bad[i]);
}
END_TEST

START_TEST(credentials_are_hidden)
{
    static const char *const uris[][2] = {
        {"redis://h:1/0?db=1", "redis://h:1/0?db=1"},
        {"redis://u:p@h:1?db=1", "redis://h:1?db=1"},
        {"redis://p@h", "redis://h"},
        {"redis://u:p?@/&@w@h?db=1", "redis://h?db=1"},
        {"s3://a:b%40@bucket/p?region=r", "s3://bucket/p?region=r"},
        {"redis+sentinel://h/m?sentinel_user=u&sentinel_password=p&db=1",
         "redis+sentinel://h/m?sentinel_user=u&db=1"},
        {"redis://h?PASSWORD=p", "redis://h"},
        {"redis+unix:///run/a@b?db=1", "redis+unix:///run/a@b?db=1"},
        {"", ""},
        {"no uri", "no uri"},
        {"redis://", "redis://"},
    };
    for (size_t i = 0; i < sizeof(uris) / sizeof(*uris); i++) {
        char text[128];
        snprintf(text, sizeof(text), "%s", uris[i][0]);
        tierce__storage_at_hide(text);
        ck_assert_str_eq(text, uris[i][1]);
    }
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    const struct tierce__storage_at all[] = {{.type = "file", .root_path = "/mnt/kv"},
                                             {.type = "redis", .uri = "redis://h?key_prefix=a"},
                                             {.type = "s3", .uri = "s3://b"},
                                             {.type = "mooncake", .master = "m", .device = "d"}};
    uint64_t live = tierce__alloc_live();
    for (size_t i = 0; i < 4; i++) {
        int rc = -ENOMEM;
        for (uint64_t nth = 1; rc != 0; nth++) {
            char *url = NULL;
            tierce__alloc_fail_nth(nth);
            rc = tierce__storage_at_url(&url, &all[i], why);
            tierce__alloc_fail_nth(0);
            ck_assert(rc == 0 || (rc == -ENOMEM && url == NULL));
            tierce__free(url);
            ck_assert_uint_eq(tierce__alloc_live(), live);
        }
    }
}
END_TEST

CHECK_MAIN("storage at", .seconds = 30,
           .tests = {urls_of_files, roots_that_are_none, urls_of_redis, urls_of_other_types,
                     nothing_is_smuggled_in, names, credentials_are_hidden,
                     each_allocation_fails_once})
