/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_LOCATOR_PRIVATE_H
#define TIERCE_MANAGER_LOCATOR_PRIVATE_H

#include "base/deadlines.h"
#include "base/list.h"
#include "base/lock.h"
#include "manager/deleter.h"
#include "manager/locator.h"
#include "manager/places.h"
#include "manager/quota.h"

#include <errno.h>
#include <stdatomic.h>

/*
 * The locator's parts.
 *
 *     locator.c        instances come and go; recovery
 *     locator_get.c    the match modes
 *     locator_write.c  StartWrite
 *     locator_finish.c FinishWrite, timeouts, writes in doubt
 *     locator_remove.c remove, trim, look
 *     choice.c         which storage to write to, which location to read from
 *     sessions.c       who writes which keys until when, and its durable form
 *     quota.c          bytes by group, type and storage
 *     deleter.c        what is being deleted
 */

/* ---- an instance at work --------------------------------------------------------------------- */

/* A key that a session writes. In no index yet; nobody else may write it. */
struct tierce__claim {
    struct tierce__claim *next; /* of its bucket */
    int64_t key;
    struct tierce__session *session; /* NULL while the session is being made */
    _Atomic bool is_removed;         /* asked to be removed: it will not serve. Set before the key's
                                        lock of the index is taken, looked at under it */
};

struct tierce__live {
    struct tierce__list node; /* LOCATOR */
    struct tierce__locator *locator;
    struct tierce__instance instance; /* a copy: never changes */
    char *shared;                     /* the quota that its group shares with others, or "" */
    struct tierce__meta_space *space;
    struct tierce__meta_index *index;
    struct tierce__places *places;
    bool blocks;
    _Atomic uint32_t users; /* calls and jobs that use it, and the list that it is in */
    /* Keys of gets, and those of them that were found; of a window, its own length. */
    _Atomic uint64_t asked_keys, found_keys;
    bool is_going; /* LOCATOR: takes no call any more */

    struct tierce__lock lock; /* SESSIONS: what follows */
    struct tierce__claim **claims;
    size_t claim_bucket_count, claim_count;
    struct tierce__session **sessions;
    size_t session_bucket_count, session_count;
    struct tierce__deadlines deadlines;
    uint64_t expired_sessions;
    uint64_t writing_by_slot[16];
    struct tierce__deleting deleting; /* keys whose locations are being deleted */
};

struct tierce__locator {
    struct tierce__locator_opts opts;
    struct tierce__quota *quota;
    struct tierce__deleter *deleter;
    _Atomic uint64_t random;
    _Atomic int64_t wall_offset_us; /* from the clock that nobody sets to the wall clock */
    struct tierce__lock changing; /* CHANGING: whoever adds or takes out instances, one at a time */
    struct tierce__lock lock;     /* LOCATOR: what follows */
    struct tierce__cond idle;     /* an instance has lost its last user */
    struct tierce__list instances;
    struct tierce__list stores;
    bool is_open;
    uint64_t fence;
};

/* Uses the instance until release; -ENOENT, TIERCE_E_CLOSED. */
TIERCE_MUSTUSE int tierce__live_acquire(struct tierce__live **out, struct tierce__locator *locator,
                                        const char *id, char why[TIERCE__WHY_BYTES]);
void tierce__live_release(struct tierce__live *live);
void tierce__live_hold(struct tierce__live *live);

/* Calls `each` for every instance, which it may use meanwhile, without a lock. */
void tierce__locator_each(struct tierce__locator *locator,
                          void (*each)(void *arg, struct tierce__live *live), void *arg);

/* What its bytes count in. */
struct tierce__quota_at tierce__live_quota_at(const struct tierce__live *live, uint8_t type,
                                              uint16_t storage);

/* Finds out what a store has left in doubt, and ends the sessions that are due; returns how many
 * had keys. */
size_t tierce__live_expire(struct tierce__live *live, int64_t now_us);

int64_t tierce__locator_now_us(const struct tierce__locator *locator);

