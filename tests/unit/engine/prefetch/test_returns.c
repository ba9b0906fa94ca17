/* SPDX-License-Identifier: Apache-2.0 */
/* When conversations are expected to return, on a clock of the test's. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/prefetch/returns.h"

#include <string.h>

#define CHUNK  2u /* blocks */
#define CHUNKS 8u
#define S      (1000 * TIERCE__MS_NS)
#define LEAD   (S / 10)

static struct tierce__returns table;
static uint64_t now, sessions;

struct talk {
    struct tierce_chain *chain;
    struct tierce__key keys[CHUNKS];
};

static void talk_init(struct talk *talk, int32_t number)
{
    struct tierce_chain_opts opts = {
        .size = sizeof(opts), .algo = TIERCE_CHAIN_XXH3_128, .block_tokens = 1};
    ck_assert_int_eq(tierce_chain_create(&talk->chain, &opts), 0);
    for (int32_t i = 0; i < (int32_t)(CHUNKS * CHUNK); i++) {
        int32_t token = number * 100 + i;
        ck_assert_int_ge(tierce_chain_append(talk->chain, &token, 1, NULL), 0);
    }
    memset(talk->keys, 0, sizeof(talk->keys));
    for (size_t i = 0; i < CHUNKS; i++) {
        talk->keys[i].ns = 1;
        memcpy(talk->keys[i].hash, tierce_chain_hash(talk->chain, (i + 1) * CHUNK - 1),
               TIERCE_HASH_BYTES);
    }
}

static struct tierce__return_request request_of(const struct talk *talk, size_t chunks)
{
    return (struct tierce__return_request){.keys = talk->keys,
                                           .count = chunks,
                                           .chain = talk->chain,
                                           .algo = TIERCE_CHAIN_XXH3_128,
                                           .block_tokens = 1,
                                           .chunk_blocks = CHUNK,
                                           .session = sessions,
                                           .extends = true,
                                           .now_ns = now,
                                           .lead_ns = LEAD};
}

/* A request with a session of its own arrives and stores; hint_ns 0: none. */
static struct tierce__return_outcome turn(const struct talk *talk, size_t chunks, uint64_t hint_ns)
{
    struct tierce__return_outcome outcome;
    sessions++;
    struct tierce__return_request request = request_of(talk, chunks);
    request.returns_ns = hint_ns;
    (void)tierce__returns_arrive(&table, &request, &outcome);
    tierce__returns_use(&table, &request);
    return outcome;
}

static struct tierce__returning *due(struct tierce__return_outcome *outcome)
{
    return tierce__returns_due(&table, now, outcome);
}

static struct talk talks[3];

static void setup(void)
{
    now = 100 * S;
    ck_assert_int_eq(tierce__returns_init(&table, 64, 1024), 0);
    for (int32_t i = 0; i < 3; i++)
        talk_init(&talks[i], i + 1);
}

