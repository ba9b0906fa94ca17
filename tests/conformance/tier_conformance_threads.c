/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "conformance/tier_conformance.h"
#include "test_random.h"

#include <pthread.h>
#include <string.h>

enum { THREADS = 4, KEYS = 48, STEPS = TEST_ROUNDS(1500), BYTES = 64 << 10 };

/* Check's assertions belong to the main thread; others count what they find wrong. */
static _Atomic uint32_t wrong_bytes, wrong_status;
static _Atomic uint32_t version_next;

static bool is_one_of(int rc, int a, int b, int c)
{
    return rc == a || rc == b || rc == c;
}

static void put_some(uint64_t n)
{
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_PUT, n);
    call.req.buf = tier_test_object(n, atomic_fetch_add(&version_next, 1) + 1, BYTES);
    call.req.object_bytes = BYTES;
    if (call.req.buf == NULL)
        return;
    if (!is_one_of(tier_call_run(&call), 0, TIERCE_E_FULL, TIERCE_E_CANCELLED))
        atomic_fetch_add(&wrong_status, 1); /* cancelled by a DELETE */
    tierce__buf_release(call.req.buf);
}

static void get_some(uint64_t n)
{
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_GET, n);
    if (!tier_test.lends) {
        call.req.buf = tier_test_object(n + 1000000, 1, BYTES);
        call.req.length = BYTES;
        if (call.req.buf == NULL)
            return;
    }
    int rc = tier_call_run(&call);
    if (!is_one_of(rc, 0, TIERCE_E_MISS, 0))
        atomic_fetch_add(&wrong_status, 1);
    if (rc == 0 && tier_test_version(call.req.buf, n) == 0)
        atomic_fetch_add(&wrong_bytes, 1);
    tierce__buf_release(call.req.buf);
}

static void look_around(uint64_t n)
{
    struct tierce__key keys[8];
    struct tierce__buf *bufs[8];
    for (unsigned i = 0; i < 8; i++)
        keys[i] = tier_test_key(n + i);
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_LOOKUP, n);
    call.req.keys = keys;
    call.req.key_count = 8;
    call.req.bufs = tier_test.lends ? bufs : NULL;
    call.req.length = 5 * BYTES;
    if (tier_call_run(&call) != 0 || call.req.found > 8)
        atomic_fetch_add(&wrong_status, 1);
    size_t lent = tier_test.lends ? call.req.lent : 0;
    if (lent > 5 || (lent < 5 && tier_test.lends && lent < call.req.found))
        atomic_fetch_add(&wrong_status, 1);
    for (size_t i = 0; i < lent; i++) {
        if (tier_test_version(bufs[i], n + i) == 0)
            atomic_fetch_add(&wrong_bytes, 1);
    }
    tierce__bufs_release(bufs, lent);
    tier_test_touch(keys, call.req.found);
}

static void *hammer(void *arg)
{
    struct test_random random = {(uint64_t)(uintptr_t)arg};
    for (unsigned i = 0; i < STEPS; i++) {
        uint64_t n = test_random_below(&random, KEYS);
        uint32_t dice = test_random_below(&random, 100);
        struct tier_call call;
        if (dice < 35) {
            put_some(n);
        } else if (dice < 75) {
            get_some(n);
        } else if (dice < 85) {
            look_around(n);
        } else if (dice < 95) {
            tier_call_init(&call, TIERCE__STORE_DELETE, n);
            if (!is_one_of(tier_call_run(&call), 0, TIERCE_E_MISS, 0))
                atomic_fetch_add(&wrong_status, 1);
        } else if (tier_test.tier->ops->evict != NULL) {
            tier_test.tier->ops->evict(tier_test.tier, BYTES);
        } else if (dice == 95) {
            tier_call_init(&call, TIERCE__STORE_FLUSH, n);
            if (tier_call_run(&call) != 0)
                atomic_fetch_add(&wrong_status, 1);
        }
    }
    return NULL;
}

START_TEST(many_threads_get_what_was_put)
{
    pthread_t threads[THREADS];
    struct test_random random = test_random_start("tier threads");
    tier_test_start(_i);
    for (unsigned i = 0; i < THREADS; i++) {
        void *seed = (void *)(uintptr_t)test_random_u64(&random);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer, seed), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(atomic_load(&wrong_bytes), 0);
    ck_assert_uint_eq(atomic_load(&wrong_status), 0);
    size_t there = 0;
    for (unsigned n = 0; n < KEYS; n++)
        there += tier_test_lookup(n, 1);
    if (!tier_test.shared)
        ck_assert_uint_eq(tier_test_stats().chunks, there);
    /* Nothing is held any more, so everything can be evicted. */
    if (tier_test.tier->ops->evict != NULL) {
        uint64_t used = tier_test_stats().used_bytes;
        ck_assert_uint_eq(tier_test.tier->ops->evict(tier_test.tier, UINT64_MAX), used);
        ck_assert_uint_eq(tier_test_stats().chunks, 0);
    }
    tier_test_end();
}
END_TEST

