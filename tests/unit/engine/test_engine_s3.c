/* SPDX-License-Identifier: Apache-2.0 */
/* The engine with a bucket of a real server behind it, which dies and comes back: the connector has
 * no breaker of its own, the engine's opens and closes again. */
#include "base/clock.h"
#include "check_main.h"
#include "delay_proxy.h"
#include "engine_fixture.h"
#include "s3_server.h"
#include "wait_for.h"

static struct fixture fx;
static struct s3_server server;

static void open_engine(void)
{
    char url[256];
    snprintf(url, sizeof(url), "s3://%s:%s@kv-cache/tierce?endpoint=http://127.0.0.1:%u", S3_ACCESS,
             S3_SECRET_IN_URL, (unsigned)server.port);
    const char *sets[] = {
        "remote.urls", url, "breaker.errors", "2", "breaker.retry", "50ms", "timeout.lookup",
        "5s",          NULL};
    fx_open(&fx, false, sets);
}

static int64_t load_all(const struct tierce_chain *chain)
{
    uint8_t origins[40];
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 40, fx_ids);
    int64_t loaded = tierce_load(fx.view, &what, origins);
    for (size_t b = 0; loaded >= 0 && b < 40; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_FAILED || fx_right(&fx, chain, b, fx_ids[b]));
    return loaded;
}

static void wait_until_in_service(int64_t wanted, const struct tierce_chain *chain)
{
    for (int i = 0; i < 3000 && fx_stats(&fx).remotes_in_service_now != wanted; i++) {
        (void)fx_found(&fx, chain, 40, 0, 0, NULL); /* whoever asks next tries it */
        server_pause_ms(10);
    }
    ck_assert_int_eq(fx_stats(&fx).remotes_in_service_now, wanted);
}

START_TEST(the_breaker_opens_and_closes_again)
{
    ck_assert(s3_start(&server));
    open_engine();
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);

    open_engine();
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 40);
    s3_kill(&server);
    ck_assert_int_le(load_all(chain), 0); /* what a lookup has just found, and is gone */
    wait_until_in_service(0, chain);
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 0);
    ck_assert(s3_run(&server));
    wait_until_in_service(1, chain);
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 40);
    ck_assert_int_eq(load_all(chain), 40);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    s3_stop(&server);
}
END_TEST

/* Its disk is another one: what it does not have, it says itself, and so it is well. */
START_TEST(a_store_that_comes_back_empty_is_asked_again)
{
    char command[128];
    ck_assert(s3_start(&server));
    open_engine();
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0), *other = fx_chain(&fx, 2, 40, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    s3_kill(&server);
    wait_until_in_service(0, other);
    snprintf(command, sizeof(command), "rm -r %s/data/kv-cache/*", server.dir);
    ck_assert_int_eq(system(command), 0);
    ck_assert(s3_run(&server));
    wait_until_in_service(1, other);
    ck_assert_int_eq(fx_store(&fx, other, 40, fx_ids, false), 40);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    tierce_chain_destroy(chain);
    tierce_chain_destroy(other);
    fx_close(&fx);
    fx_remove(&fx);
    s3_stop(&server);
}
END_TEST

/* ---- at a distance --------------------------------------------------------------------------- */

#define BLOCKS 256u /* 64 chunks: four HEADs on each connection */

static void open_at(uint16_t port)
{
    char url[256];
    snprintf(url, sizeof(url), "s3://%s:%s@kv-cache/tierce?endpoint=http://127.0.0.1:%u", S3_ACCESS,
             S3_SECRET_IN_URL, (unsigned)port);
    /* The timeouts are the defaults. */
    const char *sets[] = {
        "remote.urls", url,           "timeout.lookup", "100ms",        "timeout.load",
        "10s",         "memory.size", "64MiB",          "remote.queue", "32MiB",
        NULL};
    fx_open(&fx, false, sets);
}

/* The lookups of a distant bucket exceed timeout.lookup; the answers are remembered, and the bucket
 * stays in service. */
START_TEST(a_distant_bucket)
{
    struct delay_proxy proxy;
    uint8_t origins[BLOCKS];
    int32_t ids[BLOCKS];
    for (int32_t i = 0; i < (int32_t)BLOCKS; i++)
        ids[i] = i;
    ck_assert(s3_start(&server));
    open_at(server.port);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, ids, false), BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    fx_close(&fx);

    delay_proxy_start(&proxy, "test_engine_s3", server.port, delay_proxy_round_trips_us[_i]);
    open_at(proxy.port);
    WAIT_WITHIN(30000, fx_found(&fx, chain, BLOCKS, 0, 0, NULL) == BLOCKS);
    fx_wipe(&fx);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, ids);
    ck_assert_int_eq(tierce_load(fx.view, &what, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert(origins[b] == TIERCE_ORIGIN_REMOTE && fx_right(&fx, chain, b, ids[b]));
    ck_assert_int_eq(fx_stats(&fx).breaker_trips, 0);
    ck_assert_int_eq(fx_stats(&fx).deadline_failures, 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    delay_proxy_stop(&proxy);
    fx_remove(&fx);
    s3_stop(&server);
}
END_TEST

int main(void)
{
    if (!s3_is_there()) {
        printf("no nanio (tools/requirements-test.txt)\n");
        return 77;
    }
    return CHECK_RUN(
        "engine and s3", .seconds = 110,
        .tests = {the_breaker_opens_and_closes_again, a_store_that_comes_back_empty_is_asked_again},
        .loops = {
            {a_distant_bucket, 0,
             (int)(sizeof(delay_proxy_round_trips_us) / sizeof(delay_proxy_round_trips_us[0]))}});
}
