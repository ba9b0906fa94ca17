/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_LOCATOR_H
#define TIERCE_MANAGER_LOCATOR_H

#include "manager/locate/attention.h"
#include "manager/meta/meta_index.h"
#include "manager/move/moves.h"
#include "manager/pilot/ghosts.h"
#include "manager/reclaim/quota.h"
#include "manager/storage/nodes.h"

/*
 * The index of blocks and their locations: the calls that engines make. One object per manager; it
 * is open between tierce__locator_recover (this process leads) and tierce__locator_drop.
 *
 *     rc = tierce__locator_start_write(locator, &(struct tierce__write_request){...}, &arena,
 *                                      &started, why);
 *     // the client writes its blocks to started.locations
 *     rc = tierce__locator_renew_write(locator, id, started.session, &renewed, why);
 *     rc = tierce__locator_finish_write(locator, id, started.session, &written, why);
 *     rc = tierce__locator_get(locator, &(struct tierce__get_request){...}, &arena, &got, why);
 *
 * The states of a location, and the code that changes them, are in the table in
 * docs/inside/design/003-manager.md. Results live in the caller's arena.
 *
 * All calls return 0, or with `why` in words:
 *   -ENOENT                no such instance
 *   -ESRCH                 no such write session, or it has timed out
 *   -ESTALE                a write: the blocks were invalidated since the client computed them
 *   TIERCE_E_ARGUMENT      the request is invalid
 * TIERCE_E_UNSUPPORTED an unknown query type
 *   TIERCE_E_FULL          a quota or a storage is used up, or the index holds max_key_count
 *   TIERCE_E_DOWN          no storage is available
 *   TIERCE_E_REFUSED       this process no longer leads
 *   TIERCE_E_CLOSED        between drop and recover
 *   negative errno, -ENOMEM, TIERCE_E_DEADLINE: of the index's store
 *
 * Threads: any. Calls block where the instance's store does: tierce__locator_blocks.
 */

#define TIERCE__WHY_BYTES        256u
#define TIERCE__SESSION_ID_BYTES 32u /* of [a-z0-9] */

struct tierce__locator;

struct tierce__locator_opts {
    size_t size;
    struct tierce__registry *registry; /* [borrow until close] */
    struct tierce__storages *storages; /* [borrow until close] */
    struct tierce__nodes *nodes;       /* or NULL: no pools. [borrow until close] */
    int64_t (*now_us)(void *arg);      /* wall clock; NULL: the system's */
    void *clock_arg;
    uint64_t seed; /* for ids and random choices; 0: from the kernel */
    /* How long a freed slot is not reused: reuse_delay_ms after its location was removed (clients
     * may still read it), late_write_ms after its write failed or timed out (it may still go on).
     * 0: one minute, ten minutes. */
    uint32_t reuse_delay_ms, late_write_ms;
    uint32_t delete_threads;                        /* 0: deletions wait for tierce__deleter_step */
    const struct tierce__quota_group *quota_groups; /* [borrow for the call] */
    size_t quota_group_count;
    /* NULL: tierce__meta_store_find. */
    const struct tierce__meta_store_ops *(*find_store)(const char *type, const char *uri);
    struct tierce__ghosts *ghost; /* sees the requests; or NULL. [borrow until close] */
    uint64_t move_rate; /* bytes a second between each two storages; 0: no limit (moves.h) */
};

TIERCE_MUSTUSE int tierce__locator_open(struct tierce__locator **out,
                                        const struct tierce__locator_opts *opts);
void tierce__locator_close(struct tierce__locator *locator);

/* Replaces the limits that groups share. Errors: -ENOMEM, nothing has changed. */
TIERCE_MUSTUSE int tierce__locator_set_quotas(struct tierce__locator *locator,
                                              const struct tierce__quota_group *groups,
                                              size_t count);

/* After it set_quotas with the same limits does not fail, unless the locator was dropped meanwhile.
 * Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__locator_prepare_quotas(struct tierce__locator *locator,
                                                  const struct tierce__quota_group *groups,
                                                  size_t count);

/* Begins to serve: opens the spaces of all instances of the registry, which is loaded already, and
 * resumes the work in their notes. All writes carry `fence`. */
TIERCE_MUSTUSE int tierce__locator_recover(struct tierce__locator *locator, uint64_t fence,
                                           char why[TIERCE__WHY_BYTES]);
