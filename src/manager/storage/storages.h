/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STORAGES_H
#define TIERCE_MANAGER_STORAGES_H

#include "manager/registry/registry.h"
#include "manager/storage/storage.h"

/*
 * Health and deletion for the registry's storages.
 *
 * Each enabled storage is probed periodically with a real write, read and delete, bounded in time.
 * After `failures` consecutive probes that failed or hung, a storage is unavailable for writes and
 * reads; after a successful probe it is available again. The part of a node that reports is probed
 * only each TIERCE__STORAGES_PART_INTERVALS-th time, until a probe or a deletion fails, or
 * tierce__storages_doubt is called. Unmanaged storages (storage.h) count as
 * available and are listed as unmanaged.
 *
 * One thread per storage makes all calls that may hang. While a call hangs, the storage is
 * unavailable and requests to it fail with TIERCE_E_DOWN at once; no other thread waits for the
 * call, not even close.
 *
 * Threads: any.
 */

struct tierce__storages;

#define TIERCE__STORAGES_PART_INTERVALS 12u

struct tierce__storages_opts {
    size_t size;
    struct tierce__registry *registry; /* [borrow until close] */
    uint32_t probe_interval_ms;        /* 0: no probing */
    uint32_t probe_timeout_ms;         /* 0: 2000 */
    uint32_t failures;                 /* 0: 2 */
    /* Called for each change of health, on a thread of the storages, without a lock. May be
     * NULL. */
    void (*changed)(void *arg, const char *storage, bool is_well, const char *why);
    void *changed_arg;
    /* The interpreter that has Mooncake; "" or NULL: storages of Mooncake are unmanaged. [borrow
     * until close] */
    const char *mooncake_python;
    /* NULL: tierce__storage_ops_find. */
    const struct tierce__storage_ops *(*find_ops)(enum tierce__storage_type type);
};

TIERCE_MUSTUSE int tierce__storages_open(struct tierce__storages **out,
                                         const struct tierce__storages_opts *opts);
void tierce__storages_close(struct tierce__storages *storages);

/* Returns whether the storage is enabled in the registry, keeps its objects and is available. Cheap
 * and lock-free. */
bool tierce__storages_is_available(struct tierce__storages *storages,
                                   const struct tierce__storage *storage);

/* Makes the part of a node unavailable while its node is silent (nodes.h). */
void tierce__storages_set_silent(struct tierce__storages *storages, uint16_t number,
                                 bool is_silent);

/* Clients or this manager had trouble with the storage: it is probed as often as any other until a
 * probe has succeeded. */
void tierce__storages_doubt(struct tierce__storages *storages, uint16_t number);

/* Probes a storage once; it need not be registered. An unmanaged storage is available.
 * Blocks for at most probe_timeout_ms. Errors, `why` in words: TIERCE_E_DOWN, those of its driver
 * and of a thread, -ENOMEM. */
TIERCE_MUSTUSE int tierce__storages_try(const struct tierce__storages *storages,
                                        const struct tierce__storage *storage, char why[128]);

/* Returns whether a driver exists for storages of this kind, so that they are probed and their
 * bytes deleted. */
bool tierce__storages_is_managed(const struct tierce__storages *storages,
                                 enum tierce__storage_type type);

/*
 * Returns whether the last probe found the mark of another registry, or none although the storage
 * had one: it holds other objects than the index says, for example because its file system is not
 * mounted. It is unavailable then, no file is deleted in it, and a client that misses an object
 * there proves nothing. Cheap and lock-free.
 */
bool tierce__storages_has_wrong_mark(struct tierce__storages *storages,
                                     const struct tierce__storage *storage);

/*
 * An operator accepts a storage whose mark is wrong. Between begin and end the caller says in the
 * registry whether it has lost its objects. With `is_accepted`, end writes the mark, and the
 * storage returns to service. Errors, `why` in words: -EEXIST (its mark is right), -EBUSY (it is
 * being adopted), TIERCE_E_UNSUPPORTED (it has no mark: unmanaged, or the registry is not stored),
 * TIERCE_E_DOWN, those of the driver; -ENOMEM, TIERCE_E_CLOSED.
 */
TIERCE_MUSTUSE int tierce__storages_adopt_begin(struct tierce__storages *storages,
                                                const struct tierce__storage *storage,
                                                char why[128]);
TIERCE_MUSTUSE int tierce__storages_adopt_end(struct tierce__storages *storages,
                                              const struct tierce__storage *storage,
                                              bool is_accepted, char why[128]);

struct tierce__storage_state {
    bool is_enabled, is_managed, is_well, is_probed;
    uint64_t probe_age_ms, probe_took_us; /* of the last finished probe; valid if is_probed */
    char why[128];                        /* reason of the last failure, or "" */
    double used_share;                    /* of the file system or server; negative: unknown */
};
/* Reads the state of a storage; if it is unknown, all fields are zero except used_share, which is
 * -1. */
