/* SPDX-License-Identifier: Apache-2.0 */
/* A client of a node whose answers are cut or do not come, and one that lies while a load that is
 * larger than its memory goes through it. */
#include "check_main.h"
#include "base/clock.h"
#include "engine/node_client/client_silence.h"
#include "liar.h"
#include "log_record.h"

#define LOOKUP_NS UINT64_C(2000000000) /* LOOKUP_TIME */

/* ---- answers that are cut, or do not come ---------------------------------------------------- */

#ifdef __SANITIZE_THREAD__ /* fewer places of a cut: the threads do the same after each */
enum { NEAR = 10, FAR = 34 };
#else
enum { NEAR = 3, FAR = 13 };
#endif

START_TEST(cut_answers)
{
    static const enum tierce__native_op ops[] = {
        TIERCE__NATIVE_HELLO,      TIERCE__NATIVE_VIEW,         TIERCE__NATIVE_LOOKUP,
        TIERCE__NATIVE_LOAD_BEGIN, TIERCE__NATIVE_LOAD_END,     TIERCE__NATIVE_STORE_BEGIN,
        TIERCE__NATIVE_STORE_END,  TIERCE__NATIVE_PREFETCH_POLL};
    start((const char *const[]){"timeout.pin", "100ms", NULL});
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        for (size_t sends = 0; sends < 100; sends += sends < 32 ? NEAR : FAR) {
            lie_with((struct lie){ops[i], .is_cut = true, .sends = sends});
            check_all(chain, (uint32_t)(1000 * i + sends));
        }
    }
    tell_the_truth();
    /* The same client continues, and operations whose answer it did not receive have been
     * released. */
    int64_t loaded = 0;
    for (int i = 0; i < 3000 && loaded < BLOCKS; i++) {
        is_no_failure(fx_store(&fx, chain, BLOCKS, fx_ids, true));
        loaded = check_load(chain);
        if (loaded < BLOCKS)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    ck_assert_int_eq(loaded, BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

static void tell_patience(const struct lie *lie, struct answer *answer)
{
    (void)lie;
    answer->say.hello.store_ms = answer->say.hello.load_ms = UINT32_MAX;
    answer->say.hello.lookup_ms = answer->say.hello.prefetch_ms = UINT32_MAX;
}

/* A node that announces a long wait, and waits, delays no caller for longer than the client's own
 * configuration allows: the test has its own limit. */
START_TEST(answers_that_do_not_come)
{
    static const enum tierce__native_op ops[] = {TIERCE__NATIVE_STORE_BEGIN, TIERCE__NATIVE_LOOKUP,
                                                 TIERCE__NATIVE_LOAD_BEGIN,
                                                 TIERCE__NATIVE_STORE_END};
    static const size_t places[] = {0, 3, 8, 20};
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    close_client();
    lie_with((struct lie){TIERCE__NATIVE_HELLO, .tell = tell_patience});
    open_client();
    ck_assert_int_eq(check_load(chain), BLOCKS);
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        lie_with((struct lie){ops[_i], .is_cut = true, .hangs = true, .sends = places[i]});
        if (ops[_i] == TIERCE__NATIVE_STORE_BEGIN || ops[_i] == TIERCE__NATIVE_STORE_END)
            check_store((uint32_t)i);
        else
            check_all(chain, (uint32_t)i);
        unsigned told = tell_the_truth(); /* after three late answers it is left alone */
        ck_assert(i > 0 || told > 0);
    }
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* A client that has to connect and to tell its view first waits for both as long as for one
 * lookup. */
START_TEST(answers_that_are_late_together)
{
    struct tierce_found found = {0};
    struct tierce_lookup_opts look = {.size = sizeof(look)};
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    close_client();
    open_client();
    lie_with((struct lie){.late_ms = 1100}); /* HELLO and VIEW: more than LOOKUP_TIME */
    ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &look, &found), 0);
    ck_assert_uint_eq(found.blocks, 0);
    tell_the_truth();
    for (int i = 0; i < 100 && found.blocks == 0; i++)
        ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &look, &found), 0);
    ck_assert_uint_eq(found.blocks, BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

#define CALLERS 16 /* as many as the client has connections */

static void *prefetch_once(void *arg)
{
    check_prefetch(arg);
    return NULL;
}

/* Answers that never come hold the client's connections for as long as the node holds what they
 * may have begun, and no longer. */
START_TEST(answers_that_never_come)
{
    pthread_t threads[CALLERS];
    struct tierce_found found = {0};
    struct tierce_lookup_opts look = {.size = sizeof(look)};
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    close_client();
    open_client_with(LOOKUP_TIME, "500ms");
    ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &look, &found), 0);
    ck_assert_uint_eq(found.blocks, BLOCKS);
    lie_with((struct lie){TIERCE__NATIVE_PREFETCH_BEGIN, .is_cut = true, .hangs = true});
    for (size_t i = 0; i < CALLERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, prefetch_once, chain), 0);
    for (size_t i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_gt(tell_the_truth(), 3); /* all, but on a very busy machine */
    found.blocks = 0;
    for (int i = 0; i < 100 && found.blocks == 0; i++) {
        ck_assert_int_eq(tierce_lookup(fx.view, chain, BLOCKS, &look, &found), 0);
        poll(NULL, 0, 50);
    }
    ck_assert_uint_eq(found.blocks, BLOCKS);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* ---- nodes that hang, and slow ones ---------------------------------------------------------- */

static struct tierce_engine_stats stats_of_client(void)
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(client, &stats);
    return stats;
}

