/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_QUOTA_H
#define TIERCE_MANAGER_QUOTA_H

#include "manager/meta_store.h"
#include "manager/model.h"

/*
 * The bytes that locations occupy, by group, kind of storage, storage and state; and the limits on
 * them, which are hard: what would go beyond is not reserved. Bytes count from StartWrite until the
 * deletion is done.
 *
 * Threads: any.
 */

enum tierce__quota_state {
    TIERCE__QUOTA_WRITING,
    TIERCE__QUOTA_SERVING,
    TIERCE__QUOTA_DELETING,
    TIERCE__QUOTA_STATES,
};

struct tierce__quota;

/* Where some bytes are. */
struct tierce__quota_at {
    const char *group;
    const char *shared; /* the group's global quota group, or "" */
    uint8_t type;       /* enum tierce__storage_type */
    uint16_t storage;
};

struct tierce__quota_limits {
    uint64_t group;   /* UINT64_MAX: none, here and below */
    uint64_t type;    /* of the group, in this kind of storage */
    uint64_t shared;  /* of all groups that share it */
    uint64_t storage; /* of the storage, all groups */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__quota_create(struct tierce__quota **out);
void tierce__quota_destroy(struct tierce__quota *quota);
void tierce__quota_reset(struct tierce__quota *quota);

/*
 * Reserves, as WRITING, the leading of `count` amounts that all limits leave room for; returns how
 * many. *limit = the name of the limit that stopped it ("group", "type", "shared", "storage"), or
 * NULL. Errors: -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__quota_reserve(struct tierce__quota *quota,
                                         const struct tierce__quota_at *at,
                                         const struct tierce__quota_limits *limits,
                                         const uint64_t *bytes, size_t count, size_t *reserved,
                                         const char **limit);

/* Adds without asking: what a group has already, after a restart, by type slot and by storage slot
 * (meta_store.h). Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__quota_add(struct tierce__quota *quota, const char *group,
                                     const char *shared, enum tierce__quota_state state,
                                     const uint64_t by_type[16],
                                     const uint64_t by_storage[TIERCE__META_STORAGE_SLOTS]);

/* Bytes that change their state, or are gone (to: TIERCE__QUOTA_STATES). Where
 * fewer are counted, none are left, and it is logged. */
void tierce__quota_move(struct tierce__quota *quota, const struct tierce__quota_at *at,
                        enum tierce__quota_state from, enum tierce__quota_state to, uint64_t bytes);

struct tierce__quota_use {
    uint64_t by_state[TIERCE__QUOTA_STATES];
    uint64_t by_type[TIERCE__QUOTA_STATES][16]; /* tierce__meta_type_slot of the quota's kind */
};

/* Zeroes for what is not known. */
void tierce__quota_group_use(struct tierce__quota *quota, const char *group,
                             struct tierce__quota_use *out);
/* By state; of storages without a slot of their own, all together. */
void tierce__quota_storage_use(struct tierce__quota *quota, uint16_t storage,
                               uint64_t out[TIERCE__QUOTA_STATES]);

#endif
