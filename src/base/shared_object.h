/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_SHARED_OBJECT_H
#define TIERCE_BASE_SHARED_OBJECT_H

#include "base/text/url.h"

/*
 * Loads the shared object at an absolute path. The file and every folder above it must belong to
 * root or to the effective user, and no other user may have write permission (a folder with the
 * sticky bit is allowed). The caller ends it with dlclose. `what` begins the message: "plug-in".
 *
 * Errors, with `why` set: TIERCE_E_CONFIG. Thread: any; blocks on the file system.
 */
TIERCE_MUSTUSE int tierce__shared_object_open(void **object, const char *what, const char *path,
                                              char why[TIERCE__URL_WHY_BYTES]);

#endif
