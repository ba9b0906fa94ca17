/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NIXL_FILES_H
#define TIERCE_NIXL_FILES_H

#include "base/vfs/vfs.h"
#include "store/remote/nixl/nixl_agents.h"

/*
 * Files whose blocking reads and writes of registered memory go through NIXL. All else (names,
 * folders, syncs, other memory, submitted transfers) is plain. NIXL gives no reason for a failed
 * transfer, so such a transfer is repeated plainly, and its result counts; the failure is logged
 * ("nixl_failed").
 *
 * Thread: as vfs.h.
 */

/* [transfer] agents, on an error too. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__nixl_files_create(struct tierce__vfs **out,
                                             struct tierce__nixl_agents *agents);

#endif
