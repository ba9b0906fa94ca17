/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "optimizer/replay/curve.h"
#include "optimizer/replay/replay.h"
#include "optimizer/replay/tiers.h"
#include "random_recording.h"

#include <math.h>
#include <string.h>

/*
 * Tiers against a plain model of what the engine does step by step (lookup, lease, reserve,
 * publish, write to all, touch), for LRU; and what must hold for every policy.
 */

enum { BLOCKS = 60, REQUESTS = 150, ROUNDS = 20, TIERS = 3, DEPTH = RECORDING_DEPTH };

/* ---- the model ------------------------------------------------------------------------------- */

/* Blocks, the one used last first. */
struct list {
    uint32_t blocks[BLOCKS];
    bool held[BLOCKS]; /* by block */
    uint32_t count, capacity, reserved;
};

struct model {
    struct list tiers[TIERS];
    size_t tier_count;
    bool waterfall;
    enum tierce__tiers_promote promote;
    uint64_t hits[TIERS], failed, written[TIERS], evicted[TIERS], loads;
};

static uint32_t find(const struct list *l, uint32_t block)
{
    uint32_t at = 0;
    while (at < l->count && l->blocks[at] != block)
        at++;
    return at;
}

static bool has(const struct list *l, uint32_t block)
{
    return find(l, block) < l->count;
}

static void to_front(struct list *l, uint32_t block)
{
    uint32_t at = find(l, block);
    if (at == l->count)
        return;
    memmove(l->blocks + 1, l->blocks, at * sizeof(l->blocks[0]));
    l->blocks[0] = block;
}

static void touch_all(struct list *l, const uint32_t *blocks, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;)
        to_front(l, blocks[i]);
}

static bool model_put(struct model *m, size_t tier, uint32_t block);

/* Makes room for one block beside what is reserved. */
static bool model_room(struct model *m, size_t tier)
{
    struct list *l = &m->tiers[tier];
    while (l->count + l->reserved >= l->capacity) {
        uint32_t at = l->count;
        while (at > 0 && l->held[l->blocks[at - 1]])
            at--;
        if (at == 0)
            return false;
        uint32_t victim = l->blocks[at - 1];
        memmove(l->blocks + at - 1, l->blocks + at, (l->count - at) * sizeof(l->blocks[0]));
        l->count--;
        m->evicted[tier]++;
        if (m->waterfall && tier + 1 < m->tier_count && !has(&m->tiers[tier + 1], victim))
            model_put(m, tier + 1, victim);
    }
    return true;
}

static void insert(struct list *l, uint32_t block)
{
    memmove(l->blocks + 1, l->blocks, l->count * sizeof(l->blocks[0]));
    l->blocks[0] = block;
    l->count++;
}

static bool model_put(struct model *m, size_t tier, uint32_t block)
{
    if (!model_room(m, tier))
        return false;
    insert(&m->tiers[tier], block);
    m->written[tier]++;
    return true;
}

/* As tierce__storage_find. */
static uint32_t model_find(const struct model *m, const uint32_t *blocks, uint32_t count,
                           uint8_t *places)
{
    uint32_t at = 0, before;
    do {
        before = at;
        for (size_t t = 0; t < m->tier_count; t++) {
            uint32_t found = 0;
            while (at + found < count && has(&m->tiers[t], blocks[at + found]))
                found++;
            memset(places + at, (int)t, found);
            at += found;
        }
    } while (at > before);
    return at;
}

static bool is_among(uint32_t block, const uint32_t *blocks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (blocks[i] == block)
            return true;
    }
    return false;
}

