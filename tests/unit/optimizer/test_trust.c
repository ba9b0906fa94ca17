/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "optimizer/analysis/ttft.h"
#include "optimizer/analysis/trust.h"
#include "test_recording.h"

#include <errno.h>

#include <math.h>

/* Findings and intervals, on traces small enough to verify by hand. */

struct run {
    struct tierce__cache caches[4];
    struct tierce__sweep sweep;
    struct tierce__trust trust;
};

static void run(struct run *out, const struct tierce__recording *recording, const char *cache,
                const uint64_t *capacities, size_t count, uint32_t rounds)
{
    static const struct tierce__match match = {.kind = TIERCE__MATCH_PREFIX};
    static const enum tierce__touch_order order = TIERCE__TOUCH_REV;
    struct tierce__sessions *sessions = NULL;
    struct tierce__watch watch;
    *out = (struct run){0};
    ck_assert_int_eq(tierce__cache_find(&out->caches[0], cache), 0);
    if (rounds > 0) {
        ck_assert_int_eq(tierce__sessions_create(&sessions, recording), 0);
        watch = tierce__sessions_watch(sessions);
    }
    ck_assert_int_eq(tierce__sweep_run(&out->sweep, recording,
                                       &(struct tierce__sweep_opts){
                                           .size = sizeof(struct tierce__sweep_opts),
                                           .caches = out->caches,
                                           .cache_count = 1,
                                           .orders = &order,
                                           .order_count = 1,
                                           .matches = &match,
                                           .match_count = 1,
                                           .capacities = capacities,
                                           .capacity_count = count,
                                           .threads = 1,
                                           .watches = &watch,
                                           .watch_count = rounds > 0,
                                       }),
                     0);
    ck_assert_int_eq(tierce__trust_run(&out->trust, &out->sweep, recording, sessions, rounds, 7),
                     0);
    tierce__sessions_destroy(sessions);
}

static void clear(struct run *run)
{
    tierce__trust_clear(&run->trust);
    tierce__sweep_clear(&run->sweep);
}

static bool has(const struct run *run, size_t row, enum tierce__finding finding)
{
    return (run->trust.rows[row].findings & 1u << finding) != 0;
}

/* Ten requests of one block each, of which 5 are different, the last new one comes as the 8th. */
static const struct test_request ten[] = {
    {.chain = "a"}, {.chain = "b"}, {.chain = "a"}, {.chain = "c"}, {.chain = "b"},
    {.chain = "d"}, {.chain = "a"}, {.chain = "e"}, {.chain = "a"}, {.chain = "b"},
};

static void check_ten(const char *cache)
{
    static const uint64_t capacities[] = {1, 2, 4, 5};
    struct tierce__recording *recording = test_record(ten, 10);
    struct run r;
    run(&r, recording, cache, capacities, 4, 0);
    /* More than one block is stored from the 2nd request on, more than 2 from the 4th, more than 4
     * from the 8th; 5 never. */
    static const double shares[] = {0.1, 0.3, 0.7, 1};
    for (size_t i = 0; i < 4; i++) {
        uint64_t missed = r.sweep.rows[i].blocks - r.sweep.rows[i].hits;
        ck_assert_double_eq(r.trust.rows[i].warm_up_share, shares[i]);
        ck_assert_double_eq(r.trust.rows[i].compulsory, 5.0 / (double)missed);
        ck_assert_int_eq(has(&r, i, TIERCE__FINDING_WARM_UP), i == 2);
        ck_assert_int_eq(has(&r, i, TIERCE__FINDING_UNEXERCISED), i == 3);
        /* 4 blocks: one left. */
        ck_assert_int_eq(has(&r, i, TIERCE__FINDING_BARELY), i == 2);
        ck_assert_int_eq(has(&r, i, TIERCE__FINDING_COMPULSORY), missed == 5);
        ck_assert(!r.trust.rows[i].has_interval);
    }
    clear(&r);
    tierce__recording_destroy(recording);
}

