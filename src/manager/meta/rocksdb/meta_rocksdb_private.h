/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_ROCKSDB_PRIVATE_H
#define TIERCE_MANAGER_META_ROCKSDB_PRIVATE_H

#include <pthread.h>
#include <rocksdb/c.h>
#include <stdatomic.h>

#include "base/threads/lock.h"
#include "manager/meta/meta_store_private.h"
#include "manager/meta/meta_touches.h"

/*
 * A key of the database begins with the space's number, big-endian, so that a space is a range; a
 * letter follows.
 */
enum {
    TIERCE__ROCKS_SPACE_BYTES = 4,
    TIERCE__ROCKS_KEY_MAX = 16,
    TIERCE__ROCKS_COUNTER =
        'c',                  /* + number, 1 byte: 8 bytes, little-endian, incremented by merges */
    TIERCE__ROCKS_NOTE = 'n', /* + kind, 1 byte, number, 8 bytes big-endian */
    TIERCE__ROCKS_RECORD = 'r', /* + tierce__meta_mix of the key, 8 bytes big-endian */
    TIERCE__ROCKS_STRIPES = 16,
};

/* A database of the process; stores of one path share it. */
struct tierce__rocks {
    struct tierce__rocks *next;
    unsigned users;
    char *path;              /* canonical */
    pthread_rwlock_t opened; /* write-locked while `db` changes; read-locked by each use of it */
    rocksdb_t *db;           /* NULL: it could not be reopened */
    int lock_fd; /* the lock that keeps other processes out while `db` is open for reading only;
                    otherwise -1 */
    rocksdb_env_t
        *memory; /* of an empty database in memory, used when the disk has no room for a new one */
    rocksdb_column_family_handle_t *family;
    rocksdb_options_t *options;
    rocksdb_block_based_table_options_t *table;
    rocksdb_cache_t *cache;
    rocksdb_readoptions_t *reads;
    rocksdb_writeoptions_t *writes;       /* of batches */
    rocksdb_writeoptions_t *touch_writes; /* never synced */
    struct tierce__touches *touches;
    _Atomic uint64_t unreadable;
    /* The reason why a write failed; no write is tried until a recovery has succeeded. 0: no write
     * failed. */
    _Atomic int write_error;
    _Atomic uint64_t recover_at; /* the earliest time of the next recovery */
    _Atomic bool is_recovering;
    /* A writer of records holds the stripes of their keys, so that a touch (a read and a write)
     * does not restore an old record. */
    struct tierce__lock stripes[TIERCE__ROCKS_STRIPES];
};

/* Parameters of a URI. */
struct tierce__rocks_opts {
    uint64_t sync; /* 0 or 1 */
    uint64_t cache_mib;
    uint64_t touch_ms;
};

/* Opens the database of a path, or adds a user to it. If the disk has no room, an existing database
 * is opened for reading only, a new one is kept empty in memory, and write_error is set. Errors as
 * ops->open. */
TIERCE_MUSTUSE int tierce__rocks_open(struct tierce__rocks **out, const char *path,
                                      const struct tierce__rocks_opts *opts, char why[256]);
void tierce__rocks_close(struct tierce__rocks *rocks);

/* Closes a database whose writes failed and reopens it, if the disk has room and no call is using
 * it. Errors: -ENOSPC; -EBUSY: it is in use; those of open. */
TIERCE_MUSTUSE int tierce__rocks_reopen(struct tierce__rocks *rocks);

/* meta_rocksdb_recover.c. Keeps the database open until leave; a thread may nest these calls.
 * Errors: why it could not be reopened. */
TIERCE_MUSTUSE int tierce__rocks_enter(struct tierce__rocks *rocks);
void tierce__rocks_leave(struct tierce__rocks *rocks);
/* Returns 0 if a write may be tried, else the reason. Thread: any. May block. */
TIERCE_MUSTUSE int tierce__rocks_admit_write(struct tierce__rocks *rocks);
/* Records that a write failed. */
void tierce__rocks_note_failure(struct tierce__rocks *rocks, int rc);

/* Applies buffered uses to their records; a tierce__touches_flush_fn. */
void tierce__rocks_flush_touches(void *rocks, const struct tierce__touch *touches, size_t count);

/* Converts an error of the library to a code and frees it; NULL is 0. */
TIERCE_MUSTUSE int tierce__rocks_code(char *error);

#endif
