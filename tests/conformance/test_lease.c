/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of lease: one holder at a time, tokens rise, and a holder that lost it is notified. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "etcd_server.h"
#include "redis_server.h"
#include "manager/lease/lease.h"
#include "net/redis/resp_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MEMORY, IN_FILE, IN_REDIS, IN_REGISTRY, IN_ETCD, PLACES };
enum { LONG_MS = 60000, TIMEOUT_MS = 60000 };

static int place;
static char uri[128], why[256], folder[64];
static struct redis_server redis;
static struct etcd_server etcd;
static struct tierce__lease *a, *b;
static char other[TIERCE__LEASE_HOLDER_BYTES];

static struct tierce__lease *open_lease(const char *holder)
{
    struct tierce__lease *lease = NULL;
    const struct tierce__lease_ops *ops = tierce__lease_find(uri);
    ck_assert_ptr_nonnull(ops);
    ck_assert_msg(ops->open(&lease, uri, holder, TIMEOUT_MS, why) == 0, "%s", why);
    return lease;
}

static void set_up(void)
{
    switch (place) {
    case MEMORY:
        snprintf(uri, sizeof(uri), "memory://conformance");
        break;
    case IN_FILE:
        snprintf(folder, sizeof(folder), "/tmp/tierce-test-lease-XXXXXX");
        temp_folder_make(folder);
        snprintf(uri, sizeof(uri), "file://%s", folder);
        break;
    case IN_REDIS:
        ck_assert(redis_start(&redis, NULL));
        snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u", (unsigned)redis.port);
        break;
    case IN_REGISTRY:
        ck_assert(redis_start(&redis, NULL));
        snprintf(uri, sizeof(uri), TIERCE__LEASE_REGISTRY "redis://127.0.0.1:%u?cluster_name=c",
                 (unsigned)redis.port);
        break;
    default:
        ck_assert(etcd_start(&etcd));
        /* The first endpoint is nobody's. */
        snprintf(uri, sizeof(uri), "etcd://127.0.0.1:1,127.0.0.1:%u", (unsigned)etcd.port);
    }
    a = open_lease("a:6491");
    b = open_lease("b:6491");
}

static void set_up_memory(void)
{
    place = MEMORY;
    set_up();
}

static void set_up_file(void)
{
    place = IN_FILE;
    set_up();
}

static void set_up_redis(void)
{
    place = IN_REDIS;
    set_up();
}

static void set_up_registry(void)
{
    place = IN_REGISTRY;
    set_up();
}

static void set_up_etcd(void)
{
    place = IN_ETCD;
    set_up();
}

static void tear_down(void)
{
    a->ops->close(a);
    b->ops->close(b);
    redis_stop(&redis);
    etcd_stop(&etcd);
    temp_folder_remove(folder);
}

/* A server that has just begun may not have elected itself yet. */
static uint64_t take(struct tierce__lease *lease, uint32_t lease_ms)
{
    uint64_t token = 0, until_ns = tierce__deadline_in_ms(60000);
    int rc;
    while ((rc = lease->ops->take(lease, lease_ms, &token, other)) != 0 && rc != -EBUSY &&
           tierce__now_ns() < until_ns)
        usleep(10000);
    ck_assert_msg(rc == 0, "%s: %s", lease->ops->name, tierce_strerror(rc));
    return token;
}

static bool is_refused(struct tierce__lease *lease)
{
    uint64_t token = 7;
    other[0] = '\0';
    int rc = lease->ops->take(lease, LONG_MS, &token, other);
    ck_assert_uint_eq(token, 7);
    return rc == -EBUSY;
}

static const char *holder(struct tierce__lease *lease)
{
    static char text[TIERCE__LEASE_HOLDER_BYTES];
    ck_assert_int_eq(lease->ops->look(lease, text), 0);
    return text;
}

START_TEST(test_one_at_a_time)
{
    uint64_t first = take(a, LONG_MS);
    ck_assert_uint_gt(first, 0);
    ck_assert(is_refused(b));
    ck_assert_str_eq(other, "a:6491");
    ck_assert_str_eq(holder(b), "a:6491");
    ck_assert_int_eq(b->ops->renew(b, LONG_MS), TIERCE_E_REFUSED);
    b->ops->give(b); /* not its to give */
    ck_assert(is_refused(b));
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), 0);
    a->ops->give(a);
    ck_assert_str_eq(holder(a), "");
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), TIERCE_E_REFUSED);
    uint64_t second = take(b, LONG_MS);
    ck_assert_uint_gt(second, first);
    ck_assert(is_refused(a));
    b->ops->give(b);
    uint64_t third = take(a, LONG_MS);
    ck_assert_uint_gt(third, second);
    a->ops->give(a);
}
END_TEST