START_TEST(findings_of_the_curve)
{
    check_ten("lru");
}
END_TEST

START_TEST(findings_of_a_replay)
{
    check_ten("leaf-lru");
}
END_TEST

/* Reads store nothing: a block that is never written misses each time. */
START_TEST(reads_fill_nothing)
{
    static const struct test_request requests[] = {
        {.chain = "ab", .kind = TIERCE__TRACE_READ},
        {.chain = "ab", .kind = TIERCE__TRACE_READ},
        {.chain = "ab", .kind = TIERCE__TRACE_WRITE},
        {.chain = "ab", .kind = TIERCE__TRACE_READ},
    };
    static const uint64_t capacities[] = {1, 2};
    struct tierce__recording *recording = test_record(requests, 4);
    struct run r;
    run(&r, recording, "lru", capacities, 2, 0);
    ck_assert_double_eq(r.trust.rows[0].warm_up_share, 0.5);
    ck_assert(has(&r, 1, TIERCE__FINDING_UNEXERCISED));
    ck_assert_uint_eq(r.sweep.rows[1].hits, 2);
    ck_assert_double_eq(r.trust.rows[1].compulsory, 1); /* 4 of 4 */
    clear(&r);
    tierce__recording_destroy(recording);
}
END_TEST

/* SIEVE with 2 slots. Newest first: "b' a" means that b was used. */
START_TEST(the_hand)
{
    static const struct test_request requests[] = {
        {.chain = "a"}, {.chain = "b"}, {.chain = "a"}, /* b a' */
        {.chain = "c"},                                 /* passes a, takes b: c a */
        {.chain = "d"},                                 /* takes a: d c */
    };
    static const uint64_t capacity = 2;
    struct tierce__recording *recording = test_record(requests, 4);
    struct run r;
    run(&r, recording, "sieve", &capacity, 1, 0);
    ck_assert(r.sweep.rows[0].has_hand);
    ck_assert_uint_eq(r.sweep.rows[0].evicted, 1);
    ck_assert_uint_eq(r.sweep.rows[0].wraps, 0);
    ck_assert(has(&r, 0, TIERCE__FINDING_NO_WRAP));
    clear(&r);
    tierce__recording_destroy(recording);
    /* b was the newest when it left, so that the hand begins again at a. */
    recording = test_record(requests, 5);
    run(&r, recording, "sieve", &capacity, 1, 0);
    ck_assert_uint_eq(r.sweep.rows[0].evicted, 2);
    ck_assert_uint_eq(r.sweep.rows[0].wraps, 1);
    ck_assert(!has(&r, 0, TIERCE__FINDING_NO_WRAP));
    clear(&r);
    tierce__recording_destroy(recording);
}
END_TEST

START_TEST(a_policy_without_a_hand_has_no_finding_about_it)
{
    static const uint64_t capacity = 2;
    struct tierce__recording *recording = test_record(ten, 10);
    struct run r;
    run(&r, recording, "lfu", &capacity, 1, 0);
    ck_assert(!r.sweep.rows[0].has_hand && !has(&r, 0, TIERCE__FINDING_NO_WRAP));
    clear(&r);
    tierce__recording_destroy(recording);
}
END_TEST

/* ---- intervals ------------------------------------------------------------------------------- */

/* Session 1 hits always after its start, session 2 never: a draw of two sessions has both of one or
 * one of each, so that the rate is 0, one third or two thirds. */
