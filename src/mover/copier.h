/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MOVER_COPIER_H
#define TIERCE_MOVER_COPIER_H

#include "base/list.h"
#include "store/remote/fleet/fleet_stores.h"

/*
 * Copies objects between the storages of a fleet, with the connectors that engines use.
 *
 *     GET the whole object -> prove that the bytes are the chunk -> PUT -> done
 *
 * An object whose bytes cannot be proven is never written. A storage that keeps the first object of
 * a name (TIERCE__CONNECTOR_NO_REPLACE) answers a PUT with success also if it kept another one, so
 * the object is read there again and compared. For all other storages the contract of connector.h
 * is enough: a PUT that is answered 0 has stored the whole object.
 *
 * A copier has no thread: its owner calls tierce__copier_step, and is woken through `wake`.
 *
 * Thread: one at a time, except tierce__copier_stats.
 */

struct tierce__copier;

enum tierce__copy_result {
    TIERCE__COPY_UNDONE, /* dropped, or no memory, or its time was over: nothing is known */
    TIERCE__COPY_COPIED,
    TIERCE__COPY_SOURCE_MISSING,     /* the storage answers and does not have the object */
    TIERCE__COPY_SOURCE_DAMAGED,     /* the object is another one, or its sums are wrong */
    TIERCE__COPY_SOURCE_UNREACHABLE, /* the storage does not answer, or fails */
    TIERCE__COPY_TARGET_FAILED,
    TIERCE__COPY_UNVERIFIABLE, /* no chunk, or one of a newer version: nothing proves its bytes */
    TIERCE__COPY_RESULTS
};
const char *tierce__copy_result_name(enum tierce__copy_result result);

struct tierce__copy {
    /* [in] */
    int64_t block_key;
    const char *spec;      /* name of the location spec; [borrow until done], as all texts here */
    const char *from, *to; /* URIs of a manager */
    uint64_t put_until_ns; /* no PUT begins after it, or lasts longer; may be raised meanwhile */
    void (*done)(struct tierce__copy *copy); /* exactly once, by tierce__copier_step */
    void *arg;

    /* [out] */
    enum tierce__copy_result result;
    bool storage_failed; /* the result is about a storage, and not about this object */
    uint64_t bytes;
    char why[TIERCE__FLEET_WHY_BYTES]; /* of every result but COPIED */

    /* The copier's. */
    struct tierce__list node;
    struct tierce__copier *copier;
    int state;
    bool is_dropped;
    struct tierce__fleet_place source, target;
    char *names; /* owned: of both */
    struct tierce_plugin_name name;
    struct tierce__buf *buf;
    uint64_t sum; /* of what was read, to compare what is read again */
    struct tierce__store_req req;
};

struct tierce__copier_opts {
    size_t size;
    const char *mooncake_python; /* as in fleet_stores.h; [borrow for the call] */
    uint64_t memory_bytes;       /* of objects in transit, >= 1 MiB */
    uint64_t rate_bytes_per_s;   /* 0: no limit */
    uint32_t parallel_max;       /* objects in transit */
    uint32_t timeout_ms;         /* of a request to a storage */
    void (*wake)(void *arg);     /* tierce__copier_step has something to do. Thread: any */
    void *wake_arg;
};

/* Errors: -ENOMEM, TIERCE_E_ARGUMENT (memory_bytes), -errno (no thread, no descriptor). */
TIERCE_MUSTUSE int tierce__copier_open(struct tierce__copier **out,
                                       const struct tierce__copier_opts *opts);
/*
 * Drops all copies; each is done before this returns, unless a storage's call did not return by the
 * deadline. False: one did not, and what it uses stays allocated. NULL is accepted.
 */
bool tierce__copier_close(struct tierce__copier *copier, uint64_t deadline_ns);

/* Takes over the storages that a manager announces: tierce__fleet_stores_update. */
TIERCE_MUSTUSE int tierce__copier_set_storages(struct tierce__copier *copier, const char *json,
                                               char why[TIERCE__FLEET_WHY_BYTES]);

/* Queues a copy. */
void tierce__copier_add(struct tierce__copier *copier, struct tierce__copy *copy);
/* Ends a copy that is not done: before its PUT at once, or when a read is answered; a PUT that has
 * begun is waited for, and counts. */
void tierce__copier_drop(struct tierce__copy *copy);

/* Goes on with what was answered, and begins copies. Returns when it must be called again, unless
 * `wake` is called before. */
uint64_t tierce__copier_step(struct tierce__copier *copier);

struct tierce__copier_stats {
    uint64_t objects[TIERCE__COPY_RESULTS];
    uint64_t read_bytes, copied_bytes;
    uint32_t running;
};
/* Thread: any. */
void tierce__copier_stats(struct tierce__copier *copier, struct tierce__copier_stats *out);

/*
 * Whether bytes are the object of a block: a chunk whose header and cells have their sums, whose
 * hash begins with the block's key, and whose rank is that of the spec ("tp3"), if the spec names
 * one. COPIED: it is; SOURCE_DAMAGED or UNVERIFIABLE: `why` in words.
 */
enum tierce__copy_result tierce__copy_prove(char why[TIERCE__FLEET_WHY_BYTES],
                                            const uint8_t *object, uint64_t bytes,
                                            int64_t block_key, const char *spec);

#endif
