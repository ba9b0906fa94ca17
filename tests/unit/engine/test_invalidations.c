/* SPDX-License-Identifier: Apache-2.0 */
/* Invalidations that a store has told the engine: what goes on while one of them blocks. */
#include "engine_fixture.h"
#include "engine/invalidations.h"
#include "engine/observe/operate.h"
#include "wait_for.h"

static const char *const sets[] = {"timeout.pin", "1h", "remote.urls",
                                   "fleet://127.0.0.1:1/default", NULL};
static struct fixture fx;

static void invalidate(void)
{
    struct tierce__invalidated what = {.shard = fx.view->key.shard, .generation = 2};
    size_t fleet = fx.engine->level_count - 1;
    ck_assert_int_eq(fx.engine->levels[fleet].origin, TIERCE_ORIGIN_REMOTE);
    memcpy(what.ns_digest, fx.view->ns_digest, sizeof(what.ns_digest));
    tierce__invalidations_note(&fx.engine->levels[fleet], &what);
}

static bool is_begun(void)
{
    tierce__lock_take(&fx.engine->lock);
    bool is = tierce__list_empty(&fx.engine->invalidations);
    tierce__lock_drop(&fx.engine->lock);
    return is;
}

/* A clear waits for an operation that publishes chunks; the keeper does not wait for the clear. */
START_TEST(deadlines_are_kept_while_a_clear_waits)
{
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    uint64_t era = tierce__era_enter_now(fx.engine);
    invalidate();
    WAIT_FOR(is_begun());
    fx.engine->settings.pin_ms = 1;
    ck_assert_uint_eq(fx_found(&fx, chain, 40, TIERCE_LOOKUP_PIN, 7, NULL), 40);
    WAIT_FOR(fx_stats(&fx).pins_expired == 1);
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 40);
    tierce__era_leave(fx.engine, era);
    WAIT_FOR(fx_found(&fx, chain, 40, 0, 0, NULL) == 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
}
END_TEST

/* Those that nobody has begun are dropped. */
START_TEST(an_engine_closes_with_invalidations)
{
    fx_open(&fx, true, sets);
    for (unsigned i = 0; i < 10; i++)
        invalidate();
    fx_close(&fx);
}
END_TEST

CHECK_MAIN("invalidations", .seconds = 180,
           .tests = {deadlines_are_kept_while_a_clear_waits, an_engine_closes_with_invalidations})
