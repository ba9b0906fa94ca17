/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/locate/block_keys.h"
#include "base/assert.h"

#include <xxhash.h>

/* KVCM's formula with its own constants, since clients send these keys. h >> 32 is an arithmetic
 * shift, because KVCM's h is signed. */
static uint64_t add_token(uint64_t h, int64_t token)
{
    uint64_t high = (uint64_t)((int64_t)h >> 32);
    return h ^ ((uint64_t)token + 0x9e3779b97f4a7c15ULL + (h << 12) + high);
}

size_t tierce__block_keys(int64_t *keys, const int64_t *tokens, size_t count, size_t block_size)
{
    TIERCE_DASSERT(block_size > 0);
    size_t blocks = count / block_size;
    uint64_t h = 0;
    for (size_t b = 0; b < blocks; b++) {
        for (size_t t = 0; t < block_size; t++)
            h = add_token(h, tokens[b * block_size + t]);
        keys[b] = (int64_t)h;
    }
    return blocks;
}

int64_t tierce__text_key(const char *text, size_t bytes)
{
    return (int64_t)XXH3_64bits(text, bytes);
}
