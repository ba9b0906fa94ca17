/* SPDX-License-Identifier: Apache-2.0 */
/* The autopilot on replays of tenants whose load shifts. */
#include "check_main.h"

#include "base/alloc.h"
#include "bench/manager/pilot_mix.h"
#include "manager/pilot/rehearsal.h"

static const struct tierce__group_spec specs[] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
static const uint32_t group_of[] = {0, 1, 2};

static struct tierce__rehearsal rehearse(const struct pilot_mix *mix, uint64_t budget)
{
    struct tierce__rehearsal out;
    struct tierce__recording *recording;
    ck_assert_int_eq(pilot_record(&recording, mix), 0);
    struct tierce__rehearsal_opts opts = {.size = sizeof(opts),
                                          .groups = specs,
                                          .group_count = mix->count,
                                          .group_of = group_of,
                                          .budget = budget,
                                          .seed = mix->seed};
    ck_assert_int_eq(tierce__rehearse(&out, recording, &opts), 0);
    tierce__recording_destroy(recording);
    return out;
}

static double of_best(const struct tierce__rehearsal *r, uint64_t hits)
{
    return (double)hits / (double)r->best_hits;
}

/* Prints a line for each mix, so that the ratios of many seeds can be gathered. */
static void show(const char *name, uint64_t seed, const struct tierce__rehearsal *r)
{
    printf("%s %llu: best %.4f of lookups; of best: equal %.4f act %.4f moving %.4f; steps %llu "
           "kept %llu undone %llu\n",
           name, (unsigned long long)seed, (double)r->best_hits / (double)r->blocks,
           of_best(r, r->equal_hits), of_best(r, r->act_hits), of_best(r, r->moving_hits),
           (unsigned long long)r->steps, (unsigned long long)r->kept,
           (unsigned long long)r->undone);
    fflush(stdout);
}

/* All of the budget is somewhere at the end, less the rounding of each group. */
static void check_sum(const struct tierce__rehearsal *r, uint64_t budget)
{
    uint64_t act = 0;
    for (size_t g = 0; g < r->group_count; g++) {
        ck_assert_uint_ge(r->groups[g].act, 1);
        ck_assert_uint_le(r->groups[g].act_least, r->groups[g].act);
        ck_assert_uint_ge(r->groups[g].act_most, r->groups[g].act);
        act += r->groups[g].act;
    }
    ck_assert_uint_le(act, budget);
    ck_assert_uint_ge(act + 2 * r->group_count, budget);
}

/* How many mixes; first seed. Seeds below 100 were used to choose the constants of pilot.c. */
enum { MIXES = 1, FIRST_SEED = 1000 };

static unsigned mixes(void)
{
    const char *scale = getenv("TIERCE_TEST_SCALE");
    return MIXES * (scale != NULL ? (unsigned)atoi(scale) : 1);
}

/* Three random tenants for a day. `stops`: the load of each comes and goes at once. */
static void try_mixes(bool stops)
{
    for (unsigned i = 0; i < mixes(); i++) {
        uint64_t seed = FIRST_SEED + i, random = seed + 77;
        struct pilot_mix mix = pilot_mix_of(seed, 24);
        uint64_t budget = (uint64_t)pow(2, pilot_draw(&random, 10, 13));
        for (size_t t = 0; stops && t < mix.count; t++) {
            mix.tenants[t].depth = 1;
            mix.tenants[t].is_square = true;
        }
        struct tierce__rehearsal r = rehearse(&mix, budget);
        show(stops ? "stops" : "shifts", seed, &r);
        check_sum(&r, budget);
        ck_assert_uint_le(r.best_hits, r.moving_hits + r.blocks / 100);
        ck_assert_double_ge(of_best(&r, r.act_hits), 0.9);
        ck_assert_double_ge(of_best(&r, r.act_hits), of_best(&r, r.equal_hits) - 0.02);
        tierce__rehearsal_clear(&r);
    }
}

START_TEST(unseen_mixes)
{
    try_mixes(false);
}
END_TEST

START_TEST(loads_that_stop)
{
    try_mixes(true);
}
END_TEST

#define CHAT  .sessions = 60, .prompts = 20, .turns = 8, .rate = 0.15, .period_s = 30000
#define SCAN  .sessions = 1, .prompts = 1 << 20, .turns = 1, .rate = 0.3, .period_s = 30000
#define SMALL .sessions = 4, .prompts = 4, .turns = 4, .rate = 0.1, .period_s = 30000
#define IDLE  .sessions = 4, .prompts = 4, .turns = 4, .rate = 0.0001, .period_s = 30000

