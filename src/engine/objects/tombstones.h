/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_TOMBSTONES_H
#define TIERCE_ENGINE_TOMBSTONES_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/vfs/vfs.h"
#include "core/key/key.h"
#include "core/key/namespaces.h"

/*
 * Tombstones: names of values that a remote store could not delete when they were replaced or
 * removed, because it was out of service or rejected the deletion. The store may still hold the old
 * value, so it is not asked for such a name until it has deleted it.
 *
 *     rc = tierce__tombstones_add(tombs, store, &key);          // durable now: the value may go
 *     if (tierce__tombstones_has(tombs, store, &key)) ...       // do not ask the store
 *     ... the store is back and has deleted the value ...
 *     tierce__tombstones_lift(tombs, store, &key);
 *
 * They are kept in a file of the store folder (docs/inside/format/tombstones.md) and survive a
 * crash. A lifted tombstone can reappear after a crash; the store is then asked again to delete the
 * name.
 *
 * A store is identified by a number that stays the same across restarts: a hash of its URL without
 * credentials, with only those parameters that name a place (prefix, db, endpoint). Tombstones of a
 * store that is not configured any more are kept.
 *
 * Thread: any; one lock of class TOMBSTONES inside. Only add and flush write to the device, add for
 * several threads at once. The functions accept NULL, for an engine without a store folder: nothing
 * has a tombstone, and none can be added.
 */

struct tierce__tombstones;

#define TIERCE__TOMBSTONES_MAX  262144u /* 26 MiB of memory */
#define TIERCE__TOMBSTONES_FILE "tombstones"

/* There are TIERCE__TOMBSTONES_MAX tombstones, or more (a file may hold more). No device and no
 * store returns this error. */
#define TIERCE__TOMBSTONES_FULL (-EXFULL)

/* A store that never deletes has a value of the name, and the engine has no folder for a tombstone.
 * No device and no store returns this error. */
#define TIERCE__VALUE_IS_KEPT (-ENOTUNIQ)

/*
 * Reads the file; makes one with the first tombstone. [transfer] vfs, whose folder was entered, in
 * any case. [borrow] namespaces until close. Errors: a negative errno of the device; -ENOMEM;
 * TIERCE_E_CHECKSUM (a page that was synced is damaged: which old values must not be served is no
 * longer known); TIERCE_E_FORMAT (a file of somebody else); TIERCE_E_VERSION; TIERCE_E_LIMIT (too
 * long). More tombstones than TIERCE__TOMBSTONES_MAX are no error: a power cut can leave some more.
 */
TIERCE_MUSTUSE int tierce__tombstones_open(struct tierce__tombstones **out, struct tierce__vfs *vfs,
                                           struct tierce__namespaces *namespaces);
/* Flushes what was lifted. */
void tierce__tombstones_close(struct tierce__tombstones *tombs);

/* Blocks until the tombstone is on the device. Errors, without a new tombstone:
 * TIERCE__TOMBSTONES_FULL (logged once, until there is room again), TIERCE_E_UNSUPPORTED (NULL),
 * TIERCE_E_CANCELLED (another thread lifted it, or could not write it, meanwhile), -ENOMEM, a
 * negative errno. */
TIERCE_MUSTUSE int tierce__tombstones_add(struct tierce__tombstones *tombs, uint64_t store,
                                          const struct tierce__key *key);

/* Does not block. */
bool tierce__tombstones_has(struct tierce__tombstones *tombs, uint64_t store,
                            const struct tierce__key *key);

/* The store does not hold an old value any more. A tombstone that does not exist is accepted. Does
 * not block.
 */
void tierce__tombstones_lift(struct tierce__tombstones *tombs, uint64_t store,
                             const struct tierce__key *key);

/* Up to `room` keys of a store, those that were added or deferred longest ago. */
size_t tierce__tombstones_list(struct tierce__tombstones *tombs, uint64_t store,
                               struct tierce__key *keys, size_t room);
/* Moves it to the end of the list, because the store could not delete it now. */
void tierce__tombstones_defer(struct tierce__tombstones *tombs, uint64_t store,
                              const struct tierce__key *key);

uint64_t tierce__tombstones_count(struct tierce__tombstones *tombs);

/* Empties the file once all tombstones are lifted, and rewrites a file in which most tombstones are
 * lifted. Blocks. A failure changes nothing and is logged, as is room after the limit was reached.
 * */
void tierce__tombstones_flush(struct tierce__tombstones *tombs);

#endif
