/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A manager's locator, deleter and reclaimer on a clock, a store and storages that are simulated: a
 * seed is a run. Clients write, read and remove; stores and storages fail, also after they have
 * executed a request; leaders change, and old leaders continue; limits change; clocks are set;
 * weights change.
 * After each step the content of the store is compared with the answers to clients:
 *
 *   - no spec of a block is written by two sessions at once, no two blocks share a slot;
 *   - nothing serves that was not finished, or was removed; nothing that serves loses its file;
 *   - nothing serves that was to be written before the last change of the weights;
 *   - quotas are never exceeded, and count exactly what there is;
 *   - what follows a block that left is swept up, except windows and states;
 *   - a block that is moved serves all the time, also if a rule asked for the move;
 *   - in the end nothing is left of anything.
 */
#include "check_main.h"
#include "meta_folder.h"
#include "sim_clients.h"
#include "sim_late.h"
#include "sim_moves.h"
#include "sim_removals.h"

/* ---- faults ---------------------------------------------------------------------------------- */

/* Rules that ask for moves. In some runs "t" is the hot storage, and the only one that is short of
 * room. */
static void draw_rules(struct tierce__group *group, struct tierce__type_quota *quota)
{
    char *first = group->storage_candidates[0];
    if (obeys_rules) {
        group->capacity_bytes = quota->capacity_bytes = 10000 * BLOCK_BYTES;
        group->storage_candidates[0] = first[0] == 't' ? first : group->storage_candidates[1];
        group->storage_candidates[1] = first[0] == 't' ? group->storage_candidates[1] : first;
    }
    group->demote = below(3) == 0 ? -1 : 1;
    group->promote_window_s = below(3) == 0 && !obeys_rules ? -1 : 1 + (int64_t)below(600);
    quota->replicas = below(obeys_rules ? 8 : 3) == 0 ? 2 : -1;
}

static void change_group(void)
{
    char s[] = "s", t[] = "t";
    char *candidates[] = {below(2) == 0 ? s : t, s};
    candidates[1] = candidates[0][0] == 's' ? t : s;
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    struct tierce__type_quota quota = group.type_quotas[0];
    shared.capacity_bytes = obeys_rules ? UINT64_MAX : (5 + below(60)) * BLOCK_BYTES;
    ck_assert_int_eq(tierce__locator_set_quotas(h.locator, &shared, 1), 0);
    group.capacity_bytes = (int64_t)(5 + below(40)) * BLOCK_BYTES;
    quota.capacity_bytes = below(2) == 0 ? group.capacity_bytes : group.capacity_bytes / 2;
    group.type_quotas = &quota;
    group.storage_candidates = candidates;
    group.storage_candidate_count = 2;
    static const int32_t policies[] = {TIERCE__RECLAIM_LRU, TIERCE__RECLAIM_LFU,
                                       TIERCE__RECLAIM_TTL, TIERCE__RECLAIM_LEAF_LRU};
    group.reclaim_policy = policies[below(4)];
    group.trigger_used_share = below(2) == 0 ? 1 : 0.7;
    group.ttl_s = expires && below(3) == 0 ? 1 + (int64_t)below(900) : -1;
    if (!expires && group.reclaim_policy == TIERCE__RECLAIM_TTL)
        group.ttl_s = TIERCE__TTL_S_MAX;
    group.delay_before_delete_ms = below(2) == 0 ? 0 : 2000;
    draw_rules(&group, &quota);
    group.version++;
    int rc = tierce__registry_update_group(h.registry, &group, group.version - 1, h.why);
    REQUIRE(rc == 0, "group: %s", h.why);
    tierce__registry_release(h.registry, catalog);
}

static void enable_storage(const char *name, bool enable)
{
    int rc = tierce__registry_enable_storage(h.registry, name, enable, h.why);
    REQUIRE(rc == 0, "storage: %s", h.why);
}

