/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_PART_PRIVATE_H
#define TIERCE_NODE_PART_PRIVATE_H

#include "node/part/part.h"
#include "node/part/part_index.h"

#include <stdatomic.h>

/* Shared by the files of a node's parts. */

struct tierce__part;

/* Room for an object that arrives; `owner` of a tierce__keeper_room. First member of a medium's. */
struct tierce__part_room {
    struct tierce__part *part;
    struct tierce__part_object *object;
    struct tierce__buf *buf; /* with a reference */
};

/* Its medium. Contracts: those of tierce__keeper_ops. */
struct tierce__part_ops {
    void (*find)(struct tierce__part *part, struct tierce__keeper_call *call);
    int (*make)(struct tierce__part *part, struct tierce__keeper_room *room,
                const struct tierce_plugin_name *name, uint64_t bytes);
    void (*keep)(struct tierce__part *part, struct tierce__keeper_room *room);
    void (*abandon)(struct tierce__part *part, struct tierce__keeper_room *room);
    void (*drop)(struct tierce__part *part, struct tierce__keeper_call *call);
    /* Removes all objects and takes another incarnation, written to `incarnation`. Blocks; nothing
     * is found or made meanwhile. Errors, and then the part is as it was or lacks some objects: of
     * the device. */
    int (*forget)(struct tierce__part *part, uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES]);
    void (*close)(struct tierce__part *part, uint64_t deadline_ns);
};

struct tierce__part {
    const struct tierce__part_ops *ops;
    const char *space;
    uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES]; /* under PARTS */
    struct tierce__part_index index;
    struct tierce__pool *pool; /* of its objects, or of those that pass through */
    _Atomic int status;        /* 0: ready; -EINPROGRESS: it is being read; else why it cannot be.
                                  Release and acquire: the index is complete */
    char why[192];             /* written before status */
};

/* Errors: -EIO, -ENOMEM, negative errno. */
TIERCE_MUSTUSE int tierce__part_memory_open(struct tierce__part **out, uint64_t bytes);

/* `known` is called once, on a thread of the part, when its status is known; perhaps before this
 * returns. Errors: tierce__parts_open's. */
TIERCE_MUSTUSE int tierce__part_disk_open(struct tierce__part **out,
                                          const struct tierce__parts_opts *opts,
                                          void (*known)(void *arg), void *arg, char why[256]);

/* A buffer and a counted object for a room, whose owner the caller has set to `own`. Errors: as
 * make's. */
TIERCE_MUSTUSE int tierce__part_make_room(struct tierce__part *part, struct tierce__part_room *own,
                                          struct tierce__keeper_room *room,
                                          const struct tierce_plugin_name *name, uint64_t bytes);
/* Errors: -EIO. */
TIERCE_MUSTUSE int
tierce__part_new_incarnation(uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES]);
void tierce__part_end_call(struct tierce__keeper_call *call, int status);
void tierce__part_end_room(struct tierce__keeper_room *room, int status);

#endif
