/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_SHARED_H
#define TIERCE_ENGINE_SHARED_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/engine.h>

struct tierce__key;

/* The parts of an engine that are needed to lend its memory to other processes. Thread: any. */

/* The memory that other processes can map. */
struct tierce__engine_memory {
    int fd; /* [borrow as long as the engine] -1: the pool is its own (memory.shared) */
    const uint8_t *base;
    uint64_t bytes;
};
void tierce__engine_memory(const struct tierce_engine *engine, struct tierce__engine_memory *out);

/* 1u << enum tierce_origin of each of its tiers. */
uint32_t tierce__engine_tiers(const struct tierce_engine *engine);

/* [borrow as long as the engine] Why disk.path could not be used at open: the file, unless it is
 * the folder, the reason and the remedy. "" if it could, or if there is none. */
const char *tierce__engine_disk_error(const struct tierce_engine *engine);

/* Whether two views of an engine are of one namespace and shard. */
bool tierce__view_is_same(const struct tierce_view *a, const struct tierce_view *b);

/* Whether a chunk of this key is of the view's namespace and shard. */
bool tierce__view_has(const struct tierce_view *view, const struct tierce__key *key);

/* Whether a session of the view has pins now. */
bool tierce__view_has_pins(const struct tierce_view *view, uint64_t session);

/* Tokens of a block, and the algorithm of a chain of the view. */
uint32_t tierce__view_block_tokens(const struct tierce_view *view);
enum tierce_chain_algo tierce__view_algo(const struct tierce_view *view);

#endif