START_TEST(sessions_of_the_trace)
{
    static const struct test_request requests[] = {
        {.chain = "a", .session = 1}, {.chain = "x", .session = 2}, {.chain = "a", .session = 1},
        {.chain = "y", .session = 2}, {.chain = "a", .session = 1}, {.chain = "z", .session = 2},
    };
    static const uint64_t capacity = 100;
    struct tierce__recording *recording = test_record(requests, 6);
    struct run r;
    run(&r, recording, "lru", &capacity, 1, 1000);
    ck_assert_int_eq(r.trust.kind, TIERCE__SESSIONS_TRACE);
    ck_assert_uint_eq(r.trust.sessions, 2);
    ck_assert_uint_eq(r.trust.clusters, 2);
    ck_assert_uint_eq(r.trust.seed, 7);
    ck_assert(r.trust.rows[0].has_interval);
    ck_assert_double_eq(r.trust.rows[0].low, 0);
    ck_assert_double_eq(r.trust.rows[0].high, 2 / 3.0);
    struct run again;
    run(&again, recording, "lru", &capacity, 1, 1000);
    ck_assert_double_eq(r.trust.rows[0].high, again.trust.rows[0].high);
    clear(&again);
    clear(&r);
    tierce__recording_destroy(recording);
}
END_TEST

/* All go through s, which so tells nothing; a, b and c do. */
START_TEST(a_subtree_stands_for_a_session)
{
    static const struct test_request requests[] = {
        {.chain = "sa"}, {.chain = "sb"},   {.chain = "sap"}, {.chain = "sbq"},
        {.chain = "sc"}, {.chain = "sapr"}, {.chain = "s"},
    };
    struct test_request many[700];
    static const uint64_t capacity = 100;
    for (size_t i = 0; i < 700; i++)
        many[i] = i < 7 ? requests[i] : (struct test_request){.chain = "st"};
    struct tierce__recording *recording = test_record(many, 700);
    struct run r;
    run(&r, recording, "arc", &capacity, 1, 10);
    ck_assert_int_eq(r.trust.kind, TIERCE__SESSIONS_SUBTREE);
    /* a, b, c; and t and s, which are the last of their requests. */
    ck_assert_uint_eq(r.trust.sessions, 5);
    clear(&r);
    tierce__recording_destroy(recording);
}
END_TEST

/* One session: nothing can be drawn but itself. */
START_TEST(one_session_is_no_interval_at_all)
{
    static const struct test_request requests[] = {
        {.chain = "a", .session = 1}, {.chain = "a", .session = 1}, {.chain = "b", .session = 1}};
    static const uint64_t capacity = 100;
    struct tierce__recording *recording = test_record(requests, 3);
    struct run r;
    run(&r, recording, "belady", &capacity, 1, 50);
    ck_assert_double_eq(r.trust.rows[0].low, 1 / 3.0);
    ck_assert_double_eq(r.trust.rows[0].high, 1 / 3.0);
    clear(&r);
    tierce__recording_destroy(recording);
}
END_TEST

/* All that is found, with watches and curves; 0 or the first error. */
static int find_all(const struct tierce__recording *recording, struct tierce__cache *caches)
{
    static const struct tierce__match match = {.kind = TIERCE__MATCH_PREFIX};
    static const enum tierce__touch_order order = TIERCE__TOUCH_REV;
    static const uint64_t capacities[] = {2, 3};
    struct tierce__setup setup = {.block_tokens = 10};
    struct tierce__profiles profiles;
    char why[TIERCE__PROFILE_WHY_BYTES];
    tierce__profiles_init(&profiles);
    ck_assert_int_eq(tierce__model_read(&setup.model, &profiles, "qwen3-32b", why), 0);
    ck_assert_int_eq(tierce__gpu_read(&setup.gpu, &profiles, "h20", why), 0);
    ck_assert_int_eq(tierce__storage_read(&setup.storage, &profiles, "nvme", why), 0);
    struct tierce__latencies *latencies = NULL;
    struct tierce__sessions *sessions = NULL;
    struct tierce__sweep sweep = {0};
    struct tierce__economy economy = {0};
    struct tierce__trust trust = {0};
    int rc = tierce__latencies_create(&latencies, &setup, recording);
    if (rc == 0)
        rc = tierce__sessions_create(&sessions, recording);
    struct tierce__watch watches[2];
    if (rc == 0) {
        watches[0] = tierce__latencies_watch(latencies);
        watches[1] = tierce__sessions_watch(sessions);
        rc = tierce__sweep_run(&sweep, recording,
                               &(struct tierce__sweep_opts){
                                   .size = sizeof(struct tierce__sweep_opts),
                                   .caches = caches,
                                   .cache_count = 2,
                                   .orders = &order,
                                   .order_count = 1,
                                   .matches = &match,
                                   .match_count = 1,
                                   .capacities = capacities,
                                   .capacity_count = 2,
                                   .threads = 1,
                                   .block_tokens = 10,
                                   .keeps_curves = true,
                                   .watches = watches,
                                   .watch_count = 2,
                               });
    }
    if (rc == 0)
        rc = tierce__economy_run(&economy, &sweep, recording, &setup);
    if (rc == 0)
        rc = tierce__trust_run(&trust, &sweep, recording, sessions, 5, 0);
    tierce__trust_clear(&trust);
    tierce__economy_clear(&economy);
    tierce__sweep_clear(&sweep);
    tierce__latencies_destroy(latencies);
    tierce__sessions_destroy(sessions);
    return rc;
}

