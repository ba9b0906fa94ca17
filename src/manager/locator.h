/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_LOCATOR_H
#define TIERCE_MANAGER_LOCATOR_H

#include "manager/meta_index.h"
#include "manager/storages.h"

/*
 * Where blocks are: the calls that engines make. One object a manager; it works between
 * tierce__locator_recover (this process leads) and tierce__locator_drop.
 *
 *     rc = tierce__locator_start_write(locator, &(struct tierce__write_request){...}, &arena,
 *                                      &started, why);
 *     // the client writes its blocks to started.locations
 *     rc = tierce__locator_finish_write(locator, id, started.session, &written, why);
 *     rc = tierce__locator_get(locator, &(struct tierce__get_request){...}, &arena, &got, why);
 *
 * The states of a location, and who moves it from one to the next, are the table in
 * docs/design/003-manager.md. Results live in the caller's arena.
 *
 * All calls return 0, or with `why` in words:
 *   -ENOENT                no such instance
 *   -ESRCH                 no such write session, or it has timed out
 *   TIERCE_E_ARGUMENT      what was asked for makes no sense
 *   TIERCE_E_UNSUPPORTED   a query type that is none
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

/* A limit that several groups share, by InstanceGroup.global_quota_group_name. */
struct tierce__quota_group {
    const char *name;
    uint64_t capacity_bytes;
};

struct tierce__locator_opts {
    size_t size;
    struct tierce__registry *registry; /* [borrow until close] */
    struct tierce__storages *storages; /* [borrow until close] */
    int64_t (*now_us)(void *arg);      /* wall clock; NULL: the system's */
    void *clock_arg;
    uint64_t seed; /* ids and choices; 0: from the kernel */
    /* How long a slot is kept from being used again, after its location was removed (readers may
     * still be at it) and after its writer timed out (which may still be writing). 0: a
     * minute, ten minutes. */
    uint32_t reuse_delay_ms, late_write_ms;
    uint32_t delete_threads;                        /* 0: deletions wait for tierce__deleter_step */
    const struct tierce__quota_group *quota_groups; /* [borrow until close] */
    size_t quota_group_count;
    /* NULL: tierce__meta_store_find. */
    const struct tierce__meta_store_ops *(*find_store)(const char *type, const char *uri);
};

TIERCE_MUSTUSE int tierce__locator_open(struct tierce__locator **out,
                                        const struct tierce__locator_opts *opts);
void tierce__locator_close(struct tierce__locator *locator);

/* Takes over: opens the spaces of all instances of the registry, which was loaded before, and takes
 * up what their notes say. `fence` goes with all writes. */
TIERCE_MUSTUSE int tierce__locator_recover(struct tierce__locator *locator, uint64_t fence,
                                           char why[TIERCE__WHY_BYTES]);
/* Ends: waits for the calls in progress and forgets everything that is not durable. */
void tierce__locator_drop(struct tierce__locator *locator);

/* After the registry has added an instance (or said that it was there): makes it ready. */
TIERCE_MUSTUSE int tierce__locator_add_instance(struct tierce__locator *locator, const char *id,
                                                char why[TIERCE__WHY_BYTES]);
/* Before the registry removes one: all its blocks begin to be deleted, and it takes no call. */
TIERCE_MUSTUSE int tierce__locator_remove_instance(struct tierce__locator *locator, const char *id,
                                                   char why[TIERCE__WHY_BYTES]);

/* Whether calls on this instance may wait for I/O; false for one that does not exist. */
bool tierce__locator_blocks(struct tierce__locator *locator, const char *instance_id);

/* ---- what calls are made of ------------------------------------------------------------------ */

/* Which indexes are meant: [0, offset), or those with a non-zero value. */
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

/* A location as clients see it. type 0: the block has none that serves. */
struct tierce__found {
    uint8_t type;
    uint32_t spec_count_all;                /* of the instance's specs that the location has */
    const struct tierce__found_spec *specs; /* those that were asked for */
    size_t spec_count;
};

/* ---- get ------------------------------------------------------------------------------------- */

/* Values of KVCM's QueryType. */
enum tierce__query {
    TIERCE__QUERY_BATCH = 1,  /* each key for itself */
    TIERCE__QUERY_PREFIX = 2, /* the leading unmasked keys that serve */
    TIERCE__QUERY_WINDOW = 3, /* the last run of `window` keys that serve */
};

struct tierce__get_request {
    const char *instance_id;
    int query; /* enum tierce__query, unchecked */
    const int64_t *keys;
    size_t count;
    struct tierce__mask mask; /* what the engine holds itself; QUERY_PREFIX only */
    int32_t window;
    const char *const *spec_names; /* only these; all if there is none */
    size_t spec_name_count;
    /* Instances with string keys: the keys' texts, which must be those stored. Else NULL. */
    const char *const *key_texts;
};

/* PREFIX: the hits. BATCH and WINDOW: one for each key. */
struct tierce__got {
    struct tierce__found *found;
    size_t count;
    size_t hits;
};

TIERCE_MUSTUSE int tierce__locator_get(struct tierce__locator *locator,
                                       const struct tierce__get_request *request,
                                       struct tierce__arena *arena, struct tierce__got *out,
                                       char why[TIERCE__WHY_BYTES]);

/* ---- write ----------------------------------------------------------------------------------- */

