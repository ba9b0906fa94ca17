/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_STORE_H
#define TIERCE_MANAGER_META_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "manager/record.h"

/*
 * Where records live: memory, RocksDB, Redis. The seam below meta_index.h; all pass
 * tests/conformance/test_meta_store.
 *
 * A store holds spaces, one an instance; a space holds records by 64-bit key, notes (small values
 * by kind and number: sessions, deletions, files), and counters. A batch is atomic: after a crash
 * all of it is there or nothing.
 *
 * Threads: any, for all calls on a space; batches on one key are ordered by the caller.
 */

enum tierce__note_kind {
    TIERCE__NOTE_SESSION = 1,  /* a write session: sessions.h */
    TIERCE__NOTE_DELETION = 2, /* places to delete: deleter.h */
    TIERCE__NOTE_FILE = 3,     /* which slots of a file are used: places.h */
    TIERCE__NOTE_KINDS = 8,    /* all are below */
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
     * TIERCE_E_CONFIG, TIERCE_E_VERSION, TIERCE_E_FORMAT (somebody else's), TIERCE_E_LOCKED,
     * TIERCE_E_REFUSED (authentication), negative errno. */
    TIERCE_MUSTUSE int (*open)(struct tierce__meta_store **out, const char *uri, char why[256]);
    void (*close)(struct tierce__meta_store *store); /* all spaces are closed before */
    /* Every write after this carries the token; a store that saw a higher one refuses them with
     * TIERCE_E_REFUSED. */
    TIERCE_MUSTUSE int (*fence)(struct tierce__meta_store *store, uint64_t token);
    /* An instance's space, made if it is not there; `number` > 0, never used for another. */
    TIERCE_MUSTUSE int (*space_open)(struct tierce__meta_space **out,
                                     struct tierce__meta_store *store, uint32_t number,
                                     const char *instance_id);
    /* Whose space it is, by which names: called after space_open, or NULL where nothing else reads
     * what the store writes. Redis: locations are written as KVCM writes them too, and what KVCM
     * left is taken over. [borrow until space_close] Errors: as get. */
    TIERCE_MUSTUSE int (*space_names)(struct tierce__meta_space *space,
                                      struct tierce__registry *registry,
                                      const struct tierce__instance *instance);
    void (*space_close)(struct tierce__meta_space *space);
    /* Everything in it, for an instance that is gone. */
    TIERCE_MUSTUSE int (*space_drop)(struct tierce__meta_space *space);

    /* found[i] and records[i] for each key; memory of the arena. A record that cannot be read is
     * not found, and counted. Errors: negative errno, TIERCE_E_DEADLINE, TIERCE_E_DOWN. */
    TIERCE_MUSTUSE int (*get)(struct tierce__meta_space *space, const int64_t *keys, size_t count,
                              struct tierce__arena *arena, struct tierce__record *records,
                              bool *found);
    /* No key stands twice in a batch. Errors: TIERCE_E_REFUSED (fenced), TIERCE_E_ARGUMENT (a kind
     * of note), -ENOMEM: nothing was written; TIERCE_E_DEADLINE, negative errno: it may have been,
     * wholly or not at all. */
    TIERCE_MUSTUSE int (*write)(struct tierce__meta_space *space,
                                const struct tierce__meta_batch *batch);
    /* Uses of keys at a time: used_us rises to it (the i-th key a microsecond below the one before
     * it, so that a prefix is newer than its suffix), uses + 1. May be kept back for some seconds,
     * or lost when there are too many or the process dies; what is not there is left alone. Never
     * blocks for long. */
    void (*touch)(struct tierce__meta_space *space, const int64_t *keys, size_t count,
                  int64_t now_us);
    /* Up to `limit` keys from a cursor on (0: from the start; *cursor = 0 at the end), in the order
     * of tierce__meta_mix. Keys that stay during a whole scan are seen exactly once. */
    TIERCE_MUSTUSE int (*scan)(struct tierce__meta_space *space, uint64_t *cursor, size_t limit,
                               int64_t *keys, size_t *count);
    /* Up to `count` keys, drawn at random at a cost that does not grow with the space; duplicates
     * are left out. `random` is the caller's state. */
    TIERCE_MUSTUSE int (*sample)(struct tierce__meta_space *space, uint64_t *random, size_t count,
                                 int64_t *keys, size_t *found);
    /* All notes of a kind in ascending order of their numbers; stops at a non-zero return of `each`
     * and returns it. `each` runs under no lock and may write. */
    TIERCE_MUSTUSE int (*notes)(struct tierce__meta_space *space, uint8_t kind,
                                int (*each)(void *arg, const struct tierce__meta_note *note),
                                void *arg);
    /* One note into the arena. -ENOENT. */
    TIERCE_MUSTUSE int (*note)(struct tierce__meta_space *space, uint8_t kind, uint64_t number,
                               struct tierce__arena *arena, const void **value, size_t *bytes);
    TIERCE_MUSTUSE int (*counters)(struct tierce__meta_space *space,
                                   int64_t out[TIERCE__META_COUNTERS]);
    /* Bytes of memory that the space takes, for metrics; 0 where it is not known. */
    uint64_t (*memory)(struct tierce__meta_space *space);
    /* Records of the store that could not be read since it was opened. */
    uint64_t (*unreadable)(struct tierce__meta_space *space);
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

/* The store of a type and URI as a group names them: "local" with "" is memory, "local" or
 * "rocksdb" with a path RocksDB, "redis" Redis. NULL: there is none. */
const struct tierce__meta_store_ops *tierce__meta_store_find(const char *type, const char *uri);

/*
 * Asks for a write that changes nothing. As long as a store takes those of this leader, no later
 * one has written: what was read before it is what this one has left. Errors: of write.
 */
TIERCE_MUSTUSE int tierce__meta_confirm(struct tierce__meta_space *space);

/* 0 .. 63 for a storage's number: 0 for none and for all that have no slot of their own. */
static inline uint32_t tierce__meta_storage_slot(uint16_t storage)
{
    return storage < TIERCE__META_STORAGE_SLOTS ? storage : 0;
}

/* Adds a record's bytes, or takes them off, where they count: by type and by storage. */
void tierce__meta_count_bytes(int64_t counters[TIERCE__META_COUNTERS],
                              const struct tierce__record *record, bool is_added);

/* 0 .. 15 for each storage type, for the counters. */
uint32_t tierce__meta_type_slot(uint8_t storage_type);

/* Spreads keys evenly; and back. */
uint64_t tierce__meta_mix(int64_t key);
int64_t tierce__meta_unmix(uint64_t mixed);

#endif