static void model_load(struct model *m, const uint32_t *blocks, uint32_t count,
                       const uint8_t *internal)
{
    uint8_t places[DEPTH];
    uint32_t hits = model_find(m, blocks, count, places), reserved[DEPTH], reserved_count = 0;
    uint32_t loaded = hits;
    struct list *memory = &m->tiers[0];
    bool any = false;
    for (uint32_t i = 0; i < hits; i++) {
        places[i] = has(memory, blocks[i]) ? 0 : places[i];
        m->hits[places[i]]++;
        if (places[i] == 0 && !internal[i])
            memory->held[blocks[i]] = true;
    }
    for (uint32_t i = 0; i < hits && m->promote != TIERCE__TIERS_PROMOTE_NONE; i++) {
        if (places[i] == 0 || internal[i] || is_among(blocks[i], reserved, reserved_count))
            continue;
        if (!model_room(m, 0)) {
            loaded = i;
            break;
        }
        memory->reserved++;
        reserved[reserved_count++] = blocks[i];
    }
    for (uint32_t i = 0; i < hits; i++) {
        any = any || (!internal[i] && i < loaded);
        m->failed += !internal[i] && i >= loaded;
    }
    memory->reserved = 0;
    for (uint32_t i = 0; i < reserved_count; i++) {
        insert(memory, reserved[i]);
        m->written[0]++;
    }
    m->loads += any;
    memset(memory->held, 0, sizeof(memory->held));
}

static void model_store(struct model *m, const uint32_t *blocks, uint32_t count)
{
    uint8_t places[DEPTH];
    uint32_t held = model_find(m, blocks, count, places), stored[DEPTH], stored_count = 0;
    struct list *memory = &m->tiers[0];
    touch_all(memory, blocks, held);
    for (uint32_t i = 0; i < held && m->tier_count == 1; i++)
        memory->held[blocks[i]] = true;
    for (uint32_t i = held; i < count; i++) {
        bool anywhere = false;
        for (size_t t = 0; t < m->tier_count; t++)
            anywhere = anywhere || has(&m->tiers[t], blocks[i]);
        if (anywhere || is_among(blocks[i], blocks + held, i - held))
            continue; /* or stored just now */
        if (!model_room(m, 0))
            break;
        memory->reserved++;
        stored[stored_count++] = i;
    }
    memory->reserved = 0;
    for (uint32_t k = 0; k < stored_count; k++) {
        uint32_t i = stored[k];
        insert(memory, blocks[i]);
        m->written[0]++;
        for (size_t t = 1; t < m->tier_count && !m->waterfall; t++) {
            if (i == 0 || has(&m->tiers[t], blocks[i - 1]))
                model_put(m, t, blocks[i]);
        }
    }
    memset(memory->held, 0, sizeof(memory->held));
}

static void model_request(struct model *m, const struct tierce__recorded *r)
{
    static const uint8_t nowhere[DEPTH];
    const uint32_t *blocks = tierce__recorded_blocks(r);
    const uint8_t *internal = tierce__recorded_internal(r);
    for (size_t t = 1; t < m->tier_count; t++)
        touch_all(&m->tiers[t], blocks, r->count);
    touch_all(&m->tiers[0], blocks, r->count);
    if (r->kind != TIERCE__TRACE_WRITE)
        model_load(m, blocks, r->read_count, internal != NULL ? internal : nowhere);
    touch_all(&m->tiers[0], blocks, r->count);
    if (r->kind != TIERCE__TRACE_READ)
        model_store(m, blocks, r->count);
    touch_all(&m->tiers[0], blocks, r->count);
    for (size_t t = 1; t < m->tier_count && !m->waterfall; t++)
        touch_all(&m->tiers[t], blocks, r->count);
}

/* ---- both ------------------------------------------------------------------------------------ */

