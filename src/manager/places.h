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
 * The number says how many slots its file has. Which slots of a file are used is a note (NOTE_FILE,
 * docs/format/places.md) while some are and some are not; a full file, and one of one slot, needs
 * none.
 *
 * The notes of a take or give go into the batch that makes it durable. Until that is decided its
 * files are busy: other takes pass them over, and a give for another batch that needs one waits a
 * while for it. (The notes of two batches about one file have to reach the store in order.)
 *
 * One object an instance. Threads: any.
 */

struct tierce__places;

#define TIERCE__PLACES_SLOTS_MAX 65536u /* key_count_per_file */

/* [borrow] the space until close, the instance for the call. Slots that are free already are used
 * again from reusable_us (wall clock) on. An empty space begins at a number that `random` says:
 * clients of an instance that had the same name, or whose index is lost, may still write to its
 * files. Nothing is read before the first take or give, which may fail with what the store says,
 * TIERCE_E_REFUSED among it.
 * Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__places_open(struct tierce__places **out,
                                       struct tierce__meta_space *space,
                                       const struct tierce__instance *instance, int64_t reusable_us,
                                       uint64_t random);
void tierce__places_close(struct tierce__places *places);

/* Slots of a file. */
uint32_t tierce__place_slots(uint64_t file);

/* Of a take or a give of `count` places: the notes it adds at most. */
size_t tierce__places_notes_max(size_t count);

/* Where the notes of a take or a give are added: notes[*count .. max), values in the arena. */
struct tierce__place_notes {
    struct tierce__meta_note *notes;
    size_t *count;
    size_t max;
    struct tierce__arena *arena;
};

/* `count` slots of `bytes` each for a spec in a storage. */
struct tierce__place_wish {
    const struct tierce__storage *storage;
    uint16_t spec;
    uint64_t bytes;
    size_t count;
    int64_t now_us;
};

/*
 * Takes what is wished for: in files with room first, then in new ones; places that follow each
 * other get slots that do. taken[i] has no uri. Errors, nothing taken: -ENOMEM, TIERCE_E_LIMIT (of
 * notes), of the store. May wait for it, where new numbers are to be reserved: rarely.
 */
TIERCE_MUSTUSE int tierce__places_take(struct tierce__places *places,
                                       const struct tierce__place_wish *wish,
                                       struct tierce__spec_place *taken,
                                       const struct tierce__place_notes *notes);

/* The notes of the files that a take has not ended with, once more; *note_count goes on. Errors:
 * -ENOMEM, TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__places_note(struct tierce__places *places,
                                       const struct tierce__spec_place *taken, size_t count,
                                       struct tierce__meta_note *notes, size_t *note_count,
                                       size_t notes_max, struct tierce__arena *arena);

/* The batch with the notes of a take was written, or nobody knows: the slots stay used, and from
 * now on others may take the rest of their files. Each take ends with this or with _untake, before
 * its places are told to anybody. */
void tierce__places_taken(struct tierce__places *places, const struct tierce__spec_place *taken,
                          size_t count);

/* That batch was certainly not written: the slots are free again. */
void tierce__places_untake(struct tierce__places *places, const struct tierce__storage *storage,
                           const struct tierce__spec_place *taken, size_t count);

/* Places of one storage that come back. */
struct tierce__place_return {
    uint16_t storage;
    const struct tierce__spec_place *places;
    size_t count;
    int64_t reusable_us; /* used again from then on */
    const void *batch;   /* any pointer that stands for the batch that will have the notes */
};

/*
 * Gives slots back whose blocks are deleted; they are not used again before tierce__places_given
 * says that the notes are written. is_empty[i]: its file has no block left, and is to be removed
 * from the storage before the notes are written; where several of them lie in it, only the last of
 * them says so. A slot that is free already stays so; a give that was not ended may be begun again.
 * Several gives may go into one batch, and share `notes` then, in which a file has one. Places with
 * a text have nothing to give; their file is their own, and so empty, where the text has no blkid.
 * A slot that its file has not is damaged, and passed over: refused, its batch would never end.
 * Errors, nothing given: -ENOMEM, TIERCE_E_LIMIT (of notes), -EBUSY (a file is in another give that
 * has not ended for a second: try later), of the store.
 */
TIERCE_MUSTUSE int tierce__places_give(struct tierce__places *places,
                                       const struct tierce__place_return *given, bool *is_empty,
                                       const struct tierce__place_notes *notes);

/* The notes that _give made are written. */
void tierce__places_given(struct tierce__places *places, uint16_t storage,
                          const struct tierce__spec_place *given, size_t count);

/* They are not, or nobody knows: the slots stay used until a later give. */
void tierce__places_ungive(struct tierce__places *places, const struct tierce__spec_place *given,
                           size_t count);

/* Files of several slots of which some are used and some are not, and slots free in them. */
struct tierce__places_stats {
    uint64_t files, free_slots;
    uint64_t damaged; /* notes that could not be read; their free slots are lost */
};
void tierce__places_stats(struct tierce__places *places, struct tierce__places_stats *out);

/* The URI of a place, NUL-terminated, in the arena: "file://nfs_01/tmp/nfs/inst/tp0/00…1f?size=…",
 * with blkid where files have several slots. A place with a text is that text. NULL: no memory. */
char *tierce__place_uri(const struct tierce__storage *storage,
                        const struct tierce__instance *instance,
                        const struct tierce__spec_place *place, struct tierce__arena *arena);

/* The same for many places of one storage: what is equal in all is made once. `storage` may be NULL
 * where all places have texts. */
struct tierce__place_prefix {
    char *text;
    size_t bytes;
};
struct tierce__place_uris {
    const struct tierce__storage *storage;
    const struct tierce__instance *instance;
    struct tierce__arena *arena;
    struct tierce__place_prefix *prefixes; /* by spec */
};
TIERCE_MUSTUSE int tierce__place_uris_begin(struct tierce__place_uris *out,
                                            const struct tierce__storage *storage,
                                            const struct tierce__instance *instance,
                                            struct tierce__arena *arena);
char *tierce__place_uris_make(struct tierce__place_uris *uris,
                              const struct tierce__spec_place *place);

/* Its file, as storages are asked to delete it: the path in the URI; of Mooncake "/" and the key.
 * "": it has none, being a text without a path or of a spec that there is not. NULL: no memory. */
char *tierce__place_path(const struct tierce__storage *storage,
                         const struct tierce__instance *instance,
                         const struct tierce__spec_place *place, struct tierce__arena *arena);

#endif
