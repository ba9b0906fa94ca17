/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that leave between the parts of a store: it holds no chunk any longer. timeout.pin is
 * longer than a test may take, so that nothing else can free the chunks. */
#include "native_fixture.h"
#include "child_exit.h"
#include "temp_folder.h"
#include "wait_for.h"

#include <signal.h>
#include <sys/wait.h>

static struct native_client other;

static void start_for_long(void)
{
    char *pin = (char *)"--timeout.pin=1h";
    start(1, &pin);
}

/* A view of part `index` of two: layer 0, or the other three. */
static void open_part(struct native_client *c, uint32_t index, const char *engine)
{
    union tierce__native_answer say;
    union tierce__native_request ask =
        native_view_question(index, index == 0 ? 1 : FX_LAYERS - 1, index, 2);
    ask.view.engine = engine;
    NATIVE_ASSERT(native_ask(c, TIERCE__NATIVE_VIEW, &ask, &say, NULL) == 0);
    c->view = say.view.number;
}

static void open_rank(struct native_client *c, uint32_t index, const char *engine)
{
    NATIVE_ASSERT(native_hello(c, path, NULL) == 0);
    open_part(c, index, engine);
}

/* Begins and fills part `index`; returns the store, 0 if there is nothing to store. */
static uint64_t begin_part(struct native_client *c, uint32_t index, uint64_t write)
{
    union tierce__native_answer say;
    struct tierce__native_reserved rooms[CHUNKS];
    NATIVE_ASSERT(native_store_begin(c, &say, chain, 1, write) == 0);
    uint64_t store = say.store_begin.store;
    uint32_t count = native_rooms(rooms, CHUNKS, &say);
    for (uint32_t i = 0; i < count; i++)
        native_fill(c, &rooms[i], chain, index, index == 0 ? 1 : FX_LAYERS);
    return store;
}

static uint64_t end_part(struct native_client *c, uint64_t store)
{
    uint64_t blocks = UINT64_MAX;
    NATIVE_ASSERT(native_store_end(c, store, true, &blocks) == 0);
    return blocks;
}

static void store_part(struct native_client *c, uint32_t index, uint64_t write)
{
    uint64_t store = begin_part(c, index, write);
    NATIVE_ASSERT(store != 0);
    NATIVE_ASSERT(end_part(c, store) == 0);
}

/* Another engine stores the chunks as soon as nobody has claimed them. */
static void check_others_can_store(void)
{
    native_open(&other, path);
    WAIT_WITHIN(30000, native_store(&other, chain, 1) == BLOCKS);
    ck_assert_uint_eq(check_found(chain), BLOCKS);
    WAIT_WITHIN(30000, atomic_load(&node.node->counters[TIERCE__NODE_native_stores_left]) == 1);
    native_close(&other, true);
}

static void check_others_cannot_store(void)
{
    native_open(&other, path);
    ck_assert_uint_eq(native_store(&other, chain, 1), 0);
    ck_assert_uint_eq(check_found(chain), 0);
    native_close(&other, true);
}

static void close_all(uint32_t clients)
{
    if (clients > 0)
        native_close(&a, true);
    if (clients > 1)
        native_close(&b, true);
    wait_for_clients(0);
    check_free();
    end();
}

/* Runs a rank in a process of its own, which is killed when it has stored its part, or has only its
 * view. */
static void kill_rank(uint32_t index, const char *engine, bool stores)
{
    int ready[2], status;
    char byte;
    ck_assert_int_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        native_is_mortal = true;
        open_rank(&other, index, engine);
        if (stores)
            store_part(&other, index, 7);
        if (write(ready[1], "r", 1) != 1)
            child_exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_gt(pid, 0);
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(ready[0]);
}

/* ---- a rank dies ----------------------------------------------------------------------------- */

/* The other rank lives, has stored its part, and waits for nothing. */
START_TEST(a_rank_that_dies_before_its_part)
{
    start_for_long();
    open_rank(&a, 0, "engine");
    store_part(&a, 0, 7);
    check_others_cannot_store();
    kill_rank(1, "engine", false);
    check_others_can_store();
    ck_assert_uint_eq(begin_part(&a, 0, 8), 0);
    close_all(1);
}
END_TEST

/* Its part is complete, and the living rank stores the other one. */
START_TEST(a_rank_that_dies_after_its_part)
{
    start_for_long();
    open_rank(&a, 0, "engine");
    kill_rank(1, "engine", true);
    wait_for_clients(1);
    uint64_t store = begin_part(&a, 0, 7);
    ck_assert_uint_eq(end_part(&a, store), BLOCKS);
    ck_assert_uint_eq(check_found(chain), BLOCKS);
    close_all(1);
}
END_TEST

