/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONTROL_SOCKET_H
#define TIERCE_CONTROL_SOCKET_H

#include <sys/socket.h>

#include "control/control.h"

/* The Unix socket of a process: where it lies, whose it is, and who may talk to it. */

/*
 * Listens on `path` with mode 0600. A socket there that nobody answers on is replaced. The fd is
 * the caller's. Errors: as tierce__control_start's.
 */
TIERCE_MUSTUSE int tierce__control_listen(int *fd, const char *path, char why[256]);

/* A free name in tierce__control_folder, which is made 0700 and must be this user's alone. */
TIERCE_MUSTUSE int tierce__control_auto_path(char path[TIERCE__CONTROL_PATH_BYTES], char why[256]);

/* The process at the other end, its user and its group, by the kernel's word; false: it cannot be
 * told. */
bool tierce__control_peer(int fd, struct ucred *out);

/* Whether that is a process of this user or of root. */
bool tierce__control_peer_is_ours(int fd);

#endif
