/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/economy.h"
#include "optimizer/analysis/ttft.h"
#include "test_recording.h"

#include <math.h>
#include <stdio.h>

/*
 * Each step by hand, on a model, a GPU and a tier of round numbers:
 *
 *   FLOPs(p)   2 * 500 p + 1 * 1 * (3 + 2) p^2 = 1000 p + 5 p^2
 *   GPU        0.5 * 20,000 = 10,000 FLOP/s, $3.6 an hour = $0.001 a second
 *   KV         100 bytes a token; blocks of 10 tokens are 1000 bytes
 *   tier       $1 a GB for 1 year of 8766 hours, 1000 bytes/s, 0.5 s
 */
static const struct tierce__setup plain = {
    .model = {.bytes = {100},
              .params = {500},
              .layers = {1},
              .heads = {1},
              .qk_dim = {3},
              .v_dim = {2},
              .weight_bytes = {2}},
    .gpu = {.flops = {20000}, .price = {3.6}, .mfu = {0.5}, .count = {1}},
    .storage = {.price = {1}, .years = {1}, .bandwidth = {1000}, .latency = {0.5}},
    .block_tokens = 10,
};

static void is_near(double a, double b)
{
    ck_assert_msg(fabs(a - b) <= 1e-9 * fabs(b), "%.12g is not %.12g", a, b);
}

START_TEST(steps)
{
    is_near(tierce__prefill_flops(&plain.model, 20, 400), 1000 * 20 + 5 * 400);
    is_near(tierce__gpu_speed(&plain.model, &plain.gpu), 10000);
    is_near(tierce__gpu_seconds(&plain, 22000), 2.2);
    is_near(tierce__block_bytes(&plain), 1000);
    is_near(tierce__load_seconds(&plain, 20), 0.5 + 20 * 100 / 1000.0);
    ck_assert_double_eq(tierce__load_seconds(&plain, 0), 0);
    /* FLOPs(30) - FLOPs(20) = 34,500 - 22,000 */
    is_near(tierce__compute_seconds(&plain, 30, 20), 1.25);
    is_near(tierce__storage_cost(&plain.storage, 5e9, 0), 5 / 8766.0);
    /* 2000 bytes are loaded while 22,000 FLOPs take 2.2 s */
    is_near(tierce__break_even_bandwidth(&plain, 20, 400), 2000 / 2.2);
    ck_assert_double_eq(tierce__break_even_bandwidth(&plain, 0, 0), 0);
    /* $0.0022 to compute; 2000 bytes cost 2e-6 / 8766 / 3600 dollars a second */
    is_near(tierce__break_even_residency(&plain, 20, 400), 0.0022 / (2e-6 / 8766 / 3600));
}
END_TEST

START_TEST(fp8_where_weights_and_gpu_have_it)
{
    struct tierce__setup s = plain;
    s.model.weight_bytes.value = 1;
    is_near(tierce__gpu_speed(&s.model, &s.gpu), 10000);
    s.gpu.flops_fp8.value = 40000;
    is_near(tierce__gpu_speed(&s.model, &s.gpu), 20000);
    s.model.weight_bytes.value = 2;
    is_near(tierce__gpu_speed(&s.model, &s.gpu), 10000);
}
END_TEST

START_TEST(first_token)
{
    struct tierce__setup s = plain;
    /* Nothing cached: 1000 * 30 + 5 * 900 FLOPs. */
    is_near(tierce__ttft_seconds(&s, 30, 0, 0), 3.45);
    /* 20 of 30 loaded in 2.5 s, computed in 1.25 s: with one layer one waits for the other. */
    is_near(tierce__ttft_seconds(&s, 30, 20, 0), 2.5 + 1.25);
    s.model.layers.value = 5;
    s.model.heads.value = 0.2; /* the same FLOPs */
    is_near(tierce__ttft_seconds(&s, 30, 20, 0), 2.5 + 1.25 / 5);
    /* The engine holds 15 of them: 5 are loaded in 1 s, computing is longer. */
    is_near(tierce__ttft_seconds(&s, 30, 20, 15), 1.25 + 1.0 / 5);
    /* All is there: the last token is computed nonetheless, 1000 + 5 (30^2 - 29^2) FLOPs, while 29
     * are loaded in 3.4 s. */
    is_near(tierce__ttft_seconds(&s, 30, 30, 0), 3.4 + 0.1295 / 5);
    /* Several GPUs compute together. */
    s.gpu.count.value = 2;
    is_near(tierce__ttft_seconds(&s, 30, 0, 0), 3.45 / 2);
    /* The weights, 1000 bytes, are read once: at 400 bytes/s of two GPUs in 1.25 s. */
    s.gpu.bandwidth.value = 400;
    is_near(tierce__compute_seconds(&s, 30, 29), 1.25);
}
END_TEST

