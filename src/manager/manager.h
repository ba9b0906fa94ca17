/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_H
#define TIERCE_MANAGER_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * A manager: registry, locator, reclaimer, elector and servers, from one configuration.
 *
 *     rc = tierce__manager_start(&manager, &config, why);
 *     ... until a signal
 *     tierce__manager_stop(manager);
 *
 * It listens before it leads: calls that need a leader are answered SERVICE_NOT_READY while the
 * index is being loaded, SERVER_NOT_LEADER when another manager leads.
 *
 * Thread: one for start, reload and stop.
 */

struct tierce__manager;
struct tierce__manager_config; /* manager_config.h */

/* [borrow] config for the call. Errors, `why` in words: TIERCE_E_CONFIG, negative errno. */
TIERCE_MUSTUSE int tierce__manager_start(struct tierce__manager **out,
                                         const struct tierce__manager_config *config,
                                         char why[256]);

/* Reads the tokens, certificates, keys and CAs of the start configuration again, and
 * applies quota_groups of this configuration. If any of them is invalid, nothing changes. Errors as
 * start. */
TIERCE_MUSTUSE int tierce__manager_reload(struct tierce__manager *manager,
                                          const struct tierce__manager_config *config,
                                          char why[256]);

/* Drains for the configured time, releases the lease and destroys the manager. */
void tierce__manager_stop(struct tierce__manager *manager);

/* Whether it is known if the manager leads. `leader` = "" if it leads, or the name of the manager
 * that does. */
bool tierce__manager_knows_leader(const struct tierce__manager *manager, char leader[128]);

/* The ports that the manager listens on; useful if the configuration says 0. */
struct tierce__manager_ports {
    uint16_t meta_grpc, meta_http, admin_grpc, admin_http, debug_http; /* 0: not open */
};
void tierce__manager_ports(const struct tierce__manager *manager,
                           struct tierce__manager_ports *out);

#endif
