/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "conformance/tier_conformance.h"
#include "test_random.h"

#include <pthread.h>
#include <string.h>

/* Compares the changes that a tier reports to its watcher with the chunks that can be found in
 * it. */

enum { KEYS = 64, STEPS = TEST_ROUNDS(1200), BYTES = 64 << 10, CALLS = 24 };

/* The chunks according to the reported changes. Filled in by any thread, under the tier's lock. */
struct model {
    pthread_mutex_t mutex;
    bool held[2 * KEYS]; /* keys from KEYS on belong to the second namespace */
    uint32_t admitted;
    uint32_t left[TIERCE__LEFT_NO_SLOT + 1];
    uint32_t wrong; /* what cannot be */
};

static struct model model;

static struct tierce__key key_of(uint64_t n)
{
    struct tierce__key key = tier_test_key(n % KEYS);
    key.ns = n < KEYS ? tier_test.ns : tier_test.ns_other;
    return key;
}

/* The number that a test key holds; an impossible one for any other. */
static uint64_t number_of(const struct tierce__key *key)
{
    uint64_t n;
    memcpy(&n, key->hash + 24, 8);
    if (key->ns == tier_test.ns_other)
        n += KEYS;
    struct tierce__key same = n < (uint64_t)(2 * KEYS) ? key_of(n) : tier_test_key(0);
    return n < (uint64_t)(2 * KEYS) && tierce__key_equal(key, &same) ? n : UINT64_MAX;
}

static bool says_what_was_put(const struct tierce__tier_event *event, uint64_t n)
{
    uint8_t first[TIERCE_HASH_BYTES];
    n %= KEYS;
    memset(first, (int)n, sizeof(first));
    struct tierce__key parent = tier_test_key(n - 1);
    bool parent_good = n == 0 ? event->parent == NULL
                              : event->parent != NULL &&
                                    memcmp(event->parent, parent.hash, TIERCE_HASH_BYTES) == 0;
    return parent_good && memcmp(event->first_block, first, sizeof(first)) == 0 &&
           event->object_bytes == BYTES && event->token_start == n * 256 &&
           event->block_count == 16;
}

static void take_note(void *arg, const struct tierce__tier_event *event)
{
    struct model *m = arg;
    uint64_t n = number_of(event->key);
    pthread_mutex_lock(&m->mutex);
    if (n == UINT64_MAX || m->held[n] == event->admitted || !says_what_was_put(event, n)) {
        m->wrong++;
    } else {
        m->held[n] = event->admitted;
        if (event->admitted)
            m->admitted++;
        else
            m->left[event->left]++;
    }
    pthread_mutex_unlock(&m->mutex);
}

static uint32_t evicted(void)
{
    return model.left[TIERCE__LEFT_EVICTED] + model.left[TIERCE__LEFT_NO_SLOT];
}

/* False: a tier that tells nothing. */
static bool start(int index)
{
    tier_test_start(index);
    if (tier_test.shared) {
        tier_test_end();
        return false;
    }
    model = (struct model){.mutex = PTHREAD_MUTEX_INITIALIZER};
    tier_test.tier->ops->watch(tier_test.tier, take_note, &model);
    return true;
}

/* Reported changes, a scan, lookups and the counters agree. */
static void check_model(uint32_t places)
{
    struct model scanned = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    uint64_t held = 0;
    uint32_t cursor = 0;
    while (tier_test.tier->ops->scan(tier_test.tier, &cursor, places, take_note, &scanned))
        ;
    ck_assert_uint_eq(model.wrong, 0);
    ck_assert_uint_eq(scanned.wrong, 0);
    for (uint64_t n = 0; n < 2 * KEYS; n++) {
        struct tier_call call;
        tier_call_init(&call, TIERCE__STORE_LOOKUP, n);
        call.key = key_of(n);
        ck_assert_int_eq(tier_call_run(&call), 0);
        ck_assert_msg(model.held[n] == (call.req.found == 1), "key %u", (unsigned)n);
        ck_assert_msg(scanned.held[n] == model.held[n], "key %u in a scan", (unsigned)n);
        held += model.held[n];
    }
    ck_assert_uint_eq(tier_test_stats().chunks, held);
}

