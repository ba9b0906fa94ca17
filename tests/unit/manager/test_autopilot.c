/* SPDX-License-Identifier: Apache-2.0 */
/* The autopilot on a registry: quotas, the log of steps, other leaders. */
#include "check_main.h"
#include "manager_harness.h"

#include "base/alloc.h"
#include "manager/pilot/autopilot.h"
#include "manager/registry/catalog.h"

#define SECOND 1000000ll
#define QUOTA  150000ll /* a thousand blocks */

struct flight {
    struct harness h;
    struct tierce__ghosts *ghost;
    struct tierce__ghost_tap *taps[2]; /* of groups g and h */
    struct tierce__autopilot *autopilot;
    bool leads;
    uint64_t loops;
};

static bool leads(void *arg)
{
    return ((const struct flight *)arg)->leads;
}

static void start(struct flight *f, enum tierce__autopilot_mode mode)
{
    int rc = tierce__autopilot_start(
        &f->autopilot,
        &(struct tierce__autopilot_opts){.size = sizeof(struct tierce__autopilot_opts),
                                         .locator = f->h.locator,
                                         .registry = f->h.registry,
                                         .ghost = f->ghost,
                                         .mode = mode,
                                         .settle_ms = 2000,
                                         .leads = leads,
                                         .arg = f});
    ck_assert_int_eq(rc, 0);
}

static const struct tierce__group *group_of(const struct tierce__catalog *catalog, const char *name)
{
    const struct tierce__group *group = tierce__catalog_group(catalog, name);
    ck_assert_ptr_nonnull(group);
    return group;
}

/* A second group like the first. */
static void add_group(struct flight *f)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(f->h.registry);
    char name[] = "h";
    struct tierce__group group = *group_of(catalog, "g");
    group.name = name;
    ck_assert_msg(tierce__registry_add_group(f->h.registry, &group, f->h.why) == 0, "%s", f->h.why);
    tierce__registry_release(f->h.registry, catalog);
}

static void open_flight(struct flight *f, enum tierce__autopilot_mode mode)
{
    static char names[2][2] = {"g", "h"}, empty[] = "";
    struct tierce__spec_info spec = {empty, BLOCK_BYTES};
    *f = (struct flight){.leads = true};
    harness_open(&f->h, &(struct harness_opts){.capacity = QUOTA});
    add_group(f);
    ck_assert_int_eq(
        tierce__ghosts_create(
            &f->ghost, &(struct tierce__ghosts_opts){.size = sizeof(struct tierce__ghosts_opts),
                                                     .now_us = harness_now,
                                                     .clock_arg = &f->h,
                                                     .seed = 1,
                                                     .epoch_us = SECOND}),
        0);
    for (size_t i = 0; i < 2; i++) {
        struct tierce__instance instance = {.id = names[i],
                                            .group_name = names[i],
                                            .block_size = 16,
                                            .specs = &spec,
                                            .spec_count = 1};
        f->taps[i] = tierce__ghosts_open(f->ghost, &instance);
        ck_assert_ptr_nonnull(f->taps[i]);
    }
    start(f, mode);
}

static void close_flight(struct flight *f)
{
    tierce__autopilot_stop(f->autopilot);
    for (size_t i = 0; i < 2; i++)
        tierce__ghosts_close(f->ghost, f->taps[i]);
    tierce__ghosts_destroy(f->ghost);
    harness_close(&f->h);
}

static void use(struct flight *f, size_t group, int64_t first, size_t found)
{
    int64_t keys[10];
    for (int64_t i = 0; i < 10; i++)
        keys[i] = (int64_t)group * 1000000 + first * 10 + i;
    tierce__ghosts_get(f->ghost, f->taps[group], keys, 10, true, found);
    tierce__ghosts_write(f->ghost, f->taps[group], keys, 10);
}

