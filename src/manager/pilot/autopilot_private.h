/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_AUTOPILOT_PRIVATE_H
#define TIERCE_MANAGER_AUTOPILOT_PRIVATE_H

#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "manager/pilot/autopilot.h"
#include "manager/pilot/tuner.h"

#include <stdatomic.h>

/*
 * The parts of the autopilot.
 *
 *     autopilot.c         quotas, the log, leading, the thread
 *     autopilot_tune.c    policies and times to live
 */

enum { TIERCE__AUTOPILOT_MAGIC = 0x6f747561 };

struct tierce__autopilot {
    uint32_t magic;
    struct tierce__autopilot_opts opts;
    struct tierce__pilot *pilot;
    struct tierce__tuner *tuner;
    bool was_leading;
    int64_t last_id;               /* of all steps of the log */
    int64_t open_id;               /* of the step of a quota that is not judged yet; 0: none */
    int64_t tuned_id;              /* the same of a policy or time to live */
    uint64_t trial_ns, process_ns; /* of the last trial: its cost, and the process' time then */
    /* The input of pilot and tuner. */
    const struct tierce__catalog *catalog;
    struct tierce__pilot_group *views;
    struct tierce__tuner_group *tuned; /* in the order of `views` */
    const struct tierce__group **groups;
    struct tierce__ghost_shape *shapes; /* two for each view */
    size_t count;
    _Atomic uint64_t steps, kept, undone, stays, not_judged, advised, failed; /* relaxed */

    struct tierce__lock lock; /* AUTOPILOT */
    struct tierce__cond wake;
    bool is_ending, has_thread;
    pthread_t thread;
};

/* ---- autopilot.c ----------------------------------------------------------------------------- */

static inline void tierce__autopilot_count(_Atomic uint64_t *count)
{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}

/* A group that takes part, by its number; or NULL. */
const struct tierce__group *tierce__autopilot_group(const struct tierce__autopilot *a,
                                                    uint32_t number);
/* A step of a group's log; NULL: there is none, or no group. */
const struct tierce__group_step *tierce__autopilot_step(const struct tierce__group *to, int64_t id);
/* Whether the group's log has this advice already, as it is now or a short time ago. */
bool tierce__autopilot_is_said(const struct tierce__autopilot *a, const struct tierce__group *to,
                               const struct tierce__group_step *step);
/* Counts a step that has ended. */
void tierce__autopilot_count_end(struct tierce__autopilot *a, int32_t state);
/* Logs a decision that could not be written. */
void tierce__autopilot_fail(struct tierce__autopilot *a, const struct tierce__group_step *step,
                            int rc, const char *why);

/* ---- autopilot_tune.c ------------------------------------------------------------------------ */

/* A group for the tuner; its requests are kept from now on, if they are needed. */
void tierce__autopilot_show_tuned(struct tierce__autopilot *a, size_t at,
                                  const struct tierce__group *group);

/* Asks the tuner, and carries out its decision. Returns whether something was changed, so that
 * there may be more to do. */
bool tierce__autopilot_tune(struct tierce__autopilot *a, int64_t now_us);

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__autopilot_open_tuner(struct tierce__autopilot *a);

#endif
