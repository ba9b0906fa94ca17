/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/trust.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CLUSTERS_MAX 65536u
#define ROOTED       UINT32_MAX /* used instead of the instance if a block determines the session */

/* ---- sessions -------------------------------------------------------------------------------- */

struct tierce__sessions {
    enum tierce__session_kind kind;
    uint64_t shared_uses;           /* a block with more uses is shared by sessions */
    uint32_t *uses;                 /* [distinct] requests that go through a block */
    struct tierce__intern *numbers; /* (instance, session) or (ROOTED, block) to a session */
    uint32_t clusters;
    uint64_t *blocks; /* [clusters] looked up */
    uint32_t *hits;   /* [row_count][clusters]; NULL before a sweep begins */
    size_t row_count;
};

static void count_uses(struct tierce__sessions *s, const struct tierce__recording *recording)
{
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        const uint32_t *blocks = tierce__recorded_blocks(r);
        for (uint32_t i = 0; i < r->count; i++)
            s->uses[blocks[i]] += s->uses[blocks[i]] < UINT32_MAX;
    }
}

/* The key of a request's session: the id in the trace, or its first unshared block, or its last
 * block if all are shared. */
static uint64_t session_id(const struct tierce__sessions *s, const struct tierce__recorded *r,
                           uint32_t *instance)
{
    if (r->session != 0) {
        *instance = r->instance;
        return r->session;
    }
    const uint32_t *blocks = tierce__recorded_blocks(r);
    uint32_t at = 0;
    while (at + 1 < r->count && s->uses[blocks[at]] > s->shared_uses)
        at++;
    *instance = ROOTED;
    return blocks[at];
}

static uint32_t cluster_of(const struct tierce__sessions *s, const struct tierce__recorded *r)
{
    uint32_t instance;
    uint64_t id = session_id(s, r, &instance);
    uint32_t number = tierce__intern_find(s->numbers, instance, id);
    TIERCE_ASSERT(number != TIERCE__INTERN_NONE);
    return number % s->clusters;
}

static int number_sessions(struct tierce__sessions *s, const struct tierce__recording *recording)
{
    uint32_t instance, number;
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        if (r->read_count == 0)
            continue;
        uint64_t id = session_id(s, r, &instance);
        int rc = tierce__intern_one(s->numbers, instance, id, &number);
        if (rc < 0)
            return rc;
    }
    uint32_t sessions = tierce__intern_count(s->numbers);
    s->clusters = sessions < CLUSTERS_MAX ? sessions : CLUSTERS_MAX;
    s->blocks = tierce__calloc((size_t)s->clusters + 1, sizeof(*s->blocks));
    if (s->blocks == NULL)
        return -ENOMEM;
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        if (r->read_count > 0)
            s->blocks[cluster_of(s, r)] += r->read_count;
    }
    return 0;
}

int tierce__sessions_create(struct tierce__sessions **out,
                            const struct tierce__recording *recording)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    struct tierce__sessions *s = tierce__calloc(1, sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    s->kind = totals.has_sessions ? TIERCE__SESSIONS_TRACE : TIERCE__SESSIONS_SUBTREE;
    s->shared_uses = totals.requests / 100 > 1 ? totals.requests / 100 : 1;
    s->uses = tierce__calloc((size_t)totals.distinct + 1, sizeof(*s->uses));
    int rc = s->uses != NULL ? tierce__intern_create(&s->numbers) : -ENOMEM;
    if (rc == 0) {
        count_uses(s, recording);
        rc = number_sessions(s, recording);
    }
    if (rc < 0) {
        tierce__sessions_destroy(s);
        return rc;
    }
    *out = s;
    return 0;
}

void tierce__sessions_destroy(struct tierce__sessions *sessions)
{
    if (sessions == NULL)
        return;
    tierce__intern_destroy(sessions->numbers);
    tierce__free(sessions->uses);
    tierce__free(sessions->blocks);
    tierce__free(sessions->hits);
    tierce__free(sessions);
}

static int begin(void *arg, const struct tierce__sweep *sweep)
{
    struct tierce__sessions *s = arg;
    TIERCE_ASSERT(s->hits == NULL);
    s->hits = tierce__calloc(sweep->row_count + 1, ((size_t)s->clusters + 1) * sizeof(*s->hits));
    s->row_count = sweep->row_count;
    return s->hits != NULL ? 0 : -ENOMEM;
}

static void lookup(void *arg, size_t row, const struct tierce__recorded *request, uint32_t hits)
{
    const struct tierce__sessions *s = arg;
    if (hits > 0)
        s->hits[row * s->clusters + cluster_of(s, request)] += hits;
}

struct tierce__watch tierce__sessions_watch(struct tierce__sessions *sessions)
{
    return (struct tierce__watch){.arg = sessions, .begin = begin, .lookup = lookup};
}

/* ---- intervals ------------------------------------------------------------------------------- */

/* How often each cluster was drawn in one round. */
static void draw_round(uint32_t *times, uint32_t clusters, uint64_t *state)
{
    memset(times, 0, clusters * sizeof(*times));
    for (uint32_t i = 0; i < clusters; i++)
        times[((tierce__random_next(state) >> 32) * clusters) >> 32]++;
}

