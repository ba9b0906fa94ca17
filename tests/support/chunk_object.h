/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CHUNK_OBJECT_H
#define TIERCE_TESTS_CHUNK_OBJECT_H

#include "check_main.h"

#include "core/chunk/header.h"

#include <string.h>

/* Chunks as engines store them: sealed, with all sums. Equal keys and seeds give equal bytes. */

static inline struct tierce__geometry chunk_object_geometry(uint32_t cell_bytes)
{
    static _Thread_local uint32_t cells[2];
    cells[0] = cells[1] = cell_bytes;
    return (struct tierce__geometry){
        .layer_count = 2, .cell_bytes = cells, .block_tokens = 16, .block_count = 4};
}

/* The length of a chunk with such cells. */
static inline uint64_t chunk_object_bytes(uint32_t cell_bytes)
{
    struct tierce__extent extent;
    struct tierce__geometry geometry = chunk_object_geometry(cell_bytes);
    ck_assert_int_eq(tierce__chunk_extent(&extent, &geometry), 0);
    return extent.object_bytes;
}

static inline void chunk_object_fill(uint8_t *out, int64_t key, uint16_t rank, uint32_t cell_bytes,
                                     uint8_t seed)
{
    uint8_t hashes[4 * TIERCE_HASH_BYTES] = {seed};
    struct tierce__chunk_info info = {.shard = {rank, (uint16_t)(rank + 1), 0, 1},
                                      .algo = TIERCE_CHAIN_SHA256,
                                      .ns_digest = {7},
                                      .geometry = chunk_object_geometry(cell_bytes)};
    ck_assert_int_eq(tierce__chunk_extent(&info.extent, &info.geometry), 0);
    memcpy(info.hash, &key, sizeof(key));
    memcpy(hashes + 3 * TIERCE_HASH_BYTES, info.hash, TIERCE_HASH_BYTES);
    tierce__chunk_begin(out, &info, hashes);
    for (uint64_t i = 0; i < info.extent.payload_bytes; i++)
        out[info.extent.header_bytes + i] = (uint8_t)(seed + i * 7 + i / 251 + (uint64_t)key);
    tierce__chunk_sum_cells(out, &info.geometry);
    tierce__chunk_seal(out, info.extent.header_bytes);
}

#endif
