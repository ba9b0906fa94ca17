/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "manager/reclaim/reclaimer.h"
#include "manager_harness.h"
#include "silent_log.h"
#include "sim/sim_storages.h"
#include "sim/sim_store.h"

#include <errno.h>

/*
 * A locator's life, in which every allocation fails once, then every operation of its store (before
 * it was done, and after), then every deletion in a storage. Whatever fails: a repeated call
 * succeeds, every state ends by a timeout at the latest, sums equal those of a scan, and at the end
 * nothing is left, and no memory.
 */
/* The storage has a number for which an index has no counter. */
enum { KEYS = 6, LOST = 5, HOUR_US = 0x70000000, S_NUMBER = 200, T_NUMBER = 201 };

static const int64_t keys[KEYS] = {11, 22, 33, 44, 55, 66}, others[] = {77, 88};
static struct harness h;
static struct tierce__reclaimer *reclaimer;
static struct tierce__started started;
static uint64_t fence;
static int64_t ttl_s;
static size_t lost = LOST;                              /* the key that a client could not write */
static char second_uri[SIM_URI_BYTES], second_spec[16]; /* where keys[1] lies */

static void goes(const char *path)
{
    (void)path;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int open_locator(void)
{
    return tierce__locator_open(&h.locator, &(struct tierce__locator_opts){
                                                .size = sizeof(struct tierce__locator_opts),
                                                .registry = h.registry,
                                                .storages = h.storages,
                                                .now_us = harness_now,
                                                .clock_arg = &h,
                                                .seed = 7 + fence,
                                                .find_store = sim_find_store,
                                            });
}

static int recover(void)
{
    return tierce__locator_recover(h.locator, ++fence, h.why);
}

static int start_reclaimer(void)
{
    return tierce__reclaimer_start(&reclaimer, &(struct tierce__reclaimer_opts){
                                                   .size = sizeof(struct tierce__reclaimer_opts),
                                                   .locator = h.locator,
                                                   .registry = h.registry,
                                                   .seed = 1,
                                               });
}

static int start_keys(const int64_t *which, size_t count, int64_t timeout_s)
{
    int rc = tierce__locator_start_write(h.locator,
                                         &(struct tierce__write_request){.instance_id = "i",
                                                                         .keys = which,
                                                                         .count = count,
                                                                         .timeout_s = timeout_s,
                                                                         .ttl_s = ttl_s},
                                         &h.arena, &started, h.why);
    if (rc == 0)
        ck_assert_uint_eq(started.count, count);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        for (size_t s = 0; s < started.locations[i].spec_count; s++)
            sim_storages_write(started.locations[i].specs[s].uri);
    }
    return rc;
}

static int start(void)
{
    int rc = start_keys(keys, KEYS, 30);
    if (rc == 0) {
        snprintf(second_uri, sizeof(second_uri), "%s", started.locations[1].specs[0].uri);
        snprintf(second_spec, sizeof(second_spec), "%s", started.locations[1].specs[0].name);
    }
    return rc;
}

static int finish(void)
{
    uint8_t values[KEYS] = {1, 1, 1, 1, 1, 1};
    struct tierce__mask written = {.is_values = true, .values = values, .count = KEYS};
    values[lost] = 0;
    return tierce__locator_finish_write(h.locator, "i", started.session, &written, h.why);
}

static int start_others(void)
{
    return start_keys(others, 2, 1);
}

/* A session whose time is over ends, at the latest when it is tried again. */
static int expire(void)
{
    h.now_us += 2000000;
    (void)tierce__locator_expire(h.locator);
    return harness_usage(&h).sessions == 0 ? 0 : -EIO;
}

static int get(enum tierce__query query, size_t hits)
{
    struct tierce__got got = {0};
    int rc = tierce__locator_get(
        h.locator,
        &(struct tierce__get_request){
            .instance_id = "i", .query = (int)query, .keys = keys, .count = KEYS, .window = 2},
        &h.arena, &got, h.why);
    if (rc == 0)
        ck_assert_uint_eq(got.hits, hits);
    return rc;
}

static int get_batch(void)
{
    return get(TIERCE__QUERY_BATCH, LOST);
}

static int get_prefix(void)
{
    return get(TIERCE__QUERY_PREFIX, LOST);
}

static int get_window(void)
{
    return get(TIERCE__QUERY_WINDOW, 2);
}

