/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OBJECTS_PRIVATE_H
#define TIERCE_ENGINE_OBJECTS_PRIVATE_H

#include "engine/engine.h"
#include "engine/objects/object_form.h"
#include "engine/objects/smalls.h"
#include "engine/objects/objects.h"
#include "engine/observe/operate.h"

/*
 * Shared by the files of named values: objects.c creates and replaces values, objects_remove.c
 * takes them out of tiers, objects_find.c finds them, objects_scan.c lists them.
 */

struct tierce__objects {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce__object_space space;
    uint64_t value_bytes_least; /* memory.size / maximum number of values */
};

struct tierce__object_handle {
    struct tierce__object base;
    uint32_t magic;
    struct tierce__objects *space;
    struct tierce__key key;
    struct tierce__buf *buf;
    uint64_t header_bytes, object_bytes;
    uint32_t pieces;
    uint32_t done; /* leading pieces that were summed, or verified */
    bool found;    /* and not created */
    bool is_small; /* a verified copy stored after the handle, without buffer and pieces */
};

/* Opens a small value in memory; NULL if there is none. name_bytes 0: with any name. */
struct tierce__object *tierce__object_open_small(struct tierce__objects *space,
                                                 const struct tierce__key *key, const void *name,
                                                 size_t name_bytes);

/* A use of a value, for the policies. */
static inline struct tierce__policy_origin
tierce__object_use(const struct tierce__object_what *what, uint8_t hint)
{
    uint8_t own = what->expires_ms != 0 ? TIERCE_HINT_TTL : TIERCE_HINT_NONE;
    return (struct tierce__policy_origin){.hint = hint != TIERCE_HINT_NONE ? hint : own};
}

/* The index entry of an object. [in] use: the use that stores it. */
struct tierce__storage_chunk tierce__object_record(const struct tierce__key *key,
                                                   uint64_t object_bytes,
                                                   struct tierce__policy_origin use);

/* A handle of a value in `buf`. Takes over a reference on `buf` in every case; NULL for no memory.
 * [in] form: the object's header, parsed. */
struct tierce__object *tierce__object_open(struct tierce__objects *space,
                                           const struct tierce__key *key, struct tierce__buf *buf,
                                           const struct tierce__object_form *form);

/* Checks a leased buffer from memory. Takes over the lease and returns it with its parsed form.
 * NULL: no buffer, or an unusable one, which is then removed from memory. */
struct tierce__buf *tierce__objects_accept(struct tierce__objects *space,
                                           struct tierce__object_form *form,
                                           struct tierce__buf *buf, const struct tierce__key *key,
                                           const void *name, size_t name_bytes);

/* Reads the header of the object in a slower tier. The bytes lie in *head, the caller's to release.
 * Errors: TIERCE_E_MISS (not there, or not usable), TIERCE_E_DEADLINE, _DOWN, _FULL or the tier's.
 * Waits. */
TIERCE_MUSTUSE int tierce__objects_peek(struct tierce__objects *space,
                                        struct tierce__object_form *form, struct tierce__buf **head,
                                        size_t level, const struct tierce__key *key,
                                        uint64_t deadline_ns);

/* Removes a value from the level that it was read from; why: TIERCE_E_MISS if it has expired, or
 * its fault. The caller holds the name. Does not wait. */
void tierce__objects_expel(struct tierce_engine *engine, size_t level,
                           const struct tierce__key *key, int why);

/* ---- objects_remove.c ---- */

/* Opens the engine's tombstones, if it has a store folder and a remote store and they are not open
 * yet. Errors: as tierce__tombstones_open; logged. */
TIERCE_MUSTUSE int tierce__objects_open_tombstones(struct tierce_engine *engine);

/* Whether the level may be queried for a value: it holds no old value with a tombstone. */
bool tierce__objects_may_ask(struct tierce_engine *engine, size_t level,
                             const struct tierce__key *key);

/* Whether the level has a value of that name. Waits until the deadline, timeout.lookup at most. */
bool tierce__objects_level_has(struct tierce_engine *engine, size_t level,
                               const struct tierce__key *key, uint64_t deadline_ns);

/* How an old value is removed from the slower tiers before a new one is published. */
struct tierce__taking {
    uint64_t deadline_ns;
    /* NULL: each removal is durable at return. Otherwise it is set if a removal is not durable, and
     * the caller settles it later. */
    bool *unsettled;
    /* [out] A tier that is not shared has forgotten the value and could not make that durable, and
     * memory does not hold the value: why. The new value can be stored. */
    int late;
    uint32_t levels; /* [out] a bit for each tier that can be given the new value */
};

/* The name is held. A remote store that cannot delete the value now gets a tombstone. Returns 1 if
 * the value may have been there, 0 if not, or why it cannot be promised that it does not return.
 * Waits. */
TIERCE_MUSTUSE int tierce__objects_remove_from(struct tierce_engine *engine, size_t level,
                                               const struct tierce__key *key,
                                               struct tierce__taking *taking);

/* Call when a value has become visible in memory. */
static inline void tierce__objects_shown(struct tierce_engine *engine, struct tierce__buf *buf)
{
    atomic_store(&buf->since, atomic_load(&engine->object_walks) + 1);
}

#endif
