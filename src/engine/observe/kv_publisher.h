/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_KV_PUBLISHER_H
#define TIERCE_ENGINE_KV_PUBLISHER_H

#include <tierce/config.h>
#include <tierce/engine.h>

/*
 * Publishes which chunks the memory and the disk of an engine hold, as KV events
 * (docs/inside/format/kv-events.md), if kv_events.endpoint is set: all contents first, then the
 * changes, and all contents again if changes were lost.
 *
 * The engine never waits for it, and opens without waiting for the contents.
 *
 * Threads: one of its own, which sends the first contents and answers requests for replay, that of
 * its subscription, which sends changes, libzmq's, and one for snapshots.
 */

struct tierce__kv_publisher;

/* *out is NULL if the parameters ask for none. Errors: TIERCE_E_CONFIG, -ENOMEM, negative errno;
 * `why` in words, with the parameter. */
TIERCE_MUSTUSE int tierce__kv_publisher_start(struct tierce__kv_publisher **out,
                                              struct tierce_engine *engine,
                                              const struct tierce_config *config, char why[256]);

/* The engine's tiers still exist. NULL is accepted. */
void tierce__kv_publisher_stop(struct tierce__kv_publisher *publisher);

#endif
