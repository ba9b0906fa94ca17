/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESP_SENTINEL_H
#define TIERCE_NET_RESP_SENTINEL_H

#include "net/redis/resp_uri.h"

/*
 * The master of a name, at the address that sentinels report now.
 *
 *     rc = tierce__resp_sentinel_open(sentinel, &client, why);
 *
 * Sentinels are queried in turn, beginning with the one that answered last; the named server counts
 * only if it reports itself as a master. (If the user may not call ROLE, only the sentinels' answer
 * counts.) No connection to a sentinel is kept.
 *
 * Thread: one at a time.
 */

struct tierce__resp_sentinel;

/* Of a URI with is_sentinel. [borrow] the URI for the call. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__resp_sentinel_create(struct tierce__resp_sentinel **out,
                                                const struct tierce__resp_uri *uri);
/* NULL is accepted. */
void tierce__resp_sentinel_close(struct tierce__resp_sentinel *sentinel);

/* Opens a client that is connected to the master. All sentinels together may take as long as one
 * attempt to connect, and the master as long again. Errors: as tierce__resp_open; TIERCE_E_DOWN: no
 * sentinel knows a master, or the server that they name is not a master; `why` in words. */
TIERCE_MUSTUSE int tierce__resp_sentinel_open(struct tierce__resp_sentinel *sentinel,
                                              struct tierce__resp **out,
                                              char why[TIERCE__RESP_WHY_BYTES]);

#endif
