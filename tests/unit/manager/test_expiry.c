/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "manager/reclaim/expiry.h"
#include "manager/reclaim/reclaimer.h"
#include "manager_harness.h"
#include "meta_folder.h"
#include "test_random.h"

#include <time.h>

#define S 1000000ll

static struct tierce__reclaimer *reclaimer;
static struct harness h;

/* ---- the calendar ---------------------------------------------------------------------------- */

/* Against a list: nothing comes early, nothing is lost, and seconds come in order. */
START_TEST(a_calendar_is_a_sorted_list)
{
    enum { ENTRIES = 3000, STEP = 7 };
    static int64_t due[ENTRIES];
    static bool gone[ENTRIES];
    struct test_random random = test_random_start("calendar");
    struct tierce__calendar calendar = {0};
    struct tierce__calendar_entry taken[STEP];
    size_t left = 0, made = 0;
    int64_t now_us = 1000 * S;
    while (made < ENTRIES || left > 0) {
        for (uint32_t n = test_random_below(&random, 20); n > 0 && made < ENTRIES; n--, made++) {
            due[made] = now_us + (int64_t)test_random_below(&random, 300000000);
            ck_assert_int_eq(
                tierce__calendar_add(&calendar, (int64_t)made, due[made] + 1, due[made]), 0);
            left++;
        }
        int64_t first = INT64_MAX;
        for (size_t i = 0; i < made; i++)
            first = !gone[i] && due[i] < first ? due[i] : first;
        int64_t next = tierce__calendar_next(&calendar);
        ck_assert(first == INT64_MAX ? next == INT64_MAX : next >= first && next < first + S);
        size_t count = tierce__calendar_take(&calendar, now_us, taken, STEP);
        ck_assert(count == 0 ? next > now_us : next <= now_us);
        for (size_t i = 0; i < count; i++) {
            ck_assert(!gone[taken[i].key]);
            ck_assert_int_le(due[taken[i].key], now_us);
            ck_assert_int_eq(taken[i].stored_us, due[taken[i].key] + 1);
            gone[taken[i].key] = true;
        }
        left -= count;
        ck_assert_uint_eq(calendar.entries, left);
        now_us += (int64_t)test_random_below(&random, 3 * S);
    }
    tierce__calendar_clear(&calendar);
}
END_TEST

START_TEST(a_calendar_without_memory_stays_as_it_is)
{
    struct tierce__calendar calendar = {0};
    uint64_t live = tierce__alloc_live();
    for (uint64_t nth = 1;; nth++) {
        tierce__alloc_fail_nth(nth);
        int rc = tierce__calendar_add(&calendar, 1, 2, 3 * S);
        if (tierce__alloc_fail_nth(0) < nth)
            break;
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_int_eq(tierce__calendar_next(&calendar), INT64_MAX);
        ck_assert_uint_eq(calendar.entries, 0);
    }
    ck_assert_int_eq(tierce__calendar_next(&calendar), 3 * S);
    tierce__calendar_clear(&calendar);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

/* ---- blocks ---------------------------------------------------------------------------------- */

static void start_reclaimer(void)
{
    ck_assert_int_eq(tierce__reclaimer_start(&reclaimer,
                                             &(struct tierce__reclaimer_opts){
                                                 .size = sizeof(struct tierce__reclaimer_opts),
                                                 .locator = h.locator,
                                                 .registry = h.registry,
                                                 .seed = 1}),
                     0);
}

static void open_all(const struct harness_opts *opts)
{
    harness_open(&h, opts);
    start_reclaimer();
}

static void close_all(void)
{
    tierce__reclaimer_stop(reclaimer);
    harness_close(&h);
}

static struct tierce__started start(int64_t key, int64_t ttl_s)
{
    struct tierce__started started = {0};
    struct tierce__write_request request = {
        .instance_id = "i", .keys = &key, .count = 1, .timeout_s = 30, .ttl_s = ttl_s};
    int rc = tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    return started;
}

static void store(int64_t key, int64_t ttl_s)
{
    struct tierce__started started = start(key, ttl_s);
    ck_assert_uint_eq(started.count, 1);
    harness_finish(&h, &started);
}

static bool serves(int64_t key)
{
    return harness_get(&h, TIERCE__QUERY_BATCH, &key, 1, 0).hits == 1;
}

static enum tierce__look_state looks(int64_t key)
{
    struct tierce__looked *looked;
    size_t count;
    struct tierce__look_request request = {.instance_id = "i", .keys = &key, .count = 1};
    ck_assert_int_eq(tierce__locator_look(h.locator, &request, &h.arena, &looked, &count, h.why),
                     0);
    return looked[0].state;
}

static void set_ttl(int64_t ttl_s)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    group.ttl_s = ttl_s;
    group.version++;
    int rc = tierce__registry_update_group(h.registry, &group, group.version - 1, h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    tierce__registry_release(h.registry, catalog);
}

/* A miss from the moment of expiry on, with or without a round; reads do not extend the
 * lifetime. */
START_TEST(a_block_with_a_time_of_its_own_expires)
{
    open_all(&(struct harness_opts){0});
    store(1, 10);
    store(2, 0);
    for (int i = 0; i < 9; i++) {
        h.now_us += S;
        ck_assert(serves(1));
        ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    }
    h.now_us += S;
    ck_assert(!serves(1) && serves(2));
    ck_assert_int_eq(looks(1), TIERCE__LOOK_NOT_FOUND);
    ck_assert_uint_eq(harness_usage(&h).keys, 2);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 1);
    ck_assert_uint_eq(harness_usage(&h).keys, 1);
    close_all();
}
END_TEST

