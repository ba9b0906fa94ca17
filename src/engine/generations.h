/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_GENERATIONS_H
#define TIERCE_ENGINE_GENERATIONS_H

#include "store/remote/connector.h"

/*
 * The generations that the chunks of a disk tier have: a small file in its folder
 * (docs/inside/format/generations.md). An engine that starts and hears of the generation that its
 * disk has already keeps its chunks.
 *
 *     if (!tierce__generations_has(folder, store, what)) {
 *         ...                                                   // clear the disk, durably
 *         rc = tierce__generations_set(folder, store, what);    // only then
 *     }
 *
 * Another registry may count the same numbers, so each is noted with what->registry, and none is
 * noted if that is not known. A file that is missing, damaged or another program's has no
 * generation. `store`: the number of
 * the store that told it (docs/inside/format/tombstones.md). Threads: one at a time for a folder.
 */

#define TIERCE__GENERATIONS_FILE "generations"
#define TIERCE__GENERATIONS_MAX  1024u /* the oldest are dropped */

bool tierce__generations_has(const char *folder, uint64_t store,
                             const struct tierce__invalidated *what);

/* After an error the file has no generation for the namespace and shard, or was not changed and
 * cannot be removed: then the error is -EEXIST. Others: negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__generations_set(const char *folder, uint64_t store,
                                           const struct tierce__invalidated *what);

#endif
