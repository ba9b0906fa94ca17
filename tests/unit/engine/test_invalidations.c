/* SPDX-License-Identifier: Apache-2.0 */
/* Invalidations that a store has told the engine: what goes on while one of them blocks. */
#include "engine_fixture.h"
#include "base/alloc.h"
#include "base/file.h"
#include "engine/generations.h"
#include "engine/invalidations.h"
#include "engine/observe/operate.h"
#include "wait_for.h"

static const char *const sets[] = {"timeout.pin", "1h", "remote.urls",
                                   "fleet://127.0.0.1:1/default", NULL};
static struct fixture fx;

static uint64_t registry = 9;

static bool hear(uint64_t generation, bool is_first)
{
    struct tierce__invalidated what = {.shard = fx.view->key.shard,
                                       .generation = generation,
                                       .registry = registry,
                                       .is_first = is_first};
    size_t fleet = fx.engine->level_count - 1;
    ck_assert_int_eq(fx.engine->levels[fleet].origin, TIERCE_ORIGIN_REMOTE);
    memcpy(what.ns_digest, fx.view->ns_digest, sizeof(what.ns_digest));
    return tierce__invalidations_note(&fx.engine->levels[fleet], &what);
}

static void invalidate(uint64_t generation)
{
    ck_assert(!hear(generation, false));
}

static unsigned wait_count(void)
{
    unsigned count = 0;
    tierce__lock_take(&fx.engine->lock);
    TIERCE__LIST_FOR_EACH (node, &fx.engine->invalidations)
        count++;
    tierce__lock_drop(&fx.engine->lock);
    return count;
}

static bool is_begun(void)
{
    return wait_count() == 0;
}

