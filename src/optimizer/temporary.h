/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_TEMPORARY_H
#define TIERCE_OPTIMIZER_TEMPORARY_H

/*
 * Opens a new file that nobody else can open and that is gone when it is closed, for reading and
 * writing: in `folder`, or if that is NULL in TMPDIR, or in /tmp. Returns the descriptor, or a
 * negative errno.
 */
int tierce__open_temporary(const char *folder);

/* The folder that it takes if it is given NULL. [borrow until the environment changes] */
const char *tierce__temporary_folder(void);

#endif
