/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_INDEX_H
#define TIERCE_MANAGER_META_INDEX_H

#include "manager/meta_store.h"

/*
 * The index of one instance: a space of a store, with locks for read-modify-write, a cache in
 * front of a store that blocks, exact counts, and parents' counts of children.
 *
 * Keys are spread over shards, each with a lock. tierce__meta_index_modify takes the shards of its
 * keys in ascending order, in batches of whole shards of about batch_keys keys; so two of them
 * never deadlock, and a large one does not keep small ones waiting. Readers take no lock.
 *
 * A record's `children` is the index's to count: puts and deletes of records with a parent change
 * the parent's, if it is there, in the same batch. What a caller puts in it is ignored.
 *
 * Threads: any.
 */

struct tierce__meta_index;

struct tierce__meta_index_opts {
    size_t size;
    uint32_t shards;      /* power of two */
    uint32_t batch_keys;  /* 0: 16 */
    uint64_t keys_max;    /* of the instance; 0: not bounded */
    uint64_t cache_bytes; /* of the search cache; 0: none. Ignored for stores that don't block */
    uint32_t cache_shard_bits;
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

/* How many leading keys `serves` says yes to, with their records. Reads ahead in growing steps
 * rather than all. Errors: as get. */
TIERCE_MUSTUSE int64_t
tierce__meta_index_prefix(struct tierce__meta_index *index, const int64_t *keys, size_t count,
                          bool (*serves)(void *arg, const struct tierce__record *record), void *arg,
                          struct tierce__arena *arena, struct tierce__record *records);

enum tierce__meta_action {
    TIERCE__META_SKIP,
    TIERCE__META_PUT,    /* the record as it was changed */
    TIERCE__META_DELETE, /* the record is gone */
    TIERCE__META_FAIL,   /* nothing, and the call says so at the end */
};

/* Decides on one key, under its lock; is called once for each. `record` is what is there, or zeroed
 * (found false); memory it puts in comes from the arena or outlives the call. Does no I/O, takes
 * locks of classes after META_KEYS and before META_CHILDREN only. */
typedef enum tierce__meta_action (*tierce__meta_modify_fn)(void *arg, size_t i, int64_t key,
                                                           bool found,
                                                           struct tierce__record *record,
                                                           struct tierce__arena *arena);

/* More for the batch that a step writes, decided after the step's keys and under their locks; may
 * be NULL. Sets `notes` and `note_count`, and adds to `added`, which holds what the records make;
 * `indices` are the step's, TIERCE__META_FAIL and TIERCE_E_LIMIT included. A negative return fails
 * the step. */
typedef int (*tierce__meta_attach_fn)(void *arg, const size_t *indices, size_t count,
                                      struct tierce__meta_batch *batch,
                                      struct tierce__arena *arena);

struct tierce__meta_change {
    tierce__meta_modify_fn modify;
    tierce__meta_attach_fn attach; /* may be NULL */
    void *arg;
    bool whole; /* one step with all locks, for what must be all or nothing */
};

/*
 * Reads, decides, writes, atomically for each step (see above). Counters follow the records: keys,
 * bytes by type; children of parents follow puts and deletes. status[i]: 0, TIERCE_E_LIMIT
 * (keys_max), TIERCE_E_ARGUMENT (FAIL), or the store's error of its step. Returns 0 if all went
 * well, else the first error. The same key twice: the second sees what the first did. Without keys
 * nothing happens, and nothing is attached.
 */
TIERCE_MUSTUSE int tierce__meta_index_modify(struct tierce__meta_index *index, const int64_t *keys,
                                             size_t count, const struct tierce__meta_change *change,
                                             struct tierce__arena *arena, int *status);

/* After a write of which nobody knows whether it was one, the numbers below may be wrong until the
 * next modify, or this. Does nothing otherwise. */
TIERCE_MUSTUSE int tierce__meta_index_settle(struct tierce__meta_index *index);

/* Notes alone. */
TIERCE_MUSTUSE int tierce__meta_index_write_notes(struct tierce__meta_index *index,
                                                  const struct tierce__meta_note *notes,
                                                  size_t count);

void tierce__meta_index_touch(struct tierce__meta_index *index, const int64_t *keys, size_t count,
                              int64_t now_us);

struct tierce__meta_index_stats {
    uint64_t keys, bytes, bytes_by_type[16];
    uint64_t bytes_by_storage[TIERCE__META_STORAGE_SLOTS];
    uint64_t cache_hits, cache_misses, cache_bytes;
    uint64_t store_bytes; /* memory */
};
void tierce__meta_index_stats(struct tierce__meta_index *index,
                              struct tierce__meta_index_stats *out);

/* The space, for scans, samples and notes. */
struct tierce__meta_space *tierce__meta_index_space(struct tierce__meta_index *index);

#endif
