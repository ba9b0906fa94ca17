/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tierce's own access log, docs/format/trace.md: one JSON object a line, a lookup or a store.
 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "optimizer/trace_fields.h"
#include "optimizer/trace_private.h"

#include <string.h>

struct access {
    uint64_t version, session, block_tokens, held;
    int64_t time_us;
    struct tierce__name op, space;
    struct tierce__ids blocks;
    struct tierce__mask mask;
};

enum { VERSION, TIME, OP, NAMESPACE, SESSION, TOKENS, HELD, BLOCKS, TIERS, FIELDS };

static const struct tierce__field fields[FIELDS] = {
    [VERSION] = TIERCE__FIELD("tierce_access", COUNT, access, version),
    [TIME] = TIERCE__FIELD("time_us", TIME_US, access, time_us),
    [OP] = TIERCE__FIELD("op", NAME, access, op),
    [NAMESPACE] = TIERCE__FIELD("namespace", NAME, access, space),
    [SESSION] = TIERCE__FIELD("session", COUNT, access, session),
    [TOKENS] = TIERCE__FIELD("block_tokens", COUNT, access, block_tokens),
    [HELD] = TIERCE__FIELD("held", COUNT, access, held),
    [BLOCKS] = TIERCE__FIELD("blocks", HEX_IDS, access, blocks),
    [TIERS] = TIERCE__FIELD("tiers", OBJECT, access, version),
};

#define WANTED (1u << VERSION | 1u << TIME | 1u << OP | 1u << BLOCKS)

static bool probe(const char *head, size_t length)
{
    return (tierce__fields_probe(head, length, fields, FIELDS) & 1u << VERSION) != 0;
}

static int record(struct tierce__trace *trace, void *state, const char *line, size_t length)
{
    struct access *a = state;
    uint32_t seen;
    int rc = tierce__fields_read(trace, line, length, fields, FIELDS, WANTED, a, &seen);
    if (rc < 0)
        return rc;
    if (a->version != 1)
        return tierce__trace_bad(trace, "is of version %llu, which this build does not read",
                                 (unsigned long long)a->version);
    struct tierce__trace_request request = {.time_us = a->time_us,
                                            .session = a->session,
                                            .kind = TIERCE__TRACE_WRITE,
                                            .count = (uint32_t)a->blocks.count,
                                            .blocks = a->blocks.at};
    if (strcmp(a->op.text, "lookup") == 0) {
        request.kind = TIERCE__TRACE_READ;
        request.read_count = request.count;
        if (!tierce__mul_ok(&request.input_tokens, request.count, a->block_tokens))
            return tierce__trace_bad(trace, "\"block_tokens\" is too large a number");
    } else if (strcmp(a->op.text, "store") != 0) {
        return tierce__trace_bad(trace, "\"op\" is neither lookup nor store");
    }
    if (a->held > a->blocks.count)
        return tierce__trace_bad(trace, "\"held\" is more than there are blocks");
    a->mask = (struct tierce__mask){.is_offset = true,
                                    .offset = (int64_t)a->held,
                                    .flags = a->mask.flags,
                                    .capacity = a->mask.capacity};
    rc = tierce__mask_apply(&a->mask, &request.internal, a->blocks.count);
    if (rc == 0)
        rc = tierce__trace_instance_index(trace, &request.instance, a->space.text, a->space.length);
    return rc < 0 ? rc : tierce__trace_emit(trace, &request, NULL);
}

static void fini(void *state)
{
    struct access *a = state;
    tierce__free(a->blocks.at);
    tierce__free(a->mask.flags);
}

const struct tierce__trace_format tierce__trace_format_access = {
    .state_bytes = sizeof(struct access),
    .probe = probe,
    .record = record,
    .fini = fini,
};
