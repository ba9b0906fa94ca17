/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/ttft.h"
#include "optimizer/analysis/trust.h"
#include "test_random.h"
#include "test_recording.h"

#include <math.h>

/* Properties of tokens, money and waiting that hold for every trace: random chains of a tree. */

enum { BLOCKS = 120, REQUEST_MAX = 12, REQUESTS = 150, ROUNDS = 12, BLOCK_TOKENS = 8 };

static const struct tierce__match matches[] = {{TIERCE__MATCH_PREFIX, 0},
                                               {TIERCE__MATCH_ANY, 0},
                                               {TIERCE__MATCH_WINDOW, 3},
                                               {TIERCE__MATCH_STREAM, 0}};
static const enum tierce__touch_order orders[] = {TIERCE__TOUCH_REV, TIERCE__TOUCH_FWD};
static const uint64_t capacities[] = {1, 2, 4, 7, 12, 20, 33, 54, 88, 130};
static const char *const names[] = {"lru", "leaf-lru", "sieve",    "s3fifo",
                                    "arc", "belady",   "kvcm-lru", "infinite"};
enum { CAPACITIES = 10, CACHES = 8 };

/* A block's parent is fixed: the children of b are 2b + 2, 2b + 3. */
static uint32_t draw_chain(struct test_random *random, uint64_t *ids)
{
    uint64_t path[REQUEST_MAX];
    uint32_t count = 0;
    for (uint64_t b = test_random_below(random, BLOCKS); count < REQUEST_MAX; b = (b - 2) / 2) {
        path[count++] = b;
        if (b < 2)
            break;
    }
    for (uint32_t i = 0; i < count; i++)
        ids[i] = path[count - 1 - i];
    return count;
}

/* Blocks that the engine held keep LRU from having a curve. */
static struct tierce__recording *record(struct test_random *random, bool holds)
{
    struct tierce__recording *recording;
    ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint64_t ids[REQUEST_MAX];
        uint8_t internal[REQUEST_MAX];
        uint32_t count = draw_chain(random, ids);
        for (uint32_t b = 0; b < count; b++)
            internal[b] = test_random_below(random, 3) > 0;
        struct tierce__trace_request request = {
            .time_us = (int64_t)i * 1000000,
            .session = holds ? test_random_below(random, 20) : 0,
            .kind = test_random_below(random, 8) > 0 ? TIERCE__TRACE_TURN : TIERCE__TRACE_WRITE,
            .count = count,
            .blocks = ids,
            .internal = holds ? internal : NULL,
            /* The last block may be a part of one, or nothing is known of tokens. */
            .input_tokens = test_random_below(random, 4) == 0
                                ? 0
                                : count * BLOCK_TOKENS - test_random_below(random, BLOCK_TOKENS),
        };
        request.read_count = request.kind == TIERCE__TRACE_TURN ? count : 0;
        ck_assert_int_eq(tierce__recording_add(recording, &request), 0);
    }
    ck_assert_int_eq(tierce__recording_seal(recording), 0);
    return recording;
}

static double draw_figure(struct test_random *random, double most)
{
    return most * (double)(1 + test_random_below(random, 1000)) / 1000;
}

static struct tierce__setup draw_setup(struct test_random *random)
{
    return (struct tierce__setup){
        .model = {.bytes = {draw_figure(random, 1e6)},
                  .params = {draw_figure(random, 1e11)},
                  .layers = {draw_figure(random, 100)},
                  .heads = {draw_figure(random, 100)},
                  .qk_dim = {128},
                  .v_dim = {128},
                  .weight_bytes = {2}},
        .gpu = {.flops = {draw_figure(random, 1e15)},
                .price = {draw_figure(random, 5)},
                .mfu = {draw_figure(random, 1)},
                .count = {1}},
        .storage = {.price = {draw_figure(random, 20000)},
                    .years = {draw_figure(random, 5)},
                    .bandwidth = {draw_figure(random, 1e11)},
                    .latency = {draw_figure(random, 1e-2)},
                    .writes = {test_random_below(random, 2) * draw_figure(random, 1e6)}},
        .block_tokens = BLOCK_TOKENS,
    };
}

