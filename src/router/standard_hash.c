/* SPDX-License-Identifier: Apache-2.0 */
#include "router/standard_hash.h"

#include <string.h>
#include <xxhash.h>

uint64_t tierce__standard_next(uint64_t before, uint64_t local)
{
    uint64_t pair[2] = {before, local};
    return XXH3_64bits_withSeed(pair, sizeof(pair), TIERCE__STANDARD_SEED);
}

uint64_t tierce__standard_hash(const uint64_t *before, const uint32_t *tokens, size_t count)
{
    uint64_t local = XXH3_64bits_withSeed(tokens, count * sizeof(*tokens), TIERCE__STANDARD_SEED);
    return before != NULL ? tierce__standard_next(*before, local) : local;
}

uint64_t tierce__standard_scope(const char *model, struct tierce__text lora, uint32_t block_size)
{
    uint64_t parts[3] = {XXH3_64bits(model, strlen(model)), XXH3_64bits(lora.at, lora.length),
                         block_size};
    return XXH3_64bits(parts, sizeof(parts)) | 1;
}

uint64_t tierce__engine_scope(const char *model)
{
    return (XXH3_64bits_withSeed(model, strlen(model), 1) & ~1ULL) | 2; /* even: no standard one */
}
