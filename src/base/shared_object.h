/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_SHARED_OBJECT_H
#define TIERCE_BASE_SHARED_OBJECT_H

#include "base/text/url.h"

/*
 * Loads the shared object at an absolute path, whose file must be trusted (base/trusted_path.h).
 * The caller ends it with dlclose. `what` begins the message: "plug-in".
 *
 * Errors, with `why` set: TIERCE_E_CONFIG. Thread: any; blocks on the file system.
 */
TIERCE_MUSTUSE int tierce__shared_object_open(void **object, const char *what, const char *path,
                                              char why[TIERCE__URL_WHY_BYTES]);

#endif