START_TEST(the_infinite_cache_has_a_row_for_each_match_without_capacities)
{
    static const struct test_request requests[] = {
        {.time_s = 0, .chain = "abc"},
        {.time_s = 1, .chain = "abd"},
    };
    static const struct tierce__match matches[] = {{.kind = TIERCE__MATCH_PREFIX},
                                                   {.kind = TIERCE__MATCH_ANY},
                                                   {.kind = TIERCE__MATCH_WINDOW, .window = 1}};
    static const enum tierce__touch_order order = TIERCE__TOUCH_REV;
    struct tierce__recording *recording = test_record(requests, 2);
    struct tierce__cache cache;
    struct tierce__sweep sweep;
    ck_assert_int_eq(tierce__cache_find(&cache, "infinite"), 0);
    ck_assert_int_eq(tierce__sweep_run(&sweep, recording,
                                       &(struct tierce__sweep_opts){
                                           .size = sizeof(struct tierce__sweep_opts),
                                           .caches = &cache,
                                           .cache_count = 1,
                                           .orders = &order,
                                           .order_count = 1,
                                           .matches = matches,
                                           .match_count = 3,
                                           .threads = 1,
                                       }),
                     0);
    ck_assert_uint_eq(sweep.row_count, 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(sweep.rows[i].match.kind, matches[i].kind);
        ck_assert_uint_eq(sweep.rows[i].capacity, TIERCE__CAPACITY_UNLIMITED);
        ck_assert_uint_eq(sweep.rows[i].hits, 2);
    }
    tierce__sweep_clear(&sweep);
    tierce__recording_destroy(recording);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    static const struct test_request requests[] = {
        {.time_s = 0, .chain = "abc", .session = 1},
        {.time_s = 1, .chain = "abd"},
        {.time_s = 2, .chain = "abc", .session = 1},
    };
    struct tierce__recording *recording = test_record(requests, 3);
    struct tierce__cache caches[2];
    ck_assert_int_eq(tierce__cache_find(&caches[0], "lru"), 0);
    ck_assert_int_eq(tierce__cache_find(&caches[1], "sieve"), 0);
    uint64_t live = tierce__alloc_live();
    tierce__alloc_fail_nth(0);
    ck_assert_int_eq(find_all(recording, caches), 0);
    uint64_t count = tierce__alloc_fail_nth(0);
    ck_assert_uint_gt(count, 20);
    for (uint64_t nth = 1; nth <= count; nth++) {
        tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(find_all(recording, caches), -ENOMEM);
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    tierce__alloc_fail_nth(0);
    tierce__recording_destroy(recording);
}
END_TEST

CHECK_MAIN("trust",
           .tests = {findings_of_the_curve, findings_of_a_replay, reads_fill_nothing, the_hand,
                     a_policy_without_a_hand_has_no_finding_about_it, sessions_of_the_trace,
                     a_subtree_stands_for_a_session, one_session_is_no_interval_at_all,
                     the_infinite_cache_has_a_row_for_each_match_without_capacities,
                     every_allocation_may_fail})
