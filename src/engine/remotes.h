/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_REMOTES_H
#define TIERCE_ENGINE_REMOTES_H

#include <tierce/engine.h>

#define TIERCE__REMOTES_MAX 6u /* URLs of remote.urls */

/*
 * The remote stores of remote.urls as the slowest tiers of an engine, in their order. An
 * unreachable store is not an error, because it may become available later; an invalid URL is.
 * Errors: TIERCE_E_CONFIG, TIERCE_E_UNSUPPORTED, `why` in words without credentials; -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__remotes_open(struct tierce_engine *engine,
                                        const struct tierce_config *config,
                                        char why[TIERCE_CONFIG_ERROR_BYTES]);

/* Removes the parameters that every URL accepts (read_only, codec) from a URL. The others
 * are the connector's. */
void tierce__remotes_drop_params(char *url);

/* Whether the client of a store runs in a separate process, so that the pool must be shared. */
bool tierce__remotes_share_memory(const struct tierce_config *config);

#endif