START_TEST(test_it_runs_out)
{
    uint64_t first = take(a, 500), until_ns = tierce__deadline_in_ms(30000), second = 0;
    int rc;
    while ((rc = b->ops->take(b, LONG_MS, &second, other)) == -EBUSY && tierce__now_ns() < until_ns)
        usleep(10000);
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_gt(second, first);
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), TIERCE_E_REFUSED);
    a->ops->give(a);
    ck_assert_str_eq(holder(a), "b:6491");
    ck_assert_int_eq(b->ops->renew(b, LONG_MS), 0);
}
END_TEST

/* A lease that is renewed in time is held for longer than its duration. A lost lease is a fault if
 * the last renewal began less than a lease ago. If the machine was suspended for longer, it is not,
 * and the test starts again. */
START_TEST(test_renewing_keeps_it)
{
    enum { SHORT_MS = 1000, KEPT_MS = 2500 };
    uint64_t until_ns = tierce__deadline_in_ms(90000), begun_ns = tierce__now_ns();
    uint64_t renewed_ns = begun_ns;
    (void)take(a, SHORT_MS);
    while (tierce__now_ns() - begun_ns < KEPT_MS * TIERCE__MS_NS) {
        uint64_t now_ns = tierce__now_ns();
        int rc = a->ops->renew(a, SHORT_MS);
        if (rc == 0) {
            renewed_ns = now_ns;
            rc = is_refused(b) ? 0 : TIERCE_E_REFUSED;
        }
        if (rc != 0) {
            ck_assert_int_eq(rc, TIERCE_E_REFUSED);
            ck_assert_uint_ge(tierce__now_ns() - renewed_ns, SHORT_MS * TIERCE__MS_NS);
            ck_assert_msg(tierce__now_ns() < until_ns, "the machine never runs for a lease");
            b->ops->give(b);
            begun_ns = renewed_ns = tierce__now_ns();
            (void)take(a, SHORT_MS);
        }
        usleep(20000); /* its subject is time: renewals come in a part of a lease */
    }
}
END_TEST

START_TEST(test_holders_of_any_name)
{
    char name[TIERCE__LEASE_HOLDER_BYTES];
    memset(name, 'x', sizeof(name) - 1);
    memcpy(name, "\xc3\xa4 \"'\\/{}\t", 11);
    name[sizeof(name) - 1] = '\0';
    struct tierce__lease *c = open_lease(name);
    (void)take(c, LONG_MS);
    ck_assert_str_eq(holder(a), name);
    ck_assert(is_refused(a));
    ck_assert_str_eq(other, name);
    ck_assert_int_eq(c->ops->renew(c, LONG_MS), 0);
    c->ops->give(c);
    c->ops->close(c);
}
END_TEST

/* A second holder of the same name gets the lease with a new token, and the first is notified. */
START_TEST(test_a_twin)
{
    struct tierce__lease *twin = open_lease("a:6491");
    uint64_t first = take(a, LONG_MS), second = take(twin, LONG_MS);
    ck_assert_uint_gt(second, first);
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), TIERCE_E_REFUSED);
    a->ops->give(a);
    ck_assert_int_eq(twin->ops->renew(twin, LONG_MS), 0);
    twin->ops->close(twin);
}
END_TEST

static void check_no_token_follows(uint64_t before)
{
    uint64_t token = 7;
    ck_assert_int_eq(tierce__lease_next_token(&token, before), TIERCE_E_LIMIT);
    ck_assert_uint_eq(token, 7);
}

START_TEST(test_tokens_end)
{
    uint64_t token;
    ck_assert_int_eq(tierce__lease_next_token(&token, 0), 0);
    ck_assert_uint_ge(token, 1000000);
    ck_assert_int_eq(tierce__lease_next_token(&token, INT64_MAX - 1), 0);
    ck_assert_uint_eq(token, INT64_MAX);
    check_no_token_follows(INT64_MAX);
    check_no_token_follows(UINT64_MAX);
}
END_TEST

/* ---- by place -------------------------------------------------------------------------------- */

static void redis_command(const char *const *arguments, size_t count)
{
    struct tierce__resp *resp = NULL;
    struct tierce__resp_value value;
    struct tierce__resp_opts opts = {.size = sizeof(opts),
                                     .host = "127.0.0.1",
                                     .port = redis.port,
                                     .connect_timeout_ms = 60000,
                                     .call_timeout_ms = 60000};
    size_t bytes[8];
    for (size_t i = 0; i < count; i++)
        bytes[i] = strlen(arguments[i]);
    ck_assert_int_eq(tierce__resp_open(&resp, &opts, why), 0);
    ck_assert_int_eq(tierce__resp_call(resp, arguments, bytes, count, &value, 0), 0);
    ck_assert(value.type != TIERCE__RESP_ERROR);
    tierce__resp_close(resp);
}