/* A time for a heap of deadlines. */
static inline uint64_t tierce__due(int64_t due_us)
{
    return due_us > 0 ? (uint64_t)due_us : 0;
}

/* 64 bits that nobody guesses, or that a seed gives. */
uint64_t tierce__locator_random(struct tierce__locator *locator);

/* `count` characters of [a-z0-9]. */
void tierce__locator_name(struct tierce__locator *locator, char *out, size_t count);

/* Whether a store that failed so may have written the batch all the same. */
static inline bool tierce__meta_may_be_written(int rc)
{
    return rc < 0 && rc != -ENOMEM && rc != TIERCE_E_REFUSED && rc != TIERCE_E_ARGUMENT &&
           rc != TIERCE_E_LIMIT;
}

/* Refuses a call of so many keys that their parts would take more memory than a call may. */
TIERCE_MUSTUSE int tierce__live_check_parts(const struct tierce__live *live, size_t keys,
                                            char why[TIERCE__WHY_BYTES]);

void tierce__say_why(char why[TIERCE__WHY_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Says it in `why`; its value is `rc`. (A macro, so that compilers see that it is.) */
#define tierce__why(why, rc, ...) (tierce__say_why((why), __VA_ARGS__), (rc))

/* ---- sessions.c ------------------------------------------------------------------------------ */

struct tierce__session_key {
    struct tierce__claim claim;
    bool has_parent;
    int64_t parent;
    char location_id[TIERCE__LOCATION_ID_BYTES];
    const char *text; /* of a string key, or NULL */
    uint16_t place_count;
    const struct tierce__spec_place *places;
};

struct tierce__session {
    struct tierce__session *next;     /* of its bucket */
    struct tierce__deadline deadline; /* in the instance's, at due_us */
    int64_t due_us;
    char id[TIERCE__SESSION_ID_BYTES + 1];
    uint64_t note; /* its number */
    uint16_t storage;
    uint8_t type;
    bool is_busy; /* being ended */
    /* The store did not say whether the batch that ends it was written; it is asked again. */
    bool is_doubtful;
    bool is_late;   /* it ends by its time */
    bool is_unsure; /* nobody knows whether its beginning was written: its places are not taken yet
                     */
    size_t count;
    struct tierce__session_key *keys;
    bool *written;         /* of each key, once it is being ended */
    uint64_t served_bytes; /* of those, which count as serving since before the batch is written */
    uint64_t bytes;
    struct tierce__arena arena; /* all of the above lies in it, and this struct */
};

/* An empty session of `count` keys, with a name and a note's number. NULL: no memory. */
struct tierce__session *tierce__session_create(struct tierce__locator *locator, size_t count);
void tierce__session_destroy(struct tierce__session *session);

/* SESSIONS held: whether the key is claimed; the claim or NULL. */
struct tierce__claim *tierce__live_claim(const struct tierce__live *live, int64_t key);
void tierce__live_put_claim(struct tierce__live *live, struct tierce__claim *claim);
void tierce__live_drop_claim(struct tierce__live *live, struct tierce__claim *claim);

/* SESSIONS held. */
TIERCE_MUSTUSE int tierce__live_put_session(struct tierce__live *live,
                                            struct tierce__session *session);
struct tierce__session *tierce__live_session(const struct tierce__live *live, const char *id);
void tierce__live_drop_session(struct tierce__live *live, struct tierce__session *session);

/* The durable form, a note, in the arena; and back, with the arena of its own. */
TIERCE_MUSTUSE int tierce__session_write(const struct tierce__session *session,
                                         struct tierce__arena *arena, const void **out,
                                         size_t *bytes);
TIERCE_MUSTUSE int tierce__session_read(struct tierce__session **out,
                                        struct tierce__locator *locator, uint64_t note,
                                        const void *bytes, size_t count);

/* ---- locator_finish.c ------------------------------------------------------------------------ */

/* Finds the session and makes it busy; what the mask has (NULL: all) was written. -ESRCH,
 * TIERCE_E_ARGUMENT (a mask of another length). */
TIERCE_MUSTUSE int tierce__live_begin_finish(struct tierce__live *live, const char *id,
                                             const struct tierce__mask *mask,
                                             struct tierce__session **out,
                                             char why[TIERCE__WHY_BYTES]);
/* Afterwards it is gone, or (on an error) as it was, or doubtful. */
TIERCE_MUSTUSE int tierce__live_finish(struct tierce__live *live, struct tierce__session *session);
/* As if it had not been begun. */
void tierce__live_unfinish(struct tierce__live *live, struct tierce__session *session);

/* ---- locator_remove.c ------------------------------------------------------------------------ */

struct tierce__removed {
    uint64_t keys, locations, bytes;
    size_t offset; /* of the step that is being decided among the keys */
};

/* Under the key's lock: whether the i-th key of its step (removed.offset + i of all) goes. */
typedef bool (*tierce__remove_if_fn)(void *arg, size_t i, int64_t key,
                                     const struct tierce__record *record);

/* How keys leave. */
struct tierce__removal {
    int64_t due_us;              /* when their bytes are to be deleted */
    bool keep_bytes;             /* they are only forgotten */
    tierce__remove_if_fn wanted; /* or NULL: all go */
    void *wanted_arg;
};

/* Takes keys out of the index in steps, each atomic. `removed` is added to. Errors: of the store;
 * the steps before are done. */
TIERCE_MUSTUSE int tierce__live_remove(struct tierce__live *live, const int64_t *keys, size_t count,
                                       const struct tierce__removal *how,
                                       struct tierce__removed *removed);

/* The same for all keys of the instance, whose bytes are to be deleted at once. */
TIERCE_MUSTUSE int tierce__live_trim(struct tierce__live *live, const struct tierce__removal *how,
                                     struct tierce__removed *removed);

/* When the slots of a deletion may be used again: a reader that was told of one may still be at
 * it. */
int64_t tierce__live_reusable_us(const struct tierce__live *live, int64_t due_us);

/* ---- choice.c -------------------------------------------------------------------------------- */

/* What is to be stored: `count` keys of so many bytes each. */
struct tierce__storage_wish {
    const struct tierce__live *live;
    const struct tierce__catalog *catalog;
    const struct tierce__group *group;
    const uint64_t *bytes;
    size_t count;
};

/* The first of the group's candidates that its strategy allows, that is available and has room.
 * Reserves what fits: *fit leading keys, at least one. TIERCE_E_FULL, TIERCE_E_DOWN. */
TIERCE_MUSTUSE int tierce__choose_storage(const struct tierce__storage_wish *wish,
                                          const struct tierce__storage **out, size_t *fit,
                                          char why[TIERCE__WHY_BYTES]);

/* What may be reserved in a storage for an instance of the group. */
void tierce__choose_limits(struct tierce__quota_limits *out, const struct tierce__live *live,
                           const struct tierce__group *group,
                           const struct tierce__storage *storage);

/* The storage of a location, by its number or by what its first text names; NULL: not in the
 * registry. */
const struct tierce__storage *tierce__location_storage(const struct tierce__catalog *catalog,
                                                       const struct tierce__location *location);

/* What a call chooses with. Blocks that follow each other lie in one storage, mostly: it is looked
 * up, and asked whether it is well, once. */
struct tierce__chooser {
    struct tierce__locator *locator;
    const struct tierce__catalog *catalog;
    uint16_t last;   /* the number of the storage of the last location; 0: none */
    uint32_t weight; /* of that; 0: not available */
};

/* One of the record's locations whose storage is available, drawn by the weights of their kinds;
 * NULL: there is none. */
const struct tierce__location *tierce__choose_location(struct tierce__chooser *chooser,
                                                       const struct tierce__record *record);

/* Whether there is one. */
bool tierce__record_serves(struct tierce__chooser *chooser, const struct tierce__record *record);

#endif
