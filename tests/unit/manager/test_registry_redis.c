/* SPDX-License-Identifier: Apache-2.0 */
/* Registries and storages in a real Redis: KVCM's layout, fencing, and servers that go away. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "manager/api/account.h"
#include "manager/registry/registry.h"
#include "manager/storage/storages.h"
#include "redis_server.h"
#include "wait_for.h"
#include "net/redis/resp_client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct redis_server server;
static struct tierce__registry *registry;
static struct tierce__resp *resp;
static struct tierce__resp_value value;
static char uri[96], why[256];

#define PREFIX "kvcache_registry:c1:"

static struct tierce__registry *open_one(void)
{
    struct tierce__registry *one = NULL;
    struct tierce__registry_opts opts = {.size = sizeof(opts), .uri = uri};
    ck_assert_msg(tierce__registry_open(&one, &opts, why) == 0, "%s", why);
    return one;
}

static void load(struct tierce__registry *one, uint64_t fence)
{
    ck_assert_msg(tierce__registry_load(one, fence, why) == 0, "%s", why);
}

static void connect_again(void)
{
    struct tierce__resp_opts opts = {.size = sizeof(opts),
                                     .host = "127.0.0.1",
                                     .port = server.port,
                                     .connect_timeout_ms = 60000,
                                     .call_timeout_ms = 60000};
    tierce__resp_close(resp);
    resp = NULL;
    ck_assert_msg(tierce__resp_open(&resp, &opts, why) == 0, "%s", why);
}

static void set_uri(unsigned timeout_ms)
{
    snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u?cluster_name=c1&timeout_ms=%u",
             (unsigned)server.port, timeout_ms);
}

static void set_up(void)
{
    ck_assert(redis_start(&server, NULL));
    set_uri(60000);
    registry = open_one();
    connect_again();
}

static void tear_down(void)
{
    tierce__registry_close(registry);
    tierce__resp_close(resp);
    redis_stop(&server);
}

/* One command, its words up to a NULL. */
static void command(const char *const *words)
{
    size_t bytes[8], count = 0;
    for (; words[count] != NULL; count++)
        bytes[count] = strlen(words[count]);
    ck_assert_int_eq(tierce__resp_call(resp, words, bytes, count, &value, 0), 0);
    ck_assert_msg(value.type != TIERCE__RESP_ERROR, "%s", value.text);
}
#define REDIS(...) command((const char *const[]){__VA_ARGS__, NULL})

static int add_storage(char *name)
{
    struct tierce__storage storage = {.name = name,
                                      .type = TIERCE__STORAGE_NFS,
                                      .is_enabled = true,
                                      .root_path = "/tmp/nfs/",
                                      .key_count_per_file = 8};
    return tierce__registry_add_storage(registry, &storage, why);
}

static int add_instance(char *id)
{
    struct tierce__spec_info specs[] = {{"tp0", 1024}};
    struct tierce__instance instance = {
        .id = id, .group_name = "g", .block_size = 64, .specs = specs, .spec_count = 1};
    return tierce__registry_add_instance(registry, &instance, why);
}

static void fill(void)
{
    char *storage = "a";
    struct tierce__group group = {
        .name = "g", .storage_candidates = &storage, .storage_candidate_count = 1, .version = 1};
    ck_assert_msg(add_storage("a") == 0, "%s", why);
    ck_assert_int_eq(tierce__registry_add_group(registry, &group, why), 0);
    ck_assert_int_eq(add_instance("i"), 0);
    ck_assert_int_eq(tierce__registry_add_account(registry, "u", "pw", TIERCE__ROLE_ADMIN, why), 0);
}

static char *snapshot(struct tierce__registry *one)
{
    char *text = NULL;
    ck_assert_int_eq(tierce__registry_snapshot(one, &text), 0);
    return text;
}

static void check_same(char *before, char *after)
{
    ck_assert_str_eq(before, after);
    tierce__free(before);
    tierce__free(after);
}

/* The content that another manager finds there. */
static char *stored(void)
{
    struct tierce__registry *other = open_one();
    load(other, 0);
    char *text = snapshot(other);
    tierce__registry_close(other);
    return text;
}

