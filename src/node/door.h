/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_DOOR_H
#define TIERCE_NODE_DOOR_H

#include "node/connection.h"

/*
 * A port whose connections go to the loop that has the fewest. The first loop accepts; a connection
 * beyond a limit is closed at once.
 */

struct tierce__door;

/* Port 0: any, *port is filled in. Errors: negative errno, -ENOMEM; `why` in words. */
TIERCE_MUSTUSE int tierce__door_open(struct tierce__door **out, struct tierce__node *node,
                                     const struct tierce__protocol *protocol, const char *host,
                                     uint16_t *port, char why[256]);

/* Accepts no more. Not on a loop. NULL is accepted. */
void tierce__door_close(struct tierce__door *door);

#endif
