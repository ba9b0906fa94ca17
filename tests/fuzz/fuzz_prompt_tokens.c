/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "engine/why/why_prompt.h"

#include <stdio.h>
#include <string.h>

/* Accepted tokens are written as numbers and parsed again: the same tokens. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[TIERCE__PROMPT_WHY_BYTES];
    int32_t *tokens, *again;
    size_t count, count_again, used = 0;
    if (size > 4096 || tierce__prompt_tokens(&tokens, &count, (const char *)data, size, why) < 0)
        return 0;
    char *text = tierce__alloc(12 * count + 1);
    TIERCE_ASSERT(text != NULL);
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, 12 * count + 1 - used, "%d ", (int)tokens[i]);
    TIERCE_ASSERT(tierce__prompt_tokens(&again, &count_again, text, used, why) == 0);
    TIERCE_ASSERT(count == count_again);
    TIERCE_ASSERT(count == 0 || memcmp(tokens, again, count * sizeof(*tokens)) == 0);
    tierce__free(text);
    tierce__free(tokens);
    tierce__free(again);
    return 0;
}
