/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CORE_CHUNK_NUMBER_H
#define TIERCE_CORE_CHUNK_NUMBER_H

#include <tierce/key.h>

/*
 * The key of a chunk in a manager's directory: XXH3-128 with seed 0 over 72 bytes, which are the
 * namespace's digest, the four numbers of the ranks in the order of struct tierce_shard (16 bits
 * each, little-endian), and the chunk's hash. Engines of all versions must agree on it.
 *
 * It is no proof of anything: the holder of a chunk compares the whole identity.
 */
struct tierce__chunk_number {
    uint64_t high, low;
};

struct tierce__chunk_number tierce__chunk_number(const uint8_t ns_digest[TIERCE_HASH_BYTES],
                                                 const struct tierce_shard *shard,
                                                 const uint8_t hash[TIERCE_HASH_BYTES]);

#endif
