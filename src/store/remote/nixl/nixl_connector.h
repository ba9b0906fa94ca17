/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NIXL_CONNECTOR_H
#define TIERCE_NIXL_CONNECTOR_H

#include "store/remote/connector.h"

/*
 * nixl:///mnt/shared/tierce?library=/path/libnixl_capi.so: the store of file:// (file_connector.h),
 * whose objects NIXL's POSIX plug-in reads and writes. Processes with file:// and with nixl:// may
 * share a folder.
 *
 * Whether the library and the plug-in of such a URL, or of one of s3+nixl:// (nixl_objects.h), can
 * be used on this machine. Errors, with `why`
 * set: TIERCE_E_CONFIG, -ENOMEM. Thread: any; blocks on the file system.
 */
TIERCE_MUSTUSE int tierce__nixl_check(const char *url, char why[TIERCE__CONNECTOR_WHY_BYTES]);

#endif
