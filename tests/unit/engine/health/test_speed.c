/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a tier reads, as its answers show it. */
#include "check_main.h"
#include "health_clock.h"

/* A read of 1 MiB that takes `ms` of the clock. */
static enum tierce__health_change answer_after(uint32_t ms, int status)
{
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .keys = &key,
                                    .key_count = 1,
                                    .length = 1u << 20,
                                    .status = status};
    ck_assert(tierce__health_pass(&health, &req));
    let_pass(ms);
    return tierce__health_note(&health, &req);
}

START_TEST(speed_is_what_all_readings_bring_together)
{
    struct tierce__speed speed;
    setup(1000, 0, 0);
    tierce__health_speed(&health, &speed);
    ck_assert(speed.bytes_per_s == 0 && speed.known_ns == 0);
    /* Two at a time, 1 MiB each in 20 ms: 100 MiB/s as long as the latency is unknown. Then half of
     * the time may be latency: in all 10 MiB in 20 + 4 * 10 ms. */
    for (int i = 0; i < 5; i++) {
        struct tierce__store_req a = {
            .op = TIERCE__STORE_GET, .keys = &key, .key_count = 1, .length = 1u << 20};
        struct tierce__store_req b = a;
        ck_assert(tierce__health_pass(&health, &a) && tierce__health_pass(&health, &b));
        let_pass(20);
        tierce__health_note(&health, &a);
        tierce__health_note(&health, &b);
        tierce__health_speed(&health, &speed);
        ck_assert(i > 0 || (speed.bytes_per_s > 104e6 && speed.bytes_per_s < 106e6));
    }
    ck_assert(speed.bytes_per_s > 174e6 && speed.bytes_per_s < 176e6);
    ck_assert(speed.latency_s > 0.0199 && speed.latency_s < 0.0201);
    ck_assert_uint_ne(speed.known_ns, 0);
    tierce__health_fini(&health);
}
END_TEST

/* Reads that are requested together wait for each other: that is bandwidth, and no latency. */
START_TEST(latency_is_that_of_the_first_answer)
{
    enum { READS = 64 };
    static struct tierce__store_req reqs[READS];
    struct tierce__speed speed;
    setup(1000, 0, 0);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < READS; i++) {
            reqs[i] = (struct tierce__store_req){
                .op = TIERCE__STORE_GET, .keys = &key, .key_count = 1, .length = 1u << 19};
            ck_assert(tierce__health_pass(&health, &reqs[i]));
        }
        let_pass(3);
        for (int i = 0; i < READS; i++) { /* 512 KiB in 2 ms, from 5 ms on */
            let_pass(2);
            tierce__health_note(&health, &reqs[i]);
        }
        let_pass(1000);
    }
    tierce__health_speed(&health, &speed);
    ck_assert(speed.latency_s > 0.0049 && speed.latency_s < 0.0051);
    ck_assert(speed.bytes_per_s > 250e6 && speed.bytes_per_s < 263e6);
    tierce__health_fini(&health);
}
END_TEST

/* A store at 30 ms that brings 1 GB/s, read by loads of 16 MiB: neither is its latency taken for a
 * lack of bandwidth, nor the queue of its connections for latency. */
START_TEST(a_distant_store_is_not_a_slow_store)
{
    struct tierce__speed speed;
    setup(1000, 0, 0);
    for (int round = 0; round < 8; round++) {
        struct tierce__store_req reqs[32];
        for (int i = 0; i < 32; i++) {
            reqs[i] = (struct tierce__store_req){
                .op = TIERCE__STORE_GET, .keys = &key, .key_count = 1, .length = 1u << 19};
            ck_assert(tierce__health_pass(&health, &reqs[i]));
        }
        let_pass(30);
        for (int i = 0; i < 32; i++) {
            clock_ns += (1u << 19); /* a byte a nanosecond */
            tierce__health_note(&health, &reqs[i]);
        }
        let_pass(100);
    }
    tierce__health_speed(&health, &speed);
    ck_assert(speed.latency_s > 0.030 && speed.latency_s < 0.031);
    /* 16 MiB in 47 ms are 360 MB/s. */
    ck_assert(speed.bytes_per_s > 450e6 && speed.bytes_per_s < 1e9);
    tierce__health_fini(&health);
}
END_TEST

/* Reads that failed in an outage took seconds: a tier that is back is not slow for that. */
START_TEST(an_outage_does_not_count_as_slowness)
{
    struct tierce__speed speed;
    setup(2, 0, 0);
    ck_assert_int_eq(answer_after(10, 0), TIERCE__HEALTH_SAME);
    tierce__health_speed(&health, &speed);
    ck_assert(speed.bytes_per_s > 104e6 && speed.bytes_per_s < 106e6);
    ck_assert_int_eq(answer_after(10000, TIERCE_E_DEADLINE), TIERCE__HEALTH_SAME);
    tierce__health_speed(&health, &speed);
    ck_assert(speed.bytes_per_s < 1e6); /* in service it is what it does */
    ck_assert_int_eq(answer_after(10000, TIERCE_E_DEADLINE), TIERCE__HEALTH_LOST);
    let_pass(31);
    struct tierce__store_req hanging = {
        .op = TIERCE__STORE_GET, .keys = &key, .key_count = 1, .status = TIERCE_E_CANCELLED};
    ck_assert(tierce__health_pass(&health, &hanging));
    let_pass(5000);
    tierce__health_note(&health, &hanging);
    ck_assert_int_eq(answer_after(1, 0), TIERCE__HEALTH_BACK);
    tierce__health_speed(&health, &speed);
    ck_assert(speed.bytes_per_s == 0 && speed.known_ns == 0); /* unknown: it is tried */
    ck_assert_int_eq(answer_after(10, 0), TIERCE__HEALTH_SAME);
    tierce__health_speed(&health, &speed);
    ck_assert(speed.bytes_per_s > 104e6 && speed.bytes_per_s < 106e6);
    ck_assert(speed.latency_s > 0.009 && speed.latency_s < 0.011);
    tierce__health_fini(&health);
}
END_TEST

