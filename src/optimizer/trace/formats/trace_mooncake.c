/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake: {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}.
 * The ids are prefix ids already; each line is a turn.
 */
#include "base/alloc.h"
#include "optimizer/trace/trace_fields.h"
#include "optimizer/trace/trace_private.h"

struct mooncake_trace {
    int64_t time_us;
    uint64_t input_tokens, output_tokens, session;
    struct tierce__ids ids;
};

enum { TIMESTAMP, INPUT, OUTPUT, HASH_IDS, SESSION, FIELDS };

static const struct tierce__trace_field fields[FIELDS] = {
    [TIMESTAMP] = TIERCE__FIELD("timestamp", TIME_MS, mooncake_trace, time_us),
    [INPUT] = TIERCE__FIELD("input_length", COUNT, mooncake_trace, input_tokens),
    [OUTPUT] = TIERCE__FIELD("output_length", COUNT, mooncake_trace, output_tokens),
    [HASH_IDS] = TIERCE__FIELD("hash_ids", IDS, mooncake_trace, ids),
    [SESSION] = TIERCE__FIELD("session_id", SESSION, mooncake_trace, session),
};

#define WANTED (1u << TIMESTAMP | 1u << HASH_IDS)

static bool probe(const char *head, size_t length)
{
    return (tierce__fields_probe(head, length, fields, FIELDS) & WANTED) == WANTED;
}

static int record(struct tierce__trace *trace, void *state, const char *line, size_t length)
{
    struct mooncake_trace *m = state;
    uint32_t seen;
    int rc = tierce__fields_read(trace, line, length, fields, FIELDS, WANTED, m, &seen);
    if (rc < 0)
        return rc;
    return tierce__trace_emit(trace,
                              &(struct tierce__trace_request){
                                  .time_us = m->time_us,
                                  .session = m->session,
                                  .kind = TIERCE__TRACE_TURN,
                                  .count = (uint32_t)m->ids.count,
                                  .read_count = (uint32_t)m->ids.count,
                                  .blocks = m->ids.at,
                                  .input_tokens = m->input_tokens,
                                  .output_tokens = m->output_tokens,
                              },
                              NULL);
}

static void fini(void *state)
{
    struct mooncake_trace *m = state;
    tierce__free(m->ids.at);
}

const struct tierce__trace_format tierce__trace_format_mooncake = {
    .state_bytes = sizeof(struct mooncake_trace),
    .probe = probe,
    .record = record,
    .fini = fini,
};