static bool is_connected(void)
{
    return stats_of_client().node_connected_now == 1;
}

static void lookup_until_found(const struct tierce_chain *chain)
{
    uint64_t found = 0;
    for (int i = 0; i < 1000 && found < BLOCKS; i++) {
        found = fx_found(&fx, chain, BLOCKS, 0, 0, NULL);
        poll(NULL, 0, found < BLOCKS ? 20 : 0);
    }
    ck_assert_uint_eq(found, BLOCKS);
}

/* After a few late requests, calls return at once until the node answers again. */
START_TEST(a_node_that_hangs)
{
    record_log(TIERCE_LOG_WARN);
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    struct tierce_load *begun;
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    ck_assert_int_eq(tierce_load_begin(&begun, fx.view, &what), 0);
    lie_with((struct lie){.stops = true});
    for (int i = 0; i < 1000 && is_connected(); i++) {
        ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, 0, 0, NULL), 0);
        poll(NULL, 0, 20);
    }
    ck_assert(!is_connected());
    ck_assert_uint_eq(recorded_with("node_silent", liar.path), 1);
    uint64_t begin_ns = tierce__now_ns();
    for (uint32_t i = 0; i < 5; i++)
        check_all(chain, i);
    ck_assert_int_ge(tierce_load_end(begun, NULL), 0);
    ck_assert_uint_lt(tierce__now_ns() - begin_ns, LOOKUP_NS); /* not one deadline */
    ck_assert_uint_eq(recorded("node_in_service"), 0);
    tell_the_truth();
    lookup_until_found(chain);
    ck_assert(is_connected());
    ck_assert_uint_eq(recorded("node_silent"), 1);
    ck_assert_uint_eq(recorded("node_in_service"), 1);
    ck_assert_uint_eq(recorded("node_lost"), 0);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* Lookups give up, but the node answers: it stays connected, and is asked again and again. */