/* Fills the space of an instance when tierce__locator_recover opens it, before its counters and
 * notes are read. Errors: recover returns them, with `why`. */
typedef int (*tierce__locator_fill_fn)(void *arg, struct tierce__meta_space *space,
                                       const struct tierce__instance *instance,
                                       const struct tierce__catalog *catalog,
                                       char why[TIERCE__WHY_BYTES]);
/* Sets the function for the next recover; NULL: none. */
void tierce__locator_set_filler(struct tierce__locator *locator, tierce__locator_fill_fn fill,
                                void *arg);
/* Stops serving: waits for the calls in progress and drops all state in memory. */
void tierce__locator_drop(struct tierce__locator *locator);

/* Opens an instance that the registry has; called after it was added. */
TIERCE_MUSTUSE int tierce__locator_add_instance(struct tierce__locator *locator, const char *id,
                                                char why[TIERCE__WHY_BYTES]);
/* Removes an instance; called before the registry removes it. The instance rejects calls, and its
 * blocks are deleted. -EBUSY: writes or deletions are still running after 10 s, or another call
 * removes it; retry later. */
TIERCE_MUSTUSE int tierce__locator_remove_instance(struct tierce__locator *locator, const char *id,
                                                   char why[TIERCE__WHY_BYTES]);

/* Returns whether calls on this instance may block on I/O; false if it does not exist. */
bool tierce__locator_blocks(struct tierce__locator *locator, const char *instance_id);

/* ---- types of the calls ---------------------------------------------------------------------- */

/* A set of indexes: [0, offset), or those with a non-zero value. */
struct tierce__mask {
    bool is_values;
    int64_t offset; /* negative: all, as in KVCM */
    const uint8_t *values;
    size_t count;
};

static inline bool tierce__mask_has(const struct tierce__mask *mask, size_t i)
{
    if (mask->is_values)
        return i < mask->count && mask->values[i] != 0;
    return i < (uint64_t)mask->offset;
}

struct tierce__found_spec {
    const char *name;
    const char *uri;
};

/* A location as clients see it. type 0: the block has no serving location. */
struct tierce__found {
    uint8_t type;
    uint32_t spec_count_all; /* the number of the instance's specs that the block has */
    const struct tierce__found_spec *specs; /* the requested ones */
    size_t spec_count;
};

/* ---- get ------------------------------------------------------------------------------------- */

/* Values of KVCM's QueryType. */
enum tierce__query {
    TIERCE__QUERY_BATCH = 1,  /* each key separately */
    TIERCE__QUERY_PREFIX = 2, /* the leading unmasked keys that serve */
    TIERCE__QUERY_WINDOW = 3, /* the last run of `window` keys that serve */
};

struct tierce__get_request {
    const char *instance_id;
    int query; /* enum tierce__query, unchecked */
    const int64_t *keys;
    size_t count;
    struct tierce__mask mask; /* the blocks that the engine has already; QUERY_PREFIX only */
    int32_t window;
    /* A block is a hit if it has all of these specs, and only they are returned. None: any spec is
     * a hit. TIERCE_E_ARGUMENT: the instance does not have such a spec. */
    const char *const *spec_names;
    size_t spec_name_count;
    uint16_t hint; /* of the blocks that are returned (hint.h); 0: none */
    /* For instances with string keys: the keys' texts, which must equal the stored ones. Else
     * NULL. */
    const char *const *key_texts;
};

/* PREFIX: the hits. BATCH and WINDOW: one for each key. */
struct tierce__got {
    struct tierce__found *found;
    size_t count;
    size_t hits;
    int32_t block_size;                       /* tokens of the instance's blocks */
    const struct tierce__layers_note *layers; /* of the instance; NULL: not known */
};

TIERCE_MUSTUSE int tierce__locator_get(struct tierce__locator *locator,
                                       const struct tierce__get_request *request,
                                       struct tierce__arena *arena, struct tierce__got *out,
                                       char why[TIERCE__WHY_BYTES]);

/* ---- write ----------------------------------------------------------------------------------- */

#define TIERCE__WRITE_TIMEOUT_S_MAX (24 * 60 * 60)

