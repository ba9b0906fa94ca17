/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NIXL_VERSION_H
#define TIERCE_NIXL_VERSION_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TIERCE__NIXL_VERSION       "1.5.1" /* the only one that is used */
#define TIERCE__NIXL_VERSION_BYTES 32u

/*
 * The version of NIXL whose libraries are loaded from paths that begin with `folder`; "" if it is
 * not known. If there are several, one that is not TIERCE__NIXL_VERSION. No function of NIXL
 * returns it; one of its libraries contains it as a text. Thread: any.
 */
void tierce__nixl_loaded_version(char version[TIERCE__NIXL_VERSION_BYTES], const char *folder,
                                 size_t folder_bytes);

#ifdef __cplusplus
}
#endif

#endif
