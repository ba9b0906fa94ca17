/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_REDIS_PRIVATE_H
#define TIERCE_MANAGER_META_REDIS_PRIVATE_H

#include <stdatomic.h>

#include "base/threads/lock.h"
#include "manager/meta/meta_store_private.h"
#include "manager/meta/meta_touches.h"
#include "manager/registry/registry.h"
#include "net/redis/resp_pipeline.h"

/* docs/inside/format/meta.md has the keys and fields. */

#define TIERCE__REDIS_TOKEN_BYTES                                                                  \
    20u /* a fencing token in decimal, padded, so that texts compare like numbers */

enum tierce__redis_script_id {
    TIERCE__REDIS_FENCE,
    TIERCE__REDIS_WRITE,
    TIERCE__REDIS_TOUCH,
    TIERCE__REDIS_COMMIT, /* this and the following ones are for clusters */
    TIERCE__REDIS_SETTLE,
    TIERCE__REDIS_REDO, /* this and the following one do not take the writer's token */
    TIERCE__REDIS_TOUCH_ONE,
    TIERCE__REDIS_SCRIPTS,
};

/* Names of a space's keys, in an arena of their own; kept until the store is closed, because
 * buffered touches outlive spaces. */
struct tierce__redis_keys {
    struct tierce__redis_keys *next;
    uint32_t number;
    const char *data;     /* prefix of the records' keys */
    const char *metadata; /* counters */
    const char *keys;     /* the sorted set of keys */
    const char *notes;    /* prefix; the kind follows */
    const char *journal;  /* in a cluster: batches whose records are not all written */
    const char *guard;    /* in a cluster: the suffix after a slot's hash tag */
};

struct tierce__redis {
    struct tierce__meta_store base;
    struct tierce__resp_pool *pool;
    bool is_cluster;
    struct tierce__touches *touches;
    struct tierce__resp_script scripts[TIERCE__REDIS_SCRIPTS];
    struct tierce__lock lock;                  /* guards the fields below */
    struct tierce__redis_keys *keys;           /* of all spaces that have been opened */
    char token[TIERCE__REDIS_TOKEN_BYTES + 1]; /* "": none */
    _Atomic uint32_t fences;                   /* number of times that the token was set */
};

/* Maximum number of finished batches, which the next commit removes from the journal. */
#define TIERCE__REDIS_FINISHED_MAX 64u

/* The additional state of a space in a cluster (meta_redis_cluster.c). */
struct tierce__redis_ledger {
    struct tierce__lock lock;  /* guards all below; held while the journal is replayed */
    _Atomic bool is_unsettled; /* the journal must be replayed before other calls */
    _Atomic uint32_t fences;   /* redis->fences at the last replay */
    char era[TIERCE__REDIS_TOKEN_BYTES + 1];
    uint64_t era_min; /* of the next era */
    uint64_t last;    /* the largest batch number that was assigned */
    bool is_wrong;    /* keys and counters must be rebuilt */
    uint64_t finished[TIERCE__REDIS_FINISHED_MAX];
    size_t finished_count;
};

struct tierce__redis_space {
    struct tierce__meta_space base;
    struct tierce__redis *redis;
    const struct tierce__redis_keys *keys;
    struct tierce__registry *registry;       /* or NULL: records are not written for KVCM */
    const struct tierce__instance *instance; /* or NULL */
    _Atomic uint64_t unreadable;
    struct tierce__redis_ledger ledger; /* in a cluster */
};

/* ---- meta_redis_call.c: scripts and their errors ----------------------------------------------
 */

/* Starts a call of a script, with the writer's token behind the keys if the script takes one. */
void tierce__redis_script(struct tierce__redis *redis, struct tierce__resp_pipeline *batch,
                          enum tierce__redis_script_id id, const char *const *keys, size_t count);

/* Runs a batch and logs failures. An error reply is TIERCE_E_REFUSED for an older token, -ESTALE
 * for an earlier era, TIERCE_E_DOWN if the server does not serve now, or -EIO. */
TIERCE_MUSTUSE int tierce__redis_run(struct tierce__resp_pipeline *batch);
TIERCE_MUSTUSE int tierce__redis_run_at(struct tierce__resp_pipeline *batch, size_t i);

/* Settles the journal of the space, then runs a batch. */
TIERCE_MUSTUSE int tierce__redis_read(struct tierce__redis_space *space,
                                      struct tierce__resp_pipeline *batch);

/* Runs a batch whose answers do not matter, and ends it. */
TIERCE_MUSTUSE int tierce__redis_do(struct tierce__resp_pipeline *batch);

/* Loads the scripts on every server. Errors, `why` in words: TIERCE_E_REFUSED (authentication);
 * TIERCE_E_DOWN (a server does not serve now: it is loading its data, for example); as
 * tierce__resp_pipeline_run. */
TIERCE_MUSTUSE int tierce__redis_load_scripts(struct tierce__redis *redis, char why[256]);