static void check_against_model(struct test_random *random, const struct recording_shape *shape,
                                size_t tier_count, bool waterfall,
                                enum tierce__tiers_promote promote)
{
    struct tierce__recording *recording = random_recording(random, shape);
    struct tierce__tier_spec specs[TIERS] = {0};
    struct model m = {.tier_count = tier_count, .waterfall = waterfall, .promote = promote};
    for (size_t i = 0; i < tier_count; i++) {
        /* Slower tiers take the longest request: what else they do then is for no engine. */
        uint32_t least = i == 0 ? 1 : DEPTH;
        m.tiers[i].capacity = least + test_random_below(random, BLOCKS - least);
        specs[i].policy = tierce__policy_find("lru");
        specs[i].capacity = m.tiers[i].capacity;
    }
    struct tierce__tiers *tiers;
    ck_assert_int_eq(
        tierce__tiers_create(
            &tiers,
            &(struct tierce__tiers_opts){
                .size = sizeof(struct tierce__tiers_opts),
                .tiers = specs,
                .tier_count = tier_count,
                .writes = waterfall ? TIERCE__TIERS_WATERFALL : TIERCE__TIERS_WRITE_ALL,
                .promote = promote,
                .distinct = tierce__recording_totals(recording).distinct,
            }),
        0);
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        ck_assert_int_eq(tierce__tiers_request(tiers, r, NULL), 0);
        model_request(&m, r);
        const struct tierce__tiers_result *result = tierce__tiers_result(tiers);
        ck_assert_uint_eq(result->failed, m.failed);
        ck_assert_uint_eq(result->loads, m.loads);
        for (size_t i = 0; i < tier_count; i++) {
            ck_assert_uint_eq(result->tiers[i].hits, m.hits[i]);
            ck_assert_uint_eq(result->tiers[i].used, m.tiers[i].count);
            ck_assert_uint_eq(result->tiers[i].evicted, m.evicted[i]);
            ck_assert_uint_eq(result->tiers[i].written_blocks, m.written[i]);
            for (uint32_t k = 0; k < m.tiers[i].count; k++)
                ck_assert(tierce__tiers_has(tiers, i, m.tiers[i].blocks[k]));
        }
    }
    tierce__tiers_destroy(tiers);
    tierce__recording_destroy(recording);
}

START_TEST(tiers_do_what_the_engine_does)
{
    struct test_random random = test_random_start("test_prop_tiers");
    for (unsigned i = 0; i < ROUNDS * test_scale(); i++) {
        struct recording_shape shape = {.requests = REQUESTS,
                                        .blocks = BLOCKS,
                                        .reads_and_writes = i % 3 == 1,
                                        .internal = i % 2 == 1,
                                        .repeats = i % 4 > 1};
        for (size_t count = 1; count <= TIERS; count++) {
            for (int waterfall = 0; waterfall < 2; waterfall++) {
                check_against_model(&random, &shape, count, waterfall, TIERCE__TIERS_PROMOTE_FIRST);
                check_against_model(&random, &shape, count, waterfall, TIERCE__TIERS_PROMOTE_NONE);
            }
        }
    }
}
END_TEST

/* ---- other caches ---------------------------------------------------------------------------- */

static struct tierce__tiers *play(const struct tierce__recording *recording,
                                  struct tierce__tiers_opts opts)
{
    struct tierce__tiers *tiers;
    opts.size = sizeof(opts);
    opts.distinct = tierce__recording_totals(recording).distinct;
    ck_assert_int_eq(tierce__tiers_create(&tiers, &opts), 0);
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r))
        ck_assert_int_eq(tierce__tiers_request(tiers, r, NULL), 0);
    return tiers;
}

static struct tierce__replay_result replay(const struct tierce__recording *recording,
                                           struct tierce__replay_opts opts)
{
    static const struct tierce__match prefix = {TIERCE__MATCH_PREFIX, 0};
    struct tierce__replay *r;
    opts.size = sizeof(opts);
    opts.distinct = tierce__recording_totals(recording).distinct;
    opts.matches = &prefix;
    opts.match_count = 1;
    ck_assert_int_eq(tierce__replay_create(&r, &opts), 0);
    for (const struct tierce__recorded *q = tierce__recording_first(recording); q != NULL;
         q = tierce__recording_next(recording, q))
        ck_assert_int_eq(tierce__replay_request(r, q), 0);
    struct tierce__replay_result result = *tierce__replay_result(r);
    tierce__replay_destroy(r);
    return result;
}

