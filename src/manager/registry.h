/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_REGISTRY_H
#define TIERCE_MANAGER_REGISTRY_H

#include "manager/model.h"

/*
 * Storages, instance groups, instances and accounts: read by everybody, changed one at a time, and
 * durable before a change is told.
 *
 * What is read is a snapshot: tierce__registry_acquire gives one that stays as it is until it is
 * released, however the registry changes; so no lock is held while a request uses it.
 *
 *     const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
 *     const struct tierce__instance *instance = tierce__catalog_instance(catalog, id);
 *     ...
 *     tierce__registry_release(registry, catalog);
 *
 * Stored by registry_store.h: a local file (written whole, atomically) or Redis hashes as KVCM
 * names them, so that its registry can be read. "" is memory only. A shared store refuses writes
 * with an older fencing token (TIERCE_E_REFUSED).
 *
 * Threads: any.
 */

struct tierce__vfs;
struct tierce__registry;
struct tierce__catalog; /* immutable, counted */

struct tierce__registry_opts {
    size_t size;
    const char *uri;         /* "", "local://path", "redis://...?cluster_name=.." */
    struct tierce__vfs *vfs; /* [borrow until close] for local files; NULL: its own */
};

/* Errors, *out untouched, `why` in words: TIERCE_E_CONFIG (uri), TIERCE_E_FORMAT (content),
 * negative errno, -ENOMEM. Nothing is read before tierce__registry_load. */
TIERCE_MUSTUSE int tierce__registry_open(struct tierce__registry **out,
                                         const struct tierce__registry_opts *opts, char why[256]);
void tierce__registry_close(struct tierce__registry *registry);

/* Reads all of it (again), as a leader does when it begins; `fence` goes with each later write. 0:
 * this manager is alone, and no token is looked at. Errors: TIERCE_E_REFUSED (an older token than
 * the store saw), TIERCE_E_FORMAT, TIERCE_E_VERSION, TIERCE_E_LOCKED, negative errno, -ENOMEM;
 * nothing has changed then. */
TIERCE_MUSTUSE int tierce__registry_load(struct tierce__registry *registry, uint64_t fence,
                                         char why[256]);
/* Forgets what was read, as a leader does when it ends: the catalog is empty, and changes are
 * TIERCE_E_CLOSED until the next load. */
void tierce__registry_drop(struct tierce__registry *registry);

const struct tierce__catalog *tierce__registry_acquire(struct tierce__registry *registry);
void tierce__registry_release(struct tierce__registry *registry,
                              const struct tierce__catalog *catalog);

/* Bumped by every change; to notice one cheaply. */
uint64_t tierce__registry_version(const struct tierce__registry *registry);

/* NULL: none of that name. [borrow until release] */
const struct tierce__storage *tierce__catalog_storage(const struct tierce__catalog *catalog,
                                                      const char *name);
const struct tierce__storage *
tierce__catalog_storage_numbered(const struct tierce__catalog *catalog, uint16_t number);
const struct tierce__group *tierce__catalog_group(const struct tierce__catalog *catalog,
                                                  const char *name);
const struct tierce__instance *tierce__catalog_instance(const struct tierce__catalog *catalog,
                                                        const char *id);
const struct tierce__account *tierce__catalog_account(const struct tierce__catalog *catalog,
                                                      const char *name);
/* All, sorted by name. */
const struct tierce__storage *tierce__catalog_storages(const struct tierce__catalog *catalog,
                                                       size_t *count);
const struct tierce__group *tierce__catalog_groups(const struct tierce__catalog *catalog,
                                                   size_t *count);
const struct tierce__instance *tierce__catalog_instances(const struct tierce__catalog *catalog,
                                                         size_t *count);
const struct tierce__account *tierce__catalog_accounts(const struct tierce__catalog *catalog,
                                                       size_t *count);

/*
 * Changes: atomic and durable when they return 0, else nothing has changed. The numbers inside are
 * the registry's to give and are ignored. Texts that are NULL are "", key_count_per_file 0 is 1.
 * They may block. A storage keeps its type: to change that, remove it and add another.
 * Errors, `why` in words: -EEXIST (duplicate), -ENOENT, -EBUSY (in use; by whom), -ESTALE
 * (version), TIERCE_E_ARGUMENT (a value), TIERCE_E_LIMIT (max_instance_count), TIERCE_E_REFUSED
 * (fenced), TIERCE_E_CLOSED (not loaded), negative errno of the store.
 */
TIERCE_MUSTUSE int tierce__registry_add_storage(struct tierce__registry *registry,
                                                const struct tierce__storage *storage,
                                                char why[256]);
TIERCE_MUSTUSE int tierce__registry_update_storage(struct tierce__registry *registry,
                                                   const struct tierce__storage *storage,
                                                   char why[256]);
TIERCE_MUSTUSE int tierce__registry_enable_storage(struct tierce__registry *registry,
                                                   const char *name, bool enable, char why[256]);
TIERCE_MUSTUSE int tierce__registry_remove_storage(struct tierce__registry *registry,
                                                   const char *name, char why[256]);
TIERCE_MUSTUSE int tierce__registry_add_group(struct tierce__registry *registry,
                                              const struct tierce__group *group, char why[256]);
TIERCE_MUSTUSE int tierce__registry_update_group(struct tierce__registry *registry,
                                                 const struct tierce__group *group,
                                                 int64_t current_version, char why[256]);
TIERCE_MUSTUSE int tierce__registry_remove_group(struct tierce__registry *registry,
                                                 const char *name, char why[256]);
/* 1: it was there already and is the same. -EEXIST: it is there and differs; `why` says in what. */
TIERCE_MUSTUSE int tierce__registry_add_instance(struct tierce__registry *registry,
                                                 const struct tierce__instance *instance,
                                                 char why[256]);
TIERCE_MUSTUSE int tierce__registry_remove_instance(struct tierce__registry *registry,
                                                    const char *id, char why[256]);
TIERCE_MUSTUSE int tierce__registry_add_account(struct tierce__registry *registry, const char *name,
                                                const char *password, enum tierce__role role,
                                                char why[256]);
TIERCE_MUSTUSE int tierce__registry_remove_account(struct tierce__registry *registry,
                                                   const char *name, char why[256]);

/* All of it as one JSON text (heap), and back: everything or nothing. What is there already under
 * the same name keeps its number (an instance, a storage: if it is the same), the rest gets new
 * ones. */
TIERCE_MUSTUSE int tierce__registry_snapshot(struct tierce__registry *registry, char **out);
TIERCE_MUSTUSE int tierce__registry_restore(struct tierce__registry *registry, const char *text,
                                            char why[256]);

/* The startup JSON of KVCM ({"storage_config":..,"instance_group":..}; NULL: the built-in one),
 * into a registry that holds nothing; 0 and nothing done if it holds something. */
TIERCE_MUSTUSE int tierce__registry_startup(struct tierce__registry *registry, const char *text,
                                            char why[256]);
/* What is wrong in such a text, before there is anything to put it into. TIERCE_E_FORMAT,
 * TIERCE_E_ARGUMENT, -ENOMEM. */
TIERCE_MUSTUSE int tierce__registry_check_startup(const char *text, char why[256]);

#endif
