/* SPDX-License-Identifier: Apache-2.0 */
/* Notes of the Redis store: a hash for each kind. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "manager/meta/redis/meta_redis_private.h"

enum { NOTES = 64 /* of one command */ };

struct reading {
    const uint64_t *numbers;
    struct tierce__meta_note *notes; /* value NULL: there is no such note */
    size_t count;
    struct tierce__arena *arena;
    uint8_t kind;
};

static int take_values(void *arg, const struct tierce__resp_value *value)
{
    struct reading *reading = (struct reading *)arg;
    if (value->type != TIERCE__RESP_ARRAY || value->count != reading->count)
        return TIERCE_E_FORMAT;
    for (size_t i = 0; i < reading->count; i++) {
        const struct tierce__resp_value *item = &value->items[i];
        struct tierce__meta_note note = {.kind = reading->kind, .number = reading->numbers[i]};
        if (item->type == TIERCE__RESP_STRING) {
            note.bytes = item->bytes;
            note.value = tierce__arena_copy(reading->arena, item->text, item->bytes);
            if (note.value == NULL)
                return -ENOMEM;
        }
        reading->notes[i] = note;
    }
    return 0;
}

static int read_notes(struct tierce__redis_space *space, struct reading *reading)
{
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    tierce__redis_add_text(&command, "HMGET");
    tierce__redis_addf(&command, "%s%u", space->keys->notes, reading->kind);
    for (size_t i = 0; i < reading->count; i++)
        tierce__redis_addf(&command, "%016" PRIx64, reading->numbers[i]);
    int rc = tierce__redis_settle(space);
    if (rc == 0)
        rc = tierce__redis_ask(space->redis, &command, take_values, reading);
    tierce__arena_clear(&arena);
    return rc;
}

int tierce__redis_note(struct tierce__meta_space *base, uint8_t kind, uint64_t number,
                       struct tierce__arena *arena, const void **value, size_t *bytes)
{
    struct tierce__meta_note note = {0};
    struct reading reading = {
        .numbers = &number, .notes = &note, .count = 1, .arena = arena, .kind = kind};
    int rc = read_notes((struct tierce__redis_space *)base, &reading);
    if (rc == 0 && note.value == NULL)
        rc = -ENOENT;
    if (rc < 0)
        return rc;
    *value = note.value;
    *bytes = note.bytes;
    return 0;
}

struct listing {
    uint64_t *numbers; /* heap */
    size_t count;
};

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t *x = (const uint64_t *)a, *y = (const uint64_t *)b;
    return (*x > *y) - (*x < *y);
}

static int take_numbers(void *arg, const struct tierce__resp_value *value)
{
    struct listing *listing = (struct listing *)arg;
    listing->numbers = tierce__calloc(value->count, sizeof(*listing->numbers));
    if (listing->numbers == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < value->count; i++)
        if (tierce__redis_read_hex(&listing->numbers[listing->count], &value->items[i]))
            listing->count++;
    qsort(listing->numbers, listing->count, sizeof(*listing->numbers), compare_numbers);
    return 0;
}

static int list_numbers(struct tierce__redis_space *space, uint8_t kind, struct listing *listing)
{
    struct tierce__arena arena = {0};
    struct tierce__redis_command command = {.arena = &arena};
    tierce__redis_add_text(&command, "HKEYS");
    tierce__redis_addf(&command, "%s%u", space->keys->notes, kind);
    int rc = tierce__redis_settle(space);
    if (rc == 0)
        rc = tierce__redis_ask(space->redis, &command, take_numbers, listing);
    tierce__arena_clear(&arena);
    return rc;
}

int tierce__redis_notes(struct tierce__meta_space *base, uint8_t kind,
                        int (*each)(void *arg, const struct tierce__meta_note *note), void *arg)
{
    struct tierce__redis_space *space = (struct tierce__redis_space *)base;
    struct listing listing = {0};
    struct tierce__arena arena = {0};
    int rc = list_numbers(space, kind, &listing);
    for (size_t done = 0; rc == 0 && done < listing.count; done += NOTES) {
        struct tierce__meta_note notes[NOTES];
        size_t left = listing.count - done;
        struct reading reading = {.numbers = listing.numbers + done,
                                  .notes = notes,
                                  .count = left < NOTES ? left : NOTES,
                                  .arena = &arena,
                                  .kind = kind};
        tierce__arena_reset(&arena);
        rc = read_notes(space, &reading);
        for (size_t i = 0; rc == 0 && i < reading.count; i++)
            if (notes[i].value != NULL)
                rc = each(arg, &notes[i]);
    }
    tierce__arena_clear(&arena);
    tierce__free(listing.numbers);
    return rc;
}