struct tierce__write_request {
    const char *instance_id;
    const int64_t *keys; /* a chain in order; repeated keys count once */
    size_t count;
    const char *const *spec_groups; /* [count] or NULL: all specs */
    const int64_t *sizes; /* [count] or NULL: bytes of a key in each of its specs; 0: the specs' */
    int64_t timeout_s;    /* 0: the session ends at once; at most TIERCE__WRITE_TIMEOUT_S_MAX */
    int64_t ttl_s;        /* time to live of the blocks after the session's end; 0: none */
    uint16_t hint;        /* of the blocks (hint.h); 0: none. The next leader forgets it */
    const char *const *key_texts;
    const char *host_id; /* the client's host, for nodes of pools; or NULL */
    uint64_t generation; /* that the client knows (tierce__locator_generation); 0: none */
};

struct tierce__started {
    char session[TIERCE__SESSION_ID_BYTES + 1];
    /* Over all keys: those that need not be written, because they are stored, being written, or
     * exceed the quotas. An offset if these are the leading keys. A block of which some specs are
     * neither stored nor being written is not masked: these specs are written. */
    struct tierce__mask mask;
    struct tierce__found *locations; /* one for each key that is not masked, in order */
    size_t count;
    int32_t block_size;    /* tokens of the instance's blocks */
    const uint64_t *bytes; /* of each key of the request, masked or not: the sum over its specs */
    const struct tierce__layers_note *layers; /* of the instance; NULL: not known */
};

/* Starts a write session. Keys that are not masked have places, and count against quotas, until the
 * session ends. */
TIERCE_MUSTUSE int tierce__locator_start_write(struct tierce__locator *locator,
                                               const struct tierce__write_request *request,
                                               struct tierce__arena *arena,
                                               struct tierce__started *out,
                                               char why[TIERCE__WHY_BYTES]);

/* Ends a session. `written` refers to the session's own keys; a mask of another length is
 * TIERCE_E_ARGUMENT, and the session is unchanged. */
TIERCE_MUSTUSE int tierce__locator_finish_write(struct tierce__locator *locator,
                                                const char *instance_id, const char *session,
                                                const struct tierce__mask *written,
                                                char why[TIERCE__WHY_BYTES]);

/* A checksum of the bytes of one key and spec that a session has written. */
struct tierce__written_sum {
    size_t key; /* of the session's own keys */
    const char *spec;
    uint8_t sum[TIERCE__PLACE_SUM_BYTES]; /* not all 0 */
};

/* The writer's statements about the blocks of a session. */
struct tierce__written_notes {
    const struct tierce__written_sum *sums;
    size_t sum_count;
    uint16_t hint; /* replaces that of the request; 0: it stays */
};

/* The same, and the records keep the sums and the hint: the URIs in answers have a sum as `sum`. A
 * sum of a key or spec that the session does not write is TIERCE_E_ARGUMENT, and the session is
 * unchanged. */
TIERCE_MUSTUSE int tierce__locator_finish_write_noted(struct tierce__locator *locator,
                                                      const char *instance_id, const char *session,
                                                      const struct tierce__mask *written,
                                                      const struct tierce__written_notes *notes,
                                                      char why[TIERCE__WHY_BYTES]);

/* Gives blocks a hint without using them; unknown keys are ignored. The hint may be lost, as a use
 * may be (meta_store.h). */
TIERCE_MUSTUSE int tierce__locator_hint(struct tierce__locator *locator, const char *instance_id,
                                        const int64_t *keys, size_t count, uint16_t hint,
                                        char why[TIERCE__WHY_BYTES]);

struct tierce__ending_request {
    const char *instance_id, *session;
    const char *const *uris; /* of the session, which were written, with or without size= */
    size_t count;            /* 0: all of the session's were written */
};

/* How the keys of a session ended, in the order of the session. */
struct tierce__entries_ended {
    const uint8_t *written; /* 0: not written, or dropped. NULL: the session has not ended */
    const uint64_t *bytes;  /* 0: unknown, or not written */
    size_t count;
};

/*
 * The same for entries by name, whose sizes were unknown when the write began. If a URI has no
 * size, the storage is asked; if the storage does not know, the entry counts 0 bytes. Entries that
 * exceed the quotas are dropped, the others serve, and the call returns TIERCE_E_FULL; *out is set
 * then too. If a URI is not the session's, or the instance holds blocks, the session is unchanged.
 */
TIERCE_MUSTUSE int tierce__locator_finish_entries(struct tierce__locator *locator,
                                                  const struct tierce__ending_request *request,
                                                  struct tierce__arena *arena,
                                                  struct tierce__entries_ended *out,
                                                  char why[TIERCE__WHY_BYTES]);

