/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_PART_INDEX_H
#define TIERCE_NODE_PART_INDEX_H

#include <stdatomic.h>

#include "base/map.h"
#include "base/threads/lock.h"
#include "core/chunk/pool.h"
#include <tierce/plugin.h>

/*
 * The objects of a part by name, and the bytes that they occupy. Room is counted before the bytes
 * of an object arrive, so the limit is hard.
 *
 * Thread: any.
 */

struct tierce__part_object {
    struct tierce__map_node node;
    uint64_t bytes;
    struct tierce__buf *buf; /* owned; NULL: the bytes are elsewhere */
    uint32_t slot;
    uint32_t era; /* of the index, when it was reserved */
    uint16_t name_bytes;
    char name[];
};

struct tierce__part_slot {
    struct tierce__part_object *object; /* NULL: free, or its object is arriving */
    uint32_t next_free;
};

struct tierce__part_index {
    struct tierce__lock lock; /* PART: all below */
    uint64_t seed;            /* of hashes: clients choose the names */
    uint64_t capacity_bytes, used_bytes;
    struct tierce__map objects;
    struct tierce__part_slot *slots; /* an object keeps its slot, so that lists are complete */
    uint32_t slot_count, slot_room, first_free;
    uint32_t era; /* objects of earlier ones cannot become visible */
};

/* Errors: -EIO (no random bytes). */
TIERCE_MUSTUSE int tierce__part_index_init(struct tierce__part_index *index,
                                           uint64_t capacity_bytes);
/* A smaller capacity than is used removes nothing. */
void tierce__part_index_set_capacity(struct tierce__part_index *index, uint64_t capacity_bytes);
/* Releases all buffers. */
void tierce__part_index_fini(struct tierce__part_index *index);

/* The space that an object occupies: its bytes, rounded up to 4096. */
uint64_t tierce__part_space(uint64_t bytes);

/* Counts the space of a new object, which is not visible yet. Errors: TIERCE_E_FULL,
 * TIERCE_E_LIMIT (larger than the part), -ENOMEM. */
TIERCE_MUSTUSE int tierce__part_index_reserve(struct tierce__part_index *index,
                                              struct tierce__part_object **out,
                                              const struct tierce_plugin_name *name,
                                              uint64_t bytes);
/* Ends an object that did not become visible, and its buffer. */
void tierce__part_index_cancel(struct tierce__part_index *index,
                               struct tierce__part_object *object);
/* Makes it visible, in place of an older one of that name. True: [transfer]. False: it has expired
 * since it was reserved, and is to be cancelled. */
TIERCE_MUSTUSE bool tierce__part_index_publish(struct tierce__part_index *index,
                                               struct tierce__part_object *object);

/* Objects that are reserved now cannot become visible any more. */
void tierce__part_index_expire(struct tierce__part_index *index);

/* *bytes: the length; *buf, if not NULL: a reference on the buffer, if it has one. False: there is
 * no such object. */
bool tierce__part_index_find(struct tierce__part_index *index,
                             const struct tierce_plugin_name *name, uint64_t *bytes,
                             struct tierce__buf **buf);

/* Removes an object, if it is there. */
void tierce__part_index_remove(struct tierce__part_index *index,
                               const struct tierce_plugin_name *name);

/* Removes all objects that were visible before, one after the other. False: *stops was true first.
 */
TIERCE_MUSTUSE bool tierce__part_index_clear(struct tierce__part_index *index,
                                             const _Atomic bool *stops);

/* As `list` of a keeper. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__part_index_list(struct tierce__part_index *index,
                                           const struct tierce_plugin_name *prefix,
                                           uint64_t *cursor, tierce_plugin_each_fn *each,
                                           void *arg);

/* Also the bytes that are reserved; visible objects. */
void tierce__part_index_count(struct tierce__part_index *index, uint64_t *capacity_bytes,
                              uint64_t *used_bytes, uint64_t *objects);

#endif