START_TEST(test_all_of_it_comes_back)
{
    load(registry, 0);
    fill();
    check_same(snapshot(registry), stored());
    ck_assert_int_eq(tierce__registry_remove_account(registry, "u", why), 0);
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "i", why), 0);
    ck_assert_int_eq(tierce__registry_enable_storage(registry, "a", false, why), 0);
    check_same(snapshot(registry), stored());
    REDIS("EXISTS", PREFIX "i", PREFIX "instance", PREFIX "account");
    ck_assert_int_eq(value.integer, 0);
}
END_TEST

START_TEST(test_generations)
{
    const struct tierce__namespace_choice all = {.instance_id = "i", .group = "", .family = ""};
    load(registry, 0);
    fill();
    REDIS("HMGET", "kvcache_registry_tierce:c1", "format", "generation_floor");
    ck_assert_str_eq(value.items[0].text, "1");
    ck_assert_str_eq(value.items[1].text, "0");
    ck_assert_int_eq(tierce__registry_invalidate(registry, &all, why), 0);
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "i", why), 0);
    check_same(snapshot(registry), stored());
    REDIS("HMGET", "kvcache_registry_tierce:c1", "format", "generation_floor");
    ck_assert_str_eq(value.items[0].text, "2");
    ck_assert_str_eq(value.items[1].text, "2");
    REDIS("HSET", "kvcache_registry_tierce:c1", "generation_floor", "2x");
    ck_assert_int_eq(tierce__registry_load(registry, 0, why), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, "generation_floor"));
    REDIS("HDEL", "kvcache_registry_tierce:c1", "generation_floor"); /* an older manager wrote */
    load(registry, 0);
}
END_TEST

START_TEST(test_the_layout_is_that_of_kvcm)
{
    load(registry, 0);
    fill();
    REDIS("HGET", PREFIX "storage", "a");
    ck_assert_str_eq(value.text,
                     "{\"type\":\"file\",\"is_available\":true,\"global_unique_name\":\"a\","
                     "\"storage_spec\":{\"root_path\":\"/tmp/nfs/\",\"key_count_per_file\":8},"
                     "\"number\":1}");
    REDIS("HGET", PREFIX "instance", "i");
    ck_assert_str_eq(value.text, "i");
    REDIS("HGET", PREFIX "i", "i");
    ck_assert_ptr_nonnull(strstr(value.text, "\"instance_id\":\"i\""));
    REDIS("HGET", PREFIX "instance_group", "g");
    ck_assert_ptr_nonnull(strstr(value.text, "\"storage_candidates\":[\"a\"]"));
    REDIS("HGET", PREFIX "account", "u");
    ck_assert_ptr_null(strstr(value.text, "pw"));
    char *names[] = {"storage", "instance", "instance_group", "account"};
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(add_instance(names[i]), TIERCE_E_ARGUMENT);
}
END_TEST

START_TEST(test_what_kvcm_left_gets_numbers)
{
    REDIS("HSET", PREFIX "storage", "s",
          "{\"type\":\"file\",\"is_available\":true,\"global_unique_name\":\"s\","
          "\"storage_spec\":{\"root_path\":\"/tmp/nfs/\",\"key_count_per_file\":8}}");
    REDIS("HSET", PREFIX "instance_group", "g", "{\"name\":\"g\",\"storage_candidates\":[\"s\"]}");
    REDIS("HSET", PREFIX "instance", "i", "i");
    REDIS("HSET", PREFIX "i", "i",
          "{\"instance_id\":\"i\",\"instance_group_name\":\"g\",\"block_size\":64}");
    REDIS("HSET", PREFIX "account", "u", "{\"user_name\":\"u\",\"role\":1,\"password\":\"plain\"}");
    load(registry, 5);
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    ck_assert_uint_eq(tierce__catalog_storage(catalog, "s")->number, 1);
    ck_assert_uint_eq(tierce__catalog_instance(catalog, "i")->number, 1);
    const struct tierce__account *account = tierce__catalog_account(catalog, "u");
    ck_assert(tierce__password_is(account->password_hash, "plain"));
    tierce__registry_release(registry, catalog);
    /* Durable, and no password lies there any more. */
    check_same(snapshot(registry), stored());
    REDIS("HGET", PREFIX "account", "u");
    ck_assert_ptr_null(strstr(value.text, "plain"));
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "i", why), 0);
    ck_assert_int_eq(tierce__registry_remove_group(registry, "g", why), 0);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "s", why), 0);
    load(registry, 5);
    ck_assert_int_eq(add_storage("s"), 0);
    catalog = tierce__registry_acquire(registry);
    ck_assert_uint_eq(tierce__catalog_storage(catalog, "s")->number, 2);
    tierce__registry_release(registry, catalog);
}
END_TEST