START_TEST(an_expired_block_is_written_anew_at_once)
{
    open_all(&(struct harness_opts){0});
    store(1, 10);
    h.now_us += 10 * S;
    store(1, 20);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, BLOCK_BYTES);
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    h.now_us += 19 * S;
    ck_assert(serves(1));
    h.now_us += S;
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 1);
    close_all();
}
END_TEST

/* The block is stored in another storage, by a write that names no time. */
START_TEST(a_second_location_keeps_the_time)
{
    char t[] = "t", root[128], s[] = "s";
    open_all(&(struct harness_opts){0});
    snprintf(root, sizeof(root), "%s/t/", h.folder);
    struct tierce__storage other = {
        .name = t, .type = TIERCE__STORAGE_NFS, .is_enabled = true, .root_path = root};
    ck_assert_int_eq(tierce__registry_add_storage(h.registry, &other, h.why), 0);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    char *both[] = {s, t};
    group.storage_candidates = both;
    group.storage_candidate_count = 2;
    group.version++;
    ck_assert_int_eq(tierce__registry_update_group(h.registry, &group, group.version - 1, h.why),
                     0);
    tierce__registry_release(h.registry, catalog);
    store(1, 10);
    store(2, 10);
    ck_assert_int_eq(tierce__registry_enable_storage(h.registry, "s", false, h.why), 0);
    h.now_us += 5 * S;
    store(1, 0);
    store(2, 10);
    ck_assert_uint_eq(harness_usage(&h).serving_bytes, 4 * BLOCK_BYTES);
    h.now_us += 5 * S;
    ck_assert(!serves(1) && serves(2));
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 1);
    h.now_us += 5 * S;
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 1);
    close_all();
}
END_TEST

/* Uses renew the time; it changes while instances are open; an update that omits it keeps it. */
START_TEST(a_group_has_a_time_for_what_is_not_used)
{
    open_all(&(struct harness_opts){0});
    store(1, 0);
    store(2, 0);
    set_ttl(10);
    for (int i = 0; i < 5; i++) {
        h.now_us += 8 * S;
        if (i == 0)
            ck_assert(serves(2));
        else if (i > 1)
            ck_assert(!serves(2));
        ck_assert(serves(1));
        (void)tierce__reclaimer_step(reclaimer);
    }
    ck_assert_uint_eq(harness_usage(&h).keys, 1);
    set_ttl(0);
    h.now_us += 10 * S;
    ck_assert(!serves(1));
    store(2, 0);
    set_ttl(100);
    (void)tierce__reclaimer_step(reclaimer);
    h.now_us += 99 * S;
    ck_assert(serves(2));
    set_ttl(-1);
    h.now_us += 1000000 * S;
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    ck_assert(serves(2));
    close_all();
}
END_TEST

/* A calendar that is much larger than what a round looks at. */
START_TEST(many_blocks_expire_at_once)
{
    enum { KEYS = 20000 };
    static int64_t keys[KEYS];
    open_all(&(struct harness_opts){0});
    for (int64_t key = 0; key < KEYS; key++)
        keys[key] = key;
    harness_store(&h, keys, KEYS);
    set_ttl(60); /* found by a scan */
    (void)tierce__reclaimer_step(reclaimer);
    h.now_us += 61 * S;
    size_t removed = 0;
    for (int i = 0; i < 10; i++)
        removed += tierce__reclaimer_step(reclaimer);
    ck_assert_uint_eq(removed, KEYS);
    close_all();
}
END_TEST

