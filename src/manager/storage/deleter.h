/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_DELETER_H
#define TIERCE_MANAGER_DELETER_H

#include "base/arena.h"
#include "base/list.h"
#include "base/threads/deadlines.h"
#include "base/threads/lock.h"
#include "base/map.h"
#include "manager/meta/meta_store.h"

/*
 * Deletes locations that have left the index, in batches. A batch is stored as a durable note from
 * the moment its records are removed until its files are deleted. When a batch is due, the deleter
 * deletes its files, frees its slots, drops its note and returns its bytes to the quotas. Deletions
 * that fail are retried with growing delays. A batch of several storages of which one fails is
 * split into one for each storage, so that the others do not wait for it. The second deletion of a
 * batch (below) is not split: it is repeated as a whole.
 *
 * Threads: any. The deleter's own threads process batches when they are due; a deleter without
 * threads processes them in tierce__deleter_step.
 */

struct tierce__locator;
struct tierce__live;
struct tierce__deleter;

struct tierce__deletion_item {
    int64_t key;
    struct tierce__location location;
};

struct tierce__deletion {
    struct tierce__list node;         /* of all batches of the deleter: queued or being processed */
    struct tierce__deadline deadline; /* in the queue, at due_us or at the time of the next retry */
    int64_t due_us;
    struct tierce__live *live; /* held */
    uint64_t note;
    int64_t reusable_us; /* its slots may be reused from then on */
    int64_t sweep_us; /* time of a second deletion, because a late writer may have created the files
                         again; 0: none */
    bool is_lost;     /* the storage has lost the bytes: it is not asked to delete them. Not in the
                         note: another leader asks it, and it has no such file */
    bool is_counted;  /* among those of its storages (tierce__deleter_left_in) */
    bool is_sweep;    /* this is the second deletion: its bytes were returned already */
    bool is_doubtful; /* it is unknown whether the note was written; until that is known the bytes
                         count as serving */
    bool is_end_doubtful; /* it is unknown whether the end was written; until that is known the
                             slots are not reused */
    bool is_split;        /* `split` has replaced it, in the store, too */
    uint32_t tries;
    /* One batch for each storage; until it is known whether the split was written, or it is. */
    struct tierce__deletion **split;
    size_t split_count;
    size_t count, room;
    struct tierce__deletion_item *items;
    struct tierce__arena arena; /* all of it, and this struct */
};

/* The keys of an instance that are being deleted, for lookups: a location of the key, or NULL. The
 * instance's lock is held. */
const struct tierce__location *tierce__deleting_find(const struct tierce__map *deleting,
                                                     int64_t key);
/* Calls `each` for all these locations. A location is missing if memory ran out. */
void tierce__deleting_each(const struct tierce__map *deleting,
                           void (*each)(void *arg, const struct tierce__location *location),
                           void *arg);
void tierce__deleting_clear(struct tierce__map *deleting);

TIERCE_MUSTUSE int tierce__deleter_create(struct tierce__deleter **out,
                                          struct tierce__locator *locator, uint32_t threads);
void tierce__deleter_destroy(struct tierce__deleter *deleter);

/* An empty batch of at most `room` items for an instance, which it holds. NULL: no memory. */
struct tierce__deletion *tierce__deletion_create(struct tierce__live *live, size_t room);
void tierce__deletion_destroy(struct tierce__deletion *deletion);

/* Adds a copy of a location. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__deletion_add(struct tierce__deletion *deletion, int64_t key,
                                        const struct tierce__location *location);

/* Write the batch as a note in its arena, and read it back. */
TIERCE_MUSTUSE int tierce__deletion_write(struct tierce__deletion *deletion,
                                          struct tierce__meta_note *note);
TIERCE_MUSTUSE int tierce__deletion_read(struct tierce__deletion **out, struct tierce__live *live,
                                         const struct tierce__meta_note *note);

/* Queues a batch whose note was written; it is due at due_us. [transfer] */
void tierce__deleter_submit(struct tierce__deleter *deleter, struct tierce__deletion *deletion);

/* Processes batches that are due; returns the number of finished batches. */
size_t tierce__deleter_step(struct tierce__deleter *deleter, size_t batches_max);

/* Makes all queued batches of an instance due at once, because the instance is being removed and
 * its blocks are no longer returned to clients. Call it until the queue has none of its batches:
 * one call may miss a batch that moves within the queue. */
void tierce__deleter_hasten(struct tierce__deleter *deleter, const struct tierce__live *live);

/* Drops the queued batches of an instance whose memory is being released. If its space is being
 * deleted, they are second deletions (tierce__live_empty). */
void tierce__deleter_forget(struct tierce__deleter *deleter, const struct tierce__live *live);

/* Returns whether an instance has only `others` references beside those of its queued batches. */
bool tierce__deleter_has_rest(struct tierce__deleter *deleter, const struct tierce__live *live,
                              uint32_t others);

/* Drops all queued batches from memory, and blocks, without a time limit, until no batch is queued
 * or being processed. The notes of dropped batches stay in the store. */
void tierce__deleter_drop(struct tierce__deleter *deleter);

/* The locations of a storage whose deletion is not confirmed, second deletions included, also of
 * batches that were left to the next leader because memory ran out; and how long at most until the
 * last of them is tried, 0: all are due. The cost does not depend on their number. */
struct tierce__deleter_left {
    uint64_t locations;
    int64_t due_in_us;
};
void tierce__deleter_left_in(struct tierce__deleter *deleter, uint16_t storage,
                             struct tierce__deleter_left *out);

struct tierce__deleter_stats {
    uint64_t waiting, executing;           /* batches */
    uint64_t done_locations, failed_tries; /* since the start */
    uint64_t orphaned_locations;           /* whose bytes cannot be deleted from here */
};
void tierce__deleter_stats(struct tierce__deleter *deleter, struct tierce__deleter_stats *out);

#endif