static void recover(void)
{
    while (tierce__locator_recover(h.locator, ++fence, h.why) < 0)
        REQUIRE(rate > 0, "recover: %s", h.why);
    int rc = tierce__reclaimer_start(&reclaimer, &(struct tierce__reclaimer_opts){
                                                     .size = sizeof(struct tierce__reclaimer_opts),
                                                     .locator = h.locator,
                                                     .registry = h.registry,
                                                     .seed = seed,
                                                 });
    ck_assert_int_eq(rc, 0);
}

static void open_locator(void)
{
    int rc = tierce__locator_open(&h.locator, &(struct tierce__locator_opts){
                                                  .size = sizeof(struct tierce__locator_opts),
                                                  .registry = h.registry,
                                                  .storages = h.storages,
                                                  .now_us = harness_now,
                                                  .clock_arg = &h,
                                                  .seed = seed * 1000003 + fence,
                                                  .reuse_delay_ms = REUSE_MS,
                                                  .late_write_ms = LATE_MS,
                                                  .quota_groups = &shared,
                                                  .quota_group_count = 1,
                                                  .find_store = sim_find_store,
                                              });
    ck_assert_int_eq(rc, 0);
}

/* The old leader ends, begins anew, or goes on for a while without knowing. */
static void change_leader(void)
{
    uint32_t how = below(3);
    crashes++;
    limit_promises();
    tierce__reclaimer_stop(reclaimer);
    if (how == 0) {
        tierce__locator_drop(h.locator);
    } else {
        tierce__locator_close(late);
        count_by_rule();
        late = h.locator;
        late_deletes = true;
        late_from_us = h.now_us;
        if (how == 1) {
            tierce__locator_close(late);
            late = NULL;
        }
        open_locator();
    }
    recover();
}

/* The weights change. The leader may end before its locator follows: the registry has it. */
static void invalidate(void)
{
    int instance = (int)below(INSTANCES);
    const struct tierce__namespace_choice choice = {
        .instance_id = instance_ids[instance], .group = "", .family = ""};
    int rc = tierce__registry_invalidate(h.registry, &choice, h.why);
    REQUIRE(rc == 0, "invalidate: %s", h.why);
    generations[instance]++;
    invalidations++;
    if (below(4) == 0) {
        change_leader();
        return;
    }
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    rc = tierce__locator_invalidate(
        h.locator, tierce__catalog_instance(catalog, instance_ids[instance]), h.why);
    REQUIRE(rc == 0, "invalidate: %s", h.why);
    tierce__registry_release(h.registry, catalog);
}

/* Clocks go on, and are set forwards and backwards. */
static void pass_time(void)
{
    uint32_t jump = below(40);
    h.now_us += (int64_t)below(3) * 1000000;
    if (jump < 2)
        h.now_us += 700000000;
    else if (jump == 2)
        h.now_us -= (int64_t)below(900) * 1000000;
    latest_us = h.now_us > latest_us ? h.now_us : latest_us;
}

static bool step(void)
{
    uint32_t what = below(100);
    bool reclaims = what >= 80 && what < 84;
    if (what < 28)
        start_write();
    else if (what < 48)
        finish_write();
    else if (what < 52)
        remove_some();
    else if (what < 54)
        report_some(h.locator, true);
    else if (what < 62)
        get();
    else if (what < 64)
        (obeys_rules ? get : look)();
    else if (what < 68)
        (obeys_rules ? take_moves : renew_write)();
    else if (what < 72)
        timeouts += tierce__locator_expire(h.locator);
    else if (what < 80)
        (void)tierce__deleter_step(h.locator->deleter, 1 + below(4));
    else if (reclaims)
        reclaimed += tierce__reclaimer_step(reclaimer);
    else if (what < 86)
        change_group();
    else if (what < 88)
        enable_storage(below(2) == 0 ? "s" : "t", below(3) > 0);
    else if (what < 90)
        change_leader();
    else if (what < 91)
        trim();
    else if (what < 92)
        invalidate();
    else if (what < 95)
        take_moves();
    else if (what < 97)
        finish_moves();
    else
        pass_time();
    return reclaims;
}

static void set_rates(uint32_t permille)
{
    sim_store.fail_permille = rate = permille;
    sim_storages.fail_permille = permille * 5;
}

