/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_PLACES_H
#define TIERCE_MANAGER_PLACES_H

#include "manager/meta_store.h"
#include "manager/model.h"

/*
 * Where a block lies in a storage: files that the manager names by number, cut into slots of one
 * size. A file holds key_count_per_file blocks of one spec (storages without files: 1). A slot that
 * was given back is taken again, before a new file is begun; a file is deleted when its last slot
 * was given back.
 *
 * A slot that was given back may still be read by somebody who was told of it, or written by
 * somebody who is late; so it is used again only from a time on that the giver says. A file that is
 * empty needs no such time: its number is never used again.
 *
 * Numbers of files are never used twice: they are drawn from ranges that were reserved durably.
 * What is used of a file with several slots is a note (NOTE_FILE), written in the batch that takes
 * or gives; a file of one slot needs none.
 *
 * One object an instance. Threads: any.
 */

struct tierce__places;

/* [borrow] the space until close. Slots that are free already are used again from reusable_us (wall
 * clock) on. Files with room are looked for in the background of the first
 * takes, not before. Errors: of the store, -ENOMEM. */
TIERCE_MUSTUSE int tierce__places_open(struct tierce__places **out,
                                       struct tierce__meta_space *space,
                                       const struct tierce__instance *instance,
                                       int64_t reusable_us);
void tierce__places_close(struct tierce__places *places);

/*
 * Takes `count` slots of `bytes` each for a spec in a storage, in as few files as there can be;
 * consecutive ones lie beside each other. `places[i]` has no uri. Adds the notes that make it
 * durable to `batch` (its notes array has room for notes_max; memory from the arena); if that batch
 * is not written, they are given back by _untake.
 * Errors: -ENOMEM, of the store, TIERCE_E_LIMIT (notes_max).
 */
TIERCE_MUSTUSE int tierce__places_take(struct tierce__places *places,
                                       const struct tierce__storage *storage, uint16_t spec,
                                       uint64_t bytes, size_t count, int64_t now_us,
                                       struct tierce__spec_place *taken,
                                       struct tierce__meta_note *notes, size_t *note_count,
                                       size_t notes_max, struct tierce__arena *arena);
void tierce__places_untake(struct tierce__places *places, const struct tierce__storage *storage,
                           const struct tierce__spec_place *taken, size_t count);

/*
 * Gives slots back whose blocks are deleted; they are used again from reusable_us on, and not
 * before tierce__places_given says that the notes are written. is_empty[i]: its file has no block
 * left, and is to be removed from the storage before the notes are written; where several of
 * `given` lie in it, only the last of them says so. A slot that is free already stays so.
 */
TIERCE_MUSTUSE int tierce__places_give(struct tierce__places *places, uint16_t storage,
                                       const struct tierce__spec_place *given, size_t count,
                                       int64_t reusable_us, bool *is_empty,
                                       struct tierce__meta_note *notes, size_t *note_count,
                                       size_t notes_max, struct tierce__arena *arena);

/* The notes that _give made are written. */
void tierce__places_given(struct tierce__places *places, uint16_t storage,
                          const struct tierce__spec_place *given, size_t count);

/* The URI of a place, NUL-terminated, in the arena: "file://nfs_01/tmp/nfs/inst/tp0/00…1f?size=…",
 * with blkid where files have several slots. A place with a text is that text. NULL: no memory. */
char *tierce__place_uri(const struct tierce__storage *storage,
                        const struct tierce__instance *instance,
                        const struct tierce__spec_place *place, struct tierce__arena *arena);

/* The path of its file below the storage, as storages are asked to delete it: what is between the
 * storage's name and '?'. NULL: no memory. */
char *tierce__place_path(const struct tierce__storage *storage,
                         const struct tierce__instance *instance,
                         const struct tierce__spec_place *place, struct tierce__arena *arena);

#endif
