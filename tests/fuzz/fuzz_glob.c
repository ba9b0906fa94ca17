/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "node/resp/glob.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A pattern, a NUL, a text: reads nothing outside of both, and a text without signs of a pattern is
 * as itself and nothing else. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *copy_of(const uint8_t *bytes, size_t count)
{
    char *copy =
        calloc(1, count > 0 ? count : 1); /* of its own, so that a sanitizer sees its end */
    TIERCE_ASSERT(copy != NULL);
    if (count > 0)
        memcpy(copy, bytes, count);
    return copy;
}

static bool is_plain(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '*' || text[i] == '?' || text[i] == '[' || text[i] == '\\')
            return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size > 0 ? memchr(data, '\0', size) : NULL;
    if (nul == NULL || size > 4096)
        return 0;
    size_t pattern_bytes = (size_t)(nul - data), text_bytes = size - pattern_bytes - 1;
    char *pattern = copy_of(data, pattern_bytes), *text = copy_of(nul + 1, text_bytes);
    bool matches = tierce__glob_match(pattern, pattern_bytes, text, text_bytes);
    if (is_plain(pattern, pattern_bytes))
        TIERCE_ASSERT(matches ==
                      (pattern_bytes == text_bytes && memcmp(pattern, text, text_bytes) == 0));
    TIERCE_ASSERT(tierce__glob_match("*", 1, text, text_bytes));
    free(pattern);
    free(text);
    return 0;
}
