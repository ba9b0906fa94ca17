/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_ROCKSDB_PRIVATE_H
#define TIERCE_MANAGER_META_ROCKSDB_PRIVATE_H

#include <rocksdb/c.h>
#include <stdatomic.h>

#include "base/lock.h"
#include "manager/meta_store_private.h"
#include "manager/meta_touches.h"

/*
 * Keys of the database begin with the space's number, big-endian, so that a space is a range, and
 * a letter.
 */
enum {
    TIERCE__ROCKS_SPACE_BYTES = 4,
    TIERCE__ROCKS_KEY_MAX = 16,
    TIERCE__ROCKS_COUNTER = 'c', /* + number, 1 byte: 8 bytes, little-endian, added to */
    TIERCE__ROCKS_NOTE = 'n',    /* + kind, 1 byte, number, 8 bytes big-endian */
    TIERCE__ROCKS_RECORD = 'r',  /* + tierce__meta_mix of the key, 8 bytes big-endian */
    TIERCE__ROCKS_STRIPES = 16,
};

/* A database of the process; stores of one path share it. */
struct tierce__rocks {
    struct tierce__rocks *next;
    unsigned users;
    char *path; /* canonical */
    rocksdb_t *db;
    rocksdb_column_family_handle_t *family;
    rocksdb_options_t *options;
    rocksdb_block_based_table_options_t *table;
    rocksdb_cache_t *cache;
    rocksdb_readoptions_t *reads;
    rocksdb_writeoptions_t *writes;       /* of batches */
    rocksdb_writeoptions_t *touch_writes; /* never synced */
    struct tierce__touches *touches;
    _Atomic uint64_t unreadable;
    /* Who writes records holds those of their keys, so that the touching of a record, which is a
     * read and a write, does not bring an old one back. */
    struct tierce__lock stripes[TIERCE__ROCKS_STRIPES];
};

/* Parameters of a URI. */
struct tierce__rocks_opts {
    bool sync;
    uint64_t cache_mib;
    uint32_t touch_ms;
};

/* The database of a path, opened or one user more. Errors as ops->open. */
TIERCE_MUSTUSE int tierce__rocks_open(struct tierce__rocks **out, const char *path,
                                      const struct tierce__rocks_opts *opts, char why[256]);
void tierce__rocks_close(struct tierce__rocks *rocks);

/* Raises the records of touches; tierce__touches_flush_fn. */
void tierce__rocks_flush_touches(void *rocks, const struct tierce__touch *touches, size_t count);

/* Frees an error of the library; NULL is 0. */
TIERCE_MUSTUSE int tierce__rocks_code(char *error);

#endif
