/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "manager/holdings/holdings.h"
#include "test_random.h"

/*
 * 200 workers that behave as engines do (engine/observe/reporter.c), on a simulated clock: they
 * join, send their contents when it is their turn, report changes, die and come back; calls and
 * answers are lost, late calls arrive, and another manager leads. In the end the directory has what
 * the workers hold, key by key and tier by tier.
 */

#define MS     1000000ULL
#define SECOND (1000 * MS)

enum {
    WORKERS = 200,
    SENDERS = 8,
    SILENCE_MS = 5000,
    KEYS = 4000,
    TIERS = 3,
    HELD = 120,        /* about so many keys of each worker */
    QUEUE = 256,       /* changes that wait in a worker */
    PART = 50,         /* keys of a part of the contents */
    ROUNDS = 240,      /* of a quarter of a second */
    QUIET_ROUNDS = 400 /* without faults, until all contents must be there */
};

static struct tierce__holdings *holdings;
static struct test_random dice;
static uint64_t now_ns;

enum phase { DEAD, OUTSIDE, JOINED, SENDING, COMPLETE };

static struct worker {
    enum phase phase;
    struct tierce__directory_id id;
    uint64_t again_ns; /* not before */
    uint64_t sending, covered;
    uint32_t sent;          /* keys of the snapshot that were sent */
    uint8_t tiers[KEYS];    /* bits: what it holds */
    uint8_t snapshot[KEYS]; /* what is being sent */
    uint64_t first,
        reported; /* numbers: of the queue's first change; of the last one that counts */
    uint32_t count;
    struct tierce__directory_change queue[QUEUE];
    bool has_overflown;
} workers[WORKERS];

static uint32_t below(uint32_t limit)
{
    return test_random_below(&dice, limit);
}

static struct tierce__directory_key key_of(uint32_t n)
{
    return (struct tierce__directory_key){n * 0x9e3779b97f4a7c15ULL, n};
}

/* ---- what a worker holds --------------------------------------------------------------------- */

static void note(struct worker *w, uint32_t key, uint8_t tier, bool admitted)
{
    if (admitted)
        w->tiers[key] |= (uint8_t)(1u << tier);
    else
        w->tiers[key] &= (uint8_t) ~(1u << tier);
    if (w->count == QUEUE) { /* the contents are sent again, as if events were lost */
        w->has_overflown = true;
        w->first += w->count;
        w->count = 0;
    }
    w->queue[w->count++] =
        (struct tierce__directory_change){.key = key_of(key), .tier = tier, .admitted = admitted};
}

static void change(struct worker *w, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++) {
        uint32_t key = below(KEYS);
        uint8_t tier = (uint8_t)below(TIERS);
        if (w->tiers[key] != 0 || below(KEYS) < HELD)
            note(w, key, tier, (w->tiers[key] >> tier & 1) == 0);
    }
}

/* ---- its calls ------------------------------------------------------------------------------- */

static void join(struct worker *w)
{
    char name[16];
    snprintf(name, sizeof(name), "%u", (unsigned)(w - workers));
    int rc = tierce__directory_join(
        tierce__holdings_directory(holdings),
        &(struct tierce__directory_worker){.group = "g", .name = name, .address = "", .host = ""},
        now_ns, &w->id);
    if (rc == 0)
        w->phase = JOINED;
    else
        ck_assert_int_eq(rc, TIERCE_E_LIMIT); /* until slots are clean */
}

/* Returns whether the call counted. */
static bool answered(struct worker *w, enum tierce__directory_answer answer)
{
    if (answer == TIERCE__DIRECTORY_UNKNOWN)
        w->phase = OUTSIDE;
    else if (answer == TIERCE__DIRECTORY_RESYNC)
        w->phase = JOINED;
    return answer == TIERCE__DIRECTORY_DONE;
}

static void begin(struct worker *w)
{
    uint32_t wait_ms;
    enum tierce__directory_answer answer =
        tierce__holdings_begin(holdings, w->id, ++w->sending, now_ns, &wait_ms);
    if (answer == TIERCE__DIRECTORY_LATER)
        w->again_ns = now_ns + wait_ms * MS;
    if (!answered(w, answer))
        return;
    w->phase = SENDING;
    w->sent = 0;
    w->has_overflown = false;
    w->first += w->count;
    w->count = 0;
    w->covered = w->first - 1;
    memcpy(w->snapshot, w->tiers, sizeof(w->tiers));
}

