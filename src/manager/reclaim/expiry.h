/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_EXPIRY_H
#define TIERCE_MANAGER_EXPIRY_H

#include "base/threads/deadlines.h"
#include "base/map.h"
#include "manager/reclaim/reclaimer.h"

/*
 * Expiry of blocks (docs/inside/design/008-reclaim.md). A block expires at the time in its record,
 * or when it was not used for its group's time to live. The record alone decides whether a block
 * has expired. A calendar in memory lists which records to check at which time, so that expiry
 * needs no scan.
 *
 *     tierce__live_enter_expiry(live, key, &record);          // a block was stored
 *     tierce__live_expire_blocks(live, &how, &stats, &next);  // now and then, and when next is due
 */

/* ---- the calendar ---------------------------------------------------------------------------- */

struct tierce__calendar_entry {
    int64_t key;
    int64_t stored_us; /* of the record that the entry was made for; 0: any record */
};

/* A heap of seconds, each with its entries. A zeroed calendar is empty. Locking: by the owner. */
struct tierce__calendar {
    struct tierce__deadlines heap;
    struct tierce__map seconds;
    uint64_t entries;
};

/* Errors: -ENOMEM, nothing was entered. */
TIERCE_MUSTUSE int tierce__calendar_add(struct tierce__calendar *calendar, int64_t key,
                                        int64_t stored_us, int64_t due_us);
/* Takes out up to `most` entries of the first second, if it has begun. */
size_t tierce__calendar_take(struct tierce__calendar *calendar, int64_t now_us,
                             struct tierce__calendar_entry *out, size_t most);
/* The start of the first second; INT64_MAX: the calendar is empty. */
int64_t tierce__calendar_next(const struct tierce__calendar *calendar);
void tierce__calendar_clear(struct tierce__calendar *calendar);

/* ---- expiry ---------------------------------------------------------------------------------- */

struct tierce__live;

/* A group's time to live; 0: none. */
int64_t tierce__group_ttl_us(const struct tierce__group *group);

/* The time to live of the instance's group. It is longer by the store's delay if the store defers
 * writing uses. */
int64_t tierce__live_ttl_us(const struct tierce__live *live, const struct tierce__catalog *catalog);

/* The time at which a block expires unless it is used again; INT64_MAX: never. */
int64_t tierce__record_due_us(const struct tierce__record *record, int64_t ttl_us);

/* Adds a stored block to the calendar. If memory runs out, the calendar is rebuilt later. SESSIONS
 * held. */
void tierce__live_enter_expiry(struct tierce__live *live, int64_t key,
                               const struct tierce__record *record);

/* The first call records durably that the instance has blocks with expiry times of their own; the
 * second reads whether it has. Errors: those of the store. */
TIERCE_MUSTUSE int tierce__live_note_expiry(struct tierce__live *live);
TIERCE_MUSTUSE int tierce__live_find_expiry(struct tierce__live *live);

struct tierce__expiring {
    int64_t ttl_us;                           /* of the group: tierce__live_ttl_us */
    int64_t delay_us;                         /* until the bytes are deleted */
    tierce__reclaimer_submitted_fn submitted; /* or NULL */
    void *arg;
};

struct tierce__expired {
    uint64_t blocks, locations, bytes;
};

/*
 * Removes expired blocks, and builds a missing calendar, a bounded part in each call. Lowers
 * *next_us to the time of the next call that is needed (now: at once). Removals that fail in the
 * store are retried. Thread: one at a time for an instance.
 */
void tierce__live_expire_blocks(struct tierce__live *live, const struct tierce__expiring *how,
                                struct tierce__expired *expired, int64_t *next_us);

#endif
