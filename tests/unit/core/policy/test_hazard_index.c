/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/policy/hazard_index.h"
#include "test_random.h"

#include <math.h>

#define BUCKETS TIERCE__HAZARD_BUCKETS
#define CLASSES TIERCE__HAZARD_CLASSES
#define PARTS   TIERCE__HAZARD_PARTS

static uint32_t starts[BUCKETS];

static void begin(struct tierce__hazard_index *index)
{
    for (uint32_t b = 0; b < BUCKETS; b++)
        starts[b] = b * (b + 3);
    tierce__hazard_index_init(index, starts);
}

static double shrunk(double hits, double risks, double prior)
{
    return fmin(1, (hits + 100 * prior) / (risks + 100));
}

static double sum(const double counts[CLASSES][BUCKETS], uint32_t from, uint32_t to, uint32_t b)
{
    double all = 0;
    for (uint32_t c = from; c < to; c++)
        all += counts[c][b];
    return all;
}

static double hazards[BUCKETS]; /* of all classes */

static void find_hazards(const struct tierce__hazard_index *x)
{
    double prior = 0.01;
    for (uint32_t b = 0; b < BUCKETS; b++) {
        hazards[b] = shrunk(sum(x->hits, 0, CLASSES, b), sum(x->risks, 0, CLASSES, b), prior);
        prior = fmin(0.01, hazards[b]);
    }
}

static double hazard_of(const struct tierce__hazard_index *x, uint32_t c, uint32_t b)
{
    uint32_t place = c / PARTS * PARTS;
    double of_place = shrunk(sum(x->hits, place, place + PARTS, b),
                             sum(x->risks, place, place + PARTS, b), hazards[b]);
    return shrunk(x->hits[c][b], x->risks[c][b], of_place);
}

/* By the definition: each end of the stay is tried, and its sums are computed anew. */
static double worth_of(const struct tierce__hazard_index *x, uint32_t c, uint32_t b)
{
    double best = 0;
    for (uint32_t end = b; end < BUCKETS; end++) {
        double alive = 1, hits = 0, time = 0;
        for (uint32_t i = b; i <= end; i++) {
            double width = i + 1 < BUCKETS ? starts[i + 1] - starts[i] : starts[i];
            double hazard = hazard_of(x, c, i);
            if (i == b) {
                hazard = -expm1(log1p(-hazard) / 2);
                width /= 2;
            }
            hits += alive * hazard;
            time += alive * width * (1 - hazard / 2);
            alive *= 1 - hazard;
        }
        best = fmax(best, hits / time);
    }
    return best;
}

static void check_index(const struct tierce__hazard_index *x)
{
    find_hazards(x);
    for (uint32_t c = 0; c < CLASSES; c++) {
        for (uint32_t b = 0; b < BUCKETS; b++) {
            double want = worth_of(x, c, b), got = x->worths[c * BUCKETS + b];
            ck_assert_msg(fabs(want - got) <= 1e-9 * want, "%u, %u: %g, not %g", c, b, got, want);
        }
    }
    ck_assert_uint_eq(x->order_count, (uint32_t)__builtin_popcountll(x->learned) * BUCKETS);
    for (uint32_t i = 0; i < x->order_count; i++) {
        ck_assert_uint_eq(x->ranks[x->order[i]], i);
        if (i > 0)
            ck_assert(x->worths[x->order[i - 1]] <= x->worths[x->order[i]]);
    }
}

START_TEST(worths_are_those_of_the_definition)
{
    struct test_random random = test_random_start("hazard index");
    struct tierce__hazard_index x;
    begin(&x);
    check_index(&x);
    for (unsigned round = 0; round < 20 * test_scale(); round++) {
        uint32_t fresh = test_random_below(&random, CLASSES);
        if (!tierce__hazard_index_has(&x, fresh)) {
            tierce__hazard_index_learn(&x, fresh);
            check_index(&x);
        }
        for (uint32_t c = 0; c < CLASSES; c++) {
            for (uint32_t b = 0; tierce__hazard_index_has(&x, c) && b < BUCKETS; b++) {
                uint32_t risks = test_random_below(&random, 1 + test_random_below(&random, 5000));
                x.risks[c][b] = risks;
                x.hits[c][b] = test_random_below(&random, risks + 1);
            }
        }
        tierce__hazard_index_refresh(&x);
        check_index(&x);
    }
}
END_TEST

/* A loop: nothing is used before the age at which everything is. Waiting for it is worth more the
 * nearer it is, and nothing is expected afterwards. */
START_TEST(entries_shortly_before_their_use_are_worth_most)
{
    enum { USED = 12 };
    struct tierce__hazard_index x;
    begin(&x);
    tierce__hazard_index_learn(&x, 0);
    for (uint32_t b = 0; b <= USED; b++)
        x.risks[0][b] = 1e9;
    x.hits[0][USED] = 1e9;
    tierce__hazard_index_refresh(&x);
    for (uint32_t b = 1; b <= USED; b++)
        ck_assert(x.worths[b] > x.worths[b - 1]);
    ck_assert(x.worths[USED + 1] < x.worths[0]);
}
END_TEST

START_TEST(old_counts_fade)
{
    struct tierce__hazard_index x;
    begin(&x);
    tierce__hazard_index_learn(&x, 5);
    x.risks[5][3] = 1000;
    x.hits[5][3] = 40;
    tierce__hazard_index_fade(&x, 0.25);
    ck_assert(x.risks[5][3] == 250 && x.hits[5][3] == 10);
    tierce__hazard_index_fade(&x, 1);
    ck_assert(x.risks[5][3] == 250 && x.hits[5][3] == 10);
}
END_TEST

int main(void)
{
    return CHECK_RUN("hazard_index", .seconds = 30,
                     .tests = {worths_are_those_of_the_definition,
                               entries_shortly_before_their_use_are_worth_most, old_counts_fade});
}