static void send_part(struct worker *w, bool is_lost)
{
    struct tierce__directory_change part[PART * TIERS];
    size_t count = 0;
    uint32_t key = w->sent;
    for (; key < KEYS && count < PART; key++) {
        for (uint8_t tier = 0; tier < TIERS; tier++) {
            if ((w->snapshot[key] >> tier & 1) != 0)
                part[count++] = (struct tierce__directory_change){
                    .key = key_of(key), .tier = tier, .admitted = true};
        }
    }
    enum tierce__directory_answer answer =
        count > 0 ? tierce__holdings_add(holdings, w->id, w->sending, part, count, now_ns)
                  : tierce__holdings_end(holdings, w->id, w->sending, w->covered, now_ns);
    if (is_lost) /* the answer: the call is repeated */
        return;
    if (!answered(w, answer))
        return;
    w->sent = key;
    if (count > 0)
        return;
    w->phase = COMPLETE;
    w->reported = w->covered;
}

static void report(struct worker *w, bool is_lost)
{
    while (w->count > 0 && w->first <= w->reported) { /* they are known there */
        memmove(w->queue, w->queue + 1, --w->count * sizeof(*w->queue));
        w->first++;
    }
    if (w->has_overflown) {
        w->phase = JOINED;
        return;
    }
    enum tierce__directory_answer answer = tierce__directory_report(
        tierce__holdings_directory(holdings), w->id, w->reported + 1, w->queue, w->count, now_ns);
    if (!is_lost && answered(w, answer))
        w->reported += w->count;
}

/* A call of an earlier sending, or with a gap. */
static void send_late(struct worker *w)
{
    struct tierce__directory_change stray = {.key = key_of(KEYS + 1), .admitted = true};
    if (w->sending > 1)
        ck_assert_int_ne(tierce__holdings_add(holdings, w->id, w->sending - 1, &stray, 1, now_ns),
                         TIERCE__DIRECTORY_DONE);
    if (w->phase == COMPLETE && below(4) == 0) {
        stray.key = key_of(KEYS + 2);
        ck_assert_int_ne(tierce__directory_report(tierce__holdings_directory(holdings), w->id,
                                                  w->reported + w->count + 100, &stray, 1, now_ns),
                         TIERCE__DIRECTORY_DONE);
    }
}

static void act(struct worker *w, bool has_faults)
{
    uint32_t fate = has_faults ? below(1000) : 999;
    if (w->phase == DEAD && now_ns >= w->again_ns) {
        w->phase = OUTSIDE;
        if (below(2) == 0) /* without a disk it comes back empty */
            memset(w->tiers, 0, sizeof(w->tiers));
        w->first += w->count;
        w->count = 0;
        w->sending = 0;
    } else if (w->phase != DEAD && fate < 4) {
        w->phase = DEAD;
        w->again_ns = now_ns + (1 + below(20)) * SECOND;
    }
    if (w->phase == DEAD)
        return;
    if (has_faults)
        change(w, 20);
    if (fate < 50 || now_ns < w->again_ns) /* a call is lost, or it is not its turn */
        return;
    if (fate < 60)
        send_late(w);
    bool is_lost = fate < 100;
    if (w->phase == OUTSIDE)
        join(w);
    else if (w->phase == JOINED)
        begin(w);
    else if (w->phase == SENDING)
        send_part(w, is_lost);
    else
        report(w, is_lost);
}

static void tick(void)
{
    now_ns += SECOND / 4;
    for (unsigned i = 0; i < 5; i++)
        tierce__holdings_tick(holdings, now_ns);
}

/* ---- the comparison -------------------------------------------------------------------------- */

static bool are_complete(void)
{
    for (unsigned i = 0; i < WORKERS; i++) {
        if (workers[i].phase != COMPLETE || workers[i].count > 0)
            return false;
    }
    return true;
}

static void compare(uint32_t key)
{
    static struct tierce__directory_found found;
    struct tierce__directory_key wanted = key_of(key);
    struct tierce__directory_asker asker = {.group = "g", .host = ""};
    uint32_t holders = 0;
    ck_assert_int_eq(
        tierce__directory_find(tierce__holdings_directory(holdings), &wanted, 1, &asker, &found),
        0);
    for (unsigned i = 0; key < KEYS && i < WORKERS; i++)
        holders += workers[i].tiers[key] != 0;
    ck_assert_uint_lt(holders, TIERCE__DIRECTORY_PREFIXES_MAX);
    ck_assert_uint_eq(found.prefix_count, holders);
    for (uint32_t p = 0; p < holders; p++) {
        struct tierce__directory_who who;
        ck_assert(tierce__directory_who(tierce__holdings_directory(holdings),
                                        found.prefixes[p].worker, &who));
        const struct worker *w = &workers[strtoul(who.name, NULL, 10)];
        for (uint8_t tier = 0; tier < TIERS; tier++)
            ck_assert_uint_eq(found.prefixes[p].in_tier[tier], w->tiers[key] >> tier & 1);
        ck_assert(!found.prefixes[p].is_incomplete);
    }
}

