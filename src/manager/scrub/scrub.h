/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_SCRUB_H
#define TIERCE_MANAGER_SCRUB_H

#include "manager/locate/locator.h"
#include "manager/registry/registry.h"
#include "manager/storage/storages.h"

/*
 * A scrub compares the index with one storage, in both directions, at a bounded rate:
 *
 * - the records of all instances: a location whose file is missing, too short, or longer than the
 *   engine that reads it accepts, is dropped;
 * - the objects of the storage: an object that is older than a day and that no record, write
 * session or deletion names, is an orphan, and deleted. If the storage does not tell when an object
 * was written, it must have been an orphan in a scrub of a day ago, too.
 *
 * Nothing is dropped or deleted unless `repairs` is set. Contents are read for `verify_share` of
 * the blocks of engines, whose chunks have sums: a damaged one is dropped as a missing one. The
 * storage must have this registry's mark, and each repair looks at the mark and the file together,
 * because the files of an empty mount point are all missing. Folders and files that cannot be read
 * are counted, and the scrub goes on; it ends as incomplete.
 *
 *     rc = tierce__scrub_start(scrub, &(struct tierce__scrub_request){.storage = "nfs_01"}, why);
 *     tierce__scrub_wait(scrub);
 *     is_known = tierce__scrub_state(scrub, "nfs_01", &state);
 *
 * One scrub runs at a time, on a thread of its own. Threads: any.
 */

struct tierce__scrub;

struct tierce__scrub_opts {
    size_t size;
    struct tierce__registry *registry; /* these: [borrow until destroy] */
    struct tierce__storages *storages;
    struct tierce__locator *locator;
    /* The clock of the rate; NULL: clock.h. wait_until is called without a lock. */
    uint64_t (*now_ns)(void *arg);
    void (*wait_until)(void *arg, uint64_t due_ns);
    void *clock_arg;
    uint64_t filter_bytes_max; /* of the filter of names that are in use; 0: 256 MiB */
    size_t objects_max;        /* for tests: that are judged together; 0: 2^20 */
};

TIERCE_MUSTUSE int tierce__scrub_create(struct tierce__scrub **out,
                                        const struct tierce__scrub_opts *opts);
/* Stops a scrub that runs, and waits for it. */
void tierce__scrub_destroy(struct tierce__scrub *scrub);

#define TIERCE__SCRUB_RATE      1000u         /* objects a second */
#define TIERCE__SCRUB_BYTE_RATE (64ull << 20) /* bytes that are read, a second */

struct tierce__scrub_request {
    const char *storage;
    bool repairs;
    uint32_t rate; /* files that are looked at, a second. 0: TIERCE__SCRUB_RATE */
    /* The share of the engines' blocks whose bytes are read and verified, 0 .. 1, and how many
     * bytes are read a second; 0: TIERCE__SCRUB_BYTE_RATE. */
    double verify_share;
    uint64_t byte_rate;
};

/* Starts a scrub. Errors, `why` in words: -ENOENT (no such storage), -EBUSY (a scrub runs),
 * TIERCE_E_UNSUPPORTED (an unmanaged storage, or one that has no mark), TIERCE_E_DOWN (it does not
 * answer, its mark is wrong, or it has lost its objects), -ENOMEM, negative errno of the thread. */
TIERCE_MUSTUSE int tierce__scrub_start(struct tierce__scrub *scrub,
                                       const struct tierce__scrub_request *request,
                                       char why[TIERCE__WHY_BYTES]);
/*
 * Goes on with the scrub that the last leader has left: its position is in the registry, at most a
 * minute old, if the registry is stored. In the second direction it begins with that direction. If
 * the storage does not answer for a minute, the scrub has failed. Call it when the manager leads.
 */
void tierce__scrub_resume(struct tierce__scrub *scrub);
/* Asks the scrub of a storage, if it runs, to stop, and removes its position, so that no leader
 * goes on with it. Errors, `why` in words: of the registry. The scrub stops, but the position
 * stays, and the next leader goes on with it; call it again. */
TIERCE_MUSTUSE int tierce__scrub_stop(struct tierce__scrub *scrub,
                                      const struct tierce__storage *storage,
                                      char why[TIERCE__WHY_BYTES]);
/* Asks the scrub that runs, if there is one, to stop, because this manager leads no more. The next
 * leader is to go on with it, unless a call has stopped it. */
void tierce__scrub_leave(struct tierce__scrub *scrub);
/* Waits until no scrub runs. */
void tierce__scrub_wait(struct tierce__scrub *scrub);

enum tierce__scrub_phase {
    TIERCE__SCRUB_RECORDS, /* looks for the files of the records */
    TIERCE__SCRUB_OBJECTS, /* looks for the records of the objects */
    TIERCE__SCRUB_DONE,
    TIERCE__SCRUB_STOPPED, /* by a call, or this manager does not lead any more */
    TIERCE__SCRUB_FAILED,
    TIERCE__SCRUB_INCOMPLETE, /* something could not be judged; the rest was */
    TIERCE__SCRUB_PHASES,
};
/* "records", "objects", "done", "stopped", "failed", "incomplete". */
const char *tierce__scrub_phase_name(enum tierce__scrub_phase phase);

struct tierce__scrub_counts {
    /* Files that records name. */
    uint64_t checked, missing, too_short, too_long;
    uint64_t unreadable; /* the storage returned another error */
    uint64_t fresh;      /* not checked, because the block was stored a few minutes ago */
    uint64_t verified, verified_bytes; /* read */
    uint64_t damaged;                  /* of the verified */
    uint64_t unprovable; /* drawn, and of a version that this program does not know, or too large */
    uint64_t dropped_locations;
    /* Objects that were listed. A storage may list an object twice (storage.h), and then `listed`,
     * `listed_bytes`, `young` and `others` may count it twice. */
    uint64_t listed, listed_bytes;
    uint64_t young;  /* changed within the last day, or perhaps: not judged */
    uint64_t others; /* not named as a block's: not judged, and not counted as listed */
    uint64_t unread; /* folders and files whose objects could not be listed */
    uint64_t orphans, orphan_bytes;
    uint64_t deleted_orphans, deleted_bytes;
};

struct tierce__scrub_state {
    enum tierce__scrub_phase phase;
    bool repairs;
    bool lists; /* the objects are listed; else only the records are checked */
    uint32_t rate;
    int64_t began_us, ended_us; /* wall clock; ended_us 0: it runs */
    int64_t whole_us;           /* end of the last one that judged everything; 0: none yet */
    struct tierce__scrub_counts counts;
    char why[128]; /* it failed, or the first that could not be judged */
};

/* The state of the storage's last scrub; returns false if there was none since the start, or if the
 * storage is not registered any more. */
bool tierce__scrub_state(struct tierce__scrub *scrub, const char *storage,
                         struct tierce__scrub_state *out);

#endif
