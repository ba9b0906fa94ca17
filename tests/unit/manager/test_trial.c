/* SPDX-License-Identifier: Apache-2.0 */
/* Trials of other policies and times to live, against reclaim that really ran with them. */
#include "check_main.h"
#include "ghost_trace.h"
#include "manager_reclaim.h"

#include "base/alloc.h"
#include "manager/pilot/gain.h"
#include "manager/pilot/trial.h"
#include "manager/reclaim/expiry.h"
#include "manager/reclaim/victims.h"
#include "manager/storage/deleter.h"
#include "optimizer/replay/ranked.h"

#include <math.h>
#include <time.h>

#define SECOND 1000000ll

/* ---- the cache ------------------------------------------------------------------------------- */

static struct tierce__ranked *open_cache(const char *policy, uint32_t capacity, uint64_t ttl_us)
{
    struct tierce__ranked *cache;
    ck_assert_int_eq(
        tierce__ranked_create(
            &cache, &(struct tierce__ranked_opts){.size = sizeof(struct tierce__ranked_opts),
                                                  .policy = tierce__policy_find(policy),
                                                  .half_life_us = TIERCE__RECLAIM_HALF_LIFE_US,
                                                  .ttl_us = ttl_us,
                                                  .end_us = 1000,
                                                  .capacity = capacity,
                                                  .keys = 20}),
        0);
    return cache;
}

static size_t read_keys(struct tierce__ranked *cache, const uint32_t *keys, size_t count,
                        uint64_t now_us)
{
    bool hit[20];
    return tierce__ranked_read(cache, keys, count, true, now_us, hit);
}

static const uint32_t one[] = {0, 1, 2, 3}, two[] = {0, 1, 4, 5}, three[] = {10, 11, 12};

START_TEST(ends_of_chains_leave_first)
{
    struct tierce__ranked *cache = open_cache("lru", 6, 0);
    tierce__ranked_write(cache, one, 4, 1);
    tierce__ranked_write(cache, two, 4, 2);
    ck_assert(!tierce__ranked_has_lost(cache));
    ck_assert_uint_eq(read_keys(cache, one, 4, 3), 4);
    tierce__ranked_write(cache, three, 3,
                         4); /* 5, 4, and then 3: 0 and 1 are older, but followed */
    ck_assert(tierce__ranked_has_lost(cache));
    ck_assert_uint_eq(read_keys(cache, one, 4, 5), 3);
    ck_assert_uint_eq(read_keys(cache, two, 4, 5), 2);
    ck_assert_uint_eq(read_keys(cache, three, 3, 5), 3);
    tierce__ranked_destroy(cache);
}
END_TEST

/* A prefix ends at the first block that is missing; a batch does not. */
START_TEST(a_chain_ends_at_its_first_miss)
{
    static const uint32_t hole[] = {0, 1, 9, 2, 3};
    bool hit[5];
    struct tierce__ranked *cache = open_cache("lru", 6, 0);
    tierce__ranked_write(cache, one, 4, 1);
    ck_assert_uint_eq(tierce__ranked_read(cache, hole, 5, true, 2, hit), 2);
    ck_assert(hit[1] && !hit[2] && !hit[3] && !hit[4]);
    ck_assert_uint_eq(tierce__ranked_read(cache, hole, 5, false, 2, hit), 4);
    tierce__ranked_destroy(cache);
}
END_TEST

/* Clients choose the keys. */
START_TEST(blocks_that_follow_each_other_leave)
{
    static const uint32_t there_and_back[] = {0, 1, 0}, back[] = {1, 0};
    struct tierce__ranked *cache = open_cache("lru", 1, 0);
    tierce__ranked_write(cache, there_and_back, 3, 1);
    tierce__ranked_write(cache, back, 2, 2);
    tierce__ranked_write(cache, three, 3, 3);
    ck_assert_uint_eq(read_keys(cache, three, 3, 4), 1);
    tierce__ranked_destroy(cache);
}
END_TEST

START_TEST(frequent_blocks_stay)
{
    struct tierce__ranked *lfu = open_cache("lfu", 6, 0), *lru = open_cache("lru", 6, 0);
    struct tierce__ranked *caches[] = {lfu, lru};
    for (size_t i = 0; i < 2; i++) {
        tierce__ranked_write(caches[i], one, 4, 1);
        (void)read_keys(caches[i], one, 4, 2);
        tierce__ranked_write(caches[i], three, 3, 3);
        ck_assert_uint_eq(read_keys(caches[i], three, 3, 4), i == 0 ? 2 : 3);
        ck_assert_uint_eq(read_keys(caches[i], one, 4, 4), i == 0 ? 4 : 3);
        tierce__ranked_destroy(caches[i]);
    }
}
END_TEST

