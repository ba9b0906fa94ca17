/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STORAGE_WORKER_H
#define TIERCE_MANAGER_STORAGE_WORKER_H

#include "manager/storage.h"

/*
 * One storage's driver and the one thread that may hang in it. Whoever asks waits only as long as
 * the thread gets on: while one thing takes longer than the time limit, the worker hangs, and
 * everybody is told so at once.
 *
 * Threads: any; ending and joining are one caller's.
 */

struct tierce__storage_worker;

/* Errors: of the driver, -ENOMEM, negative errno of the thread. */
TIERCE_MUSTUSE int tierce__storage_worker_start(struct tierce__storage_worker **out,
                                                const struct tierce__storage *storage,
                                                const struct tierce__storage_ops *ops,
                                                uint32_t timeout_ms, char why[128]);

/* Asks it to end when it has done what it was asked before. */
void tierce__storage_worker_end(struct tierce__storage_worker *worker);

/* Whether it has ended, waiting for that unless it hangs or `wait` is false. Then its thread is
 * gone. */
bool tierce__storage_worker_has_ended(struct tierce__storage_worker *worker, bool wait);

/* The end of it for whoever started it, once; one that hangs is left behind, and frees itself when
 * it returns. */
void tierce__storage_worker_forget(struct tierce__storage_worker *worker);

/* Deletes; see tierce__storages_delete. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__storage_worker_remove(struct tierce__storage_worker *worker,
                                                 const char *const *paths, size_t count,
                                                 int *status);

/* The bytes of files; see tierce__storages_measure. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__storage_worker_measure(struct tierce__storage_worker *worker,
                                                  const char *const *paths, size_t count,
                                                  uint64_t *bytes, int *status);

/* Asks for a probe, if none is under way. */
void tierce__storage_worker_probe(struct tierce__storage_worker *worker);

/* Probes and waits for the end of it. Errors, `why` in words: TIERCE_E_DOWN. */
TIERCE_MUSTUSE int tierce__storage_worker_try(struct tierce__storage_worker *worker, char why[128]);

/* Forgets what probes said. */
void tierce__storage_worker_reset(struct tierce__storage_worker *worker);

struct tierce__storage_report {
    bool hangs;
    bool is_probing;
    unsigned failures; /* probes that failed since one went well */
    bool is_probed;    /* one has ended */
    uint64_t probed_ns, took_ns;
    char why[128]; /* of the last failure */
    double used_share;
};
void tierce__storage_worker_report(struct tierce__storage_worker *worker,
                                   struct tierce__storage_report *out);

/* Holds it while it is asked, whatever becomes of it meanwhile. */
void tierce__storage_worker_hold(struct tierce__storage_worker *worker);
void tierce__storage_worker_release(struct tierce__storage_worker *worker);

#endif
