/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_LOCATOR_PRIVATE_H
#define TIERCE_MANAGER_LOCATOR_PRIVATE_H

#include "base/threads/deadlines.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "base/map.h"
#include "core/key/group.h"
#include "manager/locate/attention.h"
#include "manager/storage/deleter.h"
#include "manager/reclaim/expiry.h"
#include "manager/locate/locator.h"
#include "manager/locate/placement.h"
#include "manager/move/moves.h"
#include "manager/reclaim/orphans.h"
#include "manager/storage/places.h"
#include "manager/reclaim/quota.h"
#include "manager/reclaim/stale.h"

#include <errno.h>
#include <stdatomic.h>

/*
 * The locator's parts.
 *
 *     locator.c        adding and removing instances; recovery
 *     locator_get.c    the match modes
 *     locator_write.c  StartWrite
 *     locator_claim.c  its claims
 *     locator_count.c  the bytes that an instance has when a manager begins to lead
 *     locator_finish.c FinishWrite, writes with unknown outcome
 *     locator_expire.c ends sessions that timed out
 *     locator_renew.c  RenewWrite, and how the last sessions have ended
 *     locator_remove.c remove, trim, look
 *     locator_scan.c   scans of all instances for the locations in some storages
 *     locator_forget.c storages that have lost their objects
 *     locator_drain.c  storages that an operator empties
 *     locator_move.c   copies between storages: batches of moves.h as sessions
 *     locator_usage.c  counts of held, rejected and abandoned blocks
 *     placement.c      rules that ask for moves
 *     choice.c         which storage to write to, which location to read from
 *     write_sessions.c sessions that write keys, and their durable form
 *     quota.c          bytes by group, type and storage
 *     deleter.c        deletions in progress
 */

/* Why instances are scanned for the locations in some storages. */
enum tierce__scan {
    TIERCE__SCAN_FORGETS, /* the storages have lost their objects (locator_forget.c) */
    TIERCE__SCAN_DRAINS,  /* an operator empties them (locator_drain.c) */
    TIERCE__SCANS,
};

/* ---- an instance at work --------------------------------------------------------------------- */

/*
 * Specs of a key that a session writes. No other session may write them. Sessions that write other
 * specs of the key have claims of their own: the ranks of an engine write one key at once. A claim
 * may have no specs, if the key's spec group has none.
 */
struct tierce__spec_claim {
    struct tierce__map_node node;
    int64_t key;
    struct tierce__write_session *session;
    /* For each spec of the instance whether it is claimed, while the session is being made [borrow
     * from the call]. NULL from then on: the specs are those of the key's places. */
    const bool *making;
    _Atomic bool is_removed; /* removal was requested: the key will not serve. Set before the key's
                                lock of the index is taken, read under it */
};

/* Outcomes of hints; relaxed. */
struct tierce__live_hints {
    _Atomic uint64_t used[TIERCE__HINTS], returned[TIERCE__HINTS]; /* since it was opened */
    /* The same with TIERCE__HINT_NONE, less the uses whose hint was replaced; they fade. */
    _Atomic uint64_t recent_used[TIERCE__HINTS], recent_returned[TIERCE__HINTS];
    _Atomic(struct tierce__gone_hints *) gone; /* keys that were evicted last; or NULL */
};

struct tierce__live {
    struct tierce__list node;      /* LOCATOR */
    struct tierce__map_node by_id; /* LOCATOR */
    struct tierce__locator *locator;
    struct tierce__instance instance; /* a copy: never changes, nor does its generation */
    /* How often its blocks were invalidated. Written under SESSIONS, and then the claims are
     * marked; the release pairs with the acquire of tierce__live_generation. */
    _Atomic uint64_t generation;
    struct tierce__needs needs; /* of the instance */
    struct tierce__meta_space *space;
    struct tierce__meta_index *index;
    struct tierce__places *places;
    bool blocks;
    _Atomic uint32_t users; /* references of calls, jobs and the list of instances */
    /* Keys of gets and their hits; a window query counts the window's length. */
    _Atomic uint64_t asked_keys, found_keys;
    _Atomic uint64_t stops, stops_inside; /* of prefix queries (tierce__live_stops); relaxed */
    /* See struct tierce__usage. */
    _Atomic uint64_t rejected_keys[TIERCE__REJECTIONS];
    _Atomic uint64_t reclaimed_keys, reclaimed_idle_us;
    _Atomic int64_t reclaim_age_us;
    struct tierce__live_hints hints; /* locator_hint.c */
    _Atomic uint64_t
        hottest; /* placement.c: the first candidate with room, and when it was found */
    struct tierce__ghost_tap *tap; /* NULL: not followed */
    bool is_going;                 /* LOCATOR: rejects calls, being removed */

