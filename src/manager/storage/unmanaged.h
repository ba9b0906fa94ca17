/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_UNMANAGED_H
#define TIERCE_MANAGER_UNMANAGED_H

#include "manager/storage/storages.h"

/*
 * Storages that are registered but that this manager has no driver for
 * (tierce__storages_is_managed), so it neither probes them nor deletes in them. Blocks reclaimed
 * there leave the index and the quotas, but their bytes stay until the storage's owner deletes
 * them. A limit on such a storage therefore does not bound the bytes in it; the manager warns the
 * operator who sets one.
 *
 * Threads: any.
 */

#define TIERCE__WARNING_BYTES 384u

/* "disabled", "unmanaged", "well" or "unwell". */
const char *tierce__storage_status(const struct tierce__storage_state *state);

/* The warning about settings of a storage, or limits of a group, that have no effect; "" if there
 * is none. */
void tierce__storage_warning(char out[TIERCE__WARNING_BYTES],
                             const struct tierce__storages *storages,
                             const struct tierce__storage *storage);
void tierce__group_warning(char out[TIERCE__WARNING_BYTES], const struct tierce__storages *storages,
                           const struct tierce__catalog *catalog,
                           const struct tierce__group *group);

/* Logs the warnings of all storages and groups. Called when a manager becomes the leader. */
void tierce__unmanaged_log(const struct tierce__storages *storages,
                           const struct tierce__catalog *catalog);

#endif
