/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OBJECT_NAMES_H
#define TIERCE_ENGINE_OBJECT_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "key/key.h"

/*
 * The names of an engine's values under which something is going on: who changes what lies there,
 * and who is reading it from a slower tier.
 *
 *     rc = tierce__object_name_begin(&name, &names, &key, deadline);  // nobody else changes it
 *         ... take the old value out of the slower tiers, put the new one ...
 *     tierce__object_name_end(name);  // nothing that was read before or meanwhile counts
 *
 * Who reads notes `changes` first. What came is whole, and the value that was there, if there has
 * been no change since; it goes to memory while the name is held, so that no old value comes back.
 *
 * Thread: any; one lock of class OBJECTS inside. Only begin waits. Names that nobody uses are kept
 * for the next ones, a few of them: 1.1x on small SETs (2026-11).
 */

#define TIERCE__OBJECT_NAME_BINS 256u

struct tierce__object_reading;

struct tierce__object_names {
    struct tierce__lock lock; /* OBJECTS */
    struct tierce__list bins[TIERCE__OBJECT_NAME_BINS];
    struct tierce__list spares;
    uint32_t spare_count;
};

struct tierce__object_name {
    struct tierce__object_names *names;
    struct tierce__key key;
    /* Under the lock: */
    struct tierce__list node;
    uint32_t refs;
    bool held;
    uint64_t changes;
    struct tierce__object_reading *reading; /* that may be joined, or NULL; objects_find.c */
    struct tierce__cond changed;
};

void tierce__object_names_init(struct tierce__object_names *names);
/* No name may be taken. */
void tierce__object_names_fini(struct tierce__object_names *names);

/* A reference on the name, ended by drop; NULL for no memory. */
struct tierce__object_name *tierce__object_name_take(struct tierce__object_names *names,
                                                     const struct tierce__key *key);
/* NULL is accepted. */
void tierce__object_name_drop(struct tierce__object_name *name);

/* Takes the name and holds it when nobody else does; what is being read counts no more, and nobody
 * joins it. Ended by end. Errors: -ENOMEM, TIERCE_E_DEADLINE. */
TIERCE_MUSTUSE int tierce__object_name_begin(struct tierce__object_name **out,
                                             struct tierce__object_names *names,
                                             const struct tierce__key *key, uint64_t deadline_ns);
/* What was read meanwhile does not count either. */
void tierce__object_name_end(struct tierce__object_name *name);

/* Holds the name if nobody does and there was no change since `changes` were counted. */
TIERCE_MUSTUSE bool tierce__object_name_try(struct tierce__object_name *name, uint64_t changes);
void tierce__object_name_let_go(struct tierce__object_name *name);

uint64_t tierce__object_name_changes(struct tierce__object_name *name);
/* What is being read under any name, or those of the namespace of the key `of`, counts no more,
 * whoever holds them. */
void tierce__object_names_change(struct tierce__object_names *names, const struct tierce__key *of);

#endif
