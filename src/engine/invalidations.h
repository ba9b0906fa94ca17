/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_INVALIDATIONS_H
#define TIERCE_ENGINE_INVALIDATIONS_H

#include "store/remote/connector.h"

/*
 * Namespaces that a store has invalidated (connector.h): after a weight update, a manager of a
 * fleet. The engine drops the namespace from its own tiers, ends the puts that wait for stores, and
 * only then lets the store serve it again. So a chunk that was computed before is neither read from
 * a tier of this process nor stored by it later.
 *
 * Invalidations wait in a list for a thread of their own, because a clear may block for twice the
 * time limit of a load. One that fails (a disk that does not answer) is tried again a second later.
 * An engine without such a store has no such thread. A first generation of 1 invalidates nothing,
 * unless the disk may have another one; it is noted with the disk.
 */

struct tierce_engine;
struct tierce__key;
struct tierce__level;

/* Reads which generations the disk has: before the stores are opened, and after the disk. Errors:
 * -ENOMEM. */
TIERCE_MUSTUSE int tierce__invalidations_load(struct tierce_engine *engine);

/* A tierce__invalidated_fn; arg: the level. */
bool tierce__invalidations_note(void *level, const struct tierce__invalidated *what);

/* Starts the thread when all levels are there; and ends it, when engine->closing is set. Errors:
 * negative errno. */
TIERCE_MUSTUSE int tierce__invalidations_start(struct tierce_engine *engine);
void tierce__invalidations_stop(struct tierce_engine *engine);

/* Asks stores that can invalidate for the state of a namespace, in the background, if the engine
 * has chunks from before it started. key: any of the namespace and shard. */
void tierce__invalidations_ask(struct tierce_engine *engine, const struct tierce__key *key);

/* At the engine's end, when its stores are closed. */
void tierce__invalidations_fini(struct tierce_engine *engine);

#endif
