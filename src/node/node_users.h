/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_USERS_H
#define TIERCE_NODE_USERS_H

#include <stdbool.h>

#include <tierce/status.h>

/*
 * The processes for which a node runs (--users FILE). Each process holds a shared lock (flock) on
 * the file. The kernel releases the lock when the process ends, also after SIGKILL. When no shared
 * lock is left, the node takes an exclusive lock, ends, and removes the file. A process that waited
 * for its lock then finds that the locked file no longer has this name, and opens the file again.
 *
 * Thread: one at a time.
 */
struct tierce__node_users {
    int fd; /* -1: without --users */
    const char *path;
    bool have_gone;
};

/* A node without --users. */
#define TIERCE__NODE_USERS_NONE ((struct tierce__node_users){.fd = -1})

/* [borrow] path until close. Errors, *out untouched, `why` in words: negative errno. */
TIERCE_MUSTUSE int tierce__node_users_open(struct tierce__node_users *out, const char *path,
                                           char why[256]);

/* Whether no process holds a lock on the file; once true, it stays true. Does not block. */
bool tierce__node_users_have_gone(struct tierce__node_users *users);

/* Removes the file if all users have ended; the next users then create a new file. */
void tierce__node_users_close(struct tierce__node_users *users);

#endif
