/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_H
#define TIERCE_ROUTER_H

#include "router/router_config.h"

/*
 * A router index: publishers, their table, and the HTTP API of docs/inside/format/router-index.md.
 *
 * Thread: one, its owner.
 */

struct tierce__router;

/* [borrow until stop] config. Errors, `why` in words: TIERCE_E_CONFIG, -ENOMEM, negative errno. */
TIERCE_MUSTUSE int tierce__router_start(struct tierce__router **out,
                                        const struct tierce__router_config *config, char why[256]);
uint16_t tierce__router_port(const struct tierce__router *router);

/* Reads tokens and certificates again. Errors, `why` in words: as start; the previous ones stay. */
TIERCE_MUSTUSE int tierce__router_reload(struct tierce__router *router, char why[256]);

/* NULL is accepted. */
void tierce__router_stop(struct tierce__router *router);

#endif