/* Parses 16 lower-case hexadecimal digits; false if the value is different. */
bool tierce__redis_read_hex(uint64_t *out, const struct tierce__resp_value *value);

/* ---- meta_redis_form.c: records as fields ---------------------------------------------------- */

/* The fields of HMGET, in this order. */
enum {
    TIERCE__REDIS_FORM, /* __tierce__ */
    TIERCE__REDIS_URI,
    TIERCE__REDIS_LRU,
    TIERCE__REDIS_HITS,
    TIERCE__REDIS_PREV,
    TIERCE__REDIS_PUT_FIELDS, /* the fields above are written with a record, the others by touches
                               */
    TIERCE__REDIS_HINT = TIERCE__REDIS_PUT_FIELDS,
    TIERCE__REDIS_FIELDS,
};
extern const char *const tierce__redis_fields[TIERCE__REDIS_FIELDS];

/* Adds the fields' values of a record. `catalog` may be NULL. */
void tierce__redis_add_record(struct tierce__resp_pipeline *batch,
                              const struct tierce__redis_space *space,
                              const struct tierce__catalog *catalog,
                              const struct tierce__record *record);

/* Reads a record from field values, written by us or by KVCM. *found false: no serving record;
 * *is_unreadable: the values are invalid. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__redis_read_record(struct tierce__record *out, bool *found,
                                             bool *is_unreadable,
                                             const struct tierce__redis_space *space,
                                             const struct tierce__catalog *catalog,
                                             const struct tierce__resp_value *values,
                                             struct tierce__arena *arena);

/* ---- meta_redis_import.c --------------------------------------------------------------------- */

/* Rebuilds the counts from the records if KVCM wrote last, or always with `always`. */
TIERCE_MUSTUSE int tierce__redis_import(struct tierce__redis_space *space, bool always);

/* ---- meta_redis_cluster.c: batches over several slots ---------------------------------------- */

/* Replays the journal if necessary: afterwards committed batches are written, and earlier batches
 * that were not committed can no longer arrive. Called before every read or write of a space; does
 * nothing with a single server. Errors: TIERCE_E_REFUSED; of a store. */
TIERCE_MUSTUSE int tierce__redis_settle(struct tierce__redis_space *space);

/* As ops->write. */
TIERCE_MUSTUSE int tierce__redis_commit(struct tierce__redis_space *space,
                                        const struct tierce__meta_batch *batch);

/* Resets the additional state, because the space's keys were deleted or never read. */
void tierce__redis_forget(struct tierce__redis_space *space);

/* Raises the store's fence to the token; TIERCE_E_REFUSED if it is higher. */
TIERCE_MUSTUSE int tierce__redis_raise_fence(struct tierce__redis *redis);

/* Add the parts of a batch that a script needs. */
void tierce__redis_add_notes(struct tierce__resp_pipeline *command,
                             const struct tierce__meta_batch *batch);
void tierce__redis_add_counters(struct tierce__resp_pipeline *command,
                                const struct tierce__meta_batch *batch);

/* ---- meta_redis_journal.c: what a batch does to records, as bytes ---------------------------- */

/* The keys that are put, with their field values, followed by the keys that are deleted. */
struct tierce__redis_redo {
    size_t put_count, count;
    int64_t *keys;
    const char **texts; /* TIERCE__REDIS_PUT_FIELDS of each put, in the order of add_record */
    size_t *bytes;
};

/* All in the arena. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__redis_redo_make(struct tierce__redis_redo *out,
                                           struct tierce__redis_space *space,
                                           const struct tierce__meta_batch *batch,
                                           struct tierce__arena *arena);
TIERCE_MUSTUSE int tierce__redis_redo_print(const struct tierce__redis_redo *redo,
                                            struct tierce__arena *arena, const char **out,
                                            size_t *bytes);
/* [borrow] the text as long as *out. Errors: TIERCE_E_FORMAT, -ENOMEM. */
TIERCE_MUSTUSE int tierce__redis_redo_parse(struct tierce__redis_redo *out,
                                            struct tierce__arena *arena, const char *text,
                                            size_t bytes);

/* ---- meta_redis.c and meta_redis_notes.c: of the ops ----------------------------------------- */

TIERCE_MUSTUSE int tierce__redis_get(struct tierce__meta_space *base, const int64_t *keys,
                                     size_t count, struct tierce__arena *arena,
                                     struct tierce__record *records, bool *found);
TIERCE_MUSTUSE int tierce__redis_notes(struct tierce__meta_space *base, uint8_t kind,
                                       int (*each)(void *arg, const struct tierce__meta_note *note),
                                       void *arg);
TIERCE_MUSTUSE int tierce__redis_note(struct tierce__meta_space *base, uint8_t kind,
                                      uint64_t number, struct tierce__arena *arena,
                                      const void **value, size_t *bytes);

#endif