/* Redis took no writes when it was elected. */
START_TEST(test_a_leader_without_a_token_writes_nothing)
{
    struct tierce__registry *newer = open_one();
    load(registry, 0);
    fill(); /* nobody has a token */
    load(newer, 1795000000000001);
    ck_assert_int_eq(add_storage("b"), TIERCE_E_REFUSED);
    ck_assert_msg(strstr(why, "this manager has no token") != NULL, "%s", why);
    tierce__registry_drop(registry);
    load(registry, 0); /* it reads */
    ck_assert_int_eq(add_storage("b"), TIERCE_E_REFUSED);
    tierce__registry_drop(registry);
    load(registry, 1795000000000002);
    ck_assert_int_eq(add_storage("b"), 0);
    tierce__registry_close(newer);
}
END_TEST

START_TEST(test_an_older_leader_is_refused)
{
    struct tierce__registry *newer = open_one(), *older = registry;
    load(older, 1795000000000000);
    fill();
    load(newer, 1795000000000001);
    ck_assert_int_eq(add_storage("b"), TIERCE_E_REFUSED);
    ck_assert_ptr_nonnull(strstr(why, "1795000000000001"));
    ck_assert_int_eq(tierce__registry_load(older, 1795000000000000, why), TIERCE_E_REFUSED);
    registry = newer;
    ck_assert_int_eq(add_storage("b"), 0);
    check_same(snapshot(newer), stored());
    tierce__registry_close(older);
}
END_TEST

START_TEST(test_damaged_content_is_refused)
{
    load(registry, 0);
    fill();
    char *before = snapshot(registry);
    REDIS("HSET", PREFIX "storage", "x", "{\"type\":7}");
    ck_assert_int_eq(tierce__registry_load(registry, 0, why), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, PREFIX "storage"));
    REDIS("HDEL", PREFIX "storage", "x");
    REDIS("HSET", PREFIX "instance", "x", "x"); /* without what belongs to it */
    ck_assert_int_eq(tierce__registry_load(registry, 0, why), TIERCE_E_FORMAT);
    REDIS("HDEL", PREFIX "instance", "x");
    REDIS("HSET", "kvcache_registry_tierce:c1", "next_storage", "many");
    ck_assert_int_eq(tierce__registry_load(registry, 0, why), TIERCE_E_FORMAT);
    REDIS("HSET", "kvcache_registry_tierce:c1", "next_storage", "2", "format", "3");
    ck_assert_int_eq(tierce__registry_load(registry, 0, why), TIERCE_E_VERSION);
    REDIS("HSET", "kvcache_registry_tierce:c1", "format", "1");
    load(registry, 0);
    check_same(before, snapshot(registry));
    REDIS("SET", "kvcache_registry:c2:storage", "not a hash");
    strstr(uri, "c1")[1] = '2';
    struct tierce__registry *other = open_one();
    ck_assert_int_eq(tierce__registry_load(other, 0, why), -EPROTO);
    tierce__registry_close(other);
}
END_TEST

START_TEST(test_the_server_goes_away)
{
    load(registry, 0);
    fill();
    char *before = snapshot(registry);
    redis_kill(&server);
    ck_assert_int_lt(add_storage("b"), 0);
    ck_assert_int_ne(strlen(why), 0);
    check_same(before, snapshot(registry)); /* nothing has changed here */
    /* It comes back with nothing at all; all of it is written again with the next change. */
    ck_assert(redis_run(&server, false, NULL));
    uint64_t until_ns = tierce__deadline_in_ms(20000);
    while (add_storage("c") != 0 && tierce__now_ns() < until_ns)
        usleep(10000);
    check_same(snapshot(registry), stored());
    connect_again();
    REDIS("HLEN", PREFIX "storage");
    ck_assert_int_eq(value.integer, 2);
}
END_TEST