static void check_one_tier(const struct tierce__recording *recording, const char *policy,
                           uint64_t capacity, bool in_bytes)
{
    struct tierce__tier_spec spec = {.policy = tierce__policy_find(policy), .capacity = capacity};
    bool whole = spec.policy->by_parent;
    struct tierce__tiers *tiers =
        play(recording,
             (struct tierce__tiers_opts){.tiers = &spec, .tier_count = 1, .in_bytes = in_bytes});
    struct tierce__replay_result r = replay(
        recording,
        (struct tierce__replay_opts){
            .policy = spec.policy, .capacity = capacity, .in_bytes = in_bytes, .whole = whole});
    const struct tierce__tiers_result *t = tierce__tiers_result(tiers);
    ck_assert_uint_eq(t->hits, r.hits[0]);
    ck_assert_uint_eq(t->internal_hits, r.internal_hits[0]);
    ck_assert_uint_eq(t->blocks, r.blocks);
    ck_assert_uint_eq(t->internal_blocks, r.internal_blocks);
    ck_assert_uint_eq(t->requests, r.requests);
    ck_assert_uint_eq(t->tiers[0].used, r.used);
    if (whole) {
        ck_assert_uint_eq(t->tiers[0].stored, r.stored);
        ck_assert_uint_eq(t->tiers[0].evicted, r.evicted);
    }
    tierce__tiers_destroy(tiers);
}

