/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONTROLLER_MANAGER_H
#define TIERCE_MANAGER_CONTROLLER_MANAGER_H

#include "manager/manager_config.h"
#include "manager/manager_private.h"

/* LMCache's workers in a manager: opening and closing, by the parameters lmcache.*. All do nothing
 * if no port is set. Thread: the manager's, one at a time. */

/* Before the server. Errors, `why` in words or "": -ENOMEM, other negative errno. */
TIERCE_MUSTUSE int tierce__lmcache_open(struct tierce__manager *manager,
                                        const struct tierce__manager_config *config, char why[256]);
/* After the elector: binds the sockets. Errors as above. */
TIERCE_MUSTUSE int tierce__lmcache_start(struct tierce__manager *manager,
                                         const struct tierce__manager_config *config,
                                         char why[256]);
/* Before the server and the elector stop: ends the sockets and the orders. */
void tierce__lmcache_stop(struct tierce__manager *manager);
/* After the server has stopped, before the holdings. */
void tierce__lmcache_close(struct tierce__manager *manager);

#endif
