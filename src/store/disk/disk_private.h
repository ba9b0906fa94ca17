/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_DISK_PRIVATE_H
#define TIERCE_TIER_DISK_PRIVATE_H

#include "base/threads/lock.h"
#include "core/chunk/space.h"
#include "store/disk/disk.h"
#include "store/disk/disk_journal.h"
#include "store/disk/disk_table.h"
#include "store/siblings.h"

#include <pthread.h>

/*
 * The disk tier from inside.
 *
 *   disk.c          the tier's operations, close
 *   disk_open.c     the folder: sizes, reading back, repair
 *   disk_files.c    which files belong to the store
 *   disk_texts.c    the texts of namespaces in ns/
 *   disk_lock.c     one store a folder
 *   disk_table.c    slots and how a journal fills them
 *   disk_state.c    states of a chunk, eviction, space in limbo; all under the lock
 *   disk_io.c       the I/O thread: queues, transfers, deadlines
 *   disk_commit.c   the journal thread: sync, append, compact, grow
 *   disk_room.c     the permitted length of the data file
 *   disk_journal.c  the format
 *   disk_scan.c     reading the folder of another process
 *
 * Life of a chunk:   WRITING -> DIRTY -> COMMITTING -> DURABLE -> limbo -> gone
 *                    (I/O thread)  (journal thread)    (evicted)  (its DEL is durable)
 *
 * The lock guards every field that is not marked as owned by one thread. It is never held over a
 * call of the vfs, of done, or of a buffer's release.
 */

/* Names in the folder, which the vfs has entered. */
#define TIERCE__DISK_LOCK        "lock"
#define TIERCE__DISK_DATA        "data"
#define TIERCE__DISK_JOURNAL     "journal"
#define TIERCE__DISK_JOURNAL_NEW "journal.new"
#define TIERCE__DISK_NS          "ns"

#define TIERCE__DISK_MAGIC      0x4b534954u
#define TIERCE__DISK_PUT_BINS   4096u
#define TIERCE__DISK_LIMBO_BINS 4096u

struct tierce__disk;

/* A request in progress: its transfers hold it, even if the request has been answered. I/O thread
 * only. */
struct tierce__disk_op {
    struct tierce__list node;
    struct tierce__store_req *req; /* NULL: answered already, by its deadline */
    struct tierce__list followers; /* puts of the same key, answered together with this one */
    struct tierce__buf *buf;       /* a reference of our own */
    uint8_t *data;
    uint64_t file_offset;
    uint64_t length;
    uint64_t issued; /* bytes handed to transfers */
    uint64_t sync_epoch;
    uint32_t slot;
    uint32_t flying; /* transfers */
    int status;
    bool is_put;
    struct tierce__disk_recode *recode; /* of a put; or NULL */
};

struct tierce__disk_xfer {
    struct tierce__vfs_io io;
    struct tierce__disk_op *op;
    struct tierce__list node; /* free, or returned by the vfs */
};

/* A chunk that is no longer served but not yet removed from the journal. Its space is freed with
 * this entry, unless a read is still in progress. */
struct tierce__disk_limbo {
    struct tierce__key key;
    uint64_t seq;
    uint64_t offset;
    uint64_t object_bytes;
    uint64_t before; /* running number + 1 of the last with a key of the same bin; 0: none */
    uint32_t slot;   /* of a chunk that is read, or NO_SLOT */
};

/* A chunk whose stored bytes are being compressed or uncompressed. The slot has the present object
 * until the new one is written. Then the slot has the new object, and the entry the old one, whose
 * record and space stay until the new one is durable. */
struct tierce__disk_recode {
    bool is_used, is_swapped;
    uint32_t slot;
    uint64_t seq; /* of the old one; below: of the new one, and then of the old one */
    uint64_t offset, object_bytes, raw_bytes, head_sum;
};
#define TIERCE__DISK_RECODES 64u

struct tierce__disk_slots {
    uint32_t head;
    uint32_t tail;
    uint32_t count;
    uint64_t bytes;
};

struct tierce__disk {
    struct tierce__tier base;
    uint32_t magic;