/* ---- a watch, which counts as the definition says -------------------------------------------- */

struct counts {
    struct {
        uint64_t lookups, hits;
        double tokens, squares;
        const struct tierce__recorded *last;
    } rows[CACHES * 2 * 4 * CAPACITIES];
    size_t row_count;
};

static int begin(void *arg, const struct tierce__sweep *sweep)
{
    struct counts *c = arg;
    c->row_count = sweep->row_count;
    return 0;
}

static void lookup(void *arg, size_t row, const struct tierce__recorded *request, uint32_t hits)
{
    struct counts *c = arg;
    const uint8_t *internal = tierce__recorded_internal(request);
    ck_assert_uint_lt(row, c->row_count);
    ck_assert(c->rows[row].last == NULL || request > c->rows[row].last);
    c->rows[row].last = request;
    c->rows[row].lookups++;
    c->rows[row].hits += hits;
    /* Token by token: tokens that the engine held from the beginning do not count as saved. */
    uint32_t held = 0;
    while (internal != NULL && held < request->read_count && internal[held])
        held++;
    uint64_t input = request->input_tokens != 0 ? request->input_tokens
                                                : (uint64_t)request->count * BLOCK_TOKENS;
    for (uint64_t t = 0; t < input && t < (uint64_t)hits * BLOCK_TOKENS; t++) {
        if (t < (uint64_t)held * BLOCK_TOKENS)
            continue;
        c->rows[row].tokens += 1;
        c->rows[row].squares += (double)(2 * t + 1); /* (t + 1)^2 - t^2 */
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

struct run {
    struct tierce__recording *recording;
    struct tierce__cache caches[CACHES];
    struct tierce__sweep sweep;
    struct counts counts;
    struct tierce__setup setup;
    struct tierce__latencies *latencies;
    struct tierce__sessions *sessions;
    struct tierce__economy economy;
    struct tierce__trust trust;
};

static void run(struct run *r, struct test_random *random, bool holds)
{
    *r = (struct run){.recording = record(random, holds), .setup = draw_setup(random)};
    for (size_t i = 0; i < CACHES; i++)
        ck_assert_int_eq(tierce__cache_find(&r->caches[i], names[i]), 0);
    ck_assert_int_eq(tierce__latencies_create(&r->latencies, &r->setup, r->recording), 0);
    ck_assert_int_eq(tierce__sessions_create(&r->sessions, r->recording), 0);
    struct tierce__watch watches[] = {{.arg = &r->counts, .begin = begin, .lookup = lookup},
                                      tierce__latencies_watch(r->latencies),
                                      tierce__sessions_watch(r->sessions)};
    /* KVCM's caches have no stream, and ignore the others' order. */
    ck_assert_int_eq(tierce__sweep_run(&r->sweep, r->recording,
                                       &(struct tierce__sweep_opts){
                                           .size = sizeof(struct tierce__sweep_opts),
                                           .caches = r->caches,
                                           .cache_count = CACHES,
                                           .orders = orders,
                                           .order_count = 2,
                                           .matches = matches,
                                           .match_count = 4,
                                           .capacities = capacities,
                                           .capacity_count = CAPACITIES,
                                           .block_tokens = BLOCK_TOKENS,
                                           .keeps_curves = true,
                                           .watches = watches,
                                           .watch_count = 3,
                                       }),
                     0);
    ck_assert_int_eq(tierce__economy_run(&r->economy, &r->sweep, r->recording, &r->setup), 0);
    ck_assert_int_eq(tierce__trust_run(&r->trust, &r->sweep, r->recording, r->sessions, 40, 1), 0);
}

static void clear(struct run *r)
{
    tierce__trust_clear(&r->trust);
    tierce__economy_clear(&r->economy);
    tierce__sweep_clear(&r->sweep);
    tierce__latencies_destroy(r->latencies);
    tierce__sessions_destroy(r->sessions);
    tierce__recording_destroy(r->recording);
}

/* ---- properties ------------------------------------------------------------------------------ */

static void is_near(double a, double b)
{
    ck_assert_msg(fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)) + 1e-12, "%.15g is not %.15g", a, b);
}

