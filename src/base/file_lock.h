/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_FILE_LOCK_H
#define TIERCE_BASE_FILE_LOCK_H

#include <stdint.h>

#include <tierce/status.h>

/*
 * Locks on files, each for one holder among all processes of the host. A lock belongs to a
 * descriptor: it lasts until every copy of the descriptor is closed, or until the process ends.
 *
 * Thread: any. Blocks for up to `wait_ms`, and only while there is another holder.
 */

/* The two kinds do not exclude each other. */
enum tierce__file_lock_kind {
    TIERCE__FILE_LOCK_FLOCK,  /* of the manager's files */
    TIERCE__FILE_LOCK_RECORD, /* of a store folder (docs/inside/format/disk.md) */
};

/* Locks an open file. Errors: TIERCE_E_LOCKED: there is another holder; negative errno. */
TIERCE_MUSTUSE int tierce__file_lock_fd(int fd, enum tierce__file_lock_kind kind, uint32_t wait_ms);

/* Locks a file by flock. The file is created if it is missing. Returns a descriptor that holds the
 * lock. Errors: the same, and those of opening. */
TIERCE_MUSTUSE int tierce__file_lock(const char *path, uint32_t wait_ms);

#endif