/* Seconds in which g uses 100 blocks again and again, and h 1,500, more than its quota. */
static void pass(struct flight *f, int seconds, size_t found)
{
    for (int s = 0; s < seconds; s++) {
        for (int i = 0; i < 150; i++, f->loops++) {
            use(f, 0, (int64_t)(f->loops % 10), 10);
            use(f, 1, (int64_t)(f->loops % 150), found);
            if (i % 16 == 0)
                tierce__ghosts_step(f->ghost);
        }
        tierce__ghosts_step(f->ghost);
        f->h.now_us += SECOND;
        tierce__ghosts_step(f->ghost);
    }
}

struct seen {
    int64_t quota[2], type_quota[2], version[2], id;
    enum tierce__storage_type type;
    size_t steps;
    int32_t state; /* of the last step of h */
    int64_t bytes;
};

static struct seen see(const struct flight *f)
{
    struct seen seen = {0};
    const struct tierce__catalog *catalog = tierce__registry_acquire(f->h.registry);
    for (size_t i = 0; i < 2; i++) {
        const struct tierce__group *group = group_of(catalog, i == 0 ? "g" : "h");
        seen.quota[i] = group->capacity_bytes;
        seen.type_quota[i] = group->type_quotas[0].capacity_bytes;
        seen.version[i] = group->version;
        if (i == 0)
            ck_assert_uint_eq(group->step_count, 0); /* it only gives */
        seen.steps = group->step_count;
    }
    const struct tierce__group *to = group_of(catalog, "h");
    if (to->step_count > 0) {
        const struct tierce__group_step *step = &to->steps[to->step_count - 1];
        seen.state = step->state;
        seen.bytes = step->bytes;
        seen.id = step->id;
        ck_assert_str_eq(step->from, "g");
        seen.type = (enum tierce__storage_type)step->quota;
    }
    tierce__registry_release(f->h.registry, catalog);
    ck_assert_int_eq(seen.quota[0] + seen.quota[1], 2 * QUOTA);
    ck_assert_int_eq(seen.type_quota[0] + seen.type_quota[1], 2 * QUOTA);
    return seen;
}

static struct seen look(struct flight *f)
{
    tierce__autopilot_look(f->autopilot);
    return see(f);
}

static int update(struct flight *f, const char *name, const char *mode, int64_t least)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(f->h.registry);
    struct tierce__group group = *group_of(catalog, name);
    char text[16];
    snprintf(text, sizeof(text), "%s", mode);
    int64_t version = group.version++;
    char unknown[] = "";
    group.autopilot = text;
    group.autopilot_policies = unknown;
    group.min_bytes = least;
    group.steps = NULL; /* as in a message */
    group.step_count = 0;
    int rc = tierce__registry_update_group(f->h.registry, &group, version, f->h.why);
    tierce__registry_release(f->h.registry, catalog);
    return rc;
}

START_TEST(a_step_moves_both_quotas_and_is_logged)
{
    struct flight f;
    open_flight(&f, TIERCE__AUTOPILOT_ACT);
    ck_assert_uint_eq(look(&f).steps, 0); /* nothing is known yet */
    pass(&f, 10, 0);
    struct seen seen = look(&f);
    ck_assert_uint_eq(seen.steps, 1);
    ck_assert_int_eq(seen.state, TIERCE__STEP_OPEN);
    ck_assert_int_eq(seen.type, TIERCE__STORAGE_NFS);
    ck_assert_int_eq(seen.bytes, QUOTA / 10); /* a twentieth of both */
    ck_assert_int_eq(seen.quota[1], QUOTA + QUOTA / 10);
    ck_assert_int_eq(seen.type_quota[1], QUOTA + QUOTA / 10);
    ck_assert_int_eq(seen.version[0], 2);
    ck_assert_int_eq(seen.version[1], 2);
    ck_assert_uint_eq(look(&f).steps, 1); /* one at a time */
    pass(&f, 6, 0);
    seen = look(&f); /* it is kept, and the next one made */
    ck_assert_uint_eq(seen.steps, 2);
    ck_assert_int_eq(seen.quota[1], QUOTA + 2 * (QUOTA / 10));
    struct tierce__autopilot_stats stats;
    tierce__autopilot_stats(f.autopilot, &stats);
    ck_assert_uint_eq(stats.steps, 2);
    ck_assert_uint_eq(stats.kept, 1);
    ck_assert_uint_eq(stats.failed, 0);
    close_flight(&f);
}
END_TEST