START_TEST(one_tier_is_a_replay)
{
    struct test_random random = test_random_start("test_prop_tiers");
    for (unsigned i = 0; i < 4 * test_scale(); i++) {
        struct recording_shape shape = {.requests = REQUESTS,
                                        .blocks = BLOCKS,
                                        .internal = i % 2 == 1,
                                        .bytes = i % 3 == 1,
                                        .repeats = i % 4 > 1};
        struct tierce__recording *recording = random_recording(&random, &shape);
        for (uint64_t c = 1; c < BLOCKS; c++) {
            check_one_tier(recording, "leaf_lru", c, false);
            check_one_tier(recording, "lru", c, false);
            if (shape.bytes)
                check_one_tier(recording, "leaf_lru", c, true);
        }
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* The longest request fits into the first tier, so that nothing stays unstored. */
START_TEST(a_tier_without_a_bound_is_the_infinite_cache)
{
    struct test_random random = test_random_start("test_prop_tiers");
    const struct tierce__policy_ops *ops;
    for (unsigned i = 0; i < 4 * test_scale(); i++) {
        struct recording_shape shape = {.requests = REQUESTS,
                                        .blocks = BLOCKS,
                                        .reads_and_writes = i % 2 == 1,
                                        .internal = i % 3 == 1,
                                        .repeats = i % 4 > 1};
        struct tierce__recording *recording = random_recording(&random, &shape);
        uint64_t infinite = replay(recording, (struct tierce__replay_opts){.capacity = 1}).hits[0];
        for (size_t p = 0; (ops = tierce__policy_at(p)) != NULL; p++) {
            struct tierce__tier_spec specs[TIERS] = {{.policy = ops, .capacity = DEPTH},
                                                     {.policy = ops, .capacity = DEPTH + 5}};
            for (int how = 0; how < 6; how++) {
                struct tierce__tiers *tiers = play(
                    recording,
                    (struct tierce__tiers_opts){.tiers = specs,
                                                .tier_count = TIERS,
                                                .writes = (enum tierce__tiers_writes)(how % 2),
                                                .promote = (enum tierce__tiers_promote)(how / 2)});
                ck_assert_uint_eq(tierce__tiers_result(tiers)->hits, infinite);
                ck_assert_uint_eq(tierce__tiers_result(tiers)->failed, 0);
                ck_assert_uint_eq(tierce__tiers_result(tiers)->not_stored, 0);
                tierce__tiers_destroy(tiers);
            }
        }
        tierce__recording_destroy(recording);
    }
}
END_TEST

/* ---- properties ------------------------------------------------------------------------------ */

static void check_sums(const struct tierce__tiers_result *r, const struct tierce__tier_spec *specs,
                       bool in_bytes)
{
    uint64_t hits = 0, internal = 0, failed = 0;
    for (size_t i = 0; i < r->tier_count; i++) {
        const struct tierce__tier_result *t = &r->tiers[i];
        ck_assert_uint_eq(t->asked, r->blocks - hits);
        ck_assert_uint_le(t->hits, t->asked);
        ck_assert_uint_eq(t->read_blocks, t->hits - t->internal_hits - t->failed);
        ck_assert_uint_eq(t->written_blocks, t->stored + t->promoted + t->demoted);
        ck_assert_uint_le(t->used, t->used_max);
        if (specs[i].policy != NULL)
            ck_assert_uint_le(t->used_max, specs[i].capacity);
        if (!in_bytes)
            ck_assert_uint_eq(t->used + t->evicted + t->expired, t->written_blocks);
        ck_assert_uint_le(t->loads, r->loads);
        hits += t->hits;
        internal += t->internal_hits;
        failed += t->failed;
    }
    ck_assert_uint_eq(hits, r->hits);
    ck_assert_uint_eq(internal, r->internal_hits);
    ck_assert_uint_eq(failed, r->failed);
    ck_assert_uint_le(r->hits, r->blocks);
    ck_assert_uint_eq(r->load_ns.count, r->loads);
}

static int compare_times(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

/* A device that does one thing at a time, as a plain list of what it has to do would. */
struct device {
    double free_s, wait_s, queue_max_s;
    uint64_t waits;
};

static double read_s(const struct tierce__tier_spec *spec, uint64_t bytes)
{
    return (double)spec->latency_ns / 1e9 +
           (spec->read_bytes_per_s > 0 ? (double)bytes / spec->read_bytes_per_s : 0);
}

/* Queues work of `work_s`; returns the time until it is done. */
static double device_do(struct device *device, double now_s, double work_s, bool is_load)
{
    double wait_s = device->free_s > now_s ? device->free_s - now_s : 0;
    if (is_load && wait_s > 1e-12) {
        device->waits++;
        device->wait_s += wait_s;
    }
    device->free_s = now_s + wait_s + work_s;
    return wait_s + work_s;
}

static void check_seconds(double got, double wanted)
{
    ck_assert_double_le(fabs(got - wanted), 1e-6 + 1e-9 * fabs(wanted));
}

/* Each request's time by its definition, and the distribution of all. */
static void check_loads(const struct tierce__recording *recording, struct tierce__tiers_opts opts)
{
    struct tierce__tiers *tiers;
    uint64_t times[REQUESTS], written[TIERS] = {0};
    struct device devices[TIERS] = {0};
    size_t count = 0;
    opts.size = sizeof(opts);
    opts.distinct = tierce__recording_totals(recording).distinct;
    ck_assert_int_eq(tierce__tiers_create(&tiers, &opts), 0);
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        struct tierce__tiers_answer answer;
        double longest_s = 0;
        double now_s = (double)(r->time_us - tierce__recording_totals(recording).first_us) / 1e6;
        uint32_t read = 0;
        ck_assert_int_eq(tierce__tiers_request(tiers, r, &answer), 0);
        const struct tierce__tiers_result *now = tierce__tiers_result(tiers);
        for (size_t i = 0; i < opts.tier_count; i++) {
            const struct tierce__tier_spec *spec = &opts.tiers[i];
            bool queues = spec->write_bytes_per_s > 0;
            double load_s = read_s(spec, answer.tier_bytes[i]);
            read += answer.tier_blocks[i];
            if (answer.tier_blocks[i] > 0 && queues)
                load_s = device_do(&devices[i], now_s, load_s, true);
            if (answer.tier_blocks[i] > 0)
                longest_s = fmax(longest_s, load_s);
            if (queues) {
                double left_s = device_do(&devices[i], now_s,
                                          (double)(now->tiers[i].written_bytes - written[i]) /
                                              spec->write_bytes_per_s,
                                          false);
                devices[i].queue_max_s = fmax(devices[i].queue_max_s, left_s);
                check_seconds(now->tiers[i].queue_s, left_s);
            }
            written[i] = now->tiers[i].written_bytes;
        }
        ck_assert_uint_eq(read, answer.hits - answer.internal_hits - answer.failed);
        check_seconds((double)answer.load_ns / 1e9, longest_s);
        if (read > 0)
            times[count++] = answer.load_ns;
    }
    qsort(times, count, sizeof(times[0]), compare_times);
    const struct tierce__tiers_result *result = tierce__tiers_result(tiers);
    check_sums(result, opts.tiers, opts.in_bytes);
    ck_assert_uint_eq(result->loads, count);
    for (size_t i = 0; i < opts.tier_count; i++) {
        check_seconds(result->tiers[i].wait_s, devices[i].wait_s);
        check_seconds(result->tiers[i].queue_max_s, devices[i].queue_max_s);
        ck_assert_uint_eq(result->tiers[i].waits, devices[i].waits);
    }
    if (count > 0) {
        ck_assert_uint_eq(tierce__tiers_load_ns(tiers, 0), times[0]);
        ck_assert_uint_eq(tierce__tiers_load_ns(tiers, 0.5), times[(count - 1) / 2]);
        ck_assert_uint_eq(tierce__tiers_load_ns(tiers, 1), times[count - 1]);
        ck_assert_uint_eq(result->load_ns.largest, times[count - 1]);
    }
    tierce__tiers_destroy(tiers);
}

START_TEST(nothing_gets_lost)
{
    struct test_random random = test_random_start("test_prop_tiers");
    size_t policies = 0;
    while (tierce__policy_at(policies) != NULL)
        policies++;
    for (unsigned i = 0; i < 20 * test_scale(); i++) {
        struct recording_shape shape = {.requests = REQUESTS,
                                        .blocks = BLOCKS,
                                        .gap_us = 10,
                                        .reads_and_writes = i % 2 == 1,
                                        .internal = i % 3 == 1,
                                        .bytes = i % 5 > 1,
                                        .repeats = i % 4 > 1};
        struct tierce__recording *recording = random_recording(&random, &shape);
        struct tierce__tier_spec specs[TIERS];
        for (size_t k = 0; k < TIERS; k++)
            specs[k] = (struct tierce__tier_spec){
                .policy = tierce__policy_at(test_random_below(&random, (uint32_t)policies)),
                .capacity = 1 + test_random_below(&random, BLOCKS),
                .read_bytes_per_s = test_random_below(&random, 3) * 1000.0,
                .write_bytes_per_s = test_random_below(&random, 3) * 500000.0,
                .latency_ns = test_random_below(&random, 4) * 100,
                .ttl_us = test_random_below(&random, 2) * 50,
                .endurance_bytes = 10,
            };
        for (int how = 0; how < 6; how++)
            check_loads(recording, (struct tierce__tiers_opts){
                                       .tiers = specs,
                                       .tier_count = 1 + test_random_below(&random, TIERS),
                                       .writes = (enum tierce__tiers_writes)(how % 2),
                                       .promote = (enum tierce__tiers_promote)(how / 2),
                                       .in_bytes = shape.bytes && i % 5 > 2,
                                       .block_bytes = 3,
                                       .seed = i});
        tierce__recording_destroy(recording);
    }
}
END_TEST

CHECK_MAIN("tiers", .seconds = 60,
           .tests = {tiers_do_what_the_engine_does, one_tier_is_a_replay,
                     a_tier_without_a_bound_is_the_infinite_cache, nothing_gets_lost})
