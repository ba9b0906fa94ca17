/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_GRANT_H
#define TIERCE_MANAGER_GRANT_H

#include "manager/registry/registry.h"

#include <stdatomic.h>
#include <stdint.h>

/*
 * The rights of an account, and the scope in which it has them. A grant does not change; calls
 * and streams hold it by a counted reference, also after the token file was read again.
 *
 * A function that takes a NULL grant answers as for an account without rights and scope.
 *
 * Threads: any.
 */

enum tierce__right {
    TIERCE__RIGHT_READ = 1,  /* look up blocks, instances and numbers */
    TIERCE__RIGHT_WRITE = 2, /* register instances and write blocks */
    TIERCE__RIGHT_TRIM = 4,  /* remove blocks */
    TIERCE__RIGHT_ADMIN = 8, /* administer */
    TIERCE__RIGHT_NODE = 16, /* register a node of a pool */
};

#define TIERCE__RIGHTS_USER                                                                        \
    ((uint32_t)(TIERCE__RIGHT_READ | TIERCE__RIGHT_WRITE | TIERCE__RIGHT_TRIM))
#define TIERCE__RIGHTS_ALL                                                                         \
    (TIERCE__RIGHTS_USER | (uint32_t)TIERCE__RIGHT_ADMIN | (uint32_t)TIERCE__RIGHT_NODE)

/* "read", ... of one right. */
const char *tierce__right_name(enum tierce__right right);

/* "read,write"; "user" and "admin" include others. False: an unknown word. */
bool tierce__rights_parse(uint32_t *out, const char *words);

enum tierce__reach {
    TIERCE__REACH_NOTHING,
    TIERCE__REACH_ALL,
    TIERCE__REACH_GROUP,    /* one instance group, and its instances */
    TIERCE__REACH_INSTANCE, /* one instance, in one group */
};

struct tierce__grant {
    atomic_uint references;
    uint32_t rights; /* TIERCE__RIGHT_... or-ed */
    enum tierce__reach reach;
    char *group, *instance; /* heap; NULL where the reach has none */
};

/* `scope`: "*", "GROUP" or "GROUP/INSTANCE", in which %XX is a byte; NULL: all. Errors:
 * TIERCE_E_CONFIG, and *fault is the reason; -ENOMEM. */
TIERCE_MUSTUSE int tierce__grant_create(struct tierce__grant **out, uint32_t rights,
                                        const char *scope, const char **fault);

/* Grants of all groups: with all rights; with those of TIERCE__RIGHTS_USER. Constant; they may be
 * held and dropped like others. */
struct tierce__grant *tierce__grant_of_admins(void);
struct tierce__grant *tierce__grant_of_users(void);

struct tierce__grant *tierce__grant_hold(struct tierce__grant *grant);
void tierce__grant_drop(struct tierce__grant *grant);

bool tierce__grant_is_same(const struct tierce__grant *a, const struct tierce__grant *b);

/* Whether the scope holds everything; a whole group; an instance of a group. */
bool tierce__grant_has_all(const struct tierce__grant *grant);
bool tierce__grant_has_group(const struct tierce__grant *grant, const char *group);
bool tierce__grant_has_instance(const struct tierce__grant *grant, const char *group,
                                const char *instance);

/* Whether the scope holds the group or an instance of it. */
bool tierce__grant_meets_group(const struct tierce__grant *grant, const char *group);

/* Whether a storage is one of those of the scope's group. */
bool tierce__grant_has_storage(const struct tierce__grant *grant,
                               const struct tierce__catalog *catalog, const char *storage);

#endif
