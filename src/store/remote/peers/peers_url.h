/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PEERS_URL_H
#define TIERCE_PEERS_URL_H

#include "base/text/url.h"
#include "store/remote/connector.h"

#define TIERCE__PEERS_GROUP_BYTES 128u

/* The managers of "peers://..." as those of "fleet://...", and the group. Errors, with `why`:
 * TIERCE_E_CONFIG, -ENOMEM; the URL is then to be cleared, too. */
TIERCE_MUSTUSE int tierce__peers_url(struct tierce__url *managers,
                                     char group[TIERCE__PEERS_GROUP_BYTES], const char *text,
                                     char why[TIERCE__CONNECTOR_WHY_BYTES]);

#endif
