/* SPDX-License-Identifier: Apache-2.0 */
/* Health checks: which of their failures are an engine's. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "proxy/proxy_private.h"
#include "server_process.h"

#include <sys/resource.h>

enum { WAIT_S = 20 };

static struct tierce__proxy proxy;
static struct tierce__proxy_config config = {
    .health_interval_ms = 10, .health_timeout_ms = 10000, .health_failures = 1};
static struct tierce__fetcher *fetcher;
static struct tierce__probes *probes;

static void setup(void)
{
    char why[256], url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", server_free_port()); /* nobody listens */
    proxy = (struct tierce__proxy){.config = &config};
    tierce__lock_init(&proxy.lock, TIERCE__LOCK_PROXY);
    tierce__tenant_words_init(&proxy.engine_tokens);
    ck_assert_int_eq(tierce__engines_init(&proxy.decode, url, false, why), 0);
    ck_assert_int_eq(
        tierce__fetcher_create(&fetcher, &(struct tierce__fetcher_opts){.connect_ms = 10000}), 0);
    ck_assert_int_eq(tierce__inboxes_init(&proxy.inboxes, proxy.decode.count), 0);
    ck_assert_int_eq(tierce__probes_create(&probes, &proxy, fetcher), 0);
}

static void teardown(void)
{
    tierce__probes_destroy(probes);
    tierce__fetcher_destroy(fetcher);
    tierce__inboxes_fini(&proxy.inboxes);
    tierce__engines_fini(&proxy.decode);
    tierce__lock_fini(&proxy.lock);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* Runs checks until so many were skipped, or until the engine is down. */
static void check_until(uint64_t skipped)
{
    uint64_t until_ns = tierce__deadline_in_ms(WAIT_S * 1000);
    while (proxy.counters[TIERCE__PROXY_COUNT_CHECKS_SKIPPED] < skipped &&
           tierce__engines_up(&proxy.decode) > 0) {
        ck_assert(tierce__now_ns() < until_ns);
        (void)tierce__probes_run(probes, tierce__now_ns());
        tierce__fetcher_step(fetcher);
        tierce__fetcher_wait(fetcher, 10);
    }
}

/* A proxy without descriptors learns nothing of its engines: they keep their requests. */
START_TEST(a_lack_of_the_proxy_is_no_fault_of_an_engine)
{
    struct rlimit before, few;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){.rlim_cur = 3, .rlim_max = before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    check_until(3);
    uint32_t up = tierce__engines_up(&proxy.decode);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_uint_eq(up, 1);
    ck_assert(!tierce__engines_ready(&proxy.decode));
    check_until(UINT64_MAX);
    ck_assert_uint_eq(tierce__engines_up(&proxy.decode), 0);
    ck_assert_uint_eq(proxy.counters[TIERCE__PROXY_COUNT_CHECKS_SKIPPED], 3);
}
END_TEST

CHECK_MAIN("probes", .setup = setup, .teardown = teardown,
           .tests = {a_lack_of_the_proxy_is_no_fault_of_an_engine})