START_TEST(test_redis_beside_kvcm)
{
    redis_command(
        (const char *[]){"SET", "kvcm_lock:_TAIR_KVCM_LEADER_KEY", "theirs", "PX", "60000"}, 5);
    ck_assert(is_refused(a));
    ck_assert_str_eq(other, "theirs");
    redis_command((const char *[]){"DEL", "kvcm_lock:_TAIR_KVCM_LEADER_KEY"}, 2);
    (void)take(a, LONG_MS);
    /* An operator deletes the lease: its holder is notified. */
    redis_command((const char *[]){"DEL", "kvcm_lock:_TAIR_KVCM_LEADER_KEY"}, 2);
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), TIERCE_E_REFUSED);
}
END_TEST

START_TEST(test_redis_goes_and_comes)
{
    uint64_t token;
    (void)take(a, LONG_MS);
    redis_kill(&redis);
    int rc = a->ops->renew(a, LONG_MS);
    ck_assert(rc != 0 && rc != TIERCE_E_REFUSED);
    ck_assert_int_ne(a->ops->take(a, LONG_MS, &token, other), -EBUSY);
    ck_assert(redis_run(&redis, false, NULL)); /* with nothing in it */
    uint64_t until_ns = tierce__deadline_in_ms(20000);
    while ((rc = a->ops->renew(a, LONG_MS)) != TIERCE_E_REFUSED && tierce__now_ns() < until_ns)
        usleep(10000);
    ck_assert_int_eq(rc, TIERCE_E_REFUSED);
}
END_TEST

START_TEST(test_tokens_rise_without_a_memory)
{
    uint64_t first = take(a, LONG_MS);
    redis_command((const char *[]){"FLUSHALL"}, 1);
    ck_assert_uint_gt(take(b, LONG_MS), first);
}
END_TEST

/* ---- in a registry --------------------------------------------------------------------------- */

START_TEST(test_the_last_one_has_the_registry)
{
    uint64_t first = take(a, LONG_MS), token = 7;
    ck_assert_uint_gt(first, 0);
    ck_assert_str_eq(holder(a), "a:6491");
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), 0);
    uint64_t second = take(b, LONG_MS);
    ck_assert_uint_gt(second, first);
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), TIERCE_E_REFUSED);
    a->ops->give(a);
    ck_assert_str_eq(holder(a), "");
    ck_assert_int_eq(b->ops->renew(b, LONG_MS), 0);
    b->ops->give(b);
    ck_assert_int_eq(a->ops->take(a, LONG_MS, &token, other), TIERCE_E_REFUSED); /* for good */
    ck_assert_uint_eq(token, 7);
    ck_assert_uint_gt(take(b, LONG_MS), second);
}
END_TEST

/* Another registry in the same Redis is another lease. */
START_TEST(test_registries_beside_each_other)
{
    (void)take(a, LONG_MS);
    uri[strlen(uri) - 1] = 'd';
    struct tierce__lease *d = open_lease("d:6491");
    (void)take(d, LONG_MS);
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), 0);
    d->ops->close(d);
}
END_TEST

/* The manager goes on while its registry is away or was emptied, as before it had a lease. */
START_TEST(test_a_registry_goes_and_comes)
{
    uint64_t token = 7, until_ns = tierce__deadline_in_ms(20000);
    (void)take(a, LONG_MS);
    redis_command((const char *[]){"FLUSHALL"}, 1);
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), 0);
    redis_kill(&redis);
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), 0);
    ck_assert_int_eq(b->ops->take(b, LONG_MS, &token, other), 0);
    ck_assert_uint_eq(token, 0);
    ck_assert_int_eq(b->ops->renew(b, LONG_MS), 0);
    ck_assert(redis_run(&redis, false, NULL));
    while (b->ops->renew(b, LONG_MS) != TIERCE_E_REFUSED && tierce__now_ns() < until_ns)
        usleep(10000);
    b->ops->give(b);
    ck_assert_uint_gt(take(b, LONG_MS), 0); /* now it has a token */
    ck_assert_int_eq(b->ops->renew(b, LONG_MS), 0);
}
END_TEST

/* Nothing is elected again and again while Redis can be read but not written. */
START_TEST(test_a_registry_that_takes_no_writes)
{
    uint64_t token = 7;
    redis_command((const char *[]){"CONFIG", "SET", "maxmemory", "1"}, 4);
    ck_assert_int_eq(a->ops->take(a, LONG_MS, &token, other), 0);
    ck_assert_uint_eq(token, 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(a->ops->renew(a, LONG_MS), 0);
    redis_command((const char *[]){"CONFIG", "SET", "maxmemory", "0"}, 4);
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), TIERCE_E_REFUSED);
    a->ops->give(a);
    ck_assert_uint_gt(take(a, LONG_MS), 0);
    ck_assert_int_eq(a->ops->renew(a, LONG_MS), 0);
}
END_TEST

