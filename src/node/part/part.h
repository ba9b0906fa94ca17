/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_PART_H
#define TIERCE_NODE_PART_H

#include "store/transfer/transfer.h"

/*
 * The parts of a node's memory and disk that belong to a fleet's pool. A part has a fixed size and
 * no policy: an object stays until it is dropped, and a full part refuses new ones, because a
 * manager decides what is stored and evicted.
 *
 * The spaces of the keeper are "memory" and "disk". An object in memory is a buffer of a pool of
 * its own. An object on disk is a file (store/remote/file), and its bytes pass through a buffer;
 * its name and length are in memory, and are read from the folder when the node starts.
 *
 * Thread: any.
 */

struct tierce__parts;
struct tierce__connector;

#define TIERCE__PARTS_MAX              2u
#define TIERCE__PART_INCARNATION_BYTES 16u

struct tierce__parts_opts {
    size_t size;           /* sizeof(struct tierce__parts_opts) */
    uint64_t memory_bytes; /* 0: no part in memory; else >= 1 MiB */
    const char *disk_path; /* a folder, made if its parent exists; "": no part on disk */
    uint64_t disk_bytes, buffer_bytes; /* buffer: memory for reads and writes of the disk in
                                          progress, >= 1 MiB; no larger object is accepted */
    uint32_t waiting_max;              /* reads that may wait for that memory; 0: 1024 */
    bool disk_must_exist;              /* a folder without a part is refused */
    struct tierce__connector *store;   /* [transfer] in place of the files in disk_path (tests) */
};

/* Errors, `why` in words: TIERCE_E_LOCKED (another process has the folder), TIERCE_E_FORMAT (its
 * incarnation is damaged), -EEXIST (it has objects and no incarnation), -ENOENT (it has no part,
 * and disk_must_exist), other negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__parts_open(struct tierce__parts **out,
                                      const struct tierce__parts_opts *opts, char why[256]);
/* Answers all calls in progress until the deadline at the latest, and later ones TIERCE_E_DOWN. A
 * disk that does not answer until then is abandoned, and what is being forgotten goes on after the
 * next start. Rooms and leases stay valid. Also by the keeper. */
void tierce__parts_end(struct tierce__parts *parts, uint64_t deadline_ns);
/* No call of the keeper is in progress, and no room or lease is left. Ends the parts. NULL is
 * accepted. */
void tierce__parts_close(struct tierce__parts *parts, uint64_t deadline_ns);

/* [borrow until close] */
struct tierce__keeper *tierce__parts_keeper(struct tierce__parts *parts);

struct tierce__part_state {
    const char *space; /* "memory" or "disk" */
    /* Another one means that earlier objects are gone: for memory from each start, on disk from the
     * making of the folder. */
    uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES];
    uint64_t capacity_bytes, used_bytes, objects;
    bool is_ready; /* false: it is being read or emptied; requests are TIERCE_E_DOWN */
    char why[192]; /* why the folder could not be read yet; it is tried again. "": no trouble */
};

size_t tierce__parts_count(const struct tierce__parts *parts);
void tierce__parts_state(struct tierce__parts *parts, size_t index, struct tierce__part_state *out);

/* Begins to remove all objects of a part, which gets another incarnation when that is done, because
 * no manager knows them any more. Until then it is not ready. Rooms that were made before cannot be
 * kept any more. If the disk fails, the part is ready again, with the old incarnation and the rest
 * of its objects. Errors: TIERCE_E_DOWN (it is not ready), -EAGAIN (no thread). One thread at a
 * time. */
TIERCE_MUSTUSE int tierce__parts_forget(struct tierce__parts *parts, size_t index);

/* Calls `watch` on a thread of the parts whenever the status of a part has changed: it is ready
 * now, or has been emptied. Trouble while it is being read is no change, and neither is a part that
 * could not be emptied. `watch` does not block. NULL: no more, and no call is in progress when this
 * returns. */
void tierce__parts_watch(struct tierce__parts *parts, void (*watch)(void *arg), void *arg);

#endif
