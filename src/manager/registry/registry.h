/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_REGISTRY_H
#define TIERCE_MANAGER_REGISTRY_H

#include "manager/registry/model.h"
#include "manager/registry/model_fields.h"

/*
 * The store of storages, instance groups, instances and accounts. Reads are concurrent, changes are
 * serialized, and a change is durable before it is acknowledged.
 *
 * Readers use snapshots: tierce__registry_acquire returns an immutable one that is valid until it
 * is released, so a request holds no lock.
 *
 *     const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
 *     const struct tierce__instance *instance = tierce__catalog_instance(catalog, id);
 *     ...
 *     tierce__registry_release(registry, catalog);
 *
 * Stored by registry_store.h: a local file (written whole, atomically) or Redis hashes as KVCM
 * names them, so that its registry can be read. "" is memory only. A shared store rejects writes
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
    uint64_t bytes_max;      /* of all entries as JSON; 0: TIERCE__REGISTRY_BYTES_MAX */
};

/* A larger registry would fit neither into a backup (backup_file.h) nor into a local file. Half of
 * the room is left to changes that the manager itself makes in entries. */
#define TIERCE__REGISTRY_BYTES_MAX (32u << 20)

/* Errors, *out untouched, `why` in words: TIERCE_E_CONFIG (uri), TIERCE_E_FORMAT (content),
 * negative errno, -ENOMEM. Nothing is read before tierce__registry_load. */
TIERCE_MUSTUSE int tierce__registry_open(struct tierce__registry **out,
                                         const struct tierce__registry_opts *opts, char why[256]);
void tierce__registry_close(struct tierce__registry *registry);

/* Reads the whole registry (again), as a new leader does. Each later write carries `fence`; 0: this
 * manager is alone, and tokens are not checked. Errors: TIERCE_E_REFUSED (an older token than the
 * store saw), TIERCE_E_FORMAT, TIERCE_E_VERSION, TIERCE_E_LOCKED, negative errno, -ENOMEM; nothing
 * has changed then. */
TIERCE_MUSTUSE int tierce__registry_load(struct tierce__registry *registry, uint64_t fence,
                                         char why[256]);
/* Drops the catalog, as a leader does when it stops leading. Changes return TIERCE_E_CLOSED until
 * the next load. */
void tierce__registry_drop(struct tierce__registry *registry);

const struct tierce__catalog *tierce__registry_acquire(struct tierce__registry *registry);
void tierce__registry_release(struct tierce__registry *registry,
                              const struct tierce__catalog *catalog);

/* The id with which a registry marks its storages (storage_at.h); "": it has none yet. [borrow
 * until release] */
const char *tierce__catalog_id(const struct tierce__catalog *catalog);

/* A number of the registry that counts the generations of instances: of its id, or of this process
 * if it is in memory. Another registry has another one. 0: it has none yet. */
uint64_t tierce__registry_number(const struct tierce__registry *registry);

/* Whether the registry outlives this process. One that does not has no id and marks no storages. */
bool tierce__registry_is_stored(const struct tierce__registry *registry);

/* A counter that every change increments, for cheap change detection. */
uint64_t tierce__registry_version(const struct tierce__registry *registry);

/* Look up an entry by name; NULL: there is none. [borrow until release] */
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
/* The type of a candidate of a group: a name of no storage is that of a pool of nodes. */
enum tierce__storage_type tierce__catalog_candidate_type(const struct tierce__catalog *catalog,
                                                         const char *name);
/* Whether two groups may store in the same storage of this type (as quotas count it; NONE: any). A
 * pool has its parts in common with itself and with a candidate that is one of them. */
bool tierce__catalog_share_storage(const struct tierce__catalog *catalog,
                                   const struct tierce__group *one,
                                   const struct tierce__group *other,
                                   enum tierce__storage_type type);
/* All entries, sorted by name. */
const struct tierce__storage *tierce__catalog_storages(const struct tierce__catalog *catalog,
                                                       size_t *count);
const struct tierce__group *tierce__catalog_groups(const struct tierce__catalog *catalog,
                                                   size_t *count);
const struct tierce__instance *tierce__catalog_instances(const struct tierce__catalog *catalog,
                                                         size_t *count);
const struct tierce__account *tierce__catalog_accounts(const struct tierce__catalog *catalog,
                                                       size_t *count);