START_TEST(a_wrong_step_goes_back)
{
    struct flight f;
    open_flight(&f, TIERCE__AUTOPILOT_ACT);
    pass(&f, 10, 5); /* half of the lookups are found */
    ck_assert_int_eq(look(&f).state, TIERCE__STEP_OPEN);
    pass(&f, 6, 0); /* then none */
    struct seen seen = look(&f);
    ck_assert_int_eq(seen.state, TIERCE__STEP_UNDONE);
    ck_assert_int_eq(seen.quota[0], QUOTA);
    ck_assert_int_eq(seen.quota[1], QUOTA);
    pass(&f, 4, 0);
    ck_assert_uint_eq(look(&f).steps, 1); /* the pair is left alone */
    /* Also by another leader. */
    tierce__autopilot_stop(f.autopilot);
    start(&f, TIERCE__AUTOPILOT_ACT);
    ck_assert_uint_eq(look(&f).steps, 1);
    pass(&f, 9, 0);
    ck_assert_uint_eq(look(&f).steps, 2);
    close_flight(&f);
}
END_TEST

START_TEST(advice_changes_nothing)
{
    struct flight f;
    open_flight(&f, TIERCE__AUTOPILOT_ADVISE);
    pass(&f, 10, 0);
    struct seen seen = look(&f);
    ck_assert_int_eq(seen.state, TIERCE__STEP_ADVISED);
    ck_assert_int_eq(seen.bytes, QUOTA / 10);
    ck_assert_int_eq(seen.quota[1], QUOTA);
    ck_assert_int_eq(seen.version[1], 1);
    for (int i = 0; i < 8; i++) { /* it is the same */
        pass(&f, 2, 0);
        ck_assert_uint_eq(look(&f).steps, 1);
    }
    /* Also for another leader. */
    tierce__autopilot_stop(f.autopilot);
    start(&f, TIERCE__AUTOPILOT_ADVISE);
    ck_assert_uint_eq(look(&f).steps, 1);
    ck_assert_int_eq(update(&f, "g", "advise", QUOTA / 20), 0); /* it may be followed */
    ck_assert_uint_eq(look(&f).steps, 2);
    close_flight(&f);
}
END_TEST

/* The gain goes up and down: that is logged once in a while. */
START_TEST(advice_that_changes_again_and_again)
{
    struct flight f;
    open_flight(&f, TIERCE__AUTOPILOT_ADVISE);
    pass(&f, 10, 0);
    ck_assert_uint_eq(look(&f).steps, 1);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(update(&f, "g", "advise", QUOTA / 20 + i), 0);
        pass(&f, 2, 0);
        ck_assert_uint_eq(look(&f).steps, 1);
    }
    pass(&f, 2, 0);
    ck_assert_uint_eq(look(&f).steps, 2);
    close_flight(&f);
}
END_TEST

/* A leader that ends between a step and its judgement: the next one finds both quotas changed. */
START_TEST(another_leader_finds_a_step)
{
    struct flight f;
    open_flight(&f, TIERCE__AUTOPILOT_ACT);
    pass(&f, 10, 0);
    struct seen before = look(&f);
    ck_assert_int_eq(before.state, TIERCE__STEP_OPEN);
    f.leads = false;
    ck_assert_int_eq(look(&f).state, TIERCE__STEP_OPEN); /* it does not touch it */
    tierce__autopilot_stop(f.autopilot);
    f.leads = true;
    start(&f, TIERCE__AUTOPILOT_OFF);
    struct seen after = look(&f);
    struct tierce__autopilot_stats stats;
    tierce__autopilot_stats(f.autopilot, &stats);
    ck_assert_uint_eq(stats.not_judged, 1);
    ck_assert_uint_eq(stats.kept + stats.undone + stats.stays, 0);
    ck_assert_int_eq(after.state, TIERCE__STEP_NOT_JUDGED);
    ck_assert_int_eq(after.quota[0], before.quota[0]);
    ck_assert_int_eq(after.quota[1], before.quota[1]);
    ck_assert_int_eq(after.id, before.id);
    close_flight(&f);
}
END_TEST