/* Without a half-life, frequencies are counts; with one, those of unused blocks fall. */
START_TEST(the_least_recent_of_equally_frequent_blocks_leaves)
{
    struct tierce__ranked *cache;
    bool hit[10];
    uint32_t keys[10];
    ck_assert_int_eq(
        tierce__ranked_create(
            &cache, &(struct tierce__ranked_opts){.size = sizeof(struct tierce__ranked_opts),
                                                  .policy = tierce__policy_find("lfu"),
                                                  .half_life_us = _i == 0 ? 0 : 10,
                                                  .end_us = 1000,
                                                  .capacity = 3,
                                                  .keys = 10}),
        0);
    for (uint32_t i = 0; i < 10; i++) {
        keys[i] = i;
        tierce__ranked_write(cache, &keys[i], 1, i + 1);
    }
    ck_assert_uint_eq(tierce__ranked_read(cache, keys, 10, false, 20, hit), 3);
    ck_assert(hit[7] && hit[8] && hit[9]);
    tierce__ranked_destroy(cache);
}
END_TEST

START_TEST(blocks_expire_without_a_use)
{
    struct tierce__ranked *cache = open_cache("lru", 10, 100);
    tierce__ranked_write(cache, one, 4, 1);
    tierce__ranked_use(cache, one, 1, 50);
    ck_assert_uint_eq(read_keys(cache, one, 4, 100), 4);
    tierce__ranked_write(cache, two, 4, 150); /* uses nothing that is there */
    ck_assert_uint_eq(read_keys(cache, one, 4, 200), 0);
    tierce__ranked_write(cache, one, 2, 201); /* 4 and 5 are still there behind them */
    ck_assert_uint_eq(read_keys(cache, two, 4, 202), 4);
    tierce__ranked_destroy(cache);
}
END_TEST

/* ---- the log --------------------------------------------------------------------------------- */

START_TEST(the_log_holds_the_last_requests)
{
    struct tierce__ghost_log *log, *copy;
    struct tierce__ghost_entry entry;
    uint64_t keys[5000] = {0};
    ck_assert_int_eq(tierce__ghost_log_create(&log, 8192), 0);
    for (uint32_t i = 1; i <= 3000; i++) {
        keys[0] = i;
        tierce__ghost_log_add(log, &(struct tierce__ghost_entry){.time_us = i,
                                                                 .unit_bytes = 3.5,
                                                                 .key_bytes = 2,
                                                                 .tokens = 16,
                                                                 .member = i % 3,
                                                                 .kind = 3,
                                                                 .count = 1 + i % 4,
                                                                 .keys = keys});
    }
    ck_assert_int_eq(tierce__ghost_log_copy(&copy, log), 0);
    int64_t last = 0;
    for (size_t at = 0; tierce__ghost_log_next(copy, &at, &entry); last = entry.time_us) {
        ck_assert(last == 0 || entry.time_us == last + 1);
        ck_assert_uint_eq(entry.count, 1 + entry.time_us % 4);
        ck_assert_uint_eq(entry.keys[0], entry.time_us);
        ck_assert_uint_eq(entry.member, entry.time_us % 3);
        ck_assert_double_eq(entry.unit_bytes + entry.key_bytes + entry.tokens, 21.5);
        ck_assert_uint_eq(entry.kind, 3);
        ck_assert(last != 0 || entry.time_us < 3000 - 8192 / 2 / 9);
    }
    ck_assert_int_eq(last, 3000);
    tierce__ghost_log_destroy(copy);
    tierce__ghost_log_clear(log);
    entry.count = 5000; /* the rest is left out */
    entry.keys = keys;
    tierce__ghost_log_add(log, &entry);
    size_t at = 0;
    ck_assert(tierce__ghost_log_next(log, &at, &entry));
    ck_assert_uint_le(entry.count, TIERCE__GHOST_LOG_KEYS_MAX);
    ck_assert(!tierce__ghost_log_next(log, &at, &entry));
    tierce__ghost_log_destroy(log);
}
END_TEST

/* ---- against reclaim ------------------------------------------------------------------------- */

