/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/native/native.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"

/* A message is a table of fields, so that there is one place that packs and one that unpacks. */

enum kind {
    END = 0,
    U32,
    U64,
    ID,    /* TIERCE__NATIVE_ID_BYTES */
    HASH,  /* TIERCE__NATIVE_HASH */
    TEXT,  /* u32 bytes, these, and a NUL */
    ROWS,  /* u32 count, and these; `row` bytes each */
    CHAIN, /* struct tierce__native_chain */
    VIEW,  /* struct tierce__native_view */
    STORE, /* struct tierce__native_store */
};

struct native_field {
    uint16_t at;
    uint8_t kind;
    uint8_t row;
};

#define F(message, member, kind)                                                                   \
    {                                                                                              \
        offsetof(struct tierce__native_##message, member), kind, 0                                 \
    }
#define R(message, member, row)                                                                    \
    {                                                                                              \
        offsetof(struct tierce__native_##message, member), ROWS, row                               \
    }

static const struct native_field nothing[] = {{0}};
static const struct native_field hello[] = {
    F(hello, magic, U32), F(hello, version, U32), F(hello, client, ID), F(hello, pid, U64), {0}};
static const struct native_field view[] = {F(view, weights, TEXT),
                                           F(view, model, TEXT),
                                           F(view, kv_dtype, TEXT),
                                           F(view, quantization, TEXT),
                                           F(view, layout, TEXT),
                                           R(view, cell_bytes, 4),
                                           F(view, block_tokens, U32),
                                           F(view, chunk_blocks, U32),
                                           F(view, algo, U32),
                                           F(view, tp_rank, U32),
                                           F(view, tp_size, U32),
                                           F(view, pp_rank, U32),
                                           F(view, pp_size, U32),
                                           F(view, first_layer, U32),
                                           F(view, layer_count, U32),
                                           F(view, part_index, U32),
                                           F(view, part_count, U32),
                                           F(view, engine, TEXT),
                                           {0}};
static const struct native_field group_view[] = {F(group_view, view, VIEW),
                                                 F(group_view, group, U32),
                                                 F(group_view, window, U32),
                                                 R(group_view, layers, 4),
                                                 {0}};
static const struct native_field number[] = {F(number, number, U64), {0}};
static const struct native_field computed[] = {
    F(computed, view, U64), F(computed, tokens, U64), F(computed, ns, U64), {0}};
static const struct native_field lookup[] = {F(lookup, view, U64),
                                             F(lookup, session, U64),
                                             F(lookup, from_block, U64),
                                             F(lookup, to_block, U64),
                                             F(lookup, flags, U32),
                                             F(lookup, tiers, U32),
                                             F(lookup, pin_ms, U32),
                                             F(lookup, wait_ms, U32),
                                             F(lookup, tag, TEXT),
                                             F(lookup, chain, CHAIN),
                                             {0}};
static const struct native_field session[] = {F(session, view, U64), F(session, session, U64), {0}};
static const struct native_field hint[] = {
    F(hint, view, U64), F(hint, session, U64), F(hint, hint, U32), F(hint, returns_ms, U32), {0}};
static const struct native_field load[] = {
    F(load, view, U64),     F(load, session, U64),    F(load, from_block, U64),
    F(load, to_block, U64), F(load, timeout_ms, U32), F(load, tiers, U32),
    F(load, wait_ms, U32),  F(load, chain, CHAIN),    {0}};
static const struct native_field wait[] = {F(wait, load, U64), F(wait, layer, U32), {0}};
static const struct native_field next[] = {
    F(next, load, U64), F(next, chunk, U32), F(next, verdict, U32), {0}};
static const struct native_field load_end[] = {
    F(load_end, load, U64), R(load_end, verdicts, TIERCE__NATIVE_RESULT_BYTES), {0}};
static const struct native_field store[] = {
    F(store, view, U64),  F(store, session, U64), F(store, to_block, U64),
    F(store, write, U64), F(store, tail, U32),    F(store, tiers, U32),
    F(store, tag, TEXT),  F(store, chain, CHAIN), {0}};
static const struct native_field group_store[] = {
    F(group_store, store, STORE), F(group_store, from_block, U64), {0}};
static const struct native_field store_end[] = {
    F(store_end, store, U64), F(store_end, complete, U32), {0}};
static const struct native_field store_layers[] = {
    F(store_layers, store, U64), F(store_layers, layers, U32), {0}};
static const struct native_field prefetch[] = {
    F(prefetch, view, U64),       F(prefetch, session, U64), F(prefetch, from_block, U64),
    F(prefetch, to_block, U64),   F(prefetch, flags, U32),   F(prefetch, tiers, U32),
    F(prefetch, timeout_ms, U32), F(prefetch, chain, CHAIN), {0}};
static const struct native_field poll[] = {F(poll, prefetch, U64), F(poll, wait_ms, U32), {0}};
static const struct native_field flush[] = {F(flush, timeout_ms, U32), {0}};
static const struct native_field clear[] = {F(clear, tiers, U32), F(clear, view, U64), {0}};

static const struct native_field note[] = {F(note, session, U64),
                                           F(note, tokens, U64),
                                           F(note, unit_tokens, U64),
                                           F(note, local_tokens, U64),
                                           F(note, looked_tokens, U64),
                                           F(note, found_tokens, U64),
                                           F(note, loaded_tokens, U64),
                                           F(note, failed_tokens, U64),
                                           F(note, limit, U32),
                                           F(note, name, TEXT),
                                           {0}};

static const struct native_field hand[] = {F(hand, kind, U32),       F(hand, port, U32),
                                           F(hand, uses_tls, U32),   F(hand, wait_ms, U32),
                                           F(hand, timeout_ms, U32), F(hand, view, U64),
                                           F(hand, session, U64),    F(hand, from_block, U64),
                                           F(hand, to_block, U64),   F(hand, number, U64),
                                           F(hand, bytes, U64),      F(hand, host, TEXT),
                                           F(hand, token, TEXT),     F(hand, why, TEXT),
                                           F(hand, chain, CHAIN),    {0}};
static const struct native_field handed[] = {F(handed, number, U64), F(handed, bytes, U64),
                                             F(handed, status, U32), F(handed, uses_tls, U32),
                                             F(handed, why, TEXT),   {0}};

static const struct native_field pushed[] = {
    F(pushed, chunks, U64),   F(pushed, bytes, U64),   F(pushed, present, U64),
    F(pushed, left_out, U64), F(pushed, over_ns, U64), F(pushed, is_over, U32),
    F(pushed, status, U32),   F(pushed, why, TEXT),    {0}};

static const struct native_field tokens[] = {F(tokens, view, U64),
                                             F(tokens, from_block, U64),
                                             F(tokens, chain, CHAIN),
                                             R(tokens, tokens, 4),
                                             {0}};

static const struct native_field welcome[] = {
    F(welcome, client, ID),       F(welcome, boot, U64),
    F(welcome, pool_bytes, U64),  F(welcome, tiers, U32),
    F(welcome, lookup_ms, U32),   F(welcome, load_ms, U32),
    F(welcome, store_ms, U32),    F(welcome, pin_ms, U32),
    F(welcome, prefetch_ms, U32), {0}};
static const struct native_field given[] = {F(given, number, U64), {0}};
static const struct native_field found[] = {
    F(found, blocks, U64), F(found, memory_blocks, U64), F(found, pending, U32), {0}};
static const struct native_field loan[] = {
    F(loan, load, U64), F(loan, left_ms, U32), R(loan, chunks, TIERCE__NATIVE_LENT_BYTES), {0}};
static const struct native_field ready[] = {F(ready, ready, U32), R(ready, states, 1), {0}};
static const struct native_field passed[] = {
    F(passed, offset, U64), F(passed, state, U32), F(passed, origin, U32), {0}};
static const struct native_field reservation[] = {
    F(reservation, store, U64),
    F(reservation, left_ms, U32),
    R(reservation, chunks, TIERCE__NATIVE_RESERVED_BYTES),
    {0}};
static const struct native_field count[] = {F(count, count, U64), {0}};
static const struct native_field come[] = {F(come, blocks, U64),
                                           F(come, memory_blocks, U64),
                                           F(come, flags, U32),
                                           R(come, tiers, TIERCE__NATIVE_TIER_BYTES),
                                           {0}};
static const struct native_field chain[] = {F(chain, number, U64),
                                            F(chain, first, U32),
                                            F(chain, parent, HASH),
                                            R(chain, hashes, TIERCE__NATIVE_HASH),
                                            {0}};

static const struct {
    const struct native_field *request, *answer;
} messages[TIERCE__NATIVE_OPS] = {
    [TIERCE__NATIVE_HELLO] = {hello, welcome},
    [TIERCE__NATIVE_PING] = {nothing, nothing},
    [TIERCE__NATIVE_VIEW] = {view, given},
    [TIERCE__NATIVE_VIEW_CLOSE] = {number, nothing},
    [TIERCE__NATIVE_COMPUTED] = {computed, nothing},
    [TIERCE__NATIVE_LOOKUP] = {lookup, found},
    [TIERCE__NATIVE_DURABLE] = {lookup, found},
    [TIERCE__NATIVE_UNPIN] = {session, nothing},
    [TIERCE__NATIVE_LOAD_BEGIN] = {load, loan},
    [TIERCE__NATIVE_LOAD_WAIT] = {wait, ready},
    [TIERCE__NATIVE_LOAD_END] = {load_end, nothing},
    [TIERCE__NATIVE_STORE_BEGIN] = {store, reservation},
    [TIERCE__NATIVE_STORE_END] = {store_end, count},
    [TIERCE__NATIVE_PREFETCH_BEGIN] = {prefetch, given},
    [TIERCE__NATIVE_PREFETCH_POLL] = {poll, come},
    [TIERCE__NATIVE_PREFETCH_END] = {number, nothing},
    [TIERCE__NATIVE_FLUSH] = {flush, nothing},
    [TIERCE__NATIVE_CLEAR] = {clear, count},
    [TIERCE__NATIVE_LOAD_NEXT] = {next, passed},
    [TIERCE__NATIVE_GROUP_VIEW] = {group_view, given},
    [TIERCE__NATIVE_GROUP_STORE_BEGIN] = {group_store, reservation},
    [TIERCE__NATIVE_NOTE_REQUEST] = {note, nothing},
    [TIERCE__NATIVE_HAND_OVER] = {hand, handed},
    [TIERCE__NATIVE_NOTE_TOKENS] = {tokens, nothing},
    [TIERCE__NATIVE_PUSH_POLL] = {number, pushed},
    [TIERCE__NATIVE_STORE_LAYERS] = {store_layers, nothing},
    [TIERCE__NATIVE_SESSION_HINT] = {hint, nothing},
};

/* ---- packing --------------------------------------------------------------------------------- */

/* Room for `bytes` more, or NULL. */
static uint8_t *grow(struct tierce__native_frame *frame, uint64_t bytes)
{
    TIERCE_DASSERT(frame->used <= frame->room);
    uint64_t need = frame->used + bytes;
    frame->status = TIERCE_E_LIMIT;
    if (need > TIERCE__NATIVE_BODY_MAX + TIERCE__NATIVE_HEAD)
        return NULL;
    frame->status = TIERCE__GROW(frame->bytes, frame->room, (size_t)need, 512);
    if (frame->status < 0)
        return NULL;
    TIERCE_ASSERT(need <= frame->room);
    uint8_t *at = frame->bytes + frame->used;
    frame->used = (size_t)need;
    frame->status = 0;
    return at;
}

static bool put_bytes(struct tierce__native_frame *frame, const void *bytes, uint64_t n)
{
    uint8_t *at = grow(frame, n);
    if (at != NULL && n > 0)
        memcpy(at, bytes, (size_t)n);
    return at != NULL;
}

static bool put_u32(struct tierce__native_frame *frame, uint32_t value)
{
    uint8_t *at = grow(frame, 4);
    if (at != NULL)
        tierce__store_le32(at, value);
    return at != NULL;
}

static bool put_u64(struct tierce__native_frame *frame, uint64_t value)
{
    uint8_t *at = grow(frame, 8);
    if (at != NULL)
        tierce__store_le64(at, value);
    return at != NULL;
}

static bool put_text(struct tierce__native_frame *frame, const char *text)
{
    size_t n = text != NULL ? strlen(text) : 0;
    return put_u32(frame, (uint32_t)n) && put_bytes(frame, text != NULL ? text : "", n + 1);
}

static bool put_fields(struct tierce__native_frame *frame, const struct native_field *field,
                       const void *message)
{
    bool ok = true;
    for (; ok && field->kind != END; field++) {
        const void *at = (const uint8_t *)message + field->at;
        const struct tierce__native_rows *rows = at;
        switch ((enum kind)field->kind) {
        case U32:
            ok = put_u32(frame, *(const uint32_t *)at);
            break;
        case U64:
            ok = put_u64(frame, *(const uint64_t *)at);
            break;
        case ID:
            ok = put_bytes(frame, at, TIERCE__NATIVE_ID_BYTES);
            break;
        case HASH:
            ok = put_bytes(frame, at, TIERCE__NATIVE_HASH);
            break;
        case TEXT:
            ok = put_text(frame, *(const char *const *)at);
            break;
        case ROWS:
            TIERCE_DASSERT(field->row > 0);
            ok = put_u32(frame, rows->count) &&
                 put_bytes(frame, rows->bytes, (uint64_t)rows->count * field->row);
            break;
        case CHAIN:
            ok = put_fields(frame, chain, at);
            break;
        case VIEW:
            ok = put_fields(frame, view, at);
            break;
        case STORE:
            ok = put_fields(frame, store, at);
            break;
        case END:
            break;
        }
    }
    return ok;
}

static int pack(struct tierce__native_frame *frame, uint32_t word,
                const struct native_field *fields, const void *message)
{
    frame->used = 0;
    if (!put_u32(frame, 0) || !put_u32(frame, word) || !put_fields(frame, fields, message))
        return frame->status;
    TIERCE_DASSERT(frame->used >= TIERCE__NATIVE_HEAD && frame->used <= frame->room);
    tierce__store_le32(frame->bytes, (uint32_t)(frame->used - TIERCE__NATIVE_HEAD));
    return 0;
}

int tierce__native_pack_request(struct tierce__native_frame *frame, enum tierce__native_op op,
                                const union tierce__native_request *message)
{
    TIERCE_DASSERT(op < TIERCE__NATIVE_OPS);
    return pack(frame, (uint32_t)op, messages[op].request, message);
}

int tierce__native_pack_answer(struct tierce__native_frame *frame, enum tierce__native_op op,
                               int32_t status, const union tierce__native_answer *message)
{
    TIERCE_DASSERT(op < TIERCE__NATIVE_OPS);
    return pack(frame, (uint32_t)status, status == 0 ? messages[op].answer : nothing, message);
}

void tierce__native_frame_fini(struct tierce__native_frame *frame)
{
    tierce__free(frame->bytes);
    *frame = (struct tierce__native_frame){0};
}

/* ---- unpacking ------------------------------------------------------------------------------- */

struct native_reader {
    const uint8_t *at, *end;
};

/* The next bytes, or NULL. */
static const uint8_t *take(struct native_reader *reader, uint64_t bytes)
{
    TIERCE_DASSERT(reader->at <= reader->end);
    if (bytes > (uint64_t)(reader->end - reader->at))
        return NULL;
    const uint8_t *at = reader->at;
    reader->at += bytes;
    return at;
}

static bool take_u32(struct native_reader *reader, uint32_t *out)
{
    const uint8_t *at = take(reader, 4);
    if (at != NULL)
        *out = tierce__load_le32(at);
    return at != NULL;
}

static bool take_u64(struct native_reader *reader, uint64_t *out)
{
    const uint8_t *at = take(reader, 8);
    if (at != NULL)
        *out = tierce__load_le64(at);
    return at != NULL;
}

static bool take_bytes(struct native_reader *reader, void *out, size_t bytes)
{
    const uint8_t *at = take(reader, bytes);
    if (at != NULL)
        memcpy(out, at, bytes);
    return at != NULL;
}

static bool take_text(struct native_reader *reader, const char **out)
{
    uint32_t n;
    if (!take_u32(reader, &n))
        return false;
    const uint8_t *at = take(reader, (uint64_t)n + 1);
    if (at == NULL || memchr(at, 0, (size_t)n + 1) != at + n)
        return false;
    *out = (const char *)at;
    return true;
}

static bool take_rows(struct native_reader *reader, struct tierce__native_rows *out, uint8_t row)
{
    TIERCE_DASSERT(row > 0);
    if (!take_u32(reader, &out->count))
        return false;
    out->bytes = take(reader, (uint64_t)out->count * row);
    return out->bytes != NULL;
}

static bool take_fields(struct native_reader *reader, const struct native_field *field,
                        void *message)
{
    bool ok = true;
    for (; ok && field->kind != END; field++) {
        void *at = (uint8_t *)message + field->at;
        switch ((enum kind)field->kind) {
        case U32:
            ok = take_u32(reader, at);
            break;
        case U64:
            ok = take_u64(reader, at);
            break;
        case ID:
            ok = take_bytes(reader, at, TIERCE__NATIVE_ID_BYTES);
            break;
        case HASH:
            ok = take_bytes(reader, at, TIERCE__NATIVE_HASH);
            break;
        case TEXT:
            ok = take_text(reader, at);
            break;
        case ROWS:
            ok = take_rows(reader, at, field->row);
            break;
        case CHAIN:
            ok = take_fields(reader, chain, at);
            break;
        case VIEW:
            ok = take_fields(reader, view, at);
            break;
        case STORE:
            ok = take_fields(reader, store, at);
            break;
        case END:
            break;
        }
    }
    return ok;
}

static int unpack(void *out, const struct native_field *fields, const uint8_t *body,
                  size_t body_bytes)
{
    struct native_reader reader = {.at = body, .end = body + body_bytes};
    bool ok = take_fields(&reader, fields, out) && reader.at == reader.end;
    TIERCE_DASSERT(reader.at <= reader.end);
    return ok ? 0 : TIERCE_E_FORMAT;
}

int tierce__native_head(uint32_t *body_bytes, uint32_t *word,
                        const uint8_t head[TIERCE__NATIVE_HEAD])
{
    *body_bytes = tierce__load_le32(head);
    *word = tierce__load_le32(head + 4);
    return *body_bytes <= TIERCE__NATIVE_BODY_MAX ? 0 : TIERCE_E_LIMIT;
}

int tierce__native_unpack_request(union tierce__native_request *out, uint32_t op,
                                  const uint8_t *body, size_t body_bytes)
{
    if (op >= TIERCE__NATIVE_OPS || messages[op].request == NULL)
        return TIERCE_E_FORMAT;
    return unpack(out, messages[op].request, body, body_bytes);
}

int tierce__native_unpack_answer(union tierce__native_answer *out, uint32_t op, const uint8_t *body,
                                 size_t body_bytes)
{
    if (op >= TIERCE__NATIVE_OPS || messages[op].answer == NULL)
        return TIERCE_E_FORMAT;
    return unpack(out, messages[op].answer, body, body_bytes);
}

/* ---- rows ------------------------------------------------------------------------------------ */

int tierce__native_get_lent(struct tierce__native_lent *out, const struct tierce__native_rows *rows,
                            uint32_t i)
{
    TIERCE_ASSERT(i < rows->count);
    const uint8_t *row = rows->bytes + (size_t)i * TIERCE__NATIVE_LENT_BYTES;
    *out = (struct tierce__native_lent){.offset = tierce__load_le64(row),
                                        .bytes = tierce__load_le64(row + 8),
                                        .index = tierce__load_le32(row + 16),
                                        .block_count = tierce__load_le32(row + 20),
                                        .from = tierce__load_le32(row + 24),
                                        .to = tierce__load_le32(row + 28),
                                        .kind = row[32],
                                        .state = row[33],
                                        .origin = row[34]};
    memcpy(out->hash, row + 40, TIERCE__NATIVE_HASH);
    bool ok = out->kind <= TIERCE__NATIVE_SIBLING && out->state <= TIERCE__NATIVE_WAITS &&
              out->from <= out->to && out->to <= out->block_count;
    return ok ? 0 : TIERCE_E_FORMAT;
}

void tierce__native_put_reserved(uint8_t *row, const struct tierce__native_reserved *reserved)
{
    TIERCE_DASSERT(reserved->block_count > 0);
    tierce__store_le64(row, reserved->offset);
    tierce__store_le64(row + 8, reserved->bytes);
    tierce__store_le32(row + 16, reserved->index);
    tierce__store_le32(row + 20, reserved->block_count);
}

int tierce__native_get_reserved(struct tierce__native_reserved *out,
                                const struct tierce__native_rows *rows, uint32_t i)
{
    TIERCE_ASSERT(i < rows->count);
    const uint8_t *row = rows->bytes + (size_t)i * TIERCE__NATIVE_RESERVED_BYTES;
    *out = (struct tierce__native_reserved){.offset = tierce__load_le64(row),
                                            .bytes = tierce__load_le64(row + 8),
                                            .index = tierce__load_le32(row + 16),
                                            .block_count = tierce__load_le32(row + 20)};
    return out->block_count > 0 ? 0 : TIERCE_E_FORMAT;
}

void tierce__native_put_result(uint8_t *row, const struct tierce__native_result *result)
{
    TIERCE_DASSERT(result->verdict <= TIERCE__NATIVE_UNUSED);
    tierce__store_le32(row, result->verdict);
    tierce__store_le32(row + 4, result->blocks);
}

int tierce__native_get_result(struct tierce__native_result *out,
                              const struct tierce__native_rows *rows, uint32_t i)
{
    TIERCE_ASSERT(i < rows->count);
    const uint8_t *row = rows->bytes + (size_t)i * TIERCE__NATIVE_RESULT_BYTES;
    *out = (struct tierce__native_result){.verdict = tierce__load_le32(row),
                                          .blocks = tierce__load_le32(row + 4)};
    return out->verdict <= TIERCE__NATIVE_UNUSED ? 0 : TIERCE_E_FORMAT;
}

void tierce__native_put_tier(uint8_t *row, const struct tierce__native_come_tier *tier)
{
    memset(row, 0, TIERCE__NATIVE_TIER_NAME);
    memcpy(row, tier->name, strnlen(tier->name, TIERCE__NATIVE_TIER_NAME - 1));
    tierce__store_le64(row + 16, tier->promised);
    tierce__store_le64(row + 24, tier->loaded);
}

int tierce__native_get_tier(struct tierce__native_come_tier *out,
                            const struct tierce__native_rows *rows, uint32_t i)
{
    TIERCE_ASSERT(i < rows->count);
    const uint8_t *row = rows->bytes + (size_t)i * TIERCE__NATIVE_TIER_BYTES;
    memcpy(out->name, row, TIERCE__NATIVE_TIER_NAME);
    out->promised = tierce__load_le64(row + 16);
    out->loaded = tierce__load_le64(row + 24);
    return out->name[TIERCE__NATIVE_TIER_NAME - 1] == '\0' ? 0 : TIERCE_E_FORMAT;
}
