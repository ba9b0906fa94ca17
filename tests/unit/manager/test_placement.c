/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that ask for moves: demotion, promotion and replicas. "s" is hotter than "t". */
#include "base/alloc.h"
#include "check_main.h"
#include "manager/reclaim/demote.h"
#include "manager_moves.h"
#include "silent_log.h"

enum { SECOND_US = 1000000, WINDOW_S = 60, S_BLOCKS = 100 };

static void set_rules(struct harness *h, int32_t demote, int64_t window_s, int32_t replicas)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    struct tierce__type_quota quota = group.type_quotas[0];
    quota.replicas = replicas;
    group.type_quotas = &quota;
    group.demote = demote;
    group.promote_window_s = window_s;
    group.version++;
    int rc = tierce__registry_update_group(h->registry, &group, group.version - 1, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    tierce__registry_release(h->registry, catalog);
}

static void limit_bytes(struct harness *h, const char *name, uint64_t bytes)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__storage storage = *tierce__catalog_storage(catalog, name);
    storage.capacity_bytes = bytes;
    ck_assert_int_eq(tierce__registry_update_storage(h->registry, &storage, h->why), 0);
    tierce__registry_release(h->registry, catalog);
}

static void limit_storage(struct harness *h, const char *name, uint64_t blocks)
{
    limit_bytes(h, name, blocks * BLOCK_BYTES);
}

static void open_rules(struct harness *h, int32_t demote, int64_t window_s, int32_t replicas)
{
    moves_open(h, &(struct harness_opts){.watermark = 0.9, .keys_per_file = 8});
    limit_storage(h, "s", S_BLOCKS);
    set_rules(h, demote, window_s, replicas);
}

static uint64_t blocks_in(struct harness *h, const char *name)
{
    struct tierce__usage usage;
    tierce__locator_storage_usage(h->locator, moves_number_of(h, name), &usage);
    return usage.serving_bytes / BLOCK_BYTES;
}

/* The storages that hold a block: "s", "st"; "": it is lost. */
static const char *places_of(struct harness *h, int64_t key)
{
    static char names[8];
    struct tierce__record record = moves_record(h, key);
    size_t count = 0;
    for (const char *name = "stu"; *name != '\0'; name++) {
        const char text[] = {*name, '\0'};
        for (size_t l = 0; l < record.location_count; l++) {
            const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
            const struct tierce__storage *storage = tierce__catalog_storage(catalog, text);
            if (storage != NULL && record.locations[l].storage == storage->number)
                names[count++] = *name;
            tierce__registry_release(h->registry, catalog);
        }
    }
    names[count] = '\0';
    return names;
}

static uint64_t waiting(struct harness *h, enum tierce__move_reason reason)
{
    return moves_stats(h).queued[reason];
}

/* Moves all that waits, as a mover does; returns the number of blocks. */
static size_t move_all(struct harness *h)
{
    size_t moved = 0;
    for (;;) {
        struct tierce__taken_moves taken = moves_take(h, 64);
        if (taken.count == 0)
            return moved;
        for (size_t i = 0; i < taken.count; i++)
            moved += moves_finish(h, &taken.batches[i], TIERCE__MOVED);
    }
}

static void delete_all(struct harness *h)
{
    h->now_us += 100 * SECOND_US;
    while (tierce__deleter_step(h->locator->deleter, 100) > 0)
        continue;
}

/* ---- demotion -------------------------------------------------------------------------------- */

