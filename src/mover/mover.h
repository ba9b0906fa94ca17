/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MOVER_H
#define TIERCE_MOVER_H

#include "mover/copier.h"

/*
 * Moves blocks between the storages of a fleet, on a thread of its own. It takes batches from the
 * manager that leads (TakeMoves), copies their objects (copier.h), and tells the results
 * (FinishMoves). It renews the batches that it holds. A batch is a write session of the manager: if
 * the mover dies, the session ends by itself and the copies are deleted, so no block is lost.
 *
 *     rc = tierce__mover_start(&mover, &(struct tierce__mover_opts){...}, why);
 *     ...
 *     (void)tierce__mover_stop(mover, tierce__deadline_in_ms(5000));
 *
 * Which blocks are moved, where to, and when, is up to the manager.
 *
 * Thread: any.
 */

struct tierce__mover;

struct tierce__mover_opts {
    size_t size;
    /* fleet://MANAGER:PORT[,MANAGER:PORT][/...][?token_file=F&ca_file=F], fleet+tls://...; the path
     * is ignored. [borrow for the call], as all texts here */
    const char *url;
    const char *name;            /* for the managers' logs */
    const char *mooncake_python; /* an interpreter for storages of Mooncake; NULL: none */
    uint64_t memory_bytes;       /* of objects in transit, >= 1 MiB */
    uint64_t rate_bytes_per_s;   /* 0: no limit */
    uint32_t parallel_max;       /* objects in transit */
    uint32_t timeout_ms;         /* of a request to a storage */
};

/* Checks a URL. Errors: TIERCE_E_CONFIG, -ENOMEM; `why` in words. */
TIERCE_MUSTUSE int tierce__mover_check(const char *url, char why[TIERCE__FLEET_WHY_BYTES]);

/* Connects to no one yet. Errors: those of check, -ENOMEM, -errno (no thread, no descriptor). */
TIERCE_MUSTUSE int tierce__mover_start(struct tierce__mover **out,
                                       const struct tierce__mover_opts *opts,
                                       char why[TIERCE__FLEET_WHY_BYTES]);

/*
 * Takes no new batches, ends copies that were not written yet, and tells the results of the others.
 * Blocks until the deadline at most; batches that have not ended then end at the manager by their
 * time. False: a call to a storage did not return, and what it uses stays allocated. NULL is
 * accepted.
 */
bool tierce__mover_stop(struct tierce__mover *mover, uint64_t deadline_ns);

struct tierce__mover_state {
    bool is_connected;                 /* the last TakeMoves was answered */
    char why[TIERCE__FLEET_WHY_BYTES]; /* why not; "" if it was */
    uint64_t calls, failures;          /* of TakeMoves */
    uint32_t batches;                  /* in progress */
    uint64_t finished, lost;           /* batches: reported to the manager, and those that it had
                                          ended or that could not be reported */
    uint64_t moved_blocks;             /* that have a copy more, in the manager's words */
    struct tierce__copier_stats copies;
};
void tierce__mover_state(struct tierce__mover *mover, struct tierce__mover_state *out);

#endif
