/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_PLACES_H
#define TIERCE_MANAGER_PLACES_H

#include "manager/meta/meta_store.h"
#include "manager/registry/model.h"

/*
 * Allocates space for blocks in storages. The manager names files by number and divides them into
 * slots of one size. A file holds key_count_per_file blocks of one spec (storages without files:
 * 1). Freed slots are reused before a new file is started; a file is deleted when its last slot is
 * freed.
 *
 * A client that received a slot's URI may still read it after it was freed, and a late writer may
 * still write to it. So a freed slot is reused only after a time that the caller gives. An empty
 * file needs no such time: its number is never reused.
 *
 * File numbers are never reused: they are drawn from ranges that were reserved durably. A number
 * encodes how many slots its file has. While a file is partly used, a note records its used slots
 * (NOTE_FILE, docs/inside/format/places.md); a full file, and a file of one slot, needs no note.
 *
 * The notes of a take or give are part of the batch that makes it durable. Until that batch is
 * written or fails, its files are busy: other takes skip them, and a give for another batch waits a
 * while for them. (The notes of two batches about one file must reach the store in order.)
 *
 * One object per instance. Threads: any.
 */

struct tierce__places;

#define TIERCE__PLACES_SLOTS_MAX 65536u /* key_count_per_file */

/* [borrow] the space until close, the instance for the call. Slots that are already free are reused
 * from reusable_us (wall clock) on. The first file number of an empty space derives from `random`,
 * because clients of a former instance of the same name, or of one whose index was lost, may still
 * write to its files. Nothing is read before the first take or give, which may fail with the
 * store's errors, including TIERCE_E_REFUSED. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__places_open(struct tierce__places **out,
                                       struct tierce__meta_space *space,
                                       const struct tierce__instance *instance, int64_t reusable_us,
                                       uint64_t random);
void tierce__places_close(struct tierce__places *places);

/* Slots of a file. */
uint32_t tierce__place_slots(uint64_t file);
/* Its counter: a file that is named later has a larger one. */
uint64_t tierce__place_counter(uint64_t file);
#define TIERCE__PLACE_COUNTER_MAX ((UINT64_C(1) << 48) - 1)

/* Notes for spaces that no instance uses yet (place_notes.c): of the used slots of a file with
 * several slots, and of the first counter that may be assigned. The values are in the arena; NULL
 * in `out`: the file needs no note. Errors: -ENOMEM. */
struct tierce__place_file {
    uint64_t number, bytes; /* bytes of a slot */
    uint16_t storage, spec;
    const uint8_t *used; /* one bit a slot */
};
TIERCE_MUSTUSE int tierce__place_file_note(struct tierce__meta_note *out,
                                           const struct tierce__place_file *file,
                                           struct tierce__arena *arena);
TIERCE_MUSTUSE int tierce__place_reserve_note(struct tierce__meta_note *out, uint64_t counter,
                                              struct tierce__arena *arena);

/* The maximum number of notes that a take or give of `count` places adds. */
size_t tierce__places_notes_max(size_t count);

/* The array to which a take or give adds its notes: notes[*count .. max), values in the arena. */
struct tierce__place_notes {
    struct tierce__meta_note *notes;
    size_t *count;
    size_t max;
    struct tierce__arena *arena;
};

/* Returns whether slots of this file may still be given out, because it is partly used: 1 or 0. A
 * file that is full, or of one slot, has none, and no number is used again. Errors: of the store.
 */
TIERCE_MUSTUSE int tierce__places_has_file(struct tierce__places *places, uint64_t file);

/* A request for `count` slots of `bytes` each, for a spec in a storage. */
struct tierce__place_opts {
    const struct tierce__storage *storage;
    uint16_t spec;
    uint64_t bytes;
    size_t count;
    int64_t now_us;
};

/*
 * Allocates the requested slots: first in files with free slots, then in new files; consecutive
 * places get consecutive slots. taken[i] has no uri. Errors, nothing taken: -ENOMEM, TIERCE_E_LIMIT
 * (of notes), those of the store. Rarely blocks on the store, to reserve new numbers.
 */
