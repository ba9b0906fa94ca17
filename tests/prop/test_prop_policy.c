/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "policy_models.h"
#include "test_random.h"

#include <string.h>

/* Every policy against its model, victim by victim. The loop index is the model. */

enum { STEPS = 10000, BYTES_MAX = 20, SAMPLED_SLOTS_MAX = 12 };

struct twins {
    struct tierce__policy *policy;
    const struct tierce__policy_ops *ops;
    struct model m;
    struct test_random random;
    uint32_t pin_share;
    bool bytes; /* entries differ in size */
};

static uint32_t below(struct twins *t, uint32_t bound)
{
    return test_random_below(&t->random, bound);
}

/* A key that no entry has. */
static uint64_t new_key(struct twins *t)
{
    for (;;) {
        uint64_t key = below(t, 3 * t->m.slots);
        uint32_t i = 0;
        while (i < t->m.slots && !(t->m.items[i].in && t->m.items[i].key == key))
            i++;
        if (i == t->m.slots)
            return key;
    }
}

static void note_inner(struct twins *t)
{
    if (t->ops->by_parent)
        model_note_inner(&t->m);
}

static void remove_slot(struct twins *t, uint32_t slot, bool evicted)
{
    t->ops->remove(t->policy, slot, evicted);
    if (t->m.ops->remove != NULL)
        t->m.ops->remove(&t->m, slot, evicted);
    t->m.items[slot] = (struct model_item){0};
    note_inner(t);
}

static void check_inner(struct twins *t, bool evict)
{
    uint32_t want = model_inner(&t->m), slot = TIERCE__NO_SLOT;
    ck_assert(tierce__policy_inner(t->policy, &slot) == (want != TIERCE__NO_SLOT));
    ck_assert_uint_eq(slot, want);
    if (evict && slot != TIERCE__NO_SLOT)
        remove_slot(t, slot, true);
}

static bool check_victim(struct twins *t, bool evict)
{
    uint32_t want = t->m.ops->victim(&t->m), slot = TIERCE__NO_SLOT, again = TIERCE__NO_SLOT;
    ck_assert(t->ops->victim(t->policy, t->m.time, &slot) == (want != TIERCE__NO_SLOT));
    ck_assert_uint_eq(slot, want);
    ck_assert(t->ops->victim(t->policy, t->m.time, &again) == (want != TIERCE__NO_SLOT));
    ck_assert_uint_eq(again, want);
    if (evict && slot != TIERCE__NO_SLOT)
        remove_slot(t, slot, true);
    return slot != TIERCE__NO_SLOT;
}

static void check_expired(struct twins *t, bool evict)
{
    uint32_t want = model_expired(&t->m), slot = TIERCE__NO_SLOT;
    ck_assert(tierce__policy_expired(t->policy, t->m.time, &slot) == (want != TIERCE__NO_SLOT));
    ck_assert_uint_eq(slot, want);
    if (evict && slot != TIERCE__NO_SLOT)
        remove_slot(t, slot, true);
}

static void pin(struct twins *t, uint32_t slot, bool pinned)
{
    if (!t->m.items[slot].in)
        return;
    t->ops->set_evictable(t->policy, slot, !pinned);
    t->m.items[slot].pinned = pinned;
    if (t->m.ops->pin != NULL)
        t->m.ops->pin(&t->m, slot);
    note_inner(t);
}

/* Pins all, lets a search pass over them, and unpins most in random order: many slots are then
 * evictable that had been skipped. */
static void storm(struct twins *t)
{
    for (uint32_t i = 0; i < t->m.slots; i++)
        pin(t, i, true);
    check_victim(t, false);
    for (uint32_t i = 0; i < 2 * t->m.slots; i++)
        pin(t, below(t, t->m.slots), false);
}

static void touch(struct twins *t, uint32_t slot)
{
    struct model_item *item = &t->m.items[slot];
    tierce__policy_prefetch(t->policy, item->key, slot, below(t, 2) == 0);
    t->ops->touch(t->policy, slot, t->m.time);
    item->uses++;
    item->used_at = ++t->m.clock;
    item->used_time = t->m.time;
    if (t->m.ops->touch != NULL)
        t->m.ops->touch(&t->m, slot);
}

static struct tierce__policy_origin new_origin(struct twins *t)
{
    static const uint64_t tokens[] = {0, 1, 16, 17, 128, 129, 5000};
    return (struct tierce__policy_origin){.output_tokens = tokens[below(t, 7)],
                                          .ends = below(t, 3) == 0,
                                          .hint = (uint8_t)(below(t, 2) * below(t, TIERCE__HINTS))};
}

static void insert(struct twins *t, uint32_t slot)
{
    struct model_item *item = &t->m.items[slot];
    struct tierce__policy_entry entry = {.key = new_key(t),
                                         .bytes = t->bytes ? 1 + below(t, BYTES_MAX) : 1,
                                         .now = t->m.time,
                                         .parent = below(t, t->m.slots),
                                         .origin = new_origin(t)};
    if (!t->m.items[entry.parent].in)
        entry.parent = TIERCE__NO_SLOT;
    if (below(t, 4) != 0) {
        struct tierce__policy_entry said = entry;
        if (below(t, 10) == 0)
            said.key = new_key(t); /* the one that was announced does not come */
        tierce__policy_expect(t->policy, &said);
        if (t->m.ops->expect != NULL)
            t->m.ops->expect(&t->m, said.key, said.bytes);
        if (below(t, 2) == 0)
            check_victim(t, true);
        if (entry.parent != TIERCE__NO_SLOT && !t->m.items[entry.parent].in)
            entry.parent = TIERCE__NO_SLOT;
    }
    t->ops->insert(t->policy, slot, &entry);
    *item = (struct model_item){.in = true,
                                .key = entry.key,
                                .bytes = entry.bytes,
                                .uses = 1,
                                .stored_at = ++t->m.clock,
                                .used_at = t->m.clock,
                                .used_time = t->m.time,
                                .parent = entry.parent,
                                .origin = entry.origin};
    if (entry.parent != TIERCE__NO_SLOT)
        item->parent_stored_at = t->m.items[entry.parent].stored_at;
    if (t->m.ops->insert != NULL)
        t->m.ops->insert(&t->m, slot);
    note_inner(t);
}