START_TEST(groups_have_modes_and_bounds_of_their_own)
{
    struct flight f;
    open_flight(&f, TIERCE__AUTOPILOT_OFF);
    pass(&f, 10, 0);
    ck_assert_uint_eq(look(&f).steps, 0);
    /* h needs half as much again as it has, so less than that is not worth a step. */
    ck_assert_int_eq(update(&f, "g", "act", QUOTA - 5000), 0);
    ck_assert_uint_eq(look(&f).steps, 0); /* h is off */
    ck_assert_int_eq(update(&f, "h", "act", 0), 0);
    ck_assert_uint_eq(look(&f).steps, 0);
    ck_assert_int_eq(update(&f, "g", "", QUOTA / 3), 0);
    struct seen seen = look(&f);
    ck_assert_int_eq(seen.bytes, QUOTA / 10);
    /* A client that does not know the fields keeps them, and the log. */
    ck_assert_int_eq(update(&f, "h", "", 0), 0);
    ck_assert_int_eq(update(&f, "g", "", 0), 0);
    const struct tierce__catalog *catalog = tierce__registry_acquire(f.h.registry);
    ck_assert_str_eq(group_of(catalog, "h")->autopilot, "act");
    ck_assert_uint_eq(group_of(catalog, "h")->step_count, 1);
    ck_assert_int_eq(group_of(catalog, "g")->min_bytes, QUOTA / 3);
    tierce__registry_release(f.h.registry, catalog);
    ck_assert_int_eq(update(&f, "g", "default", -1), 0);
    catalog = tierce__registry_acquire(f.h.registry);
    ck_assert_str_eq(group_of(catalog, "g")->autopilot, "");
    ck_assert_int_eq(group_of(catalog, "g")->min_bytes, 0);
    tierce__registry_release(f.h.registry, catalog);
    ck_assert_int_eq(update(&f, "g", "maybe", 0), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.h.why, "\"maybe\"; accepted are off, advise, act and default"));
    close_flight(&f);
}
END_TEST

/* ---- pools of nodes -------------------------------------------------------------------------- */

static void add_part(struct flight *f)
{
    char name[] = "p.n1", pool[] = "p", node[] = "n1", medium[] = "memory", uri[] = "tierce://n1:1",
         incarnation[] = "0123456789abcdef0123456789abcdef", host[] = "h1";
    const struct tierce__catalog *catalog = tierce__registry_acquire(f->h.registry);
    struct tierce__storage part = *tierce__catalog_storage(catalog, "s");
    part.number = 0;
    part.name = name;
    part.type = TIERCE__STORAGE_NODE;
    part.pool = pool;
    part.node = node;
    part.medium = medium;
    part.uri = uri;
    part.incarnation = incarnation;
    part.host_id = host;
    int rc = tierce__registry_put_part(f->h.registry, &part, false, f->h.why);
    tierce__registry_release(f->h.registry, catalog);
    ck_assert_msg(rc >= 0, "%s", f->h.why);
}

/* The group stores in a pool, or in a part of one. */
static void use_pool(struct flight *f, const char *group_name, const char *candidate)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(f->h.registry);
    struct tierce__group group = *group_of(catalog, group_name);
    struct tierce__type_quota quota = {.type = TIERCE__STORAGE_NODE, .capacity_bytes = QUOTA};
    char name[16], *names[] = {name};
    snprintf(name, sizeof(name), "%s", candidate);
    int64_t version = group.version++;
    group.storage_candidates = names;
    group.storage_candidate_count = 1;
    group.type_quotas = &quota;
    group.type_quota_count = 1;
    group.steps = NULL;
    group.step_count = 0;
    int rc = tierce__registry_update_group(f->h.registry, &group, version, f->h.why);
    tierce__registry_release(f->h.registry, catalog);
    ck_assert_msg(rc == 0, "%s", f->h.why);
}