    struct tierce__lock lock;    /* SESSIONS: the members below */
    bool is_emptying;            /* the instance is being removed: no session may begin */
    struct tierce__map claims;   /* by key; several may have one key */
    size_t claimed_keys;         /* keys with at least one claim */
    size_t moving_keys;          /* claims of sessions that copy: the index has their keys */
    struct tierce__map sessions; /* by id */
    struct tierce__deadlines deadlines;
    uint64_t expired_sessions;
    uint64_t writing_by_slot[16];
    struct tierce__calendar calendar;
    int64_t calendar_ttl_us;     /* the group's time to live that it was built for; -1: not built */
    bool is_calendar_stale;      /* an entry was lost for lack of memory: the calendar is rebuilt */
    bool is_scanning;            /* a scan is adding keys to it, from scan_cursor on: the */
    uint64_t scan_cursor;        /* reclaimer's thread alone */
    bool has_expiring;           /* the note exists: blocks may have their own expiry times */
    struct tierce__map deleting; /* keys whose locations are being deleted */

    struct tierce__holes holes;        /* has a lock of its own */
    struct tierce__orphan_sweep sweep; /* the reclaimer's thread alone */
    struct {
        uint64_t number;              /* of the last scan that began here, and its */
        uint64_t cursor;              /* cursor; 0: at its end */
    } scans[TIERCE__SCANS];           /* the reclaimer's thread alone */
    struct tierce__stale_sweep stale; /* the same */
    _Atomic int64_t report_logged_us; /* when reports were logged last; relaxed */
};

/* A scan of all instances for the locations in some storages. The reclaimer's thread alone. */
struct tierce__storage_scan {
    uint16_t *numbers;         /* of the storages, ascending */
    size_t count, room;        /* count 0: there is no scan */
    uint64_t number;           /* of the scan */
    int64_t ended_us;          /* when the scan before ended */
    uint64_t locations, bytes; /* that were removed */
};

/* The state of a storage that is being drained, by the last complete scan. */
struct tierce__drain_count {
    uint16_t storage;
    uint64_t left, unverifiable; /* locations; those that no mover can verify are a part of them */
    bool is_told;                /* that it is empty. The reclaimer's thread alone */
};

struct tierce__locator {
    struct tierce__locator_opts opts;
    struct tierce__quota *quota;
    struct tierce__deleter *deleter;
    struct tierce__session_endings *endings;
    struct tierce__moves *moves;
    /* Blocks that were moved to a colder storage (placement.c); NULL: none was. Set once; the
     * release pairs with the acquire of a reader. */
    _Atomic(struct tierce__cooled *) cooled;
    _Atomic uint64_t random;
    _Atomic int64_t wall_offset_us; /* offset from CLOCK_BOOTTIME to the wall clock */
    struct tierce__lock changing;   /* CHANGING: serializes adding and removing instances */
    struct tierce__lock lock;       /* LOCATOR: the members below */
    struct tierce__cond idle;       /* an instance has lost its last user */
    struct tierce__list instances;
    struct tierce__map by_id; /* the same instances */
    struct tierce__list stores;
    struct tierce__list counters; /* of removed instances, one entry for each group */
    uint64_t departures;          /* instances that left `instances` */
    bool is_open;
    uint64_t fence;
    tierce__locator_fill_fn fill; /* of recover alone */
    void *fill_arg;
    struct tierce__storage_scan scans[TIERCE__SCANS];
    struct tierce__drain_count *counting; /* of scans[TIERCE__SCAN_DRAINS]: each of its storages */
    struct tierce__drain_count *drained;  /* of the last complete scan; drained_count 0: none */
    size_t drained_count;                 /* LOCATOR: this and the array before */
    int64_t drain_logged_us;              /* the reclaimer's thread alone, as `counting` */
    _Atomic uint64_t reports[TIERCE__REPORT_REASONS]; /* relaxed: counters */
    /* Places that readers were given, of _Atomic uint64_t; relaxed: counters. */
    struct tierce__storage_table located;
};

