/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events of vLLM and of those that publish the same: batches in MessagePack, one after the other
 * in a file. A batch is [ts, [event ...], dp_rank]; an event a map with its "type" or an array that
 * begins with it. A batch may also lie in a byte string, by itself or as the last of the three
 * frames [topic, sequence, batch] in which it was sent.
 *
 * BlockStored names new blocks and the one before them. Its request is the whole chain: the blocks
 * before the new ones are known from earlier events, were held by the engine, and are marked so.
 * Only blocks of the GPU and of the first group count; copies to other tiers are not uses.
 */
#include "base/alloc.h"
#include "optimizer/trace/intern.h"
#include "optimizer/trace/trace_fields.h"
#include "proto/msgpack/msgpack.h"
#include "optimizer/trace/trace_private.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Each event of a batch may name the whole chain, so without a limit a small batch could use up all
 * memory. */
#define BATCH_BLOCKS_MAX (1u << 24)

struct events {
    struct tierce__intern *blocks; /* (0, hash) -> number */
    struct tierce__ids hashes;     /* of each number */
    struct tierce__ids parents;    /* number of the block before + 1; 0: it is not known */
    struct tierce__ids named;      /* blocks that the event names */
    struct tierce__ids chain;
    struct tierce__trace_mask mask;
    uint64_t emitted;        /* requests of this batch */
    uint64_t emitted_blocks; /* and their blocks */
};

/* The relevant fields of an event. */
struct event {
    struct tierce__text type, medium, session;
    bool has_parent;
    uint64_t parent;
    uint64_t group, block_tokens;
    bool has_hashes;
};

/* A value that does not have the type it should have. */
static int wrong(struct tierce__trace *trace, const char *what)
{
    return tierce__trace_bad(trace, "%s is missing or invalid", what);
}

/* ---- items ---------------------------------------------------------------------------------- */

/* The trace has measured the record, so that no item ends too early. */
static struct tierce__msgpack_item take(struct tierce__msgpack *m)
{
    struct tierce__msgpack_item item = {.type = TIERCE__MSGPACK_NIL};
    (void)tierce__msgpack_next(m, &item);
    return item;
}

static struct tierce__text take_text(struct tierce__msgpack *m)
{
    struct tierce__msgpack_item item = {.type = TIERCE__MSGPACK_NIL};
    struct tierce__msgpack start = *m;
    (void)tierce__msgpack_skip(m);
    (void)tierce__msgpack_next(&start, &item);
    if (item.type != TIERCE__MSGPACK_TEXT)
        return (struct tierce__text){"", 0};
    return (struct tierce__text){(const char *)item.bytes, item.count};
}

static uint64_t take_count(struct tierce__msgpack *m)
{
    struct tierce__msgpack_item item = {.type = TIERCE__MSGPACK_NIL};
    struct tierce__msgpack start = *m;
    (void)tierce__msgpack_skip(m);
    (void)tierce__msgpack_next(&start, &item);
    return item.type == TIERCE__MSGPACK_UINT ? item.number : 0;
}

/* A block's hash as 64 bits: a number itself, of bytes the last eight as a big-endian number, which
 * is what vLLM makes of them where it publishes numbers. */
static bool hash_of(const struct tierce__msgpack_item *item, uint64_t *out)
{
    if (item->type == TIERCE__MSGPACK_UINT || item->type == TIERCE__MSGPACK_INT) {
        *out = item->number;
        return true;
    }
    if (item->type != TIERCE__MSGPACK_BYTES && item->type != TIERCE__MSGPACK_TEXT)
        return false;
    *out = 0;
    for (uint32_t i = item->count > 8 ? item->count - 8 : 0; i < item->count; i++)
        *out = *out << 8 | item->bytes[i];
    return item->count > 0;
}

static int take_hashes(struct tierce__trace *trace, struct events *e, struct tierce__msgpack *m,
                       struct event *event)
{
    struct tierce__msgpack_item array = take(m), item;
    e->named.count = 0;
    if (array.type != TIERCE__MSGPACK_ARRAY)
        return wrong(trace, "\"block_hashes\"");
    for (uint32_t i = 0; i < array.count; i++) {
        if (tierce__ids_reserve(&e->named) < 0)
            return -ENOMEM;
        item = take(m);
        if (!hash_of(&item, &e->named.at[e->named.count++]))
            return wrong(trace, "a hash of \"block_hashes\"");
    }
    event->has_hashes = true;
    return 0;
}