/* A clear waits for an operation that publishes chunks; the keeper does not wait for the clear. */
START_TEST(deadlines_are_kept_while_a_clear_waits)
{
    fx_open(&fx, true, sets);
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    uint64_t era = tierce__era_enter_now(fx.engine);
    invalidate(2);
    WAIT_FOR(is_begun());
    fx.engine->settings.pin_ms = 1;
    ck_assert_uint_eq(fx_found(&fx, chain, 40, TIERCE_LOOKUP_PIN, 7, NULL), 40);
    WAIT_FOR(fx_stats(&fx).pins_expired == 1);
    ck_assert_uint_eq(fx_found(&fx, chain, 40, 0, 0, NULL), 40);
    tierce__era_leave(fx.engine, era);
    WAIT_FOR(fx_found(&fx, chain, 40, 0, 0, NULL) == 0);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* Another process of the same engine: closing waits for an invalidation that was begun. */
static void open_again(void)
{
    fx_close(&fx);
    fx_open(&fx, true, sets);
    /* The store knows the namespace when it has been asked for a prompt that is not here. */
    struct tierce_chain *other = fx_chain(&fx, 2, 40, 0);
    ck_assert_uint_eq(fx_found(&fx, other, 40, 0, 0, NULL), 0);
    tierce_chain_destroy(other);
}

static uint64_t found(void)
{
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    uint64_t blocks = fx_found(&fx, chain, 40, 0, 0, NULL);
    tierce_chain_destroy(chain);
    return blocks;
}

static void store(void)
{
    struct tierce_chain *chain = fx_chain(&fx, 1, 40, 0);
    ck_assert_int_eq(fx_store(&fx, chain, 40, fx_ids, false), 40);
    tierce_chain_destroy(chain);
}

/* The generation that was heard is noted with the disk. */
START_TEST(a_disk_keeps_its_generation)
{
    fx_open(&fx, true, sets);
    store();
    invalidate(7);
    WAIT_FOR(found() == 0);
    store();
    open_again();
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_uint_eq(found(), 40);
        invalidate(7);
        WAIT_FOR(is_begun());
        open_again();
    }
    invalidate(8);
    WAIT_FOR(found() == 0);
    store();
    open_again();
    invalidate(7); /* a manager of before was restored */
    WAIT_FOR(found() == 0);
    store();
    open_again();
    registry = 10; /* another one counts the same number */
    invalidate(7);
    WAIT_FOR(found() == 0);
    for (registry = 0; registry < 2; registry++) { /* not known; then another one */
        store();
        open_again();
        invalidate(7);
        WAIT_FOR(found() == 0);
    }
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* A manager that counts from 1: nothing was invalidated, unless the disk has heard of another. */
START_TEST(a_first_generation)
{
    fx_open(&fx, true, sets);
    store();
    ck_assert(hear(1, true));
    for (unsigned i = 0; i < 2; i++) {
        open_again();
        ck_assert(hear(1, true));
        WAIT_FOR(is_begun());
        ck_assert_uint_eq(found(), 40);
    }
    open_again();
    registry = 10; /* the registry was lost while the engine was off */
    ck_assert(!hear(1, true));
    WAIT_FOR(found() == 0);
    store();
    invalidate(2);
    WAIT_FOR(found() == 0);
    store();
    open_again();
    ck_assert_uint_eq(found(), 40);
    registry = 0; /* one that is not known, and counts from 1 */
    ck_assert(!hear(1, true));
    WAIT_FOR(found() == 0);
    store();
    open_again();
    ck_assert(hear(1, true)); /* nothing was noted */
    ck_assert_uint_eq(found(), 40);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

/* The second one is not carried out before the first, whose generation would be noted last. */
START_TEST(one_that_fails_stays_the_first)
{
    registry = 9;
    fx_open(&fx, true, sets);
    store();
    (void)!tierce_engine_flush(fx.engine, 60000); /* its threads read load_ms */
    const struct tierce__level *fleet = &fx.engine->levels[fx.engine->level_count - 1];
    struct tierce__invalidated last = {
        .shard = fx.view->key.shard, .generation = 3, .registry = registry};
    memcpy(last.ns_digest, fx.view->ns_digest, sizeof(last.ns_digest));
    uint64_t era = tierce__era_enter_now(fx.engine), store_number = fleet->store;
    uint32_t load_ms = fx.engine->settings.load_ms;
    fx.engine->settings.load_ms = 200; /* the first clear ends without success */
    invalidate(2);
    WAIT_FOR(is_begun());
    invalidate(3);
    WAIT_FOR(wait_count() == 2); /* the first has failed */
    fx.engine->settings.load_ms = load_ms;
    tierce__era_leave(fx.engine, era);
    WAIT_FOR(is_begun() && tierce__generations_has(fx.engine->disk_path, store_number, &last));
    fx_close(&fx);
    ck_assert(tierce__generations_has(fx.folder, store_number, &last));
    fx_remove(&fx);
}
END_TEST

/* ---- the file ---------------------------------------------------------------------------------
 */

static struct tierce__invalidated of_namespace(unsigned n, uint64_t generation)
{
    struct tierce__invalidated what = {
        .shard = {1, 2, 0, 1}, .generation = generation, .registry = 3};
    memcpy(what.ns_digest, &n, sizeof(n));
    return what;
}

static bool has(unsigned n, uint64_t generation)
{
    struct tierce__invalidated what = of_namespace(n, generation);
    return tierce__generations_has(fx.folder, 5, &what);
}

static int set(unsigned n, uint64_t generation)
{
    struct tierce__invalidated what = of_namespace(n, generation);
    return tierce__generations_set(fx.folder, 5, &what);
}

static void write_file(const char *text, size_t bytes)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/" TIERCE__GENERATIONS_FILE, fx.folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
}

static bool may_differ(unsigned n, uint64_t generation)
{
    struct tierce__invalidated what = of_namespace(n, generation);
    struct tierce__generations *loaded = NULL;
    ck_assert_int_eq(tierce__generations_load(&loaded, fx.folder), 0);
    bool may = tierce__generations_may_differ(loaded, 5, &what);
    tierce__generations_free(loaded);
    return may;
}

START_TEST(a_file_of_generations)
{
    struct tierce__invalidated other = of_namespace(1, 7);
    char path[96], *text;
    size_t bytes;
    snprintf(fx.folder, sizeof(fx.folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx.folder);
    snprintf(path, sizeof(path), "%s/" TIERCE__GENERATIONS_FILE, fx.folder);
    ck_assert(!has(1, 7) && !may_differ(1, 7));
    ck_assert_int_eq(set(1, 7), 0);
    ck_assert(!may_differ(1, 7) && may_differ(1, 1) && !may_differ(2, 1));
    ck_assert(has(1, 7) && !has(1, 8) && !has(1, 77) && !has(2, 7));
    ck_assert(!tierce__generations_has(fx.folder, 6, &other)); /* another store */
    other.registry = 4;
    ck_assert(!tierce__generations_has(fx.folder, 5, &other));
    other.registry = 3;
    other.shard.tp_rank = 0;
    ck_assert(!tierce__generations_has(fx.folder, 5, &other));
    ck_assert_int_eq(set(2, 7), 0);
    ck_assert_int_eq(set(1, 8), 0);
    ck_assert(has(1, 8) && !has(1, 7) && has(2, 7));
    for (unsigned n = 0; n < TIERCE__GENERATIONS_MAX; n++)
        ck_assert_int_eq(set(100 + n, 1), 0);
    ck_assert(may_differ(1, 1)); /* its line was dropped */
    ck_assert(!has(1, 8) && has(100, 1) && has(100 + TIERCE__GENERATIONS_MAX - 1, 1));
    /* No flip is believed, and no cut. */
    unlink(path);
    ck_assert_int_eq(set(1, 7), 0);
    ck_assert_int_eq(tierce__read_file(&text, &bytes, path, 4096), 0);
    for (size_t i = 0; i < bytes; i++) {
        text[i] ^= 1;
        write_file(text, bytes);
        ck_assert(!has(1, 7));
        ck_assert(may_differ(1, 7));
        text[i] ^= 1;
        write_file(text, i);
        ck_assert(!has(1, 7) && may_differ(1, 7));
    }
    write_file(text, bytes);
    ck_assert(has(1, 7));
    write_file(text, bytes - 1); /* damaged, and so written anew */
    ck_assert_int_eq(set(2, 7), 0);
    ck_assert(!has(1, 7) && has(2, 7));
    /* A note that fails leaves the file as it was, or one that keeps no chunks. */
    for (uint64_t nth = 1, made = nth; nth <= made; nth++) {
        write_file(text, bytes);
        tierce__alloc_fail_nth(nth);
        int rc = set(2, 7);
        made = tierce__alloc_fail_nth(0);
        ck_assert(rc == -ENOMEM ? has(1, 7) || may_differ(3, 1) : rc == 0 && has(1, 7));
    }
    tierce__free(text);
    write_file("mine", 4);
    ck_assert(may_differ(1, 7));
    ck_assert_int_eq(set(1, 7), TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__read_file(&text, &bytes, path, 4096), 0);
    ck_assert_str_eq(text, "mine");
    tierce__free(text);
    temp_folder_remove(fx.folder);
}
END_TEST

/* Those that nobody has begun are dropped. */
START_TEST(an_engine_closes_with_invalidations)
{
    fx_open(&fx, true, sets);
    for (unsigned i = 0; i < 10; i++)
        invalidate(2 + i);
    fx_close(&fx);
    fx_remove(&fx);
}
END_TEST

CHECK_MAIN("invalidations", .seconds = 180,
           .tests = {deadlines_are_kept_while_a_clear_waits, a_disk_keeps_its_generation,
                     a_first_generation, one_that_fails_stays_the_first, a_file_of_generations,
                     an_engine_closes_with_invalidations})