enum { SETTINGS = 4, WARM_PARTS = 2 };
static const struct setting {
    const char *name;
    int policy;
    int64_t ttl_s;
} settings[SETTINGS] = {{"lru", TIERCE__RECLAIM_LRU, 0},
                        {"lfu", TIERCE__RECLAIM_LFU, 0},
                        {"lru 15 min", TIERCE__RECLAIM_LRU, 900},
                        {"lfu 30 min", TIERCE__RECLAIM_LFU, 1800}};

struct world {
    struct harness h;
    struct tierce__ghosts *ghost;
    double asked, found; /* keys, in the second half */
    double bytes;
};

static void set_ttl(struct world *w, int64_t ttl_s)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(w->h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    int64_t version = group.version++;
    group.ttl_s = ttl_s > 0 ? ttl_s : -1;
    int rc = tierce__registry_update_group(w->h.registry, &group, version, w->h.why);
    ck_assert_msg(rc == 0, "%s", w->h.why);
    w->bytes = tierce__gain_bytes(&group, catalog);
    tierce__registry_release(w->h.registry, catalog);
}

static void open_world(struct world *w, const struct setting *setting, int64_t capacity)
{
    *w = (struct world){0};
    ck_assert_int_eq(
        tierce__ghosts_create(
            &w->ghost, &(struct tierce__ghosts_opts){.size = sizeof(struct tierce__ghosts_opts),
                                                     .now_us = harness_now,
                                                     .clock_arg = &w->h,
                                                     .seed = 7,
                                                     .log_words = 1 << 20}),
        0);
    open_all(&w->h, &(struct harness_opts){.capacity = capacity,
                                           .policy = setting->policy,
                                           .watermark = 0.8,
                                           .ghost = w->ghost});
    set_ttl(w, setting->ttl_s);
    tierce__ghosts_set_reach(w->ghost, "g", 4 * (double)capacity);
    tierce__ghosts_keep_log(w->ghost, "g", true);
}

static void close_world(struct world *w)
{
    close_all(&w->h);
    tierce__ghosts_destroy(w->ghost);
}

/* Requests, `step_us` apart: a lookup, a write of the keys, and a round of reclaim. */
static void run_world(struct world *w, const struct ghost_load *load, int64_t step_us)
{
    for (size_t r = 0; r < load->count; r++) {
        size_t count;
        const int64_t *keys = (const int64_t *)(const void *)ghost_load_at(load, r, &count);
        w->h.now_us += step_us;
        size_t hits = harness_prefix(&w->h, keys, count);
        tierce__arena_reset(&w->h.arena);
        if (r >= load->count / WARM_PARTS) {
            w->asked += (double)count;
            w->found += (double)hits;
        }
        struct tierce__started started = {0};
        int rc = tierce__locator_start_write(
            w->h.locator,
            &(struct tierce__write_request){
                .instance_id = "i", .keys = keys, .count = count, .timeout_s = 30},
            &w->h.arena, &started, w->h.why);
        if (rc == 0 && started.count > 0)
            harness_finish(&w->h, &started);
        tierce__arena_reset(&w->h.arena);
        (void)tierce__reclaimer_step(reclaimer);
        (void)tierce__deleter_step(w->h.locator->deleter, SIZE_MAX);
        if (r % 16 == 0)
            (void)tierce__ghosts_step(w->ghost);
    }
    (void)tierce__ghosts_step(w->ghost);
}

static void try_all(const struct world *w, int64_t from_us, struct tierce__trial *out)
{
    struct tierce__trial_setting tried[SETTINGS];
    struct tierce__ghost_log *log;
    for (size_t s = 0; s < SETTINGS; s++)
        tried[s] = (struct tierce__trial_setting){tierce__victims_policy(settings[s].policy),
                                                  settings[s].ttl_s * SECOND};
    ck_assert_int_eq(tierce__ghosts_copy_log(w->ghost, "g", &log), 0);
    struct timespec began, ended;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &began);
    int rc = tierce__trial_run(
        out, &(struct tierce__trial_opts){.size = sizeof(struct tierce__trial_opts),
                                          .log = log,
                                          .bytes = w->bytes,
                                          .from_us = from_us,
                                          .settings = tried,
                                          .count = SETTINGS});
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
    ck_assert_int_eq(rc, 0);
    printf("%llu keys looked up, %.1f ms: ", (unsigned long long)out->sampled,
           1e3 * (double)(ended.tv_sec - began.tv_sec) +
               (double)(ended.tv_nsec - began.tv_nsec) / 1e6);
    tierce__ghost_log_destroy(log);
}

