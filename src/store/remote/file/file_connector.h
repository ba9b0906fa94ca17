/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_FILE_H
#define TIERCE_CONNECTOR_FILE_H

#include "base/vfs/vfs.h"
#include "store/remote/connector.h"

/*
 * Objects as files in a folder that any number of processes on any number of hosts share: NFS, a
 * mount of 3FS, a local disk.
 *
 *     file:///mnt/shared/tierce?size=2TiB
 *
 * The connector creates the folder but not its parents: creating them would hide a missing mount.
 * Contents:
 *
 *     ~store          "tierce file store 1", and the number of folder levels
 *     ~claim          the process that swept last, and the number of bytes at that time
 *     3f/a0/NAME      an object; the folders are the first bytes of SHA-256 of its name in hex
 *     3f/a0/~tmp-...  an object that is being written
 *
 * NAME is the object's name, with each byte except letters, digits and "._=+,@-" (and a leading
 * '.') as %XX. A name longer than 200 bytes continues in a folder, "BEGIN~/REST". An object is
 * written beside its final path, synced and renamed, and then the folder is synced.
 *
 * With a cap, a sweep deletes the least recently used objects when the total comes near the cap,
 * down to nine tenths of it. A use sets the file's access time, to the minute. Bytes that this
 * process writes count at once; bytes of other processes count after the next sweep. A PUT beyond
 * the cap returns TIERCE_E_FULL until a sweep has made room. Usually one process sweeps for all:
 * the first that sees no claim of another for the interval. Several sweeps at once do no harm. A
 * sweep also deletes temporary files that were not written to for an hour, with or without a cap.
 *
 * With `?names=path` names are paths below the folder, as the clients of a manager use them
 * (file_place.h): whole files, or slots of files. The folder has none of the contents above and
 * must exist. Objects are written in place, so the promise of connector.h that half of a PUT is
 * never found does not hold: the manager shows only blocks whose PUT was answered 0. An
 * acknowledged object is durable. Nothing is deleted (TIERCE__CONNECTOR_NO_DELETE) or listed. No
 * link below the folder is followed.
 *
 * Thread: any.
 */

struct tierce__client;
struct tierce__url;

typedef int tierce__file_make_vfs_fn(struct tierce__vfs **out);

struct tierce__file_opts {
    size_t size;
    const char *root;        /* absolute */
    const char *store_name;  /* for messages */
    uint32_t levels;         /* of a new store: 1 .. 3; 0: 2 */
    uint32_t links;          /* transfers at once; 0: 8 */
    uint64_t cap_bytes;      /* 0: none */
    uint64_t sweep_ms;       /* the interval; 0: five minutes */
    uint64_t tmp_ms;         /* age at which a temporary file counts as abandoned; 0: one hour */
    struct tierce__vfs *vfs; /* [transfer, on an error too] whose blocking calls are used */
    bool has_paths; /* names=path, for which root, store_name and links count; vfs is NULL */
    tierce__file_make_vfs_fn *make_vfs; /* names=path: makes that of a link; NULL: a plain one */
};

/* Errors: -ENOMEM, -EAGAIN (no thread). [borrow for the call] texts. */
TIERCE_MUSTUSE int tierce__file_create(struct tierce__connector **out,
                                       const struct tierce__file_opts *opts);

/* For the `open` of another client (links.h) whose objects are the files of such a folder, accessed
 * by `vfs`: reads the folder, `size`, `fanout` and `sweep` of its URL, makes *own a file client,
 * and opens its store. [transfer, on an error too] vfs. Errors: as tierce__connector_open. */
TIERCE_MUSTUSE int tierce__file_open_with(void **out, struct tierce__client *own,
                                          const struct tierce__url *url, struct tierce__vfs *vfs,
                                          char why[TIERCE__CONNECTOR_WHY_BYTES]);

#endif