/* Requests in flight when the tier is closed are all answered, once, by the time close returns. */
START_TEST(closing_answers_every_request)
{
    enum { CALLS = 64 };
    static struct tier_call calls[CALLS];
    tier_test_start(_i);
    for (unsigned i = 0; i < CALLS; i++) {
        tier_call_init(&calls[i], i % 4 == 3 ? TIERCE__STORE_GET : TIERCE__STORE_PUT, i / 4 * 4);
        bool lent = tier_test.lends && i % 4 == 3;
        calls[i].req.buf = lent ? NULL : tier_test_object(i / 4 * 4, 1, BYTES);
        calls[i].req.object_bytes = BYTES;
        calls[i].req.length = BYTES;
        tier_call_submit(&calls[i]);
    }
    tier_test.tier->ops->close(tier_test.tier, tierce__deadline_in_ms(10000));
    for (unsigned i = 0; i < CALLS; i++) {
        ck_assert_int_eq(atomic_load(&calls[i].done_count), 1);
        int rc = calls[i].req.status;
        ck_assert_msg(is_one_of(rc, 0, TIERCE_E_MISS, TIERCE_E_CLOSED) ||
                          is_one_of(rc, TIERCE_E_CANCELLED, TIERCE_E_DEADLINE, 0),
                      "%s", tierce_strerror(rc));
        tierce__buf_release(calls[i].req.buf);
    }
    struct tierce__pool_stats stats;
    tierce__pool_stats(tier_test.pool, &stats);
    ck_assert_uint_eq(stats.bufs, 0);
    tierce__pool_destroy(tier_test.pool);
    if (tier_test.factory->cleanup != NULL)
        tier_test.factory->cleanup(tier_test.factory->ctx);
}
END_TEST

/* After a delete, a chunk whose put was submitted earlier is absent, whatever the result of the
 * put; a chunk put later is present. */
START_TEST(a_delete_ends_what_is_being_put)
{
    static struct tier_call puts[8], deletes[8], again[8];
    tier_test_start(_i);
    for (unsigned n = 0; n < 8; n++) {
        tier_call_init(&puts[n], TIERCE__STORE_PUT, n);
        tier_call_init(&deletes[n], TIERCE__STORE_DELETE, n);
        tier_call_init(&again[n], TIERCE__STORE_PUT, n);
        puts[n].req.buf = tier_test_object(n, 1, BYTES);
        again[n].req.buf = tier_test_object(n, 2, BYTES);
        puts[n].req.object_bytes = again[n].req.object_bytes = BYTES;
    }
    for (unsigned n = 0; n < 8; n++)
        tier_call_submit(&puts[n]);
    for (unsigned n = 0; n < 8; n++)
        tier_call_submit(&deletes[n]);
    for (unsigned n = 0; n < 8; n += 2)
        tier_call_submit(&again[n]);
    for (unsigned n = 0; n < 8; n++) {
        uint32_t version = 0;
        int put = tier_call_wait(&puts[n]), gone = tier_call_wait(&deletes[n]);
        ck_assert(is_one_of(put, 0, TIERCE_E_CANCELLED, 0));
        ck_assert(is_one_of(gone, 0, TIERCE_E_MISS, 0));
        if (n % 2 == 0)
            ck_assert_int_eq(tier_call_wait(&again[n]), 0);
        int rc = tier_test_get(n, BYTES, &version);
        ck_assert_int_eq(rc, n % 2 == 0 ? 0 : TIERCE_E_MISS);
        ck_assert_uint_eq(version, n % 2 == 0 ? 2 : 0);
        tierce__buf_release(puts[n].req.buf);
        tierce__buf_release(again[n].req.buf);
    }
    tier_test_end();
}
END_TEST

void tier_conformance_add_threads(TCase *tcase, int index)
{
    tcase_add_loop_test(tcase, a_delete_ends_what_is_being_put, index, index + 1);
    tcase_add_loop_test(tcase, many_threads_get_what_was_put, index, index + 1);
    tcase_add_loop_test(tcase, closing_answers_every_request, index, index + 1);
}