static int take_parent(struct tierce__trace *trace, struct tierce__msgpack *m, struct event *event)
{
    struct tierce__msgpack_item item = take(m);
    if (item.type == TIERCE__MSGPACK_NIL)
        return 0;
    event->has_parent = hash_of(&item, &event->parent);
    return event->has_parent ? 0 : wrong(trace, "\"parent_block_hash\"");
}

/* ---- events --------------------------------------------------------------------------------- */

static int take_field(struct tierce__trace *trace, struct events *e, struct tierce__msgpack *m,
                      struct tierce__text name, struct event *event)
{
    if (tierce__text_is(name, "block_hashes"))
        return take_hashes(trace, e, m, event);
    if (tierce__text_is(name, "parent_block_hash"))
        return take_parent(trace, m, event);
    if (tierce__text_is(name, "type"))
        event->type = take_text(m);
    else if (tierce__text_is(name, "medium"))
        event->medium = take_text(m);
    else if (tierce__text_is(name, "session_id"))
        event->session = take_text(m);
    else if (tierce__text_is(name, "group_idx"))
        event->group = take_count(m);
    else if (tierce__text_is(name, "block_size"))
        event->block_tokens = take_count(m);
    else
        (void)tierce__msgpack_skip(m);
    return 0;
}

/* Names of the fields of an array, by type and place. */
static const char *const stored_fields[] = {"block_hashes",
                                            "parent_block_hash",
                                            "token_ids",
                                            "block_size",
                                            "lora_id",
                                            "medium",
                                            "lora_name",
                                            "extra_keys",
                                            "group_idx",
                                            "kv_cache_spec_kind",
                                            "kv_cache_spec_sliding_window",
                                            "locality",
                                            "ownership",
                                            "session_id"};
static const char *const removed_fields[] = {"block_hashes", "medium", "group_idx"};

static struct tierce__text name_at(struct tierce__text type, uint32_t index)
{
    const char *name = "";
    if (tierce__text_is(type, "BlockStored") &&
        index < sizeof(stored_fields) / sizeof(stored_fields[0]))
        name = stored_fields[index];
    else if (tierce__text_is(type, "BlockRemoved") &&
             index < sizeof(removed_fields) / sizeof(removed_fields[0]))
        name = removed_fields[index];
    return (struct tierce__text){name, strlen(name)};
}

static int take_event(struct tierce__trace *trace, struct events *e, struct tierce__msgpack *m,
                      struct event *event)
{
    struct tierce__msgpack_item head = take(m);
    int rc = 0;
    *event = (struct event){.type = {"", 0}, .medium = {"", 0}, .session = {"", 0}};
    e->named.count = 0;
    if (head.type == TIERCE__MSGPACK_MAP) {
        for (uint32_t i = 0; rc == 0 && i < head.count; i++) {
            struct tierce__text name = take_text(m);
            rc = take_field(trace, e, m, name, event);
        }
        return rc;
    }
    if (head.type != TIERCE__MSGPACK_ARRAY || head.count == 0)
        return wrong(trace, "an event");
    event->type = take_text(m);
    for (uint32_t i = 0; rc == 0 && i + 1 < head.count; i++)
        rc = take_field(trace, e, m, name_at(event->type, i), event);
    return rc;
}

/* The number of a block, and room for its data. */
static int number_block(struct events *e, uint64_t hash, uint32_t *out)
{
    if (tierce__ids_reserve(&e->hashes) < 0 || tierce__ids_reserve(&e->parents) < 0)
        return -ENOMEM;
    int rc = tierce__intern_one(e->blocks, 0, hash, out);
    if (rc == 0 && *out == e->hashes.count) {
        e->hashes.at[e->hashes.count++] = hash;
        e->parents.at[e->parents.count++] = 0;
    }
    return rc;
}

/* Links the new blocks to the parent. Links go only to smaller numbers, so that no chain has a
 * cycle; any other link becomes a gap. */
static int link_blocks(struct events *e, const struct event *event)
{
    uint32_t before = 0, number;
    int rc = 0;
    if (event->has_parent) {
        rc = number_block(e, event->parent, &before);
        before++;
    }
    for (size_t i = 0; rc == 0 && i < e->named.count; i++) {
        rc = number_block(e, e->named.at[i], &number);
        if (rc == 0 && before <= number && e->parents.at[number] == 0)
            e->parents.at[number] = before;
        before = number + 1;
    }
    return rc;
}

