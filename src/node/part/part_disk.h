/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_PART_DISK_H
#define TIERCE_NODE_PART_DISK_H

#include "node/part/part_private.h"
#include "node/part/part_waits.h"
#include "store/remote/connector.h"

#include <pthread.h>

/*
 * A part on disk. Its files:
 *
 *     part_disk.c    requests: finds, rooms, deletions; opening and closing
 *     part_folder.c  all objects: reading the folder, and forgetting
 *     part_waits.c   finds that wait for a buffer
 */
struct tierce__disk_part {
    struct tierce__part part;
    struct tierce__connector *connector;
    int lock_fd;
    char *mark; /* the path of the incarnation */
    pthread_t reader;
    bool has_reader;
    uint64_t capacity_bytes; /* counts once the folder is read */

    struct tierce__part_waits *waits;
    uint64_t buffer_bytes;
    _Atomic uint64_t needed_bytes;  /* of the find that waits first. relaxed: a hint */
    _Atomic uint64_t writing_bytes; /* in rooms. relaxed: a sum alone */

    /* Calls of the connector in progress. Sequentially consistent with
     * is_closed: end() sets is_closed and waits for 0; a call counts itself and then reads
     * is_closed. So the connector is not used after it was closed. */
    _Atomic uint32_t calling;
    _Atomic bool is_closed;
    bool is_abandoned; /* a call has not returned: its pool must stay */

    struct tierce__lock lock; /* PART_DISK: below */
    struct tierce__cond ended;
    bool is_ending; /* pauses are over */
};

/* Gives a request to the store, unless that is closed (TIERCE_E_CLOSED). */
void tierce__disk_part_submit(struct tierce__disk_part *disk, struct tierce__store_req *req);

/* The store's last failure in words; "" for none, and when it is closed. */
void tierce__disk_part_why(struct tierce__disk_part *disk, char why[TIERCE__CONNECTOR_WHY_BYTES]);

/* ---- part_folder.c --------------------------------------------------------------------------- */

/* A thread: reads the names and lengths of all objects, and reports that the part is ready. Tries
 * again, with pauses, until that succeeds or the part is closed. */
void *tierce__disk_part_read(void *disk);

/* As tierce__part_ops. */
int tierce__disk_part_forget(struct tierce__part *part,
                             uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES]);

/* Errors: negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__disk_part_mark(const char *path,
                                          uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES]);

#endif
