/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_PILOT_H
#define TIERCE_MANAGER_PILOT_H

#include "manager/pilot/ghost_curve.h"

/*
 * The decisions of the autopilot: which quota moves from which group to which, and whether a step
 * that was made is kept. It changes nothing itself.
 *
 *     tierce__pilot_look(pilot, now_us, groups, count, &decision);
 *     ... carry it out ...
 *     tierce__pilot_done(pilot, now_us, &decision, carried_out);
 *
 * A step. For each quota and each pair of groups, the curves give what the receiver would gain and
 * what the giver would lose by one step, two steps, and so on. A move is worth it if the gain
 * exceeds the loss by more than the errors of both curves. The pair with the largest net gain for
 * each byte wins, and one step of it is made. Several steps are looked ahead because the curve of a
 * group can be flat up to the size of its working set. Hits are those of the window
 * (40 minutes), with a weight of 0.3, and those of a longer time, which fades by half in 24 times
 * `settle`.
 *
 * Bounds hold. A group without a lower bound keeps at least a twentieth of the mean quota. A wrong
 * step is not undone if that would cross a bound, which was set meanwhile.
 *
 * One step at a time. After `settle`, and when the receiver has filled its new bytes (or after
 * three times `settle`), the step is judged. The groups' hit rates are measured. A load that has
 * changed meanwhile changes them too, so the curves of the same time give the rates that there
 * would have been without the step; their distance from the measured rates before the step is
 * added. If the groups together gained less than the curves promise for this step, by more than the
 * noise, the step is undone, and the pair is left alone for six times `settle`, twice as long each
 * time.
 *
 * Threads: one at a time. Nothing blocks.
 */

/* Quotas of a group: [0] its own, the others by tierce__storage_quota_kind(i - 1). */
enum { TIERCE__PILOT_QUOTAS = 9 };

enum { TIERCE__PILOT_GROUPS_MAX = 64 };

/* A group as it is now. All are [borrow]ed for the call. */
struct tierce__pilot_group {
    const char *name;
    uint32_t number;    /* of the registry: not used again */
    bool advises, acts; /* `acts` implies `advises`; neither: the group takes no part */
    double quota[TIERCE__PILOT_QUOTAS]; /* 0: none */
    double least[TIERCE__PILOT_QUOTAS]; /* bounds; 0: none */
    double most[TIERCE__PILOT_QUOTAS];
    double used; /* bytes that it holds */
    /* Curves of the whole window and of the last tierce__pilot_epochs epochs; NULL: none. */
    const struct tierce__ghost_shape *window, *recent;
};

struct tierce__pilot;

struct tierce__pilot_opts {
    size_t size;
    double step_share; /* of the sum of a quota over all groups that take part; 0: 0.05 */
    int64_t settle_us; /* 0: 10 minutes */
    int64_t epoch_us;  /* of the curves; 0: 5 minutes */
    /* The bytes that a group may hold with these quotas. */
    double (*held)(void *arg, const struct tierce__pilot_group *group,
                   const double quota[TIERCE__PILOT_QUOTAS]);
    /* Whether a quota may move between two groups: they have a storage in common. NULL: always. */
    bool (*share)(void *arg, const struct tierce__pilot_group *one,
                  const struct tierce__pilot_group *other, uint32_t quota);
    void *arg;
};

/* Errors, *out untouched: -ENOMEM. */
TIERCE_MUSTUSE int tierce__pilot_create(struct tierce__pilot **out,
                                        const struct tierce__pilot_opts *opts);
/* NULL is accepted. */
void tierce__pilot_destroy(struct tierce__pilot *pilot);

/* The epochs of the curve `recent`. */
uint32_t tierce__pilot_epochs(const struct tierce__pilot *pilot);

enum tierce__pilot_verdict {
    TIERCE__PILOT_NOTHING,
    TIERCE__PILOT_ADVISE, /* a step that a group's mode forbids */
    TIERCE__PILOT_STEP,
    TIERCE__PILOT_KEEP, /* the open step was right */
    TIERCE__PILOT_UNDO, /* the open step was wrong: its bytes go back */
    TIERCE__PILOT_STAY, /* the open step was wrong, but a bound forbids to undo it */
    TIERCE__PILOT_DROP, /* the open step cannot be judged: a quota was changed, a group is gone or
                           takes no part any more */
};

struct tierce__pilot_decision {
    enum tierce__pilot_verdict verdict;
    uint32_t from, to; /* numbers of groups; of the step, also for UNDO */
    uint32_t quota;    /* index; a quota of a kind of storage takes the groups' own with it */
    double bytes;      /* whole */
    double expected;   /* hit tokens a second, of both groups together */
    double measured;   /* KEEP, UNDO and STAY */
};

void tierce__pilot_look(struct tierce__pilot *pilot, int64_t now_us,
                        const struct tierce__pilot_group *groups, size_t count,
                        struct tierce__pilot_decision *out);

/* A decision was carried out, or could not be: then the end of a step is decided again. */
void tierce__pilot_done(struct tierce__pilot *pilot, int64_t now_us,
                        const struct tierce__pilot_decision *decision, bool carried_out);

/* Whether a group's quota is in a step. */
bool tierce__pilot_has_open(const struct tierce__pilot *pilot, uint32_t number);

/* A step between these groups was wrong at this time, which is not later than now. */
void tierce__pilot_recall(struct tierce__pilot *pilot, uint32_t from, uint32_t to,
                          int64_t undone_us);

/* Forgets the open step and all pairs, as a manager does that stops leading. */
void tierce__pilot_forget(struct tierce__pilot *pilot);

#endif