#define TIERCE__WRITE_TIMEOUT_S_MAX (24 * 60 * 60)

struct tierce__write_request {
    const char *instance_id;
    const int64_t *keys; /* a chain in order; the same key twice counts once */
    size_t count;
    const char *const *spec_groups; /* [count] or NULL: all specs */
    int64_t timeout_s;              /* <= 0: the session ends at once; at most ..._S_MAX */
    const char *const *key_texts;
};

struct tierce__started {
    char session[TIERCE__SESSION_ID_BYTES + 1];
    /* Over all keys: those that need not be written, because they are there, being written, or
     * beyond what quotas leave room for. An offset where they are the leading ones. */
    struct tierce__mask mask;
    struct tierce__found *locations; /* one for each key that is not masked, in order */
    size_t count;
};

/* Keys that are left have a place, and count against quotas, until the session ends. */
TIERCE_MUSTUSE int tierce__locator_start_write(struct tierce__locator *locator,
                                               const struct tierce__write_request *request,
                                               struct tierce__arena *arena,
                                               struct tierce__started *out,
                                               char why[TIERCE__WHY_BYTES]);

/* `written` is over the session's own keys; a mask of another length leaves the session as it
 * is. */
TIERCE_MUSTUSE int tierce__locator_finish_write(struct tierce__locator *locator,
                                                const char *instance_id, const char *session,
                                                const struct tierce__mask *written,
                                                char why[TIERCE__WHY_BYTES]);

/*
 * The same for entries by name, whose sizes nobody knew when the write began: `uris` are those of
 * the session's that were written, with a size= behind them or not; none: all were. Where they do
 * not say a size, the storage is asked; what it cannot say counts 0 bytes. What quotas leave no
 * room for is dropped, and the rest serves: TIERCE_E_FULL. A URI that is not the session's leaves
 * it as it is.
 */
TIERCE_MUSTUSE int tierce__locator_finish_entries(struct tierce__locator *locator,
                                                  const char *instance_id, const char *session,
                                                  const char *const *uris, size_t count,
                                                  char why[TIERCE__WHY_BYTES]);

/* How many keys a session has; -ESRCH. */
TIERCE_MUSTUSE int tierce__locator_session_keys(struct tierce__locator *locator,
                                                const char *instance_id, const char *session,
                                                size_t *count);

/* ---- remove, trim, look ---------------------------------------------------------------------- */

/* Those of the keys that are not masked; what is not there is fine. What is being written is
 * dropped when its session ends. */
TIERCE_MUSTUSE int tierce__locator_remove(struct tierce__locator *locator, const char *instance_id,
                                          const int64_t *keys, size_t count,
                                          const struct tierce__mask *mask,
                                          char why[TIERCE__WHY_BYTES]);

/* The same for entries by name (NULL: as above): one of another name with the same key stays. */
TIERCE_MUSTUSE int tierce__locator_remove_entries(struct tierce__locator *locator,
                                                  const char *instance_id, const int64_t *keys,
                                                  const char *const *texts, size_t count,
                                                  char why[TIERCE__WHY_BYTES]);

enum tierce__trim {
    TIERCE__TRIM_ALL = 1,  /* blocks and their bytes */
    TIERCE__TRIM_META = 2, /* what is known of them; bytes stay where they are */
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
    char id[TIERCE__LOCATION_ID_BYTES + 1]; /* "" where there is none */
    struct tierce__found found;
};

struct tierce__look_request {
    const char *instance_id;
    const int64_t *keys;
    size_t count;
    struct tierce__mask mask;
};

/* One for each key that is not masked. Changes nothing. */
TIERCE_MUSTUSE int tierce__locator_look(struct tierce__locator *locator,
                                        const struct tierce__look_request *request,
                                        struct tierce__arena *arena, struct tierce__looked **out,
                                        size_t *out_count, char why[TIERCE__WHY_BYTES]);

/* ---- time ------------------------------------------------------------------------------------ */

/* Ends the sessions whose time is over; returns how many. Called by a thread, or a simulation. */
size_t tierce__locator_expire(struct tierce__locator *locator);

/* When the next session ends, wall clock; INT64_MAX: there is none. */
int64_t tierce__locator_next_expiry(struct tierce__locator *locator);

/* ---- numbers --------------------------------------------------------------------------------- */

struct tierce__usage {
    uint64_t keys, keys_max;                               /* keys_max 0: not bounded */
    uint64_t serving_bytes, writing_bytes, deleting_bytes; /* exact */
    uint64_t serving_by_type[16], writing_by_type[16], deleting_by_type[16]; /* type slots */
    uint64_t sessions, expired_sessions;
    uint64_t asked_keys, found_keys;                /* of gets, since this process leads */
    uint64_t cache_hits, cache_misses, cache_bytes; /* of search caches */
    uint64_t instances;
};

/* -ENOENT. */
TIERCE_MUSTUSE int tierce__locator_instance_usage(struct tierce__locator *locator, const char *id,
                                                  struct tierce__usage *out);
void tierce__locator_group_usage(struct tierce__locator *locator, const char *group,
                                 struct tierce__usage *out);
/* The bytes in a storage, of all groups; nothing else is filled. */
void tierce__locator_storage_usage(struct tierce__locator *locator, uint16_t storage,
                                   struct tierce__usage *out);

#endif
