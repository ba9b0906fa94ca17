/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_FILE_H
#define TIERCE_CONNECTOR_FILE_H

#include "base/vfs.h"
#include "connector/connector.h"

/*
 * Objects as files of a folder that any number of processes on any number of hosts share: NFS, a
 * mount of 3FS, a local disk.
 *
 *     file:///mnt/shared/tierce?size=2TiB
 *
 * The folder is made if only it is missing, not what lies above: where a mount is missing, that
 * would hide it. Below it:
 *
 *     ~store          "tierce file store 1", and how many levels of folders there are
 *     ~claim          who swept last, and how many bytes there were then
 *     3f/a0/NAME      an object; the folders are the first bytes of SHA-256 of its name in hex
 *     3f/a0/~tmp-...  one that is being written
 *
 * NAME is the object's, with each byte but letters, digits and "._=+,@-" (and a '.' that comes
 * first) as %XX. What is longer than 200 bytes continues in a folder, "BEGIN~/REST". An object is
 * written beside its place, synced, renamed, and the folder synced.
 *
 * With a cap, what was used longest ago goes when the cap comes near: down to nine tenths of it. A
 * use is written down as the file's time of access, to the minute. What this process writes counts
 * at once, what others wrote since the last sweep does not; a PUT beyond the cap is TIERCE_E_FULL
 * until a sweep has made room. Usually one process sweeps for all: whoever sees no other one's
 * claim for the interval. Several at once do no harm. Temporaries that nobody has written to for
 * an hour go with a sweep, cap or not.
 *
 * Thread: any.
 */

struct tierce__file_opts {
    size_t size;
    const char *root;        /* absolute */
    const char *store_name;  /* for messages */
    uint32_t levels;         /* of a new store: 1 .. 3; 0: 2 */
    uint32_t links;          /* transfers at once; 0: 8 */
    uint64_t cap_bytes;      /* 0: none */
    uint64_t sweep_ms;       /* the interval; 0: five minutes */
    uint64_t tmp_ms;         /* age at which a temporary is nobody's; 0: one hour */
    struct tierce__vfs *vfs; /* [transfer, on an error too] whose blocking calls are used */
};

/* Errors: -ENOMEM, -EAGAIN (no thread). [borrow for the call] texts. */
TIERCE_MUSTUSE int tierce__file_create(struct tierce__connector **out,
                                       const struct tierce__file_opts *opts);

#endif