static void teardown(void)
{
    tierce__returns_fini(&table);
    for (size_t i = 0; i < 3; i++)
        tierce_chain_destroy(talks[i].chain);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

START_TEST(a_hint_is_due_before_the_return_and_not_earlier)
{
    struct tierce__return_outcome outcome;
    turn(&talks[0], 4, 10 * S);
    uint64_t begins = now + 10 * S - LEAD - S; /* a tenth of the gap early */
    ck_assert_uint_eq(tierce__returns_next_ns(&table), begins);
    now = begins - 1;
    ck_assert_ptr_null(due(&outcome));
    ck_assert(!outcome.predicted);
    now = begins;
    struct tierce__returning *it = due(&outcome);
    ck_assert_ptr_nonnull(it);
    ck_assert_uint_eq(it->chunks, 4);
    ck_assert_uint_eq(tierce_chain_blocks(it->chain), 4 * CHUNK);
    tierce__returns_note_read(&table, 1, 3, 300);
    tierce__returns_end_reading(&table, now);
    ck_assert_uint_eq(table.read_bytes, 300);
    now += S;
    outcome = turn(&talks[0], 6, 0);
    ck_assert(outcome.predicted && outcome.source == TIERCE__RETURN_HINTED);
    ck_assert_uint_eq(outcome.read_from, 1);
    ck_assert_uint_eq(outcome.read_chunks, 3);
    ck_assert_uint_eq(table.read_bytes, 0);
    ck_assert_uint_eq(tierce__returns_next_ns(&table), UINT64_MAX);
    ck_assert_uint_eq(table.count, 1); /* one conversation, which has become longer */
}
END_TEST

START_TEST(a_conversation_that_does_not_return_lapses)
{
    struct tierce__return_outcome outcome;
    turn(&talks[0], 4, 10 * S);
    now += 10 * S;
    ck_assert_ptr_nonnull(due(&outcome));
    tierce__returns_note_read(&table, 0, 4, 400);
    tierce__returns_end_reading(&table, now);
    now += 5 * S - 1;
    ck_assert_ptr_null(due(&outcome));
    ck_assert(!outcome.predicted);
    now += 1;
    ck_assert_ptr_null(due(&outcome));
    ck_assert(outcome.predicted);
    ck_assert_uint_eq(outcome.read_chunks, 4);
    ck_assert_uint_eq(table.read_bytes, 0);
    now += 100 * S;
    ck_assert(!turn(&talks[0], 5, 0).predicted);
}
END_TEST

START_TEST(a_prediction_counts_its_own_chunks)
{
    struct tierce__return_outcome outcome;
    turn(&talks[0], 4, 10 * S);
    now = tierce__returns_next_ns(&table);
    ck_assert_ptr_nonnull(due(&outcome));
    tierce__returns_note_read(&table, 1, 3, 300);
    tierce__returns_end_reading(&table, now);
    now += S;
    ck_assert_uint_eq(turn(&talks[0], 5, 10 * S).read_chunks, 3);
    now += S;
    outcome = turn(&talks[0], 6, 10 * S); /* before anything was read for it */
    ck_assert(outcome.predicted);
    ck_assert_uint_eq(outcome.read_chunks, 0);
    now = tierce__returns_next_ns(&table);
    ck_assert_ptr_nonnull(due(&outcome));
    tierce__returns_note_read(&table, 4, 2, 200);
    tierce__returns_end_reading(&table, now);
    now += S;
    outcome = turn(&talks[0], 7, 0);
    ck_assert_uint_eq(outcome.read_from, 4);
    ck_assert_uint_eq(outcome.read_chunks, 2);
}
END_TEST

START_TEST(a_return_while_it_is_read_ends_the_reading)
{
    struct tierce__return_outcome outcome;
    turn(&talks[0], 4, 10 * S);
    now += 9 * S;
    ck_assert_ptr_nonnull(due(&outcome));
    tierce__returns_note_read(&table, 0, 1, 100);
    outcome = turn(&talks[0], 5, 0);
    ck_assert(outcome.predicted);
    ck_assert_uint_eq(outcome.read_chunks, 1);
    ck_assert_ptr_null(table.reading);
    tierce__returns_end_reading(&table, now); /* of the piece that was in progress */
    ck_assert_uint_eq(tierce__returns_next_ns(&table), UINT64_MAX);
}
END_TEST

START_TEST(what_is_in_memory_is_looked_at_again)
{
    struct tierce__return_outcome outcome;
    turn(&talks[0], 4, 10 * S);
    uint64_t expected = now + 10 * S;
    now = tierce__returns_next_ns(&table);
    for (int looks = 0; tierce__returns_next_ns(&table) != UINT64_MAX; looks++) {
        now = tierce__returns_next_ns(&table);
        ck_assert_uint_lt(now, expected);
        ck_assert_int_lt(looks, 10);
        ck_assert_ptr_nonnull(due(&outcome));
        tierce__returns_end_reading(&table, now);
    }
    ck_assert_uint_ge(now + 100 * TIERCE__MS_NS, expected);
}
END_TEST

START_TEST(regular_gaps_are_learned)
{
    for (int i = 0; i < 3; i++) {
        turn(&talks[0], 4, 0);
        ck_assert_uint_eq(tierce__returns_next_ns(&table), UINT64_MAX);
        now += 20 * S + (uint64_t)i * S;
    }
    turn(&talks[0], 5, 0); /* after gaps of 20, 21 and 22 s */
    ck_assert_uint_eq(tierce__returns_next_ns(&table), now + 20 * S - LEAD - 2 * S);
    now += 400 * S; /* one gap of another kind changes nothing */
    turn(&talks[0], 6, 0);
    ck_assert_uint_eq(tierce__returns_next_ns(&table), UINT64_MAX);
    for (int i = 0; i < 3; i++) {
        now += 20 * S;
        turn(&talks[0], 6, 0);
    }
    ck_assert_uint_eq(tierce__returns_next_ns(&table), now + 20 * S - LEAD - 2 * S);
}
END_TEST

START_TEST(irregular_gaps_predict_nothing)
{
    static const uint64_t gaps[] = {2, 60, 10, 300, 5, 30, 900, 3, 45, 120};
    for (size_t i = 0; i < sizeof(gaps) / sizeof(gaps[0]); i++) {
        turn(&talks[0], 4, 0);
        ck_assert_uint_eq(tierce__returns_next_ns(&table), UINT64_MAX);
        now += gaps[i] * S;
    }
}
END_TEST

START_TEST(a_hint_precedes_gaps_and_closed_ends_all)
{
    for (int i = 0; i < 4; i++) {
        turn(&talks[0], 4, 0);
        now += 20 * S;
    }
    turn(&talks[0], 4, 5 * S);
    ck_assert_uint_lt(tierce__returns_next_ns(&table), now + 5 * S);
    struct tierce__return_request hint = {
        .session = sessions, .now_ns = now, .chunk_lead_ns = LEAD, .closed = true};
    tierce__returns_hint(&table, &talks[0].keys[0], &hint);
    ck_assert_uint_eq(tierce__returns_next_ns(&table), UINT64_MAX);
    hint.closed = false;
    hint.returns_ns = 50 * S;
    tierce__returns_hint(&table, &talks[0].keys[0], &hint);
    ck_assert_uint_eq(tierce__returns_next_ns(&table), now + 50 * S - 4 * LEAD - 2 * S);
    hint.session = 999; /* of nobody */
    hint.closed = true;
    tierce__returns_hint(&table, &talks[0].keys[0], &hint);
    ck_assert_uint_ne(tierce__returns_next_ns(&table), UINT64_MAX);
}
END_TEST

START_TEST(repeated_lookups_and_steps_of_a_request_are_no_return)
{
    struct tierce__return_outcome outcome;
    turn(&talks[0], 2, 10 * S);
    now += S;
    struct tierce__return_request request = request_of(&talks[0], 4);
    ck_assert(!tierce__returns_arrive(&table, &request, &outcome)); /* the same session */
    tierce__returns_use(&table, &request);
    request.session = ++sessions;
    ck_assert(!tierce__returns_arrive(&table, &request, &outcome)); /* at once */
    request.now_ns = now += S;
    ck_assert(tierce__returns_arrive(&table, &request, &outcome));
    request.session = ++sessions;
    request.now_ns = now += S;
    ck_assert(!tierce__returns_arrive(&table, &request, &outcome)); /* until the next use */
    struct tierce__return_request other = request_of(&talks[1], 4);
    ck_assert(!tierce__returns_arrive(&table, &other, &outcome));
}
END_TEST

START_TEST(the_earliest_comes_first_and_the_table_is_bounded)
{
    struct tierce__return_outcome outcome;
    tierce__returns_fini(&table);
    ck_assert_int_eq(tierce__returns_init(&table, 2, 1024), 0);
    turn(&talks[0], 4, 30 * S);
    turn(&talks[1], 4, 10 * S);
    turn(&talks[2], 4, 20 * S); /* the first is forgotten */
    ck_assert_uint_eq(table.count, 2);
    now += 100 * TIERCE__MS_NS + 20 * S;
    struct tierce__returning *it = due(&outcome);
    ck_assert(it == NULL && outcome.predicted); /* the second has lapsed */
    it = due(&outcome);
    ck_assert(it != NULL && tierce__key_equal(&it->last, &talks[2].keys[3]));
    tierce__returns_end_reading(&table, now);
    tierce__returns_fini(&table);
    ck_assert_int_eq(tierce__returns_init(&table, 8, 4 * CHUNK + 1), 0);
    turn(&talks[0], 4, 30 * S);
    turn(&talks[1], 4, 10 * S); /* more hashes than are remembered */
    ck_assert_uint_eq(table.count, 1);
    ck_assert_uint_le(table.blocks, 4 * CHUNK + 1);
}
END_TEST

/* The queue against a search. */
START_TEST(many_are_due_in_order)
{
    static struct talk many[48];
    struct tierce__return_outcome outcome;
    uint64_t random = 88172645463325252u, last = 0;
    for (int32_t i = 0; i < 48; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        talk_init(&many[i], 10 + i);
        turn(&many[i], 2, (10 + random % 1000) * S);
    }
    for (size_t i = 0; i < 48; i += 3)
        turn(&many[i], 3, 0); /* no hint any more */
    size_t count = 0;
    while (tierce__returns_next_ns(&table) != UINT64_MAX) {
        now = tierce__returns_next_ns(&table);
        ck_assert_uint_ge(now, last);
        last = now;
        ck_assert_ptr_nonnull(due(&outcome));
        table.reading->expected_ns = 0; /* not again */
        tierce__returns_end_reading(&table, now);
        count++;
    }
    ck_assert_uint_eq(count, 32);
    for (size_t i = 0; i < 48; i++)
        tierce_chain_destroy(many[i].chain);
}
END_TEST

START_TEST(predictions_that_are_wrong_lose_weight)
{
    uint32_t *weight = &table.weights[TIERCE__RETURN_HINTED].weight;
    for (uint32_t i = 1; i < TIERCE__RETURN_JUDGED; i++) {
        ck_assert(!tierce__returns_judge(&table, TIERCE__RETURN_HINTED, 0, 100));
        ck_assert(
            !tierce__returns_judge(&table, TIERCE__RETURN_HINTED, 0, 0)); /* nothing was read */
    }
    ck_assert(tierce__returns_judge(&table, TIERCE__RETURN_HINTED, 0, 1));
    ck_assert_uint_eq(*weight, TIERCE__RETURN_WEIGHTS / 2);
    for (int i = 0; i < 160; i++)
        (void)tierce__returns_judge(&table, TIERCE__RETURN_HINTED, 3, 13);
    ck_assert_uint_eq(*weight, 1); /* enough to learn that they have become right */
    for (int i = 0; i < 8; i++)
        ck_assert(!tierce__returns_judge(&table, TIERCE__RETURN_HINTED, 0, 16));
    ck_assert_uint_eq(table.weights[TIERCE__RETURN_LEARNED].weight, TIERCE__RETURN_WEIGHTS);
    for (int i = 0; i < 160; i++)
        ck_assert(!tierce__returns_judge(&table, TIERCE__RETURN_HINTED, 12, 4));
    ck_assert_uint_eq(*weight, TIERCE__RETURN_WEIGHTS);
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    tierce__returns_fini(&table);
    for (uint64_t nth = 1, failed = 1; failed > 0; nth++) {
        ck_assert_uint_lt(nth, 100);
        tierce__alloc_fail_nth(nth);
        int rc = tierce__returns_init(&table, 4, 1024);
        if (rc == 0) {
            for (size_t i = 0; i < 3; i++) {
                turn(&talks[i], 3, 10 * S);
                turn(&talks[i], 5, 10 * S);
            }
        }
        failed = tierce__alloc_fail_nth(0) >= nth;
        ck_assert(failed || table.count == 3);
        tierce__returns_fini(&table);
        ck_assert(rc == 0 || failed);
    }
    ck_assert_int_eq(tierce__returns_init(&table, 4, 1024), 0);
}
END_TEST

CHECK_MAIN("returns", .setup = setup, .teardown = teardown,
           .tests = {a_hint_is_due_before_the_return_and_not_earlier,
                     a_conversation_that_does_not_return_lapses, a_prediction_counts_its_own_chunks,
                     a_return_while_it_is_read_ends_the_reading,
                     what_is_in_memory_is_looked_at_again, regular_gaps_are_learned,
                     irregular_gaps_predict_nothing, a_hint_precedes_gaps_and_closed_ends_all,
                     repeated_lookups_and_steps_of_a_request_are_no_return,
                     the_earliest_comes_first_and_the_table_is_bounded, many_are_due_in_order,
                     predictions_that_are_wrong_lose_weight, each_allocation_fails_once})