    /* ---- set at open, then constant ---- */
    char *folder; /* for messages; files are looked up in the folder that the vfs has entered */
    int lock_fd;
    bool lock_is_new;              /* this store has made the file, and holds it */
    struct tierce__list held_node; /* among the folders that the process holds */
    struct tierce__vfs *vfs;
    struct tierce__vfs_file *data;
    struct tierce__namespaces *namespaces;
    uint64_t cap_bytes;
    uint64_t data_cap;
    uint64_t journal_pages_max;
    uint64_t text_bytes_max;
    uint64_t queue_bytes_max;
    uint64_t evict_bytes; /* minimum of an eviction, so that its syncs are shared */
    uint64_t grow_bytes;
    uint32_t chunk_count_max;
    struct tierce__slots slots;
    struct tierce__slots_news slots_news; /* for the I/O thread to log */
    uint32_t io_depth;
    uint32_t io_bytes;
    uint32_t flush_interval_ms;

    struct tierce__lock lock;
    struct tierce__cond journal_cond; /* for the journal thread */
    struct tierce__cond ended_cond;   /* for close */

    /* ---- the lock ---- */
    struct tierce__disk_table table;
    struct tierce__siblings *siblings; /* of slots that are served */
    struct tierce__policy *policy;     /* holds visible chunks and chunks being written */
    struct tierce__space *space;
    uint64_t next_seq;
    uint64_t sync_epoch; /* rises when a sync of the data failed */
    int unsaid_loss;     /* 0, or why chunks were dropped that no flush has reported yet */
    struct tierce__disk_slots dirty;
    struct tierce__disk_slots committing;
    uint32_t doomed;    /* first of the doomed, or NO_SLOT */
    bool limbo_is_full; /* some of the doomed wait for room in it */
    uint32_t durable_count;
    uint32_t lacking_count; /* chunks that are hidden for their key, the doomed not among them */
    uint32_t reading_count; /* chunks with reads in flight, counted per read */
    struct tierce__disk_limbo *limbo; /* ring [limbo_room] */
    uint32_t limbo_room;
    uint64_t limbo_head, limbo_tail; /* running numbers */
    /* By key: running number + 1 of the newest of a bin; numbers below limbo_head have left. */
    uint64_t limbo_by_key[TIERCE__DISK_LIMBO_BINS];
    uint64_t limbo_bytes;
    struct tierce__disk_recode recodes[TIERCE__DISK_RECODES];
    uint32_t recode_count;
    uint64_t *admitted; /* NULL, or the filter of admit_second */
    tierce__tier_watch_fn *watch;
    void *watch_arg;

    struct tierce__list gets; /* queued */
    struct tierce__list puts; /* queued; each holds a reference on its buffer */
    struct tierce__list puts_by_key[TIERCE__DISK_PUT_BINS]; /* the same by key */
    struct tierce__list flushes;  /* and pings, waiting for the next commit */
    struct tierce__list flushing; /* waiting for the one that runs */
    uint64_t queued_put_bytes;
    uint64_t active_put_bytes;
    uint64_t next_deadline; /* a lower bound of all deadlines of requests */
    uint32_t abandoned;     /* ops whose request was answered by its deadline */
    bool polling;           /* the I/O thread is, or is about to be, in poll: wake it */
    bool closing;
    bool cancel; /* answer everything with TIERCE_E_CLOSED */
    bool io_stop, io_ended, io_idle;

    uint64_t allocated;     /* length of the data file */
    uint64_t blocked_from;  /* up to data_cap the space is taken: the file system has no room */
    uint64_t regrow_at;     /* no unneeded growth before it, and no retry of a failed one */
    bool is_sparse;         /* nothing can be reserved: `allocated` is data_cap */
    bool shrinking;         /* the file has become shorter than blocked_from */
    bool full_is_untold;    /* for the I/O thread to log */
    uint64_t grow_target;   /* 0, or the size to which the journal thread must allocate */
    uint64_t grow_least;    /* the size that the requesting put needs */
    int grow_error;         /* of the last try, until a put has taken it */
    uint64_t pending_since; /* when the oldest pending change was made; 0: nothing to commit */
    uint64_t retry_at;      /* after a failure: the time of the next commit at the earliest */
    bool urgent;
    bool journal_stop, journal_final, journal_ended;
    int journal_error;      /* not 0: the journal cannot be written; puts fail with it */
    uint64_t journal_bytes; /* of the file, plus its copy while that exists */
    uint64_t text_bytes;
    struct tierce__tier_stats stats; /* counters; stats() fills in the other fields */
    uint64_t day;
    uint64_t day_bytes;

