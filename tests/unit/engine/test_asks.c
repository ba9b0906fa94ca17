/* SPDX-License-Identifier: Apache-2.0 */
/* Queries to remote stores with simulated levels: answers in part, patience, several stores. */
#include "engine/asks.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "engine/engine.h"
#include "silent_log.h"

#include <string.h>

enum { KEYS = 20, PART_MS = 7, LOOKUP_MS = 100, LOAD_MS = 10000, REQS = 16 };

static struct tierce_engine engine;
static struct tierce__key keys[KEYS];

/* A level: how many leading keys it has, and how many of these its answers have shown. */
static struct level {
    size_t has, known;
    bool knows_end; /* that the key behind them is not there */
    bool is_down;
    struct tierce__store_req *reqs[REQS]; /* that were submitted, the last last */
    size_t count;
    unsigned noted;
} levels[3];

/* ---- in place of storage.c ------------------------------------------------------------------- */

bool tierce__storage_submit(struct tierce_engine *of, size_t level, struct tierce__store_req *req)
{
    struct level *it = &levels[level];
    ck_assert(of == &engine && req->op == TIERCE__STORE_LOOKUP && it->count < REQS);
    if (it->is_down)
        return false;
    it->reqs[it->count++] = req;
    return true;
}

void tierce__storage_note(struct tierce_engine *of, size_t level,
                          const struct tierce__store_req *req)
{
    ck_assert(of == &engine && req == levels[level].reqs[levels[level].count - 1]);
    levels[level].noted++;
}

size_t tierce__storage_recall(struct tierce_engine *of, size_t level,
                              const struct tierce__key *from, size_t count,
                              enum tierce__tier_recall recall, int *status)
{
    const struct level *it = &levels[level];
    size_t first = (size_t)(from - keys), left = it->known > first ? it->known - first : 0;
    ck_assert(of == &engine && recall == TIERCE__RECALL_ONLY);
    left = left < count ? left : count;
    *status = it->is_down ? TIERCE_E_DOWN : TIERCE_E_DEADLINE;
    if (it->knows_end && first + left >= it->has)
        *status = 0;
    return left;
}

/* ---- helpers --------------------------------------------------------------------------------- */

static void set_up(void)
{
    silence_log();
    memset(levels, 0, sizeof(levels));
    memset(&engine, 0, sizeof(engine));
    engine.level_count = 3;
    engine.levels[1].health.shared = engine.levels[2].health.shared = true;
    engine.settings.lookup_ms = LOOKUP_MS;
    engine.settings.load_ms = LOAD_MS;
    tierce__asks_init(&engine.asks);
    for (uint8_t i = 0; i < KEYS; i++)
        keys[i] = (struct tierce__key){.hash = {i}, .shard = {.tp_size = 1, .pp_size = 1}};
}

