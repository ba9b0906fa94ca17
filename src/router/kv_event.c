/* SPDX-License-Identifier: Apache-2.0 */
#include "router/kv_event.h"

#include "base/assert.h"

#include <endian.h>
#include <string.h>

/* The batch was checked as a whole, so no item ends early. */
static struct tierce__msgpack_item take(struct tierce__msgpack *m)
{
    struct tierce__msgpack_item item = {.type = TIERCE__MSGPACK_NIL};
    (void)tierce__msgpack_next(m, &item);
    return item;
}

/* The next item; everything in it is skipped. */
static struct tierce__msgpack_item take_whole(struct tierce__msgpack *m)
{
    struct tierce__msgpack start = *m;
    (void)tierce__msgpack_skip(m);
    return take(&start);
}

/* Where an item ends. */
__attribute__((unused)) static const uint8_t *end_of(struct tierce__msgpack m)
{
    (void)tierce__msgpack_skip(&m);
    return m.at;
}

static bool is_text(struct tierce__text text, const char *word)
{
    return text.length == strlen(word) && memcmp(text.at, word, text.length) == 0;
}

static struct tierce__text text_of(const struct tierce__msgpack_item *item)
{
    if (item->type != TIERCE__MSGPACK_TEXT)
        return (struct tierce__text){"", 0};
    return (struct tierce__text){(const char *)item->bytes, item->count};
}

