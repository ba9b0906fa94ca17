/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_DISK_JOURNAL_H
#define TIERCE_TIER_DISK_JOURNAL_H

#include "base/vfs/vfs.h"
#include "core/key/key.h"

/*
 * The journal of a disk tier: an append-only file of pages, each with a sum of its own, holding
 * records that add and remove chunks. docs/inside/format/disk.md has it byte by byte.
 *
 * A page is written once and never again: records that were synced cannot be lost to a torn
 * rewrite. Each page can be read alone. Reading accepts every valid page at any position; missing
 * pages between valid ones are reported as a gap and left to the owner.
 *
 * Thread: one at a time per object. Writing may block on the disk; only create allocates memory.
 */

#define TIERCE__JOURNAL_PAGE      4096u
#define TIERCE__JOURNAL_HEAD      64u /* bytes of a page before its records */
#define TIERCE__JOURNAL_VERSION   1u
#define TIERCE__JOURNAL_PUT_BYTES 168u
#define TIERCE__JOURNAL_DEL_BYTES 56u
#define TIERCE__JOURNAL_NS_BYTES  40u
#define TIERCE__JOURNAL_DAY_BYTES 24u
#define TIERCE__JOURNAL_SEQ_MAX   (1ULL << 62)
/* The most namespaces that one page can use: each has its NS record and at least one other record
 * there. */
#define TIERCE__JOURNAL_NAMED_MAX                                                                  \
    ((TIERCE__JOURNAL_PAGE - TIERCE__JOURNAL_HEAD) /                                               \
     (TIERCE__JOURNAL_NS_BYTES + TIERCE__JOURNAL_DEL_BYTES))

enum tierce__journal_kind {
    TIERCE__JOURNAL_PUT = 1, /* a chunk is stored */
    TIERCE__JOURNAL_DEL = 2, /* the chunk of that key and sequence number was removed */
    TIERCE__JOURNAL_NS = 3,  /* the digest denoted by a number of this file */
    TIERCE__JOURNAL_DAY = 4, /* bytes written to the device on a day so far */
};

struct tierce__journal_record {
    enum tierce__journal_kind kind;
    uint64_t seq;                      /* PUT, DEL: counts puts over the life of the store */
    struct tierce__key key;            /* PUT, DEL; key.ns is the number of this file. NS: key.ns */
    uint8_t digest[TIERCE_HASH_BYTES]; /* NS */
    uint8_t parent[TIERCE_HASH_BYTES]; /* PUT; zeroed for none */
    uint8_t first_block[TIERCE_HASH_BYTES]; /* PUT */
    uint64_t offset;                        /* PUT: in the data file */
    uint64_t object_bytes;
    uint64_t token_start;
    uint64_t stored_s;
    uint64_t head_sum; /* XXH3-64 of the object's first 4096 bytes */
    uint32_t block_count;
    uint64_t raw_bytes; /* PUT: of the raw chunk, if the object is coded; 0: it is raw */
    uint64_t day;       /* DAY: days since 1970 */
    uint64_t bytes;
};

/* ---- reading -------------------------------------------------------------------------------- */

/* The state of reading a journal; start from zeroes. */
struct tierce__journal_reader {
    uint64_t page; /* number of the next page */
    uint64_t epoch;
    uint64_t good;
    uint64_t bad;           /* not empty, and not a page of this journal */
    uint64_t newer;         /* of a later version */
    uint64_t end;           /* pages up to the last valid one */
    uint64_t missing;       /* invalid pages before `end` */
    uint64_t missing_first; /* number of the first of these */
    uint64_t capacity;
    uint64_t damaged_records; /* in pages whose sum is right: written by a faulty build */
};

/* Called for each record in order; key.ns etc. are as in the file, nothing is checked but form. */
typedef void tierce__journal_visit_fn(void *arg, const struct tierce__journal_record *record);

#define TIERCE__JOURNAL_DELS_MAX 4096u /* removals that one commit records */

/* Slots of the largest store whose journal another process can read although its first 1 MiB is
 * damaged. */
#define TIERCE__JOURNAL_SCAN_SLOTS (1u << 22)

/* Pages of a journal that holds `count` chunks, each of another namespace, and nothing else. */
uint64_t tierce__journal_pages_live(uint64_t count);

/* The most pages that a journal of a store with this many slots ever has: twice the live records,
 * and a batch; then it is replaced. */
uint64_t tierce__journal_pages_max(uint64_t slot_count);

/*
 * The capacity in the first valid page (0: there is none) of a file that claims to be the
 * journal of a store with `slot_count` slots, or with the number in the page. TIERCE_E_LIMIT for a
 * file that is longer than either number permits; the call then reads at most 1 MiB.
 */
TIERCE_MUSTUSE int tierce__journal_probe(struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                                         uint64_t length, uint64_t slot_count, uint64_t *capacity);

/* Whether the first 8 bytes are those of a journal's page of any version. */
bool tierce__journal_has_magic(const uint8_t *page);

