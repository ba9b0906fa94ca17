/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_CLIENTS_H
#define TIERCE_TESTS_SIM_CLIENTS_H

#include "sim_removals.h"

/* Clients of a simulated manager write and read blocks, and remove them (sim_removals.h). */

static void place(size_t session, int64_t key, const struct tierce__found *found)
{
    struct placed *p = &placed[placed_count];
    REQUIRE(placed_count < PLACED_MAX, "too much was placed");
    *p = (struct placed){.key = key,
                         .instance = told[session].instance,
                         .generation = told[session].generation,
                         .session = session};
    for (size_t s = 0; s < found->spec_count; s++) {
        p->specs[p->uri_count] = found->specs[s].name[0];
        snprintf(p->uris[p->uri_count++], SIM_URI_BYTES, "%s", found->specs[s].uri);
        p->bytes += found->specs[s].name[0] == 'a' ? PART_A_BYTES : PART_B_BYTES;
    }
    for (size_t i = 0; i < placed_count; i++) {
        struct placed *q = &placed[i];
        REQUIRE(!is_same_write(p, q), "block %lld is written by two sessions", (long long)key);
        shared_writes += q->state == WRITING && q->key == key && q->instance == p->instance;
        for (size_t a = 0; a < p->uri_count && q->instance == p->instance; a++) {
            for (size_t b = 0; b < q->uri_count; b++) {
                if (strcmp(p->uris[a], q->uris[b]) != 0)
                    continue;
                bool is_gone = q->state == GONE;
                REQUIRE(is_gone && q->free_us <= h.now_us,
                        "block %lld is to be written where block %lld %s", (long long)key,
                        (long long)q->key, is_gone ? "may still be read" : "is");
                q->uris[b][0] = '\0'; /* the slot is the other's, wherever clocks are set */
            }
        }
    }
    placed_count++;
    for (size_t s = 0; s < p->uri_count; s++)
        sim_storages_write(p->uris[s]);
}

static void start_write(void)
{
    static const char *const groups[] = {"A", "B", "AB"};
    int64_t keys[KEYS];
    const char *spec_groups[KEYS];
    struct tierce__started started;
    int instance = (int)below(INSTANCES);
    size_t count = draw_keys(keys), n = 0;
    int64_t timeout_s = below(20);
    uint64_t known = below(2) == 0 ? generations[instance] + below(2) : 0; /* 0: it does not know */
    for (size_t i = 0; i < count; i++)
        spec_groups[i] = groups[below(3)];
    int rc = tierce__locator_start_write(h.locator,
                                         &(struct tierce__write_request){
                                             .instance_id = instance_ids[instance],
                                             .keys = keys,
                                             .count = count,
                                             .spec_groups = below(2) == 0 ? spec_groups : NULL,
                                             .timeout_s = timeout_s,
                                             .ttl_s = expires && below(4) == 0 ? 1 + below(900) : 0,
                                             .generation = known,
                                         },
                                         &h.arena, &started, h.why);
    if (rc < 0 || started.count == 0)
        return;
    REQUIRE(known == 0 || known == generations[instance] + 1,
            "a client writes that knows generation %llu", (unsigned long long)known);
    REQUIRE(told_count < SESSIONS_MAX, "too many sessions");
    struct told *t = &told[told_count];
    *t = (struct told){.instance = instance,
                       .generation = generations[instance],
                       .first = placed_count,
                       .count = started.count,
                       .timeout_us = timeout_s * 1000000,
                       .promised_us = h.now_us + timeout_s * 1000000};
    memcpy(t->id, started.session, sizeof(t->id));
    for (size_t i = 0; i < count; i++) {
        if (!tierce__mask_has(&started.mask, i))
            place(told_count, keys[i], &started.locations[n++]);
    }
    REQUIRE(n == started.count, "%zu keys are to be written at %zu places", n, started.count);
    told_count++;
}

