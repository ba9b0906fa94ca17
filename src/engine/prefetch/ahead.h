/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_AHEAD_H
#define TIERCE_ENGINE_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/engine.h>
#include <tierce/key.h>

/*
 * Predictive prefetch (prefetch.ahead): the chunks of a conversation that have left memory are read
 * into it shortly before the next request is expected (returns.h). The engine's keeper reads them
 * in pieces, one conversation at a time. A piece begins only if
 *
 *     no load waits for a tier, and no prefetch of a request is reading,
 *     the bytes that were read stay within prefetch.ahead a second, times the weight of the source,
 *     chunks that were read and not used yet take at most a quarter of memory.
 *
 * Memory makes room by its policy, as for a load.
 *
 * Views whose chunks are used without those before them are ignored. NULL stands for an engine
 * without predictions. Thread: any, under no lock. Lock: AHEAD.
 */

struct tierce_engine;
struct tierce_view;
struct tierce__ahead;
struct tierce__keys;

/* bytes_per_s 0: *out is NULL. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__ahead_create(struct tierce__ahead **out, struct tierce_engine *engine,
                                        uint64_t bytes_per_s);
/* After all views were closed. */
void tierce__ahead_destroy(struct tierce__ahead *ahead);

/* A request looks up its chain. */
void tierce__ahead_look(struct tierce_view *view, const struct tierce_chain *chain,
                        const struct tierce__keys *keys, uint64_t session);

/* A request loads or stores. A load only continues conversations. */
void tierce__ahead_load(struct tierce_view *view, const struct tierce_chain *chain,
                        uint64_t session);
void tierce__ahead_store(struct tierce_view *view, const struct tierce_chain *chain,
                         const struct tierce__keys *keys, uint64_t session);

/* The hint of a session has changed: after returns_ms (0: not known), or never if `closed`. */
void tierce__ahead_hint(struct tierce_view *view, uint64_t session, bool closed,
                        uint64_t returns_ms);

/* Does what is due. Called by the keeper. */
void tierce__ahead_keep(struct tierce__ahead *ahead);

/* The view is being closed, and can no longer be borrowed. */
void tierce__ahead_leave(struct tierce_view *view);

/* Bytes per second that predictions may read now. */
uint64_t tierce__ahead_rate(struct tierce__ahead *ahead);

#endif