static void tear_down(void)
{
    tierce__asks_fini(&engine.asks);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* Answers the last request of a level, which shows `found` of the keys that it asked for. */
static void answer(size_t level, int status, size_t found)
{
    struct level *it = &levels[level];
    struct tierce__store_req *req = it->reqs[it->count - 1];
    size_t first = (size_t)req->key_count; /* of `keys`, which the request has copied */
    first = KEYS - first;
    ck_assert(tierce__key_equal(&req->keys[0], &keys[first]));
    it->known = first + found > it->known ? first + found : it->known;
    it->knows_end = status == 0;
    req->status = status;
    req->found = found;
    req->done(req);
}

/* A search that does not wait. */
static size_t search(uint32_t of, uint64_t part_ms, struct tierce__unasked *unasked)
{
    uint8_t places[KEYS];
    struct tierce__search wanted = {
        .levels = of, .part_ns = part_ms * TIERCE__MS_NS, .places = places};
    size_t found = tierce__ask_stores(&engine, &wanted, keys, KEYS);
    for (size_t i = 0; i < found; i++)
        ck_assert(places[i] > 0 && levels[places[i]].known > i);
    *unasked = wanted.unasked;
    return found;
}

static void expect_deadline(const struct tierce__store_req *req, uint64_t from_ns, uint64_t ms)
{
    ck_assert_uint_ge(req->deadline_ns, from_ns + ms * TIERCE__MS_NS);
    ck_assert_uint_le(req->deadline_ns, tierce__now_ns() + (ms + 1) * TIERCE__MS_NS);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* A query for many chunks ends when the prompt cannot wait longer. What the store has shown by then
 * counts, and it is asked for the rest once more, patiently. */
START_TEST(an_answer_in_part_counts_and_the_rest_is_asked_for)
{
    struct tierce__unasked unasked;
    uint64_t from_ns = tierce__now_ns();
    levels[1].has = KEYS;
    ck_assert_uint_eq(search(2, PART_MS, &unasked), 0);
    ck_assert(unasked.pending && unasked.status == TIERCE_E_DEADLINE &&
              unasked.since_ns >= from_ns);
    ck_assert(levels[1].count == 1 && levels[1].reqs[0]->key_count == KEYS);
    expect_deadline(levels[1].reqs[0], from_ns, PART_MS);
    from_ns = tierce__now_ns();
    answer(1, TIERCE_E_DEADLINE, 8);
    ck_assert(levels[1].count == 2 && levels[1].noted == 1);
    ck_assert_uint_eq(levels[1].reqs[1]->key_count, KEYS - 8);
    expect_deadline(levels[1].reqs[1], from_ns, LOAD_MS);
    ck_assert_uint_eq(search(2, PART_MS, &unasked), 8);
    ck_assert(unasked.pending && unasked.level == 1);
    ck_assert_uint_eq(levels[1].count, 2); /* it waits for the query that is under way */
    answer(1, 0, KEYS - 8);
    ck_assert_uint_eq(search(2, PART_MS, &unasked), KEYS);
    ck_assert(!unasked.pending && unasked.status == 0 && engine.asks.count == 0);
    ck_assert_uint_eq(engine.asks.answer_ns[1], 0); /* of few chunks only */
    ck_assert_uint_eq(levels[1].noted, 2);
}
END_TEST

/* Without a limit by cost.wait the query has timeout.lookup; a store that shows nothing by then is
 * asked once more, and then no more for this prompt. */
START_TEST(a_store_that_shows_nothing_is_asked_twice)
{
    struct tierce__unasked unasked;
    uint64_t from_ns = tierce__now_ns();
    ck_assert_uint_eq(search(2, 0, &unasked), 0);
    expect_deadline(levels[1].reqs[0], from_ns, LOOKUP_MS);
    answer(1, TIERCE_E_DEADLINE, 0);
    ck_assert_uint_eq(levels[1].reqs[1]->key_count, KEYS);
    ck_assert_uint_eq(search(2, 0, &unasked), 0);
    ck_assert(unasked.pending && levels[1].count == 2);
    answer(1, TIERCE_E_DEADLINE, 0);
    ck_assert(levels[1].count == 2 && engine.asks.count == 0);
}
END_TEST

/* The limit of a prompt that waits shorter than timeout.lookup, and of one that could wait longer.
 */
START_TEST(the_earlier_deadline_counts)
{
    struct tierce__unasked unasked;
    uint64_t from_ns = tierce__now_ns();
    ck_assert_uint_eq(search(2, 3600 * 1000, &unasked), 0);
    expect_deadline(levels[1].reqs[0], from_ns, LOOKUP_MS);
    answer(1, 0, 0);
    ck_assert_uint_eq(search(2, PART_MS, &unasked), 0);
    ck_assert(!unasked.pending && unasked.status == 0 && levels[1].count == 1);
}
END_TEST

/* It shows nothing before its first answer: cut off, it would be asked twice. */
START_TEST(a_distant_store_is_not_asked_for_a_part)
{
    struct tierce__unasked unasked;
    uint64_t from_ns = tierce__now_ns();
    engine.asks.answer_ns[1] = PART_MS * TIERCE__MS_NS + 1;
    engine.asks.answer_ns[2] = PART_MS * TIERCE__MS_NS;
    levels[1].has = KEYS;
    ck_assert_uint_eq(search(6, PART_MS, &unasked), 0);
    expect_deadline(levels[1].reqs[0], from_ns, LOOKUP_MS);
    expect_deadline(levels[2].reqs[0], from_ns, PART_MS);
    answer(1, 0, KEYS);
    ck_assert_uint_eq(search(6, PART_MS, &unasked), KEYS);
    answer(2, 0, 0);
    ck_assert(!unasked.pending && levels[1].count == 1);
}
END_TEST

/* One store's answer in part is continued by another one, and the first is asked no more. */
START_TEST(another_store_continues_an_answer_in_part)
{
    struct tierce__unasked unasked;
    levels[1].has = 8;
    levels[2].has = KEYS;
    ck_assert_uint_eq(search(6, PART_MS, &unasked), 0);
    ck_assert(levels[1].count == 1 && levels[2].count == 1);
    answer(1, TIERCE_E_DEADLINE, 8);
    answer(2, TIERCE_E_DEADLINE, 12);
    ck_assert_uint_eq(search(6, PART_MS, &unasked), 12);
    ck_assert(unasked.pending);
    answer(1, 0, 0);
    answer(2, 0, KEYS - 12);
    ck_assert_uint_eq(search(6, PART_MS, &unasked), KEYS);
    ck_assert(!unasked.pending && levels[1].count == 2 && levels[2].count == 2);
}
END_TEST

START_TEST(a_store_out_of_service_is_not_waited_for)
{
    struct tierce__unasked unasked;
    levels[1].is_down = true;
    levels[2].has = 5;
    ck_assert_uint_eq(search(6, PART_MS, &unasked), 0);
    answer(2, 0, 5);
    ck_assert_uint_eq(search(6, PART_MS, &unasked), 5);
    ck_assert(!unasked.pending && unasked.level == 1 && unasked.status == TIERCE_E_DOWN);
}
END_TEST

CHECK_MAIN("asks", .setup = set_up, .teardown = tear_down,
           .tests = {an_answer_in_part_counts_and_the_rest_is_asked_for,
                     a_store_that_shows_nothing_is_asked_twice, the_earlier_deadline_counts,
                     a_distant_store_is_not_asked_for_a_part,
                     another_store_continues_an_answer_in_part,
                     a_store_out_of_service_is_not_waited_for})