/* Above the watermark of a storage the blocks that were used longest ago move, and none is lost. */
START_TEST(the_coldest_blocks_move)
{
    struct harness h;
    struct tierce__reclaimer_stats stats;
    open_rules(&h, 1, 0, 0);
    store_each(&h, 0, 95);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_COLD), 0);
    read_key(&h, 0);
    store_each(&h, 95, 1);
    for (int round = 0; round < 3; round++) { /* what waits is not asked for twice */
        ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
        ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_COLD), 3); /* to 93, two below the mark */
    }
    struct tierce__taken_moves taken = moves_take(&h, 64);
    ck_assert_uint_eq(taken.count, 1);
    store_each(&h, 96, 1);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0); /* nor what is on its way */
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_COLD), 1);
    ck_assert_uint_eq(moves_finish(&h, &taken.batches[0], TIERCE__MOVED), 3);
    ck_assert_uint_eq(move_all(&h), 1);
    for (int64_t key = 0; key < 97; key++)
        ck_assert_str_eq(places_of(&h, key), key >= 1 && key <= 4 ? "t" : "s");
    delete_all(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), 93 * BLOCK_BYTES);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), 4 * BLOCK_BYTES);
    tierce__reclaimer_stats(reclaimer, &stats);
    ck_assert_uint_eq(stats.demoted_blocks, 4);
    ck_assert_uint_eq(stats.submitted_blocks + stats.undemoted_blocks, 0);
    close_all(&h);
}
END_TEST

/* In a group of LFU, too: by frequency a block that was just promoted could be demoted first. */
START_TEST(demotion_looks_at_the_last_use)
{
    struct harness h;
    moves_open(&h, &(struct harness_opts){
                       .watermark = 0.9, .keys_per_file = 8, .policy = TIERCE__RECLAIM_LFU});
    limit_storage(&h, "s", S_BLOCKS);
    set_rules(&h, 1, 0, 0);
    store_each(&h, 0, 1);
    for (int i = 0; i < 10; i++)
        read_key(&h, 0);
    store_each(&h, 1, 95);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    ck_assert_uint_eq(move_all(&h), 3);
    for (int64_t key = 0; key < 96; key++)
        ck_assert_str_eq(places_of(&h, key), key < 3 ? "t" : "s");
    close_all(&h);
}
END_TEST

/* Without a mover the storage does not fill: halfway between the watermark and the limit blocks are
 * evicted, every write finds room, and the evicted blocks are counted. */
START_TEST(without_a_mover_blocks_are_evicted)
{
    enum { MANY = 150 };
    struct harness h;
    struct tierce__reclaimer_stats stats;
    open_rules(&h, 1, 0, 0);
    for (int64_t key = 0; key < MANY; key++) {
        store_each(&h, key, 1);
        (void)tierce__reclaimer_step(reclaimer);
        delete_all(&h);
        ck_assert_uint_le(moves_bytes_in(&h, "s"), S_BLOCKS * BLOCK_BYTES);
    }
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), 0);
    ck_assert_uint_eq(blocks_in(&h, "s"), 97); /* halfway between 95 and 100 */
    tierce__reclaimer_stats(reclaimer, &stats);
    ck_assert_uint_eq(stats.undemoted_blocks, MANY - 97);
    close_all(&h);
}
END_TEST

/* Where no colder candidate has room, blocks are evicted at the watermark, as without the rule. */
START_TEST(without_room_blocks_are_evicted)
{
    struct harness h;
    open_rules(&h, 1, 0, 0);
    limit_storage(&h, "t", 10);
    store_each(&h, 0, 97);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    ck_assert_uint_eq(move_all(&h), 4);
    delete_all(&h);
    ck_assert_uint_eq(blocks_in(&h, "s"), 93);
    ck_assert_uint_eq(blocks_in(&h, "t"), 4);
    limit_storage(&h, "t", 4);
    store_each(&h, 100, 3);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 1 + 1); /* 1 of t, above its own mark */
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_COLD), 0);
    ck_assert_uint_eq(blocks_in(&h, "s"), 95);
    close_all(&h);
}
END_TEST

/* ---- promotion ------------------------------------------------------------------------------- */

/* Stores a block and moves it to t. */
static void store_cold(struct harness *h, int64_t key)
{
    harness_store(h, &key, 1);
    ck_assert_uint_eq(moves_want(h, &key, 1, "s", false, TIERCE__MOVE_TO_COLDER), 1);
    ck_assert_uint_eq(move_all(h), 1);
    delete_all(h);
    ck_assert_str_eq(places_of(h, key), "t");
}

