/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_DISK_H
#define TIERCE_TIER_DISK_H

#include "base/vfs/vfs.h"
#include "core/key/namespaces.h"
#include "core/policy/policy.h"
#include "store/slots.h"

/*
 * The disk tier: one preallocated data file, one journal that is its index, nothing per chunk.
 *
 * A chunk is visible after its bytes are written, durable after the flush that covers it: data
 * first (fdatasync), then its journal records (fdatasync). Space of an evicted chunk is used
 * again only after the record of its eviction is durable, so that at every moment each record in
 * the journal points at bytes that are whole. The format, byte by byte: docs/inside/format/disk.md.
 *
 * Threads: one I/O thread owns the vfs's data path; one journal thread syncs, appends, compacts.
 * The index and the space are under one lock of class DISK.
 */

struct tierce__disk_opts {
    size_t size;        /* sizeof(struct tierce__disk_opts) */
    const char *path;   /* the store folder; made 0700 if missing */
    uint64_t cap_bytes; /* hard cap over data, padding, journal and its copy */
    const struct tierce__policy_ops *policy;
    struct tierce__namespaces *namespaces; /* [borrow until close] gets the namespaces on disk */
    struct tierce__pool *pool;             /* whose memory is registered; NULL for none */
    struct tierce__vfs *vfs;  /* [transfer, on success only]; NULL: tierce__vfs_create */
    uint32_t chunk_count_max; /* 0: cap_bytes / 256 KiB, at least 4096 */
    struct tierce__slots_opts slots;
    uint32_t io_depth; /* transfers in flight, at most 64; 0: 16 */
    uint32_t io_bytes; /* a transfer's size, an eighth more where that spares a small one; multiple
                          of 4096; 0: 1 MiB */
    uint64_t queue_bytes;       /* maximum of waiting puts; further puts are dropped; 0: 1/4 cap, at
                                   most 256 MiB */
    uint32_t flush_interval_ms; /* background flush; 0: 1000 */
    uint32_t lock_wait_ms;      /* wait for the folder's lock; UINT32_MAX: for ever */
    bool buffered;              /* no O_DIRECT */
    bool admit_second;          /* only chunks that were put twice */
    uint64_t seed;
    uint64_t ttl_ms; /* for a policy that expires: the next request drops expired chunks; the time
                        of chunks that are read back at open starts again */
    char *why;       /* [out, if open fails; may be NULL] TIERCE__DISK_WHY_BYTES: the file, unless
                        it is the folder, the reason and the remedy */
};
#define TIERCE__DISK_WHY_BYTES 256u

/*
 * Opens or creates a store folder and reads its index back.
 * Errors: TIERCE_E_LOCKED (another process holds it, after the wait), TIERCE_E_VERSION (a newer
 * format; nothing is touched), negative errno of the file system, -ENOMEM, TIERCE_E_ARGUMENT. A
 * damaged journal is not an error: untrusted records are skipped, counted and logged. A failure is
 * logged as disk_open_failed with the file or folder and the remedy.
 */
TIERCE_MUSTUSE int tierce__disk_open(struct tierce__tier **out,
                                     const struct tierce__disk_opts *opts);

/* The largest chunk_count_max for a store of so many bytes: the index of more chunks would take
 * more than half of it. */
uint32_t tierce__disk_chunk_count_max(uint64_t cap_bytes);

/* One chunk of a store folder, for inspection. */
struct tierce__disk_entry {
    struct tierce__key key;
    struct tierce__key parent; /* zeroed if it is a first chunk */
    uint8_t first_block[TIERCE_HASH_BYTES];
    uint64_t offset;
    uint64_t object_bytes; /* as stored */
    uint64_t raw_bytes;    /* of the raw chunk, if the object is coded; 0: it is raw */
    uint64_t token_start;
    uint32_t block_count;
    uint64_t stored_s; /* wall clock */
};

/* Returns false to stop. Called without a lock held. */
typedef bool tierce__disk_visit_fn(void *arg, const struct tierce__disk_entry *entry);

/*
 * Visits the chunks of a store folder that may be open in another process or in none: reads the
 * journal read-only, takes no lock, changes nothing. `namespaces` is filled in. Errors as open's.
 */
TIERCE_MUSTUSE int tierce__disk_scan(const char *path, struct tierce__namespaces *namespaces,
                                     tierce__disk_visit_fn *visit, void *arg);

/* Path of the data file inside a store folder (heap, tierce__free), or NULL for no memory. */
char *tierce__disk_data_path(const char *path);

#endif
