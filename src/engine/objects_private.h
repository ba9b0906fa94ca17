/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OBJECTS_PRIVATE_H
#define TIERCE_ENGINE_OBJECTS_PRIVATE_H

#include "engine/engine_private.h"
#include "engine/object_form.h"
#include "engine/objects.h"
#include "engine/operate.h"

/*
 * What the files of named values share: objects.c makes, replaces and forgets them, objects_find.c
 * finds them, objects_scan.c tells which there are.
 */

struct tierce__objects {
    uint32_t magic;
    struct tierce_engine *engine;
    struct tierce__object_space space;
    uint64_t value_bytes_least; /* of memory for each of as many as it has places for */
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
};

/* What is indexed of an object. */
struct tierce__storage_chunk tierce__object_record(const struct tierce__key *key,
                                                   uint64_t object_bytes);

/* A handle of a value in `buf`, of which it takes over a reference in any case; NULL for no memory.
 * [in] form: what the object says. */
struct tierce__object *tierce__object_open(struct tierce__objects *space,
                                           const struct tierce__key *key, struct tierce__buf *buf,
                                           const struct tierce__object_form *form);

/* A lease on what memory has under a key, which it takes over and gives back, and what that says.
 * NULL: nothing, or nothing that may be used, which is taken out then. */
struct tierce__buf *tierce__objects_accept(struct tierce__objects *space,
                                           struct tierce__object_form *form,
                                           struct tierce__buf *buf, const struct tierce__key *key,
                                           const void *name, size_t name_bytes);

/* Reads what the object in a slower rung says. The bytes lie in *head, the caller's to release.
 * Errors: TIERCE_E_MISS (not there, or not usable), TIERCE_E_DEADLINE, _DOWN, _FULL or the tier's.
 * Waits. */
TIERCE_MUSTUSE int tierce__objects_peek(struct tierce__objects *space,
                                        struct tierce__object_form *form, struct tierce__buf **head,
                                        size_t rung, const struct tierce__key *key,
                                        uint64_t deadline_ns);

/* Takes a value out of a rung that it came from; why: TIERCE_E_MISS if it has expired, or what is
 * wrong with it. The caller holds the name. Does not wait. */
void tierce__objects_expel(struct tierce_engine *engine, size_t rung, const struct tierce__key *key,
                           int why);

#endif
