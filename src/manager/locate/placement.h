/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_PLACEMENT_H
#define TIERCE_MANAGER_PLACEMENT_H

#include "manager/move/moves.h"
#include "manager/registry/catalog.h"

/*
 * The rules that ask for moves (move/moves.h) when blocks are read, written or lost. The candidates
 * of a group are listed from hot to cold.
 *
 *   - Promotion (promote_window_seconds of the group): a block that is read twice within the window
 *     moves to the hottest candidate with room. It moves and is not copied: a block has one copy
 *     unless the group asks for more, and each copy counts against the quotas.
 *   - Replicas (of the group's quota of a type): a location that has fewer copies in other storages
 *     of its type is copied to another one: when it is written, when it is read, and when a storage
 *     is lost.
 *
 * A block that was moved to a colder candidate (reclaim/demote.h) is promoted by two reads after
 * that, and not by one. The table of such blocks has a place for 65,536 keys, and an entry may be
 * overwritten; another leader begins with an empty table.
 *
 * A call collects blocks, and end queues them, so that no lock is taken for each block:
 *
 *     tierce__placement_begin(&placement, live, catalog, now_us, picks, room);
 *     tierce__placement_read(&placement, key, record, location);
 *     tierce__placement_end(&placement);
 *
 * Threads: any; a placement belongs to one call.
 */

struct tierce__live;
struct tierce__locator;

enum { TIERCE__PLACEMENT_PICKS = 64 }; /* a usual room */

struct tierce__placement {
    struct tierce__live *live;
    const struct tierce__catalog *catalog;
    const struct tierce__group *group; /* NULL: no rule applies */
    int64_t now_us, promote_us;        /* 0: no promotion */
    bool has_replicas;
    uint16_t last; /* the storage of the last location; 0: none. And of it: */
    size_t position;
    uint32_t replicas;
    /* Blocks beyond the room are left out: the next read asks again. */
    struct tierce__placement_pick *picks;
    size_t count, room;
};

struct tierce__placement_pick {
    enum tierce__move_reason reason;
    uint16_t from;
    struct tierce__move_block block;
};

/* [borrow until end] the picks, which have room for so many blocks. */
void tierce__placement_begin(struct tierce__placement *out, struct tierce__live *live,
                             const struct tierce__catalog *catalog, int64_t now_us,
                             struct tierce__placement_pick *picks, size_t room);

/* A block is about to be read from one of the record's locations. `record` as before the read. */
void tierce__placement_read(struct tierce__placement *placement, int64_t key,
                            const struct tierce__record *record,
                            const struct tierce__location *location);

/* A location serves that has `copies` (with itself) in storages of its type. */
void tierce__placement_serves(struct tierce__placement *placement, int64_t key,
                              const struct tierce__location *location, size_t copies);

/* Queues the collected blocks. */
void tierce__placement_end(struct tierce__placement *placement);

/* The storages of the location's type that hold all of its parts: its own, and those others for
 * whose location `keeps` returns true (NULL: all). */
size_t tierce__record_copies(const struct tierce__record *record,
                             const struct tierce__location *location,
                             bool (*keeps)(void *arg, const struct tierce__location *other),
                             void *arg);

/* Whether a location is in a storage that can be read and that no operator empties. */
bool tierce__location_stays(const struct tierce__locator *locator,
                            const struct tierce__catalog *catalog,
                            const struct tierce__location *location);

/* Whether another location of the record, for which `keeps` returns true, has all parts of this
 * one. */
bool tierce__record_has_other(const struct tierce__record *record,
                              const struct tierce__location *location,
                              bool (*keeps)(void *arg, const struct tierce__location *other),
                              void *arg);

/* Notes that a block is being moved to a colder candidate. Without memory it does nothing. */
void tierce__placement_cooled(struct tierce__live *live, int64_t key, int64_t now_us);

#endif