static struct tierce__rehearsal special(const char *name, const struct pilot_tenant tenants[3],
                                        uint64_t budget)
{
    struct pilot_mix mix = {.seed = 5, .hours = 12, .count = 3};
    memcpy(mix.tenants, tenants, 3 * sizeof(*tenants));
    struct tierce__rehearsal r = rehearse(&mix, budget);
    show(name, budget, &r);
    check_sum(&r, budget);
    return r;
}

/* The bytes of tenants without use for them go to the one that has. */
START_TEST(tenants_without_use_for_bytes)
{
    static const struct pilot_tenant mixes[][3] = {
        {{CHAT}, {IDLE}, {SMALL}}, {{SCAN}, {CHAT}, {SMALL}}, {{SCAN}, {IDLE}, {CHAT}}};
    static const size_t winners[] = {0, 1, 2};
    for (size_t i = 0; i < 3; i++) {
        struct tierce__rehearsal r = special("idle or scan", mixes[i], 900);
        ck_assert_double_ge(of_best(&r, r.act_hits), 0.9);
        ck_assert_double_gt(of_best(&r, r.act_hits), of_best(&r, r.equal_hits));
        ck_assert_uint_ge(r.groups[winners[i]].act, 540);
        tierce__rehearsal_clear(&r);
    }
}
END_TEST

/* Nothing is gained by moving, so little is moved. */
START_TEST(equal_tenants_stay_equal)
{
    static const struct pilot_tenant tenants[3] = {{CHAT}, {CHAT}, {CHAT}};
    struct tierce__rehearsal r = special("equal", tenants, 1500);
    ck_assert_double_ge(of_best(&r, r.act_hits), 0.97);
    tierce__rehearsal_clear(&r);
}
END_TEST

/* Ten blocks for each tenant: a step is a block and a half, and a cache holds whole ones. */
START_TEST(quotas_of_few_blocks)
{
    for (uint64_t seed = 4000; seed < 4010; seed += 7) {
        struct pilot_mix mix = pilot_mix_of(seed, 24);
        struct tierce__rehearsal r = rehearse(&mix, 30);
        show("ten blocks", seed, &r);
        check_sum(&r, 30);
        ck_assert_double_ge(of_best(&r, r.act_hits), 0.95);
        ck_assert_double_gt(of_best(&r, r.act_hits), of_best(&r, r.equal_hits));
        ck_assert_uint_lt(r.undone, r.steps / 4 + 1);
        tierce__rehearsal_clear(&r);
    }
}
END_TEST

/* A conversation does not fit into a third of the budget. */
START_TEST(less_than_a_conversation)
{
    static const struct pilot_tenant tenants[3] = {{CHAT}, {SCAN}, {SMALL}};
    struct tierce__rehearsal r = special("tiny", tenants, 150);
    ck_assert_double_ge(of_best(&r, r.act_hits), 0.9);
    tierce__rehearsal_clear(&r);
}
END_TEST

START_TEST(what_cannot_be_rehearsed)
{
    struct tierce__rehearsal out = {0};
    struct pilot_mix mix = {.seed = 1, .hours = 0.1, .count = 1, .tenants = {{CHAT}}};
    struct tierce__recording *recording;
    ck_assert_int_eq(pilot_record(&recording, &mix), 0);
    struct tierce__rehearsal_opts opts = {.size = sizeof(opts),
                                          .groups = specs,
                                          .group_count = 1,
                                          .group_of = group_of,
                                          .budget = 100};
    ck_assert_int_eq(tierce__rehearse(&out, recording, &opts), TIERCE_E_ARGUMENT);
    opts.group_count = 3;
    opts.budget = 2;
    ck_assert_int_eq(tierce__rehearse(&out, recording, &opts), TIERCE_E_ARGUMENT);
    ck_assert_ptr_null(out.groups);
    tierce__recording_destroy(recording);
}
END_TEST

CHECK_MAIN("rehearsal", .seconds = 500,
           .tests = {unseen_mixes, loads_that_stop, tenants_without_use_for_bytes,
                     equal_tenants_stay_equal, less_than_a_conversation, quotas_of_few_blocks,
                     what_cannot_be_rehearsed})
