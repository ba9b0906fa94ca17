/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_TRUSTED_PATH_H
#define TIERCE_BASE_TRUSTED_PATH_H

#include <limits.h>

#include "base/text/url.h"

/*
 * Whether the code in a file may be run: the file and every folder above it must belong to root or
 * to the effective user, and no other user may have write permission (a folder with the sticky bit
 * is allowed). Symbolic links are resolved first; `real` is the result, and only that may be
 * opened. `what` begins the message: "plug-in".
 *
 * Errors, with `why` set: TIERCE_E_CONFIG. Thread: any; blocks on the file system.
 */
TIERCE_MUSTUSE int tierce__trusted_path(char real[PATH_MAX], const char *what, const char *path,
                                        char why[TIERCE__URL_WHY_BYTES]);

#endif