static void check_sums(const struct run *r)
{
    uint64_t lookups = 0;
    for (const struct tierce__recorded *q = tierce__recording_first(r->recording); q != NULL;
         q = tierce__recording_next(r->recording, q))
        lookups += q->read_count > 0;
    for (size_t i = 0; i < r->sweep.row_count; i++) {
        const struct tierce__sweep_row *row = &r->sweep.rows[i];
        if (row->match.kind == TIERCE__MATCH_STREAM) {
            ck_assert_uint_eq(r->counts.rows[i].lookups, 0);
            continue;
        }
        ck_assert_uint_eq(r->counts.rows[i].lookups, lookups);
        ck_assert_uint_eq(r->counts.rows[i].hits, row->hits);
        if (row->match.kind == TIERCE__MATCH_ANY)
            continue;
        ck_assert(row->has_tokens);
        ck_assert_double_eq(row->hit_tokens, r->counts.rows[i].tokens);
        ck_assert_double_eq(row->hit_squares, r->counts.rows[i].squares);
    }
}

static void check_curves(const struct run *r)
{
    for (size_t c = 0; c < r->sweep.curve_count; c++) {
        const struct tierce__sweep_curve *curve = &r->sweep.curves[c];
        for (uint32_t i = 1; i < curve->length; i++) {
            ck_assert_uint_ge(curve->points[i].hits, curve->points[i - 1].hits);
            ck_assert_double_ge(curve->points[i].tokens, curve->points[i - 1].tokens);
            ck_assert_double_ge(curve->points[i].squares, curve->points[i - 1].squares);
        }
        for (size_t i = 0; i < r->sweep.row_count; i++) {
            const struct tierce__sweep_row *row = &r->sweep.rows[i];
            if (row->cache != curve->cache || row->order != curve->order ||
                row->match.kind != curve->match.kind)
                continue;
            uint64_t at = row->capacity < curve->length ? row->capacity : curve->length - 1;
            ck_assert_uint_eq(curve->points[at].hits, row->hits);
            ck_assert_double_eq(curve->points[at].tokens, row->hit_tokens);
            ck_assert_double_eq(curve->points[at].squares, row->hit_squares);
        }
    }
}

static void check_row(const struct run *r, size_t at)
{
    const struct tierce__economy_row *row = &r->economy.rows[at];
    ck_assert_double_ge(row->saved_share, 0);
    ck_assert_double_le(row->saved_share, 1 + 1e-12);
    ck_assert_double_le(row->gpus_saved, r->economy.prefill_gpus * (1 + 1e-12));
    is_near(row->saved_per_hour, row->gpus_saved * r->setup.gpu.price.value);
    is_near(row->net_per_hour, row->saved_per_hour - row->cost_per_hour);
    double before = 0;
    for (double share = 0.05; share <= 1; share += 0.05) {
        double seconds = tierce__latencies_at(r->latencies, at, share);
        ck_assert_double_ge(seconds, before);
        before = seconds;
    }
    const struct tierce__trust_row *t = &r->trust.rows[at];
    if (t->has_interval) {
        ck_assert_double_ge(t->low, 0);
        ck_assert_double_le(t->low, t->high);
        ck_assert_double_le(t->high, 1 + 1e-12);
    }
}