static void begin_request(struct twins *t)
{
    struct tierce__policy_request request = {.count = below(t, below(t, 8) == 0 ? 200 : 20),
                                             .last_key = below(t, 3 * t->m.slots),
                                             .origin = new_origin(t)};
    request.origin.is_new = below(t, 8) == 0;
    tierce__policy_begin(t->policy, &request);
    if (t->m.ops->request != NULL)
        t->m.ops->request(&t->m, &request);
}

/* A key that is not stored. */
static void skip(struct twins *t)
{
    struct tierce__policy_entry entry = {.key = new_key(t),
                                         .bytes = 1,
                                         .now = t->m.time,
                                         .parent = TIERCE__NO_SLOT,
                                         .origin = new_origin(t)};
    bool admits = t->m.ops->admits == NULL || t->m.ops->admits(&t->m, &entry);
    ck_assert(tierce__policy_admits(t->policy, &entry) == admits);
    if (below(t, 2) == 0)
        return;
    tierce__policy_skip(t->policy, &entry);
    if (t->m.ops->skip != NULL)
        t->m.ops->skip(&t->m, &entry);
}

static void step(struct twins *t)
{
    uint32_t slot = below(t, t->m.slots), dice = below(t, 100);
    t->m.time += below(t, 3);
    if (t->m.ops->request != NULL && below(t, 20) == 0)
        begin_request(t);
    if (t->m.ops->skip != NULL && below(t, 10) == 0)
        skip(t);
    if (below(t, 200) == 0)
        storm(t);
    else if (below(t, 20) == 0)
        check_inner(t, below(t, 3) == 0);
    else if (dice >= 98)
        check_expired(t, dice == 99);
    else if (dice >= 85)
        check_victim(t, dice >= 91);
    else if (!t->m.items[slot].in)
        insert(t, slot);
    else if (dice < 40)
        pin(t, slot, below(t, 100) < t->pin_share);
    else if (dice < 80)
        touch(t, slot);
    else
        remove_slot(t, slot, false);
}

static void play(struct test_random *random, const struct model_ops *model)
{
    bool sampled = strcmp(model->name, "sampled_lru") == 0;
    struct twins t = {.ops = tierce__policy_find(model->name),
                      .random = {test_random_u64(random)},
                      .m = {.ops = model, .hand = TIERCE__NO_SLOT, .chosen = TIERCE__NO_SLOT}};
    t.m.slots = 1 + below(&t, sampled ? SAMPLED_SLOTS_MAX : MODEL_SLOTS_MAX);
    t.pin_share = below(&t, 95);
    t.bytes = below(&t, 2) == 0;
    t.m.capacity = t.bytes ? t.m.slots * (uint64_t)(BYTES_MAX / 2) : t.m.slots;
    t.m.ttl = 1 + below(&t, 3 * t.m.slots);
    struct tierce__policy_opts opts = {.size = sizeof(opts),
                                       .slot_count = t.m.slots,
                                       .capacity = t.bytes || below(&t, 2) == 0 ? t.m.capacity : 0,
                                       .seed = test_random_u64(random),
                                       .ttl = t.m.ttl,
                                       .samples = 1024 /* of 12 slots: all, all but surely */};
    ck_assert_ptr_nonnull(t.ops);
    ck_assert_int_eq(t.ops->create(&t.policy, &opts), 0);
    if (model->start != NULL)
        model->start(&t.m, &opts);
    for (unsigned i = 0; i < STEPS; i++)
        step(&t);
    for (uint32_t i = 0; i < t.m.slots; i++)
        pin(&t, i, false);
    while (check_victim(&t, true))
        continue;
    for (uint32_t i = 0; i < t.m.slots; i++)
        ck_assert(!t.m.items[i].in);
    if (t.ops->hints != NULL) {
        struct tierce__policy_hints hints;
        t.ops->hints(t.policy, &hints);
        ck_assert_mem_eq(&hints, &t.m.hazard.hints, sizeof(hints));
    }
    if (model->stop != NULL)
        model->stop(&t.m);
    t.ops->destroy(t.policy);
}

START_TEST(policies_evict_what_their_models_evict)
{
    const struct model_ops *model = model_ops_at((size_t)_i);
    struct test_random random = test_random_start(model->name);
    unsigned rounds = strcmp(model->name, "sampled_lru") == 0 ? 3 : 12;
    for (unsigned i = 0; i < rounds * test_scale(); i++)
        play(&random, model);
}
END_TEST

START_TEST(every_policy_has_a_model)
{
    for (size_t i = 0; tierce__policy_at(i) != NULL; i++) {
        size_t at = 0;
        while (model_ops_at(at) != NULL &&
               strcmp(model_ops_at(at)->name, tierce__policy_at(i)->name) != 0)
            at++;
        ck_assert_msg(model_ops_at(at) != NULL, "%s has none", tierce__policy_at(i)->name);
    }
}
END_TEST

int main(void)
{
    int count = 0;
    while (model_ops_at((size_t)count) != NULL)
        count++;
    return CHECK_RUN("prop_policy", .seconds = 100, .tests = {every_policy_has_a_model},
                     .loops = {{policies_evict_what_their_models_evict, 0, count}});
}