/* It executed the request, and the answer was lost. */
START_TEST(test_an_answer_is_lost)
{
    struct tierce__registry *hasty, *patient = registry;
    load(patient, 0);
    fill();
    set_uri(2000);
    hasty = registry = open_one();
    set_uri(60000);
    load(hasty, 0);
    ck_assert_int_eq(kill(server.pid, SIGSTOP), 0);
    ck_assert_int_lt(add_storage("b"), 0);
    ck_assert_int_eq(kill(server.pid, SIGCONT), 0);
    uint64_t until_ns = tierce__deadline_in_ms(20000);
    while (add_storage("c") != 0 && tierce__now_ns() < until_ns)
        usleep(10000);
    check_same(snapshot(hasty), stored());
    REDIS("HEXISTS", PREFIX "storage", "b");
    ck_assert_int_eq(value.integer, 0);
    tierce__registry_close(patient);
}
END_TEST

START_TEST(test_torture_allocations)
{
    load(registry, 0);
    fill();
    char *before = snapshot(registry);
    int rc = -ENOMEM;
    for (uint64_t nth = 1; rc != 0; nth++) {
        ck_assert_uint_lt(nth, 1000);
        tierce__alloc_fail_nth(nth);
        rc = add_storage("b");
        tierce__alloc_fail_nth(0);
        if (rc != 0) {
            ck_assert_int_lt(rc, 0);
            char *copy = strdup(before), *now = snapshot(registry), *there = stored();
            ck_assert_str_eq(copy, now);
            ck_assert_str_eq(copy, there);
            free(copy);
            tierce__free(now);
            tierce__free(there);
        }
    }
    tierce__free(before);
}
END_TEST

START_TEST(test_uris_that_are_refused)
{
    static const char *const uris[] = {
        "redis://127.0.0.1:1", "redis://h/?cluster_name=", "redis://h?cluster_name=c&cluster=true",
        "redis://h:99999?cluster_name=c"};
    struct tierce__registry *one = NULL;
    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
        struct tierce__registry_opts opts = {.size = sizeof(opts), .uri = uris[i]};
        ck_assert_int_eq(tierce__registry_open(&one, &opts, why), TIERCE_E_CONFIG);
    }
}
END_TEST

/* ---- a storage ------------------------------------------------------------------------------- */

static struct tierce__storage_state state_of(struct tierce__storages *storages)
{
    struct tierce__storage_state state;
    tierce__storages_state(storages, "r", &state);
    return state;
}

static bool is_marked(void)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    bool is = tierce__catalog_storage(catalog, "r")->is_marked;
    tierce__registry_release(registry, catalog);
    return is;
}

