/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_TUNER_H
#define TIERCE_MANAGER_TUNER_H

#include "manager/pilot/ghost_curve.h"
#include "manager/pilot/trial.h"

/*
 * The decisions of the autopilot about policies and times to live: which group gets another one,
 * and whether it stays. It changes nothing itself, as pilot.h, which decides about quotas.
 *
 * Once in six times `settle` a group's last requests are tried with each policy that the operator
 * allows, and with half and twice its time to live within the operator's bounds (trial.h). The best
 * one becomes a step if it brings at least one more hit in a hundred tokens, and twice the error of
 * the trial; and only if the sample is large enough for that (TRIAL_BLOCKS).
 *
 * One step at a time. After three times `settle`, the trial is repeated with both settings over the
 * time since the step. It says which rates there would have been without the step; their distance
 * from the measured rate before the step is added. If the group gained less than the trial promises
 * for this time, by more than the noise, the step is undone, and the group is left alone for six
 * times `settle`, twice as long each time.
 *
 * Threads: one at a time. Nothing blocks but the caller's functions.
 */

enum { TIERCE__TUNER_GROUPS_MAX = 64, TIERCE__TUNER_POLICIES_MAX = 4 };

struct tierce__tuner_setting {
    int32_t policy; /* enum tierce__reclaim_policy */
    int64_t ttl_s;  /* in effect; 0: none */
};

/* A group as it is now. All are [borrow]ed for the call. */
struct tierce__tuner_group {
    const char *name;
    uint32_t number;
    bool advises, acts; /* `acts` implies `advises`; neither: the group takes no part */
    bool is_busy;       /* its quota is in a step */
    struct tierce__tuner_setting now;
    int32_t policies[TIERCE__TUNER_POLICIES_MAX]; /* that are allowed */
    size_t policy_count;
    int64_t ttl_min_s, ttl_max_s; /* bounds; without both, the time to live stays */
};

struct tierce__tuner;

struct tierce__tuner_opts {
    size_t size;
    int64_t settle_us; /* 0: 10 minutes */
    int64_t epoch_us;  /* of the curves; 0: 5 minutes */
    /* Tries settings with the group's requests, of the last `seconds` (0: all that are known).
     * Errors: -EAGAIN (later), others. */
    int (*try_all)(void *arg, const struct tierce__tuner_group *group,
                   const struct tierce__tuner_setting *settings, size_t count, double seconds,
                   struct tierce__trial *out);
    /* The group's curve over its last `epochs` epochs and the current one. */
    bool (*recent)(void *arg, const struct tierce__tuner_group *group, uint32_t epochs,
                   struct tierce__ghost_shape *out);
    void *arg;
};

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__tuner_create(struct tierce__tuner **out,
                                        const struct tierce__tuner_opts *opts);
/* NULL is accepted. */
void tierce__tuner_destroy(struct tierce__tuner *tuner);

enum tierce__tuner_verdict {
    TIERCE__TUNER_NOTHING,
    TIERCE__TUNER_ADVISE, /* a step that the group's mode forbids */
    TIERCE__TUNER_STEP,
    TIERCE__TUNER_KEEP,
    TIERCE__TUNER_UNDO,
    TIERCE__TUNER_DROP, /* the open step cannot be judged: the setting or its bounds were changed,
                           the group is gone or takes no part any more, or there is no trial */
};

struct tierce__tuner_decision {
    enum tierce__tuner_verdict verdict;
    uint32_t number; /* of the group */
    struct tierce__tuner_setting from, to;
    double expected; /* hit tokens a second */
    double measured; /* KEEP and UNDO */
};

void tierce__tuner_look(struct tierce__tuner *tuner, int64_t now_us,
                        const struct tierce__tuner_group *groups, size_t count,
                        struct tierce__tuner_decision *out);

/* A decision was carried out, or could not be: then the end of a step is decided again. */
void tierce__tuner_done(struct tierce__tuner *tuner, int64_t now_us,
                        const struct tierce__tuner_decision *decision, bool carried_out);

/* The number of the group whose step is open; 0: none. */
uint32_t tierce__tuner_open(const struct tierce__tuner *tuner);

/* A step of this group was wrong at this time, which is not later than now. */
void tierce__tuner_recall(struct tierce__tuner *tuner, uint32_t number, int64_t undone_us);

/* Forgets the open step and all groups, as a manager does that stops leading. */
void tierce__tuner_forget(struct tierce__tuner *tuner);

#endif
