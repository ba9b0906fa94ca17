/* SPDX-License-Identifier: Apache-2.0 */
/* Notes of the Redis store: a hash for each kind. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "manager/meta/redis/meta_redis_private.h"

enum { NOTES = 64 /* of one command */ };

/* Copies notes into the arena; the value is NULL if there is no such note. */
static int read_notes(struct tierce__redis_space *space, uint8_t kind, const uint64_t *numbers,
                      size_t count, struct tierce__meta_note *notes, struct tierce__arena *arena)
{
    struct tierce__resp_pipeline batch;
    TIERCE_DASSERT(count > 0);
    TIERCE_DASSERT(count <= NOTES && kind < TIERCE__NOTE_KINDS);
    tierce__resp_pipeline_begin(&batch, space->redis->pool);
    TIERCE__RESP_COMMAND(&batch, "HMGET");
    tierce__resp_pipeline_addf(&batch, "%s%u", space->keys->notes, kind);
    for (size_t i = 0; i < count; i++)
        tierce__resp_pipeline_addf(&batch, "%016" PRIx64, numbers[i]);
    int rc = tierce__redis_read(space, &batch);
    if (rc == 0 && (batch.values[0].type != TIERCE__RESP_ARRAY || batch.values[0].count != count))
        rc = TIERCE_E_FORMAT;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct tierce__resp_value *item = &batch.values[0].items[i];
        notes[i] = (struct tierce__meta_note){.kind = kind, .number = numbers[i]};
        if (item->type != TIERCE__RESP_STRING)
            continue;
        notes[i].bytes = item->bytes;
        notes[i].value = tierce__arena_copy(arena, item->text, item->bytes);
        rc = notes[i].value != NULL ? 0 : -ENOMEM;
    }
    tierce__resp_pipeline_end(&batch);
    return rc;
}

int tierce__redis_note(struct tierce__meta_space *base, uint8_t kind, uint64_t number,
                       struct tierce__arena *arena, const void **value, size_t *bytes)
{
    struct tierce__meta_note note = {0};
    int rc = read_notes((struct tierce__redis_space *)base, kind, &number, 1, &note, arena);
    if (rc == 0 && note.value == NULL)
        rc = -ENOENT;
    if (rc < 0)
        return rc;
    *value = note.value;
    *bytes = note.bytes;
    return 0;
}

static int compare_numbers(const void *a, const void *b)
{
    const uint64_t *x = (const uint64_t *)a, *y = (const uint64_t *)b;
    return (*x > *y) - (*x < *y);
}

/* The numbers of all notes of a kind, in order; [transfer] *out, also on failure. */
static int list_numbers(struct tierce__redis_space *space, uint8_t kind, uint64_t **out,
                        size_t *count)
{
    TIERCE_DASSERT(*count == 0);
    struct tierce__resp_pipeline batch;
    tierce__resp_pipeline_begin(&batch, space->redis->pool);
    TIERCE__RESP_COMMAND(&batch, "HKEYS");
    tierce__resp_pipeline_addf(&batch, "%s%u", space->keys->notes, kind);
    int rc = tierce__redis_read(space, &batch);
    if (rc == 0) {
        const struct tierce__resp_value *value = &batch.values[0];
        *out = tierce__calloc(value->count, sizeof(**out));
        for (size_t i = 0; *out != NULL && i < value->count; i++)
            *count += tierce__redis_read_hex(&(*out)[*count], &value->items[i]);
        rc = *out != NULL ? 0 : -ENOMEM;
    }
    tierce__resp_pipeline_end(&batch);
    if (rc == 0)
        qsort(*out, *count, sizeof(**out), compare_numbers);
    return rc;
}

int tierce__redis_notes(struct tierce__meta_space *base, uint8_t kind,
                        int (*each)(void *arg, const struct tierce__meta_note *note), void *arg)
{
    struct tierce__redis_space *space = (struct tierce__redis_space *)base;
    uint64_t *numbers = NULL;
    size_t count = 0;
    struct tierce__arena arena = {0};
    int rc = list_numbers(space, kind, &numbers, &count);
    for (size_t done = 0; rc == 0 && done < count; done += NOTES) {
        struct tierce__meta_note notes[NOTES];
        size_t n = count - done < NOTES ? count - done : NOTES;
        tierce__arena_reset(&arena);
        rc = read_notes(space, kind, numbers + done, n, notes, &arena);
        for (size_t i = 0; rc == 0 && i < n; i++)
            if (notes[i].value != NULL)
                rc = each(arg, &notes[i]);
    }
    tierce__arena_clear(&arena);
    tierce__free(numbers);
    return rc;
}
