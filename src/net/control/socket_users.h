/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONTROL_SOCKET_USERS_H
#define TIERCE_CONTROL_SOCKET_USERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include <tierce/status.h>

/*
 * Access to a Unix socket for other users than its owner and root: listed users and the members of
 * a group, by the peer credentials from the kernel.
 *
 *     rc = tierce__socket_users_init(&allowed, "alice,1007", "engines", why);
 *     rc = tierce__socket_users_open(&allowed, path, why); // after bind: the file's group, mode
 *     if (!tierce__socket_users_admit(&allowed, fd))       // after accept
 *         ...
 *
 * Thread: any, once it is made.
 */

#define TIERCE__SOCKET_USERS_MAX 64u

struct tierce__socket_users {
    uid_t users[TIERCE__SOCKET_USERS_MAX];
    size_t user_count;
    gid_t group;
    bool has_group;
};

/* users: names or numbers separated by commas; group: a name or number; "": none. Errors, *out
 * undefined, `why` names the invalid one: TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__socket_users_init(struct tierce__socket_users *out, const char *users,
                                             const char *group, char why[256]);

/* Gives them access to a socket's file: mode 0666 if users are listed, who are checked after
 * accept; mode 0660 and the group if there is only a group. Errors, the file unchanged or with
 * fewer permissions: negative errno. */
TIERCE_MUSTUSE int tierce__socket_users_open(const struct tierce__socket_users *allowed,
                                             const char *path, char why[256]);

/* Returns whether the peer is a process of this user, of root, or of a listed user or group. */
bool tierce__socket_users_admit(const struct tierce__socket_users *allowed, int fd);

/* Returns whether a user has that name or number. Names are resolved now. */
bool tierce__user_is(uid_t user, const char *name);

#endif
