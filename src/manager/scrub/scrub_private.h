/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_SCRUB_PRIVATE_H
#define TIERCE_MANAGER_SCRUB_PRIVATE_H

#include "base/arena.h"
#include "base/clock.h"
#include "manager/locate/locator_private.h"
#include "manager/scrub/scrub.h"
#include "manager/scrub/scrub_set.h"

#include <string.h>

/* A rate that is also a bound after an idle time: the next batch may begin at next_ns, and no
 * unused time is kept. */
struct scrub_pace {
    uint64_t rate, next_ns; /* units a second */
};

/* A place in the records, in the order of the names of instances and of a scan. */
struct scrub_at {
    char *instance; /* heap; NULL: the first one */
    uint64_t cursor;
    struct tierce__scrub_counts counts; /* up to there, as is the next field */
    char unread[TIERCE__WHY_BYTES];
};

/* A scrub that runs. Its thread alone. */
struct scrub_run {
    struct tierce__scrub *scrub;
    const struct tierce__scrub_opts *opts;
    struct tierce__storage storage; /* a copy */
    bool repairs, lists;
    struct scrub_pace files, bytes;
    double verify_share;
    uint64_t salt; /* selects the blocks that are verified: others in each scrub */
    enum tierce__scrub_phase phase;
    struct tierce__scrub_counts counts;
    struct scrub_at at; /* of the records */
    bool has_saved;
    uint64_t saved_ns; /* the position was written to the registry then; if never, the begin */
    int64_t began_us;
    bool is_resumed;
    char **ids; /* of the instances when the phase began */
    size_t id_count, id_room;
    bool no_memory;                  /* not all could be listed */
    struct tierce__arena arena;      /* of a page */
    char *root;                      /* tierce__storage_root */
    struct tierce__scrub_seen *seen; /* orphans of the last scrub, and of this one */
    char why[TIERCE__WHY_BYTES];     /* it failed */
    char unread[TIERCE__WHY_BYTES];  /* the first that could not be judged; "": all was */
};

/* The run has judged all records before a place in the present instance. */
static inline void scrub_reach(struct scrub_run *run, uint64_t cursor)
{
    run->at.cursor = cursor;
    run->at.counts = run->counts;
    memcpy(run->at.unread, run->unread, sizeof(run->unread));
}

/* The clock of the rate. */
static inline uint64_t tierce__scrub_now_ns(const struct tierce__scrub_opts *opts)
{
    return opts->now_ns != NULL ? opts->now_ns(opts->clock_arg) : tierce__now_ns();
}

#define TIERCE__SCRUB_PAGE_WORK 64u /* a page counts as so many files, or as the files on it */

/* Publishes the counts, and waits until the files before these have had their time. -ECANCELED: the
 * scrub must stop. */
TIERCE_MUSTUSE int tierce__scrub_pace(struct scrub_run *run, uint64_t files);

/* The same for bytes that are read. */
TIERCE_MUSTUSE int tierce__scrub_pace_bytes(struct scrub_run *run, uint64_t bytes);

/* A file that a location names. */
struct scrub_file {
    int64_t key;
    char location_id[TIERCE__LOCATION_ID_BYTES];
    const char *path;
    const char *spec;       /* its name; "": unknown */
    uint64_t least, most;   /* bytes that it must have; 0: unknown */
    uint64_t offset, bytes; /* of the block in it */
    bool is_engines;        /* written by an engine, which reads exactly `bytes` */
    bool is_damaged;        /* its bytes are not the block's */
    bool is_bad;            /* missing, of another length, or damaged: no reader could use it */
};

/* Verifies the bytes of a file that is not bad, if it is among those of verify_share. Errors:
 * -ECANCELED, -ENOMEM; of the storage, if they end the scrub. */
TIERCE_MUSTUSE int tierce__scrub_verify(struct scrub_run *run, struct scrub_file *file);

/*
 * The position of a scrub, as a text in the registry (storage->scrub), with which another leader
 * goes on. `read` sets the fields of a run that has none. Errors, those of `read` in words or "":
 * TIERCE_E_FORMAT, -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__scrub_position_write(char **out, const struct scrub_run *run);
TIERCE_MUSTUSE int tierce__scrub_position_read(struct scrub_run *run, const char *text,
                                               char why[TIERCE__WHY_BYTES]);
/* Writes the position to the registry, at most once a minute. The first time it is a second after
 * the begin, or before the run `waits` for long: most scrubs of small storages write nothing. */
void tierce__scrub_save(struct scrub_run *run, bool waits);
void tierce__scrub_save_now(struct scrub_run *run);
/* Around a write of the position. False: a call has stopped the scrub, and nothing is written. */
TIERCE_MUSTUSE bool tierce__scrub_save_begins(struct scrub_run *run);
void tierce__scrub_save_ends(struct scrub_run *run);
/* The scrub has ended. */
void tierce__scrub_forget_position(const struct tierce__scrub_opts *opts,
                                   const struct tierce__storage *storage);

/* Lists the instances, by name. Errors: -ENOMEM, TIERCE_E_CLOSED (the manager leads no more). */
TIERCE_MUSTUSE int tierce__scrub_list_instances(struct scrub_run *run);

/* A page of an instance's records, in the run's arena. */
struct scrub_page {
    int64_t *keys;
    struct tierce__record *records;
    bool *found;
    size_t count;
};
/* Reads up to `keys_max` keys of an instance from the cursor on, and their records, and shows them
 * while the instance is held. Resets the arena before. Errors: -ENOENT (the instance was removed),
 * -EBUSY (its removal takes too long), of the store, of `visit`, -ECANCELED, -ENOMEM. */
TIERCE_MUSTUSE int tierce__scrub_visit(
    struct scrub_run *run, const char *id, uint64_t *cursor, size_t keys_max,
    int (*visit)(void *arg, struct tierce__live *live, const struct scrub_page *page), void *arg);
/* Acquires an instance. Waits for the end of its removal, which may fail and keep it. Errors:
 * -ENOENT, -EBUSY, -ECANCELED, TIERCE_E_CLOSED as above. */
TIERCE_MUSTUSE int tierce__scrub_acquire(struct tierce__live **out, struct scrub_run *run,
                                         const char *id);

/* Whether a storage's error ends the scrub: others are of one file. */
static inline bool tierce__scrub_ends(int rc)
{
    return rc == TIERCE_E_DOWN || rc == TIERCE_E_DEADLINE || rc == TIERCE_E_CLOSED ||
           rc == TIERCE_E_UNSUPPORTED || rc == -ENOMEM;
}

/* Notes in words the first thing that could not be judged: the scrub ends as incomplete. */
void tierce__scrub_note_unread(struct scrub_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The two directions. Errors: -ECANCELED; of the index, of the storage. */
TIERCE_MUSTUSE int tierce__scrub_records(struct scrub_run *run);
TIERCE_MUSTUSE int tierce__scrub_objects(struct scrub_run *run);

#endif