START_TEST(groups_of_a_pool)
{
    static const char *const candidates[][2] = {{"p", "p"}, {"p", "p.n1"}, {"p.n1", "p"}};
    for (size_t i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++) {
        struct flight f;
        open_flight(&f, TIERCE__AUTOPILOT_ACT);
        add_part(&f);
        use_pool(&f, "g", candidates[i][0]);
        pass(&f, 10, 0);
        ck_assert_uint_eq(look(&f).steps, 0); /* they have no storage in common */
        use_pool(&f, "h", candidates[i][1]);
        struct seen seen = look(&f);
        ck_assert_uint_eq(seen.steps, 1);
        ck_assert_int_eq(seen.type, TIERCE__STORAGE_NODE);
        ck_assert_int_eq(seen.type_quota[1], QUOTA + QUOTA / 10);
        close_flight(&f);
    }
}
END_TEST

/* ---- steps that nobody judges ---------------------------------------------------------------- */

static int shift(struct flight *f, int64_t bytes, int64_t version, int64_t id, int32_t state)
{
    char from[] = "g";
    struct tierce__group_step step = {
        .id = id, .from = from, .quota = TIERCE__STORAGE_NFS, .state = state};
    return tierce__registry_shift(f->h.registry,
                                  &(struct tierce__quota_shift){.from = "g",
                                                                .to = "h",
                                                                .from_version = version,
                                                                .to_version = version,
                                                                .type = TIERCE__STORAGE_NFS,
                                                                .bytes = bytes,
                                                                .step = &step},
                                  f->h.why);
}

START_TEST(a_step_of_a_group_that_takes_no_part_any_more)
{
    struct flight f;
    open_flight(&f, TIERCE__AUTOPILOT_ACT);
    pass(&f, 10, 0);
    struct seen before = look(&f);
    ck_assert_int_eq(before.state, TIERCE__STEP_OPEN);
    ck_assert_int_eq(update(&f, "h", "off", 0), 0);
    struct seen after = look(&f);
    ck_assert_int_eq(after.state, TIERCE__STEP_NOT_JUDGED);
    ck_assert_int_eq(after.quota[1], before.quota[1]);
    ck_assert_int_eq(after.id, before.id);
    close_flight(&f);
}
END_TEST

/* The registry stored a step, and the manager heard of an error: the store answered too late. */
START_TEST(a_step_whose_write_seemed_to_fail)
{
    struct flight f;
    open_flight(&f, TIERCE__AUTOPILOT_ACT);
    ck_assert_uint_eq(look(&f).steps, 0);
    ck_assert_int_eq(shift(&f, 1000, 1, 7, TIERCE__STEP_OPEN), 0);
    struct seen seen = look(&f);
    ck_assert_int_eq(seen.state, TIERCE__STEP_NOT_JUDGED);
    ck_assert_int_eq(seen.id, 7);
    pass(&f, 10, 0);
    ck_assert_int_eq(look(&f).id, 8); /* no step gets a number that is in use */
    close_flight(&f);
}
END_TEST

/* ---- policies and times to live -------------------------------------------------------------- */

/* Group h is off, and g may choose. */
static void open_tuned(struct flight *f, const char *mode, const char *policies)
{
    open_flight(f, TIERCE__AUTOPILOT_ACT);
    ck_assert_int_eq(update(f, "h", "off", 0), 0);
    const struct tierce__catalog *catalog = tierce__registry_acquire(f->h.registry);
    struct tierce__group group = *group_of(catalog, "g");
    char own[16], list[16];
    snprintf(own, sizeof(own), "%s", mode);
    snprintf(list, sizeof(list), "%s", policies);
    int64_t version = group.version++;
    group.autopilot = own;
    group.autopilot_policies = list;
    int rc = tierce__registry_update_group(f->h.registry, &group, version, f->h.why);
    tierce__registry_release(f->h.registry, catalog);
    ck_assert_msg(rc == 0, "%s", f->h.why);
    tierce__ghosts_set_reach(f->ghost, "g", 4 * QUOTA);
}