/* The part of the dead rank belongs to an aborted store, and the living one joins it late. */
START_TEST(a_part_that_comes_after_its_store_was_aborted)
{
    start_for_long();
    open_rank(&a, 0, "engine");
    open_rank(&b, 1, "engine");
    store_part(&a, 0, 7);
    union tierce__native_request ask = {.view_close.number = b.view};
    ck_assert_int_eq(native_ask(&b, TIERCE__NATIVE_VIEW_CLOSE, &ask, NULL, NULL), 0);
    open_part(&b, 1, "engine");
    ck_assert_uint_eq(begin_part(&b, 1, 7), 0);
    /* The next store of the engine is complete. */
    store_part(&a, 0, 8);
    uint64_t store = begin_part(&b, 1, 8);
    ck_assert_uint_eq(end_part(&b, store), BLOCKS);
    ck_assert_uint_eq(check_found(chain), BLOCKS);
    close_all(2);
}
END_TEST

/* ---- the engine dies ------------------------------------------------------------------------- */

/* Its other rank never came, lives no more, or has never been asked. */
START_TEST(an_engine_that_dies_between_its_parts)
{
    start_for_long();
    if (_i == 1) {
        open_rank(&b, 1, "engine");
        native_close(&b, true);
        wait_for_clients(0);
    }
    kill_rank((uint32_t)_i % 2, _i == 2 ? "" : "engine", true);
    check_others_can_store();
    close_all(0);
}
END_TEST

/* The engine's lookups come from another client of the first rank, which ends first. */
START_TEST(a_client_beside_the_one_that_stores)
{
    start_for_long();
    open_rank(&a, 0, "engine");
    open_rank(&b, 1, "engine");
    store_part(&a, 0, 7);
    kill_rank(1, "engine", false);
    wait_for_clients(2);
    check_others_cannot_store();
    uint64_t store = begin_part(&b, 1, 7);
    ck_assert_uint_eq(end_part(&b, store), BLOCKS);
    ck_assert_uint_eq(check_found(chain), BLOCKS);
    close_all(2);
}
END_TEST

/* A client that has an equal view of another engine leaves. */
START_TEST(an_engine_beside_the_one_that_stores)
{
    start_for_long();
    open_rank(&a, 0, "engine");
    open_rank(&b, 1, "engine");
    store_part(&a, 0, 7);
    kill_rank(1, "another", false);
    wait_for_clients(2);
    check_others_cannot_store();
    uint64_t store = begin_part(&b, 1, 7);
    ck_assert_uint_eq(end_part(&b, store), BLOCKS);
    close_all(2);
}
END_TEST

/* Views are closed while the stores are complete, but have not ended. */
START_TEST(views_that_are_closed_before_their_stores_end)
{
    uint64_t stores[2];
    struct native_client *ranks[] = {&a, &b};
    start_for_long();
    for (uint32_t i = 0; i < 2; i++) {
        open_rank(ranks[i], i, "engine");
        stores[i] = begin_part(ranks[i], i, 7);
    }
    for (uint32_t i = 0; i < 2; i++) {
        union tierce__native_request ask = {.view_close.number = ranks[i]->view};
        ck_assert_int_eq(native_ask(ranks[i], TIERCE__NATIVE_VIEW_CLOSE, &ask, NULL, NULL), 0);
    }
    ck_assert_uint_eq(stats().views, 0);
    ck_assert_uint_eq(end_part(&a, stores[0]), 0);
    ck_assert_uint_eq(end_part(&b, stores[1]), BLOCKS);
    ck_assert_uint_eq(check_found(chain), BLOCKS);
    close_all(2);
}
END_TEST

/* The memory of a store that is not over stays until its client ends it. */
START_TEST(a_store_in_progress_when_the_other_rank_dies)
{
    start_for_long();
    open_rank(&a, 0, "engine");
    uint64_t store = begin_part(&a, 0, 7);
    uint64_t held = stats().held_bytes;
    kill_rank(1, "engine", false);
    check_others_can_store();
    ck_assert_uint_eq(stats().held_bytes, held);
    ck_assert_uint_eq(end_part(&a, store), 0);
    ck_assert_uint_eq(stats().held_bytes, 0);
    close_all(1);
}
END_TEST

CHECK_MAIN("node_native_parts", .seconds = 120,
           .tests = {a_rank_that_dies_before_its_part, a_rank_that_dies_after_its_part,
                     a_part_that_comes_after_its_store_was_aborted,
                     a_client_beside_the_one_that_stores, an_engine_beside_the_one_that_stores,
                     views_that_are_closed_before_their_stores_end,
                     a_store_in_progress_when_the_other_rank_dies},
           .loops = {{an_engine_that_dies_between_its_parts, 0, 3}})