/* Reads `count` pages from memory. Hostile bytes are safe. */
void tierce__journal_read(struct tierce__journal_reader *reader, const uint8_t *pages, size_t count,
                          tierce__journal_visit_fn *visit, void *arg);

/*
 * Reads a whole file. TIERCE_E_VERSION if no page is readable and there are pages of a later
 * version; -ENOMEM; errno of reading.
 */
TIERCE_MUSTUSE int tierce__journal_read_file(struct tierce__journal_reader *reader,
                                             struct tierce__vfs *vfs, struct tierce__vfs_file *file,
                                             tierce__journal_visit_fn *visit, void *arg);

/* ---- the mark -------------------------------------------------------------------------------- */

/*
 * The synced length of a journal, in a file beside it. It distinguishes a journal that has lost its
 * end from one whose end was never synced. It is written after each sync of the journal, and synced
 * itself only when the tier closes. So it is always true, but after a power cut it may be old and
 * cover less.
 */
struct tierce__journal_mark {
    uint64_t epoch;
    uint64_t pages; /* 0: nothing is known */
};

#define TIERCE__JOURNAL_MARK_NAME  "journal.synced"
#define TIERCE__JOURNAL_MARK_BYTES 32u

/* Whether the first 8 bytes are those of a mark. */
bool tierce__journal_mark_has_magic(const uint8_t *at);
/* Whether the sum is right. It alone makes a mark: one whose magic is damaged still counts. */
bool tierce__journal_mark_is_valid(const uint8_t *at);
/* Zeroes if there is no valid one. */
struct tierce__journal_mark tierce__journal_mark_read(struct tierce__vfs *vfs, const char *path);
TIERCE_MUSTUSE int tierce__journal_mark_write(const struct tierce__journal_mark *mark,
                                              struct tierce__vfs *vfs,
                                              struct tierce__vfs_file *file);

/* The number of synced pages that are missing after the last valid one. If another process may be
 * writing, the mark must be read before the journal. */
uint64_t tierce__journal_lost(const struct tierce__journal_mark *mark,
                              const struct tierce__journal_reader *reader);

/* Whether records are lost that were synced before: after `end`, or in a page before it. */
bool tierce__journal_lost_synced(const struct tierce__journal_mark *mark,
                                 const struct tierce__journal_reader *reader);

/* ---- writing -------------------------------------------------------------------------------- */

struct tierce__journal {
    struct tierce__vfs *vfs;
    struct tierce__vfs_file *file; /* NULL: not open */
    uint64_t epoch;
    uint64_t capacity;
    uint64_t pages;                            /* in the file */
    uint64_t length;                           /* of the file in pages: zeroes follow the pages */
    uint8_t *buffer;                           /* pages that are not written yet */
    uint32_t filled;                           /* whole pages in the buffer */
    uint32_t used;                             /* bytes of records in the page after those */
    uint32_t named[TIERCE__JOURNAL_NAMED_MAX]; /* namespaces that this page has named */
    uint32_t named_count;
};

/* Reserves the buffer. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__journal_init(struct tierce__journal *journal, struct tierce__vfs *vfs);
/* Closes the file, if any, and frees the buffer. A zeroed object is accepted. */
void tierce__journal_fini(struct tierce__journal *journal);

/* Makes an empty journal at `path`. Nothing is written before add and write. Errors: those of open;
 * -EEXIST if anything has that name. */
TIERCE_MUSTUSE int tierce__journal_start(struct tierce__journal *journal, const char *path,
                                         uint64_t epoch, uint64_t capacity);

/* Continues after `pages` pages of a file that was read. [transfer] file. */
void tierce__journal_resume(struct tierce__journal *journal, struct tierce__vfs_file *file,
                            uint64_t epoch, uint64_t capacity, uint64_t pages);

/*
 * Appends a record; writes when the buffer is full. `digest` is the digest denoted by key.ns of a
 * PUT or DEL (in one file a number always denotes the same digest): each page names its namespaces,
 * so that it can be read alone. NULL for DAY. After any error the object must not be written to
 * again, because the contents of the file are unknown.
 */
TIERCE_MUSTUSE int tierce__journal_add(struct tierce__journal *journal,
                                       const struct tierce__journal_record *record,
                                       const uint8_t digest[TIERCE_HASH_BYTES]);

/*
 * Extends the file by some pages of zeroes, up to `pages_max`, if the next commit would have to
 * extend it. A sync that changes no length does not wait for the file system's own journal. Returns
 * the pages of zeroes; errors as of add.
 */
TIERCE_MUSTUSE int tierce__journal_extend(struct tierce__journal *journal, uint64_t pages_max);

/* Ends the current page, writes it, and syncs the file. A new file gets a page even without a
 * record, so that its epoch is on the disk. Errors as of add. */
TIERCE_MUSTUSE int tierce__journal_commit(struct tierce__journal *journal);

/* Drops the content of the buffer and closes the file. */
void tierce__journal_close(struct tierce__journal *journal);

#endif
