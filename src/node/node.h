/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_H
#define TIERCE_NODE_H

#include "node/node_config.h"

/*
 * `tierce node`: an engine whose values clients of other protocols reach over the network.
 *
 *     rc = tierce__node_start(&node, &config, why);
 *     ...
 *     tierce__node_stop(node);
 */

struct tierce__node;

/* [borrow] config until stop. Errors, *out untouched, `why` in words: TIERCE_E_CONFIG, negative
 * errno (a port that is taken), -ENOMEM; the store folder's status if it cannot be used and
 * disk.optional is false. */
TIERCE_MUSTUSE int tierce__node_start(struct tierce__node **out,
                                      const struct tierce__node_config *config,
                                      char why[TIERCE_CONFIG_ERROR_BYTES]);

/* 0: there is none. */
struct tierce__node_ports {
    uint16_t resp, lm, http, pool;
};
void tierce__node_ports(const struct tierce__node *node, struct tierce__node_ports *out);

/* Writes a line for the log: version, tiers, sizes, chunks found, codec and encryption. */
#define TIERCE__NODE_TEXT_BYTES 1024u
void tierce__node_describe(const struct tierce__node *node, char text[TIERCE__NODE_TEXT_BYTES]);

/* Whether values of any name can be stored, found and removed; if not, `why` is the reason. Blocks
 * until a device or a store has answered, at most a third of the watchdog's time (net/notify.h), or
 * 10 s without a watchdog: then the probe has failed. Thread: any. */
#define TIERCE__NODE_WHY_BYTES 448u
bool tierce__node_is_ready(struct tierce__node *node, char why[TIERCE__NODE_WHY_BYTES]);

/* Whether the disk is in service; if not, `why` is the reason. True without a disk. Thread: any.
 * Does not block. */
bool tierce__node_has_disk(struct tierce__node *node, char why[TIERCE__NODE_WHY_BYTES]);

/* Reads tokens and certificates again, all of them or none: sessions whose token was removed are
 * rejected from their next command on, open connections keep their certificates. Errors, with `why`
 * in words and nothing changed: as start. Thread: one for start, reload and stop. */
TIERCE_MUSTUSE int tierce__node_reload(struct tierce__node *node, char why[256]);

/* Takes no new connection, closes those that have nothing under way, waits for the others at most
 * serve.drain, and ends. NULL is accepted. */
void tierce__node_stop(struct tierce__node *node);

#endif
