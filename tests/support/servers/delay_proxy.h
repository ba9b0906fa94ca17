/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_DELAY_PROXY_H
#define TIERCE_TESTS_DELAY_PROXY_H

#include "check_main.h"
#include "bench/remote/slow_link.h"
#include "test_random.h"

/*
 * A slow network in front of a real server of a test (bench/remote/slow_link.h):
 *
 *     struct delay_proxy proxy;
 *     delay_proxy_start(&proxy, "test_name", server.port, 5000);   // 5 ms
 *     ... connect to 127.0.0.1:proxy.port ...
 *     delay_proxy_cut(&proxy);
 *     delay_proxy_stop(&proxy);
 *
 * The seed of the jitter, a tenth of the delay each way, is printed (TIERCE_TEST_SEED).
 */

#define DELAY_PROXY_BYTES_PER_S 1000000000ull

/* Round trips of a machine nearby, of a region and of a continent, in microseconds. */
static const uint32_t delay_proxy_round_trips_us[] = {200, 5000, 30000};

struct delay_proxy {
    struct tierce__slow_link *link;
    uint16_t port;
};

static inline void delay_proxy_start_with(struct delay_proxy *proxy,
                                          const struct tierce__slow_link_opts *opts)
{
    ck_assert_int_eq(tierce__slow_link_start(&proxy->link, opts), 0);
    proxy->port = tierce__slow_link_port(proxy->link);
}

static inline void delay_proxy_start(struct delay_proxy *proxy, const char *test, uint16_t port,
                                     uint32_t round_trip_us)
{
    struct test_random random = test_random_start(test);
    delay_proxy_start_with(
        proxy, &(struct tierce__slow_link_opts){.size = sizeof(struct tierce__slow_link_opts),
                                                .port = port,
                                                .round_trip_ns = round_trip_us * 1000ull,
                                                .jitter_ns = round_trip_us * 50ull,
                                                .seed = random.state,
                                                .bytes_per_s = DELAY_PROXY_BYTES_PER_S});
}

static inline void delay_proxy_set(struct delay_proxy *proxy, uint32_t round_trip_us)
{
    tierce__slow_link_set_round_trip(proxy->link, round_trip_us * 1000ull);
}

static inline void delay_proxy_cut(struct delay_proxy *proxy)
{
    tierce__slow_link_cut(proxy->link);
}

static inline void delay_proxy_freeze(struct delay_proxy *proxy, bool frozen)
{
    tierce__slow_link_freeze(proxy->link, frozen);
}

static inline struct tierce__slow_link_stats delay_proxy_stats(struct delay_proxy *proxy)
{
    struct tierce__slow_link_stats stats;
    tierce__slow_link_stats(proxy->link, &stats);
    return stats;
}

static inline void delay_proxy_stop(struct delay_proxy *proxy)
{
    tierce__slow_link_stop(proxy->link);
    proxy->link = NULL;
}

#endif