START_TEST(wear_shortens_life)
{
    struct tierce__storage_profile s = plain.storage;
    s.writes.value = 100;
    /* 1 GB that may be written 100 times, at 10 GB an hour: 10 hours. */
    is_near(tierce__storage_cost(&s, 1e9, 10e9), 1 / 10.0);
    is_near(tierce__storage_cost(&s, 1e9, 1e6), 1 / 8766.0);
    ck_assert_double_eq(tierce__storage_cost(&s, 0, 1e9), 0);
}
END_TEST

/* Bytes/s from which on loading beats computing, for a prefix of 8192 tokens at a share of 0.45 of
 * the peak, to the digits in which they were worked out independently. */
START_TEST(break_even_of_known_models)
{
    static const struct {
        const char *model, *gpu, *us_per_token, *bandwidth;
    } known[] = {
        {"llama-3.1-8b", "h100", "38.5", "3.40"}, {"llama-3.1-8b", "h20", "257", "0.51"},
        {"qwen3-32b", "h100", "163", "1.61"},     {"qwen3-32b", "h20", "1090", "0.24"},
        {"llama-3.1-70b", "h100", "336", "0.97"}, {"llama-3.1-70b", "h20", "2248", "0.15"},
        {"deepseek-v3", "h100", "106", "0.66"},   {"deepseek-v3", "h20", "709", "0.10"},
    };
    struct tierce__profiles profiles;
    char why[TIERCE__PROFILE_WHY_BYTES], text[32];
    double p = 8192;
    tierce__profiles_init(&profiles);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        struct tierce__setup s = {.block_tokens = 512};
        ck_assert_int_eq(tierce__model_read(&s.model, &profiles, known[i].model, why), 0);
        ck_assert_int_eq(tierce__gpu_read(&s.gpu, &profiles, known[i].gpu, why), 0);
        ck_assert_double_eq(s.gpu.mfu.value, 0.45);
        double seconds = tierce__gpu_seconds(&s, tierce__prefill_flops(&s.model, p, p * p));
        snprintf(text, sizeof(text), i == 0 ? "%.1f" : "%.0f", seconds / p * 1e6);
        ck_assert_str_eq(text, known[i].us_per_token);
        snprintf(text, sizeof(text), "%.2f", tierce__break_even_bandwidth(&s, p, p * p) / 1e9);
        ck_assert_str_eq(text, known[i].bandwidth);
    }
}
END_TEST

/* ---- a sweep --------------------------------------------------------------------------------- */

/* One hour. In a cache of 3: abc misses, abd hits ab, abc hits ab and, having evicted c, no more;
 * in a cache of 4 all of abc hits. The last block of abd has 5 tokens. */
static const struct test_request story[] = {
    {.time_s = 0, .chain = "abc", .input_tokens = 30},
    {.time_s = 1800, .chain = "abd", .input_tokens = 25},
    {.time_s = 3600, .chain = "abc", .input_tokens = 30},
};

static const enum tierce__touch_order rev = TIERCE__TOUCH_REV;

struct run {
    struct tierce__cache cache;
    struct tierce__sweep sweep;
    struct tierce__economy economy;
    struct tierce__latencies *latencies;
};

static void run(struct run *out, const struct tierce__recording *recording, const char *cache,
                const uint64_t *capacities, size_t count, const struct tierce__setup *setup)
{
    static const struct tierce__match matches[] = {{.kind = TIERCE__MATCH_PREFIX},
                                                   {.kind = TIERCE__MATCH_ANY}};
    *out = (struct run){0};
    ck_assert_int_eq(tierce__cache_find(&out->cache, cache), 0);
    ck_assert_int_eq(tierce__latencies_create(&out->latencies, setup, recording), 0);
    struct tierce__watch watch = tierce__latencies_watch(out->latencies);
    ck_assert_int_eq(tierce__sweep_run(&out->sweep, recording,
                                       &(struct tierce__sweep_opts){
                                           .size = sizeof(struct tierce__sweep_opts),
                                           .caches = &out->cache,
                                           .cache_count = 1,
                                           .orders = &rev,
                                           .order_count = 1,
                                           .matches = matches,
                                           .match_count = 2,
                                           .capacities = capacities,
                                           .capacity_count = count,
                                           .threads = 1,
                                           .block_tokens = setup->block_tokens,
                                           .keeps_curves = true,
                                           .watches = &watch,
                                           .watch_count = 1,
                                       }),
                     0);
    ck_assert_int_eq(tierce__economy_run(&out->economy, &out->sweep, recording, setup), 0);
}

