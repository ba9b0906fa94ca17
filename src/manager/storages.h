/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STORAGES_H
#define TIERCE_MANAGER_STORAGES_H

#include "manager/registry.h"
#include "manager/storage.h"

/*
 * The storages of the registry at work: whether each one is well, and deleting in it.
 *
 * Each enabled storage is probed every so often with a real write, read and delete, bounded in
 * time. After `failures` probes in a row that failed or hung, a storage is left out of writes and
 * of choice; after one that succeeds it is back. Storages whose kind cannot be reached from here
 * (storage.h) count as well.
 *
 * All that may hang is done by one thread a storage. While it hangs, the storage is unwell, and
 * what is asked of it is answered with TIERCE_E_DOWN at once; nothing else waits for it, closing
 * neither.
 *
 * Threads: any.
 */

struct tierce__storages;

struct tierce__storages_opts {
    size_t size;
    struct tierce__registry *registry; /* [borrow until close] */
    uint32_t probe_interval_ms;        /* 0: no probing */
    uint32_t probe_timeout_ms;         /* 0: 2000 */
    uint32_t failures;                 /* 0: 2 */
    /* Told about changes; on a thread of the storages, without a lock. May be NULL. */
    void (*changed)(void *arg, const char *storage, bool is_well, const char *why);
    void *changed_arg;
    /* NULL: tierce__storage_ops_find. */
    const struct tierce__storage_ops *(*find_ops)(enum tierce__storage_type type);
};

TIERCE_MUSTUSE int tierce__storages_open(struct tierce__storages **out,
                                         const struct tierce__storages_opts *opts);
void tierce__storages_close(struct tierce__storages *storages);

/* Enabled in the registry and well. Cheap; no lock is waited for. */
bool tierce__storages_is_available(struct tierce__storages *storages,
                                   const struct tierce__storage *storage);

/* Probes a storage once, which need not be of the registry; one that is not reached from here is
 * well. Waits for at most probe_timeout_ms. Errors, `why` in words: TIERCE_E_DOWN, those of its
 * driver and of a thread, -ENOMEM. */
TIERCE_MUSTUSE int tierce__storages_try(const struct tierce__storages *storages,
                                        const struct tierce__storage *storage, char why[128]);

struct tierce__storage_state {
    bool is_enabled, is_well, is_probed;
    uint64_t probe_age_ms, probe_took_us; /* of the last that ended; is_probed: there was one */
    char why[128];                        /* of the last failure, or "" */
    double used_share;                    /* of the file system or server; negative: not known */
};
/* Zeroed but for used_share -1 where there is no such storage. */
void tierce__storages_state(struct tierce__storages *storages, const char *name,
                            struct tierce__storage_state *out);

/*
 * Deletes files (tierce__place_path) of a storage; what is not there is deleted. status[i]: 0 or
 * why not. Waits for the storage, each file for at most probe_timeout_ms (then TIERCE_E_DEADLINE,
 * and TIERCE_E_DOWN for those behind it; the one that hung may yet be deleted). A path that leaves
 * the storage's root is TIERCE_E_ARGUMENT. TIERCE_E_UNSUPPORTED: this kind cannot be reached from
 * here; its bytes are its owner's to delete. Returns 0 if status was filled, else -ENOMEM or what
 * its driver said when it was opened.
 */
TIERCE_MUSTUSE int tierce__storages_delete(struct tierce__storages *storages,
                                           const struct tierce__storage *storage,
                                           const char *const *paths, size_t count, int *status);

/* The bytes of files, where status[i] is 0; -ENOENT: it is not there. Waits and fails as the
 * above. */
TIERCE_MUSTUSE int tierce__storages_measure(struct tierce__storages *storages,
                                            const struct tierce__storage *storage,
                                            const char *const *paths, size_t count, uint64_t *bytes,
                                            int *status);

#endif