START_TEST(two_reads_within_the_window_promote)
{
    struct harness h;
    open_rules(&h, 0, WINDOW_S, 0);
    store_cold(&h, 1);
    read_key(&h, 1);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_HOT), 0);
    h.now_us += (WINDOW_S + 1) * SECOND_US; /* too late */
    read_key(&h, 1);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_HOT), 0);
    h.now_us += (WINDOW_S - 10) * SECOND_US;
    read_key(&h, 1);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_HOT), 1);
    read_key(&h, 1);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_HOT), 1);
    ck_assert_uint_eq(move_all(&h), 1);
    ck_assert_str_eq(places_of(&h, 1), "s");
    for (int i = 0; i < 3; i++)
        read_key(&h, 1); /* the hottest candidate has it */
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_HOT), 0);
    delete_all(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), BLOCK_BYTES);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), 0);
    close_all(&h);
}
END_TEST

/* No block is evicted or moved for one that is promoted. */
START_TEST(a_full_storage_gets_nothing)
{
    struct harness h;
    open_rules(&h, 0, WINDOW_S, 0);
    store_cold(&h, 1000);
    store_each(&h, 0, 95);
    for (int i = 0; i < 3; i++)
        read_key(&h, 1000);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_HOT), 0);
    close_all(&h);
}
END_TEST

/* A block that was read just before it was demoted comes back after two reads, not after one; and
 * it is not demoted again at once. */
START_TEST(no_ping_pong)
{
    struct harness h;
    open_rules(&h, 1, 1000, 0);
    store_each(&h, 0, 5);
    read_key(&h, 0);
    store_each(&h, 5, 91);
    for (int64_t key = 1; key < 96; key++)
        read_key(&h, key);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    ck_assert_uint_eq(move_all(&h), 3);
    delete_all(&h);
    ck_assert_str_eq(places_of(&h, 0), "t");
    read_key(&h, 0);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_HOT), 0);
    read_key(&h, 0);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_HOT), 1);
    ck_assert_uint_eq(move_all(&h), 1);
    ck_assert_str_eq(places_of(&h, 0), "s");
    store_each(&h, 96, 3);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    ck_assert_uint_gt(move_all(&h), 0);
    ck_assert_str_eq(places_of(&h, 0), "s");
    close_all(&h);
}
END_TEST

/* ---- replicas -------------------------------------------------------------------------------- */

static const int64_t keys[] = {1, 2, 3};
enum { KEYS = 3 };

static void lose(struct harness *h, const char *name)
{
    ck_assert_int_eq(tierce__registry_empty_storage(h->registry, name, h->why), 0);
    (void)tierce__reclaimer_step(reclaimer);
}

/* A written block gets a second copy in another storage of the type. When a storage is lost, its
 * blocks are found in the other one, and copied again. */
START_TEST(a_lost_storage_loses_no_block)
{
    struct harness h;
    open_rules(&h, 0, 0, 2);
    moves_add_storage(&h, "u", 0);
    set_rules(&h, 0, 0, 2);
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_REPLICA), KEYS);
    ck_assert_uint_eq(move_all(&h), KEYS);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_REPLICA), 0);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_REPLICA), 0); /* two are enough */
    for (size_t i = 0; i < KEYS; i++)
        ck_assert_str_eq(places_of(&h, keys[i]), "st");
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), KEYS * BLOCK_BYTES);
    ck_assert_uint_eq(moves_bytes_in(&h, "t"), KEYS * BLOCK_BYTES);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, 2 * KEYS * BLOCK_BYTES);
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "s", false, h.why), 0);
    lose(&h, "s");
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_REPLICA), KEYS);
    ck_assert_uint_eq(move_all(&h), KEYS);
    for (size_t i = 0; i < KEYS; i++)
        ck_assert_str_eq(places_of(&h, keys[i]), "tu");
    delete_all(&h);
    ck_assert_uint_eq(moves_bytes_in(&h, "s"), 0);
    close_all(&h);
}
END_TEST