static int look(void)
{
    struct tierce__look_request request = {.instance_id = "i", .keys = keys, .count = KEYS};
    struct tierce__looked *looked;
    size_t count;
    int rc = tierce__locator_look(h.locator, &request, &h.arena, &looked, &count, h.why);
    for (size_t i = 0; rc == 0 && i < LOST; i++)
        ck_assert_int_eq(looked[i].state, TIERCE__LOOK_SERVING);
    return rc;
}

static int remove_first(void)
{
    struct tierce__mask none = {0};
    return tierce__locator_remove(h.locator, "i", keys, 1, &none, h.why);
}

/* ---- a move ---------------------------------------------------------------------------------- */

static char move_session[TIERCE__SESSION_ID_BYTES + 1];

static int want_third(void)
{
    struct tierce__meta_space *space = sim_store.spaces[1];
    struct tierce__move_lane lane = {
        .instance_id = "i", .instance = 1, .from = S_NUMBER, .reason = TIERCE__MOVE_COLD};
    struct tierce__move_block block = {.key = keys[2]};
    struct tierce__record record;
    bool found = false;
    int rc = space->ops->get(space, &keys[2], 1, &h.arena, &record, &found);
    if (rc < 0)
        return rc;
    ck_assert(found && record.locations[0].storage == S_NUMBER);
    memcpy(block.location_id, record.locations[0].id, sizeof(block.location_id));
    return tierce__moves_want(h.locator->moves, &lane, &block, 1, h.now_us) == 1 ? 0 : -ENOMEM;
}

/* After a failure the block waits, or rests, or a batch that nobody heard of has to time out. */
static int take_moves(void)
{
    struct tierce__taken_moves taken = {0};
    int rc = want_third();
    if (rc == 0)
        rc = tierce__locator_take_moves(h.locator, &(struct tierce__take_moves){.blocks_max = 4},
                                        &h.arena, &taken, h.why);
    if (rc == 0 && taken.count == 1) {
        for (size_t s = 0; s < taken.batches[0].to[0].spec_count; s++)
            sim_storages_write(taken.batches[0].to[0].specs[s].uri);
        memcpy(move_session, taken.batches[0].session, sizeof(move_session));
        return 0;
    }
    h.now_us += 40000000;
    (void)tierce__locator_expire(h.locator);
    h.now_us += 70000000;
    tierce__moves_clear(h.locator->moves);
    return rc < 0 ? rc : -EIO;
}

static int finish_moves(void)
{
    enum tierce__move_result result = TIERCE__MOVED;
    size_t moved;
    int rc = tierce__locator_finish_moves(h.locator, "i", move_session, &result, 1, &moved, h.why);
    if (rc == 0)
        ck_assert_uint_eq(moved, 1);
    return rc;
}

/* A report that fails may have dropped the location; one that succeeds has. */
static int report_second(void)
{
    struct tierce__meta_space *space = sim_store.spaces[1];
    struct tierce__location_report bad = {.key = keys[1],
                                          .spec_name = second_spec,
                                          .uri = second_uri,
                                          .reason = TIERCE__REPORT_DAMAGED};
    struct tierce__record record;
    uint64_t dropped = 0;
    bool found = true;
    int rc = tierce__locator_report(h.locator, "i", &bad, 1, &dropped, h.why);
    ck_assert_uint_le(dropped, 1);
    if (rc == 0)
        rc = space->ops->get(space, &keys[1], 1, &h.arena, &record, &found);
    ck_assert(rc != 0 || !found);
    return rc;
}

static int trim_none(void)
{
    return tierce__locator_trim(h.locator, "i", TIERCE__TRIM_TIME, 0, 1, h.why);
}

static int start_expiring(void)
{
    ttl_s = 1;
    int rc = start_keys(others, 2, 30);
    ttl_s = 0;
    return rc;
}

static int finish_expiring(void)
{
    struct tierce__mask all = {.offset = 2};
    return tierce__locator_finish_write(h.locator, "i", started.session, &all, h.why);
}

/* Expired blocks are removed, at the latest a second after a round that failed. */
static int expire_blocks(void)
{
    struct tierce__meta_space *space = sim_store.spaces[1];
    struct tierce__record records[2];
    bool found[2];
    h.now_us += 2100000;
    (void)tierce__reclaimer_step(reclaimer);
    ck_assert_int_eq(space->ops->get(space, others, 2, &h.arena, records, found), 0);
    return found[0] || found[1] ? -EIO : 0;
}

