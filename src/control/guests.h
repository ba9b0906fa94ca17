/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONTROL_GUESTS_H
#define TIERCE_CONTROL_GUESTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include <tierce/status.h>

/*
 * Who may use a Unix socket besides the user who made it and root: users, and the members of a
 * group, by the kernel's word for who is at the other end.
 *
 *     rc = tierce__guests_init(&guests, "alice,1007", "engines", why);
 *     rc = tierce__guests_open(&guests, path, why);   // after bind: the file's group and mode
 *     if (!tierce__guests_let_in(&guests, fd))        // after accept
 *         ...
 *
 * Thread: any, once it is made.
 */

#define TIERCE__GUESTS_MAX 64u

struct tierce__guests {
    uid_t users[TIERCE__GUESTS_MAX];
    size_t user_count;
    gid_t group;
    bool has_group;
};

/* users: names or numbers with commas between; group: one; "": none. Errors, *out undefined, and
 * `why` says which of them it is: TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__guests_init(struct tierce__guests *out, const char *users,
                                       const char *group, char why[256]);

/* Lets them reach a socket's file that only its user could: mode 0666 if there are users, who are
 * told apart at the door; 0660 and the group's if there is only that. Errors, the file as it was or
 * with less than that: negative errno. */
TIERCE_MUSTUSE int tierce__guests_open(const struct tierce__guests *guests, const char *path,
                                       char why[256]);

/* Whether the other end is a process of this user, of root, or of one of them. */
bool tierce__guests_let_in(const struct tierce__guests *guests, int fd);

/* Whether a user is that of a name or number. Names are looked up now. */
bool tierce__user_is(uid_t user, const char *name);

#endif