/* Along a line, from the smallest capacity to the largest. */
static void check_line(const struct run *r, size_t at)
{
    const struct tierce__economy_line *line = &r->economy.lines[at];
    const struct tierce__sweep_row *like = &r->sweep.rows[line->first_row];
    double saved = 0, hull = INFINITY;
    bool is_lru = strcmp(like->cache->name, "lru") == 0;
    if (!line->is_valued)
        return;
    ck_assert_double_ge(line->net_per_hour, 0);
    for (size_t i = line->first_row; i < r->sweep.row_count; i++) {
        const struct tierce__economy_row *row = &r->economy.rows[i];
        if (!row->is_valued || !tierce__sweep_same_line(&r->sweep.rows[i], like))
            continue;
        /* A larger LRU hits whatever a smaller one does. */
        if (is_lru)
            ck_assert_double_ge(row->saved_per_hour, saved);
        saved = row->saved_per_hour;
        /* Nothing that was looked at is better than the best. */
        ck_assert_double_le(row->net_per_hour, line->net_per_hour + 1e-12);
        if (isnan(row->hull_next))
            continue;
        ck_assert_double_le(row->hull_next, hull * (1 + 1e-9) + 1e-12);
        hull = row->hull_next;
    }
}

/* Where wear costs nothing the hull ends where the net is largest. */
static void check_hull(struct run *r)
{
    struct tierce__economy economy;
    r->setup.storage.writes.value = 0;
    ck_assert_int_eq(tierce__economy_run(&economy, &r->sweep, r->recording, &r->setup), 0);
    for (size_t i = 0; i < economy.line_count; i++)
        ck_assert_uint_eq(economy.lines[i].hull_capacity, economy.lines[i].capacity);
    /* A dearer tier never makes it pay to keep more, a dearer GPU never to keep less. */
    struct tierce__economy dear;
    r->setup.storage.price.value *= 1.7;
    ck_assert_int_eq(tierce__economy_run(&dear, &r->sweep, r->recording, &r->setup), 0);
    for (size_t i = 0; i < economy.line_count; i++)
        ck_assert_uint_le(dear.lines[i].capacity, economy.lines[i].capacity);
    tierce__economy_clear(&economy);
    r->setup.gpu.price.value *= 3.1;
    ck_assert_int_eq(tierce__economy_run(&economy, &r->sweep, r->recording, &r->setup), 0);
    for (size_t i = 0; i < economy.line_count; i++)
        ck_assert_uint_ge(economy.lines[i].capacity, dear.lines[i].capacity);
    tierce__economy_clear(&economy);
    tierce__economy_clear(&dear);
}

START_TEST(all_of_it)
{
    struct test_random random = test_random_start("test_prop_economy");
    static struct run r;
    for (unsigned i = 0; i < ROUNDS * test_scale(); i++) {
        run(&r, &random, i % 2 == 1);
        ck_assert_uint_eq(r.sweep.curve_count, i % 2 == 1 ? 0 : 2 * 4);
        check_sums(&r);
        check_curves(&r);
        for (size_t row = 0; row < r.economy.row_count; row++) {
            if (r.economy.rows[row].is_valued)
                check_row(&r, row);
        }
        for (size_t line = 0; line < r.economy.line_count; line++)
            check_line(&r, line);
        check_hull(&r);
        clear(&r);
    }
}
END_TEST

/* Cached blocks never make a request wait longer, if they load instantly. */
START_TEST(a_hit_from_a_fast_tier_is_no_loss)
{
    struct test_random random = test_random_start("test_prop_economy");
    for (unsigned i = 0; i < 1000 * test_scale(); i++) {
        struct tierce__setup s = draw_setup(&random);
        s.storage.bandwidth.value = 1e30;
        s.storage.latency.value = 0;
        double n = (double)(1 + test_random_below(&random, 100000)), before = INFINITY;
        for (double p = 0; p <= n; p += n / 7) {
            double seconds = tierce__ttft_seconds(&s, n, p, 0);
            ck_assert_double_le(seconds, before * (1 + 1e-12));
            before = seconds;
            /* A slower tier, or a later first byte, is never better. */
            struct tierce__setup slow = s;
            slow.storage.bandwidth.value = draw_figure(&random, 1e10);
            slow.storage.latency.value = draw_figure(&random, 1);
            ck_assert_double_ge(tierce__ttft_seconds(&slow, n, p, 0), seconds);
        }
    }
}
END_TEST

CHECK_MAIN("prop_economy", .seconds = CHECK_NO_LIMIT,
           .tests = {all_of_it, a_hit_from_a_fast_tier_is_no_loss})
