/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_STANDARD_HASH_H
#define TIERCE_ROUTER_STANDARD_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/json/json.h"

/*
 * A prompt's blocks by their tokens alone, so that an answer does not depend on the hashes of an
 * engine. As Dynamo and Mooncake's conductor compute it: the local hash of a block is XXH3-64 with
 * a seed over its tokens, little-endian numbers of 32 bits. The standard hash of the first block is
 * its local hash; that of each next one is XXH3-64 over the one before and its local hash, both
 * little-endian.
 */

#define TIERCE__STANDARD_SEED 1337u /* Dynamo's */

/* Of a block whose predecessor has the hash `before`. NULL: it is the first one. */
uint64_t tierce__standard_hash(const uint64_t *before, const uint32_t *tokens, size_t count);

/* The same of a block with this local hash. */
uint64_t tierce__standard_next(uint64_t before, uint64_t local);

/* The first half of a directory's key, never 0: what else the tokens' KV depends on. */
uint64_t tierce__standard_scope(const char *model, struct tierce__text lora, uint32_t block_size);

/* The same for hashes of the engines. */
uint64_t tierce__engine_scope(const char *model);

#endif