static double speed_now(double *latency_s)
{
    struct tierce__speed speed;
    tierce__health_speed(&health, &speed);
    if (latency_s != NULL)
        *latency_s = speed.latency_s;
    return speed.bytes_per_s;
}

/* The first reads of a store wait until its connections have been made: neither they nor the reads
 * that queue behind them are slow for that. */
START_TEST(making_a_connection_is_no_reading_speed)
{
    enum { READS = 16, CONNECTIONS = 8 };
    struct tierce__store_req reqs[READS];
    double latency_s;
    setup(1000, 0, 0);
    for (int i = 0; i < READS; i++) {
        reqs[i] = (struct tierce__store_req){
            .op = TIERCE__STORE_GET, .keys = &key, .key_count = 1, .length = 1u << 20};
        ck_assert(tierce__health_pass(&health, &reqs[i]));
    }
    let_pass(200);
    for (int i = 0; i < READS; i++) { /* 1 MiB in 5 ms, from 200 ms on */
        let_pass(5);
        reqs[i].connected = i < CONNECTIONS;
        tierce__health_note(&health, &reqs[i]);
        ck_assert(i >= CONNECTIONS || speed_now(NULL) == 0); /* not known, so it is used */
    }
    ck_assert(speed_now(&latency_s) > 209e6 && speed_now(NULL) < 210e6);
    ck_assert(latency_s == 0);
    ck_assert_int_eq(answer_after(10, 0), TIERCE__HEALTH_SAME);
    ck_assert(speed_now(&latency_s) > 188e6);
    ck_assert(latency_s > 0.0099 && latency_s < 0.0101);
    tierce__health_fini(&health);
    /* A read that is faster than the known speed counts as a measurement. */
    setup(1000, 0, 0);
    answer_after(3000, 0);
    let_pass(10001);
    struct tierce__store_req fast = reqs[0];
    ck_assert(tierce__health_pass(&health, &fast));
    fast.connected = true;
    let_pass(10);
    tierce__health_note(&health, &fast);
    ck_assert(speed_now(NULL) > 94e6);
    tierce__health_fini(&health);
    /* If there is one for each read, it is as slow as that. */
    setup(1000, 0, 0);
    for (int i = 0; i < 100; i++) {
        struct tierce__store_req req = {
            .op = TIERCE__STORE_GET, .keys = &key, .key_count = 1, .length = 1u << 20};
        ck_assert(tierce__health_pass(&health, &req));
        req.connected = true;
        let_pass(100);
        tierce__health_note(&health, &req);
    }
    ck_assert(speed_now(&latency_s) > 0 && speed_now(NULL) < 22e6);
    ck_assert(latency_s > 0.099);
    tierce__health_fini(&health);
}
END_TEST

START_TEST(a_stall_is_no_reading_speed)
{
    double latency_s;
    setup(1000, 0, 0);
    for (int i = 0; i < 10; i++)
        answer_after(10, 0);
    double before = speed_now(NULL);
    answer_after(3000, 0);
    ck_assert(speed_now(&latency_s) == before && latency_s < 0.011);
    answer_after(10, 0);
    ck_assert(speed_now(NULL) > before / 1.1);
    answer_after(3000, 0); /* a second one within 30 s is the speed of the tier */
    ck_assert(speed_now(NULL) < before / 10);
    tierce__health_fini(&health);
    setup(1000, 0, 0); /* a tier that always takes so long is slow */
    for (int i = 0; i < 3; i++) {
        answer_after(3000, 0);
        ck_assert(speed_now(NULL) > 0 && speed_now(NULL) < 1e6);
    }
    tierce__health_fini(&health);
}
END_TEST

/* Measurements from before a silence of ten seconds do not outweigh new ones. */
START_TEST(an_old_speed_is_replaced)
{
    setup(1000, 0, 0);
    answer_after(3000, 0);
    ck_assert(speed_now(NULL) < 1e6);
    let_pass(10001);
    answer_after(10, 0);
    ck_assert(speed_now(NULL) > 94e6);
    let_pass(10001);
    answer_after(70, 0);
    ck_assert(speed_now(NULL) < 30e6);
    tierce__health_fini(&health);
}
END_TEST

CHECK_MAIN("speed",
           .tests = {speed_is_what_all_readings_bring_together, latency_is_that_of_the_first_answer,
                     a_distant_store_is_not_a_slow_store, an_outage_does_not_count_as_slowness,
                     making_a_connection_is_no_reading_speed, a_stall_is_no_reading_speed,
                     an_old_speed_is_replaced})
