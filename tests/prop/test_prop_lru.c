/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "policy/policy.h"
#include "test_random.h"

/* LRU against a model that keeps the time of the last use per slot and searches them all. */

enum { SLOTS_MAX = 64, STEPS = 30000 };

struct model {
    uint32_t slots;
    uint64_t used_at[SLOTS_MAX]; /* 0: not in */
    bool pinned[SLOTS_MAX];
    uint64_t clock;
};

static uint32_t model_victim(const struct model *model)
{
    uint32_t oldest = TIERCE__NO_SLOT;
    for (uint32_t i = 0; i < model->slots; i++) {
        if (model->used_at[i] == 0 || model->pinned[i])
            continue;
        if (oldest == TIERCE__NO_SLOT || model->used_at[i] < model->used_at[oldest])
            oldest = i;
    }
    return oldest;
}

static void check_victim(const struct model *model, struct tierce__policy *lru, bool evict,
                         uint64_t *used_at)
{
    uint32_t want = model_victim(model), slot = TIERCE__NO_SLOT;
    ck_assert(lru->ops->victim(lru, 0, &slot) == (want != TIERCE__NO_SLOT));
    ck_assert_uint_eq(slot, want);
    if (evict && slot != TIERCE__NO_SLOT) {
        lru->ops->remove(lru, slot, true);
        used_at[slot] = 0;
    }
}

/* Pins all, lets a search pass over them, and unpins most in random order: many slots are then
 * evictable that had been passed over. */
static void storm(struct model *model, struct tierce__policy *lru, struct test_random *random)
{
    for (uint32_t i = 0; i < model->slots; i++) {
        model->pinned[i] = model->used_at[i] != 0;
        if (model->pinned[i])
            lru->ops->set_evictable(lru, i, false);
    }
    check_victim(model, lru, false, model->used_at);
    for (uint32_t i = 0; i < 2 * model->slots; i++) {
        uint32_t slot = test_random_below(random, model->slots);
        if (model->used_at[slot] != 0)
            lru->ops->set_evictable(lru, slot, true);
        model->pinned[slot] = false;
    }
}

static void step(struct model *model, struct tierce__policy *lru, struct test_random *random,
                 uint32_t pin_share)
{
    uint32_t slot = test_random_below(random, model->slots);
    uint32_t dice = test_random_below(random, 100);
    if (test_random_below(random, 200) == 0) {
        storm(model, lru, random);
    } else if (dice >= 85) {
        check_victim(model, lru, dice >= 93, model->used_at);
    } else if (model->used_at[slot] == 0) {
        lru->ops->insert(lru, slot, &(struct tierce__policy_entry){.key = slot, .bytes = 1});
        model->used_at[slot] = ++model->clock;
        model->pinned[slot] = false;
    } else if (dice < 40) {
        model->pinned[slot] = test_random_below(random, 100) < pin_share;
        lru->ops->set_evictable(lru, slot, !model->pinned[slot]);
    } else if (dice < 80) {
        lru->ops->touch(lru, slot, 0);
        model->used_at[slot] = ++model->clock;
    } else {
        lru->ops->remove(lru, slot, false);
        model->used_at[slot] = 0;
    }
}

static void play(struct test_random *random)
{
    struct model model = {.slots = 1 + test_random_below(random, SLOTS_MAX)};
    struct tierce__policy *lru;
    uint32_t pin_share = 10 + test_random_below(random, 85);
    struct tierce__policy_opts opts = {.size = sizeof(opts), .slot_count = model.slots};
    ck_assert_int_eq(tierce__policy_find("lru")->create(&lru, &opts), 0);
    for (unsigned i = 0; i < STEPS; i++)
        step(&model, lru, random, pin_share);
    for (uint32_t i = 0; i < model.slots; i++) {
        if (model.used_at[i] != 0)
            lru->ops->set_evictable(lru, i, true);
        model.pinned[i] = false;
    }
    for (uint32_t i = 0; i <= model.slots; i++)
        check_victim(&model, lru, true, model.used_at);
    lru->ops->destroy(lru);
}

START_TEST(lru_evicts_what_a_search_finds)
{
    struct test_random random = test_random_start("lru");
    for (unsigned i = 0; i < 30 * test_scale(); i++)
        play(&random);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("prop_lru");
    TCase *t = tcase_create("lru");
    tcase_set_timeout(t, 50);
    tcase_add_test(t, lru_evicts_what_a_search_finds);
    suite_add_tcase(suite, t);
    return check_main(suite);
}