    /* ---- the I/O thread ---- */
    pthread_t io_thread;
    struct tierce__disk_op *ops; /* [2 * io_depth + 2] */
    struct tierce__list free_ops;
    struct tierce__list active_ops;
    struct tierce__disk_op *get_op; /* with bytes not issued yet, or NULL */
    struct tierce__disk_op *put_op;
    struct tierce__disk_xfer *xfers; /* [io_depth] */
    struct tierce__list free_xfers;
    struct tierce__list returned; /* by the vfs, not looked at yet */
    uint32_t reads_flying;
    uint32_t writes_flying;
    uint32_t reads_in_row; /* transfers begun since the last that was a write */

    /* ---- the journal thread ---- */
    pthread_t journal_thread;
    struct tierce__journal journal;
    struct tierce__journal journal_new;
    struct tierce__vfs_file *mark; /* how much of the journal was synced; NULL: not written yet */
    bool mark_failed;              /* it cannot be written, and is not tried again */
    uint32_t *ns_numbers;          /* [NS_MAX] the number in the journal + 1, by id; */
    uint8_t *ns_texts;             /* [NS_MAX] whether the text is published */
    uint32_t ns_count;
    uint64_t text_retry_at;                 /* no text is published before it, after a failure */
    struct tierce__journal_record *records; /* [TIERCE__DISK_BATCH] */
    uint64_t seed;

    bool has_leftover; /* a journal.new of this store may exist; also set during open */

    const char *
        opening; /* during open: the name of the file being opened, for messages; ".": the folder */
};

#define TIERCE__DISK_BATCH 64u

/* Whether this is one of the two threads. For assertions. */
static inline bool tierce__disk_is_on_io(const struct tierce__disk *d)
{
    return pthread_equal(pthread_self(), d->io_thread) != 0;
}

static inline bool tierce__disk_is_on_journal(const struct tierce__disk *d)
{
    return pthread_equal(pthread_self(), d->journal_thread) != 0;
}

/* ---- disk_state.c: under the lock ------------------------------------------------------------ */

/* The slot of a chunk that may be served, or TIERCE__INDEX_NONE. */
uint32_t tierce__disk_find(struct tierce__disk *d, const struct tierce__key *key);
bool tierce__disk_is_visible(const struct tierce__disk *d, uint32_t slot);

/* A read of a chunk begins and ends: it is not evicted meanwhile. */
void tierce__disk_hold(struct tierce__disk *d, uint32_t slot);
void tierce__disk_unhold(struct tierce__disk *d, uint32_t slot);

/* WRITING -> DIRTY: it can be found from here on. */
void tierce__disk_publish(struct tierce__disk *d, uint32_t slot);
/* WRITING -> gone. */
void tierce__disk_abort(struct tierce__disk *d, uint32_t slot);
/* All DIRTY -> COMMITTING. */
void tierce__disk_begin_commit(struct tierce__disk *d);
/* COMMITTING -> DURABLE, and the space of limbo entries before `limbo_mark` is free again. */
void tierce__disk_settle(struct tierce__disk *d, uint64_t limbo_mark);
/* COMMITTING -> DIRTY: the journal could not be written. */
void tierce__disk_retry_later(struct tierce__disk *d);
/* A sync of the data failed: all that is not durable is dropped. */
void tierce__disk_drop_unsynced(struct tierce__disk *d);

/* Makes a visible chunk invisible at once; frees it when its last holder releases it. */
void tierce__disk_doom(struct tierce__disk *d, uint32_t slot, enum tierce__tier_left left);
/* Whether a chunk is visible and not hidden. */
bool tierce__disk_is_served(const struct tierce__disk *d, uint32_t slot);
/* Does not serve a visible chunk any more; `left`: VERSION or NO_KEY. */
void tierce__disk_hide(struct tierce__disk *d, uint32_t slot, enum tierce__tier_left left);
/* Serves the chunks again that are hidden for their key, in the slots [from, to). */
void tierce__disk_show(struct tierce__disk *d, uint32_t from, uint32_t to);
/* A chunk that is served like an admitted one; [borrow until it is removed]. */
struct tierce__tier_event tierce__disk_describe(const struct tierce__disk *d, uint32_t slot);
/* Dooms visible chunks and cancels chunks being written, of one namespace or (NULL) of all, in the
 * slots [from, to). Returns the number of chunks that were served. */
