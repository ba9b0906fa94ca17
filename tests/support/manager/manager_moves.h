/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_MANAGER_MOVES_H
#define TIERCE_TESTS_MANAGER_MOVES_H

#include "manager_reclaim.h"

#include <errno.h>

/*
 * A harness with further storages, and a mover that has to be told what it found. Its instance is
 * one of engines.
 */

/* Adds a storage of files behind the candidates of "g". */
static inline void moves_add_storage(struct harness *h, const char *name, uint64_t capacity)
{
    char root[128], own_name[8];
    snprintf(root, sizeof(root), "%s/%s/", h->folder, name);
    snprintf(own_name, sizeof(own_name), "%s", name);
    ck_assert_int_eq(mkdir(root, 0700), 0);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__storage storage = *tierce__catalog_storage(catalog, "s");
    storage.name = own_name;
    storage.root_path = root;
    storage.capacity_bytes = capacity;
    int rc = tierce__registry_add_storage(h->registry, &storage, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    char *names[8];
    memcpy(names, group.storage_candidates, group.storage_candidate_count * sizeof(names[0]));
    names[group.storage_candidate_count++] = own_name;
    group.storage_candidates = names;
    group.version++;
    rc = tierce__registry_update_group(h->registry, &group, group.version - 1, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    tierce__registry_release(h->registry, catalog);
}

static inline uint16_t moves_number_of(struct harness *h, const char *name)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    uint16_t number = tierce__catalog_storage(catalog, name)->number;
    tierce__registry_release(h->registry, catalog);
    return number;
}

static inline void moves_open(struct harness *h, const struct harness_opts *opts)
{
    struct harness_opts own = *opts;
    own.has_engines = true;
    open_all(h, &own);
    moves_add_storage(h, "t", 0);
}

/* The record of a key of "i"; location_count 0: there is none. */
static inline struct tierce__record moves_record(struct harness *h, int64_t key)
{
    struct tierce__record record = {0};
    struct tierce__live *live;
    bool found = false;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    ck_assert_int_eq(tierce__meta_index_get(live->index, &key, 1, &h->arena, &record, &found), 0);
    tierce__live_release(live);
    return found ? record : (struct tierce__record){0};
}

/* Queues the first location of each key. */
static inline size_t moves_want(struct harness *h, const int64_t *keys, size_t count,
                                const char *from, bool is_copy, enum tierce__move_to to)
{
    struct tierce__live *live;
    size_t queued = 0;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    for (size_t i = 0; i < count; i++) {
        struct tierce__move_lane lane = {.instance_id = "i",
                                         .instance = live->instance.number,
                                         .from = moves_number_of(h, from),
                                         .is_copy = is_copy,
                                         .to = to,
                                         .reason =
                                             is_copy ? TIERCE__MOVE_REPLICA : TIERCE__MOVE_COLD};
        struct tierce__record record = moves_record(h, keys[i]);
        for (size_t l = 0; l < record.location_count; l++) {
            struct tierce__move_block block = {
                .key = keys[i], .bytes = tierce__location_bytes(&record.locations[l])};
            memcpy(block.location_id, record.locations[l].id, sizeof(block.location_id));
            if (record.locations[l].storage == lane.from)
                queued += tierce__moves_want(tierce__locator_moves(h->locator), &lane, &block, 1,
                                             h->now_us);
        }
    }
    tierce__live_release(live);
    return queued;
}

static inline struct tierce__taken_moves moves_take(struct harness *h, size_t blocks_max)
{
    struct tierce__taken_moves taken = {0};
    int rc = tierce__locator_take_moves(h->locator,
                                        &(struct tierce__take_moves){.blocks_max = blocks_max},
                                        &h->arena, &taken, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    return taken;
}

/* All blocks of the batch have this result; returns the number that moved. */
static inline size_t moves_finish(struct harness *h, const struct tierce__move_batch *batch,
                                  enum tierce__move_result result)
{
    enum tierce__move_result results[64];
    size_t moved = 99;
    ck_assert_uint_le(batch->count, 64);
    for (size_t i = 0; i < batch->count; i++)
        results[i] = result;
    int rc = tierce__locator_finish_moves(h->locator, batch->instance_id, batch->session, results,
                                          batch->count, &moved, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    return moved;
}

static inline struct tierce__moves_stats moves_stats(struct harness *h)
{
    struct tierce__moves_stats stats;
    tierce__moves_stats(tierce__locator_moves(h->locator), &stats);
    return stats;
}

/* Bytes of a storage, in all states. */
static inline uint64_t moves_bytes_in(struct harness *h, const char *name)
{
    struct tierce__usage usage;
    tierce__locator_storage_usage(h->locator, moves_number_of(h, name), &usage);
    return usage.serving_bytes + usage.writing_bytes + usage.deleting_bytes;
}

#endif