/* How a session that does not exist any more has ended. */
enum tierce__session_end {
    TIERCE__SESSION_UNKNOWN,  /* it never began, or ended long ago, or under another leader */
    TIERCE__SESSION_FINISHED, /* by a call, or a call is ending it */
    TIERCE__SESSION_EXPIRED,  /* it timed out */
};

struct tierce__renewed {
    int64_t left_us;              /* the time until the session times out */
    enum tierce__session_end end; /* after -ESRCH */
};

/* Extends a session by the timeout with which it began, from now on, but at most to
 * TIERCE__WRITE_TIMEOUT_S_MAX after its start; it is never shortened. A session that is late but
 * was not ended yet is extended, too. -ESRCH: out->end says how it has ended. Never blocks. */
TIERCE_MUSTUSE int tierce__locator_renew_write(struct tierce__locator *locator,
                                               const char *instance_id, const char *session,
                                               struct tierce__renewed *out,
                                               char why[TIERCE__WHY_BYTES]);

/* Returns the number of keys of a session; -ESRCH. */
TIERCE_MUSTUSE int tierce__locator_session_keys(struct tierce__locator *locator,
                                                const char *instance_id, const char *session,
                                                size_t *count);

/* ---- remove, trim, look ---------------------------------------------------------------------- */

/* Removes the keys that are not masked; unknown keys are ignored. Keys that are being written are
 * dropped when their session ends. */
TIERCE_MUSTUSE int tierce__locator_remove(struct tierce__locator *locator, const char *instance_id,
                                          const int64_t *keys, size_t count,
                                          const struct tierce__mask *mask,
                                          char why[TIERCE__WHY_BYTES]);

/* The same for entries by name (NULL: as above): an entry of another name with the same key
 * stays. */
TIERCE_MUSTUSE int tierce__locator_remove_entries(struct tierce__locator *locator,
                                                  const char *instance_id, const int64_t *keys,
                                                  const char *const *texts, size_t count,
                                                  char why[TIERCE__WHY_BYTES]);

/* The reason why a client reports a location. */
enum tierce__report_reason {
    TIERCE__REPORT_MISSING,  /* the storage does not have the object */
    TIERCE__REPORT_SHORT,    /* it is shorter, or longer, than the block's part */
    TIERCE__REPORT_DAMAGED,  /* its checksum does not match */
    TIERCE__REPORT_IDENTITY, /* it is another block's: two keys share 64 bits, or it was overwritten
                              */
    TIERCE__REPORT_RETRACTED, /* the client that wrote it takes it back */
    TIERCE__REPORT_REASONS,
};

/* One of the places of a block, as it was given to the client. */
struct tierce__location_report {
    int64_t key;
    const char *spec_name, *uri;
    enum tierce__report_reason reason;
};

/*
 * Removes the locations that still have the reported places, with their bytes; *dropped is their
 * number. A location with several specs leaves as a whole. Places that have left, or belong to
 * another block by now, are ignored, and so are those in a storage with a wrong mark, unless their
 * writer takes them back. Nothing is verified. Errors: as remove; earlier steps are
 * done.
 */
TIERCE_MUSTUSE int tierce__locator_report(struct tierce__locator *locator, const char *instance_id,
                                          const struct tierce__location_report *reports,
                                          size_t count, uint64_t *dropped,
                                          char why[TIERCE__WHY_BYTES]);

/* Reports since the start, by reason. */
void tierce__locator_reports(const struct tierce__locator *locator,
                             uint64_t counts[TIERCE__REPORT_REASONS]);
/* "missing", "short", "damaged", "identity", "retracted" */
const char *tierce__report_reason_name(enum tierce__report_reason reason);

enum tierce__trim {
    TIERCE__TRIM_ALL = 1,  /* blocks and their bytes */
    TIERCE__TRIM_META = 2, /* the index only; bytes stay in the storages */
    TIERCE__TRIM_TIME = 3, /* blocks stored from begin_s to end_s, both included */
};
TIERCE_MUSTUSE int tierce__locator_trim(struct tierce__locator *locator, const char *instance_id,
                                        int trim, int64_t begin_s, int64_t end_s,
                                        char why[TIERCE__WHY_BYTES]);

/* Values of KVCM's location status. */
enum tierce__look_state {
    TIERCE__LOOK_NOT_FOUND = 0,
    TIERCE__LOOK_NEW = 1,
    TIERCE__LOOK_WRITING = 2,
    TIERCE__LOOK_SERVING = 3,
    TIERCE__LOOK_DELETING = 4,
};