bool tierce__kv_take_hash(struct tierce__msgpack *m, uint64_t *out)
{
    if (m->end - m->at > 8 && *m->at == 0xcf) { /* as nearly all are; nothing else is of 64 bits */
        uint64_t number;
        memcpy(&number, m->at + 1, sizeof(number));
        *out = be64toh(number);
        m->at += 1 + sizeof(number);
        return true;
    }
    struct tierce__msgpack_item item = take(m);
    if (item.type == TIERCE__MSGPACK_UINT || item.type == TIERCE__MSGPACK_INT) {
        *out = item.number;
        return true;
    }
    if (item.type != TIERCE__MSGPACK_BYTES || item.count < 8)
        return false;
    *out = 0;
    for (uint32_t i = item.count - 8; i < item.count; i++)
        *out = *out << 8 | item.bytes[i];
    return true;
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* Checks that require the whole event. */
struct fields {
    struct tierce__text type, medium, kind, locality;
    struct tierce__msgpack keys; /* extra_keys */
    uint32_t key_count;
    bool has_hashes, is_owned, has_lora_id, is_wrong;
};

static void take_hashes(struct tierce__msgpack *m, struct tierce__kv_event *event, struct fields *f)
{
    struct tierce__msgpack start = *m;
    struct tierce__msgpack_item array = take(&start);
    uint64_t hash;
    if (array.type != TIERCE__MSGPACK_ARRAY) {
        f->is_wrong = true;
        (void)tierce__msgpack_skip(m);
        return;
    }
    event->hashes = start;
    event->hash_count = array.count;
    f->has_hashes = true;
    for (uint32_t i = 0; i < array.count && !f->is_wrong; i++)
        f->is_wrong = !tierce__kv_take_hash(&start, &hash);
    if (f->is_wrong)
        (void)tierce__msgpack_skip(m);
    else
        *m = start;
}

static void take_tokens(struct tierce__msgpack *m, struct tierce__kv_event *event, struct fields *f)
{
    struct tierce__msgpack start = *m;
    struct tierce__msgpack_item array = take(&start);
    if (array.type == TIERCE__MSGPACK_NIL) {
        *m = start;
        return;
    }
    f->is_wrong |= array.type != TIERCE__MSGPACK_ARRAY;
    event->tokens = start;
    event->token_count = f->is_wrong ? 0 : array.count;
    f->is_wrong |= tierce__msgpack_u32s(&start, NULL, event->token_count) != event->token_count;
    if (f->is_wrong)
        (void)tierce__msgpack_skip(m);
    else
        *m = start;
}

static void take_parent(struct tierce__msgpack *m, struct tierce__kv_event *event, struct fields *f)
{
    struct tierce__msgpack start = *m;
    if (take(&start).type == TIERCE__MSGPACK_NIL) {
        *m = start;
        return;
    }
    start = *m;
    event->has_parent = tierce__kv_take_hash(&start, &event->parent);
    (void)tierce__msgpack_skip(m);
    f->is_wrong |= !event->has_parent;
}

static uint32_t take_count(struct tierce__msgpack *m, struct fields *f)
{
    struct tierce__msgpack_item item = take_whole(m);
    bool is_count = item.type == TIERCE__MSGPACK_UINT && item.number <= UINT32_MAX;
    f->is_wrong |= !is_count && item.type != TIERCE__MSGPACK_NIL;
    return is_count ? (uint32_t)item.number : 0;
}

static void take_keys(struct tierce__msgpack *m, struct fields *f)
{
    struct tierce__msgpack start = *m;
    struct tierce__msgpack_item array = take(&start);
    (void)tierce__msgpack_skip(m);
    f->is_wrong |= array.type != TIERCE__MSGPACK_ARRAY && array.type != TIERCE__MSGPACK_NIL;
    f->keys = start;
    f->key_count = array.type == TIERCE__MSGPACK_ARRAY ? array.count : 0;
}

/* [tp_rank, tp_size, pp_rank, pp_size] */
static void take_shard(struct tierce__msgpack *m, struct tierce__kv_event *event, struct fields *f)
{
    struct tierce__msgpack start = *m;
    struct tierce__msgpack_item array = take(&start);
    (void)tierce__msgpack_skip(m);
    f->is_wrong |= array.type != TIERCE__MSGPACK_ARRAY || array.count != 4;
    for (uint32_t i = 0; !f->is_wrong && i < array.count; i++) {
        struct tierce__msgpack_item item = take_whole(&start);
        event->is_other_shard |= i % 2 == 0 && item.number != 0;
    }
}

static void take_field(struct tierce__msgpack *m, struct tierce__text name,
                       struct tierce__kv_event *event, struct fields *f)
{
    struct tierce__msgpack_item item;
    if (is_text(name, "block_hashes")) {
        take_hashes(m, event, f);
    } else if (is_text(name, "token_ids")) {
        take_tokens(m, event, f);
    } else if (is_text(name, "parent_block_hash")) {
        take_parent(m, event, f);
    } else if (is_text(name, "block_size")) {
        event->block_size = take_count(m, f);
    } else if (is_text(name, "group_idx")) {
        event->group = take_count(m, f);
    } else if (is_text(name, "extra_keys")) {
        take_keys(m, f);
    } else if (is_text(name, "shard")) {
        take_shard(m, event, f);
    } else {
        item = take_whole(m);
        if (is_text(name, "type"))
            f->type = text_of(&item);
        else if (is_text(name, "medium"))
            f->medium = text_of(&item);
        else if (is_text(name, "kv_cache_spec_kind"))
            f->kind = text_of(&item);
        else if (is_text(name, "lora_name"))
            event->lora = text_of(&item);
        else if (is_text(name, "lora_id"))
            f->has_lora_id = item.type != TIERCE__MSGPACK_NIL;
        else if (is_text(name, "locality"))
            f->locality = text_of(&item);
        else if (is_text(name, "ownership"))
            f->is_owned = item.type != TIERCE__MSGPACK_NIL;
        else if (is_text(name, "namespace"))
            event->space = item.type == TIERCE__MSGPACK_UINT ? item.number : 0;
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

/* The fields of arrays, in their order. */
static const char *const stored_fields[] = {
    "block_hashes", "parent_block_hash", "token_ids",  "block_size", "lora_id",
    "medium",       "lora_name",         "extra_keys", "group_idx",  "kv_cache_spec_kind"};
static const char *const removed_fields[] = {"block_hashes", "medium", "group_idx"};

static struct tierce__text field_at(struct tierce__text type, uint32_t index)
{
    const char *name = "";
    if (is_text(type, "BlockStored") && index < sizeof(stored_fields) / sizeof(*stored_fields))
        name = stored_fields[index];
    else if (is_text(type, "BlockRemoved") &&
             index < sizeof(removed_fields) / sizeof(*removed_fields))
        name = removed_fields[index];
    return (struct tierce__text){name, strlen(name)};
}

static enum tierce__kv_medium medium_of(const struct fields *f)
{
    static const struct {
        const char *name;
        enum tierce__kv_medium medium;
    } names[] = {
        {"", TIERCE__KV_GPU},         {"GPU", TIERCE__KV_GPU},   {"gpu", TIERCE__KV_GPU},
        {"CPU", TIERCE__KV_CPU},      {"cpu", TIERCE__KV_CPU},   {"DISK", TIERCE__KV_DISK},
        {"STORAGE", TIERCE__KV_DISK}, {"disk", TIERCE__KV_DISK}, {"storage", TIERCE__KV_DISK}};
    if (f->is_owned || is_text(f->locality, "REMOTE"))
        return TIERCE__KV_ELSEWHERE;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (is_text(f->medium, names[i].name))
            return names[i].medium;
    }
    return TIERCE__KV_ELSEWHERE;
}

/* Whether a block has a key beside the adapter's name, which vLLM repeats there. */
static bool is_keyed(const struct tierce__kv_event *event, const struct fields *f)
{
    struct tierce__msgpack m = f->keys;
    for (uint32_t i = 0; i < f->key_count; i++) {
        struct tierce__msgpack inner = m;
        struct tierce__msgpack_item keys = take(&inner);
        (void)tierce__msgpack_skip(&m);
        if (keys.type == TIERCE__MSGPACK_NIL)
            continue;
        for (uint32_t j = 0; j < keys.count && keys.type == TIERCE__MSGPACK_ARRAY; j++) {
            struct tierce__msgpack_item key = take_whole(&inner);
            struct tierce__text text = text_of(&key);
            if (key.type != TIERCE__MSGPACK_TEXT || text.length != event->lora.length ||
                memcmp(text.at, event->lora.at, text.length) != 0)
                return true;
        }
        if (keys.type != TIERCE__MSGPACK_ARRAY)
            return true;
    }
    return f->has_lora_id && event->lora.length == 0;
}

static enum tierce__kv_type type_of(const struct fields *f)
{
    if (is_text(f->type, "AllBlocksCleared"))
        return TIERCE__KV_CLEARED;
    bool is_stored = is_text(f->type, "BlockStored");
    if (!is_stored && !is_text(f->type, "BlockRemoved"))
        return f->type.length > 0 ? TIERCE__KV_UNKNOWN : TIERCE__KV_INVALID;
    if (f->is_wrong || !f->has_hashes)
        return TIERCE__KV_INVALID;
    return is_stored ? TIERCE__KV_STORED : TIERCE__KV_REMOVED;
}

static void finish(struct tierce__kv_event *event, const struct fields *f)
{
    event->type = type_of(f);
    event->medium = medium_of(f);
    event->is_keyed = is_keyed(event, f);
    /* "full_attention", "mla_attention", ...: each block is of use as long as all before it are. */
    event->is_partial = is_text(f->kind, "sliding_window") || is_text(f->kind, "mamba") ||
                        is_text(f->kind, "sliding_window_mla") ||
                        is_text(f->kind, "chunked_local_attention");
}

bool tierce__kv_batch_next(struct tierce__kv_batch *batch, struct tierce__kv_event *event)
{
    struct fields f = {.type = {"", 0}, .medium = {"", 0}, .kind = {"", 0}, .locality = {"", 0}};
    if (batch->left == 0)
        return false;
    batch->left--;
    struct tierce__msgpack m = batch->events;
    *event = (struct tierce__kv_event){.type = TIERCE__KV_INVALID, .lora = {"", 0}};
    struct tierce__msgpack_item head = take(&m), item;
    if (head.type == TIERCE__MSGPACK_MAP) {
        for (uint32_t i = 0; i < head.count; i++) {
            item = take_whole(&m);
            take_field(&m, text_of(&item), event, &f);
        }
    } else if (head.type == TIERCE__MSGPACK_ARRAY && head.count > 0) {
        item = take_whole(&m);
        f.type = text_of(&item);
        for (uint32_t i = 0; i + 1 < head.count; i++)
            take_field(&m, field_at(f.type, i), event, &f);
    }
    TIERCE_DASSERT(m.at == end_of(batch->events)); /* each field is taken or skipped as a whole */
    batch->events = m;
    finish(event, &f);
    return true;
}

bool tierce__kv_batch_open(struct tierce__kv_batch *batch, const void *payload, size_t bytes)
{
    const uint8_t *at = payload;
    struct tierce__msgpack m = {at, at + bytes}, whole = m;
    if (tierce__msgpack_skip(&whole) != TIERCE__MSGPACK_OK || whole.at != whole.end)
        return false;
    struct tierce__msgpack_item head = take(&m);
    if (head.type != TIERCE__MSGPACK_ARRAY || head.count < 2)
        return false;
    struct tierce__msgpack_item ts = take_whole(&m), events = take(&m);
    *batch = (struct tierce__kv_batch){.events = m, .left = events.count, .ts = ts.real};
    return events.type == TIERCE__MSGPACK_ARRAY;
}

bool tierce__kv_batch_clears(const void *payload, size_t bytes)
{
    struct tierce__kv_batch batch;
    struct tierce__kv_event event;
    if (!tierce__kv_batch_open(&batch, payload, bytes))
        return false;
    while (tierce__kv_batch_next(&batch, &event)) {
        if (event.type == TIERCE__KV_CLEARED)
            return true;
    }
    return false;
}