static double drawn_rate(const uint32_t *times, const uint32_t *hits, const uint64_t *blocks,
                         uint32_t clusters)
{
    uint64_t hit = 0, asked = 0;
    for (uint32_t i = 0; i < clusters; i++)
        hit += (uint64_t)times[i] * hits[i];
    for (uint32_t i = 0; i < clusters; i++)
        asked += times[i] * blocks[i];
    return asked > 0 ? (double)hit / (double)asked : 0;
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The smallest of `count` sorted values that is no less than that share of them. */
static double percentile(const double *sorted, uint32_t count, double share)
{
    uint32_t at = (uint32_t)(share * count);
    return sorted[at < count ? at : count - 1];
}

/* Returns whether the counts by session are complete: some rows do not observe all lookups. */
static bool is_counted(const struct tierce__sessions *s, const struct tierce__sweep_row *row)
{
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < s->clusters; i++)
        blocks += s->blocks[i];
    return blocks > 0 && blocks == row->blocks && row->match.kind != TIERCE__MATCH_STREAM;
}

static int add_intervals(struct tierce__trust *trust, const struct tierce__sweep *sweep,
                         const struct tierce__sessions *s)
{
    uint32_t rounds = trust->rounds;
    double *rates = tierce__calloc(trust->row_count + 1, rounds * sizeof(*rates));
    uint32_t *times = tierce__calloc((size_t)s->clusters + 1, sizeof(*times));
    uint64_t state = trust->seed;
    int rc = rates != NULL && times != NULL ? 0 : -ENOMEM;
    for (uint32_t round = 0; rc == 0 && round < rounds; round++) {
        draw_round(times, s->clusters, &state);
        for (size_t i = 0; i < trust->row_count; i++)
            rates[i * rounds + round] =
                drawn_rate(times, s->hits + i * s->clusters, s->blocks, s->clusters);
    }
    for (size_t i = 0; rc == 0 && i < trust->row_count; i++) {
        if (!is_counted(s, &sweep->rows[i]))
            continue;
        qsort(rates + i * rounds, rounds, sizeof(*rates), compare_doubles);
        trust->rows[i].has_interval = true;
        trust->rows[i].low = percentile(rates + i * rounds, rounds, 0.025);
        trust->rows[i].high = percentile(rates + i * rounds, rounds, 0.975);
    }
    tierce__free(rates);
    tierce__free(times);
    return rc;
}

/* ---- findings -------------------------------------------------------------------------------- */

/* The shares above which a finding is reported: requests before the cache was full, and unavoidable
 * misses. */
#define WARM_UP_MOST    0.5
#define COMPULSORY_MOST 0.9

struct by_capacity {
    uint64_t capacity;
    size_t row;
};

static int compare_capacities(const void *a, const void *b)
{
    const struct by_capacity *x = a, *y = b;
    return (x->capacity > y->capacity) - (x->capacity < y->capacity);
}

/* Results of one scan for all caches that store every miss: until it is full, each holds all stored
 * blocks. */
struct trust_scan {
    struct by_capacity *order; /* [row_count] */
    size_t filled;             /* of these, with an eviction so far */
    bool *stored;              /* [distinct] */
    uint64_t stored_count;
    uint64_t compulsory; /* lookups of blocks that were not stored before */
};

static void scan_request(struct trust_scan *scan, const struct tierce__recorded *r)
{
    const uint32_t *blocks = tierce__recorded_blocks(r);
    for (uint32_t i = 0; i < r->count; i++) {
        bool is_new = !scan->stored[blocks[i]];
        scan->compulsory += is_new && i < r->read_count;
        if (is_new && i < r->stored) {
            scan->stored[blocks[i]] = true;
            scan->stored_count++;
        }
    }
}

static int scan_recording(struct trust_scan *scan, struct tierce__trust *trust,
                          const struct tierce__sweep *sweep,
                          const struct tierce__recording *recording)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    size_t rows = sweep->in_bytes ? 0 : trust->row_count;
    scan->order = tierce__calloc(rows + 1, sizeof(*scan->order));
    scan->stored = tierce__calloc((size_t)totals.distinct + 1, sizeof(*scan->stored));
    if (scan->order == NULL || scan->stored == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < rows; i++) {
        scan->order[i] = (struct by_capacity){.capacity = sweep->rows[i].capacity, .row = i};
        trust->rows[i].warm_up_share = 1;
    }
    qsort(scan->order, rows, sizeof(*scan->order), compare_capacities);
    uint64_t number = 0;
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        scan_request(scan, r);
        for (; scan->filled < rows && scan->order[scan->filled].capacity < scan->stored_count;
             scan->filled++)
            trust->rows[scan->order[scan->filled].row].warm_up_share =
                (double)number / (double)totals.requests;
        number++;
    }
    return 0;
}

/* Returns whether the number of evicted blocks is known, and the number: counted or, for LRU's
 * curve, the stored misses less the blocks cached at the end. */