/* Another leader does not know the queue: a read asks again. */
START_TEST(a_read_asks_for_a_copy)
{
    struct harness h;
    open_rules(&h, 0, 0, 2);
    harness_store(&h, keys, KEYS);
    tierce__moves_clear(tierce__locator_moves(h.locator));
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_REPLICA), KEYS);
    close_all(&h);
}
END_TEST

/* A copy whose storage is short of room leaves alone, also if the group demotes. */
START_TEST(a_full_storage_gives_its_copies_up)
{
    struct harness h;
    open_rules(&h, (int32_t)_i, 0, 2);
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(move_all(&h), KEYS);
    limit_storage(&h, "s", 2);
    ck_assert_uint_ge(tierce__reclaimer_step(reclaimer), 2); /* one block is below the watermark */
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_COLD), 0);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    ck_assert_uint_eq(blocks_in(&h, "t"), KEYS);
    ck_assert_uint_le(blocks_in(&h, "s"), 1);
    close_all(&h);
}
END_TEST

/* One block is above the watermark. Its copy in t makes a move unnecessary, unless t is not
 * available, or is being emptied: the last copy that stays moves, and is not dropped. */
START_TEST(the_last_copy_that_can_be_read_stays)
{
    const bool stays = _i == 0;
    struct harness h;
    open_rules(&h, 1, 0, 2);
    moves_add_storage(&h, "u", 0);
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(move_all(&h), KEYS);
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "t", _i != 1, h.why), 0);
    if (_i == 2)
        ck_assert_int_eq(
            tierce__registry_drain_storage(h.registry, "t", TIERCE__DRAINING_MOVES, h.why), 0);
    limit_bytes(&h, "s", KEYS * BLOCK_BYTES + BLOCK_BYTES / 10);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), stays);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_COLD), !stays);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    size_t moved = move_all(&h); /* or the replica that the read has asked for */
    if (_i < 2)
        ck_assert_uint_eq(moved, 1);
    ck_assert_uint_ge(blocks_in(&h, "u"), 1);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    close_all(&h);
}
END_TEST

static struct harness *watched; /* its key 1 loses its copy in "t" once victims were chosen */

static bool is_in(void *arg, const struct tierce__record *record,
                  const struct tierce__location *location)
{
    (void)record;
    return location->storage == *(const uint16_t *)arg;
}

/* As after a report. It is no use of the block: one that was used stays in any case. */
static void lose_copy(struct harness *h, int64_t key, const char *name)
{
    struct tierce__live *live;
    struct tierce__removed removed = {0};
    uint16_t number = moves_number_of(h, name);
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, "i", h->why), 0);
    struct tierce__removal how = {
        .due_us = h->now_us, .wanted_location = is_in, .wanted_arg = &number};
    ck_assert_int_eq(tierce__live_remove(live, &key, 1, &how, &removed), 0);
    ck_assert_uint_eq(removed.locations, 1);
    tierce__live_release(live);
}

size_t __real_tierce__demote(struct tierce__taking *t, const struct tierce__member *member,
                             struct tierce__candidate **chosen, size_t count);
size_t __wrap_tierce__demote(struct tierce__taking *t, const struct tierce__member *member,
                             struct tierce__candidate **chosen, size_t count);
size_t __wrap_tierce__demote(struct tierce__taking *t, const struct tierce__member *member,
                             struct tierce__candidate **chosen, size_t count)
{
    size_t dropped = __real_tierce__demote(t, member, chosen, count);
    for (size_t i = 0; watched != NULL && i < dropped; i++)
        lose_copy(watched, chosen[i]->key, "t");
    return dropped;
}

/* The copy for which a location is dropped leaves after the sample was drawn. */
START_TEST(a_copy_that_has_become_the_last_one_stays)
{
    struct harness h;
    open_rules(&h, 1, 0, 2);
    moves_add_storage(&h, "u", 0);
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(move_all(&h), KEYS);
    limit_bytes(&h, "s", KEYS * BLOCK_BYTES + BLOCK_BYTES / 10);
    watched = &h;
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    watched = NULL;
    ck_assert_uint_eq(blocks_in(&h, "t"), KEYS - 1);
    ck_assert_uint_eq(blocks_in(&h, "s"), KEYS);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    close_all(&h);
}
END_TEST