static int put_key(uint64_t n)
{
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_PUT, n % KEYS);
    call.key = key_of(n);
    call.req.buf = tier_test_object(n, 1, BYTES);
    call.req.object_bytes = BYTES;
    if (call.req.buf == NULL)
        return TIERCE_E_FULL;
    int rc = tier_call_run(&call);
    tierce__buf_release(call.req.buf);
    return rc;
}

static int run_on(enum tierce__store_op op, uint64_t n, enum tierce__tier_left left)
{
    struct tier_call call;
    tier_call_init(&call, op, n % KEYS);
    call.key = key_of(n);
    call.req.left = left;
    return tier_call_run(&call);
}

/* *found = the chunks that left. which: 0 or 1, a namespace; 2: all. */
static int clear(unsigned which, size_t *found)
{
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_CLEAR, 0);
    call.key.ns = which == 0 ? tier_test.ns : tier_test.ns_other;
    call.req.key_count = which < 2;
    int rc = tier_call_run(&call);
    *found = call.req.found;
    return rc;
}

START_TEST(what_is_told_is_what_is_there)
{
    struct test_random random = test_random_start("tier watch");
    size_t found;
    if (!start(_i))
        return;
    for (unsigned i = 0; i < STEPS; i++) {
        uint64_t n = test_random_below(&random, 2 * KEYS);
        uint32_t dice = test_random_below(&random, 1000);
        if (dice < 700)
            put_key(n);
        else if (dice < 900)
            run_on(TIERCE__STORE_DELETE, n, TIERCE__LEFT_CHECKSUM);
        else if (dice < 903)
            ck_assert_int_eq(clear(test_random_below(&random, 3), &found), 0);
        else if (dice < 910)
            run_on(TIERCE__STORE_HIDE, n, TIERCE__LEFT_DELETED);
        else if (dice < 915)
            check_model(1 + test_random_below(&random, 500));
        else if (tier_test.tier->ops->evict != NULL)
            tier_test.tier->ops->evict(tier_test.tier, BYTES);
    }
    check_model(UINT32_MAX);
    ck_assert_uint_gt(model.left[TIERCE__LEFT_CHECKSUM], 0);
    ck_assert_uint_eq(evicted(), tier_test_stats().evicted_chunks);
    tier_test_end();
}
END_TEST

START_TEST(what_is_evicted_is_told)
{
    if (!start(_i))
        return;
    uint64_t many = tier_test_stats().cap_bytes / BYTES + 8;
    for (uint64_t i = 0; i < many; i++) {
        for (uint64_t n = 0; n < 2 * KEYS && i < many; n++, i++)
            ck_assert_int_eq(put_key(n), 0);
        check_model(100);
        for (uint64_t n = 0; n < KEYS; n++)
            run_on(TIERCE__STORE_DELETE, n, TIERCE__LEFT_IDENTITY);
    }
    ck_assert_uint_gt(model.left[TIERCE__LEFT_IDENTITY], 0);
    ck_assert_uint_eq(evicted(), tier_test_stats().evicted_chunks);
    tier_test_end();
}
END_TEST

START_TEST(a_clear_takes_a_namespace_or_all)
{
    size_t found;
    if (!start(_i))
        return;
    for (uint64_t n = 0; n < 10; n++) {
        ck_assert_int_eq(put_key(n), 0);
        ck_assert_int_eq(put_key(KEYS + n), 0);
    }
    ck_assert_int_eq(clear(1, &found), 0);
    ck_assert_uint_eq(found, 10);
    ck_assert_uint_eq(tier_test_lookup(0, 12), 10);
    check_model(7);
    ck_assert_int_eq(clear(1, &found), 0);
    ck_assert_uint_eq(found, 0);
    ck_assert_int_eq(put_key(KEYS), 0);
    ck_assert_int_eq(clear(2, &found), 0);
    ck_assert_uint_eq(found, 11);
    check_model(7);
    ck_assert_uint_eq(model.left[TIERCE__LEFT_CLEARED], 21);
    ck_assert_int_eq(put_key(3), 0);
    check_model(7);
    struct tier_call call;
    tier_call_init(&call, TIERCE__STORE_FLUSH, 0);
    ck_assert_int_eq(tier_call_run(&call), 0);
    ck_assert_uint_eq(tier_test_stats().chunks, 1);
    tier_test_end();
}
END_TEST

