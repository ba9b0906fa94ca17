/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_REMOTES_H
#define TIERCE_ENGINE_REMOTES_H

#include <tierce/engine.h>

/*
 * The remote stores of remote.urls as the slowest tiers of an engine, in their order. An
 * unreachable store is not an error, because it may become available later; an invalid URL is.
 * Errors: TIERCE_E_CONFIG, TIERCE_E_UNSUPPORTED, `why` in words without credentials; -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__remotes_open(struct tierce_engine *engine,
                                        const struct tierce_config *config,
                                        char why[TIERCE_CONFIG_ERROR_BYTES]);

/* Whether one of them works on the pool from a process of its own, so that it must be shared. */
bool tierce__remotes_share_memory(const struct tierce_config *config);

#endif
