/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/holdings/worker_moves.h"

#include <string.h>

#include "base/assert.h"
#include "core/key/chunk_number.h"

/* Whether the text is that of the chunk with this number in the directory. */
static bool is_name_of(const char *name, const struct tierce__directory_key *key)
{
    uint8_t digest[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    if (tierce__key_text_parse(digest, &shard, hash, name, strlen(name)) < 0)
        return false;
    struct tierce__chunk_number number = tierce__chunk_number(digest, &shard, hash);
    return number.high == key->high && number.low == key->low;
}

size_t tierce__worker_move_check(struct tierce__worker_named *named, size_t count,
                                 const struct tierce__directory_key *keys, size_t key_count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        const struct tierce__worker_named *it = &named[i];
        bool ascends = kept == 0 || it->index > named[kept - 1].index;
        if (ascends && it->index < key_count && it->bytes > 0 &&
            is_name_of(it->name, &keys[it->index]))
            named[kept++] = *it;
    }
    TIERCE_DASSERT(kept <= key_count);
    return kept;
}

size_t tierce__worker_move_landed(struct tierce__directory_key *keys,
                                  const struct tierce__worker_order *order, const int32_t *landed,
                                  size_t count)
{
    size_t found = 0;
    for (size_t i = 0, at = 0; i < order->named_count && at < count; i++) {
        uint32_t index = order->named[i].index;
        while (at < count && (landed[at] < 0 || (uint32_t)landed[at] < index))
            at++;
        if (at < count && (uint32_t)landed[at] == index)
            keys[found++] = order->keys[index];
    }
    TIERCE_DASSERT(found <= order->count);
    return found;
}