struct tierce__looked {
    enum tierce__look_state state;
    char id[TIERCE__LOCATION_ID_BYTES + 1]; /* "" if there is none */
    struct tierce__found found;
};

struct tierce__look_request {
    const char *instance_id;
    const int64_t *keys;
    size_t count;
    struct tierce__mask mask;
};

/* Returns the state of each key that is not masked. Changes nothing. */
TIERCE_MUSTUSE int tierce__locator_look(struct tierce__locator *locator,
                                        const struct tierce__look_request *request,
                                        struct tierce__arena *arena, struct tierce__looked **out,
                                        size_t *out_count, char why[TIERCE__WHY_BYTES]);

/* ---- moves ----------------------------------------------------------------------------------- */

/*
 * Copies of indexed blocks to other storages. A batch is a write session whose storage the manager
 * chooses, and whose keys have locations already: claims keep engines from writing the same parts,
 * and its note has its bytes deleted after a crash. At its end the copy joins the record; if it is
 * a move, the source leaves in the same batch. A block that was removed, invalidated, or lost its
 * source meanwhile gets no copy. A move is no use of the block, and stores nothing new.
 */

/* The blocks that wait; and the number of those in batches now. */
struct tierce__moves *tierce__locator_moves(struct tierce__locator *locator);
uint64_t tierce__locator_moving(struct tierce__locator *locator);

struct tierce__held_moves {
    const char *instance_id, *session;
};

struct tierce__take_moves {
    const char *host_id; /* blocks in storages of this host come first; or NULL */
    size_t blocks_max;   /* 0: none */
    uint64_t bytes_max;  /* one block is returned even if it is larger; 0: no limit */
    const struct tierce__held_moves *held; /* batches that are renewed */
    size_t held_count;
};

struct tierce__move_batch {
    char session[TIERCE__SESSION_ID_BYTES + 1];
    const char *instance_id, *from_storage, *to_storage;
    bool is_copy;
    size_t count;
    const int64_t *keys;
    const struct tierce__found *from, *to; /* of each key, with the same specs in the same order */
};

struct tierce__taken_moves {
    const struct tierce__move_batch *batches;
    size_t count;
    const char *const *lost; /* sessions of `held` that have ended */
    size_t lost_count;
    int64_t wait_ms; /* until there may be more */
};

/* Makes batches of waiting blocks, and renews others. Blocks for which there is no room now wait
 * on. Errors: -ENOMEM, TIERCE_E_CLOSED; batches that were made then time out. */
TIERCE_MUSTUSE int tierce__locator_take_moves(struct tierce__locator *locator,
                                              const struct tierce__take_moves *request,
                                              struct tierce__arena *arena,
                                              struct tierce__taken_moves *out,
                                              char why[TIERCE__WHY_BYTES]);

/* Ends a batch. One result for each of its blocks, TIERCE__MOVED to TIERCE__MOVE_UNDONE;
 * *moved is the number of blocks that have the copy now. Sources that are missing or damaged leave
 * the index, as after a report. TIERCE_E_ARGUMENT: another number of results; -ESRCH also: the
 * session is no batch of moves. The batch is unchanged then. */
TIERCE_MUSTUSE int tierce__locator_finish_moves(struct tierce__locator *locator,
                                                const char *instance_id, const char *session,
                                                const enum tierce__move_result *results,
                                                size_t count, size_t *moved,
                                                char why[TIERCE__WHY_BYTES]);

/* The content of a storage: exact, while this process leads. */
struct tierce__storage_left {
    uint64_t bytes; /* that serve or are being written */
    /* That have left the index, and whose deletion the storage has not confirmed. The locations of
     * failed writes are among them until their second deletion; their bytes are not. Locations are
     * counted, and due_in_us is set, when `bytes` is 0. */
    uint64_t deleting_bytes, deleting_locations;
    int64_t due_in_us; /* until the last of these deletions is tried; 0: all are due */
};
void tierce__locator_storage_left(struct tierce__locator *locator, uint16_t storage,
                                  struct tierce__storage_left *out);

