/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "store/remote/connector.h"

#include <string.h>

/* Arguments that tierce__connector_open rejects before it creates anything. */
static const struct {
    const char *url, *why;
} not_opened[] = {
    {"a-scheme-of-more-than-sixteen://bucket",
     "no connector for a-scheme-of-more://; there are redis, rediss, valkey, valkeys, tierce, "
     "file, "
     "nixl, lm, mooncake, s3, memcached, plugin, python, fleet, peers, transfer; some with +unix, "
     "+sentinel, +cluster, +tls, +nixl"},
    {"nothing", "a URL begins with a scheme and ://; there are redis, "},
    {"redis://h?tttl=1", "URL: unknown parameter \"tttl\" (\"ttl\"?); there are ttl, connections, "
                         "prefix, db, timeout_ms, ca_file, client_certificate, client_key, "
                         "wait_replicas, sentinel_user, sentinel_password"},
    {"redis://h?ttl=24", "URL: parameter ttl is \"24\"; accepted are 1s to 87600h"},
    {"redis://h?connections=1", "URL: parameter connections is \"1\"; accepted are 2 to 150"},
    {"redis://h?connections=151", "URL: parameter connections is \"151\"; accepted are 2 to 150"},
    {"redis://h/x", "URL: the database must be a number"},
    {"redis://u:hidden@h/x", "URL: the database must be a number"},
    {"redis://h?wait_replicas=1", "URL: wait_replicas requires a cluster, or a master"},
    {"redis://a,b", "URL: several hosts require redis+cluster:// or "},
    {"redis+sentinel://a,b",
     "URL: the URI requires the master's name after the sentinels: redis+sentinel://HOST/NAME"},
    {"redis+sentinel://a,b/",
     "URL: the URI requires the master's name after the sentinels: redis+sentinel://HOST/NAME"},
    {"redis+sentinel://a,b/m/x", "URL: the database must be a number"},
    {"valkey+cluster://a,b/1", "URL: a cluster has no databases"},
    {"rediss+sentinel://a/m?ca_file=/nowhere", "cannot load /nowhere: "},
    {"rediss://h?ca_file=/nowhere", "cannot load /nowhere: "},
    {"tierce://hidden@h/0", "URL: a node has no databases"},
    {"tierce://a,b", "URL: several hosts require redis+cluster:// or "},
    {"tierce://h?db=1", "URL: unknown parameter \"db\" (\"ttl\"?); there are ttl, connections, "
                        "prefix, timeout_ms, ca_file, client_certificate, client_key, tls"},
    {"tierce://h?wait_replicas=1", "URL: unknown parameter \"wait_replicas\""},
    {"tierce://h?tls=perhaps", "URL: parameter tls is \"perhaps\"; accepted are true and false"},
    {"tierce://h?tls=false&ca_file=/nowhere", "URL: tls=false cannot be combined with TLS files"},
    {"tierce://127.0.0.1?ca_file=/nowhere", "cannot load /nowhere: "},
    {"redis://h?tls=true", "URL: unknown parameter \"tls\""},
    {"file://host/a", "URL: a folder has no host: file:///folder"},
    {"file://u@/a", "URL: a folder has no host: file:///folder"},
    {"file:///", "URL: the path of the folder is missing: file:///folder"},
    {"file://", "URL: the path of the folder is missing: file:///folder"},
    {"file:///a?fanout=4", "URL: parameter fanout is \"4\"; accepted are 1 to 3"},
    {"file:///a?size=1KiB", "URL: parameter size is \"1KiB\"; accepted are 1MiB to 1024PiB"},
    {"file:///a?siz=1GiB", "URL: unknown parameter \"siz\" (\"size\"?); there are size, fanout, "
                           "sweep, connections"},
};

START_TEST(not_every_url_is_opened)
{
    struct tierce__connector *connector = NULL;
    char why[TIERCE__CONNECTOR_WHY_BYTES] = "";
    ck_assert_int_eq(
        tierce__connector_open(
            &connector, not_opened[_i].url,
            &(struct tierce__connector_opts){.size = sizeof(struct tierce__connector_opts)}, why),
        TIERCE_E_CONFIG);
    ck_assert_ptr_null(connector);
    ck_assert_msg(strncmp(why, not_opened[_i].why, strlen(not_opened[_i].why)) == 0, "%s", why);
}
END_TEST

/* The longest path of a folder has 1023 bytes; one more is rejected, and not an assertion. */
START_TEST(a_path_of_a_folder_that_is_too_long)
{
    char url[7 + 1024 + 1] = "file://", why[TIERCE__CONNECTOR_WHY_BYTES] = "";
    struct tierce__connector *connector = NULL;
    memset(url + 7, 'a', 1024);
    url[7] = '/';
    ck_assert_int_eq(
        tierce__connector_open(
            &connector, url,
            &(struct tierce__connector_opts){.size = sizeof(struct tierce__connector_opts)}, why),
        TIERCE_E_CONFIG);
    ck_assert_ptr_null(connector);
    ck_assert_str_eq(why, "URL: the path of the folder is longer than 1023 bytes");
}
END_TEST

CHECK_MAIN("open", .tests = {a_path_of_a_folder_that_is_too_long},
           .loops = {{not_every_url_is_opened, 0, sizeof(not_opened) / sizeof(*not_opened)}})
