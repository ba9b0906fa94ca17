/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_STARTUP_H
#define TIERCE_MANAGER_STARTUP_H

#include <tierce/status.h>

/*
 * The built-in startup configuration, used if the registry is empty and startup.file is not set:
 * one file storage below the state folder, and one instance group.
 *
 * Thread: any.
 */

/* Finds the state folder: the first folder of $STATE_DIRECTORY (set by systemd), else
 * $XDG_STATE_HOME/tierce/manager, else $HOME/.local/state/tierce/manager. Relative values are
 * ignored. Heap; *out = NULL: no variable is set. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__state_folder(char **out, char *const *env);

/* Creates a folder of mode 0700 and its missing parents. Errors: negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__state_folder_make(const char *path);

#define TIERCE__STARTUP_STORAGE "nfs_01"

/* Makes KVCM's startup JSON with a storage below the state folder. Heap; NULL: no memory. */
char *tierce__startup_builtin(const char *state_folder);

#endif
