/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STORAGES_H
#define TIERCE_MANAGER_STORAGES_H

#include "manager/registry.h"

/*
 * The storages of the registry at work: whether each one is well, and deleting in it.
 *
 * A thread probes each enabled storage every so often with a real write, read and delete, bounded
 * in time (a probe that hangs costs one thread, and the storage is unwell until it returns). After
 * `failures` probes in a row a storage is left out of writes and of choice; after one that
 * succeeds it is back. Storages whose kind cannot be reached from here (storage.h) count as well.
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
    /* Told about changes; on the prober's thread. May be NULL. */
    void (*changed)(void *arg, const char *storage, bool is_well, const char *why);
    void *changed_arg;
};

TIERCE_MUSTUSE int tierce__storages_open(struct tierce__storages **out,
                                         const struct tierce__storages_opts *opts);
void tierce__storages_close(struct tierce__storages *storages);

/* Enabled in the registry and well. Cheap; no lock is waited for. */
bool tierce__storages_is_available(struct tierce__storages *storages,
                                   const struct tierce__storage *storage);

struct tierce__storage_state {
    bool is_enabled, is_well, is_probed;
    uint64_t probe_age_ms, probe_took_us;
    char why[128];     /* of the last failure, or "" */
    double used_share; /* of the file system or server; negative: not known */
};
void tierce__storages_state(struct tierce__storages *storages, const char *name,
                            struct tierce__storage_state *out);

/*
 * Deletes files (tierce__place_path) of a storage; what is not there is deleted. status[i]: 0 or
 * why not. Waits for the storage, each file for at most probe_timeout_ms. A path that leaves the
 * storage's root is TIERCE_E_ARGUMENT. TIERCE_E_UNSUPPORTED: this kind cannot be reached from here;
 * its bytes are its owner's to delete.
 */
TIERCE_MUSTUSE int tierce__storages_delete(struct tierce__storages *storages,
                                           const struct tierce__storage *storage,
                                           const char *const *paths, size_t count, int *status);

#endif
