/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_MOVES_H
#define TIERCE_TESTS_SIM_MOVES_H

#include "sim_removals.h"

/*
 * A rule that wishes moves by chance, and a mover that copies, fails, is late, or dies. A copy is a
 * block that the mover was told where to write. Whatever happens, a block that served before a
 * batch ended serves after it.
 */

static uint64_t moved;
static uint64_t by_rule[TIERCE__MOVE_REASONS]; /* moved, or still asked for */

static void place(size_t session, int64_t key, const struct tierce__found *found);

/* Before a locator ends, or its leader. */
static void count_by_rule(void)
{
    struct tierce__moves_stats stats;
    tierce__moves_stats(tierce__locator_moves(h.locator), &stats);
    for (size_t i = 0; i < TIERCE__MOVE_REASONS; i++)
        by_rule[i] += stats.moved[i] + stats.queued[i];
}

/* Queues the locations of a key, as they are in the store. */
static void want_moves(struct tierce__live *live, int64_t key)
{
    struct tierce__meta_space *space = sim_inner(live->space);
    struct tierce__record record = {0};
    bool found = false;
    ck_assert_int_eq(space->ops->get(space, &key, 1, &h.arena, &record, &found), 0);
    for (size_t l = 0; found && l < record.location_count; l++) {
        const struct tierce__location *location = &record.locations[l];
        struct tierce__move_lane lane = {.instance_id = live->instance.id,
                                         .instance = live->instance.number,
                                         .from = location->storage,
                                         .is_copy = below(3) == 0,
                                         .to = (enum tierce__move_to)below(2 * TIERCE__MOVE_TOS),
                                         .reason = TIERCE__MOVE_COLD};
        lane.to = lane.to < TIERCE__MOVE_TOS ? lane.to : TIERCE__MOVE_TO_ANY;
        struct tierce__move_block block = {.key = key, .bytes = tierce__location_bytes(location)};
        memcpy(block.location_id, location->id, sizeof(block.location_id));
        (void)tierce__moves_want(tierce__locator_moves(h.locator), &lane, &block, 1, h.now_us);
    }
}

static void see_batch(const struct tierce__move_batch *batch)
{
    REQUIRE(told_count < SESSIONS_MAX, "too many sessions");
    int instance = strcmp(batch->instance_id, instance_ids[0]) != 0;
    struct told *t = &told[told_count];
    *t = (struct told){.instance = instance,
                       .generation = generations[instance],
                       .first = placed_count,
                       .count = batch->count,
                       .timeout_us = TIERCE__MOVE_LEASE_S * 1000000ll,
                       .promised_us = h.now_us + TIERCE__MOVE_LEASE_S * 1000000ll,
                       .is_move = true,
                       .is_copy = batch->is_copy};
    memcpy(t->id, batch->session, sizeof(t->id));
    for (size_t i = 0; i < batch->count; i++) {
        struct placed *source = placed_at(batch->from[i].specs[0].uri, instance);
        REQUIRE(source != NULL && source->key == batch->keys[i] && source->state != GONE,
                "block %lld is to be copied from where it is not", (long long)batch->keys[i]);
        REQUIRE(!is_stale(source), "block %lld of before an invalidation is to be copied",
                (long long)batch->keys[i]);
        REQUIRE(source->uri_count == batch->to[i].spec_count, "a copy has other parts");
        place(told_count, batch->keys[i], &batch->to[i]);
        placed[placed_count - 1].source = (size_t)(source - placed) + 1;
    }
    told_count++;
}

static bool serves(int instance, int64_t key)
{
    for (size_t i = 0; i < placed_count; i++) {
        if (placed[i].instance == instance && placed[i].key == key && placed[i].state == SERVING &&
            !is_stale(&placed[i]))
            return true;
    }
    return false;
}

/* The mover says how it went. A source that leaves for its copy may still be read. */
static void tell_results(const struct told *t, enum tierce__move_result *results)
{
    bool is_fine = below(2) == 0;
    for (size_t i = 0; i < t->count; i++) {
        struct placed *p = &placed[t->first + i], *source = &placed[p->source - 1];
        results[i] =
            is_fine ? TIERCE__MOVED : (enum tierce__move_result)below(TIERCE__MOVE_UNDONE + 1);
        bool drops =
            results[i] == TIERCE__MOVE_SOURCE_MISSING || results[i] == TIERCE__MOVE_SOURCE_DAMAGED;
        p->is_told = true;
        p->may_serve = p->may_serve || (results[i] == TIERCE__MOVED && p->state == WRITING);
        p->served_before = !drops && serves(t->instance, p->key);
        if (source->state == SERVING && (drops || (results[i] == TIERCE__MOVED && !t->is_copy))) {
            source->state = UNKNOWN;
            source->free_us = h.now_us + REUSE_MS * 1000;
        }
    }
}

static void finish_moves(void)
{
    enum tierce__move_result results[KEYS];
    struct told *t = draw_open(true);
    size_t count = 0;
    if (t == NULL)
        return;
    bool is_late = t->generation != generations[t->instance];
    t->is_tried = true;
    tell_results(t, results);
    int rc = tierce__locator_finish_moves(h.locator, instance_ids[t->instance], t->id, results,
                                          t->count, &count, h.why);
    REQUIRE(rc == 0 || rate > 0 || is_late, "moves cannot be finished: %s", h.why);
    moved += count;
    if (rc == 0 || rc == -ESTALE)
        t->is_over = true;
    for (size_t i = 0; i < t->count; i++) {
        struct placed *p = &placed[t->first + i];
        if (rc == 0 && p->state == WRITING)
            set_state(p, results[i] == TIERCE__MOVED ? UNKNOWN : GONE);
    }
    compare(false);
    for (size_t i = 0; i < t->count; i++) {
        const struct placed *p = &placed[t->first + i];
        REQUIRE(!p->served_before || serves(t->instance, p->key), "block %lld is lost by a move",
                (long long)p->key);
    }
}

static void take_moves(void)
{
    char why[TIERCE__WHY_BYTES];
    struct tierce__live *live;
    struct tierce__taken_moves taken = {0};
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, instance_ids[below(INSTANCES)], why),
                     0);
    for (int64_t key = 100; key < 100 + KEYS; key++) {
        if (!obeys_rules && below(2) == 0)
            want_moves(live, key);
    }
    tierce__live_release(live);
    int rc = tierce__locator_take_moves(
        h.locator, &(struct tierce__take_moves){.blocks_max = 1 + below(8)}, &h.arena, &taken, why);
    REQUIRE(rc == 0 || rate > 0, "take: %s", why);
    for (size_t i = 0; i < taken.count; i++)
        see_batch(&taken.batches[i]);
    if (below(2) == 0)
        finish_moves(); /* often before the leader changes */
}

#endif