/* How far the draining of a storage is (enum tierce__draining). */
struct tierce__drain_state {
    /* "moving", "dropping"; "deleting": no block is left, but the storage has not confirmed all
     * deletions; "drained": it holds nothing of the manager; "": the storage is not drained. */
    const char *name;
    struct tierce__storage_left left;
    bool is_scanned; /* the next two numbers are those of the last complete scan */
    uint64_t left_locations, unverifiable_locations; /* the latter can only be dropped */
    uint64_t queued_blocks;
    char why[256]; /* why it does not end yet; "": nothing keeps it */
};
void tierce__locator_drain_state(struct tierce__locator *locator,
                                 const struct tierce__storage *storage,
                                 struct tierce__drain_state *out);

/* ---- generations ----------------------------------------------------------------------------- */

/*
 * Each invalidation of an instance raises its generation. A record has the generation in which the
 * session that stored it began, and serves only while the instance has the same one.
 */

/* The generation of an instance as clients know it: from 1 on. 0: there is no such instance. Calls
 * that begin after this one find no block of an older generation. */
uint64_t tierce__locator_generation(struct tierce__locator *locator, const char *instance_id);

/* Takes over a generation that the registry has. When it returns, no block of an older one is found
 * any more, and no session that began before can store one. The reclaimer removes the old records.
 */
TIERCE_MUSTUSE int tierce__locator_invalidate(struct tierce__locator *locator,
                                              const struct tierce__instance *instance,
                                              char why[TIERCE__WHY_BYTES]);

/* ---- time ------------------------------------------------------------------------------------ */

/* Ends the sessions that have timed out; returns their number. Called by a thread, or a
 * simulation. */
size_t tierce__locator_expire(struct tierce__locator *locator);

/* The wall-clock time at which the next session times out; INT64_MAX: there is none. */
int64_t tierce__locator_next_expiry(struct tierce__locator *locator);

/* ---- numbers --------------------------------------------------------------------------------- */

/* The reason why a key of a write request was rejected. */
enum tierce__rejection {
    TIERCE__REJECTED_BY_GROUP,    /* the group's quota */
    TIERCE__REJECTED_BY_TYPE,     /* the group's quota of a kind of storage */
    TIERCE__REJECTED_BY_SHARED,   /* a limit that groups share */
    TIERCE__REJECTED_BY_STORAGE,  /* a storage's capacity */
    TIERCE__REJECTED_BY_KEYS,     /* max_key_count */
    TIERCE__REJECTED_BY_SESSIONS, /* too many keys are being written */
    TIERCE__REJECTED_NO_STORAGE,  /* none is available */
    TIERCE__REJECTED_BY_INDEX, /* the index's store rejects writes: a full disk, a lost connection
                                */
    TIERCE__REJECTIONS,
};

/* As metrics have it: "group_quota", ... */
const char *tierce__rejection_name(enum tierce__rejection reason);

struct tierce__usage {
    uint64_t keys, keys_max;                               /* keys_max 0: unlimited */
    uint64_t serving_bytes, writing_bytes, deleting_bytes; /* exact */
    uint64_t serving_by_type[16], writing_by_type[16], deleting_by_type[16]; /* type slots */
    uint64_t sessions, expired_sessions;
    uint64_t asked_keys, found_keys;                /* of gets, since this process began to lead */
    uint64_t cache_hits, cache_misses, cache_bytes; /* of search caches */
    uint64_t rejected_keys[TIERCE__REJECTIONS]; /* of writes, since this process began to lead */
    /* Blocks that were reclaimed since this process began to lead, and the sum of the times since
     * their last use. */
    uint64_t reclaimed_keys, reclaimed_idle_us;
    struct tierce__policy_hints hints; /* the same: uses with a hint, and their returns */
    /* For one instance: in the last reclaimed batch, the time since the most recently used block's
     * last use. */
    int64_t reclaim_age_us;
    uint64_t instances;
    int write_error; /* 0, or why the store of an index rejects writes: -ENOSPC, ... */
};

/* -ENOENT. */
TIERCE_MUSTUSE int tierce__locator_instance_usage(struct tierce__locator *locator, const char *id,
                                                  struct tierce__usage *out);
void tierce__locator_group_usage(struct tierce__locator *locator, const char *group,
                                 struct tierce__usage *out);
/* Places in a storage that readers were given since the start, by tierce__locator_get. */
uint64_t tierce__locator_storage_located(const struct tierce__locator *locator, uint16_t storage);
/* Reads the bytes in a storage, of all groups; other fields are 0. */
void tierce__locator_storage_usage(struct tierce__locator *locator, uint16_t storage,
                                   struct tierce__usage *out);

#endif