/* Expired blocks are removed within a second, regardless of readers. */
static void check_expired(void)
{
    h.now_us += 1000000;
    latest_us = h.now_us > latest_us ? h.now_us : latest_us;
    compare(false);
    for (int i = 0; i < 3; i++)
        reclaimed += tierce__reclaimer_step(reclaimer);
    compare(true);
    for (size_t i = 0; i < placed_count; i++) {
        const struct placed *p = &placed[i];
        REQUIRE(!p->seen || p->due_us > h.now_us - 1000000, "block %lld expired %lld us ago",
                (long long)p->key, (long long)(h.now_us - p->due_us));
    }
}

/* Without faults for a while, all doubtful outcomes become known. */
static void settle(void)
{
    uint32_t was = rate;
    set_rates(0);
    h.now_us = latest_us += 70000000;
    (void)tierce__locator_expire(h.locator);
    compare(false);
    (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
    compare(false);
    check_counts();
    check_expired();
    set_rates(was);
}

static uint64_t bytes_of(const struct tierce__usage *usage)
{
    return usage->writing_bytes + usage->serving_bytes + usage->deleting_bytes;
}

static void read_usage(struct tierce__usage *group, struct tierce__usage *storage)
{
    *group = harness_usage(&h);
    tierce__locator_storage_usage(h.locator, numbers[1], storage);
}

/* Limits may have been lowered below what there is: then it does not become more. */
static void check_quota(const struct tierce__usage *group_before,
                        const struct tierce__usage *storage_before)
{
    struct tierce__usage after, storage_after;
    read_usage(&after, &storage_after);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    const struct tierce__group *group = tierce__catalog_group(catalog, "g");
    uint64_t limit = (uint64_t)group->type_quotas[0].capacity_bytes;
    limit = shared.capacity_bytes < limit ? shared.capacity_bytes : limit;
    REQUIRE(bytes_of(&after) <= bytes_of(group_before) || bytes_of(&after) <= limit,
            "%llu bytes of %llu", (unsigned long long)bytes_of(&after), (unsigned long long)limit);
    uint64_t capacity = tierce__catalog_storage(catalog, "t")->capacity_bytes;
    REQUIRE(capacity == 0 || bytes_of(&storage_after) <= bytes_of(storage_before) ||
                bytes_of(&storage_after) <= capacity,
            "%llu bytes of %llu in a storage", (unsigned long long)bytes_of(&storage_after),
            (unsigned long long)capacity);
    tierce__registry_release(h.registry, catalog);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static int count_note(void *arg, const struct tierce__meta_note *note)
{
    *(size_t *)arg += note->kind != TIERCE__NOTE_FILE || note->number != 0;
    return 0;
}

static void check_empty(void *arg, struct tierce__live *live)
{
    int64_t counters[TIERCE__META_COUNTERS];
    size_t notes[TIERCE__NOTE_KINDS] = {0};
    struct tierce__meta_space *space = sim_inner(live->space);
    (void)arg;
    for (uint8_t kind = 1; kind < TIERCE__NOTE_KINDS; kind++)
        ck_assert_int_eq(space->ops->notes(space, kind, count_note, &notes[kind]), 0);
    ck_assert_int_eq(space->ops->counters(space, counters), 0);
    for (size_t i = 0; i < TIERCE__META_COUNTERS; i++)
        REQUIRE(counters[i] == 0, "counter %zu is %lld in the end", i, (long long)counters[i]);
    REQUIRE(notes[TIERCE__NOTE_SESSION] == 0, "notes of sessions are left");
    REQUIRE(notes[TIERCE__NOTE_DELETION] == 0, "notes of deletions are left");
    REQUIRE(notes[TIERCE__NOTE_HOLES] == 0, "notes of holes are left");
    REQUIRE(notes[TIERCE__NOTE_FILE] == 0 || trims_meta, "%zu notes of files are left",
            notes[TIERCE__NOTE_FILE]);
    REQUIRE(live->sessions.count + live->claims.count + live->claimed_keys + live->deadlines.count +
                    live->deleting.count ==
                0,
            "%zu sessions, %zu claims, %zu deleted keys are left", live->sessions.count,
            live->claims.count, live->deleting.count);
}

static void check_holes(void *arg, struct tierce__live *live)
{
    (void)arg;
    REQUIRE(live->holes.map.count + live->holes.note_count == 0, "%zu holes are left",
            live->holes.map.count);
}

/* Without writes: unreachable blocks are removed. */
static void sweep(void)
{
    for (int i = 0; i < 4; i++) {
        h.now_us += 1000000;
        reclaimed += tierce__reclaimer_step(reclaimer);
    }
    compare(true);
    tierce__locator_each(h.locator, check_holes, NULL);
}

/* All goes, and nothing is left. */
static void end(void)
{
    struct tierce__deleter_stats stats;
    set_rates(0);
    settle();
    h.now_us += 1000000000;
    (void)tierce__locator_expire(h.locator);
    compare(false);
    sweep();
    for (int i = 0; i < INSTANCES; i++)
        ck_assert_int_eq(
            tierce__locator_trim(h.locator, instance_ids[i], TIERCE__TRIM_ALL, 0, 0, h.why), 0);
    compare(true);
    do {
        h.now_us += 1000000000;
        (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
        tierce__deleter_stats(h.locator->deleter, &stats);
    } while (stats.waiting > 0);
    struct tierce__usage usage = harness_usage(&h);
    REQUIRE(usage.keys == 0, "%llu keys are left", (unsigned long long)usage.keys);
    REQUIRE(usage.sessions == 0, "%llu sessions are left", (unsigned long long)usage.sessions);
    REQUIRE(usage.serving_bytes + usage.writing_bytes + usage.deleting_bytes == 0,
            "%llu + %llu + %llu bytes are left", (unsigned long long)usage.serving_bytes,
            (unsigned long long)usage.writing_bytes, (unsigned long long)usage.deleting_bytes);
    REQUIRE(sim_storages.count == 0 || trims_meta, "%zu files are left, as %s", sim_storages.count,
            sim_storages.files[0]);
    tierce__locator_each(h.locator, check_empty, NULL);
}

/* In most runs the instances are the groups of layers of one model. */
static void add_instances(void)
{
    static char full[] = "full", window[] = "window", linear[] = "linear", family[] = "f",
                first[] = "0", second[] = "1";
    const struct tierce__attention kinds[][INSTANCES] = {
        {{0}, {0}},
        {{full, 0, 0, family, first}, {window, 8, 0, family, second}},
        {{full, 0, 0, family, first}, {linear, 0, 4, family, second}},
    };
    for (int i = 0; i < INSTANCES; i++)
        harness_add_instance_with(&h, instance_ids[i], "g", &kinds[seed % 3][i]);
}

static void begin(void)
{
    char t[] = "t", root[] = "/sim/t/";
    placed_count = told_count = 0;
    memset(generations, 0, sizeof(generations));
    h = (struct harness){.now_us = 1000000000000, .folder = "/sim/s"};
    const unsigned char digest[32] = {1};
    tierce__engine_extra(h.extra, digest, digest);
    fence = 0;
    late = NULL;
    latest_us = h.now_us;
    shared = (struct tierce__quota_group){"q", UINT64_MAX};
    sim_storages.count = 0;
    sim_storages.random.state = seed;
    sim_storages.goes = goes;
    trims_meta = below(4) == 0;
    sim_store_begin(seed, inner_ops, meta_folder);
    ck_assert_int_eq(
        tierce__registry_open(&h.registry,
                              &(struct tierce__registry_opts){
                                  .size = sizeof(struct tierce__registry_opts), .uri = ""},
                              h.why),
        0);
    ck_assert_int_eq(tierce__registry_load(h.registry, 1, h.why), 0);
    bool is_large = seed % 2 == 0; /* an index has no counters of its own for these */
    numbers[0] = is_large ? 64 : 1;
    numbers[1] = is_large ? 200 : 2;
    harness_next_storage(&h, numbers[0]);
    harness_startup(&h, &(struct harness_opts){.keys_per_file = 1 + (int)below(5)});
    harness_next_storage(&h, numbers[1]);
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__storage storage = *tierce__catalog_storage(catalog, "s");
    storage.name = t;
    storage.root_path = root;
    obeys_rules = seed % 4 == 3;
    storage.capacity_bytes =
        !obeys_rules && below(2) == 0 ? 0 : (5 + below(obeys_rules ? 40 : 20)) * BLOCK_BYTES;
    storage.watermark_percent = obeys_rules ? 60 : 0;
    ck_assert_int_eq(tierce__registry_add_storage(h.registry, &storage, h.why), 0);
    tierce__registry_release(h.registry, catalog);
    enable_storage("t", true);
    int rc = tierce__storages_open(&h.storages, &(struct tierce__storages_opts){
                                                    .size = sizeof(struct tierce__storages_opts),
                                                    .registry = h.registry,
                                                    .find_ops = sim_find_driver,
                                                });
    ck_assert_int_eq(rc, 0);
    open_locator();
    recover();
    add_instances();
    change_group();
}

static void run(void)
{
    bool on_disk = inner_ops == &tierce__meta_rocksdb;
    if (on_disk)
        meta_folder_make();
    random_ = (struct test_random){seed};
    expires = !on_disk && below(2) == 0;
    begin();
    static const uint32_t rates[] = {0, 5, 30, 100};
    set_rates(rates[below(4)]);
    /* What was only forgotten, by a batch that nobody can find out about, counts until the next
     * leader: there is no note of it. */
    trims_meta = trims_meta && rate == 0;
    for (int i = 0; i < STEPS; i++) {
        struct tierce__usage before, storage_before;
        read_usage(&before, &storage_before);
        bool may_go = below(6) > 0 || late == NULL ? step() : (late_step(), false);
        compare(may_go);
        check_quota(&before, &storage_before);
        tierce__arena_clear(&h.arena);
        if (below(25) == 0)
            settle();
    }
    end();
    count_by_rule();
    tierce__reclaimer_stop(reclaimer);
    tierce__locator_close(late);
    tierce__locator_close(h.locator);
    tierce__storages_close(h.storages);
    tierce__registry_close(h.registry);
    refused += sim_store.refused;
    sim_store_end();
    if (on_disk)
        meta_folder_remove();
}

enum { RUNS_MIN = 100 }; /* the fewest runs in which each rule moves a block (seeds 1 to 100) */

/* Runs of `make test`, and the runs that TIERCE_TEST_SCALE multiplies. A run has one thread: more
 * of them show the thread sanitizer nothing, and take it minutes. */
#ifdef __SANITIZE_THREAD__
enum { RUNS = 10, RUNS_SCALED = 10 };
#else
enum { RUNS = RUNS_MIN, RUNS_SCALED = 200 };
#endif

/* The seed that was asked for, or `count` from 1 on. */
static void run_all(unsigned long long count)
{
    const char *text = getenv("TIERCE_TEST_SEED");
    unsigned long long first = text != NULL ? strtoull(text, NULL, 10) : 1;
    for (seed = first; seed < first + (text != NULL ? 1 : count); seed++)
        run();
    printf("%llu blocks finished, %llu written beside another session, %llu removed, %llu "
           "reclaimed, %llu sessions timed out, "
           "%llu renewed, %llu reported, %llu moved (%llu colder, %llu hotter, %llu replicas were "
           "asked for), %llu leaders, %llu writes of old ones refused, "
           "%llu invalidations, %llu writes from before refused\n",
           (unsigned long long)served, (unsigned long long)shared_writes,
           (unsigned long long)removed, (unsigned long long)reclaimed, (unsigned long long)timeouts,
           (unsigned long long)renewals, (unsigned long long)reported, (unsigned long long)moved,
           (unsigned long long)by_rule[TIERCE__MOVE_COLD],
           (unsigned long long)by_rule[TIERCE__MOVE_HOT],
           (unsigned long long)by_rule[TIERCE__MOVE_REPLICA], (unsigned long long)crashes,
           (unsigned long long)refused, (unsigned long long)invalidations,
           (unsigned long long)stale_writes);
    fflush(stdout); /* a failed assertion ends the process without it */
    ck_assert(text != NULL || (invalidations > 0 && stale_writes > 0));
    ck_assert(text != NULL || (served > 0 && reclaimed > 0 && timeouts > 0 && refused > 0));
    ck_assert(text != NULL || (renewals > 0 && shared_writes > 0 && reported > 0));
    ck_assert(text != NULL || moved > 0 || inner_ops == &tierce__meta_rocksdb); /* few runs */
    ck_assert(text != NULL || count < RUNS_MIN ||
              (by_rule[TIERCE__MOVE_COLD] > 0 && by_rule[TIERCE__MOVE_HOT] > 0 &&
               by_rule[TIERCE__MOVE_REPLICA] > 0));
}

/* ---- a model is replaced by another -----------------------------------------------------------
 */

static void write_blocks(const char *id, int64_t first, size_t count)
{
    int64_t keys[64];
    struct tierce__started started;
    for (size_t i = 0; i < count; i++)
        keys[i] = first + (int64_t)i;
    struct tierce__write_request request = {
        .instance_id = id, .keys = keys, .count = count, .timeout_s = 30};
    int rc = tierce__locator_start_write(h.locator, &request, &h.arena, &started, h.why);
    REQUIRE(rc == 0 && started.count == count, "%zu blocks of %s: %s", count, id, h.why);
    for (size_t i = 0; i < count; i++) {
        for (size_t s = 0; s < started.locations[i].spec_count; s++)
            sim_storages_write(started.locations[i].specs[s].uri);
    }
    struct tierce__mask all = {.offset = (int64_t)count};
    rc = tierce__locator_finish_write(h.locator, id, started.session, &all, h.why);
    REQUIRE(rc == 0, "%s", h.why);
    tierce__arena_clear(&h.arena);
}

static size_t read_blocks(const char *id, int64_t first, size_t count)
{
    int64_t keys[64];
    struct tierce__got got;
    for (size_t i = 0; i < count; i++)
        keys[i] = first + (int64_t)i;
    struct tierce__get_request request = {
        .instance_id = id, .query = TIERCE__QUERY_BATCH, .keys = keys, .count = count};
    REQUIRE(tierce__locator_get(h.locator, &request, &h.arena, &got, h.why) == 0, "%s", h.why);
    tierce__arena_clear(&h.arena);
    return got.hits;
}

static void nobody(const char *path)
{
    (void)path;
}

static void set_group(int64_t blocks)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h.registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    struct tierce__type_quota quota = group.type_quotas[0];
    group.capacity_bytes = quota.capacity_bytes = blocks * BLOCK_BYTES;
    group.type_quotas = &quota;
    group.reclaim_policy = TIERCE__RECLAIM_LRU;
    group.trigger_used_share = 0.8;
    group.demote = -1;
    group.promote_window_s = quota.replicas = -1;
    group.delay_before_delete_ms = 0;
    group.ttl_s = -1;
    group.version++;
    int rc = tierce__registry_update_group(h.registry, &group, group.version - 1, h.why);
    REQUIRE(rc == 0, "group: %s", h.why);
    tierce__registry_release(h.registry, catalog);
}

/*
 * 30 blocks of the old version are idle and 50 of the new one are read all the time, where there is
 * room for 50: exactly those of the old version leave. As the new one grows, each batch of new
 * blocks pushes out the oldest of its own, and none that is being read.
 */
START_TEST(capacity_follows_traffic)
{
    enum { OLD = 30, HOT = 50, BATCH = 10 };
    inner_ops = &tierce__meta_memory;
    random_ = (struct test_random){seed = 1};
    begin();
    set_rates(0);
    sim_storages.goes = nobody;
    ck_assert_int_eq(tierce__locator_set_quotas(h.locator, NULL, 0), 0);
    set_group(100); /* 80 below the watermark */
    write_blocks("i", 1000, OLD);
    for (int64_t done = 0; done < HOT; done += BATCH) {
        h.now_us += 1000000;
        write_blocks("j", 2000 + done, BATCH);
        REQUIRE(read_blocks("j", 2000, (size_t)done + BATCH) == (size_t)done + BATCH, "a miss");
        ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), 0);
    }
    for (int64_t batch = 0; batch < 12; batch++) {
        h.now_us += 1000000;
        write_blocks("j", 3000 + batch * BATCH, BATCH);
        h.now_us += 1000000;
        REQUIRE(read_blocks("j", 2000, HOT) == HOT, "a block that is read was evicted");
        ck_assert_uint_eq(tierce__reclaimer_step(reclaimer), BATCH);
        (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
        size_t old_left = batch < 3 ? OLD - BATCH * ((size_t)batch + 1) : 0;
        struct tierce__usage usage;
        ck_assert_int_eq(tierce__locator_instance_usage(h.locator, "i", &usage), 0);
        ck_assert_uint_eq(usage.keys, old_left);
    }
    tierce__reclaimer_stop(reclaimer);
    tierce__locator_close(h.locator);
    tierce__storages_close(h.storages);
    tierce__registry_close(h.registry);
    sim_store_end();
}
END_TEST

/* ---- steps whose outcome is unknown ----------------------------------------------------------
 */

static void remove_and_sweep(uint64_t first, uint64_t failures)
{
    enum { BLOCKS = 4 };
    static const int64_t middle = 1001;
    struct tierce__mask none = {0};
    size_t notes = 0;
    struct tierce__live *live;
    random_ = (struct test_random){seed = 1};
    begin();
    set_rates(0);
    sim_storages.goes = nobody;
    set_group(100);
    write_blocks("i", 1000, BLOCKS);
    sim_store.fails_at = sim_store.asked + first;
    sim_store.fails_until = sim_store.fails_at + failures - 1;
    int rc = tierce__locator_remove(h.locator, "i", &middle, 1, &none, h.why);
    sim_store.fails_at = sim_store.fails_until = 0;
    for (int i = 0; i < 4; i++) {
        h.now_us += 2000000;
        (void)tierce__deleter_step(h.locator->deleter, SIZE_MAX);
        (void)tierce__reclaimer_step(reclaimer);
    }
    bool is_removed = read_blocks("i", middle, 1) == 0;
    REQUIRE(is_removed || rc < 0, "a removal that succeeded is not done");
    REQUIRE(read_blocks("i", middle + 1, BLOCKS - 2) == (is_removed ? 0 : BLOCKS - 2),
            "failures %llu of %llu: blocks after a hole", (unsigned long long)first,
            (unsigned long long)failures);
    REQUIRE(read_blocks("i", 1000, 1) == 1, "the first block is gone");
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    struct tierce__meta_space *space = sim_inner(live->space);
    ck_assert_int_eq(space->ops->notes(space, TIERCE__NOTE_HOLES, count_note, &notes), 0);
    check_holes(NULL, live);
    tierce__live_release(live);
    REQUIRE(notes == 0, "failures %llu of %llu: a note of holes is left", (unsigned long long)first,
            (unsigned long long)failures);
    tierce__reclaimer_stop(reclaimer);
    tierce__locator_close(h.locator);
    tierce__storages_close(h.storages);
    tierce__registry_close(h.registry);
    sim_store_end();
}

/* The store executes a removal and does not answer, neither to the removal nor to the question
 * whether it was executed. */
START_TEST(holes_of_unknown_steps_are_swept)
{
    inner_ops = &tierce__meta_memory;
    for (uint64_t first = 1; first <= 6; first++)
        for (uint64_t failures = 1; failures <= 6; failures++)
            remove_and_sweep(first, failures);
}
END_TEST

START_TEST(nothing_is_lost_and_nothing_is_left)
{
    inner_ops = &tierce__meta_memory;
    run_all(test_scale() > 1 ? (unsigned long long)RUNS_SCALED * test_scale() : RUNS);
}
END_TEST

START_TEST(neither_on_disk)
{
    inner_ops = &tierce__meta_rocksdb;
    run_all(10);
}
END_TEST

CHECK_MAIN("sim_manager", .seconds = 240 * (double)test_scale(),
           .tests = {nothing_is_lost_and_nothing_is_left, neither_on_disk,
                     holes_of_unknown_steps_are_swept, capacity_follows_traffic})