/*
 * Changes are atomic, and durable when they return 0; on an error nothing has changed. Numbers in
 * the arguments are ignored: the registry assigns them. NULL texts mean "", key_count_per_file 0
 * means 1. Changes may block. The type of a storage cannot change: remove it and add another.
 * Errors, `why` in words: -EEXIST (duplicate), -ENOENT, -EBUSY (in use; `why` names the user),
 * -ESTALE (version), TIERCE_E_ARGUMENT (a value), TIERCE_E_LIMIT (max_instance_count),
 * TIERCE_E_REFUSED (fenced), TIERCE_E_CLOSED (not loaded), negative errno of the store.
 */
TIERCE_MUSTUSE int tierce__registry_add_storage(struct tierce__registry *registry,
                                                const struct tierce__storage *storage,
                                                char why[256]);
TIERCE_MUSTUSE int tierce__registry_update_storage(struct tierce__registry *registry,
                                                   const struct tierce__storage *storage,
                                                   char why[256]);
TIERCE_MUSTUSE int tierce__registry_enable_storage(struct tierce__registry *registry,
                                                   const char *name, bool enable, char why[256]);
/* Gives the registry its random id, unless it has one. */
TIERCE_MUSTUSE int tierce__registry_identify(struct tierce__registry *registry, char why[256]);
/* Remembers that a storage has the mark of this registry. */
TIERCE_MUSTUSE int tierce__registry_mark_storage(struct tierce__registry *registry,
                                                 const char *name, char why[256]);
TIERCE_MUSTUSE int tierce__registry_remove_storage(struct tierce__registry *registry,
                                                   const char *name, char why[256]);
/*
 * A storage that has lost its objects, and one whose node is gone: it is neither written to nor
 * read from, and the index forgets its objects (locator_forget.c). `settle` ends that: a storage
 * that lost them is KEPT again, one whose node is gone is GONE. Storages in other states stay as
 * they are.
 */
TIERCE_MUSTUSE int tierce__registry_empty_storage(struct tierce__registry *registry,
                                                  const char *name, char why[256]);
TIERCE_MUSTUSE int tierce__registry_forget_storage(struct tierce__registry *registry,
                                                   const char *name, char why[256]);
TIERCE_MUSTUSE int tierce__registry_settle_storages(struct tierce__registry *registry,
                                                    const uint16_t *numbers, size_t count,
                                                    char why[256]);
/* Begins or ends the draining of a storage (locator_drain.c). */
TIERCE_MUSTUSE int tierce__registry_drain_storage(struct tierce__registry *registry,
                                                  const char *name, enum tierce__draining draining,
                                                  char why[256]);
/* Keeps the position of a scrub of a storage, for the next leader; "": none is under way. -ENOENT:
 * there is no storage of this name and number. */
TIERCE_MUSTUSE int tierce__registry_note_scrub(struct tierce__registry *registry, const char *name,
                                               uint16_t number, const char *position,
                                               char why[256]);
/*
 * Adds or updates the storage that is a part of a node; `part` has its name, and the fields of type
 * NODE. A part with another incarnation than before is empty, so its earlier objects are LOST. A
 * new part whose node has objects already (`has_objects`) is GONE, as is a part that was forgotten
 * and returns with the same incarnation: the node must drop its objects. -EEXIST: the name, or the
 * pool's name, is that of another storage.
 */
TIERCE_MUSTUSE int tierce__registry_put_part(struct tierce__registry *registry,
                                             const struct tierce__storage *part, bool has_objects,
                                             char why[256]);
TIERCE_MUSTUSE int tierce__registry_add_group(struct tierce__registry *registry,
                                              const struct tierce__group *group, char why[256]);
TIERCE_MUSTUSE int tierce__registry_update_group(struct tierce__registry *registry,
                                                 const struct tierce__group *group,
                                                 int64_t current_version, char why[256]);

/* A change of the autopilot. All of it is made, or nothing, in one write: so the sum of two quotas
 * stays the same, and the log of steps agrees with the quotas, whatever ends the manager. */
struct tierce__quota_shift {
    const char *from, *to; /* groups */
    /* The versions that the quotas were read from; they are then increased. Not compared if `bytes`
     * is 0. */
    int64_t from_version, to_version;
    enum tierce__storage_type type; /* whose quota moves, with the groups' own if both have one;
                                       NONE: only the groups' own */
    int64_t bytes;                  /* negative: they move from `to` to `from` */
    const struct tierce__group_step *step; /* is added to the steps of `to`, or replaces the one of
                                              its id; the oldest of too many is dropped */
};
/* Errors as below, and TIERCE_E_ARGUMENT: a quota is missing, or would become 0 or less. */
TIERCE_MUSTUSE int tierce__registry_shift(struct tierce__registry *registry,
                                          const struct tierce__quota_shift *shift, char why[256]);
