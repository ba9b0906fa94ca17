/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_INDEX_H
#define TIERCE_MANAGER_META_INDEX_H

#include "manager/meta/meta_store.h"

/*
 * The index of one instance: a space of a store, with locks for read-modify-write, a cache in
 * front of a store that blocks, exact counts, and parents' counts of children.
 *
 * Keys are distributed over shards, each with a lock. tierce__meta_index_modify locks the shards of
 * its keys in ascending order, in batches of whole shards of about batch_keys keys. So two calls
 * never deadlock, and a large call does not block small ones for long. Readers take no lock.
 *
 * The index maintains a record's `children`: puts and deletes of records with a parent update the
 * parent's count in the same batch, if the parent is indexed. The value that a caller sets is
 * ignored. With keeps_child, a put also sets the parent's `child`, and a delete clears it.
 *
 * Threads: any.
 */

struct tierce__meta_index;

struct tierce__meta_index_opts {
    size_t size;
    uint32_t shards;      /* power of two */
    uint32_t batch_keys;  /* 0: 16 */
    uint64_t keys_max;    /* of the instance; 0: unlimited */
    uint64_t cache_bytes; /* of the search cache; 0: none. Ignored for stores that do not block */
    uint32_t cache_shard_bits;
    bool keeps_child; /* records name the last block that was stored behind them */
};

/* [borrow] the space until close. Errors: -ENOMEM, TIERCE_E_ARGUMENT (shards), of the store. */
TIERCE_MUSTUSE int tierce__meta_index_open(struct tierce__meta_index **out,
                                           struct tierce__meta_space *space,
                                           const struct tierce__meta_index_opts *opts);
void tierce__meta_index_close(struct tierce__meta_index *index);

bool tierce__meta_index_blocks(const struct tierce__meta_index *index);

/* As the store's get, through the cache. */
TIERCE_MUSTUSE int tierce__meta_index_get(struct tierce__meta_index *index, const int64_t *keys,
                                          size_t count, struct tierce__arena *arena,
                                          struct tierce__record *records, bool *found);

/* Returns the number of leading keys for which `serves` returns true, and their records. Reads in
 * growing steps, not all keys at once. Errors: as get. */
TIERCE_MUSTUSE int64_t
tierce__meta_index_prefix(struct tierce__meta_index *index, const int64_t *keys, size_t count,
                          bool (*serves)(void *arg, const struct tierce__record *record), void *arg,
                          struct tierce__arena *arena, struct tierce__record *records);

enum tierce__meta_action {
    TIERCE__META_SKIP,
    TIERCE__META_PUT,    /* writes the changed record */
    TIERCE__META_DELETE, /* deletes the record */
    TIERCE__META_FAIL,   /* writes nothing, and the call returns an error at its end */
};

/* Decides on one key, under its lock; called once per key. `record` is the stored record, or zeroed
 * (found false). Memory that the function adds to the record comes from the arena or outlives the
 * call. The function does no I/O and takes only locks of classes between META_KEYS and
 * META_CHILDREN. */
typedef enum tierce__meta_action (*tierce__meta_modify_fn)(void *arg, size_t i, int64_t key,
                                                           bool found,
                                                           struct tierce__record *record,
                                                           struct tierce__arena *arena);

/* Extends the batch that a step writes, after the step's keys were decided and under their locks.
 * Sets `notes` and `note_count`, and adds to `added`, which already holds the sums of the records.
 * `indices` are the step's keys, including those with TIERCE__META_FAIL and TIERCE_E_LIMIT. A
 * negative return fails the step. */
typedef int (*tierce__meta_attach_fn)(void *arg, const size_t *indices, size_t count,
                                      struct tierce__meta_batch *batch,
                                      struct tierce__arena *arena);

struct tierce__meta_change {
    tierce__meta_modify_fn modify;
    tierce__meta_attach_fn attach; /* may be NULL */
    /* Returns how many indexed blocks already follow a key that is newly put; NULL: none. Called
     * under the key's lock. */
    uint32_t (*followers)(void *arg, int64_t key);
    /* Reports that `children` newly put blocks follow a key that is neither indexed nor put by this
     * call. Called after the write of the step, under locks up to META_CHILDREN. May be NULL. */
    void (*lost)(void *arg, int64_t parent, uint32_t children);
    void *arg;
    bool whole; /* one step with all locks, for changes that must be all or nothing */
};

/*
 * Reads, decides and writes, atomically per step (see above). Counters of keys and of bytes by type
 * are kept in step with the records, and so are the parents' counts of children. status[i]: 0,
 * TIERCE_E_LIMIT (keys_max), TIERCE_E_ARGUMENT (FAIL), or the store's error of its step. Returns 0
 * if every key succeeded, else the first error. If a key is repeated, the second occurrence sees
 * the result of the first. With no keys the call does nothing, and `attach` is not called.
 */
TIERCE_MUSTUSE int tierce__meta_index_modify(struct tierce__meta_index *index, const int64_t *keys,
                                             size_t count, const struct tierce__meta_change *change,
                                             struct tierce__arena *arena, int *status);

/* Reads the counts again if a write had an unknown outcome; otherwise does nothing. Until this call
 * or the next modify the statistics below may be wrong. */
TIERCE_MUSTUSE int tierce__meta_index_settle(struct tierce__meta_index *index);

/* Writes notes only. */
TIERCE_MUSTUSE int tierce__meta_index_write_notes(struct tierce__meta_index *index,
                                                  const struct tierce__meta_note *notes,
                                                  size_t count);

void tierce__meta_index_touch(struct tierce__meta_index *index, const int64_t *keys, size_t count,
                              const struct tierce__record_use *use);

struct tierce__meta_index_stats {
    uint64_t keys, bytes, bytes_by_type[16];
    uint64_t cache_hits, cache_misses, cache_bytes;
    uint64_t store_bytes; /* memory */
    int write_error;      /* 0, or why the store rejects writes (meta_store.h) */
};
void tierce__meta_index_stats(struct tierce__meta_index *index,
                              struct tierce__meta_index_stats *out);

/* The space, for scans, samples and notes. */
struct tierce__meta_space *tierce__meta_index_space(struct tierce__meta_index *index);

#endif
