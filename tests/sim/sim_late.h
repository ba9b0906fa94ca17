/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_LATE_H
#define TIERCE_TESTS_SIM_LATE_H

#include "sim_model.h"
#include "sim_removals.h"

/* An old leader of a simulated manager that was stopped and goes on. */

static void late_start_write(void)
{
    int64_t keys[KEYS];
    struct tierce__started started = {0};
    size_t count = draw_keys(keys);
    int rc = tierce__locator_start_write(late,
                                         &(struct tierce__write_request){
                                             .instance_id = instance_ids[below(INSTANCES)],
                                             .keys = keys,
                                             .count = count,
                                             .timeout_s = below(20),
                                         },
                                         &h.arena, &started, h.why);
    REQUIRE(rc < 0 || started.count == 0, "an old leader has begun to write %zu blocks",
            started.count);
}

static void late_finish_write(void)
{
    if (told_count == 0)
        return;
    const struct told *t = &told[below((uint32_t)told_count)];
    struct tierce__mask mask = {.offset = (int64_t)below((uint32_t)t->count + 1)};
    int rc = tierce__locator_finish_write(late, instance_ids[t->instance], t->id, &mask, h.why);
    REQUIRE(rc < 0, "an old leader has finished a write");
}

static void late_report(void)
{
    report_some(late, false);
}

static void late_remove(void)
{
    int64_t keys[KEYS];
    struct tierce__mask none = {0};
    size_t count = draw_keys(keys);
    (void)!tierce__locator_remove(late, instance_ids[below(INSTANCES)], keys, count, &none, h.why);
}

/*
 * It continues as if it still led; the store rejects its writes. No storage can reject its
 * deletions; but by its clock, an old leader stops leading before the new leader may reuse free
 * slots.
 */
static void late_step(void)
{
    static void (*const calls[])(void) = {late_start_write, late_finish_write, late_remove,
                                          late_report};
    uint32_t what = below(6);
    late_deletes = late_deletes && h.now_us < late_from_us + REUSE_MS * 1000;
    if (late == NULL)
        return;
    if (what < 4)
        calls[what]();
    else if (what == 4)
        (void)tierce__locator_expire(late);
    else if (late_deletes)
        (void)tierce__deleter_step(late->deleter, 1 + below(4));
}

#endif
