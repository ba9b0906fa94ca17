/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_DELETER_H
#define TIERCE_MANAGER_DELETER_H

#include "base/arena.h"
#include "base/lock.h"
#include "base/deadlines.h"
#include "manager/meta_store.h"

/*
 * What is being deleted: batches of locations that no index names any more. A batch is a durable
 * note from the moment its records are gone until its files are; when its time has come, its files
 * are deleted, its slots given back, its note dropped and its bytes given back to the quotas. What
 * a storage cannot delete now is tried again later and later.
 *
 * Threads: any. With threads, batches are done as they become due; without, by
 * tierce__deleter_step.
 */

struct tierce__locator;
struct tierce__live;
struct tierce__deleter;

struct tierce__deletion_item {
    int64_t key;
    struct tierce__location location;
};

struct tierce__deletion {
    struct tierce__deadline deadline; /* in the queue, at due_us or when it is tried again */
    int64_t due_us;
    struct tierce__live *live; /* held */
    uint64_t note;
    int64_t reusable_us;  /* its slots are used again from then on */
    int64_t sweep_us;     /* a writer that was late may have made the files again: they are deleted
                             once more then; 0: not */
    bool is_sweep;        /* that second time: its bytes are given back already */
    bool is_doubtful;     /* nobody knows whether it was written: its bytes serve until its note is
                             found, or it never was */
    bool is_end_doubtful; /* nor whether its end was: its slots are on their way until that is known
                           */
    uint32_t tries;
    size_t count, room;
    struct tierce__deletion_item *items;
    struct tierce__arena arena; /* all of it, and this struct */
};

/* The keys of an instance that are being deleted, for those who look. */
struct tierce__deleting {
    struct tierce__deleting_key **buckets;
    size_t bucket_count, count;
};

/* A location of the key that is being deleted, or NULL. The instance's lock is held. */
const struct tierce__location *tierce__deleting_find(const struct tierce__deleting *deleting,
                                                     int64_t key);
void tierce__deleting_clear(struct tierce__deleting *deleting);

TIERCE_MUSTUSE int tierce__deleter_create(struct tierce__deleter **out,
                                          struct tierce__locator *locator, uint32_t threads);
void tierce__deleter_destroy(struct tierce__deleter *deleter);

/* An empty batch of at most `room` items for an instance, which it holds. NULL: no memory. */
struct tierce__deletion *tierce__deletion_create(struct tierce__live *live, size_t room);
void tierce__deletion_destroy(struct tierce__deletion *deletion);

/* Adds a copy of a location. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__deletion_add(struct tierce__deletion *deletion, int64_t key,
                                        const struct tierce__location *location);

/* The durable form, a note, in the batch's arena; and back. */
TIERCE_MUSTUSE int tierce__deletion_write(struct tierce__deletion *deletion,
                                          struct tierce__meta_note *note);
TIERCE_MUSTUSE int tierce__deletion_read(struct tierce__deletion **out, struct tierce__live *live,
                                         const struct tierce__meta_note *note);

/* Takes the batch, whose note is written; due at due_us. [transfer] */
void tierce__deleter_submit(struct tierce__deleter *deleter, struct tierce__deletion *deletion);

/* Does what is due; returns how many batches were finished. */
size_t tierce__deleter_step(struct tierce__deleter *deleter, size_t batches_max);

/* What waits for an instance that goes is due: nobody is told of its blocks any more. To be
 * repeated until nothing waits: one may miss what moves in the queue. */
void tierce__deleter_hasten(struct tierce__deleter *deleter, const struct tierce__live *live);

/* Forgets what waits for an instance whose space goes: second sweeps are not made. */
void tierce__deleter_forget(struct tierce__deleter *deleter, const struct tierce__live *live);

/* Waits until no batch is being worked at, and forgets all of them: their notes stay. */
void tierce__deleter_drop(struct tierce__deleter *deleter);

struct tierce__deleter_stats {
    uint64_t waiting, executing;           /* batches */
    uint64_t done_locations, failed_tries; /* since the start */
    uint64_t orphaned_locations;           /* whose bytes cannot be deleted from here */
};
void tierce__deleter_stats(struct tierce__deleter *deleter, struct tierce__deleter_stats *out);

#endif
