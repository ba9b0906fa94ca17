/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_REGISTRY_PRIVATE_H
#define TIERCE_MANAGER_REGISTRY_PRIVATE_H

#include "manager/registry/catalog.h"

/* Changes a catalog that no other thread sees yet. A positive value: there is nothing to do, and it
 * is returned. */
typedef int tierce__registry_edit_fn(struct tierce__catalog *catalog, const void *arg,
                                     char why[256]);

/* Applies `edit` to a copy of the catalog, makes it durable and publishes it. Errors: those of
 * `edit` and as tierce__registry_add_storage. */
TIERCE_MUSTUSE int tierce__registry_change(struct tierce__registry *registry,
                                           tierce__registry_edit_fn *edit, const void *arg,
                                           char why[256]);

/* The same, but neither this change nor a later one is saved until tierce__registry_keep. */
TIERCE_MUSTUSE int tierce__registry_change_unsaved(struct tierce__registry *registry,
                                                   tierce__registry_edit_fn *edit, const void *arg,
                                                   char why[256]);

/* Gives the registry another id, by chance. Errors: -EIO, -ENOMEM. */
TIERCE_MUSTUSE int tierce__registry_give_id(struct tierce__catalog *catalog, char why[256]);

/* Keeps what clients do not set. `old`: NULL for a new storage. */
void tierce__storage_keep_state(struct tierce__storage *storage, const struct tierce__storage *old);

/* An instance is removed: none that is registered or invalidated later gets a generation that it
 * had. An instance that was never invalidated leaves nothing. */
void tierce__registry_keep_generation(struct tierce__catalog *catalog,
                                      const struct tierce__instance *gone);

/* Whether the name of a storage is not that of a pool, and the name of a part's pool not that of a
 * storage; groups name both as candidates. -EEXIST. */
TIERCE_MUSTUSE int tierce__registry_check_pool(const struct tierce__catalog *catalog,
                                               const struct tierce__storage *storage,
                                               char why[256]);

/* Keeps what a client does not set: fields of `sent`, as it sent them, that are 0 or "", and the
 * steps of the autopilot. `group` replaces `old`, whose steps are moved. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__group_keep(struct tierce__group *group, const struct tierce__group *sent,
                                      struct tierce__group *old);

#endif