/* How far the gains of a trial lie from those of reclaim, in hit rates. */
static double compare(const char *name, const struct ghost_load *load, size_t quota,
                      int64_t step_us)
{
    struct tierce__trial trial = {0};
    double real[SETTINGS], worst = 0;
    for (size_t s = 0; s < SETTINGS; s++) {
        struct world w;
        open_world(&w, &settings[s], (int64_t)quota * BLOCK_BYTES);
        run_world(&w, load, step_us);
        real[s] = w.found / w.asked;
        /* The trial sees the requests of the first world alone. */
        if (s == 0)
            try_all(&w, w.h.now_us - (int64_t)(load->count / WARM_PARTS) * step_us, &trial);
        close_world(&w);
    }
    printf("%s, %zu blocks, sample of %u:", name, quota, trial.capacity);
    for (size_t s = 0; s < SETTINGS; s++) {
        double tried = trial.hits[s].tokens / trial.asked;
        printf(" %s %.4f (%.4f, error %.4f)", settings[s].name, tried, real[s],
               trial.hits[s].error / trial.asked);
        worst = fmax(worst, fabs(trial.hits[s].more / trial.asked - (real[s] - real[0])));
    }
    printf("; worst %.4f\n", worst);
    fflush(stdout);
    return worst;
}

static unsigned scale(void)
{
    const char *text = getenv("TIERCE_TEST_SCALE");
    return text != NULL ? (unsigned)atoi(text) : 1;
}

/* The largest error of the gain in hit rate: the frequencies of LFU depend on all that was before.
 */
#define ERROR_MAX 0.15

/* Conversations of a few prompts, and `scans` of four requests for prompts that come once. */
static void make_load(struct ghost_load *load, uint64_t seed, size_t requests, unsigned scans)
{
    struct ghost_load talk = {0}, scan = {0};
    ghost_load_make(&talk, &(struct ghost_load_opts){.seed = seed,
                                                     .requests = requests,
                                                     .sessions = 40 + seed % 5 * 20,
                                                     .prompts = 20,
                                                     .turns = 3 + seed % 3 * 3});
    ghost_load_make(&scan, &(struct ghost_load_opts){.seed = seed + 1000000,
                                                     .requests = requests,
                                                     .sessions = 1,
                                                     .prompts = 1 << 20,
                                                     .turns = 1});
    for (size_t i = 0; i < requests; i++) {
        size_t count;
        const uint64_t *keys = ghost_load_at(i % 4 < scans ? &scan : &talk, i, &count);
        ghost_load_add(load, keys, count);
    }
    ghost_load_free(&talk);
    ghost_load_free(&scan);
}

/* Seeds below 500 were used while the trial was written. */
START_TEST(made_up_loads)
{
    for (uint64_t seed = 500; seed < 500 + scale(); seed++) {
        struct ghost_load load = {0};
        make_load(&load, seed, 2000, seed % 4);
        ck_assert_double_le(compare("made up", &load, 800 + seed % 4 * 400, 4 * SECOND), ERROR_MAX);
        ghost_load_free(&load);
    }
}
END_TEST

/* With TIERCE_TEST_DATA, and TIERCE_TEST_SCALE above 1: each takes some seconds. */
START_TEST(real_traces)
{
    static const char *const names[] = {"mooncake_conversation.jsonl", "mooncake_synthetic.jsonl",
                                        "coding_agents.jsonl.gz"};
    for (size_t i = 0; i < 3 && scale() > 1; i++) {
        struct ghost_load load = {0};
        if (!ghost_load_read(&load, names[i]))
            return;
        load.count = load.count < 4000 ? load.count : 4000;
        ck_assert_double_le(compare(names[i], &load, 8000, SECOND), ERROR_MAX);
        ghost_load_free(&load);
    }
}
END_TEST

CHECK_MAIN("trial", .seconds = 500,
           .loops = {{the_least_recent_of_equally_frequent_blocks_leaves, 0, 2}},
           .tests = {ends_of_chains_leave_first, a_chain_ends_at_its_first_miss,
                     blocks_that_follow_each_other_leave, frequent_blocks_stay,
                     blocks_expire_without_a_use, the_log_holds_the_last_requests, made_up_loads,
                     real_traces})
