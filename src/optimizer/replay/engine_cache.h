/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_ENGINE_CACHE_H
#define TIERCE_OPTIMIZER_ENGINE_CACHE_H

#include "optimizer/trace/recording.h"

/*
 * Makes a sealed recording that marks as internal the blocks that each instance's engine would have
 * held in its own LRU cache of `capacity` blocks (bytes if `in_bytes`): the leading cached blocks
 * of each lookup. This models an engine that frees the last block of a request first, as vLLM does.
 * Blocks keep their numbers; marks of the trace are replaced.
 *
 * Reads the recording once for each instance; 4 bytes a block and a request.
 * Errors, *out untouched: as of tierce__recording_create, _add and _seal; TIERCE_E_ARGUMENT
 * (capacity 0).
 */
TIERCE_MUSTUSE int tierce__engine_cache_mark(struct tierce__recording **out,
                                             const struct tierce__recording *recording,
                                             uint64_t capacity, bool in_bytes);

#endif
