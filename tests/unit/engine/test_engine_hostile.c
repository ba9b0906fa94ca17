/* SPDX-License-Identifier: Apache-2.0 */
/* The engine where the world is against it: stores that never end, a device that fails or hangs,
 * callers that race, fork or mix things up. */
#include "base/clock.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "tier/fault.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

static struct fixture fx;
static _Atomic bool stop;

static struct tierce__tier *wrap_disk(void)
{
    struct tierce__tier *wrapped;
    ck_assert_uint_eq(fx.engine->rung_count, 2);
    ck_assert_int_eq(tierce__fault_create(&wrapped, fx.engine->rungs[1].tier), 0);
    fx.engine->rungs[1].tier = wrapped;
    return wrapped;
}

static void store_seed(uint32_t seed)
{
    struct tierce_chain *chain = fx_chain(&fx, seed, 16, 0);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 16, fx_ids);
    ck_assert_int_ge(tierce_store(fx.view, &what), 0);
    tierce_chain_destroy(chain);
}

static void *store_on_and_on(void *arg)
{
    (void)arg;
    for (uint32_t seed = 1000; !atomic_load(&stop); seed++)
        store_seed(seed);
    return NULL;
}

START_TEST(flush_does_not_wait_for_stores_that_begin_later)
{
    pthread_t threads[2];
    fx_open(&fx, true, NULL);
    atomic_store(&stop, false);
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, store_on_and_on, NULL), 0);
    usleep(100000);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 5000), 0);
    atomic_store(&stop, true);
    for (size_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

START_TEST(flush_tells_once_that_a_write_failed)
{
    const char *sets[] = {"breaker.errors", "100", NULL};
    fx_open(&fx, true, sets);
    struct tierce__tier *disk = wrap_disk();
    tierce__fault_set(
        disk, TIERCE__TIER_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO, .times = 1});
    store_seed(1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 5000), -EIO);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 5000), 0);
    /* Dropped by a full queue or refused by a rule: by design, and no error. */
    tierce__fault_set(
        disk, TIERCE__TIER_PUT,
        &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = TIERCE_E_FULL});
    store_seed(2);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 5000), 0);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_hostile");
    TCase *t = tcase_create("engine_hostile");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, flush_does_not_wait_for_stores_that_begin_later);
    tcase_add_test(t, flush_tells_once_that_a_write_failed);
    suite_add_tcase(suite, t);
    return check_main(suite);
}
