/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key/chunk_number.h"

#include <string.h>
#include <xxhash.h>

#include "base/bytes.h"

struct tierce__chunk_number tierce__chunk_number(const uint8_t ns_digest[TIERCE_HASH_BYTES],
                                                 const struct tierce_shard *shard,
                                                 const uint8_t hash[TIERCE_HASH_BYTES])
{
    uint8_t bytes[2 * TIERCE_HASH_BYTES + 8];
    const uint16_t ranks[] = {shard->tp_rank, shard->tp_size, shard->pp_rank, shard->pp_size};
    memcpy(bytes, ns_digest, TIERCE_HASH_BYTES);
    for (size_t i = 0; i < 4; i++)
        tierce__store_le16(bytes + TIERCE_HASH_BYTES + 2 * i, ranks[i]);
    memcpy(bytes + TIERCE_HASH_BYTES + 8, hash, TIERCE_HASH_BYTES);
    XXH128_hash_t value = XXH3_128bits(bytes, sizeof(bytes));
    return (struct tierce__chunk_number){value.high64, value.low64};
}
