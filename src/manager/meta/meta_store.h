/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_STORE_H
#define TIERCE_MANAGER_META_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "manager/meta/record.h"

/*
 * A store of records: in memory, RocksDB or Redis. The seam below meta_index.h; every
 * implementation passes tests/conformance/test_meta_store.
 *
 * A store holds spaces, one an instance; a space holds records by 64-bit key, notes (small values
 * by kind and number: sessions, deletions, files), and counters. A batch is atomic: after a crash
 * all of it was applied or nothing.
 *
 * Threads: any, for all calls on a space; batches on one key are ordered by the caller.
 */

enum tierce__note_kind {
    TIERCE__NOTE_SESSION = 1,  /* a write session: sessions.h */
    TIERCE__NOTE_DELETION = 2, /* places to delete: deleter.h */
    TIERCE__NOTE_FILE = 3,     /* which slots of a file are used: places.h */
    TIERCE__NOTE_EXPIRY = 4,   /* number 1: blocks with a time of their own were stored: expiry.h */
    TIERCE__NOTE_HOLES = 5,    /* removed keys that still have successors: orphans.h */
    TIERCE__NOTE_RESTORE = 7,  /* number 1: the space is being filled from a backup: restore.h */
    TIERCE__NOTE_KINDS = 8,    /* exclusive upper bound */
};

/* Counters of a space, added to by batches. */
enum tierce__meta_counter {
    TIERCE__META_KEYS,
    TIERCE__META_BYTES_FIRST, /* + storage type slot (tierce__meta_type_slot): bytes by type */
    TIERCE__META_STORAGES_FIRST = TIERCE__META_BYTES_FIRST + 16, /* + tierce__meta_storage_slot:
                                                                    bytes by storage */
    TIERCE__META_STORAGE_SLOTS = 64,
    TIERCE__META_COUNTERS = TIERCE__META_STORAGES_FIRST + TIERCE__META_STORAGE_SLOTS,
};

struct tierce__meta_put {
    int64_t key;
    struct tierce__record record; /* [borrow for the call] */
};

struct tierce__meta_note {
    uint8_t kind;
    uint64_t number;
    const void *value; /* NULL: delete the note */
    size_t bytes;
};

struct tierce__meta_batch {
    const struct tierce__meta_put *puts;
    size_t put_count;
    const int64_t *deletes;
    size_t delete_count;
    const struct tierce__meta_note *notes;
    size_t note_count;
    int64_t added[TIERCE__META_COUNTERS];
};

struct tierce__instance;
struct tierce__registry;
struct tierce__meta_store;
struct tierce__meta_space;

struct tierce__meta_store_ops {
    const char *name; /* "memory", "rocksdb", "redis" */
    bool blocks;      /* calls may wait for disk or network */
    bool shared;      /* other processes may use it: fencing counts */
    /* `uri`: see meta_memory.c, meta_rocksdb.c, meta_redis.c. `why` in words. Errors:
     * TIERCE_E_CONFIG, TIERCE_E_VERSION, TIERCE_E_FORMAT (another program's data), TIERCE_E_LOCKED,
     * TIERCE_E_REFUSED (authentication), negative errno. */
    TIERCE_MUSTUSE int (*open)(struct tierce__meta_store **out, const char *uri, char why[256]);
    void (*close)(struct tierce__meta_store *store); /* the caller has closed all spaces */
    /* Sets the token that every later write carries. A store that has seen a higher token rejects
     * such writes with TIERCE_E_REFUSED. NULL for stores that no other process can write. */
    TIERCE_MUSTUSE int (*fence)(struct tierce__meta_store *store, uint64_t token);
    /* Opens an instance's space, and creates it if necessary; `number` > 0, unique for the
     * instance. */
    TIERCE_MUSTUSE int (*space_open)(struct tierce__meta_space **out,
                                     struct tierce__meta_store *store, uint32_t number,
                                     const char *instance_id);
    /* Passes the names of the space's instance and registry; called after space_open. NULL for
     * stores that no other program reads. Redis: locations are also written in KVCM's form, and the
     * index that KVCM left is imported. [borrow until space_close] Errors: as get. */
    TIERCE_MUSTUSE int (*space_names)(struct tierce__meta_space *space,
                                      struct tierce__registry *registry,
                                      const struct tierce__instance *instance);
    void (*space_close)(struct tierce__meta_space *space);
    /* Deletes the whole space; its instance was removed. */
    TIERCE_MUSTUSE int (*space_drop)(struct tierce__meta_space *space);

