/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_BACKUP_PAGE_H
#define TIERCE_MANAGER_BACKUP_PAGE_H

#include "manager/backup/backup_file.h"
#include "manager/locate/locator.h"
#include "manager/registry/registry.h"

/*
 * The content of a backup, in pages: the registry, and then the records of each instance, by
 * ascending number. The caller keeps the cursor, so a backup has no state here and stops nobody.
 *
 *     char cursor[TIERCE__BACKUP_CURSOR_BYTES] = "";
 *     do
 *         rc = tierce__backup_page_make(&page, &opts, cursor, &arena, why);
 *     while (rc == 0 && strcpy(cursor, page.cursor), cursor[0] != '\0');
 *
 * A cursor belongs to a leader: another one, or the same one after another election, rejects it. A
 * page is made only if this process leads when all of it was read. Instances that are added while
 * pages are read are left out. A block that is stored or removed meanwhile may be in a page or not.
 *
 * Threads: any. Blocks where the index does.
 */

#define TIERCE__BACKUP_CURSOR_BYTES 128u

struct tierce__backup_page_opts {
    struct tierce__registry *registry;
    struct tierce__locator *locator;
    uint64_t fence, started_us; /* they identify the leader */
};

struct tierce__backup_made {
    uint32_t kind; /* of the frame (enum tierce__backup_kind); END: it has no content */
    const void *content;
    size_t bytes;
    uint64_t records, unreadable;             /* in the page; left out of it */
    char cursor[TIERCE__BACKUP_CURSOR_BYTES]; /* of the next page; "": this is the last one */
};

/* Makes the page at a cursor ("": the first one) in the arena. Errors, `why` in words:
 * TIERCE_E_ARGUMENT (the cursor), -ESTALE (of another leader), TIERCE_E_LIMIT (the registry is
 * larger than a frame), those of the locator. */
TIERCE_MUSTUSE int tierce__backup_page_make(struct tierce__backup_made *out,
                                            const struct tierce__backup_page_opts *opts,
                                            const char *cursor, struct tierce__arena *arena,
                                            char why[TIERCE__WHY_BYTES]);

#endif