START_TEST(a_slow_node_is_not_left_alone)
{
    record_log(TIERCE_LOG_WARN);
    start(NULL);
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, BLOCKS, fx_ids, true), BLOCKS);
    close_client();
    open_client_with("200ms", "60s");
    lookup_until_found(chain);
    int64_t late = stats_of_client().node_late;
    lie_with((struct lie){.late_ms = 600});
    uint64_t until_ns = tierce__deadline_in_ms(4 * TIERCE__SILENCE_MS);
    while (tierce__now_ns() < until_ns) {
        ck_assert_uint_eq(fx_found(&fx, chain, BLOCKS, 0, 0, NULL), 0);
        ck_assert(is_connected());
        poll(NULL, 0, 20);
    }
    ck_assert_int_gt(stats_of_client().node_late - late, TIERCE__SILENCE_LATE_MAX);
    tell_the_truth();
    lookup_until_found(chain);
    ck_assert_uint_eq(recorded("node_silent"), 0);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

/* ---- loads that are larger than memory ------------------------------------------------------- */

#define LARGE 480u /* blocks: about half of their chunks fit into 1 MiB */
#define STEP  40u

static int32_t large_ids[LARGE];
static uint64_t offset_before; /* of the chunk that was passed last */

static void load_large(const struct tierce_chain *chain, uint32_t seed)
{
    uint8_t origins[LARGE];
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, LARGE, large_ids);
    (void)seed;
    what.timeout_ms = 20000;
    fx_wipe(&fx);
    int64_t loaded = tierce_load(fx.view, &what, origins), right = 0;
    is_no_failure(loaded);
    for (size_t b = 0; loaded >= 0 && b < LARGE; b++) {
        if (origins[b] == TIERCE_ORIGIN_FAILED)
            continue;
        ck_assert(fx_right(&fx, chain, b, large_ids[b]));
        right++;
    }
    ck_assert(loaded < 0 || loaded == right);
    ck_assert(liar.lie.op != 0 || loaded == LARGE);
}

static void tell_the_one_before(const struct lie *lie, struct answer *answer)
{
    uint64_t offset = answer->say.load_next.offset;
    (void)lie;
    if (answer->status == 0 && offset_before != 0)
        answer->say.load_next.offset = offset_before;
    offset_before = offset;
}

static void tell_failed(const struct lie *lie, struct answer *answer)
{
    (void)lie;
    answer->say.load_next.state = TIERCE__NATIVE_FAILED; /* although it is lent */
}

START_TEST(chunks_that_are_passed)
{
    static const int32_t statuses[] = {1, 2, 3, INT32_MAX, INT32_MIN, -1, -110, -5001, -5007};
    const enum tierce__native_op op = TIERCE__NATIVE_LOAD_NEXT;
    for (int32_t b = 0; b < (int32_t)LARGE; b++)
        large_ids[b] = b;
    start_over(true, (const char *const[]){"memory.size", "1MiB", "disk.queue", "1MiB",
                                           "timeout.load", "20s", NULL});
    struct tierce_chain *chain = fx_chain(&fx, 1, LARGE, 0);
    for (size_t to = STEP; to <= LARGE; to += STEP) {
        ck_assert_int_eq(fx_store(&fx, chain, to, large_ids, false), STEP);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    }
    load_large(chain, 0);
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
        lie_with((struct lie){op, tell_status, .status = statuses[i]});
        load_large(chain, 0);
        ck_assert_uint_ge(tell_the_truth(), 1);
    }
    try_numbers(op, 0, 8, 1, load_large, chain);
    try_numbers(op, 8, 4, 2, load_large, chain);
    for (size_t sends = 0; sends < 24; sends += 5) {
        lie_with((struct lie){op, .is_cut = true, .sends = sends});
        load_large(chain, 0);
    }
    lie_with((struct lie){op, .tell = tell_the_one_before});
    load_large(chain, 0);
    lie_with((struct lie){op, .tell = tell_failed});
    load_large(chain, 0);
    tell_the_truth();
    load_large(chain, 0);
    tierce_chain_destroy(chain);
    end();
}
END_TEST

CHECK_MAIN("client_cuts", .seconds = 240, .at_once = true,
           .tests = {cut_answers, answers_that_are_late_together, answers_that_never_come,
                     a_node_that_hangs, a_slow_node_is_not_left_alone, chunks_that_are_passed},
           .loops = {{answers_that_do_not_come, 0, 4}})