TIERCE_MUSTUSE int tierce__places_take(struct tierce__places *places,
                                       const struct tierce__place_opts *opts,
                                       struct tierce__spec_place *taken,
                                       const struct tierce__place_notes *notes);

/* Makes the notes of a take's files again, as long as the take has not ended; appends at
 * *note_count. Errors: -ENOMEM, TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__places_note(struct tierce__places *places,
                                       const struct tierce__spec_place *taken, size_t count,
                                       struct tierce__meta_note *notes, size_t *note_count,
                                       size_t notes_max, struct tierce__arena *arena);

/* Ends a take whose batch was written, or whose outcome is unknown: its slots stay used, and other
 * takes may use the rest of their files. Each take ends with this call or with _untake before its
 * places are returned to a client. */
void tierce__places_taken(struct tierce__places *places, const struct tierce__spec_place *taken,
                          size_t count);

/* Ends a take whose batch was certainly not written: its slots are free again. */
void tierce__places_untake(struct tierce__places *places, const struct tierce__storage *storage,
                           const struct tierce__spec_place *taken, size_t count);

/* A request to free places of one storage. */
struct tierce__place_return {
    uint16_t storage;
    const struct tierce__spec_place *places;
    size_t count;
    int64_t reusable_us; /* reusable from then on */
    const void *batch;   /* any pointer that identifies the batch that will contain the notes */
};

/*
 * Gives slots back whose blocks are deleted; they are not used again before tierce__places_given
 * says that the notes are written. is_empty[i]: its file has no block left, and is to be removed
 * from the storage before the notes are written; if several of them are in the file, only the last
 * one is marked. A slot that is free already stays so; a give that was not ended may be begun
 * again. Several gives may go into one batch, and share `notes` then, in which a file has one.
 * Places with a text have no slot to give back. If the text has no blkid, the file holds only this
 * place, and counts as empty. A slot that its file does not have is damaged, and is skipped: if it
 * were rejected, its batch would never end. Errors, nothing given: -ENOMEM, TIERCE_E_LIMIT (of
 * notes), -EBUSY (a file is in another give that has not ended for a second: try later), of the
 * store.
 */
TIERCE_MUSTUSE int tierce__places_give(struct tierce__places *places,
                                       const struct tierce__place_return *given, bool *is_empty,
                                       const struct tierce__place_notes *notes);

/* Ends a give whose notes were written. */
void tierce__places_given(struct tierce__places *places, uint16_t storage,
                          const struct tierce__spec_place *given, size_t count);

/* Ends a give whose notes were not written, or whose outcome is unknown: the slots stay used until
 * a later give. */
void tierce__places_ungive(struct tierce__places *places, const struct tierce__spec_place *given,
                           size_t count);

/* Partly used files, and the free slots in them. */
struct tierce__places_stats {
    uint64_t files, free_slots;
    uint64_t damaged; /* unreadable notes; the free slots of their files are lost */
};
void tierce__places_stats(struct tierce__places *places, struct tierce__places_stats *out);

/* The URI of a place, NUL-terminated, in the arena: "file://nfs_01/tmp/nfs/inst/tp0/00…1f?size=…",
 * with blkid where files have several slots. A place with a text is that text. NULL: no memory. */
char *tierce__place_uri(const struct tierce__storage *storage,
                        const struct tierce__instance *instance,
                        const struct tierce__spec_place *place, struct tierce__arena *arena);

/* The same for many places of one storage; the common prefix is made once. `storage` may be NULL if
 * all places have texts. */
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

/* The path of a place's file, for deletion: the path in its URI; for Mooncake "/" and the key. "":
 * no path, because the text has none or the spec does not exist. NULL: no memory. */
char *tierce__place_path(const struct tierce__storage *storage,
                         const struct tierce__instance *instance,
                         const struct tierce__spec_place *place, struct tierce__arena *arena);

/* The number of a block's file in a name "INSTANCE/SPEC/FILE", and the length of the folder before
 * it, with its '/'. 0: no block has this name. */
uint64_t tierce__place_number(const char *name, size_t *folder_bytes);

#endif