/* Acquires a reference to an instance until release. Errors: -ENOENT, TIERCE_E_CLOSED. */
TIERCE_MUSTUSE int tierce__live_acquire(struct tierce__live **out, struct tierce__locator *locator,
                                        const char *id, char why[TIERCE__WHY_BYTES]);
void tierce__live_release(struct tierce__live *live);
void tierce__live_hold(struct tierce__live *live);

/* Whether its index is complete: recovered, and not dropped. */
bool tierce__locator_is_open(struct tierce__locator *locator);

/* Calls `each` for every instance, without a lock and with a reference held. */
void tierce__locator_each(struct tierce__locator *locator,
                          void (*each)(void *arg, struct tierce__live *live), void *arg);

/* The quota accounts of the instance's bytes in a storage. */
struct tierce__quota_at tierce__live_quota_at(const struct tierce__live *live, uint8_t type,
                                              uint16_t storage);

/* Settles sessions with an unknown outcome, and ends the sessions that are due; returns the number
 * of those that had keys. */
size_t tierce__live_expire(struct tierce__live *live, int64_t now_us);

int64_t tierce__locator_now_us(const struct tierce__locator *locator);

static inline uint64_t tierce__live_generation(const struct tierce__live *live)
{
    return atomic_load_explicit(&live->generation, memory_order_acquire);
}

/* Converts a time to a key for a heap of deadlines. */
static inline uint64_t tierce__due(int64_t due_us)
{
    return due_us > 0 ? (uint64_t)due_us : 0;
}

/* 64 unpredictable bits, or the next value of the seeded generator. */
uint64_t tierce__locator_random(struct tierce__locator *locator);

/* `count` characters of [a-z0-9]. */
void tierce__locator_name(struct tierce__locator *locator, char *out, size_t count);

/* Returns whether a write that failed with rc may still have been applied. */
static inline bool tierce__meta_may_be_written(int rc)
{
    return rc < 0 && rc != -ENOMEM && rc != TIERCE_E_REFUSED && rc != TIERCE_E_ARGUMENT &&
           rc != TIERCE_E_LIMIT;
}

/* Rejects a call whose keys have more parts than the memory limit of a call permits. */
TIERCE_MUSTUSE int tierce__live_check_parts(const struct tierce__live *live, size_t keys,
                                            char why[TIERCE__WHY_BYTES]);