static unsigned asked;

bool __real_tierce__candidate_has_quiet_room(const struct tierce__locator *locator,
                                             const struct tierce__catalog *catalog,
                                             const struct tierce__group *group, size_t position);
bool __wrap_tierce__candidate_has_quiet_room(const struct tierce__locator *locator,
                                             const struct tierce__catalog *catalog,
                                             const struct tierce__group *group, size_t position);
bool __wrap_tierce__candidate_has_quiet_room(const struct tierce__locator *locator,
                                             const struct tierce__catalog *catalog,
                                             const struct tierce__group *group, size_t position)
{
    asked++;
    return __real_tierce__candidate_has_quiet_room(locator, catalog, group, position);
}

/* Candidates may be pools of many parts: they are asked for each limit and group, and not for each
 * instance. */
START_TEST(candidates_are_asked_once_for_all_instances)
{
    enum { INSTANCES = 8, CANDIDATES = 2 };
    struct harness h;
    open_rules(&h, 1, 0, 0);
    for (int i = 0; i < INSTANCES; i++) {
        char id[16];
        snprintf(id, sizeof(id), "more-%d", i);
        harness_add_instance(&h, id);
    }
    store_each(&h, 0, S_BLOCKS);
    asked = 0;
    (void)tierce__reclaimer_step(reclaimer);
    ck_assert_uint_gt(waiting(&h, TIERCE__MOVE_COLD), 0);
    ck_assert_uint_le(asked, CANDIDATES);
    close_all(&h);
}
END_TEST

/* A promotion needs no move if a hotter candidate has the block, too. */
START_TEST(a_block_that_is_hot_already_stays)
{
    struct harness h;
    open_rules(&h, 0, WINDOW_S, 0);
    harness_store(&h, keys, KEYS);
    ck_assert_uint_eq(moves_want(&h, keys, KEYS, "s", true, TIERCE__MOVE_TO_COLDER), KEYS);
    ck_assert_uint_eq(move_all(&h), KEYS);
    for (int i = 0; i < 20; i++) /* from both, by chance */
        read_key(&h, keys[0]);
    ck_assert_uint_eq(waiting(&h, TIERCE__MOVE_HOT), 0);
    close_all(&h);
}
END_TEST

/* ---- the settings ---------------------------------------------------------------------------- */

static int try_rules(struct harness *h, int32_t demote, int64_t window_s, int32_t replicas)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    struct tierce__type_quota quota = group.type_quotas[0];
    quota.replicas = replicas;
    group.type_quotas = &quota;
    group.demote = demote;
    group.promote_window_s = window_s;
    group.version++;
    int rc = tierce__registry_update_group(h->registry, &group, group.version - 1, h->why);
    tierce__registry_release(h->registry, catalog);
    return rc;
}

static void check_rules(struct harness *h, int32_t demote, int64_t window_s, int32_t replicas)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    const struct tierce__group *group = tierce__catalog_group(catalog, "g");
    ck_assert_int_eq(group->demote, demote);
    ck_assert_int_eq(group->promote_window_s, window_s);
    ck_assert_int_eq(group->type_quotas[0].replicas, replicas);
    tierce__registry_release(h->registry, catalog);
}

/* A client that does not know the settings sends 0, which keeps them; -1 turns them off. */
START_TEST(settings_stay_until_they_are_turned_off)
{
    struct harness h;
    open_rules(&h, 1, WINDOW_S, 2);
    check_rules(&h, 1, WINDOW_S, 2);
    set_rules(&h, 0, 0, 0);
    check_rules(&h, 1, WINDOW_S, 2);
    set_rules(&h, -1, -1, -1);
    check_rules(&h, 0, 0, 0);
    ck_assert_int_eq(try_rules(&h, 2, 0, 0), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(h.why, "demote"));
    ck_assert_int_eq(try_rules(&h, 0, -2, 0), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(h.why, "promote_window_seconds"));
    ck_assert_int_eq(try_rules(&h, 0, 0, TIERCE__REPLICAS_MAX + 1), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(h.why, "replicas"));
    close_all(&h);
}
END_TEST

