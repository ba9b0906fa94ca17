/* SPDX-License-Identifier: Apache-2.0 */
#include "router/snapshot.h"

#include "base/alloc.h"

#include <string.h>

#define VALUE_BYTES_MAX (64u << 20)

/* A map of small numbers; texts are skipped. */
static bool take_map(struct tierce__snapshot *s, struct tierce__msgpack m, uint32_t count)
{
    bool has_version = false, has_sequence = false;
    for (uint32_t i = 0; i < count; i++) {
        struct tierce__msgpack_item name = {0}, value = {0};
        struct tierce__msgpack at;
        if (tierce__msgpack_next(&m, &name) != TIERCE__MSGPACK_OK ||
            name.type != TIERCE__MSGPACK_TEXT)
            return false;
        at = m;
        if (tierce__msgpack_skip(&m) != TIERCE__MSGPACK_OK ||
            tierce__msgpack_next(&at, &value) != TIERCE__MSGPACK_OK)
            return false;
        struct tierce__text text = {(const char *)name.bytes, name.count};
        bool is_number = value.type == TIERCE__MSGPACK_UINT;
        if (text.length == 7 && memcmp(text.at, "version", 7) == 0)
            has_version = is_number && value.number == 1;
        if (!s->has_head && text.length == 8 && memcmp(text.at, "sequence", 8) == 0 && is_number) {
            has_sequence = value.number < UINT64_MAX;
            s->covered = value.number;
        }
        if (text.length == 3 && memcmp(text.at, "end", 3) == 0 && is_number) {
            s->has_end = s->has_head;
            s->promised = value.number;
        }
    }
    if (!s->has_head) {
        s->has_head = has_version && has_sequence;
        return s->has_head;
    }
    return s->has_end;
}

static void count_blocks(struct tierce__snapshot *s, const uint8_t *at, size_t bytes)
{
    struct tierce__kv_batch batch;
    struct tierce__kv_event event;
    if (!tierce__kv_batch_open(&batch, at, bytes))
        return;
    while (tierce__kv_batch_next(&batch, &event))
        s->got += event.type == TIERCE__KV_STORED ? event.hash_count : 0;
}

/* A complete value of the stream. */
static bool take_value(struct tierce__snapshot *s, const uint8_t *at, size_t bytes)
{
    struct tierce__msgpack m = {at, at + bytes};
    struct tierce__msgpack_item head = {0};
    (void)tierce__msgpack_next(&m, &head);
    if (s->has_end)
        return false;
    if (head.type == TIERCE__MSGPACK_MAP)
        return take_map(s, m, head.count);
    count_blocks(s, at, bytes);
    return s->has_head && tierce__contents_apply(&s->contents, at, bytes);
}

/* Takes the complete values. */
static bool take_values(struct tierce__snapshot *s)
{
    if (s->part_bytes == 0)
        return true;
    struct tierce__msgpack m = {s->part, s->part + s->part_bytes};
    bool is_good = true;
    while (is_good && m.at < m.end) {
        const uint8_t *start = m.at;
        enum tierce__msgpack_result result = tierce__msgpack_skip(&m);
        if (result == TIERCE__MSGPACK_SHORT)
            break;
        is_good = result == TIERCE__MSGPACK_OK && take_value(s, start, (size_t)(m.at - start));
    }
    s->part_bytes = (size_t)(m.end - m.at);
    memmove(s->part, m.at, s->part_bytes);
    /* A long value is not read again with each part of it. */
    s->try_at = s->part_bytes + s->part_bytes / 2;
    if (s->try_at > VALUE_BYTES_MAX)
        s->try_at = VALUE_BYTES_MAX;
    return is_good;
}

bool tierce__snapshot_add(struct tierce__snapshot *snapshot, const void *bytes, size_t count)
{
    struct tierce__snapshot *s = snapshot;
    if (count > VALUE_BYTES_MAX || s->part_bytes > VALUE_BYTES_MAX ||
        TIERCE__GROW(s->part, s->part_room, s->part_bytes + count, 65536) < 0)
        return false;
    if (count == 0)
        return true;
    memcpy(s->part + s->part_bytes, bytes, count);
    s->part_bytes += count;
    return s->part_bytes < s->try_at || take_values(s);
}

bool tierce__snapshot_end(struct tierce__snapshot *snapshot)
{
    return take_values(snapshot) && snapshot->has_head && snapshot->has_end &&
           snapshot->part_bytes == 0 && snapshot->promised == snapshot->got &&
           snapshot->contents.counts.left_out == 0;
}

void tierce__snapshot_clear(struct tierce__snapshot *snapshot)
{
    tierce__free(snapshot->part);
    snapshot->part = NULL;
    snapshot->part_bytes = snapshot->part_room = snapshot->try_at = 0;
    snapshot->has_head = snapshot->has_end = false;
    snapshot->got = 0;
    tierce__contents_clear(&snapshot->contents);
}

void tierce__snapshot_fini(struct tierce__snapshot *snapshot)
{
    tierce__contents_fini(&snapshot->contents);
    tierce__free(snapshot->part);
    *snapshot = (struct tierce__snapshot){0};
}