static void clear(struct run *run)
{
    tierce__latencies_destroy(run->latencies);
    tierce__economy_clear(&run->economy);
    tierce__sweep_clear(&run->sweep);
}

static void check_story(const char *cache)
{
    static const uint64_t capacities[] = {3, 4};
    struct tierce__recording *recording = test_record(story, 3);
    struct run r;
    run(&r, recording, cache, capacities, 2, &plain);
    const struct tierce__economy *e = &r.economy;
    is_near(e->span_hours, 1);
    is_near(e->prompts, 3);
    is_near(e->prompt_tokens, 30 + 25 + 30);
    /* 1000 * 85 + 5 * (900 + 625 + 900) */
    is_near(e->prefill_flops, 97125);
    is_near(e->prefill_gpus, 9.7125 / 3600);
    ck_assert_uint_eq(e->row_count, 4);
    const struct tierce__economy_row *small = &e->rows[0], *large = &e->rows[2];
    /* In 3 blocks 20 tokens hit twice. */
    ck_assert(small->is_valued);
    is_near(small->hit_tokens, 40);
    is_near(small->saved_flops, 1000 * 40 + 5 * 800);
    is_near(small->saved_share, 44000 / 97125.0);
    is_near(small->saved_seconds, 4.4);
    is_near(small->gpus_saved, 4.4 / 3600);
    is_near(small->saved_per_hour, 0.0044);
    is_near(small->bytes, 3000);
    is_near(small->written, (9 - 4) * 1000);
    is_near(small->cost_per_hour, 3e-6 / 8766);
    is_near(small->net_per_hour, 0.0044 - 3e-6 / 8766);
    is_near(small->break_even_bandwidth, 4000 / 4.4);
    /* In 4 blocks 20 and then 30 tokens hit: 1000 * 50 + 5 * (400 + 900). */
    is_near(large->saved_flops, 56500);
    is_near(large->saved_per_hour, 0.00565);
    /* Hits anywhere are not tokens saved. */
    ck_assert(!e->rows[1].is_valued && !e->rows[3].is_valued);
    /* Waiting: 3.45, 2.8125 and 3.45 s without a cache. */
    double none = tierce__latencies_at(r.latencies, TIERCE__NO_CACHE, 1);
    ck_assert(fabs(none / 3.45 - 1) < 0.006);
    none = tierce__latencies_at(r.latencies, TIERCE__NO_CACHE, 0.1);
    ck_assert(fabs(none / 2.8125 - 1) < 0.006);
    /* With 4 blocks: 3.45; 2.5 + (FLOPs(25) - 22,000) / 10,000 = 3.1125; 3.4 + 0.1295. */
    double half = tierce__latencies_at(r.latencies, 2, 0.5);
    ck_assert(fabs(half / 3.45 - 1) < 0.006);
    double least = tierce__latencies_at(r.latencies, 2, 0.3);
    ck_assert(fabs(least / 3.1125 - 1) < 0.006);
    ck_assert(isnan(tierce__latencies_at(r.latencies, 1, 0.5)));
    clear(&r);
    tierce__recording_destroy(recording);
}

START_TEST(a_story_in_lru)
{
    check_story("lru");
}
END_TEST

START_TEST(a_story_replayed)
{
    check_story("leaf-lru");
}
END_TEST

/* Tokens that the engine held itself do not count as saved: of 30 hit tokens it held 10. */
START_TEST(what_the_engine_held)
{
    static const struct test_request held[] = {
        {.time_s = 0, .chain = "abc"},
        {.time_s = 3600, .chain = "abc", .internal = "100"},
    };
    static const uint64_t capacity = 5;
    struct tierce__recording *recording = test_record(held, 2);
    struct run r;
    run(&r, recording, "lru", &capacity, 1, &plain);
    is_near(r.economy.rows[0].hit_tokens, 20);
    is_near(r.economy.rows[0].saved_flops, 1000 * 20 + 5 * (900 - 100));
    is_near(r.economy.prefill_flops, 1000 * (30 + 20) + 5 * (900 + 900 - 100));
    clear(&r);
    tierce__recording_destroy(recording);
}
END_TEST

/* Savings of 1000, 1000, 4000 and 4100 by capacity, as if by magic: a hull sees over the
 * plateau. */
