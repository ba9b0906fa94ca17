/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STORAGES_PRIVATE_H
#define TIERCE_MANAGER_STORAGES_PRIVATE_H

#include "base/threads/lock.h"
#include "manager/storage/storage_worker.h"
#include "manager/storage/storages.h"

#include <pthread.h>
#include <stdatomic.h>

#define TIERCE__STORAGES_MAGIC 0x74737473u

enum { TIERCE__STORAGE_NUMBERS = UINT16_MAX + 1 };

/* Of a storage; any of them makes it unavailable. */
enum {
    TIERCE__STORAGE_UNWELL = 1,
    TIERCE__STORAGE_WRONG_MARK = 2,
    TIERCE__STORAGE_SEEN = 8,   /* no trouble: it was looked at since this process leads or began */
    TIERCE__STORAGE_SILENT = 4, /* set by nodes.c */
};

/* A managed storage with one configuration. */
struct storages_unit {
    struct storages_unit *next;
    struct tierce__storage_worker *worker;
    uint16_t number;
    char *name, *config; /* its JSON, to notice changes */
    bool is_enabled;     /* to be probed */
    bool is_part;        /* of a node that reports */
    bool is_doubted;     /* until the first good probe after doubted_ns */
    uint64_t doubted_ns;
    bool is_marked;     /* as the registry has it */
    bool is_adopting;   /* its wrong mark is being accepted */
    bool needs_mark;    /* not used before it has the mark, so that all its blocks are ours */
    uint64_t marked_ns; /* the probe whose mark was passed to the registry last */
    bool is_well;       /* as last reported */
};

#define UNMADE_MAX 16u

struct tierce__storages {
    uint32_t magic;
    struct tierce__storages_opts opts;
    pthread_t prober;
    bool has_prober;

    struct tierce__lock lock; /* guards the fields below */
    struct tierce__cond ending;
    bool is_ending;
    uint64_t version; /* of the registry from which the units were last updated */
    /* Storages whose unit could not be made then, for example because of their URI. */
    struct storages_unmade {
        uint16_t number;
        char why[128];
    } unmade[UNMADE_MAX]; /* further ones have no reason */
    uint32_t unmade_count;
    struct storages_unit *units;   /* at most one a number */
    struct storages_unit *retired; /* ending, to be joined */

    char id[TIERCE__STORAGE_ID_HEX + 1]; /* of the registry; "": none yet */
    uint64_t identified_ns;              /* when the registry was last asked for an id */

    /* SILENT by its own function without the lock, which is the caller's: nodes.c orders the signs
     * of life. The others under the lock. relaxed: a hint. */
    _Atomic uint8_t troubles[TIERCE__STORAGE_NUMBERS];
};

/* NULL: storages of this type are unmanaged. */
const struct tierce__storage_ops *tierce__storages_ops(const struct tierce__storages *storages,
                                                       enum tierce__storage_type type);

/* The unit of a number, or the end of the list. The lock is held. */
struct storages_unit **tierce__storages_find(struct tierce__storages *storages, uint16_t number);

/* Any of TIERCE__STORAGE_UNWELL, _WRONG_MARK and _SILENT. */
unsigned tierce__storages_troubles(const struct tierce__storages *storages, uint16_t number);
/* Sets those beside _SILENT. The lock is held. */
void tierce__storages_set_troubles(struct tierce__storages *storages, uint16_t number,
                                   unsigned troubles);

/* Returns the worker of a managed storage, held; NULL and 0 if it is unmanaged. Errors:
 * TIERCE_E_CLOSED (the storage was removed), of the driver and its thread, -ENOMEM. */
TIERCE_MUSTUSE int tierce__storages_hold_worker(struct tierce__storage_worker **out,
                                                struct tierce__storages *storages,
                                                const struct tierce__storage *storage);

#endif
