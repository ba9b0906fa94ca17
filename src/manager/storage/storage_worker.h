/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STORAGE_WORKER_H
#define TIERCE_MANAGER_STORAGE_WORKER_H

#include "manager/storage/storage_mark.h"

/*
 * The driver of one storage, and the only thread that calls it and may hang. Callers wait only
 * while the thread makes progress: if one driver call exceeds the time limit, the worker counts as
 * hanging, and all callers fail at once.
 *
 * Threads: any; only one caller may end and join a worker.
 */

struct tierce__storage_worker;

/* Errors: of the driver, -ENOMEM, negative errno of the thread. */
TIERCE_MUSTUSE int tierce__storage_worker_start(struct tierce__storage_worker **out,
                                                const struct tierce__storage *storage,
                                                const struct tierce__storage_ops *ops,
                                                uint32_t timeout_ms, char why[128]);

/* Ends the worker after the jobs that were queued before. */
void tierce__storage_worker_end(struct tierce__storage_worker *worker);

/* Returns whether the worker has ended and joins its thread if so. With `wait`, blocks until it has
 * ended or hangs. */
bool tierce__storage_worker_has_ended(struct tierce__storage_worker *worker, bool wait);

/* Releases the starter's reference, once. A hanging worker is detached and frees itself when its
 * call returns. */
void tierce__storage_worker_forget(struct tierce__storage_worker *worker);

/* Deletes; see tierce__storages_delete. If the mark has not been read yet, it is read first, and a
 * wrong mark is TIERCE_E_DOWN for each file. `mark` NULL: it is
 * not read. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__storage_worker_remove(struct tierce__storage_worker *worker,
                                                 const struct tierce__storage_mark *mark,
                                                 const char *const *paths, size_t count,
                                                 int *status);

/* The bytes of files; see tierce__storages_measure. With `mark`, each status is that of a storage
 * that has this mark (tierce__storage_mark_measure). Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__storage_worker_measure(struct tierce__storage_worker *worker,
                                                  const struct tierce__storage_mark *mark,
                                                  const char *const *paths, size_t count,
                                                  uint64_t *bytes, int *status);

/* Deletes listed files; see tierce__storages_delete_listed. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__storage_worker_remove_listed(struct tierce__storage_worker *worker,
                                                        const struct tierce__storage_mark *mark,
                                                        const char *const *paths,
                                                        const int64_t *changed_us, size_t count,
                                                        int *status);

/* Reads a part of a file; see tierce__storages_read. */
TIERCE_MUSTUSE int tierce__storage_worker_read(struct tierce__storage_worker *worker,
                                               const char *path, uint64_t offset, void *out,
                                               size_t bytes);

/* The next page of a listing; see tierce__storages_list. [transfer] *page. */
TIERCE_MUSTUSE int tierce__storage_worker_list(struct tierce__storage_worker *worker, bool is_first,
                                               struct tierce__storage_page **page, char why[128]);
/* Ends a listing. Without an answer, the listing ends with the worker or the next listing. */
void tierce__storage_worker_end_list(struct tierce__storage_worker *worker);

/* Asks for a probe, if none is under way. */
void tierce__storage_worker_probe(struct tierce__storage_worker *worker,
                                  const struct tierce__storage_mark *mark);

/* Probes, and blocks until the probe has finished. Errors, `why` in words: TIERCE_E_DOWN. */
TIERCE_MUSTUSE int tierce__storage_worker_try(struct tierce__storage_worker *worker, char why[128]);

/* Reads the mark; with `replaces`, probes the storage and writes the mark. Blocks until that is
 * done; *state is valid after 0. Errors, `why` in words: TIERCE_E_DOWN (it does not answer), those
 * of the driver; -ENOMEM. */
TIERCE_MUSTUSE int tierce__storage_worker_mark(struct tierce__storage_worker *worker,
                                               const struct tierce__storage_mark *mark,
                                               bool replaces, enum tierce__mark_state *state,
                                               char why[128]);

/* Discards the results of probes. */
void tierce__storage_worker_reset(struct tierce__storage_worker *worker);

struct tierce__storage_report {
    enum tierce__mark_state mark; /* as last read; a failure to read it changes nothing */
    bool hangs;
    bool is_probing;
    unsigned failures; /* failed probes since the last successful one */
    bool is_probed;    /* at least one probe has ended */
    uint64_t probed_ns, took_ns;
    char why[128]; /* of the last failure */
    double used_share;
};
void tierce__storage_worker_report(struct tierce__storage_worker *worker,
                                   struct tierce__storage_report *out);

/* Holds a reference, so that the worker stays valid while it is used. */
void tierce__storage_worker_hold(struct tierce__storage_worker *worker);
void tierce__storage_worker_release(struct tierce__storage_worker *worker);

#endif