/* Seconds in which 40 chains are asked for twice in a row, with scans in between: they need more
 * than the quota, unless the frequent ones stay. `first`, `second`: how many keys are found. */
static void scan(struct flight *f, int seconds, size_t first, size_t second)
{
    for (int s = 0; s < seconds; s++) {
        for (int64_t i = 0; i < 40; i++) {
            use(f, 0, i, first);
            use(f, 0, i, second);
            for (int n = 0; n < 4; n++)
                use(f, 0, 1000 + (int64_t)f->loops++, 0);
            tierce__ghosts_step(f->ghost);
        }
        f->h.now_us += SECOND;
        tierce__ghosts_step(f->ghost);
        tierce__autopilot_look(f->autopilot);
    }
}

struct tuned {
    size_t steps;
    int32_t policy, state, from, to;
    double expected, measured;
};

static struct tuned see_tuned(const struct flight *f)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(f->h.registry);
    const struct tierce__group *group = group_of(catalog, "g");
    struct tuned seen = {.policy = group->reclaim_policy, .steps = group->step_count};
    if (group->step_count > 0) {
        const struct tierce__group_step *step = &group->steps[group->step_count - 1];
        seen.state = step->state;
        seen.from = step->policy_from;
        seen.to = step->policy_to;
        seen.expected = step->expected;
        seen.measured = step->measured;
    }
    tierce__registry_release(f->h.registry, catalog);
    return seen;
}

/* Seconds until the last of so many steps has a state. Returns them; 100: it never had. */
static int scan_until(struct flight *f, size_t steps, int32_t state, size_t first, size_t second)
{
    int seconds = 0;
    for (struct tuned seen = see_tuned(f);
         seconds < 100 && (seen.steps != steps || seen.state != state);
         seconds++, seen = see_tuned(f))
        scan(f, 1, first, second);
    return seconds;
}

/* Half of the lookups of 40 chains of ten keys of 16 tokens, a second. */
#define GAIN (40 * 10 * 16.0)

START_TEST(a_better_policy_is_chosen_and_kept)
{
    struct flight f;
    open_tuned(&f, "act", "lru,lfu");
    ck_assert_int_ge(scan_until(&f, 1, TIERCE__STEP_OPEN, 0, 10), 8); /* too little was known */
    struct tuned seen = see_tuned(&f);
    ck_assert_uint_eq(seen.steps, 1);
    ck_assert_int_eq(seen.policy, TIERCE__RECLAIM_LFU);
    ck_assert_int_eq(seen.from, TIERCE__RECLAIM_LRU);
    ck_assert_double_eq_tol(seen.expected, GAIN, GAIN / 4);
    ck_assert_int_eq(scan_until(&f, 1, TIERCE__STEP_KEPT, 10, 10), 6);
    seen = see_tuned(&f);
    ck_assert_double_eq_tol(seen.measured, GAIN, GAIN / 4);
    ck_assert_int_eq(seen.policy, TIERCE__RECLAIM_LFU);
    scan(&f, 30, 10, 10);
    ck_assert_uint_eq(see_tuned(&f).steps, 1); /* LRU is not better */
    close_flight(&f);
}
END_TEST

START_TEST(a_wrong_policy_goes_back)
{
    struct flight f;
    open_tuned(&f, "act", "lru,lfu");
    ck_assert_int_lt(scan_until(&f, 1, TIERCE__STEP_OPEN, 0, 10), 100);
    ck_assert_int_eq(see_tuned(&f).policy, TIERCE__RECLAIM_LFU);
    /* Fewer hits than before. */
    ck_assert_int_eq(scan_until(&f, 1, TIERCE__STEP_UNDONE, 0, 4), 6);
    struct tuned seen = see_tuned(&f);
    ck_assert_int_eq(seen.policy, TIERCE__RECLAIM_LRU);
    ck_assert_double_lt(seen.measured, 0);
    scan(&f, 4, 0, 10);
    tierce__autopilot_stop(f.autopilot); /* it is left alone, also by another leader */
    start(&f, TIERCE__AUTOPILOT_ACT);
    int seconds = scan_until(&f, 2, TIERCE__STEP_OPEN, 0, 10);
    ck_assert_int_ge(seconds, 8);
    ck_assert_int_lt(seconds, 100);
    close_flight(&f);
}
END_TEST

