/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_DELETER_PRIVATE_H
#define TIERCE_MANAGER_DELETER_PRIVATE_H

#include "manager/storage/deleter.h"

/* Does a batch that is due; *orphans: locations whose bytes cannot be deleted from here. Errors: of
 * the store and the storages; -ENOENT: there is no such deletion. Both must be tried again. If the
 * batch was split, the caller takes the batches of `split` over, and this one is done. */
TIERCE_MUSTUSE int tierce__deletion_do(struct tierce__deletion *deletion, uint64_t *orphans);

/* Destroys the batches into which one was to be split. */
void tierce__deletion_drop_split(struct tierce__deletion *deletion);

/* Adds the keys of a batch to those that are being deleted, and removes them. The lock of the
 * instance is held. Only for lookups: if memory runs out, the key is not found here; nothing else
 * is affected. */
void tierce__deleting_note(struct tierce__map *deleting, struct tierce__deletion *deletion);
void tierce__deleting_unnote(struct tierce__map *deleting, struct tierce__deletion *deletion);

#endif
