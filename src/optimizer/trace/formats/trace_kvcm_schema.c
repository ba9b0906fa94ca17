/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer schema of KVCM, one JSON object a line: instance_id, trace_id, timestamp_us,
 * tokens, keys, query_type, block_mask, sw_size, location_spec_names, input_len, output_len,
 * total_keys. The fields determine the kind of a line. With input_len, output_len and total_keys it
 * is a turn that looks up `keys` and stores `total_keys`; with query_type and block_mask a read;
 * else a write.
 */
#include "base/alloc.h"
#include "optimizer/trace/trace_fields.h"
#include "optimizer/trace/formats/trace_kvcm.h"
#include "optimizer/trace/trace_private.h"

#include <string.h>

struct kvcm_schema {
    int64_t time_us, window;
    uint64_t input_tokens, output_tokens, tokens;
    struct tierce__name instance, query;
    struct tierce__ids keys, total;
    struct tierce__trace_mask mask;
};

enum { INSTANCE, TIME, TOKENS, KEYS, QUERY, MASK, WINDOW, INPUT, OUTPUT, TOTAL, FIELDS };

static const struct tierce__trace_field fields[FIELDS] = {
    [INSTANCE] = TIERCE__FIELD("instance_id", NAME, kvcm_schema, instance),
    [TIME] = TIERCE__FIELD("timestamp_us", TIME_US, kvcm_schema, time_us),
    [TOKENS] = TIERCE__FIELD("tokens", LENGTH, kvcm_schema, tokens),
    [KEYS] = TIERCE__FIELD("keys", IDS, kvcm_schema, keys),
    [QUERY] = TIERCE__FIELD("query_type", NAME, kvcm_schema, query),
    [MASK] = TIERCE__FIELD("block_mask", MASK, kvcm_schema, mask),
    [WINDOW] = TIERCE__FIELD("sw_size", INTEGER, kvcm_schema, window),
    [INPUT] = TIERCE__FIELD("input_len", COUNT, kvcm_schema, input_tokens),
    [OUTPUT] = TIERCE__FIELD("output_len", COUNT, kvcm_schema, output_tokens),
    [TOTAL] = TIERCE__FIELD("total_keys", IDS, kvcm_schema, total),
};

#define WANTED (1u << INSTANCE | 1u << TIME | 1u << KEYS)
#define TURN   (1u << INPUT | 1u << OUTPUT | 1u << TOTAL)
#define READ   (1u << QUERY | 1u << MASK)

static bool probe(const char *head, size_t length)
{
    return (tierce__fields_probe(head, length, fields, FIELDS) & WANTED) == WANTED;
}

/* The blocks that a turn stores: all keys; the looked-up keys are the first of them. */
static int find_turn(struct tierce__trace *trace, const struct kvcm_schema *k,
                     struct tierce__trace_request *request)
{
    request->kind = TIERCE__TRACE_TURN;
    request->read_count = (uint32_t)k->keys.count;
    if (k->total.count == 0)
        return 0;
    if (k->total.count < k->keys.count ||
        (k->keys.count > 0 &&
         memcmp(k->total.at, k->keys.at, k->keys.count * sizeof(*k->keys.at)) != 0))
        return tierce__trace_bad(trace, "\"total_keys\" does not begin with \"keys\"");
    request->blocks = k->total.at;
    request->count = (uint32_t)k->total.count;
    return 0;
}

static int record(struct tierce__trace *trace, void *state, const char *line, size_t length)
{
    struct kvcm_schema *k = state;
    uint32_t seen;
    int rc = tierce__fields_read(trace, line, length, fields, FIELDS, WANTED, k, &seen);
    if (rc < 0)
        return rc;
    struct tierce__trace_request request = {.time_us = k->time_us,
                                            .kind = TIERCE__TRACE_WRITE,
                                            .count = (uint32_t)k->keys.count,
                                            .blocks = k->keys.at,
                                            .input_tokens = k->input_tokens,
                                            .output_tokens = k->output_tokens};
    if (k->keys.count == 0 && k->tokens > 0)
        return tierce__trace_bad(trace,
                                 "has tokens and no keys, and the length of a block is not given");
    if ((seen & TURN) == TURN) {
        rc = find_turn(trace, k, &request);
    } else if ((seen & READ) == READ) {
        request.kind = TIERCE__TRACE_READ;
        request.read_count = request.count;
    }
    if (rc == 0 && request.kind != TIERCE__TRACE_WRITE)
        rc = tierce__kvcm_read_query(trace, &request, k->query.text, k->window);
    if (rc == 0 && request.kind != TIERCE__TRACE_WRITE)
        rc = tierce__mask_apply(&k->mask, &request.internal, request.count);
    if (rc == 0)
        rc = tierce__trace_instance_index(trace, &request.instance, k->instance.text,
                                          k->instance.length);
    return rc < 0 ? rc : tierce__trace_emit(trace, &request, NULL);
}

static void fini(void *state)
{
    struct kvcm_schema *k = state;
    tierce__free(k->keys.at);
    tierce__free(k->total.at);
    tierce__free(k->mask.flags);
}

const struct tierce__trace_format tierce__trace_format_kvcm_schema = {
    .state_bytes = sizeof(struct kvcm_schema),
    .probe = probe,
    .record = record,
    .fini = fini,
};
