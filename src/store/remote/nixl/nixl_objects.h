/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NIXL_OBJECTS_H
#define TIERCE_NIXL_OBJECTS_H

#include "store/remote/connector_private.h"

/*
 * s3+nixl://bucket/prefix?library=/path/libnixl_capi.so: the store of s3://, whose objects NIXL's
 * OBJ plug-in reads and writes. Processes with s3:// and with s3+nixl:// may share a bucket.
 *
 *     GET, PUT of registered memory ─► links ─► NIXL ─► the server
 *       └─ if that failed ─┐
 *     all else ────────────┴─► the connector of s3:// ─► the server
 *
 * The plug-in cannot delete or list, and returns one number for all failures. So a GET or PUT that
 * failed is repeated by the connector of s3://, whose answer counts: a missing object is a miss,
 * and the reason of a failure is known. The plug-in also reports success for a read beyond the end
 * of an object; such a read counts as failed. NIXL cannot end a transfer: while one is in progress
 * after its deadline, the connector of s3:// does all requests.
 */

#define TIERCE__NIXL_OBJECTS_SCHEME "s3+nixl"

/* Whether the library and the plug-in of such a URL can be used on this machine. Errors:
 * TIERCE_E_CONFIG, with `why` set; -ENOMEM, with `why` unchanged. Thread: any; blocks on the file
 * system. */
TIERCE_MUSTUSE int tierce__nixl_objects_check(const struct tierce__url *url,
                                              char why[TIERCE__CONNECTOR_WHY_BYTES]);

#endif