/* The blocks before the first new one, from the root on, then the new ones. */
static int build_chain(struct events *e, const struct event *event, size_t *before)
{
    e->chain.count = 0;
    uint64_t number =
        event->has_parent ? tierce__intern_find(e->blocks, 0, event->parent) + 1ULL : 0;
    for (; number != 0; number = e->parents.at[number - 1]) {
        if (tierce__ids_reserve(&e->chain) < 0)
            return -ENOMEM;
        e->chain.at[e->chain.count++] = e->hashes.at[number - 1];
    }
    for (size_t i = 0, j = e->chain.count; i + 1 < j--; i++) {
        uint64_t other = e->chain.at[i];
        e->chain.at[i] = e->chain.at[j];
        e->chain.at[j] = other;
    }
    *before = e->chain.count;
    for (size_t i = 0; i < e->named.count; i++) {
        if (tierce__ids_reserve(&e->chain) < 0)
            return -ENOMEM;
        e->chain.at[e->chain.count++] = e->named.at[i];
    }
    return 0;
}

static int emit(struct tierce__trace *trace, struct events *e,
                const struct tierce__trace_request *request)
{
    e->emitted++;
    e->emitted_blocks += request->count;
    if (e->emitted_blocks > BATCH_BLOCKS_MAX)
        return tierce__trace_bad(trace, "the chains of one batch have more than %u blocks",
                                 BATCH_BLOCKS_MAX);
    return tierce__trace_emit(trace, request, NULL);
}

static int emit_stored(struct tierce__trace *trace, struct events *e, const struct event *event,
                       struct tierce__trace_request request)
{
    size_t before = 0;
    int rc = link_blocks(e, event);
    if (rc == 0)
        rc = build_chain(e, event, &before);
    if (rc == TIERCE_E_LIMIT)
        return tierce__trace_bad(trace, "the trace has more different blocks than 2^32");
    if (rc < 0)
        return rc;
    e->mask.is_offset = true;
    e->mask.offset = (int64_t)before;
    rc = tierce__mask_apply(&e->mask, &request.internal, e->chain.count);
    if (rc < 0)
        return rc;
    request.kind = TIERCE__TRACE_TURN;
    request.count = request.read_count = (uint32_t)e->chain.count;
    request.blocks = e->chain.at;
    if (event->session.length > 0)
        request.session = tierce__trace_session_of(event->session.at, event->session.length);
    if (event->block_tokens <= UINT32_MAX)
        request.input_tokens = event->block_tokens * e->chain.count;
    return emit(trace, e, &request);
}

/* The result of one event. */
static int emit_event(struct tierce__trace *trace, struct events *e, const struct event *event,
                      struct tierce__trace_request request)
{
    bool elsewhere = event->medium.length > 0 && !tierce__text_is(event->medium, "GPU");
    if (tierce__text_is(event->type, "AllBlocksCleared")) {
        request.kind = TIERCE__TRACE_DROP;
        return emit(trace, e, &request);
    }
    bool stored = tierce__text_is(event->type, "BlockStored");
    if (!stored && !tierce__text_is(event->type, "BlockRemoved"))
        return event->type.length > 0 ? 0 : wrong(trace, "the type of an event");
    if (elsewhere || event->group != 0)
        return 0;
    if (!event->has_hashes)
        return wrong(trace, "\"block_hashes\"");
    if (e->named.count == 0)
        return 0;
    if (stored)
        return emit_stored(trace, e, event, request);
    request.kind = TIERCE__TRACE_DROP;
    request.count = (uint32_t)e->named.count;
    request.blocks = e->named.at;
    return emit(trace, e, &request);
}

/* ---- batches -------------------------------------------------------------------------------- */

static int read_time(struct tierce__trace *trace, const struct tierce__msgpack_item *item,
                     int64_t *out)
{
    double s = item->type == TIERCE__MSGPACK_FLOAT  ? item->real
               : item->type == TIERCE__MSGPACK_UINT ? (double)item->number
                                                    : -1;
    if (!(s >= 0 && s < 9e12))
        return wrong(trace, "the time of a batch");
    *out = (int64_t)llround(s * 1e6);
    return 0;
}

/* Engines of one deployment are instances; without a rank there is one. */
static int read_rank(struct tierce__trace *trace, struct tierce__msgpack *m, uint32_t *out)
{
    char name[32] = "";
    struct tierce__msgpack_item item = take(m);
    if (item.type == TIERCE__MSGPACK_UINT || item.type == TIERCE__MSGPACK_INT)
        snprintf(name, sizeof(name), "dp%lld", (long long)item.number);
    else if (item.type != TIERCE__MSGPACK_NIL)
        return wrong(trace, "the rank of a batch");
    return tierce__trace_instance_index(trace, out, name, strlen(name));
}

