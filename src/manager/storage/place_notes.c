/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "manager/storage/places.h"
#include "manager/storage/place_notes.h"

#include <errno.h>
#include <string.h>

uint32_t tierce__place_slots(uint64_t file)
{
    return (uint32_t)(file & ((1u << TIERCE__PLACE_SLOT_BITS) - 1)) + 1;
}

uint64_t tierce__place_counter(uint64_t file)
{
    return file >> TIERCE__PLACE_SLOT_BITS;
}

int tierce__place_file_note(struct tierce__meta_note *out, const struct tierce__place_file *file,
                            struct tierce__arena *arena)
{
    uint32_t slots = tierce__place_slots(file->number), used = 0;
    size_t bitmap = (slots + 7) / 8;
    for (uint32_t i = 0; i < slots; i++)
        used += file->used[i / 8] >> (i % 8) & 1;
    *out = (struct tierce__meta_note){.kind = TIERCE__NOTE_FILE, .number = file->number};
    if (!tierce__place_is_noted(used, slots))
        return 0;
    uint8_t *value = tierce__arena_alloc(arena, TIERCE__PLACE_NOTE_HEAD + bitmap);
    if (value == NULL)
        return -ENOMEM;
    value[0] = TIERCE__PLACE_NOTE_VERSION;
    tierce__store_le16(value + 1, file->storage);
    tierce__store_le16(value + 3, file->spec);
    tierce__store_le64(value + 5, file->bytes);
    memcpy(value + TIERCE__PLACE_NOTE_HEAD, file->used, bitmap);
    out->value = value;
    out->bytes = TIERCE__PLACE_NOTE_HEAD + bitmap;
    return 0;
}

int tierce__place_reserve_note(struct tierce__meta_note *out, uint64_t counter,
                               struct tierce__arena *arena)
{
    TIERCE_ASSERT(counter > 0 && counter <= TIERCE__PLACE_COUNTER_MAX);
    uint8_t *value = tierce__arena_alloc(arena, sizeof(uint64_t));
    if (value == NULL)
        return -ENOMEM;
    tierce__store_le64(value, counter);
    *out = (struct tierce__meta_note){.kind = TIERCE__NOTE_FILE,
                                      .number = TIERCE__PLACE_RESERVE_NOTE,
                                      .value = value,
                                      .bytes = sizeof(uint64_t)};
    return 0;
}
