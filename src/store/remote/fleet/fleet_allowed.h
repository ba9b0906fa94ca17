/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_FLEET_ALLOWED_H
#define TIERCE_FLEET_ALLOWED_H

#include "store/remote/connector.h"
#include "store/remote/fleet/fleet_manager.h"

/*
 * Which storages managers may name to an engine: `storages` in a fleet URL, a list of folders and
 * hosts separated by commas. Without it they may name any.
 *
 *     /mnt/kv               this folder and folders below it; also Unix sockets there
 *     10.0.0.5:6379         this host and port, by the text that the manager uses
 *     store.example         this host, any port; amazonaws.com: buckets without an endpoint
 *     *.store.example       hosts below this domain
 *     [fd00::5]:6379        an IPv6 address; without a port the brackets are optional
 *
 * Hosts that an allowed server names are not checked: nodes of a Redis cluster, masters of
 * sentinels, segments of Mooncake. Thread: any.
 */

/* Errors: TIERCE_E_CONFIG, `why` in words. */
TIERCE_MUSTUSE int tierce__fleet_allowed_check(const char *allowed,
                                               char why[TIERCE__CONNECTOR_WHY_BYTES]);

/* Whether a connector of this URL may be opened. False: `why` names the folder or host that is not
 * allowed. */
bool tierce__fleet_allows(const char *allowed, const char *url, char why[TIERCE__FLEET_WHY_BYTES]);

#endif
