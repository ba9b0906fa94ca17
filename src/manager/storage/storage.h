/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STORAGE_H
#define TIERCE_MANAGER_STORAGE_H

#include "manager/registry/model.h"

/*
 * A driver for one storage, below storages.h. There are five: files (NFS, 3FS mounts), Redis, and
 * S3, Mooncake and parts of nodes over their connectors (store/remote). Unmanaged storages, which
 * only clients can reach, have no driver.
 *
 * Calls block, possibly forever (an NFS server that does not answer), so they are made on a thread
 * that can be abandoned. Threads: one at a time per driver.
 */

struct tierce__storage_driver;

#define TIERCE__STORAGE_BATCH_MAX 64u
#define TIERCE__STORAGE_READ_MAX  (96u << 20) /* bytes of an object that is read */
#define TIERCE__STORAGE_PIECE     (256u << 10)

/* Some objects of a storage. */
struct tierce__storage_page {
    struct tierce__storage_object {
        char *name;         /* behind the root: "INSTANCE/SPEC/FILE"; heap */
        uint64_t bytes;     /* TIERCE__STORAGE_UNKNOWN_BYTES: the listing does not tell */
        int64_t changed_us; /* last change, by the storage's clock; 0: the storage does not tell */
    } * objects;            /* heap */
    size_t count, room;
    uint64_t others; /* objects, folders and links that cannot be a block's */
    uint64_t unread; /* folders and files that could not be read: the page lacks their objects */
    char unread_why[128]; /* the first of them, and its error */
    bool is_end;          /* no further page */
};
#define TIERCE__STORAGE_UNKNOWN_BYTES UINT64_MAX

/* Adds an object, with a copy of its name. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__storage_page_add(struct tierce__storage_page *page, const char *name,
                                            uint64_t bytes, int64_t changed_us);
void tierce__storage_page_clear(struct tierce__storage_page *page);

struct tierce__storage_ops {
    const char *name; /* "file", "redis", "s3", "mooncake", "tierce" */
    /* The driver copies the fields of `storage` that it uses. Errors: TIERCE_E_CONFIG, -ENOMEM,
     * negative errno; `why` in words. Does no I/O that could hang. */
    TIERCE_MUSTUSE int (*open)(struct tierce__storage_driver **out,
                               const struct tierce__storage *storage, char why[128]);
    void (*close)(struct tierce__storage_driver *driver);
    /* Writes test data under a random name, reads it back and deletes it. */
    TIERCE_MUSTUSE int (*probe)(struct tierce__storage_driver *driver, char why[128]);
    /* Reads the mark (storage_at.h), and replaces it durably. Both NULL: storages of this kind have
     * none. Errors of reading: -ENOENT (no mark, or no root), TIERCE_E_FORMAT (an object that is no
     * mark has its name), others as a probe. */
    TIERCE_MUSTUSE int (*read_mark)(struct tierce__storage_driver *driver,
                                    char id[TIERCE__STORAGE_ID_HEX + 1], char why[128]);
    TIERCE_MUSTUSE int (*write_mark)(struct tierce__storage_driver *driver, const char *id,
                                     char why[128]);
    /* Whether it has an object with a block's name, among the first ones: a storage without a mark
     * that has blocks belongs to another registry, or has lost its mark. NULL: blocks are not
     * looked for. Errors: as a probe. */
    TIERCE_MUSTUSE int (*has_blocks)(struct tierce__storage_driver *driver, bool *has);
    /* A storage that has lost its mark has lost its blocks, and they cannot come back: a server
     * that was started again with an empty memory. It is marked again. */
    bool may_forget;
    /* Deletes a file (tierce__place_path); 0 if it does not exist. TIERCE_E_ARGUMENT, nothing
     * deleted: the path leaves the root or contains a link, or is not a regular file. */
    TIERCE_MUSTUSE int (*remove)(struct tierce__storage_driver *driver, const char *path);
    /* Removes up to TIERCE__STORAGE_BATCH_MAX files at once, and sets the status of each as remove
     * returns it. NULL: files are removed one by one. */
    void (*remove_many)(struct tierce__storage_driver *driver, const char *const *paths,
                        size_t count, int *status);
    /* Returns the size of a file (tierce__place_path). -ENOENT: it does not exist; other errors as
     * remove. */
    TIERCE_MUSTUSE int (*measure)(struct tierce__storage_driver *driver, const char *path,
                                  uint64_t *bytes);
    /* The most bytes of a read: a piece that a slow storage delivers within the time of a probe; if
     * the store reads a whole object for each part of it, TIERCE__STORAGE_READ_MAX. */
    size_t read_max;
    /* Reads bytes [offset, offset + bytes) of a file; `bytes` is at most read_max. -ENOENT: it does
     * not exist; TIERCE_E_FORMAT: it ends before; others as remove. NULL: objects of this storage
     * are not read. */
    TIERCE_MUSTUSE int (*read)(struct tierce__storage_driver *driver, const char *path,
                               uint64_t offset, void *out, size_t bytes);
    /* As measure, but both the mark and the file are read in the same root, so that no other file
     * system can be mounted between the two. TIERCE_E_DOWN: the mark there is not `id`. NULL: the
     * mark is read before and after. */
    TIERCE_MUSTUSE int (*measure_marked)(struct tierce__storage_driver *driver, const char *id,
                                         const char *path, uint64_t *bytes);
    /* Adds the next objects of a listing to an empty page; `is_first` begins a new listing. A page
     * may be empty before the end, and does not take longer than a probe. Objects that are written
     * or removed meanwhile may be listed or not, and an object may be listed twice. NULL: storages
     * of this kind are not listed. Errors, `why` in words or "": -ESTALE (no listing has begun),
     * TIERCE_E_UNSUPPORTED (this storage cannot be listed), as of a probe; the listing has ended
     * then. */
    TIERCE_MUSTUSE int (*list)(struct tierce__storage_driver *driver, bool is_first,
                               struct tierce__storage_page *page, char why[128]);
    /* Ends a listing before its last page. NULL: a listing holds nothing open. */
    void (*end_list)(struct tierce__storage_driver *driver);
    /* Removes a file if it is as it was listed, in a root whose mark is `id`. -EAGAIN: it has
     * changed since, and stays; TIERCE_E_DOWN: another mark; others as remove. NULL: an object that
     * is listed never changes, so that remove does the same. */
    TIERCE_MUSTUSE int (*remove_listed)(struct tierce__storage_driver *driver, const char *id,
                                        const char *path, int64_t changed_us);
    /* The used share, 0 .. 1, of the underlying file system or server; negative: unknown. */
    double (*used_share)(struct tierce__storage_driver *driver);
};

/* First member of every implementation. */
struct tierce__storage_driver {
    const struct tierce__storage_ops *ops;
};

extern const struct tierce__storage_ops tierce__storage_file;
extern const struct tierce__storage_ops tierce__storage_redis;
extern const struct tierce__storage_ops tierce__storage_s3;
extern const struct tierce__storage_ops tierce__storage_node;
extern const struct tierce__storage_ops tierce__storage_mooncake;

/* NULL: storages of this type are unmanaged. The driver of Mooncake requires an interpreter that
 * has Mooncake (storage->mooncake_python). */
const struct tierce__storage_ops *tierce__storage_ops_find(enum tierce__storage_type type);

#endif
