/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "core/key/key_text.h"

#include <string.h>

/* Whatever a parser accepts, its formatter writes again to the byte. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_own(const char *text, size_t size)
{
    uint8_t ns[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES];
    char again[TIERCE__KEY_TEXT_BYTES];
    struct tierce_shard shard;
    if (tierce__key_text_parse(ns, &shard, hash, text, size) < 0)
        return;
    int length = tierce__key_text_format(again, ns, &shard, hash);
    TIERCE_ASSERT(length >= 0 && (size_t)length == size);
    TIERCE_ASSERT(memcmp(again, text, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_own((const char *)data, size);
    return 0;
}
