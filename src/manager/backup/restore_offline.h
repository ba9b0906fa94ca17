/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_RESTORE_OFFLINE_H
#define TIERCE_MANAGER_RESTORE_OFFLINE_H

#include "manager/backup/restore.h"
#include "manager/manager_config.h"

/*
 * Restores a backup while no manager runs: `tierce manager restore`. The registry, the lease and
 * the indexes are those of the configuration. This process takes the lease, so that no manager
 * leads meanwhile, and serves nobody.
 *
 * Blocks until it is done; up to the length of a lease until another process has lost it. Errors,
 * `why` in words; then the registry is as before: TIERCE_E_CONFIG (a registry or an index in
 * memory), -EEXIST (the registry or an index is not empty), -EBUSY (a manager leads), those of
 * tierce__backup_open, of the registry and of the indexes. Thread: one.
 */
TIERCE_MUSTUSE int tierce__restore_offline(struct tierce__restored *out,
                                           const struct tierce__manager_config *config,
                                           const char *path, char why[256]);

#endif