size_t tierce__disk_clear(struct tierce__disk *d, const struct tierce__key *ns_of, uint32_t from,
                          uint32_t to);
/* Whether a journal may list, until the next commit, a chunk that is no longer stored. */
bool tierce__disk_may_return(const struct tierce__disk *d, const struct tierce__key *key);
/* Removes doomed chunks that nothing holds any more. */
void tierce__disk_reap(struct tierce__disk *d);
/* Evicts until the space of `bytes` is in limbo or free, or nothing can be evicted. Returns
 * whether anything was. */
bool tierce__disk_evict(struct tierce__disk *d, uint64_t bytes, enum tierce__tier_left left);
/* Evicts a durable chunk without reads in flight; false if limbo has no room for it. */
bool tierce__disk_evict_slot(struct tierce__disk *d, uint32_t slot, enum tierce__tier_left left);
/* Drops a chunk that is not durable yet, without reads in flight; false if limbo has no room for
 * it. The caller lets the next flush report it (unsaid_loss). */
bool tierce__disk_drop_slot(struct tierce__disk *d, uint32_t slot);
/* Removes chunks that have expired according to the policy; they are invisible at once. */
void tierce__disk_expire(struct tierce__disk *d);
/* Whether something is under way that will free space or make chunks evictable. */
bool tierce__disk_will_free(const struct tierce__disk *d);

/* Adds to the bytes written today. */
void tierce__disk_count_written(struct tierce__disk *d, uint64_t bytes);
/* Notes that there is something to commit, and wakes the journal thread if it is `urgent`. */
void tierce__disk_want_commit(struct tierce__disk *d, bool urgent);

/* The fault of a PUT that recodes; 0: none. *has_form: the chunk has the form already. */
int tierce__disk_check_recode(struct tierce__disk *d, const struct tierce__store_req *req,
                              uint32_t *slot, bool *has_form);
/* Begins it, with space for the new object: holds the chunk, so that its slot stays. NULL: too many
 * are in progress. */
struct tierce__disk_recode *tierce__disk_begin_recode(struct tierce__disk *d, uint32_t slot,
                                                      uint64_t offset,
                                                      const struct tierce__store_req *req);
/* The new object is written, or `status` says why not. If the chunk can be replaced now, the slot
 * gets the new object. Returns the status of the put. */
int tierce__disk_end_recode(struct tierce__disk *d, struct tierce__disk_recode *recode, int status);

/* ---- disk_io.c ------------------------------------------------------------------------------- */

TIERCE_MUSTUSE int tierce__disk_io_init(struct tierce__disk *d);
void tierce__disk_io_fini(struct tierce__disk *d);
void *tierce__disk_io_main(void *arg);
/* Answers each request of a list: releases the references of queued puts, and calls done. No lock.
 * */
void tierce__disk_answer(struct tierce__list *finished);
/* Whether a put is of a suffix whose prefix is neither stored nor being written, so that no lookup
 * could find it. Under the lock. */
bool tierce__disk_lacks_parent(const struct tierce__disk *d, const struct tierce__store_req *req);
/* Puts a request on a list of those to be answered. */
void tierce__disk_finish(struct tierce__list *finished, struct tierce__store_req *req, int status);
struct tierce__store_req *tierce__disk_req_of(struct tierce__list *node);
/* A put that has been taken off the queue. Under the lock. */
void tierce__disk_unqueued(struct tierce__disk *d, struct tierce__store_req *put);
/* Wakes the I/O thread. Thread: any. No lock. */
void tierce__disk_wake_io(struct tierce__disk *d, bool polling);

/* scratch[0] of a put that is queued: it holds a reference on its buffer. */
#define TIERCE__DISK_HOLDS_BUF 1u
/* Also in scratch[0]: the put was announced to the policy. */
#define TIERCE__DISK_EXPECTED 2u

/* scratch[1] and [2] of a put that is queued: its place in puts_by_key. */
static inline struct tierce__list *tierce__disk_by_key(struct tierce__store_req *put)
{
    return (struct tierce__list *)(void *)&put->scratch[1];
}

/* ---- disk_commit.c --------------------------------------------------------------------------- */

void *tierce__disk_journal_main(void *arg);
/* Writes the index to a new journal and puts it in place of the old one. Thread: the journal
 * thread, or open. Blocks. */
