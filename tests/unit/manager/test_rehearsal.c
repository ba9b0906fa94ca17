/* SPDX-License-Identifier: Apache-2.0 */
/* The autopilot on replays of tenants whose load shifts. */
#include "check_main.h"

#include "base/alloc.h"
#include "manager/pilot/rehearsal.h"
#include "pilot_mix.h"

static const struct tierce__group_spec specs[] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
static const uint32_t group_of[] = {0, 1, 2};

static struct tierce__rehearsal rehearse(const struct pilot_mix *mix, uint64_t budget)
{
    struct tierce__rehearsal out;
    struct tierce__recording *recording = pilot_record(mix);
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

static void show(const char *name, const struct tierce__rehearsal *r)
{
    double best = (double)r->best_hits;
    fprintf(stderr,
            "%s: best %.4f of lookups; of best: equal %.4f act %.4f moving %.4f; steps %d kept %d "
            "undone %d;",
            name, best / (double)r->blocks, (double)r->equal_hits / best,
            (double)r->act_hits / best, (double)r->moving_hits / best, (int)r->steps, (int)r->kept,
            (int)r->undone);
    for (size_t g = 0; g < r->group_count; g++)
        fprintf(stderr, " %d/%d/%d(%d-%d)", (int)r->groups[g].equal, (int)r->groups[g].best,
                (int)r->groups[g].act, (int)r->groups[g].act_least, (int)r->groups[g].act_most);
    fprintf(stderr, "\n");
}

START_TEST(unseen_mixes)
{
    const char *text = getenv("PILOT_SEEDS");
    unsigned first = 1, last = 3;
    if (text != NULL)
        sscanf(text, "%u-%u", &first, &last);
    for (unsigned seed = first; seed <= last; seed++) {
        char name[32];
        struct pilot_mix mix = pilot_mix_of(seed, 24);
        uint64_t random = seed + 77;
        uint64_t budget = (uint64_t)pow(2, pilot_draw(&random, 10, 13));
        struct tierce__rehearsal r = rehearse(&mix, budget);
        snprintf(name, sizeof(name), "%u", seed);
        show(name, &r);
        tierce__rehearsal_clear(&r);
    }
}
END_TEST

CHECK_MAIN("rehearsal", .seconds = 500, .tests = {unseen_mixes})
