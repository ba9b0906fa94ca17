/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_FILE_LOCK_H
#define TIERCE_MANAGER_FILE_LOCK_H

#include <stdint.h>

#include <tierce/status.h>

/*
 * Locks a file, which is created if it is missing, for one holder among all processes of the host.
 * Returns a descriptor that holds the lock until it is closed, or until the process ends. Waits for
 * another holder for up to `wait_ms`. Errors: TIERCE_E_LOCKED: there is one; negative errno.
 * Thread: any. Blocks.
 */
TIERCE_MUSTUSE int tierce__file_lock(const char *path, uint32_t wait_ms);

#endif
