/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_SCRUB_SET_H
#define TIERCE_MANAGER_SCRUB_SET_H

#include "base/map.h"

#include <stdbool.h>

/*
 * The objects of a storage that a scrub judges together, and the orphans that a storage without
 * times of change had in earlier scrubs. Thread: one at a time.
 */

/* ---- objects --------------------------------------------------------------------------------- */

/* A folder of objects, "INSTANCE/SPEC/". */
struct tierce__scrub_folder {
    struct tierce__map_node node;
    char *name;
    size_t first, count; /* its objects, once the set is sealed */
    uint32_t number;
};

struct tierce__scrub_object {
    uint32_t folder;
    bool is_used;
    uint64_t number; /* of the file */
    uint64_t bytes;
    int64_t changed_us;
};

/* A zeroed set is empty. */
struct tierce__scrub_set {
    struct tierce__scrub_object *objects; /* sealed: in the order of folders and numbers */
    size_t count, room;
    struct tierce__scrub_folder **folders;
    size_t folder_count, folder_room;
    struct tierce__map by_name;
};

/* Adds an object whose name has a number. Errors: -ENOMEM, TIERCE_E_LIMIT (2^32 folders). */
TIERCE_MUSTUSE int tierce__scrub_set_add(struct tierce__scrub_set *set, const char *name,
                                         uint64_t bytes, int64_t changed_us);
/* Sorts the objects, and drops those that were added twice; returns how many these were. */
size_t tierce__scrub_set_seal(struct tierce__scrub_set *set);

/* The folder of the object at the end of a path; NULL: the set has none. */
struct tierce__scrub_folder *tierce__scrub_set_folder_at(const struct tierce__scrub_set *set,
                                                         const char *path);
/* Marks the object at the end of a path as used, if the sealed set has it. */
void tierce__scrub_set_use(struct tierce__scrub_set *set, const char *path);

/* "INSTANCE/SPEC/FILE", as a block's file is named; `out` has the folder's length and 17 bytes. */
void tierce__scrub_set_name(char *out, const struct tierce__scrub_set *set,
                            const struct tierce__scrub_object *object);

/* A hash of the name. */
uint64_t tierce__scrub_set_hash(const struct tierce__scrub_set *set,
                                const struct tierce__scrub_object *object);

void tierce__scrub_set_clear(struct tierce__scrub_set *set);

/* ---- names that are in use --------------------------------------------------------------------
 */

/*
 * A Bloom filter of the names that records use, for storages with more objects than a set may have:
 * a name that was added is always found, and another one by chance. So one reading of the records
 * tells for most objects that they are in use, and only the others are judged exactly. An orphan
 * that is found by chance stays; the next scrub has another salt. A zeroed filter is empty.
 */
struct tierce__scrub_filter {
    uint64_t *words;
    uint64_t mask; /* of bits */
    uint64_t salt;
    unsigned tries; /* bits of a name */
};

/* For about `names` names: ten bits for each, but at most `bytes_max` bytes. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__scrub_filter_init(struct tierce__scrub_filter *filter, uint64_t names,
                                             uint64_t bytes_max, uint64_t salt);
void tierce__scrub_filter_fini(struct tierce__scrub_filter *filter);
/* The object at the end of a path. A path that has no block's name is ignored, and never found. */
void tierce__scrub_filter_add(struct tierce__scrub_filter *filter, const char *path);
bool tierce__scrub_filter_has(const struct tierce__scrub_filter *filter, const char *path);
/* Drops the objects that the filter has from a set that is not sealed. */
void tierce__scrub_set_filter(struct tierce__scrub_set *set,
                              const struct tierce__scrub_filter *filter);

/* ---- orphans of earlier scrubs --------------------------------------------------------------- */

/*
 * A storage that does not tell when an object was written: an object that was an orphan in a scrub
 * a day ago is a day old, because no name is given to two objects. At most a million are
 * remembered; the others are deleted by later scrubs.
 */
struct tierce__scrub_seen;

/* NULL: no memory. */
struct tierce__scrub_seen *tierce__scrub_seen_create(void);
void tierce__scrub_seen_destroy(struct tierce__scrub_seen *seen);

/* Notes an orphan of this scrub, by the hash of its name. Returns the time at which it was first
 * noted. */
int64_t tierce__scrub_seen_note(struct tierce__scrub_seen *seen, uint64_t name, int64_t now_us);
/* The scrub has ended; if it was `whole`, orphans that it did not note are forgotten. */
void tierce__scrub_seen_end(struct tierce__scrub_seen *seen, bool whole);

#endif