/* ---- the parts of demotion ------------------------------------------------------------------- */

struct part_of_demotion {
    struct harness h;
    struct tierce__live *live;
    const struct tierce__catalog *catalog;
    struct tierce__need need; /* of "s" */
};

static void open_part(struct part_of_demotion *p)
{
    open_rules(&p->h, 1, 0, 0);
    ck_assert_int_eq(tierce__live_acquire(&p->live, p->h.locator, "i", p->h.why), 0);
    p->catalog = tierce__registry_acquire(p->h.registry);
    p->need = (struct tierce__need){.bytes = 1, .storage = moves_number_of(&p->h, "s")};
}

static void close_part(struct part_of_demotion *p)
{
    tierce__registry_release(p->h.registry, p->catalog);
    tierce__live_release(p->live);
    close_all(&p->h);
}

static uint64_t leaving(struct part_of_demotion *p)
{
    return tierce__demote_leaving(p->h.locator, p->catalog, &p->need);
}

/* Bytes that leave a storage count while they wait and while they are copied. Copies for other
 * reasons, which stay, and writes of clients do not count. */
START_TEST(only_demoted_bytes_are_leaving)
{
    static const int64_t cold[] = {1, 2}, copied[] = {3}, fresh[] = {99};
    struct part_of_demotion p;
    open_part(&p);
    harness_store(&p.h, keys, KEYS);
    (void)harness_start(&p.h, fresh, 1);
    ck_assert_uint_eq(moves_want(&p.h, copied, 1, "s", true, TIERCE__MOVE_TO_ANY), 1);
    ck_assert_uint_eq(leaving(&p), 0);
    ck_assert_uint_eq(moves_take(&p.h, 10).count, 1);
    ck_assert_uint_eq(leaving(&p), 0);
    ck_assert_uint_eq(moves_want(&p.h, cold, 2, "s", false, TIERCE__MOVE_TO_COLDER), 2);
    for (int is_taken = 0; is_taken < 2; is_taken++) {
        ck_assert_uint_eq(leaving(&p), 2 * BLOCK_BYTES);
        p.need.group = "g";
        ck_assert_uint_eq(leaving(&p), 2 * BLOCK_BYTES);
        p.need.group = "other";
        ck_assert_uint_eq(leaving(&p), 0);
        p.need.group = NULL;
        p.need.storage = moves_number_of(&p.h, "t");
        ck_assert_uint_eq(leaving(&p), 0);
        p.need.storage = moves_number_of(&p.h, "s");
        if (is_taken == 0)
            ck_assert_uint_eq(moves_take(&p.h, 10).count, 1);
    }
    close_part(&p);
}
END_TEST

START_TEST(blocks_that_wait_or_are_written_are_no_candidates)
{
    static const int64_t cold[] = {1};
    struct part_of_demotion p;
    open_part(&p);
    harness_store(&p.h, keys, KEYS);
    struct tierce__record record = moves_record(&p.h, 1);
    ck_assert(!tierce__demote_skips(p.live, 1, &record, p.h.now_us));
    ck_assert_uint_eq(moves_want(&p.h, cold, 1, "s", false, TIERCE__MOVE_TO_COLDER), 1);
    ck_assert(tierce__demote_skips(p.live, 1, &record, p.h.now_us)); /* it waits */
    ck_assert_uint_eq(moves_take(&p.h, 10).count, 1);
    ck_assert(tierce__demote_skips(p.live, 1, &record, p.h.now_us)); /* it is being copied */
    record = moves_record(&p.h, 2);
    ck_assert(!tierce__demote_skips(p.live, 2, &record, p.h.now_us));
    close_part(&p);
}
END_TEST

