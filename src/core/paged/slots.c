/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paged/slots.h"

#include <limits.h>
#include <stdbool.h>

/* Whether `slots` are all of one block, from its start on, in order. */
static bool whole_block(const int64_t *slots, uint32_t block_tokens, uint32_t block_count)
{
    if (slots[0] < 0 || slots[0] % block_tokens != 0)
        return false;
    int64_t id = slots[0] / block_tokens;
    if (id >= block_count || id > INT32_MAX)
        return false;
    /* id and block_tokens are below 2^31 and 2^32, so the sum stays below 2^63. */
    for (uint32_t i = 1; i < block_tokens; i++)
        if (slots[i] != slots[0] + i)
            return false;
    return true;
}

int tierce__slots_to_blocks(int32_t *ids, const int64_t *slots, size_t n_tokens,
                            uint32_t block_tokens, uint32_t block_count)
{
    if (block_tokens == 0 || n_tokens / block_tokens > INT_MAX)
        return TIERCE_E_ARGUMENT;
    size_t blocks = n_tokens / block_tokens;
    if (blocks > 0 && (ids == NULL || slots == NULL))
        return TIERCE_E_ARGUMENT;
    for (size_t b = 0; b < blocks; b++)
        if (!whole_block(slots + b * block_tokens, block_tokens, block_count))
            return TIERCE_E_ARGUMENT;
    for (size_t b = 0; b < blocks; b++)
        ids[b] = (int32_t)(slots[b * block_tokens] / block_tokens);
    return (int)blocks;
}

int tierce__blocks_to_slots(int64_t *slots, const int32_t *ids, size_t n_blocks,
                            uint32_t block_tokens, uint32_t block_count)
{
    if (block_tokens == 0 || n_blocks > SIZE_MAX / sizeof(*slots) / block_tokens)
        return TIERCE_E_ARGUMENT;
    if (n_blocks > 0 && (ids == NULL || slots == NULL))
        return TIERCE_E_ARGUMENT;
    for (size_t b = 0; b < n_blocks; b++)
        if (ids[b] < 0 || (uint32_t)ids[b] >= block_count)
            return TIERCE_E_ARGUMENT;
    for (size_t b = 0; b < n_blocks; b++)
        for (uint32_t i = 0; i < block_tokens; i++)
            slots[b * block_tokens + i] = (int64_t)ids[b] * block_tokens + i;
    return 0;
}