static bool count_left(const struct tierce__sweep_row *row, uint64_t *left)
{
    uint64_t missed = tierce__sweep_missed(row);
    *left = row->is_replayed         ? row->evicted + row->expired
            : missed > row->capacity ? missed - row->capacity
                                     : 0;
    return row->is_replayed ||
           (row->cache->kind == TIERCE__CACHE_POLICY &&
            (row->match.kind == TIERCE__MATCH_ANY || row->order == TIERCE__TOUCH_REV));
}

static void find(struct tierce__trust_row *out, const struct tierce__sweep_row *row, bool in_bytes,
                 uint64_t compulsory)
{
    uint64_t missed = tierce__sweep_missed(row), left;
    bool is_bound = row->cache->kind == TIERCE__CACHE_BELADY;
    bool never_full = out->warm_up_share >= 1;
    bool is_known = count_left(row, &left);
    if (missed > 0)
        out->compulsory = compulsory < missed ? (double)compulsory / (double)missed : 1;
    if (row->capacity == TIERCE__CAPACITY_UNLIMITED)
        return;
    if (out->compulsory >= COMPULSORY_MOST)
        out->findings |= 1u << TIERCE__FINDING_COMPULSORY;
    if (row->is_replayed ? left == 0 && row->refused == 0 : never_full)
        out->findings |= 1u << TIERCE__FINDING_UNEXERCISED;
    else if (is_known && left < row->capacity && !is_bound && !in_bytes)
        out->findings |= 1u << TIERCE__FINDING_BARELY;
    if (row->has_hand && row->wraps == 0 && left > 0)
        out->findings |= 1u << TIERCE__FINDING_NO_WRAP;
    if (!never_full && out->warm_up_share > WARM_UP_MOST)
        out->findings |= 1u << TIERCE__FINDING_WARM_UP;
}

/* ---- all of it ------------------------------------------------------------------------------- */

int tierce__trust_run(struct tierce__trust *out, const struct tierce__sweep *sweep,
                      const struct tierce__recording *recording,
                      const struct tierce__sessions *sessions, uint32_t rounds, uint64_t seed)
{
    if (rounds > TIERCE__BOOTSTRAP_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce__trust trust = {.row_count = sweep->row_count};
    struct trust_scan scan = {0};
    trust.rows = tierce__calloc(sweep->row_count + 1, sizeof(*trust.rows));
    int rc = trust.rows != NULL ? scan_recording(&scan, &trust, sweep, recording) : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < trust.row_count; i++)
        find(&trust.rows[i], &sweep->rows[i], sweep->in_bytes, scan.compulsory);
    if (rc == 0 && sessions != NULL && rounds > 0) {
        TIERCE_ASSERT(sessions->hits != NULL && sessions->row_count == sweep->row_count);
        trust.kind = sessions->kind;
        trust.sessions = tierce__intern_count(sessions->numbers);
        trust.clusters = sessions->clusters;
        trust.rounds = rounds;
        trust.seed = seed;
        rc = add_intervals(&trust, sweep, sessions);
    }
    tierce__free(scan.order);
    tierce__free(scan.stored);
    if (rc == 0)
        *out = trust;
    else
        tierce__trust_clear(&trust);
    return rc;
}

void tierce__trust_clear(struct tierce__trust *trust)
{
    tierce__free(trust->rows);
    *trust = (struct tierce__trust){0};
}

/* ---- in words -------------------------------------------------------------------------------- */

const char *tierce__finding_text(enum tierce__finding finding)
{
    static const char *const texts[TIERCE__FINDINGS] = {
        [TIERCE__FINDING_UNEXERCISED] =
            "nothing was evicted: every policy would have had the same result",
        [TIERCE__FINDING_BARELY] =
            "fewer blocks were evicted than it holds: the policy had little effect",
        [TIERCE__FINDING_NO_WRAP] = "the hand never completed a lap: it chose as LFU would have",
        [TIERCE__FINDING_WARM_UP] = "it was not yet full during most of the requests",
        [TIERCE__FINDING_COMPULSORY] =
            "at least nine in ten misses are first uses, which no cache can avoid",
    };
    return texts[finding];
}

const char *tierce__finding_name(enum tierce__finding finding)
{
    static const char *const names[TIERCE__FINDINGS] = {
        [TIERCE__FINDING_UNEXERCISED] = "unexercised", [TIERCE__FINDING_BARELY] = "barely",
        [TIERCE__FINDING_NO_WRAP] = "no_wrap",         [TIERCE__FINDING_WARM_UP] = "warm_up",
        [TIERCE__FINDING_COMPULSORY] = "compulsory",
    };
    return names[finding];
}

const char *tierce__session_kind_text(enum tierce__session_kind kind)
{
    static const char *const texts[] = {
        [TIERCE__SESSIONS_NONE] = "",
        [TIERCE__SESSIONS_TRACE] = "sessions as in the trace",
        [TIERCE__SESSIONS_SUBTREE] = "the trace names no sessions: requests that share a block are "
                                     "one session, if at most one "
                                     "request in\na hundred goes through it",
    };
    return texts[kind];
}
