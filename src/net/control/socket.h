/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONTROL_SOCKET_H
#define TIERCE_CONTROL_SOCKET_H

#include <sys/socket.h>

#include "net/control/control.h"

/* The Unix socket of a process: its path, its owner and its permitted peers. */

/*
 * Listens on `path` with mode 0600. A stale socket is replaced. The caller owns the fd. Errors: as
 * tierce__control_start.
 */
TIERCE_MUSTUSE int tierce__control_listen(int *fd, const char *path, char why[256]);

/* A free name in tierce__control_folder, which is created with mode 0700 and must belong to this
 * user alone. Removes sockets with such names on which no process listens. */
TIERCE_MUSTUSE int tierce__control_auto_path(char path[TIERCE__CONTROL_PATH_BYTES], char why[256]);

/* Reads the peer's process, user and group from the kernel; false: unknown. */
bool tierce__control_peer(int fd, struct ucred *out);

/* Returns whether the peer is a process of this user or of root. */
bool tierce__control_peer_is_ours(int fd);

#endif
