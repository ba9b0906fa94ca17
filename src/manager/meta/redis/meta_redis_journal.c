/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A journal entry: a batch's changes to records, in a form that can be replayed
 * (docs/inside/format/meta.md). Numbers are little-endian:
 *
 *     u64 XXH3-64 (seed 0) of all behind it
 *     u32 puts, u32 deletes
 *     for each put: i64 key, and five times u32 length and as many bytes
 *     for each delete: i64 key
 */
#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "base/assert.h"
#include "base/bytes.h"
#include "manager/meta/redis/meta_redis_private.h"

enum { SUM_BYTES = 8, HEAD_BYTES = SUM_BYTES + 8, KEY_BYTES = 8, LENGTH_BYTES = 4 };
enum { PUT_BYTES_MIN = KEY_BYTES + TIERCE__REDIS_PUT_FIELDS * LENGTH_BYTES };

static int make_room(struct tierce__redis_redo *redo, struct tierce__arena *arena)
{
    TIERCE_DASSERT(redo->put_count <= redo->count);
    size_t texts = redo->put_count * TIERCE__REDIS_PUT_FIELDS;
    redo->keys = tierce__arena_calloc(arena, redo->count + 1, sizeof(*redo->keys));
    redo->texts = tierce__arena_calloc(arena, texts + 1, sizeof(char *));
    redo->bytes = tierce__arena_calloc(arena, texts + 1, sizeof(*redo->bytes));
    return redo->keys != NULL && redo->texts != NULL && redo->bytes != NULL ? 0 : -ENOMEM;
}

int tierce__redis_redo_make(struct tierce__redis_redo *out, struct tierce__redis_space *space,
                            const struct tierce__meta_batch *batch, struct tierce__arena *arena)
{
    struct tierce__redis_redo redo = {.put_count = batch->put_count,
                                      .count = batch->put_count + batch->delete_count};
    int rc = make_room(&redo, arena);
    if (rc < 0)
        return rc;
    const struct tierce__catalog *catalog =
        space->registry != NULL ? tierce__registry_acquire(space->registry) : NULL;
    struct tierce__resp_pipeline texts = {.arena = arena};
    for (size_t i = 0; texts.rc == 0 && i < batch->put_count; i++) {
        redo.keys[i] = batch->puts[i].key;
        tierce__redis_add_record(&texts, space, catalog, &batch->puts[i].record);
    }
    if (catalog != NULL)
        tierce__registry_release(space->registry, catalog);
    if (texts.rc < 0)
        return texts.rc;
    TIERCE_DASSERT(texts.word_count == redo.put_count * TIERCE__REDIS_PUT_FIELDS);
    redo.texts = texts.words;
    redo.bytes = texts.lengths;
    for (size_t i = 0; i < batch->delete_count; i++)
        redo.keys[batch->put_count + i] = batch->deletes[i];
    *out = redo;
    return 0;
}

int tierce__redis_redo_print(const struct tierce__redis_redo *redo, struct tierce__arena *arena,
                             const char **out, size_t *bytes)
{
    size_t texts = redo->put_count * TIERCE__REDIS_PUT_FIELDS, size = HEAD_BYTES;
    size += redo->count * KEY_BYTES;
    for (size_t i = 0; i < texts; i++) {
        if (redo->bytes[i] > UINT32_MAX)
            return TIERCE_E_LIMIT;
        size += LENGTH_BYTES + redo->bytes[i];
    }
    char *text = tierce__arena_alloc(arena, size);
    if (text == NULL)
        return -ENOMEM;
    char *at = text + HEAD_BYTES;
    tierce__store_le32(text + SUM_BYTES, (uint32_t)redo->put_count);
    tierce__store_le32(text + SUM_BYTES + 4, (uint32_t)(redo->count - redo->put_count));
    for (size_t i = 0; i < redo->count; i++) {
        tierce__store_le64(at, (uint64_t)redo->keys[i]);
        at += KEY_BYTES;
        for (size_t f = 0; i < redo->put_count && f < TIERCE__REDIS_PUT_FIELDS; f++) {
            size_t n = redo->bytes[i * TIERCE__REDIS_PUT_FIELDS + f];
            tierce__store_le32(at, (uint32_t)n);
            memcpy(at + LENGTH_BYTES, redo->texts[i * TIERCE__REDIS_PUT_FIELDS + f], n);
            at += LENGTH_BYTES + n;
        }
    }
    TIERCE_DASSERT(at == text + size);
    tierce__store_le64(text, XXH3_64bits(text + SUM_BYTES, size - SUM_BYTES));
    *out = text;
    *bytes = size;
    return 0;
}

/* Reads the fields of a put; false: they are missing. */
static bool parse_fields(struct tierce__redis_redo *redo, size_t put, const char **at,
                         const char *end)
{
    TIERCE_DASSERT(put < redo->put_count);
    for (size_t f = 0; f < TIERCE__REDIS_PUT_FIELDS; f++) {
        if (end - *at < LENGTH_BYTES)
            return false;
        uint32_t bytes = tierce__load_le32(*at);
        *at += LENGTH_BYTES;
        if ((size_t)(end - *at) < bytes)
            return false;
        redo->texts[put * TIERCE__REDIS_PUT_FIELDS + f] = *at;
        redo->bytes[put * TIERCE__REDIS_PUT_FIELDS + f] = bytes;
        *at += bytes;
    }
    return true;
}

int tierce__redis_redo_parse(struct tierce__redis_redo *out, struct tierce__arena *arena,
                             const char *text, size_t bytes)
{
    if (bytes < HEAD_BYTES ||
        tierce__load_le64(text) != XXH3_64bits(text + SUM_BYTES, bytes - SUM_BYTES))
        return TIERCE_E_FORMAT;
    const char *at = text + HEAD_BYTES, *end = text + bytes;
    struct tierce__redis_redo redo = {.put_count = tierce__load_le32(text + SUM_BYTES)};
    size_t deletes = tierce__load_le32(text + SUM_BYTES + 4);
    if (redo.put_count > (bytes - HEAD_BYTES) / PUT_BYTES_MIN ||
        deletes > (bytes - HEAD_BYTES) / KEY_BYTES)
        return TIERCE_E_FORMAT;
    redo.count = redo.put_count + deletes;
    int rc = make_room(&redo, arena);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < redo.count; i++) {
        if (end - at < KEY_BYTES)
            return TIERCE_E_FORMAT;
        redo.keys[i] = (int64_t)tierce__load_le64(at);
        at += KEY_BYTES;
        if (i < redo.put_count && !parse_fields(&redo, i, &at, end))
            return TIERCE_E_FORMAT;
    }
    if (at != end)
        return TIERCE_E_FORMAT;
    *out = redo;
    return 0;
}
