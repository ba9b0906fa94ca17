/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_QUOTA_H
#define TIERCE_MANAGER_QUOTA_H

#include "manager/meta/meta_store.h"
#include "manager/registry/model.h"
#include "manager/storage/storage_table.h"

/*
 * Accounting of the bytes that locations occupy, by group, kind of storage, storage and state, and
 * their limits. Limits are hard: a reservation beyond them fails. Bytes count from StartWrite until
 * the deletion is done.
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

/* The accounts that some bytes belong to. */
struct tierce__quota_at {
    const char *group;
    uint8_t type; /* enum tierce__storage_type */
    uint16_t storage;
};

struct tierce__quota_limits {
    uint64_t group;   /* UINT64_MAX: none, here and below */
    uint64_t type;    /* of the group, in this kind of storage */
    uint64_t storage; /* of the storage, all groups */
    bool is_quiet;    /* an amount that does not fit is not remembered */
    bool is_whole;    /* reserve all amounts or none */
};

/* A limit that several groups share: those with this InstanceGroup.global_quota_group_name. */
struct tierce__quota_group {
    const char *name;
    uint64_t capacity_bytes;
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__quota_create(struct tierce__quota **out);
void tierce__quota_destroy(struct tierce__quota *quota);
void tierce__quota_reset(struct tierce__quota *quota);

/* Replaces the limits that groups share; a name that is not listed is unlimited. The texts are
 * copied. Errors: -ENOMEM, nothing has changed. */
TIERCE_MUSTUSE int tierce__quota_set_shared(struct tierce__quota *quota,
                                            const struct tierce__quota_group *limits, size_t count);
/* Takes the memory that set_shared needs for these limits, which then does not fail. Errors:
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__quota_prepare_shared(struct tierce__quota *quota,
                                                const struct tierce__quota_group *limits,
                                                size_t count);

/*
 * Makes a group share the limit of that name ("": none). Its bytes move from the limit that it
 * shared before. Errors: -ENOMEM, nothing has changed.
 */
TIERCE_MUSTUSE int tierce__quota_share(struct tierce__quota *quota, const char *group,
                                       const char *shared);

/*
 * Reserves, as WRITING, the leading ones of `count` amounts, up to what all limits allow; *reserved
 * is their number. With limits->is_whole, nothing is reserved if it is less than `count`. *limit is
 * the name of the limit that stopped it ("group", "type", "shared", "storage"), or NULL. The first
 * amount that did not fit is remembered with that limit: struct tierce__quota_use.wanted. Errors:
 * -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__quota_reserve(struct tierce__quota *quota,
                                         const struct tierce__quota_at *at,
                                         const struct tierce__quota_limits *limits,
                                         const uint64_t *bytes, size_t count, size_t *reserved,
                                         const char **limit);

/* The bytes that a group has after a restart, by type slot (meta_store.h) and by storage. Zero,
 * with the size of the table's items set, is none. */
struct tierce__quota_sums {
    uint64_t by_type[TIERCE__QUOTA_STATES][16];
    struct tierce__storage_table by_storage; /* of uint64_t[TIERCE__QUOTA_STATES] */
};

enum { TIERCE__QUOTA_SUMS_ITEM = TIERCE__QUOTA_STATES * (int)sizeof(uint64_t) };

/* Adds the bytes of one place to the sums of a storage, or of a type and a storage. Errors:
 * -ENOMEM, nothing was added. */
TIERCE_MUSTUSE int tierce__quota_sums_add_storage(struct tierce__quota_sums *sums,
                                                  enum tierce__quota_state state, uint16_t storage,
                                                  uint64_t bytes);
TIERCE_MUSTUSE int tierce__quota_sums_add(struct tierce__quota_sums *sums,
                                          enum tierce__quota_state state, uint8_t type,
                                          uint16_t storage, uint64_t bytes);
void tierce__quota_sums_clear(struct tierce__quota_sums *sums);

/* Adds sums to a group without checking limits. Errors: -ENOMEM, nothing was added. */
TIERCE_MUSTUSE int tierce__quota_add(struct tierce__quota *quota, const char *group,
                                     const struct tierce__quota_sums *sums);

/* Moves bytes to another state, or drops them (`to`: TIERCE__QUOTA_STATES). If fewer bytes are
 * counted, the count becomes 0 and an event is logged. */
void tierce__quota_move(struct tierce__quota *quota, const struct tierce__quota_at *at,
                        enum tierce__quota_state from, enum tierce__quota_state to, uint64_t bytes);

struct tierce__quota_use {
    uint64_t by_state[TIERCE__QUOTA_STATES];
    uint64_t by_type[TIERCE__QUOTA_STATES][16]; /* tierce__meta_type_slot of the quota's kind */
    /* The bytes of the last block that did not fit since the last clear; 0: none. */
    uint64_t wanted, wanted_by_type[16];
};

/* Reads a group's use; all zero if the group is unknown. */
void tierce__quota_group_use(struct tierce__quota *quota, const char *group,
                             struct tierce__quota_use *out);
/* Reads a storage's bytes by state. `wanted` may be NULL. */
void tierce__quota_storage_use(struct tierce__quota *quota, uint16_t storage,
                               uint64_t out[TIERCE__QUOTA_STATES], uint64_t *wanted);

/* A limit that groups share, and its use. */
struct tierce__quota_shared {
    const char *name; /* in `space` */
    uint64_t limit;   /* UINT64_MAX: none */
    uint64_t by_state[TIERCE__QUOTA_STATES];
    uint64_t wanted;
};

/* Reads the index-th shared limit; false after the last. `name` is copied into `space`. */
bool tierce__quota_shared_at(struct tierce__quota *quota, size_t index,
                             struct tierce__quota_shared *out, char *space, size_t space_bytes);

/* Clears all `wanted` values, after a round of reclaim has read them. */
void tierce__quota_clear_wanted(struct tierce__quota *quota);

/* A counter that every change of a number or limit increments. */
uint64_t tierce__quota_changes(const struct tierce__quota *quota);

#endif
