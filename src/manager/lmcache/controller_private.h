/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONTROLLER_PRIVATE_H
#define TIERCE_MANAGER_CONTROLLER_PRIVATE_H

#include "base/list.h"
#include "base/map.h"
#include "base/threads/lock.h"
#include "manager/lmcache/controller.h"

#include <tierce/key.h>

/* The table of LMCache's workers: controller.c, controller_find.c. */

#define TIERCE__CONTROLLER_LOCATIONS_MAX 8u
#define TIERCE__CONTROLLER_BATCH         1024u /* changes that the directory gets at once */
#define TIERCE__CONTROLLER_FIND_MAX      8192u /* keys that one lookup looks at */
/* LMCache 0.5.6 sends the contents of this location only, and reads from others' memory only. */
#define TIERCE__CONTROLLER_MEMORY "LocalCPUBackend"
#define TIERCE__CONTROLLER_PREFIX "lmcache/" /* of names in the directory */

/* A location of a worker: a worker of the directory. */
struct tierce__controller_place {
    char location[TIERCE__CONTROLLER_LOCATION_BYTES];
    struct tierce__directory_id id; /* session 0: not joined */
    uint64_t next;                  /* number of its next change in the directory */
    uint64_t sending;               /* number of the last sending of its contents */
    bool is_complete;               /* its contents are known; otherwise a sending is open */
    bool has_number;
    uint64_t number; /* the last one of LMCache */
};

/* Contents that a worker sends. */
struct tierce__controller_sync {
    char name[TIERCE__CONTROLLER_SYNC_BYTES]; /* "": there was none */
    struct tierce__controller_place *place;   /* NULL: it has ended */
    bool is_complete;
    uint8_t *batches; /* those that came, as bits; heap */
    uint32_t batch_count, came;
    uint64_t keys, heard_ns;
};

struct tierce__controller_worker {
    struct tierce__map_node node;
    struct tierce__controller_worker *previous, *next; /* in the order of registration */
    struct tierce__controller_about about;
    bool has_beaten;
    bool began_empty;   /* nothing that it holds is unknown, so a new location is complete */
    const char *reason; /* why it must send its contents; NULL: it need not */
    struct tierce__controller_place places[TIERCE__CONTROLLER_LOCATIONS_MAX];
    uint32_t place_count;
    struct tierce__controller_sync sync;
};

struct tierce__controller {
    struct tierce__controller_opts opts;
    struct tierce__directory *directory;
    uint8_t space[TIERCE_HASH_BYTES]; /* of the keys */
    uint64_t seed;                    /* of the map's hashes */

    /* Of take: */
    struct tierce__line scratch;
    struct tierce__controller_message message;
    struct tierce__directory_change changes[TIERCE__CONTROLLER_BATCH];
    struct tierce__directory_key keys[TIERCE__CONTROLLER_FIND_MAX];
    struct tierce__directory_found found;

    struct tierce__lock lock; /* CONTROLLER: below */
    struct tierce__map map;
    struct tierce__controller_worker *first, *last;
    struct tierce__controller_stats stats;
};

/* NULL: it has not registered. The lock is held. */
struct tierce__controller_worker *tierce__controller_worker(struct tierce__controller *controller,
                                                            const char *instance, uint64_t worker);

/* The directory's key of a chunk: tierce__chunk_number of the namespace "lmcache", no ranks, and
 * the number's magnitude and sign. */
struct tierce__directory_key tierce__controller_key(const struct tierce__controller *controller,
                                                    struct tierce__lmcache_int number);

/* The answer of a P2P lookup: of the asker's own rank, of another instance, with a peer URL. The
 * lock is held. */
void tierce__controller_find_peer(struct tierce__controller *controller,
                                  struct tierce__controller_message *message,
                                  struct tierce__line *reply);

#endif
