/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "store/coded/coded_parts.h"

/* Without what its codec needs, a chunk is stored without it. */
static bool find_choice(struct tierce__coded_form *form, struct tierce__codec_choice *choice,
                        const struct tierce__coded_making *making)
{
    if (form->codec == NULL || !form->codec->needs_order)
        return true;
    int64_t ns = tierce__namespaces_find(making->elements->namespaces, making->info->ns_digest);
    form->choice = choice;
    return ns >= 0 && tierce__coded_choice_of(choice, making->elements, (uint32_t)ns);
}

int64_t tierce__coded_make(uint8_t *dst, uint64_t room, const struct tierce__coded_making *making)
{
    struct tierce__seal_key key;
    struct tierce__codec_choice choice;
    struct tierce__coded_form form = {.codec = making->codec, .element = making->element};
    if (!find_choice(&form, &choice, making)) {
        form.codec = NULL;
        form.element = TIERCE__ELEMENT_RAW;
    }
    if (making->keys == NULL)
        return form.codec != NULL
                   ? tierce__coded_encode_as(dst, room, making->object, making->info, &form)
                   : 0;
    if (!tierce__coded_keys_newest(making->keys, &key, making->info->ns_digest))
        return TIERCE_E_VERSION;
    form.key = &key;
    int64_t length = tierce__coded_encode_as(dst, room, making->object, making->info, &form);
    tierce__seal_wipe(&key, sizeof(key));
    TIERCE_DASSERT(length != 0);
    return length;
}

void tierce__coded_count_made(struct tierce__coded_stats *stats,
                              const struct tierce__coded_making *making, uint64_t raw_bytes,
                              uint64_t length)
{
    stats->encrypted_chunks += making->keys != NULL;
    if (making->codec == NULL)
        return;
    if (length > raw_bytes) { /* encrypted without the codec */
        stats->raw_chunks[TIERCE__CODED_RAW_LONGER]++;
        return;
    }
    stats->encoded_chunks++;
    stats->lossy_chunks += !making->codec->is_exact;
    stats->encoded_raw_bytes += raw_bytes;
    stats->encoded_bytes += length;
}