/* A block without a value is dropped instead of moved, unless a block follows it. */
START_TEST(a_useless_block_is_dropped)
{
    struct part_of_demotion p;
    open_part(&p);
    harness_store(&p.h, keys, KEYS);
    struct tierce__record record = moves_record(&p.h, 1);
    const struct tierce__victims_opts opts = {
        .locator = p.h.locator, .catalog = p.catalog, .need = &p.need};
    struct tierce__taking taking = {.opts = &opts};
    struct tierce__candidate useless = {.value = TIERCE__VALUE_NONE},
                             used = {.value = TIERCE__VALUE_INSIDE};
    record.children = 0;
    ck_assert(tierce__demote_drops(&taking, &useless, &record, &record.locations[0]));
    ck_assert(!tierce__demote_drops(&taking, &used, &record, &record.locations[0]));
    record.children = 1;
    ck_assert(!tierce__demote_drops(&taking, &useless, &record, &record.locations[0]));
    close_part(&p);
}
END_TEST

/* The groups of a need that demote: those that ask for it, if they have instances of engines. */
START_TEST(the_groups_that_demote)
{
    struct part_of_demotion p;
    open_part(&p);
    struct tierce__group other = *tierce__catalog_group(p.catalog, "g");
    other.name = (char *)(uintptr_t) "other";
    other.number = 0;
    ck_assert_int_eq(tierce__registry_add_group(p.h.registry, &other, p.h.why), 0);
    tierce__registry_release(p.h.registry, p.catalog);
    p.catalog = tierce__registry_acquire(p.h.registry);
    size_t count;
    const struct tierce__group *groups = tierce__catalog_groups(p.catalog, &count);
    ck_assert_uint_eq(count, 2);
    bool *demotes = tierce__demote_begin(p.h.locator, p.catalog, &p.need);
    ck_assert(demotes != NULL && demotes[0] && demotes[1]);
    tierce__free(demotes);
    p.need.group = "g";
    demotes = tierce__demote_begin(p.h.locator, p.catalog, &p.need);
    ck_assert_ptr_nonnull(demotes);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(demotes[i], strcmp(groups[i].name, "g") == 0);
    tierce__free(demotes);
    p.need.group = "other"; /* it has no instance */
    ck_assert_ptr_null(tierce__demote_begin(p.h.locator, p.catalog, &p.need));
    p.need.group = NULL;
    p.need.storage = moves_number_of(&p.h, "t"); /* nothing is colder */
    ck_assert_ptr_null(tierce__demote_begin(p.h.locator, p.catalog, &p.need));
    close_part(&p);
}
END_TEST

/* A mover cannot verify them. */
START_TEST(blocks_of_other_clients_are_not_demoted)
{
    struct harness h;
    open_all(&h, &(struct harness_opts){.watermark = 0.9});
    moves_add_storage(&h, "t", 0);
    set_rules(&h, 1, 0, 0);
    const struct tierce__need need = {.bytes = 1, .storage = moves_number_of(&h, "s")};
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    ck_assert_ptr_null(tierce__demote_begin(h.locator, catalog, &need));
    tierce__registry_release(h.registry, catalog);
    close_all(&h);
}
END_TEST

CHECK_MAIN("placement",
           .tests = {the_coldest_blocks_move, demotion_looks_at_the_last_use,
                     without_a_mover_blocks_are_evicted, without_room_blocks_are_evicted,
                     two_reads_within_the_window_promote, a_block_that_is_hot_already_stays,
                     a_full_storage_gets_nothing, no_ping_pong, a_lost_storage_loses_no_block,
                     a_read_asks_for_a_copy, a_copy_that_has_become_the_last_one_stays,
                     candidates_are_asked_once_for_all_instances,
                     settings_stay_until_they_are_turned_off, only_demoted_bytes_are_leaving,
                     blocks_that_wait_or_are_written_are_no_candidates, a_useless_block_is_dropped,
                     the_groups_that_demote, blocks_of_other_clients_are_not_demoted},
           .loops = {{a_full_storage_gives_its_copies_up, 0, 2},
                     {the_last_copy_that_can_be_read_stays, 0, 3}})