/* Down to the watermark, in two rounds if one has failed. */
static int reclaim(void)
{
    (void)tierce__reclaimer_step(reclaimer);
    return harness_usage(&h).serving_bytes <= 3 * BLOCK_BYTES ? 0 : -EIO;
}

static int delete_due(void)
{
    struct tierce__deleter_stats stats;
    h.now_us += 2000000;
    (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
    tierce__deleter_stats(h.locator->deleter, &stats);
    return stats.failed_tries == 0 ? 0 : -EIO;
}

static int change_leader(void)
{
    if (h.locator->is_open)
        tierce__locator_drop(h.locator);
    return recover();
}

/* ---- a life ---------------------------------------------------------------------------------- */

/* A call fails only because of the injected fault; the second attempt succeeds. */
static void try(int (*call)(void), const char *name)
{
    int rc = call();
    ck_assert_msg(rc == 0 || rc == -ENOMEM || rc == -EIO || rc == TIERCE_E_DEADLINE, "%s: %d %s",
                  name, rc, h.why);
    tierce__arena_clear(&h.arena); /* an arena that failed an allocation fails all later ones */
    if (rc == 0 || call == delete_due)
        return;
    rc = call();
    tierce__arena_clear(&h.arena);
    ck_assert_msg(rc == 0, "%s, again: %d %s", name, rc, h.why);
}

#define TRY(call) try(call, #call)

static void use(void)
{
    TRY(open_locator);
    TRY(recover);
    TRY(start_reclaimer);
    TRY(start);
    TRY(finish);
    TRY(get_batch);
    TRY(get_prefix);
    TRY(get_window);
    TRY(look);
    TRY(take_moves);
    TRY(finish_moves);
    TRY(get_prefix); /* the block that was moved, too */
    TRY(start_others);
    TRY(expire);
    TRY(remove_first);
    TRY(trim_none);
    TRY(start_expiring);
    TRY(finish_expiring);
    TRY(expire_blocks);
    TRY(reclaim);
    TRY(report_second);
    TRY(delete_due);
    tierce__reclaimer_stop(reclaimer);
    TRY(change_leader);
}

/* ---- contents -------------------------------------------------------------------------------- */

static void scan(uint64_t *count, uint64_t *bytes)
{
    struct tierce__meta_space *space = sim_store.spaces[1];
    int64_t found_keys[64];
    struct tierce__record records[64];
    bool found[64];
    uint64_t cursor = 0;
    size_t n;
    struct tierce__arena arena = {0};
    ck_assert_int_eq(space->ops->scan(space, &cursor, 64, found_keys, &n), 0);
    ck_assert_int_eq(space->ops->get(space, found_keys, n, &arena, records, found), 0);
    *count = n;
    *bytes = 0;
    for (size_t i = 0; i < n; i++)
        *bytes += tierce__record_bytes(&records[i]);
    tierce__arena_clear(&arena);
}

static void check_counts(void)
{
    uint64_t count, bytes;
    struct tierce__usage usage = harness_usage(&h);
    scan(&count, &bytes);
    ck_assert_uint_eq(usage.keys, count);
    ck_assert_uint_eq(usage.serving_bytes, bytes);
    ck_assert_uint_eq(usage.writing_bytes, 0);
    ck_assert_uint_eq(usage.sessions, 0);
    struct tierce__usage s, t;
    tierce__locator_storage_usage(h.locator, S_NUMBER, &s);
    tierce__locator_storage_usage(h.locator, T_NUMBER, &t);
    ck_assert_uint_eq(s.serving_bytes + t.serving_bytes, bytes);
    ck_assert_uint_eq(s.writing_bytes + t.writing_bytes, 0);
    ck_assert_uint_eq(s.deleting_bytes + t.deleting_bytes, usage.deleting_bytes);
}

/* Until no deletion waits, and none is swept a second time. */
static void delete_all(void)
{
    struct tierce__deleter_stats stats;
    do {
        h.now_us += HOUR_US;
        (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
        tierce__deleter_stats(h.locator->deleter, &stats);
    } while (stats.waiting > 0);
}

static int count_note(void *arg, const struct tierce__meta_note *note)
{
    *(size_t *)arg += note->kind != TIERCE__NOTE_FILE || note->number != 0;
    return 0;
}

/* Without faults: stored blocks are counted, can be written again, and can all be removed. */
static void verify(void)
{
    struct tierce__meta_space *space = sim_store.spaces[1];
    size_t notes = 0;
    h.now_us += HOUR_US;
    (void)tierce__locator_expire(h.locator);
    check_counts();
    ck_assert_int_eq(tierce__locator_trim(h.locator, "i", TIERCE__TRIM_ALL, 0, 0, h.why), 0);
    delete_all();
    check_counts();
    ck_assert_int_eq(start(), 0);
    harness_finish(&h, &started);
    ck_assert_uint_eq(harness_prefix(&h, keys, KEYS), KEYS);
    check_counts();
    ck_assert_int_eq(tierce__locator_trim(h.locator, "i", TIERCE__TRIM_ALL, 0, 0, h.why), 0);
    delete_all();
    struct tierce__usage usage = harness_usage(&h);
    ck_assert_uint_eq(usage.keys + usage.serving_bytes + usage.deleting_bytes, 0);
    for (uint8_t kind = 1; kind <= TIERCE__NOTE_FILE; kind++)
        ck_assert_int_eq(space->ops->notes(space, kind, count_note, &notes), 0);
    ck_assert_uint_eq(notes, 0);
    ck_assert_uint_eq(sim_storages.count, 0);
}

/* A second candidate of the group. */
static void add_t(void)
{
    char s[] = "s", t[] = "t", root[] = "/sim/t/";
    char *names[] = {s, t};
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__storage storage = *tierce__catalog_storage(catalog, "s");
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    storage.name = t;
    storage.root_path = root;
    group.storage_candidates = names;
    group.storage_candidate_count = 2;
    group.type_quota_count = 0; /* a move would find no room below the watermark */
    group.version++;
    ck_assert_int_eq(tierce__registry_add_storage(h.registry, &storage, h.why), 0);
    ck_assert_int_eq(tierce__registry_update_group(h.registry, &group, group.version - 1, h.why),
                     0);
    tierce__registry_release(h.registry, catalog);
}

static void begin(int keys_per_file)
{
    const unsigned char digest[32] = {1};
    h = (struct harness){.now_us = 1000000000000, .folder = "/sim/s"};
    tierce__engine_extra(h.extra, digest, digest);
    fence = 0;
    sim_store_begin(1, &tierce__meta_memory, "");
    sim_storages.count = 0;
    sim_storages.goes = goes;
    ck_assert_int_eq(
        tierce__registry_open(&h.registry,
                              &(struct tierce__registry_opts){
                                  .size = sizeof(struct tierce__registry_opts), .uri = ""},
                              h.why),
        0);
    ck_assert_int_eq(tierce__registry_load(h.registry, 1, h.why), 0);
    harness_next_storage(&h, S_NUMBER);
    harness_startup(&h, &(struct harness_opts){.keys_per_file = keys_per_file,
                                               .capacity = 12 * BLOCK_BYTES,
                                               .watermark = 0.25});
    add_t();
    int rc = tierce__storages_open(&h.storages, &(struct tierce__storages_opts){
                                                    .size = sizeof(struct tierce__storages_opts),
                                                    .registry = h.registry,
                                                    .find_ops = sim_find_driver,
                                                });
    ck_assert_int_eq(rc, 0);
    ck_assert_int_eq(open_locator(), 0);
    ck_assert_int_eq(recover(), 0);
    harness_add_instance(&h, "i");
    tierce__locator_close(h.locator);
    h.locator = NULL;
}

static void end(void)
{
    tierce__arena_clear(&h.arena);
    tierce__locator_close(h.locator);
    tierce__storages_close(h.storages);
    tierce__registry_close(h.registry);
    sim_store_end();
}

/* ---- each once ------------------------------------------------------------------------------- */

static void torture(void (*arm)(uint64_t nth), uint64_t (*disarm)(void), uint64_t least)
{
    silence_log();
    uint64_t live = tierce__alloc_live(), all = UINT64_MAX;
    for (uint64_t nth = 1; nth <= all + 2; nth++) {
        begin(2);
        arm(nth);
        use();
        all = disarm();
        verify();
        end();
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    printf("%llu points of failure\n", (unsigned long long)all);
    ck_assert_uint_ge(all, least);
}

static void arm_alloc(uint64_t nth)
{
    tierce__alloc_fail_nth(nth);
}

static uint64_t disarm_alloc(void)
{
    return tierce__alloc_fail_nth(0);
}

START_TEST(allocations)
{
    torture(arm_alloc, disarm_alloc, 200);
}
END_TEST

static void arm_store(uint64_t nth)
{
    sim_store.asked = 0;
    sim_store.fails_at = sim_store.fails_until = nth;
}

static uint64_t disarm_store(void)
{
    sim_store.fails_at = sim_store.fails_until = 0;
    return sim_store.asked;
}

START_TEST(operations_of_the_store)
{
    torture(arm_store, disarm_store, 30);
}
END_TEST

/* A session whose begin has an unknown outcome expires, and another leader takes over: its slots
 * are free again. */
START_TEST(a_start_in_doubt)
{
    silence_log();
    enum { ERRORS = 8 }; /* seeds for the store's answers */
    uint64_t all = 1;
    for (uint64_t nth = 0; nth <= (all + 1) * ERRORS; nth++) {
        begin(4);
        sim_store.random.state = nth % ERRORS;
        ck_assert_int_eq(open_locator(), 0);
        ck_assert_int_eq(recover(), 0);
        arm_store(1 + nth / ERRORS);
        sim_store.fails_until++;
        (void)!start();
        all = disarm_store();
        h.now_us += HOUR_US;
        (void)tierce__locator_expire(h.locator);
        ck_assert_int_eq(change_leader(), 0);
        verify();
        end();
    }
}
END_TEST

/* A session that another leader has ended is not taken for one that this one ended, whatever its
 * store fails to say. */
START_TEST(an_old_leader_finishes_nothing)
{
    silence_log();
    for (uint64_t nth = 0, all = 0; nth <= all + 1; nth++) {
        begin(4);
        lost = 2; /* the next one's parent is not in the batch, so that the store is asked for it */
        ck_assert_int_eq(open_locator(), 0);
        ck_assert_int_eq(recover(), 0);
        ck_assert_int_eq(start(), 0);
        struct tierce__locator *old = h.locator;
        ck_assert_int_eq(open_locator(), 0);
        ck_assert_int_eq(recover(), 0);
        struct tierce__locator *new = h.locator;
        h.now_us += HOUR_US;
        ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
        h.locator = old;
        arm_store(nth);
        int rc = finish();
        all = disarm_store();
        ck_assert_int_lt(rc, 0);
        (void)tierce__locator_expire(old);
        (void)tierce__deleter_step(old->deleter, SIZE_MAX);
        tierce__locator_close(old);
        h.locator = new;
        verify();
        end();
    }
}
END_TEST

/* What a file holds is read when it is first asked for; by then another may lead, whose slots would
 * be taken for our own. */
START_TEST(an_old_leader_deletes_nothing_by_what_another_wrote)
{
    struct tierce__mask lost_all = {0};
    begin(4);
    ck_assert_int_eq(open_locator(), 0);
    ck_assert_int_eq(recover(), 0);
    ck_assert_int_eq(start(), 0);
    ck_assert_int_eq(change_leader(), 0);
    ck_assert_int_eq(
        tierce__locator_finish_write(h.locator, "i", started.session, &lost_all, h.why), 0);
    struct tierce__locator *old = h.locator;
    ck_assert_int_eq(open_locator(), 0);
    ck_assert_int_eq(recover(), 0);
    ck_assert_uint_eq(sim_storages.count, 4);
    ck_assert_uint_eq(tierce__deleter_step(old->deleter, SIZE_MAX), 0);
    ck_assert_uint_eq(sim_storages.count, 4);
    tierce__locator_close(old);
    verify();
    end();
}
END_TEST

static void arm_storage(uint64_t nth)
{
    sim_storages.asked = 0;
    sim_storages.fails_at = nth;
}

static uint64_t disarm_storage(void)
{
    sim_storages.fails_at = 0;
    return sim_storages.asked;
}

START_TEST(deletions_in_a_storage)
{
    torture(arm_storage, disarm_storage, 4);
}
END_TEST

CHECK_MAIN("torture_locator", .seconds = 300,
           .tests = {allocations, operations_of_the_store, a_start_in_doubt,
                     an_old_leader_finishes_nothing,
                     an_old_leader_deletes_nothing_by_what_another_wrote, deletions_in_a_storage})
