/* SPDX-License-Identifier: Apache-2.0 */
/* Instances that are removed, with open writes and with counters. */
#include "check_main.h"
#include "manager/locate/locator_private.h"
#include "manager_harness.h"
#include "wait_for.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

static const int64_t chain[] = {11, 22, 33, 44, 55, 66, 77, 88};

START_TEST(an_instance_leaves_nothing_behind)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){.keys_per_file = 4});
    struct tierce__started started = harness_start(&h, chain, 6);
    harness_write_files(started.locations, started.count);
    harness_finish(&h, &started);
    started = harness_start(&h, &chain[6], 2);
    harness_write_files(started.locations, started.count);
    int rc = tierce__locator_remove_instance(h.locator, "i", h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    ck_assert_uint_eq(harness_count_files(&h), 0);
    struct tierce__usage usage = harness_usage(&h);
    ck_assert_uint_eq(usage.serving_bytes + usage.writing_bytes + usage.deleting_bytes, 0);
    struct tierce__got got;
    ck_assert_int_eq(
        tierce__locator_get(h.locator,
                            &(struct tierce__get_request){
                                .instance_id = "i", .query = 2, .keys = chain, .count = 1},
                            &h.arena, &got, h.why),
        -ENOENT);
    harness_close(&h);
}
END_TEST

static struct tierce__live *going;
static atomic_bool is_starting, has_expired;

/* Linked with --wrap. */
size_t __real_tierce__live_expire(struct tierce__live *live, int64_t now_us);
size_t __wrap_tierce__live_expire(struct tierce__live *live, int64_t now_us);
size_t __wrap_tierce__live_expire(struct tierce__live *live, int64_t now_us)
{
    size_t ended = __real_tierce__live_expire(live, now_us);
    atomic_store(&has_expired, true);
    return ended;
}

/* Delays the start of a session until the removal of its instance has ended all other ones. */
static int write_late(struct tierce__meta_space *space, const struct tierce__meta_batch *batch)
{
    bool starts = batch->note_count > 0 && batch->notes[0].kind == TIERCE__NOTE_SESSION &&
                  batch->notes[0].value != NULL;
    atomic_store(&is_starting, starts);
    if (starts)
        WAIT_FOR(atomic_load(&has_expired));
    return tierce__meta_memory.write(space, batch);
}

static void *start_late(void *arg)
{
    struct harness *h = arg;
    struct tierce__arena arena = {0};
    struct tierce__started started;
    char why[TIERCE__WHY_BYTES];
    struct tierce__write_request request = {
        .instance_id = "i", .keys = chain, .count = 8, .timeout_s = 30};
    int rc = tierce__locator_start_write(h->locator, &request, &arena, &started, why);
    tierce__arena_clear(&arena);
    ck_assert_msg(rc == 0, "%s", why);
    return NULL;
}

/* The quotas get the bytes of a session back that began before its instance rejected calls. */
START_TEST(a_write_that_began_before_its_instance_was_removed_leaves_nothing)
{
    struct harness h;
    pthread_t writer;
    harness_open(&h, &(struct harness_opts){0});
    struct tierce__meta_store_ops late = tierce__meta_memory;
    late.write = write_late;
    ck_assert_int_eq(tierce__live_acquire(&going, h.locator, "i", h.why), 0);
    going->space->ops = &late;
    tierce__live_release(going);
    ck_assert_int_eq(pthread_create(&writer, NULL, start_late, &h), 0);
    WAIT_FOR(atomic_load(&is_starting));
    atomic_store(&has_expired, false);
    int rc = tierce__locator_remove_instance(h.locator, "i", h.why);
    ck_assert_msg(rc == 0, "%s", h.why);
    pthread_join(writer, NULL);
    struct tierce__usage usage = harness_usage(&h);
    ck_assert_uint_eq(usage.serving_bytes + usage.writing_bytes + usage.deleting_bytes, 0);
    harness_close(&h);
}
END_TEST

static struct tierce__usage usage_of(struct harness *h, const char *instance)
{
    struct tierce__usage usage;
    ck_assert_int_eq(tierce__locator_instance_usage(h->locator, instance, &usage), 0);
    return usage;
}

/* Metrics of a group are counters: their values must not fall while this process leads. */
START_TEST(a_removed_instance_stays_in_its_groups_counters)
{
    struct harness h;
    harness_open(&h, &(struct harness_opts){.capacity = 3 * BLOCK_BYTES});
    harness_add_instance(&h, "j");
    harness_start(&h, chain, 8); /* five are rejected */
    h.now_us += 31000000;
    ck_assert_uint_eq(tierce__locator_expire(h.locator), 1);
    harness_get(&h, TIERCE__QUERY_BATCH, chain, 8, 0);
    struct tierce__usage before = harness_usage(&h);
    ck_assert_uint_eq(before.instances, 2);
    ck_assert_uint_eq(before.expired_sessions, 1);
    ck_assert_uint_eq(before.rejected_keys[TIERCE__REJECTED_BY_GROUP], 5);
    ck_assert_uint_eq(before.asked_keys, 8);
    ck_assert_msg(tierce__locator_remove_instance(h.locator, "i", h.why) == 0, "%s", h.why);
    struct tierce__usage after = harness_usage(&h);
    ck_assert_uint_eq(after.instances, 1);
    ck_assert_uint_eq(after.expired_sessions, 1);
    ck_assert_uint_eq(after.rejected_keys[TIERCE__REJECTED_BY_GROUP], 5);
    ck_assert_uint_eq(after.asked_keys, 8);
    ck_assert_uint_ge(after.cache_misses, before.cache_misses);
    ck_assert_uint_eq(usage_of(&h, "j").asked_keys, 0);
    /* A manager that stops leading starts to count anew. */
    tierce__locator_drop(h.locator);
    ck_assert_uint_eq(harness_usage(&h).asked_keys, 0);
    harness_close(&h);
}
END_TEST

CHECK_MAIN("locator_instances",
           .tests = {an_instance_leaves_nothing_behind,
                     a_write_that_began_before_its_instance_was_removed_leaves_nothing,
                     a_removed_instance_stays_in_its_groups_counters})