START_TEST(a_clear_leaves_what_is_lent)
{
    size_t found;
    if (!start(_i))
        return;
    if (tier_test.lends) {
        struct tier_call call;
        ck_assert_int_eq(put_key(3), 0);
        tier_call_init(&call, TIERCE__STORE_GET, 3);
        ck_assert_int_eq(tier_call_run(&call), 0);
        ck_assert_int_eq(clear(2, &found), 0);
        ck_assert_uint_eq(found, 1);
        ck_assert_uint_eq(tier_test_version(call.req.buf, 3), 1);
        ck_assert_int_eq(put_key(3), 0);
        ck_assert_uint_eq(tier_test_version(call.req.buf, 3), 1);
        tierce__buf_release(call.req.buf);
    }
    tier_test_end();
}
END_TEST

/* Chunks submitted before a clear cannot be found after it; later chunks can. */
START_TEST(a_clear_takes_what_is_on_its_way)
{
    static struct tier_call calls[CALLS];
    size_t found;
    if (!start(_i))
        return;
    for (unsigned n = 0; n < CALLS; n++) {
        tier_call_init(&calls[n], TIERCE__STORE_PUT, n);
        calls[n].req.buf = tier_test_object(n, 1, BYTES);
        calls[n].req.object_bytes = BYTES;
        tier_call_submit(&calls[n]);
    }
    ck_assert_int_eq(clear(0, &found), 0);
    ck_assert_int_eq(put_key(5), 0);
    for (unsigned n = 0; n < CALLS; n++) {
        int rc = tier_call_wait(&calls[n]);
        ck_assert_msg(rc == 0 || rc == TIERCE_E_CANCELLED, "%s", tierce_strerror(rc));
        tierce__buf_release(calls[n].req.buf);
    }
    for (unsigned n = 0; n < CALLS; n++)
        ck_assert_uint_eq(tier_test_lookup(n, 1), n == 5);
    check_model(7);
    tier_test_end();
}
END_TEST

static void *hammer(void *arg)
{
    struct test_random random = {(uint64_t)(uintptr_t)arg};
    size_t found;
    for (unsigned i = 0; i < STEPS / 2; i++) {
        uint64_t n = test_random_below(&random, 2 * KEYS);
        uint32_t dice = test_random_below(&random, 200);
        if (dice < 150)
            put_key(n);
        else if (dice < 199)
            run_on(TIERCE__STORE_DELETE, n, TIERCE__LEFT_DELETED);
        else
            (void)clear(test_random_below(&random, 3), &found);
    }
    return NULL;
}

START_TEST(many_threads_are_told_in_order)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    struct test_random random = test_random_start("tier watch threads");
    if (!start(_i))
        return;
    for (unsigned i = 0; i < THREADS; i++) {
        void *seed = (void *)(uintptr_t)test_random_u64(&random);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer, seed), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    check_model(50);
    tier_test_end();
}
END_TEST

void tier_conformance_add_watch(TCase *tcase, int index)
{
    tcase_add_loop_test(tcase, what_is_told_is_what_is_there, index, index + 1);
    tcase_add_loop_test(tcase, what_is_evicted_is_told, index, index + 1);
    tcase_add_loop_test(tcase, a_clear_takes_a_namespace_or_all, index, index + 1);
    tcase_add_loop_test(tcase, a_clear_leaves_what_is_lent, index, index + 1);
    tcase_add_loop_test(tcase, a_clear_takes_what_is_on_its_way, index, index + 1);
    tcase_add_loop_test(tcase, many_threads_are_told_in_order, index, index + 1);
}
