/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OBJECT_NAMES_H
#define TIERCE_ENGINE_OBJECT_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/threads/lock.h"
#include "core/key/key.h"

/*
 * The names of values that are being changed, or read from a slower tier.
 *
 *     rc = tierce__object_name_begin(&name, &names, &key, deadline);  // nobody else changes it
 *         ... take the old value out of the slower tiers, put the new one ...
 *     tierce__object_name_end(name);  // nothing that was read before or meanwhile counts
 *
 * A reader notes `changes` first. If it has not changed after the read, the value is whole and
 * current. The reader publishes it in memory while it holds the name, so that no old value returns.
 *
 * Thread: any; one lock of class OBJECTS inside. Only begin waits. A few unused entries are kept
 * for new names: 1.1x on small SETs (2026-11).
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

/* Takes the name, and waits until no other thread holds it. Reads in progress are invalidated, and
 * new finds do not join them. Ended by end. Errors: -ENOMEM, TIERCE_E_DEADLINE. */
TIERCE_MUSTUSE int tierce__object_name_begin(struct tierce__object_name **out,
                                             struct tierce__object_names *names,
                                             const struct tierce__key *key, uint64_t deadline_ns);
/* Values read during the change do not count either. */
void tierce__object_name_end(struct tierce__object_name *name);

/* Holds the name if no other thread does and there was no change since `changes` was read. */
TIERCE_MUSTUSE bool tierce__object_name_try(struct tierce__object_name *name, uint64_t changes);
void tierce__object_name_let_go(struct tierce__object_name *name);

uint64_t tierce__object_name_changes(struct tierce__object_name *name);
/* Invalidates reads in progress under all names, or under those in the namespace of the key `of`,
 * no matter which thread holds the names. */
void tierce__object_names_change(struct tierce__object_names *names, const struct tierce__key *of);

#endif