void tierce__storages_state(struct tierce__storages *storages, const char *name,
                            struct tierce__storage_state *out);

/*
 * Deletes files (tierce__place_path) of a storage. status[i]: 0 if the file is deleted or did not
 * exist, else an error. Blocks for at most probe_timeout_ms per file, or per
 * TIERCE__STORAGE_BATCH_MAX files of a storage that deletes many at once; then these get
 * TIERCE_E_DEADLINE (they may still be deleted) and the remaining ones TIERCE_E_DOWN.
 * TIERCE_E_DOWN also: the storage has a wrong mark, or its mark could not be read yet.
 * TIERCE_E_ARGUMENT: the path leaves the storage's root or contains a link, or is not a regular
 * file; nothing is deleted. TIERCE_E_UNSUPPORTED: the storage is unmanaged; its owner must delete
 * the bytes. Returns 0 if status was filled, else -ENOMEM, TIERCE_E_CLOSED (the storage was removed
 * from the registry) or the error of opening the driver.
 */
TIERCE_MUSTUSE int tierce__storages_delete(struct tierce__storages *storages,
                                           const struct tierce__storage *storage,
                                           const char *const *paths, size_t count, int *status);

/* Reads the sizes of files; bytes[i] is valid if status[i] is 0. -ENOENT: the file does not exist.
 * Blocks and fails as above. */
TIERCE_MUSTUSE int tierce__storages_measure(struct tierce__storages *storages,
                                            const struct tierce__storage *storage,
                                            const char *const *paths, size_t count, uint64_t *bytes,
                                            int *status);

/* Measures files again before a repair: the storage is this registry's before and after each
 * measurement, so that no file counts as missing because another file system was mounted meanwhile.
 * Errors, `why` in words: as above and as tierce__storages_check_own. */
TIERCE_MUSTUSE int tierce__storages_measure_again(struct tierce__storages *storages,
                                                  const struct tierce__storage *storage,
                                                  const char *const *paths, size_t count,
                                                  uint64_t *bytes, int *status, char why[128]);

/* The most bytes that one read of a storage of this type takes; 0: its objects are not read. */
size_t tierce__storages_read_max(const struct tierce__storages *storages,
                                 enum tierce__storage_type type);
/* Reads bytes [offset, offset + bytes) of a file. Blocks for at most probe_timeout_ms for each
 * tierce__storages_read_max bytes. Errors: -ENOENT (it does not exist), TIERCE_E_FORMAT (it ends
 * before), TIERCE_E_LIMIT (it is too large for this kind of storage), TIERCE_E_UNSUPPORTED;
 * otherwise as tierce__storages_measure. */
TIERCE_MUSTUSE int tierce__storages_read(struct tierce__storages *storages,
                                         const struct tierce__storage *storage, const char *path,
                                         uint64_t offset, void *out, uint64_t bytes);

/* Whether the storages of this kind can be listed. */
bool tierce__storages_has_list(const struct tierce__storages *storages,
                               enum tierce__storage_type type);

/*
 * Lists objects of a storage: *page has the next ones (tierce__storage_page_clear and
 * tierce__free). One listing at a time for each storage; a caller that stops before the last page
 * ends it. Blocks for at most probe_timeout_ms. Errors, `why` in words or "": as
 * tierce__storages_measure; TIERCE_E_UNSUPPORTED (it cannot be listed), -ESTALE (the storage's
 * configuration has changed since the first page), of the driver.
 */
TIERCE_MUSTUSE int tierce__storages_list(struct tierce__storages *storages,
                                         const struct tierce__storage *storage, bool is_first,
                                         struct tierce__storage_page **page, char why[128]);
void tierce__storages_end_list(struct tierce__storages *storages,
                               const struct tierce__storage *storage);

/* Deletes listed files (tierce__place_path) that have not changed since, in a storage that has this
 * registry's mark. status[i]: as tierce__storages_delete; -EAGAIN: it has changed, and stays;
 * TIERCE_E_DOWN: its mark is another one. */
TIERCE_MUSTUSE int tierce__storages_delete_listed(struct tierce__storages *storages,
                                                  const struct tierce__storage *storage,
                                                  const char *const *paths,
                                                  const int64_t *changed_us, size_t count,
                                                  int *status);

/* Succeeds if the objects there are those of this registry's index: the storage has the mark, which
 * is read now, or is a part of a node that reports to this leader. Errors, `why` in words:
 * TIERCE_E_UNSUPPORTED (storages of its kind have no mark, or the registry is not stored),
 * TIERCE_E_DOWN (the mark is missing or another's, or the storage does not answer). */
TIERCE_MUSTUSE int tierce__storages_check_own(struct tierce__storages *storages,
                                              const struct tierce__storage *storage, char why[128]);

#endif
