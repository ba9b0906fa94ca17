/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_AUTOPILOT_H
#define TIERCE_MANAGER_AUTOPILOT_H

#include "manager/locate/locator.h"
#include "manager/pilot/ghosts.h"
#include "manager/pilot/pilot.h"

/*
 * The autopilot of a manager: shows the groups of the registry to pilot.h, carries out its
 * decisions, and keeps their log.
 *
 * A step changes two quotas and the log of the receiving group in one write of the registry
 * (tierce__registry_shift). So another leader, at any time, finds either both or neither, and the
 * sum of the quotas is the same. Another leader has no curves yet, and waits until its own are warm
 * (40 minutes). Pairs whose step was undone are left alone as before.
 *
 * Each look ends the steps of the log that are open although nobody judges them: those of an
 * earlier leader, of a group that takes no part any more, and those whose write seemed to fail.
 *
 * Advice is logged once, and again when it has changed.
 *
 * Time is that of the locator: setting the wall clock changes nothing.
 *
 * Threads: any; tierce__autopilot_look one at a time, and only without has_thread.
 */

struct tierce__autopilot;

enum tierce__autopilot_mode {
    TIERCE__AUTOPILOT_OFF,
    TIERCE__AUTOPILOT_ADVISE,
    TIERCE__AUTOPILOT_ACT,
};

struct tierce__autopilot_opts {
    size_t size;
    struct tierce__locator *locator;   /* [borrow until stop] */
    struct tierce__registry *registry; /* [borrow until stop] */
    struct tierce__ghosts *ghost;      /* [borrow until stop] */
    enum tierce__autopilot_mode mode;  /* of groups without one of their own */
    uint32_t settle_ms;                /* 0: 10 minutes */
    bool (*leads)(void *arg);
    void *arg;
    bool has_thread;
};

/* Errors, *out untouched: -ENOMEM, negative errno (the thread). */
TIERCE_MUSTUSE int tierce__autopilot_start(struct tierce__autopilot **out,
                                           const struct tierce__autopilot_opts *opts);
/* NULL is accepted. */
void tierce__autopilot_stop(struct tierce__autopilot *autopilot);

/* Looks at the groups, and carries out what is to be done. */
void tierce__autopilot_look(struct tierce__autopilot *autopilot);

/* The mode of a group: its own, or that of the manager. */
enum tierce__autopilot_mode tierce__autopilot_mode(const struct tierce__autopilot *autopilot,
                                                   const struct tierce__group *group);
const char *tierce__autopilot_mode_name(enum tierce__autopilot_mode mode);
const char *tierce__step_state_name(int32_t state);

struct tierce__autopilot_stats {
    uint64_t steps, kept, undone, stays, not_judged, advised;
    uint64_t failed; /* decisions that could not be written */
};
void tierce__autopilot_stats(const struct tierce__autopilot *autopilot,
                             struct tierce__autopilot_stats *out);

#endif
