/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_RESTORE_H
#define TIERCE_MANAGER_RESTORE_H

#include "manager/backup/backup_file.h"
#include "manager/locate/locator.h"

/*
 * Takes the registry and the records of a backup over into an empty registry. A manager that begins
 * to lead does so with two calls:
 *
 *     rc = tierce__restore_begin(restore, registry, locator, why);
 *     rc = tierce__restore_recover(restore, locator, fence, why); // fills each index as it is
 * opened
 *
 * Until the end of the last call the stored registry is empty, so after a crash the same backup can
 * be restored again: each index that was begun has a note (TIERCE__NOTE_RESTORE) with the backup's
 * id. An index with other records is rejected.
 *
 * Locations that may name other bytes by now are left out: those in storages that the registry does
 * not have, and those in slots of files with several slots, unless the clients verify what they
 * read. Clients verify if they are engines of Tierce, or if `keep_slots` says so.
 *
 * Threads: one at a time.
 */

struct tierce__restore;

struct tierce__restore_opts {
    size_t size;
    const char *path;
    bool keep_slots;
    bool keeps_id;   /* tierce__registry_stage */
    bool is_lasting; /* this process ends afterwards: indexes in memory are rejected */
};

/* Reads and verifies the backup. Errors, `why` in words: as tierce__backup_open. */
TIERCE_MUSTUSE int tierce__restore_open(struct tierce__restore **out,
                                        const struct tierce__restore_opts *opts, char why[256]);
void tierce__restore_close(struct tierce__restore *restore);

/* Publishes the registry of the backup, and has the locator fill each index that it opens next.
 * Both are borrowed until recover or abandon. If the registry is not empty, it logs so and does
 * nothing; with is_lasting that is -EEXIST. Errors, `why` in words: as tierce__registry_stage. */
TIERCE_MUSTUSE int tierce__restore_begin(struct tierce__restore *restore,
                                         struct tierce__registry *registry,
                                         struct tierce__locator *locator, char why[256]);
/* tierce__locator_recover; then stores the registry if begin published one. `restore` may be NULL.
 * After an error nothing was restored. */
TIERCE_MUSTUSE int tierce__restore_recover(struct tierce__restore *restore,
                                           struct tierce__locator *locator, uint64_t fence,
                                           char why[256]);

/* After a begin that is not followed by recover: the next begin starts over, and nothing was
 * restored. NULL, and a restore that has not begun, are accepted. */
void tierce__restore_abandon(struct tierce__restore *restore);

struct tierce__restored {
    uint64_t storages, groups, instances;
    uint64_t blocks;      /* records that were taken over */
    uint64_t blocks_left; /* records without any location to take over */
    uint64_t slots_left;  /* locations left out: in slots, with clients that may not verify */
    uint64_t others_left; /* locations left out: in storages that the registry does not have, or in
                             a slot twice */
    int64_t made_us;      /* when the backup was made */
    bool has_other_id;    /* the storages have the mark of the backup's registry, not of this one */
};
void tierce__restore_counts(const struct tierce__restore *restore, struct tierce__restored *out);

#endif
