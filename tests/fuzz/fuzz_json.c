/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "json_oracle.h"

#include <stdint.h>

/* json-c accepts every text that the pull reader accepts, with the same values. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[2048 + TIERCE__JSON_SLACK];
    if (size > 2048)
        return 0;
    memcpy(text, data, size);
    memset(text + size, '\n', TIERCE__JSON_SLACK);
    if (oracle_accepts(text, size))
        TIERCE_ASSERT(oracle_agrees(text, size));
    return 0;
}