START_TEST(policies_are_advised_or_not_looked_at)
{
    static const struct {
        const char *mode, *policies;
        size_t steps;
    } cases[] = {{"advise", "lfu", 1}, {"act", "lru", 0}, {"act", "none", 0}, {"off", "lfu", 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct flight f;
        open_tuned(&f, cases[i].mode, cases[i].policies);
        scan(&f, 26, 0, 10);
        struct tuned seen = see_tuned(&f);
        ck_assert_uint_eq(seen.steps, cases[i].steps);
        ck_assert_int_eq(seen.policy, TIERCE__RECLAIM_LRU);
        ck_assert(seen.steps == 0 || seen.state == TIERCE__STEP_ADVISED);
        close_flight(&f);
    }
}
END_TEST

/* An operator sets another policy while a step settles. */
START_TEST(a_policy_that_an_operator_changes)
{
    struct flight f;
    open_tuned(&f, "act", "lru,lfu");
    scan(&f, 12, 0, 10);
    const struct tierce__catalog *catalog = tierce__registry_acquire(f.h.registry);
    struct tierce__group group = *group_of(catalog, "g");
    int64_t version = group.version++;
    group.reclaim_policy = TIERCE__RECLAIM_LEAF_LRU;
    group.steps = NULL;
    group.step_count = 0;
    ck_assert_int_eq(tierce__registry_update_group(f.h.registry, &group, version, f.h.why), 0);
    tierce__registry_release(f.h.registry, catalog);
    scan(&f, 1, 0, 10);
    struct tuned seen = see_tuned(&f);
    ck_assert_int_eq(seen.state, TIERCE__STEP_NOT_JUDGED);
    ck_assert_int_eq(seen.policy, TIERCE__RECLAIM_LEAF_LRU);
    close_flight(&f);
}
END_TEST

/* Each chain is used again after 12 seconds: a time to live of 10 s loses all hits. */
START_TEST(a_time_to_live_that_is_too_short)
{
    for (int i = 0; i < 2; i++) {
        struct flight f;
        open_tuned(&f, "act", "none");
        const struct tierce__catalog *catalog = tierce__registry_acquire(f.h.registry);
        struct tierce__group group = *group_of(catalog, "g");
        int64_t version = group.version++;
        group.ttl_s = 10;
        group.ttl_min_s = 5;
        group.ttl_max_s = i == 0 ? 1000 : 11;
        ck_assert_int_eq(tierce__registry_update_group(f.h.registry, &group, version, f.h.why), 0);
        tierce__registry_release(f.h.registry, catalog);
        for (int64_t s = 0; s < 50; s++) {
            for (int64_t n = 0; n < 7; n++)
                use(&f, 0, s % 12 * 7 + n, 0);
            f.h.now_us += SECOND;
            tierce__ghosts_step(f.ghost);
            tierce__autopilot_look(f.autopilot);
        }
        catalog = tierce__registry_acquire(f.h.registry);
        const struct tierce__group *now = group_of(catalog, "g");
        ck_assert_uint_eq(now->step_count > 0, i == 0); /* a bound of 11 s does not help */
        if (i == 0) {
            ck_assert_int_eq(now->steps[0].ttl_from_s, 10);
            ck_assert_int_eq(now->steps[0].ttl_to_s, 20);
            ck_assert_int_eq(now->steps[0].policy_to, TIERCE__RECLAIM_LRU);
        }
        tierce__registry_release(f.h.registry, catalog);
        close_flight(&f);
    }
}
END_TEST

START_TEST(lists_of_policies)
{
    static const char *const wrong[] = {"ttl",     "lru,", ",lru",    "lru,,lfu",
                                        "lru,lru", "LRU",  "lru, lfu"};
    struct flight f;
    open_tuned(&f, "act", "leaf_lru,lfu");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const struct tierce__catalog *catalog = tierce__registry_acquire(f.h.registry);
        struct tierce__group group = *group_of(catalog, "g");
        char list[16];
        snprintf(list, sizeof(list), "%s", wrong[i]);
        int64_t version = group.version++;
        group.autopilot_policies = list;
        ck_assert_int_eq(tierce__registry_update_group(f.h.registry, &group, version, f.h.why),
                         TIERCE_E_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(f.h.why, "accepted are lru, lfu and leaf_lru"));
        tierce__registry_release(f.h.registry, catalog);
    }
    ck_assert_int_eq(update(&f, "g", "act", 0), 0); /* a client that does not know the field */
    const struct tierce__catalog *catalog = tierce__registry_acquire(f.h.registry);
    ck_assert_str_eq(group_of(catalog, "g")->autopilot_policies, "leaf_lru,lfu");
    tierce__registry_release(f.h.registry, catalog);
    close_flight(&f);
}
END_TEST

