/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OPERATE_H
#define TIERCE_ENGINE_OPERATE_H

#include "engine/engine.h"

#include <tierce/operate.h>

/*
 * Modes, and clears against operations in progress.
 *
 * A clear begins a new era. A store or fetch that began in an earlier era no longer publishes, so
 * nothing returns after a clear. A clear waits for publications in progress. A chunk read from a
 * tier while a clear runs is not published either: the clear may not have reached that tier.
 *
 * Thread: any.
 */

static inline enum tierce_mode tierce__engine_mode(const struct tierce_engine *engine)
{
    return atomic_load_explicit(&engine->mode, memory_order_relaxed);
}

/* The value of a name, or -1. */
int tierce__mode_find(const char *name);

/* For an operation that begins now. */
uint64_t tierce__era_now(struct tierce_engine *engine);
/* For data that is read from a tier from now on, to be published in another tier. */
uint64_t tierce__era_of_read(struct tierce_engine *engine);

/* Whether an operation begun in `era` may be published; if so, end must follow the publication. */
TIERCE_MUSTUSE bool tierce__era_enter(struct tierce_engine *engine, uint64_t era);
/* For an operation that begins and publishes now. Returns the era to pass to leave. */
uint64_t tierce__era_enter_now(struct tierce_engine *engine);
void tierce__era_leave(struct tierce_engine *engine, uint64_t era);

/* tierce_engine_clear; of: a key of the namespace, or NULL. */
TIERCE_MUSTUSE int64_t tierce__engine_clear(struct tierce_engine *engine, uint32_t tiers,
                                            const struct tierce__key *of);
/* Clears a namespace from the engine's own tiers, durably, and ends its puts to remote stores,
 * whose chunks stay. */
TIERCE_MUSTUSE int64_t tierce__engine_clear_own(struct tierce_engine *engine,
                                                const struct tierce__key *of);
/* The same as tierce__engine_clear without an event in the log, as a part of a larger clear. */
TIERCE_MUSTUSE int64_t tierce__engine_clear_silently(struct tierce_engine *engine, uint32_t tiers,
                                                     const struct tierce__key *of);

#endif