static void compare_all(void)
{
    uint64_t pairs = 0;
    struct tierce__directory_stats stats;
    for (uint32_t key = 0; key < KEYS + 3; key++)
        compare(key);
    for (unsigned i = 0; i < WORKERS; i++) {
        struct tierce__directory_about about;
        uint64_t tiers[TIERS] = {0}, keys = 0;
        for (uint32_t key = 0; key < KEYS; key++) {
            keys += workers[i].tiers[key] != 0;
            for (uint8_t tier = 0; tier < TIERS; tier++)
                tiers[tier] += workers[i].tiers[key] >> tier & 1;
        }
        ck_assert(
            tierce__directory_about(tierce__holdings_directory(holdings), workers[i].id, &about));
        ck_assert(about.is_whole);
        ck_assert_uint_eq(about.keys, keys);
        for (uint8_t tier = 0; tier < TIERS; tier++)
            ck_assert_uint_eq(about.tier_keys[tier], tiers[tier]);
        pairs += keys;
    }
    for (unsigned i = 0; i < 100; i++)
        tierce__holdings_tick(holdings, now_ns);
    tierce__directory_stats(tierce__holdings_directory(holdings), &stats);
    ck_assert_uint_eq(stats.workers, WORKERS);
    ck_assert_uint_eq(stats.holders, pairs);
    ck_assert(stats.is_clean);
}

/* All workers are killed, many of them while they send their contents: nothing of them is left, and
 * no sender's place. */
static void kill_all(void)
{
    struct tierce__directory_stats stats;
    uint32_t wait_ms;
    unsigned sending = 0;
    for (unsigned i = 0; i < WORKERS; i++)
        sending += tierce__holdings_begin(holdings, workers[i].id, UINT32_MAX, now_ns, &wait_ms) ==
                   TIERCE__DIRECTORY_DONE;
    ck_assert_uint_eq(sending, SENDERS);
    now_ns += 2 * SILENCE_MS * MS;
    for (unsigned i = 0; i < 100; i++)
        tierce__holdings_tick(holdings, now_ns);
    tierce__directory_stats(tierce__holdings_directory(holdings), &stats);
    ck_assert_uint_eq(stats.workers, 0);
    ck_assert_uint_eq(stats.holders, 0);
    ck_assert_uint_eq(stats.keys, 0);
    ck_assert(stats.is_clean);
    for (unsigned i = 0; i < SENDERS; i++) {
        struct tierce__directory_id id;
        char name[16];
        snprintf(name, sizeof(name), "new %u", i);
        ck_assert_int_eq(
            tierce__directory_join(tierce__holdings_directory(holdings),
                                   &(struct tierce__directory_worker){
                                       .group = "g", .name = name, .address = "", .host = ""},
                                   now_ns, &id),
            0);
        ck_assert_int_eq(tierce__holdings_begin(holdings, id, 1, now_ns, &wait_ms),
                         TIERCE__DIRECTORY_DONE);
    }
}

START_TEST(the_directory_has_what_the_workers_hold)
{
    dice = test_random_start("holdings_fleet");
    now_ns = SECOND;
    ck_assert_int_eq(
        tierce__holdings_create(
            &holdings, &(struct tierce__holdings_opts){.size = sizeof(struct tierce__holdings_opts),
                                                       .workers_max = WORKERS + 20,
                                                       .silence_ms = SILENCE_MS,
                                                       .senders_max = SENDERS}),
        0);
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i].phase = OUTSIDE;
        workers[i].first = 1;
        change(&workers[i], HELD * (KEYS / HELD));
    }
    for (unsigned round = 0; round < ROUNDS; round++, tick()) {
        if (round == ROUNDS / 3 || round == 2 * ROUNDS / 3)
            tierce__holdings_clear(holdings); /* another manager leads */
        for (unsigned i = 0; i < WORKERS; i++)
            act(&workers[i], true);
    }
    unsigned rounds = 0;
    for (; !are_complete() && rounds < QUIET_ROUNDS; rounds++, tick()) {
        for (unsigned i = 0; i < WORKERS; i++)
            act(&workers[i], false);
    }
    ck_assert_msg(are_complete(), "some worker has not sent its contents");
    compare_all();
    kill_all();
    tierce__holdings_destroy(holdings);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("holdings fleet", .seconds = 60, .tests = {the_directory_has_what_the_workers_hold})