/* A write that one leader begins and another finishes, and blocks of leaders before. */
START_TEST(times_survive_a_change_of_leader)
{
    struct tierce__started started;
    meta_folder_make();
    open_all(&(struct harness_opts){.meta_type = "rocksdb", .meta_uri = meta_folder});
    store(1, 100);
    started = start(2, 100);
    for (int i = 0; i < 2; i++) {
        tierce__reclaimer_stop(reclaimer);
        tierce__locator_drop(h.locator);
        ck_assert_int_eq(tierce__locator_recover(h.locator, 2 + (uint64_t)i, h.why), 0);
        start_reclaimer();
        if (i == 0)
            harness_finish(&h, &started);
    }
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    ck_assert(serves(1) && serves(2));
    h.now_us += 100 * S;
    ck_assert(!serves(1) && !serves(2));
    ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 2);
    ck_assert_uint_eq(harness_usage(&h).keys, 0);
    close_all();
    meta_folder_remove();
}
END_TEST

/* Of a store that keeps uses back the cache knows them: what is read all the time stays. */
START_TEST(uses_that_are_kept_back_count)
{
    meta_folder_make();
    open_all(&(struct harness_opts){
        .meta_type = "rocksdb", .meta_uri = meta_folder, .search_cache_mib = 1});
    set_ttl(60);
    store(1, 0);
    store(2, 0);
    for (int i = 0; i < 20; i++) {
        h.now_us += 10 * S;
        ck_assert(serves(1));
    }
    ck_assert(!serves(2));
    close_all();
    meta_folder_remove();
}
END_TEST

START_TEST(times_that_make_no_sense_are_rejected)
{
    static const int64_t wrong[] = {-1, TIERCE__TTL_S_MAX + 1, INT64_MAX, INT64_MIN};
    int64_t key = 1;
    open_all(&(struct harness_opts){0});
    for (size_t i = 0; i < 4; i++) {
        struct tierce__started started;
        struct tierce__write_request request = {
            .instance_id = "i", .keys = &key, .count = 1, .timeout_s = 30, .ttl_s = wrong[i]};
        ck_assert_int_eq(
            tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why),
            TIERCE_E_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(h.why, "ttl_seconds"));
    }
    store(1, TIERCE__TTL_S_MAX);
    ck_assert(serves(1));
    close_all();
}
END_TEST

static uint64_t rounds(void)
{
    struct tierce__reclaimer_stats stats;
    tierce__reclaimer_stats(reclaimer, &stats);
    return stats.rounds;
}

/* With a thread: nothing is looked at while nothing changes and nothing is due. */
START_TEST(an_idle_manager_looks_at_nothing)
{
    enum { WAIT_MS = 5, IDLE_MS = 200, TRIES = 2000 };
    harness_open(&h, &(struct harness_opts){0});
    store(1, 100);
    store(2, 0);
    ck_assert_int_eq(tierce__reclaimer_start(&reclaimer,
                                             &(struct tierce__reclaimer_opts){
                                                 .size = sizeof(struct tierce__reclaimer_opts),
                                                 .locator = h.locator,
                                                 .registry = h.registry,
                                                 .interval_ms = 1,
                                                 .has_thread = true}),
                     0);
    tierce__reclaimer_resume(reclaimer);
    struct timespec pause = {.tv_nsec = WAIT_MS * 1000000};
    uint64_t before = UINT64_MAX, now;
    int tries = 0;
    for (; (now = rounds()) == 0 || now != before; before = now, tries++) {
        ck_assert_int_lt(tries, TRIES);
        nanosleep(&pause, NULL);
    }
    for (int i = 0; i < IDLE_MS / WAIT_MS; i++)
        nanosleep(&pause, NULL);
    ck_assert_uint_eq(rounds(), now);
    tierce__reclaimer_pause(reclaimer); /* the clock is this thread's */
    h.now_us += 100 * S;
    tierce__reclaimer_resume(reclaimer);
    for (tries = 0; harness_usage(&h).keys > 1; tries++) {
        ck_assert_int_lt(tries, TRIES);
        nanosleep(&pause, NULL);
    }
    close_all();
}
END_TEST

CHECK_MAIN("expiry", .seconds = 60,
           .tests = {a_calendar_is_a_sorted_list, a_calendar_without_memory_stays_as_it_is,
                     a_block_with_a_time_of_its_own_expires,
                     an_expired_block_is_written_anew_at_once, a_second_location_keeps_the_time,
                     a_group_has_a_time_for_what_is_not_used, many_blocks_expire_at_once,
                     times_survive_a_change_of_leader, uses_that_are_kept_back_count,
                     times_that_make_no_sense_are_rejected, an_idle_manager_looks_at_nothing})