TIERCE_MUSTUSE int tierce__disk_compact(struct tierce__disk *d);
/* Notes beside the journal that all its pages were synced. Thread: as of compact. */
void tierce__disk_mark_synced(struct tierce__disk *d);

/* ---- disk_files.c ---------------------------------------------------------------------------- */

/* Checks that files of the store are regular files, and ns/ is a folder. Errors: -ELOOP, -EISDIR,
 * -ENOTDIR, -EINVAL; negative errno. d->opening is its name. Changes nothing. */
TIERCE_MUSTUSE int tierce__disk_check_kinds(struct tierce__disk *d);
/* Looks at the lock (which is held), the mark and a journal that was not finished. TIERCE_E_FORMAT
 * for a file that is not ours, TIERCE_E_LIMIT for a journal that is too long, -ENOMEM, errno of
 * reading. d->opening is its name. Changes nothing. */
TIERCE_MUSTUSE int tierce__disk_check_contents(struct tierce__disk *d);
/* Whether a journal without a valid page was written by Tierce. Errors: as above. */
TIERCE_MUSTUSE int tierce__disk_check_journal(struct tierce__disk *d, struct tierce__vfs_file *file,
                                              uint64_t length);
/* The same check for the open data file, after the journal has been read. */
TIERCE_MUSTUSE int tierce__disk_check_data(struct tierce__disk *d, uint64_t length,
                                           bool has_journal);

/* ---- disk_texts.c ---------------------------------------------------------------------------- */

/* Publishes the text of a namespace beside the journal; failing costs only the text. Thread: the
 * journal thread, or open. Blocks. */
void tierce__disk_publish_text(struct tierce__disk *d, uint32_t id);
/* Loads the texts of namespaces that the journal names, removes other texts, and counts the rest.
 * During open. Errors: -ENOMEM, negative errno of ns/ itself. */
TIERCE_MUSTUSE int tierce__disk_sort_texts(struct tierce__disk *d);

/* ---- disk_room.c ----------------------------------------------------------------------------- */

/* -ENOSPC, -EDQUOT. */
bool tierce__disk_is_full_error(int rc);
/* Bytes of the space that the file system has no room for. Under the lock. */
uint64_t tierce__disk_blocked(const struct tierce__disk *d);
/* The minimum number of bytes that an eviction frees: evict_bytes, and at most a 64th of the data
 * file, which is small on a full file system. Under the lock. */
uint64_t tierce__disk_evict_batch(const struct tierce__disk *d);
/* Requests that the journal thread grows the file to `end` or more. If the file system was full,
 * the thread checks whether it has room again. Under the lock. */
void tierce__disk_want_growth(struct tierce__disk *d, uint64_t end);
/* Grows, or blocks the part without free space. Under the lock, which is released temporarily. The
 * journal thread. */
void tierce__disk_grow(struct tierce__disk *d);
/* The journal cannot be written for lack of room: evicts chunks at the end of the data file and
 * cuts it. False: no chunk can be evicted. No lock; the journal thread. Blocks. */
TIERCE_MUSTUSE bool tierce__disk_give_back(struct tierce__disk *d);
/* After a commit, when ranges in limbo are free. Under the lock. */
void tierce__disk_end_shrinking(struct tierce__disk *d);
/* A write found the file system full; without reserved space this is the only sign. Under the lock.
 * */
void tierce__disk_write_found_full(struct tierce__disk *d);
/* No lock. */
void tierce__disk_tell_full(const struct tierce__disk *d, uint64_t room);

/* ---- disk_lock.c ----------------------------------------------------------------------------- */

/*
 * Locks the folder for this store, waiting up to wait_ms. An open-file-description lock: it also
 * excludes a second store in the same process, and is released when the process ends, in whatever
 * way. Errors: TIERCE_E_LOCKED, negative errno (the file "lock").
 */
TIERCE_MUSTUSE int tierce__disk_lock(struct tierce__disk *d, uint32_t wait_ms);
/* Releases the folder, if it was locked. */
void tierce__disk_unlock(struct tierce__disk *d);
/* For a folder that is refused: removes the lock's file if this store has made it. It stays locked.
 */
void tierce__disk_remove_lock(struct tierce__disk *d);

/* ---- disk_open.c ----------------------------------------------------------------------------- */

/* Frees everything; the threads have ended. */
void tierce__disk_free(struct tierce__disk *d);
extern const struct tierce__tier_ops tierce__disk_ops; /* disk.c */

#endif