    /* found[i] and records[i] for each key; memory of the arena. A record that cannot be read is
     * not found, and counted. Errors: negative errno, TIERCE_E_DEADLINE, TIERCE_E_DOWN. */
    TIERCE_MUSTUSE int (*get)(struct tierce__meta_space *space, const int64_t *keys, size_t count,
                              struct tierce__arena *arena, struct tierce__record *records,
                              bool *found);
    /* Writes a batch. No key occurs twice in it. Errors: TIERCE_E_REFUSED (fenced),
     * TIERCE_E_ARGUMENT (a kind of note), -ENOMEM: nothing was written; TIERCE_E_DEADLINE, negative
     * errno: either the whole batch was written or nothing. */
    TIERCE_MUSTUSE int (*write)(struct tierce__meta_space *space,
                                const struct tierce__meta_batch *batch);
    /* Records a use of keys, or a hint alone (tierce__record_touch). The time of each key is one
     * microsecond earlier than that of the key before it, so that a prefix is newer than its
     * suffix. Uses may be written some seconds later, and are lost if there are too many or the
     * process dies. Unknown keys are ignored. Never blocks for long. */
    void (*touch)(struct tierce__meta_space *space, const int64_t *keys, size_t count,
                  const struct tierce__record_use *use);
    /* Reads up to `limit` keys from a cursor (0: the start; *cursor = 0 at the end), in the order
     * of tierce__meta_mix. A key that exists during the whole scan is returned exactly once. */
    TIERCE_MUSTUSE int (*scan)(struct tierce__meta_space *space, uint64_t *cursor, size_t limit,
                               int64_t *keys, size_t *count);
    /* Draws up to `count` random keys, without duplicates, at a cost that does not grow with the
     * space. `random` is the caller's state. */
    TIERCE_MUSTUSE int (*sample)(struct tierce__meta_space *space, uint64_t *random, size_t count,
                                 int64_t *keys, size_t *found);
    /* Calls `each` for all notes of a kind, in ascending order of their numbers, until it returns
     * non-zero, and returns that value. `each` runs under no lock and may write. */
    TIERCE_MUSTUSE int (*notes)(struct tierce__meta_space *space, uint8_t kind,
                                int (*each)(void *arg, const struct tierce__meta_note *note),
                                void *arg);
    /* Reads one note into the arena. -ENOENT: there is none. */
    TIERCE_MUSTUSE int (*note)(struct tierce__meta_space *space, uint8_t kind, uint64_t number,
                               struct tierce__arena *arena, const void **value, size_t *bytes);
    TIERCE_MUSTUSE int (*counters)(struct tierce__meta_space *space,
                                   int64_t out[TIERCE__META_COUNTERS]);
    /* Bytes of memory that the space uses, for metrics. NULL if unknown. */
    uint64_t (*memory)(struct tierce__meta_space *space);
    /* The number of unreadable records since the store was opened. NULL for stores that read only
     * what this process has written. */
    uint64_t (*unreadable)(struct tierce__meta_space *space);
    /* 0, or why the last write of the store was rejected (-ENOSPC: the file system is full); the
     * next successful write resets it. NULL for stores that attempt every write. */
    int (*write_error)(struct tierce__meta_space *space);
};

/* First members of every implementation. */
struct tierce__meta_store {
    const struct tierce__meta_store_ops *ops;
};
struct tierce__meta_space {
    const struct tierce__meta_store_ops *ops;
};

extern const struct tierce__meta_store_ops tierce__meta_memory;
extern const struct tierce__meta_store_ops tierce__meta_rocksdb;
extern const struct tierce__meta_store_ops tierce__meta_redis;

/* Finds the store for a group's type and URI: "local" with "" is memory, "local" or "rocksdb" with
 * a path is RocksDB, "redis" is Redis. NULL: unknown type. */
const struct tierce__meta_store_ops *tierce__meta_store_find(const char *type, const char *uri);

/*
 * Makes a write that changes nothing. If the store accepts it, no later leader has written yet, so
 * everything that was read before is current. Errors: those of write.
 */
TIERCE_MUSTUSE int tierce__meta_confirm(struct tierce__meta_space *space);

/* 0 .. 63 for a storage's number: 0 for none and for all that have no slot of their own. */
static inline uint32_t tierce__meta_storage_slot(uint16_t storage)
{
    return storage < TIERCE__META_STORAGE_SLOTS ? storage : 0;
}

/* Adds or subtracts a record's bytes in the counters by type and by storage. */
void tierce__meta_count_bytes(int64_t counters[TIERCE__META_COUNTERS],
                              const struct tierce__record *record, bool is_added);

/* 0 .. 15 for each storage type, for the counters. */
uint32_t tierce__meta_type_slot(uint8_t storage_type);

/* A bijection that distributes keys evenly, and its inverse. */
uint64_t tierce__meta_mix(int64_t key);
int64_t tierce__meta_unmix(uint64_t mixed);

#endif
