/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_GHOSTS_H
#define TIERCE_MANAGER_GHOSTS_H

#include "manager/pilot/ghost_curve.h"
#include "manager/pilot/ghost_log.h"
#include "manager/registry/model.h"

#include <stdatomic.h>

/*
 * Ghost curves: bytes -> hit rate for each group and each instance, from the manager's own
 * requests. An instance that is alone in its group has the group's curve. If others join, it gets a
 * curve of its own in the next step.
 *
 *     tap = tierce__ghosts_open(ghost, &instance);                // with each instance
 *     tierce__ghosts_get(ghost, tap, keys, count, true, hits);    // in each request
 *     tierce__ghosts_write(ghost, tap, keys, count);             // in each start of a write
 *     found = tierce__ghosts_group(ghost, "chat", shape);         // at any time
 *     rate = tierce__ghost_rate(shape, bytes);
 *
 * The ghost sees, for each lookup and each start of a write: the instance, the keys in the order of
 * their chain, which of them are looked up, and how many were found. The time of a request is that
 * of the step that reads it, at most a quarter of a second later. It knows for each instance the
 * bytes of a key, on average over the stored ones (tierce__ghosts_resize); before there are any,
 * the bytes of all specs.
 *
 * The thread of a request mixes the keys with a secret seed and passes those below the bound of the
 * instance (its tap) through a ring without locks (ghost_ring.h). If the ring is full, the request
 * is dropped and counted, and the curve with the most work samples half as many keys from then on.
 * The same happens if the ghost's thread takes more than 0.75 % of the time of all threads of the
 * process.
 *
 * Bounds: TIERCE__GHOST_GROUPS_MAX groups and _INSTANCES_MAX instances are followed; others are
 * counted (unfollowed). Memory: docs/inside/ghost.md.
 *
 * Threads: any; tierce__ghosts_step one at a time, and only without has_thread. Requests take no
 * lock; all others take GHOST. Nothing blocks longer.
 */

enum { TIERCE__GHOST_GROUPS_MAX = 64, TIERCE__GHOST_INSTANCES_MAX = 128 };

/* An instance's end of the ghost, in every request. */
struct tierce__ghost_tap {
    /* The largest mixed key that is passed on. Stored by steps, loaded by requests; both relaxed:
     * the step filters again. */
    _Atomic uint64_t bound;
    /* Of lookups that were not dropped, by the class of the last key's position: their number, and
     * the sum of their keys in that class. And the keys that were found. All relaxed. */
    _Atomic uint64_t lookups[TIERCE__GHOST_CLASSES], last_keys[TIERCE__GHOST_CLASSES];
    _Atomic uint64_t found;
    uint32_t source; /* its number */
};

struct tierce__ghosts;

struct tierce__ghosts_opts {
    size_t size;
    int64_t (*now_us)(void *arg); /* wall clock; NULL: the monotonic clock */
    void *clock_arg;
    uint64_t seed;                          /* of the mixing; 0: from the kernel */
    uint32_t ring_cells;                    /* a power of two; 0: 16,384, which are 1 MiB */
    uint32_t group_blocks, instance_blocks; /* in the sample of a curve; 0: 8,192 and 4,096 */
    int64_t epoch_us;                       /* 0: 5 minutes; the window has 8 to 9 */
    size_t log_words;                       /* of a group's log; 0: 65,536 */
    bool has_thread;                        /* a thread makes the steps; else the caller does */
};

/* Errors, *out untouched: -ENOMEM, negative errno (no thread, no random numbers). */
TIERCE_MUSTUSE int tierce__ghosts_create(struct tierce__ghosts **out,
                                         const struct tierce__ghosts_opts *opts);

/* NULL is accepted. All taps are closed. */
void tierce__ghosts_destroy(struct tierce__ghosts *ghost);

/* The length of an epoch. */
int64_t tierce__ghosts_epoch_us(const struct tierce__ghosts *ghost);

/* ---- requests: no lock, no allocation -------------------------------------------------------- */

/* Begins to follow an instance. Returns NULL if `ghost` is NULL, there are too many, or there is
 * no memory: the instance is not followed, and the functions below do nothing. */
struct tierce__ghost_tap *tierce__ghosts_open(struct tierce__ghosts *ghost,
                                              const struct tierce__instance *instance);

/* Ends it. No other thread uses the tap now or later. NULL is accepted. */
void tierce__ghosts_close(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap);

/* A lookup. `is_chain`: hits end at the first miss. `found` of the keys were found. */
void tierce__ghosts_get(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap,
                        const int64_t *keys, size_t count, bool is_chain, size_t found);

/* A chain, of which the caller looked up a part only: all of it is used. */
void tierce__ghosts_use(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap,
                        const int64_t *keys, size_t count);

/* Keys of a chain that will be stored, are stored already, or would be if there were room. */
void tierce__ghosts_write(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap,
                          const int64_t *keys, size_t count);

/* ---- facts from the manager ------------------------------------------------------------------ */

/* The bytes of the instance's keys, on average. Values that are not above 0 are ignored. */
void tierce__ghosts_resize(struct tierce__ghosts *ghost, struct tierce__ghost_tap *tap,
                           double key_bytes);

/* The largest capacity for which the group's curve and those of its instances are of interest. 0:
 * none. */
void tierce__ghosts_set_reach(struct tierce__ghosts *ghost, const char *group, double bytes);

/* ---- steps and results ----------------------------------------------------------------------- */

/* Works off the ring, and ends epochs. Returns the number of requests. */
size_t tierce__ghosts_step(struct tierce__ghosts *ghost);

/* Copies a curve. False: the group or instance is not followed. */
bool tierce__ghosts_group(struct tierce__ghosts *ghost, const char *group,
                          struct tierce__ghost_shape *out);
/* The group's curve of the last `epochs` epochs, at most 8, and the current one. */
bool tierce__ghosts_group_recent(struct tierce__ghosts *ghost, const char *group, uint32_t epochs,
                                 struct tierce__ghost_shape *out);
bool tierce__ghosts_instance(struct tierce__ghosts *ghost, const char *id,
                             struct tierce__ghost_shape *out);

/* Whether the last requests of the group's sample are kept (ghost_log.h), up to half a MiB. They
 * are forgotten when an instance leaves the group or its keys get another size. */
void tierce__ghosts_keep_log(struct tierce__ghosts *ghost, const char *group, bool keep);
/* Copies them; their times are those of tierce__ghosts_now_us. Errors, *out untouched: -ENOENT
 * (none are kept), -ENOMEM. */
TIERCE_MUSTUSE int tierce__ghosts_copy_log(struct tierce__ghosts *ghost, const char *group,
                                           struct tierce__ghost_log **out);
int64_t tierce__ghosts_now_us(const struct tierce__ghosts *ghost);

struct tierce__ghosts_stats {
    uint64_t requests, keys; /* that steps have worked off; keys of samples */
    uint64_t dropped;        /* requests that found the ring full */
    uint64_t unfollowed;     /* instances that could not be followed, and lost curves */
    uint64_t coarsened;      /* how often a curve was made coarser because of the load */
    uint32_t groups, instances;
    uint64_t cpu_ns;  /* of the ghost's thread; 0 without one */
    double cpu_share; /* of it in the time of all threads of the process, over the last ten
                         seconds or more in which the process used a second; -1: not known yet */
};
void tierce__ghosts_stats(struct tierce__ghosts *ghost, struct tierce__ghosts_stats *out);

#endif