static int read_batch(struct tierce__trace *trace, struct events *e, struct tierce__msgpack m,
                      uint32_t items)
{
    struct tierce__trace_request request = {0};
    struct tierce__msgpack_item time = take(&m);
    int rc = read_time(trace, &time, &request.time_us);
    if (rc < 0)
        return rc;
    /* The rank follows the events. */
    struct tierce__msgpack events = m;
    (void)tierce__msgpack_skip(&m);
    if (items > 2)
        rc = read_rank(trace, &m, &request.instance);
    else
        rc = tierce__trace_instance_index(trace, &request.instance, "", 0);
    struct tierce__msgpack_item list = take(&events);
    if (rc == 0 && list.type != TIERCE__MSGPACK_ARRAY)
        rc = wrong(trace, "the list of events");
    for (uint32_t i = 0; rc == 0 && i < list.count; i++) {
        struct event event;
        struct tierce__msgpack next = events;
        (void)tierce__msgpack_skip(&next);
        rc = take_event(trace, e, &events, &event);
        events = next;
        if (rc == 0)
            rc = emit_event(trace, e, &event, request);
    }
    return rc;
}

/* Finds the batch in a recorded message; false if there is none. */
static bool find_batch(struct tierce__msgpack *m, uint32_t *items)
{
    struct tierce__msgpack_item item = take(m);
    struct tierce__msgpack frames = *m;
    if (item.type == TIERCE__MSGPACK_ARRAY && item.count == 3 &&
        (take(&frames).type == TIERCE__MSGPACK_BYTES)) {
        (void)tierce__msgpack_skip(&frames);
        item = take(&frames);
    }
    if (item.type == TIERCE__MSGPACK_BYTES) {
        struct tierce__msgpack whole = {item.bytes, item.bytes + item.count};
        *m = whole;
        if (tierce__msgpack_skip(&whole) != TIERCE__MSGPACK_OK || whole.at != whole.end)
            return false;
        item = take(m);
    }
    *items = item.count;
    return item.type == TIERCE__MSGPACK_ARRAY && item.count >= 2;
}

static int record(struct tierce__trace *trace, void *state, const char *at, size_t length)
{
    struct events *e = state;
    struct tierce__msgpack m = {(const uint8_t *)at, (const uint8_t *)at + length};
    uint32_t items;
    if (!find_batch(&m, &items))
        return tierce__trace_bad(trace, "is not a batch [time, events, rank]");
    e->emitted = e->emitted_blocks = 0;
    int rc = read_batch(trace, e, m, items);
    return rc == 0 && e->emitted == 0 ? TIERCE__TRACE_SKIPPED : rc;
}

static int64_t measure(const char *at, size_t length)
{
    const uint8_t *start = (const uint8_t *)at;
    struct tierce__msgpack m = {start, start + length};
    enum tierce__msgpack_result result = tierce__msgpack_skip(&m);
    if (result == TIERCE__MSGPACK_OK)
        return m.at - start;
    return result == TIERCE__MSGPACK_SHORT ? 0 : -1;
}

/* Only where the first bytes are those of a batch that is recorded: a line of text has none
 * such. */
static bool probe(const char *head, size_t length)
{
    struct tierce__msgpack m = {(const uint8_t *)head, (const uint8_t *)head + length};
    struct tierce__msgpack_item first, second = {.type = TIERCE__MSGPACK_NIL};
    uint8_t byte = length > 0 ? (uint8_t)head[0] : 0;
    if (byte >= 0xc4 && byte <= 0xc6)
        return true;
    if (byte != 0x92 && byte != 0x93 && byte != 0xdc)
        return false;
    if (tierce__msgpack_next(&m, &first) != TIERCE__MSGPACK_OK ||
        tierce__msgpack_next(&m, &second) != TIERCE__MSGPACK_OK)
        return false;
    return second.type == TIERCE__MSGPACK_FLOAT || second.type == TIERCE__MSGPACK_UINT ||
           second.type == TIERCE__MSGPACK_BYTES;
}

static int init(void *state)
{
    struct events *e = state;
    return tierce__intern_create(&e->blocks);
}

static void fini(void *state)
{
    struct events *e = state;
    tierce__intern_destroy(e->blocks);
    tierce__free(e->hashes.at);
    tierce__free(e->parents.at);
    tierce__free(e->named.at);
    tierce__free(e->chain.at);
    tierce__free(e->mask.flags);
}

const struct tierce__trace_format tierce__trace_format_events = {
    .state_bytes = sizeof(struct events),
    .probe = probe,
    .init = init,
    .record = record,
    .measure = measure,
    .fini = fini,
};