static void finish_write(void)
{
    uint8_t values[KEYS];
    struct told *t = draw_open(false);
    if (t == NULL)
        return;
    uint32_t lost = below(3) == 0 ? 500 : 0;
    bool is_first = !t->is_tried, is_late = t->generation != generations[t->instance];
    t->is_tried = true;
    for (size_t i = 0; i < t->count; i++) {
        struct placed *p = &placed[t->first + i];
        values[i] = below(1000) >= lost;
        p->is_told = true;
        p->may_serve = p->may_serve || (values[i] != 0 && p->state == WRITING && !is_late);
    }
    struct tierce__mask mask = {.is_values = true, .values = values, .count = t->count};
    int rc =
        tierce__locator_finish_write(h.locator, instance_ids[t->instance], t->id, &mask, h.why);
    REQUIRE(rc == 0 || rate > 0 || is_late, "a session cannot be finished: %s", h.why);
    REQUIRE(rc != 0 || !is_late || !is_first, "a session of before an invalidation is finished");
    stale_writes += rc == -ESTALE;
    if (rc == 0 || rc == -ESTALE)
        t->is_over = true;
    for (size_t i = 0; i < t->count; i++) {
        struct placed *p = &placed[t->first + i];
        if (rc == 0 && p->state == WRITING)
            set_state(p, values[i] != 0 ? UNKNOWN : GONE);
        else if (rc == -ESTALE && p->state == WRITING)
            set_state(p, UNKNOWN);
        served += rc == 0 && values[i] != 0;
    }
}

static void renew_write(void)
{
    struct tierce__renewed renewed;
    struct told *t = below(4) > 0 ? draw_open(below(4) == 0) : NULL;
    if (told_count == 0)
        return;
    if (t == NULL)
        t = &told[below((uint32_t)told_count)];
    int rc =
        tierce__locator_renew_write(h.locator, instance_ids[t->instance], t->id, &renewed, h.why);
    see_renewal(t, rc, &renewed);
}

static bool is_enabled(const char *uri)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    const char name[] = {strstr(uri, "://")[3], '\0'};
    bool enabled = tierce__catalog_storage(catalog, name)->is_enabled;
    tierce__registry_release(h.registry, catalog);
    return enabled;
}

static void get(void)
{
    int64_t keys[KEYS];
    struct tierce__got got;
    int instance = (int)below(INSTANCES);
    size_t count = draw_keys(keys);
    int rc = tierce__locator_get(h.locator,
                                 &(struct tierce__get_request){
                                     .instance_id = instance_ids[instance],
                                     .query = TIERCE__QUERY_BATCH,
                                     .keys = keys,
                                     .count = count,
                                 },
                                 &h.arena, &got, h.why);
    REQUIRE(rc == 0 || rate > 0, "get: %s", h.why);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        bool is_there = false;
        for (size_t p = 0; p < placed_count; p++)
            is_there |= placed[p].state == SERVING && placed[p].key == keys[i] &&
                        placed[p].instance == instance && placed[p].due_us > h.now_us &&
                        !is_stale(&placed[p]) && is_enabled(placed[p].uris[0]);
        REQUIRE(is_there == (got.found[i].type != 0), "block %lld: there %d, found %d",
                (long long)keys[i], is_there, got.found[i].type);
        if (is_there)
            REQUIRE(placed_at(got.found[i].specs[0].uri, instance)->state == SERVING,
                    "block %lld was told of where it does not lie", (long long)keys[i]);
    }
}

static void look(void)
{
    int64_t keys[KEYS];
    struct tierce__looked *looked;
    size_t count = draw_keys(keys);
    int instance = (int)below(INSTANCES);
    int rc = tierce__locator_look(
        h.locator,
        &(struct tierce__look_request){
            .instance_id = instance_ids[instance], .keys = keys, .count = count},
        &h.arena, &looked, &count, h.why);
    REQUIRE(rc == 0 || rate > 0, "look: %s", h.why);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        bool is_there = false, is_written = false;
        for (size_t p = 0; p < placed_count; p++) {
            bool is_one = placed[p].key == keys[i] && placed[p].instance == instance;
            is_there |= is_one && placed[p].state == SERVING && placed[p].due_us > h.now_us &&
                        !is_stale(&placed[p]);
            is_written |= is_one && placed[p].state == WRITING;
        }
        REQUIRE(is_there == (looked[i].state == TIERCE__LOOK_SERVING), "block %lld looks like %d",
                (long long)keys[i], looked[i].state);
        REQUIRE(!is_written || is_there || looked[i].state == TIERCE__LOOK_WRITING,
                "block %lld looks like %d while it is written", (long long)keys[i],
                looked[i].state);
    }
}

#endif
