/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STORAGE_MARK_H
#define TIERCE_MANAGER_STORAGE_MARK_H

#include "manager/storage/storage.h"

/*
 * Probes of a storage that has a mark (store/remote/fleet/storage_at.h). The mark is read before
 * anything is written, so that nothing is written to an empty mount point. A storage without a mark
 * gets one after its first successful probe.
 *
 * Thread: that of the driver.
 */

enum tierce__mark_state {
    TIERCE__MARK_UNKNOWN, /* not read yet, or not readable, or storages of this kind have none */
    TIERCE__MARK_OURS,
    TIERCE__MARK_ABSENT,    /* none, and the storage had none before */
    TIERCE__MARK_LOST,      /* none, although the storage had one */
    TIERCE__MARK_FOREIGN,   /* another registry's, or an object of that name that is no mark */
    TIERCE__MARK_UNCLAIMED, /* none, and the storage had none before, but it has blocks */
};

/* The mark that a probe looks for. */
struct tierce__storage_mark {
    char id[TIERCE__STORAGE_ID_HEX + 1]; /* "": none is looked for */
    bool is_marked;                      /* the storage had this mark */
};

/* Whether a storage in this state holds other objects than the index says. */
static inline bool tierce__mark_is_wrong(enum tierce__mark_state state)
{
    return state == TIERCE__MARK_LOST || state == TIERCE__MARK_FOREIGN ||
           state == TIERCE__MARK_UNCLAIMED;
}

/* Reads the mark; `why` in words if it is wrong, or not readable. */
enum tierce__mark_state tierce__storage_mark_look(const struct tierce__storage_ops *ops,
                                                  struct tierce__storage_driver *driver,
                                                  const struct tierce__storage_mark *mark,
                                                  char why[128]);

/* Reads the mark, probes, and writes a mark that is absent. Errors, `why` in words: TIERCE_E_DOWN
 * (the mark is wrong; nothing was written), those of the driver. */
TIERCE_MUSTUSE int tierce__storage_mark_probe(const struct tierce__storage_ops *ops,
                                              struct tierce__storage_driver *driver,
                                              const struct tierce__storage_mark *mark,
                                              enum tierce__mark_state *state, char why[128]);

/* Succeeds if the storage has this mark, `id`, or storages of its kind have none. Errors:
 * TIERCE_E_DOWN (it has another one, or none), those of the driver. */
TIERCE_MUSTUSE int tierce__storage_mark_check(const struct tierce__storage_ops *ops,
                                              struct tierce__storage_driver *driver, const char *id,
                                              char why[128]);

/* Measures a file of a storage that has the mark `id`, before and after. Errors: as the driver's
 * measure and tierce__storage_mark_check. */
TIERCE_MUSTUSE int tierce__storage_mark_measure(const struct tierce__storage_ops *ops,
                                                struct tierce__storage_driver *driver,
                                                const char *id, const char *path, uint64_t *bytes);

/* Probes, and replaces the mark. Errors: those of the driver. */
TIERCE_MUSTUSE int tierce__storage_mark_replace(const struct tierce__storage_ops *ops,
                                                struct tierce__storage_driver *driver,
                                                const char *id, char why[128]);

#endif