/* ---- the change of the registry -------------------------------------------------------------- */

START_TEST(a_shift_is_whole_or_nothing)
{
    struct flight f;
    open_flight(&f, TIERCE__AUTOPILOT_OFF);
    ck_assert_int_eq(shift(&f, 1000, 9, 1, 0), -ESTALE);
    ck_assert_int_eq(shift(&f, QUOTA, 1, 1, 0), TIERCE_E_ARGUMENT); /* nothing would be left */
    ck_assert_int_eq(shift(&f, INT64_MAX, 1, 1, 0), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(shift(&f, -INT64_MAX, 1, 1, 0), TIERCE_E_ARGUMENT);
    struct seen seen = see(&f);
    ck_assert_int_eq(seen.quota[0], QUOTA);
    ck_assert_uint_eq(seen.steps, 0);
    tierce__registry_drop(f.h.registry); /* it does not lead any more */
    ck_assert_int_eq(shift(&f, 1000, 1, 1, 0), TIERCE_E_CLOSED);
    ck_assert_int_eq(tierce__registry_load(f.h.registry, 1, f.h.why), 0);
    for (int64_t id = 1; id <= 20; id++)
        ck_assert_int_eq(shift(&f, 0, 0, id, 0), 0);
    seen = see(&f);
    ck_assert_uint_eq(seen.steps, TIERCE__GROUP_STEPS_MAX);
    ck_assert_int_eq(seen.id, 20);
    ck_assert_int_eq(shift(&f, 0, 0, 20, 0), 0); /* replaces the one of its id */
    ck_assert_uint_eq(see(&f).steps, TIERCE__GROUP_STEPS_MAX);
    close_flight(&f);
}
END_TEST

/* Each allocation of a shift fails once. */
START_TEST(a_shift_without_memory_changes_nothing)
{
    struct flight f;
    int rc = -ENOMEM;
    open_flight(&f, TIERCE__AUTOPILOT_OFF);
    for (uint64_t nth = 1; rc != 0; nth++) {
        ck_assert_int_eq(see(&f).quota[0], QUOTA);
        (void)tierce__alloc_fail_nth(nth);
        rc = shift(&f, 1000, 1, 1, 0);
        (void)tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
    }
    ck_assert_int_eq(see(&f).quota[0], QUOTA - 1000);
    close_flight(&f);
}
END_TEST

CHECK_MAIN("autopilot", .seconds = 60,
           .tests = {a_step_moves_both_quotas_and_is_logged, a_wrong_step_goes_back,
                     advice_changes_nothing, another_leader_finds_a_step,
                     a_better_policy_is_chosen_and_kept, a_wrong_policy_goes_back,
                     policies_are_advised_or_not_looked_at, a_policy_that_an_operator_changes,
                     a_time_to_live_that_is_too_short, lists_of_policies,
                     advice_that_changes_again_and_again, groups_of_a_pool,
                     a_step_of_a_group_that_takes_no_part_any_more,
                     a_step_whose_write_seemed_to_fail, groups_have_modes_and_bounds_of_their_own,
                     a_shift_is_whole_or_nothing, a_shift_without_memory_changes_nothing})
