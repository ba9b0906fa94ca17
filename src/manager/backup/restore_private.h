/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_RESTORE_PRIVATE_H
#define TIERCE_MANAGER_RESTORE_PRIVATE_H

#include "base/map.h"
#include "manager/backup/restore.h"
#include "manager/locate/locator_private.h"

struct tierce__restore {
    struct tierce__restore_opts opts;
    struct tierce__backup *backup;
    struct tierce__registry *registry; /* between begin and end */
    struct tierce__locator *locator;
    struct tierce__restored counts;
};

/* ---- restore_slots.c ------------------------------------------------------------------------- */

/* The slots of an instance's files that records name, and the largest counter of its files. About
 * 64 bytes for each file with several slots. */
struct tierce__slot_claims {
    struct tierce__map files; /* by number */
    uint64_t counter;
};

void tierce__slot_claims_fini(struct tierce__slot_claims *claims);

/* Claims all slots of a location; 0: one of them is taken, or no slot of its file. Then none is
 * claimed. Files with one slot have nothing to claim. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__slot_claims_add(struct tierce__slot_claims *claims,
                                           const struct tierce__location *location);

/* Whether a location has slots of files with several slots. */
bool tierce__location_shares_files(const struct tierce__location *location);

/* Removes the notes of files from a space that no instance uses, and writes those of the claims.
 * The next file that is named has a number far above all claimed ones: by `random`, because clients
 * may still use files that were named after the backup. Errors: TIERCE_E_LIMIT (no such number is
 * left), of the store, -ENOMEM. */
TIERCE_MUSTUSE int tierce__slot_claims_write(const struct tierce__slot_claims *claims,
                                             struct tierce__meta_space *space, uint64_t random);

/* ---- restore_fill.c -------------------------------------------------------------------------- */

/* Fills the space of an instance (tierce__locator_fill_fn); `arg` is the restore. */
TIERCE_MUSTUSE int tierce__restore_fill(void *arg, struct tierce__meta_space *space,
                                        const struct tierce__instance *instance,
                                        const struct tierce__catalog *catalog,
                                        char why[TIERCE__WHY_BYTES]);

#endif