/* Sets a group's policy and time to live, and logs it, in one write. */
struct tierce__group_tuning {
    const char *group;
    int64_t version; /* that the setting was read from; it is then increased. Not compared if
                        `policy` is 0 */
    int32_t policy;  /* enum tierce__reclaim_policy; 0: both stay, and the step is logged */
    int64_t ttl_s;   /* 0: none */
    const struct tierce__group_step *step; /* as of a shift */
};
TIERCE_MUSTUSE int tierce__registry_tune(struct tierce__registry *registry,
                                         const struct tierce__group_tuning *tuning, char why[256]);
TIERCE_MUSTUSE int tierce__registry_remove_group(struct tierce__registry *registry,
                                                 const char *name, char why[256]);
/* Returns 1 if an equal instance exists. -EEXIST: a different one exists; `why` names the
 * difference. */
TIERCE_MUSTUSE int tierce__registry_add_instance(struct tierce__registry *registry,
                                                 const struct tierce__instance *instance,
                                                 char why[256]);
TIERCE_MUSTUSE int tierce__registry_remove_instance(struct tierce__registry *registry,
                                                    const char *id, char why[256]);
/* The instances whose blocks are invalidated: one, or those of a group, or of a family in it. */
struct tierce__namespace_choice {
    const char *instance_id;    /* "": all of the group */
    const char *group, *family; /* "": any */
};
bool tierce__namespace_has(const struct tierce__namespace_choice *choice,
                           const struct tierce__instance *instance);
/* Raises their generations by 1. -ENOENT: there are none. */
TIERCE_MUSTUSE int tierce__registry_invalidate(struct tierce__registry *registry,
                                               const struct tierce__namespace_choice *choice,
                                               char why[256]);
TIERCE_MUSTUSE int tierce__registry_add_account(struct tierce__registry *registry, const char *name,
                                                const char *password, enum tierce__role role,
                                                char why[256]);
TIERCE_MUSTUSE int tierce__registry_remove_account(struct tierce__registry *registry,
                                                   const char *name, char why[256]);

/* Export the registry as one JSON text (heap), and import it: all or nothing. Entries that exist
 * under the same name keep their numbers (instances and storages only if they are equal); the
 * others get new ones. */
TIERCE_MUSTUSE int tierce__registry_snapshot(struct tierce__registry *registry, char **out);
TIERCE_MUSTUSE int tierce__registry_restore(struct tierce__registry *registry, const char *text,
                                            char why[256]);

/*
 * Takes over a whole registry, with its numbers, into an empty one, in two steps: after the first
 * it is published but not stored, so that the indexes can be filled by it; the second stores it.
 * Nothing else may change between. If the process ends before the second, or drop is called, the
 * registry is empty as before. The next number of an instance is far above those in the text:
 * numbers that were assigned after the text was made are not assigned again. Without keeps_id the
 * registry gets an id of its own, if the text has one: so its storages have the mark of another
 * registry until they are adopted. Errors, `why` in words: -EEXIST (not empty), as restore.
 */
struct tierce__registry_text {
    const char *text;
    bool keeps_id; /* no other manager has the registry of the text */
};
TIERCE_MUSTUSE int tierce__registry_stage(struct tierce__registry *registry,
                                          const struct tierce__registry_text *whole, char why[256]);
TIERCE_MUSTUSE int tierce__registry_keep(struct tierce__registry *registry, char why[256]);

/* Imports KVCM's startup JSON ({"storage_config":..,"instance_group":..}) into an empty registry;
 * returns 0 and does nothing if the registry is not empty. `text` NULL: there is none;
 * TIERCE_E_CONFIG if the registry is empty. */
TIERCE_MUSTUSE int tierce__registry_startup(struct tierce__registry *registry, const char *text,
                                            char why[256]);
/* Validates such a text without importing it. Errors: TIERCE_E_FORMAT, TIERCE_E_ARGUMENT,
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__registry_check_startup(const char *text, char why[256]);

/* Calls `each` for every name of such a text that is ignored, with its path. */
void tierce__registry_startup_unknown(const char *text, tierce__model_unknown_fn *each, void *arg);

#endif