START_TEST(where_it_stops_paying)
{
    static const struct test_request turns[] = {
        {.time_s = 0, .chain = "a"},    {.time_s = 1, .chain = "a"}, {.time_s = 2, .chain = "b"},
        {.time_s = 3, .chain = "c"},    {.time_s = 4, .chain = "b"}, {.time_s = 5, .chain = "c"},
        {.time_s = 3600, .chain = "a"},
    };
    /* In 1 block one hit (a), in 2 three (b, c), in 3 four (a). Each saves FLOPs(10) = 10,500 or
     * $0.00105. */
    static const uint64_t capacities[] = {1, 2, 3, 4};
    struct tierce__recording *recording = test_record(turns, 7);
    struct tierce__setup s = plain;
    struct run r;
    /* A block costs $0.0015 an hour: the first saves 0.00105, the second 0.0021, the third 0.00105.
     * The hull goes from nothing to 2 blocks, since one alone saves less than the half of two. */
    s.storage.price.value = 0.0015 * 8766 * 1e6;
    run(&r, recording, "lru", capacities, 4, &s);
    const struct tierce__economy_line *line = &r.economy.lines[0];
    is_near(r.economy.rows[0].net_per_hour, 0.00105 - 0.0015);
    is_near(r.economy.rows[2].net_per_hour, 0.00315 - 0.003);
    ck_assert(line->is_valued && line->is_exact && !line->is_last);
    ck_assert_uint_eq(line->capacity, 2);
    ck_assert_uint_eq(line->hull_capacity, 2);
    is_near(line->net_per_hour, 0.00015);
    is_near(r.economy.rows[0].hull_next, 0.00105 * 1.5 / 0.0015);
    is_near(r.economy.rows[2].hull_next, 0.00105 / 0.0015);
    ck_assert_double_eq(r.economy.rows[4].hull_next, 0);
    clear(&r);
    /* Blocks of a GiB: the next GiB is the next block. */
    s.block_bytes = 1u << 30;
    s.storage.price.value = 0.0015 * 8766 * 1e9 / s.block_bytes;
    run(&r, recording, "lru", capacities, 4, &s);
    is_near(r.economy.rows[0].next_gib, 0.0021 / 0.0015);
    is_near(r.economy.rows[2].next_gib, 0.00105 / 0.0015);
    ck_assert_double_eq(r.economy.rows[4].next_gib, 0);
    clear(&r);
    /* Too dear for any. */
    s.storage.price.value *= 10;
    run(&r, recording, "lru", capacities, 4, &s);
    ck_assert_uint_eq(r.economy.lines[0].capacity, 0);
    ck_assert_uint_eq(r.economy.lines[0].hull_capacity, 0);
    clear(&r);
    /* Cheap: all there is to keep. */
    s.storage.price.value /= 1000;
    run(&r, recording, "lru", capacities, 4, &s);
    ck_assert_uint_eq(r.economy.lines[0].capacity, 3);
    ck_assert(r.economy.lines[0].is_last);
    clear(&r);
    /* The rows alone, of a policy without a curve, say the same at their capacities. */
    run(&r, recording, "leaf-lru", capacities, 3, &s);
    ck_assert(!r.economy.lines[0].is_exact);
    ck_assert_uint_eq(r.economy.lines[0].capacity, 3);
    ck_assert(isnan(r.economy.rows[4].next_gib));
    clear(&r);
    tierce__recording_destroy(recording);
}
END_TEST

START_TEST(what_cannot_be_valued)
{
    static const struct test_request at_once[] = {{.chain = "a"}, {.chain = "a"}};
    struct tierce__recording *recording = test_record(at_once, 2);
    struct tierce__sweep sweep = {.block_tokens = 10};
    struct tierce__economy economy;
    ck_assert_int_eq(tierce__economy_run(&economy, &sweep, recording, &plain), TIERCE_E_ARGUMENT);
    tierce__recording_destroy(recording);
    recording = test_record(story, 3);
    sweep.block_tokens = 0;
    ck_assert_int_eq(tierce__economy_run(&economy, &sweep, recording, &plain), TIERCE_E_ARGUMENT);
    tierce__recording_destroy(recording);
}
END_TEST

CHECK_MAIN("economy",
           .tests = {steps, fp8_where_weights_and_gpu_have_it, first_token, wear_shortens_life,
                     break_even_of_known_models, a_story_in_lru, a_story_replayed,
                     what_the_engine_held, where_it_stops_paying, what_cannot_be_valued})