void tierce__say_why(char why[TIERCE__WHY_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Formats `why` and evaluates to `rc`. (A macro, so that compilers see the value.) */
#define tierce__why(why, rc, ...) (tierce__say_why((why), __VA_ARGS__), (rc))

/* ---- locator_usage.c ------------------------------------------------------------------------- */

/* Count rejected keys of a write; `limit` as tierce__quota_reserve names it, or NULL. */
void tierce__live_count_rejected(struct tierce__live *live, enum tierce__rejection reason,
                                 size_t keys);
void tierce__live_count_limited(struct tierce__live *live, const char *limit, size_t keys);

/* ---- locator_hint.c: whether hints come true ------------------------------------------------- */

/* Uses of blocks by one call, and the hints that these blocks had before. */
struct tierce__hint_tally {
    uint32_t uses;
    uint32_t returned[TIERCE__HINTS];
    uint32_t replaced[TIERCE__HINTS]; /* by a use so soon after the last that both count as one */
};
/* `record` as it was before the use. */
void tierce__hint_tally_add(struct tierce__hint_tally *tally, const struct tierce__record *record,
                            int64_t now_us);
/* Counts the uses, which came with `hint`. */
void tierce__live_count_hints(struct tierce__live *live, const struct tierce__hint_tally *tally,
                              uint16_t hint);
/* A block left because others needed its room; a block that was not indexed is stored. */
void tierce__live_note_gone(struct tierce__live *live, int64_t key, uint16_t hint);
void tierce__live_note_stored(struct tierce__live *live, int64_t key, uint16_t hint);
/* Whether blocks with the hint closed are used again less often than others, as far as is known. */
bool tierce__live_trusts_closed(const struct tierce__live *live);
/* Adds the counters; those of TIERCE__HINT_NONE stay. */
void tierce__live_add_hints(const struct tierce__live *live, struct tierce__policy_hints *out);
void tierce__live_free_hints(struct tierce__live *live);

/* Counts blocks that were reclaimed in one batch, with the time since each one's last use. */
void tierce__live_count_reclaimed(struct tierce__live *live, const int64_t *idle_us, size_t count);

/* Counts that a prefix query of `asked` keys found `found` > 0, the last of them `last`. */
void tierce__live_count_stop(struct tierce__live *live, const struct tierce__record *last,
                             size_t found, size_t asked);

/* Where prefix queries stopped, since this process began to lead. Old ones fade. Thread: the
 * reclaimer's. */
struct tierce__stops tierce__live_stops(struct tierce__live *live);

/* Creates the group's counters of removed instances unless they exist, and drops those of groups
 * that the catalog does not have. Takes LOCATOR. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__locator_add_counters(struct tierce__locator *locator,
                                                const struct tierce__catalog *catalog,
                                                const char *group);

/* Adds the counters of an instance that is being removed to its group's, so that the group's
 * counters do not fall. LOCATOR held. */
void tierce__live_keep_counters(struct tierce__live *live);

/* Sets the counters of all removed instances to zero: this process does not lead any more. LOCATOR
 * held. */
void tierce__locator_reset_counters(struct tierce__locator *locator);

/* ---- write_sessions.c
 * ------------------------------------------------------------------------------ */

/* The location that a block is copied from. Memory of the session. */
struct tierce__move_source {
    char id[TIERCE__LOCATION_ID_BYTES];
    /* Of a move: in the batch that was tried last the source leaves the record. A location does not
     * change, so it is copied once. */
    bool leaves;
    bool is_known;
    struct tierce__location location; /* if is_known */
    enum tierce__move_result result;  /* as the mover says */
};

struct tierce__session_key {
    struct tierce__spec_claim claim;
    bool has_parent;
    int64_t parent;
    char location_id[TIERCE__LOCATION_ID_BYTES];
    const char *text;                   /* of a string key, or NULL */
    struct tierce__move_source *source; /* of a session that copies; else NULL */
    uint16_t place_count;
    const struct tierce__spec_place *places;
};

struct tierce__write_session {
    struct tierce__map_node node;
    struct tierce__deadline deadline; /* in the instance's, at due_us */
    int64_t due_us;
    int64_t timeout_us; /* by which a renewal extends it */
    int64_t last_us;    /* no renewal extends it beyond: a day after its start */
    char id[TIERCE__SESSION_ID_BYTES + 1];
    uint64_t note; /* its number */
    uint16_t storage;
    uint8_t type;
    bool is_busy; /* a call is ending it */
    /* It is unknown whether the batch that ends it was written; the store is read again. */
    bool is_doubtful;
    bool is_late;   /* it timed out */
    bool is_unsure; /* it is unknown whether its start was written: its places are not taken yet */
    /* It copies blocks that are indexed (locator_move.c): all its keys have a source. */
    bool is_move;
    bool keeps_source;               /* of is_move: the source stays */
    bool is_target_bad;              /* of is_move: the mover could not write */
    enum tierce__move_reason reason; /* of is_move */
    uint16_t from;                   /* of is_move: the source's storage; 0: not known any more */
    int64_t ttl_us;                  /* time to live of its blocks from its end; 0: none */
    uint16_t hint;                   /* of its blocks; 0: none. In memory only */
    uint64_t generation;             /* of the bytes that its client writes */
    size_t count;
    struct tierce__session_key *keys;
    bool *written; /* of each key; set when the session is being ended */
    uint64_t
        served_bytes; /* of the written keys; they count as serving before the batch is written */
    uint64_t bytes;
    struct tierce__arena arena; /* holds all of the above and this struct */
};

/* Creates a session of `count` keys with a name and a note number. NULL: no memory. */
struct tierce__write_session *tierce__session_create(struct tierce__locator *locator, size_t count);
void tierce__session_destroy(struct tierce__write_session *session);

/* Returns the first claim on a key, and the next one on the key of `claim`; NULL: there is none.
 * SESSIONS held. */
struct tierce__spec_claim *tierce__live_claim(const struct tierce__live *live, int64_t key);
struct tierce__spec_claim *tierce__live_claim_next(const struct tierce__live *live,
                                                   const struct tierce__spec_claim *claim);
/* Sets specs[i] for each spec of the claim. SESSIONS held. */
void tierce__live_add_specs(const struct tierce__live *live, struct tierce__spec_claim *claim,
                            bool *specs);
void tierce__live_put_claim(struct tierce__live *live, struct tierce__spec_claim *claim);
void tierce__live_drop_claim(struct tierce__live *live, struct tierce__spec_claim *claim);

/* Copies a source that may leave its record, unless it was copied before: its outcome may be known
 * only later. Errors: -ENOMEM; the session's arena then fails for good, so a batch copies them when
 * it is made, and only one of another leader copies them at its end. */
TIERCE_MUSTUSE int tierce__session_keep_source(struct tierce__write_session *session,
                                               struct tierce__move_source *source,
                                               const struct tierce__location *location);

/* SESSIONS held. */
TIERCE_MUSTUSE int tierce__live_put_session(struct tierce__live *live,
                                            struct tierce__write_session *session);
struct tierce__write_session *tierce__live_session(const struct tierce__live *live, const char *id);
void tierce__live_drop_session(struct tierce__live *live, struct tierce__write_session *session);

/* Write a session as a note, in the arena, and read it back into a new session with its own
 * arena. */
TIERCE_MUSTUSE int tierce__session_write(const struct tierce__write_session *session,
                                         struct tierce__arena *arena, const void **out,
                                         size_t *bytes);
TIERCE_MUSTUSE int tierce__session_read(struct tierce__write_session **out,
                                        struct tierce__locator *locator, uint64_t note,
                                        const void *bytes, size_t count);

/* ---- locator_finish.c ------------------------------------------------------------------------ */

/* Finds a session and marks it busy. `mask` selects the keys that were written (NULL: all). Errors:
 * -ESRCH, TIERCE_E_ARGUMENT (a mask of another length). */
TIERCE_MUSTUSE int tierce__live_begin_finish(struct tierce__live *live, const char *id,
                                             const struct tierce__mask *mask,
                                             struct tierce__write_session **out,
                                             char why[TIERCE__WHY_BYTES]);
/* Ends a busy session. On success it is destroyed; on an error it is unchanged or doubtful. */
TIERCE_MUSTUSE int tierce__live_finish(struct tierce__live *live,
                                       struct tierce__write_session *session);
/* The same; *kept is the number of blocks that serve now, 0 after an error. */
TIERCE_MUSTUSE int tierce__live_finish_counted(struct tierce__live *live,
                                               struct tierce__write_session *session, size_t *kept);
/* Ends a busy session whose batch was tried before, with an unknown outcome. -EAGAIN: the batch was
 * not written, and the session is as before it. */
TIERCE_MUSTUSE int tierce__live_finish_doubtful(struct tierce__live *live,
                                                struct tierce__write_session *session);
/* Undoes tierce__live_begin_finish. */
void tierce__live_unfinish(struct tierce__live *live, struct tierce__write_session *session);

/* ---- locator_count.c ------------------------------------------------------------------------- */

/* Adds the serving bytes of an instance that no call uses yet, from the counters of its index.
 * has_shared: storages with numbers from 64 on exist, which have no counter of their own; their
 * bytes are read from the records, all of which are read once. Errors: of the store, -ENOMEM. */
TIERCE_MUSTUSE int tierce__live_count_served(const struct tierce__live *live, bool has_shared,
                                             struct tierce__quota_sums *sums);

/* ---- locator_renew.c ------------------------------------------------------------------------- */

/* How the last sessions of all instances have ended. */
struct tierce__session_endings;
TIERCE_MUSTUSE int tierce__session_endings_create(struct tierce__session_endings **out);
void tierce__session_endings_destroy(struct tierce__session_endings *endings);

/* Remembers that a session finished, or that it expired if it is late. SESSIONS held. */
void tierce__live_note_ending(struct tierce__live *live,
                              const struct tierce__write_session *session);

/* ---- locator_remove.c ------------------------------------------------------------------------ */

struct tierce__removed {
    uint64_t keys; /* keys that lost at least one location */
    uint64_t locations, bytes;
    size_t offset; /* index of the current step's first key */
};

/* Returns whether the i-th key of the step (index removed.offset + i of all) is removed. Called
 * under the key's lock. */
typedef bool (*tierce__remove_if_fn)(void *arg, size_t i, int64_t key,
                                     const struct tierce__record *record);

/* Returns whether a location of a removed key, one of the record's, is removed. Called under the
 * key's lock. */
typedef bool (*tierce__remove_location_fn)(void *arg, const struct tierce__record *record,
                                           const struct tierce__location *location);

/* The manner of a removal. */
struct tierce__removal {
    int64_t due_us;  /* when the bytes are deleted */
    bool keep_bytes; /* only the index entries are removed */
    bool are_lost;   /* the storage has lost the bytes: it is not asked to delete them */
    bool is_all;     /* every key of the instance is removed, so no holes remain */
    tierce__remove_if_fn wanted; /* or NULL: all keys are removed */
    tierce__remove_location_fn
        wanted_location; /* or NULL: all of a key's locations. A key that keeps locations stays */
    void *wanted_arg;    /* of both */
};

/* Removes keys from the index in atomic steps. Adds to `removed`. Errors: of the store; earlier
 * steps are done. */
TIERCE_MUSTUSE int tierce__live_remove(struct tierce__live *live, const int64_t *keys, size_t count,
                                       const struct tierce__removal *how,
                                       struct tierce__removed *removed);

/* The same for all keys of the instance; their bytes are due for deletion at once. */
TIERCE_MUSTUSE int tierce__live_trim(struct tierce__live *live, const struct tierce__removal *how,
                                     struct tierce__removed *removed);

/* Deletes everything of an instance that rejects calls: ends its sessions, removes its blocks, and
 * waits for the deleter. After an error sessions may begin again. Errors: -EBUSY after the
 * deadline; those of the store. */
TIERCE_MUSTUSE int tierce__live_empty(struct tierce__live *live, uint64_t deadline_ns,
                                      char why[TIERCE__WHY_BYTES]);

/* Blocks that sessions write now will not serve. */
void tierce__live_mark_claims(struct tierce__live *live);

/* When the slots of a deletion may be reused: a client that received one may still read it. */
int64_t tierce__live_reusable_us(const struct tierce__live *live, int64_t due_us);

/* ---- locator_scan.c -------------------------------------------------------------------------- */

/* A round of a scan. */
struct tierce__scan_round {
    const struct tierce__storage_scan *scan;
    const struct tierce__catalog *catalog;
    struct tierce__removed removed;
};

/* Of each kind of scan. */
struct tierce__scan_rule {
    const char *event; /* in the log */
    bool (*wants)(const struct tierce__storage *storage);
    /* At the begin of a scan, and of an instance; may be NULL. */
    void (*begin)(struct tierce__locator *locator);
    int (*enter)(struct tierce__live *live, struct tierce__scan_round *round);
    /* Some keys of an instance. */
    int (*page)(struct tierce__live *live, struct tierce__scan_round *round, const int64_t *keys,
                size_t count);
    /* All instances were scanned. */
    int (*end)(struct tierce__locator *locator, struct tierce__scan_round *round,
               char why[TIERCE__WHY_BYTES]);
};
extern const struct tierce__scan_rule tierce__scan_forgets, tierce__scan_drains;

/* A round handles a limited number of keys of each instance; *goes_on: another one should follow.
 * The states of storages are in the registry, so the next leader begins the scan again. Returns
 * the number of keys that lost a location. Thread: the reclaimer's. */
size_t tierce__locator_scan(struct tierce__locator *locator, enum tierce__scan kind,
                            const struct tierce__catalog *catalog, bool *goes_on);
/* Gives up the scans in progress. */
void tierce__locator_stop_scans(struct tierce__locator *locator);

/* Forgets the counts of locator_drain.c. No scan is in progress. */
void tierce__locator_clear_drains(struct tierce__locator *locator);

/* The index of a storage among those of the scan; SIZE_MAX: it is none of them. */
size_t tierce__scan_find(const struct tierce__storage_scan *scan, uint16_t number);
/* The same for the storage of a location. */
size_t tierce__scan_find_location(const struct tierce__scan_round *round,
                                  const struct tierce__location *location);

/* ---- locator_move.c -------------------------------------------------------------------------- */

/* Tells the queue how the moves of a session have ended. The session's batch was written. */
void tierce__live_end_moves(struct tierce__live *live, const struct tierce__write_session *session);

/* When the bytes of a source are deleted that leaves its record now: readers that were given it may
 * take some time. */
int64_t tierce__live_departure_due_us(struct tierce__live *live);

/* ---- locator_invalidate.c ---------------------------------------------------------------------
 */

/* -ESTALE: the session began before an invalidation; it was ended, and nothing of it was stored.
 * Errors: as finish. */
TIERCE_MUSTUSE int tierce__live_refuse_stale(struct tierce__live *live,
                                             struct tierce__write_session *session,
                                             char why[TIERCE__WHY_BYTES]);

/* ---- choice.c -------------------------------------------------------------------------------- */

/* A request to store `count` keys of the given sizes. */
struct tierce__storage_choice_opts {
    struct tierce__live *live; /* counts rejected keys */
    const struct tierce__catalog *catalog;
    const struct tierce__group *group;
    const uint64_t *bytes;
    size_t count;
    const char *host_id; /* the client's host; or NULL */
    /* Of a move: which candidates may be the target. It takes room only below the watermarks of
     * the storage and the type, so that no block is evicted for it; the quotas do not note how much
     * it lacked, and nothing counts as rejected. NULL: the write session of a client. */
    bool (*may_take)(void *arg, const struct tierce__storage *storage, size_t position);
    void *may_take_arg; /* position: of the candidate in the group's list */
};

/* Selects the first of the group's candidates that its strategy allows, that is available and has
 * room for all keys. If none has, it selects the one with room for the most keys. Of a pool of
 * nodes, the parts are tried by tierce__nodes_suit. Reserves the *fit leading keys that fit, at
 * least one. Errors: TIERCE_E_FULL, TIERCE_E_DOWN. */
TIERCE_MUSTUSE int tierce__choose_storage(const struct tierce__storage_choice_opts *opts,
                                          const struct tierce__storage **out, size_t *fit,
                                          char why[TIERCE__WHY_BYTES]);

/* The limits of reservations in a storage for an instance of the group. */
void tierce__choose_limits(struct tierce__quota_limits *out, const struct tierce__group *group,
                           const struct tierce__storage *storage);

/* The place of a storage, or of its pool, among the group's candidates, which are listed from hot
 * to cold; SIZE_MAX: it is none of them. */
size_t tierce__candidate_position(const struct tierce__group *group,
                                  const struct tierce__storage *storage);

/* Whether a move may fill a storage further: it is available, and below all watermarks. */
bool tierce__storage_has_quiet_room(const struct tierce__locator *locator,
                                    const struct tierce__group *group,
                                    const struct tierce__storage *storage);

/* Whether a candidate has such room, in any part if it is a pool. */
bool tierce__candidate_has_quiet_room(const struct tierce__locator *locator,
                                      const struct tierce__catalog *catalog,
                                      const struct tierce__group *group, size_t position);

/* The storage of a location, by its number or by the name in its first text; NULL: not
 * registered. */
const struct tierce__storage *tierce__location_storage(const struct tierce__catalog *catalog,
                                                       const struct tierce__location *location);

/* The state of a call that chooses locations. Consecutive blocks mostly lie in one storage, so its
 * lookup and health are cached here. */
struct tierce__chooser {
    struct tierce__locator *locator;
    const struct tierce__catalog *catalog;
    int64_t now_us, ttl_us; /* expired blocks do not serve */
    uint64_t generation;    /* nor do blocks of others */
    const bool *specs; /* for each spec of the instance, whether a block must have it; NULL: any
                          spec is enough */
    size_t spec_count;
    uint16_t last;   /* number of the last location's storage; 0: none */
    uint32_t weight; /* weight of that storage; 0: not available */
};

void tierce__chooser_begin(struct tierce__chooser *out, const struct tierce__live *live,
                           const struct tierce__catalog *catalog);

/* The place from which a part of a block is read; place NULL: none. */
struct tierce__part {
    const struct tierce__location *location;
    const struct tierce__spec_place *place;
};

/*
 * Chooses where to read a block. Of the locations whose storage is available, those with the most
 * parts are candidates; one is drawn by the weights of their kinds. Parts that were stored later
 * may come from other locations. `parts` has one entry per spec of the instance; *count of them
 * have a place. Returns the location; NULL: there is none.
 */
const struct tierce__location *tierce__choose_parts(struct tierce__chooser *chooser,
                                                    const struct tierce__record *record,
                                                    struct tierce__part *parts, size_t *count);

/* Whether a block has expired or was invalidated: it does not serve, and its record is removed. */
bool tierce__record_is_over(const struct tierce__chooser *chooser,
                            const struct tierce__record *record);

/* Returns whether an available location has the part. */
bool tierce__record_has_part(struct tierce__chooser *chooser, const struct tierce__record *record,
                             size_t spec);

/* Returns whether the block is not over, is available, and has all required parts. */
bool tierce__record_serves(struct tierce__chooser *chooser, const struct tierce__record *record);

#endif