START_TEST(test_a_storage_in_redis)
{
    struct tierce__storages *storages = NULL;
    char at[64];
    snprintf(at, sizeof(at), "redis://127.0.0.1:%u/3?timeout_ms=60000", (unsigned)server.port);
    struct tierce__storage storage = {
        .number = 1, .name = "r", .type = TIERCE__STORAGE_REDIS, .is_enabled = true, .uri = at};
    const char *paths[] = {"/i/tp0/0001", "/i/tp0/none", "/", "x"};
    int status[4];
    load(registry, 0);
    ck_assert_int_eq(tierce__registry_add_storage(registry, &storage, why), 0);
    struct tierce__storages_opts opts = {.size = sizeof(opts),
                                         .registry = registry,
                                         .probe_interval_ms = 20,
                                         .probe_timeout_ms = 60000};
    ck_assert_int_eq(tierce__storages_open(&storages, &opts), 0);
    WAIT_FOR(state_of(storages).is_probed);
    ck_assert(state_of(storages).is_well);
    REDIS("SELECT", "3");
    WAIT_FOR(is_marked());
    REDIS("STRLEN", "~tierce-pool");
    ck_assert_int_eq(value.integer, TIERCE__STORAGE_MARK_BYTES);
    REDIS("SET", "i/tp0/0001", "bytes");
    ck_assert_int_eq(tierce__storages_delete(storages, &storage, paths, 4, status), 0);
    ck_assert_int_eq(status[0], 0);
    ck_assert_int_eq(status[1], 0);
    ck_assert_int_eq(status[2], TIERCE_E_ARGUMENT);
    ck_assert_int_eq(status[3], TIERCE_E_ARGUMENT);
    REDIS("EXISTS", "i/tp0/0001");
    ck_assert_int_eq(value.integer, 0);
    redis_kill(&server);
    WAIT_FOR(!state_of(storages).is_well);
    ck_assert_int_ne(strlen(state_of(storages).why), 0);
    ck_assert(redis_run(
        &server, false,
        (const char *[]){"--maxmemory", "1000000000", "--maxmemory-policy", "noeviction", NULL}));
    WAIT_FOR(state_of(storages).is_well);
    WAIT_FOR(state_of(storages).used_share > 0 && state_of(storages).used_share < 1);
    /* It has lost everything, and is marked again. */
    connect_again();
    REDIS("SELECT", "3");
    REDIS("STRLEN", "~tierce-pool");
    ck_assert_int_eq(value.integer, TIERCE__STORAGE_MARK_BYTES);
    REDIS("SET", "~tierce-pool", "tierce-pool 1 0123456789abcdef0123456789abcdef\n");
    WAIT_FOR(!state_of(storages).is_well);
    ck_assert_ptr_nonnull(strstr(state_of(storages).why, "0123456789abcdef0123456789abcdef"));
    REDIS("SET", "~tierce-pool", "");
    WAIT_FOR(strstr(state_of(storages).why, "is not a mark") != NULL);
    REDIS("DEL", "~tierce-pool");
    WAIT_FOR(state_of(storages).is_well);
    /* Full: it cannot be written. */
    connect_again();
    REDIS("CONFIG", "SET", "maxmemory", "1");
    WAIT_FOR(!state_of(storages).is_well);
    ck_assert_ptr_nonnull(strstr(state_of(storages).why, "OOM"));
    tierce__storages_close(storages);
}
END_TEST

START_TEST(test_a_storage_with_a_bad_uri)
{
    struct tierce__storages *storages = NULL;
    struct tierce__storage storage = {.number = 1,
                                      .name = "r",
                                      .type = TIERCE__STORAGE_REDIS,
                                      .is_enabled = true,
                                      .uri = "redis://h:99999"};
    const char *path = "/x";
    int status = 0;
    load(registry, 0);
    ck_assert_int_eq(tierce__registry_add_storage(registry, &storage, why), 0);
    struct tierce__storages_opts opts = {
        .size = sizeof(opts), .registry = registry, .probe_interval_ms = 20};
    ck_assert_int_eq(tierce__storages_open(&storages, &opts), 0);
    WAIT_FOR(!state_of(storages).is_well);
    ck_assert_int_eq(tierce__storages_delete(storages, &storage, &path, 1, &status),
                     TIERCE_E_CONFIG);
    tierce__storages_close(storages);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("registry_redis");
    TCase *tcase = tcase_create("redis");
    if (!redis_is_there())
        return 77;
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, test_all_of_it_comes_back);
    tcase_add_test(tcase, test_generations);
    tcase_add_test(tcase, test_the_layout_is_that_of_kvcm);
    tcase_add_test(tcase, test_what_kvcm_left_gets_numbers);
    tcase_add_test(tcase, test_an_older_leader_is_refused);
    tcase_add_test(tcase, test_a_leader_without_a_token_writes_nothing);
    tcase_add_test(tcase, test_damaged_content_is_refused);
    tcase_add_test(tcase, test_the_server_goes_away);
    tcase_add_test(tcase, test_an_answer_is_lost);
    tcase_add_test(tcase, test_torture_allocations);
    tcase_add_test(tcase, test_uris_that_are_refused);
    tcase_add_test(tcase, test_a_storage_in_redis);
    tcase_add_test(tcase, test_a_storage_with_a_bad_uri);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
