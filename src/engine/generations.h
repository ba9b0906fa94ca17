/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_GENERATIONS_H
#define TIERCE_ENGINE_GENERATIONS_H

#include "store/remote/connector.h"

/*
 * The generations that the chunks of a disk tier have: a small file in its folder
 * (docs/inside/format/generations.md). An engine that starts and receives the generation that its
 * disk has already keeps its chunks.
 *
 *     if (!tierce__generations_has(folder, store, what)) {
 *         ...                                                   // clear the disk, durably
 *         rc = tierce__generations_set(folder, store, what);    // only then
 *     }
 *
 * A first generation of 1 clears nothing, unless the file as it was when the engine started may
 * have another one (`may_differ`).
 *
 * Another registry may count the same numbers, so each is noted with what->registry, and none is
 * noted if that is not known. A file that is missing, damaged or another program's has no
 * generation. `store`: the number of the store that reported it (docs/inside/format/tombstones.md).
 * Threads: one at a time for a folder.
 */

#define TIERCE__GENERATIONS_FILE "generations"
#define TIERCE__GENERATIONS_MAX  1024u /* the oldest are dropped */

bool tierce__generations_has(const char *folder, uint64_t store,
                             const struct tierce__invalidated *what);

/* The file as it is now. Errors: -ENOMEM; a file that cannot be read is no error. */
struct tierce__generations;
TIERCE_MUSTUSE int tierce__generations_load(struct tierce__generations **out, const char *folder);
void tierce__generations_free(struct tierce__generations *generations); /* NULL is accepted */
/* Whether the chunks may have another generation: the file names one, or cannot be read, or has
 * dropped lines. Never blocks. */
bool tierce__generations_may_differ(struct tierce__generations *generations, uint64_t store,
                                    const struct tierce__invalidated *what);

/* After an error the file counts as damaged, so that it keeps no chunks of any namespace; or it is
 * another program's; or it was not changed and cannot be removed: then the error is -EEXIST.
 * Others: negative errno, -ENOMEM, TIERCE_E_FORMAT. */
TIERCE_MUSTUSE int tierce__generations_set(const char *folder, uint64_t store,
                                           const struct tierce__invalidated *what);

#endif
