/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_PART_PRIVATE_H
#define TIERCE_NODE_PART_PRIVATE_H

#include "node/part/part.h"
#include "node/part/part_index.h"

#include <pthread.h>
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
    /* Whether finds wait for a buffer of `pool`. NULL: they never do. */
    bool (*has_waiting)(struct tierce__part *part);
    /* Another lease on a buffer of `pool` has ended. NULL: the part does not need to know. */
    void (*freed)(struct tierce__part *part);
    /* Removes all objects and takes another incarnation, written to `incarnation`. Blocks; nothing
     * is found or made meanwhile, and rooms that were made before cannot be kept any more. Errors,
     * and then the part is as it was or lacks some objects: TIERCE_E_CLOSED (is_closing was set),
     * of the device. */
    int (*forget)(struct tierce__part *part, uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES]);
    /* Answers all calls in progress until the deadline, and later ones TIERCE_E_CLOSED; may be
     * called twice. NULL: there are none. */
    void (*end)(struct tierce__part *part, uint64_t deadline_ns);
    /* After end: frees the part. */
    void (*close)(struct tierce__part *part);
};

struct tierce__part {
    const struct tierce__part_ops *ops;
    const char *space;
    struct tierce__parts *parts;
    uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES]; /* under PARTS */
    char why[192];                                       /* under PARTS */
    struct tierce__part_index index;
    struct tierce__pool *pool; /* of its objects, or of those that pass through */
    /* 0: ready; -EINPROGRESS: it is being read or emptied; else why it cannot be used. Release and
     * acquire: the index is complete. */
    _Atomic int status;
    _Atomic bool is_closing;   /* relaxed: a flag alone */
    _Atomic uint64_t short_ns; /* when a buffer was missing last. relaxed: a time alone */
    pthread_t forgetter;
    bool has_forgetter;
};

/* Errors: -EIO, -ENOMEM, negative errno. */
TIERCE_MUSTUSE int tierce__part_memory_open(struct tierce__part **out, struct tierce__parts *parts,
                                            uint64_t bytes);

/* Its status is reported later, by a thread of the part. Errors: tierce__parts_open's. */
TIERCE_MUSTUSE int tierce__part_disk_open(struct tierce__part **out, struct tierce__parts *parts,
                                          const struct tierce__parts_opts *opts, char why[256]);

/* Sets the status of a part, with the reason in words or "", and calls the watcher of the parts if
 * the status has changed. Thread: one of the part. */
void tierce__part_report(struct tierce__part *part, int status, const char *why);

/* A buffer and a counted object for a room, whose owner the caller has set to `own`. Errors: as
 * make's; TIERCE_E_LIMIT also if there is room for the object and no buffer now. */
TIERCE_MUSTUSE int tierce__part_make_room(struct tierce__part *part, struct tierce__part_room *own,
                                          struct tierce__keeper_room *room,
                                          const struct tierce_plugin_name *name, uint64_t bytes);
/* Errors: -EIO. */
TIERCE_MUSTUSE int
tierce__part_new_incarnation(uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES]);
void tierce__part_end_call(struct tierce__keeper_call *call, int status);
void tierce__part_end_room(struct tierce__keeper_room *room, int status);

#endif
