/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TEMPORARY_H
#define TIERCE_OPTIMIZER_TEMPORARY_H

/*
 * Opens a new unnamed file for reading and writing, which is deleted when it is closed: in `folder`
 * or, if that is NULL, in TMPDIR, or in /tmp. Returns the descriptor or a negative errno.
 */
int tierce__open_temporary(const char *folder);

/* The folder that NULL stands for. [borrow until the environment changes] */
const char *tierce__temporary_folder(void);

#endif