START_TEST(test_etcd_goes_and_comes)
{
    char text[TIERCE__LEASE_HOLDER_BYTES];
    uint64_t first = take(a, LONG_MS);
    etcd_kill(&etcd);
    int rc = a->ops->renew(a, LONG_MS);
    ck_assert(rc != 0 && rc != TIERCE_E_REFUSED);
    ck_assert_int_ne(b->ops->look(b, text), 0);
    ck_assert(etcd_run(&etcd)); /* it remembers */
    uint64_t until_ns = tierce__deadline_in_ms(30000);
    while ((rc = a->ops->renew(a, LONG_MS)) != 0 && tierce__now_ns() < until_ns)
        usleep(10000);
    ck_assert_int_eq(rc, 0);
    ck_assert(is_refused(b));
    a->ops->give(a);
    ck_assert_uint_gt(take(b, LONG_MS), first);
}
END_TEST

START_TEST(test_uris_that_are_refused)
{
    static const char *const uris[] = {
        "etcd://",  "etcd:///x",       "etcd://a:1,,b:2", "etcd://u:p@h:1",
        "file://x", "redis://h:99999", "etcd://a:1?x=y",  "registry+redis://h:1"};
    struct tierce__lease *lease = NULL;
    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++)
        ck_assert_msg(tierce__lease_find(uris[i])->open(&lease, uris[i], "a", 100, why) ==
                          TIERCE_E_CONFIG,
                      "%s", uris[i]);
    ck_assert_ptr_null(tierce__lease_find("nothing://"));
    ck_assert_ptr_null(tierce__lease_find("etcd"));
}
END_TEST

/* A token of 0 would mean that this manager is alone. */
START_TEST(test_a_file_with_the_last_token)
{
    uint64_t token = 7;
    char path[128];
    snprintf(path, sizeof(path), "%s/" TIERCE__LEASE_NAME ".lock", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_gt(
        fprintf(file, "{\"value\":\"\",\"expire_time_ms\":0,\"token\":%" PRId64 "}", INT64_MAX), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(a->ops->take(a, LONG_MS, &token, other), TIERCE_E_LIMIT);
    ck_assert_uint_eq(token, 7);
    ck_assert_str_eq(holder(b), "");
}
END_TEST

static TCase *add_case(Suite *suite, const char *name, void (*begin)(void))
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, begin, tear_down);
    tcase_add_test(tcase, test_one_at_a_time);
    tcase_add_test(tcase, test_it_runs_out);
    tcase_add_test(tcase, test_renewing_keeps_it);
    tcase_add_test(tcase, test_holders_of_any_name);
    suite_add_tcase(suite, tcase);
    return tcase;
}

static Suite *make_suite(void)
{
    Suite *suite = suite_create("lease");
    TCase *tcase = add_case(suite, "memory", set_up_memory);
    tcase_add_test(tcase, test_uris_that_are_refused);
    tcase_add_test(tcase, test_tokens_end);
    tcase_add_test(tcase, test_a_twin);
    tcase = add_case(suite, "file", set_up_file);
    tcase_add_test(tcase, test_a_twin);
    tcase_add_test(tcase, test_a_file_with_the_last_token);
    if (redis_is_there()) {
        tcase = add_case(suite, "redis", set_up_redis);
        tcase_add_test(tcase, test_a_twin);
        tcase_add_test(tcase, test_redis_beside_kvcm);
        tcase_add_test(tcase, test_redis_goes_and_comes);
        tcase_add_test(tcase, test_tokens_rise_without_a_memory);
    }
    if (redis_is_there()) {
        tcase = tcase_create("registry");
        tcase_set_timeout(tcase, 120);
        tcase_add_checked_fixture(tcase, set_up_registry, tear_down);
        tcase_add_test(tcase, test_the_last_one_has_the_registry);
        tcase_add_test(tcase, test_registries_beside_each_other);
        tcase_add_test(tcase, test_a_registry_goes_and_comes);
        tcase_add_test(tcase, test_a_registry_that_takes_no_writes);
        suite_add_tcase(suite, tcase);
    }
    if (etcd_is_there()) {
        tcase = add_case(suite, "etcd", set_up_etcd);
        tcase_add_test(tcase, test_etcd_goes_and_comes);
    }
    return suite;
}

int main(void)
{
    return check_main_at_once(make_suite);
}
